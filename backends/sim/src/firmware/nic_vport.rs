//! What the driver of an Ethernet port has set: MTU, addresses, filters.

use crate::port::FIRST_ETHERNET_MTU;

/// Entries of each list at most, as a power of two (`log_max_current_uc_list` and others).
pub(crate) const LOG_MAX_LIST: u32 = 7;

/// What is let in beside the addresses of the lists (`promisc_uc`, `promisc_mc`, `promisc_all`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promiscuous {
    pub(crate) unicast: bool,
    pub(crate) multicast: bool,
    pub(crate) all: bool,
}

/// The context of an Ethernet port as its driver sets it. A reset of the function empties it.
#[derive(Clone, Debug)]
pub(crate) struct NicVport {
    /// In bytes of a whole frame.
    pub(crate) mtu: u16,
    pub(crate) promiscuous: Promiscuous,
    /// Frames for the function's own unicast and multicast addresses do not come back to it.
    pub(crate) no_local_loopback: [bool; 2],
    /// Unicast addresses, multicast addresses, VLAN identifiers: entries as the driver wrote them.
    pub(crate) lists: [Vec<u64>; 3],
}

impl Default for NicVport {
    fn default() -> Self {
        Self {
            mtu: FIRST_ETHERNET_MTU,
            promiscuous: Promiscuous::default(),
            no_local_loopback: [false; 2],
            lists: Default::default(),
        }
    }
}
