//! Connections of two hosts by communication management, whose datagrams go over QP1 of simulated devices: on both kinds of port, over
//! wires that lose, repeat and reorder, with peers that reject, die, and send what is no datagram.

use core::time::Duration;
use std::collections::VecDeque;
use std::task::{Context, Waker};

use bareverbs::backend::Provider;
use bareverbs::error::{
    CreateAhError, CreateCqError, CreateQpError, DeregMrError, DestroyCqError, DestroyQpError, DeviceLoss, ModifyQpError,
    PollCqError, PostRecvError, PostSendError, QueryError, RegMrError,
};
use bareverbs::platform::{Clock, Instant, OutOfRange};
use bareverbs::{
    Access, AddressVector, Completion, CompletionQueue, Destination, DmaBuffer, Gid, GidEntry, Guid, LinkLayer, Mac, Psn, Qkey,
    QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, Qpn, QueuePair, RecvWr, Region, SendWr, WcStatus,
};
use bareverbs_cm::{
    Accept, Address, Attributes, Carrier, CarrierError, Cause, CloseError, Config, ConnectRequest, ConnectionId, Endpoint,
    Event, Mad, OpenError, Path, PortSpace, RejectReason, ResolveRequest, ServiceAnswer, ServiceId, SidrStatus, Unanswered,
};
use bareverbs_mlx5_spec::CmdOpcode;
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::SimBuffer;
use bareverbs_testing::{Driver, Faults, Node, Probability, pair};

const SERVICE: ServiceId = PortSpace::Tcp.service_id(7174);
const CAP: QpCap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
/// 67 ms, encoded.
const CM_TIMEOUT: u8 = 14;
/// 1 ms, encoded.
const LIFE_TIME: u8 = 8;

type Queues = (QueuePair<'static, Driver>, CompletionQueue<'static, Driver>);

/// What an endpoint reported, without what it borrows.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Requested(ConnectionId, Vec<u8>, Path),
    Replied(ConnectionId, Vec<u8>, Attributes),
    Established(ConnectionId),
    Rejected(u16, Vec<u8>),
    TimedOut(Unanswered),
    Disconnected(Cause),
    Closed(Qpn),
    Resolved(u8, Qpn, Qkey),
    Other,
}

/// A host with QP1, and a queue pair to be connected.
struct Side {
    node: Node,
    carrier: Carrier<'static, Driver, SimBuffer>,
    endpoint: Endpoint<8, 2, 2>,
    memory: Region<'static, SimBuffer>,
    qp: Queues,
    random: u64,
    seen: VecDeque<Seen>,
    faults: Vec<String>,
}

fn mac_of(gid: Gid) -> Option<Mac> {
    gid.link_local_mac()
}

