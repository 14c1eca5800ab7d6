//! Frames between the queues of several devices with Ethernet ports: bytes, checksums, completions, and which queue gets what.

use bareverbs::platform::DmaMemory;

use crate::host::*;
use crate::nic::{Nic, Queue, number};

/// Where a station has its frames, apart from its queues.
const BUFFERS: usize = 0x80_0000;
const BUFFER: usize = 0x1_0000;
/// Bytes of each receive buffer.
const ROOM: u32 = 2048;
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 9];
const BROADCAST: [u8; 6] = [0xff; 6];

/// A device with a send queue, and with what a host needs to receive.
struct Station {
    nic: Nic,
    mac: [u8; 6],
    key: u32,
    sq: Queue,
    sent: u16,
    table: u32,
    group: u32,
    rules: u32,
    buffers: usize,
}

/// A receive queue and what was done with it.
#[derive(Clone, Copy)]
struct Receiver {
    rq: Queue,
    buffers: usize,
    posted: u16,
    seen: u16,
}

/// A completion of a received frame, and the frame.
struct Received {
    cqe: Vec<u8>,
    frame: Vec<u8>,
}

impl Station {
    fn new(lid: u16) -> Self {
        let mut config = plain();
        config.lid = lid;
        config.node_guid = 0x0002_c900_0000_0000 | u64::from(lid) << 8;
        let mut nic = Nic::of(config.with_ethernet());
        // A key over all memory by device address, for reading and writing.
        let key = input(0x200, 272, &[(16, 0x0000_0c00), (16 + 4, 0xffff_ff42), (16 + 12, 1 << 31 | nic.pd)]);
        let key = number(&nic.host.ok(&key, 16)) << 8 | 0x42;
        let tisn = number(&nic.host.ok(&input(0x912, 192, &[(32 + 36, nic.domain)]), 16));
        let at = nic.place();
        let cqn = nic.cq(at);
        let mut bytes = nic.queue_input(0x904, at, cqn, 6, 4);
        bytes[64..68].copy_from_slice(&(1_u32 << 16).to_be_bytes());
        bytes[76..80].copy_from_slice(&tisn.to_be_bytes());
        let sqn = number(&nic.host.ok(&bytes, 16));
        let sq = Queue { number: sqn, ring: at + 0x2000, record: at + 0x3000, entries: at, cqn };
        assert_eq!(nic.modify(0x905, sqn, 0, 1), 0);
        let (_, table) = nic.table(0, 5, None);
        assert_eq!(nic.host.command(&input(0x92f, 64, &[(20, table)]), 16).0, 0);
        // Rules on the whole destination address: bytes 8 to 13 of the match.
        let mask = [(20, table), (28, 0), (36, 15), (60, 1), (64 + 8, u32::MAX), (64 + 12, 0xffff_0000)];
        let group = number(&nic.host.ok(&input(0x933, 1024, &mask), 16));
        let [_, lid] = lid.to_be_bytes();
        let mut station =
            Self { nic, mac: [0, 2, 0xc9, 0, lid, 0], key, sq, sent: 0, table, group, rules: 0, buffers: BUFFERS };
        station.filter(&[], &[GROUP], 0);
        station
    }

    /// Sets the lists of unicast addresses and of groups, and what else comes in: 4 unicast, 2 groups, 1 all.
    fn filter(&mut self, unicast: &[[u8; 6]], groups: &[[u8; 6]], promiscuous: u32) {
        for (kind, list) in [unicast, groups].into_iter().enumerate() {
            let mut bytes = input(0x755, 512, &[(12, 1 << 2), (256 + 240, (kind as u32) << 24 | list.len() as u32)]);
            list.iter().for_each(|address| bytes.extend([&[0; 2], &address[..]].concat()));
            self.nic.host.ok(&bytes, 16);
        }
        self.nic.host.ok(&input(0x755, 512, &[(12, 1 << 4), (256 + 240, promiscuous << 29)]), 16);
    }

    /// Packets and octets of a counter of QUERY_VPORT_COUNTER, by its place in the output.
    fn counter(&mut self, at: usize) -> (u64, u64) {
        let out = self.nic.host.ok(&input(0x770, 32, &[]), 528);
        let number = |at: usize| u64::from(be32(&out, at)) << 32 | u64::from(be32(&out, at + 4));
        (number(at), number(at + 8))
    }

    /// Sets the MTU of the port, in bytes of a frame with its check sequence.
    fn set_mtu(&mut self, mtu: u32) {
        let mut bytes = input(0x805, 16 + 16, &[(8, 0x5003), (16, 1 << 16), (24, mtu << 16)]);
        bytes.resize(16 + 64, 0);
        self.nic.host.ok(&bytes, 16 + 64);
    }

    /// A counter of the port in a group of PPCNT.
    fn port_counter(&mut self, group: u32, at: usize) -> u64 {
        let mut bytes = input(0x805, 16 + 256, &[(4, 1), (8, 0x5008), (16, 1 << 16 | group)]);
        bytes.resize(16 + 256, 0);
        let out = self.nic.host.ok(&bytes, 16 + 256);
        u64::from(be32(&out, 24 + at)) << 32 | u64::from(be32(&out, 28 + at))
    }

