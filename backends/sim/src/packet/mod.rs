//! Packets: InfiniBand headers from LRH to ICRC, to bytes and back.
//!
//! InfiniBand Architecture chapters 5, 7, 8 and 9. The trailing VCRC belongs to the link and is not here. A packet that
//! can be built can be encoded; decoding is total.

mod field;
mod opcode;

use std::borrow::Cow;
use std::fmt;

pub use field::PacketFields;
pub use opcode::{Headers, Opcode, Operation, Place, Transport};

/// Not a local identifier: what a port has before it is given one.
pub const NO_LID: u16 = 0;
/// Local identifier that every port accepts.
pub const PERMISSIVE_LID: u16 = 0xffff;
/// Queue pair of packets for a multicast group.
pub const MULTICAST_QPN: u32 = 0xff_ffff;
/// Local identifiers of multicast groups begin here and end before [`PERMISSIVE_LID`].
pub const FIRST_MULTICAST_LID: u16 = 0xc000;
/// Maximum payload of a packet in bytes (path MTU 4096).
pub const MAX_PAYLOAD: usize = 4096;

/// Queue pair of subnet management on the wire.
pub const SUBNET_QPN: u32 = 0;
/// Queue pair of all other management on the wire.
pub const GENERAL_QPN: u32 = 1;

/// Virtual lane of subnet management.
pub const SUBNET_LANE: u8 = 15;

const LRH: usize = 8;
/// Bytes of a global route header.
pub const GRH: usize = 40;
const BTH: usize = 12;
const ICRC: usize = 4;
const LNH_LOCAL: u8 = 2;
const LNH_GLOBAL: u8 = 3;
const NEXT_HEADER_IBA: u8 = 0x1b;

/// Local route header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lrh {
    /// Virtual lane.
    pub vl: u8,
    /// Service level.
    pub sl: u8,
    /// Destination local identifier.
    pub dlid: u16,
    /// Source local identifier.
    pub slid: u16,
}

impl Lrh {
    /// Returns whether the destination is a multicast group.
    pub const fn is_multicast(&self) -> bool {
        is_multicast_lid(self.dlid)
    }
}

/// Returns whether a local identifier is that of a multicast group.
pub const fn is_multicast_lid(lid: u16) -> bool {
    lid >= FIRST_MULTICAST_LID && lid != PERMISSIVE_LID
}

/// Global route header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grh {
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID in wire order.
    pub sgid: [u8; 16],
    /// Destination GID in wire order.
    pub dgid: [u8; 16],
}

impl Grh {
    /// Its bytes before `transport` bytes of BTH to ICRC.
    pub fn encode(&self, transport: usize) -> [u8; GRH] {
        let mut bytes = [0; GRH];
        let first = 6u32 << 28 | u32::from(self.tclass) << 20 | self.flow_label & 0xf_ffff;
        let [l0, l1] = (transport as u16).to_be_bytes();
        let head = first.to_be_bytes().into_iter().chain([l0, l1, NEXT_HEADER_IBA, self.hop_limit]);
        for (to, from) in bytes.iter_mut().zip(head.chain(self.sgid).chain(self.dgid)) {
            *to = from;
        }
        bytes
    }
}

/// Base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Opcode.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Migration state.
    pub migreq: bool,
    /// Partition key.
    pub pkey: u16,
    /// Destination queue pair.
    pub dest_qpn: u32,
    /// An acknowledgement is wanted.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: u32,
}

/// Datagram extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    /// Source queue pair.
    pub source_qpn: u32,
}

/// RDMA extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address in the key's address space.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub len: u32,
}

/// Atomic extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address in the key's address space.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
    /// Value to store or to add.
    pub swap_add: u64,
    /// Value expected.
    pub compare: u64,
}

/// Acknowledge extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What is said.
    pub syndrome: Syndrome,
    /// Message sequence number.
    pub msn: u32,
}

/// Syndrome of an [`Aeth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Acknowledged; credit count as it stands in the header (31: unlimited).
    Ack(u8),
    /// No receive posted; try again after the time that the timer field names.
    RnrNak(u8),
    /// Packet sequence error.
    SequenceError,
    /// Invalid request.
    InvalidRequest,
    /// Remote access error.
    RemoteAccess,
    /// Remote operational error.
    RemoteOperational,
    /// A code that means nothing on these services.
    Other(u8),
}

