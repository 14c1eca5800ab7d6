//! Moves frames between the ports of devices and the wire, keeps them within their partitions, and computes what is due.
//!
//! [`Fabric::step`] lets one device work. It takes frames from the inbox of the device's port, lets the device do what is due,
//! and puts what it sends on the wire. What the wire then delivers goes into inboxes. It touches no other device, so devices
//! may be stepped by one thread in turn, as [`in_process`](crate::in_process) does, or by a thread each. The wire is locked
//! only while frames go on it and off it, never while a device works.
//!
//! A fabric loses no frame of a device that keeps working. A port whose device does not keep up holds back its senders. Frames
//! that find no room for [`LIFETIME`] are discarded, as in a switch (head-of-queue lifetime limit, InfiniBand Architecture
//! 18.2.5.4). Further ones are discarded at once, until the device takes frames again. So a device that stands still costs the
//! others what they send to it, and no more. One that takes a few frames now and then costs its senders time each time: they wait for
//! [`LIFETIME`] with all that they send, to others too. As on a card, a sender has one queue to the wire.
//!
//! Like a switch that enforces partitions, it takes no frame from a port and gives none to a port that is in another partition.
//!
//! A port may have a cable instead of a device: its frames leave the process, and those of the other end come in there. The
//! faults of the wire act on them as on all others. Nobody waits for a cable: a frame that it does not take is lost.

mod claims;
pub(crate) mod frame_pool;
mod inbox;
mod stations;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bareverbs::platform::Instant;
use parking_lot::MutexGuard;

use self::inbox::{FlowControl, Inbox, Reservation, Source};
use self::stations::Stations;
use crate::audit::{Audit, Finding};
use crate::config::MIN_ETHERNET_FRAME;
use crate::device::Device;
use crate::fabric::frame_pool::{FramePool, MAX_FRAMES_PER_TURN, is_spare};
use crate::host_memory::HostMemory;
use crate::identity::PortIdentity;
use crate::packet::{NO_LID, is_subnet_management};
use crate::trace::Tracer;
use crate::wire::{Delivery, Destination, Frame, PortId, Wire};

pub use self::inbox::{LIFETIME, MAX_BYTES, MAX_FRAMES};
pub use self::stations::{ForeignAddress, StationAddress};

/// Frames that a port takes out of its device, or out of its inbox, at a time.
const BATCH: usize = 64;
/// Buffers for long frames that are ready for all devices together.
const SPARE_FRAMES: usize = 1024;

/// What leads out of this process: where frames go that no port here is for, or those of a port with a cable. It must not wait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` takes no frames of a port",
    note = "implement `Uplink::send`, which must not wait"
)]
pub trait Uplink {
    /// Takes a frame (LRH to ICRC, or an Ethernet frame without check sequence) of a port here. Returns whether it is on its way.
    fn send(&self, from: PortId, frame: Vec<u8>) -> bool;
}

/// Which way a frame goes on the cable of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It arrives at the port.
    ToPort,
    /// The port sends it to another process, over the uplink.
    FromPort,
}

/// Sees the frames on the cables of the ports: each one where it arrives, after all that the wire did to it, and those that
/// leave over the uplink. It is called with the switch locked, so it must not wait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not look at frames",
    note = "`capture::PcapNg` writes them into a file for Wireshark; `Arc<Mutex<_>>` of a tap is one"
)]
pub trait Tap {
    /// A frame (LRH to ICRC, or an Ethernet frame without check sequence) on the cable of `port` at `now`.
    fn frame(&mut self, now: Instant, port: PortId, direction: Direction, frame: &[u8]);
}

impl<T: Tap> Tap for Arc<Mutex<T>> {
    fn frame(&mut self, now: Instant, port: PortId, direction: Direction, frame: &[u8]) {
        self.lock().unwrap_or_else(PoisonError::into_inner).frame(now, port, direction, frame);
    }
}

/// The state of a port that its device alone uses.
#[derive(Debug)]
pub struct Port {
    id: PortId,
    /// Frames of the device that are not on the wire yet, and until when the first of them waits for room.
    outgoing: VecDeque<Vec<u8>>,
    held_until: Option<Instant>,
    /// Frames for the device that it has not processed yet.
    incoming: VecDeque<Frame>,
    /// Long frames that it got in this step, whose buffers are free again; at most [`MAX_FRAMES_PER_TURN`].
    received: Vec<Vec<u8>>,
    /// Ports that have got something to do.
    reached: Vec<PortId>,
}

