//! The trace: one line for each action of a simulated device, with the names of all fields.
//!
//! A line is `seconds device kind …`; fields are `name=value`, and fields that are zero are left out.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bareverbs::Mac;
use bareverbs::platform::Instant;
use bareverbs_decode::field_printer::{self, FieldValue, Value};
use bareverbs_decode::send::Transport;
use bareverbs_decode::{Decoded, Severity, command, completion, event, receive};
use bareverbs_mlx5_spec::{
    CmdOpcode, CmdOut, CmdStatus, CqArm, CreateQpIn, CreateQpOut, EqDoorbell, Layout, LayoutInfo, Qpc, QpcSt, UAR_BLUEFLAME,
    UAR_CQ_ARM, UAR_EQ_ARM, UAR_EQ_UPDATE, View, WqeCtrlSeg,
};
use bareverbs_sim::PortKind;
use bareverbs_sim::packet::{CongestionNotification, Packet, PacketFields};
use bareverbs_sim::trace::{Record, Tracer};

use crate::device_check::decode_send;
use crate::line_writer::{WhenFull, Writer};

/// Timeout of [`Sink::finish`] for an output that does not accept data.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// The outputs of the trace, shared by all devices. A clone writes to the same outputs.
#[derive(Clone)]
pub struct Sink {
    outputs: Outputs,
}

#[derive(Clone)]
enum Outputs {
    /// The calling thread writes each line.
    Direct(Arc<Mutex<SinkState>>),
    /// Writer threads write the lines, one for each output.
    Queued(Arc<[Writer]>),
}

struct SinkState {
    /// Without the pipes whose readers have closed their ends.
    outputs: Vec<Box<dyn Write + Send>>,
    failed: Option<io::Error>,
}

impl SinkState {
    /// Calls `act` for each output, and removes those that fail.
    fn each(&mut self, mut act: impl FnMut(&mut dyn Write) -> io::Result<()>) {
        let Self { outputs, failed } = self;
        outputs.retain_mut(|output| match act(output) {
            Ok(()) => true,
            Err(error) => {
                if error.kind() != io::ErrorKind::BrokenPipe {
                    failed.get_or_insert(error);
                }
                false
            }
        });
    }
}

impl Sink {
    /// Creates a sink that writes to standard error, a file, or both, on separate threads.
    ///
    /// Lines that a terminal or a pipe does not accept in time are dropped and counted. No line for a file is dropped: a device
    /// whose queue of lines is full waits for the file.
    ///
    /// # Errors
    /// The file or a thread could not be created.
    pub fn queued(to_stderr: bool, file: Option<&Path>) -> io::Result<Self> {
        let when_full = |is_file: bool| if is_file { WhenFull::Wait } else { WhenFull::Drop };
        let mut writers = Vec::new();
        if to_stderr {
            let is_file = File::from(io::stderr().as_fd().try_clone_to_owned()?).metadata()?.is_file();
            writers.push(Writer::new("trace", Box::new(io::stderr()), when_full(is_file))?);
        }
        if let Some(path) = file {
            let file = File::create(path)?;
            let is_file = file.metadata()?.is_file();
            writers.push(Writer::new("trace-file", Box::new(file), when_full(is_file))?);
        }
        Ok(Self { outputs: Outputs::Queued(writers.into()) })
    }

    /// Creates a sink to each of `outputs`, to which the calling thread writes each line.
    pub fn new(outputs: Vec<Box<dyn Write + Send>>) -> Self {
        Self { outputs: Outputs::Direct(Arc::new(Mutex::new(SinkState { outputs, failed: None }))) }
    }

    /// Returns a sink to the same outputs with a separate queue of lines, for another device.
    pub fn for_source(&self) -> Self {
        let outputs = match &self.outputs {
            Outputs::Direct(state) => Outputs::Direct(Arc::clone(state)),
            Outputs::Queued(writers) => Outputs::Queued(writers.iter().map(Writer::for_source).collect()),
        };
        Self { outputs }
    }

    fn line(&self, line: &str) {
        let state = match &self.outputs {
            Outputs::Direct(state) => state,
            Outputs::Queued(writers) => return writers.iter().for_each(|writer| writer.line(line.into())),
        };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.each(|output| writeln!(output, "{line}"));
    }

    /// Returns whether the lines of one turn of a device can be queued without waiting for a file.
    pub fn has_room(&self) -> bool {
        match &self.outputs {
            Outputs::Direct(_) => true,
            Outputs::Queued(writers) => writers.iter().all(Writer::has_room),
        }
    }

    /// Returns the number of lines dropped so far because an output did not accept them in time.
    pub fn dropped(&self) -> u64 {
        match &self.outputs {
            Outputs::Direct(_) => 0,
            Outputs::Queued(writers) => writers.iter().map(Writer::dropped).sum(),
        }
    }

