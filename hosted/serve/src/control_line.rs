//! Lines of the control channel: a device and an action.

use std::fmt;
use std::str::FromStr;

use bareverbs_sim::fault::Fault;
use bareverbs_sim::host_memory::HostMemory;
use bareverbs_sim::trace::Tracer;
use bareverbs_sim::{Device, HealthReport};

use crate::parse_number::parse_number;

/// Syntax of all commands, for `help` and for error messages.
pub(crate) const COMMANDS: &str = "link LID up|down, health LID SYNDROME [fatal], freeze LID, thaw LID, remove LID, insert LID, \
                        stick LID OPCODE, refuse LID OPCODE STATUS [SYNDROME], deliver LID OPCODE STATUS, corrupt LID OPCODE|any OFFSET MASK, drop-cqe LID CQN, \
                        repeat-cqe LID CQN, wrong-owner LID CQN, foreign-qpn LID CQN QPN, wrong-counter LID CQN COUNTER, \
                        cqe-opcode LID CQN OPCODE, lose-interrupt LID VECTOR, event-type LID TYPE, release LID, counts LID, stats LID [json], wires [json], memory, \
                        mark TEXT";

/// An action on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Plugs or unplugs the cable.
    Link {
        /// Whether it is plugged.
        up: bool,
    },
    /// Makes the firmware report a health syndrome.
    Health {
        /// Code of the syndrome.
        syndrome: u8,
        /// Whether the device is unusable until a reset.
        fatal: bool,
    },
    /// Stops or resumes the health counter.
    Freeze {
        /// Whether it stops.
        frozen: bool,
    },
    /// Removes the device from its slot, or inserts it again.
    Remove {
        /// Whether it is removed.
        removed: bool,
    },
    /// Gives a managed port the M_Key and protection of its start.
    Release,
    /// Injects a fault once.
    Arm(Fault),
    /// Replies with the numbers of objects of the device.
    Counts,
    /// Replies with the counters of the device.
    Stats {
        /// As JSON.
        json: bool,
    },
}

impl Action {
    /// Applies the action to a device. Returns whether it is one that changes a device.
    pub fn change<M: HostMemory, T: Tracer + 'static>(self, device: &mut Device<M, T>) -> bool {
        match self {
            Self::Link { up } => device.set_link(up),
            Self::Health { syndrome, fatal } => {
                device.set_health(HealthReport { syndrome, reset_required: fatal, ..HealthReport::default() });
            }
            Self::Freeze { frozen } => device.freeze_health(frozen),
            Self::Remove { removed } => device.set_removed(removed),
            Self::Release => device.release_management_key(),
            Self::Arm(fault) => device.faults_mut().arm(fault),
            Self::Counts | Self::Stats { .. } => return false,
        }
        true
    }

    /// Returns whether the effect persists across a reset of the device.
    pub fn lasts(self) -> bool {
        matches!(self, Self::Link { .. } | Self::Remove { .. } | Self::Release | Self::Arm(_))
    }
}

/// A command for one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLine {
    /// LID of the device.
    pub lid: u16,
    /// The action on it.
    pub act: Action,
}

impl FromStr for ControlLine {
    type Err = ParseError;

    fn from_str(line: &str) -> Result<Self, ParseError> {
        parse(line)
    }
}

/// Error of a line that is not a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseError {
    /// There is no command of this name.
    Name(String),
    /// The command of this name has other arguments.
    Words(String),
}

impl std::error::Error for ParseError {}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                let names: Vec<&str> = COMMANDS.split(", ").filter_map(|command| command.split(' ').next()).collect();
                write!(f, "no command '{name}'; there are {}", names.join(", "))
            }
            Self::Words(name) => {
                let mut usages = COMMANDS.split(", ").filter(|command| command.split(' ').next() == Some(name));
                write!(f, "as in: {}", usages.next().unwrap_or(name))
            }
        }
    }
}

/// Returns the fault of a command with these arguments.
fn parse_fault(name: &str, numbers: &[&str]) -> Option<Fault> {
    Some(match (name, numbers) {
        ("stick", [opcode]) => Fault::StuckCommand { opcode: number(opcode)? },
        ("refuse", [opcode, status]) => Fault::CommandStatus { opcode: number(opcode)?, status: number(status)?, syndrome: 0 },
        ("refuse", [opcode, status, syndrome]) => {
            Fault::CommandStatus { opcode: number(opcode)?, status: number(status)?, syndrome: number(syndrome)? }
        }
        ("deliver", [opcode, status]) => Fault::DeliveryStatus { opcode: number(opcode)?, status: number(status)? },
        ("corrupt", [opcode, offset, mask]) => {
            let opcode = if *opcode == "any" { None } else { Some(number(opcode)?) };
            Fault::CorruptOutput { opcode, offset: number(offset)?, mask: number(mask)? }
        }
        ("drop-cqe", [cqn]) => Fault::DropCqe { cqn: number(cqn)? },
        ("repeat-cqe", [cqn]) => Fault::RepeatCqe { cqn: number(cqn)? },
        ("wrong-owner", [cqn]) => Fault::WrongOwner { cqn: number(cqn)? },
        ("foreign-qpn", [cqn, qpn]) => Fault::ForeignQpn { cqn: number(cqn)?, qpn: number(qpn)? },
        ("wrong-counter", [cqn, counter]) => Fault::WrongWqeCounter { cqn: number(cqn)?, counter: number(counter)? },
        ("cqe-opcode", [cqn, opcode]) => Fault::CqeOpcode { cqn: number(cqn)?, opcode: number(opcode)? },
        ("lose-interrupt", [vector]) => Fault::LostInterrupt { vector: number(vector)? },
        ("event-type", [event_type]) => Fault::EventType { event_type: number(event_type)? },
        _ => return None,
    })
}

