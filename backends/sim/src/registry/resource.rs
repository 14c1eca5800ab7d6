//! Names of objects, their kind and their number, and what one takes.

use bareverbs_mlx5_spec::ObjectKind;

use crate::limits::LOG_MIN_ALLOCATION;
use crate::registers::bar0::DEVICE_MEMORY_START;

/// Bytes of this process that a waiting response of a queue pair takes.
pub(crate) const RESPONSE_MEMORY: usize = 64;

/// Returns the waiting responses for which [`memory_of`] counts places with a queue pair that takes as many reads and atomics at
/// a time: their responses, as many repeated, and acknowledgements.
pub(crate) const fn response_places(reads: usize) -> usize {
    if reads > 16 { 4 * reads } else { 64 }
}

/// Returns the bytes of this process that an object takes beside its lists: entries of tables, their slack, and the state of an
/// idle queue, where a queue pair takes as many reads at a time. Generous.
pub(super) const fn memory_of(kind: ObjectKind, reads: usize) -> u64 {
    match kind {
        ObjectKind::Uar
        | ObjectKind::Pd
        | ObjectKind::Xrcd
        | ObjectKind::TransportDomain
        | ObjectKind::CounterSet
        | ObjectKind::FlowCounter => 256,
        ObjectKind::Eq | ObjectKind::Cq | ObjectKind::Srq => 1024,
        // A request of the greatest size, 15 small ones, and responses.
        ObjectKind::Qp => 8192 + (response_places(reads) * RESPONSE_MEMORY) as u64,
        ObjectKind::Mkey | ObjectKind::Umem => 640,
        ObjectKind::DeviceMemory | ObjectKind::UserContext | ObjectKind::Tis | ObjectKind::Tir | ObjectKind::Rqt => 512,
        ObjectKind::Rq | ObjectKind::Sq | ObjectKind::FlowTable => 1024,
    }
}

/// An object, by kind and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Resource {
    pub(crate) kind: ObjectKind,
    pub(crate) number: u32,
}

impl Resource {
    pub(crate) const fn new(kind: ObjectKind, number: u32) -> Self {
        Self { kind, number }
    }

    pub(crate) const fn uar(number: u32) -> Self {
        Self::new(ObjectKind::Uar, number)
    }

    pub(crate) const fn pd(number: u32) -> Self {
        Self::new(ObjectKind::Pd, number)
    }

    pub(crate) const fn xrcd(number: u32) -> Self {
        Self::new(ObjectKind::Xrcd, number)
    }

    pub(crate) const fn eq(number: u32) -> Self {
        Self::new(ObjectKind::Eq, number)
    }

    pub(crate) const fn cq(number: u32) -> Self {
        Self::new(ObjectKind::Cq, number)
    }

    pub(crate) const fn qp(number: u32) -> Self {
        Self::new(ObjectKind::Qp, number)
    }

    pub(crate) const fn srq(number: u32) -> Self {
        Self::new(ObjectKind::Srq, number)
    }

    pub(crate) const fn mkey(index: u32) -> Self {
        Self::new(ObjectKind::Mkey, index)
    }

    pub(crate) const fn umem(number: u32) -> Self {
        Self::new(ObjectKind::Umem, number)
    }

    /// Creates the allocation that begins at a byte of BAR0: its number is how many units are before it.
    pub(crate) const fn device_memory(at: u64) -> Self {
        let unit = at.saturating_sub(DEVICE_MEMORY_START) >> LOG_MIN_ALLOCATION;
        Self::new(ObjectKind::DeviceMemory, unit as u32)
    }

    pub(crate) const fn user_context(uid: u32) -> Self {
        Self::new(ObjectKind::UserContext, uid)
    }
}
