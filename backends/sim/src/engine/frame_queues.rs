//! Send and receive queues for frames as firmware commands create, change, show and destroy them, and their doorbells.

use bareverbs_mlx5_spec::{CmdStatus, QueueState, Rqc, Sqc, View, ViewMut, Wq};

use super::Engine;
use super::nic::queue::{CONTEXT, QueueMemory, ReceiveQueue, SendQueue, counter_set, next_state, plan};
use super::resources::QpStep;
use crate::registry::{ObjectKind, Resource};
use crate::step::StepContext;

impl Engine {
    /// Creates a receive queue, in reset; its number.
    pub(crate) fn create_rq(&mut self, rqc: View<'_, Rqc>, memory: QueueMemory<'_>) -> Result<u32, CmdStatus> {
        // Bytes of a WQE from one data segment to 2048.
        let (ring, dbr_addr, list_memory, mut uses) = plan(rqc.sub(Rqc::WQ), memory, 4..=11)?;
        uses.push(Resource::cq(rqc.get(Rqc::CQN)));
        uses.extend(counter_set(rqc));
        let mut context: [u8; CONTEXT] = rqc.as_bytes().first_chunk().copied().ok_or(CmdStatus::BadInputLen)?;
        ViewMut::<Rqc>::of(&mut context).set(Rqc::STATE, QueueState::Reset.code());
        let rqn = self.shared.registry.create(ObjectKind::Rq, list_memory, uses)?;
        self.nic.receive_queues.insert(rqn, ReceiveQueue { taken: 0, context, state: QueueState::Reset, ring, dbr_addr });
        Ok(rqn)
    }

