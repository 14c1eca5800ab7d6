//! Queue pairs and their states on the device: the table of transitions, draining, flushing, reset, destruction.

use core::time::Duration;

use bareverbs::error::{DestroyQpError, Errno, ModifyQpError};
use bareverbs::{
    Access, AddressVector, Completion, Event, Lid, Mtu, MwHandle, MwType, PathMigState, Payload, Psn, QpAttr, QpAttrMask,
    QpHandle, QpState, QpType, Qpn, RecvWr, Remote, SendFlags, SendOp, SendWr, Type1Bind, WcOpcode, WcStatus,
};
use bareverbs_mlx5::{Error, Feature};
use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus};
use bareverbs_sim::fault::Fault;
use bareverbs_sim::wire::{Probability, WireFaults};
use bareverbs_tests::{
    ALL_ACCESS, CAP, Connection, End, Node, Pair, end, end_in, pattern, rc_steps, refused, signaled, to_rts, to_state,
    uc_steps, without_rnr_limit,
};

use QpAttrMask as M;
use QpState::{Err as InError, Init, Reset, Rtr, Rts, Sqd, Sqe};

const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, InError];

/// Returns the required and optional attributes of each transition of an RC queue pair (IBTA volume 1, table 91 and what Linux
/// adds).
fn rule(from: QpState, to: QpState) -> Option<(M, M)> {
    let anywhere = M::ACCESS_FLAGS | M::ALT_PATH;
    let running = anywhere | M::CUR_STATE | M::PATH_MIG_STATE | M::MIN_RNR_TIMER;
    Some(match (from, to) {
        (_, Reset | InError) => (M::empty(), M::empty()),
        (Reset, Init) => (M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS, M::empty()),
        (Init, Init) => (M::empty(), M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (Init, Rtr) => {
            (M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER, anywhere | M::PKEY_INDEX)
        }
        (Rtr, Rts) => (M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC, running),
        (Rts, Rts) | (Sqd, Rts) => (M::empty(), running),
        (Rts, Sqd) => (M::empty(), M::empty()),
        (Sqd, Sqd) => (
            M::empty(),
            (running - M::CUR_STATE)
                | M::PORT
                | M::AV
                | M::TIMEOUT
                | M::RETRY_CNT
                | M::RNR_RETRY
                | M::MAX_QP_RD_ATOMIC
                | M::MAX_DEST_RD_ATOMIC
                | M::PKEY_INDEX,
        ),
        _ => return None,
    })
}

/// One queue pair that is taken to any state, and values that each attribute may have.
struct Walker {
    node: Node,
    qp: QpHandle,
    good: QpAttr,
}

impl Walker {
    fn new() -> Self {
        let mut pair = Pair::new();
        let end = end(&mut pair.a, true);
        let av = AddressVector { dlid: Lid::new(2), port_num: 1, ..AddressVector::default() };
        let good = QpAttr {
            access: Access::REMOTE_READ,
            port_num: 1,
            av,
            alt_av: av,
            alt_timeout: 14,
            path_mtu: Mtu::Mtu512,
            timeout: 14,
            retry_cnt: 6,
            rnr_retry: 5,
            rq_psn: Psn::new(0xab_cdef),
            sq_psn: Psn::new(0x12_3456),
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            min_rnr_timer: 12,
            dest_qpn: Qpn::new(0x77),
            ..QpAttr::default()
        };
        Self { node: pair.a, qp: end.qp, good }
    }

    fn modify(&mut self, to: QpState, mask: M) -> Result<(), ModifyQpError<Error>> {
        let attr = QpAttr { state: to, cur_state: self.node.verbs.qp_info(self.qp).unwrap().state, ..self.good };
        self.node.verbs.modify_qp(self.qp, &attr, mask)
    }

    /// Returns the state as the device has it.
    fn state(&mut self) -> QpState {
        self.node.verbs.query_qp(self.qp).unwrap().state
    }

    fn go(&mut self, to: QpState) {
        self.modify(Reset, M::STATE).unwrap();
        let path: &[QpState] = match to {
            Reset => &[],
            Init => &[Init],
            Rtr => &[Init, Rtr],
            Rts => &[Init, Rtr, Rts],
            Sqd => &[Init, Rtr, Rts, Sqd],
            InError => &[InError],
            Sqe => panic!("no RC queue pair is ever there"),
        };
        for next in path {
            let from = self.node.verbs.qp_info(self.qp).unwrap().state;
            self.modify(*next, M::STATE | rule(from, *next).unwrap().0).unwrap();
        }
        assert_eq!(self.state(), to);
    }
}

fn bits(mask: M) -> impl Iterator<Item = M> {
    (0..32).map(|bit| M::from_bits_retain(1 << bit)).filter(move |bit| mask.contains(*bit))
}

/// The last of the three transitions has it, and none is made. And what a program that did not wait for its port connects with.
// contract: qp-refused
#[test]
fn connecting_with_a_wrong_attribute_can_be_repeated() {
    let mut walker = Walker::new();
    let lid = AddressVector { dlid: Lid::NONE, ..walker.good.av };
    for (wrong, text) in [
        (QpAttr { retry_cnt: 9, ..walker.good }, "RETRY_CNT has the value 9"),
        (QpAttr { av: lid, ..walker.good }, "wait_active"),
    ] {
        let refused = walker.node.verbs.modify_qp_to_rts(walker.qp, &wrong).unwrap_err();
        assert!(refused.to_string().contains(text), "{refused}");
        assert_eq!((refused.errno(), walker.state()), (Errno::Einval, Reset));
    }
    walker.node.verbs.modify_qp_to_rts(walker.qp, &walker.good).unwrap();
    assert_eq!(walker.state(), Rts);
}

// contract: qp-transitions
#[test]
fn every_transition_of_the_table() {
    let mut walker = Walker::new();
    for from in STATES.into_iter().filter(|state| *state != Sqe) {
        for to in STATES {
            walker.go(from);
            let Some((required, optional)) = rule(from, to) else {
                let error = refused!(walker.modify(to, M::STATE), Einval, ModifyQpError::Transition { .. });
                assert_eq!(error, ModifyQpError::Transition { from, to });
                // No attribute makes it legal.
                let all = M::from_bits_retain(0x1f_ffff) - M::CUR_STATE;
                refused!(walker.modify(to, all), Einval, ModifyQpError::Transition { .. });
                assert_eq!(walker.state(), from);
                continue;
            };
            // What is needed is enough.
            walker.modify(to, M::STATE | required).unwrap_or_else(|error| panic!("{from:?} to {to:?}: {error}"));
            assert_eq!((walker.node.verbs.qp_info(walker.qp).unwrap().state, walker.state()), (to, to), "{from:?} to {to:?}");
            // Each optional attribute alone, and all of them.
            for extra in bits(optional).chain([optional]) {
                walker.go(from);
                let mut extra = extra;
                if extra.contains(M::ALT_PATH) {
                    // The device has no automatic path migration.
                    let done = walker.modify(to, M::STATE | required | extra);
                    assert!(matches!(done, Err(ModifyQpError::Device(_))), "{from:?} to {to:?} with {extra:?}: {done:?}");
                    assert_eq!(walker.state(), from);
                    extra -= M::ALT_PATH;
                }
                let done = walker.modify(to, M::STATE | required | extra);
                done.unwrap_or_else(|error| panic!("{from:?} to {to:?} with {extra:?}: {error}"));
                assert_eq!(walker.state(), to);
            }
        }
    }
    walker.node.assert_no_findings();
}

// contract: qp-masks
#[test]
fn missing_and_forbidden_attributes_are_named() {
    let mut walker = Walker::new();
    for from in STATES.into_iter().filter(|state| *state != Sqe) {
        for to in STATES {
            let Some((required, optional)) = rule(from, to) else { continue };
            walker.go(from);
            let forbidden = !(required | optional | M::STATE);
            let mut check = |mask: M| {
                let error = refused!(walker.modify(to, M::STATE | mask), Einval, ModifyQpError::Attributes { .. });
                let (missing, forbidden) = (required - mask, mask & forbidden);
                assert_eq!(error, ModifyQpError::Attributes { from, to, missing, forbidden });
            };
            for missing in bits(required) {
                check(required - missing);
            }
            if !required.is_empty() {
                check(M::empty());
            }
            for wrong in bits(forbidden) {
                check(required | wrong);
                check(wrong);
            }
            check(required | forbidden);
            assert_eq!(walker.state(), from, "nothing has changed");
        }
    }
}

#[test]
fn a_modify_without_state_stays_where_it_is() {
    let mut walker = Walker::new();
    for (state, mask) in [(Init, M::ACCESS_FLAGS), (Rts, M::MIN_RNR_TIMER), (Sqd, M::RETRY_CNT | M::AV)] {
        walker.go(state);
        // The state in the attributes is ignored.
        walker.modify(Reset, mask).unwrap();
        assert_eq!(walker.state(), state);
    }
    for state in [Reset, Rtr] {
        walker.go(state);
        let error = walker.modify(Init, M::ACCESS_FLAGS);
        if state == Reset {
            refused!(error, Einval, ModifyQpError::Attributes { from: Reset, to: Reset, .. });
        } else {
            refused!(error, Einval, ModifyQpError::Transition { from: Rtr, to: Rtr });
        }
    }
}

#[test]
fn an_assumed_state_that_is_not_so() {
    let mut walker = Walker::new();
    walker.go(Rts);
    for assumed in [Reset, Init, Rtr, Sqd, Sqe, InError] {
        let attr = QpAttr { state: Rts, cur_state: assumed, ..walker.good };
        let modified = walker.node.verbs.modify_qp(walker.qp, &attr, M::STATE | M::CUR_STATE);
        let error = refused!(modified, Einval, ModifyQpError::CurState { .. });
        assert_eq!(error, ModifyQpError::CurState { assumed, actual: Rts });
    }
    let attr = QpAttr { state: Rts, cur_state: Rts, ..walker.good };
    walker.node.verbs.modify_qp(walker.qp, &attr, M::STATE | M::CUR_STATE).unwrap();
}

// contract: qp-ranges
#[test]
fn values_out_of_range_are_named() {
    let mut walker = Walker::new();
    let good = walker.good;
    let path = |change: fn(&mut AddressVector)| {
        let mut av = good.av;
        change(&mut av);
        av
    };
    let cases: [(QpState, QpState, M, QpAttr); 17] = [
        (Reset, Init, M::ACCESS_FLAGS, QpAttr { access: Access::MW_BIND, ..good }),
        (Reset, Init, M::ACCESS_FLAGS, QpAttr { access: Access::from_bits_retain(1 << 31), ..good }),
        (Reset, Init, M::PORT, QpAttr { port_num: 0, ..good }),
        (Reset, Init, M::PORT, QpAttr { port_num: 2, ..good }),
        (Init, Rtr, M::AV, QpAttr { av: path(|av| av.sl = 16), ..good }),
        (Init, Rtr, M::AV, QpAttr { av: path(|av| av.port_num = 2), ..good }),
        (Init, Rtr, M::RQ_PSN, QpAttr { rq_psn: Psn::new(1 << 24), ..good }),
        (Init, Rtr, M::DEST_QPN, QpAttr { dest_qpn: Qpn::new(1 << 24), ..good }),
        (Init, Rtr, M::MAX_DEST_RD_ATOMIC, QpAttr { max_dest_rd_atomic: 17, ..good }),
        (Init, Rtr, M::MIN_RNR_TIMER, QpAttr { min_rnr_timer: 32, ..good }),
        (Init, Rtr, M::ALT_PATH, QpAttr { alt_timeout: 32, ..good }),
        (Rtr, Rts, M::TIMEOUT, QpAttr { timeout: 32, ..good }),
        (Rtr, Rts, M::RETRY_CNT, QpAttr { retry_cnt: 8, ..good }),
        (Rtr, Rts, M::RNR_RETRY, QpAttr { rnr_retry: 8, ..good }),
        (Rtr, Rts, M::SQ_PSN, QpAttr { sq_psn: Psn::new(u32::MAX), ..good }),
        (Rtr, Rts, M::MAX_QP_RD_ATOMIC, QpAttr { max_rd_atomic: 17, ..good }),
        (Rts, Rts, M::ALT_PATH, QpAttr { alt_av: path(|av| av.sl = 255), ..good }),
    ];
    assert_eq!(walker.node.verbs.query_device().max_qp_rd_atom, 16);
    for (from, to, attribute, attr) in cases {
        walker.go(from);
        let mask = M::STATE | rule(from, to).unwrap().0 | attribute;
        let modified = walker.node.verbs.modify_qp(walker.qp, &QpAttr { state: to, ..attr }, mask);
        let error = refused!(modified, Einval, ModifyQpError::Value { .. });
        let ModifyQpError::Value { attribute: found, value, min, max, .. } = error else { panic!("{error}") };
        assert!(found == attribute && !(min..=max).contains(&value), "{error}: {attr:?}");
        assert_eq!(walker.state(), from);
    }
}

#[test]
fn a_device_without_path_migration_has_no_alternate_paths() {
    let mut walker = Walker::new();
    walker.go(Rts);
    let lacks = Err(ModifyQpError::Device(Error::Unsupported { feature: Feature::PathMigration }));
    assert_eq!(walker.modify(Rts, M::STATE | M::ALT_PATH), lacks);
    for path_mig_state in [PathMigState::Armed, PathMigState::Rearm] {
        walker.good.path_mig_state = path_mig_state;
        assert_eq!(walker.modify(Rts, M::STATE | M::PATH_MIG_STATE), lacks);
    }
    walker.good.path_mig_state = PathMigState::Migrated;
    walker.modify(Rts, M::STATE | M::PATH_MIG_STATE).unwrap();
    walker.node.assert_no_findings();
}

// contract: qp-refused
#[test]
fn a_refused_modify_leaves_the_state() {
    let mut walker = Walker::new();
    let transitions = [
        (Reset, Init, CmdOpcode::Rst2InitQp),
        (Init, Init, CmdOpcode::Init2InitQp),
        (Init, Rtr, CmdOpcode::Init2RtrQp),
        (Rtr, Rts, CmdOpcode::Rtr2RtsQp),
        (Rts, Rts, CmdOpcode::Rts2RtsQp),
        (Rts, Sqd, CmdOpcode::Rts2SqdQp),
        (Sqd, Sqd, CmdOpcode::Sqd2SqdQp),
        (Sqd, Rts, CmdOpcode::SqdRtsQp),
        (Rts, InError, CmdOpcode::Qp2Err),
        (Rts, Reset, CmdOpcode::Qp2Rst),
    ];
    for (from, to, opcode) in transitions {
        walker.go(from);
        let opcode = opcode.code() as u16;
        let status = CmdStatus::BadQpState.code() as u8;
        let fault = Fault::CommandStatus { opcode, status, syndrome: 3 };
        walker.node.host.with_device(|device| device.faults_mut().arm(fault));
        let mask = M::STATE | rule(from, to).unwrap().0;
        let error = refused!(walker.modify(to, mask), Einval, ModifyQpError::Device(_));
        assert_eq!(error, ModifyQpError::Device(Error::CommandStatus { opcode, status, syndrome: 3 }));
        assert_eq!((walker.node.verbs.qp_info(walker.qp).unwrap().state, walker.state()), (from, from));
        walker.modify(to, mask).unwrap();
    }
}

// contract: qp-query
#[test]
fn query_tells_what_the_device_has() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    let connection = Connection { psn: (Psn::new(0xff_fffe), Psn::new(7)), ..Connection::default() };
    pair.connect(&a, &b, &connection);
    let info = pair.a.verbs.query_qp(a.qp).unwrap();
    assert_eq!((info.attr.sq_psn.get(), info.attr.rq_psn.get()), (0xff_fffe, 7));
    assert_eq!((info.attr.dest_qpn, info.attr.path_mtu, info.attr.state), (b.qpn, connection.mtu, Rts));
    let here = pair.a.region(a.pd, 8192, ALL_ACCESS);
    let there = pair.b.region(b.pd, 8192, ALL_ACCESS);
    // Five packets of 1024 bytes over the wrap of 24 bits.
    let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 5000)]), remote: there.remote(0) };
    pair.a.verbs.post_send(a.qp, &signaled(1, op)).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    assert_eq!(pair.a.verbs.query_qp(a.qp).unwrap().attr.sq_psn.get(), 3);
    assert_eq!(pair.b.verbs.query_qp(b.qp).unwrap().attr.rq_psn.get(), 3);

    // The device moves to ERR on its own; a query shows it before the completion is taken.
    let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 8)]), remote: Remote { addr: 0, ..there.remote(0) } };
    pair.a.verbs.post_send(a.qp, &signaled(2, op)).unwrap();
    pair.world.advance(Duration::from_millis(1));
    assert_eq!(pair.a.verbs.qp_info(a.qp).unwrap().state, Rts);
    assert_eq!(pair.a.verbs.query_qp(a.qp).unwrap().state, InError);
    assert_eq!(pair.a.verbs.qp_info(a.qp).unwrap().state, InError);
    assert_eq!(pair.a.poll(a.cq)[0].status, WcStatus::RemAccessErr);
    // The responder reports it by an event.
    let event = pair.b.event(|event| matches!(event, Event::QpAccessError(_)).then_some(event));
    assert_eq!(event, Some(Event::QpAccessError(b.qp)));
    assert_eq!(pair.b.verbs.qp_info(b.qp).unwrap().state, InError);
}

