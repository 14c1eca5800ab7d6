//! The addresses that an Ethernet frame says are its sender's.

use std::net::Ipv6Addr;

use bareverbs_mlx5_spec::{GlobalRouteHeader, Ipv4Header, Layout as _, View, ether_type};

/// Types of Ethernet that only this module looks for: ARP (RFC 826), an outer tag (IEEE 802.1ad), and RoCEv1, whose packets have a
/// global route behind the type (IBTA volume 1, annex A16).
const ARP: u16 = 0x0806;
const SERVICE_TAG: u16 = 0x88a8;
const ROCE_V1: u16 = 0x8915;
/// Lesser numbers in the place of a type are lengths. Behind one, this LLC header says that a type follows (RFC 1042).
const FIRST_TYPE: u16 = 0x600;
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
/// Where an ARP packet says how long its addresses are, which lengths those of Ethernet and IPv4 have, and where the addresses of
/// the sender and the target's address of IPv4 are. Kinds of hardware are not compared: hosts take that of IEEE 802 too.
const ARP_LENGTHS: usize = 4;
const ETHERNET_AND_IPV4: [u8; 2] = [6, 4];
const ARP_SENDER: usize = 8;
const ARP_TARGET: usize = 24;
/// Extension headers of IPv6 before others: hop-by-hop options, routing, destination options (RFC 8200, 4). Neighbour discovery is
/// never in fragments (RFC 6980).
const EXTENSIONS: [u8; 3] = [0, 43, 60];
const ICMPV6: u8 = 58;
/// Neighbour solicitation and advertisement, and redirect; where they have the address that they are about, and a redirect the one
/// whose way it changes (RFC 4861, 4.3 to 4.5).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const TARGET: usize = 8;
const REDIRECTED: usize = 24;
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
    /// What the sender does not claim, and only its owner may say: the address that a probe asks for, and those of a redirect.
    touched: [Option<[u8; 16]>; 2],
    /// Whether the frame was read to the last address that it has.
    is_whole: bool,
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Returns the type of a frame, and what is behind it. Tags are followed however many there are, as hosts do.
fn packet(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut rest = frame.get(12..)?;
    loop {
        let (found, behind) = rest.split_first_chunk()?;
        rest = match u16::from_be_bytes(*found) {
            ether_type::VLAN | SERVICE_TAG => behind.get(2..)?,
            ..FIRST_TYPE if behind.starts_with(&SNAP) => behind.get(SNAP.len()..)?,
            found => return Some((found, behind)),
        };
    }
}

/// Returns the message of ICMPv6 that an IPv6 packet has, if it has one, behind all extension headers. `None` if that cannot be said.
fn icmpv6(packet: &[u8]) -> Option<Option<&[u8]>> {
    let header = View::<GlobalRouteHeader>::new(packet)?;
    let mut next = header.get(GlobalRouteHeader::NEXT_HEADER) as u8;
    let mut rest = packet.get(GlobalRouteHeader::SIZE..)?;
    while EXTENSIONS.contains(&next) {
        let [following, len] = chunk(rest, 0)?;
        next = following;
        rest = rest.get((usize::from(len) + 1) * 8..)?;
    }
    Some((next == ICMPV6).then_some(rest))
}

impl Claims {
    /// Reads those of a frame. Nothing else of it is verified.
    pub(super) fn of(frame: &[u8]) -> Self {
        let mut claims = Self { macs: [chunk(frame, 6), None], ..Self::default() };
        claims.is_whole = claims.read(frame).is_some();
        for ip in claims.ips.iter_mut().chain(&mut claims.touched) {
            ip.take_if(|ip| NO_ADDRESSES.contains(ip) || Ipv6Addr::from(*ip).is_multicast());
        }
        claims
    }

    /// Notes the addresses behind the first ones. `None` if the frame ends before the last of them, or has none where they should be.
    fn read(&mut self, frame: &[u8]) -> Option<()> {
        let (found, packet) = packet(frame)?;
        match found {
            ether_type::IPV4 => {
                self.ips[0] = Some(mapped(View::<Ipv4Header>::new(packet)?.get(Ipv4Header::SOURCE).to_be_bytes()));
            }
            ether_type::IPV6 | ROCE_V1 => {
                let source = *View::<GlobalRouteHeader>::new(packet)?.bytes(GlobalRouteHeader::SOURCE_GID).first_chunk()?;
                self.ips[0] = Some(source);
                if found == ether_type::IPV6
                    && let Some(message) = icmpv6(packet)?
                {
                    self.read_icmpv6(source, message)?;
                }
            }
            ARP => {
                if chunk(packet, ARP_LENGTHS)? != ETHERNET_AND_IPV4 {
                    return None;
                }
                self.macs[1] = Some(chunk(packet, ARP_SENDER)?);
                let sender = chunk(packet, ARP_SENDER + 6)?;
                self.ips[0] = Some(mapped(sender));
                let target = chunk(packet, ARP_TARGET)?;
                self.touched[0] = (sender == [0; 4]).then_some(mapped(target));
            }
            _ => {}
        }
        Some(())
    }

