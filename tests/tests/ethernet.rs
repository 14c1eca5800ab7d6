//! Frames between drivers on Ethernet ports: bytes, filters, checksums, full queues, beside RDMA; devices that lie or go away; what a
//! closed interface leaves behind.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use bareverbs::{
    Access, AddressHandle, AddressVector, CqHandle, Destination, Gid, GidEntry, GlobalRoute, Mac, Payload, PdHandle, Qkey,
    QpAttr, QpCap, QpHandle, QpInit, QpType, RecvWr, SendOp, SendWr, WcStatus,
};
use bareverbs_mlx5::{
    Checksums, Config, Error, Ethernet, EthernetConfig, FrameError, FrameFilter, FrameQueueFault, InlineMode,
    OpenEthernetError, Received, Step, Verified,
};
use bareverbs_sim::fabric::{Direction, Tap, Uplink};
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::{SimPlatform, World, WorldConfig};
use bareverbs_sim::wire::PortId;
use bareverbs_sim::{DeviceConfig, PortKind};
use bareverbs_tests::{ALL_ACCESS, CAP, Driver, Node, driver_config, instant, machine, pattern, signaled};

const BROADCAST: [u8; 6] = [0xff; 6];
const IPV6_GROUP: [u8; 6] = [0x33, 0x33, 0xff, 1, 2, 3];
/// Longest frame of the usual MTU, with a tag.
const LONGEST: usize = 1518;
const SHORTEST: usize = 60;

fn ethernet(node: &mut Node) -> Ethernet<'_, SimPlatform> {
    node.verbs.direct().ethernet().expect("it is open")
}

fn mac(node: &mut Node) -> [u8; 6] {
    ethernet(node).mac().0
}

/// Two hosts whose queues for frames are open.
fn lan(config: &EthernetConfig) -> (World, [Node; 2]) {
    lan_of(config, instant)
}

/// A device of this kind with a number.
type Kind = fn(u16) -> DeviceConfig;

/// A virtual function, whose frames and packets the switch of its card brings by the lists of addresses.
fn virtual_function(number: u16) -> DeviceConfig {
    DeviceConfig { virtual_function: true, ..instant(number) }
}

/// The same, trusted by its physical function.
fn trusted(number: u16) -> DeviceConfig {
    DeviceConfig { trusted: true, ..virtual_function(number) }
}

fn lan_of(config: &EthernetConfig, device: Kind) -> (World, [Node; 2]) {
    let world = World::new(WorldConfig::default());
    let nodes = [1, 2].map(|number| {
        let mut node = Node::new(world.add(device(number).with_ethernet()).unwrap());
        node.verbs.direct().open_ethernet(config).unwrap();
        node
    });
    (world, nodes)
}

/// A frame with a payload of `len` bytes.
fn frame(to: [u8; 6], from: [u8; 6], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from[..], &ether_type.to_be_bytes(), payload].concat()
}

fn received(node: &mut Node) -> Option<(Vec<u8>, Received)> {
    let mut bytes = vec![0xee; 10_000];
    let received = ethernet(node).receive(&mut bytes).unwrap()?;
    assert!(bytes[received.len..].iter().all(|byte| *byte == 0xee), "nothing is written behind the frame");
    bytes.truncate(received.len);
    Some((bytes, received))
}

fn all_received(node: &mut Node) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| received(node).map(|(bytes, _)| bytes)).collect()
}

fn pass(world: &World) {
    world.advance(Duration::from_millis(1));
}

