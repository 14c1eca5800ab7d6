//! The Ethernet port: state, context, addresses of RoCE.

use bareverbs_mlx5_spec::{
    CmdStatus, ModifyNicVportContextIn, ModifyNicVportContextOut, ModifyNicVportFieldSelect, NicVportContext,
    QueryNicVportContextIn, QueryNicVportContextOut, QueryRoceAddressIn, QueryRoceAddressOut, QueryVportStateIn,
    QueryVportStateOut, ROCE_VERSION_2, RoceAddrLayout, SetRoceAddressIn, SetRoceAddressOut, View, ViewMut, roce_l3_type,
};

use super::refusal::{Outcome, Refusal};
use crate::engine::{FrameFilter, RoceAddress};
use crate::firmware::Firmware;
use crate::firmware::nic_vport::{LOG_MAX_LIST, NicVport, Promiscuous};
use crate::step::StepContext;

/// Bytes of an entry of a list.
const ENTRY: usize = 8;
/// Where the list of MODIFY_NIC_VPORT_CONTEXT begins: behind the context.
const NEW_LIST: usize = ModifyNicVportContextIn::NIC_VPORT_CONTEXT.offset() + NicVportContext::CURRENT_UC_MAC_ADDRESS.offset();
/// Where that of QUERY_NIC_VPORT_CONTEXT begins.
const LIST: usize = QueryNicVportContextOut::NIC_VPORT_CONTEXT.offset() + NicVportContext::CURRENT_UC_MAC_ADDRESS.offset();

/// Why an index of the address table of RoCE is refused.
const BEYOND_TABLE: &str = "beyond the address table";

/// The port of this function, which must be one of Ethernet. No public source tells the status with which a card with an
/// InfiniBand port refuses these commands.
fn check_vport(firmware: &Firmware, vport: u32, other: bool) -> Outcome {
    if !firmware.port.is_ethernet() {
        return Err(Refusal::new(CmdStatus::BadOp, "no Ethernet port"));
    }
    if other || vport != 0 { Err(Refusal::new(CmdStatus::BadParam, "the port of another function")) } else { Ok(()) }
}

/// QUERY_VPORT_STATE.
pub(super) fn query_state(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryVportStateIn>,
    output: &mut ViewMut<'_, QueryVportStateOut>,
) -> Outcome {
    check_vport(firmware, input.get(QueryVportStateIn::VPORT_NUMBER), input.is_set(QueryVportStateIn::OTHER_VPORT))?;
    output
        .set(QueryVportStateOut::ADMIN_STATE, firmware.port.is_wanted_up().into())
        .set(QueryVportStateOut::STATE, firmware.port.is_up().into());
    Ok(())
}