    fn read_icmpv6(&mut self, source: [u8; 16], message: &[u8]) -> Option<()> {
        match *message.first()? {
            ADVERTISEMENT => self.ips[1] = Some(chunk(message, TARGET)?),
            SOLICITATION => {
                let target = chunk(message, TARGET)?;
                self.touched[0] = (source == [0; 16]).then_some(target);
            }
            REDIRECT => self.touched = [Some(chunk(message, TARGET)?), Some(chunk(message, REDIRECTED)?)],
            _ => {}
        }
        Some(())
    }

    /// Returns whether these are all. What is not read to its end may have others, where a host finds them.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns the IP addresses that are not the sender's, and whose owner would be harmed: who is about to take one gives it up when
    /// another probes it (RFC 5227, 2.1.1; RFC 4862, 5.4.3), and a redirect leads what is for one elsewhere.
    pub(super) fn touched(&self) -> impl Iterator<Item = [u8; 16]> {
        self.touched.into_iter().flatten()
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
            // Of hardware that is not Ethernet's, with tags without end, and behind a length and a type.
            ("", 0x0806, &arp.replacen("0001", "0006", 1), vec![SENDER, [2, 0, 0, 0, 0, 6]], vec![mapped([10, 0, 0, 5])]),
            (&"81000000".repeat(9), 0x0800, ipv4, vec![SENDER], vec![mapped([10, 0, 0, 5])]),
            ("81000000 0024 aaaa03 000000", 0x0800, ipv4, vec![SENDER], vec![mapped([10, 0, 0, 5])]),
        ] {
            let frame = frame(tags, ether_type, packet);
            assert_eq!(claims(&frame), (macs, ips), "{ether_type:#x} {tags}");
            assert!(Claims::of(&frame).is_whole());
        }
    }

    #[test]
    fn addresses_that_a_probe_or_a_redirect_touches() {
        let ipv6 = |last| [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let nobody = "0".repeat(32);
        let [source, target, other] = ["5", "7", "8"].map(|last| format!("fe80000000000000 000000000000000{last}"));
        let packet = |source: &str, message: &str| format!("60000000 0020 3aff {source} {target} {message}");
        let arp = |sender: &str| format!("0001 0800 06 04 0001 020000000005 {sender} 000000000000 0a000009");
        for (ether_type, packet, touched) in [
            (0x86dd, packet(&nobody, &format!("8700 0000 00000000 {target}")), vec![ipv6(7)]),
            (0x86dd, packet(&source, &format!("8700 0000 00000000 {target}")), vec![]),
            (0x86dd, packet(&source, &format!("8900 0000 00000000 {target} {other}")), vec![ipv6(7), ipv6(8)]),
            (0x0806, arp("00000000"), vec![mapped([10, 0, 0, 9])]),
            (0x0806, arp("0a000005"), vec![]),
        ] {
            let frame = frame("", ether_type, &packet);
            assert_eq!(Claims::of(&frame).touched().collect::<Vec<_>>(), touched, "{packet}");
            // Cut anywhere before its last address, it is not whole.
            for len in 0..frame.len() {
                let claims = Claims::of(&frame[..len]);
                assert!(!claims.is_whole() || claims.touched().count() == touched.len() && len >= 38, "{packet}: {len}");
            }
        }
        for (ether_type, packet) in [
            // ARP with longer addresses, options that go on behind the end, tags up to the end.
            (0x0806, arp("0a000005").replacen("06 04", "08 04", 1)),
            (0x86dd, format!("60000000 0008 3cff {source} {target} 3a01010400000000")),
            (0x8100, "0000 8100 0000 8100".to_owned()),
        ] {
            assert!(!Claims::of(&frame("", ether_type, &packet)).is_whole(), "{packet}");
        }
    }

    #[test]
    fn extension_headers_are_followed_to_the_end() {
        let target = "fe80000000000000 0000000000000007";
        let options = format!("{}3a00010400000000", "3c00010400000000".repeat(100));
        let packet =
            format!("60000000 0348 3cff {target} {target} {options} 8800 0000 20000000 fe80000000000000 0000000000000009");
        let (_, ips) = claims(&frame("", 0x86dd, &packet));
        assert_eq!(ips.last().map(|ip| ip[15]), Some(9));
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
