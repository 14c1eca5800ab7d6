//! The state machine of both sides.

mod calls;
mod connection;
mod receive;
mod resolve;
mod timers;

use core::time::Duration;

use bareverbs::Guid;
use bareverbs::platform::Instant;

pub use self::calls::{Accept, ConnectRequest};
use self::connection::{Connection, Query, Reply};
pub use self::resolve::{ResolveRequest, ServiceAnswer};
use crate::error::CmError;
use crate::event::ConnectionId;
use crate::message::Mad;
use crate::path::Address;
use crate::service_id::ServiceId;
use crate::timeout::timeout;

/// Datagrams without a connection that may wait to be transmitted: rejections, and answers to who is unknown.
const REPLIES: usize = 4;

/// What an endpoint is, and how much it lets peers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Config {
    /// GUID of our channel adapter, by which peers recognise stale connections.
    pub ca_guid: Guid,
    /// ACK delay of our adapter: 4.096 µs · 2^`ack_delay`, 5 bits.
    pub ack_delay: u8,
    /// Connections that peers may have begun and not completed, of all peers. The rest of the table stays for others. A further
    /// request is rejected: no resources.
    pub half_open: usize,
    /// The same of one peer.
    pub half_open_per_peer: usize,
    /// Connections that one peer may have made, in any state. A further request is rejected: no resources.
    pub per_peer: usize,
    /// The least time that an answer may take, so that a peer cannot have messages repeated in rapid succession.
    pub shortest_wait: Duration,
    /// The longest time that an answer may take, and the longest TimeWait: peers may ask for hours.
    pub longest_wait: Duration,
    /// How long one exchange (REQ to REP, REP to RTU) may take with all repetitions and MRAs.
    pub longest_exchange: Duration,
}

impl Config {
    /// Returns a configuration: 16 connections at most of one peer and 4 half open, 8 half open in all, answers within 4 ms to 17 s,
    /// exchanges within five minutes.
    pub const fn new(ca_guid: Guid) -> Self {
        Self {
            ca_guid,
            ack_delay: 15,
            half_open: 8,
            half_open_per_peer: 4,
            per_peer: 16,
            shortest_wait: timeout(10),
            longest_wait: timeout(22),
            longest_exchange: Duration::from_secs(300),
        }
    }

    fn clamp(&self, wait: Duration) -> Duration {
        wait.min(self.longest_wait).max(self.shortest_wait)
    }
}

/// Connection management of one port: up to `CONNECTIONS` connections at a time, `SERVICES` service IDs that it listens on, and `QUERIES`
/// questions for service IDs that wait for their answers.
///
/// After each call, transmit what [`Endpoint::transmit`] returns, until it returns nothing. At [`Endpoint::next_deadline`] call
/// [`Endpoint::advance`] until it returns nothing. Each call takes a time that is bounded by the sizes of the tables.
#[derive(Clone, Debug)]
pub struct Endpoint<const CONNECTIONS: usize, const SERVICES: usize, const QUERIES: usize> {
    config: Config,
    connections: [Option<Connection>; CONNECTIONS],
    queries: [Option<Query>; QUERIES],
    services: heapless::Vec<ServiceId, SERVICES>,
    replies: heapless::Deque<Reply, REPLIES>,
    /// Given to the next connection.
    generation: u32,
    /// Whose turn it is to transmit.
    turn: usize,
    dropped: u64,
}

impl<const CONNECTIONS: usize, const SERVICES: usize, const QUERIES: usize> Endpoint<CONNECTIONS, SERVICES, QUERIES> {
    /// Creates an endpoint without connections. It has 65,535 connections at most.
    pub const fn new(config: Config) -> Self {
        const { assert!(CONNECTIONS <= u16::MAX as usize, "an index has 16 bits") };
        Self {
            config,
            connections: [const { None }; CONNECTIONS],
            queries: [const { None }; QUERIES],
            services: heapless::Vec::new(),
            replies: heapless::Deque::new(),
            generation: 0,
            turn: 0,
            dropped: 0,
        }
    }

