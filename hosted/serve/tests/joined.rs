//! Wires that join the Ethernet of a server: peers that speak the formats of QEMU's `-netdev stream` and `-netdev dgram`.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use bareverbs_serve::{ControlInput, Log, ServeError, ServedDevice, Server, ServerConfig, SharedBuffer};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::wire::{Probability, WireFaults};

const TIMEOUT: Duration = Duration::from_secs(60);
/// How long nothing comes where nothing may come.
const SILENCE: Duration = Duration::from_millis(200);
/// An Ethernet type for experiments (IEEE 802).
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];
const EVERYONE: u8 = 0xff;

/// Waits until `condition` returns `true`.
fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A frame of 60 bytes between stations that end in these numbers, with a mark.
fn frame(destination: u8, source: u8, mark: u32) -> Vec<u8> {
    let to = if destination == EVERYONE { [0xff; 6] } else { [2, 0, 0, 0, 0, destination] };
    let mut frame = [&to[..], &[2, 0, 0, 0, 0, source], &EXPERIMENT, &mark.to_be_bytes()].concat();
    frame.resize(60, 0);
    frame
}

fn mark(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame.get(14..).unwrap().first_chunk().unwrap())
}

/// The end of a connection, as QEMU has it.
struct Peer<S>(S);

impl<S: Read + Write> Peer<S> {
    fn send(&mut self, frame: &[u8]) {
        self.0.write_all(&[&(frame.len() as u32).to_be_bytes(), frame].concat()).unwrap();
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut len = [0; 4];
        self.0.read_exact(&mut len).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(len) as usize];
        self.0.read_exact(&mut frame).unwrap();
        frame
    }

    /// Returns whether the server ends the connection, behind what it has sent.
    fn is_ended(&mut self) -> bool {
        loop {
            match self.0.read(&mut [0; 4096]) {
                Ok(1..) => {}
                Ok(0) => return true,
                // Unread bytes turn the end into a reset.
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }
}

impl Peer<UnixStream> {
    fn connect(path: &Path) -> Self {
        let mut stream = None;
        wait("a listener", || {
            stream = UnixStream::connect(path).ok();
            stream.is_some()
        });
        Self::on(stream.unwrap())
    }

    fn on(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(stream)
    }

    /// Checks that nothing comes.
    fn hears_nothing(&mut self) {
        self.0.set_read_timeout(Some(SILENCE)).unwrap();
        let heard = self.0.read(&mut [0]);
        assert_eq!(heard.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        self.0.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
}

impl Peer<TcpStream> {
    fn on_tcp(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(stream)
    }
}

/// A server of one device, with these wires.
struct Lan {
    server: Server,
    log: SharedBuffer,
}

fn config(folder: &Path, lid: u16, wires: &[String]) -> ServerConfig {
    let config = DeviceConfig::with_lid(lid).with_ethernet();
    let device = ServedDevice { config, socket: folder.join(format!("cx{lid}")) };
    ServerConfig { joined: wires.iter().map(|wire| wire.parse().unwrap()).collect(), ..ServerConfig::new(vec![device]) }
}

impl Lan {
    fn start(folder: &Path, lid: u16, wires: &[String]) -> Self {
        Self::of(config(folder, lid, wires))
    }

    fn of(config: ServerConfig) -> Self {
        let log = SharedBuffer::default();
        let server = Server::start(ServerConfig { log: Log::new(Box::new(log.clone())).unwrap(), ..config }).unwrap();
        Self { server, log }
    }

    fn wait_connected(&self) {
        wait("peers", || self.server.joined().iter().all(|wire| wire.connected));
    }

    fn wait_said(&self, text: &str) {
        wait(text, || String::from_utf8(self.log.bytes()).unwrap().contains(text));
    }
}

/// A server with a wire at each of these names in the folder, where it listens, and a connected peer at each.
fn peers<const N: usize>(folder: &Path, lid: u16, names: [&str; N]) -> (Lan, [Peer<UnixStream>; N]) {
    let wires = names.map(|name| format!("stream:unix:{},server=on", folder.join(name).display()));
    let lan = Lan::start(folder, lid, &wires);
    let peers = names.map(|name| Peer::connect(&folder.join(name)));
    lan.wait_connected();
    (lan, peers)
}

/// Has each peer say where it is, and takes what the others hear of it.
fn introduce<const N: usize>(peers: &mut [Peer<UnixStream>; N]) {
    for source in 0..N {
        let said = frame(EVERYONE, source as u8 + 1, 0);
        peers.iter_mut().skip(source).take(1).for_each(|peer| peer.send(&said));
        for (_, peer) in peers.iter_mut().enumerate().filter(|(number, _)| *number != source) {
            assert_eq!(peer.receive(), said);
        }
    }
}

/// The bytes are those that QEMU's `net/stream.c` writes for an ARP request of 42 bytes, but for the padding.
#[test]
fn the_bytes_on_a_stream_are_those_of_qemu() {
    let arp = [
        &[0xff; 6][..],
        &[0x52, 0x54, 0, 0x12, 0x34, 0x56, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56, 10, 0, 2, 15],
        &[0, 0, 0, 0, 0, 0, 10, 0, 2, 2],
    ]
    .concat();
    assert_eq!(arp.len(), 42);
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let wires = [
        format!("stream:unix:{},server=on", folder.path().join("lan").display()),
        format!("stream:tcp:{}", listener.local_addr().unwrap()),
    ];
    let lan = Lan::start(folder.path(), 0x801, &wires);
    let mut to = Peer::on_tcp(listener.accept().unwrap().0);
    let mut from = Peer::connect(&folder.path().join("lan"));
    lan.wait_connected();
    from.0.write_all(&[&[0, 0, 0, 42][..], &arp].concat()).unwrap();
    let mut bytes = [1; 64];
    to.0.read_exact(&mut bytes).unwrap();
    assert_eq!((&bytes[..4], &bytes[4..46], &bytes[46..]), (&[0, 0, 0, 60][..], &arp[..], &[0; 18][..]));
    // A byte at a time up to the middle of the frame, then the rest of it.
    for (number, bytes) in [&[0, 0, 0x23, 0x28][..], &frame(EVERYONE, 1, 7), &[9; 9000 - 60]].concat().chunks(100).enumerate() {
        for bytes in bytes.chunks(if number < 3 { 1 } else { 100 }) {
            from.0.write_all(bytes).unwrap();
        }
    }
    let long = to.receive();
    assert_eq!((long.len(), mark(&long), long[8999]), (9000, 7, 9));
    let stats = lan.server.stop().joined;
    assert_eq!((stats[0].received, stats[1].sent, stats[0].sent, stats[1].received), (2, 2, 0, 0));
    assert_eq!((stats[0].name.as_str(), stats[1].address.as_str()), ("join1", wires[1].as_str()));
}

#[test]
fn a_frame_goes_where_its_station_is_and_groups_go_to_all_others() {
    let folder = tempfile::tempdir().unwrap();
    let (_lan, mut peers) = peers(folder.path(), 0x802, ["a", "b", "c"]);
    introduce(&mut peers);
    let [a, b, c] = &mut peers;
    for number in 0..100 {
        a.send(&frame(2, 1, number));
        b.send(&frame(1, 2, number));
    }
    for number in 0..100 {
        assert_eq!((b.receive(), a.receive()), (frame(2, 1, number), frame(1, 2, number)));
    }
    c.hears_nothing();
    a.hears_nothing();
}

#[test]
fn frames_cross_two_servers_that_are_joined_by_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    // A port that is free: nobody else takes it in between.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let near = UnixDatagram::bind(path("near")).unwrap();
    let first_wires = [format!("stream:tcp:127.0.0.1:{port}"), format!("dgram:unix:{},{}", path("here"), path("near"))];
    let second_wires =
        [format!("stream:tcp:127.0.0.1:{port},server=on"), format!("dgram:udp:{at},{}", far.local_addr().unwrap())];
    // The first one has to try again.
    let first = Lan::start(folder.path(), 0x803, &first_wires);
    first.wait_said("join1: Connection refused");
    let second = Lan::start(folder.path(), 0x804, &second_wires);
    first.wait_connected();
    second.wait_connected();
    near.set_read_timeout(Some(TIMEOUT)).unwrap();
    far.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = [0; 2000];
    for number in 0..1000 {
        near.send_to(&frame(2, 1, number), path("here")).unwrap();
        let len = far.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..len], frame(2, 1, number));
        far.send_to(&frame(1, 2, number), at).unwrap();
        let len = near.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..len], frame(1, 2, number));
    }
    // A datagram of somebody else, of no frame, of too long a frame.
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&frame(1, 2, 5), at).unwrap();
    far.send_to(&[1, 2, 3], at).unwrap();
    near.send_to(&[7; 20_000], path("here")).unwrap();
    far.send_to(&frame(1, 2, 6), at).unwrap();
    let len = near.recv(&mut bytes).unwrap();
    assert_eq!(bytes[..len], frame(1, 2, 6));
    wait("the datagrams", || second.server.joined()[1].of_wrong_length + first.server.joined()[1].of_wrong_length == 2);
    assert_eq!(second.server.stop().joined[1].received, 1001);
    first.wait_said("join1: the peer is gone");
    drop(first);
    assert!(!folder.path().join("here").exists());
}

