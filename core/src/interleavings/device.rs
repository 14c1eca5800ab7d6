//! A device for the model: it completes each request at its doorbell, into one completion queue.
//!
//! Its memory and its registers are words of the model. Between a doorbell and its completion it can carry the order of its
//! owner's stores, as a real device does. It can also carry none, which is the minimum that words of the core can count on.

use core::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::vec::Vec;

use crate::backend::{
    AsyncEvent, AtomicOp, BindOp, CompletionEvent, CompletionEvents, CoreToken, CqReader, CqRing, CreateQpParams, CreatedCq,
    CreatedQp, CreatedSrq, DataOp, DataOpcode, DatagramOp, EncodedAddress, MrRequest, Peek, Provider, QueriedQp, RawCompletion,
    RecvRing, RegOp, SendRing, SendWriter, SrqRing, SrqSizes,
};
use crate::error::{DeviceError, DeviceLoss, Errno, RawKind};
use crate::platform::Instant;
use crate::storage::RingSizes;
use crate::sync::Ordering;
use crate::{
    AddressVector, Cqn, DeviceAttr, Gid, GidEntry, KeyTag, LinkLayer, Lkey, MaskedOp, MwType, Payload, PortAttr, Psn, QpAttr,
    QpAttrMask, QpCap, QpState, Qpn, Remote, Rkey, SendFlags, Sge, Source, SrqCap, Srqn, WcData, WcStatus,
};

const QPN: u32 = 0x100;
const CQN: u32 = 0x40;

/// The device broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl DeviceError for Broken {
    fn errno(&self) -> Errno {
        Errno::Eio
    }

    fn may_use_memory(&self) -> bool {
        false
    }

    fn unsupported() -> Self {
        Self
    }
}

/// A completion in its ring, as one word. Bit 31 says that it is there, bit 30 that it is of a receive, and bit 29 that it
/// failed. The lower 16 bits are the index of the request.
const THERE: u32 = 1 << 31;
const RECV: u32 = 1 << 30;
const FAILED: u32 = 1 << 29;

/// What only one at a time may look at of the arming of the completion queue and its events.
#[derive(Default)]
struct Arming {
    armed: bool,
    /// Events that the queue has given.
    given: u32,
    /// Events that are not taken yet.
    waiting: u32,
}

pub(super) struct Memory {
    ring: [loom::sync::atomic::AtomicU32; 8],
    /// Completions written. The device's own.
    written: AtomicUsize,
    arming: loom::sync::Mutex<Arming>,
    /// Whether completions carry the order of stores before the doorbell.
    carries: bool,
    /// Whether receives fail.
    fails: AtomicBool,
    /// Whether sends fail.
    sends_fail: AtomicBool,
    /// Whether nothing completes.
    is_silent: AtomicBool,
}

impl Memory {
    /// Adds a completion; an armed queue then raises an event.
    fn complete(&self, word: u32) {
        if self.is_silent.load(Ordering::Relaxed) {
            return;
        }
        let mut arming = self.arming.lock().unwrap();
        let index = self.written.fetch_add(1, Ordering::Relaxed);
        self.ring[index].store(THERE | word, if self.carries { Ordering::Release } else { Ordering::Relaxed });
        if core::mem::take(&mut arming.armed) {
            arming.given += 1;
            arming.waiting += 1;
        }
    }
}

/// The device.
pub(super) struct Device {
    attr: DeviceAttr,
    memory: Arc<Memory>,
    events: Option<Events>,
    keys: u32,
    is_lost: Cell<bool>,
}

impl Device {
    pub(super) fn new(carries: bool) -> Self {
        let attr = DeviceAttr {
            max_mr_size: 1 << 40,
            max_mw_size: 1 << 31,
            max_qp_wr: 8,
            max_sge: 4,
            max_srq: 1,
            max_srq_wr: 7,
            max_srq_sge: 1,
            max_cqe: 8,
            access: crate::Access::KNOWN - crate::Access::RELAXED_ORDERING,
            max_msg_size: 1 << 31,
            phys_port_cnt: 1,
            max_qp_rd_atom: 1,
            max_qp_init_rd_atom: 1,
            ..DeviceAttr::default()
        };
        let memory = Arc::new(Memory {
            ring: core::array::from_fn(|_| loom::sync::atomic::AtomicU32::new(0)),
            written: AtomicUsize::new(0),
            arming: loom::sync::Mutex::default(),
            carries,
            fails: AtomicBool::new(false),
            sends_fail: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
        });
        Self { attr, events: Some(Events(Arc::clone(&memory))), memory, keys: 0, is_lost: Cell::new(false) }
    }

    fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Receives fail from now on, or do not.
    pub(super) fn fail(&self, fails: bool) {
        self.memory.fails.store(fails, Ordering::Relaxed);
    }

    /// Sends fail from now on.
    pub(super) fn fail_sends(&self) {
        self.memory.sends_fail.store(true, Ordering::Relaxed);
    }

    /// Completes nothing from now on.
    pub(super) fn be_silent(&self) {
        self.memory.is_silent.store(true, Ordering::Relaxed);
    }

    /// Is lost from now on.
    pub(super) fn lose(&self) {
        self.is_lost.set(true);
    }

    fn key(&mut self) -> u32 {
        self.keys += 1;
        KeyTag::of(self.keys).key(self.keys)
    }
}

// SAFETY: the device uses no memory.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl Provider for Device {
    type Error = Broken;
    type Pd = ();
    type Mr = ();
    type Mw = u32;
    type Cq = ();
    type Qp = ();
    type Srq = ();
    type Xrcd = ();
    type SendRing = Sends;
    type RecvRing = Recvs;
    type SrqRing = SharedRecvs;
    type CqRing = Ring;
    type CompletionEvents = Events;
    type Direct<'a> = ();

    fn direct(&mut self) {}

    fn device_attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn link_layer(&self, _port: u8) -> LinkLayer {
        LinkLayer::InfiniBand
    }

    fn query_port(&mut self, _port: u8) -> Result<PortAttr, Broken> {
        Ok(PortAttr::default())
    }

    fn query_gid(&mut self, _port: u8, _index: u16) -> Result<Gid, Broken> {
        Ok(Gid::default())
    }

    fn set_gid(&mut self, _: CoreToken, _port: u8, _index: u16, _entry: Option<&GidEntry>) -> Result<(), Broken> {
        Ok(())
    }

    fn query_pkey(&mut self, _port: u8, _index: u16) -> Result<u16, Broken> {
        Ok(0)
    }

    fn encode_address(&mut self, _av: &AddressVector) -> Result<EncodedAddress, Broken> {
        Ok(EncodedAddress::default())
    }

    fn alloc_pd(&mut self, _: CoreToken) -> Result<(), Broken> {
        Ok(())
    }

    fn dealloc_pd(&mut self, _: CoreToken, (): &mut ()) -> Result<(), Broken> {
        Ok(())
    }

    fn create_mr(&mut self, _: CoreToken, (): &(), _request: &MrRequest<'_>) -> Result<((), Lkey, Rkey), Broken> {
        let key = self.key();
        Ok(((), Lkey::new(key), Rkey::new(key)))
    }

    fn destroy_mr(&mut self, _: CoreToken, (): &mut ()) -> Result<(), Broken> {
        Ok(())
    }

    fn create_mw(&mut self, _: CoreToken, (): &(), _kind: MwType) -> Result<(u32, Rkey), Broken> {
        let key = self.key();
        Ok((key, Rkey::new(key)))
    }

    fn query_mw(&mut self, _: CoreToken, mw: &u32) -> Result<(Rkey, bool), Broken> {
        Ok((Rkey::new(*mw), true))
    }

    fn destroy_mw(&mut self, _: CoreToken, _mw: &mut u32) -> Result<(), Broken> {
        Ok(())
    }

    fn create_cq(&mut self, _: CoreToken, entries: u32) -> Result<CreatedCq<Self>, Broken> {
        let ring = Ring { memory: self.memory(), next: AtomicUsize::new(0) };
        Ok(CreatedCq { cq: (), ring, cqn: Cqn::new(CQN), entries, vector: 1 })
    }

    fn query_cq(&mut self, (): &()) -> Result<bool, Broken> {
        Ok(true)
    }

    fn destroy_cq(&mut self, _: CoreToken, (): &mut ()) -> Result<(), Broken> {
        Ok(())
    }

    fn srq_sizes(&self, cap: &SrqCap) -> Result<SrqSizes, Broken> {
        let slots = (cap.max_wr + 1).next_power_of_two();
        Ok(SrqSizes { slots, cap: SrqCap { max_wr: slots - 1, max_sge: cap.max_sge } })
    }

    fn create_srq(&mut self, _: CoreToken, (): &(), sizes: &SrqSizes) -> Result<CreatedSrq<Self>, Broken> {
        Ok(CreatedSrq {
            srq: (),
            ring: SharedRecvs { memory: self.memory(), notified: 0, slots: sizes.slots as usize, list: Vec::new() },
            srqn: Srqn::new(1),
        })
    }

    fn destroy_srq(&mut self, _: CoreToken, (): &mut ()) -> Result<(), Broken> {
        Ok(())
    }

    fn ring_sizes(&self, _qp_type: crate::QpType, cap: &QpCap) -> Result<RingSizes, Broken> {
        Ok(RingSizes { send_blocks: cap.max_send_wr, recv_entries: cap.max_recv_wr, cap: *cap })
    }

    fn create_qp(&mut self, _: CoreToken, _params: &CreateQpParams<'_, Self>) -> Result<CreatedQp<Self>, Broken> {
        let (send, recv) =
            (Sends { memory: self.memory(), notified: Cell::new(0) }, Recvs { memory: self.memory(), notified: 0 });
        Ok(CreatedQp { qp: (), send, recv, qpn: Qpn::new(QPN) })
    }

    fn modify_qp(
        &mut self,
        _: CoreToken,
        (): &mut (),
        _from: QpState,
        _attr: &QpAttr,
        _mask: QpAttrMask,
    ) -> Result<(), Broken> {
        Ok(())
    }

    fn query_qp(&mut self, (): &()) -> Result<QueriedQp, Broken> {
        Ok(QueriedQp { state: QpState::Rts, sq_draining: false, rq_psn: Psn::new(0), sq_psn: Psn::new(0) })
    }

    fn destroy_qp(&mut self, _: CoreToken, (): &mut ()) -> Result<(), Broken> {
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant::default()
    }

    fn relax(&self, _: Instant) {}

    fn lost(&self) -> Option<(DeviceLoss, Broken)> {
        if self.is_lost.get() { Some((DeviceLoss::Fatal, Broken)) } else { None }
    }

    fn poll_event(&mut self) -> Result<Option<AsyncEvent>, Broken> {
        Ok(None)
    }

    fn maintain(&mut self) -> Result<Instant, Broken> {
        if self.is_lost.get() { Err(Broken) } else { Ok(Instant::default()) }
    }

    fn take_completion_events(&mut self, _: CoreToken) -> Option<Events> {
        self.events.take()
    }

    fn return_completion_events(&mut self, _: CoreToken, events: Events) {
        self.events = Some(events);
    }
}

