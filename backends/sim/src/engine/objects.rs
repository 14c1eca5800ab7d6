//! Keys, device memory and queues as firmware commands create, change, show and destroy them.

use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus, Cqc, EventType, Mkc, Qpc, QpcState, View, ViewMut};

use super::qp::context::{QpContext, Service};
use super::qp::{Qp, modify};
use super::resources::QpStep;
use super::{Engine, EngineEvent, PageSource, SrqKind, SrqSpec};
use crate::registry::{ObjectKind, Registry, Resource};
use crate::rejection::Rejection;
use crate::stats::EngineCounts;
use crate::step::StepContext;

impl Engine {
    /// Returns the objects of the device.
    pub(crate) fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// Returns the objects of the device, to change what belongs to them.
    pub(crate) fn registry_mut(&mut self) -> &mut Registry {
        &mut self.shared.registry
    }

    /// Creates a key with the translations (page addresses or KLMs) in `source`. Returns the key's index; the key itself is
    /// that and the tag of the context in its low byte.
    pub(crate) fn create_mkey(
        &mut self,
        ctx: &mut StepContext<'_>,
        mkc: View<'_, Mkc>,
        source: PageSource<'_>,
    ) -> Result<u32, CmdStatus> {
        let created = self.shared.keys.create(&mut self.shared.registry, mkc, source);
        if let Err(status) = created {
            ctx.note(|| format!("key refused: {}", status.name()));
        }
        created
    }

    /// Writes the context of a key to `out`.
    pub(crate) fn query_mkey(&self, index: u32, out: &mut ViewMut<'_, Mkc>) -> Result<(), CmdStatus> {
        self.shared.keys.query(index, out)
    }

    /// Destroys a key; the firmware memory that it had. Refused with [`CmdStatus::BadResState`] while a window is bound to it.
    pub(crate) fn destroy_mkey(&mut self, index: u32) -> Result<u64, CmdStatus> {
        self.shared.keys.destroy(&mut self.shared.registry, index)
    }

    /// Allocates device memory within a range (first byte by its place in BAR0, and length). Returns the place of the
    /// allocation.
    pub(crate) fn alloc_memory(&mut self, range: (u64, u64), len: u64, log_alignment: u32) -> Result<u64, CmdStatus> {
        let Self { shared, .. } = self;
        let at = shared.keys.device.alloc(range, len, log_alignment)?;
        let registered = shared.registry.create_at(Resource::device_memory(at), 0, Vec::new());
        registered.inspect_err(|_| shared.keys.device.free(at)).map(|()| at)
    }

    /// Frees device memory; refused with [`CmdStatus::BadResState`] while a key opens it.
    pub(crate) fn free_memory(&mut self, at: u64, len: u64) -> Result<(), CmdStatus> {
        if !self.shared.keys.device.is_allocation(at, len) {
            return Err(CmdStatus::BadRes);
        }
        self.shared.registry.destroy(Resource::device_memory(at))?;
        self.shared.keys.device.free(at);
        Ok(())
    }

    /// Reads device memory at a byte of BAR0.
    pub(crate) fn read_memory(&self, at: u64, into: &mut [u8]) {
        self.shared.keys.device.read(at, into);
    }

    /// Writes device memory at a byte of BAR0.
    pub(crate) fn write_memory(&mut self, at: u64, from: &[u8]) {
        self.shared.keys.device.write(at, from);
    }

    /// Creates a completion queue, its doorbell record in user memory `record`; returns its number.
    pub(crate) fn create_cq(
        &mut self,
        cqc: View<'_, Cqc>,
        source: PageSource<'_>,
        record: Option<u32>,
    ) -> Result<u32, CmdStatus> {
        self.shared.cqs.create(&mut self.shared.registry, cqc, source, record)
    }

    /// Writes the context of a completion queue to `out`.
    pub(crate) fn query_cq(&self, cqn: u32, ctx: &mut StepContext<'_>, out: &mut ViewMut<'_, Cqc>) -> Result<(), CmdStatus> {
        self.shared.cqs.query(cqn, ctx, out)
    }

