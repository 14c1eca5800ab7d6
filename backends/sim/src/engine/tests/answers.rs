//! Answers that no well-behaved peer sends in this order: written frame by frame.

use super::harness::*;
use crate::packet::{Aeth, AtomicEth, Bth, Lrh, Opcode, Operation, Packet, Place, Reth, Syndrome, Transport};

/// A requester alone; the test is its peer.
struct Lone {
    host: Host,
    qp: TestQp,
    at: u64,
    key: u32,
}

const FIRST: u32 = 0xff_fffe;

impl Lone {
    fn new() -> Self {
        let mut host = Host::new(1);
        let qp = host.qp(4, 7, 8);
        host.connect(qp.qpn, 2, 0x1234, Link::default());
        let at = host.alloc(1 << 20);
        let key = host.mkey(at, 1 << 20, 0x1f);
        Self { host, qp, at, key }
    }

    fn post(&mut self, opcode: u8, len: u32) {
        let mut body = if opcode == 0x0a { Vec::new() } else { raddr(0, 0) };
        body.extend(data(self.at, len, self.key));
        self.host.post_send(&mut self.qp, opcode, SIGNALED, 0, &body);
    }

    fn sent(&mut self) -> Vec<Packet<'static>> {
        for _ in 0..8 {
            self.host.with(|engine, ctx| engine.advance(ctx));
        }
        std::iter::from_fn(|| self.host.engine.transmit()).map(|frame| Packet::decode(&frame).unwrap().into_owned()).collect()
    }

    fn packet(&self, operation: Operation, psn: u32) -> Packet<'static> {
        let lrh = Lrh { dlid: 1, slid: 2, ..Lrh::default() };
        let opcode = Opcode { transport: Transport::Rc, operation };
        let dest_qpn = self.qp.qpn;
        let psn = psn & 0xff_ffff;
        Packet::new(lrh, Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn, ack_req: false, psn })
    }

    fn answer(&mut self, packet: &Packet<'_>) {
        let frame = packet.encode();
        self.host.with(|engine, ctx| engine.receive(ctx, &frame));
    }

    fn acknowledge(&mut self, offset: u32, syndrome: Syndrome) {
        let mut packet = self.packet(Operation::Acknowledge, FIRST.wrapping_add(offset));
        packet.transport.aeth = Some(Aeth { syndrome, msn: 0 });
        self.answer(&packet);
    }

    fn read_response(&mut self, offset: u32, place: Place, payload: &[u8]) {
        let mut packet = self.packet(Operation::ReadResponse(place), FIRST.wrapping_add(offset));
        packet.transport.aeth = (place != Place::Middle).then_some(Aeth { syndrome: Syndrome::Ack(31), msn: 0 });
        packet.transport.payload = payload.to_vec().into();
        self.answer(&packet);
    }

    fn done(&mut self) -> Vec<(u8, u8, u16)> {
        let mut reported = Vec::new();
        self.sent();
        while let Some(cqe) = self.host.poll(&mut self.qp.send) {
            let syndrome = if cqe.opcode() == 0 { 0 } else { cqe.syndrome() };
            reported.push((cqe.opcode(), syndrome, cqe.counter()));
        }
        reported
    }
}

const ACK: Syndrome = Syndrome::Ack(31);

#[test]
fn one_acknowledgement_for_many_messages() {
    let mut lone = Lone::new();
    for _ in 0..5 {
        lone.post(0x0a, 300);
    }
    let packets = lone.sent();
    assert_eq!(packets.len(), 10);
    let asks: Vec<bool> = packets.iter().map(|packet| packet.transport.bth.ack_req).collect();
    assert_eq!(asks, [false, true].repeat(5), "on the last packet of each");
    lone.acknowledge(6, ACK);
    assert_eq!(lone.done(), [(0, 0, 0), (0, 0, 1), (0, 0, 2)]);
    // Old, unsent and once more.
    for offset in [5, 6, 10, 0x80_0000, u32::MAX] {
        lone.acknowledge(offset, ACK);
        assert_eq!(lone.done(), []);
    }
    lone.acknowledge(9, ACK);
    assert_eq!(lone.done(), [(0, 0, 3), (0, 0, 4)]);
    assert_eq!(lone.host.engine.next_due(), None, "no timer runs for nothing");
}

#[test]
fn the_window_is_bounded_and_asks_for_answers() {
    let mut lone = Lone::new();
    lone.post(0x08, 256 * 1000);
    let packets = lone.sent();
    assert_eq!(packets.len(), 128);
    assert!(packets.chunks(64).all(|some| some.iter().any(|packet| packet.transport.bth.ack_req)));
    assert_eq!(packets[0].transport.reth, Some(Reth { addr: 0, rkey: 0, len: 256_000 }));
    lone.acknowledge(31, ACK);
    assert_eq!(lone.sent().len(), 32);
}

