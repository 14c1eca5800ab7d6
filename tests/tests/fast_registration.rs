//! Fast registration: what the key opens, how it ends, and what a request that fails leaves.

use bareverbs::error::{AllocFastMrError, DeallocMwError, DeregMrError, FastRegError, PostSendError};
use bareverbs::{
    Access, FastMr, FastReg, FastRegion, KeyTag, Payload, QpAttr, QpAttrMask, QpState, QpType, RecvWr, Remote, Rkey, SendFlags,
    SendOp, SendWr, Sge, WcData, WcOpcode, WcStatus,
};
use bareverbs_tests::{CAP, Connection, End, Pair, Region, end_in, pattern, refused, signaled};

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);
/// Bytes of the region that pieces are of.
const POOL: usize = 5 * 4096;

/// Two connected ends: requests come from the first, pieces are registered at the second.
struct Fixture {
    pair: Pair,
    a: End,
    b: End,
    here: Region,
    pool: Region,
    mr: FastMr,
}

impl Fixture {
    fn new() -> Self {
        let mut pair = Pair::new();
        let (a, b) = pair.connected();
        let here = pair.a.region(a.pd, POOL, ALL);
        let mut pool = pair.b.region(b.pd, POOL, Access::LOCAL_WRITE | Access::MW_BIND);
        pool.buffer.write(0, &pattern(5, POOL));
        let mr = pair.b.verbs.alloc_fast_mr(b.pd, 52).unwrap();
        Self { pair, a, b, here, pool, mr }
    }

    fn post(&mut self, reg: &FastReg<'_>) -> Result<FastRegion, FastRegError> {
        self.pair.b.verbs.send_batch(self.b.qp).post_reg_mr(self.mr, reg)
    }

    /// Registers pieces and waits for the completion.
    fn register(&mut self, sges: &[Sge], tag: u8, access: Access) -> FastRegion {
        let region = self.post(&request(sges, tag, access)).unwrap();
        let done = self.pair.b.completions(self.b.cq, 1)[0];
        assert_eq!((done.wr_id, done.opcode, done.status), (5, WcOpcode::RegMr, WcStatus::Success));
        region
    }

    fn invalidate(&mut self, rkey: Rkey) {
        self.pair.b.verbs.post_send(self.b.qp, &signaled(6, SendOp::LocalInv { rkey })).unwrap();
        let done = self.pair.b.completions(self.b.cq, 1)[0];
        assert_eq!((done.opcode, done.status), (WcOpcode::LocalInv, WcStatus::Success));
    }

    /// Posts a request of the first end, and returns how it ends.
    fn request(&mut self, op: SendOp<'_>) -> WcStatus {
        self.pair.a.verbs.post_send(self.a.qp, &signaled(1, op)).unwrap();
        self.pair.a.completions(self.a.cq, 1)[0].status
    }

    fn write(&mut self, remote: Remote, len: usize) -> WcStatus {
        let sge = [self.here.sge(0, len)];
        self.request(SendOp::Write { payload: Payload::Sges(&sge), remote })
    }

    fn read(&mut self, remote: Remote, len: usize) -> WcStatus {
        let sge = [self.here.sge(0, len)];
        self.request(SendOp::Read { sges: &sge, remote })
    }

    /// A write and a read are refused, and not a byte is changed.
    fn closed(&mut self, remote: Remote) {
        let before = self.pool.buffer.read(0, POOL);
        assert_eq!(self.write(remote, 1), WcStatus::RemAccessErr);
        self.reconnect();
        assert_eq!(self.read(remote, 1), WcStatus::RemAccessErr);
        self.reconnect();
        assert_eq!(self.pool.buffer.read(0, POOL), before);
    }

    fn reconnect(&mut self) {
        for (node, end) in [(&mut self.pair.a, self.a), (&mut self.pair.b, self.b)] {
            let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            node.verbs.modify_qp(end.qp, &reset, QpAttrMask::STATE).unwrap();
        }
        let (a, b) = (self.a, self.b);
        self.pair.connect(&a, &b, &Connection::default());
    }

    fn state(&mut self, state: QpState) {
        self.pair.b.verbs.modify_qp(self.b.qp, &QpAttr { state, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    }
}

fn request(sges: &[Sge], tag: u8, access: Access) -> FastReg<'_> {
    FastReg { wr_id: 5, flags: SendFlags::SIGNALED, tag: KeyTag(tag), sges, access }
}

/// Numbers that are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % end
    }
}

