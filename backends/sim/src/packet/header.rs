//! The headers of packets, to bytes and back by their layouts.

use std::marker::PhantomData;

use bareverbs_mlx5_spec::{
    BaseTransportHeader, Field, Field64, GlobalRouteHeader, Layout, LocalRouteHeader, View, ViewMut, lnh,
};

use super::error::PacketError;
use super::opcode::Opcode;

/// Local identifier that every port accepts.
pub const PERMISSIVE_LID: u16 = 0xffff;
/// Local identifiers of multicast groups begin here and end before [`PERMISSIVE_LID`].
pub const FIRST_MULTICAST_LID: u16 = 0xc000;
/// Bytes of a global route header.
pub const GRH: usize = GlobalRouteHeader::SIZE;
/// Bytes of the invariant CRC, which ends a packet.
pub(super) const ICRC: usize = 4;

/// A header as `N` dwords in host byte order. Its fields are constants, so code for them is a shift and a mask.
pub(super) struct Dwords<L, const N: usize> {
    dwords: [u32; N],
    layout: PhantomData<fn() -> L>,
}

impl<L: Layout, const N: usize> Dwords<L, N> {
    /// Creates a header of zeros.
    #[inline(always)]
    pub(super) fn zeroed() -> Self {
        const { assert!(N * 4 == L::SIZE, "not as many dwords as the layout has") };
        Self { dwords: [0; N], layout: PhantomData }
    }

    /// Sets a field that is zero.
    #[inline(always)]
    pub(super) fn with(mut self, field: Field<L>, value: u32) -> Self {
        if let Some(dword) = self.dwords.get_mut(field.dword() / 4) {
            *dword |= field.place(value);
        }
        self
    }

    /// Sets a field of 64 bits.
    #[inline(always)]
    pub(super) fn with64(mut self, field: Field64<L>, value: u64) -> Self {
        for (dword, value) in self.dwords.iter_mut().skip(field.offset() / 4).zip([(value >> 32) as u32, value as u32]) {
            *dword = value;
        }
        self
    }

    #[inline(always)]
    fn dword(&self, index: usize) -> u32 {
        self.dwords.get(index).copied().unwrap_or_default()
    }

    /// Returns the value of a field.
    #[inline(always)]
    pub(super) fn get(&self, field: Field<L>) -> u32 {
        field.take(self.dword(field.dword() / 4))
    }

    /// Returns the value of a field of 64 bits.
    #[inline(always)]
    pub(super) fn get64(&self, field: Field64<L>) -> u64 {
        let index = field.offset() / 4;
        u64::from(self.dword(index)) << 32 | u64::from(self.dword(index + 1))
    }

    /// Appends the header.
    #[inline(always)]
    pub(super) fn put(self, out: &mut Vec<u8>) {
        self.dwords.iter().for_each(|dword| out.extend(dword.to_be_bytes()));
    }
}

/// Takes headers from the front of bytes.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns the bytes that were not taken.
    pub(super) const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    fn take(&mut self, name: &'static str, len: usize) -> Result<&'a [u8], PacketError> {
        let (head, rest) =
            self.bytes.split_at_checked(len).ok_or(PacketError::Short { header: name, have: self.bytes.len() })?;
        self.bytes = rest;
        Ok(head)
    }

    #[inline(always)]
    pub(super) fn header<L: Layout, const N: usize>(&mut self, name: &'static str) -> Result<Dwords<L, N>, PacketError> {
        let (bytes, _) = self.take(name, L::SIZE)?.as_chunks();
        let mut header = Dwords::zeroed();
        header.dwords.iter_mut().zip(bytes).for_each(|(dword, bytes)| *dword = u32::from_be_bytes(*bytes));
        Ok(header)
    }
}

