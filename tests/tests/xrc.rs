//! XRC on simulated devices: domains, several shared receive queues on one target, every operation, refusals, a device that goes.

use std::time::Duration;

use bareverbs::error::{
    CreateQpError, CreateSrqError, DeallocXrcdError, DestroyCqError, DeviceLoss, Errno, PollCqError, PostSendError,
};
use bareverbs::{
    Access, Completion, CompletionQueue, DmaBuffer, Event, MwType, NoReceives, QpCap, QpHandle, QpInit, QpState, QpType,
    QueuePair, RecvWr, Region, SendFlags, SendWr, SharedReceiveQueue, SrqCap, SrqInit, Srqn, Type1Bind, WcData, WcOpcode,
    WcStatus, XrcDomain,
};
use bareverbs_sim::in_process::SimBuffer;
use bareverbs_testing::{Connection, Driver, Fault, Faults, Node, Probability, connect, join, pair};

type Srq = SharedReceiveQueue<'static, Driver>;
type Cq = CompletionQueue<'static, Driver>;
type Xrc = QueuePair<'static, Driver, NoReceives>;
type Memory = Region<'static, SimBuffer>;

/// Bytes of a receive.
const ROOM: usize = 8192;
const CAP: QpCap = QpCap { max_send_wr: 64, max_recv_wr: 0, max_send_sge: 4, max_recv_sge: 0, max_inline_data: 128 };
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// An initiator with its completion queue, and the target that it is connected to.
struct Link {
    from: Xrc,
    cq: Cq,
    target: Xrc,
}

fn srq(node: &mut Node, domain: &XrcDomain<Driver>, cq: &mut Cq, max_wr: u32) -> (Srq, Srqn) {
    let init = SrqInit { pd: node.pd, cap: SrqCap { max_wr, max_sge: 2 } };
    let srq = node.verbs.create_xrc_srq(&init, domain, cq).unwrap();
    let number = node.verbs.srq_info(srq.handle()).unwrap().srqn;
    (srq, number)
}

fn init_of(node: &Node, cq: &Cq) -> QpInit {
    let (pd, send_cq, recv_cq) = (node.pd, cq.handle(), cq.handle());
    QpInit { pd, qp_type: QpType::XrcSend, send_cq, recv_cq, cap: CAP, sq_sig_all: true }
}

fn link((a, of_a): (&mut Node, &XrcDomain<Driver>), (b, of_b): (&mut Node, &XrcDomain<Driver>)) -> Link {
    let cq = a.verbs.create_cq(512).unwrap();
    let init = init_of(a, &cq);
    let from = a.verbs.create_xrc_send_qp(&init, of_a).unwrap();
    let target = b.verbs.create_xrc_recv_qp(of_b).unwrap();
    join((&mut a.verbs, from.handle()), (&mut b.verbs, target.handle()), &Connection::default()).unwrap();
    Link { from, cq, target }
}

fn post(srq: &mut Srq, inbox: &Memory, place: u64) {
    let at = place * ROOM as u64;
    srq.post(&RecvWr { wr_id: place, sges: &[inbox.sge(at, 100), inbox.sge(at + 100, (ROOM - 100) as u32)] }).unwrap();
}

fn settle(node: &Node) {
    node.network().world().advance(Duration::from_millis(20));
}

fn taken(cq: &mut Cq) -> Vec<Completion> {
    cq.completions().map(Result::unwrap).collect()
}

fn read(region: &Memory, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read(at, &mut bytes).unwrap();
    bytes
}

