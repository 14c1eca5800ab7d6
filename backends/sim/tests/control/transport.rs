//! How commands travel: mailbox chains, tokens, signatures, slots, delivery errors.

use bareverbs::platform::DmaMemory;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::fault::Fault;

use crate::host::{BASE, Host, be32, input, plain};

const IN_BOX: usize = 0x1_0000;

#[test]
fn a_page_list_over_four_blocks() {
    let mut host = Host::new(plain());
    host.ok(&input(0x104, 16, &[]), 16);
    let mut bytes = input(0x108, 16, &[(4, 1), (12, 200)]);
    (0..200).for_each(|i| bytes.extend((BASE + 0x20_0000 + i * 4096).to_be_bytes()));
    assert_eq!((bytes.len() - 16).div_ceil(512), 4);
    host.ok(&bytes, 16);
    assert_eq!(host.device.counts().pages_held, 200);
    let out = host.ok(&input(0x108, 16, &[(4, 2), (12, 200)]), 16 + 200 * 8);
    assert_eq!(be32(&out, 8), 200);
    let mut pages: Vec<_> = out[16..].as_chunks::<8>().0.iter().map(|page| u64::from_be_bytes(*page)).collect();
    pages.sort_unstable();
    assert_eq!(pages, (0..200).map(|i| BASE + 0x20_0000 + i * 4096).collect::<Vec<_>>());
}

/// Runs a four-block command with memory spoilt before the doorbell. Returns the delivery status.
fn spoilt(spoil: impl FnOnce(&mut Host)) -> u8 {
    let mut host = Host::new(plain());
    host.ok(&input(0x104, 16, &[]), 16);
    let mut bytes = input(0x108, 16, &[(4, 1), (12, 200)]);
    (0..200).for_each(|i| bytes.extend((BASE + 0x20_0000 + i * 4096).to_be_bytes()));
    host.stage(0, &bytes, 4112);
    spoil(&mut host);
    host.ring(1);
    let status = host.status_own(0);
    assert_eq!(status & 1, 0, "handed back all the same");
    assert_eq!(
        host.device.counts().pages_held,
        if status == 0 { 200 } else { 0 },
        "a command that was not delivered did nothing"
    );
    status >> 1
}

#[test]
fn delivery_errors() {
    assert_eq!(spoilt(|_| {}), 0);
    assert_eq!(spoilt(|host| host.memory.write(0, &[6]).unwrap()), 0x10, "type");
    assert_eq!(spoilt(|host| host.memory.write(60, &[1]).unwrap()), 2, "token of the entry");
    assert_eq!(spoilt(|host| host.memory.write(IN_BOX + 2 * 1024 + 573, &[1]).unwrap()), 2, "token of a block");
    assert_eq!(spoilt(|host| host.memory.write(IN_BOX + 1024 + 568, &[0, 0, 0, 9]).unwrap()), 3, "number of a block");
    let first = (BASE + IN_BOX as u64).to_be_bytes();
    assert_eq!(spoilt(|host| host.memory.write(IN_BOX + 560, &first).unwrap()), 3, "a chain that bites its tail");
    assert_eq!(spoilt(|host| host.memory.write(IN_BOX + 560, &[0; 8]).unwrap()), 5, "a chain that is too short");
    assert_eq!(spoilt(|host| host.memory.write(8, &[0; 8]).unwrap()), 5, "no chain");
    assert_eq!(spoilt(|host| host.memory.write(48, &[0; 8]).unwrap()), 4, "no chain for the output");
    assert_eq!(spoilt(|host| host.memory.write(8, &[0xff; 5]).unwrap()), 6, "a chain in no memory");
    assert_eq!(spoilt(|host| host.memory.write(4, &[0xff; 4]).unwrap()), 7, "input of four gigabytes");
    assert_eq!(spoilt(|host| host.memory.write(4, &[0; 4]).unwrap()), 7, "no input");
    assert_eq!(spoilt(|host| host.memory.write(56, &[0xff; 4]).unwrap()), 8, "output of four gigabytes");
}

