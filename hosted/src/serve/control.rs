//! Control of the devices of a running server: one command a line, on standard input or as `--fault`.

use std::fmt;
use std::io::{self, BufRead as _};

use bareverbs_sim::HealthReport;
use bareverbs_sim::fault::Fault;

use super::heap::bytes_in_use;
use super::subnet::{Gone, Handle, Station};
use crate::record::Recording;

/// Every command, for the message about a line that is none.
const COMMANDS: &str = "link LID up|down, health LID SYNDROME [fatal], freeze LID, thaw LID, remove LID, insert LID, \
                        stick LID OPCODE, refuse LID OPCODE STATUS [SYNDROME], deliver LID OPCODE STATUS, drop-cqe LID CQN, \
                        repeat-cqe LID CQN, wrong-owner LID CQN, foreign-qpn LID CQN QPN, wrong-counter LID CQN COUNTER, \
                        cqe-opcode LID CQN OPCODE, lose-interrupt LID VECTOR, event-type LID TYPE, counts LID, memory, \
                        mark TEXT";

/// What shall happen to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The cable is put in or pulled.
    Link {
        /// Put in.
        up: bool,
    },
    /// The firmware reports this about its health.
    Health {
        /// Code.
        syndrome: u8,
        /// Nothing works until a reset.
        fatal: bool,
    },
    /// The health counter stands still, or goes on.
    Freeze {
        /// Stands still.
        frozen: bool,
    },
    /// The device is taken out of its slot, or put back.
    Remove {
        /// Taken out.
        removed: bool,
    },
    /// Something goes wrong once.
    Arm(Fault),
    /// The objects that there are, to be told.
    Counts,
}

impl Act {
    /// Whether a reset of the device does not undo it.
    pub(super) fn lasts(self) -> bool {
        matches!(self, Self::Link { .. } | Self::Remove { .. } | Self::Arm(_))
    }
}

/// A command for one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// LID of the device.
    pub lid: u16,
    /// What shall happen to it.
    pub act: Act,
}

/// A line that is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParseError;

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a command; there are: {COMMANDS}")
    }
}

fn wide(text: &str) -> Result<u32, ParseError> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|_| ParseError)
}

fn number(text: &str) -> Result<u16, ParseError> {
    wide(text)?.try_into().map_err(|_| ParseError)
}

fn byte(text: &str) -> Result<u8, ParseError> {
    wide(text)?.try_into().map_err(|_| ParseError)
}

/// The fault that the words name.
fn parse_fault(name: &str, numbers: &[&str]) -> Result<Fault, ParseError> {
    Ok(match (name, numbers) {
        ("stick", [opcode]) => Fault::StuckCommand { opcode: number(opcode)? },
        ("refuse", [opcode, status]) => Fault::CommandStatus { opcode: number(opcode)?, status: byte(status)?, syndrome: 0 },
        ("refuse", [opcode, status, syndrome]) => {
            Fault::CommandStatus { opcode: number(opcode)?, status: byte(status)?, syndrome: wide(syndrome)? }
        }
        ("deliver", [opcode, status]) => Fault::DeliveryStatus { opcode: number(opcode)?, status: byte(status)? },
        ("drop-cqe", [cqn]) => Fault::DropCqe { cqn: wide(cqn)? },
        ("repeat-cqe", [cqn]) => Fault::RepeatCqe { cqn: wide(cqn)? },
        ("wrong-owner", [cqn]) => Fault::WrongOwner { cqn: wide(cqn)? },
        ("foreign-qpn", [cqn, qpn]) => Fault::ForeignQpn { cqn: wide(cqn)?, qpn: wide(qpn)? },
        ("wrong-counter", [cqn, counter]) => Fault::WrongWqeCounter { cqn: wide(cqn)?, counter: number(counter)? },
        ("cqe-opcode", [cqn, opcode]) => Fault::CqeOpcode { cqn: wide(cqn)?, opcode: byte(opcode)? },
        ("lose-interrupt", [vector]) => Fault::LostInterrupt { vector: number(vector)? },
        ("event-type", [event_type]) => Fault::EventType { event_type: byte(event_type)? },
        _ => return Err(ParseError),
    })
}

