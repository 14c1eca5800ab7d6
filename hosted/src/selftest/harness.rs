//! Two ends and their devices: waits for completions, checks and measures them.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bareverbs::{Completion, WcOpcode, WcStatus};

use super::end::SelftestEnd;
use super::report::Transfer;
use crate::device::stoppable::STOP_TIMEOUT;
use crate::device::{Device, DevicePair, Host, Role};
use crate::progress::Progress;
use crate::stop::Interrupted;

/// Maximum time of a request by the clock of the devices, far longer than all its retries.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(30);

/// Messages and bytes that arrived and were verified.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

/// Two ends and their devices.
pub(super) struct Harness<H: Host> {
    pub(super) devices: DevicePair<H>,
    /// The client, which connects and sends first.
    pub(super) a: SelftestEnd<H>,
    /// The server, which has the memory window.
    pub(super) b: SelftestEnd<H>,
    pub(super) progress: Progress,
    pub(super) seed: u64,
    /// Whether the wire may lose packets.
    pub(super) loses: bool,
    /// Number of connections so far.
    pub(super) connections: u32,
    /// Index of the first message of the current iteration.
    pub(super) first: u64,
}

impl<H: Host> Harness<H> {
    /// Returns an end and its device.
    pub(super) const fn end(&mut self, side: Role) -> (&mut SelftestEnd<H>, &mut Device<H>) {
        let device = self.devices.of(side);
        match side {
            Role::Client => (&mut self.a, device),
            Role::Server => (&mut self.b, device),
        }
    }

    /// Waits for the next completion of an end, of any status.
    ///
    /// # Errors
    /// There was none in time, or a device failed. [`Interrupted`] if there was none soon after Ctrl-C.
    pub(super) fn next(&mut self, side: Role) -> Result<Completion> {
        let mut started = None;
        loop {
            let is_stopped = self.progress.is_stopped();
            let (end, device) = self.end(side);
            if let Some(completion) = end.poll()? {
                return Ok(completion);
            }
            let now = device.host.now();
            let started = *started.get_or_insert(now);
            // After Ctrl-C a working device completes the requests in flight. A device that does not must not block the job.
            if is_stopped && now > started.after(STOP_TIMEOUT) {
                return Err(Interrupted.into());
            }
            if now > started.after(COMPLETION_TIMEOUT) {
                bail!("no completion at {} within {COMPLETION_TIMEOUT:?} of the devices' time", end.name);
            }
            self.devices.idle()?;
        }
    }

    /// Waits for the next completion of an end, which must be the success of this request.
    ///
    /// # Errors
    /// As [`Self::next`], or it is another completion.
    pub(super) fn expect(&mut self, side: Role, wr_id: u64, opcode: WcOpcode) -> Result<Completion> {
        let completion = self.next(side)?;
        check(&self.end(side).0.name, &completion)?;
        if (completion.wr_id, completion.opcode) != (wr_id, opcode) {
            bail!("{:?} {:#x} completed instead of {opcode:?} {wr_id:#x}", completion.opcode, completion.wr_id);
        }
        Ok(completion)
    }

    /// Waits for the next completion of an end, which must be its next receive, of `bytes` bytes. Returns the slot.
    ///
    /// # Errors
    /// As [`Self::next`], or it is another completion.
    pub(super) fn expect_receive(&mut self, side: Role, opcode: WcOpcode, bytes: usize) -> Result<(usize, Completion)> {
        let completion = self.next(side)?;
        check(&self.end(side).0.name, &completion)?;
        let slot = self.end(side).0.take_receive(&completion)?;
        if completion.opcode != opcode || completion.byte_len as usize != bytes {
            bail!("{:?} of {} bytes arrived instead of {opcode:?} of {bytes}", completion.opcode, completion.byte_len);
        }
        Ok((slot, completion))
    }

    /// Measures `work`. Messages count even if it fails.
    pub(super) fn measure(
        &mut self,
        what: &'static str,
        work: impl FnOnce(&mut Self, &mut Moved) -> Result<()>,
    ) -> (Transfer, Result<()>) {
        let (wall, simulated, retries) = (Instant::now(), self.simulated_time(), self.retries());
        let mut moved = Moved::default();
        let result = work(self, &mut moved);
        let transfer = Transfer {
            what,
            messages: moved.messages,
            bytes: moved.bytes,
            seconds: wall.elapsed().as_secs_f64(),
            simulated_seconds: self.simulated_time().zip(simulated).map(|(end, start)| end.since(start).as_secs_f64()),
            retries: self.retries().zip(retries).map(|(end, start)| end.saturating_sub(start)),
            ..Transfer::default()
        };
        (transfer, result)
    }

    /// Returns the number of retries, if the devices report it.
    fn retries(&mut self) -> Option<u64> {
        let retries = |host: &bareverbs_sim::in_process::Host| host.with_device(|device| device.stats().engine.retries);
        self.devices.iter_mut().map(|device| device.host.simulated().map(retries)).sum()
    }

    fn simulated_time(&mut self) -> Option<bareverbs::platform::Instant> {
        self.devices.of(Role::Client).host.simulated().map(|host| host.world().now())
    }
}

fn check(name: &str, completion: &Completion) -> Result<()> {
    if let Some(loss) = completion.loss() {
        bail!("the device of {name} is lost: {loss}");
    }
    if completion.status != WcStatus::Success {
        bail!(
            "{:?} {:#x} at {name} failed: {:?}, vendor {:#x}",
            completion.opcode,
            completion.wr_id,
            completion.status,
            completion.vendor_err
        );
    }
    Ok(())
}