// contract: post-opcodes-xrc, xrc-srq
#[test]
fn every_byte_arrives_at_the_shared_receive_queue_that_its_request_names() {
    for seed in 0..3 {
        let [mut a, mut b] = pair(Faults::none().loss(Probability::per_mille(20)).seed(seed)).unwrap();
        let (of_a, domain) = (a.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
        let mut cqs = [b.verbs.create_cq(64).unwrap(), b.verbs.create_cq(64).unwrap()];
        // Two complete into one queue, a third into another; all are of each target.
        let mut srqs = [0, 0, 1].map(|cq| srq(&mut b, &domain, &mut cqs[cq], 7));
        let inboxes: Vec<Memory> = (0..3).map(|_| b.register(8 * ROOM, ALL).unwrap()).collect();
        let mut links = [0; 3].map(|_| link((&mut a, &of_a), (&mut b, &domain)));
        for ((srq, _), inbox) in srqs.iter_mut().zip(&inboxes) {
            (0..7).for_each(|place| post(srq, inbox, place));
        }
        let mut source = a.register(ROOM, ALL).unwrap();
        for round in 0..40_usize {
            for number in 0..9 {
                let (at, to) = (number % 3, (number + round) % 3);
                let Link { from, cq, target } = &mut links[at];
                let ((queue, srqn), inbox) = (&mut srqs[to], &inboxes[to]);
                let len = 1 + (round * 997 + number * 131) % 5000;
                let text = vec![(round * 7 + number) as u8; len];
                source.write(0, &text).unwrap();
                let payload = [source.sge(0, len as u32)];
                let imm = [1, 2, number as u8, round as u8];
                let remote = inbox.remote(7 * ROOM as u64);
                let (wr, expected) = match number % 4 {
                    0 => (SendWr::send(&payload), Some((WcOpcode::Recv, WcData::None))),
                    1 => (SendWr::send_with_imm(&payload, imm), Some((WcOpcode::Recv, WcData::Imm(imm)))),
                    2 => (SendWr::write_with_imm(remote, &payload, imm), Some((WcOpcode::RecvRdmaWithImm, WcData::Imm(imm)))),
                    _ => (SendWr::write(remote, &payload), None),
                };
                from.send.post(&wr.id(number as u64).to_srq(*srqn)).unwrap();
                let done = a.waiter().wait(cq).unwrap();
                assert_eq!((done.status, done.wr_id), (WcStatus::Success, number as u64));
                let Some((opcode, data)) = expected else {
                    assert_eq!(read(inbox, 7 * ROOM, len), text);
                    continue;
                };
                let got = b.waiter().wait(&mut cqs[to / 2]).unwrap();
                assert_eq!((got.status, got.opcode, got.data), (WcStatus::Success, opcode, data));
                assert_eq!((got.qp, got.byte_len), (target.handle(), len as u32));
                let at = if number % 4 == 2 { 7 * ROOM } else { got.wr_id as usize * ROOM };
                assert_eq!(read(inbox, at, len), text, "queue {to}");
                post(queue, inbox, got.wr_id);
            }
        }
        assert!(cqs.iter_mut().all(|cq| taken(cq).is_empty()));
        assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
    }
}

// contract: post-opcodes-xrc
#[test]
fn reads_atomics_inline_bytes_and_many_pieces() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (of_a, domain) = (a.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
    let mut cq = b.verbs.create_cq(64).unwrap();
    let (_queue, srqn) = srq(&mut b, &domain, &mut cq, 7);
    let mut here = a.register(4096, ALL).unwrap();
    let mut there = b.register(4096, ALL).unwrap();
    let Link { mut from, cq: mut send_cq, target: _target } = link((&mut a, &of_a), (&mut b, &domain));
    let mut done = |from: &mut Xrc, wr: &SendWr<'_>| {
        from.send.post(wr).unwrap();
        let done = a.waiter().wait(&mut send_cq).unwrap();
        assert_eq!(done.status, WcStatus::Success, "{wr:?}");
        done
    };
    there.write(64, b"to be read").unwrap();
    let got =
        done(&mut from, &SendWr::read(there.remote(64), &[here.sge(0, 4), here.sge(100, 0), here.sge(8, 6)]).to_srq(srqn));
    assert_eq!((got.opcode, got.byte_len), (WcOpcode::RdmaRead, 10));
    assert_eq!((read(&here, 0, 4), read(&here, 8, 6)), (b"to b".to_vec(), b"e read".to_vec()));
    there.write(8, &5_u64.to_ne_bytes()).unwrap();
    let word = here.sge(256, 8);
    let got = done(&mut from, &SendWr::fetch_add(there.remote(8), word, 37).to_srq(srqn));
    assert_eq!((got.opcode, read(&here, 256, 8)), (WcOpcode::FetchAdd, 5_u64.to_ne_bytes().to_vec()));
    let got = done(&mut from, &SendWr::compare_swap(there.remote(8), word, 42, 9).to_srq(srqn));
    assert_eq!((got.opcode, read(&here, 256, 8)), (WcOpcode::CompSwap, 42_u64.to_ne_bytes().to_vec()));
    assert_eq!(read(&there, 8, 8), 9_u64.to_ne_bytes());
    for len in [1, 3, 4, 12, 13, 28, 29, 44, 100, 128] {
        let bytes: Vec<u8> = (0..len).map(|byte| byte ^ len).collect();
        done(&mut from, &SendWr::write(there.remote(512), &bytes[..]).to_srq(srqn));
        assert_eq!(read(&there, 512, usize::from(len)), bytes);
    }
    done(&mut from, &SendWr::write(there.remote(512), b"").to_srq(srqn));
    here.write(1024, b"four pieces of bytes").unwrap();
    let pieces = [here.sge(1024, 5), here.sge(1029, 7), here.sge(1036, 3), here.sge(1039, 5)];
    done(&mut from, &SendWr::write(there.remote(700), &pieces).to_srq(srqn));
    assert_eq!(read(&there, 700, 20), b"four pieces of bytes");
    // Over the end of the ring, in steps of one and two blocks.
    for round in 0..200_u64 {
        let wr =
            if round % 3 == 0 { SendWr::fetch_add(there.remote(16), word, 1) } else { SendWr::write(there.remote(24), b"x") };
        done(&mut from, &wr.to_srq(srqn));
    }
    assert_eq!(read(&there, 16, 8), 67_u64.to_ne_bytes());
    assert!(taken(&mut cq).is_empty());
    assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
}

