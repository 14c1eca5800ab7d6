//! Two sides and the world between them: waiting, measuring, checking completions.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bareverbs::{Clock as _, Completion, Event, WcOpcode, WcStatus};
use bareverbs_sim::in_process::{SimClock, World};

use super::progress::Progress;
use super::report::Transfer;
use super::side::Side;

/// How long, by the devices' time, something may take: far more than all retries together.
const PATIENCE: Duration = Duration::from_secs(30);

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// The one that starts.
    A,
    /// The one with the window.
    B,
}

/// Messages and bytes that arrived and were checked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

/// Two sides, joined.
pub(super) struct Bed {
    pub(super) world: World,
    pub(super) clock: SimClock,
    pub(super) a: Side,
    pub(super) b: Side,
    pub(super) progress: Progress,
    pub(super) seed: u64,
    /// Whether the wire may lose packets.
    pub(super) loses: bool,
    /// Messages of the present iteration start with this index.
    pub(super) first: u64,
}

impl Bed {
    pub(super) fn side(&mut self, which: Which) -> &mut Side {
        match which {
            Which::A => &mut self.a,
            Which::B => &mut self.b,
        }
    }

    /// Lets the world go on; events of the devices are taken, so that page requests are answered.
    fn idle(&mut self) -> Result<()> {
        for side in [&mut self.a, &mut self.b] {
            while let Some(event) = side.verbs.poll_event()? {
                if let Event::DeviceFatal(syndrome, extended) = event {
                    bail!("device {} is broken: syndrome {syndrome:#x}, {extended:#x}", side.name);
                }
            }
        }
        self.clock.relax();
        Ok(())
    }

    /// The next completion of a side, whatever it says.
    pub(super) fn next(&mut self, which: Which) -> Result<Completion> {
        let mut deadline = None;
        loop {
            if let Some(completion) = self.side(which).poll()? {
                return Ok(completion);
            }
            let now = self.world.now();
            let deadline = *deadline.get_or_insert(now.after(PATIENCE));
            if now > deadline {
                bail!("no completion at {} within {PATIENCE:?} of the devices' time", self.side(which).name);
            }
            self.idle()?;
        }
    }

    /// The next completion of a side, which must be a success of this request.
    pub(super) fn expect(&mut self, which: Which, wr_id: u64, opcode: WcOpcode) -> Result<Completion> {
        let completion = self.next(which)?;
        check(self.side(which).name, &completion)?;
        if (completion.wr_id, completion.opcode) != (wr_id, opcode) {
            bail!("{:?} {:#x} completed instead of {opcode:?} {wr_id:#x}", completion.opcode, completion.wr_id);
        }
        Ok(completion)
    }

    /// The next completion of a side, which must be its next receive, of `bytes`; gives the slot.
    pub(super) fn expect_receive(&mut self, which: Which, opcode: WcOpcode, bytes: usize) -> Result<(usize, Completion)> {
        let completion = self.next(which)?;
        check(self.side(which).name, &completion)?;
        let slot = self.side(which).take_receive(&completion)?;
        if completion.opcode != opcode || completion.byte_len as usize != bytes {
            bail!("{:?} of {} bytes arrived instead of {opcode:?} of {bytes}", completion.opcode, completion.byte_len);
        }
        Ok((slot, completion))
    }

    /// Measures `work`; what it moved counts also if it fails.
    pub(super) fn measure(
        &mut self,
        what: &'static str,
        work: impl FnOnce(&mut Self, &mut Moved) -> Result<()>,
    ) -> (Transfer, Result<()>) {
        let (wall, simulated, retries) = (Instant::now(), self.world.now(), self.retries());
        let mut moved = Moved::default();
        let result = work(self, &mut moved);
        let transfer = Transfer {
            what,
            messages: moved.messages,
            bytes: moved.bytes,
            seconds: wall.elapsed().as_secs_f64(),
            simulated_seconds: self.world.now().since(simulated).as_secs_f64(),
            retries: self.retries().saturating_sub(retries),
            ..Transfer::default()
        };
        (transfer, result)
    }

    fn retries(&self) -> u64 {
        self.a.retries() + self.b.retries()
    }
}

fn check(name: &str, completion: &Completion) -> Result<()> {
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
