//! State of the responder: the message that is arriving, its receive, responses that wait, and what ends a request.

use std::collections::VecDeque;

use bareverbs_mlx5_spec::{CqeOpcode, CqeSyndrome, EventType};

use crate::engine::cq::Source;
use crate::engine::memory::key::{Access, Right};
use crate::engine::psn;
use crate::engine::responder::aeth_credit::NO_COUNT;
use crate::engine::srq::SrqName;
use crate::packet::{Reth, Syndrome};
use crate::registry::{RESPONSE_MEMORY, Registry, response_places};
use crate::wqe_decode::DataPointer;

/// Maximum responses that wait when another acknowledgement comes.
const MAX_REPLIES: usize = 1024;
/// The same when memory is short. With the reads and atomics, as many repeated, and a last error they have room in the places
/// that are counted with the queue pair.
const ASSURED_REPLIES: usize = 31;
/// Places that a queue pair keeps when no response waits.
const KEPT_PLACES: usize = 64;

/// Acknowledged. How many receives are posted is filled in when it is sent.
pub(in crate::engine) const ACKNOWLEDGED: Syndrome = Syndrome::Ack(NO_COUNT);

/// The message that is arriving.
#[derive(Debug)]
pub(in crate::engine) enum Inbound {
    Send { receive: Receive, written: u64 },
    Write { addr: u64, rkey: u32, left: u64, total: u64 },
}

/// A request that cannot be carried out.
pub(in crate::engine) struct Refusal {
    /// The NAK that the peer gets; `None`: none.
    pub(in crate::engine) syndrome: Option<Syndrome>,
    pub(in crate::engine) receive: Option<CqeSyndrome>,
    pub(in crate::engine) event: Option<EventType>,
}

impl Refusal {
    pub(in crate::engine) const INVALID: Self =
        Self { syndrome: Some(Syndrome::InvalidRequest), receive: None, event: Some(EventType::WqInvalReqError) };
    pub(in crate::engine) const ACCESS: Self =
        Self { syndrome: Some(Syndrome::RemoteAccess), receive: None, event: Some(EventType::WqAccessError) };

    /// The shared receive queue has failed, and with it every queue pair that takes from it.
    pub(in crate::engine) const QUEUE: Self =
        Self { syndrome: Some(Syndrome::RemoteOperational), receive: None, event: Some(EventType::WqCatasError) };

    /// Ends with an error in the completion of the receive that the request uses, instead of an event.
    pub(in crate::engine) const fn of_receive(syndrome: Syndrome, receive: CqeSyndrome) -> Self {
        Self { syndrome: Some(syndrome), receive: Some(receive), event: None }
    }

    /// The key that a message is to invalidate cannot be invalidated. The message arrived, so the peer gets no NAK, neither
    /// good nor bad (class J of InfiniBand Architecture 9.9.6.3). The receive says that the request was invalid, as with
    /// Linux's software device (`rxe_resp.c`, `RESPST_ERR_INVALIDATE_RKEY`).
    pub(in crate::engine) const INVALIDATION: Self =
        Self { syndrome: None, receive: Some(CqeSyndrome::RemoteInvalReq), event: None };
}