impl Port {
    /// Returns the port's place on the wire.
    pub fn id(&self) -> PortId {
        self.id
    }

    /// Returns the ports that have got something to do by the steps since the last call: frames, or room for those that wait.
    pub fn take_reached(&mut self) -> impl Iterator<Item = PortId> {
        self.reached.drain(..)
    }
}

struct Switch<W> {
    wire: W,
    uplink: Option<Box<dyn Uplink + Send>>,
    /// Those of the ports that have no device.
    cables: BTreeMap<PortId, Box<dyn Uplink + Send>>,
    tap: Option<Box<dyn Tap + Send>>,
    stations: Stations,
}

/// What became of a frame that came out of a cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Whether it is on the wire.
    pub is_on_wire: bool,
    /// An address in it, as its sender's, that is not the port's.
    pub foreign: Option<ForeignAddress>,
}

/// A wire, and an inbox at each of its ports.
pub struct Fabric<W> {
    /// Fair, so that a sender to groups does not keep the others out.
    switch: parking_lot::Mutex<Switch<W>>,
    inboxes: Vec<Inbox>,
    /// Frames from and for each port that the switch did not pass.
    filtered: Vec<AtomicU64>,
    /// Buffers of frames that came to one device, for those that another sends.
    frame_pool: Mutex<FramePool>,
    /// When the wire delivers next, in nanoseconds.
    wire_due: AtomicU64,
}

impl<W> fmt::Debug for Fabric<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").field("ports", &self.inboxes.len()).finish_non_exhaustive()
    }
}

/// Returns a moment, or never, as a number.
fn nanos(moment: Option<Instant>) -> u64 {
    moment.map_or(u64::MAX, Instant::as_nanos)
}

/// Returns whether the switch takes a frame from this port, which sends it.
fn admits_from(wire: &impl Wire, port: PortId, frame: &[u8]) -> bool {
    wire.identity(port).is_none_or(|identity| identity.may_send(frame))
}

/// Returns whether a frame belongs to a partition of this port, which receives it.
fn matches_identity(wire: &impl Wire, port: PortId, frame: &[u8]) -> bool {
    wire.identity(port).is_none_or(|identity| identity.matches(frame))
}

/// Returns what becomes of a frame of this port that finds no room: virtual lane 15 has no flow control (InfiniBand
/// Architecture 7.6). Ethernet ports pause their senders, as those of cards do (IEEE 802.3, annex 31B).
fn flow_control(wire: &impl Wire, port: PortId, frame: &[u8]) -> FlowControl {
    let is_ethernet = wire.identity(port).is_some_and(PortIdentity::is_ethernet);
    if !is_ethernet && is_subnet_management(frame) { FlowControl::None } else { FlowControl::Waits }
}

/// Reports an address that is not the port's.
fn report(audit: &mut Audit, found: &ForeignAddress) {
    let finding = match found.address {
        StationAddress::Mac(mac) => Finding::ForeignMac { mac },
        StationAddress::Ip(ip) => Finding::ForeignIp { ip },
        StationAddress::Unreadable => Finding::UnreadableAddress,
    };
    audit.report(finding);
}

fn reach(reached: &mut Vec<PortId>, port: PortId) {
    if !reached.contains(&port) {
        reached.push(port);
    }
}

impl<W: Wire> Fabric<W> {
    /// Creates a fabric without ports on `wire`. Frames for no port here go to `uplink`, if there is one.
    pub fn new(wire: W, uplink: Option<Box<dyn Uplink + Send>>) -> Self {
        let wire_due = AtomicU64::new(nanos(wire.next_due()));
        Self {
            switch: parking_lot::Mutex::new(Switch {
                wire,
                uplink,
                cables: BTreeMap::new(),
                tap: None,
                stations: Stations::default(),
            }),
            inboxes: Vec::new(),
            filtered: Vec::new(),
            frame_pool: Mutex::new(FramePool::new(SPARE_FRAMES)),
            wire_due,
        }
    }

