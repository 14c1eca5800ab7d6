//! Which port of an Ethernet switch has which MAC and IP addresses, and who takes those of another.
//!
//! A bound port sends from the addresses of its binding alone, and nobody else sends from them: other frames are dropped. That is what
//! switches call port security, source guard and inspection of ARP with static bindings. Without a binding an address is that of
//! the port from which it first came, or of the device that has it permanently. Who else sends from it is reported once, and let do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::claims::{Claims, link_local, mapped};
use crate::config::{Mac, is_group_address};
use crate::wire::PortId;

/// Addresses of each port that are remembered: further ones are not noticed.
const MAX_SEEN: usize = 1024;
/// Reports of each port about addresses of each other port, and about those of nobody. They are counted apart, so that no others hide the
/// theft of an address.
const MAX_REPORTED: usize = 16;

/// An address that a frame has as its sender's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StationAddress {
    /// MAC address.
    Mac([u8; 6]),
    /// IP address, and so GID of RoCEv2, in wire order. That of IPv4 is an IPv4-mapped one.
    Ip([u8; 16]),
    /// One that cannot be read: the frame ends before its last address, or has none where it should be.
    Unreadable,
}

impl fmt::Display for StationAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac(mac) => write!(f, "MAC address {}", Mac(*mac)),
            Self::Ip(ip) => write!(f, "IP address {}", Ipv6Addr::from(*ip).to_canonical()),
            Self::Unreadable => f.write_str("address that cannot be read"),
        }
    }
}

/// A frame with an address that is not its port's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignAddress {
    /// The address.
    pub address: StationAddress,
    /// The port whose it is, if it is anybody's.
    pub owner: Option<PortId>,
    /// Whether the frame was dropped.
    pub is_refused: bool,
    /// Whether it is the first one of its port with this address, as far as they are remembered.
    pub is_new: bool,
}

/// The addresses of a bound port.
#[derive(Clone, Debug)]
struct Bound {
    macs: BTreeSet<[u8; 6]>,
    /// Whether its IP addresses are bound too.
    has_ips: bool,
}

/// Those of the ports of a switch.
#[derive(Debug, Default)]
pub(super) struct Stations {
    bound: BTreeMap<PortId, Bound>,
    bound_macs: BTreeMap<[u8; 6], PortId>,
    bound_ips: BTreeMap<[u8; 16], PortId>,
    seen: BTreeMap<StationAddress, PortId>,
    reported: BTreeSet<(PortId, StationAddress)>,
    /// How many addresses of each port were seen.
    seen_of: BTreeMap<PortId, usize>,
    /// How many were reported of each port, by whose they are.
    reports: BTreeMap<(PortId, Option<PortId>), usize>,
    /// The claims of the last frame of each port, if they were right: most frames have the same.
    last: BTreeMap<PortId, Claims>,
}

impl Stations {
    /// Says whose a permanent MAC address is.
    pub(super) fn add_permanent(&mut self, port: PortId, mac: [u8; 6]) {
        self.seen.entry(StationAddress::Mac(mac)).or_insert(port);
    }

    /// Binds a port to these addresses, and to the link-local ones of the MAC addresses. Without IP addresses it may have any that is
    /// not another port's. Returns an address that another port is bound to, and changes nothing then.
    pub(super) fn bind(&mut self, port: PortId, macs: &[[u8; 6]], ips: &[IpAddr]) -> Result<(), StationAddress> {
        let given = ips.iter().map(|ip| match ip {
            IpAddr::V4(ip) => mapped(ip.octets()),
            IpAddr::V6(ip) => ip.octets(),
        });
        let all: BTreeSet<[u8; 16]> = macs.iter().copied().map(link_local).chain(given).collect();
        let is_anothers = |owner: Option<&PortId>| owner.is_some_and(|owner| *owner != port);
        if let Some(mac) = macs.iter().find(|mac| is_anothers(self.bound_macs.get(*mac))) {
            return Err(StationAddress::Mac(*mac));
        }
        if let Some(ip) = all.iter().find(|ip| is_anothers(self.bound_ips.get(*ip))) {
            return Err(StationAddress::Ip(*ip));
        }
        self.bound_macs.extend(macs.iter().map(|mac| (*mac, port)));
        self.bound_ips.extend(all.into_iter().map(|ip| (ip, port)));
        self.bound.insert(port, Bound { macs: macs.iter().copied().collect(), has_ips: !ips.is_empty() });
        self.last.clear();
        Ok(())
    }

