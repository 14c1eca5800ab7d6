//! What of a path fits the link layer of its port.

use core::fmt;

use crate::error::Errno;
use crate::{AddressVector, Gid, GlobalRoute, Lid, LinkLayer, Mac};

/// Highest priority of a frame (IEEE 802.1Q, PCP).
const MAX_PRIORITY: u8 = 7;

/// First LID of multicast groups (IBTA 4.1.3).
const FIRST_GROUP_LID: u16 = 0xc000;

/// What of a path does not fit the link layer of its port ([`LinkLayer`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum LinkFault {
    /// An Ethernet port, and no route.
    NoRoute,
    /// An Ethernet port, and no MAC address.
    NoMac,
    /// An Ethernet port, and a LID.
    Lid {
        /// The LID.
        lid: Lid,
    },
    /// An Ethernet port, and a service level that is no priority.
    Priority {
        /// The service level.
        sl: u8,
    },
    /// An Ethernet port, and a hop limit of 0, with which packets go nowhere.
    HopLimit,
    /// The MAC address is that of a group and the GID is not, or the other way round.
    Group {
        /// The MAC address.
        mac: Mac,
    },
    /// An InfiniBand port, and a MAC address.
    Mac,
    /// An InfiniBand port, and a LID that no port has: 0, or that of a port without one, 0xffff. With a route the LID is that of the
    /// router, or of the peer itself in the same subnet.
    NoLid {
        /// The LID.
        lid: Lid,
    },
    /// An InfiniBand port, and of LID and GID one is that of a multicast group: then both are. The LIDs of groups are 0xc000 to 0xfffe
    /// (IBTA 4.1.3).
    GroupLid {
        /// The LID.
        lid: Lid,
    },
    /// An Ethernet port, and an alternate path.
    AlternatePath,
}

impl LinkFault {
    /// Returns the errno that the verbs give for it.
    pub const fn errno(&self) -> Errno {
        Errno::Einval
    }
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoute => {
                f.write_str("an Ethernet port needs a route: give the peer's GID and the index of ours (AddressVector::grh)")
            }
            Self::NoMac => {
                f.write_str("an Ethernet port needs the MAC address of the peer, or of the router to it (AddressVector::dmac)")
            }
            Self::Lid { lid } => {
                write!(f, "an Ethernet port has no LIDs, and {lid} is given: leave it 0 (AddressVector::dlid)")
            }
            Self::Priority { sl } => write!(f, "frames have priorities from 0 to 7, and {sl} is given (AddressVector::sl)"),
            Self::HopLimit => f.write_str("packets with a hop limit of 0 go nowhere: 64 is usual (GlobalRoute::hop_limit)"),
            Self::Group { mac } => {
                write!(
                    f,
                    "of MAC address {mac} and the GID one is that of a group: Gid::group_mac is the MAC address of a group"
                )
            }
            Self::Mac => {
                f.write_str("an InfiniBand port has no MAC addresses: give the peer's LID instead (AddressVector::dlid, dmac)")
            }
            Self::NoLid { lid } => write!(
                f,
                "LID {lid} is that of no port (AddressVector::dlid): a port has none before its subnet manager gives it one, which \
                 wait_active waits for"
            ),
            Self::GroupLid { lid } => write!(f, "of LID {lid} and the GID one is that of a group, whose LID is from 0xc000 on"),
            Self::AlternatePath => f.write_str("an Ethernet port has no alternate paths"),
        }
    }
}

impl core::error::Error for LinkFault {}

/// Checks that a path is one of a link layer.
pub(crate) fn check_path(link_layer: LinkLayer, path: &AddressVector) -> Result<(), LinkFault> {
    match link_layer {
        LinkLayer::InfiniBand if path.dmac.is_some() => Err(LinkFault::Mac),
        // A route does not replace the local part of a packet: without a LID no switch forwards it.
        LinkLayer::InfiniBand if path.dlid.get().wrapping_sub(1) >= Lid::NONE.get() - 1 => {
            Err(LinkFault::NoLid { lid: path.dlid })
        }
        LinkLayer::InfiniBand => Ok(()),
        LinkLayer::Ethernet => check_ethernet(path),
    }
}

/// Checks that of an address of datagrams both LID and GID are those of a group, or neither. Connections have no groups.
pub(crate) fn check_group(link_layer: LinkLayer, path: &AddressVector) -> Result<(), LinkFault> {
    let (lid, is_group) = (path.dlid, matches!(path.grh, Some(GlobalRoute { dgid: Gid([0xff, ..]), .. })));
    let fits = link_layer == LinkLayer::Ethernet || is_group == (lid.get() >= FIRST_GROUP_LID);
    if fits { Ok(()) } else { Err(LinkFault::GroupLid { lid }) }
}

fn check_ethernet(path: &AddressVector) -> Result<(), LinkFault> {
    let Some(route) = &path.grh else { return Err(LinkFault::NoRoute) };
    if path.dlid.get() != 0 {
        return Err(LinkFault::Lid { lid: path.dlid });
    }
    if path.sl > MAX_PRIORITY {
        return Err(LinkFault::Priority { sl: path.sl });
    }
    if route.hop_limit == 0 {
        return Err(LinkFault::HopLimit);
    }
    // The MAC address of a group follows from its GID.
    match (path.dmac, route.dgid.is_ip_group()) {
        (None | Some(Mac::ZERO), false) => Err(LinkFault::NoMac),
        (Some(mac), is_group) if mac.is_group() != is_group => Err(LinkFault::Group { mac }),
        _ => Ok(()),
    }
}
