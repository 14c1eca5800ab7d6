//! `perf` as a process: all tests on simulated devices, JSON, plot and exit status.

#![expect(clippy::unwrap_used, reason = "a test that cannot run its program has failed")]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn perf(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bareverbs")).arg("perf").args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the standard output of a run that succeeds.
fn succeed(args: &[&str]) -> String {
    let output = perf(args);
    assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn json(args: &[&str]) -> Value {
    let report: Value = serde_json::from_str(&succeed(&[&["--json"], args].concat())).unwrap();
    assert_eq!((report.get("ok"), report.get("interrupted")), (Some(&Value::Bool(true)), Some(&Value::Bool(false))));
    report
}

fn rows(report: &Value) -> &Vec<Value> {
    report["results"].as_array().unwrap()
}

const ALL: [&str; 8] = ["write-lat", "write-bw", "read-lat", "read-bw", "send-lat", "send-bw", "atomic-lat", "atomic-bw"];

#[test]
fn every_test_polling_and_by_events_on_one_queue_pair_and_on_several() {
    for events in [false, true] {
        for queue_pairs in ["1", "3"] {
            for device in [&[][..], &["--device", "simulated"]] {
                let tests: Vec<_> = ALL.into_iter().filter(|test| !events || *test != "write-lat").collect();
                let list = tests.join(",");
                let mut args = vec!["-T", &list, "-n", "150", "-s", "8,3000", "-q", queue_pairs];
                args.extend(device);
                args.extend(events.then_some("-e"));
                let report = json(&args);
                assert_eq!(report["devices"].as_array().unwrap().len(), if device.is_empty() { 2 } else { 1 });
                assert_eq!(
                    rows(&report).len(),
                    tests.iter().map(|test| if test.starts_with("atomic") { 1 } else { 2 }).sum::<usize>()
                );
                for row in rows(&report) {
                    let is_latency = row["test"].as_str().unwrap().ends_with("lat");
                    let messages = if is_latency { 150 } else { 150 * queue_pairs.parse::<u64>().unwrap() };
                    let bytes = messages * row["size"].as_u64().unwrap();
                    assert_eq!((row["messages"].as_u64(), row["bytes"].as_u64()), (Some(messages), Some(bytes)), "{row}");
                    assert!(row["seconds"].as_f64().unwrap() > 0.0 && row["messages_per_second"].as_f64().unwrap() > 0.0);
                    if is_latency {
                        let values = ["min", "median", "p99", "p999", "max"].map(|name| row["latency"][name].as_f64().unwrap());
                        assert!(values.is_sorted() && values[0] > 0.0, "{row}");
                        assert!(row["latency"]["samples"].as_u64().unwrap() >= 149);
                    } else {
                        assert!(row.get("latency").is_none());
                    }
                }
            }
        }
    }
}

#[test]
fn performance_options_do_not_change_the_results() {
    let cases: [&[&str]; 9] = [
        &["-t", "1"],
        &["-t", "511", "-Q", "511"],
        &["-t", "128", "-Q", "128", "-l", "100"],
        &["-l", "16"],
        &["-l", "7", "-Q", "5", "-q", "2"],
        &["-I", "220", "-t", "64", "-r", "4"],
        &["-b", "-l", "3"],
        &["-b", "-e", "-r", "8"],
        &["-c", "uc", "-r", "5", "-I", "64"],
    ];
    for case in cases {
        let report = json(&[&["-T", "write-bw,send-bw", "-n", "1500", "-s", "1,64,65,220"], case].concat());
        let ways = if case.contains(&"-b") { 2 } else { 1 } * if case.contains(&"-q") { 2 } else { 1 };
        assert!(
            rows(&report).len() == 8 && rows(&report).iter().all(|row| row["messages"] == 1500 * ways),
            "{case:?}: {report}"
        );
    }
}

#[test]
fn ethernet_ports_and_datagrams_are_measured() {
    for args in [
        &["--ethernet", "-g", "0"][..],
        &["--ethernet", "-x", "3", "--address", "192.0.2.1", "--address", "192.0.2.2", "--vlan", "7"],
        &["--ethernet", "--gid-index", "1", "--address", "2001:db8::1", "--device", "simulated"],
        &["-g", "0"],
    ] {
        let report = json(&[&["-n", "50", "-s", "8,3000"], args].concat());
        assert_eq!(rows(&report).len(), 12, "{args:?}");
    }
    for args in [&["-c", "ud"][..], &["--use-srq", "-q", "4"], &["-c", "ud", "--use-srq", "--ethernet", "-g", "0", "-e"]] {
        let report = json(&[&["-n", "200"], args].concat());
        let tests: Vec<_> = rows(&report).iter().map(|row| row["test"].as_str().unwrap()).collect();
        assert_eq!(tests, ["send-lat", "send-bw"], "{args:?}");
        assert_eq!(report["parameters"]["use_srq"], args.contains(&"--use-srq"));
    }
    let report = json(&["-c", "ud", "-a", "-n", "20"]);
    assert_eq!(rows(&report).last().unwrap()["size"], 4096);
    let got = succeed(&["-c", "ud", "--use-srq", "-n", "20"]);
    assert!(got.contains("UD, 1 queue pair, tx-depth 128, post-list 1, a shared receive queue, polling"), "{got}");
}

#[test]
fn defaults_depend_on_the_test() {
    let report = json(&["-n", "20"]);
    let tests: Vec<_> =
        rows(&report).iter().map(|row| (row["test"].as_str().unwrap(), row["size"].as_u64().unwrap())).collect();
    assert_eq!(tests.iter().map(|(test, _)| *test).collect::<Vec<_>>(), ALL);
    assert_eq!(tests.iter().map(|(_, size)| *size).collect::<Vec<_>>(), [2, 65_536, 2, 65_536, 2, 65_536, 8, 8]);
    let report = json(&["-n", "20", "-c", "uc"]);
    let tests: Vec<_> = rows(&report).iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["write-lat", "write-bw", "send-lat", "send-bw"]);
}

