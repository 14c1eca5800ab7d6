//! Commands by name and field, to be compared.

use std::collections::BTreeMap;

use bareverbs_decode::command;
use bareverbs_decode::field_printer::FieldValue;
use bareverbs_mlx5_spec::{AccessRegisterIn, CmdOpcode, CreateEqIn, View};

/// Fields of one thing by name, as text.
pub type Fields = BTreeMap<String, String>;

/// Returns the name of a command: its opcode, and what it is about where one opcode serves several things.
pub fn command_name(input: &[u8]) -> String {
    let opcode = command::opcode(input).unwrap();
    let name = command::name(opcode);
    let modifier = u16::from_be_bytes([input[6], input[7]]);
    match CmdOpcode::from_code(opcode) {
        Some(CmdOpcode::AccessReg) => {
            let register = View::<AccessRegisterIn>::new(input).unwrap().get(AccessRegisterIn::REGISTER_ID);
            format!("{name} {register:#x} {}", if modifier == 1 { "read" } else { "write" })
        }
        Some(CmdOpcode::QueryHcaCap | CmdOpcode::SetHcaCap | CmdOpcode::ManagePages | CmdOpcode::QueryPages) => {
            format!("{name} {modifier:#x}")
        }
        Some(CmdOpcode::CreateEq) => {
            let mask = CreateEqIn::EVENT_BITMASK.offset();
            let events = u64::from_be_bytes(*input[mask..].first_chunk().unwrap());
            let what = match events {
                0 => "completions",
                0x400 => "commands",
                0x800 => "pages",
                _ => "others",
            };
            format!("{name} of {what}")
        }
        _ => name,
    }
}

/// Returns fields as text by their names.
pub fn by_name(fields: Vec<FieldValue>) -> Fields {
    fields.into_iter().map(|field| (field.name, field.value.to_string())).collect()
}

/// Returns whether the text of a value has no digit but zeros.
pub fn is_zero(value: &str) -> bool {
    value.trim_start_matches("0x").bytes().all(|digit| matches!(digit, b'0' | b'[' | b']' | b','))
}

/// Returns the name of a field without the path of the structures around it.
pub fn last_name(field: &str) -> &str {
    field.rsplit('.').next().unwrap_or(field)
}
