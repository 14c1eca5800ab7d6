//! Which port of an Ethernet switch, by its number, each MAC address was last seen at.

use std::collections::BTreeMap;

use crate::config::is_group_address;

/// MAC addresses that a switch knows at most. It floods frames for others.
const MAX_ADDRESSES: usize = 16_384;

/// The MAC addresses that an Ethernet switch has learned (IEEE 802.1Q, 8.7).
#[derive(Clone, Debug, Default)]
pub(super) struct MacTable {
    ports: BTreeMap<[u8; 6], usize>,
}

/// Returns the MAC address that a frame is for. `None` if it is too short to have one.
pub(super) fn destination(frame: &[u8]) -> Option<[u8; 6]> {
    frame.first_chunk().copied()
}

impl MacTable {
    /// Learns where a frame comes from.
    pub(super) fn learn(&mut self, frame: &[u8], from: usize) {
        let Some(source) = frame.get(6..).and_then(|rest| rest.first_chunk()) else { return };
        if let Some(port) = self.ports.get_mut(source) {
            *port = from;
        } else if !is_group_address(*source) && *source != [0; 6] && self.ports.len() < MAX_ADDRESSES {
            self.ports.insert(*source, from);
        }
    }

    /// Returns where a unicast address was last seen. `None` for one that is not known, and for groups.
    pub(super) fn port_of(&self, address: [u8; 6]) -> Option<usize> {
        self.ports.get(&address).copied()
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
    fn a_full_table_learns_no_more_and_forgets_nothing() {
        let mut table = MacTable::default();
        let address = |number: usize| {
            let [.., a, b, c] = number.to_be_bytes();
            [2, 0, 0, a, b, c]
        };
        for number in 0..=MAX_ADDRESSES {
            table.learn(&from(address(number)), number % 3);
        }
        assert_eq!((table.port_of(address(0)), table.port_of(address(MAX_ADDRESSES))), (Some(0), None));
        table.learn(&from(address(5)), 7);
        assert_eq!(table.port_of(address(5)), Some(7), "a known one may still move");
    }
}
