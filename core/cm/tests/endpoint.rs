//! Single rules of the endpoint: what each message does in each state, limits, and hostile datagrams.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panic")]

use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs::{Gid, Guid, Lid, Mtu, Psn, Qkey, Qpn};
use bareverbs_cm::*;

type Node = Endpoint<8, 2, 2>;

const SERVICE: ServiceId = PortSpace::Tcp.service_id(4791);
const START: Instant = Instant::from_nanos(0);
const CLIENT_QPN: Qpn = Qpn::new(0x111);
const SERVER_QPN: Qpn = Qpn::new(0x222);

fn source(lid: u16) -> Source {
    Source { lid: Lid::new(lid), qpn: Qpn::GENERAL_SERVICES, ..Source::default() }
}

fn path() -> Path {
    Path { local_lid: Lid::new(1), remote_lid: Lid::new(2), packet_life_time: 14, mtu: Mtu::Mtu2048, ..Path::default() }
}

fn server() -> Node {
    let mut server = Node::new(Config::new(Guid(2)));
    server.listen(SERVICE).unwrap();
    server
}

/// Transmits everything, and returns the last datagram.
fn transmitted(node: &mut Node) -> Vec<(Address, Mad)> {
    let mut mad = [0; MAD_BYTES];
    let mut all = Vec::new();
    while let Some(to) = node.transmit(&mut mad) {
        all.push((to, mad));
    }
    all
}

fn one(node: &mut Node) -> Mad {
    let all = transmitted(node);
    assert_eq!(all.len(), 1);
    all[0].1
}

fn request() -> ConnectRequest<'static> {
    ConnectRequest { private_data: b"hello", ..ConnectRequest::new(SERVICE, path(), CLIENT_QPN, Psn::new(0x1000)) }
}

/// A REQ of a peer that is written by hand.
fn req(comm_id: u32, guid: u64, qpn: u32) -> Req<'static> {
    Req {
        transaction: u64::from(comm_id),
        local_comm_id: CommId(comm_id),
        vendor_id: 0,
        service_id: SERVICE,
        local_ca_guid: Guid(guid),
        local_q_key: Qkey::new(0),
        local_qpn: Qpn::new(qpn),
        responder_resources: 4,
        local_eecn: 0,
        initiator_depth: 3,
        remote_eecn: 0,
        remote_cm_response_timeout: 16,
        transport_service_type: 0,
        end_to_end_flow_control: true,
        starting_psn: Psn::new(7),
        local_cm_response_timeout: 16,
        retry_count: 6,
        partition_key: 0xffff,
        path_packet_payload_mtu: 4,
        rdc_exists: false,
        rnr_retry_count: 5,
        max_cm_retries: 3,
        srq: false,
        extended_transport_type: 0,
        primary: ReqPath {
            local_port_lid: Lid::new(1),
            remote_port_lid: Lid::new(2),
            subnet_local: true,
            local_ack_timeout: 15,
            ..ReqPath::default()
        },
        alternate: ReqPath::default(),
        private_data: &[],
    }
}

fn after(duration: Duration) -> Instant {
    START.after(duration)
}

/// A connection that both sides have.
fn connected() -> (Node, ConnectionId, Node, ConnectionId) {
    let (mut client, mut server) = (Node::new(Config::new(Guid(1))), server());
    let ours = client.connect(START, 0x11, &request()).unwrap();
    let mad = one(&mut client);
    let Some(Event::Requested { id: theirs, request, .. }) = server.receive(START, 0x22, &source(1), &mad) else { panic!() };
    assert_eq!(request.private_data[..6], *b"hello\0");
    server.accept(START, theirs, &Accept::new(SERVER_QPN, Psn::new(0x2000))).unwrap();
    let mad = one(&mut server);
    assert!(matches!(client.receive(START, 0, &source(2), &mad), Some(Event::Replied { .. })));
    client.ready(ours, b"go").unwrap();
    let mad = one(&mut client);
    let Some(Event::Established { private_data, .. }) = server.receive(START, 0, &source(1), &mad) else { panic!() };
    assert_eq!(private_data[..2], *b"go");
    (client, ours, server, theirs)
}

