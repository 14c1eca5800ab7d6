//! BAR0 and configuration space: initialization segment, health, removal, resets, doorbells.

use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_sim::audit::Finding;
use bareverbs_sim::in_process::MemoryMap;
use bareverbs_sim::{Device, DeviceConfig, HcaState, HealthReport};

use crate::host::{Host, be32, input, plain};

#[test]
fn the_initialization_segment() {
    let mut host = Host::new(plain());
    assert_eq!(host.read_be32(0), 0x0027_001c, "version 28.39");
    assert_eq!(host.read_be32(4) >> 16, 5, "revision of the command interface");
    assert_eq!(host.read_be32(0x14) & 0xff, 0x56, "32 slots of 64 bytes, also after a write");
    assert_eq!(host.read_be32(0x1fc) >> 31, 0, "started");
    assert_eq!((host.read_be32(0xff8), host.read_be32(0xffc)), (0, 0), "default timeouts");
    assert_eq!(host.read_be32(0x23c), 0, "no syndrome");
    let (health, timer) = (host.read_be32(0x1010), host.read_be32(0x1004));
    host.wait(Duration::from_millis(100));
    assert_ne!(host.read_be32(0x1010), health);
    assert_eq!(host.read_be32(0x1004) - timer, 100_000_000);
    assert_eq!(host.read_be32(0x3e00), 0);
    assert_eq!(host.read_be32((32 << 20) - 2), u32::MAX, "beyond the BAR");
    let mut byte = [0];
    host.device.bar_read(0x17, &mut byte);
    assert_eq!(byte, [0x56]);
}

#[test]
fn the_initializing_bit_goes_away_with_time() {
    let mut device = Device::new(plain(), Box::new(MemoryMap::default())).unwrap();
    let read = |device: &Device| {
        let mut bytes = [0; 4];
        device.bar_read(0x1fc, &mut bytes);
        u32::from_be_bytes(bytes)
    };
    assert_eq!(read(&device), u32::MAX, "memory space is off");
    device.enable_function();
    assert_eq!(read(&device) >> 31, 1);
    let due = device.next_due().unwrap();
    device.advance(due);
    assert_eq!((read(&device) >> 31, device.next_due()), (0, None));
    device.advance(Instant::from_nanos(0));
    assert_eq!(read(&device) >> 31, 0, "time does not go back");
}

#[test]
fn without_bus_master_nothing_is_fetched() {
    let mut host = Host::new(plain());
    host.device.config_write(4, &2_u16.to_le_bytes());
    host.stage(0, &input(0x104, 16, &[]), 16);
    host.ring(1);
    assert_eq!((host.status_own(0), host.device.state()), (1, HcaState::Disabled));
}

#[test]
fn a_removed_device_is_all_ones_and_does_nothing() {
    let mut host = Host::running(plain());
    host.device.set_removed(true);
    assert_eq!((host.read_be32(0), host.read_be32(0x1010)), (u32::MAX, u32::MAX));
    let mut id = [0; 4];
    host.device.config_read(0, &mut id);
    assert_eq!(id, [0xff; 4]);
    host.stage(0, &input(0x800, 16, &[]), 16);
    host.write_be32(0x18, 1);
    host.run(1_000_000_000);
    assert_eq!((host.status_own(0), host.device.next_due()), (1, None));
    host.device.set_removed(false);
    host.ok(&input(0x800, 16, &[]), 16);
}

#[test]
fn a_fatal_syndrome_stops_the_device_and_is_announced() {
    let mut host = Host::running(plain());
    let uar = host.uar();
    host.eq(uar, 0x10_0000, 4, 1 << 8, 0);
    host.device.set_health(HealthReport { syndrome: 0x10, extended: 0x1234, ..HealthReport::default() });
    assert_eq!((host.read_be32(0x23c), host.read_be32(0x238) >> 31), (0x0010_1234, 0));
    host.ok(&input(0x80d, 16, &[]), 16);
    host.device.set_health(HealthReport { syndrome: 1, reset_required: true, ..HealthReport::default() });
    assert_eq!((host.read_be32(0x238) >> 31, host.read_be32(0x1010) >> 24), (1, 1));
    assert_eq!(host.bytes(0x10_0000, 2)[1], 8, "internal error");
    let counter = host.read_be32(0x1010);
    host.stage(0, &input(0x80d, 16, &[]), 16);
    host.write_be32(0x18, 1);
    host.run(10_000_000_000);
    assert_eq!((host.read_be32(0x1010), host.status_own(0)), (counter, 1));
    // A reset brings it back.
    host.write_be32(0x14, 7 << 8);
    assert_eq!(host.read_be32(0x14) >> 8 & 7, 1, "the interface is disabled");
    host.attach_queue();
    assert_eq!((host.read_be32(0x14) >> 8 & 7, host.read_be32(0x23c), host.device.state()), (0, 0, HcaState::Disabled));
    host.ok(&input(0x104, 16, &[]), 16);
}

#[test]
fn a_frozen_health_counter() {
    let mut host = Host::new(plain());
    host.device.freeze_health(true);
    let counter = host.read_be32(0x1010);
    host.wait(Duration::from_secs(10));
    assert_eq!(host.read_be32(0x1010), counter);
    host.device.freeze_health(false);
    assert_ne!(host.read_be32(0x1010), counter);
}