    /// Adds the port that the wire attached last, with a device.
    pub fn add_port(&mut self) -> Port {
        Port {
            id: self.add_place(),
            outgoing: VecDeque::new(),
            held_until: None,
            incoming: VecDeque::new(),
            received: Vec::new(),
            reached: Vec::new(),
        }
    }

    /// Adds the port that the wire attached last, an Ethernet port with a cable instead of a device. What comes out of the other
    /// end of the cable is given to [`Fabric::arrive_at`].
    pub fn add_cable(&mut self, cable: Box<dyn Uplink + Send>) -> PortId {
        let id = self.add_place();
        self.switch.get_mut().cables.insert(id, cable);
        id
    }

    /// Adds the next place.
    fn add_place(&mut self) -> PortId {
        let id = PortId(self.inboxes.len());
        self.inboxes.push(Inbox::default());
        let switch = self.switch.get_mut();
        if let Some(mac) = switch.wire.identity(id).and_then(PortIdentity::mac) {
            switch.stations.add_permanent(id, mac);
        }
        self.filtered.push(AtomicU64::new(0));
        // Each source has its share of an inbox.
        let sources = self.sources();
        self.inboxes.iter().for_each(|inbox| inbox.divide(sources));
        id
    }

    /// Binds an Ethernet port to the permanent MAC address of its device, to `macs`, and to `ips` if there are any. From then on it may
    /// send frames from these addresses alone, and no other port from any of them: such frames are dropped. Looked at are the source
    /// addresses of Ethernet, IPv4, IPv6 and RoCE, the sender's in ARP, and what neighbour advertisements tell of. The link-local
    /// addresses that follow from the MAC addresses belong to the port too. What is for the MAC addresses goes to this port alone. No other port probes these addresses, or sends a redirect of
    /// IPv6 about them. A frame whose addresses cannot be read is dropped, from whatever port.
    ///
    /// # Errors
    /// One of the addresses, which another port is bound to. Nothing has changed then.
    pub fn bind(&self, port: PortId, macs: &[[u8; 6]], ips: &[IpAddr]) -> Result<(), StationAddress> {
        let mut switch = self.switch();
        let permanent = switch.wire.identity(port).and_then(PortIdentity::mac);
        let macs: Vec<[u8; 6]> = permanent.into_iter().chain(macs.iter().copied()).collect();
        switch.stations.bind(port, &macs, ips)?;
        // Its frames are for it alone, also before it has said anything.
        macs.iter().for_each(|mac| switch.wire.fix_station(port, *mac));
        Ok(())
    }

