//! Completion queues: entries written, arming, overrun.

mod moderation;
mod notify;
mod resize;

use std::collections::{BTreeMap, VecDeque};

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{CQE, CmdStatus, CqArm, CqDoorbellRecord, Cqc, Cqe, CqeOpcode, CqeSyndrome, ErrCqe, View, ViewMut};

use self::moderation::{Due, Moderation};
use crate::audit::Finding;
use crate::engine::event::EngineEvent;
use crate::engine::memory::page_source::PageSource;
use crate::engine::ring::{Pages, Ring};
use crate::fault::Fault;
use crate::host_memory::{DmaFault, read_array};
use crate::registry::{ObjectKind, Registry, Resource};
use crate::rejection::Rejection;
use crate::step::StepContext;
use crate::trace::Record;

const MAX_LOG_SIZE: u32 = 22;
/// Counters of a completion queue have 24 bits.
const COUNTER: u32 = 0xff_ffff;
/// Bit of [`Cqe::L4_HDR_TYPE_ETC`]: there is a [`Cqe::VLAN_INFO`] (Linux `handle_responder`).
const VLAN_PRESENT: u32 = 1;
/// [`Cqc::STATUS`] of a queue that overran.
const STATUS_OVERFLOW: u32 = 9;
/// [`Cqc::ST`]: armed for the next entry, for the next solicited one, and neither.
const ST_ARMED: u32 = 6;
const ST_SOLICITED_ARMED: u32 = 9;
const ST_FIRED: u32 = 0xa;

/// Syndromes of a completion queue error.
const OVERRUN: u8 = 1;
const NO_MEMORY: u8 = 2;

/// The content of an entry.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Completion {
    pub(in crate::engine) opcode: CqeOpcode,
    pub(in crate::engine) qpn: u32,
    pub(in crate::engine) user_index: u32,
    pub(in crate::engine) wqe_counter: u16,
    pub(in crate::engine) send_opcode: u8,
    pub(in crate::engine) byte_cnt: u32,
    pub(in crate::engine) immediate: u32,
    pub(in crate::engine) solicited: bool,
    /// Service level and queue pair of the sender, for receives.
    pub(in crate::engine) source: Source,
    /// For errors: the syndrome and the vendor's own one.
    pub(in crate::engine) error: Option<(CqeSyndrome, u8)>,
    /// For frames that were received.
    pub(in crate::engine) frame: Option<FrameCompletion>,
}

/// What the completion of a received frame says of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct FrameCompletion {
    /// The hash that chose the queue, and over what it was.
    pub(in crate::engine) hash: (u32, u8),
    /// Sum over the IP packet.
    pub(in crate::engine) sum: u16,
    /// What was found right, in bits from 0 on: Ethernet, IP, TCP or UDP.
    pub(in crate::engine) right: u8,
    /// Kinds of headers, in bits from 2 on.
    pub(in crate::engine) kinds: u8,
    /// A VLAN tag that was taken out.
    pub(in crate::engine) tag: Option<u16>,
    /// The tag of the rule that it matched.
    pub(in crate::engine) flow_tag: u32,
}

impl Completion {
    /// Returns whether it causes an event on a queue armed for solicited entries.
    fn is_solicited(&self) -> bool {
        self.solicited || self.error.is_some()
    }
}

/// Where a received message came from.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Source {
    pub(in crate::engine) slid: u16,
    pub(in crate::engine) sl: u8,
    pub(in crate::engine) qpn: u32,
    pub(in crate::engine) grh: bool,
    /// VLAN tag of a datagram, as it is behind its type.
    pub(in crate::engine) vlan: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Next,
    Solicited,
}

#[derive(Debug)]
pub(in crate::engine) struct Cq {
    context: [u8; 64],
    ring: Ring,
    log_size: u32,
    eqn: u32,
    dbr_addr: u64,
    overrun_ignored: bool,
    producer: u32,
    /// Producer counter after the newest solicited entry.
    solicited_end: Option<u32>,
    armed: Armed,
    moderation: Moderation,
    failed: bool,
    /// The consumer was already reported for running ahead.
    reported: bool,
}

/// An entry could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct CqFailed;

