//! The machine of the probe: a mapped BAR, mapped memory, the barriers of the CPU, and a timer register. What each object of
//! the verbs takes of its RAM.

use core::mem::size_of;
use core::ptr::NonNull;

use bareverbs::Verbs;
use bareverbs::platform::{Clock, Instant, Platform};
use bareverbs::storage::{QpRings, Storage};
use bareverbs_mlx5::Mlx5;
use bareverbs_mmio::{CpuFence, MappedBar, MappedMemory, PageRanges};

/// Pages of the arena: what bring-up and the small configuration need.
pub const PAGES: usize = 64;

/// A timer that counts nanoseconds.
pub struct Timer(pub NonNull<u64>);

impl Clock for Timer {
    fn now(&self) -> Instant {
        // SAFETY: the creator of the value promised a register there.
        Instant::from_nanos(unsafe { self.0.as_ptr().read_volatile() })
    }
}

/// The machine.
pub struct Probe;

// SAFETY: a mapped BAR, memory and barriers of its machine.
unsafe impl Platform for Probe {
    type Registers = MappedBar;
    type Memory = MappedMemory;
    type Pages = PageRanges;
    type Fence = CpuFence;
    type Clock = Timer;
}

/// The driver.
pub type ProbeDriver = Mlx5<Probe, PAGES>;

/// The verbs on a driver that lies in a static.
pub type ProbeVerbs = Verbs<'static, &'static mut ProbeDriver>;
/// A queue pair of them.
#[cfg(feature = "whole")]
pub type ProbeQueuePair = bareverbs::QueuePair<'static, &'static mut ProbeDriver>;
/// A send queue of them.
pub type ProbeSendQueue = bareverbs::SendQueue<'static, &'static mut ProbeDriver>;
/// A receive queue of them.
#[cfg(feature = "sender-receiver")]
pub type ProbeRecvQueue = bareverbs::RecvQueue<'static, &'static mut ProbeDriver>;
/// A completion queue of them.
pub type ProbeCompletionQueue = bareverbs::CompletionQueue<'static, &'static mut ProbeDriver>;

/// Tables.
type Tables<const PD: usize, const MR: usize, const MW: usize, const CQ: usize, const QP: usize> =
    Storage<'static, &'static mut ProbeDriver, PD, MR, MW, CQ, QP>;

/// The small configuration: 1 PD, 4 MR, 4 MW, 2 CQ, 2 QP.
pub type ProbeTables = Tables<1, 4, 4, 2, 2>;

/// 64 send blocks and 64 receives for each queue pair.
pub type ProbeRings = QpRings<64, 64>;

/// The machine handed in.
#[cfg(feature = "whole")]
pub type ProbeMachine = bareverbs::platform::Machine<Probe>;

/// Of how many objects the size is taken, so that what is left over for alignment does not count.
const MANY: usize = 64;

const fn each(of_many: usize) -> usize {
    (of_many - size_of::<Tables<0, 0, 0, 0, 0>>()) / MANY
}

macro_rules! ram {
    ($($(#[$doc:meta])* $name:ident = $size:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub static $name: [u8; $size] = [0; $size];
    )*};
}

ram! {
    /// Tables and rings of the small configuration.
    RAM_TABLES_AND_RINGS = size_of::<ProbeTables>() + size_of::<[ProbeRings; 2]>();
    /// The verbs.
    RAM_VERBS = size_of::<ProbeVerbs>();
    /// The driver, its arena's page table included.
    RAM_DRIVER = size_of::<ProbeDriver>();
    /// A protection domain in its table.
    RAM_EACH_PROTECTION_DOMAIN = each(size_of::<Tables<MANY, 0, 0, 0, 0>>());
    /// A region in its table.
    RAM_EACH_REGION = each(size_of::<Tables<0, MANY, 0, 0, 0>>());
    /// A window in its table, and a bind in flight.
    RAM_EACH_WINDOW = each(size_of::<Tables<0, 0, MANY, 0, 0>>());
    /// A completion queue in its table.
    RAM_EACH_COMPLETION_QUEUE = each(size_of::<Tables<0, 0, 0, MANY, 0>>());
    /// A queue pair in its table.
    RAM_EACH_QUEUE_PAIR = each(size_of::<Tables<0, 0, 0, 0, MANY>>());
    /// Rings of 64 send blocks and 64 receives.
    RAM_RINGS_OF_64_AND_64 = size_of::<ProbeRings>();
}