#[test]
fn what_is_no_frame_ends_its_connection_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (lan, mut peers) = peers(folder.path(), 0x805, ["a", "b", "c"]);
    introduce(&mut peers);
    let [mut a, mut b, mut c] = peers;
    // The greatest length, and one that is just too long.
    for (length, said) in [([0xff; 4], "a frame of 4294967295 bytes"), ([0, 1, 0x10, 1], "a frame of 69633 bytes")] {
        c.0.write_all(&length).unwrap();
        assert!(c.is_ended());
        lan.wait_said(said);
        c = Peer::connect(&folder.path().join("c"));
        lan.wait_connected();
    }
    // Half a length, and half a frame.
    for (bytes, said) in [(&[0, 0][..], "2 of 4 bytes came"), (&[0, 0, 0, 60, 1, 2, 3], "7 of 64 bytes came")] {
        c.0.write_all(bytes).unwrap();
        drop(c);
        lan.wait_said(said);
        c = Peer::connect(&folder.path().join("c"));
        lan.wait_connected();
    }
    // Lengths that are of the format and not of Ethernet end nothing.
    for len in [0, 1, 13, 10_001, 69_632] {
        c.send(&vec![0xff; len]);
    }
    c.send(&frame(2, 3, 8));
    assert_eq!(b.receive(), frame(2, 3, 8));
    a.send(&frame(2, 1, 9));
    assert_eq!(b.receive(), frame(2, 1, 9));
    let stats = &lan.server.stop().joined[2];
    assert_eq!((stats.violations, stats.of_wrong_length), (4, 5));
}