// contract: xrc-foreign
#[test]
fn a_request_to_a_queue_that_is_not_of_the_domain_is_refused_and_no_byte_moves() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let of_a = a.verbs.alloc_xrcd().unwrap();
    let (domain, other) = (b.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
    let mut cq = b.verbs.create_cq(64).unwrap();
    let (mut own, own_number) = srq(&mut b, &domain, &mut cq, 7);
    let (mut foreign, foreign_number) = srq(&mut b, &other, &mut cq, 7);
    let mut plain = b.verbs.create_srq(&SrqInit { pd: b.pd, cap: SrqCap { max_wr: 7, max_sge: 2 } }).unwrap();
    let plain_number = b.verbs.srq_info(plain.handle()).unwrap().srqn;
    let inbox = b.register(8 * ROOM, ALL).unwrap();
    let word = a.register(8, ALL).unwrap();
    for queue in [&mut own, &mut foreign, &mut plain] {
        post(queue, &inbox, 0);
    }
    let nobody = Srqn::new(0xab_cdef);
    for number in [foreign_number, plain_number, nobody, Srqn::new(0)] {
        for wr in [
            SendWr::send(b"not for you"),
            SendWr::write(inbox.remote(0), b"not for you"),
            SendWr::write_with_imm(inbox.remote(0), b"not for you", [0; 4]),
            SendWr::read(inbox.remote(0), &[word.sge(0, 8)]),
            SendWr::fetch_add(inbox.remote(0), word.sge(0, 8), 1),
        ] {
            let Link { mut from, cq: mut send_cq, target } = link((&mut a, &of_a), (&mut b, &domain));
            from.send.post(&wr.to_srq(number)).unwrap();
            let refused = a.waiter().wait(&mut send_cq).unwrap();
            assert_eq!(refused.status, WcStatus::RemAccessErr, "{number} {wr:?}");
            assert_eq!(b.verbs.query_qp(target.handle()).unwrap().state, QpState::Err);
            assert!(taken(&mut cq).is_empty());
            a.verbs.destroy_qp(from).map_err(|refused| refused.error).unwrap();
            b.verbs.destroy_qp(target).map_err(|refused| refused.error).unwrap();
            a.verbs.destroy_cq(send_cq).map_err(|refused| refused.error).unwrap();
        }
    }
    assert_eq!(read(&inbox, 0, ROOM), vec![0; ROOM]);
    assert!([&own, &foreign, &plain].iter().all(|queue| b.verbs.srq_info(queue.handle()).unwrap().recvs == 1));
    // The own queue works on.
    let Link { mut from, .. } = link((&mut a, &of_a), (&mut b, &domain));
    from.send.post(&SendWr::send(b"for you").to_srq(own_number)).unwrap();
    assert_eq!(b.waiter().wait(&mut cq).unwrap().status, WcStatus::Success);
    assert_eq!(read(&inbox, 0, 7), b"for you");
    // Nor takes a queue pair of another transport from it.
    let (pd, handle) = (b.pd, cq.handle());
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: handle, recv_cq: handle, cap: CAP, sq_sig_all: true };
    assert_eq!(b.verbs.create_qp_with_srq(&init, own.handle()).map(drop), Err(CreateQpError::XrcSrq));
}

