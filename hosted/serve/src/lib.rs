//! Serves simulated ConnectX devices over vfio-user. Each device is a PCI function at a Unix socket, which a virtual machine
//! monitor passes to its guest. `bareverbs sim serve` is the command-line front end of this package.
//!
//! [`Server::start`] creates the sockets and the threads; [`Server::stop`], or a [`Stopper`] on another thread, ends them. The
//! server handles neither standard streams nor signals, with one exception: it installs a handler for SIGBUS, which is raised when
//! a client truncates the file of its memory. A SIGBUS of another cause ends the process as without the handler.
//!
//! ```
//! use bareverbs_serve::{ServedDevice, Server, ServerConfig};
//! use bareverbs_sim::DeviceConfig;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = |name: &str| folder.path().join(name);
//! // Two devices, LID 1 and 2, joined by one wire.
//! let devices = (1..=2).map(|lid| ServedDevice { config: DeviceConfig::with_lid(lid), socket: path(&format!("cx{lid}")) });
//! let server = Server::start(ServerConfig::new(devices.collect()))?;
//!
//! // Now a virtual machine can be started with the device: QEMU's option is `-device vfio-user-pci,...`.
//! assert_eq!(server.stats(1).map(|stats| stats.commands), Some(0));
//!
//! let summary = server.stop();
//! assert_eq!(summary.devices.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod adaptive_poll;
mod binding;
mod capture;
mod client_memory;
mod config;
mod control;
mod control_line;
mod device_check;
mod device_slot;
mod devices;
mod error;
mod fd_limits;
mod interrupts;
mod joined;
mod line_writer;
mod log;
mod malloc_stats;
mod message_reader;
mod parse_number;
mod pci_function;
mod protocol;
pub mod record;
mod runner;
mod server;
mod shared_buffer;
mod sigbus;
mod socket;
mod source_queues;
pub mod trace;
mod wire_link;

pub use binding::{BindingError, PortBinding};
pub use capture::Capture;
pub use config::{ControlInput, MAX_LID, ServedDevice, ServerConfig};
pub use control_line::{Action, ControlLine, ParseError};
pub use device_check::{check_with_device, decode_send};
pub use error::ServeError;
pub use fd_limits::raise_descriptor_limit;
pub use joined::{
    DatagramAddress, FrameStream, FrameTooLong, JoinedStats, JoinedWire, JoinedWireError, StreamAddress, TapName,
};
pub use log::Log;
pub use parse_number::parse_number;
pub use server::{DeviceSummary, Server, Stopper, Summary};
pub use shared_buffer::Buffer as SharedBuffer;
