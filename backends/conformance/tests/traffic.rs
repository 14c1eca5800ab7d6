//! Traffic with a simulated device behind a platform that is right, and behind platforms that are wrong in one way.
//!
//! The platform here is that of a machine whose caches the device does not see: what the CPU writes reaches memory when a fence says so, and
//! what it reads may be older than memory until a fence says so. With the fences of the traits it works; without one it does not.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by it")]
#![expect(unsafe_code, reason = "the traits are unsafe to implement")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use bareverbs::platform::{
    AddressMap, Clock, DmaFence, DmaMemory, DmaRing, Doorbell, Extent, Instant, Machine, OutOfRange, Platform, Registers,
    RingLayout, RingToken, RingView, WordRegister,
};
use bareverbs::storage::QpRings;
use bareverbs::{DmaBuffer, GidEntry, Verbs, storage};
use bareverbs_conformance::{Step, Traffic, TrafficFault, TrafficReport, check_buffer, check_machine, check_traffic};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{
    Host, SimBuffer, SimClock, SimMemory, SimPages, SimPlatform, SimRegister, SimRegisters, World, WorldConfig,
};

/// What is wrong with the platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// `release` orders nothing: the device reads what was there before.
    NoRelease,
    /// `acquire` orders nothing: the CPU reads what was there before.
    NoAcquire,
    /// Doorbells do not reach the device.
    NoDoorbell,
    /// Words do not: nothing is armed.
    NoWord,
    /// Doorbell records are not written.
    NoRecord,
    /// The extents of buffers are 64 bytes off.
    ExtentOff,
    /// The device sees the halves of a buffer the other way round.
    HalvesSwapped,
    /// A buffer is read past what the device has written into it: a stale copy.
    BufferIsCopy,
}

/// A write: the memory, the offset, the bytes.
type Write = (SimMemory, usize, Vec<u8>);
/// A line, and how often it may still be read without a look at memory.
type Line = ([u8; 64], u32);

/// What CPU and memory have of each other.
#[derive(Clone)]
struct Caches {
    wrong: Rc<Cell<Wrong>>,
    /// Writes that did not reach memory yet, oldest first.
    pending: Rc<RefCell<Vec<Write>>>,
    /// Lines of 64 bytes that were read, by memory and offset.
    lines: Rc<RefCell<HashMap<(u64, usize), Line>>>,
}

/// Reads of a line that memory is not looked at for.
const STALE_READS: u32 = 64;

impl Caches {
    fn new() -> Self {
        let (pending, lines) = (Rc::default(), Rc::default());
        Self { wrong: Rc::new(Cell::new(Wrong::Nothing)), pending, lines }
    }

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong.get() == wrong
    }

    fn write(&self, memory: &SimMemory, at: usize, bytes: &[u8]) {
        let mut pending = self.pending.borrow_mut();
        pending.push((memory.clone(), at, bytes.to_vec()));
        // Caches are small.
        if pending.len() > 64 {
            drop(pending);
            self.write_back();
        }
    }

    fn write_back(&self) {
        for (mut memory, at, bytes) in self.pending.borrow_mut().drain(..) {
            memory.write(at, &bytes).unwrap();
        }
    }

    /// Puts what the CPU has written, and memory has not, over what was read.
    fn overlay(&self, memory: &SimMemory, at: usize, into: &mut [u8]) {
        for (of, start, bytes) in self.pending.borrow().iter() {
            if of.device_addr() == memory.device_addr() {
                for (index, byte) in bytes.iter().enumerate() {
                    if let Some(place) = (start + index).checked_sub(at).and_then(|index| into.get_mut(index)) {
                        *place = *byte;
                    }
                }
            }
        }
    }

    fn read(&self, memory: &SimMemory, at: usize, into: &mut [u8]) {
        memory.read(at, into).unwrap();
        self.overlay(memory, at, into);
    }

    /// Reads by lines, some of which are older than memory.
    fn read_cached(&self, memory: &SimMemory, at: usize, into: &mut [u8]) {
        for (index, byte) in into.iter_mut().enumerate() {
            let line = (at + index) / 64 * 64;
            let mut lines = self.lines.borrow_mut();
            let kept = lines.entry((memory.device_addr(), line)).or_insert(([0; 64], 0));
            if kept.1 == 0 {
                memory.read(line, &mut kept.0).unwrap();
                kept.1 = STALE_READS;
            }
            kept.1 -= 1;
            *byte = kept.0[at + index - line];
        }
        self.overlay(memory, at, into);
    }
}

#[derive(Clone)]
struct LazyFence(Caches);

impl DmaFence for LazyFence {
    fn release(&self) {
        if !self.0.is(Wrong::NoRelease) {
            self.0.write_back();
        }
    }

