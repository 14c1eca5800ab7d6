//! What lies in the storage of a device.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use bareverbs::storage::{QpRings, SrqEntries};
use bareverbs::{
    AddressHandle, CompletionQueue, NoReceives, QpHandle, QueuePair, RecvQueue, SendQueue, SharedReceiveQueue, SharedReceives,
    Verbs, XrcDomain, storage,
};
use bareverbs_mlx5::Mlx5;

use crate::completion::bv_wc;
use crate::failure::Failure;
use crate::gate::Gate;
use crate::machine::{CMachine, CMap};
use crate::numbered::{Numbered, empty};
use crate::{
    BV_MAX_AH, BV_MAX_CQ, BV_MAX_MR, BV_MAX_PD, BV_MAX_QP, BV_MAX_RECV, BV_MAX_SEND_BLOCKS, BV_MAX_SRQ, BV_MAX_SRQ_RECV,
    BV_MAX_XRCD, BV_MEMORY_SIZE, BV_STORAGE_ALIGN, BV_STORAGE_SIZE,
};

/// Pages of the driver's arena.
const PAGES: usize = BV_MEMORY_SIZE / 4096;

/// The driver.
pub(crate) type Driver = Mlx5<CMachine, PAGES>;
/// The verbs, on a driver in the storage.
pub(crate) type CVerbs = Verbs<'static, &'static mut Driver>;
pub(crate) type CCompletionQueue = CompletionQueue<'static, &'static mut Driver>;
pub(crate) type CSharedQueue = SharedReceiveQueue<'static, &'static mut Driver>;
pub(crate) type CDomain = XrcDomain<&'static mut Driver>;
type Tables = storage![
    'static, &'static mut Driver;
    pds: BV_MAX_PD,
    mrs: BV_MAX_MR,
    cqs: BV_MAX_CQ,
    qps: BV_MAX_QP,
    srqs: BV_MAX_SRQ
];
type Rings = QpRings<BV_MAX_SEND_BLOCKS, BV_MAX_RECV>;
/// One place is always kept back.
type Places = SrqEntries<{ BV_MAX_SRQ_RECV + 1 }>;

/// A queue pair of any transport.
#[derive(Debug)]
pub(crate) enum CQueuePair {
    /// It has receives of its own, and its sends name nobody, or (UD) a destination.
    Own(QueuePair<'static, &'static mut Driver>, Names),
    /// It takes its receives from a shared receive queue.
    Shared(QueuePair<'static, &'static mut Driver, SharedReceives>),
    /// An initiator or a target of XRC.
    Xrc(QueuePair<'static, &'static mut Driver, NoReceives>),
}

impl CQueuePair {
    pub(crate) const fn handle(&self) -> QpHandle {
        match self {
            Self::Own(queues, _) => queues.send.qp(),
            Self::Shared(queues) => queues.send.qp(),
            Self::Xrc(queues) => queues.send.qp(),
        }
    }

    /// Returns its send queue, and what its requests name.
    #[inline(always)]
    pub(crate) const fn send(&mut self) -> (&mut SendQueue<'static, &'static mut Driver>, Names) {
        match self {
            Self::Own(queues, names) => (&mut queues.send, *names),
            Self::Shared(queues) => (&mut queues.send, Names::Nobody),
            Self::Xrc(queues) => (&mut queues.send, Names::SharedQueue),
        }
    }

    /// Returns its receive queue, if it has one.
    #[inline(always)]
    pub(crate) const fn recv(&mut self) -> Option<&mut RecvQueue<'static, &'static mut Driver>> {
        match self {
            Self::Own(queues, _) => Some(&mut queues.recv),
            Self::Shared(_) | Self::Xrc(_) => None,
        }
    }
}

/// Whom a send names beside the peer of its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Nobody.
    Nobody,
    /// Where the datagram goes.
    Destination,
    /// A shared receive queue of the peer.
    SharedQueue,
}

/// Takes up to `count` completions and writes them, with the sources of datagrams.
pub(crate) type PollDatagrams = unsafe fn(&mut CCompletionQueue, *mut bv_wc, usize) -> Result<i32, Failure>;

/// A device, in the storage that bv_init was given.
#[derive(Debug)]
pub struct bv_device {
    pub(crate) gate: Gate,
    pub(crate) state: State,
    /// What the verbs borrow: nothing else has a reference to it while there are any.
    lent: Lent,
}

