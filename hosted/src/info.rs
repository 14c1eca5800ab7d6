//! `bareverbs info`: the attributes of a device, in the format of `ibv_devinfo -v`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bareverbs::LinkLayer;
use bareverbs::error::{QueryError, WaitActiveError};
use bareverbs::platform::Platform;
use bareverbs_mlx5::Error;
use bareverbs_sim::in_process::{World, WorldConfig};
use serde::Serialize;

use crate::cli::InfoArgs;
use crate::device::attributes::{DeviceAttributes, gid, guid, phys_state, port_state};
use crate::device::selection::DeviceChoice;
use crate::device::simulated::Simulated;
use crate::device::vfio::Card;
use crate::device::{COMPLETION_QUEUES, DOMAINS, Device, Host, QUEUE_PAIRS, REGIONS, Verbs, WINDOWS};
use crate::outcome::Outcome;
use crate::stop::Interrupted;
use crate::trace;

/// How long a port may take until its state is shown: the bring-up resets a card, whose link is trained again (6 s), and opensm
/// sweeps every 10 s.
const SETTLE_TIME: Duration = Duration::from_secs(20);

/// Name of the simulated device.
const NAME: &str = "mlx5_sim0";

/// Result of the subcommand.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The device, if its attributes could be queried.
    #[serde(flatten)]
    pub info: Option<Info>,
}

