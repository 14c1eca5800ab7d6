//! The transport over RoCEv2: several devices with Ethernet ports at one switch.

use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{Ads, CmdOpcode, CmdStatus, Qpc, QpcSt, ViewMut};

use super::super::{EngineConfig, RoceAddress};
use super::harness::*;
use crate::config::DeviceConfig;
use crate::identity::PortIdentity;
use crate::packet::{CongestionNotification, IpRoute, Link as PacketLink, Operation, Packet, RoceV2Link};
use crate::wire::{Delivery, FaultyWire, PerfectWire, PortId, Wire, WireFaults};

/// Entries of each port's address table.
const IPV6: u32 = 0;
const IPV4: u32 = 1;
/// IPv4 in a VLAN.
const TAGGED: u32 = 5;
const VLAN: u16 = 0x123;

const QKEY: u32 = 0x1111_2222;

fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// The address of a device in an entry of its table.
fn address(number: u8, entry: u32) -> RoceAddress {
    let gid = match entry {
        IPV6 => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, number],
        IPV4 => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, number],
        _ => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, number],
    };
    RoceAddress { gid, is_ipv4: entry != IPV6, mac: mac(number), vlan: (entry == TAGGED).then_some(VLAN) }
}

fn host(number: u8) -> Host {
    let config = DeviceConfig::with_lid(number.into()).with_ethernet();
    let mut host = Host::on_port(EngineConfig::default(), &config);
    for entry in [IPV6, IPV4, TAGGED] {
        host.engine.set_roce_address(entry, Some(address(number, entry))).unwrap();
    }
    host.engine.enable_roce(true);
    host
}

/// Hosts with numbers from 1 on, at one switch.
struct Lan<W> {
    hosts: Vec<Host>,
    wire: W,
    now: Instant,
    /// Each frame that a device has sent, with the host's place.
    sent: Vec<(usize, Vec<u8>)>,
}

fn switch(ports: u8) -> PerfectWire {
    let mut wire = PerfectWire::new(Duration::from_nanos(500));
    for number in 1..=ports {
        let config = DeviceConfig::with_lid(number.into()).with_ethernet();
        wire.attach(std::sync::Arc::new(PortIdentity::new(&config)));
    }
    wire
}

impl Lan<PerfectWire> {
    fn of(hosts: u8) -> Self {
        Self::on(switch(hosts), hosts)
    }
}

impl<W: Wire> Lan<W> {
    fn on(wire: W, hosts: u8) -> Self {
        Self { hosts: (1..=hosts).map(host).collect(), wire, now: Instant::default(), sent: Vec::new() }
    }

    fn step(&mut self) {
        for (place, host) in self.hosts.iter_mut().enumerate() {
            host.now = self.now;
            host.with(|engine, ctx| engine.advance(ctx));
            while let Some(frame) = host.engine.transmit() {
                self.sent.push((place, frame.clone()));
                self.wire.send(self.now, PortId(place), frame);
            }
        }
        while let Some(Delivery { to, frame, .. }) = self.wire.deliver(self.now) {
            self.hosts[to.0].with(|engine, ctx| engine.receive(ctx, &frame));
        }
    }

    fn run(&mut self) {
        let end = self.now.after(Duration::from_secs(1));
        loop {
            self.step();
            let due = self.hosts.iter().filter_map(|host| host.engine.next_work()).chain(self.wire.next_due()).min();
            let Some(due) = due else { return };
            self.now = self.now.max(due);
            assert!(self.now <= end, "not idle");
        }
    }

    /// Queue pairs of two hosts, or two of one, connected between entries of their address tables.
    fn connect(&mut self, st: QpcSt, ends: [usize; 2], entry: u32) -> [TestQp; 2] {
        let qps = ends.map(|at| self.hosts[at].qp_of(st, 6, 6, 8));
        for (at, peer, own, their) in [(ends[0], ends[1], 0, 1), (ends[1], ends[0], 1, 0)] {
            let peer = address(peer as u8 + 1, entry);
            let link = Link { own_psn: 0xff_fffe + own, their_psn: 0xff_fffe + their, ..Link::default() };
            let (own, their) = (qps[own as usize].qpn, qps[their as usize].qpn);
            self.hosts[at].connect_along(own, their, link, 0, |path| path_to(path, &peer, entry));
        }
        qps
    }

    /// Takes the packets that were sent since the last call, which must all be right ones of RoCE.
    fn packets(&mut self) -> Vec<(usize, Packet<'static>)> {
        let sent = std::mem::take(&mut self.sent);
        sent.into_iter().map(|(place, frame)| (place, Packet::decode_roce_v2(&frame).unwrap().into_owned())).collect()
    }
}

/// A path as Linux writes it: traffic class twice, no LID, no GRH bit.
fn path_to(path: &mut ViewMut<'_, Ads>, peer: &RoceAddress, entry: u32) {
    let [a, b, c, d, e, f] = peer.mac;
    path.set(Ads::RMAC_47_32, u16::from_be_bytes([a, b]).into())
        .set(Ads::RMAC_31_0, u32::from_be_bytes([c, d, e, f]))
        .set(Ads::SRC_ADDR_INDEX, entry)
        .set(Ads::HOP_LIMIT, 64)
        .set(Ads::TCLASS, 0x6a)
        .set(Ads::DSCP, 0x6a >> 2)
        .set(Ads::ETH_PRIO, 3)
        .set(Ads::UDP_SPORT, 0xd123)
        .set_bytes(Ads::RGID_RIP, &peer.gid);
    if !peer.is_ipv4 {
        path.set(Ads::FLOW_LABEL, 0xabcde);
    }
}

fn roce(packet: &Packet<'_>) -> RoceV2Link {
    match packet.link {
        PacketLink::RoceV2(link) => link,
        PacketLink::InfiniBand(_) => panic!("an InfiniBand packet"),
    }
}