fn number<T: TryFrom<u64>>(text: &str) -> Option<T> {
    parse_number(text).ok()
}

/// Returns the action of a command with these arguments after the LID.
fn parse_act(name: &str, rest: &[&str]) -> Option<Action> {
    Some(match (name, rest) {
        ("link", ["up"]) => Action::Link { up: true },
        ("link", ["down"]) => Action::Link { up: false },
        ("health", [syndrome]) => Action::Health { syndrome: number(syndrome)?, fatal: false },
        ("health", [syndrome, "fatal"]) => Action::Health { syndrome: number(syndrome)?, fatal: true },
        ("freeze", []) => Action::Freeze { frozen: true },
        ("thaw", []) => Action::Freeze { frozen: false },
        ("remove", []) => Action::Remove { removed: true },
        ("insert", []) => Action::Remove { removed: false },
        ("release", []) => Action::Release,
        ("counts", []) => Action::Counts,
        ("stats", []) => Action::Stats { json: false },
        ("stats", ["json"]) => Action::Stats { json: true },
        (name, numbers) => Action::Arm(parse_fault(name, numbers)?),
    })
}

/// Returns the device that a line names by its LID, and what happens to it.
pub(crate) fn parse(line: &str) -> Result<ControlLine, ParseError> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let name = words.first().copied().unwrap_or_default();
    if !COMMANDS.split(", ").any(|command| command.split(' ').next() == Some(name)) {
        return Err(ParseError::Name(name.into()));
    }
    let line = match words.as_slice() {
        [_, lid, rest @ ..] => number(lid).zip(parse_act(name, rest)),
        _ => None,
    };
    line.map(|(lid, act)| ControlLine { lid, act }).ok_or_else(|| ParseError::Words(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_or_refused() {
        let line = |lid, act| Ok(ControlLine { lid, act });
        assert_eq!(parse("link 2 down"), line(2, Action::Link { up: false }));
        assert_eq!(parse(" health 1  0x7 fatal "), line(1, Action::Health { syndrome: 7, fatal: true }));
        assert_eq!(parse("stick 1 0x800"), line(1, Action::Arm(Fault::StuckCommand { opcode: 0x800 })));
        let refused = Fault::CommandStatus { opcode: 0x800, status: 15, syndrome: 0x12_3456 };
        assert_eq!(parse("refuse 1 0x800 0xf 0x123456"), line(1, Action::Arm(refused)));
        let corrupt = |opcode| line(1, Action::Arm(Fault::CorruptOutput { opcode, offset: 12, mask: 0x8000_0000 }));
        assert_eq!(parse("corrupt 1 0x107 12 0x80000000"), corrupt(Some(0x107)));
        assert_eq!(parse("corrupt 1 any 12 0x80000000"), corrupt(None));
        assert_eq!(parse("foreign-qpn 1 3 0x1000"), line(1, Action::Arm(Fault::ForeignQpn { cqn: 3, qpn: 0x1000 })));
        assert_eq!(parse("release 2"), line(2, Action::Release));
        assert_eq!(parse("counts 65535"), line(0xffff, Action::Counts));
        let wrong = [
            "",
            "link",
            "link 1",
            "link x up",
            "link 1 up now",
            "health 1 256",
            "dance 1",
            "remove 1 2",
            "stick 1 x",
            "corrupt 1 all 0 1",
        ];
        assert_eq!(parse("dance 1"), Err(ParseError::Name("dance".into())));
        assert_eq!(parse("stick 1 x").unwrap_err().to_string(), "as in: stick LID OPCODE");
        for line in wrong {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn every_documented_command_parses() {
        for command in COMMANDS.split(", ").filter(|command| !["memory", "mark TEXT", "wires [json]"].contains(command)) {
            let words = command.split(' ').filter(|word| !word.starts_with('['));
            let line: Vec<&str> = words
                .map(|word| match word {
                    "up|down" => "up",
                    "OPCODE|any" => "any",
                    word if word.chars().all(|letter| letter.is_ascii_uppercase()) => "1",
                    word => word,
                })
                .collect();
            assert!(parse(&line.join(" ")).is_ok(), "{command}");
        }
    }
}