    /// Returns the wire, if this is the only reference to the fabric.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.switch.get_mut().wire
    }

    /// Shows all frames to a tap from now on, or to none. Returns the one before.
    pub fn set_tap(&self, tap: Option<Box<dyn Tap + Send>>) -> Option<Box<dyn Tap + Send>> {
        std::mem::replace(&mut self.switch().tap, tap)
    }

    /// Ends the uplink and the cables.
    pub fn close_uplinks(&self) {
        let mut switch = self.switch();
        let closed = (switch.uplink.take(), std::mem::take(&mut switch.cables));
        drop(switch);
        drop(closed);
    }

    /// Returns the frames that were discarded because a port did not take them in time, by port.
    pub fn discarded(&self, port: PortId) -> u64 {
        self.inboxes.get(port.0).map_or(0, Inbox::discarded)
    }

    /// Returns the frames of a port that the switch dropped because the port is in another partition or no longer has their
    /// source LID, or because of an address that it is not bound to, and the frames to it of another partition. Frames for groups to it are not counted.
    pub fn filtered(&self, port: PortId) -> u64 {
        self.filtered.get(port.0).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn count_filtered(&self, port: PortId) {
        if let Some(count) = self.filtered.get(port.0) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn switch(&self) -> MutexGuard<'_, Switch<W>> {
        self.switch.lock()
    }

    /// Lets a device do a bounded piece of what is due at `now`, and moves its frames. Whether there was anything to do.
    pub fn step<M, T>(&self, port: &mut Port, device: &mut Device<M, T>, now: Instant) -> bool
    where
        M: HostMemory,
        T: Tracer + 'static,
    {
        device.set_time(now);
        let mut worked = self.receive(port, device);
        self.reuse(&mut port.received, device.frame_pool());
        worked |= device.next_due().is_some_and(|due| due <= now);
        device.advance(now);
        worked | self.transmit(port, device, now)
    }

    /// Returns when [`Fabric::step`] next has work for this device: the past if it has some now, `None` if only its host or a
    /// frame can make any.
    pub fn next_due<M, T>(&self, port: &Port, device: &Device<M, T>) -> Option<Instant>
    where
        M: HostMemory,
        T: Tracer + 'static,
    {
        if !port.incoming.is_empty() || self.has_frames(port.id) {
            return Some(Instant::default());
        }
        device.next_due().into_iter().chain(port.held_until).min()
    }

    /// Returns whether a port's inbox has something for its device.
    pub fn has_frames(&self, port: PortId) -> bool {
        self.inboxes.get(port.0).is_some_and(Inbox::has_frames)
    }

    /// Returns when the wire next delivers a frame that it has held back, for [`Fabric::deliver`].
    pub fn wire_due(&self) -> Option<Instant> {
        let due = self.wire_due.load(Ordering::Relaxed);
        (due != u64::MAX).then(|| Instant::from_nanos(due))
    }

    /// Puts what has come over the wire by `now` into the inboxes, and calls `reached` for each port that got frames. Whether
    /// there were any.
    pub fn deliver(&self, now: Instant, mut reached: impl FnMut(PortId)) -> bool {
        if self.wire_due().is_none_or(|due| due > now) {
            return false;
        }
        let mut ports = Vec::new();
        self.deliver_from(&mut self.switch(), now, &mut ports);
        ports.iter().for_each(|port| reached(*port));
        !ports.is_empty()
    }

    /// Returns whether a port here has this local identifier: no frame from the uplink is from it.
    pub fn has_lid(&self, lid: u16) -> bool {
        let switch = self.switch();
        let mut ports = (0..self.inboxes.len()).map(PortId);
        lid != NO_LID && ports.any(|port| switch.wire.identity(port).is_some_and(|identity| identity.lid() == lid))
    }

    /// Passes a frame from the uplink to its port, or to all ports if it is for a group, and calls `reached` for each. A frame
    /// for no port here, or of another partition, is lost. `Err` returns the frame: there is no room now, try again soon.
    ///
    /// # Errors
    /// The port has not taken what came before.
    pub fn arrive(&self, frame: Vec<u8>, now: Instant, mut reached: impl FnMut(PortId)) -> Result<(), Vec<u8>> {
        // No port has this number.
        let nowhere = PortId(usize::MAX);
        let mut switch = self.switch();
        match switch.wire.destination(nowhere, &frame) {
            Destination::Nowhere => {}
            Destination::Everyone(_) => {
                let frame = Frame::shared(frame);
                for port in (0..self.inboxes.len()).map(PortId) {
                    if matches_identity(&switch.wire, port, &frame)
                        && self.push(&mut switch, now, port, Source::Uplink, frame.clone(), true)
                    {
                        reached(port);
                    }
                }
            }
            Destination::Port(to) if !matches_identity(&switch.wire, to, &frame) => self.count_filtered(to),
            Destination::Port(to) => {
                let flow_control = flow_control(&switch.wire, to, &frame);
                let Some(inbox) = self.inboxes.get(to.0) else { return Ok(()) };
                match inbox.reserve(Source::Uplink, frame.capacity(), 0, flow_control, now) {
                    Reservation::Pass => {
                        self.push(&mut switch, now, to, Source::Uplink, Frame::Own(frame), false);
                        drop(switch);
                        reached(to);
                    }
                    Reservation::Discard => {}
                    Reservation::Wait(_) => return Err(frame),
                }
            }
        }
        Ok(())
    }

    /// Puts a frame that came out of the cable of a port on the wire, and calls `reached` for each port that got frames by it. It
    /// is lost if the switch does not take it from there, or if there is no room for it: nobody waits. One that is shorter than an
    /// Ethernet frame gets zeros behind it.
    pub fn arrive_at(&self, port: PortId, mut frame: Vec<u8>, now: Instant, mut reached: impl FnMut(PortId)) -> Arrival {
        frame.resize(frame.len().max(MIN_ETHERNET_FRAME), 0);
        let mut ports = Vec::new();
        let mut switch = self.switch();
        let foreign = switch.stations.judge(port, &frame);
        if foreign.is_some_and(|foreign| foreign.is_refused) {
            drop(switch);
            self.count_filtered(port);
            return Arrival { is_on_wire: false, foreign };
        }
        // What the wire has delayed longer than until now makes room.
        self.deliver_from(&mut switch, now, &mut ports);
        let to = switch.wire.destination(port, &frame);
        let reserved = self.reserve(&switch, port, to, &frame, FlowControl::None, now) == Reservation::Pass;
        if reserved {
            switch.send(now, port, frame);
            self.deliver_from(&mut switch, now, &mut ports);
        }
        drop(switch);
        ports.iter().for_each(|port| reached(*port));
        Arrival { is_on_wire: reserved, foreign }
    }

    /// Forgets the frames from and for a device that was reset.
    pub fn clear(&self, port: &mut Port) {
        let mut switch = self.switch();
        let permanent = switch.wire.identity(port.id).and_then(PortIdentity::mac);
        switch.stations.forget(port.id, permanent);
        drop(switch);
        port.outgoing.clear();
        port.held_until = None;
        if let Some(inbox) = self.inboxes.get(port.id.0) {
            inbox.take(&mut port.incoming, usize::MAX, |source| {
                if let Source::Port(source) = source {
                    reach(&mut port.reached, source);
                }
            });
        }
        port.incoming.clear();
    }

    /// Returns the frames in.
    fn receive<M, T>(&self, port: &mut Port, device: &mut Device<M, T>) -> bool
    where
        M: HostMemory,
        T: Tracer + 'static,
    {
        let mut received = false;
        while device.may_receive() {
            if port.incoming.is_empty()
                && let Some(inbox) = self.inboxes.get(port.id.0)
            {
                inbox.take(&mut port.incoming, BATCH, |source| {
                    if let Source::Port(source) = source {
                        reach(&mut port.reached, source);
                    }
                });
            }
            let Some(frame) = port.incoming.pop_front() else { break };
            device.receive(&frame);
            let done = frame.into_buffer().filter(is_spare);
            port.received.extend(done.filter(|_| port.received.len() < MAX_FRAMES_PER_TURN));
            received = true;
        }
        received
    }

    /// Buffers of received frames are for the next ones to be sent, by this device or by another.
    fn reuse(&self, received: &mut Vec<Vec<u8>>, spare: &mut FramePool) {
        spare.refill(received);
        if received.is_empty() && !spare.is_wanted() {
            return;
        }
        let mut shared = self.frame_pool.lock().unwrap_or_else(PoisonError::into_inner);
        spare.refill_from(&mut shared);
        shared.refill(received);
        drop(shared);
        received.clear();
    }

    /// Returns the frames out.
    fn transmit<M, T>(&self, port: &mut Port, device: &mut Device<M, T>, now: Instant) -> bool
    where
        M: HostMemory,
        T: Tracer + 'static,
    {
        let mut sent = false;
        port.held_until = None;
        let mut foreign = Vec::new();
        while port.held_until.is_none() {
            while port.outgoing.len() < BATCH
                && let Some(frame) = device.transmit()
            {
                port.outgoing.push_back(frame);
            }
            if port.outgoing.is_empty() {
                break;
            }
            let mut switch = self.switch();
            while let Some(frame) = port.outgoing.pop_front() {
                let found = if device.config().mac().is_some() { switch.stations.judge(port.id, &frame) } else { None };
                foreign.extend(found.filter(|found| found.is_new));
                if found.is_some_and(|found| found.is_refused) || !admits_from(&switch.wire, port.id, &frame) {
                    self.count_filtered(port.id);
                    sent = true;
                    continue;
                }
                let to = switch.wire.destination(port.id, &frame);
                let group = matches!(to, Destination::Everyone(_));
                let flow_control = flow_control(&switch.wire, port.id, &frame);
                match self.reserve(&switch, port.id, to, &frame, flow_control, now) {
                    Reservation::Pass => {
                        switch.send(now, port.id, frame);
                        sent = true;
                        if group {
                            // It went to each port. The others have their turn before the next one.
                            self.deliver_from(&mut switch, now, &mut port.reached);
                            MutexGuard::bump(&mut switch);
                        }
                    }
                    Reservation::Discard => sent = true,
                    Reservation::Wait(until) => {
                        port.held_until = Some(until);
                        port.outgoing.push_front(frame);
                        break;
                    }
                }
            }
            self.deliver_from(&mut switch, now, &mut port.reached);
        }
        foreign.into_iter().for_each(|found| report(device.audit_mut(), &found));
        sent
    }

    /// Returns whether there is room for a frame where the wire brings it.
    fn reserve(
        &self,
        switch: &Switch<W>,
        from: PortId,
        to: Destination,
        frame: &Vec<u8>,
        flow: FlowControl,
        now: Instant,
    ) -> Reservation {
        let wire = &switch.wire;
        let room = match to {
            Destination::Port(to) => match self.inboxes.get(to.0) {
                Some(inbox) if !switch.cables.contains_key(&to) => {
                    return inbox.reserve(Source::Port(from), frame.capacity(), wire.in_flight(from), flow, now);
                }
                Some(_) => inbox::share(self.sources()),
                None => return Reservation::Pass,
            },
            Destination::Everyone(_) => self.group_room(),
            Destination::Nowhere => return Reservation::Pass,
        };
        // Neither a cable nor a group is waited for, but what one port has on the wire is bounded.
        match (wire.next_due(), flow) {
            (Some(due), FlowControl::Waits) if wire.in_flight(from) >= room => Reservation::Wait(due),
            (Some(_), FlowControl::None) if wire.in_flight(from) >= room => Reservation::Discard,
            _ => Reservation::Pass,
        }
    }

    /// Deliveries of frames for groups that one port may have on the wire: a full queue at each other port.
    fn group_room(&self) -> usize {
        inbox::share(self.sources()) * self.inboxes.len().saturating_sub(1)
    }

    /// Ports, and the uplink.
    fn sources(&self) -> usize {
        self.inboxes.len() + 1
    }

    fn deliver_from(&self, switch: &mut Switch<W>, now: Instant, reached: &mut Vec<PortId>) {
        while let Some(Delivery { from, to, frame, group }) = switch.wire.deliver(now) {
            if !matches_identity(&switch.wire, to, &frame) {
                self.count_filtered(to);
            } else if self.push(switch, now, to, Source::Port(from), frame, group) {
                reach(reached, to);
            }
        }
        self.wire_due.store(nanos(switch.wire.next_due()), Ordering::Relaxed);
    }

    /// Puts a frame into the inbox of a port, or on its cable. Returns whether the port has got something to do.
    fn push(&self, switch: &mut Switch<W>, now: Instant, to: PortId, source: Source, frame: Frame, group: bool) -> bool {
        let Some(inbox) = self.inboxes.get(to.0) else { return false };
        if let Some(cable) = switch.cables.get(&to) {
            let Source::Port(from) = source else { return false };
            let copy = switch.tap.is_some().then(|| frame.clone());
            let mut bytes = frame.into_bytes();
            bytes.resize(bytes.len().max(MIN_ETHERNET_FRAME), 0);
            if cable.send(from, bytes)
                && let (Some(tap), Some(copy)) = (&mut switch.tap, copy)
            {
                tap.frame(now, to, Direction::ToPort, &copy);
            }
            return false;
        }
        let Some(tap) = &mut switch.tap else { return inbox.push(source, frame, group) };
        // The tap must not see a frame for which there is no room.
        let copy = frame.clone();
        let pushed = inbox.push(source, frame, group);
        if pushed {
            tap.frame(now, to, Direction::ToPort, &copy);
        }
        pushed
    }
}

impl<W: Wire> Switch<W> {
    fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
        if self.uplink.is_none() {
            return self.wire.send(now, from, frame);
        }
        match self.wire.destination(from, &frame) {
            Destination::Port(_) => self.wire.send(now, from, frame),
            Destination::Nowhere => self.send_up(now, from, frame),
            Destination::Everyone(_) => {
                self.send_up(now, from, frame.clone());
                self.wire.send(now, from, frame);
            }
        }
    }

    /// Sends a frame over the uplink.
    fn send_up(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
        let Some(uplink) = &self.uplink else { return };
        let copy = self.tap.is_some().then(|| frame.clone());
        let sent = uplink.send(from, frame);
        if let (Some(tap), Some(copy), true) = (&mut self.tap, copy, sent) {
            tap.frame(now, from, Direction::FromPort, &copy);
        }
    }
}

#[cfg(test)]
mod tests;
