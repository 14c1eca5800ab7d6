//! A recording contains each input of a simulated device and each answer, byte for byte, to be replayed and compared.
//!
//! A recording is text with one entry per line and single spaces between words:
//!
//! ```text
//! # anything                                           a comment
//! recording 1                                          first line: the version of the format
//! device NAME KEY=VALUE ...                            configuration of a device, before its other lines
//! mark TEXT                                            a label of what the recorded program does next
//! command NAME SLOT INPUT OUTPUT                       a firmware command that was executed
//! doorbell NAME PAGE OFFSET BYTES                      a write to a UAR page
//! send NAME QPN INDEX BYTES                            a send WQE that was fetched; INDEX is that of its first WQEBB
//! recv NAME QPN INDEX BYTES                            a receive WQE that was fetched, one whole stride; of a shared
//!                                                      receive queue, without the next segment, and QPN is that of the QP
//!                                                      that consumed it
//! cqe NAME CQN INDEX BYTES                             a completion that was written; INDEX counts without wrapping
//! eqe NAME EQN INDEX BYTES                             an event that was written; INDEX counts without wrapping
//! ```
//!
//! Numbers are hexadecimal with `0x`. BYTES, INPUT and OUTPUT are hexadecimal digits in memory order; `.N.` means N (decimal)
//! zero bytes, and `-` means no bytes. There are no timestamps, so that the same work produces the same lines.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::num::ParseIntError;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_decode::command_table::{Exchange, Message};
use bareverbs_decode::field_printer::from_hex;
use bareverbs_sim::trace::{Record, Tracer};
use bareverbs_sim::{DeviceConfig, Limit, Limits, PageDemand, Profile, RelaxedOrdering};

use crate::line_writer::{WhenFull, Writer};

/// First line of every recording.
const VERSION: &str = "recording 1";

/// Shortest run of zero bytes that is written as a count.
const MIN_ZERO_RUN: usize = 4;

/// Timeout of [`Recording::finish`] for a file that does not accept data.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

/// A recording of any number of devices. Clones write to the same output.
#[derive(Clone)]
pub struct Recording {
    output: Output,
}

#[derive(Clone)]
enum Output {
    /// The calling thread writes each line.
    Direct(Arc<Mutex<RecordingState>>),
    /// A writer thread writes the lines.
    Queued(Writer),
}

struct RecordingState {
    output: Box<dyn Write + Send>,
    failed: Option<io::Error>,
}

impl Recording {
    /// Creates a recording in the file at `path`, replacing the file. A separate thread writes it.
    ///
    /// No line is dropped: a device whose queue of lines is full waits for the file, and the other devices do not.
    ///
    /// # Errors
    /// The file or the thread could not be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let writer = Writer::new("recording", Box::new(File::create(path)?), WhenFull::Wait)?;
        let recording = Self { output: Output::Queued(writer) };
        recording.line(VERSION.into());
        Ok(recording)
    }

    /// Creates a recording into `output`, to which the calling thread writes each line.
    pub fn new(output: Box<dyn Write + Send>) -> Self {
        let recording = Self { output: Output::Direct(Arc::new(Mutex::new(RecordingState { output, failed: None }))) };
        recording.line(VERSION.into());
        recording
    }

    fn line(&self, line: String) {
        match &self.output {
            Output::Queued(writer) => writer.line(line),
            Output::Direct(state) => {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.failed.is_none() {
                    state.failed = writeln!(state.output, "{line}").err();
                }
            }
        }
    }

    /// Returns whether the lines of one turn of a device can be queued without waiting for the file.
    pub fn has_room(&self) -> bool {
        match &self.output {
            Output::Direct(_) => true,
            Output::Queued(writer) => writer.has_room(),
        }
    }

    /// Writes a label of what the recorded program does next.
    pub fn mark(&self, text: &str) {
        self.line(format!("mark {text}"));
    }

    /// Creates a tracer for the device called `name`, which must not contain spaces.
    pub fn tracer(&self, name: &str, config: &DeviceConfig) -> Recorder {
        self.line(format!("device {name} {}", Identity(config)));
        let output = match &self.output {
            Output::Direct(state) => Output::Direct(Arc::clone(state)),
            Output::Queued(writer) => Output::Queued(writer.for_source()),
        };
        Recorder { name: name.into(), recording: Self { output } }
    }

    /// Flushes the recording.
    ///
    /// # Errors
    /// The first error of the output, or [`io::ErrorKind::TimedOut`] if it accepts no data for a minute.
    pub fn finish(&self) -> io::Result<()> {
        match &self.output {
            Output::Queued(writer) => writer.finish(FINISH_TIMEOUT),
            Output::Direct(state) => {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.failed.take().map_or(Ok(()), Err)?;
                state.output.flush()
            }
        }
    }
}

