//! Queue pairs.

use bareverbs_mlx5_spec::{
    Ads, AttachToMcgIn, AttachToMcgOut, CmdHcaCap, CmdOpcode, CmdStatus, Command, CreateQpIn, CreateQpOut, DestroyQpIn,
    DestroyQpOut, DetachFromMcgIn, DetachFromMcgOut, Layout, Qp2errIn, Qpc, QpcSt, QueryQpIn, QueryQpOut, Rst2initQpIn, View,
    ViewMut, opt_param, ts_format,
};

use super::queue_buffer;
use super::refusal::{Outcome, Refusal};
use super::user_context::owner_of;
use crate::firmware::Firmware;
use crate::firmware::firmware_pages::cost;
use crate::registry::{ObjectKind, Owner, Resource};
use crate::step::StepContext;

/// Q_Keys with this bit are controlled: privileged consumers alone may set one (IBTA 10.2.4). What a work request names with it
/// is the queue pair's own.
const CONTROLLED: u32 = 1 << 31;

/// Refuses a context that names the source of its datagrams: it is the queue pair's number, which nobody chooses
/// ([`CmdHcaCap::SET_DETH_SQPN`] is 0). Linux names 1 for its own queue pairs that stand for queue pair 1, where the capability
/// is there, and refuses it to programs.
fn check_source(context: View<'_, Qpc>) -> Outcome {
    if context.is_set(Qpc::DETH_SQPN) {
        return Err(Refusal::new(CmdStatus::BadParam, "a chosen source of datagrams is not supported"));
    }
    Ok(())
}

/// Refuses time stamps of a clock that the queues of the device do not have. Those of whichever clock there is are always good: libmlx5
/// asks for them on cards that name no formats.
pub(super) fn check_time_stamps(firmware: &Firmware, format: u32) -> Outcome {
    let has_real_time = firmware.caps.general(CmdHcaCap::SQ_TS_FORMAT) != 0;
    let missing = if has_real_time { ts_format::FREE_RUNNING } else { ts_format::REAL_TIME };
    if format == missing {
        return Err(Refusal::new(CmdStatus::BadParam, "time stamps of a clock that the queues do not have"));
    }
    Ok(())
}

/// CREATE_QP.
pub(super) fn create_qp(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateQpIn>,
    output: &mut ViewMut<'_, CreateQpOut>,
) -> Outcome {
    let context = input.sub(CreateQpIn::QPC);
    // Those that change keys of every domain or manage the subnet are the kernel's.
    let privileged = matches!(QpcSt::from_code(context.get(Qpc::ST)), Some(QpcSt::RegUmr | QpcSt::Qp0 | QpcSt::Qp1));
    if privileged && !owner_of(input.as_bytes()).is_kernel() {
        return Err(Refusal::new(CmdStatus::BadParam, "not for a user context"));
    }
    check_source(context)?;
    check_time_stamps(firmware, context.get(Qpc::TS_FORMAT))?;
    if input.is_set(CreateQpIn::INPUT_QPN) {
        return Err(Refusal::new(CmdStatus::BadParam, "a chosen number is not supported"));
    }
    let log_max = firmware.caps.general(CmdHcaCap::LOG_MAX_QP_SZ);
    if context.get(Qpc::LOG_RQ_SIZE).max(context.get(Qpc::LOG_SQ_SIZE)) > log_max {
        return Err(Refusal::new(CmdStatus::BadParam, "too many entries"));
    }
    let buffer = queue_buffer::of_qp(firmware, input)?;
    let created = firmware.create(ObjectKind::Qp, cost::QP, |firmware| {
        firmware.engine.create_qp(View::of(&buffer.context), buffer.pages, buffer.record)
    });
    let qpn =
        created.map_err(|status| Refusal::new(status, "queue pair context, what it names, its queues or its page list"))?;
    output.set(CreateQpOut::QPN, qpn);
    Ok(())
}

/// DESTROY_QP.
pub(super) fn destroy_qp(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyQpIn>,
    _: &mut ViewMut<'_, DestroyQpOut>,
) -> Outcome {
    let room = firmware.engine.destroy_qp(input.get(DestroyQpIn::QPN))?;
    firmware.pages.unreserve(room);
    Ok(())
}

