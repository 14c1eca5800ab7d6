//! The headers of a frame: what flow tables match, what a hash is over, and the checksums.

use bareverbs_mlx5_spec::{GlobalRouteHeader, Ipv4Header, Layout, View, ether_type};

use super::flow_table::MatchParam;

/// Protocols of IP.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Type of an outer VLAN tag (IEEE 802.1ad).
const SERVICE_TAG: u16 = 0x88a8;
/// Bytes of the addresses of Ethernet.
pub(in crate::engine) const ADDRESSES: usize = 12;
/// Bytes of a VLAN tag.
pub(in crate::engine) const TAG: usize = 4;

/// An IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Ip {
    pub(in crate::engine) is_ipv4: bool,
    /// Where the header begins, and where what follows it does.
    at: usize,
    payload: usize,
    /// Where the packet ends by its length, or the frame if that is shorter; it may have padding behind the packet.
    end: usize,
    /// The frame is as long as the packet says. If it is not, the headers count all the same, but no checksum is right.
    is_whole: bool,
    protocol: u8,
    is_fragment: bool,
    tos: u8,
    ttl: u8,
    /// Addresses in wire order, those of IPv4 in the last four bytes.
    source: [u8; 16],
    destination: [u8; 16],
}

/// The headers of a frame as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Headers {
    pub(in crate::engine) destination: [u8; 6],
    source: [u8; 6],
    /// The tag next to the addresses: its type and its control information.
    pub(in crate::engine) tag: Option<(u16, u16)>,
    ether_type: u16,
    pub(in crate::engine) ip: Option<Ip>,
    /// Ports of TCP or UDP, of a packet that is no fragment.
    ports: Option<[u16; 2]>,
    tcp_flags: u16,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

impl Ip {
    fn v4(frame: &[u8], at: usize) -> Option<Self> {
        let header = View::<Ipv4Header>::new(frame.get(at..)?)?;
        let len = header.get(Ipv4Header::HEADER_LENGTH) as usize * 4;
        let end = at + header.get(Ipv4Header::TOTAL_LENGTH) as usize;
        let payload = at + len;
        if header.get(Ipv4Header::VERSION) != Ipv4Header::IPV4 || len < Ipv4Header::SIZE || payload > end.min(frame.len()) {
            return None;
        }
        let address = |address: u32| {
            let [a, b, c, d] = address.to_be_bytes();
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
        };
        Some(Self {
            is_ipv4: true,
            at,
            payload,
            end: end.min(frame.len()),
            is_whole: end <= frame.len(),
            protocol: header.get(Ipv4Header::PROTOCOL) as u8,
            is_fragment: header.is_set(Ipv4Header::FRAGMENT),
            tos: header.get(Ipv4Header::TYPE_OF_SERVICE) as u8,
            ttl: header.get(Ipv4Header::TIME_TO_LIVE) as u8,
            source: address(header.get(Ipv4Header::SOURCE)),
            destination: address(header.get(Ipv4Header::DESTINATION)),
        })
    }

    /// Extension headers are not followed: what is behind them is neither TCP nor UDP here.
    fn v6(frame: &[u8], at: usize) -> Option<Self> {
        let header = View::<GlobalRouteHeader>::new(frame.get(at..)?)?;
        let payload = at + GlobalRouteHeader::SIZE;
        let end = payload + header.get(GlobalRouteHeader::PAYLOAD_LENGTH) as usize;
        if header.get(GlobalRouteHeader::IP_VERSION) != GlobalRouteHeader::IPV6 {
            return None;
        }
        let address = |field| header.bytes(field).first_chunk().copied().unwrap_or_default();
        Some(Self {
            is_ipv4: false,
            at,
            payload,
            end: end.min(frame.len()),
            is_whole: end <= frame.len(),
            protocol: header.get(GlobalRouteHeader::NEXT_HEADER) as u8,
            is_fragment: false,
            tos: header.get(GlobalRouteHeader::TRAFFIC_CLASS) as u8,
            ttl: header.get(GlobalRouteHeader::HOP_LIMIT) as u8,
            source: address(GlobalRouteHeader::SOURCE_GID),
            destination: address(GlobalRouteHeader::DESTINATION_GID),
        })
    }

