//! Completion queues that move to a ring of another size.
//!
//! The device ends the old ring with an entry that says so, and goes on in the new one with the counter after it. What waits in the old
//! ring is copied, one counter further each, as libmlx5 does (`mlx5_cq_resize_copy_cqes`).

use bareverbs::platform::{DmaMemory, Platform};
use bareverbs_mlx5_spec::{Buffer, CQE, CmdOpcode, Cqc, Cqe, CqeOpcode, ModifyCqIn};

use super::ring::{Mlx5CqRing, RingSize};
use crate::dma::arena::ObjectMemory;
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;
use crate::object::Object;

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
    pub(crate) fn resize_cq(&mut self, cq: &mut Object, ring: &mut Mlx5CqRing<P>, entries: u32) -> Result<u32, Error> {
        let size = RingSize::new(self.log_cq_size(entries)?, self.config.cqe_size);
        let (record, number) = (cq.memory.record, cq.number);
        let (space, new) = self.in_memory(size.bytes(), false, |this, space| {
            let new = this.empty_ring(space.ring.at(), size, record)?;
            this.set_ring(number, space, size)?;
            Ok((space, new))
        })?;
        // From here on the device writes into the new ring alone.
        let old = ObjectMemory { record: 0, ..cq.memory };
        cq.memory = ObjectMemory { record, ..space };
        let (old_size, consumer) = ring.position();
        let next = match self.copy_entries((old.ring.at(), old_size), (space.ring.at(), size), consumer) {
            Ok(next) => next,
            // Where it goes on is not known. Nothing that it says of this queue can be believed.
            Err(error) => return Err(*self.commands.dead.get_or_insert(error)),
        };
        ring.move_to(new, size, next);
        self.commands.free_memory(old);
        log_event!(debug, "completion queue {:x} has {} entries", cq.number, 1u32 << size.log_size());
        Ok(1 << size.log_size())
    }

    fn set_ring(&mut self, cqn: u32, space: ObjectMemory, size: RingSize) -> Result<(), Error> {
        let mut input = Buffer::<ModifyCqIn>::zeroed();
        let mut view = input.view_mut();
        view.set(ModifyCqIn::OP_MOD, RESIZE)
            .set(ModifyCqIn::CQN, cqn)
            .set(ModifyCqIn::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT, SELECT);
        view.sub(ModifyCqIn::CQ_CONTEXT)
            .set(Cqc::LOG_CQ_SIZE, size.log_size())
            .set(Cqc::CQE_SZ, self.config.cqe_size.log_blocks());
        self.commands.execute_in(CmdOpcode::ModifyCq, input.as_bytes(), space).map(|_| ())
    }

    /// Copies the entries of the old ring from counter `consumer` on, each to the counter after its own in the new one; returns the
    /// counter of the first. The answer to the command came after the last of them; an entry that the device writes meanwhile has a later one.
    fn copy_entries(
        &mut self,
        (old, old_size): (usize, RingSize),
        (new, size): (usize, RingSize),
        consumer: u32,
    ) -> Result<u32, Error> {
        for step in 0..1u32 << old_size.log_size() {
            let counter = consumer.wrapping_add(step);
            let mut words: [u64; WORDS] = self.commands.machine.memory.load(old + old_size.place(counter))?;
            let Some(last) = words.last_mut() else { break };
            let word = u64::from_be(*last);
            let owner = Cqe::OWNER.take(word as u32);
            if owner != counter >> old_size.log_size() & 1 {
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
            *last = (word & !owner | u64::from(Cqe::OWNER.place(to >> size.log_size() & 1)) & owner).to_be();
            self.commands.machine.memory.store(new + size.place(to), &words)?;
        }
        Err(Error::BadAnswer { opcode: CmdOpcode::ModifyCq.code() as u16, value: consumer })
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use bareverbs::CqModeration;
    use bareverbs_mlx5_spec::cmd;

    use super::*;
    use crate::config::CqeSize;
    use crate::tests::mock::{MockPlatform, respond, started};

    const OLD: usize = 0x4000;
    const NEW: usize = 0x8000;
    const SIZES: &[CqeSize] = &[
        CqeSize::Bytes64,
        #[cfg(feature = "large-completions")]
        CqeSize::Bytes128,
    ];

    /// What the device has written as the entry with this counter of a ring of so many.
    fn completion(counter: u64, entries: u64, opcode: u8) -> [u8; CQE] {
        let mut entry = [0; CQE];
        entry[..8].copy_from_slice(&counter.to_be_bytes());
        entry[62] = counter as u8;
        entry[63] = opcode << 4 | (counter / entries % 2) as u8;
        entry
    }

    /// From a ring of each small size into one of each, with every number of completions that wait and fit, from each place about each
    /// wrap: they stand one counter further, as the device writes that round of the new ring, and the rest of it is as it was.
    #[test]
    fn what_waits_is_copied_one_counter_further() {
        let (mut driver, shared) = started();
        let driver: &mut Driver<MockPlatform> = &mut driver;
        let mut copied = 0;
        for (log_entry, &cqe_size) in (6..).zip(SIZES) {
            let at = |base: usize, counter: u64, entries: u64| base + (((counter % entries) as usize + 1) << log_entry) - CQE;
            for (old_log, new_log) in (0..=4).flat_map(|old| (0..=5).map(move |new| (old, new))) {
                let (old, new) = (1_u64 << old_log, 1_u64 << new_log);
                let sizes = [old_log, new_log].map(|log_size| RingSize::new(log_size, cqe_size));
                for wrap in [1_u64 << 24, 1 << 32] {
                    for first in (wrap - 2 * old - 1..=wrap + 1).step_by(if cfg!(miri) { 13 } else { 1 }) {
                        // One place is the entry that ends the ring.
                        for waiting in 0..old.min(new + 1) {
                            shared.borrow_mut().memory[OLD..].fill(0xee);
                            let put = |base, counter, entries, entry: [u8; CQE]| {
                                shared.borrow_mut().memory[at(base, counter, entries)..][..CQE].copy_from_slice(&entry);
                            };
                            // What is left of the round before.
                            for n in 0..old {
                                put(OLD, first + n, old, completion(first + n - old, old, 2));
                            }
                            for n in 0..waiting {
                                put(OLD, first + n, old, completion(first + n, old, 2));
                            }
                            for n in 0..new {
                                put(NEW, n, new, [0xf1; CQE]);
                            }
                            let rings = ((OLD, sizes[0]), (NEW, sizes[1]));
                            let lacks = driver.copy_entries(rings.0, rings.1, first as u32);
                            let opcode = CmdOpcode::ModifyCq.code() as u16;
                            assert_eq!(lacks, Err(Error::BadAnswer { opcode, value: first as u32 }), "no end");
                            for n in 0..new {
                                shared.borrow_mut().memory[at(NEW, n, new)..][..CQE].fill(0xf1);
                            }
                            let end = first + waiting;
                            shared.borrow_mut().memory[at(OLD, end, old)..][..CQE].copy_from_slice(&completion(
                                end,
                                old,
                                CqeOpcode::ResizeCq.code() as u8,
                            ));
                            let mut expected: Vec<u8> = shared.borrow().memory[NEW..].to_vec();
                            for n in 0..waiting {
                                let to = first + n + 1;
                                let mut entry = completion(first + n, old, 2);
                                entry[63] = 2 << 4 | (to / new % 2) as u8;
                                expected[at(0, to, new)..][..CQE].copy_from_slice(&entry);
                            }
                            assert_eq!(driver.copy_entries(rings.0, rings.1, first as u32), Ok((first + 1) as u32));
                            assert!(shared.borrow().memory[NEW..] == expected, "{waiting} of {old} into {new} from {first:#x}");
                            shared.borrow_mut().log.clear();
                            copied += waiting;
                        }
                    }
                }
            }
        }
        assert!(cfg!(miri) || copied > 5000, "{copied}");
    }

    /// The device goes on with the record of the queue's creation; the old ring is free, and with the queue all of its memory.
    #[test]
    fn a_queue_keeps_its_record_and_leaves_nothing_behind() {
        let (mut driver, shared) = started();
        let driver: &mut Driver<MockPlatform> = &mut driver;
        driver.attr.max_cqe = 1 << 10;
        driver.uar = 4;
        let eq = Object::of::<cmd::DestroyEq>(9, ObjectMemory::default());
        driver.completion_eqs.push((eq, 1)).ok().unwrap();
        // Mailboxes stay from the first command on.
        respond(&shared, |_, _| {});
        driver.modify_cq(&eq, CqModeration::default()).unwrap();
        let used = driver.commands.arena.used_pages();
        for entries in [256, 64, 128, 1] {
            respond(&shared, |_, output| output[8..12].copy_from_slice(&7_u32.to_be_bytes()));
            let (mut cq, _, mut ring) = driver.create_cq(64, CqeSize::Bytes64).unwrap();
            let (with_queue, old, record) = (driver.commands.arena.used_pages(), cq.memory.ring.at(), cq.memory.record);
            // With MODIFY_CQ (0x403) the device ends the old ring, which is empty, by an entry that says so.
            let mut answer = shared.borrow_mut().device.take().unwrap();
            shared.borrow_mut().device = Some(std::boxed::Box::new(move |memory, at, value| {
                if memory[16..18] == [4, 3] {
                    memory[old..old + CQE].copy_from_slice(&completion(0, 64, 5));
                }
                answer(memory, at, value);
            }));
            assert_eq!(driver.resize_cq(&mut cq, &mut ring, entries), Ok(entries));
            assert_eq!(cq.memory.record, record, "{entries}");
            assert_eq!(driver.commands.arena.used_pages(), with_queue - 1 + (64 * entries).div_ceil(4096), "{entries}");
            driver.end(&cq).unwrap();
            assert_eq!(driver.commands.arena.used_pages(), used, "{entries}");
        }
    }
}