impl Side {
    fn new(mut node: Node, seed: u64) -> Self {
        let buffer = node.host.memory(Carrier::<Driver, SimBuffer>::BYTES).whole();
        let carrier = Carrier::open(&mut node.verbs, node.pd, 1, buffer).unwrap();
        let config = Config { shortest_wait: Duration::from_millis(1), ..Config::new(Guid(seed)) };
        let memory = node.register(8192, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let qp = queue_pair(&mut node);
        Self {
            node,
            carrier,
            endpoint: Endpoint::new(config),
            memory,
            qp,
            random: seed,
            seen: VecDeque::new(),
            faults: Vec::new(),
        }
    }

    fn now(&self) -> Instant {
        self.node.host.clock().now()
    }

    fn random(&mut self) -> u64 {
        // Knuth, MMIX.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random ^ self.random >> 32
    }

    fn qpn(&self) -> Qpn {
        self.node.verbs.qp_info(self.qp.0.handle()).unwrap().qpn
    }

    /// Carries what there is, and lets time do its work.
    fn step(&mut self) {
        let mut mad: Mad = [0; 256];
        loop {
            match self.carrier.receive(&mut mad) {
                Ok(None) => break,
                Ok(Some(from)) => {
                    let (now, random) = (self.now(), self.random());
                    let seen = self.endpoint.receive(now, random, &from, &mad).map(|event| seen(&event));
                    self.seen.extend(seen);
                }
                Err(CarrierError::Stopped { .. }) => self.carrier.restart(&mut self.node.verbs).unwrap(),
                Err(error) => {
                    self.faults.push(format!("{error:?}"));
                    break;
                }
            }
        }
        let now = self.now();
        while let Some(event) = self.endpoint.advance(now) {
            self.seen.push_back(seen(&event));
        }
        self.transmit();
    }

    fn transmit(&mut self) {
        if let Err(error) = self.carrier.transmit(&mut self.node.verbs, &mut self.endpoint, mac_of) {
            self.faults.push(format!("{error:?}"));
        }
    }

    /// Connects the queue pair as an endpoint says.
    fn connect(&mut self, attributes: &Attributes) {
        let av = self.carrier.address(&attributes.rtr.path, mac_of).unwrap();
        let attr = QpAttr { access: Access::REMOTE_WRITE, ..attributes.qp_attr(av) };
        self.node.verbs.modify_qp_to_rts(self.qp.0.handle(), &attr).unwrap();
        let sges = [self.memory.sge(4096, 4096)];
        self.qp.0.recv.post(&RecvWr { wr_id: 1, sges: &sges }).unwrap();
    }

    fn request(&mut self, path: Path, private_data: &[u8]) -> ConnectionId {
        let (now, random) = (self.now(), self.random());
        let request = ConnectRequest {
            remote_cm_response_timeout: CM_TIMEOUT,
            local_cm_response_timeout: CM_TIMEOUT,
            private_data,
            ..ConnectRequest::new(SERVICE, path, self.qpn(), Psn::new(random as u32 & 0xff_ffff))
        };
        self.endpoint.connect(now, random, &request).unwrap()
    }
}

fn queue_pair(node: &mut Node) -> Queues {
    let cq = node.verbs.create_cq(64).unwrap();
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let init = QpInit { pd: node.pd, qp_type: QpType::Rc, send_cq, recv_cq, cap: CAP, sq_sig_all: true };
    (node.verbs.create_qp(&init).unwrap(), cq)
}

fn seen(event: &Event<'_>) -> Seen {
    match *event {
        Event::Requested { id, request, from } => {
            let grh = from.grh.unwrap_or_default();
            let path =
                Path { remote_lid: from.lid, local_gid: grh.destination_gid, remote_gid: grh.source_gid, ..Path::default() };
            Seen::Requested(id, request.private_data.to_vec(), path)
        }
        Event::Replied { id, reply, attributes } => Seen::Replied(id, reply.private_data.to_vec(), attributes),
        Event::Established { id, .. } => Seen::Established(id),
        Event::Rejected { reason, private_data, .. } => Seen::Rejected(reason, private_data.to_vec()),
        Event::TimedOut { message, .. } => Seen::TimedOut(message),
        Event::Disconnected { cause, .. } => Seen::Disconnected(cause),
        Event::Closed { qpn, .. } => Seen::Closed(qpn),
        Event::Resolved { answer, .. } => Seen::Resolved(answer.status, answer.qpn, answer.q_key),
        _ => Seen::Other,
    }
}

struct Two {
    a: Side,
    b: Side,
}

impl Two {
    fn new(faults: Faults) -> Self {
        let [a, b] = pair(faults).unwrap();
        let (a, mut b) = (Side::new(a, 0xa5), Side::new(b, 0x5a));
        b.endpoint.listen(SERVICE).unwrap();
        Self { a, b }
    }

    /// Returns the path from the first host to the second.
    fn path(&mut self) -> Path {
        let [(a, gid_a), (b, gid_b)] = [&mut self.a, &mut self.b]
            .map(|side| (side.node.verbs.query_port(1).unwrap(), side.node.verbs.query_gid(1, 0).unwrap()));
        let path = Path { local_gid: gid_a, remote_gid: gid_b, packet_life_time: LIFE_TIME, ..Path::default() };
        if a.link_layer == LinkLayer::Ethernet {
            return Path { global: true, hop_limit: 64, ..path };
        }
        Path { local_lid: a.lid, remote_lid: b.lid, ..path }
    }

    fn step(&mut self) {
        self.a.step();
        self.b.step();
        self.a.node.host.clock().relax(Instant::default());
    }

    /// Steps until `a` or `b` has reported something, which is returned: for 60 simulated seconds at most.
    fn next(&mut self, of: fn(&mut Self) -> &mut Side) -> Seen {
        let end = self.a.now().after(Duration::from_secs(60));
        while self.a.now() < end {
            if let Some(seen) = of(self).seen.pop_front() {
                return seen;
            }
            self.step();
        }
        panic!("nothing happened: {:?} {:?}", self.a.faults, self.b.faults);
    }

    fn done(&mut self, of: fn(&mut Self) -> &mut Side) -> Completion {
        let end = self.a.now().after(Duration::from_secs(60));
        let mut done = [Completion::EMPTY];
        while self.a.now() < end {
            if of(self).qp.1.poll(&mut done).unwrap() != 0 {
                return done[0];
            }
            self.step();
        }
        panic!("no completion");
    }

