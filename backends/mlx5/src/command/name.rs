//! The name of a command.

use core::fmt;

use bareverbs_mlx5_spec::CmdOpcode;

/// The opcode of a firmware command. Prints as its published name, or `unknown command`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CmdName(pub u16);

impl fmt::Debug for CmdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CmdOpcode::from_code(u32::from(self.0)).map_or("unknown command", CmdOpcode::name))
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for CmdName {
    fn format(&self, f: defmt::Formatter<'_>) {
        match CmdOpcode::from_code(u32::from(self.0)) {
            Some(opcode) => defmt::write!(f, "{}", opcode),
            None => defmt::write!(f, "unknown command"),
        }
    }
}