    /// if_out_discards, a_frame_too_long_errors, a_frames_transmitted_ok, a_frames_received_ok.
    fn dropped(&mut self) -> [u64; 4] {
        [(1, 56), (0, 96), (0, 0), (0, 8)].map(|(group, at)| self.port_counter(group, at))
    }

    fn buffer(&mut self) -> usize {
        self.buffers += BUFFER;
        self.buffers - BUFFER
    }

    /// A ready receive queue with as many buffers as `posted`; `vsd`: VLAN tags stay.
    fn receiver(&mut self, posted: u16, vsd: bool) -> Receiver {
        let at = self.nic.place();
        let cqn = self.nic.cq(at);
        let mut bytes = self.nic.queue_input(0x908, at, cqn, 4, 4);
        bytes[32..36].copy_from_slice(&(u32::from(vsd) << 28).to_be_bytes());
        let rqn = number(&self.nic.host.ok(&bytes, 16));
        assert_eq!(self.nic.modify(0x909, rqn, 0, 1), 0);
        let rq = Queue { number: rqn, ring: at + 0x2000, record: at + 0x3000, entries: at, cqn };
        let mut receiver = Receiver { rq, buffers: self.buffer(), posted: 0, seen: 0 };
        self.post(&mut receiver, posted);
        receiver
    }

    /// Posts receives as mlx5e does: the highest bit of a length set.
    fn post(&mut self, receiver: &mut Receiver, count: u16) {
        for _ in 0..count {
            let place = usize::from(receiver.posted % 16);
            let buffer = BASE + (receiver.buffers + place * ROOM as usize) as u64;
            let mut wqe = (1_u32 << 31 | ROOM).to_be_bytes().to_vec();
            wqe.extend(self.key.to_be_bytes());
            wqe.extend(buffer.to_be_bytes());
            self.nic.host.memory.write(receiver.rq.ring + place * 16, &wqe).unwrap();
            receiver.posted += 1;
        }
        self.nic.host.memory.write(receiver.rq.record, &u32::from(receiver.posted).to_be_bytes()).unwrap();
    }

    /// Lets frames for an address go to a TIR, with a tag.
    fn lead(&mut self, destination: [u8; 6], tirn: u32, tag: u32) {
        let mut bytes = input(
            0x936,
            832,
            &[(20, self.table), (32, self.rules), (64 + 4, self.group), (64 + 8, tag), (64 + 12, 4), (64 + 16, 1)],
        );
        bytes[128 + 8..128 + 14].copy_from_slice(&destination);
        bytes.extend((2 << 24 | tirn).to_be_bytes());
        bytes.extend([0; 4]);
        self.nic.host.ok(&bytes, 16);
        self.rules += 1;
    }

    fn direct(&mut self, receiver: &Receiver) -> u32 {
        let (status, tirn) = self.nic.tir(true, receiver.rq.number, self.nic.domain);
        assert_eq!(status, 0);
        tirn
    }

    /// Sends by a WQE with `inline` bytes of the frame in it, the rest in memory in two pieces.
    fn send(&mut self, opcode: u8, flags: u8, mss: u16, frame: &[u8], inline: usize) {
        let buffer = BUFFERS - BUFFER;
        self.nic.host.memory.write(buffer, &frame[inline..]).unwrap();
        let mut segment = vec![0; 16];
        segment[4] = flags;
        segment[6..8].copy_from_slice(&mss.to_be_bytes());
        segment[12..14].copy_from_slice(&(inline as u16).to_be_bytes());
        segment.truncate(14);
        segment.extend(&frame[..inline]);
        segment.resize(16 + inline.saturating_sub(2).next_multiple_of(16), 0);
        let rest = frame.len() - inline;
        for (at, len) in [(0, rest / 3), (rest / 3, rest - rest / 3)] {
            if len > 0 {
                segment.extend((len as u32).to_be_bytes());
                segment.extend(self.key.to_be_bytes());
                segment.extend((BASE + (buffer + at) as u64).to_be_bytes());
            }
        }
        let ds = 1 + segment.len() / 16;
        let mut wqe = (u32::from(self.sent) << 8 | u32::from(opcode)).to_be_bytes().to_vec();
        wqe.extend((self.sq.number << 8 | ds as u32).to_be_bytes());
        wqe.extend([0, 0, 0, 2 << 2, 0, 0, 0, 0]);
        wqe.extend(segment);
        let doorbell: [u8; 8] = wqe[..8].try_into().unwrap();
        for block in wqe.chunks(64) {
            self.nic.host.memory.write(self.sq.ring + usize::from(self.sent % 16) * 64, block).unwrap();
            self.sent += 1;
        }
        self.nic.host.memory.write(self.sq.record + 4, &u32::from(self.sent).to_be_bytes()).unwrap();
        self.nic.host.device.bar_write(u64::from(self.nic.uar) * 4096 + 0x800, &doorbell);
        self.nic.host.run(1000);
    }