    /// Moves a receive queue from the state that the command says to another, and sets the chosen fields. Refused with
    /// [`CmdStatus::BadResState`] if it is in another state.
    pub(crate) fn modify_rq(
        &mut self,
        rqn: u32,
        from: u32,
        to: u32,
        change: impl FnOnce(&mut ViewMut<'_, Rqc>),
    ) -> Result<(), CmdStatus> {
        let queue = self.nic.receive_queues.get_mut(&rqn).ok_or(CmdStatus::BadRes)?;
        let to = next_state(queue.state, from, to)?;
        let before = counter_set(queue.view());
        let mut context = queue.context;
        let mut view = ViewMut::<Rqc>::of(&mut context);
        change(&mut view);
        view.set(Rqc::STATE, to.code());
        let after = counter_set(View::of(&context));
        if before != after {
            self.shared.registry.change_use(Resource::new(ObjectKind::Rq, rqn), before, after)?;
        }
        (queue.context, queue.state) = (context, to);
        if to == QueueState::Reset {
            queue.taken = 0;
        }
        Ok(())
    }

    /// Returns the context of a receive queue.
    pub(crate) fn query_rq(&self, rqn: u32) -> Result<&[u8; CONTEXT], CmdStatus> {
        self.nic.receive_queues.get(&rqn).map(|queue| &queue.context).ok_or(CmdStatus::BadRes)
    }

    /// Ends a receive queue that no table and no TIR uses. Returns the firmware memory that it had.
    pub(crate) fn destroy_rq(&mut self, rqn: u32) -> Result<u64, CmdStatus> {
        let room = self.shared.registry.destroy(Resource::new(ObjectKind::Rq, rqn))?;
        self.nic.receive_queues.remove(&rqn);
        Ok(room)
    }

    /// Creates a send queue, in reset; its number.
    pub(crate) fn create_sq(&mut self, sqc: View<'_, Sqc>, memory: QueueMemory<'_>) -> Result<u32, CmdStatus> {
        let wq = sqc.sub(Sqc::WQ);
        let (ring, dbr_addr, list_memory, mut uses) = plan(wq, memory, 6..=6)?;
        uses.extend([Resource::cq(sqc.get(Sqc::CQN)), Resource::uar(wq.get(Wq::UAR_PAGE))]);
        match sqc.get(Sqc::TIS_LST_SZ) {
            0 => {}
            1 => uses.push(Resource::new(ObjectKind::Tis, sqc.get(Sqc::TIS_NUM_0))),
            _ => return Err(CmdStatus::BadParam),
        }
        let mut context: [u8; CONTEXT] = sqc.as_bytes().first_chunk().copied().ok_or(CmdStatus::BadInputLen)?;
        ViewMut::<Sqc>::of(&mut context).set(Sqc::STATE, QueueState::Reset.code());
        let sqn = self.shared.registry.create(ObjectKind::Sq, list_memory, uses)?;
        let domain = (sqc.get(Sqc::TIS_LST_SZ) != 0)
            .then(|| self.nic.tiss.get(&sqc.get(Sqc::TIS_NUM_0)).map(|tis| tis.domain))
            .flatten();
        let queue = SendQueue { sqn, domain, context, state: QueueState::Reset, ring, dbr_addr, taken: 0, posted: 0 };
        self.nic.send_queues.insert(sqn, queue);
        Ok(sqn)
    }

    /// Same as [`Engine::modify_rq`], of a send queue. In reset its counters begin at 0.
    pub(crate) fn modify_sq(&mut self, sqn: u32, from: u32, to: u32) -> Result<(), CmdStatus> {
        let queue = self.nic.send_queues.get_mut(&sqn).ok_or(CmdStatus::BadRes)?;
        let to = next_state(queue.state, from, to)?;
        queue.enter(to);
        self.nic.busy.insert(sqn);
        Ok(())
    }

    /// Returns the context of a send queue.
    pub(crate) fn query_sq(&self, sqn: u32) -> Result<&[u8; CONTEXT], CmdStatus> {
        self.nic.send_queues.get(&sqn).map(|queue| &queue.context).ok_or(CmdStatus::BadRes)
    }

    /// Ends a send queue. Returns the firmware memory that it had.
    pub(crate) fn destroy_sq(&mut self, sqn: u32) -> Result<u64, CmdStatus> {
        let room = self.shared.registry.destroy(Resource::new(ObjectKind::Sq, sqn))?;
        self.nic.send_queues.remove(&sqn);
        self.nic.busy.remove(&sqn);
        Ok(room)
    }

    /// Takes the doorbell of a send queue. Returns `false` if there is no such queue.
    pub(in crate::engine) fn ring_frames(&mut self, ctx: &mut StepContext<'_>, sqn: u32) -> bool {
        let Some(queue) = self.nic.send_queues.get_mut(&sqn) else { return false };
        if queue.state == QueueState::Reset {
            ctx.note(|| format!("doorbell of SQ {sqn:#x}, which is reset"));
            return true;
        }
        queue.post(ctx);
        self.nic.busy.insert(sqn);
        true
    }

    /// Lets each send queue with work take a WQE in turn, until the turn is over or frames wait for room. Of a message that is cut into
    /// frames some may wait for the next turn: each has its own way through the flow tables.
    pub(in crate::engine) fn send_frames(&mut self, ctx: &mut StepContext<'_>) {
        let mut sent = Vec::new();
        let mut next = 0;
        while !ctx.meter.is_spent() && self.shared.has_room() {
            if let Some((frame, domain)) = self.nic.unsent.pop_front() {
                ctx.meter.count(1);
                self.send_frame(ctx, frame, domain);
                continue;
            }
            let Some(sqn) = self.nic.busy.range(next..).next().or_else(|| self.nic.busy.first()).copied() else { return };
            ctx.meter.count(1);
            next = sqn + 1;
            let mut step = QpStep { shared: &mut self.shared, ctx };
            let Some(queue) = self.nic.send_queues.get_mut(&sqn) else { continue };
            let domain = queue.domain;
            if !queue.run(&mut step, &mut sent) {
                self.nic.busy.remove(&sqn);
            }
            self.nic.unsent.extend(sent.drain(..).map(|frame| (frame, domain)));
        }
    }
}
