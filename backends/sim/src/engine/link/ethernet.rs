//! The link layer of an Ethernet port: the addresses of RoCE that its driver sets, and the link parts of RoCEv2 (IBTA volume 1,
//! annex A17).

use bareverbs_mlx5_spec::{Ads, CmdStatus, View};

use crate::config::is_group_address;
use crate::packet::{Grh, IpRoute, Ipv4Route, RoceV2Address, RoceV2Link, VlanTag};
use crate::wqe_decode::AddressVector;

/// Entries of the address table (`roce_address_table_size`).
pub(crate) const ROCE_ADDRESSES: usize = 128;
/// The only P_Key: all are full members of the default partition (annex A16, A16.5.7).
const PKEY: u16 = 0xffff;
/// First UDP source port that packets have (`r_roce_min_src_udp_port`), and that of a path that names none.
pub(crate) const FIRST_SOURCE_PORT: u16 = 0xc000;

/// An address of RoCE: an entry of the table that SET_ROCE_ADDRESS writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoceAddress {
    /// IP address as a GID in wire order: that of IPv4 as an IPv4-mapped one.
    pub(crate) gid: [u8; 16],
    /// Whether packets have an IPv4 header.
    pub(crate) is_ipv4: bool,
    pub(crate) mac: [u8; 6],
    /// Identifier of the VLAN, if it is in one.
    pub(crate) vlan: Option<u16>,
}

impl RoceAddress {
    /// Returns whether a packet is for this address: IP and MAC address, and VLAN.
    fn is_destination(&self, address: &RoceV2Address) -> bool {
        let RoceV2Address { destination, is_ipv4, gids: [_, dgid], .. } = *address;
        self.gid == dgid && self.is_ipv4 == is_ipv4 && self.mac == destination && self.is_in(address.vlan)
    }

    /// Returns whether it is in the VLAN with this identifier, or in none.
    fn is_in(&self, vlan: Option<u16>) -> bool {
        self.vlan.filter(|id| *id != 0) == vlan
    }

    /// Returns the IP header from here to a GID.
    fn route_to(&self, dgid: [u8; 16], tclass: u8, flow_label: u32, hop_limit: u8) -> IpRoute {
        let ipv4 = |[.., a, b, c, d]: [u8; 16]| [a, b, c, d];
        if self.is_ipv4 {
            IpRoute::V4(Ipv4Route {
                tos: tclass,
                identification: 0,
                dont_fragment: true,
                ttl: hop_limit,
                source: ipv4(self.gid),
                destination: ipv4(dgid),
            })
        } else {
            IpRoute::V6(Grh { tclass, flow_label, hop_limit, sgid: self.gid, dgid })
        }
    }
}

/// An Ethernet port.
#[derive(Clone, Debug)]
pub(in crate::engine) struct EthernetPort {
    /// Whether the port takes and sends packets of RoCE.
    enabled: bool,
    addresses: [Option<RoceAddress>; ROCE_ADDRESSES],
    /// Entries up to the last one in use.
    used: usize,
}

impl EthernetPort {
    /// A port without addresses.
    pub(super) const fn new() -> Self {
        Self { enabled: false, addresses: [None; ROCE_ADDRESSES], used: 0 }
    }

    pub(super) const fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub(super) const fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Writes an entry of the address table. Refused with [`CmdStatus::BadParam`] beyond it.
    pub(super) fn set_address(&mut self, index: u32, address: Option<RoceAddress>) -> Result<(), CmdStatus> {
        let place = self.addresses.get_mut(index as usize).ok_or(CmdStatus::BadParam)?;
        *place = address;
        self.used = self.addresses.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        Ok(())
    }

    /// Returns an entry of the address table, `None` if it is empty. Refused with [`CmdStatus::BadParam`] beyond it.
    pub(super) fn entry(&self, index: u32) -> Result<Option<RoceAddress>, CmdStatus> {
        self.addresses.get(index as usize).copied().ok_or(CmdStatus::BadParam)
    }

    fn address(&self, index: u32) -> Option<&RoceAddress> {
        self.addresses.get(index as usize)?.as_ref()
    }

    fn addresses(&self) -> impl Iterator<Item = &RoceAddress> {
        self.addresses.iter().take(self.used).flatten()
    }

    pub(super) fn is_destination(&self, address: &RoceV2Address) -> bool {
        self.enabled && !address.is_multicast && self.addresses().any(|own| own.is_destination(address))
    }

