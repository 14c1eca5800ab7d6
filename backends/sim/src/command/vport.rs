//! The InfiniBand port: context, GIDs, P_Keys; and the P_Key of an Ethernet port.

use bareverbs_mlx5_spec::{
    CmdStatus, MadIfcIn, MadIfcOut, ModifyHcaVportContextIn, ModifyHcaVportContextOut, QueryHcaVportContextIn,
    QueryHcaVportContextOut, QueryHcaVportGidIn, QueryHcaVportGidOut, QueryHcaVportPkeyIn, QueryHcaVportPkeyOut, QueryLagIn,
    QueryLagOut, QueryVportCounterIn, QueryVportCounterOut, TrafficCounter, View, ViewMut, mad_ifc,
};

use super::refusal::{Outcome, Refusal};
use crate::firmware::Firmware;
use crate::limits::{GIDS, PKEYS};
use crate::management;
use crate::step::StepContext;

/// The index that asks for the whole table.
const WHOLE_TABLE: u32 = 0xffff;

/// Port 1, or 0 where a function has one port only.
fn check_port(port: u32, other: bool) -> Outcome {
    if port > 1 || other { Err(Refusal::new(CmdStatus::BadParam, "no such port")) } else { Ok(()) }
}

/// A virtual port of this function, which it has with the capability `ib_virt` only: without it drivers ask by MAD_IFC (Linux
/// `mlx5_use_mad_ifc`). No public source tells the status with which a card refuses.
fn check_virtual_port(firmware: &Firmware, port: u32, other: bool) -> Outcome {
    check_infiniband(firmware)?;
    if !firmware.config.ib_virt {
        return Err(Refusal::new(CmdStatus::BadOp, "no virtual ports (ib_virt)"));
    }
    check_port(port, other)
}

/// What only a port of a subnet has. No public source tells the status with which a card with an Ethernet port refuses it.
fn check_infiniband(firmware: &Firmware) -> Outcome {
    if firmware.port.is_ethernet() { Err(Refusal::new(CmdStatus::BadOp, "an Ethernet port")) } else { Ok(()) }
}

/// QUERY_HCA_VPORT_CONTEXT.
pub(super) fn query_context(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryHcaVportContextIn>,
    output: &mut ViewMut<'_, QueryHcaVportContextOut>,
) -> Outcome {
    check_infiniband(firmware)?;
    check_port(input.get(QueryHcaVportContextIn::PORT_NUM), input.is_set(QueryHcaVportContextIn::OTHER_VPORT))?;
    if !firmware.config.ib_virt {
        // Linux asks every InfiniBand port for `grh_required` and has no port if that fails (`mlx5_port_immutable`). What a card
        // without virtual ports says of the rest is not published, so nothing is said.
        return Ok(());
    }
    let stats = firmware.engine.stats();
    firmware.port.query(&stats, &mut output.sub(QueryHcaVportContextOut::HCA_VPORT_CONTEXT));
    Ok(())
}

/// MODIFY_HCA_VPORT_CONTEXT.
pub(super) fn modify_context(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, ModifyHcaVportContextIn>,
    _: &mut ViewMut<'_, ModifyHcaVportContextOut>,
) -> Outcome {
    let (port, other) = (input.get(ModifyHcaVportContextIn::PORT_NUM), input.is_set(ModifyHcaVportContextIn::OTHER_VPORT));
    check_virtual_port(firmware, port, other)?;
    if !firmware.port.modify(input.sub(ModifyHcaVportContextIn::HCA_VPORT_CONTEXT)) {
        return Err(Refusal::new(CmdStatus::BadParam, "the GUIDs are not the driver's to change"));
    }
    firmware.port_changed(ctx);
    Ok(())
}

/// MAD_IFC: a management datagram for the agents of the port.
pub(super) fn mad(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, MadIfcIn>,
    output: &mut ViewMut<'_, MadIfcOut>,
) -> Outcome {
    check_infiniband(firmware)?;
    check_port(input.get(MadIfcIn::PORT), false)?;
    let request = input.bytes(MadIfcIn::MAD).first_chunk().ok_or(CmdStatus::BadInputLen)?;
    // Only reads may do without the manager's key.
    let check_key = input.get(MadIfcIn::OP_MOD) & mad_ifc::IGNORE_M_KEY == 0;
    let own_lid = firmware.port.identity().lid();
    let response = management::answer(firmware.agents(ctx.now, own_lid), request, check_key)
        .ok_or(Refusal::new(CmdStatus::BadPkt, "no question, of a class without an agent, or without the manager's key"))?;
    output.set_bytes(MadIfcOut::RESPONSE_MAD_PACKET, &response);
    firmware.port_changed(ctx);
    Ok(())
}

/// Returns the indices that a query asks for.
fn indices(index: u32, entries: usize) -> core::ops::Range<usize> {
    if index == WHOLE_TABLE {
        0..entries
    } else {
        let index = index as usize;
        index..index + 1
    }
}