    /// Returns what is wrong with the addresses of a frame that comes from a port.
    pub(super) fn judge(&mut self, port: PortId, frame: &[u8]) -> Option<ForeignAddress> {
        let claims = Claims::of(frame);
        if self.last.get(&port) == Some(&claims) {
            return None;
        }
        if let Some((address, owner)) = self.refused(port, &claims) {
            let is_new = self.note(port, address, owner);
            return Some(ForeignAddress { address, owner, is_refused: true, is_new });
        }
        let found = self.unusual(port, &claims);
        if found.is_none() {
            self.last.insert(port, claims);
        }
        found
    }

    /// Notes that a port sends from an address that is not its own. Returns whether that is new.
    fn note(&mut self, port: PortId, address: StationAddress, owner: Option<PortId>) -> bool {
        let count = self.reports.entry((port, owner)).or_default();
        let is_new = *count < MAX_REPORTED && self.reported.insert((port, address));
        *count += usize::from(is_new);
        is_new
    }

    /// Returns the address of a binding that a frame breaks, and whose it is.
    fn refused(&self, port: PortId, claims: &Claims) -> Option<(StationAddress, Option<PortId>)> {
        let bound = self.bound.get(&port);
        let mac = claims.macs().map(|mac| (mac, self.bound_macs.get(&mac))).find(|(mac, owner)| {
            owner.is_some_and(|owner| *owner != port) || bound.is_some_and(|bound| !bound.macs.contains(mac))
        });
        if let Some((mac, owner)) = mac {
            return Some((StationAddress::Mac(mac), owner.copied()));
        }
        let ip = claims
            .ips()
            .map(|ip| (ip, self.bound_ips.get(&ip)))
            .find(|(_, owner)| owner.map_or(bound.is_some_and(|bound| bound.has_ips), |owner| *owner != port));
        let touched = || {
            let mut owners = claims.touched().map(|ip| (ip, self.bound_ips.get(&ip)));
            owners.find(|(_, owner)| owner.is_some_and(|owner| *owner != port))
        };
        let found = ip.or_else(touched).map(|(ip, owner)| (StationAddress::Ip(ip), owner.copied()));
        // A host may find in it what was not found here.
        let is_hidden = !claims.is_whole() && !self.bound.is_empty();
        found.or(is_hidden.then_some((StationAddress::Unreadable, None)))
    }

    /// Remembers whose the addresses of a frame are. Returns one that is another port's, if that was not reported yet.
    fn unusual(&mut self, port: PortId, claims: &Claims) -> Option<ForeignAddress> {
        let macs = claims.macs().filter(|mac| !is_group_address(*mac)).map(StationAddress::Mac);
        let mut found = None;
        for address in macs.chain(claims.ips().map(StationAddress::Ip)) {
            match self.seen.get(&address).copied() {
                Some(owner) if owner == port => {}
                Some(owner) if self.note(port, address, Some(owner)) => {
                    found = found.or(Some(ForeignAddress { address, owner: Some(owner), is_refused: false, is_new: true }));
                }
                Some(_) => {}
                None => {
                    let count = self.seen_of.entry(port).or_default();
                    if *count < MAX_SEEN {
                        *count += 1;
                        self.seen.insert(address, port);
                    }
                }
            }
        }
        found
    }

