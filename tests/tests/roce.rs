//! RoCEv2 between drivers on Ethernet ports: addresses of every kind, what is on the wire, what a path must have, entries of the GID
//! table that come and go, loss.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use bareverbs::error::{CreateAhError, Errno, LinkFault, ModifyQpError, SetGidError, WaitActiveError};
use bareverbs::platform::Instant;
use bareverbs::{
    Access, AddressVector, Completion, CqHandle, Destination, Event, Gid, GidEntry, GlobalRoute, LinkLayer, Mac, Mtu, Payload,
    PdHandle, PhysState, PortState, Psn, Qkey, QpAttr, QpAttrMask, QpHandle, QpInit, QpState, QpType, Qpn, RecvWr, SendFlags,
    SendOp, SendWr, Source, WcStatus,
};
use bareverbs_mlx5::{Config, Error};
use bareverbs_sim::fabric::{Direction, Tap};
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::wire::{EgressLimits, EgressStats, PortId, Probability, WireFaults};
use bareverbs_sim::{DeviceConfig, LinkSpeed, LinkWidth};
use bareverbs_tests::{ALL_ACCESS, CAP, Node, Pair, Region, driver_config, end, instant, pattern, refused, to_state};

/// Entries of the GID table: that which the bring-up of the tests sets, then those of this file.
const LINK_LOCAL: u8 = 0;
const IPV4: u8 = 1;
const IPV6: u8 = 2;
const TAGGED_IPV4: u8 = 3;
const TAGGED_IPV6: u8 = 4;
const ALL: [u8; 5] = [LINK_LOCAL, IPV4, IPV6, TAGGED_IPV4, TAGGED_IPV6];
/// An entry that nobody sets.
const EMPTY: u8 = 9;
const VLAN: u16 = 100;
const QKEY: Qkey = Qkey::new(0x1111_2222);
const SIZE: usize = 1 << 16;
/// Bytes before each datagram.
const AREA: usize = GlobalRoute::AREA;

/// Entry `index` of host `number`.
fn entry(number: u8, index: u8, mac: Mac) -> GidEntry {
    let ipv6 = |net| Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, number.into());
    match index {
        IPV4 => GidEntry::new(Ipv4Addr::new(192, 0, 2, number), mac),
        IPV6 => GidEntry::new(ipv6(1), mac),
        TAGGED_IPV4 => GidEntry { vlan: Some(VLAN), ..GidEntry::new(Ipv4Addr::new(198, 51, 100, number), mac) },
        TAGGED_IPV6 => GidEntry { vlan: Some(VLAN), ..GidEntry::new(ipv6(2), mac) },
        _ => GidEntry::link_local(mac),
    }
}

/// A host on an Ethernet wire, whose queue pairs share a completion queue.
struct Host {
    node: Node,
    number: u8,
    mac: Mac,
    pd: PdHandle,
    cq: CqHandle,
    from: Region,
    into: Region,
}

impl Host {
    fn new(world: &World, number: u8) -> Self {
        Self::with_mtu(world, number, Config::DEFAULT.ethernet_mtu)
    }

    /// With an MTU of the port, as a network interface has it.
    fn with_mtu(world: &World, number: u8, ethernet_mtu: u16) -> Self {
        let host = world.add(instant(number.into()).with_ethernet()).unwrap();
        let config = Config { ethernet_mtu, ..driver_config(&host) };
        let mut node = Node::with_config(host, &config);
        let mac = node.verbs.query_port(1).unwrap().mac;
        for index in &ALL[1..] {
            node.verbs.set_gid(1, (*index).into(), &entry(number, *index, mac)).unwrap();
        }
        let pd = node.verbs.alloc_pd().unwrap();
        let cq = node.verbs.create_cq(4096).unwrap();
        let mut region = || node.region(pd, SIZE, ALL_ACCESS);
        let (from, into) = (region(), region());
        Self { node, number, mac, pd, cq, from, into }
    }

    /// Returns the path to this host from the same entry of another.
    fn path(&self, index: u8) -> AddressVector {
        let dgid = entry(self.number, index, self.mac).gid;
        let route = GlobalRoute { dgid, sgid_index: index, hop_limit: 64, ..GlobalRoute::default() };
        AddressVector { port_num: 1, grh: Some(route), dmac: Some(self.mac), ..AddressVector::default() }
    }

    fn qp(&mut self, qp_type: QpType) -> QpHandle {
        let (send_cq, recv_cq) = (self.cq, self.cq);
        self.node.verbs.create_qp(&QpInit { pd: self.pd, qp_type, send_cq, recv_cq, cap: CAP, sq_sig_all: true }).unwrap()
    }

    fn qpn(&self, qp: QpHandle) -> Qpn {
        self.node.verbs.qp_info(qp).unwrap().qpn
    }

    /// Connects a queue pair, of this host, to that of another.
    fn connect(&mut self, qp: QpHandle, av: AddressVector, dest_qpn: Qpn) -> Result<(), ModifyQpError<Error>> {
        let attr = QpAttr { av, dest_qpn, ..attributes() };
        self.node.verbs.modify_qp_to_rts(qp, &attr)
    }

    fn datagrams(&mut self) -> QpHandle {
        let qp = self.qp(QpType::Ud);
        self.node.verbs.modify_qp_to_rts(qp, &QpAttr { port_num: 1, qkey: QKEY, ..QpAttr::default() }).unwrap();
        qp
    }

    fn done(&mut self) -> Completion {
        let done = self.node.completions(self.cq, 1)[0];
        assert_eq!(done.status, WcStatus::Success, "{done:?}");
        done
    }

    /// Waits for the next completion of a datagram.
    fn received(&mut self) -> (Completion, Source) {
        for _ in 0..10_000 {
            let found = self.node.verbs.completions(self.cq).with_source().map(Result::unwrap).next();
            if let Some((done, Some(source))) = found {
                assert_eq!(done.status, WcStatus::Success);
                return (done, source);
            }
            self.node.relax();
        }
        panic!("no datagram came");
    }
}