/// Returns whether a local identifier is that of a multicast group.
pub const fn is_multicast_lid(lid: u16) -> bool {
    lid >= FIRST_MULTICAST_LID && lid != PERMISSIVE_LID
}

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

    /// Appends the header of a frame of `len` bytes.
    pub(super) fn encode(&self, len: usize, global: bool, out: &mut Vec<u8>) {
        Dwords::<LocalRouteHeader, 2>::zeroed()
            .with(LocalRouteHeader::VIRTUAL_LANE, self.vl.into())
            .with(LocalRouteHeader::SERVICE_LEVEL, self.sl.into())
            .with(LocalRouteHeader::LINK_NEXT_HEADER, if global { lnh::GLOBAL } else { lnh::LOCAL })
            .with(LocalRouteHeader::DESTINATION_LID, self.dlid.into())
            .with(LocalRouteHeader::PACKET_LENGTH, (len / 4) as u32)
            .with(LocalRouteHeader::SOURCE_LID, self.slid.into())
            .put(out);
    }

    #[inline(always)]
    pub(super) fn decode(header: &Dwords<LocalRouteHeader, 2>) -> Self {
        Self {
            vl: header.get(LocalRouteHeader::VIRTUAL_LANE) as u8,
            sl: header.get(LocalRouteHeader::SERVICE_LEVEL) as u8,
            dlid: header.get(LocalRouteHeader::DESTINATION_LID) as u16,
            slid: header.get(LocalRouteHeader::SOURCE_LID) as u16,
        }
    }
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
        ViewMut::<GlobalRouteHeader>::of(&mut bytes)
            .set(GlobalRouteHeader::IP_VERSION, GlobalRouteHeader::IPV6)
            .set(GlobalRouteHeader::TRAFFIC_CLASS, self.tclass.into())
            .set(GlobalRouteHeader::FLOW_LABEL, self.flow_label)
            .set(GlobalRouteHeader::PAYLOAD_LENGTH, transport as u32)
            .set(GlobalRouteHeader::NEXT_HEADER, GlobalRouteHeader::IBA_TRANSPORT)
            .set(GlobalRouteHeader::HOP_LIMIT, self.hop_limit.into())
            .set_bytes(GlobalRouteHeader::SOURCE_GID, &self.sgid)
            .set_bytes(GlobalRouteHeader::DESTINATION_GID, &self.dgid);
        bytes
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, PacketError> {
        let bytes = reader.take("GRH", GRH)?;
        let Some(header) = View::<GlobalRouteHeader>::new(bytes) else {
            return Err(PacketError::Short { header: "GRH", have: bytes.len() });
        };
        let version = header.get(GlobalRouteHeader::IP_VERSION);
        if version != GlobalRouteHeader::IPV6 {
            return Err(PacketError::Version { version: version as u8 });
        }
        let next_header = header.get(GlobalRouteHeader::NEXT_HEADER);
        if next_header != GlobalRouteHeader::IBA_TRANSPORT {
            return Err(PacketError::NotTransport { next_header: next_header as u8 });
        }
        let says = header.get(GlobalRouteHeader::PAYLOAD_LENGTH) as usize;
        let have = reader.rest().len() + ICRC;
        if says != have {
            return Err(PacketError::Length { says, have });
        }
        let gid = |field| header.bytes(field).first_chunk().copied().unwrap_or_default();
        Ok(Self {
            tclass: header.get(GlobalRouteHeader::TRAFFIC_CLASS) as u8,
            flow_label: header.get(GlobalRouteHeader::FLOW_LABEL),
            hop_limit: header.get(GlobalRouteHeader::HOP_LIMIT) as u8,
            sgid: gid(GlobalRouteHeader::SOURCE_GID),
            dgid: gid(GlobalRouteHeader::DESTINATION_GID),
        })
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

impl Bth {
    pub(super) fn encode(&self, pad: usize, out: &mut Vec<u8>) {
        Dwords::<BaseTransportHeader, 3>::zeroed()
            .with(BaseTransportHeader::OPCODE, self.opcode.to_bits().into())
            .with(BaseTransportHeader::SOLICITED_EVENT, self.solicited.into())
            .with(BaseTransportHeader::MIG_REQ, self.migreq.into())
            .with(BaseTransportHeader::PAD_COUNT, pad as u32)
            .with(BaseTransportHeader::P_KEY, self.pkey.into())
            .with(BaseTransportHeader::DESTINATION_QPN, self.dest_qpn)
            .with(BaseTransportHeader::ACK_REQ, self.ack_req.into())
            .with(BaseTransportHeader::PSN, self.psn)
            .put(out);
    }

    #[inline(always)]
    pub(super) fn decode(header: &Dwords<BaseTransportHeader, 3>) -> Result<Self, PacketError> {
        let opcode = header.get(BaseTransportHeader::OPCODE) as u8;
        Ok(Self {
            opcode: Opcode::from_bits(opcode).ok_or(PacketError::Opcode { opcode })?,
            solicited: header.get(BaseTransportHeader::SOLICITED_EVENT) != 0,
            migreq: header.get(BaseTransportHeader::MIG_REQ) != 0,
            pkey: header.get(BaseTransportHeader::P_KEY) as u16,
            dest_qpn: header.get(BaseTransportHeader::DESTINATION_QPN),
            ack_req: header.get(BaseTransportHeader::ACK_REQ) != 0,
            psn: header.get(BaseTransportHeader::PSN),
        })
    }
}

/// Datagram extended header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    /// Source queue pair.
    pub source_qpn: u32,
}

/// RDMA extended header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reth {
    /// Address in the key's address space.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub len: u32,
}

/// Atomic extended header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
