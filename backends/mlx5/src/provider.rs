//! The core's control path, implemented by the driver.

use bareverbs::backend::{
    AsyncEvent, CoreToken, CreateQpParams, CreateXrcQpParams, CreateXrcSrqParams, CreatedCq, CreatedQp, CreatedSrq,
    EncodedAddress, MrRequest, Provider, QueriedQp, SrqSizes,
};
use bareverbs::error::DeviceLoss;
use bareverbs::platform::{Clock, Instant, Platform};
use bareverbs::storage::RingSizes;
use bareverbs::{
    AddressVector, CqModeration, Cqn, DeviceAttr, Gid, GidEntry, LinkLayer, Lkey, MwType, PortAttr, QpAttr, QpAttrMask, QpCap,
    QpState, QpType, Qpn, Rkey, SrqCap, Srqn, Xrcdn,
};
use bareverbs_mlx5_spec::rq_type;

use crate::Mlx5;
use crate::direct::Mlx5Direct;
use crate::error::Error;
use crate::events::completion::Mlx5CompletionEvents;
use crate::log::logged;
use crate::object::Object;
use crate::objects::cq::ring::Mlx5CqRing;
use crate::objects::mkey::Mr;
use crate::objects::qp::recv_ring::Mlx5RecvRing;
use crate::objects::qp::send_ring::Mlx5SendRing;
use crate::objects::qp::{Qp, ring_sizes};
use crate::objects::srq::srq_sizes;

/// Implements calls of the core by the driver's of the same names, whose errors are logged. The core's token comes before the arguments
/// of those that have one.
macro_rules! forward {
    ($(fn $name:ident $([$token:ty])? ($($arg:ident: $ty:ty),*) -> $out:ty;)+) => {$(
        fn $name(&mut self, $(_: $token,)? $($arg: $ty),*) -> Result<$out, Error> {
            logged(stringify!($name), self.view().$name($($arg),*))
        }
    )+};
}

/// Implements calls that end an object, whatever it is.
macro_rules! end {
    ($($name:ident),+) => {$(
        fn $name(&mut self, _: CoreToken, object: &mut Object) -> Result<(), Error> {
            logged(stringify!($name), self.view().end(object))
        }
    )+};
}