/// What all connections here have.
fn attributes() -> QpAttr {
    QpAttr {
        access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        port_num: 1,
        path_mtu: Mtu::Mtu1024,
        timeout: 8,
        retry_cnt: 7,
        rnr_retry: 7,
        rq_psn: Psn::new(0xff_fff0),
        sq_psn: Psn::new(0xff_fff0),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        ..QpAttr::default()
    }
}

fn lan(count: u8) -> (World, Vec<Host>) {
    let world = World::new(WorldConfig::default());
    let hosts = (1..=count).map(|number| Host::new(&world, number)).collect();
    (world, hosts)
}

/// Two queue pairs, connected over an entry of both.
fn connected(a: &mut Host, b: &mut Host, qp_type: QpType, index: u8) -> [QpHandle; 2] {
    let (qa, qb) = (a.qp(qp_type), b.qp(qp_type));
    a.connect(qa, b.path(index), b.qpn(qb)).unwrap();
    b.connect(qb, a.path(index), a.qpn(qa)).unwrap();
    [qa, qb]
}

fn post(host: &mut Host, qp: QpHandle, op: SendOp<'_>) {
    host.node.verbs.post_send(qp, &SendWr { wr_id: 1, flags: SendFlags::empty(), op }).unwrap();
}

/// A WRITE of `len` bytes from one host into another, which arrives whole.
fn write(a: &mut Host, b: &mut Host, qp: QpHandle, seed: u64, len: usize) {
    let bytes = pattern(seed, len);
    a.from.buffer.write(0, &bytes);
    let sges = [a.from.sge(0, len)];
    let remote = b.into.remote(SIZE / 2);
    post(a, qp, SendOp::Write { payload: Payload::Sges(&sges), remote });
    a.done();
    assert!(b.into.buffer.read(SIZE / 2, len) == bytes, "{len} bytes");
}

/// Queue pairs of unreliable connections, and a device that talks to itself without the wire.
#[test]
fn unreliable_connections_and_loopback_work_over_every_kind_of_address() {
    let (world, mut hosts) = lan(2);
    let [a, b] = hosts.as_mut_slice() else { unreachable!() };
    for index in ALL {
        let [qa, qb] = connected(a, b, QpType::Uc, index);
        let sges = [b.into.sge(0, 2000)];
        b.node.verbs.post_recv(qb, &RecvWr { wr_id: 7, sges: &sges }).unwrap();
        let bytes = pattern(u64::from(index), 2000);
        a.from.buffer.write(0, &bytes);
        let sges = [a.from.sge(0, 2000)];
        post(a, qa, SendOp::Send { payload: Payload::Sges(&sges) });
        a.done();
        assert_eq!((b.done().byte_len, b.into.buffer.read(0, 2000) == bytes), (2000, true));
        for (host, qp) in [(&mut *a, qa), (&mut *b, qb)] {
            host.node.verbs.destroy_qp(qp).unwrap();
        }
    }
    let before = world.wire_stats().sent;
    for index in ALL {
        let (one, two) = (a.qp(QpType::Rc), a.qp(QpType::Rc));
        let path = a.path(index);
        a.connect(one, path, a.qpn(two)).unwrap();
        a.connect(two, path, a.qpn(one)).unwrap();
        let bytes = pattern(u64::from(index), 3000);
        a.from.buffer.write(0, &bytes);
        let (sges, remote) = ([a.from.sge(0, 3000)], a.into.remote(0));
        post(a, one, SendOp::Write { payload: Payload::Sges(&sges), remote });
        a.done();
        assert!(a.into.buffer.read(0, 3000) == bytes);
    }
    assert_eq!(world.wire_stats().sent, before, "packets to the own address stay in the device");
}

#[test]
fn every_operation_of_connected_queue_pairs_works_over_every_kind_of_address() {
    let (_world, mut hosts) = lan(2);
    let [a, b] = hosts.as_mut_slice() else { unreachable!() };
    // All at once, two of each kind, so that a packet of one could reach another.
    let connections: Vec<_> = (0..2).flat_map(|_| ALL).map(|index| connected(a, b, QpType::Rc, index)).collect();
    let mut seed = 0;
    for [qa, qb] in &connections {
        for len in [1, 1024, 5000] {
            seed += 1;
            write(a, b, *qa, seed, len);
            seed += 1;
            write(b, a, *qb, seed, len);
        }
        // SEND.
        let bytes = pattern(seed + 1000, 3000);
        b.into.buffer.write(0, &[0; 3000]);
        let sges = [b.into.sge(0, 3000)];
        b.node.verbs.post_recv(*qb, &RecvWr { wr_id: 7, sges: &sges }).unwrap();
        a.from.buffer.write(0, &bytes);
        let sges = [a.from.sge(0, 3000)];
        post(a, *qa, SendOp::Send { payload: Payload::Sges(&sges) });
        a.done();
        assert_eq!((b.done().byte_len, b.into.buffer.read(0, 3000) == bytes), (3000, true));
        // READ.
        let bytes = pattern(seed + 2000, 4097);
        b.into.buffer.write(0, &bytes);
        let sges = [a.into.sge(0, 4097)];
        post(a, *qa, SendOp::Read { sges: &sges, remote: b.into.remote(0) });
        a.done();
        assert!(a.into.buffer.read(0, 4097) == bytes);
        // ATOMIC.
        b.into.buffer.write(0, &40_u64.to_ne_bytes());
        let sge = a.into.sge(0, 8);
        post(a, *qa, SendOp::FetchAdd { sge, remote: b.into.remote(0), add: 2 });
        a.done();
        let read = |region: &Region| u64::from_ne_bytes(region.buffer.read(0, 8).try_into().unwrap());
        assert_eq!((read(&a.into), read(&b.into)), (40, 42));
    }
    a.node.assert_no_findings();
    b.node.assert_no_findings();
}

