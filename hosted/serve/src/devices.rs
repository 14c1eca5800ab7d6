//! The devices and the wire between them: a lock and a thread for each device.
//!
//! A thread with a request for a device executes it at once, under the device's lock, and runs a few steps of the device. So a
//! register access needs no other thread. The runner of the device does the remaining work, handles frames and timers, and sleeps
//! otherwise.
//!
//! Devices exchange frames through the [`Fabric`], whose locks are held briefly. A thread that has sent frames to a sleeping device
//! runs that device itself if its lock is free, so that two devices exchange frames without waking a thread. No thread holds the
//! locks of two devices.
//!
//! A client can delay a thread that runs its device, as long as an access to its memory takes: the kernel makes it wait while the
//! client punches holes of gigabytes into a memory file. So a device that took long is left to its runner for a hundred times as
//! long. Nothing else that clients offer makes a thread wait: only memory files are mapped, and interrupts are signalled without a
//! write.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{self, Duration};

use bareverbs::platform::Instant;
use bareverbs_sim::fabric::{Arrival, Fabric, StationAddress, Tap, Uplink};
use bareverbs_sim::wire::{PortId, Wire};

use crate::adaptive_poll::AdaptivePoll;
use crate::binding::PortBinding;
use crate::device_slot::DeviceSlot;
use crate::error::{Gone, ServeError};
use crate::interrupts::Vectors;
use crate::log::Log;
use crate::runner::{RETRY_INTERVAL, Runner, RunnerState, State, lock};

/// Maximum number of turns that a requesting thread runs a device before it leaves the rest to the runner. A short request takes this
/// many from its doorbell to the wire.
const TURNS: usize = 4;
/// Time that these turns take at most on a machine that is not overloaded, unless accesses to memory wait.
const LONG_RUN: Duration = Duration::from_millis(20);
/// How many times as long a device is left to its runner then.
const ALONE_FACTOR: u32 = 100;
/// Maximum number of devices that a sending thread runs: eight round trips between two devices. The runners do the rest.
const PASSES: usize = 16;
/// Timeout of [`Running::wait`] for the runners to end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

struct Shared {
    start: time::Instant,
    devices: Vec<Runner>,
    fabric: Fabric<Box<dyn Wire + Send>>,
    stopped: AtomicBool,
    /// Wakes [`Running::wait`].
    end: (Mutex<()>, Condvar),
}

/// Frames that the switch dropped at the port of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// The device did not take them in time.
    pub(crate) discarded: u64,
    /// Of another partition, or with a source LID that the port does not have.
    pub(crate) filtered: u64,
}

/// Access to one device from any thread.
#[derive(Clone)]
pub(crate) struct DeviceHandle {
    device: usize,
    shared: Arc<Shared>,
}

impl DeviceHandle {
    fn served(&self) -> Result<&Runner, Gone> {
        self.shared.devices.get(self.device).filter(|_| !self.shared.has_stopped()).ok_or(Gone)
    }

    /// Calls `act` with the device, without running the device.
    pub(crate) fn inspect<R>(&self, act: impl FnOnce(&mut DeviceSlot) -> R) -> Result<R, Gone> {
        let served = self.served()?;
        let mut guard = served.enter();
        let state = guard.as_mut().ok_or(Gone)?;
        // The timer registers must show the present time.
        state.slot.device.set_time(self.shared.now());
        let result = act(&mut state.slot);
        served.leave(guard);
        Ok(result)
    }

    /// Calls `act` with the device, then runs the device.
    pub(crate) fn ask<R>(&self, act: impl FnOnce(&mut DeviceSlot) -> R) -> Result<R, Gone> {
        let served = self.served()?;
        self.shared.ask(served, served.enter(), act)
    }