#[test]
fn a_request_is_repeated_at_its_timeout_and_then_given_up() {
    let mut client = Node::new(Config::new(Guid(1)));
    let short = ConnectRequest { remote_cm_response_timeout: 16, max_cm_retries: 3, ..request() };
    let id = client.connect(START, 0x11, &short).unwrap();
    let first = one(&mut client);
    let wait = timeout(16) + 2 * timeout(14);
    for attempt in 1..=3 {
        let deadline = after(wait * attempt);
        assert_eq!(client.next_deadline(), Some(deadline));
        assert_eq!(client.advance(Instant::from_nanos(deadline.as_nanos() - 1)), None);
        assert_eq!(transmitted(&mut client), []);
        assert_eq!(client.advance(deadline), None);
        assert_eq!(one(&mut client), first);
    }
    let event = client.advance(after(wait * 4));
    assert_eq!(event, Some(Event::TimedOut { id, message: Unanswered::Req }));
    // The peer finds the request by our GUID: it may not have told us its own ID.
    let mad = one(&mut client);
    let rej = Rej::decode(&mad).unwrap();
    assert_eq!((rej.reason, rej.remote_comm_id), (RejectReason::Timeout.into(), CommId(0)));
    assert_eq!(rej.information, 1u64.to_be_bytes());
    assert_eq!(client.advance(after(wait * 4)), Some(Event::Closed { id, qpn: CLIENT_QPN }));
    assert_eq!((client.advance(after(wait * 4)), client.next_deadline()), (None, None));
    assert_eq!(client.ready(id, &[]), Err(CmError::UnknownConnection));
}

#[test]
fn who_gives_up_a_request_ends_the_entry_of_the_peer() {
    let mut server = server();
    let mad = req(0x99, 1, 0x111).encode();
    let Some(Event::Requested { id, .. }) = server.receive(START, 0x22, &source(1), &mad) else { panic!() };
    let rej = |lid: u16, guid: u64, server: &mut Node| {
        let mad = Rej {
            transaction: 1,
            local_comm_id: CommId(0x99),
            remote_comm_id: CommId(0),
            message_rejected: 2,
            reason: 4,
            information: &guid.to_be_bytes(),
            private_data: &[],
        }
        .encode();
        server.receive(START, 0, &source(lid), &mad).map(|event| format!("{event:?}"))
    };
    assert_eq!(rej(3, 1, &mut server), None, "another port");
    assert_eq!(rej(1, 9, &mut server), None, "another adapter");
    assert!(rej(1, 1, &mut server).unwrap().contains("Rejected"));
    assert_eq!(server.advance(START), Some(Event::Closed { id, qpn: Qpn::new(0) }));
}

#[test]
fn an_mra_moves_the_deadline_once_and_not_beyond_the_longest_exchange() {
    let mut client = Node::new(Config::new(Guid(1)));
    let id = client.connect(START, 0x11, &request()).unwrap();
    transmitted(&mut client);
    let mra = |service_timeout| {
        Mra {
            transaction: 1,
            local_comm_id: CommId(5),
            remote_comm_id: CommId(0x11),
            message_mraed: 0,
            service_timeout,
            private_data: b"soon",
        }
        .encode()
    };
    let first = client.next_deadline().unwrap();
    let mad = mra(22);
    let Some(Event::Delayed { id: delayed, private_data }) = client.receive(START, 0, &source(2), &mad) else { panic!() };
    assert_eq!((delayed, &private_data[..4]), (id, &b"soon"[..]));
    assert_eq!(client.next_deadline(), Some(first.after(timeout(22))));
    // 2.4 hours.
    client.receive(START, 0, &source(2), &mra(31));
    assert_eq!(client.next_deadline(), Some(after(Duration::from_secs(300))));
    assert_eq!(client.advance(after(Duration::from_secs(300))), Some(Event::TimedOut { id, message: Unanswered::Req }));
}

/// A client whose request was accepted, and its server: the program has the reply, and has not answered it.
fn replied() -> (Node, ConnectionId, Node, ConnectionId) {
    let (mut client, mut server) = (Node::new(Config::new(Guid(1))), server());
    let ours = client.connect(START, 0x11, &request()).unwrap();
    let mad = one(&mut client);
    let Some(Event::Requested { id: theirs, .. }) = server.receive(START, 0x22, &source(1), &mad) else { panic!() };
    server.accept(START, theirs, &Accept::new(SERVER_QPN, Psn::new(0x2000))).unwrap();
    let mad = one(&mut server);
    assert!(matches!(client.receive(START, 0, &source(2), &mad), Some(Event::Replied { .. })));
    (client, ours, server, theirs)
}

/// The peer, which would repeat its reply, is notified, and so is the program.
#[test]
fn a_reply_that_the_program_does_not_answer_is_given_up() {
    let (mut client, ours, mut server, theirs) = replied();
    let deadline = client.next_deadline().unwrap();
    assert_eq!(client.advance(Instant::from_nanos(deadline.as_nanos() - 1)), None);
    assert_eq!(transmitted(&mut client), []);
    assert_eq!(client.advance(deadline), Some(Event::TimedOut { id: ours, message: Unanswered::Caller }));
    assert_eq!(client.ready(ours, &[]), Err(CmError::WrongState));
    let mad = one(&mut client);
    let rej = Rej::decode(&mad).unwrap();
    // It rejects the REP (IBTA table 108).
    assert_eq!((rej.reason, rej.message_rejected), (RejectReason::Timeout.into(), 1));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId(0x11), CommId(0x22)));
    assert!(matches!(server.receive(deadline, 0, &source(1), &mad), Some(Event::Rejected { id, .. }) if id == theirs));
}

