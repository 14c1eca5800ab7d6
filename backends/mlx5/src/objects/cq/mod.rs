//! Completion queues.

pub(crate) mod ring;

use bareverbs::{Cqn, CreatedCq, DmaMemory, Platform, Registers, Span};
use bareverbs_mlx5_spec::{CQE, CmdOpcode, Cqc, CqeOpcode, CreateCqIn, Layout, UAR_CQ_ARM, ViewMut};

use crate::command::late::{ObjectMemory, PendingDestroy};
use crate::dma::arena::{PAGE, Run};
use crate::driver::Driver;
use crate::error::Error;
use crate::log::{format_as, log_event};
use ring::{CqRing, Shape};

/// Byte of an entry that holds opcode and owner.
const OP_OWN: usize = 63;
/// Opcode and owner of an entry that the device has not written.
const NOT_WRITTEN: u8 = (CqeOpcode::Invalid.code() as u8) << 4 | 1;

/// A completion queue of this backend.
pub struct Cq {
    cqn: u32,
    record: usize,
    run: Run,
    destroy: PendingDestroy,
}

format_as!([] Cq, "Cq({:x})", |this| this.cqn);

impl Cq {
    /// Number.
    pub const fn cqn(&self) -> Cqn {
        Cqn::new(self.cqn)
    }

    /// A queue that no device knows.
    #[cfg(test)]
    pub(crate) const fn for_tests(run: Run) -> Self {
        Self { cqn: 7, record: 0, run, destroy: PendingDestroy::NONE }
    }
}

impl<P: Platform> Driver<P> {
    /// Makes a completion queue of at least `entries`.
    pub(crate) fn create_cq<B>(&mut self, entries: u32) -> Result<CreatedCq<B>, Error>
    where
        B: bareverbs::Provider<Cq = Cq, CqRing = CqRing<P>>,
    {
        let most = 1u32 << self.caps.log_max_cq_sz;
        if entries > most {
            return Err(Error::LimitExceeded { requested: u64::from(entries), limit: u64::from(most) });
        }
        let log_size = entries.max(1).next_power_of_two().trailing_zeros();
        let run = self.allocate_cleared(((1usize << log_size) * CQE).div_ceil(PAGE) as u32)?;
        let record = match self.allocate_record() {
            Ok(record) => record,
            Err(error) => {
                self.arena.free(run);
                return Err(error);
            }
        };
        match self.create_cq_in(run, record, log_size) {
            Ok((cqn, vector, ring)) => {
                self.cqs = self.cqs.wrapping_add(1);
                let cq = Cq { cqn, record, run, destroy: PendingDestroy::NONE };
                Ok(CreatedCq { cq, ring, cqn: Cqn::new(cqn), entries: 1 << log_size, vector })
            }
            Err(error) => {
                self.release_run(run, error);
                self.release_record(record, error);
                Err(error)
            }
        }
    }

    fn create_cq_in(&mut self, run: Run, record: usize, log_size: u32) -> Result<(u32, u16, CqRing<P>), Error> {
        for index in 0..1usize << log_size {
            self.machine.memory.write(run.at() + index * CQE + OP_OWN, &[NOT_WRITTEN])?;
        }
        let uar_page = self.uar.page().ok_or(Error::NotInitialized)?;
        let span = Span::new(run.at(), CQE << log_size, record).ok_or(Error::OutOfRange { offset: record, len: 8 })?;
        let memory = self.machine.memory.ring(&span)?;
        let doorbell = self.machine.registers.doorbell(self.uar.base()? + UAR_CQ_ARM, 1)?;
        let eqs = &mut self.eqs;
        let turn = eqs.assigned.checked_rem(eqs.completion.len());
        let eq = *turn.and_then(|turn| eqs.completion.get(turn)).ok_or(Error::NotInitialized)?;
        eqs.assigned = eqs.assigned.wrapping_add(1);
        let mut input = [0; CreateCqIn::SIZE];
        ViewMut::<CreateCqIn>::of(&mut input)
            .sub(CreateCqIn::CQ_CONTEXT)
            .set(Cqc::LOG_CQ_SIZE, log_size)
            .set(Cqc::UAR_PAGE, uar_page)
            .set(Cqc::C_EQN_OR_APU_ELEMENT, u32::from(eq.number))
            .set64(Cqc::DBR_ADDR, self.arena.addr(record));
        let mut pages = self.arena.page_addrs(run);
        let object = ObjectMemory::new(Some(run), Some(record));
        let cqn = self.create(CmdOpcode::CreateCq, &input, &mut pages, run.pages() as usize, object)?;
        log_event!(debug, "completion queue {:x} of {} entries, event queue {}", cqn, 1u32 << log_size, eq.number);
        let shape = Shape { cqn, log_size, user_index: self.caps.user_index, combining: self.uar.is_combining() };
        Ok((cqn, eq.vector, CqRing::new(memory, doorbell, self.machine.fence.clone(), shape)))
    }

    /// Destroys a completion queue.
    pub(crate) fn destroy_cq(&mut self, cq: &mut Cq) -> Result<(), Error> {
        self.destroy(CmdOpcode::DestroyCq, cq.cqn, &mut cq.destroy)?;
        log_event!(debug, "completion queue {:x} is gone", cq.cqn);
        self.cqs = self.cqs.wrapping_sub(1);
        self.arena.free(cq.run);
        self.arena.free_record(cq.record);
        Ok(())
    }
}