#[test]
fn the_table_has_a_line_for_each_measurement() {
    let got = succeed(&["-T", "write-lat,send-bw", "-n", "50", "-s", "4,64"]);
    for start in
        ["latency [µs]", "bandwidth ", "write-lat          4 ", "write-lat         64 ", "send-bw            4 ", "ok: 4 "]
    {
        assert!(got.lines().any(|line| line.starts_with(start)), "no {start:?} in\n{got}");
    }
    assert_eq!(succeed(&["-T", "write-lat", "-n", "5", "--quiet"]), "");
}

#[test]
fn a_plot_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("perf.svg");
    succeed(&["-T", "write-lat,write-bw", "-n", "5", "-s", "2,64,4096", "--svg", file.to_str().unwrap()]);
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    // Each XML element is closed.
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap();
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split_whitespace().next().unwrap()),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for part in ["write-lat, median", "write-bw", "message size", "latency [µs]", "bandwidth [MiB/s]", "4 KiB"] {
        assert!(svg.contains(part), "no {part:?}");
    }
}

#[test]
fn a_plot_that_is_not_drawn_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (new, old) = (folder.path().join("new.svg"), folder.path().join("old.svg"));
    std::fs::write(&old, "old").unwrap();
    for file in [&new, &old] {
        let output = perf(&["-T", "write-bw", "-I", "1000", "--svg", file.to_str().unwrap()]);
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{}", text(&output.stdout));
    }
    assert!(!new.exists());
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
}

#[test]
fn atomics_are_named_in_lower_case_too() {
    let got = succeed(&["-T", "atomic-bw", "-n", "5", "-A", "cmp_and_swap"]);
    assert!(got.ends_with("ok: 1 measurement, data verified\n"), "{got}");
}