    /// Moves a completion queue to another buffer; `select` names the fields of the context that count. Refused with
    /// [`CmdStatus::BadSize`] if what the host has not seen has no room there.
    pub(crate) fn resize_cq(
        &mut self,
        ctx: &mut StepContext<'_>,
        cqn: u32,
        select: u32,
        cqc: View<'_, Cqc>,
        source: PageSource<'_>,
    ) -> Result<(), CmdStatus> {
        self.shared.cqs.resize(&mut self.shared.registry, ctx, cqn, (select, cqc), source)
    }

    /// Takes the moderation of a completion queue; `select` names the fields of the context that count.
    pub(crate) fn moderate_cq(&mut self, cqn: u32, select: u32, cqc: View<'_, Cqc>) -> Result<(), CmdStatus> {
        self.shared.cqs.moderate(cqn, select, cqc)
    }

    /// Destroys a completion queue; the firmware memory that it had. Refused with [`CmdStatus::BadResState`] while a queue uses it.
    pub(crate) fn destroy_cq(&mut self, cqn: u32) -> Result<u64, CmdStatus> {
        self.shared.cqs.destroy(&mut self.shared.registry, cqn)
    }

    /// Creates a shared receive queue, its doorbell record in user memory `record`; returns its number.
    pub(crate) fn create_srq(&mut self, spec: SrqSpec, source: PageSource<'_>, record: Option<u32>) -> Result<u32, CmdStatus> {
        self.shared.srqs.create(&mut self.shared.registry, spec, source, record)
    }

    /// Returns what a shared receive queue is, and how many WQEs wait in it.
    pub(crate) fn query_srq(&self, ctx: &StepContext<'_>, srqn: u32, kind: SrqKind) -> Result<(SrqSpec, u16), CmdStatus> {
        let srq = self.shared.srqs.get(srqn).filter(|srq| srq.spec.kind == kind).ok_or(CmdStatus::BadRes)?;
        Ok((srq.spec, srq.posted(ctx.memory).unwrap_or(0)))
    }

    /// Sets the limit: one event when fewer WQEs are posted, at once if that is so now.
    pub(crate) fn arm_srq(&mut self, ctx: &StepContext<'_>, srqn: u32, kind: SrqKind, limit: u16) -> Result<(), CmdStatus> {
        if self.shared.srqs.arm(ctx.memory, srqn, kind, limit)? {
            self.shared.events.push_back(EngineEvent::Srq { event: EventType::SrqRqLimit, srqn });
        }
        Ok(())
    }

    /// Destroys a shared receive queue; the firmware memory that it had. Refused with [`CmdStatus::BadResState`] while a queue pair
    /// takes from it.
    pub(crate) fn destroy_srq(&mut self, srqn: u32, kind: SrqKind) -> Result<u64, CmdStatus> {
        self.shared.srqs.destroy(&mut self.shared.registry, srqn, kind)
    }

    /// Creates a queue pair, its doorbell record in user memory `record`; returns its number.
    pub(crate) fn create_qp(
        &mut self,
        qpc: View<'_, Qpc>,
        source: PageSource<'_>,
        record: Option<u32>,
    ) -> Result<u32, CmdStatus> {
        let plan = QpContext::plan(qpc, source, record, &self.shared)?;
        let qpn = self.shared.registry.create(ObjectKind::Qp, plan.memory(), plan.uses())?;
        let qp = Qp::new(qpn, plan);
        if qp.context.wire_qpn() != qpn {
            self.managers.insert((qp.context.wire_qpn(), qpn));
        }
        self.qps.insert(qpn, qp);
        Ok(qpn)
    }

