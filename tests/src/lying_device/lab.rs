//! The device, and what one step of a program may cost.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bareverbs::platform::{Clock, Instant};
use bareverbs_mlx5_spec::{CmdIn, CmdOpcode, Cqc, CreateCqIn, View};
use bareverbs_sim::in_process::Host;
use bareverbs_sim::trace::{Record, Tracer};

use super::lies::Lies;

/// Writes of the device in one step: an output of 4 KiB is 20, a message one for each page, and a bring-up has 60 commands.
const WRITES: u64 = 20_000;

/// `cqe_sz` of `mlx5_ifc.h`: 128 bytes.
const CQE_128_BYTES: u32 = 1;

/// What the driver has sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    /// Opcodes of its commands.
    pub(super) opcodes: BTreeSet<u16>,
    /// Whether a completion queue was to have entries of 128 bytes.
    pub(super) large_completions: bool,
}

/// Reads the commands of the driver.
#[derive(Clone, Default)]
pub(super) struct Commands(pub(super) Arc<Mutex<Sent>>);

impl Tracer for Commands {
    fn record(&mut self, _: Instant, record: Record<'_>) {
        let Record::Command { input, .. } = record else { return };
        let opcode = View::<CmdIn>::new(input).map_or(0, |input| input.get(CmdIn::OPCODE));
        let cq = View::<CreateCqIn>::new(input).filter(|_| opcode == CmdOpcode::CreateCq.code());
        let mut sent = self.0.lock().unwrap();
        sent.opcodes.insert(opcode as u16);
        sent.large_completions |= cq.is_some_and(|cq| cq.sub(CreateCqIn::CQ_CONTEXT).get(Cqc::CQE_SZ) == CQE_128_BYTES);
    }
}

/// The device, what it does wrong, and the bounds of a step.
pub(super) struct Lab {
    pub(super) host: Host,
    pub(super) lies: Arc<Mutex<Lies>>,
    pub(super) limit: Duration,
}

impl Lab {
    pub(super) fn mark(&self) -> (Instant, u64) {
        (self.host.clock().now(), self.lies.lock().unwrap().writes)
    }

    /// Asserts that what was done since `mark` had an end in time.
    pub(super) fn check(&self, mark: (Instant, u64), what: &str) {
        let (now, writes) = self.mark();
        let (took, wrote) = (now.since(mark.0), writes - mark.1);
        assert!(took < self.limit, "{what} took {took:?}");
        assert!(wrote < WRITES, "{what} made the device write {wrote} times");
    }
}
