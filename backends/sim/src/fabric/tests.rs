use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use super::*;
use crate::config::DeviceConfig;
use crate::fabric::frame_pool::CAPACITY;
use crate::host_memory::DmaFault;
use crate::packet::{Bth, Lrh, MULTICAST_QPN, Opcode, Operation, Packet, Place, Transport};
use crate::wire::PerfectWire;

struct NoMemory;

impl HostMemory for NoMemory {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        Err(DmaFault { addr, len: into.len() })
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        Err(DmaFault { addr, len: from.len() })
    }
}

/// Returns a frame from a local identifier for another one, with a mark.
fn frame(slid: u16, dlid: u16, mark: u32) -> Vec<u8> {
    let mut frame = vec![0, 0];
    frame.extend(dlid.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(slid.to_be_bytes());
    frame.extend(mark.to_be_bytes());
    frame.resize(64, 0);
    frame
}

fn mark(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[8..12].try_into().unwrap())
}

/// Devices with the LIDs from 1 on, which send only what the tests give their ports.
struct Rig {
    fabric: Fabric<PerfectWire>,
    devices: Vec<(Port, Device)>,
    now: Instant,
}

impl Rig {
    fn new(count: u16) -> Self {
        Self::with_latency(count, Duration::ZERO)
    }

    fn with_latency(count: u16, latency: Duration) -> Self {
        let mut wire = PerfectWire::new(latency);
        let device = |lid| Device::new(DeviceConfig::with_lid(lid), Box::new(NoMemory)).unwrap();
        let devices: Vec<Device> = (1..=count).map(device).collect();
        for device in &devices {
            wire.attach(device.identity());
        }
        let mut fabric = Fabric::new(wire, None);
        let devices = devices.into_iter().map(|device| (fabric.add_port(), device)).collect();
        let mut rig = Self { fabric, devices, now: Instant::from_nanos(1_000_000) };
        // Started, they have nothing to do.
        (0..count.into()).for_each(|at| rig.step(at));
        rig
    }

    /// Has a device's port send frames with marks from 0 on, as far as there is room now.
    fn send(&mut self, from: usize, dlid: u16, count: u32) {
        self.devices[from].0.outgoing.extend((0..count).map(|number| frame(from as u16 + 1, dlid, number)));
        self.step(from);
    }

    fn step(&mut self, at: usize) {
        let (port, device) = &mut self.devices[at];
        self.fabric.step(port, device, self.now);
    }

    /// Takes frames out of an inbox, as a device's step does; their marks.
    fn take(&mut self, at: usize, most: usize) -> Vec<u32> {
        let mut frames = VecDeque::new();
        let reached = &mut self.devices[at].0.reached;
        self.fabric.inboxes[at].take(&mut frames, most, |source| {
            if let Source::Port(port) = source {
                reach(reached, port);
            }
        });
        frames.iter().map(|frame| mark(frame)).collect()
    }

    fn waiting(&self, at: usize) -> usize {
        self.devices[at].0.outgoing.len()
    }
}

#[test]
fn a_device_that_stands_still_costs_the_others_only_what_they_send_to_it() {
    let (a, b, c) = (0, 1, 2);
    let mut rig = Rig::new(3);
    rig.send(b, 1, 10);
    assert_eq!(rig.take(a, 64), Vec::from_iter(0..10));
    // More than c has room for, and behind that something for b: it has to wait.
    rig.send(a, 3, 2 * MAX_FRAMES as u32);
    rig.send(a, 2, 5);
    assert!(!rig.fabric.has_frames(PortId(b)));
    // No other device waits meanwhile, not even for c.
    rig.send(b, 1, 10);
    rig.send(b, 3, 1);
    assert_eq!((rig.take(a, 64), rig.waiting(b)), (Vec::from_iter(0..10), 0));
    let due = rig.fabric.next_due(&rig.devices[a].0, &rig.devices[a].1);
    assert_eq!(due, Some(rig.now.after(LIFETIME)), "the runner of a comes back for it");
    rig.now = rig.now.after(LIFETIME);
    rig.step(a);
    assert_eq!((rig.take(b, 64), rig.waiting(a)), (Vec::from_iter(0..5), 0));
    // From now on it waits no more.
    rig.send(a, 3, 5000);
    rig.send(a, 2, 5);
    assert_eq!(rig.take(b, 64), Vec::from_iter(0..5));
    assert_eq!(rig.fabric.discarded(PortId(c)), 2 * MAX_FRAMES as u64 + 5000);
    // What b sent is still there, and when c takes frames again, a reaches it.
    assert_eq!(rig.take(c, 64), [0]);
    rig.send(a, 3, 3);
    assert_eq!(rig.take(c, 64), [0, 1, 2]);
}

