//! Completion queues.

mod resize;
pub(crate) mod ring;

use bareverbs::CqModeration;
use bareverbs::platform::{DmaMemory, Platform, Registers};
use bareverbs_mlx5_spec::{
    Buffer, Cqc, Cqe, CqeOpcode, CreateCqIn, ModifyCqIn, QueryCqIn, QueryCqOut, UAR_CQ_ARM, UAR_PAGE, cmd,
};

use crate::config::CqeSize;
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;
use crate::object::Object;
use crate::ring::open_ring;
use ring::{Mlx5CqRing, RingSize, Shape};

impl<P: Platform> Driver<P> {
    /// Creates a completion queue of at least `entries` entries: the queue, its vector, and its ring.
    #[inline]
    pub(crate) fn create_cq(&mut self, entries: u32, cqe_size: CqeSize) -> Result<(Object, u16, Mlx5CqRing<P>), Error> {
        let size = RingSize::new(self.log_cq_size(entries)?, cqe_size);
        self.in_memory(size.bytes(), true, |this, memory| {
            let record = memory.record;
            let ring = this.empty_ring(memory.ring.at(), size, record)?;
            let doorbell = this.commands.machine.registers.doorbell(this.uar as usize * UAR_PAGE + UAR_CQ_ARM, 1)?;
            let turn = this.assigned.checked_rem(this.completion_eqs.len());
            let (eq, vector) = *turn.and_then(|turn| this.completion_eqs.get(turn)).ok_or(Error::NotInitialized)?;
            this.assigned = this.assigned.wrapping_add(1);
            let mut input = Buffer::zeroed();
            let mut view = input.view_mut();
            view.sub(CreateCqIn::CQ_CONTEXT)
                .set(Cqc::LOG_CQ_SIZE, size.log_size())
                .set(Cqc::CQE_SZ, cqe_size.log_blocks())
                .set(Cqc::UAR_PAGE, this.uar)
                .set(Cqc::C_EQN_OR_APU_ELEMENT, eq.number)
                .set64(Cqc::DBR_ADDR, this.commands.arena.addr(record));
            let cq = this.commands.make::<cmd::CreateCq, cmd::DestroyCq>(input.view(), memory)?;
            let cqn = cq.number;
            log_event!(debug, "completion queue {:x} of {} entries, event queue {}", cqn, 1u32 << size.log_size(), eq.number);
            let (user_index, ethernet) = (this.caps.user_index, this.caps.is_ethernet());
            let shape = Shape { cqn, size, user_index, combining: this.config.blue_flame, ethernet };
            let ring = Mlx5CqRing::new(ring, doorbell, this.commands.machine.fence.clone(), shape);
            this.cqs = this.cqs.wrapping_add(1);
            Ok((cq, vector, ring))
        })
    }

    /// Returns the log of the entries of a queue with at least `entries`.
    fn log_cq_size(&self, entries: u32) -> Result<u32, Error> {
        let most = self.attr.max_cqe;
        if entries > most {
            return Err(Error::LimitExceeded { limit: most });
        }
        Ok(entries.max(1).next_power_of_two().trailing_zeros())
    }

    /// Marks each entry of a ring at byte `at` as not written yet, and opens it.
    fn empty_ring(&mut self, at: usize, size: RingSize, record: usize) -> Result<<P::Memory as DmaMemory>::Ring, Error> {
        let memory = &mut self.commands.machine.memory;
        for index in 0..1 << size.log_size() {
            memory.write(at + size.place(index) + Cqe::OP_OWN, &[Cqe::op_own(CqeOpcode::Invalid, 1)])?;
        }
        open_ring(memory, at, size.bytes(), record)
    }

