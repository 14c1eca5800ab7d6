//! The verbs on one device: its tables, and every operation on them.

use core::fmt;

use crate::backend::{CoreToken, Provider};
use crate::completion::Cq;
use crate::error::{AddressPart, CreateAhError, QueryError, SetGidError};
use crate::link::{check_group, check_path};
use crate::log::format_as;
use crate::queue_pair::Qp;
use crate::region::{Mr, Pd};
use crate::shared::{LoseOnDrop, NO_NUMBER, Shared, is_dropped};
use crate::srq_slot::Srq;
use crate::storage::StorageView;
use crate::sync::{Lock, Ordering};
use crate::table::Table;
use crate::window::{Mw, Windows};
use crate::{
    AddressHandle, AddressVector, CqHandle, DeviceAttr, Gid, GidEntry, LinkLayer, Mac, PdHandle, PortAttr, QpHandle, SrqHandle,
    Xrcdn, kind,
};

/// XRC domains of one device, at most; a number for each is kept.
pub const XRC_DOMAINS: usize = 16;

/// A value that was not dropped ([`Verbs::held`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Held {
    /// A queue of a queue pair: its send or its receive queue.
    Qp(QpHandle),
    /// A completion queue.
    Cq(CqHandle),
    /// A shared receive queue.
    Srq(SrqHandle),
    /// The interrupt handler.
    Interrupts,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qp(qp) => write!(f, "a queue of queue pair {qp:?} was not dropped"),
            Self::Cq(cq) => write!(f, "completion queue {cq:?} was not dropped"),
            Self::Srq(srq) => write!(f, "shared receive queue {srq:?} was not dropped"),
            Self::Interrupts => f.write_str("the interrupt handler was not dropped"),
        }
    }
}

