use std::sync::Arc;

use clap::Parser as _;

use super::*;
use crate::args::UsageError;
use crate::cli::Cli;
use crate::device::Role;
use crate::rdma_cm::program::{Done as _, End};
use crate::rdma_cm::run::run;
use crate::rdma_cm::two_ends::{self, args};

type Pair = two_ends::Pair<UdaddyArgs>;

#[test]
fn all_queue_pairs_have_all_messages() {
    for (more, connections, messages, size) in [
        (&[][..], 1, 10, 100),
        (&["-c", "16", "-C", "100", "-S", "1024"], 16, 1600, 1024),
        (&["-C", "512", "-S", "1"], 1, 512, 1),
        (&["-c", "3", "-C", "0"], 3, 0, 100),
        (&["--address", "192.0.2.1", "--address", "192.0.2.2", "-g", "3"], 1, 10, 100),
    ] {
        let report = two_ends::run(&args::<UdaddyArgs>(more), 0);
        assert_eq!((report.outcome.ok, report.outcome.failure), (true, None));
        assert_eq!(report.done, Datagrams { connections, received: messages, sent: messages, size });
    }
    let done = Datagrams { connections: 1, received: 10, sent: 10, size: 41 };
    assert_eq!(done.line("both"), "queue pairs: 1, messages of 41 bytes: 10 sent, 10 received and compared");
    assert_eq!(Datagrams { size: 40, ..done }.line("both"), "queue pairs: 1, messages of 40 bytes: 10 sent, 10 received");
}

#[test]
fn both_ends_meet_in_a_subnet() {
    two_ends::meet_in_a_subnet::<UdaddyArgs>();
}

#[test]
fn a_question_that_is_repeated_has_the_same_answer() {
    // A server that took it for another one would soon have no queue pair left.
    let report = two_ends::run(&args::<UdaddyArgs>(&["-c", "16", "-C", "0"]), 300);
    assert_eq!((report.outcome.ok, report.outcome.failure, report.done.connections), (true, None, 16));
}

#[test]
fn a_datagram_that_is_lost_ends_the_wait() {
    let report = two_ends::run(&args::<UdaddyArgs>(&["-C", "500"]), 100);
    let failure = report.outcome.failure.unwrap();
    assert!(
        failure.starts_with("nothing happened for 30 s: 1 of 1 queue pairs were resolved, ")
            && failure.contains("nobody repeats"),
        "{failure}"
    );
    assert!((1..500).contains(&report.done.received), "{}", report.done.received);
}

#[test]
fn private_data_arrive_both_ways() {
    two_ends::private_data_arrive_both_ways::<UdaddyArgs>();
}

#[test]
fn a_rejection_is_said_with_its_text() {
    let report = two_ends::run(&args::<UdaddyArgs>(&["--reject", "--private-data", "not today"]), 0);
    let failure = report.outcome.failure.unwrap();
    assert_eq!(failure, "the peer rejected the request: rejected by service provider, private data \"not today\"");
    assert!(report.rejected);
    // Each end has the other one's.
    assert_eq!(report.private_data, ["not today"; 2]);
    let (role, why) = Pair::of(&["--port", "7000"], &[]).run_until(|_| false).unwrap();
    assert_eq!((role, why.as_str()), (Role::Client, "the peer rejected the request: service ID not supported"));
    let (role, why) = Pair::of(&[], &["-c", "2"]).run_until(|_| false).unwrap();
    assert_eq!((role, why.as_str()), (Role::Client, "the peer rejected the request: no QP available"));
}

#[test]
fn wrong_bytes_are_found() {
    // The server waits for more.
    let mut differs = Pair::of(&["-C", "20"], &["-C", "10"]);
    assert_eq!(differs.run_until(|ends| ends[0].done().received == 10), None);
    let Pair { devices, ends } = &mut differs;
    let error = ends[0].take_changed(&mut devices[0], 17).unwrap_err().to_string();
    assert_eq!(error, "queue pair 0, message 10: byte 17 of 100 is another one than in message 0");

    let mut returned = Pair::of(&[], &[]);
    returned.ends[1].expect_others();
    let (role, why) = returned.run_until(|_| false).unwrap();
    assert!(
        role == Role::Client && why.starts_with("queue pair 0, message 0: byte ") && why.ends_with("came back wrong"),
        "{why}"
    );
}

#[test]
fn messages_of_another_size_are_refused() {
    let (role, why) = Pair::of(&["-S", "101"], &["-S", "100"]).run_until(|_| false).unwrap();
    assert!(
        role == Role::Server && why.contains("a message of 100 bytes came instead of 101: give both ends the same -S"),
        "{why}"
    );
}

#[test]
fn a_client_whose_server_is_not_there_ends_in_bounded_time() {
    two_ends::ends_without_a_server::<UdaddyArgs>(&["-c", "4"]);
}

#[test]
fn mistakes_of_the_command_line_are_refused() {
    let too_long = "x".repeat(137);
    for (more, why) in [
        (&["--private-data", &too_long][..], "a server has room for 136 bytes"),
        (&["--private-data", &too_long, "--reject"], "a rejecting server has room for 136 bytes"),
        (&["192.0.2.1"], "no wire to another"),
    ] {
        let error = run(&args::<UdaddyArgs>(more), &Arc::default()).unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains(why), "{error:#}");
    }
    let report = two_ends::run(&args::<UdaddyArgs>(&["-S", "1025"]), 0);
    assert!(report.outcome.failure.unwrap().contains("do not fit into packets of 1024 bytes"));
    for wrong in [&["-c", "0"], &["-c", "17"], &["-C", "513"], &["-S", "0"]] {
        assert!(Cli::try_parse_from([&["bareverbs", "udaddy"][..], wrong].concat()).is_err(), "{wrong:?}");
    }
}
