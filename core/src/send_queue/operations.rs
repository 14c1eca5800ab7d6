//! What the ring gets of each operation, and what the checks ask of it.

use super::limits::{BASIC, OpSet, SOLICITABLE};
use crate::backend::{AtomicOp, AtomicOpcode, DataOp, DataOpcode};
use crate::{Access, Payload, Remote, Rkey, SendFlags, SendOp, Sge, WcOpcode};

/// What the checks ask of an operation.
pub(super) struct OpProperties {
    pub(super) set: OpSet,
    pub(super) opcode: WcOpcode,
    /// Whether the peer takes notice of it.
    solicitable: bool,
    /// Rights that regions of SGEs need.
    pub(super) need: Access,
}

impl DataOp {
    #[inline(always)]
    pub(super) const fn send() -> Self {
        Self { opcode: DataOpcode::Send, remote: Remote::NONE, immediate: 0 }
    }

    #[inline(always)]
    pub(super) const fn send_imm(imm: [u8; 4]) -> Self {
        Self { opcode: DataOpcode::SendWithImm, remote: Remote::NONE, immediate: u32::from_be_bytes(imm) }
    }

    #[inline(always)]
    pub(super) const fn send_inv(rkey: Rkey) -> Self {
        Self { opcode: DataOpcode::SendWithInv, remote: Remote::NONE, immediate: rkey.get() }
    }

    #[inline(always)]
    pub(super) const fn write(remote: Remote) -> Self {
        Self { opcode: DataOpcode::Write, remote, immediate: 0 }
    }

    #[inline(always)]
    pub(super) const fn write_imm(remote: Remote, imm: [u8; 4]) -> Self {
        Self { opcode: DataOpcode::WriteWithImm, remote, immediate: u32::from_be_bytes(imm) }
    }

    #[inline(always)]
    pub(super) const fn read(remote: Remote) -> Self {
        Self { opcode: DataOpcode::Read, remote, immediate: 0 }
    }
}

impl AtomicOpcode {
    pub(super) const fn completion(self) -> WcOpcode {
        match self {
            Self::CompareSwap => WcOpcode::CompSwap,
            Self::FetchAdd => WcOpcode::FetchAdd,
        }
    }
}

impl<'a> SendOp<'a> {
    /// Returns an operation that moves bytes, and its bytes.
    #[inline(always)]
    pub(super) const fn data(&self) -> Option<(DataOp, Payload<'a>)> {
        Some(match *self {
            Self::Send { payload } => (DataOp::send(), payload),
            Self::SendWithImm { payload, imm } => (DataOp::send_imm(imm), payload),
            Self::SendWithInv { payload, rkey } => (DataOp::send_inv(rkey), payload),
            Self::Write { payload, remote } => (DataOp::write(remote), payload),
            Self::WriteWithImm { payload, remote, imm } => (DataOp::write_imm(remote, imm), payload),
            Self::Read { sges, remote } => (DataOp::read(remote), Payload::Sges(sges)),
            Self::SendTo { .. }
            | Self::SendToWithImm { .. }
            | Self::ToSrq { .. }
            | Self::CompareSwap { .. }
            | Self::FetchAdd { .. }
            | Self::BindMw { .. }
            | Self::LocalInv { .. } => return None,
        })
    }

    /// Returns an atomic and its buffer.
    #[inline(always)]
    pub(super) const fn atomic(&self) -> Option<(AtomicOp, Sge)> {
        match *self {
            Self::CompareSwap { sge, remote, compare, swap } => Some((AtomicOp::compare_swap(remote, compare, swap), sge)),
            Self::FetchAdd { sge, remote, add } => Some((AtomicOp::fetch_add(remote, add), sge)),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) const fn payload(&self) -> Option<Payload<'a>> {
        match *self {
            Self::Read { sges, .. } => Some(Payload::Sges(sges)),
            Self::Send { payload }
            | Self::SendWithImm { payload, .. }
            | Self::SendWithInv { payload, .. }
            | Self::Write { payload, .. }
            | Self::WriteWithImm { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// Returns the operation with other bytes.
    #[inline(always)]
    pub(super) const fn with_payload<'b>(&self, payload: Payload<'b>) -> SendOp<'b>
    where
        'a: 'b,
    {
        match (*self, payload) {
            (SendOp::Send { .. }, payload) => SendOp::Send { payload },
            (SendOp::SendWithImm { imm, .. }, payload) => SendOp::SendWithImm { payload, imm },
            (SendOp::SendWithInv { rkey, .. }, payload) => SendOp::SendWithInv { payload, rkey },
            (SendOp::Write { remote, .. }, payload) => SendOp::Write { payload, remote },
            (SendOp::WriteWithImm { remote, imm, .. }, payload) => SendOp::WriteWithImm { payload, remote, imm },
            (SendOp::Read { remote, .. }, Payload::Sges(sges)) => SendOp::Read { sges, remote },
            (other, _) => other,
        }
    }
}

impl AtomicOp {
    #[inline(always)]
    pub(super) const fn compare_swap(remote: Remote, compare: u64, swap: u64) -> Self {
        Self { opcode: AtomicOpcode::CompareSwap, remote, swap_add: swap, compare }
    }

    #[inline(always)]
    pub(super) const fn fetch_add(remote: Remote, add: u64) -> Self {
        Self { opcode: AtomicOpcode::FetchAdd, remote, swap_add: add, compare: 0 }
    }
}

impl OpProperties {
    #[inline(always)]
    pub(super) const fn of(opcode: DataOpcode) -> Self {
        let (set, opcode, solicitable, need) = match opcode {
            DataOpcode::Send | DataOpcode::SendWithImm => (OpSet::SEND, WcOpcode::Send, true, Access::empty()),
            DataOpcode::SendWithInv => (OpSet::SEND.union(OpSet::RELIABLE), WcOpcode::Send, true, Access::empty()),
            DataOpcode::Write => (OpSet::WRITE, WcOpcode::RdmaWrite, false, Access::empty()),
            DataOpcode::WriteWithImm => (OpSet::WRITE, WcOpcode::RdmaWrite, true, Access::empty()),
            DataOpcode::Read => (OpSet::RELIABLE, WcOpcode::RdmaRead, false, Access::LOCAL_WRITE),
        };
        Self { set, opcode, solicitable, need }
    }

    /// Flags that a request with SGEs may have.
    #[inline(always)]
    pub(super) const fn legal(&self) -> SendFlags {
        if self.solicitable { SOLICITABLE } else { BASIC }
    }

    /// Flags that a request with bytes inline may have.
    #[inline(always)]
    pub(super) const fn legal_inline(&self) -> SendFlags {
        self.legal().union(SendFlags::INLINE)
    }
}