#[test]
fn an_acknowledgement_past_an_unfinished_read() {
    let mut lone = Lone::new();
    lone.post(0x10, 600);
    lone.post(0x0a, 10);
    assert_eq!(lone.sent().len(), 2);
    lone.read_response(0, Place::First, &[1; 256]);
    lone.acknowledge(3, ACK);
    // The rest of the read, and the send after it again.
    let again = lone.sent();
    let reported: Vec<_> =
        again.iter().map(|packet| (packet.transport.bth.opcode.operation, packet.transport.bth.psn)).collect();
    assert_eq!(reported, [(Operation::ReadRequest, 0xff_ffff), (Operation::Send(Place::Only), 1)]);
    assert_eq!(again[0].transport.reth, Some(Reth { addr: 256, rkey: 0, len: 344 }));
    lone.acknowledge(3, ACK);
    assert!(lone.sent().is_empty(), "asked once");
    lone.read_response(1, Place::First, &[2; 256]);
    lone.read_response(2, Place::Last, &[3; 88]);
    lone.acknowledge(3, ACK);
    assert_eq!(lone.done(), [(0, 0, 0), (0, 0, 1)]);
    let bytes = lone.host.read(lone.at, 601);
    assert_eq!((bytes[255], bytes[256], bytes[511], bytes[512], bytes[599], bytes[600]), (1, 2, 2, 3, 3, 0));
}

#[test]
fn answers_of_the_wrong_shape() {
    for (place, len) in [(Place::Last, 256), (Place::First, 255), (Place::Only, 256)] {
        let mut lone = Lone::new();
        lone.post(0x10, 600);
        lone.sent();
        lone.read_response(0, place, &[1; 256][..len]);
        assert_eq!(lone.done(), [(0xd, 0x10, 0)], "{place:?} {len}");
    }
}

#[test]
fn a_refusal_of_the_middle_completes_what_was_before() {
    for (syndrome, code) in
        [(Syndrome::InvalidRequest, 0x12), (Syndrome::RemoteAccess, 0x13), (Syndrome::RemoteOperational, 0x14)]
    {
        let mut lone = Lone::new();
        for _ in 0..3 {
            lone.post(0x0a, 300);
        }
        lone.sent();
        lone.acknowledge(3, syndrome);
        assert_eq!(lone.done(), [(0, 0, 0), (0xd, code, 1), (0xd, 0x05, 2)]);
    }
}

#[test]
fn local_work_completes_in_order_after_reads() {
    let mut lone = Lone::new();
    lone.post(0x10, 8);
    lone.host.post_send(&mut lone.qp, 0x00, SIGNALED, 0, &[]);
    assert_eq!(lone.done(), []);
    lone.read_response(0, Place::Only, &[9; 8]);
    assert_eq!(lone.done(), [(0, 0, 0), (0, 0, 1)]);
}

#[test]
fn requests_out_of_step() {
    // Middle without first, two firsts, a short middle, one kind within another, an atomic with payload: each ends the connection.
    let cases: [&[(Operation, usize)]; 9] = [
        &[(Operation::Send(Place::Middle), 256)],
        &[(Operation::Send(Place::First), 256), (Operation::Send(Place::First), 256)],
        &[(Operation::Send(Place::First), 255)],
        &[(Operation::Send(Place::First), 256), (Operation::Write(Place::Last), 1)],
        &[(Operation::Write(Place::First), 256), (Operation::Write(Place::First), 256)],
        &[(Operation::Write(Place::First), 256), (Operation::Write(Place::Only), 1)],
        &[(Operation::Write(Place::First), 256), (Operation::Send(Place::Middle), 256)],
        &[(Operation::Write(Place::First), 256), (Operation::Send(Place::Last), 1)],
        &[(Operation::FetchAdd, 4)],
    ];
    for case in cases {
        let mut lone = Lone::new();
        let (at, key) = (lone.at, lone.key);
        lone.host.post_receive(&mut lone.qp, &[(at, 4096, key)]);
        for (number, &(operation, len)) in case.iter().enumerate() {
            let mut packet = lone.packet(operation, FIRST + number as u32);
            packet.transport.payload = vec![0; len].into();
            packet.transport.atomic = Some(AtomicEth { addr: at, rkey: key, swap_add: 1, compare: 0 });
            packet.transport.reth = Some(Reth { addr: at, rkey: key, len: 600 });
            packet.transport.atomic = packet.transport.atomic.filter(|_| packet.transport.bth.opcode.headers().atomic);
            lone.answer(&packet);
        }
        let said: Vec<_> = lone.sent().iter().filter_map(|packet| packet.transport.aeth).map(|aeth| aeth.syndrome).collect();
        assert_eq!(said, [Syndrome::InvalidRequest], "{case:?}");
        assert_eq!(lone.host.state(lone.qp.qpn), 6);
        // The receive completes with an error, whether or not it was in use.
        assert!(lone.host.poll(&mut lone.qp.receive).is_some());
        assert_eq!(lone.host.poll(&mut lone.qp.receive), None);
    }
}

