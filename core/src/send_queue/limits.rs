//! What a queue pair may send: operations, flags, sizes.

use crate::error::PostSendError;
use crate::{DeviceAttr, MaskedAtomics, PdHandle, QpHandle, QpState, QpType, SendFlags, WcOpcode};

bitflags::bitflags! {
    /// Kinds of send operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct OpSet: u8 {
        const SEND = 1;
        const WRITE = 1 << 1;
        /// What only a reliable connection has: RDMA READ, and with SEND the send that invalidates.
        const RELIABLE = 1 << 2;
        const ATOMIC = 1 << 3;
        /// Binds and invalidations of this host.
        const WINDOW = 1 << 4;
        /// Sends to a destination.
        const DATAGRAM = 1 << 5;
        /// Requests to a shared receive queue of the peer, but atomics.
        const XRC = 1 << 6;
        /// Atomics to a shared receive queue of the peer.
        const XRC_ATOMIC = 1 << 7;
    }
}

impl OpSet {
    /// Returns the requests that can be posted on a transport.
    fn of(qp_type: QpType, device: &DeviceAttr) -> Self {
        let all = match qp_type {
            QpType::Rc => Self::SEND | Self::WRITE | Self::RELIABLE | Self::ATOMIC | Self::WINDOW,
            QpType::XrcSend => Self::XRC | Self::XRC_ATOMIC | Self::WINDOW,
            QpType::XrcRecv => Self::empty(),
            QpType::Uc => Self::SEND | Self::WRITE | Self::WINDOW,
            QpType::Ud | QpType::Gsi => Self::DATAGRAM,
        };
        if device.atomics { all } else { all - Self::ATOMIC - Self::XRC_ATOMIC }
    }
}

/// Returns the send flags that a transport has.
fn transport_flags(qp_type: QpType) -> SendFlags {
    match qp_type {
        QpType::Rc | QpType::XrcSend => SendFlags::KNOWN,
        QpType::Uc | QpType::Ud | QpType::Gsi | QpType::XrcRecv => SendFlags::KNOWN - SendFlags::FENCE,
    }
}

/// Returns whether a queue pair of this state takes send requests.
#[inline(always)]
pub(crate) const fn can_send(state: QpState) -> bool {
    matches!(state, QpState::Rts | QpState::Sqd)
}

/// Flags of requests that the peer does not take notice of and that carry no bytes of their own.
pub(crate) const BASIC: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED);
/// Flags of those whose completion at the peer may be a solicited one.
pub(super) const SOLICITABLE: SendFlags = BASIC.union(SendFlags::SOLICITED);

/// What posting asks of a queue pair and what never changes while it lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) handle: QpHandle,
    pub(crate) qp_type: QpType,
    pub(crate) pd: PdHandle,
    /// What [`domain_word`](crate::shared::domain_word) makes of it.
    pub(super) domain: u64,
    /// What a request may not have, for one test: [`OpSet`] in bits 0 to 7, send flags in 8 to 15, bit 15 + n: n SGEs,
    /// up to 8.
    pub(crate) disallowed_mask: u32,
    /// SIGNALED, if every request gives a completion.
    always: SendFlags,
    pub(crate) max_message: u32,
    pub(super) max_inline: u32,
    pub(super) max_sge: u32,
    pub(crate) max_window: u64,
    pub(crate) masked_atomics: MaskedAtomics,
    /// Blocks of the ring.
    pub(crate) blocks: u32,
}

