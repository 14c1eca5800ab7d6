//! The core's control path, implemented by the driver.

use bareverbs::{
    AddressVector, AsyncEvent, Clock, CoreToken, CreateQpParams, CreateXrcQpParams, CreateXrcSrqParams, CreatedCq, CreatedQp,
    CreatedSrq, DeviceAttr, DeviceLoss, EncodedAddress, Gid, GidEntry, Instant, LinkLayer, Lkey, MrRequest, MwType, Platform,
    PortAttr, Provider, Psn, QpAttr, QpAttrMask, QpCap, QpState, QpType, RingSizes, Rkey, SrqCap, SrqSizes, Xrcdn,
};

use crate::Mlx5;
use crate::direct::Mlx5Direct;
use crate::error::Error;
use crate::events::completion::Mlx5CompletionEvents;
use crate::log::logged;
use crate::objects::cq::Cq;
use crate::objects::cq::ring::Mlx5CqRing;
use crate::objects::mkey::{Mr, Mw};
use crate::objects::pd::Pd;
use crate::objects::qp::recv_ring::Mlx5RecvRing;
use crate::objects::qp::send_ring::Mlx5SendRing;
use crate::objects::qp::{Qp, ring_sizes};
use crate::objects::srq::ring::Mlx5SrqRing;
use crate::objects::srq::{Srq, srq_sizes};
use crate::objects::xrc::Xrcd;

