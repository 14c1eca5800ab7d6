//! The addresses that an Ethernet frame says are its sender's.

use std::net::Ipv6Addr;

use bareverbs_mlx5_spec::{GlobalRouteHeader, Ipv4Header, Layout as _, View, ether_type};

/// Types of Ethernet that only this module looks for: ARP (RFC 826), an outer tag (IEEE 802.1ad), and RoCEv1, whose packets have a
/// global route behind the type (IBTA volume 1, annex A16).
const ARP: u16 = 0x0806;
const SERVICE_TAG: u16 = 0x88a8;
const ROCE_V1: u16 = 0x8915;
/// Tags of a frame that are looked behind.
const MAX_TAGS: usize = 4;
/// ARP between Ethernet and IPv4: kinds and lengths of the addresses.
const ARP_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// Where an ARP packet has the addresses of its sender.
const ARP_SENDER: usize = 8;
/// Extension headers of IPv6 before others: hop-by-hop options, routing, destination options (RFC 8200, 4). Neighbour discovery is
/// never in fragments (RFC 6980).
const EXTENSIONS: [u8; 3] = [0, 43, 60];
const MAX_EXTENSIONS: usize = 8;
const ICMPV6: u8 = 58;
/// Neighbour advertisement, and where it has the address that it tells of (RFC 4861, 4.4).
const ADVERTISEMENT: u8 = 136;
const ADVERTISED: usize = 8;
/// Addresses that are nobody's: no address yet, 0.0.0.0 and ::.
const NO_ADDRESSES: [[u8; 16]; 2] = [[0; 16], mapped([0; 4])];

/// Returns the IPv4-mapped address of one of IPv4 (RFC 4291, 2.5.5.2).
pub(super) const fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// Returns the link-local address that follows from a MAC address (RFC 4291, appendix A).
pub(super) const fn link_local([a, b, c, d, e, f]: [u8; 6]) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// What a frame claims for its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    /// Source address, and the sender's in ARP.
    macs: [Option<[u8; 6]>; 2],
    /// Source of IP or the sender's in ARP, and what a neighbour advertisement tells of.
    ips: [Option<[u8; 16]>; 2],
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Returns the address that a neighbour advertisement tells of, if an IPv6 packet is one.
fn advertised(packet: &[u8]) -> Option<[u8; 16]> {
    let header = View::<GlobalRouteHeader>::new(packet)?;
    let mut next = header.get(GlobalRouteHeader::NEXT_HEADER) as u8;
    let mut rest = packet.get(GlobalRouteHeader::SIZE..)?;
    for _ in 0..MAX_EXTENSIONS {
        if !EXTENSIONS.contains(&next) {
            break;
        }
        let [following, len] = chunk(rest, 0)?;
        next = following;
        rest = rest.get((usize::from(len) + 1) * 8..)?;
    }
    if next != ICMPV6 || rest.first() != Some(&ADVERTISEMENT) { None } else { chunk(rest, ADVERTISED) }
}

impl Claims {
    /// Reads those of a frame. Nothing else of it is verified.
    pub(super) fn of(frame: &[u8]) -> Self {
        let mut claims = Self { macs: [chunk(frame, 6), None], ..Self::default() };
        let mut at = 12;
        let mut found = chunk(frame, at).map(u16::from_be_bytes);
        for _ in 0..MAX_TAGS {
            if !matches!(found, Some(ether_type::VLAN | SERVICE_TAG)) {
                break;
            }
            at += 4;
            found = chunk(frame, at).map(u16::from_be_bytes);
        }
        let packet = frame.get(at + 2..).unwrap_or_default();
        match found {
            Some(ether_type::IPV4) => {
                claims.ips[0] = View::<Ipv4Header>::new(packet).map(|ip| mapped(ip.get(Ipv4Header::SOURCE).to_be_bytes()));
            }
            Some(ether_type::IPV6 | ROCE_V1) => {
                claims.ips = [
                    View::<GlobalRouteHeader>::new(packet)
                        .and_then(|ip| ip.bytes(GlobalRouteHeader::SOURCE_GID).first_chunk().copied()),
                    advertised(packet).filter(|_| found == Some(ether_type::IPV6)),
                ];
            }
            Some(ARP) if packet.starts_with(&ARP_IPV4) => {
                claims.macs[1] = chunk(packet, ARP_SENDER);
                claims.ips[0] = chunk(packet, ARP_SENDER + 6).map(mapped);
            }
            _ => {}
        }
        for ip in &mut claims.ips {
            ip.take_if(|ip| NO_ADDRESSES.contains(ip) || Ipv6Addr::from(*ip).is_multicast());
        }
        claims
    }