    /// Where the checksum of TCP or UDP stands, in a packet that is no fragment and long enough for the header.
    fn checksum_at(&self) -> Option<usize> {
        let (offset, least) = match self.protocol {
            TCP => (16, 20),
            UDP => (6, 8),
            _ => return None,
        };
        (!self.is_fragment && self.payload + least <= self.end).then_some(self.payload + offset)
    }

    /// The sum of the pseudo header of TCP and UDP (RFC 793, RFC 8200 8.1).
    fn pseudo_sum(&self) -> u32 {
        let addresses = sum(&self.source) + sum(&self.destination);
        addresses + u32::from(self.protocol) + (self.end - self.payload) as u32
    }

    const fn is_tcp(&self) -> bool {
        self.protocol == TCP
    }

    const fn is_udp(&self) -> bool {
        self.protocol == UDP
    }
}

impl Headers {
    /// Reads them. `None` of a frame without Ethernet header.
    pub(in crate::engine) fn of(frame: &[u8]) -> Option<Self> {
        let (destination, rest) = frame.split_first_chunk()?;
        let source = rest.first_chunk()?;
        let mut at = ADDRESSES;
        let mut found = word(frame, at)?;
        let mut tag = None;
        if found == ether_type::VLAN || found == SERVICE_TAG {
            tag = Some((found, word(frame, at + 2)?));
            at += TAG;
            found = word(frame, at)?;
        }
        at += 2;
        let ip = match found {
            ether_type::IPV4 => Ip::v4(frame, at),
            ether_type::IPV6 => Ip::v6(frame, at),
            _ => None,
        };
        let with_ports = ip.filter(|ip| ip.checksum_at().is_some());
        let ports = with_ports.and_then(|ip| Some([word(frame, ip.payload)?, word(frame, ip.payload + 2)?]));
        let tcp_flags = with_ports.filter(Ip::is_tcp).and_then(|ip| word(frame, ip.payload + 12)).unwrap_or(0) & 0x1ff;
        Some(Self { destination: *destination, source: *source, tag, ether_type: found, ip, ports, tcp_flags })
    }

    /// Returns the frame's fields as flow tables match them (`fte_match_param`: `fte_match_set_lyr_2_4` of the outer headers).
    pub(in crate::engine) fn match_param(&self) -> MatchParam {
        let mut param = [0; 128];
        let mut put = |at: usize, bytes: &[u8]| {
            param.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to |= *from);
        };
        put(0, &self.source);
        put(6, &self.ether_type.to_be_bytes());
        put(8, &self.destination);
        if let Some((kind, control)) = self.tag {
            put(14, &control.to_be_bytes());
            // cvlan_tag, svlan_tag.
            put(18, &[if kind == ether_type::VLAN { 1 << 7 } else { 1 << 6 }]);
        }
        if let Some(ip) = &self.ip {
            put(16, &[ip.protocol, ip.tos]);
            // frag, ip_version.
            put(18, &[u8::from(ip.is_fragment) << 5 | (if ip.is_ipv4 { 4 } else { 6 }) << 1]);
            put(27, &[ip.ttl]);
            put(32, &ip.source);
            put(48, &ip.destination);
            if let Some([source, destination]) = self.ports {
                let at = if ip.is_tcp() { 20 } else { 28 };
                put(at, &source.to_be_bytes());
                put(at + 2, &destination.to_be_bytes());
            }
        }
        put(18, &self.tcp_flags.to_be_bytes());
        param
    }

    /// Returns the hash over chosen fields (`rx_hash_field_select`: addresses of source and destination, ports of both), and
    /// the kind that a completion says: IP in bits 3..2, TCP or UDP in bits 7..6.
    pub(in crate::engine) fn hash(&self, key: &[u8; 40], fields: u32) -> (u32, u8) {
        let Some(ip) = &self.ip else { return (0, 0) };
        let address = |address: &[u8; 16]| address.iter().skip(if ip.is_ipv4 { 12 } else { 0 }).copied().collect::<Vec<u8>>();
        let mut bytes = Vec::new();
        let mut kind = 0;
        for (bit, address_of) in [(0, &ip.source), (1, &ip.destination)] {
            if fields >> bit & 1 != 0 {
                bytes.extend(address(address_of));
                kind |= if ip.is_ipv4 { 1 << 2 } else { 2 << 2 };
            }
        }
        if let Some(ports) = self.ports {
            for (bit, port) in [2, 3].into_iter().zip(ports) {
                if fields >> bit & 1 != 0 {
                    bytes.extend(port.to_be_bytes());
                    kind |= if ip.is_tcp() { 1 << 6 } else { 2 << 6 };
                }
            }
        }
        (toeplitz(key, bytes.into_iter()), kind)
    }

    /// Returns the kinds of headers as a completion says them: IP in bits 3..2, TCP or UDP in bits 6..4.
    pub(in crate::engine) fn kinds(&self) -> u8 {
        let Some(ip) = &self.ip else { return 0 };
        let of_ip = if ip.is_ipv4 { 2 << 2 } else { 1 << 2 };
        let of_transport = match self.ports {
            Some(_) if ip.is_udp() => 2 << 4,
            Some(_) if ip.is_tcp() => 1 << 4,
            _ => 0,
        };
        of_ip | of_transport
    }
}