#[test]
fn frames_of_every_length_arrive_whole_both_ways_with_headers_in_their_wqes_or_without() {
    for inline_headers in [InlineMode::None, InlineMode::L2, InlineMode::Ip, InlineMode::TcpUdp] {
        // Rings that wrap around hundreds of times.
        let config = EthernetConfig { send_frames: 3, receive_frames: 5, inline_headers, ..EthernetConfig::DEFAULT };
        let (world, [mut a, mut b]) = lan(&config);
        assert_eq!(ethernet(&mut a).max_frame(), LONGEST);
        let macs = [mac(&mut a), mac(&mut b)];
        // A long one before each short one, whose bytes are then in the same buffer.
        for len in
            (14..300).chain(300..LONGEST).step_by(if inline_headers == InlineMode::None { 1 } else { 7 }).chain([LONGEST])
        {
            for (from, to) in [(0, 1), (1, 0)] {
                let nodes = [&mut a, &mut b];
                let sent = frame(macs[to], macs[from], 0x88b5, &pattern(len as u64, len - 14));
                ethernet(nodes[from]).send(&sent).unwrap();
                pass(&world);
                let (arrived, _) = received(nodes[to]).unwrap_or_else(|| panic!("{inline_headers:?}: {len} bytes are lost"));
                assert_eq!(arrived[..len], sent, "{inline_headers:?}, {len} bytes");
                assert_eq!(arrived.len(), len.max(SHORTEST));
                assert!(arrived[len..].iter().all(|byte| *byte == 0), "filled up with zeros, not with an earlier frame");
                assert_eq!(received(nodes[from]), None, "it does not hear itself");
            }
        }
        // A short one in a buffer that had a long one.
        for (payload, byte) in [(1000, 0xaa), (1000, 0xaa), (1000, 0xaa), (1000, 0xaa), (1, 1)] {
            ethernet(&mut a).send(&frame(macs[1], macs[0], 0x88b5, &vec![byte; payload])).unwrap();
            pass(&world);
            let (arrived, _) = received(&mut b).unwrap();
            assert!(arrived[14 + payload..].iter().all(|byte| *byte == 0), "bytes of an earlier frame: {arrived:?}");
        }
        let [sent, taken] = [&mut a, &mut b].map(|node| ethernet(node).statistics());
        assert_eq!((sent.sent_frames, sent.sent_bytes), (taken.received_frames, taken.received_bytes));
        assert_eq!((sent.dropped_frames, taken.dropped_frames), (0, 0));
        a.assert_no_findings();
        b.assert_no_findings();
    }
}

#[test]
fn lengths_that_no_frame_has_and_short_buffers_are_refused() {
    let (world, [mut a, mut b]) = lan(&EthernetConfig::DEFAULT);
    for len in [0, 13, LONGEST + 1, 1 << 20] {
        assert_eq!(ethernet(&mut a).send(&vec![0xff; len]), Err(FrameError::Length { limit: LONGEST }));
    }
    ethernet(&mut a).send(&[0xff; 14]).unwrap();
    pass(&world);
    let short = FrameError::Buffer { need: LONGEST };
    assert_eq!(ethernet(&mut b).receive(&mut [0; LONGEST - 1]), Err(short));
    assert_eq!(received(&mut b).map(|(bytes, _)| bytes.len()), Some(SHORTEST), "it waited");
}

#[test]
fn a_full_queue_says_so_and_works_on() {
    let config = EthernetConfig { send_frames: 4, receive_frames: 8, ..EthernetConfig::DEFAULT };
    let (world, [mut a, mut b]) = lan(&config);
    let (to, from) = (mac(&mut b), mac(&mut a));
    let numbered = |number: u8| frame(to, from, 0x88b5, &[number; 50]);
    for round in 0..50 {
        // Time stands still: the device sends nothing.
        for number in 0..4 {
            assert!(ethernet(&mut a).can_send());
            ethernet(&mut a).send(&numbered(number)).unwrap();
        }
        assert!(!ethernet(&mut a).can_send(), "round {round}");
        assert_eq!(ethernet(&mut a).send(&numbered(9)), Err(FrameError::Full));
        pass(&world);
        assert!(ethernet(&mut a).can_send(), "room again");
        let arrived: Vec<u8> = all_received(&mut b).iter().map(|frame| frame[14]).collect();
        assert_eq!(arrived, [0, 1, 2, 3], "in order");
    }
    // Nobody takes what comes in: eight wait, the others are lost, and then it goes on.
    for number in 0..20 {
        ethernet(&mut a).send(&numbered(number)).unwrap();
        pass(&world);
    }
    let arrived: Vec<u8> = all_received(&mut b).iter().map(|frame| frame[14]).collect();
    assert_eq!(arrived, [0, 1, 2, 3, 4, 5, 6, 7]);
    ethernet(&mut a).send(&numbered(99)).unwrap();
    pass(&world);
    assert_eq!(received(&mut b).unwrap().0[14], 99);
}

/// A station without a device: what leads to it is kept.
#[derive(Clone, Default)]
struct Station(Arc<Mutex<Vec<Vec<u8>>>>);

impl Uplink for Station {
    fn send(&self, _: PortId, frame: Vec<u8>) -> bool {
        self.0.lock().unwrap().push(frame);
        true
    }
}

