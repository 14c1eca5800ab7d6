//! The report of the self-test, printed as text or as JSON.

use std::fmt;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::device::attributes::{self, DeviceAttributes};
use crate::device::{Device, Host};
use crate::outcome::Outcome;

use super::end::first_gid;

/// Report of the self-test.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// How it ended; `ok` says that all operations succeeded.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Options of the command line.
    pub options: Options,
    /// The devices: one for each end, or one for both.
    pub devices: Vec<DeviceReport>,
    /// The memory window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Messages of each operation.
    pub transfers: Vec<Transfer>,
    /// The write with a stale rkey.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// Packet counts of a simulated wire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// Teardown of each device.
    pub teardown: Vec<Teardown>,
    /// Duration by the wall clock, in seconds.
    pub seconds: f64,
    /// Duration in simulated time, in seconds, if the devices are simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated_seconds: Option<f64>,
}

/// Options of the command line.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Options {
    /// Messages of each operation and iteration.
    pub messages: u32,
    /// Bytes of a message.
    pub size: u32,
    /// Repetitions of all operations.
    pub iterations: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Seed.
    pub seed: u64,
    /// Loss in per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Duplication in per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<f64>,
    /// Reordering in per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<f64>,
    /// Delay in per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<f64>,
}

/// Attributes of a device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceReport {
    /// PCI address, or name of a simulated device.
    pub name: String,
    /// Attributes, with the keys of `bareverbs info`.
    #[serde(flatten)]
    pub attributes: DeviceAttributes,
    /// Port 1.
    pub port: Port,
    /// Firmware commands of the bring-up.
    pub commands: u64,
    /// Pages that the firmware holds.
    pub firmware_pages: u64,
    /// Duration of the bring-up by the wall clock, in seconds.
    pub seconds: f64,
}

impl DeviceReport {
    /// Reads the attributes of a device that is up. `seconds` is left 0.
    ///
    /// # Errors
    /// A query failed.
    pub(super) fn new<H: Host>(device: &mut Device<H>) -> Result<Self> {
        let port = Port::query(device)?;
        let Device { host, verbs, .. } = device;
        let counted = verbs.provider().statistics();
        Ok(Self {
            name: host.name().into(),
            attributes: DeviceAttributes::new(verbs.query_device(), host.pci_ids()),
            port,
            commands: counted.commands.into(),
            firmware_pages: counted.pages_held.into(),
            seconds: 0.0,
        })
    }
}

/// Attributes of a port.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Port {
    /// State.
    pub state: String,
    /// LID.
    pub port_lid: u16,
    /// Active MTU in bytes.
    pub active_mtu: u32,
    /// GID 0.
    pub gid: String,
}

impl Port {
    /// Reads the attributes of port 1 as they are now.
    ///
    /// # Errors
    /// A query failed.
    pub(super) fn query<H: Host>(device: &mut Device<H>) -> Result<Self> {
        let port = device.verbs.query_port(1).with_context(|| format!("query_port 1 of {}", device.host.name()))?;
        let first_gid = first_gid(device, &port).with_context(|| device.host.name().to_string())?;
        Ok(Self {
            state: attributes::port_state(port.state).0.into(),
            port_lid: port.lid.get(),
            active_mtu: port.active_mtu.bytes(),
            gid: attributes::gid(first_gid),
        })
    }
}

/// The memory window through which the client accesses the server's region.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Window {
    /// Length of the window in bytes.
    pub length: u64,
    /// rkey after the allocation.
    pub first_rkey: u32,
    /// rkey after the first bind.
    pub bound_rkey: u32,
}

/// Messages of one operation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Transfer {
    /// Name of the operation.
    pub what: &'static str,
    /// Messages that arrived and were verified.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Duration by the wall clock, in seconds.
    pub seconds: f64,
    /// Duration in simulated time, in seconds, if the devices are simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated_seconds: Option<f64>,
    /// Messages per second by the wall clock.
    pub messages_per_second: f64,
    /// Megabytes (10^6 bytes) per second by the wall clock.
    pub megabytes_per_second: f64,
    /// Retries of the requesters, if the devices report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u64>,
}

impl Transfer {
    /// Adds another run of the same operation.
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        self.simulated_seconds = self.simulated_seconds.zip(other.simulated_seconds).map(|(a, b)| a + b);
        self.retries = self.retries.zip(other.retries).map(|(a, b)| a + b);
        *self = std::mem::take(self).finish();
    }

    /// Calculates the rates.
    pub fn finish(mut self) -> Self {
        if self.seconds > 0.0 {
            // Counts are far below 2^52, so the conversion is exact.
            self.messages_per_second = self.messages as f64 / self.seconds;
            self.megabytes_per_second = self.bytes as f64 / self.seconds / 1e6;
        }
        self
    }
}

/// The RDMA write with a stale rkey of the window.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Refused {
    /// The stale rkey.
    pub old_rkey: u32,
    /// The rkey of the new bind.
    pub new_rkey: u32,
    /// Number of attempts. It is above 1 only if the wire lost the NAK.
    pub attempts: u32,
    /// Status of the completion.
    pub status: String,
    /// Vendor error of the completion.
    pub vendor_err: u8,
    /// Whether the memory is unchanged.
    pub memory_untouched: bool,
    /// Whether a write with the new rkey succeeded after the queue pairs went from RESET to RTS.
    pub recovered: bool,
}

/// Packet counts of the wire.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Wire {
    /// Packets sent.
    pub sent: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets reordered.
    pub reordered: u64,
    /// Packets delayed.
    pub delayed: u64,
}

