//! Queues of completion events.

use bareverbs::Cqn;
use bareverbs::backend::CompletionEvent;
use bareverbs::platform::Platform;
use bareverbs_mlx5_spec::{CompEvent, EventType};
use heapless::Vec;

use crate::events::eq::{Eq, event_data, event_type};
use crate::log::format_as;

pub(crate) const COMPLETION_EQS: usize = 8;

/// The queues of completion events, owned by the interrupt handler.
pub struct Mlx5CompletionEvents<P: Platform> {
    pub(crate) queues: Vec<Eq<P>, COMPLETION_EQS>,
    /// The queue to poll first: the one after the source of the last event, so that a busy queue does not starve the others.
    next: usize,
    /// Vector of all other events.
    control_vector: u16,
}

format_as!([P: Platform] Mlx5CompletionEvents<P>, "Mlx5CompletionEvents({} queues)", |this| this.queues.len());

impl<P: Platform> Mlx5CompletionEvents<P> {
    pub(crate) const fn new(control_vector: u16) -> Self {
        Self { queues: Vec::new(), next: 0, control_vector }
    }
}

impl<P: Platform> bareverbs::backend::CompletionEvents for Mlx5CompletionEvents<P> {
    fn next(&mut self, vector: Option<u16>) -> CompletionEvent {
        let count = self.queues.len();
        for turn in 0..count {
            let index = self.next.wrapping_add(turn).checked_rem(count).unwrap_or(0);
            let Some(eq) = self.queues.get_mut(index) else { break };
            if vector.is_some_and(|vector| vector != eq.vector) {
                continue;
            }
            // Bounded: a queue returns at most as many entries as it has, then it reports an overflow.
            while let Some(entry) = eq.pop() {
                self.next = index.wrapping_add(1);
                eq.update_consumer_index();
                if eq.overflowed() {
                    return CompletionEvent::Overflow;
                }
                if event_type(&entry) == Some(EventType::Completion) {
                    let cqn = event_data(&entry).get(CompEvent::CQ_NUMBER);
                    return CompletionEvent::Completion(Cqn::new(cqn));
                }
            }
            eq.arm();
        }
        CompletionEvent::Empty
    }

    fn is_control(&self, vector: u16) -> bool {
        vector == self.control_vector
    }
}

#[cfg(test)]
mod tests {
    use bareverbs::backend::CompletionEvents as _;
    use bareverbs_mlx5_spec::{EQE, UAR_PAGE};

    use super::*;
    use crate::dma::arena::{Arena, ObjectMemory, PageUse};
    use crate::tests::mock::{DEVICE_ADDR, MockPlatform, PAGES, machine};

    #[test]
    fn queues_take_turns_and_a_full_one_reports_it() {
        let (machine, shared) = machine();
        let mut arena: Arena<[PageUse; PAGES]> = Arena::new(DEVICE_ADDR);
        let arena: &mut Arena = &mut arena;
        let mut events = Mlx5CompletionEvents::<MockPlatform>::new(0);
        for (cqn, number) in [(0x70, 1u64), (0x80, 2), (0x90, 3)] {
            let range = arena.allocate(1).unwrap();
            assert_eq!(arena.addr(range.at()), DEVICE_ADDR + 4096 * (number - 1));
            let memory = ObjectMemory { ring: range, record: 0 };
            let _ = events.queues.push(Eq::open(&machine, 4 * UAR_PAGE, memory, 6, number as u16).unwrap());
            // Every entry of the queue is written: type 0 (completion), the queue's number in the last dword of the data.
            for index in 0..64 {
                let at = range.at() + index * EQE;
                let memory = &mut shared.borrow_mut().memory;
                memory[at..at + EQE].fill(0);
                memory[at + 56..at + 60].copy_from_slice(&u32::to_be_bytes(cqn));
            }
        }
        for _ in 0..20 {
            for cqn in [0x70, 0x80, 0x90] {
                assert_eq!(events.next(None), CompletionEvent::Completion(Cqn::new(cqn)));
            }
        }
        for _ in 20..63 {
            assert_eq!(events.next(Some(2)), CompletionEvent::Completion(Cqn::new(0x80)));
        }
        assert_eq!(events.next(Some(2)), CompletionEvent::Overflow);
        assert_eq!(events.next(Some(2)), CompletionEvent::Empty);
        assert_eq!(events.next(Some(7)), CompletionEvent::Empty);
        assert!(events.is_control(0) && !events.is_control(2));
    }
}