    /// Returns the MAC addresses.
    pub(super) fn macs(&self) -> impl Iterator<Item = [u8; 6]> {
        self.macs.into_iter().flatten()
    }

    /// Returns the IP addresses, those of IPv4 as IPv4-mapped ones.
    pub(super) fn ips(&self) -> impl Iterator<Item = [u8; 16]> {
        self.ips.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 5];

    /// `packet` of a type, behind these tags.
    fn frame(tags: &str, ether_type: u16, packet: &str) -> Vec<u8> {
        [&bytes("020000000009 020000000005")[..], &bytes(tags), &ether_type.to_be_bytes(), &bytes(packet)].concat()
    }

    fn claims(frame: &[u8]) -> (Vec<[u8; 6]>, Vec<[u8; 16]>) {
        let claims = Claims::of(frame);
        (claims.macs().collect(), claims.ips().collect())
    }

    #[test]
    fn the_sender_of_each_kind_of_packet() {
        let ipv6 = |last| [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let (source, target) = ("fe80000000000000 0000000000000005", "fe80000000000000 0000000000000007");
        let all = "ff020000000000000000000000000001";
        let advertisement = format!("8800 0000 20000000 {target} 0201020000000005");
        let neighbour = format!("60000000 0020 3aff {source} {all} {advertisement}");
        // The same behind hop-by-hop options.
        let hidden = format!("60000000 0028 00ff {source} {all} 3a00010400000000 {advertisement}");
        let solicitation = neighbour.replacen("8800", "8700", 1);
        let arp = "0001 0800 06 04 0002 020000000006 0a000005 020000000009 0a000009";
        let ipv4 = "45000028 00000000 4011 0000 0a000005 0a000009";
        for (tags, ether_type, packet, macs, ips) in [
            ("", 0x0800, ipv4, vec![SENDER], vec![mapped([10, 0, 0, 5])]),
            ("81000064", 0x0800, ipv4, vec![SENDER], vec![mapped([10, 0, 0, 5])]),
            ("88a80001 81000064", 0x0800, ipv4, vec![SENDER], vec![mapped([10, 0, 0, 5])]),
            ("", 0x0806, arp, vec![SENDER, [2, 0, 0, 0, 0, 6]], vec![mapped([10, 0, 0, 5])]),
            ("", 0x86dd, &neighbour, vec![SENDER], vec![ipv6(5), ipv6(7)]),
            ("", 0x86dd, &hidden, vec![SENDER], vec![ipv6(5), ipv6(7)]),
            ("", 0x86dd, &solicitation, vec![SENDER], vec![ipv6(5)]),
            ("", 0x8915, &neighbour, vec![SENDER], vec![ipv6(5)]),
            // Of a type that has none, and those of nobody: DHCP and the detection of duplicates.
            ("", 0x88b5, ipv4, vec![SENDER], vec![]),
            ("", 0x0800, &ipv4.replace("0a000005", "00000000"), vec![SENDER], vec![]),
            ("", 0x86dd, &solicitation.replace(source, "0000000000000000 0000000000000000"), vec![SENDER], vec![]),
        ] {
            assert_eq!(claims(&frame(tags, ether_type, packet)), (macs, ips), "{ether_type:#x} {tags}");
        }
    }

    #[test]
    fn part_of_a_frame_claims_part_of_it() {
        let whole = frame(
            "81000064",
            0x86dd,
            &format!("60000000 0020 00ff {} {} 3a00 {}", "05".repeat(16), "07".repeat(16), "0".repeat(12)),
        );
        for len in 0..whole.len() {
            let (macs, ips) = claims(&whole[..len]);
            assert_eq!((macs.len(), ips.len()), (usize::from(len >= 12), usize::from(len >= 18 + 40)), "{len}");
        }
    }
}
