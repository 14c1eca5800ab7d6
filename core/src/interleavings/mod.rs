//! Tests of the words that cores share, in every order that they may see. The model checker loom runs them:
//! `tests/scripts/loom`.
//!
//! The code that runs is the one that programs call: verbs, queues and the interrupt handler, on a small device ([`device`]).
//!
//! Loom has two limits. It does not let a load see a store that comes later in its execution, nor moves a load past a later
//! store of its thread. So it finds a store that was moved up, but not a store after loads that lacks release order. And it
//! compares a store with the last access of the word only. If a thread has loaded the word just before, loom does not try an
//! earlier load of another thread after the store. Where that matters, [`Between`] helps.

mod device;
mod draining;
mod loss;
mod regions;
mod rings;
mod shared_receives;
mod states;
mod waking;
mod windows;

use std::boxed::Box;

use self::device::Device;
use crate::error::{CreateQpError, ModifyQpError};
use crate::kept_verbs::KeptVerbs;
use crate::platform::OffsetMap;
use crate::storage::{QpRings, SendFacts};
use crate::sync::Ordering;
use crate::{
    Access, AddressVector, CqHandle, Lid, MrHandle, Payload, PdHandle, Psn, QpAttr, QpAttrMask, QpCap, QpHandle, QpInit,
    QpState, QpType, Qpn, SendFlags, SendOp, SendWr, Verbs, WcOpcode, storage,
};

/// Verbs with one region, one completion queue and one queue pair, which sends.
struct Harness {
    verbs: KeptVerbs<Device>,
    pd: PdHandle,
    mr: MrHandle,
    cq: CqHandle,
    qp: QpHandle,
    init: QpInit,
}

/// First byte and length of the region.
const BASE: u64 = 0x1_0000;
const LENGTH: u64 = 0x4000;

impl Harness {
    /// Creates the objects of a test; `carries`: see [`device`].
    fn new(carries: bool) -> Self {
        Self::of(QpType::Rc, carries)
    }

    fn of(qp_type: QpType, carries: bool) -> Self {
        // An execution of the model lives for milliseconds, and a queue on another thread for as long as it likes.
        let rings: &'static [QpRings<2, 2>; 1] = Box::leak(Box::new([const { QpRings::new() }]));
        // The model sees a word from its first store on.
        let view = rings[0].view();
        view.send.iter().for_each(|entry| entry.set(SendFacts { wr_id: 0, bytes: 0, blocks: 0, opcode: WcOpcode::Send }));
        view.recv.iter().for_each(|entry| entry.set(0));
        let storage =
            Box::leak(Box::new(<storage![Device; pds: 1, mrs: 1, mws: 2, cqs: 1, qps: 1]>::new(QpRings::views(rings))));
        let mut verbs = KeptVerbs::new(Verbs::new(Device::new(carries), storage));
        let pd = verbs.alloc_pd().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
        // SAFETY: the device reads and writes no memory.
        #[expect(unsafe_code, reason = "the numbers name no memory")]
        let mr = unsafe { verbs.reg_mr_raw(pd, BASE, LENGTH, access, &OffsetMap::default()) }.unwrap();
        let cq = verbs.create_cq(8).unwrap();
        let cap = QpCap { max_send_wr: 2, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let init = QpInit { pd, qp_type, send_cq: cq, recv_cq: cq, cap, sq_sig_all: false };
        let qp = verbs.create_qp(&init).unwrap();
        let mut harness = Self { verbs, pd, mr, cq, qp, init };
        harness.connect();
        harness
    }

    /// Moves the queue pair from RESET or INIT to RTS.
    fn connect(&mut self) {
        if self.verbs.qp_info(self.qp).unwrap().state == QpState::Reset {
            assert!(self.leaves_reset());
        }
        for state in [QpState::Rtr, QpState::Rts] {
            let info = self.verbs.qp_info(self.qp).unwrap();
            let rule = crate::transition::rule(info.qp_type, info.state, state).unwrap();
            self.verbs.modify_qp(self.qp, &attributes(state), rule.required | QpAttrMask::STATE).unwrap();
        }
    }

    /// Ends an execution in which somebody has waited: loom counts the wakers that are left.
    fn forget_waker(&self) {
        self.verbs.shared.cqs[0].wake();
    }

    fn reset(&mut self) {
        self.verbs.modify_qp(self.qp, &QpAttr::default(), QpAttrMask::STATE).unwrap();
    }

    /// Moves the queue pair from RESET to INIT; `false` if stale completions may still come.
    fn leaves_reset(&mut self) -> bool {
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
        match self.verbs.modify_qp(self.qp, &attributes(QpState::Init), mask) {
            Ok(()) => true,
            Err(ModifyQpError::Draining) => false,
            Err(error) => panic!("{error:?}"),
        }
    }

    fn destroy(&mut self) {
        self.verbs.destroy_qp(self.qp).unwrap();
    }

    /// Creates another queue pair in the same slot; `false` if completions of the last one may still come.
    fn create(&mut self) -> bool {
        match self.verbs.create_qp(&self.init) {
            Ok(qp) => {
                self.qp = qp;
                true
            }
            Err(CreateQpError::Draining) => false,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// A place between two steps of a thread where another may do its own, however the words that they share are accessed.
#[derive(Default)]
struct Between(loom::sync::atomic::AtomicUsize);

impl Between {
    /// Orders no other accesses.
    fn others_run(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Values that fit every transition.
fn attributes(state: QpState) -> QpAttr {
    let psn = Psn::new(1);
    let av = AddressVector { dlid: Lid::new(1), ..AddressVector::default() };
    QpAttr { state, port_num: 1, av, dest_qpn: Qpn::new(1), rq_psn: psn, sq_psn: psn, ..QpAttr::default() }
}

/// Returns a request without bytes.
const fn send(wr_id: u64) -> SendWr<'static> {
    SendWr { wr_id, flags: SendFlags::SIGNALED, op: SendOp::Send { payload: Payload::Sges(&[]) } }
}
