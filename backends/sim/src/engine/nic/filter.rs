//! Which frames from the wire are for an Ethernet port.

use crate::config::{BROADCAST, is_group_address};

/// The stations whose frames the port takes, as its driver sets them in the context of the port. Those of others do not come to
/// the flow tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameFilter {
    /// Unicast addresses of the port; without any, its permanent address counts.
    pub(crate) unicast: Vec<[u8; 6]>,
    /// Groups besides that of all stations.
    pub(crate) multicast: Vec<[u8; 6]>,
    /// All unicast addresses.
    pub(crate) all_unicast: bool,
    /// All groups.
    pub(crate) all_multicast: bool,
}

impl FrameFilter {
    /// Returns whether a unicast address is the port's own.
    pub(in crate::engine) fn is_own(&self, address: [u8; 6], permanent: Option<[u8; 6]>) -> bool {
        self.unicast.contains(&address) || self.unicast.is_empty() && permanent == Some(address)
    }

    /// Returns whether a frame for this address is taken.
    pub(in crate::engine) fn admits(&self, address: [u8; 6], permanent: Option<[u8; 6]>) -> bool {
        if is_group_address(address) {
            self.all_multicast || address == BROADCAST || self.multicast.contains(&address)
        } else {
            self.all_unicast || self.is_own(address, permanent)
        }
    }
}
