//! Creation and destruction of completion queues.

use bareverbs::{Cqn, DmaMemory, Platform};
use bareverbs_mlx5_spec::{CQE, CmdOpcode, Cqc, CreateCqIn, Layout, ViewMut};

use super::{Cq, NOT_WRITTEN, OP_OWN};
use crate::command::late::{ObjectMemory, PendingDestroy};
use crate::dma::arena::{PAGE, Run};
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;

impl<P: Platform> Driver<P> {
    /// Makes a completion queue of at least `entries`.
    pub(crate) fn create_cq(&mut self, entries: u32) -> Result<(Cq, Cqn, u32), Error> {
        let most = 1u32 << self.caps.log_max_cq_sz;
        if entries > most {
            return Err(Error::LimitExceeded { requested: u64::from(entries), limit: u64::from(most) });
        }
        if self.cqs.queues.is_full() {
            return Err(Error::CqsFull);
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
        match self.create_cq_command(run, record, log_size) {
            Ok(cqn) => {
                let mask = (1 << log_size) - 1;
                let user_index = self.caps.user_index;
                let cq = Cq {
                    cqn,
                    ring: run.at(),
                    mask,
                    log_size,
                    consumer: 0,
                    record,
                    user_index,
                    run,
                    destroy: PendingDestroy::NONE,
                };
                Ok((cq, Cqn::new(cqn), 1 << log_size))
            }
            Err(error) => {
                self.release_run(run, error);
                self.release_record(record, error);
                Err(error)
            }
        }
    }

    fn create_cq_command(&mut self, run: Run, record: usize, log_size: u32) -> Result<u32, Error> {
        for index in 0..1usize << log_size {
            self.machine.memory.write(run.at() + index * CQE + OP_OWN, &[NOT_WRITTEN])?;
        }
        let uar_page = self.uar.page().ok_or(Error::NotInitialized)?;
        let eqs = &mut self.eqs;
        let eq = eqs.assigned.checked_rem(eqs.completion.len()).and_then(|turn| eqs.completion.get(turn));
        let eqn = u32::from(eq.ok_or(Error::NotInitialized)?.number());
        eqs.assigned = eqs.assigned.wrapping_add(1);
        let mut input = [0; CreateCqIn::SIZE];
        ViewMut::<CreateCqIn>::of(&mut input)
            .sub(CreateCqIn::CQ_CONTEXT)
            .set(Cqc::LOG_CQ_SIZE, log_size)
            .set(Cqc::UAR_PAGE, uar_page)
            .set(Cqc::C_EQN_OR_APU_ELEMENT, eqn)
            .set64(Cqc::DBR_ADDR, self.arena.addr(record));
        let mut pages = self.arena.page_addrs(run);
        let memory = ObjectMemory::new(Some(run), Some(record));
        let cqn = self.create(CmdOpcode::CreateCq, &input, &mut pages, run.pages() as usize, memory)?;
        self.cqs.add(cqn)?;
        log_event!(debug, "completion queue {:x} of {} entries, event queue {}", cqn, 1u32 << log_size, eqn);
        Ok(cqn)
    }

    /// Destroys a completion queue.
    pub(crate) fn destroy_cq(&mut self, cq: &mut Cq) -> Result<(), Error> {
        let retried = cq.destroy != PendingDestroy::NONE;
        let destroyed = self.destroy(CmdOpcode::DestroyCq, cq.cqn, &mut cq.destroy);
        if cq.destroy != PendingDestroy::NONE && !retried {
            // The device may give the number to another queue from now on.
            self.cqs.leave(cq.cqn);
        }
        destroyed?;
        self.cqs.remove(cq.cqn, retried);
        log_event!(debug, "completion queue {:x} is gone", cq.cqn);
        self.arena.free(cq.run);
        self.arena.free_record(cq.record);
        Ok(())
    }
}
