//! Random operations against a model that is simple enough to be believed.

use std::collections::VecDeque;
use std::vec::Vec;

use proptest::prelude::*;

use super::mock::MockError;
use super::{BASE, LENGTH, Rig};
use crate::{
    Access, BindMwError, MrHandle, MwBind, MwHandle, MwType, OffsetMap, Payload, PostSendError, SendFlags, SendOp, SendWr,
    WcStatus,
};

#[derive(Clone, Debug)]
enum Op {
    /// Posts a message of one to three blocks.
    Send { long: u8, signaled: bool },
    /// Binds one of two windows to one of two regions, or unbinds it.
    Bind { window: bool, region: Option<bool>, signaled: bool },
    /// The device completes this many requests that it owes a completion for.
    Complete { count: u8 },
    /// The device fails the next request and flushes the rest; then the queue pair is connected again.
    Break,
    /// Resets the queue pair without any completion.
    Reset,
    /// Tries to deregister a region and registers it again.
    Dereg { region: bool },
    /// Replaces a window.
    Realloc { window: bool },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0_u8..3, any::<bool>()).prop_map(|(long, signaled)| Op::Send { long, signaled }),
        4 => (any::<bool>(), any::<Option<bool>>(), any::<bool>())
            .prop_map(|(window, region, signaled)| Op::Bind { window, region, signaled }),
        4 => (1_u8..4).prop_map(|count| Op::Complete { count }),
        1 => Just(Op::Break),
        1 => Just(Op::Reset),
        2 => any::<bool>().prop_map(|region| Op::Dereg { region }),
        1 => any::<bool>().prop_map(|window| Op::Realloc { window }),
    ];
    prop::collection::vec(op, 0..120)
}

/// A request in flight as the model remembers it.
#[derive(Clone, Debug)]
struct Flying {
    wr_id: u64,
    at: u32,
    blocks: u32,
    signaled: bool,
    /// Window and its state before: key, region.
    bind: Option<(usize, (u32, Option<usize>))>,
}

struct Model {
    rig: Rig,
    mrs: [MrHandle; 2],
    mws: [MwHandle; 2],
    /// Key and region of each window, as they should be.
    windows: [(u32, Option<usize>); 2],
    flying: VecDeque<Flying>,
    at: u32,
    next_id: u64,
}

impl Model {
    fn new(start: u32) -> Self {
        let mut rig = Rig::new();
        rig.verbs.start_rings_for_test(rig.qp, start);
        let second = rig.verbs.reg_mr(rig.pd, BASE, LENGTH, super::ALL_RIGHTS, &OffsetMap::default()).unwrap();
        let mws = [rig.window(MwType::Type1), rig.window(MwType::Type1)];
        let windows = mws.map(|mw| (rig.verbs.mw(mw).unwrap().rkey.get(), None));
        Self { mrs: [rig.mr, second], rig, mws, windows, flying: VecDeque::new(), at: start, next_id: 0 }
    }

    fn free(&self) -> u32 {
        16 - self.flying.iter().map(|flying| flying.blocks).sum::<u32>()
    }

    fn binds(&self) -> usize {
        self.flying.iter().filter(|flying| flying.bind.is_some()).count()
    }

    fn fly(&mut self, blocks: u32, signaled: bool, bind: Option<(usize, (u32, Option<usize>))>) {
        self.flying.push_back(Flying { wr_id: self.next_id, at: self.at, blocks, signaled, bind });
        self.at = self.at.wrapping_add(blocks);
        self.next_id += 1;
    }

    /// How many bindings hold a region: those of windows, and those that a failed bind would bring back.
    fn holds(&self, region: usize) -> usize {
        let now = self.windows.iter().filter(|(_, of)| *of == Some(region)).count();
        let before = self.flying.iter().filter(|flying| matches!(flying.bind, Some((_, (_, Some(of)))) if of == region));
        now + before.count()
    }