/// Numbers of queues are easily guessed. The queue of nobody that targets name (Linux `devr->s0`) is of a domain of its own, so that a
/// peer that names it is refused at once, and does not wait for a receive that nobody posts.
// contract: xrc-foreign
#[test]
fn no_number_near_a_queue_of_the_domain_makes_a_peer_wait() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let of_a = a.verbs.alloc_xrcd().unwrap();
    let (domain, _other) = (b.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
    let mut cq = b.verbs.create_cq(64).unwrap();
    let (_own, own_number) = srq(&mut b, &domain, &mut cq, 7);
    let own_number = own_number.get();
    for number in (own_number.saturating_sub(8)..own_number + 8).filter(|number| *number != own_number) {
        let Link { mut from, cq: mut send_cq, target } = link((&mut a, &of_a), (&mut b, &domain));
        from.send.post(&SendWr::send(b"anybody?").to_srq(Srqn::new(number))).unwrap();
        assert_eq!(
            a.waiter().wait(&mut send_cq).unwrap().status,
            WcStatus::RemAccessErr,
            "{number:#x}, beside {own_number:#x}"
        );
        a.verbs.destroy_qp(from).map_err(|refused| refused.error).unwrap();
        b.verbs.destroy_qp(target).map_err(|refused| refused.error).unwrap();
        a.verbs.destroy_cq(send_cq).map_err(|refused| refused.error).unwrap();
    }
}

/// IBTA A14.3.1: memory is protected by the domain of the shared receive queue that a request names.
// contract: xrc-keys
#[test]
fn keys_are_of_the_protection_domain_of_the_queue_that_is_named() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (of_a, domain) = (a.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
    let mut cq = b.verbs.create_cq(64).unwrap();
    let (_first, first) = srq(&mut b, &domain, &mut cq, 7);
    let other_pd = b.verbs.alloc_pd().unwrap();
    let init = SrqInit { pd: other_pd, cap: SrqCap { max_wr: 7, max_sge: 1 } };
    let other = b.verbs.create_xrc_srq(&init, &domain, &mut cq).unwrap();
    let second = b.verbs.srq_info(other.handle()).unwrap().srqn;
    let memory = b.register(64, ALL).unwrap();
    let Link { mut from, cq: mut send_cq, .. } = link((&mut a, &of_a), (&mut b, &domain));
    from.send.post(&SendWr::write(memory.remote(0), b"good").to_srq(first)).unwrap();
    assert_eq!(a.waiter().wait(&mut send_cq).unwrap().status, WcStatus::Success);
    from.send.post(&SendWr::write(memory.remote(0), b"evil").to_srq(second)).unwrap();
    assert_eq!(a.waiter().wait(&mut send_cq).unwrap().status, WcStatus::RemAccessErr);
    assert_eq!(read(&memory, 0, 4), b"good");
}

