//! One simulated world in several threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant as WallClock};

use bareverbs::platform::{Clock, DmaFence, DmaMemory, Instant, OutOfRange, Registers};
use bareverbs_sim::host_memory::HostMemory;
use bareverbs_sim::in_process::{Host, MemoryMap, OrderLog, SimClock, SimFence, SimMemory, SimRegisters, World, WorldConfig};

/// Maximum time that a thread waits for another one.
const THREAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `done` until it says so.
fn wait_until(mut done: impl FnMut() -> bool) {
    let start = WallClock::now();
    while !done() {
        assert!(start.elapsed() < THREAD_TIMEOUT, "the other thread makes no progress");
        thread::yield_now();
    }
}

/// A command queue with one slot in use.
struct CommandQueue {
    registers: SimRegisters,
    memory: SimMemory,
    fence: SimFence,
    clock: SimClock,
}

impl CommandQueue {
    /// The first bytes of a NOP: type 7, 16 bytes of input that begin with the opcode.
    const NOP: [u8; 18] = [7, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0x08, 0x0d];

    fn new(host: &Host) -> Self {
        let (mut registers, memory) = (host.registers(), host.memory(4096));
        registers.write32(0x10, ((memory.device_addr() >> 32) as u32).to_be()).unwrap();
        registers.write32(0x14, (memory.device_addr() as u32).to_be()).unwrap();
        Self { registers, memory, fence: host.fence(), clock: host.clock() }
    }

    /// Posts a NOP and waits, without letting anything work, until it is done.
    fn nop(&mut self) {
        let mut entry = [0; 64];
        entry[..18].copy_from_slice(&Self::NOP);
        // What the device has to write over before it gives the entry back.
        entry[32..48].fill(0xee);
        entry[59] = 16;
        self.memory.write(0, &entry).unwrap();
        self.fence.release();
        self.memory.write(63, &[1]).unwrap();
        self.fence.release();
        self.registers.write32(0x18, 1_u32.to_be()).unwrap();
        let mut last = self.clock.now();
        wait_until(|| {
            let now = self.clock.now();
            assert!(last < now, "time passes");
            last = now;
            self.memory.read_u8(63).unwrap() & 1 == 0
        });
        self.fence.acquire();
        self.memory.read(0, &mut entry).unwrap();
        assert_eq!(entry[32..40], [0; 8], "status and syndrome are there when the owner bit is");
    }
}

fn relax_until_initialized(host: &Host) {
    while u32::from_be(host.registers().read32(0x1fc).unwrap()) >> 31 != 0 {
        host.clock().relax(Instant::default());
    }
}

#[test]
fn everything_of_a_host_goes_to_any_thread() {
    fn shareable<T: Send + Sync>() {}
    shareable::<(World, Host, SimRegisters, SimMemory, SimFence, SimClock, MemoryMap, OrderLog)>();
}

#[test]
fn commands_of_two_threads_while_a_third_lets_the_world_work() {
    const ROUNDS: usize = 3000;
    let (_, first, second) = World::pair(WorldConfig::default());
    relax_until_initialized(&first);
    relax_until_initialized(&second);
    let commands = |host: &Host| host.with_device(|device| device.stats().commands);
    let before = [&first, &second].map(commands);
    thread::scope(|scope| {
        let threads = [&first, &second].map(|host| {
            scope.spawn(move || {
                let mut queue = CommandQueue::new(host);
                for _ in 0..ROUNDS {
                    queue.nop();
                }
            })
        });
        let clock = first.clock();
        wait_until(|| {
            clock.relax(Instant::default());
            threads.iter().all(|thread| thread.is_finished())
        });
    });
    let after = [&first, &second].map(commands);
    assert_eq!(after, before.map(|count| count + ROUNDS as u64));
    for host in [first, second] {
        assert!(host.with_device(|device| device.audit().findings().is_empty()));
    }
}