/// The program may ask for time when it has a reply, and reject it. What the peer receives names the REP.
#[test]
fn a_reply_is_delayed_and_rejected() {
    let (mut client, ours, mut server, theirs) = replied();
    let first = client.next_deadline().unwrap();
    client.delay(START, ours, 0, &[]).unwrap();
    assert_eq!(client.next_deadline(), Some(first), "no earlier, however little is asked for");
    one(&mut client);
    client.delay(START, ours, 25, b"later").unwrap();
    let mad = one(&mut client);
    let mra = Mra::decode(&mad).unwrap();
    assert_eq!((mra.message_mraed, mra.service_timeout, &mra.private_data[..5]), (1, 25, &b"later"[..]));
    assert!(client.next_deadline().unwrap() > first);
    assert!(matches!(server.receive(START, 0, &source(1), &mad), Some(Event::Delayed { id, .. }) if id == theirs));
    client.reject(START, ours, RejectReason::ConsumerReject, &[], b"no").unwrap();
    let mad = one(&mut client);
    let rej = Rej::decode(&mad).unwrap();
    assert_eq!((rej.reason, rej.message_rejected), (RejectReason::ConsumerReject.into(), 1));
    assert!(matches!(server.receive(START, 0, &source(1), &mad), Some(Event::Rejected { id, .. }) if id == theirs));
    assert_eq!(client.delay(START, ours, 22, &[]), Err(CmError::WrongState));
    assert_eq!(client.reject(START, ours, RejectReason::ConsumerReject, &[], &[]), Err(CmError::WrongState));
}

#[test]
fn a_repeated_rep_is_answered_by_the_same_rtu() {
    let (mut client, mut server) = (Node::new(Config::new(Guid(1))), server());
    let ours = client.connect(START, 0x11, &request()).unwrap();
    let mad = one(&mut client);
    let Some(Event::Requested { id, .. }) = server.receive(START, 0x22, &source(1), &mad) else { panic!() };
    server.accept(START, id, &Accept::new(SERVER_QPN, Psn::new(0x2000))).unwrap();
    let rep = one(&mut server);
    client.receive(START, 0, &source(2), &rep);
    assert_eq!(client.receive(START, 0, &source(2), &rep), None);
    assert_eq!(transmitted(&mut client), [], "the program is not ready yet");
    client.ready(ours, &[]).unwrap();
    let rtu = one(&mut client);
    assert_eq!(client.receive(START, 0, &source(2), &rep), None);
    assert_eq!(one(&mut client), rtu);
    // A repeated REQ is answered by the same REP.
    assert_eq!(server.receive(START, 0x23, &source(1), &mad), None);
    assert_eq!(one(&mut server), rep);
    assert!(server.receive(START, 0, &source(1), &rtu).is_some());
    assert_eq!((server.receive(START, 0, &source(1), &rtu), server.receive(START, 0, &source(1), &mad)), (None, None));
    assert_eq!(transmitted(&mut server), []);
}

#[test]
fn data_before_the_rtu_establishes_a_connection() {
    let mut server = server();
    let mad = req(0x99, 1, 0x111).encode();
    let Some(Event::Requested { id, .. }) = server.receive(START, 0x22, &source(1), &mad) else { panic!() };
    assert_eq!(server.established(id), Ok(false));
    server.accept(START, id, &Accept::new(SERVER_QPN, Psn::new(1))).unwrap();
    assert_eq!((server.established(id), server.established(id)), (Ok(true), Ok(false)));
    assert_eq!(server.next_deadline(), None);
    server.disconnect(START, id, &[]).unwrap();
}

