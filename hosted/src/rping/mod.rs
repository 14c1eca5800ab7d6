//! `bareverbs rping`: either end of `rping` of rdma-core, or both. The ends meet by communication management (`rdma_cm`).

pub mod args;
mod end;
pub mod report;

use bareverbs_cm::{PortSpace, ServiceId};

use self::args::RpingArgs;
use self::end::RpingEnd;
use self::report::Rounds;
use crate::device::Host;
use crate::rdma_cm::args::{CmArgs, Room};
use crate::rdma_cm::program::Program;

impl Program for RpingArgs {
    type End<H: Host> = RpingEnd<H>;
    type Done = Rounds;
    const ROOM: Room = Room::CONNECTION;

    fn cm(&self) -> &CmArgs {
        &self.cm
    }

    fn service(&self) -> ServiceId {
        PortSpace::Tcp.service_id(self.port)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bareverbs_sim::DeviceConfig;
    use bareverbs_sim::in_process::{World, WorldConfig};
    use clap::Parser as _;

    use super::*;
    use crate::args::UsageError;
    use crate::cli::Cli;
    use crate::device::Role;
    use crate::device::ethernet::EntryArgs;
    use crate::device::simulated::Simulated;
    use crate::outcome::Outcome;
    use crate::rdma_cm::program::End as _;
    use crate::rdma_cm::two_ends::{self, Pair, args};
    use crate::rdma_cm::{Report, run};

    fn run(more: &[&str], loss: u16) -> Report<Rounds> {
        two_ends::run(&args::<RpingArgs>(more), loss)
    }

    #[test]
    fn both_ends_meet_and_compare_every_byte() {
        for (more, rounds, size) in
            [(&[][..], 10, 64), (&["-C", "3", "-S", "1"], 3, 1), (&["-C", "2", "-S", "100000"], 2, 100_000)]
        {
            let report = run(more, 0);
            assert_eq!(
                (report.outcome.ok, report.outcome.failure, report.done.rounds, report.done.size),
                (true, None, rounds, size)
            );
        }
        let report = run(&["--private-data", "anybody?"], 50);
        assert_eq!((report.outcome.ok, report.outcome.failure, report.done.rounds), (true, None, 10));
    }

    #[test]
    fn both_ends_meet_in_a_subnet() {
        two_ends::meet_in_a_subnet::<RpingArgs>();
    }

    #[test]
    fn a_rejection_is_said_with_its_text() {
        let report = run(&["--reject", "--private-data", "not today"], 0);
        let failure = report.outcome.failure.unwrap();
        assert_eq!(failure, "the peer rejected the connection: consumer reject, private data \"not today\"");
        assert!(report.rejected);
        // Each end has the other one's.
        assert_eq!(report.private_data, ["not today"; 2]);
        let server: Report<Rounds> =
            Report { outcome: Outcome::new(None, false), role: "server", rejected: report.rejected, ..Report::default() };
        assert_eq!(server.to_string(), "rejected the request of the client\n");
    }

    #[test]
    fn addresses_and_a_vlan_are_used() {
        let report = run(&["--address", "192.0.2.1", "--address", "192.0.2.2", "--vlan", "100", "-g", "3"], 0);
        assert_eq!((report.outcome.ok, report.outcome.failure, report.done.rounds), (true, None, 10));
        let report = run(&["--address", "192.0.2.1", "--address", "2001:db8::2"], 0);
        assert!(report.outcome.failure.unwrap().contains("different versions of IP"));
    }

    #[test]
    fn mistakes_of_the_command_line_are_refused() {
        let too_long = "x".repeat(57);
        for (more, why) in [
            (&["--private-data", &too_long][..], "a client has room for 56 bytes"),
            (&["--address", "192.0.2.1"], "give one for each"),
            (&["--peer-mac", "02:00:5e:00:53:01"], "leave it out"),
            (&["192.0.2.1"], "no wire to another process"),
            (&["192.0.2.1", "--peer-lid", "2", "--peer-gid", "fe80::1"], "no wire to another process"),
        ] {
            let error = run::run(&args::<RpingArgs>(more), &Arc::default()).unwrap_err();
            assert!(error.is::<UsageError>() && error.to_string().contains(why), "{error:#}");
        }
    }

    #[test]
    fn a_client_whose_server_is_not_there_ends_in_bounded_time() {
        two_ends::ends_without_a_server::<RpingArgs>(&[]);
    }

    #[test]
    fn a_client_of_a_subnet_without_its_server_says_where_it_should_be() {
        let args = args::<RpingArgs>(&["--address", "192.0.2.1", "--peer-lid", "9", "--peer-gid", "fe80::9", "192.0.2.2"]);
        let host = World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1)).unwrap();
        let report = run::run_ends(&args, vec![(Simulated::new("a", host), Role::Client)], &Arc::default());
        let failure = report.outcome.failure.unwrap();
        assert!(
            failure.starts_with("the peer does not answer: ") && failure.contains("at LID 9 with GID fe80::9"),
            "{failure}"
        );
    }

    #[test]
    fn the_port_of_a_peer_is_a_lid_and_a_gid_of_a_server() {
        for wrong in [
            &["--peer-lid", "2", "192.0.2.2"][..],
            &["--peer-gid", "fe80::9", "192.0.2.2"],
            &["--peer-lid", "2", "--peer-gid", "fe80::9"],
            &["--peer-lid", "0", "--peer-gid", "fe80::9", "192.0.2.2"],
        ] {
            let command = [&["bareverbs", "rping"][..], wrong].concat();
            assert!(Cli::try_parse_from(command).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn ends_of_different_vlans_do_not_meet() {
        let entries = [100, 101].map(|vlan| EntryArgs { vlan: Some(vlan), ..EntryArgs::default() });
        let args = args::<RpingArgs>(&[]);
        let mut pair = Pair::new(&args, &args, entries);
        let (role, why) = pair.run_until(|ends| !ends[0].waits_for_client()).expect("the server has got the request");
        assert!(role == Role::Client && why.starts_with("the peer does not answer: "), "{why}");
    }

    #[test]
    fn an_end_that_leaves_tells_its_peer() {
        let args = args::<RpingArgs>(&["-C", "1000000"]);
        let mut pair = Pair::new(&args, &args, [EntryArgs::default(); 2]);
        assert_eq!(pair.run_until(|ends| ends[1].done().rounds >= 3), None);
        let now = pair.devices[0].host.now();
        assert!(pair.ends[0].leave(now));
        let (role, why) = pair.run_until(|_| false).expect("the client has not heard of it");
        assert!(role == Role::Client && why.starts_with("the connection ended in round 3: "), "{why}");
        // The datagram that answers was made, and leaves with the next step.
        assert_eq!(pair.run_until(|ends| ends[0].is_done()), None, "the client has not answered");
    }

    #[test]
    fn a_client_without_the_mac_address_of_its_server_says_how_to_give_it() {
        let args = args::<RpingArgs>(&["--address", "192.0.2.1", "192.0.2.2"]);
        let report = two_ends::run_client(&args, &World::new(WorldConfig::default()));
        let failure = report.outcome.failure.unwrap();
        assert!(failure.contains("192.0.2.2 does not tell its MAC address") && failure.contains("--peer-mac"), "{failure}");
    }
}