#[test]
fn the_filter_says_what_comes_in() {
    let foreign = [2, 9, 9, 9, 9, 9];
    let physical = instant;
    // A virtual function that is not trusted gets its own frames and broadcasts, whatever it asks for.
    let cases: [(Kind, _, _, _); 8] = [
        (physical, FrameFilter::Own, false, false),
        (physical, FrameFilter::Groups, true, false),
        (physical, FrameFilter::Everything, true, true),
        (virtual_function, FrameFilter::Own, false, false),
        (virtual_function, FrameFilter::Groups, false, false),
        (virtual_function, FrameFilter::Everything, false, false),
        (trusted, FrameFilter::Groups, true, false),
        (trusted, FrameFilter::Everything, true, true),
    ];
    for (device, filter, groups, others) in cases {
        let (world, [mut a, _b]) = lan_of(&EthernetConfig { filter, ..EthernetConfig::DEFAULT }, device);
        let station = Station::default();
        let port = world.add_cable(Box::new(station.clone()));
        let source = [2, 7, 7, 7, 7, 7];
        let own = mac(&mut a);
        for (to, comes) in
            [(own, true), (BROADCAST, true), (IPV6_GROUP, groups), ([1, 0, 0x5e, 0, 0, 1], groups), (foreign, others)]
        {
            let sent = frame(to, source, 0x88b5, &[7; 46]);
            assert!(world.arrive_at(port, sent.clone()).is_on_wire);
            pass(&world);
            let expected = if comes { vec![sent] } else { vec![] };
            assert_eq!(all_received(&mut a), expected, "{filter:?}, to {to:x?}");
        }
        // And out, to a station that the switch has learned.
        let sent = frame(source, own, 0x88b5, &[8; 46]);
        station.0.lock().unwrap().clear();
        ethernet(&mut a).send(&sent).unwrap();
        pass(&world);
        assert_eq!(*station.0.lock().unwrap(), [sent]);
    }
}

#[test]
fn tags_stay_in_their_frames() {
    let (world, [mut a, mut b]) = lan(&EthernetConfig::DEFAULT);
    let (to, from) = (mac(&mut b), mac(&mut a));
    for payload in [46, 1500] {
        let tagged = [&[0xa0, 100, 0x08, 0x00][..], &pattern(3, payload)].concat();
        let sent = frame(to, from, 0x8100, &tagged);
        ethernet(&mut a).send(&sent).unwrap();
        pass(&world);
        assert_eq!(received(&mut b).unwrap().0, sent);
    }
}

#[test]
fn long_frames_need_the_mtu_of_both() {
    let world = World::new(WorldConfig::default());
    let mut nodes = [1, 2].map(|number| {
        let host = world.add(instant(number).with_ethernet()).unwrap();
        let config = Config { ethernet_mtu: 9000, ..driver_config(&host) };
        let mut node = Node::with_config(host, &config);
        node.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT).unwrap();
        node
    });
    let [a, b] = &mut nodes;
    assert_eq!((ethernet(a).mtu(), ethernet(a).max_frame()), (9000, 9018));
    let (to, from) = (mac(b), mac(a));
    for _ in 0..100 {
        let sent = frame(to, from, 0x88b5, &pattern(1, 9004));
        ethernet(a).send(&sent).unwrap();
        pass(&world);
        assert!(received(b).unwrap().0 == sent);
    }
}

/// Ones' complement sum of RFC 1071.
fn sum(bytes: &[u8]) -> u16 {
    let mut total: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |byte| u32::from(*byte))).sum();
    while total >> 16 != 0 {
        total = (total >> 16) + (total & 0xffff);
    }
    total as u16
}

/// An IPv4 packet with a UDP datagram; checksums as in RFC 791 and RFC 768, or zeros.
fn udp(payload: &[u8], checksums: Checksums) -> Vec<u8> {
    let (source, target) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    let len = 8 + payload.len() as u16;
    let mut header = [&[0x45, 0][..], &(20 + len).to_be_bytes(), &[0, 1, 0x40, 0, 64, 17, 0, 0], &source, &target].concat();
    if checksums.header {
        let value = !sum(&header);
        header[10..12].copy_from_slice(&value.to_be_bytes());
    }
    let mut datagram = [&[0x10, 0, 0x20, 0][..], &len.to_be_bytes(), &[0, 0], payload].concat();
    if checksums.transport {
        let pseudo = [&source[..], &target, &[0, 17], &len.to_be_bytes()].concat();
        let value = !sum(&[&pseudo[..], &datagram].concat());
        datagram[6..8].copy_from_slice(&value.to_be_bytes());
    }
    [header, datagram].concat()
}

