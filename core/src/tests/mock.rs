//! A device in plain memory: it records its calls, and does what the test says.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use crate::backend::{
    AsyncEvent, AtomicOp, BindOp, CompletionEvent, CompletionEvents, CoreToken, CqReader, CqRing, CreateQpParams,
    CreateXrcQpParams, CreateXrcSrqParams, CreatedCq, CreatedQp, CreatedSrq, DataOp, DataOpcode, DatagramOp, EncodedAddress,
    MrRequest, Peek, Provider, QueriedQp, RawCompletion, RecvRing, RegOp, SendRing, SendWriter, SrqRing, SrqSizes,
};
use crate::error::{DeviceError, DeviceLoss, Errno, RawKind};
use crate::platform::Instant;
use crate::storage::RingSizes;
use crate::{
    Access, AddressVector, CqModeration, Cqn, DeviceAttr, Gid, GidEntry, Guid, KeyTag, LinkLayer, Lkey, MaskedAtomics,
    MaskedOp, MwType, Payload, PortAttr, Psn, QpAttr, QpAttrMask, QpCap, QpState, QpType, Qpn, Remote, Rkey, SendFlags, Sge,
    Source, SrqCap, Srqn, WcData, WcStatus, Xrcdn,
};

/// How long a pause takes.
const RELAX: Duration = Duration::from_millis(7);

/// The errors of the mock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) enum MockError {
    /// It is to refuse.
    Refused,
    /// It is not to answer: it may have done what it was asked.
    NoAnswer,
}

impl core::fmt::Display for MockError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl DeviceError for MockError {
    fn errno(&self) -> Errno {
        Errno::Eio
    }

    fn may_use_memory(&self) -> bool {
        *self == Self::NoAnswer
    }

    fn unsupported() -> Self {
        Self::Refused
    }
}

/// What a send was, without what it borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    Inline(usize),
    Datagram {
        remote_qpn: Qpn,
        bytes: u32,
        imm: Option<[u8; 4]>,
        encoded: u64,
    },
    Read,
    Atomic,
    /// To a shared receive queue; an atomic has no opcode here.
    Xrc {
        srqn: Srqn,
        opcode: Option<DataOpcode>,
        bytes: u32,
    },
    Bind(BindOp),
    LocalInv(Rkey),
}

/// A send as the backend got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) qpn: Qpn,
    pub(super) at: u32,
    pub(super) kind: Kind,
    pub(super) flags: SendFlags,
}

/// A send in the ring of its queue pair.
#[derive(Clone, Copy, Debug)]
struct Written {
    sent: Sent,
    /// Its place in the order of all sends of the device.
    sequence: u64,
    /// Which window it names: [`Window::life`].
    life: Option<u64>,
}

/// A window as the device has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) kind: MwType,
    pub(super) rkey: u32,
    /// Region, address, length.
    pub(super) binding: Option<(u32, u64, u64)>,
    /// The queue pair that bound it.
    owner: Qpn,
    /// The queue pair whose peer was the last to invalidate it, since it was bound.
    pub(super) invalidated_by: Qpn,
    /// Sequence number of the request that gave it its key.
    sequence: u64,
    /// Distinguishes windows with the same number.
    life: u64,
}

/// A queue pair as the device has it.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) cookie: u32,
    pub(super) state: QpState,
    pub(super) send_cq: Cqn,
    pub(super) recv_cq: Cqn,
    written: VecDeque<Written>,
    /// Head of its last doorbell.
    rung: u32,
    receives: VecDeque<u32>,
    /// Where it takes receives from instead.
    srq: Option<Srqn>,
    /// What it took from there and has not completed.
    pub(super) held: Option<u16>,
    /// Its XRC domain.
    domain: Option<Xrcdn>,
}

/// A shared receive queue as the device has it: it follows the list, and knows nothing of what the host deems free.
#[derive(Debug)]
pub(super) struct SharedQueue {
    /// What each place names as the next one, as it was written last.
    links: Vec<u16>,
    /// The place that is taken next.
    head: u16,
    /// Requests taken.
    pub(super) taken: u32,
    /// Requests that it was notified of.
    pub(super) posted: u32,
    pub(super) limit: u32,
    /// Domain, completion queue and cookie of an XRC one.
    xrc: Option<(Xrcdn, Cqn, u32)>,
}

/// An entry of a completion queue: a completion or an opcode that is none, and the cookie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) raw: Result<RawCompletion, u8>,
    pub(super) cookie: Option<u32>,
}

