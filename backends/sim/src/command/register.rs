//! ACCESS_REG: registers of port and node.

use bareverbs_mlx5_spec::{
    AccessRegisterIn, AccessRegisterOut, CmdStatus, Layout, PaosReg, PmtuReg, PtysReg, PvlcReg, REGISTER_READ, REGISTER_WRITE,
    RegisterHostEndianness, RegisterId, SetNodeIn, View, ViewMut,
};

use super::{Outcome, Refusal};
use crate::env::Env;
use crate::firmware::Firmware;
use crate::unsupported::Unsupported;

/// Bytes of the counters register, which reads as zero.
const PPCNT: usize = 256;

/// ACCESS_REG.
pub(super) fn access_register(
    firmware: &mut Firmware,
    env: &mut Env<'_>,
    input: View<'_, AccessRegisterIn>,
    output: &mut ViewMut<'_, AccessRegisterOut>,
) -> Outcome {
    let write = match input.get(AccessRegisterIn::OP_MOD) {
        REGISTER_READ => false,
        REGISTER_WRITE => true,
        _ => return Err(Refusal::new(CmdStatus::BadParam, "neither read nor write")),
    };
    let data = input.tail(AccessRegisterIn::REGISTER_DATA);
    let out = output.as_bytes_mut().get_mut(AccessRegisterOut::REGISTER_DATA.offset()..).unwrap_or_default();
    access_by_id(firmware, env, input.get(AccessRegisterIn::REGISTER_ID), data, out, write)
}

/// Writes the register with this number from `data` if asked to, then gives back in `out` what it is.
pub(super) fn access_by_id(
    firmware: &mut Firmware,
    env: &mut Env<'_>,
    id: u32,
    data: &[u8],
    out: &mut [u8],
    write: bool,
) -> Outcome {
    let Some(register) = RegisterId::from_code(id) else { return missing(firmware, id) };
    match register {
        RegisterId::Ptys => access::<PtysReg>(
            firmware,
            data,
            out,
            write,
            |firmware, out| firmware.port.ptys(out),
            |_, reg| {
                // Only the local port is known; speeds are not the driver's to choose here.
                check_port(reg.get(PtysReg::LOCAL_PORT))
            },
        ),
        RegisterId::Pmtu => access::<PmtuReg>(
            firmware,
            data,
            out,
            write,
            |firmware, out| firmware.port.pmtu(out),
            |firmware, reg| {
                check_port(reg.get(PmtuReg::LOCAL_PORT))?;
                let set = firmware.port.set_mtu(reg.get(PmtuReg::ADMIN_MTU));
                set.then_some(()).ok_or(Refusal::new(CmdStatus::BadParam, "no such MTU"))
            },
        ),
        RegisterId::Pvlc => access::<PvlcReg>(
            firmware,
            data,
            out,
            write,
            |firmware, out| firmware.port.pvlc(out),
            |_, reg| check_port(reg.get(PvlcReg::LOCAL_PORT)),
        ),
        RegisterId::Paos => access::<PaosReg>(
            firmware,
            data,
            out,
            write,
            |firmware, out| firmware.port.paos(out),
            |firmware, reg| {
                check_port(reg.get(PaosReg::LOCAL_PORT))?;
                // A write that does not enable the update is a read.
                if !reg.is_set(PaosReg::ASE) {
                    return Ok(());
                }
                if !firmware.port.set_admin(reg.get(PaosReg::ADMIN_STATUS)) {
                    return Err(Refusal::new(CmdStatus::BadParam, "no such state"));
                }
                firmware.port_changed(env);
                Ok(())
            },
        ),
        RegisterId::NodeDesc => access::<SetNodeIn>(
            firmware,
            data,
            out,
            write,
            |firmware, out| {
                out.set_bytes(SetNodeIn::NODE_DESCRIPTION, firmware.port.node_description());
            },
            |firmware, reg| {
                firmware.port.set_node_description(reg.bytes(SetNodeIn::NODE_DESCRIPTION));
                Ok(())
            },
        ),
        // The device works in network byte order and in host order only where atomics say so: the hint changes nothing.
        RegisterId::HostEndianness => access::<RegisterHostEndianness>(firmware, data, out, write, |_, _| {}, |_, _| Ok(())),
        RegisterId::Ppcnt => {
            out.iter_mut().take(PPCNT).for_each(|byte| *byte = 0);
            Ok(())
        }
        RegisterId::Pcap | RegisterId::Dtor => missing(firmware, id),
    }
}

fn missing(firmware: &mut Firmware, id: u32) -> Outcome {
    firmware.unsupported.report(Unsupported::Register(id));
    Err(Refusal::new(CmdStatus::BadParam, "no such register"))
}

/// Whether the device has the register with this number.
pub(super) fn exists(id: u32) -> bool {
    !matches!(RegisterId::from_code(id), None | Some(RegisterId::Pcap | RegisterId::Dtor))
}

fn check_port(port: u32) -> Outcome {
    if port > 1 { Err(Refusal::new(CmdStatus::BadParam, "no such port")) } else { Ok(()) }
}

/// Writes the register if asked to, then gives back what it is.
fn access<R: Layout>(
    firmware: &mut Firmware,
    data: &[u8],
    out: &mut [u8],
    write: bool,
    get: impl FnOnce(&Firmware, &mut ViewMut<'_, R>),
    set: impl FnOnce(&mut Firmware, View<'_, R>) -> Outcome,
) -> Outcome {
    if write {
        set(firmware, View::new(data).ok_or(CmdStatus::BadInputLen)?)?;
    }
    get(firmware, &mut ViewMut::new(out).ok_or(CmdStatus::BadOutputLen)?);
    Ok(())
}