/// Returns the sum of big-endian words, an odd byte at the end being the upper half of one (RFC 1071).
fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    words + rest.first().map_or(0, |last| u32::from(*last) << 8)
}

fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    (once + (once >> 16)) as u16
}

/// Returns the sum over an IP packet, header included, in ones' complement.
pub(in crate::engine) fn packet_sum(frame: &[u8], ip: &Ip) -> u16 {
    fold(sum(frame.get(ip.at..ip.end).unwrap_or_default()))
}

/// Returns whether the checksum of the IP header is right, which IPv6 does not have, and whether that of TCP or UDP is there
/// and right.
pub(in crate::engine) fn checksums_are_right(frame: &[u8], ip: &Ip) -> [bool; 2] {
    let header = !ip.is_ipv4 || fold(sum(frame.get(ip.at..ip.payload).unwrap_or_default())) == u16::MAX;
    let transport = ip.checksum_at().filter(|_| ip.is_whole).is_some_and(|at| {
        let is_absent = ip.is_udp() && ip.is_ipv4 && word(frame, at) == Some(0);
        let whole = ip.pseudo_sum() + sum(frame.get(ip.payload..ip.end).unwrap_or_default());
        is_absent || fold(whole) == u16::MAX
    });
    [header, transport]
}

fn put_word(frame: &mut [u8], at: usize, word: u16) {
    frame.iter_mut().skip(at).zip(word.to_be_bytes()).for_each(|(to, from)| *to = from);
}

/// Computes the checksums that a WQE asks for, whatever stands there. Others stay as they are.
pub(in crate::engine) fn fill_checksums(frame: &mut [u8], of_header: bool, of_transport: bool) {
    let Some(ip) = Headers::of(frame).and_then(|headers| headers.ip).filter(|ip| ip.is_whole) else { return };
    if of_header && ip.is_ipv4 {
        put_word(frame, ip.at + 10, 0);
        let header = fold(sum(frame.get(ip.at..ip.payload).unwrap_or_default()));
        put_word(frame, ip.at + 10, !header);
    }
    if of_transport && let Some(at) = ip.checksum_at() {
        put_word(frame, at, 0);
        let whole = fold(ip.pseudo_sum() + sum(frame.get(ip.payload..ip.end).unwrap_or_default()));
        // 0 would say that there is none.
        let value = if ip.is_udp() && whole == u16::MAX { u16::MAX } else { !whole };
        put_word(frame, at, value);
    }
}

