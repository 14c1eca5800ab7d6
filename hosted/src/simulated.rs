//! Simulated machines as the subcommands use them: a host with its device, brought up by the driver.

use std::io;

use anyhow::Context as _;
use bareverbs_mlx5::{Config, Machine, Mlx5};
use bareverbs_sim::in_process::{Host, SimPlatform};

use crate::cli::TraceArgs;
use crate::trace::Sink;

/// Pages of the driver's arena: enough for the firmware's usual demand and the queues of one connection.
pub const PAGES: usize = 1024;

/// The driver on a simulated device.
pub type Backend = Mlx5<SimPlatform, PAGES>;

/// The verbs on it: one domain, one region and window to spare, one completion queue, one connection.
pub type Verbs = bareverbs::Verbs<Backend, 1, 2, 2, 1, 1, 256, 256>;

/// Brings the device of a host up.
pub fn bring_up(host: &Host) -> anyhow::Result<Box<Verbs>> {
    let machine =
        Machine { registers: host.registers(), memory: host.memory(Backend::ARENA), fence: host.fence(), clock: host.clock() };
    match Backend::bring_up(machine, &Config::DEFAULT) {
        Ok(backend) => Ok(Box::new(Verbs::new(backend))),
        Err((error, _machine)) => Err(error.into()),
    }
}

/// Where a trace goes, if one is wanted.
pub fn open_trace(args: &TraceArgs) -> anyhow::Result<Option<Sink>> {
    if !args.trace && args.trace_file.is_none() {
        return Ok(None);
    }
    let sink = Sink::open(args.trace, args.trace_file.as_deref());
    sink.map(Some).with_context(|| args.trace_file.as_ref().map_or_else(String::new, |file| file.display().to_string()))
}

/// Ends a trace: whether all of it was written.
pub fn close_trace(sink: Option<&Sink>) -> io::Result<()> {
    sink.map_or(Ok(()), Sink::finish)
}
