//! Queue pairs that break, are drained, reset or destroyed, and begin again.

use core::time::Duration;

use bareverbs::{Completion, Event, MwType, QpAttr, QpAttrMask, QpState, QpType, WcData, WcOpcode, WcStatus};

use super::{Fate, Round, Run};
use crate::expected::Arrival;
use crate::hosts::{Qp, Side};
use crate::program::{How, PAIRS, Request, SIDES};
use crate::xrc::queue_of;

impl Run<'_> {
    pub(super) fn fail(&mut self, pair: usize, side: usize) -> Result<(), String> {
        let side = &mut self.sides[side];
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        let of = &side.qps[pair];
        for qp in [of.handle(), of.receiver()] {
            side.verbs.modify_qp(qp, &attr, QpAttrMask::STATE).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Expects the receives of a queue pair that is in ERR to be flushed.
    pub(super) fn flush_receives(&mut self, pair: usize, side: usize) {
        let side = &mut self.sides[side];
        let flushed = side.posted[pair].drain(..).map(|posted| Arrival {
            opcode: WcOpcode::Recv,
            status: WcStatus::WrFlushErr,
            byte_len: 0,
            data: WcData::None,
            wr_id: Some(posted.wr_id),
            message: Vec::new(),
        });
        side.arrivals[pair].extend(flushed);
    }

    /// Takes both queue pairs through ERR and RESET, and connects them again.
    pub(super) fn recover(&mut self, pair: usize) -> Result<(), String> {
        // Completions of XRC receives are those of their queue, and stay.
        let dropped = self.next_id.is_multiple_of(3) && PAIRS[pair].qp_type != QpType::XrcSend;
        self.reset(pair, dropped)
    }

    /// The same; a RESET drops what nobody has polled, if that is to be `dropped`.
    pub(super) fn reset(&mut self, pair: usize, dropped: bool) -> Result<(), String> {
        for side in 0..SIDES {
            self.fail(pair, side)?;
            self.flush_receives(pair, side);
        }
        self.world.advance(Duration::from_millis(10));
        for at in 0..SIDES {
            if !dropped {
                let side = &mut self.sides[at];
                side.complete(3, false)?;
                if let Some(arrival) = side.next_arrival(pair) {
                    return Err(format!("pair {pair}, side {at}: not flushed {arrival:?}"));
                }
            }
            self.reset_side(pair, at)?;
        }
        self.is_in(pair, QpState::Reset)?;
        self.connect(pair)?;
        self.rounds[pair] = Round::default();
        Ok(())
    }

    /// Takes what a pair has on one device from ERR to RESET.
    pub(super) fn reset_side(&mut self, pair: usize, at: usize) -> Result<(), String> {
        let side = &mut self.sides[at];
        while side.verbs.poll_event().map_err(|error| error.to_string())?.is_some() {}
        let reset = match &mut side.qps[pair] {
            Qp::Own(qp) => side.verbs.reset_qp(qp),
            Qp::Shared(qp) => side.verbs.reset_qp(qp),
            Qp::Xrc(qp) => side.verbs.reset_qp(&mut qp.initiator).and_then(|()| side.verbs.reset_qp(&mut qp.target)),
        };
        reset.map_err(|error| format!("reset: {error}"))?;
        side.clear_arrivals(pair);
        // It leaves RESET once its completion queues were found empty.
        side.complete(3, false)?;
        self.replace_windows_of(pair, at);
        Ok(())
    }

    /// Replaces the type 2 windows that a queue pair has bound.
    pub(super) fn replace_windows_of(&mut self, pair: usize, side: usize) {
        let side = &mut self.sides[side];
        for window in 0..side.windows.len() {
            let Some(bound) = side.windows[window].bound else { continue };
            if side.windows[window].kind == MwType::Type2 && bound.pair == pair {
                side.replace_window(window, MwType::Type2);
            }
        }
    }

    /// Destroys both queue pairs, in the middle of these requests if their receives are not shared, and creates them again.
    pub(super) fn recreate(&mut self, pair: usize, side: usize, micros: u16, requests: &[Request]) -> Result<(), String> {
        self.settle(8, false)?;
        if !PAIRS[pair].shared && PAIRS[pair].qp_type != QpType::XrcSend {
            self.post(pair, side, How::Batch, requests, Fate::Unknown)?;
            self.world.advance(Duration::from_micros(micros.into()));
        }
        for at in 0..SIDES {
            self.replace_windows_of(pair, at);
            let side = &mut self.sides[at];
            side.destroy_qp(pair);
            // The place of a queue pair is free once its completion queues were found empty. What it had in flight is not given.
            if let Some(done) = side.poll(3, false).first() {
                return Err(format!("{done:?} of a queue pair that was destroyed"));
            }
            let qp = side.create_qp(pair);
            side.qps.insert(pair, qp);
        }
        self.take_bytes(pair)?;
        self.rounds[pair] = Round::default();
        self.connect(pair)
    }

    /// Takes from the devices what the requests of a pair have written.
    pub(super) fn take_bytes(&mut self, pair: usize) -> Result<(), String> {
        for side in &mut self.sides {
            side.forget(pair);
            side.compare(false)?;
        }
        Ok(())
    }

    /// Breaks a queue pair in the middle of requests. Each of them, and each receive, ends exactly once.
    pub(super) fn interrupt(
        &mut self,
        pair: usize,
        side: usize,
        broken: usize,
        micros: u16,
        requests: &[Request],
    ) -> Result<(), String> {
        self.settle(8, false)?;
        self.post(pair, side, How::Batch, requests, Fate::Unknown)?;
        self.world.advance(Duration::from_micros(micros.into()));
        self.fail(pair, broken)?;
        self.world.advance(Duration::from_millis(60));
        for at in 0..SIDES {
            if at != broken {
                self.fail(pair, at)?;
            }
        }
        self.world.advance(Duration::from_millis(10));
        for at in 0..SIDES {
            self.each_once(at, [pair])?;
        }
        self.recover(pair)?;
        self.take_bytes(pair)
    }

    /// Takes the completions of a device of which some pairs were broken, and checks that these have nothing left.
    pub(super) fn each_once(&mut self, at: usize, broken: impl IntoIterator<Item = usize>) -> Result<(), String> {
        let side = &mut self.sides[at];
        for done in side.poll(4, false) {
            let done = done.map_err(|error| format!("polling: {error}"))?;
            take_unknown(side, &done)?;
        }
        for pair in broken {
            let (sent, posted) = (&side.sent[pair], &side.posted[pair]);
            if sent.back().is_some_and(|last| last.signaled) || !posted.is_empty() {
                return Err(format!("pair {pair}, side {at}: no completion of {sent:?} {posted:?}"));
            }
            side.sent[pair].clear();
        }
        Ok(())
    }

    /// Drains both queues of a queue pair: the receives are flushed.
    pub(super) fn drain(&mut self, pair: usize, at: usize) -> Result<(), String> {
        self.settle(8, false)?;
        self.flush_receives(pair, at);
        let side = &mut self.sides[at];
        let timeout = Duration::from_millis(100);
        let mut done: Vec<Completion> = Vec::new();
        let (send_cq, recv_cq) = PAIRS[pair].cqs;
        let cq = &mut side.cqs[send_cq];
        side.verbs
            .drain_sq(side.qps[pair].send(), cq, timeout, |of| done.push(of))
            .map_err(|error| format!("drain: {error}"))?;
        let cq = &mut side.cqs[recv_cq];
        match &mut side.qps[pair] {
            Qp::Own(qp) => {
                side.verbs
                    .drain_rq(&mut qp.recv, cq, timeout, |of| done.push(of))
                    .map_err(|error| format!("drain: {error}"))?;
            }
            Qp::Shared(qp) => {
                let mut last = None;
                let drained = side.verbs.drain_qp_with_srq(qp, cq, timeout, |of| done.push(of), |event| last = Some(event));
                drained.map_err(|error| format!("drain: {error}"))?;
                if last != Some(Event::LastWqeReached(qp.handle())) {
                    return Err(format!("the last event of a drain is {last:?}"));
                }
            }
            Qp::Xrc(_) => {}
        }
        done.iter().try_for_each(|done| side.completed(done))?;
        self.recover(pair)
    }
}

/// Takes a completion of a pair that was broken, or of a device that is gone.
pub(super) fn take_unknown(side: &mut Side<'_>, done: &Completion) -> Result<(), String> {
    if let Some(queue) = queue_of(done) {
        return side.xrc.received_unknown(queue, done);
    }
    let Some(pair) = side.qps.iter().position(|qp| qp.is(done.qp)) else {
        return Err(format!("{done:?} of no queue pair"));
    };
    if !matches!(done.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
        // A lost device flushes each request that it has not completed, whether or not it asked for that.
        let oldest = side.sent[pair].front();
        if done.loss().is_some() && oldest.is_none_or(|sent| sent.wr_id != done.wr_id) {
            return Err(format!("{done:?} before that of {oldest:?}"));
        }
        // What the model knows of the request may not have come about.
        side.sent[pair].iter_mut().for_each(|sent| sent.status = None);
        return crate::expected::take_sent(&mut side.sent[pair], done);
    }
    if PAIRS[pair].shared {
        if side.free_places.contains(&done.wr_id) {
            return Err(format!("a shared receive twice: {done:?}"));
        }
        side.free_places.push(done.wr_id);
        // Flushed too, it was taken: by a message that has not come whole.
        side.shared_receives = side.shared_receives.saturating_sub(1);
        return Ok(());
    }
    match side.posted[pair].pop_front() {
        Some(posted) if posted.wr_id == done.wr_id => Ok(()),
        posted => Err(format!("{done:?} of {posted:?}")),
    }
}
