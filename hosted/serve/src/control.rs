//! Control of the devices of a running server: one command a line, on standard input or as `--fault`.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use crate::control_line::{Act, COMMANDS, Line, parse};
use crate::devices::{Handle, Station};
use crate::error::Gone;
use crate::log;
use crate::malloc_stats::bytes_in_use;
use crate::record::Recording;

/// How long whoever is connected may say nothing while others wait.
const IDLE: Duration = Duration::from_secs(10);

/// Bytes of a line at most.
const LONGEST_LINE: u64 = 4096;
/// How long a command waits for a device that is in the middle of something.
const PATIENCE: Duration = Duration::from_secs(1);

/// Applies it. Returns the reply.
pub(crate) fn apply(station: &mut Station, act: Act) -> String {
    match act {
        Act::Counts => return station.left(),
        Act::Stats { json } => return stats(station, json),
        // A card that is put in has just been powered on.
        Act::Remove { removed: false } => station.reset(),
        _ => {}
    }
    act.change(&mut station.device);
    "done".into()
}

/// What a device has done since the server began.
fn stats(station: &Station, json: bool) -> String {
    let stats = station.device.stats();
    let numbers = [
        ("commands", stats.commands),
        ("doorbells", stats.doorbells),
        ("interrupts", stats.interrupts),
        ("frames_sent", stats.frames_sent),
        ("frames_received", stats.frames_received),
    ];
    if json {
        let numbers = numbers.into_iter().map(|(name, number)| (name.to_owned(), number.into()));
        return serde_json::Value::Object(numbers.collect()).to_string();
    }
    let words: Vec<String> = numbers.iter().map(|(name, number)| format!("{name}={number}")).collect();
    words.join(" ")
}

/// Those who give commands, and what they may reach.
#[derive(Clone)]
pub(crate) struct Control {
    pub(crate) devices: Vec<(u16, Handle)>,
    pub(crate) recording: Option<Recording>,
}

impl Control {
    /// What a line has done, in words; `None` for an empty line.
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
        } else {
            execute(&self.devices, line)?
        }))
    }

    /// Reads commands until standard input ends.
    pub(crate) fn listen(&self) {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            match self.answer(&line) {
                Ok(Some(reply)) => log::line(format!("control: {}: {reply}", line.trim())),
                Ok(None) => {}
                Err(Gone) => return,
            }
        }
    }

    /// Takes commands from whoever connects, one after another; each is answered with a line.
    pub(crate) fn serve(&self, listener: &UnixListener) {
        for stream in listener.incoming() {
            // A caller who goes away in between is no loss.
            let _ = stream.and_then(|stream| self.converse(stream));
        }
    }

    fn converse(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(IDLE))?;
        stream.set_write_timeout(Some(IDLE))?;
        let mut lines = io::BufReader::new(stream.try_clone()?);
        loop {
            let mut line = String::new();
            if lines.by_ref().take(LONGEST_LINE).read_line(&mut line)? == 0 {
                return Ok(());
            }
            match self.answer(&line) {
                Ok(reply) => stream.write_all(format!("{}\n", reply.unwrap_or_default()).as_bytes())?,
                Err(Gone) => return Ok(()),
            }
        }
    }
}

fn execute(devices: &[(u16, Handle)], line: &str) -> Result<String, Gone> {
    let Line { lid, act } = match parse(line) {
        Ok(command) => command,
        Err(error) => return Ok(error.to_string()),
    };
    match devices.iter().find(|(known, _)| *known == lid) {
        Some((_, handle)) => {
            let done = handle.ask_within(PATIENCE, move |station| apply(station, act))?;
            Ok(done.unwrap_or_else(|| {
                "not done: the device waits for its client's memory, or for a file that takes no more lines".into()
            }))
        }
        None => Ok(format!("no device has LID {lid}")),
    }
}
