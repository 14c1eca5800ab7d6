//! RoCEv2 packets against bytes from elsewhere, there and back, and cut and flipped.

use crate::packet::{
    Addressing, Bth, CongestionNotification, Deth, Grh, IpRoute, Ipv4Route, Link, LinkAddress, LinkCompletion, Opcode,
    Operation, Packet, PacketError, PacketFields, Place, RoceV2Address, RoceV2Link, Transport, VlanTag, is_marked,
    mark_congestion,
};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The transport part of Scapy's examples for RoCE (`test/contrib/roce.uts`), before the ICRC.
const SCAPY: &str = "2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000";
const MAC: [u8; 6] = [0x24, 0x8a, 0x07, 0xa8, 0xfa, 0x22];

/// An example of Scapy over IPv4.
fn scapy_v4() -> Vec<u8> {
    let headers = "248a07a8fa22248a07a8fa220800 45010040047840004011b4d5c0a80007c0a80007 c00012b7002caca2";
    [bytes(headers), bytes(SCAPY), bytes("78f353f3")].concat()
}

/// An example of Scapy over IPv6.
fn scapy_v6() -> Vec<u8> {
    let headers = "248a07a8fa22248a07a8fa2286dd 6e21face002c11ff 20220000000000000000000000001023
                   20230000000000000000000000001024 c00012b7002ce7c5";
    [bytes(headers), bytes(SCAPY), bytes("3e5b743b")].concat()
}

/// A congestion notification as it was captured from a ConnectX-4 Lx (in the same file of Scapy).
fn captured_notification() -> Vec<u8> {
    bytes(
        "e41d2dab2bc27cfe90643b320800 45c2003c718c4000401191610a0011010a001201 000012b700280000
         8100ffff4000011800000000 00000000000000000000000000000000 82fd002a",
    )
}

fn v4() -> IpRoute {
    let address = [192, 168, 0, 7];
    let route = Ipv4Route { tos: 1, identification: 1144, dont_fragment: true, ttl: 64, source: address, destination: address };
    IpRoute::V4(route)
}

fn v6() -> IpRoute {
    let address = |first: u16, last: u16| (u128::from(first) << 112 | u128::from(last)).to_be_bytes();
    let (sgid, dgid) = (address(0x2022, 0x1023), address(0x2023, 0x1024));
    IpRoute::V6(Grh { tclass: 226, flow_label: 0x1_face, hop_limit: 255, sgid, dgid })
}

fn link(route: IpRoute) -> RoceV2Link {
    RoceV2Link { destination: MAC, source: MAC, vlan: None, route, source_port: 0xc000 }
}

/// The example over IPv4 has ECT(1), that over IPv6 ECT(0).
#[test]
fn a_switch_marks_packets_whose_senders_know_of_marks() {
    let tagged = |frame: &[u8]| [&frame[..12], &[0x81, 0, 0xa0, 100], &frame[12..]].concat();
    for (frame, class, changes) in [(scapy_v4(), 3, &[(15, 0x03), (25, 0xd3)][..]), (scapy_v6(), 0xe3, &[(15, 0x31)][..])] {
        for (mut frame, shift) in [(tagged(&frame), 4), (frame, 0)] {
            let mut expected = frame.clone();
            changes.iter().for_each(|(at, byte)| expected[at + shift] = *byte);
            assert!(mark_congestion(&mut frame));
            assert_eq!(frame, expected);
            // The checksums and the ICRC hold, and a second switch has nothing to do.
            let packet = Packet::decode_roce_v2(&frame).unwrap();
            assert!(is_marked(&packet.link));
            let Link::RoceV2(RoceV2Link { route, .. }) = packet.link else { panic!("RoCEv2") };
            assert_eq!(
                class,
                match route {
                    IpRoute::V4(route) => route.tos,
                    IpRoute::V6(route) => route.tclass,
                }
            );
            assert!(!mark_congestion(&mut frame));
            assert_eq!(frame, expected);
        }
    }
    // For each checksum that the header may have: the carry of ones' complement too.
    for identification in 0..=u16::MAX {
        let route = Ipv4Route { tos: 2, identification, ..Ipv4Route::default() };
        let packet = Packet { link: link(IpRoute::V4(route)).into(), ..scapy_packet(v4()) };
        let mut frame = packet.encode();
        assert!(mark_congestion(&mut frame));
        let marked = Ipv4Route { tos: 3, ..route };
        assert_eq!(frame, Packet { link: link(IpRoute::V4(marked)).into(), ..packet }.encode(), "{identification}");
    }
}