    /// Forgets what came from a port, but for its permanent address.
    pub(super) fn forget(&mut self, port: PortId, permanent: Option<[u8; 6]>) {
        self.seen.retain(|address, owner| *owner != port || permanent.map(StationAddress::Mac) == Some(*address));
        self.reported.retain(|(by, _)| *by != port);
        self.seen_of.remove(&port);
        self.reports.retain(|(by, _), _| *by != port);
        self.last.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VICTIM: PortId = PortId(0);
    const THIEF: PortId = PortId(1);
    const OTHER: PortId = PortId(2);

    fn mac(number: u8) -> [u8; 6] {
        [2, 0, 0, 0, 0, number]
    }

    fn ip(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    /// An IPv4 packet from these addresses.
    fn packet(source: [u8; 6], from: IpAddr) -> Vec<u8> {
        let IpAddr::V4(from) = from else { panic!("IPv4") };
        [&[2, 0, 0, 0, 0, 99][..], &source, &[8, 0, 0x45], &[0; 11], &from.octets(), &[10, 0, 0, 99]].concat()
    }

    /// An answer of ARP: an address is that of a station.
    fn arp(source: [u8; 6], sender: [u8; 6], from: IpAddr) -> Vec<u8> {
        let IpAddr::V4(from) = from else { panic!("IPv4") };
        [&[0xff; 6][..], &source, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &sender, &from.octets(), &[0; 10]].concat()
    }

    fn refused(found: Option<ForeignAddress>) -> Option<(StationAddress, Option<PortId>)> {
        found.map(|found| {
            assert!(found.is_refused, "{found:?}");
            (found.address, found.owner)
        })
    }

    #[test]
    fn the_addresses_of_a_bound_port_are_nobody_elses_and_it_has_no_others() {
        let mut stations = Stations::default();
        stations.bind(VICTIM, &[mac(1)], &[ip(1)]).unwrap();
        let gid = |number| StationAddress::Ip(mapped([10, 0, 0, number]));
        let own = |address| Some((address, Some(VICTIM)));
        for frame in [packet(mac(1), ip(1)), arp(mac(1), mac(1), ip(1)), arp(mac(1), mac(1), IpAddr::from([0; 4]))] {
            assert_eq!(stations.judge(VICTIM, &frame), None);
        }
        for port in [THIEF, OTHER] {
            for (frame, what) in [
                (packet(mac(1), ip(2)), own(StationAddress::Mac(mac(1)))),
                (packet(mac(2), ip(1)), own(gid(1))),
                (arp(mac(2), mac(2), ip(1)), own(gid(1))),
                (arp(mac(2), mac(1), ip(2)), own(StationAddress::Mac(mac(1)))),
                (packet(mac(2), ip(2)), None),
            ] {
                assert_eq!(refused(stations.judge(port, &frame).filter(|found| found.is_refused)), what);
            }
        }
        // What is nobody's is not the bound port's either.
        assert_eq!(refused(stations.judge(VICTIM, &packet(mac(7), ip(1)))), Some((StationAddress::Mac(mac(7)), None)));
        assert_eq!(refused(stations.judge(VICTIM, &packet(mac(1), ip(7)))), Some((gid(7), None)));
        // Each frame is refused, and new is the first.
        assert_eq!(stations.judge(VICTIM, &packet(mac(1), ip(7))).map(|found| found.is_new), Some(false));
        assert_eq!(stations.bind(THIEF, &[mac(2)], &[ip(1)]), Err(gid(1)));
        assert_eq!(stations.bind(THIEF, &[mac(1)], &[]), Err(StationAddress::Mac(mac(1))));
        stations.bind(THIEF, &[mac(3)], &[]).unwrap();
        assert_eq!(refused(stations.judge(THIEF, &packet(mac(2), ip(2)))), Some((StationAddress::Mac(mac(2)), None)));
        assert_eq!(stations.judge(THIEF, &packet(mac(3), ip(9))), None, "any address of IP that is nobody's");
    }

    /// Each of these changes what Linux 6.18 believes of the victim's address, or comes to it as a packet from there.
    #[test]
    fn no_disguise_takes_an_address_to_which_a_port_is_bound() {
        let net = |number| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number];
        let mut stations = Stations::default();
        stations.bind(VICTIM, &[mac(1)], &[ip(1), IpAddr::from(net(1))]).unwrap();
        stations.bind(OTHER, &[mac(3)], &[ip(3), IpAddr::from(net(3))]).unwrap();
        let behind = |frame: &[u8], tags: usize| [&frame[..12], &[0x81, 0, 0, 0].repeat(tags), &frame[12..]].concat();
        let of_ieee_802 = |mut frame: Vec<u8>| {
            frame[15] = 6;
            frame
        };
        let icmpv6 = |source: [u8; 6], from: [u8; 16], options: usize, message: &[u8]| {
            let kinds = [vec![60; options], vec![58]].concat();
            let mut frame = [&[0xff; 6][..], &source, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, kinds[0], 255]].concat();
            frame.extend([&from[..], &net(9)].concat());
            frame.extend(kinds[1..].iter().flat_map(|next| [*next, 0, 1, 4, 0, 0, 0, 0]));
            [&frame, message].concat()
        };
        let about = |kind: u8, number| [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &net(number)].concat();
        let probe = |source, number: u8| {
            let mut frame = arp(source, source, IpAddr::from([0; 4]));
            let at = frame.len() - 4;
            frame[at..].copy_from_slice(&[10, 0, 0, number]);
            frame
        };
        let redirect = |target, number| [about(137, target), net(number).to_vec()].concat();
        // Those of the one who is meant, in the name of another.
        let of = |source: [u8; 6], own: u8, number: u8| {
            [
                of_ieee_802(arp(source, source, ip(number))),
                behind(&arp(source, source, ip(number)), 5),
                behind(&packet(source, ip(number)), 5),
                behind(&packet(source, ip(number)), 300),
                icmpv6(source, net(own), 0, &about(136, number)),
                icmpv6(source, net(own), 9, &about(136, number)),
                icmpv6(source, [0; 16], 0, &about(135, number)),
                icmpv6(source, net(own), 1, &redirect(own, number)),
                icmpv6(source, net(own), 0, &redirect(number, own)),
                probe(source, number),
            ]
        };
        for (number, frame) in of(mac(1), 1, 1).into_iter().enumerate() {
            assert_eq!(stations.judge(VICTIM, &frame), None, "{number}: by the owner");
        }
        for (port, source, own) in [(OTHER, mac(3), 3), (THIEF, mac(2), 2)] {
            for (number, frame) in of(source, own, 1).into_iter().enumerate() {
                let found = refused(stations.judge(port, &frame)).unwrap();
                assert!(matches!(found, (StationAddress::Ip(_), Some(VICTIM))), "{number}: {found:?}");
            }
            // Whose addresses cannot be read, because they end first, or are not of Ethernet and IPv4.
            let advertisement = icmpv6(source, net(own), 2, &about(136, 1));
            let mut long = arp(source, source, ip(1));
            long[18] = 8;
            for frame in [&advertisement[..advertisement.len() - 1], &advertisement[..60], &behind(&long, 3), &long] {
                assert_eq!(refused(stations.judge(port, frame)), Some((StationAddress::Unreadable, None)));
            }
        }
        // What is nobody's may be probed.
        assert_eq!(stations.judge(OTHER, &probe(mac(3), 9)), None);
        let mut unbound = Stations::default();
        assert_eq!(unbound.judge(THIEF, &packet(mac(2), ip(2))[..20]), None, "nobody is bound");
    }