/// Runs `access` while another thread has locked the world of `host`; it must not return before that thread unlocks it.
fn waits_for_the_world<R>(host: &Host, access: impl FnOnce() -> R) -> R {
    let (held, is_held) = mpsc::channel();
    let released = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            host.with_device(|_| {
                held.send(()).unwrap();
                // Long enough for the access to be refused, if it were.
                thread::sleep(Duration::from_millis(50));
                released.store(true, Ordering::Relaxed);
            });
        });
        is_held.recv().unwrap();
        let result = access();
        assert!(released.load(Ordering::Relaxed), "it has waited");
        result
    })
}

#[test]
fn an_access_waits_for_the_thread_that_locked_the_world() {
    let (world, host, other) = World::pair(WorldConfig::default());
    assert!(waits_for_the_world(&host, || other.registers().read32(0)).is_ok());
    assert!(waits_for_the_world(&host, || other.registers().write32(0x800, 0)).is_ok());
    assert!(waits_for_the_world(&host, || other.with_device(|device| device.config().link_up)));
    let before = world.now();
    waits_for_the_world(&host, || other.clock().relax(Instant::default()));
    assert!(world.now() > before);
}

#[test]
fn a_thread_that_locked_the_world_is_refused_and_does_not_wait_for_itself() {
    let (world, host, other) = World::pair(WorldConfig::default());
    host.with_device(|_| {
        let size = host.registers().len();
        assert_eq!(other.registers().read32(8), Err(OutOfRange { offset: 8, len: 4, size }));
        assert_eq!(host.registers().write32(0x800, 0), Err(OutOfRange { offset: 0x800, len: 4, size }));
        let now = world.now();
        host.clock().relax(Instant::default());
        assert_eq!(world.now(), now, "relaxing does nothing");
        assert!(host.clock().now() > now);
        assert!(catch_unwind(AssertUnwindSafe(|| world.work())).is_err());
    });
    assert!(catch_unwind(AssertUnwindSafe(|| host.with_device(|_| world.work()))).is_err());
    world.work();
    assert!(host.registers().read32(8).is_ok(), "the world is free again");
}

#[test]
fn writes_to_parts_of_one_word_do_not_undo_each_other() {
    const ROUNDS: u32 = 200_000;
    let memory = SimMemory::new(0x1000, 64);
    let map = MemoryMap::default();
    assert!(map.map(&memory));
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        // Two doorbell records of one word.
        for at in [0, 4] {
            let (mut memory, barrier) = (memory.clone(), &barrier);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..ROUNDS {
                    memory.store_u32(at, round).unwrap();
                    let mut seen = [0; 4];
                    memory.read(at, &mut seen).unwrap();
                    assert_eq!(u32::from_ne_bytes(seen), round, "record at {at}");
                }
            });
        }
        // The host and the device, each some bytes of the next two words.
        let (mut host, device, barrier) = (memory.clone(), &map, &barrier);
        scope.spawn(move || {
            barrier.wait();
            for round in 0..ROUNDS {
                let bytes = [round as u8; 7];
                host.write(13, &bytes).unwrap();
                let mut seen = [0; 7];
                host.read(13, &mut seen).unwrap();
                assert_eq!(seen, bytes);
            }
        });
        scope.spawn(move || {
            barrier.wait();
            for round in 0..ROUNDS {
                let bytes = [round as u8; 4];
                for addr in [0x1008, 0x1014] {
                    device.write(addr, &bytes).unwrap();
                    let mut seen = [0; 4];
                    device.read(addr, &mut seen).unwrap();
                    assert_eq!(seen, bytes, "at {addr:#x}");
                }
            }
        });
    });
}

#[test]
fn memories_of_one_host_from_two_threads_do_not_overlap() {
    let (_, host, _) = World::pair(WorldConfig::default());
    let allocate = || (0..500).map(|_| host.memory(100)).collect::<Vec<_>>();
    let mut memories = thread::scope(|scope| {
        let threads = [scope.spawn(allocate), scope.spawn(allocate)];
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    memories.sort_by_key(SimMemory::device_addr);
    assert!(memories.windows(2).all(|pair| pair[0].device_addr() + 0x2000 <= pair[1].device_addr()));
    for memory in memories {
        host.memory_map().write(memory.device_addr(), &[7]).unwrap();
        assert_eq!(memory.read_u8(0), Ok(7));
    }
}
