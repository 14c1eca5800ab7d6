//! ICMD: commands through the gateway in configuration space, which work without a command queue.
//!
//! One is there: registers, wrapped as in Ethernet management datagrams: a TLV of the operation and a TLV of the register
//! (iPXE `mlx_reg_access.h`, mstflint `reg_access`, Linux `mlxsw/emad.h`).

use super::access_register;
use crate::firmware::Firmware;
use crate::firmware::unsupported::Unsupported;
use crate::pci::MAILBOX_LEN;
use crate::step::StepContext;

/// Opcode of the access to registers.
const ACCESS_REGISTER: u16 = 0x9001;

/// Statuses of a command (mstflint `translate_status`).
const DONE: u8 = 0;
const INVALID_OPCODE: u8 = 1;
const INVALID_COMMAND: u8 = 2;

/// Statuses of an operation (Linux `MLXSW_EMAD_OP_TLV_STATUS_*`).
mod status {
    pub(super) const DONE: u32 = 0;
    pub(super) const UNKNOWN_TLV: u32 = 3;
    pub(super) const NO_REGISTER: u32 = 4;
    pub(super) const NO_CLASS: u32 = 5;
    pub(super) const NO_METHOD: u32 = 6;
    pub(super) const BAD_PARAMETER: u32 = 7;
}

/// Types of TLVs, in bits 31..27 of their first dword; bits 26..16 are their length in dwords.
const OPERATION: u32 = 1;
const REGISTER: u32 = 3;
/// Of an operation: dwords; in the first one the status, in the second one class, method, response and register.
const OPERATION_DWORDS: usize = 4;
const STATUS_SHIFT: u32 = 8;
const STATUS_MASK: u32 = 0x7f;
const RESPONSE: u32 = 1 << 15;
const CLASS_REGISTERS: u32 = 1;
const METHOD_READ: u32 = 1;
const METHOD_WRITE: u32 = 2;

/// The mailbox as an access to a register: two dwords of the operation, two that are the sender's, one of the register, its
/// data.
const REGISTER_AT: usize = 4 * OPERATION_DWORDS;
const DATA_AT: usize = REGISTER_AT + 4;

/// Runs the command with this opcode on the mailbox; its status.
pub(crate) fn run(firmware: &mut Firmware, ctx: &mut StepContext<'_>, opcode: u16, mailbox: &mut [u8; MAILBOX_LEN]) -> u8 {
    if opcode != ACCESS_REGISTER {
        firmware.unsupported.report(Unsupported::GatewayCommand(opcode));
        return INVALID_OPCODE;
    }
    let (headers, data) = mailbox.split_at_mut(DATA_AT);
    let Ok(headers) = <&mut [u8; DATA_AT]>::try_from(headers) else { return INVALID_COMMAND };
    let (dwords, _) = headers.as_chunks_mut::<4>();
    let [operation, method, .., tlv] = dwords else { return INVALID_COMMAND };
    let [first, second, third] = [&*operation, &*method, &*tlv].map(|dword| u32::from_be_bytes(*dword));
    let outcome = access(firmware, ctx, [first, second, third], data);
    *operation = (first & !(STATUS_MASK << STATUS_SHIFT) | outcome << STATUS_SHIFT).to_be_bytes();
    *method = (second | RESPONSE).to_be_bytes();
    DONE
}

/// Reads or writes the register that the headers name; the operation's status.
fn access(firmware: &mut Firmware, ctx: &mut StepContext<'_>, [operation, method, tlv]: [u32; 3], data: &mut [u8]) -> u32 {
    let dwords = |tlv: u32| tlv as usize >> 16 & 0x7ff;
    if (operation >> 27, dwords(operation)) != (OPERATION, OPERATION_DWORDS) || tlv >> 27 != REGISTER {
        return status::UNKNOWN_TLV;
    }
    if method & 0xff != CLASS_REGISTERS {
        return status::NO_CLASS;
    }
    let write = match method >> 8 & 0x7f {
        METHOD_READ => false,
        METHOD_WRITE => true,
        _ => return status::NO_METHOD,
    };
    let id = method >> 16;
    if !access_register::exists(id) {
        firmware.unsupported.report(Unsupported::Register(id));
        return status::NO_REGISTER;
    }
    // Its own dword is counted.
    let len = dwords(tlv).saturating_sub(1) * 4;
    let Some(data) = data.get_mut(..len) else { return status::BAD_PARAMETER };
    let from = data.to_vec();
    match access_register::access_by_id(firmware, ctx, id, &from, data, write) {
        Ok(()) => status::DONE,
        Err(_) => status::BAD_PARAMETER,
    }
}
