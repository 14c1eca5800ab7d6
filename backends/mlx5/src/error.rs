//! What can go wrong between this driver and its device.

use core::fmt;

use bareverbs::{DeviceError, Errno, OutOfRange, QpState};
use bareverbs_mlx5_spec::{CmdDeliveryStatus, CmdOpcode, CmdStatus};

/// An error of the driver, with its facts.
///
/// No larger than two words, so that it is handed on in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Error {
    /// The memory handed in is smaller than the arena that the type promises ([`Mlx5::ARENA`](crate::Mlx5::ARENA)).
    ArenaTooSmall {
        /// Bytes handed in.
        have: usize,
    },
    /// No run of that many free pages is left in the arena.
    ArenaFull {
        /// Pages wanted.
        pages: u32,
    },
    /// Every doorbell record is in use.
    RecordsFull,
    /// An access outside the registers or the memory that the integrator handed in.
    OutOfRange {
        /// Byte offset.
        offset: usize,
    },
    /// The device did not finish its initialization in time.
    NotInitialized,
    /// The device speaks another revision of the command interface.
    CommandInterface {
        /// Its revision; 5 is spoken here.
        revision: u16,
    },
    /// The device describes a command queue that cannot be.
    CommandQueue {
        /// log2 of its entries.
        log_size: u8,
        /// log2 of the bytes from entry to entry.
        log_stride: u8,
    },
    /// The device refused a command.
    CommandStatus {
        /// Opcode.
        opcode: u16,
        /// Status ([`CmdStatus`]).
        status: u8,
        /// The firmware's own code.
        syndrome: u32,
    },
    /// The device could not take a command.
    CommandDelivery {
        /// Opcode.
        opcode: u16,
        /// Delivery status ([`CmdDeliveryStatus`]).
        status: u8,
    },
    /// The signature over the answer is wrong.
    CommandSignature {
        /// Opcode.
        opcode: u16,
    },
    /// The device did not answer in time. Slot and memory of the command are the device's until it does: then they come back,
    /// an object that it created is destroyed again, and an object that it destroyed is gone for who tries again.
    CommandTimeout {
        /// Opcode.
        opcode: u16,
    },
    /// Every slot of the command queue waits for an answer that did not come in time.
    NoCommandSlot,
    /// Reads of the device give all ones: it is gone.
    DeviceGone,
    /// The firmware reported a failure after which nothing works until a reset.
    DeviceFatal {
        /// Health syndrome.
        syndrome: u8,
    },
    /// The device offers no interface step (ISSI) that is spoken here.
    Issi {
        /// Bit n: step n.
        supported: u32,
    },
    /// The port is not an InfiniBand port.
    PortType {
        /// Its type.
        port_type: u8,
    },
    /// No such port.
    NoPort {
        /// The port requested.
        port: u8,
    },
    /// The device answered a command with a number that cannot be.
    BadAnswer {
        /// Opcode.
        opcode: u16,
        /// The number.
        value: u32,
    },
    /// The caller's map has no device address for a page of the region.
    Unmapped {
        /// The page: how many of 4096 bytes lie between the start of the region and the address without one.
        page: u32,
    },
    /// Address and device address of a page differ in their low bits, or what is contiguous ends within a page.
    Misaligned,
    /// More than the device, or this driver, can.
    LimitExceeded {
        /// The most.
        limit: u32,
    },
    /// Not offered by the device, or not driven here.
    Unsupported(Feature),
    /// No command moves a queue pair this way.
    Transition {
        /// From.
        from: QpState,
        /// To.
        to: QpState,
    },
    /// The caller's hook stopped the bring-up.
    Stopped,
    /// The firmware kept pages.
    PagesKept {
        /// How many.
        pages: u32,
    },
}

const _: () = assert!(size_of::<Result<(), Error>>() <= 2 * size_of::<usize>());

/// A feature that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Feature {
    /// Transport other than RC and UC.
    Transport,
    /// Memory windows.
    MemoryWindows,
    /// 8-byte atomics.
    Atomics,
    /// Relaxed ordering.
    RelaxedOrdering,
    /// An access flag that is not known.
    AccessFlag,
}

impl Error {
    /// Whether the device may still carry the command out, so that its memory must not be used again.
    pub(crate) const fn may_still_complete(&self) -> bool {
        matches!(
            self,
            Self::CommandTimeout { .. }
                | Self::BadAnswer { .. }
                | Self::DeviceGone
                | Self::DeviceFatal { .. }
                | Self::CommandSignature { .. }
        )
    }
}

impl From<OutOfRange> for Error {
    fn from(OutOfRange { offset, .. }: OutOfRange) -> Self {
        Self::OutOfRange { offset }
    }
}

