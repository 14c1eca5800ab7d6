//! The state of a cable that its near end, at the switch, and its far end share.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bareverbs_sim::fabric::{Arrival, ForeignAddress, StationAddress, Uplink};
use bareverbs_sim::wire::PortId;
use bareverbs_sim::{MAX_ETHERNET_FRAME, MIN_ETHERNET_FRAME};
use rustix::net::Shutdown;

use crate::error::Gone;
use crate::log::{Log, RateLimited};
use crate::source_queues::SourceQueues;

/// Bytes of the addresses and the type of Ethernet: no frame is shorter.
const ETHERNET_HEADER: usize = 14;

/// Lengths of frames that are put on the wire. A short one gets zeros up to [`MIN_ETHERNET_FRAME`] there.
pub(super) const LENGTHS: std::ops::RangeInclusive<usize> = ETHERNET_HEADER..=MAX_ETHERNET_FRAME;

const _: () = assert!(ETHERNET_HEADER < MIN_ETHERNET_FRAME);

/// What takes the frames of a peer: it returns what became of one.
pub(crate) trait Deliver: Fn(Vec<u8>) -> Result<Arrival, Gone> + Clone + Send + 'static {}

impl<D: Fn(Vec<u8>) -> Result<Arrival, Gone> + Clone + Send + 'static> Deliver for D {}

/// What happened at a joined wire since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinedStats {
    /// Name of the wire: `join1` and so on, in the order of the configuration.
    pub name: String,
    /// Where it leads.
    pub address: String,
    /// Whether a peer is connected now. Datagrams know no connection: `true`.
    pub connected: bool,
    /// Frames sent to the peer.
    pub sent: u64,
    /// Frames for the peer that were dropped: it did not take them in time, or was not there.
    pub sends_dropped: u64,
    /// Frames that came from the peer.
    pub received: u64,
    /// Those of them that found no room at the device that they were for.
    pub receives_dropped: u64,
    /// Those of them that were dropped because of an address that the wire is not bound to.
    pub receives_refused: u64,
    /// Further frames from the peer that were too short or too long for Ethernet, and dropped.
    pub of_wrong_length: u64,
    /// Connections that ended with a violation of the format: within a frame, or by a length that no frame has.
    pub violations: u64,
}

impl JoinedStats {
    /// Returns each count with its name.
    pub(crate) const fn numbers(&self) -> [(&'static str, u64); 7] {
        [
            ("sent", self.sent),
            ("sends_dropped", self.sends_dropped),
            ("received", self.received),
            ("receives_dropped", self.receives_dropped),
            ("receives_refused", self.receives_refused),
            ("of_wrong_length", self.of_wrong_length),
            ("violations", self.violations),
        ]
    }
}

impl fmt::Display for JoinedStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            address,
            sent,
            sends_dropped,
            received,
            receives_dropped,
            receives_refused,
            of_wrong_length,
            violations,
            ..
        } = self;
        write!(
            f,
            "{name}: {address}: {sent} frames sent, {sends_dropped} not taken by the peer, {received} received, \
             {receives_dropped} of them dropped"
        )?;
        if *receives_refused > 0 {
            write!(f, ", {receives_refused} refused for an address of another")?;
        }
        if *of_wrong_length > 0 {
            write!(f, ", {of_wrong_length} of a wrong length")?;
        }
        if *violations > 0 {
            write!(f, ", {violations} connections ended with a violation of the format")?;
        }
        Ok(())
    }
}

/// A cable.
pub(crate) struct Cable {
    lines: RateLimited,
    /// Names of all ports.
    ports: Vec<String>,
    state: Mutex<State>,
    /// Frames wait, the connection has broken, or the near end was dropped.
    changed: Condvar,
}

struct State {
    queues: SourceQueues,
    stats: JoinedStats,
    /// The server has ended.
    closed: bool,
    /// The sockets at which the far end may wait: of the peer, and one that listens for the next.
    socket: Option<OwnedFd>,
    listener: Option<OwnedFd>,
    /// The connection of a peer that takes the place of the one before.
    next_peer: Option<OwnedFd>,
}

/// What the far end has to do.
pub(super) enum Work {
    /// To send these frames.
    Frames(Vec<Vec<u8>>),
    /// The connection has broken.
    Broken,
    /// The server has ended.
    Closed,
}

