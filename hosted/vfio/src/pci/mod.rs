//! The mlx5 functions of this machine: lists them, finds obstacles to their use over VFIO, and binds them to `vfio-pci` and back
//! to the kernel's driver.
//!
//! Everything is read from sysfs (`Documentation/ABI/testing/sysfs-bus-pci`, `sysfs-kernel-iommu_groups`), procfs and `/dev`.
//!
//! ```no_run
//! use bareverbs_vfio::pci::{self, Need, Process, Sysfs};
//!
//! let sysfs = Sysfs::machine();
//! for function in pci::functions(&sysfs)? {
//!     println!("{} {}", function.address, function.name());
//!     for obstacle in pci::obstacles(&sysfs, &function, &Process::current(), &Need::default()) {
//!         println!("  {obstacle}: {}", obstacle.remedy());
//!     }
//! }
//! # Ok::<(), pci::ReadError>(())
//! ```

mod address;
mod apply;
mod bind;
mod capability;
mod check;
mod function;
mod group;
mod interface;
mod model;
mod network;
mod obstacle;
mod plan;
mod process;
mod rdma_users;
mod sysfs;
mod usage;

pub use address::{Address, AddressError};
pub use apply::{Actor, RunError, System};
pub use bind::{
    BindError, Bound, Failure, Options, StepError, Unbound, bind, bind_with, plan_bind, plan_unbind, unbind, unbind_with,
};
pub use capability::Msix;
pub use check::{Need, in_use, obstacles};
pub use function::{Function, Link, function, functions};
pub use group::{Group, Member};
pub use interface::Interface;
pub use model::{Kind, MELLANOX, Model};
pub use obstacle::{Cpu, Machine, Obstacle};
pub use plan::{Action, Before, Effect, Plan, Step};
pub use process::{Access, Holder, Process};
pub use sysfs::{ReadError, Sysfs};
pub use usage::Usage;

#[cfg(test)]
mod tests;