#[test]
fn a_release_is_answered_again_and_its_number_waits() {
    let (mut client, ours, mut server, theirs) = connected();
    client.disconnect(START, ours, b"bye").unwrap();
    assert_eq!(client.disconnect(START, ours, &[]), Err(CmError::WrongState));
    let dreq = one(&mut client);
    let event = server.receive(START, 0, &source(1), &dreq);
    let Some(Event::Disconnected { id, cause: Cause::Peer, private_data }) = event else { panic!("{event:?}") };
    assert_eq!((id, &private_data[..3]), (theirs, &b"bye"[..]));
    let drep = one(&mut server);
    assert_eq!(server.receive(START, 0, &source(1), &dreq), None);
    assert_eq!(one(&mut server), drep);
    // The local ACK timeout of the REQ: two lifetimes of 67 ms and a delay of 134 ms are within 268 ms.
    let over = after(timeout(16));
    assert_eq!((server.next_deadline(), server.advance(START)), (Some(over), None));
    assert_eq!(server.advance(over), Some(Event::Closed { id: theirs, qpn: SERVER_QPN }));
    // It is forgotten, but who asks is answered.
    assert_eq!(server.receive(over, 0, &source(1), &dreq), None);
    let mad = one(&mut server);
    let answer = Drep::decode(&mad).unwrap();
    assert_eq!((answer.local_comm_id, answer.remote_comm_id), (CommId(0x22), CommId(0x11)));

    let event = client.receive(START, 0, &source(2), &drep);
    assert!(matches!(event, Some(Event::Disconnected { cause: Cause::Answered, .. })));
    assert_eq!(client.receive(START, 0, &source(2), &drep), None);
    assert_eq!(client.advance(over), Some(Event::Closed { id: ours, qpn: CLIENT_QPN }));
}

#[test]
fn both_may_release_at_once() {
    let (mut client, ours, mut server, theirs) = connected();
    client.disconnect(START, ours, &[]).unwrap();
    server.disconnect(START, theirs, &[]).unwrap();
    let (from_client, from_server) = (one(&mut client), one(&mut server));
    assert!(matches!(client.receive(START, 0, &source(2), &from_server), Some(Event::Disconnected { cause: Cause::Peer, .. })));
    assert!(matches!(server.receive(START, 0, &source(1), &from_client), Some(Event::Disconnected { cause: Cause::Peer, .. })));
    let (from_client, from_server) = (one(&mut client), one(&mut server));
    assert_eq!(client.receive(START, 0, &source(2), &from_server), None);
    assert_eq!(server.receive(START, 0, &source(1), &from_client), None);
}

#[test]
fn a_release_for_another_queue_pair_is_ignored() {
    let (_, _, mut server, _) = connected();
    let mad = Dreq {
        transaction: 9,
        local_comm_id: CommId(0x11),
        remote_comm_id: CommId(0x22),
        remote_qpn: Qpn::new(0x223),
        private_data: &[],
    };
    assert_eq!((server.receive(START, 0, &source(1), &mad.encode()), transmitted(&mut server)), (None, vec![]));
    assert!(server.receive(START, 0, &source(1), &Dreq { remote_qpn: SERVER_QPN, ..mad }.encode()).is_some());
}

#[test]
fn a_peer_that_does_not_answer_a_release_is_given_up() {
    let (mut client, ours, ..) = connected();
    client.disconnect(START, ours, &[]).unwrap();
    let mut requests = 0;
    let event = loop {
        requests += transmitted(&mut client).len();
        let now = client.next_deadline().unwrap();
        if let Some(event) = client.advance(now) {
            break event;
        }
    };
    assert_eq!((event, requests), (Event::Disconnected { id: ours, cause: Cause::Unanswered, private_data: &[] }, 16));
    let end = client.next_deadline().unwrap();
    assert_eq!(client.advance(end), Some(Event::Closed { id: ours, qpn: CLIENT_QPN }));
}

/// A peer that was started anew connects with a queue pair that we still believe to be connected.
#[test]
fn a_new_request_with_a_connected_queue_pair_ends_the_old_connection() {
    let mut server = server();
    let old = req(0x99, 1, 0x111).encode();
    let Some(Event::Requested { id, .. }) = server.receive(START, 0x22, &source(1), &old) else { panic!() };
    server.accept(START, id, &Accept::new(SERVER_QPN, Psn::new(1))).unwrap();
    server.established(id).unwrap();
    transmitted(&mut server);

    // The adapter of another port is another one, whatever GUID it writes.
    let forged = req(0x9a, 1, 0x111).encode();
    assert!(matches!(server.receive(START, 0x33, &source(3), &forged), Some(Event::Requested { .. })));

    let anew = req(0x9b, 1, 0x111).encode();
    let event = server.receive(START, 0x23, &source(1), &anew);
    assert_eq!(event, Some(Event::Disconnected { id, cause: Cause::Stale, private_data: &[] }));
    let sent = transmitted(&mut server);
    let rej = Rej::decode(&sent[0].1).unwrap();
    assert_eq!((rej.reason, rej.remote_comm_id), (RejectReason::StaleConnection.into(), CommId(0x9b)));
    assert_eq!(Dreq::decode(&sent[1].1).unwrap().remote_comm_id, CommId(0x99));
    // Until TimeWait is over the queue pair is stale.
    let drep = Drep { transaction: 0, local_comm_id: CommId(0x99), remote_comm_id: CommId(0x22), private_data: &[] };
    assert_eq!(server.receive(START, 0, &source(1), &drep.encode()), None, "its end was reported");
    assert_eq!(server.receive(START, 0x24, &source(1), &anew), None);
    assert_eq!(Rej::decode(&one(&mut server)).unwrap().reason, RejectReason::StaleConnection.into());
    let over = after(timeout(15));
    assert_eq!(server.advance(over), Some(Event::Closed { id, qpn: SERVER_QPN }));
    assert!(matches!(server.receive(over, 0x25, &source(1), &anew), Some(Event::Requested { .. })));
}

