//! Every subcommand that uses simulated devices, on every profile: what each demands is met, waited for and given back.

#![expect(clippy::unwrap_used, reason = "a test that cannot run its program has failed")]

use std::process::{Command, Stdio};
use std::time::Duration;

use bareverbs_sim::{DeviceConfig, Profile};
use serde_json::Value;

/// log2 of the queue pairs that the driver asks for.
const LOG_MAX_QP: u8 = 11;

/// Runs the command on devices of a profile. Returns the report of a run that succeeds.
fn run(profile: Profile, args: &[&str]) -> Value {
    let args = [args, &["--json", "--profile", profile.name()]].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_bareverbs")).args(&args).stdin(Stdio::null()).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success() && err.is_empty(), "{args:?}: {out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_ne!(report.get("ok"), Some(&Value::Bool(false)), "{args:?}: {report}");
    report
}

/// Returns the least pages that the firmware must have had, and the time until the port was active.
fn demands(profile: Profile) -> (u64, Duration) {
    let DeviceConfig { pages, link_training, lid_delay, .. } = DeviceConfig::profile(profile, 1);
    ((pages.boot + pages.init_for(LOG_MAX_QP)).into(), link_training + lid_delay)
}

#[test]
fn the_self_test_meets_the_demands_of_each_profile_and_gets_every_page_back() {
    for profile in Profile::ALL {
        let (pages, until_active) = demands(profile);
        let report = run(profile, &["-n", "10"]);
        assert!(report["simulated_seconds"].as_f64().unwrap() > until_active.as_secs_f64(), "{profile}: {report}");
        for (device, lid) in report["devices"].as_array().unwrap().iter().zip([1, 2]) {
            assert_eq!(
                (&device["port"]["port_lid"], &device["port"]["state"]),
                (&lid.into(), &"PORT_ACTIVE".into()),
                "{profile}"
            );
            assert!(device["firmware_pages"].as_u64().unwrap() >= pages, "{profile}: {device}");
        }
        let ends = report["teardown"].as_array().unwrap();
        assert_eq!(ends.len(), 2);
        for end in ends {
            assert!(end["pages_given"].as_u64().unwrap() >= pages, "{profile}: {end}");
            assert_eq!((&end["pages_back"], &end["findings"]), (&end["pages_given"], &Value::Array(Vec::new())), "{profile}");
        }
    }
}

#[test]
fn info_shows_the_port_of_each_profile_once_it_is_active() {
    for profile in Profile::ALL {
        let report = run(profile, &["info"]);
        let port = &report["ports"][0];
        assert_eq!((&port["port_lid"], &port["phys_state"]), (&1.into(), &"LINK_UP".into()), "{profile}: {port}");
        assert!(report["used"]["firmware_pages"].as_u64().unwrap() >= demands(profile).0, "{profile}: {report}");
    }
}

#[test]
fn pingpong_and_perf_move_data_on_each_profile() {
    for profile in Profile::ALL {
        let report = run(profile, &["pingpong", "-n", "20", "-s", "9000"]);
        assert_eq!((&report["local"]["lid"], &report["remote"]["lid"]), (&1.into(), &2.into()), "{profile}: {report}");
        let report = run(profile, &["perf", "-T", "write-bw,read-lat,send-bw", "-n", "20", "-s", "64"]);
        let messages: Vec<_> = report["results"].as_array().unwrap().iter().map(|row| row["messages"].as_u64()).collect();
        assert_eq!(messages, [Some(20); 3], "{profile}: {report}");
    }
}
