//! The verbs on a device that records its calls and does what the test says.

mod bind;
#[cfg(feature = "alloc")]
mod boxed_storage;
mod claims;
mod datagrams;
mod drain;
mod draining;
mod events;
mod fast_mr;
mod loss;
mod mock;
mod model;
mod objects;
mod owned;
mod poll;
mod port;
mod post;
mod region;
mod reset;
mod resize_cq;
mod rings;
mod roce;
mod shared_receives;
mod spans;
mod states;
mod texts;
#[cfg(any(feature = "log", feature = "multicore"))]
mod unwinding;
mod window_programs;
mod xrc;

use std::boxed::Box;
use std::sync::MutexGuard;
use std::vec;
use std::vec::Vec;

use self::mock::{Device, Mock, MockError};
use crate::backend::RawCompletion;
use crate::error::{PollCqError, RawKind, RegMrError};
use crate::kept_verbs::KeptVerbs;
use crate::platform::OffsetMap;
#[cfg(feature = "alloc")]
use crate::storage::{BoxedQpRings, BoxedStorage, Capacities, RingSizes};
use crate::sync::Ordering;
use crate::{
    Access, AddressVector, Completion, CqHandle, Lid, MrHandle, MwHandle, MwType, PdHandle, Psn, Qkey, QpAttr, QpAttrMask,
    QpCap, QpHandle, QpInit, QpState, QpType, Qpn, Sge, Verbs, WcStatus,
};
#[cfg(not(feature = "alloc"))]
use crate::{storage, storage::QpRings};

/// The verbs of the tests: two of each, but four regions.
type TestVerbs = KeptVerbs<Mock>;

/// First byte and length of the region that every harness has.
const BASE: u64 = 0x1_0000;
const LENGTH: u64 = 0x4000;

/// Verbs with one domain, one region with every right, one completion queue and one queue pair that sends.
struct Harness {
    verbs: TestVerbs,
    pd: PdHandle,
    mr: MrHandle,
    cq: CqHandle,
    qp: QpHandle,
}

const ALL_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Five requests of three blocks each take a ring of 16 blocks.
const CAP: QpCap = QpCap { max_send_wr: 5, max_recv_wr: 8, max_send_sge: 4, max_recv_sge: 2, max_inline_data: 128 };

/// Creates the verbs on a device, in leaked memory.
#[cfg(not(feature = "alloc"))]
fn verbs_on(mock: Mock) -> TestVerbs {
    let rings: &'static [QpRings<16, 8>; 2] = Box::leak(Box::new([const { QpRings::new() }; 2]));
    KeptVerbs::new(Verbs::new(
        mock,
        Box::leak(Box::new(<storage![Mock; pds: 2, mrs: 4, mws: 2, cqs: 2, qps: 2]>::new(QpRings::views(rings)))),
    ))
}

/// Creates the verbs on a device, in leaked memory, of sizes of run time: all of these tests hold for them too.
#[cfg(feature = "alloc")]
fn verbs_on(mock: Mock) -> TestVerbs {
    let sizes = RingSizes { send_blocks: 16, recv_entries: 8, ..RingSizes::default() };
    let rings: &'static [BoxedQpRings] = Vec::leak((0..2).map(|_| BoxedQpRings::new(&sizes)).collect());
    let capacities = Capacities { pds: 2, mrs: 4, mws: 2, cqs: 2 };
    let storage = BoxedStorage::new(&capacities, rings.iter().map(BoxedQpRings::view));
    KeptVerbs::new(Verbs::new(mock, Box::leak(Box::new(storage))))
}

/// What is wrong with so many bytes at `addr`, of a region of [`LENGTH`] bytes at [`BASE`].
const fn range(addr: u64, length: u32) -> crate::error::SgeFault {
    crate::error::SgeFault::Range { addr, length, start: BASE, size: LENGTH }
}

/// Registers a region for which there is no memory.
fn register(
    verbs: &mut TestVerbs,
    pd: PdHandle,
    addr: u64,
    length: u64,
    access: Access,
) -> Result<MrHandle, RegMrError<MockError>> {
    // SAFETY: the mock device reads and writes no memory.
    #[expect(unsafe_code, reason = "the numbers name no memory")]
    unsafe {
        verbs.reg_mr_raw(pd, addr, length, access, &OffsetMap::default())
    }
}

/// Puts a queue pair into a state that the device does not know of.
fn set_state(verbs: &TestVerbs, qp: QpHandle, state: QpState) {
    verbs.shared.qps[usize::from(qp.index())].set_state(state);
}

/// Sets the counters of a queue pair without requests to `at`.
fn start_rings(verbs: &mut TestVerbs, qp: QpHandle, at: u32) {
    let slot = &verbs.shared.qps[usize::from(qp.index())];
    slot.send.start_at(at);
    slot.recv.start_at(at);
    let send = verbs.send(qp);
    send.head.set(at);
    send.ring.start_at(at);
    let recv = verbs.recv(qp);
    recv.head = at;
    recv.ring.start_at(at);
}