/// Frames on the cables, as they arrive.
#[derive(Clone, Default)]
struct Cable(Arc<Mutex<Vec<Vec<u8>>>>);

impl Tap for Cable {
    fn frame(&mut self, _: Instant, _: PortId, _: Direction, frame: &[u8]) {
        self.0.lock().unwrap().push(frame.to_vec());
    }
}

impl Cable {
    fn on(world: &World) -> Self {
        let cable = Self::default();
        world.set_tap(Some(Box::new(cable.clone())));
        cable
    }

    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// What a path says stands in the packets: IEEE 802.3 and 802.1Q, RFC 791, RFC 8200, RFC 768, IBTA annex A17.
#[test]
fn what_a_path_says_is_in_the_headers_of_its_packets() {
    let (world, mut hosts) = lan(2);
    let [a, b] = hosts.as_mut_slice() else { unreachable!() };
    let cable = Cable::on(&world);
    let numbers: Vec<_> =
        ALL.into_iter().map(|index| (index, a.qp(QpType::Rc), b.qp(QpType::Rc), a.datagrams(), b.datagrams())).collect();
    for (index, qa, qb, ua, ub) in numbers {
        let path = b.path(index);
        let route = GlobalRoute { flow_label: 0x1_2345, hop_limit: 17, traffic_class: 0x6a, ..path.grh.unwrap() };
        let there = AddressVector { grh: Some(route), sl: 5, ..path };
        a.connect(qa, there, b.qpn(qb)).unwrap();
        b.connect(qb, a.path(index), a.qpn(qa)).unwrap();
        cable.take();
        write(a, b, qa, 1, 10);
        let connected = cable.take().swap_remove(0);
        let ah = a.node.verbs.create_ah(a.pd, &there).unwrap();
        let to = Destination { ah, remote_qpn: b.qpn(ub), remote_qkey: QKEY };
        let sges = [b.into.sge(0, AREA + 10)];
        b.node.verbs.post_recv(ub, &RecvWr { wr_id: 1, sges: &sges }).unwrap();
        a.node.verbs.post_send(ua, &SendWr::send_to(&to, &[9; 10])).unwrap();
        a.done();
        let (done, source) = b.received();
        let frames = cable.take();
        assert_eq!((done.byte_len as usize, frames.len()), (AREA + 10, 1));

        for frame in [connected, frames[0].clone()] {
            let (own, other) = (entry(1, index, a.mac), entry(2, index, b.mac));
            assert_eq!((&frame[..6], &frame[6..12]), (&b.mac.0[..], &a.mac.0[..]));
            let mut rest = &frame[12..];
            if let Some(vlan) = own.vlan {
                assert_eq!(rest[..4], [0x81, 0, 5 << 5 | (vlan >> 8) as u8, vlan as u8]);
                rest = &rest[4..];
            }
            // Type, version; type of service, time to live or hop limit, protocol; addresses.
            let (kind, ip) = (&rest[..2], &rest[2..]);
            let udp = if own.gid.is_ipv4() {
                assert_eq!((kind, ip[0], ip[1], ip[8], ip[9]), (&[8, 0][..], 0x45, 0x6a, 17, 17));
                assert_eq!((&ip[12..16], &ip[16..20]), (&own.gid.0[12..], &other.gid.0[12..]));
                &ip[20..]
            } else {
                assert_eq!((kind, &ip[..4], ip[6], ip[7]), (&[0x86, 0xdd][..], &[0x66, 0xa1, 0x23, 0x45][..], 17, 17));
                assert_eq!((&ip[8..24], &ip[24..40]), (&own.gid.0[..], &other.gid.0[..]));
                &ip[40..]
            };
            // The source port of flow label 0x12345: 0xc000 | 0x2345 ^ 4. The destination port is 4791, P_Key 0xffff.
            assert_eq!((&udp[..4], &udp[10..12]), (&[0xe3, 0x41, 0x12, 0xb7][..], &[0xff, 0xff][..]));
        }

        // Who has sent it: the priority, where a tag said one, and an address for an answer.
        let priority = if index == TAGGED_IPV4 || index == TAGGED_IPV6 { 5 } else { 0 };
        assert_eq!((source.sl, source.slid.get(), source.grh, source.src_qp), (priority, 0, true, a.qpn(ua)));
        assert_eq!(source.vlan, entry(1, index, a.mac).vlan);
        let area = b.into.buffer.read(0, AREA).try_into().unwrap();
        let reply = GlobalRoute::reply(&area, index);
        assert_eq!((reply.dgid, reply.traffic_class), (entry(1, index, a.mac).gid, 0x68));
        assert_eq!(b.into.buffer.read(AREA, 10), [9; 10]);
    }
    a.node.assert_no_findings();
}

#[test]
fn a_datagram_is_answered_and_groups_get_copies() {
    let (_world, mut hosts) = lan(4);
    for index in ALL {
        let [a, b, ..] = hosts.as_mut_slice() else { unreachable!() };
        let (ua, ub) = (a.datagrams(), b.datagrams());
        for (host, qp) in [(&mut *a, ua), (&mut *b, ub)] {
            let sges = [host.into.sge(0, AREA), host.into.sge(1024, 1024)];
            host.node.verbs.post_recv(qp, &RecvWr { wr_id: 1, sges: &sges }).unwrap();
        }
        let ah = a.node.verbs.create_ah(a.pd, &b.path(index)).unwrap();
        let to = Destination { ah, remote_qpn: b.qpn(ub), remote_qkey: QKEY };
        a.node.verbs.post_send(ua, &SendWr::send_to(&to, b"who is there?")).unwrap();
        a.done();
        let (_, source) = b.received();
        let area = b.into.buffer.read(0, AREA).try_into().unwrap();
        let answer = AddressVector { grh: Some(GlobalRoute::reply(&area, index)), dmac: Some(a.mac), ..source.reply(1) };
        let ah = b.node.verbs.create_ah(b.pd, &answer).unwrap();
        let to = Destination { ah, remote_qpn: source.src_qp, remote_qkey: QKEY };
        b.node.verbs.post_send(ub, &SendWr::send_to(&to, b"it is me")).unwrap();
        b.done();
        assert_eq!(a.received().1.src_qp, b.qpn(ub));
        assert_eq!(a.into.buffer.read(1024, 8), b"it is me");
        for (host, qp) in [(&mut *a, ua), (&mut *b, ub)] {
            host.node.verbs.destroy_qp(qp).unwrap();
            assert!(host.node.poll(host.cq).is_empty());
        }

        // The third of the members has no receive, and the sender is none.
        let group: Gid = if entry(1, index, a.mac).gid.is_ipv4() {
            Ipv4Addr::new(239, 1, 2, index).into()
        } else {
            Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0, index.into()).into()
        };
        let qps: Vec<QpHandle> = hosts.iter_mut().map(Host::datagrams).collect();
        for (host, qp) in hosts.iter_mut().zip(&qps).skip(1) {
            host.node.verbs.attach_mcast(*qp, &group).unwrap();
        }
        for (host, qp) in hosts.iter_mut().zip(&qps).skip(2) {
            let sges = [host.into.sge(0, 2048)];
            host.node.verbs.post_recv(*qp, &RecvWr { wr_id: 1, sges: &sges }).unwrap();
        }
        let route = GlobalRoute { dgid: group, sgid_index: index, hop_limit: 1, ..GlobalRoute::default() };
        let av = AddressVector { port_num: 1, grh: Some(route), ..AddressVector::default() };
        let pd = hosts[0].pd;
        let ah = hosts[0].node.verbs.create_ah(pd, &av).unwrap();
        let to = Destination { ah, remote_qpn: Destination::MULTICAST_QPN, remote_qkey: QKEY };
        hosts[0].node.verbs.post_send(qps[0], &SendWr::send_to(&to, b"all of you")).unwrap();
        hosts[0].done();
        for host in &mut hosts[2..] {
            assert_eq!(host.received().0.byte_len as usize, AREA + 10);
            assert_eq!(host.into.buffer.read(AREA, 10), b"all of you");
        }
        for (at, (host, qp)) in hosts.iter_mut().zip(&qps).enumerate() {
            if at != 0 {
                host.node.verbs.detach_mcast(*qp, &group).unwrap();
            }
            host.node.verbs.destroy_qp(*qp).unwrap();
            assert!(host.node.poll(host.cq).is_empty());
            host.node.assert_no_findings();
        }
    }
}