/// More than sockets and queues take.
const FLOOD: u32 = 20_000;

#[test]
fn a_peer_that_reads_nothing_delays_nobody_and_stop_works_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (lan, mut peers) = peers(folder.path(), 0x806, ["a", "b", "c"]);
    introduce(&mut peers);
    let [a, b, c] = &mut peers;
    let mut long = frame(2, 1, 0);
    long.resize(1500, 0);
    for number in 0..FLOOD {
        a.send(&long);
        if number % 100 == 0 {
            a.send(&frame(3, 1, number));
            c.send(&frame(1, 3, number));
            assert_eq!((c.receive(), a.receive()), (frame(3, 1, number), frame(1, 3, number)));
        }
    }
    let dropped = lan.server.joined()[1].sends_dropped;
    assert!(dropped > u64::from(FLOOD) / 2, "{dropped}");
    // What it had room for comes whole, and in order.
    for _ in 0..100 {
        assert_eq!(b.receive(), long);
    }
    for _ in 0..5000 {
        a.send(&long);
    }
    let start = Instant::now();
    let summary = lan.server.stop();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(summary.to_string().contains(" not taken by the peer"), "{summary}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect::<Vec<_>>()
    };
    wait("threads", || !threads().iter().any(|name| name.starts_with("lid2054")));
}

