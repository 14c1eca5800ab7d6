//! ACCESS_REG: registers of port and node.

use bareverbs_mlx5_spec::{
    AccessRegisterIn, AccessRegisterOut, CmdStatus, Eth2863Cntrs, Eth8023Cntrs, IEEE_802_3_COUNTERS,
    INFINIBAND_EXTENDED_PORT_COUNTERS, INFINIBAND_PORT_COUNTERS, IbExtPortCntrs, IbPortCntrs, Layout, PaosReg, PcapReg,
    PfccReg, PmtuReg, PpcntReg, PtysReg, PvlcReg, REGISTER_READ, REGISTER_WRITE, RFC_2863_COUNTERS, RegisterHostEndianness,
    RegisterId, SetNodeIn, View, ViewMut,
};

use super::refusal::{Outcome, Refusal};
use crate::config::CHECK_SEQUENCE;
use crate::firmware::Firmware;
use crate::firmware::unsupported::Unsupported;
use crate::management::{self, Counts};
use crate::port::PortStats;
use crate::stats::Traffic;
use crate::step::StepContext;

/// ACCESS_REG.
pub(super) fn access_register(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, AccessRegisterIn>,
    output: &mut ViewMut<'_, AccessRegisterOut>,
) -> Outcome {
    let write = match input.get(AccessRegisterIn::OP_MOD) {
        REGISTER_READ => false,
        REGISTER_WRITE => true,
        _ => return Err(Refusal::new(CmdStatus::BadParam, "neither read nor write")),
    };
    let data = input.tail(AccessRegisterIn::REGISTER_DATA);
    let out = output.as_bytes_mut().get_mut(AccessRegisterOut::REGISTER_DATA.offset()..).unwrap_or_default();
    access_by_id(firmware, ctx, input.get(AccessRegisterIn::REGISTER_ID), data, out, write)
}

/// Writes the register with this number from `data` if asked to, then gives back in `out` what it is.
pub(super) fn access_by_id(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    id: u32,
    data: &[u8],
    out: &mut [u8],
    write: bool,
) -> Outcome {
    if firmware.config.refused_registers.iter().any(|refused| u32::from(*refused) == id) {
        return Err(Refusal::new(CmdStatus::BadRes, "the function is restricted"));
    }
    let Some(register) = RegisterId::from_code(id) else { return missing(firmware, id) };
    match register {
        RegisterId::Ptys => access::<PtysReg>(
            firmware,
            data,
            out,
            write,
            |firmware, out| firmware.port.ptys(out),
            |_, reg| {
                // Only the local port is known; speeds are not the driver's to choose here.
                check_port(reg.get(PtysReg::LOCAL_PORT))
            },
        ),
        // Of a subnet alone, and of Ethernet alone.
        RegisterId::Pcap | RegisterId::Pvlc if firmware.port.is_ethernet() => missing(firmware, id),
        RegisterId::Pfcc if !firmware.port.is_ethernet() => missing(firmware, id),
        RegisterId::Pfcc => access::<PfccReg>(
            firmware,
            data,
            out,
            write,
            // No pause frames: the wire holds frames back itself.
            |_, out| {
                out.set(PfccReg::LOCAL_PORT, 1);
            },
            |_, reg| check_port(reg.get(PfccReg::LOCAL_PORT)),
        ),
        // What MODIFY_HCA_VPORT_CONTEXT sets on a function with virtual ports.
        RegisterId::Pcap => access::<PcapReg>(
            firmware,
            data,
            out,
            write,
            |firmware, out| firmware.port.pcap(out),
            |firmware, reg| {
                check_port(reg.get(PcapReg::LOCAL_PORT))?;
                firmware.port.set_pcap(reg);
                Ok(())
            },
        ),
        RegisterId::Pmtu => access::<PmtuReg>(
            firmware,
            data,
            out,
            write,
            |firmware, out| firmware.port.pmtu(out),
            |firmware, reg| {
                check_port(reg.get(PmtuReg::LOCAL_PORT))?;
                if !firmware.port.set_mtu(reg.get(PmtuReg::ADMIN_MTU)) {
                    return Err(Refusal::new(CmdStatus::BadParam, "no such MTU"));
                }
                firmware.configure_engine();
                Ok(())
            },
        ),
        RegisterId::Pvlc => access::<PvlcReg>(
            firmware,
            data,
            out,
            write,
            |firmware, out| firmware.port.pvlc(out),
            |_, reg| check_port(reg.get(PvlcReg::LOCAL_PORT)),
        ),
        RegisterId::Paos => access::<PaosReg>(
            firmware,
            data,
            out,
            write,
            |firmware, out| firmware.port.paos(out),
            |firmware, reg| {
                check_port(reg.get(PaosReg::LOCAL_PORT))?;
                // A write that does not enable the update is a read.
                if !reg.is_set(PaosReg::ASE) {
                    return Ok(());
                }
                of_physical_function(firmware)?;
                if !firmware.port.set_admin(reg.get(PaosReg::ADMIN_STATUS), ctx.now) {
                    return Err(Refusal::new(CmdStatus::BadParam, "no such state"));
                }
                firmware.port_changed(ctx);
                Ok(())
            },
        ),
        RegisterId::NodeDesc => access::<SetNodeIn>(
            firmware,
            data,
            out,
            write,
            |firmware, out| {
                out.set_bytes(SetNodeIn::NODE_DESCRIPTION, firmware.port.node_description());
            },
            |firmware, reg| {
                firmware.port.set_node_description(reg.bytes(SetNodeIn::NODE_DESCRIPTION));
                Ok(())
            },
        ),
        // The device works in network byte order and in host order only where atomics say so: the hint changes nothing.
        RegisterId::HostEndianness => {
            of_physical_function(firmware)?;
            access::<RegisterHostEndianness>(firmware, data, out, write, |_, _| {}, |_, _| Ok(()))
        }
        RegisterId::Ppcnt => port_counters(firmware, data, out),
        RegisterId::Dtor => missing(firmware, id),
    }
}