/// Name of an opcode, for people.
fn opcode_name(opcode: u16) -> &'static str {
    CmdOpcode::from_code(u32::from(opcode)).map_or("command", CmdOpcode::name)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ArenaTooSmall { have } => write!(f, "the memory has {have} bytes, fewer than were promised"),
            Self::ArenaFull { pages } => write!(f, "no {pages} free pages in a row in the arena"),
            Self::RecordsFull => f.write_str("every doorbell record is in use"),
            Self::OutOfRange { offset } => write!(f, "byte {offset:#x} is outside registers or memory"),
            Self::NotInitialized => f.write_str("the device did not finish its initialization in time"),
            Self::CommandInterface { revision } => write!(f, "command interface revision {revision} instead of 5"),
            Self::CommandQueue { log_size, log_stride } => {
                write!(f, "impossible command queue: 2^{log_size} entries, 2^{log_stride} bytes apart")
            }
            Self::CommandStatus { opcode, status, syndrome } => {
                let name = CmdStatus::from_code(u32::from(status)).map_or("unknown status", CmdStatus::name);
                write!(f, "{} ({opcode:#x}) refused: {name} ({status:#x}), syndrome {syndrome:#x}", opcode_name(opcode))
            }
            Self::CommandDelivery { opcode, status } => {
                let name = CmdDeliveryStatus::from_code(u32::from(status)).map_or("unknown status", CmdDeliveryStatus::name);
                write!(f, "{} ({opcode:#x}) not delivered: {name} ({status:#x})", opcode_name(opcode))
            }
            Self::CommandSignature { opcode } => write!(f, "{} ({opcode:#x}): wrong signature", opcode_name(opcode)),
            Self::CommandTimeout { opcode } => write!(f, "{} ({opcode:#x}): no answer in time", opcode_name(opcode)),
            Self::NoCommandSlot => f.write_str("every command slot waits for an answer"),
            Self::DeviceGone => f.write_str("the device is gone"),
            Self::DeviceFatal { syndrome } => {
                write!(f, "the firmware stopped (health syndrome {syndrome:#x}): nothing works until a reset")
            }
            Self::Issi { supported } => write!(f, "no interface step in common: the device offers {supported:#x}"),
            Self::PortType { port_type } => write!(f, "port type {port_type} is not InfiniBand"),
            Self::NoPort { port } => write!(f, "no port {port}"),
            Self::BadAnswer { opcode, value } => {
                write!(f, "{} ({opcode:#x}) answered with {value:#x}, which cannot be", opcode_name(opcode))
            }
            Self::Unmapped { page } => write!(f, "no device address for page {page} of the region"),
            Self::Misaligned => f.write_str("addresses and device addresses of the region lie differently in their pages"),
            Self::LimitExceeded { limit } => write!(f, "more than the limit of {limit}"),
            Self::Unsupported(feature) => write!(f, "not supported: {feature:?}"),
            Self::Transition { from, to } => write!(f, "no command from {from:?} to {to:?}"),
            Self::Stopped => f.write_str("stopped by the caller"),
            Self::PagesKept { pages } => write!(f, "the firmware kept {pages} pages"),
        }
    }
}

impl core::error::Error for Error {}

impl DeviceError for Error {
    fn may_still_complete(&self) -> bool {
        Self::may_still_complete(self)
    }

    fn errno(&self) -> Errno {
        match *self {
            Self::ArenaFull { .. } | Self::RecordsFull => Errno::Enomem,
            Self::ArenaTooSmall { .. }
            | Self::NoPort { .. }
            | Self::Misaligned
            | Self::LimitExceeded { .. }
            | Self::Transition { .. } => Errno::Einval,
            Self::CommandStatus { status, .. } => status_errno(status),
            Self::CommandTimeout { .. } | Self::NotInitialized => Errno::Etimedout,
            Self::NoCommandSlot | Self::Stopped => Errno::Eagain,
            Self::DeviceGone => Errno::Enodev,
            Self::DeviceFatal { .. } => Errno::Eio,
            Self::Issi { .. } | Self::PortType { .. } | Self::Unsupported(_) | Self::CommandInterface { .. } => {
                Errno::Eopnotsupp
            }
            Self::Unmapped { .. } => Errno::Efault,
            Self::BadAnswer { .. } | Self::CommandSignature { .. } => Errno::Ebadmsg,
            Self::PagesKept { .. } => Errno::Ebusy,
            Self::OutOfRange { .. } | Self::CommandQueue { .. } | Self::CommandDelivery { .. } => Errno::Eio,
        }
    }
}

/// The errno that Linux gives for a command status; but no room in the device is ENOMEM, as no room in a table is: trying
/// again does not help as long as nothing is destroyed.
fn status_errno(status: u8) -> Errno {
    match CmdStatus::from_code(u32::from(status)) {
        Some(CmdStatus::ResBusy) => Errno::Ebusy,
        Some(CmdStatus::LimErr | CmdStatus::NoResources) => Errno::Enomem,
        Some(
            CmdStatus::BadOp
            | CmdStatus::BadParam
            | CmdStatus::BadRes
            | CmdStatus::BadResState
            | CmdStatus::IxErr
            | CmdStatus::BadQpState
            | CmdStatus::BadPkt
            | CmdStatus::BadSize,
        ) => Errno::Einval,
        _ => Errno::Eio,
    }
}