/// The queue of completion events.
pub(super) struct Events(Arc<Memory>);

impl CompletionEvents for Events {
    fn next(&mut self, _vector: Option<u16>) -> CompletionEvent {
        let mut arming = self.0.arming.lock().unwrap();
        match arming.waiting.checked_sub(1) {
            Some(rest) => {
                arming.waiting = rest;
                CompletionEvent::Completion(Cqn::new(CQN))
            }
            None => CompletionEvent::Empty,
        }
    }

    fn is_control(&self, _vector: u16) -> bool {
        false
    }
}

/// The send ring: a request is one block, and completes successfully at its doorbell.
pub(super) struct Sends {
    memory: Arc<Memory>,
    /// End of the requests that the device was notified of.
    notified: Cell<u32>,
}

impl SendRing for Sends {
    type Writer<'a> = Writer<'a>;

    fn writer(&self) -> Writer<'_> {
        Writer(self)
    }

    fn reset(&mut self) {
        self.notified.set(0);
    }
}

#[derive(Clone, Copy)]
pub(super) struct Writer<'a>(&'a Sends);

impl SendWriter for Writer<'_> {
    const ATOMIC_BLOCKS: u32 = 1;
    const LOCAL_INV_BLOCKS: u32 = 1;
    const XRC_ATOMIC_BLOCKS: u32 = 1;

    fn xrc_sge_blocks(_opcode: DataOpcode, _count: usize) -> u32 {
        1
    }

    fn xrc_inline_blocks(_opcode: DataOpcode, _len: usize) -> u32 {
        1
    }

    fn put_xrc(&mut self, _at: u32, _srqn: Srqn, _op: &DataOp, _payload: Payload<'_>, _flags: SendFlags) {}

    fn put_xrc_atomic(&mut self, _at: u32, _srqn: Srqn, _op: &AtomicOp, _sge: &Sge, _flags: SendFlags) {}

    fn sge_blocks(_opcode: DataOpcode, _count: usize) -> u32 {
        1
    }

    fn inline_blocks(_opcode: DataOpcode, _len: usize) -> u32 {
        1
    }

    fn bind_blocks(_bind: &BindOp) -> u32 {
        1
    }

    fn put_sges(&mut self, _at: u32, _op: &DataOp, _sges: &[Sge], _flags: SendFlags) {}

    fn put_inline(&mut self, _at: u32, _op: &DataOp, _bytes: &[u8], _flags: SendFlags) {}

    fn datagram_sge_blocks(_count: usize) -> u32 {
        1
    }

    fn datagram_inline_blocks(_len: usize) -> u32 {
        1
    }

    fn put_datagram(&mut self, _at: u32, _op: &DatagramOp<'_>, _payload: Payload<'_>, _flags: SendFlags) {}

    fn put_atomic(&mut self, _at: u32, _op: &AtomicOp, _sge: &Sge, _flags: SendFlags) {}

    fn put_bind(&mut self, _at: u32, _bind: &BindOp, _flags: SendFlags) {}

    fn masked_blocks(_: &MaskedOp, _: bool) -> u32 {
        1
    }

    fn put_masked(&mut self, _at: u32, _: &MaskedOp, _: Option<Srqn>, _: &Remote, _: &Sge, _flags: SendFlags) {}

    fn reg_blocks(_count: usize) -> u32 {
        1
    }

    fn put_reg(&mut self, _at: u32, _reg: &RegOp<'_>, _flags: SendFlags) {}

    fn put_local_inv(&mut self, _at: u32, _rkey: Rkey, _flags: SendFlags) {}

    fn ring(&mut self, end: u32) {
        for at in self.0.notified.replace(end)..end {
            let failed = if self.0.memory.sends_fail.load(Ordering::Relaxed) { FAILED } else { 0 };
            self.0.memory.complete(failed | at & 0xffff);
        }
    }

    fn close(&mut self) {}
}

/// The receive ring: a message is there for each receive.
pub(super) struct Recvs {
    memory: Arc<Memory>,
    notified: u32,
}

impl RecvRing for Recvs {
    fn put(&mut self, _at: u32, _sges: &[Sge]) {}

    fn ring(&mut self, end: u32) {
        for at in self.notified..end {
            let failed = if self.memory.fails.load(Ordering::Relaxed) { FAILED } else { 0 };
            self.memory.complete(RECV | failed | at & 0xffff);
        }
        self.notified = end;
    }

    fn reset(&mut self) {
        self.notified = 0;
    }
}

/// The shared receive ring: a message is there for each receive.
pub(super) struct SharedRecvs {
    memory: Arc<Memory>,
    notified: u32,
    slots: usize,
    /// Places in the order in which they were written.
    list: Vec<u16>,
}

impl SrqRing for SharedRecvs {
    fn put(&mut self, at: u16, next: u16, _sges: &[Sge]) {
        assert!(usize::from(next) < self.slots && next != at, "the request at {at} leads to {next}");
        self.list.push(at);
    }

    fn ring(&mut self, end: u32) {
        for at in self.notified..end {
            self.memory.complete(RECV | u32::from(self.list[at as usize]));
        }
        self.notified = end;
    }
}

/// The completion queue.
pub(super) struct Ring {
    memory: Arc<Memory>,
    /// The next completion to take.
    next: AtomicUsize,
}

impl CqRing for Ring {
    type Reader<'a> = Reader<'a>;

    fn reader(&self) -> Reader<'_> {
        Reader { ring: self, word: 0 }
    }

    fn arm(&mut self, events: u32, _solicited_only: bool) {
        let mut arming = self.memory.arming.lock().unwrap();
        // An older count than the last event's is of an arm that it has answered.
        if events == arming.given {
            arming.armed = true;
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    ring: &'a Ring,
    /// Result of the last peek.
    word: u32,
}

impl CqReader for Reader<'_> {
    fn peek(&mut self) -> Peek {
        let memory = &self.ring.memory;
        let order = if memory.carries { Ordering::Acquire } else { Ordering::Relaxed };
        self.word = memory.ring[self.ring.next.load(Ordering::Relaxed)].load(order);
        match self.word {
            0 => Peek::Empty,
            word if word & FAILED != 0 => Peek::Other,
            word => Peek::Success { qpn: Qpn::new(QPN), recv: word & RECV != 0, index: word as u16 },
        }
    }

    fn cookie(&self) -> Option<u32> {
        Some(0)
    }

    fn byte_len(&self) -> u32 {
        0
    }

    fn parse(&self) -> Result<RawCompletion, u8> {
        let kind = if self.word & RECV != 0 { RawKind::Recv } else { RawKind::Send };
        let status = match (self.word & FAILED != 0, kind) {
            (false, _) => WcStatus::Success,
            (true, RawKind::Send) => WcStatus::LocProtErr,
            (true, _) => WcStatus::WrFlushErr,
        };
        let index = self.word as u16;
        Ok(RawCompletion { qpn: Qpn::new(QPN), kind, index, status, vendor_err: 0, byte_len: 0, data: WcData::None })
    }

    fn source(&self) -> Source {
        Source::default()
    }

    fn advance(&mut self) {
        self.ring.next.fetch_add(1, Ordering::Relaxed);
    }

    fn publish_consumer_index(&mut self) {}
}
