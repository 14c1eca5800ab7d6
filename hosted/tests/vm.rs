//! `bareverbs vm` up to the guest: what is wrong is said with a remedy before anything is downloaded. tests/linux/try-command boots
//! guests by it.

#![expect(clippy::unwrap_used, reason = "a test that cannot run its program has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `bareverbs vm` with a home and a search path of its own; returns the exit status and what it said.
fn vm(home: &Path, path: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
    command.arg("vm").args(args).env_clear().env("HOME", home).env("PATH", path).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn mistakes_have_the_status_of_no_command() {
    let home = tempfile::tempdir().unwrap();
    for (args, reason) in [
        (&["--no-such"][..], "unexpected argument '--no-such'"),
        (&["--timeout", "3"], "--run"),
        (&["--timeout", "0", "--run", "true"], "'--timeout <SECONDS>'"),
        (&["--run", " "], "the command is empty"),
        (&["--guests", "2"], "no terminal for two shells"),
        (&["--guests", "3", "--run", "true"], "'--guests <N>'"),
        (&["--name", "../x", "--run", "true"], "no name of a guest"),
        (&["--here", "true", "--run", "true"], "cannot be used with"),
        (&["--here", "true", "--guests", "2"], "cannot be used with"),
        (&["shell"], "<NAME>"),
        (&["--ethernet", "shell", "a"], "unexpected argument 'shell'"),
        (&["--module", "../x"], "no name of a kernel module"),
        (&["--", "--loss", "200"], "options behind --"),
        (&["--run", "true"], "no python3 in PATH"),
    ] {
        let (status, out, error) = vm(home.path(), home.path(), args);
        assert_eq!((status, out.as_str()), (Some(125), ""), "{args:?}: {error}");
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}

#[test]
fn help_is_no_mistake() {
    let home = tempfile::tempdir().unwrap();
    let (status, out, _) = vm(home.path(), home.path(), &["--help"]);
    assert_eq!(status, Some(0));
    assert!(out.contains("--share <DIR[:PATH]>"), "{out}");
}

#[test]
fn the_interpreter_gets_the_scripts_and_all_options() {
    let home = tempfile::tempdir().unwrap();
    // In the place of Python: shows what it was given, and ends with a status of its own.
    let python = home.path().join("python3");
    fs::write(&python, "#!/bin/sh\n[ -f \"$2\" ] && [ -x /bin/sh ] && printf '%s\\n' \"$3\"\nexit 42\n").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let args = ["--run", "a b", "--install", "x,y", "--module", "vfio-pci", "--ethernet", "--kernel", "6.1", "--accel", "tcg"];
    let (status, out, error) = vm(home.path(), home.path(), &args);
    assert_eq!(status, Some(42), "{error}");
    let request: serde_json::Value = serde_json::from_str(&out).unwrap();
    let cache = home.path().join(".cache/bareverbs/vm");
    assert_eq!(request["command"], serde_json::json!(null), "{out}");
    for (key, value) in [
        ("run", serde_json::json!("a b")),
        ("here", serde_json::json!(null)),
        ("name", serde_json::json!(null)),
        ("boot_timeout", serde_json::json!(300)),
        ("timeout", serde_json::json!(null)),
        ("install", serde_json::json!(["x", "y"])),
        ("module", serde_json::json!(["vfio_pci"])),
        ("kernel", serde_json::json!("6.1")),
        ("accel", serde_json::json!("tcg")),
        ("guests", serde_json::json!(1)),
        ("devices", serde_json::json!(2)),
        ("serve", serde_json::json!(["--ethernet"])),
        ("bareverbs", serde_json::json!(env!("CARGO_BIN_EXE_bareverbs"))),
        ("packages", serde_json::json!(cache.join("packages"))),
        ("images", serde_json::json!(cache.join("images"))),
    ] {
        assert_eq!(request[key], value, "{key} of {out}");
    }
}

/// The words behind the name are the command's, whatever they look like.
#[test]
fn another_shell_is_of_a_guest_that_runs() {
    let home = tempfile::tempdir().unwrap();
    let python = home.path().join("python3");
    fs::write(&python, "#!/bin/sh\nprintf '%s\\n' \"$3\"\n").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let (status, out, error) = vm(home.path(), home.path(), &["shell", "a", "./test", "--nocapture", "two words"]);
    assert_eq!(status, Some(0), "{error}");
    let request: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(request, serde_json::json!({"shell": "a", "command": ["./test", "--nocapture", "two words"]}));

    fs::remove_file(&python).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
    command.args(["vm", "shell", "nobody", "true"]).env("HOME", home.path()).env("XDG_RUNTIME_DIR", home.path());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("no guest 'nobody'; bareverbs vm --name NAME starts one"), "{said}");
}
