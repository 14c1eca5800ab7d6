//! Event queues: writing entries, arming, overflow.

use std::collections::BTreeMap;

use bareverbs_mlx5_spec::{
    CmdInterCompEvent, CmdStatus, CompEvent, CqError, EQE, Eqc, Eqe, EventType, PagesReqEvent, PortChange,
    PortStateChangeEvent, QpEvents, View, ViewMut,
};

use crate::audit::Finding;
use crate::fault::Fault;
use crate::registry::{ObjectKind, Registry, Resource};
use crate::step::StepContext;
use crate::trace::Record;

/// Bytes of data in an entry.
const DATA: usize = 28;
/// Bits of producer and consumer counters.
const COUNTER: u32 = 0xff_ffff;
/// [`Eqc::STATUS`] of a queue that has no room.
const STATUS_OVERFLOW: u32 = 9;
/// [`Eqc::STATUS`] of a queue whose memory cannot be written.
const STATUS_WRITE_FAILURE: u32 = 10;
/// [`Eqc::ST`] of an armed queue.
const STATE_ARMED: u32 = 9;
/// [`Eqc::ST`] of a queue that has fired.
const STATE_FIRED: u32 = 10;

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) event_type: EventType,
    pub(crate) sub_type: u8,
    pub(crate) data: [u8; DATA],
}

impl Event {
    fn new<L: bareverbs_mlx5_spec::Layout>(
        event_type: EventType,
        sub_type: u8,
        fill: impl FnOnce(&mut ViewMut<'_, L>),
    ) -> Self {
        let mut data = [0; DATA];
        if let Some(mut view) = ViewMut::<L>::new(&mut data) {
            fill(&mut view);
        }
        Self { event_type, sub_type, data }
    }

    /// Creates the event of a completion queue that has an entry.
    pub(crate) fn completion(cqn: u32) -> Self {
        Self::new::<CompEvent>(EventType::Completion, 0, |data| {
            data.set(CompEvent::CQ_NUMBER, cqn);
        })
    }

    /// Creates the event of a completion queue in error.
    pub(crate) fn cq_error(cqn: u32, syndrome: u8) -> Self {
        Self::new::<CqError>(EventType::CqError, 0, |data| {
            data.set(CqError::CQN, cqn).set(CqError::SYNDROME, syndrome.into());
        })
    }

    /// Creates an event of a queue pair.
    pub(crate) fn qp(event_type: EventType, qpn: u32) -> Self {
        Self::new::<QpEvents>(event_type, 0, |data| {
            data.set(QpEvents::QPN_RQN_SQN, qpn);
        })
    }

    /// Creates the event of a port change.
    pub(crate) fn port(change: PortChange) -> Self {
        Self::new::<PortStateChangeEvent>(EventType::PortChange, change.code() as u8, |data| {
            data.set(PortStateChangeEvent::PORT_NUM, 1);
        })
    }

    /// Creates the event of commands that are done, by slot.
    pub(crate) fn commands(slots: u32) -> Self {
        Self::new::<CmdInterCompEvent>(EventType::Cmd, 0, |data| {
            data.set(CmdInterCompEvent::COMMAND_COMPLETION_VECTOR, slots);
        })
    }

    /// Creates the event by which the firmware requests pages, or (a negative number) offers some back.
    pub(crate) fn page_request(pages: i32) -> Self {
        Self::new::<PagesReqEvent>(EventType::PageRequest, 0, |data| {
            data.set(PagesReqEvent::NUM_PAGES, pages as u32);
        })
    }

    /// Creates the event of a device that has failed.
    pub(crate) fn internal_error() -> Self {
        Self { event_type: EventType::InternalError, sub_type: 0, data: [0; DATA] }
    }
}

/// The memory of a ring: pages of one size, the first one entered at an offset.
#[derive(Clone, Debug)]
struct Ring {
    pages: Vec<u64>,
    log_page: u32,
    offset: u64,
}

impl Ring {
    /// Returns the device address of byte `at`.
    fn addr(&self, at: u64) -> Option<u64> {
        let at = at.checked_add(self.offset)?;
        let page = self.pages.get(usize::try_from(at >> self.log_page).ok()?)?;
        page.checked_add(at & ((1 << self.log_page) - 1))
    }
}

#[derive(Clone, Debug)]
struct Eq {
    context: Vec<u8>,
    mask: [u8; 32],
    ring: Ring,
    log_size: u32,
    overrun_ignored: bool,
    vector: u16,
    producer: u32,
    consumer: u32,
    armed: bool,
    status: u32,
}

impl Eq {
    fn takes(&self, event_type: EventType) -> bool {
        // Bit 0 of the mask is the lowest bit of its first 64-bit word in network order.
        let code = event_type.code() as usize;
        let (word, bit) = (code / 64, code % 64);
        let byte = word * 8 + 7 - bit / 8;
        self.mask.get(byte).is_some_and(|byte| byte >> (bit % 8) & 1 != 0)
    }

