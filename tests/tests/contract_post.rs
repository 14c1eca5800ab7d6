//! Posting: the rows of the contract about sends and receives (`docs/src/contract.md`), each refusal with its errno and its error.

use bareverbs::error::{BadWr, BindRefused, DestroyQpError, Errno, ModifyQpError, PostRecvError, PostSendError, SgeFault};
use bareverbs::platform::OffsetMap;
use bareverbs::{
    Access, Binding, Completion, KeyTag, Lkey, MwHandle, MwType, Payload, QpAttr, QpAttrMask, QpCap, QpState, QpType, RecvWr,
    Remote, Rkey, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};
use bareverbs_sim::DeviceConfig;
use bareverbs_tests::{
    ALL_ACCESS, CAP, Connection, End, Pair, Region, end, end_in, pattern, rc_steps, refused, register_mapped, signaled,
    to_state, ud_to_rts,
};

/// The opcodes of the contract's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Send,
    SendWithImm,
    SendWithInv,
    Write,
    WriteWithImm,
    Read,
    CompareSwap,
    FetchAdd,
    BindMw,
    LocalInv,
}

const OPS: [Op; 10] = [
    Op::Send,
    Op::SendWithImm,
    Op::SendWithInv,
    Op::Write,
    Op::WriteWithImm,
    Op::Read,
    Op::CompareSwap,
    Op::FetchAdd,
    Op::BindMw,
    Op::LocalInv,
];

impl Op {
    fn is_send(self) -> bool {
        matches!(self, Op::Send | Op::SendWithImm | Op::SendWithInv)
    }

    fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::WriteWithImm)
    }

    fn is_read_or_atomic(self) -> bool {
        matches!(self, Op::Read | Op::CompareSwap | Op::FetchAdd)
    }

    fn is_reliable_only(self) -> bool {
        self.is_read_or_atomic() || self == Op::SendWithInv
    }

    fn takes_receive(self) -> bool {
        self.is_send() || self == Op::WriteWithImm
    }

    fn completes_as(self) -> WcOpcode {
        match self {
            Op::Send | Op::SendWithImm | Op::SendWithInv => WcOpcode::Send,
            Op::Write | Op::WriteWithImm => WcOpcode::RdmaWrite,
            Op::Read => WcOpcode::RdmaRead,
            Op::CompareSwap => WcOpcode::CompSwap,
            Op::FetchAdd => WcOpcode::FetchAdd,
            Op::BindMw => WcOpcode::BindMw,
            Op::LocalInv => WcOpcode::LocalInv,
        }
    }
}

/// What a request of each opcode is made of.
#[derive(Clone, Copy)]
struct Parts<'a> {
    payload: Payload<'a>,
    sges: &'a [Sge],
    remote: Remote,
    mw: MwHandle,
    info: Binding,
    /// The window that is invalidated: here, or there.
    rkey: Rkey,
}

impl<'a> Parts<'a> {
    fn op(&self, op: Op) -> SendOp<'a> {
        let Parts { payload, sges, remote, mw, info, rkey } = *self;
        let imm = [1, 2, 3, 4];
        match op {
            Op::Send => SendOp::Send { payload },
            Op::SendWithImm => SendOp::SendWithImm { payload, imm },
            Op::SendWithInv => SendOp::SendWithInv { payload, rkey },
            Op::Write => SendOp::Write { payload, remote },
            Op::WriteWithImm => SendOp::WriteWithImm { payload, remote, imm },
            Op::Read => SendOp::Read { sges, remote },
            Op::CompareSwap => SendOp::CompareSwap { sge: sges[0], remote, compare: 0, swap: 1 },
            Op::FetchAdd => SendOp::FetchAdd { sge: sges[0], remote, add: 1 },
            Op::BindMw => SendOp::BindMw { mw, tag: KeyTag(77), binding: info },
            Op::LocalInv => SendOp::LocalInv { rkey },
        }
    }
}

/// Two connected ends with what every opcode needs.
struct Fixture {
    pair: Pair,
    a: End,
    b: End,
    here: Region,
    there: Region,
    /// Type 2, on the first host and on the second.
    windows: [MwHandle; 2],
}

impl Fixture {
    fn new(qp_type: QpType) -> Self {
        Self::with(qp_type, CAP, false)
    }

    fn with(qp_type: QpType, cap: QpCap, sq_sig_all: bool) -> Self {
        let mut pair = Pair::new();
        let pds = (pair.a.verbs.alloc_pd().unwrap(), pair.b.verbs.alloc_pd().unwrap());
        let a = end_in(&mut pair.a, pds.0, qp_type, cap, sq_sig_all);
        let b = end_in(&mut pair.b, pds.1, qp_type, CAP, sq_sig_all);
        pair.connect(&a, &b, &Connection::default());
        let mut here = pair.a.region(a.pd, 8192, ALL_ACCESS);
        here.buffer.write(0, &pattern(3, 8192));
        let there = pair.b.region(b.pd, 8192, ALL_ACCESS);
        let windows =
            [pair.a.verbs.alloc_mw(a.pd, MwType::Type2).unwrap(), pair.b.verbs.alloc_mw(b.pd, MwType::Type2).unwrap()];
        Self { pair, a, b, here, there, windows }
    }

    fn info(&self) -> Binding {
        let region = &self.here;
        Binding { mr: region.mr, addr: region.buffer.addr, length: 4096, access: Access::REMOTE_READ }
    }

    fn parts<'a>(&self, sges: &'a [Sge]) -> Parts<'a> {
        Parts {
            payload: Payload::Sges(sges),
            sges,
            remote: self.there.remote(0),
            mw: self.windows[0],
            info: self.info(),
            rkey: self.pair.a.verbs.mw_info(self.windows[0]).unwrap().rkey,
        }
    }

    /// Posts in a batch that is forgotten, so that no doorbell is rung and no request is executed.
    fn post(&mut self, flags: SendFlags, op: SendOp<'_>) -> Result<(), PostSendError> {
        let mut batch = self.pair.a.verbs.send_batch(self.a.qp);
        let posted = batch.post(&SendWr { wr_id: 1, flags, op });
        std::mem::forget(batch);
        posted
    }

    /// Posts and rings the doorbell.
    fn send(&mut self, wr_id: u64, flags: SendFlags, op: SendOp<'_>) -> Result<(), PostSendError> {
        self.pair.a.verbs.post_send(self.a.qp, &SendWr { wr_id, flags, op })
    }

    fn free(&mut self) -> u32 {
        self.pair.a.verbs.send(self.a.qp).free_blocks()
    }

    fn done(&mut self) -> Completion {
        self.pair.a.completions(self.a.cq, 1)[0]
    }
}

