//! Errors of the driver.

use core::fmt;
use core::num::NonZeroU32;

use bareverbs::{DeviceError, Errno, OutOfRange, QpState};
use bareverbs_mlx5_spec::{CmdDeliveryStatus, CmdOpcode, CmdStatus};

/// An error of the driver, with its facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Error {
    /// The memory handed in is smaller than the arena that the type promises ([`Mlx5::ARENA`](crate::Mlx5::ARENA)).
    ArenaTooSmall {
        /// Bytes handed in.
        have: usize,
    },
    /// The arena is too small: it has not that many free pages, or they are not contiguous.
    ArenaFull {
        /// Pages requested.
        pages: u32,
        /// Pages that are free, at most 2^24 - 1 are told.
        free: u32,
    },
    /// The machine has fewer pages for the firmware than that wants, or [`Config::firmware_pages`](crate::Config::firmware_pages)
    /// allows fewer. None of them was given.
    TooFewPages {
        /// Pages that the firmware wants.
        wanted: u32,
        /// Pages that are left, at most 2^24 - 1 are told.
        available: u32,
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
    /// The device has an unsupported revision of the command interface.
    CommandInterface {
        /// Its revision; the driver supports 5.
        revision: u16,
    },
    /// The device describes an impossible command queue.
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
    /// The signature of the output is wrong: whether the command was executed is not known. The device is lost until a reset.
    CommandSignature {
        /// Opcode.
        opcode: u16,
    },
    /// A command timed out. The device is lost until a reset: it may still execute the command, so that no other is sent, and
    /// keeps its memory. Every later call fails with this error too.
    CommandTimeout {
        /// Opcode.
        opcode: u16,
    },
    /// Registers read as all ones: the device was removed, or is in a reset.
    DeviceGone,
    /// Somebody else reset the device, or turned its interface off: it does not know the command queue any more, nor any object.
    /// Only a new bring-up makes it usable.
    DeviceReset,
    /// The firmware reported a failure after which nothing works until a reset.
    DeviceFatal {
        /// Health syndrome.
        syndrome: u8,
    },
    /// The device offers no supported interface step sequence ID (ISSI).
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
    /// The output of a command contains an impossible number.
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
    /// Address and device address of a page differ in their low bits, or a contiguous extent ends within a page.
    Misaligned,
    /// A request exceeds a limit of the device or of the driver.
    LimitExceeded {
        /// The maximum.
        limit: u32,
    },
    /// The device does not offer the feature, or the driver does not support it.
    Unsupported(Feature),
    /// No command performs this transition of a queue pair.
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
    /// An unknown access flag.
    AccessFlag,
    /// The function of the card's own processor (BlueField's Arm side).
    EmbeddedCpu,
}

impl Error {
    /// Returns whether the device may still use the memory that a failed call was about.
    pub(crate) const fn may_use_memory(&self) -> bool {
        matches!(
            self,
            Self::CommandTimeout { .. }
                | Self::BadAnswer { .. }
                | Self::DeviceGone
                | Self::DeviceReset
                | Self::DeviceFatal { .. }
                | Self::CommandSignature { .. }
        )
    }
}

/// An [`Error`] packed into two numbers. Inside the driver functions return it in CPU registers; an enum would be returned in
/// memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedError {
    /// Which error, in bits 0 to 7; a small fact from bit 8 on; an opcode from bit 16 on.
    head: NonZeroU32,
    /// A fact of the size of an address.
    fact: usize,
}

const _: () = assert!(size_of::<Result<(), PackedError>>() <= 2 * size_of::<usize>());

/// Every state, by the number that a [`PackedError`] has for it.
const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];
/// Every feature, by the number that a [`PackedError`] has for it.
const FEATURES: [Feature; 6] = [
    Feature::Transport,
    Feature::MemoryWindows,
    Feature::Atomics,
    Feature::RelaxedOrdering,
    Feature::AccessFlag,
    Feature::EmbeddedCpu,
];

