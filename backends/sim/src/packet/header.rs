//! The headers of the transport, to bytes and back by their layouts.

use std::marker::PhantomData;

use bareverbs_mlx5_spec::{BaseTransportHeader, Bits, Bytes, Field, Field64, Layout};

use super::error::PacketError;
use super::opcode::Opcode;

/// Bytes of the invariant CRC, which ends a packet.
pub(in crate::packet) const ICRC: usize = 4;

/// A header as `N` dwords in wire order. Its fields are constants, so code for them is a shift and a mask; what it has in
/// common with its bytes is a copy.
pub(in crate::packet) struct Dwords<L, const N: usize> {
    dwords: [[u8; 4]; N],
    layout: PhantomData<fn() -> L>,
}

impl<L: Layout, const N: usize> Dwords<L, N> {
    /// Creates a header of zeros.
    #[inline(always)]
    pub(in crate::packet) fn zeroed() -> Self {
        const { assert!(N * 4 == L::SIZE, "not as many dwords as the layout has") };
        Self { dwords: [[0; 4]; N], layout: PhantomData }
    }

    /// Sets a field that is zero.
    #[inline(always)]
    pub(in crate::packet) fn with(mut self, field: Field<L>, value: u32) -> Self {
        if let Some(dword) = self.dwords.get_mut(field.dword() / 4) {
            *dword = (u32::from_be_bytes(*dword) | field.place(value)).to_be_bytes();
        }
        self
    }

    /// Sets a field of 64 bits.
    #[inline(always)]
    pub(in crate::packet) fn with64(self, field: Field64<L>, value: u64) -> Self {
        self.with_bytes(field.offset(), &value.to_be_bytes())
    }

    /// Sets a GID in wire order.
    #[inline(always)]
    pub(in crate::packet) fn with_gid(self, field: Bytes<L>, gid: &[u8; 16]) -> Self {
        self.with_bytes(field.offset(), gid)
    }

    #[inline(always)]
    fn with_bytes<const LEN: usize>(mut self, at: usize, bytes: &[u8; LEN]) -> Self {
        if let Some(place) = self.dwords.as_flattened_mut().get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *place = *bytes;
        }
        self
    }

    #[inline(always)]
    fn bytes_at<const LEN: usize>(&self, at: usize) -> [u8; LEN] {
        self.dwords.as_flattened().get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; LEN])
    }

    /// Returns the value of a field.
    #[inline(always)]
    pub(in crate::packet) fn get(&self, field: Field<L>) -> u32 {
        field.take(u32::from_be_bytes(self.bytes_at(field.dword())))
    }

    /// Returns the value of a field of 64 bits.
    #[inline(always)]
    pub(in crate::packet) fn get64(&self, field: Field64<L>) -> u64 {
        u64::from_be_bytes(self.bytes_at(field.offset()))
    }

    /// Returns a GID in wire order.
    #[inline(always)]
    pub(in crate::packet) fn gid(&self, field: Bytes<L>) -> [u8; 16] {
        self.bytes_at(field.offset())
    }

    /// Returns the bytes of the header.
    #[inline(always)]
    pub(in crate::packet) fn bytes<const LEN: usize>(&self) -> [u8; LEN] {
        const { assert!(LEN == L::SIZE, "not as many bytes as the layout has") };
        self.bytes_at(0)
    }

    /// Returns the sum of the header's words of 16 bits in ones' complement (RFC 1071).
    #[inline(always)]
    pub(in crate::packet) fn ones_sum(&self) -> u16 {
        let mut sum = 0;
        for [a, b, c, d] in self.dwords {
            sum += u32::from(u16::from_be_bytes([a, b])) + u32::from(u16::from_be_bytes([c, d]));
        }
        let folded = (sum & 0xffff) + (sum >> 16);
        (folded + (folded >> 16)) as u16
    }

    /// Appends the header.
    #[inline(always)]
    pub(in crate::packet) fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.dwords.as_flattened());
    }
}

/// Copies the first `len` bytes, if there are so many on both sides.
#[inline(always)]
pub(in crate::packet) fn copy(to: &mut [u8], from: &[u8], len: usize) {
    if let (Some(to), Some(from)) = (to.get_mut(..len), from.get(..len)) {
        to.copy_from_slice(from);
    }
}

/// Sets the bits of a field to ones, in a header that begins at `header`.
#[inline(always)]
pub(in crate::packet) fn set_ones(bytes: &mut [u8], header: usize, field: Bits) {
    if let Some(dword) = bytes.get_mut(header + field.dword..).and_then(<[u8]>::first_chunk_mut::<4>) {
        *dword = (u32::from_be_bytes(*dword) | field.mask()).to_be_bytes();
    }
}

/// Takes headers from the front of bytes.
pub(in crate::packet) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(in crate::packet) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns the bytes that were not taken.
    pub(in crate::packet) const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub(in crate::packet) fn take(&mut self, name: &'static str, len: usize) -> Result<&'a [u8], PacketError> {
        let (head, rest) =
            self.bytes.split_at_checked(len).ok_or(PacketError::Short { header: name, have: self.bytes.len() })?;
        self.bytes = rest;
        Ok(head)
    }

    #[inline(always)]
    pub(in crate::packet) fn header<L: Layout, const N: usize>(
        &mut self,
        name: &'static str,
    ) -> Result<Dwords<L, N>, PacketError> {
        let have = self.bytes.len();
        let (dwords, _) = self.take(name, L::SIZE)?.as_chunks();
        let dwords = *dwords.first_chunk().ok_or(PacketError::Short { header: name, have })?;
        Ok(Dwords { dwords, layout: PhantomData })
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
    pub(in crate::packet) fn encode(&self, pad: usize, out: &mut Vec<u8>) {
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
    pub(in crate::packet) fn decode(header: &Dwords<BaseTransportHeader, 3>) -> Result<Self, PacketError> {
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
