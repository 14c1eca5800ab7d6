//! The verbs on a backend that records what it is told and completes what the test says.

mod bind;
mod mock;
mod model;
mod objects;
mod poll;
mod post;
mod states;

use std::vec;
use std::vec::Vec;

use self::mock::{Mock, MockError};
use crate::{
    Access, AddressVector, Completion, CqHandle, MrHandle, MwHandle, MwType, OffsetMap, PdHandle, PollCqError, Psn, QpAttr,
    QpAttrMask, QpCap, QpHandle, QpInit, QpState, QpType, Qpn, RawCompletion, RawKind, Sge, Verbs, WcData, WcOpcode, WcStatus,
};

/// The verbs of the tests: two of each, but four regions.
type TestVerbs = Verbs<Mock, 2, 4, 2, 2, 2, 16, 8>;

/// First byte and length of the region that every rig has.
const BASE: u64 = 0x1_0000;
const LENGTH: u64 = 0x4000;

/// Verbs with one domain, one region with every right, one completion queue and one queue pair that sends.
struct Rig {
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

const CAP: QpCap = QpCap { max_send_wr: 16, max_recv_wr: 8, max_send_sge: 4, max_recv_sge: 2, max_inline_data: 128 };

impl Rig {
    fn new() -> Self {
        Self::with(QpType::Rc, false)
    }

    fn with(qp_type: QpType, sq_sig_all: bool) -> Self {
        let mut verbs = TestVerbs::new(Mock::new());
        let pd = verbs.alloc_pd().unwrap();
        let mr = verbs.reg_mr(pd, BASE, LENGTH, ALL_RIGHTS, &OffsetMap::default()).unwrap();
        let cq = verbs.create_cq(64).unwrap();
        let init = QpInit { pd, qp_type, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all };
        let qp = verbs.create_qp(&init).unwrap();
        let mut rig = Self { verbs, pd, mr, cq, qp };
        rig.connect(qp);
        rig
    }

    fn init(&self, qp_type: QpType) -> QpInit {
        QpInit { pd: self.pd, qp_type, send_cq: self.cq, recv_cq: self.cq, cap: CAP, sq_sig_all: false }
    }

    /// RESET to RTS.
    fn connect(&mut self, qp: QpHandle) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.step(qp, to);
        }
    }

    /// One transition, with the attributes that it needs.
    fn step(&mut self, qp: QpHandle, to: QpState) {
        let info = self.verbs.qp(qp).unwrap();
        let rule = crate::transition::rule(info.qp_type, info.state, to).unwrap();
        self.verbs.modify_qp(qp, &attributes(to), rule.required | QpAttrMask::STATE).unwrap();
    }

    fn lkey(&self) -> crate::Lkey {
        self.verbs.mr(self.mr).unwrap().lkey
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.lkey() }
    }

    fn qpn(&self) -> Qpn {
        self.verbs.qp(self.qp).unwrap().qpn
    }

    fn window(&mut self, kind: MwType) -> MwHandle {
        self.verbs.alloc_mw(self.pd, kind).unwrap()
    }

    /// The device completes the send at block `index`.
    fn complete(&mut self, index: u16, status: WcStatus) {
        let raw = self.raw(RawKind::Send, index, status);
        self.push(raw);
    }

    fn raw(&self, kind: RawKind, index: u16, status: WcStatus) -> RawCompletion {
        let cookie = self.verbs.provider().cookie(self.qpn());
        RawCompletion { qpn: self.qpn(), cookie, kind, index, status, vendor_err: 0, byte_len: 0, data: WcData::None }
    }

    fn push(&mut self, raw: RawCompletion) {
        let cqn = self.verbs.cq(self.cq).unwrap().cqn;
        self.verbs.provider_mut().complete(cqn, raw);
    }

    /// Everything that one poll of up to eight gives.
    fn poll(&mut self) -> Result<Vec<Completion>, PollCqError<MockError>> {
        let mut out = [blank(self.qp); 8];
        let count = self.verbs.poll_cq(self.cq, &mut out)?;
        Ok(out[..count].to_vec())
    }

    fn poll_ids(&mut self) -> Vec<u64> {
        self.poll().unwrap().iter().map(|completion| completion.wr_id).collect()
    }
}

/// A place for a completion.
fn blank(qp: QpHandle) -> Completion {
    Completion {
        wr_id: 0,
        qp,
        qpn: Qpn::new(0),
        opcode: WcOpcode::Send,
        status: WcStatus::Success,
        vendor_err: 0,
        byte_len: 0,
        data: WcData::None,
    }
}

/// Values that fit every transition.
fn attributes(to: QpState) -> QpAttr {
    QpAttr {
        state: to,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        port_num: 1,
        av: AddressVector { port_num: 1, ..AddressVector::default() },
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        rq_psn: Psn::new(1),
        sq_psn: Psn::new(2),
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        dest_qpn: Qpn::new(0x77),
        ..QpAttr::default()
    }
}

#[test]
fn a_rig_sends_and_completes() {
    let mut rig = Rig::new();
    let sge = [rig.sge(0, 8)];
    let wr = post::send(7, &sge);
    rig.verbs.post_send(rig.qp, &wr).unwrap();
    rig.complete(0, WcStatus::Success);
    assert_eq!(rig.poll_ids(), vec![7]);
}
