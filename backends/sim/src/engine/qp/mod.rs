//! Queue pairs: the context that requester and responder share, requester and responder.

pub(super) mod context;
pub(super) mod modify;
pub(super) mod turn;

use bareverbs_mlx5_spec::Qpc;

use crate::engine::qp::context::{QpContext, QpPlan};
use crate::engine::requester::state::Requester;
use crate::engine::responder::state::Responder;

/// A queue pair.
#[derive(Debug)]
pub(in crate::engine) struct Qp {
    pub(in crate::engine) context: QpContext,
    pub(in crate::engine) requester: Requester,
    pub(in crate::engine) responder: Responder,
}

impl Qp {
    pub(in crate::engine) fn new(qpn: u32, plan: QpPlan<'_>) -> Self {
        Self { context: QpContext::new(qpn, plan), requester: Requester::default(), responder: Responder::default() }
    }

    /// Returns the bytes of this process that its lists take beyond what every queue pair is counted with: pages, requests in
    /// progress and responses that wait.
    pub(in crate::engine) fn count_memory(&mut self) -> u64 {
        self.requester.counted = self.requester.memory();
        self.context.list_memory + self.requester.counted + self.responder.memory(self.context.depth(Qpc::LOG_RRA_MAX))
    }
}
