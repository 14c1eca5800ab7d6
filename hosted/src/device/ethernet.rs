//! The path between two ends: the GID of each, and on Ethernet ports an address of its own, which the command line sets, and the MAC
//! address of its peer.

use std::net::IpAddr;

use anyhow::{Context as _, Result, anyhow, bail};
use bareverbs::{AddressVector, Gid, GidEntry, GlobalRoute, Lid, LinkLayer, Mac, PortAttr};
use clap::Args;

use super::bring_up::Device;
use super::host::Host;
use crate::args::UsageError;

/// Index of the GID that is the link-local address of an Ethernet port, as Linux has it, if no other address is set there.
const LINK_LOCAL: u8 = 0;
/// Hop limit of packets: the usual one of IP, since routers may be on the way.
const HOP_LIMIT: u8 = 64;

/// Options of the path between two ends.
#[derive(Clone, Debug, Default, Args)]
pub struct PathArgs {
    /// Index of the local GID. Packets then carry a GRH; both ends must give an index. An Ethernet port needs one, which is set
    /// with --address; without, index 0 is the port's link-local address
    #[arg(long, short, value_name = "INDEX", visible_alias = "gid-index", visible_short_alias = 'x')]
    pub gid_idx: Option<u8>,
    /// Ethernet port: IP address of this end, which is set as the GID of the given index. If both ends are in this process, given
    /// once for each, the client first; on one device they share one. Default: the link-local address of the port's MAC address, as index 0.
    /// InfiniBand port: only rping, ucmatose and udaddy take one, of the peer's subnet on ib0; it is set nowhere
    #[arg(long, value_name = "IP")]
    pub address: Vec<IpAddr>,
    /// Ethernet port: VLAN that packets of the GID are tagged with
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Ethernet port: MAC address of the peer, or of the router to it. Default: that in the peer's link-local address
    #[arg(long, value_name = "MAC", value_parser = mac)]
    pub peer_mac: Option<Mac>,
}

impl PathArgs {
    /// Returns the address that is set for an end: the first or the second of the command line. Ends on one device have the same.
    pub fn of_end(&self, end: usize) -> EntryArgs {
        EntryArgs { address: self.address.get(end).or(self.address.first()).copied(), vlan: self.vlan }
    }

    /// Checks that the options are those of `ends` ends in this process, on `devices` devices.
    ///
    /// # Errors
    /// There are too many or too few addresses, or the MAC address of a peer that is in this process too: [`UsageError`].
    pub fn check(&self, ends: usize, devices: usize) -> Result<(), UsageError> {
        let given = self.address.len();
        let why = match (given, ends, devices) {
            (0, ..) | (1, _, 1) | (2, 2, 2) => None,
            (_, 1, _) => Some("one end is in this process"),
            (_, _, 1) => Some("both ends are on one device and share its GID, give one for both"),
            _ => Some("both ends are in this process, give one for each"),
        };
        if let Some(why) = why {
            return Err(UsageError::new(format!("--address was given {given} times: {why}")));
        }
        if ends == 2 && self.peer_mac.is_some() {
            return Err(UsageError::new(
                "--peer-mac: both ends are in this process and know each other's MAC address; leave it out",
            ));
        }
        Ok(())
    }
}

/// The entry of a GID table that the command line sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryArgs {
    /// Address, if one was given.
    pub address: Option<IpAddr>,
    /// VLAN, if one was given.
    pub vlan: Option<u16>,
}