/// The verbs on the device of backend `P`, over tables in a [`Storage`](crate::storage::Storage).
///
/// This is the control path alone. Requests are posted on a [`QueuePair`](crate::QueuePair), completions taken from a
/// [`CompletionQueue`](crate::CompletionQueue): values that the verbs make, and that their owners use on any core. Common requests
/// and completions take no lock. The interrupt handler is split off as one ([`Self::take_interrupt_handler`]).
///
/// A queue pair that was destroyed is no more:
///
/// ```compile_fail,E0382
/// # use bareverbs::backend::Provider;
/// # use bareverbs::{QueuePair, SendWr, Verbs};
/// fn use_after<'s, P: Provider>(verbs: &mut Verbs<'s, P>, mut qp: QueuePair<'s, P>, wr: &SendWr<'_>) {
///     let _ = verbs.destroy_qp(qp);
///     let _ = qp.send.post(wr);
/// }
/// ```
///
/// Verbs that are dropped leave their objects as they are, and a device without a driver. A poll of their queues finds it lost
/// ([`DeviceLoss::Abandoned`](crate::error::DeviceLoss::Abandoned)): requests are refused, and what is in flight is flushed.
///
/// It is neither destroyed nor reset while one of its queues has another owner:
///
/// ```compile_fail,E0382
/// # use bareverbs::backend::Provider;
/// # use bareverbs::{QueuePair, Verbs};
/// fn destroy<'s, P: Provider>(verbs: &mut Verbs<'s, P>, qp: QueuePair<'s, P>) {
///     let other_core = qp.send;
///     let _ = verbs.destroy_qp(qp);
/// }
/// ```
///
/// ```compile_fail,E0499
/// # use bareverbs::backend::Provider;
/// # use bareverbs::{QueuePair, Verbs};
/// fn reset<'s, P: Provider>(verbs: &mut Verbs<'s, P>, mut qp: QueuePair<'s, P>) {
///     let batch = qp.send.batch();
///     let _ = verbs.reset_qp(&mut qp);
///     drop(batch);
/// }
/// ```
///
/// An object whose value exists is destroyed with that: [`Self::destroy_qp`], [`Self::destroy_cq`], [`Self::destroy_srq`]. If the
/// value was dropped, perhaps by unwinding, the object still exists, and its handle is enough: [`Self::destroy_dropped_qp`] and its like.
/// They have names of their own since they can fail in another way: the value may still be somewhere.
///
/// If the call that destroys an object itself unwinds, from the backend's clock or memory for instance, nothing says whether the device
/// has done the command. Its handle is stale then, and what it used is in use for ever: a completion queue of such a queue pair is not
/// destroyed any more. Take the backend out by [`Self::into_provider`], and reset the device.
///
/// What the verbs know of an object they say without a command: [`Self::qp_info`] and its like. [`Self::query_qp`] and [`Self::query_srq`]
/// ask the device.
///
/// All else is done beside posting and polling:
///
/// ```
/// # use bareverbs::backend::Provider;
/// # use bareverbs::{QueuePair, Verbs};
/// fn both<'s, P: Provider>(verbs: &mut Verbs<'s, P>, mut qp: QueuePair<'s, P>) {
///     let handle = qp.handle();
///     let batch = qp.send.batch();
///     let _ = verbs.query_qp(handle);
///     drop(batch);
/// }
/// ```
///
/// Nor is a backend that was lent taken down, or its memory given to others, while a queue of the verbs over it exists, also if
/// these were dropped:
///
/// ```compile_fail,E0505
/// # use bareverbs::storage::QpRings;
/// # use bareverbs::{Verbs, storage};
/// # use bareverbs_testing::Driver;
/// fn reuse(mut driver: Driver) {
///     let mut tables = <storage![&mut Driver; cqs: 1]>::new([]);
///     let mut verbs = Verbs::new(&mut driver, &mut tables);
///     let Ok(mut cq) = verbs.create_cq(4) else { return };
///     drop(verbs);
///     let _ = driver.teardown();
///     let _ = cq.poll(&mut []);
/// }
/// ```
///
/// Only the verbs create what a backend creates: no other code has a [`CoreToken`].
///
/// ```compile_fail,E0423
/// # use bareverbs::backend::{CoreToken, Provider};
/// fn make<P: Provider>(provider: &mut P) {
///     let _ = provider.alloc_pd(CoreToken(()));
/// }
/// ```
///
/// ```compile_fail,E0624
/// # use bareverbs::backend::{CoreToken, Provider};
/// fn make<P: Provider>(provider: &mut P) {
///     let _ = provider.alloc_pd(CoreToken::NEW);
/// }
/// ```
pub struct Verbs<'s, P: Provider> {
    /// Before the backend, so that nobody posts to one that is gone.
    _abandon: LoseOnDrop<'s>,
    pub(crate) provider: P,
    pub(crate) shared: Shared<'s>,
    pub(crate) pds: Table<'s, kind::Pd, Pd<P>>,
    pub(crate) mrs: Table<'s, kind::Mr, Mr<P>>,
    pub(crate) mws: Table<'s, kind::Mw, Mw<P>>,
    pub(crate) cqs: Table<'s, kind::Cq, Cq<P>>,
    pub(crate) qps: Table<'s, kind::Qp, Qp<P>>,
    pub(crate) srqs: Table<'s, kind::Srq, Srq<P::Srq>>,
    /// The queues of completion events, while no interrupt handler has them.
    pub(crate) events: &'s Lock<Option<P::CompletionEvents>>,
    /// Whether the backend had any to give.
    pub(crate) has_events: bool,
    /// Completion events that were reported since there was none.
    pub(crate) completions_in_a_row: u16,
    /// Numbers of the XRC domains that there are, also of those whose value was dropped.
    pub(crate) xrcds: [Option<Xrcdn>; XRC_DOMAINS],
    /// Generation that slots start with: differs from that of all verbs before, so that no handle of theirs fits.
    pub(crate) first_generation: u32,
}

/// Verbs that were made in this program.
static MADE: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Returns a number far from those that it gave before.
fn first_generation() -> u32 {
    use core::sync::atomic::Ordering::Relaxed;
    #[cfg(target_has_atomic = "32")]
    let made = MADE.fetch_add(1, Relaxed);
    // Without compare-and-swap there is one core, and an interrupt handler makes no verbs.
    #[cfg(not(target_has_atomic = "32"))]
    let made = {
        let made = MADE.load(Relaxed);
        MADE.store(made.wrapping_add(1), Relaxed);
        made
    };
    // 2^32 over the golden ratio: the multiples are spread evenly, however many there are.
    made.wrapping_mul(0x9e37_79b9)
}

format_as!(
    [P: Provider] Verbs<'_, P>,
    "Verbs(node {:x}, {} queue pairs)",
    |this| this.provider.device_attr().node_guid.0, this.qps.iter().count(),
);