    fn apply(&mut self, op: &Op) {
        let qp = self.rig.qp;
        let flags = |signaled| if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        match *op {
            Op::Send { long, signaled } => {
                let (bytes, blocks) = ([0; 128], u32::from(long) + 1);
                let payload = Payload::Inline(&bytes[..usize::from(long) * 64]);
                let op = SendOp::Write { payload, remote: super::post::REMOTE };
                let result = self.rig.verbs.post_send(qp, &SendWr { wr_id: self.next_id, flags: flags(signaled), op });
                if blocks > self.free() {
                    assert_eq!(result, Err(PostSendError::QueueFull { needed: blocks, free: self.free() }));
                } else {
                    assert_eq!(result, Ok(()));
                    self.fly(blocks, signaled, None);
                }
            }
            Op::Bind { window, region, signaled } => {
                let (window, region) = (usize::from(window), region.map(usize::from));
                let length = if region.is_some() { 64 } else { 0 };
                let bind = MwBind {
                    wr_id: self.next_id,
                    flags: flags(signaled),
                    mr: self.mrs[region.unwrap_or(0)],
                    addr: BASE,
                    length,
                    access: Access::REMOTE_READ,
                };
                let blocks = if length == 0 { 2 } else { 3 };
                let result = self.rig.verbs.bind_mw(qp, self.mws[window], &bind);
                if blocks > self.free() {
                    assert_eq!(result, Err(BindMwError::QueueFull { needed: blocks, free: self.free() }));
                } else if self.binds() == 2 {
                    assert_eq!(result, Err(BindMwError::<MockError>::NoRecord));
                } else {
                    let before = self.windows[window];
                    let key = before.0 & !0xff | (before.0 + 1) & 0xff;
                    assert_eq!(result.unwrap().get(), key);
                    self.fly(blocks, signaled, Some((window, before)));
                    self.windows[window] = (key, region);
                }
            }
            Op::Complete { count } => {
                for _ in 0..count {
                    let Some(done) = self.flying.iter().position(|flying| flying.signaled) else { break };
                    let done = self.flying.drain(..=done).next_back().unwrap();
                    self.rig.complete(done.at as u16, WcStatus::Success);
                    assert_eq!(self.rig.poll_ids(), [done.wr_id]);
                }
            }
            Op::Break => {
                let mut status = WcStatus::RemAccessErr;
                let ids: Vec<u64> = self.flying.iter().map(|flying| flying.wr_id).collect();
                for flying in &self.flying {
                    self.rig.complete(flying.at as u16, status);
                    status = WcStatus::WrFlushErr;
                }
                let mut polled = Vec::new();
                while polled.len() < ids.len() {
                    polled.extend(self.rig.poll_ids());
                }
                assert_eq!(polled, ids);
                // What failed never happened: the windows are as the oldest of their binds found them.
                for flying in core::mem::take(&mut self.flying).iter().rev() {
                    if let Some((window, before)) = flying.bind {
                        self.windows[window] = before;
                    }
                }
                self.reset();
            }
            Op::Reset => {
                self.flying.clear();
                self.reset();
            }
            Op::Dereg { region } => {
                let region = usize::from(region);
                let result = self.rig.verbs.dereg_mr(self.mrs[region]);
                assert_eq!(result.is_err(), self.holds(region) != 0, "{result:?}");
                if result.is_ok() {
                    let access = super::ALL_RIGHTS;
                    let map = OffsetMap::default();
                    self.mrs[region] = self.rig.verbs.reg_mr(self.rig.pd, BASE, LENGTH, access, &map).unwrap();
                }
            }
            Op::Realloc { window } => {
                let window = usize::from(window);
                self.rig.verbs.dealloc_mw(self.mws[window]).unwrap();
                self.mws[window] = self.rig.window(MwType::Type1);
                self.windows[window] = (self.rig.verbs.mw(self.mws[window]).unwrap().rkey.get(), None);
                for flying in &mut self.flying {
                    if matches!(flying.bind, Some((of, _)) if of == window) {
                        flying.bind = None;
                    }
                }
            }
        }
    }

    fn reset(&mut self) {
        let qp = self.rig.qp;
        self.rig.step(qp, crate::QpState::Reset);
        self.rig.connect(qp);
        self.at = 0;
    }

    fn check(&self) {
        for (mw, &(rkey, region)) in self.mws.iter().zip(&self.windows) {
            let info = self.rig.verbs.mw(*mw).unwrap();
            assert_eq!((info.rkey.get(), info.binding.map(|binding| binding.mr)), (rkey, region.map(|of| self.mrs[of])));
        }
        assert_eq!(self.rig.verbs.qp(self.rig.qp).unwrap().send_blocks, 16 - self.free());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn queue_windows_and_regions_agree_with_the_model(
        start in prop_oneof![Just(0), any::<u32>(), (u32::MAX - 40)..=u32::MAX, 65_500_u32..65_540],
        ops in ops(),
    ) {
        let mut model = Model::new(start);
        for op in &ops {
            model.apply(op);
            model.check();
        }
    }
}
