//! Which port of an Ethernet switch, by its number, each MAC address was last seen at.

use std::collections::BTreeMap;

use crate::config::is_group_address;

/// MAC addresses that a switch knows at one port at most: so that nobody fills its table for others. It floods frames for those that it
/// does not know.
const MAX_AT_PORT: usize = 1024;

/// The MAC addresses that an Ethernet switch has learned (IEEE 802.1Q, 8.7).
#[derive(Clone, Debug, Default)]
pub(super) struct MacTable {
    ports: BTreeMap<[u8; 6], usize>,
    /// How many are at each port.
    counts: BTreeMap<usize, usize>,
    /// Where an address stays, also when another port sends from it.
    fixed: BTreeMap<[u8; 6], usize>,
}

/// Returns whether an address is one of those to which a bridge forwards nothing (IEEE 802.1Q, 8.6.3): spanning tree, pause frames, link
/// aggregation, authentication of ports. What is sent there is between the two ends of a cable.
pub(super) fn is_reserved(address: [u8; 6]) -> bool {
    matches!(address, [0x01, 0x80, 0xc2, 0, 0, 0..=0xf])
}

/// Returns the MAC address that a frame is for. `None` if it is too short to have one.
pub(super) fn destination(frame: &[u8]) -> Option<[u8; 6]> {
    frame.first_chunk().copied()
}

impl MacTable {
    /// Learns where a frame comes from.
    pub(super) fn learn(&mut self, frame: &[u8], from: usize) {
        let Some(source) = frame.get(6..).and_then(|rest| rest.first_chunk()) else { return };
        if self.ports.get(source) == Some(&from) || is_group_address(*source) || *source == [0; 6] {
            return;
        }
        // It is not where it was, whether there is room for it here or not.
        if let Some(before) = self.ports.remove(source)
            && let Some(count) = self.counts.get_mut(&before)
        {
            *count -= 1;
        }
        let count = self.counts.entry(from).or_default();
        if *count < MAX_AT_PORT {
            *count += 1;
            self.ports.insert(*source, from);
        }
    }

    /// Lets an address be at a port from now on, also when another port sends from it.
    pub(super) fn fix(&mut self, address: [u8; 6], at: usize) {
        self.fixed.insert(address, at);
    }

    /// Returns where a unicast address is fixed, or was last seen. `None` for one that is not known, and for groups.
    pub(super) fn port_of(&self, address: [u8; 6]) -> Option<usize> {
        self.fixed.get(&address).or_else(|| self.ports.get(&address)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(source: [u8; 6]) -> Vec<u8> {
        [[9; 6], source].concat()
    }

    #[test]
    fn an_address_is_where_it_was_last_seen() {
        let mut table = MacTable::default();
        table.learn(&from([2, 0, 0, 0, 0, 1]), 1);
        table.learn(&from([2, 0, 0, 0, 0, 2]), 2);
        assert_eq!(table.port_of([2, 0, 0, 0, 0, 1]), Some(1));
        table.learn(&from([2, 0, 0, 0, 0, 1]), 3);
        assert_eq!(table.port_of([2, 0, 0, 0, 0, 1]), Some(3), "it moved");
        assert_eq!(table.port_of([2, 0, 0, 0, 0, 2]), Some(2));
    }

    #[test]
    fn nobody_is_at_a_group_or_at_zero() {
        let mut table = MacTable::default();
        for source in [[0xff; 6], [1, 0, 0, 0, 0, 0], [0; 6]] {
            table.learn(&from(source), 1);
            assert_eq!(table.port_of(source), None);
        }
        table.learn(&[9; 11], 1);
        assert_eq!((table.ports.len(), destination(&[1; 5]), destination(&[1; 6])), (0, None, Some([1; 6])));
    }

    #[test]
    fn a_port_with_too_many_addresses_takes_none_more_and_no_room_of_others() {
        let mut table = MacTable::default();
        let address = |number: usize| {
            let [.., a, b, c] = number.to_be_bytes();
            [2, 0, 0, a, b, c]
        };
        for number in 0..=MAX_AT_PORT {
            table.learn(&from(address(number)), 1);
        }
        assert_eq!((table.port_of(address(0)), table.port_of(address(MAX_AT_PORT))), (Some(1), None));
        table.learn(&from(address(MAX_AT_PORT)), 2);
        table.learn(&from(address(MAX_AT_PORT)), 1);
        assert_eq!(table.port_of(address(MAX_AT_PORT)), None, "it has left the other port, and there is no room here");
        // One that moves away leaves room.
        table.learn(&from(address(5)), 2);
        table.learn(&from(address(9999)), 1);
        assert_eq!([5, 9999].map(|number| table.port_of(address(number))), [Some(2), Some(1)]);
        assert_eq!(table.counts, BTreeMap::from([(1, MAX_AT_PORT), (2, 1)]));
    }
}