/// QUERY_QP.
pub(super) fn query_qp(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryQpIn>,
    output: &mut ViewMut<'_, QueryQpOut>,
) -> Outcome {
    let qpn = input.get(QueryQpIn::QPN);
    Ok(firmware.engine.query_qp(qpn, &mut output.sub(QueryQpOut::QPC))?)
}

/// Returns a transition whose input carries a context. All of them lay it out alike.
pub(super) fn modify<C: Command>(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, C::In>,
    _: &mut ViewMut<'_, C::Out>,
) -> Outcome {
    let input = View::<Rst2initQpIn>::new(input.as_bytes()).ok_or(CmdStatus::BadInputLen)?;
    let context = input.sub(Rst2initQpIn::QPC);
    let port = context.sub(Qpc::PRIMARY_ADDRESS_PATH).get(Ads::VHCA_PORT_NUM);
    if port > 1 {
        return Err(Refusal::new(CmdStatus::BadParam, "no such port"));
    }
    check_source(context)?;
    let mask = input.get(Rst2initQpIn::OPT_PARAM_MASK);
    let owner = owner_of(input.as_bytes());
    let mut own = [0; Qpc::SIZE];
    let takes_qkey = C::OPCODE == CmdOpcode::Rst2InitQp || mask & opt_param::Q_KEY != 0;
    let is_controlled = takes_qkey && context.get(Qpc::Q_KEY) & CONTROLLED != 0;
    if is_controlled && !owner.is_kernel() && !firmware.raw_senders.contains(&owner.uid()) {
        return Err(Refusal::new(CmdStatus::BadParam, "a controlled Q_Key in a user context without the right to send raw"));
    }
    let context = if owner.is_kernel() { context } else { own_context(firmware, owner, C::OPCODE, context, &mut own)? };
    let modified = firmware.engine.modify_qp(ctx, input.get(Rst2initQpIn::QPN), C::OPCODE, mask, context);
    modified.map_err(|status| Refusal::new(status, "the transition"))
}

/// The context of a transition for a user context: what it names must be its own, and the doorbell record stays where it is.
fn own_context<'a>(
    firmware: &Firmware,
    owner: Owner,
    opcode: CmdOpcode,
    context: View<'_, Qpc>,
    own: &'a mut [u8; Qpc::SIZE],
) -> Result<View<'a, Qpc>, Refusal> {
    if opcode == CmdOpcode::Rst2InitQp {
        let registry = firmware.engine.registry();
        let cqs = [Qpc::CQN_SND, Qpc::CQN_RCV].map(|field| Resource::cq(context.get(field)));
        let named = [Resource::pd(context.get(Qpc::PD))].into_iter().chain(cqs);
        // Counters may be a number without a set.
        let set = Resource::new(ObjectKind::CounterSet, context.get(Qpc::COUNTER_SET_ID));
        let named = named.chain(registry.is_registered(set).then_some(set));
        // Zero means: as created.
        if named.filter(|named| named.number != 0).any(|named| !registry.may_name(owner, named)) {
            return Err(Refusal::new(CmdStatus::BadRes, "an object of another user context"));
        }
    }
    for (to, from) in own.iter_mut().zip(context.as_bytes()) {
        *to = *from;
    }
    ViewMut::<Qpc>::of(own).set64(Qpc::DBR_ADDR, 0);
    Ok(View::of(own))
}

/// Returns a transition whose input may end before a context.
pub(super) fn modify_state<C: Command>(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
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
    let modified = firmware.engine.modify_qp(ctx, qpn, C::OPCODE, mask, context);
    modified.map_err(|status| Refusal::new(status, "the transition"))
}

/// ATTACH_TO_MCG.
pub(super) fn attach_multicast(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
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
    _: &mut StepContext<'_>,
    input: View<'_, DetachFromMcgIn>,
    _: &mut ViewMut<'_, DetachFromMcgOut>,
) -> Outcome {
    let gid = input.bytes(DetachFromMcgIn::MULTICAST_GID).try_into().unwrap_or_default();
    let detached = firmware.engine.detach_multicast(input.get(DetachFromMcgIn::QPN), gid);
    detached.map_err(|status| Refusal::new(status, "not a member"))
}