// contract: events-established
#[test]
fn a_first_message_in_rtr_is_told() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    let (connection, psn) = (Connection::default(), Connection::default().psn);
    to_rts(&mut pair.a, a.qp, &rc_steps(&connection, Lid::new(2), b.qpn, psn.1.get(), psn.0.get()));
    let steps = rc_steps(&connection, Lid::new(1), a.qpn, psn.0.get(), psn.1.get());
    for (attr, mask) in &steps[..2] {
        pair.b.verbs.modify_qp(b.qp, attr, *mask).unwrap();
    }
    pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: 1, sges: &[there.sge(0, 64)] }).unwrap();
    pair.a.verbs.post_send(a.qp, &signaled(2, SendOp::Send { payload: Payload::Inline(b"hello") })).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success, "a queue pair in RTR receives");
    let event = pair.b.event(|event| matches!(event, Event::CommEstablished(_)).then_some(event));
    assert_eq!(event, Some(Event::CommEstablished(b.qp)));
    assert_eq!(pair.b.completions(b.cq, 1)[0].wr_id, 1);
    pair.b.verbs.modify_qp(b.qp, &steps[2].0, steps[2].1).unwrap();
    pair.b.verbs.post_send(b.qp, &signaled(3, SendOp::Write { payload: Payload::Sges(&[]), remote: there.remote(0) })).unwrap();
    pair.assert_no_findings();
}