#[test]
fn a_flood_of_one_peer_leaves_room_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let (lan, mut peers) = peers(folder.path(), 0x807, ["a", "b", "c"]);
    introduce(&mut peers);
    let [mut a, mut b, mut c] = peers;
    let flood = std::thread::spawn(move || {
        let mut long = frame(2, 1, 0);
        long.resize(1500, 0);
        // Until the end of the server.
        while a.0.write_all(&[&1500_u32.to_be_bytes()[..], &long].concat()).is_ok() {}
    });
    // Frames of the others have a queue of their own, so each of the slow sender arrives.
    let dropped = |lan: &Lan| lan.server.joined()[1].sends_dropped;
    for number in 0..20 {
        let before = dropped(&lan);
        wait("a full queue", || dropped(&lan) > before);
        let received = lan.server.joined()[2].received;
        c.send(&frame(2, 3, number));
        wait("the frame", || lan.server.joined()[2].received > received);
        let arrived = (0..1_000_000).map(|_| b.receive()).find(|frame| frame[11] == 3);
        assert_eq!(arrived, Some(frame(2, 3, number)));
    }
    drop(lan);
    flood.join().unwrap();
}

#[test]
fn a_peer_goes_away_and_returns() {
    let folder = tempfile::tempdir().unwrap();
    let (lan_path, listen_path) = (folder.path().join("lan"), folder.path().join("listens"));
    let wires = [format!("stream:unix:{},server=on", lan_path.display()), format!("stream:unix:{}", listen_path.display())];
    let lan = Lan::start(folder.path(), 0x808, &wires);
    for round in 0..3 {
        let listener = UnixListener::bind(&listen_path).unwrap();
        let mut b = Peer::on(listener.accept().unwrap().0);
        let mut a = Peer::connect(&lan_path);
        lan.wait_connected();
        a.send(&frame(2, 1, round));
        assert_eq!(b.receive(), frame(2, 1, round));
        b.send(&frame(1, 2, round));
        assert_eq!(a.receive(), frame(1, 2, round));
        // Frames for one that is not there are lost.
        drop(b);
        drop(listener);
        std::fs::remove_file(&listen_path).unwrap();
        wait("the end", || !lan.server.joined()[1].connected);
        let before = lan.server.joined()[1].sends_dropped;
        a.send(&frame(2, 1, 99));
        wait("the loss", || lan.server.joined()[1].sends_dropped == before + 1);
    }
}

#[test]
fn a_new_peer_takes_the_place_of_one_that_holds_a_listening_wire() {
    let folder = tempfile::tempdir().unwrap();
    let (lan, [mut a, b]) = peers(folder.path(), 0x80e, ["a", "b"]);
    let mut holders = vec![b];
    // Nothing, half a length, half a frame. None of them reads.
    for (round, bytes) in [&[][..], &[0, 0], &[0, 0, 0, 60, 1, 2, 3]].into_iter().enumerate() {
        let mut holder = Peer::connect(&folder.path().join("b"));
        assert!(holders.pop().unwrap().is_ended(), "the peer before");
        holder.0.write_all(bytes).unwrap();
        for _ in 0..5000 {
            a.send(&frame(2, 1, 99));
        }
        wait("the frames for the holder", || lan.server.joined()[0].received == (round as u64 + 1) * 5001 - 1);
        let mut honest = Peer::connect(&folder.path().join("b"));
        assert!(holder.is_ended(), "holder {round}");
        honest.send(&frame(EVERYONE, 2, 7));
        assert_eq!(a.receive(), frame(EVERYONE, 2, 7));
        let answer = frame(2, 1, round as u32);
        a.send(&answer);
        assert_eq!(honest.receive(), answer, "what the holder did not take is not for the next one");
        holders.push(honest);
    }
    lan.wait_said("join2: another peer takes the place of this one");
    // Those that come and go, or wait for their turn, hold nothing.
    drop(holders);
    let path = folder.path().join("b");
    for _ in 0..30 {
        drop(UnixStream::connect(&path));
    }
    let mut last = Peer::connect(&path);
    last.send(&frame(EVERYONE, 2, 8));
    assert_eq!(a.receive(), frame(EVERYONE, 2, 8));
    let start = Instant::now();
    drop(lan);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

/// Each costs two threads, which live until the next takes its place.
#[test]
fn peers_that_come_at_once_are_accepted_ten_times_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let (_lan, [mut a, mut before]) = peers(folder.path(), 0x813, ["a", "b"]);
    let start = Instant::now();
    let mut crowd: Vec<_> = (0..6).map(|_| Peer::connect(&folder.path().join("b"))).collect();
    let mut last = crowd.pop().unwrap();
    assert!(before.is_ended() && crowd.iter_mut().all(Peer::is_ended));
    last.send(&frame(EVERYONE, 2, 7));
    assert_eq!(a.receive(), frame(EVERYONE, 2, 7));
    // The first of them may come at the end of a pause.
    assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
}

