//! The queues of an Ethernet port: TIS, TIR, RQT, RQ and SQ.

use bareverbs_mlx5_spec::{
    CmdStatus, CreateRqIn, CreateRqOut, CreateRqtIn, CreateRqtOut, CreateSqIn, CreateSqOut, CreateTirIn, CreateTirOut,
    CreateTisIn, CreateTisOut, DestroyRqIn, DestroyRqOut, DestroyRqtIn, DestroyRqtOut, DestroySqIn, DestroySqOut, DestroyTirIn,
    DestroyTirOut, DestroyTisIn, DestroyTisOut, Layout, ModifyRqIn, ModifyRqOut, ModifyRqtIn, ModifyRqtOut, ModifySqIn,
    ModifySqOut, ModifyTirBitmask, ModifyTirIn, ModifyTirOut, QueryRqIn, QueryRqOut, QuerySqIn, QuerySqOut, QueryTisIn,
    QueryTisOut, Rqc, RqtBitmask, Rqtc, RxHashFieldSelect, Sqc, TIR_DIRECT, TIR_INDIRECT, Tirc, Tisc, View, ViewMut, modify_rq,
};

use super::qp::check_time_stamps;
use super::queue_buffer;
use super::refusal::{Outcome, Refusal};
use super::user_context::owner_of;
use crate::engine::{LOG_MAX_QUEUE_TABLE, RssSpec, TirSpec, TirTarget, TisSpec};
use crate::firmware::Firmware;
use crate::firmware::firmware_pages::cost;
use crate::registry::{ObjectKind, Resource};
use crate::step::StepContext;

/// Where the list of a table begins in CREATE_RQT and MODIFY_RQT: behind the context.
const RQT_LIST: usize = CreateRqtIn::RQT_CONTEXT.offset() + Rqtc::SIZE;
/// Kind of queue in a table ([`Rqtc::LIST_Q_TYPE`]): RQ.
const LIST_OF_RQ: u32 = 0;

/// What only an Ethernet port has.
pub(super) fn check_ethernet(firmware: &Firmware) -> Outcome {
    if firmware.port.is_ethernet() { Ok(()) } else { Err(Refusal::new(CmdStatus::BadOp, "no Ethernet port")) }
}

/// CREATE_TIS.
pub(super) fn create_tis(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateTisIn>,
    output: &mut ViewMut<'_, CreateTisOut>,
) -> Outcome {
    check_ethernet(firmware)?;
    let context = input.sub(CreateTisIn::CTX);
    let spec = TisSpec { domain: context.get(Tisc::TRANSPORT_DOMAIN), priority: context.get(Tisc::PRIO) };
    let created = firmware.engine.create_tis(spec);
    output.set(CreateTisOut::TISN, created.map_err(|status| Refusal::new(status, "transport domain"))?);
    Ok(())
}

/// DESTROY_TIS; busy while a send queue uses it.
pub(super) fn destroy_tis(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyTisIn>,
    _: &mut ViewMut<'_, DestroyTisOut>,
) -> Outcome {
    Ok(firmware.engine.destroy_tis(input.get(DestroyTisIn::TISN))?)
}

/// QUERY_TIS.
pub(super) fn query_tis(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryTisIn>,
    output: &mut ViewMut<'_, QueryTisOut>,
) -> Outcome {
    let TisSpec { domain, priority } = firmware.engine.query_tis(input.get(QueryTisIn::TISN))?;
    output.sub(QueryTisOut::TIS_CONTEXT).set(Tisc::TRANSPORT_DOMAIN, domain).set(Tisc::PRIO, priority);
    Ok(())
}

fn rss(context: View<'_, Tirc>) -> RssSpec {
    let fields = context.sub(Tirc::RX_HASH_FIELD_SELECTOR_OUTER);
    RssSpec {
        function: context.get(Tirc::RX_HASH_FN),
        key: context.bytes(Tirc::RX_HASH_TOEPLITZ_KEY).try_into().unwrap_or([0; 40]),
        fields: fields.get(RxHashFieldSelect::SELECTED_FIELDS),
    }
}