// SAFETY: the device gets addresses from its arena, its pages, and the map of a request. What it did not confirm to be destroyed
// stays known: an error says that it may use the memory. Rings come from allocations of the arena that last until then.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl<P: Platform, const PAGES: usize> Provider for Mlx5<P, PAGES>
where
    P: 'static,
{
    type Error = Error;
    type Pd = Pd;
    type Mr = Mr;
    type Mw = Mw;
    type Cq = Cq;
    type Qp = Qp;
    type Srq = Srq;
    type Xrcd = Xrcd;
    type SendRing = Mlx5SendRing<P>;
    type RecvRing = Mlx5RecvRing<P>;
    type SrqRing = Mlx5SrqRing<P>;
    type CqRing = Mlx5CqRing<P>;
    type CompletionEvents = Mlx5CompletionEvents<P>;
    type Direct<'a> = Mlx5Direct<'a, P>;

    fn direct(&mut self) -> Mlx5Direct<'_, P> {
        Mlx5Direct::new(self.view())
    }

    fn device_attr(&self) -> &DeviceAttr {
        &self.driver.attr
    }

    fn link_layer(&self, _: u8) -> LinkLayer {
        if self.driver.caps.is_ethernet() { LinkLayer::Ethernet } else { LinkLayer::InfiniBand }
    }

    fn query_port(&mut self, port: u8) -> Result<PortAttr, Error> {
        logged("query_port", self.view().query_port(port))
    }

    fn query_gid(&mut self, port: u8, index: u16) -> Result<Gid, Error> {
        logged("query_gid", self.view().query_gid(port, index))
    }

    fn set_gid(&mut self, _: CoreToken, port: u8, index: u16, entry: Option<&GidEntry>) -> Result<(), Error> {
        logged("set_gid", self.view().set_gid(port, index, entry))
    }

    fn query_pkey(&mut self, port: u8, index: u16) -> Result<u16, Error> {
        logged("query_pkey", self.view().query_pkey(port, index))
    }

    fn encode_address(&mut self, av: &AddressVector) -> Result<EncodedAddress, Error> {
        logged("encode_address", self.view().encode_address(av))
    }

    fn alloc_pd(&mut self, _: CoreToken) -> Result<Pd, Error> {
        logged("alloc_pd", self.view().alloc_pd())
    }

    fn dealloc_pd(&mut self, _: CoreToken, pd: &mut Pd) -> Result<(), Error> {
        logged("dealloc_pd", self.view().dealloc_pd(pd))
    }

    fn create_mr(&mut self, _: CoreToken, pd: &Pd, request: &MrRequest<'_>) -> Result<(Mr, Lkey, Rkey), Error> {
        logged("create_mr", self.view().create_mr(pd, request))
    }

    fn destroy_mr(&mut self, _: CoreToken, mr: &mut Mr) -> Result<(), Error> {
        logged("destroy_mr", self.view().destroy_mr(mr))
    }

    fn create_mw(&mut self, _: CoreToken, pd: &Pd, kind: MwType) -> Result<(Mw, Rkey), Error> {
        logged("create_mw", self.view().create_mw(pd, kind))
    }

    fn query_mw(&mut self, _: CoreToken, mw: &Mw) -> Result<(Rkey, bool), Error> {
        logged("query_mw", self.view().query_mw(mw))
    }

    fn destroy_mw(&mut self, _: CoreToken, mw: &mut Mw) -> Result<(), Error> {
        logged("destroy_mw", self.view().destroy_mw(mw))
    }

    fn create_cq(&mut self, _: CoreToken, entries: u32) -> Result<CreatedCq<Self>, Error> {
        logged("create_cq", self.view().create_cq(entries))
    }

    fn query_cq(&mut self, cq: &Cq) -> Result<bool, Error> {
        logged("query_cq", self.view().query_cq(cq))
    }

    fn resize_cq(&mut self, _: CoreToken, cq: &mut Cq, ring: &mut Mlx5CqRing<P>, entries: u32) -> Result<u32, Error> {
        logged("resize_cq", self.view().resize_cq(cq, ring, entries))
    }

    fn destroy_cq(&mut self, _: CoreToken, cq: &mut Cq) -> Result<(), Error> {
        logged("destroy_cq", self.view().destroy_cq(cq))
    }

    fn srq_sizes(&self, cap: &SrqCap) -> Result<SrqSizes, Error> {
        logged("srq_sizes", srq_sizes(cap, &self.driver.caps))
    }

    fn create_srq(&mut self, _: CoreToken, pd: &Pd, sizes: &SrqSizes) -> Result<CreatedSrq<Self>, Error> {
        logged("create_srq", self.view().create_srq(pd, sizes))
    }

    fn arm_srq(&mut self, _: CoreToken, srq: &mut Srq, limit: u32) -> Result<(), Error> {
        logged("arm_srq", self.view().arm_srq(srq, limit))
    }

    fn query_srq(&mut self, srq: &Srq) -> Result<u32, Error> {
        logged("query_srq", self.view().query_srq(srq))
    }

    fn destroy_srq(&mut self, _: CoreToken, srq: &mut Srq) -> Result<(), Error> {
        logged("destroy_srq", self.view().destroy_srq(srq))
    }

    fn alloc_xrcd(&mut self, _: CoreToken) -> Result<(Xrcd, Xrcdn), Error> {
        let domain = logged("alloc_xrcd", self.view().alloc_xrcd::<Self>())?;
        let number = domain.xrcdn();
        Ok((domain, number))
    }

    fn dealloc_xrcd(&mut self, _: CoreToken, domain: &mut Xrcd) -> Result<(), Error> {
        logged("dealloc_xrcd", self.view().dealloc_xrcd(domain))
    }

    fn create_xrc_srq(&mut self, _: CoreToken, params: &CreateXrcSrqParams<'_, Self>) -> Result<CreatedSrq<Self>, Error> {
        let CreateXrcSrqParams { pd, domain, cq, ref sizes, cookie } = *params;
        logged("create_xrc_srq", self.view().create_srq_of_xrcd(domain, (pd, cq, cookie), sizes))
    }

    fn create_xrc_qp(&mut self, _: CoreToken, params: &CreateXrcQpParams<'_, Self>) -> Result<CreatedQp<Self>, Error> {
        let CreateXrcQpParams { domain, initiator, ref sizes, cookie } = *params;
        let (qp, send, recv) = logged("create_xrc_qp", self.view().create_xrc_qp(domain, initiator, sizes, cookie))?;
        let qpn = qp.qpn();
        Ok(CreatedQp { qp, send, recv, qpn })
    }

    fn ring_sizes(&self, qp_type: QpType, cap: &QpCap) -> Result<RingSizes, Error> {
        logged("ring_sizes", ring_sizes(qp_type, cap, &self.driver.caps))
    }

    fn create_qp(&mut self, _: CoreToken, params: &CreateQpParams<'_, Self>) -> Result<CreatedQp<Self>, Error> {
        let CreateQpParams { qp_type, pd, send_cq, recv_cq, srq, ref sizes, cookie } = *params;
        match self.view().create_qp(qp_type, pd, (send_cq, recv_cq, srq), &sizes.cap, cookie) {
            Ok((qp, send, recv)) => {
                let qpn = qp.qpn();
                Ok(CreatedQp { qp, send, recv, qpn })
            }
            Err(error) => logged("create_qp", Err(error)),
        }
    }

    fn modify_qp(&mut self, _: CoreToken, qp: &mut Qp, from: QpState, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        logged("modify_qp", self.view().modify_qp(qp, from, attr, mask))
    }

    fn query_qp(&mut self, qp: &Qp) -> Result<(QpState, Psn, Psn), Error> {
        logged("query_qp", self.view().query_qp(qp))
    }

    fn destroy_qp(&mut self, _: CoreToken, qp: &mut Qp) -> Result<(), Error> {
        logged("destroy_qp", self.view().destroy_qp(qp))
    }

    fn attach_mcast(&mut self, _: CoreToken, qp: &mut Qp, gid: &Gid) -> Result<(), Error> {
        logged("attach_mcast", self.view().attach_mcast(qp, gid))
    }

    fn detach_mcast(&mut self, _: CoreToken, qp: &mut Qp, gid: &Gid) -> Result<(), Error> {
        logged("detach_mcast", self.view().detach_mcast(qp, gid))
    }

    fn now(&self) -> Instant {
        self.driver.commands.machine.clock.now()
    }

    fn relax(&self, deadline: Instant) {
        self.driver.commands.machine.clock.relax(deadline);
    }

    fn lost(&self) -> Option<(DeviceLoss, Error)> {
        let error = Error::from(self.driver.commands.dead?);
        Some((error.loss(), error))
    }

    fn poll_event(&mut self) -> Result<Option<AsyncEvent>, Error> {
        logged("poll_event", self.view().next_event())
    }

    fn maintain(&mut self) -> Result<Instant, Error> {
        let driver = self.view();
        Ok(driver.health.maintain(&mut driver.commands)?)
    }

    fn take_completion_events(&mut self, _: CoreToken) -> Option<Mlx5CompletionEvents<P>> {
        self.driver.eqs.completion_events.take()
    }

    fn return_completion_events(&mut self, _: CoreToken, events: Mlx5CompletionEvents<P>) {
        self.driver.eqs.completion_events = Some(events);
    }
}
