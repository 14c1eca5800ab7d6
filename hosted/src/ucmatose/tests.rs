use std::sync::Arc;

use clap::Parser as _;

use super::*;
use crate::args::UsageError;
use crate::cli::Cli;
use crate::device::Role;
use crate::rdma_cm::program::{Done as _, End};
use crate::rdma_cm::run::run;
use crate::rdma_cm::two_ends::{self, args};

type Pair = two_ends::Pair<UcmatoseArgs>;

#[test]
fn all_connections_have_all_messages() {
    for (more, connections, messages, size) in [
        (&[][..], 1, 10, 100),
        (&["-c", "16", "-C", "40", "-S", "5000"], 16, 16 * 40, 5000),
        (&["-C", "3", "-S", "1048576"], 1, 3, 1 << 20),
        (&["-c", "2", "-C", "0"], 2, 0, 100),
    ] {
        let report = two_ends::run(&args::<UcmatoseArgs>(more), 0);
        assert_eq!((report.outcome.ok, report.outcome.failure), (true, None));
        assert_eq!(report.done, Messages { connections, received: messages, sent: messages, size });
    }
    let report = two_ends::run(&args::<UcmatoseArgs>(&["-c", "3", "--private-data", "anybody?"]), 50);
    assert_eq!((report.outcome.ok, report.outcome.failure, report.done.received), (true, None, 30));
    // Of three connections the text of each end.
    assert_eq!(report.private_data, ["anybody?"; 6]);
    assert_eq!(report.done.line("both"), "connections: 3, messages of 100 bytes: 30 sent, 30 received and compared");
}

#[test]
fn both_ends_meet_in_a_subnet() {
    two_ends::meet_in_a_subnet::<UcmatoseArgs>();
}

#[test]
fn private_data_arrive_both_ways() {
    two_ends::private_data_arrive_both_ways::<UcmatoseArgs>();
}

#[test]
fn a_rejection_is_said_with_its_text() {
    let report = two_ends::run(&args::<UcmatoseArgs>(&["-c", "2", "--reject", "--private-data", "not today"]), 0);
    let failure = report.outcome.failure.unwrap();
    assert_eq!(failure, "the peer rejected the connection: consumer reject, private data \"not today\"");
    assert!(report.rejected);
}

#[test]
fn more_connections_than_the_server_has_are_rejected() {
    let (role, why) = Pair::of(&[], &["-c", "2"]).run_until(|_| false).unwrap();
    assert_eq!((role, why.as_str()), (Role::Client, "the peer rejected the connection: no resources available"));
}

#[test]
fn a_port_without_a_server_says_so() {
    let (role, why) = Pair::of(&["--port", "7000"], &[]).run_until(|_| false).unwrap();
    assert_eq!((role, why.as_str()), (Role::Client, "the peer rejected the connection: invalid service ID"));
}

#[test]
fn wrong_bytes_are_found() {
    let mut differs = Pair::of(&["-c", "2", "-C", "100"], &["-c", "2", "-C", "100"]);
    assert_eq!(differs.run_until(|ends| ends[1].done().received > 40), None);
    differs.ends[1].spoil(1, 42);
    let (role, why) = differs.run_until(|_| false).unwrap();
    assert!(
        role == Role::Client && why.ends_with(" of connection 1: byte 42 of 100 is another one than in message 0"),
        "{why}"
    );

    let mut returned = Pair::of(&[], &[]);
    returned.ends[0].expect_others();
    let (role, why) = returned.run_until(|_| false).unwrap();
    assert!(role == Role::Server && why.starts_with("message 0 of connection 0: wrong data: byte "), "{why}");
}

#[test]
fn messages_of_another_size_are_refused() {
    let (role, why) = Pair::of(&["-S", "99"], &["-S", "100"]).run_until(|_| false).unwrap();
    assert!(
        role == Role::Client && why.contains("a message of 99 bytes came instead of 100: give both ends the same -S"),
        "{why}"
    );
    let (_, why) = Pair::of(&["-S", "100"], &["-S", "99"]).run_until(|_| false).unwrap();
    assert!(why.contains("its buffer is smaller") || why.contains("LocLenErr"), "{why}");
}

#[test]
fn an_end_that_leaves_tells_its_peer() {
    // The server has messages that the client does not take: the connection does not end by itself.
    let mut early = Pair::of(&["-C", "20"], &["-C", "10"]);
    assert_eq!(early.run_until(|ends| ends[0].done().received == 10), None);
    let now = early.devices[0].host.now();
    assert!(early.ends[0].leave(now));
    assert_eq!(early.run_until(|ends| ends[1].is_done()), None, "the client had all that it expected");

    let mut amid = Pair::of(&["-C", "1000000"], &["-C", "1000000"]);
    assert_eq!(amid.run_until(|ends| ends[1].done().received > 20), None);
    let now = amid.devices[1].host.now();
    assert!(amid.ends[1].leave(now));
    let (role, why) = amid.run_until(|_| false).unwrap();
    assert!(role == Role::Server && why.starts_with("connection 0 ended (Peer) after 0 of 1000000 messages had come"), "{why}");
}

#[test]
fn a_peer_that_says_nothing_any_more_is_noticed() {
    for dead in [0, 1] {
        // A client sends when it has all messages, and then the server does not take the end of its own.
        let mut pair =
            if dead == 0 { Pair::of(&["-C", "200"], &["-C", "100"]) } else { Pair::of(&["-C", "1000"], &["-C", "1000"]) };
        assert_eq!(pair.run_until(|ends| ends[1].done().received >= 100), None);
        assert!(pair.ends[0].done().received < 100, "the client has sent all");
        let Pair { devices, ends } = &mut pair;
        ends[dead].forget_peer(&mut devices[dead]);
        let (role, why) = loop {
            let alive = 1 - dead;
            match ends[alive].step(&mut devices[alive]) {
                Ok(true) => {}
                Ok(false) => devices[alive].host.relax(),
                Err(error) => break (alive, format!("{error:#}")),
            }
            assert!(devices[alive].host.now().as_nanos() < 60_000_000_000, "it goes on");
        };
        assert!(why.contains("RetryExcErr: the peer has ended"), "{role}: {why}");
    }
}

#[test]
fn a_client_whose_server_is_not_there_ends_in_bounded_time() {
    two_ends::ends_without_a_server::<UcmatoseArgs>(&["-c", "4"]);
}

#[test]
fn mistakes_of_the_command_line_are_refused() {
    let (too_long, for_a_client) = ("x".repeat(57), "x".repeat(56));
    for (more, why) in
        [(&["--private-data", &too_long][..], "a client has room for 56 bytes"), (&["192.0.2.1"], "no wire to another")]
    {
        let error = run(&args::<UcmatoseArgs>(more), &Arc::default()).unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains(why), "{error:#}");
    }
    assert!(run(&args::<UcmatoseArgs>(&["--private-data", &for_a_client]), &Arc::default()).unwrap().outcome.ok);
    for wrong in [&["-c", "0"], &["-c", "17"], &["-S", "0"], &["-S", "1048577"]] {
        assert!(Cli::try_parse_from([&["bareverbs", "ucmatose"][..], wrong].concat()).is_err(), "{wrong:?}");
    }
}
