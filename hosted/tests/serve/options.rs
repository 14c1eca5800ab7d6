//! What the options make of a device, and mistakes in them.

use std::path::Path;
use std::process::Command;

use vfio_bindings::bindings::vfio::VFIO_PCI_MSIX_IRQ_INDEX;

use crate::server::{BAR0, CONFIG, ENABLE_HCA, Server, bring_up, command, query, read32};

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
        // Memory space is off: nobody answers.
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
    // QUERY_HCA_CAP, the general page as it is at most: log_max_qp is bits 4..0 of its dword 16.
    let page = query(&mut client, &memory, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[19] & 0x1f, 10);
    // The fault is for the other device, and strikes once; a client that comes and goes does not take it away.
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
    assert!(refused(&["--socket", "x", "--limit", "queues=2"]).contains("no limit 'queues'; there are qps, "));
    assert!(refused(&["--socket", "x", "--speed", "warp"]).contains("[possible values: sdr, "));
    assert!(refused(&["--socket", "x", "--fault", "dance 1"]).contains("not a command; there are: link "));
    assert!(refused(&["--socket", text(&twice), "--fault", "stick 2 0x800"]).contains("a fault for LID 2: no device has it"));
    assert!(!twice.exists());
}