/// A server that was started anew accepts with a queue pair that we still believe to be connected.
#[test]
fn a_reply_with_a_connected_queue_pair_is_rejected_and_ends_the_old_connection() {
    let (mut client, old, ..) = connected();
    let mut anew = Node::new(Config::new(Guid(2)));
    anew.listen(SERVICE).unwrap();
    let request = ConnectRequest { qpn: Qpn::new(0x112), ..request() };
    let id = client.connect(START, 0x12, &request).unwrap();
    let mad = one(&mut client);
    let Some(Event::Requested { id: theirs, .. }) = anew.receive(START, 0x23, &source(1), &mad) else { panic!() };
    anew.accept(START, theirs, &Accept::new(SERVER_QPN, Psn::new(0x2000))).unwrap();
    let rep = one(&mut anew);
    let event = client.receive(START, 0, &source(2), &rep);
    assert_eq!(event, Some(Event::Disconnected { id, cause: Cause::Stale, private_data: &[] }));
    let sent = transmitted(&mut client);
    let rej = Rej::decode(&sent[0].1).unwrap();
    assert_eq!((rej.reason, rej.message_rejected, rej.remote_comm_id), (10, 1, CommId(0x23)));
    let event = anew.receive(START, 0, &source(1), &sent[0].1);
    assert!(matches!(event, Some(Event::Rejected { reason: 10, .. })), "{event:?}");
    // The server does not know the old one, and answers all the same.
    assert_eq!((sent.len(), anew.receive(START, 0, &source(1), &sent[1].1)), (2, None));
    let drep = one(&mut anew);
    let event = client.receive(START, 0, &source(2), &drep);
    assert!(matches!(event, Some(Event::Disconnected { id, cause: Cause::Answered, .. }) if id == old), "{event:?}");
}

#[test]
fn what_a_server_cannot_do_is_rejected_with_its_reason() {
    let mut server = server();
    let good = req(0x99, 1, 0x111);
    let cases = [
        (Req { service_id: ServiceId(5), ..good }, RejectReason::InvalidServiceId),
        (Req { transport_service_type: 2, ..good }, RejectReason::InvalidTransportType),
        (Req { transport_service_type: 3, extended_transport_type: 2, ..good }, RejectReason::InvalidTransportType),
        (Req { path_packet_payload_mtu: 0, ..good }, RejectReason::InvalidMtu),
        (Req { path_packet_payload_mtu: 6, ..good }, RejectReason::InvalidMtu),
    ];
    for (req, reason) in cases {
        assert_eq!(server.receive(START, 1, &source(1), &req.encode()), None);
        let sent = transmitted(&mut server);
        let rej = Rej::decode(&sent[0].1).unwrap();
        assert_eq!((rej.reason, rej.remote_comm_id, rej.transaction), (reason.code() as u16, CommId(0x99), 0x99));
        assert_eq!((rej.message_rejected, sent[0].0.path.dlid), (0, Lid::new(1)));
    }
    let mut old = good.encode();
    old[2] = 1;
    assert_eq!(server.receive(START, 1, &source(1), &old), None);
    assert_eq!(Rej::decode(&one(&mut server)).unwrap().reason, RejectReason::InvalidClassVersion.into());
    assert_eq!(server.connections(), 0);
    let xrc = Req { transport_service_type: 3, extended_transport_type: 1, ..good };
    assert_eq!(xrc.transport(), Some(Transport::Xrc));
    assert!(server.receive(START, 1, &source(1), &xrc.encode()).is_some());
}