/// The path of an Ethernet port with one thing that does not fit, and what the refusal says to do.
fn wrong_paths(right: AddressVector) -> Vec<(AddressVector, LinkFault, &'static str)> {
    let route = right.grh.unwrap();
    let group = Mac([0x33, 0x33, 0, 0, 0, 1]);
    let lid = bareverbs::Lid::new(7);
    vec![
        (AddressVector { grh: None, ..right }, LinkFault::NoRoute, "AddressVector::grh"),
        (AddressVector { dmac: None, ..right }, LinkFault::NoMac, "AddressVector::dmac"),
        (AddressVector { dmac: Some(Mac::ZERO), ..right }, LinkFault::NoMac, "of the peer, or of the router"),
        (AddressVector { dlid: lid, ..right }, LinkFault::Lid { lid }, "leave it 0"),
        (AddressVector { sl: 8, ..right }, LinkFault::Priority { sl: 8 }, "from 0 to 7"),
        (AddressVector { grh: Some(GlobalRoute { hop_limit: 0, ..route }), ..right }, LinkFault::HopLimit, "64 is usual"),
        (AddressVector { dmac: Some(group), ..right }, LinkFault::Group { mac: group }, "Gid::group_mac"),
    ]
}

// contract: path-link-layer
#[test]
fn a_path_of_the_other_link_layer_is_refused_with_what_to_do() {
    let (_world, mut hosts) = lan(2);
    let [a, b] = hosts.as_mut_slice() else { unreachable!() };
    let (qa, qb) = (a.qp(QpType::Rc), b.qp(QpType::Rc));
    a.node.verbs.modify_qp(qa, &QpAttr { state: QpState::Init, ..attributes() }, INIT).unwrap();
    for (av, fault, text) in wrong_paths(b.path(IPV4)) {
        let refused = refused!(a.node.verbs.create_ah(a.pd, &av), Einval, CreateAhError::Path { .. });
        assert_eq!(refused, CreateAhError::Path { fault });
        assert!(refused.to_string().contains(text), "{refused}");
        let attr = QpAttr { state: QpState::Rtr, av, dest_qpn: b.qpn(qb), ..attributes() };
        let refused = refused!(a.node.verbs.modify_qp(qa, &attr, RTR), Einval, ModifyQpError::Path { .. });
        assert_eq!(refused, ModifyQpError::Path { attribute: QpAttrMask::AV, fault });
        assert!(refused.to_string().contains(text), "{refused}");
        assert_eq!(a.node.verbs.query_qp(qa).unwrap().state, QpState::Init, "as before");
    }
    // The same queue pair with the right path.
    let right = b.path(IPV4);
    let attr = QpAttr { state: QpState::Rtr, av: right, dest_qpn: b.qpn(qb), ..attributes() };
    a.node.verbs.modify_qp(qa, &attr, RTR).unwrap();
    a.node.verbs.modify_qp(qa, &QpAttr { state: QpState::Rts, ..attributes() }, RTS).unwrap();
    b.connect(qb, a.path(IPV4), a.qpn(qa)).unwrap();
    write(a, b, qa, 1, 100);
    let alternate = QpAttr { state: QpState::Rts, alt_av: right, ..attributes() };
    let refused = a.node.verbs.modify_qp(qa, &alternate, QpAttrMask::STATE | QpAttrMask::ALT_PATH).unwrap_err();
    assert_eq!(refused, ModifyQpError::Path { attribute: QpAttrMask::ALT_PATH, fault: LinkFault::AlternatePath });
    // A GID of a group is none that InfiniBand has, and the other way round.
    let ud = a.datagrams();
    refused!(a.node.verbs.attach_mcast(ud, &entry(1, IPV4, a.mac).gid), Einval, bareverbs::error::AttachMcastError::NoGroup);

    let mut pair = Pair::new();
    let end = end(&mut pair.a, true);
    let av = AddressVector { dlid: bareverbs::Lid::new(2), port_num: 1, dmac: right.dmac, ..AddressVector::default() };
    let refused = pair.a.verbs.create_ah(end.pd, &av).unwrap_err();
    assert_eq!(refused, CreateAhError::Path { fault: LinkFault::Mac });
    assert!(refused.to_string().contains("give the peer's LID"), "{refused}");
    let refused = pair.a.verbs.modify_qp_to_rts(end.qp, &QpAttr { av, ..attributes() }).unwrap_err();
    assert_eq!(refused, ModifyQpError::Path { attribute: QpAttrMask::AV, fault: LinkFault::Mac });
    let refused = pair.a.verbs.set_gid(1, 0, &entry(1, IPV4, a.mac)).unwrap_err();
    assert_eq!(refused, SetGidError::InfiniBand { port: 1 });
    let refused = pair.a.verbs.delete_gid(1, 0).unwrap_err();
    assert!(refused.to_string().contains("is an InfiniBand port"), "{refused}");
}

