//! The self-test and `info` as processes: text, JSON, trace and exit status.

#![expect(clippy::unwrap_used, reason = "a test that cannot run its program has failed")]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn bareverbs(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bareverbs")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the standard output of a run that succeeds.
fn succeed(args: &[&str]) -> String {
    let output = bareverbs(args);
    assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&succeed(args)).unwrap()
}

const KINDS: [&str; 8] = [
    "SEND ping-pong",
    "SEND_WITH_IMM",
    "RDMA_WRITE inline",
    "RDMA_WRITE",
    "RDMA_WRITE_WITH_IMM",
    "RDMA_READ",
    "FETCH_AND_ADD",
    "CMP_AND_SWP",
];

#[test]
fn the_default_run_does_the_whole_job() {
    let got = succeed(&[]);
    for line in [
        "device a  firmware ",
        "device b  firmware ",
        "port 1 PORT_ACTIVE, LID 1",
        "port 1 PORT_ACTIVE, LID 2",
        "limits: ",
        "window    ",
        "old rkey  ",
        "RemAccessErr",
        "memory untouched",
        "RESET to RTS, the new rkey works",
        "216 of 216 firmware pages are back",
        "ok: 9000 messages",
        "every byte verified",
    ] {
        assert!(got.contains(line), "no {line:?} in\n{got}");
    }
    let table: Vec<_> = got.lines().filter(|line| KINDS.iter().any(|kind| line.starts_with(kind))).collect();
    assert_eq!(table.len(), KINDS.len(), "{got}");
    assert!(!got.contains("driver mistake"), "{got}");
}

#[test]
fn json_and_text_have_the_same_values() {
    let report = json(&["--json", "-n", "40", "-s", "1000", "--mtu", "256", "--iterations", "2"]);
    assert_eq!((&report["ok"], &report["interrupted"]), (&Value::Bool(true), &Value::Bool(false)));
    let kinds: Vec<_> = report["transfers"].as_array().unwrap().iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(kinds, KINDS);
    for row in report["transfers"].as_array().unwrap() {
        let (size, each) = match row["what"].as_str().unwrap() {
            "SEND ping-pong" => (1000, 2),
            "RDMA_WRITE inline" => (32, 1),
            "FETCH_AND_ADD" | "CMP_AND_SWP" => (8, 1),
            _ => (1000, 1),
        };
        let messages = 2 * 40 * each;
        assert_eq!((row["messages"].as_u64(), row["bytes"].as_u64()), (Some(messages), Some(messages * size)), "{row}");
        assert_eq!(row["retries"], 0, "{row}");
    }
    assert_eq!(report["refused"]["status"], "RemAccessErr");
    assert_eq!(report["refused"]["recovered"], true);
    assert_ne!(report["refused"]["old_rkey"], report["refused"]["new_rkey"]);
    for end in report["teardown"].as_array().unwrap() {
        assert_eq!(end["pages_given"], end["pages_back"]);
        assert_eq!(end["findings"].as_array().unwrap().len(), 0, "{end}");
    }
    let device = &report["devices"][0];
    assert_eq!(device["port"]["port_lid"], 1);
    let info = json(&["info", "--json"]);
    for key in ["fw_ver", "vendor_part_id", "max_qp", "atomic_cap", "max_msg_sz"] {
        assert!(!info[key].is_null() && device[key] == info[key], "{key}: {device} {info}");
    }
    assert_eq!(report["options"]["mtu"], 256);
}

