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