impl Syndrome {
    /// Its byte in the header.
    pub const fn to_bits(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer & 0x1f,
            Self::SequenceError => 0x60,
            Self::InvalidRequest => 0x61,
            Self::RemoteAccess => 0x62,
            Self::RemoteOperational => 0x63,
            Self::Other(bits) => bits,
        }
    }

    /// Returns the syndrome that a byte encodes.
    pub const fn from_bits(bits: u8) -> Self {
        match bits {
            0x00..=0x1f => Self::Ack(bits),
            0x20..=0x3f => Self::RnrNak(bits & 0x1f),
            0x60 => Self::SequenceError,
            0x61 => Self::InvalidRequest,
            0x62 => Self::RemoteAccess,
            0x63 => Self::RemoteOperational,
            _ => Self::Other(bits),
        }
    }
}

/// A packet. The extension headers that its opcode names are encoded, zeros for one that is absent; others are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Local route.
    pub lrh: Lrh,
    /// Global route, if any.
    pub grh: Option<Grh>,
    /// Base transport header.
    pub bth: Bth,
    /// XRC header: the shared receive queue that a request is for.
    pub xrc_srqn: Option<u32>,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Atomic header.
    pub atomic: Option<AtomicEth>,
    /// Acknowledge header.
    pub aeth: Option<Aeth>,
    /// Original value of an atomic.
    pub atomic_ack: Option<u64>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Key to invalidate.
    pub invalidate: Option<u32>,
    /// Payload without padding: that of a received frame lies in the frame.
    pub payload: Cow<'a, [u8]>,
}

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// Too few bytes for a header.
    Short {
        /// The header.
        header: &'static str,
        /// Bytes there are.
        have: usize,
    },
    /// Not a transport packet of this architecture (link next header, or next header of the global route).
    NotTransport {
        /// Value found.
        next_header: u8,
    },
    /// The length in the local route header is not that of the frame.
    Length {
        /// Bytes that it says.
        says: usize,
        /// Bytes there are.
        have: usize,
    },
    /// The invariant CRC is wrong.
    Icrc {
        /// As computed.
        computed: u32,
        /// As found.
        found: u32,
    },
    /// Unknown opcode.
    Opcode {
        /// Its number.
        opcode: u8,
    },
    /// A version that this device does not speak.
    Version {
        /// Value found.
        version: u8,
    },
    /// More payload than any path carries, or more padding than payload.
    Payload {
        /// Bytes of payload and padding.
        len: usize,
    },
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { header, have } => write!(f, "too short for {header}: {have} bytes left"),
            Self::NotTransport { next_header } => write!(f, "next header {next_header:#x} is no transport"),
            Self::Length { says, have } => write!(f, "length says {says} bytes, there are {have}"),
            Self::Icrc { computed, found } => write!(f, "ICRC {found:#010x}, should be {computed:#010x}"),
            Self::Opcode { opcode } => write!(f, "unknown opcode {opcode:#04x}"),
            Self::Version { version } => write!(f, "version {version}"),
            Self::Payload { len } => write!(f, "{len} bytes of payload and padding"),
        }
    }
}

impl std::error::Error for PacketError {}

/// Returns the destination of a frame by its first bytes, for a switch. `None` if it is too short.
pub fn destination(frame: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(2..)?.first_chunk()?))
}

/// Source of a frame by its first bytes. `None` if it is too short.
pub fn source(frame: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(6..)?.first_chunk()?))
}

/// Returns the bytes of a frame from its base transport header on. `None` if it is no transport packet.
fn transport(frame: &[u8]) -> Option<&[u8]> {
    match frame.get(1)? & 3 {
        LNH_LOCAL => frame.get(LRH..),
        LNH_GLOBAL => frame.get(LRH + GRH..),
        _ => None,
    }
}

/// Partition key of a frame. `None` for subnet management, which is in no partition, and for what is no transport packet.
pub fn partition_key(frame: &[u8]) -> Option<u16> {
    let &[_, _, high, low] = transport(frame)?.first_chunk()?;
    (!is_subnet_management(frame)).then_some(u16::from_be_bytes([high, low]))
}

/// Returns whether ports with these partition keys may communicate: the same partition, and a full member (highest bit) on one
/// side. Partition 0 is none (InfiniBand Architecture 10.9.1.2).
pub fn same_partition(own: u16, theirs: u16) -> bool {
    own & 0x7fff != 0 && (own ^ theirs) & 0x7fff == 0 && (own | theirs) & 0x8000 != 0
}

/// The fields by which a port finds the queue pair of a frame. They are read at fixed places, before anything is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// Local route.
    pub lrh: Lrh,
    /// Service; `None` for an unknown opcode.
    pub transport: Option<Transport>,
    /// Destination queue pair.
    pub dest_qpn: u32,
}