// contract: post-opcodes-rc
#[test]
fn every_opcode_of_a_reliable_connection_is_done() {
    let mut fixture = Fixture::new(QpType::Rc);
    // The peer's window that SEND_WITH_INV takes away.
    let info = Binding { mr: fixture.there.mr, addr: fixture.there.buffer.addr, length: 64, access: Access::REMOTE_READ };
    let bind = signaled(50, SendOp::BindMw { mw: fixture.windows[1], tag: KeyTag(9), binding: info });
    fixture.pair.b.verbs.post_send(fixture.b.qp, &bind).unwrap();
    assert_eq!(fixture.pair.b.completions(fixture.b.cq, 1)[0].status, WcStatus::Success);
    let far = fixture.pair.b.verbs.mw_info(fixture.windows[1]).unwrap().rkey;
    for (n, op) in OPS.into_iter().enumerate() {
        let sges = [fixture.here.sge(0, 8)];
        let mut parts = fixture.parts(&sges);
        if op == Op::SendWithInv {
            parts.rkey = far;
        }
        if op.takes_receive() {
            let sges = [fixture.there.sge(4096, 64)];
            fixture.pair.b.verbs.post_recv(fixture.b.qp, &RecvWr { wr_id: 99, sges: &sges }).unwrap();
        }
        fixture.send(n as u64, SendFlags::SIGNALED, parts.op(op)).unwrap_or_else(|error| panic!("{op:?}: {error}"));
        let done = fixture.done();
        assert_eq!((done.wr_id, done.opcode, done.status), (n as u64, op.completes_as(), WcStatus::Success), "{op:?}");
        if op.takes_receive() {
            assert_eq!(fixture.pair.b.completions(fixture.b.cq, 1)[0].status, WcStatus::Success, "{op:?}");
        }
    }
    assert_eq!(fixture.pair.b.verbs.mw_info(fixture.windows[1]).unwrap().binding, None, "the peer took it");
    assert_eq!(fixture.pair.a.verbs.mw_info(fixture.windows[0]).unwrap().binding, None);
    fixture.pair.assert_no_findings();
}

// contract: post-opcodes-uc
#[test]
fn opcodes_that_an_unreliable_connection_lacks() {
    let mut fixture = Fixture::new(QpType::Uc);
    for op in OPS {
        let sges = [fixture.here.sge(0, 8)];
        let op_of = fixture.parts(&sges).op(op);
        let before = fixture.free();
        let posted = fixture.post(SendFlags::SIGNALED, op_of);
        if op.is_read_or_atomic() {
            let error = refused!(posted, Einval, PostSendError::Opcode { .. });
            assert_eq!(error, PostSendError::Opcode { opcode: op.completes_as(), qp_type: QpType::Uc });
            assert_eq!(fixture.free(), before);
        } else if let SendOp::SendWithInv { .. } = op_of {
            let error = refused!(posted, Einval, PostSendError::NoSendWithInv);
            assert!(error.to_string().contains("only reliable connections have SendWithInv"), "{error}");
            assert_eq!(fixture.free(), before);
        } else {
            posted.unwrap_or_else(|error| panic!("{op:?}: {error}"));
        }
    }
}

// contract: post-fence, post-solicited
#[test]
fn flags_by_opcode_and_transport() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        for op in OPS.into_iter().filter(|op| qp_type == QpType::Rc || !op.is_reliable_only()) {
            let mut fixture = Fixture::new(qp_type);
            let sges = [fixture.here.sge(0, 8)];
            let parts = fixture.parts(&sges);
            // The four defined flags and an undefined one.
            for bits in 0..32_u32 {
                let flags = SendFlags::from_bits_retain(bits & 15 | (bits & 16) << 6);
                for inline in [false, true] {
                    let has_payload = op.is_send() || op.is_write();
                    if inline && !has_payload {
                        continue;
                    }
                    let payload = if inline { Payload::Inline(b"eight by") } else { parts.payload };
                    // A window can be bound again, each time with another key, as often as there are records.
                    let mut op_of = Parts { payload, ..parts }.op(op);
                    if let SendOp::BindMw { tag, .. } = &mut op_of {
                        *tag = KeyTag(bits as u8);
                    }
                    let mut legal = SendFlags::SIGNALED;
                    legal.set(SendFlags::FENCE, qp_type == QpType::Rc);
                    legal.set(SendFlags::SOLICITED, op.takes_receive());
                    // Bytes that are copied are shown; those behind a key are not.
                    legal.set(SendFlags::INLINE, inline);
                    let wrong = flags - legal;
                    let before = fixture.free();
                    let posted = fixture.post(flags, op_of);
                    if wrong.is_empty() {
                        posted.unwrap_or_else(|error| panic!("{qp_type:?} {op:?} {flags:?} {inline}: {error}"));
                    } else {
                        let error = refused!(posted, Einval, PostSendError::Flags { .. });
                        let PostSendError::Flags { flags: named } = error else { panic!("{error:?}") };
                        assert!(wrong.contains(named) && !named.is_empty(), "{qp_type:?} {op:?} {flags:?}: {named:?}");
                        assert_eq!(fixture.free(), before);
                    }
                }
            }
        }
    }
}

// contract: post-signaled
#[test]
fn signaled_matters_only_without_sq_sig_all() {
    for sq_sig_all in [false, true] {
        let mut fixture = Fixture::with(QpType::Rc, CAP, sq_sig_all);
        for wr_id in 0..8 {
            let flags = if wr_id % 4 == 3 { SendFlags::SIGNALED } else { SendFlags::empty() };
            let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: fixture.there.remote(0) };
            fixture.send(wr_id, flags, op).unwrap();
        }
        let expected: Vec<u64> = if sq_sig_all { (0..8).collect() } else { vec![3, 7] };
        let found: Vec<_> = fixture.pair.a.completions(fixture.a.cq, expected.len()).iter().map(|done| done.wr_id).collect();
        assert_eq!(found, expected);
        fixture.pair.world.advance(core::time::Duration::from_millis(1));
        assert!(fixture.pair.a.poll(fixture.a.cq).is_empty());
    }
}

