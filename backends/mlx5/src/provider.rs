//! The core's traits on a device that is up.

use bareverbs::{
    AsyncEvent, CheckedOp, Clock, Cqn, DataPath, DeviceAttr, Gid, Instant, Lkey, MrRequest, MwType, Peek, Platform, PortAttr,
    Provider, Psn, QpAttr, QpAttrMask, QpMade, QpRequest, QpState, Qpn, RawCompletion, Remote, Rkey, SendFlags, Sge, UsualOp,
};

use crate::Mlx5;
use crate::error::Error;
use crate::objects::cq::Cq;
use crate::objects::mkey::{Mr, Mw};
use crate::objects::pd::Pd;
use crate::objects::qp::{self, Qp};

impl<P: Platform, const PAGES: usize> Provider for Mlx5<P, PAGES> {
    type Error = Error;
    type Pd = Pd;
    type Mr = Mr;
    type Mw = Mw;
    type Cq = Cq;
    type Qp = Qp;

    fn device_attr(&self) -> &DeviceAttr {
        &self.driver.attr
    }

    fn query_port(&mut self, port: u8) -> Result<PortAttr, Error> {
        self.view().query_port(port)
    }

    fn query_gid(&mut self, port: u8, index: u16) -> Result<Gid, Error> {
        self.view().query_gid(port, index)
    }

    fn query_pkey(&mut self, port: u8, index: u16) -> Result<u16, Error> {
        self.view().query_pkey(port, index)
    }

    fn alloc_pd(&mut self) -> Result<Pd, Error> {
        self.view().alloc_pd()
    }

    fn dealloc_pd(&mut self, pd: &mut Pd) -> Result<(), Error> {
        self.view().dealloc_pd(pd)
    }

    fn create_mr(&mut self, pd: &Pd, request: &MrRequest<'_>) -> Result<(Mr, Lkey, Rkey), Error> {
        self.view().create_mr(pd, request)
    }

    fn destroy_mr(&mut self, mr: &mut Mr) -> Result<(), Error> {
        self.view().destroy_mr(mr)
    }

    fn create_mw(&mut self, pd: &Pd, kind: MwType) -> Result<(Mw, Rkey), Error> {
        self.view().create_mw(pd, kind)
    }

    fn destroy_mw(&mut self, mw: &mut Mw) -> Result<(), Error> {
        self.view().destroy_mw(mw)
    }

    fn create_cq(&mut self, entries: u32) -> Result<(Cq, Cqn, u32), Error> {
        self.view().create_cq(entries)
    }

    fn destroy_cq(&mut self, cq: &mut Cq) -> Result<(), Error> {
        self.view().destroy_cq(cq)
    }

    fn create_qp(&mut self, request: &QpRequest<'_, Self>) -> Result<QpMade<Self>, Error> {
        self.view().create_qp(request)
    }

    fn modify_qp(&mut self, qp: &mut Qp, from: QpState, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        self.view().modify_qp(qp, from, attr, mask)
    }

    fn query_qp(&mut self, qp: &Qp) -> Result<(QpState, Psn, Psn), Error> {
        self.view().query_qp(qp)
    }

    fn destroy_qp(&mut self, qp: &mut Qp) -> Result<(), Error> {
        self.view().destroy_qp(qp)
    }

    fn clean_cq(&mut self, cq: &mut Cq, qpn: Qpn) -> Result<(), Error> {
        self.driver.clean(cq, qpn.get())
    }

    fn now(&self) -> Instant {
        self.driver.machine.clock.now()
    }

    fn poll_event(&mut self) -> Result<Option<AsyncEvent>, Error> {
        self.view().next_event()
    }
}

impl<P: Platform, const PAGES: usize> DataPath for Mlx5<P, PAGES> {
    #[inline(always)]
    fn send_blocks(op: &CheckedOp<'_>) -> u32 {
        qp::send_blocks(op)
    }

    #[inline(always)]
    fn encode_send(&mut self, qp: &mut Qp, at: u32, op: &CheckedOp<'_>, flags: SendFlags, signaled: bool) -> Result<(), Error> {
        self.driver.encode_send(qp, at, op, flags, signaled)
    }

    const USUAL_BLOCKS: Option<u16> = Some(1);

    #[inline(always)]
    fn encode_usual(
        &mut self,
        qp: &mut Qp,
        at: u32,
        op: UsualOp,
        sges: &[Sge],
        remote: Remote,
        flags: SendFlags,
        signaled: bool,
    ) -> Result<(), Error> {
        self.driver.encode_usual(qp, at, op, sges, remote, flags, signaled)
    }

    const SHORT_INLINE: usize = qp::SHORT_INLINE;

    #[inline(always)]
    fn short_inline_blocks(len: usize) -> u16 {
        qp::short_inline_blocks(len)
    }

    #[inline(always)]
    fn encode_short_inline(
        &mut self,
        qp: &mut Qp,
        at: u32,
        bytes: &[u8],
        remote: Remote,
        flags: SendFlags,
        signaled: bool,
    ) -> Result<(), Error> {
        self.driver.encode_short_inline(qp, at, bytes, remote, flags, signaled)
    }

    #[inline(always)]
    fn commit_send(&mut self, qp: &mut Qp, end: u32) -> Result<(), Error> {
        self.driver.commit_send(qp, end)
    }

    #[inline]
    fn encode_recv(&mut self, qp: &mut Qp, at: u32, sges: &[Sge]) -> Result<(), Error> {
        self.driver.encode_recv(qp, at, sges)
    }

    #[inline]
    fn commit_recv(&mut self, qp: &mut Qp, end: u32) -> Result<(), Error> {
        self.driver.commit_recv(qp, end)
    }

    #[inline(always)]
    fn peek(&self, cq: &Cq) -> Peek {
        self.driver.peek(cq)
    }

    #[inline(always)]
    fn skip(&mut self, cq: &mut Cq) {
        cq.consumer = cq.consumer.wrapping_add(1);
    }

    #[inline(always)]
    fn poll(&mut self, cq: &mut Cq) -> Result<Option<RawCompletion>, Error> {
        self.driver.poll_cq(cq)
    }

    #[inline(always)]
    fn commit_cq(&mut self, cq: &mut Cq) -> Result<(), Error> {
        self.driver.update_consumer_index(cq)
    }

    #[inline]
    fn arm_cq(&mut self, cq: &mut Cq, solicited_only: bool) -> Result<(), Error> {
        self.driver.arm(cq, solicited_only)
    }
}