/// Teardown of a device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Teardown {
    /// PCI address, or name of a simulated device.
    pub name: String,
    /// Total number of firmware commands.
    pub commands: u64,
    /// Pages given to the firmware.
    pub pages_given: u64,
    /// Pages that the firmware returned.
    pub pages_back: u64,
    /// Driver mistakes that the device detected, if it reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub findings: Option<Vec<String>>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.devices.iter().map(|device| device.name.len()).max().unwrap_or_default().max(9);
        for device in &self.devices {
            write_device(f, device, width)?;
        }
        if let [device] = self.devices.as_slice() {
            let address = match device.port.port_lid {
                // An Ethernet port has none.
                0 => "the port's own address".into(),
                lid => format!("LID {lid}"),
            };
            writeln!(f, "{:<width$} both sides, looped back through {address}", "")?;
        }
        if let Some(window) = &self.window {
            writeln!(
                f,
                "{:<width$} {} bytes, rkey {:#010x} when allocated, {:#010x} when bound",
                "window", window.length, window.first_rkey, window.bound_rkey
            )?;
        }
        if !self.transfers.is_empty() {
            write_transfers(f, &self.transfers)?;
        }
        if let Some(refused) = &self.refused {
            write_refused(f, refused, width)?;
        }
        if let Some(wire) = self.wire.filter(|wire| wire.sent > 0) {
            writeln!(
                f,
                "{:<width$} {} packets sent, {} delivered; {} lost, {} duplicated, {} reordered, {} delayed",
                "wire", wire.sent, wire.delivered, wire.lost, wire.duplicated, wire.reordered, wire.delayed
            )?;
        }
        for end in &self.teardown {
            writeln!(
                f,
                "{:<width$} torn down after {} firmware commands; {} of {} firmware pages are back",
                end.name, end.commands, end.pages_back, end.pages_given
            )?;
            for finding in end.findings.iter().flatten() {
                writeln!(f, "{:<width$} driver mistake: {finding}", end.name)?;
            }
        }
        let bytes: u64 = self.transfers.iter().map(|transfer| transfer.bytes).sum();
        let messages: u64 = self.transfers.iter().map(|transfer| transfer.messages).sum();
        match &self.outcome.failure {
            // The reason is on standard error.
            Some(_) => writeln!(f, "FAILED"),
            None if self.outcome.interrupted => {
                writeln!(f, "interrupted: {messages} messages, {bytes} bytes until then, all as sent")
            }
            None => {
                write!(f, "ok: {messages} messages, {bytes} bytes, every byte verified, in {:.2} s", self.seconds)?;
                match self.simulated_seconds {
                    Some(seconds) => writeln!(f, " ({:.3} ms in the devices' time)", seconds * 1e3),
                    None => writeln!(f),
                }
            }
        }
    }
}

fn write_device(f: &mut fmt::Formatter<'_>, device: &DeviceReport, width: usize) -> fmt::Result {
    let (name, port, attributes) = (&device.name, &device.port, &device.attributes);
    writeln!(
        f,
        "{name:<width$} firmware {}, node GUID {}, up after {} commands, {} firmware pages",
        attributes.fw_ver, attributes.node_guid, device.commands, device.firmware_pages
    )?;
    writeln!(f, "{:<width$} port 1 {}, LID {}, MTU {}, GID {}", "", port.state, port.port_lid, port.active_mtu, port.gid)?;
    writeln!(
        f,
        "{:<width$} limits: {} QP of {} requests, {} SGE, {} CQ of {}, {} MR, {} MW, messages of {} bytes, atomics {}",
        "",
        attributes.max_qp,
        attributes.max_qp_wr,
        attributes.max_sge,
        attributes.max_cq,
        attributes.max_cqe,
        attributes.max_mr,
        attributes.max_mw,
        attributes.max_msg_sz,
        if attributes.atomic_cap { "yes" } else { "no" }
    )
}

fn write_transfers(f: &mut fmt::Formatter<'_>, transfers: &[Transfer]) -> fmt::Result {
    let has_retries = transfers.iter().any(|transfer| transfer.retries.is_some());
    writeln!(f)?;
    write!(f, "{:<28} {:>9} {:>13} {:>9} {:>11} {:>9}", "operation", "messages", "bytes", "seconds", "messages/s", "MB/s")?;
    writeln!(f, "{}", if has_retries { "  retries" } else { "" })?;
    for transfer in transfers {
        write!(
            f,
            "{:<28} {:>9} {:>13} {:>9.3} {:>11.0} {:>9.1}",
            transfer.what,
            transfer.messages,
            transfer.bytes,
            transfer.seconds,
            transfer.messages_per_second,
            transfer.megabytes_per_second
        )?;
        match transfer.retries {
            Some(retries) => writeln!(f, " {retries:>8}")?,
            None => writeln!(f)?,
        }
    }
    writeln!(f, "(by the wall clock, making and comparing the data included)")?;
    writeln!(f)
}

fn write_refused(f: &mut fmt::Formatter<'_>, refused: &Refused, width: usize) -> fmt::Result {
    writeln!(
        f,
        "{:<width$} {:#010x} refused after a new bind gave {:#010x}: {} (vendor {:#x}), memory {}",
        "old rkey",
        refused.old_rkey,
        refused.new_rkey,
        refused.status,
        refused.vendor_err,
        if refused.memory_untouched { "untouched" } else { "CHANGED" }
    )?;
    if refused.recovered {
        writeln!(f, "{:<width$} both queue pairs taken through RESET to RTS, the new rkey works", "")?;
    }
    Ok(())
}
