//! Decodes inputs and outputs of firmware commands.

use bareverbs_mlx5_spec::{
    AccessRegisterIn, AtomicCaps, CapabilityType, CmdHcaCap, CmdIn, CmdOpcode, CmdOut, CmdStatus, DeviceMemCap,
    GeneralObjInCmdHdr, Layout, LayoutInfo, PaosReg, PmtuReg, PtysReg, PvlcReg, RegisterHostEndianness, RegisterId, RoceCap,
    SetNodeIn, View, ViewMut, user_memory_fields,
};

use crate::decoded::Decoded;
use crate::field_printer::{self, FieldValue, Value};

/// Returns the opcode of a command's input; `None` if the input is too short.
pub fn opcode(input: &[u8]) -> Option<u32> {
    CmdIn::OPCODE.bits().read(input)
}

/// Returns the name of an opcode.
pub fn name(opcode: u32) -> String {
    CmdOpcode::from_code(opcode).map_or_else(|| format!("opcode {opcode:#x}"), |opcode| opcode.name().into())
}

/// Returns offset and layout of the structure inside a command that a field of the input selects.
fn chosen_structure(opcode: CmdOpcode, input: &[u8], is_output: bool) -> Option<(usize, &'static LayoutInfo)> {
    let input = View::<AccessRegisterIn>::new(input)?;
    let page = input.get(AccessRegisterIn::OP_MOD) >> 1;
    match (opcode, is_output) {
        (CmdOpcode::QueryHcaCap, true) | (CmdOpcode::SetHcaCap, false) => match CapabilityType::from_code(page)? {
            CapabilityType::General => Some((16, &CmdHcaCap::INFO)),
            CapabilityType::Atomic => Some((16, &AtomicCaps::INFO)),
            CapabilityType::DeviceMemory => Some((16, &DeviceMemCap::INFO)),
            CapabilityType::Roce => Some((16, &RoceCap::INFO)),
            _ => None,
        },
        (CmdOpcode::AccessReg, _) => match RegisterId::from_code(input.get(AccessRegisterIn::REGISTER_ID))? {
            RegisterId::Pmtu => Some((16, &PmtuReg::INFO)),
            RegisterId::Ptys => Some((16, &PtysReg::INFO)),
            RegisterId::Paos => Some((16, &PaosReg::INFO)),
            RegisterId::Pvlc => Some((16, &PvlcReg::INFO)),
            RegisterId::HostEndianness => Some((16, &RegisterHostEndianness::INFO)),
            RegisterId::NodeDesc => Some((16, &SetNodeIn::INFO)),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the fields of a command's input.
pub fn input_fields(input: &[u8]) -> Vec<FieldValue> {
    let known = opcode(input).and_then(CmdOpcode::from_code);
    let layout = known.map_or(&CmdIn::INFO, |opcode| opcode.input());
    let mut all = with_structure(layout, known.and_then(|opcode| chosen_structure(opcode, input, false)), input);
    if let Some(layout) = user_memory_fields(input) {
        all.extend(field_printer::read(layout, input, 0));
    }
    let after_opcode = all.len().min(1);
    let at = GeneralObjInCmdHdr::UID.bits();
    if !has_uid(layout)
        && let Some(uid) = at.read(input)
    {
        let (bits, value) = (Some((at.hi, at.lo)), Value::Number { value: uid.into() });
        all.insert(after_opcode, FieldValue { name: "uid".into(), offset: at.dword, bits, value, meaning: None });
    }
    all
}

/// Returns whether the layout of an input has the field of the user context (`uid`). Any command may have it: a kernel sets it in the
/// commands that it forwards for a program (`general_obj_in_cmd_hdr`).
fn has_uid(layout: &LayoutInfo) -> bool {
    layout.fields.iter().any(|field| field.name == "uid")
}

/// Returns the fields of the output of the command with this input.
pub fn output_fields(input: &[u8], output: &[u8]) -> Vec<FieldValue> {
    let known = opcode(input).and_then(CmdOpcode::from_code);
    let layout = known.map_or(&CmdOut::INFO, |opcode| opcode.output());
    with_structure(layout, known.and_then(|opcode| chosen_structure(opcode, input, true)), output)
}

fn with_structure(layout: &LayoutInfo, chosen: Option<(usize, &'static LayoutInfo)>, bytes: &[u8]) -> Vec<FieldValue> {
    let mut all = field_printer::read(layout, bytes, 0);
    if let Some((offset, layout)) = chosen {
        // The bytes of the inner structure are listed by field, and not again as bytes.
        all.retain(|field| field.offset < offset || matches!(field.value, Value::Number { .. }));
        let inside = field_printer::read(layout, bytes.get(offset..).unwrap_or_default(), offset);
        let prefix = layout.name;
        all.extend(inside.into_iter().map(|field| FieldValue { name: format!("{prefix}.{}", field.name), ..field }));
    }
    all
}

/// Decodes a command's input.
pub fn decode_input(input: &[u8]) -> Decoded {
    let mut out = Decoded::new(0);
    let Some(code) = opcode(input) else {
        out.title = format!("{} bytes, too few for a command", input.len());
        out.error(0, format!("a command has {} bytes at least", CmdIn::SIZE));
        out.payload("bytes", input, 0);
        return out;
    };
    out.title = format!("{} input, {} bytes", name(code), input.len());
    let layout = match CmdOpcode::from_code(code) {
        Some(opcode) => opcode.input(),
        None => {
            out.error(0, format!("opcode {code:#x} is unknown"));
            &CmdIn::INFO
        }
    };
    // Cleared: fields at reserved bits of the layout.
    let mut published = input.to_vec();
    let mut clear = |at, len| published.iter_mut().skip(at).take(len).for_each(|byte| *byte = 0);
    if !has_uid(layout) {
        clear(2, 2);
    }
    for field in user_memory_fields(input).map_or(&[][..], |layout| layout.fields) {
        let (at, len) = field.place.bytes();
        clear(at, len);
    }
    let legacy = CmdOpcode::from_code(code).and_then(CmdOpcode::legacy_input_len);
    if legacy.is_some_and(|legacy| (legacy..layout.size).contains(&input.len())) {
        out.note(input.len(), format!("{} has {} bytes today; an earlier driver sends fewer", layout.name, layout.size));
    } else if input.len() < layout.size {
        let text = format!("{} has {} bytes, and {} are here", layout.name, layout.size, input.len());
        out.error(input.len(), text);
    }
    finish(out, layout, input_fields(input), &published)
}

/// Decodes the output of the command with this opcode.
pub fn decode_output(opcode: CmdOpcode, op_mod: u16, output: &[u8]) -> Decoded {
    let mut out = Decoded::new(0);
    let (layout, status) = (opcode.output(), View::<CmdOut>::new(output));
    let Some(status) = status else {
        out.title = format!("{} bytes, too few for an output", output.len());
        out.error(0, format!("an output has at least {} bytes", CmdOut::SIZE));
        out.payload("bytes", output, 0);
        return out;
    };
    let code = status.get(CmdOut::STATUS);
    let status = CmdStatus::from_code(code).map_or_else(|| format!("status {code:#x}"), |status| status.name().into());
    out.title = format!("{} output, {} bytes, {status}", opcode.name(), output.len());
    let mut input = [0; AccessRegisterIn::SIZE];
    if let Some(mut view) = ViewMut::<AccessRegisterIn>::new(&mut input) {
        view.set(AccessRegisterIn::OPCODE, opcode.code());
        view.set(AccessRegisterIn::OP_MOD, op_mod.into());
    }
    let fields = output_fields(&input, output);
    if output.len() < layout.size {
        // No error: the device truncates an output that is longer than the driver's buffer.
        let text = format!("{} has {} bytes, and the driver had room for {}", layout.name, layout.size, output.len());
        out.note(output.len(), text);
    }
    finish(out, layout, fields, output)
}

fn finish(mut out: Decoded, layout: &LayoutInfo, fields: Vec<FieldValue>, bytes: &[u8]) -> Decoded {
    let fields = fields.into_iter().filter(|field| !field.value.is_zero()).collect();
    out.sections.push(super::Section {
        name: "fields that are not zero".into(),
        layout: layout.name,
        offset: 0,
        fields,
        payload: None,
    });
    if layout.name != CmdIn::INFO.name && layout.name != CmdOut::INFO.name {
        for reserved in field_printer::reserved(layout, bytes, 0) {
            out.warning(reserved.offset, format!("reserved bits {:#04x} of {} are set", reserved.bits, layout.name));
        }
    }
    out.finish()
}