#[test]
fn the_device_computes_checksums_and_says_which_are_right() {
    let (world, [mut a, mut b]) = lan(&EthernetConfig::DEFAULT);
    let (to, from) = (mac(&mut b), mac(&mut a));
    let good = udp(b"a datagram of some length", Checksums::ALL);
    let mut wrong_header = good.clone();
    wrong_header[10] ^= 1;
    let mut wrong_datagram = good.clone();
    wrong_datagram[40] ^= 1;
    let mut send = |packet: &[u8], checksums| {
        ethernet(&mut a).send_with(&frame(to, from, 0x0800, packet), checksums).unwrap();
        pass(&world);
        let (bytes, received) = received(&mut b).unwrap();
        (bytes[14..14 + packet.len()].to_vec(), received.verified)
    };
    let all = Verified { header: true, transport: true };
    assert_eq!(send(&good, Checksums::NONE), (good.clone(), all));
    assert_eq!(send(&wrong_header, Checksums::NONE).0, wrong_header, "nothing is repaired");
    assert!(!send(&wrong_header, Checksums::NONE).1.header);
    assert_eq!(send(&wrong_datagram, Checksums::NONE), (wrong_datagram, Verified { header: true, transport: false }));
    // Computed on the way, each alone and both.
    for checksums in
        [Checksums { header: true, transport: false }, Checksums { header: false, transport: true }, Checksums::ALL]
    {
        let zeros = Checksums { header: !checksums.header, transport: !checksums.transport };
        let packet = udp(b"a datagram of some length", zeros);
        assert_ne!(packet, good);
        assert_eq!(send(&packet, checksums), (good.clone(), all), "{checksums:?}");
    }
    // What is no IP has no checksums.
    ethernet(&mut a).send_with(&frame(to, from, 0x88b5, &[1; 46]), Checksums::ALL).unwrap();
    pass(&world);
    let (bytes, received) = received(&mut b).unwrap();
    assert_eq!((bytes, received.verified), (frame(to, from, 0x88b5, &[1; 46]), Verified::default()));
}

/// Counts the packets of RoCEv2 on the cables.
#[derive(Clone, Default)]
struct RoceCount(Arc<Mutex<usize>>);

impl Tap for RoceCount {
    fn frame(&mut self, _: bareverbs::platform::Instant, _: PortId, _: Direction, frame: &[u8]) {
        if frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == 4791_u16.to_be_bytes() {
            *self.0.lock().unwrap() += 1;
        }
    }
}

#[test]
fn frames_and_rdma_share_a_port() {
    share_a_port(instant);
}

#[test]
fn frames_and_rdma_share_the_port_of_a_virtual_function() {
    share_a_port(virtual_function);
}

fn share_a_port(device: Kind) {
    let config = EthernetConfig { filter: FrameFilter::Everything, ..EthernetConfig::DEFAULT };
    let (world, mut nodes) = lan_of(&config, device);
    let packets = RoceCount::default();
    world.set_tap(Some(Box::new(packets.clone())));
    let macs = nodes.each_mut().map(mac);
    let cap = QpCap { max_send_wr: 16, ..CAP };
    let mut ends = Vec::new();
    for (number, node) in (1..).zip(&mut nodes) {
        let address = GidEntry::new(Ipv4Addr::new(192, 0, 2, number), Mac(macs[usize::from(number) - 1]));
        node.verbs.set_gid(1, 1, &address).unwrap();
        let pd = node.verbs.alloc_pd().unwrap();
        let cq = node.verbs.create_cq(64).unwrap();
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true };
        let qp = node.verbs.create_qp(&init).unwrap();
        let region = node.region(pd, 1 << 16, ALL_ACCESS);
        ends.push((qp, node.verbs.qp_info(qp).unwrap().qpn, cq, region));
    }
    for (own, other) in [(0, 1), (1, 0)] {
        let dgid = Gid::from(Ipv4Addr::new(192, 0, 2, other as u8 + 1));
        let route = GlobalRoute { dgid, sgid_index: 1, hop_limit: 64, ..GlobalRoute::default() };
        let av = AddressVector { port_num: 1, grh: Some(route), dmac: Some(Mac(macs[other])), ..AddressVector::default() };
        let attr = QpAttr {
            port_num: 1,
            access: Access::REMOTE_WRITE,
            av,
            dest_qpn: ends[other].1,
            timeout: 14,
            retry_cnt: 7,
            ..QpAttr::default()
        };
        let qp = ends[own].0;
        nodes[own].verbs.modify_qp_to_rts(qp, &attr).unwrap();
    }
    let [a, b] = &mut nodes;
    for round in 0..30 {
        let bytes = pattern(round, 20_000);
        ends[0].3.buffer.write(0, &bytes);
        let sges = [ends[0].3.sge(0, 20_000)];
        let op = SendOp::Write { payload: Payload::Sges(&sges), remote: ends[1].3.remote(0) };
        a.verbs.post_send(ends[0].0, &signaled(round, op)).unwrap();
        let sent = frame(macs[1], macs[0], 0x88b5, &pattern(round, 1000));
        ethernet(a).send(&sent).unwrap();
        ethernet(b).send(&frame(macs[0], macs[1], 0x88b5, &pattern(round + 1, 500))).unwrap();
        assert_eq!(a.completions(ends[0].2, 1)[0].status, WcStatus::Success);
        pass(&world);
        assert!(ends[1].3.buffer.read(0, 20_000) == bytes);
        assert!(all_received(b) == [sent], "the frame, and no packet of RDMA");
        assert_eq!(all_received(a).len(), 1);
    }
    assert!(*packets.0.lock().unwrap() > 30 * 20);
    a.assert_no_findings();
    b.assert_no_findings();
}

