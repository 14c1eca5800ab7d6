//! Keys, device memory and queues as firmware commands create, change, show and destroy them.

use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus, Cqc, EventType, Mkc, Qpc, QpcState, View, ViewMut};

use super::qp::{Qp, modify};
use super::{Engine, EngineCounts, EngineEvent, FIRST_QPN, SrqKind, SrqSpec, Work};
use crate::env::Env;

impl Engine {
    /// Creates a key; `translations` are the raw entries (page addresses or KLMs) that followed the context. Returns the
    /// key's index; the key itself is that and the variant of the context in its low byte.
    pub fn create_mkey(&mut self, env: &mut Env<'_>, mkc: View<'_, Mkc>, translations: &[u8]) -> Result<u32, CmdStatus> {
        let created = self.shared.keys.create((self.shared.config.max_mkey, self.shared.config.key_memory), mkc, translations);
        if let Err(status) = created {
            env.note(|| format!("key refused: {}", status.name()));
        }
        created
    }

    /// Writes the context of a key to `out`.
    pub fn query_mkey(&self, index: u32, out: &mut ViewMut<'_, Mkc>) -> Result<(), CmdStatus> {
        self.shared.keys.query(index, out)
    }

    /// Destroys a key; refused with [`CmdStatus::ResBusy`] while a window is bound to it.
    pub fn destroy_mkey(&mut self, index: u32) -> Result<(), CmdStatus> {
        self.shared.keys.destroy(index)
    }

    /// Allocates device memory within a range (first byte by its place in BAR0, and length); the place of the allocation.
    pub fn alloc_memory(&mut self, range: (u64, u64), len: u64, log_alignment: u32) -> Result<u64, CmdStatus> {
        self.shared.keys.device.alloc(range, len, log_alignment)
    }

    /// Frees device memory; refused with [`CmdStatus::ResBusy`] while a key opens it.
    pub fn free_memory(&mut self, at: u64, len: u64) -> Result<(), CmdStatus> {
        let busy = self.shared.keys.opens_memory(at, len);
        self.shared.keys.device.free(at, len, busy)
    }

    /// Reads device memory at a byte of BAR0.
    pub fn read_memory(&self, at: u64, into: &mut [u8]) {
        self.shared.keys.device.read(at, into);
    }

    /// Writes device memory at a byte of BAR0.
    pub fn write_memory(&mut self, at: u64, from: &[u8]) {
        self.shared.keys.device.write(at, from);
    }

    /// Creates a completion queue in the pages `pas`; returns its number.
    pub fn create_cq(&mut self, cqc: View<'_, Cqc>, pas: &[u64]) -> Result<u32, CmdStatus> {
        self.shared.has_queue_room(pas)?;
        let cqn = self.shared.cqs.create(self.shared.config.max_cq, cqc, pas)?;
        self.shared.queue_bytes += self.shared.cqs.cost(cqn);
        Ok(cqn)
    }

    /// Writes the context of a completion queue to `out`.
    pub fn query_cq(&self, cqn: u32, env: &mut Env<'_>, out: &mut ViewMut<'_, Cqc>) -> Result<(), CmdStatus> {
        self.shared.cqs.query(cqn, env, out)
    }

    /// Moves a completion queue to another buffer; `select` names the fields of the context that count. Refused with
    /// [`CmdStatus::BadSize`] if what the host has not seen has no room there.
    pub fn resize_cq(
        &mut self,
        env: &mut Env<'_>,
        cqn: u32,
        select: u32,
        cqc: View<'_, Cqc>,
        pas: &[u64],
    ) -> Result<(), CmdStatus> {
        self.shared.has_queue_room(pas)?;
        let before = self.shared.cqs.cost(cqn);
        self.shared.cqs.resize(env, cqn, select, cqc, pas)?;
        self.shared.queue_bytes = self.shared.queue_bytes + self.shared.cqs.cost(cqn) - before;
        Ok(())
    }

    /// Takes the moderation of a completion queue; `select` names the fields of the context that count.
    pub fn moderate_cq(&mut self, cqn: u32, select: u32, cqc: View<'_, Cqc>) -> Result<(), CmdStatus> {
        self.shared.cqs.moderate(cqn, select, cqc)
    }

    /// Destroys a completion queue; refused with [`CmdStatus::ResBusy`] while a queue pair uses it.
    pub fn destroy_cq(&mut self, cqn: u32) -> Result<(), CmdStatus> {
        if !self.shared.cqs.contains(cqn) {
            return Err(CmdStatus::BadRes);
        }
        if self.qps.values().any(|qp| qp.uses_cq(cqn)) || self.shared.srqs.uses_cq(cqn) {
            return Err(CmdStatus::ResBusy);
        }
        self.shared.queue_bytes -= self.shared.cqs.cost(cqn);
        self.shared.cqs.remove(cqn);
        Ok(())
    }

    /// Creates a shared receive queue in the pages `pas`; returns its number.
    pub fn create_srq(&mut self, spec: SrqSpec, pas: &[u64]) -> Result<u32, CmdStatus> {
        if spec.kind == SrqKind::Xrc && !self.shared.cqs.contains(spec.cqn) {
            return Err(CmdStatus::BadRes);
        }
        self.shared.has_queue_room(pas)?;
        let srqn = self.shared.srqs.create(self.shared.config.max_srq, spec, pas)?;
        self.shared.queue_bytes += self.shared.srqs.cost(srqn);
        Ok(srqn)
    }

