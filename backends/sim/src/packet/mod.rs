//! Packets to bytes and back.
//!
//! A packet has two parts. The link part depends on the kind of the port: InfiniBand packets have a local and perhaps a global
//! route header there (InfiniBand Architecture chapters 5, 7 and 8), RoCEv2 packets headers of Ethernet, IP and UDP (annex
//! A17). The transport part is the same everywhere: base header, extension headers and payload (chapter 9). The ICRC is over
//! both; what of the link part it covers, the link part says. A packet that can be built can be encoded; decoding is total.

mod congestion;
mod error;
mod extensions;
mod field;
mod header;
mod icrc;
mod link;
mod opcode;
mod transport;

use bareverbs_mlx5_spec::BaseTransportHeader;

use header::Reader;
use icrc::{base_header, icrc};
use link::infiniband::read;
use link::{infiniband, roce_v2};

pub use congestion::CongestionNotification;
pub(crate) use congestion::{is_marked, mark as mark_congestion};
pub use error::PacketError;
pub use field::PacketFields;
pub use header::{Aeth, AtomicEth, Bth, Deth, Reth, Syndrome};
pub use link::infiniband::{
    FIRST_MULTICAST_LID, GRH, Grh, InfiniBandLink, Lrh, NO_LID, PERMISSIVE_LID, SUBNET_LANE, destination, is_multicast_lid,
    is_subnet_management, partition_key, source,
};
pub use link::roce_v2::{IpRoute, Ipv4Route, RoceV2Address, RoceV2Link, VlanTag};
pub use link::{Link, LinkAddress, LinkCompletion};
pub use opcode::{Headers, Opcode, Operation, Place, Transport};
pub use transport::{MAX_PAYLOAD, TransportPart};

/// Queue pair of packets for a multicast group.
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// Queue pair of subnet management on the wire.
pub const SUBNET_QPN: u32 = 0;
/// Queue pair of all other management on the wire.
pub const GENERAL_QPN: u32 = 1;

/// A packet: its link part, its transport part, and the ICRC over both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What depends on the kind of the port.
    pub link: Link,
    /// What does not.
    pub transport: TransportPart<'a>,
}

/// Returns whether ports with these partition keys may communicate: the same partition, and a full member (highest bit) on one
/// side. Partition 0 is none (InfiniBand Architecture 10.9.1.2).
pub fn same_partition(own: u16, theirs: u16) -> bool {
    own & 0x7fff != 0 && (own ^ theirs) & 0x7fff == 0 && (own | theirs) & 0x8000 != 0
}

/// The fields by which a port finds the queue pair of a frame. They are read at fixed places, before anything is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// Fields of the link part.
    pub link: LinkAddress,
    /// Service; `None` for an unknown opcode.
    pub transport: Option<Transport>,
    /// Destination queue pair.
    pub dest_qpn: u32,
}

impl Addressing {
    /// Reads the fields of an InfiniBand frame (LRH to ICRC). `None` if it is too short or no transport packet.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let link = LinkAddress::InfiniBand(Lrh::decode(&Reader::new(frame).header("LRH").ok()?));
        let bth = infiniband::transport(frame)?;
        let transport = Opcode::from_bits(read(bth, BaseTransportHeader::OPCODE)? as u8).map(|opcode| opcode.transport);
        Some(Self { link, transport, dest_qpn: read(bth, BaseTransportHeader::DESTINATION_QPN)? })
    }

    /// Reads the fields of a RoCEv2 frame (Ethernet header to ICRC). `None` if it is too short or no such.
    pub fn of_roce_v2(frame: &[u8]) -> Option<Self> {
        let (address, bth) = roce_v2::address(frame)?;
        let link = LinkAddress::RoceV2(address);
        let transport = Opcode::from_bits(read(bth, BaseTransportHeader::OPCODE)? as u8).map(|opcode| opcode.transport);
        Some(Self { link, transport, dest_qpn: read(bth, BaseTransportHeader::DESTINATION_QPN)? })
    }
}

impl<'a> Packet<'a> {
    /// Creates a packet without extension headers and payload.
    pub fn new(link: impl Into<Link>, bth: Bth) -> Self {
        Self { link: link.into(), transport: TransportPart::new(bth) }
    }

    /// Returns whether it is for a multicast group.
    pub fn is_multicast(&self) -> bool {
        self.transport.bth.dest_qpn == MULTICAST_QPN && self.link.is_multicast()
    }

    /// Returns the fields by which a port finds its queue pair.
    pub fn addressing(&self) -> Addressing {
        let Bth { opcode, dest_qpn, .. } = self.transport.bth;
        Addressing { link: self.link.address(), transport: Some(opcode.transport), dest_qpn }
    }

    /// Returns the bytes from the first of the link part to the ICRC.
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        self.encode_into(&mut frame);
        frame
    }

    /// Same as [`Packet::encode`], into a buffer whose content is replaced.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let transport = self.transport.encoded_len();
        out.clear();
        out.reserve(self.link.len() + transport);
        self.link.encode(transport, out);
        self.transport.encode(out);
        let crc = icrc(&self.link, out);
        out.extend(crc.to_le_bytes());
    }

    /// Returns the packet with an owned payload, independent of the frame that it was read from.
    pub fn into_owned(self) -> Packet<'static> {
        Packet { link: self.link, transport: self.transport.into_owned() }
    }

    /// Decodes an InfiniBand frame from LRH to ICRC, in wire order.
    ///
    /// # Errors
    /// The first rule of the InfiniBand Architecture that the frame breaks: lengths, opcode, headers, ICRC.
    pub fn decode(frame: &'a [u8]) -> Result<Self, PacketError> {
        let (link, reader) = InfiniBandLink::decode(frame)?;
        Self::decode_behind(link.into(), reader, frame)
    }

    /// Decodes a RoCEv2 frame from the Ethernet header to the ICRC or padding behind it, in wire order.
    ///
    /// # Errors
    /// The first rule of Ethernet, IP, UDP or the InfiniBand Architecture that the frame breaks.
    pub fn decode_roce_v2(frame: &'a [u8]) -> Result<Self, PacketError> {
        let (link, reader, frame) = RoceV2Link::decode(frame)?;
        Self::decode_behind(link.into(), reader, frame)
    }

    /// Decodes what follows the link part of a frame, before the ICRC.
    fn decode_behind(link: Link, mut reader: Reader<'a>, frame: &'a [u8]) -> Result<Self, PacketError> {
        let base = base_header(&link, &mut reader, frame)?;
        Ok(Self { link, transport: TransportPart::decode(&base, reader)? })
    }
}

#[cfg(test)]
mod tests;
