//! Datagrams on simulated devices: bytes, sources, Q_Keys, what is dropped, states, groups.

use core::time::Duration;

use bareverbs::error::{CreateAhError, DestroyQpError, DeviceLoss, PollCqError, PostSendError};
use bareverbs::{
    AddressHandle, AddressVector, Completion, Destination, Gid, GlobalRoute, Payload, Psn, Qkey, QpAttr, QpAttrMask, QpCap,
    QpHandle, QpState, QpType, Qpn, RecvWr, SendWr, Source, WcData, WcOpcode, WcStatus,
};
use bareverbs_mlx5::Error;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::audit::Finding;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_tests::{ALL_ACCESS, CAP, End, Node, Pair, Region, end_in, instant, pattern, refused, to_state};

/// Bytes before each message.
const GRH_AREA: usize = GlobalRoute::AREA;
const QKEY: u32 = 0x1111_2222;
/// Longest datagram: the MTU of the simulated ports.
const MTU: usize = 4096;
/// Bytes of a receive that takes any datagram.
const ROOM: usize = GRH_AREA + MTU;

/// Moves a datagram queue pair to RTS.
fn ready(node: &mut Node, qp: QpHandle, qkey: u32) {
    let all = QpAttr { port_num: 1, qkey: Qkey::new(qkey), sq_psn: Psn::new(7), ..QpAttr::default() };
    for (state, mask) in [
        (QpState::Init, QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY),
        (QpState::Rtr, QpAttrMask::empty()),
        (QpState::Rts, QpAttrMask::SQ_PSN),
    ] {
        node.verbs.modify_qp(qp, &QpAttr { state, ..all }, mask | QpAttrMask::STATE).unwrap();
    }
}

/// A device with datagram queue pairs, each with memory to send from and to receive in.
struct Host {
    node: Node,
    ends: Vec<End>,
    from: Vec<Region>,
    into: Vec<Region>,
}

impl Host {
    fn new(mut node: Node, count: usize) -> Self {
        let pd = node.verbs.alloc_pd().unwrap();
        let ends: Vec<End> = (0..count).map(|_| end_in(&mut node, pd, QpType::Ud, CAP, true)).collect();
        for end in &ends {
            ready(&mut node, end.qp, QKEY);
        }
        let mut regions = || (0..count).map(|_| node.region(pd, 2 * ROOM, ALL_ACCESS)).collect();
        let (from, into) = (regions(), regions());
        Self { node, ends, from, into }
    }

    /// Returns the address vector of this host's port.
    fn av(&mut self, is_global: bool) -> AddressVector {
        let dlid = self.node.verbs.query_port(1).unwrap().lid;
        let dgid = self.node.verbs.query_gid(1, 0).unwrap();
        let route = GlobalRoute { dgid, flow_label: 0x1_2345, sgid_index: 0, hop_limit: 64, traffic_class: 0x21 };
        AddressVector { dlid, sl: 3, port_num: 1, grh: is_global.then_some(route), ..AddressVector::default() }
    }

    /// Returns a destination for queue pair `qp` of this host's.
    fn to(&mut self, av: &AddressVector, remote_qpn: Qpn) -> Destination {
        let ah = self.create_ah(av).unwrap();
        Destination { ah, remote_qpn, remote_qkey: Qkey::new(QKEY) }
    }

    fn create_ah(&mut self, av: &AddressVector) -> Result<AddressHandle, CreateAhError<Error>> {
        self.node.verbs.create_ah(self.ends[0].pd, av)
    }

    fn send(&mut self, at: usize, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.node.verbs.post_send(self.ends[at].qp, wr)
    }

    /// Posts a receive for any datagram: the route into one piece, the message into another.
    fn receive(&mut self, at: usize, wr_id: u64) {
        let into = &self.into[at];
        let sges = [into.sge(0, GRH_AREA), into.sge(ROOM, MTU)];
        self.node.verbs.post_recv(self.ends[at].qp, &RecvWr { wr_id, sges: &sges }).unwrap();
    }

