//! Cost of a client's access at the server: `cargo bench -p bareverbs-cli --bench serve`.
//!
//! This process starts a server with two devices, and has a client of each over the sockets, as virtual machines do. Each line is
//! the median of several rounds. It has the time from a message to its answer, the server's processor time, and how often the
//! server's threads went to sleep.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a measurement that fails ends by panic")]

mod device;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vfio_user::Client;

use crate::device::{BAR0, DATA, Device};

const ROUNDS: usize = 9;
const ACCESSES: u32 = 5000;
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a long message, and how many of them are under way.
const LONG: u32 = 64 << 10;
const UNDER_WAY: u32 = 16;

/// The server, ended when dropped.
struct Server {
    process: Child,
    _folder: tempfile::TempDir,
    sockets: [PathBuf; 2],
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sockets = ["a", "b"].map(|name| folder.path().join(name));
        // Another program may be measured, to compare.
        let program = std::env::var_os("BAREVERBS").unwrap_or_else(|| env!("CARGO_BIN_EXE_bareverbs").into());
        let mut command = Command::new(program);
        command.args(["sim", "serve", "--no-firmware-pages", "--socket"]).arg(&sockets[0]).arg("--socket").arg(&sockets[1]);
        Self { process: command.stderr(Stdio::null()).spawn().unwrap(), _folder: folder, sockets }
    }

    fn connect(&self, socket: &Path) -> Device {
        let start = Instant::now();
        loop {
            match Client::new(socket) {
                Ok(client) => return Device::new(client),
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

    fn measure(&self, what: &str, times: u32, mut access: impl FnMut()) {
        let mut rounds: Vec<[f64; 3]> = (0..ROUNDS)
            .map(|_| {
                let ((time, sleeps), start) = (self.used(), Instant::now());
                (0..times).for_each(|_| access());
                let (took, (time_after, sleeps_after)) = (start.elapsed(), self.used());
                let each = |total: f64| total / f64::from(times);
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

fn main() {
    let server = Server::start();
    let [mut a, mut b] = [0, 1].map(|number| server.connect(&server.sockets[number]));
    let mut bytes = [0; 4];
    server.measure("register read", ACCESSES, || a.client().region_read(BAR0, 0x1010, &mut bytes).unwrap());
    let nothing = [0; 8];
    server.measure("doorbell (to no queue)", ACCESSES, || a.client().region_write(BAR0, 0x80_0800, &nothing).unwrap());
    let mut nop = [0; 16];
    nop[..2].copy_from_slice(&0x80d_u16.to_be_bytes());
    server.measure("firmware command (NOP)", ACCESSES, || {
        a.command(&nop);
    });

    a.open();
    b.open();
    a.connect(2, b.qpn);
    b.connect(1, a.qpn);
    let mut mark = 0;
    server.measure("8 bytes to the other and back", ACCESSES, || {
        mark += 1;
        a.store(DATA, mark);
        a.write(DATA, 8, false, b.key);
        b.wait_for(DATA, mark);
        b.store(DATA, !mark);
        b.write(DATA, 8, false, a.key);
        a.wait_for(DATA, !mark);
    });
    server.measure("16 times 64 KiB to the other", ACCESSES / 50, || {
        for number in 1..=UNDER_WAY {
            a.write(DATA + u64::from(number * LONG), LONG, number == UNDER_WAY, b.key);
        }
        a.wait_for_completion();
    });
}