#[test]
fn every_operation_between_three_devices() {
    let mut lan = Lan::of(3);
    for (ends, entry) in [([0, 1], IPV4), ([1, 2], IPV6), ([2, 0], TAGGED), ([1, 1], IPV4), ([2, 2], TAGGED)] {
        let [mut qa, mut qb] = lan.connect(QpcSt::Rc, ends, entry);
        let [(at_a, key_a), (at_b, key_b)] = ends.map(|at| {
            let at_memory = lan.hosts[at].alloc(16384);
            (at_memory, lan.hosts[at].mkey(at_memory, 16384, 0x1f))
        });
        let message: Vec<u8> = (0..5000u32).map(|at| (at * 7 + entry) as u8).collect();
        let (a, b) = (ends[0], ends[1]);
        lan.hosts[a].write(at_a, &message);
        lan.hosts[b].write(at_b + 8192, &41u64.to_le_bytes());
        lan.hosts[b].post_receive(&mut qb, &[(at_b + 5000, 3000, key_b)]);
        lan.hosts[a].post_send(&mut qa, 0x0b, SIGNALED, 0x1234_5678, &data(at_a, 2500, key_a));
        lan.hosts[a].post_send(&mut qa, 0x08, SIGNALED, 0, &[raddr(at_b, key_b), data(at_a, 5000, key_a)].concat());
        lan.hosts[a].post_send(&mut qa, 0x10, SIGNALED, 0, &[raddr(at_b, key_b), data(at_a + 8000, 5000, key_a)].concat());
        let add = [raddr(at_b + 8192, key_b), words(&[0, 1, 0, 0]), data(at_a + 13_104, 8, key_a)].concat();
        lan.hosts[a].post_send(&mut qa, 0x12, SIGNALED, 0, &add);
        lan.run();
        let done: Vec<_> =
            std::iter::from_fn(|| lan.hosts[a].poll(&mut qa.send)).map(|cqe| (cqe.opcode(), cqe.counter())).collect();
        assert_eq!(done, [(0, 0), (0, 1), (0, 2), (0, 3)], "{ends:?}");
        let got = lan.hosts[b].poll(&mut qb.receive).unwrap();
        assert_eq!((got.opcode(), got.byte_cnt(), got.immediate()), (3, 2500, 0x1234_5678));
        assert_eq!(lan.hosts[b].read(at_b, 5000), message);
        assert_eq!(lan.hosts[b].read(at_b + 5000, 2500), message[..2500]);
        assert_eq!(lan.hosts[a].read(at_a + 8000, 5000), message);
        assert_eq!(lan.hosts[b].read(at_b + 8192, 8), 42u64.to_le_bytes());
        assert_eq!(lan.hosts[a].read(at_a + 13_104, 8), 41u64.to_le_bytes());
        let packets = lan.packets();
        if a == b {
            assert_eq!(packets, [], "between two queue pairs of one device nothing is on the wire");
            continue;
        }
        // Requests and answers have the path of their own queue pair.
        assert!(packets.iter().any(|(_, packet)| packet.transport.bth.opcode.operation == Operation::Acknowledge));
        for (place, packet) in packets {
            let link = roce(&packet);
            let (from, to) = (place as u8 + 1, (a + b - place) as u8 + 1);
            assert_eq!((link.source, link.destination, link.source_port), (mac(from), mac(to), 0xd123));
            assert_eq!(link.route.gids(), [address(from, entry).gid, address(to, entry).gid]);
            assert_eq!(link.vlan.map(|tag| (tag.id, tag.priority)), (entry == TAGGED).then_some((VLAN, 3)));
            match link.route {
                IpRoute::V4(route) => {
                    assert_eq!((entry != IPV6, route.tos, route.ttl, route.dont_fragment), (true, 0x6a, 64, true))
                }
                IpRoute::V6(route) => {
                    assert_eq!((entry, route.tclass, route.hop_limit, route.flow_label), (IPV6, 0x6a, 64, 0xabcde));
                }
            }
            assert_eq!((packet.transport.bth.pkey, packet.transport.bth.migreq), (0xffff, true));
        }
    }
    assert!(lan.hosts.iter().all(|host| host.engine.stats().malformed == 0 && host.audit.findings().is_empty()));
}

#[test]
fn an_unreliable_connection_sends_no_answers() {
    let mut lan = Lan::of(3);
    let [mut qa, mut qb] = lan.connect(QpcSt::Uc, [0, 2], IPV6);
    let at = [0, 2].map(|place| {
        let at = lan.hosts[place].alloc(4096);
        (at, lan.hosts[place].mkey(at, 4096, 0x1f))
    });
    lan.hosts[0].write(at[0].0, &[6; 3000]);
    lan.hosts[2].post_receive(&mut qb, &[(at[1].0, 4096, at[1].1)]);
    lan.hosts[0].post_send(&mut qa, 0x0a, SIGNALED, 0, &data(at[0].0, 3000, at[0].1));
    lan.run();
    assert_eq!(lan.hosts[0].poll(&mut qa.send).map(|cqe| cqe.opcode()), Some(0));
    assert_eq!(lan.hosts[2].poll(&mut qb.receive).map(|cqe| cqe.byte_cnt()), Some(3000));
    assert_eq!(lan.hosts[2].read(at[1].0, 3000), [6; 3000]);
    assert!(lan.packets().iter().all(|(place, _)| *place == 0));
}

