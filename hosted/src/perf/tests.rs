//! Two ends in one process that talk over a socket, as two processes do.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::exchange::{Message, PROTOCOL, VERSION};
use super::parameters::{Atomic, Test, Transport};
use super::*;

type End = Session<Simulated, Lines<UnixStream>>;

struct Pair {
    devices: Vec<Device<Simulated>>,
    ends: [End; 2],
    /// Of client and server.
    stops: [Arc<AtomicBool>; 2],
}

fn device(world: &World, lid: u16) -> Device<Simulated> {
    Device::bring_up(Simulated::new("device", world.add(DeviceConfig::with_lid(lid)).unwrap()), &Arc::default()).unwrap()
}

impl Pair {
    fn new(parameters: Parameters) -> Self {
        let world = World::new(WorldConfig::default());
        let devices = vec![device(&world, 1), device(&world, 2)];
        let (to, fro) = UnixStream::pair().unwrap();
        let stops: [Arc<AtomicBool>; 2] = Default::default();
        let client = Session::client(Lines::new(to).unwrap(), parameters, stops[0].clone(), ProgressLine::none()).unwrap();
        let server = Session::server(Lines::new(fro).unwrap(), stops[1].clone(), ProgressLine::none());
        Self { devices, ends: [client, server], stops }
    }

    fn run(&mut self) -> Result<()> {
        both(&mut self.devices, &mut self.ends)
    }

    /// Steps both ends until one has failed; what the other says then.
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
fn both_ends_know_every_result() {
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
    // Who has the data of which, and where in its memory: writes and sends come behind what is sent.
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
            pair.ends[end].spoil = Some(at);
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
            pair.ends[1].spoil = Some(slots * 64);
            let error = format!("{:#}", pair.run().unwrap_err());
            assert!(error.contains("instead of 200"), "{error}");
        }
    }
    let mut pair = Pair::new(parameters(&[Test::AtomicBw]));
    pair.ends[0].spoil = Some(0);
    assert!(format!("{:#}", pair.run().unwrap_err()).contains("as the value before it"));
}