    /// The next frame that a queue has received.
    fn next(&mut self, receiver: &mut Receiver) -> Option<Received> {
        let place = usize::from(receiver.seen % 16);
        let cqe = self.nic.host.bytes(receiver.rq.entries + place * 64, 64);
        if cqe[63] >> 4 == 0xf || u16::from(cqe[63] & 1) != receiver.seen / 16 % 2 {
            return None;
        }
        assert_eq!((cqe[63] >> 4, be16(&cqe, 60)), (2, receiver.seen), "received into the next buffer");
        // `lro_num_seg`, and the user index of the queue.
        assert_eq!((cqe[32], be32(&cqe, 32)), (0, 0x77));
        let frame = self.nic.host.bytes(receiver.buffers + place * ROOM as usize, be32(&cqe, 44) as usize);
        receiver.seen += 1;
        self.nic.host.memory.write(receiver.rq.entries + 4096, &u32::from(receiver.seen).to_be_bytes()).unwrap();
        Some(Received { cqe, frame })
    }
}

/// Moves what each station sent to all others.
fn carry(stations: &mut [Station]) -> Vec<Vec<u8>> {
    let mut moved = Vec::new();
    for from in 0..stations.len() {
        while let Some(frame) = stations[from].nic.host.device.transmit() {
            for (to, station) in stations.iter_mut().enumerate() {
                if to != from {
                    station.nic.host.device.receive(&frame);
                }
            }
            moved.push(frame);
        }
    }
    moved
}

/// A frame with an Ethernet header of no known type.
fn plain_frame(destination: [u8; 6], source: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = [&destination[..], &source, &[0x88, 0xb5]].concat();
    frame.extend((0..len - 14).map(|at| (at * 7) as u8));
    frame
}