    fn assert_no_findings(&self) {
        for side in [&self.a, &self.b] {
            assert_eq!(side.node.findings(), []);
        }
    }
}

fn a(two: &mut Two) -> &mut Side {
    &mut two.a
}

fn b(two: &mut Two) -> &mut Side {
    &mut two.b
}

/// Connects, moves a message and a write each way, and releases.
fn connect_use_release(two: &mut Two) {
    let path = two.path();
    let connection = two.a.request(path, b"from the client");
    let Seen::Requested(id, private_data, from) = two.next(b) else { panic!("no request") };
    assert!(private_data.starts_with(b"from the client\0"));
    if path.global {
        assert_eq!((from.remote_gid, from.local_gid), (path.local_gid, path.remote_gid));
    } else {
        assert_eq!(from.remote_lid, path.local_lid);
    }
    let (now, qpn) = (two.b.now(), two.b.qpn());
    let accept = Accept { private_data: b"from the server", ..Accept::new(qpn, Psn::new(0xff_fff0)) };
    let attributes = two.b.endpoint.accept(now, id, &accept).unwrap();
    two.b.connect(&attributes);
    let Seen::Replied(same, private_data, attributes) = two.next(a) else { panic!("no reply") };
    assert_eq!(same, connection);
    assert!(private_data.starts_with(b"from the server\0"));
    assert_eq!((attributes.rtr.dest_qpn, attributes.rts.sq_psn), (qpn, Psn::new(0xff_fff0)));
    two.a.connect(&attributes);
    two.a.endpoint.ready(connection, b"").unwrap();
    two.a.transmit();
    for (from, to, text) in [(a as fn(&mut Two) -> &mut Side, b as fn(&mut Two) -> &mut Side, b"ping"), (b, a, b"pong")] {
        let target = to(two).memory.remote(100);
        let sender = from(two);
        sender.memory.write(0, text).unwrap();
        let sges = [sender.memory.sge(0, 4)];
        sender.qp.0.send.post(&SendWr::write(target, &sges).id(2)).unwrap();
        sender.qp.0.send.post(&SendWr::send(&sges).id(3)).unwrap();
        for wr_id in [2, 3] {
            let done = two.done(from);
            assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::Success));
        }
        let got = two.done(to);
        assert_eq!((got.wr_id, got.status, got.byte_len), (1, WcStatus::Success, 4));
        for at in [100, 4096] {
            let mut bytes = [0; 4];
            to(two).memory.read(at, &mut bytes).unwrap();
            assert_eq!(&bytes, text);
        }
    }
    // The RTU may have been lost for good: then the server knows by what it received.
    match two.b.seen.pop_front() {
        Some(established) => assert_eq!(established, Seen::Established(id)),
        None => _ = two.b.endpoint.established(id).unwrap(),
    }
    let now = two.a.now();
    two.a.endpoint.disconnect(now, connection, b"").unwrap();
    two.a.transmit();
    let cause = two.next(b);
    assert_eq!(cause, Seen::Disconnected(Cause::Peer));
    assert_eq!(two.next(a), Seen::Disconnected(Cause::Answered));
    let (qpn_a, qpn_b) = (two.a.qpn(), two.b.qpn());
    assert_eq!(two.next(a), Seen::Closed(qpn_a));
    assert_eq!(two.next(b), Seen::Closed(qpn_b));
    assert_eq!((two.a.endpoint.connections(), two.b.endpoint.connections()), (0, 0));
    for side in [&mut two.a, &mut two.b] {
        assert_eq!(side.faults, [""; 0]);
        side.node.verbs.reset_qp(&mut side.qp.0).unwrap();
        while side.qp.1.poll(&mut [Completion::EMPTY]).unwrap() != 0 {}
    }
}

#[test]
fn two_hosts_connect_on_either_kind_of_port() {
    for faults in [Faults::none(), Faults::none().ethernet()] {
        let mut two = Two::new(faults);
        for _ in 0..3 {
            connect_use_release(&mut two);
        }
        two.assert_no_findings();
    }
}

#[test]
fn two_hosts_connect_over_a_wire_that_loses_repeats_and_reorders() {
    let mut lost = 0;
    for seed in 0..24 {
        let often = Probability::per_mille(150);
        let faults = Faults::none().loss(often).duplication(often).reordering(often).seed(seed);
        let mut two = Two::new(if seed % 2 == 0 { faults } else { faults.ethernet() });
        connect_use_release(&mut two);
        lost += two.a.node.network().world().wire_stats().lost;
        two.assert_no_findings();
    }
    assert!(lost > 24, "{lost} frames");
}

#[test]
fn requests_that_leave_together_stay_apart() {
    let mut two = Two::new(Faults::none());
    let path = two.path();
    let texts: [&[u8]; 3] = [b"one\0", b"two\0", b"three\0"];
    for (text, qpn) in texts.into_iter().zip(5..) {
        let (now, random) = (two.a.now(), two.a.random());
        let request = ConnectRequest { private_data: text, ..ConnectRequest::new(SERVICE, path, Qpn::new(qpn), Psn::new(1)) };
        two.a.endpoint.connect(now, random, &request).unwrap();
    }
    for text in texts {
        let Seen::Requested(_, private_data, _) = two.next(b) else { panic!("no request") };
        assert!(private_data.starts_with(text), "{private_data:?}");
    }
}

