//! Asynchronous events.

use bareverbs::{AsyncEvent, Cqn, Platform, Qpn};
use bareverbs_mlx5_spec::{
    CqError, Eqe, EventType, HealthBuffer, InitialSeg, PortChange, PortStateChangeEvent, QpEvents, View,
};

use crate::driver::Driver;
use crate::error::PackedError;
use crate::events::eq::{Entry, event_data, event_type};
use crate::log::log_event;

/// Event types of the queue for asynchronous events.
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

impl<P: Platform> Driver<P> {
    /// Serves page requests, then returns the next asynchronous event for the caller.
    pub(crate) fn next_event(&mut self) -> Result<Option<AsyncEvent>, PackedError> {
        self.commands.serve_page_requests()?;
        if let Some(event) = self.eqs.after_overflow.take() {
            return Ok(Some(event));
        }
        let Some(eq) = self.eqs.events.as_mut() else { return Ok(None) };
        let Some(entry) = eq.pop() else {
            eq.arm();
            return Ok(None);
        };
        eq.update_consumer_index();
        self.commands.stats.async_events = self.commands.stats.async_events.wrapping_add(1);
        if eq.overflowed() {
            log_event!(warn, "the queue of asynchronous events was full: some may be lost");
            // This entry was not lost.
            self.eqs.after_overflow = Some(parse(&entry));
            return Ok(Some(AsyncEvent::Overflow));
        }
        if event_type(&entry) == Some(EventType::InternalError) {
            let word = self.commands.register(InitialSeg::HEALTH_BUFFER.offset() + HealthBuffer::SYND.dword());
            let (syndrome, ext) = (HealthBuffer::SYND.take(word), HealthBuffer::EXT_SYND.take(word));
            log_event!(error, "the device reports an internal error, health syndrome {:x}, {:x}", syndrome, ext);
            return Ok(Some(AsyncEvent::DeviceFatal(syndrome as u8, ext as u16)));
        }
        Ok(Some(parse(&entry)))
    }
}

/// Decodes an entry of the queue for asynchronous events.
fn parse(entry: &Entry) -> AsyncEvent {
    let view = View::<Eqe>::of(entry);
    let sub_type = view.get(Eqe::EVENT_SUB_TYPE);
    let qpn = || Qpn::new(event_data(entry).get(QpEvents::QPN_RQN_SQN));
    match event_type(entry) {
        Some(EventType::CommEstablished) => AsyncEvent::CommEstablished(qpn()),
        Some(EventType::SqDrained) => AsyncEvent::SqDrained(qpn()),
        Some(EventType::SrqLastWqe) => AsyncEvent::LastWqeReached(qpn()),
        Some(EventType::WqCatasError) => AsyncEvent::QpFatal(qpn()),
        Some(EventType::WqInvalReqError) => AsyncEvent::QpRequestError(qpn()),
        Some(EventType::WqAccessError) => AsyncEvent::QpAccessError(qpn()),
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
                None => AsyncEvent::Unknown(EventType::PortChange.code() as u8, sub_type as u8),
            }
        }
        _ => AsyncEvent::Unknown(view.get(Eqe::EVENT_TYPE) as u8, sub_type as u8),
    }
}
