use bareverbs_sim::in_process::{World, WorldConfig};
use clap::Parser as _;

use super::*;
use crate::args::UsageError;
use crate::cli::{Cli, Command};
use crate::device::Role;
use crate::device::ethernet::EntryArgs;
use crate::rdma_cm::program::{Done as _, End};
use crate::rdma_cm::run::IDLE_TIMEOUT;
use crate::rdma_cm::two_ends::{self, Pair};

fn args(more: &[&str]) -> UdaddyArgs {
    match Cli::parse_from([&["bareverbs", "udaddy", "--json"], more].concat()).command {
        Some(Command::Udaddy(args)) => *args,
        _ => panic!("another command"),
    }
}

fn pair(server: &[&str], client: &[&str]) -> Pair<UdaddyArgs> {
    Pair::new(&args(server), &args(client), [EntryArgs::default(); 2])
}

#[test]
fn all_queue_pairs_have_all_messages() {
    for (more, connections, messages, size) in [
        (&[][..], 1, 10, 100),
        (&["-c", "16", "-C", "100", "-S", "1024"], 16, 1600, 1024),
        (&["-C", "512", "-S", "1"], 1, 512, 1),
        (&["-c", "3", "-C", "0"], 3, 0, 100),
        (&["--address", "192.0.2.1", "--address", "192.0.2.2", "-g", "3"], 1, 10, 100),
    ] {
        let report = two_ends::run(&args(more), 0);
        assert_eq!((report.outcome.ok, report.outcome.failure), (true, None));
        assert_eq!(report.done, Datagrams { connections, received: messages, sent: messages, size });
    }
    let done = Datagrams { connections: 1, received: 10, sent: 10, size: 41 };
    assert_eq!(done.line("both"), "queue pairs: 1, messages of 41 bytes: 10 sent, 10 received and compared");
    assert_eq!(Datagrams { size: 40, ..done }.line("both"), "queue pairs: 1, messages of 40 bytes: 10 sent, 10 received");
}

#[test]
fn a_question_that_is_repeated_has_the_same_answer() {
    // A server that took it for another one would soon have no queue pair left.
    let report = two_ends::run(&args(&["-c", "16", "-C", "0"]), 300);
    assert_eq!((report.outcome.ok, report.outcome.failure, report.done.connections), (true, None, 16));
}

#[test]
fn a_datagram_that_is_lost_ends_the_wait() {
    let report = two_ends::run(&args(&["-C", "500"]), 100);
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
    let mut pair = pair(&["--private-data", "welcome"], &["--private-data", "hello"]);
    assert_eq!(pair.run_until(|ends| ends.iter().all(End::is_done)), None);
    for (end, text) in
        pair.ends.iter_mut().zip(["  private data of the client: \"hello\"", "  private data of the server: \"welcome\""])
    {
        let news = &end.port().news;
        assert!(news.iter().any(|line| line == text), "{news:?}");
    }
}

#[test]
fn a_rejection_is_said_with_its_text() {
    let report = two_ends::run(&args(&["--reject", "--private-data", "not today"]), 0);
    let failure = report.outcome.failure.unwrap();
    assert_eq!(failure, "the peer rejected the request: rejected by service provider, private data \"not today\"");
    assert!(report.rejected);
    let (role, why) = pair(&["--port", "7000"], &[]).run_until(|_| false).unwrap();
    assert_eq!((role, why.as_str()), (Role::Client, "the peer rejected the request: service ID not supported"));
    let (role, why) = pair(&[], &["-c", "2"]).run_until(|_| false).unwrap();
    assert_eq!((role, why.as_str()), (Role::Client, "the peer rejected the request: no QP available"));
}

#[test]
fn wrong_bytes_are_found() {
    // The server waits for more.
    let mut differs = pair(&["-C", "20"], &["-C", "10"]);
    assert_eq!(differs.run_until(|ends| ends[0].done().received == 10), None);
    let Pair { devices, ends } = &mut differs;
    let error = ends[0].take_changed(&mut devices[0], 17).unwrap_err().to_string();
    assert_eq!(error, "queue pair 0, message 10: byte 17 of 100 is another one than in message 0");

    let mut returned = pair(&[], &[]);
    returned.ends[1].expect_others();
    let (role, why) = returned.run_until(|_| false).unwrap();
    assert!(
        role == Role::Client && why.starts_with("queue pair 0, message 0: byte ") && why.ends_with("came back wrong"),
        "{why}"
    );
}

#[test]
fn messages_of_another_size_are_refused() {
    let (role, why) = pair(&["-S", "101"], &["-S", "100"]).run_until(|_| false).unwrap();
    assert!(
        role == Role::Server && why.contains("a message of 100 bytes came instead of 101: give both ends the same -S"),
        "{why}"
    );
}

#[test]
fn a_client_whose_server_is_not_there_ends_in_bounded_time() {
    let world = World::new(WorldConfig::default());
    let args = args(&["-c", "4", "--peer-mac", "02:00:5e:00:53:01", "--address", "192.0.2.1", "192.0.2.2"]);
    let failure = two_ends::run_client(&args, &world).outcome.failure.unwrap();
    assert!(failure.starts_with("the peer does not answer: ") && failure.contains("192.0.2.1"), "{failure}");
    let seconds = world.now().as_nanos() / 1_000_000_000;
    assert!((4..IDLE_TIMEOUT.as_secs()).contains(&seconds), "{seconds}");
}

#[test]
fn mistakes_of_the_command_line_are_refused() {
    let too_long = "x".repeat(137);
    for (more, why) in [
        (&["--private-data", &too_long][..], "a server has room for 136 bytes"),
        (&["--private-data", &too_long, "--reject"], "a rejecting server has room for 136 bytes"),
        (&["192.0.2.1"], "no wire to another"),
    ] {
        let error = super::run(&args(more), &Arc::default()).unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains(why), "{error:#}");
    }
    let report = two_ends::run(&args(&["-S", "1025"]), 0);
    assert!(report.outcome.failure.unwrap().contains("do not fit into packets of 1024 bytes"));
    for wrong in [&["-c", "0"], &["-c", "17"], &["-C", "513"], &["-S", "0"]] {
        assert!(Cli::try_parse_from([&["bareverbs", "udaddy"][..], wrong].concat()).is_err(), "{wrong:?}");
    }
}