/// Attributes of a device.
#[derive(Clone, Debug, Serialize)]
pub struct Info {
    /// Name of the device.
    pub hca_id: String,
    /// Transport.
    pub transport: &'static str,
    /// Attributes.
    #[serde(flatten)]
    pub attributes: DeviceAttributes,
    /// What a job of this command uses of it.
    pub used: Used,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

/// What a job of this command uses of a device at most.
#[derive(Clone, Debug, Serialize)]
pub struct Used {
    /// Pages of 4096 bytes that its firmware requested and has.
    pub firmware_pages: u32,
    /// Pages of 4096 bytes for the driver's queues.
    pub driver_pages: u32,
    /// Queue pairs.
    pub qp: usize,
    /// Completion queues.
    pub cq: usize,
    /// Memory regions.
    pub mr: usize,
    /// Memory windows.
    pub mw: usize,
    /// Protection domains.
    pub pd: usize,
}

/// Attributes of a port.
#[derive(Clone, Debug, Serialize)]
pub struct PortInfo {
    /// Number, from 1.
    pub port: u8,
    /// State.
    pub state: &'static str,
    /// Number of the state.
    #[serde(skip)]
    state_code: u32,
    /// Physical state.
    pub phys_state: &'static str,
    /// Number of the physical state.
    pub phys_state_code: u8,
    /// Maximum MTU in bytes.
    pub max_mtu: u32,
    /// Active MTU in bytes.
    pub active_mtu: u32,
    /// LID of the subnet manager.
    pub sm_lid: u16,
    /// LID.
    pub port_lid: u16,
    /// Low LID bits that select a path.
    pub port_lmc: u8,
    /// Link layer.
    pub link_layer: &'static str,
    /// MAC address of an Ethernet port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Capability mask.
    pub port_cap_flags: u32,
    /// Whether every path from it needs a global route (GRH).
    pub grh_required: bool,
    /// Entries of the GID table.
    pub gid_tbl_len: u16,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Lanes.
    pub active_width: u8,
    /// Speed of all lanes in gigabits per second.
    pub active_speed_gbps: u32,
    /// GUID of the port.
    pub port_guid: String,
    /// The GIDs that are not zero, with their index.
    pub gids: Vec<(u16, String)>,
    /// Why not all of them could be read: Ethernet ports are asked by a command that no other driver sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gids_failure: Option<String>,
    /// The P_Keys that are not zero, with their index.
    pub pkeys: Vec<(u16, u16)>,
}

/// Brings a device up and queries its attributes, until `stop` is set.
///
/// # Errors
/// The device does not support an option ([`UsageError`](crate::args::UsageError)), or the device or the trace cannot be opened.
pub fn run(args: &InfoArgs, stop: Arc<AtomicBool>) -> Result<Report> {
    let (result, sink) = match &args.device {
        DeviceChoice::Simulated => {
            args.simulation.check(1)?;
            let sink = trace::sink(&args.trace)?;
            let world = World::new(args.simulation.world(WorldConfig::default()));
            let host = Simulated::new(NAME, world.add(args.simulation.device(1))?);
            args.simulation.arm(host.inner());
            if let Some(sink) = &sink {
                host.trace(NAME, sink);
            }
            (of_host(host, !args.output.json && !args.trace.trace, &stop), sink)
        }
        DeviceChoice::Pci(address) => {
            args.simulation.refuse()?;
            trace::refuse(&args.trace)?;
            (of_host(Card::open(*address, &stop)?, !args.output.json, &stop), None)
        }
    };
    let interrupted = matches!(&result, Err(error) if error.is::<Interrupted>());
    let (info, result) = match result {
        Ok(info) => (Some(info), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let mut outcome = Outcome::of(result, interrupted);
    trace::finish_job(sink.as_ref(), &mut outcome);
    Ok(Report { outcome, info })
}

/// Brings a device up, queries its attributes, and tears it down.
fn of_host<H: Host>(host: H, has_line: bool, stop: &Arc<AtomicBool>) -> Result<Info> {
    let mut device = Device::bring_up(host, stop)?;
    let name = device.host.name().to_string();
    let info = query(&name, &mut device, has_line, stop);
    let info = device.unless_stopped(info);
    let end = device.teardown();
    let info = info?;
    end?;
    Ok(info)
}

/// Returns whether an error of the wait for a port says only that the port is not active: `info` shows such a port as it is.
fn is_shown(error: &anyhow::Error) -> bool {
    type WaitError = WaitActiveError<bareverbs_mlx5::Error>;
    error.downcast_ref::<WaitError>().is_some_and(|error| !matches!(error, WaitError::Port { .. } | WaitError::Device(_)))
}

/// Queries the attributes of the device `name`.
fn query<H: Host>(name: &str, device: &mut Device<H>, has_line: bool, stop: &AtomicBool) -> Result<Info> {
    let count = device.verbs.query_device().phys_port_cnt;
    for port in 1..=count {
        if let Err(error) = device.active_port_within(SETTLE_TIME, port, has_line, stop)
            && !is_shown(&error)
        {
            return Err(error);
        }
    }
    let counted = device.verbs.provider().statistics();
    let used = Used {
        firmware_pages: counted.pages_held,
        driver_pages: counted.pages_used,
        qp: QUEUE_PAIRS,
        cq: COMPLETION_QUEUES,
        mr: REGIONS,
        mw: WINDOWS,
        pd: DOMAINS,
    };
    let attributes = DeviceAttributes::new(device.verbs.query_device(), device.host.pci_ids());
    let ports = (1..=attributes.phys_port_cnt).map(|port| port_info(&mut device.verbs, port)).collect::<Result<_>>()?;
    Ok(Info { hca_id: name.into(), transport: "InfiniBand", attributes, used, ports })
}

fn port_info<P: Platform + 'static>(verbs: &mut Verbs<P>, port: u8) -> Result<PortInfo> {
    let attr = verbs.query_port(port).with_context(|| format!("query_port {port}"))?;
    let is_ethernet = attr.link_layer == LinkLayer::Ethernet;
    let (mut gids, mut gids_failure) = (Vec::new(), None);
    for index in 0..attr.gid_tbl_len {
        let entry = match verbs.query_gid(port, index) {
            Ok(entry) => entry,
            Err(QueryError::Device(error @ Error::CommandStatus { .. })) if is_ethernet => {
                gids_failure = Some(error.to_string());
                break;
            }
            Err(error) => return Err(error).with_context(|| format!("query_gid {index} of port {port}")),
        };
        // An unused GID has the subnet prefix and an interface ID of zero.
        if entry.0.get(8..).is_some_and(|port| port.iter().any(|byte| *byte != 0)) {
            gids.push((index, gid(entry)));
        }
    }
    let mut pkeys = Vec::new();
    for index in 0..attr.pkey_tbl_len {
        let entry = verbs.query_pkey(port, index).with_context(|| format!("query_pkey {index} of port {port}"))?;
        if entry != 0 {
            pkeys.push((index, entry));
        }
    }
    let (state, state_code) = port_state(attr.state);
    Ok(PortInfo {
        port,
        state,
        state_code,
        phys_state: phys_state(attr.phys_state),
        phys_state_code: attr.phys_state.encoding(),
        max_mtu: attr.max_mtu.bytes(),
        active_mtu: attr.active_mtu.bytes(),
        sm_lid: attr.sm_lid.get(),
        port_lid: attr.lid.get(),
        port_lmc: attr.lmc,
        link_layer: if is_ethernet { "Ethernet" } else { "InfiniBand" },
        mac: is_ethernet.then(|| attr.mac.to_string()),
        port_cap_flags: attr.cap_mask,
        grh_required: attr.grh_required,
        gid_tbl_len: attr.gid_tbl_len,
        pkey_tbl_len: attr.pkey_tbl_len,
        active_width: attr.active_width,
        active_speed_gbps: attr.active_speed_gbps,
        port_guid: guid(attr.port_guid),
        gids,
        gids_failure,
        pkeys,
    })
}

/// Returns the code of an MTU (`ibv_mtu`).
fn mtu_code(bytes: u32) -> u32 {
    bytes.max(128).ilog2() - 7
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.as_ref().map_or(Ok(()), |info| info.fmt(f))
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attributes = &self.attributes;
        writeln!(f, "hca_id:\t{}", self.hca_id)?;
        let lines = [
            ("transport", format!("{} (0)", self.transport)),
            ("fw_ver", attributes.fw_ver.clone()),
            ("node_guid", attributes.node_guid.clone()),
            ("sys_image_guid", attributes.sys_image_guid.clone()),
            ("vendor_id", format!("{:#06x}", attributes.vendor_id)),
            ("vendor_part_id", attributes.vendor_part_id.to_string()),
            ("hw_ver", format!("{:#x}", attributes.hw_ver)),
            ("phys_port_cnt", attributes.phys_port_cnt.to_string()),
            ("max_mr_size", format!("{:#x}", attributes.max_mr_size)),
            ("page_size_cap", format!("{:#x}", attributes.page_size_cap)),
            ("max_qp", attributes.max_qp.to_string()),
            ("max_qp_wr", attributes.max_qp_wr.to_string()),
            ("max_sge", attributes.max_sge.to_string()),
            ("max_cq", attributes.max_cq.to_string()),
            ("max_cqe", attributes.max_cqe.to_string()),
            ("max_mr", attributes.max_mr.to_string()),
            ("max_pd", attributes.max_pd.to_string()),
            ("max_qp_rd_atom", attributes.max_qp_rd_atom.to_string()),
            ("max_qp_init_rd_atom", attributes.max_qp_init_rd_atom.to_string()),
            ("atomic_cap", if attributes.atomic_cap { "ATOMIC_HCA (1)" } else { "ATOMIC_NONE (0)" }.into()),
            ("max_mw", attributes.max_mw.to_string()),
            ("max_inline_data", attributes.max_inline_data.to_string()),
        ];
        for (name, value) in lines {
            writeln!(f, "\t{:<32}{value}", format!("{name}:"))?;
        }
        let Used { firmware_pages, driver_pages, qp, cq, mr, mw, pd } = &self.used;
        writeln!(f, "\tused by a job of this command:")?;
        let used = [
            ("firmware_pages", format!("{firmware_pages} of 4096 bytes")),
            ("driver_pages", format!("{driver_pages} of 4096 bytes")),
            ("qp", format!("{qp} of {}", attributes.max_qp)),
            ("cq", format!("{cq} of {}", attributes.max_cq)),
            ("mr", format!("{mr} of {}", attributes.max_mr)),
            ("mw", format!("{mw} of {}", attributes.max_mw)),
            ("pd", format!("{pd} of {}", attributes.max_pd)),
        ];
        for (name, value) in used {
            writeln!(f, "\t\t{:<24}{value}", format!("{name}:"))?;
        }
        self.ports.iter().try_for_each(|port| write_port(f, port, attributes.max_msg_sz))
    }
}

fn write_port(f: &mut fmt::Formatter<'_>, port: &PortInfo, max_msg_sz: u64) -> fmt::Result {
    writeln!(f, "\t\tport:\t{}", port.port)?;
    let lines = [
        ("state", format!("{} ({})", port.state, port.state_code)),
        ("phys_state", format!("{} ({})", port.phys_state, port.phys_state_code)),
        ("max_mtu", format!("{} ({})", port.max_mtu, mtu_code(port.max_mtu))),
        ("active_mtu", format!("{} ({})", port.active_mtu, mtu_code(port.active_mtu))),
        ("sm_lid", port.sm_lid.to_string()),
        ("port_lid", port.port_lid.to_string()),
        ("port_lmc", format!("{:#04x}", port.port_lmc)),
        ("link_layer", port.link_layer.into()),
        ("max_msg_sz", format!("{max_msg_sz:#x}")),
        ("port_cap_flags", format!("{:#010x}", port.port_cap_flags)),
        ("pkey_tbl_len", port.pkey_tbl_len.to_string()),
        ("gid_tbl_len", port.gid_tbl_len.to_string()),
        ("active_width", format!("{}X", port.active_width)),
        ("active_speed", format!("{} Gbps in all", port.active_speed_gbps)),
        ("port_guid", port.port_guid.clone()),
    ];
    for (name, value) in lines {
        writeln!(f, "\t\t\t{:<24}{value}", format!("{name}:"))?;
    }
    if let Some(mac) = &port.mac {
        writeln!(f, "\t\t\t{:<24}{mac}", "mac:")?;
    }
    if port.grh_required {
        writeln!(f, "\t\t\t{:<24}of every path", "grh_required:")?;
    }
    for (index, gid) in &port.gids {
        writeln!(f, "\t\t\tGID[{index:3}]:               {gid}")?;
    }
    if let Some(failure) = &port.gids_failure {
        writeln!(f, "\t\t\tGIDs:                   cannot be read: {failure}")?;
    }
    for (index, pkey) in &port.pkeys {
        writeln!(f, "\t\t\tPKEY[{index:3}]:              {pkey:#06x}")?;
    }
    writeln!(f)
}

#[cfg(test)]
mod tests {
    use bareverbs::GidEntry;
    use bareverbs_sim::DeviceConfig;
    use bareverbs_sim::fault::Fault;

