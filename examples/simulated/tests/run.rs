//! Every example runs to its end, prints its line, and is short.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What each example prints, from the start of its line.
const LINES: [(&str, &str); 5] = [
    ("async_completions", "10 messages received, each awaited"),
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

#[test]
fn each_runs() {
    assert!(examples().keys().eq(LINES.map(|(name, _)| name)), "an example is not run");
    // Cargo gives tests no path of an example: it puts them beside the folder of the tests.
    let folder = env::current_exe().unwrap().parent().unwrap().with_file_name("examples");
    for (name, start) in LINES {
        let program = folder.join(name).with_extension(env::consts::EXE_EXTENSION);
        let output = Command::new(&program).output().unwrap_or_else(|error| {
            panic!("{}: {error}; `cargo test -p bareverbs-examples` builds the examples too", program.display())
        });
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
