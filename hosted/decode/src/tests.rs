//! Decoders accept any bytes, and use the right layout.

use bareverbs_mlx5_spec::{CmdOpcode, WqeOpcode};

use crate::decoded::Decoded;
use crate::send::Transport;
use crate::{command, completion, event, receive, send};

/// Returns pseudo-random bytes of a seed.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn assert_complete(all: &[Decoded]) {
    for decoded in all {
        assert!(!decoded.title.is_empty() && decoded.to_string().lines().count() > 1);
        #[cfg(feature = "serde")]
        assert!(serde_json::to_string(decoded).is_ok());
        assert!(decoded.findings.is_sorted_by_key(|finding| finding.offset));
    }
}

#[test]
fn any_bytes_are_decoded_without_a_panic() {
    for seed in 0..400 {
        let mut bytes = bytes(seed, seed as usize);
        assert_complete(&send::decode_all(&bytes, Transport::Rc));
        assert_complete(&[receive::decode(&bytes, seed % 2 == 0), command::decode_input(&bytes)]);
        assert_complete(&completion::decode_all(&bytes));
        assert_complete(&event::decode_all(&bytes));
        for transport in [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc] {
            for opcode in WqeOpcode::ALL {
                if let Some(byte) = bytes.get_mut(3) {
                    *byte = opcode.code() as u8;
                }
                assert_complete(&[send::decode(&bytes, 0, transport)]);
            }
        }
    }
}

#[test]
fn counters_of_a_port_are_read_by_their_own_layout() {
    // mlx5_ifc.h: query_vport_counter_out.received_ib_unicast.packets is at byte 48.
    let mut output = vec![0; 528];
    output[55] = 9;
    let decoded = command::decode_output(CmdOpcode::QueryVportCounter, 0, &output);
    let fields: Vec<_> = decoded.sections.iter().flat_map(|section| &section.fields).collect();
    let names: Vec<_> = fields.iter().map(|field| (field.name.as_str(), field.offset, field.value.to_string())).collect();
    assert_eq!(names, [("received_ib_unicast.packets", 48, "0x9".to_owned())]);
}

#[test]
fn every_command_is_decoded() {
    for opcode in CmdOpcode::ALL {
        for len in [0, 4, 16, 300, 5000] {
            let mut input = bytes(1, len);
            if let Some(start) = input.first_chunk_mut::<2>() {
                *start = (opcode.code() as u16).to_be_bytes();
            }
            assert_complete(&[command::decode_input(&input), command::decode_output(*opcode, 1, &input)]);
            command::output_fields(&input, &input);
        }
    }
}

#[test]
fn bytes_are_at_any_offset() {
    let bytes = bytes(1, 64);
    for offset in [usize::MAX, usize::MAX - 4, usize::MAX / 2] {
        assert_complete(&[completion::decode(&bytes, offset), event::decode(&bytes, offset)]);
        for opcode in WqeOpcode::ALL {
            let wqe = [&[0, 0, 0, opcode.code() as u8, 0, 0, 0, 4][..], &bytes].concat();
            assert_complete(&[send::decode(&wqe, offset, Transport::Rc), send::decode(&wqe, offset, Transport::Ud)]);
        }
    }
}

#[test]
fn a_number_is_found_by_the_names_of_its_section_and_field() {
    // An RDMA WRITE of queue pair 0x4b to address 0x1000 under key 0x77.
    let mut wqe = [0; 48];
    wqe[..8].copy_from_slice(&[0, 0, 7, 8, 0, 0, 0x4b, 3]);
    wqe[16..28].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0x77]);
    let decoded = send::decode(&wqe, 0, Transport::Rc);
    assert_eq!(decoded.number("control segment", "qpn"), Some(0x4b));
    assert_eq!(decoded.number("remote address segment", "raddr"), Some(0x1000));
    assert_eq!(decoded.number("remote address segment", "rkey"), Some(0x77));
    assert_eq!(decoded.number("remote address segment", "nothing"), None);
    assert_eq!(decoded.number("atomic segment", "raddr"), None);
}
