//! Completion queues that move to a ring of another size.
//!
//! The device ends the old ring with an entry that says so, and goes on in the new one with the counter after it. What waits in the old
//! ring is copied, one counter further each, as libmlx5 does (`mlx5_cq_resize_copy_cqes`).

use bareverbs::{DmaMemory, Platform};
use bareverbs_mlx5_spec::{Buffer, CQE, CmdOpcode, Cqc, Cqe, CqeOpcode, ModifyCqIn};

use super::ring::Mlx5CqRing;
use super::{Cq, RingSize};
use crate::config::CqeSize;
use crate::dma::object_memory::ObjectMemory;
use crate::driver::Driver;
use crate::error::{Error, PackedError};
use crate::log::log_event;

/// Modifier of MODIFY_CQ that asks for another ring (Linux `MLX5_CQ_OPMOD_RESIZE`).
const RESIZE: u32 = 1;
/// What the command names of the context: the size, and where its pages begin and how large they are (Linux
/// `MLX5_MODIFY_CQ_MASK_LOG_SIZE`, `_PG_OFFSET`, `_PG_SIZE`).
const SELECT: u32 = 0b111;
const WORDS: usize = CQE / 8;
/// The byte of an entry that its owner and opcode are in is the last.
const _: () = assert!(Cqe::OP_OWN == CQE - 1);

impl<P: Platform> Driver<P> {
    /// Moves a completion queue to a ring of at least `entries` entries, and returns how many it has.
    pub(crate) fn resize_cq(&mut self, cq: &mut Cq, ring: &mut Mlx5CqRing<P>, entries: u32) -> Result<u32, PackedError> {
        let log_size = self.log_cq_size(entries)?;
        let size = RingSize { log_size, cqe_size: cq.cqe_size };
        let (record, number) = (cq.memory.record(), cq.number);
        let (space, new) = self.in_memory(size.bytes(), false, |this, space| {
            let new = this.empty_ring(space.at(), size, record)?;
            this.modify_cq(number, space, size)?;
            Ok((space, new))
        })?;
        // From here on the device writes into the new ring alone.
        let old = ObjectMemory::new(cq.memory.range(), None);
        cq.memory = ObjectMemory::new(space.range(), Some(record));
        let (old_log_size, consumer) = ring.position();
        let old_size = RingSize { log_size: old_log_size, ..size };
        let next = match self.copy_entries((old.at(), old_size), (space.at(), size), consumer) {
            Ok(next) => next,
            // Where it goes on is not known. Nothing that it says of this queue can be believed.
            Err(error) => return Err(*self.commands.dead.get_or_insert(error)),
        };
        ring.move_to(new, log_size, next);
        self.commands.free_memory(old);
        log_event!(debug, "completion queue {:x} has {} entries", cq.number, 1u32 << log_size);
        Ok(1 << log_size)
    }

    fn modify_cq(&mut self, cqn: u32, space: ObjectMemory, size: RingSize) -> Result<(), PackedError> {
        let mut input = Buffer::<ModifyCqIn>::zeroed();
        let mut view = input.view_mut();
        view.set(ModifyCqIn::OP_MOD, RESIZE)
            .set(ModifyCqIn::CQN, cqn)
            .set(ModifyCqIn::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT, SELECT);
        let mut context = view.sub(ModifyCqIn::CQ_CONTEXT);
        context.set(Cqc::LOG_CQ_SIZE, size.log_size);
        if size.cqe_size != CqeSize::Bytes64 {
            context.set(Cqc::CQE_SZ, size.cqe_size.log_blocks());
        }
        self.commands.execute_in(CmdOpcode::ModifyCq, input.as_bytes(), space).map(|_| ())
    }

    /// Copies the entries of the old ring from counter `consumer` on, each to the counter after its own in the new one; returns the
    /// counter of the first. The answer to the command came after the last of them; an entry that the device writes meanwhile has a later one.
    fn copy_entries(
        &mut self,
        (old, old_size): (usize, RingSize),
        (new, size): (usize, RingSize),
        consumer: u32,
    ) -> Result<u32, PackedError> {
        for step in 0..1u32 << old_size.log_size {
            let counter = consumer.wrapping_add(step);
            let mut words: [u64; WORDS] = self.commands.machine.memory.load(old + old_size.place(counter))?;
            let Some(last) = words.last_mut() else { break };
            let word = u64::from_be(*last);
            let owner = Cqe::OWNER.take(word as u32);
            if owner != counter >> old_size.log_size & 1 {
                break;
            }
            let opcode = Cqe::OPCODE.take(word as u32);
            if opcode == CqeOpcode::ResizeCq.code() {
                return Ok(consumer.wrapping_add(1));
            }
            if opcode == CqeOpcode::Invalid.code() {
                break;
            }
            let to = counter.wrapping_add(1);
            let owner = u64::from(Cqe::OWNER.mask());
            *last = (word & !owner | u64::from(Cqe::OWNER.place(to >> size.log_size & 1)) & owner).to_be();
            self.commands.machine.memory.store(new + size.place(to), &words)?;
        }
        Err(Error::BadAnswer { opcode: CmdOpcode::ModifyCq.code() as u16, value: consumer }.pack())
    }
}
