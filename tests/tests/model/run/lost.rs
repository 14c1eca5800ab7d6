//! Devices that are lost, or taken down, in the middle of requests. What was posted ends exactly once, and nothing comes after that. The
//! function is reset and brought up again, everything is created anew, and the peer connects again.

use core::time::Duration;

use bareverbs::error::{DeviceLoss, PollCqError, PostSendError};
use bareverbs::platform::{Clock, Machine};
use bareverbs::{Completion, DmaBuffer, QpType, Remote, SendWr, WcOpcode, WcStatus};
use bareverbs_mlx5_spec::CmdOpcode;
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::{Host, SimPlatform};
use bareverbs_sim::{DeviceCounts, HealthReport};

use super::recover::take_unknown;
use super::{Fate, Round, Run};
use crate::hosts::{Memory, PLACES, Side};
use crate::program::{CQS, How, Kind, Lane, Loss, PAIRS, REGION};
use crate::xrc::queue_of;

impl Loss {
    /// Returns what the queues say; nothing if the program took the device down.
    const fn reason(self) -> Option<DeviceLoss> {
        match self {
            Self::Reset => Some(DeviceLoss::Reset),
            Self::Removed => Some(DeviceLoss::Gone),
            Self::Fatal => Some(DeviceLoss::Fatal),
            Self::NoAnswer => Some(DeviceLoss::NoAnswer),
            Self::TornDown | Self::Closed => None,
        }
    }

    fn strike(self, host: &Host) {
        host.with_device(|device| match self {
            Self::Reset => {
                device.reset();
                device.enable_function();
            }
            Self::Removed => device.set_removed(true),
            Self::Fatal => {
                device.set_health(HealthReport { syndrome: 1, reset_required: true, ..HealthReport::default() });
            }
            Self::NoAnswer => device.faults_mut().arm(Fault::StuckCommand { opcode: CmdOpcode::AllocPd.code() as u16 }),
            Self::TornDown | Self::Closed => {}
        });
    }
}