/// A queue pair for datagrams, with its completion queue.
fn datagrams(node: &mut Node, pd: PdHandle) -> (QpHandle, CqHandle) {
    let cq = node.verbs.create_cq(16).unwrap();
    let init = QpInit { pd, qp_type: QpType::Ud, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
    let qp = node.verbs.create_qp(&init).unwrap();
    node.verbs.modify_qp_to_rts(qp, &QpAttr { port_num: 1, qkey: Qkey::new(1), ..QpAttr::default() }).unwrap();
    (qp, cq)
}

fn address_of(node: &mut Node, pd: PdHandle, group: Gid) -> AddressHandle {
    let own = GidEntry::new(Ipv4Addr::new(192, 0, 2, 2), Mac(mac(node)));
    node.verbs.set_gid(1, 1, &own).unwrap();
    let route = GlobalRoute { dgid: group, sgid_index: 1, hop_limit: 1, ..GlobalRoute::default() };
    node.verbs.create_ah(pd, &AddressVector { port_num: 1, grh: Some(route), ..AddressVector::default() }).unwrap()
}

/// The switch of the card goes by the multicast list: the groups of queue pairs, each as long as one is in it.
#[test]
fn a_virtual_function_hears_the_groups_of_its_queue_pairs() {
    let (world, [mut a, mut b]) = lan_of(&EthernetConfig::DEFAULT, virtual_function);
    let groups = [3, 4].map(|number| Gid::from(Ipv4Addr::new(239, 1, 2, number)));
    let b_pd = b.verbs.alloc_pd().unwrap();
    let addresses = groups.map(|group| address_of(&mut b, b_pd, group));
    let (from, from_cq) = datagrams(&mut b, b_pd);
    let pd = a.verbs.alloc_pd().unwrap();
    let ends = [(); 2].map(|()| datagrams(&mut a, pd));
    let region = a.region(pd, 4096, ALL_ACCESS);
    let sges = [region.sge(0, 4096)];
    for (qp, _) in ends {
        (0..8).for_each(|wr_id| a.verbs.post_recv(qp, &RecvWr { wr_id, sges: &sges }).unwrap());
    }
    // Datagrams that each queue pair gets when one is sent to each group.
    let mut arrived = |a: &mut Node| {
        for ah in addresses {
            let to = Destination { ah, remote_qpn: Destination::MULTICAST_QPN, remote_qkey: Qkey::new(1) };
            b.verbs.post_send(from, &SendWr::send_to(&to, b"to the group")).unwrap();
            assert_eq!(b.completions(from_cq, 1)[0].status, WcStatus::Success);
        }
        pass(&world);
        ends.map(|(_, cq)| a.verbs.completions(cq).map(Result::unwrap).count())
    };
    assert_eq!(arrived(&mut a), [0, 0]);
    a.verbs.attach_mcast(ends[0].0, &groups[0]).unwrap();
    a.verbs.attach_mcast(ends[1].0, &groups[0]).unwrap();
    assert_eq!(arrived(&mut a), [1, 1]);
    a.verbs.attach_mcast(ends[1].0, &groups[1]).unwrap();
    assert_eq!(arrived(&mut a), [1, 2]);
    a.verbs.detach_mcast(ends[0].0, &groups[0]).unwrap();
    assert_eq!(arrived(&mut a), [0, 2], "the other one is in the group");
    // Broadcasts are in the same list.
    a.verbs.direct().close_ethernet().unwrap();
    assert_eq!(arrived(&mut a), [0, 2]);
    a.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT).unwrap();
    a.verbs.detach_mcast(ends[1].0, &groups[0]).unwrap();
    a.verbs.detach_mcast(ends[1].0, &groups[1]).unwrap();
    assert_eq!(arrived(&mut a), [0, 0]);
    let sent = frame(BROADCAST, mac(&mut b), 0x88b5, &[1; 46]);
    ethernet(&mut b).send(&sent).unwrap();
    pass(&world);
    assert_eq!(all_received(&mut a), [sent]);
    a.assert_no_findings();
}