impl Addressing {
    /// Reads the fields of a frame (LRH to ICRC). `None` if it is too short or no transport packet.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let &[first, second, d0, d1, _, _, s0, s1] = frame.first_chunk()?;
        let &[opcode, _, _, _, _, q0, q1, q2] = transport(frame)?.first_chunk()?;
        let lrh =
            Lrh { vl: first >> 4, sl: second >> 4, dlid: u16::from_be_bytes([d0, d1]), slid: u16::from_be_bytes([s0, s1]) };
        let transport = Opcode::from_bits(opcode).map(|opcode| opcode.transport);
        Some(Self { lrh, transport, dest_qpn: u32::from_be_bytes([0, q0, q1, q2]) })
    }
}

/// Returns whether a frame is on the virtual lane of subnet management, by its first byte.
pub fn is_subnet_management(frame: &[u8]) -> bool {
    frame.first().is_some_and(|first| first >> 4 == SUBNET_LANE)
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self, header: &'static str) -> Result<[u8; N], PacketError> {
        let (head, rest) = self.bytes.split_first_chunk().ok_or(PacketError::Short { header, have: self.bytes.len() })?;
        self.bytes = rest;
        Ok(*head)
    }

    fn u32(&mut self, header: &'static str) -> Result<u32, PacketError> {
        Ok(u32::from_be_bytes(self.take(header)?))
    }

    fn u64(&mut self, header: &'static str) -> Result<u64, PacketError> {
        Ok(u64::from_be_bytes(self.take(header)?))
    }
}

/// CRC-32 of the parts of a packet that do not change on its way: `frame` is all before the ICRC, LRH included.
fn icrc(frame: &[u8], global: bool) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    let mut start = [0u8; LRH + GRH + BTH];
    let masked = if global { LRH + GRH + BTH } else { LRH + BTH };
    let (Some(head), Some(rest)) = (frame.get(..masked), frame.get(masked..)) else { return 0 };
    for (to, from) in start.iter_mut().zip(head) {
        *to = *from;
    }
    let mut mask = |at: usize, bits: u8| {
        if let Some(byte) = start.get_mut(at) {
            *byte |= bits;
        }
    };
    if global {
        (0..LRH).for_each(|at| mask(at, 0xff));
        // Traffic class and flow label, then the hop limit.
        mask(LRH, 0x0f);
        (LRH + 1..LRH + 4).for_each(|at| mask(at, 0xff));
        mask(LRH + 7, 0xff);
    } else {
        // The virtual lane.
        mask(0, 0xf0);
    }
    // FECN, BECN and the reserved bits beside them.
    mask(masked - BTH + 4, 0xff);
    hash.update(start.get(..masked).unwrap_or_default());
    hash.update(rest);
    hash.finalize()
}

impl<'a> Packet<'a> {
    /// Returns whether it is for a multicast group.
    pub fn is_multicast(&self) -> bool {
        self.bth.dest_qpn == MULTICAST_QPN && self.lrh.is_multicast()
    }

    /// Returns whether the source can be a port's: a unicast LID. Only subnet management comes from a port without one.
    pub fn comes_from_a_port(&self) -> bool {
        match self.lrh.slid {
            NO_LID => self.lrh.vl == SUBNET_LANE,
            slid => slid < FIRST_MULTICAST_LID,
        }
    }

    /// Returns whether the packet keeps the rules of subnet management: queue pair 0 sends to queue pair 0, on virtual lane 15.
    /// Nothing else uses that lane (InfiniBand Architecture 7.6, 14.2.1).
    pub fn keeps_subnet_lane(&self) -> bool {
        let subnet = self.bth.dest_qpn == SUBNET_QPN;
        let from_manager = self.deth.is_some_and(|deth| deth.source_qpn == SUBNET_QPN);
        subnet == (self.lrh.vl == SUBNET_LANE) && (!subnet || from_manager)
    }

    /// Returns the fields by which a port finds its queue pair.
    pub fn addressing(&self) -> Addressing {
        Addressing { lrh: self.lrh, transport: Some(self.bth.opcode.transport), dest_qpn: self.bth.dest_qpn }
    }

    /// Creates a packet without extension headers and payload.
    pub fn new(lrh: Lrh, bth: Bth) -> Self {
        Self {
            lrh,
            grh: None,
            bth,
            xrc_srqn: None,
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            immediate: None,
            invalidate: None,
            payload: Cow::default(),
        }
    }

    /// Returns the bytes from BTH to ICRC.
    pub fn transport_len(&self) -> usize {
        BTH + self.bth.opcode.headers().len() + self.payload.len().next_multiple_of(4) + ICRC
    }