/// Records the inputs and answers of one device.
pub struct Recorder {
    name: String,
    recording: Recording,
}

impl Recorder {
    /// Returns the recording, with the queue of lines of this device.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }
}

impl Tracer for Recorder {
    fn record(&mut self, _now: Instant, record: Record<'_>) {
        let (kind, queue, index, bytes) = match record {
            Record::Command { slot, input, output } => {
                return self.recording.line(format!("command {} {slot:#x} {} {}", self.name, digits(input), digits(output)));
            }
            Record::Doorbell { uar, offset, bytes } => ("doorbell", uar, offset as u64, bytes),
            Record::SendWqe { qpn, index, bytes } => ("send", qpn, index.into(), bytes),
            Record::RecvWqe { qpn, index, bytes } => ("recv", qpn, index.into(), bytes),
            Record::Cqe { cqn, index, bytes } => ("cqe", cqn, index.into(), bytes),
            Record::Eqe { eqn, index, bytes } => ("eqe", eqn, index.into(), bytes),
            // Interrupts, frames and notes.
            _ => return,
        };
        self.recording.line(format!("{kind} {} {queue:#x} {index:#x} {}", self.name, digits(bytes)));
    }
}

/// Passes each record to several tracers.
pub struct Several(pub Vec<Box<dyn Tracer + Send>>);

impl Tracer for Several {
    fn record(&mut self, now: Instant, record: Record<'_>) {
        self.0.iter_mut().for_each(|tracer| tracer.record(now, record));
    }
}

/// A setting that instant devices have in common ([`Profile::Instant`]), and others only by chance. Times are in nanoseconds.
struct Setting {
    name: &'static str,
    get: fn(&DeviceConfig) -> u64,
    set: fn(&mut DeviceConfig, u64) -> Result<(), &'static str>,
}

/// A setting that is a time.
macro_rules! time {
    ($name:literal, $($field:ident).+) => {
        Setting {
            name: $name,
            get: |config| nanos(config.$($field).+),
            set: |config, value| {
                config.$($field).+ = Duration::from_nanos(value);
                Ok(())
            },
        }
    };
}

/// A setting that is on or off.
macro_rules! flag {
    ($name:literal, $($field:ident).+) => {
        Setting {
            name: $name,
            get: |config| config.$($field).+.into(),
            set: |config, value| narrow::<u8>(value).map(|value| config.$($field).+ = value != 0),
        }
    };
}

const SETTINGS: [Setting; 20] = [
    Setting {
        name: "init-for",
        get: |config| config.pages.log_max_qp.map_or(u64::MAX, u64::from),
        set: |config, value| narrow(value).map(|log| config.pages.log_max_qp = Some(log)),
    },
    Setting {
        name: "init-fixed",
        get: |config| config.pages.fixed.into(),
        set: |config, value| narrow(value).map(|pages| config.pages.fixed = pages),
    },
    flag!("surplus", pages.surplus),
    Setting {
        name: "initial-qps",
        get: |config| config.initial_log_max_qp.map_or(u64::MAX, u64::from),
        set: |config, value| narrow(value).map(|log| config.initial_log_max_qp = Some(log)),
    },
    time!("reset", reset_time),
    time!("training", link_training),
    time!("lid-delay", lid_delay),
    Setting {
        name: "no-lid",
        get: |config| config.no_lid.into(),
        set: |config, value| narrow(value).map(|lid| config.no_lid = lid),
    },
    flag!("mtu-while-down", mtu_while_down),
    flag!("disabled-without-cable", disabled_without_cable),
    flag!("extended-atomics", extended_atomics),
    Setting {
        name: "relaxed-ordering",
        get: |config| {
            let RelaxedOrdering { write, read, read_pci_enabled } = config.relaxed_ordering;
            u64::from(write) | u64::from(read) << 1 | u64::from(read_pci_enabled) << 2
        },
        set: |config, value| {
            let [write, read, read_pci_enabled] = [1, 2, 4].map(|bit| value & bit != 0);
            config.relaxed_ordering = RelaxedOrdering { write, read, read_pci_enabled };
            narrow::<u8>(value).map(|_| ())
        },
    },
    flag!("restricted-umr", restricted_umr),
    Setting {
        name: "vhca-ports",
        get: |config| config.vhca_ports.into(),
        set: |config, value| narrow(value).map(|ports| config.vhca_ports = ports),
    },
    flag!("grh-required", grh_required),
    flag!("ib-virt", ib_virt),
    flag!("virtual-function", virtual_function),
    flag!("trusted", trusted),
    time!("command-time", command_time.other),
    time!("start-time", command_time.start),
];

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The configuration of a device as words of a recording.
struct Identity<'a>(&'a DeviceConfig);

