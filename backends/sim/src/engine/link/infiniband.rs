//! The link layer of an InfiniBand port: local identifiers, GIDs, and the virtual lane of subnet management.

use std::sync::Arc;

use bareverbs_mlx5_spec::{Ads, View};

use crate::identity::PortIdentity;
use crate::packet::{
    FIRST_MULTICAST_LID, Grh, InfiniBandLink, Lrh, NO_LID, PERMISSIVE_LID, SUBNET_LANE, SUBNET_QPN, TransportPart,
};
use crate::wqe_decode::AddressVector;

/// First byte of the GID of a group.
const GROUP_GID: u8 = 0xff;

/// An InfiniBand port.
#[derive(Clone, Debug)]
pub(in crate::engine) struct InfiniBandPort {
    identity: Arc<PortIdentity>,
}

/// Returns the virtual lane of subnet management, or of all else.
fn lane(is_subnet: bool) -> u8 {
    if is_subnet { SUBNET_LANE } else { 0 }
}

impl InfiniBandPort {
    pub(super) fn new(identity: Arc<PortIdentity>) -> Self {
        Self { identity }
    }

    pub(super) fn identity(&self) -> &PortIdentity {
        &self.identity
    }

    pub(super) fn check(&self, link: &InfiniBandLink, transport: &TransportPart<'_>) -> Result<(), &'static str> {
        if !comes_from_a_port(&link.lrh) {
            return Err("its source is no port");
        }
        if !keeps_subnet_lane(&link.lrh, transport) {
            return Err("virtual lane 15 is for queue pair 0 alone");
        }
        if link.lrh.dlid == PERMISSIVE_LID && link.lrh.vl != SUBNET_LANE {
            return Err("the permissive LID is for subnet management alone");
        }
        Ok(())
    }

    pub(super) fn is_destination(&self, lrh: &Lrh) -> bool {
        lrh.dlid == self.identity.lid() || lrh.dlid == PERMISSIVE_LID
    }

    pub(super) fn ends_route(&self, link: &InfiniBandLink) -> bool {
        link.grh.is_none_or(|route| self.identity.has_gid(route.dgid))
    }

    pub(super) fn loops_back(&self, link: &InfiniBandLink) -> bool {
        link.lrh.dlid == self.identity.lid() && link.lrh.dlid != NO_LID
    }

    pub(super) fn is_source(&self, link: &InfiniBandLink) -> bool {
        link.lrh.slid == self.identity.lid()
    }

    pub(super) fn to_peer(&self, path: View<'_, Ads>, is_subnet: bool) -> InfiniBandLink {
        let lrh = Lrh {
            vl: lane(is_subnet),
            sl: path.get(Ads::SL) as u8,
            dlid: path.get(Ads::RLID) as u16,
            slid: self.identity.lid(),
        };
        let grh = path.is_set(Ads::GRH).then(|| Grh {
            tclass: path.get(Ads::TCLASS) as u8,
            flow_label: path.get(Ads::FLOW_LABEL),
            hop_limit: path.get(Ads::HOP_LIMIT) as u8,
            // An entry that is gone since the path was taken.
            sgid: self.identity.source_gid(path.get(Ads::SRC_ADDR_INDEX)).unwrap_or_else(|| self.identity.port_gid()),
            dgid: path.bytes(Ads::RGID_RIP).try_into().unwrap_or_default(),
        });
        InfiniBandLink { lrh, grh }
    }

    pub(super) fn to_address(&self, address: &AddressVector, path: View<'_, Ads>, is_subnet: bool) -> Option<InfiniBandLink> {
        let mut link = self.to_peer(path, is_subnet);
        link.lrh.dlid = address.rlid;
        link.lrh.sl = address.sl;
        if let Some(route) = address.is_global.then_some(&address.route) {
            link.grh = Some(Grh {
                tclass: route.tclass,
                flow_label: route.flow_label,
                hop_limit: route.hop_limit,
                sgid: self.identity.source_gid(route.sgid_index.into())?,
                dgid: route.dgid,
            });
        }
        Some(link)
    }

    pub(super) fn to_asker(&self, question: &InfiniBandLink, is_subnet: bool) -> InfiniBandLink {
        let asker = question.lrh.slid;
        // A port without a local identifier is at the other end of the cable.
        let dlid = if asker == NO_LID { PERMISSIVE_LID } else { asker };
        let lrh = Lrh { vl: lane(is_subnet), sl: question.lrh.sl, dlid, slid: self.identity.lid() };
        let sgid = || self.identity.port_gid();
        let grh = question.grh.map(|route| Grh { hop_limit: 0xff, sgid: sgid(), dgid: route.sgid, ..route });
        InfiniBandLink { lrh, grh }
    }

    pub(super) fn to_manager(&self, manager: u16) -> InfiniBandLink {
        Lrh { vl: SUBNET_LANE, sl: 0, dlid: manager, slid: self.identity.lid() }.into()
    }

    pub(super) fn accepts_path(&self, path: View<'_, Ads>, is_connected: bool) -> bool {
        let lid = path.get(Ads::RLID);
        let is_unicast = lid != u32::from(NO_LID) && lid < u32::from(FIRST_MULTICAST_LID);
        (is_unicast || !is_connected) && self.has_source(path)
    }

    pub(super) fn gid_entries(&self) -> u32 {
        self.identity.gid_entries() as u32
    }

    pub(super) fn has_source(&self, path: View<'_, Ads>) -> bool {
        !path.is_set(Ads::GRH) || self.identity.source_gid(path.get(Ads::SRC_ADDR_INDEX)).is_some()
    }
}

pub(super) fn is_from_peer(lrh: &Lrh, path: View<'_, Ads>) -> bool {
    u32::from(lrh.slid) == path.get(Ads::RLID)
}

pub(super) fn begins_route_at_peer(link: &InfiniBandLink, path: View<'_, Ads>) -> bool {
    let Some(route) = link.grh else { return true };
    !path.is_set(Ads::GRH) || path.bytes(Ads::RGID_RIP) == route.sgid
}

pub(super) fn is_group(gid: [u8; 16]) -> bool {
    gid.first() == Some(&GROUP_GID)
}

/// Returns whether the source can be a port's: a unicast LID. Only subnet management comes from a port without one.
fn comes_from_a_port(lrh: &Lrh) -> bool {
    match lrh.slid {
        NO_LID => lrh.vl == SUBNET_LANE,
        slid => slid < FIRST_MULTICAST_LID,
    }
}

/// Returns whether the packet keeps the rules of subnet management: queue pair 0 sends to queue pair 0, on virtual lane 15.
/// Nothing else uses that lane (InfiniBand Architecture 7.6, 14.2.1).
fn keeps_subnet_lane(lrh: &Lrh, transport: &TransportPart<'_>) -> bool {
    let subnet = transport.bth.dest_qpn == SUBNET_QPN;
    let from_manager = transport.deth.is_some_and(|deth| deth.source_qpn == SUBNET_QPN);
    subnet == (lrh.vl == SUBNET_LANE) && (!subnet || from_manager)
}
