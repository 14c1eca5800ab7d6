//! The control channel of a running server: one command per line, on standard input or at a Unix socket.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::control_line::{Action, COMMANDS, ControlLine, parse};
use crate::device_slot::DeviceSlot;
use crate::devices::{DeviceHandle, Dropped};
use crate::error::Gone;
use crate::joined::{Cable, JoinedStats};
use crate::log::Log;
use crate::malloc_stats::bytes_in_use;
use crate::record::Recording;
use crate::socket::ACCEPT_RETRY_INTERVAL;

/// Timeout for the whole of the next command of a connected client, and for writing a reply to it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of a line in bytes.
const MAX_LINE: u64 = 4096;
/// Timeout of a command for a busy device.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(1);

/// Applies an action to a device and returns the reply.
pub(crate) fn apply(slot: &mut DeviceSlot, dropped: Dropped, action: Action) -> String {
    match action {
        Action::Counts => return slot.left(),
        Action::Stats { json } => return stats(slot, dropped, json),
        // A card that is inserted is in the state after power-on.
        Action::Remove { removed: false } => slot.reset(),
        _ => {}
    }
    action.change(&mut slot.device);
    "done".into()
}

/// Returns the counters of a device since the server started.
fn stats(slot: &DeviceSlot, dropped: Dropped, json: bool) -> String {
    let stats = slot.device.stats();
    let numbers = [
        ("commands", stats.commands),
        ("doorbells", stats.doorbells),
        ("interrupts", stats.interrupts),
        ("frames_sent", stats.frames_sent),
        ("frames_received", stats.frames_received),
        ("frames_discarded", dropped.discarded),
        ("frames_filtered", dropped.filtered),
        ("notifications_sent", stats.engine.notifications_sent),
        ("notifications_received", stats.engine.notifications_received),
    ];
    if json {
        let numbers = numbers.into_iter().map(|(name, number)| (name.to_owned(), number.into()));
        return serde_json::Value::Object(numbers.collect()).to_string();
    }
    let words: Vec<String> = numbers.iter().map(|(name, number)| format!("{name}={number}")).collect();
    words.join(" ")
}

/// Returns whether a line asks for the joined wires, and then whether as JSON.
fn wants_wires(line: &str) -> Option<bool> {
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["wires"] => Some(false),
        ["wires", "json"] => Some(true),
        _ => None,
    }
}

/// Returns what happened at the joined wires since the server started.
fn wires(cables: &[Arc<Cable>], json: bool) -> String {
    let stats = cables.iter().map(|cable| cable.stats());
    if json {
        let object = |stats: JoinedStats| {
            let numbers = stats.numbers().into_iter().map(|(name, number)| (name.to_owned(), number.into()));
            let names = [("name", stats.name), ("address", stats.address)].map(|(name, text)| (name.to_owned(), text.into()));
            let connected = ("connected".to_owned(), stats.connected.into());
            serde_json::Value::Object(names.into_iter().chain([connected]).chain(numbers).collect())
        };
        return serde_json::Value::Array(stats.map(object).collect()).to_string();
    }
    let words = |stats: JoinedStats| {
        let counts = stats.numbers().map(|(name, number)| format!("{name}={number}")).join(" ");
        format!("{} connected={} {counts}", stats.name, stats.connected)
    };
    let words: Vec<String> = stats.map(words).collect();
    if words.is_empty() { "no wire is joined".into() } else { words.join("; ") }
}

/// A client whose line has to be there by a deadline, in however many pieces it comes.
struct UntilDeadline {
    stream: UnixStream,
    deadline: Instant,
}

impl io::Read for UntilDeadline {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

/// The devices and the recording that commands apply to.
#[derive(Clone)]
pub(crate) struct Control {
    pub(crate) devices: Vec<(u16, DeviceHandle)>,
    pub(crate) cables: Vec<Arc<Cable>>,
    pub(crate) recording: Option<Recording>,
    pub(crate) log: Log,
}

impl Control {
    /// Executes a line and returns the reply; `None` for an empty line.
    fn answer(&self, line: &str) -> Result<Option<String>, Gone> {
        let line = line.trim();
        Ok(Some(if line.is_empty() {
            return Ok(None);
        } else if let Some(text) = line.strip_prefix("mark ") {
            self.recording.iter().for_each(|recording| recording.mark(text));
            if self.recording.is_some() { "done".into() } else { "nothing is recorded".into() }
        } else if line == "help" {
            COMMANDS.into()
        } else if line == "memory" {
            bytes_in_use().map_or("not known".into(), |bytes| format!("{bytes} bytes in use"))
        } else if let Some(json) = wants_wires(line) {
            wires(&self.cables, json)
        } else {
            execute(&self.devices, line)?
        }))
    }

    /// Reads commands until standard input ends.
    pub(crate) fn listen(&self) {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            match self.answer(&line) {
                Ok(Some(reply)) => self.log.line(format!("control: {}: {reply}", line.trim())),
                Ok(None) => {}
                Err(Gone) => return,
            }
        }
    }

    /// Serves one client after another, with a line of reply for each command.
    pub(crate) fn serve(&self, listener: &UnixListener) {
        for stream in listener.incoming() {
            match stream {
                // A client that disconnects early is no error.
                Ok(stream) => drop(self.converse(stream)),
                Err(_) if self.devices.iter().any(|(_, handle)| handle.has_ended()) => return,
                Err(_) => thread::sleep(ACCEPT_RETRY_INTERVAL),
            }
        }
    }

    fn converse(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
        let mut lines = io::BufReader::new(UntilDeadline { stream: stream.try_clone()?, deadline: Instant::now() });
        loop {
            lines.get_mut().deadline = Instant::now() + IDLE_TIMEOUT;
            let mut line = String::new();
            if lines.by_ref().take(MAX_LINE).read_line(&mut line)? == 0 {
                return Ok(());
            }
            match self.answer(&line) {
                Ok(reply) => stream.write_all(format!("{}\n", reply.unwrap_or_default()).as_bytes())?,
                Err(Gone) => return Ok(()),
            }
        }
    }
}

fn execute(devices: &[(u16, DeviceHandle)], line: &str) -> Result<String, Gone> {
    let ControlLine { lid, act } = match parse(line) {
        Ok(command) => command,
        Err(error) => return Ok(error.to_string()),
    };
    match devices.iter().find(|(known, _)| *known == lid) {
        Some((_, handle)) => {
            let dropped = handle.dropped();
            let done = handle.ask_within(DEVICE_TIMEOUT, move |slot| apply(slot, dropped, act))?;
            Ok(done.unwrap_or_else(|| {
                "not done: the device waits for its client's memory, or for a file that takes no more lines".into()
            }))
        }
        None => Ok(format!("no device has LID {lid}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_comes_byte_by_byte_has_to_be_there_in_time_too() {
        let (stream, mut client) = UnixStream::pair().unwrap();
        let start = Instant::now();
        let drip = thread::spawn(move || {
            while client.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(20))
            }
        });
        let deadline = start + Duration::from_millis(300);
        let mut lines = io::BufReader::new(UntilDeadline { stream, deadline });
        assert!(lines.read_line(&mut String::new()).is_err());
        assert!((Duration::from_millis(300)..Duration::from_secs(5)).contains(&start.elapsed()), "{:?}", start.elapsed());
        drop(lines);
        drip.join().unwrap();
    }
}