#[test]
fn with_ethernet_ports_every_message_is_in_frames_that_fit_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.txt");
    for device in [&[][..], &["--device", "simulated"]] {
        let trace = ["--trace-file", file.to_str().unwrap()];
        let report = json(&[&["--json", "--ethernet", "-n", "4", "-s", "5000"], device, &trace].concat());
        assert_eq!((&report["ok"], &report["options"]["mtu"]), (&true.into(), &1024.into()), "{report}");
        for device in report["devices"].as_array().unwrap() {
            let port = &device["port"];
            assert_eq!((&port["port_lid"], &port["state"]), (&0.into(), &"PORT_ACTIVE".into()), "{port}");
            assert!(port["gid"].as_str().unwrap().starts_with("fe80:0000:0000:0000:0202:c9ff:fe00:0"), "{port}");
        }
        let trace = std::fs::read_to_string(&file).unwrap();
        let sent: Vec<_> = trace.lines().filter(|line| line.contains(" sent ")).collect();
        assert!(sent.len() > 100 && sent.iter().all(|line| line.contains("IPv6") && !line.contains("LRH")), "{}", sent[0]);
    }
}

#[test]
fn info_shows_an_ethernet_port() {
    let info = json(&["info", "--json", "--ethernet"]);
    let port = &info["ports"][0];
    assert_eq!((&port["link_layer"], &port["mac"]), (&"Ethernet".into(), &"00:02:c9:00:01:00".into()), "{port}");
    assert_eq!((&port["active_mtu"], &port["gids"]), (&1024.into(), &Value::Array(Vec::new())), "{port}");
    assert!(succeed(&["info", "--ethernet", "--profile", "connectx-7"]).contains("link_layer:             Ethernet\n"));
    let output = bareverbs(&["info", "--ethernet", "--device", "01:00.0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("LINK_TYPE_P1"), "{}", text(&output.stderr));
}

#[test]
fn messages_of_any_size_and_mtu_arrive() {
    for (size, mtu) in [("1", "4096"), ("7", "256"), ("4097", "4096"), ("65536", "1024"), ("1048576", "2048")] {
        let report = json(&["--json", "-n", "6", "-s", size, "--mtu", mtu]);
        assert_eq!(report["ok"], true, "{size} {mtu}");
    }
}

#[test]
fn a_faulty_wire_changes_nothing_but_the_time() {
    for seed in ["1", "2", "3"] {
        let faults = ["--loss", "2", "--duplicate", "2", "--reorder", "2", "--delay", "2", "--seed", seed];
        let report = json(&[&["--json", "-n", "300", "-s", "3000", "--mtu", "1024"], &faults[..]].concat());
        assert_eq!(report["ok"], true);
        for count in ["lost", "duplicated", "reordered", "delayed"] {
            assert!(report["wire"][count].as_u64().unwrap() > 20, "{}", report["wire"]);
        }
        let retries: u64 = report["transfers"].as_array().unwrap().iter().map(|row| row["retries"].as_u64().unwrap()).sum();
        assert!(retries > 20, "{report}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let report = json(&["--json", "-n", "100", "--loss", "3", "--delay", "3", "--seed", "77"]);
        (report["wire"].clone(), report["simulated_seconds"].clone())
    };
    assert_eq!(run(), run());
}

#[test]
fn firmware_that_requests_no_pages_is_supported() {
    let report = json(&["--json", "-n", "10", "--no-firmware-pages"]);
    assert_eq!((&report["ok"], &report["teardown"][0]["pages_given"]), (&Value::Bool(true), &Value::from(0)));
}

#[test]
fn quiet_prints_nothing() {
    assert_eq!(succeed(&["--quiet", "-n", "10"]), "");
}

#[test]
fn one_device_is_looped_back_through_its_own_lid() {
    let report = json(&["--json", "-n", "40", "-s", "5000", "--iterations", "2", "--device", "simulated"]);
    assert_eq!((&report["ok"], report["devices"].as_array().unwrap().len()), (&Value::Bool(true), 1));
    let kinds: Vec<_> = report["transfers"].as_array().unwrap().iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(kinds, KINDS);
    assert_eq!((&report["refused"]["status"], &report["refused"]["recovered"]), (&"RemAccessErr".into(), &true.into()));
    let end = &report["teardown"][0];
    assert_eq!((end["findings"].as_array().unwrap().len(), &end["pages_given"]), (0, &end["pages_back"]));
    assert!(succeed(&["-n", "5", "--device", "simulated"]).contains("both sides, looped back through LID 1"));
    // Two devices are the default.
    let two = json(&["--json", "-n", "5", "--device", "simulated", "--device", "simulated"]);
    assert_eq!(two["devices"].as_array().unwrap().len(), 2);
}

#[test]
fn an_unavailable_device_is_an_error_with_its_name() {
    for args in [&["--device", "9f:1f.7"][..], &["info", "--device", "9f:1f.7"]] {
        let output = bareverbs(args);
        assert_eq!(output.status.code(), Some(1));
        let err = text(&output.stderr);
        assert_eq!(err.matches("0000:9f:1f.7").count(), 1, "{err}");
        assert!(err.contains("\n  remedy: bareverbs devices"), "{err}");
    }
    for (args, reason) in [
        (&["--device", "mlx5_0"][..], "PCI address"),
        (&["--device", "9f:1f.7", "--loss", "1"], "--loss: only simulated wires"),
        (&["--device", "9f:1f.7", "--device", "simulated"], "no wire to a card"),
        (&["info", "--device", "9f:1f.7", "--trace"], "only simulated devices report"),
    ] {
        let output = bareverbs(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
}

#[test]
fn the_trace_names_commands_requests_completions_and_packets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.txt");
    succeed(&["-q", "-n", "2", "--trace-file", file.to_str().unwrap()]);
    let trace = std::fs::read_to_string(&file).unwrap();
    for part in [
        " a command   slot=",
        " ENABLE_HCA OK",
        " INIT_HCA OK",
        " CREATE_QP OK in: ",
        "qpc.cqn_snd=",
        " a doorbell  send uar=",
        " send-wqe  qpn=",
        "opcode=0x25(UMR)",
        "mkey_mask=",
        "RDMA_READ | ctrl",
        " recv-wqe  qpn=",
        " cqe       cqn=",
        "REMOTE_ACCESS_ERR",
        " eqe       eqn=",
        " interrupt vector=",
        " b received  LRH ",
        "BTH OpCode=RC ",
        "AETH Syndrome=ACK",
        " TEARDOWN_HCA OK",
        " DISABLE_HCA OK",
    ] {
        assert!(trace.contains(part), "no {part:?} in the trace");
    }
    // Each line has time, device and kind, and the time of each device increases.
    for device in ["a", "b"] {
        let times = trace.lines().filter_map(|line| {
            let (time, rest) = line.split_once(' ').unwrap();
            rest.starts_with(&format!("{device} ")).then(|| time.parse::<f64>().unwrap())
        });
        assert!(times.is_sorted());
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_a_mistake_of_the_caller() {
    let output = bareverbs(&["--trace-file", "/nonexistent/trace", "-n", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/nonexistent/trace: No such file"), "{}", text(&output.stderr));
}

#[test]
fn info_is_laid_out_like_ibv_devinfo() {
    let got = succeed(&["info"]);
    for line in
        ["hca_id:\t", "\tfw_ver:", "\tnode_guid:", "\tvendor_id:                      0x02c9", "\tmax_qp:", "\t\tport:\t1"]
    {
        assert!(got.contains(line), "no {line:?} in\n{got}");
    }
    for line in [
        "PORT_ACTIVE (4)",
        "phys_state:             LINK_UP (5)",
        "\t\tqp:                     32 of ",
        "4096 (5)",
        "link_layer:             InfiniBand",
        "GID[  0]:               fe80:0000:0000:0000:",
    ] {
        assert!(got.contains(line), "no {line:?} in\n{got}");
    }
    let info = json(&["info", "--json"]);
    assert_eq!((&info["atomic_cap"], &info["ports"][0]["port_lid"]), (&Value::Bool(true), &Value::from(1)));
    assert_eq!(info["ports"][0]["gids"].as_array().unwrap().len(), 1);
    assert_eq!((&info["ports"][0]["phys_state"], &info["used"]["qp"]), (&Value::from("LINK_UP"), &Value::from(32)));
    assert!(info["used"]["firmware_pages"].as_u64().unwrap() > 50, "{info}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_job_cleanly() {
    let child = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
        .args(["--json", "-n", "10000000"])
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
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["ok"], &report["interrupted"]), (&Value::Bool(false), &Value::Bool(true)));
    assert!(report["transfers"][0]["messages"].as_u64().unwrap() > 0);
    // The devices were torn down.
    assert_eq!(report["teardown"].as_array().unwrap().len(), 2);
}

/// Runs with a standard output on a full file system.
fn into_full(args: &[&str]) -> (Option<i32>, String) {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
    let output = command.args(args).stdin(Stdio::null()).stdout(full).output().unwrap();
    (output.status.code(), text(&output.stderr))
}

#[test]
fn output_that_is_lost_is_a_failure() {
    const PD: &str = "08000000000000000000000000000000";
    let tree = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(tree.path().join("sys/bus/pci/devices")).unwrap();
    let root = tree.path().to_str().unwrap();
    for args in [
        &["-n", "5"][..],
        &["-n", "5", "--json"],
        &["info"],
        &["info", "--json"],
        &["devices", "--root", root],
        &["devices", "--json", "--root", root],
        &["pingpong", "-n", "5"],
        &["pingpong", "-n", "5", "--json"],
        &["perf", "-n", "5"],
        &["command", "decode", PD],
        &["command", "decode", "--json", PD],
    ] {
        let (status, err) = into_full(args);
        assert_eq!(status, Some(1), "{args:?}: {err}");
        assert!(err.contains("bareverbs: standard output: No space left on device"), "{args:?}: {err}");
    }
    assert_eq!(into_full(&["--quiet", "-n", "5"]), (Some(0), String::new()));
}

#[test]
fn a_closed_pipe_is_no_failure() {
    for args in [&["-n", "5"][..], &["info"], &["pingpong", "-n", "5"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
        let output = command.args(args).stdin(Stdio::null()).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{args:?}");
    }
}

#[test]
fn a_lost_trace_is_an_error_after_the_report() {
    for (args, found) in
        [(&["-n", "5"][..], "torn down after"), (&["info"], "PORT_ACTIVE"), (&["pingpong", "-n", "5"], "5 iters in")]
    {
        let output = bareverbs(&[args, &["--trace-file", "/dev/full"]].concat());
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(out.contains(found), "{args:?}: {out}");
        assert_eq!((output.status.code(), err.lines().count()), (Some(1), 1), "{err}");
        assert!(err.starts_with("bareverbs: the trace: No space left on device"), "{err}");
    }
    // The table of the self-test ends with a word. The reason is on standard error only.
    let output = bareverbs(&["-n", "5", "--trace-file", "/dev/full"]);
    assert!(text(&output.stdout).ends_with("\nFAILED\n"), "{}", text(&output.stdout));
}

/// bash executes the completion script.
#[test]
fn a_shell_completes_subcommands_and_options() {
    let script = succeed(&["completions", "bash"]);
    let ask = |words: &str| {
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _bareverbs bareverbs \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"\necho ${{COMPREPLY[@]}}"
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
        text(&output.stdout).trim().to_owned()
    };
    assert_eq!(ask("bareverbs ping"), "pingpong");
    assert_eq!(ask("bareverbs sim serve --guest"), "--guest-memory");
    assert_eq!(bareverbs(&["completions", "command.com"]).status.code(), Some(2));
}

#[test]
fn the_manual_has_a_page_for_each_subcommand() {
    assert!(succeed(&["man"]).contains("\n.SH SYNOPSIS\n"));
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(succeed(&["man", "--into", folder.path().to_str().unwrap()]), "");
    let page = std::fs::read_to_string(folder.path().join("bareverbs-sim-serve.1")).unwrap();
    assert!(page.contains("guest\\-memory"), "{page}");
    let missing = bareverbs(&["man", "--into", "/no/such/folder"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("/no/such/folder: "));
}
