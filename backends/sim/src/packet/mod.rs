//! Packets: InfiniBand headers from LRH to ICRC, to bytes and back.
//!
//! InfiniBand Architecture chapters 5, 7, 8 and 9. The trailing VCRC belongs to the link and is not here. A packet that
//! can be built can be encoded; decoding is total.

mod error;
mod extensions;
mod field;
mod header;
mod opcode;

use std::borrow::Cow;

use bareverbs_mlx5_spec::{BaseTransportHeader, Bits, Field, GlobalRouteHeader, Layout, LocalRouteHeader, lnh};

use header::{ICRC, Reader};

pub use error::PacketError;
pub use field::PacketFields;
pub use header::{
    Aeth, AtomicEth, Bth, Deth, FIRST_MULTICAST_LID, GRH, Grh, Lrh, PERMISSIVE_LID, Reth, Syndrome, is_multicast_lid,
};
pub use opcode::{Headers, Opcode, Operation, Place, Transport};

/// Not a local identifier: what a port has before it is given one.
pub const NO_LID: u16 = 0;
/// Queue pair of packets for a multicast group.
pub const MULTICAST_QPN: u32 = 0xff_ffff;
/// Maximum payload of a packet in bytes (path MTU 4096).
pub const MAX_PAYLOAD: usize = 4096;

/// Queue pair of subnet management on the wire.
pub const SUBNET_QPN: u32 = 0;
/// Queue pair of all other management on the wire.
pub const GENERAL_QPN: u32 = 1;

/// Virtual lane of subnet management.
pub const SUBNET_LANE: u8 = 15;

const LRH: usize = LocalRouteHeader::SIZE;
const BTH: usize = BaseTransportHeader::SIZE;

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

/// Returns a field of the header that bytes begin with. `None` if they are too few.
fn read<L>(bytes: &[u8], field: Field<L>) -> Option<u32> {
    field.bits().read(bytes)
}

/// Returns the destination of a frame by its first bytes, for a switch. `None` if it is too short.
pub fn destination(frame: &[u8]) -> Option<u16> {
    read(frame, LocalRouteHeader::DESTINATION_LID).map(|lid| lid as u16)
}

/// Source of a frame by its first bytes. `None` if it is too short.
pub fn source(frame: &[u8]) -> Option<u16> {
    read(frame, LocalRouteHeader::SOURCE_LID).map(|lid| lid as u16)
}

/// Returns the bytes of a frame from its base transport header on. `None` if it is no transport packet.
fn transport(frame: &[u8]) -> Option<&[u8]> {
    match read(frame, LocalRouteHeader::LINK_NEXT_HEADER)? {
        lnh::LOCAL => frame.get(LRH..),
        lnh::GLOBAL => frame.get(LRH + GRH..),
        _ => None,
    }
}

/// Partition key of a frame. `None` for subnet management, which is in no partition, and for what is no transport packet.
pub fn partition_key(frame: &[u8]) -> Option<u16> {
    let pkey = read(transport(frame)?, BaseTransportHeader::P_KEY)?;
    (!is_subnet_management(frame)).then_some(pkey as u16)
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
        let lrh = Lrh::decode(&Reader::new(frame).header("LRH").ok()?);
        let bth = transport(frame)?;
        let transport = Opcode::from_bits(read(bth, BaseTransportHeader::OPCODE)? as u8).map(|opcode| opcode.transport);
        Some(Self { lrh, transport, dest_qpn: read(bth, BaseTransportHeader::DESTINATION_QPN)? })
    }
}