/// Returns a packet of the peer that asks for an addition of 1 to the first 8 bytes.
fn addition(lone: &Lone, psn: u32) -> Packet<'static> {
    let mut packet = lone.packet(Operation::FetchAdd, psn);
    packet.transport.atomic = Some(AtomicEth { addr: lone.at, rkey: lone.key, swap_add: 1, compare: 0 });
    packet
}

#[test]
fn a_repeated_atomic_gets_the_result_of_the_newest_with_its_number() {
    let mut lone = Lone::new();
    let answered = |lone: &mut Lone| {
        let packet = addition(lone, FIRST);
        lone.answer(&packet);
        lone.sent().iter().filter_map(|packet| packet.transport.atomic_ack).collect::<Vec<_>>()
    };
    assert_eq!(answered(&mut lone), [0]);
    // 2^24 packets later the number comes again.
    lone.host.engine.qps.get_mut(&lone.qp.qpn).unwrap().responder.expected_psn = FIRST;
    lone.host.write(lone.at, &500_u64.to_le_bytes());
    assert_eq!(answered(&mut lone), [500]);
    assert_eq!(answered(&mut lone), [500], "repeated");
    assert_eq!(lone.host.read(lone.at, 8), 501_u64.to_le_bytes(), "and executed once");
}

#[test]
fn repeated_reads_and_atomics_are_answered_up_to_the_depth_of_the_responder() {
    let depth = 4;
    for operation in [Operation::ReadRequest, Operation::FetchAdd] {
        let mut lone = Lone::new();
        let packet = match operation {
            Operation::FetchAdd => addition(&lone, FIRST),
            _ => {
                let mut packet = lone.packet(operation, FIRST);
                packet.transport.reth = Some(Reth { addr: lone.at, rkey: lone.key, len: 8 });
                packet
            }
        };
        lone.answer(&packet);
        assert_eq!(lone.sent().len(), 1);
        // A peer that does not wait for answers gets no more than it may have in progress.
        (0..1000).for_each(|_| lone.answer(&packet));
        assert_eq!(lone.sent().len(), depth, "{operation:?}");
        lone.answer(&packet);
        assert_eq!(lone.sent().len(), 1, "answered again when there is room");
    }
}

/// Returns a packet of the peer that asks for the whole buffer of [`Lone`]: more packets than are sent in a turn.
fn long_read(lone: &Lone) -> Packet<'static> {
    let mut packet = lone.packet(Operation::ReadRequest, FIRST);
    packet.transport.reth = Some(Reth { addr: lone.at, rkey: lone.key, len: 1 << 20 });
    packet
}

/// What the responder sends until it has no more, and how much of it is acknowledgements, good or bad.
fn all_sent(lone: &mut Lone) -> (usize, Vec<Syndrome>) {
    let (mut responses, mut said) = (0, Vec::new());
    loop {
        let packets = lone.sent();
        if packets.is_empty() {
            return (responses, said);
        }
        for packet in packets {
            match packet.transport.bth.opcode.operation {
                Operation::ReadResponse(_) => responses += 1,
                _ => said.extend(packet.transport.aeth.map(|aeth| aeth.syndrome)),
            }
        }
    }
}

/// The peer has all data from the first response, and has the key invalidated, as protocols of storage do with each request.
#[test]
fn a_repeated_read_whose_key_is_gone_halfway_is_forgotten() {
    let mut lone = Lone::new();
    let other = lone.host.mkey(lone.at, 4096, 0x1f);
    let read = long_read(&lone);
    lone.answer(&read);
    let (packets, said) = all_sent(&mut lone);
    assert_eq!((packets, said.len()), (4096, 0));
    lone.answer(&read);
    let begun = lone.sent().len();
    assert!((1..packets).contains(&begun), "{begun} of {packets}");
    lone.host.engine.destroy_mkey(lone.key >> 8).unwrap();
    assert_eq!(all_sent(&mut lone), (0, vec![]));
    // The next request is carried out.
    lone.key = other;
    let next = addition(&lone, FIRST + packets as u32);
    lone.answer(&next);
    let packets = lone.sent();
    assert_eq!(packets.iter().filter_map(|packet| packet.transport.atomic_ack).collect::<Vec<_>>(), [0]);
    assert_eq!(lone.host.state(lone.qp.qpn), 3);
}

#[test]
fn a_read_whose_key_is_gone_halfway_fails() {
    let mut lone = Lone::new();
    let read = long_read(&lone);
    lone.answer(&read);
    assert!(!lone.sent().is_empty());
    lone.host.engine.destroy_mkey(lone.key >> 8).unwrap();
    assert_eq!(all_sent(&mut lone).1, [Syndrome::RemoteAccess]);
    assert_eq!(lone.host.state(lone.qp.qpn), 6);
}
