//! Connections of clients, interrupts, and the end of a server.

use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
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
fn a_client_that_reconnects_has_a_reset_device() {
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
fn an_aborted_or_invalid_connection_frees_its_device() {
    let mut server = Server::start(&["a"], &[]);
    // In the middle of a header; in the middle of a body; with a header of another version.
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

/// Creates an event descriptor for a vector.
fn vector(client: &mut Client, number: u32) -> OwnedFd {
    let descriptor = eventfd(0, EventfdFlags::empty()).unwrap();
    give(client, number, descriptor.as_raw_fd());
    descriptor
}

fn give(client: &mut Client, number: u32, descriptor: RawFd) {
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, number, 1, &[descriptor]).unwrap();
}

fn fire(client: &mut Client, number: u32) {
    let flags = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, number, 1, &[]).unwrap();
}

/// Returns how often an event descriptor was signalled since the last read. Waits for the first signal.
fn told(from: &OwnedFd) -> u64 {
    let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&limit)), Ok(1), "no interrupt");
    let mut count = [0; 8];
    rustix::io::read(from, &mut count).unwrap();
    u64::from_ne_bytes(count)
}

/// Returns the number of event descriptors that the server has open.
fn descriptors(server: &Server) -> usize {
    let folder = std::fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap();
    let links = folder.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.to_str() == Some("anon_inode:[eventfd]")).count()
}

#[test]
fn single_vectors_get_descriptors_after_the_start_until_the_client_goes() {
    let server = Server::start(&["a", "b"], &[]);
    let none = descriptors(&server);
    for _ in 0..2 {
        let mut client = server.connect("a");
        let _memory = bring_up(&mut client);
        let five = vector(&mut client, 5);
        fire(&mut client, 5);
        assert_eq!(told(&five), 1);
        // A second one while the first is in use; then the first at another vector.
        let seven = vector(&mut client, 7);
        fire(&mut client, 7);
        fire(&mut client, 5);
        assert_eq!((told(&seven), told(&five)), (1, 1));
        let again = vector(&mut client, 5);
        fire(&mut client, 5);
        assert_eq!(told(&again), 1);
        assert_eq!(descriptors(&server), none + 2, "the descriptor before is closed");
        client.reset().unwrap();
        drop(client);
        wait("end of the client", || descriptors(&server) == none);
    }
}

/// Returns descriptors on which a write blocks: a counter at its maximum, and a full pipe and socket.
#[test]
fn a_blocking_event_descriptor_blocks_no_device() {
    let mut server = Server::start(&["a", "b"], &[]);
    let mut client = server.connect("a");
    let _memory = bring_up(&mut client);
    let full = eventfd(0, EventfdFlags::empty()).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    give(&mut client, 0, full.as_raw_fd());
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let (_reader, writer) = std::io::pipe().unwrap();
    for (number, descriptor) in [(1, theirs.as_raw_fd()), (2, writer.as_raw_fd())] {
        give(&mut client, number, descriptor);
    }
    let well = vector(&mut client, 3);
    // A pipe holds 64 KiB, which are 8192 writes.
    for _ in 0..10_000 {
        (0..3).for_each(|number| fire(&mut client, number));
    }
    fire(&mut client, 3);
    assert_eq!(told(&well), 1);
    let mut other = server.connect("b");
    let memory = bring_up(&mut other);
    assert_eq!(command(&mut other, &memory, 0x1000, ENABLE_HCA), Some(0));
    assert!(server.interrupt().0.success());
}

#[test]
fn the_server_raises_its_descriptor_limit() {
    let server = Server::start_limited("-Sn 100", &["a"], &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.process.id())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[0], words[1], "soft and hard");
}

