//! Shared receive queues: basic and XRC ones, and receive memory pools, which are the basic ones of newer drivers.

use bareverbs_mlx5_spec::{
    ARM_RQ_SRQ, ARM_XRC_SRQ, ArmRqIn, ArmRqOut, ArmXrcSrqIn, ArmXrcSrqOut, CmdHcaCap, CmdStatus, CreateRmpIn, CreateRmpOut,
    CreateSrqIn, CreateSrqOut, CreateXrcSrqIn, CreateXrcSrqOut, DestroyRmpIn, DestroyRmpOut, DestroySrqIn, DestroySrqOut,
    DestroyXrcSrqIn, DestroyXrcSrqOut, ModifyRmpIn, ModifyRmpOut, QueryRmpIn, QueryRmpOut, QuerySrqIn, QuerySrqOut,
    QueryXrcSrqIn, QueryXrcSrqOut, Rmpc, Srqc, View, ViewMut, Wq, XrcSrqc, rmp_bitmask, rmpc_state,
};

use super::queue_buffer;
use super::refusal::{Outcome, Refusal};
use super::user_context::owner_of;
use crate::engine::{PageSource, SrqKind, SrqSpec};
use crate::firmware::Firmware;
use crate::firmware::firmware_pages::cost;
use crate::registry::ObjectKind;
use crate::step::StepContext;

fn create(firmware: &mut Firmware, spec: SrqSpec, pages: PageSource<'_>, record: Option<u32>) -> Result<u32, Refusal> {
    if spec.log_size > firmware.caps.general(CmdHcaCap::LOG_MAX_SRQ_SZ) {
        return Err(Refusal::new(CmdStatus::BadParam, "too many entries"));
    }
    let created = firmware.create(ObjectKind::Srq, cost::SRQ, |firmware| firmware.engine.create_srq(spec, pages, record));
    created.map_err(|status| Refusal::new(status, "shared receive queue context, what it names, or page list"))
}

fn destroy(firmware: &mut Firmware, srqn: u32, kind: SrqKind) -> Outcome {
    let room = firmware.engine.destroy_srq(srqn, kind)?;
    firmware.pages.unreserve(room);
    Ok(())
}

/// CREATE_SRQ. Its addresses are the kernel's: the command has no field for user memory. Linux passes it on unchanged from
/// programs (`devx_is_obj_create_cmd`), and itself uses it only if the interface version is 0.
pub(super) fn create_srq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateSrqIn>,
    output: &mut ViewMut<'_, CreateSrqOut>,
) -> Outcome {
    if firmware.issi > 0 && !owner_of(input.as_bytes()).is_kernel() {
        return Err(Refusal::new(CmdStatus::BadOp, "a shared receive queue of a user context: CREATE_RMP makes it"));
    }
    let context = input.sub(CreateSrqIn::SRQ_CONTEXT_ENTRY);
    let spec = SrqSpec {
        kind: SrqKind::Basic,
        log_size: context.get(Srqc::LOG_SRQ_SIZE),
        log_stride: context.get(Srqc::LOG_RQ_STRIDE) + 4,
        log_page_size: context.get(Srqc::LOG_PAGE_SIZE),
        page_offset: context.get(Srqc::PAGE_OFFSET),
        dbr_addr: context.get64(Srqc::DBR_ADDR),
        pd: context.get(Srqc::PD),
        xrcd: context.get(Srqc::XRCD),
        cqn: context.get(Srqc::CQN),
        user_index: 0,
        limit: context.get(Srqc::LWM) as u16,
    };
    output.set(CreateSrqOut::SRQN, create(firmware, spec, PageSource::Listed(input.tail(CreateSrqIn::PAS)), None)?);
    Ok(())
}

/// DESTROY_SRQ; busy while a queue pair takes from it.
pub(super) fn destroy_srq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroySrqIn>,
    _: &mut ViewMut<'_, DestroySrqOut>,
) -> Outcome {
    destroy(firmware, input.get(DestroySrqIn::SRQN), SrqKind::Basic)
}

