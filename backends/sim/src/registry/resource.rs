//! Names of objects: their kind and their number.

use bareverbs_mlx5_spec::ObjectKind;

/// Kinds of objects of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ResourceKind {
    /// User access region: a page of doorbells.
    Uar,
    /// Protection domain.
    Pd,
    /// XRC domain.
    Xrcd,
    /// Transport domain.
    TransportDomain,
    /// Set of counters.
    CounterSet,
    /// Event queue.
    Eq,
    /// Completion queue.
    Cq,
    /// Queue pair.
    Qp,
    /// Shared receive queue of any kind.
    Srq,
    /// Memory key, by its index.
    Mkey,
    /// User memory object.
    Umem,
    /// Device memory, by the unit in which it begins.
    DeviceMemory,
    /// User context.
    UserContext,
}

impl ResourceKind {
    /// Kinds there are.
    pub(crate) const COUNT: usize = Self::UserContext as usize + 1;

    /// Bytes of this process that an object takes beside the lists that it keeps: entries of the tables that it is in, their
    /// slack, and what the data path keeps for a queue that is idle. Generous.
    pub(crate) const fn memory(self) -> u64 {
        match self {
            Self::Uar | Self::Pd | Self::Xrcd | Self::TransportDomain | Self::CounterSet => 256,
            Self::Eq | Self::Cq | Self::Srq => 1024,
            // Answers to as many reads as a peer may have outstanding, and a request of the greatest size.
            Self::Qp => 8192,
            Self::Mkey | Self::Umem => 640,
            Self::DeviceMemory | Self::UserContext => 512,
        }
    }
}

impl From<ObjectKind> for ResourceKind {
    fn from(kind: ObjectKind) -> Self {
        match kind {
            ObjectKind::Uar => Self::Uar,
            ObjectKind::Pd => Self::Pd,
            ObjectKind::Xrcd => Self::Xrcd,
            ObjectKind::TransportDomain => Self::TransportDomain,
            ObjectKind::CounterSet => Self::CounterSet,
            ObjectKind::Eq => Self::Eq,
            ObjectKind::Cq => Self::Cq,
            ObjectKind::Qp => Self::Qp,
            ObjectKind::Srq => Self::Srq,
            ObjectKind::Mkey => Self::Mkey,
            ObjectKind::Umem => Self::Umem,
        }
    }
}

/// An object, by kind and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Resource {
    pub(crate) kind: ResourceKind,
    pub(crate) number: u32,
}

impl Resource {
    pub(crate) const fn new(kind: ResourceKind, number: u32) -> Self {
        Self { kind, number }
    }

    pub(crate) const fn uar(number: u32) -> Self {
        Self::new(ResourceKind::Uar, number)
    }

    pub(crate) const fn pd(number: u32) -> Self {
        Self::new(ResourceKind::Pd, number)
    }

    pub(crate) const fn xrcd(number: u32) -> Self {
        Self::new(ResourceKind::Xrcd, number)
    }

    pub(crate) const fn eq(number: u32) -> Self {
        Self::new(ResourceKind::Eq, number)
    }

    pub(crate) const fn cq(number: u32) -> Self {
        Self::new(ResourceKind::Cq, number)
    }

    pub(crate) const fn qp(number: u32) -> Self {
        Self::new(ResourceKind::Qp, number)
    }

    pub(crate) const fn srq(number: u32) -> Self {
        Self::new(ResourceKind::Srq, number)
    }

    pub(crate) const fn mkey(index: u32) -> Self {
        Self::new(ResourceKind::Mkey, index)
    }

    pub(crate) const fn umem(number: u32) -> Self {
        Self::new(ResourceKind::Umem, number)
    }

    pub(crate) const fn device_memory(unit: u32) -> Self {
        Self::new(ResourceKind::DeviceMemory, unit)
    }

    pub(crate) const fn user_context(uid: u32) -> Self {
        Self::new(ResourceKind::UserContext, uid)
    }
}