    fn unread(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & COUNTER
    }
}

/// The event queues of the device.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventQueues {
    queues: BTreeMap<u32, Eq>,
    /// Vectors to raise, in order.
    interrupts: Vec<u16>,
    dropped: u64,
}

impl EventQueues {
    /// Returns the events that found no queue or no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the queue that takes events of this type.
    pub(crate) fn for_type(&self, event_type: EventType) -> Option<u32> {
        self.queues.iter().find(|(_, eq)| eq.takes(event_type)).map(|(eqn, _)| *eqn)
    }

    /// Creates a queue. Returns its number.
    pub(crate) fn create(
        &mut self,
        registry: &mut Registry,
        context: View<'_, Eqc>,
        mask: &[u8],
        list: &[u8],
        (log_max_size, vectors): (u32, usize),
    ) -> Result<u32, CmdStatus> {
        let log_size = context.get(Eqc::LOG_EQ_SIZE);
        let vector = context.get(Eqc::INTR);
        if log_size > log_max_size || usize::try_from(vector).is_ok_and(|vector| vector >= vectors) {
            return Err(CmdStatus::BadParam);
        }
        let log_page = context.get(Eqc::LOG_PAGE_SIZE) + 12;
        let offset = u64::from(context.get(Eqc::PAGE_OFFSET)) << (log_page - 6);
        let bytes = (EQE as u64) << log_size;
        let needed = usize::try_from((offset + bytes).div_ceil(1 << log_page)).map_err(|_| CmdStatus::BadParam)?;
        let list = list.as_chunks::<8>().0.get(..needed).ok_or(CmdStatus::BadParam)?;
        let pages = list.iter().map(|page| u64::from_be_bytes(*page));
        if pages.clone().any(|page| page.trailing_zeros() < log_page) {
            return Err(CmdStatus::BadParam);
        }
        let uses = vec![Resource::uar(context.get(Eqc::UAR_PAGE))];
        let eqn = registry.create(ObjectKind::Eq, needed as u64 * 8, uses)?;
        let ring = Ring { pages: pages.collect(), log_page, offset };
        let mut event_mask = [0; 32];
        for (to, from) in event_mask.iter_mut().zip(mask) {
            *to = *from;
        }
        let eq = Eq {
            context: context.as_bytes().get(..64).unwrap_or_default().to_vec(),
            mask: event_mask,
            ring,
            log_size,
            overrun_ignored: context.is_set(Eqc::OI),
            vector: vector as u16,
            producer: 0,
            consumer: 0,
            armed: false,
            status: 0,
        };
        self.queues.insert(eqn, eq);
        Ok(eqn)
    }

    /// Destroys a queue to which no completion queue reports. Returns the firmware memory that it had.
    pub(crate) fn destroy(&mut self, registry: &mut Registry, eqn: u32) -> Result<u64, CmdStatus> {
        let room = registry.destroy(Resource::eq(eqn))?;
        self.queues.remove(&eqn);
        Ok(room)
    }

    /// Writes context and event mask of a queue.
    pub(crate) fn query(&self, eqn: u32, out: &mut ViewMut<'_, Eqc>) -> Result<u64, CmdStatus> {
        let eq = self.queues.get(&eqn).ok_or(CmdStatus::BadRes)?;
        for (to, from) in out.as_bytes_mut().iter_mut().zip(&eq.context) {
            *to = *from;
        }
        out.set(Eqc::STATUS, eq.status)
            .set(Eqc::ST, if eq.armed { STATE_ARMED } else { STATE_FIRED })
            .set(Eqc::CONSUMER_COUNTER, eq.consumer)
            .set(Eqc::PRODUCER_COUNTER, eq.producer);
        Ok(eq.mask.first_chunk().map_or(0, |mask| u64::from_be_bytes(*mask)))
    }