impl SendLimits {
    pub(crate) fn new(
        handle: QpHandle,
        qp_type: QpType,
        (pd, domain): (PdHandle, u64),
        sizes: &crate::storage::RingSizes,
        sq_sig_all: bool,
        device: &DeviceAttr,
    ) -> Self {
        let (ops, flags, max_sge) = (OpSet::of(qp_type, device), transport_flags(qp_type), sizes.cap.max_send_sge);
        Self {
            handle,
            qp_type,
            pd,
            domain,
            disallowed_mask: !(u32::from(ops.bits()) | flags.bits() << 8 | ((1_u32 << max_sge.min(8)).wrapping_sub(1)) << 16),
            always: if sq_sig_all { SendFlags::SIGNALED } else { SendFlags::empty() },
            max_message: device.max_message(),
            max_inline: sizes.cap.max_inline_data,
            max_sge,
            max_window: device.max_mw_size,
            masked_atomics: device.masked_atomics,
            blocks: sizes.send_blocks,
        }
    }

    /// Returns the flags of a request that is posted with `flags`. The intersection says to the compiler that no flag but
    /// SIGNALED is added, so that it knows the result where it knows `flags`.
    #[inline(always)]
    pub(super) const fn effective(&self, flags: SendFlags) -> SendFlags {
        flags.union(self.always.intersection(SendFlags::SIGNALED))
    }

    pub(crate) const fn ops(&self) -> OpSet {
        OpSet::from_bits_retain(!self.disallowed_mask as u8)
    }

    pub(crate) const fn flags(&self) -> SendFlags {
        SendFlags::from_bits_retain(!self.disallowed_mask >> 8 & 0xff)
    }
}

/// Returns what is wrong with an operation, its flags or its number of SGEs.
pub(crate) fn refusal(
    limits: &SendLimits,
    op: OpSet,
    legal: SendFlags,
    flags: SendFlags,
    opcode: WcOpcode,
    count: usize,
) -> Option<PostSendError> {
    let qp_type = limits.qp_type;
    if !limits.ops().contains(op) {
        if qp_type == QpType::XrcSend && op != OpSet::WINDOW {
            return Some(PostSendError::NoSrqNumber);
        }
        if op == OpSet::SEND && qp_type != QpType::XrcRecv {
            return Some(PostSendError::NoAddressHandle);
        }
        if op == OpSet::SEND | OpSet::RELIABLE {
            return Some(PostSendError::NoSendWithInv);
        }
        if op == OpSet::ATOMIC && qp_type == QpType::Rc {
            return Some(PostSendError::NoAtomics);
        }
        return Some(PostSendError::Opcode { opcode, qp_type });
    }
    let wrong = flags.difference(legal & limits.flags());
    if !wrong.is_empty() {
        return Some(PostSendError::Flags { flags: wrong });
    }
    if count > limits.max_sge as usize { Some(PostSendError::SgeCount { count, max: limits.max_sge }) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::RingSizes;
    use crate::{Handle, QpCap};

    /// For each transport, with atomics and without, and each number of SGEs: operations and flags come back as they were put in, and a bit
    /// is set for each number of SGEs that is too many.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn one_word_has_operations_flags_and_numbers_of_sges() {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi, QpType::XrcSend, QpType::XrcRecv] {
            for atomics in [false, true] {
                for max_send_sge in 0..=40 {
                    let device = DeviceAttr { atomics, ..DeviceAttr::default() };
                    let cap = QpCap { max_send_sge, ..QpCap::default() };
                    let sizes = RingSizes { cap, ..RingSizes::default() };
                    let limits = SendLimits::new(Handle::NONE, qp_type, (Handle::NONE, 0), &sizes, false, &device);
                    assert_eq!(limits.ops(), OpSet::of(qp_type, &device));
                    assert_eq!(limits.flags(), transport_flags(qp_type));
                    let bytes = limits.disallowed_mask.to_le_bytes();
                    assert_eq!((!bytes[0], u32::from(!bytes[1])), (limits.ops().bits(), limits.flags().bits()));
                    // Bit 15 + n of the word, so n - 1 of the upper half.
                    let mut too_many = limits.disallowed_mask >> 16;
                    for count in 1..=8 {
                        assert_eq!(!too_many.is_multiple_of(2), count > max_send_sge, "{count} of {max_send_sge}");
                        too_many /= 2;
                    }
                }
            }
        }
    }
}