// contract: xrc-domain
#[test]
fn a_domain_lasts_as_long_as_queues_are_in_it_and_leaves_nothing_behind() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let counts = |node: &Node| {
        let counts = node.host.with_device(|device| device.counts());
        (bareverbs_sim::DeviceCounts { pages_held: 0, ..counts }, node.verbs.provider().statistics().pages_used)
    };
    let mut cq = b.verbs.create_cq(64).unwrap();
    let before = counts(&b);
    for _ in 0..3 {
        let domain = b.verbs.alloc_xrcd().unwrap();
        let (queue, _) = srq(&mut b, &domain, &mut cq, 7);
        let target = b.verbs.create_xrc_recv_qp(&domain).unwrap();
        let init = init_of(&b, &cq);
        let from = b.verbs.create_xrc_send_qp(&init, &domain).unwrap();
        let refused = b.verbs.dealloc_xrcd(domain).unwrap_err();
        assert_eq!((refused.error, refused.error.errno()), (DeallocXrcdError::Busy { users: 3 }, Errno::Ebusy));
        let domain = refused.returned.unwrap();
        // Of other verbs.
        let foreign = a.verbs.dealloc_xrcd(domain).unwrap_err();
        assert_eq!(foreign.error, DeallocXrcdError::Stale);
        let domain = foreign.returned.unwrap();
        assert_eq!(a.verbs.create_xrc_recv_qp(&domain).map(drop), Err(CreateQpError::StaleXrcDomain));
        let init_a = QpInit { pd: a.pd, ..init };
        assert_eq!(a.verbs.create_xrc_send_qp(&init_a, &domain).map(drop), Err(CreateQpError::StaleXrcDomain));
        let mut cq_a = a.verbs.create_cq(8).unwrap();
        let init = SrqInit { pd: a.pd, cap: SrqCap { max_wr: 7, max_sge: 1 } };
        assert_eq!(a.verbs.create_xrc_srq(&init, &domain, &mut cq_a).map(drop), Err(CreateSrqError::StaleXrcDomain));
        let of_a = a.verbs.alloc_xrcd().unwrap();
        assert_eq!(a.verbs.create_xrc_srq(&init, &of_a, &mut cq).map(drop), Err(CreateSrqError::StaleCq));
        let in_use = b.verbs.destroy_cq(cq).unwrap_err();
        assert_eq!(in_use.error, DestroyCqError::Busy { users: 2 });
        cq = in_use.returned.unwrap();
        b.verbs.destroy_qp(from).map_err(|refused| refused.error).unwrap();
        b.verbs.destroy_srq(queue).map_err(|refused| refused.error).unwrap();
        let refused = b.verbs.dealloc_xrcd(domain).unwrap_err();
        assert_eq!(refused.error, DeallocXrcdError::Busy { users: 1 });
        // One whose value was dropped.
        let handle = target.handle();
        drop(target);
        b.verbs.destroy_dropped_qp(handle).unwrap();
        b.verbs.dealloc_xrcd(refused.returned.unwrap()).map_err(|refused| refused.error).unwrap();
        taken(&mut cq);
        assert_eq!(counts(&b), before);
        a.verbs.dealloc_xrcd(of_a).map_err(|refused| refused.error).unwrap();
        a.verbs.destroy_cq(cq_a).map_err(|refused| refused.error).unwrap();
    }
    // Made and destroyed without a queue, over and over; and refused by the device at each step: DEALLOC_XRCD last.
    let start = counts(&a);
    for _ in 0..50 {
        let domain = a.verbs.alloc_xrcd().unwrap();
        a.verbs.dealloc_xrcd(domain).map_err(|refused| refused.error).unwrap();
        assert_eq!(counts(&a), start);
    }
    // ALLOC_XRCD, ALLOC_PD, CREATE_CQ, CREATE_XRC_SRQ.
    for opcode in [0x80e, 0x800, 0x400, 0x705] {
        a.arm(Fault::CommandStatus { opcode, status: 0x8, syndrome: 0 });
        assert!(a.verbs.alloc_xrcd().is_err());
        assert_eq!(counts(&a), start, "{opcode:#x}");
    }
    let domain = a.verbs.alloc_xrcd().unwrap();
    a.arm(Fault::CommandStatus { opcode: 0x80f, status: 0x8, syndrome: 0 });
    let refused = a.verbs.dealloc_xrcd(domain).unwrap_err();
    assert!(matches!(refused.error, DeallocXrcdError::Device(_)));
    a.verbs.dealloc_xrcd(refused.returned.unwrap()).map_err(|refused| refused.error).unwrap();
    assert_eq!(counts(&a), start);
    // DEALLOC_PD, DESTROY_CQ, DESTROY_XRC_SRQ of what no queue pair needs any more: what the device keeps serves the next domain.
    for opcode in [0x801, 0x401, 0x706] {
        let domain = a.verbs.alloc_xrcd().unwrap();
        a.arm(Fault::CommandStatus { opcode, status: 0x8, syndrome: 0 });
        a.verbs.dealloc_xrcd(domain).map_err(|refused| refused.error).unwrap();
        assert_ne!(counts(&a), start, "{opcode:#x}");
        let domain = a.verbs.alloc_xrcd().unwrap();
        a.verbs.dealloc_xrcd(domain).map_err(|refused| refused.error).unwrap();
        assert_eq!(counts(&a), start, "{opcode:#x}");
    }
    assert_eq!((a.findings(), b.findings()), (vec![], vec![]));
}

