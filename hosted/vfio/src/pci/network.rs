//! Addresses and routes of network interfaces, from procfs.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::sysfs::Sysfs;

/// Flags of a route in `/proc/net/route` and `/proc/net/ipv6_route` (linux/route.h, linux/ipv6_route.h): usable, an anycast
/// address, an address of this machine.
const RTF_UP: u32 = 1;
const RTF_ANYCAST: u32 = 0x0010_0000;
const RTF_LOCAL: u32 = 0x8000_0000;

/// A range of addresses, as "192.0.2.0/24".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u8,
}

/// A route of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    interface: String,
    to: Network,
    has_gateway: bool,
}

/// What an interface carries, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Addresses with their prefix lengths.
    pub(crate) addresses: Vec<String>,
    /// Destinations of routes, except the default and the networks of the addresses.
    pub(crate) routes: Vec<String>,
}

/// Addresses and routes of a machine. Those that the kernel makes for each interface (link-local, multicast) are not included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Networks {
    addresses: Vec<(String, Network)>,
    routes: Vec<Route>,
}

impl Network {
    const fn is_default(self) -> bool {
        self.prefix == 0
    }

    fn contains(self, address: IpAddr) -> bool {
        let bits = |address| match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let ((own, width), (other, other_width)) = (bits(self.address), bits(address));
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
        width == other_width && own & mask == other & mask
    }

    /// Whether the kernel makes it without being asked: link-local unicast, and multicast.
    const fn is_automatic(self) -> bool {
        match self.address {
            IpAddr::V4(_) => false,
            IpAddr::V6(address) => address.is_unicast_link_local() || address.is_multicast(),
        }
    }

    fn text(self) -> String {
        format!("{}/{}", self.address, self.prefix)
    }
}

impl Networks {
    /// Reads them. A file that is not there has none.
    pub(crate) fn of(sysfs: &Sysfs) -> Self {
        let table = |name: &str| fs::read_to_string(sysfs.proc(name)).unwrap_or_default();
        let mut routes: Vec<_> = table("net/route").lines().skip(1).filter_map(ipv4_route).collect();
        routes.extend(table("net/ipv6_route").lines().filter_map(ipv6_route));
        let mut addresses: Vec<_> = table("net/if_inet6").lines().filter_map(ipv6_address).collect();
        // The kernel lists its IPv4 addresses without their interfaces, which the routes to their networks name.
        for address in ipv4_addresses(&table("net/fib_trie")) {
            let address = IpAddr::V4(address);
            let near = routes.iter().filter(|route| !route.has_gateway && !route.to.is_default() && route.to.contains(address));
            let longest = near.clone().map(|route| route.to.prefix).max();
            let near = near.filter(|route| Some(route.to.prefix) == longest);
            addresses.extend(near.map(|route| (route.interface.clone(), Network { address, prefix: route.to.prefix })));
        }
        Self { addresses, routes }
    }

    /// Returns what an interface carries.
    pub(crate) fn carried_by(&self, interface: &str) -> Carried {
        let own: Vec<_> = self.addresses.iter().filter(|(name, _)| name == interface).map(|(_, network)| *network).collect();
        // The network of an address goes with it.
        let is_of_address = |route: &&Route| {
            !route.has_gateway && own.iter().any(|own| own.prefix == route.to.prefix && route.to.contains(own.address))
        };
        let routes = self.routes.iter().filter(|route| route.interface == interface && !route.to.is_default());
        Carried {
            addresses: own.iter().map(|network| network.text()).collect(),
            routes: routes.filter(|route| !is_of_address(route)).map(|route| route.to.text()).collect(),
        }
    }

    /// Returns the first of these interfaces that has a default route.
    pub(crate) fn default_route<'a>(&self, interfaces: &'a [String]) -> Option<&'a String> {
        let has = |interface: &&String| self.routes.iter().any(|route| route.to.is_default() && route.interface == **interface);
        interfaces.iter().find(has)
    }
}

/// Interface, destination, gateway, flags, references, uses, metric, mask: numbers as the CPU stores the bytes of the network.
fn ipv4_route(line: &str) -> Option<Route> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [interface, destination, gateway, flags, _, _, _, mask, ..] = words.as_slice() else { return None };
    let number = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let address = |digits| number(digits).map(|number| Ipv4Addr::from(number.to_ne_bytes()));
    if number(flags)? & RTF_UP == 0 {
        return None;
    }
    let prefix = address(mask)?.to_bits().leading_ones() as u8;
    let to = Network { address: IpAddr::V4(address(destination)?), prefix };
    Some(Route { interface: (*interface).into(), to, has_gateway: number(gateway)? != 0 })
}

/// Destination, its prefix length, source, its prefix length, next hop, metric, users, uses, flags, interface.
fn ipv6_route(line: &str) -> Option<Route> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [destination, prefix, _, _, next, _, _, _, flags, interface] = words.as_slice() else { return None };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let to = ipv6_network(destination, prefix)?;
    // The kernel's own "unreachable" default is on the loopback interface.
    if flags & RTF_UP == 0 || flags & (RTF_ANYCAST | RTF_LOCAL) != 0 || *interface == "lo" || to.is_automatic() {
        return None;
    }
    Some(Route { interface: (*interface).into(), to, has_gateway: next.bytes().any(|digit| digit != b'0') })
}