#[test]
fn a_rejection_has_its_reason_and_its_private_data() {
    for faults in [Faults::none(), Faults::none().ethernet()] {
        let mut two = Two::new(faults);
        let path = two.path();
        two.a.request(path, b"");
        let Seen::Requested(id, ..) = two.next(b) else { panic!("no request") };
        let now = two.b.now();
        two.b.endpoint.reject(now, id, RejectReason::ConsumerReject, b"", b"not today").unwrap();
        let Seen::Rejected(reason, private_data) = two.next(a) else { panic!("no rejection") };
        assert_eq!(reason, RejectReason::ConsumerReject.into());
        assert!(private_data.starts_with(b"not today\0"));
        // Nobody listens any more.
        two.b.endpoint.unlisten(SERVICE);
        let qpn = two.a.qpn();
        assert_eq!(two.next(a), Seen::Closed(qpn));
        two.a.request(path, b"");
        let Seen::Rejected(reason, _) = two.next(a) else { panic!("no rejection") };
        assert_eq!(reason, RejectReason::InvalidServiceId.into());
        two.assert_no_findings();
    }
}

/// Sixteen times 67 ms and twice 1 ms of the path: then it is certain. A connection that was there ends by its release.
#[test]
fn a_peer_that_is_dead_is_given_up() {
    let mut two = Two::new(Faults::none());
    let path = two.path();
    let connection = two.a.request(path, b"");
    let Seen::Requested(id, ..) = two.next(b) else { panic!("no request") };
    let (now, qpn) = (two.b.now(), two.b.qpn());
    let attributes = two.b.endpoint.accept(now, id, &Accept::new(qpn, Psn::new(1))).unwrap();
    two.b.connect(&attributes);
    let Seen::Replied(_, _, attributes) = two.next(a) else { panic!("no reply") };
    two.a.connect(&attributes);
    two.a.endpoint.ready(connection, b"").unwrap();
    assert_eq!(two.next(b), Seen::Established(id));
    two.a.node.network().cut(&two.a.node, &two.b.node);
    let now = two.a.now();
    two.a.endpoint.disconnect(now, connection, b"").unwrap();
    assert_eq!(two.next(a), Seen::Disconnected(Cause::Unanswered));
    let waited = two.a.now().since(now);
    assert!(waited > Duration::from_millis(16 * 67) && waited < Duration::from_millis(16 * 80), "{waited:?}");
    let qpn = two.a.qpn();
    assert_eq!(two.next(a), Seen::Closed(qpn));
    let now = two.a.now();
    two.a.request(path, b"");
    assert_eq!(two.next(a), Seen::TimedOut(Unanswered::Req));
    let waited = two.a.now().since(now);
    assert!(waited > Duration::from_millis(16 * 67) && waited < Duration::from_millis(16 * 80), "{waited:?}");
    assert_eq!(two.next(a), Seen::Closed(qpn));
    assert_eq!(two.a.faults, [""; 0]);
}

/// What QP1 had posted completes as flushed, with the reason: that is no failed request, which a restart would mend.
#[test]
fn a_lost_device_is_no_stopped_queue_pair() {
    let mut two = Two::new(Faults::none());
    two.a.node.remove();
    two.a.node.verbs.query_port(1).unwrap_err();
    let mut mad = [0; 256];
    for _ in 0..3 {
        let lost = two.a.carrier.receive(&mut mad);
        assert!(matches!(lost, Err(CarrierError::Poll(PollCqError::DeviceLost { .. }))), "{lost:?}");
    }
}

#[test]
fn a_service_of_datagrams_is_found() {
    let mut two = Two::new(Faults::none().loss(Probability::per_mille(300)).seed(3));
    let service = PortSpace::Udp.service_id(7174);
    two.b.endpoint.listen(service).unwrap();
    let path = two.path();
    let (now, random) = (two.a.now(), two.a.random());
    let request = ResolveRequest { timeout: CM_TIMEOUT, private_data: b"who is there", ..ResolveRequest::new(service, path) };
    two.a.endpoint.resolve(now, random, &request).unwrap();
    let mut mad = [0; 256];
    let (qpn, qkey) = (Qpn::new(0x1234), Qkey::new(0x0123_4567));
    while two.a.seen.is_empty() {
        // Each question is answered: the answers may be lost.
        while let Some(from) = two.b.carrier.receive(&mut mad).unwrap() {
            let now = two.b.now();
            if let Some(Event::ServiceRequested { ticket, private_data, .. }) = two.b.endpoint.receive(now, 0, &from, &mad) {
                assert!(private_data.starts_with(b"who is there\0"));
                two.b.endpoint.answer(ticket, &ServiceAnswer::valid(qpn, qkey)).unwrap();
            }
        }
        two.step();
    }
    assert_eq!(two.a.seen, [Seen::Resolved(SidrStatus::Valid.code() as u8, qpn, qkey)]);
}

/// A queue pair for datagrams with the Q_Key of QP1, which may send what is no management datagram.
fn stranger(two: &mut Two) -> Queues {
    let node = &mut two.a.node;
    let cq = node.verbs.create_cq(64).unwrap();
    let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    let init = QpInit { pd: node.pd, qp_type: QpType::Ud, send_cq, recv_cq, cap: CAP, sq_sig_all: true };
    let qp = node.verbs.create_qp(&init).unwrap();
    let attr = QpAttr { port_num: 1, qkey: Qkey::GENERAL_SERVICES, ..QpAttr::default() };
    node.verbs.modify_qp_to_rts(qp.handle(), &attr).unwrap();
    (qp, cq)
}