// contract: qp-sqd, events-drained
#[test]
fn sqd_drains_what_is_sent_and_keeps_what_is_posted() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let here = pair.a.region(a.pd, 1 << 20, ALL_ACCESS);
    let mut there = pair.b.region(b.pd, 1 << 20, ALL_ACCESS);
    there.buffer.write(0, &pattern(4, 1 << 20));
    // A wire that loses everything keeps the read outstanding.
    pair.world.set_wire_faults(WireFaults { loss: Probability::ALWAYS, ..WireFaults::default() });
    let read = SendOp::Read { sges: &[here.sge(0, 500_000)], remote: there.remote(0) };
    pair.a.verbs.post_send(a.qp, &signaled(1, read)).unwrap();
    pair.world.advance(Duration::from_micros(100));
    pair.a.verbs.modify_qp(a.qp, &to_state(Sqd), M::STATE).unwrap();
    let info = pair.a.verbs.query_qp(a.qp).unwrap();
    assert_eq!((info.state, info.sq_draining), (Sqd, true), "the read is not done");
    // Posted now, done later.
    let write = SendOp::Write { payload: Payload::Inline(b"later"), remote: there.remote(900_000) };
    pair.a.verbs.post_send(a.qp, &signaled(2, write)).unwrap();
    assert_eq!(pair.a.verbs.poll_event().unwrap(), None, "not drained yet");
    pair.world.set_wire_faults(WireFaults::default());
    assert_eq!(pair.a.completions(a.cq, 1)[0].wr_id, 1);
    assert_eq!(here.buffer.read(0, 500_000), there.buffer.read(0, 500_000));
    let event = pair.a.event(|event| matches!(event, Event::SqDrained(_)).then_some(event));
    assert_eq!(event, Some(Event::SqDrained(a.qp)));
    assert!(!pair.a.verbs.query_qp(a.qp).unwrap().sq_draining);
    pair.world.advance(Duration::from_millis(10));
    assert!(pair.a.poll(a.cq).is_empty(), "nothing is sent in SQD");
    assert_ne!(there.buffer.read(900_000, 5), b"later");
    // Back in RTS it is.
    pair.a.verbs.modify_qp(a.qp, &to_state(Rts), M::STATE).unwrap();
    let done = pair.a.completions(a.cq, 1)[0];
    assert_eq!((done.wr_id, done.status), (2, WcStatus::Success));
    assert_eq!(there.buffer.read(900_000, 5), b"later");
    pair.assert_no_findings();
}

