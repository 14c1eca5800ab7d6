//! Service ID resolution: the queue pair of a service for datagrams (IBTA volume 1, 12.11).

use bareverbs::platform::Instant;
use bareverbs::{Qkey, Qpn};
use bareverbs_ib_spec::CmSidrRep;

use super::Endpoint;
use super::connection::Query;
use crate::codes::SidrStatus;
use crate::error::CmError;
use crate::event::{Event, QueryId, ServiceTicket};
use crate::message::{Mad, SidrRep, SidrReq};
use crate::path::{Address, Path, Source};
use crate::service_id::ServiceId;
use crate::timeout::timeout;

/// What [`Endpoint::resolve`] asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ResolveRequest<'a> {
    /// Service of the peer.
    pub service_id: ServiceId,
    /// Path of the datagrams.
    pub path: Path,
    /// How long to wait for the answer: 4.096 µs · 2^n, 5 bits.
    pub timeout: u8,
    /// How often the question is repeated.
    pub retries: u8,
    /// Private data, 216 bytes at most.
    pub private_data: &'a [u8],
}

impl ResolveRequest<'_> {
    /// Returns a question with the numbers that `rdma_cm` of Linux has: 15 repetitions with 4.3 s each.
    pub const fn new(service_id: ServiceId, path: Path) -> Self {
        Self { service_id, path, timeout: 20, retries: 15, private_data: &[] }
    }
}

/// How [`Endpoint::answer`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ServiceAnswer<'a> {
    /// Whether QPN and Q_Key are valid, or why not.
    pub status: SidrStatus,
    /// Queue pair of the service.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub q_key: Qkey,
    /// Additional information, 72 bytes at most.
    pub information: &'a [u8],
    /// Private data, 136 bytes at most.
    pub private_data: &'a [u8],
}

impl ServiceAnswer<'_> {
    /// Returns the answer that has a queue pair.
    pub const fn valid(qpn: Qpn, q_key: Qkey) -> Self {
        Self { status: SidrStatus::Valid, qpn, q_key, information: &[], private_data: &[] }
    }
}

impl<const CONNECTIONS: usize, const SERVICES: usize, const QUERIES: usize> Endpoint<CONNECTIONS, SERVICES, QUERIES> {
    /// Asks a peer for the queue pair of a service (SIDR_REQ). [`Event::Resolved`] follows, or [`Event::Unresolved`].
    ///
    /// `random` should be unpredictable: who guesses it can forge the answer.
    ///
    /// # Errors
    ///
    /// [`CmError::TableFull`], [`CmError::TooLong`].
    pub fn resolve(&mut self, now: Instant, random: u64, request: &ResolveRequest<'_>) -> Result<QueryId, CmError> {
        if request.private_data.len() > SidrReq::PRIVATE_DATA {
            return Err(CmError::TooLong { room: SidrReq::PRIVATE_DATA });
        }
        let in_use = |id| self.queries.iter().flatten().any(|query| query.request_id == id);
        let mut candidates = (0..).map(|more| (random as u32).wrapping_add(more)).take(QUERIES.saturating_add(1));
        let request_id = candidates.find(|id| !in_use(*id)).unwrap_or(random as u32);
        let path = &request.path;
        let message = SidrReq {
            transaction: random,
            request_id,
            partition_key: path.partition_key,
            service_id: request.service_id,
            private_data: request.private_data,
        };
        let round_trip = timeout(path.packet_life_time).saturating_mul(2);
        let wait = self.config.clamp(timeout(request.timeout).saturating_add(round_trip));
        let free = self.queries.iter_mut().find(|entry| entry.is_none());
        *free.ok_or(CmError::TableFull { capacity: QUERIES })? = Some(Query {
            request_id,
            service_id: request.service_id.0,
            to: Address { path: path.address(), qpn: Qpn::GENERAL_SERVICES, partition_key: path.partition_key },
            message: message.encode(),
            pending: true,
            wait,
            retries_left: request.retries,
            deadline: now.after(wait),
        });
        Ok(QueryId { request_id })
    }

    /// Forgets a question; returns whether it was still waiting. No event follows.
    pub fn cancel(&mut self, query: QueryId) -> bool {
        let entry =
            self.queries.iter_mut().find(|entry| entry.as_ref().is_some_and(|other| other.request_id == query.request_id));
        entry.map(|entry| *entry = None).is_some()
    }

    /// Answers a peer's question (SIDR_REP): after [`Event::ServiceRequested`].
    ///
    /// # Errors
    ///
    /// [`CmError::TooLong`], [`CmError::NotTransmitted`].
    pub fn answer(&mut self, ticket: ServiceTicket, answer: &ServiceAnswer<'_>) -> Result<(), CmError> {
        let (information, private_data) = (CmSidrRep::ADDITIONAL_INFORMATION.len(), SidrRep::PRIVATE_DATA);
        for (bytes, room) in [(answer.information, information), (answer.private_data, private_data)] {
            if bytes.len() > room {
                return Err(CmError::TooLong { room });
            }
        }
        if self.replies.is_full() {
            return Err(CmError::NotTransmitted);
        }
        self.reply(ticket.to, sidr_rep(&ticket, answer));
        Ok(())
    }

    pub(super) fn receive_sidr_req<'a>(&mut self, from: &Source, mad: &'a Mad) -> Option<Event<'a>> {
        let request = SidrReq::decode(mad)?;
        let SidrReq { transaction, request_id, partition_key, service_id, private_data } = request;
        let ticket = ServiceTicket { transaction, request_id, service_id, to: from.answer() };
        if !self.services.contains(&service_id) {
            let status = SidrStatus::UnsupportedServiceId;
            let answer = ServiceAnswer { status, ..ServiceAnswer::valid(Qpn::default(), Qkey::default()) };
            self.reply(ticket.to, sidr_rep(&ticket, &answer));
            return None;
        }
        Some(Event::ServiceRequested { ticket, service_id, partition_key, private_data, from: *from })
    }

    pub(super) fn receive_sidr_rep<'a>(&mut self, mad: &'a Mad) -> Option<Event<'a>> {
        let answer = SidrRep::decode(mad)?;
        let asked = |query: &Query| query.request_id == answer.request_id && query.service_id == answer.service_id.0;
        let entry = self.queries.iter_mut().find(|entry| entry.as_ref().is_some_and(asked))?;
        *entry = None;
        Some(Event::Resolved { query: QueryId { request_id: answer.request_id }, answer })
    }
}

fn sidr_rep(ticket: &ServiceTicket, answer: &ServiceAnswer<'_>) -> Mad {
    SidrRep {
        transaction: ticket.transaction,
        request_id: ticket.request_id,
        status: answer.status.into(),
        qpn: answer.qpn,
        service_id: ticket.service_id,
        q_key: answer.q_key,
        information: answer.information,
        private_data: answer.private_data,
    }
    .encode()
}
