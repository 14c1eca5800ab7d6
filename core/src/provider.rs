//! What a hardware backend implements for the control path: [`Provider`].
//!
//! The core checks what the verbs promise and keeps the tables; a backend turns checked requests into its device's
//! language. It may rely on the checks, and it must not rely on its device: whatever the device says becomes an error value.

use crate::address::EncodedAddress;
use crate::backend::rings::{CqRing, RecvRing, SendRing, SrqRing};
use crate::error::{DeviceError, DeviceLoss};
use crate::log::format_as;
use crate::platform::{AddressMap, Instant};
use crate::{
    Access, AddressVector, CqModeration, Cqn, DeviceAttr, Gid, GidEntry, LinkLayer, Lkey, MwType, PortAttr, Psn, QpAttr,
    QpAttrMask, QpCap, QpState, QpType, Qpn, Rkey, SrqCap, Srqn, Xrcdn,
};

/// Proof that a call to a backend comes from the core, whose checks and tables keep the device to its own memory. No other code
/// can make one.
#[derive(Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CoreToken(());

impl CoreToken {
    pub(crate) const NEW: Self = Self(());
}

/// A region to make.
pub struct MrRequest<'a> {
    /// First byte in the caller's address space.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Checked access.
    pub access: Access,
    /// Where the bytes lie for the device.
    pub map: &'a dyn AddressMap,
}

format_as!([] MrRequest<'_>, "MrRequest({} bytes at {:x}, {:?})", |this| this.length, this.addr, this.access);

/// A completion queue that was made. `P` is the backend.
pub struct CreatedCq<P: Provider + ?Sized> {
    /// The control path's part.
    pub cq: P::Cq,
    /// The ring of completions.
    pub ring: P::CqRing,
    /// Number.
    pub cqn: Cqn,
    /// Completions that it has room for.
    pub entries: u32,
    /// Interrupt vector of its events.
    pub vector: u16,
}

format_as!(
    [P: Provider + ?Sized] CreatedCq<P>,
    "CreatedCq({:?}, {} entries, vector {})",
    |this| this.cqn, this.entries, this.vector,
);

/// What a device says of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QueriedQp {
    /// State.
    pub state: QpState,
    /// In SQD: whether sends that had begun are not done yet (`ibv_qp_attr.sq_draining`).
    pub sq_draining: bool,
    /// Next PSN to receive.
    pub rq_psn: Psn,
    /// Next PSN to send.
    pub sq_psn: Psn,
}

/// Sizes of the rings of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RingSizes {
    /// Blocks of the send ring: a power of two, 32,768 at most; 0 without one.
    pub send_blocks: u32,
    /// Entries of the receive ring: a power of two, 32,768 at most; 0 without one.
    pub recv_entries: u32,
    /// Capacities of the rings, at least the requested ones.
    pub cap: QpCap,
}

/// Sizes of a shared receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SrqSizes {
    /// Places of the ring: a power of two from 2 to 32,768. One is always free.
    pub slots: u32,
    /// Capacities of the ring, at least the requested ones; `max_wr` is less than `slots`.
    pub cap: SrqCap,
}

/// A shared receive queue that was made. `P` is the backend.
pub struct CreatedSrq<P: Provider + ?Sized> {
    /// The control path's part.
    pub srq: P::Srq,
    /// The ring of receives.
    pub ring: P::SrqRing,
    /// Number.
    pub srqn: Srqn,
}

format_as!([P: Provider + ?Sized] CreatedSrq<P>, "CreatedSrq({:?})", |this| this.srqn);

/// A queue pair to make.
pub struct CreateQpParams<'a, P: Provider + ?Sized> {
    /// Transport.
    pub qp_type: QpType,
    /// Domain.
    pub pd: &'a P::Pd,
    /// Queue for completions of sends.
    pub send_cq: &'a P::Cq,
    /// Queue for completions of receives.
    pub recv_cq: &'a P::Cq,
    /// Shared receive queue that it takes its receives from. Then its sizes have no receive ring.
    pub srq: Option<&'a P::Srq>,
    /// As [`Provider::ring_sizes`] gave them.
    pub sizes: RingSizes,
    /// Given back with each completion: 16 bits.
    pub cookie: u32,
}