    fn acquire(&self) {
        if !self.0.is(Wrong::NoAcquire) {
            self.0.lines.borrow_mut().clear();
        }
    }

    fn flush(&self) {}
}

struct LazyMemory {
    inner: SimMemory,
    caches: Caches,
}

// SAFETY: as of the memory inside; what is written late is written to the same bytes.
unsafe impl DmaMemory for LazyMemory {
    type Ring = LazyRing;

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn device_addr(&self) -> u64 {
        self.inner.device_addr()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.inner.read(at, into)?;
        self.caches.overlay(&self.inner, at, into);
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.inner.read(at, &mut vec![0; from.len()])?;
        self.caches.write(&self.inner, at, from);
        Ok(())
    }

    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange> {
        let mut byte = [0];
        self.read(at, &mut byte)?;
        Ok(byte[0])
    }

    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange> {
        let out = OutOfRange { offset: at, len: 4, size: self.len() };
        if at.is_multiple_of(4) { self.write(at, &value.to_ne_bytes()) } else { Err(out) }
    }

    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange> {
        self.inner.load::<N>(at)?;
        let mut words = [0; N];
        for (index, word) in words.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            self.read(at + 8 * index, &mut bytes)?;
            *word = u64::from_ne_bytes(bytes);
        }
        Ok(words)
    }

    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange> {
        self.inner.load::<N>(at)?;
        words.iter().enumerate().try_for_each(|(index, word)| self.write(at + 8 * index, &word.to_ne_bytes()))
    }

    fn ring(&self, token: RingToken, layout: &RingLayout) -> Result<LazyRing, OutOfRange> {
        let inner = self.inner.ring(token, layout)?;
        Ok(LazyRing { inner, memory: self.inner.clone(), layout: *layout, caches: self.caches.clone() })
    }
}

struct LazyRing {
    /// Lets time pass when it is looked at.
    inner: <SimMemory as DmaMemory>::Ring,
    memory: SimMemory,
    layout: RingLayout,
    caches: Caches,
}

impl LazyRing {
    fn at(&self, word: u32) -> usize {
        self.layout.ring() + word as usize % (self.layout.len() / 8) * 8
    }
}

impl DmaRing for LazyRing {
    type View<'a> = &'a Self;

    fn view(&self) -> &Self {
        self
    }
}

impl RingView for &LazyRing {
    fn put<const N: usize>(self, block: u32, words: &[u64; N]) {
        (0_u32..).zip(words).for_each(|(index, word)| self.put_word(block.wrapping_mul(8).wrapping_add(index), *word));
    }

    fn put_word(self, word: u32, value: u64) {
        self.caches.write(&self.memory, self.at(word), &value.to_ne_bytes());
    }

    fn word(self, word: u32) -> u64 {
        let _ = self.inner.view().word(word);
        let mut bytes = [0; 8];
        self.caches.read(&self.memory, self.at(word), &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn record(self, second: bool, value: u32) {
        let at = self.layout.doorbell_record() + if second { 4 } else { 0 };
        if !self.caches.is(Wrong::NoRecord) {
            self.caches.write(&self.memory, at, &value.to_ne_bytes());
        }
    }
}

struct LazyRegisters {
    inner: SimRegisters,
    caches: Caches,
}

struct LazyRegister {
    inner: SimRegister,
    caches: Caches,
}

impl Doorbell for LazyRegister {
    fn write(&self, index: usize, value: u64) {
        if !self.caches.is(Wrong::NoDoorbell) {
            Doorbell::write(&self.inner, index, value);
        }
    }
}

impl WordRegister for LazyRegister {
    fn write(&self, value: u32) {
        if !self.caches.is(Wrong::NoWord) {
            WordRegister::write(&self.inner, value);
        }
    }
}

impl Registers for LazyRegisters {
    type Doorbell = LazyRegister;
    type Word = LazyRegister;

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        self.inner.read32(offset)
    }

    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        self.inner.write32(offset, value)
    }

    fn doorbell(&self, offset: usize, count: usize) -> Result<LazyRegister, OutOfRange> {
        Ok(LazyRegister { inner: self.inner.doorbell(offset, count)?, caches: self.caches.clone() })
    }

    fn word(&self, offset: usize) -> Result<LazyRegister, OutOfRange> {
        Ok(LazyRegister { inner: self.inner.word(offset)?, caches: self.caches.clone() })
    }
}

struct LazyBuffer {
    memory: SimMemory,
    inner: SimBuffer,
    caches: Caches,
    /// What the buffer was when the platform went wrong.
    before: RefCell<Option<Vec<u8>>>,
}