    /// As [`DeviceHandle::ask`], but returns `None` if the device is busy, or its lines wait for a file, for longer than `limit`.
    pub(crate) fn ask_within<R>(&self, limit: Duration, act: impl FnOnce(&mut DeviceSlot) -> R) -> Result<Option<R>, Gone> {
        let served = self.served()?;
        let start = time::Instant::now();
        loop {
            let Some(guard) = served.enter_within(limit.saturating_sub(start.elapsed())) else { return Ok(None) };
            if guard.as_ref().is_none_or(|state| state.slot.outputs.have_room()) {
                return self.shared.ask(served, guard, act).map(Some);
            }
            served.leave(guard);
            if start.elapsed() >= limit {
                return Ok(None);
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Resets the device after `act`, and drops its frames, so that the next client neither sends nor receives them.
    pub(crate) fn reset<R>(&self, act: impl FnOnce(&mut DeviceSlot) -> R) -> Result<R, Gone> {
        let served = self.served()?;
        let mut guard = served.enter();
        let state = guard.as_mut().ok_or(Gone)?;
        let result = act(&mut state.slot);
        state.slot.reset();
        self.shared.fabric.clear(&mut state.port);
        let reached: VecDeque<PortId> = state.port.take_reached().collect();
        served.leave(guard);
        self.shared.pass_on(reached);
        Ok(result)
    }

    /// Calls `act` with the interrupt vectors.
    pub(crate) fn vectors<R>(&self, act: impl FnOnce(&mut Vectors) -> R) -> Result<R, Gone> {
        Ok(act(&mut lock(&self.served()?.vectors)))
    }

    /// Delivers a frame from another process to its destination; a frame without a destination here is dropped. Returns the frame
    /// if the device has no room for it; the caller may offer it again.
    pub(crate) fn offer(&self, frame: Vec<u8>) -> Result<Option<Vec<u8>>, Gone> {
        self.served()?;
        let shared = &self.shared;
        Ok(shared.fabric.arrive(frame, shared.now(), |port| shared.reach(port)).err())
    }

    /// Puts a frame that came out of the cable of a port on the wire. If it is not there afterwards, it is lost.
    pub(crate) fn arrive_at(&self, port: PortId, frame: Vec<u8>) -> Result<Arrival, Gone> {
        self.served()?;
        let shared = &self.shared;
        let arrival = shared.fabric.arrive_at(port, frame, shared.now(), |port| shared.reach(port));
        // If the wire delays it, a runner has to wake in time.
        if shared.fabric.wire_due().is_some() {
            shared.reach(PortId(self.device));
        }
        Ok(arrival)
    }

    /// Returns the frames that the switch dropped at the port of the device.
    pub(crate) fn dropped(&self) -> Dropped {
        let (fabric, port) = (&self.shared.fabric, PortId(self.device));
        Dropped { discarded: fabric.discarded(port), filtered: fabric.filtered(port) }
    }

    /// Returns whether a device of this process has this LID now.
    pub(crate) fn has_lid(&self, lid: u16) -> bool {
        self.shared.fabric.has_lid(lid)
    }

    /// Returns whether the devices are no longer served.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.has_stopped()
    }

    /// Ends [`Running::wait`], without taking the lock of a device. Returns `false` if it was called before.
    pub(crate) fn stop(&self) -> bool {
        self.shared.stop()
    }
}

impl Shared {
    fn now(&self) -> Instant {
        Instant::default().after(self.start.elapsed())
    }

    fn stop(&self) -> bool {
        let first = !self.stopped.swap(true, Ordering::SeqCst);
        self.devices.iter().for_each(Runner::wake);
        drop(lock(&self.end.0));
        self.end.1.notify_all();
        first
    }

    fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Marks a port as having work, and wakes its runner if necessary.
    fn reach(&self, port: PortId) {
        let Some(served) = self.devices.get(port.0) else { return };
        served.work_pending.store(true, Ordering::SeqCst);
        if !served.being_served.load(Ordering::SeqCst) {
            served.wake();
        }
    }

    fn ask<R>(
        &self,
        served: &Runner,
        mut guard: MutexGuard<'_, Option<State>>,
        act: impl FnOnce(&mut DeviceSlot) -> R,
    ) -> Result<R, Gone> {
        let state = guard.as_mut().ok_or(Gone)?;
        state.slot.device.set_time(self.now());
        let result = act(&mut state.slot);
        let mut reached = VecDeque::new();
        let mut due = self.next_due(state);
        for _ in 0..TURNS {
            let now = self.now();
            if !served.work_pending.swap(false, Ordering::SeqCst) && due.is_none_or(|due| due > now) {
                break;
            }
            self.turn(state, now, &mut reached);
            due = self.next_due(state);
        }
        Self::leave_in_time(served, guard, due);
        self.pass_on(reached);
        Ok(result)
    }

    /// Releases the lock of a device, and wakes its runner if that sleeps beyond `due`.
    fn leave_in_time(served: &Runner, mut guard: MutexGuard<'_, Option<State>>, due: Option<Instant>) {
        let mut in_time = true;
        if let Some(state) = guard.as_mut() {
            in_time = match state.runner {
                RunnerState::Awake => true,
                RunnerState::Asleep(until) => due.is_none_or(|due| until.is_some_and(|until| until <= due)),
            };
            if !in_time {
                state.runner = RunnerState::Awake;
            }
        }
        served.leave(guard);
        // Woken even if other threads change the flag meanwhile: they rely on the runner being awake.
        if !in_time {
            served.wake();
        }
    }

    /// Makes the devices in `reached` receive their frames, on this thread or on their runners. The caller holds no lock.
    fn pass_on(&self, mut reached: VecDeque<PortId>) {
        for _ in 0..PASSES {
            let Some(port) = reached.pop_front() else { return };
            let taken = self.devices.get(port.0).is_some_and(|served| self.take_frames(served, &mut reached));
            if !taken {
                self.reach(port);
            }
        }
        reached.into_iter().for_each(|port| self.reach(port));
    }

    /// Runs a sleeping device on this thread for a few turns, to receive its frames. Waking its runner would cost more, and would move
    /// the frames to the cache of another processor.
    ///
    /// Returns `false` without running it if another thread has its lock, it has other work, its lines may have to wait, or it took
    /// long lately.
    fn take_frames(&self, served: &Runner, reached: &mut VecDeque<PortId>) -> bool {
        let Ok(mut guard) = served.state.try_lock() else { return false };
        let Some(state) = guard.as_mut() else { return false };
        let now = self.now();
        let sleeps = matches!(state.runner, RunnerState::Asleep(_)) && state.slot.device.next_due().is_none_or(|due| due > now);
        // Only its own runner may wait for a file, and for memory again and again.
        if !sleeps || now < state.alone_until || !state.slot.outputs.have_room() {
            return false;
        }
        let start = now;
        served.being_served.store(true, Ordering::SeqCst);
        let mut due = None;
        for _ in 0..TURNS {
            let now = self.now();
            self.turn(state, now, reached);
            due = self.next_due(state);
            if due.is_none_or(|due| due > now) || !state.slot.outputs.have_room() {
                break;
            }
        }
        let end = self.now();
        let took = end.since(start);
        if took >= LONG_RUN {
            state.alone_until = end.after(took.saturating_mul(ALONE_FACTOR));
        }
        Self::leave_in_time(served, guard, due);
        true
    }

    /// Returns when the device or the wire next has work.
    fn next_due(&self, state: &State) -> Option<Instant> {
        self.fabric.next_due(&state.port, &state.slot.device).into_iter().chain(self.fabric.wire_due()).min()
    }

    /// Runs a device once and moves its frames. Appends the ports that have received work to `reached`.
    fn turn(&self, state: &mut State, now: Instant, reached: &mut VecDeque<PortId>) {
        let State { slot, port, .. } = state;
        self.fabric.step(port, &mut slot.device, now);
        let mut reach = |port| {
            if !reached.contains(&port) {
                reached.push_back(port);
            }
        };
        port.take_reached().for_each(&mut reach);
        self.fabric.deliver(now, reach);
    }

    /// Runs a device until the server ends, then returns it.
    fn run_device(&self, served: &Runner) -> Option<DeviceSlot> {
        let (mut worked, mut poll) = (false, AdaptivePoll::new());
        while !self.has_stopped() {
            let mut guard = served.enter();
            let state = guard.as_mut()?;
            state.runner = RunnerState::Awake;
            let now = self.now();
            let due = self.next_due(state);
            if served.work_pending.swap(false, Ordering::SeqCst) || due.is_some_and(|due| due <= now) {
                let mut reached = VecDeque::new();
                self.turn(state, now, &mut reached);
                worked = true;
                served.leave(guard);
                self.pass_on(reached);
                continue;
            }
            state.runner = RunnerState::Asleep(due);
            served.leave(guard);
            if std::mem::take(&mut worked) {
                poll.wait(|| served.work_pending.load(Ordering::Relaxed).then_some(()));
            }
            if served.work_pending.load(Ordering::SeqCst) {
                continue;
            }
            // It may wake early: the loop checks what is due.
            match due {
                None => thread::park(),
                Some(due) => thread::park_timeout(due.since(self.now())),
            }
        }
        served.enter().take().map(|state| state.slot)
    }
}

/// Result of [`Running::wait`].
#[derive(Default)]
pub(crate) struct Ended {
    /// The devices, in order.
    pub(crate) slots: Vec<DeviceSlot>,
    /// Names of devices whose threads did not end.
    pub(crate) stuck: Vec<String>,
    /// Names of devices that did not receive frames in time, and how many frames of each were dropped.
    pub(crate) discarded: Vec<(String, u64)>,
}

/// The devices, the wire and the clock.
pub(crate) struct Devices {
    shared: Arc<Shared>,
}

impl Devices {
    /// Joins the devices to the wire, in the order of its ports, and the cables to its ports behind those. Frames without a
    /// destination here are sent to `uplink`.
    pub(crate) fn new(
        devices: Vec<(DeviceSlot, Vectors)>,
        wire: Box<dyn Wire + Send>,
        uplink: Option<Box<dyn Uplink + Send>>,
        cables: Vec<Box<dyn Uplink + Send>>,
        log: &Log,
    ) -> Self {
        let mut fabric = Fabric::new(wire, uplink);
        let served = |(slot, vectors): (DeviceSlot, Vectors)| {
            let lid = slot.device.config().lid;
            let state = State { port: fabric.add_port(), slot, runner: RunnerState::Awake, alone_until: Instant::default() };
            Runner {
                name: format!("lid{lid}"),
                log: log.clone(),
                turnstile: Mutex::default(),
                state: Mutex::new(Some(state)),
                vectors: Mutex::new(vectors),
                work_pending: AtomicBool::new(false),
                being_served: AtomicBool::new(false),
                runner: OnceLock::new(),
            }
        };
        let devices = devices.into_iter().map(served).collect();
        for cable in cables {
            fabric.add_cable(cable);
        }
        let (start, stopped, end) = (time::Instant::now(), AtomicBool::new(false), Default::default());
        Self { shared: Arc::new(Shared { start, devices, fabric, stopped, end }) }
    }

    /// Returns the handle of a device.
    pub(crate) fn handle(&self, device: usize) -> DeviceHandle {
        DeviceHandle { device, shared: Arc::clone(&self.shared) }
    }

    /// Binds a port to addresses.
    pub(crate) fn bind(&self, port: PortId, binding: &PortBinding) -> Result<(), StationAddress> {
        self.shared.fabric.bind(port, &binding.macs, &binding.ips)
    }

    /// Shows all frames that arrive to a tap.
    pub(crate) fn set_tap(&self, tap: Box<dyn Tap + Send>) {
        self.shared.fabric.set_tap(Some(tap));
    }

    /// Starts the runners.
    ///
    /// # Errors
    /// A thread could not be started; those already started end.
    pub(crate) fn start(self) -> Result<Running, ServeError> {
        let Self { shared } = self;
        let (sender, ended) = mpsc::channel();
        for (number, served) in shared.devices.iter().enumerate() {
            let (sender, its) = (sender.clone(), Arc::clone(&shared));
            let run = move || {
                let slot = its.devices.get(number).and_then(|served| its.run_device(served));
                // After the timeout there is no receiver.
                let _ = sender.send((number, slot));
            };
            let spawned = thread::Builder::new().name(format!("{} runner", served.name)).spawn(run);
            let runner = spawned.map_err(|error| {
                shared.stop();
                ServeError::Thread(error)
            })?;
            let _ = served.runner.set(runner.thread().clone());
            // It may have gone to sleep before `runner` was set.
            served.wake();
        }
        Ok(Running { shared, ended })
    }
}

/// Devices that are being served.
pub(crate) struct Running {
    shared: Arc<Shared>,
    ended: mpsc::Receiver<(usize, Option<DeviceSlot>)>,
}

impl Running {
    /// Waits for [`DeviceHandle::stop`], then closes the link and collects the devices.
    pub(crate) fn wait(self) -> Ended {
        let Self { shared, ended } = self;
        let mut waiting = lock(&shared.end.0);
        while !shared.has_stopped() {
            waiting = shared.end.1.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        drop(waiting);
        shared.fabric.close_uplinks();
        let deadline = time::Instant::now() + END_TIMEOUT;
        let mut slots: Vec<Option<DeviceSlot>> = shared.devices.iter().map(|_| None).collect();
        for _ in &shared.devices {
            let left = deadline.saturating_duration_since(time::Instant::now());
            let Ok((number, slot)) = ended.recv_timeout(left) else { break };
            if let Some(place) = slots.get_mut(number) {
                *place = slot;
            }
        }
        let names = shared.devices.iter().zip(&slots);
        let stuck = names.filter(|(_, slot)| slot.is_none()).map(|(served, _)| served.name.clone()).collect();
        let discarded = shared.devices.iter().enumerate().filter_map(|(number, served)| {
            let frames = shared.fabric.discarded(PortId(number));
            (frames > 0).then(|| (served.name.clone(), frames))
        });
        let discarded = discarded.collect();
        Ended { slots: slots.into_iter().flatten().collect(), stuck, discarded }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::identity;
    use std::fs::File;
    use std::io::Read as _;
    use std::process;
    use std::sync::atomic::AtomicUsize;

    use bareverbs_sim::identity::PortIdentity;
    use bareverbs_sim::wire::{Delivery, Destination, PerfectWire};
    use bareverbs_sim::{Device, DeviceConfig};

    use super::*;
    use crate::client_memory::{Bounds, ClientDma, ClientMemory};
    use crate::device_slot::LineOutputs;
    use crate::log::RateLimited;
    use crate::record::{Recording, Several};

    /// A wire that transports nothing and has a timer.
    struct Busy {
        due: Instant,
        every: Duration,
        timeouts: Arc<AtomicUsize>,
    }

    impl Wire for Busy {
        fn send(&mut self, _: Instant, _: PortId, _: Vec<u8>) {}

        fn deliver(&mut self, now: Instant) -> Option<Delivery> {
            if now >= self.due {
                self.timeouts.fetch_add(1, Ordering::Relaxed);
                self.due = now.after(self.every);
            }
            None
        }

        fn next_due(&self) -> Option<Instant> {
            Some(self.due)
        }

        fn identity(&self, _: PortId) -> Option<&PortIdentity> {
            None
        }

        fn destination(&self, _: PortId, _: &[u8]) -> Destination {
            Destination::Nowhere
        }

        fn in_flight(&self, _: PortId) -> usize {
            0
        }

        fn fix_station(&mut self, _: PortId, _: [u8; 6]) {}
    }

    fn device(lid: u16) -> (DeviceSlot, Vectors) {
        let bounds = Bounds { bytes: u64::MAX, files: 64 };
        let memory = ClientDma(Arc::new(ClientMemory::new(Arc::new(RateLimited::new("test".into(), Log::discard())), bounds)));
        let device = Device::with_memory(DeviceConfig::with_lid(lid), memory).unwrap();
        (DeviceSlot { device, outputs: LineOutputs::default() }, Vectors::new(1))
    }

    /// Runs one device with a [`Busy`] wire. Returns its handle and the number of timeouts.
    fn running(every: Duration) -> (DeviceHandle, Arc<AtomicUsize>, Running) {
        let timeouts = Arc::new(AtomicUsize::new(0));
        let wire = Busy { due: Instant::default(), every, timeouts: Arc::clone(&timeouts) };
        let devices = Devices::new(vec![device(1)], Box::new(wire), None, Vec::new(), &Log::discard());
        let handle = devices.handle(0);
        (handle, timeouts, devices.start().unwrap())
    }

    /// Creates two devices on a perfect wire, or on one made of it.
    fn subnet_of_two<W: Wire + Send + 'static>(wire_of: impl FnOnce(PerfectWire) -> W) -> Devices {
        let mut wire = PerfectWire::new(Duration::ZERO);
        let devices = vec![device(1), device(2)];
        for (slot, _) in &devices {
            wire.attach(slot.device.identity());
        }
        Devices::new(devices, Box::new(wire_of(wire)), None, Vec::new(), &Log::discard())
    }

    /// Runs two devices on a perfect wire.
    fn pair() -> (DeviceHandle, DeviceHandle, Running) {
        let devices = subnet_of_two(identity);
        (devices.handle(0), devices.handle(1), devices.start().unwrap())
    }

    /// Effects of time show nothing here: on a busy machine the scheduler lets the others in by itself.
    #[test]
    fn a_thread_that_takes_a_lock_repeatedly_lets_others_in() {
        const ROUNDS: usize = 25;
        let subnet = subnet_of_two(identity);
        let served = subnet.shared.devices.first().unwrap();
        let others = AtomicUsize::new(0);
        thread::scope(|scope| {
            let mut guard = served.enter();
            for round in 0..ROUNDS {
                scope.spawn(|| {
                    let guard = served.enter();
                    others.fetch_add(1, Ordering::SeqCst);
                    served.leave(guard);
                });
                let start = time::Instant::now();
                while !served.has_waiter() {
                    assert!(start.elapsed() < Duration::from_secs(10), "the other is not in line");
                    thread::yield_now();
                }
                assert_eq!(others.load(Ordering::SeqCst), round);
                served.leave(guard);
                guard = served.enter();
                assert_eq!(others.load(Ordering::SeqCst), round + 1, "this thread went in again before the other");
            }
            served.leave(guard);
        });
    }

    /// A pipe that blocks its writer until it is read.
    struct SlowFile {
        _folder: tempfile::TempDir,
        end: File,
    }

    impl SlowFile {
        /// Creates the pipe and a recording into it.
        fn record() -> (Self, Recording) {
            let folder = tempfile::tempdir().unwrap();
            let pipe = folder.path().join("recording");
            assert!(process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            let end = File::options().read(true).write(true).open(&pipe).unwrap();
            (Self { _folder: folder, end }, Recording::create(&pipe).unwrap())
        }

        /// Reads the pipe from now on, until the process ends.
        fn read_on(mut self) {
            thread::spawn(move || {
                let mut bytes = vec![0; 1 << 20];
                while self.end.read(&mut bytes).is_ok() {}
            });
        }
    }

    /// Attaches a recording whose queue of lines is full to a device.
    fn record_in_full(slot: &mut DeviceSlot, recording: &Recording) {
        let recorder = recording.tracer("slow", slot.device.config());
        recorder.recording().mark(&"x".repeat(8 << 20));
        slot.outputs.recording = Some(recorder.recording().clone());
        slot.device.set_tracer(Some(Several(vec![Box::new(recorder)])));
    }

    #[test]
    fn ask_within_does_not_wait_for_the_file_of_a_device() {
        let (handle, _, runner) = running(Duration::from_secs(1000));
        let (file, recording) = SlowFile::record();
        handle.inspect(|slot| record_in_full(slot, &recording)).unwrap();
        let start = time::Instant::now();
        assert_eq!(handle.ask_within(Duration::from_millis(50), |_| 7), Ok(None));
        assert!(start.elapsed() >= Duration::from_millis(50));
        file.read_on();
        assert_eq!(handle.ask_within(Duration::from_secs(60), |_| 7), Ok(Some(7)), "it takes lines again");
        handle.stop();
        runner.wait();
    }

    /// Returns whether a thread that has a frame for device 1, which sleeps, makes it receive the frame.
    fn is_taken_by_sender(devices: &Devices) -> bool {
        let (shared, to) = (&devices.shared, PortId(1));
        lock(&shared.devices[1].state).as_mut().unwrap().runner = RunnerState::Asleep(None);
        if !shared.fabric.has_frames(to) {
            // For LID 2.
            let mut frame = vec![0; 64];
            frame[3] = 2;
            shared.fabric.arrive(frame, shared.now(), |_| {}).unwrap();
        }
        shared.pass_on([to].into());
        !shared.fabric.has_frames(to)
    }

    /// Makes the start of device 1 end, however long the test has run, so that it has no work but frames.
    fn end_its_start(devices: &Devices) {
        devices.handle(1).inspect(|slot| slot.device.set_time(Instant::from_nanos(u64::MAX / 2))).unwrap();
    }

    /// A sending thread runs a sleeping device, but not one whose lines may have to wait for a file: its runner does that.
    #[test]
    fn senders_do_not_wait_for_the_file_of_a_device() {
        // Without runners, which could receive the frames first.
        let devices = subnet_of_two(identity);
        end_its_start(&devices);
        assert!(is_taken_by_sender(&devices));
        let (file, recording) = SlowFile::record();
        devices.handle(1).inspect(|slot| record_in_full(slot, &recording)).unwrap();
        assert!(!is_taken_by_sender(&devices));
        file.read_on();
        let start = time::Instant::now();
        // On a busy machine, the first frame may also have taken so long that its runner is the next to run it.
        while !is_taken_by_sender(&devices) {
            assert!(start.elapsed() < Duration::from_secs(60), "it takes no lines again");
            thread::sleep(RETRY_INTERVAL);
        }
    }

    /// A wire on which each turn of a device takes long, as if an access to memory waited.
    struct Slow(PerfectWire);

    impl Wire for Slow {
        fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
            self.0.send(now, from, frame);
        }

        fn deliver(&mut self, now: Instant) -> Option<Delivery> {
            thread::sleep(LONG_RUN);
            self.0.deliver(now)
        }

        fn next_due(&self) -> Option<Instant> {
            Some(Instant::default())
        }

        fn identity(&self, port: PortId) -> Option<&PortIdentity> {
            self.0.identity(port)
        }

        fn destination(&self, from: PortId, frame: &[u8]) -> Destination {
            self.0.destination(from, frame)
        }

        fn in_flight(&self, from: PortId) -> usize {
            self.0.in_flight(from)
        }

        fn fix_station(&mut self, port: PortId, mac: [u8; 6]) {
            self.0.fix_station(port, mac);
        }
    }

    #[test]
    fn senders_do_not_wait_for_a_slow_device_again_and_again() {
        let devices = subnet_of_two(Slow);
        end_its_start(&devices);
        let (mut taken, mut waits) = (0, Duration::ZERO);
        let start = time::Instant::now();
        while taken < 2 && start.elapsed() < Duration::from_secs(60) {
            let before = time::Instant::now();
            if is_taken_by_sender(&devices) {
                (taken, waits) = (taken + 1, waits + before.elapsed());
            }
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(taken, 2, "in time it is as any other");
        assert!(waits >= LONG_RUN * 2 && start.elapsed() > LONG_RUN * ALONE_FACTOR, "{waits:?} in {:?}", start.elapsed());
    }

    #[test]
    fn a_frame_of_a_cable_that_the_wire_delays_is_delivered_in_time() {
        struct Taker(mpsc::Sender<Vec<u8>>);
        impl Uplink for Taker {
            fn send(&self, _: PortId, frame: Vec<u8>) -> bool {
                self.0.send(frame).is_ok()
            }
        }
        const LATENCY: Duration = Duration::from_millis(300);
        let mut wire = PerfectWire::new(LATENCY);
        let slots = vec![device(1)];
        wire.attach(slots[0].0.device.identity());
        let (sender, frames) = mpsc::channel();
        let cables = (0..2).map(|_| {
            wire.attach(PortIdentity::ethernet());
            Box::new(Taker(sender.clone())) as Box<dyn Uplink + Send>
        });
        let cables = cables.collect();
        let devices = Devices::new(slots, Box::new(wire), None, cables, &Log::discard());
        let handle = devices.handle(0);
        // Whoever sleeps sleeps for long: no device has anything to do.
        handle.inspect(|slot| slot.device.set_time(Instant::from_nanos(u64::MAX / 2))).unwrap();
        let runner = devices.start().unwrap();
        for number in 0..3 {
            assert_eq!(
                handle
                    .arrive_at(PortId(1), vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, number])
                    .map(|arrival| arrival.is_on_wire),
                Ok(true)
            );
            let arrived = frames.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!((arrived[11], arrived.len()), (number, 60));
        }
        handle.stop();
        runner.wait();
    }

    #[test]
    fn timers_run_without_requests() {
        let start = time::Instant::now();
        let (handle, timeouts, runner) = running(Duration::from_millis(20));
        while timeouts.load(Ordering::Relaxed) < 10 && start.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(10));
        }
        handle.stop();
        assert_eq!(runner.wait().slots.len(), 1);
        // Once each 20 ms; far more often would mean that it does not sleep.
        let most = start.elapsed().as_millis() / 10 + 2;
        assert!((10..=most).contains(&(timeouts.load(Ordering::Relaxed) as u128)), "{timeouts:?}, at most {most}");
    }

    #[test]
    fn endless_work_does_not_block_requests() {
        let (handle, timeouts, runner) = running(Duration::ZERO);
        let askers: Vec<_> = (0..4)
            .map(|_| {
                let handle = handle.clone();
                thread::spawn(move || (0..500).all(|_| handle.ask(|slot| slot.device.config().lid) == Ok(1)))
            })
            .collect();
        assert!(askers.into_iter().all(|asker| asker.join().unwrap()));
        assert!(timeouts.load(Ordering::Relaxed) > 0);
        handle.stop();
        runner.wait();
    }

    #[test]
    fn requests_after_the_end_fail() {
        let (handle, _, runner) = running(Duration::from_secs(1000));
        assert_eq!(handle.ask(|_| 7), Ok(7));
        assert_eq!((handle.stop(), handle.stop()), (true, false), "only the first time");
        runner.wait();
        assert_eq!((handle.ask(|_| 7), handle.inspect(|_| 7)), (Err(Gone), Err(Gone)));
        assert_eq!(handle.offer(Vec::new()), Err(Gone));
    }

    /// A device whose thread hangs does not delay the other device, and delays the end only by its timeout.
    #[test]
    fn a_hung_device_blocks_neither_the_other_nor_the_end() {
        let (a, b, running) = pair();
        let (hangs, is_hung) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let hung = a.clone();
        let hung = thread::spawn(move || {
            hung.ask(|_| {
                hangs.send(()).unwrap();
                // As an access to memory that never completes.
                let _ = released.recv();
            })
        });
        is_hung.recv().unwrap();
        let start = time::Instant::now();
        assert!((0..1000).all(|_| b.ask(|slot| slot.device.config().lid) == Ok(2)));
        assert_eq!(a.ask_within(Duration::from_millis(5), |_| ()), Ok(None), "the other thread has the lock");
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(a.stop());
        let ended = running.wait();
        let lids: Vec<u16> = ended.slots.iter().map(|slot| slot.device.config().lid).collect();
        assert_eq!((lids, ended.stuck), (vec![2], vec!["lid1".to_owned()]));
        drop(release);
        hung.join().unwrap().unwrap();
    }
}
