//! Any bytes as a send WQE, as receive entries, completions, events and commands: no decoder panics. A request that the device's decoder
//! accepts ends within its bytes, and bytes behind it change nothing. The printers visit every field.
#![no_main]

use bareverbs_decode::{command, completion, event, receive, send};
use bareverbs_mlx5_spec::{DS_UNIT, WQEBB};
use bareverbs_sim::wqe_decode::{DataSegment, SendBody, SendWqe, WqeService, announced_len};
use libfuzzer_sys::fuzz_target;

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
});

fn print(decoded: &[bareverbs_decode::Decoded]) {
    for one in decoded {
        std::hint::black_box(format!("{one:?}"));
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