#[test]
fn a_full_inbox_delays_the_sender_and_loses_nothing() {
    let (a, b) = (0, 1);
    let mut rig = Rig::new(2);
    let count = 3 * MAX_FRAMES as u32;
    rig.send(a, 2, count);
    let mut got = Vec::new();
    for _ in 0..count {
        let before = got.len();
        got.extend(rig.take(b, 64));
        assert!(got.len() > before || got.len() == count as usize, "something comes whenever it is waited for");
        let woken: Vec<PortId> = rig.devices[b].0.take_reached().collect();
        if woken.contains(&PortId(a)) {
            rig.step(a);
        }
        if got.len() == count as usize {
            break;
        }
    }
    assert!(got.into_iter().eq(0..count), "each once, in order");
    assert_eq!(rig.fabric.discarded(PortId(b)), 0);
}

#[test]
fn one_sender_does_not_crowd_out_another() {
    let (a, b, c) = (0, 1, 2);
    let mut rig = Rig::new(3);
    rig.send(a, 3, 2 * MAX_FRAMES as u32);
    assert!(rig.waiting(a) > 0, "its share is full");
    rig.send(b, 3, 5);
    assert_eq!(rig.waiting(b), 0);
    assert_eq!(rig.take(c, 10), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], "one of each in turn");
    // Long frames are bounded by their bytes.
    let long = vec![frame(2, 1, 0).into_iter().chain([0; 4096]).collect::<Vec<u8>>(); MAX_FRAMES];
    rig.devices[b].0.outgoing.extend(long);
    rig.step(b);
    let held: usize = (0..MAX_FRAMES).map_while(|_| rig.take(a, 1).pop()).count();
    assert!(held * 4096 <= MAX_BYTES && held > 100, "{held}");
}

#[test]
fn frames_from_elsewhere_wait_for_room_too() {
    let mut rig = Rig::new(1);
    let mut reached = 0;
    let refused = (0..2 * MAX_FRAMES as u32).find(|&number| {
        let arrived = rig.fabric.arrive(frame(9, 1, number), rig.now, |_| reached += 1);
        arrived.is_err()
    });
    let most = refused.expect("there is an end");
    assert_eq!(reached, most);
    assert_eq!(rig.take(0, MAX_FRAMES).len() as u32, most);
    assert!(rig.fabric.arrive(frame(9, 1, 0), rig.now, |_| {}).is_ok());
    assert!(rig.fabric.arrive(frame(8, 9, 0), rig.now, |_| reached = 0).is_ok() && reached > 0, "for no port here");
}

/// A local identifier of a group.
const GROUP: u16 = 0xc001;

#[test]
fn frames_for_a_group_take_room_on_the_wire() {
    let latency = Duration::from_micros(1);
    let mut rig = Rig::with_latency(3, latency);
    let count = 3 * MAX_FRAMES as u32;
    rig.send(0, GROUP, count);
    let mut got = [Vec::new(), Vec::new()];
    while rig.waiting(0) > 0 || rig.fabric.wire_due().is_some() {
        let on_wire = rig.fabric.wire_mut().in_flight(PortId(0));
        // Two deliveries of each; what two full queues contain, and one more at most.
        assert!(on_wire <= 2 * (MAX_FRAMES / 4) + 1, "{on_wire} deliveries at once");
        let due = rig.fabric.next_due(&rig.devices[0].0, &rig.devices[0].1);
        assert!(rig.waiting(0) == 0 || due == rig.fabric.wire_due(), "it continues when some arrive");
        rig.now = rig.now.after(latency);
        rig.fabric.deliver(rig.now, |_| {});
        // The members take all that came.
        for (at, got) in got.iter_mut().enumerate() {
            got.extend(rig.take(at + 1, MAX_FRAMES));
        }
        rig.step(0);
    }
    assert_eq!(got, [Vec::from_iter(0..count), Vec::from_iter(0..count)], "each once, in order");
}

