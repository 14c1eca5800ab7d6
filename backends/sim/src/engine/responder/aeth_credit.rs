//! The credit count of an acknowledgement, 5 bits (InfiniBand Architecture 9.7.7.2.4, table 46).

/// The code of no credit count: shared receives belong to no single queue pair.
pub(in crate::engine) const NO_COUNT: u8 = 31;

const COUNTS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
    12288, 16384, 24576, 32768,
];

/// Returns the greatest count that `receives` cover.
pub(in crate::engine) fn encode(receives: u32) -> u8 {
    COUNTS.partition_point(|&count| count <= receives).saturating_sub(1) as u8
}

/// Returns the receives that a count stands for, if it stands for any number.
pub(in crate::engine) fn decode(count: u8) -> Option<u32> {
    COUNTS.get(usize::from(count)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_rounded_down() {
        let counts = [0, 1, 4, 5, 6, 7, 8, 11, 12, 1000, 32767, 32768, 65535].map(encode);
        assert_eq!(counts, [0, 1, 4, 4, 5, 5, 6, 6, 7, 19, 29, 30, 30]);
    }

    #[test]
    fn counts_stand_for_receives() {
        assert_eq!([0, 4, 5, 19, 30, 31].map(decode), [Some(0), Some(4), Some(6), Some(768), Some(32768), None]);
    }
}
