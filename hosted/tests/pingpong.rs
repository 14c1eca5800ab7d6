//! `bareverbs pingpong` as a process, and its TCP exchange against peers written by hand.
//!
//! The peers send the bytes of `pp_client_exch_dest` and `pp_server_exch_dest` in libibverbs/examples/rc_pingpong.c and
//! uc_pingpong.c, which are the same in rdma-core 44.0 and 56.1. An address has the format `%04x:%06x:%06x:%s` (LID, QPN, PSN,
//! 32 digits of the GID) and a NUL, 52 bytes in one write. The client ends with `done` and a NUL. Each end accepts a message only
//! if one `read` returns all of it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot run its program has failed"
)]

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use bareverbs::{Gid, Lid, LinkLayer, Psn, Qpn, Srqn};
use bareverbs_cli::cli::{Cli, Command as Subcommand};
use bareverbs_cli::device::Host;
use bareverbs_cli::device::simulated::Simulated;
use bareverbs_cli::peer_connection::{self, Listener, Wait};
use bareverbs_cli::pingpong::address::{Address, AddressError, XrcNumbers};
use bareverbs_cli::pingpong::args::PingpongArgs;
use bareverbs_cli::pingpong::exchange::{ClientExchange, Format, ServerExchange};
use bareverbs_cli::pingpong::{report::Report, run_both, run_one};
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::{DeviceConfig, Profile};
use clap::Parser as _;
use serde_json::Value;

