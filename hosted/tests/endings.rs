//! How the command ends: with closed or full descriptors, with failures before the report, and after Ctrl-C.

#![expect(clippy::unwrap_used, reason = "a test that cannot run its program has failed")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Maximum wait for the end of a process: far longer than on a busy machine, far shorter than the driver's timeouts.
const LIMIT: Duration = Duration::from_secs(60);

/// Address of a PCI function that no machine has.
const NO_CARD: &str = "ffff:ff:1f.7";

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
    command.args(args).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// Returns the write end of a pipe whose read end is closed.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Command lines that write to standard error, and their exit status.
const SPEAKERS: &[(&[&str], i32)] = &[
    (&["--device", NO_CARD], 1),
    (&["--device", NO_CARD, "--loss", "1"], 2),
    (&["info", "--device", NO_CARD], 1),
    (&["perf", "--device", NO_CARD], 1),
    (&["perf", "--listen"], 2),
    (&["pingpong", "-d", NO_CARD], 1),
    (&["pingpong", "--address", "192.0.2.1"], 2),
    (&["devices", NO_CARD], 1),
    (&["bind", NO_CARD], 1),
    (&["sim", "serve", "--socket", "/no/such/folder/a"], 2),
    (&["sim", "serve", "--socket", "a", "--link", "a"], 2),
    (&["sim", "serve", "--socket", "a", "--link", "b", "--managed"], 2),
    (&["cqe", "decode", "0g"], 2),
    (&["command", "decode", "--output-of", "NO_SUCH", "00"], 2),
    (&["--no-such-option"], 2),
    (&["--trace", "-n", "5", "-q"], 0),
    (&["info", "--trace"], 0),
    (&["pingpong", "-n", "5", "--trace"], 0),
];

#[test]
fn a_closed_standard_error_changes_no_exit_status() {
    for (args, status) in SPEAKERS {
        let output = command(args).stderr(closed()).output().unwrap();
        assert_eq!(output.status.code(), Some(*status), "{args:?}: {}", output.status);
    }
}

#[test]
fn a_full_standard_error_loses_a_reason_and_fails_a_trace() {
    for (args, status) in SPEAKERS {
        // A lost reason belongs to a failure. A lost trace is a failure.
        let status = if args.contains(&"--trace") { 1 } else { *status };
        let output = command(args).stderr(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {}", output.status);
    }
}

#[test]
fn closed_descriptors_are_survived() {
    for redirection in [">&-", "2>&-", ">&- 2>&-"] {
        let script = format!("\"$0\" -n 5 --trace {redirection}");
        let status = Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_bareverbs")]).output().unwrap().status;
        assert_eq!(status.code(), Some(0), "{redirection}: {status}");
    }
}

/// As in `bareverbs --trace 2>&1 | head -1`, which closes the pipe after one line.
#[test]
fn a_trace_whose_reader_goes_ends_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut child = command(&["--trace", "-n", "300"]).stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
    let mut line = String::new();
    BufReader::with_capacity(64, reader).read_line(&mut line).unwrap();
    assert!(line.contains(" command   slot="), "{line}");
    assert_eq!(end(&mut child).code(), Some(0));
}

#[test]
fn help_that_cannot_be_written_is_a_failure_unless_the_reader_has_closed() {
    for args in [&["--help"][..], &["--version"], &["perf", "--help"], &["completions", "bash"], &["man"]] {
        let output = command(args).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(text(&output.stderr).starts_with("bareverbs: standard output: No space left on device"), "{args:?}");
        let output = command(args).stdout(closed()).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{args:?}");
    }
}

/// Standard output is one JSON document, and standard error has the reason of its failure.
fn failed(args: &[&str], status: i32) -> Value {
    let Output { status: ended, stdout, stderr } = command(&[args, &["--json"]].concat()).output().unwrap();
    let (out, err) = (text(&stdout), text(&stderr));
    assert_eq!(ended.code(), Some(status), "{args:?}: {out}{err}");
    let document: Value = serde_json::from_str(&out).unwrap();
    let is = |key, value| document.get(key) == Some(&Value::Bool(value));
    assert!(is("ok", false) && is("interrupted", false), "{args:?}: {document}");
    let failure = document.get("failure").and_then(Value::as_str).unwrap();
    assert_eq!(err, format!("bareverbs: {failure}\n"), "{args:?}");
    document
}

