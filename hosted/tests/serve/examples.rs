//! The service of systemd and the virtual machine of libvirt in `examples/`, which users copy.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs_cli::cli::{Cli, Command as Subcommand};
use bareverbs_cli::serve::args::SimCommand;
use clap::Parser as _;
use serde_json::Value;

const PROGRAM: &str = "/usr/local/bin/bareverbs";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
}

fn service() -> String {
    fs::read_to_string(example("systemd/bareverbs-serve.service")).unwrap()
}

/// Returns the words of the command line of the service, with its folder in the place of `/run` (`%t`).
fn command_line(run: &str) -> Vec<String> {
    let text = service();
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    line.split(' ').map(|word| word.replace("%t", run)).collect()
}

/// Returns the sockets of the service.
fn sockets() -> Vec<PathBuf> {
    match Cli::try_parse_from(command_line("/run")).unwrap().command {
        Some(Subcommand::Sim(SimCommand::Serve(args))) => args.sockets.clone(),
        _ => vec![],
    }
}

#[test]
fn the_service_serves_what_it_says() {
    let run = tempfile::tempdir().unwrap();
    fs::create_dir(run.path().join("bareverbs")).unwrap();
    let [program, arguments @ ..] = &*command_line(run.path().to_str().unwrap()) else { panic!("no command line") };
    assert_eq!(program, PROGRAM);
    let mut server = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    for name in ["cx0", "cx1"] {
        let socket = run.path().join("bareverbs").join(name);
        while !socket.exists() && Instant::now() < deadline && server.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(20));
        }
        let metadata = fs::metadata(&socket).unwrap();
        assert!(metadata.file_type().is_socket() && metadata.permissions().mode() & 0o777 == 0o660, "{metadata:?}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

/// The arithmetic of SECURITY.md and the page on serving: twice the limit and 64 MiB, and the memory of each guest.
#[test]
fn the_limit_of_the_service_is_that_of_the_book() {
    let line = command_line("/run");
    let gibibytes = |option: &str| -> u32 {
        let at = line.iter().position(|word| word == option).unwrap();
        line[at + 1].strip_suffix('G').unwrap().parse().unwrap()
    };
    let devices = u32::try_from(sockets().len()).unwrap();
    let megabytes = 1024 * (2 * gibibytes("--memory-limit") + devices * gibibytes("--guest-memory")) + 64;
    assert!(service().contains(&format!("\nMemoryMax={megabytes}M\n")), "{megabytes}");
}

#[test]
fn systemd_accepts_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bareverbs-serve.service");
    fs::write(&file, service().replace(PROGRAM, "/bin/true")).unwrap();
    // A machine without systemd has nothing to ask.
    let Ok(verified) = Command::new("systemd-analyze").arg("verify").arg(&file).output() else { return };
    let said = String::from_utf8_lossy(&verified.stderr);
    let about_it: Vec<_> = said.lines().filter(|line| line.contains("bareverbs")).collect();
    assert!(about_it.is_empty(), "{said}");
}

#[test]
fn the_machine_of_libvirt_takes_a_socket_of_the_service() {
    let text = fs::read_to_string(example("libvirt/rdma.xml")).unwrap();
    let device = text.split('\'').find(|part| part.starts_with('{')).unwrap();
    let device: Value = serde_json::from_str(device).unwrap();
    assert_eq!(device["driver"], "vfio-user-pci");
    let path = Path::new(device["socket"]["path"].as_str().unwrap());
    assert!(sockets().iter().any(|socket| socket == path), "{device}");
    // The port that it is behind, and memory that the server can map.
    let bus = device["bus"].as_str().unwrap();
    assert!(text.contains(&format!("pcie-root-port,id={bus},")), "{bus}");
    assert!(text.contains(r#"<source type="memfd"/>"#) && text.contains(r#"<access mode="shared"/>"#));
}

#[test]
fn libvirt_accepts_the_machine() {
    // A machine without libvirt has no schema.
    let Ok(checked) = Command::new("virt-xml-validate").arg(example("libvirt/rdma.xml")).arg("domain").output() else { return };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