impl std::fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(config) = self;
        let PageDemand { boot, init, chunk, .. } = config.pages;
        write!(f, "lid={:#x} id={:#x} ", config.lid, config.pci_device_id)?;
        write!(f, "node={:#x} port={:#x} mtu={:#x} ", config.node_guid, config.port_guid, config.mtu)?;
        write!(f, "vectors={:#x} boot={boot:#x} init={init:#x} chunk={chunk:#x} ", config.vectors)?;
        let [blue_flame, atomics, umr] = [config.blue_flame, config.atomics, config.umr].map(u8::from);
        write!(f, "blueflame={blue_flame:#x} atomics={atomics:#x} umr={umr:#x}")?;
        // Only what differs from an instant device is written, so that older recordings stay readable.
        let instant = DeviceConfig::profile(Profile::Instant, config.lid);
        for Setting { name, get, .. } in SETTINGS {
            let value = get(config);
            if value != get(&instant) {
                write!(f, " {name}={value:#x}")?;
            }
        }
        for limit in Limit::ALL {
            let number = config.limits.get(limit);
            if number != Limits::default().get(limit) {
                write!(f, " {}={number:#x}", limit.name())?;
            }
        }
        Ok(())
    }
}

/// One line of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Line number, from 1.
    pub number: usize,
    /// Name of its device; empty if it concerns none.
    pub device: String,
    /// Its content.
    pub entry: Entry,
}

/// The content of a line of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Configuration of a device: the recorded values, and those of an instant device for the others.
    Device(Box<DeviceConfig>),
    /// Label of what the recorded program does next.
    Mark(String),
    /// A firmware command.
    Command {
        /// Slot of the command queue.
        slot: u8,
        /// Whole input.
        input: Vec<u8>,
        /// Whole output.
        output: Vec<u8>,
    },
    /// A doorbell, a WQE, a CQE or an EQE.
    Item {
        /// Which of them.
        kind: Kind,
        /// Number of the UAR page or of the queue.
        queue: u32,
        /// Byte offset in the UAR page, or index in the queue.
        index: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// Returns the commands of the device called `device`, in order, to be written as a table (`bareverbs_decode::command_table`).
pub fn commands(lines: &[Line], device: &str) -> Vec<Exchange> {
    let of_device = lines.iter().filter(|line| line.device == device);
    let exchange = |line: &Line| match &line.entry {
        Entry::Command { input, output, .. } => {
            Some(Exchange { input: Message::whole(input.clone()), output: Message::whole(output.clone()) })
        }
        Entry::Device(_) | Entry::Mark(_) | Entry::Item { .. } => None,
    };
    of_device.filter_map(exchange).collect()
}

/// Kind of an [`Entry::Item`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A write to a UAR page.
    Doorbell,
    /// A send WQE.
    Send,
    /// A receive WQE.
    Recv,
    /// A completion.
    Cqe,
    /// An event.
    Eqe,
}

/// Error of [`parse`]: a line that is not valid in a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingError {
    /// Line number, from 1; 0 for an empty text.
    pub line: usize,
    /// The reason.
    pub why: &'static str,
}

impl std::fmt::Display for RecordingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for RecordingError {}

/// Parses a recording and returns its lines, without comments and the version.
///
/// # Errors
/// The first line that is not valid, with its number.
pub fn parse(text: &str) -> Result<Vec<Line>, RecordingError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    match lines.next() {
        Some((_, VERSION)) => {}
        first => {
            return Err(RecordingError { line: first.map_or(0, |(at, _)| at + 1), why: "not a recording of this version" });
        }
    }
    lines.map(|(at, line)| parse_line(at + 1, line).map_err(|why| RecordingError { line: at + 1, why })).collect()
}