/// What the backend and its rings share.
pub(super) struct Device {
    /// Fails the operation after this many more, with this error.
    pub(super) fail_after: Option<u32>,
    /// Is gone after this many more operations.
    pub(super) lose_after: Option<u32>,
    /// Its time, which only pauses move.
    pub(super) now: Instant,
    /// What the port is, and from when on; ascending.
    pub(super) ports: Vec<(Instant, PortAttr)>,
    pub(super) port_queries: u32,
    pub(super) link_layer: LinkLayer,
    /// Entries of the GID table that were written.
    pub(super) gids: Vec<(u16, Option<GidEntry>)>,
    /// Calls of `maintain`.
    pub(super) maintained: u32,
    /// Completions that come one at a time, each in a pause.
    pub(super) late: VecDeque<(Cqn, RawCompletion)>,
    pub(super) error: MockError,
    /// Keys of the next regions, if not its own choice.
    pub(super) keys: VecDeque<u32>,
    /// Whether completions come without cookies.
    pub(super) is_without_cookies: bool,
    /// Number of the next queue pair, if not its own choice.
    pub(super) next_qpn: Option<Qpn>,
    /// The same of the next completion queue, and of the next shared receive queue.
    pub(super) next_cqn: Option<Cqn>,
    pub(super) next_srqn: Option<Srqn>,
    pub(super) next_xrcdn: Option<Xrcdn>,
    pub(super) domains: BTreeSet<Xrcdn>,
    /// Whether the next operation unwinds in the middle, as one does whose clock panics.
    pub(super) panics: bool,
    /// Lengths of the rings that it makes, if not as asked.
    pub(super) rings: Option<(u32, u32)>,
    /// Whether a bind must name the key that its window has; if not, it must only be newer than the last one that was done.
    pub(super) strict: bool,
    /// Low byte of the next key.
    pub(super) tag: KeyTag,
    sequence: u64,
    /// Members of multicast groups.
    pub(super) groups: BTreeSet<(Qpn, [u8; 16])>,
    /// Regions by key.
    pub(super) regions: BTreeMap<u32, ()>,
    /// Windows by number.
    pub(super) windows: BTreeMap<u32, Window>,
    queues: BTreeMap<Cqn, VecDeque<Entry>>,
    /// Entries that a queue has; 0 once it has overrun.
    capacities: BTreeMap<Cqn, usize>,
    pub(super) moderation: BTreeMap<Cqn, CqModeration>,
    /// Queues of which it says that they work: of all others, that they have overrun.
    pub(super) working: Vec<Cqn>,
    pub(super) qps: BTreeMap<Qpn, QueuePair>,
    pub(super) srqs: BTreeMap<Srqn, SharedQueue>,
    pub(super) sent: Vec<Sent>,
    pub(super) received: Vec<(Qpn, u32, usize)>,
    /// Doorbells: queue pair, end, whether of sends.
    pub(super) doorbells: Vec<(Qpn, u32, bool)>,
    pub(super) consumed: u32,
    /// Bytes of the completion that was taken last: stands for its source.
    taken: u32,
    /// Writes each completion anew when it was taken, this many times: it does not keep to the consumer index.
    pub(super) floods: u32,
    /// Code of the program panics behind the answer to the next command that ends an object: a logger does.
    pub(super) unwinds: bool,
    /// Arms: queue, events, whether for solicited ones only.
    pub(super) armed: Vec<(Cqn, u32, bool)>,
    pub(super) events: VecDeque<AsyncEvent>,
    /// By interrupt vector.
    pub(super) completion_events: VecDeque<(u16, CompletionEvent)>,
    pub(super) modified: Vec<(QpState, QpAttr, QpAttrMask)>,
    /// What a query says, if not what was set.
    pub(super) state: Option<QpState>,
    /// What a query says of the sends of a queue pair in SQD.
    pub(super) sq_draining: bool,
    /// Why it is lost.
    pub(super) loss: Option<DeviceLoss>,
    /// Objects alive: domains, regions, windows, completion queues, queue pairs, shared receive queues.
    pub(super) alive: [u32; 6],
    /// Objects that it was asked to destroy, in the same order.
    pub(super) destroyed: [u32; 6],
    /// Whether the device completes the oldest request while its completion queue is armed, so that no event comes of it.
    pub(super) completes_when_armed: bool,
    /// What a real device would have let happen to somebody's memory.
    pub(super) violations: Vec<&'static str>,
}

pub(super) type Shared = Arc<Mutex<Device>>;

