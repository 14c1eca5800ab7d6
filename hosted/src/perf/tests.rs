//! Two ends in one process that talk over a socket, as two processes do.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bareverbs_sim::DeviceConfig;

use super::exchange::{Message, PROTOCOL, VERSION};
use super::parameters::{Atomic, Test, Transport};
use super::*;

type End = Session<Simulated>;

struct Pair {
    devices: Vec<Device<Simulated>>,
    ends: [End; 2],
    /// Stop flags of client and server.
    stops: [Arc<AtomicBool>; 2],
}

fn device(world: &World, lid: u16) -> Device<Simulated> {
    device_of(world, DeviceConfig::with_lid(lid))
}

fn device_of(world: &World, config: DeviceConfig) -> Device<Simulated> {
    let host = Simulated::new("device", world.add(config).unwrap());
    let mut device = Device::bring_up(host, &Arc::default()).unwrap();
    // Both ends of a test take their steps in turn: neither may wait while the other counts them.
    device.active_port(1, false, &AtomicBool::new(false)).unwrap();
    device
}

impl Pair {
    fn new(parameters: Parameters) -> Self {
        let world = World::new(WorldConfig::default());
        Self::on(vec![device(&world, 1), device(&world, 2)], parameters, EndPath::default())
    }

    /// On Ethernet ports, over the GID of this index.
    fn on_ethernet(parameters: Parameters, path: EndPath) -> Self {
        let world = World::new(WorldConfig::default());
        let devices = (1..=2).map(|lid| device_of(&world, DeviceConfig::with_lid(lid).with_ethernet())).collect();
        Self::on(devices, parameters, path)
    }

    fn on(devices: Vec<Device<Simulated>>, parameters: Parameters, path: EndPath) -> Self {
        let (to, fro) = UnixStream::pair().unwrap();
        let stops: [Arc<AtomicBool>; 2] = Default::default();
        let client =
            Session::client(StreamLink::new(to).unwrap(), parameters, path, stops[0].clone(), ProgressLine::none()).unwrap();
        let server = Session::server(StreamLink::new(fro).unwrap(), path, stops[1].clone(), ProgressLine::none());
        Self { devices, ends: [client, server], stops }
    }

    fn run(&mut self) -> Result<()> {
        step_both(&mut self.devices, &mut self.ends)
    }

    /// Steps both ends until both have failed. Returns their errors.
    fn fail(mut self) -> (String, String) {
        let mut errors = [None, None];
        for _ in 0..10_000_000 {
            for (at, end) in self.ends.iter_mut().enumerate() {
                if errors[at].is_none() {
                    errors[at] = end.step(&mut self.devices[at], 1).err();
                }
            }
            self.devices[0].host.relax();
            if let [Some(client), Some(server)] = &errors {
                return (format!("{client:#}"), format!("{server:#}"));
            }
        }
        panic!("no failure: {errors:?}");
    }
}

fn parameters(tests: &[Test]) -> Parameters {
    Parameters { tests: tests.to_vec(), iterations: Some(200), ..Parameters::default() }
}

#[test]
fn both_ends_have_every_result() {
    let mut pair = Pair::new(Parameters { sizes: vec![1, 5000], queue_pairs: 2, ..parameters(&Test::ALL) });
    pair.run().unwrap();
    let [client, server] = &pair.ends;
    assert_eq!(client.rows.len(), 2 * 6 + 2);
    assert_eq!(client.rows.iter().map(report::Row::point).collect::<Vec<_>>(), client.parameters.as_ref().unwrap().points());
    assert_eq!(client.parameters, server.parameters);
    for (ours, theirs) in client.rows.iter().zip(&server.rows) {
        let queue_pairs = if ours.test.is_latency() { 1 } else { 2 };
        assert_eq!((ours.point(), ours.messages), (theirs.point(), theirs.messages));
        assert_eq!((ours.messages, ours.latency.is_some()), (200 * queue_pairs, ours.test.is_latency()), "{ours:?}");
    }
    // Nothing is left on the devices.
    for device in pair.devices {
        assert_eq!(device.teardown().unwrap().pages_kept, 0);
    }
}