/// CREATE_TIR.
pub(super) fn create_tir(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateTirIn>,
    output: &mut ViewMut<'_, CreateTirOut>,
) -> Outcome {
    check_ethernet(firmware)?;
    let context = input.sub(CreateTirIn::CTX);
    let target = match context.get(Tirc::DISP_TYPE) {
        TIR_DIRECT => TirTarget::Queue(context.get(Tirc::INLINE_RQN)),
        TIR_INDIRECT => TirTarget::Table(context.get(Tirc::INDIRECT_TABLE)),
        _ => return Err(Refusal::new(CmdStatus::BadParam, "neither direct nor indirect")),
    };
    let spec = TirSpec {
        target,
        domain: context.get(Tirc::TRANSPORT_DOMAIN),
        self_loopback: context.get(Tirc::SELF_LB_BLOCK),
        rss: rss(context),
    };
    let created = firmware.engine.create_tir(spec);
    output.set(CreateTirOut::TIRN, created.map_err(|status| Refusal::new(status, "transport domain, queue or table"))?);
    Ok(())
}

/// MODIFY_TIR: self-loopback and hash. Packets are not merged (LRO), so that is nothing to change.
pub(super) fn modify_tir(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, ModifyTirIn>,
    _: &mut ViewMut<'_, ModifyTirOut>,
) -> Outcome {
    let (select, context) = (input.sub(ModifyTirIn::BITMASK), input.sub(ModifyTirIn::CTX));
    if select.is_set(ModifyTirBitmask::PACKET_MERGE) {
        return Err(Refusal::new(CmdStatus::BadParam, "packets are not merged (lro_cap)"));
    }
    let loopback = select.is_set(ModifyTirBitmask::SELF_LB_EN).then(|| context.get(Tirc::SELF_LB_BLOCK));
    let hash = select.is_set(ModifyTirBitmask::HASH).then(|| rss(context));
    Ok(firmware.engine.modify_tir(input.get(ModifyTirIn::TIRN), loopback, hash)?)
}

/// DESTROY_TIR; busy while a rule leads to it.
pub(super) fn destroy_tir(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyTirIn>,
    _: &mut ViewMut<'_, DestroyTirOut>,
) -> Outcome {
    Ok(firmware.engine.destroy_tir(input.get(DestroyTirIn::TIRN))?)
}

/// Returns the receive queues that a table names, each of which the command may name.
fn queues(firmware: &Firmware, input: &[u8], context: View<'_, Rqtc>) -> Result<Vec<u32>, Refusal> {
    let len = context.get(Rqtc::RQT_ACTUAL_SIZE) as usize;
    if len == 0 || len > 1 << LOG_MAX_QUEUE_TABLE || context.get(Rqtc::LIST_Q_TYPE) != LIST_OF_RQ {
        return Err(Refusal::new(CmdStatus::BadParam, "no queues, too many, or of another kind"));
    }
    let list = input.get(RQT_LIST..).and_then(|list| list.get(..len * 4)).ok_or(CmdStatus::BadInputLen)?;
    let queues: Vec<u32> = list.as_chunks::<4>().0.iter().map(|entry| u32::from_be_bytes(*entry) & 0xff_ffff).collect();
    let owner = owner_of(input);
    let is_foreign = |rqn: &u32| !firmware.engine.registry().may_name(owner, Resource::new(ObjectKind::Rq, *rqn));
    if queues.iter().any(is_foreign) {
        return Err(Refusal::new(CmdStatus::BadRes, "a queue of another user context"));
    }
    Ok(queues)
}