    /// Takes what is in the queue of an end.
    fn taken(&mut self, at: usize) -> Vec<(Completion, Option<Source>)> {
        self.node.verbs.completions(self.ends[at].cq).with_source().map(Result::unwrap).collect()
    }

    /// Waits for one completion of an end.
    fn one(&mut self, at: usize) -> (Completion, Option<Source>) {
        for _ in 0..10_000 {
            if let Some(found) = self.taken(at).pop() {
                return found;
            }
            self.node.relax();
        }
        panic!("no completion");
    }

    fn receive_is_refused(&mut self, at: usize, state: QpState) {
        let sges = [self.into[at].sge(0, GRH_AREA)];
        let refused = self.node.verbs.post_recv(self.ends[at].qp, &RecvWr { wr_id: 0, sges: &sges }).unwrap_err();
        assert_eq!(refused, bareverbs::error::PostRecvError::NotReady { state });
    }

    fn state(&mut self, at: usize) -> QpState {
        let kept = self.node.verbs.qp_info(self.ends[at].qp).unwrap().state;
        assert_eq!(self.node.verbs.query_qp(self.ends[at].qp).unwrap().state, kept);
        kept
    }
}

/// Devices of one world, with queue pairs each.
fn hosts(devices: usize, count: usize) -> (World, Vec<Host>) {
    let world = World::new(WorldConfig::default());
    let hosts = (1..=devices as u16).map(|lid| Host::new(Node::new(world.add(instant(lid)).unwrap()), count)).collect();
    (world, hosts)
}

