//! Memory of a client: mapped, used, unmapped, and without a descriptor.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::raw::Raw;
use crate::server::{BAR0, CONFIG, ENABLE_HCA, NO_SUCH_COMMAND, Server, bring_up, command, read32, wait};
use rustix::fs::{MemfdFlags, memfd_create};

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
fn access_to_unmapped_memory_is_logged_and_has_no_effect() {
    let mut server = Server::start(&["a"], &[]);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    // A command queue outside of the memory, then a valid one.
    client.region_write(BAR0, 0x14, &0x4000_0000_u32.to_be_bytes()).unwrap();
    client.region_write(BAR0, 0x18, &1_u32.to_be_bytes()).unwrap();
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    client.dma_unmap(0, 1 << 20).unwrap();
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), None, "the memory was taken back");
    let (status, _) = server.interrupt();
    assert_eq!(status.code(), Some(0));
}

/// SET_ISSI (0x10b) in 32 bytes: 16 in the queue's entry, the rest in a mailbox at `mailbox`.
fn set_issi(client: &mut Raw, queue: &File, mailbox: u64) -> [u8; 64] {
    let mut entry = [0; 64];
    (entry[0], entry[7], entry[59], entry[60], entry[63]) = (7, 32, 16, 0x5a, 1);
    entry[8..16].copy_from_slice(&mailbox.to_be_bytes());
    entry[16..18].copy_from_slice(&0x10b_u16.to_be_bytes());
    queue.write_all_at(&entry, 0x1000).unwrap();
    client.write(BAR0, 0x14, &0x1000_u32.to_be_bytes());
    client.write(BAR0, 0x18, &1_u32.to_be_bytes());
    wait("end of the command", || {
        queue.read_exact_at(&mut entry, 0x1000).unwrap();
        entry[63] & 1 == 0
    });
    entry
}

#[test]
fn memory_without_a_descriptor_is_refused_where_it_is_used() {
    let mut server = Server::start(&["a"], &["--no-firmware-pages"]);
    let mut client = Raw::connect(&server.path("a"));
    client.write(CONFIG, 4, &0x0006_u16.to_le_bytes());
    let queue = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
    queue.set_len(0x1_0000).unwrap();
    client.map(0, 0x1_0000, Some(&queue));
    // The mapping succeeds, because the device may never access it.
    client.map(0x10_0000, 0x1_0000, None);
    wait("firmware", || client.read(BAR0, 0x1fc) >> 31 == 0);
    for _ in 0..3 {
        let entry = set_issi(&mut client, &queue, 0x10_2000);
        assert_ne!(entry[63] >> 1, 0, "delivery status");
    }
    // Requests that do not access it work as before.
    let mut entry = [0; 64];
    (entry[0], entry[7], entry[59], entry[60], entry[63]) = (7, 16, 16, 0x5a, 1);
    entry[16..32].copy_from_slice(&ENABLE_HCA);
    queue.write_all_at(&entry, 0x1000).unwrap();
    client.write(BAR0, 0x18, &1_u32.to_be_bytes());
    wait("end of the command", || {
        queue.read_exact_at(&mut entry, 0x1000).unwrap();
        entry[63] & 1 == 0
    });
    assert_eq!((entry[63], entry[32]), (0, 0));
    let (status, said) = server.interrupt();
    assert_eq!(status.code(), Some(0));
    let named: Vec<&str> = said.lines().filter(|line| line.contains("without a descriptor")).collect();
    let line = "lid1: no access to 0x102000: the client offered 0x100000, 65536 bytes, without a descriptor";
    assert_eq!(named, [line], "once for each mapping");
}

/// QEMU unmaps such a range at each reboot of a guest whose IOMMU remaps interrupts: the memory above the interrupt addresses.
#[test]
fn a_range_that_ends_with_the_last_address_is_mapped_used_and_taken_back() {
    const LAST_PAGE: u64 = u64::MAX - 0xfff;
    let server = Server::start(&["a"], &["--no-firmware-pages"]);
    let mut client = Raw::connect(&server.path("a"));
    client.write(CONFIG, 4, &0x0006_u16.to_le_bytes());
    let queue = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
    queue.set_len(0x1000).unwrap();
    assert_eq!(client.try_map(LAST_PAGE, 0x1000, &queue), Ok(()));
    wait("firmware", || client.read(BAR0, 0x1fc) >> 31 == 0);
    let mut entry = [0; 64];
    (entry[0], entry[7], entry[59], entry[60], entry[63]) = (7, 16, 16, 0x5a, 1);
    entry[16..32].copy_from_slice(&ENABLE_HCA);
    queue.write_all_at(&entry, 0).unwrap();
    client.write(BAR0, 0x10, &((LAST_PAGE >> 32) as u32).to_be_bytes());
    client.write(BAR0, 0x14, &(LAST_PAGE as u32).to_be_bytes());
    client.write(BAR0, 0x18, &1_u32.to_be_bytes());
    wait("end of the command", || {
        queue.read_exact_at(&mut entry, 0).unwrap();
        entry[63] & 1 == 0
    });
    assert_eq!((entry[63], entry[32]), (0, 0));
    assert_eq!(client.try_unmap(LAST_PAGE - 0x1000, 0x2000), Ok(()));
    // The range is unmapped, so it can be mapped again.
    assert_eq!(client.try_map(LAST_PAGE, 0x1000, &queue), Ok(()));
}