#[test]
fn long_frames_for_a_group_are_bounded_by_their_bytes() {
    let mut rig = Rig::new(2);
    let long = vec![frame(1, GROUP, 0).into_iter().chain([0; 4096]).collect::<Vec<u8>>(); MAX_FRAMES];
    rig.devices[0].0.outgoing.extend(long);
    while rig.waiting(0) > 0 {
        rig.step(0);
    }
    let held: usize = (0..MAX_FRAMES).map_while(|_| rig.take(1, 1).pop()).count();
    // The shares of both ports and of the uplink are the same.
    assert!(held * 4096 <= MAX_BYTES / 3 && held > 100, "{held}");
    assert_eq!(rig.fabric.discarded(PortId(1)), (MAX_FRAMES - held) as u64);
}

/// What one device has received goes into the buffers that another sends from.
#[test]
fn buffers_of_long_frames_go_round() {
    let mut rig = Rig::new(2);
    let long = |number| {
        let mut long = Vec::with_capacity(CAPACITY);
        long.extend(frame(1, 2, number));
        long.resize(4200, 0);
        long
    };
    let mut places = Vec::new();
    // The receiver keeps 256 of these; none is given back to the allocator.
    for _ in 0..2 {
        let sent: Vec<Vec<u8>> = (0..200).map(long).collect();
        places.extend(sent.iter().map(|frame| frame.as_ptr()));
        rig.devices[0].0.outgoing.extend(sent);
        while rig.waiting(0) > 0 || rig.fabric.has_frames(PortId(1)) {
            rig.step(0);
            rig.step(1);
        }
    }
    // The first buffer that a device lacks is a new one. Then it gets those of others.
    drop(rig.devices[0].1.frame_pool().take(4096));
    rig.step(0);
    for (at, count) in [(0, 144), (1, 256)] {
        let spare = rig.devices[at].1.frame_pool();
        let buffers: Vec<Vec<u8>> = (0..=count).map(|_| spare.take(4096)).collect();
        let reused = buffers.iter().filter(|buffer| places.contains(&buffer.as_ptr())).count();
        assert_eq!(reused, count, "device {at}");
    }
}

/// Returns a packet to a LID in a partition.
fn packet(slid: u16, dlid: u16, pkey: u16) -> Vec<u8> {
    let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
    let dest_qpn = if dlid == GROUP { MULTICAST_QPN } else { 0x99 };
    let bth = Bth { opcode, solicited: false, migreq: true, pkey, dest_qpn, ack_req: false, psn: 0 };
    Packet::new(Lrh { slid, dlid, ..Lrh::default() }, bth).encode()
}

#[test]
fn frames_stay_within_the_partitions_of_both_ports() {
    let (a, b, c) = (0, 1, 2);
    let mut rig = Rig::new(3);
    for (at, pkey) in [(a, 0x8001), (b, 0x8002), (c, 0x8001)] {
        rig.devices[at].1.identity().set_pkeys(0, &[pkey]);
    }
    let came = |rig: &mut Rig| [a, b, c].map(|at| rig.take(at, 64).len());
    // The sender's own partition, that of the receiver, that which both had at first, and a member of nothing.
    for (dlid, pkey, expected) in [
        (2, 0x8001, [0, 0, 0]),
        (2, 0x8002, [0, 0, 0]),
        (2, 0xffff, [0, 0, 0]),
        (3, 0x8001, [0, 0, 1]),
        (3, 0x0001, [0, 0, 1]),
        (3, 0x8000, [0, 0, 0]),
        (GROUP, 0x8001, [0, 0, 1]),
        (GROUP, 0x8002, [0, 0, 0]),
    ] {
        rig.devices[a].0.outgoing.push_back(packet(1, dlid, pkey));
        rig.step(a);
        assert_eq!(came(&mut rig), expected, "{pkey:#06x} to LID {dlid:#x}");
        // From elsewhere, the partition of the receiver is what counts.
        rig.fabric.arrive(packet(9, dlid, pkey), rig.now, |_| {}).unwrap();
        let member = |own: u16| usize::from(own == pkey | 0x8000 && pkey & 0x7fff != 0);
        let all = [member(0x8001), member(0x8002), member(0x8001)];
        let expected = [dlid == GROUP, dlid == 2 || dlid == GROUP, dlid == 3 || dlid == GROUP];
        let expected: Vec<usize> = all.iter().zip(expected).map(|(count, to)| count * usize::from(to)).collect();
        assert_eq!(came(&mut rig).to_vec(), expected, "{pkey:#06x} to LID {dlid:#x} from elsewhere");
    }
    // Subnet management is in no partition.
    let mut management = packet(1, 2, 0);
    management[0] = 15 << 4;
    rig.devices[a].0.outgoing.push_back(management);
    rig.step(a);
    assert_eq!(came(&mut rig), [0, 1, 0]);
}