/// What crosses the wire is seen by what each end counts of the other's messages, whose every byte is compared.
#[test]
fn every_test_runs_over_every_kind_of_port_and_transport() {
    let ethernet = EndPath { gid_idx: Some(0), ..EndPath::default() };
    for (transport, tests) in [
        (Transport::Rc, &Test::ALL[..]),
        (Transport::Uc, &[Test::WriteLat, Test::WriteBw, Test::SendLat, Test::SendBw]),
        (Transport::Ud, &[Test::SendLat, Test::SendBw]),
    ] {
        for (use_srq, bidirectional, queue_pairs) in [(false, false, 2), (true, false, 3), (true, true, 2), (false, true, 1)] {
            let tests: Vec<_> = tests
                .iter()
                .copied()
                .filter(|test| !use_srq || test.verb() == parameters::Verb::Send)
                .filter(|test| !bidirectional || !test.is_latency())
                .collect();
            if use_srq && transport == Transport::Uc {
                continue;
            }
            // In one packet and, but for datagrams, in two.
            let sizes = vec![1, 300, if transport == Transport::Ud { 1024 } else { 2000 }];
            let asked =
                Parameters { sizes, transport, use_srq, bidirectional, queue_pairs, rx_depth: 24, ..parameters(&tests) };
            for inline in [None, Some(64)] {
                let asked = Parameters { inline, ..asked.clone() };
                for mut pair in [Pair::new(asked.clone()), Pair::on_ethernet(asked.clone(), ethernet)] {
                    pair.run().unwrap();
                    for end in &pair.ends {
                        assert_eq!(end.rows.len(), asked.points().len());
                    }
                }
            }
        }
    }
}

#[test]
fn a_wrong_byte_of_a_datagram_and_of_a_shared_receive_is_found() {
    for (test, transport, use_srq) in [
        (Test::SendBw, Transport::Ud, false),
        (Test::SendLat, Transport::Ud, false),
        (Test::SendBw, Transport::Rc, true),
        (Test::SendBw, Transport::Ud, true),
    ] {
        let asked = Parameters { sizes: vec![64], transport, use_srq, queue_pairs: 2, ..parameters(&[test]) };
        let layout = buffer_layout::BufferLayout::new(&asked, parameters::Point { test, size: 64 });
        let mut pair = Pair::new(asked);
        pair.ends[1].flip_byte = Some(layout.rx(layout.queue_pairs - 1, 3 % layout.slots) + 7);
        let error = format!("{:#}", pair.run().unwrap_err());
        assert!(error.contains("wrong data: byte 7 of 64"), "{test} {transport} {use_srq}: {error}");
    }
}

#[test]
fn a_path_that_cannot_be_is_an_error_with_the_remedy() {
    let asked = Parameters { sizes: vec![64], ..parameters(&[Test::SendBw]) };
    let failure = |pair: Pair| pair.fail().1;
    let error = failure(Pair::on_ethernet(asked.clone(), EndPath::default()));
    assert!(error.contains("port 1 is an Ethernet port, where every path needs a GID: give -g 0"), "{error}");
    let world = World::new(WorldConfig::default());
    let devices = vec![device(&world, 1), device_of(&world, DeviceConfig::with_lid(2).with_ethernet())];
    let gid = EndPath { gid_idx: Some(0), ..EndPath::default() };
    let error = failure(Pair::on(devices, asked.clone(), gid));
    assert!(error.contains("the peer has an InfiniBand port and this end an Ethernet port"), "{error}");
    let long = Parameters { transport: Transport::Ud, sizes: vec![2048], ..asked };
    let error = failure(Pair::on_ethernet(long, gid));
    assert!(error.contains("2048 bytes is no datagram of a path with an MTU of 1024: give -s 1024"), "{error}");
}

#[test]
fn both_directions_are_added_at_both_ends() {
    let tests = [Test::WriteBw, Test::SendBw, Test::ReadBw, Test::AtomicBw];
    for events in [false, true] {
        let mut pair = Pair::new(Parameters { bidirectional: true, events, ..parameters(&tests) });
        pair.run().unwrap();
        for end in &pair.ends {
            assert!(end.rows.len() == tests.len() && end.rows.iter().all(|row| row.messages == 400), "{:?}", end.rows);
        }
    }
}