    /// Takes a queue pair through `transition`, merging the fields of `qpc` that the transition takes.
    pub(crate) fn modify_qp(
        &mut self,
        ctx: &mut StepContext<'_>,
        qpn: u32,
        transition: CmdOpcode,
        opt_mask: u32,
        qpc: View<'_, Qpc>,
    ) -> Result<(), CmdStatus> {
        let qp = self.qps.get_mut(&qpn).ok_or(CmdStatus::BadRes)?;
        let registry = &mut self.shared.registry;
        if transition == CmdOpcode::Rst2InitQp {
            // Zero means: as created.
            let pd = if qpc.is_set(Qpc::PD) { qpc.get(Qpc::PD) } else { qp.context.pd() };
            let cqs = [Qpc::CQN_SND, Qpc::CQN_RCV].map(|field| qpc.get(field)).into_iter().filter(|cqn| *cqn != 0);
            if cqs.map(Resource::cq).chain([Resource::pd(pd)]).any(|named| !registry.contains(named)) {
                return Err(CmdStatus::BadRes);
            }
        }
        let (old_pd, old_cqs, old_set) = (qp.context.pd(), qp.context.cqs(), qp.context.counter_set());
        if let Err(status) = modify::modify(qp, &self.shared.config, &self.shared.port, transition, opt_mask, qpc) {
            if let Some(index) = modify::missing_gid(qp, &self.shared.port, transition, opt_mask, qpc) {
                ctx.reject(Rejection::NoGid { qpn, index, entries: self.shared.port.gid_entries() });
            }
            return Err(status);
        }
        let id = Resource::qp(qpn);
        let new_pd = Resource::pd(qp.context.pd());
        // The one that changes keys had none before.
        if transition == CmdOpcode::Rst2InitQp && !registry.refers(id, new_pd) {
            registry.change_use(id, Some(Resource::pd(old_pd)), Some(new_pd))?;
        }
        // A number without a set behind it is not counted. A set that was given back in use has one user more.
        let set = qp.context.counter_set();
        if !registry.refers(id, set) {
            registry.change_use(id, Some(old_set), Some(set).filter(|set| registry.is_registered(*set)))?;
        }
        for (new, old) in qp.context.cqs().into_iter().zip(old_cqs) {
            if new != old {
                registry.change_use(id, Some(Resource::cq(old)), Some(Resource::cq(new)))?;
            }
        }
        let mut step = QpStep { shared: &mut self.shared, ctx };
        if qp.context.state == QpcState::Err {
            qp.flush(&mut step);
        }
        let now = ctx.now;
        self.busy.insert(qpn);
        self.reschedule(qpn, now);
        Ok(())
    }

    /// Writes the whole context of a queue pair to `out`, live counters included.
    pub(crate) fn query_qp(&self, qpn: u32, out: &mut ViewMut<'_, Qpc>) -> Result<(), CmdStatus> {
        let qp = self.qps.get(&qpn).ok_or(CmdStatus::BadRes)?;
        qp.query(out);
        Ok(())
    }

    /// Destroys a queue pair; the firmware memory that it had. Nothing completes for it afterwards.
    pub(crate) fn destroy_qp(&mut self, qpn: u32) -> Result<u64, CmdStatus> {
        let room = self.shared.registry.destroy(Resource::qp(qpn))?;
        let Some(qp) = self.qps.remove(&qpn) else { return Ok(room) };
        self.groups.forget(qpn);
        self.busy.remove(&qpn);
        self.failed.remove(qpn);
        self.managers.remove(&(qp.context.wire_qpn(), qpn));
        if let Some(due) = self.timer_of.remove(&qpn) {
            self.timers.remove(&(due, qpn));
        }
        Ok(room)
    }

    /// Gives a datagram queue pair a copy of what is sent to the group `gid` (wire order) from now on.
    pub(crate) fn attach_multicast(&mut self, qpn: u32, gid: [u8; 16]) -> Result<(), CmdStatus> {
        let qp = self.qps.get(&qpn).ok_or(CmdStatus::BadRes)?;
        if qp.context.service != Service::Ud || !self.shared.port.is_group(gid) {
            return Err(CmdStatus::BadParam);
        }
        self.groups.attach(gid, qpn)
    }

    /// Ends [`Engine::attach_multicast`].
    pub(crate) fn detach_multicast(&mut self, qpn: u32, gid: [u8; 16]) -> Result<(), CmdStatus> {
        self.groups.detach(gid, qpn)
    }

    /// Returns how many objects there are.
    pub(crate) fn counts(&self) -> EngineCounts {
        let registry = &self.shared.registry;
        EngineCounts {
            mkeys: registry.count(ObjectKind::Mkey),
            bound_windows: self.shared.keys.bound_windows(),
            device_memories: self.shared.keys.device.len(),
            cqs: registry.count(ObjectKind::Cq),
            qps: registry.count(ObjectKind::Qp),
            srqs: registry.count(ObjectKind::Srq),
            memberships: self.groups.memberships(),
        }
    }
}
