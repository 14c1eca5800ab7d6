//! Event queues.

use bareverbs::platform::{DmaFence, DmaMemory, DmaRing, Machine, Platform, Registers, RingView, WordRegister};
use bareverbs_mlx5_spec::{EQE, EqDoorbell, Eqe, EventType, Layout, UAR_EQ_ARM, UAR_EQ_UPDATE, View, cmd};

use crate::dma::arena::ObjectMemory;
use crate::error::Error;
use crate::object::Object;
use crate::ring::{open_ring, owner_matches};

pub(crate) struct Eq<P: Platform> {
    ring: <P::Memory as DmaMemory>::Ring,
    update: <P::Registers as Registers>::Word,
    arm: <P::Registers as Registers>::Word,
    fence: P::Fence,
    /// Its number is 0 until the device has it.
    pub(crate) object: Object,
    pub(crate) vector: u16,
    log_size: u32,
    consumer: u32,
    /// Consumer index that was reported to the device.
    reported: u32,
    /// Whether the device will raise an interrupt for the entry after `reported`.
    armed: bool,
    /// Entries taken since the queue was last found empty.
    streak: u32,
}

pub(crate) type Entry = [u8; EQE];

const WORDS: u32 = (EQE / 8) as u32;

impl<P: Platform> Eq<P> {
    /// Returns a queue whose `1 << log_size` entries belong to the device: the ring in its memory, and the registers in the UAR
    /// page at byte `uar` of the BAR.
    pub(crate) fn open(
        machine: &Machine<P>,
        uar: usize,
        memory: ObjectMemory,
        log_size: u32,
        vector: u16,
    ) -> Result<Self, Error> {
        // An event queue has no record; nothing is written to the one that its layout names.
        let at = memory.ring.at();
        Ok(Self {
            ring: open_ring(&machine.memory, at, EQE << log_size, at)?,
            update: machine.registers.word(uar + UAR_EQ_UPDATE)?,
            arm: machine.registers.word(uar + UAR_EQ_ARM)?,
            fence: machine.fence.clone(),
            object: Object::of::<cmd::DestroyEq>(0, memory),
            vector,
            log_size,
            consumer: 0,
            reported: 0,
            armed: false,
            streak: 0,
        })
    }

    /// Takes the next entry, if the device has written it.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let ring = self.ring.view();
        let first = self.consumer.wrapping_mul(WORDS);
        let last = u64::from_be(ring.word(first.wrapping_add(WORDS - 1)));
        if !owner_matches(Eqe::OWNER, last, self.consumer, self.log_size) {
            self.streak = 0;
            return None;
        }
        self.fence.acquire();
        let mut entry = [0; EQE];
        for (word, chunk) in (0_u32..).zip(entry.as_chunks_mut::<8>().0) {
            *chunk = ring.word(first.wrapping_add(word)).to_ne_bytes();
        }
        self.consumer = self.consumer.wrapping_add(1);
        self.streak = self.streak.wrapping_add(1);
        Some(entry)
    }

    /// Returns once whether the queue was full, so that the device may have dropped entries: a whole ring of them was taken
    /// without finding the queue empty.
    pub(crate) fn overflowed(&mut self) -> bool {
        let full = self.streak >= 1 << self.log_size;
        if full {
            self.streak = 0;
        }
        full
    }

    /// Reports the consumer index to the device, if the device might range out of entries otherwise.
    pub(crate) fn update_consumer_index(&mut self) {
        if self.consumer.wrapping_sub(self.reported) >= 1 << (self.log_size - 2) {
            self.report(false);
        }
    }

    /// Reports the consumer index to the device and requests an interrupt for the next entry.
    pub(crate) fn arm(&mut self) {
        if !self.armed || self.reported != self.consumer {
            self.report(true);
        }
    }

    fn report(&mut self, arms: bool) {
        // The entries are read before the device may overwrite them.
        self.fence.read_before_write();
        let number = EqDoorbell::EQN.place(self.object.number);
        let register = if arms { &self.arm } else { &self.update };
        register.write((number | EqDoorbell::CONSUMER_INDEX.place(self.consumer)).to_be());
        self.fence.flush();
        (self.reported, self.armed) = (self.consumer, arms);
    }
}

/// Returns the type of an entry, `None` for one that the specification does not list.
pub(crate) fn event_type(entry: &Entry) -> Option<EventType> {
    EventType::from_code(View::<Eqe>::of(entry).get(Eqe::EVENT_TYPE))
}

/// Returns the data of an entry, with layout `L`.
pub(crate) fn event_data<L: Layout>(entry: &Entry) -> View<'_, L> {
    const { assert!(L::SIZE == Eqe::EVENT_DATA.len(), "event data has 28 bytes") };
    View::<Eqe>::of(entry).sub(Eqe::EVENT_DATA.as_sub())
}

#[cfg(test)]
mod tests {
    use bareverbs_mlx5_spec::UAR_PAGE;

    use super::*;
    use crate::dma::arena::{Arena, PageUse};
    use crate::tests::mock::{DEVICE_ADDR, Done, MockPlatform, PAGES, Shared, machine};

    /// Writes, as the device does, entry `index` of a queue of 64 at the start of the memory.
    fn put(shared: &Shared, index: u32, event: u8) {
        let at = (index & 63) as usize * EQE;
        let mut entry = [0; EQE];
        entry[1] = event;
        entry[63] = (index >> 6 & 1) as u8;
        shared.borrow_mut().memory[at..at + EQE].copy_from_slice(&entry);
    }