/// All faults at once, with several connections in both directions: what the transport repeats and orders, it does here too.
#[test]
fn a_bad_wire_costs_time_alone() {
    let mut lan = Lan::on(FaultyWire::new(switch(3), WireFaults::all(30), 11), 3);
    let mut connections = Vec::new();
    for (ends, entry) in [([0, 1], IPV4), ([1, 2], IPV6), ([2, 0], TAGGED), ([0, 2], IPV4)] {
        let [qa, qb] = lan.connect(QpcSt::Rc, ends, entry);
        let [(at_a, key_a), (at_b, key_b)] = ends.map(|at| {
            let memory = lan.hosts[at].alloc(65536);
            (memory, lan.hosts[at].mkey(memory, 65536, 0x1f))
        });
        let message: Vec<u8> = (0..60_000u32).map(|at| (at * 31 + (at >> 9) + entry) as u8).collect();
        lan.hosts[ends[0]].write(at_a, &message);
        connections.push((ends, qa, qb, at_a, key_a, at_b, key_b, message));
    }
    for (ends, qa, _, at_a, key_a, at_b, key_b, _) in &mut connections {
        for piece in 0..6u64 {
            let body = [raddr(*at_b + piece * 10_000, *key_b), data(*at_a + piece * 10_000, 10_000, *key_a)].concat();
            lan.hosts[ends[0]].post_send(qa, 0x08, SIGNALED, 0, &body);
        }
    }
    lan.run();
    for (ends, mut qa, _, _, _, at_b, _, message) in connections {
        let done: Vec<_> = std::iter::from_fn(|| lan.hosts[ends[0]].poll(&mut qa.send)).map(|cqe| cqe.opcode()).collect();
        assert_eq!(done, [0; 6], "{ends:?}");
        assert!(lan.hosts[ends[1]].read(at_b, 60_000) == message, "{ends:?}");
    }
    let stats = lan.wire.stats();
    assert!(stats.lost > 5 && stats.duplicated > 5 && stats.reordered > 5, "{stats:?}");
}

fn datagram_qp(host: &mut Host) -> TestQp {
    let qp = host.qp_of(QpcSt::Ud, 4, 4, 6);
    host.modify(qp.qpn, CmdOpcode::Rst2InitQp, 0, |qpc| {
        qpc.set(Qpc::Q_KEY, QKEY);
    })
    .unwrap();
    host.modify(qp.qpn, CmdOpcode::Init2RtrQp, 0, |qpc| {
        qpc.set(Qpc::MTU, 5).set(Qpc::LOG_MSG_MAX, 12);
    })
    .unwrap();
    host.modify(qp.qpn, CmdOpcode::Rtr2RtsQp, 0, |_| {}).unwrap();
    qp
}

/// The address vector of `mlx5_wqe_av` as libmlx5 writes it: without the GRH bit. `udp_sport` is where the LID is on
/// InfiniBand, the priority in the upper bits of the service level.
fn vector(dqpn: u32, peer: &RoceAddress, entry: u32, udp_sport: u16) -> Vec<u8> {
    let mut av = words(&[QKEY, 0, 1 << 31 | dqpn, (3 << 1) << 24 | u32::from(udp_sport), 0]);
    av.extend(peer.mac);
    av.extend([0x6a, 7]);
    av.extend(words(&[entry << 20 | 0x54321]));
    av.extend(peer.gid);
    av
}

#[test]
fn a_datagram_has_the_header_that_it_came_with() {
    for (entry, port) in [(IPV4, 0xc123), (IPV6, 0), (TAGGED, 0xffff)] {
        let mut lan = Lan::of(3);
        let (mut qa, mut qb) = (datagram_qp(&mut lan.hosts[0]), datagram_qp(&mut lan.hosts[1]));
        let (at_a, at_b) = (lan.hosts[0].alloc(4096), lan.hosts[1].alloc(4096));
        let (key_a, key_b) = (lan.hosts[0].mkey(at_a, 4096, 0x1f), lan.hosts[1].mkey(at_b, 4096, 0x1f));
        lan.hosts[0].write(at_a, &[0xab; 101]);
        lan.hosts[1].post_receive(&mut qb, &[(at_b, 4096, key_b)]);
        let to = address(2, entry);
        let body = [vector(qb.qpn, &to, entry, port), data(at_a, 101, key_a)].concat();
        lan.hosts[0].post_send(&mut qa, 0x0a, SIGNALED, 0, &body);
        lan.run();
        assert_eq!(lan.hosts[0].poll(&mut qa.send).map(|cqe| cqe.opcode()), Some(0));
        let frame = lan.sent[0].1.clone();
        let cqe = lan.hosts[1].poll(&mut qb.receive).unwrap();
        assert_eq!(cqe.byte_cnt(), 40 + 101);
        assert_eq!(lan.hosts[1].read(at_b + 40, 101), [0xab; 101]);
        // From IP on: that of IPv4 lies behind 20 bytes of zeros (`rxe_resp.c`), that of IPv6 fills the area.
        let ip = if entry == TAGGED { 18 } else { 14 };
        let area = if entry == IPV6 { frame[ip..ip + 40].to_vec() } else { [&[0; 20], &frame[ip..ip + 20]].concat() };
        assert_eq!(lan.hosts[1].read(at_b, 40), area);
        // `handle_responder`: GRH, kind of the header, source queue pair; tag.
        let flags = u32::from_be_bytes(cqe.0[24..28].try_into().unwrap());
        let kind = if entry == IPV6 { 1 } else { 2 };
        assert_eq!((flags >> 28 & 3, flags >> 24 & 3, flags & 0xff_ffff), (1, kind, qa.qpn));
        let tag = if entry == TAGGED { (1, 3 << 13 | VLAN) } else { (0, 0) };
        assert_eq!((cqe.0[29] & 1, u16::from_be_bytes([cqe.0[30], cqe.0[31]])), tag);
        assert_eq!(cqe.immediate(), 0xffff, "its P_Key");
        let packet = Packet::decode_roce_v2(&frame).unwrap();
        let link = roce(&packet);
        assert_eq!(link.source_port, if port == 0 { 0xc000 } else { port });
        match link.route {
            IpRoute::V4(route) => assert_eq!((route.tos, route.ttl), (0x6a, 7)),
            IpRoute::V6(route) => assert_eq!((route.tclass, route.hop_limit, route.flow_label), (0x6a, 7, 0x54321)),
        }
    }
}

