//! Event queues.

use bareverbs::{DmaFence, DmaMemory, DmaRing, Platform, Registers, RingLayout, RingView, WordRegister};
use bareverbs_mlx5_spec::{
    Buffer, CmdOpcode, CreateEqIn, EQE, EqDoorbell, Eqc, Eqe, EventType, Layout, UAR_EQ_ARM, UAR_EQ_UPDATE, View, cmd,
};

use crate::command::object::ObjectMemory;
use crate::dma::arena::PAGE;
use crate::driver::Driver;
use crate::error::{Error, PackedError};
use crate::log::log_event;
use crate::ring::owner_matches;

/// Minimum and maximum log2 of the entries.
const LOG_SIZE: core::ops::RangeInclusive<u32> = 6..=16;

/// Ring and doorbell registers of an event queue.
pub(crate) struct EqIo<P: Platform> {
    ring: <P::Memory as DmaMemory>::Ring,
    update: <P::Registers as Registers>::Word,
    arm: <P::Registers as Registers>::Word,
    fence: P::Fence,
}

/// What the destruction of an event queue needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EqInfo {
    pub(crate) number: u8,
    /// Interrupt vector.
    pub(crate) vector: u16,
    memory: ObjectMemory,
}

/// An event queue.
pub(crate) struct Eq<P: Platform> {
    io: EqIo<P>,
    pub(crate) info: EqInfo,
    log_size: u32,
    /// Entries taken so far.
    consumer: u32,
    /// Consumer index that was reported to the device.
    reported: u32,
    /// Whether the device will raise an interrupt for the entry after `reported`.
    armed: bool,
    /// Entries taken since the queue was last found empty.
    streak: u32,
}

/// A copy of an entry.
pub(crate) type Entry = [u8; EQE];

/// Words of an entry.
const WORDS: u32 = (EQE / 8) as u32;

impl<P: Platform> Eq<P> {
    /// Returns a queue whose `1 << log_size` entries belong to the device.
    pub(crate) fn new(io: EqIo<P>, info: EqInfo, log_size: u32) -> Self {
        Self { io, info, log_size, consumer: 0, reported: 0, armed: false, streak: 0 }
    }