#[test]
fn every_failure_after_the_command_line_is_a_json_document() {
    let jobs: [&[&'static str]; 4] = [&[], &["info"], &["perf"], &["pingpong"]];
    for job in jobs {
        let with = |more: &[&'static str]| [job, more].concat();
        // A device that cannot be opened.
        let document = failed(&with(&["--device", NO_CARD]), 1);
        assert!(document["failure"].as_str().unwrap().contains(NO_CARD), "{document}");
        // An option of simulated devices.
        let document = failed(&with(&["--device", NO_CARD, "--fault", "stick 1 0x102"]), 2);
        assert!(document["failure"].as_str().unwrap().contains("--fault"), "{document}");
        failed(&with(&["--fault", "stick 9 0x102"]), 2);
        // A device that completes a command with an error.
        let document = failed(&with(&["--fault", "refuse 1 0x102 2 0xabcd"]), 1);
        let failure = document["failure"].as_str().unwrap();
        assert!(failure.contains("InitHca") && failure.contains("0xabcd"), "{failure}");
        // A device that answers a command wrongly: QUERY_PAGES, with two billion pages wanted.
        let document = failed(&with(&["--fault", "corrupt 1 0x107 12 0x7fff0000"]), 1);
        let failure = document["failure"].as_str().unwrap();
        assert!(failure.contains("wants 2147"), "{failure}");
    }
    for job in [&[][..], &["info"], &["pingpong"]] {
        // A file that cannot be created, and one that cannot be written.
        failed(&[job, &["--trace-file", "/no/such/folder/trace"]].concat(), 2);
        let document = failed(&[job, &["--trace-file", "/dev/full"]].concat(), 1);
        assert!(document["failure"].as_str().unwrap().contains("the trace: "), "{document}");
        failed(&[job, &["--device", NO_CARD, "--trace"]].concat(), 2);
    }
    failed(&["--device", NO_CARD, "--loss", "1"], 2);
    failed(&["pingpong", "--address", "192.0.2.1"], 2);
    failed(&["pingpong", "host"], 2);
    failed(&["perf", "--listen"], 2);
    failed(&["perf", "--svg", "/no/such/folder/plot.svg"], 2);
    for job in ["devices", "bind", "unbind"] {
        let document = failed(&[job, NO_CARD], 1);
        assert!(document["failure"].as_str().unwrap().contains(NO_CARD), "{document}");
    }
}

#[test]
fn a_json_document_of_success_says_so() {
    for args in [&["-n", "5"][..], &["info"], &["pingpong", "-n", "5"], &["perf", "-n", "5", "-T", "write-lat", "-s", "8"]] {
        let output = command(&[args, &["--json"]].concat()).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&document["ok"], &document["interrupted"]), (&Value::Bool(true), &Value::Bool(false)), "{args:?}");
        assert!(document.get("failure").is_none(), "{document}");
    }
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Returns the processor time of a process in clock ticks of 10 ms.
fn worked(child: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(11).unwrap().parse().unwrap()
}

/// Waits until a process has used processor time, because it may start late on a busy machine.
fn wait_until_it_works(child: &mut Child) {
    let start = Instant::now();
    let before = worked(child);
    while worked(child) < before + 30 {
        assert!(child.try_wait().unwrap().is_none(), "it has ended before it was stopped");
        assert!(start.elapsed() < LIMIT, "it does not work");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the end of a process, and kills it after a timeout.
fn end(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap()
}

fn start(args: &[&str]) -> Child {
    command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// `nohup` has SIGHUP ignored. Scripts have SIGINT ignored for a job in the background, and end it by one.
#[test]
fn the_end_of_the_terminal_ends_no_job_under_nohup() {
    for (ignored, sent, status) in [("HUP", "-HUP", 0), ("HUP", "-INT", 130), ("INT", "-INT", 130)] {
        let script = format!("trap '' {ignored}; exec \"$0\" perf -D 6 -T write-lat -s 8");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_bareverbs")]);
        let mut child = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // It has long set its handlers then, and has not ended.
        while worked(&child) < 10 {
            assert!(child.try_wait().unwrap().is_none(), "it has ended before it was stopped");
            std::thread::sleep(Duration::from_millis(10));
        }
        signal(&child, sent);
        assert_eq!(end(&mut child).code(), Some(status), "{sent} with {ignored} ignored");
    }
}

/// What is said of a device that was not waited for.
const BUSY: &str = ", and was not waited for any longer\n";

/// INIT_HCA does not complete; in one job, that of the second of two devices.
#[test]
fn ctrl_c_ends_the_wait_for_a_silent_device() {
    for (job, fault) in [
        (&["--json"][..], "stick 1 0x102"),
        (&["info", "--json"], "stick 1 0x102"),
        (&["perf", "--json"], "stick 1 0x102"),
        (&["pingpong", "--json"], "stick 2 0x102"),
    ] {
        let mut child = start(&[job, &["--fault", fault]].concat());
        wait_until_it_works(&mut child);
        signal(&child, "-INT");
        let status = end(&mut child);
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!(status.code(), Some(130), "{job:?}: {err}");
        // Nothing is the device's fault: nobody knows whether it is slow or silent.
        assert!(
            err.starts_with("bareverbs: interrupted: ") && err.ends_with(BUSY) && err.lines().count() == 1,
            "{job:?}: {err}"
        );
        assert!(err.contains("busy with InitHca"), "{job:?}: {err}");
        let document: Value = serde_json::from_reader(child.stdout.take().unwrap()).unwrap();
        assert_eq!((&document["ok"], &document["interrupted"]), (&Value::Bool(false), &Value::Bool(true)), "{job:?}");
        assert!(document.get("failure").is_none(), "{document}");
    }
}

/// TEARDOWN_HCA does not complete: the wait ends although Ctrl-C came before the teardown.
#[test]
fn ctrl_c_ends_the_wait_for_a_device_that_is_silent_in_its_teardown() {
    let mut child = start(&["info", "--fault", "stick 1 0x103"]);
    wait_until_it_works(&mut child);
    signal(&child, "-TERM");
    let status = end(&mut child);
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(status.code(), Some(130), "{err}");
    assert!(err.ends_with(BUSY) && err.contains("busy with TEARDOWN_HCA") && !err.contains("lost"), "{err}");
}

#[test]
fn a_second_ctrl_c_kills_at_once() {
    let mut child = start(&["info", "--fault", "stick 1 0x102"]);
    wait_until_it_works(&mut child);
    signal(&child, "-STOP");
    // Both signals are pending when the process continues, which receives them one after the other.
    signal(&child, "-INT");
    signal(&child, "-TERM");
    signal(&child, "-CONT");
    assert_eq!(end(&mut child).signal(), Some(9));
}
