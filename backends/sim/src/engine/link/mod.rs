//! The link layer of the port: which link part leads to a peer, and which one leads here.
//!
//! Requester, responder and agents neither build a link part nor look into one. They ask the port for the link part of a path,
//! of an address vector or of an answer, and whether a packet is for this port and from a peer. What differs between kinds of
//! ports is behind [`PortLink`], and in the link parts of the module [`packet`](crate::packet): who owns the addresses, how
//! frames reach a port, which management it has.

mod ethernet;
mod infiniband;

use std::sync::Arc;

use bareverbs_mlx5_spec::{Ads, CmdStatus, View};

use crate::identity::PortIdentity;
use crate::limits::PKEYS;
use crate::packet::{Addressing, Link, LinkAddress, Packet, PacketError, same_partition};
use crate::wqe_decode::AddressVector;

use ethernet::EthernetPort;
use infiniband::InfiniBandPort;

pub(crate) use ethernet::{FIRST_SOURCE_PORT, ROCE_ADDRESSES, RoceAddress};

/// What is wrong with a packet of another link layer than the port's.
const OTHER_LAYER: &str = "its link layer is another one";

/// The link layer of a port.
#[derive(Clone, Debug)]
pub(in crate::engine) enum PortLink {
    /// Local identifiers, and GIDs that a subnet manager and the device make.
    InfiniBand(InfiniBandPort),
    /// MAC addresses, and IP addresses that the driver sets.
    Ethernet(Box<EthernetPort>),
}

impl PortLink {
    /// Creates that of the port with this identity.
    pub(in crate::engine) fn new(identity: Arc<PortIdentity>) -> Self {
        if identity.is_ethernet() {
            Self::Ethernet(Box::new(EthernetPort::new()))
        } else {
            Self::InfiniBand(InfiniBandPort::new(identity))
        }
    }

    /// Returns it as it is after a reset of the function: what the driver has set is gone.
    pub(in crate::engine) fn restarted(&self) -> Self {
        match self {
            Self::InfiniBand(_) => self.clone(),
            Self::Ethernet(_) => Self::Ethernet(Box::new(EthernetPort::new())),
        }
    }

    /// Returns whether it is an Ethernet port.
    #[inline]
    pub(in crate::engine) const fn is_ethernet(&self) -> bool {
        matches!(self, Self::Ethernet(_))
    }

    /// Returns whether an Ethernet port takes and sends packets of RoCE.
    pub(in crate::engine) fn has_roce(&self) -> bool {
        matches!(self, Self::Ethernet(port) if port.is_enabled())
    }

    /// Lets an Ethernet port take and send packets of RoCE, or no longer.
    pub(in crate::engine) fn enable_roce(&mut self, enabled: bool) {
        if let Self::Ethernet(port) = self {
            port.enable(enabled);
        }
    }

    /// Writes an entry of the address table of RoCE. Refused with [`CmdStatus::BadParam`] beyond it and without one.
    pub(in crate::engine) fn set_roce_address(&mut self, index: u32, address: Option<RoceAddress>) -> Result<(), CmdStatus> {
        match self {
            Self::InfiniBand(_) => Err(CmdStatus::BadParam),
            Self::Ethernet(port) => port.set_address(index, address),
        }
    }

    /// Returns an entry of that table. Refused as [`Self::set_roce_address`].
    pub(in crate::engine) fn roce_address(&self, index: u32) -> Result<Option<RoceAddress>, CmdStatus> {
        match self {
            Self::InfiniBand(_) => Err(CmdStatus::BadParam),
            Self::Ethernet(port) => port.entry(index),
        }
    }

    /// Reads the fields of a frame by which the port finds its queue pair. `None` if it is no packet of this link layer.
    #[inline]
    pub(in crate::engine) fn addressing(&self, frame: &[u8]) -> Option<Addressing> {
        match self {
            Self::InfiniBand(_) => Addressing::of(frame),
            Self::Ethernet(_) => Addressing::of_roce_v2(frame),
        }
    }