const INIT: QpAttrMask =
    QpAttrMask::STATE.union(QpAttrMask::PKEY_INDEX).union(QpAttrMask::PORT).union(QpAttrMask::ACCESS_FLAGS);
const RTR: QpAttrMask = QpAttrMask::STATE
    .union(QpAttrMask::AV)
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::MIN_RNR_TIMER);
const RTS: QpAttrMask = QpAttrMask::STATE
    .union(QpAttrMask::SQ_PSN)
    .union(QpAttrMask::TIMEOUT)
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC);

// contract: gid-set, gid-refused
#[test]
fn entries_are_read_as_they_were_set_and_impossible_ones_are_refused() {
    let (_world, mut hosts) = lan(1);
    let Host { node, mac, .. } = &mut hosts[0];
    let verbs = &mut node.verbs;
    for index in ALL {
        assert_eq!(verbs.query_gid(1, index.into()).unwrap(), entry(1, index, *mac).gid);
    }
    assert_eq!(verbs.query_gid(1, EMPTY.into()).unwrap(), Gid::default());
    let right = entry(1, IPV4, *mac);
    let group: Gid = Ipv4Addr::new(224, 0, 0, 1).into();
    for (wrong, error, text) in [
        (GidEntry { gid: Gid::default(), ..right }, SetGidError::Address, "no address of a port"),
        (GidEntry { gid: group, ..right }, SetGidError::Address, "no address of a port"),
        (GidEntry { mac: Mac::ZERO, ..right }, SetGidError::Mac { mac: Mac::ZERO }, "PortAttr::mac"),
        (GidEntry { vlan: Some(0), ..right }, SetGidError::Vlan { vlan: 0 }, "1 to 4094"),
        (GidEntry { vlan: Some(4095), ..right }, SetGidError::Vlan { vlan: 4095 }, "VLAN 4095"),
    ] {
        let refused = verbs.set_gid(1, IPV6.into(), &wrong).unwrap_err();
        assert_eq!(refused, error);
        assert!(refused.to_string().contains(text), "{refused}");
        assert_eq!(verbs.query_gid(1, IPV6.into()).unwrap(), entry(1, IPV6, *mac).gid, "as before");
    }
    assert_eq!(verbs.set_gid(2, 0, &right), Err(SetGidError::Port { port: 2 }));
    let table = verbs.query_port(1).unwrap().gid_tbl_len;
    assert_eq!(table, 128);
    let beyond = Error::NoEntry { entries: 128 };
    assert_eq!(verbs.set_gid(1, table, &right), Err(SetGidError::Device(beyond)));
    assert_eq!(verbs.delete_gid(1, table), Err(SetGidError::Device(beyond)));
    verbs.set_gid(1, table - 1, &right).unwrap();
    verbs.delete_gid(1, table - 1).unwrap();
    assert_eq!(verbs.query_gid(1, table - 1).unwrap(), Gid::default());
    // All are members of the default partition.
    assert_eq!(verbs.query_pkey(1, 0).unwrap(), 0xffff);
    assert!(verbs.query_pkey(1, 1).is_err());
    node.assert_no_findings();
}