impl Run<'_> {
    /// Ends a device in the middle of these requests, brings it up again, and connects every pair anew.
    pub(super) fn restart(&mut self, at: usize, loss: Loss, micros: u16, lanes: &[Lane]) -> Result<(), String> {
        self.settle(8, false)?;
        let mut pairs = Vec::new();
        for Lane { pair, side, requests, .. } in lanes.iter().filter(|_| loss != Loss::Closed) {
            let to = &self.sides[1 - side];
            let left = if PAIRS[*pair].shared {
                to.shared_receives
            } else {
                to.xrc.queues.iter().map(|of| of.left).min().unwrap_or(0)
            };
            let is_limited = PAIRS[*pair].shared || PAIRS[*pair].qp_type == QpType::XrcSend;
            // Nothing that would let everything settle before it is posted.
            let mut requests = requests.clone();
            requests.retain(|request| request.kind != Kind::SendWithInvFast);
            requests.truncate(if is_limited { left } else { requests.len() });
            if !pairs.contains(pair) {
                self.post(*pair, *side, How::Batch, &requests, Fate::Unknown)?;
                pairs.push(*pair);
            }
        }
        self.world.advance(Duration::from_micros(micros.into()));
        for side in &mut self.sides {
            pairs.iter().for_each(|pair| side.forget(*pair));
        }
        if loss.reason().is_some() {
            self.lose(at, loss)?;
        }
        self.sides[at].compare(true).map_err(|why| format!("side {at} at its end: {why}"))?;
        let side = self.sides.remove(at);
        let cqe_size = side.cqe_size;
        let (host, machine) = take_down(side, loss)?;
        let tables = self.tables[at].pop().ok_or("tables for each bring-up")?;
        let side = Side::new(host, machine, cqe_size, tables).map_err(|why| format!("side {at} again: {why}"))?;
        self.sides.insert(at, side);
        self.reconnect(1 - at, &pairs)
    }

    /// Loses a device. Each of its own requests ends exactly once, whatever the model knows of it.
    pub(super) fn lose(&mut self, at: usize, loss: Loss) -> Result<(), String> {
        let Some(reason) = loss.reason() else { return Ok(()) };
        let by_command = self.next_id.is_multiple_of(2) && loss != Loss::Fatal || loss == Loss::NoAnswer;
        let side = &mut self.sides[at];
        loss.strike(&side.host);
        // Until a reset is over, there is no device.
        let reset_time = side.host.with_device(|device| device.config().reset_time);
        side.host.world().advance(reset_time);
        if by_command && side.verbs.alloc_pd().is_ok() {
            return Err(format!("a device answers after its loss: {loss:?}"));
        }
        if !by_command {
            find(side)?;
        }
        for index in 0..side.cqs.len() {
            loop {
                let mut out = [Completion::EMPTY; 3];
                let count = match side.cqs[index].poll(&mut out) {
                    Ok(0) => return Err("neither a completion nor the loss".to_owned()),
                    Ok(count) => count,
                    Err(PollCqError::DeviceLost { loss }) if loss == reason => break,
                    Err(error) => return Err(format!("after {loss:?}: {error}")),
                };
                for done in &out[..count] {
                    if done.loss().is_some_and(|loss| loss != reason || done.status != WcStatus::WrFlushErr) {
                        return Err(format!("after {loss:?}: {done:?}"));
                    }
                    if is_foreign(side, done) {
                        side.xrc.foreign_receives -= 1;
                    } else {
                        take_unknown(side, done)?;
                    }
                }
            }
        }
        let shared = (PLACES - side.free_places.len(), side.xrc.not_given(), side.xrc.foreign_receives);
        if shared != (0, 0, 0) {
            return Err(format!("shared receives without a completion: {shared:?}"));
        }
        for (pair, qp) in side.qps.iter_mut().enumerate() {
            let (sent, posted) = (&side.sent[pair], &side.posted[pair]);
            if !sent.is_empty() || !posted.is_empty() {
                return Err(format!("pair {pair} of the lost device: no completion of {sent:?} {posted:?}"));
            }
            let wr = SendWr::write(Remote::NONE, &[] as &[u8]).signaled();
            // One that XRC takes names a queue; the loss is found before that is missed.
            let posted = qp.send().post(&wr);
            if posted != Err(PostSendError::DeviceLost { loss: reason }) {
                return Err(format!("pair {pair} of the lost device: posting gave {posted:?}"));
            }
        }
        for cq in &mut side.cqs {
            let polled = cq.poll(&mut [Completion::EMPTY]);
            if polled != Err(PollCqError::DeviceLost { loss: reason }) {
                return Err(format!("after the last completion of the lost device: {polled:?}"));
            }
        }
        if side.verbs.alloc_pd().is_ok() || side.verbs.query_port(1).is_ok() {
            return Err("a device that is lost answers".to_owned());
        }
        Ok(())
    }

    /// Pulls a device out in the middle of requests, at the end of a program.
    pub(super) fn remove(&mut self, at: usize) -> Result<(), String> {
        for pair in 0..PAIRS.len() {
            if self.rounds[pair].direction.is_some_and(|direction| direction != at) {
                self.settle(8, false)?;
            }
        }
        self.lose(at, Loss::Removed)
    }

    /// Connects a device with its peer, which was brought up again. These pairs had requests in flight.
    fn reconnect(&mut self, at: usize, pairs: &[usize]) -> Result<(), String> {
        for pair in 0..PAIRS.len() {
            self.fail(pair, at)?;
        }
        self.world.advance(Duration::from_millis(10));
        self.each_once(at, 0..PAIRS.len())?;
        for pair in 0..PAIRS.len() {
            self.reset_side(pair, at)?;
            self.rounds[pair] = Round::default();
            self.connect(pair)?;
        }
        pairs.iter().try_for_each(|pair| self.take_bytes(*pair))
    }
}