/// UDP or TCP over IPv4, checksums 0.
fn ip_frame(destination: [u8; 6], source: [u8; 6], protocol: u8, ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let transport = if protocol == 17 { 8 } else { 20 };
    let mut frame = [&destination[..], &source, &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + transport + payload.len() as u16).to_be_bytes());
    frame.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
    if protocol == 17 {
        frame.extend((8 + payload.len() as u16).to_be_bytes());
        frame.extend([0; 2]);
    } else {
        frame.extend([0, 0, 1, 0, 0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    }
    frame.extend(payload);
    frame
}

fn ones_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn a_frame_reaches_the_queue_that_a_rule_names() {
    let mut lan: Vec<Station> = (1..=3).map(Station::new).collect();
    let mut receivers = Vec::new();
    for station in &mut lan {
        let (own, group) = (station.receiver(4, true), station.receiver(4, true));
        let (to_own, to_group) = (station.direct(&own), station.direct(&group));
        station.lead(station.mac, to_own, 0x12_3456);
        station.lead(GROUP, to_group, 7);
        receivers.push([own, group]);
    }
    let macs: Vec<[u8; 6]> = lan.iter().map(|station| station.mac).collect();
    for (from, to, len, inline) in [(0, 1, 60, 0), (1, 2, 1514, 18), (2, 0, 61, 2), (0, 2, 1000, 14)] {
        let frame = plain_frame(macs[to], macs[from], len);
        lan[from].send(0x0a, 0, 0, &frame, inline);
        assert_eq!(carry(&mut lan), std::slice::from_ref(&frame));
        for (at, station) in lan.iter_mut().enumerate() {
            let [own, group] = &mut receivers[at];
            let got = station.next(own);
            assert_eq!(got.as_ref().map(|got| got.frame.clone()), (at == to).then(|| frame.clone()), "{from} to {to}, at {at}");
            assert!(got.is_none_or(|got| be32(&got.cqe, 56) == 0x12_3456), "the tag of the rule");
            assert!(station.next(group).is_none());
        }
    }
    // A short one is padded; a group reaches all but the sender, and one that no rule names reaches nobody.
    let frame = plain_frame(GROUP, macs[0], 20);
    lan[0].send(0x0a, 0, 0, &frame, 0);
    lan[0].send(0x0a, 0, 0, &plain_frame([2, 9, 9, 9, 9, 9], macs[0], 100), 0);
    assert_eq!(carry(&mut lan).len(), 2);
    for (at, station) in lan.iter_mut().enumerate() {
        let [own, group] = &mut receivers[at];
        let got = station.next(group);
        assert_eq!(got.as_ref().map(|got| (got.frame.len(), got.frame[..20].to_vec())), (at != 0).then(|| (60, frame.clone())));
        assert!(station.next(own).is_none() && station.next(group).is_none());
    }
    // Frames for others, of which this wire gives a copy to everybody, are neither errors nor what a vport counts.
    let stats = [0, 1, 2].map(|at| lan[at].nic.host.device.stats().engine);
    assert_eq!(stats.map(|stats| (stats.frames_for_others.packets, stats.dropped)), [(1, 0), (3, 0), (2, 0)]);
    // received_errors; received_eth_unicast, transmitted_eth_unicast, received_eth_multicast, transmitted_eth_multicast.
    let counters = |station: &mut Station| [0x10, 0x90, 0xa0, 0xb0, 0xc0].map(|at| station.counter(at));
    assert_eq!(counters(&mut lan[0]), [(0, 0), (1, 61), (3, 1160), (0, 0), (1, 60)]);
    assert_eq!(counters(&mut lan[2]), [(0, 0), (2, 2514), (1, 61), (1, 60), (0, 0)]);
}

#[test]
fn frames_of_strangers_come_to_the_rules_only_if_they_are_let_in() {
    const STRANGER: [u8; 6] = [2, 9, 9, 9, 9, 9];
    const OTHER_GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
    const SECOND: [u8; 6] = [2, 0, 0, 0, 0, 7];
    let mut station = Station::new(1);
    let mut receiver = station.receiver(16, true);
    let tirn = station.direct(&receiver);
    let destinations = [station.mac, SECOND, STRANGER, GROUP, OTHER_GROUP, BROADCAST];
    destinations.into_iter().for_each(|destination| station.lead(destination, tirn, 0));
    let (own, second, stranger, group, other, all) = (60, 61, 62, 63, 64, 65);
    let mac = station.mac;
    for (unicast, groups, promiscuous, expected) in [
        (&[][..], &[][..], 0, &[own, all][..]),
        (&[], &[GROUP], 0, &[own, group, all]),
        (&[mac, SECOND], &[], 0, &[own, second, all]),
        // With an address of its own the station is no longer the one that it was made as.
        (&[SECOND], &[OTHER_GROUP, GROUP], 0, &[second, group, other, all]),
        (&[SECOND], &[], 4, &[own, second, stranger, all]),
        (&[mac], &[], 2, &[own, group, other, all]),
        (&[], &[], 1, &[own, second, stranger, group, other, all]),
        (&[], &[], 0, &[own, all]),
    ] {
        station.filter(unicast, groups, promiscuous);
        for (len, destination) in (60..).zip(destinations) {
            station.nic.host.device.receive(&plain_frame(destination, [2; 6], len));
        }
        let got: Vec<usize> = std::iter::from_fn(|| station.next(&mut receiver)).map(|got| got.frame.len()).collect();
        assert_eq!(got, expected, "{unicast:x?} {groups:x?} {promiscuous}");
        station.post(&mut receiver, got.len() as u16);
    }
    // received_eth_unicast, received_eth_multicast, received_eth_broadcast: what was let in.
    let counters = [0x90, 0xb0, 0x70].map(|at| station.counter(at).0);
    assert_eq!(counters, [13, 7, 8]);
    // The port, in PPCNT (group 0), has seen all of them: frames and octets with check sequences, groups, all stations.
    assert_eq!([8, 40, 72].map(|at| station.port_counter(0, at)), [48, 8 * (60 + 61 + 62 + 63 + 64 + 65 + 6 * 4), 8]);
}

/// A frame with a check sequence of as many bytes as the MTU passes, and a longer one does not: its request completes all the same,
/// because the port is behind the queue. What Linux shows as tx_discards_phy and rx_oversize_pkts_phy counts it.
#[test]
fn a_frame_longer_than_the_mtu_is_dropped_where_the_mtu_is() {
    const SMALL: usize = 1522 - 4;
    const LARGE: usize = 9022 - 4;
    let mut lan: Vec<Station> = (1..=2).map(Station::new).collect();
    let mut receiver = lan[1].receiver(16, true);
    let tirn = lan[1].direct(&receiver);
    let (to, from) = (lan[1].mac, lan[0].mac);
    lan[1].lead(to, tirn, 0);
    for (sent, [near, far], len, passes) in [
        (1, [1522, 1522], SMALL, [true, true]),
        (2, [1522, 1522], SMALL + 1, [false, false]),
        (3, [9022, 1522], SMALL + 1, [true, false]),
        (4, [9022, 9022], SMALL + 1, [true, true]),
        (5, [9022, 9022], LARGE + 1, [false, false]),
        (6, [1522, 9022], SMALL + 1, [false, false]),
        (7, [1522, 9022], SMALL, [true, true]),
    ] {
        lan[0].set_mtu(near);
        lan[1].set_mtu(far);
        let before = [0, 1].map(|station: usize| lan[station].dropped());
        let frame = plain_frame(to, from, len);
        lan[0].send(0x0a, 0, 0, &frame, 0);
        let moved = carry(&mut lan);
        // The request has completed well.
        let done = lan[0].nic.host.bytes(lan[0].sq.entries + (sent - 1) * 64, 64);
        assert_eq!((done[63] >> 4, done[63] & 1), (0, 0), "{sent}");
        assert_eq!(
            (!moved.is_empty(), lan[1].next(&mut receiver).map(|got| got.frame == frame)),
            (passes[0], passes[1].then_some(true)),
            "{sent}"
        );
        let after = [0, 1].map(|station: usize| lan[station].dropped());
        let risen = |station: usize, counter: usize| after[station][counter] - before[station][counter];
        // Those discarded on the way out, those too long on the way in, those sent, those received.
        assert_eq!([0, 1, 2].map(|counter| risen(0, counter)), [u64::from(!passes[0]), 0, u64::from(passes[0])], "{sent}");
        let refused = passes[0] && !passes[1];
        assert_eq!([0, 1, 3].map(|counter| risen(1, counter)), [0, u64::from(refused), u64::from(passes[1])], "{sent}");
    }
}

#[test]
fn checksums_are_computed_and_checked_and_messages_are_cut() {
    let mut lan: Vec<Station> = (1..=2).map(Station::new).collect();
    let mut receiver = lan[1].receiver(16, true);
    let tirn = lan[1].direct(&receiver);
    let (to, from) = (lan[1].mac, lan[0].mac);
    lan[1].lead(to, tirn, 0);
    // IP and UDP or TCP; neither; IP alone. What is found right; kinds: IPv4, UDP or TCP.
    for (protocol, flags, right, kinds) in [
        (17, 0xc0, 7, 2 << 2 | 2 << 4),
        (6, 0xc0, 7, 2 << 2 | 1 << 4),
        (6, 0, 1, 2 << 2 | 1 << 4),
        (6, 0x40, 3, 2 << 2 | 1 << 4),
    ] {
        let frame = ip_frame(to, from, protocol, [1000, 2000], &[0x5a; 33]);
        lan[0].send(0x0a, flags, 0, &frame, 0);
        let moved = carry(&mut lan);
        let got = lan[1].next(&mut receiver).unwrap();
        assert_eq!(got.frame, moved[0]);
        assert_eq!((got.cqe[28], got.cqe[29]), (right, kinds), "protocol {protocol}, flags {flags:#x}");
        // The sum over the packet, without the padding behind it.
        assert_eq!(be16(&got.cqe, 20), ones_sum(&got.frame[14..frame.len()]));
        assert_eq!(ones_sum(&got.frame[14..34]) == 0xffff, flags & 0x40 != 0);
        if flags == 0 {
            assert_eq!(got.frame[..frame.len()], frame, "nothing is repaired");
        }
    }
    let payload: Vec<u8> = (0..3000_u32).map(|at| (at * 3) as u8).collect();
    let mut frame = ip_frame(to, from, 6, [1000, 2000], &payload);
    frame[16..18].fill(0);
    lan[0].send(0x0e, 0xc0, 1400, &frame, 54);
    assert_eq!(carry(&mut lan).len(), 3);
    let mut whole: Vec<u8> = Vec::new();
    for number in 0..3_u32 {
        let got = lan[1].next(&mut receiver).unwrap();
        assert_eq!(
            (got.cqe[28], be32(&got.frame, 38), be16(&got.frame, 18)),
            (7, 0x100 + number * 1400, 0x1234 + number as u16)
        );
        whole.extend(&got.frame[54..usize::from(be16(&got.frame, 16)) + 14]);
    }
    assert_eq!(whole, payload);
    // More frames than one request may have: 2,049 of a byte.
    lan[0].send(0x0e, 0xc0, 1, &ip_frame(to, from, 6, [1000, 2000], &[1; 2049]), 54);
    let error = lan[0].nic.host.bytes(lan[0].sq.entries + 5 * 64, 64);
    assert_eq!((error[63] >> 4, error[55], carry(&mut lan).len()), (0xd, 1, 0));
    // One entry for each request, at its first block: the last took two.
    let entries: Vec<u16> = (0..5).map(|at| be16(&lan[0].nic.host.bytes(lan[0].sq.entries + at * 64, 64), 60)).collect();
    assert_eq!(entries, [0, 1, 2, 3, 4]);
}

#[test]
fn a_queue_without_buffers_loses_frames_and_counts_them() {
    let mut lan: Vec<Station> = (1..=2).map(Station::new).collect();
    lan.iter_mut().for_each(|station| station.set_mtu(9022));
    let mut receiver = lan[1].receiver(2, true);
    let counters = u32::from(lan[1].nic.host.ok(&input(0x771, 16, &[]), 16)[11]);
    let rqn = receiver.rq.number;
    let set = input(0x909, 272, &[(8, 1 << 28 | rqn), (20, 1 << 3), (32, 1 << 28 | 1 << 20), (44, counters << 24)]);
    lan[1].nic.host.ok(&set, 16);
    let tirn = lan[1].direct(&receiver);
    let (to, from) = (lan[1].mac, lan[0].mac);
    lan[1].lead(to, tirn, 0);
    // The third finds no buffer; one that is longer than a buffer is not cut.
    for len in [100, 200, 300] {
        lan[0].send(0x0a, 0, 0, &plain_frame(to, from, len), 0);
    }
    carry(&mut lan);
    lan[1].post(&mut receiver, 2);
    for len in [2049, 2048] {
        lan[0].send(0x0a, 0, 0, &plain_frame(to, from, len), 0);
    }
    carry(&mut lan);
    let lens: Vec<usize> = std::iter::from_fn(|| lan[1].next(&mut receiver)).map(|got| got.frame.len()).collect();
    assert_eq!(lens, [100, 200, 2048]);
    // `out_of_buffer` of QUERY_Q_COUNTER.
    let query = lan[1].nic.host.ok(&input(0x773, 32, &[(28, counters)]), 256);
    assert_eq!(be32(&query, 0x20 + 0x10), 2);
    // In reset it takes nothing, and begins at its first buffer again.
    assert_eq!((lan[1].nic.modify(0x909, rqn, 1, 0), lan[1].nic.modify(0x909, rqn, 0, 0)), (0, 0));
    lan[0].send(0x0a, 0, 0, &plain_frame(to, from, 64), 0);
    carry(&mut lan);
    assert!(lan[1].next(&mut receiver).is_none());
}

/// A network interface must not hear its own multicasts; two programs on one device hear each other (`self_lb_block`).
#[test]
fn a_sender_hears_itself_only_where_it_may() {
    let mut station = Station::new(1);
    let mut receivers: Vec<Receiver> = (0..4).map(|_| station.receiver(8, true)).collect();
    let other = number(&station.nic.host.ok(&input(0x816, 16, &[]), 16));
    // The sender's own domain: nothing allowed, unicast, multicast; and another domain.
    let tirs: Vec<u32> = receivers
        .iter()
        .zip([(station.nic.domain, 0), (station.nic.domain, 1), (station.nic.domain, 2), (other, 0)])
        .map(|(receiver, (domain, allowed))| {
            let dwords = [(32 + 4, 0), (32 + 28, receiver.rq.number), (32 + 36, allowed << 24 | domain)];
            number(&station.nic.host.ok(&input(0x900, 272, &dwords), 16))
        })
        .collect();
    for destination in [station.mac, GROUP] {
        let mut bytes = input(
            0x936,
            832,
            &[(20, station.table), (32, station.rules), (64 + 4, station.group), (64 + 12, 4), (64 + 16, tirs.len() as u32)],
        );
        bytes[128 + 8..128 + 14].copy_from_slice(&destination);
        for tirn in &tirs {
            bytes.extend((2 << 24 | tirn).to_be_bytes());
            bytes.extend([0; 4]);
        }
        station.nic.host.ok(&bytes, 16);
        station.rules += 1;
    }
    let mac = station.mac;
    station.send(0x0a, 0, 0, &plain_frame(mac, mac, 60), 0);
    assert_eq!(station.nic.host.device.transmit(), None, "for itself: not on the wire");
    station.send(0x0a, 0, 0, &plain_frame(GROUP, mac, 61), 0);
    assert!(station.nic.host.device.transmit().is_some());
    let heard: Vec<Vec<usize>> = receivers
        .iter_mut()
        .map(|receiver| std::iter::from_fn(|| station.next(receiver)).map(|got| got.frame.len()).collect())
        .collect();
    assert_eq!(heard, [vec![], vec![60], vec![61], vec![60, 61]]);
    // MODIFY_TIR changes it; from the wire all hear it.
    station.nic.host.ok(&input(0x901, 272, &[(8, tirs[0]), (20, 1 << 4), (32 + 36, 3 << 24)]), 16);
    station.send(0x0a, 0, 0, &plain_frame(GROUP, mac, 62), 0);
    station.nic.host.device.receive(&plain_frame(GROUP, [2; 6], 63));
    let heard: Vec<usize> = std::iter::from_fn(|| station.next(&mut receivers[0])).map(|got| got.frame.len()).collect();
    assert_eq!(heard, [62, 63]);
}

#[test]
fn a_tag_is_taken_out_where_the_queue_wants_that() {
    for (vsd, kind, is_cut) in [(false, 0x8100_u16, true), (true, 0x8100, false), (false, 0x88a8, false)] {
        let mut station = Station::new(1);
        let mut receiver = station.receiver(2, vsd);
        let tirn = station.direct(&receiver);
        station.lead(station.mac, tirn, 0);
        let mut frame = ip_frame(station.mac, [2; 6], 17, [1, 2], &[9; 40]);
        let untagged = frame.clone();
        frame.splice(12..12, [(kind >> 8) as u8, kind as u8, 0xa1, 0x23]);
        station.nic.host.device.receive(&frame);
        let got = station.next(&mut receiver).unwrap();
        assert_eq!(got.frame, if is_cut { untagged.clone() } else { frame });
        assert_eq!((got.cqe[29] & 1, be16(&got.cqe, 30)), if is_cut { (1, 0xa123) } else { (0, 0) });
        // Of the IP packet alone.
        assert_eq!(be16(&got.cqe, 20), ones_sum(&untagged[14..]));
    }
}

#[test]
fn flows_are_spread_over_the_queues_of_a_table() {
    let mut station = Station::new(1);
    let mut receivers: Vec<Receiver> = (0..3).map(|_| station.receiver(16, true)).collect();
    let queues: Vec<u32> = receivers.iter().map(|receiver| receiver.rq.number).collect();
    let (_, rqt) = station.nic.rqt(0x916, 0, &queues);
    // Toeplitz over addresses and ports, with a key of its own.
    let mut bytes =
        input(0x900, 272, &[(32 + 4, 1 << 28), (32 + 32, rqt), (32 + 36, 2 << 28 | station.nic.domain), (32 + 80, 0xf)]);
    bytes[32 + 40..32 + 80].copy_from_slice(&std::array::from_fn::<u8, 40, _>(|at| (at * 29 + 7) as u8));
    let tirn = number(&station.nic.host.ok(&bytes, 16));
    station.lead(station.mac, tirn, 0);
    let mac = station.mac;
    for _ in 0..2 {
        for port in 0..12 {
            station.nic.host.device.receive(&ip_frame(mac, [2; 6], 17, [4000 + port * 13, 53], &[0; 20]));
        }
    }
    let mut flows = std::collections::BTreeMap::<u16, Vec<(usize, u32)>>::new();
    for (at, receiver) in receivers.iter_mut().enumerate() {
        while let Some(got) = station.next(receiver) {
            assert_eq!(got.cqe[16], 1 << 2 | 2 << 6, "IPv4, UDP");
            flows.entry(be16(&got.frame, 34)).or_default().push((at, be32(&got.cqe, 12)));
        }
    }
    assert_eq!(flows.len(), 12);
    assert!(flows.values().all(|seen| seen.len() == 2 && seen[0] == seen[1]), "a flow stays in order");
    let used: std::collections::BTreeSet<usize> = flows.values().map(|seen| seen[0].0).collect();
    assert_eq!(used.len(), 3);
    assert!(flows.values().all(|seen| seen[0].0 == seen[0].1 as usize % 3), "by the hash that the completion says");
    // Another list, while frames come: from now on to one queue.
    assert_eq!(station.nic.rqt(0x917, rqt, &[queues[2]]).0, 0);
    for port in 0..4 {
        station.nic.host.device.receive(&ip_frame(mac, [2; 6], 17, [4000 + port * 13, 53], &[0; 20]));
    }
    let counts: Vec<usize> =
        receivers.iter_mut().map(|receiver| std::iter::from_fn(|| station.next(receiver)).count()).collect();
    assert_eq!(counts, [0, 0, 4]);
}

#[test]
fn the_lowest_rule_wins_and_the_next_table_gets_what_is_left() {
    let mut station = Station::new(1);
    let mut receivers: Vec<Receiver> = (0..3).map(|_| station.receiver(8, true)).collect();
    let tirs: Vec<u32> = receivers.iter().map(|receiver| station.direct(receiver)).collect();
    // Behind the first table one that takes all.
    let (_, last) = station.nic.table(9, 0, None);
    let all = number(&station.nic.host.ok(&input(0x933, 1024, &[(20, last)]), 16));
    assert_eq!(station.nic.entry(0, last, all, 0, &[(2, tirs[2])]), 0);
    station.nic.host.ok(&input(0x93c, 64, &[(12, 1), (20, station.table), (24, 1 << 24), (28, last)]), 16);
    // Two rules that match the same; and one that drops.
    station.lead(station.mac, tirs[1], 0);
    station.lead(station.mac, tirs[0], 0);
    let mut drop = input(0x936, 832, &[(20, station.table), (32, 9), (64 + 4, station.group), (64 + 12, 2)]);
    drop[128 + 8..128 + 14].copy_from_slice(&BROADCAST);
    station.nic.host.ok(&drop, 16);
    for destination in [station.mac, BROADCAST, GROUP] {
        station.nic.host.device.receive(&plain_frame(destination, [2; 6], 60));
    }
    let mut got = |station: &mut Station| -> Vec<Vec<u8>> {
        receivers
            .iter_mut()
            .map(|receiver| std::iter::from_fn(|| station.next(receiver)).map(|got| got.frame[0]).collect())
            .collect()
    };
    assert_eq!(got(&mut station), [vec![], vec![0], vec![1]]);
    assert_eq!(station.nic.delete(station.table, 0), 0);
    station.nic.host.device.receive(&plain_frame(station.mac, [2; 6], 60));
    assert_eq!(got(&mut station), [vec![0], vec![], vec![]]);
    // Tables that lead to each other end a frame's way.
    assert_eq!(station.nic.entry(1, last, all, 0, &[(1, station.table)]), 0);
    station.nic.host.device.receive(&plain_frame(GROUP, [2; 6], 60));
    assert_eq!(got(&mut station), [vec![], vec![], vec![]]);
}

/// What Linux shows by `tc -s filter` and `ibv_read_counters`.
#[test]
fn a_rule_counts_the_frames_that_match_it() {
    let mut station = Station::new(1);
    let mut receiver = station.receiver(8, true);
    let tirn = station.direct(&receiver);
    let [first, second, idle] = [(); 3].map(|()| station.nic.counter().1);
    // One counts and forwards; one has two counters, one of them that of the first, and drops; the third does not say that it counts.
    for (index, (destination, action, counters)) in
        [(station.mac, 8 | 4, &[first][..]), (GROUP, 8 | 2, &[first, second]), (BROADCAST, 4, &[idle])].into_iter().enumerate()
    {
        let to = action >> 2 & 1;
        let dwords = [
            (20, station.table),
            (32, index as u32),
            (64 + 4, station.group),
            (64 + 12, action),
            (64 + 16, to),
            (64 + 20, counters.len() as u32),
        ];
        let mut bytes = input(0x936, 832, &dwords);
        bytes[128 + 8..128 + 14].copy_from_slice(&destination);
        if to == 1 {
            bytes.extend((2 << 24 | tirn).to_be_bytes());
            bytes.extend([0; 4]);
        }
        for counter in counters {
            bytes.extend(counter.to_be_bytes());
            bytes.extend([0; 4]);
        }
        station.nic.host.ok(&bytes, 16);
    }
    for (destination, len) in [(station.mac, 60), (station.mac, 1000), (GROUP, 70), (BROADCAST, 80)] {
        station.nic.host.device.receive(&plain_frame(destination, [2; 6], len));
    }
    let frames: Vec<usize> = std::iter::from_fn(|| station.next(&mut receiver)).map(|got| got.frame.len()).collect();
    assert_eq!(frames, [60, 1000, 80], "what is counted is received as before");
    assert_eq!(station.nic.counted(first, 3, false), (0, vec![(3, 1130), (1, 70), (0, 0)]));
    // Reading with `clear` begins anew with these alone.
    assert_eq!(station.nic.counted(first, 1, true), (0, vec![(3, 1130)]));
    station.nic.host.device.receive(&plain_frame(GROUP, [2; 6], 70));
    assert_eq!(station.nic.counted(first, 2, false), (0, vec![(1, 70), (2, 140)]));
}

/// A table with all the rules that it may have: a frame that matches the last one, or none, takes no longer than with a few.
#[test]
fn many_rules_make_frames_no_slower() {
    const RULES: u32 = 1 << 16;
    let mut station = Station::new(1);
    let mut receiver = station.receiver(8, true);
    let tirn = station.direct(&receiver);
    let (_, table) = station.nic.table(9, 16, None);
    let mask = [(20, table), (36, RULES - 1), (60, 1), (64 + 8, u32::MAX), (64 + 12, 0xffff_0000)];
    let group = number(&station.nic.host.ok(&input(0x933, 1024, &mask), 16));
    station.nic.host.ok(&input(0x93c, 64, &[(12, 1), (20, station.table), (24, 1 << 24), (28, table)]), 16);
    let mut rule = input(0x936, 832, &[(20, table), (64 + 4, group), (64 + 12, 4), (64 + 16, 1)]);
    rule.extend([2 << 24 | tirn, 0].map(u32::to_be_bytes).concat());
    for index in 0..RULES {
        rule[32..36].copy_from_slice(&index.to_be_bytes());
        // Groups, so that the port takes the frame of the last one, which is for GROUP; the others differ from it.
        let address = if index + 1 == RULES { GROUP } else { [3, 0, 0, 0, (index >> 8) as u8, index as u8] };
        rule[128 + 8..128 + 14].copy_from_slice(&address);
        station.nic.host.ok(&rule, 16);
    }
    let begin = std::time::Instant::now();
    for _ in 0..8 {
        station.nic.host.device.receive(&plain_frame(GROUP, [2; 6], 60));
    }
    for _ in 0..400 {
        station.nic.host.run(1000);
        station.nic.host.device.receive(&plain_frame(BROADCAST, [2; 6], 60));
    }
    let took = begin.elapsed();
    assert_eq!(std::iter::from_fn(|| station.next(&mut receiver)).count(), 8);
    // Compared one by one they took seconds.
    assert!(took < std::time::Duration::from_millis(500), "{took:?}");
}

/// The counters of the physical port (`tx_packets_phy` and others of Linux's `counters.rst`) are of its connector. What a function sends to
/// itself does not pass it, and what comes is counted before anybody looks for whom it is.
#[test]
fn the_port_counts_what_passes_its_connector() {
    let mut station = Station::new(1);
    // transmitted_eth_unicast of the vport; a_frames_transmitted_ok, a_frames_received_ok.
    let counters = |station: &mut Station| [station.counter(0xa0).0, station.port_counter(0, 0), station.port_counter(0, 8)];
    let mac = station.mac;
    station.send(0x0a, 0, 0, &plain_frame(mac, [2; 6], 100), 0);
    assert_eq!(carry(std::slice::from_mut(&mut station)).len(), 0);
    assert_eq!(counters(&mut station), [1, 0, 0]);
    station.send(0x0a, 0, 0, &plain_frame([2; 6], mac, 100), 0);
    assert_eq!(carry(std::slice::from_mut(&mut station)).len(), 1);
    assert_eq!(counters(&mut station), [2, 1, 0]);

    // 10.0.0.1 for RoCE, and a packet from 10.0.0.2 to queue pair 0x100, which there is not.
    let [high @ .., a, b, c, d] = mac;
    let address = [
        (24, 0xffff),
        (28, 0x0a00_0001),
        (32, u16::from_be_bytes(high).into()),
        (36, u32::from_be_bytes([a, b, c, d])),
        (40, 2),
    ];
    station.nic.host.ok(&input(0x761, 48, &address), 16);
    station.nic.host.ok(&input(0x755, 512, &[(12, 1 << 1), (256, 1)]), 16);
    let mut packet = [&mac[..], &[2; 6], &[8, 0]].concat();
    packet.extend([0x45, 0, 0, 0x2c, 0, 0, 0x40, 0, 0x40, 0x11, 0x26, 0xbf, 10, 0, 0, 2, 10, 0, 0, 1]);
    packet.extend([0xc0, 0, 0x12, 0xb7, 0, 0x18, 0, 0, 0x64, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    packet.resize(60, 0);
    let dropped = station.nic.host.device.stats().engine.dropped;
    station.nic.host.device.receive(&packet);
    assert_eq!(station.nic.host.device.stats().engine.dropped, dropped + 1);
    assert_eq!(counters(&mut station), [2, 1, 1]);
    assert_eq!(station.port_counter(0, 40), 60 + 4, "octets with the check sequence");
}