#[test]
fn a_limited_member_sends_to_full_members_alone() {
    let (full, limited, other) = (0, 1, 2);
    let mut rig = Rig::new(3);
    for (at, pkey) in [(full, 0x8001), (limited, 1), (other, 1)] {
        rig.devices[at].1.identity().set_pkeys(0, &[pkey]);
    }
    // From whom, to whom, with which key, and whether it arrives.
    for (from, to, pkey, expected) in [
        (limited, full, 1, 1),
        (limited, other, 1, 0),
        (full, limited, 0x8001, 1),
        // A limited member that claims to be a full one.
        (limited, full, 0x8001, 0),
        (limited, other, 0x8001, 0),
    ] {
        rig.devices[from].0.outgoing.push_back(packet(from as u16 + 1, to as u16 + 1, pkey));
        rig.step(from);
        assert_eq!(rig.take(to, 64).len(), expected, "{pkey:#06x} from port {from} to {to}");
    }
}

#[test]
fn frames_that_the_switch_filters_are_counted_at_the_port_that_does_not_fit() {
    let (a, b) = (PortId(0), PortId(1));
    let mut rig = Rig::new(2);
    rig.devices[1].1.identity().set_pkeys(0, &[0x8002]);
    let filtered = |rig: &Rig| (rig.fabric.filtered(a), rig.fabric.filtered(b));
    for (pkey, expected) in [(0xffff, (0, 1)), (0x8001, (1, 1)), (0x8001, (2, 1))] {
        rig.devices[0].0.outgoing.push_back(packet(1, 2, pkey));
        rig.step(0);
        assert_eq!(filtered(&rig), expected);
    }
    rig.fabric.arrive(packet(9, 2, 0x8001), rig.now, |_| {}).unwrap();
    assert_eq!(filtered(&rig), (2, 2));
    // Two that fit.
    rig.fabric.arrive(packet(9, 2, 0x8002), rig.now, |_| {}).unwrap();
    rig.devices[0].0.outgoing.push_back(packet(1, 1, 0xffff));
    rig.step(0);
    assert_eq!((filtered(&rig), rig.take(0, 64).len(), rig.take(1, 64).len()), ((2, 2), 1, 1));
}

#[test]
fn a_frame_with_a_lid_that_its_port_no_longer_has_is_dropped() {
    let mut rig = Rig::new(3);
    let count = |rig: &mut Rig| [1, 2].map(|at| rig.take(at, 64).len());
    // It was built before the manager moved the port, whose LID another one has now.
    let old = packet(1, 3, 0xffff);
    rig.devices[0].1.identity().set_lid(7).unwrap();
    rig.devices[1].1.identity().set_lid(1).unwrap();
    rig.devices[0].0.outgoing.extend([old, packet(1, GROUP, 0xffff)]);
    rig.step(0);
    assert_eq!((count(&mut rig), rig.waiting(0), rig.fabric.filtered(PortId(0))), ([0, 0], 0, 2));
    rig.devices[0].0.outgoing.push_back(packet(7, 3, 0xffff));
    rig.step(0);
    assert_eq!(count(&mut rig), [0, 1]);
}