#[test]
fn a_virtual_function_without_a_mac_address_is_refused_with_the_remedy() {
    let world = World::new(WorldConfig::default());
    let device = DeviceConfig { port: PortKind::Ethernet { mac: [0; 6] }, ..virtual_function(1).with_ethernet() };
    let host = world.add(device.clone()).unwrap();
    let brought_up = Driver::bring_up(machine(&host), &driver_config(&host));
    let refused = brought_up.map(drop).map_err(|(error, _)| error).unwrap_err();
    assert_eq!((refused.step, refused.cause, refused.needs_reset), (Step::QueryPort, Error::NoMacAddress, false));
    assert!(refused.to_string().contains("`ip link set PF vf N mac ADDRESS`"), "{refused}");
    // A second one has none either.
    world.add(DeviceConfig { port: device.port, ..virtual_function(2).with_ethernet() }).unwrap();
}

/// Frames to groups arrive as long as the frame queues or a queue pair want them.
#[test]
fn groups_of_queue_pairs_and_of_frames_do_not_end_each_other() {
    let (world, [mut a, mut b]) = lan(&EthernetConfig::DEFAULT);
    let pd = a.verbs.alloc_pd().unwrap();
    let (qp, a_cq) = datagrams(&mut a, pd);
    let group = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
    a.verbs.attach_mcast(qp, &group).unwrap();
    a.verbs.detach_mcast(qp, &group).unwrap();
    let sent = frame(IPV6_GROUP, mac(&mut b), 0x88b5, &[1; 46]);
    ethernet(&mut b).send(&sent).unwrap();
    pass(&world);
    assert_eq!(all_received(&mut a), std::slice::from_ref(&sent), "after the last queue pair has left its group");
    // The other way round: the group's datagrams come after the queues for frames are closed.
    a.verbs.attach_mcast(qp, &group).unwrap();
    a.verbs.direct().close_ethernet().unwrap();
    let region = a.region(pd, 4096, ALL_ACCESS);
    let sges = [region.sge(0, 4096)];
    a.verbs.post_recv(qp, &RecvWr { wr_id: 5, sges: &sges }).unwrap();
    let b_pd = b.verbs.alloc_pd().unwrap();
    let (from, cq) = datagrams(&mut b, b_pd);
    let ah = address_of(&mut b, b_pd, group);
    let to = Destination { ah, remote_qpn: Destination::MULTICAST_QPN, remote_qkey: Qkey::new(1) };
    b.verbs.post_send(from, &SendWr::send_to(&to, b"to the group")).unwrap();
    assert_eq!((b.completions(cq, 1)[0].status, a.completions(a_cq, 1)[0].wr_id), (WcStatus::Success, 5));
    assert_eq!(region.buffer.read(GlobalRoute::AREA, 12), b"to the group");
    a.verbs.detach_mcast(qp, &group).unwrap();
}

#[test]
fn what_was_opened_is_gone_when_it_is_closed() {
    let (world, [mut a, mut b]) = lan(&EthernetConfig::DEFAULT);
    a.verbs.direct().close_ethernet().unwrap();
    let before = a.snapshot();
    for round in 0..40 {
        let filter = [FrameFilter::Own, FrameFilter::Groups, FrameFilter::Everything][round % 3];
        let direct = &mut a.verbs.direct();
        direct.open_ethernet(&EthernetConfig { filter, ..EthernetConfig::DEFAULT }).unwrap();
        assert_eq!(direct.open_ethernet(&EthernetConfig::DEFAULT), Err(OpenEthernetError::AlreadyOpen));
        let sent = frame(mac(&mut a), mac(&mut b), 0x88b5, &pattern(round as u64, 900));
        ethernet(&mut b).send(&sent).unwrap();
        pass(&world);
        assert_eq!(all_received(&mut a), [sent]);
        a.verbs.direct().close_ethernet().unwrap();
        assert!(a.verbs.direct().ethernet().is_none());
        assert_eq!(a.snapshot(), before, "round {round}");
    }
    assert_eq!(a.verbs.direct().close_ethernet(), Ok(()), "there is nothing to close");
    a.assert_no_findings();
    let Ok((_, report)) = a.into_driver().teardown() else { panic!("teardown") };
    assert_eq!((report.pages_kept, report.cqs_left), (0, 0));
    // Open queues go with their device.
    let driver = b.into_driver();
    let Ok((_, report)) = driver.teardown() else { panic!("teardown") };
    assert_eq!((report.pages_kept, report.cqs_left, report.needs_reset), (0, 2, false));
}

