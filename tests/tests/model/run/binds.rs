//! Binds of a window behind each other: those before a request that fails are done, those behind it never were.

use core::time::Duration;

use bareverbs::{Access, Binding, MwType, QpType, Remote, Rkey, SendFlags, SendWr, Type1Bind, WcOpcode, WcStatus};

use super::Run;
use crate::expected::Sent;
use crate::hosts::{Bound, Window};
use crate::program::{PAIRS, REGION, STRIPE, Step, domain_of, of_domain};

/// What a window is by what was posted, or by what was done.
type WindowState = (Rkey, Option<Bound>);

impl Run<'_> {
    /// Posts binds of a window without waiting. Before step number `wrong` the peer refuses a request. Everything is polled, or `dropped` by a
    /// RESET: then the verbs must learn from the device what was done.
    pub(super) fn bind_chain(
        &mut self,
        (pair, side, index): (usize, usize, usize),
        steps: &[Step],
        wrong: Option<usize>,
        dropped: bool,
    ) -> Result<(), String> {
        if PAIRS[pair].qp_type != QpType::Rc {
            return Ok(());
        }
        self.settle(8, false)?;
        let Window { kind, rkey, bound, .. } = self.sides[side].windows[index];
        if kind == MwType::Type2 && bound.is_some_and(|bound| bound.pair != pair) {
            return Ok(());
        }
        let (mut posted, mut done) = ((rkey, bound), (rkey, bound));
        for (at, step) in steps.iter().enumerate() {
            if wrong == Some(at) {
                self.post_refused(pair, side)?;
            }
            if let Some(opcode) = self.post_step((pair, side, index), step, &mut posted)? {
                if !self.rounds[pair].failed {
                    done = posted;
                }
                // All requests of the first pair are signaled.
                self.expect_step(pair, side, opcode, step.signaled || pair == 0);
            }
        }
        let window = &mut self.sides[side].windows[index];
        (window.rkey, window.bound) = done;
        if !dropped {
            return self.settle(8, false);
        }
        self.world.advance(Duration::from_millis(60));
        self.sides[side].sent[pair].clear();
        self.reset(pair, true)?;
        let side = &mut self.sides[side];
        if kind == MwType::Type2 && done.1.is_none() {
            // An invalidation leaves no trace of the key that it ended: which of them it was, nobody can tell.
            side.windows[index].rkey = side.verbs.mw_info(side.windows[index].handle).expect("it exists").rkey;
        }
        self.settle(8, false)
    }

    /// Posts a step, and returns its operation; nothing if the region has not the rights for it.
    fn post_step(
        &mut self,
        (pair, side, index): (usize, usize, usize),
        step: &Step,
        posted: &mut WindowState,
    ) -> Result<Option<WcOpcode>, String> {
        let region = of_domain(step.region, domain_of(pair));
        let bound = Bound { region, at: step.at * STRIPE / 2, len: step.len * STRIPE / 2, access: step.access, pair };
        let wr_id = self.next_id;
        let flags = if step.signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let of = &mut self.sides[side];
        let (window, memory) = (&of.windows[index], &of.memory[bound.region]);
        let writes = bound.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let is_allowed = memory.access.contains(Access::MW_BIND) && (!writes || memory.access.contains(Access::LOCAL_WRITE));
        let ends = if window.kind == MwType::Type2 { posted.1.is_some() } else { bound.len == 0 };
        if bound.at + bound.len > REGION || !ends && (!is_allowed || bound.len == 0) {
            return Ok(None);
        }
        let (mr, addr, length, access) =
            (memory.region.handle(), memory.region.remote(bound.at as u64).addr, bound.len as u64, bound.access);
        let (rkey, tag, send) = (posted.0, posted.0.tag().next(), of.qps[pair].send());
        let (opcode, result) = match (window.kind, ends) {
            (MwType::Type1, _) => {
                let access = if ends { Access::empty() } else { access };
                let bind = Type1Bind { wr_id, flags, mr, addr, length, access };
                let result = send.bind_type1(window.handle, &bind).map_err(|error| error.to_string());
                (WcOpcode::BindMw, result)
            }
            (MwType::Type2, true) => {
                let wr = SendWr { flags, ..SendWr::local_inv(rkey).id(wr_id) };
                (WcOpcode::LocalInv, send.post(&wr).map(|()| rkey).map_err(|error| error.to_string()))
            }
            (MwType::Type2, false) => {
                let wr = SendWr::bind_mw(window.handle, tag, Binding { mr, addr, length, access }).id(wr_id);
                let result = send.post(&SendWr { flags, ..wr }).map_err(|error| error.to_string());
                (WcOpcode::BindMw, result.map(|()| Rkey::new(tag.key(rkey.index()))))
            }
        };
        let rkey = result.map_err(|error| format!("step {step:?} of {posted:?} gave {error}"))?;
        *posted = (rkey, if ends { None } else { Some(bound) });
        Ok(Some(opcode))
    }

    /// Expects a step that was posted to succeed, or to be flushed behind a request that failed.
    fn expect_step(&mut self, pair: usize, side: usize, opcode: WcOpcode, signaled: bool) {
        let status = if self.rounds[pair].failed { WcStatus::WrFlushErr } else { WcStatus::Success };
        self.expect_sent((pair, side), opcode, status, signaled);
    }

    /// Posts a request that the peer refuses.
    fn post_refused(&mut self, pair: usize, side: usize) -> Result<(), String> {
        let there = self.sides[1 - side].memory[0].region.remote(0);
        let remote = Remote { rkey: Rkey::new(there.rkey.get() ^ 0x80), ..there };
        let wr = SendWr::write(remote, &[7_u8] as &[u8]).id(self.next_id).signaled();
        self.sides[side].qps[pair].send().post(&wr).map_err(|error| format!("a request with a wrong key: {error}"))?;
        self.expect_sent((pair, side), WcOpcode::RdmaWrite, WcStatus::RemAccessErr, true);
        self.rounds[pair].failed = true;
        Ok(())
    }

    fn expect_sent(&mut self, (pair, side): (usize, usize), opcode: WcOpcode, status: WcStatus, signaled: bool) {
        let wr_id = self.next_wr_id();
        let may_stay_unanswered = self.lossy && status == WcStatus::RemAccessErr;
        let sent = Sent { wr_id, opcode, status: Some(status), signaled, byte_len: 0, may_stay_unanswered };
        self.sides[side].sent[pair].push_back(sent);
        let round = &mut self.rounds[pair];
        (round.direction, round.silent) = (Some(side), !signaled);
        round.posted += 1;
        self.requests += 1;
    }
}