#[test]
fn a_datagram_for_a_group_reaches_its_members_and_no_one_else() {
    for (group_mac, gid) in [
        ([1, 0, 0x5e, 1, 2, 3], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]),
        ([0x33, 0x33, 0, 0, 0, 7], [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]),
    ] {
        let entry = if gid[0] == 0xff { IPV6 } else { IPV4 };
        let mut lan = Lan::of(4);
        let mut qps: Vec<TestQp> = (0..4).map(|place| datagram_qp(&mut lan.hosts[place])).collect();
        let mut memory = Vec::new();
        for (place, qp) in qps.iter_mut().enumerate() {
            let at = lan.hosts[place].alloc(4096);
            let key = lan.hosts[place].mkey(at, 4096, 0x1f);
            lan.hosts[place].post_receive(qp, &[(at, 4096, key)]);
            memory.push((at, key));
        }
        // The sender itself, the second and the fourth.
        for place in [0, 1, 3] {
            lan.hosts[place].engine.attach_multicast(qps[place].qpn, gid).unwrap();
        }
        assert_eq!(lan.hosts[2].engine.attach_multicast(qps[2].qpn, address(3, entry).gid), Err(CmdStatus::BadParam));
        let group = RoceAddress { gid, mac: group_mac, ..address(1, entry) };
        let body = [vector(0xff_ffff, &group, entry, 0), data(memory[0].0, 10, memory[0].1)].concat();
        lan.hosts[0].post_send(&mut qps[0], 0x0a, SIGNALED, 0, &body);
        lan.run();
        let got: Vec<_> = qps
            .iter_mut()
            .enumerate()
            .map(|(place, qp)| lan.hosts[place].poll(&mut qp.receive).map(|cqe| cqe.byte_cnt()))
            .collect();
        assert_eq!(got, [Some(50), Some(50), None, Some(50)]);
        // The same to the MAC address of one of them.
        let mut frame = lan.sent[0].1.clone();
        frame[..6].copy_from_slice(&mac(2));
        lan.hosts[1].post_receive(&mut qps[1], &[(memory[1].0, 4096, memory[1].1)]);
        lan.hosts[1].with(|engine, ctx| engine.receive(ctx, &frame));
        assert_eq!(lan.hosts[1].poll(&mut qps[1].receive), None);
    }
}

/// Sends one message and returns whether it came, and how many packets the receiver has dropped.
fn arrives(lan: &mut Lan<PerfectWire>, qps: &mut [TestQp; 2], change: impl Fn(&mut Vec<u8>)) -> (bool, u64) {
    let [qa, qb] = qps;
    post_receives(&mut lan.hosts[1], qb, 1);
    let from = lan.hosts[0].alloc(4096);
    let from_key = lan.hosts[0].mkey(from, 4096, 0x1f);
    lan.hosts[0].post_send(qa, 0x0a, SIGNALED, 0, &data(from, 9, from_key));
    lan.hosts[0].with(|engine, ctx| engine.advance(ctx));
    let refused = |host: &Host| {
        let stats = host.engine.stats();
        stats.dropped + stats.frames_for_others.packets
    };
    let before = refused(&lan.hosts[1]);
    let mut frame = lan.hosts[0].engine.transmit().expect("a frame");
    change(&mut frame);
    lan.hosts[1].with(|engine, ctx| engine.receive(ctx, &frame));
    let came = lan.hosts[1].poll(&mut qb.receive).is_some();
    (came, refused(&lan.hosts[1]) - before)
}

/// Sets the checksum of an IPv4 header without options.
fn set_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum: u32 = frame[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!((sum + (sum >> 16)) as u16)).to_be_bytes());
}

/// Makes the packet a right one again, from other addresses.
fn rewrite(frame: &mut Vec<u8>, change: impl Fn(&mut RoceV2Link)) {
    let mut packet = Packet::decode_roce_v2(frame).unwrap().into_owned();
    let mut link = roce(&packet);
    change(&mut link);
    packet.link = link.into();
    *frame = packet.encode();
}

fn source(link: &mut RoceV2Link) -> &mut [u8; 4] {
    match &mut link.route {
        IpRoute::V4(route) => &mut route.source,
        IpRoute::V6(_) => panic!("IPv6"),
    }
}

fn destination(link: &mut RoceV2Link) -> &mut [u8; 4] {
    match &mut link.route {
        IpRoute::V4(route) => &mut route.destination,
        IpRoute::V6(_) => panic!("IPv6"),
    }
}

