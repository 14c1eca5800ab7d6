//! Recordings of what clients send.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::server::{ENABLE_HCA, Server, bring_up, command, wait};

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
    let [identity, command] = bareverbs_serve::record::parse(&text).unwrap().try_into().unwrap();
    assert!(matches!(identity.entry, bareverbs_serve::record::Entry::Device(config) if config.vectors == 4));
    assert_eq!((command.number, command.device.as_str()), (3, "lid1"));

    let table = export(&[file.to_str().unwrap()], 0);
    let (input, output) = (format!("080d{}", "0".repeat(28)), "0".repeat(32));
    assert_eq!(table.lines().last(), Some(format!("NOP\t80d\t0\t{input}\t{output}").as_str()));
}

/// Returns what `command export` prints, on standard error if it fails.
fn export(args: &[&str], status: i32) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_bareverbs")).args(["command", "export"]).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(if status == 0 { output.stdout } else { output.stderr }).unwrap()
}

#[test]
fn the_commands_of_one_device_are_exported() {
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("recording");
    let name = file.to_str().unwrap();
    let [pages, nop] = ["0107.5.01.8. .15.06", "080d.14. .16."];
    std::fs::write(
        &file,
        format!(
            "recording 1\ndevice a lid=0x1\ndevice b lid=0x2\nmark x\ncommand a 0x0 {pages}\ncommand b 0x0 {nop}\ncqe a 0x1 0x1 00\n"
        ),
    )
    .unwrap();
    let table = export(&[name, "--device", "a"], 0);
    let [title, heading, row] = table.lines().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!((title, heading), ("# device a", "# name\topcode\top_mod\tinput\toutput"));
    assert!(
        row.starts_with("QUERY_PAGES\t107\t1\t01070000000000010000") && row.ends_with("\t00000000000000000000000000000006")
    );
    assert_eq!(export(&[name, "--device", "b"], 0).lines().count(), 3);
    for (args, message) in [
        (&[name][..], "the recording has several devices: choose one with --device (a, b)"),
        (&[name, "--device", "c"], "the recording has no device c, but a, b"),
    ] {
        assert!(export(args, 2).contains(message), "{args:?}");
    }
    assert!(export(&["/no/such/file"], 1).contains("/no/such/file: "));
    std::fs::write(&file, "recording 1\ndance\n").unwrap();
    assert!(export(&[name], 1).contains("line 2: "));
    std::fs::write(&file, "[ 1.0] nothing of a card\n").unwrap();
    assert!(export(&[name], 1).contains("is no recording of sim serve, and no kernel log"));
    let entry = "07000000 00000010 00000000 00000000\n010: 080d0000 00000000 00000000 00000000\n\
                 020: 00000000 00000000 00000000 00000000\n030: 00000000 00000000 00000010 01fd0000";
    let dump = |side: &str| format!("mlx5_core 0000:01:00.0: dump command NOP(0x80d) {side}\n000: {entry}\n");
    std::fs::write(&file, dump("INPUT") + &dump("OUTPUT")).unwrap();
    assert!(export(&[name, "--device", "0000:01:00.0"], 0).contains("\nNOP\t80d\t0\t080d0000"));
    std::fs::write(&file, "recording 1\n").unwrap();
    assert!(export(&[name], 2).contains("the recording has no device"));
}

#[test]
fn a_recording_that_cannot_be_created_is_an_error_at_the_start() {
    let output = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
        .args(["sim", "serve", "--socket", "never-made", "--record", "/no/such/folder/recording"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("recording: "));
    assert!(!Path::new("never-made").exists());
}

/// A pipe that is not read takes the place of a slow disk.
#[test]
fn a_blocked_recording_blocks_only_devices_with_a_full_queue() {
    let kept = tempfile::tempdir().unwrap();
    let pipe = kept.path().join("recording");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut reader = File::options().read(true).write(true).open(&pipe).unwrap();
    let mut server = Server::start(&["a", "b"], &["--record", pipe.to_str().unwrap()]);
    let mut client = server.connect("a");
    let memory = bring_up(&mut client);
    let (sent, done) = mpsc::channel();
    let flooding = thread::spawn(move || {
        let mut number = 0;
        while command(&mut client, &memory, 0x1000, ENABLE_HCA).is_some() {
            number += 1;
            if sent.send(()).is_err() {
                break;
            }
        }
        number
    });
    while done.recv_timeout(Duration::from_secs(1)).is_ok() {}
    assert!(!flooding.is_finished(), "it waits");
    let (sent, other) = mpsc::channel();
    let mut client = server.connect("b");
    thread::spawn(move || {
        let memory = bring_up(&mut client);
        let all = (0..10).all(|_| command(&mut client, &memory, 0x1000, ENABLE_HCA).is_some());
        // If the test has failed, the receiver is dropped.
        let _ = sent.send(all);
    });
    assert_eq!(other.recv_timeout(Duration::from_secs(10)), Ok(true), "the other device goes on");
    // Once the file can be written again, no line is missing.
    drop(done);
    let text = Arc::new(Mutex::new(Vec::new()));
    let read = Arc::clone(&text);
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(len) = reader.read(&mut bytes) {
            read.lock().unwrap().extend_from_slice(&bytes[..len]);
        }
    });
    let number: usize = flooding.join().unwrap();
    assert!(server.interrupt().0.success());
    wait("lines", || {
        let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        (count("command lid1 "), count("command lid2 ")) == (number, 10)
    });
}