/// The pieces of some numbers, and which byte of the pool each byte of theirs is.
fn pieces(fixture: &Fixture, count: usize, numbers: &mut Numbers) -> (Vec<Sge>, Vec<usize>) {
    let (mut sges, mut places) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let len = 1 + numbers.below(700);
        let at = numbers.below(POOL - len);
        sges.push(fixture.pool.sge(at, len));
        places.extend(at..at + len);
    }
    (sges, places)
}

/// Of every number of pieces that a request carries, at any address and of any length, each byte is where it should be, for reads and
/// for writes of the peer, from any byte on.
// contract: reg-range
#[test]
fn pieces_are_one_range_for_the_peer() {
    let mut fixture = Fixture::new();
    let mut numbers = Numbers(1);
    for count in 1..=52 {
        let (sges, places) = pieces(&fixture, count, &mut numbers);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let zero_based = if count % 2 == 0 { Access::ZERO_BASED } else { Access::empty() };
        let region = fixture.register(&sges, count as u8, access | zero_based);
        assert_eq!((region.rkey().get() as u8, region.len()), (count as u8, places.len() as u64));
        let base = if count % 2 == 0 { 0 } else { sges[0].addr };
        assert_eq!(region.remote(0), Remote { addr: base, rkey: region.rkey() });
        let from = numbers.below(places.len());
        let len = 1 + numbers.below((places.len() - from).min(POOL));
        assert_eq!(fixture.read(region.remote(from as u64), len), WcStatus::Success);
        let pool = fixture.pool.buffer.read(0, POOL);
        let expected: Vec<u8> = places[from..from + len].iter().map(|place| pool[*place]).collect();
        assert_eq!(fixture.here.buffer.read(0, len), expected, "{count} pieces, {len} bytes from {from}");

        let bytes = pattern(count as u64, len);
        fixture.here.buffer.write(0, &bytes);
        assert_eq!(fixture.write(region.remote(from as u64), len), WcStatus::Success);
        let mut expected = pool;
        for (byte, place) in bytes.iter().zip(&places[from..]) {
            expected[*place] = *byte;
        }
        // Where pieces overlap, the later one is written last.
        assert!(fixture.pool.buffer.read(0, POOL) == expected, "{count} pieces: bytes of the pool");
        fixture.invalidate(region.rkey());
    }
    fixture.pair.assert_no_findings();
}

// contract: reg-range-enforced
#[test]
fn nothing_but_the_pieces_is_open_and_only_with_their_rights() {
    let mut fixture = Fixture::new();
    let sges = [fixture.pool.sge(100, 10), fixture.pool.sge(9000, 10)];
    let region = fixture.register(&sges, 1, Access::REMOTE_WRITE);
    assert_eq!(fixture.write(region.remote(0), 20), WcStatus::Success);
    let before = fixture.pool.buffer.read(0, POOL);
    for (remote, len) in [(region.remote(1), 20), (region.remote(20), 1), (region.remote(u64::MAX), 1)] {
        assert_eq!(fixture.write(remote, len), WcStatus::RemAccessErr);
        fixture.reconnect();
    }
    assert_eq!(fixture.read(region.remote(0), 1), WcStatus::RemAccessErr, "reading was not registered");
    fixture.reconnect();
    assert_eq!(
        fixture.write(Remote { rkey: Rkey::new(region.rkey().get() ^ 2), ..region.remote(0) }, 1),
        WcStatus::RemAccessErr
    );
    fixture.reconnect();
    assert_eq!(fixture.pool.buffer.read(0, POOL), before);
    fixture.invalidate(region.rkey());
    // An atomic whose eight bytes are one piece.
    let sges = [fixture.pool.sge(4096, 8), fixture.pool.sge(4096 + 64, 8)];
    let region = fixture.register(&sges, 2, Access::REMOTE_ATOMIC | Access::ZERO_BASED);
    fixture.pool.buffer.write(4096 + 64, &7_u64.to_le_bytes());
    let op = SendOp::FetchAdd { sge: fixture.here.sge(0, 8), remote: region.remote(8), add: 5 };
    assert_eq!(fixture.request(op), WcStatus::Success);
    assert_eq!(fixture.pool.buffer.read(4096 + 64, 8), 12_u64.to_le_bytes());
    // Another domain's queue pair.
    let foreign_b = bareverbs_tests::end(&mut fixture.pair.b, true);
    let foreign_a = bareverbs_tests::end(&mut fixture.pair.a, true);
    fixture.pair.connect(&foreign_a, &foreign_b, &Connection::default());
    let here = fixture.pair.a.region(foreign_a.pd, 8, ALL);
    let op = SendOp::FetchAdd { sge: here.sge(0, 8), remote: region.remote(8), add: 5 };
    fixture.pair.a.verbs.post_send(foreign_a.qp, &signaled(1, op)).unwrap();
    assert_eq!(fixture.pair.a.completions(foreign_a.cq, 1)[0].status, WcStatus::RemAccessErr);
    fixture.pair.assert_no_findings();
}

