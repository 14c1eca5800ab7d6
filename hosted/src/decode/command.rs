//! Inputs and outputs of firmware commands.

use bareverbs_mlx5_spec::*;
use bareverbs_mlx5_spec::{Layout, LayoutInfo};

use super::Decoded;
use crate::fields::{self, FieldValue, Value};

macro_rules! table {
    ($($opcode:ident => $input:ident, $output:ident;)+) => {
        /// Layouts of input and output of a command; those of every command if this library does not know its own.
        pub fn layouts(opcode: CmdOpcode) -> (&'static LayoutInfo, &'static LayoutInfo) {
            match opcode {
                $(CmdOpcode::$opcode => (&<$input as Layout>::INFO, &<$output as Layout>::INFO),)+
                _ => (&<CmdIn as Layout>::INFO, &<CmdOut as Layout>::INFO),
            }
        }
    };
}

table! {
    QueryHcaCap => QueryHcaCapIn, QueryHcaCapOut;
    QueryAdapter => QueryAdapterIn, QueryAdapterOut;
    InitHca => InitHcaIn, InitHcaOut;
    TeardownHca => TeardownHcaIn, TeardownHcaOut;
    EnableHca => EnableHcaIn, EnableHcaOut;
    DisableHca => DisableHcaIn, DisableHcaOut;
    QueryPages => QueryPagesIn, QueryPagesOut;
    ManagePages => ManagePagesIn, ManagePagesOut;
    SetHcaCap => SetHcaCapIn, SetHcaCapOut;
    QueryIssi => QueryIssiIn, QueryIssiOut;
    SetIssi => SetIssiIn, SetIssiOut;
    SetDriverVersion => SetDriverVersionIn, SetDriverVersionOut;
    CreateMkey => CreateMkeyIn, CreateMkeyOut;
    QueryMkey => QueryMkeyIn, QueryMkeyOut;
    DestroyMkey => DestroyMkeyIn, DestroyMkeyOut;
    QuerySpecialContexts => QuerySpecialContextsIn, QuerySpecialContextsOut;
    AllocMemic => AllocMemicIn, AllocMemicOut;
    DeallocMemic => DeallocMemicIn, DeallocMemicOut;
    CreateEq => CreateEqIn, CreateEqOut;
    DestroyEq => DestroyEqIn, DestroyEqOut;
    QueryEq => QueryEqIn, QueryEqOut;
    CreateCq => CreateCqIn, CreateCqOut;
    DestroyCq => DestroyCqIn, DestroyCqOut;
    QueryCq => QueryCqIn, QueryCqOut;
    ModifyCq => ModifyCqIn, ModifyCqOut;
    CreateQp => CreateQpIn, CreateQpOut;
    DestroyQp => DestroyQpIn, DestroyQpOut;
    Rst2InitQp => Rst2initQpIn, Rst2initQpOut;
    Init2RtrQp => Init2rtrQpIn, Init2rtrQpOut;
    Rtr2RtsQp => Rtr2rtsQpIn, Rtr2rtsQpOut;
    Rts2RtsQp => Rts2rtsQpIn, Rts2rtsQpOut;
    SqErr2RtsQp => Sqerr2rtsQpIn, Sqerr2rtsQpOut;
    Qp2Err => Qp2errIn, Qp2errOut;
    Qp2Rst => Qp2rstIn, Qp2rstOut;
    QueryQp => QueryQpIn, QueryQpOut;
    SqdRtsQp => Sqd2rtsQpIn, Sqd2rtsQpOut;
    MadIfc => MadIfcIn, MadIfcOut;
    Init2InitQp => Init2initQpIn, Init2initQpOut;
    CreateSrq => CreateSrqIn, CreateSrqOut;
    DestroySrq => DestroySrqIn, DestroySrqOut;
    QuerySrq => QuerySrqIn, QuerySrqOut;
    ArmRq => ArmRqIn, ArmRqOut;
    CreateXrcSrq => CreateXrcSrqIn, CreateXrcSrqOut;
    DestroyXrcSrq => DestroyXrcSrqIn, DestroyXrcSrqOut;
    QueryXrcSrq => QueryXrcSrqIn, QueryXrcSrqOut;
    ArmXrcSrq => ArmXrcSrqIn, ArmXrcSrqOut;
    QueryHcaVportContext => QueryHcaVportContextIn, QueryHcaVportContextOut;
    ModifyHcaVportContext => ModifyHcaVportContextIn, ModifyHcaVportContextOut;
    QueryHcaVportGid => QueryHcaVportGidIn, QueryHcaVportGidOut;
    QueryHcaVportPkey => QueryHcaVportPkeyIn, QueryHcaVportPkeyOut;
    AllocQCounter => AllocQCounterIn, AllocQCounterOut;
    DeallocQCounter => DeallocQCounterIn, DeallocQCounterOut;
    QueryQCounter => QueryQCounterIn, QueryQCounterOut;
    AllocPd => AllocPdIn, AllocPdOut;
    DeallocPd => DeallocPdIn, DeallocPdOut;
    AllocUar => AllocUarIn, AllocUarOut;
    DeallocUar => DeallocUarIn, DeallocUarOut;
    AccessReg => AccessRegisterIn, AccessRegisterOut;
    AttachToMcg => AttachToMcgIn, AttachToMcgOut;
    DetachFromMcg => DetachFromMcgIn, DetachFromMcgOut;
    Nop => NopIn, NopOut;
    AllocXrcd => AllocXrcdIn, AllocXrcdOut;
    DeallocXrcd => DeallocXrcdIn, DeallocXrcdOut;
    AllocTransportDomain => AllocTransportDomainIn, AllocTransportDomainOut;
    DeallocTransportDomain => DeallocTransportDomainIn, DeallocTransportDomainOut;
    CreateRmp => CreateRmpIn, CreateRmpOut;
    ModifyRmp => ModifyRmpIn, ModifyRmpOut;
    DestroyRmp => DestroyRmpIn, DestroyRmpOut;
    QueryRmp => QueryRmpIn, QueryRmpOut;
    CreateUctx => CreateUctxIn, CreateUctxOut;
    DestroyUctx => DestroyUctxIn, DestroyUctxOut;
    CreateUmem => CreateUmemIn, CreateUmemOut;
    DestroyUmem => DestroyUmemIn, DestroyUmemOut;
}