// contract: xrc-srq
#[test]
fn an_empty_queue_makes_its_senders_wait_and_the_limit_event_comes_once() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (of_a, domain) = (a.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
    let mut cq = b.verbs.create_cq(64).unwrap();
    let (mut queue, srqn) = srq(&mut b, &domain, &mut cq, 7);
    let handle = queue.handle();
    let inbox = b.register(8 * ROOM, ALL).unwrap();
    let mut links = [0; 2].map(|_| link((&mut a, &of_a), (&mut b, &domain)));
    while b.verbs.poll_event().unwrap().is_some() {}
    for Link { from, .. } in &mut links {
        from.send.post(&SendWr::send(b"x").to_srq(srqn)).unwrap();
    }
    settle(&a);
    assert!(taken(&mut cq).is_empty());
    (0..7).for_each(|place| post(&mut queue, &inbox, place));
    for Link { cq: send_cq, .. } in &mut links {
        assert_eq!(a.waiter().wait(send_cq).unwrap().status, WcStatus::Success);
    }
    assert_eq!(taken(&mut cq).len(), 2);
    b.verbs.arm_srq(handle, 4).unwrap();
    assert_eq!(b.verbs.query_srq(handle).unwrap().limit, 4);
    for count in 1..=5 {
        links[count % 2].from.send.post(&SendWr::send(b"x").to_srq(srqn)).unwrap();
        settle(&a);
        let events: Vec<Event> = std::iter::from_fn(|| b.verbs.poll_event().unwrap()).collect();
        let limits = events.iter().filter(|event| **event == Event::SrqLimitReached(handle)).count();
        assert_eq!(limits, usize::from(count == 2), "{count} taken: {events:?}");
    }
    assert_eq!((b.verbs.query_srq(handle).unwrap().limit, taken(&mut cq).len()), (0, 5));
    let info = b.verbs.srq_info(handle).unwrap();
    assert_eq!((info.recvs, info.queue_pairs, info.cq), (0, 0, Some(cq.handle())));
}

/// A message that does not fit ends the connection that it came by, and no other.
#[test]
fn a_failed_receive_completes_and_other_targets_go_on() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (of_a, domain) = (a.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
    let mut cq = b.verbs.create_cq(64).unwrap();
    let (mut queue, srqn) = srq(&mut b, &domain, &mut cq, 7);
    let inbox = b.register(8 * ROOM, ALL).unwrap();
    let mut links = [0; 2].map(|_| link((&mut a, &of_a), (&mut b, &domain)));
    let source = a.register(ROOM, ALL).unwrap();
    queue.post(&RecvWr { wr_id: 5, sges: &[inbox.sge(0, 10)] }).unwrap();
    queue.post(&RecvWr { wr_id: 6, sges: &[inbox.sge(64, 10)] }).unwrap();
    links[0].from.send.post(&SendWr::send(&[source.sge(0, 11)]).to_srq(srqn)).unwrap();
    assert_eq!(a.waiter().wait(&mut links[0].cq).unwrap().status, WcStatus::RemInvReqErr);
    let failed = b.waiter().wait(&mut cq).unwrap();
    assert_eq!((failed.wr_id, failed.status, failed.qp), (5, WcStatus::LocLenErr, links[0].target.handle()));
    assert_eq!(b.verbs.query_qp(links[0].target.handle()).unwrap().state, QpState::Err);
    links[1].from.send.post(&SendWr::send(b"fits").to_srq(srqn)).unwrap();
    let done = b.waiter().wait(&mut cq).unwrap();
    assert_eq!((done.wr_id, done.status, done.qp), (6, WcStatus::Success, links[1].target.handle()));
    // The first is reset and connected anew: what it sends arrives.
    let Link { from, target, cq: send_cq } = &mut links[0];
    a.verbs.reset_qp(from).unwrap();
    taken(send_cq);
    b.verbs.reset_qp(target).unwrap();
    join((&mut a.verbs, from.handle()), (&mut b.verbs, target.handle()), &Connection::default()).unwrap();
    queue.post(&RecvWr { wr_id: 7, sges: &[inbox.sge(0, 10)] }).unwrap();
    from.send.post(&SendWr::send(b"anew").to_srq(srqn)).unwrap();
    assert_eq!(b.waiter().wait(&mut cq).unwrap().wr_id, 7);
}