    /// Takes the next entry, if the device has written it.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let ring = self.io.ring.view();
        let first = self.consumer.wrapping_mul(WORDS);
        let last = u64::from_be(ring.word(first.wrapping_add(WORDS - 1)));
        if !owner_matches(Eqe::OWNER, last, self.consumer, self.log_size) {
            self.streak = 0;
            return None;
        }
        self.io.fence.acquire();
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
            let value = self.report();
            self.io.update.write(value);
            self.io.fence.flush();
            self.armed = false;
        }
    }

    /// Reports the consumer index to the device and requests an interrupt for the next entry.
    pub(crate) fn arm(&mut self) {
        if self.armed && self.reported == self.consumer {
            return;
        }
        let value = self.report();
        self.io.arm.write(value);
        self.io.fence.flush();
        self.armed = true;
    }

    fn report(&mut self) -> u32 {
        // The entries are read before the device may overwrite them.
        self.io.fence.read_before_write();
        self.reported = self.consumer;
        let number = EqDoorbell::EQN.place(u32::from(self.info.number));
        (number | EqDoorbell::CONSUMER_INDEX.place(self.consumer)).to_be()
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

impl<P: Platform> Driver<P> {
    /// Creates an event queue for the given types that interrupts with `vector`.
    pub(crate) fn create_eq(&mut self, entries: u32, types: &[EventType], vector: u16) -> Result<Eq<P>, PackedError> {
        let log_size = entries.max(1).next_power_of_two().trailing_zeros();
        if !LOG_SIZE.contains(&log_size) {
            return Err(Error::LimitExceeded { limit: 1 << LOG_SIZE.end() }.pack());
        }
        let uar_page = self.uar.page().ok_or(Error::NotInitialized.pack())?;
        // 64 entries are a page: the pages are the queue.
        let memory = self.allocate_memory((EQE << log_size).div_ceil(PAGE) as u32, false)?;
        let made = self.create_eq_in(memory, log_size, types, vector, uar_page);
        made.inspect_err(|error| self.release_memory(memory, *error))
    }

    /// Returns the queue's ring and registers.
    fn open_eq(&self, memory: ObjectMemory, log_size: u32) -> Result<EqIo<P>, PackedError> {
        let base = self.uar.base()?;
        // An event queue has no record; nothing is written to the one that its span names.
        let at = memory.at();
        let span = RingLayout::new(at, EQE << log_size, at).ok_or(Error::OutOfRange { offset: at }.pack())?;
        Ok(EqIo {
            ring: self.machine.memory.ring(&span)?,
            update: self.machine.registers.word(base + UAR_EQ_UPDATE)?,
            arm: self.machine.registers.word(base + UAR_EQ_ARM)?,
            fence: self.machine.fence.clone(),
        })
    }

    fn create_eq_in(
        &mut self,
        memory: ObjectMemory,
        log_size: u32,
        types: &[EventType],
        vector: u16,
        uar_page: u32,
    ) -> Result<Eq<P>, PackedError> {
        let io = self.open_eq(memory, log_size)?;
        for index in 0..1usize << log_size {
            self.machine.memory.write(memory.at() + index * EQE + EQE - 1, &[Eqe::OWNER.place(1) as u8])?;
        }
        let mut mask = [0u8; 32];
        for event in types {
            // 256 bits as one big-endian number of 64 bits after the other.
            let bit = event.code() as usize;
            if let Some(byte) = mask.get_mut(bit / 64 * 8 + 7 - bit % 64 / 8) {
                *byte |= 1 << (bit % 8);
            }
        }
        let mut input = Buffer::zeroed();
        let mut view = input.view_mut();
        view.set_bytes(CreateEqIn::EVENT_BITMASK, &mask);
        view.sub(CreateEqIn::EQ_CONTEXT_ENTRY)
            .set(Eqc::LOG_EQ_SIZE, log_size)
            .set(Eqc::UAR_PAGE, uar_page)
            .set(Eqc::INTR, u32::from(vector));
        let number = self.create::<cmd::CreateEq>(input.view(), memory)? as u8;
        log_event!(debug, "event queue {} of {} entries, vector {}", number, 1u32 << log_size, vector);
        Ok(Eq::new(io, EqInfo { number, vector, memory }, log_size))
    }

    /// Returns a queue without a device.
    #[cfg(test)]
    pub(crate) fn eq_for_tests(&self, range: crate::dma::arena::PageRange, log_size: u32, vector: u16) -> Eq<P> {
        let memory = ObjectMemory::new(Some(range), None);
        Eq::new(self.open_eq(memory, log_size).unwrap(), EqInfo { number: 1, vector, memory }, log_size)
    }

    /// Destroys an event queue.
    pub(crate) fn destroy_eq(&mut self, eq: &EqInfo) -> Result<(), PackedError> {
        self.destroy_untracked(CmdOpcode::DestroyEq, u32::from(eq.number), eq.memory)?;
        log_event!(debug, "event queue {} is gone", eq.number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::mock::{Done, MockPlatform, Shared, driver};

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
        let (mut driver, shared) = driver();
        driver.uar = crate::dma::uar::Uar::at(4, 0, false);
        let view: &mut Driver<MockPlatform> = &mut driver;
        let range = view.arena.allocate(1).unwrap();
        let memory = ObjectMemory::new(Some(range), None);
        let io = view.open_eq(memory, 6).unwrap();
        for back in 1..=64 {
            put(&shared, start.wrapping_sub(back), 0x77);
        }
        let info = EqInfo { number: 9, vector: 0, memory };
        (Eq { io, info, log_size: 6, consumer: start, reported: start, armed: true, streak: 0 }, shared)
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