    /// Listens on a service ID: requests for it are reported from now on. Others are rejected.
    ///
    /// # Errors
    ///
    /// [`CmError::ServiceInUse`], [`CmError::TableFull`].
    pub fn listen(&mut self, service: ServiceId) -> Result<(), CmError> {
        if self.services.contains(&service) {
            return Err(CmError::ServiceInUse);
        }
        self.services.push(service).map_err(|_| CmError::TableFull { capacity: SERVICES })
    }

    /// Listens on a service ID no more; returns whether it did. Connections stay.
    pub fn unlisten(&mut self, service: ServiceId) -> bool {
        let listened = self.services.iter().position(|other| *other == service);
        listened.map(|index| self.services.swap_remove(index)).is_some()
    }

    /// Returns how many entries of the table are in use.
    pub fn connections(&self) -> usize {
        self.connections.iter().flatten().count()
    }

    /// Returns how many answers were dropped, since too many others waited to be transmitted. Their peers ask again.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Writes the next datagram that is to be sent, and returns where to. `None` if there is none.
    pub fn transmit(&mut self, mad: &mut Mad) -> Option<Address> {
        let (to, bytes) = self.next_datagram()?;
        *mad = bytes;
        Some(to)
    }

    fn next_datagram(&mut self) -> Option<(Address, Mad)> {
        if let Some(reply) = self.replies.pop_front() {
            return Some((reply.to, reply.mad));
        }
        if let Some(query) = self.queries.iter_mut().flatten().find(|query| query.pending) {
            query.pending = false;
            return Some((query.to, query.message));
        }
        // After the one whose turn was last, so that none has to wait for others for ever.
        let first = self.turn;
        let order = (first..CONNECTIONS).chain(0..first.min(CONNECTIONS));
        for index in order {
            let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
            if let Some(datagram) = connection.take_pending() {
                self.turn = index + 1;
                return Some(datagram);
            }
        }
        None
    }

    /// Returns when [`Endpoint::advance`] has something to do. `None` if nothing is waited for.
    pub fn next_deadline(&self) -> Option<Instant> {
        let connections = self.connections.iter().flatten().filter_map(|connection| connection.deadline);
        connections.chain(self.queries.iter().flatten().map(|query| query.deadline)).min()
    }

    fn find(&mut self, id: ConnectionId) -> Result<&mut Connection, CmError> {
        match self.connections.get_mut(usize::from(id.index)) {
            Some(Some(connection)) if connection.generation == id.generation => Ok(connection),
            _ => Err(CmError::UnknownConnection),
        }
    }

    /// Returns an entry of the table that fits, with its ID.
    fn matching(&mut self, fits: impl Fn(&Connection) -> bool) -> Option<(ConnectionId, &mut Connection)> {
        let entries = (0u16..).zip(&mut self.connections);
        let mut connections = entries.filter_map(|(index, entry)| Some((index, entry.as_mut()?)));
        let (index, connection) = connections.find(|(_, connection)| fits(connection))?;
        Some((ConnectionId { index, generation: connection.generation }, connection))
    }

    /// Puts a connection into a free entry.
    fn insert(&mut self, connection: Connection) -> Result<ConnectionId, CmError> {
        let free = (0u16..).zip(&mut self.connections).find(|(_, entry)| entry.is_none());
        let (index, entry) = free.ok_or(CmError::TableFull { capacity: CONNECTIONS })?;
        let generation = self.generation;
        self.generation = generation.wrapping_add(1);
        *entry = Some(Connection { generation, ..connection });
        Ok(ConnectionId { index, generation })
    }

    /// Lets an answer without a connection wait to be transmitted, or drops it.
    fn reply(&mut self, to: Address, mad: Mad) {
        if self.replies.push_back(Reply { to, mad }).is_err() {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Returns a communication ID that no connection has, from a random number. 0 is none.
    fn unused_comm_id(&self, random: u32) -> u32 {
        let in_use = |id| id == 0 || self.connections.iter().flatten().any(|connection| connection.local_id.0 == id);
        // One more than there are entries, and one for 0: one of these is unused.
        let candidates = (0..).map(|more| random.wrapping_add(more)).take(CONNECTIONS.saturating_add(2));
        candidates.into_iter().find(|id| !in_use(*id)).unwrap_or(random)
    }
}
