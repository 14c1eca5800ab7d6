//! Any bytes as send and receive WQEs, completions, events and commands, and the same cut short: no decoder panics. A request that the device's
//! decoder accepts ends within its bytes, and bytes behind it change nothing. The printers visit every field.
#![no_main]

use std::hint::black_box;

use bareverbs_decode::{command, completion, event, receive, send};
use bareverbs_mlx5_spec::{DS_UNIT, WQEBB};
use libfuzzer_sys::fuzz_target;
use wqe_decode::{DataSegment, FrameWqe, SendBody, SendWqe, WqeService, announced_len, decode_frame_receive, decode_receive};

// The device's decoder from its source, which needs the layouts alone: the rest of the device takes a minute and more to build.
#[allow(dead_code, reason = "what the device asks of a decoded request")]
#[path = "../../backends/sim/src/wqe_decode/mod.rs"]
mod wqe_decode;

/// Bytes of the longest prefix that is decoded too: a UMR with an inline list has as many.
const LONGEST_PREFIX: usize = 256;

fuzz_target!(|bytes: &[u8]| {
    for service in [WqeService::Connected, WqeService::Datagram, WqeService::Xrc] {
        match SendWqe::decode(bytes, service) {
            Ok(wqe) => check(&wqe, bytes, service),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    for transport in [send::Transport::Rc, send::Transport::Ud, send::Transport::Xrc] {
        print(&send::decode_all(bytes, transport));
    }
    print(&[receive::decode(bytes, false), receive::decode(bytes, true), command::decode_input(bytes)]);
    print(&completion::decode_all(bytes));
    print(&event::decode_all(bytes));
    decode_others(bytes);
    // Structures that end too early: most inputs that a search makes are as long as their parts say.
    for len in (0..bytes.len().min(LONGEST_PREFIX)).step_by(4) {
        decode_prefix(&bytes[..len], len / 4);
    }
});

/// Decodes bytes by one decoder of each kind in turn, and prints nothing: a print takes several times as long.
fn decode_prefix(bytes: &[u8], turn: usize) {
    let (service, transport) = [
        (WqeService::Connected, send::Transport::Rc),
        (WqeService::Datagram, send::Transport::Ud),
        (WqeService::Xrc, send::Transport::Xrc),
    ][turn % 3];
    if let Ok(wqe) = SendWqe::decode(bytes, service) {
        check(&wqe, bytes, service);
    }
    black_box(send::decode(bytes, 0, transport));
    black_box(receive::decode(bytes, turn.is_multiple_of(2)));
    black_box(command::decode_input(bytes));
    decode_others(bytes);
}

/// Decodes what a device reads from a send queue for frames, and from receive queues.
fn decode_others(bytes: &[u8]) {
    if let Err(error) = FrameWqe::decode(bytes) {
        assert!(!error.to_string().is_empty());
    }
    let pointers = decode_receive(bytes).unwrap_or_default();
    assert!(pointers.len() * DS_UNIT <= bytes.len());
    assert!(decode_frame_receive(bytes).len() * DS_UNIT <= bytes.len());
}

fn print(decoded: &[bareverbs_decode::Decoded]) {
    for one in decoded {
        black_box(format!("{one:?}"));
    }
}

fn check(wqe: &SendWqe, bytes: &[u8], service: WqeService) {
    let announced = announced_len(bytes).expect("it has a control segment");
    assert_eq!(announced, usize::from(wqe.ds) * DS_UNIT);
    assert!(announced <= bytes.len());
    assert!(usize::from(wqe.blocks()) * WQEBB >= announced);
    assert!(!wqe.fields().is_empty());
    assert_eq!(SendWqe::decode(&bytes[..announced], service).as_ref(), Ok(wqe), "bytes behind the count of the WQE");

    let inline: u64 = match &wqe.body {
        SendBody::Send { data, .. } | SendBody::Write { data, .. } => {
            data.iter().filter(|piece| matches!(piece, DataSegment::Inline(_))).map(DataSegment::len).sum()
        }
        SendBody::Read { data, .. } | SendBody::Atomic { data, .. } => {
            assert!(data.iter().all(|piece| matches!(piece, DataSegment::Pointer(_))));
            0
        }
        SendBody::Nop | SendBody::Umr(_) => 0,
    };
    assert!(inline <= announced as u64, "more inline bytes than the WQE has");
}
