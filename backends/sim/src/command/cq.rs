//! Completion queues.

use bareverbs_mlx5_spec::{
    CmdHcaCap, CmdStatus, Cqc, CreateCqIn, CreateCqOut, DestroyCqIn, DestroyCqOut, ModifyCqIn, ModifyCqOut, QueryCqIn,
    QueryCqOut, View, ViewMut,
};

use super::queue_buffer;
use super::refusal::{Outcome, Refusal};
use crate::firmware::Firmware;
use crate::firmware::firmware_pages::cost;
use crate::registry::ObjectKind;
use crate::step::StepContext;

/// CREATE_CQ.
pub(super) fn create_cq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateCqIn>,
    output: &mut ViewMut<'_, CreateCqOut>,
) -> Outcome {
    let context = input.sub(CreateCqIn::CQ_CONTEXT);
    if context.get(Cqc::LOG_CQ_SIZE) > firmware.caps.general(CmdHcaCap::LOG_MAX_CQ_SZ) {
        return Err(Refusal::new(CmdStatus::BadParam, "too many entries"));
    }
    let buffer = queue_buffer::of_cq(firmware, input)?;
    let created = firmware.create(ObjectKind::Cq, cost::CQ, |firmware| {
        firmware.engine.create_cq(View::of(&buffer.context), buffer.pages, buffer.record)
    });
    let cqn = created.map_err(|status| Refusal::new(status, "completion queue context, UAR, event queue or page list"))?;
    output.set(CreateCqOut::CQN, cqn);
    Ok(())
}

/// DESTROY_CQ; busy while a queue pair uses it.
pub(super) fn destroy_cq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyCqIn>,
    _: &mut ViewMut<'_, DestroyCqOut>,
) -> Outcome {
    let cqn = input.get(DestroyCqIn::CQN);
    let room = firmware.engine.destroy_cq(cqn)?;
    firmware.pages.unreserve(room);
    Ok(())
}

/// Modifier of MODIFY_CQ that asks for another buffer (Linux `MLX5_CQ_OPMOD_RESIZE`).
const RESIZE: u32 = 1;
/// Bits of its field select: where the first page begins, and the size of pages (`MLX5_MODIFY_CQ_MASK_PG_OFFSET`, `_PG_SIZE`).
const RESIZE_PLACE: u32 = 0b110;

/// MODIFY_CQ: another buffer, or another moderation.
pub(super) fn modify_cq(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, ModifyCqIn>,
    _: &mut ViewMut<'_, ModifyCqOut>,
) -> Outcome {
    let cqn = input.get(ModifyCqIn::CQN);
    let select = input.get(ModifyCqIn::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT);
    let context = input.sub(ModifyCqIn::CQ_CONTEXT);
    match input.get(ModifyCqIn::OP_MOD) {
        0 => {
            let modified = firmware.engine.moderate_cq(cqn, select, context);
            modified.map_err(|status| Refusal::new(status, "moderation"))
        }
        RESIZE => {
            if context.get(Cqc::LOG_CQ_SIZE) > firmware.caps.general(CmdHcaCap::LOG_MAX_CQ_SZ) {
                return Err(Refusal::new(CmdStatus::BadParam, "too many entries"));
            }
            let buffer = queue_buffer::of_resized_cq(firmware, input)?;
            // What user memory says about pages counts whether the field select names it or not.
            let select = if buffer.pages.umem().is_none() { select } else { select | RESIZE_PLACE };
            let resized = firmware.engine.resize_cq(ctx, cqn, select, View::of(&buffer.context), buffer.pages);
            resized.map_err(|status| Refusal::new(status, "a size, buffer or state that allows no resize"))
        }
        _ => Err(Refusal::new(CmdStatus::BadParam, "modifier")),
    }
}

/// QUERY_CQ.
pub(super) fn query_cq(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, QueryCqIn>,
    output: &mut ViewMut<'_, QueryCqOut>,
) -> Outcome {
    let cqn = input.get(QueryCqIn::CQN);
    Ok(firmware.engine.query_cq(cqn, ctx, &mut output.sub(QueryCqOut::CQ_CONTEXT))?)
}
