//! The link part of a packet: what stands before its base transport header and depends on the kind of the port.
//!
//! Requester and responder know a link part as a whole. The transport asks it for these, and for nothing else: its bytes and
//! those that the ICRC covers, whether it is for a group, the fields of a completion, and the bytes before a datagram. Which
//! link part leads to a peer, and whether one leads to this port, the engine's `PortLink` decides.

pub(super) mod infiniband;
pub(super) mod roce_v2;

use infiniband::{GRH, InfiniBandLink, Lrh};
use roce_v2::{RoceV2Address, RoceV2Link};

/// Most bytes that the ICRC covers of a link part.
pub(super) const MOST_COVERED: usize = 56;

/// The link part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Local route header, and global route header if any.
    InfiniBand(InfiniBandLink),
    /// Headers of Ethernet, IP and UDP.
    RoceV2(RoceV2Link),
}

/// The fields of a link part by which a port finds the queue pair of a packet, which a switch on the way does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAddress {
    /// Local route header.
    InfiniBand(Lrh),
    /// Addresses of Ethernet and IP.
    RoceV2(RoceV2Address),
}

/// What the completion of a receive says of the link part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCompletion {
    /// Local identifier of the sender, 0 where there are none.
    pub slid: u16,
    /// Service level; of RoCEv2 the kind of the route, which is there instead: 1 IPv6, 2 IPv4.
    pub sl: u8,
    /// Whether there is a global route.
    pub grh: bool,
    /// VLAN tag, as it is behind its type.
    pub vlan: Option<u16>,
}

impl From<InfiniBandLink> for Link {
    fn from(link: InfiniBandLink) -> Self {
        Self::InfiniBand(link)
    }
}

impl From<RoceV2Link> for Link {
    fn from(link: RoceV2Link) -> Self {
        Self::RoceV2(link)
    }
}

impl From<Lrh> for Link {
    fn from(lrh: Lrh) -> Self {
        Self::InfiniBand(lrh.into())
    }
}

impl Link {
    /// Returns that of an InfiniBand packet.
    pub const fn infiniband(&self) -> Option<&InfiniBandLink> {
        match self {
            Self::InfiniBand(link) => Some(link),
            Self::RoceV2(_) => None,
        }
    }

    /// Returns that of an InfiniBand packet, to be changed.
    pub const fn infiniband_mut(&mut self) -> Option<&mut InfiniBandLink> {
        match self {
            Self::InfiniBand(link) => Some(link),
            Self::RoceV2(_) => None,
        }
    }

    /// Returns whether it leads nowhere ([`RoceV2Link::NOWHERE`]).
    #[inline]
    pub(crate) fn is_nowhere(&self) -> bool {
        matches!(self, Self::RoceV2(link) if link.source == RoceV2Link::NOWHERE.source)
    }

    /// Returns the fields by which a port finds a queue pair.
    #[inline]
    pub const fn address(&self) -> LinkAddress {
        match self {
            Self::InfiniBand(link) => LinkAddress::InfiniBand(link.lrh),
            Self::RoceV2(link) => LinkAddress::RoceV2(link.address()),
        }
    }

    /// Returns whether the destination is a multicast group.
    #[inline]
    pub const fn is_multicast(&self) -> bool {
        self.address().is_multicast()
    }

    /// Returns the GIDs of source and destination in wire order. `None` without a global route.
    #[inline]
    pub fn gids(&self) -> Option<[[u8; 16]; 2]> {
        match self {
            Self::InfiniBand(link) => link.grh.map(|route| [route.sgid, route.dgid]),
            Self::RoceV2(link) => Some(link.route.gids()),
        }
    }

    /// Returns what the completion of a receive says of it.
    #[inline]
    pub const fn completion(&self) -> LinkCompletion {
        match self {
            Self::InfiniBand(InfiniBandLink { lrh, grh }) => {
                LinkCompletion { slid: lrh.slid, sl: lrh.sl, grh: grh.is_some(), vlan: None }
            }
            Self::RoceV2(link) => LinkCompletion {
                slid: 0,
                sl: link.route.completion_type(),
                grh: true,
                vlan: match link.vlan {
                    Some(tag) => Some(tag.control()),
                    None => None,
                },
            },
        }
    }

    /// Returns the bytes that lie before a received datagram of `transport` bytes of BTH to ICRC. `None` if that place stays as
    /// it is.
    pub fn before_datagram(&self, transport: usize) -> Option<[u8; GRH]> {
        match self {
            Self::InfiniBand(link) => link.grh.map(|route| route.encode(transport)),
            Self::RoceV2(link) => Some(link.before_datagram(transport)),
        }
    }

    /// Returns its bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::InfiniBand(link) => link.len(),
            Self::RoceV2(link) => link.len(),
        }
    }

    /// Appends it before `transport` bytes of BTH to ICRC.
    #[inline]
    pub(super) fn encode(&self, transport: usize, out: &mut Vec<u8>) {
        match self {
            Self::InfiniBand(link) => link.encode(transport, out),
            Self::RoceV2(link) => link.encode(transport, out),
        }
    }

    /// Copies it from the front of a frame as the ICRC covers it. Returns the bytes that it has there.
    #[inline]
    pub(super) fn cover(&self, frame: &[u8], covered: &mut [u8]) -> usize {
        match self {
            Self::InfiniBand(link) => link.cover(frame, covered),
            Self::RoceV2(link) => link.cover(frame, covered),
        }
    }

    /// Adds its fields by name.
    pub(super) fn name_fields(&self, fields: &mut Vec<(&'static str, &'static str, String)>) {
        match self {
            Self::InfiniBand(link) => link.name_fields(fields),
            Self::RoceV2(link) => link.name_fields(fields),
        }
    }
}

impl LinkAddress {
    /// Returns the GIDs of source and destination in wire order. `None` where the route is elsewhere.
    #[inline]
    pub const fn gids(&self) -> Option<[[u8; 16]; 2]> {
        match self {
            Self::InfiniBand(_) => None,
            Self::RoceV2(address) => Some(address.gids),
        }
    }

    /// Returns whether the destination is a multicast group.
    #[inline]
    pub const fn is_multicast(&self) -> bool {
        match self {
            Self::InfiniBand(lrh) => lrh.is_multicast(),
            Self::RoceV2(address) => address.is_multicast,
        }
    }
}
