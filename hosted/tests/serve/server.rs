//! A server process, and a client with memory that executes firmware commands.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX};
use vfio_user::Client;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const CONFIG: u32 = VFIO_PCI_CONFIG_REGION_INDEX;
pub(crate) const BAR0: u32 = VFIO_PCI_BAR0_REGION_INDEX;

/// A server process, which is killed when dropped.
pub(crate) struct Server {
    pub(crate) process: Child,
    folder: TempDir,
}

impl Server {
    pub(crate) fn start(devices: &[&str], options: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_bareverbs")), devices, options)
    }

    /// Starts a server with a limit of `ulimit`.
    pub(crate) fn start_limited(limit: &str, devices: &[&str], options: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_bareverbs")]);
        Self::start_by(command, devices, options)
    }

    fn start_by(mut command: Command, devices: &[&str], options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        command.args(["sim", "serve"]).args(options).stderr(Stdio::piped());
        for device in devices {
            command.arg("--socket").arg(folder.path().join(device));
        }
        let server = Self { process: command.spawn().unwrap(), folder };
        wait("sockets", || devices.iter().all(|device| server.path(device).exists()));
        // A signal before this would kill it without output.
        wait("the handler of SIGINT", || server.catches_interrupts());
        server
    }

    /// Returns whether SIGINT (signal 2) has a handler.
    fn catches_interrupts(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << 1 != 0
    }

    pub(crate) fn path(&self, device: &str) -> PathBuf {
        self.folder.path().join(device)
    }

    pub(crate) fn connect(&self, device: &str) -> Client {
        // The path exists a little before the socket listens.
        let mut client = None;
        wait("listener", || {
            client = Client::new(&self.path(device)).ok();
            client.is_some()
        });
        client.unwrap()
    }

    /// Sends a signal and waits for the end. Returns the exit status unless the signal killed it.
    pub(crate) fn end(&mut self, signal: &str) -> Option<i32> {
        let killed = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let mut status = None;
        wait("end of the server", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Sends SIGINT. Returns the exit status and the output.
    pub(crate) fn interrupt(&mut self) -> (ExitStatus, String) {
        let mut stderr = self.process.stderr.take().unwrap();
        let reader = thread::spawn(move || {
            let mut said = String::new();
            stderr.read_to_string(&mut said).unwrap();
            said
        });
        self.end("-INT");
        (self.process.wait().unwrap(), reader.join().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "no {what} within {LIMIT:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn read32(client: &mut Client, region: u32, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    client.region_read(region, offset, &mut bytes).unwrap();
    if region == CONFIG { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
}

/// Enables memory space and bus mastering, and maps memory for commands at device address 0.
pub(crate) fn bring_up(client: &mut Client) -> File {
    client.region_write(CONFIG, 4, &0x0006_u16.to_le_bytes()).unwrap();
    let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
    memory.set_len(1 << 20).unwrap();
    client.dma_map(0, 0, 1 << 20, memory.as_raw_fd()).unwrap();
    wait("firmware", || read32(client, BAR0, 0x1fc) >> 31 == 0);
    memory
}

/// Executes a command of 16 bytes in slot 0 of the queue at `queue`. Returns its first output dword.
pub(crate) fn command(client: &mut Client, memory: &File, queue: u64, input: [u8; 16]) -> Option<u32> {
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
        if start.elapsed() > Duration::from_secs(3) {
            return None;
        }
    }
}

pub(crate) const ENABLE_HCA: [u8; 16] = [1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
pub(crate) const NO_SUCH_COMMAND: [u8; 16] = [0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Executes a command with one output mailbox. Returns the contents of the mailbox.
pub(crate) fn query(client: &mut Client, memory: &File, input: [u8; 16]) -> [u8; 512] {
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
