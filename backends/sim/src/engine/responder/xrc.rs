//! XRC targets: a request names the shared receive queue that it is for, and that one's domain and completion queue stand
//! in for those of the queue pair, which has none of its own.

use bareverbs_mlx5_spec::Qpc;

use crate::engine::memory::key::{Access, Right};
use crate::engine::qp::context::{QpContext, Service};
use crate::engine::responder::state::{Refusal, Responder, XrcSrq};
use crate::engine::srq::SrqKind;
use crate::engine::work::Work;
use crate::packet::Packet;

impl Responder {
    /// Looks up the shared receive queue that an XRC request names; nothing to do on other services.
    pub(in crate::engine) fn resolve_xrc_srq(
        &mut self,
        qp: &QpContext,
        work: &Work<'_, '_>,
        packet: &Packet,
    ) -> Result<(), Refusal> {
        if qp.service != Service::Xrc {
            return Ok(());
        }
        let srqn = packet.xrc_srqn.ok_or(Refusal::INVALID)?;
        let srq = work.shared.srqs.get(srqn).filter(|srq| srq.spec.kind == SrqKind::Xrc);
        let spec = srq.map(|srq| srq.spec).filter(|spec| spec.xrcd == qp.get(Qpc::XRCD)).ok_or(Refusal::INVALID)?;
        let moved = self.xrc_srq.is_some_and(|srq| srq.srqn != srqn);
        if moved && self.is_amid_message() {
            return Err(Refusal::INVALID);
        }
        self.xrc_srq = Some(XrcSrq { srqn, pd: spec.pd, cqn: spec.cqn, user_index: spec.user_index });
        Ok(())
    }

    /// Domain in which the keys of a request are looked up.
    pub(in crate::engine) fn key_domain(&self, qp: &QpContext) -> u32 {
        self.xrc_srq.map_or(qp.pd(), |srq| srq.pd)
    }

    /// Access with a key of a request.
    pub(in crate::engine) fn access(&self, qp: &QpContext, right: Right) -> Access {
        Access { right, pd: self.key_domain(qp), qpn: qp.qpn }
    }
}