#[test]
fn what_is_no_packet_for_marks_stays_as_it_is() {
    let (mut unaware, mut other_version, mut arp) = (scapy_v4(), scapy_v4(), scapy_v4());
    unaware[15] = 0;
    other_version[14] = 0x55;
    arp[13] = 6;
    let cut = (0..34).map(|len| scapy_v4()[..len].to_vec()).chain((0..54).map(|len| scapy_v6()[..len].to_vec()));
    for mut frame in cut.chain([unaware, other_version, arp, [0x81, 0].repeat(10)]) {
        let before = frame.clone();
        assert!(!mark_congestion(&mut frame));
        assert_eq!(frame, before);
    }
}

/// Returns the packet that Scapy's examples are.
fn scapy_packet(route: IpRoute) -> Packet<'static> {
    let opcode = Opcode { transport: Transport::Uc, operation: Operation::Send(Place::Only) };
    let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn: 211, ack_req: false, psn: 13_571_856 };
    let mut packet = Packet::new(link(route), bth);
    // Two of the bytes are padding.
    packet.transport.payload = b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P".to_vec().into();
    packet
}

/// Sets the checksum of UDP to 0, which the ICRC does not cover: what is sent here has none.
fn without_udp_checksum(mut frame: Vec<u8>, udp: usize) -> Vec<u8> {
    frame[udp + 6..udp + 8].fill(0);
    frame
}

#[test]
fn packets_of_another_implementation() {
    for (frame, route, udp) in [(scapy_v4(), v4(), 34), (scapy_v6(), v6(), 54)] {
        let packet = scapy_packet(route);
        assert_eq!(Packet::decode_roce_v2(&frame), Ok(packet.clone()));
        assert_eq!(packet.encode(), without_udp_checksum(frame, udp));
    }
}

#[test]
fn a_packet_that_a_card_sent() {
    let frame = captured_notification();
    // The ICRC is right; a notification of congestion is no packet of a service.
    assert_eq!(Packet::decode_roce_v2(&frame), Err(PacketError::Opcode { opcode: 0x81 }));
    let notification = CongestionNotification::decode(&frame).unwrap();
    assert!(CongestionNotification::is_in(&frame) && !CongestionNotification::is_in(&scapy_v4()));
    assert_eq!((notification.dest_qpn, notification.encode()), (0x118, frame.clone()));
    // Its own traffic class is that of the card.
    assert_eq!(CongestionNotification::new(notification.link, 0x118), notification);
    for len in 0..frame.len() {
        assert!(CongestionNotification::decode(&frame[..len]).is_err());
    }
    assert!(matches!(CongestionNotification::decode(&scapy_v4()), Err(PacketError::Opcode { .. })));
    let mut other = frame.clone();
    other[54] ^= 1;
    assert!(matches!(Packet::decode_roce_v2(&other), Err(PacketError::Icrc { found: 0x2a00_fd82, .. })));
    // A packet of the same length with the same addresses has the same link part.
    let (source, destination) = ([10, 0, 17, 1], [10, 0, 18, 1]);
    let route = Ipv4Route { tos: 0xc2, identification: 0x718c, dont_fragment: true, ttl: 64, source, destination };
    let (destination, source) = ([0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2], [0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32]);
    let link = RoceV2Link { destination, source, vlan: None, route: IpRoute::V4(route), source_port: 0 };
    let mut packet = Packet { link: link.into(), ..scapy_packet(v4()) };
    packet.transport.payload = vec![0; 16].into();
    assert_eq!(packet.encode()[..42], frame[..42]);
    assert_eq!(Packet::decode_roce_v2(&packet.encode()).map(|packet| packet.link), Ok(link.into()));
}

/// RoCE version 1 has the ICRC of InfiniBand packets with a global route (captured packets, in the same file of Scapy).
#[test]
fn the_icrc_of_a_captured_global_route() {
    let write = "60200000 00281b40 00000000000000000000ffff0f000002 00000000000000000000ffff0f000002
                 0a70ffff0000010a80a788bc 000055d4c0726000 000047b3 00000005 00000000 01000000 e3d856bb";
    let acknowledge = "60200000 00141b40 00000000000000000000ffff0f000002 00000000000000000000ffff0f000002
                       1140ffff0000010900a788c0 00000005 25f0c038";
    for (hex, operation, len) in [(write, Operation::Write(Place::Only), 5), (acknowledge, Operation::Acknowledge, 0)] {
        let behind = bytes(hex);
        let words = (8 + behind.len() as u16) / 4;
        let [high, low] = words.to_be_bytes();
        let frame = [vec![0x70, 0x33, 0, 2, high, low, 0, 1], behind].concat();
        let packet = Packet::decode(&frame).unwrap();
        assert_eq!((packet.transport.bth.opcode.operation, packet.transport.payload.len()), (operation, len));
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 15, 0, 0, 2];
        assert_eq!(packet.link.gids(), Some([gid; 2]));
    }
}