    /// Returns whether an address is in the VLAN that a packet has, or in none as the packet.
    pub(super) fn is_in_vlan(&self, address: &RoceV2Address) -> bool {
        self.addresses().any(|own| own.is_in(address.vlan))
    }

    pub(super) fn has_mac(&self, mac: [u8; 6]) -> bool {
        self.addresses().any(|own| own.mac == mac)
    }

    pub(super) fn is_from_peer(&self, address: &RoceV2Address, path: View<'_, Ads>) -> bool {
        let own = self.address(path.get(Ads::SRC_ADDR_INDEX));
        let (peer, [sgid, _]) = (path.bytes(Ads::RGID_RIP), address.gids);
        // Of an IPv4 address four bytes are sent, so that the others say nothing.
        let [.., a, b, c, d] = sgid;
        let is_peer = if address.is_ipv4 { peer.ends_with(&[a, b, c, d]) } else { peer == sgid };
        // In another VLAN the same IP address is another host's.
        is_peer && own.is_some_and(|own| own.is_destination(address))
    }

    pub(super) fn check(&self, link: &RoceV2Link) -> Result<(), &'static str> {
        if is_group_address(link.source) {
            return Err("its source is a group");
        }
        if is_group_address(link.destination) != link.route.is_multicast() {
            return Err("its MAC address or its IP address is of a group, and the other is not");
        }
        Ok(())
    }

    /// Returns the link part of packets along a path. Without a source, which the entry had that the path names, they are not
    /// sent.
    pub(super) fn to_peer(&self, path: View<'_, Ads>) -> RoceV2Link {
        let Some(source) = self.address(path.get(Ads::SRC_ADDR_INDEX)) else { return RoceV2Link::NOWHERE };
        let tclass = (path.get(Ads::DSCP) << 2 | path.get(Ads::TCLASS) & 3) as u8;
        let dgid = path.bytes(Ads::RGID_RIP).try_into().unwrap_or_default();
        let route = source.route_to(dgid, tclass, path.get(Ads::FLOW_LABEL), path.get(Ads::HOP_LIMIT) as u8);
        let [_, _, a, b, c, d, e, f] =
            (u64::from(path.get(Ads::RMAC_47_32)) << 32 | u64::from(path.get(Ads::RMAC_31_0))).to_be_bytes();
        let source_port = path.get(Ads::UDP_SPORT) as u16;
        link(source, [a, b, c, d, e, f], path.get(Ads::ETH_PRIO) as u8, route, source_port)
    }

    /// Returns the link part of a datagram, whose address vector has a route whether it says so or not (libmlx5
    /// `mlx5_create_ah`). `None` if there is no such source.
    pub(super) fn to_address(&self, address: &AddressVector) -> Option<RoceV2Link> {
        let to = &address.route;
        let source = self.address(to.sgid_index.into())?;
        let route = source.route_to(to.dgid, to.tclass, to.flow_label, to.hop_limit);
        // The priority is where InfiniBand has the service level, a bit further left, and the port where it has the LID.
        Some(link(source, address.rmac, address.sl >> 1, route, address.rlid))
    }

    pub(super) fn accepts_path(&self, path: View<'_, Ads>, is_connected: bool) -> bool {
        !is_connected || self.has_source(path)
    }

    pub(super) fn has_source(&self, path: View<'_, Ads>) -> bool {
        self.address(path.get(Ads::SRC_ADDR_INDEX)).is_some()
    }

    pub(super) const fn pkey(index: u32) -> u16 {
        if index == 0 { PKEY } else { 0 }
    }
}

fn link(source: &RoceAddress, destination: [u8; 6], priority: u8, route: IpRoute, source_port: u16) -> RoceV2Link {
    let vlan = source.vlan.map(|id| VlanTag { priority, drop_eligible: false, id });
    let source_port = if source_port == 0 { FIRST_SOURCE_PORT } else { source_port };
    RoceV2Link { destination, source: source.mac, vlan, route, source_port }
}

/// Returns whether a GID in wire order is that of a multicast group: of IPv6, or an IPv4-mapped one.
pub(super) const fn is_group(gid: [u8; 16]) -> bool {
    match gid {
        [0xff, ..] => true,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, first, ..] => first >> 4 == 0xe,
        _ => false,
    }
}
