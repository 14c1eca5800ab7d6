//! The state of one device.

use bareverbs::{AsyncEvent, DeviceAttr, DmaMemory, Machine, Platform};
use bareverbs_mlx5_spec::MkeyTag;
use heapless::Vec;

use crate::bring_up::caps::Capabilities;
use crate::command::Commands;
use crate::dma::arena::{Arena, PageRange, PageUse};
use crate::dma::uar::Uar;
use crate::error::PackedError;
use crate::events::completion::Mlx5CompletionEvents;
use crate::events::eq::{Eq, EqInfo};
use crate::events::health::HealthWatch;
use crate::{Config, Statistics};

/// Maximum number of event queues for completions.
pub(crate) const COMPLETION_EQS: usize = 8;

/// Steps of the bring-up that a teardown must undo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BringUpState {
    /// ENABLE_HCA was done.
    pub(crate) enabled: bool,
    /// INIT_HCA was done.
    pub(crate) initialized: bool,
}

/// Event queues by purpose.
pub(crate) struct EventQueues<P: Platform> {
    pub(crate) command: Option<Eq<P>>,
    pub(crate) events: Option<Eq<P>>,
    pub(crate) pages: Option<Eq<P>>,
    /// Those for completions. The interrupt handler owns their rings.
    pub(crate) completion: Vec<EqInfo, COMPLETION_EQS>,
    /// The rings for completions, until they are taken.
    pub(crate) completion_events: Option<Mlx5CompletionEvents<P>>,
    /// An event from a full queue, reported after the overflow.
    pub(crate) after_overflow: Option<AsyncEvent>,
    /// Completion queues created, to spread them over `completion`.
    pub(crate) assigned: usize,
}

/// One device. `U` is the arena's array in [`crate::Mlx5`] and a slice everywhere else, so that the code exists once.
pub(crate) struct Driver<P: Platform, U: ?Sized = [PageUse]> {
    pub(crate) machine: Machine<P>,
    pub(crate) config: Config,
    pub(crate) state: BringUpState,
    pub(crate) commands: Commands,
    pub(crate) caps: Capabilities,
    pub(crate) attr: DeviceAttr,
    pub(crate) uar: Uar,
    pub(crate) eqs: EventQueues<P>,
    /// Completion queues that exist.
    pub(crate) cqs: u32,
    pub(crate) health: HealthWatch,
    pub(crate) stats: Statistics,
    /// Tag of the last key that was created.
    pub(crate) mkey_tag: MkeyTag,
    pub(crate) arena: Arena<U>,
}

impl<P: Platform, const PAGES: usize> Driver<P, [PageUse; PAGES]> {
    /// Creates a driver that has not accessed its device.
    pub(crate) fn new(machine: Machine<P>, config: Config) -> Self {
        let arena = Arena::new(machine.memory.device_addr(), config.firmware_pages);
        Self {
            machine,
            config,
            state: BringUpState::default(),
            commands: Commands::new(&config),
            caps: Capabilities::default(),
            attr: DeviceAttr::default(),
            uar: Uar::default(),
            eqs: EventQueues {
                command: None,
                events: None,
                pages: None,
                completion: Vec::new(),
                completion_events: None,
                after_overflow: None,
                assigned: 0,
            },
            cqs: 0,
            health: HealthWatch::default(),
            stats: Statistics::default(),
            mkey_tag: MkeyTag::default(),
            arena,
        }
    }
}

impl<P: Platform> Driver<P> {
    /// Allocates contiguous pages and fills them with zeros.
    pub(crate) fn allocate_cleared(&mut self, pages: u32) -> Result<PageRange, PackedError> {
        let range = self.arena.allocate(pages)?;
        for at in (range.at()..range.at() + range.bytes()).step_by(64) {
            if let Err(error) = self.machine.memory.store(at, &[0; 8]) {
                self.arena.free(range);
                return Err(error.into());
            }
        }
        Ok(range)
    }
}
