//! Flow tables of an Ethernet port: tables, groups, entries, and where frames begin.

use bareverbs_mlx5_spec::{
    AllocFlowCounterIn, AllocFlowCounterOut, CmdStatus, CreateFlowGroupIn, CreateFlowGroupOut, CreateFlowTableIn,
    CreateFlowTableOut, DeallocFlowCounterIn, DeallocFlowCounterOut, DeleteFteIn, DeleteFteOut, DestFormatStruct,
    DestroyFlowGroupIn, DestroyFlowGroupOut, DestroyFlowTableIn, DestroyFlowTableOut, FLOW_MISS_FORWARD,
    FLOW_TABLE_NIC_RECEIVE, FlowContext, FlowCounterList, FlowDestination, FlowTableContext, Layout, ModifyFlowTableIn,
    ModifyFlowTableOut, QueryFlowCounterIn, QueryFlowCounterOut, SetFlowTableRootIn, SetFlowTableRootOut, SetFteIn, SetFteOut,
    TrafficCounter, View, ViewMut, flow_action, set_fte,
};

use super::nic_queue::check_ethernet;
use super::refusal::{Outcome, Refusal};
use super::user_context::owner_of;
use crate::engine::{
    Destination, FlowTableSpec, LOG_MAX_COUNTER_QUERY, LOG_MAX_DESTINATIONS, LOG_MAX_RULE_COUNTERS, MatchCriteria, Rule,
};
use crate::firmware::Firmware;
use crate::registry::{ObjectKind, Owner, Resource};
use crate::stats::Traffic;
use crate::step::StepContext;

/// Bits of [`CreateFlowGroupIn::MATCH_CRITERIA_ENABLE`] that can be matched: outer headers, and the first block of others.
const CRITERIA: u32 = 0b11;
/// Bit of [`ModifyFlowTableIn::MODIFY_FIELD_SELECT`]: the table for frames that no rule matches.
const MISS_TABLE: u32 = 1;
/// [`SetFlowTableRootIn::OP_MOD`]: without a root from now on.
const DISCONNECT: u32 = 1;

/// A table of this function for what its Ethernet port receives.
fn check(firmware: &Firmware, kind: u32, other: bool) -> Outcome {
    check_ethernet(firmware)?;
    if kind != FLOW_TABLE_NIC_RECEIVE || other {
        return Err(Refusal::new(CmdStatus::BadParam, "tables of this kind are not offered"));
    }
    Ok(())
}

/// Refuses an object of another user context.
fn check_name(firmware: &Firmware, owner: Owner, id: Resource) -> Outcome {
    if firmware.engine.registry().may_name(owner, id) {
        Ok(())
    } else {
        Err(Refusal::new(CmdStatus::BadRes, "an object of another user context"))
    }
}

/// Returns the table for frames that no rule matches, if there is one.
fn miss_table(firmware: &Firmware, input: &[u8], context: View<'_, FlowTableContext>) -> Result<Option<u32>, Refusal> {
    match context.get(FlowTableContext::TABLE_MISS_ACTION) {
        0 => Ok(None),
        FLOW_MISS_FORWARD => {
            let miss = context.get(FlowTableContext::TABLE_MISS_ID);
            check_name(firmware, owner_of(input), Resource::new(ObjectKind::FlowTable, miss))?;
            Ok(Some(miss))
        }
        _ => Err(Refusal::new(CmdStatus::BadParam, "no such action for frames that no rule matches")),
    }
}

/// CREATE_FLOW_TABLE.
pub(super) fn create_table(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateFlowTableIn>,
    output: &mut ViewMut<'_, CreateFlowTableOut>,
) -> Outcome {
    check(firmware, input.get(CreateFlowTableIn::TABLE_TYPE), input.is_set(CreateFlowTableIn::OTHER_VPORT))?;
    let context = input.sub(CreateFlowTableIn::FLOW_TABLE_CONTEXT);
    if context.is_set(FlowTableContext::SW_OWNER)
        || context.is_set(FlowTableContext::REFORMAT_EN)
        || context.is_set(FlowTableContext::DECAP_EN)
    {
        return Err(Refusal::new(CmdStatus::BadParam, "tables that change frames or that software owns are not offered"));
    }
    let spec = FlowTableSpec {
        level: context.get(FlowTableContext::LEVEL),
        log_size: context.get(FlowTableContext::LOG_SIZE),
        miss: miss_table(firmware, input.as_bytes(), context)?,
    };
    let created = firmware.engine.create_flow_table(spec);
    output.set(CreateFlowTableOut::TABLE_ID, created.map_err(|status| Refusal::new(status, "level, size or next table"))?);
    Ok(())
}