    /// Flushes the outputs.
    ///
    /// # Errors
    /// The first error of an output, or [`io::ErrorKind::TimedOut`] if one accepts no data for five seconds.
    pub fn finish(&self) -> io::Result<()> {
        match &self.outputs {
            Outputs::Direct(state) => {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.each(|output| output.flush());
                state.failed.take().map_or(Ok(()), Err)
            }
            Outputs::Queued(writers) => writers.iter().try_for_each(|writer| writer.finish(FINISH_TIMEOUT)),
        }
    }
}

/// Writes the actions of one device to a [`Sink`].
pub struct Printer {
    device: String,
    /// What the frames of its port are.
    port: PortKind,
    sink: Sink,
    /// Transport of each queue pair, from CREATE_QP: the layout of a WQE depends on it.
    transports: HashMap<u32, Transport>,
}

impl Printer {
    /// Creates a printer for the device called `device`, with such a port.
    pub fn new(device: impl Into<String>, port: PortKind, sink: Sink) -> Self {
        Self { device: device.into(), port, sink, transports: HashMap::new() }
    }

    fn learn(&mut self, input: &[u8], output: &[u8]) {
        if command::opcode(input) != Some(CmdOpcode::CreateQp.code()) {
            return;
        }
        let (Some(input), Some(output)) = (View::<CreateQpIn>::new(input), View::<CreateQpOut>::new(output)) else { return };
        let transport = match QpcSt::from_code(input.sub(CreateQpIn::QPC).get(Qpc::ST)) {
            Some(QpcSt::Uc) => Transport::Uc,
            Some(QpcSt::Ud | QpcSt::Qp0 | QpcSt::Qp1) => Transport::Ud,
            Some(QpcSt::Xrc) => Transport::Xrc,
            _ => Transport::Rc,
        };
        self.transports.insert(output.get(CreateQpOut::QPN), transport);
    }

    fn body(&self, record: Record<'_>) -> String {
        match record {
            Record::Command { slot, input, output } => format!("command   slot={slot} {}", command_line(input, output)),
            Record::Doorbell { uar, offset, bytes } => format!("doorbell  {}", doorbell_line(uar, offset, bytes)),
            Record::SendWqe { qpn, index, bytes } => {
                let transport = self.transports.get(&qpn).copied().unwrap_or_default();
                let decoded = decode_send(bytes, transport);
                format!("send-wqe  qpn={qpn:#x} index={index:#x}{}", compact(&decoded))
            }
            Record::RecvWqe { qpn, index, bytes } => {
                format!("recv-wqe  qpn={qpn:#x} index={index:#x}{}", compact(&receive::decode(bytes, false)))
            }
            Record::Cqe { cqn, index, bytes } => {
                format!("cqe       cqn={cqn:#x} index={index:#x}{}", compact(&completion::decode(bytes, 0)))
            }
            Record::Eqe { eqn, index, bytes } => {
                format!("eqe       eqn={eqn:#x} index={index:#x}{}", compact(&event::decode(bytes, 0)))
            }
            Record::Interrupt { vector } => format!("interrupt vector={vector}"),
            Record::Sent { bytes } => format!("sent      {}", frame_line(self.port, bytes)),
            Record::Received { bytes } => format!("received  {}", frame_line(self.port, bytes)),
            Record::Note(note) => format!("note      {note}"),
            other => format!("{other:?}"),
        }
    }
}

impl Tracer for Printer {
    fn record(&mut self, now: Instant, record: Record<'_>) {
        if let Record::Command { input, output, .. } = record {
            self.learn(input, output);
        }
        let (seconds, nanos) = (now.as_nanos() / 1_000_000_000, now.as_nanos() % 1_000_000_000);
        let body = self.body(record);
        self.sink.line(&format!("{seconds}.{nanos:09} {} {body}", self.device));
    }
}

fn command_line(input: &[u8], output: &[u8]) -> String {
    let name = command::opcode(input).map_or_else(|| "(no opcode)".into(), command::name);
    let mut line = name;
    match View::<CmdOut>::new(output) {
        Some(view) => {
            let status = view.get(CmdOut::STATUS);
            match CmdStatus::from_code(status) {
                Some(status) => line.push_str(&format!(" {}", status.name())),
                None => line.push_str(&format!(" status={status:#x}")),
            }
        }
        None => line.push_str(" (no output)"),
    }
    append(&mut line, " in:", &command::input_fields(input), &["opcode"]);
    append(&mut line, " out:", &command::output_fields(input, output), &["status"]);
    line
}

/// Bytes from one half of a BlueFlame register to the next.
const BLUEFLAME_HALF: usize = 0x100;

