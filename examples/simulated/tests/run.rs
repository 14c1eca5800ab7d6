//! Every example runs to its end, prints its line, and is short.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may run: each takes less than a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

/// What each example prints, from the start of its line.
const LINES: [(&str, &str); 18] = [
    ("async_completions", "10 messages received, each awaited"),
    ("atomics", "counted to 6 from two hosts; host 1 has the lock"),
    ("changing", "first lies in the old buffer, second in the new one"),
    ("connection_management", "connected by 3 messages, "),
    ("datagrams", "who is there? host b"),
    ("ethernet", "192.0.2.2 answered the ping of 192.0.2.1"),
    ("extended_connection", "6 messages through one target, for two queues in turn"),
    ("fast_registration", "\"scattered over three\" lies in three buffers"),
    ("hello", "hello, peer"),
    ("lone_device", "ENABLE_HCA ended after "),
    ("memory_window", "written through the window with keys "),
    ("reconnect", "request 4 is the first after the reset: fourth"),
    ("roce", "192.0.2.1 wrote to 192.0.2.2: hello over UDP"),
    ("send_and_receive", "2 messages received: [\"from a region\", \"inline\"]"),
    ("shared_receives", "6 messages of 2 connections, 8 receives left"),
    ("sizes_at_run_time", "5 queue pairs wrote 20 times each; every byte is there"),
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
    let (shown, program) = (lines(shown), lines(&examples()["write_to_peer"]));
    assert!(program.windows(shown.len()).any(|part| part == shown), "README.md shows another program than write_to_peer.rs");
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
        // One makes its own tables and connections, without the package for tests; one is both ends of a conversation.
        let most = match name.as_str() {
            "sizes_at_run_time" => 110,
            "connection_management" => 150,
            _ => 60,
        };
        assert!(lines <= most, "{name}: {lines} lines");
    }
}
