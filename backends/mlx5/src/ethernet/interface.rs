//! The queues for frames in the caller's hands.

use bareverbs::Mac;
use bareverbs::platform::Platform;

use super::config::{Checksums, EthernetConfig};
use super::error::{FrameError, FrameQueueFault, OpenEthernetError};
use super::queues::{EthernetStatistics, FrameInterface, Received};
use crate::direct::Mlx5Direct;
use crate::error::Error;
use crate::log::{format_as, logged};

/// The open queues for frames of an Ethernet port ([`Mlx5Direct::ethernet`]): copies frames in and out, and waits for nothing. Takes part in
/// no event: look for frames as often as the answer to one may wait.
///
/// The port's state is [`Verbs::query_port`](bareverbs::Verbs::query_port); its changes are events
/// ([`Event::PortActive`](bareverbs::Event::PortActive), [`Event::PortDown`](bareverbs::Event::PortDown)).
pub struct Ethernet<'a, P: Platform> {
    memory: &'a mut P::Memory,
    queues: &'a mut FrameInterface<P>,
    dead: Option<Error>,
}

format_as!([P: Platform] Ethernet<'_, P>, "Ethernet({:?}, MTU {})", |this| this.queues.mac, this.queues.mtu);

impl<'a, P: Platform> Mlx5Direct<'a, P> {
    /// Opens the queues for frames of an Ethernet port: from here on the frames that are not RDMA's come in, as the filter says.
    ///
    /// # Errors
    /// The port or the card has none, they are open, or the arena is too small.
    pub fn open_ethernet(&mut self, config: &EthernetConfig) -> Result<(), OpenEthernetError> {
        self.driver.open_frames(config)
    }

    /// Returns the queues for frames, if they are open.
    pub fn ethernet(self) -> Option<Ethernet<'a, P>> {
        let driver = self.driver;
        let dead = driver.commands.dead;
        let queues = driver.ethernet.as_mut()?;
        Some(Ethernet { memory: &mut driver.commands.machine.memory, queues, dead })
    }

    /// Closes the queues for frames, if they are open. Frames that wait may be lost.
    ///
    /// # Errors
    /// The device did not confirm that it has ended an object. Those left stay until the teardown, with their memory.
    pub fn close_ethernet(&mut self) -> Result<(), Error> {
        logged("close_ethernet", self.driver.close_frames())
    }
}

impl<P: Platform> Ethernet<'_, P> {
    /// Returns the MAC address of the port.
    pub const fn mac(&self) -> Mac {
        self.queues.mac
    }

    /// Returns the MTU: bytes of a frame after its header. The smaller one of the port's and
    /// [`Config::ethernet_mtu`](crate::Config::ethernet_mtu).
    pub const fn mtu(&self) -> usize {
        self.queues.mtu
    }

    /// Returns the bytes of the longest frame, with header and VLAN tag, without check sequence.
    pub const fn max_frame(&self) -> usize {
        self.queues.max_frame()
    }

    /// Returns whether a frame can be sent at once.
    pub fn can_send(&mut self) -> bool {
        self.queues.reap();
        self.dead.is_none() && self.queues.fault.is_none() && self.queues.has_room()
    }

    /// Sends a frame: header, with or without a VLAN tag, and payload. One of fewer than 60 bytes is filled up with zeros.
    ///
    /// # Errors
    /// There is no room now, the length is impossible, or a queue or the device is broken.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), FrameError> {
        self.send_with(frame, Checksums::NONE)
    }

    /// Sends a frame, of which the device computes checksums.
    ///
    /// # Errors
    /// [`FrameError`]: the queue is full or has ended, the length does not fit, or the device is lost. Nothing is sent.
    pub fn send_with(&mut self, frame: &[u8], checksums: Checksums) -> Result<(), FrameError> {
        if let Some(error) = self.dead {
            return Err(FrameError::Device(error));
        }
        self.queues.send(self.memory, frame, checksums)
    }

    /// Copies the next frame that was received to the start of `into`.
    ///
    /// # Errors
    /// The buffer is shorter than [`Self::max_frame`], or a queue or the device is broken.
    pub fn receive(&mut self, into: &mut [u8]) -> Result<Option<Received>, FrameError> {
        if let Some(error) = self.dead {
            return Err(FrameError::Device(error));
        }
        self.queues.receive(self.memory, into)
    }

    /// Returns why a queue has ended.
    pub const fn fault(&self) -> Option<FrameQueueFault> {
        self.queues.fault
    }

    /// Returns the counters.
    pub const fn statistics(&self) -> EthernetStatistics {
        self.queues.statistics
    }
}
