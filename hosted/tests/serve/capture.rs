//! Captures of the wire of a server.

use std::fs::File;
use std::process::Command;

use crate::server::{ENABLE_HCA, Server, bring_up, command};

/// The types of the blocks of a pcapng file, and of its interfaces the link types.
fn blocks(mut bytes: &[u8]) -> Vec<(u32, u16)> {
    let mut found = Vec::new();
    while let Some([kind, len, word]) =
        bytes.first_chunk::<12>().map(|head| [0, 4, 8].map(|at| head.iter().skip(at).take(4).rev()))
    {
        let [kind, len, word] = [kind, len, word].map(|bytes| bytes.fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte)));
        found.push((kind, word as u16));
        bytes = bytes.get(len as usize..).unwrap();
    }
    assert!(bytes.is_empty(), "whole blocks");
    found
}

#[test]
fn a_capture_describes_each_port_and_is_whole_at_the_end() {
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("wire.pcapng");
    for (options, link_type) in [(&[][..], 197), (&["--ethernet"][..], 1)] {
        let options = [&["--capture", file.to_str().unwrap()], options].concat();
        let mut server = Server::start(&["a", "b"], &options);
        assert!(server.interrupt().0.success());
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(blocks(&bytes)[1..], [(1, link_type), (1, link_type)]);
        for name in [b"\x02\0\x04\0lid1", b"\x02\0\x04\0lid2"] {
            assert!(bytes.windows(name.len()).any(|window| window == name));
        }
    }
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_devices() {
    let mut server = Server::start(&["a"], &["--capture", "/dev/full"]);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    assert_eq!(command(&mut client, &memory, 0x1000, ENABLE_HCA), Some(0));
    drop(client);
    let (status, said) = server.interrupt();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("capture: No space left on device (os error 28); nothing more is captured"), "{said}");
    assert!(said.contains("bareverbs: capture: No space left on device"), "{said}");
}

/// As a capture that Wireshark shows while it runs: `mkfifo`, and `wireshark -k -i` of the pipe.
#[test]
fn a_pipe_whose_reader_goes_away_is_no_failure() {
    let kept = tempfile::tempdir().unwrap();
    let pipe = kept.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = File::options().read(true).write(true).open(&pipe).unwrap();
    let mut server = Server::start(&["a"], &["--capture", pipe.to_str().unwrap()]);
    drop(reader);
    assert!(server.interrupt().0.success());
}

#[test]
fn a_capture_that_cannot_be_created_is_an_error_at_the_start() {
    let output = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
        .args(["sim", "serve", "--socket", "never-made", "--capture", "/no/such/folder/capture"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("capture: /no/such/folder/capture: "));
}