format_as!(
    [P: Provider + ?Sized] CreateQpParams<'_, P>,
    "CreateQpParams({:?}, {:?}, cookie {:x})",
    |this| this.qp_type, this.sizes, this.cookie,
);

/// A queue pair that was made.
pub struct CreatedQp<P: Provider + ?Sized> {
    /// The control path's part.
    pub qp: P::Qp,
    /// The send ring.
    pub send: P::SendRing,
    /// The receive ring. One that takes its receives from a shared receive queue has one without entries.
    pub recv: P::RecvRing,
    /// Number.
    pub qpn: Qpn,
}

format_as!([P: Provider + ?Sized] CreatedQp<P>, "CreatedQp({:?})", |this| this.qpn);

/// An XRC shared receive queue to make.
pub struct CreateXrcSrqParams<'a, P: Provider + ?Sized> {
    /// Domain of the memory of its receives, and of the keys of requests that name it.
    pub pd: &'a P::Pd,
    /// XRC domain.
    pub domain: &'a P::Xrcd,
    /// Queue for its completions.
    pub cq: &'a P::Cq,
    /// As [`Provider::srq_sizes`] gave them.
    pub sizes: SrqSizes,
    /// Given back with each completion: the slot of the queue in the upper 16 bits, and 0xffff in the lower, which no queue pair has.
    pub cookie: u32,
}

format_as!(
    [P: Provider + ?Sized] CreateXrcSrqParams<'_, P>,
    "CreateXrcSrqParams({:?}, cookie {:x})",
    |this| this.sizes, this.cookie,
);

/// An XRC queue pair to make.
pub struct CreateXrcQpParams<'a, P: Provider + ?Sized> {
    /// XRC domain. A target takes from its shared receive queues.
    pub domain: &'a P::Xrcd,
    /// Protection domain of what an initiator sends, and queue for the completions of its sends. `None`: a target.
    pub initiator: Option<(&'a P::Pd, &'a P::Cq)>,
    /// As [`Provider::ring_sizes`] gave them for [`QpType::XrcSend`] and no receives; zeros for a target.
    pub sizes: RingSizes,
    /// Given back with each completion of a send: 16 bits.
    pub cookie: u32,
}

format_as!(
    [P: Provider + ?Sized] CreateXrcQpParams<'_, P>,
    "CreateXrcQpParams({:?}, initiator {}, cookie {:x})",
    |this| this.sizes, this.initiator.is_some(), this.cookie,
);

/// Control path of a backend. Every method that makes, changes or destroys takes a [`CoreToken`]: only the core calls it.
///
/// Methods with a body are of features that a device may lack: shared receive queues, XRC, fast registration, multicast,
/// completion queues of another size and moderation. They refuse ([`DeviceError::unsupported`]).
///
/// # Safety
/// - The device reaches only memory that a request of the core names, as its [`AddressMap`] says, and memory of its own. It reaches
///   the former from that request on, until the backend has returned to the core that the object which names the memory is destroyed.
/// - A ring is handed out once for each queue that is made. It is used by no other queue until that is destroyed.
/// - A [`CoreToken`] goes on to other backends only with the request that it came with, and their answer is given back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the backend of a device",
    note = "the backend for ConnectX is `bareverbs_mlx5::Mlx5`, of a `Platform` and a number of pages"
)]
#[expect(unsafe_code, reason = "a wrong implementation would let the device use memory that is somebody else's")]
pub unsafe trait Provider {
    /// Error of every operation.
    type Error: DeviceError;
    /// Protection domain.
    type Pd;
    /// Memory region.
    type Mr;
    /// Memory window.
    type Mw;
    /// Completion queue.
    type Cq;
    /// Queue pair.
    type Qp;
    /// Shared receive queue.
    type Srq;
    /// XRC domain.
    type Xrcd;
    /// Send ring of a queue pair.
    type SendRing: SendRing + 'static;
    /// Receive ring of a queue pair.
    type RecvRing: RecvRing + 'static;
    /// Ring of a shared receive queue.
    type SrqRing: SrqRing + 'static;
    /// Ring of a completion queue.
    type CqRing: CqRing + 'static;
    /// Queues of completion events.
    type CompletionEvents: CompletionEvents + 'static;
    /// The backend's own functions outside of the verbs, such as its health (`mlx5dv` and its like call them direct verbs). Not the
    /// backend itself: two of that could be exchanged, and the objects of one destroyed on the other.
    type Direct<'a>
    where
        Self: 'a;