#[derive(Debug, Default)]
pub(in crate::engine) struct CqTable {
    cqs: BTreeMap<u32, Cq>,
    /// Events that moderation delays.
    due: Due,
}

/// Returns how far `a` is ahead of `b` in 24 bits, negative if before.
fn ahead(a: u32, b: u32) -> i32 {
    ((a.wrapping_sub(b) << 8) as i32) >> 8
}

/// Returns the bytes of an entry, as a power of two.
fn log_stride(cqc: View<'_, Cqc>) -> Option<u32> {
    match cqc.get(Cqc::CQE_SZ) {
        0 => Some(6),
        1 => Some(7),
        _ => None,
    }
}

impl CqTable {
    /// Adds a queue whose doorbell record lies in user memory `record`.
    pub(in crate::engine) fn create(
        &mut self,
        registry: &mut Registry,
        cqc: View<'_, Cqc>,
        source: PageSource<'_>,
        record: Option<u32>,
    ) -> Result<u32, CmdStatus> {
        let context: [u8; 64] = cqc.as_bytes().first_chunk().copied().ok_or(CmdStatus::BadInputLen)?;
        let log_size = cqc.get(Cqc::LOG_CQ_SIZE);
        let log_stride = log_stride(cqc).ok_or(CmdStatus::BadParam)?;
        let dbr_addr = cqc.get64(Cqc::DBR_ADDR);
        if log_size > MAX_LOG_SIZE || !dbr_addr.is_multiple_of(8) {
            return Err(CmdStatus::BadParam);
        }
        let (log_page, page_offset) = (cqc.get(Cqc::LOG_PAGE_SIZE), cqc.get(Cqc::PAGE_OFFSET));
        let plan = Pages::plan(source, log_page, page_offset, 1 << (log_size + log_stride))?;
        let eqn = cqc.get(Cqc::C_EQN_OR_APU_ELEMENT);
        let mut uses = vec![Resource::uar(cqc.get(Cqc::UAR_PAGE)), Resource::eq(eqn)];
        uses.extend(plan.umem());
        uses.extend(record.map(Resource::umem));
        let cqn = registry.create(ObjectKind::Cq, plan.memory(), uses)?;
        let cq = Cq {
            context,
            ring: Ring::new(plan.pages(), 0, log_size, log_stride),
            log_size,
            eqn,
            dbr_addr,
            overrun_ignored: cqc.is_set(Cqc::OI),
            producer: 0,
            solicited_end: None,
            armed: Armed::No,
            moderation: Moderation::new(cqc),
            failed: false,
            reported: false,
        };
        self.cqs.insert(cqn, cq);
        Ok(cqn)
    }

    pub(in crate::engine) fn query(
        &self,
        cqn: u32,
        ctx: &StepContext<'_>,
        out: &mut ViewMut<'_, Cqc>,
    ) -> Result<(), CmdStatus> {
        let cq = self.cqs.get(&cqn).ok_or(CmdStatus::BadRes)?;
        for (to, from) in out.as_bytes_mut().iter_mut().zip(cq.context) {
            *to = from;
        }
        let consumer = cq.consumer(ctx).unwrap_or(0);
        let state = match cq.armed {
            Armed::No => ST_FIRED,
            Armed::Next => ST_ARMED,
            Armed::Solicited => ST_SOLICITED_ARMED,
        };
        out.set(Cqc::STATUS, if cq.failed { STATUS_OVERFLOW } else { 0 })
            .set(Cqc::ST, state)
            .set(Cqc::CONSUMER_COUNTER, consumer)
            .set(Cqc::PRODUCER_COUNTER, cq.producer & COUNTER)
            .set(Cqc::LAST_SOLICIT_INDEX, cq.solicited_end.unwrap_or(0));
        Ok(())
    }

    /// Lets the producer counter start elsewhere.
    #[cfg(test)]
    pub(in crate::engine) fn start_at(&mut self, cqn: u32, producer: u32) {
        if let Some(cq) = self.cqs.get_mut(&cqn) {
            cq.producer = producer;
        }
    }