// contract: post-inline
#[test]
fn inline_payloads_up_to_the_limit() {
    let mut fixture = Fixture::new(QpType::Rc);
    let max = fixture.pair.a.verbs.qp_info(fixture.a.qp).unwrap().cap.max_inline_data;
    assert!(max >= CAP.max_inline_data);
    let bytes = pattern(5, max as usize + 1);
    let remote = fixture.there.remote(0);
    for op in OPS.into_iter().filter(|op| op.is_send() || op.is_write()) {
        let sges = [fixture.here.sge(0, 8)];
        let fits = Parts { payload: Payload::Inline(&bytes[..max as usize]), remote, ..fixture.parts(&sges) }.op(op);
        fixture.post(SendFlags::INLINE, fits).unwrap();
        let before = fixture.free();
        let long = Parts { payload: Payload::Inline(&bytes), remote, ..fixture.parts(&sges) }.op(op);
        let error = refused!(fixture.post(SendFlags::INLINE, long), Einval, PostSendError::InlineSize { .. });
        assert_eq!(error, PostSendError::InlineSize { length: max as usize + 1, max });
        assert_eq!(fixture.free(), before);
    }
    // And without room for any: not one byte.
    let cap = QpCap { max_send_sge: 0, max_inline_data: 0, ..CAP };
    let mut fixture = Fixture::with(QpType::Rc, cap, false);
    let max = fixture.pair.a.verbs.qp_info(fixture.a.qp).unwrap().cap.max_inline_data as usize;
    let remote = fixture.there.remote(0);
    let long = SendOp::Write { payload: Payload::Inline(&bytes[..max + 1]), remote };
    refused!(fixture.post(SendFlags::empty(), long), Einval, PostSendError::InlineSize { .. });
}

// contract: post-sge-count
#[test]
fn as_many_sges_as_the_queue_takes() {
    let mut fixture = Fixture::new(QpType::Rc);
    let cap = fixture.pair.a.verbs.qp_info(fixture.a.qp).unwrap().cap;
    let sges = vec![fixture.here.sge(0, 1); cap.max_send_sge as usize + 1];
    let most = &sges[..cap.max_send_sge as usize];
    for op in [Op::Send, Op::SendWithImm, Op::SendWithInv, Op::Write, Op::WriteWithImm, Op::Read] {
        let (fits, many) = (fixture.parts(most).op(op), fixture.parts(&sges).op(op));
        fixture.post(SendFlags::empty(), fits).unwrap();
        let before = fixture.free();
        let error = refused!(fixture.post(SendFlags::empty(), many), Einval, PostSendError::SgeCount { .. });
        assert_eq!(error, PostSendError::SgeCount { count: sges.len(), max: cap.max_send_sge });
        assert_eq!(fixture.free(), before);
    }
    let sges = vec![fixture.here.sge(0, 1); cap.max_recv_sge as usize + 1];
    let (qp, verbs) = (fixture.a.qp, &mut fixture.pair.a.verbs);
    verbs.post_recv(qp, &RecvWr { wr_id: 1, sges: &sges[1..] }).unwrap();
    let error = refused!(verbs.post_recv(qp, &RecvWr { wr_id: 1, sges: &sges }), Einval, PostRecvError::SgeCount { .. });
    assert_eq!(error, PostRecvError::SgeCount { count: sges.len(), max: cap.max_recv_sge });
    assert_eq!(verbs.qp_info(qp).unwrap().recvs, 1);
}

// contract: post-message-size
#[test]
fn messages_longer_than_the_device_sends() {
    let mut fixture = Fixture::new(QpType::Rc);
    let max = fixture.pair.a.verbs.query_device().max_msg_size;
    // No byte of it is ever read, so there need not be any.
    let (start, map) = (1 << 32, OffsetMap::default());
    let mr = register_mapped(&mut fixture.pair.a.verbs, fixture.a.pd, start, max + 4096, Access::LOCAL_WRITE, &map).unwrap();
    let lkey = fixture.pair.a.verbs.mr_info(mr).unwrap().lkey;
    let sge = |length: u64| Sge { addr: start, length: length as u32, lkey };
    for op in [Op::Send, Op::Write, Op::Read] {
        let whole = [sge(max)];
        let op_of = fixture.parts(&whole).op(op);
        fixture.post(SendFlags::empty(), op_of).unwrap();
        for sges in [&[sge(max + 1)][..], &[sge(max), sge(1)], &[sge(max / 2), sge(max / 2), sge(max / 2)]] {
            let op_of = fixture.parts(sges).op(op);
            let error = refused!(fixture.post(SendFlags::empty(), op_of), Einval, PostSendError::MessageSize { .. });
            assert_eq!(error, PostSendError::MessageSize { max: max as u32 });
        }
    }
}

// contract: post-atomics
#[test]
fn atomics_are_eight_aligned_bytes() {
    let mut fixture = Fixture::new(QpType::Rc);
    let before = fixture.free();
    for op in [Op::CompareSwap, Op::FetchAdd] {
        for length in [0, 1, 4, 7, 9, 16, 4096] {
            let sges = [fixture.here.sge(0, length)];
            let op_of = fixture.parts(&sges).op(op);
            let error = refused!(fixture.post(SendFlags::empty(), op_of), Einval, PostSendError::AtomicLength { .. });
            assert_eq!(error, PostSendError::AtomicLength { length: length as u32, needed: 8 });
        }
        for shift in 1..8 {
            let sges = [fixture.here.sge(0, 8)];
            let remote = fixture.there.remote(shift);
            let op_of = Parts { remote, ..fixture.parts(&sges) }.op(op);
            let error = refused!(fixture.post(SendFlags::empty(), op_of), Einval, PostSendError::AtomicAlignment { .. });
            assert_eq!(error, PostSendError::AtomicAlignment { addr: remote.addr, needed: 8 });
        }
    }
    assert_eq!(fixture.free(), before);
}

