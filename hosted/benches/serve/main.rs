//! What an access of a client costs the server: `cargo bench -p bareverbs-hosted --bench serve`.
//!
//! A server process and a client in this one, over the socket as a virtual machine would use it. Each line is the median of
//! several rounds: time from a message to its answer, processor time of the server for it, and how often the server's threads
//! went to sleep for it.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a measurement that fails ends by panic")]

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX};
use vfio_user::Client;

const ROUNDS: usize = 9;
const ACCESSES: u32 = 5000;
const LIMIT: Duration = Duration::from_secs(10);
const BAR0: u32 = VFIO_PCI_BAR0_REGION_INDEX;
/// Device address of the command queue.
const QUEUE: u64 = 0x1000;

/// The server, ended when dropped.
struct Server {
    process: Child,
    _folder: tempfile::TempDir,
    socket: PathBuf,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("device");
        // Another program may be measured, to compare.
        let program = std::env::var_os("BAREVERBS").unwrap_or_else(|| env!("CARGO_BIN_EXE_bareverbs").into());
        let mut command = Command::new(program);
        command.args(["sim", "serve", "--socket"]).arg(&socket).stderr(Stdio::null());
        Self { process: command.spawn().unwrap(), _folder: folder, socket }
    }

    fn connect(&self) -> Client {
        let start = Instant::now();
        loop {
            match Client::new(&self.socket) {
                Ok(client) => return client,
                Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Processor time of all threads, and how often they went to sleep.
    fn used(&self) -> (Duration, u64) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        tasks.fold((Duration::ZERO, 0), |(time, sleeps), task| {
            let task = task.unwrap().path();
            let ran = std::fs::read_to_string(task.join("schedstat")).unwrap();
            let nanoseconds = ran.split_whitespace().next().unwrap().parse().unwrap();
            let status = std::fs::read_to_string(task.join("status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            (time + Duration::from_nanos(nanoseconds), sleeps + line.trim().parse::<u64>().unwrap())
        })
    }

    fn measure(&self, what: &str, mut access: impl FnMut()) {
        let mut rounds: Vec<[f64; 3]> = (0..ROUNDS)
            .map(|_| {
                let ((time, sleeps), start) = (self.used(), Instant::now());
                (0..ACCESSES).for_each(|_| access());
                let (took, (time_after, sleeps_after)) = (start.elapsed(), self.used());
                let each = |total: f64| total / f64::from(ACCESSES);
                let micros = |time: Duration| each(time.as_secs_f64() * 1e6);
                [micros(took), micros(time_after - time), each((sleeps_after - sleeps) as f64)]
            })
            .collect();
        let [took, time, sleeps] = [0, 1, 2].map(|column| {
            rounds.sort_by(|a, b| a[column].total_cmp(&b[column]));
            rounds[ROUNDS / 2][column]
        });
        println!("{what:32} {took:6.1} us there and back, {time:5.1} us of the server, {sleeps:.2} sleeps");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Executes a NOP in slot 0.
fn command(client: &mut Client, memory: &File) {
    let mut entry = [0; 64];
    (entry[0], entry[7], entry[59], entry[60], entry[63]) = (7, 16, 16, 0x5a, 1);
    entry[16..18].copy_from_slice(&0x80d_u16.to_be_bytes());
    memory.write_all_at(&entry, QUEUE).unwrap();
    client.region_write(BAR0, 0x18, &1_u32.to_be_bytes()).unwrap();
    let start = Instant::now();
    let mut status = [1];
    while status[0] & 1 != 0 {
        assert!(start.elapsed() < LIMIT);
        memory.read_exact_at(&mut status, QUEUE + 63).unwrap();
    }
}

fn main() {
    let server = Server::start();
    let mut client = server.connect();
    let memory = tempfile::tempfile().unwrap();
    memory.set_len(1 << 20).unwrap();
    client.region_write(VFIO_PCI_CONFIG_REGION_INDEX, 4, &0x0006_u16.to_le_bytes()).unwrap();
    client.dma_map(0, 0, 1 << 20, memory.as_raw_fd()).unwrap();
    client.region_write(BAR0, 0x10, &0_u32.to_be_bytes()).unwrap();
    client.region_write(BAR0, 0x14, &(QUEUE as u32).to_be_bytes()).unwrap();
    let mut bytes = [0; 4];
    server.measure("register read", || client.region_read(BAR0, 0x1010, &mut bytes).unwrap());
    server.measure("doorbell (to no queue)", || client.region_write(BAR0, 0x80_0800, &[0; 8]).unwrap());
    server.measure("firmware command (NOP)", || command(&mut client, &memory));
}
