//! What a simulated device says of requests and packets that it refused, where a completion says less: each mistake of a program is named
//! at the host that can see it.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use core::time::Duration;

use bareverbs::error::PostSendError;
use bareverbs::{
    Access, Completion, CompletionQueue, DmaBuffer, Mtu, Psn, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType, QueuePair,
    SendWr, SrqCap, SrqInit, Srqn, WcStatus,
};
use bareverbs_testing::{Connection, Driver, Faults, Node, Rejection, connect_with, join, pair, path_to};

const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Connects a queue pair with another one.
fn to_rts(node: &mut Node, qp: QpHandle, peer: (&mut Node, QpHandle), change: impl Fn(QpAttr) -> QpAttr) {
    let av = path_to(&mut peer.0.verbs).unwrap();
    let dest_qpn = peer.0.verbs.qp_info(peer.1).unwrap().qpn;
    let attr = QpAttr {
        port_num: 1,
        access: OPEN,
        av,
        dest_qpn,
        path_mtu: Mtu::Mtu1024,
        timeout: 8,
        retry_cnt: 1,
        rnr_retry: 6,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..QpAttr::default()
    };
    node.verbs.modify_qp_to_rts(qp, &change(attr)).unwrap();
}

fn unconnected(node: &mut Node) -> (QueuePair<'static, Driver>, CompletionQueue<'static, Driver>) {
    let cq = node.verbs.create_cq(64).unwrap();
    let (pd, send_cq, recv_cq) = (node.pd, cq.handle(), cq.handle());
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 32 };
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true };
    (node.verbs.create_qp(&init).unwrap(), cq)
}

/// The attributes of both ends differ as `of_b` says: returns the status of a write of 2048 bytes, and what the second host rejected.
fn write_between(of_a: impl Fn(QpAttr) -> QpAttr, of_b: impl Fn(QpAttr) -> QpAttr) -> (WcStatus, u32, Vec<Rejection>) {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let ((mut qa, mut cq), (qb, _cq_b)) = (unconnected(&mut a), unconnected(&mut b));
    let (ha, hb) = (qa.handle(), qb.handle());
    to_rts(&mut a, ha, (&mut b, hb), of_a);
    to_rts(&mut b, hb, (&mut a, ha), of_b);
    let (source, target) = (a.register(4096, Access::empty()).unwrap(), b.register(4096, OPEN).unwrap());
    qa.send.post(&SendWr::write(target.remote(0), &[source.sge(0, 2048)])).unwrap();
    let status = a.waiter().wait(&mut cq).unwrap().status;
    (status, b.verbs.qp_info(hb).unwrap().qpn.get(), b.rejections())
}

#[test]
fn another_path_mtu_is_named() {
    let (status, qpn, rejections) = write_between(|attr| QpAttr { path_mtu: Mtu::Mtu2048, ..attr }, |attr| attr);
    assert_eq!(status, WcStatus::RemInvReqErr);
    assert_eq!(rejections, [Rejection::PacketLength { qpn, len: 2048, mtu: 1024 }]);
    assert!(rejections[0].to_string().contains("path MTU here is 1024"), "{}", rejections[0]);
    // Shorter packets than those of the peer are of no length that a first packet has.
    let (status, qpn, rejections) = write_between(|attr| attr, |attr| QpAttr { path_mtu: Mtu::Mtu2048, ..attr });
    assert_eq!((status, rejections), (WcStatus::RemInvReqErr, vec![Rejection::PacketLength { qpn, len: 1024, mtu: 2048 }]));
    let (status, _, rejections) = write_between(|attr| attr, |attr| attr);
    assert_eq!((status, rejections), (WcStatus::Success, vec![]));
}

#[test]
fn a_first_packet_with_another_psn_is_named_once() {
    // Two packets: one too early seems to be a repeated one, and then the second has the PSN that a first one should have.
    for (sent, expected, ends) in [
        (0x10, 0x11, WcStatus::RemInvReqErr),
        (0x10, 0x12, WcStatus::Success),
        (0x11, 0x10, WcStatus::RetryExcErr),
        (0, 0xff_ffff, WcStatus::RetryExcErr),
    ] {
        let (status, qpn, rejections) = write_between(
            |attr| QpAttr { sq_psn: Psn::new(sent), ..attr },
            |attr| QpAttr { rq_psn: Psn::new(expected), ..attr },
        );
        assert_eq!(status, ends, "{sent:#x} {expected:#x}");
        assert_eq!(rejections, [Rejection::Psn { qpn, psn: sent, expected }]);
        assert!(rejections[0].to_string().contains("QpAttr::rq_psn"), "{}", rejections[0]);
    }
}