/// Shorter and longer ones, and more than there are receives: QP1 works on, or again.
#[test]
fn whatever_a_peer_sends_to_queue_pair_1_connections_are_made() {
    for faults in [Faults::none(), Faults::none().ethernet()] {
        let mut two = Two::new(faults);
        let path = two.path();
        let (mut qp, mut cq) = stranger(&mut two);
        let (dlid, dgid) = (path.remote_lid, path.remote_gid);
        let route = bareverbs::GlobalRoute { dgid, hop_limit: 64, ..bareverbs::GlobalRoute::default() };
        let av = if path.global {
            AddressVector { port_num: 1, grh: Some(route), dmac: mac_of(dgid), ..AddressVector::default() }
        } else {
            AddressVector { port_num: 1, dlid, ..AddressVector::default() }
        };
        let ah = two.a.node.verbs.create_ah(two.a.node.pd, &av).unwrap();
        let to = Destination { ah, remote_qpn: Qpn::GENERAL_SERVICES, remote_qkey: Qkey::GENERAL_SERVICES };
        // A request, of which not all came or more than all is none.
        let mut other = Endpoint::<1, 1, 1>::new(Config::new(Guid(3)));
        let now = two.a.now();
        other.connect(now, 5, &ConnectRequest::new(SERVICE, path, Qpn::new(3), Psn::new(4))).unwrap();
        let mut mad = [0; 256];
        other.transmit(&mut mad).unwrap();
        two.a.memory.write(0, &mad).unwrap();
        for (length, times) in [(0, 2), (1, 1), (255, 1), (257, 1), (1024, 1), (4096, 2), (256, 100)] {
            // Longer ones than a packet are not sent.
            for _ in 0..if path.global && length > 1024 { 0 } else { times } {
                let sges = [two.a.memory.sge(if length == 256 { 512 } else { 0 }, length)];
                qp.send.post(&SendWr::send_to(&to, &sges)).unwrap();
                let mut done = [Completion::EMPTY];
                while cq.poll(&mut done).unwrap() == 0 {
                    two.a.node.host.clock().relax(Instant::default());
                }
                assert_eq!(done[0].status, WcStatus::Success);
            }
            connect_use_release(&mut two);
        }
    }
}

/// Each receive that was posted is flushed; those of the new start take what comes.
#[test]
fn a_carrier_whose_queue_pair_has_failed_is_started_anew() {
    let mut two = Two::new(Faults::none());
    let path = two.path();
    let back = Path { remote_lid: path.local_lid, local_lid: path.remote_lid, ..path };
    let to = Address { path: back.address(), qpn: Qpn::GENERAL_SERVICES, partition_key: path.partition_key };
    for _ in 0..3 {
        let qp = two.b.carrier.qp();
        // What was on its way takes no room afterwards.
        (0..4).for_each(|_| two.b.carrier.send(&mut two.b.node.verbs, &to, &[0; 256], mac_of).unwrap());
        let failed = QpAttr { state: QpState::Err, ..QpAttr::default() };
        two.b.node.verbs.modify_qp(qp, &failed, QpAttrMask::STATE).unwrap();
        let stopped = two.b.carrier.receive(&mut [0; 256]);
        assert_eq!(stopped, Err(CarrierError::Stopped { status: WcStatus::WrFlushErr }));
        two.b.carrier.restart(&mut two.b.node.verbs).unwrap();
        connect_use_release(&mut two);
        assert_eq!(two.b.node.verbs.query_qp(qp).unwrap().state, QpState::Rts);
    }
    two.assert_no_findings();
}

