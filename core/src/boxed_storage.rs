//! Storage on the heap, of sizes that are known at run time only.

use alloc::boxed::Box;

use crate::backend::Provider;
use crate::claim::Taken;
use crate::completion::Cq;
use crate::log::format_as;
use crate::queue_pair::Qp;
use crate::region::{Mr, Pd};
use crate::ring::Entries;
use crate::shared::{CqSlot, QpSlot, RegionSlot, Regions, Shared};
use crate::srq_slot::{Srq, SrqEntriesView, SrqEntry, SrqSlot};
use crate::storage::{RingSizes, RingsView, SendEntry, StorageView, view_of};
use crate::sync::{Lock, Word64};
use crate::table::{Slot, Table};
use crate::window::{Mw, WindowCell, Windows};

/// The most slots of a table: an index has 16 bits, and the last names none.
const MAX_SLOTS: usize = 65_535;
/// The most blocks, receives or slots of a ring.
const MAX_RING: u32 = 1 << 15;

/// Returns `count` values.
fn boxed<T>(count: usize, value: impl Fn() -> T) -> Box<[T]> {
    (0..count).map(|_| value()).collect()
}

/// [`QpRings`](crate::storage::QpRings) on the heap: the requests in flight of one queue pair.
pub struct BoxedQpRings {
    send: Box<[SendEntry]>,
    recv: Box<[Word64]>,
    taken: Taken,
}

format_as!(
    [] BoxedQpRings,
    "BoxedQpRings({} send blocks, {} receives)",
    |this| this.send.len(), this.recv.len(),
);

impl BoxedQpRings {
    /// Creates rings without a request, with at least as many blocks and receives as `sizes` says: each number becomes a power of two,
    /// and 32,768 at most. The capacities in `sizes` are ignored.
    ///
    /// What a queue pair needs is said by [`Provider::ring_sizes`] before there are verbs.
    pub fn new(sizes: &RingSizes) -> Self {
        let entries = |count: u32| if count == 0 { 0 } else { count.min(MAX_RING).next_power_of_two() as usize };
        Self {
            send: boxed(entries(sizes.send_blocks), SendEntry::new),
            recv: boxed(entries(sizes.recv_entries), || Word64::new(0)),
            taken: Taken::new(),
        }
    }

    /// Returns a view, of which a [`BoxedStorage`] is made, as [`QpRings::view`](crate::storage::QpRings::view).
    pub fn view(&self) -> RingsView<'_> {
        RingsView { send: Entries::new(&self.send), recv: Entries::new(&self.recv), taken: Some(&self.taken) }
    }
}

/// [`SrqEntries`](crate::storage::SrqEntries) on the heap: the requests in flight of one shared receive queue.
pub struct BoxedSrqEntries {
    entries: Box<[SrqEntry]>,
    taken: Taken,
}

format_as!([] BoxedSrqEntries, "BoxedSrqEntries({} slots)", |this| this.entries.len());

impl BoxedSrqEntries {
    /// Creates slots for at least `max_wr` requests, and the one that is always kept back: their number becomes a power of two, and
    /// 32,768 at most.
    pub fn new(max_wr: u32) -> Self {
        let slots = max_wr.clamp(1, MAX_RING - 1).wrapping_add(1).next_power_of_two();
        Self { entries: boxed(slots as usize, SrqEntry::new), taken: Taken::new() }
    }

    /// Returns a view, of which a [`BoxedStorage`] is made, as [`SrqEntries::view`](crate::storage::SrqEntries::view).
    pub fn view(&self) -> SrqEntriesView<'_> {
        SrqEntriesView { entries: &self.entries, taken: Some(&self.taken) }
    }
}

/// How many objects a [`BoxedStorage`] has room for. Of queue pairs and shared receive queues it has as many as it is given rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Capacities {
    /// Protection domains.
    pub pds: u16,
    /// Memory regions.
    pub mrs: u16,
    /// Memory windows, and as many binds in flight.
    pub mws: u16,
    /// Completion queues.
    pub cqs: u16,
}