/// What queues for frames had let in beside the station's own does not come to the port after they are closed.
#[test]
fn the_filter_of_the_port_closes_with_the_queues() {
    for (device, filter) in [instant as Kind, trusted]
        .into_iter()
        .flat_map(|device| [FrameFilter::Groups, FrameFilter::Everything].map(|filter| (device, filter)))
    {
        let (world, [mut a, mut b]) = lan_of(&EthernetConfig { filter, ..EthernetConfig::DEFAULT }, device);
        let sent = frame(IPV6_GROUP, mac(&mut b), 0x88b5, &[1; 46]);
        // Frames to the group that the filter let in, and those that it dropped.
        let mut counts = |a: &Node| {
            let before = a.host.with_device(|device| device.stats().engine);
            ethernet(&mut b).send(&sent).unwrap();
            pass(&world);
            let after = a.host.with_device(|device| device.stats().engine);
            let let_in = after.frames_received.multicast.packets - before.frames_received.multicast.packets;
            (let_in, after.frames_for_others.packets - before.frames_for_others.packets)
        };
        for round in 0..3 {
            assert_eq!(counts(&a), (1, 0), "{filter:?}, round {round}");
            a.verbs.direct().close_ethernet().unwrap();
            assert_eq!(counts(&a), (0, 1), "{filter:?}, round {round}");
            a.verbs.direct().open_ethernet(&EthernetConfig { filter, ..EthernetConfig::DEFAULT }).unwrap();
        }
    }
}

/// Commands of an opening that it cannot do without, in their order: QUERY_HCA_CAP to MODIFY_NIC_VPORT_CONTEXT.
const COMMANDS: [u16; 16] =
    [0x100, 0x754, 0x800, 0x200, 0x816, 0x400, 0x912, 0x904, 0x908, 0x905, 0x909, 0x900, 0x930, 0x933, 0x936, 0x92f];

#[test]
fn an_opening_that_fails_leaves_nothing_behind() {
    let world = World::new(WorldConfig::default());
    let mut node = Node::new(world.add(instant(1).with_ethernet()).unwrap());
    let before = node.snapshot();
    for opcode in COMMANDS.into_iter().chain([0x755]) {
        node.host.with_device(|device| device.faults_mut().arm(Fault::CommandStatus { opcode, status: 1, syndrome: 7 }));
        let refused = node.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT);
        let expected = OpenEthernetError::Device(Error::CommandStatus { opcode, status: 1, syndrome: 7 });
        assert_eq!(refused, Err(expected), "{opcode:#x}");
        assert!(node.verbs.direct().ethernet().is_none());
        assert_eq!(node.snapshot(), before, "{opcode:#x}");
    }
    for frames in [0, 4097, u16::MAX] {
        let config = EthernetConfig { receive_frames: frames, ..EthernetConfig::DEFAULT };
        let refused = node.verbs.direct().open_ethernet(&config);
        assert_eq!(refused, Err(OpenEthernetError::Frames { limit: 4096 }));
    }
    for frames in [1, 2, 4] {
        let config = EthernetConfig { send_frames: frames, receive_frames: frames, ..EthernetConfig::DEFAULT };
        node.verbs.direct().open_ethernet(&config).unwrap();
        node.verbs.direct().close_ethernet().unwrap();
    }
    // 8192 buffers of 1536 bytes are 3072 pages; with an MTU of 9000 they would not fit.
    let config = EthernetConfig { send_frames: 4096, receive_frames: 4096, ..EthernetConfig::DEFAULT };
    node.verbs.direct().open_ethernet(&config).unwrap();
    node.verbs.direct().close_ethernet().unwrap();
    assert_eq!(node.snapshot(), before);
    let host = world.add(instant(2).with_ethernet()).unwrap();
    let mut long = Node::with_config(host, &Config { ethernet_mtu: 9000, ..Config::DEFAULT });
    let refused = long.verbs.direct().open_ethernet(&config);
    assert!(matches!(refused, Err(OpenEthernetError::Device(Error::ArenaFull { .. }))), "{refused:?}");
    let mut infiniband = Node::new(World::new(WorldConfig::default()).add(instant(3)).unwrap());
    let refused = infiniband.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT);
    assert_eq!(refused, Err(OpenEthernetError::InfiniBand));
}

/// Completion queues of a fresh device: that of the send queue, that of the receive queue.
fn cqns(node: &mut Node) -> [u32; 2] {
    node.verbs.direct().close_ethernet().unwrap();
    let cq = node.verbs.create_cq(16).unwrap();
    let next = node.verbs.cq_info(cq).unwrap().cqn.get();
    node.verbs.destroy_cq(cq).unwrap();
    node.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT).unwrap();
    [next + 1, next + 2]
}