/// Opcode of a command, from its input.
pub fn opcode(input: &[u8]) -> Option<u32> {
    Some(CmdIn::OPCODE.take(u32::from_be_bytes(*input.first_chunk()?)))
}

/// Name of an opcode.
pub fn name(opcode: u32) -> String {
    CmdOpcode::from_code(opcode).map_or_else(|| format!("opcode {opcode:#x}"), |opcode| opcode.name().into())
}

/// The command that carries another structure chosen by a field of its input: where it lies, and its layout.
fn inner(opcode: CmdOpcode, input: &[u8], is_output: bool) -> Option<(usize, &'static LayoutInfo)> {
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

/// Fields of a command's input.
pub fn input_fields(input: &[u8]) -> Vec<FieldValue> {
    let known = opcode(input).and_then(CmdOpcode::from_code);
    let layout = known.map_or(&CmdIn::INFO, |opcode| layouts(opcode).0);
    let mut all = with_inner(layout, known.and_then(|opcode| inner(opcode, input, false)), input);
    if let Some(names) = user_memory_names(input) {
        all.extend(fields::read(names, input, 0));
    }
    let after_opcode = all.len().min(1);
    if !has_context(layout)
        && let Some(&[_, _, high, low]) = input.first_chunk()
    {
        let value = Value::Number { value: u16::from_be_bytes([high, low]).into() };
        all.insert(after_opcode, FieldValue { name: "uid".into(), offset: 0, bits: Some((15, 0)), value, meaning: None });
    }
    all
}

/// Whether the layout of an input names the user context that a command is for. Any command may have one: a kernel puts it
/// into those that it passes on for a program (`general_obj_in_cmd_hdr`).
fn has_context(layout: &LayoutInfo) -> bool {
    layout.fields.iter().any(|field| field.name == "uid")
}

/// Fields of a command's output; `input` says which command it was.
pub fn output_fields(input: &[u8], output: &[u8]) -> Vec<FieldValue> {
    let known = opcode(input).and_then(CmdOpcode::from_code);
    let layout = known.map_or(&CmdOut::INFO, |opcode| layouts(opcode).1);
    with_inner(layout, known.and_then(|opcode| inner(opcode, input, true)), output)
}

fn with_inner(layout: &LayoutInfo, inner: Option<(usize, &'static LayoutInfo)>, bytes: &[u8]) -> Vec<FieldValue> {
    let mut all = fields::read(layout, bytes, 0);
    if let Some((offset, layout)) = inner {
        // The bytes of the structure inside are told field by field, not a second time as they are.
        all.retain(|field| field.offset < offset || matches!(field.value, Value::Number { .. }));
        let inside = fields::read(layout, bytes.get(offset..).unwrap_or_default(), offset);
        let prefix = layout.name;
        all.extend(inside.into_iter().map(|field| FieldValue { name: format!("{prefix}.{}", field.name), ..field }));
    }
    all
}

/// A command's input as a decoded structure.
pub fn decode_input(input: &[u8]) -> Decoded {
    let mut out = Decoded::new(0);
    let Some(code) = opcode(input) else {
        out.title = format!("{} bytes, too few for a command", input.len());
        out.error(0, "a command begins with 16 bits of opcode");
        out.payload("bytes", input, 0);
        return out;
    };
    out.title = format!("{} input, {} bytes", name(code), input.len());
    let layout = match CmdOpcode::from_code(code) {
        Some(opcode) => layouts(opcode).0,
        None => {
            out.error(0, format!("opcode {code:#x} is unknown"));
            &CmdIn::INFO
        }
    };
    // What stands where the layout has nothing, and may.
    let mut without_names = input.to_vec();
    let mut clear = |at, len| without_names.iter_mut().skip(at).take(len).for_each(|byte| *byte = 0);
    if !has_context(layout) {
        clear(2, 2);
    }
    for field in user_memory_names(input).map_or(&[][..], |names| names.fields) {
        let (at, len) = field.place.bytes();
        clear(at, len);
    }
    let first = CmdOpcode::from_code(code).and_then(CmdOpcode::first_input_len);
    if first.is_some_and(|first| (first..layout.size).contains(&input.len())) {
        out.note(input.len(), format!("{} has {} bytes today; an earlier driver sends fewer", layout.name, layout.size));
    } else if input.len() < layout.size {
        let text = format!("{} has {} bytes, and {} are here", layout.name, layout.size, input.len());
        out.error(input.len(), text);
    }
    finish(out, layout, input_fields(input), &without_names)
}

/// The output of the command with this opcode as a decoded structure.
pub fn decode_output(opcode: CmdOpcode, op_mod: u16, output: &[u8]) -> Decoded {
    let mut out = Decoded::new(0);
    let (layout, status) = (layouts(opcode).1, View::<CmdOut>::new(output));
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
        // Not wrong: the device cuts off what the driver has no room for.
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
        for reserved in fields::reserved(layout, bytes, 0) {
            out.warning(reserved.offset, format!("reserved bits {:#04x} of {} are set", reserved.bits, layout.name));
        }
    }
    out.finish()
}