/// More bytes in more places than a request may have SGEs, by one SGE: gathered by a send, scattered by a read and by a receive.
// contract: reg-local
#[test]
fn an_sge_names_all_pieces() {
    let mut fixture = Fixture::new();
    let mut numbers = Numbers(2);
    let (sges, places) = pieces(&fixture, 40, &mut numbers);
    let len = places.len().min(POOL);
    // In one batch: what follows a registration on its queue may use it.
    let reg = FastReg { flags: SendFlags::empty(), ..request(&sges, 3, Access::LOCAL_WRITE) };
    let remote = fixture.here.remote(0);
    let mut batch = fixture.pair.b.verbs.send_batch(fixture.b.qp);
    let region = batch.post_reg_mr(fixture.mr, &reg).unwrap();
    assert_eq!(region.lkey().get(), region.rkey().get());
    batch.post(&signaled(8, SendOp::Write { payload: Payload::Sges(&[region.sge(0, len as u32)]), remote })).unwrap();
    drop(batch);
    let done = fixture.pair.b.completions(fixture.b.cq, 2);
    assert_eq!(
        done.iter().map(|done| (done.opcode, done.status)).collect::<Vec<_>>(),
        [(WcOpcode::RegMr, WcStatus::Success), (WcOpcode::RdmaWrite, WcStatus::Success)]
    );
    let pool = fixture.pool.buffer.read(0, POOL);
    let gathered: Vec<u8> = places[..len].iter().map(|place| pool[*place]).collect();
    assert_eq!(fixture.here.buffer.read(0, len), gathered);

    let mut expected = pool;
    let mut scatter = |from: usize, bytes: &[u8]| {
        for (byte, place) in bytes.iter().zip(&places[from..]) {
            expected[*place] = *byte;
        }
        expected.clone()
    };
    let bytes = pattern(3, len);
    fixture.here.buffer.write(0, &bytes);
    let op = SendOp::Read { sges: &[region.sge(0, len as u32)], remote };
    fixture.pair.b.verbs.post_send(fixture.b.qp, &signaled(9, op)).unwrap();
    assert_eq!(fixture.pair.b.completions(fixture.b.cq, 1)[0].status, WcStatus::Success);
    assert!(fixture.pool.buffer.read(0, POOL) == scatter(0, &bytes));
    fixture.pair.b.verbs.post_recv(fixture.b.qp, &RecvWr { wr_id: 4, sges: &[region.sge(50, 200)] }).unwrap();
    let message = pattern(4, 200);
    fixture.here.buffer.write(0, &message);
    let sge = [fixture.here.sge(0, 200)];
    assert_eq!(fixture.request(SendOp::Send { payload: Payload::Sges(&sge) }), WcStatus::Success);
    assert_eq!(fixture.pair.b.completions(fixture.b.cq, 1)[0].wr_id, 4);
    assert!(fixture.pool.buffer.read(0, POOL) == scatter(50, &message));

    // Checked as every SGE: range, rights, key.
    let post = |fixture: &mut Fixture, op: SendOp<'_>| fixture.pair.b.verbs.post_send(fixture.b.qp, &signaled(1, op));
    let beyond = [region.sge(1, places.len() as u32)];
    refused!(post(&mut fixture, SendOp::Write { payload: Payload::Sges(&beyond), remote }), Erange, PostSendError::Sge { .. });
    fixture.invalidate(region.rkey());
    let read_only = fixture.register(&sges[..1], 4, Access::empty());
    let into = [read_only.sge(0, 1)];
    refused!(post(&mut fixture, SendOp::Read { sges: &into, remote }), Eacces, PostSendError::Sge { .. });
    let old = [region.sge(0, 1)];
    refused!(post(&mut fixture, SendOp::Write { payload: Payload::Sges(&old), remote }), Einval, PostSendError::Sge { .. });
    // One that is invalidated is the device's to refuse.
    fixture.invalidate(read_only.rkey());
    post(&mut fixture, SendOp::Write { payload: Payload::Sges(&into), remote }).unwrap();
    assert_eq!(fixture.pair.b.completions(fixture.b.cq, 1)[0].status, WcStatus::LocProtErr);
    fixture.pair.assert_no_findings();
}