#[test]
fn thirty_one_commands_at_once() {
    let mut host = Host::running(plain());
    for slot in 0..31 {
        host.stage(slot, &input(0x800, 16, &[]), 16);
    }
    host.ring(0x7fff_ffff);
    let mut pds: Vec<_> = (0..31).map(|slot| (host.status_own(slot), be32(&host.output(slot, 16), 8))).collect();
    pds.sort_unstable();
    pds.dedup();
    assert_eq!(pds.len(), 31);
    assert!(pds.iter().all(|(status, pd)| *status == 0 && *pd != 0));
    assert_eq!(host.device.counts().pds, 31);
}

#[test]
fn a_doorbell_for_a_slot_of_the_host_does_nothing() {
    let mut host = Host::running(plain());
    host.stage(3, &input(0x800, 16, &[]), 16);
    host.memory.write(3 * 64 + 63, &[0]).unwrap();
    let before = host.bytes(3 * 64, 64);
    host.ring(1 << 3 | 1 << 17);
    assert_eq!(host.bytes(3 * 64, 64), before);
    assert_eq!(host.device.counts().pds, 0);
}

#[test]
fn faults_happen_once() {
    let mut host = Host::running(plain());
    host.device.faults_mut().arm(Fault::StuckCommand { opcode: 0x800 });
    host.stage(0, &input(0x800, 16, &[]), 16);
    host.ring(1);
    host.run(60_000_000_000);
    assert_eq!(host.status_own(0), 1, "never handed back");
    host.device.faults_mut().arm(Fault::CommandStatus { opcode: 0x800, status: 8, syndrome: 0xabcdef });
    let (status, out) = host.command(&input(0x800, 16, &[]), 16);
    assert_eq!((status, be32(&out, 4), be32(&out, 8)), (8, 0xabcdef, 0));
    host.device.faults_mut().arm(Fault::DeliveryStatus { opcode: 0x800, status: 1 });
    host.stage(0, &input(0x800, 16, &[]), 16);
    host.ring(1);
    assert_eq!(host.status_own(0), 1 << 1);
    assert_eq!(host.device.counts().pds, 0);
    host.ok(&input(0x800, 16, &[]), 16);
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

#[test]
fn signatures_both_ways_when_checksums_are_on() {
    let mut host = Host::new(DeviceConfig { command_checksum: true, ..plain() });
    let send = |host: &mut Host, bytes: &[u8], out_len: usize| {
        let mut entry = host.stage(0, bytes, out_len);
        for number in 0..bytes.len().saturating_sub(16).div_ceil(512) {
            let mut block = host.bytes(IN_BOX + number * 1024, 576);
            block[574] = !xor(&block[512..574]);
            block[575] = !xor(&block[..575]);
            host.memory.write(IN_BOX + number * 1024, &block).unwrap();
        }
        entry[61] = !xor(&entry);
        host.memory.write(0, &entry).unwrap();
        host.ring(1);
        host.status_own(0)
    };
    host.stage(0, &input(0x104, 16, &[]), 16);
    host.ring(1);
    assert_eq!(host.status_own(0) >> 1, 1, "unsigned");
    assert_eq!(send(&mut host, &input(0x104, 16, &[]), 16), 0);
    assert_eq!(xor(&host.bytes(0, 64)), 0xff, "the entry is signed when it comes back");
    assert_eq!(send(&mut host, &input(0x100, 16, &[]), 4112), 0);
    for number in 0..8 {
        let block = host.bytes(0x4_0000 + number * 1024, 576);
        assert_eq!((xor(&block), xor(&block[512..575])), (0xff, 0xff), "block {number}");
    }
    let mut set = input(0x109, 4112, &[]);
    set[16..].copy_from_slice(&host.output(0, 4112)[16..]);
    set[16 + 64 + 2] &= 0x3f; // cmdif_checksum
    assert_eq!(send(&mut host, &set, 16), 0);
    host.ok(&input(0x102, 32, &[]), 16);
}