#[test]
fn subnet_management_does_not_wait_for_room() {
    let (a, b, c) = (0, 1, 2);
    let mut rig = Rig::new(3);
    rig.send(a, 2, MAX_FRAMES as u32);
    rig.take(b, 64);
    rig.step(a);
    let waiting = rig.waiting(a);
    assert!(waiting > 0, "data waits");
    // The full queue of b does not keep it from c, and the frame for b is lost.
    rig.devices[a].0.outgoing.clear();
    let lane_15 = |dlid| {
        let mut frame = packet(1, dlid, 0);
        frame[0] = 15 << 4;
        frame
    };
    let before = rig.fabric.discarded(PortId(b));
    rig.devices[a].0.outgoing.extend([lane_15(2), lane_15(3)]);
    rig.step(a);
    assert_eq!((rig.waiting(a), rig.take(c, 64).len()), (0, 1));
    assert_eq!(rig.fabric.discarded(PortId(b)), before + 1);
    // The link of another server does not wait for it either.
    while rig.fabric.arrive(packet(9, 2, 0xffff), rig.now, |_| {}).is_ok() {}
    assert_eq!(rig.fabric.arrive(lane_15(2), rig.now, |_| {}), Ok(()));
}

#[test]
fn a_frame_for_a_group_is_carried_to_members_of_its_partition_alone() {
    let mut rig = Rig::with_latency(4, Duration::from_micros(1));
    for (at, pkey) in [(0, 0x8001), (1, 0x8001), (2, 0x8002), (3, 0x8002)] {
        rig.devices[at].1.identity().set_pkeys(0, &[pkey]);
    }
    rig.devices[0].0.outgoing.push_back(packet(1, GROUP, 0x8001));
    rig.step(0);
    assert_eq!(rig.fabric.wire_mut().in_flight(PortId(0)), 1);
}

/// A flood of long frames for a group would otherwise keep the switch busy with copies for ports that have no room.
#[test]
fn no_frame_for_a_group_is_copied() {
    let mut rig = Rig::new(4);
    let places = |rig: &mut Rig| {
        [1, 2, 3].map(|at| {
            let mut frames = VecDeque::new();
            rig.fabric.inboxes[at].take(&mut frames, MAX_FRAMES, |_| {});
            frames.iter().map(|frame| frame.as_ptr()).collect::<Vec<_>>()
        })
    };
    // The first of the members takes nothing in time.
    rig.send(0, GROUP, 10);
    for at in [2, 3] {
        assert_eq!(rig.take(at, MAX_FRAMES).len(), 10);
    }
    let count = MAX_FRAMES as u32;
    let sent: Vec<Vec<u8>> = (0..count).map(|number| frame(1, GROUP, number)).collect();
    let sent_from: Vec<_> = sent.iter().map(|frame| frame.as_ptr()).collect();
    rig.devices[0].0.outgoing.extend(sent);
    while rig.waiting(0) > 0 {
        rig.step(0);
    }
    let got = places(&mut rig);
    assert!(got.iter().all(|got| got.iter().rev().take(100).all(|place| sent_from.contains(place))), "the bytes as sent");
    assert_eq!(got[1], got[2]);
    assert!(rig.fabric.discarded(PortId(1)) > 0);
    // Nor is one that comes from elsewhere.
    let frame = frame(9, GROUP, 0);
    let sent_from = frame.as_ptr();
    rig.fabric.arrive(frame, rig.now, |_| {}).unwrap();
    assert_eq!(places(&mut rig), [[sent_from], [sent_from], [sent_from]]);
}

/// A wire on which each frame keeps the switch busy for a while, and that counts the frames which it took.
struct SlowWire(PerfectWire, std::sync::Arc<AtomicUsize>);

impl Wire for SlowWire {
    fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
        self.1.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(2));
        self.0.send(now, from, frame);
    }

    fn deliver(&mut self, now: Instant) -> Option<Delivery> {
        self.0.deliver(now)
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.next_due()
    }

    fn identity(&self, port: PortId) -> Option<&crate::identity::PortIdentity> {
        self.0.identity(port)
    }

    fn destination(&self, from: PortId, frame: &[u8]) -> Destination {
        self.0.destination(from, frame)
    }

    fn in_flight(&self, from: PortId) -> usize {
        self.0.in_flight(from)
    }

    fn fix_station(&mut self, port: PortId, mac: [u8; 6]) {
        self.0.fix_station(port, mac);
    }
}