/// Returns identifiers and statuses, sends and receives separately.
fn by_queue(found: &[Completion]) -> [Vec<(u64, WcStatus)>; 2] {
    [false, true].map(|receives| {
        let of_queue = found.iter().filter(|done| (done.opcode == WcOpcode::Recv) == receives);
        of_queue.map(|done| (done.wr_id, done.status)).collect()
    })
}

/// Fills both queues of a queue pair with what cannot end, because the peer has no receive: ten sends, every third
/// signaled, and eight receives.
fn stuff(pair: &mut Pair, a: &End) {
    let here = pair.a.region(a.pd, 4096, ALL_ACCESS);
    for n in 0..10 {
        let flags = if n % 3 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let op = SendOp::Send { payload: Payload::Sges(&[here.sge(0, 64)]) };
        pair.a.verbs.post_send(a.qp, &SendWr { wr_id: n, flags, op }).unwrap();
    }
    for n in 0..8 {
        pair.a.verbs.post_recv(a.qp, &RecvWr { wr_id: 100 + n, sges: &[here.sge(0, 64)] }).unwrap();
    }
    pair.world.advance(Duration::from_millis(2));
    assert!(pair.a.poll(a.cq).is_empty());
}

fn flushed(from: u64, count: u64) -> Vec<(u64, WcStatus)> {
    (from..from + count).map(|n| (n, WcStatus::WrFlushErr)).collect()
}