/// QUERY_NIC_VPORT_CONTEXT, with one of the lists.
pub(super) fn query_context(
    firmware: &mut Firmware,
    input: View<'_, QueryNicVportContextIn>,
    output: &mut ViewMut<'_, QueryNicVportContextOut>,
    room: usize,
) -> Outcome {
    check_vport(firmware, input.get(QueryNicVportContextIn::VPORT_NUMBER), input.is_set(QueryNicVportContextIn::OTHER_VPORT))?;
    let kind = input.get(QueryNicVportContextIn::ALLOWED_LIST_TYPE);
    let vport = &firmware.nic_vport;
    let list = vport.lists.get(kind as usize).ok_or(Refusal::new(CmdStatus::BadParam, "no such list"))?;
    // A driver that asks for something else has no room for it.
    let fits = room.saturating_sub(LIST) / ENTRY;
    let places = output.as_bytes_mut().get_mut(LIST..).unwrap_or_default().chunks_exact_mut(ENTRY);
    places.zip(list).take(fits).for_each(|(place, entry)| place.copy_from_slice(&entry.to_be_bytes()));
    let [a, b, c, d, e, f] = firmware.config.mac().unwrap_or_default();
    let Promiscuous { unicast, multicast, all } = vport.promiscuous;
    let [no_unicast, no_multicast] = vport.no_local_loopback;
    let violations = firmware.engine.stats().qkey_violations.min(u16::MAX.into()) as u32;
    output
        .sub(QueryNicVportContextOut::NIC_VPORT_CONTEXT)
        .set(NicVportContext::ROCE_EN, firmware.engine.has_roce().into())
        .set(NicVportContext::DISABLE_UC_LOCAL_LB, no_unicast.into())
        .set(NicVportContext::DISABLE_MC_LOCAL_LB, no_multicast.into())
        .set(NicVportContext::MTU, vport.mtu.into())
        .set64(NicVportContext::SYSTEM_IMAGE_GUID, firmware.port.system_guid())
        .set64(NicVportContext::PORT_GUID, firmware.port.port_guid())
        .set64(NicVportContext::NODE_GUID, firmware.port.node_guid())
        .set(NicVportContext::QKEY_VIOLATION_COUNTER, violations)
        .set(NicVportContext::PROMISC_UC, unicast.into())
        .set(NicVportContext::PROMISC_MC, multicast.into())
        .set(NicVportContext::PROMISC_ALL, all.into())
        .set(NicVportContext::ALLOWED_LIST_TYPE, kind)
        .set(NicVportContext::ALLOWED_LIST_SIZE, list.len() as u32)
        .set64(NicVportContext::PERMANENT_ADDRESS, u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
    Ok(())
}

/// MODIFY_NIC_VPORT_CONTEXT.
pub(super) fn modify_context(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, ModifyNicVportContextIn>,
    _: &mut ViewMut<'_, ModifyNicVportContextOut>,
) -> Outcome {
    use ModifyNicVportFieldSelect as Select;
    check_vport(
        firmware,
        input.get(ModifyNicVportContextIn::VPORT_NUMBER),
        input.is_set(ModifyNicVportContextIn::OTHER_VPORT),
    )?;
    let select = input.sub(ModifyNicVportContextIn::FIELD_SELECT);
    let context = input.sub(ModifyNicVportContextIn::NIC_VPORT_CONTEXT);
    let is_another = |field| select.is_set(field);
    if [Select::AFFILIATION, Select::NODE_GUID, Select::PORT_GUID, Select::PERMANENT_ADDRESS].into_iter().any(is_another) {
        return Err(Refusal::new(CmdStatus::BadParam, "a field that is not the driver's to change"));
    }
    // Checked before anything changes.
    let list = select.is_set(Select::ADDRESSES_LIST).then(|| new_list(input)).transpose()?;
    let vport = &mut firmware.nic_vport;
    if let Some((kind, list)) = list
        && let Some(place) = vport.lists.get_mut(kind)
    {
        *place = list;
    }
    if select.is_set(Select::MTU) {
        vport.mtu = context.get(NicVportContext::MTU) as u16;
    }
    if select.is_set(Select::PROMISC) {
        vport.promiscuous = Promiscuous {
            unicast: context.is_set(NicVportContext::PROMISC_UC),
            multicast: context.is_set(NicVportContext::PROMISC_MC),
            all: context.is_set(NicVportContext::PROMISC_ALL),
        };
    }
    // Without an error: the driver of a virtual function does not learn that it is not trusted.
    let is_trusted = firmware.config.trusted || !firmware.config.virtual_function;
    firmware.engine.set_frame_filter(frame_filter(vport, is_trusted));
    let [no_unicast, no_multicast] = &mut vport.no_local_loopback;
    if select.is_set(Select::DISABLE_UC_LOCAL_LB) {
        *no_unicast = context.is_set(NicVportContext::DISABLE_UC_LOCAL_LB);
    }
    if select.is_set(Select::DISABLE_MC_LOCAL_LB) {
        *no_multicast = context.is_set(NicVportContext::DISABLE_MC_LOCAL_LB);
    }
    if select.is_set(Select::ROCE_EN) {
        firmware.engine.enable_roce(context.is_set(NicVportContext::ROCE_EN));
    }
    Ok(())
}

/// Returns the filter that the context of the port asks for.
fn frame_filter(vport: &NicVport, is_trusted: bool) -> FrameFilter {
    let [unicast, multicast, _] = &vport.lists;
    let addresses = |list: &[u64]| list.iter().map(|entry| mac_of(*entry)).collect();
    let Promiscuous { unicast: all_unicast, multicast: all_multicast, all } = vport.promiscuous;
    FrameFilter {
        unicast: addresses(unicast),
        multicast: addresses(multicast),
        all_unicast: is_trusted && (all_unicast || all),
        all_multicast: is_trusted && (all_multicast || all),
    }
}

/// Returns the MAC address of an entry of a list.
const fn mac_of(entry: u64) -> [u8; 6] {
    let [_, _, a, b, c, d, e, f] = entry.to_be_bytes();
    [a, b, c, d, e, f]
}

/// Returns the list of an input, and which one it is.
fn new_list(input: View<'_, ModifyNicVportContextIn>) -> Result<(usize, Vec<u64>), Refusal> {
    let context = input.sub(ModifyNicVportContextIn::NIC_VPORT_CONTEXT);
    let kind = context.get(NicVportContext::ALLOWED_LIST_TYPE) as usize;
    let len = context.get(NicVportContext::ALLOWED_LIST_SIZE) as usize;
    if kind > 2 || len > 1 << LOG_MAX_LIST {
        return Err(Refusal::new(CmdStatus::BadParam, "no such list, or longer than lists are"));
    }
    let bytes = input.as_bytes().get(NEW_LIST..).and_then(|list| list.get(..len * ENTRY)).ok_or(CmdStatus::BadInputLen)?;
    Ok((kind, bytes.as_chunks::<ENTRY>().0.iter().map(|entry| u64::from_be_bytes(*entry)).collect()))
}

/// The port of a command about addresses of RoCE. A function that numbers its ports names one; another may (Linux names none then).
fn check_roce_port(firmware: &Firmware, port: u32) -> Outcome {
    check_vport(firmware, 0, false)?;
    let ports = u32::from(firmware.config.vhca_ports);
    match port {
        0 if ports != 0 => Err(Refusal::new(CmdStatus::BadParam, "the function numbers its ports, and none is named")),
        _ if port > ports.max(1) => Err(Refusal::new(CmdStatus::BadParam, "no such port")),
        _ => Ok(()),
    }
}

/// SET_ROCE_ADDRESS. Zeros instead of an IP address empty the entry (Linux `mlx5_core_roce_gid_set` without a GID).
pub(super) fn set_roce_address(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, SetRoceAddressIn>,
    _: &mut ViewMut<'_, SetRoceAddressOut>,
) -> Outcome {
    check_roce_port(firmware, input.get(SetRoceAddressIn::VHCA_PORT_NUM))?;
    let new = input.sub(SetRoceAddressIn::ROCE_ADDRESS);
    let gid: [u8; 16] = new.bytes(RoceAddrLayout::SOURCE_L3_ADDRESS).try_into().unwrap_or_default();
    let is_ipv4 = match new.get(RoceAddrLayout::ROCE_L3_TYPE) {
        roce_l3_type::IPV4 => true,
        roce_l3_type::IPV6 => false,
        _ => return Err(Refusal::new(CmdStatus::BadParam, "neither IPv4 nor IPv6")),
    };
    let address = if gid == [0; 16] {
        None
    } else if new.get(RoceAddrLayout::ROCE_VERSION) != ROCE_VERSION_2 {
        return Err(Refusal::new(CmdStatus::BadParam, "a version of RoCE that the port does not have (roce_version)"));
    } else {
        let (high, low) = (new.get(RoceAddrLayout::SOURCE_MAC_47_32), new.get(RoceAddrLayout::SOURCE_MAC_31_0));
        let [_, _, a, b, c, d, e, f] = (u64::from(high) << 32 | u64::from(low)).to_be_bytes();
        let vlan = new.is_set(RoceAddrLayout::VLAN_VALID).then(|| new.get(RoceAddrLayout::VLAN_ID) as u16);
        Some(RoceAddress { gid, is_ipv4, mac: [a, b, c, d, e, f], vlan })
    };
    let set = firmware.engine.set_roce_address(input.get(SetRoceAddressIn::ROCE_ADDRESS_INDEX), address);
    set.map_err(|status| Refusal::new(status, BEYOND_TABLE))
}

/// QUERY_ROCE_ADDRESS. Zeros are an empty entry. Linux never sends it, so that nobody has published with which status a card
/// refuses an index.
pub(super) fn query_roce_address(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryRoceAddressIn>,
    output: &mut ViewMut<'_, QueryRoceAddressOut>,
) -> Outcome {
    check_roce_port(firmware, input.get(QueryRoceAddressIn::VHCA_PORT_NUM))?;
    let entry = firmware.engine.roce_address(input.get(QueryRoceAddressIn::ROCE_ADDRESS_INDEX));
    let Some(entry) = entry.map_err(|status| Refusal::new(status, BEYOND_TABLE))? else { return Ok(()) };
    let RoceAddress { gid, is_ipv4, mac: [a, b, c, d, e, f], vlan } = entry;
    output
        .sub(QueryRoceAddressOut::ROCE_ADDRESS)
        .set_bytes(RoceAddrLayout::SOURCE_L3_ADDRESS, &gid)
        .set(RoceAddrLayout::VLAN_VALID, vlan.is_some().into())
        .set(RoceAddrLayout::VLAN_ID, vlan.unwrap_or_default().into())
        .set(RoceAddrLayout::SOURCE_MAC_47_32, u16::from_be_bytes([a, b]).into())
        .set(RoceAddrLayout::SOURCE_MAC_31_0, u32::from_be_bytes([c, d, e, f]))
        .set(RoceAddrLayout::ROCE_L3_TYPE, if is_ipv4 { roce_l3_type::IPV4 } else { roce_l3_type::IPV6 })
        .set(RoceAddrLayout::ROCE_VERSION, ROCE_VERSION_2);
    Ok(())
}