// contract: post-atomics
#[test]
fn atomics_need_their_right_on_both_sides() {
    // The peer's region must give it; that is the responder's to say.
    let mut fixture = Fixture::new(QpType::Rc);
    let plain = fixture.pair.b.region(fixture.b.pd, 4096, ALL_ACCESS - Access::REMOTE_ATOMIC);
    let sge = fixture.here.sge(0, 8);
    let op = SendOp::FetchAdd { sge, remote: plain.remote(0), add: 1 };
    fixture.send(1, SendFlags::SIGNALED, op).unwrap();
    assert_eq!(fixture.done().status, WcStatus::RemAccessErr);
    assert_eq!(plain.buffer.read(0, 8), [0; 8]);

    // Where the old value goes must be writable.
    let mut fixture = Fixture::new(QpType::Rc);
    let read_only = fixture.pair.a.region(fixture.a.pd, 4096, Access::REMOTE_READ);
    let op = SendOp::FetchAdd { sge: read_only.sge(0, 8), remote: fixture.there.remote(0), add: 1 };
    refused!(fixture.send(1, SendFlags::SIGNALED, op), Eacces, PostSendError::Sge { index: 0, fault: SgeFault::Access, .. });
}

#[test]
fn atomics_of_a_device_that_has_none() {
    let mut pair = Pair::of_devices(DeviceConfig { atomics: false, ..DeviceConfig::with_lid(1) }, DeviceConfig::with_lid(2));
    assert!(!pair.a.verbs.query_device().atomics);
    let ends = (end(&mut pair.a, true), end(&mut pair.b, true));
    let connection = Connection { access: Access::REMOTE_READ | Access::REMOTE_WRITE, ..Connection::default() };
    pair.connect(&ends.0, &ends.1, &connection);
    let here = pair.a.region(ends.0.pd, 4096, Access::LOCAL_WRITE);
    let remote = Remote { addr: 0, rkey: Rkey::new(0x300) };
    for op in [
        SendOp::FetchAdd { sge: here.sge(0, 8), remote, add: 1 },
        SendOp::CompareSwap { sge: here.sge(0, 8), remote, compare: 1, swap: 2 },
    ] {
        refused!(pair.a.verbs.post_send(ends.0.qp, &signaled(1, op)), Eopnotsupp, PostSendError::NoAtomics);
    }
}

// contract: post-state
#[test]
fn states_in_which_nothing_is_posted() {
    let mut pair = Pair::new();
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    let here = pair.a.region(a.pd, 4096, ALL_ACCESS);
    let op = SendOp::Send { payload: Payload::Sges(&[here.sge(0, 8)]) };
    let (send, recv) = (signaled(1, op), RecvWr { wr_id: 2, sges: &[here.sge(0, 8)] });
    let steps = rc_steps(&Connection::default(), bareverbs::Lid::new(2), b.qpn, 0, 0);
    let mut step = None;
    let order = [
        (QpState::Reset, false, false),
        (QpState::Init, false, true),
        (QpState::Rtr, false, true),
        (QpState::Rts, true, true),
        (QpState::Sqd, true, true),
        (QpState::Err, false, false),
        (QpState::Reset, false, false),
    ];
    for (n, (state, sends, receives)) in order.into_iter().enumerate() {
        match n {
            0 => {}
            1..=3 => step = Some(steps[n - 1]),
            _ => step = Some((to_state(state), QpAttrMask::STATE)),
        }
        if let Some((attr, mask)) = step {
            pair.a.verbs.modify_qp(a.qp, &attr, mask).unwrap();
        }
        assert_eq!(pair.a.verbs.query_qp(a.qp).unwrap().state, state);
        let verbs = &mut pair.a.verbs;
        if sends {
            verbs.post_send(a.qp, &send).unwrap();
        } else {
            let error = refused!(verbs.post_send(a.qp, &send), Enotconn, PostSendError::NotReady { .. });
            assert_eq!(error, PostSendError::NotReady { state });
            refused!(verbs.send_batch(a.qp).post(&send), Enotconn, PostSendError::NotReady { .. });
            let bad = verbs.post_send_list(a.qp, &[send, send]).unwrap_err();
            assert_eq!(bad, BadWr { index: 0, error: PostSendError::NotReady { state } });
        }
        if receives {
            verbs.post_recv(a.qp, &recv).unwrap();
        } else {
            let error = refused!(verbs.post_recv(a.qp, &recv), Enotconn, PostRecvError::NotReady { .. });
            assert_eq!(error, PostRecvError::NotReady { state });
            let bad = verbs.post_recv_list(a.qp, &[recv]).unwrap_err();
            assert_eq!(bad, BadWr { index: 0, error: PostRecvError::NotReady { state } });
        }
    }
    pair.assert_no_findings();
}

/// A queue pair that is gone has no queue to post to; one of another device is destroyed and reset by that alone.
#[test]
fn foreign_queue_pairs() {
    let mut fixture = Fixture::new(QpType::Rc);
    let mut foreign = fixture.pair.b.verbs.take_qp(fixture.b.qp);
    refused!(fixture.pair.a.verbs.reset_qp(&mut foreign), Einval, ModifyQpError::Stale);
    let refused = (*fixture.pair.a.verbs).destroy_qp(foreign).unwrap_err();
    assert_eq!(refused.error, DestroyQpError::Stale);
    fixture.pair.b.verbs.keep_qp(refused.returned.unwrap());
    fixture.pair.assert_no_findings();
}

// contract: post-queue-full
#[test]
fn a_send_queue_holds_exactly_its_blocks() {
    let mut fixture = Fixture::new(QpType::Rc);
    let op = SendOp::Write { payload: Payload::Sges(&[fixture.here.sge(0, 8)]), remote: fixture.there.remote(0) };
    let capacity = fixture.free();
    let cap = fixture.pair.a.verbs.qp_info(fixture.a.qp).unwrap().cap;
    assert!(cap.max_send_wr >= CAP.max_send_wr);
    for lap in 0..3 {
        for n in 0..capacity - 1 {
            fixture.send(u64::from(n), SendFlags::empty(), op).unwrap_or_else(|error| panic!("{n}: {error}"));
        }
        fixture.send(1000 + lap, SendFlags::SIGNALED, op).unwrap();
        // One more is one too many, however long it is asked for.
        for _ in 0..3 {
            let error = refused!(fixture.send(9, SendFlags::SIGNALED, op), Enospc, PostSendError::QueueFull { .. });
            assert_eq!(error, PostSendError::QueueFull { needed: 1, free: 0, blocks: capacity });
        }
        assert_eq!(fixture.pair.a.verbs.qp_info(fixture.a.qp).unwrap().send_blocks, capacity);
        let done = fixture.done();
        assert_eq!((done.wr_id, done.status), (1000 + lap, WcStatus::Success));
        assert_eq!(fixture.free(), capacity, "all are retired by the one completion");
    }
    fixture.pair.assert_no_findings();
}