// contract: qp-err-flush
#[test]
fn the_error_state_flushes_both_queues_in_order() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, false), end(&mut pair.b, false));
    pair.connect(&a, &b, &without_rnr_limit());
    stuff(&mut pair, &a);
    pair.a.verbs.modify_qp(a.qp, &to_state(InError), M::STATE).unwrap();
    // Unsignaled ones too: none may be lost.
    let [sends, receives] = by_queue(&pair.a.completions(a.cq, 18));
    assert_eq!((sends, receives), (flushed(0, 10), flushed(100, 8)));
    let info = pair.a.verbs.qp_info(a.qp).unwrap();
    assert_eq!((info.send_blocks, info.recvs), (0, 0));
    pair.world.advance(Duration::from_millis(10));
    assert!(pair.a.poll(a.cq).is_empty(), "and none twice");
    pair.assert_no_findings();
}

/// Posts sends with the identifiers of `sends`, and a bind with the next one, in a batch that is forgotten. The requests up to
/// the bind stay in the queue without a doorbell.
fn forget_batch(pair: &mut Pair, a: &End, sends: core::ops::Range<u64>) -> MwHandle {
    let region = pair.a.region(a.pd, 4096, ALL_ACCESS);
    let mw = pair.a.verbs.alloc_mw(a.pd, MwType::Type1).unwrap();
    let (wr_id, addr) = (sends.end, region.buffer.addr);
    let bind = Type1Bind { wr_id, flags: SendFlags::empty(), mr: region.mr, addr, length: 64, access: Access::REMOTE_READ };
    let mut batch = pair.a.verbs.send_batch(a.qp);
    for n in sends {
        batch
            .post(&SendWr { wr_id: n, flags: SendFlags::empty(), op: SendOp::Send { payload: Payload::Inline(b"x") } })
            .unwrap();
    }
    batch.bind_type1(mw, &bind).unwrap();
    std::mem::forget(batch);
    mw
}