// contract: xrc-end
#[test]
fn what_waits_of_a_queue_that_ended_is_dropped_and_of_a_target_that_ended_comes() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (of_a, domain) = (a.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
    let mut cq = b.verbs.create_cq(64).unwrap();
    let inbox = b.register(8 * ROOM, ALL).unwrap();
    let Link { mut from, cq: mut send_cq, target } = link((&mut a, &of_a), (&mut b, &domain));
    // All four places of the table, so that the next must have one of theirs.
    let mut queues: Vec<(Srq, Srqn)> = (0..4).map(|_| srq(&mut b, &domain, &mut cq, 7)).collect();
    for (queue, srqn) in &mut queues {
        (0..4).for_each(|place| post(queue, &inbox, place));
        for _ in 0..2 {
            from.send.post(&SendWr::send(b"x").to_srq(*srqn)).unwrap();
            assert_eq!(a.waiter().wait(&mut send_cq).unwrap().status, WcStatus::Success);
        }
    }
    b.verbs.destroy_qp(target).map_err(|refused| refused.error).unwrap();
    let (ended, _) = queues.remove(2);
    b.verbs.destroy_srq(ended).map_err(|refused| refused.error).unwrap();
    let init = SrqInit { pd: b.pd, cap: SrqCap { max_wr: 7, max_sge: 2 } };
    assert_eq!(b.verbs.create_xrc_srq(&init, &domain, &mut cq).map(drop), Err(CreateSrqError::Draining));
    assert_eq!(b.verbs.create_srq(&init).map(drop), Err(CreateSrqError::Draining));
    let done = taken(&mut cq);
    let ids: Vec<u64> = done.iter().map(|done| done.wr_id).collect();
    assert_eq!(ids, [0, 1, 0, 1, 0, 1], "three of four queues");
    assert!(done.iter().all(|done| done.qp == QpHandle::NONE && done.status == WcStatus::Success));
    let (mut queue, srqn) = srq(&mut b, &domain, &mut cq, 7);
    post(&mut queue, &inbox, 6);
    let Link { mut from, .. } = link((&mut a, &of_a), (&mut b, &domain));
    from.send.post(&SendWr::send(b"x").to_srq(srqn)).unwrap();
    assert_eq!(b.waiter().wait(&mut cq).unwrap().wr_id, 6);
    assert_eq!(b.findings(), vec![]);
}

// contract: xrc-lost
#[test]
fn a_lost_device_flushes_each_receive_once_where_its_queue_completes() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (of_a, domain) = (a.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
    let mut cqs = [b.verbs.create_cq(64).unwrap(), b.verbs.create_cq(64).unwrap()];
    let mut queues: Vec<(Srq, Srqn)> = [0, 1, 0].map(|cq| srq(&mut b, &domain, &mut cqs[cq], 7)).into();
    let inbox = b.register(8 * ROOM, ALL).unwrap();
    let Link { mut from, cq: mut send_cq, .. } = link((&mut a, &of_a), (&mut b, &domain));
    for (number, (queue, srqn)) in (0..).zip(&mut queues) {
        for place in 0..5 {
            queue.post(&RecvWr { wr_id: number * 10 + place, sges: &[inbox.sge(0, 8)] }).unwrap();
        }
        // One is done, and waits.
        from.send.post(&SendWr::send(b"x").to_srq(*srqn)).unwrap();
        assert_eq!(a.waiter().wait(&mut send_cq).unwrap().status, WcStatus::Success);
    }
    b.remove();
    assert!(b.verbs.query_port(1).is_err());
    for (cq, expected) in cqs.iter_mut().zip([vec![0, 1, 2, 3, 4, 20, 21, 22, 23, 24], vec![10, 11, 12, 13, 14]]) {
        let (mut ids, mut done) = (Vec::new(), 0);
        let lost = loop {
            let mut out = [Completion::EMPTY; 4];
            match cq.poll(&mut out) {
                Ok(0) => panic!("no end"),
                Ok(count) => {
                    for one in &out[..count] {
                        done += usize::from(one.status == WcStatus::Success);
                        let flushed = one.status == WcStatus::WrFlushErr && one.data == WcData::Lost(DeviceLoss::Gone);
                        assert!(one.status == WcStatus::Success || flushed, "{one:?}");
                        ids.push(one.wr_id);
                    }
                }
                Err(error) => break error,
            }
        };
        ids.sort_unstable();
        assert_eq!((ids, lost), (expected.clone(), PollCqError::DeviceLost { loss: DeviceLoss::Gone }));
        assert_eq!(done, expected.len() / 5);
    }
    assert!(queues.iter_mut().all(|(queue, _)| queue.post(&RecvWr { wr_id: 0, sges: &[] }).is_err()));
}