/// What happens to a frame on its way.
type Change<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn only_what_is_from_the_peer_for_an_address_of_the_port_is_taken() {
    let one = |change: Change<'_>| {
        let mut lan = Lan::of(2);
        let mut qps = lan.connect(QpcSt::Rc, [0, 1], IPV4);
        // An address more, in no VLAN either.
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 22];
        lan.hosts[1].engine.set_roce_address(9, Some(RoceAddress { gid, ..address(2, IPV4) })).unwrap();
        arrives(&mut lan, &mut qps, change)
    };
    assert_eq!(one(&|_| {}), (true, 0));
    // A router, and a switch that marks congestion: ECN, TTL, checksum, MAC addresses and source port are theirs to change.
    assert_eq!(
        one(&|frame| {
            frame[15] |= 3;
            frame[22] -= 1;
            frame[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
            set_checksum(frame);
        }),
        (true, 0)
    );
    assert_eq!(one(&|frame| rewrite(frame, |link| link.source_port = 7)), (true, 0));
    // The last hop may have none left, and a tag without a VLAN is a priority.
    for ttl in [0, 1] {
        let change = |frame: &mut Vec<u8>| {
            frame[22] = ttl;
            set_checksum(frame);
        };
        assert_eq!(one(&change), (true, 0), "time to live {ttl}");
    }
    let priority = Some(crate::packet::VlanTag { priority: 3, ..Default::default() });
    assert_eq!(one(&|frame| rewrite(frame, |link| link.vlan = priority)), (true, 0));
    let refused: [(&str, Change<'_>); 10] = [
        ("another MAC address", &|frame| rewrite(frame, |link| link.destination = mac(3))),
        ("another IP address of the peer", &|frame| rewrite(frame, |link| *source(link) = [10, 0, 0, 3])),
        ("another destination", &|frame| rewrite(frame, |link| *destination(link) = [10, 0, 0, 3])),
        ("another own address than the path's", &|frame| rewrite(frame, |link| *destination(link) = [10, 0, 0, 22])),
        ("a VLAN that the address is not in", &|frame| {
            rewrite(frame, |link| link.vlan = Some(crate::packet::VlanTag { id: VLAN, ..Default::default() }));
        }),
        ("the same addresses, mapped, in an IPv6 header", &|frame| {
            rewrite(frame, |link| {
                let [sgid, dgid] = link.route.gids();
                link.route = IpRoute::V6(crate::packet::Grh { tclass: 0, flow_label: 0, hop_limit: 64, sgid, dgid });
            });
        }),
        ("a group's MAC address", &|frame| rewrite(frame, |link| link.destination = [1, 0, 0x5e, 0, 0, 1])),
        ("from a group", &|frame| rewrite(frame, |link| link.source = [0xff; 6])),
        ("a wrong ICRC", &|frame| *frame.last_mut().unwrap() ^= 1),
        ("a changed byte", &|frame| frame[60] ^= 1),
    ];
    for (what, change) in refused {
        assert_eq!(one(change), (false, 1), "{what}");
    }
}

/// As in a host with network namespaces: one IP address without a VLAN and in one. Who is in the VLAN is not the peer outside of it.
#[test]
fn the_same_address_in_another_vlan_is_another_hosts() {
    let in_vlan = Some(crate::packet::VlanTag { id: VLAN, ..Default::default() });
    for (vlan, result) in [(None, (true, 0)), (in_vlan, (false, 1))] {
        let mut lan = Lan::of(2);
        lan.hosts[1].engine.set_roce_address(9, Some(RoceAddress { vlan: Some(VLAN), ..address(2, IPV4) })).unwrap();
        let mut qps = lan.connect(QpcSt::Rc, [0, 1], IPV4);
        assert_eq!(arrives(&mut lan, &mut qps, |frame| rewrite(frame, |link| link.vlan = vlan)), result, "{vlan:?}");
    }
}

#[test]
fn without_roce_nothing_is_sent_or_taken() {
    let mut lan = Lan::of(2);
    let mut qps = lan.connect(QpcSt::Rc, [0, 1], IPV4);
    lan.hosts[1].engine.enable_roce(false);
    assert_eq!(arrives(&mut lan, &mut qps, |_| {}), (false, 1));
    lan.hosts[1].engine.enable_roce(true);
    lan.hosts[0].engine.enable_roce(false);
    lan.run();
    assert_eq!(lan.packets(), []);
    // The request ends as one without answers does.
    assert_eq!(lan.hosts[0].poll(&mut qps[0].send).map(|cqe| (cqe.opcode(), cqe.syndrome())), Some((0xd, 0x15)));
}

#[test]
fn an_address_that_is_gone_is_no_source() {
    let mut lan = Lan::of(2);
    let [mut qa, _qb] = lan.connect(QpcSt::Rc, [0, 1], IPV6);
    let at = lan.hosts[0].alloc(4096);
    let key = lan.hosts[0].mkey(at, 4096, 0x1f);
    lan.hosts[0].engine.set_roce_address(IPV6, None).unwrap();
    lan.hosts[0].post_send(&mut qa, 0x0a, SIGNALED, 0, &data(at, 9, key));
    lan.run();
    assert_eq!(lan.packets(), []);
    assert_eq!(lan.hosts[0].poll(&mut qa.send).map(|cqe| cqe.syndrome()), Some(0x15));
    // Nor may a new connection take it, or an entry beyond the table.
    for entry in [IPV6, 2, 255] {
        let qp = lan.hosts[0].qp_of(QpcSt::Rc, 4, 4, 6);
        lan.hosts[0].modify(qp.qpn, CmdOpcode::Rst2InitQp, 0, |_| {}).unwrap();
        let refused = lan.hosts[0].modify(qp.qpn, CmdOpcode::Init2RtrQp, 0, |qpc| {
            qpc.set(Qpc::MTU, 3).set(Qpc::LOG_MSG_MAX, 30);
            path_to(&mut qpc.sub(Qpc::PRIMARY_ADDRESS_PATH), &address(2, IPV6), entry);
        });
        assert_eq!(refused, Err(CmdStatus::BadParam), "entry {entry}");
    }
    assert_eq!(lan.hosts[0].engine.set_roce_address(128, None), Err(CmdStatus::BadParam));
    assert_eq!(Host::new(1).engine.set_roce_address(0, None), Err(CmdStatus::BadParam), "an InfiniBand port");
}

#[test]
fn a_reset_forgets_the_addresses() {
    let mut host = host(1);
    host.engine.reset();
    assert!(!host.engine.has_roce());
    host.engine.enable_roce(true);
    host.insert_named();
    let qp = host.qp_of(QpcSt::Rc, 4, 4, 6);
    host.modify(qp.qpn, CmdOpcode::Rst2InitQp, 0, |_| {}).unwrap();
    let refused = host.modify(qp.qpn, CmdOpcode::Init2RtrQp, 0, |qpc| {
        qpc.set(Qpc::MTU, 3).set(Qpc::LOG_MSG_MAX, 30);
        path_to(&mut qpc.sub(Qpc::PRIMARY_ADDRESS_PATH), &address(2, IPV4), IPV4);
    });
    assert_eq!(refused, Err(CmdStatus::BadParam));
}

/// Cut frames, and frames with one bit turned: nothing is taken that is not a whole right packet.
#[test]
fn hostile_frames_are_dropped() {
    for entry in [IPV4, IPV6, TAGGED] {
        let mut lan = Lan::of(2);
        let [mut qa, mut qb] = lan.connect(QpcSt::Rc, [0, 1], entry);
        let at = [0, 1].map(|place| {
            let at = lan.hosts[place].alloc(4096);
            (at, lan.hosts[place].mkey(at, 4096, 0x1f))
        });
        lan.hosts[1].post_receive(&mut qb, &[(at[1].0, 4096, at[1].1)]);
        lan.hosts[0].post_send(&mut qa, 0x0a, SIGNALED, 0, &data(at[0].0, 9, at[0].1));
        lan.hosts[0].with(|engine, ctx| engine.advance(ctx));
        let frame = lan.hosts[0].engine.transmit().unwrap();
        let mut takes = |frame: &[u8]| {
            // What is no packet of RoCE is received as a frame, and dropped.
            let before = lan.hosts[1].engine.stats();
            lan.hosts[1].with(|engine, ctx| engine.receive(ctx, frame));
            let after = lan.hosts[1].engine.stats();
            after.received.packets != before.received.packets && after.dropped == before.dropped
        };
        for len in 0..frame.len() {
            assert!(!takes(&frame[..len]), "{len} bytes");
        }
        let ip = if entry == TAGGED { 18 } else { 14 };
        let udp = ip + if entry == IPV6 { 40 } else { 20 };
        for bit in ip * 8..frame.len() * 8 {
            let mut turned = frame.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            // What changes on the way: traffic class, flow label, hop limit, the checksum of UDP, the byte of FECN and BECN.
            // IPv4 has a checksum over its own.
            let at = bit / 8;
            let of_ip = entry == IPV6 && (at == ip && bit % 8 < 4 || (ip + 1..ip + 4).contains(&at) || at == ip + 7);
            let is_free = of_ip || [udp + 6, udp + 7, udp + 12].contains(&at);
            assert_eq!(takes(&turned), is_free, "bit {bit}");
        }
        // One of them was the first, the others repeated it.
        assert_eq!(lan.hosts[1].poll(&mut qb.receive).map(|cqe| cqe.byte_cnt()), Some(9));
        assert_eq!(lan.hosts[1].poll(&mut qb.receive), None);
    }
}

/// The first has a UDP header, to the port of RoCE here, but no whole packet. The others may have bytes like one.
#[test]
fn a_fragment_is_for_the_network_interface() {
    let mut lan = Lan::of(2);
    let [mut qa, _] = lan.connect(QpcSt::Rc, [0, 1], IPV4);
    let whole = sent_frame(&mut lan, &mut qa);
    for fragment in [[0x20, 0], [0x20, 5], [0, 5]] {
        let mut frame = whole.clone();
        frame[20..22].copy_from_slice(&fragment);
        set_checksum(&mut frame);
        lan.hosts[1].with(|engine, ctx| engine.receive(ctx, &frame));
    }
    let stats = lan.hosts[1].engine.stats();
    assert_eq!((stats.received.packets, stats.malformed), (0, 0));
    assert_eq!(stats.frames_received.unicast.packets + stats.frames_for_others.packets, 3);
}

/// A SEND of 9 bytes from the first host, on its way.
fn sent_frame(lan: &mut Lan<PerfectWire>, qp: &mut TestQp) -> Vec<u8> {
    let from = lan.hosts[0].alloc(4096);
    let key = lan.hosts[0].mkey(from, 4096, 0x1f);
    lan.hosts[0].post_send(qp, 0x0a, SIGNALED, 0, &data(from, 9, key));
    lan.hosts[0].with(|engine, ctx| engine.advance(ctx));
    lan.hosts[0].engine.transmit().expect("a frame")
}

/// Posts receives of a page of memory, the same for all.
fn post_receives(host: &mut Host, qp: &mut TestQp, count: usize) {
    let at = host.alloc(4096);
    let key = host.mkey(at, 4096, 0x1f);
    (0..count).for_each(|_| host.post_receive(qp, &[(at, 4096, key)]));
}

/// Marks a packet as a switch with a long queue does.
fn mark(frame: &mut [u8]) {
    frame[15] |= 3;
    set_checksum(frame);
}

#[test]
fn a_marked_packet_is_answered_by_a_notification_at_a_bounded_rate() {
    let mut lan = Lan::of(2);
    let [mut qa, mut qb] = lan.connect(QpcSt::Rc, [0, 1], IPV4);
    post_receives(&mut lan.hosts[1], &mut qb, 4);
    let mut answers = Vec::new();
    // Not marked; marked; too early for another one; late enough.
    for (is_marked, wait) in [(false, 0), (true, 1_000), (true, 3_999), (true, 1)] {
        let mut frame = sent_frame(&mut lan, &mut qa);
        if is_marked {
            mark(&mut frame);
        }
        lan.now = lan.now.after(Duration::from_nanos(wait));
        lan.hosts[1].now = lan.now;
        lan.hosts[1].with(|engine, ctx| engine.receive(ctx, &frame));
        let sent: Vec<Vec<u8>> = std::iter::from_fn(|| lan.hosts[1].engine.transmit()).collect();
        answers.push(sent.iter().filter(|frame| CongestionNotification::is_in(frame)).cloned().collect::<Vec<_>>());
        assert!(lan.hosts[1].poll(&mut qb.receive).is_some(), "the packet itself is taken all the same");
    }
    assert_eq!(answers.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 0, 1]);
    let answer = &answers[1][0];
    let notification = CongestionNotification::decode(answer).unwrap();
    let route = match notification.link.route {
        IpRoute::V4(route) => (route.tos, route.source, route.destination),
        IpRoute::V6(_) => panic!("IPv6"),
    };
    assert_eq!((notification.dest_qpn, route), (qa.qpn, (0xc2, [10, 0, 0, 2], [10, 0, 0, 1])));
    assert_eq!((notification.link.destination, notification.link.source), (mac(1), mac(2)));
    // Opcode, P_Key and BECN, as in the notification of a card.
    assert_eq!(answer[42..47], [0x81, 0, 0xff, 0xff, 0x40]);

    // Its receiver counts it and does nothing else; one that is not for a peer, or not whole, is an error.
    let before = lan.hosts[0].engine.stats();
    let mut count = |frame: &[u8]| {
        lan.hosts[0].with(|engine, ctx| {
            engine.receive(ctx, frame);
            engine.advance(ctx);
        });
        let stats = lan.hosts[0].engine.stats();
        assert_eq!(lan.hosts[0].engine.transmit(), None);
        (stats.notifications_received - before.notifications_received, stats.dropped - before.dropped)
    };
    assert_eq!(count(answer), (1, 0));
    assert_eq!(count(&CongestionNotification { dest_qpn: qa.qpn + 1, ..notification }.encode()), (1, 1));
    let mut stranger = notification;
    *source(&mut stranger.link) = [10, 0, 0, 9];
    assert_eq!(count(&stranger.encode()), (1, 2));
    let mut broken = answer.clone();
    broken[60] ^= 1;
    assert_eq!(count(&broken), (1, 3));
    assert_eq!(count(answer), (2, 3));
}