    use super::*;
    use crate::device::ethernet::EntryArgs;

    #[test]
    fn a_port_that_is_down_is_shown_and_a_device_that_is_gone_is_not() {
        let world = World::new(WorldConfig::default());
        let host = Simulated::new(NAME, world.add(DeviceConfig { link_up: false, ..DeviceConfig::default() }).unwrap());
        let stop = Arc::default();
        let mut device = Device::bring_up(host, &stop).unwrap();
        let down = device.active_port_within(SETTLE_TIME, 1, false, &stop).unwrap_err();
        assert!(is_shown(&down), "{down:#}");
        assert_eq!(query(NAME, &mut device, false, &stop).unwrap().ports[0].state, "PORT_DOWN");
        // QUERY_HCA_VPORT_CONTEXT is not answered.
        device.host.inner().with_device(|device| device.faults_mut().arm(Fault::StuckCommand { opcode: 0x762 }));
        let gone = query(NAME, &mut device, false, &stop).unwrap_err();
        assert!(!is_shown(&gone), "{gone:#}");
        assert!(!is_shown(&Interrupted.into()));
    }

    #[test]
    fn an_ethernet_port_is_shown_with_its_addresses() {
        let host =
            Simulated::new(NAME, World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1).with_ethernet()).unwrap());
        let stop = Arc::default();
        let mut device = Device::bring_up(host, &stop).unwrap();
        let mac = device.verbs.query_port(1).unwrap().mac;
        device.verbs.set_gid(1, 3, &GidEntry::new([192, 0, 2, 7], mac)).unwrap();
        let info = query(NAME, &mut device, false, &stop).unwrap();
        let port = &info.ports[0];
        assert_eq!((port.link_layer, port.state, port.active_mtu), ("Ethernet", "PORT_ACTIVE", 1024));
        assert_eq!(port.gids, [(3, "0000:0000:0000:0000:0000:ffff:c000:0207".to_string())]);
        assert!(info.to_string().contains(&format!("mac:                    {mac}\n")), "{info}");
        // No other driver sends QUERY_ROCE_ADDRESS to a card, and the only P_Key is known.
        device.host.inner().with_device(|device| {
            for opcode in [0x760, 0x765] {
                device.faults_mut().arm(Fault::CommandStatus { opcode, status: 2, syndrome: 7 });
            }
        });
        let info = query(NAME, &mut device, false, &stop).unwrap();
        assert_eq!((info.ports[0].gids.len(), &info.ports[0].pkeys[..]), (0, &[(0, 0xffff)][..]));
        assert!(info.to_string().contains("GIDs:                   cannot be read: QUERY_ROCE_ADDRESS "), "{info}");
        device.host.inner().with_device(|device| {
            device.faults_mut().arm(Fault::CommandStatus { opcode: 0x760, status: 2, syndrome: 7 });
        });
        let port = device.verbs.query_port(1).unwrap();
        let local = device.local_gid(1, &port, Some(0), EntryArgs::default());
        assert_eq!(local.unwrap(), bareverbs::Gid::link_local(mac), "nor is it asked for what was just set");
    }

    #[test]
    fn codes_of_mtus_are_those_of_ibv_devinfo() {
        assert_eq!((mtu_code(256), mtu_code(4096)), (1, 5));
    }
}