    /// What a shared receive queue is, and how many elements wait in it.
    pub fn query_srq(&self, env: &Env<'_>, srqn: u32, kind: SrqKind) -> Result<(SrqSpec, u16), CmdStatus> {
        let srq = self.shared.srqs.get(srqn).filter(|srq| srq.spec.kind == kind).ok_or(CmdStatus::BadRes)?;
        Ok((srq.spec, srq.posted(env.memory).unwrap_or(0)))
    }

    /// Sets the limit: one event when fewer elements are posted, at once if that is so now.
    pub fn arm_srq(&mut self, env: &Env<'_>, srqn: u32, kind: SrqKind, limit: u16) -> Result<(), CmdStatus> {
        if self.shared.srqs.arm(env.memory, srqn, kind, limit)? {
            self.shared.events.push_back(EngineEvent::Srq { event: EventType::SrqRqLimit, srqn });
        }
        Ok(())
    }

    /// Destroys a shared receive queue; refused with [`CmdStatus::ResBusy`] while a queue pair takes from it.
    pub fn destroy_srq(&mut self, srqn: u32, kind: SrqKind) -> Result<(), CmdStatus> {
        self.shared.srqs.get(srqn).filter(|srq| srq.spec.kind == kind).ok_or(CmdStatus::BadRes)?;
        if self.qps.values().any(|qp| qp.srq == Some(srqn)) {
            return Err(CmdStatus::ResBusy);
        }
        self.shared.queue_bytes -= self.shared.srqs.cost(srqn);
        self.shared.srqs.remove(srqn);
        Ok(())
    }

    /// Creates a queue pair in the pages `pas`; returns its number.
    pub fn create_qp(&mut self, qpc: View<'_, Qpc>, pas: &[u64]) -> Result<u32, CmdStatus> {
        let max = self.shared.config.max_qp.clamp(FIRST_QPN + 1, 1 << 24);
        if self.qps.len() as u64 >= u64::from(max - FIRST_QPN) {
            return Err(CmdStatus::NoResources);
        }
        let mut qpn = self.next_qpn;
        while self.qps.contains_key(&qpn) || !(FIRST_QPN..max).contains(&qpn) {
            qpn = if qpn + 1 >= max { FIRST_QPN } else { qpn + 1 };
        }
        self.shared.has_queue_room(pas)?;
        let qp = Qp::new(qpn, qpc, pas, &self.shared)?;
        self.shared.queue_bytes += qp.cost();
        self.next_qpn = qpn + 1;
        if qp.wire_qpn() != qpn {
            self.managers.insert((qp.wire_qpn(), qpn));
        }
        self.qps.insert(qpn, qp);
        Ok(qpn)
    }

    /// Takes a queue pair through `transition`, merging the fields of `qpc` that the transition takes.
    pub fn modify_qp(
        &mut self,
        env: &mut Env<'_>,
        qpn: u32,
        transition: CmdOpcode,
        opt_mask: u32,
        qpc: View<'_, Qpc>,
    ) -> Result<(), CmdStatus> {
        let qp = self.qps.get_mut(&qpn).ok_or(CmdStatus::BadRes)?;
        if transition == CmdOpcode::Rst2InitQp {
            let named = [Qpc::CQN_SND, Qpc::CQN_RCV].map(|field| qpc.get(field));
            if named.into_iter().any(|cqn| cqn != 0 && !self.shared.cqs.contains(cqn)) {
                return Err(CmdStatus::BadRes);
            }
        }
        modify::modify(qp, &self.shared.config, transition, opt_mask, qpc)?;
        let mut work = Work { shared: &mut self.shared, env };
        if qp.state == QpcState::Err {
            qp.flush(&mut work);
        }
        self.busy.insert(qpn);
        self.reschedule(qpn);
        Ok(())
    }

    /// Writes the whole context of a queue pair to `out`, live counters included.
    pub fn query_qp(&self, qpn: u32, out: &mut ViewMut<'_, Qpc>) -> Result<(), CmdStatus> {
        let qp = self.qps.get(&qpn).ok_or(CmdStatus::BadRes)?;
        qp.query(out);
        Ok(())
    }

    /// Destroys a queue pair; nothing completes for it afterwards.
    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), CmdStatus> {
        let qp = self.qps.remove(&qpn).ok_or(CmdStatus::BadRes)?;
        self.shared.queue_bytes -= qp.cost();
        self.groups.forget(qpn);
        self.busy.remove(&qpn);
        self.failed.remove(&qpn);
        self.managers.remove(&(qp.wire_qpn(), qpn));
        if let Some(due) = self.timer_of.remove(&qpn) {
            self.timers.remove(&(due, qpn));
        }
        Ok(())
    }

    /// Whether a key or a queue pair belongs to the protection domain.
    pub fn pd_in_use(&self, pd: u32) -> bool {
        self.shared.keys.uses_pd(pd) || self.shared.srqs.uses_pd(pd) || self.qps.values().any(|qp| qp.pd() == pd)
    }

    /// How many objects there are.
    pub fn counts(&self) -> EngineCounts {
        EngineCounts {
            mkeys: self.shared.keys.len(),
            bound_windows: self.shared.keys.bound_windows(),
            device_memories: self.shared.keys.device.len(),
            cqs: self.shared.cqs.len(),
            qps: self.qps.len(),
            srqs: self.shared.srqs.len(),
            memberships: self.groups.memberships(),
        }
    }
}
