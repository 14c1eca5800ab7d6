//! Tables of objects and rings of requests in flight: [`Storage`], whose type [`storage!`](crate::storage!) names, with [`QpRings`] and
//! [`SrqEntries`]. All of it can stand in a `static`; with the feature `alloc` `BoxedStorage` is the same on the heap.

use crate::backend::Provider;
#[cfg(feature = "alloc")]
pub use crate::boxed_storage::{BoxedQpRings, BoxedSrqEntries, BoxedStorage, Capacities};
use crate::claim::Taken;
use crate::completion::Cq;
use crate::log::format_as;
pub use crate::provider::RingSizes;
use crate::queue_pair::Qp;
use crate::region::{Mr, Pd};
use crate::ring::Entries;
use crate::shared::{CqSlot, QpSlot, RegionSlot, Regions, Shared};
use crate::srq_slot::{Srq, SrqSlot};
pub use crate::srq_slot::{SrqEntries, SrqEntriesView};
use crate::sync::{AtomicU32, Lock, Ordering, Word64};
use crate::table::{Slot, Table};
use crate::window::{Mw, WindowCell, Windows};
use crate::{WcOpcode, kind};

/// What is remembered of a block of a send ring. What is known where a request is posted is one constant word, because what a
/// post costs is its stores.
#[derive(Debug)]
pub(crate) struct SendEntry {
    wr_id: Word64,
    bytes: AtomicU32,
    /// Blocks (16 bits), code of the operation (8 bits), from the lowest bit up.
    shape: AtomicU32,
}

/// Bytes of the marker of a drain among what is in flight. No request has as many: 2^31 is the most (IBTA 9.7.7).
pub(crate) const MARKER_BYTES: u32 = u32::MAX;

/// What [`SendEntry`] says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendFacts {
    pub(crate) wr_id: u64,
    pub(crate) bytes: u32,
    pub(crate) blocks: u16,
    pub(crate) opcode: WcOpcode,
}

impl SendEntry {
    pub(crate) const fn new() -> Self {
        Self { wr_id: Word64::new(0), bytes: AtomicU32::new(0), shape: AtomicU32::new(0) }
    }

    #[inline(always)]
    pub(crate) fn set(&self, facts: SendFacts) {
        self.wr_id.set(facts.wr_id);
        self.bytes.store(facts.bytes, Ordering::Relaxed);
        self.shape.store(u32::from(facts.blocks) | (facts.opcode as u32) << 16, Ordering::Relaxed);
    }

    /// Records that no request starts here.
    #[inline(always)]
    pub(crate) fn clear(&self) {
        self.shape.store(0, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> SendFacts {
        let shape = self.shape.load(Ordering::Relaxed);
        SendFacts {
            wr_id: self.wr_id.get(),
            bytes: self.bytes.load(Ordering::Relaxed),
            blocks: shape as u16,
            opcode: opcode((shape >> 16) as u8),
        }
    }
}

/// Returns the operation with this code, [`WcOpcode`] as a number. Eight codes of eight operations, so that it is no more than
/// a mask.
#[inline(always)]
const fn opcode(code: u8) -> WcOpcode {
    match code & 7 {
        0 => WcOpcode::Send,
        1 => WcOpcode::RdmaWrite,
        2 => WcOpcode::RdmaRead,
        3 => WcOpcode::CompSwap,
        4 => WcOpcode::FetchAdd,
        5 => WcOpcode::BindMw,
        6 => WcOpcode::LocalInv,
        _ => WcOpcode::RegMr,
    }
}

/// The requests in flight of one queue pair: `SQ` blocks of sends and `RQ` receives, both powers of two (or 0 for none), 32,768
/// at most. Other numbers do not compile.
///
/// A send takes as many blocks as the backend says; for mlx5 a block is 64 bytes of the send ring.
pub struct QpRings<const SQ: usize, const RQ: usize> {
    send: [SendEntry; SQ],
    recv: [Word64; RQ],
    taken: Taken,
}

format_as!(
    [const SQ: usize, const RQ: usize] QpRings<SQ, RQ>,
    "QpRings({} send blocks, {} receives)",
    |_| SQ, RQ,
);

impl<const SQ: usize, const RQ: usize> QpRings<SQ, RQ> {
    const CAPACITIES: () = {
        assert!(SQ == 0 || SQ.is_power_of_two() && SQ <= 1 << 15, "SQ is a power of two, 32768 at most");
        assert!(RQ == 0 || RQ.is_power_of_two() && RQ <= 1 << 15, "RQ is a power of two, 32768 at most");
    };

    /// Creates rings without a request.
    pub const fn new() -> Self {
        const { Self::CAPACITIES };
        Self { send: [const { SendEntry::new() }; SQ], recv: [const { Word64::new(0) }; RQ], taken: Taken::new() }
    }

    /// Returns a view, of which a [`Storage`] is made. Rings serve one queue pair of one [`Storage`], until that is dropped: a second
    /// place that is given them has no room for a queue pair.
    ///
    /// ```
    /// use bareverbs::error::CreateQpError;
    /// use bareverbs::storage::QpRings;
    /// use bareverbs::{QpCap, QpInit, QpType, Verbs, storage};
    /// # use bareverbs_testing::{Driver, Faults, pair};
    ///
    /// # let [a, _b] = pair(Faults::none())?;
    /// # let Ok(card) = a.verbs.into_provider() else { panic!("nobody has a queue") };
    /// let rings = QpRings::<64, 16>::new();
    /// let mut tables = <storage![Driver; pds: 1, cqs: 1, qps: 2]>::new([rings.view(), rings.view()]);
    /// let mut verbs = Verbs::new(card, &mut tables);
    /// # let pd = verbs.alloc_pd()?;
    /// # let cq = verbs.create_cq(64)?;
    /// # let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    /// # let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq.handle(), recv_cq: cq.handle(), cap, sq_sig_all: true };
    /// let _first = verbs.create_qp(&init)?;
    /// assert_eq!(verbs.create_qp(&init).err(), Some(CreateQpError::Full { capacity: 2, fitting: 1 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn view(&self) -> RingsView<'_> {
        RingsView { send: Entries::new(&self.send), recv: Entries::new(&self.recv), taken: Some(&self.taken) }
    }

    /// Returns a view of each of several rings.
    pub fn views<const N: usize>(rings: &[Self; N]) -> [RingsView<'_>; N] {
        rings.each_ref().map(Self::view)
    }
}

impl<const SQ: usize, const RQ: usize> Default for QpRings<SQ, RQ> {
    fn default() -> Self {
        Self::new()
    }
}

/// [`QpRings`] of any size.
#[derive(Clone, Copy)]
pub struct RingsView<'r> {
    pub(crate) send: Entries<'r, SendEntry>,
    /// `wr_id` of each receive.
    pub(crate) recv: Entries<'r, Word64>,
    pub(crate) taken: Option<&'r Taken>,
}