#[test]
fn a_listener_that_hangs_up_at_once_is_tried_ten_times_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("listens");
    let listener = UnixListener::bind(&path).unwrap();
    let lan = Lan::start(folder.path(), 0x80f, &[format!("stream:unix:{}", path.display())]);
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < Duration::from_secs(1) {
        drop(listener.accept().unwrap());
        count += 1;
    }
    assert!((1..=11).contains(&count), "{count}");
    drop(lan);
}

/// An answer of ARP for everybody: station `source` says that 10.0.0.`address` is its own.
fn arp(source: u8, address: u8) -> Vec<u8> {
    let mac = [2, 0, 0, 0, 0, source];
    let mut frame =
        [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &mac, &[10, 0, 0, address], &[0xff; 6], &[10, 0, 0, address]]
            .concat();
    frame.resize(60, 0);
    frame
}

#[test]
fn nobody_takes_an_address_to_which_a_port_is_bound() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c"];
    let wires = names.map(|name| format!("stream:unix:{},server=on", folder.path().join(name).display()));
    let bindings = ["join1=02:00:00:00:00:01,10.0.0.1", "join2=02:00:00:00:00:02"].map(|text| text.parse().unwrap()).to_vec();
    let lan = Lan::of(ServerConfig { bindings, ..config(folder.path(), 0x810, &wires) });
    let mut peers = names.map(|name| Peer::connect(&folder.path().join(name)));
    lan.wait_connected();
    introduce(&mut peers);
    let [a, b, c] = &mut peers;
    // The third one takes what it can: the MAC address, the IP address, that of a port which has no IP address of its own.
    // A claim behind tags without end, and one that cannot be read, are no way round.
    let tagged = [&arp(3, 1)[..12], &[0x81, 0, 0, 0].repeat(20), &arp(3, 1)[12..]].concat();
    let unreadable = [&frame(EVERYONE, 3, 1)[..12], &[0x81, 0, 0, 0].repeat(12)].concat();
    for stolen in [frame(EVERYONE, 1, 1), frame(2, 1, 1), arp(3, 1), tagged, unreadable, frame(EVERYONE, 2, 1)] {
        c.send(&stolen);
    }
    // A bound one does not become another either.
    b.send(&frame(EVERYONE, 7, 1));
    a.send(&arp(1, 9));
    a.send(&arp(1, 1));
    assert_eq!((b.receive(), c.receive()), (arp(1, 1), arp(1, 1)));
    // The frames for the victim still come to it.
    for number in 0..100 {
        b.send(&frame(1, 2, number));
        assert_eq!(a.receive(), frame(1, 2, number));
    }
    c.send(&arp(3, 3));
    assert_eq!(a.receive(), arp(3, 3));
    c.hears_nothing();
    for line in [
        "join3: the peer sends from the MAC address 02:00:00:00:00:01 of join1: refused",
        "join3: the peer sends from the IP address 10.0.0.1 of join1: refused",
        "join3: the peer sends frames whose addresses cannot be read: refused",
        "join3: the peer sends from the MAC address 02:00:00:00:00:02 of join2: refused",
        "join2: the peer sends from the MAC address 02:00:00:00:00:07, which is not its own: refused",
        "join1: the peer sends from the IP address 10.0.0.9, which is not its own: refused",
    ] {
        lan.wait_said(line);
    }
    let stats = lan.server.stop().joined;
    assert_eq!(stats.iter().map(|wire| wire.receives_refused).collect::<Vec<_>>(), [1, 1, 6]);
}