#[test]
fn what_cannot_be_addressed_is_an_error_and_the_rest_goes_out() {
    let mut two = Two::new(Faults::none().ethernet());
    let path = two.path();
    let ipv4 = |last| Gid::from(core::net::Ipv4Addr::new(192, 0, 2, last));
    let carrier = &mut two.a.carrier;
    let to = |path: Path| Address { path: path.address(), qpn: Qpn::GENERAL_SERVICES, partition_key: path.partition_key };
    let verbs = &mut two.a.node.verbs;
    let gid = ipv4(9);
    let unknown = to(Path { remote_gid: gid, ..path });
    assert_eq!(carrier.send(verbs, &unknown, &[0; 256], mac_of), Err(CarrierError::NoMac { gid }));
    let elsewhere = to(Path { local_gid: gid, ..path });
    assert_eq!(carrier.send(verbs, &elsewhere, &[0; 256], mac_of), Err(CarrierError::NoGid { gid }));
    // An address that the port gets later counts when the carrier reads them again.
    let mac = verbs.query_port(1).unwrap().mac;
    verbs.set_gid(1, 3, &GidEntry { gid, mac, vlan: None }).unwrap();
    assert_eq!(carrier.send(verbs, &elsewhere, &[0; 256], mac_of), Err(CarrierError::NoGid { gid }));
    carrier.read_gids(verbs).unwrap();
    carrier.send(verbs, &elsewhere, &[0; 256], mac_of).unwrap();
    let partition_key = 0x8001;
    let other = to(Path { partition_key, ..path });
    assert_eq!(carrier.send(verbs, &other, &[0; 256], mac_of), Err(CarrierError::Partition { partition_key }));
    // A limited member of the same partition is none of these.
    carrier.send(verbs, &to(Path { partition_key: 0x7fff, ..path }), &[0; 256], mac_of).unwrap();
    while two.a.carrier.send(&mut two.a.node.verbs, &to(path), &[0; 256], mac_of).is_ok() {}
    let full = two.a.carrier.send(&mut two.a.node.verbs, &to(path), &[0; 256], mac_of);
    assert_eq!(full, Err(CarrierError::Full));
    // Of two requests the first has no address.
    two.a.request(Path { remote_gid: gid, ..path }, b"");
    two.a.request(path, b"");
    assert!(matches!(two.next(b), Seen::Requested(..)));
    assert!(two.a.faults.iter().any(|fault| fault.contains("NoMac")), "{:?}", two.a.faults);
}

#[test]
fn what_was_opened_is_closed_and_what_cannot_be_opened_gives_its_memory_back() {
    let [mut node, _] = pair(Faults::none()).unwrap();
    let bytes = Carrier::<Driver, SimBuffer>::BYTES;
    let short = Carrier::open(&mut node.verbs, node.pd, 1, node.host.memory(bytes / 2).whole()).unwrap_err();
    assert!(matches!(short.error, OpenError::Buffer { length } if length < bytes));
    assert!(short.returned.unwrap().close(&mut node.verbs).unwrap().len() < bytes as u64);
    let no_port = Carrier::open(&mut node.verbs, node.pd, 9, node.host.memory(bytes).whole()).unwrap_err();
    assert!(matches!(no_port.error, OpenError::Port(_)) && no_port.returned.is_some());
    for _ in 0..40 {
        let carrier = Carrier::open(&mut node.verbs, node.pd, 1, node.host.memory(bytes).whole()).unwrap();
        carrier.close(&mut node.verbs).unwrap();
    }
    let queues: Vec<_> = (0..16).map(|_| queue_pair(&mut node)).collect();
    let full = Carrier::open(&mut node.verbs, node.pd, 1, node.host.memory(bytes).whole()).unwrap_err();
    assert!(matches!(full.error, OpenError::Qp(_)), "{full:?}");
    full.returned.unwrap().close(&mut node.verbs).unwrap();
    assert_eq!(queues.len(), 16);
    assert_eq!(node.findings(), []);
}

/// As long as the interrupt handler is taken, no completion queue is destroyed. The buffer comes back when it is returned.
#[test]
fn what_is_left_of_a_carrier_is_closed_when_the_interrupt_handler_is_back() {
    let [mut node, _] = pair(Faults::none()).unwrap();
    let bytes = Carrier::<Driver, SimBuffer>::BYTES;
    // More often than there are places for completion queues and regions.
    for _ in 0..40 {
        let carrier = Carrier::open(&mut node.verbs, node.pd, 1, node.host.memory(bytes).whole()).unwrap();
        let (qp, cq) = (carrier.qp(), carrier.cq());
        let handler = node.verbs.take_interrupt_handler().unwrap();
        let refused = carrier.close(&mut node.verbs).unwrap_err();
        assert_eq!(refused.error, CloseError::Cq(DestroyCqError::EventsTaken));
        let left = refused.returned.unwrap();
        assert_eq!((left.qp(), left.cq()), (None, Some(cq)));
        assert!(node.verbs.qp_info(qp).is_err(), "the queue pair is gone");
        let again = left.close(&mut node.verbs).unwrap_err();
        assert_eq!(again.error, refused.error);
        drop(handler);
        assert_eq!(again.returned.unwrap().close(&mut node.verbs).unwrap().len(), bytes as u64);
        assert!(node.verbs.cq_info(cq).is_err(), "the completion queue is gone");
    }
    // The same of one that is not opened: there is no place for its queue pair.
    let queues: Vec<_> = (0..16).map(|_| queue_pair(&mut node)).collect();
    for _ in 0..40 {
        let handler = node.verbs.take_interrupt_handler().unwrap();
        let full = Carrier::open(&mut node.verbs, node.pd, 1, node.host.memory(bytes).whole()).unwrap_err();
        assert!(matches!(full.error, OpenError::Qp(_)), "{full:?}");
        let left = full.returned.unwrap();
        assert!(left.qp().is_none() && left.cq().is_some(), "{left:?}");
        drop(handler);
        assert_eq!(left.close(&mut node.verbs).unwrap().len(), bytes as u64);
    }
    assert_eq!(queues.len(), 16);
    assert_eq!(node.findings(), []);
}