#[test]
fn one_peer_cannot_fill_the_table() {
    let config = Config { half_open: 5, half_open_per_peer: 2, per_peer: 3, ..Config::new(Guid(2)) };
    let mut server = Node::new(config);
    server.listen(SERVICE).unwrap();
    let mut next = 0;
    let mut ask = |server: &mut Node, lid: u16| {
        next += 1;
        let mad = req(next, u64::from(lid), next + 0x1000).encode();
        let id = match server.receive(START, u64::from(next) + 0x7000, &source(lid), &mad) {
            Some(Event::Requested { id, .. }) => Some(id),
            other => {
                assert_eq!(other, None);
                assert_eq!(Rej::decode(&one(server)).unwrap().reason, RejectReason::NoResources.into());
                None
            }
        };
        (id, next)
    };
    let (first, second) = (ask(&mut server, 1), ask(&mut server, 1));
    assert!(first.0.is_some() && second.0.is_some());
    assert_eq!(ask(&mut server, 1).0, None, "two of one peer are half open");
    assert!(ask(&mut server, 2).0.is_some() && ask(&mut server, 2).0.is_some() && ask(&mut server, 3).0.is_some());
    assert_eq!(ask(&mut server, 4).0, None, "five are half open");
    // The others of the table are for those who ask us, and whom we ask.
    for _ in 0..3 {
        server.connect(START, 0x5000, &request()).unwrap();
    }
    assert_eq!(server.connect(START, 0x5000, &request()), Err(CmError::TableFull { capacity: 8 }));
    transmitted(&mut server);
    // Who does not go on is forgotten: four attempts of 268 ms.
    let over = after(timeout(16) * 4);
    let mut closed = 0;
    while let Some(event) = server.advance(over) {
        closed += u32::from(matches!(event, Event::Closed { .. }));
    }
    assert_eq!((closed, server.connections()), (5, 3));
    // Three of one peer at most, though they are established.
    transmitted(&mut server);
    for _ in 0..3 {
        let id = ask(&mut server, 7).0.unwrap();
        server.accept(over, id, &Accept::new(SERVER_QPN, Psn::new(1))).unwrap();
        server.established(id).unwrap();
        server.forget(id).unwrap();
    }
    let ids: Vec<ConnectionId> = (0..3)
        .map(|_| {
            let id = ask(&mut server, 7).0.unwrap();
            server.accept(over, id, &Accept::new(SERVER_QPN, Psn::new(1))).unwrap();
            server.established(id).unwrap();
            id
        })
        .collect();
    transmitted(&mut server);
    assert_eq!((ask(&mut server, 7).0, ids.len()), (None, 3));
}

/// A peer that asks for repetitions every 4 µs gets them every 4 ms, and sixteen at most.
#[test]
fn a_peer_cannot_have_a_flood_sent() {
    let mut server = server();
    let mad = Req { local_cm_response_timeout: 0, max_cm_retries: 15, ..req(0x99, 1, 0x111) };
    let mad = Req { primary: ReqPath { local_ack_timeout: 0, ..mad.primary }, ..mad }.encode();
    let Some(Event::Requested { id, .. }) = server.receive(START, 0x22, &source(1), &mad) else { panic!() };
    server.accept(START, id, &Accept::new(SERVER_QPN, Psn::new(1))).unwrap();
    let mut sent = transmitted(&mut server).len();
    let mut now = START;
    while let Some(deadline) = server.next_deadline() {
        assert!(deadline.since(now) >= timeout(10) || sent > 16);
        now = deadline;
        while server.advance(now).is_some() {}
        sent += transmitted(&mut server).len();
    }
    // The REP sixteen times, and the REJ.
    assert_eq!((sent, server.connections()), (17, 0));
}

#[test]
fn an_unknown_reply_is_rejected_and_a_forged_one_changes_nothing() {
    let mut client = Node::new(Config::new(Guid(1)));
    client.connect(START, 0x11, &request()).unwrap();
    transmitted(&mut client);
    let rep = Rep {
        transaction: 3,
        local_comm_id: CommId(0x77),
        remote_comm_id: CommId(0x12),
        local_q_key: Qkey::new(0),
        local_qpn: SERVER_QPN,
        vendor_id_high: 0,
        local_ee_context_number: 0,
        vendor_id_middle: 0,
        starting_psn: Psn::new(5),
        vendor_id_low: 0,
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 5,
        failover_accepted: 0,
        end_to_end_flow_control: true,
        rnr_retry_count: 3,
        srq: false,
        local_ca_guid: Guid(2),
        private_data: &[],
    };
    assert_eq!(client.receive(START, 0, &source(2), &rep.encode()), None);
    let mad = one(&mut client);
    let rej = Rej::decode(&mad).unwrap();
    assert_eq!((rej.reason, rej.message_rejected), (RejectReason::InvalidCommId.into(), 1));
    assert_eq!(rej.remote_comm_id, CommId(0x77));

    let right = Rep { remote_comm_id: CommId(0x11), ..rep };
    let mad = right.encode();
    let Some(Event::Replied { attributes, .. }) = client.receive(START, 0, &source(2), &mad) else { panic!() };
    assert_eq!((attributes.rts.rnr_retry, attributes.rts.retry_cnt), (3, 7));
    assert_eq!(attributes.rts.timeout, ack_timeout(14, 5));
    // Another one for the same request.
    assert_eq!(client.receive(START, 0, &source(2), &Rep { local_comm_id: CommId(0x78), ..right }.encode()), None);
    assert_eq!(Rej::decode(&one(&mut client)).unwrap().remote_comm_id, CommId(0x78));
}

