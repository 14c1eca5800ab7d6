//! Event queues and interrupts.

use std::sync::{Arc, Mutex};

use bareverbs::platform::Instant;
use bareverbs_sim::audit::Finding;
use bareverbs_sim::fault::Fault;
use bareverbs_sim::trace::{Record, Tracer};
use bareverbs_sim::{DeviceConfig, InterruptRouting};

use crate::host::{Host, be32, input, plain};

const RING: usize = 0x10_0000;

fn with_command_eq(config: DeviceConfig, log_size: u32) -> (Host, u32, u32) {
    let mut host = Host::running(config);
    let uar = host.uar();
    let eqn = host.eq(uar, RING, log_size, 1 << 10, 3);
    (host, uar, eqn)
}

fn entry(host: &Host, index: usize) -> Vec<u8> {
    host.bytes(RING + index * 64, 64)
}

#[test]
fn commands_are_announced_once_there_is_a_queue_for_it() {
    let (mut host, uar, eqn) = with_command_eq(plain(), 2);
    assert_eq!(entry(&host, 0)[63], 1, "not for the command that created the queue");
    host.arm_eq(uar, eqn, 0);
    host.stage(5, &input(0x800, 16, &[]), 16);
    host.ring(1 << 5);
    let eqe = entry(&host, 0);
    assert_eq!((eqe[1], eqe[3], be32(&eqe, 32), eqe[63]), (0x0a, 0, 1 << 5, 0));
    assert_eq!(host.device.take_interrupts(), [3]);
    host.ok(&input(0x800, 16, &[]), 16);
    assert_eq!(entry(&host, 1)[63], 0);
    assert!(host.device.take_interrupts().is_empty(), "fired, not armed again");
    host.arm_eq(uar, eqn, 1);
    assert_eq!(host.device.take_interrupts(), [3], "armed with an entry that the host has not seen");
    host.arm_eq(uar, eqn, 2);
    for _ in 0..3 {
        host.ok(&input(0x80d, 16, &[]), 16);
    }
    assert_eq!(host.device.take_interrupts(), [3], "once for three");
    assert_eq!(entry(&host, 0)[63], 1, "the second time round the owner bit is turned");
    host.ok(&input(0x302, 16, &[(8, eqn)]), 16);
    assert_eq!(entry(&host, 1)[63], 0, "the end of the queue is not announced");
    assert_eq!(host.device.audit().findings(), []);
}

#[test]
fn a_full_queue_takes_no_more() {
    let (mut host, uar, eqn) = with_command_eq(plain(), 2);
    for _ in 0..5 {
        host.ok(&input(0x80d, 16, &[]), 16);
    }
    assert_eq!(host.device.stats().events_dropped, 1);
    let query = host.ok(&input(0x303, 16, &[(8, eqn)]), 272);
    assert_eq!(query[16] >> 4, 9, "overflow");
    assert_eq!(be32(&query, 16 + 44), 4, "producer");
    host.write_be32(u64::from(uar) * 4096 + 0x48, eqn << 24 | 9);
    assert!(matches!(host.device.audit().findings(), [Finding::ConsumerPastProducer { consumer: 9, .. }]));
}

#[test]
fn masked_vectors_wait() {
    let (mut host, uar, eqn) = with_command_eq(plain(), 6);
    host.device.bar_write(0x2000 + 3 * 16 + 12, &1_u32.to_le_bytes());
    host.arm_eq(uar, eqn, 0);
    host.ok(&input(0x80d, 16, &[]), 16);
    assert!(host.device.take_interrupts().is_empty());
    let mut pending = [0; 8];
    host.device.bar_read(0x3000, &mut pending);
    assert_eq!(pending, [1 << 3, 0, 0, 0, 0, 0, 0, 0]);
    host.device.bar_write(0x2000 + 3 * 16 + 12, &0_u32.to_le_bytes());
    assert_eq!(host.device.take_interrupts(), [3]);
    // The same through the function's mask in configuration space.
    let mut control = [0; 2];
    host.device.config_read(0x9e, &mut control);
    host.device.config_write(0x9e, &(u16::from_le_bytes(control) | 0x4000).to_le_bytes());
    host.arm_eq(uar, eqn, 1);
    host.ok(&input(0x80d, 16, &[]), 16);
    assert!(!host.device.has_interrupts());
    host.device.config_write(0x9e, &control);
    assert_eq!(host.device.take_interrupts(), [3]);
}

#[test]
fn a_host_that_keeps_the_table_gets_every_vector() {
    let (mut host, uar, eqn) = with_command_eq(DeviceConfig { interrupts: InterruptRouting::External, ..plain() }, 6);
    host.device.bar_write(0x2000 + 3 * 16 + 12, &1_u32.to_le_bytes());
    host.arm_eq(uar, eqn, 0);
    host.ok(&input(0x80d, 16, &[]), 16);
    assert_eq!(host.device.take_interrupts(), [3]);
}