fn lock(shared: &Shared) -> MutexGuard<'_, Device> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    fn new() -> Self {
        Self {
            fail_after: None,
            lose_after: None,
            now: Instant::default(),
            ports: Vec::new(),
            port_queries: 0,
            link_layer: LinkLayer::InfiniBand,
            gids: Vec::new(),
            maintained: 0,
            late: VecDeque::new(),
            error: MockError::Refused,
            keys: VecDeque::new(),
            is_without_cookies: false,
            next_qpn: None,
            next_cqn: None,
            next_srqn: None,
            next_xrcdn: None,
            domains: BTreeSet::new(),
            panics: false,
            rings: None,
            strict: true,
            tag: KeyTag::default(),
            sequence: 0,
            groups: BTreeSet::new(),
            regions: BTreeMap::new(),
            windows: BTreeMap::new(),
            queues: BTreeMap::new(),
            capacities: BTreeMap::new(),
            moderation: BTreeMap::new(),
            working: Vec::new(),
            qps: BTreeMap::new(),
            srqs: BTreeMap::new(),
            sent: Vec::new(),
            received: Vec::new(),
            doorbells: Vec::new(),
            consumed: 0,
            taken: 0,
            floods: 0,
            unwinds: false,
            armed: Vec::new(),
            events: VecDeque::new(),
            completion_events: VecDeque::new(),
            modified: Vec::new(),
            state: None,
            sq_draining: false,
            loss: None,
            alive: [0; 6],
            destroyed: [0; 6],
            completes_when_armed: false,
            violations: Vec::new(),
        }
    }

    /// Puts a completion into a queue, with the cookie of its queue pair.
    pub(super) fn complete(&mut self, cqn: Cqn, raw: RawCompletion) {
        let cookie = self.qps.get(&raw.qpn).map(|qp| qp.cookie).filter(|_| !self.is_without_cookies);
        self.put_entry(cqn, Entry { raw: Ok(raw), cookie });
    }

    pub(super) fn put_entry(&mut self, cqn: Cqn, entry: Entry) {
        let (queue, capacity) = (self.queues.get_mut(&cqn).unwrap(), self.capacities.get_mut(&cqn).unwrap());
        if queue.len() < *capacity {
            queue.push_back(entry);
        } else {
            if core::mem::take(capacity) != 0 {
                self.events.push_back(AsyncEvent::CqError(cqn, 1));
            }
            if let Ok(raw) = entry.raw {
                self.qps.get_mut(&raw.qpn).unwrap().state = QpState::Err;
                self.events.push_back(AsyncEvent::QpFatal(raw.qpn));
            }
        }
    }

    pub(super) fn entries(&self, cqn: Cqn) -> &VecDeque<Entry> {
        &self.queues[&cqn]
    }

    /// Takes the newest completion out of a queue again.
    pub(super) fn take_newest(&mut self, cqn: Cqn) {
        self.queues.get_mut(&cqn).unwrap().pop_back();
    }

    /// Returns the first free mkey number: numbers are reused.
    fn mkey(&mut self) -> u32 {
        let used = |index: u32| {
            self.windows.contains_key(&index)
                || self.regions.range(KeyTag(0).key(index)..=KeyTag(0xff).key(index)).next().is_some()
        };
        let index = (1..).find(|index| !used(*index)).unwrap();
        self.tag = self.tag.next();
        self.tag.key(index)
    }

    fn unwind(&mut self) {
        assert!(!core::mem::take(&mut self.unwinds), "the logger panics");
    }

    fn step(&mut self) -> Result<(), MockError> {
        if self.loss.is_some() {
            return Err(MockError::NoAnswer);
        }
        match self.lose_after.as_mut() {
            Some(0) => {
                self.loss = Some(DeviceLoss::Gone);
                return Err(MockError::NoAnswer);
            }
            Some(left) => *left -= 1,
            None => {}
        }
        match self.fail_after {
            Some(0) => {
                self.fail_after = None;
                Err(self.error)
            }
            Some(left) => {
                self.fail_after = Some(left - 1);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn put(&mut self, sent: Sent) {
        self.sent.push(sent);
        self.sequence += 1;
        let rkey = match sent.kind {
            Kind::Bind(bind) => Some(bind.old),
            Kind::LocalInv(rkey) => Some(rkey),
            _ => None,
        };
        let life = rkey.and_then(|rkey| self.windows.get(&rkey.index())).map(|window| window.life);
        let sequence = self.sequence;
        let qp = self.qps.get_mut(&sent.qpn).unwrap();
        // Over those of a batch that was forgotten.
        qp.written.retain(|written| before(written.sent.at, sent.at));
        qp.written.push_back(Written { sent, sequence, life });
    }

    /// Does the next request that the device knows, or flushes it; returns whether there was one.
    pub(super) fn execute(&mut self, qpn: Qpn) -> bool {
        let qp = self.qps.get_mut(&qpn).unwrap();
        let rung = qp.rung;
        let Some(written) = qp.written.pop_front_if(|written| before(written.sent.at, rung)) else { return false };
        let status = if qp.state == QpState::Err { WcStatus::WrFlushErr } else { self.status_of(&written) };
        self.finish(&written.sent, status);
        true
    }

    fn status_of(&mut self, written: &Written) -> WcStatus {
        let Sent { qpn, kind, .. } = written.sent;
        let (rkey, next) = match kind {
            Kind::Bind(bind) if bind.length == 0 => (bind.old, (bind.new.get(), None)),
            Kind::Bind(bind) => (bind.old, (bind.new.get(), Some((bind.lkey.get(), bind.addr, bind.length)))),
            Kind::LocalInv(rkey) => (rkey, (rkey.get(), None)),
            _ => return WcStatus::Success,
        };
        let Some(window) = self.windows.get_mut(&rkey.index()).filter(|window| Some(window.life) == written.life) else {
            self.violations.push("a bind of a window that is gone");
            return WcStatus::MwBindErr;
        };
        let bound = window.binding.is_some();
        let fits = match (window.kind, next.1) {
            (MwType::Type1, _) => true,
            (MwType::Type2, Some(_)) => !bound,
            (MwType::Type2, None) => bound && window.owner == qpn,
        };
        let inv = matches!(kind, Kind::LocalInv(_));
        let is_named = if self.strict || inv { window.rkey == rkey.get() } else { window.sequence < written.sequence };
        if !fits || !is_named {
            return WcStatus::MwBindErr;
        }
        if next.1.is_some_and(|(lkey, ..)| !self.regions.contains_key(&lkey)) {
            self.violations.push("a window is bound to a region that is gone");
        }
        (window.rkey, window.binding) = next;
        (window.owner, window.sequence, window.invalidated_by) = (qpn, written.sequence, Qpn::new(0));
        WcStatus::Success
    }

    fn finish(&mut self, sent: &Sent, status: WcStatus) {
        let failed = status != WcStatus::Success;
        let qp = self.qps.get_mut(&sent.qpn).unwrap();
        if failed {
            qp.state = QpState::Err;
        }
        if failed || sent.flags.contains(SendFlags::SIGNALED) {
            let send_cq = qp.send_cq;
            self.complete(send_cq, RawCompletion { status, ..raw(sent.qpn, RawKind::Send, sent.at) });
        }
    }

    /// Sends from the peer with an invalidation of this window; returns whether it was executed.
    pub(super) fn invalidate(&mut self, qpn: Qpn, index: u32) -> bool {
        let qp = self.qps.get_mut(&qpn).unwrap();
        let Some(window) = self.windows.get_mut(&index) else { return false };
        let may = window.kind == MwType::Type2 && window.binding.is_some() && window.owner == qpn;
        if !may || qp.state != QpState::Rts {
            return false;
        }
        let Some(at) = qp.receives.pop_front() else { return false };
        (window.binding, window.invalidated_by) = (None, qpn);
        let (rkey, recv_cq) = (Rkey::new(window.rkey), qp.recv_cq);
        self.complete(recv_cq, RawCompletion { data: WcData::Invalidated(rkey), ..raw(qpn, RawKind::Recv, at) });
        true
    }

    /// Sends from the peer; returns whether there was a receive for it.
    #[cfg(feature = "multicore")]
    pub(super) fn deliver(&mut self, qpn: Qpn) -> bool {
        let qp = self.qps.get_mut(&qpn).unwrap();
        let Some(at) = qp.receives.pop_front() else { return false };
        let recv_cq = qp.recv_cq;
        self.complete(recv_cq, raw(qpn, RawKind::Recv, at));
        true
    }

    /// Lets a queue pair take a receive from its shared receive queue, as at the first packet of a message. Returns whether there was one.
    pub(super) fn take_shared(&mut self, qpn: Qpn) -> bool {
        let qp = self.qps.get_mut(&qpn).unwrap();
        let srqn = qp.srq.unwrap();
        let srq = self.srqs.get_mut(&srqn).unwrap();
        if qp.held.is_some() || srq.taken == srq.posted || !matches!(qp.state, QpState::Rtr | QpState::Rts) {
            return false;
        }
        qp.held = Some(srq.head);
        srq.head = srq.links[usize::from(srq.head)];
        srq.taken += 1;
        if srq.posted - srq.taken < srq.limit {
            srq.limit = 0;
            self.events.push_back(AsyncEvent::SrqLimitReached(srqn));
        }
        true
    }

    /// Receives a message at an XRC target that names a shared receive queue, completed with `raw` but for queue pair and index. Returns the
    /// place that it took; `None` if the queue has none, or is of another domain.
    pub(super) fn deliver_xrc(&mut self, qpn: Qpn, srqn: Srqn, raw: RawCompletion) -> Option<u16> {
        let domain = self.qps[&qpn].domain?;
        let srq = self.srqs.get_mut(&srqn)?;
        let (of, cqn, cookie) = srq.xrc?;
        if of != domain || srq.taken == srq.posted {
            return None;
        }
        let at = srq.head;
        srq.head = srq.links[usize::from(at)];
        srq.taken += 1;
        self.put_entry(cqn, Entry { raw: Ok(RawCompletion { qpn, index: at, ..raw }), cookie: Some(cookie) });
        Some(at)
    }

    /// Completes what a queue pair took from its shared receive queue: successfully, or flushed in ERR. Returns its place.
    pub(super) fn complete_shared(&mut self, qpn: Qpn) -> Option<u16> {
        let qp = self.qps.get_mut(&qpn).unwrap();
        let at = qp.held.take()?;
        let status = if qp.state == QpState::Err { WcStatus::WrFlushErr } else { WcStatus::Success };
        let recv_cq = qp.recv_cq;
        self.complete(recv_cq, RawCompletion { status, ..raw(qpn, RawKind::Recv, at.into()) });
        Some(at)
    }

    /// Flushes the oldest receive of a queue pair in ERR; whether there was one.
    pub(super) fn flush_receive(&mut self, qpn: Qpn) -> bool {
        let qp = self.qps.get_mut(&qpn).unwrap();
        let Some(at) = qp.receives.pop_front_if(|_| qp.state == QpState::Err) else { return false };
        let recv_cq = qp.recv_cq;
        self.complete(recv_cq, RawCompletion { status: WcStatus::WrFlushErr, ..raw(qpn, RawKind::Recv, at) });
        true
    }

    /// Breaks the queue pair without a request.
    pub(super) fn break_qp(&mut self, qpn: Qpn) {
        self.qps.get_mut(&qpn).unwrap().state = QpState::Err;
        self.events.push_back(AsyncEvent::QpAccessError(qpn));
    }
}

/// Returns whether counter `a` is older than `b`.
fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

/// Returns a successful completion without data.
pub(super) fn raw(qpn: Qpn, kind: RawKind, at: u32) -> RawCompletion {
    let (status, data) = (WcStatus::Success, WcData::None);
    RawCompletion { qpn, kind, index: at as u16, status, vendor_err: 0, byte_len: 0, data }
}

pub(super) struct Mock {
    pub(super) device: DeviceAttr,
    shared: Shared,
    events: Option<MockEvents>,
}

impl Mock {
    pub(super) fn new() -> Self {
        let device = DeviceAttr {
            node_guid: Guid(0x0200_0000_0000_0001),
            max_mr_size: 1 << 40,
            max_mw_size: 1 << 31,
            max_qp_wr: 1 << 10,
            max_sge: 4,
            max_srq: 4,
            max_srq_wr: 1 << 10,
            max_srq_sge: 3,
            max_cqe: 1 << 20,
            max_cq_moderation: CqModeration { count: 100, period: 50 },
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            atomics: true,
            masked_atomics: MaskedAtomics { four: true, eight: false },
            access: Access::KNOWN - Access::RELAXED_ORDERING,
            max_inline_data: 512,
            max_msg_size: 1 << 31,
            phys_port_cnt: 1,
            ..DeviceAttr::default()
        };
        let shared = Arc::new(Mutex::new(Device::new()));
        Self { device, events: Some(MockEvents(Arc::clone(&shared))), shared }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Device> {
        lock(&self.shared)
    }

    pub(super) fn shared(&self) -> Shared {
        Arc::clone(&self.shared)
    }

    fn make_qp(&self, (cookie, send_cq, recv_cq, srq): (u32, Cqn, Cqn, Option<Srqn>)) -> Result<CreatedQp<Self>, MockError> {
        let mut device = self.step()?;
        device.alive[4] += 1;
        let free = (0x100..).map(Qpn::new).find(|qpn| !device.qps.contains_key(qpn));
        let qpn = device.next_qpn.take().or(free).unwrap();
        let qp = QueuePair {
            cookie,
            state: QpState::Reset,
            send_cq,
            recv_cq,
            written: VecDeque::new(),
            rung: 0,
            receives: VecDeque::new(),
            srq,
            held: None,
            domain: None,
        };
        device.qps.entry(qpn).or_insert(qp);
        let send = MockSendRing { shared: self.shared(), qpn };
        let recv = MockRecvRing { shared: self.shared(), qpn, notified: 0 };
        Ok(CreatedQp { qp: qpn, send, recv, qpn })
    }

    fn step(&self) -> Result<MutexGuard<'_, Device>, MockError> {
        let mut device = self.lock();
        assert!(!core::mem::take(&mut device.panics), "the clock panics");
        device.step()?;
        Ok(device)
    }
}

// SAFETY: the mock device uses no memory.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl Provider for Mock {
    type Error = MockError;
    type Pd = ();
    type Mr = u32;
    type Mw = u32;
    type Cq = Cqn;
    type Qp = Qpn;
    type Srq = Srqn;
    type Xrcd = Xrcdn;
    type SendRing = MockSendRing;
    type RecvRing = MockRecvRing;
    type SrqRing = MockSrqRing;
    type CqRing = MockCqRing;
    type CompletionEvents = MockEvents;
    type Direct<'a> = ();

    fn direct(&mut self) {}

    fn device_attr(&self) -> &DeviceAttr {
        &self.device
    }

    fn link_layer(&self, _port: u8) -> LinkLayer {
        self.lock().link_layer
    }

    fn query_port(&mut self, _port: u8) -> Result<PortAttr, MockError> {
        let mut device = self.step()?;
        device.port_queries += 1;
        let now = device.now;
        Ok(device.ports.iter().rev().find(|(from, _)| *from <= now).map_or_else(PortAttr::default, |(_, attr)| *attr))
    }

    fn query_gid(&mut self, _port: u8, _index: u16) -> Result<Gid, MockError> {
        drop(self.step()?);
        Ok(Gid::default())
    }

    fn set_gid(&mut self, _: CoreToken, _port: u8, index: u16, entry: Option<&GidEntry>) -> Result<(), MockError> {
        let mut device = self.step()?;
        device.gids.push((index, entry.copied()));
        Ok(())
    }

    fn query_pkey(&mut self, _port: u8, _index: u16) -> Result<u16, MockError> {
        drop(self.step()?);
        Ok(0xffff)
    }

    fn encode_address(&mut self, av: &AddressVector) -> Result<EncodedAddress, MockError> {
        drop(self.step()?);
        Ok(EncodedAddress([u64::from(av.dlid.get()), 0, 0, 0, 0, 0]))
    }

    fn alloc_pd(&mut self, _: CoreToken) -> Result<(), MockError> {
        self.step()?.alive[0] += 1;
        Ok(())
    }

    fn dealloc_pd(&mut self, _: CoreToken, (): &mut ()) -> Result<(), MockError> {
        let mut device = self.step()?;
        device.alive[0] -= 1;
        device.destroyed[0] += 1;
        Ok(())
    }

    fn create_mr(&mut self, _: CoreToken, (): &(), _request: &MrRequest<'_>) -> Result<(u32, Lkey, Rkey), MockError> {
        let mut device = self.step()?;
        device.alive[1] += 1;
        let forced = device.keys.pop_front();
        let key = forced.unwrap_or_else(|| device.mkey());
        device.regions.insert(key, ());
        Ok((key, Lkey::new(key), Rkey::new(key)))
    }

    fn destroy_mr(&mut self, _: CoreToken, mr: &mut u32) -> Result<(), MockError> {
        let mut device = self.step()?;
        device.alive[1] -= 1;
        device.destroyed[1] += 1;
        device.regions.remove(mr);
        let is_bound = |window: &Window| window.binding.is_some_and(|(lkey, ..)| lkey == *mr);
        if device.windows.values().any(is_bound) {
            device.violations.push("a region is gone to which a window is bound");
        }
        device.unwind();
        Ok(())
    }

    fn create_fast_mr(&mut self, token: CoreToken, pd: &(), _max_sges: u32) -> Result<(u32, Rkey), MockError> {
        self.create_mw(token, pd, MwType::Type2)
    }

    fn create_mw(&mut self, _: CoreToken, (): &(), kind: MwType) -> Result<(u32, Rkey), MockError> {
        let mut device = self.step()?;
        device.alive[2] += 1;
        let forced = device.keys.pop_front();
        let rkey = forced.unwrap_or_else(|| device.mkey());
        device.sequence += 1;
        let life = device.sequence;
        let no_qp = Qpn::new(0);
        let window = Window { kind, rkey, binding: None, owner: no_qp, invalidated_by: no_qp, sequence: life, life };
        // One that is there stays.
        device.windows.entry(rkey >> 8).or_insert(window);
        Ok((rkey >> 8, Rkey::new(rkey)))
    }

    fn query_mw(&mut self, _: CoreToken, mw: &u32) -> Result<(Rkey, bool), MockError> {
        let device = self.step()?;
        let Window { kind, rkey, binding, .. } = device.windows[mw];
        Ok((Rkey::new(rkey), kind == MwType::Type1 || binding.is_some()))
    }

    fn destroy_mw(&mut self, _: CoreToken, mw: &mut u32) -> Result<(), MockError> {
        let mut device = self.step()?;
        device.alive[2] -= 1;
        device.destroyed[2] += 1;
        device.windows.remove(mw);
        Ok(())
    }

    fn create_cq(&mut self, _: CoreToken, entries: u32) -> Result<CreatedCq<Self>, MockError> {
        let mut device = self.step()?;
        device.alive[3] += 1;
        let free = (0x40..).map(Cqn::new).find(|cqn| !device.queues.contains_key(cqn));
        let cqn = device.next_cqn.take().or(free).unwrap();
        let entries = entries.next_power_of_two();
        device.queues.entry(cqn).or_default();
        device.capacities.insert(cqn, entries as usize);
        let ring = MockCqRing { shared: self.shared(), cqn };
        Ok(CreatedCq { cq: cqn, ring, cqn, entries, vector: (cqn.get() & 1) as u16 })
    }

    fn query_cq(&mut self, cq: &Cqn) -> Result<bool, MockError> {
        Ok(self.step()?.working.contains(cq))
    }

    fn resize_cq(&mut self, _: CoreToken, cq: &mut Cqn, _: &mut MockCqRing, entries: u32) -> Result<u32, MockError> {
        let mut device = self.step()?;
        let entries = entries.next_power_of_two();
        if device.queues[cq].len() >= entries as usize {
            return Err(MockError::Refused);
        }
        device.capacities.insert(*cq, entries as usize);
        Ok(entries)
    }

    fn modify_cq(&mut self, _: CoreToken, cq: &Cqn, moderation: CqModeration) -> Result<(), MockError> {
        self.step()?.moderation.insert(*cq, moderation);
        Ok(())
    }

    fn destroy_cq(&mut self, _: CoreToken, cq: &mut Cqn) -> Result<(), MockError> {
        let mut device = self.step()?;
        device.alive[3] -= 1;
        device.destroyed[3] += 1;
        device.queues.remove(cq);
        Ok(())
    }

    fn srq_sizes(&self, cap: &SrqCap) -> Result<SrqSizes, MockError> {
        let asked = (cap.max_wr + 1).next_power_of_two();
        let slots = self.lock().rings.map_or(asked, |(_, slots)| slots);
        Ok(SrqSizes { slots, cap: SrqCap { max_wr: asked - 1, ..*cap } })
    }

    fn create_srq(&mut self, _: CoreToken, (): &(), sizes: &SrqSizes) -> Result<CreatedSrq<Self>, MockError> {
        let mut device = self.step()?;
        device.alive[5] += 1;
        let free = (0x200..).map(Srqn::new).find(|srqn| !device.srqs.contains_key(srqn));
        let srqn = device.next_srqn.take().or(free).unwrap();
        let links = std::vec![u16::MAX; sizes.slots as usize];
        device.srqs.entry(srqn).or_insert(SharedQueue { links, head: 0, taken: 0, posted: 0, limit: 0, xrc: None });
        Ok(CreatedSrq { srq: srqn, ring: MockSrqRing { shared: self.shared(), srqn }, srqn })
    }

    fn alloc_xrcd(&mut self, _: CoreToken) -> Result<(Xrcdn, Xrcdn), MockError> {
        let mut device = self.step()?;
        let free = (1..).map(Xrcdn::new).find(|number| !device.domains.contains(number));
        let number = device.next_xrcdn.take().or(free).unwrap();
        device.domains.insert(number);
        Ok((number, number))
    }

    fn dealloc_xrcd(&mut self, _: CoreToken, domain: &mut Xrcdn) -> Result<(), MockError> {
        let mut device = self.step()?;
        let in_it = |of: Option<Xrcdn>| of == Some(*domain);
        if device.qps.values().any(|qp| in_it(qp.domain)) || device.srqs.values().any(|srq| in_it(srq.xrc.map(|xrc| xrc.0))) {
            device.violations.push("a domain is gone that queues are in");
        }
        device.domains.remove(domain);
        Ok(())
    }

    fn create_xrc_srq(
        &mut self,
        call: CoreToken,
        params: &CreateXrcSrqParams<'_, Self>,
    ) -> Result<CreatedSrq<Self>, MockError> {
        let created = self.create_srq(call, params.pd, &params.sizes)?;
        let mut device = self.lock();
        device.srqs.get_mut(&created.srqn).unwrap().xrc = Some((*params.domain, *params.cq, params.cookie));
        Ok(created)
    }

    fn create_xrc_qp(&mut self, _: CoreToken, params: &CreateXrcQpParams<'_, Self>) -> Result<CreatedQp<Self>, MockError> {
        let none = Cqn::new(0);
        let (send_cq, recv_cq) = (params.initiator.map_or(none, |(_, cq)| *cq), none);
        let created = self.make_qp((params.cookie, send_cq, recv_cq, None))?;
        self.lock().qps.get_mut(&created.qpn).unwrap().domain = Some(*params.domain);
        Ok(created)
    }

    fn arm_srq(&mut self, _: CoreToken, srqn: &mut Srqn, limit: u32) -> Result<(), MockError> {
        let mut device = self.step()?;
        let srq = device.srqs.get_mut(srqn).unwrap();
        let is_below = srq.posted - srq.taken < limit;
        srq.limit = if is_below { 0 } else { limit };
        if is_below {
            device.events.push_back(AsyncEvent::SrqLimitReached(*srqn));
        }
        Ok(())
    }

    fn query_srq(&mut self, srqn: &Srqn) -> Result<u32, MockError> {
        Ok(self.step()?.srqs[srqn].limit)
    }

    fn destroy_srq(&mut self, _: CoreToken, srqn: &mut Srqn) -> Result<(), MockError> {
        let mut device = self.step()?;
        if device.qps.values().any(|qp| qp.srq == Some(*srqn)) {
            device.violations.push("a shared receive queue is gone that a queue pair uses");
        }
        device.alive[5] -= 1;
        device.destroyed[5] += 1;
        device.srqs.remove(srqn);
        Ok(())
    }

    fn ring_sizes(&self, qp_type: QpType, cap: &QpCap) -> Result<RingSizes, MockError> {
        let (inline, sges) = (cap.max_inline_data as usize, cap.max_send_sge as usize);
        let (inline, sges) = if qp_type.is_xrc() {
            (MockWriter::xrc_inline_blocks(DataOpcode::Write, inline), MockWriter::xrc_sge_blocks(DataOpcode::Write, sges))
        } else {
            (MockWriter::inline_blocks(DataOpcode::Write, inline), MockWriter::sge_blocks(DataOpcode::Write, sges))
        };
        let max_blocks = inline.max(sges).max(BIND_BLOCKS);
        let recv_entries = if cap.max_recv_wr == 0 { 0 } else { cap.max_recv_wr.next_power_of_two() };
        let asked = ((cap.max_send_wr * max_blocks).next_power_of_two(), recv_entries);
        let (send_blocks, recv_entries) = self.lock().rings.unwrap_or(asked);
        let cap = QpCap { max_send_wr: send_blocks / max_blocks, max_recv_wr: recv_entries, ..*cap };
        Ok(RingSizes { send_blocks, recv_entries, cap })
    }

    fn create_qp(&mut self, _: CoreToken, params: &CreateQpParams<'_, Self>) -> Result<CreatedQp<Self>, MockError> {
        assert!(!params.qp_type.is_xrc(), "an XRC queue pair without its domain");
        self.make_qp((params.cookie, *params.send_cq, *params.recv_cq, params.srq.copied()))
    }

    fn modify_qp(
        &mut self,
        _: CoreToken,
        qpn: &mut Qpn,
        from: QpState,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), MockError> {
        let mut device = self.step()?;
        device.modified.push((from, *attr, mask));
        let qp = device.qps.get_mut(qpn).unwrap();
        qp.state = attr.state;
        if attr.state == QpState::Reset {
            qp.written.clear();
            qp.receives.clear();
            qp.held = None;
            qp.rung = 0;
        }
        Ok(())
    }

    fn query_qp(&mut self, qpn: &Qpn) -> Result<QueriedQp, MockError> {
        let device = self.step()?;
        let state = device.state.unwrap_or(device.qps[qpn].state);
        Ok(QueriedQp { state, sq_draining: device.sq_draining, rq_psn: Psn::new(11), sq_psn: Psn::new(12) })
    }

    fn destroy_qp(&mut self, _: CoreToken, qpn: &mut Qpn) -> Result<(), MockError> {
        let mut device = self.step()?;
        device.alive[4] -= 1;
        device.destroyed[4] += 1;
        device.qps.remove(qpn);
        device.unwind();
        Ok(())
    }

    fn attach_mcast(&mut self, _: CoreToken, qpn: &mut Qpn, gid: &Gid) -> Result<(), MockError> {
        self.step()?.groups.insert((*qpn, gid.0));
        Ok(())
    }

    fn detach_mcast(&mut self, _: CoreToken, qpn: &mut Qpn, gid: &Gid) -> Result<(), MockError> {
        if self.step()?.groups.remove(&(*qpn, gid.0)) { Ok(()) } else { Err(MockError::Refused) }
    }

    fn now(&self) -> Instant {
        self.lock().now
    }

    fn relax(&self, deadline: Instant) {
        let mut device = self.lock();
        device.now = device.now.after(RELAX).min(deadline);
        if let Some((cqn, raw)) = device.late.pop_front() {
            device.complete(cqn, raw);
        }
    }

    fn lost(&self) -> Option<(DeviceLoss, MockError)> {
        Some((self.lock().loss?, MockError::NoAnswer))
    }

    fn poll_event(&mut self) -> Result<Option<AsyncEvent>, MockError> {
        Ok(self.step()?.events.pop_front())
    }

    fn maintain(&mut self) -> Result<Instant, MockError> {
        self.lock().maintained += 1;
        if self.lock().loss.is_some() { Err(MockError::NoAnswer) } else { Ok(Instant::from_nanos(1)) }
    }

    fn take_completion_events(&mut self, _: CoreToken) -> Option<MockEvents> {
        self.events.take()
    }

    fn return_completion_events(&mut self, _: CoreToken, events: MockEvents) {
        self.events = Some(events);
    }
}

/// Queues of completion events.
pub(super) struct MockEvents(Shared);

impl CompletionEvents for MockEvents {
    fn next(&mut self, vector: Option<u16>) -> CompletionEvent {
        let mut device = lock(&self.0);
        let found = device.completion_events.iter().position(|(of, _)| vector.is_none_or(|vector| *of == vector));
        found.and_then(|index| device.completion_events.remove(index)).map_or(CompletionEvent::Empty, |(_, event)| event)
    }

    fn is_control(&self, vector: u16) -> bool {
        vector == 0
    }
}

/// Blocks as an mlx5 device counts them, roughly: 64 bytes each.
const BIND_BLOCKS: u32 = 3;
const UNBIND_BLOCKS: u32 = 2;

fn head(opcode: DataOpcode) -> usize {
    match opcode {
        DataOpcode::Send | DataOpcode::SendWithImm | DataOpcode::SendWithInv => 16,
        DataOpcode::Write | DataOpcode::WriteWithImm | DataOpcode::Read => 32,
    }
}

fn blocks(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(64)).unwrap()
}