// contract: gid-gone
/// What queue pairs send through an entry that is gone is lost, on either side, and nobody else's.
#[test]
fn an_entry_that_is_deleted_takes_the_connections_over_it_and_no_others() {
    let (_world, mut hosts) = lan(2);
    let [a, b] = hosts.as_mut_slice() else { unreachable!() };
    let [other, _] = connected(a, b, QpType::Rc, IPV4);
    let [mut qa, mut qb] = connected(a, b, QpType::Rc, IPV6);
    write(a, b, qa, 1, 3000);
    for of_sender in [true, false] {
        let host = if of_sender { &mut *a } else { &mut *b };
        host.node.verbs.delete_gid(1, IPV6.into()).unwrap();
        let (sges, remote) = ([a.from.sge(0, 10)], b.into.remote(0));
        post(a, qa, SendOp::Write { payload: Payload::Sges(&sges), remote });
        let done = a.node.completions(a.cq, 1)[0];
        assert_eq!((done.status, a.node.verbs.qp_info(qa).unwrap().state), (WcStatus::RetryExcErr, QpState::Err));
        write(a, b, other, 2, 3000);
        if of_sender {
            // No new connection begins at an entry that is empty.
            let new = a.qp(QpType::Rc);
            let refused = a.connect(new, b.path(IPV6), b.qpn(qb)).unwrap_err();
            assert_eq!((refused, refused.errno()), (ModifyQpError::Device(Error::NoGid { index: IPV6 }), Errno::Einval));
            assert!(refused.to_string().contains("set it (`set_gid`)"), "{refused}");
            a.node.verbs.destroy_qp(new).unwrap();
        }
        // With the entry it works again, over the same queue pairs.
        let host = if of_sender { &mut *a } else { &mut *b };
        host.node.verbs.set_gid(1, IPV6.into(), &entry(host.number, IPV6, host.mac)).unwrap();
        for (host, qp) in [(&mut *a, &mut qa), (&mut *b, &mut qb)] {
            host.node.verbs.modify_qp(*qp, &to_state(QpState::Reset), QpAttrMask::STATE).unwrap();
            assert!(host.node.poll(host.cq).is_empty());
        }
        a.connect(qa, b.path(IPV6), b.qpn(qb)).unwrap();
        b.connect(qb, a.path(IPV6), a.qpn(qa)).unwrap();
        write(a, b, qa, 3, 3000);
    }
    // A datagram through an empty entry is not sent, and its queue pair says so.
    let ud = a.datagrams();
    let empty = AddressVector { grh: Some(GlobalRoute { sgid_index: EMPTY, ..b.path(IPV4).grh.unwrap() }), ..b.path(IPV4) };
    let ah = a.node.verbs.create_ah(a.pd, &empty).unwrap();
    let to = Destination { ah, remote_qpn: b.qpn(qb), remote_qkey: QKEY };
    a.node.verbs.post_send(ud, &SendWr::send_to(&to, b"lost")).unwrap();
    assert_eq!(a.node.completions(a.cq, 1)[0].status, WcStatus::LocQpOpErr);
}

/// There is no way from an address of one version of IP to one of the other: Linux refuses it too (`rdma_resolve_ip`).
#[test]
fn a_connection_is_between_addresses_of_one_version_of_ip() {
    let (_world, mut hosts) = lan(2);
    let [a, b] = hosts.as_mut_slice() else { unreachable!() };
    let qb = b.qp(QpType::Rc);
    for (own, their) in [(IPV4, IPV6), (LINK_LOCAL, IPV4), (TAGGED_IPV6, TAGGED_IPV4)] {
        let qa = a.qp(QpType::Rc);
        let path = b.path(their);
        let mixed = AddressVector { grh: path.grh.map(|route| GlobalRoute { sgid_index: own, ..route }), ..path };
        let refused = a.connect(qa, mixed, b.qpn(qb)).unwrap_err();
        assert_eq!((refused, refused.errno()), (ModifyQpError::Device(Error::GidFamily { index: own }), Errno::Einval));
        assert!(refused.to_string().contains("GlobalRoute::sgid_index"), "{refused}");
        a.node.verbs.modify_qp(qa, &to_state(QpState::Reset), QpAttrMask::STATE).unwrap();
        a.connect(qa, path, b.qpn(qb)).unwrap();
        a.node.verbs.destroy_qp(qa).unwrap();
    }
    a.node.assert_no_findings();
}

#[test]
fn what_the_wire_loses_and_reorders_is_sent_again() {
    let (world, mut hosts) = lan(2);
    let [a, b] = hosts.as_mut_slice() else { unreachable!() };
    let connections = ALL.map(|index| connected(a, b, QpType::Rc, index));
    let (loss, reordering) = (Probability::per_mille(30), Probability::per_mille(30));
    world.set_wire_faults(WireFaults { loss, reordering, duplication: loss, ..WireFaults::NONE });
    let len = SIZE / 2 / ALL.len();
    for round in 0..8 {
        let bytes = pattern(round, SIZE / 2);
        a.from.buffer.write(0, &bytes);
        // All at once.
        for (at, [qa, _]) in connections.iter().enumerate() {
            let (sges, remote) = ([a.from.sge(at * len, len)], b.into.remote(at * len));
            post(a, *qa, SendOp::Write { payload: Payload::Sges(&sges), remote });
        }
        let done = a.node.completions(a.cq, ALL.len());
        assert!(done.iter().all(|done| done.status == WcStatus::Success), "{done:?}");
        assert!(b.into.buffer.read(0, len * ALL.len()) == bytes[..len * ALL.len()], "round {round}");
    }
    let stats = world.wire_stats();
    assert!(stats.lost > 10 && stats.reordered > 0 && stats.duplicated > 0, "{stats:?}");
    a.node.assert_no_findings();
}

/// What two hosts sent to a third one at the same time.
struct Meeting {
    egress: EgressStats,
    /// Notifications of congestion: sent by the third, received by each of the two.
    notifications: (u64, [u64; 2]),
    /// Frames of each mark (ECN bits) that arrived anywhere.
    marks: [usize; 4],
    time: Duration,
}