/// [`Storage`](crate::storage::Storage) on the heap: for programs whose sizes are known at run time only, and that have a heap. All of it is
/// allocated when it is made; nothing is allocated later. [`Verbs::new`](crate::Verbs::new) takes a `&mut` to it.
///
/// As everywhere in `alloc`, a heap that is full ends the program.
///
/// ```
/// use bareverbs::backend::Provider;
/// use bareverbs::error::CreateQpError;
/// use bareverbs::storage::{BoxedQpRings, BoxedStorage, Capacities};
/// use bareverbs::{QpCap, QpInit, QpType, Verbs};
/// # let [a, _b] = bareverbs_testing::pair(bareverbs_testing::Faults::none())?;
/// # let Ok(card) = a.verbs.into_provider() else { panic!("nobody has a queue") };
/// let wanted: usize = std::env::args().len();
/// let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
/// let sizes = card.ring_sizes(QpType::Rc, &cap)?;
/// let rings: Vec<_> = (0..wanted).map(|_| BoxedQpRings::new(&sizes)).collect();
/// let capacities = Capacities { pds: 1, mrs: 8, mws: 0, cqs: 1 };
/// let mut storage = BoxedStorage::new(&capacities, rings.iter().map(BoxedQpRings::view));
/// let mut verbs = Verbs::new(card, &mut storage);
/// let pd = verbs.alloc_pd()?;
/// let cq = verbs.create_cq(64)?;
/// let (send_cq, recv_cq) = (cq.handle(), cq.handle());
/// let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true };
/// let qps = (0..wanted).map(|_| verbs.create_qp(&init)).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!((qps.len(), verbs.create_qp(&init).err()), (wanted, Some(CreateQpError::Full { capacity: wanted, fitting: wanted })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BoxedStorage<'r, P: Provider> {
    pds: Box<[Slot<Pd<P>>]>,
    mrs: Box<[Slot<Mr<P>>]>,
    mws: Box<[Slot<Mw<P>>]>,
    cqs: Box<[Slot<Cq<P>>]>,
    qps: Box<[Slot<Qp<P>>]>,
    srqs: Box<[Slot<Srq<P::Srq>>]>,
    region_slots: Box<[RegionSlot]>,
    cq_slots: Box<[CqSlot]>,
    qp_slots: Box<[QpSlot<'r>]>,
    srq_slots: Box<[SrqSlot<'r>]>,
    windows: Lock<Windows<[WindowCell; 0]>>,
    events: Lock<Option<P::CompletionEvents>>,
}

format_as!(
    [P: Provider] BoxedStorage<'_, P>,
    "BoxedStorage({} domains, {} regions, {} windows, {} completion queues, {} queue pairs, {} shared receive queues)",
    |this| this.pds.len(), this.mrs.len(), this.mws.len(), this.cqs.len(), this.qps.len(), this.srqs.len(),
);

impl<'r, P: Provider> BoxedStorage<'r, P> {
    /// Allocates empty tables, with the rings for each queue pair; 65,535 queue pairs at most.
    pub fn new(capacities: &Capacities, rings: impl IntoIterator<Item = RingsView<'r>>) -> Self {
        Self::with_srqs(capacities, rings, [])
    }

    /// Allocates empty tables, with the rings for each queue pair and the slots of each shared receive queue; 65,535 of either at
    /// most.
    pub fn with_srqs(
        capacities: &Capacities,
        rings: impl IntoIterator<Item = RingsView<'r>>,
        srqs: impl IntoIterator<Item = SrqEntriesView<'r>>,
    ) -> Self {
        let Capacities { pds, mrs, mws, cqs } = *capacities;
        let [pds, mrs, mws, cqs] = [pds, mrs, mws, cqs].map(usize::from);
        let qp_slots: Box<[QpSlot<'r>]> = rings.into_iter().take(MAX_SLOTS).map(QpSlot::new).collect();
        let srq_slots: Box<[SrqSlot<'r>]> = srqs.into_iter().take(MAX_SLOTS).map(SrqSlot::new).collect();
        Self {
            pds: boxed(pds, || Slot::EMPTY),
            mrs: boxed(mrs, || Slot::EMPTY),
            mws: boxed(mws, || Slot::EMPTY),
            cqs: boxed(cqs, || Slot::EMPTY),
            qps: boxed(qp_slots.len(), || Slot::EMPTY),
            srqs: boxed(srq_slots.len(), || Slot::EMPTY),
            region_slots: boxed(mrs, RegionSlot::new),
            cq_slots: boxed(cqs, CqSlot::new),
            qp_slots,
            srq_slots,
            windows: Lock::new(Windows::boxed(mws)),
            events: Lock::new(None),
        }
    }
}

impl<'s, P: Provider> From<&'s mut BoxedStorage<'_, P>> for StorageView<'s, P> {
    fn from(storage: &'s mut BoxedStorage<'_, P>) -> Self {
        view_of!(BoxedStorage, storage)
    }
}