pub(super) struct MockSendRing {
    shared: Shared,
    qpn: Qpn,
}

impl SendRing for MockSendRing {
    type Writer<'a> = MockWriter<'a>;

    fn writer(&self) -> MockWriter<'_> {
        MockWriter(self)
    }

    fn reset(&mut self) {}
}

#[derive(Clone, Copy)]
pub(super) struct MockWriter<'a>(&'a MockSendRing);

impl MockWriter<'_> {
    fn put(&mut self, at: u32, kind: Kind, flags: SendFlags) {
        let qpn = self.0.qpn;
        lock(&self.0.shared).put(Sent { qpn, at, kind, flags });
    }
}

impl SendWriter for MockWriter<'_> {
    const ATOMIC_BLOCKS: u32 = 1;
    const LOCAL_INV_BLOCKS: u32 = UNBIND_BLOCKS;
    const XRC_ATOMIC_BLOCKS: u32 = 2;

    fn xrc_sge_blocks(opcode: DataOpcode, count: usize) -> u32 {
        blocks(16 + head(opcode) + count * 16)
    }

    fn xrc_inline_blocks(opcode: DataOpcode, len: usize) -> u32 {
        blocks(16 + head(opcode) + len + 4)
    }

    fn put_xrc(&mut self, at: u32, srqn: Srqn, op: &DataOp, payload: Payload<'_>, flags: SendFlags) {
        let bytes = match payload {
            Payload::Sges(sges) => sges.iter().map(|sge| sge.length).sum(),
            Payload::Inline(bytes) => bytes.len() as u32,
        };
        self.put(at, Kind::Xrc { srqn, opcode: Some(op.opcode), bytes }, flags);
    }

    fn put_xrc_atomic(&mut self, at: u32, srqn: Srqn, _op: &AtomicOp, sge: &Sge, flags: SendFlags) {
        self.put(at, Kind::Xrc { srqn, opcode: None, bytes: sge.length }, flags);
    }

    fn sge_blocks(opcode: DataOpcode, count: usize) -> u32 {
        blocks(head(opcode) + count * 16)
    }

    fn inline_blocks(opcode: DataOpcode, len: usize) -> u32 {
        blocks(head(opcode) + len + 4)
    }

    fn bind_blocks(bind: &BindOp) -> u32 {
        if bind.length == 0 { UNBIND_BLOCKS } else { BIND_BLOCKS }
    }

    fn put_sges(&mut self, at: u32, op: &DataOp, sges: &[Sge], flags: SendFlags) {
        assert!(sges.iter().all(|sge| sge.length != 0), "an SGE without bytes at the backend");
        self.put(at, if op.opcode == DataOpcode::Read { Kind::Read } else { Kind::Message }, flags);
    }

    fn put_inline(&mut self, at: u32, _op: &DataOp, bytes: &[u8], flags: SendFlags) {
        self.put(at, Kind::Inline(bytes.len()), flags);
    }

    fn datagram_sge_blocks(count: usize) -> u32 {
        blocks(64 + count * 16)
    }

    fn datagram_inline_blocks(len: usize) -> u32 {
        blocks(64 + len + 4)
    }

    fn put_datagram(&mut self, at: u32, op: &DatagramOp<'_>, payload: Payload<'_>, flags: SendFlags) {
        let bytes = match payload {
            Payload::Sges(sges) => sges.iter().map(|sge| sge.length).sum(),
            Payload::Inline(bytes) => bytes.len() as u32,
        };
        let encoded = op.address.0[0];
        self.put(at, Kind::Datagram { remote_qpn: op.remote_qpn, bytes, imm: op.imm, encoded }, flags);
    }

    fn put_atomic(&mut self, at: u32, _op: &AtomicOp, _sge: &Sge, flags: SendFlags) {
        self.put(at, Kind::Atomic, flags);
    }

    fn put_bind(&mut self, at: u32, bind: &BindOp, flags: SendFlags) {
        self.put(at, Kind::Bind(*bind), flags);
    }

    fn masked_blocks(_: &MaskedOp, xrc: bool) -> u32 {
        1 + u32::from(xrc)
    }

    fn put_masked(&mut self, at: u32, _: &MaskedOp, _: Option<Srqn>, _: &Remote, _: &Sge, flags: SendFlags) {
        self.put(at, Kind::Atomic, flags);
    }

    fn reg_blocks(count: usize) -> u32 {
        2 + (count as u32).div_ceil(4)
    }

    /// As a bind of a type 2 window to the first piece.
    fn put_reg(&mut self, at: u32, reg: &RegOp<'_>, flags: SendFlags) {
        let RegOp { old, new, base: addr, length, access, sges } = *reg;
        let bind = BindOp { kind: MwType::Type2, old, new, lkey: sges[0].lkey, addr, length, access };
        self.put(at, Kind::Bind(bind), flags);
    }

    fn put_local_inv(&mut self, at: u32, rkey: Rkey, flags: SendFlags) {
        self.put(at, Kind::LocalInv(rkey), flags);
    }

    fn ring(&mut self, end: u32) {
        let qpn = self.0.qpn;
        let mut device = lock(&self.0.shared);
        device.doorbells.push((qpn, end, true));
        let qp = device.qps.get_mut(&qpn).unwrap();
        qp.rung = end;
    }

    fn close(&mut self) {}
}

