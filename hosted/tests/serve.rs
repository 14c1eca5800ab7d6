//! `bareverbs sim serve` as a vfio-user client sees it.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::Client;

const LIMIT: Duration = Duration::from_secs(10);
const CONFIG: u32 = VFIO_PCI_CONFIG_REGION_INDEX;
const BAR0: u32 = VFIO_PCI_BAR0_REGION_INDEX;

/// A server that is ended when dropped.
struct Server {
    process: Child,
    folder: TempDir,
}

impl Server {
    fn start(devices: &[&str], options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
        command.args(["sim", "serve"]).args(options).stderr(Stdio::piped());
        for device in devices {
            command.arg("--socket").arg(folder.path().join(device));
        }
        let server = Self { process: command.spawn().unwrap(), folder };
        wait("sockets", || devices.iter().all(|device| server.path(device).exists()));
        server
    }

    fn path(&self, device: &str) -> PathBuf {
        self.folder.path().join(device)
    }

    fn connect(&self, device: &str) -> Client {
        // The path is there a moment before anyone listens.
        let mut client = None;
        wait("listener", || {
            client = Client::new(&self.path(device)).ok();
            client.is_some()
        });
        client.unwrap()
    }

    /// Ctrl-C; how it ended and what it had said.
    fn interrupt(&mut self) -> (ExitStatus, String) {
        let killed = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let mut status = None;
        wait("end of the server", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        let mut said = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status.unwrap(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "no {what} within {LIMIT:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn read32(client: &mut Client, region: u32, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    client.region_read(region, offset, &mut bytes).unwrap();
    if region == CONFIG { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
}

/// Memory space and bus master on; memory for commands at device address 0.
fn bring_up(client: &mut Client) -> File {
    client.region_write(CONFIG, 4, &0x0006_u16.to_le_bytes()).unwrap();
    let memory = tempfile::tempfile().unwrap();
    memory.set_len(1 << 20).unwrap();
    client.dma_map(0, 0, 1 << 20, memory.as_raw_fd()).unwrap();
    wait("firmware", || read32(client, BAR0, 0x1fc) >> 31 == 0);
    memory
}

/// Runs a command of 16 bytes in slot 0 of a queue at `queue`; its first output word.
fn command(client: &mut Client, memory: &File, queue: u64, input: [u8; 16]) -> Option<u32> {
    let mut entry = [0; 64];
    entry[0] = 7;
    entry[7] = 16;
    entry[16..32].copy_from_slice(&input);
    entry[59] = 16;
    entry[60] = 0x5a;
    entry[63] = 1;
    memory.write_all_at(&entry, queue).unwrap();
    client.region_write(BAR0, 0x10, &((queue >> 32) as u32).to_be_bytes()).unwrap();
    client.region_write(BAR0, 0x14, &(queue as u32).to_be_bytes()).unwrap();
    client.region_write(BAR0, 0x18, &1_u32.to_be_bytes()).unwrap();
    let start = Instant::now();
    loop {
        memory.read_exact_at(&mut entry, queue).unwrap();
        if entry[63] & 1 == 0 {
            assert_eq!(entry[63], 0, "delivery status");
            return Some(u32::from_be_bytes([entry[32], entry[33], entry[34], entry[35]]));
        }
        if start.elapsed() > Duration::from_millis(300) {
            return None;
        }
    }
}

const ENABLE_HCA: [u8; 16] = [1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const NO_SUCH_COMMAND: [u8; 16] = [0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn identity_and_sizes() {
    let server = Server::start(&["a", "b"], &["--device-id", "0x101b", "--vectors", "8"]);
    for device in ["a", "b"] {
        let mut client = server.connect(device);
        assert_eq!(read32(&mut client, CONFIG, 0), 0x101b_15b3);
        client.region_write(CONFIG, 0x10, &u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(read32(&mut client, CONFIG, 0x10), 0xfe00_000c, "32 MB, 64-bit, prefetchable");
        assert_eq!(client.region(BAR0).unwrap().size, 32 << 20);
        assert_eq!(client.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX).unwrap().count, 8);
        // Memory space is off: nobody answers.
        assert_eq!(read32(&mut client, BAR0, 0), u32::MAX);
    }
}

#[test]
fn a_command_through_the_clients_memory() {
    let server = Server::start(&["a"], &[]);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    assert_eq!(read32(&mut client, BAR0, 0x14) & 0xff, 0x56);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    assert_eq!(command(&mut client, &memory, 0x1000, NO_SUCH_COMMAND).unwrap() >> 24, 2, "bad opcode");
}

#[test]
fn the_health_counter_of_an_idle_server_moves() {
    let server = Server::start(&["a"], &[]);
    let mut client = server.connect("a");
    let _memory = bring_up(&mut client);
    let first = read32(&mut client, BAR0, 0x1010);
    wait("health", || read32(&mut client, BAR0, 0x1010) != first);
}

#[test]
fn memory_that_is_not_there_is_named_and_does_no_harm() {
    let mut server = Server::start(&["a"], &[]);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    // A queue beyond the memory, then the usual one.
    client.region_write(BAR0, 0x14, &0x4000_0000_u32.to_be_bytes()).unwrap();
    client.region_write(BAR0, 0x18, &1_u32.to_be_bytes()).unwrap();
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    client.dma_unmap(0, 1 << 20).unwrap();
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), None, "the memory was taken back");
    let (status, _) = server.interrupt();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_client_that_comes_back_finds_a_fresh_device() {
    let server = Server::start(&["a"], &[]);
    for _ in 0..3 {
        let mut client = server.connect("a");
        assert_eq!(read32(&mut client, CONFIG, 4) & 0x6, 0, "as at power-on");
        let memory = bring_up(&mut client);
        assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
        drop(client);
    }
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    client.reset().unwrap();
    assert_eq!(read32(&mut client, CONFIG, 4) & 0x6, 0);
}

#[test]
fn single_vectors_get_descriptors_after_the_start() {
    let server = Server::start(&["a"], &[]);
    let mut client = server.connect("a");
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    // Any descriptor does: what the server writes to it can be read at the other end.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, 5, 1, &[theirs.as_raw_fd()]).unwrap();
    // DATA_NONE, ACTION_TRIGGER: the client fires the vector itself.
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, 1 | VFIO_IRQ_SET_ACTION_TRIGGER, 5, 1, &[]).unwrap();
    ours.set_read_timeout(Some(LIMIT)).unwrap();
    let mut count = [0; 8];
    (&ours).read_exact(&mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
}

#[test]
fn ctrl_c_removes_the_sockets_and_tells_what_was_done() {
    let mut server = Server::start(&["a", "b"], &[]);
    let mut client = server.connect("b");
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    let (status, said) = server.interrupt();
    assert_eq!(status.code(), Some(0));
    assert!(!server.path("a").exists() && !server.path("b").exists());
    assert!(said.contains("lid2: 1 commands"), "{said}");
}

#[test]
fn an_idle_server_sleeps() {
    let server = Server::start(&["a", "b"], &[]);
    let mut client = server.connect("a");
    let _memory = bring_up(&mut client);
    let used = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.process.id())).unwrap();
        let fields: Vec<u64> = stat.rsplit(')').next().unwrap().split_whitespace().filter_map(|f| f.parse().ok()).collect();
        // utime and stime, in ticks of 10 ms (the state letter before them is no number).
        fields[10] + fields[11]
    };
    let before = used();
    thread::sleep(Duration::from_millis(500));
    assert!(used() - before <= 1, "ticks used while idle");
}

fn refused(arguments: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_bareverbs")).args(["sim", "serve"]).args(arguments).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    String::from_utf8(done.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn mistakes_are_named() {
    let server = Server::start(&["a"], &[]);
    let taken = server.path("a");
    assert!(refused(&["--socket", text(&taken)]).contains("another server listens there"));
    assert!(taken.exists(), "the other server's socket stays");
    let missing = server.path("no/such");
    assert!(refused(&["--socket", text(&missing)]).contains("no such folder"));
    let twice = server.path("c");
    assert!(refused(&["--socket", text(&twice), "--socket", text(&twice)]).contains("given twice"));
    assert!(!twice.exists());
    let file = server.path("file");
    std::fs::write(&file, "x").unwrap();
    assert!(refused(&["--socket", text(&file)]).contains("is not a socket"));
    assert!(refused(&[]).contains("--socket"));
    assert!(refused(&["--socket", "x", "--no-such-option"]).contains("--no-such-option"));
    let long = server.path(&"long".repeat(30));
    assert!(refused(&["--socket", text(&long)]).contains("longer than the 107 bytes"));
    assert!(refused(&["--socket", text(&twice), "--link", text(&long)]).contains("longer than the 107 bytes"));
    assert!(refused(&["--socket", "x", "--limit", "qps=1000"]).contains("not a power of two: 512 or 1024?"));
    assert!(refused(&["--socket", "x", "--limit", "queues=2"]).contains("no limit 'queues'; there are qps, "));
    assert!(refused(&["--socket", "x", "--speed", "warp"]).contains("[possible values: sdr, "));
    assert!(refused(&["--socket", "x", "--fault", "dance 1"]).contains("not a command; there are: link "));
    assert!(refused(&["--socket", text(&twice), "--fault", "stick 2 0x800"]).contains("a fault for LID 2: no device has it"));
    assert!(!twice.exists());
}

/// A command with one mailbox for the rest of its output: what that holds.
fn query(client: &mut Client, memory: &File, input: [u8; 16]) -> [u8; 512] {
    const QUEUE: u64 = 0x1000;
    const MAILBOX: u64 = 0x3000;
    let mut entry = [0; 64];
    entry[0] = 7;
    entry[7] = 16;
    entry[16..32].copy_from_slice(&input);
    entry[48..56].copy_from_slice(&MAILBOX.to_be_bytes());
    entry[56..60].copy_from_slice(&(16_u32 + 512).to_be_bytes());
    entry[60] = 0x5a;
    entry[63] = 1;
    let mut mailbox = [0; 576];
    mailbox[573] = 0x5a;
    memory.write_all_at(&mailbox, MAILBOX).unwrap();
    memory.write_all_at(&entry, QUEUE).unwrap();
    client.region_write(BAR0, 0x14, &(QUEUE as u32).to_be_bytes()).unwrap();
    client.region_write(BAR0, 0x18, &1_u32.to_be_bytes()).unwrap();
    wait("output", || {
        memory.read_exact_at(&mut entry, QUEUE).unwrap();
        entry[63] & 1 == 0
    });
    assert_eq!((entry[63], entry[32]), (0, 0), "delivery status, status");
    memory.read_exact_at(&mut mailbox, MAILBOX).unwrap();
    mailbox[..512].try_into().unwrap()
}

#[test]
fn limits_and_faults_hold_from_the_start() {
    let options = ["--limit", "qps=1024", "--no-firmware-pages", "--fault", "refuse 2 0x104 0xf"];
    let server = Server::start(&["a", "b"], &options);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    // QUERY_HCA_CAP, the general page as it is at most: log_max_qp is bits 4..0 of its dword 16.
    let page = query(&mut client, &memory, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[19] & 0x1f, 10);
    // The fault is for the other device, and strikes once; a client that comes and goes does not take it away.
    drop(server.connect("b"));
    let mut client = server.connect("b");
    client.reset().unwrap();
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA).unwrap() >> 24, 0xf);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
}

#[test]
fn what_a_client_sends_is_recorded_byte_for_byte() {
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("recording");
    let mut server = Server::start(&["a"], &["--record", file.to_str().unwrap(), "--vectors", "4"]);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    let mut nop = [0; 16];
    nop[0..2].copy_from_slice(&0x80d_u16.to_be_bytes());
    assert_eq!(command(&mut client, &memory, 0x1000, nop), Some(0));
    drop(client);
    assert!(server.interrupt().0.success());

    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("device lid1 lid=0x1 ") && lines[1].contains(" vectors=0x4 "), "{}", lines[1]);
    assert_eq!(lines[2..], ["command lid1 0x0 080d.14. .16."]);
    let [identity, command] = bareverbs_hosted::record::parse(&text).unwrap().try_into().unwrap();
    assert!(matches!(identity.entry, bareverbs_hosted::record::Entry::Device(config) if config.vectors == 4));
    assert_eq!((command.number, command.device.as_str()), (3, "lid1"));
}

#[test]
fn a_recording_that_cannot_be_made_is_told_before_anything_is_served() {
    let output = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
        .args(["sim", "serve", "--socket", "never-made", "--record", "/no/such/folder/recording"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("recording: "));
    assert!(!Path::new("never-made").exists());
}
