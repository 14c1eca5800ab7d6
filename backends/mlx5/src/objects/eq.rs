//! Creation of event queues.

use bareverbs::platform::{DmaMemory, Platform};
use bareverbs_mlx5_spec::{Buffer, CreateEqIn, EQE, Eqc, Eqe, EventType, UAR_PAGE, cmd};

use crate::driver::Driver;
use crate::error::Error;
use crate::events::eq::Eq;
use crate::log::log_event;

/// Minimum number of entries, and log2 of the maximum.
const MIN_ENTRIES: u32 = 64;
const MAX_LOG_SIZE: u32 = 16;

impl<P: Platform> Driver<P> {
    /// Creates an event queue of at least `entries` for the given types that interrupts with `vector`, and arms it.
    #[inline(never)]
    pub(crate) fn create_eq(&mut self, entries: u32, types: &[EventType], vector: u16) -> Result<Eq<P>, Error> {
        let log_size = u32::BITS - (entries.max(MIN_ENTRIES) - 1).leading_zeros();
        if log_size > MAX_LOG_SIZE {
            return Err(Error::LimitExceeded { limit: 1 << MAX_LOG_SIZE });
        }
        self.in_memory(EQE << log_size, false, |this, memory| {
            let mut eq = Eq::open(&this.commands.machine, this.uar as usize * UAR_PAGE, memory, log_size, vector)?;
            for index in 0..1usize << log_size {
                this.commands.machine.memory.write(memory.ring.at() + index * EQE + EQE - 1, &[Eqe::OWNER.place(1) as u8])?;
            }
            // 256 bits as one big-endian number of 64 bits after the other. The driver knows no event beyond the first.
            let mask = types.iter().fold(0_u64, |mask, event| mask | 1_u64.wrapping_shl(event.code()));
            let mut input = Buffer::zeroed();
            let mut view = input.view_mut();
            view.set_bytes(CreateEqIn::EVENT_BITMASK, &mask.to_be_bytes());
            view.sub(CreateEqIn::EQ_CONTEXT_ENTRY)
                .set(Eqc::LOG_EQ_SIZE, log_size)
                .set(Eqc::UAR_PAGE, this.uar)
                .set(Eqc::INTR, u32::from(vector));
            eq.object = this.commands.make::<cmd::CreateEq, cmd::DestroyEq>(input.view(), memory)?;
            log_event!(debug, "event queue {} of {} entries, vector {}", eq.object.number, 1u32 << log_size, vector);
            eq.arm();
            Ok(eq)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::vec::Vec;

    use super::*;
    use crate::tests::mock::{DEVICE_ADDR, MockPlatform, respond, started};

    /// By `create_eq_in` and `eqc` of `mlx5_ifc.h`: the context is at 16, with log_eq_size at 12, uar_page at 13 and intr, of 12 bits, at 22;
    /// event_bitmask is at 88, of whose 64 bits the first is the last; pages from 272 on. An entry belongs to the device if its last bit is 1.
    #[test]
    fn a_queue_is_the_bytes_of_its_structure_and_the_devices_own() {
        for (entries, log_size) in [(0, 6), (1, 6), (64, 6), (65, 7), (128, 7), (200, 8), (1024, 10)] {
            let (mut driver, shared) = started();
            let driver: &mut Driver<MockPlatform> = &mut driver;
            driver.uar = 5;
            let sent = Rc::new(RefCell::new(Vec::new()));
            let note = sent.clone();
            respond(&shared, move |input, output| {
                *note.borrow_mut() = input.to_vec();
                output[8..12].copy_from_slice(&9_u32.to_be_bytes());
            });
            // PAGE_REQUEST is 0xb, PORT_CHANGE 9.
            let eq = driver.create_eq(entries, &[EventType::PageRequest, EventType::PortChange], 0xabc).unwrap();
            let ring = eq.object.memory.ring;
            let mut expected = std::vec![0; 272];
            expected[0..2].copy_from_slice(&[3, 1]);
            expected[16 + 12..16 + 16].copy_from_slice(&[log_size, 0, 0, 5]);
            expected[16 + 22..16 + 24].copy_from_slice(&[0x0a, 0xbc]);
            expected[88..96].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x0a, 0]);
            let pages = (64_u64 << log_size).div_ceil(4096);
            expected.extend((0..pages).flat_map(|page| (DEVICE_ADDR + ring.at() as u64 + 4096 * page).to_be_bytes()));
            assert_eq!((&*sent.borrow(), eq.object.number, eq.vector), (&expected, 9, 0xabc), "{entries}");
            let memory = shared.borrow().memory[ring.at()..][..64 << log_size].to_vec();
            assert!(memory.chunks(64).all(|entry| entry[63] == 1 && entry[..63] == [0; 63]), "{entries}");
            // It is armed: number and consumer index at 0x40 of the UAR page.
            assert_eq!(shared.borrow().registers[5 * 4096 + 0x40..][..4], [9, 0, 0, 0]);
        }
        let (mut driver, _shared) = started();
        let driver: &mut Driver<MockPlatform> = &mut driver;
        assert_eq!(driver.create_eq(65_537, &[], 0).err(), Some(Error::LimitExceeded { limit: 65_536 }));
    }
}
