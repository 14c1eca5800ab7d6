//! XRC on a device of the model: an initiator and a target for each pair, shared receive queues of one domain that all targets take from,
//! and one of another domain, which no request may reach.

use bareverbs::{
    Access, Completion, CompletionQueue, DmaBuffer, NoReceives, PdHandle, QueuePair, RecvWr, Region, Sge, SharedReceiveQueue,
    SrqCap, SrqInit, Srqn, Verbs, WcOpcode, WcStatus, XrcDomain,
};
use bareverbs_sim::in_process::{Host, SimBuffer};
use bareverbs_testing::Driver;

use crate::hosts::PLACES;
use crate::program::{CQS, DOMAINS, MESSAGES, PAIRS};

/// Shared receive queues that the targets of a device take from, one of each protection domain. The keys of requests are looked up in
/// the domain of the queue that they name.
pub(crate) const QUEUES: usize = DOMAINS;
/// `wr_id`s of the receives of queue n begin at n + 1 times this.
const IDS: u64 = 1 << 8;

/// Both queue pairs of a device: what sends to the peer, and what receives from it.
pub(crate) struct XrcPair<'s> {
    pub(crate) initiator: QueuePair<'s, Driver, NoReceives>,
    pub(crate) target: QueuePair<'s, Driver, NoReceives>,
}

/// A shared receive queue with the places of its receives.
pub(crate) struct Queue<'s> {
    pub(crate) srq: SharedReceiveQueue<'s, Driver>,
    pub(crate) srqn: Srqn,
    places: Region<'s, SimBuffer>,
    free: Vec<u64>,
    /// How many receives are left that no message takes.
    pub(crate) left: usize,
}

pub(crate) struct Xrc<'s> {
    pub(crate) domain: XrcDomain<Driver>,
    other_domain: XrcDomain<Driver>,
    pub(crate) queues: Vec<Queue<'s>>,
    /// Of the other domain: nothing is received here.
    foreign: SharedReceiveQueue<'s, Driver>,
    foreign_srqn: Srqn,
    /// Receives that are left there.
    pub(crate) foreign_receives: usize,
}