/// DESTROY_FLOW_TABLE; busy while it has groups or something leads to it.
pub(super) fn destroy_table(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyFlowTableIn>,
    _: &mut ViewMut<'_, DestroyFlowTableOut>,
) -> Outcome {
    check(firmware, input.get(DestroyFlowTableIn::TABLE_TYPE), input.is_set(DestroyFlowTableIn::OTHER_VPORT))?;
    Ok(firmware.engine.destroy_flow_table(input.get(DestroyFlowTableIn::TABLE_ID))?)
}

/// MODIFY_FLOW_TABLE: where frames go that no rule matches.
pub(super) fn modify_table(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, ModifyFlowTableIn>,
    _: &mut ViewMut<'_, ModifyFlowTableOut>,
) -> Outcome {
    check(firmware, input.get(ModifyFlowTableIn::TABLE_TYPE), input.is_set(ModifyFlowTableIn::OTHER_VPORT))?;
    if input.get(ModifyFlowTableIn::MODIFY_FIELD_SELECT) != MISS_TABLE {
        return Err(Refusal::new(CmdStatus::BadParam, "only the next table can change"));
    }
    let miss = miss_table(firmware, input.as_bytes(), input.sub(ModifyFlowTableIn::FLOW_TABLE_CONTEXT))?;
    Ok(firmware.engine.set_flow_table_miss(input.get(ModifyFlowTableIn::TABLE_ID), miss)?)
}

/// SET_FLOW_TABLE_ROOT.
pub(super) fn set_root(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, SetFlowTableRootIn>,
    _: &mut ViewMut<'_, SetFlowTableRootOut>,
) -> Outcome {
    check(firmware, input.get(SetFlowTableRootIn::TABLE_TYPE), input.is_set(SetFlowTableRootIn::OTHER_VPORT))?;
    if input.get(SetFlowTableRootIn::OP_MOD) == DISCONNECT || input.is_set(SetFlowTableRootIn::UNDERLAY_QPN) {
        return Err(Refusal::new(CmdStatus::BadParam, "tables of queue pairs are not offered"));
    }
    Ok(firmware.engine.set_flow_table_root(input.get(SetFlowTableRootIn::TABLE_ID))?)
}

/// CREATE_FLOW_GROUP.
pub(super) fn create_group(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateFlowGroupIn>,
    output: &mut ViewMut<'_, CreateFlowGroupOut>,
) -> Outcome {
    check(firmware, input.get(CreateFlowGroupIn::TABLE_TYPE), input.is_set(CreateFlowGroupIn::OTHER_VPORT))?;
    let enable = input.get(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE);
    let mask = input.bytes(CreateFlowGroupIn::MATCH_CRITERIA);
    let others = mask.get(128..).unwrap_or_default();
    if enable & !CRITERIA != 0 || others.iter().any(|byte| *byte != 0) {
        return Err(Refusal::new(CmdStatus::BadParam, "fields that cannot be matched"));
    }
    let mask = mask.first_chunk().copied().ok_or(CmdStatus::BadInputLen)?;
    let range = (input.get(CreateFlowGroupIn::START_FLOW_INDEX), input.get(CreateFlowGroupIn::END_FLOW_INDEX));
    let table = input.get(CreateFlowGroupIn::TABLE_ID);
    let created = firmware.engine.create_flow_group(table, range, MatchCriteria { enable, mask });
    output.set(CreateFlowGroupOut::GROUP_ID, created.map_err(|status| Refusal::new(status, "no such table, or its rules"))?);
    Ok(())
}

/// DESTROY_FLOW_GROUP; busy while it has rules.
pub(super) fn destroy_group(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyFlowGroupIn>,
    _: &mut ViewMut<'_, DestroyFlowGroupOut>,
) -> Outcome {
    check(firmware, input.get(DestroyFlowGroupIn::TABLE_TYPE), input.is_set(DestroyFlowGroupIn::OTHER_VPORT))?;
    let (table, group) = (input.get(DestroyFlowGroupIn::TABLE_ID), input.get(DestroyFlowGroupIn::GROUP_ID));
    Ok(firmware.engine.destroy_flow_group(table, group)?)
}