    /// Ends a queue that nothing uses. Returns the firmware memory that it had.
    pub(in crate::engine) fn destroy(&mut self, registry: &mut Registry, cqn: u32) -> Result<u64, CmdStatus> {
        let room = registry.destroy(Resource::cq(cqn))?;
        self.cqs.remove(&cqn);
        self.due.forget(cqn);
        Ok(room)
    }

    /// Arms a queue. Entries that the host has not seen cause an event at once, moderation or not.
    pub(in crate::engine) fn arm(
        &mut self,
        cqn: u32,
        now: Instant,
        arm: View<'_, CqArm>,
        events: &mut VecDeque<EngineEvent>,
    ) -> bool {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return false };
        self.due.forget(cqn);
        cq.moderation.start();
        let seen = arm.get(CqArm::CONSUMER_INDEX);
        // Armed for any entry it stays so until it has reported one (InfiniBand Architecture C11-31).
        let solicited = arm.is_set(CqArm::SOLICITED) && cq.armed != Armed::Next;
        let unseen =
            if solicited { cq.solicited_end.is_some_and(|end| ahead(end, seen) > 0) } else { ahead(cq.producer, seen) > 0 };
        if unseen {
            cq.fire(cqn, now, events);
        } else {
            cq.armed = if solicited { Armed::Solicited } else { Armed::Next };
        }
        true
    }

    /// Writes an entry, and an event if the queue is armed for it.
    pub(in crate::engine) fn write(
        &mut self,
        ctx: &mut StepContext<'_>,
        cqn: u32,
        completion: &Completion,
        events: &mut VecDeque<EngineEvent>,
    ) -> Result<(), CqFailed> {
        let cq = self.cqs.get_mut(&cqn).ok_or(CqFailed)?;
        if ctx.faults.take(|fault| matches!(fault, Fault::DropCqe { cqn: at } if *at == cqn).then_some(())).is_some() {
            return Ok(());
        }
        let repeat = ctx.faults.take(|fault| matches!(fault, Fault::RepeatCqe { cqn: at } if *at == cqn).then_some(()));
        for _ in 0..1 + u32::from(repeat.is_some()) {
            cq.put(ctx, cqn, completion, events)?;
            cq.notify(cqn, ctx.now, completion, &mut self.due, events);
        }
        Ok(())
    }
}

impl Cq {
    fn consumer(&self, ctx: &StepContext<'_>) -> Option<u32> {
        let record = read_array::<8>(ctx.memory, self.dbr_addr).ok()?;
        Some(View::<CqDoorbellRecord>::of(&record).get(CqDoorbellRecord::CONSUMER_INDEX))
    }

    fn fail(&mut self, cqn: u32, syndrome: u8, events: &mut VecDeque<EngineEvent>) -> CqFailed {
        if !self.failed {
            self.failed = true;
            events.push_back(EngineEvent::CqError { cqn, syndrome });
        }
        CqFailed
    }

    /// Writes an entry at the producer's place. The host may take it as soon as it sees the owner, which is in the last word:
    /// [`write`](crate::host_memory::HostMemory::write) lets the host see that one last.
    fn store(&self, ctx: &StepContext<'_>, entry: &[u8; CQE]) -> Result<(), DmaFault> {
        // The entry lies in the second half of a longer one.
        self.ring.write(ctx.memory, self.producer, (self.ring.stride() - CQE) as u64, entry)
    }

    fn put(
        &mut self,
        ctx: &mut StepContext<'_>,
        cqn: u32,
        completion: &Completion,
        events: &mut VecDeque<EngineEvent>,
    ) -> Result<(), CqFailed> {
        if self.failed {
            return Err(CqFailed);
        }
        let Some(consumer) = self.consumer(ctx) else { return Err(self.fail(cqn, NO_MEMORY, events)) };
        let unread = ahead(self.producer, consumer);
        if unread < 0 && !self.reported {
            self.reported = true;
            ctx.audit.report(Finding::ConsumerPastProducer { number: cqn, consumer, producer: self.producer });
        }
        if !self.overrun_ignored && unread >= 1 << self.log_size {
            ctx.reject(Rejection::CqOverrun { cqn, entries: 1 << self.log_size });
            return Err(self.fail(cqn, OVERRUN, events));
        }
        let entry = self.entry(ctx, cqn, completion);
        if self.store(ctx, &entry).is_err() {
            return Err(self.fail(cqn, NO_MEMORY, events));
        }
        ctx.trace(Record::Cqe { cqn, index: self.producer, bytes: &entry });
        self.producer = self.producer.wrapping_add(1) & COUNTER;
        if completion.is_solicited() {
            self.solicited_end = Some(self.producer);
        }
        Ok(())
    }