impl AddressMap for LazyBuffer {
    fn extent(&self, addr: u64) -> Option<Extent> {
        let Extent { device_addr, len } = self.inner.extent(addr)?;
        Some(match self.caches.wrong.get() {
            Wrong::ExtentOff => Extent { device_addr: device_addr + 64, len },
            Wrong::HalvesSwapped => {
                let (half, offset) = (self.len() / 2, addr - self.addr());
                let start = device_addr - offset;
                if offset < half {
                    Extent { device_addr: start + half + offset, len: half - offset }
                } else {
                    Extent { device_addr: start + offset - half, len: 2 * half - offset }
                }
            }
            _ => Extent { device_addr, len },
        })
    }
}

// SAFETY: the bytes of the simulated buffer; the device reaches simulated memory alone.
unsafe impl DmaBuffer for LazyBuffer {
    fn addr(&self) -> u64 {
        self.inner.addr()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.inner.read(at, into)?;
        if self.caches.is(Wrong::BufferIsCopy) {
            let mut before = self.before.borrow_mut();
            let copy = before.get_or_insert_with(|| vec![0; self.inner.len() as usize]);
            into.copy_from_slice(&copy[at..at + into.len()]);
        } else {
            self.caches.read_cached(&self.memory, at, into);
        }
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.inner.read(at, &mut vec![0; from.len()])?;
        self.caches.write(&self.memory, at, from);
        Ok(())
    }
}

struct Lazy;

// SAFETY: a simulated device reaches simulated memory alone, whatever it is asked.
unsafe impl Platform for Lazy {
    type Registers = LazyRegisters;
    type Memory = LazyMemory;
    type Pages = SimPages;
    type Fence = LazyFence;
    type Clock = SimClock;
}

type Driver = Mlx5<Lazy, 512>;

/// Bytes of the buffer.
const BUFFER: usize = 64 << 10;

fn host() -> Host {
    let (_world, host, _) = World::pair(WorldConfig::default());
    host
}

/// The clock of the check, which is looked at first when a request was posted: from there on the platform is wrong.
struct GoesWrong {
    inner: SimClock,
    caches: Caches,
    wrong: Wrong,
}

impl Clock for GoesWrong {
    fn now(&self) -> Instant {
        self.caches.wrong.set(self.wrong);
        self.inner.now()
    }

    fn relax(&self, deadline: Instant) {
        self.inner.relax(deadline);
    }
}

/// Runs the check on a card that was brought up while the platform was right, and is `wrong` once a request was posted.
fn run(wrong: Wrong, requests: u32, interrupts: bool) -> Result<TrafficReport, TrafficFault> {
    let (host, caches) = (host(), Caches::new());
    let Machine { registers, memory, pages, clock, .. } = host.machine(Driver::ARENA);
    let registers = LazyRegisters { inner: registers, caches: caches.clone() };
    let memory = LazyMemory { inner: memory, caches: caches.clone() };
    let mut machine: Machine<Lazy> = Machine { registers, memory, pages, fence: LazyFence(caches.clone()), clock };
    check_machine(&mut machine, &mut [0; 64]).unwrap();
    let driver = Driver::bring_up(machine, &Config::DEFAULT).map_err(|(error, _)| error).unwrap();
    let rings = QpRings::<64, 16>::new();
    let mut tables = <storage![Driver; pds: 1, mrs: 1, cqs: 1, qps: 1]>::new([rings.view()]);
    let mut verbs = Verbs::new(driver, &mut tables);
    verbs.wait_active(1, Duration::from_secs(60)).unwrap();
    while verbs.poll_event().unwrap().is_some() {}
    host.take_interrupts();
    let memory = host.memory(BUFFER);
    let inner = memory.whole();
    let mut buffer = LazyBuffer { memory, inner, caches: caches.clone(), before: RefCell::new(None) };
    check_buffer(&mut buffer).unwrap();
    if matches!(wrong, Wrong::ExtentOff | Wrong::HalvesSwapped) {
        caches.wrong.set(wrong);
    }
    let mut taken = 0;
    let mut count = || {
        taken += host.take_interrupts().len() as u32;
        taken
    };
    let clock = GoesWrong { inner: host.clock(), caches: caches.clone(), wrong };
    let interrupts = interrupts.then_some(&mut count as &mut dyn FnMut() -> u32);
    let traffic = Traffic { port: 1, requests, timeout: Duration::from_millis(50), interrupts };
    check_traffic(&mut verbs, &clock, buffer, traffic).map(|(_, report)| report)
}

#[test]
fn a_platform_that_is_right_passes() {
    for interrupts in [false, true] {
        let report = run(Wrong::Nothing, 300, interrupts).unwrap();
        assert_eq!((report.requests, report.events), (300, 300));
        assert!(report.bytes > 1 << 20, "{report:?}");
    }
}