/// Returns the destinations of an entry, each of which the command may name, and its counters, which follow them.
fn destinations_and_counters(
    firmware: &Firmware,
    input: View<'_, SetFteIn>,
    context: View<'_, FlowContext>,
) -> Result<(Vec<Destination>, Vec<u32>), Refusal> {
    let len = context.get(FlowContext::DESTINATION_LIST_SIZE) as usize;
    let counters = context.get(FlowContext::FLOW_COUNTER_LIST_SIZE) as usize;
    if len > 1 << LOG_MAX_DESTINATIONS || counters > 1 << LOG_MAX_RULE_COUNTERS {
        return Err(Refusal::new(CmdStatus::BadParam, "too many destinations, or counters"));
    }
    let lists = input.as_bytes().get(SetFteIn::SIZE..).unwrap_or_default();
    let (list, rest) = lists.split_at_checked(len * DestFormatStruct::SIZE).ok_or(CmdStatus::BadInputLen)?;
    let rest = rest.get(..counters * FlowCounterList::SIZE).ok_or(CmdStatus::BadInputLen)?;
    let mut destinations = Vec::with_capacity(len);
    for entry in list.chunks_exact(DestFormatStruct::SIZE) {
        let entry = View::<DestFormatStruct>::new(entry).ok_or(CmdStatus::BadInputLen)?;
        let number = entry.get(DestFormatStruct::DESTINATION_ID);
        let (to, kind) = match FlowDestination::from_code(entry.get(DestFormatStruct::DESTINATION_TYPE)) {
            Some(FlowDestination::FlowTable) => (Destination::Table(number), ObjectKind::FlowTable),
            Some(FlowDestination::Tir) => (Destination::Tir(number), ObjectKind::Tir),
            None => return Err(Refusal::new(CmdStatus::BadParam, "no such kind of destination")),
        };
        check_name(firmware, owner_of(input.as_bytes()), Resource::new(kind, number))?;
        destinations.push(to);
    }
    let mut counters = Vec::with_capacity(counters);
    for entry in rest.chunks_exact(FlowCounterList::SIZE) {
        let entry = View::<FlowCounterList>::new(entry).ok_or(CmdStatus::BadInputLen)?;
        let number = entry.get(FlowCounterList::FLOW_COUNTER_ID);
        check_name(firmware, owner_of(input.as_bytes()), Resource::new(ObjectKind::FlowCounter, number))?;
        counters.push(number);
    }
    Ok((destinations, counters))
}

/// SET_FLOW_TABLE_ENTRY: a new entry, or chosen fields of one.
pub(super) fn set_entry(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, SetFteIn>,
    _: &mut ViewMut<'_, SetFteOut>,
) -> Outcome {
    /// [`SetFteIn::OP_MOD`].
    const NEW: u32 = 0;
    const MODIFY: u32 = 1;
    const ACTIONS: u32 = flow_action::ALLOW | flow_action::DROP | flow_action::FORWARD | flow_action::COUNT;
    check(firmware, input.get(SetFteIn::TABLE_TYPE), input.is_set(SetFteIn::OTHER_VPORT))?;
    let (table, index) = (input.get(SetFteIn::TABLE_ID), input.get(SetFteIn::FLOW_INDEX));
    let context = input.sub(SetFteIn::FLOW_CONTEXT);
    let (destinations, counters) = destinations_and_counters(firmware, input, context)?;
    let action = context.get(FlowContext::ACTION);
    if action & !ACTIONS != 0 {
        return Err(Refusal::new(CmdStatus::BadParam, "an action that is not offered"));
    }
    let new = Rule {
        group: context.get(FlowContext::GROUP_ID),
        tag: context.get(FlowContext::FLOW_TAG),
        action,
        value: context.bytes(FlowContext::MATCH_VALUE).first_chunk().copied().ok_or(CmdStatus::BadInputLen)?,
        destinations,
        counters,
    };
    let rule = match (input.get(SetFteIn::OP_MOD), firmware.engine.flow_rule(table, index)) {
        (NEW, None) => new,
        (MODIFY, Some(old)) => {
            let select = input.get(SetFteIn::MODIFY_ENABLE_MASK);
            let takes = |field| select & field != 0;
            Rule {
                action: if takes(set_fte::ACTION) { new.action } else { old.action },
                tag: if takes(set_fte::FLOW_TAG) { new.tag } else { old.tag },
                destinations: if takes(set_fte::DESTINATION_LIST) { new.destinations } else { old.destinations.clone() },
                counters: if takes(set_fte::FLOW_COUNTERS) { new.counters } else { old.counters.clone() },
                group: old.group,
                value: old.value,
            }
        }
        _ => return Err(Refusal::new(CmdStatus::BadParam, "there is such an entry already, or there is none")),
    };
    let set = firmware.engine.set_flow_rule(table, index, rule);
    set.map_err(|status| Refusal::new(status, "no such table, no such group, or where it leads"))
}

