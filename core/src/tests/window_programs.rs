//! Random programs of windows: few keys, which come again, and completions that are polled late. The device says what became of memory.

use std::boxed::Box;
use std::vec::Vec;

use proptest::prelude::*;

use super::mock::Mock;
use super::{ALL_RIGHTS, BASE, CAP, LENGTH, attributes, register};
use crate::kept_verbs::KeptVerbs;
use crate::storage::QpRings;
use crate::{
    Access, Binding, Completion, CqHandle, KeyTag, MrHandle, MwHandle, MwType, PdHandle, QpAttr, QpAttrMask, QpHandle, QpInit,
    QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Verbs, storage,
};

const QPS: usize = 2;
const MRS: usize = 2;
const MWS: usize = 1;

#[derive(Clone, Debug)]
enum Op {
    Bind {
        qp: usize,
        window: usize,
        region: usize,
        tag: u8,
        signaled: bool,
    },
    Invalidate {
        qp: usize,
        window: usize,
        signaled: bool,
    },
    /// The device does this many requests that it knows.
    Execute {
        qp: usize,
        count: u8,
    },
    PeerInvalidates {
        qp: usize,
        window: usize,
    },
    Poll {
        cq: usize,
    },
    Error {
        qp: usize,
    },
    Reset {
        qp: usize,
    },
    Connect {
        qp: usize,
    },
    Deregister {
        region: usize,
    },
    Replace {
        window: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..QPS, 0..MWS, 0..MRS, 0_u8..2, any::<bool>())
            .prop_map(|(qp, window, region, tag, signaled)| Op::Bind { qp, window, region, tag, signaled }),
        3 => (0..QPS, 0..MWS, any::<bool>()).prop_map(|(qp, window, signaled)| Op::Invalidate { qp, window, signaled }),
        6 => (0..QPS, 1_u8..4).prop_map(|(qp, count)| Op::Execute { qp, count }),
        5 => (0..QPS, 0..MWS).prop_map(|(qp, window)| Op::PeerInvalidates { qp, window }),
        5 => (0..2 * QPS).prop_map(|cq| Op::Poll { cq }),
        1 => (0..QPS).prop_map(|qp| Op::Error { qp }),
        2 => (0..QPS).prop_map(|qp| Op::Reset { qp }),
        2 => (0..QPS).prop_map(|qp| Op::Connect { qp }),
        4 => (0..MRS).prop_map(|region| Op::Deregister { region }),
        2 => (0..MWS).prop_map(|window| Op::Replace { window }),
    ]
}

struct Program {
    verbs: KeptVerbs<Mock>,
    pd: PdHandle,
    /// Those of sends, then those of receives, by queue pair.
    cqs: Vec<CqHandle>,
    qps: Vec<QpHandle>,
    mrs: Vec<MrHandle>,
    mws: Vec<MwHandle>,
}