/// The device goes at each register write of a domain's life.
#[test]
fn a_device_that_goes_at_each_step_ends_each_call() {
    let mut ended = 0;
    for writes in 0..40 {
        let [mut a, _b] = pair(Faults::none()).unwrap();
        let mut cq = a.verbs.create_cq(16).unwrap();
        a.remove_after(writes);
        let Ok(domain) = a.verbs.alloc_xrcd() else { continue };
        let init = SrqInit { pd: a.pd, cap: SrqCap { max_wr: 3, max_sge: 1 } };
        let queue = a.verbs.create_xrc_srq(&init, &domain, &mut cq);
        let target = a.verbs.create_xrc_recv_qp(&domain);
        if let Ok(target) = target {
            let _ = a.verbs.destroy_qp(target);
        }
        if let Ok(queue) = queue {
            let _ = a.verbs.destroy_srq(queue);
        }
        if a.verbs.dealloc_xrcd(domain).is_ok() {
            ended += 1;
        }
    }
    assert!(ended > 0, "the last ones are whole lives");
}

// contract: xrc-windows
#[test]
fn an_initiator_binds_windows_and_names_queues_alone() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let (of_a, domain) = (a.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
    let Link { mut from, cq: mut send_cq, target } = link((&mut a, &of_a), (&mut b, &domain));
    let [_qa, mut qb] = connect(&mut a, &mut b).unwrap();
    let region = a.register(64, ALL | Access::MW_BIND).unwrap();
    let mw = a.verbs.alloc_mw(a.pd, MwType::Type1).unwrap();
    let (mr, addr, flags) = (region.handle(), region.remote(0).addr, SendFlags::empty());
    let rkey =
        from.send.bind_type1(mw, &Type1Bind { wr_id: 1, flags, mr, addr, length: 8, access: Access::REMOTE_WRITE }).unwrap();
    assert_eq!(a.waiter().wait(&mut send_cq).unwrap().status, WcStatus::Success);
    let window = bareverbs::Remote { addr, rkey };
    qb.qp.send.post(&SendWr::write(window, b"window")).unwrap();
    assert_eq!(qb.wait().unwrap().status, WcStatus::Success);
    assert_eq!(read(&region, 0, 6), b"window");
    // Requests reach no initiator, so that nobody writes through a type 2 window of one; it is bound and ends there.
    let two = a.verbs.alloc_mw(a.pd, MwType::Type2).unwrap();
    let binding = bareverbs::Binding { mr, addr, length: 8, access: Access::REMOTE_WRITE };
    from.send.post(&SendWr::bind_mw(two, bareverbs::KeyTag(7), binding).id(2)).unwrap();
    let done = a.waiter().wait(&mut send_cq).unwrap();
    assert_eq!((done.wr_id, done.opcode, done.status), (2, WcOpcode::BindMw, WcStatus::Success));
    let rkey = a.verbs.mw_info(two).unwrap().rkey;
    assert!(a.verbs.mw_info(two).unwrap().binding.is_some());
    from.send.post(&SendWr::local_inv(rkey).id(3)).unwrap();
    let done = a.waiter().wait(&mut send_cq).unwrap();
    assert_eq!((done.wr_id, done.opcode, done.status), (3, WcOpcode::LocalInv, WcStatus::Success));
    assert_eq!(a.verbs.mw_info(two).unwrap().binding, None);
    assert_eq!(from.send.post(&SendWr::send(b"x")), Err(PostSendError::NoSrqNumber));
    let mut target = target;
    assert!(target.send.post(&SendWr::send(b"x")).is_err());
    let refused = qb.qp.send.post(&SendWr::send(b"x").to_srq(Srqn::new(1)));
    assert_eq!(refused, Err(PostSendError::Destination { qp_type: QpType::Rc }));
    let init = init_of(&a, &send_cq);
    for qp_type in [QpType::XrcSend, QpType::XrcRecv] {
        assert_eq!(a.verbs.create_qp(&QpInit { qp_type, ..init }).map(drop), Err(CreateQpError::NoXrcDomain));
    }
}