/// Why a request was not carried out.
pub(in crate::engine) enum Stop {
    /// No receive is posted: the peer gets an RNR NAK and tries again.
    NotReady,
    /// The queue pair fails.
    Refused(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// State of the responder.
#[derive(Debug, Default)]
pub(in crate::engine) struct Responder {
    /// Number of the next request packet.
    pub(in crate::engine) expected_psn: u32,
    /// Requests carried out, 24 bits.
    pub(in crate::engine) msn: u32,
    /// Receives used.
    pub(in crate::engine) consumed: u16,
    pub(in crate::engine) message: Option<Inbound>,
    /// Of an XRC target: the shared receive queue of the newest request. It may be destroyed at any time.
    pub(in crate::engine) xrc_srq: Option<SrqName>,
    /// A receive that a forgotten message leaves to the next one.
    pub(in crate::engine) spare: Option<Receive>,
    /// A gap or a missing receive was reported by a NAK; no other one is sent until the expected packet comes.
    pub(in crate::engine) nak_sent: bool,
    /// The first request came.
    pub(in crate::engine) established: bool,
    /// A fatal response is queued; requests are ignored.
    pub(in crate::engine) fatal_queued: bool,
    /// The event that nothing more is taken from the shared receive queue was raised.
    pub(in crate::engine) last_wqe_reported: bool,
    pub(in crate::engine) replies: VecDeque<Reply>,
    /// Results of the newest atomics, by their packet's number.
    pub(in crate::engine) atomics: VecDeque<(u32, u64)>,
}

impl Responder {
    pub(in crate::engine) fn start(&mut self, psn: u32) {
        self.expected_psn = psn;
    }

    /// Forgets the message that is arriving and the queued responses.
    pub(in crate::engine) fn abandon(&mut self) {
        self.message = None;
        self.replies.clear();
        self.replies.shrink_to(KEPT_PLACES);
    }

    /// Leaves the receive of the present message, which is forgotten, to the next one.
    pub(in crate::engine) fn keep_receive(&mut self) {
        if let Some(Inbound::Send { receive, .. }) = self.message.take() {
            self.spare = Some(receive);
        }
    }

    pub(in crate::engine) fn take_spare(&mut self) -> Option<Receive> {
        self.spare.take()
    }

    /// Returns whether more of the present message must come.
    pub(in crate::engine) fn is_amid_message(&self) -> bool {
        self.message.is_some()
    }

    /// Reads and atomics whose responses are queued: of first requests, or of repeated ones.
    pub(in crate::engine) fn pending_responses(&self, repeated: bool) -> usize {
        let counts = |reply: &&Reply| match reply {
            Reply::Read { again, .. } | Reply::Atomic { again, .. } => *again == repeated,
            _ => false,
        };
        self.replies.iter().filter(counts).count()
    }

    /// Queues an acknowledgement; one takes the place of the one before it. A NAK that still waits to be sent is not followed
    /// by the same one, nor by an acknowledgement of what is before its packet, which it acknowledges itself.
    pub(in crate::engine) fn acknowledge(&mut self, registry: &Registry, psn: u32, syndrome: Syndrome) {
        let msn = self.msn;
        if let (Syndrome::Ack(_), Some(Reply::Acknowledge { psn: last, syndrome: Syndrome::Ack(_), msn: counted })) =
            (syndrome, self.replies.back_mut())
            && psn::ahead(psn, *last) >= 0
        {
            *last = psn;
            *counted = msn;
            return;
        }
        if let Some(Reply::Acknowledge { psn: last, syndrome: waiting, .. }) = self.replies.back()
            && !matches!(waiting, Syndrome::Ack(_))
            && ((psn, syndrome) == (*last, *waiting) || psn::ahead(psn, *last) < 0)
        {
            return;
        }
        // A peer that keeps requesting while nothing can be sent repeats the request later.
        if self.replies.len() < ASSURED_REPLIES
            || (self.replies.len() < MAX_REPLIES && registry.has_memory(self.memory_of_next()))
        {
            self.replies.push_back(Reply::Acknowledge { psn, syndrome, msn });
        }
    }

    /// Takes the response that is sent next.
    pub(in crate::engine) fn next_reply(&mut self) -> Option<Reply> {
        let reply = self.replies.pop_front();
        if self.replies.is_empty() {
            self.replies.shrink_to(KEPT_PLACES);
        }
        reply
    }

    /// Returns the bytes of this process that responses take beyond what is counted with a queue pair that takes as many reads
    /// and atomics at a time.
    pub(in crate::engine) fn memory(&self, reads: usize) -> u64 {
        const { assert!(size_of::<Reply>() <= RESPONSE_MEMORY, "a response takes more than is counted") };
        (self.replies.capacity().saturating_sub(response_places(reads)) * RESPONSE_MEMORY) as u64
    }

    /// Returns the bytes that one more response takes.
    fn memory_of_next(&self) -> u64 {
        let places = if self.replies.len() == self.replies.capacity() { self.replies.capacity() } else { 0 };
        (places * RESPONSE_MEMORY) as u64
    }
}

/// A receive in use.
#[derive(Debug)]
pub(in crate::engine) struct Receive {
    pub(in crate::engine) index: u16,
    /// Domain of its keys: that of the queue it was posted to, which a shared one has for itself.
    pub(in crate::engine) pd: u32,
    pub(in crate::engine) list: Vec<DataPointer>,
}

impl Receive {
    /// Returns the bytes that it has room for.
    pub(in crate::engine) fn len(&self) -> u64 {
        self.list.iter().map(|pointer| pointer.len).sum()
    }

    /// Returns the right of a queue pair to place bytes in it.
    pub(in crate::engine) fn access(&self, qpn: u32) -> Access {
        Access { right: Right::LocalWrite, pd: self.pd, qpn }
    }
}

/// Why a posted receive cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum NoReceive {
    /// It could not be read or makes no sense. The message in progress has what is needed to complete it.
    BadWqe,
    /// The shared receive queue has failed, and so does a queue pair that takes from it.
    Queue,
}

/// A receive that ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct ReceiveDone {
    pub(in crate::engine) opcode: CqeOpcode,
    pub(in crate::engine) index: u16,
    pub(in crate::engine) byte_cnt: u32,
    pub(in crate::engine) immediate: u32,
    pub(in crate::engine) solicited: bool,
    pub(in crate::engine) source: Source,
    pub(in crate::engine) error: Option<CqeSyndrome>,
}

/// A response that waits to be sent.
#[derive(Debug)]
pub(in crate::engine) enum Reply {
    Acknowledge {
        psn: u32,
        syndrome: Syndrome,
        msn: u32,
    },
    /// `again`: the request came before, so it takes none of the places that the peer may use.
    Read {
        psn: u32,
        packets: u32,
        sent: u32,
        source: Reth,
        /// Of an XRC target: the shared receive queue whose domain opens its key.
        srq: Option<SrqName>,
        msn: u32,
        again: bool,
    },
    Atomic {
        psn: u32,
        original: u64,
        msn: u32,
        again: bool,
    },
    Fatal(Fatal),
}

/// The last response of a queue pair: a NAK, if the peer gets one, and the error on this side.
#[derive(Debug)]
pub(in crate::engine) struct Fatal {
    pub(in crate::engine) psn: u32,
    pub(in crate::engine) syndrome: Option<Syndrome>,
    pub(in crate::engine) receive: Option<(u16, CqeSyndrome)>,
    pub(in crate::engine) event: Option<EventType>,
}
