//! The port's performance management agent (IBTA 16.1): what it counted.

use super::mad::{self, status};
use crate::port::PortStats;
use crate::stats::{EngineStats, FrameTraffic, Traffic};

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
/// one port, those to groups. Behind them: times that the link went down, frames that were no packets, frames that found no
/// link, datagrams of subnet management that found no room.
const COUNTS: usize = 12;
/// What a port counts.
pub(crate) type Counts = [u64; COUNTS];

/// Where a counter lies: its place among the counts, its bit in the choice of those to be cleared, its byte, its length in
/// bytes.
type Counter = (usize, u32, usize, usize);

/// PortCounters (IBTA 16.1.3.5), apart from those that stay 0.
const SHORT: [Counter; 8] = [
    (8, 2, 7, 1),
    (9, 3, 8, 2),
    (10, 6, 14, 2),
    (11, 11, 22, 2),
    (0, 12, 24, 4),
    (1, 13, 28, 4),
    (2, 14, 32, 4),
    (3, 15, 36, 4),
];

/// PortCountersExtended (16.1.4.11).
const EXTENDED: [Counter; 8] =
    [(0, 0, 8, 8), (1, 1, 16, 8), (2, 2, 24, 8), (3, 3, 32, 8), (4, 4, 40, 8), (5, 5, 48, 8), (6, 6, 56, 8), (7, 7, 64, 8)];

/// What each count was when it was last cleared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cleared(Counts);

impl Cleared {
    /// Returns what was counted since.
    pub(crate) fn since(&self, now: &Counts) -> Counts {
        let mut since = *now;
        since.iter_mut().zip(self.0).for_each(|(count, cleared)| *count = count.saturating_sub(cleared));
        since
    }

    /// Clears the counts at these places.
    pub(crate) fn clear(&mut self, now: &Counts, places: impl IntoIterator<Item = usize>) {
        for place in places {
            if let (Some(cleared), Some(now)) = (self.0.get_mut(place), now.get(place)) {
                *cleared = *now;
            }
        }
    }
}

/// Returns what the port has counted: what the transport counts and what it counts itself.
pub(crate) fn count(stats: &EngineStats, port: PortStats) -> Counts {
    let EngineStats { frames_sent, frames_received, malformed, subnet_management_dropped, .. } = *stats;
    let (sent, received) = (stats.sent.and(frames_sent.unicast), stats.received.and(frames_received.unicast));
    let groups = |packets: Traffic, frames: FrameTraffic| packets.and(frames.multicast).and(frames.broadcast);
    let sent_multicast = groups(stats.sent_multicast, frames_sent);
    let received_multicast = groups(stats.received_multicast, frames_received);
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
        port.downed,
        malformed,
        port.discarded.all().packets,
        subnet_management_dropped,
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

/// Returns the data of the answer to a question with these data; `clear` as it asks (PerformanceSet).
pub(super) fn answer(cleared: &mut Cleared, now: Counts, clear: bool, attribute: u16, asked: &[u8]) -> Result<[u8; DATA], u16> {
    let counters: &[Counter] = match attribute {
        attribute::CLASS_PORT_INFO if !clear => return Ok(class_port_info()),
        attribute::CLASS_PORT_INFO => return Err(status::METHOD),
        attribute::COUNTERS => &SHORT,
        attribute::COUNTERS_EXTENDED => &EXTENDED,
        _ => return Err(status::ATTRIBUTE),
    };
    let port = asked.get(PORT_SELECT).copied().unwrap_or(0);
    if port != mad::PORT && port != ALL_PORTS {
        return Err(status::MODIFIER);
    }
    let select = asked.get(COUNTER_SELECT..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes));
    if clear {
        let chosen = counters.iter().filter(|(_, bit, ..)| u32::from(select) >> bit & 1 != 0);
        cleared.clear(&now, chosen.map(|(place, ..)| *place));
    }
    let mut data = [0; DATA];
    data.iter_mut().zip(asked).take(COUNTER_SELECT + 2).for_each(|(to, from)| *to = *from);
    let since = cleared.since(&now);
    for &(place, _, at, len) in counters {
        // They stop at their greatest value.
        let most = u64::MAX >> (64 - 8 * len);
        let count = since.get(place).copied().unwrap_or(0).min(most);
        data.iter_mut().skip(at).take(len).zip(count.to_be_bytes().into_iter().skip(8 - len)).for_each(|(to, from)| *to = from);
    }
    Ok(data)
}