/// QUERY_SRQ.
pub(super) fn query_srq(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, QuerySrqIn>,
    output: &mut ViewMut<'_, QuerySrqOut>,
) -> Outcome {
    let (spec, posted) = firmware.engine.query_srq(ctx, input.get(QuerySrqIn::SRQN), SrqKind::Basic)?;
    output
        .sub(QuerySrqOut::SRQ_CONTEXT_ENTRY)
        .set(Srqc::LOG_SRQ_SIZE, spec.log_size)
        .set(Srqc::LOG_RQ_STRIDE, spec.log_stride.saturating_sub(4))
        .set(Srqc::PAGE_OFFSET, spec.page_offset)
        .set(Srqc::LOG_PAGE_SIZE, spec.log_page_size)
        .set(Srqc::XRCD, spec.xrcd)
        .set(Srqc::CQN, spec.cqn)
        .set(Srqc::PD, spec.pd)
        .set(Srqc::LWM, spec.limit.into())
        .set(Srqc::WQE_CNT, posted.into())
        .set64(Srqc::DBR_ADDR, spec.dbr_addr);
    Ok(())
}

/// ARM_RQ: sets the limit of a shared receive queue.
pub(super) fn arm_srq(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, ArmRqIn>,
    _: &mut ViewMut<'_, ArmRqOut>,
) -> Outcome {
    if input.get(ArmRqIn::OP_MOD) != ARM_RQ_SRQ {
        return Err(Refusal::new(CmdStatus::BadParam, "op_mod names no shared receive queue"));
    }
    Ok(firmware.engine.arm_srq(ctx, input.get(ArmRqIn::SRQ_NUMBER), SrqKind::Basic, input.get(ArmRqIn::LWM) as u16)?)
}

/// CREATE_XRC_SRQ.
pub(super) fn create_xrc_srq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateXrcSrqIn>,
    output: &mut ViewMut<'_, CreateXrcSrqOut>,
) -> Outcome {
    let context = input.sub(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY);
    if input.is_set(CreateXrcSrqIn::XRC_SRQ_UMEM_VALID) || context.is_set(XrcSrqc::DBR_UMEM_VALID) {
        // Where the names of the objects stand is not published.
        return Err(Refusal::new(CmdStatus::BadParam, "an XRC shared receive queue in user memory is not supported"));
    }
    let low = u64::from(context.get(XrcSrqc::DB_RECORD_ADDR_L)) << 2;
    let spec = SrqSpec {
        kind: SrqKind::Xrc,
        log_size: context.get(XrcSrqc::LOG_XRC_SRQ_SIZE),
        log_stride: context.get(XrcSrqc::LOG_RQ_STRIDE) + 4,
        log_page_size: context.get(XrcSrqc::LOG_PAGE_SIZE),
        page_offset: context.get(XrcSrqc::PAGE_OFFSET),
        dbr_addr: u64::from(context.get(XrcSrqc::DB_RECORD_ADDR_H)) << 32 | low,
        pd: context.get(XrcSrqc::PD),
        xrcd: context.get(XrcSrqc::XRCD),
        cqn: context.get(XrcSrqc::CQN),
        user_index: context.get(XrcSrqc::USER_INDEX),
        limit: context.get(XrcSrqc::LWM) as u16,
    };
    output.set(CreateXrcSrqOut::XRC_SRQN, create(firmware, spec, PageSource::Listed(input.tail(CreateXrcSrqIn::PAS)), None)?);
    Ok(())
}

/// DESTROY_XRC_SRQ.
pub(super) fn destroy_xrc_srq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyXrcSrqIn>,
    _: &mut ViewMut<'_, DestroyXrcSrqOut>,
) -> Outcome {
    destroy(firmware, input.get(DestroyXrcSrqIn::XRC_SRQN), SrqKind::Xrc)
}

/// QUERY_XRC_SRQ.
pub(super) fn query_xrc_srq(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, QueryXrcSrqIn>,
    output: &mut ViewMut<'_, QueryXrcSrqOut>,
) -> Outcome {
    let (spec, posted) = firmware.engine.query_srq(ctx, input.get(QueryXrcSrqIn::XRC_SRQN), SrqKind::Xrc)?;
    output
        .sub(QueryXrcSrqOut::XRC_SRQ_CONTEXT_ENTRY)
        .set(XrcSrqc::LOG_XRC_SRQ_SIZE, spec.log_size)
        .set(XrcSrqc::LOG_RQ_STRIDE, spec.log_stride.saturating_sub(4))
        .set(XrcSrqc::PAGE_OFFSET, spec.page_offset)
        .set(XrcSrqc::LOG_PAGE_SIZE, spec.log_page_size)
        .set(XrcSrqc::XRCD, spec.xrcd)
        .set(XrcSrqc::CQN, spec.cqn)
        .set(XrcSrqc::USER_INDEX, spec.user_index)
        .set(XrcSrqc::PD, spec.pd)
        .set(XrcSrqc::LWM, spec.limit.into())
        .set(XrcSrqc::WQE_CNT, posted.into())
        .set(XrcSrqc::DB_RECORD_ADDR_H, (spec.dbr_addr >> 32) as u32)
        .set(XrcSrqc::DB_RECORD_ADDR_L, spec.dbr_addr as u32 >> 2);
    Ok(())
}

