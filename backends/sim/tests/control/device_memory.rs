//! Memory in the device, by the bytes that Linux sends for it.

use crate::host::{Host, be32, input, plain};

const BAD_PARAM: u8 = 3;
const BAD_RES: u8 = 5;
const BUSY: u8 = 9;
const NO_RESOURCES: u8 = 0xf;

/// Returns where device memory begins in BAR0 and its size, from its page of capabilities.
fn memory(host: &mut Host) -> (u64, u32) {
    let general = host.ok(&input(0x100, 16, &[(4, 1)]), 4112);
    assert_eq!(be32(&general, 16 + 52) >> 23 & 1, 1, "there is some");
    let page = host.ok(&input(0x100, 16, &[(4, 0xf << 1 | 1)]), 4112);
    assert_eq!(be32(&page, 16) >> 31, 1);
    (u64::from(be32(&page, 16 + 8)) << 32 | u64::from(be32(&page, 16 + 12)), be32(&page, 16 + 20))
}

/// ALLOC_MEMIC of `len` bytes in the page at `at`.
fn alloc(at: u64, len: u32) -> Vec<u8> {
    input(0x205, 32, &[(16, (at >> 32) as u32), (20, at as u32), (24, 4096), (28, len)])
}

/// DEALLOC_MEMIC.
fn free(at: u64, len: u32) -> Vec<u8> {
    input(0x206, 32, &[(16, (at >> 32) as u32), (20, at as u32), (24, len)])
}

/// CREATE_MKEY in the access mode of device memory (5: 1 and, above it, 1), local and remote read and write.
fn key(pd: u32, start: u64, len: u32) -> Vec<u8> {
    let rights = 0xf << 10;
    let dwords = [
        (16, 1 << 26 | rights | 1 << 8),
        (16 + 4, 0xffff_ff00),
        (16 + 12, pd),
        (16 + 16, (start >> 32) as u32),
        (16 + 20, start as u32),
        (16 + 28, len),
    ];
    input(0x200, 272, &dwords)
}

#[test]
fn allotted_once_reached_through_the_bar_and_given_back() {
    let mut host = Host::running(plain());
    let (start, size) = memory(&mut host);
    let place = |output: &[u8]| u64::from(be32(output, 8)) << 32 | u64::from(be32(output, 12));
    let first = place(&host.ok(&alloc(start, 64), 16));
    let second = place(&host.ok(&alloc(start + 4096, 4096), 16));
    assert_eq!((first, second), (start, start + 4096));
    assert_eq!(host.command(&alloc(start + 4096, 64), 16).0, NO_RESOURCES, "Linux tries the next page then");
    assert_eq!(host.command(&alloc(start + u64::from(size), 64), 16).0, BAD_PARAM, "past its end");
    host.device.bar_write(second + 8, b"in the device");
    let mut bytes = [0; 13];
    host.device.bar_read(second + 8, &mut bytes);
    assert_eq!(&bytes, b"in the device");
    assert_eq!(host.device.counts().engine.device_memories, 2);

    let pd = be32(&host.ok(&input(0x800, 16, &[]), 16), 8);
    assert_eq!(host.command(&key(pd, first, 65), 16).0, BAD_PARAM, "more than the piece");
    let index = be32(&host.ok(&key(pd, first, 64), 16), 8);
    assert_eq!(host.command(&free(first, 64), 16).0, BUSY);
    assert_eq!(host.command(&free(first + 8, 64), 16).0, BAD_RES);
    host.ok(&free(second, 4096), 16);
    host.ok(&input(0x202, 16, &[(8, index)]), 16);
    host.ok(&free(first, 64), 16);
    host.ok(&input(0x801, 16, &[(8, pd)]), 16);
    assert_eq!(host.device.counts(), Default::default());
    assert!(host.device.audit().findings().is_empty(), "{:?}", host.device.audit().findings());
}