/// The notifications that the second host sends for a marked packet to its queue pair, after `change` of that.
fn notifications_after(change: impl Fn(&mut Host, u32)) -> usize {
    let mut lan = Lan::of(2);
    let [mut qa, qb] = lan.connect(QpcSt::Rc, [0, 1], IPV4);
    let mut frame = sent_frame(&mut lan, &mut qa);
    mark(&mut frame);
    change(&mut lan.hosts[1], qb.qpn);
    lan.hosts[1].with(|engine, ctx| engine.receive(ctx, &frame));
    std::iter::from_fn(|| lan.hosts[1].engine.transmit()).filter(|frame| CongestionNotification::is_in(frame)).count()
}

/// In RESET, INIT and ERR packets are dropped in silence (InfiniBand Architecture 10.3.1).
#[test]
fn who_takes_no_packets_notifies_nobody() {
    assert_eq!(notifications_after(|_, _| {}), 1, "also without a receive: the packet is a right one");
    for opcode in [CmdOpcode::Qp2Err, CmdOpcode::Qp2Rst] {
        assert_eq!(notifications_after(|host, qpn| host.modify(qpn, opcode, 0, |_| {}).unwrap()), 0, "{opcode:?}");
    }
}

/// An acknowledgement is a packet like others, and so is a request that came before. A datagram has no connection.
#[test]
fn answers_and_repetitions_are_notified_too_and_datagrams_are_not() {
    let mut lan = Lan::of(2);
    let [mut qa, mut qb] = lan.connect(QpcSt::Rc, [0, 1], IPV4);
    post_receives(&mut lan.hosts[1], &mut qb, 1);
    let mut request = sent_frame(&mut lan, &mut qa);
    let take = |lan: &mut Lan<PerfectWire>, place: usize, frame: &[u8]| {
        lan.hosts[place].with(|engine, ctx| {
            engine.receive(ctx, frame);
            engine.advance(ctx);
        });
        lan.hosts[place].engine.stats().notifications_sent
    };
    assert_eq!(take(&mut lan, 1, &request), 0);
    let mut answer = lan.hosts[1].engine.transmit().unwrap();
    mark(&mut request);
    assert_eq!(take(&mut lan, 1, &request), 1);
    mark(&mut answer);
    assert_eq!(take(&mut lan, 0, &answer), 1);
    assert_eq!(lan.hosts[0].poll(&mut qa.send).map(|cqe| cqe.opcode()), Some(0));

    let mut lan = Lan::of(2);
    let (mut qa, mut qb) = (datagram_qp(&mut lan.hosts[0]), datagram_qp(&mut lan.hosts[1]));
    let (at_a, at_b) = (lan.hosts[0].alloc(4096), lan.hosts[1].alloc(4096));
    let (key_a, key_b) = (lan.hosts[0].mkey(at_a, 4096, 0x1f), lan.hosts[1].mkey(at_b, 4096, 0x1f));
    lan.hosts[1].post_receive(&mut qb, &[(at_b, 4096, key_b)]);
    let body = [vector(qb.qpn, &address(2, IPV4), IPV4, 0), data(at_a, 101, key_a)].concat();
    lan.hosts[0].post_send(&mut qa, 0x0a, SIGNALED, 0, &body);
    lan.hosts[0].with(|engine, ctx| engine.advance(ctx));
    let mut frame = lan.hosts[0].engine.transmit().unwrap();
    mark(&mut frame);
    assert_eq!(take(&mut lan, 1, &frame), 0);
    assert!(lan.hosts[1].poll(&mut qb.receive).is_some());
}