/// The device keeps the region: it comes back, and the buffer when the device has let go of it.
#[test]
fn a_carrier_whose_region_the_device_keeps_is_closed_later() {
    let [mut node, _] = pair(Faults::none()).unwrap();
    let bytes = Carrier::<Driver, SimBuffer>::BYTES;
    let carrier = Carrier::open(&mut node.verbs, node.pd, 1, node.host.memory(bytes).whole()).unwrap();
    let (qp, cq) = (carrier.qp(), carrier.cq());
    let refusal = Fault::CommandStatus { opcode: CmdOpcode::DestroyMkey.code() as u16, status: 3, syndrome: 7 };
    node.arm(refusal);
    let refused = carrier.close(&mut node.verbs).unwrap_err();
    assert!(matches!(refused.error, CloseError::Region(DeregMrError::Device(_))), "{:?}", refused.error);
    assert!(node.verbs.qp_info(qp).is_err() && node.verbs.cq_info(cq).is_err(), "they are gone");
    node.arm(refusal);
    let again = refused.returned.unwrap().close(&mut node.verbs).unwrap_err();
    assert!(matches!(again.error, CloseError::Region(_)), "{:?}", again.error);
    let left = again.returned.unwrap();
    assert_eq!((left.qp(), left.cq()), (None, None));
    assert_eq!(left.close(&mut node.verbs).unwrap().len(), bytes as u64);
    assert_eq!(node.findings(), []);
}