/// Cuts a message into frames of at most `size` bytes behind the headers (TSO). Each gets the headers with its own lengths,
/// identification, sequence number and flags. Checksums are not filled in. `None` if the headers are not those of TCP or UDP
/// over IP.
pub(in crate::engine) fn segment(headers: &[u8], message: &[u8], size: usize) -> Option<Vec<Vec<u8>>> {
    /// FIN and PSH, which only the last has; CWR, which only the first has.
    const LAST: u8 = 0x09;
    const FIRST: u8 = 0x80;
    let at = if Headers::of(headers)?.tag.is_some() { ADDRESSES + TAG + 2 } else { ADDRESSES + 2 };
    let is_ipv4 = headers.get(at)? >> 4 == 4;
    // The length that they say is that of the whole message, or none.
    let mut own = headers.to_vec();
    let from_ip = u16::try_from(headers.len().checked_sub(at)?).ok()?;
    if is_ipv4 {
        put_word(&mut own, at + 2, from_ip);
    } else {
        put_word(&mut own, at + 4, from_ip.checked_sub(GlobalRouteHeader::SIZE as u16)?);
    }
    let ip = Headers::of(&own)?.ip?;
    ip.checksum_at()?;
    if size == 0 {
        return None;
    }
    let identification = word(headers, ip.at + 4)?;
    let sequence = u32::from(word(headers, ip.payload + 4)?) << 16 | u32::from(word(headers, ip.payload + 6)?);
    let count = message.len().div_ceil(size);
    let frames = message.chunks(size).enumerate().map(|(number, part)| {
        let mut frame = [headers, part].concat();
        let total = frame.len();
        let len = |at: usize| u16::try_from(total - at).unwrap_or(u16::MAX);
        if is_ipv4 {
            put_word(&mut frame, ip.at + 2, len(ip.at));
            put_word(&mut frame, ip.at + 4, identification.wrapping_add(number as u16));
        } else {
            put_word(&mut frame, ip.at + 4, len(ip.payload));
        }
        if ip.is_tcp() {
            let place = sequence.wrapping_add((number * size) as u32);
            put_word(&mut frame, ip.payload + 4, (place >> 16) as u16);
            put_word(&mut frame, ip.payload + 6, place as u16);
            if let Some(flags) = frame.get_mut(ip.payload + 13) {
                *flags &= if number + 1 == count { !0 } else { !LAST };
                *flags &= if number == 0 { !0 } else { !FIRST };
            }
        } else {
            put_word(&mut frame, ip.payload + 4, len(ip.payload));
        }
        frame
    });
    Some(frames.collect())
}