/// Returns whether a frame is on the virtual lane of subnet management, by its first bytes.
pub fn is_subnet_management(frame: &[u8]) -> bool {
    read(frame, LocalRouteHeader::VIRTUAL_LANE) == Some(SUBNET_LANE.into())
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
    let mut mask = |header: usize, field: Bits| {
        let bytes = start.iter_mut().skip(header + field.dword);
        bytes.zip(field.mask().to_be_bytes()).for_each(|(byte, bits)| *byte |= bits);
    };
    // The whole LRH changes between subnets, within one its virtual lane.
    if global {
        (0..LRH / 4).for_each(|dword| mask(0, Bits { dword: dword * 4, hi: 31, lo: 0 }));
        mask(LRH, GlobalRouteHeader::TRAFFIC_CLASS.bits());
        mask(LRH, GlobalRouteHeader::FLOW_LABEL.bits());
        mask(LRH, GlobalRouteHeader::HOP_LIMIT.bits());
    } else {
        mask(0, LocalRouteHeader::VIRTUAL_LANE.bits());
    }
    mask(masked - BTH, BaseTransportHeader::VARIANT.bits());
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
        let transport = self.transport_len();
        let pad = self.payload.len().wrapping_neg() & 3;
        let total = LRH + if self.grh.is_some() { GRH } else { 0 } + transport;
        out.clear();
        out.reserve(total);
        self.lrh.encode(total, self.grh.is_some(), out);
        if let Some(grh) = &self.grh {
            out.extend(grh.encode(transport));
        }
        self.bth.encode(pad, out);
        self.encode_extensions(out);
        out.extend_from_slice(&self.payload);
        out.extend(std::iter::repeat_n(0, pad));
        let crc = icrc(out, self.grh.is_some());
        out.extend(crc.to_le_bytes());
    }

    /// Returns the packet with an owned payload, independent of the frame that it was read from.
    pub fn into_owned(self) -> Packet<'static> {
        Packet { payload: Cow::Owned(self.payload.into_owned()), ..self }
    }

    /// Decodes a frame from LRH to ICRC, in wire order.
    ///
    /// # Errors
    /// The first rule of the InfiniBand Architecture that the frame breaks: lengths, opcode, headers, ICRC.
    pub fn decode(frame: &'a [u8]) -> Result<Self, PacketError> {
        let local = Reader::new(frame).header("LRH")?;
        let version = local.get(LocalRouteHeader::LINK_VERSION) as u8;
        if version != 0 {
            return Err(PacketError::Version { version });
        }
        let says = local.get(LocalRouteHeader::PACKET_LENGTH) as usize * 4;
        if says != frame.len() {
            return Err(PacketError::Length { says, have: frame.len() });
        }
        let global = match local.get(LocalRouteHeader::LINK_NEXT_HEADER) {
            lnh::LOCAL => false,
            lnh::GLOBAL => true,
            next_header => return Err(PacketError::NotTransport { next_header: next_header as u8 }),
        };
        let (body, crc) = frame.split_last_chunk::<ICRC>().ok_or(PacketError::Short { header: "ICRC", have: frame.len() })?;
        let mut reader = Reader::new(body.get(LRH..).unwrap_or_default());
        let grh = global.then(|| Grh::decode(&mut reader)).transpose()?;
        let base = reader.header("BTH")?;
        let (computed, found) = (icrc(body, global), u32::from_le_bytes(*crc));
        if computed != found {
            return Err(PacketError::Icrc { computed, found });
        }
        let version = base.get(BaseTransportHeader::TRANSPORT_HEADER_VERSION) as u8;
        if version != 0 {
            return Err(PacketError::Version { version });
        }
        let mut packet = Self::new(Lrh::decode(&local), Bth::decode(&base)?);
        packet.grh = grh;
        packet.decode_extensions(&mut reader)?;
        let padded = reader.rest();
        let len = padded.len();
        let payload = len.checked_sub(base.get(BaseTransportHeader::PAD_COUNT) as usize);
        let payload = payload.filter(|&payload| payload <= MAX_PAYLOAD);
        let payload = payload.and_then(|payload| padded.get(..payload)).ok_or(PacketError::Payload { len })?;
        packet.payload = Cow::Borrowed(payload);
        Ok(packet)
    }
}

#[cfg(test)]
mod tests;
