//! Asynchronous events.

use bareverbs::backend::AsyncEvent;
use bareverbs::platform::Platform;
use bareverbs::{Cqn, Qpn, Srqn};
use bareverbs_mlx5_spec::{
    CqError, Eqe, EventType, HealthBuffer, InitialSeg, PortChange, PortStateChangeEvent, QpEvents, View,
};

use crate::driver::Driver;
use crate::error::Error;
use crate::events::eq::{Entry, event_data, event_type};
use crate::log::log_event;

/// Lists the events that name a queue pair or a shared receive queue, and nothing else.
macro_rules! events_of_queues {
    ($($event:ident => $what:ident($number:ident);)+) => {
        /// Event types of the queue for asynchronous events.
        pub(crate) const ASYNC_EVENTS: &[EventType] =
            &[EventType::CqError, EventType::InternalError, EventType::PortChange, $(EventType::$event),+];

        fn event_of_queue(event: EventType, number: u32) -> Option<AsyncEvent> {
            match event {
                $(EventType::$event => Some(AsyncEvent::$what($number::new(number))),)+
                _ => None,
            }
        }
    };
}

events_of_queues! {
    PathMigrated => PathMigrated(Qpn);
    CommEstablished => CommEstablished(Qpn);
    SqDrained => SqDrained(Qpn);
    WqCatasError => QpFatal(Qpn);
    PathMigrationFailed => PathMigrationFailed(Qpn);
    WqInvalReqError => QpRequestError(Qpn);
    WqAccessError => QpAccessError(Qpn);
    SrqCatasError => SrqError(Srqn);
    SrqLastWqe => LastWqeReached(Qpn);
    SrqRqLimit => SrqLimitReached(Srqn);
}

impl<P: Platform> Driver<P> {
    /// Serves page requests, then returns the next asynchronous event for the caller. After as many events as the queue has
    /// entries it returns none once, so that a loop over the events ends, and arms the queue for those that came meanwhile.
    pub(crate) fn poll_event(&mut self) -> Result<Option<AsyncEvent>, Error> {
        // Before a lost device is refused: this event may be the one that says so.
        if let Some(event) = self.after_overflow.as_mut().and_then(Option::take) {
            return Ok(Some(event));
        }
        self.commands.serve_page_requests()?;
        let Some(eq) = self.events.as_mut() else { return Ok(None) };
        let after_overflow = self.after_overflow.take();
        let entry = if after_overflow.is_none() { eq.pop() } else { None };
        let Some(entry) = entry else {
            eq.arm();
            return Ok(None);
        };
        eq.update_consumer_index();
        self.commands.stats.async_events = self.commands.stats.async_events.wrapping_add(1);
        let event = if event_type(&entry) == Some(EventType::InternalError) {
            let word = self.commands.register(InitialSeg::HEALTH_BUFFER.offset() + HealthBuffer::SYND.dword());
            let (syndrome, ext) = (HealthBuffer::SYND.take(word), HealthBuffer::EXT_SYND.take(word));
            log_event!(error, "the device reports an internal error, health syndrome {:x}, {:x}", syndrome, ext);
            self.commands.dead.get_or_insert(Error::DeviceFatal { syndrome: syndrome as u8 });
            AsyncEvent::DeviceFatal(syndrome as u8, ext as u16)
        } else {
            parse(&entry)
        };
        if eq.overflowed() {
            log_event!(warn, "the queue of asynchronous events was full: some may be lost");
            // This entry was not lost.
            self.after_overflow = Some(Some(event));
            return Ok(Some(AsyncEvent::Overflow));
        }
        Ok(Some(event))
    }
}