impl Error {
    /// Returns the error in its packed form.
    #[inline(always)]
    pub(crate) const fn pack(self) -> PackedError {
        let (kind, small, opcode, fact) = match self {
            Self::ArenaTooSmall { have } => (0, 0, 0, have),
            Self::ArenaFull { pages, free } => (1, shorter(free).0, shorter(free).1, pages as usize),
            Self::TooFewPages { wanted, available } => (25, shorter(available).0, shorter(available).1, wanted as usize),
            Self::RecordsFull => (2, 0, 0, 0),
            Self::OutOfRange { offset } => (3, 0, 0, offset),
            Self::NotInitialized => (4, 0, 0, 0),
            Self::CommandInterface { revision } => (5, 0, revision, 0),
            Self::CommandQueue { log_size, log_stride } => (6, log_size, log_stride as u16, 0),
            Self::CommandStatus { opcode, status, syndrome } => (7, status, opcode, syndrome as usize),
            Self::CommandDelivery { opcode, status } => (8, status, opcode, 0),
            Self::CommandSignature { opcode } => (9, 0, opcode, 0),
            Self::CommandTimeout { opcode } => (10, 0, opcode, 0),
            Self::DeviceGone => (11, 0, 0, 0),
            Self::DeviceFatal { syndrome } => (12, syndrome, 0, 0),
            Self::Issi { supported } => (13, 0, 0, supported as usize),
            Self::PortType { port_type } => (14, port_type, 0, 0),
            Self::NoPort { port } => (15, port, 0, 0),
            Self::BadAnswer { opcode, value } => (16, 0, opcode, value as usize),
            Self::Unmapped { page } => (17, 0, 0, page as usize),
            Self::Misaligned => (18, 0, 0, 0),
            Self::LimitExceeded { limit } => (19, 0, 0, limit as usize),
            Self::Unsupported(feature) => (20, feature as u8, 0, 0),
            Self::Transition { from, to } => (21, from as u8, to as u16, 0),
            Self::Stopped => (22, 0, 0, 0),
            Self::PagesKept { pages } => (23, 0, 0, pages as usize),
            Self::DeviceReset => (24, 0, 0, 0),
        };
        // One more than the number, so that none is 0.
        PackedError { head: NonZeroU32::MIN.saturating_add(kind | (small as u32) << 8 | (opcode as u32) << 16), fact }
    }
}

/// Returns a number of pages as the small fact and the opcode of a [`PackedError`]: 24 bits, which are 64 GiB.
const fn shorter(pages: u32) -> (u8, u16) {
    let pages = if pages > 0xff_ffff { 0xff_ffff } else { pages };
    (pages as u8, (pages >> 8) as u16)
}

impl From<PackedError> for Error {
    #[inline(never)]
    fn from(PackedError { head, fact }: PackedError) -> Self {
        let head = head.get() - 1;
        let (small, opcode, number) = ((head >> 8) as u8, (head >> 16) as u16, fact as u32);
        match head & 0xff {
            0 => Self::ArenaTooSmall { have: fact },
            1 => Self::ArenaFull { pages: number, free: u32::from(opcode) << 8 | u32::from(small) },
            2 => Self::RecordsFull,
            3 => Self::OutOfRange { offset: fact },
            4 => Self::NotInitialized,
            5 => Self::CommandInterface { revision: opcode },
            6 => Self::CommandQueue { log_size: small, log_stride: opcode as u8 },
            7 => Self::CommandStatus { opcode, status: small, syndrome: number },
            8 => Self::CommandDelivery { opcode, status: small },
            9 => Self::CommandSignature { opcode },
            10 => Self::CommandTimeout { opcode },
            11 => Self::DeviceGone,
            12 => Self::DeviceFatal { syndrome: small },
            13 => Self::Issi { supported: number },
            14 => Self::PortType { port_type: small },
            15 => Self::NoPort { port: small },
            16 => Self::BadAnswer { opcode, value: number },
            17 => Self::Unmapped { page: number },
            18 => Self::Misaligned,
            19 => Self::LimitExceeded { limit: number },
            20 => Self::Unsupported(FEATURES.get(usize::from(small)).copied().unwrap_or(Feature::AccessFlag)),
            21 => {
                let state = |code: u8| STATES.get(usize::from(code)).copied().unwrap_or_default();
                Self::Transition { from: state(small), to: state(opcode as u8) }
            }
            23 => Self::PagesKept { pages: number },
            24 => Self::DeviceReset,
            25 => Self::TooFewPages { wanted: number, available: u32::from(opcode) << 8 | u32::from(small) },
            _ => Self::Stopped,
        }
    }
}

impl PackedError {
    /// Returns the status of a command that the device refused.
    pub(crate) fn command_status(self) -> Option<u32> {
        match self.into() {
            Error::CommandStatus { status, .. } => Some(u32::from(status)),
            _ => None,
        }
    }
}

impl fmt::Debug for PackedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Error::from(*self), f)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for PackedError {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{}", Error::from(*self));
    }
}

impl From<OutOfRange> for PackedError {
    #[inline(always)]
    fn from(OutOfRange { offset, .. }: OutOfRange) -> Self {
        Error::OutOfRange { offset }.pack()
    }
}

