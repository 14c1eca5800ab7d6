//! A device as the subcommands use it: brought up by the driver, on a host that is simulated or behind VFIO.

pub mod attributes;
mod bring_up;
mod card_error;
mod endpoint;
pub mod ethernet;
mod host;
pub mod port;
pub mod selection;
pub mod simulated;
pub mod simulation_args;
pub mod stoppable;
pub mod vfio;

pub use bring_up::{
    COMPLETION_QUEUES, DOMAINS, Device, LOCKED_MEMORY, QUEUE_PAIRS, RECEIVES, REGIONS, SEND_BLOCKS, Verbs, WINDOWS,
};
pub use card_error::CardError;
pub(crate) use endpoint::{Carrier, Endpoint};
pub use host::Host;
pub use selection::{DevicePair, Role};