/// Decodes an entry of the queue for asynchronous events.
fn parse(entry: &Entry) -> AsyncEvent {
    let view = View::<Eqe>::of(entry);
    let sub_type = view.get(Eqe::EVENT_SUB_TYPE);
    let unknown = |detail: u32| AsyncEvent::Unknown(view.get(Eqe::EVENT_TYPE) as u8, detail as u8);
    match event_type(entry) {
        Some(EventType::CqError) => {
            let view = event_data(entry);
            AsyncEvent::CqError(Cqn::new(view.get(CqError::CQN)), view.get(CqError::SYNDROME) as u8)
        }
        Some(EventType::PortChange) => {
            let port = event_data(entry).get(PortStateChangeEvent::PORT_NUM) as u8;
            match PortChange::from_code(sub_type) {
                Some(PortChange::Active) => AsyncEvent::PortActive(port),
                Some(PortChange::Down) => AsyncEvent::PortDown(port),
                Some(_) => AsyncEvent::PortChanged(port),
                None => unknown(sub_type),
            }
        }
        event => {
            let queue = event_data(entry);
            match event.and_then(|event| event_of_queue(event, queue.get(QpEvents::QPN_RQN_SQN))) {
                None => unknown(sub_type),
                Some(event @ (AsyncEvent::SrqError(_) | AsyncEvent::SrqLimitReached(_))) => event,
                // Queues for frames have numbers of their own, and the core knows none of them.
                Some(_) if queue.get(QpEvents::TYPE) != 0 => unknown(queue.get(QpEvents::TYPE)),
                Some(event) => event,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_mlx5_spec::{EQE, UAR_EQ_ARM, UAR_PAGE};

    use super::*;
    use crate::dma::arena::ObjectMemory;
    use crate::events::eq::Eq;
    use crate::tests::mock::{Done, MockPlatform, driver};

    /// Opens a queue of 64 entries in the first page of the memory.
    fn open_queue(driver: &mut Driver<MockPlatform>) {
        let memory = ObjectMemory { ring: driver.commands.arena.allocate(1).unwrap(), record: 0 };
        driver.events = Some(Eq::open(&driver.commands.machine, 4 * UAR_PAGE, memory, 6, 0).unwrap());
    }

    /// An internal error (event type 8) loses the device, also as the last entry of a queue that was full.
    #[test]
    fn an_internal_error_is_said_and_loses_the_device() {
        for before in [0, 1, 62, 63] {
            let (mut driver, shared) = driver();
            let driver: &mut Driver<MockPlatform> = &mut driver;
            open_queue(driver);
            {
                let mut state = shared.borrow_mut();
                state.registers[0x23c..0x240].copy_from_slice(&[0, 7, 0x12, 0x34]);
                for index in 0..64 {
                    let mut entry = [0; EQE];
                    (entry[1], entry[3], entry[32 + 8]) = if index == before { (8, 0, 0) } else { (9, 1, 1 << 4) };
                    entry[63] = u8::from(index > before);
                    state.memory[index * EQE..(index + 1) * EQE].copy_from_slice(&entry);
                }
            }
            for _ in 0..before {
                assert_eq!(driver.poll_event(), Ok(Some(AsyncEvent::PortDown(1))));
            }
            if before == 63 {
                assert_eq!(driver.poll_event(), Ok(Some(AsyncEvent::Overflow)));
            }
            assert_eq!(driver.poll_event(), Ok(Some(AsyncEvent::DeviceFatal(7, 0x1234))), "after {before}");
            let reason = Error::DeviceFatal { syndrome: 7 };
            assert_eq!((driver.poll_event(), driver.commands.check_alive()), (Err(reason), Err(reason)), "after {before}");
        }
    }

    /// Events 1 and 7 of `mlx5_ifc.h` have the queue pair in the last dword of their data, at 28 + 32 of the entry.
    #[test]
    fn a_migration_of_paths_names_its_queue_pair() {
        for (code, expected) in
            [(1, AsyncEvent::PathMigrated(Qpn::new(0x123))), (7, AsyncEvent::PathMigrationFailed(Qpn::new(0x123)))]
        {
            let mut entry = [0; EQE];
            entry[1] = code;
            entry[32 + 24..32 + 28].copy_from_slice(&[0, 0, 1, 0x23]);
            assert_eq!(parse(&entry), expected);
        }
    }

    #[test]
    fn a_loop_over_events_ends_though_the_device_writes_one_after_the_other() {
        let (mut driver, shared) = driver();
        let driver: &mut Driver<MockPlatform> = &mut driver;
        open_queue(driver);
        let mut written = 0usize;
        for turn in 0..3 {
            let mut seen = std::vec::Vec::new();
            loop {
                // One more entry: a change of port 1, to down.
                let at = written % 64 * EQE;
                let mut entry = [0; EQE];
                entry[1] = EventType::PortChange.code() as u8;
                entry[3] = PortChange::Down.code() as u8;
                entry[32 + 8] = 1 << 4;
                entry[63] = (written / 64 % 2) as u8;
                shared.borrow_mut().memory[at..at + EQE].copy_from_slice(&entry);
                written += 1;
                let Some(event) = driver.poll_event().unwrap() else { break };
                seen.push(event);
                assert!(seen.len() <= 66, "turn {turn}");
            }
            assert_eq!(seen.iter().filter(|event| **event == AsyncEvent::Overflow).count(), 1, "{seen:?}");
            assert!(seen.iter().filter(|event| **event == AsyncEvent::PortDown(1)).count() >= 62, "{seen:?}");
            let log = shared.borrow();
            let Some(Done::Register(at, _)) = log.log.iter().rev().nth(1) else { panic!("nothing was written last") };
            assert_eq!(*at, 4 * UAR_PAGE + UAR_EQ_ARM, "an interrupt comes for what was written meanwhile");
        }
    }
}