#[test]
fn the_reason_of_one_end_is_told_to_the_other() {
    let mut pair = Pair::new(Parameters { sizes: vec![64], ..parameters(&[Test::WriteBw]) });
    pair.ends[1].spoil = Some(128 * 64);
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
fn ctrl_c_at_the_client_ends_both_with_what_was_measured() {
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
fn a_device_that_stops_answering_is_an_error_with_what_is_outstanding() {
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
            // Every packet is lost from now on; the transport's retries end before ours.
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
fn messages_that_never_come_are_an_error_after_both_have_sent() {
    // Few enough for the receives that are posted, on a transport that does not notice a loss.
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
fn a_peer_that_goes_away_is_noticed() {
    let mut pair = Pair::new(Parameters { iterations: Some(100_000_000), ..parameters(&[Test::WriteBw]) });
    for _ in 0..500 {
        for (at, end) in pair.ends.iter_mut().enumerate() {
            end.step(&mut pair.devices[at], 1).unwrap();
        }
        pair.devices[0].host.relax();
    }
    let Pair { mut devices, ends: [client, mut server], .. } = pair;
    drop(client);
    let error = one(&mut devices[1], &mut server).unwrap_err();
    assert!(format!("{error:#}").contains("closed the connection"), "{error:#}");
}

/// What a server makes of lines of a client.
fn server_says(lines: &[&str]) -> String {
    let world = World::new(WorldConfig::default());
    let mut device = device(&world, 1);
    let (mut to, fro) = UnixStream::pair().unwrap();
    for line in lines {
        writeln!(to, "{line}").unwrap();
    }
    let mut server = Session::server(Lines::new(fro).unwrap(), Arc::default(), ProgressLine::none());
    let error = (0..10_000).find_map(|_| server.step(&mut device, 1).err()).unwrap();
    format!("{error:#}")
}

#[test]
fn what_a_client_may_say_is_answered_with_the_reason() {
    let line = |message: &Message| serde_json::to_string(message).unwrap();
    let hello = |version, parameters: Option<Parameters>| {
        line(&Message::Hello { protocol: PROTOCOL.into(), version, parameters: parameters.map(Box::new) })
    };
    let good = hello(VERSION, Some(parameters(&[Test::WriteBw])));
    let connection = |lid, count: u32| {
        line(&Message::Connection(exchange::Connection {
            lid,
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
        let error = server_says(&lines);
        assert!(error.contains(part), "{lines:?}: {error}");
    }
}

/// A job on a simulated device, and an address of this machine.
fn job(stop: &Arc<AtomicBool>) -> (Job<'_>, Device<Simulated>, TcpListener, String) {
    let world = World::new(WorldConfig::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    (
        Job { stop, faults: Box::leak(Box::default()), is_shown: false, report: Report::default() },
        device(&world, 1),
        listener,
        at,
    )
}

#[test]
fn a_client_without_a_server_says_where_it_looked() {
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
fn a_server_that_is_another_program_is_told_apart() {
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
            // While the server has a client, others are refused instead of left waiting.
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

/// Steps both ends until the client is in a phase.
fn step_until(pair: &mut Pair, is_there: impl Fn(&End) -> bool) {
    for _ in 0..1_000_000 {
        if is_there(&pair.ends[0]) {
            return;
        }
        for (at, end) in pair.ends.iter_mut().enumerate() {
            end.step(&mut pair.devices[at], 1).unwrap();
        }
        pair.devices[0].host.relax();
    }
    panic!("the client never gets there");
}

#[test]
fn ctrl_c_ends_a_client_that_waits_for_its_peer() {
    for phase in ["Greet", "Connect", "Ready"] {
        let mut pair = Pair::new(parameters(&[Test::WriteBw]));
        step_until(&mut pair, |client| client.phase_name().starts_with(phase));
        pair.stops[0].store(true, Ordering::Relaxed);
        let error = pair.ends[0].step(&mut pair.devices[0], 1).unwrap_err();
        assert!(error.is::<Interrupted>(), "{phase}: {error:#}");
        let told = (0..1000).find_map(|_| pair.ends[1].step(&mut pair.devices[1], 1).err()).unwrap();
        assert_eq!(format!("{told:#}"), "the peer failed: interrupted", "{phase}");
    }
}

#[test]
fn ctrl_c_ends_a_client_whose_peer_gives_no_result() {
    let mut pair = Pair::new(parameters(&[Test::WriteBw]));
    step_until(&mut pair, |client| client.phase_name() == "Result");
    assert_eq!(pair.ends[0].rows.len(), 1);
    // The server is not stepped any more, and has not given its result.
    while !matches!(pair.ends[0].link.receive(), Ok(None)) {}
    pair.stops[0].store(true, Ordering::Relaxed);
    let [client, _] = &mut pair.ends;
    assert_eq!(client.step(&mut pair.devices[0], 1).unwrap(), Turn::Waiting);
    client.entered = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
    let error = (0..1000).find_map(|_| client.step(&mut pair.devices[0], 1).err()).unwrap();
    assert!(error.is::<Interrupted>() && client.rows.is_empty(), "{error:#}");
}

#[test]
fn ctrl_c_ends_connecting() {
    let stop = AtomicBool::new(true);
    let started = Instant::now();
    // An address for documentation (RFC 5737): nobody answers.
    assert!(dial("192.0.2.1:18515", &stop).unwrap_err().is::<Interrupted>());
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_peer_that_only_lives_is_an_error_in_every_phase() {
    for (phase, due) in [("Greet", "hello"), ("Connect", "connection"), ("Ready", "ready"), ("Result", "result")] {
        let mut pair = Pair::new(parameters(&[Test::WriteBw]));
        step_until(&mut pair, |client| client.phase_name().starts_with(phase));
        let [client, server] = &mut pair.ends;
        // Only signs of life from now on.
        while !matches!(client.link.receive(), Ok(None)) {}
        server.link.send(&Message::Alive).unwrap();
        assert_eq!(client.step(&mut pair.devices[0], 1).unwrap(), Turn::Waiting, "{phase}");
        client.entered = Instant::now().checked_sub(Duration::from_secs(61)).unwrap();
        server.link.send(&Message::Alive).unwrap();
        let error = format!("{:#}", client.step(&mut pair.devices[0], 1).unwrap_err());
        assert!(error.contains(&format!("has not sent {due:?} for 60 s")), "{phase}: {error}");
    }
}

#[test]
fn addresses_have_ports() {
    for (text, wanted) in [
        ("", "0.0.0.0:18515"),
        ("host", "host:18515"),
        ("host:1", "host:1"),
        ("10.0.0.1", "10.0.0.1:18515"),
        ("::1", "[::1]:18515"),
        ("[::1]:5", "[::1]:5"),
        ("[::1]", "[::1]:18515"),
        (":1", "0.0.0.0:1"),
    ] {
        assert_eq!(address(text, "0.0.0.0", 18515).as_deref(), Ok(wanted));
    }
    for (text, part) in
        [(":99999", "\"99999\" is no TCP port"), ("host:", "\"\" is no TCP port"), ("h:ssh", "\"ssh\" is no TCP port")]
    {
        assert!(address(text, "0.0.0.0", 18515).unwrap_err().contains(part), "{text}");
    }
    assert!(address(":1", "", 18515).unwrap_err().contains("names no host"));
}

#[test]
fn a_port_that_is_taken_is_an_error_with_the_remedy() {
    let stop = Arc::default();
    let (mut job, mut device, _listener, at) = job(&stop);
    let error = format!("{:#}", job.serve(&mut device, &at).unwrap_err());
    assert!(error.contains("another program has this port; take another with --port"), "{error}");
}