impl Program {
    fn new() -> Self {
        let rings: &'static [QpRings<16, 8>; QPS] = Box::leak(Box::new([const { QpRings::new() }; QPS]));
        let storage = <storage![Mock; pds: 1, mrs: MRS, mws: MWS, cqs: 2 * QPS, qps: QPS]>::new(QpRings::views(rings));
        let mut verbs = KeptVerbs::new(Verbs::new(Mock::new(), Box::leak(Box::new(storage))));
        let pd = verbs.alloc_pd().unwrap();
        let mrs = (0..MRS).map(|_| register(&mut verbs, pd, BASE, LENGTH, ALL_RIGHTS).unwrap()).collect();
        let cqs: Vec<_> = (0..2 * QPS).map(|_| verbs.create_cq(256).unwrap()).collect();
        let mut qps = Vec::new();
        for n in 0..QPS {
            let (send_cq, recv_cq) = (cqs[n], cqs[QPS + n]);
            let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap: CAP, sq_sig_all: false };
            qps.push(verbs.create_qp(&init).unwrap());
            verbs.modify_qp_to_rts(qps[n], &attributes(QpState::Reset)).unwrap();
        }
        let mut program = Self { verbs, pd, cqs, qps, mrs, mws: Vec::new() };
        for _ in 0..MWS {
            let window = program.window();
            program.mws.push(window);
        }
        program
    }

    /// A new window, whose first key is that of each before it with the same number.
    fn window(&mut self) -> MwHandle {
        self.verbs.provider().lock().tag = KeyTag(0);
        self.verbs.alloc_mw(self.pd, MwType::Type2).unwrap()
    }

    fn send(&mut self, qp: usize, signaled: bool, op: SendOp<'_>) {
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let _ = self.verbs.post_send(self.qps[qp], &SendWr { wr_id: 1, flags, op });
    }

    fn poll(&mut self, cq: usize) -> usize {
        let mut out = [Completion::EMPTY; 3];
        self.verbs.poll_cq(self.cqs[cq], &mut out).unwrap()
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Bind { qp, window, region, tag, signaled } => {
                let binding = Binding { mr: self.mrs[region], addr: BASE, length: 64, access: Access::REMOTE_READ };
                self.send(qp, signaled, SendOp::BindMw { mw: self.mws[window], tag: KeyTag(tag), binding });
            }
            Op::Invalidate { qp, window, signaled } => {
                let rkey = self.verbs.mw_info(self.mws[window]).unwrap().rkey;
                self.send(qp, signaled, SendOp::LocalInv { rkey });
            }
            Op::Execute { qp, count } => {
                let qpn = self.verbs.qp_info(self.qps[qp]).unwrap().qpn;
                for _ in 0..count {
                    self.verbs.provider().lock().execute(qpn);
                }
            }
            Op::PeerInvalidates { qp, window } => {
                let _ = self.verbs.post_recv(self.qps[qp], &RecvWr { wr_id: 2, sges: &[] });
                let qpn = self.verbs.qp_info(self.qps[qp]).unwrap().qpn;
                let index = self.verbs.mw_info(self.mws[window]).unwrap().rkey.index();
                self.verbs.provider().lock().invalidate(qpn, index);
            }
            Op::Poll { cq } => drop(self.poll(cq)),
            Op::Error { qp } => {
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                let _ = self.verbs.modify_qp(self.qps[qp], &attr, QpAttrMask::STATE);
            }
            Op::Reset { qp } => self.verbs.modify_qp(self.qps[qp], &QpAttr::default(), QpAttrMask::STATE).unwrap(),
            Op::Connect { qp } => drop(self.verbs.modify_qp_to_rts(self.qps[qp], &attributes(QpState::Reset))),
            Op::Deregister { region } => {
                if self.verbs.dereg_mr_raw(self.mrs[region]).is_ok() {
                    self.mrs[region] = register(&mut self.verbs, self.pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
                }
            }
            Op::Replace { window } => {
                if self.verbs.dealloc_mw(self.mws[window]).is_ok() {
                    self.mws[window] = self.window();
                }
            }
        }
        assert_eq!(self.verbs.provider().lock().violations, [""; 0], "after {op:?}");
    }

    /// Ends everything: no region is held for ever.
    fn end(&mut self) {
        for qp in 0..QPS {
            self.apply(&Op::Reset { qp });
        }
        for cq in 0..2 * QPS {
            while self.poll(cq) != 0 {}
        }
        for mw in core::mem::take(&mut self.mws) {
            self.verbs.dealloc_mw(mw).unwrap();
        }
        for mr in core::mem::take(&mut self.mrs) {
            self.verbs.dereg_mr_raw(mr).unwrap();
        }
        assert!(self.verbs.provider().lock().violations.is_empty());
    }
}

/// Programs, and calls of one at most. Miri takes minutes over a long one.
const CASES: u32 = if cfg!(miri) { 2 } else { 20_000 };
const OPS: usize = if cfg!(miri) { 20 } else { 60 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_region_ends_under_a_window_whose_key_comes_again(ops in prop::collection::vec(op(), 0..OPS)) {
        let mut program = Program::new();
        for op in &ops {
            program.apply(op);
        }
        program.end();
    }
}
