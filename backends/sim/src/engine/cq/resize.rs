//! Completion queues changed while they are in use: another buffer, another moderation.

use bareverbs_mlx5_spec::{CQE, CmdStatus, Cqc, Cqe, CqeOpcode, ViewMut};
use bareverbs_mlx5_spec::{Field, View};

use super::{COUNTER, Cq, CqTable, MAX_LOG_SIZE, ahead, log_stride};
use crate::engine::memory::page_source::PageSource;
use crate::engine::ring::{Pages, Ring};
use crate::registry::{Registry, Resource};
use crate::step::StepContext;
use crate::trace::Record;

/// Bits of the field select of MODIFY_CQ with the modifier that resizes (Linux `MLX5_MODIFY_CQ_MASK_*`).
const RESIZE_LOG_SIZE: u32 = 1;
const RESIZE_PAGE_OFFSET: u32 = 1 << 1;
const RESIZE_PAGE_SIZE: u32 = 1 << 2;
const RESIZE_ALL: u32 = RESIZE_LOG_SIZE | RESIZE_PAGE_OFFSET | RESIZE_PAGE_SIZE;

/// Bits of the field select of MODIFY_CQ without it (Linux `MLX5_CQ_MODIFY_*`).
const MODERATION: [(u32, Field<Cqc>); 3] = [(1, Cqc::CQ_PERIOD), (1 << 1, Cqc::CQ_MAX_COUNT), (1 << 2, Cqc::OI)];
const PERIOD_MODE: (u32, Field<Cqc>) = (1 << 4, Cqc::CQ_PERIOD_MODE);

impl CqTable {
    /// Takes the moderation that `select` names.
    pub(in crate::engine) fn moderate(&mut self, cqn: u32, select: u32, cqc: View<'_, Cqc>) -> Result<(), CmdStatus> {
        let cq = self.cqs.get_mut(&cqn).ok_or(CmdStatus::BadRes)?;
        let fields = MODERATION.into_iter().chain([PERIOD_MODE]);
        if select & !fields.clone().fold(0, |known, (bit, _)| known | bit) != 0 {
            return Err(CmdStatus::BadParam);
        }
        let mut context = ViewMut::<Cqc>::of(&mut cq.context);
        for (_, field) in fields.filter(|(bit, _)| select & bit != 0) {
            context.set(field, cqc.get(field));
        }
        cq.overrun_ignored = context.get(Cqc::OI) != 0;
        cq.moderation.change(View::of(&cq.context));
        self.expedite(cqn);
        Ok(())
    }

    /// Moves a queue to the buffer that `cqc` and `source` describe. The last entry in the old one says so; the next entry goes
    /// to the new one, with the counter that follows. The host copies what it has not seen, one place further each.
    pub(in crate::engine) fn resize(
        &mut self,
        registry: &mut Registry,
        ctx: &mut StepContext<'_>,
        cqn: u32,
        (select, cqc): (u32, View<'_, Cqc>),
        source: PageSource<'_>,
    ) -> Result<(), CmdStatus> {
        let cq = self.cqs.get_mut(&cqn).ok_or(CmdStatus::BadRes)?;
        if select & !RESIZE_ALL != 0 || select & RESIZE_LOG_SIZE == 0 {
            return Err(CmdStatus::BadParam);
        }
        let kept = View::<Cqc>::of(&cq.context);
        let chosen = |bit, field| if select & bit != 0 { cqc.get(field) } else { kept.get(field) };
        let log_size = cqc.get(Cqc::LOG_CQ_SIZE);
        let page_offset = chosen(RESIZE_PAGE_OFFSET, Cqc::PAGE_OFFSET);
        let log_page = chosen(RESIZE_PAGE_SIZE, Cqc::LOG_PAGE_SIZE);
        let log_stride = log_stride(kept).filter(|_| kept.get(Cqc::CQE_SZ) == cqc.get(Cqc::CQE_SZ));
        let log_stride = log_stride.filter(|_| log_size <= MAX_LOG_SIZE).ok_or(CmdStatus::BadParam)?;
        let plan = Pages::plan(source, log_page, page_offset, 1 << (log_size + log_stride))?;
        if cq.failed {
            return Err(CmdStatus::BadResState);
        }
        let unread = cq.consumer(ctx).map(|consumer| ahead(cq.producer, consumer)).ok_or(CmdStatus::BadResState)?;
        // The mark needs a place in the old buffer, and unread entries need one after it in the new one.
        if unread >= 1 << cq.log_size || unread >= 1 << log_size {
            return Err(CmdStatus::BadSize);
        }
        // The old list and the new one are there together for a moment.
        if !registry.has_memory(plan.memory()) {
            return Err(CmdStatus::NoResources);
        }
        cq.mark_resize(ctx, cqn)?;
        registry.change_use(Resource::cq(cqn), cq.ring.umem(), plan.umem())?;
        registry.set_memory(Resource::cq(cqn), plan.memory());
        cq.ring = Ring::new(plan.pages(), 0, log_size, log_stride);
        cq.log_size = log_size;
        ViewMut::<Cqc>::of(&mut cq.context)
            .set(Cqc::LOG_CQ_SIZE, log_size)
            .set(Cqc::PAGE_OFFSET, page_offset)
            .set(Cqc::LOG_PAGE_SIZE, log_page);
        Ok(())
    }
}

impl Cq {
    /// Writes the entry after which the host finds entries in the new buffer. It completes nothing: no event.
    fn mark_resize(&mut self, ctx: &mut StepContext<'_>, cqn: u32) -> Result<(), CmdStatus> {
        let mut entry = [0; CQE];
        ViewMut::<Cqe>::of(&mut entry)
            .set(Cqe::OPCODE, CqeOpcode::ResizeCq.code())
            .set(Cqe::OWNER, self.producer >> self.log_size & 1);
        self.store(ctx, &entry).map_err(|_| CmdStatus::BadResState)?;
        ctx.trace(Record::Cqe { cqn, index: self.producer, bytes: &entry });
        self.producer = self.producer.wrapping_add(1) & COUNTER;
        Ok(())
    }
}