fn bareverbs(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bareverbs")).arg("pingpong").args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = bareverbs(&[&["--json"], args].concat());
    assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_transport_size_and_way_to_wait_works_over_simulated_devices() {
    for transport in ["rc", "uc"] {
        for (size, more) in [
            ("1", &[][..]),
            ("64", &["-e"]),
            ("65", &["--rx-depth", "1"]),
            ("4096", &["--gid-idx", "0"]),
            ("5000", &["-m", "256", "-e", "-r", "1"]),
            ("100000", &["-m", "4096", "-r", "512", "-l", "3"]),
        ] {
            let args = [&["--transport", transport, "-s", size, "-n", "50"], more].concat();
            let report = json(&args);
            assert_eq!((&report["ok"], &report["checked"]), (&Value::Bool(true), &Value::Bool(true)), "{args:?}");
            assert_eq!(report["transport"], transport.to_uppercase());
            let bytes = 100 * size.parse::<u64>().unwrap();
            assert_eq!((&report["result"]["bytes"], &report["result"]["iters"]), (&bytes.into(), &50.into()));
            assert!(report["result"]["usec_per_iter"].as_f64().unwrap() > 0.0);
            assert_eq!((&report["local"]["lid"], &report["remote"]["lid"]), (&1.into(), &2.into()));
        }
    }
}

#[test]
fn the_text_has_the_lines_of_the_tools() {
    let output = bareverbs(&["-n", "20"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let got = text(&output.stdout);
    let lines: Vec<&str> = got.lines().collect();
    assert!(lines[0].starts_with("both ends in this process (simulated, every message checked)"), "{got}");
    assert!(lines[1].starts_with("  local address:  LID 0x0001, QPN 0x00") && lines[1].ends_with(", GID ::"), "{got}");
    assert!(lines[2].starts_with("  remote address: LID 0x0002, QPN 0x00") && lines[2].contains(", PSN 0x"), "{got}");
    assert!(lines[3].starts_with("163840 bytes in ") && lines[3].ends_with(" Mbit/sec"), "{got}");
    assert!(lines[4].starts_with("20 iters in ") && lines[4].ends_with(" usec/iter"), "{got}");
    assert_eq!(lines.len(), 5);
}

#[test]
fn every_transport_and_address_works_over_simulated_ethernet_ports() {
    for transport in ["rc", "uc"] {
        for (more, gids) in [
            (&["-g", "0"][..], ["fe80::202:c9ff:fe00:100", "fe80::202:c9ff:fe00:200"]),
            (&["-g", "3", "--address", "192.0.2.1", "--address", "192.0.2.2", "-e"], ["::ffff:192.0.2.1", "::ffff:192.0.2.2"]),
            (
                &["-g", "1", "--address", "2001:db8::1", "--address", "2001:db8::2", "--vlan", "9"],
                ["2001:db8::1", "2001:db8::2"],
            ),
        ] {
            let report = json(&[&["--ethernet", "--transport", transport, "-n", "50", "-s", "5000"], more].concat());
            assert_eq!((&report["ok"], &report["checked"]), (&Value::Bool(true), &Value::Bool(true)), "{more:?}");
            for (end, gid, mac) in [("local", gids[0], "00:02:c9:00:01:00"), ("remote", gids[1], "00:02:c9:00:02:00")] {
                let end = &report[end];
                assert_eq!((&end["lid"], &end["gid"], &end["mac"]), (&0.into(), &gid.into(), &mac.into()), "{more:?}");
            }
        }
    }
}

#[test]
fn datagrams_carry_every_size_that_is_one_packet() {
    for (size, more) in [
        ("1", &[][..]),
        ("64", &["-e"]),
        ("65", &["-r", "1"]),
        ("4096", &["-g", "0"]),
        ("1024", &["--ethernet", "-g", "0", "-e"]),
        ("1000", &["--ethernet", "-g", "2", "--address", "192.0.2.1", "--address", "192.0.2.2", "--vlan", "7"]),
    ] {
        let report = json(&[&["--transport", "ud", "-s", size, "-n", "50"], more].concat());
        assert_eq!(
            (&report["ok"], &report["checked"], &report["transport"]),
            (&true.into(), &true.into(), &"UD".into()),
            "{more:?}"
        );
        assert_eq!(report["result"]["bytes"], 100 * size.parse::<u64>().unwrap());
    }
    assert_eq!(json(&["--transport", "ud", "-n", "5"])["size"], 1024);
    for (more, most) in [(&["-s", "4097"][..], "4096"), (&["-s", "1025", "--ethernet", "-g", "0"], "1024")] {
        let output = bareverbs(&[&["--transport", "ud"], more].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(&format!("give both ends -s {most}")), "{}", text(&output.stderr));
    }
}

#[test]
fn datagrams_have_the_key_of_the_tools() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.txt");
    json(&["--transport", "ud", "-n", "3", "--trace-file", file.to_str().unwrap()]);
    let trace = std::fs::read_to_string(&file).unwrap();
    let sent: Vec<_> = trace.lines().filter(|line| line.contains(" sent ") && line.contains("SEND")).collect();
    assert_eq!(sent.len(), 6, "one packet for each message: {sent:?}");
    assert!(sent.iter().all(|line| line.contains("OpCode=UD SEND Only") && line.contains("Q_Key=0x11111111")), "{sent:?}");
}

#[test]
fn queue_pairs_with_a_shared_receive_queue_take_every_message() {
    for (queue_pairs, more) in [
        ("16", &["-s", "4096"][..]),
        ("1", &["-s", "1", "-r", "1"]),
        ("5", &["-s", "9000", "-e", "-r", "5"]),
        ("3", &["-s", "100000", "--ethernet", "-g", "0", "-m", "512"]),
    ] {
        let report = json(&[&["--transport", "srq", "-q", queue_pairs, "-n", "200"], more].concat());
        assert_eq!(
            (&report["ok"], &report["checked"], &report["transport"]),
            (&true.into(), &true.into(), &"SRQ".into()),
            "{more:?}"
        );
        assert_eq!((report["queue_pairs"].to_string().as_str(), &report["result"]["iters"]), (queue_pairs, &200.into()));
    }
    let output = bareverbs(&["--transport", "srq", "-q", "3", "-n", "20"]);
    let got = text(&output.stdout);
    for line in ["  local address: ", "  remote address: "] {
        let mut addresses: Vec<_> = got.lines().filter(|got| got.starts_with(line)).collect();
        addresses.dedup();
        assert_eq!(addresses.len(), 3, "{got}");
    }
}

#[test]
fn extended_connections_go_to_a_shared_receive_queue() {
    for more in [
        &["-s", "4096"][..],
        &["-s", "1", "-r", "1"],
        &["-s", "9000", "-e"],
        &["-s", "100000", "--ethernet", "-g", "0", "-m", "512"],
    ] {
        let report = json(&[&["--transport", "xrc", "-n", "200"], more].concat());
        let got = (&report["ok"], &report["checked"], &report["transport"], &report["result"]["iters"]);
        assert_eq!(got, (&true.into(), &true.into(), &"XRC".into(), &200.into()), "{more:?}");
    }
    let output = bareverbs(&["--transport", "xrc", "-n", "20"]);
    let got = text(&output.stdout);
    assert!(got.contains("QPN RECV 0x") && got.contains("SRQN 0x"), "{got}");
}

/// Written by hand from `MSG_FORMAT` and the termination in xsrq_pingpong.c.
#[test]
fn the_extended_connections_of_the_tools_have_longer_addresses_and_an_end() {
    const THEIRS: &[u8; 66] = b"0021:00004b:00004c:abcdef:000007:00000000000000000000000000000000\0";
    const OURS: &[u8; 66] = b"0007:123456:123457:00000f:00000a:fe80000000000000020000fffe000101\0";
    let numbers = |initiator, srqn| Some(XrcNumbers { initiator: Qpn::new(initiator), srqn: Srqn::new(srqn) });
    let theirs = Address { xrc: numbers(0x4c, 7), ..client_address() };
    let ours = Address { xrc: numbers(0x12_3457, 10), ..server_address() };
    let format = Format::xrc(LinkLayer::InfiniBand);
    let (stop, mut idle) = (AtomicBool::new(false), || Ok(()));
    let mut wait = Wait::new(&stop, &mut idle);
    // A server.
    let listener = Listener::bind_any(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let peer = thread::spawn(move || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(THEIRS).unwrap();
        assert_eq!(read_once(&mut stream), OURS);
        stream.write_all(b"END\0").unwrap();
        assert_eq!(read_once(&mut stream), b"END\0");
    });
    let stream = listener.accept(Some(Duration::from_secs(20)), &mut wait).unwrap();
    let (mut exchange, remote) = ServerExchange::receive(stream, MESSAGE_TIMEOUT, format, &mut wait).unwrap();
    assert_eq!(remote, [theirs]);
    exchange.answer(&[ours]).unwrap();
    exchange.confirm(&mut wait).unwrap();
    exchange.end(&mut wait).unwrap();
    peer.join().unwrap();
    // A client; its peer ends in the middle of a run the second time.
    for ends in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        let peer = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            assert_eq!(read_once(&mut stream), OURS);
            stream.write_all(THEIRS).unwrap();
            assert_eq!(read_once(&mut stream), b"END\0");
            if ends {
                stream.write_all(b"END\0").unwrap();
            }
        });
        let stream = peer_connection::connect(&server, Duration::ZERO, &mut wait).unwrap();
        let mut exchange = ClientExchange::send(stream, MESSAGE_TIMEOUT, format, &[ours]).unwrap();
        assert_eq!(exchange.finish(&mut wait).unwrap(), [theirs]);
        exchange.announce_end().unwrap();
        assert_eq!(exchange.await_end(&mut wait).is_ok(), ends);
        peer.join().unwrap();
    }
    // A management queue pair that sends, and another format.
    let mut wrong = *THEIRS;
    wrong[12..18].copy_from_slice(b"000001");
    assert_eq!(Address::from_xrc_message(&wrong, LinkLayer::InfiniBand), Err(AddressError::Qpn(Qpn::new(1))));
    wrong[18] = b';';
    assert!(matches!(Address::from_xrc_message(&wrong, LinkLayer::InfiniBand), Err(AddressError::Format { .. })));
}