#[test]
fn the_switch_serves_others_between_two_frames_for_a_group() {
    let taken = std::sync::Arc::new(AtomicUsize::new(0));
    let mut wire = SlowWire(PerfectWire::new(Duration::ZERO), taken.clone());
    let mut device = Device::new(DeviceConfig::with_lid(1), Box::new(NoMemory)).unwrap();
    wire.0.attach(device.identity());
    let mut fabric = Fabric::new(wire, None);
    let mut port = fabric.add_port();
    fabric.step(&mut port, &mut device, Instant::from_nanos(1_000_000));
    // Frames that the wire had taken when another thread asked the switch, and when it had its answer. One that asked after the
    // first frame has its answer before the last one. How often it asks is up to the load of the machine, so there are several tries.
    let is_served = (0..5).any(|_| {
        taken.store(0, Ordering::Relaxed);
        port.outgoing.extend((0..BATCH as u32).map(|number| frame(1, GROUP, number)));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut is_served = false;
                while !done.load(Ordering::Relaxed) {
                    let asked = taken.load(Ordering::Relaxed);
                    fabric.has_lid(1);
                    is_served |= asked > 0 && taken.load(Ordering::Relaxed) < BATCH;
                    std::thread::sleep(Duration::from_micros(100));
                }
                is_served
            });
            fabric.step(&mut port, &mut device, Instant::from_nanos(2_000_000));
            done.store(true, Ordering::Relaxed);
            other.join().unwrap()
        })
    });
    assert!(is_served, "nobody was answered between the first and the last of {BATCH} frames");
}

#[test]
fn the_switch_knows_the_lids_that_ports_have_now() {
    let rig = Rig::new(2);
    assert_eq!([0, 1, 2, 3].map(|lid| rig.fabric.has_lid(lid)), [false, true, true, false]);
    rig.devices[1].1.identity().set_lid(3).unwrap();
    assert_eq!([1, 2, 3].map(|lid| rig.fabric.has_lid(lid)), [true, false, true]);
    rig.devices[1].1.identity().set_lid(0).unwrap();
    assert_eq!([0, 1, 2, 3].map(|lid| rig.fabric.has_lid(lid)), [false, true, false, false]);
}

/// What a tap saw: port, direction and mark of each frame.
#[derive(Default)]
struct Seen(Vec<(usize, Direction, u32)>);

impl Tap for Seen {
    fn frame(&mut self, _: Instant, port: PortId, direction: Direction, frame: &[u8]) {
        self.0.push((port.0, direction, mark(frame)));
    }
}

/// An uplink that takes frames while it is up.
struct Cable(Arc<std::sync::atomic::AtomicBool>);