impl<'s, P: Provider> Verbs<'s, P> {
    /// Creates the verbs on a device that is up, without any object. Earlier contents of the storage are forgotten.
    ///
    /// A backend gives its completion events to one `Verbs`. If those were dropped without [`Self::into_provider`], the next ones on
    /// the same backend have none: completion queues are polled, not waited for.
    ///
    /// `storage` is a `&mut` [`Storage`](crate::storage::Storage), or, with the feature `alloc`, a `&mut` `BoxedStorage`.
    ///
    /// ```
    /// # use bareverbs::error::AllocPdError;
    /// use bareverbs::{Verbs, storage};
    /// # use bareverbs_testing::{Driver, Faults, pair};
    /// # let [a, _b] = pair(Faults::none())?;
    /// # let Ok(card) = a.verbs.into_provider() else { panic!("nobody has a queue") };
    /// let mut tables = <storage![Driver; pds: 1, mrs: 4, cqs: 2]>::new([]);
    /// let mut verbs = Verbs::new(card, &mut tables);
    /// let _pd = verbs.alloc_pd()?;
    /// assert_eq!(verbs.alloc_pd().err(), Some(AllocPdError::Full { capacity: 1 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(provider: P, storage: impl Into<StorageView<'s, P>>) -> Self {
        Self::over(provider, storage.into())
    }

    /// Implements [`Self::new`] once, whatever the storage is.
    fn over(mut provider: P, storage: StorageView<'s, P>) -> Self {
        let StorageView { mut pds, mut mrs, mut mws, mut cqs, mut qps, mut srqs, shared, events } = storage;
        for slot in shared.regions.slots() {
            slot.set(None);
        }
        for slot in shared.cqs {
            slot.cqn.store(NO_NUMBER, Ordering::Relaxed);
        }
        for slot in shared.qps {
            slot.claim.take();
            slot.qpn.store(NO_NUMBER, Ordering::Relaxed);
            slot.draining.store(0, Ordering::Relaxed);
        }
        for slot in shared.srqs {
            slot.claim.take();
            slot.end();
            slot.set_xrc(None);
        }
        shared.windows.with(Windows::clear);
        pds.clear();
        mrs.clear();
        mws.clear();
        cqs.clear();
        qps.clear();
        srqs.clear();
        let taken = provider.take_completion_events(CoreToken::NEW);
        let has_events = taken.is_some();
        events.with(|events| *events = taken);
        let first_generation = first_generation();
        let _abandon = LoseOnDrop(shared);
        let completions_in_a_row = 0;
        Self {
            _abandon,
            provider,
            shared,
            pds,
            mrs,
            mws,
            cqs,
            qps,
            srqs,
            events,
            has_events,
            completions_in_a_row,
            xrcds: [None; XRC_DOMAINS],
            first_generation,
        }
    }

    /// Returns the backend.
    pub const fn provider(&self) -> &P {
        &self.provider
    }

    /// Returns the backend's own functions outside of the verbs, such as its health.
    pub fn direct(&mut self) -> P::Direct<'_> {
        self.provider.direct()
    }

    /// Gives the backend back. The objects that are left are forgotten, not destroyed: destroy them first, or let the device
    /// forget them too.
    ///
    /// A [`Region`](crate::Region) does not keep the backend here, since one that lives looks like one that was dropped. Deregister
    /// each before ([`Self::dereg_mr`]): of one that is left, only a reset of the device gives the buffer back
    /// ([`Region::into_buffer_after_reset`](crate::Region::into_buffer_after_reset)).
    ///
    /// ```
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [a, _b] = pair(Faults::none())?;
    /// # let mut verbs = a.verbs;
    /// let cq = verbs.create_cq(16)?;
    /// let Err(verbs) = verbs.into_provider() else { panic!("the completion queue could still be polled") };
    /// drop(cq);
    /// let Ok(card) = verbs.into_provider() else { panic!("nobody has a queue") };
    /// assert!(card.teardown().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A queue or the interrupt handler was not dropped, and could use what the backend then gives to others: [`Self::held`] says
    /// which. The verbs are as before.
    #[expect(clippy::result_large_err, reason = "the verbs themselves are given back")]
    pub fn into_provider(mut self) -> Result<P, Self> {
        if self.held().is_some() || !self.release_events() {
            return Err(self);
        }
        Ok(self.provider)
    }

    /// Returns a value that was not dropped, of those that keep [`Self::into_provider`] from giving the backend back: queues and the
    /// interrupt handler, no regions.
    ///
    /// ```
    /// # use bareverbs::{Access, Held};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let cq = a.verbs.create_cq(16)?;
    /// assert_eq!(a.verbs.held(), Some(Held::Cq(cq.handle())));
    /// drop(cq);
    /// let _region = a.register(64, Access::LOCAL_WRITE)?;
    /// assert_eq!(a.verbs.held(), None, "a region does not count");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn held(&self) -> Option<Held> {
        let qp = || self.qps.iter().map(|(handle, _)| handle).find(|handle| !self.is_qp_dropped(*handle)).map(Held::Qp);
        let cq = || self.cqs.iter().map(|(handle, _)| handle).find(|handle| !self.is_cq_dropped(*handle)).map(Held::Cq);
        let srq = || self.srqs.iter().map(|(handle, _)| handle).find(|handle| !self.is_srq_dropped(*handle)).map(Held::Srq);
        let interrupts = || self.has_taken_events().then_some(Held::Interrupts);
        qp().or_else(cq).or_else(srq).or_else(interrupts)
    }

    pub(crate) fn is_srq_dropped(&self, handle: SrqHandle) -> bool {
        self.shared.srqs.get(usize::from(handle.index())).is_none_or(|slot| is_dropped(&slot.owner))
    }

    // ---- device

    /// Returns the attributes of the device.
    ///
    /// ```
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [a, _b] = pair(Faults::none())?;
    /// let device = a.verbs.query_device();
    /// assert_eq!(device.phys_port_cnt, 1);
    /// assert!(device.max_mr_size >= 1 << 30, "regions of a gigabyte");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn query_device(&self) -> &DeviceAttr {
        self.provider.device_attr()
    }

    pub(crate) fn has_port(&self, port: u8) -> bool {
        (1..=self.query_device().phys_port_cnt).contains(&port)
    }

    fn check_port(&self, port: u8) -> Result<(), QueryError<P::Error>> {
        if self.has_port(port) { Ok(()) } else { Err(QueryError::Port { port }) }
    }

    /// Returns the state of a port, from 1.
    ///
    /// ```
    /// # use bareverbs::PortState;
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let port = a.verbs.query_port(1)?;
    /// assert_eq!((port.lid.get(), port.state), (1, PortState::Active));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no such port, or the device does not answer.
    pub fn query_port(&mut self, port: u8) -> Result<PortAttr, QueryError<P::Error>> {
        self.check_port(port)?;
        self.provider.query_port(port).map_err(|error| QueryError::Device(self.failed(error)))
    }

    /// Returns an entry of a port's GID table.
    ///
    /// ```
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// // The first of an InfiniBand port: the prefix of its subnet, here the link-local one, and its GUID.
    /// let gid = a.verbs.query_gid(1, 0)?;
    /// assert_eq!(gid.0[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no such port or entry, or the device does not answer.
    pub fn query_gid(&mut self, port: u8, index: u16) -> Result<Gid, QueryError<P::Error>> {
        self.check_port(port)?;
        self.provider.query_gid(port, index).map_err(|error| QueryError::Device(self.failed(error)))
    }

    /// Sets an entry of the GID table of an Ethernet port, from index 0. Paths name it by
    /// [`GlobalRoute::sgid_index`](crate::GlobalRoute::sgid_index). Queue pairs that use the entry send with its new values from
    /// then on.
    ///
    /// The verbs resolve no addresses: they answer no ARP and no neighbor solicitation, and a path has its peer's MAC address from
    /// the caller.
    ///
    /// ```
    /// # use bareverbs::GidEntry;
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none().ethernet())?;
    /// let mac = a.verbs.query_port(1)?.mac;
    /// a.verbs.set_gid(1, 3, &GidEntry::new([192, 0, 2, 1], mac))?;
    /// assert_eq!(a.verbs.query_gid(1, 3)?.ip().to_string(), "192.0.2.1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no such port or entry, the port is an InfiniBand port, an address or the VLAN is impossible, or the device refuses.
    pub fn set_gid(&mut self, port: u8, index: u16, entry: &GidEntry) -> Result<(), SetGidError<P::Error>> {
        let GidEntry { gid, mac, vlan } = *entry;
        if gid == Gid::default() || gid.is_ip_group() {
            return Err(SetGidError::Address);
        }
        if mac == Mac::ZERO || mac.is_group() {
            return Err(SetGidError::Mac { mac });
        }
        if let Some(vlan) = vlan
            && !(1..=4094).contains(&vlan)
        {
            return Err(SetGidError::Vlan { vlan });
        }
        self.write_gid(port, index, Some(entry))
    }

    /// Empties an entry of the GID table of an Ethernet port. What queue pairs send through it is lost, until it is set again: a
    /// reliable one fails after its retries.
    ///
    /// # Errors
    /// There is no such port or entry, the port is an InfiniBand port, or the device refuses.
    pub fn delete_gid(&mut self, port: u8, index: u16) -> Result<(), SetGidError<P::Error>> {
        self.write_gid(port, index, None)
    }

    fn write_gid(&mut self, port: u8, index: u16, entry: Option<&GidEntry>) -> Result<(), SetGidError<P::Error>> {
        if !self.has_port(port) {
            return Err(SetGidError::Port { port });
        }
        if self.provider.link_layer(port) == LinkLayer::InfiniBand {
            return Err(SetGidError::InfiniBand { port });
        }
        let set = self.provider.set_gid(CoreToken::NEW, port, index, entry);
        set.map_err(|error| SetGidError::Device(self.failed(error)))
    }

    /// Returns an entry of a port's P_Key table.
    ///
    /// ```
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// // The default partition, with full membership (IBTA 10.9.1.2).
    /// assert_eq!(a.verbs.query_pkey(1, 0)?, 0xffff);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no such port or entry, or the device does not answer.
    pub fn query_pkey(&mut self, port: u8, index: u16) -> Result<u16, QueryError<P::Error>> {
        self.check_port(port)?;
        self.provider.query_pkey(port, index).map_err(|error| QueryError::Device(self.failed(error)))
    }

    /// Makes an address handle for the datagrams of a protection domain's queue pairs. The device is not asked, and nothing of
    /// the verbs is taken.
    ///
    /// On an InfiniBand port, an answer to a datagram that came without a global route:
    ///
    /// ```
    /// # use bareverbs::backend::Provider;
    /// # use bareverbs::{Destination, PdHandle, Qkey, QueuePair, SendWr, Source, Verbs};
    /// # const QKEY: Qkey = Qkey::new(0x1111_1111);
    /// fn answer<P: Provider>(verbs: &mut Verbs<'_, P>, pd: PdHandle, qp: &mut QueuePair<'_, P>, source: &Source) {
    ///     let Ok(ah) = verbs.create_ah(pd, &source.reply(1)) else { return };
    ///     let to = Destination { ah, remote_qpn: source.src_qp, remote_qkey: QKEY };
    ///     let _ = qp.send.post(&SendWr::send_to(&to, b"here I am"));
    /// }
    /// ```
    ///
    /// # Errors
    /// The domain's handle is stale, a part of the address is out of range or does not fit the port's link layer, or the device has
    /// no such address.
    pub fn create_ah(&mut self, pd: PdHandle, av: &AddressVector) -> Result<AddressHandle, CreateAhError<P::Error>> {
        self.pds.get(pd).ok_or(CreateAhError::StalePd)?;
        let ports = u32::from(self.provider.device_attr().phys_port_cnt);
        if self.has_port(av.port_num) {
            let link_layer = self.provider.link_layer(av.port_num);
            check_path(link_layer, av)
                .and_then(|()| check_group(link_layer, av))
                .map_err(|fault| CreateAhError::Path { fault })?;
        }
        let flow_label = av.grh.map_or(0, |grh| grh.flow_label);
        for (part, value, min, max) in [
            (AddressPart::PortNum, u32::from(av.port_num), 1, ports),
            (AddressPart::Sl, u32::from(av.sl), 0, 15),
            (AddressPart::SrcPathBits, u32::from(av.src_path_bits), 0, 127),
            (AddressPart::FlowLabel, flow_label, 0, (1 << 20) - 1),
        ] {
            if value < min || value > max {
                return Err(CreateAhError::Value { part, value, min, max });
            }
        }
        let encoded = self.provider.encode_address(av).map_err(|error| CreateAhError::Device(self.failed(error)))?;
        Ok(AddressHandle::new(pd, encoded))
    }
}
