//! Sets of flags as the verbs define them, with the values of `infiniband/verbs.h`.

use bitflags::bitflags;

macro_rules! format_bits {
    ($($name:ident),+) => {$(
        #[cfg(feature = "defmt")]
        impl defmt::Format for $name {
            fn format(&self, f: defmt::Formatter<'_>) {
                defmt::write!(f, "{}({=u32:#x})", stringify!($name), self.bits());
            }
        }
    )+};
}

bitflags! {
    /// What a memory region or window allows (`ibv_access_flags`). Local read is always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local queue pairs may write.
        const LOCAL_WRITE = 1;
        /// The peer may write; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read.
        const REMOTE_READ = 1 << 2;
        /// The peer may do atomics; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Remote addresses are offsets from the start.
        const ZERO_BASED = 1 << 5;
        /// The device may reorder its accesses.
        const RELAXED_ORDERING = 1 << 20;
        const _ = !0;
    }

    /// How a send request is treated (`ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Waits for the reads and atomics before it.
        const FENCE = 1;
        /// Gives a completion; matters only if the queue pair was made without `sq_sig_all`.
        const SIGNALED = 1 << 1;
        /// Makes the peer's completion a solicited one.
        const SOLICITED = 1 << 2;
        /// The payload is copied into the request.
        const INLINE = 1 << 3;
        /// Not for programs, who are refused it: the request before is a bind or an invalidation. The verbs tell the backend.
        const AFTER_BIND = 1 << 4;
        const _ = !0;
    }

    /// Attributes that a modify changes (`ibv_qp_attr_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// The next state.
        const STATE = 1;
        /// The state assumed to be current.
        const CUR_STATE = 1 << 1;
        /// Remote access that incoming requests may use.
        const ACCESS_FLAGS = 1 << 3;
        /// Index of the P_Key.
        const PKEY_INDEX = 1 << 4;
        /// Physical port.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Primary path.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Retry count.
        const RETRY_CNT = 1 << 10;
        /// RNR retry count.
        const RNR_RETRY = 1 << 11;
        /// PSN of the receive queue.
        const RQ_PSN = 1 << 12;
        /// Reads and atomics outstanding as initiator.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// Minimum RNR NAK timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// PSN of the send queue.
        const SQ_PSN = 1 << 16;
        /// Reads and atomics outstanding as target.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// Peer's queue pair number.
        const DEST_QPN = 1 << 20;
        const _ = !0;
    }
}

impl core::fmt::Display for QpAttrMask {
    /// Writes the names with bars between them: `RETRY_CNT | TIMEOUT`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

format_bits!(Access, SendFlags, QpAttrMask);

impl Access {
    /// The flags that this library knows.
    pub const KNOWN: Self = Self::LOCAL_WRITE
        .union(Self::REMOTE_WRITE)
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::MW_BIND)
        .union(Self::ZERO_BASED)
        .union(Self::RELAXED_ORDERING);
}

impl SendFlags {
    /// The flags that this library knows.
    pub const KNOWN: Self = Self::FENCE.union(Self::SIGNALED).union(Self::SOLICITED).union(Self::INLINE);
}