#[test]
fn a_wrong_byte_is_found_in_every_test() {
    // For each test the end that receives the data, and an offset in its receive slots, which follow the send slots.
    let cases = [
        (Test::WriteLat, Transport::Rc, 1, 64 + 63),
        (Test::WriteBw, Transport::Rc, 1, 128 * 64 + 63),
        (Test::WriteBw, Transport::Uc, 1, 2 * 128 * 64 - 1),
        (Test::ReadLat, Transport::Rc, 0, 64),
        (Test::ReadBw, Transport::Rc, 0, 128 * 64 + 7),
        (Test::SendLat, Transport::Rc, 1, 64),
        (Test::SendBw, Transport::Uc, 1, 256 * 64),
    ];
    for (test, transport, end, at) in cases {
        for inline in [0, 64] {
            let mut pair = Pair::new(Parameters { sizes: vec![64], transport, inline: Some(inline), ..parameters(&[test]) });
            pair.ends[end].flip_byte = Some(at);
            let error = format!("{:#}", pair.run().unwrap_err());
            assert!(
                error.contains("wrong data") && error.starts_with(&format!("{test} of 64 bytes")),
                "{test} {inline}: {error}"
            );
        }
    }
}

#[test]
fn a_wrong_sum_of_atomics_is_found() {
    for atomic in [Atomic::FetchAndAdd, Atomic::CmpAndSwap] {
        for test in [Test::AtomicLat, Test::AtomicBw] {
            let mut pair = Pair::new(Parameters { atomic, ..parameters(&[test]) });
            let slots = if test.is_latency() { 1 } else { 128 };
            pair.ends[1].flip_byte = Some(slots * 64);
            let error = format!("{:#}", pair.run().unwrap_err());
            assert!(error.contains("instead of 200"), "{error}");
        }
    }
    let mut pair = Pair::new(parameters(&[Test::AtomicBw]));
    pair.ends[0].flip_byte = Some(0);
    assert!(format!("{:#}", pair.run().unwrap_err()).contains("as the value before it"));
}

#[test]
fn a_failure_of_one_end_is_reported_by_the_other() {
    let mut pair = Pair::new(Parameters { sizes: vec![64], ..parameters(&[Test::WriteBw]) });
    pair.ends[1].flip_byte = Some(128 * 64);
    let (client, server) = pair.fail();
    assert!(server.contains("wrong data"), "{server}");
    assert_eq!(client, format!("the peer failed: {server}"));

    let (client, server) = Pair::new(Parameters { inline: Some(5000), ..parameters(&[Test::SendLat]) }).fail();
    assert!(
        server.contains("5000 bytes inline, device takes") && client == format!("the peer failed: {server}"),
        "{client}; {server}"
    );
}

#[test]
fn ctrl_c_at_the_client_ends_both_ends_with_a_partial_result() {
    for test in [Test::WriteLat, Test::WriteBw, Test::SendBw, Test::ReadLat] {
        for bidirectional in [false, !test.is_latency()] {
            let (sizes, iterations) = (vec![2, 4096], Some(100_000_000));
            let mut pair = Pair::new(Parameters { sizes, iterations, bidirectional, ..parameters(&[test]) });
            for _ in 0..3000 {
                for (at, end) in pair.ends.iter_mut().enumerate() {
                    end.step(&mut pair.devices[at], 1).unwrap();
                }
                pair.devices[0].host.relax();
            }
            pair.stops[0].store(true, Ordering::Relaxed);
            pair.run().unwrap();
            for end in &pair.ends {
                assert!(end.is_interrupted() && end.rows.len() == 1, "{test}: {:?}", end.rows);
                assert!((1..100_000_000).contains(&end.rows[0].messages), "{:?}", end.rows);
            }
        }
    }
}

#[test]
fn ctrl_c_at_the_server_fails_the_client() {
    let pair = Pair::new(Parameters { iterations: Some(100_000_000), ..parameters(&[Test::WriteBw]) });
    pair.stops[1].store(true, Ordering::Relaxed);
    assert_eq!(pair.fail(), ("the peer failed: interrupted".into(), "interrupted".into()));
}