impl RingsView<'_> {
    /// No rings.
    pub(crate) const NONE: Self = Self { send: Entries::new(&[]), recv: Entries::new(&[]), taken: None };
}

format_as!(
    [] RingsView<'_>,
    "RingsView({} send blocks, {} receives)",
    |this| this.send.len(), this.recv.len(),
);

/// Names the type of a [`Storage`] by the capacity of each table: `pds`, `mrs`, `mws`, `cqs`, `qps` and `srqs`, in any order. What is
/// not named has no room. The lifetime is that of the rings; without it the compiler finds it.
///
/// ```
/// use bareverbs::storage; // the macro
/// use bareverbs::storage::QpRings;
/// # use bareverbs_testing::Driver;
///
/// type Tables = storage!['static, Driver; pds: 1, mrs: 4, cqs: 2, qps: 1];
///
/// static RINGS: QpRings<64, 16> = QpRings::new();
/// let tables = Tables::new([RINGS.view()]);
/// ```
///
/// ```compile_fail
/// # use bareverbs::storage;
/// # use bareverbs_testing::Driver;
/// type Tables = storage!['static, Driver; pairs: 1];
/// ```
#[macro_export]
macro_rules! storage {
    (@ ($($of:tt)*) $pd:tt $mr:tt $mw:tt $cq:tt $qp:tt $srq:tt) => {
        $crate::storage::Storage<$($of)*, $pd, $mr, $mw, $cq, $qp, $srq>
    };
    (@ $of:tt $pd:tt $mr:tt $mw:tt $cq:tt $qp:tt $srq:tt pds: $new:expr $(, $($rest:tt)*)?) => {
        $crate::storage!(@ $of {$new} $mr $mw $cq $qp $srq $($($rest)*)?)
    };
    (@ $of:tt $pd:tt $mr:tt $mw:tt $cq:tt $qp:tt $srq:tt mrs: $new:expr $(, $($rest:tt)*)?) => {
        $crate::storage!(@ $of $pd {$new} $mw $cq $qp $srq $($($rest)*)?)
    };
    (@ $of:tt $pd:tt $mr:tt $mw:tt $cq:tt $qp:tt $srq:tt mws: $new:expr $(, $($rest:tt)*)?) => {
        $crate::storage!(@ $of $pd $mr {$new} $cq $qp $srq $($($rest)*)?)
    };
    (@ $of:tt $pd:tt $mr:tt $mw:tt $cq:tt $qp:tt $srq:tt cqs: $new:expr $(, $($rest:tt)*)?) => {
        $crate::storage!(@ $of $pd $mr $mw {$new} $qp $srq $($($rest)*)?)
    };
    (@ $of:tt $pd:tt $mr:tt $mw:tt $cq:tt $qp:tt $srq:tt qps: $new:expr $(, $($rest:tt)*)?) => {
        $crate::storage!(@ $of $pd $mr $mw $cq {$new} $srq $($($rest)*)?)
    };
    (@ $of:tt $pd:tt $mr:tt $mw:tt $cq:tt $qp:tt $srq:tt srqs: $new:expr $(, $($rest:tt)*)?) => {
        $crate::storage!(@ $of $pd $mr $mw $cq $qp {$new} $($($rest)*)?)
    };
    (@ $of:tt $pd:tt $mr:tt $mw:tt $cq:tt $qp:tt $srq:tt $($rest:tt)+) => {
        compile_error!(concat!(
            "`", stringify!($($rest)+), "` begins with no capacity: write pds, mrs, mws, cqs, qps or srqs, a colon, a number, and a comma"
        ))
    };
    ($lifetime:lifetime, $provider:ty; $($capacities:tt)*) => {
        $crate::storage!(@ ($lifetime, $provider) 0 0 0 0 0 0 $($capacities)*)
    };
    ($provider:ty; $($capacities:tt)*) => {
        $crate::storage!(@ ('_, $provider) 0 0 0 0 0 0 $($capacities)*)
    };
}

/// The tables of one device's objects, without heap. [`storage!`](crate::storage!) names the type readably. There is room for
/// `PD` protection domains, `MR` regions, `MW` windows (and as many binds in flight), `CQ` completion queues, `QP` queue pairs
/// and `SRQ` shared receive queues. The rings are separate, each of its own size ([`QpRings`], [`SrqEntries`]).
///
/// Each number is 65,535 at most. Other numbers do not compile.
pub struct Storage<
    'r,
    P: Provider,
    const PD: usize,
    const MR: usize,
    const MW: usize,
    const CQ: usize,
    const QP: usize,
    const SRQ: usize = 0,
> {
    pub(crate) pds: [Slot<Pd<P>>; PD],
    pub(crate) mrs: [Slot<Mr<P>>; MR],
    pub(crate) mws: [Slot<Mw<P>>; MW],
    pub(crate) cqs: [Slot<Cq<P>>; CQ],
    pub(crate) qps: [Slot<Qp<P>>; QP],
    pub(crate) srqs: [Slot<Srq<P::Srq>>; SRQ],
    pub(crate) region_slots: [RegionSlot; MR],
    pub(crate) cq_slots: [CqSlot; CQ],
    pub(crate) qp_slots: [QpSlot<'r>; QP],
    pub(crate) srq_slots: [SrqSlot<'r>; SRQ],
    pub(crate) windows: Lock<Windows<[WindowCell; MW]>>,
    pub(crate) events: Lock<Option<P::CompletionEvents>>,
}

format_as!(
    [P: Provider, const PD: usize, const MR: usize, const MW: usize, const CQ: usize, const QP: usize, const SRQ: usize]
    Storage<'_, P, PD, MR, MW, CQ, QP, SRQ>,
    "Storage({} domains, {} regions, {} windows, {} completion queues, {} queue pairs, {} shared receive queues)",
    |_| PD, MR, MW, CQ, QP, SRQ,
);

impl<'r, P: Provider, const PD: usize, const MR: usize, const MW: usize, const CQ: usize, const QP: usize>
    Storage<'r, P, PD, MR, MW, CQ, QP>
{
    /// Creates empty tables, with the rings for each queue pair.
    pub const fn new(rings: [RingsView<'r>; QP]) -> Self {
        Self::with_srqs(rings, [])
    }
}

impl<'r, P: Provider, const PD: usize, const MR: usize, const MW: usize, const CQ: usize, const QP: usize, const SRQ: usize>
    Storage<'r, P, PD, MR, MW, CQ, QP, SRQ>
{
    const CAPACITIES: () = assert!(
        PD <= 65_535 && MR <= 65_535 && MW <= 65_535 && CQ <= 65_535 && QP <= 65_535 && SRQ <= 65_535,
        "a table has 65535 slots at most"
    );

    /// Creates empty tables, with the rings for each queue pair and the places of each shared receive queue.
    pub const fn with_srqs(rings: [RingsView<'r>; QP], srqs: [SrqEntriesView<'r>; SRQ]) -> Self {
        let mut this = Self::without_rings();
        this.set_rings(rings);
        this.set_srqs(srqs);
        this
    }

    /// Gives the shared receive queues their places, for tables of [`Self::without_rings`].
    pub const fn set_srqs(&mut self, srqs: [SrqEntriesView<'r>; SRQ]) {
        let mut index = 0;
        while index < SRQ {
            #[expect(clippy::indexing_slicing, reason = "both arrays have SRQ elements, and `get` is not const")]
            {
                self.srq_slots[index].give(srqs[index]);
            }
            index += 1;
        }
    }

    /// Gives the queue pairs their rings, for tables of [`Self::without_rings`].
    pub const fn set_rings(&mut self, rings: [RingsView<'r>; QP]) {
        let mut index = 0;
        while index < QP {
            #[expect(clippy::indexing_slicing, reason = "both arrays have QP elements, and `get` is not const")]
            {
                self.qp_slots[index].give(rings[index]);
            }
            index += 1;
        }
    }

    /// Creates empty tables in which no queue pair fits before [`Self::set_rings`], and no shared receive queue before
    /// [`Self::set_srqs`]. They are a constant, which is copied to where they stay without being on the stack, if that place is known only at run time.
    pub const fn without_rings() -> Self {
        const { Self::CAPACITIES };
        Self {
            pds: [const { Slot::EMPTY }; PD],
            mrs: [const { Slot::EMPTY }; MR],
            mws: [const { Slot::EMPTY }; MW],
            cqs: [const { Slot::EMPTY }; CQ],
            qps: [const { Slot::EMPTY }; QP],
            srqs: [const { Slot::EMPTY }; SRQ],
            region_slots: [const { RegionSlot::new() }; MR],
            cq_slots: [const { CqSlot::new() }; CQ],
            qp_slots: [const { QpSlot::new(RingsView::NONE) }; QP],
            srq_slots: [const { SrqSlot::new(SrqEntriesView::NONE) }; SRQ],
            windows: Lock::new(Windows::new([const { WindowCell::EMPTY }; MW])),
            events: Lock::new(None),
        }
    }
}

/// Returns the [`StorageView`] of a borrowed storage, whose fields have the same names with each kind of tables.
macro_rules! view_of {
    ($kind:ident, $storage:expr) => {{
        let $kind { pds, mrs, mws, cqs, qps, srqs, region_slots, cq_slots, qp_slots, srq_slots, windows, events } = $storage;
        let (regions, windows): (_, &Lock<Windows>) = (Regions::new(region_slots), windows);
        StorageView {
            pds: Table::new(pds),
            mrs: Table::new(mrs),
            mws: Table::new(mws),
            cqs: Table::new(cqs),
            qps: Table::new(qps),
            srqs: Table::new(srqs),
            shared: Shared { regions, cqs: cq_slots, qps: qp_slots, srqs: srq_slots, windows },
            events,
        }
    }};
}
#[cfg(feature = "alloc")]
pub(crate) use view_of;

/// A storage that is borrowed by [`Verbs::new`](crate::Verbs::new), of any capacities.
pub struct StorageView<'s, P: Provider> {
    pub(crate) pds: Table<'s, kind::Pd, Pd<P>>,
    pub(crate) mrs: Table<'s, kind::Mr, Mr<P>>,
    pub(crate) mws: Table<'s, kind::Mw, Mw<P>>,
    pub(crate) cqs: Table<'s, kind::Cq, Cq<P>>,
    pub(crate) qps: Table<'s, kind::Qp, Qp<P>>,
    pub(crate) srqs: Table<'s, kind::Srq, Srq<P::Srq>>,
    pub(crate) shared: Shared<'s>,
    pub(crate) events: &'s Lock<Option<P::CompletionEvents>>,
}

format_as!(
    [P: Provider] StorageView<'_, P>,
    "StorageView({} regions, {} completion queues, {} queue pairs, {} shared receive queues)",
    |this| this.shared.regions.slots().len(), this.shared.cqs.len(), this.shared.qps.len(), this.shared.srqs.len(),
);

impl<'s, P: Provider, const PD: usize, const MR: usize, const MW: usize, const CQ: usize, const QP: usize, const SRQ: usize>
    From<&'s mut Storage<'_, P, PD, MR, MW, CQ, QP, SRQ>> for StorageView<'s, P>
{
    fn from(storage: &'s mut Storage<'_, P, PD, MR, MW, CQ, QP, SRQ>) -> Self {
        view_of!(Storage, storage)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_remembers_every_fact() {
        use WcOpcode::{BindMw, CompSwap, FetchAdd, LocalInv, RdmaRead, RdmaWrite, RegMr, Send};
        let entry = SendEntry::new();
        assert_eq!(entry.get().blocks, 0);
        for opcode in [Send, RdmaWrite, RdmaRead, CompSwap, FetchAdd, BindMw, LocalInv, RegMr] {
            for blocks in (0..=u16::MAX).step_by(if cfg!(miri) { 4099 } else { 1 }) {
                let facts = SendFacts { wr_id: u64::from(blocks) << 48 | 1, bytes: !u32::from(blocks), blocks, opcode };
                entry.set(facts);
                assert_eq!(entry.get(), facts);
            }
        }
        entry.clear();
        assert_eq!(entry.get().blocks, 0);
    }
}