    /// Decodes a frame.
    #[inline]
    pub(in crate::engine) fn decode<'a>(&self, frame: &'a [u8]) -> Result<Packet<'a>, PacketError> {
        match self {
            Self::InfiniBand(_) => Packet::decode(frame),
            Self::Ethernet(_) => Packet::decode_roce_v2(frame),
        }
    }

    /// Checks a received packet by the rules of the link layer. The error says which it breaks.
    #[inline]
    pub(in crate::engine) fn check(&self, packet: &Packet<'_>) -> Result<(), &'static str> {
        match (self, &packet.link) {
            (Self::InfiniBand(port), Link::InfiniBand(link)) => port.check(link, &packet.transport),
            (Self::Ethernet(port), Link::RoceV2(link)) => port.check(link),
            _ => Err(OTHER_LAYER),
        }
    }

    /// Returns whether a packet is for this port by its first fields, those for groups left out.
    #[inline]
    pub(in crate::engine) fn is_destination(&self, address: &LinkAddress) -> bool {
        match (self, address) {
            (Self::InfiniBand(port), LinkAddress::InfiniBand(lrh)) => port.is_destination(lrh),
            (Self::Ethernet(port), LinkAddress::RoceV2(address)) => port.is_destination(address),
            _ => false,
        }
    }

    /// Returns whether an Ethernet port has an address in the VLAN of a packet. Who is in none of its VLANs gets nothing from it,
    /// as in a host whose network interface has no such VLAN.
    #[inline]
    pub(in crate::engine) fn is_in_vlan(&self, address: &LinkAddress) -> bool {
        match (self, address) {
            (Self::InfiniBand(_), _) => true,
            (Self::Ethernet(port), LinkAddress::RoceV2(address)) => port.is_in_vlan(address),
            _ => false,
        }
    }

    /// Returns whether the route of a packet, if it has one, ends at this port.
    #[inline]
    pub(in crate::engine) fn ends_route(&self, link: &Link) -> bool {
        match (self, link) {
            (Self::InfiniBand(port), Link::InfiniBand(link)) => port.ends_route(link),
            // Its addresses name the port; who accepts a packet looks at them.
            (Self::Ethernet(_), Link::RoceV2(_)) => true,
            _ => false,
        }
    }

    /// Returns whether a packet that this port sends is for itself.
    #[inline]
    pub(in crate::engine) fn loops_back(&self, link: &Link) -> bool {
        match (self, link) {
            (Self::InfiniBand(port), Link::InfiniBand(link)) => port.loops_back(link),
            (Self::Ethernet(port), Link::RoceV2(link)) => port.has_mac(link.destination),
            _ => false,
        }
    }

    /// Returns whether a packet is from this port.
    #[inline]
    pub(in crate::engine) fn is_source(&self, link: &Link) -> bool {
        match (self, link) {
            (Self::InfiniBand(port), Link::InfiniBand(link)) => port.is_source(link),
            (Self::Ethernet(port), Link::RoceV2(link)) => port.has_mac(link.source),
            _ => false,
        }
    }

    /// Returns whether a packet is from the peer to which a path leads, by its first fields.
    #[inline]
    pub(in crate::engine) fn is_from_peer(&self, address: &LinkAddress, path: View<'_, Ads>) -> bool {
        match (self, address) {
            (Self::InfiniBand(_), LinkAddress::InfiniBand(lrh)) => infiniband::is_from_peer(lrh, path),
            (Self::Ethernet(port), LinkAddress::RoceV2(address)) => port.is_from_peer(address, path),
            _ => false,
        }
    }

    /// Returns whether the route of a packet, if it has one, begins at the peer to which a path leads.
    #[inline]
    pub(in crate::engine) fn begins_route_at_peer(&self, link: &Link, path: View<'_, Ads>) -> bool {
        match (self, link) {
            (Self::InfiniBand(_), Link::InfiniBand(link)) => infiniband::begins_route_at_peer(link, path),
            // Its addresses say so already.
            (Self::Ethernet(_), Link::RoceV2(_)) => true,
            _ => false,
        }
    }

    /// Returns the link part of packets along a path; `is_subnet` for subnet management.
    #[inline]
    pub(in crate::engine) fn to_peer(&self, path: View<'_, Ads>, is_subnet: bool) -> Link {
        match self {
            Self::InfiniBand(port) => port.to_peer(path, is_subnet).into(),
            Self::Ethernet(port) => port.to_peer(path).into(),
        }
    }

    /// Returns the link part of a datagram to an address vector, from a queue pair with this path. `None` if the port has no
    /// such source as the address vector names.
    #[inline]
    pub(in crate::engine) fn to_address(&self, address: &AddressVector, path: View<'_, Ads>, is_subnet: bool) -> Option<Link> {
        match self {
            Self::InfiniBand(port) => port.to_address(address, path, is_subnet).map(Link::from),
            Self::Ethernet(port) => port.to_address(address).map(Link::from),
        }
    }

    /// Returns the link part of an answer to a packet; `is_subnet` for subnet management. `None` if no agent here answers such.
    #[inline]
    pub(in crate::engine) fn to_asker(&self, question: &Link, is_subnet: bool) -> Option<Link> {
        match (self, question) {
            (Self::InfiniBand(port), Link::InfiniBand(question)) => Some(port.to_asker(question, is_subnet).into()),
            _ => None,
        }
    }

    /// Returns the link part of datagrams for the subnet manager at a local identifier. `None` if ports of this kind have none.
    #[inline]
    pub(in crate::engine) fn to_manager(&self, manager: u16) -> Option<Link> {
        match self {
            Self::InfiniBand(port) => Some(port.to_manager(manager).into()),
            Self::Ethernet(_) => None,
        }
    }

    /// Returns whether the table of GIDs has the source that a path names, or the path needs none.
    pub(in crate::engine) fn has_source(&self, path: View<'_, Ads>) -> bool {
        match self {
            Self::InfiniBand(port) => port.has_source(path),
            Self::Ethernet(port) => port.has_source(path),
        }
    }

    /// Returns the entries of the table of GIDs.
    pub(in crate::engine) fn gid_entries(&self) -> u32 {
        match self {
            Self::InfiniBand(port) => port.gid_entries(),
            Self::Ethernet(_) => ROCE_ADDRESSES as u32,
        }
    }

    /// Returns whether packets with a link part that was made here can be sent.
    #[inline]
    pub(in crate::engine) fn may_send(&self, link: &Link) -> bool {
        match self {
            Self::InfiniBand(_) => true,
            Self::Ethernet(port) => port.is_enabled() && !link.is_nowhere(),
        }
    }

    /// Returns whether agents of the port answer what comes with this link part.
    #[inline]
    pub(in crate::engine) fn has_agents_for(&self, link: &Link) -> bool {
        match self {
            Self::InfiniBand(_) => self.is_destination(&link.address()),
            Self::Ethernet(_) => false,
        }
    }

    /// Returns whether a connected queue pair, or another, may have a path.
    #[inline]
    pub(in crate::engine) fn accepts_path(&self, path: View<'_, Ads>, is_connected: bool) -> bool {
        match self {
            Self::InfiniBand(port) => port.accepts_path(path, is_connected),
            Self::Ethernet(port) => port.accepts_path(path, is_connected),
        }
    }

    /// Returns whether a GID in wire order is that of a multicast group.
    #[inline]
    pub(in crate::engine) fn is_group(&self, gid: [u8; 16]) -> bool {
        match self {
            Self::InfiniBand(_) => infiniband::is_group(gid),
            Self::Ethernet(_) => ethernet::is_group(gid),
        }
    }

    /// Returns how many entries the P_Key table has.
    #[inline]
    pub(in crate::engine) fn pkeys(&self) -> usize {
        match self {
            Self::InfiniBand(_) => PKEYS,
            Self::Ethernet(_) => 1,
        }
    }

    /// Returns an entry of the P_Key table; 0, which is no partition, beyond it.
    #[inline]
    pub(in crate::engine) fn pkey(&self, index: u32) -> u16 {
        match self {
            Self::InfiniBand(port) => port.identity().pkey(index as usize),
            Self::Ethernet(_) => EthernetPort::pkey(index),
        }
    }

    /// Returns whether the port is a member of the partition of a packet.
    #[inline]
    pub(in crate::engine) fn shares_partition(&self, pkey: u16) -> bool {
        self.matching_pkey(pkey).is_some()
    }

    /// Returns the port's own key of the partition of a packet, by which it answers. `None` if it is no member.
    #[inline]
    pub(in crate::engine) fn matching_pkey(&self, pkey: u16) -> Option<u16> {
        match self {
            Self::InfiniBand(port) => port.identity().matching_pkey(pkey),
            Self::Ethernet(_) => Some(EthernetPort::pkey(0)).filter(|own| same_partition(*own, pkey)),
        }
    }

    /// Returns who the port is.
    #[cfg(test)]
    pub(in crate::engine) fn identity(&self) -> &PortIdentity {
        match self {
            Self::InfiniBand(port) => port.identity(),
            Self::Ethernet(_) => panic!("an Ethernet port"),
        }
    }
}