/// 256 addresses, whatever number of queue pairs there is (`MAX_QP` of srq_pingpong.c); those that are not used are zero.
#[test]
fn the_shared_receive_queues_of_the_tools_exchange_256_addresses() {
    const UNUSED: &[u8; 52] = b"0000:000000:000000:00000000000000000000000000000000\0";
    for (theirs, refused) in [(2, None), (1, Some("the peer has 1 queue pairs and this end 2")), (3, Some("has 3 queue pairs"))]
    {
        let listener = Listener::bind_any(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = thread::spawn(move || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            for index in 0..256 {
                let address = format!("0021:{:06x}:{index:06x}:00000000000000000000000000000000\0", 0x4b + index);
                stream.write_all(if index < theirs { address.as_bytes() } else { UNUSED }).unwrap();
            }
            let mut answer = vec![0; 256 * 52];
            if refused.is_none() {
                stream.read_exact(&mut answer).unwrap();
                stream.write_all(b"done\0").unwrap();
            }
            answer
        });
        let stop = AtomicBool::new(false);
        let mut idle = || Ok(());
        let mut wait = Wait::new(&stop, &mut idle);
        let stream = listener.accept(Some(Duration::from_secs(20)), &mut wait).unwrap();
        let format = Format::shared(LinkLayer::InfiniBand, 2);
        let received = ServerExchange::receive(stream, Duration::from_secs(20), format, &mut wait);
        if let Some(reason) = refused {
            let error = received.unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("the same -q"), "{error}");
            client.join().unwrap();
            continue;
        }
        let (mut exchange, remotes) = received.unwrap();
        let numbers: Vec<_> = remotes.iter().map(|remote| (remote.qpn.get(), remote.psn.get())).collect();
        assert_eq!(numbers, [(0x4b, 0), (0x4c, 1)]);
        exchange.answer(&[server_address(), client_address()]).unwrap();
        exchange.confirm(&mut wait).unwrap();
        let answer = client.join().unwrap();
        let answer: Vec<_> = answer.chunks(52).collect();
        assert_eq!((answer[0], answer[1]), (SERVER.as_slice(), CLIENT.as_slice()));
        assert!(answer[2..].iter().all(|address| *address == UNUSED));
    }
}

