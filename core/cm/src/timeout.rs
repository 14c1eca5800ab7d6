//! Timeouts as the messages encode them.

use core::time::Duration;

/// What a timeout of 0 stands for: 4.096 µs (IBTA volume 1, 12.7).
pub const TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);

/// Returns the time that an encoded timeout stands for: 4.096 µs · 2^`encoded`, 5 bits (IBTA volume 1, 12.7). 20 is 4.3 s.
pub const fn timeout(encoded: u8) -> Duration {
    Duration::from_nanos(4096 << (encoded & 31))
}

/// Returns the local ACK timeout of a queue pair, encoded, 5 bits: the least that covers two packet lifetimes and the ACK delay of the
/// peer, which are encoded as well (IBTA volume 1, 12.7.34).
pub const fn ack_timeout(packet_life_time: u8, ack_delay: u8) -> u8 {
    let units = (2u64 << (packet_life_time & 31)) + (1u64 << (ack_delay & 31));
    let encoded = units.next_power_of_two().trailing_zeros();
    if encoded > 31 { 31 } else { encoded as u8 }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::{ack_timeout, timeout};

    #[test]
    fn a_timeout_is_a_power_of_two() {
        assert_eq!(timeout(0), Duration::from_nanos(4096));
        assert_eq!(timeout(20), Duration::from_nanos(4_294_967_296));
        assert_eq!(timeout(31), Duration::from_nanos(4096 << 31));
        assert_eq!(timeout(32), timeout(0));
    }

    #[test]
    fn an_ack_timeout_covers_the_way_there_and_back_and_the_delay() {
        for life in 0..32 {
            for delay in 0..32 {
                let (encoded, needed) = (ack_timeout(life, delay), timeout(life) * 2 + timeout(delay));
                assert!(timeout(encoded) >= needed || encoded == 31, "{life} {delay}: {encoded}");
                assert!(encoded == 0 || timeout(encoded - 1) < needed, "{life} {delay}: {encoded}");
            }
        }
    }
}