fn doorbell_line(uar: u32, offset: usize, bytes: &[u8]) -> String {
    let (name, layout): (_, &LayoutInfo) = match offset {
        UAR_CQ_ARM => ("cq-arm", &CqArm::INFO),
        UAR_EQ_ARM => ("eq-arm", &EqDoorbell::INFO),
        UAR_EQ_UPDATE => ("eq-update", &EqDoorbell::INFO),
        // The first 8 bytes of a BlueFlame register are followed by a copy of the WQE, which is printed when it is fetched.
        UAR_BLUEFLAME.. if !offset.is_multiple_of(BLUEFLAME_HALF) => {
            return format!("copy uar={uar:#x} offset={offset:#x} bytes={}", field_printer::hex(bytes));
        }
        UAR_BLUEFLAME.. => ("send", &WqeCtrlSeg::INFO),
        _ => ("unknown", &EqDoorbell::INFO),
    };
    let mut line = format!("{name} uar={uar:#x} offset={offset:#x}");
    append(&mut line, "", &field_printer::read(layout, bytes, 0), &[]);
    line
}

fn frame_line(port: PortKind, bytes: &[u8]) -> String {
    let decoded = match port {
        PortKind::InfiniBand => Packet::decode(bytes),
        PortKind::Ethernet { .. } => Packet::decode_roce_v2(bytes),
    };
    match (decoded, port) {
        (Ok(packet), _) => PacketFields(&packet).to_string(),
        (Err(error), PortKind::InfiniBand) => format!("{} bytes that are no packet: {error}", bytes.len()),
        (Err(error), PortKind::Ethernet { .. }) => {
            let what = match CongestionNotification::decode(bytes) {
                Ok(notification) => format!("congestion notification DestQP={:#x}", notification.dest_qpn),
                Err(_) => format!("no RoCEv2: {error}"),
            };
            format!("{} | {what}", ethernet_header(bytes))
        }
    }
}

/// Returns addresses, type and length of an Ethernet frame.
fn ethernet_header(frame: &[u8]) -> String {
    let Some((header, _)) = frame.split_first_chunk::<14>() else { return format!("{} bytes", frame.len()) };
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
    let (to, from) = (Mac([d0, d1, d2, d3, d4, d5]), Mac([s0, s1, s2, s3, s4, s5]));
    format!("Ethernet Dst={to} Src={from} Type={:#06x} bytes={}", u16::from_be_bytes([t0, t1]), frame.len())
}

/// Returns a decoded structure in one line.
fn compact(decoded: &Decoded) -> String {
    let mut line = format!(" {}", decoded.title.split(',').next().unwrap_or_default());
    for section in &decoded.sections {
        if section.layout.is_empty() {
            continue;
        }
        let name = section.layout.strip_prefix("mlx5_").unwrap_or(section.layout);
        let name = name.strip_prefix("wqe_").unwrap_or(name);
        let name = name.strip_suffix("_seg").unwrap_or(name);
        append(&mut line, &format!(" | {name}"), &section.fields, &[]);
    }
    for finding in decoded.findings.iter().filter(|finding| finding.severity > Severity::Note) {
        // Writing to a string cannot fail.
        let _ = write!(line, " | {} at {:#x}: {}", finding.severity, finding.offset, finding.text);
    }
    line
}

/// Appends `head` and the fields that are not zero; nothing if all are zero.
fn append(line: &mut String, head: &str, fields: &[FieldValue], except: &[&str]) {
    let mut shown = fields.iter().filter(|field| !field.value.is_zero() && !except.contains(&field.name.as_str())).peekable();
    if shown.peek().is_some() {
        line.push_str(head);
    }
    for field in shown {
        let value = short(&field.value);
        let meaning = field.meaning.as_deref().filter(|meaning| !meaning.contains(' '));
        // Writing to a string cannot fail.
        let _ = match meaning {
            Some(meaning) => write!(line, " {}={value}({meaning})", field.name),
            None => write!(line, " {}={value}", field.name),
        };
    }
}