#[test]
fn as_many_requests_of_the_greatest_size_fit_as_the_capacity_says() {
    let mut fixture = Fixture::new(QpType::Rc);
    let cap = fixture.pair.a.verbs.qp_info(fixture.a.qp).unwrap().cap;
    let bytes = pattern(2, cap.max_inline_data as usize);
    let op = SendOp::Write { payload: Payload::Inline(&bytes), remote: fixture.there.remote(0) };
    for n in 0..cap.max_send_wr {
        let flags = if n + 1 == cap.max_send_wr { SendFlags::SIGNALED } else { SendFlags::empty() };
        fixture.send(u64::from(n), flags, op).unwrap_or_else(|error| panic!("{n} of {cap:?}: {error}"));
    }
    assert_eq!(fixture.done().wr_id, u64::from(cap.max_send_wr) - 1);
    assert_eq!(fixture.there.buffer.read(0, bytes.len()), bytes);
    fixture.pair.assert_no_findings();
}

#[test]
fn a_thousand_requests_of_many_sges_have_rings_of_their_size_and_fit() {
    let mut fixture = Fixture::with(QpType::Rc, QpCap { max_send_wr: 1024, max_send_sge: 8, max_inline_data: 0, ..CAP }, false);
    let cap = fixture.pair.a.verbs.qp_info(fixture.a.qp).unwrap().cap;
    assert!(cap.max_send_wr >= 1024 && cap.max_send_sge >= 8, "{cap:?}");
    let sges = vec![fixture.here.sge(0, 8); cap.max_send_sge as usize];
    let op = SendOp::Write { payload: Payload::Sges(&sges), remote: fixture.there.remote(0) };
    for n in 0..cap.max_send_wr {
        let flags = if n + 1 == cap.max_send_wr { SendFlags::SIGNALED } else { SendFlags::empty() };
        fixture.send(u64::from(n), flags, op).unwrap_or_else(|error| panic!("{n} of {cap:?}: {error}"));
    }
    assert_eq!(fixture.done().status, WcStatus::Success);
    // Blocks of 64 bytes for 1024 requests of three (a bind, or 10 SGEs), rounded up to a power of two. Then 64 receives of 4
    // SGEs, and at most a page for the doorbell record.
    let used = fixture.pair.a.snapshot().pages_used;
    fixture.pair.a.verbs.destroy_qp(fixture.a.qp).unwrap();
    let freed = used - fixture.pair.a.snapshot().pages_used;
    assert!((65..=66).contains(&freed), "{freed} pages");
    fixture.pair.assert_no_findings();
}

#[test]
fn a_request_of_several_blocks_needs_all_of_them() {
    let mut fixture = Fixture::new(QpType::Rc);
    let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: fixture.there.remote(0) };
    let (info, mw) = (fixture.info(), fixture.windows[0]);
    let bind = SendOp::BindMw { mw, tag: KeyTag(1), binding: info };
    let before = fixture.pair.a.verbs.mw_info(mw);
    let mut batch = fixture.pair.a.verbs.send_batch(fixture.a.qp);
    let mut post = |op| batch.post(&SendWr { wr_id: 1, flags: SendFlags::empty(), op }).map(|()| batch.free_blocks());
    while post(op).unwrap() > 2 {}
    refused!(post(bind), Enospc, PostSendError::QueueFull { needed: 3, free: 2, .. });
    assert_eq!((post(op), post(op)), (Ok(1), Ok(0)));
    refused!(post(op), Enospc, PostSendError::QueueFull { needed: 1, free: 0, .. });
    drop(batch);
    assert_eq!(fixture.pair.a.verbs.mw_info(mw), before, "the window is as it was");
}

// contract: recv-rules
#[test]
fn a_receive_queue_holds_exactly_its_entries() {
    let mut fixture = Fixture::new(QpType::Rc);
    let capacity = fixture.pair.b.verbs.qp_info(fixture.b.qp).unwrap().cap.max_recv_wr;
    assert!(capacity >= CAP.max_recv_wr);
    let payload = Payload::Inline(b"message");
    for lap in 0..3_u64 {
        for n in 0..capacity {
            let sges = [fixture.there.sge(n as usize * 8, 8)];
            fixture.pair.b.verbs.post_recv(fixture.b.qp, &RecvWr { wr_id: lap << 32 | u64::from(n), sges: &sges }).unwrap();
        }
        let full = fixture.pair.b.verbs.post_recv(fixture.b.qp, &RecvWr { wr_id: 1, sges: &[] });
        let full = refused!(full, Enospc, PostRecvError::QueueFull { .. });
        assert_eq!(full, PostRecvError::QueueFull { capacity });
        for _ in 0..capacity {
            fixture.send(1, SendFlags::SIGNALED, SendOp::Send { payload }).unwrap();
            assert_eq!(fixture.done().status, WcStatus::Success);
        }
        let found = fixture.pair.b.completions(fixture.b.cq, capacity as usize);
        let ids: Vec<_> = found.iter().map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(ids, (0..capacity).map(|n| (lap << 32 | u64::from(n), WcStatus::Success)).collect::<Vec<_>>());
    }
    fixture.pair.assert_no_findings();
}