/// Refuses what a virtual function does not set. Linux does not try; which status a card gives is not published.
fn of_physical_function(firmware: &Firmware) -> Outcome {
    if firmware.config.virtual_function {
        Err(Refusal::new(CmdStatus::BadParam, "a register of the physical function"))
    } else {
        Ok(())
    }
}

/// PPCNT: a group of the port's counters, which performance management shows and clears too. Those of the physical layer stay
/// 0.
fn port_counters(firmware: &mut Firmware, data: &[u8], out: &mut [u8]) -> Outcome {
    let asked = View::<PpcntReg>::new(data).ok_or(CmdStatus::BadInputLen)?;
    let mut reg = ViewMut::<PpcntReg>::new(out).ok_or(CmdStatus::BadOutputLen)?;
    check_port(asked.get(PpcntReg::LOCAL_PORT))?;
    let group = asked.get(PpcntReg::GRP);
    let now = management::count(&firmware.engine.stats(), firmware.port.stats());
    reg.as_bytes_mut().fill(0);
    reg.set(PpcntReg::LOCAL_PORT, asked.get(PpcntReg::LOCAL_PORT)).set(PpcntReg::GRP, group);
    let mut set = [0; PpcntReg::COUNTER_SET.len()];
    let counts = firmware.cleared_traffic.since(&now);
    let shown = match group {
        INFINIBAND_PORT_COUNTERS => {
            error_counters(&counts, &mut set);
            8..counts.len()
        }
        INFINIBAND_EXTENDED_PORT_COUNTERS => {
            traffic_counters(&counts, &mut set);
            0..8
        }
        IEEE_802_3_COUNTERS if firmware.port.is_ethernet() => {
            ethernet_counters(firmware.port.stats(), &mut set);
            0..0
        }
        RFC_2863_COUNTERS if firmware.port.is_ethernet() => {
            interface_counters(firmware.port.stats(), &mut set);
            0..0
        }
        _ => 0..0,
    };
    if asked.is_set(PpcntReg::CLR) {
        firmware.cleared_traffic.clear(&now, shown);
    }
    reg.set_bytes(PpcntReg::COUNTER_SET, &set);
    Ok(())
}

/// The counts that are no traffic; each stops at its greatest value.
fn error_counters(counts: &Counts, set: &mut [u8]) {
    let [.., downed, malformed, discarded, subnet_management_dropped] = *counts;
    let most = |count: u64, most: u32| u32::try_from(count).map_or(most, |count| count.min(most));
    if let Some(mut out) = ViewMut::<IbPortCntrs>::new(set) {
        out.set(IbPortCntrs::LINK_DOWNED_COUNTER, most(downed, 0xff))
            .set(IbPortCntrs::PORT_RCV_ERRORS, most(malformed, 0xffff))
            .set(IbPortCntrs::PORT_XMIT_DISCARDS, most(discarded, 0xffff))
            .set(IbPortCntrs::VL_15_DROPPED, most(subnet_management_dropped, 0xffff));
    }
}

fn traffic_counters(counts: &Counts, set: &mut [u8]) {
    let places = [
        (IbExtPortCntrs::PORT_XMIT_DATA_HIGH, IbExtPortCntrs::PORT_XMIT_DATA_LOW),
        (IbExtPortCntrs::PORT_RCV_DATA_HIGH, IbExtPortCntrs::PORT_RCV_DATA_LOW),
        (IbExtPortCntrs::PORT_XMIT_PKTS_HIGH, IbExtPortCntrs::PORT_XMIT_PKTS_LOW),
        (IbExtPortCntrs::PORT_RCV_PKTS_HIGH, IbExtPortCntrs::PORT_RCV_PKTS_LOW),
        (IbExtPortCntrs::PORT_UNICAST_XMIT_PKTS_HIGH, IbExtPortCntrs::PORT_UNICAST_XMIT_PKTS_LOW),
        (IbExtPortCntrs::PORT_UNICAST_RCV_PKTS_HIGH, IbExtPortCntrs::PORT_UNICAST_RCV_PKTS_LOW),
        (IbExtPortCntrs::PORT_MULTICAST_XMIT_PKTS_HIGH, IbExtPortCntrs::PORT_MULTICAST_XMIT_PKTS_LOW),
        (IbExtPortCntrs::PORT_MULTICAST_RCV_PKTS_HIGH, IbExtPortCntrs::PORT_MULTICAST_RCV_PKTS_LOW),
    ];
    if let Some(mut out) = ViewMut::<IbExtPortCntrs>::new(set) {
        for ((high, low), count) in places.into_iter().zip(counts) {
            out.set(high, (count >> 32) as u32).set(low, *count as u32);
        }
    }
}

