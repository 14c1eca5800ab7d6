//! Errors of the queues for frames.

use crate::error::{Error, errors};

errors! {
    /// Why the queues for frames were not opened. What was made is gone again, as far as the device allowed.
    pub enum OpenEthernetError {
        /// The port is an InfiniBand port.
        InfiniBand => Errno::Eopnotsupp, "an InfiniBand port has no Ethernet frames";
        /// The card offers no queues for frames, or no flow tables that lead to them.
        Unsupported => Errno::Eopnotsupp, "the card offers no queues for Ethernet frames, or no flow tables";
        /// They are open.
        AlreadyOpen => Errno::Ebusy, "the queues for frames are open: close them first";
        /// No such number of frames.
        Frames {
            /// Greatest number of a queue.
            limit: u16
        } => Errno::Einval, "a queue has from 1 to {limit} frames";
        /// The MTU of the port is too short for IPv4 (RFC 791).
        Mtu {
            /// MTU of the port in bytes.
            mtu: u32
        } => Errno::Einval, "an MTU of {mtu} bytes is too short for IPv4";
    }
    inner {
        /// The device, or the arena.
        Device(Error);
    }
}

errors! {
    /// Why a queue for frames ended. [`Mlx5Direct::close_ethernet`](crate::Mlx5Direct::close_ethernet) and
    /// [`Mlx5Direct::open_ethernet`](crate::Mlx5Direct::open_ethernet) begin anew.
    pub enum FrameQueueFault {
        /// The device failed to send a frame.
        Send {
            /// Syndrome of the completion (`mlx5_err_cqe`).
            syndrome: u8,
            /// The vendor's syndrome, beside that of the completion.
            vendor: u8
        } => Errno::Eio, "a frame was not sent: syndrome {syndrome:#x}, vendor's {vendor:#x}";
        /// The device failed to write a received frame.
        Receive {
            /// Syndrome of the completion (`mlx5_err_cqe`).
            syndrome: u8,
            /// The vendor's syndrome, beside that of the completion.
            vendor: u8
        } => Errno::Eio, "a frame was not received: syndrome {syndrome:#x}, vendor's {vendor:#x}";
        /// A completion of a kind that no frame has.
        Completion {
            /// Opcode of the completion.
            opcode: u8
        } => Errno::Ebadmsg, "a completion with opcode {opcode:#x}, which no frame has";
        /// A completion of a frame that is not under way.
        Order {
            /// Index of its WQE.
            index: u16
        } => Errno::Ebadmsg, "a completion of WQE {index:#x}, which is not under way";
    }
}

errors! {
    /// Why a frame was not sent, or none was taken.
    pub enum FrameError {
        /// As many frames wait as the queue has room for. The device sends them by itself.
        Full => Errno::Enospc, "as many frames wait as the queue has room for";
        /// The frame to send has fewer bytes than an Ethernet header, or more than
        /// [`Ethernet::max_frame`](crate::Ethernet::max_frame).
        Length {
            /// The most.
            limit: usize
        } => Errno::Einval, "a frame has from 14 to {limit} bytes";
        /// The buffer for a frame is shorter than [`Ethernet::max_frame`](crate::Ethernet::max_frame).
        Buffer {
            /// Bytes that it needs.
            need: usize
        } => Errno::Einval, "a frame may have {need} bytes, more than the buffer";
    }
    inner {
        /// A queue has ended.
        Fault(FrameQueueFault);
        /// The device is lost.
        Device(Error);
    }
}
