//! The devices and the wire between them, owned by one thread; everyone else sends it work.
//!
//! One owner keeps the order of a client's accesses without a lock, and sleeps while nothing is due.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time;

use bareverbs::Instant;
use bareverbs_sim::packet::destination;
use bareverbs_sim::wire::{PortId, Wire};
use bareverbs_sim::{Device, DeviceCounts};

use super::link::Link;
use super::vectors::Vectors;

/// Requests taken between two looks at the devices, so that neither starves the other.
const REQUESTS_IN_A_ROW: usize = 64;

/// One device and how its interrupts leave.
pub(crate) struct Station {
    pub(crate) device: Device,
    pub(crate) vectors: Vectors,
}

impl Station {
    /// What its client has not given back, for people.
    pub(crate) fn left(&self) -> String {
        let counts = self.device.counts();
        let DeviceCounts { engine, eqs, uars, pds, xrcds, user_contexts, user_memories, pages_held, pages_lost } = counts;
        let named = [
            (engine.qps, "queue pairs"),
            (engine.cqs, "completion queues"),
            (engine.srqs, "shared receive queues"),
            (engine.mkeys, "memory keys"),
            (eqs, "event queues"),
            (pds, "protection domains"),
            (xrcds, "XRC domains"),
            (uars, "UARs"),
            (engine.memberships, "multicast memberships"),
            (user_contexts, "user contexts"),
            (user_memories, "user memory objects"),
            (pages_held + pages_lost, "pages"),
        ];
        let left: Vec<String> =
            named.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
        if left.is_empty() { "nothing left".into() } else { format!("left: {}", left.join(", ")) }
    }

    /// As at power-on: the client is gone, or asks for it.
    pub(crate) fn reset(&mut self) {
        self.device.reset();
        self.device.take_interrupts();
    }
}

type Work = Box<dyn FnOnce(&mut Station) + Send>;

enum Message {
    Work(usize, Work),
    /// A frame from another process.
    Frame(Vec<u8>),
    Stop,
}

/// The subnet is no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// A way to reach one station from another thread.
#[derive(Clone)]
pub(crate) struct Handle {
    station: usize,
    sender: Sender<Message>,
}

impl Handle {
    /// Has `work` done after all that was sent before, and does not wait for it.
    pub(crate) fn send(&self, work: impl FnOnce(&mut Station) + Send + 'static) -> Result<(), Gone> {
        self.sender.send(Message::Work(self.station, Box::new(work))).map_err(|_| Gone)
    }

    /// Has `work` done after all that was sent before, and waits for its result.
    pub(crate) fn ask<R: Send + 'static>(&self, work: impl FnOnce(&mut Station) -> R + Send + 'static) -> Result<R, Gone> {
        let (reply, result) = mpsc::sync_channel(1);
        self.send(move |station| {
            // Whoever asked may have gone.
            let _ = reply.send(work(station));
        })?;
        result.recv().map_err(|_| Gone)
    }

    /// Gives a frame from elsewhere to the device that it is for.
    pub(crate) fn frame(&self, frame: Vec<u8>) -> Result<(), Gone> {
        self.sender.send(Message::Frame(frame)).map_err(|_| Gone)
    }

    /// Ends [`Subnet::run`].
    pub(crate) fn stop(&self) {
        // It may have ended by itself.
        let _ = self.sender.send(Message::Stop);
    }
}

/// Devices, wire, time.
pub(crate) struct Subnet {
    stations: Vec<Station>,
    wire: Box<dyn Wire>,
    /// Where frames go that no device here is for.
    link: Option<Link>,
    start: time::Instant,
    sender: Sender<Message>,
    receiver: Receiver<Message>,
}