#[test]
fn alternate_paths_are_refused() {
    let (_, _, mut server, _) = connected();
    let lap = Lap {
        transaction: 8,
        local_comm_id: CommId(0x11),
        remote_comm_id: CommId(0x22),
        remote_qpn: SERVER_QPN,
        remote_cm_response_timeout: 16,
        private_data: &[],
    };
    for (lap, status) in [(lap, ApStatus::Unsupported), (Lap { remote_comm_id: CommId(0x23), ..lap }, ApStatus::InvalidCommId)]
    {
        assert_eq!(server.receive(START, 0, &source(1), &lap.encode()), None);
        let mad = one(&mut server);
        let apr = Apr::decode(&mad).unwrap();
        assert_eq!((apr.transaction, u32::from(apr.ap_status)), (8, status.code()));
        assert_eq!((apr.remote_comm_id, apr.local_comm_id), (lap.local_comm_id, lap.remote_comm_id));
    }
}

#[test]
fn a_service_id_is_resolved() {
    let (mut client, mut server) = (Node::new(Config::new(Guid(1))), server());
    let question = ResolveRequest { private_data: b"who", timeout: 16, retries: 2, ..ResolveRequest::new(SERVICE, path()) };
    let query = client.resolve(START, 0x55, &question).unwrap();
    let mad = one(&mut client);
    let event = server.receive(START, 0, &source(1), &mad);
    let Some(Event::ServiceRequested { ticket, service_id, private_data, .. }) = event else { panic!("{event:?}") };
    assert_eq!((service_id, &private_data[..3]), (SERVICE, &b"who"[..]));
    server.answer(ticket, &ServiceAnswer::valid(Qpn::new(0x42), Qkey::new(0x0123_4567))).unwrap();
    let mad = one(&mut server);
    let Some(Event::Resolved { query: resolved, answer }) = client.receive(START, 0, &source(2), &mad) else { panic!() };
    assert_eq!((resolved, answer.qpn, answer.q_key), (query, Qpn::new(0x42), Qkey::new(0x0123_4567)));
    assert_eq!((client.receive(START, 0, &source(2), &mad), client.next_deadline()), (None, None));

    // A service that nobody has, and one that does not answer.
    let unknown = client.resolve(START, 0x56, &ResolveRequest { service_id: ServiceId(3), ..question }).unwrap();
    let mad = one(&mut client);
    assert_eq!(server.receive(START, 0, &source(1), &mad), None);
    let mad = one(&mut server);
    let Some(Event::Resolved { query, answer }) = client.receive(START, 0, &source(2), &mad) else { panic!() };
    assert_eq!((query, u32::from(answer.status)), (unknown, SidrStatus::UnsupportedServiceId.code()));
    let silent = client.resolve(START, 0x57, &question).unwrap();
    let mut requests = transmitted(&mut client).len();
    let event = loop {
        let now = client.next_deadline().unwrap();
        if let Some(event) = client.advance(now) {
            break event;
        }
        requests += transmitted(&mut client).len();
    };
    assert_eq!((event, requests), (Event::Unresolved { query: silent }, 3));

    // One that the program does not wait for any more: nothing is sent, and its answer is no event.
    let forgotten = client.resolve(START, 0x58, &question).unwrap();
    let mad = one(&mut client);
    assert!(client.cancel(forgotten) && !client.cancel(forgotten));
    assert_eq!((client.next_deadline(), transmitted(&mut client).len()), (None, 0));
    let Some(Event::ServiceRequested { ticket, .. }) = server.receive(START, 0, &source(1), &mad) else { panic!() };
    server.answer(ticket, &ServiceAnswer::valid(Qpn::new(0x42), Qkey::new(1))).unwrap();
    let mad = one(&mut server);
    assert_eq!(client.receive(START, 0, &source(2), &mad), None);
}

/// To another subnet, and on Ethernet, datagrams carry a GRH, and ports are known by their GIDs.
#[test]
fn a_global_route_is_answered_by_its_reverse() {
    let (near, far) = (Gid([1; 16]), Gid([2; 16]));
    let route = |source_gid, destination_gid| GlobalRoute {
        source_gid,
        destination_gid,
        flow_label: 5,
        hop_limit: 9,
        traffic_class: 3,
    };
    let mut client = Node::new(Config::new(Guid(1)));
    let global =
        Path { local_gid: near, remote_gid: far, global: true, subnet_local: false, flow_label: 5, hop_limit: 9, ..path() };
    client.connect(START, 0x11, &ConnectRequest { path: global, ..request() }).unwrap();
    let sent = transmitted(&mut client);
    assert_eq!(sent[0].0.path.grh, Some(GlobalRoute { traffic_class: 0, ..route(near, far) }));
    let from = Source { grh: Some(route(near, far)), sl: 2, partition_key: 0x8001, ..source(1) };
    let mut server = server();
    let Some(Event::Requested { id, .. }) = server.receive(START, 0x22, &from, &sent[0].1) else { panic!() };
    let attributes = server.accept(START, id, &Accept::new(SERVER_QPN, Psn::new(1))).unwrap();
    assert_eq!(attributes.rtr.path.grh, Some(GlobalRoute { traffic_class: 0, ..route(far, near) }));
    let (to, _) = transmitted(&mut server)[0];
    assert_eq!(to.path.grh, Some(GlobalRoute { hop_limit: 255, ..route(far, near) }));
    assert_eq!((to.path.sl, to.partition_key), (2, 0x8001));
}