    pub(crate) fn modify_cq(&mut self, cq: &Object, moderation: CqModeration) -> Result<(), Error> {
        self.commands.perform::<cmd::ModifyCq>(|input| {
            let mut context = input.sub(ModifyCqIn::CQ_CONTEXT);
            context.set(Cqc::CQ_PERIOD, moderation.period.into()).set(Cqc::CQ_MAX_COUNT, moderation.count.into());
            // The period and the count (Linux `MLX5_CQ_MODIFY_PERIOD`, `MLX5_CQ_MODIFY_COUNT`).
            input.set(ModifyCqIn::CQN, cq.number).set(ModifyCqIn::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT, 0b11)
        })
    }

    pub(crate) fn query_cq(&mut self, cq: &Object) -> Result<bool, Error> {
        let output = self.commands.query::<cmd::QueryCq>(|input| input.set(QueryCqIn::CQN, cq.number))?;
        // 9: it has overrun. 10: a completion could not be written (`mlx5_ifc.h`, `cqc_bits`).
        Ok(output.view().sub(QueryCqOut::CQ_CONTEXT).get(Cqc::STATUS) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::mock::{opcode_of, respond, started};

    const SIZES: &[CqeSize] = &[
        CqeSize::Bytes64,
        #[cfg(feature = "large-completions")]
        CqeSize::Bytes128,
    ];

    /// Entries lie one behind the other, and after the last is the first again; a completion is the last 64 bytes of its entry.
    #[test]
    fn completions_lie_one_behind_the_other() {
        for (log_entry, &cqe_size) in (6..).zip(SIZES) {
            for log_size in 0..=12 {
                let size = RingSize::new(log_size, cqe_size);
                let entry = 1_usize << log_entry;
                assert_eq!(size.bytes(), entry << log_size);
                let mut at = 0;
                // From a round before the wrap on.
                for counter in ((1_u64 << 32) - (1 << 13)..(1 << 32) + (1 << 13)).step_by(if cfg!(miri) { 1 << 12 } else { 1 })
                {
                    if cfg!(miri) {
                        at = 0;
                    }
                    assert_eq!(size.place(counter as u32), at + entry - 64, "{counter:#x} of 2^{log_size}");
                    at = if at + entry == size.bytes() { 0 } else { at + entry };
                }
            }
        }
    }

    /// The least power of two that is enough, or a refusal.
    #[test]
    fn a_queue_has_the_fewest_entries_that_are_enough() {
        let (mut driver, _shared) = started();
        let driver: &mut Driver<_> = &mut driver;
        driver.attr.max_cqe = 1 << 16;
        let (mut log, mut size) = (0, 1);
        for entries in 0..=1 << 16 {
            if entries > size {
                (log, size) = (log + 1, size * 2);
            }
            assert_eq!(driver.log_cq_size(entries), Ok(log), "{entries}");
        }
        for entries in [(1 << 16) + 1, 1 << 17, 1 << 31, u32::MAX] {
            assert_eq!(driver.log_cq_size(entries), Err(Error::LimitExceeded { limit: 1 << 16 }));
        }
    }

    /// By `modify_cq_in` and `cqc` of `mlx5_ifc.h`: cqn at 9, the fields to be changed at 12, the context at 16. It has cq_period, of 12 bits,
    /// at 16 and cq_max_count at 18.
    #[test]
    fn moderation_is_set_by_modify_cq() {
        let (mut driver, shared) = started();
        let sent = std::rc::Rc::new(core::cell::Cell::new(false));
        let note = sent.clone();
        respond(&shared, move |input, _| {
            assert_eq!((opcode_of(input), &input[4..16]), (0x403, &[0, 0, 0, 0, 0, 0x12, 0x34, 0x56, 0, 0, 0, 3][..]));
            assert_eq!(input[32..36], [0x0a, 0xbc, 0xde, 0xf1]);
            assert!(input[16..32].iter().chain(&input[36..]).all(|byte| *byte == 0), "nothing else");
            note.set(true);
        });
        let driver: &mut Driver<_> = &mut driver;
        let cq = Object::of::<cmd::DestroyCq>(0x12_3456, Default::default());
        driver.modify_cq(&cq, CqModeration { count: 0xdef1, period: 0xabc }).unwrap();
        assert!(sent.get());
    }
}
