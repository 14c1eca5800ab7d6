//! Every example runs to its end, prints its line, and is short.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::{Access, Completion, SendFlags, WcStatus};
use bareverbs_examples::{connect, devices_on};
use bareverbs_sim::wire::{Probability, WireFaults};

/// How long a program may run: each takes less than a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

/// What each example prints, from the start of its line.
const LINES: [(&str, &str); 6] = [
    ("async_completions", "10 messages received, each awaited"),
    ("hello", "hello, peer"),
    ("memory_window", "written through the window with keys "),
    ("send_and_receive", "2 messages received: [\"from a region\", \"inline\"]"),
    ("two_cores", "1000 writes posted by one thread"),
    ("write_to_peer", "11 bytes written to the peer: hello, peer"),
];

/// The text of each example, by its name.
fn examples() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap())).collect()
}

/// Runs a program to its end; one that is still running after the limit is killed, which is a status of its own.
fn run(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| {
        panic!("{command:?}: {error}; `cargo test -p bareverbs-examples` builds the examples too");
    });
    let start = Instant::now();
    // What they print is shorter than the buffer of a pipe.
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn the_readme_shows_the_program_that_runs() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let (_, shown) = readme.split_once("```rust\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    // Of another indentation there.
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let (shown, hello) = (lines(shown), lines(&examples()["hello"]));
    assert!(hello.windows(shown.len()).any(|part| part == shown), "README.md shows another program than hello.rs");
}

#[test]
fn each_runs() {
    assert!(examples().keys().eq(LINES.map(|(name, _)| name)), "an example is not run");
    // Cargo gives tests no path of an example: it puts them beside the folder of the tests.
    let folder = env::current_exe().unwrap().parent().unwrap().with_file_name("examples");
    for (name, start) in LINES {
        let program = folder.join(name).with_extension(env::consts::EXE_EXTENSION);
        let output = run(&mut Command::new(program));
        assert!(output.status.success(), "{name}: {output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.starts_with(start) && printed.lines().count() == 1, "{name}: {printed}");
    }
}

#[test]
fn none_has_more_than_60_lines() {
    for (name, text) in examples() {
        let lines = text.lines().count();
        assert!(lines <= 60, "{name}: {lines} lines");
    }
}

/// The cost of a lost frame is counted in polls: it is the same on each machine.
#[test]
fn a_wire_that_loses_frames_costs_few_polls() {
    const WRITES: u64 = 100;
    const MAX_POLLS: u64 = 1_000_000;
    let loss = Probability::per_mille(200);
    let [mut a, mut b] = devices_on(WireFaults { loss, ..WireFaults::NONE }).unwrap();
    let [end_a, end_b] = connect(&mut a, &mut b).unwrap();
    let target = b.verbs.reg_mr(end_b.pd, b.buffer(8), Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let mut polls = 0;
    for number in 0..WRITES {
        let bytes = number.to_le_bytes();
        a.verbs.send_batch(end_a.qp).unwrap().write_inline(number, SendFlags::SIGNALED, target.remote(0), &bytes).unwrap();
        let mut done = [Completion::EMPTY];
        while a.verbs.poll_cq(end_a.cq, &mut done).unwrap() == 0 {
            polls += 1;
            assert!(polls < MAX_POLLS, "{number} of {WRITES} writes");
        }
        assert_eq!(done.map(|done| (done.wr_id, done.status)), [(number, WcStatus::Success)]);
    }
}

/// A thread that panics ends its program while another waits for it.
#[test]
fn a_thread_that_fails_ends_the_program() {
    let output =
        run(Command::new(env::current_exe().unwrap()).args(["--ignored", "--exact", "fails_in_a_thread", "--nocapture"]));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(101) && printed.contains("no write"), "{}: {printed}", output.status);
}

#[test]
#[ignore = "it fails: the program of the test above"]
fn fails_in_a_thread() {
    let written = bareverbs_examples::devices().unwrap().is_empty();
    thread::scope(|scope| {
        scope.spawn(move || assert!(written, "no write"));
        // Waits for what only the other thread would do.
        loop {
            thread::park();
        }
    });
}
