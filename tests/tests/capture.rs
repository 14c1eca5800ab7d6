//! Captures of the wire, decoded by tshark. Without tshark these tests do nothing; `.ci/run` installs it.

use std::io::{ErrorKind, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs::{Access, Mtu, Payload, RecvWr, SendFlags, SendOp, SendWr};
use bareverbs_serve::SharedBuffer;
use bareverbs_sim::PortKind;
use bareverbs_sim::capture::PcapNg;
use bareverbs_sim::fabric::{Direction, Tap};
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::packet::{Bth, IpRoute, Ipv4Route, Opcode, Operation, Packet, Place, RoceV2Link, Transport};
use bareverbs_sim::wire::{PortId, Probability, WireFaults};
use bareverbs_tests::{Connection, Pair, end, pattern};

const MTU: Mtu = Mtu::Mtu1024;
/// The first PSN of each end.
const PSN: (bareverbs::Psn, bareverbs::Psn) = (bareverbs::Psn::new(0xff_fffe), bareverbs::Psn::new(0x12_3456));

/// Opcodes of RC (InfiniBand Architecture, table 38).
const SEND_ONLY: &str = "4";
const WRITE_FIRST: &str = "6";
const WRITE_MIDDLE: &str = "7";
const WRITE_LAST: &str = "8";
const ACKNOWLEDGE: &str = "17";

/// Decodes a capture. A line has these fields of one frame. `None` without tshark.
fn decode(capture: &[u8], fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    // Names of hosts are not looked up. The payload is nobody's protocol, whatever it looks like.
    command.args(["-n", "-r", "-", "-T", "fields", "--disable-protocol", "rpcordma"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    let running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut running = match running {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("no tshark here: nothing was decoded");
            return None;
        }
        running => running.unwrap(),
    };
    running.stdin.take().unwrap().write_all(capture).unwrap();
    let done = running.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    Some(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

/// Captures a SEND of 100 bytes and a WRITE of 2500 from the first host. `lose` is how many transmissions of the SEND are lost.
fn send_and_write(lose: u64) -> (Pair, Vec<u8>) {
    let mut pair = Pair::in_world(WorldConfig::default());
    let file = SharedBuffer::default();
    let capture = pair.world.capture(file.clone());
    let ends = (end(&mut pair.a, true), end(&mut pair.b, true));
    pair.connect(&ends.0, &ends.1, &Connection { mtu: MTU, psn: PSN, ..Connection::default() });
    let mut from = pair.a.region(ends.0.pd, 4096, Access::empty());
    let to = pair.b.region(ends.1.pd, 4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    from.buffer.write(0, &pattern(1, 4096));
    pair.b.verbs.post_recv(ends.1.qp, &RecvWr { wr_id: 1, sges: &[to.sge(0, 100)] }).unwrap();
    let before = pair.world.wire_stats();
    if lose > 0 {
        pair.world.set_wire_faults(WireFaults { loss: Probability::ALWAYS, ..WireFaults::NONE });
    }
    let op = SendOp::Send { payload: Payload::Sges(&[from.sge(0, 100)]) };
    pair.a.verbs.post_send(ends.0.qp, &SendWr { wr_id: 1, flags: SendFlags::empty(), op }).unwrap();
    while pair.world.wire_stats().lost < before.lost + lose {
        pair.world.advance(Duration::from_micros(10));
    }
    pair.world.set_wire_faults(WireFaults::NONE);
    assert_eq!(pair.a.completions(ends.0.cq, 1).len(), 1);
    let op = SendOp::Write { payload: Payload::Sges(&[from.sge(0, 2500)]), remote: to.remote(0) };
    pair.a.verbs.post_send(ends.0.qp, &SendWr { wr_id: 2, flags: SendFlags::empty(), op }).unwrap();
    assert_eq!(pair.a.completions(ends.0.cq, 1).len(), 1);
    pair.world.advance(Duration::from_micros(10));
    let stats = pair.world.wire_stats();
    assert_eq!((stats.sent - before.sent, stats.lost - before.lost), (6 + lose, lose));
    capture.finish().unwrap();
    (pair, file.bytes())
}

#[test]
fn infiniband_as_tshark_sees_it() {
    let (pair, capture) = send_and_write(0);
    let fields =
        ["frame.interface_name", "infiniband.lrh.slid", "infiniband.lrh.dlid", "infiniband.bth.opcode", "infiniband.bth.psn"];
    let Some(frames) = decode(&capture, &fields) else { return };
    // From LID 1 to LID 2, whose port is the interface `lid2`, and back.
    let expected = [
        ["lid2", "1", "2", SEND_ONLY, "16777214"],
        ["lid1", "2", "1", ACKNOWLEDGE, "16777214"],
        ["lid2", "1", "2", WRITE_FIRST, "16777215"],
        ["lid2", "1", "2", WRITE_MIDDLE, "0"],
        ["lid2", "1", "2", WRITE_LAST, "1"],
        ["lid1", "2", "1", ACKNOWLEDGE, "1"],
    ];
    assert_eq!(frames, expected);

    // Lengths on the wire, and what the ends of the packets are: headers of 8 and 12 bytes, that of a WRITE 16, that of an ACK 4.
    let fields = ["frame.protocols", "erf.wlen", "infiniband.reth.dmalen", "data.len", "_ws.malformed", "frame.time_epoch"];
    let frames = decode(&capture, &fields).unwrap();
    let expected = [
        ["126", "", "100"],
        ["30", "", ""],
        ["1066", "2500", "1024"],
        ["1050", "", "1024"],
        ["478", "", "452"],
        ["30", "", ""],
    ];
    for (frame, expected) in frames.iter().zip(expected) {
        assert!(frame[0].starts_with("erf:infiniband"), "{frame:?}");
        assert_eq!((&frame[1..4], frame[4].as_str()), (&expected.map(str::to_owned)[..], ""));
    }
    // Times are those of the world, whose 0 is the start of 1970.
    let times: Vec<u64> = frames
        .iter()
        .map(|frame| {
            let (seconds, nanos) = frame[5].split_once('.').unwrap();
            seconds.parse::<u64>().unwrap() * 1_000_000_000 + nanos.parse::<u64>().unwrap()
        })
        .collect();
    assert!(times.is_sorted() && times[0] > 0 && times[5] <= pair.world.now().as_nanos(), "{times:?}");
}

#[test]
fn a_lost_packet_is_absent_and_its_retransmission_is_there() {
    let (_, capture) = send_and_write(2);
    let Some(frames) = decode(&capture, &["infiniband.bth.opcode", "infiniband.bth.psn"]) else { return };
    let opcodes: Vec<&str> = frames.iter().map(|frame| frame[0].as_str()).collect();
    assert_eq!(opcodes, [SEND_ONLY, ACKNOWLEDGE, WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, ACKNOWLEDGE]);
}

/// A congestion notification as it was captured from a ConnectX-4 Lx (test/contrib/roce.uts of Scapy).
const FROM_A_CARD: [u8; 74] = [
    0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00, 0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c,
    0x40, 0x00, 0x40, 0x11, 0x91, 0xa4, 0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01, 0x00, 0x00, 0x12, 0xb7, 0x00, 0x28,
    0x00, 0x00, 0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x82, 0xfd, 0x00, 0x2a,
];

/// The ICRC of a RoCEv2 packet over IPv4 without options, bit by bit (InfiniBand Architecture annex A17, figure 7 of A17.3.3).
fn icrc(packet: &[u8]) -> [u8; 4] {
    let mut bytes = vec![0xff; 8];
    bytes.extend(&packet[14..packet.len() - 4]);
    // Type of service, time to live and checksum of the IP header, checksum of UDP, and the first byte behind P_Key.
    for at in [1, 8, 10, 11, 26, 27, 32] {
        bytes[8 + at] = 0xff;
    }
    let mut sum = u32::MAX;
    for bit in bytes.iter().flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit & 1))) {
        sum = if (sum ^ bit) & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    }
    (!sum).to_le_bytes()
}

#[test]
fn roce_as_tshark_sees_it() {
    let bytes = SharedBuffer::default();
    let mut file = PcapNg::new(bytes.clone(), Duration::from_secs(1_700_000_000));
    let mac = [0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2];
    file.add_port("lid1", PortKind::Ethernet { mac });
    let route = Ipv4Route {
        tos: 2,
        identification: 7,
        dont_fragment: true,
        ttl: 64,
        source: [10, 0, 0, 2],
        destination: [10, 0, 0, 1],
    };
    let link = RoceV2Link { destination: mac, source: [2; 6], vlan: None, route: IpRoute::V4(route), source_port: 0xc123 };
    let opcode = Opcode { transport: Transport::Rc, operation: Operation::Send(Place::Only) };
    let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn: 0x40, ack_req: true, psn: 0xabcdef };
    let mut sent = Packet::new(link, bth);
    sent.transport.payload = b"twelve bytes".to_vec().into();
    let sent = sent.encode();
    for frame in [&FROM_A_CARD[..], &sent] {
        file.frame(Instant::from_nanos(9), PortId(0), Direction::ToPort, frame);
    }
    file.finish().unwrap();
    let fields = [
        "_ws.col.Protocol",
        "frame.time_epoch",
        "ip.dst",
        "udp.dstport",
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "infiniband.invariant.crc",
        "data.len",
    ];
    let Some(frames) = decode(&bytes.bytes(), &fields) else { return };
    let hex = |bytes: [u8; 4]| format!("{:#010x}", u32::from_be_bytes(bytes));
    assert_eq!(icrc(&FROM_A_CARD), [0x82, 0xfd, 0x00, 0x2a], "the card's own");
    let time = "1700000000.000000009";
    // It shows the ICRC of a notification as something unknown.
    let expected = [
        ["RRoCE", time, "10.0.18.1", "4791", "129", "0x000118", "0", "", ""],
        ["RRoCE", time, "10.0.0.1", "4791", "4", "0x000040", "11259375", &hex(icrc(&sent)), "12"],
    ];
    assert_eq!(frames, expected);
}

/// Asks its world how many frames there were, in the middle of one.
struct Asking(World);

impl Tap for Asking {
    fn frame(&mut self, _: Instant, _: PortId, _: Direction, _: &[u8]) {
        self.0.wire_stats();
    }
}

#[test]
#[should_panic(expected = "keep what is needed and ask the world after it has returned")]
fn a_tap_that_calls_its_world_is_told_what_to_do() {
    let mut pair = Pair::new();
    pair.connected();
    let world = pair.world.clone();
    world.set_tap(Some(Box::new(Asking(world.clone()))));
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    pair.connect(&a, &b, &Connection::default());
    let op = SendOp::Send { payload: Payload::Inline(b"x") };
    pair.a.verbs.post_send(a.qp, &SendWr { wr_id: 1, flags: SendFlags::empty(), op }).unwrap();
    world.advance(Duration::from_millis(1));
}

#[test]
#[should_panic(expected = "keep what is needed and ask the world after it has returned")]
fn a_device_that_is_asked_for_in_its_own_closure_is_too() {
    let pair = Pair::new();
    pair.a.host.with_device(|_| pair.b.host.with_device(|_| ()));
}