fn parse_line(number: usize, line: &str) -> Result<Line, &'static str> {
    if let Some(text) = line.strip_prefix("mark ") {
        return Ok(Line { number, device: String::new(), entry: Entry::Mark(text.into()) });
    }
    let words: Vec<&str> = line.split(' ').collect();
    let (device, entry) = match *words.as_slice() {
        ["device", device, ref settings @ ..] => (device, Entry::Device(Box::new(identity(settings)?))),
        ["command", device, slot, input, output] => {
            let slot = u8::try_from(value(slot)?).map_err(|_| "no such slot")?;
            (device, Entry::Command { slot, input: bytes(input)?, output: bytes(output)? })
        }
        [kind, device, queue, index, data] => {
            let kind = match kind {
                "doorbell" => Kind::Doorbell,
                "send" => Kind::Send,
                "recv" => Kind::Recv,
                "cqe" => Kind::Cqe,
                "eqe" => Kind::Eqe,
                _ => return Err("unknown kind"),
            };
            (device, Entry::Item { kind, queue: value32(queue)?, index: value32(index)?, bytes: bytes(data)? })
        }
        _ => return Err("unknown kind, or the wrong number of words"),
    };
    Ok(Line { number, device: device.into(), entry })
}

fn value(word: &str) -> Result<u64, &'static str> {
    let digits = word.strip_prefix("0x").ok_or("a number begins with 0x")?;
    u64::from_str_radix(digits, 16).map_err(|_| "not a number")
}

fn value32(word: &str) -> Result<u32, &'static str> {
    value(word)?.try_into().map_err(|_| "a number of more than 32 bits")
}

/// Converts the value of a device's setting to the type of its field.
fn narrow<T: TryFrom<u64>>(value: u64) -> Result<T, &'static str> {
    value.try_into().map_err(|_| "a value that is too large for its setting")
}

fn identity(settings: &[&str]) -> Result<DeviceConfig, &'static str> {
    let instant = |lid| DeviceConfig::profile(Profile::Instant, lid);
    let mut config = instant(1);
    for setting in settings {
        let (name, number) = setting.split_once('=').ok_or("a setting has no value")?;
        let value = value(number)?;
        match name {
            // The LID comes first: it sets all defaults that are derived from it, which later settings override.
            "lid" => config = instant(narrow(value)?),
            "id" => config.pci_device_id = narrow(value)?,
            "node" => config.node_guid = value,
            "port" => config.port_guid = value,
            "mtu" => config.mtu = narrow(value)?,
            "vectors" => config.vectors = narrow(value)?,
            "boot" => config.pages.boot = narrow(value)?,
            "init" => config.pages.init = narrow(value)?,
            "chunk" => config.pages.chunk = narrow(value)?,
            "blueflame" => config.blue_flame = value != 0,
            "atomics" => config.atomics = value != 0,
            "umr" => config.umr = value != 0,
            name => match SETTINGS.iter().find(|setting| setting.name == name) {
                Some(setting) => (setting.set)(&mut config, value)?,
                None => {
                    let limit = Limit::from_name(name).ok_or("unknown setting of a device")?;
                    config.limits.set(limit, value).map_err(|_| "a limit that no device has")?;
                }
            },
        }
    }
    Ok(config)
}

/// Returns bytes in the notation of a recording.
pub fn digits(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".into();
    }
    let mut text = String::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        let zeros = rest.iter().take_while(|byte| **byte == 0).count();
        // Writing to a string cannot fail.
        if zeros >= MIN_ZERO_RUN {
            let _ = write!(text, ".{zeros}.");
            rest = rest.get(zeros..).unwrap_or_default();
        } else {
            let _ = write!(text, "{first:02x}");
            rest = after;
        }
    }
    text
}

/// Maximum length of the bytes of one word, which is more than any command has: bounds the memory that a count can claim.
const MAX_BYTES: usize = 1 << 20;