#[test]
fn a_read_without_room_for_responses_names_the_attribute() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let ((mut qa, mut cq), (qb, _cq_b)) = (unconnected(&mut a), unconnected(&mut b));
    let (ha, hb) = (qa.handle(), qb.handle());
    to_rts(&mut a, ha, (&mut b, hb), |attr| attr);
    to_rts(&mut b, hb, (&mut a, ha), |attr| QpAttr { max_dest_rd_atomic: 0, ..attr });
    let (here, there) = (a.register(64, Access::LOCAL_WRITE).unwrap(), b.register(64, OPEN).unwrap());
    qa.send.post(&SendWr::read(there.remote(0), &[here.sge(0, 64)])).unwrap();
    assert_eq!(a.waiter().wait(&mut cq).unwrap().status, WcStatus::RemInvReqErr);
    let text = b.rejections()[0].to_string();
    assert!(text.contains("RDMA READ refused") && text.contains("max_dest_rd_atomic is 0"), "{text}");
}

/// An mlx5 device has no code for 0: it is 1 there (Linux writes `log_sra_max` only if it is not 0).
#[test]
fn a_depth_of_0_as_initiator_counts_as_1() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let ((mut qa, mut cq), (qb, _cq_b)) = (unconnected(&mut a), unconnected(&mut b));
    let (ha, hb) = (qa.handle(), qb.handle());
    to_rts(&mut a, ha, (&mut b, hb), |attr| QpAttr { max_rd_atomic: 0, ..attr });
    to_rts(&mut b, hb, (&mut a, ha), |attr| attr);
    let (here, mut there) = (a.register(64, Access::LOCAL_WRITE).unwrap(), b.register(64, OPEN).unwrap());
    there.write(0, b"read one after the other").unwrap();
    for at in [0, 24] {
        qa.send.post(&SendWr::read(there.remote(0), &[here.sge(at, 24)])).unwrap();
    }
    for at in [0, 24] {
        assert_eq!(a.waiter().wait(&mut cq).unwrap().status, WcStatus::Success);
        let mut bytes = [0; 24];
        here.read(at, &mut bytes).unwrap();
        assert_eq!(&bytes, b"read one after the other");
    }
    assert_eq!(b.rejections(), []);
}

#[test]
fn a_gid_that_was_deleted_is_named_at_either_end() {
    for of_sender in [true, false] {
        let [mut a, mut b] = pair(Faults::none().ethernet()).unwrap();
        let short = Connection { retry_cnt: 1, ..Connection::default() };
        let [mut qa, _qb] = connect_with(&mut a, &mut b, &short).unwrap();
        let target = b.register(64, OPEN).unwrap();
        let deleter = if of_sender { &mut a } else { &mut b };
        deleter.verbs.delete_gid(1, 0).unwrap();
        qa.qp.send.post(&SendWr::write(target.remote(0), b"nowhere")).unwrap();
        assert_eq!(qa.wait().unwrap().status, WcStatus::RetryExcErr);
        if of_sender {
            let qpn = a.verbs.qp_info(qa.qp.handle()).unwrap().qpn.get();
            assert_eq!(a.rejections(), [Rejection::NoGid { qpn, index: 0, entries: 128 }]);
            assert_eq!(b.rejections(), []);
        } else {
            let [Rejection::Packet { why }] = b.rejections()[..] else { panic!("{:?}", b.rejections()) };
            assert!(why.contains("for a GID that the table of this port does not have"), "{why}");
        }
    }
}

