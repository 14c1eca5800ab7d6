//! Errors of the queues for frames.

use core::fmt;

use crate::error::Error;

/// Why the queues for frames were not opened. What was made is gone again, as far as the device allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum OpenEthernetError {
    /// The port is an InfiniBand port.
    InfiniBand,
    /// The card offers no queues for frames, or no flow tables that lead to them.
    Unsupported,
    /// They are open.
    AlreadyOpen,
    /// No such number of frames.
    Frames {
        /// Greatest number of a queue.
        limit: u16,
    },
    /// The MTU of the port is too short for IPv4 (RFC 791).
    Mtu {
        /// It.
        mtu: u32,
    },
    /// The device, or the arena.
    Device(Error),
}

impl fmt::Display for OpenEthernetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("an InfiniBand port has no Ethernet frames"),
            Self::Unsupported => f.write_str("the card offers no queues for Ethernet frames, or no flow tables"),
            Self::AlreadyOpen => f.write_str("the queues for frames are open: close them first"),
            Self::Frames { limit } => write!(f, "a queue has from 1 to {limit} frames"),
            Self::Mtu { mtu } => write!(f, "an MTU of {mtu} bytes is too short for IPv4"),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for OpenEthernetError {}

/// Why a queue for frames ended. [`Mlx5Direct::close_ethernet`](crate::Mlx5Direct::close_ethernet) and
/// [`Mlx5Direct::open_ethernet`](crate::Mlx5Direct::open_ethernet) begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FrameQueueFault {
    /// The device failed to send a frame.
    Send {
        /// Syndrome of the completion (`mlx5_err_cqe`).
        syndrome: u8,
        /// The vendor's.
        vendor: u8,
    },
    /// The device failed to write a received frame.
    Receive {
        /// Syndrome of the completion (`mlx5_err_cqe`).
        syndrome: u8,
        /// The vendor's.
        vendor: u8,
    },
    /// A completion of a kind that no frame has.
    Completion {
        /// Its opcode.
        opcode: u8,
    },
    /// A completion of a frame that is not under way.
    Order {
        /// Index of its WQE.
        index: u16,
    },
}

impl fmt::Display for FrameQueueFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { syndrome, vendor } => write!(f, "a frame was not sent: syndrome {syndrome:#x}, vendor's {vendor:#x}"),
            Self::Receive { syndrome, vendor } => {
                write!(f, "a frame was not received: syndrome {syndrome:#x}, vendor's {vendor:#x}")
            }
            Self::Completion { opcode } => write!(f, "a completion with opcode {opcode:#x}, which no frame has"),
            Self::Order { index } => write!(f, "a completion of WQE {index:#x}, which is not under way"),
        }
    }
}

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SendFrameError {
    /// As many frames wait as the queue has room for. The device sends them by itself.
    Full,
    /// The frame has fewer bytes than an Ethernet header, or more than [`Ethernet::max_frame`](crate::Ethernet::max_frame).
    Length {
        /// The most.
        limit: usize,
    },
    /// A queue has ended.
    Fault(FrameQueueFault),
    /// The device is lost.
    Device(Error),
}

impl fmt::Display for SendFrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("as many frames wait as the queue has room for"),
            Self::Length { limit } => write!(f, "a frame has from 14 to {limit} bytes"),
            Self::Fault(fault) => fault.fmt(f),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for SendFrameError {}

/// Why no frame was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ReceiveFrameError {
    /// The buffer is shorter than [`Ethernet::max_frame`](crate::Ethernet::max_frame).
    Buffer {
        /// Bytes that it needs.
        need: usize,
    },
    /// A queue has ended.
    Fault(FrameQueueFault),
    /// The device is lost.
    Device(Error),
}

impl fmt::Display for ReceiveFrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer { need } => write!(f, "a frame may have {need} bytes, more than the buffer"),
            Self::Fault(fault) => fault.fmt(f),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ReceiveFrameError {}
