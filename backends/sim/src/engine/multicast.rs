//! Multicast groups: which datagram queue pairs get a copy of what is sent to a group.

use std::collections::{BTreeMap, BTreeSet};

use bareverbs_mlx5_spec::{CmdStatus, Qpc};

use super::Engine;
use super::qp::context::Service;
use crate::env::Env;
use crate::packet::Packet;

/// Groups, and queue pairs of one, at most: what the capabilities say (`log_max_mcg`, `max_qp_mcg`).
pub(crate) const LOG_MAX_GROUPS: u32 = 8;
pub(crate) const MAX_MEMBERS: usize = 16;
/// First byte of the GID of a group.
const GROUP_GID: u8 = 0xff;

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

    fn attach(&mut self, gid: [u8; 16], qpn: u32) -> Result<(), CmdStatus> {
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

    fn detach(&mut self, gid: [u8; 16], qpn: u32) -> Result<(), CmdStatus> {
        let group = self.members.get_mut(&gid).ok_or(CmdStatus::BadRes)?;
        group.remove(&qpn);
        if group.is_empty() {
            self.members.remove(&gid);
        }
        if self.of_qp.remove(&(qpn, gid)) { Ok(()) } else { Err(CmdStatus::BadRes) }
    }

    /// A queue pair is gone.
    pub(super) fn forget(&mut self, qpn: u32) {
        let range = (qpn, [0; 16])..=(qpn, [0xff; 16]);
        while let Some(&(_, gid)) = self.of_qp.range(range.clone()).next() {
            // Whoever is in the set is a member.
            if self.detach(gid, qpn).is_err() {
                return;
            }
        }
    }
}

impl Engine {
    /// Gives a datagram queue pair a copy of what is sent to the group `gid` (wire order) from now on.
    pub fn attach_multicast(&mut self, qpn: u32, gid: [u8; 16]) -> Result<(), CmdStatus> {
        let qp = self.qps.get(&qpn).ok_or(CmdStatus::BadRes)?;
        if qp.context.service != Service::Ud || gid.first() != Some(&GROUP_GID) {
            return Err(CmdStatus::BadParam);
        }
        self.groups.attach(gid, qpn)
    }

    /// Ends [`Engine::attach_multicast`].
    pub fn detach_multicast(&mut self, qpn: u32, gid: [u8; 16]) -> Result<(), CmdStatus> {
        self.groups.detach(gid, qpn)
    }

    /// Delivers a packet to each member of its group that takes it. The sender's own members get their copies too, but
    /// for those that asked not to hear their own device.
    pub(super) fn receive_multicast(&mut self, env: &mut Env<'_>, packet: &Packet<'_>, octets: usize) {
        let group = packet.grh.and_then(|route| self.groups.members.get(&route.dgid));
        let members: Vec<u32> = group.into_iter().flatten().copied().collect();
        // Each is looked at, whether it takes the packet or not.
        env.meter.count(members.len() as u64);
        let own = packet.lrh.slid == self.shared.config.lid;
        let addressing = packet.addressing();
        let mut taken = false;
        for qpn in members {
            let Some(qp) = self
                .qps
                .get(&qpn)
                .filter(|qp| qp.accepts(&addressing, &self.shared) && qp.shares_partition(packet, &self.shared))
            else {
                continue;
            };
            if own && qp.context.get(Qpc::BLOCK_LB_MC) != 0 {
                continue;
            }
            taken = true;
            self.deliver(env, qpn, packet);
        }
        if taken {
            self.shared.stats.received_multicast.count(octets);
        } else {
            env.note(|| "multicast packet dropped: no member takes it".to_owned());
            self.shared.stats.dropped += 1;
        }
    }
}
