//! Queue pairs.

use bareverbs_mlx5_spec::{
    Ads, AttachToMcgIn, AttachToMcgOut, CmdHcaCap, CmdStatus, Command, CreateQpIn, CreateQpOut, DestroyQpIn, DestroyQpOut,
    DetachFromMcgIn, DetachFromMcgOut, Layout, ObjectKind, Qp2errIn, Qpc, QpcSt, QueryQpIn, QueryQpOut, Rst2initQpIn, View,
    ViewMut,
};

use super::{Outcome, Refusal, queue_buffer};
use crate::env::Env;
use crate::firmware::Firmware;
use crate::pages::cost;

/// CREATE_QP.
pub(super) fn create_qp(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, CreateQpIn>,
    output: &mut ViewMut<'_, CreateQpOut>,
) -> Outcome {
    let context = input.sub(CreateQpIn::QPC);
    let st = QpcSt::from_code(context.get(Qpc::ST));
    // The queue pair that changes keys learns its protection domain when it is initialized.
    let has_pd = st == Some(QpcSt::RegUmr) || firmware.pds.contains(context.get(Qpc::PD));
    // Without a send queue nothing rings.
    let has_uar = context.is_set(Qpc::NO_SQ) || firmware.uars.contains(context.get(Qpc::UAR_PAGE));
    if !has_uar || !has_pd {
        return Err(Refusal::new(CmdStatus::BadRes, "no such UAR or protection domain"));
    }
    if st == Some(QpcSt::Xrc) && !firmware.xrcds.contains(context.get(Qpc::XRCD)) {
        return Err(Refusal::new(CmdStatus::BadRes, "no such XRC domain"));
    }
    if input.is_set(CreateQpIn::INPUT_QPN) {
        return Err(Refusal::new(CmdStatus::BadParam, "a chosen number is not supported"));
    }
    let log_max = firmware.caps.general(CmdHcaCap::LOG_MAX_QP_SZ);
    if context.get(Qpc::LOG_RQ_SIZE).max(context.get(Qpc::LOG_SQ_SIZE)) > log_max {
        return Err(Refusal::new(CmdStatus::BadParam, "too many entries"));
    }
    let buffer = queue_buffer::of_qp(firmware, input)?;
    firmware.pages.reserve(cost::QP)?;
    match firmware.engine.create_qp(View::of(&buffer.context), &buffer.pages) {
        Ok(qpn) => {
            firmware.users.bind(ObjectKind::Qp, qpn, buffer.binding);
            output.set(CreateQpOut::QPN, qpn);
            Ok(())
        }
        Err(status) => {
            firmware.pages.unreserve(cost::QP);
            Err(Refusal::new(status, "queue pair context, its queues or its page list"))
        }
    }
}

/// DESTROY_QP.
pub(super) fn destroy_qp(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, DestroyQpIn>,
    _: &mut ViewMut<'_, DestroyQpOut>,
) -> Outcome {
    firmware.engine.destroy_qp(input.get(DestroyQpIn::QPN))?;
    firmware.pages.unreserve(cost::QP);
    Ok(())
}

/// QUERY_QP.
pub(super) fn query_qp(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, QueryQpIn>,
    output: &mut ViewMut<'_, QueryQpOut>,
) -> Outcome {
    let qpn = input.get(QueryQpIn::QPN);
    Ok(firmware.engine.query_qp(qpn, &mut output.sub(QueryQpOut::QPC))?)
}

/// A transition whose input carries a context. All of them lay it out alike.
pub(super) fn modify<C: Command>(
    firmware: &mut Firmware,
    env: &mut Env<'_>,
    input: View<'_, C::In>,
    _: &mut ViewMut<'_, C::Out>,
) -> Outcome {
    let input = View::<Rst2initQpIn>::new(input.as_bytes()).ok_or(CmdStatus::BadInputLen)?;
    let context = input.sub(Rst2initQpIn::QPC);
    let port = context.sub(Qpc::PRIMARY_ADDRESS_PATH).get(Ads::VHCA_PORT_NUM);
    if port > 1 {
        return Err(Refusal::new(CmdStatus::BadParam, "no such port"));
    }
    let mask = input.get(Rst2initQpIn::OPT_PARAM_MASK);
    let modified = firmware.engine.modify_qp(env, input.get(Rst2initQpIn::QPN), C::OPCODE, mask, context);
    modified.map_err(|status| Refusal::new(status, "the transition"))
}

/// A transition whose input may end before a context.
pub(super) fn modify_state<C: Command>(
    firmware: &mut Firmware,
    env: &mut Env<'_>,
    input: View<'_, C::In>,
    _: &mut ViewMut<'_, C::Out>,
) -> Outcome {
    let input = View::<Qp2errIn>::new(input.as_bytes()).ok_or(CmdStatus::BadInputLen)?;
    let qpn = input.get(Qp2errIn::QPN);
    let none = [0; Qpc::SIZE];
    let (mask, context) = match View::<Rst2initQpIn>::new(input.as_bytes()) {
        Some(whole) => (whole.get(Rst2initQpIn::OPT_PARAM_MASK), Some(whole.sub(Rst2initQpIn::QPC))),
        None => (0, View::new(&none)),
    };
    let context = context.ok_or(CmdStatus::BadInputLen)?;
    let modified = firmware.engine.modify_qp(env, qpn, C::OPCODE, mask, context);
    modified.map_err(|status| Refusal::new(status, "the transition"))
}

/// ATTACH_TO_MCG.
pub(super) fn attach_multicast(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, AttachToMcgIn>,
    _: &mut ViewMut<'_, AttachToMcgOut>,
) -> Outcome {
    let gid = input.bytes(AttachToMcgIn::MULTICAST_GID).try_into().unwrap_or_default();
    let attached = firmware.engine.attach_multicast(input.get(AttachToMcgIn::QPN), gid);
    attached.map_err(|status| Refusal::new(status, "the queue pair, the group, or their number"))
}

/// DETACH_FROM_MCG.
pub(super) fn detach_multicast(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, DetachFromMcgIn>,
    _: &mut ViewMut<'_, DetachFromMcgOut>,
) -> Outcome {
    let gid = input.bytes(DetachFromMcgIn::MULTICAST_GID).try_into().unwrap_or_default();
    let detached = firmware.engine.detach_multicast(input.get(DetachFromMcgIn::QPN), gid);
    detached.map_err(|status| Refusal::new(status, "not a member"))
}