/// With the verbs of another device nothing is destroyed, and with a queue pair of the program on its completion queue not all.
#[test]
fn a_carrier_that_is_not_closed_comes_back() {
    let [mut node, mut other] = pair(Faults::none()).unwrap();
    let bytes = Carrier::<Driver, SimBuffer>::BYTES;
    let carrier = Carrier::open(&mut node.verbs, node.pd, 1, node.host.memory(bytes).whole()).unwrap();
    let (qp, cq) = (carrier.qp(), carrier.cq());
    let refused = carrier.close(&mut other.verbs).unwrap_err();
    assert_eq!(refused.error, CloseError::Qp(DestroyQpError::Stale));
    let left = refused.returned.unwrap();
    assert_eq!((left.qp(), left.cq()), (Some(qp), Some(cq)));
    let init = QpInit { pd: node.pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
    let guest = node.verbs.create_qp(&init).unwrap();
    let refused = left.close(&mut node.verbs).unwrap_err();
    assert_eq!(refused.error, CloseError::Cq(DestroyCqError::Busy { users: 2 }));
    let left = refused.returned.unwrap();
    let refused = left.close(&mut other.verbs).unwrap_err();
    assert_eq!(refused.error, CloseError::Cq(DestroyCqError::Stale));
    node.verbs.destroy_qp(guest).unwrap();
    assert_eq!(refused.returned.unwrap().close(&mut node.verbs).unwrap().len(), bytes as u64);
    // There is one QP1: it can be made again.
    Carrier::open(&mut node.verbs, node.pd, 1, node.host.memory(bytes).whole()).unwrap().close(&mut node.verbs).unwrap();
    assert_eq!((node.findings(), other.findings()), (vec![], vec![]));
}

/// A queue pair of the program that completes where the carrier does: nothing of it is taken for the carrier's.
#[test]
fn completions_of_other_queue_pairs_are_not_the_carrier_s() {
    let mut two = Two::new(Faults::none());
    let cq = two.a.carrier.cq();
    let node = &mut two.a.node;
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    let init = QpInit { pd: node.pd, qp_type: QpType::Ud, send_cq: cq, recv_cq: cq, cap, sq_sig_all: true };
    let mut other = node.verbs.create_qp(&init).unwrap();
    let attr = QpAttr { port_num: 1, qkey: Qkey::new(1), ..QpAttr::default() };
    node.verbs.modify_qp_to_rts(other.handle(), &attr).unwrap();
    let inbox = node.register(256, Access::LOCAL_WRITE).unwrap();
    // Numbers of places, of no place, and that of sends.
    for wr_id in [0, 31, 32, u64::MAX ^ 1 << 32] {
        other.recv.post(&RecvWr { wr_id, sges: &[inbox.sge(0, 256)] }).unwrap();
    }
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    node.verbs.modify_qp(other.handle(), &attr, QpAttrMask::STATE).unwrap();
    while node.verbs.poll_event().unwrap().is_some() {}
    two.a.node.host.world().advance(Duration::from_millis(1));
    assert_eq!(two.a.carrier.receive(&mut [0; 256]), Ok(None));
    // Its own receives are all there: a whole connection is made.
    connect_use_release(&mut two);
    two.assert_no_findings();
}

/// It sleeps until a datagram comes: by an event that was asked for, or as a task.
#[test]
fn a_carrier_is_ready_when_a_datagram_comes() {
    let mut two = Two::new(Faults::none());
    let path = two.path();
    let to = Address { path: path.address(), qpn: Qpn::GENERAL_SERVICES, partition_key: path.partition_key };
    let mut context = Context::from_waker(Waker::noop());
    let cq = two.b.carrier.cq();
    let arrives = |two: &mut Two| {
        two.a.carrier.send(&mut two.a.node.verbs, &to, &[7; 256], mac_of).unwrap();
        two.a.node.host.world().advance(Duration::from_millis(1));
    };
    let mut mad = [0; 256];
    two.b.carrier.req_notify().unwrap();
    let notified = |two: &mut Two| {
        let events = std::iter::from_fn(|| two.b.node.verbs.poll_event().unwrap());
        events.filter(|event| *event == bareverbs::Event::Completion(cq)).count()
    };
    assert_eq!(notified(&mut two), 0);
    arrives(&mut two);
    assert_eq!(notified(&mut two), 1);
    assert!(two.b.carrier.receive(&mut mad).unwrap().is_some());
    assert!(two.b.carrier.poll_ready(&mut context).is_pending());
    arrives(&mut two);
    assert!(two.b.carrier.poll_ready(&mut context).is_ready());
    assert!(two.b.carrier.receive(&mut mad).unwrap().is_some());
    assert_eq!(mad, [7; 256]);
}

#[test]
fn a_lost_device_ends_the_carrier() {
    let mut two = Two::new(Faults::none());
    two.a.node.remove();
    while two.a.node.verbs.maintain().is_ok() {
        two.a.node.host.clock().relax(Instant::default());
    }
    let mut mad = [0; 256];
    let lost = (0..100).find_map(|_| match two.a.carrier.receive(&mut mad) {
        Err(CarrierError::Poll(error)) => Some(error),
        _ => None,
    });
    assert!(matches!(lost, Some(PollCqError::DeviceLost { .. })), "{lost:?}");
    assert!(two.a.carrier.restart(&mut two.a.node.verbs).is_err());
    assert_eq!(two.b.node.verbs.qp_info(two.b.qp.0.handle()).unwrap().state, QpState::Reset);
}

/// What the verbs refuse is said in their words, and what the carrier refuses has the value in it.
#[test]
fn errors_say_what_is_wrong() {
    type Error = <Driver as Provider>::Error;
    let gid = Gid::from(core::net::Ipv4Addr::new(192, 0, 2, 9));
    let poll = PollCqError::DeviceLost { loss: DeviceLoss::Gone };
    let (send, receive) =
        (PostSendError::NotReady { state: QpState::Reset }, PostRecvError::NotReady { state: QpState::Reset });
    let beyond = OutOfRange { offset: 4096, len: 8, size: 4100 };
    let (address, modify) = (CreateAhError::<Error>::StalePd, ModifyQpError::<Error>::Stale);
    for (error, text) in [
        (CarrierError::<Error>::Poll(poll), poll.to_string()),
        (CarrierError::Address(address), address.to_string()),
        (CarrierError::Send(send), send.to_string()),
        (CarrierError::Receive(receive), receive.to_string()),
        (CarrierError::Modify(modify), modify.to_string()),
        (CarrierError::Buffer(beyond), beyond.to_string()),
        (CarrierError::Stopped { status: WcStatus::WrFlushErr }, "a request of QP1 failed with WrFlushErr".into()),
        (CarrierError::Full, "too many datagrams are on their way".into()),
        (CarrierError::NoMac { gid }, "the MAC address of 192.0.2.9 is not known".into()),
        (CarrierError::NoGid { gid }, "192.0.2.9 is none of the first 16 GIDs of the port".into()),
        (CarrierError::Partition { partition_key: 0x8001 }, "0x8001 is not the first partition of the port".into()),
    ] {
        assert_eq!(error.to_string(), text);
    }
    let port = QueryError::<Error>::Port { port: 9 };
    let (region, qp) = (RegMrError::<Error>::Empty, CreateQpError::<Error>::StaleCq);
    let cq = CreateCqError::<Error>::Entries { entries: 9, max: 8 };
    for (error, text) in [
        (OpenError::<Error>::Buffer { length: 100 }, "a buffer of 100 bytes is too small".into()),
        (OpenError::Port(port), port.to_string()),
        (OpenError::Region(region), region.to_string()),
        (OpenError::Cq(cq), cq.to_string()),
        (OpenError::Qp(qp), qp.to_string()),
        (OpenError::Start(CarrierError::Full), CarrierError::<Error>::Full.to_string()),
    ] {
        assert_eq!(error.to_string(), text);
    }
    let (qp, cq) = (DestroyQpError::<Error>::Stale, DestroyCqError::<Error>::Busy { users: 2 });
    let region = DeregMrError::<Error>::Busy { bindings: 3 };
    for (error, text) in [
        (CloseError::<Error>::Qp(qp), qp.to_string()),
        (CloseError::Cq(cq), cq.to_string()),
        (CloseError::Region(region), region.to_string()),
    ] {
        assert_eq!(error.to_string(), text);
    }
}