    /// Returns the attributes of the device, read at bring-up.
    fn device_attr(&self) -> &DeviceAttr;
    /// Returns the backend's own functions.
    fn direct(&mut self) -> Self::Direct<'_>;
    /// Returns the link layer of a port, known since bring-up, without asking the device; `port` is from 1, or 0 of a queue pair that
    /// has none yet.
    fn link_layer(&self, port: u8) -> LinkLayer;
    /// Returns the state of a port, from 1.
    ///
    /// # Errors
    /// The device does not answer, or not sensibly.
    fn query_port(&mut self, port: u8) -> Result<PortAttr, Self::Error>;
    /// Returns an entry of a port's GID table.
    ///
    /// # Errors
    /// The device has no such entry, or does not answer sensibly.
    fn query_gid(&mut self, port: u8, index: u16) -> Result<Gid, Self::Error>;
    /// Sets an entry of the GID table of an Ethernet port, or empties it; the core has checked the addresses.
    ///
    /// # Errors
    /// The device refuses, has no such entry, or does not answer; the entry is as before.
    fn set_gid(&mut self, _: CoreToken, port: u8, index: u16, entry: Option<&GidEntry>) -> Result<(), Self::Error>;
    /// Returns an entry of a port's P_Key table.
    ///
    /// # Errors
    /// The device has no such entry, or does not answer sensibly.
    fn query_pkey(&mut self, port: u8, index: u16) -> Result<u16, Self::Error>;

    /// Returns what each datagram to this address carries; the core has checked the ranges.
    ///
    /// # Errors
    /// The device has no such address.
    fn encode_address(&mut self, av: &AddressVector) -> Result<EncodedAddress, Self::Error>;

    /// Makes a domain.
    ///
    /// # Errors
    /// The device refuses or does not answer; nothing was made.
    fn alloc_pd(&mut self, _: CoreToken) -> Result<Self::Pd, Self::Error>;
    /// Destroys a domain.
    ///
    /// # Errors
    /// The device refuses or does not answer; the domain is as before.
    fn dealloc_pd(&mut self, _: CoreToken, pd: &mut Self::Pd) -> Result<(), Self::Error>;

    /// Makes a region. The tags of its keys differ from those of the regions made before it.
    ///
    /// # Errors
    /// The map has no address for a byte, or the device refuses or does not answer; nothing was made.
    fn create_mr(
        &mut self,
        _: CoreToken,
        pd: &Self::Pd,
        request: &MrRequest<'_>,
    ) -> Result<(Self::Mr, Lkey, Rkey), Self::Error>;
    /// Destroys a region.
    ///
    /// # Errors
    /// The device refuses or does not answer; the object is as before.
    fn destroy_mr(&mut self, _: CoreToken, mr: &mut Self::Mr) -> Result<(), Self::Error>;