/// ARM_XRC_SRQ: sets the limit.
pub(super) fn arm_xrc_srq(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, ArmXrcSrqIn>,
    _: &mut ViewMut<'_, ArmXrcSrqOut>,
) -> Outcome {
    if input.get(ArmXrcSrqIn::OP_MOD) != ARM_XRC_SRQ {
        return Err(Refusal::new(CmdStatus::BadParam, "op_mod names no XRC shared receive queue"));
    }
    let limit = input.get(ArmXrcSrqIn::LWM) as u16;
    Ok(firmware.engine.arm_srq(ctx, input.get(ArmXrcSrqIn::XRC_SRQN), SrqKind::Xrc, limit)?)
}

/// CREATE_RMP.
pub(super) fn create_rmp(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateRmpIn>,
    output: &mut ViewMut<'_, CreateRmpOut>,
) -> Outcome {
    let queue = input.sub(CreateRmpIn::CTX).sub(Rmpc::WQ);
    let buffer = queue_buffer::of_work_queue(firmware, queue, input.as_bytes())?;
    let spec = SrqSpec {
        kind: SrqKind::Pool,
        log_size: queue.get(Wq::LOG_WQ_SZ),
        log_stride: queue.get(Wq::LOG_WQ_STRIDE),
        log_page_size: buffer.log_page_size,
        page_offset: buffer.page_offset,
        dbr_addr: buffer.dbr_addr,
        pd: queue.get(Wq::PD),
        xrcd: 0,
        cqn: 0,
        user_index: 0,
        limit: queue.get(Wq::LWM) as u16,
    };
    let rmpn = create(firmware, spec, buffer.pages, buffer.record)?;
    output.set(CreateRmpOut::RMPN, rmpn);
    Ok(())
}

/// DESTROY_RMP; busy while a queue pair takes from it.
pub(super) fn destroy_rmp(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyRmpIn>,
    _: &mut ViewMut<'_, DestroyRmpOut>,
) -> Outcome {
    destroy(firmware, input.get(DestroyRmpIn::RMPN), SrqKind::Pool)
}

/// QUERY_RMP.
pub(super) fn query_rmp(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, QueryRmpIn>,
    output: &mut ViewMut<'_, QueryRmpOut>,
) -> Outcome {
    let (spec, _) = firmware.engine.query_srq(ctx, input.get(QueryRmpIn::RMPN), SrqKind::Pool)?;
    let mut context = output.sub(QueryRmpOut::RMP_CONTEXT);
    context.set(Rmpc::STATE, rmpc_state::READY);
    context
        .sub(Rmpc::WQ)
        .set(Wq::PAGE_OFFSET, spec.page_offset)
        .set(Wq::LWM, spec.limit.into())
        .set(Wq::PD, spec.pd)
        .set64(Wq::DBR_ADDR, spec.dbr_addr)
        .set(Wq::LOG_WQ_STRIDE, spec.log_stride)
        .set(Wq::LOG_WQ_PG_SZ, spec.log_page_size)
        .set(Wq::LOG_WQ_SZ, spec.log_size);
    Ok(())
}

/// MODIFY_RMP: sets the limit.
pub(super) fn modify_rmp(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, ModifyRmpIn>,
    _: &mut ViewMut<'_, ModifyRmpOut>,
) -> Outcome {
    if input.get64(ModifyRmpIn::BITMASK) & !rmp_bitmask::LWM != 0 {
        return Err(Refusal::new(CmdStatus::BadParam, "only the limit can change"));
    }
    let limit = input.sub(ModifyRmpIn::CTX).sub(Rmpc::WQ).get(Wq::LWM) as u16;
    Ok(firmware.engine.arm_srq(ctx, input.get(ModifyRmpIn::RMPN), SrqKind::Pool, limit)?)
}
