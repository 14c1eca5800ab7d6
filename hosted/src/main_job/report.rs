//! What the main job found and did: one structure, printed as text or as JSON.

use std::fmt;

use serde::Serialize;

/// The whole report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Whether everything was done and right.
    pub ok: bool,
    /// Whether it was stopped before its end (Ctrl-C).
    pub interrupted: bool,
    /// What went wrong, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The choices.
    pub options: Options,
    /// The two devices.
    pub devices: Vec<Device>,
    /// The memory window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// What was moved.
    pub transfers: Vec<Transfer>,
    /// The attempt with the old key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// What happened on the wire.
    pub wire: Wire,
    /// The end of each device.
    pub teardown: Vec<Teardown>,
    /// Time of the whole, by the wall clock, in seconds.
    pub seconds: f64,
    /// The same in the devices' time.
    pub simulated_seconds: f64,
}

/// The choices of the command line.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Options {
    /// Messages of each kind and iteration.
    pub messages: u32,
    /// Bytes of a message.
    pub size: u32,
    /// How often all kinds were run.
    pub iterations: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Seed.
    pub seed: u64,
    /// Loss in per cent.
    pub loss: f64,
    /// Duplication in per cent.
    pub duplicate: f64,
    /// Reordering in per cent.
    pub reorder: f64,
    /// Delay in per cent.
    pub delay: f64,
}

/// A device as it was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Device {
    /// Name of the device here.
    pub name: String,
    /// Firmware version.
    pub firmware: String,
    /// GUID of the node.
    pub node_guid: String,
    /// Part number of the vendor.
    pub vendor_part_id: u32,
    /// Limits that the job looks at.
    pub limits: Limits,
    /// Port 1.
    pub port: Port,
    /// Firmware commands to bring it up.
    pub commands: u64,
    /// Pages that the firmware asked for and has.
    pub firmware_pages: u64,
    /// Seconds by the wall clock to bring it up.
    pub seconds: f64,
}

/// Limits of a device.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests of a work queue.
    pub max_qp_wr: u32,
    /// SGEs of a request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions of a queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Bytes of a message.
    pub max_msg_size: u64,
    /// Bytes of an inline payload.
    pub max_inline_data: u32,
    /// Whether 8-byte atomics are done.
    pub atomics: bool,
}

/// A port as it was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Port {
    /// State.
    pub state: String,
    /// LID.
    pub lid: u16,
    /// MTU in use, in bytes.
    pub mtu: u32,
    /// GID 0.
    pub gid: String,
}

/// A memory window through which the peer reached a region.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Window {
    /// Bytes of the window.
    pub length: u64,
    /// Key when allocated.
    pub first_rkey: u32,
    /// Key that the first bind gave.
    pub bound_rkey: u32,
}

/// Messages of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Transfer {
    /// Kind.
    pub what: &'static str,
    /// Messages that arrived and were checked.
    pub messages: u64,
    /// Their bytes, each compared.
    pub bytes: u64,
    /// Seconds by the wall clock.
    pub seconds: f64,
    /// Seconds in the devices' time.
    pub simulated_seconds: f64,
    /// Messages a second by the wall clock.
    pub messages_per_second: f64,
    /// Million bytes a second by the wall clock.
    pub megabytes_per_second: f64,
    /// Times that a requester went back and sent again.
    pub retries: u64,
}

impl Transfer {
    /// Adds another run of the same kind.
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        self.simulated_seconds += other.simulated_seconds;
        self.retries += other.retries;
        *self = std::mem::take(self).finish();
    }

    /// Works the rates out.
    pub fn finish(mut self) -> Self {
        if self.seconds > 0.0 {
            // Counts stay far below 2^52.
            self.messages_per_second = self.messages as f64 / self.seconds;
            self.megabytes_per_second = self.bytes as f64 / self.seconds / 1e6;
        }
        self
    }
}

/// The attempt to write with the key that a window had before.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Refused {
    /// The old key.
    pub old_rkey: u32,
    /// The key that a new bind gave.
    pub new_rkey: u32,
    /// Attempts; more than one only on a wire that lost the refusal.
    pub attempts: u32,
    /// Status of the completion.
    pub status: String,
    /// The device's own code.
    pub vendor_err: u8,
    /// Whether the memory is as it was.
    pub memory_untouched: bool,
    /// Whether the queue pairs went through RESET to RTS and the new key worked.
    pub recovered: bool,
}

/// What happened on the wire.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Wire {
    /// Packets sent.
    pub sent: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets sent twice.
    pub duplicated: u64,
    /// Packets overtaken.
    pub reordered: u64,
    /// Packets delayed.
    pub delayed: u64,
}

