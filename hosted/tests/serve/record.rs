//! Recordings.

use std::path::Path;
use std::process::Command;

use crate::server::{Server, bring_up, command};

#[test]
fn what_a_client_sends_is_recorded_byte_for_byte() {
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("recording");
    let mut server = Server::start(&["a"], &["--record", file.to_str().unwrap(), "--vectors", "4"]);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    let mut nop = [0; 16];
    nop[0..2].copy_from_slice(&0x80d_u16.to_be_bytes());
    assert_eq!(command(&mut client, &memory, 0x1000, nop), Some(0));
    drop(client);
    assert!(server.interrupt().0.success());

    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("device lid1 lid=0x1 ") && lines[1].contains(" vectors=0x4 "), "{}", lines[1]);
    assert_eq!(lines[2..], ["command lid1 0x0 080d.14. .16."]);
    let [identity, command] = bareverbs_hosted::record::parse(&text).unwrap().try_into().unwrap();
    assert!(matches!(identity.entry, bareverbs_hosted::record::Entry::Device(config) if config.vectors == 4));
    assert_eq!((command.number, command.device.as_str()), (3, "lid1"));
}

#[test]
fn a_recording_that_cannot_be_made_is_told_before_anything_is_served() {
    let output = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
        .args(["sim", "serve", "--socket", "never-made", "--record", "/no/such/folder/recording"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("recording: "));
    assert!(!Path::new("never-made").exists());
}
