//! What lies in the storage of a device.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use bareverbs::{CompletionQueue, QpRings, QueuePair, Verbs, storage};
use bareverbs_mlx5::Mlx5;

use crate::failure::Failure;
use crate::gate::Gate;
use crate::machine::{CMachine, CMap};
use crate::{
    BV_MAX_CQ, BV_MAX_MR, BV_MAX_PD, BV_MAX_QP, BV_MAX_RECV, BV_MAX_SEND_BLOCKS, BV_MEMORY_SIZE, BV_STORAGE_ALIGN,
    BV_STORAGE_SIZE,
};

/// Pages of the driver's arena.
const PAGES: usize = BV_MEMORY_SIZE / 4096;

/// The driver.
pub(crate) type Driver = Mlx5<CMachine, PAGES>;
/// The verbs, on a driver in the storage.
pub(crate) type CVerbs = Verbs<'static, &'static mut Driver>;
pub(crate) type CQueuePair = QueuePair<'static, &'static mut Driver>;
pub(crate) type CCompletionQueue = CompletionQueue<'static, &'static mut Driver>;
type Tables = storage!['static, &'static mut Driver; pds: BV_MAX_PD, mrs: BV_MAX_MR, cqs: BV_MAX_CQ, qps: BV_MAX_QP];
type Rings = QpRings<BV_MAX_SEND_BLOCKS, BV_MAX_RECV>;

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
}

/// What the verbs borrow.
struct Lent {
    driver: MaybeUninit<Option<Driver>>,
    tables: MaybeUninit<Tables>,
    rings: MaybeUninit<[Rings; BV_MAX_QP]>,
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
        // SAFETY: each is a field of the storage, which has room for it. What is lent is initialized by `lend`.
        unsafe {
            (&raw mut (*device).state).write(State {
                failure: None,
                needs_reset: false,
                map: CMap::NONE,
                verbs: None,
                cqs: [const { None }; BV_MAX_CQ],
                qps: [const { None }; BV_MAX_QP],
            });
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
        let (driver, tables, rings) =
            unsafe { (&mut (*lent).driver, &mut (*lent).tables, (&raw mut (*lent).rings).cast::<Rings>()) };
        for index in 0..BV_MAX_QP {
            // SAFETY: one of the rings of the array. One by one, so that the stack never has all of them.
            unsafe { rings.add(index).write(Rings::new()) };
        }
        // SAFETY: all of them were just written, and only shared references to them exist.
        let rings: &'static [Rings; BV_MAX_QP] = unsafe { &*rings.cast() };
        // A constant: neither the tables nor the driver are ever on the stack.
        let tables = tables.write(const { Tables::without_rings() });
        tables.set_rings(QpRings::views(rings));
        (driver.write(None), tables)
    }
}