/// A client truncates its file while the device writes to it: the other device continues, and so does this one with the next
/// client.
#[test]
fn a_truncated_file_disconnects_only_its_client() {
    let mut server = Server::start(&["a", "b"], &[]);
    let mut other = server.connect("b");
    let other_memory = bring_up(&mut other);
    for _ in 0..3 {
        let mut client = server.connect("a");
        let memory = bring_up(&mut client);
        assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
        memory.set_len(0).unwrap();
        // The doorbell makes the device read its command queue, which does not exist any more. The connection may end at any time.
        let _ = client.region_write(BAR0, 0x18, &1_u32.to_be_bytes());
        assert!(client.region_write(BAR0, 0x18, &1_u32.to_be_bytes()).is_err(), "it is given up");
        assert_eq!(command(&mut other, &other_memory, 0x1000, NO_SUCH_COMMAND).unwrap() >> 24, 2);
    }
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    let (status, said) = server.interrupt();
    assert_eq!(status.code(), Some(0));
    assert_eq!(said.matches("lid1: the client has made the file of its memory shorter").count(), 3, "{said}");
}

#[test]
fn memory_that_cannot_be_mapped_is_refused_and_logged() {
    let mut server = Server::start(&["a"], &[]);
    let mut client = Raw::connect(&server.path("a"));
    let file = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(0x1000).unwrap();
    assert_eq!(client.map_refused(0x4_0000, 0x2000, &file), 22, "EINVAL");
    client.map(0x4_0000, 0x1000, Some(&file));
    assert_eq!(client.map_refused(0x4_0000, 0x1000, &file), 22, "EINVAL");
    drop(client);
    let (_, said) = server.interrupt();
    assert!(
        said.contains("lid1: memory at 0x40000, 8192 bytes, is not taken: the file has 4096 bytes, the range ends at 8192\n"),
        "{said}"
    );
    let overlap = "lid1: memory at 0x40000, 4096 bytes, is not taken: the range overlaps the mapping at 0x40000, 4096 bytes\n";
    assert!(said.contains(overlap), "{said}");
}

#[test]
fn a_client_that_offers_too_much_memory_is_refused_and_logged() {
    let mut server = Server::start(&["a", "b"], &["--guest-memory", "1M"]);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    drop(client);
    let mut client = Raw::connect(&server.path("a"));
    // The file is sparse: its pages are charged to the process that touches them first.
    let sparse = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
    sparse.set_len((1 << 20) + 0x1000).unwrap();
    assert_eq!(client.map_refused(0, 0x1000, &sparse), 12, "ENOMEM");
    drop(client);
    // Each client has a limit of its own.
    let mut other = server.connect("b");
    let memory = bring_up(&mut other);
    assert_eq!(command(&mut other, &memory, 0x1000, ENABLE_HCA), Some(0));
    let (_, said) = server.interrupt();
    let told = "lid1: memory at 0x0, 4096 bytes, is not taken: the file has 1052672 bytes, with which the client's files would \
                have more than 1048576 together\n";
    assert!(said.contains(told), "{said}");
}

#[test]
fn a_client_that_is_refused_again_and_again_does_not_fill_the_log() {
    const TIMES: usize = 5000;
    let mut server = Server::start(&["a"], &[]);
    let mut client = Raw::connect(&server.path("a"));
    let file = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(0x1000).unwrap();
    for _ in 0..TIMES {
        assert_eq!(client.map_refused(0x4_0000, 0x2000, &file), 22, "EINVAL");
    }
    drop(client);
    let (_, said) = server.interrupt();
    let told = said.lines().filter(|line| line.contains("is not taken")).count();
    assert!((1..200).contains(&told), "{told}");
    let left_out =
        said.lines().filter_map(|line| line.strip_prefix("lid1: ")?.strip_suffix(" lines about its client left out"));
    assert_eq!(told + left_out.map(|count| count.parse::<usize>().unwrap()).sum::<usize>(), TIMES);
}