/// Parses a MAC address of one port: six numbers of two hexadecimal digits, with colons between.
///
/// # Errors
/// It is not that; the text says what is wrong.
pub fn mac(text: &str) -> Result<Mac, String> {
    let mut bytes = [0; 6];
    let mut fields = text.split(':');
    for byte in &mut bytes {
        let field = fields.next().filter(|field| field.len() == 2 && field.bytes().all(|digit| digit.is_ascii_hexdigit()));
        *byte = field
            .and_then(|field| u8::from_str_radix(field, 16).ok())
            .ok_or("not six numbers of two hexadecimal digits, as in 02:00:5e:00:53:01")?;
    }
    match (fields.next(), Mac(bytes)) {
        (Some(_), _) => Err("more than six numbers".into()),
        (None, mac) if mac == Mac::ZERO || mac.is_group() => Err("not the address of one port".into()),
        (None, mac) => Ok(mac),
    }
}

impl<H: Host> Device<H> {
    /// Returns the GID that an end on `port`, of the number `number`, sends with: that of the given index. On an Ethernet port it is
    /// set as `entry` says; index 0 without an address is the port's link-local address. Zero without an index.
    ///
    /// # Errors
    /// The port needs an index, or has no such entry; the error says what to give. Or the device refuses.
    pub fn local_gid(&mut self, number: u8, port: &PortAttr, index: Option<u8>, entry: EntryArgs) -> Result<Gid> {
        let is_ethernet = port.link_layer == LinkLayer::Ethernet;
        if !is_ethernet && entry != EntryArgs::default() {
            bail!(
                "port {number} is an InfiniBand port, whose GIDs come from its GUID and its subnet manager: leave --address and --vlan \
                 out"
            );
        }
        let Some(index) = index else {
            if is_ethernet {
                bail!(
                    "port {number} is an Ethernet port, where every path needs a GID: give -g 0 for its link-local address {}, or \
                     -g INDEX and --address IP",
                    Gid::link_local(port.mac).ip()
                );
            }
            if port.grh_required {
                bail!("port {number} requires a global route (GRH) on every path: give both ends a GID (-g 0)");
            }
            return Ok(Gid::default());
        };
        if u16::from(index) >= port.gid_tbl_len {
            bail!("there is no GID {index}: port {number} has {} GIDs; see `bareverbs info`", port.gid_tbl_len);
        }
        if is_ethernet && (entry.address.is_some() || index == LINK_LOCAL) {
            let set = match entry.address {
                Some(address) => GidEntry::new(address, port.mac),
                None => GidEntry::link_local(port.mac),
            };
            let set = GidEntry { vlan: entry.vlan, ..set };
            let address = set.gid.ip();
            self.verbs
                .set_gid(number, index.into(), &set)
                .with_context(|| format!("{address} as GID {index} of port {number}"))?;
            // Not asked for: no other driver sends the query, so that a card may refuse it.
            return Ok(set.gid);
        }
        let gid = self.verbs.query_gid(number, index.into()).context("query_gid")?;
        if is_ethernet && gid == Gid::default() {
            bail!(
                "GID {index} of port {number} has no entry: --address IP sets it, or give -g 0 for the port's link-local address {}",
                Gid::link_local(port.mac).ip()
            );
        }
        Ok(gid)
    }
}

/// The port of this end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalPort {
    /// Index of its GID, if packets carry a GRH.
    pub gid_idx: Option<u8>,
    /// That GID; zero without an index.
    pub gid: Gid,
    /// MAC address of an Ethernet port.
    pub mac: Option<Mac>,
}

/// The port of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerPort {
    /// LID of an InfiniBand port.
    pub lid: Lid,
    /// GID; `None` if the peer uses none.
    pub gid: Option<Gid>,
    /// MAC address of an Ethernet port, or of the router to it, if somebody has said it.
    pub mac: Option<Mac>,
}

impl LocalPort {
    /// Returns what the port is.
    pub const fn link_layer(&self) -> LinkLayer {
        if self.mac.is_some() { LinkLayer::Ethernet } else { LinkLayer::InfiniBand }
    }