#[test]
fn requests_without_a_doorbell_are_flushed_too() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, false), end(&mut pair.b, false));
    pair.connect(&a, &b, &without_rnr_limit());
    stuff(&mut pair, &a);
    let mw = forget_batch(&mut pair, &a, 10..13);
    pair.a.verbs.modify_qp(a.qp, &to_state(InError), M::STATE).unwrap();
    let [sends, receives] = by_queue(&pair.a.completions(a.cq, 22));
    assert_eq!((sends, receives), (flushed(0, 14), flushed(100, 8)));
    assert_eq!(pair.a.verbs.mw_info(mw).unwrap().binding, None);
    pair.world.advance(Duration::from_millis(10));
    assert!(pair.a.poll(a.cq).is_empty(), "and none twice");
    pair.assert_no_findings();
}

#[test]
fn requests_without_a_doorbell_when_the_queue_pair_failed() {
    // The state is ERR already: moving there again notifies the device of the rest, and so does a doorbell of its own.
    for moves in [false, true] {
        let mut pair = Pair::new();
        let (a, b) = (end(&mut pair.a, false), end(&mut pair.b, false));
        pair.connect(&a, &b, &without_rnr_limit());
        let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
        let wrong = Remote { addr: 0, ..there.remote(0) };
        let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: wrong };
        pair.a.verbs.post_send(a.qp, &signaled(0, op)).unwrap();
        forget_batch(&mut pair, &a, 1..3);
        assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::RemAccessErr);
        pair.world.advance(Duration::from_millis(1));
        assert!(pair.a.poll(a.cq).is_empty());
        if moves {
            pair.a.verbs.modify_qp(a.qp, &to_state(InError), M::STATE).unwrap();
        } else {
            pair.a.verbs.ring_send_queue(a.qp);
        }
        let [sends, _] = by_queue(&pair.a.completions(a.cq, 3));
        assert_eq!(sends, flushed(1, 3));
        assert_eq!(pair.a.verbs.qp_info(a.qp).unwrap().send_blocks, 0);
        pair.assert_no_findings();
    }
}

