//! Requests of the host that the device does not support, each reported once.

use std::collections::BTreeSet;
use std::fmt;

use bareverbs_mlx5_spec::{CmdOpcode, OtherCmdOpcode, WqeOpcode};

/// Maximum reports that are kept: a host may ask for anything.
const MAX_REPORTED: usize = 1000;

/// What the device does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unsupported {
    /// A firmware command, by its opcode.
    Command(u32),
    /// A type of general objects.
    GeneralObject(u32),
    /// A page of capabilities.
    CapabilityPage(u32),
    /// A register of ACCESS_REG.
    Register(u32),
    /// A command through the gateway in configuration space, by its opcode.
    GatewayCommand(u16),
    /// A request on a send queue, by its opcode.
    Request(u8),
    /// A local identifier that another port of the switch has.
    LidOfAnother(u16),
}

/// Returns the name of a command, by its opcode.
pub(crate) fn command_name(opcode: u32) -> Option<&'static str> {
    CmdOpcode::from_code(opcode).map(CmdOpcode::name).or_else(|| OtherCmdOpcode::from_code(opcode).map(OtherCmdOpcode::name))
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match *self {
            Self::Command(opcode) => write!(f, "command {} ({opcode:#05x})", command_name(opcode).unwrap_or("without a name")),
            Self::GeneralObject(kind) => write!(f, "general object of type {kind:#06x}"),
            Self::CapabilityPage(page) => write!(f, "capability page {page:#04x}"),
            Self::Register(register) => write!(f, "register {register:#06x}"),
            Self::GatewayCommand(opcode) => write!(f, "command {opcode:#06x} through the gateway in configuration space"),
            Self::LidOfAnother(lid) => write!(f, "LID {lid:#x} at two ports"),
            Self::Request(opcode) => {
                let name = WqeOpcode::from_code(opcode.into()).map_or("without a name", WqeOpcode::name);
                write!(f, "send request {name} ({opcode:#04x})")
            }
        };
        what.and_then(|()| write!(f, " is not supported"))
    }
}

/// What hosts asked for so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnsupportedLog {
    reported: BTreeSet<Unsupported>,
    /// Not fetched yet.
    new: Vec<Unsupported>,
}

impl UnsupportedLog {
    /// Notes that a host asked for it.
    pub(crate) fn report(&mut self, item: Unsupported) {
        if self.reported.len() < MAX_REPORTED && self.reported.insert(item) {
            self.new.push(item);
        }
    }

    /// Returns a line for each that came up since the last call.
    pub(crate) fn take(&mut self) -> Vec<String> {
        self.new.drain(..).map(|item| item.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_reported_once_by_its_name() {
        let mut unsupported = UnsupportedLog::default();
        for _ in 0..2 {
            unsupported.report(Unsupported::Command(0x710));
            unsupported.report(Unsupported::Command(0xbad));
            unsupported.report(Unsupported::Request(0x14));
        }
        let lines = unsupported.take();
        assert_eq!(
            lines,
            [
                "command CREATE_DCT (0x710) is not supported",
                "command without a name (0xbad) is not supported",
                "send request ATOMIC_MASKED_CS (0x14) is not supported"
            ]
        );
        unsupported.report(Unsupported::Command(0x710));
        assert!(unsupported.take().is_empty());
    }

    #[test]
    fn the_number_of_reports_is_bounded() {
        let mut unsupported = UnsupportedLog::default();
        for opcode in 0..0x1_0000 {
            unsupported.report(Unsupported::Command(opcode));
        }
        assert_eq!(unsupported.take().len(), MAX_REPORTED);
    }
}