// contract: reg-invalidate
#[test]
fn it_ends_by_an_invalidation_of_either_side() {
    let mut fixture = Fixture::new();
    let sges = [fixture.pool.sge(1, 100), fixture.pool.sge(8000, 100)];
    let inbox = fixture.pair.b.region(fixture.b.pd, 64, ALL);
    // The low byte goes round, and each key is closed before the next one opens.
    for tag in 0..=255_u8 {
        let region = fixture.register(&sges, tag, Access::REMOTE_WRITE | Access::REMOTE_READ);
        assert_eq!(fixture.write(region.remote(0), 200), WcStatus::Success);
        let held = fixture.pair.b.verbs.dereg_mr_raw(fixture.pool.mr);
        refused!(held, Ebusy, DeregMrError::Busy { bindings: 1 });
        let again = fixture.post(&request(&sges, tag.wrapping_add(1), Access::REMOTE_READ));
        refused!(again, Ebusy, FastRegError::Registered { .. });
        if tag % 2 == 0 {
            fixture.invalidate(region.rkey());
        } else {
            fixture.pair.b.verbs.post_recv(fixture.b.qp, &RecvWr { wr_id: 3, sges: &[inbox.sge(0, 64)] }).unwrap();
            let sge = [fixture.here.sge(0, 64)];
            let op = SendOp::SendWithInv { payload: Payload::Sges(&sge), rkey: region.rkey() };
            assert_eq!(fixture.request(op), WcStatus::Success);
            // Until this is polled, nobody knows here.
            refused!(fixture.post(&request(&sges, 9, Access::REMOTE_READ)), Ebusy, FastRegError::Registered { .. });
            assert_eq!(fixture.pair.b.completions(fixture.b.cq, 1)[0].data, WcData::Invalidated(region.rkey()));
        }
        assert_eq!(fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap().registered, None);
        if tag % 50 == 0 || tag == 255 {
            fixture.closed(region.remote(0));
        }
    }
    // An invalidation and the next registration without a wait between them.
    let first = fixture.register(&sges[..1], 1, Access::REMOTE_WRITE);
    let other = [fixture.pool.sge(4000, 200)];
    let mut batch = fixture.pair.b.verbs.send_batch(fixture.b.qp);
    batch.post(&SendWr::local_inv(first.rkey())).unwrap();
    let same = batch.post_reg_mr(fixture.mr, &request(&other, 1, Access::REMOTE_WRITE));
    refused!(same, Ebusy, FastRegError::KeyInUse { .. });
    let second = batch.post_reg_mr(fixture.mr, &request(&other, 2, Access::REMOTE_WRITE)).unwrap();
    drop(batch);
    assert_eq!(fixture.pair.b.completions(fixture.b.cq, 2)[1].status, WcStatus::Success);
    assert_eq!(fixture.write(second.remote(0), 200), WcStatus::Success);
    fixture.closed(first.remote(0));
    fixture.invalidate(second.rkey());
    fixture.pair.b.verbs.dereg_mr_raw(fixture.pool.mr).unwrap();
    fixture.pair.assert_no_findings();
}