#[test]
fn requests_after_a_forgotten_batch_are_done() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, false), end(&mut pair.b, false));
    pair.connect(&a, &b, &without_rnr_limit());
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    let remote = there.remote(0);
    for round in 1..200_u64 {
        // Without a bind, a batch that is forgotten leaves nothing.
        let bytes = [0xff; 100];
        let op = SendOp::Write { payload: Payload::Inline(&bytes), remote };
        let mut batch = pair.a.verbs.send_batch(a.qp);
        batch.post(&signaled(0, op)).unwrap();
        std::mem::forget(batch);
        let bytes = [round as u8; 100];
        let op = SendOp::Write { payload: Payload::Inline(&bytes[..60]), remote };
        pair.a.verbs.post_send(a.qp, &signaled(round, op)).unwrap();
        let done = pair.a.completions(a.cq, 1);
        assert_eq!((done[0].wr_id, done[0].status), (round, WcStatus::Success));
        assert_eq!(there.buffer.read(0, 61), [vec![round as u8; 60], vec![0]].concat());
    }
    pair.assert_no_findings();
}

#[test]
fn a_failed_request_flushes_what_is_behind_it() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, false), end(&mut pair.b, false));
    pair.connect(&a, &b, &without_rnr_limit());
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    let op = |good: bool| {
        let remote = if good { there.remote(0) } else { Remote { addr: 0, ..there.remote(0) } };
        SendOp::Write { payload: Payload::Inline(b"12345678"), remote }
    };
    let list: Vec<_> = (0..8).map(|n| SendWr { wr_id: n, flags: SendFlags::empty(), op: op(n != 3) }).collect();
    pair.a.verbs.post_send_list(a.qp, &list).unwrap();
    let found = pair.a.completions(a.cq, 5);
    let ids: Vec<_> = found.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(ids, [vec![(3, WcStatus::RemAccessErr)], flushed(4, 4)].concat(), "0 to 2 have ended well, unsignaled");
    assert_eq!(pair.a.verbs.qp_info(a.qp).unwrap().state, InError);
    pair.assert_no_findings();
}

// contract: qp-reset
#[test]
fn reset_forgets_everything_and_the_queue_pair_works_again() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, false), end(&mut pair.b, false));
    for round in 0..4 {
        let psn = (0x10_0000 * round, 0x99_0000 + round);
        pair.connect(&a, &b, &Connection { psn: (Psn::new(psn.0), Psn::new(psn.1)), ..without_rnr_limit() });
        let here = pair.a.region(a.pd, 4096, ALL_ACCESS);
        let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
        // A different number of requests each time, so that stale counters would show.
        for n in 0..u64::from(round) * 3 + 5 {
            pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: n, sges: &[there.sge(0, 64)] }).unwrap();
            let op = SendOp::Send { payload: Payload::Sges(&[here.sge(0, 64)]) };
            pair.a.verbs.post_send(a.qp, &signaled(n, op)).unwrap();
            assert_eq!(pair.a.completions(a.cq, 1)[0].wr_id, n);
            assert_eq!(pair.b.completions(b.cq, 1)[0].wr_id, n);
        }
        // The rest of this round: requests that never end, and completions that are never taken.
        let region = here.mr;
        pair.a.verbs.dereg_mr_raw(region).unwrap();
        pair.b.verbs.dereg_mr_raw(there.mr).unwrap();
        stuff(&mut pair, &a);
        if round % 2 == 0 {
            pair.a.verbs.modify_qp(a.qp, &to_state(InError), M::STATE).unwrap();
            pair.world.advance(Duration::from_millis(1));
        }
        pair.a.verbs.modify_qp(a.qp, &to_state(Reset), M::STATE).unwrap();
        pair.b.verbs.modify_qp(b.qp, &to_state(Reset), M::STATE).unwrap();
        pair.world.advance(Duration::from_millis(1));
        assert!(pair.a.poll(a.cq).is_empty() && pair.b.poll(b.cq).is_empty(), "nothing of it is left");
        let info = pair.a.verbs.query_qp(a.qp).unwrap();
        assert_eq!((info.state, info.send_blocks, info.recvs), (Reset, 0, 0));
    }
    pair.assert_no_findings();
}

