//! Event queues.

use bareverbs::{DmaFence, DmaMemory, OutOfRange, Platform, Registers};
use bareverbs_mlx5_spec::{
    CmdOpcode, CreateEqIn, EQE, EqDoorbell, Eqc, Eqe, EventType, Layout, UAR_EQ_ARM, UAR_EQ_UPDATE, View, ViewMut,
};

use crate::Machine;
use crate::command::late::ObjectMemory;
use crate::dma::arena::{PAGE, Run};
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;

/// Byte of an entry that holds its owner bit.
const OWNER: usize = 63;
/// Least and greatest log2 of the entries.
const LOG_SIZE: core::ops::RangeInclusive<u32> = 6..=16;

/// An event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Eq {
    number: u8,
    run: Run,
    log_size: u32,
    /// Entries taken so far.
    consumer: u32,
    /// Consumer index that the device knows.
    reported: u32,
    /// Whether the device will raise an interrupt for the entry after `reported`.
    armed: bool,
}

/// An entry as it was copied out.
pub(crate) type Entry = [u8; EQE];

impl Eq {
    /// The queue with that number, whose `1 << log_size` entries in `run` belong to the device.
    pub(crate) const fn new(number: u8, run: Run, log_size: u32) -> Self {
        Self { number, run, log_size, consumer: 0, reported: 0, armed: false }
    }

    /// Takes the next entry, if the device has written it.
    pub(crate) fn pop<P: Platform>(&mut self, machine: &mut Machine<P>) -> Result<Option<Entry>, OutOfRange> {
        let index = self.consumer & ((1 << self.log_size) - 1);
        let at = self.run.at() + index as usize * EQE;
        let owner = machine.memory.read_u8(at + OWNER)?;
        if u32::from(owner) & 1 != (self.consumer >> self.log_size) & 1 {
            return Ok(None);
        }
        machine.fence.acquire();
        let mut entry = [0; EQE];
        machine.memory.read(at, &mut entry)?;
        self.consumer = self.consumer.wrapping_add(1);
        Ok(Some(entry))
    }

    /// Tells the device what was taken, if it might run out of entries otherwise.
    pub(crate) fn update_consumer_index<P: Platform>(
        &mut self,
        machine: &mut Machine<P>,
        uar: usize,
    ) -> Result<(), OutOfRange> {
        if self.consumer.wrapping_sub(self.reported) >= 1 << (self.log_size - 2) {
            self.report(machine, uar + UAR_EQ_UPDATE)?;
            self.armed = false;
        }
        Ok(())
    }

    /// Tells the device what was taken and asks for an interrupt at the next entry.
    pub(crate) fn arm<P: Platform>(&mut self, machine: &mut Machine<P>, uar: usize) -> Result<(), OutOfRange> {
        if self.armed && self.reported == self.consumer {
            return Ok(());
        }
        self.report(machine, uar + UAR_EQ_ARM)?;
        self.armed = true;
        Ok(())
    }

    fn report<P: Platform>(&mut self, machine: &mut Machine<P>, at: usize) -> Result<(), OutOfRange> {
        let value = EqDoorbell::EQN.place(u32::from(self.number)) | EqDoorbell::CONSUMER_INDEX.place(self.consumer);
        // What was read of the entries was read before the device may write them again.
        machine.fence.release();
        machine.registers.write32(at, value.to_be())?;
        machine.fence.flush();
        self.reported = self.consumer;
        Ok(())
    }

    /// Number.
    pub(crate) const fn number(&self) -> u8 {
        self.number
    }
}

/// Type of an entry; `None` for one that the specification does not list.
pub(crate) fn event_type(entry: &Entry) -> Option<EventType> {
    EventType::from_code(View::<Eqe>::of(entry).get(Eqe::EVENT_TYPE))
}

/// Data of an entry as its layout `L` of 28 bytes has it.
pub(crate) fn event_data<L: Layout>(entry: &Entry) -> [u8; 28] {
    const { assert!(L::SIZE == 28, "event data has 28 bytes") };
    let bytes = View::<Eqe>::of(entry).bytes(Eqe::EVENT_DATA);
    bytes.first_chunk().copied().unwrap_or([0; 28])
}

impl<P: Platform> Driver<P> {
    /// Makes an event queue for the given types that interrupts with `vector`.
    pub(crate) fn create_eq(&mut self, entries: u32, types: &[EventType], vector: u16) -> Result<Eq, Error> {
        let log_size = entries.max(1).next_power_of_two().trailing_zeros();
        if !LOG_SIZE.contains(&log_size) {
            return Err(Error::LimitExceeded { requested: u64::from(entries), limit: 1 << LOG_SIZE.end() });
        }
        let uar_page = self.uar.page().ok_or(Error::NotInitialized)?;
        let bytes = (1usize << log_size) * EQE;
        let run = self.allocate_cleared(bytes.div_ceil(PAGE) as u32)?;
        let result = self.create_eq_command(run, log_size, types, vector, uar_page);
        match result {
            Ok(number) => Ok(Eq::new(number, run, log_size)),
            Err(error) => {
                self.release_run(run, error);
                Err(error)
            }
        }
    }