fn bytes(word: &str) -> Result<Vec<u8>, &'static str> {
    let mut all = Vec::new();
    if word == "-" {
        return Ok(all);
    }
    // Every other piece between dots is a count.
    for (at, piece) in word.split('.').enumerate() {
        if at % 2 == 1 {
            let zeros: usize = piece.parse().map_err(|_: ParseIntError| "zeros are counted between dots")?;
            let len = all.len().saturating_add(zeros);
            if len > MAX_BYTES {
                return Err("too many zeros");
            }
            all.resize(len, 0);
        } else {
            all.extend(from_hex(piece).ok_or("bytes are hexadecimal digits, two each")?);
        }
    }
    if word.matches('.').count().is_multiple_of(2) { Ok(all) } else { Err("a count of zeros has no end") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_buffer::Buffer;

    #[test]
    fn a_recording_parses_to_what_was_recorded() {
        let buffer = Buffer::default();
        let recording = Recording::new(Box::new(buffer.clone()));
        let relaxed_ordering = RelaxedOrdering { write: true, read_pci_enabled: true, ..RelaxedOrdering::NONE };
        let (vectors, pages, blue_flame, mtu) = (4, PageDemand::NONE, false, 1024);
        let config = DeviceConfig { vectors, pages, blue_flame, mtu, relaxed_ordering, ..DeviceConfig::with_lid(7) };
        let mut tracer = recording.tracer("lid7", &config);
        recording.mark("two words");
        let now = Instant::from_nanos(5);
        tracer.record(now, Record::Command { slot: 31, input: &[8, 0, 0, 0, 0, 0], output: &[0; 16] });
        tracer.record(now, Record::Note("is not kept"));
        tracer.record(now, Record::Doorbell { uar: 5, offset: 0x800, bytes: &[1, 0, 0, 0, 2, 0, 0, 0] });
        tracer.record(now, Record::Cqe { cqn: 0x81, index: 0x1_0000, bytes: &[] });
        recording.finish().unwrap();
        let text = String::from_utf8(buffer.bytes()).unwrap();
        assert_eq!(
            text.lines().skip(2).collect::<Vec<_>>(),
            [
                "mark two words",
                "command lid7 0x1f 08.5. .16.",
                "doorbell lid7 0x5 0x800 0100000002000000",
                "cqe lid7 0x81 0x10000 -"
            ]
        );
        let entries: Vec<Entry> = parse(&text).unwrap().into_iter().map(|line| line.entry).collect();
        assert_eq!(
            entries,
            [
                Entry::Device(Box::new(config)),
                Entry::Mark("two words".into()),
                Entry::Command { slot: 31, input: vec![8, 0, 0, 0, 0, 0], output: vec![0; 16] },
                Entry::Item { kind: Kind::Doorbell, queue: 5, index: 0x800, bytes: vec![1, 0, 0, 0, 2, 0, 0, 0] },
                Entry::Item { kind: Kind::Cqe, queue: 0x81, index: 0x1_0000, bytes: Vec::new() },
            ]
        );
    }

    #[test]
    fn a_recording_has_what_its_device_demands() {
        for profile in Profile::ALL {
            let buffer = Buffer::default();
            let recording = Recording::new(Box::new(buffer.clone()));
            let config = DeviceConfig::profile(profile, 7);
            drop(recording.tracer("lid7", &config));
            recording.finish().unwrap();
            let text = String::from_utf8(buffer.bytes()).unwrap();
            let Entry::Device(parsed) = parse(&text).unwrap().remove(0).entry else { panic!("{text}") };
            // Nothing that a driver sees between two answers depends on those.
            let DeviceConfig { firmware, board_id, link_speed, .. } = config.clone();
            assert_eq!(DeviceConfig { firmware, board_id, link_speed, ..*parsed }, config, "{text}");
        }
    }

    #[test]
    fn a_parse_error_names_the_line() {
        let wrong = |line: &str| parse(&format!("recording 1\n# comment\n{line}\n")).unwrap_err();
        assert_eq!(parse("").unwrap_err().line, 0);
        assert_eq!(parse("recording 2").unwrap_err().line, 1);
        for line in [
            "dance a 0x1 0x2 00",
            "send a 1 0x2 00",
            "send a 0x1 0x2",
            "send a 0x1 0x2 0",
            "send a 0x1 0x2 zz",
            "send a 0x1 0x2 00.4",
            "send a 0x1 0x2 00.x.",
            "send a 0x1 0x2 .99999999.",
            "send a 0x1 0x100000000 00",
            "command a 0x100 00 00",
            "device a lid",
            "device a colour=0x1",
        ] {
            assert_eq!(wrong(line).line, 3, "{line}");
        }
    }

    #[test]
    fn values_too_large_for_their_setting_are_errors() {
        let parse_device = |setting: &str| parse(&format!("recording 1\ndevice a {setting}\n"));
        for setting in ["lid", "id", "mtu", "vectors"] {
            assert!(parse_device(&format!("{setting}=0xffff")).is_ok(), "{setting}");
            assert_eq!(parse_device(&format!("{setting}=0x10007")).unwrap_err().line, 2, "{setting}");
        }
        for setting in ["boot", "init", "chunk"] {
            assert!(parse_device(&format!("{setting}=0xffffffff")).is_ok(), "{setting}");
            assert_eq!(parse_device(&format!("{setting}=0x100000007")).unwrap_err().line, 2, "{setting}");
        }
    }
}