// contract: post-sge-domain, post-sge-rights, post-sge-range
#[test]
fn sges_and_their_regions() {
    let mut fixture = Fixture::new(QpType::Rc);
    let other_pd = fixture.pair.a.verbs.alloc_pd().unwrap();
    let foreign = fixture.pair.a.region(other_pd, 4096, ALL_ACCESS);
    let read_only = fixture.pair.a.region(fixture.a.pd, 4096, Access::MW_BIND);
    let gone = fixture.pair.a.region(fixture.a.pd, 4096, ALL_ACCESS);
    fixture.pair.a.verbs.dereg_mr_raw(gone.mr).unwrap();
    // The same place in the table, so that a stale key is not merely a free one.
    let _again = fixture.pair.a.region(fixture.a.pd, 4096, ALL_ACCESS);
    let good = fixture.here.clone();
    let at = |addr: u64, length: u32| Sge { addr, length, lkey: good.info.lkey };
    let (start, end) = (good.buffer.addr, good.buffer.addr + 8192);
    let range = |name, addr, length| {
        (name, at(addr, length), Errno::Erange, SgeFault::Range { addr, length, start, size: 8192 }, false)
    };
    let cases: [(&str, Sge, Errno, SgeFault, bool); 11] = [
        ("another domain", foreign.sge(0, 8), Errno::Eperm, SgeFault::Domain, false),
        ("no local write", read_only.sge(0, 8), Errno::Eacces, SgeFault::Access, true),
        ("deregistered", gone.sge(0, 8), Errno::Einval, SgeFault::UnknownKey, false),
        ("key 0", Sge { lkey: Lkey::new(0), ..good.sge(0, 8) }, Errno::Einval, SgeFault::UnknownKey, false),
        (
            "another low byte",
            Sge { lkey: Lkey::new(good.info.lkey.get() ^ 0x80), ..good.sge(0, 8) },
            Errno::Einval,
            SgeFault::UnknownKey,
            false,
        ),
        range("before the start", start - 1, 8),
        range("past the end", end - 7, 8),
        range("behind the end", end, 8),
        range("overflows", u64::MAX - 3, 8),
        range("longer than all", start, 8193),
        range("as long as can be", start + 8, u32::MAX),
    ];
    for (name, sge, errno, fault, only_writes) in cases {
        let (before, recvs) = (fixture.free(), fixture.pair.a.verbs.qp_info(fixture.a.qp).unwrap().recvs);
        for op in OPS.into_iter().filter(|op| !matches!(op, Op::BindMw | Op::LocalInv)) {
            // The second of two, where there can be two.
            let lonely = matches!(op, Op::CompareSwap | Op::FetchAdd);
            if lonely && sge.length != 8 || only_writes && !op.is_read_or_atomic() {
                continue;
            }
            let sges = if lonely { vec![sge] } else { vec![good.sge(0, 8), sge] };
            let op_of = fixture.parts(&sges).op(op);
            let error = fixture.post(SendFlags::empty(), op_of).unwrap_err();
            assert_eq!(error, PostSendError::Sge { index: sges.len() - 1, lkey: sge.lkey, fault }, "{name}, {op:?}");
            assert_eq!(error.errno(), errno, "{name}, {op:?}");
        }
        let sges = [good.sge(0, 8), good.sge(8, 8), sge];
        let error = fixture.pair.a.verbs.post_recv(fixture.a.qp, &RecvWr { wr_id: 1, sges: &sges }).unwrap_err();
        assert_eq!(error, PostRecvError::Sge { index: 2, lkey: sge.lkey, fault }, "{name}");
        assert_eq!(error.errno(), errno);
        assert_eq!((fixture.free(), fixture.pair.a.verbs.qp_info(fixture.a.qp).unwrap().recvs), (before, recvs), "{name}");
    }
    // What is read from may be read only; the first and the last byte are bytes; and of no bytes nothing is asked.
    for sge in [read_only.sge(0, 4096), at(start, 1), at(end - 1, 1), Sge { addr: 3, length: 0, lkey: Lkey::new(0) }] {
        let sges = [sge];
        let op_of = fixture.parts(&sges).op(Op::Write);
        fixture.post(SendFlags::empty(), op_of).unwrap();
    }
}

#[test]
fn a_zero_based_region_counts_from_its_start() {
    let mut fixture = Fixture::new(QpType::Rc);
    let mut zero = fixture.pair.a.region(fixture.a.pd, 4096, ALL_ACCESS | Access::ZERO_BASED);
    zero.buffer.write(0, &pattern(8, 4096));
    let sge = |addr: u64, length: u32| [Sge { addr, length, lkey: zero.info.lkey }];
    let remote = fixture.there.remote(0);
    for (addr, length) in [(4096, 1), (1, 4096), (zero.buffer.addr, 8)] {
        let op = SendOp::Write { payload: Payload::Sges(&sge(addr, length)), remote };
        refused!(
            fixture.post(SendFlags::empty(), op),
            Erange,
            PostSendError::Sge { fault: SgeFault::Range { start: 0, size: 4096, .. }, .. }
        );
    }
    let whole = sge(0, 4096);
    fixture.send(1, SendFlags::SIGNALED, SendOp::Write { payload: Payload::Sges(&whole), remote }).unwrap();
    assert_eq!(fixture.done().status, WcStatus::Success);
    assert_eq!(fixture.there.buffer.read(0, 4096), zero.buffer.read(0, 4096));
}

// contract: post-list
#[test]
fn a_list_stops_at_the_first_that_fails_and_delivers_those_before_it() {
    let mut fixture = Fixture::new(QpType::Rc);
    let out: Vec<[Sge; 1]> = (0..10).map(|n| [fixture.here.sge(n * 8, 8)]).collect();
    let list = |bad: Option<usize>, fixture: &Fixture| -> Vec<SendWr<'_>> {
        (0..10)
            .map(|n| {
                let remote = fixture.there.remote(n * 8);
                let payload = Payload::Sges(&out[n]);
                // An inline flag without bytes is what is wrong.
                let flags = if bad == Some(n) { SendFlags::INLINE } else { SendFlags::SIGNALED };
                SendWr { wr_id: n as u64, flags, op: SendOp::Write { payload, remote } }
            })
            .collect()
    };
    for bad in (2..10).map(Some).chain([None, Some(0)]) {
        fixture.there.buffer.write(0, &[0; 80]);
        let doorbells = |fixture: &Fixture| fixture.pair.a.host.with_device(|device| device.stats().doorbells);
        let before = doorbells(&fixture);
        let wrs: Vec<SendWr<'_>> = list(bad, &fixture).into_iter().map(|wr| SendWr { ..wr }).collect();
        let posted = fixture.pair.a.verbs.post_send_list(fixture.a.qp, &wrs);
        let count = bad.unwrap_or(10);
        match bad {
            None => posted.unwrap(),
            Some(index) => {
                let error = PostSendError::Flags { flags: SendFlags::INLINE };
                assert_eq!(posted, Err(BadWr { index, error }));
            }
        }
        assert_eq!(doorbells(&fixture) - before, u64::from(count != 0), "one doorbell for {count}");
        let found = fixture.pair.a.completions(fixture.a.cq, count);
        let ids: Vec<_> = found.iter().map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(ids, (0..count as u64).map(|n| (n, WcStatus::Success)).collect::<Vec<_>>());
        let expected = [fixture.here.buffer.read(0, count * 8), vec![0; 80 - count * 8]].concat();
        assert_eq!(fixture.there.buffer.read(0, 80), expected, "those before it and no other");
        fixture.pair.world.advance(core::time::Duration::from_millis(1));
        assert!(fixture.pair.a.poll(fixture.a.cq).is_empty());
    }
    fixture.pair.assert_no_findings();
}