/// Address, number of the interface, prefix length, scope, flags, interface.
fn ipv6_address(line: &str) -> Option<(String, Network)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [address, _, prefix, _, _, interface] = words.as_slice() else { return None };
    let network = ipv6_network(address, prefix)?;
    (!network.is_automatic()).then(|| ((*interface).into(), network))
}

fn ipv6_network(address: &str, prefix: &str) -> Option<Network> {
    let (address, prefix) = (u128::from_str_radix(address, 16).ok()?, u8::from_str_radix(prefix, 16).ok()?);
    (prefix <= 128).then_some(Network { address: IpAddr::V6(Ipv6Addr::from_bits(address)), prefix })
}

/// Returns the addresses of this machine: each is a leaf of the trie, and the line behind it says so. Each table has them.
fn ipv4_addresses(trie: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut leaf = None;
    for line in trie.lines() {
        if let Some(address) = line.trim_start().strip_prefix("|-- ") {
            leaf = address.trim().parse().ok();
        } else if line.trim() == "/32 host LOCAL"
            && let Some(address) = leaf.filter(|address| !found.contains(address))
        {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses() {
        let network = |text: &str, prefix| Network { address: text.parse().unwrap(), prefix };
        for (outer, prefix, address, is_inside) in [
            ("192.0.2.0", 24, "192.0.2.255", true),
            ("192.0.2.0", 24, "192.0.3.0", false),
            ("192.0.2.7", 32, "192.0.2.7", true),
            ("192.0.2.7", 32, "192.0.2.6", false),
            ("0.0.0.0", 0, "203.0.113.1", true),
            ("2001:db8::", 32, "2001:db8:1::5", true),
            ("2001:db8::", 32, "2001:db9::", false),
            ("::", 0, "192.0.2.1", false),
            ("::", 0, "2001:db8::1", true),
        ] {
            assert_eq!(network(outer, prefix).contains(address.parse().unwrap()), is_inside, "{outer}/{prefix} {address}");
        }
    }

    /// Flags of linux/route.h and linux/ipv6_route.h: up, gateway, anycast, an address of this machine.
    #[test]
    fn routes_that_are_down_or_to_this_machine_are_none() {
        let v4 = |flags: &str| ipv4_route(&format!("eth0\t000200C0\t00000000\t{flags}\t0\t0\t0\t00FFFFFF\t0\t0\t0"));
        assert!(v4("0001").is_some() && v4("0003").is_some());
        assert!(v4("0000").is_none() && v4("0002").is_none());
        let (to, zero) = (format!("20010db8{}", "0".repeat(24)), "0".repeat(32));
        let v6 = |flags: &str, name: &str| ipv6_route(&format!("{to} 20 {zero} 00 {zero} 400 1 0 {flags} {name}"));
        let route = v6("00000001", "eth0").unwrap();
        assert_eq!((route.to.text(), route.interface.as_str(), route.has_gateway), ("2001:db8::/32".into(), "eth0", false));
        for flags in ["00000000", "00000002", "00100001", "80000001", "80100001"] {
            assert_eq!(v6(flags, "eth0"), None, "{flags}");
        }
        assert_eq!(v6("00000001", "lo"), None);
    }

    /// The route to the network of an address goes with the address. Others of the same length or to a part of it are named.
    #[test]
    fn routes_beside_and_within_the_network_of_an_address_are_named() {
        let network = |text: &str, prefix| Network { address: text.parse().unwrap(), prefix };
        let route = |to: &str, prefix, has_gateway| Route { interface: "eth0".into(), to: network(to, prefix), has_gateway };
        let networks = Networks {
            addresses: vec![("eth0".into(), network("192.0.2.10", 24)), ("eth1".into(), network("198.51.100.1", 24))],
            routes: vec![
                route("192.0.2.0", 24, false),
                route("192.0.3.0", 24, false),
                route("192.0.2.0", 25, false),
                route("198.51.100.0", 24, false),
                route("192.0.2.0", 24, true),
                route("0.0.0.0", 0, true),
            ],
        };
        let carried = networks.carried_by("eth0");
        assert_eq!(carried.addresses, ["192.0.2.10/24"]);
        assert_eq!(carried.routes, ["192.0.3.0/24", "192.0.2.0/25", "198.51.100.0/24", "192.0.2.0/24"]);
        assert_eq!(networks.carried_by("eth1").routes, [] as [String; 0]);
    }

    #[test]
    fn lines_that_are_none_are_skipped() {
        for line in ["", "eth0", "eth0\tzz\t0\t1\t0\t0\t0\t0", "eth0\t0\t0\t0\t0\t0\t0\t0"] {
            assert_eq!(ipv4_route(line), None, "{line}");
        }
        let zero = "0".repeat(32);
        for line in ["", "1 2 3", &format!("{zero} 81 {zero} 00 {zero} 0 0 0 00000001 eth0")] {
            assert_eq!(ipv6_route(line), None, "{line}");
        }
        assert_eq!(ipv6_address("x 1 40 00 80 eth0"), None);
        assert_eq!(ipv4_addresses("  |-- no address\n     /32 host LOCAL\n"), [] as [Ipv4Addr; 0]);
    }
}