/// What a call works on.
#[derive(Debug)]
pub(crate) struct State {
    /// Why the last call failed that did.
    pub(crate) failure: Option<Failure>,
    /// Whether the device may still use its memory, although it is not up.
    pub(crate) needs_reset: bool,
    /// Where buffers lie for the device.
    pub(crate) map: CMap,
    pub(crate) verbs: Option<CVerbs>,
    pub(crate) cqs: [Option<CCompletionQueue>; BV_MAX_CQ],
    pub(crate) qps: [Option<CQueuePair>; BV_MAX_QP],
    pub(crate) srqs: [Option<CSharedQueue>; BV_MAX_SRQ],
    pub(crate) domains: Numbered<CDomain, BV_MAX_XRCD>,
    pub(crate) ahs: Numbered<AddressHandle, BV_MAX_AH>,
    /// What polls once there was a queue pair for datagrams: a program without one does not contain it.
    pub(crate) poll_datagrams: Option<PollDatagrams>,
}

/// What the verbs borrow.
struct Lent {
    driver: MaybeUninit<Option<Driver>>,
    tables: MaybeUninit<Tables>,
    rings: MaybeUninit<[Rings; BV_MAX_QP]>,
    places: MaybeUninit<[Places; BV_MAX_SRQ]>,
}

impl core::fmt::Debug for Lent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Lent")
    }
}

const _: () = {
    assert!(size_of::<bv_device>() <= BV_STORAGE_SIZE, "BV_STORAGE_SIZE is too small");
    assert!(align_of::<bv_device>() <= BV_STORAGE_ALIGN, "BV_STORAGE_ALIGN is too small");
};

impl bv_device {
    /// Makes a device that is not up in `storage`.
    ///
    /// # Safety
    /// The storage is aligned for a device and has room for one, and nobody else uses it.
    pub(crate) unsafe fn init(storage: NonNull<Self>) {
        let device = storage.as_ptr();
        // SAFETY: a field of the storage, which has room for it.
        let state = unsafe { &raw mut (*device).state };
        // SAFETY: each is a field of the state or of the storage. What is lent is initialized by `lend`.
        unsafe {
            (&raw mut (*state).failure).write(None);
            (&raw mut (*state).needs_reset).write(false);
            (&raw mut (*state).map).write(CMap::NONE);
            (&raw mut (*state).verbs).write(None);
            empty(&raw mut (*state).cqs);
            empty(&raw mut (*state).qps);
            empty(&raw mut (*state).srqs);
            Numbered::init(&raw mut (*state).domains, "XRC domain");
            Numbered::init(&raw mut (*state).ahs, "address handle");
            (&raw mut (*state).poll_datagrams).write(None);
            // Last: from here on calls come in.
            (&raw mut (*device).gate).write(Gate::new());
        }
    }

    /// Lends what verbs are made of, empty: the place of the driver, and tables. The references are good until the next call.
    ///
    /// # Safety
    /// `init` was done, and no reference that was lent before is used any more.
    pub(crate) unsafe fn lend(device: NonNull<Self>) -> (&'static mut Option<Driver>, &'static mut Tables) {
        // SAFETY: a field of the device; no reference to the whole device is ever made.
        let lent = unsafe { &raw mut (*device.as_ptr()).lent };
        // SAFETY: as above; nobody else has a reference to it (promised).
        let (driver, tables) = unsafe { (&mut (*lent).driver, &mut (*lent).tables) };
        // SAFETY: as above.
        let (rings, places) = unsafe { ((&raw mut (*lent).rings).cast::<Rings>(), (&raw mut (*lent).places).cast::<Places>()) };
        for index in 0..BV_MAX_QP {
            // SAFETY: one of the rings of the array. One by one, so that the stack never has all of them.
            unsafe { rings.add(index).write(Rings::new()) };
        }
        for index in 0..BV_MAX_SRQ {
            // SAFETY: one of the arrays of places, as above.
            unsafe { places.add(index).write(Places::new()) };
        }
        // SAFETY: all of them were just written, and only shared references to them exist.
        let (rings, places): (&'static [Rings; BV_MAX_QP], &'static [Places; BV_MAX_SRQ]) =
            unsafe { (&*rings.cast(), &*places.cast()) };
        // A constant: neither the tables nor the driver are ever on the stack.
        let tables = tables.write(const { Tables::without_rings() });
        tables.set_rings(QpRings::views(rings));
        tables.set_srqs(SrqEntries::views(places));
        (driver.write(None), tables)
    }
}