    /// Returns the path to the port of the peer, of at most `hops` routers on InfiniBand.
    ///
    /// # Errors
    /// One of the two uses a GID and the other does not, the two GIDs cannot reach each other, or nobody has said the peer's MAC
    /// address; the error says what to give.
    pub fn path_to(&self, peer: &PeerPort, hops: u8) -> Result<AddressVector> {
        match (self.mac, self.gid_idx, peer.gid) {
            (Some(_), Some(index), gid) => path(self.gid, index, gid.unwrap_or_default(), peer.mac),
            (None, ..) if peer.mac.is_some() => bail!("--peer-mac: an InfiniBand port has no MAC addresses; leave it out"),
            (_, _, None) => Ok(AddressVector { dlid: peer.lid, ..AddressVector::default() }),
            (_, Some(sgid_index), Some(dgid)) => {
                let grh = GlobalRoute { dgid, sgid_index, hop_limit: hops, ..GlobalRoute::default() };
                Ok(AddressVector { dlid: peer.lid, grh: Some(grh), ..AddressVector::default() })
            }
            (_, None, Some(_)) => bail!("the peer uses a GID (-g): give an index here too"),
        }
    }
}

/// Returns the path from the GID of an Ethernet port, of an index, to that of a peer with this MAC address, or with the one in its
/// link-local address.
///
/// # Errors
/// The two GIDs cannot reach each other, or nobody has said the peer's MAC address.
fn path(local: Gid, sgid_index: u8, peer: Gid, peer_mac: Option<Mac>) -> Result<AddressVector> {
    let [ours, theirs] = [local, peer].map(Gid::ip);
    if local.is_ipv4() != peer.is_ipv4() {
        bail!("the peer has the address {theirs} and this end {ours}: give both ends a GID of IPv4, or both one of IPv6");
    }
    let dmac = peer_mac.or_else(|| peer.link_local_mac()).ok_or_else(|| {
        anyhow!(
            "the peer's address {theirs} does not tell its MAC address, and this command asks nobody for it (ARP): give --peer-mac, of \
             the peer or of the router to it"
        )
    })?;
    let grh = GlobalRoute { dgid: peer, sgid_index, hop_limit: HOP_LIMIT, ..GlobalRoute::default() };
    Ok(AddressVector { grh: Some(grh), dmac: Some(dmac), ..AddressVector::default() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bareverbs_sim::DeviceConfig;
    use bareverbs_sim::in_process::{World, WorldConfig};

    use super::*;
    use crate::device::simulated::Simulated;

    const MAC: Mac = Mac([2, 0, 0x5e, 0, 0x53, 1]);

    fn gid(address: &str) -> Gid {
        address.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn mac_addresses_are_those_of_one_port() {
        assert_eq!((mac("02:00:5e:00:53:01"), mac("02:00:5E:00:53:01")), (Ok(MAC), Ok(MAC)));
        for wrong in ["", "02:00:5e:00:53", "02:00:5e:00:53:01:02", "2:0:5e:0:53:1", "02-00-5e-00-53-01", "+2:00:5e:00:53:01"] {
            assert!(mac(wrong).is_err(), "{wrong}");
        }
        assert!(mac("01:00:5e:00:00:01").unwrap_err().contains("one port") && mac("00:00:00:00:00:00").is_err());
    }

    #[test]
    fn a_link_local_address_tells_the_mac_address_and_others_do_not() {
        let to = path(Gid::link_local(MAC), 0, Gid::link_local(MAC), None).unwrap();
        assert_eq!(to.dmac, Some(MAC));
        // The example of RFC 4291, appendix A.
        let to = path(Gid::link_local(MAC), 0, gid("fe80::3656:78ff:fe9a:bcde"), None).unwrap();
        assert_eq!(to.dmac, Some(Mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde])));
        for other in ["fe80::1", "2001:db8::3656:78ff:fe9a:bcde", "192.0.2.1"] {
            let error = path(gid(other), 0, gid(other), None).unwrap_err().to_string();
            assert!(error.contains(other) && error.contains("--peer-mac"), "{error}");
        }
        let to = path(gid("192.0.2.1"), 3, gid("192.0.2.2"), Some(MAC)).unwrap();
        assert_eq!((to.dmac, to.grh.unwrap().dgid, to.grh.unwrap().sgid_index), (Some(MAC), gid("192.0.2.2"), 3));
        let error = path(gid("192.0.2.1"), 0, Gid::link_local(MAC), None).unwrap_err().to_string();
        assert!(
            error.contains("address fe80::ff:feff") || error.contains("192.0.2.1: give both ends a GID of IPv4"),
            "{error}"
        );
    }

    #[test]
    fn addresses_are_as_many_as_the_ends_here() {
        let args = |count: usize, peer_mac| PathArgs {
            address: vec![IpAddr::from([192, 0, 2, 1]); count],
            peer_mac,
            ..PathArgs::default()
        };
        for (count, ends, devices) in [(0, 1, 1), (1, 1, 1), (0, 2, 2), (2, 2, 2), (0, 2, 1), (1, 2, 1)] {
            assert_eq!(args(count, None).check(ends, devices), Ok(()), "{count} {ends} {devices}");
        }
        for (count, ends, devices, why) in [
            (2, 1, 1, "one end is in"),
            (1, 2, 2, "one for each"),
            (3, 2, 2, "one for each"),
            (2, 2, 1, "one device and share its GID"),
        ] {
            let error = args(count, None).check(ends, devices).unwrap_err().to_string();
            assert!(error.contains(&format!("given {count} times")) && error.contains(why), "{error}");
        }
        assert!(args(2, Some(MAC)).check(2, 2).is_err() && args(1, Some(MAC)).check(1, 1).is_ok());
    }

    #[test]
    fn an_entry_is_set_or_the_error_says_how() {
        let host = World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1).with_ethernet()).unwrap();
        let mut device = Device::bring_up(Simulated::new("a", host), &Arc::default()).unwrap();
        let port = device.verbs.query_port(1).unwrap();
        let none = EntryArgs::default();
        let mut local = |index, entry| device.local_gid(1, &port, index, entry);
        let error = local(None, none).unwrap_err().to_string();
        assert!(
            error.contains("give -g 0 for its link-local address fe80::202:c9ff:fe00:100, or -g INDEX and --address"),
            "{error}"
        );
        let error = local(Some(3), none).unwrap_err().to_string();
        assert!(error.starts_with("GID 3 of port 1 has no entry: --address IP sets it"), "{error}");
        let error = local(Some(255), none).unwrap_err().to_string();
        assert!(error.contains("there is no GID 255: port 1 has "), "{error}");
        assert_eq!(local(Some(0), none).unwrap(), gid("fe80::202:c9ff:fe00:100"));
        let entry = EntryArgs { address: Some(IpAddr::from([192, 0, 2, 7])), vlan: Some(5) };
        assert_eq!(local(Some(3), entry).unwrap(), gid("192.0.2.7"));
        // Set before, and found.
        assert_eq!(local(Some(3), none).unwrap(), gid("192.0.2.7"));
        let group = EntryArgs { address: Some(IpAddr::from([224, 0, 0, 1])), vlan: None };
        assert!(format!("{:#}", local(Some(3), group).unwrap_err()).starts_with("224.0.0.1 as GID 3 of port 1: "));
    }

    #[test]
    fn an_infiniband_port_has_no_addresses_to_set() {
        let host = World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1)).unwrap();
        let mut device = Device::bring_up(Simulated::new("a", host), &Arc::default()).unwrap();
        let port = device.verbs.query_port(1).unwrap();
        let entry = EntryArgs { vlan: Some(5), ..EntryArgs::default() };
        let error = device.local_gid(1, &port, Some(0), entry).unwrap_err().to_string();
        assert!(error.contains("InfiniBand port") && error.contains("leave --address and --vlan out"), "{error}");
        assert_eq!(device.local_gid(1, &port, None, EntryArgs::default()).unwrap(), Gid::default());
    }
}