/// Two hosts write into a third one, over connections of every kind of address at once, with these ECN bits. All arrives.
fn meet(limits: EgressLimits, ecn: u8) -> Meeting {
    let world = World::new(WorldConfig { egress: Some(limits), ..WorldConfig::default() });
    let mut hosts: Vec<Host> = (1..=3).map(|number| Host::new(&world, number)).collect();
    let cable = Cable::on(&world);
    let [senders @ .., target] = hosts.as_mut_slice() else { unreachable!() };
    let len = SIZE / 2 / ALL.len();
    let mut queues = Vec::new();
    for (number, sender) in senders.iter_mut().enumerate() {
        for index in ALL {
            let (qa, qb) = (sender.qp(QpType::Rc), target.qp(QpType::Rc));
            let path = |host: &Host| {
                let path = host.path(index);
                AddressVector { grh: path.grh.map(|route| GlobalRoute { traffic_class: 0x40 | ecn, ..route }), ..path }
            };
            let (there, back) = (path(target), path(sender));
            // What waits in a queue is not lost.
            let attr = QpAttr { timeout: 9, ..attributes() };
            sender.node.verbs.modify_qp_to_rts(qa, &QpAttr { av: there, dest_qpn: target.qpn(qb), ..attr }).unwrap();
            target.node.verbs.modify_qp_to_rts(qb, &QpAttr { av: back, dest_qpn: sender.qpn(qa), ..attr }).unwrap();
            queues.push((number, qa));
        }
        sender.from.buffer.write(0, &pattern(number as u64, SIZE / 2));
    }
    let begin = world.now();
    for (at, (number, qa)) in queues.iter().enumerate() {
        let sges = [senders[*number].from.sge(at % ALL.len() * len, len)];
        let remote = target.into.remote(at * len);
        post(&mut senders[*number], *qa, SendOp::Write { payload: Payload::Sges(&sges), remote });
    }
    for sender in senders.iter_mut() {
        let done = sender.node.completions(sender.cq, ALL.len());
        assert!(done.iter().all(|done| done.status == WcStatus::Success), "{done:?}");
    }
    let time = Duration::from_nanos(world.now().as_nanos() - begin.as_nanos());
    for number in 0..2 {
        let (came, sent) =
            (target.into.buffer.read(number * ALL.len() * len, ALL.len() * len), pattern(number as u64, SIZE / 2));
        assert!(came == sent[..ALL.len() * len], "what host {number} sent");
    }
    // What is still on its way.
    world.advance(Duration::from_millis(2));
    let stats = world.device_stats();
    hosts.iter_mut().for_each(|host| host.node.assert_no_findings());
    let mut marks = [0; 4];
    for frame in cable.take() {
        let ip = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
        let class = if frame[ip] >> 4 == 4 { frame[ip + 1] } else { frame[ip] << 4 | frame[ip + 1] >> 4 };
        marks[usize::from(class & 3)] += 1;
    }
    let received = [0, 1].map(|sender| stats[sender].engine.notifications_received);
    Meeting { egress: world.egress_stats(), notifications: (stats[2].engine.notifications_sent, received), marks, time }
}

#[test]
fn where_two_meet_a_third_one_the_switch_marks_and_the_third_tells_them() {
    let (gigabit, data) = (EgressLimits::new(1_000_000_000).unwrap(), 2 * (SIZE / 2));
    let met = meet(gigabit.mark_above(8000), 2);
    // All but the first packets, which found a short queue, and what goes back.
    assert_eq!((met.marks[3] as u64, met.marks[2] > 3), (met.egress.marked, true), "{:?} {:?}", met.egress, met.marks);
    assert!(met.egress.marked > 20 && met.egress.longest > 8000, "{:?}", met.egress);
    assert_eq!((met.marks[0], met.marks[1], met.egress.dropped), (0, 0, 0));
    let (sent, received) = met.notifications;
    assert!(received.iter().all(|count| *count > 0) && sent == received.iter().sum(), "{sent} and {received:?}");
    // A bit takes a nanosecond.
    assert!(met.time > Duration::from_nanos(data as u64 * 8), "{:?}", met.time);
    assert!(met.time < Duration::from_nanos(data as u64 * 8 * 3), "{:?}", met.time);

    // Packets of a sender that does not know of marks get none, and nobody is notified.
    let unaware = meet(gigabit.mark_above(8000), 0);
    assert_eq!((unaware.egress.marked, unaware.notifications, unaware.marks[1..].iter().sum()), (0, (0, [0, 0]), 0_usize));
    assert!(unaware.egress.longest > 8000);
    let wide = meet(EgressLimits::new(1_000_000_000_000).unwrap().mark_above(1 << 20), 2);
    assert_eq!((wide.egress.marked, wide.notifications), (0, (0, [0, 0])), "a queue that is short");
    assert!(wide.time < met.time / 4);

    // A queue without room loses packets, which come again.
    let lossy = meet(gigabit.mark_above(8000).room(20_000), 2);
    assert!(lossy.egress.dropped > 5 && lossy.egress.longest <= 20_000, "{:?}", lossy.egress);
}

#[test]
fn a_port_says_what_it_is() {
    for (mtu, active) in
        [(1500, Mtu::Mtu1024), (2144, Mtu::Mtu2048), (4191, Mtu::Mtu2048), (4192, Mtu::Mtu4096), (u16::MAX, Mtu::Mtu4096)]
    {
        let world = World::new(WorldConfig::default());
        let host = world.add(DeviceConfig::with_lid(1).with_ethernet()).unwrap();
        let config = Config { ethernet_mtu: mtu, ..driver_config(&host) };
        let mut node = Node::with_config(host, &config);
        let port = node.verbs.query_port(1).unwrap();
        assert_eq!((port.link_layer, port.state, port.phys_state), (LinkLayer::Ethernet, PortState::Active, PhysState::LinkUp));
        assert_eq!((port.max_mtu, port.active_mtu), (Mtu::Mtu4096, active), "{mtu}");
        assert_eq!((port.lid.get(), port.sm_lid.get(), port.grh_required, port.is_usable()), (0, 0, true, true));
        assert_eq!((port.pkey_tbl_len, port.active_width, port.active_speed_gbps), (1, 4, 200));
        let mac = node.host.with_device(|device| match device.config().port {
            bareverbs_sim::PortKind::Ethernet { mac } => mac,
            bareverbs_sim::PortKind::InfiniBand => unreachable!(),
        });
        assert_eq!(port.mac, Mac(mac));
        let device = node.host.with_device(|device| device.config().clone());
        assert_eq!((port.port_guid.0, node.verbs.query_device().node_guid.0), (device.port_guid, device.node_guid));
        node.assert_no_findings();
        // What was enabled is taken back, and the next driver finds the device as the first did.
        let (machine, report) = node.into_driver().teardown().map_err(|(error, _)| error).unwrap();
        assert!(!report.needs_reset && report.pages_kept == 0, "{report:?}");
        assert!(bareverbs_tests::Driver::bring_up(machine, &config).is_ok());
    }
}