#[test]
fn a_platform_that_is_wrong_is_named() {
    type Found = fn(TrafficFault) -> bool;
    let cases: [(Wrong, Found); 8] = [
        (Wrong::NoRelease, |fault| {
            matches!(fault, TrafficFault::NoCompletion { .. } | TrafficFault::Differs { .. } | TrafficFault::Status { .. })
        }),
        (Wrong::NoAcquire, |fault| matches!(fault, TrafficFault::Differs { .. })),
        (Wrong::NoDoorbell, |fault| matches!(fault, TrafficFault::NoCompletion { .. } | TrafficFault::NoEvent { .. })),
        (Wrong::NoWord, |fault| matches!(fault, TrafficFault::NoInterrupt { .. })),
        (Wrong::NoRecord, |fault| matches!(fault, TrafficFault::NoCompletion { .. } | TrafficFault::NoEvent { .. })),
        // The driver refuses extents that do not begin at a page.
        (Wrong::ExtentOff, |fault| matches!(fault, TrafficFault::Refused { step: Step::RegMr, .. })),
        (Wrong::HalvesSwapped, |fault| matches!(fault, TrafficFault::Differs { .. })),
        (Wrong::BufferIsCopy, |fault| matches!(fault, TrafficFault::Differs { request: 0, .. })),
    ];
    for (wrong, is_found) in cases {
        let fault = run(wrong, 300, true).expect_err(&format!("{wrong:?} was not found"));
        assert!(is_found(fault), "{wrong:?} gave {fault:?}");
        assert!(!fault.to_string().is_empty());
    }
}

/// What it cannot run with is said, and is no fault of the platform.
#[test]
fn what_traffic_needs_is_named() {
    let (_world, host, _) = World::pair(WorldConfig::default());
    let driver = Mlx5::<SimPlatform, 512>::bring_up(host.machine(Mlx5::<SimPlatform, 512>::ARENA), &Config::DEFAULT)
        .map_err(|(error, _)| error)
        .unwrap();
    let rings = QpRings::<64, 16>::new();
    let mut tables = <storage![Mlx5<SimPlatform, 512>; pds: 1, mrs: 1, cqs: 1, qps: 1]>::new([rings.view()]);
    let mut verbs = Verbs::new(driver, &mut tables);
    let traffic = || Traffic { port: 1, requests: 1, timeout: Duration::from_secs(1), interrupts: None };
    let clock = host.clock();
    let short = check_traffic(&mut verbs, &clock, host.memory(512).whole(), traffic()).map(|(_, report)| report);
    assert_eq!(short, Err(TrafficFault::Short { len: 512 }));
    let early = check_traffic(&mut verbs, &clock, host.memory(4096).whole(), traffic()).map(|(_, report)| report);
    assert!(matches!(early, Err(TrafficFault::Port { .. })), "{early:?}");
    verbs.wait_active(1, Duration::from_secs(60)).unwrap();
    let none = check_traffic(&mut verbs, &clock, host.memory(4096).whole(), Traffic { port: 9, ..traffic() })
        .map(|(_, report)| report);
    assert!(matches!(none, Err(TrafficFault::Refused { step: Step::QueryPort, .. })), "{none:?}");
    verbs.alloc_pd().unwrap();
    let full = check_traffic(&mut verbs, &clock, host.memory(4096).whole(), traffic()).map(|(_, report)| report);
    assert_eq!(full, Err(TrafficFault::Refused { step: Step::AllocPd, errno: bareverbs::error::Errno::Enomem }));
}

/// An Ethernet port, over RoCEv2.
#[test]
fn an_ethernet_port_has_a_loopback_too() {
    let world = World::new(WorldConfig::default());
    let host = world.add(DeviceConfig::with_lid(1).with_ethernet()).unwrap();
    type Card = Mlx5<SimPlatform, 512>;
    let driver = Card::bring_up(host.machine(Card::ARENA), &Config::DEFAULT).map_err(|(error, _)| error).unwrap();
    let rings = QpRings::<64, 16>::new();
    let mut tables = <storage![Card; pds: 1, mrs: 1, cqs: 1, qps: 1]>::new([rings.view()]);
    let mut verbs = Verbs::new(driver, &mut tables);
    let mac = verbs.wait_active(1, Duration::from_secs(60)).unwrap().mac;
    verbs.set_gid(1, 0, &GidEntry::link_local(mac)).unwrap();
    let traffic = Traffic { port: 1, requests: 60, timeout: Duration::from_secs(1), interrupts: None };
    let (_, report) = check_traffic(&mut verbs, &host.clock(), host.memory(BUFFER).whole(), traffic).unwrap();
    assert_eq!((report.requests, report.events), (60, 60));
}
