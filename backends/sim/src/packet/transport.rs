//! The transport part of a packet: base transport header, extension headers and payload. It is the same on every kind of port.

use std::borrow::Cow;

use bareverbs_mlx5_spec::{BaseTransportHeader, Layout};

use super::error::PacketError;
use super::header::{Aeth, AtomicEth, Bth, Deth, Dwords, ICRC, Reader, Reth};

/// Maximum payload of a packet in bytes (path MTU 4096).
pub const MAX_PAYLOAD: usize = 4096;
/// Bytes of a base transport header.
pub(super) const BTH: usize = BaseTransportHeader::SIZE;

/// The transport part of a packet. The extension headers that its opcode names are encoded, zeros for one that is absent;
/// others are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportPart<'a> {
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

impl<'a> TransportPart<'a> {
    /// Creates one without extension headers and payload.
    pub fn new(bth: Bth) -> Self {
        Self {
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
    pub fn encoded_len(&self) -> usize {
        BTH + self.bth.opcode.headers().len() + self.payload.len().next_multiple_of(4) + ICRC
    }

    /// Returns the same with an owned payload, independent of the frame that it was read from.
    pub fn into_owned(self) -> TransportPart<'static> {
        TransportPart { payload: Cow::Owned(self.payload.into_owned()), ..self }
    }

    /// Appends the bytes before the ICRC.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let pad = self.payload.len().wrapping_neg() & 3;
        self.bth.encode(pad, out);
        self.encode_extensions(out);
        out.extend_from_slice(&self.payload);
        out.extend(std::iter::repeat_n(0, pad));
    }

    /// Decodes what follows the base header, up to the ICRC.
    pub(super) fn decode(base: &Dwords<BaseTransportHeader, 3>, mut reader: Reader<'a>) -> Result<Self, PacketError> {
        let version = base.get(BaseTransportHeader::TRANSPORT_HEADER_VERSION) as u8;
        if version != 0 {
            return Err(PacketError::Version { version });
        }
        let mut part = Self::new(Bth::decode(base)?);
        part.decode_extensions(&mut reader)?;
        let padded = reader.rest();
        let len = padded.len();
        let payload = len.checked_sub(base.get(BaseTransportHeader::PAD_COUNT) as usize);
        let payload = payload.filter(|&payload| payload <= MAX_PAYLOAD);
        let payload = payload.and_then(|payload| padded.get(..payload)).ok_or(PacketError::Payload { len })?;
        part.payload = Cow::Borrowed(payload);
        Ok(part)
    }
}
