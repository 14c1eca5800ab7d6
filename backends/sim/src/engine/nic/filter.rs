//! Which frames from the wire are for an Ethernet port.

use crate::config::{BROADCAST, is_group_address};
use crate::engine::EngineConfig;

/// The stations whose frames the port takes, as its driver sets them in the context of the port. Those of others do not come to
/// the flow tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameFilter {
    /// Unicast addresses of the port; without any, the permanent address of a physical function counts.
    pub(crate) unicast: Vec<[u8; 6]>,
    /// Groups; that of all stations need not be among those of a physical function.
    pub(crate) multicast: Vec<[u8; 6]>,
    /// All unicast addresses.
    pub(crate) all_unicast: bool,
    /// All groups.
    pub(crate) all_multicast: bool,
}

impl FrameFilter {
    /// Returns whether a unicast address is the port's own.
    pub(in crate::engine) fn is_own(&self, address: [u8; 6], config: &EngineConfig) -> bool {
        let counts = self.unicast.is_empty() && !config.is_behind_switch;
        self.unicast.contains(&address) || counts && config.mac == Some(address)
    }

    /// Returns whether a frame for this address is taken.
    pub(in crate::engine) fn matches(&self, address: [u8; 6], config: &EngineConfig) -> bool {
        if is_group_address(address) {
            let counts = address == BROADCAST && !config.is_behind_switch;
            counts || self.all_multicast || self.multicast.contains(&address)
        } else {
            self.all_unicast || self.is_own(address, config)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];

    fn matched(filter: &FrameFilter, is_behind_switch: bool) -> [bool; 4] {
        let config = EngineConfig { mac: Some(OWN), is_behind_switch, ..EngineConfig::default() };
        [OWN, OTHER, BROADCAST, GROUP].map(|address| filter.matches(address, &config))
    }

    #[test]
    fn the_switch_of_the_card_goes_by_the_lists_alone() {
        let empty = FrameFilter::default();
        assert_eq!(matched(&empty, false), [true, false, true, false]);
        assert_eq!(matched(&empty, true), [false; 4]);
        let listed = FrameFilter { unicast: vec![OWN], multicast: vec![BROADCAST], ..FrameFilter::default() };
        assert_eq!(matched(&listed, true), [true, false, true, false]);
        // As a driver sets it that was given another address.
        let moved = FrameFilter { unicast: vec![OTHER], multicast: vec![GROUP], ..FrameFilter::default() };
        assert_eq!(matched(&moved, false), [false, true, true, true]);
        assert_eq!(matched(&moved, true), [false, true, false, true]);
    }
}
