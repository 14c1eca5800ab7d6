//! One connection: its state, and what is kept to answer and to repeat.

use core::time::Duration;

use bareverbs::platform::Instant;
use bareverbs::{Guid, Lid, Mtu, Psn, Qpn};

use crate::codes::Transport;
use crate::event::{Attributes, Cause, ConnectionId, Event, RtrAttributes, RtsAttributes};
use crate::message::{CommId, MAD_BYTES, Mad};
use crate::path::{Address, PathAddress, Peer};

/// State of a connection (IBTA volume 1, 12.9.5 to 12.9.7). MRA does not change the state: it moves the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// We have sent a REQ.
    ReqSent,
    /// The caller is to be ready, or to reject.
    RepReceived,
    /// The caller is to accept or to reject.
    ReqReceived,
    /// We have sent a REP.
    RepSent,
    Established,
    /// We have sent a DREQ.
    DreqSent,
    /// It has ended; packets of it may be under way until the deadline.
    TimeWait,
}

/// Which side we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Active,
    Passive,
}

/// How the queue pairs are to be connected, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) transport: Transport,
    pub(super) path: PathAddress,
    pub(super) source_lid: Lid,
    pub(super) path_mtu: Mtu,
    pub(super) partition_key: u16,
    pub(super) local_psn: Psn,
    pub(super) remote_psn: Psn,
    /// Of the active side: what its packets take, to which the peer's ACK delay is added.
    pub(super) packet_life_time: u8,
    pub(super) ack_timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) generation: u32,
    pub(super) role: Role,
    pub(super) state: State,
    pub(super) local_id: CommId,
    /// Known from the first message of the peer on.
    pub(super) remote_id: Option<CommId>,
    pub(super) remote_guid: Guid,
    pub(super) local_qpn: Qpn,
    /// 0 until it is known.
    pub(super) remote_qpn: Qpn,
    pub(super) transaction: u64,
    pub(super) to: Address,
    /// Who it is, for limits.
    pub(super) peer: Peer,
    pub(super) terms: Terms,
    /// How long an answer may take.
    pub(super) wait: Duration,
    pub(super) time_wait: Duration,
    pub(super) max_retries: u8,
    pub(super) retries_left: u8,
    /// When something must be done; `None` if nothing is waited for.
    pub(super) deadline: Option<Instant>,
    /// When what is waited for is given up, whatever MRAs say.
    pub(super) expires: Instant,
    /// The last message that we sent: what a duplicate is answered with, and what is repeated.
    pub(super) message: Option<Mad>,
    /// Whether the message is to be transmitted.
    pub(super) pending: bool,
    /// Whether the caller knows that it is released, though the peer has not answered yet.
    pub(super) reported: bool,
}

impl Connection {
    /// Whether its opening is still under way on the passive side, where a peer can make entries.
    pub(super) fn is_half_open(&self) -> bool {
        self.role == Role::Passive && matches!(self.state, State::ReqReceived | State::RepSent)
    }

    /// Whether its messages have these communication IDs, as the peer writes them.
    pub(super) fn has_ids(&self, theirs: CommId, ours: CommId) -> bool {
        self.local_id == ours && self.remote_id == Some(theirs)
    }

    /// Sets the message that goes out next, and again at each duplicate of what it answers.
    pub(super) fn send(&mut self, message: Mad) {
        self.message = Some(message);
        self.pending = true;
    }

    /// Sends the last message once more, if there is one.
    pub(super) fn send_again(&mut self) {
        self.pending = self.message.is_some();
    }

    /// Returns the message, if it is to be transmitted: no second time without [`Connection::send_again`].
    pub(super) fn take_pending(&mut self) -> Option<(Address, Mad)> {
        let pending = core::mem::take(&mut self.pending);
        let message = self.message.filter(|_| pending)?;
        Some((self.to, message))
    }

    /// Starts to wait for the answer to a message, which is repeated.
    pub(super) fn wait_for_answer(&mut self, now: Instant, longest: Duration) {
        self.retries_left = self.max_retries;
        self.expires = now.after(longest);
        self.deadline = Some(now.after(self.wait).min(self.expires));
    }

    /// Waits longer, as an MRA asks, but not after `expires`. A short time of service makes no deadline earlier.
    pub(super) fn wait_longer(&mut self, now: Instant, service: Duration) {
        let end = now.after(service.saturating_add(self.wait));
        self.deadline = Some(self.deadline.map_or(end, |before| before.max(end)).min(self.expires));
    }

    /// At the deadline: repeats the message, or returns `false` if that was done often enough.
    pub(super) fn repeat(&mut self, now: Instant) -> bool {
        let Some(left) = self.retries_left.checked_sub(1).filter(|_| now < self.expires) else { return false };
        self.retries_left = left;
        self.deadline = Some(now.after(self.wait).min(self.expires));
        self.send_again();
        true
    }

    /// Ends it. Its queue pair may have been connected.
    pub(super) fn end(&mut self, now: Instant) {
        self.state = State::TimeWait;
        self.deadline = Some(now.after(self.time_wait));
        self.message = None;
        self.pending = false;
    }

    /// Ends it before any queue pair was connected: there is nothing to wait for, and the peer may ask again with the same one.
    pub(super) fn end_at_once(&mut self, now: Instant) {
        self.end(now);
        self.deadline = Some(now);
        self.remote_qpn = Qpn::new(0);
    }

    /// Returns the event of its release, which is reported once.
    pub(super) fn released<'a>(&mut self, id: ConnectionId, cause: Cause, private_data: &'a [u8]) -> Option<Event<'a>> {
        let first = !core::mem::replace(&mut self.reported, true);
        first.then_some(Event::Disconnected { id, cause, private_data })
    }

    /// Returns what the queue pair is to be modified with.
    pub(super) fn attributes(&self) -> Attributes {
        let terms = &self.terms;
        Attributes {
            transport: terms.transport,
            partition_key: terms.partition_key,
            rtr: RtrAttributes {
                path: terms.path,
                source_lid: terms.source_lid,
                path_mtu: terms.path_mtu,
                dest_qpn: self.remote_qpn,
                // Each side names the PSN at which the other begins (IBTA volume 1, 12.7.31).
                rq_psn: terms.local_psn,
                max_dest_rd_atomic: terms.responder_resources,
            },
            rts: RtsAttributes {
                sq_psn: terms.remote_psn,
                timeout: terms.ack_timeout,
                retry_cnt: terms.retry_count,
                rnr_retry: terms.rnr_retry,
                max_rd_atomic: terms.initiator_depth,
            },
        }
    }
}

/// A question for a service ID that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Query {
    pub(super) request_id: u32,
    pub(super) service_id: u64,
    pub(super) to: Address,
    pub(super) message: Mad,
    pub(super) pending: bool,
    pub(super) wait: Duration,
    pub(super) retries_left: u8,
    pub(super) deadline: Instant,
}

/// A datagram that belongs to no entry of a table, until it is transmitted.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) to: Address,
    pub(super) mad: [u8; MAD_BYTES],
}