impl Cable {
    pub(super) fn new(name: String, address: String, ports: Vec<String>, log: &Log) -> Self {
        let stats = JoinedStats { name: name.clone(), address, ..JoinedStats::default() };
        let state = State {
            queues: SourceQueues::new(ports.len()),
            stats,
            closed: false,
            socket: None,
            listener: None,
            next_peer: None,
        };
        Self { lines: RateLimited::new(name, log.clone()), ports, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> &str {
        self.lines.name()
    }

    /// Writes a line with the name of the cable, unless its peer has caused too many.
    pub(super) fn line(&self, text: fmt::Arguments<'_>) {
        self.lines.line(text);
    }

    /// Returns the counts so far.
    pub(crate) fn stats(&self) -> JoinedStats {
        self.state().stats.clone()
    }

    /// Logs how many lines were left out.
    pub(crate) fn finish(&self) {
        self.lines.finish();
    }

    /// Changes the counts.
    pub(super) fn count(&self, change: impl FnOnce(&mut JoinedStats)) {
        change(&mut self.state().stats);
    }

    /// Takes a frame from the peer.
    pub(super) fn take(&self, frame: Vec<u8>, deliver: &impl Deliver) -> Result<(), Gone> {
        if !LENGTHS.contains(&frame.len()) {
            self.count(|stats| stats.of_wrong_length += 1);
            return Ok(());
        }
        let Arrival { is_on_wire, foreign } = deliver(frame)?;
        let is_refused = foreign.is_some_and(|foreign| foreign.is_refused);
        self.count(|stats| {
            stats.received += 1;
            stats.receives_dropped += u64::from(!is_on_wire && !is_refused);
            stats.receives_refused += u64::from(is_refused);
        });
        if let Some(foreign) = foreign.filter(|foreign| foreign.is_new) {
            self.report(&foreign);
        }
        Ok(())
    }

    /// Says that a frame had an address of another port.
    fn report(&self, foreign: &ForeignAddress) {
        let owner = foreign.owner.and_then(|port| self.ports.get(port.0));
        let what = if foreign.is_refused { "refused" } else { "let pass" };
        match owner {
            _ if foreign.address == StationAddress::Unreadable => {
                self.line(format_args!("the peer sends frames whose addresses cannot be read: {what}"));
            }
            Some(owner) => self.line(format_args!("the peer sends from the {} of {owner}: {what}", foreign.address)),
            None => self.line(format_args!("the peer sends from the {}, which is not its own: {what}", foreign.address)),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Sets the socket that is shut down when the server ends, or another peer takes the place. Returns `false` if that has
    /// happened already.
    pub(super) fn set_socket(&self, socket: Option<OwnedFd>) -> bool {
        let mut state = self.state();
        state.socket = socket.filter(|_| !state.closed);
        !state.closed && state.next_peer.is_none()
    }

    /// Sets the socket that listens for peers, which is shut down when the server ends. Returns `false` if it has ended.
    pub(super) fn set_listener(&self, listener: OwnedFd) -> bool {
        let mut state = self.state();
        state.listener = Some(listener).filter(|_| !state.closed);
        !state.closed
    }

    /// Gives the connection of the next peer to [`Self::next_peer`]. That of the one before is shut down: it may be one that is
    /// silent for ever. Returns `false` if the server has ended.
    pub(super) fn replace_peer(&self, stream: OwnedFd) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        let is_replaced = state.socket.as_ref().is_some_and(|socket| rustix::net::shutdown(socket, Shutdown::Both).is_ok());
        state.next_peer = Some(stream);
        drop(state);
        self.changed.notify_all();
        if is_replaced {
            self.line(format_args!("another peer takes the place of this one"));
        }
        true
    }

    /// Waits for the connection of the next peer. `None`: the server has ended.
    pub(super) fn next_peer(&self) -> Option<OwnedFd> {
        let state = self.state();
        let waits = self.changed.wait_while(state, |state| !state.closed && state.next_peer.is_none());
        waits.unwrap_or_else(PoisonError::into_inner).next_peer.take()
    }

    /// Lets the switch send frames, or no more. Those that wait are lost.
    pub(super) fn set_connected(&self, connected: bool) {
        let mut state = self.state();
        state.stats.connected = connected;
        let lost = state.queues.clear();
        state.stats.sends_dropped += lost as u64;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for frames to send, and returns as many as have up to `most` bytes together, or one.
    pub(super) fn next(&self, most: usize) -> Work {
        let mut state = self.state();
        while !state.closed && state.stats.connected && state.queues.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return Work::Closed;
        }
        if !state.stats.connected {
            return Work::Broken;
        }
        let (mut frames, mut bytes) = (Vec::new(), 0);
        while bytes < most
            && let Some(frame) = state.queues.pop()
        {
            bytes += frame.len();
            frames.push(frame);
        }
        Work::Frames(frames)
    }

    /// Waits for this time, or until the server ends.
    pub(super) fn pause(&self, time: Duration) {
        let state = self.state();
        let waits = self.changed.wait_timeout_while(state, time, |state| !state.closed);
        drop(waits.unwrap_or_else(PoisonError::into_inner));
    }

    fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let lost = state.queues.clear();
        state.stats.sends_dropped += lost as u64;
        state.next_peer = None;
        for socket in [state.socket.take(), state.listener.take()].into_iter().flatten() {
            // A socket without a peer need not be interrupted.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// The near end of a cable. Dropping it ends the far end.
pub(crate) struct NearEnd(pub(super) Arc<Cable>);

impl Uplink for NearEnd {
    /// Queues a frame if there is a peer, and room for frames of its port.
    fn send(&self, from: PortId, frame: Vec<u8>) -> bool {
        let mut state = self.0.state();
        let was_empty = state.queues.is_empty();
        if !state.stats.connected || !state.queues.push(from, frame) {
            state.stats.sends_dropped += 1;
            return false;
        }
        drop(state);
        if was_empty {
            self.0.changed.notify_all();
        }
        true
    }
}

impl Drop for NearEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}