#[test]
fn every_operation_there_and_back() {
    let tag = VlanTag { priority: 5, drop_eligible: true, id: 0xabc };
    for operation in Operation::ALL {
        for len in 0..6 {
            for (route, vlan) in [(v4(), None), (v6(), None), (v4(), Some(tag)), (v6(), Some(tag))] {
                let mut sent = scapy_packet(route);
                sent.link = RoceV2Link { vlan, ..link(route) }.into();
                sent.transport.bth.opcode = Opcode { transport: Transport::Rc, operation };
                let headers = sent.transport.bth.opcode.headers();
                sent.transport.payload = [1, 2, 3, 4, 5, 6][..len].to_vec().into();
                sent.transport.immediate = headers.immediate.then_some(7);
                let frame = sent.encode();
                let got = Packet::decode_roce_v2(&frame).unwrap();
                assert_eq!((&got.link, &got.transport.payload), (&sent.link, &sent.transport.payload));
                assert_eq!((got.transport.bth, got.transport.immediate), (sent.transport.bth, sent.transport.immediate));
                assert_eq!(got.encode(), frame);
                // Ethernet pads short frames.
                assert_eq!(Packet::decode_roce_v2(&[&frame[..], &[0; 9]].concat()), Ok(got));
            }
        }
    }
}

#[test]
fn a_tag_stands_before_the_type() {
    let tag = VlanTag { priority: 5, drop_eligible: false, id: 0x123 };
    let tagged = Packet { link: RoceV2Link { vlan: Some(tag), ..link(v6()) }.into(), ..scapy_packet(v6()) };
    // IEEE 802.1Q: 0x8100, then priority and identifier; all else as without a tag, the ICRC too.
    let plain = scapy_packet(v6()).encode();
    assert_eq!(tagged.encode(), [&plain[..12], &[0x81, 0x00, 0xa1, 0x23], &plain[12..]].concat());
}

#[test]
fn the_icrc_leaves_out_what_changes_on_the_way() {
    let (v4, v6) = (scapy_packet(v4()).encode(), scapy_packet(v6()).encode());
    // Ethernet; type of service, time to live and checksum of IPv4; traffic class, flow label and hop limit of IPv6; the
    // checksum of UDP; the byte of FECN and BECN (annex A17, and 7.8.1).
    let free_v4: Vec<usize> = (0..12).chain([15, 22, 24, 25, 40, 41, 46]).collect();
    let free_v6: Vec<usize> = (0..12).chain([14, 15, 16, 17, 21, 60, 61, 66]).collect();
    for (frame, free, ip) in [(v4, free_v4, 20), (v6, free_v6, 40)] {
        let mut found = 0;
        for at in 0..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 1;
            if ip == 20 && (14..34).contains(&at) && !(24..26).contains(&at) {
                // With the header checksum of the changed header.
                changed[24..26].fill(0);
                let sum: u32 = changed[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
                let sum = (sum & 0xffff) + (sum >> 16);
                changed[24..26].copy_from_slice(&(!(sum as u16 + (sum >> 16) as u16)).to_be_bytes());
            }
            match Packet::decode_roce_v2(&changed) {
                Ok(_) => assert!(free.contains(&at), "byte {at} is not covered"),
                Err(PacketError::Icrc { .. }) => {
                    assert!(!free.contains(&at), "byte {at} is covered");
                    found += 1;
                }
                // Another rule finds it first.
                Err(_) => {}
            }
        }
        // Addresses of IP, source port, the rest of BTH, payload and ICRC.
        assert!(found >= if ip == 20 { 8 } else { 32 } + 2 + 11 + 20 + 4, "{found} bytes");
    }
}