    /// Makes an unbound window. The tag of its key differs from those of the windows made before it.
    ///
    /// # Errors
    /// The device refuses or does not answer; nothing was made.
    fn create_mw(&mut self, _: CoreToken, pd: &Self::Pd, kind: MwType) -> Result<(Self::Mw, Rkey), Self::Error>;
    /// Returns the key that a window has in the device now, and whether it is bound. For one of type 1 the latter is not looked at.
    ///
    /// # Errors
    /// The device does not answer, or not sensibly.
    fn query_mw(&mut self, _: CoreToken, mw: &Self::Mw) -> Result<(Rkey, bool), Self::Error>;
    /// Destroys a window, bound or not.
    ///
    /// # Errors
    /// The device refuses or does not answer; the object is as before.
    fn destroy_mw(&mut self, _: CoreToken, mw: &mut Self::Mw) -> Result<(), Self::Error>;

    /// Makes a free key that requests open over up to `max_sges` pieces of regions. The other calls for windows take it too.
    ///
    /// # Errors
    /// The device refuses or does not answer; nothing was made.
    fn create_fast_mr(&mut self, _: CoreToken, pd: &Self::Pd, max_sges: u32) -> Result<(Self::Mw, Rkey), Self::Error> {
        let _ = (pd, max_sges);
        Err(DeviceError::unsupported())
    }

    /// Makes a completion queue of at least `entries`.
    ///
    /// # Errors
    /// The device refuses or does not answer; nothing was made.
    fn create_cq(&mut self, _: CoreToken, entries: u32) -> Result<CreatedCq<Self>, Self::Error>;
    /// Returns whether a completion queue works: it has not overrun, and the device could write its completions.
    ///
    /// # Errors
    /// The device does not answer, or not sensibly.
    fn query_cq(&mut self, cq: &Self::Cq) -> Result<bool, Self::Error>;
    /// Gives a completion queue at least `entries` entries in place of those that it has, and returns how many. What waits in it waits
    /// on, and its number stays. Nobody polls it meanwhile.
    ///
    /// # Errors
    /// The device refuses, for instance because more completions wait than there is room for, or does not answer; the queue is as
    /// before.
    fn resize_cq(
        &mut self,
        _: CoreToken,
        cq: &mut Self::Cq,
        ring: &mut Self::CqRing,
        entries: u32,
    ) -> Result<u32, Self::Error> {
        let _ = (cq, ring, entries);
        Err(DeviceError::unsupported())
    }
    /// Changes the moderation of a completion queue's events, within [`DeviceAttr::max_cq_moderation`].
    ///
    /// # Errors
    /// The device refuses or does not answer; the moderation is as before.
    fn modify_cq(&mut self, _: CoreToken, cq: &Self::Cq, moderation: CqModeration) -> Result<(), Self::Error> {
        let _ = (cq, moderation);
        Err(DeviceError::unsupported())
    }
    /// Destroys a completion queue.
    ///
    /// # Errors
    /// The device refuses or does not answer; the object is as before.
    fn destroy_cq(&mut self, _: CoreToken, cq: &mut Self::Cq) -> Result<(), Self::Error>;

    /// Sizes of a shared receive queue with at least these capacities.
    ///
    /// # Errors
    /// The device has no such queue.
    fn srq_sizes(&self, cap: &SrqCap) -> Result<SrqSizes, Self::Error> {
        let _ = cap;
        Err(DeviceError::unsupported())
    }
    /// Makes a shared receive queue of the sizes that [`Self::srq_sizes`] gave. Its receives use memory of this domain.
    ///
    /// # Errors
    /// The device refuses or does not answer; nothing was made.
    fn create_srq(&mut self, _: CoreToken, pd: &Self::Pd, sizes: &SrqSizes) -> Result<CreatedSrq<Self>, Self::Error> {
        let _ = (pd, sizes);
        Err(DeviceError::unsupported())
    }
    /// Asks for one event when fewer requests than `limit` are left of those that the device knows; 0 asks for none.
    ///
    /// # Errors
    /// The device refuses or does not answer; the object is as before.
    fn arm_srq(&mut self, _: CoreToken, srq: &mut Self::Srq, limit: u32) -> Result<(), Self::Error> {
        let _ = (srq, limit);
        Err(DeviceError::unsupported())
    }
    /// Returns the limit that the device has now; 0 if none is armed.
    ///
    /// # Errors
    /// The device does not answer, or not sensibly.
    fn query_srq(&mut self, srq: &Self::Srq) -> Result<u32, Self::Error> {
        let _ = srq;
        Err(DeviceError::unsupported())
    }
    /// Destroys a shared receive queue that no queue pair uses.
    ///
    /// # Errors
    /// The device refuses or does not answer; the object is as before.
    fn destroy_srq(&mut self, _: CoreToken, srq: &mut Self::Srq) -> Result<(), Self::Error> {
        let _ = srq;
        Err(DeviceError::unsupported())
    }