/// Who is bound to an address is where frames for it go, also before it has said anything.
#[test]
fn others_do_not_hear_what_is_for_a_bound_port() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c"];
    let wires = names.map(|name| format!("stream:unix:{},server=on", folder.path().join(name).display()));
    let bindings = vec!["join1=02:00:00:00:00:01".parse().unwrap()];
    let lan = Lan::of(ServerConfig { bindings, ..config(folder.path(), 0x823, &wires) });
    let mut peers = names.map(|name| Peer::connect(&folder.path().join(name)));
    lan.wait_connected();
    let [a, b, c] = &mut peers;
    b.send(&frame(1, 2, 7));
    assert_eq!(a.receive(), frame(1, 2, 7));
    c.hears_nothing();
}

#[test]
fn without_a_binding_a_thief_of_addresses_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (lan, mut peers) = peers(folder.path(), 0x811, ["a", "b"]);
    introduce(&mut peers);
    let [a, b] = &mut peers;
    a.send(&arp(1, 1));
    assert_eq!(b.receive(), arp(1, 1));
    for _ in 0..3 {
        b.send(&arp(2, 1));
        assert_eq!(a.receive(), arp(2, 1), "it is let do");
    }
    b.send(&frame(EVERYONE, 1, 1));
    // The permanent address of the device.
    let mut device = frame(EVERYONE, 0, 2);
    device[6..12].copy_from_slice(&[0, 2, 0xc9, 8, 0x11, 0]);
    b.send(&device);
    lan.wait_said("join2: the peer sends from the IP address 10.0.0.1 of join1: let pass");
    lan.wait_said("join2: the peer sends from the MAC address 02:00:00:00:00:01 of join1: let pass");
    lan.wait_said("join2: the peer sends from the MAC address 00:02:c9:08:11:00 of lid2065: let pass");
    let said = String::from_utf8(lan.log.bytes()).unwrap();
    assert_eq!(said.matches("10.0.0.1").count(), 1, "once: {said}");
}

