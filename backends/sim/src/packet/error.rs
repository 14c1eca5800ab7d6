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
    /// The length in a header is not that of what there is.
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
    /// A type of Ethernet that is no IP.
    EtherType {
        /// Value found.
        ether_type: u16,
    },
    /// A UDP destination port that is not RoCE's.
    Port {
        /// Value found.
        port: u16,
    },
    /// An IPv4 header with options, which no RoCE packet has.
    Options,
    /// The checksum of the IPv4 header is wrong.
    Checksum,
    /// A fragment of an IPv4 packet.
    Fragment,
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
            Self::EtherType { ether_type } => write!(f, "Ethernet type {ether_type:#06x} is no IP"),
            Self::Port { port } => write!(f, "UDP port {port} is not RoCE's"),
            Self::Options => f.write_str("IPv4 header with options"),
            Self::Checksum => f.write_str("wrong checksum of the IPv4 header"),
            Self::Fragment => f.write_str("fragment of an IPv4 packet"),
            Self::Payload { len } => write!(f, "{len} bytes of payload and padding"),
        }
    }
}

impl std::error::Error for PacketError {}