/// Returns which queue a receive is of, by its `wr_id`.
pub(crate) fn queue_of(done: &Completion) -> Option<usize> {
    let is_recv = matches!(done.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
    let index = (done.wr_id / IDS).checked_sub(1)? as usize;
    (is_recv && index < QUEUES).then_some(index)
}

/// Returns the list of arrivals of a pair in a queue.
pub(crate) const fn arrivals_of(pair: usize, queue: usize) -> usize {
    pair + queue * PAIRS.len()
}

impl<'s> Queue<'s> {
    fn new(
        host: &Host,
        verbs: &mut Verbs<'s, Driver>,
        (pd, domain): (PdHandle, &XrcDomain<Driver>),
        cq: &mut CompletionQueue<'s, Driver>,
    ) -> Self {
        let init = SrqInit { pd, cap: SrqCap { max_wr: PLACES as u32, max_sge: 2 } };
        let srq = verbs.create_xrc_srq(&init, domain, cq).expect("an XRC SRQ");
        let srqn = verbs.srq_info(srq.handle()).expect("just created").srqn;
        let places = verbs.reg_mr(pd, host.memory(PLACES * MESSAGES).whole(), Access::LOCAL_WRITE).expect("a region");
        Self { srq, srqn, places, free: (0..PLACES as u64).rev().collect(), left: 0 }
    }

    /// Makes a receive of the queue with this index ready, if a place is free.
    pub(crate) fn take_place(&mut self, index: usize) -> Option<(u64, Vec<Sge>)> {
        let place = self.free.pop()?;
        let at = place * MESSAGES as u64;
        self.left += 1;
        let sges = vec![self.places.sge(at, 100), self.places.sge(at + 100, MESSAGES as u32 - 100)];
        Some(((index as u64 + 1) * IDS + place, sges))
    }

    fn post(&mut self, index: usize) -> Result<(), String> {
        let Some((wr_id, sges)) = self.take_place(index) else { return Ok(()) };
        self.srq.post(&RecvWr { wr_id, sges: &sges }).map_err(|error| format!("an XRC receive: {error}"))
    }

    /// Takes the place of a completed receive; returns it.
    fn take(&mut self, done: &Completion) -> Result<u64, String> {
        let place = done.wr_id % IDS;
        if place >= PLACES as u64 || self.free.contains(&place) {
            return Err(format!("an XRC receive that was not posted: {done:?}"));
        }
        self.free.push(place);
        Ok(place)
    }
}

impl<'s> Xrc<'s> {
    pub(crate) fn new(
        host: &Host,
        verbs: &mut Verbs<'s, Driver>,
        pds: [PdHandle; DOMAINS],
        cqs: &mut [CompletionQueue<'s, Driver>],
    ) -> Self {
        let (domain, other_domain) = (verbs.alloc_xrcd().expect("a domain"), verbs.alloc_xrcd().expect("a domain"));
        let queue = |index: usize| Queue::new(host, verbs, (pds[index], &domain), &mut cqs[index % CQS]);
        let queues = (0..QUEUES).map(queue).collect();
        let init = SrqInit { pd: pds[0], cap: SrqCap { max_wr: PLACES as u32, max_sge: 2 } };
        let mut foreign = verbs.create_xrc_srq(&init, &other_domain, &mut cqs[0]).expect("an XRC SRQ");
        let foreign_srqn = verbs.srq_info(foreign.handle()).expect("just created").srqn;
        foreign.post(&RecvWr { wr_id: 0, sges: &[] }).expect("room");
        Self { domain, other_domain, queues, foreign, foreign_srqn, foreign_receives: 1 }
    }

    pub(crate) fn post(&mut self, queue: usize) -> Result<(), String> {
        self.queues[queue].post(queue)
    }

    /// Returns a number that a request of the peer may not name.
    pub(crate) fn wrong_number(&self, which: u64, other_kind: Srqn) -> Srqn {
        match which % 3 {
            0 => self.foreign_srqn,
            1 => other_kind,
            _ => Srqn::new(0xff_fffe),
        }
    }

    /// Takes a receive with this message.
    pub(crate) fn received(&mut self, queue: usize, done: &Completion, message: &[u8]) -> Result<(), String> {
        let queue = &mut self.queues[queue];
        let place = queue.take(done)?;
        let mut found = vec![0; message.len()];
        queue.places.read(place as usize * MESSAGES, &mut found).expect("inside");
        if found == message { Ok(()) } else { Err(format!("another message in place {place}: {done:?}")) }
    }

    /// Takes a receive of which nobody knows what became.
    pub(crate) fn received_unknown(&mut self, queue: usize, done: &Completion) -> Result<(), String> {
        let queue = &mut self.queues[queue];
        queue.take(done)?;
        // Flushed too, it was taken: by a message that has not come whole. Not by the loss of the device.
        queue.left = queue.left.saturating_sub(1);
        if matches!(done.status, WcStatus::Success | WcStatus::WrFlushErr) { Ok(()) } else { Err(format!("{done:?}")) }
    }

    /// Returns how many receives have no completion, after the device was lost.
    pub(crate) fn not_given(&self) -> usize {
        self.queues.iter().map(|queue| PLACES - queue.free.len()).sum()
    }

    /// Destroys everything, which no queue pair uses.
    pub(crate) fn end(self, verbs: &mut Verbs<'s, Driver>) -> Result<(), String> {
        for queue in self.queues {
            verbs.destroy_srq(queue.srq).map_err(|refused| refused.error.to_string())?;
            verbs.dereg_mr(queue.places).map_err(|refused| refused.error.to_string())?;
        }
        verbs.destroy_srq(self.foreign).map_err(|refused| refused.error.to_string())?;
        for domain in [self.domain, self.other_domain] {
            verbs.dealloc_xrcd(domain).map_err(|refused| refused.error.to_string())?;
        }
        Ok(())
    }
}