#[test]
fn a_binding_that_cannot_be_is_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let wires = ["a", "b"].map(|name| format!("stream:unix:{},server=on", folder.path().join(name).display()));
    for (texts, said) in [
        (&["lid7"][..], "port lid7: there is no such Ethernet port"),
        (&["join3=02:00:00:00:00:01"], "port join3: there is no such Ethernet port"),
        (&["join1=10.0.0.1"], "port join1: a joined wire is bound to a MAC address: join1=52:54:00:00:00:02,…"),
        (&["lid2066", "lid2066=10.0.0.1"], "port lid2066: it was bound before"),
        (
            &["join1=02:00:00:00:00:01", "join2=02:00:00:00:00:01"],
            "port join2: another port is bound to the MAC address 02:00:00:00:00:01",
        ),
        (
            &["lid2066=10.0.0.1", "join2=02:00:00:00:00:01,10.0.0.1"],
            "port join2: another port is bound to the IP address 10.0.0.1",
        ),
    ] {
        let bindings = texts.iter().map(|text| text.parse().unwrap()).collect();
        let error = Server::start(ServerConfig { bindings, ..config(folder.path(), 0x812, &wires) }).map(drop).unwrap_err();
        assert_eq!(error.to_string(), said);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_faults_of_the_wire_act_on_what_comes_from_peers() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a", "b"];
    let run = |lid, faults| {
        let wires = names.map(|name| format!("stream:unix:{},server=on", folder.path().join(name).display()));
        let lan = Lan::of(ServerConfig { wire_faults: faults, ..config(folder.path(), lid, &wires) });
        let [mut a, mut b] = names.map(|name| Peer::connect(&folder.path().join(name)));
        lan.wait_connected();
        b.0.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let reader = std::thread::spawn(move || {
            let (mut marks, mut bytes) = (Vec::new(), [0; 64]);
            while b.0.read_exact(&mut bytes).is_ok() {
                marks.push(mark(&bytes[4..]));
            }
            marks
        });
        for number in 0..2000 {
            a.send(&frame(EVERYONE, 1, number));
            if number % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        reader.join().unwrap()
    };
    let half = Probability::per_mille(500);
    let lost = 2000 - run(0x809, WireFaults { loss: half, ..WireFaults::NONE }).len();
    assert!((800..1200).contains(&lost), "{lost}");
    let twice = run(0x80a, WireFaults { duplication: half, ..WireFaults::NONE }).len() - 2000;
    assert!((800..1200).contains(&twice), "{twice}");
    // Each wakes somebody who delivers it, also the last ones.
    let late = WireFaults { delay: half, delay_time: Duration::from_millis(20), ..WireFaults::NONE };
    let mut marks = run(0x80b, late);
    assert!(!marks.is_sorted());
    marks.sort_unstable();
    assert!(marks.into_iter().eq(0..2000));
}

#[test]
fn the_control_socket_says_what_happened_at_each_wire() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let wires = ["a", "b"].map(|name| format!("stream:unix:{},server=on", folder.path().join(name).display()));
    let input = Some(ControlInput::Socket(control.clone()));
    let lan = Lan::of(ServerConfig { control: input, ..config(folder.path(), 0x80c, &wires) });
    let mut a = Peer::connect(&folder.path().join("a"));
    wait("the peer", || lan.server.joined()[0].connected);
    a.send(&frame(EVERYONE, 1, 1));
    wait("the frame", || lan.server.joined()[1].sends_dropped == 1);
    let ask = |line: &str| {
        let mut stream = UnixStream::connect(&control).unwrap();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    assert_eq!(
        ask("wires"),
        "join1 connected=true sent=0 sends_dropped=0 received=1 receives_dropped=0 receives_refused=0 of_wrong_length=0 violations=0; \
         join2 connected=false sent=0 sends_dropped=1 received=0 receives_dropped=0 receives_refused=0 of_wrong_length=0 violations=0\n"
    );
    let json = ask("wires json");
    assert!(json.starts_with(r#"[{"address":"stream:unix:"#) && json.contains(r#""name":"join2""#), "{json}");
    assert!(ask("help").contains(", wires [json], "));
}

#[test]
fn a_wire_that_cannot_be_joined_is_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let start = |wires: &[String]| Server::start(config(folder.path(), 0x80d, wires)).map(drop).unwrap_err();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _taken = TcpListener::bind(taken).unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp = udp.local_addr().unwrap();
    let wires = [
        format!("stream:tcp:{taken},server=on"),
        format!("dgram:udp:{udp},127.0.0.1:9"),
        "dgram:udp:127.0.0.1:0,[::1]:9".to_owned(),
    ];
    for wire in wires {
        let error = start(std::slice::from_ref(&wire));
        assert!(matches!(error, ServeError::Address(..)), "{wire}: {error}");
    }
    let long = "long".repeat(30);
    for wire in [format!("stream:unix:{}", path(&long)), format!("dgram:unix:{},{}", path("d"), path(&long))] {
        assert!(matches!(start(&[wire]), ServeError::TooLong(_)));
    }
    let twice = [format!("stream:unix:{},server=on", path("a")), format!("dgram:unix:{},{}", path("a"), path("b"))];
    assert!(matches!(start(&twice), ServeError::Twice(_)));
    let error = start(&[format!("stream:unix:{},server=on", path("no/such"))]);
    assert!(matches!(error, ServeError::NoFolder(_)), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    // Of a server with InfiniBand ports.
    let device = ServedDevice { config: DeviceConfig::with_lid(1), socket: folder.path().join("cx1") };
    let joined = vec!["stream:tcp:127.0.0.1:1".parse().unwrap()];
    let error = Server::start(ServerConfig { joined, ..ServerConfig::new(vec![device]) }).map(drop).unwrap_err();
    assert!(matches!(error, ServeError::JoinedInfiniBand), "{error}");
}

/// The other end of a TAP interface is the network stack of this machine: of a network namespace of its own, in which this program
/// runs again and may create interfaces.
#[test]
fn the_network_stack_answers_at_a_tap_interface() {
    let name = "in_a_network_namespace";
    let unshare = |program: &std::ffi::OsStr, arguments: &[&str]| {
        std::process::Command::new("unshare").args(["--user", "--map-root-user", "--net"]).arg(program).args(arguments).output()
    };
    let can = unshare("ip".as_ref(), &["tuntap"]).is_ok_and(|output| output.status.success());
    if !can || !Path::new("/dev/net/tun").exists() {
        eprintln!("not run: no network namespaces for users, no program ip, or no /dev/net/tun on this machine");
        return;
    }
    let output = unshare(std::env::current_exe().unwrap().as_os_str(), &["--exact", "--ignored", name]).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `ip` with these words; what it says.
fn ip(words: &str) -> String {
    let done = std::process::Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(done.status.success(), "ip {words}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Checksum of the Internet protocols (RFC 1071).
fn internet_checksum(bytes: &[u8]) -> [u8; 2] {
    let word = |pair: &[u8]| match pair {
        [high, low] => u32::from(*high) << 8 | u32::from(*low),
        [high] => u32::from(*high) << 8,
        _ => 0,
    };
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

/// An echo request (RFC 792) from 10.9.0.2 to 10.9.0.1, with this many bytes.
fn echo_request(to: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let echo = |sum: [u8; 2]| [&[8, 0][..], &sum, &[0, 7, 0, 1], payload].concat();
    let len = (28 + payload.len() as u16).to_be_bytes();
    let header = |sum: [u8; 2]| [&[0x45, 0][..], &len, &[0, 1, 0, 0, 64, 1], &sum, &[10, 9, 0, 2, 10, 9, 0, 1]].concat();
    let (header_sum, echo_sum) = (internet_checksum(&header([0; 2])), internet_checksum(&echo([0; 2])));
    [&to[..], &[2, 0, 0, 0, 0, 2, 8, 0], &header(header_sum), &echo(echo_sum)].concat()
}

#[test]
#[ignore = "run by the test above, in a network namespace"]
fn in_a_network_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let wires = [format!("stream:unix:{},server=on", folder.path().join("lan").display()), "tap:cx0".into()];
    let lan = Lan::start(folder.path(), 0x810, &wires);
    let mut peer = Peer::connect(&folder.path().join("lan"));
    lan.wait_connected();
    // Only one program has it; what is no TAP interface is left alone.
    for (wire, said) in [("tap:cx0", "another program is attached to it"), ("tap:lo", "is no TAP interface")] {
        let error = Server::start(config(folder.path(), 0x811, &[wire.into()])).err().unwrap();
        assert!(error.to_string().contains(said), "{error}");
    }
    // One that is down takes nothing.
    peer.send(&frame(EVERYONE, 2, 0));
    wait("the frame is dropped", || lan.server.joined()[1].sends_dropped == 1);
    let attach = || {
        ip("addr add 10.9.0.1/24 dev cx0");
        ip("link set cx0 up");
        ip("link show cx0").split_once("link/ether ").unwrap().1[..17].to_owned()
    };
    // The stack speaks too: of IPv6. An answer to our address is what is looked for.
    let answer = |peer: &mut Peer<UnixStream>, kind: [u8; 2]| loop {
        let frame = peer.receive();
        if frame[..6] == [2, 0, 0, 0, 0, 2] && frame[12..14] == kind {
            return frame;
        }
    };
    for round in 0..2 {
        let text = attach();
        let mac: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let mac = <[u8; 6]>::try_from(mac).unwrap();
        // ARP (RFC 826): who has 10.9.0.1?
        let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1];
        peer.send(&[&[0xff; 6][..], &[2, 0, 0, 0, 0, 2, 8, 6], &arp].concat());
        let said = answer(&mut peer, [8, 6]);
        assert_eq!(
            (&said[6..12], &said[20..28], &said[28..32]),
            (&mac[..], &[0, 2, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]][..], &[10, 9, 0, 1][..])
        );
        for len in [1, 100, 1472] {
            let payload: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
            peer.send(&echo_request(mac, &payload));
            let said = answer(&mut peer, [8, 0]);
            assert_eq!((said[34], &said[42..42 + len]), (0, &payload[..]), "an echo reply");
        }
        if round == 0 {
            ip("link delete cx0");
            lan.wait_said("join2: the interface cx0 was deleted");
            lan.wait_said("join2: the interface cx0 is there");
            lan.wait_connected();
        }
    }
    let start = Instant::now();
    let summary = lan.server.stop();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(summary.joined[1].received >= 8 && summary.joined[1].address == "tap:cx0", "{summary}");
    wait("the interface is gone", || !ip("link").contains("cx0"));
}
