//! The Ethernet port of an mlx5 (ConnectX) card as a [`Device`] of smoltcp.
//!
//! [`NetworkDevice`] borrows the driver's queues for frames ([`Ethernet`]) for one poll of an interface:
//!
//! ```
//! use bareverbs::platform::Clock as _;
//! use bareverbs_mlx5::EthernetConfig;
//! use bareverbs_mlx5_smoltcp::{FRAME, NetworkDevice, instant};
//! use bareverbs_testing::{Faults, pair};
//! use smoltcp::iface::{Config, Interface, SocketSet};
//! use smoltcp::wire::EthernetAddress;
//!
//! let [mut node, _other] = pair(Faults::none().ethernet())?;
//! node.verbs.direct().open_ethernet(&EthernetConfig::DEFAULT)?;
//! let (mut receive, mut send) = ([0; FRAME], [0; FRAME]);
//!
//! let ethernet = node.verbs.direct().ethernet().ok_or("closed")?;
//! let config = Config::new(EthernetAddress(ethernet.mac().0).into());
//! let mut device = NetworkDevice::new(ethernet, &mut receive, &mut send)?;
//! let mut interface = Interface::new(config, &mut device, instant(node.host.clock().now()));
//! let mut sockets = SocketSet::new(vec![]);
//!
//! // Again and again; the verbs are free in between.
//! let ethernet = node.verbs.direct().ethernet().ok_or("closed")?;
//! let mut device = NetworkDevice::new(ethernet, &mut receive, &mut send)?;
//! interface.poll(instant(node.host.clock().now()), &mut device, &mut sockets);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What the card is to receive beside its own address and broadcasts is the driver's
//! [`FrameFilter`](bareverbs_mlx5::FrameFilter). A link that comes or goes is an event of the verbs.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

use core::fmt;

use bareverbs::platform::Platform;
use bareverbs_mlx5::{Checksums, Ethernet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// Bytes of the longest frame with the usual MTU of 1500, a buffer for [`NetworkDevice::new`].
pub const FRAME: usize = 1518;
/// Bytes of the header of a frame without a tag, which smoltcp counts as part of its MTU.
const HEADER: usize = 14;

/// Returns smoltcp's time for that of the verbs. It counts microseconds.
pub fn instant(now: bareverbs::platform::Instant) -> Instant {
    Instant::from_micros(i64::try_from(now.as_nanos() / 1000).unwrap_or(i64::MAX))
}

/// A buffer is shorter than the longest frame ([`Ethernet::max_frame`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferTooShort {
    /// Bytes that each needs.
    pub need: usize,
}

impl fmt::Display for BufferTooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a buffer for frames needs {} bytes", self.need)
    }
}

impl core::error::Error for BufferTooShort {}

/// The queues for frames of a port, while an interface is polled.
///
/// A frame that the card cannot send is lost, as on any Ethernet. Whether a queue has ended says [`Ethernet::fault`].
#[derive(Debug)]
pub struct NetworkDevice<'a, P: Platform> {
    ethernet: Ethernet<'a, P>,
    receive: &'a mut [u8],
    send: &'a mut [u8],
    checksums: Checksums,
}

impl<'a, P: Platform> NetworkDevice<'a, P> {
    /// Returns a device over open queues, which holds a received frame and one that is written in these buffers. Nothing is kept in them
    /// from poll to poll.
    ///
    /// smoltcp asks a device for its MTU when the `Interface` is made, and not again. If the MTU is shorter since then, for instance
    /// because the queues were opened again on another card, frames that are too long are lost: make the interface anew. Until then `send`
    /// has the length that it had when the interface was made, since smoltcp panics if a frame has no room there.
    ///
    /// # Errors
    /// A buffer is shorter than the longest frame.
    pub fn new(ethernet: Ethernet<'a, P>, receive: &'a mut [u8], send: &'a mut [u8]) -> Result<Self, BufferTooShort> {
        let need = ethernet.max_frame();
        if receive.len().min(send.len()) < need {
            return Err(BufferTooShort { need });
        }
        Ok(Self { ethernet, receive, send, checksums: Checksums::NONE })
    }

    /// Lets the card compute the checksums of IPv4, TCP and UDP that it sends. Not for an interface that fragments: the card leaves
    /// fragments alone. What comes in is always checked in software.
    #[must_use]
    pub const fn with_checksums_by_the_card(mut self) -> Self {
        self.checksums = Checksums::ALL;
        self
    }

    /// Returns the queues.
    pub const fn ethernet(&self) -> &Ethernet<'a, P> {
        &self.ethernet
    }
}

impl<'a, P: Platform> Device for NetworkDevice<'a, P> {
    type RxToken<'t>
        = ReceivedFrame<'t>
    where
        Self: 't;
    type TxToken<'t>
        = FrameToSend<'t, 'a, P>
    where
        Self: 't;

    /// Takes a frame only if an answer to it can be sent too.
    fn receive(&mut self, _: Instant) -> Option<(ReceivedFrame<'_>, FrameToSend<'_, 'a, P>)> {
        if !self.ethernet.can_send() {
            return None;
        }
        // A broken queue has nothing to receive.
        let received = self.ethernet.receive(self.receive).ok()??;
        let frame = self.receive.get(..received.len)?;
        let to_send = FrameToSend { ethernet: &mut self.ethernet, buffer: self.send, checksums: self.checksums };
        Some((ReceivedFrame { frame }, to_send))
    }

    fn transmit(&mut self, _: Instant) -> Option<FrameToSend<'_, 'a, P>> {
        if !self.ethernet.can_send() {
            return None;
        }
        Some(FrameToSend { ethernet: &mut self.ethernet, buffer: self.send, checksums: self.checksums })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.ethernet.mtu() + HEADER;
        if self.checksums != Checksums::NONE {
            capabilities.checksum.ipv4 = Checksum::Rx;
            capabilities.checksum.tcp = Checksum::Rx;
            capabilities.checksum.udp = Checksum::Rx;
        }
        capabilities
    }
}

/// A frame that was received.
#[derive(Debug)]
pub struct ReceivedFrame<'t> {
    frame: &'t [u8],
}

impl RxToken for ReceivedFrame<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.frame)
    }
}

/// Room for a frame to send.
#[derive(Debug)]
pub struct FrameToSend<'t, 'a, P: Platform> {
    ethernet: &'t mut Ethernet<'a, P>,
    buffer: &'t mut [u8],
    checksums: Checksums,
}

impl<P: Platform> TxToken for FrameToSend<'_, '_, P> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        // No more than the MTU of the capabilities that the interface was made with, for which this buffer has room.
        let frame = match self.buffer.split_at_mut_checked(len) {
            Some((frame, _)) => frame,
            None => self.buffer,
        };
        let result = f(frame);
        // A frame that is not sent is lost, as on the wire.
        let _ = self.ethernet.send_with(frame, self.checksums);
        result
    }
}