impl Harness {
    fn new() -> Self {
        Self::with(QpType::Rc, false)
    }

    fn with(qp_type: QpType, sq_sig_all: bool) -> Self {
        let mut verbs = verbs_on(Mock::new());
        let pd = verbs.alloc_pd().unwrap();
        let mr = register(&mut verbs, pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
        let cq = verbs.create_cq(64).unwrap();
        let init = QpInit { pd, qp_type, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all };
        let qp = verbs.create_qp(&init).unwrap();
        let mut harness = Self { verbs, pd, mr, cq, qp };
        harness.connect(qp);
        harness
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.verbs.provider().lock()
    }

    fn init(&self, qp_type: QpType) -> QpInit {
        QpInit { pd: self.pd, qp_type, send_cq: self.cq, recv_cq: self.cq, cap: CAP, sq_sig_all: false }
    }

    /// Creates one more queue pair that sends, with a completion queue of its own.
    fn second(&mut self) -> (QpHandle, CqHandle) {
        let cq = self.verbs.create_cq(64).unwrap();
        let qp = self.verbs.create_qp(&QpInit { send_cq: cq, recv_cq: cq, ..self.init(QpType::Rc) }).unwrap();
        self.connect(qp);
        (qp, cq)
    }

    /// Registers one more region of the domain.
    fn region(&mut self, access: Access) -> MrHandle {
        register(&mut self.verbs, self.pd, BASE, LENGTH, access).unwrap()
    }

    /// Moves a queue pair from RESET to RTS.
    fn connect(&mut self, qp: QpHandle) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.step(qp, to);
        }
    }

    /// Does one transition, with the attributes that it requires.
    fn step(&mut self, qp: QpHandle, to: QpState) {
        let info = self.verbs.qp_info(qp).unwrap();
        let rule = crate::transition::rule(info.qp_type, info.state, to).unwrap();
        self.verbs.modify_qp(qp, &attributes(to), rule.required | QpAttrMask::STATE).unwrap();
    }

    fn lkey(&self) -> crate::Lkey {
        self.verbs.mr_info(self.mr).unwrap().lkey
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.lkey() }
    }

    fn qpn(&self) -> Qpn {
        self.verbs.qp_info(self.qp).unwrap().qpn
    }

    fn cqn(&self) -> crate::Cqn {
        self.verbs.cq_info(self.cq).unwrap().cqn
    }

    fn window(&mut self, kind: MwType) -> MwHandle {
        self.verbs.alloc_mw(self.pd, kind).unwrap()
    }

    /// Completes the send at block `index`, as the device does.
    fn complete(&mut self, index: u16, status: WcStatus) {
        let raw = self.raw(RawKind::Send, index, status);
        self.push(raw);
    }

    fn raw(&self, kind: RawKind, index: u16, status: WcStatus) -> RawCompletion {
        RawCompletion { status, ..mock::raw(self.qpn(), kind, u32::from(index)) }
    }

    fn push(&mut self, raw: RawCompletion) {
        let cqn = self.cqn();
        self.device().complete(cqn, raw);
    }

    /// Returns the completions of one poll, eight at most.
    fn poll(&mut self) -> Result<Vec<Completion>, PollCqError> {
        self.poll_of(self.cq)
    }

    fn poll_of(&mut self, cq: CqHandle) -> Result<Vec<Completion>, PollCqError> {
        let mut out = [Completion::EMPTY; 8];
        let count = self.verbs.poll_cq(cq, &mut out)?;
        Ok(out[..count].to_vec())
    }

    fn poll_ids(&mut self) -> Vec<u64> {
        self.poll().unwrap().iter().map(|completion| completion.wr_id).collect()
    }

    /// Binds in flight of the queue pair, as its slot counts them.
    fn binds(&self) -> u32 {
        self.verbs.shared.qps[usize::from(self.qp.index())].binds.load(Ordering::Relaxed)
    }
}

/// Values that fit every transition.
fn attributes(to: QpState) -> QpAttr {
    QpAttr {
        state: to,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        port_num: 1,
        av: AddressVector { dlid: Lid::new(0x11), port_num: 1, ..AddressVector::default() },
        alt_av: AddressVector { dlid: Lid::new(0x12), port_num: 1, ..AddressVector::default() },
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        rq_psn: Psn::new(1),
        sq_psn: Psn::new(2),
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        dest_qpn: Qpn::new(0x77),
        // That of any queue pair for datagrams, and the only one of QP1.
        qkey: Qkey::GENERAL_SERVICES,
        ..QpAttr::default()
    }
}

#[test]
fn a_send_completes() {
    let mut harness = Harness::new();
    let sge = [harness.sge(0, 8)];
    let wr = post::send(7, &sge);
    harness.verbs.post_send(harness.qp, &wr).unwrap();
    assert!(harness.device().execute(harness.qpn()));
    assert_eq!(harness.poll_ids(), vec![7]);
}