#[test]
fn the_gateway_shows_the_registers() {
    let mut host = Host::new(plain());
    let mut byte = |at: usize| {
        let mut byte = [0];
        host.device.config_read(at, &mut byte);
        usize::from(byte[0])
    };
    let mut vendor = byte(0x34);
    while byte(vendor) != 9 {
        vendor = byte(vendor + 1);
        assert_ne!(vendor, 0, "no vendor-specific capability");
    }
    let mut register = |reg: usize, value: Option<u32>| {
        let mut bytes = [0; 4];
        match value {
            Some(value) => host.device.config_write(vendor + reg, &value.to_le_bytes()),
            None => host.device.config_read(vendor + reg, &mut bytes),
        }
        u32::from_le_bytes(bytes)
    };
    register(0x04, Some(7));
    assert_eq!(register(0x10, None), 0x240, "as far as the health buffer");
    register(0x10, Some(4));
    let seen = register(0x14, None);
    assert_eq!(register(0x10, None), 1 << 31 | 8);
    assert_eq!(seen, host.read_be32(4));
    assert_eq!(seen >> 16, 5, "revision of the command interface");
}

#[test]
fn the_timer_runs_at_the_frequency_that_the_device_reports() {
    let mut host = Host::running(plain());
    let caps = host.ok(&input(0x100, 16, &[(4, 1)]), 4112);
    let khz = u64::from(be32(&caps, 16 + 156));
    let timer = |host: &Host| u64::from(host.read_be32(0x1000)) << 32 | u64::from(host.read_be32(0x1004));
    let before = timer(&host);
    host.wait(Duration::from_secs(5));
    assert_eq!(timer(&host) - before, khz * 5000);
}

#[test]
fn function_level_reset() {
    let mut host = Host::running(plain());
    host.uar();
    host.device.config_write(0x68, &0xa810_u16.to_le_bytes());
    assert_eq!((host.device.state(), host.device.counts()), (HcaState::Disabled, Default::default()));
    assert_eq!(host.read_be32(0), u32::MAX, "memory space is off after a reset");
    host.device.enable_function();
    assert_eq!(host.read_be32(0x1fc) >> 31, 1, "starting again");
    host.run(1_000_000);
    assert_eq!(host.read_be32(0x10), 0);
    host.attach_queue();
    host.ok(&input(0x104, 16, &[]), 16);
}

/// As the root port makes of requests that a function asks to repeat: a kernel looks at the command register until it is not all ones
/// (Linux `pci_dev_wait`).
#[test]
fn configuration_space_is_all_ones_until_a_function_level_reset_is_over() {
    let mut host = Host::running(DeviceConfig { reset_time: Duration::from_secs(1), ..plain() });
    let read = |host: &mut Host, at: usize| {
        let mut bytes = [0; 4];
        host.device.config_read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    host.device.config_write(0x68, &0xa810_u16.to_le_bytes());
    host.wait(Duration::from_millis(999));
    host.device.config_write(4, &6_u16.to_le_bytes());
    assert_eq!([0, 4, 0x10].map(|at| read(&mut host, at)), [u32::MAX; 3]);
    host.wait(Duration::from_millis(1));
    assert_eq!((read(&mut host, 0) & 0xffff, read(&mut host, 4) & 7), (0x15b3, 0), "what was written meanwhile is lost");
    host.device.config_write(0x68, &0xa810_u16.to_le_bytes());
    assert_eq!(read(&mut host, 0), u32::MAX);
    // A reset of the slot, at which a machine looks for cards at once.
    host.device.reset();
    assert_eq!(read(&mut host, 0) & 0xffff, 0x15b3);
}

#[test]
fn doorbells_for_what_is_not_there() {
    let mut host = Host::running(plain());
    let uar = host.uar();
    let page = u64::from(uar) * 4096;
    host.device.bar_write(page + 0x800, &[0, 0, 0, 0x0a, 0, 0x12, 0x34, 2]);
    host.device.bar_write(page + 0x20, &[0, 0, 0, 0, 0, 0, 0, 9]);
    host.write_be32(page + 0x40, 77 << 24);
    host.device.bar_write(page + 0x100, &[0; 8]);
    host.write_be32(page + 4096 + 0x40, 1 << 24);
    let numbers: Vec<_> = host
        .device
        .audit()
        .findings()
        .iter()
        .map(|finding| match finding {
            Finding::UnknownDoorbell { offset, number, .. } => (*offset, *number),
            Finding::MalformedDoorbell { offset, .. } => (*offset, u32::MAX),
            _ => (0, 0),
        })
        .collect();
    assert_eq!(numbers, [(0x800, 0x1234), (0x20, 9), (0x40, 77), (0x100, u32::MAX), (0x40, 0)]);
}

#[test]
fn a_blueflame_copy_in_eight_writes_rings_once() {
    let mut host = Host::running(plain());
    let page = u64::from(host.uar()) * 4096;
    for i in 0..8 {
        host.device.bar_write(page + 0x900 + i * 8, &[0, 0, 0, 0x0a, 0, 0x12, 0x34, 2]);
    }
    assert_eq!(host.device.audit().findings().len(), 1);
    // A doorbell in two halves counts when the second comes.
    host.device.bar_write(page + 0x800, &[0, 0, 0, 0x0a]);
    assert_eq!(host.device.audit().findings().len(), 1);
    host.device.bar_write(page + 0x804, &[0, 0, 0x56, 2]);
    assert!(matches!(host.device.audit().findings(), [_, Finding::UnknownDoorbell { number: 0x56, .. }]));
    host.device.bar_write(page + 0x800, &[0x55; 64]);
    assert_eq!(host.device.audit().findings().len(), 3);
}
