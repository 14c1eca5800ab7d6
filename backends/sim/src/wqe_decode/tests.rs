use super::*;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn write_with_pointer() {
    let bytes = words(&[0x0000_0708, 0x0000_4203, 0x0000_0008, 0, 0x11, 0x22, 0x3344, 0, 64, 0x5566, 0, 0x1000]);
    let wqe = SendWqe::decode(&bytes, WqeService::Connected).unwrap();
    assert_eq!((wqe.opcode, wqe.index, wqe.qpn, wqe.ds), (WqeOpcode::RdmaWrite, 7, 0x42, 3));
    assert!(wqe.is_signaled() && !wqe.solicited);
    let remote = RemoteAddress { addr: 0x11_0000_0022, rkey: 0x3344 };
    let data = vec![DataSegment::Pointer(DataPointer { len: 64, lkey: 0x5566, addr: 0x1000 })];
    assert_eq!(wqe.body, SendBody::Write { remote, data });
    assert_eq!(wqe.blocks(), 1);
}

#[test]
fn inline_is_padded_to_a_unit() {
    let mut bytes = words(&[0x0000_000a, 0x0000_4203, 0x0000_000a, 0]);
    bytes.extend(words(&[0x8000_000d]));
    bytes.extend(b"thirteen byte");
    bytes.resize(48, 0xee);
    let wqe = SendWqe::decode(&bytes, WqeService::Connected).unwrap();
    assert!(wqe.solicited);
    // The second unit ends in padding, so nothing follows that could be taken for another segment.
    let SendBody::Send { address: None, data } = wqe.body else { panic!("{:?}", wqe.body) };
    assert_eq!(data, [DataSegment::Inline(b"thirteen byte".to_vec())]);
}

#[test]
fn what_is_wrong_is_named() {
    let decode = |list: &[u32]| SendWqe::decode(&words(list), WqeService::Connected).unwrap_err();
    assert_eq!(decode(&[0x08, 1]), WqeError::Short { have: 8 });
    assert_eq!(decode(&[0x08, 0, 0, 0]), WqeError::Empty);
    assert_eq!(decode(&[0x08, 2, 0, 0]), WqeError::Truncated { need: 32, have: 16 });
    assert_eq!(decode(&[0xff, 1, 0, 0]), WqeError::Opcode { opcode: 0xff });
    assert_eq!(decode(&[0x08, 1, 0, 0]), WqeError::Missing { segment: "mlx5_wqe_raddr_seg", at: 16 });
    assert_eq!(decode(&[0x0e, 1, 0, 0]), WqeError::Unsupported { opcode: WqeOpcode::Tso });
    assert_eq!(decode(&[0x0a, 2, 0, 0, 0x8000_0010, 0, 0, 0]), WqeError::InlineLength { at: 16, len: 16 });
    let read = [0x10, 3, 0, 0, 0, 0, 0, 0, 0x8000_0004, 0, 0, 0];
    assert_eq!(decode(&read), WqeError::InlineForbidden { at: 32 });
    let datagram = SendWqe::decode(&words(&[0x10, 1, 0, 0]), WqeService::Datagram);
    let refused = WqeError::NotForService { opcode: WqeOpcode::RdmaRead, service: WqeService::Datagram };
    assert_eq!(datagram, Err(refused));
}

/// What the decoder prints of a request that is none: each error has its fact, and none the text of another.
#[test]
fn errors_say_what_is_wrong() {
    let cases: [(WqeError, &[&str]); 10] = [
        (WqeError::Short { have: 8 }, &["8 bytes", "16"]),
        (WqeError::Empty, &["ds is 0"]),
        (WqeError::Truncated { need: 32, have: 16 }, &["32 bytes", "there are 16"]),
        (WqeError::Opcode { opcode: 0xfe }, &["0xfe"]),
        (WqeError::Unsupported { opcode: WqeOpcode::Tso }, &[WqeOpcode::Tso.name(), "not supported"]),
        (
            WqeError::NotForService { opcode: WqeOpcode::RdmaRead, service: WqeService::Datagram },
            &[WqeOpcode::RdmaRead.name(), "Datagram"],
        ),
        (WqeError::Missing { segment: "mlx5_wqe_raddr_seg", at: 16 }, &["mlx5_wqe_raddr_seg", "byte 16"]),
        (WqeError::InlineLength { at: 48, len: 99 }, &["byte 48", "99 bytes"]),
        (WqeError::InlineForbidden { at: 32 }, &["byte 32", "pointers"]),
        (WqeError::Translations { octowords: 4, have: 48 }, &["4 octowords", "48 bytes"]),
    ];
    let mut texts = std::collections::HashSet::new();
    for (error, facts) in cases {
        let text = error.to_string();
        assert!(facts.iter().all(|fact| text.contains(fact)), "{text}");
        assert!(texts.insert(text), "{error:?} has the text of another one");
    }
}

/// The length is in units of 16 bytes, whatever else the segment says.
#[test]
fn a_control_segment_announces_its_length() {
    assert_eq!(announced_len(&words(&[0x0000_0708, 0x0000_4203, 0, 0])), Some(48));
    assert_eq!(announced_len(&words(&[0xffff_ffff, 0xffff_ffc0, 0, 0])), Some(0));
    assert_eq!(announced_len(&words(&[0x0000_0708, 0x0000_4203, 0])), None);
}

#[test]
fn receive_list_ends_at_its_marker() {
    let bytes = words(&[16, 5, 0, 0x100, 0, 0x100, 0, 0, 16, 5, 0, 0x200, 0, 0, 0, 0]);
    assert_eq!(decode_receive(&bytes).unwrap(), [DataPointer { len: 16, lkey: 5, addr: 0x100 }]);
    // A count of zero with another key is the largest buffer.
    assert_eq!(decode_receive(&words(&[0, 5, 0, 0])).unwrap(), [DataPointer { len: 1 << 31, lkey: 5, addr: 0 }]);
}

#[test]
fn any_bytes_have_an_answer() {
    let mut state = 1u64;
    for len in 0..400 {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(len)
        .collect();
        for service in [WqeService::Connected, WqeService::Datagram, WqeService::Xrc] {
            for opcode in 0..=0x28u8 {
                let mut bytes = bytes.clone();
                if let Some(byte) = bytes.get_mut(3) {
                    *byte = opcode;
                }
                if let Ok(wqe) = SendWqe::decode(&bytes, service) {
                    assert!(wqe.fields().len() > 5);
                }
            }
        }
        let _ = decode_receive(&bytes);
    }
}
