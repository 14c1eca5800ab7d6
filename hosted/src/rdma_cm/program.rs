//! What a program is to the loop that runs it, and what it reports.

use std::fmt;
use std::net::IpAddr;

use anyhow::Result;
use bareverbs::platform::Instant;
use bareverbs_cm::{Event, MAD_BYTES, ServiceId};
use serde::Serialize;

use super::args::{CmArgs, Room};
use super::port::{CmPort, Turn};
use crate::device::ethernet::EntryArgs;
use crate::device::{Device, Host, Role};
use crate::outcome::Outcome;

/// A program with its options.
pub(crate) trait Program {
    /// One end of it.
    type End<H: Host>: End<H, Program = Self>;
    /// What it has done.
    type Done: Done;
    /// Bytes for private data.
    const ROOM: Room;

    /// Returns the options that all programs have.
    fn cm(&self) -> &CmArgs;

    /// Returns what a server listens on.
    fn service(&self) -> ServiceId;
}

/// What a program has done, of which there may be more or less.
pub(crate) trait Done: Clone + Default + Ord + Serialize {
    /// Returns the line that says so after a success, of an end with this role or of both.
    fn line(&self, role: &str) -> String;
}

/// One end of a program.
pub(crate) trait End<H: Host>: Sized {
    /// The program.
    type Program: Program;

    /// Gives the port its address, and creates all verbs objects. The port is active.
    ///
    /// # Errors
    /// The port is none for it, or there is no room for an object.
    fn new(role: Role, device: &mut Device<H>, program: &Self::Program, entry: EntryArgs) -> Result<Self>;

    /// Returns its port.
    fn port(&mut self) -> &mut CmPort<H>;

    /// Asks the server: what a client begins with.
    ///
    /// # Errors
    /// The server cannot be reached from the address of this end.
    fn request(&mut self, device: &mut Device<H>, server: IpAddr) -> Result<()>;

    /// Does what an event asks for.
    ///
    /// # Errors
    /// The peer rejects, does not answer, or leaves too early.
    fn handle(&mut self, device: &mut Device<H>, now: Instant, event: &Event<'_>) -> Result<()>;

    /// Takes completions. Returns whether there were any.
    ///
    /// # Errors
    /// A request failed, or what came is wrong.
    fn poll(&mut self, device: &mut Device<H>) -> Result<bool>;

    /// Releases the connections that an error or the user has ended early: the peer does not learn of it by itself. Returns whether
    /// there is one to wait for, until [`Self::is_done`].
    fn leave(&mut self, now: Instant) -> bool;

    /// Returns whether it has ended as it should.
    fn is_done(&self) -> bool;

    /// Returns whether a server still waits for a client.
    fn waits_for_client(&self) -> bool;

    /// Returns whether it has rejected the request of a client.
    fn has_rejected(&self) -> bool;

    /// Returns what it has done.
    fn done(&self) -> <Self::Program as Program>::Done;

    /// Returns how far it is, for the error of an end that waits in vain.
    fn progress(&self) -> String;

    /// Destroys all verbs objects.
    ///
    /// # Errors
    /// The device does not destroy one.
    fn destroy(self, device: &mut Device<H>) -> Result<()>;

    /// Does what there is to do. Returns whether there was anything.
    ///
    /// # Errors
    /// Those of the others, or QP1 is broken.
    fn step(&mut self, device: &mut Device<H>) -> Result<bool> {
        let mut progressed = false;
        let mut mad = [0; MAD_BYTES];
        loop {
            match self.port().turn(device, &mut mad)? {
                Turn::Idle => break,
                Turn::Done => {}
                Turn::Event(now, event) => self.handle(device, now, &event)?,
            }
            // At once: there is room for a few answers alone.
            self.port().transmit(device)?;
            progressed = true;
        }
        progressed |= self.poll(device)?;
        self.port().transmit(device)?;
        Ok(progressed)
    }
}

/// Report of a program.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report<D> {
    /// How it ended; `ok` says that all connections were made and ended as they should.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Ends in this process: `client`, `server` or `both`.
    pub role: &'static str,
    /// What was done.
    #[serde(flatten)]
    pub done: D,
    /// Whether a server has rejected the request of its client.
    pub rejected: bool,
    /// Texts of the private data that came with requests, answers and rejections, up to the zeros at their end. A byte that is no
    /// printable ASCII is escaped (`\xff`).
    pub private_data: Vec<String>,
}

impl<D: Done> fmt::Display for Report<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.outcome.ok {
            return Ok(());
        }
        if self.rejected {
            return writeln!(f, "rejected the request of the client");
        }
        writeln!(f, "{}", self.done.line(self.role))
    }
}