    /// Takes a doorbell: the consumer counter, and whether to arm. Returns `false` if there is no such queue.
    pub(crate) fn doorbell(&mut self, ctx: &mut StepContext<'_>, eqn: u32, consumer: u32, arm: bool) -> bool {
        let Some(eq) = self.queues.get_mut(&eqn) else { return false };
        let consumer = consumer & COUNTER;
        if consumer.wrapping_sub(eq.consumer) & COUNTER > eq.unread() {
            ctx.audit.report(Finding::ConsumerPastProducer { number: eqn, consumer, producer: eq.producer });
        } else {
            eq.consumer = consumer;
        }
        if arm {
            eq.armed = true;
            if eq.unread() != 0 {
                eq.armed = false;
                let vector = eq.vector;
                self.interrupt(ctx, vector);
            }
        }
        true
    }

    /// Writes an event to the queue that subscribed its type.
    pub(crate) fn post(&mut self, ctx: &mut StepContext<'_>, event: Event) {
        match self.for_type(event.event_type) {
            Some(eqn) => self.post_to(ctx, eqn, event),
            None => {
                self.dropped += 1;
                ctx.note(|| format!("no event queue takes {}", event.event_type.name()));
            }
        }
    }

    /// Writes an event to a queue, owner byte last; raises its interrupt if the queue is armed.
    pub(crate) fn post_to(&mut self, ctx: &mut StepContext<'_>, eqn: u32, event: Event) {
        let Some(eq) = self.queues.get_mut(&eqn) else {
            self.dropped += 1;
            ctx.note(|| format!("{} for event queue {eqn}, which does not exist", event.event_type.name()));
            return;
        };
        if eq.unread() >= 1 << eq.log_size && !eq.overrun_ignored {
            eq.status = STATUS_OVERFLOW;
            self.dropped += 1;
            ctx.note(|| format!("event queue {eqn} is full, {} lost", event.event_type.name()));
            return;
        }
        let event_type = ctx
            .faults
            .take(|fault| match fault {
                Fault::EventType { event_type } => Some(u32::from(*event_type)),
                _ => None,
            })
            .unwrap_or(event.event_type.code());
        let mut bytes = [0; EQE];
        if let Some(mut eqe) = ViewMut::<Eqe>::new(&mut bytes) {
            eqe.set(Eqe::EVENT_TYPE, event_type)
                .set(Eqe::EVENT_SUB_TYPE, event.sub_type.into())
                .set_bytes(Eqe::EVENT_DATA, &event.data)
                .set(Eqe::OWNER, eq.producer >> eq.log_size);
        }
        let index = u64::from(eq.producer & ((1 << eq.log_size) - 1));
        let written = eq.ring.addr(index * EQE as u64).is_some_and(|addr| {
            let (body, owner) = bytes.split_at(EQE - 1);
            ctx.memory.write(addr, body).is_ok() && ctx.memory.write(addr + EQE as u64 - 1, owner).is_ok()
        });
        if !written {
            eq.status = STATUS_WRITE_FAILURE;
            self.dropped += 1;
            ctx.note(|| format!("the memory of event queue {eqn} cannot be written"));
            return;
        }
        ctx.trace(Record::Eqe { eqn, index: eq.producer, bytes: &bytes });
        eq.producer = eq.producer.wrapping_add(1) & COUNTER;
        if core::mem::take(&mut eq.armed) {
            let vector = eq.vector;
            self.interrupt(ctx, vector);
        }
    }

    fn interrupt(&mut self, ctx: &mut StepContext<'_>, vector: u16) {
        let lost = ctx.faults.take(|fault| (*fault == Fault::LostInterrupt { vector }).then_some(()));
        if lost.is_none() {
            ctx.trace(Record::Interrupt { vector });
            self.interrupts.push(vector);
        }
    }

    /// Returns the vectors to raise since the last call.
    pub(crate) fn take_interrupts(&mut self) -> Vec<u16> {
        core::mem::take(&mut self.interrupts)
    }
}