// contract: recv-rules
#[test]
fn a_list_of_receives_stops_at_the_first_that_fails() {
    let mut fixture = Fixture::new(QpType::Rc);
    let sges: Vec<[Sge; 1]> = (0..6).map(|n| [fixture.there.sge(n * 64, 64)]).collect();
    let wrong = [Sge { lkey: Lkey::new(0), ..sges[3][0] }];
    let list: Vec<RecvWr<'_>> =
        (0..6).map(|n| RecvWr { wr_id: n as u64, sges: if n == 3 { &wrong } else { &sges[n] } }).collect();
    let error = PostRecvError::Sge { index: 0, lkey: Lkey::new(0), fault: SgeFault::UnknownKey };
    assert_eq!(fixture.pair.b.verbs.post_recv_list(fixture.b.qp, &list), Err(BadWr { index: 3, error }));
    assert_eq!(fixture.pair.b.verbs.qp_info(fixture.b.qp).unwrap().recvs, 3);
    fixture.pair.b.verbs.post_recv_list(fixture.b.qp, &list[4..]).unwrap();
    for n in 0..5 {
        fixture.send(n, SendFlags::SIGNALED, SendOp::Send { payload: Payload::Inline(&[n as u8 + 1; 64]) }).unwrap();
        assert_eq!(fixture.done().status, WcStatus::Success);
    }
    let found: Vec<_> = fixture.pair.b.completions(fixture.b.cq, 5).iter().map(|done| done.wr_id).collect();
    assert_eq!(found, [0, 1, 2, 4, 5]);
    for (n, at) in [0, 1, 2, 4, 5].into_iter().enumerate() {
        assert_eq!(fixture.there.buffer.read(at * 64, 64), [n as u8 + 1; 64]);
    }
    fixture.pair.assert_no_findings();
}

#[test]
fn lists_that_end_at_the_queue_s_end() {
    let mut fixture = Fixture::new(QpType::Rc);
    let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: fixture.there.remote(0) };
    let capacity = fixture.free() as usize;
    let list = vec![signaled(1, op); capacity + 5];
    let bad = fixture.pair.a.verbs.post_send_list(fixture.a.qp, &list).unwrap_err();
    assert_eq!(bad, BadWr { index: capacity, error: PostSendError::QueueFull { needed: 1, free: 0, blocks: capacity as u32 } });
    assert_eq!(bad.error.errno(), Errno::Enospc);
    assert_eq!(fixture.pair.a.completions(fixture.a.cq, capacity).len(), capacity);
    // An empty list is nothing.
    fixture.pair.a.verbs.post_send_list(fixture.a.qp, &[]).unwrap();
    fixture.pair.b.verbs.post_recv_list(fixture.b.qp, &[]).unwrap();
}

#[test]
fn binds_and_invalidations_as_work_requests() {
    let mut fixture = Fixture::new(QpType::Rc);
    let other_pd = fixture.pair.a.verbs.alloc_pd().unwrap();
    let [type2, foreign_window] = fixture.windows;
    let verbs = &mut fixture.pair.a.verbs;
    let type1 = verbs.alloc_mw(fixture.a.pd, MwType::Type1).unwrap();
    let elsewhere = verbs.alloc_mw(other_pd, MwType::Type2).unwrap();
    let gone = verbs.alloc_mw(fixture.a.pd, MwType::Type2).unwrap();
    verbs.dealloc_mw(gone).unwrap();
    let no_bind = fixture.pair.a.region(fixture.a.pd, 4096, Access::LOCAL_WRITE);
    let no_write = fixture.pair.a.region(fixture.a.pd, 4096, Access::MW_BIND);
    let far = fixture.pair.a.region(other_pd, 4096, ALL_ACCESS);
    let info = fixture.info();
    let of = |region: &Region| Binding { mr: region.mr, addr: region.buffer.addr, ..info };
    use BindRefused::*;
    let (start, size) = (fixture.here.buffer.addr, 8192);
    let range = |addr, length| Range { addr, length, start, size };
    let cases = [
        (type1, info, Errno::Einval, WindowType { kind: MwType::Type1 }),
        (gone, info, Errno::Einval, StaleWindow),
        (foreign_window, info, Errno::Einval, StaleWindow),
        (type2, Binding { mr: fixture.there.mr, ..info }, Errno::Einval, StaleRegion),
        (type2, Binding { access: Access::MW_BIND, ..info }, Errno::Einval, AccessFlags { access: Access::MW_BIND }),
        (elsewhere, info, Errno::Eperm, Domain),
        (type2, of(&far), Errno::Eperm, Domain),
        (type2, of(&no_bind), Errno::Eacces, NoBindRight),
        (type2, Binding { access: Access::REMOTE_WRITE, ..of(&no_write) }, Errno::Eacces, NoLocalWrite),
        (type2, Binding { access: Access::REMOTE_ATOMIC, ..of(&no_write) }, Errno::Eacces, NoLocalWrite),
        (type2, Binding { addr: u64::MAX, length: 2, ..info }, Errno::Efault, Overflow),
        (type2, Binding { length: 8193, ..info }, Errno::Erange, range(info.addr, 8193)),
        (type2, Binding { addr: info.addr - 1, ..info }, Errno::Erange, range(info.addr - 1, info.length)),
    ];
    let before = fixture.free();
    for (mw, info, errno, refusal) in cases {
        let error = fixture.post(SendFlags::empty(), SendOp::BindMw { mw, tag: KeyTag(1), binding: info }).unwrap_err();
        assert_eq!((error, error.errno()), (PostSendError::Bind(refusal), errno));
    }
    // A key that no type 2 window of the domain has.
    let keys = [type1, elsewhere].map(|mw| fixture.pair.a.verbs.mw_info(mw).unwrap().rkey);
    for rkey in [keys[0], keys[1], fixture.here.info.rkey, Rkey::new(0)] {
        let error = refused!(fixture.post(SendFlags::empty(), SendOp::LocalInv { rkey }), Einval, PostSendError::Bind(_));
        assert_eq!(error, PostSendError::Bind(UnknownKey { rkey }));
    }
    assert_eq!(fixture.free(), before);
    // As many unfinished as there may be windows, and then no more.
    for tag in (0..8).map(KeyTag) {
        fixture.send(u64::from(tag.0), SendFlags::empty(), SendOp::BindMw { mw: type2, tag, binding: info }).unwrap();
    }
    let full = fixture.free();
    let bind = SendOp::BindMw { mw: type2, tag: KeyTag(8), binding: info };
    refused!(fixture.post(SendFlags::empty(), bind), Enomem, PostSendError::TooManyPendingBinds);
    let rkey = fixture.pair.a.verbs.mw_info(type2).unwrap().rkey;
    refused!(fixture.post(SendFlags::empty(), SendOp::LocalInv { rkey }), Enomem, PostSendError::TooManyPendingBinds);
    assert_eq!(fixture.free(), full);
}