impl Uplink for Cable {
    fn send(&self, _: PortId, _: Vec<u8>) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_tap_sees_what_arrives_and_what_leaves_and_nothing_else() {
    let mut rig = Rig::new(3);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let up = Arc::new(std::sync::atomic::AtomicBool::new(true));
    assert!(rig.fabric.set_tap(Some(Box::new(Arc::clone(&seen)))).is_none());
    rig.fabric.switch().uplink = Some(Box::new(Cable(Arc::clone(&up))));
    let take = || std::mem::take(&mut seen.lock().unwrap().0);
    let (to, from) = (Direction::ToPort, Direction::FromPort);
    rig.send(0, 2, 2);
    assert_eq!(take(), [(1, to, 0), (1, to, 1)]);
    // To another process, as long as there is a link; to a group, here and there.
    rig.send(0, 9, 1);
    rig.send(2, GROUP, 1);
    assert_eq!(take(), [(0, from, 0), (2, from, 0), (0, to, 0), (1, to, 0)]);
    up.store(false, Ordering::Relaxed);
    rig.send(0, 9, 1);
    assert_eq!(take(), []);
    // From there.
    let now = rig.now;
    rig.fabric.arrive(frame(9, 3, 7), now, |_| {}).unwrap();
    rig.fabric.arrive(frame(9, GROUP, 8), now, |_| {}).unwrap();
    assert_eq!(take(), [(2, to, 7), (0, to, 8), (1, to, 8), (2, to, 8)]);
    // For a group that has no room at a port: what the port does not get is not seen there.
    rig.send(0, GROUP, 2 * MAX_FRAMES as u32);
    let (arrived, all) = (rig.take(1, usize::MAX).len(), take());
    assert!(rig.fabric.discarded(PortId(1)) > 0);
    // Two of a, one of c and one of the other process came before.
    assert_eq!(all.iter().filter(|(port, direction, _)| (*port, *direction) == (1, to)).count() + 4, arrived);
    rig.fabric.set_tap(None);
    rig.send(0, 2, 1);
    assert_eq!((take(), rig.take(1, 64)), (vec![], vec![0]));
}

/// An Ethernet frame between stations that end in these numbers, shorter than the shortest.
fn ethernet_frame(destination: u8, source: u8, mark: u32) -> Vec<u8> {
    let [a, b, c, d] = mark.to_be_bytes();
    vec![2, 0, 0, 0, 0, destination, 2, 0, 0, 0, 0, source, 0x88, 0xb5, a, b, c, d]
}

/// Frames with the port that sent each, and for how many there is room.
type Taken = (Vec<(usize, Vec<u8>)>, usize);

/// A cable that takes frames while it has room.
#[derive(Clone, Default)]
struct Bounded(Arc<Mutex<Taken>>);

impl Uplink for Bounded {
    fn send(&self, from: PortId, frame: Vec<u8>) -> bool {
        let (frames, room) = &mut *self.0.lock().unwrap();
        let has_room = frames.len() < *room;
        if has_room {
            frames.push((from.0, frame));
        }
        has_room
    }
}

#[test]
fn a_device_does_not_wait_for_a_cable_and_learns_nothing_of_what_it_lost() {
    let mut wire = PerfectWire::default();
    let config = |number| DeviceConfig::with_lid(number).with_ethernet();
    let devices = [1, 2].map(|number| Device::new(config(number), Box::new(NoMemory)).unwrap());
    for device in &devices {
        wire.attach(device.identity());
    }
    wire.attach(PortIdentity::ethernet());
    let mut fabric = Fabric::new(wire, None);
    let devices = devices.into_iter().map(|device| (fabric.add_port(), device)).collect();
    let cable = Bounded::default();
    cable.0.lock().unwrap().1 = 100;
    let out = fabric.add_cable(Box::new(cable.clone()));
    let mut rig = Rig { fabric, devices, now: Instant::from_nanos(1_000_000) };
    let take = |rig: &mut Rig, at: usize| {
        let mut frames = VecDeque::new();
        rig.fabric.inboxes[at].take(&mut frames, usize::MAX, |_| {});
        // Those of the cable have become as long as Ethernet frames are.
        assert!(frames.iter().all(|frame| frame[11] != 9 || frame.len() == MIN_ETHERNET_FRAME));
        frames.into_iter().map(|frame| (frame[11], u32::from_be_bytes(*frame[14..].first_chunk().unwrap()))).collect::<Vec<_>>()
    };
    // Station 9 is at the cable's other end, and says so.
    let mut reached = Vec::new();
    assert!(rig.fabric.arrive_at(out, ethernet_frame(7, 9, 1), rig.now, |port| reached.push(port.0)).is_on_wire);
    assert_eq!((reached, take(&mut rig, 0), take(&mut rig, 1)), (vec![0, 1], vec![(9, 1)], vec![(9, 1)]));
    rig.devices[1].0.outgoing.push_back(ethernet_frame(1, 2, 5));
    rig.step(1);
    assert_eq!(take(&mut rig, 0), [(2, 5)]);
    // Many times what the cable and a device's queue have room for, in the batches that a device sends; then something for the other
    // device.
    let many = 3 * MAX_FRAMES as u32;
    for number in 0..many {
        rig.devices[0].0.outgoing.push_back(ethernet_frame(9, 1, number));
        if rig.waiting(0) == BATCH {
            rig.step(0);
            assert_eq!(rig.waiting(0), 0, "it waits for nobody");
        }
    }
    rig.devices[0].0.outgoing.push_back(ethernet_frame(2, 1, 6));
    rig.step(0);
    assert_eq!((take(&mut rig, 0), take(&mut rig, 1)), (vec![], vec![(1, 6)]));
    let (frames, _) = std::mem::take(&mut *cable.0.lock().unwrap());
    // That of the second device was for a station that nobody knew yet.
    let padded = |frame: Vec<u8>| [frame, vec![0; 42]].concat();
    assert_eq!(frames[0], (1, padded(ethernet_frame(1, 2, 5))));
    assert!(frames[1..].iter().cloned().eq((0..99).map(|number| (0, padded(ethernet_frame(9, 1, number))))));
    // A device that stands still costs the cable what it sends to it.
    for number in 0..many {
        rig.fabric.arrive_at(out, ethernet_frame(2, 9, number), rig.now, |_| {});
        assert!(number % 1000 != 0 || rig.fabric.arrive_at(out, ethernet_frame(1, 9, number), rig.now, |_| {}).is_on_wire);
    }
    assert!(!rig.fabric.arrive_at(out, ethernet_frame(2, 9, many), rig.now, |_| {}).is_on_wire);
    assert_eq!(take(&mut rig, 0).len(), many.div_ceil(1000) as usize);
    let kept = take(&mut rig, 1);
    assert_eq!(kept.len() as u64 + rig.fabric.discarded(PortId(1)), u64::from(many) + 1);
    assert!(kept.into_iter().map(|(_, number)| number).eq(0..inbox::share(4) as u32));
}

/// Who takes a frame: a thief sends from the MAC address of the victim, then somebody answers the victim.
fn taker(bound: bool) -> (usize, Vec<Finding>, u64) {
    let mut wire = PerfectWire::default();
    let config = |number| DeviceConfig::with_lid(number).with_ethernet();
    let devices = [1, 2, 3].map(|number| Device::new(config(number), Box::new(NoMemory)).unwrap());
    for device in &devices {
        wire.attach(device.identity());
    }
    let mut fabric = Fabric::new(wire, None);
    let devices = devices.into_iter().map(|device| (fabric.add_port(), device)).collect();
    let mut rig = Rig { fabric, devices, now: Instant::from_nanos(1_000_000) };
    if bound {
        rig.fabric.bind(PortId(0), &[], &[]).unwrap();
    }
    let mac = |number: u8| [0, 2, 0xc9, 0, number, 0];
    let frame = |to: u8, from: u8| [&mac(to)[..], &mac(from), &[0x88, 0xb5]].concat();
    for (port, to, from) in [(0, 3, 1), (1, 3, 1), (2, 1, 3)] {
        rig.devices[port].0.outgoing.push_back(frame(to, from));
        rig.step(port);
    }
    let takers: Vec<usize> = (0..2)
        .filter(|port| {
            let mut frames = VecDeque::new();
            rig.fabric.inboxes[*port].take(&mut frames, usize::MAX, |_| {});
            frames.into_iter().any(|taken| taken[..] == frame(1, 3))
        })
        .collect();
    assert_eq!(takers.len(), 1);
    (takers[0], rig.devices[1].1.audit().findings().to_vec(), rig.fabric.filtered(PortId(1)))
}

#[test]
fn a_thief_of_a_mac_address_is_stopped_by_a_binding_and_reported_in_any_case() {
    let finding = vec![Finding::ForeignMac { mac: [0, 2, 0xc9, 0, 1, 0] }];
    assert_eq!(taker(true), (0, finding.clone(), 1));
    assert_eq!(taker(false), (1, finding, 0), "as in any switch that learns");
}

#[test]
fn the_addresses_of_a_guest_are_free_after_a_reset_of_its_device() {
    let mut wire = PerfectWire::default();
    let devices = [1, 2].map(|number| Device::new(DeviceConfig::with_lid(number).with_ethernet(), Box::new(NoMemory)).unwrap());
    for device in &devices {
        wire.attach(device.identity());
    }
    let mut fabric = Fabric::new(wire, None);
    let devices = devices.into_iter().map(|device| (fabric.add_port(), device)).collect();
    let mut rig = Rig { fabric, devices, now: Instant::from_nanos(1_000_000) };
    let says = |rig: &mut Rig, at: usize, address: u8| {
        let mac = [0, 2, 0xc9, 0, at as u8 + 1, 0];
        let packet = [&[0xff; 6][..], &mac, &[8, 0, 0x45], &[0; 11], &[10, 0, 0, address], &[0xff; 4]].concat();
        rig.devices[at].0.outgoing.push_back(packet);
        rig.step(at);
        rig.devices[at].1.audit().findings().len()
    };
    assert_eq!((says(&mut rig, 0, 1), says(&mut rig, 1, 1)), (0, 1));
    assert_eq!(says(&mut rig, 0, 2), 0);
    let Rig { fabric, devices, .. } = &mut rig;
    fabric.clear(&mut devices[0].0);
    assert_eq!(
        (says(&mut rig, 1, 2), says(&mut rig, 0, 2)),
        (1, 1),
        "the new owner has no new finding, and the old one has one"
    );
}