impl Subnet {
    /// The stations take the wire's ports in their order.
    pub(crate) fn new(stations: Vec<Station>, wire: Box<dyn Wire>, link: Option<Link>) -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { stations, wire, link, start: time::Instant::now(), sender, receiver }
    }

    /// Reaches one station.
    pub(crate) fn handle(&self, station: usize) -> Handle {
        Handle { station, sender: self.sender.clone() }
    }

    /// The devices, in order.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.stations.iter().map(|station| &station.device)
    }

    fn now(&self) -> Instant {
        Instant::default().after(self.start.elapsed())
    }

    fn next_due(&self) -> Option<Instant> {
        self.stations.iter().filter_map(|station| station.device.next_due()).chain(self.wire.next_due()).min()
    }

    /// Serves until [`Handle::stop`].
    pub(crate) fn run(&mut self) {
        while self.take_requests() {
            self.turn();
        }
    }

    /// Waits for requests until something is due, and does those that are there. `false`: it is time to stop.
    fn take_requests(&mut self) -> bool {
        let mut message = match self.next_due().map(|due| due.since(self.now())) {
            None => self.receiver.recv().map_err(|_| TryRecvError::Disconnected),
            Some(time::Duration::ZERO) => self.receiver.try_recv(),
            Some(left) => self.receiver.recv_timeout(left).map_err(|error| match error {
                RecvTimeoutError::Timeout => TryRecvError::Empty,
                RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
            }),
        };
        let mut done = 0;
        loop {
            match message {
                Ok(Message::Work(station, work)) => {
                    let now = self.now();
                    if let Some(station) = self.stations.get_mut(station) {
                        // The registers that count time shall show the present one.
                        station.device.advance(now);
                        work(station);
                    }
                }
                Ok(Message::Frame(frame)) => self.take_frame(&frame),
                Ok(Message::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
            done += 1;
            if done == REQUESTS_IN_A_ROW {
                return true;
            }
            message = self.receiver.try_recv();
        }
    }

    fn is_here(&self, frame: &[u8]) -> bool {
        let lid = destination(frame);
        self.stations.iter().any(|station| Some(station.device.config().lid) == lid)
    }

    /// A frame from elsewhere; one for nobody here is lost.
    fn take_frame(&mut self, frame: &[u8]) {
        let (now, lid) = (self.now(), destination(frame));
        if let Some(station) = self.stations.iter_mut().find(|station| Some(station.device.config().lid) == lid) {
            station.device.advance(now);
            station.device.receive(frame);
        }
    }

    /// Lets every device work once, moves frames, and delivers interrupts.
    fn turn(&mut self) {
        let now = self.now();
        for port in 0..self.stations.len() {
            let mut frames = Vec::new();
            if let Some(station) = self.stations.get_mut(port) {
                station.device.advance(now);
                frames.extend(std::iter::from_fn(|| station.device.transmit()));
            }
            for frame in frames {
                match &self.link {
                    Some(link) if !self.is_here(&frame) => link.send(frame),
                    _ => self.wire.send(now, PortId(port), frame),
                }
            }
        }
        while let Some((port, frame)) = self.wire.deliver(now) {
            if let Some(station) = self.stations.get_mut(port.0) {
                station.device.receive(&frame);
            }
        }
        for station in &mut self.stations {
            for vector in station.device.take_interrupts() {
                station.vectors.raise(vector);
            }
            for line in station.device.take_lacks() {
                eprintln!("lid{}: {line}", station.device.config().lid);
            }
        }
    }
}

#[cfg(test)]
impl Subnet {
    /// The next frame from another process, of a subnet that does not run.
    pub(crate) fn next_frame(&self) -> Option<Vec<u8>> {
        match self.receiver.recv_timeout(time::Duration::from_secs(5)) {
            Ok(Message::Frame(frame)) => Some(frame),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bareverbs_sim::DeviceConfig;
    use bareverbs_sim::memory::{DmaFault, HostMemory};
    use bareverbs_sim::wire::PerfectWire;

    use super::*;

    struct NoMemory;

    impl HostMemory for NoMemory {
        fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
            Err(DmaFault { addr, len: into.len() })
        }

        fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
            Err(DmaFault { addr, len: from.len() })
        }
    }

    #[test]
    fn every_request_of_a_long_run_is_done_in_its_order() {
        let device = Device::new(DeviceConfig::with_lid(1), Box::new(NoMemory));
        let station = Station { device, vectors: Vectors::new(1) };
        let mut subnet = Subnet::new(vec![station], Box::new(PerfectWire::default()), None);
        let handle = subnet.handle(0);
        let done = Arc::new(Mutex::new(Vec::new()));
        let wanted: Vec<usize> = (0..3 * REQUESTS_IN_A_ROW + 7).collect();
        for number in wanted.clone() {
            let done = Arc::clone(&done);
            handle.send(move |_| done.lock().unwrap().push(number)).unwrap();
        }
        handle.stop();
        subnet.run();
        assert_eq!(*done.lock().unwrap(), wanted);
    }
}
