//! What whoever runs the server may do to its devices while they work: one command a line on standard input.

use std::fmt;
use std::io::{self, BufRead as _};

use bareverbs_sim::HealthReport;
use bareverbs_sim::fault::Fault;

use super::subnet::{Gone, Handle, Station};
use crate::record::Recording;

/// Every command, for a mistaken line.
const COMMANDS: &str = "link LID up|down, health LID SYNDROME [fatal], freeze LID, thaw LID, remove LID, insert LID, \
                        stick LID OPCODE, refuse LID OPCODE STATUS, counts LID, mark TEXT";

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Link { up: bool },
    Health { syndrome: u8, fatal: bool },
    Freeze { frozen: bool },
    Remove { removed: bool },
    Stick { opcode: u16 },
    Refuse { opcode: u16, status: u8 },
    Counts,
}

/// A line that is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mistake;

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a command; there are: {COMMANDS}")
    }
}

fn number(text: &str) -> Result<u16, Mistake> {
    match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|_| Mistake)
}

fn byte(text: &str) -> Result<u8, Mistake> {
    number(text)?.try_into().map_err(|_| Mistake)
}

/// The device that a line names by its LID, and what shall happen to it.
fn parse(line: &str) -> Result<(u16, Act), Mistake> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, lid, rest @ ..] = words.as_slice() else { return Err(Mistake) };
    let act = match (*name, rest) {
        ("link", ["up"]) => Act::Link { up: true },
        ("link", ["down"]) => Act::Link { up: false },
        ("health", [syndrome]) => Act::Health { syndrome: byte(syndrome)?, fatal: false },
        ("health", [syndrome, "fatal"]) => Act::Health { syndrome: byte(syndrome)?, fatal: true },
        ("freeze", []) => Act::Freeze { frozen: true },
        ("thaw", []) => Act::Freeze { frozen: false },
        ("remove", []) => Act::Remove { removed: true },
        ("insert", []) => Act::Remove { removed: false },
        ("stick", [opcode]) => Act::Stick { opcode: number(opcode)? },
        ("refuse", [opcode, status]) => Act::Refuse { opcode: number(opcode)?, status: byte(status)? },
        ("counts", []) => Act::Counts,
        _ => return Err(Mistake),
    };
    Ok((number(lid)?, act))
}

fn carry_out(station: &mut Station, act: Act) -> String {
    let device = &mut station.device;
    match act {
        Act::Link { up } => device.set_link(up),
        Act::Health { syndrome, fatal } => {
            device.set_health(HealthReport { syndrome, reset_required: fatal, ..HealthReport::default() });
        }
        Act::Freeze { frozen } => device.freeze_health(frozen),
        Act::Remove { removed } => device.set_removed(removed),
        Act::Stick { opcode } => device.faults_mut().arm(Fault::StuckCommand { opcode }),
        Act::Refuse { opcode, status } => device.faults_mut().arm(Fault::CommandStatus { opcode, status, syndrome: 0 }),
        Act::Counts => return station.left(),
    }
    "done".into()
}

/// Reads commands until standard input ends.
pub(crate) fn listen(devices: &[(u16, Handle)], recording: Option<&Recording>) {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        if line.trim().is_empty() {
            continue;
        }
        if let Some(text) = line.trim().strip_prefix("mark ") {
            recording.inspect(|recording| recording.mark(text));
            eprintln!("control: {}: {}", line.trim(), if recording.is_some() { "done" } else { "nothing is recorded" });
            continue;
        }
        match obey(devices, &line) {
            Ok(said) => eprintln!("control: {}: {said}", line.trim()),
            Err(Gone) => return,
        }
    }
}

fn obey(devices: &[(u16, Handle)], line: &str) -> Result<String, Gone> {
    let (lid, act) = match parse(line) {
        Ok(command) => command,
        Err(mistake) => return Ok(mistake.to_string()),
    };
    match devices.iter().find(|(known, _)| *known == lid) {
        Some((_, handle)) => handle.ask(move |station| carry_out(station, act)),
        None => Ok(format!("no device has LID {lid}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_mistakes() {
        assert_eq!(parse("link 2 down"), Ok((2, Act::Link { up: false })));
        assert_eq!(parse(" health 1  0x7 fatal "), Ok((1, Act::Health { syndrome: 7, fatal: true })));
        assert_eq!(parse("stick 1 0x800"), Ok((1, Act::Stick { opcode: 0x800 })));
        assert_eq!(parse("refuse 1 0x800 0xf"), Ok((1, Act::Refuse { opcode: 0x800, status: 15 })));
        assert_eq!(parse("counts 65535"), Ok((0xffff, Act::Counts)));
        for line in ["", "link", "link 1", "link x up", "link 1 up now", "health 1 256", "dance 1", "remove 1 2"] {
            assert_eq!(parse(line), Err(Mistake), "{line}");
        }
    }
}