    /// Makes an XRC domain, and gives its number.
    ///
    /// # Errors
    /// The device has no XRC, refuses or does not answer; nothing was made.
    fn alloc_xrcd(&mut self, _: CoreToken) -> Result<(Self::Xrcd, Xrcdn), Self::Error> {
        Err(DeviceError::unsupported())
    }
    /// Destroys an XRC domain that no queue is in.
    ///
    /// # Errors
    /// The device refuses or does not answer; the object is as before.
    fn dealloc_xrcd(&mut self, _: CoreToken, domain: &mut Self::Xrcd) -> Result<(), Self::Error> {
        let _ = domain;
        Err(DeviceError::unsupported())
    }
    /// Makes an XRC shared receive queue. The other calls for shared receive queues take it too.
    ///
    /// # Errors
    /// The device refuses or does not answer; nothing was made.
    fn create_xrc_srq(&mut self, _: CoreToken, params: &CreateXrcSrqParams<'_, Self>) -> Result<CreatedSrq<Self>, Self::Error> {
        let _ = params;
        Err(DeviceError::unsupported())
    }
    /// Makes an initiator or a target of XRC in RESET. The other calls for queue pairs take it too. The receive ring has no entries, and
    /// so has the send ring of a target.
    ///
    /// # Errors
    /// The device refuses or does not answer; nothing was made.
    fn create_xrc_qp(&mut self, _: CoreToken, params: &CreateXrcQpParams<'_, Self>) -> Result<CreatedQp<Self>, Self::Error> {
        let _ = params;
        Err(DeviceError::unsupported())
    }