#[test]
fn what_is_no_whole_packet_is_refused() {
    let (v4, v6) = (scapy_packet(v4()).encode(), scapy_packet(v6()).encode());
    let with = |frame: &[u8], at: usize, value: &[u8]| {
        let mut frame = frame.to_vec();
        frame[at..at + value.len()].copy_from_slice(value);
        frame
    };
    // A fragment with a right checksum: 0x2000 more in one word, 0x2000 less in the sum.
    let sum = u16::from_be_bytes([v4[24], v4[25]]);
    let fragment = with(&with(&v4, 20, &[0x60, 0]), 24, &sum.checked_sub(0x2000).unwrap().to_be_bytes());
    for (frame, error) in [
        (with(&v4, 12, &[0x89, 0x15]), PacketError::EtherType { ether_type: 0x8915 }),
        (with(&v4, 12, &[0x88, 0xa8]), PacketError::EtherType { ether_type: 0x88a8 }),
        (with(&v4, 14, &[0x65]), PacketError::Version { version: 6 }),
        (with(&v6, 14, &[0x4e]), PacketError::Version { version: 4 }),
        (with(&v4, 14, &[0x46]), PacketError::Options),
        (with(&v4, 15, &[7]), PacketError::Checksum),
        (fragment, PacketError::Fragment),
        (with(&v6, 20, &[6]), PacketError::NotTransport { next_header: 6 }),
        (with(&v4, 36, &[0x12, 0xb8]), PacketError::Port { port: 4792 }),
        (with(&v4, 38, &[0, 40]), PacketError::Length { says: 40, have: 44 }),
        (with(&v6, 18, &[0, 45]), PacketError::Length { says: 45, have: 44 }),
        (with(&v6, 18, &[0, 7]), PacketError::Short { header: "UDP", have: 7 }),
    ] {
        assert_eq!(Packet::decode_roce_v2(&frame), Err(error));
        assert!(!error.to_string().is_empty());
    }
    for frame in [v4, v6] {
        for len in 0..frame.len() {
            assert!(Packet::decode_roce_v2(&frame[..len]).is_err(), "{len} bytes");
        }
        for bit in 0..frame.len() * 8 {
            let mut frame = frame.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            if let Ok(packet) = Packet::decode_roce_v2(&frame) {
                assert!(!PacketFields(&packet).to_string().is_empty());
            }
        }
    }
}

#[test]
fn what_a_receiver_gets_of_it() {
    let mapped = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, last];
    let gids = match v6() {
        IpRoute::V6(route) => [route.sgid, route.dgid],
        IpRoute::V4(_) => panic!("it is IPv6"),
    };
    let v4_frame = scapy_v4();
    // The kind of the route is where InfiniBand has the service level (`MLX5_CQE_ROCE_L3_HEADER_TYPE_IPV4` is 2, `_IPV6` 1).
    for (frame, route, gids, kind, before) in [
        (&v4_frame, v4(), [mapped(7); 2], 2, [&[0; 20][..], &v4_frame[14..34]].concat()),
        (&scapy_v6(), v6(), gids, 1, scapy_v6()[14..54].to_vec()),
    ] {
        let mut packet = Packet::decode_roce_v2(frame).unwrap();
        assert_eq!(packet.link.completion(), LinkCompletion { slid: 0, sl: kind, grh: true, vlan: None });
        assert_eq!(packet.link.gids(), Some(gids));
        assert_eq!(packet.link.infiniband(), None);
        let address = RoceV2Address { destination: MAC, vlan: None, is_ipv4: kind == 2, gids, is_multicast: false };
        assert_eq!(packet.link.address(), LinkAddress::RoceV2(address));
        assert_eq!(Addressing::of_roce_v2(frame), Some(packet.addressing()));
        // The header as it came (`ib_get_rdma_header_version` of Linux tests its checksum).
        assert_eq!(packet.link.before_datagram(packet.transport.encoded_len()), Some(before.try_into().unwrap()));
        assert!(PacketFields(&packet).to_string().starts_with("Ethernet Dst=24:8a:07:a8:fa:22 Src=24:8a:07:a8:fa:22 | IPv"));
        packet.link = Link::from(link(route));
        packet.transport.deth = Some(Deth::default());
        assert!(!packet.is_multicast());
    }
    let group_v4 = Ipv4Route { destination: [239, 0, 0, 1], ..Ipv4Route::default() };
    let group_v6 = Grh { dgid: [0xff; 16], ..Grh::default() };
    assert!(Link::from(link(IpRoute::V4(group_v4))).is_multicast() && Link::from(link(IpRoute::V6(group_v6))).is_multicast());
    assert!(!Link::from(link(IpRoute::V4(Ipv4Route { destination: [240, 0, 0, 1], ..group_v4 }))).is_multicast());
}