pub(super) struct MockRecvRing {
    shared: Shared,
    qpn: Qpn,
    /// Entries that the device knows.
    notified: u32,
}

impl RecvRing for MockRecvRing {
    fn put(&mut self, at: u32, sges: &[Sge]) {
        lock(&self.shared).received.push((self.qpn, at, sges.len()));
    }

    fn ring(&mut self, end: u32) {
        let mut device = lock(&self.shared);
        device.doorbells.push((self.qpn, end, false));
        let receives = &mut device.qps.get_mut(&self.qpn).unwrap().receives;
        while self.notified != end {
            receives.push_back(self.notified);
            self.notified = self.notified.wrapping_add(1);
        }
    }

    fn reset(&mut self) {
        self.notified = 0;
    }
}

impl MockSendRing {
    /// Sets the device's counter to `at`.
    pub(super) fn start_at(&mut self, at: u32) {
        lock(&self.shared).qps.get_mut(&self.qpn).unwrap().rung = at;
    }
}

impl MockRecvRing {
    /// Sets the device's counter to `at`.
    pub(super) fn start_at(&mut self, at: u32) {
        self.notified = at;
    }
}

pub(super) struct MockSrqRing {
    shared: Shared,
    srqn: Srqn,
}

impl SrqRing for MockSrqRing {
    fn put(&mut self, at: u16, next: u16, _sges: &[Sge]) {
        lock(&self.shared).srqs.get_mut(&self.srqn).unwrap().links[usize::from(at)] = next;
    }