#[test]
fn what_is_too_long_is_refused_and_changes_nothing() {
    let mut client = Node::new(Config::new(Guid(1)));
    let long = [0; 300];
    assert_eq!(
        client.connect(START, 1, &ConnectRequest { private_data: &long, ..request() }),
        Err(CmError::TooLong { room: 92 })
    );
    assert_eq!(client.connections(), 0);
    let id = client.connect(START, 1, &request()).unwrap();
    assert_eq!(client.reject(START, id, RejectReason::ConsumerReject, &long, &[]), Err(CmError::TooLong { room: 72 }));
    assert_eq!(client.reject(START, id, RejectReason::ConsumerReject, &[], &long), Err(CmError::TooLong { room: 148 }));
    assert_eq!((client.ready(id, &[]), client.established(id)), (Err(CmError::WrongState), Ok(false)));
    assert_eq!(client.accept(START, id, &Accept::new(SERVER_QPN, Psn::new(1))), Err(CmError::WrongState));
    assert_eq!(client.delay(START, id, 1, &[]), Err(CmError::WrongState));
    assert_eq!((client.listen(SERVICE), client.listen(SERVICE)), (Ok(()), Err(CmError::ServiceInUse)));
    assert_eq!((client.listen(ServiceId(1)), client.listen(ServiceId(2))), (Ok(()), Err(CmError::TableFull { capacity: 2 })));
    assert_eq!((client.unlisten(SERVICE), client.unlisten(SERVICE)), (true, false));
}

/// Bytes of anybody: nothing panics, tables keep their bounds, each datagram causes two at most.
#[test]
fn arbitrary_datagrams_are_survived() {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut seeds: Vec<Mad> = Vec::new();
    for line in include_str!("data/linux.tsv").lines().filter(|line| !line.starts_with('#')) {
        let hex = line.rsplit('\t').next().unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        seeds.push(bytes.try_into().unwrap());
    }
    let mut node = server();
    for service in seeds.iter().filter_map(Req::decode) {
        let _ = node.listen(service.service_id);
    }
    let mut requested = Vec::new();
    for round in 0..200_000u64 {
        let now = Instant::from_nanos(round * 1_000_000);
        let mut mad = seeds[next() as usize % seeds.len()];
        for _ in 0..next() % 4 {
            mad[next() as usize % MAD_BYTES] = next() as u8;
        }
        // Small IDs, so that they meet.
        mad[24..28].copy_from_slice(&(next() as u32 % 8).to_be_bytes());
        if next() % 2 == 0 {
            mad[28..32].copy_from_slice(&(next() as u32 % 8).to_be_bytes());
        }
        match node.receive(now, next() % 8, &source(next() as u16 % 4), &mad) {
            Some(Event::Requested { id, .. }) => requested.push(id),
            Some(Event::Replied { id, .. }) => node.ready(id, &[]).unwrap(),
            Some(Event::ServiceRequested { ticket, .. }) => {
                let _ = node.answer(ticket, &ServiceAnswer::valid(Qpn::new(1), Qkey::new(1)));
            }
            _ => {}
        }
        match next() % 8 {
            0 => drop(node.connect(now, next() % 8, &request())),
            1 => drop(node.resolve(now, next() % 8, &ResolveRequest::new(SERVICE, path()))),
            2 | 3 => {
                if let Some(id) = requested.pop() {
                    let _ = node.accept(now, id, &Accept::new(Qpn::new(next() as u32 % 8), Psn::new(1)));
                    let _ = node.established(id);
                    if next() % 2 == 0 {
                        let _ = node.disconnect(now, id, &[]);
                    }
                }
            }
            _ => {}
        }
        let mut events = 0;
        while node.advance(now).is_some() {
            events += 1;
        }
        assert!(events <= 32, "{events}");
        assert!(node.next_deadline().is_none_or(|deadline| deadline > now));
        assert!(transmitted(&mut node).len() <= 16);
    }
}
