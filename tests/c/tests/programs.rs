//! C programs with the static library on simulated devices, compiled by `cc` and run.
#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot run its program has failed")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What every C compiler is asked to refuse.
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The project's folder.
fn project() -> PathBuf {
    package().join("../..")
}

/// The static library, which was built with this test: the newest, if features or profiles have left others.
fn library() -> PathBuf {
    let test = env::current_exe().expect("a test is a file");
    let folder = test.parent().expect("a file is in a folder");
    let mut archives: Vec<_> = folder
        .read_dir()
        .expect("the folder of the test")
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libbareverbs_c_sim") && name.ends_with(".a")
        })
        .map(|entry| (entry.metadata().and_then(|data| data.modified()).expect("its time"), entry.path()))
        .collect();
    archives.sort();
    archives.pop().expect("cargo builds the archive beside the test").1
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
    output
}

fn include(command: &mut Command) -> &mut Command {
    command.arg("-I").arg(project().join("backends/c/include")).arg("-I").arg(package().join("include"))
}

/// Compiles a program and links it, with these options too.
fn build(source: &Path, options: &[&str]) -> PathBuf {
    let name = source.file_stem().expect("a source has a name").to_string_lossy();
    let suffix = if options.is_empty() { "" } else { "-sanitized" };
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{suffix}"));
    let mut cc = Command::new("cc");
    include(&mut cc).arg("-std=c11").args(STRICT).args(options).arg("-o").arg(&program).arg(source).arg(library());
    run(cc.args(["-pthread", "-ldl", "-lm"]));
    program
}

/// What makes the compiler check each access of a program, and each operation that C does not define. The library itself is not
/// compiled so, but its allocations are seen.
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Returns whether the compiler has what [`SANITIZERS`] need at run time.
fn has_sanitizers() -> bool {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sanitizers");
    let mut cc = Command::new("cc");
    cc.args(SANITIZERS).args(["-x", "c", "/dev/null", "-shared", "-fPIC", "-o"]).arg(program);
    cc.output().is_ok_and(|output| output.status.success())
}

/// Builds and runs a program of `programs/`, also with the compiler's sanitizers and under valgrind, where these are installed.
fn passes(name: &str) {
    let source = package().join("programs").join(name).with_extension("c");
    let program = build(&source, &[]);
    let expected = format!("{name}: ok\n");
    assert_eq!(run(&mut Command::new(&program)).stdout, expected.as_bytes());
    if has_sanitizers() {
        // What is made stays until the process ends: that is no leak.
        let output = run(Command::new(build(&source, &SANITIZERS)).env("ASAN_OPTIONS", "detect_leaks=0"));
        assert_eq!(output.stdout, expected.as_bytes(), "with sanitizers");
    }
    if Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        let output = run(Command::new("valgrind").args(["--quiet", "--error-exitcode=9"]).arg(&program));
        assert_eq!(output.stdout, expected.as_bytes(), "under valgrind");
    }
}

#[test]
fn transfers() {
    passes("transfers");
}

#[test]
fn errors() {
    passes("errors");
}

#[test]
fn losses() {
    passes("losses");
}

#[test]
fn threads() {
    passes("threads");
}

#[test]
fn ethernet() {
    passes("ethernet");
}

#[test]
fn shared() {
    passes("shared");
}

#[test]
fn datagrams() {
    passes("datagrams");
}

#[test]
fn ends() {
    passes("ends");
}

#[test]
fn xrc() {
    passes("xrc");
}

/// The program of the book's page.
#[test]
fn the_example_of_the_book_runs() {
    let program = build(&project().join("examples/c/write_to_peer.c"), &[]);
    assert_eq!(run(&mut Command::new(program)).stdout, b"LID 2 has: hello from C\n");
}

/// The header alone, in each language that includes it.
#[test]
fn the_header_compiles_alone() {
    let header = project().join("backends/c/include/bareverbs.h");
    for standard in ["c99", "c11", "c17"] {
        run(Command::new("cc").args(["-x", "c", "-fsyntax-only"]).arg(format!("-std={standard}")).args(STRICT).arg(&header));
    }
    for standard in ["c++11", "c++17"] {
        let mut cc = Command::new("c++");
        include(&mut cc).arg("-fsyntax-only").arg(format!("-std={standard}")).args(STRICT);
        run(cc.arg(package().join("programs/header.cpp")));
    }
}