#[test]
fn packets_on_ethernet_have_the_addresses_and_the_vlan_of_the_command_line() {
    let ends = ["--address", "192.0.2.1", "--address", "198.51.100.2"];
    let sent = sends(&[&["--ethernet", "--gid-index", "7", "-l", "5", "--vlan", "100"], &ends[..]].concat());
    assert_eq!(sent.len(), 3, "{sent:?}");
    let header =
        "Ethernet Dst=00:02:c9:00:02:00 Src=00:02:c9:00:01:00 | VLAN PCP=5 ID=100 | IPv4 Src=192.0.2.1 Dst=198.51.100.2 ";
    assert!(sent.iter().all(|line| line.contains(header) && line.contains("HopLmt=64")), "{sent:?}");
}

/// Returns the packets of the client with payload in a trace.
fn sends(more: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.txt");
    json(&[&["-n", "3", "-s", "100", "--trace-file", file.to_str().unwrap()], more].concat());
    let trace = std::fs::read_to_string(&file).unwrap();
    trace.lines().filter(|line| line.contains(" a sent ") && line.contains("SEND Only")).map(String::from).collect()
}

#[test]
fn packets_carry_a_grh_and_a_service_level_if_asked_to() {
    let plain = sends(&[]);
    assert_eq!(plain.len(), 3, "{plain:?}");
    assert!(plain.iter().all(|line| !line.contains("GRH") && !line.contains(" SL=5 ")), "{plain:?}");
    let global = sends(&["-g", "0", "-l", "5"]);
    assert_eq!(global.len(), 3, "{global:?}");
    assert!(global.iter().all(|line| line.contains("GRH") && line.contains(" SL=5 ")), "{global:?}");
}