/// DELETE_FLOW_TABLE_ENTRY.
pub(super) fn delete_entry(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DeleteFteIn>,
    _: &mut ViewMut<'_, DeleteFteOut>,
) -> Outcome {
    check(firmware, input.get(DeleteFteIn::TABLE_TYPE), input.is_set(DeleteFteIn::OTHER_VPORT))?;
    let (table, index) = (input.get(DeleteFteIn::TABLE_ID), input.get(DeleteFteIn::FLOW_INDEX));
    Ok(firmware.engine.delete_flow_rule(table, index)?)
}

/// ALLOC_FLOW_COUNTER: one, which begins at zero.
pub(super) fn alloc_counter(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, AllocFlowCounterIn>,
    output: &mut ViewMut<'_, AllocFlowCounterOut>,
) -> Outcome {
    check_ethernet(firmware)?;
    if input.is_set(AllocFlowCounterIn::FLOW_COUNTER_BULK) || input.is_set(AllocFlowCounterIn::FLOW_COUNTER_BULK_LOG_SIZE) {
        return Err(Refusal::new(CmdStatus::BadParam, "several counters at once are not offered"));
    }
    output.set(AllocFlowCounterOut::FLOW_COUNTER_ID, firmware.engine.create_flow_counter()?);
    Ok(())
}

/// DEALLOC_FLOW_COUNTER; busy while a rule has it.
pub(super) fn dealloc_counter(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DeallocFlowCounterIn>,
    _: &mut ViewMut<'_, DeallocFlowCounterOut>,
) -> Outcome {
    check_ethernet(firmware)?;
    let destroyed = firmware.engine.destroy_flow_counter(input.get(DeallocFlowCounterIn::FLOW_COUNTER_ID));
    destroyed.map_err(|status| Refusal::new(status, "there is none, or a rule has it"))
}

/// QUERY_FLOW_COUNTER: what one has counted, or several with numbers one after the other. Of those that do not exist, and of those of
/// other user contexts, it is nothing: Linux asks for four at a time (`mlx5_fc_stats_query_counter_range`).
pub(super) fn query_counter(
    firmware: &mut Firmware,
    input: View<'_, QueryFlowCounterIn>,
    output: &mut ViewMut<'_, QueryFlowCounterOut>,
    room: usize,
) -> Outcome {
    check_ethernet(firmware)?;
    let first = input.get(QueryFlowCounterIn::FLOW_COUNTER_ID);
    let len = match input.get(QueryFlowCounterIn::NUM_OF_COUNTERS) {
        0 if firmware.engine.flow_counter(first).is_none() => {
            return Err(Refusal::new(CmdStatus::BadRes, "no such counter"));
        }
        0 => 1,
        len if len <= 1 << LOG_MAX_COUNTER_QUERY => len,
        _ => return Err(Refusal::new(CmdStatus::BadParam, "too many counters at once")),
    };
    if QueryFlowCounterOut::SIZE + len as usize * TrafficCounter::SIZE > room {
        return Err(CmdStatus::BadOutputLen.into());
    }
    let owner = owner_of(input.as_bytes());
    let list = output.as_bytes_mut().get_mut(QueryFlowCounterOut::SIZE..).unwrap_or_default();
    for (number, place) in (first..).zip(list.chunks_exact_mut(TrafficCounter::SIZE)).take(len as usize) {
        if !firmware.engine.registry().may_name(owner, Resource::new(ObjectKind::FlowCounter, number)) {
            continue;
        }
        let Some(traffic) = firmware.engine.flow_counter(number) else { continue };
        if let Some(mut place) = ViewMut::<TrafficCounter>::new(place) {
            place.set64(TrafficCounter::PACKETS, traffic.packets).set64(TrafficCounter::OCTETS, traffic.octets);
        }
        if input.is_set(QueryFlowCounterIn::CLEAR) {
            *traffic = Traffic::default();
        }
    }
    Ok(())
}
