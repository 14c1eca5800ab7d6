//! An InfiniBand packet as a record of the Extensible Record Format (ERF), which pcapng files carry it in.
//!
//! The record has 16 bytes before the packet: the time, then type, flags, length of the record, losses and length on the wire
//! (Endace, "ERF types reference guide"). Wireshark decodes InfiniBand from LRH to VCRC in records of type 21.

use std::time::Duration;

/// Type of a record with an InfiniBand packet (`ERF_TYPE_INFINIBAND`).
const TYPE_INFINIBAND: u8 = 21;
/// Flag: the record is as long as the packet needs.
const VARYING_LENGTH: u8 = 1 << 2;
/// Bytes of a record before the packet.
const HEADER: usize = 16;
/// Bytes of a VCRC.
const VCRC: usize = 2;

/// Appends a packet (LRH to ICRC) that was on the wire at `time` after the start of 1970, with the VCRC that a link adds.
pub(super) fn append_record(out: &mut Vec<u8>, time: Duration, packet: &[u8]) {
    let on_wire = packet.len().saturating_add(VCRC);
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    // Seconds and their fraction of 2^32, the only little-endian number of a record.
    let fraction = (u64::from(time.subsec_nanos()) << 32) / 1_000_000_000;
    out.extend((time.as_secs() << 32 | fraction).to_le_bytes());
    out.extend([TYPE_INFINIBAND, VARYING_LENGTH]);
    out.extend(length(on_wire.saturating_add(HEADER)));
    out.extend([0; 2]);
    out.extend(length(on_wire));
    out.extend(packet);
    out.extend(vcrc(packet).to_le_bytes());
}

/// Remainders of each byte for the polynomial 0x100b, lowest bit first.
const REMAINDERS: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut remainder, mut bit) = (byte as u16, 0);
        while bit < 8 {
            remainder = if remainder & 1 == 1 { remainder >> 1 ^ 0x100b_u16.reverse_bits() } else { remainder >> 1 };
            bit += 1;
        }
        #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler, and `byte` is below the length")]
        {
            table[byte] = remainder;
        }
        byte += 1;
    }
    table
};

/// Variant CRC over LRH to ICRC (InfiniBand Architecture 7.8.2).
fn vcrc(packet: &[u8]) -> u16 {
    let remainder = packet.iter().fold(u16::MAX, |sum, byte| {
        let [low, _] = (sum ^ u16::from(*byte)).to_le_bytes();
        sum >> 8 ^ REMAINDERS.get(usize::from(low)).copied().unwrap_or_default()
    });
    !remainder
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The division of polynomials as InfiniBand Architecture 7.8.2 states it: bits in the order of transmission, the
    /// remainder preset to ones, complemented, and sent from the highest term on.
    fn by_division(packet: &[u8]) -> [u8; 2] {
        let mut remainder = 0xffff_u16;
        for bit in packet.iter().flat_map(|byte| (0..8).map(move |bit| u16::from(byte >> bit & 1))) {
            let carry = remainder >> 15 ^ bit;
            remainder = (remainder << 1) ^ (carry * 0x100b);
        }
        // The highest term is the first bit on the wire, the lowest of the first byte.
        let [high, low] = (!remainder).to_be_bytes();
        [high.reverse_bits(), low.reverse_bits()]
    }

    #[test]
    fn the_vcrc_is_the_remainder_of_the_division() {
        let packet: Vec<u8> = (0..=255_u8).map(|byte| byte.wrapping_mul(89) ^ 0x5a).collect();
        for len in [0, 1, 2, 28, 255, 256] {
            assert_eq!(vcrc(&packet[..len]).to_le_bytes(), by_division(&packet[..len]), "{len}");
        }
    }

    #[test]
    fn a_record_has_the_time_the_lengths_and_the_packet() {
        let mut out = Vec::new();
        append_record(&mut out, Duration::new(3, 500_000_000), &[7; 24]);
        assert_eq!(out[..8], [0, 0, 0, 0x80, 3, 0, 0, 0]);
        assert_eq!(out[8..16], [21, 4, 0, 42, 0, 0, 0, 26]);
        assert_eq!((out.len(), &out[16..40]), (42, &[7; 24][..]));
    }
}