/// The device that a line names by its LID, and what shall happen to it.
pub(super) fn parse(line: &str) -> Result<Line, ParseError> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, lid, rest @ ..] = words.as_slice() else { return Err(ParseError) };
    let act = match (*name, rest) {
        ("link", ["up"]) => Act::Link { up: true },
        ("link", ["down"]) => Act::Link { up: false },
        ("health", [syndrome]) => Act::Health { syndrome: byte(syndrome)?, fatal: false },
        ("health", [syndrome, "fatal"]) => Act::Health { syndrome: byte(syndrome)?, fatal: true },
        ("freeze", []) => Act::Freeze { frozen: true },
        ("thaw", []) => Act::Freeze { frozen: false },
        ("remove", []) => Act::Remove { removed: true },
        ("insert", []) => Act::Remove { removed: false },
        ("counts", []) => Act::Counts,
        (name, numbers) => Act::Arm(parse_fault(name, numbers)?),
    };
    Ok(Line { lid: number(lid)?, act })
}

/// Applies it. Returns the reply.
pub(super) fn apply(station: &mut Station, act: Act) -> String {
    let device = &mut station.device;
    match act {
        Act::Link { up } => device.set_link(up),
        Act::Health { syndrome, fatal } => {
            device.set_health(HealthReport { syndrome, reset_required: fatal, ..HealthReport::default() });
        }
        Act::Freeze { frozen } => device.freeze_health(frozen),
        Act::Remove { removed } => {
            // A card that is put in has just been powered on.
            if !removed {
                station.reset();
            }
            station.device.set_removed(removed);
        }
        Act::Arm(fault) => device.faults_mut().arm(fault),
        Act::Counts => return station.left(),
    }
    "done".into()
}

/// Reads commands until standard input ends.
pub(super) fn listen(devices: &[(u16, Handle)], recording: Option<&Recording>) {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let line = line.trim();
        let reply = if line.is_empty() {
            continue;
        } else if let Some(text) = line.strip_prefix("mark ") {
            recording.inspect(|recording| recording.mark(text));
            Ok(if recording.is_some() { "done".into() } else { "nothing is recorded".into() })
        } else if line == "help" {
            Ok(COMMANDS.into())
        } else if line == "memory" {
            Ok(bytes_in_use().map_or("not known".into(), |bytes| format!("{bytes} bytes in use")))
        } else {
            execute(devices, line)
        };
        match reply {
            Ok(reply) => super::messages::line(format!("control: {line}: {reply}")),
            Err(Gone) => return,
        }
    }
}

fn execute(devices: &[(u16, Handle)], line: &str) -> Result<String, Gone> {
    let Line { lid, act } = match parse(line) {
        Ok(command) => command,
        Err(error) => return Ok(error.to_string()),
    };
    match devices.iter().find(|(known, _)| *known == lid) {
        Some((_, handle)) => handle.ask(move |station| apply(station, act)),
        None => Ok(format!("no device has LID {lid}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_or_refused() {
        let line = |lid, act| Ok(Line { lid, act });
        assert_eq!(parse("link 2 down"), line(2, Act::Link { up: false }));
        assert_eq!(parse(" health 1  0x7 fatal "), line(1, Act::Health { syndrome: 7, fatal: true }));
        assert_eq!(parse("stick 1 0x800"), line(1, Act::Arm(Fault::StuckCommand { opcode: 0x800 })));
        let refused = Fault::CommandStatus { opcode: 0x800, status: 15, syndrome: 0x12_3456 };
        assert_eq!(parse("refuse 1 0x800 0xf 0x123456"), line(1, Act::Arm(refused)));
        assert_eq!(parse("foreign-qpn 1 3 0x1000"), line(1, Act::Arm(Fault::ForeignQpn { cqn: 3, qpn: 0x1000 })));
        assert_eq!(parse("counts 65535"), line(0xffff, Act::Counts));
        let wrong = ["", "link", "link 1", "link x up", "link 1 up now", "health 1 256", "dance 1", "remove 1 2", "stick 1 x"];
        for line in wrong {
            assert_eq!(parse(line), Err(ParseError), "{line}");
        }
    }

    #[test]
    fn every_documented_command_parses() {
        for command in COMMANDS.split(", ").filter(|command| !["memory", "mark TEXT"].contains(command)) {
            let words = command.split(' ').filter(|word| !word.starts_with('['));
            let line: Vec<&str> = words
                .map(|word| match word {
                    "up|down" => "up",
                    word if word.chars().all(|letter| letter.is_ascii_uppercase()) => "1",
                    word => word,
                })
                .collect();
            assert!(parse(&line.join(" ")).is_ok(), "{command}");
        }
    }
}
