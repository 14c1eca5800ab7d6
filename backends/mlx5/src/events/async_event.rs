//! Asynchronous events.

use bareverbs::{AsyncEvent, Cqn, Platform, Qpn};
use bareverbs_mlx5_spec::{
    CompEvent, CqError, Eqe, EventType, HealthBuffer, InitialSeg, PortChange, PortStateChangeEvent, QpEvents, View,
};

use crate::command::CommandInterface;
use crate::driver::{Driver, IdleWork};
use crate::error::Error;
use crate::events::eq::{Entry, event_data, event_type};

/// The types that the queue for asynchronous events subscribes.
pub(crate) const ASYNC_EVENTS: &[EventType] = &[
    EventType::PathMigrated,
    EventType::CommEstablished,
    EventType::SqDrained,
    EventType::CqError,
    EventType::WqCatasError,
    EventType::PathMigrationFailed,
    EventType::InternalError,
    EventType::PortChange,
    EventType::WqInvalReqError,
    EventType::WqAccessError,
    EventType::SrqCatasError,
    EventType::SrqLastWqe,
    EventType::SrqRqLimit,
];

/// Entries that one call takes at most before it gives up looking for one that concerns the caller.
const ENTRIES: usize = 64;

impl IdleWork<'_> {
    /// Takes the completions of commands off their queue: the owner bits say the same.
    pub(crate) fn drain_command_events<P: Platform>(&mut self, interface: &mut CommandInterface<'_, P>) -> Result<(), Error> {
        let Some(eq) = self.command.as_mut() else { return Ok(()) };
        for _ in 0..ENTRIES {
            if eq.pop(interface.machine)?.is_none() {
                eq.arm(interface.machine, self.uar)?;
                break;
            }
            interface.stats.command_events = interface.stats.command_events.wrapping_add(1);
            eq.update_consumer_index(interface.machine, self.uar)?;
        }
        Ok(())
    }
}

impl<P: Platform> Driver<P> {
    /// Takes the completions of commands off their queue.
    pub(crate) fn drain_command_events(&mut self) -> Result<(), Error> {
        let (mut interface, mut work) = self.command_interface();
        work.drain_command_events(&mut interface)
    }

    /// Serves page requests, then takes the next event for the caller.
    pub(crate) fn next_event(&mut self) -> Result<Option<AsyncEvent>, Error> {
        self.serve_page_requests()?;
        if let Some(event) = self.next_async()? {
            return Ok(Some(event));
        }
        let uar = self.uar.base();
        let queues = self.eqs.completion.len();
        for turn in 0..queues {
            // Each call begins with the queue after the one that gave the last event: a busy one does not starve the others.
            let index = self.eqs.next.wrapping_add(turn).checked_rem(queues).unwrap_or(0);
            let Some(eq) = self.eqs.completion.get_mut(index) else { break };
            for _ in 0..ENTRIES {
                let Some(entry) = eq.pop(&mut self.machine)? else {
                    eq.arm(&mut self.machine, uar)?;
                    break;
                };
                eq.update_consumer_index(&mut self.machine, uar)?;
                if event_type(&entry) != Some(EventType::Completion) {
                    continue;
                }
                let data = event_data::<CompEvent>(&entry);
                // A queue that does not exist (any more): the event is of no use to anybody.
                if let Some(event) = self.cqs.event(View::<CompEvent>::of(&data).get(CompEvent::CQ_NUMBER)) {
                    self.stats.completion_events = self.stats.completion_events.wrapping_add(1);
                    self.eqs.next = index + 1;
                    return Ok(Some(event));
                }
            }
        }
        Ok(None)
    }