    fn ring(&mut self, end: u32) {
        lock(&self.shared).srqs.get_mut(&self.srqn).unwrap().posted = end;
    }
}

pub(super) struct MockCqRing {
    shared: Shared,
    cqn: Cqn,
}

impl CqRing for MockCqRing {
    type Reader<'a> = MockReader<'a>;

    fn reader(&self) -> MockReader<'_> {
        MockReader(self)
    }

    fn arm(&mut self, events: u32, solicited_only: bool) {
        let mut device = lock(&self.shared);
        device.armed.push((self.cqn, events, solicited_only));
        if core::mem::take(&mut device.completes_when_armed) {
            let qpn = *device.qps.keys().next().unwrap();
            assert!(device.execute(qpn));
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct MockReader<'a>(&'a MockCqRing);

impl MockReader<'_> {
    fn front(&self) -> Option<Entry> {
        lock(&self.0.shared).queues[&self.0.cqn].front().copied()
    }
}

impl CqReader for MockReader<'_> {
    fn peek(&mut self) -> Peek {
        match self.front() {
            None => Peek::Empty,
            Some(Entry { raw: Ok(raw), .. })
                if raw.status == WcStatus::Success
                    && (raw.kind == RawKind::Send || raw.kind == RawKind::Recv && raw.data == WcData::None) =>
            {
                Peek::Success { qpn: raw.qpn, recv: raw.kind == RawKind::Recv, index: raw.index }
            }
            Some(_) => Peek::Other,
        }
    }

    fn cookie(&self) -> Option<u32> {
        self.front().unwrap().cookie
    }

    fn byte_len(&self) -> u32 {
        self.front().unwrap().raw.unwrap().byte_len
    }

    fn parse(&self) -> Result<RawCompletion, u8> {
        self.front().unwrap().raw
    }

    fn source(&self) -> Source {
        let device = lock(&self.0.shared);
        Source { src_qp: Qpn::new(device.taken), ..Source::default() }
    }

    fn advance(&mut self) {
        let mut device = lock(&self.0.shared);
        if let (Some(left), Some(entry)) = (device.floods.checked_sub(1), device.queues[&self.0.cqn].front().copied()) {
            device.floods = left;
            device.queues.get_mut(&self.0.cqn).unwrap().push_back(entry);
        }
        device.taken =
            device.queues.get_mut(&self.0.cqn).unwrap().pop_front().map_or(0, |entry| entry.raw.map_or(0, |raw| raw.byte_len));
    }

    fn publish_consumer_index(&mut self) {
        lock(&self.0.shared).consumed += 1;
    }
}