/// Lets the verbs find the loss by their maintenance.
fn find(side: &mut Side<'_>) -> Result<(), String> {
    for _ in 0..20 {
        match side.verbs.maintain() {
            Ok(next) => side.host.world().advance(next.since(side.host.clock().now())),
            Err(_) => return Ok(()),
        }
    }
    Err("maintain does not find the loss".to_owned())
}

/// Returns whether a completion is of the receive that no message may take.
fn is_foreign(side: &Side<'_>, done: &Completion) -> bool {
    done.wr_id == 0 && done.opcode == WcOpcode::Recv && queue_of(done).is_none() && !side.qps.iter().any(|qp| qp.is(done.qp))
}

/// Gives everything back that was created, takes the driver down, and resets the function where that is needed. From then on the device
/// writes nothing.
fn take_down(side: Side<'_>, loss: Loss) -> Result<(Host, Machine<SimPlatform>), String> {
    if loss == Loss::Closed {
        let (host, verbs) = side.close()?;
        let Ok(driver) = verbs.into_provider() else { return Err("a queue is left".to_owned()) };
        let (machine, report) = driver.teardown().map_err(|(error, _)| error.to_string())?;
        if (report.cqs_left, report.pages_kept, report.needs_reset) != (0, 0, false) {
            return Err(format!("of a device that was closed: {report:?}"));
        }
        nothing_left(&host)?;
        return Ok((host, machine));
    }
    let Side { host, verbs, cqs, qps, srq, xrc, memory, places, .. } = side;
    drop((cqs, qps, srq, xrc));
    let Ok(driver) = verbs.into_provider() else { return Err("a queue is left".to_owned()) };
    let machine = match (driver.teardown(), loss.reason()) {
        (Ok((machine, report)), None) => {
            // One more is the driver's own, which targets of XRC have.
            if (report.cqs_left, report.pages_kept, report.needs_reset) != (CQS as u32 + 1, 0, false) {
                return Err(format!("of a device that was taken down: {report:?}"));
            }
            nothing_left(&host)?;
            machine
        }
        (Err((_, machine)), Some(_)) => machine,
        (Ok((_, report)), Some(_)) => return Err(format!("the teardown after {loss:?}: {report:?}")),
        (Err((error, _)), None) => return Err(error.to_string()),
    };
    host.with_device(|device| {
        device.set_removed(false);
        if !matches!(loss, Loss::Reset | Loss::TornDown) {
            device.reset();
            device.enable_function();
        }
    });
    let read = || -> Vec<Vec<u8>> {
        let of = |memory: &Memory<'_>| {
            let mut bytes = vec![0; REGION];
            memory.region.read(0, &mut bytes).expect("inside");
            bytes
        };
        memory.iter().map(of).collect()
    };
    let before = read();
    // What the peer has in flight ends too.
    host.world().advance(Duration::from_millis(60));
    let after = read();
    if after != before {
        return Err(format!("the device writes after {loss:?}"));
    }
    if loss == Loss::TornDown {
        return Ok((host, machine));
    }
    for (region, bytes) in memory.into_iter().map(|memory| memory.region).zip(after) {
        // SAFETY: the device was reset after it was lost, and the verbs are gone.
        #[expect(unsafe_code, reason = "the model knows that the device was reset")]
        let buffer = unsafe { region.into_buffer_after_reset() };
        let mut kept = vec![0; REGION];
        buffer.read(0, &mut kept).expect("inside");
        if kept != bytes {
            return Err(format!("a buffer that came back after {loss:?} has other bytes than its region"));
        }
    }
    // SAFETY: as above.
    #[expect(unsafe_code, reason = "the model knows that the device was reset")]
    drop(unsafe { places.into_buffer_after_reset() });
    Ok((host, machine))
}

/// Checks that a device that was taken down has nothing left of its driver, which has made no mistake.
fn nothing_left(host: &Host) -> Result<(), String> {
    host.with_device(|device| {
        let (counts, findings) = (device.counts(), device.audit().findings().to_vec());
        if counts == DeviceCounts::default() && findings.is_empty() { Ok(()) } else { Err(format!("{counts:?} {findings:?}")) }
    })
}
