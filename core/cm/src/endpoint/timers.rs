//! What time does.

use bareverbs::platform::Instant;

use super::Endpoint;
use super::calls::rejection;
use super::connection::State;
use crate::codes::{MessageType, RejectReason};
use crate::event::{Cause, ConnectionId, Event, QueryId, Unanswered};

impl<const CONNECTIONS: usize, const SERVICES: usize, const QUERIES: usize> Endpoint<CONNECTIONS, SERVICES, QUERIES> {
    /// Does what is due at `now`: repeats messages, gives up, ends TimeWait. Returns what has happened; call it until that is
    /// nothing. A repetition is no event: also after `None` there may be something to [`transmit`](Self::transmit).
    pub fn advance(&mut self, now: Instant) -> Option<Event<'static>> {
        // Each entry in turn is due once at most, or leaves the table: its next deadline is later than `now`.
        for index in (0u16..).take(CONNECTIONS) {
            if let Some(event) = self.advance_connection(now, index) {
                return Some(event);
            }
        }
        for entry in &mut self.queries {
            let Some(query) = entry.as_mut().filter(|query| query.deadline <= now) else { continue };
            match query.retries_left.checked_sub(1) {
                Some(left) => {
                    query.retries_left = left;
                    query.deadline = now.after(query.wait);
                    query.pending = true;
                }
                None => {
                    let query = QueryId { request_id: query.request_id };
                    *entry = None;
                    return Some(Event::Unresolved { query });
                }
            }
        }
        None
    }

    fn advance_connection(&mut self, now: Instant, index: u16) -> Option<Event<'static>> {
        let ca_guid = self.config.ca_guid.0.to_be_bytes();
        let entry = self.connections.get_mut(usize::from(index))?;
        let connection = entry.as_mut().filter(|connection| connection.deadline.is_some_and(|deadline| deadline <= now))?;
        let id = ConnectionId { index, generation: connection.generation };
        let state = connection.state;
        let (message, unanswered) = match state {
            State::TimeWait => {
                let qpn = connection.local_qpn;
                *entry = None;
                return Some(Event::Closed { id, qpn });
            }
            State::ReqSent | State::RepSent | State::DreqSent if connection.repeat(now) => return None,
            State::DreqSent => {
                connection.end(now);
                return connection.released(id, Cause::Unanswered, &[]);
            }
            State::ReqSent => (MessageType::Other, Unanswered::Req),
            State::RepSent => (MessageType::Other, Unanswered::Rep),
            State::ReqReceived => (MessageType::Req, Unanswered::Caller),
            State::RepReceived => (MessageType::Rep, Unanswered::Caller),
            State::Established => {
                connection.deadline = None;
                return None;
            }
        };
        // The GUID says whose request it is to a peer that cannot know it otherwise (IBTA volume 1, 12.6.7.2).
        let rej = rejection(connection, message, RejectReason::Timeout, &ca_guid, &[]);
        let to = connection.to;
        if matches!(state, State::ReqSent | State::ReqReceived) {
            connection.end_at_once(now);
        } else {
            connection.end(now);
        }
        self.reply(to, rej);
        Some(Event::TimedOut { id, message: unanswered })
    }
}