#[test]
fn a_duration_ends_every_test_in_time() {
    let started = Instant::now();
    let mut pair = Pair::new(Parameters { iterations: None, duration_ms: Some(50), queue_pairs: 3, ..parameters(&Test::ALL) });
    pair.run().unwrap();
    for row in &pair.ends[0].rows {
        assert!((0.05..5.0).contains(&row.seconds) && row.messages > 3, "{row:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_device_that_stops_completing_is_an_error_that_counts_outstanding_requests() {
    for test in [Test::WriteLat, Test::WriteBw, Test::SendBw, Test::ReadLat] {
        for events in [false, test != Test::WriteLat] {
            let mut pair = Pair::new(Parameters {
                iterations: Some(100_000_000),
                transport: Transport::Rc,
                events,
                ..parameters(&[test])
            });
            for _ in 0..500 {
                for (at, end) in pair.ends.iter_mut().enumerate() {
                    end.step(&mut pair.devices[at], 1).unwrap();
                }
                pair.devices[0].host.relax();
            }
            // Every packet is lost from now on. The transport exhausts its retries before the completion timeout.
            let loss = bareverbs_sim::wire::WireFaults {
                loss: bareverbs_sim::wire::Probability::ALWAYS,
                ..bareverbs_sim::wire::WireFaults::default()
            };
            pair.devices[0].host.inner().world().set_wire_faults(loss);
            let error = format!("{:#}", pair.run().unwrap_err());
            assert!(error.starts_with(&format!("{test} of ")), "{error}");
            assert!(error.contains("RetryExcErr") || error.contains("no completion for 10 s"), "{error}");
        }
    }
    let mut pair =
        Pair::new(Parameters { iterations: Some(100_000_000), transport: Transport::Uc, ..parameters(&[Test::SendLat]) });
    let loss = bareverbs_sim::wire::WireFaults {
        loss: bareverbs_sim::wire::Probability::ALWAYS,
        ..bareverbs_sim::wire::WireFaults::default()
    };
    pair.devices[0].host.inner().world().set_wire_faults(loss);
    let error = format!("{:#}", pair.run().unwrap_err());
    assert!(error.contains("send-lat of 2 bytes: no completion for 10 s: waiting for message 1"), "{error}");
}

#[test]
fn lost_messages_of_uc_are_an_error_after_both_ends_have_sent() {
    // The peer has receives for all messages. UC does not detect the loss.
    let (transport, iterations) = (Transport::Uc, Some(100));
    let mut pair = Pair::new(Parameters { transport, iterations, bidirectional: true, ..parameters(&[Test::SendBw]) });
    let loss = bareverbs_sim::wire::WireFaults {
        loss: bareverbs_sim::wire::Probability::per_mille(500),
        ..bareverbs_sim::wire::WireFaults::default()
    };
    pair.devices[0].host.inner().world().set_wire_faults(loss);
    let error = format!("{:#}", pair.run().unwrap_err());
    assert!(error.contains("no completion for 10 s: 0 requests outstanding (100 posted, 100 complete)"), "{error}");
}

#[test]
fn a_peer_that_disconnects_is_an_error() {
    let mut pair = Pair::new(Parameters { iterations: Some(100_000_000), ..parameters(&[Test::WriteBw]) });
    for _ in 0..500 {
        for (at, end) in pair.ends.iter_mut().enumerate() {
            end.step(&mut pair.devices[at], 1).unwrap();
        }
        pair.devices[0].host.relax();
    }
    let Pair { mut devices, ends: [client, mut server], .. } = pair;
    drop(client);
    let error = step_one(&mut devices[1], &mut server).unwrap_err();
    assert!(format!("{error:#}").contains("closed the connection"), "{error:#}");
}

/// Returns the error of a server that receives `lines`.
fn server_error(lines: &[&str]) -> String {
    let world = World::new(WorldConfig::default());
    let mut device = device(&world, 1);
    let (mut to, fro) = UnixStream::pair().unwrap();
    for line in lines {
        writeln!(to, "{line}").unwrap();
    }
    let mut server = Session::server(StreamLink::new(fro).unwrap(), EndPath::default(), Arc::default(), ProgressLine::none());
    let error = (0..10_000).find_map(|_| server.step(&mut device, 1).err()).unwrap();
    format!("{error:#}")
}

#[test]
fn an_invalid_message_of_a_client_is_an_error_with_the_reason() {
    let line = |message: &Message| serde_json::to_string(message).unwrap();
    let hello = |version, parameters: Option<Parameters>| {
        line(&Message::Hello { protocol: PROTOCOL.into(), version, parameters: parameters.map(Box::new) })
    };
    let good = hello(VERSION, Some(parameters(&[Test::WriteBw])));
    let connection = |lid, count: u32| {
        line(&Message::Connection(exchange::Connection {
            lid,
            gid: None,
            mac: None,
            mtu: 4096,
            max_dest_rd_atomic: 16,
            queue_pairs: (9..9 + count).map(|qpn| (qpn, 1)).collect(),
            rkey: 1,
            addr: 0,
            length: 1 << 30,
        }))
    };
    let ready = |size| line(&Message::Ready { point: parameters::Point { test: Test::WriteBw, size } });
    for (lines, part) in [
        (vec!["hello"], "does not speak bareverbs-perf"),
        (vec![&*hello(VERSION + 1, Some(parameters(&[Test::WriteBw])))], "use the same release"),
        (vec![&*hello(VERSION, None)], "did not say what to measure"),
        (vec![&*hello(VERSION, Some(Parameters { tx_depth: 0, ..parameters(&[Test::WriteBw]) }))], "tx-depth 0"),
        (vec![&*hello(VERSION, Some(parameters(&[])))], "no test"),
        (vec![&*ready(65_536)], "where \"hello\" was due"),
        (vec![&*good, &*good], "where \"connection\" was due"),
        (vec![&*good, &*connection(0, 1)], "LID"),
        (vec![&*good, &*connection(2, 2)], "2 queue pairs instead of 1"),
        (vec![&*good, &*connection(2, 1), &*ready(1)], "where \"ready\" was due"),
        (vec![&*good, &*connection(2, 1), &*ready(65_536), r#"{"message":"done","sent":[],"last":false}"#], "of 0 queue pairs"),
        (vec![r#"{"message":"failure","reason":"\u001b[2J"}"#], r"the peer failed: \u{1b}[2J"),
        (vec![&*good, &*connection(2, 1), r#"{"message":"failure","reason":"no luck"}"#], "the peer failed: no luck"),
    ] {
        let error = server_error(&lines);
        assert!(error.contains(part), "{lines:?}: {error}");
    }
}

/// Creates a job, a simulated device, and a listener with its address.
fn job(stop: &Arc<AtomicBool>) -> (Job<'_>, Device<Simulated>, TcpListener, String) {
    let world = World::new(WorldConfig::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    (
        Job {
            stop,
            simulation: Box::leak(Box::default()),
            path: Box::leak(Box::default()),
            has_progress_line: false,
            report: Report::default(),
        },
        device(&world, 1),
        listener,
        at,
    )
}

#[test]
fn the_error_of_a_client_without_a_server_names_the_address() {
    let stop = Arc::default();
    let (mut job, mut device, listener, at) = job(&stop);
    let asked = parameters(&[Test::WriteBw]);
    drop(listener);
    let error = format!("{:#}", job.connect(&mut device, &at, asked.clone()).unwrap_err());
    assert!(error.contains(&format!("no server at {at}")) && error.contains("refused"), "{error}");
    let error = format!("{:#}", job.connect(&mut device, "nowhere.invalid:1", asked).unwrap_err());
    assert!(error.contains("the address nowhere.invalid:1"), "{error}");
}

#[test]
fn a_server_of_another_protocol_is_an_error() {
    let stop = Arc::default();
    let (mut job, mut device, listener, at) = job(&stop);
    let server = std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").unwrap());
    let error = format!("{:#}", job.connect(&mut device, &at, parameters(&[Test::WriteBw])).unwrap_err());
    server.join().unwrap();
    assert!(error.contains("does not speak bareverbs-perf: \"SSH-2.0"), "{error}");
}

#[test]
fn a_server_waits_for_a_client_and_ends_with_ctrl_c() {
    let stop = Arc::default();
    let (mut serving, mut device, listener, at) = job(&stop);
    drop(listener);
    let client = {
        let at = at.clone();
        std::thread::spawn(move || {
            let mut stream = loop {
                match TcpStream::connect(&at) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            // While the server has a client, connections of others are refused.
            let start = Instant::now();
            while TcpStream::connect(&at).is_ok() {
                assert!(start.elapsed() < Duration::from_secs(10), "a second client is not refused");
                std::thread::sleep(Duration::from_millis(5));
            }
            writeln!(stream, "GET / HTTP/1.1").unwrap();
        })
    };
    let error = format!("{:#}", serving.serve(&mut device, &at).unwrap_err());
    client.join().unwrap();
    assert!(error.contains("does not speak bareverbs-perf: \"GET /"), "{error}");

    stop.store(true, Ordering::Relaxed);
    let (mut serving, mut device, ..) = job(&stop);
    assert!(serving.serve(&mut device, "127.0.0.1:0").unwrap_err().is::<Interrupted>());
}

/// Steps both ends until `is_reached` holds for the client.
fn step_until(pair: &mut Pair, is_reached: impl Fn(&End) -> bool) {
    for _ in 0..1_000_000 {
        if is_reached(&pair.ends[0]) {
            return;
        }
        for (at, end) in pair.ends.iter_mut().enumerate() {
            end.step(&mut pair.devices[at], 1).unwrap();
        }
        pair.devices[0].host.relax();
    }
    panic!("the client does not reach the phase");
}

#[test]
fn ctrl_c_ends_a_client_that_waits_for_its_peer() {
    for phase in ["Hello", "Connect", "Ready"] {
        let mut pair = Pair::new(parameters(&[Test::WriteBw]));
        step_until(&mut pair, |client| client.phase_name().starts_with(phase));
        pair.stops[0].store(true, Ordering::Relaxed);
        let error = pair.ends[0].step(&mut pair.devices[0], 1).unwrap_err();
        assert!(error.is::<Interrupted>(), "{phase}: {error:#}");
        let reported = (0..1000).find_map(|_| pair.ends[1].step(&mut pair.devices[1], 1).err()).unwrap();
        assert_eq!(format!("{reported:#}"), "the peer failed: interrupted", "{phase}");
    }
}

#[test]
fn ctrl_c_ends_a_client_whose_peer_sends_no_result() {
    let mut pair = Pair::new(parameters(&[Test::WriteBw]));
    step_until(&mut pair, |client| client.phase_name() == "AwaitResult");
    assert_eq!(pair.ends[0].rows.len(), 1);
    // The server is not stepped any more, and has not sent its result.
    while !matches!(pair.ends[0].link.receive(), Ok(None)) {}
    pair.stops[0].store(true, Ordering::Relaxed);
    let [client, _] = &mut pair.ends;
    assert_eq!(client.step(&mut pair.devices[0], 1).unwrap(), Step::AwaitingPeer);
    client.entered = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
    let error = (0..1000).find_map(|_| client.step(&mut pair.devices[0], 1).err()).unwrap();
    assert!(error.is::<Interrupted>() && client.rows.is_empty(), "{error:#}");
}

#[test]
fn a_peer_that_sends_only_keepalives_times_out_in_every_phase() {
    for (phase, due) in [("Hello", "hello"), ("Connect", "connection"), ("Ready", "ready"), ("AwaitResult", "result")] {
        let mut pair = Pair::new(parameters(&[Test::WriteBw]));
        step_until(&mut pair, |client| client.phase_name().starts_with(phase));
        let [client, server] = &mut pair.ends;
        // Only keepalive messages from now on.
        while !matches!(client.link.receive(), Ok(None)) {}
        server.link.send(&Message::Alive).unwrap();
        assert_eq!(client.step(&mut pair.devices[0], 1).unwrap(), Step::AwaitingPeer, "{phase}");
        client.entered = Instant::now().checked_sub(Duration::from_secs(61)).unwrap();
        server.link.send(&Message::Alive).unwrap();
        let error = format!("{:#}", client.step(&mut pair.devices[0], 1).unwrap_err());
        assert!(error.contains(&format!("has not sent {due:?} for 60 s")), "{phase}: {error}");
    }
}

#[test]
fn a_port_in_use_is_an_error_with_the_remedy() {
    let stop = Arc::default();
    let (mut job, mut device, _listener, at) = job(&stop);
    let error = format!("{:#}", job.serve(&mut device, &at).unwrap_err());
    assert!(error.contains("another program uses this port; choose another with --port"), "{error}");
}
