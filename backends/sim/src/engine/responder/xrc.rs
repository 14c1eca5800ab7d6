//! XRC targets: a request names the shared receive queue that it is for, and that one's domain and completion queue stand
//! in for those of the queue pair, which has none of its own.

use bareverbs_mlx5_spec::Qpc;

use crate::engine::qp::{Qp, Service};
use crate::engine::responder::Refusal;
use crate::engine::srq::SrqKind;
use crate::engine::work::Work;
use crate::packet::Packet;

/// The shared receive queue of a request, which stands in for that of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct XrcSrq {
    pub(in crate::engine) srqn: u32,
    pub(in crate::engine) pd: u32,
    pub(in crate::engine) cqn: u32,
    pub(in crate::engine) user_index: u32,
}

impl Qp {
    /// Looks up the shared receive queue that an XRC request names; nothing to do on other services.
    pub(in crate::engine) fn resolve_xrc_srq(&mut self, work: &Work<'_, '_>, packet: &Packet) -> Result<(), Refusal> {
        if self.service != Service::Xrc {
            return Ok(());
        }
        let srqn = packet.xrc_srqn.ok_or(Refusal::INVALID)?;
        let srq = work.shared.srqs.get(srqn).filter(|srq| srq.spec.kind == SrqKind::Xrc);
        let spec = srq.map(|srq| srq.spec).filter(|spec| spec.xrcd == self.get(Qpc::XRCD)).ok_or(Refusal::INVALID)?;
        let moved = self.responder.xrc_srq.is_some_and(|srq| srq.srqn != srqn);
        if moved && self.responder.is_amid_message() {
            return Err(Refusal::INVALID);
        }
        self.responder.xrc_srq = Some(XrcSrq { srqn, pd: spec.pd, cqn: spec.cqn, user_index: spec.user_index });
        Ok(())
    }

    /// Domain in which the keys of a request are looked up.
    pub(in crate::engine) fn key_domain(&self) -> u32 {
        self.responder.xrc_srq.map_or(self.pd(), |srq| srq.pd)
    }
}