/// Returns the Toeplitz hash of bytes with a key.
fn toeplitz(key: &[u8; 40], bytes: impl Iterator<Item = u8>) -> u32 {
    let mut hash = 0;
    for (at, byte) in bytes.enumerate() {
        // The 40 bits of the key from this byte on.
        let bits = key.iter().copied().chain(std::iter::repeat(0)).skip(at).take(5);
        let window = bits.fold(0_u64, |bits, byte| bits << 8 | u64::from(byte));
        for bit in 0..8 {
            if byte << bit & 0x80 != 0 {
                hash ^= (window >> (8 - bit)) as u32;
            }
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    /// The key and vectors of Microsoft's "Verifying the RSS Hash Calculation".
    #[test]
    fn the_published_hashes() {
        let key: [u8; 40] =
            bytes("6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa").try_into().unwrap();
        for (source, destination, ports, with_ports, addresses) in [
            ([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766], 0x51cc_c178_u32, 0x323e_8fc2_u32),
            ([199, 92, 111, 2], [65, 69, 140, 83], [14230, 4739], 0xc626_b0ea, 0xd718_262a),
            ([24, 19, 198, 95], [12, 22, 207, 184], [12898, 38024], 0x5c2b_394a, 0xd2d0_a5de),
        ] {
            let mut frame = vec![0; 14 + 40];
            frame[12] = 8;
            frame[14] = 0x45;
            frame[17] = 40;
            frame[23] = 6;
            frame[26..30].copy_from_slice(&source);
            frame[30..34].copy_from_slice(&destination);
            frame[34..36].copy_from_slice(&u16::to_be_bytes(ports[0]));
            frame[36..38].copy_from_slice(&u16::to_be_bytes(ports[1]));
            let headers = Headers::of(&frame).unwrap();
            assert_eq!(headers.hash(&key, 0b1111), (with_ports, 1 << 2 | 1 << 6));
            assert_eq!(headers.hash(&key, 0b0011), (addresses, 1 << 2));
            assert_eq!(headers.kinds(), 2 << 2 | 1 << 4);
        }
    }

    /// The example of Scapy's RoCE tests, whose IPv4 header has a right checksum.
    fn scapy() -> Vec<u8> {
        bytes(
            "248a07a8fa22248a07a8fa220800 45010040047840004011b4d5c0a80007c0a80007 c00012b7002caca2
             2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3",
        )
    }

    #[test]
    fn checksums_of_another_implementation() {
        // Its checksum of UDP is of a packet that was not whole yet.
        let mut frame = scapy();
        frame[24..26].fill(0);
        fill_checksums(&mut frame, true, true);
        assert_eq!(frame[14..34], scapy()[14..34]);
        let ip = Headers::of(&frame).unwrap().ip.unwrap();
        assert_eq!(checksums_are_right(&frame, &ip), [true, true]);
        let right = frame.clone();
        for (at, value) in [(24, 0x12), (40, 0x34)] {
            frame[at] ^= value;
        }
        assert_eq!(checksums_are_right(&frame, &ip), [false, false]);
        let mut of_header = frame.clone();
        fill_checksums(&mut of_header, true, false);
        assert_eq!(checksums_are_right(&of_header, &ip), [true, false]);
        fill_checksums(&mut frame, true, true);
        assert_eq!(frame, right);
        // The whole packet: its header sums up to 0xffff, so what is left is the rest.
        assert_eq!(packet_sum(&right, &ip), fold(sum(&right[34..])));
        // No checksum of UDP is no wrong one.
        frame[40..42].fill(0);
        assert_eq!(checksums_are_right(&frame, &ip), [true, true]);
    }

    /// rdma-core's tests of flows send such packets over IPv6: the length that they say has the header in it.
    #[test]
    fn a_packet_that_says_it_is_longer_is_matched_without_a_right_checksum() {
        let mut frame = vec![0; 14 + 40 + 8];
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame[14..22].copy_from_slice(&[0x60, 0, 0, 0, 0, 8, 17, 64]);
        frame[54..60].copy_from_slice(&[0x12, 0x34, 0x56, 0x78, 0, 8]);
        fill_checksums(&mut frame, true, true);
        let right = Headers::of(&frame).unwrap();
        assert_eq!(checksums_are_right(&frame, &right.ip.unwrap()), [true, true]);
        frame[19] += 40;
        let longer = Headers::of(&frame).unwrap();
        assert_eq!((longer.match_param(), longer.kinds()), (right.match_param(), right.kinds()));
        assert_eq!(longer.match_param()[28..32], [0x12, 0x34, 0x56, 0x78]);
        assert_eq!(checksums_are_right(&frame, &longer.ip.unwrap()), [true, false]);
        let before = frame.clone();
        fill_checksums(&mut frame, true, true);
        assert_eq!(frame, before, "nobody knows what it would be over");
    }

    /// `l3_hdr_type` and `l4_hdr_type` of a completion, as `mlx5_ifc.h` and Linux's `mlx5/device.h` have them.
    #[test]
    fn a_completion_says_which_headers_there_are() {
        // ICMP has no ports; nor has what is shorter than them.
        for (protocol, kinds) in [(17, 2 << 2 | 2 << 4), (6, 2 << 2 | 1 << 4), (1, 2 << 2), (132, 2 << 2)] {
            let mut frame = scapy();
            frame[23] = protocol;
            assert_eq!(Headers::of(&frame).unwrap().kinds(), kinds, "{protocol}");
        }
        let mut other = scapy();
        other[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(Headers::of(&other).unwrap().kinds(), 0);
    }

    /// `fte_match_set_lyr_2_4`, by its offsets in `mlx5_ifc.h`.
    #[test]
    fn the_fields_that_tables_match() {
        let mut tagged = scapy();
        tagged.splice(12..12, [0x81, 0x00, 0xa1, 0x23]);
        let param = Headers::of(&tagged).unwrap().match_param();
        assert_eq!((&param[..6], &param[6..8], &param[8..14]), (&tagged[6..12], &[8, 0][..], &tagged[..6]));
        // Priority and identifier; protocol, type of service; cvlan_tag, ip_version 4.
        assert_eq!(param[14..20], [0xa1, 0x23, 17, 1, 0x80 | 4 << 1, 0]);
        assert_eq!((param[27], &param[28..32], &param[20..24]), (64, &[0xc0, 0, 0x12, 0xb7][..], &[0; 4][..]));
        assert_eq!((&param[44..48], &param[60..64]), (&[192, 168, 0, 7][..], &[192, 168, 0, 7][..]));
        assert_eq!(Headers::of(&scapy()).unwrap().match_param()[18], 4 << 1, "no tag");
        tagged[12..14].copy_from_slice(&[0x88, 0xa8]);
        assert_eq!(Headers::of(&tagged).unwrap().match_param()[18], 0x40 | 4 << 1, "svlan_tag");
        for len in 0..tagged.len() {
            let headers = Headers::of(&tagged[..len]);
            assert_eq!(headers.is_some(), len >= 18, "{len} bytes");
            let ip = headers.and_then(|headers| headers.ip);
            assert_eq!(ip.is_some(), len >= 18 + 20, "{len} bytes");
            assert!(ip.is_none_or(|ip| !checksums_are_right(&tagged[..len], &ip)[1]), "its length says more");
        }
    }

    #[test]
    fn a_message_is_cut_and_each_part_is_a_right_frame() {
        for (is_ipv4, tag) in [(true, ""), (false, ""), (true, "8100 0123"), (false, "8100 0123")] {
            let ip = if is_ipv4 {
                bytes("0800 4500 0000 1234 4000 4006 0000 0a000001 0a000002")
            } else {
                bytes("86dd 60000000 0000 06 40 20010db8000000000000000000000001 20010db8000000000000000000000002")
            };
            // CWR, ACK, PSH and FIN.
            let tcp = bytes("1000 2000 fffffff0 00000001 5099 ffff 1111 0000");
            let headers = [vec![2; 12], bytes(tag), ip, tcp].concat();
            let message: Vec<u8> = (0..250).collect();
            let frames = segment(&headers, &message, 100).unwrap();
            let mut whole: Vec<u8> = Vec::new();
            for (number, frame) in frames.into_iter().enumerate() {
                let mut frame = frame;
                fill_checksums(&mut frame, true, true);
                let found = Headers::of(&frame).unwrap().ip.unwrap();
                assert_eq!((found.end, checksums_are_right(&frame, &found)), (frame.len(), [true, true]));
                let tcp = headers.len() - 20;
                let sequence = u32::from_be_bytes(frame[tcp + 4..tcp + 8].try_into().unwrap());
                assert_eq!(sequence, 0xffff_fff0_u32.wrapping_add(number as u32 * 100));
                assert_eq!(frame[tcp + 13], [0x90, 0x10, 0x19][number], "flags");
                if is_ipv4 {
                    assert_eq!(word(&frame, headers.len() - 36), Some(0x1234 + number as u16));
                }
                whole.extend(&frame[headers.len()..]);
            }
            assert_eq!(whole, message);
            assert_eq!(segment(&headers, &message, 0), None);
            for len in 0..headers.len() {
                assert_eq!(segment(&headers[..len], &message, 100), None, "{len} bytes of headers");
            }
        }
    }
}