/// QUERY_HCA_VPORT_GID.
pub(super) fn query_gid(
    firmware: &mut Firmware,
    input: View<'_, QueryHcaVportGidIn>,
    output: &mut ViewMut<'_, QueryHcaVportGidOut>,
    room: usize,
) -> Outcome {
    let (port, other) = (input.get(QueryHcaVportGidIn::PORT_NUM), input.is_set(QueryHcaVportGidIn::OTHER_VPORT));
    check_virtual_port(firmware, port, other)?;
    let wanted = indices(input.get(QueryHcaVportGidIn::GID_INDEX), GIDS);
    output.set(QueryHcaVportGidOut::GIDS_NUM, wanted.len() as u32);
    for (i, index) in wanted.enumerate() {
        let gid = firmware.port.identity().gid(index).ok_or(Refusal::new(CmdStatus::BadParam, "beyond the GID table"))?;
        put(output.as_bytes_mut(), QueryHcaVportGidOut::GID.at(i), &gid, room)?;
    }
    Ok(())
}

/// QUERY_HCA_VPORT_PKEY: an entry is a big-endian word with the key in its low half.
pub(super) fn query_pkey(
    firmware: &mut Firmware,
    input: View<'_, QueryHcaVportPkeyIn>,
    output: &mut ViewMut<'_, QueryHcaVportPkeyOut>,
    room: usize,
) -> Outcome {
    let (port, other) = (input.get(QueryHcaVportPkeyIn::PORT_NUM), input.is_set(QueryHcaVportPkeyIn::OTHER_VPORT));
    if firmware.port.is_ethernet() {
        // Linux asks here for the one that there is (`mlx5_query_hca_vport_pkey`).
        check_port(port, other)?;
    } else {
        check_virtual_port(firmware, port, other)?;
    }
    for (i, index) in indices(input.get(QueryHcaVportPkeyIn::PKEY_INDEX), PKEYS).enumerate() {
        if index >= PKEYS {
            return Err(Refusal::new(CmdStatus::BadParam, "beyond the P_Key table"));
        }
        let pkey = firmware.port.identity().pkey(index);
        put(output.as_bytes_mut(), QueryHcaVportPkeyOut::PKEY.at(i), &u32::from(pkey).to_be_bytes(), room)?;
    }
    Ok(())
}

/// QUERY_VPORT_COUNTER: what went over the wire since INIT_HCA. On an Ethernet port, packets of RoCE are those of InfiniBand.
pub(super) fn query_counter(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryVportCounterIn>,
    output: &mut ViewMut<'_, QueryVportCounterOut>,
) -> Outcome {
    check_port(input.get(QueryVportCounterIn::PORT_NUM), input.is_set(QueryVportCounterIn::OTHER_VPORT))?;
    let stats = firmware.engine.stats();
    for (place, traffic) in [
        (QueryVportCounterOut::RECEIVED_IB_UNICAST, stats.received),
        (QueryVportCounterOut::TRANSMITTED_IB_UNICAST, stats.sent),
        (QueryVportCounterOut::RECEIVED_IB_MULTICAST, stats.received_multicast),
        (QueryVportCounterOut::TRANSMITTED_IB_MULTICAST, stats.sent_multicast),
        (QueryVportCounterOut::RECEIVED_ETH_UNICAST, stats.frames_received.unicast),
        (QueryVportCounterOut::TRANSMITTED_ETH_UNICAST, stats.frames_sent.unicast),
        (QueryVportCounterOut::RECEIVED_ETH_MULTICAST, stats.frames_received.multicast),
        (QueryVportCounterOut::TRANSMITTED_ETH_MULTICAST, stats.frames_sent.multicast),
        (QueryVportCounterOut::RECEIVED_ETH_BROADCAST, stats.frames_received.broadcast),
        (QueryVportCounterOut::TRANSMITTED_ETH_BROADCAST, stats.frames_sent.broadcast),
    ] {
        output.sub(place).set64(TrafficCounter::PACKETS, traffic.packets).set64(TrafficCounter::OCTETS, traffic.octets);
    }
    // A good frame that no queue wants is no error.
    let errors = if firmware.port.is_ethernet() { stats.malformed } else { stats.dropped };
    output.sub(QueryVportCounterOut::RECEIVED_ERRORS).set64(TrafficCounter::PACKETS, errors);
    Ok(())
}

/// QUERY_LAG: one port, which is no part of several.
pub(super) fn query_lag(
    _: &mut Firmware,
    _: &mut StepContext<'_>,
    _: View<'_, QueryLagIn>,
    _: &mut ViewMut<'_, QueryLagOut>,
) -> Outcome {
    Ok(())
}

/// Writes an entry of a table at byte `at` of an output that the driver has `room` bytes for.
fn put(output: &mut [u8], at: usize, entry: &[u8], room: usize) -> Outcome {
    let place = output.get_mut(..room).and_then(|output| output.get_mut(at..at + entry.len()));
    place.ok_or(Refusal::new(CmdStatus::BadOutputLen, "no room for the table"))?.copy_from_slice(entry);
    Ok(())
}
