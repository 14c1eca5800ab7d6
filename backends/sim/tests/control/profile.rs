//! What a card takes its time for, and what it asks for: link, local identifier, reset, commands, pages.

use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_sim::{CommandTime, DeviceConfig, PageDemand, Profile};

use crate::host::*;

const RING: usize = 0x10_0000;
const TRAINING: Duration = Duration::from_secs(3);
const SWEEP: Duration = Duration::from_secs(10);

/// Returns a device whose port becomes active as late as that of a card.
fn late() -> DeviceConfig {
    DeviceConfig { link_training: TRAINING, lid_delay: SWEEP, no_lid: 0xffff, mtu_while_down: false, ..plain() }
}

/// `PortPhysicalState`, `PortState`, LID, LID of the subnet manager.
fn port(host: &mut Host) -> (u32, u32, u16, u16) {
    let out = host.ok(&input(0x762, 16, &[]), 528);
    let context = &out[16..];
    let states = be32(context, 32);
    (states >> 12 & 0xf, states & 0xf, be16(context, 0x60), be16(context, 0x64))
}

/// PMTU: maximum and operational MTU.
fn mtu(host: &mut Host) -> (u16, u16) {
    let mut read = input(0x805, 32, &[(4, 1), (8, 0x5003)]);
    read[17] = 1;
    let pmtu = host.ok(&read, 32);
    (be16(&pmtu, 16 + 4), be16(&pmtu, 16 + 12))
}

/// Subtypes of the port's events so far.
fn changes(host: &Host) -> Vec<u8> {
    let eqes = (0..16).map(|index| host.bytes(RING + index * 64, 64));
    eqes.take_while(|eqe| eqe[63] == 0).map(|eqe| eqe[3] << 4 | eqe[32 + 8] >> 4).collect()
}

/// Runs the device from one thing due to the next, for `duration`.
fn pass(host: &mut Host, duration: Duration) {
    let end = host.now + duration.as_nanos() as u64;
    while let Some(due) = host.device.next_due().filter(|due| due.as_nanos() < end) {
        host.run(due.as_nanos().saturating_sub(host.now));
    }
    host.run(end - host.now);
}

/// `MLX5_PORT_CHANGE_SUBTYPE_*` of Linux, and port 1.
const DOWN: u8 = 1 << 4 | 1;
const INITIALIZED: u8 = 5 << 4 | 1;
const ACTIVE: u8 = 4 << 4 | 1;
const LID: u8 = 6 << 4 | 1;

#[test]
fn a_link_trains_after_init_hca_and_the_lid_comes_later() {
    let mut host = Host::running(late());
    let uar = host.uar();
    host.eq(uar, RING, 4, 1 << 9, 1);
    assert_eq!((port(&mut host), mtu(&mut host)), ((4, 1, 0xffff, 0), (4096, 0)), "trains");
    pass(&mut host, TRAINING - Duration::from_millis(1));
    assert_eq!((port(&mut host).0, changes(&host)), (4, vec![]));
    pass(&mut host, Duration::from_millis(1));
    assert_eq!((port(&mut host), mtu(&mut host)), ((5, 2, 0xffff, 0), (4096, 4096)), "a link, no manager yet");
    assert_eq!((changes(&host), host.device.link_is_up()), (vec![INITIALIZED], false));
    pass(&mut host, SWEEP);
    assert_eq!((port(&mut host), host.device.link_is_up()), ((5, 4, 7, 1), true));
    assert_eq!(changes(&host), [INITIALIZED, LID, ACTIVE]);
    assert_eq!(host.device.next_due(), None);
}

#[test]
fn a_pulled_cable_trains_again_and_the_lid_stays() {
    let mut host = Host::running(late());
    let uar = host.uar();
    host.eq(uar, RING, 4, 1 << 9, 1);
    pass(&mut host, TRAINING + SWEEP);
    host.device.set_link(false);
    assert_eq!(port(&mut host), (2, 1, 7, 1));
    host.device.set_link(true);
    pass(&mut host, TRAINING / 2);
    // Pulled again before it is up.
    host.device.set_link(false);
    pass(&mut host, TRAINING);
    assert_eq!(port(&mut host).0, 2);
    host.device.set_link(true);
    pass(&mut host, TRAINING);
    assert_eq!(port(&mut host), (5, 2, 7, 1));
    pass(&mut host, SWEEP);
    assert_eq!(port(&mut host), (5, 4, 7, 1));
    assert_eq!(changes(&host), [INITIALIZED, LID, ACTIVE, DOWN, INITIALIZED, ACTIVE]);
    // Pulled before the subnet has found it.
    host.device.set_link(false);
    host.device.set_link(true);
    pass(&mut host, TRAINING + SWEEP / 2);
    host.device.set_link(false);
    pass(&mut host, SWEEP);
    assert_eq!(changes(&host)[6..], [DOWN, INITIALIZED, DOWN]);
}