#[test]
fn lost_interrupts_and_wrong_types() {
    let (mut host, uar, eqn) = with_command_eq(plain(), 6);
    host.device.faults_mut().arm(Fault::LostInterrupt { vector: 3 });
    host.arm_eq(uar, eqn, 0);
    host.ok(&input(0x80d, 16, &[]), 16);
    assert!(!host.device.has_interrupts());
    host.device.faults_mut().arm(Fault::EventType { event_type: 0xee });
    host.ok(&input(0x80d, 16, &[]), 16);
    assert_eq!(entry(&host, 1)[1], 0xee);
}

#[test]
fn the_cable() {
    let mut host = Host::running(plain());
    let uar = host.uar();
    host.eq(uar, RING, 4, 1 << 9, 1);
    host.device.set_link(false);
    host.device.set_link(false);
    host.device.set_link(true);
    let (down, up) = (entry(&host, 0), entry(&host, 1));
    assert_eq!((down[1], down[3], down[32 + 8]), (9, 1, 0x10));
    assert_eq!((up[1], up[3], up[63], entry(&host, 2)[63]), (9, 4, 0, 1), "once for each change");
    // The driver turns the port off itself.
    let mut paos = input(0x805, 32, &[(8, 0x5006)]);
    // Local port 1, state 2 (down), the update enabled.
    (paos[17], paos[18], paos[20]) = (1, 2, 0x80);
    assert_eq!(host.ok(&paos, 32)[19] & 0xf, 2);
    assert_eq!((entry(&host, 2)[3], host.device.link_is_up()), (1, false));
}

/// Keeps each record as a line.
struct Lines(Arc<Mutex<Vec<String>>>);

impl Tracer for Lines {
    fn record(&mut self, now: Instant, record: Record<'_>) {
        let line = match record {
            Record::Command { slot, input, output } => {
                format!("command {slot} {:?} {}/{}", &input[..2], input.len(), output.len())
            }
            Record::Doorbell { offset, bytes, .. } => format!("doorbell {offset:#x} {}", bytes.len()),
            Record::Eqe { eqn, index, bytes } => format!("eqe {eqn} {index} type {}", bytes[1]),
            Record::Interrupt { vector } => format!("interrupt {vector}"),
            Record::Note(_) => "note".into(),
            other => format!("{other:?}"),
        };
        assert!(now.as_nanos() > 0);
        self.0.lock().unwrap().push(line);
    }
}

#[test]
fn a_listener_hears_what_happens_in_its_order() {
    let (mut host, uar, eqn) = with_command_eq(plain(), 6);
    let lines = Arc::new(Mutex::new(Vec::new()));
    host.device.set_tracer(Some(Box::new(Lines(Arc::clone(&lines)))));
    host.arm_eq(uar, eqn, 0);
    host.ok(&input(0x100, 16, &[]), 4112);
    host.command(&input(0xbad, 16, &[]), 16);
    host.device.set_tracer(None);
    host.ok(&input(0x80d, 16, &[]), 16);
    let eqe = |index: u32| format!("eqe {eqn} {index} type 10");
    let expected =
        ["doorbell 0x40 4", "command 0 [1, 0] 16/4112", &eqe(0), "interrupt 3", "note", "command 0 [11, 173] 16/16", &eqe(1)];
    assert_eq!(*lines.lock().unwrap(), expected);
}

#[test]
fn contexts_that_cannot_be() {
    let mut host = Host::running(plain());
    let uar = host.uar();
    let page = crate::host::BASE + RING as u64;
    let create = |log_size: u32, uar: u32, vector: u32, pages: &[u64]| {
        let mut bytes = input(0x301, 272, &[(16 + 12, log_size << 24 | uar), (16 + 20, vector)]);
        pages.iter().for_each(|page| bytes.extend(page.to_be_bytes()));
        bytes
    };
    assert_eq!(host.command(&create(6, uar + 1, 0, &[page]), 16).0, 5, "UAR");
    assert_eq!(host.command(&create(6, uar, 32, &[page]), 16).0, 3, "vector");
    assert_eq!(host.command(&create(7, uar, 0, &[page]), 16).0, 3, "a page for two");
    assert_eq!(host.command(&create(31, uar, 0, &[page]), 16).0, 3, "size");
    assert_eq!(host.command(&create(6, uar, 0, &[page + 64]), 16).0, 3, "alignment");
    host.ok(&create(6, uar, 0, &[page]), 16);
    // Its memory need not be there: the device finds out when it writes.
    host.ok(&create(6, uar, 0, &[0xdead_0000_0000]), 16);
    assert_eq!(host.device.counts().eqs, 2);
}