/// Returns the published name of an opcode.
fn opcode_name(opcode: u16) -> &'static str {
    CmdOpcode::from_code(u32::from(opcode)).map_or("command", CmdOpcode::name)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ArenaTooSmall { have } => write!(f, "the memory has {have} bytes, fewer than were promised"),
            Self::ArenaFull { pages, free } if pages > free => {
                write!(f, "{pages} pages are needed, the arena has {free} free ones; make it larger (a parameter of `Mlx5`)")
            }
            Self::ArenaFull { pages, free } => {
                write!(
                    f,
                    "no {pages} contiguous pages among the {free} free ones of the arena; make it larger (a parameter of `Mlx5`)"
                )
            }
            Self::TooFewPages { wanted, available } => {
                let (has, lacks) = (available / 256, wanted.saturating_sub(available).div_ceil(256));
                write!(f, "the card's firmware wants {wanted} pages, {available} are left ({has} MiB); ")?;
                write!(f, "give the driver {lacks} MiB more for the firmware (`Machine::pages`, `Config::firmware_pages`)")
            }
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
            Self::CommandSignature { opcode } => {
                let name = opcode_name(opcode);
                write!(f, "{name} ({opcode:#x}): wrong signature; the device is lost until a reset")
            }
            Self::CommandTimeout { opcode } => {
                write!(f, "{} ({opcode:#x}) timed out; the device is lost until a reset", opcode_name(opcode))
            }
            Self::DeviceGone => f.write_str("the device is gone: its registers read as all ones"),
            Self::DeviceReset => f.write_str("the device was reset by somebody else: nothing works until a new bring-up"),
            Self::DeviceFatal { syndrome } => {
                write!(f, "the firmware stopped (health syndrome {syndrome:#x}): nothing works until a reset")
            }
            Self::Issi { supported } => write!(f, "no interface step in common: the device offers {supported:#x}"),
            Self::PortType { port_type } => write!(f, "port type {port_type} is not InfiniBand"),
            Self::NoPort { port } => write!(f, "no port {port}"),
            Self::BadAnswer { opcode, value } => {
                write!(f, "{} ({opcode:#x}) returned {value:#x}, which is impossible", opcode_name(opcode))
            }
            Self::Unmapped { page } => write!(f, "no device address for page {page} of the region"),
            Self::Misaligned => f.write_str("addresses and device addresses of the region lie differently in their pages"),
            Self::LimitExceeded { limit } => write!(f, "more than the limit of {limit}"),
            Self::Unsupported(Feature::EmbeddedCpu) => f.write_str(
                "the function belongs to the card's own processor (BlueField), which is not supported: use the function that the host sees",
            ),
            Self::Unsupported(feature) => write!(f, "not supported: {feature:?}"),
            Self::Transition { from, to } => write!(f, "no command from {from:?} to {to:?}"),
            Self::Stopped => f.write_str("stopped by the caller"),
            Self::PagesKept { pages } => write!(f, "the firmware kept {pages} pages"),
        }
    }
}

impl core::error::Error for Error {}

impl DeviceError for Error {
    fn may_use_memory(&self) -> bool {
        Self::may_use_memory(self)
    }

    fn errno(&self) -> Errno {
        match *self {
            Self::ArenaFull { .. } | Self::TooFewPages { .. } | Self::RecordsFull => Errno::Enomem,
            Self::ArenaTooSmall { .. }
            | Self::NoPort { .. }
            | Self::Misaligned
            | Self::LimitExceeded { .. }
            | Self::Transition { .. } => Errno::Einval,
            Self::CommandStatus { status, .. } => status_errno(status),
            Self::CommandTimeout { .. } | Self::NotInitialized => Errno::Etimedout,
            Self::Stopped => Errno::Eagain,
            Self::DeviceGone => Errno::Enodev,
            Self::DeviceReset | Self::DeviceFatal { .. } => Errno::Eio,
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

/// Returns Linux's errno for a command status, except that a full device is ENOMEM like a full table: a retry helps only after
/// something was destroyed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_error_has_every_fact() {
        let mut errors = std::vec![
            Error::ArenaTooSmall { have: usize::MAX },
            Error::ArenaFull { pages: u32::MAX, free: 0xff_ffff },
            Error::ArenaFull { pages: 3, free: 0x123_456 },
            Error::TooFewPages { wanted: u32::MAX, available: 0xff_ffff },
            Error::TooFewPages { wanted: 12_868, available: 512 },
            Error::RecordsFull,
            Error::OutOfRange { offset: usize::MAX },
            Error::NotInitialized,
            Error::CommandInterface { revision: u16::MAX },
            Error::CommandQueue { log_size: u8::MAX, log_stride: u8::MAX },
            Error::CommandQueue { log_size: 1, log_stride: 2 },
            Error::CommandStatus { opcode: u16::MAX, status: u8::MAX, syndrome: u32::MAX },
            Error::CommandStatus { opcode: 0x123, status: 4, syndrome: 5 },
            Error::CommandDelivery { opcode: u16::MAX, status: u8::MAX },
            Error::CommandSignature { opcode: u16::MAX },
            Error::CommandTimeout { opcode: u16::MAX },
            Error::DeviceGone,
            Error::DeviceReset,
            Error::DeviceFatal { syndrome: u8::MAX },
            Error::Issi { supported: u32::MAX },
            Error::PortType { port_type: u8::MAX },
            Error::NoPort { port: u8::MAX },
            Error::BadAnswer { opcode: u16::MAX, value: u32::MAX },
            Error::Unmapped { page: u32::MAX },
            Error::Misaligned,
            Error::LimitExceeded { limit: u32::MAX },
            Error::Stopped,
            Error::PagesKept { pages: u32::MAX },
        ];
        errors.extend(FEATURES.map(Error::Unsupported));
        errors.extend(STATES.into_iter().flat_map(|from| STATES.map(|to| Error::Transition { from, to })));
        for error in errors {
            assert_eq!(Error::from(error.pack()), error);
        }
    }
}