/// Each client may use half of the 150 descriptors that the server does not need itself.
#[test]
fn a_client_cannot_use_up_the_descriptors_of_another() {
    let mut server = Server::start_limited("-n 150", &["a", "b"], &["--vectors", "4"]);
    let mut greedy = Raw::connect(&server.path("a"));
    let file = || {
        let file = std::fs::File::from(rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(0x1000).unwrap();
        file
    };
    let taken = (0..100).map_while(|number| greedy.try_map(number << 12, 0x1000, &file()).ok()).count();
    assert!((8..=43).contains(&taken), "{taken}");
    assert_eq!(greedy.map_refused(0x100_0000, 0x1000, &file()), 12, "ENOMEM");
    let mut other = server.connect("b");
    let memory = bring_up(&mut other);
    (0..4).for_each(|number| drop(vector(&mut other, number)));
    assert_eq!(command(&mut other, &memory, 0x1000, ENABLE_HCA), Some(0));
    let (_, said) = server.interrupt();
    assert!(said.contains(&format!("is not taken: the client's mappings are of {taken} files, as many as")), "{said}");
}

#[test]
fn missing_descriptors_are_logged() {
    let mut server = Server::start(&["a"], &[]);
    let mut client = Raw::connect(&server.path("a"));
    let events: Vec<_> = (0..17).map(|_| std::fs::File::from(eventfd(0, EventfdFlags::empty()).unwrap())).collect();
    let events: Vec<&std::fs::File> = events.iter().collect();
    assert_eq!(client.vectors(&events[..16]), 0);
    assert_eq!(client.vectors(&events), 24, "EMFILE");
    drop(client);
    let (_, said) = server.interrupt();
    assert!(said.contains("lid1: a message is refused whose descriptors did not all arrive: 16 may come with one"), "{said}");
}

#[test]
fn a_message_above_the_negotiated_size_disconnects_its_client() {
    const REGION_WRITE: u8 = 10;
    let mut server = Server::start(&["a"], &[]);
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = resident();
    for announced in [0_u32, 15, (1 << 20) + 33, 0xf000_0000] {
        let mut client = Raw::connect(&server.path("a"));
        let header = [7_u16.to_ne_bytes(), u16::from(REGION_WRITE).to_ne_bytes()].concat();
        client.send(&[&header[..], &announced.to_ne_bytes(), &[0; 8]].concat());
        assert!(client.is_closed_after(&vec![1; 1 << 20], 100), "{announced}");
    }
    // The message has a valid length, but the access in it is longer.
    let mut client = Raw::connect(&server.path("a"));
    let access = [&0_u64.to_ne_bytes()[..], &0_u32.to_ne_bytes(), &0xf000_0000_u32.to_ne_bytes(), &[1; 64]].concat();
    assert_eq!(client.error_of(u16::from(REGION_WRITE), &access), 22, "EINVAL");
    assert_eq!(client.error_of(9, &access[..16]), 22, "a read of so much");
    assert!(resident() - before < 50_000, "kB");
    assert_eq!(client.read(CONFIG, 0).to_be() & 0xffff, 0x15b3);
    drop(client);
    let (status, said) = server.interrupt();
    assert!(status.success() && said.contains("announced a message of 4026531840 bytes"), "{said}");
}

#[test]
fn a_closed_standard_error_ends_no_device() {
    let mut server = Server::start(&["a", "b"], &["--trace"]);
    let client = server.connect("a");
    drop(server.process.stderr.take());
    drop(client);
    for device in ["b", "a", "b", "a"] {
        let mut client = server.connect(device);
        let memory = bring_up(&mut client);
        assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    }
    assert!(server.end("-INT").is_some());
}

/// As after Ctrl-S in a terminal: the output of the server is not read.
#[test]
fn a_stopped_terminal_blocks_no_device() {
    let mut server = Server::start(&["a"], &["--trace"]);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    // A pipe holds 64 KiB, far less than the trace of these commands.
    for _ in 0..15_000 {
        assert!(command(&mut client, &memory, 0x1000, ENABLE_HCA).is_some());
    }
    let (_, said) = server.interrupt();
    let told = said.lines().filter(|line| line.contains(" command ")).count();
    assert!(told < 15_000 && said.contains("lines dropped"), "{told}");
}

#[test]
fn ctrl_c_removes_the_sockets_and_prints_statistics() {
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
fn a_client_that_does_not_read_its_interrupts_blocks_no_other() {
    let mut server = Server::start(&["a", "b"], &[]);
    let mut client = server.connect("a");
    let _memory = bring_up(&mut client);
    let full = vector(&mut client, 0);
    let (fired, count) = mpsc::channel();
    // At least the first interrupts arrive. Others may be dropped, but block nobody else.
    let firing = thread::spawn(move || {
        for number in 0..5000 {
            let flags = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
            if client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, 0, 1, &[]).is_err() {
                return;
            }
            fired.send(number).unwrap();
        }
    });
    while count.recv_timeout(Duration::from_millis(500)).is_ok() {}
    let mut other = server.connect("b");
    let memory = bring_up(&mut other);
    assert_eq!(command(&mut other, &memory, 0x1000, ENABLE_HCA), Some(0));
    let (status, said) = server.interrupt();
    assert!(status.success() && said.contains("lid2: 1 commands"), "{said}");
    drop(full);
    firing.join().unwrap();
}

#[test]
fn two_processes_link_their_wires_and_remove_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    let options = |lid| vec!["--link", link.to_str().unwrap(), "--lid", lid];
    let mut near = Server::start(&["a"], &options("1"));
    wait("link", || link.exists());
    let mut far = Server::start(&["a"], &options("2"));
    wait("connection", || !link.exists());
    let (status, said) = far.interrupt();
    assert!(status.success() && said.contains("link: connected"), "{said}");
    // The remaining process waits for another one.
    wait("link", || link.exists());
    let (status, said) = near.interrupt();
    assert!(status.success() && said.contains("link: broken"), "{said}");
    assert!(!link.exists());
}

/// Returns the processor time in clock ticks of 10 ms, and how often threads of the server went to sleep.
fn used(server: &Server) -> (u64, u64) {
    let process = format!("/proc/{}", server.process.id());
    let stat = std::fs::read_to_string(format!("{process}/stat")).unwrap();
    let fields: Vec<u64> = stat.rsplit(')').next().unwrap().split_whitespace().filter_map(|f| f.parse().ok()).collect();
    let sleeps = std::fs::read_dir(format!("{process}/task")).unwrap().map(|thread| {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    });
    // utime and stime. The state letter before them is not a number.
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