/// The time is one between notifications from the port, to any peer; they have a priority of their own (Linux
/// `np_min_time_between_cnps`, `np_cnp_prio`).
#[test]
fn notifications_have_the_time_and_the_priority_of_the_port() {
    let mut lan = Lan::of(2);
    let mut connections = [(); 2].map(|()| lan.connect(QpcSt::Rc, [0, 1], TAGGED));
    let [first, second] = connections.each_mut().map(|[qa, _]| {
        let mut frame = sent_frame(&mut lan, qa);
        rewrite(&mut frame, |link| match &mut link.route {
            IpRoute::V4(route) => route.tos |= 3,
            IpRoute::V6(_) => panic!("IPv6"),
        });
        frame
    });
    let notified = [(0, &first), (3_999, &second), (4_000, &second)].map(|(nanos, frame)| {
        lan.hosts[1].now = Instant::from_nanos(1_000 + nanos);
        lan.hosts[1].with(|engine, ctx| engine.receive(ctx, frame));
        let mut sent = std::iter::from_fn(|| lan.hosts[1].engine.transmit());
        let notification = sent.find(|frame| CongestionNotification::is_in(frame))?;
        let CongestionNotification { link, dest_qpn } = CongestionNotification::decode(&notification).unwrap();
        link.vlan.map(|tag| (dest_qpn, tag.id, tag.priority))
    });
    let [first, second] = connections.map(|[qa, _]| Some((qa.qpn, VLAN, 6)));
    assert_eq!(notified, [first, None, second]);
}