#[test]
fn a_shared_receive_queue_that_is_none_of_the_domain_is_named() {
    for wrong in ["no shared receive queue here", "another XRC domain", "none of XRC"] {
        let [mut a, mut b] = pair(Faults::none()).unwrap();
        let (ours, other) = (b.verbs.alloc_xrcd().unwrap(), b.verbs.alloc_xrcd().unwrap());
        let mut cq_b = b.verbs.create_cq(16).unwrap();
        let init = SrqInit { pd: b.pd, cap: SrqCap { max_wr: 7, max_sge: 1 } };
        let elsewhere = b.verbs.create_xrc_srq(&init, &other, &mut cq_b).unwrap();
        let plain = b.verbs.create_srq(&init).unwrap();
        let target = b.verbs.create_xrc_recv_qp(&ours).unwrap();
        let srqn = match wrong {
            "another XRC domain" => b.verbs.srq_info(elsewhere.handle()).unwrap().srqn,
            "none of XRC" => b.verbs.srq_info(plain.handle()).unwrap().srqn,
            _ => Srqn::new(4000),
        };
        let domain = a.verbs.alloc_xrcd().unwrap();
        let mut cq = a.verbs.create_cq(64).unwrap();
        let (pd, send_cq, recv_cq) = (a.pd, cq.handle(), cq.handle());
        let cap = QpCap { max_send_wr: 8, max_send_sge: 1, max_inline_data: 16, ..QpCap::default() };
        let init = QpInit { pd, qp_type: QpType::XrcSend, send_cq, recv_cq, cap, sq_sig_all: true };
        let mut initiator = a.verbs.create_xrc_send_qp(&init, &domain).unwrap();
        let ends = ((&mut a.verbs, initiator.handle()), (&mut b.verbs, target.handle()));
        join(ends.0, ends.1, &Connection::default()).unwrap();
        initiator.send.post(&SendWr::send(b"whose?").to_srq(srqn)).unwrap();
        assert_eq!(a.waiter().wait(&mut cq).unwrap().status, WcStatus::RemAccessErr);
        let qpn = b.verbs.qp_info(target.handle()).unwrap().qpn.get();
        let [named @ Rejection::SharedQueue { qpn: of, srqn: number, why }] = b.rejections()[..] else {
            panic!("{wrong}: {:?}", b.rejections())
        };
        assert_eq!((of, number), (qpn, srqn.get()));
        assert!(why.contains(wrong), "{why}");
        assert!(named.to_string().contains(wrong), "{named}");
    }
}

/// The send queue of a program that has no request signaled: its error says the way out.
#[test]
fn a_queue_full_of_unsignaled_requests_says_what_frees_it() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let cq = a.verbs.create_cq(64).unwrap();
    let (pd, send_cq, recv_cq) = (a.pd, cq.handle(), cq.handle());
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 };
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: false };
    let mut qa = a.verbs.create_qp(&init).unwrap();
    let (qb, _cq_b) = unconnected(&mut b);
    let (ha, hb) = (qa.handle(), qb.handle());
    to_rts(&mut a, ha, (&mut b, hb), |attr| attr);
    to_rts(&mut b, hb, (&mut a, ha), |attr| attr);
    let target = b.register(64, OPEN).unwrap();
    let write = SendWr::write(target.remote(0), b"x");
    let full = loop {
        if let Err(error) = qa.send.post(&write) {
            break error;
        }
    };
    assert!(matches!(full, PostSendError::QueueFull { .. }), "{full}");
    assert!(full.to_string().contains("(if none is signaled: reset_qp)"), "{full}");
    a.verbs.reset_qp(&mut qa).unwrap();
    assert_eq!(a.verbs.qp_info(ha).unwrap().state, QpState::Reset);
}

/// The loop of a program that connects anew, and polls and resets again while it is refused: it comes to an end, and no completion of
/// before is given after it.
#[test]
fn a_loop_that_resets_again_connects_anew() {
    let [mut a, mut b] = pair(Faults::none()).unwrap();
    let ((mut qa, mut cq_a), (mut qb, mut cq_b)) = (unconnected(&mut a), unconnected(&mut b));
    let target = b.register(64, OPEN).unwrap();
    join((&mut a.verbs, qa.handle()), (&mut b.verbs, qb.handle()), &Connection::default()).unwrap();
    for round in 0..3 {
        qa.send.post(&SendWr::write(target.remote(0), b"before").id(round)).unwrap();
        a.network().world().advance(Duration::from_millis(1));
        let mut turns = 0;
        loop {
            a.verbs.reset_qp(&mut qa).unwrap();
            b.verbs.reset_qp(&mut qb).unwrap();
            if join((&mut a.verbs, qa.handle()), (&mut b.verbs, qb.handle()), &Connection::default()).is_ok() {
                break;
            }
            for cq in [&mut cq_a, &mut cq_b] {
                assert_eq!(cq.poll(&mut [Completion::EMPTY]).unwrap(), 0);
            }
            turns += 1;
            assert!(turns < 4, "the queue pairs do not leave RESET");
        }
        qa.send.post(&SendWr::write(target.remote(8), b"after").id(100 + round)).unwrap();
        assert_eq!(a.waiter().wait(&mut cq_a).unwrap().wr_id, 100 + round);
    }
}