/// A good completion has the time where that of an error has the syndrome.
fn without_syndrome(fault: FrameQueueFault) -> FrameQueueFault {
    match fault {
        FrameQueueFault::Send { .. } => FrameQueueFault::Send { syndrome: 0, vendor: 0 },
        FrameQueueFault::Receive { .. } => FrameQueueFault::Receive { syndrome: 0, vendor: 0 },
        other => other,
    }
}

#[test]
fn a_completion_that_fits_nothing_ends_the_queues_until_they_are_opened_again() {
    /// Which completion queue, what the device does to its completions, what is found.
    type Case = (usize, fn(u32) -> Fault, FrameQueueFault);
    let spoil: [Case; 8] = [
        (0, |cqn| Fault::WrongWqeCounter { cqn, counter: 0x4321 }, FrameQueueFault::Order { index: 0x4321 }),
        (0, |cqn| Fault::CqeOpcode { cqn, opcode: 2 }, FrameQueueFault::Completion { opcode: 2 }),
        (0, |cqn| Fault::CqeOpcode { cqn, opcode: 13 }, FrameQueueFault::Send { syndrome: 0, vendor: 0 }),
        (0, |cqn| Fault::CqeOpcode { cqn, opcode: 5 }, FrameQueueFault::Completion { opcode: 5 }),
        (1, |cqn| Fault::WrongWqeCounter { cqn, counter: 1 }, FrameQueueFault::Order { index: 1 }),
        (1, |cqn| Fault::CqeOpcode { cqn, opcode: 0 }, FrameQueueFault::Completion { opcode: 0 }),
        (1, |cqn| Fault::CqeOpcode { cqn, opcode: 14 }, FrameQueueFault::Receive { syndrome: 0, vendor: 0 }),
        (1, |cqn| Fault::CqeOpcode { cqn, opcode: 3 }, FrameQueueFault::Completion { opcode: 3 }),
    ];
    for (queue, fault, expected) in spoil {
        let (world, [mut a, mut b]) = lan(&EthernetConfig::DEFAULT);
        let cqn = cqns(&mut a)[queue];
        let (own, other) = (mac(&mut a), mac(&mut b));
        let fault = fault(cqn);
        a.host.with_device(|device| device.faults_mut().arm(fault));
        for _ in 0..3 {
            ethernet(&mut a).send(&frame(other, own, 0x88b5, &[1; 46])).unwrap();
            ethernet(&mut b).send(&frame(own, other, 0x88b5, &[2; 46])).unwrap();
        }
        pass(&world);
        assert!(a.host.with_device(|device| device.faults_mut().is_empty()), "{fault:?} did not strike");
        assert!(!ethernet(&mut a).can_send() || queue == 1);
        let mut buffer = [0; LONGEST];
        for _ in 0..3 {
            let Err(FrameError::Fault(found)) = ethernet(&mut a).receive(&mut buffer) else { panic!("{fault:?}") };
            assert_eq!(without_syndrome(found), expected, "{fault:?}");
            assert_eq!(ethernet(&mut a).send(&[0xff; 60]), Err(FrameError::Fault(found)), "{fault:?}");
            assert_eq!(ethernet(&mut a).fault(), Some(found));
        }
        a.verbs.direct().close_ethernet().unwrap();
        a.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT).unwrap();
        let sent = frame(own, other, 0x88b5, &[3; 46]);
        ethernet(&mut b).send(&sent).unwrap();
        pass(&world);
        assert_eq!(all_received(&mut a), [sent]);
    }
}

#[test]
fn a_device_that_is_gone_ends_the_queues() {
    let (world, [mut a, mut b]) = lan(&EthernetConfig::DEFAULT);
    let (own, other) = (mac(&mut a), mac(&mut b));
    a.host.with_device(|device| device.set_removed(true));
    // Nothing says so until somebody looks at the device: the queue fills up.
    let mut sent = 0;
    while ethernet(&mut a).can_send() {
        ethernet(&mut a).send(&frame(other, own, 0x88b5, &[1; 46])).unwrap();
        sent += 1;
    }
    assert_eq!(sent, 16);
    pass(&world);
    assert_eq!(received(&mut a), None);
    assert!(a.verbs.maintain().is_err());
    assert_eq!(ethernet(&mut a).send(&[0xff; 60]), Err(FrameError::Device(Error::DeviceGone)));
    assert_eq!(ethernet(&mut a).receive(&mut [0; LONGEST]), Err(FrameError::Device(Error::DeviceGone)));
    assert!(!ethernet(&mut a).can_send());
    assert_eq!(a.verbs.direct().close_ethernet(), Err(Error::DeviceGone));
    let Err((_, _)) = a.into_driver().teardown() else { panic!("the device is gone") };
}