/// Of a path from an IPv4 address only the last four bytes of the peer's are sent, so that the others are nobody's to compare.
#[test]
fn of_an_ipv4_peer_four_bytes_count() {
    let mut lan = Lan::of(2);
    let qps = [0, 1].map(|at: usize| lan.hosts[at].qp_of(QpcSt::Rc, 6, 6, 8));
    let link = Link { own_psn: 7, their_psn: 7, ..Link::default() };
    for (at, peer) in [(0, 1), (1, 0)] {
        let mut their = address(peer as u8 + 1, IPV4);
        their.gid[..12].fill(0);
        lan.hosts[at].connect_along(qps[at].qpn, qps[peer].qpn, link, 0, |path| path_to(path, &their, IPV4));
    }
    let [mut qa, mut qb] = qps;
    let [(at_a, key_a), (at_b, key_b)] = [0, 1].map(|place: usize| {
        let at = lan.hosts[place].alloc(4096);
        (at, lan.hosts[place].mkey(at, 4096, 0x1f))
    });
    lan.hosts[1].post_receive(&mut qb, &[(at_b, 4096, key_b)]);
    lan.hosts[0].post_send(&mut qa, 0x0a, SIGNALED, 0, &data(at_a, 9, key_a));
    lan.run();
    assert_eq!(lan.hosts[1].poll(&mut qb.receive).map(|cqe| cqe.byte_cnt()), Some(9));
    assert_eq!(lan.hosts[0].poll(&mut qa.send).map(|cqe| cqe.opcode()), Some(0));
}

/// A group is one of each VLAN: what is sent to it in one does not come to a port that has no address there.
#[test]
fn a_datagram_for_a_group_stays_in_its_vlan() {
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];
    let group = RoceAddress { gid, is_ipv4: true, mac: [1, 0, 0x5e, 1, 2, 3], vlan: None };
    // Without a VLAN, with a priority alone, in that of an address, in another one.
    for (vlan, comes) in [(None, true), (Some(0), true), (Some(VLAN), true), (Some(VLAN + 1), false)] {
        let mut lan = Lan::of(2);
        let (mut qa, mut qb) = (datagram_qp(&mut lan.hosts[0]), datagram_qp(&mut lan.hosts[1]));
        let [(at_a, key_a), (at_b, key_b)] = [0, 1].map(|place: usize| {
            let at = lan.hosts[place].alloc(4096);
            (at, lan.hosts[place].mkey(at, 4096, 0x1f))
        });
        lan.hosts[1].post_receive(&mut qb, &[(at_b, 4096, key_b)]);
        lan.hosts[1].engine.attach_multicast(qb.qpn, gid).unwrap();
        let body = [vector(0xff_ffff, &group, IPV4, 0), data(at_a, 10, key_a)].concat();
        lan.hosts[0].post_send(&mut qa, 0x0a, SIGNALED, 0, &body);
        lan.hosts[0].with(|engine, ctx| engine.advance(ctx));
        let mut frame = lan.hosts[0].engine.transmit().unwrap();
        rewrite(&mut frame, |link| link.vlan = vlan.map(|id| crate::packet::VlanTag { id, ..Default::default() }));
        lan.hosts[1].with(|engine, ctx| engine.receive(ctx, &frame));
        assert_eq!(lan.hosts[1].poll(&mut qb.receive).is_some(), comes, "{vlan:?}");
        // The port has no more of its VLAN once the address is gone.
        if vlan == Some(VLAN) {
            lan.hosts[1].post_receive(&mut qb, &[(at_b, 4096, key_b)]);
            lan.hosts[1].engine.set_roce_address(TAGGED, None).unwrap();
            lan.hosts[1].with(|engine, ctx| engine.receive(ctx, &frame));
            assert!(lan.hosts[1].poll(&mut qb.receive).is_none());
        }
    }
}

/// IEEE 802.3, 3.2.7: without bytes of its own a SEND in IPv4 has 58 up to its ICRC. The next longer one has its own length.
#[test]
fn packets_are_as_long_as_ethernet_frames() {
    for (entry, len, frame_len) in [(IPV4, 0, 60), (IPV4, 4, 62), (TAGGED, 0, 62), (IPV6, 0, 78)] {
        let mut lan = Lan::of(2);
        let [mut qa, mut qb] = lan.connect(QpcSt::Rc, [0, 1], entry);
        let [(at_a, key_a), (at_b, key_b)] = [0, 1].map(|place: usize| {
            let at = lan.hosts[place].alloc(4096);
            (at, lan.hosts[place].mkey(at, 4096, 0x1f))
        });
        lan.hosts[1].post_receive(&mut qb, &[(at_b, 4096, key_b)]);
        let body = if len == 0 { Vec::new() } else { data(at_a, len, key_a) };
        lan.hosts[0].post_send(&mut qa, 0x0a, SIGNALED, 0, &body);
        lan.run();
        assert_eq!(lan.hosts[1].poll(&mut qb.receive).map(|cqe| cqe.byte_cnt()), Some(len));
        let sent = lan.hosts[0].engine.stats().sent;
        assert_eq!((lan.sent[0].1.len(), sent.octets), (frame_len, frame_len as u64), "entry {entry}");
    }
}