/// Frames and bytes of an Ethernet port, check sequences included: what passes the connector, of any destination and whatever becomes of it
/// (Linux `counters.rst`, "Physical Port Counters").
fn ethernet_counters(port: PortStats, set: &mut [u8]) {
    let with_check_sequences = |Traffic { packets, octets }: Traffic| (packets, octets + u64::from(CHECK_SEQUENCE) * packets);
    let (sent, sent_octets) = with_check_sequences(port.sent.all());
    let (received, received_octets) = with_check_sequences(port.received.all());
    let counters = [
        (Eth8023Cntrs::A_FRAMES_TRANSMITTED_OK_HIGH, Eth8023Cntrs::A_FRAMES_TRANSMITTED_OK_LOW, sent),
        (Eth8023Cntrs::A_FRAMES_RECEIVED_OK_HIGH, Eth8023Cntrs::A_FRAMES_RECEIVED_OK_LOW, received),
        (Eth8023Cntrs::A_OCTETS_TRANSMITTED_OK_HIGH, Eth8023Cntrs::A_OCTETS_TRANSMITTED_OK_LOW, sent_octets),
        (Eth8023Cntrs::A_OCTETS_RECEIVED_OK_HIGH, Eth8023Cntrs::A_OCTETS_RECEIVED_OK_LOW, received_octets),
        (
            Eth8023Cntrs::A_MULTICAST_FRAMES_XMITTED_OK_HIGH,
            Eth8023Cntrs::A_MULTICAST_FRAMES_XMITTED_OK_LOW,
            port.sent.multicast.packets,
        ),
        (
            Eth8023Cntrs::A_MULTICAST_FRAMES_RECEIVED_OK_HIGH,
            Eth8023Cntrs::A_MULTICAST_FRAMES_RECEIVED_OK_LOW,
            port.received.multicast.packets,
        ),
        (
            Eth8023Cntrs::A_BROADCAST_FRAMES_XMITTED_OK_HIGH,
            Eth8023Cntrs::A_BROADCAST_FRAMES_XMITTED_OK_LOW,
            port.sent.broadcast.packets,
        ),
        (
            Eth8023Cntrs::A_BROADCAST_FRAMES_RECEIVED_OK_HIGH,
            Eth8023Cntrs::A_BROADCAST_FRAMES_RECEIVED_OK_LOW,
            port.received.broadcast.packets,
        ),
        (Eth8023Cntrs::A_FRAME_TOO_LONG_ERRORS_HIGH, Eth8023Cntrs::A_FRAME_TOO_LONG_ERRORS_LOW, port.too_long),
    ];
    if let Some(mut out) = ViewMut::<Eth8023Cntrs>::new(set) {
        for (high, low, count) in counters {
            out.set(high, (count >> 32) as u32).set(low, count as u32);
        }
    }
}

/// What an Ethernet port did not send.
fn interface_counters(port: PortStats, set: &mut [u8]) {
    let discarded = port.discarded.all().packets;
    if let Some(mut out) = ViewMut::<Eth2863Cntrs>::new(set) {
        out.set(Eth2863Cntrs::IF_OUT_DISCARDS_HIGH, (discarded >> 32) as u32)
            .set(Eth2863Cntrs::IF_OUT_DISCARDS_LOW, discarded as u32);
    }
}

fn missing(firmware: &mut Firmware, id: u32) -> Outcome {
    firmware.unsupported.report(Unsupported::Register(id));
    Err(Refusal::new(CmdStatus::BadParam, "no such register"))
}

/// Returns whether the device has the register with this number.
pub(super) fn exists(id: u32) -> bool {
    !matches!(RegisterId::from_code(id), None | Some(RegisterId::Dtor))
}

fn check_port(port: u32) -> Outcome {
    if port > 1 { Err(Refusal::new(CmdStatus::BadParam, "no such port")) } else { Ok(()) }
}

/// Writes the register if asked to, then gives back what it is.
fn access<R: Layout>(
    firmware: &mut Firmware,
    data: &[u8],
    out: &mut [u8],
    write: bool,
    get: impl FnOnce(&Firmware, &mut ViewMut<'_, R>),
    set: impl FnOnce(&mut Firmware, View<'_, R>) -> Outcome,
) -> Outcome {
    if write {
        set(firmware, View::new(data).ok_or(CmdStatus::BadInputLen)?)?;
    }
    get(firmware, &mut ViewMut::new(out).ok_or(CmdStatus::BadOutputLen)?);
    Ok(())
}
