//! Frames of Linux's RoCEv2 in software (rdma_rxe): each is a packet here, and the same bytes are made of it.

use bareverbs_sim::packet::Packet;

/// Names and frames.
const FRAMES: &str = include_str!("../../data/soft-roce/frames.tsv");

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16).expect("a digit") as u8;
    hex.as_bytes().as_chunks::<2>().0.iter().map(|[high, low]| digit(*high) << 4 | digit(*low)).collect()
}

/// Invariant CRC, checksum of IP, lengths, padding, and every header: Linux checks the same of ours in the case soft-roce.
#[test]
fn every_packet_of_rdma_rxe_is_one_here_to_the_last_byte() {
    let frames =
        FRAMES.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_once('\t').expect("name and frame"));
    let (mut packets, mut others) = (0, 0);
    for (name, hex) in frames {
        let frame = bytes(hex);
        match Packet::decode_roce_v2(&frame) {
            Ok(packet) if name.starts_with("RoCEv2 ") => {
                packets += 1;
                let encoded = packet.encode();
                // An Ethernet frame is padded.
                assert_eq!(encoded, frame[..encoded.len()], "{name}");
                assert!(frame[encoded.len()..].iter().all(|byte| *byte == 0), "{name}");
                let mut broken = frame.clone();
                broken[encoded.len() - 1] ^= 1;
                assert!(Packet::decode_roce_v2(&broken).is_err(), "{name}");
            }
            Err(_) if !name.starts_with("RoCEv2 ") => others += 1,
            decoded => panic!("{name}: {decoded:?}"),
        }
    }
    assert!(packets > 20 && others > 5, "{packets} {others}");
}