    /// Returns the bytes from LRH to ICRC.
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        self.encode_into(&mut frame);
        frame
    }

    /// Same as [`Packet::encode`], into a buffer whose content is replaced.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let headers = self.bth.opcode.headers();
        let transport = self.transport_len();
        let pad = self.payload.len().wrapping_neg() & 3;
        let total = LRH + if self.grh.is_some() { GRH } else { 0 } + transport;
        out.clear();
        out.reserve(total);
        let lnh = if self.grh.is_some() { LNH_GLOBAL } else { LNH_LOCAL };
        out.push(self.lrh.vl << 4);
        out.push(self.lrh.sl << 4 | lnh);
        out.extend(self.lrh.dlid.to_be_bytes());
        out.extend(((total / 4) as u16 & 0x7ff).to_be_bytes());
        out.extend(self.lrh.slid.to_be_bytes());
        if let Some(grh) = &self.grh {
            out.extend(grh.encode(transport));
        }
        let bth = &self.bth;
        out.push(bth.opcode.to_bits());
        out.push(u8::from(bth.solicited) << 7 | u8::from(bth.migreq) << 6 | (pad as u8) << 4);
        out.extend(bth.pkey.to_be_bytes());
        out.extend((bth.dest_qpn & 0xff_ffff).to_be_bytes());
        out.extend((u32::from(bth.ack_req) << 31 | bth.psn & 0xff_ffff).to_be_bytes());
        self.encode_extensions(headers, out);
        out.extend_from_slice(&self.payload);
        out.extend(std::iter::repeat_n(0, pad));
        let crc = icrc(out, self.grh.is_some());
        out.extend(crc.to_le_bytes());
    }

    /// Returns the packet with an owned payload, independent of the frame that it was read from.
    pub fn into_owned(self) -> Packet<'static> {
        Packet { payload: Cow::Owned(self.payload.into_owned()), ..self }
    }

    fn encode_extensions(&self, headers: Headers, out: &mut Vec<u8>) {
        if headers.xrc {
            out.extend((self.xrc_srqn.unwrap_or(0) & 0xff_ffff).to_be_bytes());
        }
        if headers.deth {
            let deth = self.deth.unwrap_or(Deth { qkey: 0, source_qpn: 0 });
            out.extend(deth.qkey.to_be_bytes());
            out.extend((deth.source_qpn & 0xff_ffff).to_be_bytes());
        }
        if headers.reth {
            let reth = self.reth.unwrap_or(Reth { addr: 0, rkey: 0, len: 0 });
            out.extend(reth.addr.to_be_bytes());
            out.extend(reth.rkey.to_be_bytes());
            out.extend(reth.len.to_be_bytes());
        }
        if headers.atomic {
            let atomic = self.atomic.unwrap_or(AtomicEth { addr: 0, rkey: 0, swap_add: 0, compare: 0 });
            out.extend(atomic.addr.to_be_bytes());
            out.extend(atomic.rkey.to_be_bytes());
            out.extend(atomic.swap_add.to_be_bytes());
            out.extend(atomic.compare.to_be_bytes());
        }
        if headers.aeth {
            let aeth = self.aeth.unwrap_or(Aeth { syndrome: Syndrome::Ack(31), msn: 0 });
            out.extend((u32::from(aeth.syndrome.to_bits()) << 24 | aeth.msn & 0xff_ffff).to_be_bytes());
        }
        if headers.atomic_ack {
            out.extend(self.atomic_ack.unwrap_or(0).to_be_bytes());
        }
        if headers.immediate {
            out.extend(self.immediate.unwrap_or(0).to_be_bytes());
        }
        if headers.invalidate {
            out.extend(self.invalidate.unwrap_or(0).to_be_bytes());
        }
    }

    /// Decodes a frame from LRH to ICRC, in wire order.
    ///
    /// # Errors
    /// The first rule of the InfiniBand Architecture that the frame breaks: lengths, opcode, headers, ICRC.
    pub fn decode(frame: &'a [u8]) -> Result<Self, PacketError> {
        let mut reader = Reader { bytes: frame };
        let [vl_version, sl_lnh, d0, d1, l0, l1, s0, s1] = reader.take::<LRH>("LRH")?;
        if vl_version & 0xf != 0 {
            return Err(PacketError::Version { version: vl_version & 0xf });
        }
        let lrh = Lrh {
            vl: vl_version >> 4,
            sl: sl_lnh >> 4,
            dlid: u16::from_be_bytes([d0, d1]),
            slid: u16::from_be_bytes([s0, s1]),
        };
        let says = usize::from(u16::from_be_bytes([l0, l1]) & 0x7ff) * 4;
        if says != frame.len() {
            return Err(PacketError::Length { says, have: frame.len() });
        }
        let global = match sl_lnh & 3 {
            LNH_LOCAL => false,
            LNH_GLOBAL => true,
            next_header => return Err(PacketError::NotTransport { next_header }),
        };
        let (body, crc) = frame.split_last_chunk::<ICRC>().ok_or(PacketError::Short { header: "ICRC", have: frame.len() })?;
        reader.bytes = body.get(LRH..).unwrap_or_default();
        let grh = global.then(|| Self::decode_grh(&mut reader)).transpose()?;
        let [opcode, flags, p0, p1, _, q0, q1, q2, ack, s0, s1, s2] = reader.take::<BTH>("BTH")?;
        let (computed, found) = (icrc(body, global), u32::from_le_bytes(*crc));
        if computed != found {
            return Err(PacketError::Icrc { computed, found });
        }
        if flags & 0xf != 0 {
            return Err(PacketError::Version { version: flags & 0xf });
        }
        let bth = Bth {
            opcode: Opcode::from_bits(opcode).ok_or(PacketError::Opcode { opcode })?,
            solicited: flags & 0x80 != 0,
            migreq: flags & 0x40 != 0,
            pkey: u16::from_be_bytes([p0, p1]),
            dest_qpn: u32::from_be_bytes([0, q0, q1, q2]),
            ack_req: ack & 0x80 != 0,
            psn: u32::from_be_bytes([0, s0, s1, s2]),
        };
        let mut packet = Self::new(lrh, bth);
        packet.grh = grh;
        packet.decode_extensions(&mut reader)?;
        let pad = usize::from(flags >> 4 & 3);
        let len = reader.bytes.len();
        let payload = len.checked_sub(pad).filter(|&payload| payload <= MAX_PAYLOAD);
        let payload = payload.and_then(|payload| reader.bytes.get(..payload)).ok_or(PacketError::Payload { len })?;
        packet.payload = Cow::Borrowed(payload);
        Ok(packet)
    }

    fn decode_grh(reader: &mut Reader<'_>) -> Result<Grh, PacketError> {
        let first = reader.u32("GRH")?;
        if first >> 28 != 6 {
            return Err(PacketError::Version { version: (first >> 28) as u8 });
        }
        let [l0, l1, next_header, hop_limit] = reader.take("GRH")?;
        if next_header != NEXT_HEADER_IBA {
            return Err(PacketError::NotTransport { next_header });
        }
        let (sgid, dgid) = (reader.take("GRH")?, reader.take("GRH")?);
        let says = usize::from(u16::from_be_bytes([l0, l1]));
        let have = reader.bytes.len() + ICRC;
        if says != have {
            return Err(PacketError::Length { says, have });
        }
        Ok(Grh { tclass: (first >> 20) as u8, flow_label: first & 0xf_ffff, hop_limit, sgid, dgid })
    }

    fn decode_extensions(&mut self, reader: &mut Reader<'_>) -> Result<(), PacketError> {
        let headers = self.bth.opcode.headers();
        if headers.xrc {
            self.xrc_srqn = Some(reader.u32("XRCETH")? & 0xff_ffff);
        }
        if headers.deth {
            let qkey = reader.u32("DETH")?;
            self.deth = Some(Deth { qkey, source_qpn: reader.u32("DETH")? & 0xff_ffff });
        }
        if headers.reth {
            self.reth = Some(Reth { addr: reader.u64("RETH")?, rkey: reader.u32("RETH")?, len: reader.u32("RETH")? });
        }
        if headers.atomic {
            let (addr, rkey) = (reader.u64("AtomicETH")?, reader.u32("AtomicETH")?);
            let (swap_add, compare) = (reader.u64("AtomicETH")?, reader.u64("AtomicETH")?);
            self.atomic = Some(AtomicEth { addr, rkey, swap_add, compare });
        }
        if headers.aeth {
            let word = reader.u32("AETH")?;
            self.aeth = Some(Aeth { syndrome: Syndrome::from_bits((word >> 24) as u8), msn: word & 0xff_ffff });
        }
        if headers.atomic_ack {
            self.atomic_ack = Some(reader.u64("AtomicAckETH")?);
        }
        if headers.immediate {
            self.immediate = Some(reader.u32("ImmDt")?);
        }
        if headers.invalidate {
            self.invalidate = Some(reader.u32("IETH")?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