// contract: post-ud-destination
#[test]
fn every_byte_arrives_at_every_queue_pair_from_every_other() {
    let (_world, mut hosts) = hosts(3, 2);
    let mut seed = 0;
    for (a, b) in (0..6).flat_map(|a| (0..6).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let ((a, at_a), (b, at_b)) = ((a / 2, a % 2), (b / 2, b % 2));
        for (length, is_global, is_inline) in [
            (0, false, false),
            (1, true, true),
            (44, false, true),
            (45, false, true),
            (128, true, true),
            (1000, true, false),
            (MTU, false, false),
        ] {
            seed += 1;
            let (av, target) = (hosts[b].av(is_global), hosts[b].ends[at_b].qpn);
            let gids = [a, b].map(|host| hosts[host].node.verbs.query_gid(1, 0).unwrap());
            let lid = hosts[a].node.verbs.query_port(1).unwrap().lid;
            let to = hosts[a].to(&av, target);
            hosts[b].into[at_b].buffer.write(0, &[0xa5; 2 * ROOM]);
            hosts[b].receive(at_b, seed);
            let bytes = pattern(seed, length);
            hosts[a].from[at_a].buffer.write(0, &bytes);
            let (first, sender) = (length / 3, hosts[a].ends[at_a]);
            let sges = [hosts[a].from[at_a].sge(0, first), hosts[a].from[at_a].sge(first, length - first)];
            let payload = if is_inline { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
            let imm = (seed % 2 == 0).then_some([1, 2, 3, seed as u8]);
            let wr = match imm {
                Some(imm) => SendWr::send_to_with_imm(&to, payload, imm),
                None => SendWr::send_to(&to, payload),
            };
            hosts[a].node.verbs.post_send(sender.qp, &wr.id(seed)).unwrap();
            let (sent, source) = hosts[a].one(at_a);
            assert_eq!((sent.wr_id, sent.opcode, sent.byte_len, source), (seed, WcOpcode::Send, length as u32, None));
            assert_eq!(sent.status, WcStatus::Success);
            let (got, source) = hosts[b].one(at_b);
            assert_eq!((got.wr_id, got.opcode, got.status), (seed, WcOpcode::Recv, WcStatus::Success));
            assert_eq!((got.qpn, got.byte_len), (target, (GRH_AREA + length) as u32));
            assert_eq!(got.data, imm.map_or(WcData::None, WcData::Imm));
            let source = source.expect("of a datagram");
            assert_eq!((source.src_qp, source.slid, source.sl, source.grh), (sender.qpn, lid, 3, is_global));
            assert_eq!((source.pkey, source.dlid_path_bits), (imm.is_none().then_some(0xffff), 0));
            let into = &hosts[b].into[at_b].buffer;
            assert_eq!(into.read(ROOM, length), bytes);
            assert_eq!(into.read(ROOM + length, MTU - length), vec![0xa5; MTU - length], "nothing behind the message");
            let header: [u8; GRH_AREA] = into.read(0, GRH_AREA).try_into().unwrap();
            if is_global {
                // IBTA 8.3: version, traffic class and flow label; hop limit; the two GIDs.
                assert_eq!((&header[..4], header[7]), (&[0x62, 0x11, 0x23, 0x45][..], 64));
                assert_eq!((&header[8..24], &header[24..]), (&gids[0].0[..], &gids[1].0[..]));
                let route = GlobalRoute::reply(&header, 0);
                assert_eq!((route.dgid, route.flow_label, route.traffic_class), (gids[0], 0x1_2345, 0x21));
            } else {
                assert_eq!(header, [0xa5; GRH_AREA], "nothing without a route");
            }
        }
    }
    // What arrived says where the answer goes.
    let (av, target) = (hosts[1].av(true), hosts[1].ends[0].qpn);
    let to = hosts[0].to(&av, target);
    hosts[1].receive(0, 1);
    hosts[0].send(1, &SendWr::send_to(&to, b"ping")).unwrap();
    let source = hosts[1].one(0).1.unwrap();
    let header: [u8; GRH_AREA] = hosts[1].into[0].buffer.read(0, GRH_AREA).try_into().unwrap();
    let back = AddressVector { grh: Some(GlobalRoute::reply(&header, 0)), ..source.reply(1) };
    let to = hosts[1].to(&back, source.src_qp);
    hosts[0].taken(1);
    hosts[0].receive(1, 2);
    hosts[1].send(0, &SendWr::send_to(&to, b"pong")).unwrap();
    let (got, source) = hosts[0].one(1);
    assert_eq!((got.wr_id, source.map(|source| source.src_qp)), (2, Some(target)));
    assert_eq!(hosts[0].into[1].buffer.read(ROOM, 4), b"pong");
    for host in &hosts {
        host.node.assert_no_findings();
    }
}

/// IBTA 13.5.1 and 10.2.5: QP1 of each port, whatever number the device has for it. Another queue pair gets to it with its Q_Key alone.
#[test]
fn a_management_datagram_goes_from_queue_pair_1_to_queue_pair_1() {
    let (_world, mut hosts) = hosts(2, 2);
    for host in &mut hosts {
        let pd = host.ends[0].pd;
        host.ends[0] = end_in(&mut host.node, pd, QpType::Gsi, CAP, true);
        let qp = host.ends[0].qp;
        ready(&mut host.node, qp, Qkey::GENERAL_SERVICES.get());
        let actual = host.node.verbs.query_qp(qp).unwrap();
        assert_eq!((actual.state, actual.qp_type, actual.attr.qkey.get()), (QpState::Rts, QpType::Gsi, 0x8001_0000));
    }
    // A message of communication management (class 7) is for no agent of the port.
    let mut mad = pattern(9, 256);
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    for (is_global, at) in [(false, 0), (true, 0), (false, 1)] {
        let av = hosts[1].av(is_global);
        let ah = hosts[0].create_ah(&av).unwrap();
        let to = Destination { ah, remote_qpn: Qpn::GENERAL_SERVICES, remote_qkey: Qkey::GENERAL_SERVICES };
        hosts[1].receive(0, 7);
        hosts[0].from[at].buffer.write(0, &mad);
        let sges = [hosts[0].from[at].sge(0, 256)];
        hosts[0].send(at, &SendWr::send_to(&to, &sges)).unwrap();
        assert_eq!(hosts[0].one(at).0.status, WcStatus::Success);
        if at == 1 {
            // Its controlled Q_Key is replaced by that of its queue pair, which is another.
            (0..1000).for_each(|_| hosts[1].node.relax());
            assert_eq!(hosts[1].taken(0), []);
            continue;
        }
        let (got, source) = hosts[1].one(0);
        assert_eq!((got.wr_id, got.status, got.byte_len as usize), (7, WcStatus::Success, GRH_AREA + 256));
        assert_eq!(got.qpn, hosts[1].ends[0].qpn);
        let source = source.expect("of a datagram");
        assert_eq!((source.src_qp, source.pkey, source.grh), (Qpn::new(1), Some(0xffff), is_global));
        assert_eq!(hosts[1].into[0].buffer.read(ROOM, 256), mad);
    }
    let gone = hosts[1].ends[0].qp;
    hosts[1].node.verbs.destroy_qp(gone).unwrap();
    let sges = [hosts[0].from[0].sge(0, 257)];
    let av = hosts[1].av(false);
    let ah = hosts[0].create_ah(&av).unwrap();
    let to = Destination { ah, remote_qpn: Qpn::GENERAL_SERVICES, remote_qkey: Qkey::GENERAL_SERVICES };
    let refused = hosts[0].send(0, &SendWr::send_to(&to, &sges)).unwrap_err();
    assert_eq!(refused, PostSendError::MessageSize { max: 256 });
    for host in &hosts {
        host.node.assert_no_findings();
    }
}

/// Sends a datagram of `length` bytes from the first host to the second, and returns whether it arrived.
fn arrives(world: &World, hosts: &mut [Host], to: &Destination, length: usize) -> bool {
    let sges = [hosts[0].from[0].sge(0, length)];
    hosts[0].send(0, &SendWr::send_to(to, &sges)).unwrap();
    assert_eq!(hosts[0].one(0).0.status, WcStatus::Success, "nobody says that it was lost");
    world.advance(Duration::from_millis(1));
    hosts[1].taken(0).pop().is_some()
}

// contract: post-ud-destination
#[test]
fn what_does_not_fit_is_dropped_without_a_word() {
    let (world, mut hosts) = hosts(2, 1);
    let (av, target) = (hosts[1].av(false), hosts[1].ends[0].qpn);
    let to = hosts[0].to(&av, target);
    // No receive.
    assert!(!arrives(&world, &mut hosts, &to, 100));
    hosts[1].receive(0, 1);
    // Wrong Q_Key, a queue pair that is not there, a port that is not there.
    let nowhere = hosts[0].to(&AddressVector { dlid: bareverbs::Lid::new(0x77), ..av }, target);
    let wrong = Destination { remote_qkey: Qkey::new(QKEY + 1), ..to };
    let nobody = Destination { remote_qpn: Qpn::new(0x99_9999), ..to };
    for to in [wrong, nobody, nowhere] {
        assert!(!arrives(&world, &mut hosts, &to, 100));
    }
    // With the highest bit of the Q_Key, the sender's own is sent: here the same as the receiver's, and there another one.
    let controlled = Destination { remote_qkey: Qkey::new(0x8000_0000), ..to };
    assert!(arrives(&world, &mut hosts, &controlled, 100));
    let (qp, other) = (hosts[0].ends[0].qp, QpAttr { qkey: Qkey::new(0x8001_0000), ..to_state(QpState::Rts) });
    hosts[0].node.verbs.modify_qp(qp, &other, QpAttrMask::STATE | QpAttrMask::QKEY).unwrap();
    hosts[1].receive(0, 2);
    assert!(!arrives(&world, &mut hosts, &controlled, 100));
    let qp = hosts[1].ends[0].qp;
    hosts[1].node.verbs.modify_qp(qp, &other, QpAttrMask::STATE | QpAttrMask::QKEY).unwrap();
    assert!(arrives(&world, &mut hosts, &controlled, 100));
    assert!(!arrives(&world, &mut hosts, &to, 100), "its Q_Key is another one now");
    let back = QpAttr { qkey: Qkey::new(QKEY), ..to_state(QpState::Rts) };
    hosts[1].node.verbs.modify_qp(qp, &back, QpAttrMask::STATE | QpAttrMask::QKEY).unwrap();
    // A receive without room for the message, then without room for a route: it stays for the next that fits.
    for (room, fits, too_long) in [(GRH_AREA + 99, 99, 100), (GRH_AREA, 0, 1)] {
        let sges = [hosts[1].into[0].sge(0, room)];
        hosts[1].node.verbs.post_recv(qp, &RecvWr { wr_id: 3, sges: &sges }).unwrap();
        assert!(!arrives(&world, &mut hosts, &to, too_long));
        assert!(arrives(&world, &mut hosts, &to, fits));
    }
    let sges = [hosts[1].into[0].sge(0, GRH_AREA - 1)];
    hosts[1].node.verbs.post_recv(qp, &RecvWr { wr_id: 4, sges: &sges }).unwrap();
    assert!(!arrives(&world, &mut hosts, &to, 0));
    assert_eq!((hosts[0].state(0), hosts[1].state(0)), (QpState::Rts, QpState::Rts));
    hosts.iter().for_each(|host| host.node.assert_no_findings());
}

// contract: post-message-size
#[test]
fn a_datagram_is_one_packet_of_the_port() {
    for mtu in [256_u16, 2048, 4096] {
        let world = World::new(WorldConfig::default());
        let node = |lid| Node::new(world.add(DeviceConfig { mtu, ..instant(lid) }).unwrap());
        let mut hosts = vec![Host::new(node(1), 1), Host::new(node(2), 1)];
        let (av, target) = (hosts[1].av(false), hosts[1].ends[0].qpn);
        let to = hosts[0].to(&av, target);
        hosts[1].receive(0, 1);
        assert!(arrives(&world, &mut hosts, &to, mtu as usize), "{mtu}");
        let long = [hosts[0].from[0].sge(0, mtu as usize + 1)];
        let qp = hosts[0].ends[0].qp;
        let refused = refused!(
            hosts[0].node.verbs.post_send(qp, &SendWr::send_to(&to, &long)),
            Einval,
            PostSendError::MessageSize { .. }
        );
        assert_eq!(refused, PostSendError::MessageSize { max: mtu.into() });
        // As many inline bytes as fit into the queue, and not into a packet.
        if mtu == 256 {
            let cap = QpCap { max_inline_data: 400, ..CAP };
            let pd = hosts[0].ends[0].pd;
            let end = end_in(&mut hosts[0].node, pd, QpType::Ud, cap, true);
            ready(&mut hosts[0].node, end.qp, QKEY);
            let post =
                |hosts: &mut Vec<Host>, len| hosts[0].node.verbs.post_send(end.qp, &SendWr::send_to(&to, &pattern(1, len)[..]));
            post(&mut hosts, 256).unwrap();
            refused!(post(&mut hosts, 257), Einval, PostSendError::MessageSize { max: 256 });
        }
    }
}

// contract: post-ud-domain
#[test]
fn a_handle_of_another_domain_or_device_is_refused() {
    let (_world, mut hosts) = hosts(2, 1);
    let (av, target) = (hosts[1].av(false), hosts[1].ends[0].qpn);
    let other = hosts[0].node.verbs.alloc_pd().unwrap();
    let foreign = hosts[0].node.verbs.create_ah(other, &av).unwrap();
    let theirs = hosts[1].to(&av, target).ah;
    for ah in [foreign, theirs] {
        let to = Destination { ah, remote_qpn: target, remote_qkey: Qkey::new(QKEY) };
        let qp = hosts[0].ends[0].qp;
        refused!(hosts[0].node.verbs.post_send(qp, &SendWr::send_to(&to, b"x")), Eperm, PostSendError::AddressDomain);
    }
    hosts[0].node.verbs.dealloc_pd(other).unwrap();
    refused!(hosts[0].node.verbs.create_ah(other, &av), Einval, CreateAhError::StalePd);
    refused!(hosts[0].create_ah(&AddressVector { static_rate: 200, ..av }), Einval, CreateAhError::Device(_));
    let pd = hosts[0].ends[0].pd;
    let rc = end_in(&mut hosts[0].node, pd, QpType::Rc, CAP, true);
    let to = hosts[0].to(&av, target);
    refused!(
        hosts[0].node.verbs.post_send(rc.qp, &SendWr::send_to(&to, b"x")),
        Einval,
        PostSendError::Destination { qp_type: QpType::Rc }
    );
}

/// A key that opens nothing stops the send queue; receives go on, and the queue is recovered. ERR, RESET and destruction are
/// those of every queue pair.
#[test]
fn the_states_of_a_datagram_queue_pair() {
    let (_world, mut hosts) = hosts(2, 2);
    let (av, qp) = (hosts[1].av(false), hosts[0].ends[0].qp);
    let back = hosts[0].av(false);
    let (qpn, their_qpn, pd) = (hosts[0].ends[0].qpn, hosts[1].ends[0].qpn, hosts[0].ends[0].pd);
    let (to, to_us) = (hosts[0].to(&av, their_qpn), hosts[1].to(&back, qpn));
    for round in 0..3 {
        // The region is there when the request is posted, and not when it is executed.
        let gone = hosts[0].node.region(pd, 64, ALL_ACCESS);
        let good = [hosts[0].from[0].sge(0, 64)];
        let mut batch = hosts[0].node.verbs.send_batch(qp);
        batch.post(&SendWr::send_to(&to, &[gone.sge(0, 64)]).id(1)).unwrap();
        batch.post(&SendWr::send_to(&to, &good).id(2)).unwrap();
        core::mem::forget(batch);
        hosts[0].node.verbs.dereg_mr_raw(gone.mr).unwrap();
        hosts[0].node.verbs.ring_send_queue(qp);
        let mut ends = Vec::new();
        while ends.len() < 2 {
            ends.extend(hosts[0].taken(0).iter().map(|(done, _)| (done.wr_id, done.status)));
            hosts[0].node.relax();
        }
        assert_eq!(ends, [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(hosts[0].state(0), QpState::Sqe);
        let refused = hosts[0].node.verbs.post_send(qp, &SendWr::send_to(&to, &good)).unwrap_err();
        assert_eq!(refused, PostSendError::NotReady { state: QpState::Sqe });
        hosts[0].receive(0, 3);
        hosts[1].send(0, &SendWr::send_to(&to_us, b"still here?")).unwrap();
        assert_eq!(hosts[0].one(0).0.wr_id, 3);
        assert_eq!(hosts[1].one(0).0.status, WcStatus::Success);
        hosts[0].node.verbs.modify_qp(qp, &to_state(QpState::Rts), QpAttrMask::STATE).unwrap();
        hosts[1].receive(0, 4);
        hosts[0].node.verbs.post_send(qp, &SendWr::send_to(&to, &good).id(5)).unwrap();
        assert_eq!((hosts[0].one(0).0.wr_id, hosts[1].one(0).0.wr_id, hosts[0].state(0)), (5, 4, QpState::Rts));
        // ERR: everything that is posted comes back, in order.
        for wr_id in 10..13 {
            hosts[0].receive(0, wr_id);
        }
        let mut batch = hosts[0].node.verbs.send_batch(qp);
        for wr_id in 20..23 {
            batch.post(&SendWr::send_to(&to, &good).id(wr_id)).unwrap();
        }
        core::mem::forget(batch);
        hosts[0].node.verbs.modify_qp(qp, &to_state(QpState::Err), QpAttrMask::STATE).unwrap();
        let mut flushed = Vec::new();
        while flushed.len() < 6 {
            flushed.extend(hosts[0].taken(0).iter().map(|(done, source)| (done.wr_id, done.status, *source)));
            hosts[0].node.relax();
        }
        flushed.sort_by_key(|(wr_id, ..)| *wr_id);
        assert_eq!(flushed, [10, 11, 12, 20, 21, 22].map(|wr_id| (wr_id, WcStatus::WrFlushErr, None)));
        hosts[0].receive_is_refused(0, QpState::Err);
        // RESET: nothing comes back of what is posted.
        hosts[0].node.verbs.modify_qp(qp, &to_state(QpState::Reset), QpAttrMask::STATE).unwrap();
        hosts[0].receive_is_refused(0, QpState::Reset);
        assert!(hosts[0].taken(0).is_empty());
        ready(&mut hosts[0].node, qp, QKEY);
        for _ in 0..round {
            hosts[0].receive(0, 30);
        }
        hosts[0].node.verbs.modify_qp(qp, &to_state(QpState::Reset), QpAttrMask::STATE).unwrap();
        assert!(hosts[0].taken(0).is_empty());
        ready(&mut hosts[0].node, qp, QKEY);
    }
    hosts[0].receive(0, 40);
    hosts[0].node.verbs.destroy_qp(qp).unwrap();
    assert!(hosts[0].taken(0).is_empty());
    // The other one goes on.
    let other = hosts[0].ends[1].qpn;
    let to_other = hosts[1].to(&back, other);
    hosts[0].receive(1, 41);
    hosts[1].send(1, &SendWr::send_to(&to_other, b"and you?")).unwrap();
    assert_eq!(hosts[0].one(1).0.wr_id, 41);
    // What it was made to do wrong, and nothing else.
    let findings = hosts[0].node.host.with_device(|device| device.audit().findings().to_vec());
    let of_keys = findings.iter().filter(|finding| matches!(finding, Finding::KeyAfterDestroy { .. })).count();
    assert_eq!((findings.len(), of_keys), (3, 3), "{findings:?}");
    hosts[1].node.assert_no_findings();
}

#[test]
fn each_datagram_and_receive_of_a_lost_device_is_given_once() {
    let (_world, mut hosts) = hosts(2, 2);
    let (av, target) = (hosts[1].av(false), hosts[1].ends[0].qpn);
    let to = hosts[0].to(&av, target);
    for at in 0..2 {
        for wr_id in 0..5 {
            hosts[0].receive(at, wr_id);
            let sges = [hosts[0].from[at].sge(0, 10)];
            hosts[0].send(at, &SendWr::send_to(&to, &sges).id(10 + wr_id)).unwrap();
        }
    }
    hosts[0].node.host.with_device(|device| device.reset());
    while hosts[0].node.verbs.maintain().is_ok() {
        hosts[0].node.relax();
    }
    for at in 0..2 {
        let mut given = Vec::new();
        let error = loop {
            let cq = hosts[0].ends[at].cq;
            match hosts[0].node.verbs.completions(cq).with_source().next().unwrap() {
                Ok((done, source)) => {
                    let flushed = done.status == WcStatus::WrFlushErr;
                    assert!(source.is_none() && flushed == done.loss().is_some(), "{done:?}");
                    given.push(done.wr_id);
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(error, PollCqError::DeviceLost { loss: DeviceLoss::Gone }), "{error:?}");
        given.sort_unstable();
        assert_eq!(given, [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]);
    }
    let refused = hosts[0].send(0, &SendWr::send_to(&to, b"x")).unwrap_err();
    assert!(matches!(refused, PostSendError::DeviceLost { .. }), "{refused:?}");
}

// contract: mcast
#[test]
fn a_group_gets_a_copy_each() {
    let (_world, mut hosts) = hosts(3, 2);
    let group = Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    for (host, at) in [(1, 0), (1, 1), (2, 0)] {
        let qp = hosts[host].ends[at].qp;
        hosts[host].node.verbs.attach_mcast(qp, &group).unwrap();
        // A second time changes nothing: one copy comes, and one detachment ends it.
        hosts[host].node.verbs.attach_mcast(qp, &group).unwrap();
    }
    let route = GlobalRoute { dgid: group, hop_limit: 1, ..GlobalRoute::default() };
    let av = AddressVector { dlid: bareverbs::Lid::new(0xc001), port_num: 1, grh: Some(route), ..AddressVector::default() };
    let to = hosts[0].to(&av, Destination::MULTICAST_QPN);
    let everybody = [(1, 0), (1, 1), (2, 0), (2, 1)];
    for (members, leaves) in [(3, (1, 0)), (2, (2, 0)), (1, (1, 1))] {
        for (host, at) in everybody {
            hosts[host].receive(at, members);
        }
        hosts[0].send(0, &SendWr::send_to(&to, b"to all of you")).unwrap();
        assert_eq!(hosts[0].one(0).0.status, WcStatus::Success);
        hosts[0].node.relax();
        let mut copies = 0;
        for (host, at) in everybody {
            for (got, source) in hosts[host].taken(at) {
                assert_eq!((got.status, got.byte_len), (WcStatus::Success, GRH_AREA as u32 + 13));
                assert_eq!(source.map(|source| (source.src_qp, source.grh)), Some((hosts[0].ends[0].qpn, true)));
                assert_eq!(hosts[host].into[at].buffer.read(ROOM, 13), b"to all of you");
                assert_eq!(hosts[host].into[at].buffer.read(24, 16), group.0);
                copies += 1;
            }
        }
        assert_eq!(copies, members);
        let (host, at) = leaves;
        let qp = hosts[host].ends[at].qp;
        let error = refused!(hosts[host].node.verbs.destroy_qp(qp), Ebusy, DestroyQpError::Attached { .. });
        assert_eq!(error, DestroyQpError::Attached { groups: 1 });
        hosts[host].node.verbs.detach_mcast(qp, &group).unwrap();
    }
    for (host, at) in everybody {
        let qp = hosts[host].ends[at].qp;
        hosts[host].node.verbs.destroy_qp(qp).unwrap();
        hosts[host].node.assert_no_findings();
    }
}

#[test]
fn two_ends_of_one_device_share_a_completion_queue() {
    let mut pair = Pair::new();
    let pd = pair.a.verbs.alloc_pd().unwrap();
    let cq = pair.a.verbs.create_cq(256).unwrap();
    let init = |qp_type| bareverbs::QpInit { pd, qp_type, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
    let qps: Vec<QpHandle> = (0..3).map(|_| pair.a.verbs.create_qp(&init(QpType::Ud)).unwrap()).collect();
    for qp in &qps {
        ready(&mut pair.a, *qp, QKEY);
    }
    let region = pair.a.region(pd, 3 * ROOM, ALL_ACCESS);
    let dlid = pair.a.verbs.query_port(1).unwrap().lid;
    let ah = pair.a.verbs.create_ah(pd, &AddressVector { dlid, port_num: 1, ..AddressVector::default() }).unwrap();
    let qpns: Vec<Qpn> = qps.iter().map(|qp| pair.a.verbs.qp_info(*qp).unwrap().qpn).collect();
    for (at, qp) in qps.iter().enumerate() {
        let sges = [region.sge(at * ROOM, ROOM)];
        pair.a.verbs.post_recv(*qp, &RecvWr { wr_id: at as u64, sges: &sges }).unwrap();
    }
    for at in 0..3 {
        let to = Destination { ah, remote_qpn: qpns[(at + 1) % 3], remote_qkey: Qkey::new(QKEY) };
        pair.a.verbs.post_send(qps[at], &SendWr::send_to(&to, &[at as u8; 7]).id(10)).unwrap();
    }
    pair.world.advance(Duration::from_millis(1));
    let found: Vec<_> = pair.a.verbs.completions(cq).with_source().map(Result::unwrap).collect();
    assert_eq!(found.len(), 6);
    for (done, source) in found {
        let at = qps.iter().position(|qp| *qp == done.qp).unwrap();
        match done.opcode {
            WcOpcode::Send => assert_eq!((done.wr_id, source), (10, None)),
            _ => {
                let from = (at + 2) % 3;
                assert_eq!((done.wr_id, source.unwrap().src_qp), (at as u64, qpns[from]));
                assert_eq!(region.buffer.read(at * ROOM + GRH_AREA, 7), [from as u8; 7]);
            }
        }
    }
}
