//! The state of one device: the command interface, and what objects and events share above it.

use bareverbs::backend::AsyncEvent;
use bareverbs::platform::{Machine, Platform};
use bareverbs::{DeviceAttr, KeyTag, Mac};
use bareverbs_mlx5_spec::{CmdHcaCap, Field};
use heapless::Vec;

use crate::bring_up::caps::{Capabilities, Page, view};
use crate::command::CommandInterface;
use crate::config::{Config, ROCE};
use crate::dma::arena::PageUse;
#[cfg(feature = "ethernet")]
use crate::ethernet::queues::FrameInterface;
use crate::events::completion::{COMPLETION_EQS, Mlx5CompletionEvents};
use crate::events::eq::Eq;
use crate::events::health::HealthWatch;
use crate::object::Object;

/// Most addresses in the multicast list of an Ethernet port.
const MAX_STATIONS: usize = if ROCE { 16 } else { 0 };

/// Steps of the bring-up that a teardown must undo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BringUpState {
    pub(crate) enabled: bool,
    pub(crate) initialized: bool,
    pub(crate) roce: bool,
}

/// One device. `U` is the arena's array in [`crate::Mlx5`] and a slice everywhere else, so that the code exists once.
pub(crate) struct Driver<P: Platform, U: ?Sized = [PageUse]> {
    pub(crate) config: Config,
    pub(crate) state: BringUpState,
    pub(crate) caps: Capabilities,
    /// The general capabilities, as the bring-up found them ([`Driver::capability`]).
    pub(crate) general: Page,
    pub(crate) attr: DeviceAttr,
    /// The UAR page, 0 before there is one: page 0 begins with the initialization segment.
    pub(crate) uar: u32,
    /// The queue of asynchronous events.
    pub(crate) events: Option<Eq<P>>,
    /// Those for completions, with their vectors. The interrupt handler owns their rings.
    pub(crate) completion_eqs: Vec<(Object, u16), COMPLETION_EQS>,
    /// The rings for completions, until they are taken.
    pub(crate) completion_events: Option<Mlx5CompletionEvents<P>>,
    /// What is reported after an overflow: the event that was not lost, then that there is none.
    pub(crate) after_overflow: Option<Option<AsyncEvent>>,
    /// Completion queues created, to spread them over `completion_eqs`.
    pub(crate) assigned: usize,
    /// MAC address of an Ethernet port, as the bring-up found it.
    pub(crate) mac: Mac,
    /// The multicast list of an Ethernet port: addresses of groups and of broadcasts, and how many users each has.
    pub(crate) stations: Vec<(Mac, u16), MAX_STATIONS>,
    /// Attachments of queue pairs to multicast groups.
    pub(crate) groups: u32,
    /// What XRC queue pairs name that need no more.
    pub(crate) unused: Vec<Object, 4>,
    /// XRC domains that exist.
    pub(crate) xrcds: u32,
    /// Completion queues that exist.
    pub(crate) cqs: u32,
    /// The queues for frames, while they are open.
    #[cfg(feature = "ethernet")]
    pub(crate) ethernet: Option<FrameInterface<P>>,
    /// Whether the queues for frames take every frame of the port.
    pub(crate) promiscuous: bool,
    pub(crate) health: HealthWatch,
    /// Tag of the last key that was created.
    pub(crate) key_tag: KeyTag,
    pub(crate) commands: CommandInterface<P, U>,
}

impl<P: Platform, const PAGES: usize> Driver<P, [PageUse; PAGES]> {
    pub(crate) fn new(machine: Machine<P>, config: Config) -> Self {
        Self {
            config,
            state: BringUpState::default(),
            caps: Capabilities::default(),
            general: [0; size_of::<Page>()],
            attr: DeviceAttr::default(),
            uar: 0,
            events: None,
            completion_eqs: Vec::new(),
            completion_events: None,
            after_overflow: None,
            assigned: 0,
            mac: Mac::default(),
            stations: Vec::new(),
            groups: 0,
            unused: Vec::new(),
            xrcds: 0,
            cqs: 0,
            #[cfg(feature = "ethernet")]
            ethernet: None,
            promiscuous: false,
            health: HealthWatch::default(),
            key_tag: KeyTag::default(),
            commands: CommandInterface::new(machine, &config),
        }
    }
}

impl<P: Platform> Driver<P> {
    /// Returns a general capability of the device.
    pub(crate) fn capability(&self, field: Field<CmdHcaCap>) -> u32 {
        view::<CmdHcaCap>(&self.general).get(field)
    }
}
