//! Who a port is on its subnet: local identifier, GIDs, partitions.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::config::{DeviceConfig, LINK_LOCAL_PREFIX};
use crate::limits::{GIDS, PKEYS};
use crate::packet::{NO_LID, partition_key, same_partition, source};

/// The partition that every port is a full member of until a subnet manager says otherwise.
pub(crate) const DEFAULT_PARTITION: u16 = 0xffff;

/// Bit of a partition key: full membership (InfiniBand Architecture 10.9.1.2).
const FULL_MEMBER: u16 = 1 << 15;

/// The local identifiers of the ports of one switch: no two ports have the same one.
#[derive(Debug, Default)]
pub(crate) struct LidTable {
    taken: Mutex<BTreeSet<u16>>,
}

impl LidTable {
    fn taken(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Another port of the switch has this local identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LidTaken(pub(crate) u16);

/// Who a port is on its subnet.
///
/// This is the only place where local identifier, GIDs and partitions of a port are kept. The registers of the device, its
/// agents, its transport and the switch read the same one; the management of the port changes it. Nothing here is a
/// function's own: it survives the reset of the function.
#[derive(Debug)]
pub struct PortIdentity {
    /// Nobody has any of the rest on an Ethernet port, apart from the partition that all are in.
    is_ethernet: bool,
    /// Permanent MAC address of an Ethernet port with a device.
    mac: Option<[u8; 6]>,
    lid: AtomicU16,
    gid_prefix: AtomicU64,
    /// GUIDs of the GID table; 0 for an unused entry.
    guids: [AtomicU64; GIDS],
    /// An entry whose lower 15 bits are 0 is unused.
    pkeys: [AtomicU16; PKEYS],
    /// Entries up to the last one in use.
    used_pkeys: AtomicUsize,
    /// The local identifiers of its switch, once it is attached to one.
    lids: OnceLock<Arc<LidTable>>,
}

impl PortIdentity {
    /// Creates the identity of a device's port. A port that waits for a subnet manager has no local identifier.
    pub(crate) fn new(config: &DeviceConfig) -> Self {
        let is_ethernet = config.mac().is_some();
        let lid = AtomicU16::new(if config.managed || is_ethernet { NO_LID } else { config.lid });
        let mac = config.mac();
        let identity = Self { is_ethernet, mac, lid, gid_prefix: AtomicU64::new(config.gid_prefix), ..Self::nobody() };
        if !is_ethernet {
            identity.set_guid(0, config.port_guid);
        }
        identity.set_pkeys(0, &[DEFAULT_PARTITION]);
        identity
    }

    /// Creates the identity of a port without a device, for tests of wires.
    pub fn with_lid(lid: u16) -> Arc<Self> {
        Arc::new(Self::new(&DeviceConfig::with_lid(lid)))
    }

    /// Creates the identity of an Ethernet port without a device: where a cable leads out of the switch.
    pub fn ethernet() -> Arc<Self> {
        Arc::new(Self { is_ethernet: true, ..Self::nobody() })
    }

    /// Returns whether it is an Ethernet port, which has frames of Ethernet instead of packets of a subnet.
    pub const fn is_ethernet(&self) -> bool {
        self.is_ethernet
    }

    /// Returns the permanent MAC address of an Ethernet port with a device.
    pub const fn mac(&self) -> Option<[u8; 6]> {
        self.mac
    }

    /// Returns the local identifier, 0 if the port has none.
    pub fn lid(&self) -> u16 {
        self.lid.load(Ordering::Relaxed)
    }

    /// Creates the identity of a place where no port is: no local identifier, no GID, no partition.
    pub(crate) fn nobody() -> Self {
        Self {
            is_ethernet: false,
            mac: None,
            lid: AtomicU16::new(NO_LID),
            gid_prefix: AtomicU64::new(LINK_LOCAL_PREFIX),
            guids: Default::default(),
            pkeys: std::array::from_fn(|_| AtomicU16::new(0)),
            used_pkeys: AtomicUsize::new(0),
            lids: OnceLock::new(),
        }
    }

    /// Lets no other port of a switch have its local identifier. A port whose identifier another one has loses it. Returns
    /// `false` and changes nothing if the port is attached to a switch already.
    pub(crate) fn attach(&self, lids: &Arc<LidTable>) -> bool {
        // Locked first, so that no manager changes the identifier meanwhile.
        let mut taken = lids.taken();
        if self.lids.set(Arc::clone(lids)).is_err() {
            return false;
        }
        if self.lid() != NO_LID && !taken.insert(self.lid()) {
            self.lid.store(NO_LID, Ordering::Relaxed);
        }
        true
    }

    /// Changes the local identifier.
    ///
    /// # Errors
    /// Another port of the switch has it; this one keeps its own.
    pub(crate) fn set_lid(&self, lid: u16) -> Result<(), LidTaken> {
        let mut taken = self.lids.get().map(|table| table.taken());
        let own = self.lid();
        if let Some(taken) = &mut taken
            && lid != own
        {
            if lid != NO_LID && !taken.insert(lid) {
                return Err(LidTaken(lid));
            }
            taken.remove(&own);
        }
        // Still locked: the port that takes the old identifier next must not find it here.
        self.lid.store(lid, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn gid_prefix(&self) -> u64 {
        self.gid_prefix.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gid_prefix(&self, prefix: u64) {
        self.gid_prefix.store(prefix, Ordering::Relaxed);
    }

    /// Returns the entries of the GID table.
    pub(crate) fn gid_entries(&self) -> usize {
        self.guids.len()
    }

    /// Returns the GUID of an entry of the GID table, 0 if it is unused. `None` beyond the table.
    fn guid(&self, index: usize) -> Option<u64> {
        self.guids.get(index).map(|guid| guid.load(Ordering::Relaxed))
    }

    pub(crate) fn set_guid(&self, index: usize, guid: u64) {
        if let Some(place) = self.guids.get(index) {
            place.store(guid, Ordering::Relaxed);
        }
    }

    fn gid_of(prefix: u64, guid: u64) -> [u8; 16] {
        (u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes()
    }

    /// Returns an entry of the GID table in network byte order, `None` beyond it. An unused entry has the prefix of the subnet
    /// too: Linux takes the prefix from the last entry.
    pub(crate) fn gid(&self, index: usize) -> Option<[u8; 16]> {
        self.guid(index).map(|guid| Self::gid_of(self.gid_prefix(), guid))
    }

    /// Returns an entry of the GID table that is in use: the source of a global route.
    pub(crate) fn source_gid(&self, index: u32) -> Option<[u8; 16]> {
        let index = usize::try_from(index).ok()?;
        if self.guid(index)? == 0 { None } else { self.gid(index) }
    }

    /// Returns the GID of answers that name none: the first.
    pub(crate) fn port_gid(&self) -> [u8; 16] {
        self.gid(0).unwrap_or_default()
    }

    /// Returns whether a packet for this GID is for the port. The link-local prefix always names it (InfiniBand Architecture
    /// 4.1.1).
    pub(crate) fn has_gid(&self, gid: [u8; 16]) -> bool {
        let gid = u128::from_be_bytes(gid);
        let (prefix, guid) = ((gid >> 64) as u64, gid as u64);
        let known = guid != 0 && self.guids.iter().any(|own| own.load(Ordering::Relaxed) == guid);
        known && (prefix == LINK_LOCAL_PREFIX || prefix == self.gid_prefix())
    }

    /// Returns an entry of the P_Key table; 0, which is no partition, beyond it.
    pub(crate) fn pkey(&self, index: usize) -> u16 {
        self.pkeys.get(index).map_or(0, |pkey| pkey.load(Ordering::Relaxed))
    }

    /// Replaces entries of the P_Key table from `first` on, as far as there are such.
    pub(crate) fn set_pkeys(&self, first: usize, pkeys: &[u16]) {
        let places = self.pkeys.iter().skip(first);
        places.zip(pkeys).for_each(|(place, pkey)| place.store(*pkey, Ordering::Relaxed));
        let last = self.pkeys.iter().rposition(|pkey| pkey.load(Ordering::Relaxed) != 0);
        self.used_pkeys.store(last.map_or(0, |last| last + 1), Ordering::Relaxed);
    }

    /// Returns whether the port is a member of the partition of a packet.
    pub(crate) fn shares_partition(&self, pkey: u16) -> bool {
        self.matching_pkey(pkey).is_some()
    }

    /// Returns the port's own key of the partition of a packet, by which it answers. `None` if it is no member.
    pub(crate) fn matching_pkey(&self, pkey: u16) -> Option<u16> {
        let used = self.pkeys.iter().take(self.used_pkeys.load(Ordering::Relaxed));
        used.map(|own| own.load(Ordering::Relaxed)).find(|own| same_partition(*own, pkey))
    }

    /// Returns whether the switch takes a frame from this port: its source is the LID that the port has now, and it is subnet
    /// management or of a partition of the port. A limited member sends as such, and only a full member as a full one
    /// (InfiniBand Architecture 10.9.6, enforcement by switches). An Ethernet switch takes all.
    pub(crate) fn may_send(&self, frame: &[u8]) -> bool {
        if self.is_ethernet {
            return true;
        }
        if source(frame) != Some(self.lid()) {
            return false;
        }
        let used = self.used_pkeys.load(Ordering::Relaxed);
        let mut own = self.pkeys.iter().take(used).map(|own| own.load(Ordering::Relaxed));
        partition_key(frame)
            .is_none_or(|pkey| own.any(|own| own == pkey || own == pkey | FULL_MEMBER) && pkey & !FULL_MEMBER != 0)
    }

    /// Returns whether the switch delivers a frame to this port: subnet management, and what is of a partition of the port.
    pub(crate) fn matches(&self, frame: &[u8]) -> bool {
        self.is_ethernet || partition_key(frame).is_none_or(|pkey| self.shares_partition(pkey))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn attached(lids: &Arc<LidTable>, lid: u16) -> Arc<PortIdentity> {
        let identity = PortIdentity::with_lid(lid);
        identity.attach(lids);
        identity
    }

    #[test]
    fn no_two_ports_of_a_switch_have_the_same_lid() {
        let lids = Arc::default();
        let (first, second) = (attached(&lids, 1), attached(&lids, 2));
        assert_eq!(second.set_lid(1), Err(LidTaken(1)));
        assert_eq!((first.lid(), second.lid()), (1, 2), "each keeps its own");
        assert_eq!(second.set_lid(2), Ok(()), "its own");
        // One that is free again.
        assert_eq!((first.set_lid(3), second.set_lid(1), first.set_lid(2)), (Ok(()), Ok(()), Ok(())));
        assert_eq!((first.lid(), second.lid()), (2, 1));
        // Any number of ports has none.
        assert_eq!((first.set_lid(NO_LID), second.set_lid(NO_LID)), (Ok(()), Ok(())));
        assert_eq!(attached(&lids, 1).lid(), 1);
        assert_eq!(attached(&lids, 1).lid(), NO_LID, "the second to come");
        assert_eq!(attached(&Arc::default(), 1).lid(), 1, "at another switch");
    }

    #[test]
    fn a_port_is_at_one_switch_once() {
        let (lids, elsewhere) = (Arc::default(), Arc::default());
        let port = attached(&lids, 1);
        assert_eq!((port.attach(&lids), port.attach(&elsewhere), port.lid()), (false, false, 1));
        assert_eq!(attached(&lids, 1).lid(), NO_LID, "still taken here");
        assert_eq!(attached(&elsewhere, 1).lid(), 1, "and not there");
        assert_eq!((port.set_lid(2), attached(&lids, 1).lid()), (Ok(()), 1));
    }

    #[test]
    fn a_port_that_gives_up_a_lid_has_lost_it_when_another_takes_it() {
        let lids = Arc::default();
        let (first, second) = (attached(&lids, 1), attached(&lids, 2));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // The first may have 7.
                    let _ = second.set_lid(7);
                    let _ = second.set_lid(8);
                }
            });
            let (mut taken, mut shared) = (0, 0);
            for _ in 0..1_000_000 {
                if first.set_lid(7).is_ok() {
                    taken += 1;
                    shared += u32::from(second.lid() == 7);
                    first.set_lid(1).unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(shared, 0, "both had LID 7 so many of {taken} times");
        });
    }

    #[test]
    fn a_port_is_known_by_the_prefix_of_its_subnet_and_the_link_local_one() {
        let identity =
            PortIdentity::new(&DeviceConfig { gid_prefix: 0xfec0 << 48 | 7, port_guid: 9, ..DeviceConfig::default() });
        for (prefix, guid, own) in [
            (0xfec0_u64 << 48 | 7, 9, true),
            (0xfe80 << 48, 9, true),
            (0xfec0 << 48, 9, false),
            (0xfec0 << 48 | 7, 8, false),
            // The unused entries of the table.
            (0xfec0 << 48 | 7, 0, false),
        ] {
            let gid = (u128::from(prefix) << 64 | guid).to_be_bytes();
            assert_eq!(identity.has_gid(gid), own, "{prefix:#x} {guid}");
        }
        assert_eq!((identity.source_gid(0).is_some(), identity.source_gid(1)), (true, None));
        assert_eq!(
            (identity.gid(7).map(|gid| gid[..8].to_vec()), identity.gid(8)),
            (Some(vec![0xfe, 0xc0, 0, 0, 0, 0, 0, 7]), None)
        );
    }
}
