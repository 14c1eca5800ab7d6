//! Effects of options, and mistakes in them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use vfio_bindings::bindings::vfio::VFIO_PCI_MSIX_IRQ_INDEX;

use crate::server::{BAR0, CONFIG, ENABLE_HCA, LIMIT, Server, bring_up, command, query, read32, wait};

#[test]
fn identity_and_sizes() {
    let server = Server::start(&["a", "b"], &["--device-id", "0x101b", "--vectors", "8"]);
    for device in ["a", "b"] {
        let mut client = server.connect(device);
        assert_eq!(read32(&mut client, CONFIG, 0), 0x101b_15b3);
        client.region_write(CONFIG, 0x10, &u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(read32(&mut client, CONFIG, 0x10), 0xfe00_000c, "32 MB, 64-bit, prefetchable");
        assert_eq!(client.region(BAR0).unwrap().size, 32 << 20);
        assert_eq!(client.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX).unwrap().count, 8);
        // Memory space is disabled, so reads return ones.
        assert_eq!(read32(&mut client, BAR0, 0), u32::MAX);
    }
}

#[test]
fn limits_and_faults_hold_from_the_start() {
    let options = ["--limit", "qps=1024", "--no-firmware-pages", "--fault", "refuse 2 0x104 0xf"];
    let server = Server::start(&["a", "b"], &options);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    // QUERY_HCA_CAP, maximum values of the general page: log_max_qp is bits 4..0 of dword 16.
    let page = query(&mut client, &memory, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[19] & 0x1f, 10);
    // The fault is of the other device, and applies once. It survives the disconnection of a client.
    drop(server.connect("b"));
    let mut client = server.connect("b");
    client.reset().unwrap();
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA).unwrap() >> 24, 0xf);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
}

fn refused(arguments: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_bareverbs")).args(["sim", "serve"]).args(arguments).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    String::from_utf8(done.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn mistakes_are_named() {
    let server = Server::start(&["a"], &[]);
    let taken = server.path("a");
    assert!(refused(&["--socket", text(&taken)]).contains("another server listens there"));
    assert!(taken.exists(), "the other server's socket stays");
    let missing = server.path("no/such");
    assert!(refused(&["--socket", text(&missing)]).contains("no such folder"));
    let twice = server.path("c");
    assert!(refused(&["--socket", text(&twice), "--socket", text(&twice)]).contains("given twice"));
    assert!(!twice.exists());
    let file = server.path("file");
    std::fs::write(&file, "x").unwrap();
    assert!(refused(&["--socket", text(&file)]).contains("is not a socket"));
    assert!(refused(&[]).contains("--socket"));
    assert!(refused(&["--socket", "x", "--no-such-option"]).contains("--no-such-option"));
    let long = server.path(&"long".repeat(30));
    assert!(refused(&["--socket", text(&long)]).contains("longer than the 107 bytes"));
    assert!(refused(&["--socket", text(&twice), "--link", text(&long)]).contains("longer than the 107 bytes"));
    assert!(refused(&["--socket", "x", "--limit", "qps=1000"]).contains("not a power of two: 512 or 1024?"));
    let memory = refused(&["--socket", "x", "--socket", "y", "--memory-limit", "48M"]);
    assert!(memory.contains("a memory limit of 64M at least"), "{memory}");
    assert!(refused(&["--socket", "x", "--memory-limit", "1T"]).contains("--memory-limit"));
    assert!(refused(&["--socket", "x", "--limit", "queues=2"]).contains("no limit 'queues'; there are qps, "));
    assert!(refused(&["--socket", "x", "--speed", "warp"]).contains("[possible values: sdr, "));
    let unknown = refused(&["--socket", "x", "--fault", "dance 1"]);
    assert!(unknown.contains("no command 'dance'; there are link, health, ") && unknown.len() < 400, "{unknown}");
    assert!(refused(&["--socket", "x", "--fault", "stick 1"]).contains("as in: stick LID OPCODE"));
    assert!(refused(&["--socket", "x", "--lid", "0"]).contains("not between 1 and 0xbeff"));
    assert!(refused(&["--socket", "x", "--lid", "0xbeff", "--socket", "y"]).contains("would pass 0xbeff"));
    assert!(refused(&["--socket", "x", "--sm-lid", "0xc000"]).contains("not between 0 and 0xbfff"));
    assert!(refused(&["--socket", text(&twice), "--trace-file", text(&missing)]).contains(text(&missing)));
    assert!(refused(&["--socket", text(&twice), "--record", text(&missing)]).contains(text(&missing)));
    assert!(refused(&["--socket", text(&twice), "--link", text(&twice)]).contains("given twice"));
    assert!(refused(&["--socket", text(&twice), &format!("--control={}", text(&twice))]).contains("given twice"));
    assert!(refused(&["--socket", text(&twice), "--join", "stream:unix:x"]).contains("--ethernet"));
    assert!(refused(&["--socket", "x", "--ethernet", "--join", "pipe:x"]).contains("as in: stream:unix:PATH, "));
    let joined = format!("stream:unix:{},server=on", text(&twice));
    assert!(refused(&["--socket", text(&twice), "--ethernet", "--join", &joined]).contains("given twice"));
    // A folder in which no file can be created.
    assert!(refused(&["--socket", text(&twice), "--link", "/proc/self/link"]).contains("/proc/self/link: "));
    assert!(refused(&["--socket", text(&twice), "--loss", "0.00001"]).contains("not a multiple of 0.0001 per cent"));
    assert!(refused(&["--socket", "x", "--socket-mode", "rw"]).contains("--socket-mode"));
    assert!(refused(&["--socket", text(&twice), "--fault", "stick 2 0x800"]).contains("a fault for LID 2: no device has it"));
    assert!(!twice.exists());
}

#[test]
fn each_device_is_printed_with_its_qemu_option() {
    let mut server = Server::start(&["it's"], &["--socket-mode", "606"]);
    let path = server.path("it's");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o606);
    let (_, said) = server.interrupt();
    let start = said.find("-device ").unwrap();
    let option = said[start..].lines().next().unwrap();
    // As a shell parses it.
    let output = Command::new("sh").args(["-c", &format!("printf %s {}", option.trim_start_matches("-device "))]).output();
    let object: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    assert_eq!(object["driver"], "vfio-user-pci");
    assert_eq!(object["socket"]["path"], text(&path));
    assert!(said.contains("serving, Ctrl-C ends"), "{said}");
}

#[test]
fn commands_come_through_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let mut server = Server::start(&["a", "b"], &[&format!("--control={}", text(&path))]);
    let mut client = server.connect("b");
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    wait("control", || UnixStream::connect(&path).is_ok());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut ask = |line: &str| {
        writeln!(&stream, "{line}").unwrap();
        lines.next().unwrap().unwrap()
    };
    let stats: serde_json::Value = serde_json::from_str(&ask("stats 2 json")).unwrap();
    assert_eq!((&stats["commands"], &stats["frames_sent"]), (&1.into(), &0.into()));
    assert!(ask("stats 1").starts_with("commands=0 doorbells=0 "));
    assert!(ask("help").starts_with("link LID up|down, "));
    assert_eq!(ask("stats 7"), "no device has LID 7");
    assert_eq!(ask("refuse 2 0x104 0xf"), "done");
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA).unwrap() >> 24, 0xf);
    assert!(server.interrupt().0.success());
    assert!(!path.exists());
}