#[test]
fn reset_takes_its_own_completions_and_no_others() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    // Two more queue pairs that complete into the same queue.
    let mut others = Vec::new();
    for _ in 0..2 {
        let init =
            bareverbs::QpInit { pd: a.pd, qp_type: QpType::Rc, send_cq: a.cq, recv_cq: a.cq, cap: CAP, sq_sig_all: true };
        let qp = pair.a.verbs.create_qp(&init).unwrap();
        let qpn = pair.a.verbs.qp_info(qp).unwrap().qpn;
        let (near, far) = (End { qp, qpn, ..a }, end_in(&mut pair.b, b.pd, QpType::Rc, CAP, true));
        pair.connect(&near, &far, &Connection::default());
        others.push(near);
    }
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    for round in [false, true] {
        let ends = [a, others[0], others[1]];
        for n in 0..30_u64 {
            let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) };
            pair.a.verbs.post_send(ends[n as usize % 3].qp, &signaled(n, op)).unwrap();
            pair.world.advance(Duration::from_micros(50));
        }
        if round {
            pair.a.verbs.destroy_qp(others[0].qp).unwrap();
            refused!(pair.a.verbs.destroy_qp(others[0].qp), Einval, DestroyQpError::Stale);
        } else {
            pair.a.verbs.modify_qp(others[0].qp, &to_state(Reset), M::STATE).unwrap();
        }
        let found: Vec<_> = pair.a.poll(a.cq).iter().map(|done| (done.wr_id, done.qp, done.status)).collect();
        let expected: Vec<_> =
            (0..30_u64).filter(|n| n % 3 != 1).map(|n| (n, ends[n as usize % 3].qp, WcStatus::Success)).collect();
        assert_eq!(found, expected, "in their order");
        if !round {
            // Connected again for the second round: the peer starts anew as well.
            let far = end_in(&mut pair.b, b.pd, QpType::Rc, CAP, true);
            pair.connect(&others[0], &far, &Connection::default());
        }
    }
    pair.assert_no_findings();
}

// contract: qp-destroy
#[test]
fn destruction_with_everything_in_flight() {
    let mut pair = Pair::new();
    let before = pair.a.snapshot();
    let (a, b) = pair.connected();
    let here = pair.a.region(a.pd, 1 << 18, ALL_ACCESS);
    let there = pair.b.region(b.pd, 1 << 18, ALL_ACCESS);
    for n in 0..16 {
        let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 1 << 18)]), remote: there.remote(0) };
        pair.a.verbs.post_send(a.qp, &signaled(n, op)).unwrap();
        pair.a.verbs.post_recv(a.qp, &RecvWr { wr_id: n, sges: &[] }).unwrap();
    }
    pair.world.advance(Duration::from_micros(3));
    pair.a.verbs.destroy_qp(a.qp).unwrap();
    // Responses still on the wire find no queue pair.
    pair.world.advance(Duration::from_millis(50));
    assert!(pair.a.poll(a.cq).is_empty());
    pair.a.verbs.dereg_mr_raw(here.mr).unwrap();
    pair.a.verbs.destroy_cq(a.cq).unwrap();
    pair.a.verbs.dealloc_pd(a.pd).unwrap();
    assert_eq!(pair.a.snapshot(), before);
    pair.assert_no_findings();
}

// contract: qp-sqe
#[test]
fn an_unreliable_queue_pair_goes_its_way() {
    let mut pair = Pair::new();
    let pd = pair.a.verbs.alloc_pd().unwrap();
    let uc = end_in(&mut pair.a, pd, QpType::Uc, CAP, true);
    let steps = uc_steps(&Connection::default(), Lid::new(2), Qpn::new(0x55), 1, 2);
    for (n, (attr, mask)) in steps.iter().enumerate() {
        // What only reliable transports have is forbidden here.
        let wrong = [M::QKEY, M::MIN_RNR_TIMER, M::RETRY_CNT][n];
        let error = refused!(pair.a.verbs.modify_qp(uc.qp, attr, *mask | wrong), Einval, ModifyQpError::Attributes { .. });
        assert!(matches!(error, ModifyQpError::Attributes { forbidden, .. } if forbidden == wrong), "{error:?}");
        pair.a.verbs.modify_qp(uc.qp, attr, *mask).unwrap();
        assert_eq!(pair.a.verbs.query_qp(uc.qp).unwrap().state, attr.state);
    }
    for state in [Sqd, Rts, InError, Reset] {
        pair.a.verbs.modify_qp(uc.qp, &to_state(state), M::STATE).unwrap();
        assert_eq!(pair.a.verbs.query_qp(uc.qp).unwrap().state, state);
    }
    pair.a.assert_no_findings();
}