    fn next_async(&mut self) -> Result<Option<AsyncEvent>, Error> {
        let Some(eq) = self.eqs.events.as_mut() else { return Ok(None) };
        let Some(entry) = eq.pop(&mut self.machine)? else {
            eq.arm(&mut self.machine, self.uar.base())?;
            return Ok(None);
        };
        eq.update_consumer_index(&mut self.machine, self.uar.base())?;
        self.stats.async_events = self.stats.async_events.wrapping_add(1);
        if event_type(&entry) == Some(EventType::InternalError) {
            let word = self.register(InitialSeg::HEALTH_BUFFER.offset() + HealthBuffer::SYND.dword())?;
            let (syndrome, ext) = (HealthBuffer::SYND.take(word), HealthBuffer::EXT_SYND.take(word));
            return Ok(Some(AsyncEvent::DeviceFatal(syndrome as u8, ext as u16)));
        }
        Ok(Some(parse(&entry)))
    }
}

/// What an entry of the queue for asynchronous events says.
fn parse(entry: &Entry) -> AsyncEvent {
    let view = View::<Eqe>::of(entry);
    let sub_type = view.get(Eqe::EVENT_SUB_TYPE);
    let qpn = || {
        let data = event_data::<QpEvents>(entry);
        Qpn::new(View::<QpEvents>::of(&data).get(QpEvents::QPN_RQN_SQN))
    };
    match event_type(entry) {
        Some(EventType::CommEstablished) => AsyncEvent::CommEstablished(qpn()),
        Some(EventType::SqDrained) => AsyncEvent::SqDrained(qpn()),
        Some(EventType::SrqLastWqe) => AsyncEvent::LastWqeReached(qpn()),
        Some(EventType::WqCatasError) => AsyncEvent::QpFatal(qpn()),
        Some(EventType::WqInvalReqError) => AsyncEvent::QpRequestError(qpn()),
        Some(EventType::WqAccessError) => AsyncEvent::QpAccessError(qpn()),
        Some(EventType::CqError) => {
            let data = event_data::<CqError>(entry);
            let view = View::<CqError>::of(&data);
            AsyncEvent::CqError(Cqn::new(view.get(CqError::CQN)), view.get(CqError::SYNDROME) as u8)
        }
        Some(EventType::PortChange) => {
            let data = event_data::<PortStateChangeEvent>(entry);
            let port = View::<PortStateChangeEvent>::of(&data).get(PortStateChangeEvent::PORT_NUM) as u8;
            match PortChange::from_code(sub_type) {
                Some(PortChange::Active) => AsyncEvent::PortActive(port),
                Some(PortChange::Down) => AsyncEvent::PortDown(port),
                Some(_) => AsyncEvent::PortChanged(port),
                None => AsyncEvent::Unknown(EventType::PortChange.code() as u8, sub_type as u8),
            }
        }
        _ => AsyncEvent::Unknown(view.get(Eqe::EVENT_TYPE) as u8, sub_type as u8),
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_mlx5_spec::EQE;

    use super::*;
    use crate::events::eq::Eq;
    use crate::mock::{DEVICE_ADDR, MockPlatform, driver};

    #[test]
    fn completion_event_queues_take_turns() {
        let (mut driver, shared) = driver();
        let driver: &mut Driver<MockPlatform> = &mut driver;
        for (cqn, number) in [(0x70, 1u64), (0x80, 2), (0x90, 3)] {
            driver.cqs.add(cqn).unwrap();
            let run = driver.arena.allocate(1).unwrap();
            assert_eq!(driver.arena.addr(run.at()), DEVICE_ADDR + 4096 * (number - 1));
            driver.eqs.completion.push(Eq::new(number as u8, run, 6)).unwrap();
            // Every entry of the queue is written: type 0 (completion), the queue's number in the last dword of the data.
            for index in 0..64 {
                let at = run.at() + index * EQE;
                let memory = &mut shared.borrow_mut().memory;
                memory[at..at + EQE].fill(0);
                memory[at + 56..at + 60].copy_from_slice(&u32::to_be_bytes(cqn));
            }
        }
        for _ in 0..20 {
            for cqn in [0x70, 0x80, 0x90] {
                assert_eq!(driver.next_event(), Ok(Some(AsyncEvent::Completion(Cqn::new(cqn)))));
            }
        }
    }
}