    #[test]
    fn the_link_local_address_belongs_to_its_mac_address() {
        let mut stations = Stations::default();
        stations.bind(VICTIM, &[mac(1)], &[ip(1)]).unwrap();
        let from = |source: [u8; 6], address: [u8; 16]| {
            [
                &[0x33, 0x33, 0, 0, 0, 1][..],
                &source,
                &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 59, 255],
                &address,
                &[0xff, 2],
                &[0; 14],
            ]
            .concat()
        };
        let own = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1];
        assert_eq!(stations.judge(VICTIM, &from(mac(1), own)), None);
        assert_eq!(refused(stations.judge(THIEF, &from(mac(2), own))), Some((StationAddress::Ip(own), Some(VICTIM))));
        let another = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 2];
        assert_eq!(refused(stations.judge(VICTIM, &from(mac(1), another))), Some((StationAddress::Ip(another), None)));
    }

    #[test]
    fn without_a_binding_who_takes_an_address_of_another_is_reported_once() {
        let mut stations = Stations::default();
        stations.add_permanent(VICTIM, mac(1));
        let reported = |stations: &mut Stations, port, frame: &[u8]| {
            let found = stations.judge(port, frame)?;
            assert!(!found.is_refused && found.is_new);
            Some((found.address, found.owner))
        };
        // The permanent one, before its owner has said anything; an address of IP that was seen.
        let taken = Some((StationAddress::Mac(mac(1)), Some(VICTIM)));
        assert_eq!(reported(&mut stations, THIEF, &packet(mac(1), ip(2))), taken);
        assert_eq!(reported(&mut stations, VICTIM, &packet(mac(1), ip(1))), None);
        let gid = Some((StationAddress::Ip(mapped([10, 0, 0, 1])), Some(VICTIM)));
        for frame in [arp(mac(2), mac(2), ip(1)), packet(mac(2), ip(1))] {
            assert_eq!(reported(&mut stations, OTHER, &frame), if frame[12..14] == [8, 6] { gid } else { None }, "once");
        }
        assert_eq!(reported(&mut stations, VICTIM, &packet(mac(1), ip(1))), None, "it is still the owner's");
        // What a guest had is free when its device was reset, but for the permanent address.
        stations.forget(VICTIM, Some(mac(1)));
        assert_eq!(reported(&mut stations, PortId(3), &packet(mac(3), ip(1))), None);
        assert_eq!(reported(&mut stations, PortId(3), &packet(mac(1), ip(1))), taken);
    }

    #[test]
    fn a_port_that_has_too_many_addresses_hides_nothing_of_others() {
        let mut stations = Stations::default();
        for number in 0..2 * MAX_SEEN as u32 {
            let [_, a, b, c] = number.to_be_bytes();
            stations.judge(THIEF, &packet([6, 0, 0, a, b, c], IpAddr::from([11, a, b, c])));
        }
        assert_eq!((stations.seen.len(), stations.reported.len()), (MAX_SEEN, 0));
        assert_eq!(stations.judge(VICTIM, &packet(mac(1), ip(1))), None);
        assert!(stations.judge(OTHER, &packet(mac(1), ip(3))).is_some_and(|found| found.owner == Some(VICTIM)));
    }
    #[test]
    fn whatever_a_thief_did_before_it_is_reported() {
        for is_bound in [false, true] {
            let mut stations = Stations::default();
            stations.add_permanent(VICTIM, mac(1));
            if is_bound {
                stations.bind(VICTIM, &[mac(1)], &[ip(1)]).unwrap();
                stations.bind(THIEF, &[mac(2)], &[ip(2)]).unwrap();
            }
            assert_eq!(stations.judge(VICTIM, &packet(mac(1), ip(1))), None);
            // Addresses of nobody, and of an accomplice.
            for number in 0..2 * MAX_SEEN as u32 {
                let [_, a, b, c] = number.to_be_bytes();
                let frame = packet([6, 0, 0, a, b, c], IpAddr::from([11, a, b, c]));
                stations.judge(if number < 100 { OTHER } else { THIEF }, &frame);
                stations.judge(THIEF, &frame);
            }
            let gid = StationAddress::Ip(mapped([10, 0, 0, 1]));
            let own = packet(mac(if is_bound { 2 } else { 7 }), ip(1));
            let found = stations.judge(THIEF, &own).unwrap();
            assert_eq!((found.address, found.owner, found.is_new), (gid, Some(VICTIM), true), "bound: {is_bound}");
            assert!(stations.reported.len() <= 3 * MAX_REPORTED + 1);
        }
    }
}