// SAFETY: the device gets addresses from its arena, its pages, and the map of a request. What it did not confirm to be destroyed
// stays known: an error says that it may use the memory. Rings come from allocations of the arena that last until then.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl<P: Platform, const PAGES: usize> Provider for Mlx5<P, PAGES>
where
    P: 'static,
{
    type Error = Error;
    type Pd = Object;
    type Mr = Mr;
    type Mw = Object;
    type Cq = Object;
    type Qp = Qp;
    type Srq = Object;
    type Xrcd = Object;
    type SendRing = Mlx5SendRing<P>;
    type RecvRing = Mlx5RecvRing<P>;
    type SrqRing = Mlx5RecvRing<P>;
    type CqRing = Mlx5CqRing<P>;
    type CompletionEvents = Mlx5CompletionEvents<P>;
    type Direct<'a> = Mlx5Direct<'a, P>;

    fn direct(&mut self) -> Mlx5Direct<'_, P> {
        Mlx5Direct { driver: self.view() }
    }

    fn device_attr(&self) -> &DeviceAttr {
        &self.driver.attr
    }

    fn link_layer(&self, _: u8) -> LinkLayer {
        if self.driver.caps.is_ethernet() { LinkLayer::Ethernet } else { LinkLayer::InfiniBand }
    }

    forward! {
        fn query_port(port: u8) -> PortAttr;
        fn query_gid(port: u8, index: u16) -> Gid;
        fn set_gid[CoreToken](port: u8, index: u16, entry: Option<&GidEntry>) -> ();
        fn query_pkey(port: u8, index: u16) -> u16;
        fn encode_address(av: &AddressVector) -> EncodedAddress;
        fn alloc_pd[CoreToken]() -> Object;
        fn create_mr[CoreToken](pd: &Object, request: &MrRequest<'_>) -> (Mr, Lkey, Rkey);
        fn destroy_mr[CoreToken](mr: &mut Mr) -> ();
        fn create_mw[CoreToken](pd: &Object, kind: MwType) -> (Object, Rkey);
        fn query_mw[CoreToken](mw: &Object) -> (Rkey, bool);
        fn create_fast_mr[CoreToken](pd: &Object, max_sges: u32) -> (Object, Rkey);
        fn query_cq(cq: &Object) -> bool;
        fn resize_cq[CoreToken](cq: &mut Object, ring: &mut Mlx5CqRing<P>, entries: u32) -> u32;
        fn modify_cq[CoreToken](cq: &Object, moderation: CqModeration) -> ();
        fn arm_srq[CoreToken](srq: &mut Object, limit: u32) -> ();
        fn query_srq(srq: &Object) -> u32;
        fn dealloc_xrcd[CoreToken](domain: &mut Object) -> ();
        fn modify_qp[CoreToken](qp: &mut Qp, from: QpState, attr: &QpAttr, mask: QpAttrMask) -> ();
        fn query_qp(qp: &Qp) -> QueriedQp;
        fn destroy_qp[CoreToken](qp: &mut Qp) -> ();
        fn attach_mcast[CoreToken](qp: &mut Qp, gid: &Gid) -> ();
        fn detach_mcast[CoreToken](qp: &mut Qp, gid: &Gid) -> ();
        fn poll_event() -> Option<AsyncEvent>;
    }

    end!(dealloc_pd, destroy_mw, destroy_cq, destroy_srq);

    fn create_cq(&mut self, _: CoreToken, entries: u32) -> Result<CreatedCq<Self>, Error> {
        let driver = self.view();
        let (cq, vector, ring) = logged("create_cq", driver.create_cq(entries, driver.config.cqe_size))?;
        Ok(CreatedCq { cqn: Cqn::new(cq.number), entries: 1 << ring.position().0.log_size(), cq, ring, vector })
    }

    fn create_srq(&mut self, _: CoreToken, pd: &Object, sizes: &SrqSizes) -> Result<CreatedSrq<Self>, Error> {
        let (srq, ring) = logged("create_srq", self.view().create_srq(pd, sizes))?;
        Ok(CreatedSrq { srqn: Srqn::new(srq.number), srq, ring })
    }

    fn alloc_xrcd(&mut self, _: CoreToken) -> Result<(Object, Xrcdn), Error> {
        let domain = logged("alloc_xrcd", self.view().alloc_xrcd())?;
        Ok((domain, Xrcdn::new(domain.number)))
    }

    fn create_xrc_srq(&mut self, _: CoreToken, params: &CreateXrcSrqParams<'_, Self>) -> Result<CreatedSrq<Self>, Error> {
        let CreateXrcSrqParams { pd, domain, cq, ref sizes, cookie } = *params;
        let numbers = [pd.number, domain.number, cq.number, cookie];
        let (srq, ring) = logged("create_xrc_srq", self.view().create_xrc_srq(numbers, sizes))?;
        Ok(CreatedSrq { srqn: Srqn::new(srq.number), srq, ring })
    }

    fn create_xrc_qp(&mut self, _: CoreToken, params: &CreateXrcQpParams<'_, Self>) -> Result<CreatedQp<Self>, Error> {
        let CreateXrcQpParams { domain, initiator, ref sizes, cookie } = *params;
        let (qp, send, recv) = logged("create_xrc_qp", self.view().create_xrc_qp(domain, initiator, sizes, cookie))?;
        Ok(CreatedQp { qpn: Qpn::new(qp.number), qp, send, recv })
    }

    fn create_qp(&mut self, _: CoreToken, params: &CreateQpParams<'_, Self>) -> Result<CreatedQp<Self>, Error> {
        let CreateQpParams { qp_type, pd, send_cq, recv_cq, srq, ref sizes, cookie } = *params;
        let receives = srq.map_or([rq_type::NONE, 0, 0], |srq| [rq_type::SRQ, srq.number, 0]);
        let numbers = [pd.number, send_cq.number, recv_cq.number];
        let (qp, send, recv) = logged("create_qp", self.view().create_qp(qp_type, numbers, receives, sizes, cookie))?;
        Ok(CreatedQp { qpn: Qpn::new(qp.number), qp, send, recv })
    }

    fn srq_sizes(&self, cap: &SrqCap) -> Result<SrqSizes, Error> {
        logged("srq_sizes", srq_sizes(cap, &self.driver.attr))
    }

    fn ring_sizes(&self, qp_type: QpType, cap: &QpCap) -> Result<RingSizes, Error> {
        logged("ring_sizes", ring_sizes(qp_type, cap, self.driver.caps.max_send_wqe, &self.driver.attr))
    }

    fn now(&self) -> Instant {
        self.driver.commands.machine.clock.now()
    }

    fn relax(&self, deadline: Instant) {
        self.driver.commands.machine.clock.relax(deadline);
    }

    fn lost(&self) -> Option<(DeviceLoss, Error)> {
        let error = self.driver.commands.dead?;
        Some((error.loss(), error))
    }

    fn maintain(&mut self) -> Result<Instant, Error> {
        let driver = self.view();
        driver.health.maintain(&mut driver.commands)
    }

    fn take_completion_events(&mut self, _: CoreToken) -> Option<Mlx5CompletionEvents<P>> {
        self.driver.completion_events.take()
    }

    fn return_completion_events(&mut self, _: CoreToken, events: Mlx5CompletionEvents<P>) {
        self.driver.completion_events = Some(events);
    }
}
