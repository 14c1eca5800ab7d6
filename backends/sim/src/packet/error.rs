//! Why bytes are no packet.

use std::fmt;

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// Too few bytes for a header.
    Short {
        /// The header.
        header: &'static str,
        /// Bytes there are.
        have: usize,
    },
    /// Not a transport packet of this architecture (link next header, or next header of the global route).
    NotTransport {
        /// Value found.
        next_header: u8,
    },
    /// The length in the local route header is not that of the frame.
    Length {
        /// Bytes that it says.
        says: usize,
        /// Bytes there are.
        have: usize,
    },
    /// The invariant CRC is wrong.
    Icrc {
        /// As computed.
        computed: u32,
        /// As found.
        found: u32,
    },
    /// Unknown opcode.
    Opcode {
        /// Its number.
        opcode: u8,
    },
    /// A version that this device does not speak.
    Version {
        /// Value found.
        version: u8,
    },
    /// More payload than any path carries, or more padding than payload.
    Payload {
        /// Bytes of payload and padding.
        len: usize,
    },
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { header, have } => write!(f, "too short for {header}: {have} bytes left"),
            Self::NotTransport { next_header } => write!(f, "next header {next_header:#x} is no transport"),
            Self::Length { says, have } => write!(f, "length says {says} bytes, there are {have}"),
            Self::Icrc { computed, found } => write!(f, "ICRC {found:#010x}, should be {computed:#010x}"),
            Self::Opcode { opcode } => write!(f, "unknown opcode {opcode:#04x}"),
            Self::Version { version } => write!(f, "version {version}"),
            Self::Payload { len } => write!(f, "{len} bytes of payload and padding"),
        }
    }
}

impl std::error::Error for PacketError {}