    fn entry(&self, ctx: &mut StepContext<'_>, cqn: u32, completion: &Completion) -> [u8; CQE] {
        let mut entry = [0; CQE];
        let foreign = ctx.faults.take(|fault| match *fault {
            Fault::ForeignQpn { cqn: at, qpn } if at == cqn => Some(qpn),
            _ => None,
        });
        let counter = ctx.faults.take(|fault| match *fault {
            Fault::WrongWqeCounter { cqn: at, counter } if at == cqn => Some(counter),
            _ => None,
        });
        let opcode = ctx.faults.take(|fault| match *fault {
            Fault::CqeOpcode { cqn: at, opcode } if at == cqn => Some(opcode),
            _ => None,
        });
        let wrong_owner =
            ctx.faults.take(|fault| matches!(fault, Fault::WrongOwner { cqn: at } if *at == cqn).then_some(1)).unwrap_or(0);
        if let Some(mut cqe) = ViewMut::<Cqe>::new(&mut entry) {
            let source = &completion.source;
            if let Some(vlan) = source.vlan {
                cqe.set(Cqe::L4_HDR_TYPE_ETC, VLAN_PRESENT).set(Cqe::VLAN_INFO, vlan.into());
            }
            cqe.set(Cqe::SLID, u32::from(source.slid))
                .set(Cqe::SL, u32::from(source.sl))
                .set(Cqe::GRH, u32::from(source.grh))
                .set(Cqe::RQPN, source.qpn)
                .set(Cqe::SRQN_UIDX, foreign.unwrap_or(completion.user_index))
                .set(Cqe::IMM_INVAL_PKEY, completion.immediate)
                .set(Cqe::BYTE_CNT, completion.byte_cnt)
                .set64(Cqe::TIMESTAMP, if completion.error.is_some() { 0 } else { ctx.now.as_nanos() })
                .set(Cqe::SEND_OPCODE, u32::from(completion.send_opcode))
                .set(Cqe::QPN, foreign.unwrap_or(completion.qpn))
                .set(Cqe::WQE_COUNTER, u32::from(counter.unwrap_or(completion.wqe_counter)))
                .set(Cqe::OPCODE, opcode.map_or(completion.opcode.code(), u32::from))
                .set(Cqe::SE, u32::from(completion.solicited))
                .set(Cqe::OWNER, (self.producer >> self.log_size & 1) ^ wrong_owner);
        }
        if let Some(frame) = &completion.frame
            && let Some(mut cqe) = ViewMut::<Cqe>::new(&mut entry)
        {
            let is_tagged = if frame.tag.is_some() { VLAN_PRESENT } else { 0 };
            cqe.set(Cqe::RSS_HASH_RESULT, frame.hash.0)
                .set(Cqe::RSS_HASH_TYPE, frame.hash.1.into())
                .set(Cqe::CHECK_SUM, frame.sum.into())
                .set(Cqe::HDS_IP_EXT, frame.right.into())
                .set(Cqe::L4_HDR_TYPE_ETC, u32::from(frame.kinds) | is_tagged)
                .set(Cqe::VLAN_INFO, frame.tag.unwrap_or(0).into())
                .set(Cqe::QPN, foreign.unwrap_or(frame.flow_tag));
        }
        if let Some((syndrome, vendor)) = completion.error
            && let Some(mut cqe) = ViewMut::<ErrCqe>::new(&mut entry)
        {
            // An error entry has its syndromes where others have the time.
            cqe.set(ErrCqe::VENDOR_ERR_SYND, u32::from(vendor)).set(ErrCqe::SYNDROME, syndrome.code());
        }
        entry
    }
}