/// How a device ended.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Teardown {
    /// Name of the device here.
    pub name: String,
    /// Firmware commands in all.
    pub commands: u64,
    /// Pages that the firmware was given.
    pub pages_given: u64,
    /// Pages that came back.
    pub pages_back: u64,
    /// What the device found wrong with the driver.
    pub findings: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.devices {
            write_device(f, device)?;
        }
        if let Some(window) = &self.window {
            writeln!(
                f,
                "window    {} bytes, rkey {:#010x} when allocated, {:#010x} when bound",
                window.length, window.first_rkey, window.bound_rkey
            )?;
        }
        if !self.transfers.is_empty() {
            write_transfers(f, &self.transfers)?;
        }
        if let Some(refused) = &self.refused {
            write_refused(f, refused)?;
        }
        let wire = &self.wire;
        if wire.sent > 0 {
            writeln!(
                f,
                "wire      {} packets sent, {} delivered; {} lost, {} duplicated, {} reordered, {} delayed",
                wire.sent, wire.delivered, wire.lost, wire.duplicated, wire.reordered, wire.delayed
            )?;
        }
        for end in &self.teardown {
            writeln!(
                f,
                "{:<9} torn down after {} firmware commands; {} of {} firmware pages are back",
                end.name, end.commands, end.pages_back, end.pages_given
            )?;
            for finding in &end.findings {
                writeln!(f, "{:<9} driver mistake: {finding}", end.name)?;
            }
        }
        let bytes: u64 = self.transfers.iter().map(|transfer| transfer.bytes).sum();
        let messages: u64 = self.transfers.iter().map(|transfer| transfer.messages).sum();
        match &self.failure {
            Some(failure) => writeln!(f, "FAILED: {failure}"),
            None if self.interrupted => writeln!(f, "interrupted: {messages} messages, {bytes} bytes until then, all as sent"),
            None => writeln!(
                f,
                "ok: {messages} messages, {bytes} bytes, every byte verified, in {:.2} s ({:.3} ms in the devices' time)",
                self.seconds,
                self.simulated_seconds * 1e3
            ),
        }
    }
}

fn write_device(f: &mut fmt::Formatter<'_>, device: &Device) -> fmt::Result {
    let (name, port, limits) = (&device.name, &device.port, &device.limits);
    writeln!(
        f,
        "{name:<9} firmware {}, node GUID {}, up after {} commands, {} firmware pages",
        device.firmware, device.node_guid, device.commands, device.firmware_pages
    )?;
    writeln!(f, "{:<9} port 1 {}, LID {}, MTU {}, GID {}", "", port.state, port.lid, port.mtu, port.gid)?;
    writeln!(
        f,
        "{:<9} limits: {} QP of {} requests, {} SGE, {} CQ of {}, {} MR, {} MW, messages of {} bytes, atomics {}",
        "",
        limits.max_qp,
        limits.max_qp_wr,
        limits.max_sge,
        limits.max_cq,
        limits.max_cqe,
        limits.max_mr,
        limits.max_mw,
        limits.max_msg_size,
        if limits.atomics { "yes" } else { "no" }
    )
}

fn write_transfers(f: &mut fmt::Formatter<'_>, transfers: &[Transfer]) -> fmt::Result {
    writeln!(f)?;
    writeln!(
        f,
        "{:<28} {:>9} {:>13} {:>9} {:>11} {:>9} {:>8}",
        "operation", "messages", "bytes", "seconds", "messages/s", "MB/s", "retries"
    )?;
    for transfer in transfers {
        writeln!(
            f,
            "{:<28} {:>9} {:>13} {:>9.3} {:>11.0} {:>9.1} {:>8}",
            transfer.what,
            transfer.messages,
            transfer.bytes,
            transfer.seconds,
            transfer.messages_per_second,
            transfer.megabytes_per_second,
            transfer.retries
        )?;
    }
    writeln!(f, "(by the wall clock, making and comparing the data included)")?;
    writeln!(f)
}

fn write_refused(f: &mut fmt::Formatter<'_>, refused: &Refused) -> fmt::Result {
    writeln!(
        f,
        "old rkey  {:#010x} refused after a new bind gave {:#010x}: {} (vendor {:#x}), memory {}",
        refused.old_rkey,
        refused.new_rkey,
        refused.status,
        refused.vendor_err,
        if refused.memory_untouched { "untouched" } else { "CHANGED" }
    )?;
    if refused.recovered {
        writeln!(f, "{:<9} both queue pairs taken through RESET to RTS, the new rkey works", "")?;
    }
    Ok(())
}