    /// Sizes of the rings of a queue pair with at least these capacities: `max_send_wr` requests of any kind fit, and
    /// registrations of up to four pieces.
    ///
    /// # Errors
    /// The device has no such rings.
    fn ring_sizes(&self, qp_type: QpType, cap: &QpCap) -> Result<RingSizes, Self::Error>;
    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// The device refuses or does not answer; nothing was made.
    fn create_qp(&mut self, _: CoreToken, params: &CreateQpParams<'_, Self>) -> Result<CreatedQp<Self>, Self::Error>;
    /// Moves a queue pair `from` one state to `attr.state` (the same one, if it only changes attributes); the core has
    /// checked the mask. `attr` has every attribute set so far, `mask` names those of this call.
    ///
    /// # Errors
    /// The device refuses or does not answer; the object is as before.
    fn modify_qp(
        &mut self,
        _: CoreToken,
        qp: &mut Self::Qp,
        from: QpState,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), Self::Error>;
    /// Returns what the device says of a queue pair.
    ///
    /// # Errors
    /// The device does not answer, or not sensibly.
    fn query_qp(&mut self, qp: &Self::Qp) -> Result<QueriedQp, Self::Error>;
    /// Destroys a queue pair.
    ///
    /// # Errors
    /// The device refuses or does not answer; the object is as before.
    fn destroy_qp(&mut self, _: CoreToken, qp: &mut Self::Qp) -> Result<(), Self::Error>;
    /// Gives a queue pair for datagrams a copy of what is sent to a multicast group.
    ///
    /// # Errors
    /// The device refuses or does not answer; the object is as before.
    fn attach_mcast(&mut self, _: CoreToken, qp: &mut Self::Qp, gid: &Gid) -> Result<(), Self::Error> {
        let _ = (qp, gid);
        Err(DeviceError::unsupported())
    }
    /// Ends [`Self::attach_mcast`].
    ///
    /// # Errors
    /// The device refuses or does not answer; the object is as before.
    fn detach_mcast(&mut self, _: CoreToken, qp: &mut Self::Qp, gid: &Gid) -> Result<(), Self::Error> {
        let _ = (qp, gid);
        Err(DeviceError::unsupported())
    }

    /// Returns the present moment of the backend's clock.
    fn now(&self) -> Instant;
    /// Pauses by that clock ([`Clock::relax`](crate::platform::Clock::relax)), in a wait that ends at `deadline` at the latest.
    fn relax(&self, deadline: Instant);
    /// Returns why the device is lost, and the error with which every call fails from then on. `None` while it works. A device
    /// that is lost stays lost: no call sends it anything, and no call takes memory for it. Asks the device nothing: the loss is
    /// what an earlier call has found, which has failed, or has given [`AsyncEvent::DeviceFatal`].
    fn lost(&self) -> Option<(DeviceLoss, Self::Error)>;
    /// Takes the next asynchronous event, if one is waiting; never waits.
    ///
    /// # Errors
    /// The device is lost, or gave something that is no event.
    fn poll_event(&mut self) -> Result<Option<AsyncEvent>, Self::Error>;
    /// Does what is due for the device: gives it the memory that it requests, and checks its health. Returns the moment of the
    /// next call.
    ///
    /// # Errors
    /// The device is lost.
    fn maintain(&mut self) -> Result<Instant, Self::Error>;
    /// Hands out the queues of completion events; `None` if that was done already.
    fn take_completion_events(&mut self, _: CoreToken) -> Option<Self::CompletionEvents>;
    /// Takes them back.
    fn return_completion_events(&mut self, _: CoreToken, events: Self::CompletionEvents);
}

/// Implements calls of a backend by those of the backend that is borrowed: `[mut]` for those that take it so.
macro_rules! forward {
    ($(fn $name:ident [$($mut:tt)?] ($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)+) => {$(
        fn $name(&$($mut)? self, $($arg: $ty),*) $(-> $out)? {
            (**self).$name($($arg),*)
        }
    )+};
}

/// A backend that lies elsewhere, in a static for instance.
// SAFETY: each call goes on as it came.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl<P: Provider + ?Sized> Provider for &mut P {
    type Error = P::Error;
    type Pd = P::Pd;
    type Mr = P::Mr;
    type Mw = P::Mw;
    type Cq = P::Cq;
    type Qp = P::Qp;
    type Srq = P::Srq;
    type Xrcd = P::Xrcd;
    type SendRing = P::SendRing;
    type RecvRing = P::RecvRing;
    type SrqRing = P::SrqRing;
    type CqRing = P::CqRing;
    type CompletionEvents = P::CompletionEvents;
    type Direct<'a>
        = P::Direct<'a>
    where
        Self: 'a;

    forward! {
        fn device_attr[]() -> &DeviceAttr;
        fn direct[mut]() -> Self::Direct<'_>;
        fn link_layer[](port: u8) -> LinkLayer;
        fn query_port[mut](port: u8) -> Result<PortAttr, Self::Error>;
        fn query_gid[mut](port: u8, index: u16) -> Result<Gid, Self::Error>;
        fn set_gid[mut](call: CoreToken, port: u8, index: u16, entry: Option<&GidEntry>) -> Result<(), Self::Error>;
        fn query_pkey[mut](port: u8, index: u16) -> Result<u16, Self::Error>;
        fn encode_address[mut](av: &AddressVector) -> Result<EncodedAddress, Self::Error>;
        fn alloc_pd[mut](call: CoreToken) -> Result<Self::Pd, Self::Error>;
        fn dealloc_pd[mut](call: CoreToken, pd: &mut Self::Pd) -> Result<(), Self::Error>;
        fn create_mr[mut](call: CoreToken, pd: &Self::Pd, request: &MrRequest<'_>) -> Result<(Self::Mr, Lkey, Rkey), Self::Error>;
        fn destroy_mr[mut](call: CoreToken, mr: &mut Self::Mr) -> Result<(), Self::Error>;
        fn create_mw[mut](call: CoreToken, pd: &Self::Pd, kind: MwType) -> Result<(Self::Mw, Rkey), Self::Error>;
        fn query_mw[mut](call: CoreToken, mw: &Self::Mw) -> Result<(Rkey, bool), Self::Error>;
        fn destroy_mw[mut](call: CoreToken, mw: &mut Self::Mw) -> Result<(), Self::Error>;
        fn create_fast_mr[mut](call: CoreToken, pd: &Self::Pd, max_sges: u32) -> Result<(Self::Mw, Rkey), Self::Error>;
        fn query_cq[mut](cq: &Self::Cq) -> Result<bool, Self::Error>;
        fn resize_cq[mut](call: CoreToken, cq: &mut Self::Cq, ring: &mut Self::CqRing, entries: u32) -> Result<u32, Self::Error>;
        fn modify_cq[mut](call: CoreToken, cq: &Self::Cq, moderation: CqModeration) -> Result<(), Self::Error>;
        fn destroy_cq[mut](call: CoreToken, cq: &mut Self::Cq) -> Result<(), Self::Error>;
        fn srq_sizes[](cap: &SrqCap) -> Result<SrqSizes, Self::Error>;
        fn arm_srq[mut](call: CoreToken, srq: &mut Self::Srq, limit: u32) -> Result<(), Self::Error>;
        fn query_srq[mut](srq: &Self::Srq) -> Result<u32, Self::Error>;
        fn destroy_srq[mut](call: CoreToken, srq: &mut Self::Srq) -> Result<(), Self::Error>;
        fn alloc_xrcd[mut](call: CoreToken) -> Result<(Self::Xrcd, Xrcdn), Self::Error>;
        fn dealloc_xrcd[mut](call: CoreToken, domain: &mut Self::Xrcd) -> Result<(), Self::Error>;
        fn ring_sizes[](qp_type: QpType, cap: &QpCap) -> Result<RingSizes, Self::Error>;
        fn modify_qp[mut](call: CoreToken, qp: &mut Self::Qp, from: QpState, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Self::Error>;
        fn query_qp[mut](qp: &Self::Qp) -> Result<QueriedQp, Self::Error>;
        fn destroy_qp[mut](call: CoreToken, qp: &mut Self::Qp) -> Result<(), Self::Error>;
        fn attach_mcast[mut](call: CoreToken, qp: &mut Self::Qp, gid: &Gid) -> Result<(), Self::Error>;
        fn detach_mcast[mut](call: CoreToken, qp: &mut Self::Qp, gid: &Gid) -> Result<(), Self::Error>;
        fn now[]() -> Instant;
        fn relax[](deadline: Instant);
        fn lost[]() -> Option<(DeviceLoss, Self::Error)>;
        fn poll_event[mut]() -> Result<Option<AsyncEvent>, Self::Error>;
        fn maintain[mut]() -> Result<Instant, Self::Error>;
        fn take_completion_events[mut](call: CoreToken) -> Option<Self::CompletionEvents>;
        fn return_completion_events[mut](call: CoreToken, events: Self::CompletionEvents);
    }

    // Parameters and results that name the backend are of another type here.
    fn create_cq(&mut self, call: CoreToken, entries: u32) -> Result<CreatedCq<Self>, Self::Error> {
        let CreatedCq { cq, ring, cqn, entries, vector } = (**self).create_cq(call, entries)?;
        Ok(CreatedCq { cq, ring, cqn, entries, vector })
    }

    fn create_srq(&mut self, call: CoreToken, pd: &Self::Pd, sizes: &SrqSizes) -> Result<CreatedSrq<Self>, Self::Error> {
        let CreatedSrq { srq, ring, srqn } = (**self).create_srq(call, pd, sizes)?;
        Ok(CreatedSrq { srq, ring, srqn })
    }

    fn create_xrc_srq(
        &mut self,
        call: CoreToken,
        params: &CreateXrcSrqParams<'_, Self>,
    ) -> Result<CreatedSrq<Self>, Self::Error> {
        let CreateXrcSrqParams { pd, domain, cq, sizes, cookie } = *params;
        let params = CreateXrcSrqParams { pd, domain, cq, sizes, cookie };
        let CreatedSrq { srq, ring, srqn } = (**self).create_xrc_srq(call, &params)?;
        Ok(CreatedSrq { srq, ring, srqn })
    }

    fn create_xrc_qp(&mut self, call: CoreToken, params: &CreateXrcQpParams<'_, Self>) -> Result<CreatedQp<Self>, Self::Error> {
        let CreateXrcQpParams { domain, initiator, sizes, cookie } = *params;
        let params = CreateXrcQpParams { domain, initiator, sizes, cookie };
        let CreatedQp { qp, send, recv, qpn } = (**self).create_xrc_qp(call, &params)?;
        Ok(CreatedQp { qp, send, recv, qpn })
    }

    fn create_qp(&mut self, call: CoreToken, params: &CreateQpParams<'_, Self>) -> Result<CreatedQp<Self>, Self::Error> {
        let CreateQpParams { qp_type, pd, send_cq, recv_cq, srq, sizes, cookie } = *params;
        let params = CreateQpParams { qp_type, pd, send_cq, recv_cq, srq, sizes, cookie };
        let CreatedQp { qp, send, recv, qpn } = (**self).create_qp(call, &params)?;
        Ok(CreatedQp { qp, send, recv, qpn })
    }
}

/// An asynchronous event (`ibv_async_event`) with the device's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran or broke: the device's syndrome.
    CqError(Cqn, u8),
    /// First message on a queue pair in RTR.
    CommEstablished(Qpn),
    /// The send queue is drained (SQD).
    SqDrained(Qpn),
    /// A queue pair in error takes no more from its shared receive queue, and what it took is done.
    LastWqeReached(Qpn),
    /// A queue pair goes on by its alternate path.
    PathMigrated(Qpn),
    /// A queue pair was to go on by its alternate path, and could not.
    PathMigrationFailed(Qpn),
    /// Fewer requests than the limit are left in a shared receive queue.
    SrqLimitReached(Srqn),
    /// A shared receive queue broke.
    SrqError(Srqn),
    /// A queue pair broke.
    QpFatal(Qpn),
    /// An invalid request came in.
    QpRequestError(Qpn),
    /// An access violation of an incoming request.
    QpAccessError(Qpn),
    /// A port went up.
    PortActive(u8),
    /// A port went down.
    PortDown(u8),
    /// LID, P_Key table, GID table or SM of a port changed, its link is up and waits for the SM, or the SM wants registrations again.
    PortChanged(u8),
    /// The device is lost: health syndrome, and extended one.
    DeviceFatal(u8, u16),
    /// The queue of asynchronous events was full: some may be lost.
    Overflow,
    /// An event type that this library does not know: type and subtype.
    Unknown(u8, u8),
}

/// Queues of completion events: what an interrupt handler needs of a backend.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the queues of completion events of a backend",
    note = "`Provider::take_completion_events` gives it, of `Provider::CompletionEvents`"
)]
pub trait CompletionEvents {
    /// Takes the next event of the queues that interrupt with `vector`, of any queue for `None`. After
    /// [`CompletionEvent::Empty`] the device interrupts again at the next event.
    fn next(&mut self, vector: Option<u16>) -> CompletionEvent;
    /// Returns whether this vector reports asynchronous events, which the control path takes.
    fn is_control(&self, vector: u16) -> bool;
}

/// What a poll of the completion event queues returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CompletionEvent {
    /// A completion came into an armed queue.
    Completion(Cqn),
    /// A queue of events was full: events of any completion queue may be lost.
    Overflow,
    /// Nothing is left.
    Empty,
}
