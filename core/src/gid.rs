//! GIDs of ports that have no subnet manager: an Ethernet port's are IP addresses, which the integrator sets.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Gid;

/// First 12 bytes of an IPv4 address as a GID (RFC 4291 2.5.5.2; IBTA volume 1, annex A17).
const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// MAC address of an Ethernet port, in the order of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// No port's address.
    pub const ZERO: Self = Self([0; 6]);

    /// Returns whether it is the address of a group of ports (IEEE 802, the I/G bit).
    pub const fn is_group(self) -> bool {
        let [first, ..] = self.0;
        first & 1 != 0
    }
}

/// Six numbers of two hexadecimal digits: `02:00:5e:00:53:01`.
impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Gid {
    /// Returns the link-local address that a port with this MAC address has without any configuration: `fe80::`, then the MAC
    /// address as an EUI-64 (RFC 4291, appendix A). Linux has it as the first GID of an Ethernet port.
    pub const fn link_local(mac: Mac) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Returns the MAC address of the port whose link-local address it is ([`Self::link_local`]). `None` for any other address, also
    /// a link-local one that is not made of a MAC address.
    pub fn link_local_mac(self) -> Option<Mac> {
        let [.., a, b, c, _, _, d, e, f] = self.0;
        let mac = Mac([a ^ 2, b, c, d, e, f]);
        (Self::link_local(mac) == self).then_some(mac)
    }

    /// Returns the IP address that it is on an Ethernet port.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Returns whether it is an IPv4 address, mapped into IPv6.
    pub fn is_ipv4(self) -> bool {
        self.0.starts_with(&IPV4_MAPPED)
    }

    /// Returns whether it is the address of a multicast group of Ethernet ports: of IPv6, or a mapped one of IPv4.
    pub fn is_ip_group(self) -> bool {
        self.ip().is_multicast()
    }

    /// Returns the MAC address of a multicast group: `01:00:5e` and 23 bits of an IPv4 address (RFC 1112), `33:33` and 32 bits of
    /// one of IPv6 (RFC 2464). `None` for an address that is no group's.
    pub fn group_mac(self) -> Option<Mac> {
        if !self.is_ip_group() {
            return None;
        }
        let [.., a, b, c, d] = self.0;
        Some(Mac(if self.is_ipv4() { [1, 0, 0x5e, b & 0x7f, c, d] } else { [0x33, 0x33, a, b, c, d] }))
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

/// An entry of the GID table of an Ethernet port: an address that the port has. Packets go out with it, and those to it are taken.
/// They are packets of RoCEv2, over IPv4 or IPv6 as the address is.
///
/// ```
/// use bareverbs::{GidEntry, Mac};
///
/// let mac = Mac([2, 0, 0, 0, 0, 1]);
/// let entry = GidEntry::new([192, 0, 2, 1], mac);
/// assert_eq!(entry.gid.ip().to_string(), "192.0.2.1");
/// assert_eq!(GidEntry::link_local(mac).gid.ip().to_string(), "fe80::ff:fe00:1");
/// let tagged = GidEntry { vlan: Some(100), ..entry };
/// assert_eq!(tagged.gid, entry.gid);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GidEntry {
    /// IP address. One of IPv4 is mapped into IPv6 (`::ffff:192.0.2.1`).
    pub gid: Gid,
    /// MAC address that packets come from, and that those to the entry have: the port's own ([`PortAttr::mac`](crate::PortAttr::mac)).
    pub mac: Mac,
    /// VLAN that packets are tagged with, 1 to 4094. `None`: they have no tag.
    pub vlan: Option<u16>,
}

impl GidEntry {
    /// Returns an entry without a VLAN.
    pub fn new(address: impl Into<IpAddr>, mac: Mac) -> Self {
        Self { gid: address.into().into(), mac, vlan: None }
    }

    /// Returns the entry of the address that a port has by its MAC address alone ([`Gid::link_local`]).
    pub const fn link_local(mac: Mac) -> Self {
        Self { gid: Gid::link_local(mac), mac, vlan: None }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn addresses_are_those_of_their_standards() {
        // RFC 4291, appendix A: 34-56-78-9A-BC-DE becomes 36-56-78-FF-FE-9A-BC-DE.
        let mac = Mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(mac.to_string(), "34:56:78:9a:bc:de");
        assert_eq!(Gid::link_local(mac).ip().to_string(), "fe80::3656:78ff:fe9a:bcde");
        assert_eq!(Gid::link_local(mac).link_local_mac(), Some(mac));
        // Of another subnet; a link-local address that somebody chose; one of IPv4.
        for other in ["2001:db8::3656:78ff:fe9a:bcde", "fe80::1", "192.0.2.7"] {
            assert_eq!(Gid::from(other.parse::<IpAddr>().unwrap()).link_local_mac(), None, "{other}");
        }
        let ipv4 = Gid::from(Ipv4Addr::new(192, 0, 2, 7));
        assert_eq!(ipv4.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!((ipv4.is_ipv4(), ipv4.ip().to_string().as_str()), (true, "192.0.2.7"));
        let ipv6 = Gid::from("2001:db8::1".parse::<IpAddr>().unwrap());
        assert_eq!((ipv6.is_ipv4(), ipv6.ip().to_string().as_str()), (false, "2001:db8::1"));
    }

    /// The example of RFC 2464 section 7, and that of RFC 1112 section 6.4: the lowest 23 bits.
    #[test]
    fn a_group_has_a_mac_address_of_its_own() {
        let mac = |address: &str| Gid::from(address.parse::<IpAddr>().unwrap()).group_mac();
        assert_eq!(mac("ff02::1:ff12:3456"), Some(Mac([0x33, 0x33, 0xff, 0x12, 0x34, 0x56])));
        assert_eq!(mac("224.0.0.1"), Some(Mac([1, 0, 0x5e, 0, 0, 1])));
        assert_eq!(mac("239.255.1.2"), Some(Mac([1, 0, 0x5e, 0x7f, 1, 2])));
        for address in ["fe80::1", "192.0.2.1", "240.0.0.1", "::"] {
            assert_eq!(mac(address), None, "{address}");
        }
        assert!(mac("239.255.1.2").unwrap().is_group() && !Mac([2, 0, 0, 0, 0, 1]).is_group());
    }
}