/// Returns a value, abbreviated to fit in a line.
fn short(value: &Value) -> String {
    const DIGITS: usize = 32;
    const ENTRIES: usize = 4;
    match value {
        Value::Number { .. } => value.to_string(),
        Value::Bytes { bytes, .. } => match bytes.get(..DIGITS) {
            Some(first) if bytes.len() > DIGITS => format!("{first}..({} bytes)", bytes.len() / 2),
            _ => bytes.clone(),
        },
        Value::Entries { entries } => match entries.get(..ENTRIES) {
            Some(first) if entries.len() > ENTRIES => format!("[{},..({} in all)]", first.join(","), entries.len()),
            _ => value.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_buffer::Buffer;

    fn lines(records: &[Record<'_>]) -> Vec<String> {
        lines_of(PortKind::InfiniBand, records)
    }

    fn lines_of(port: PortKind, records: &[Record<'_>]) -> Vec<String> {
        let buffer = Buffer::default();
        let sink = Sink::new(vec![Box::new(buffer.clone())]);
        let mut printer = Printer::new("a", port, sink.clone());
        for record in records {
            printer.record(Instant::from_nanos(1_000_000_042), *record);
        }
        sink.finish().unwrap();
        let text = String::from_utf8(buffer.bytes()).unwrap();
        text.lines().map(String::from).collect()
    }

    #[test]
    fn a_command_shows_fields_that_are_not_zero() {
        let input = [0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let output = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0];
        let refused = [0x0f, 0, 0, 0, 0, 0, 0xab, 0xcd, 0, 0, 0, 0, 0, 0, 0, 0];
        let got = lines(&[
            Record::Command { slot: 3, input: &input, output: &output },
            Record::Command { slot: 3, input: &input, output: &refused },
        ]);
        assert_eq!(
            got,
            [
                "1.000000042 a command   slot=3 ALLOC_PD OK out: pd=0x9",
                "1.000000042 a command   slot=3 ALLOC_PD NO_RES_ERR out: syndrome=0xabcd",
            ]
        );
    }

    #[test]
    fn a_doorbell_and_a_wqe_show_their_fields() {
        let write = [
            0, 0, 3, 8, 0, 0, 0x4b, 3, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x22, 0x33, 0, 0, 0, 0, 0, 0,
            0, 64, 0, 0, 0x44, 0x55, 0, 0, 0, 0, 0, 0, 0x20, 0,
        ];
        let got = lines(&[
            Record::Doorbell { uar: 5, offset: 0x800, bytes: &write[..8] },
            Record::SendWqe { qpn: 0x4b, index: 3, bytes: &write },
        ]);
        assert_eq!(
            got,
            [
                "1.000000042 a doorbell  send uar=0x5 offset=0x800 wqe_idx=0x3 opcode=0x8(RDMA_WRITE) qpn=0x4b ds=0x3",
                "1.000000042 a send-wqe  qpn=0x4b index=0x3 RDMA_WRITE | ctrl wqe_idx=0x3 opcode=0x8(RDMA_WRITE) qpn=0x4b ds=0x3 \
             ce=0x2(completion) | raddr raddr=0x1000 rkey=0x2233 | data byte_count=0x40 lkey=0x4455 addr=0x2000",
            ]
        );
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// A packet of RoCEv2 as Scapy makes it, and a congestion notification as a ConnectX-4 Lx sent it (both in Scapy's
    /// `test/contrib/roce.uts`). The request of ARP (RFC 826) asks who has 192.0.2.1.
    #[test]
    fn a_frame_of_an_ethernet_port_shows_what_it_is() {
        let arp = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0x5e, 0, 0x53, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0x5e, 0, 0x53, 1,
            192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1,
        ];
        let got = lines_of(
            PortKind::Ethernet { mac: [2, 0, 0, 0, 0, 1] },
            &[
                Record::Sent { bytes: &arp },
                Record::Received {
                    bytes: &bytes(
                        "248a07a8fa22248a07a8fa22080045010040047840004011b4d5c0a80007c0a80007c00012b7002caca22460ffff000000d300cf1710\
                     4630818be28935d90e9a95505401be885e50000078f353f3",
                    ),
                },
                Record::Received { bytes: &arp[..13] },
                Record::Received {
                    bytes: &bytes(
                        "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff4000011800000000\
                     0000000000000000000000000000000082fd002a",
                    ),
                },
            ],
        );
        let header =
            "1.000000042 a sent      Ethernet Dst=ff:ff:ff:ff:ff:ff Src=02:00:5e:00:53:01 Type=0x0806 bytes=42 | no RoCEv2: ";
        assert!(got[0].starts_with(header), "{}", got[0]);
        let packet = "1.000000042 a received  Ethernet Dst=24:8a:07:a8:fa:22 Src=24:8a:07:a8:fa:22 | IPv4 Src=192.168.0.7 Dst=192.168.0.7 ";
        assert!(got[1].starts_with(packet) && got[1].contains(" | BTH OpCode="), "{}", got[1]);
        assert!(got[2].contains("received  13 bytes | no RoCEv2: "), "{}", got[2]);
        assert!(got[3].contains(" Type=0x0800 bytes=74 | congestion notification DestQP=0x118"), "{}", got[3]);
    }

    #[test]
    fn an_invalid_record_is_one_line() {
        let got = lines(&[
            Record::Command { slot: 0, input: &[], output: &[] },
            Record::Sent { bytes: &[1, 2, 3] },
            Record::Cqe { cqn: 1, index: 0, bytes: &[0; 3] },
            Record::Interrupt { vector: 2 },
        ]);
        assert_eq!(got.len(), 4);
    }
}
