use super::*;

fn packet(operation: Operation, payload: &[u8]) -> Packet<'static> {
    let opcode = Opcode { transport: Transport::Rc, operation };
    let lrh = Lrh { vl: 0, sl: 3, dlid: 0x0102, slid: 0x0304 };
    let bth = Bth { opcode, solicited: true, migreq: false, pkey: 0xffff, dest_qpn: 0x12_3456, ack_req: true, psn: 0xab_cdef };
    let mut packet = Packet::new(lrh, bth);
    let headers = opcode.headers();
    packet.transport.reth = headers.reth.then_some(Reth { addr: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, len: 5 });
    packet.transport.atomic = headers.atomic.then_some(AtomicEth { addr: 1, rkey: 2, swap_add: 3, compare: 4 });
    packet.transport.aeth = headers.aeth.then_some(Aeth { syndrome: Syndrome::Ack(31), msn: 7 });
    packet.transport.atomic_ack = headers.atomic_ack.then_some(9);
    packet.transport.immediate = headers.immediate.then_some(0xdead_beef);
    packet.transport.invalidate = headers.invalidate.then_some(0x77);
    packet.transport.payload = payload.to_vec().into();
    packet
}

#[test]
fn every_operation_there_and_back() {
    for operation in Operation::ALL {
        for len in 0..6 {
            for grh in [None, Some(Grh { tclass: 1, flow_label: 2, hop_limit: 3, sgid: [4; 16], dgid: [5; 16] })] {
                let mut sent = packet(operation, &[1, 2, 3, 4, 5, 6][..len]);
                sent.link.infiniband_mut().unwrap().grh = grh;
                let bytes = sent.encode();
                assert_eq!(bytes.len() % 4, 0);
                assert_eq!(Packet::decode(&bytes), Ok(sent));
            }
        }
    }
}

#[test]
fn an_xrc_request_names_its_shared_receive_queue_first() {
    let mut sent = packet(Operation::Write(Place::Only), b"four");
    sent.transport.bth.opcode.transport = Transport::Xrc;
    sent.transport.xrc_srqn = Some(0x12_3456);
    let bytes = sent.encode();
    // BTH of the XRC service (opcode 0xaa), then XRCETH, then RETH.
    assert_eq!(bytes[8], 0xaa);
    assert_eq!(bytes[20..28], [0x00, 0x12, 0x34, 0x56, 0x11, 0x22, 0x33, 0x44]);
    assert_eq!(Packet::decode(&bytes), Ok(sent));
    let answer = Opcode { transport: Transport::Xrc, operation: Operation::Acknowledge };
    assert!(!answer.headers().xrc);
}

#[test]
fn layout_of_a_write() {
    let bytes = packet(Operation::WriteImmediate(Place::Only), b"hello").encode();
    // InfiniBand Architecture: LRH 5.2.1 (length in words, ICRC included), BTH 9.2, RETH 9.3.3, ImmDt 9.3.6.
    let expected = [
        0x00, 0x32, 0x01, 0x02, 0x00, 0x0d, 0x03, 0x04, // LRH
        0x0b, 0xb0, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef, // BTH, pad 3
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 5, // RETH
        0xde, 0xad, 0xbe, 0xef, b'h', b'e', b'l', b'l', b'o', 0, 0, 0,
    ];
    assert_eq!(bytes[..expected.len()], expected);
    assert_eq!(bytes.len(), expected.len() + 4);
}

#[test]
fn crc_ignores_what_changes_on_the_way() {
    let mut bytes = packet(Operation::Send(Place::Only), b"x").encode();
    bytes[0] |= 0x50;
    assert_eq!(Packet::decode(&bytes).unwrap().link.infiniband().unwrap().lrh.vl, 5);
    bytes[12] |= 0x80;
    assert!(Packet::decode(&bytes).is_ok(), "FECN may be set by a switch");
    bytes[16] ^= 1;
    assert!(matches!(Packet::decode(&bytes), Err(PacketError::Icrc { .. })));
}

/// The same polynomial and byte order as on a RoCE v2 packet captured from a ConnectX-4 Lx: eight bytes of ones stand
/// for the LRH, and what routers change is masked.
#[test]
fn crc_of_a_captured_packet() {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&[0xff; 8]);
    hash.update(&[0x45, 0xff, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0xff, 0x11, 0xff, 0xff]);
    hash.update(&[0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01]);
    hash.update(&[0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0xff, 0xff]);
    hash.update(&[0x81, 0x00, 0xff, 0xff, 0xff, 0x00, 0x01, 0x18, 0, 0, 0, 0]);
    hash.update(&[0; 16]);
    assert_eq!(hash.finalize().to_le_bytes(), [0x82, 0xfd, 0x00, 0x2a]);
}

#[test]
fn every_cut_and_flip_has_an_answer() {
    let bytes = packet(Operation::WriteImmediate(Place::Only), b"hello").encode();
    for len in 0..bytes.len() {
        assert!(Packet::decode(&bytes[..len]).is_err());
    }
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(packet) = Packet::decode(&bytes) {
            assert!(!PacketFields(&packet).to_string().is_empty());
        }
    }
}

#[test]
fn opcodes_there_and_back() {
    let known = (0..=255u8).filter_map(Opcode::from_bits).inspect(|opcode| {
        assert_eq!(Opcode::from_bits(opcode.to_bits()), Some(*opcode));
    });
    // Of the reliable transports, with the two masked atomics each; UC; UD.
    assert_eq!(known.count(), 2 * (23 + 2) + 12 + 2);
}
