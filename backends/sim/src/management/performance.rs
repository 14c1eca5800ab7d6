//! The port's performance management agent (IBTA 16.1): what it counted.

use super::status;
use crate::engine::EngineStats;

/// Attributes (IBTA table 242).
mod attribute {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const COUNTERS: u16 = 0x12;
    pub(super) const COUNTERS_EXTENDED: u16 = 0x1d;
}

/// Bytes after the common header and what is reserved.
const DATA: usize = 192;
/// Where both kinds of counters have their port and the choice of those to be cleared.
const PORT_SELECT: usize = 1;
const COUNTER_SELECT: usize = 2;
/// A manager may ask for all ports at once.
const ALL_PORTS: u8 = 0xff;

/// In the order in which the extended counters have them: bytes in fours sent and received, packets sent and received, those to
/// one port, those to groups.
const COUNTS: usize = 8;
type Counts = [u64; COUNTS];

/// What each count was when it was last cleared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cleared(Counts);

fn counted(stats: &EngineStats) -> Counts {
    let EngineStats { sent, sent_multicast, received, received_multicast, .. } = *stats;
    let (out, into) = (sent.and(sent_multicast), received.and(received_multicast));
    [
        out.octets / 4,
        into.octets / 4,
        out.packets,
        into.packets,
        sent.packets,
        received.packets,
        sent_multicast.packets,
        received_multicast.packets,
    ]
}

/// ClassPortInfo (IBTA 13.4.8.1), as far as anything of it is not zero.
fn class_port_info() -> [u8; DATA] {
    /// Extended counters are there, those of groups among them.
    const EXTENDED_WIDTH: u16 = 1 << 9;
    /// 4.096 µs · 2^18.
    const RESPONSE_TIME: u8 = 18;
    let mut data = [0; DATA];
    let [high, low] = EXTENDED_WIDTH.to_be_bytes();
    let head = [1, 1, high, low, 0, 0, 0, RESPONSE_TIME];
    data.iter_mut().zip(head).for_each(|(to, from)| *to = from);
    data
}

/// Data of the answer to a question with these data; `clear` as it asks (PerformanceSet).
pub(super) fn answer(
    cleared: &mut Cleared,
    stats: &EngineStats,
    clear: bool,
    attribute: u16,
    asked: &[u8],
) -> Result<[u8; DATA], u16> {
    // Counter, and its bit in the choice.
    let (first_bit, counts) = match attribute {
        attribute::CLASS_PORT_INFO if !clear => return Ok(class_port_info()),
        attribute::CLASS_PORT_INFO => return Err(status::METHOD),
        // Symbol errors and the like come before; there are none.
        attribute::COUNTERS => (12, 4),
        attribute::COUNTERS_EXTENDED => (0, COUNTS),
        _ => return Err(status::ATTRIBUTE),
    };
    let port = asked.get(PORT_SELECT).copied().unwrap_or(0);
    if port != super::PORT && port != ALL_PORTS {
        return Err(status::MODIFIER);
    }
    let now = counted(stats);
    let select = asked.get(COUNTER_SELECT..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes));
    if clear {
        let chosen = cleared.0.iter_mut().zip(now).take(counts).enumerate();
        chosen.filter(|(i, _)| select >> (first_bit + i) & 1 != 0).for_each(|(_, (cleared, now))| *cleared = now);
    }
    let mut data = [0; DATA];
    data.iter_mut().zip(asked).take(COUNTER_SELECT + 2).for_each(|(to, from)| *to = *from);
    let mut put = |at: usize, bytes: &[u8]| data.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
    let since = now.iter().zip(cleared.0).map(|(now, cleared)| now.saturating_sub(cleared));
    for (i, count) in since.take(counts).enumerate() {
        if attribute == attribute::COUNTERS {
            // They stop at their greatest value.
            put(24 + 4 * i, &u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
        } else {
            put(8 + 8 * i, &count.to_be_bytes());
        }
    }
    Ok(data)
}
