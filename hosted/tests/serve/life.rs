//! Clients that come, go and come again; interrupts; the end of a server.

use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::Client;

use crate::raw::Raw;
use crate::server::{BAR0, CONFIG, ENABLE_HCA, LIMIT, Server, bring_up, command, read32, wait};

#[test]
fn the_health_counter_of_an_idle_server_moves() {
    let server = Server::start(&["a"], &[]);
    let mut client = server.connect("a");
    let _memory = bring_up(&mut client);
    let first = read32(&mut client, BAR0, 0x1010);
    wait("health", || read32(&mut client, BAR0, 0x1010) != first);
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
fn a_client_that_breaks_off_or_talks_nonsense_makes_room_for_the_next() {
    let mut server = Server::start(&["a"], &[]);
    // In the middle of a header; after one that announces more than comes; with one that fits no version.
    Raw::silent(&server.path("a")).send(&[1, 2, 3]);
    Raw::silent(&server.path("a")).send(&[7, 0, 10, 0, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    Raw::silent(&server.path("a")).send(&[7, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    let mut half = Raw::connect(&server.path("a"));
    half.write(CONFIG, 4, &0x0006_u16.to_le_bytes());
    half.send(&[7, 0, 10, 0]);
    drop(half);
    let mut client = server.connect("a");
    assert_eq!(read32(&mut client, CONFIG, 4) & 0x6, 0, "as at power-on");
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    drop(client);
    let (status, said) = server.interrupt();
    assert_eq!(status.code(), Some(0));
    assert!(said.lines().filter(|line| line.starts_with("lid1: client ")).count() >= 4, "{said}");
}

/// A descriptor for a vector, and the end where what the server writes to it arrives.
fn vector(client: &mut Client, number: u32) -> UnixStream {
    // Any descriptor does.
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(LIMIT)).unwrap();
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, number, 1, &[theirs.as_raw_fd()]).unwrap();
    ours
}

fn fire(client: &mut Client, number: u32) {
    let flags = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, number, 1, &[]).unwrap();
}

fn told(mut from: &UnixStream) -> u64 {
    let mut count = [0; 8];
    from.read_exact(&mut count).unwrap();
    u64::from_ne_bytes(count)
}

#[test]
fn single_vectors_get_descriptors_after_the_start_until_the_client_goes() {
    let server = Server::start(&["a", "b"], &[]);
    for _ in 0..2 {
        let mut client = server.connect("a");
        let _memory = bring_up(&mut client);
        let five = vector(&mut client, 5);
        fire(&mut client, 5);
        assert_eq!(told(&five), 1);
        // Another one later, while the first is in use; then the first in a new place.
        let seven = vector(&mut client, 7);
        fire(&mut client, 7);
        fire(&mut client, 5);
        assert_eq!((told(&seven), told(&five)), (1, 1));
        let again = vector(&mut client, 5);
        fire(&mut client, 5);
        assert_eq!(told(&again), 1);
        assert_eq!((&five).read(&mut [0; 8]).unwrap(), 0, "the descriptor before is closed");
        client.reset().unwrap();
        drop(client);
        assert_eq!((&seven).read(&mut [0; 8]).unwrap(), 0, "nothing of a client that is gone is kept");
    }
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
fn two_processes_find_each_other_and_clean_up() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    let options = |lid| vec!["--link", link.to_str().unwrap(), "--lid", lid];
    let mut near = Server::start(&["a"], &options("1"));
    wait("link", || link.exists());
    let mut far = Server::start(&["a"], &options("2"));
    wait("connection", || !link.exists());
    let (status, said) = far.interrupt();
    assert!(status.success() && said.contains("link: connected"), "{said}");
    // The one that is left waits for another.
    wait("link", || link.exists());
    let (status, said) = near.interrupt();
    assert!(status.success() && said.contains("link: broken"), "{said}");
    assert!(!link.exists());
}

/// Processor time in ticks of 10 ms, and how often threads of the server went to sleep.
fn used(server: &Server) -> (u64, u64) {
    let process = format!("/proc/{}", server.process.id());
    let stat = std::fs::read_to_string(format!("{process}/stat")).unwrap();
    let fields: Vec<u64> = stat.rsplit(')').next().unwrap().split_whitespace().filter_map(|f| f.parse().ok()).collect();
    let sleeps = std::fs::read_dir(format!("{process}/task")).unwrap().map(|thread| {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    });
    // utime and stime; the state letter before them is no number.
    (fields.iter().skip(10).take(2).sum(), sleeps.sum())
}

#[test]
fn an_idle_server_sleeps() {
    let server = Server::start(&["a", "b"], &[]);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    thread::sleep(Duration::from_millis(100));
    let before = used(&server);
    thread::sleep(Duration::from_millis(500));
    let after = used(&server);
    assert!(after.0 - before.0 <= 1, "ticks used while idle");
    assert!(after.1 - before.1 <= 1, "threads woke up while idle");
    assert_ne!(read32(&mut client, BAR0, 0x1010), 0);
}