#[test]
fn mistakes_are_refused_with_the_reason() {
    let cases: [(&[&str], i32, &str); 28] = [
        (&["-t", "512", "-T", "send-bw"], 2, "511 is the greatest"),
        (&["--device", "01:00.0", "--listen", ":99999"], 2, "\"99999\" is not a TCP port"),
        (&["-T", "write-bw", "-s", "1073741824", "-q", "32"], 1, "simulated devices have 8589934592 here"),
        (&["-T", "write-bw", "-I", "1000"], 1, "1000 bytes inline, simulated b takes"),
        (&["-T", "write-bw", "-s", "2147483648"], 1, "the longest message of simulated b has"),
        (&["-T", "write-bw", "-I", "900", "-t", "200"], 1, "136 is the greatest tx-depth"),
        (&["-c", "uc", "-T", "read-lat"], 2, "no reads and no atomics"),
        (&["-T", "write-lat", "-e"], 2, "no event to wait for"),
        (&["-T", "atomic-bw", "-s", "9"], 2, "an atomic has 8 bytes"),
        (&["-T", "write-lat", "-b"], 2, "in one direction"),
        (&["-t", "513"], 2, "a send queue holds 1 to 512"),
        (&["-q", "33"], 2, "33 is not between 1 and 32"),
        (&["-q", "17", "--device", "simulated"], 2, "two ends on one device have 16 each"),
        (&["-m", "1500"], 2, "not one of 256, 512, 1024, 2048, 4096"),
        (&["--device", "mlx5_0"], 2, "neither `simulated` nor a PCI address"),
        (&["--device", "01:00.0", "--device", "simulated"], 2, "no wire to a card"),
        (&["--device", "01:00.0", "--device", "0000:02:00.0", "--listen"], 2, "take one --device"),
        (&["--listen"], 2, "need a card"),
        (&["--ethernet"], 1, "port 1 is an Ethernet port, where every path needs a GID: give -g 0 for its link-local address"),
        (&["--ethernet", "-g", "3"], 1, "GID 3 of port 1 has no entry: --address IP sets it"),
        (&["--vlan", "5", "-g", "0"], 1, "port 1 is an InfiniBand port"),
        (&["--address", "192.0.2.1"], 2, "give one for each"),
        (&["--address", "192.0.2.1", "--address", "192.0.2.2", "--device", "simulated"], 2, "share its GID, give one for both"),
        (&["--peer-mac", "02:00:5e:00:53:01"], 2, "both ends are in this process"),
        (&["-c", "ud", "-T", "write-bw"], 2, "datagrams (UD) are sends alone; use -T send-lat,send-bw"),
        (&["--use-srq", "-T", "write-bw"], 2, "leave --use-srq out"),
        (&["-c", "ud", "-T", "send-bw", "-s", "4097"], 2, "one packet of at most 4096 bytes"),
        (&["--svg", "/nonexistent/perf.svg"], 2, "/nonexistent/perf.svg: No such file"),
    ];
    for (args, status, part) in cases {
        let output = perf(args);
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(status) && error.contains(part), "{args:?}: {:?} {error}", output.status);
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_measurement_with_a_partial_result() {
    for (test, mode) in [("write-lat", "-T"), ("send-bw", "-T"), ("read-bw", "-eT")] {
        let child = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
            .args(["perf", "--json", "-n", "10000000000", "-s", "64,128", mode, test])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Waits for processor time of the process, because it may start late on a busy machine.
        let worked = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            fields[11].parse::<u64>().unwrap()
        };
        let start = Instant::now();
        // In clock ticks of 10 ms.
        while worked() < 70 {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not work");
            std::thread::sleep(Duration::from_millis(10));
        }
        let asked = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(asked.success());
        assert_eq!(output.status.code(), Some(130), "{test}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["ok"], &report["interrupted"]), (&Value::Bool(false), &Value::Bool(true)));
        assert_eq!((rows(&report).len(), &rows(&report)[0]["size"]), (1, &Value::from(64)));
        assert!(rows(&report)[0]["messages"].as_u64().unwrap() > 100, "{report}");
    }
}