/// CREATE_RQT.
pub(super) fn create_rqt(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateRqtIn>,
    output: &mut ViewMut<'_, CreateRqtOut>,
) -> Outcome {
    check_ethernet(firmware)?;
    let queues = queues(firmware, input.as_bytes(), input.sub(CreateRqtIn::RQT_CONTEXT))?;
    let created = firmware.engine.create_queue_table(queues);
    output.set(CreateRqtOut::RQTN, created.map_err(|status| Refusal::new(status, "a queue that does not exist"))?);
    Ok(())
}

/// MODIFY_RQT: replaces the list.
pub(super) fn modify_rqt(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, ModifyRqtIn>,
    _: &mut ViewMut<'_, ModifyRqtOut>,
) -> Outcome {
    if !input.sub(ModifyRqtIn::BITMASK).is_set(RqtBitmask::RQN_LIST) {
        return Ok(());
    }
    let queues = queues(firmware, input.as_bytes(), input.sub(ModifyRqtIn::CTX))?;
    Ok(firmware.engine.modify_queue_table(input.get(ModifyRqtIn::RQTN), queues)?)
}

/// DESTROY_RQT; busy while a TIR uses it.
pub(super) fn destroy_rqt(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyRqtIn>,
    _: &mut ViewMut<'_, DestroyRqtOut>,
) -> Outcome {
    Ok(firmware.engine.destroy_queue_table(input.get(DestroyRqtIn::RQTN))?)
}

/// Refuses a set of counters that the command may not name; 0 is none.
fn check_counter_set(firmware: &Firmware, input: &[u8], set: u32) -> Outcome {
    if set != 0 && !firmware.engine.registry().may_name(owner_of(input), Resource::new(ObjectKind::CounterSet, set)) {
        return Err(Refusal::new(CmdStatus::BadRes, "a set of counters of another user context"));
    }
    Ok(())
}

/// CREATE_RQ: a ring of receive WQEs. Pools and striding rings are not offered.
pub(super) fn create_rq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateRqIn>,
    output: &mut ViewMut<'_, CreateRqOut>,
) -> Outcome {
    check_ethernet(firmware)?;
    let context = input.sub(CreateRqIn::CTX);
    check_time_stamps(firmware, context.get(Rqc::TS_FORMAT))?;
    if context.is_set(Rqc::MEM_RQ_TYPE) || context.is_set(Rqc::HAIRPIN) || context.is_set(Rqc::SCATTER_FCS) {
        return Err(Refusal::new(CmdStatus::BadParam, "a pool, a hairpin or check sequences, which are not offered"));
    }
    check_counter_set(firmware, input.as_bytes(), context.get(Rqc::COUNTER_SET_ID))?;
    let memory = queue_buffer::of_work_queue(firmware, context.sub(Rqc::WQ), input.as_bytes())?;
    let created = firmware.create(ObjectKind::Rq, cost::RQ, |firmware| firmware.engine.create_rq(context, memory));
    output.set(CreateRqOut::RQN, created.map_err(|status| Refusal::new(status, "context, what it names, or page list"))?);
    Ok(())
}

/// MODIFY_RQ: its state, and chosen fields.
pub(super) fn modify_rq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, ModifyRqIn>,
    _: &mut ViewMut<'_, ModifyRqOut>,
) -> Outcome {
    let (select, new) = (input.get64(ModifyRqIn::MODIFY_BITMASK), input.sub(ModifyRqIn::CTX));
    if select & !(modify_rq::VSD | modify_rq::COUNTER_SET_ID) != 0 {
        return Err(Refusal::new(CmdStatus::BadParam, "a field that cannot change"));
    }
    let set = new.get(Rqc::COUNTER_SET_ID);
    check_counter_set(firmware, input.as_bytes(), set)?;
    let (rqn, from) = (input.get(ModifyRqIn::RQN), input.get(ModifyRqIn::RQ_STATE));
    let modified = firmware.engine.modify_rq(rqn, from, new.get(Rqc::STATE), |context| {
        if select & modify_rq::VSD != 0 {
            context.set(Rqc::VSD, new.get(Rqc::VSD));
        }
        if select & modify_rq::COUNTER_SET_ID != 0 {
            context.set(Rqc::COUNTER_SET_ID, set);
        }
    });
    modified.map_err(|status| Refusal::new(status, "no such queue, or no such change of its state"))
}

