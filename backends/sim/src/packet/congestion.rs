//! Notifications of congestion: what the receiver of a marked RoCEv2 packet sends to its sender (IBTA volume 1, annex A17).

use bareverbs_mlx5_spec::{
    BaseTransportHeader, EthernetAddresses, GlobalRouteHeader, Ipv4Header, Layout, ViewMut, VlanHeader, ether_type,
};

use super::error::PacketError;
use super::header::{ICRC, Reader};
use super::icrc::{base_header, icrc};
use super::link::Link;
use super::link::infiniband::read;
use super::link::roce_v2::{self, IpRoute, RoceV2Link};
use super::transport::BTH;

/// Opcode of a notification.
const OPCODE: u32 = 0x81;
/// BECN among the bits that may change on the way.
const BECN: u32 = 1 << 6;
/// Bytes of zeros behind the base header.
const RESERVED: usize = 16;
/// Bytes of an Ethernet type.
const TYPE: usize = 2;
/// The partition of all Ethernet ports.
const PKEY: u32 = 0xffff;
/// The traffic class that a ConnectX-4 Lx gives its notifications: DSCP 48, and a transport that knows of marks.
const TRAFFIC_CLASS: u8 = 48 << 2 | 2;
/// The priority that a ConnectX-5 comes with from the factory (`CNP_802P_PRIO` of mlxconfig), of those with a VLAN tag.
const PRIORITY: u8 = 6;
/// What switches with long queues set in a traffic class (RFC 3168, CE).
const CONGESTION_EXPERIENCED: u8 = 3;

/// A notification of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionNotification {
    /// Link part, which leads to the sender of the marked packet.
    pub link: RoceV2Link,
    /// The sender's queue pair.
    pub dest_qpn: u32,
}

impl CongestionNotification {
    /// Creates the one that goes along a link part, whose traffic class and priority it makes those of notifications.
    pub const fn new(mut link: RoceV2Link, dest_qpn: u32) -> Self {
        match &mut link.route {
            IpRoute::V4(route) => route.tos = TRAFFIC_CLASS,
            IpRoute::V6(route) => route.tclass = TRAFFIC_CLASS,
        }
        if let Some(tag) = &mut link.vlan {
            tag.priority = PRIORITY;
        }
        Self { link, dest_qpn }
    }

    /// Returns whether a RoCEv2 frame has the opcode of a notification. Nothing else of it is verified.
    pub fn is_in(frame: &[u8]) -> bool {
        roce_v2::address(frame).is_some_and(|(_, bth)| read(bth, BaseTransportHeader::OPCODE) == Some(OPCODE))
    }

    /// Returns the frame from the Ethernet header to the ICRC.
    pub fn encode(&self) -> Vec<u8> {
        let link = Link::from(self.link);
        let mut out = Vec::new();
        link.encode(BTH + RESERVED + ICRC, &mut out);
        let mut base = [0; BTH];
        ViewMut::<BaseTransportHeader>::of(&mut base)
            .set(BaseTransportHeader::OPCODE, OPCODE)
            .set(BaseTransportHeader::P_KEY, PKEY)
            .set(BaseTransportHeader::VARIANT, BECN)
            .set(BaseTransportHeader::DESTINATION_QPN, self.dest_qpn);
        out.extend(base);
        out.extend([0; RESERVED]);
        let crc = icrc(&link, &out);
        out.extend(crc.to_le_bytes());
        out
    }

    /// Decodes a frame from the Ethernet header to the ICRC or padding behind it.
    ///
    /// # Errors
    /// What of it is not as in a notification.
    pub fn decode(frame: &[u8]) -> Result<Self, PacketError> {
        let (link, mut reader, frame): (_, Reader<'_>, _) = RoceV2Link::decode(frame)?;
        let base = base_header(&link.into(), &mut reader, frame)?;
        let opcode = base.get(BaseTransportHeader::OPCODE);
        if opcode != OPCODE {
            return Err(PacketError::Opcode { opcode: opcode as u8 });
        }
        let len = reader.rest().len();
        if len != RESERVED {
            return Err(PacketError::Payload { len });
        }
        Ok(Self { link, dest_qpn: base.get(BaseTransportHeader::DESTINATION_QPN) })
    }
}

/// Marks an IP packet in an Ethernet frame, as a switch with a long queue does, if its sender says that it knows of marks. Everything
/// else stays as it is. Returns whether it was marked here (RFC 3168, 5).
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    let mut rest = frame.get_mut(EthernetAddresses::SIZE..).unwrap_or_default();
    loop {
        let Some((found, behind)) = rest.split_first_chunk_mut::<TYPE>() else { return false };
        match u16::from_be_bytes(*found) {
            // The rest of the tag.
            ether_type::VLAN => rest = behind.get_mut(VlanHeader::SIZE - TYPE..).unwrap_or_default(),
            ether_type::IPV4 => return ViewMut::new(behind).is_some_and(mark_ipv4),
            ether_type::IPV6 => return ViewMut::new(behind).is_some_and(mark_ipv6),
            _ => return false,
        }
    }
}

/// Returns the traffic class with the mark, if its transport knows of marks and it has none.
const fn marked(class: u32) -> Option<u32> {
    match class as u8 & CONGESTION_EXPERIENCED {
        0 | CONGESTION_EXPERIENCED => None,
        _ => Some(class | CONGESTION_EXPERIENCED as u32),
    }
}

fn mark_ipv4(mut header: ViewMut<'_, Ipv4Header>) -> bool {
    let class = header.get(Ipv4Header::TYPE_OF_SERVICE);
    let Some(to) = marked(class).filter(|_| header.get(Ipv4Header::VERSION) == Ipv4Header::IPV4) else { return false };
    // The sum of words has become larger by as much as the complement of that sum must become smaller (RFC 1624, equation 3).
    let sum = (!header.get(Ipv4Header::CHECKSUM) & 0xffff) + (to - class);
    let sum = (sum & 0xffff) + (sum >> 16);
    header.set(Ipv4Header::TYPE_OF_SERVICE, to).set(Ipv4Header::CHECKSUM, !sum & 0xffff);
    true
}

fn mark_ipv6(mut header: ViewMut<'_, GlobalRouteHeader>) -> bool {
    let Some(to) = marked(header.get(GlobalRouteHeader::TRAFFIC_CLASS)) else { return false };
    header.set(GlobalRouteHeader::TRAFFIC_CLASS, to);
    true
}

/// Returns whether a switch on the way has marked a packet, because its queue was long.
pub(crate) fn is_marked(link: &Link) -> bool {
    let Link::RoceV2(link) = link else { return false };
    let class = match link.route {
        IpRoute::V4(route) => route.tos,
        IpRoute::V6(route) => route.tclass,
    };
    class & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED
}