    fn create_eq_command(
        &mut self,
        run: Run,
        log_size: u32,
        types: &[EventType],
        vector: u16,
        uar_page: u32,
    ) -> Result<u8, Error> {
        for index in 0..1usize << log_size {
            self.machine.memory.write(run.at() + index * EQE + OWNER, &[1])?;
        }
        let mut mask = [0u8; 32];
        for event in types {
            // 256 bits as one big-endian number of 64 bits after the other.
            let bit = event.code() as usize;
            if let Some(byte) = mask.get_mut(bit / 64 * 8 + 7 - bit % 64 / 8) {
                *byte |= 1 << (bit % 8);
            }
        }
        let mut input = [0; CreateEqIn::SIZE];
        let mut view = ViewMut::<CreateEqIn>::of(&mut input);
        view.set_bytes(CreateEqIn::EVENT_BITMASK, &mask);
        view.sub(CreateEqIn::EQ_CONTEXT_ENTRY)
            .set(Eqc::LOG_EQ_SIZE, log_size)
            .set(Eqc::UAR_PAGE, uar_page)
            .set(Eqc::INTR, u32::from(vector));
        let mut pages = self.arena.page_addrs(run);
        let memory = ObjectMemory::new(Some(run), None);
        let number = self.create(CmdOpcode::CreateEq, &input, &mut pages, run.pages() as usize, memory)? as u8;
        log_event!(debug, "event queue {} of {} entries, vector {}", number, 1u32 << log_size, vector);
        Ok(number)
    }

    /// Destroys an event queue.
    pub(crate) fn destroy_eq(&mut self, eq: &Eq) -> Result<(), Error> {
        let memory = ObjectMemory::new(Some(eq.run), None);
        self.destroy_for_good(CmdOpcode::DestroyEq, u32::from(eq.number), memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Done, Shared, machine};

    /// The device writes entry `index` of a queue of 64 at the start of the memory.
    fn put(shared: &Shared, index: u32, event: u8) {
        let at = (index & 63) as usize * EQE;
        let mut entry = [0; EQE];
        entry[1] = event;
        entry[63] = (index >> 6 & 1) as u8;
        shared.borrow_mut().memory[at..at + EQE].copy_from_slice(&entry);
    }

    #[test]
    fn entries_are_taken_once_each_and_told_before_the_device_runs_out() {
        let mut arena = crate::dma::arena::Arena::<[crate::dma::arena::PageUse; 1]>::new(0, 0);
        let view: &mut crate::dma::arena::Arena = &mut arena;
        let run = view.allocate(1).unwrap();
        for start in [0u32, 63, 0xff_ffe0, 0xffff_ffe0] {
            let (mut machine, shared) = machine();
            for back in 1..=64 {
                put(&shared, start.wrapping_sub(back), 0x77);
            }
            let mut eq = Eq { number: 9, run, log_size: 6, consumer: start, reported: start, armed: true };
            for step in 0..200u32 {
                let index = start.wrapping_add(step);
                assert_eq!(eq.pop(&mut machine).unwrap(), None);
                put(&shared, index, 0x0a);
                shared.borrow_mut().log.clear();
                let entry = eq.pop(&mut machine).unwrap().unwrap();
                assert_eq!((event_type(&entry), shared.borrow().log.first()), (Some(EventType::Cmd), Some(&Done::Acquire)));
                shared.borrow_mut().log.clear();
                eq.update_consumer_index(&mut machine, 0x4000).unwrap();
                let value = 9 << 24 | index.wrapping_add(1) & 0xff_ffff;
                let reported = [Done::Release, Done::Register(0x4048, value.to_be_bytes().to_vec()), Done::Flush];
                let expected: &[Done] = if step % 16 == 15 { &reported } else { &[] };
                assert_eq!(shared.borrow().log, expected, "a quarter of the queue at a time");
            }
            shared.borrow_mut().log.clear();
            eq.arm(&mut machine, 0x4000).unwrap();
            eq.arm(&mut machine, 0x4000).unwrap();
            let value = 9 << 24 | start.wrapping_add(200) & 0xff_ffff;
            let armed = [Done::Release, Done::Register(0x4040, value.to_be_bytes().to_vec()), Done::Flush];
            assert_eq!(shared.borrow().log, armed, "once");
        }
    }
}