    /// Returns a queue of 64 entries, of which those before `start` were taken.
    fn queue(start: u32) -> (Eq<MockPlatform>, Shared) {
        let (machine, shared) = machine();
        let mut arena: Arena<[PageUse; PAGES]> = Arena::new(DEVICE_ADDR);
        let arena: &mut Arena = &mut arena;
        let memory = ObjectMemory { ring: arena.allocate(1).unwrap(), record: 0 };
        for back in 1..=64 {
            put(&shared, start.wrapping_sub(back), 0x77);
        }
        let eq = Eq::open(&machine, 4 * UAR_PAGE, memory, 6, 0).unwrap();
        (Eq { object: Object::of::<cmd::DestroyEq>(9, memory), consumer: start, reported: start, armed: true, ..eq }, shared)
    }

    #[test]
    fn entries_are_taken_once_each_and_reported_before_the_device_runs_out() {
        for start in [0u32, 63, 0xff_ffe0, 0xffff_ffe0] {
            let (mut eq, shared) = queue(start);
            for step in 0..200u32 {
                let index = start.wrapping_add(step);
                assert_eq!(eq.pop(), None);
                put(&shared, index, 0x0a);
                shared.borrow_mut().log.clear();
                let entry = eq.pop().unwrap();
                assert_eq!((event_type(&entry), shared.borrow().log.first()), (Some(EventType::Cmd), Some(&Done::Acquire)));
                shared.borrow_mut().log.clear();
                eq.update_consumer_index();
                let value = 9 << 24 | index.wrapping_add(1) & 0xff_ffff;
                let written = Done::Register(0x4048, value.to_be_bytes().to_vec());
                let reported = [Done::ReadBeforeWrite, written, Done::Flush];
                let expected: &[Done] = if step % 16 == 15 { &reported } else { &[] };
                assert_eq!(shared.borrow().log, expected, "a quarter of the queue at a time");
            }
            shared.borrow_mut().log.clear();
            eq.arm();
            eq.arm();
            let value = 9 << 24 | start.wrapping_add(200) & 0xff_ffff;
            let written = Done::Register(0x4040, value.to_be_bytes().to_vec());
            assert_eq!(shared.borrow().log, [Done::ReadBeforeWrite, written, Done::Flush], "once");
        }
    }

    /// A queue of each small size from each start about each wrap, beside the counters of the device, which writes as many entries as there is
    /// room for.
    #[test]
    fn a_queue_of_every_size_is_taken_in_order_and_never_runs_full() {
        for log_size in 2..=8 {
            let size = 1_u64 << log_size;
            let step = if cfg!(miri) { 301 } else { 1 + size as usize / 16 };
            for wrap in [1_u64 << 24, 1 << 32] {
                for start in (wrap - size - 2..=wrap + 1).step_by(step) {
                    let (machine, shared) = machine();
                    let mut arena: Arena<[PageUse; PAGES]> = Arena::new(DEVICE_ADDR);
                    let arena: &mut Arena = &mut arena;
                    let memory = ObjectMemory { ring: arena.allocate(4).unwrap(), record: 0 };
                    let eq = Eq::open(&machine, 4 * UAR_PAGE, memory, log_size, 0).unwrap();
                    let object = Object::of::<cmd::DestroyEq>(9, memory);
                    let mut eq = Eq { object, consumer: start as u32, reported: start as u32, ..eq };
                    let write = |index: u64, number: u8| {
                        let at = (index % size) as usize * EQE;
                        let memory = &mut shared.borrow_mut().memory;
                        memory[at + 40] = number;
                        memory[at + 63] = (index / size % 2) as u8;
                    };
                    for back in 1..=size {
                        write(start - back, 0x77);
                    }
                    let (mut written, mut taken, mut reported) = (start, start, start);
                    while taken < start + 3 * size {
                        // The device has room up to what was reported.
                        while written < reported + size {
                            write(written, written as u8);
                            written += 1;
                        }
                        let entry = eq.pop().unwrap();
                        assert_eq!(entry[40], taken as u8, "{taken:#x} of {size} from {start:#x}");
                        taken += 1;
                        shared.borrow_mut().log.clear();
                        eq.update_consumer_index();
                        // At each quarter of the ring, and not before.
                        let value = 9 << 24 | (taken % (1 << 24)) as u32;
                        let rung = shared.borrow().log.contains(&Done::Register(0x4048, value.to_be_bytes().to_vec()));
                        assert_eq!(rung, taken - reported == size / 4, "{taken:#x} of {size}");
                        if rung {
                            reported = taken;
                        }
                    }
                    while taken < written {
                        assert!(eq.pop().is_some());
                        taken += 1;
                    }
                    assert_eq!(eq.pop(), None, "the round before, {size} from {start:#x}");
                }
            }
        }
    }

    #[test]
    fn a_full_queue_is_reported_once() {
        let (mut eq, shared) = queue(0);
        for (entries, full) in [(63, false), (64, true), (64, true), (1, false)] {
            let start = eq.consumer;
            for index in 0..entries {
                put(&shared, start.wrapping_add(index), 0);
            }
            let mut overflows = 0;
            while eq.pop().is_some() {
                overflows += u32::from(eq.overflowed());
            }
            assert_eq!(overflows, u32::from(full), "{entries} entries");
        }
    }
}