#[test]
fn an_unreliable_connection_carries_sends_and_writes() {
    let mut fixture = Fixture::with(QpType::Uc, CAP, true);
    let sges = [fixture.here.sge(0, 5000)];
    for (n, op) in [Op::Send, Op::SendWithImm, Op::Write, Op::WriteWithImm].into_iter().enumerate() {
        let into = [fixture.there.sge(0, 8192)];
        fixture.there.buffer.write(0, &[0; 8192]);
        if op.takes_receive() {
            fixture.pair.b.verbs.post_recv(fixture.b.qp, &RecvWr { wr_id: 99, sges: &into }).unwrap();
        }
        let op_of = fixture.parts(&sges).op(op);
        fixture.send(n as u64, SendFlags::SIGNALED, op_of).unwrap();
        let done = fixture.done();
        assert_eq!((done.wr_id, done.opcode, done.status), (n as u64, op.completes_as(), WcStatus::Success), "{op:?}");
        if op.takes_receive() {
            assert_eq!(fixture.pair.b.completions(fixture.b.cq, 1)[0].status, WcStatus::Success, "{op:?}");
        } else {
            fixture.pair.world.advance(core::time::Duration::from_millis(1));
        }
        assert_eq!(fixture.there.buffer.read(0, 5000), fixture.here.buffer.read(0, 5000), "{op:?}");
    }
    fixture.pair.assert_no_findings();
}

// contract: post-opcodes-ud
#[test]
fn a_datagram_queue_pair_has_sends_only_and_they_need_a_destination() {
    let mut pair = Pair::new();
    let node = &mut pair.a;
    let pd = node.verbs.alloc_pd().unwrap();
    let ud = end_in(node, pd, QpType::Ud, CAP, true);
    ud_to_rts(node, ud.qp);
    let region = node.region(pd, 4096, ALL_ACCESS);
    let (sges, remote) = ([region.sge(0, 8)], region.remote(8));
    let payload = Payload::Sges(&sges);
    for op in [SendOp::Send { payload }, SendOp::SendWithImm { payload, imm: [0; 4] }] {
        refused!(node.verbs.post_send(ud.qp, &signaled(1, op)), Einval, PostSendError::NoAddressHandle);
    }
    for op in [
        SendOp::Write { payload, remote },
        SendOp::WriteWithImm { payload, remote, imm: [0; 4] },
        SendOp::Read { sges: &sges, remote },
        SendOp::FetchAdd { sge: sges[0], remote, add: 1 },
        SendOp::CompareSwap { sge: sges[0], remote, compare: 0, swap: 1 },
        SendOp::LocalInv { rkey: remote.rkey },
    ] {
        refused!(node.verbs.post_send(ud.qp, &signaled(1, op)), Einval, PostSendError::Opcode { qp_type: QpType::Ud, .. });
    }
    let op = SendOp::SendWithInv { payload, rkey: remote.rkey };
    refused!(node.verbs.post_send(ud.qp, &signaled(1, op)), Einval, PostSendError::NoSendWithInv);
    // Receives are a ring like any other's; a move to ERR gives them back.
    node.verbs.post_recv(ud.qp, &RecvWr { wr_id: 9, sges: &sges }).unwrap();
    let err = QpAttr { state: QpState::Err, ..QpAttr::default() };
    node.verbs.modify_qp(ud.qp, &err, QpAttrMask::STATE).unwrap();
    let flushed = node.completions(ud.cq, 1);
    assert_eq!((flushed[0].wr_id, flushed[0].status), (9, WcStatus::WrFlushErr));
    node.assert_no_findings();
}

#[test]
fn a_queue_pair_without_sends_receives() {
    let mut pair = Pair::new();
    let a = end(&mut pair.a, true);
    let pd = pair.b.verbs.alloc_pd().unwrap();
    let b = end_in(&mut pair.b, pd, QpType::Rc, QpCap { max_send_wr: 0, ..CAP }, true);
    pair.connect(&a, &b, &Connection::default());
    let (from, to) = (pair.a.region(a.pd, 64, ALL_ACCESS), pair.b.region(pd, 64, ALL_ACCESS));
    pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: 2, sges: &[to.sge(0, 64)] }).unwrap();
    let op = SendOp::Send { payload: Payload::Sges(&[from.sge(0, 64)]) };
    pair.a.verbs.post_send(a.qp, &signaled(1, op)).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    assert_eq!(pair.b.completions(b.cq, 1)[0].status, WcStatus::Success);
    let op = SendOp::Send { payload: Payload::Sges(&[to.sge(0, 64)]) };
    assert!(pair.b.verbs.post_send(b.qp, &signaled(1, op)).is_err(), "there is no send ring");
    pair.assert_no_findings();
}