#[test]
fn teardown_takes_the_link_down_and_a_reset_the_lid() {
    let mut host = Host::running(late());
    pass(&mut host, TRAINING + SWEEP);
    host.ok(&input(0x103, 16, &[]), 16);
    assert_eq!(port(&mut host), (2, 1, 7, 1));
    pass(&mut host, TRAINING);
    assert_eq!(port(&mut host).0, 2, "nobody trains it");
    host.ok(&input(0x102, 32, &[]), 16);
    assert_eq!(port(&mut host).0, 4);
    pass(&mut host, TRAINING + SWEEP);
    assert_eq!(port(&mut host).1, 4);
    host.ok(&input(0x103, 16, &[]), 16);
    host.ok(&input(0x105, 16, &[]), 16);
    host.ok(&input(0x104, 16, &[]), 16);
    host.ok(&input(0x102, 32, &[]), 16);
    assert_eq!(port(&mut host), (4, 1, 0xffff, 0));
}

#[test]
fn a_managed_port_trains_and_then_waits_for_its_manager() {
    let mut host = Host::running(DeviceConfig { managed: true, ..late() });
    pass(&mut host, TRAINING);
    assert_eq!(port(&mut host), (5, 2, 0xffff, 0));
    pass(&mut host, SWEEP * 2);
    assert_eq!(port(&mut host), (5, 2, 0xffff, 0));
}

#[test]
fn during_a_reset_registers_read_as_ones_and_take_nothing() {
    let reset_time = Duration::from_millis(100);
    let initializing = Duration::from_millis(1);
    let mut host = Host::running(DeviceConfig { reset_time, initializing, ..plain() });
    assert_eq!(host.read_be32(0), 0x0027_001c, "a device that was not reset answers");
    host.device.reset();
    host.device.enable_function();
    let due = |host: &Host, time| Some(Instant::from_nanos(host.now).after(time));
    assert_eq!((host.read_be32(0), host.device.next_due()), (u32::MAX, due(&host, reset_time + initializing)));
    host.write_be32(0x14, 0xabc_d000);
    host.wait(reset_time - Duration::from_nanos(1));
    assert_eq!(host.read_be32(0x1fc), u32::MAX);
    host.wait(Duration::from_nanos(1));
    assert_eq!((host.read_be32(0x1fc) >> 31, host.read_be32(0x14) >> 12), (1, 0), "initializing, and the write is lost");
    host.wait(initializing);
    assert_eq!(host.read_be32(0x1fc) >> 31, 0);
    host.attach_queue();
    host.ok(&input(0x104, 16, &[]), 16);
}

#[test]
fn commands_take_their_time_one_after_the_other() {
    let (usual, start) = (Duration::from_millis(2), Duration::from_millis(300));
    let mut host = Host::new(DeviceConfig { command_time: CommandTime { other: usual, start }, ..plain() });
    let wait = |host: &mut Host, time: Duration, slots: &[usize]| {
        host.wait(time - Duration::from_nanos(1));
        assert!(slots.iter().all(|slot| host.status_own(*slot) == 1), "before {time:?}");
        host.wait(Duration::from_nanos(1));
        slots.first().map(|slot| host.status_own(*slot))
    };
    host.stage(0, &input(0x104, 16, &[]), 16);
    host.write_be32(0x18, 1);
    host.run(0);
    assert_eq!(wait(&mut host, start, &[0]), Some(0));
    // Two at once: NOP in slots 3 and 5.
    for slot in [3, 5] {
        host.stage(slot, &input(0x80d, 16, &[]), 16);
    }
    host.write_be32(0x18, 1 << 3 | 1 << 5);
    host.run(0);
    assert_eq!(wait(&mut host, usual, &[3, 5]), Some(0));
    assert_eq!(wait(&mut host, usual, &[5]), Some(0));
    assert_eq!(host.device.next_due(), None);
    // A reset forgets what it was at.
    host.stage(0, &input(0x102, 32, &[]), 16);
    host.write_be32(0x18, 1);
    host.run(0);
    host.device.reset();
    host.device.enable_function();
    host.wait(Duration::from_millis(1));
    host.attach_queue();
    host.stage(0, &input(0x80d, 16, &[]), 16);
    host.write_be32(0x18, 1);
    host.run(0);
    assert_eq!(wait(&mut host, usual, &[0]), Some(0));
}

/// SET_HCA_CAP with the current capabilities, but for `log_max_qp` (dword 16, bits 4..0 of the page).
fn set_log_max_qp(host: &mut Host, log: u8) {
    let current = host.ok(&input(0x100, 16, &[(4, 1)]), 16 + 4096);
    let mut set = input(0x109, 16 + 4096, &[]);
    set[16..].copy_from_slice(&current[16..]);
    set[16 + 0x13] = set[16 + 0x13] & !0x1f | log;
    host.ok(&set, 16);
}