// contract: reg-refused
#[test]
fn what_is_wrong_is_named_and_nothing_happens() {
    let mut fixture = Fixture::new();
    let whole = [fixture.pool.sge(0, 8)];
    let (none, write) = (Access::empty(), Access::REMOTE_WRITE);
    let pd = fixture.pair.b.verbs.alloc_pd().unwrap();
    let theirs = fixture.pair.b.region(pd, 64, ALL);
    let unbindable = fixture.pair.b.region(fixture.b.pd, 64, Access::LOCAL_WRITE);
    let read_only = fixture.pair.b.region(fixture.b.pd, 64, Access::MW_BIND);
    let other = fixture.pair.b.region(fixture.b.pd, 64, ALL);
    let foreign = fixture.pair.b.verbs.alloc_fast_mr(pd, 1).unwrap();
    let few = fixture.pair.b.verbs.alloc_fast_mr(fixture.b.pd, 1).unwrap();
    let before = fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap();
    let post = |fixture: &mut Fixture, reg: &FastReg<'_>| fixture.post(reg);
    let flags = FastReg { flags: SendFlags::SOLICITED, ..request(&whole, 1, none) };
    refused!(post(&mut fixture, &flags), Einval, FastRegError::Flags { .. });
    refused!(post(&mut fixture, &request(&whole, 1, Access::MW_BIND)), Einval, FastRegError::AccessFlags { .. });
    refused!(post(&mut fixture, &request(&[], 1, none)), Einval, FastRegError::SgeCount { count: 0, max: 52 });
    refused!(post(&mut fixture, &request(&[whole[0]; 53], 1, none)), Einval, FastRegError::SgeCount { count: 53, .. });
    let unknown = Sge { lkey: bareverbs::Lkey::new(0x7777_7701), ..whole[0] };
    refused!(post(&mut fixture, &request(&[unknown], 1, none)), Einval, FastRegError::UnknownKey { .. });
    refused!(post(&mut fixture, &request(&[theirs.sge(0, 8)], 1, none)), Eperm, FastRegError::Domain);
    refused!(post(&mut fixture, &request(&[unbindable.sge(0, 8)], 1, none)), Eacces, FastRegError::NoBindRight);
    refused!(post(&mut fixture, &request(&[read_only.sge(0, 8)], 1, write)), Eacces, FastRegError::NoLocalWrite);
    let mixed = [whole[0], other.sge(0, 8)];
    refused!(post(&mut fixture, &request(&mixed, 1, none)), Einval, FastRegError::OtherRegion { index: 1 });
    let empty = [whole[0], Sge { length: 0, ..whole[0] }];
    refused!(post(&mut fixture, &request(&empty, 1, none)), Einval, FastRegError::Length { index: 1, .. });
    let beyond = [whole[0], fixture.pool.sge(POOL - 7, 8)];
    refused!(post(&mut fixture, &request(&beyond, 1, none)), Erange, FastRegError::Range { index: 1, .. });
    let mut batch = fixture.pair.b.verbs.send_batch(fixture.b.qp);
    refused!(batch.post_reg_mr(foreign, &request(&whole, 1, none)), Eperm, FastRegError::Domain);
    refused!(batch.post_reg_mr(few, &request(&[whole[0]; 2], 1, none)), Einval, FastRegError::SgeCount { count: 2, max: 1 });
    drop(batch);
    // On no other device and no other transport; a registration is no region for another.
    let mut batch = fixture.pair.a.verbs.send_batch(fixture.a.qp);
    refused!(batch.post_reg_mr(fixture.mr, &request(&whole, 1, none)), Einval, FastRegError::Stale);
    drop(batch);
    let ud = end_in(&mut fixture.pair.b, fixture.b.pd, QpType::Ud, CAP, true);
    let refusal = fixture.pair.b.verbs.send_batch(ud.qp).post_reg_mr(fixture.mr, &request(&whole, 1, none));
    refused!(refusal, Einval, FastRegError::Transport { qp_type: QpType::Ud });
    let idle = end_in(&mut fixture.pair.b, fixture.b.pd, QpType::Rc, CAP, true);
    let refusal = fixture.pair.b.verbs.send_batch(idle.qp).post_reg_mr(fixture.mr, &request(&whole, 1, none));
    refused!(refusal, Enotconn, FastRegError::NotReady { state: QpState::Reset });
    let region = fixture.register(&whole, 1, Access::LOCAL_WRITE);
    let over = fixture.pair.b.verbs.send_batch(fixture.b.qp).post_reg_mr(few, &request(&[region.sge(0, 1)], 1, none));
    refused!(over, Eacces, FastRegError::NoBindRight);
    fixture.invalidate(region.rkey());
    assert_eq!(fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap().registered, before.registered);

    // A full queue, and the queue pair on which requests about it are in flight.
    fixture.state(QpState::Sqd);
    let list = [whole[0]; 52];
    let mut posted = 0_u32;
    let error = loop {
        let reg = fixture.post(&request(&list, posted as u8 + 2, Access::REMOTE_READ));
        match reg {
            Ok(region) => {
                posted += 1;
                // An unfinished invalidation makes it free for the next.
                match fixture.pair.b.verbs.post_send(fixture.b.qp, &SendWr::local_inv(region.rkey())) {
                    Ok(()) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Err(error) => break error,
        }
    };
    assert!(posted >= 2, "{posted}");
    refused!(Err::<(), _>(error), Enomem, FastRegError::TooManyPending);
    let b2 = end_in(&mut fixture.pair.b, fixture.b.pd, QpType::Rc, CAP, true);
    let a2 = end_in(&mut fixture.pair.a, fixture.a.pd, QpType::Rc, CAP, true);
    fixture.pair.connect(&a2, &b2, &Connection::default());
    let elsewhere = fixture.pair.b.verbs.send_batch(b2.qp).post_reg_mr(fixture.mr, &request(&whole, 100, none));
    refused!(elsewhere, Ebusy, FastRegError::OtherQueuePair { .. });
    fixture.pair.assert_no_findings();
}

// contract: reg-queue-full
#[test]
fn a_registration_takes_the_blocks_of_its_pieces() {
    let mut fixture = Fixture::new();
    fixture.state(QpState::Sqd);
    let list: Vec<Sge> = (0..52).map(|n| fixture.pool.sge(n, 1)).collect();
    let sge = [fixture.here.sge(0, 1)];
    let fill = SendOp::Write { payload: Payload::Sges(&[fixture.pool.sge(0, 1)]), remote: fixture.here.remote(0) };
    let _ = sge;
    while fixture.pair.b.verbs.send_batch(fixture.b.qp).free_blocks() > 14 {
        fixture.pair.b.verbs.post_send(fixture.b.qp, &SendWr { wr_id: 1, flags: SendFlags::empty(), op: fill }).unwrap();
    }
    let full = fixture.post(&request(&list, 1, Access::REMOTE_READ));
    refused!(full, Enospc, FastRegError::QueueFull { needed: 15, free: 14, .. });
    fixture.post(&request(&list[..48], 1, Access::REMOTE_READ)).unwrap();
    assert_eq!(fixture.pair.b.verbs.send_batch(fixture.b.qp).free_blocks(), 0);
}

// contract: reg-failure
#[test]
fn a_request_that_fails_leaves_everything_as_it_was() {
    let mut fixture = Fixture::new();
    let sges = [fixture.pool.sge(10, 100), fixture.pool.sge(9000, 100)];
    let free = fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap();
    // Accepted while the queue is drained, flushed when it breaks.
    fixture.state(QpState::Sqd);
    let never = fixture.post(&request(&sges, 0x51, Access::REMOTE_WRITE)).unwrap();
    refused!(fixture.pair.b.verbs.dereg_mr_raw(fixture.pool.mr), Ebusy, DeregMrError::Busy { bindings: 1 });
    refused!(fixture.pair.b.verbs.dealloc_fast_mr(fixture.mr), Ebusy, DeallocMwError::Busy { binds: 1 });
    fixture.state(QpState::Err);
    let done = fixture.pair.b.completions(fixture.b.cq, 1)[0];
    assert_eq!((done.opcode, done.status), (WcOpcode::RegMr, WcStatus::WrFlushErr));
    assert_eq!(fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap(), free, "free, with its old key");
    fixture.reconnect();
    fixture.closed(never.remote(0));

    // An invalidation that is flushed: it is registered as before, and the device agrees.
    let region = fixture.register(&sges, 0x52, Access::REMOTE_WRITE);
    let registered = fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap();
    fixture.state(QpState::Sqd);
    fixture.pair.b.verbs.post_send(fixture.b.qp, &SendWr::local_inv(region.rkey())).unwrap();
    fixture.state(QpState::Err);
    assert_eq!(fixture.pair.b.completions(fixture.b.cq, 1)[0].status, WcStatus::WrFlushErr);
    assert_eq!(fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap(), registered);
    fixture.reconnect();
    assert_eq!(fixture.write(region.remote(0), 200), WcStatus::Success);
    refused!(fixture.pair.b.verbs.dereg_mr_raw(fixture.pool.mr), Ebusy, DeregMrError::Busy { bindings: 1 });

    // A second request of the same key that the device refuses: it names an invalid registration.
    fixture.invalidate(region.rkey());
    fixture.state(QpState::Sqd);
    let dropped = fixture.post(&request(&sges, 0x53, Access::REMOTE_WRITE)).unwrap();
    // A RESET drops what the device did not do.
    fixture.reconnect();
    assert_eq!(fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap().registered, None);
    fixture.closed(dropped.remote(0));
    // And keeps what it did, of which the completion was not polled.
    let kept = fixture.post(&request(&sges, 0x54, Access::REMOTE_WRITE)).unwrap();
    let deadline = std::time::Instant::now() + core::time::Duration::from_secs(60);
    let index = kept.rkey();
    while fixture.write(kept.remote(0), 1) != WcStatus::Success {
        assert!(std::time::Instant::now() < deadline, "{index:?}");
        fixture.reconnect();
    }
    fixture.reconnect();
    let registered = fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap();
    assert_eq!((registered.rkey, registered.registered.map(|of| of.length)), (kept.rkey(), Some(200)));
    assert_eq!(fixture.write(kept.remote(0), 200), WcStatus::Success);
    fixture.pair.assert_no_findings();
}

/// What drops the completion that tells of an invalidation.
#[derive(Clone, Copy, Debug)]
enum Drops {
    Reset,
    QueuePair,
    CompletionQueue,
}

/// The peer's invalidation ends a registration in the device. That the completion of the receive is dropped does not bring it back.
// contract: reg-invalidation-dropped
#[test]
fn an_invalidation_is_learned_though_its_completion_is_dropped() {
    for drops in [Drops::Reset, Drops::QueuePair, Drops::CompletionQueue] {
        let mut fixture = Fixture::new();
        let sges = [fixture.pool.sge(10, 100), fixture.pool.sge(9000, 100)];
        let inbox = fixture.pair.b.region(fixture.b.pd, 64, Access::LOCAL_WRITE);
        let region = fixture.register(&sges, 1, Access::REMOTE_WRITE);
        fixture.pair.b.verbs.post_recv(fixture.b.qp, &RecvWr { wr_id: 2, sges: &[inbox.sge(0, 64)] }).unwrap();
        let op = SendOp::SendWithInv { payload: Payload::Inline(b"bye"), rkey: region.rkey() };
        assert_eq!(fixture.request(op), WcStatus::Success);
        refused!(fixture.pair.b.verbs.dereg_mr_raw(fixture.pool.mr), Ebusy, DeregMrError::Busy { bindings: 1 });
        let old = fixture.b;
        match drops {
            Drops::Reset => fixture.reconnect(),
            Drops::QueuePair | Drops::CompletionQueue => {
                let pd = old.pd;
                fixture.b = end_in(&mut fixture.pair.b, pd, QpType::Rc, CAP, true);
                let a = fixture.a;
                fixture.pair.b.verbs.destroy_qp(old.qp).unwrap();
                if matches!(drops, Drops::QueuePair) {
                    assert_eq!(fixture.pair.b.poll(old.cq), [], "none is given");
                } else {
                    fixture.pair.b.verbs.destroy_cq(old.cq).unwrap();
                }
                let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
                fixture.pair.a.verbs.modify_qp(a.qp, &reset, QpAttrMask::STATE).unwrap();
                let b = fixture.b;
                fixture.pair.connect(&a, &b, &Connection::default());
            }
        }
        assert_eq!(fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap().registered, None, "{drops:?}");
        fixture.closed(region.remote(0));
        let again = fixture.register(&sges, 2, Access::REMOTE_WRITE);
        assert_eq!(fixture.write(again.remote(0), 200), WcStatus::Success, "{drops:?}");
        fixture.invalidate(again.rkey());
        fixture.pair.b.verbs.dereg_mr_raw(fixture.pool.mr).unwrap();
        fixture.pair.assert_no_findings();
    }
}

/// The peer ends a registration by another queue pair than the one that made it, and neither completion is polled before that one is reset. The
/// completion of the invalidation comes when the same key is registered anew: it is not about that.
#[test]
fn a_late_invalidation_ends_no_later_registration_with_the_same_key() {
    let mut fixture = Fixture::new();
    let maker = end_in(&mut fixture.pair.b, fixture.b.pd, QpType::Rc, CAP, true);
    let peer = end_in(&mut fixture.pair.a, fixture.a.pd, QpType::Rc, CAP, true);
    fixture.pair.connect(&peer, &maker, &Connection::default());
    let sges = [fixture.pool.sge(0, 64)];
    let reg = request(&sges, 1, Access::REMOTE_WRITE);
    let first = fixture.pair.b.verbs.send_batch(maker.qp).post_reg_mr(fixture.mr, &reg).unwrap();
    fixture.pair.b.verbs.post_recv(fixture.b.qp, &RecvWr { wr_id: 2, sges: &[] }).unwrap();
    let payload = Payload::Inline(&[]);
    assert_eq!(fixture.request(SendOp::SendWithInv { payload, rkey: first.rkey() }), WcStatus::Success);
    let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    fixture.pair.b.verbs.modify_qp(maker.qp, &reset, QpAttrMask::STATE).unwrap();
    assert_eq!(fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap().registered, None);
    let again = fixture.post(&reg).unwrap();
    assert_eq!(again.rkey(), first.rkey());
    let done = fixture.pair.b.completions(fixture.b.cq, 2);
    assert!(done.iter().any(|done| done.data == WcData::Invalidated(first.rkey())), "{done:?}");
    assert!(fixture.pair.b.verbs.fast_mr_info(fixture.mr).unwrap().registered.is_some());
    assert_eq!(fixture.write(again.remote(0), 8), WcStatus::Success);
    let pool = fixture.pool.mr;
    assert_eq!(fixture.pair.b.verbs.dereg_mr_raw(pool), Err(DeregMrError::Busy { bindings: 1 }));
    fixture.invalidate(again.rkey());
    fixture.pair.b.verbs.dereg_mr_raw(pool).unwrap();
}

// contract: fast-mr-alloc, fast-mr-dealloc
#[test]
fn it_is_made_within_the_tables_and_ends_registered_or_not() {
    let mut fixture = Fixture::new();
    let verbs = &mut fixture.pair.b.verbs;
    refused!(verbs.alloc_fast_mr(fixture.b.pd, 0), Einval, AllocFastMrError::SgeCount { count: 0 });
    refused!(verbs.alloc_fast_mr(fixture.b.pd, 1 << 16), Einval, AllocFastMrError::SgeCount { .. });
    assert!(matches!(verbs.alloc_fast_mr(fixture.b.pd, 53), Err(AllocFastMrError::Device(_))), "a request carries 52 pieces");
    let more: Vec<FastMr> = std::iter::from_fn(|| verbs.alloc_fast_mr(fixture.b.pd, 4).ok()).collect();
    refused!(
        verbs.alloc_fast_mr(fixture.b.pd, 4),
        Enomem,
        AllocFastMrError::RegionsFull { .. } | AllocFastMrError::WindowsFull { .. }
    );
    assert!(!more.is_empty());
    for mr in more {
        verbs.dealloc_fast_mr(mr).unwrap();
        refused!(verbs.dealloc_fast_mr(mr), Einval, DeallocMwError::Stale);
        assert!(verbs.fast_mr_info(mr).is_err());
    }
    // Their places are others' now: no region is found by their keys.
    let sges = [fixture.pool.sge(0, 64), fixture.pool.sge(5000, 64)];
    let region = fixture.register(&sges, 7, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    assert_eq!(fixture.write(region.remote(0), 128), WcStatus::Success);
    fixture.pair.b.verbs.dealloc_fast_mr(fixture.mr).unwrap();
    let own = [region.sge(0, 1)];
    let op = SendOp::Write { payload: Payload::Sges(&own), remote: fixture.here.remote(0) };
    let gone = fixture.pair.b.verbs.post_send(fixture.b.qp, &signaled(1, op));
    refused!(gone, Einval, PostSendError::Sge { .. });
    refused!(fixture.post(&request(&sges, 8, Access::empty())), Einval, FastRegError::Stale);
    fixture.closed(region.remote(0));
    fixture.pair.b.verbs.dereg_mr_raw(fixture.pool.mr).unwrap();
    fixture.pair.assert_no_findings();
}