#[test]
fn unsupported_options_are_refused_with_the_reason() {
    for (args, reason) in [
        (&["--transport", "srq", "-r", "15"][..], "16 queue pairs need a receive each, 16 at least"),
        (&["--transport", "srq", "-q", "33"], "33"),
        (&["localhost"], "no wire to another process"),
        (&["localhost", "--device", "9f:1f.7", "--device", "9f:1f.6"], "runs both ends here"),
        (&["--device", "9f:1f.7", "--trace"], "only simulated devices report"),
        (&["-m", "1000"], "256, 512, 1024, 2048, 4096"),
        (&["-r", "513"], "513"),
        (&["--ethernet", "-g", "1", "--address", "192.0.2.1"], "give one for each"),
        (&["--ethernet", "-g", "0", "--peer-mac", "02:00:00:00:00:01"], "leave it out"),
        (&["--device", "9f:1f.7", "--ethernet"], "LINK_TYPE_P1"),
        (&["-s", "0"], "0"),
    ] {
        let output = bareverbs(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(reason), "{args:?}: {}", text(&output.stderr));
    }
    for (args, reason) in [
        (&["--device", "9f:1f.7"][..], "there is no PCI function 0000:9f:1f.7\n  remedy: "),
        (&["-i", "2"], "the device has no port 2"),
        (&["-g", "200"], "there is no GID 200"),
        (&["--ethernet"], "give -g 0 for its link-local address fe80::202:c9ff:fe00:100, or -g INDEX and --address IP"),
        (&["--ethernet", "-g", "3"], "GID 3 of port 1 has no entry: --address IP sets it"),
        (
            &["--ethernet", "-g", "1", "--address", "192.0.2.1", "--address", "2001:db8::2"],
            "the peer has the address 192.0.2.1 and this end 2001:db8::2: give both ends a GID of IPv4",
        ),
        (&["--ethernet", "-g", "0", "-m", "2048"], "-m 1024"),
        (&["-g", "0", "--vlan", "5"], "port 1 is an InfiniBand port"),
    ] {
        let output = bareverbs(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(text(&output.stderr).contains(reason), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn ctrl_c_ends_a_ping_pong() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
        .args(["pingpong", "-n", "1000000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The addresses are printed, so the exchange of messages starts.
    let mut seen = Vec::new();
    let mut byte = [0];
    while !text(&seen).contains("remote address") {
        assert_eq!(child.stdout.as_mut().unwrap().read(&mut byte).unwrap(), 1);
        seen.push(byte[0]);
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
}

// ---- the exchange

/// LID 0x21, QPN 0x4b, PSN 0xabcdef, no GID; and another with a GID.
const CLIENT: &[u8; 52] = b"0021:00004b:abcdef:00000000000000000000000000000000\0";
const SERVER: &[u8; 52] = b"0007:123456:00000f:fe80000000000000020000fffe000101\0";

fn client_address() -> Address {
    Address { lid: Lid::new(0x21), qpn: Qpn::new(0x4b), psn: Psn::new(0xab_cdef), gid: Gid::default(), xrc: None }
}

fn server_address() -> Address {
    let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 1, 1]);
    Address { lid: Lid::new(7), qpn: Qpn::new(0x12_3456), psn: Psn::new(15), gid, xrc: None }
}

/// Reads once, as the tools do.
fn read_once(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut bytes = [0; 200];
    let got = stream.read(&mut bytes).unwrap();
    bytes[..got].to_vec()
}

/// Timeout of a message of a peer that is silent on purpose.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(300);

/// Runs a server, which connects its queue pair at once, against the client `peer`.
fn serve(peer: impl FnOnce(TcpStream) + Send + 'static) -> Result<Address> {
    let listener = Listener::bind_any(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let peer = thread::spawn(move || peer(TcpStream::connect(("127.0.0.1", port)).unwrap()));
    let stop = AtomicBool::new(false);
    let mut idle = || Ok(());
    let mut wait = Wait::new(&stop, &mut idle);
    let stream = listener.accept(Some(Duration::from_secs(20)), &mut wait).unwrap();
    let format = Format::single(LinkLayer::InfiniBand);
    let result = ServerExchange::receive(stream, MESSAGE_TIMEOUT, format, &mut wait).and_then(|(mut exchange, remote)| {
        exchange.answer(&[server_address()])?;
        exchange.confirm(&mut wait)?;
        Ok(remote[0])
    });
    peer.join().unwrap();
    result
}

/// Runs a client against the server `peer`.
fn call(peer: impl FnOnce(TcpStream) + Send + 'static) -> Result<Address> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap().to_string();
    let peer = thread::spawn(move || peer(listener.accept().unwrap().0));
    let stop = AtomicBool::new(false);
    let mut idle = || Ok(());
    let mut wait = Wait::new(&stop, &mut idle);
    let stream = peer_connection::connect(&server, Duration::ZERO, &mut wait).unwrap();
    let format = Format::single(LinkLayer::InfiniBand);
    let result = ClientExchange::send(stream, MESSAGE_TIMEOUT, format, &[client_address()])
        .unwrap()
        .finish(&mut wait)
        .map(|remote| remote[0]);
    peer.join().unwrap();
    result
}

fn failure(result: Result<Address>) -> String {
    format!("{:#}", result.unwrap_err())
}

#[test]
fn the_server_exchanges_the_bytes_of_the_tools_with_a_client() {
    let remote = serve(|mut stream| {
        stream.write_all(CLIENT).unwrap();
        assert_eq!(read_once(&mut stream), SERVER);
        stream.write_all(b"done\0").unwrap();
    });
    assert_eq!(remote.unwrap(), client_address());
}

#[test]
fn the_client_exchanges_the_bytes_of_the_tools_with_a_server() {
    let remote = call(|mut stream| {
        assert_eq!(read_once(&mut stream), CLIENT);
        stream.write_all(SERVER).unwrap();
        assert_eq!(read_once(&mut stream), b"done\0");
        assert_eq!(read_once(&mut stream), b"", "it closes then");
    });
    assert_eq!(remote.unwrap(), server_address());
}

#[test]
fn a_message_may_come_in_pieces() {
    let remote = serve(|mut stream| {
        stream.set_nodelay(true).unwrap();
        for piece in CLIENT.chunks(20) {
            stream.write_all(piece).unwrap();
            thread::sleep(Duration::from_millis(30));
        }
        assert_eq!(read_once(&mut stream), SERVER);
        stream.write_all(b"do").unwrap();
        thread::sleep(Duration::from_millis(30));
        stream.write_all(b"ne\0").unwrap();
    });
    assert_eq!(remote.unwrap(), client_address());
}

#[test]
fn an_invalid_client_is_an_error_with_the_reason() {
    let closed = failure(serve(|mut stream| stream.write_all(&CLIENT[..10]).unwrap()));
    assert!(closed.contains("after 10 of the 52 bytes of its address"), "{closed}");
    let silent = failure(serve(|mut stream| {
        stream.write_all(&CLIENT[..51]).unwrap();
        assert_eq!(read_once(&mut stream), b"");
    }));
    assert!(silent.contains("51 of the 52 bytes of its address within"), "{silent}");
    let garbage = failure(serve(|mut stream| {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost:18515\r\nUser-Agent: x\r\n\r\n").unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }));
    assert!(garbage.contains("GET / HTTP") && garbage.contains("ibv_*_pingpong"), "{garbage}");
    let mut ethernet = *CLIENT;
    ethernet[..4].copy_from_slice(b"0000");
    let ethernet = failure(serve(move |mut stream| stream.write_all(&ethernet).unwrap()));
    assert!(ethernet.contains("RoCE"), "{ethernet}");
    let not_done = failure(serve(|mut stream| {
        stream.write_all(CLIENT).unwrap();
        assert_eq!(read_once(&mut stream), SERVER);
        stream.write_all(b"nope\0").unwrap();
    }));
    assert!(not_done.contains("\"nope\\u{0}\" instead of \"done\""), "{not_done}");
    let gone = failure(serve(|mut stream| {
        stream.write_all(CLIENT).unwrap();
        assert_eq!(read_once(&mut stream), SERVER);
    }));
    assert!(gone.contains("after 0 of the 5 bytes of its confirmation"), "{gone}");
}

#[test]
fn an_invalid_server_is_an_error_with_the_reason() {
    // The tools do so if they cannot connect their queue pair.
    let closed = failure(call(|mut stream| {
        read_once(&mut stream);
    }));
    assert!(closed.contains("after 0 of the 52 bytes of its address"), "{closed}");
    let silent = failure(call(|mut stream| {
        read_once(&mut stream);
        assert_eq!(read_once(&mut stream), b"");
    }));
    assert!(silent.contains("0 of the 52 bytes of its address within"), "{silent}");
    let garbage = failure(call(|mut stream| {
        read_once(&mut stream);
        stream.write_all(&[0xff; 52]).unwrap();
    }));
    assert!(garbage.contains("instead of its address"), "{garbage}");
}

// ---- runs with a device whose peer does not exist or is disconnected

fn args(more: &[&str]) -> PingpongArgs {
    match Cli::parse_from([&["bareverbs", "pingpong", "--json"], more].concat()).command {
        Some(Subcommand::Pingpong(args)) => *args,
        _ => panic!("{more:?}"),
    }
}

fn device(world: &World, lid: u16) -> Simulated {
    Simulated::new(&format!("device {lid}"), world.add(DeviceConfig::with_lid(lid)).unwrap())
}

/// Runs one end against a peer whose queue pair does not exist.
fn run_alone(more: &[&str]) -> Report {
    run_one(&args(more), device(&World::new(WorldConfig::default()), 3), Arc::default())
}

#[test]
fn a_server_that_ends_after_the_exchange_is_an_error_of_the_client() {
    for (transport, reason) in [("rc", "RetryExcErr"), ("uc", "UC does not retransmit lost messages")] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let peer = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let message = text(&read_once(&mut stream));
            stream.write_all(b"0007:123456:00000f:00000000000000000000000000000000\0").unwrap();
            assert_eq!(read_once(&mut stream), b"done\0");
            message
        });
        let report = run_alone(&["127.0.0.1", "-p", &port, "--transport", transport, "-n", "5"]);
        assert!(peer.join().unwrap().starts_with("0003:"));
        let failure = report.outcome.failure.unwrap();
        assert!(failure.contains(reason) && failure.contains("device 3: ") && failure.contains("0 of 5 received"), "{failure}");
        assert_eq!((report.role, report.remote.unwrap().lid), ("client", 7));
    }
}

#[test]
fn an_end_on_ethernet_needs_the_mac_address_of_its_peer() {
    for (more, gid, reason) in [
        (&[][..], "00000000000000000000ffffc0000202", "address 192.0.2.2 does not tell its MAC address"),
        (&["--peer-mac", "02:00:5e:00:53:01"], "00000000000000000000ffffc0000202", "`ip neighbor replace`"),
        (&["--peer-mac", "02:00:5e:00:53:01"], "00000000000000000000000000000000", "start it with -g INDEX of RoCE v2"),
        (&[], "fe800000000000000202c9fffe000200", "both ends a GID of IPv4"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let peer = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let message = text(&read_once(&mut stream));
            stream.write_all(format!("0000:123456:00000f:{gid}\0").as_bytes()).unwrap();
            message
        });
        let more = [&["127.0.0.1", "-p", &port, "-n", "5", "-g", "2", "--address", "192.0.2.1"], more].concat();
        let host = World::new(WorldConfig::default()).add(DeviceConfig::with_lid(3).with_ethernet()).unwrap();
        let report = run_one(&args(&more), Simulated::new("device 3", host), Arc::default());
        assert!(peer.join().unwrap().starts_with("0000:"));
        let failure = report.outcome.failure.unwrap();
        assert!(failure.contains(reason), "{failure}");
        assert_eq!(report.local.unwrap().mac.unwrap(), "00:02:c9:00:03:00");
    }
}

#[test]
fn a_client_that_is_silent_after_the_exchange_is_an_error_of_the_server() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let peer = thread::spawn(move || {
        let start = Instant::now();
        let mut stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(_) if start.elapsed() < Duration::from_secs(20) => thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("{error}"),
            }
        };
        stream.write_all(CLIENT).unwrap();
        let message = text(&read_once(&mut stream));
        stream.write_all(b"done\0").unwrap();
        message
    });
    let report = run_alone(&["-p", &port.to_string(), "-e"]);
    let message = peer.join().unwrap();
    assert!(message.len() == 52 && message.starts_with("0003:"), "{message}");
    let failure = report.outcome.failure.unwrap();
    assert!(failure.contains("no completion for 10 s") && failure.contains("0 of 1000 received"), "{failure}");
}

#[test]
fn both_ends_on_one_device_are_looped_back() {
    for (transport, size) in [("rc", "9000"), ("uc", "9000"), ("ud", "4000"), ("srq", "9000"), ("xrc", "9000")] {
        let world = World::new(WorldConfig::default());
        let args = args(&["--transport", transport, "-n", "30", "-s", size, "-e"]);
        let report = run_both(&args, device(&world, 5), None, Arc::default());
        assert!(report.outcome.ok, "{:?}", report.outcome.failure);
        let (local, remote) = (report.local.unwrap(), report.remote.unwrap());
        assert_eq!((local.lid, remote.lid, report.devices.len()), (5, 5, 1));
        assert_ne!(local.qpn, remote.qpn);
    }
}

#[test]
fn with_events_each_message_wakes_the_end_that_awaits_it() {
    for transport in ["rc", "uc", "ud", "xrc"] {
        let world = World::new(WorldConfig::default());
        let args = args(&["--transport", transport, "-n", "50", "-e"]);
        let device = |lid| {
            let config = DeviceConfig::profile(Profile::Instant, lid);
            Simulated::new(&format!("device {lid}"), world.add(config).unwrap())
        };
        let report = run_both(&args, device(1), Some(device(2)), Arc::default());
        assert!(report.outcome.ok, "{:?}", report.outcome.failure);
        // A missed event would cost a sleep of 100 ms.
        assert!(world.now().as_nanos() < 100_000_000, "{transport}: {} ns", world.now().as_nanos());
    }
}

#[test]
fn packet_loss_delays_rc_and_fails_uc() {
    let faults = bareverbs_sim::wire::WireFaults {
        loss: bareverbs_sim::wire::Probability::per_mille(100),
        ..bareverbs_sim::wire::WireFaults::all(0)
    };
    for (transport, survives) in [("rc", true), ("srq", true), ("xrc", true), ("uc", false), ("ud", false)] {
        let world = World::new(WorldConfig { faults, ..WorldConfig::default() });
        let args = args(&["--transport", transport, "-n", "50"]);
        let report = run_both(&args, device(&world, 1), Some(device(&world, 2)), Arc::default());
        assert_eq!(report.outcome.ok, survives, "{:?}", report.outcome.failure);
        if !survives {
            assert!(report.outcome.failure.unwrap().contains("does not retransmit lost messages"));
        }
    }
}

/// A device that is removed after this number of pauses.
struct Vanishing(Simulated, Cell<u32>);

impl Host for Vanishing {
    type Platform = <Simulated as Host>::Platform;
    type Buffer = <Simulated as Host>::Buffer;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn machine(&self, arena: usize) -> Result<bareverbs::platform::Machine<Self::Platform>> {
        self.0.machine(arena)
    }

    fn buffer(&self, len: usize) -> Result<Self::Buffer> {
        self.0.buffer(len)
    }

    fn now(&self) -> bareverbs::platform::Instant {
        self.0.now()
    }

    fn relax(&self) {
        match self.1.get() {
            0 => self.0.inner().with_device(|device| device.set_removed(true)),
            left => self.1.set(left - 1),
        }
        self.0.relax();
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        self.0.wait(timeout)
    }

    fn pci_ids(&self) -> (u16, u8) {
        self.0.pci_ids()
    }
}

#[test]
fn a_removed_device_is_an_error_with_its_name() {
    let world = World::new(WorldConfig::default());
    let host = |lid, pauses| Vanishing(device(&world, lid), Cell::new(pauses));
    let report = run_both(&args(&["-n", "100000"]), host(1, 500), Some(host(2, u32::MAX)), Arc::default());
    let failure = report.outcome.failure.unwrap();
    assert!(failure.starts_with("device 1"), "{failure}");
    assert!(report.remote.is_some() && report.result.is_none());
}

#[test]
fn a_port_without_a_link_is_an_error_before_the_exchange() {
    let host = device(&World::new(WorldConfig::default()), 4);
    host.inner().with_device(|device| device.set_link(false));
    let report = run_one(&args(&[]), host, Arc::default());
    let failure = report.outcome.failure.unwrap();
    assert!(failure.contains("device 4: port 1 has no cable") && failure.contains("(Disabled)"), "{failure}");
    assert!(report.local.is_none());
}

#[test]
fn port_0_is_a_free_port_for_a_server_and_an_error_for_a_client() {
    let report = run_alone(&["-p", "0", "--wait", "0"]);
    assert!(report.outcome.failure.unwrap().contains("no client connected"));
    assert!(report.tcp_port.unwrap() > 0);
    let output = bareverbs(&["localhost", "-p", "0", "--device", "9f:1f.7"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("bareverbs: -p 0: "), "{}", text(&output.stderr));
}
