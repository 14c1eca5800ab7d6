//! Multicast groups: which datagram queue pairs get a copy of what is sent to a group.

use std::collections::{BTreeMap, BTreeSet};

use bareverbs_mlx5_spec::CmdStatus;

/// Groups, and queue pairs of one, at most: what the capabilities say (`log_max_mcg`, `max_qp_mcg`).
pub(crate) const LOG_MAX_GROUPS: u32 = 8;
pub(crate) const MAX_MEMBERS: usize = 16;

/// Groups by their GID in wire order.
#[derive(Debug, Default)]
pub(super) struct Groups {
    members: BTreeMap<[u8; 16], BTreeSet<u32>>,
    /// The same by queue pair.
    of_qp: BTreeSet<(u32, [u8; 16])>,
}

impl Groups {
    pub(super) fn memberships(&self) -> usize {
        self.of_qp.len()
    }

    pub(super) fn attach(&mut self, gid: [u8; 16], qpn: u32) -> Result<(), CmdStatus> {
        if !self.members.contains_key(&gid) && self.members.len() >= 1 << LOG_MAX_GROUPS {
            return Err(CmdStatus::NoResources);
        }
        let group = self.members.entry(gid).or_default();
        if group.len() >= MAX_MEMBERS && !group.contains(&qpn) {
            return Err(CmdStatus::NoResources);
        }
        group.insert(qpn);
        self.of_qp.insert((qpn, gid));
        Ok(())
    }

    pub(super) fn detach(&mut self, gid: [u8; 16], qpn: u32) -> Result<(), CmdStatus> {
        let group = self.members.get_mut(&gid).ok_or(CmdStatus::BadRes)?;
        group.remove(&qpn);
        if group.is_empty() {
            self.members.remove(&gid);
        }
        if self.of_qp.remove(&(qpn, gid)) { Ok(()) } else { Err(CmdStatus::BadRes) }
    }

    /// Returns the members of a group.
    pub(super) fn members(&self, gid: [u8; 16]) -> impl Iterator<Item = u32> {
        self.members.get(&gid).into_iter().flatten().copied()
    }

    /// Removes a queue pair that is destroyed.
    pub(super) fn forget(&mut self, qpn: u32) {
        let range = (qpn, [0; 16])..=(qpn, [0xff; 16]);
        while let Some(&(_, gid)) = self.of_qp.range(range.clone()).next() {
            // Every queue pair in the set is a member.
            if self.detach(gid, qpn).is_err() {
                return;
            }
        }
    }
}
