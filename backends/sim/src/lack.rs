//! What hosts ask for and the device does not have: told once each, so that nobody searches long for the reason.

use std::collections::BTreeSet;
use std::fmt;

use bareverbs_mlx5_spec::{CmdOpcode, OtherCmdOpcode, WqeOpcode};

/// Things that are told apart, at most; a host may ask for anything.
const MOST: usize = 1000;

/// Something that the device does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lack {
    /// A firmware command, by its opcode.
    Command(u32),
    /// A type of general objects.
    GeneralObject(u32),
    /// A page of capabilities.
    CapabilityPage(u32),
    /// A register of ACCESS_REG.
    Register(u32),
    /// A request on a send queue, by its opcode.
    Request(u8),
}

/// Name of a command, by its opcode.
pub(crate) fn command_name(opcode: u32) -> Option<&'static str> {
    CmdOpcode::from_code(opcode).map(CmdOpcode::name).or_else(|| OtherCmdOpcode::from_code(opcode).map(OtherCmdOpcode::name))
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match *self {
            Self::Command(opcode) => write!(f, "command {} ({opcode:#05x})", command_name(opcode).unwrap_or("without a name")),
            Self::GeneralObject(kind) => write!(f, "general object of type {kind:#06x}"),
            Self::CapabilityPage(page) => write!(f, "capability page {page:#04x}"),
            Self::Register(register) => write!(f, "register {register:#06x}"),
            Self::Request(opcode) => {
                let name = WqeOpcode::from_code(opcode.into()).map_or("without a name", WqeOpcode::name);
                write!(f, "send request {name} ({opcode:#04x})")
            }
        };
        what.and_then(|()| write!(f, " is not supported"))
    }
}

/// What was asked for so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lacks {
    told: BTreeSet<Lack>,
    /// Not fetched yet.
    new: Vec<Lack>,
}

impl Lacks {
    /// Notes that a host asked for it.
    pub(crate) fn report(&mut self, lack: Lack) {
        if self.told.len() < MOST && self.told.insert(lack) {
            self.new.push(lack);
        }
    }

    /// A line for each that came up since the last call.
    pub(crate) fn take(&mut self) -> Vec<String> {
        self.new.drain(..).map(|lack| lack.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_by_its_name() {
        let mut lacks = Lacks::default();
        for _ in 0..2 {
            lacks.report(Lack::Command(0x710));
            lacks.report(Lack::Command(0xbad));
            lacks.report(Lack::Request(0x14));
        }
        let lines = lacks.take();
        assert_eq!(
            lines,
            [
                "command CREATE_DCT (0x710) is not supported",
                "command without a name (0xbad) is not supported",
                "send request ATOMIC_MASKED_CS (0x14) is not supported"
            ]
        );
        lacks.report(Lack::Command(0x710));
        assert!(lacks.take().is_empty());
    }

    #[test]
    fn a_host_that_asks_for_everything_does_not_fill_the_log() {
        let mut lacks = Lacks::default();
        for opcode in 0..0x1_0000 {
            lacks.report(Lack::Command(opcode));
        }
        assert_eq!(lacks.take().len(), MOST);
    }
}
