//! XRC targets: a request names its shared receive queue. The domain and the completion queue are those of the shared receive
//! queue, since the queue pair has none. No queue pair keeps a shared receive queue from being destroyed: it is looked up each
//! time, by a name that no other queue gets.

use bareverbs_mlx5_spec::Qpc;

use crate::engine::memory::key::{Access, Right};
use crate::engine::qp::context::{QpContext, Service};
use crate::engine::resources::QpStep;
use crate::engine::responder::state::{Refusal, Responder};
use crate::engine::srq::{SrqKind, SrqName};
use crate::packet::TransportPart;
use crate::rejection::Rejection;

impl Responder {
    /// Looks up the shared receive queue that an XRC request names; nothing to do on other services.
    pub(in crate::engine) fn resolve_xrc_srq(
        &mut self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
        packet: &TransportPart<'_>,
    ) -> Result<(), Refusal> {
        if qp.service != Service::Xrc {
            return Ok(());
        }
        let srqn = packet.xrc_srqn.ok_or(Refusal::INVALID)?;
        let why = match step.shared.srqs.get(srqn) {
            None => "no shared receive queue here has the number",
            Some(srq) if srq.spec.kind != SrqKind::Xrc => "it is none of XRC",
            Some(srq) if srq.spec.xrcd != qp.get(Qpc::XRCD) => "it belongs to another XRC domain",
            Some(srq) => return self.name_xrc_srq(srq.name),
        };
        step.ctx.reject(Rejection::SharedQueue { qpn: qp.qpn, srqn, why });
        // A violation of the domain is an access error, as Linux's software device has it (`RESPST_ERR_INVALID_XRCETH`, a patch that was not merged), and as
        // drivers of other devices report it (`HNS_ROCE_EVENT_TYPE_XRCD_VIOLATION`: `IB_EVENT_QP_ACCESS_ERR`).
        Err(Refusal::ACCESS)
    }

    /// Takes the shared receive queue of a request as that of its message.
    fn name_xrc_srq(&mut self, named: SrqName) -> Result<(), Refusal> {
        // A message ends in the queue where it began, which is gone when another one has its number.
        if self.is_amid_message() && self.xrc_srq != Some(named) {
            return Err(Refusal::INVALID);
        }
        self.xrc_srq = Some(named);
        Ok(())
    }

    /// Returns the domain in which the keys of the newest request are looked up.
    pub(in crate::engine) fn key_domain(&self, qp: &QpContext, step: &QpStep<'_, '_>) -> Result<u32, Refusal> {
        domain_of(self.xrc_srq, qp, step).ok_or(Refusal::INVALID)
    }

    /// Access with a key of the newest request.
    pub(in crate::engine) fn access(&self, qp: &QpContext, step: &QpStep<'_, '_>, right: Right) -> Result<Access, Refusal> {
        Ok(Access { right, pd: self.key_domain(qp, step)?, qpn: qp.qpn })
    }

    /// Returns whether receives in use can complete: those of a shared receive queue end with it.
    pub(in crate::engine) fn can_complete(&self, step: &QpStep<'_, '_>) -> bool {
        self.xrc_srq.is_none_or(|name| step.shared.srqs.find(name).is_some())
    }
}

/// Returns the domain of a request: that of its shared receive queue, as long as there is one, or else that of the queue pair.
pub(in crate::engine) fn domain_of(srq: Option<SrqName>, qp: &QpContext, step: &QpStep<'_, '_>) -> Option<u32> {
    match srq {
        Some(name) => Some(step.shared.srqs.find(name)?.spec.pd),
        None => Some(qp.pd()),
    }
}
