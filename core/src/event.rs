//! What the device tells of its own accord, with numbers turned into handles.

use crate::parts::Parts;
use crate::say::say;
use crate::{AsyncEvent, CqHandle, Cqn, PollEventError, Provider, QpHandle, QpState, Qpn};

/// An event (`ibv_async_event`, and completion events).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Event {
    /// A completion came into an armed queue.
    Completion(CqHandle),
    /// A completion queue overran or broke: the device's syndrome.
    CqError(CqHandle, u8),
    /// First message on a queue pair in RTR.
    CommEstablished(QpHandle),
    /// The send queue is drained (SQD).
    SqDrained(QpHandle),
    /// The last receive of a queue pair in error is done.
    LastWqeReached(QpHandle),
    /// A queue pair broke; it is in ERR.
    QpFatal(QpHandle),
    /// An invalid request came in; the queue pair is in ERR.
    QpRequestError(QpHandle),
    /// An access violation of an incoming request; the queue pair is in ERR.
    QpAccessError(QpHandle),
    /// A port went up.
    PortActive(u8),
    /// A port went down.
    PortDown(u8),
    /// LID, P_Key table, GID table or SM of a port changed.
    PortChanged(u8),
    /// The device is broken: health syndrome, and extended one.
    DeviceFatal(u8, u16),
    /// An event of a queue that is not in the tables: destroyed since, or never made.
    Stray(AsyncEvent),
    /// An event type that this library does not know: type and subtype.
    Unknown(u8, u8),
}

impl<P: Provider> Parts<'_, P> {
    pub(crate) fn poll_event(&mut self) -> Result<Option<Event>, PollEventError<P::Error>> {
        let Some(event) = self.provider.poll_event().map_err(PollEventError::Device)? else { return Ok(None) };
        say!(debug, "event: {:?}", event);
        let translated = match event {
            AsyncEvent::Completion(cqn) => self.cq_named(cqn).map(Event::Completion),
            AsyncEvent::CqError(cqn, syndrome) => self.cq_named(cqn).map(|cq| Event::CqError(cq, syndrome)),
            AsyncEvent::CommEstablished(qpn) => self.qp_named(qpn, false).map(Event::CommEstablished),
            AsyncEvent::SqDrained(qpn) => self.qp_named(qpn, false).map(Event::SqDrained),
            AsyncEvent::LastWqeReached(qpn) => self.qp_named(qpn, false).map(Event::LastWqeReached),
            AsyncEvent::QpFatal(qpn) => self.qp_named(qpn, true).map(Event::QpFatal),
            AsyncEvent::QpRequestError(qpn) => self.qp_named(qpn, true).map(Event::QpRequestError),
            AsyncEvent::QpAccessError(qpn) => self.qp_named(qpn, true).map(Event::QpAccessError),
            AsyncEvent::PortActive(port) => Some(Event::PortActive(port)),
            AsyncEvent::PortDown(port) => Some(Event::PortDown(port)),
            AsyncEvent::PortChanged(port) => Some(Event::PortChanged(port)),
            AsyncEvent::DeviceFatal(syndrome, extended) => Some(Event::DeviceFatal(syndrome, extended)),
            AsyncEvent::Unknown(kind, subtype) => Some(Event::Unknown(kind, subtype)),
        };
        Ok(Some(translated.unwrap_or(Event::Stray(event))))
    }

    fn cq_named(&self, cqn: Cqn) -> Option<CqHandle> {
        self.cqs.iter().find(|(_, cq)| cq.cqn == cqn).map(|(handle, _)| handle)
    }

    /// The queue pair of this number, which is `broken` now.
    fn qp_named(&mut self, qpn: Qpn, broken: bool) -> Option<QpHandle> {
        let (handle, qp) = self.qps.iter_mut().find(|(_, qp)| qp.qpn == qpn)?;
        // An event may be older than a reset that the caller has done since.
        if broken && qp.state != QpState::Reset {
            qp.state = QpState::Err;
        }
        Some(handle)
    }
}