fn asks(host: &mut Host, when: u32) -> i32 {
    be32(&host.ok(&input(0x107, 16, &[(4, when)]), 16), 12) as i32
}

fn give(host: &mut Host, first: u32, count: u32) -> u8 {
    let mut bytes = input(0x108, 16, &[(4, 1), (12, count)]);
    (first..first + count).for_each(|page| bytes.extend((BASE + 0x20_0000 + u64::from(page) * 4096).to_be_bytes()));
    host.command(&bytes, 16).0
}

#[test]
fn the_pages_go_with_the_queue_pairs_that_the_driver_sets() {
    let pages = DeviceConfig::profile(Profile::ConnectX4Lx, 7).pages;
    let initial_log_max_qp = Some(14);
    let mut host = Host::new(DeviceConfig { pages, initial_log_max_qp, ..plain() });
    host.ok(&input(0x104, 16, &[]), 16);
    assert_eq!(asks(&mut host, 1), 6);
    assert_eq!(give(&mut host, 0, 6), 0);
    assert_eq!(asks(&mut host, 2), 2489, "of its own");
    for (log, init) in [(17, 12_868), (11, 1192), (1, 1007), (8, 1030)] {
        set_log_max_qp(&mut host, log);
        assert_eq!(asks(&mut host, 2), init, "2^{log}");
    }
    assert_eq!(host.command(&input(0x102, 32, &[]), 16).0, 0xf, "INIT_HCA without them");
    assert_eq!(give(&mut host, 6, 1030), 0);
    host.ok(&input(0x102, 32, &[]), 16);
    // The tables take them all, so the first objects make it ask for more.
    let uar = host.uar();
    host.eq(uar, RING, 4, 1 << 11, 0);
    let eqe = host.bytes(RING, 64);
    assert_eq!((eqe[63], eqe[1]), (0, 0x0b));
    assert!(be32(&eqe, 36) as i32 > 0);
}

#[test]
fn a_queue_pair_count_of_before_a_reset_is_forgotten() {
    let pages = DeviceConfig::profile(Profile::ConnectX4Lx, 7).pages;
    let mut host = Host::new(DeviceConfig { pages, initial_log_max_qp: Some(14), ..plain() });
    host.ok(&input(0x104, 16, &[]), 16);
    assert_eq!(give(&mut host, 0, 6), 0);
    set_log_max_qp(&mut host, 1);
    host.ok(&input(0x105, 16, &[]), 16);
    host.ok(&input(0x104, 16, &[]), 16);
    assert_eq!(asks(&mut host, 2), 6 + 2489);
}

#[test]
fn a_query_for_regular_pages_may_answer_with_a_negative_number() {
    let pages = PageDemand { boot: 2, init: 5, chunk: 4, surplus: true, ..PageDemand::NONE };
    let mut host = Host::new(DeviceConfig { pages, ..plain() });
    host.ok(&input(0x104, 16, &[]), 16);
    assert_eq!(give(&mut host, 0, 2), 0);
    assert_eq!((asks(&mut host, 2), asks(&mut host, 3)), (9, 0));
    assert_eq!(give(&mut host, 2, 9), 0);
    assert_eq!((asks(&mut host, 2), asks(&mut host, 3)), (0, -4));
    let out = host.ok(&input(0x108, 16, &[(4, 2), (12, 4)]), 16 + 4 * 8);
    assert_eq!((be32(&out, 8), asks(&mut host, 3)), (4, 0));
    host.ok(&input(0x102, 32, &[]), 16);
}

#[test]
fn all_pages_may_come_in_one_command() {
    let pages = PageDemand { init: 5000, log_max_qp: Some(14), ..PageDemand::NONE };
    let mut host = Host::new(DeviceConfig { pages, initial_log_max_qp: Some(14), ..plain() });
    host.ok(&input(0x104, 16, &[]), 16);
    assert_eq!(asks(&mut host, 2), 5000);
    assert_eq!(give(&mut host, 0, 5001), 8, "more than it asks for");
    assert_eq!(give(&mut host, 0, 5000), 3, "looked at: not all of them are memory");
    assert_eq!(give(&mut host, 0, 3000), 0);
    assert_eq!(asks(&mut host, 2), 2000);
}

#[test]
fn spare_pages_may_come_in_that_command_too() {
    // Fewer to boot than to spare, and more than any command moves otherwise.
    let pages = PageDemand { boot: 2, init: 5000, chunk: 8, surplus: true, ..PageDemand::NONE };
    let mut host = Host::new(DeviceConfig { pages, ..plain() });
    host.ok(&input(0x104, 16, &[]), 16);
    assert_eq!(give(&mut host, 0, 2), 0);
    assert_eq!(asks(&mut host, 2), 5008);
    assert_eq!(give(&mut host, 2, 5011), 8, "more than it asks for");
    // Looked at: not all of them are memory.
    assert_eq!(give(&mut host, 2, 5008), 3);
}
