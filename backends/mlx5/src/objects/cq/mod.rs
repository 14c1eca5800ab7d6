//! Completion queues.

mod resize;
pub(crate) mod ring;

use bareverbs::{Cqn, CreatedCq, DmaMemory, Platform, Registers};
use bareverbs_mlx5_spec::{Buffer, CQE, Cqc, Cqe, CqeOpcode, CreateCqIn, QueryCqIn, QueryCqOut, UAR_CQ_ARM, cmd};

use crate::dma::object_memory::ObjectMemory;
use crate::driver::Driver;
use crate::error::{Error, PackedError};
use crate::log::{format_as, log_event};
use crate::ring::open_ring;
use ring::{Mlx5CqRing, Shape};

/// A completion queue of this backend.
pub struct Cq {
    number: u32,
    memory: ObjectMemory,
}

format_as!([] Cq, "Cq({:x})", |this| this.number);

impl Cq {
    /// Returns its number.
    pub const fn cqn(&self) -> Cqn {
        Cqn::new(self.number)
    }

    /// Returns the memory that it lies in.
    #[cfg(feature = "ethernet")]
    pub(crate) const fn memory(&self) -> ObjectMemory {
        self.memory
    }

    /// Returns a queue without a device.
    #[cfg(test)]
    pub(crate) const fn for_tests() -> Self {
        Self { number: 7, memory: ObjectMemory::NONE }
    }
}

impl<P: Platform> Driver<P> {
    /// Creates a completion queue of at least `entries` entries.
    pub(crate) fn create_cq<B>(&mut self, entries: u32) -> Result<CreatedCq<B>, PackedError>
    where
        B: bareverbs::Provider<Cq = Cq, CqRing = Mlx5CqRing<P>>,
    {
        let (cq, vector, ring) = self.make_cq(entries)?;
        let (log_size, cqn) = (ring.position().0, cq.cqn());
        Ok(CreatedCq { cq, ring, cqn, entries: 1 << log_size, vector })
    }

    /// Creates a completion queue of at least `entries` entries: the queue, its vector, and its ring.
    #[inline]
    pub(crate) fn make_cq(&mut self, entries: u32) -> Result<(Cq, u16, Mlx5CqRing<P>), PackedError> {
        let log_size = self.log_cq_size(entries)?;
        let made = self.in_memory(CQE << log_size, true, |this, memory| {
            let (number, vector, ring) = this.create_cq_in(memory, log_size)?;
            Ok((Cq { number, memory }, vector, ring))
        })?;
        self.cqs = self.cqs.wrapping_add(1);
        Ok(made)
    }

    /// Returns the log of the entries of a queue with at least `entries`.
    fn log_cq_size(&self, entries: u32) -> Result<u32, PackedError> {
        let most = 1u32 << self.caps.log_max_cq_sz;
        if entries > most {
            return Err(Error::LimitExceeded { limit: most }.pack());
        }
        Ok(entries.max(1).next_power_of_two().trailing_zeros())
    }

    /// Marks each entry of a ring at byte `at` as not written yet, and opens it.
    fn empty_ring(&mut self, at: usize, log_size: u32, record: usize) -> Result<<P::Memory as DmaMemory>::Ring, PackedError> {
        let memory = &mut self.commands.machine.memory;
        for index in 0..1usize << log_size {
            memory.write(at + index * CQE + Cqe::OP_OWN, &[Cqe::op_own(CqeOpcode::Invalid, 1)])?;
        }
        open_ring(memory, at, CQE << log_size, record)
    }

    fn create_cq_in(&mut self, memory: ObjectMemory, log_size: u32) -> Result<(u32, u16, Mlx5CqRing<P>), PackedError> {
        let record = memory.record();
        let ring = self.empty_ring(memory.at(), log_size, record)?;
        let uar_page = self.uar.page().ok_or(Error::NotInitialized.pack())?;
        let doorbell = self.commands.machine.registers.doorbell(self.uar.base()? + UAR_CQ_ARM, 1)?;
        let eqs = &mut self.eqs;
        let turn = eqs.assigned.checked_rem(eqs.completion.len());
        let eq = *turn.and_then(|turn| eqs.completion.get(turn)).ok_or(Error::NotInitialized.pack())?;
        eqs.assigned = eqs.assigned.wrapping_add(1);
        let mut input = Buffer::zeroed();
        input
            .view_mut()
            .sub(CreateCqIn::CQ_CONTEXT)
            .set(Cqc::LOG_CQ_SIZE, log_size)
            .set(Cqc::UAR_PAGE, uar_page)
            .set(Cqc::C_EQN_OR_APU_ELEMENT, u32::from(eq.number))
            .set64(Cqc::DBR_ADDR, self.commands.arena.addr(record));
        let cqn = self.commands.create::<cmd::CreateCq>(input.view(), memory)?;
        log_event!(debug, "completion queue {:x} of {} entries, event queue {}", cqn, 1u32 << log_size, eq.number);
        let (user_index, ethernet) = (self.caps.user_index, self.caps.is_ethernet());
        let shape = Shape { cqn, log_size, user_index, combining: self.uar.combining, ethernet };
        Ok((cqn, eq.vector, Mlx5CqRing::new(ring, doorbell, self.commands.machine.fence.clone(), shape)))
    }

    /// Returns whether a completion queue works.
    pub(crate) fn query_cq(&mut self, cq: &Cq) -> Result<bool, PackedError> {
        let output = self.commands.query::<cmd::QueryCq>(|input| input.set(QueryCqIn::CQN, cq.number))?;
        // 9: it has overrun. 10: a completion could not be written (`mlx5_ifc.h`, `cqc_bits`).
        Ok(output.view().sub(QueryCqOut::CQ_CONTEXT).get(Cqc::STATUS) == 0)
    }

    pub(crate) fn destroy_cq(&mut self, cq: &mut Cq) -> Result<(), PackedError> {
        self.commands.destroy::<cmd::DestroyCq>(cq.number, cq.memory)?;
        self.cqs = self.cqs.wrapping_sub(1);
        Ok(())
    }
}