/// Functions that number their ports refuse commands about the GID table that name none. There is one here, whatever their number.
#[test]
fn a_function_with_numbered_ports_has_its_addresses() {
    for vhca_ports in [1, 2] {
        let world = World::new(WorldConfig::default());
        let mut node = Node::new(world.add(DeviceConfig { vhca_ports, ..instant(1) }.with_ethernet()).unwrap());
        let mac = node.verbs.query_port(1).unwrap().mac;
        let right = entry(1, IPV4, mac);
        node.verbs.set_gid(1, IPV4.into(), &right).unwrap();
        assert_eq!(node.verbs.query_gid(1, IPV4.into()).unwrap(), right.gid);
        node.verbs.delete_gid(1, IPV4.into()).unwrap();
        assert_eq!(node.verbs.query_gid(1, IPV4.into()).unwrap(), Gid::default());
        node.assert_no_findings();
    }
}

/// The connection is made, since RoCE does not ask the interface for its MTU. Packets that fit arrive, longer ones are lost at the
/// port until the retries are used up, and a larger MTU of the port lets them pass.
#[test]
fn a_path_mtu_above_that_of_the_port_loses_every_full_packet() {
    for (mtu, passes) in [(1500, false), (4192, true)] {
        let world = World::new(WorldConfig::default());
        let mut hosts: Vec<Host> = (1..=2).map(|number| Host::with_mtu(&world, number, mtu)).collect();
        let [a, b] = hosts.as_mut_slice() else { unreachable!() };
        let (qa, qb) = (a.qp(QpType::Rc), b.qp(QpType::Rc));
        let attr = QpAttr { path_mtu: Mtu::Mtu4096, ..attributes() };
        let (to_b, to_a) = (b.path(IPV4), a.path(IPV4));
        a.node.verbs.modify_qp_to_rts(qa, &QpAttr { av: to_b, dest_qpn: b.qpn(qb), ..attr }).unwrap();
        b.node.verbs.modify_qp_to_rts(qb, &QpAttr { av: to_a, dest_qpn: a.qpn(qa), ..attr }).unwrap();
        write(a, b, qa, 1, 1000);
        if passes {
            write(a, b, qa, 2, 8192);
            continue;
        }
        let before = b.into.buffer.read(0, SIZE / 2);
        let sges = [a.from.sge(0, 8192)];
        let remote = b.into.remote(0);
        post(a, qa, SendOp::Write { payload: Payload::Sges(&sges), remote });
        let done = a.node.completions(a.cq, 1)[0];
        assert_eq!(done.status, WcStatus::RetryExcErr, "{done:?}");
        assert!(b.into.buffer.read(0, SIZE / 2) == before, "nothing arrived");
    }
}

/// Rates of the older bits and of the extended ones.
#[test]
fn a_port_says_how_fast_it_is() {
    for (link_width, link_speed, expected) in [
        (LinkWidth::X1, LinkSpeed::Sdr, (1, 1)),
        (LinkWidth::X1, LinkSpeed::Qdr, (10, 1)),
        (LinkWidth::X4, LinkSpeed::Fdr, (40, 4)),
        (LinkWidth::X1, LinkSpeed::Edr, (25, 1)),
        (LinkWidth::X2, LinkSpeed::Edr, (50, 2)),
        (LinkWidth::X4, LinkSpeed::Edr, (100, 4)),
        (LinkWidth::X4, LinkSpeed::Hdr, (200, 4)),
        (LinkWidth::X4, LinkSpeed::Ndr, (400, 8)),
    ] {
        let world = World::new(WorldConfig::default());
        let device = DeviceConfig { link_width, link_speed, ..instant(1) }.with_ethernet();
        let mut node = Node::new(world.add(device).unwrap());
        let port = node.verbs.query_port(1).unwrap();
        assert_eq!((port.active_speed_gbps, port.active_width), expected, "{link_width:?} {link_speed:?}");
    }
}

#[test]
fn a_virtual_function_leaves_the_card_as_it_is() {
    let world = World::new(WorldConfig::default());
    let host = world.add(DeviceConfig { virtual_function: true, ..instant(1) }.with_ethernet()).unwrap();
    let mut node = Node::new(host);
    let port = node.verbs.query_port(1).unwrap();
    assert_eq!((port.link_layer, port.state, port.active_mtu), (LinkLayer::Ethernet, PortState::Active, Mtu::Mtu1024));
    node.assert_no_findings();
}

#[test]
fn a_cable_that_is_pulled_is_an_event_and_connections_survive_it() {
    let (_world, mut hosts) = lan(2);
    let [a, b] = hosts.as_mut_slice() else { unreachable!() };
    let [qa, _] = connected(a, b, QpType::Rc, IPV4);
    write(a, b, qa, 1, 100);
    let node = &mut a.node;
    node.host.with_device(|device| device.set_link(false));
    assert!(node.event(|event| matches!(event, Event::PortDown(1)).then_some(())).is_some());
    let port = node.verbs.query_port(1).unwrap();
    assert_eq!((port.state, port.phys_state, port.active_speed_gbps), (PortState::Down, PhysState::Polling, 0));
    let waited = Duration::from_millis(300);
    let error = node.verbs.wait_active(1, waited).unwrap_err();
    assert!(matches!(error, WaitActiveError::NoLink { port: 1, phys_state: PhysState::Polling, .. }), "{error}");
    node.host.with_device(|device| device.set_link(true));
    assert!(node.verbs.wait_active(1, Duration::from_secs(60)).unwrap().is_usable());
    assert!(node.event(|event| matches!(event, Event::PortActive(1)).then_some(())).is_some());
    write(a, b, qa, 2, 100);
}