/// DESTROY_RQ; busy while a table or a TIR uses it.
pub(super) fn destroy_rq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyRqIn>,
    _: &mut ViewMut<'_, DestroyRqOut>,
) -> Outcome {
    let room = firmware.engine.destroy_rq(input.get(DestroyRqIn::RQN))?;
    firmware.pages.unreserve(room);
    Ok(())
}

/// QUERY_RQ.
pub(super) fn query_rq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryRqIn>,
    output: &mut ViewMut<'_, QueryRqOut>,
) -> Outcome {
    let context = firmware.engine.query_rq(input.get(QueryRqIn::RQN))?;
    output.sub(QueryRqOut::RQ_CONTEXT).as_bytes_mut().iter_mut().zip(context).for_each(|(to, from)| *to = *from);
    Ok(())
}

/// CREATE_SQ.
pub(super) fn create_sq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateSqIn>,
    output: &mut ViewMut<'_, CreateSqOut>,
) -> Outcome {
    check_ethernet(firmware)?;
    // A program that may send any frame may send in the name of others: it needs the right to (as for controlled Q_Keys).
    let owner = owner_of(input.as_bytes());
    if !owner.is_kernel() && !firmware.raw_senders.contains(&owner.uid()) {
        return Err(Refusal::new(CmdStatus::BadOp, "a user context without the right to send raw frames"));
    }
    let context = input.sub(CreateSqIn::CTX);
    check_time_stamps(firmware, context.get(Sqc::TS_FORMAT))?;
    if context.is_set(Sqc::HAIRPIN) || context.is_set(Sqc::NON_WIRE) || context.is_set(Sqc::CD_MASTER) {
        return Err(Refusal::new(CmdStatus::BadParam, "a hairpin or a queue without a wire, which are not offered"));
    }
    let memory = queue_buffer::of_work_queue(firmware, context.sub(Sqc::WQ), input.as_bytes())?;
    let created = firmware.create(ObjectKind::Sq, cost::SQ, |firmware| firmware.engine.create_sq(context, memory));
    output.set(CreateSqOut::SQN, created.map_err(|status| Refusal::new(status, "context, what it names, or page list"))?);
    Ok(())
}

/// MODIFY_SQ: its state. Rates are not limited.
pub(super) fn modify_sq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, ModifySqIn>,
    _: &mut ViewMut<'_, ModifySqOut>,
) -> Outcome {
    if input.get64(ModifySqIn::MODIFY_BITMASK) != 0 {
        return Err(Refusal::new(CmdStatus::BadParam, "limits of rates are not offered (qos)"));
    }
    let (from, to) = (input.get(ModifySqIn::SQ_STATE), input.sub(ModifySqIn::CTX).get(Sqc::STATE));
    let modified = firmware.engine.modify_sq(input.get(ModifySqIn::SQN), from, to);
    modified.map_err(|status| Refusal::new(status, "no such queue, or no such change of its state"))
}

/// DESTROY_SQ.
pub(super) fn destroy_sq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroySqIn>,
    _: &mut ViewMut<'_, DestroySqOut>,
) -> Outcome {
    let room = firmware.engine.destroy_sq(input.get(DestroySqIn::SQN))?;
    firmware.pages.unreserve(room);
    Ok(())
}

/// QUERY_SQ.
pub(super) fn query_sq(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QuerySqIn>,
    output: &mut ViewMut<'_, QuerySqOut>,
) -> Outcome {
    let context = firmware.engine.query_sq(input.get(QuerySqIn::SQN))?;
    output.sub(QuerySqOut::SQ_CONTEXT).as_bytes_mut().iter_mut().zip(context).for_each(|(to, from)| *to = *from);
    Ok(())
}
