//! Attributes of a device as the subcommands report them, with the names and formats of `ibv_devinfo`.

use bareverbs::{DeviceAttr, Gid, Guid, PhysState, PortState};
use serde::Serialize;

/// Attributes of a device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceAttributes {
    /// Firmware version.
    pub fw_ver: String,
    /// Node GUID.
    pub node_guid: String,
    /// System image GUID.
    pub sys_image_guid: String,
    /// Vendor ID.
    pub vendor_id: u32,
    /// PCI device ID.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hw_ver: u32,
    /// Number of ports.
    pub phys_port_cnt: u8,
    /// Maximum bytes of a memory region.
    pub max_mr_size: u64,
    /// Bit n: pages of 2^n bytes are supported.
    pub page_size_cap: u64,
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of requests in a work queue.
    pub max_qp_wr: u32,
    /// Maximum number of SGEs of a request.
    pub max_sge: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of entries in a completion queue.
    pub max_cqe: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum number of memory windows.
    pub max_mw: u32,
    /// Maximum number of protection domains.
    pub max_pd: u32,
    /// Maximum number of reads and atomics outstanding as target.
    pub max_qp_rd_atom: u8,
    /// Maximum number of reads and atomics outstanding as initiator.
    pub max_qp_init_rd_atom: u8,
    /// Whether 8-byte atomics are supported.
    pub atomic_cap: bool,
    /// Maximum bytes of an inline payload.
    pub max_inline_data: u32,
    /// Maximum bytes of a message.
    pub max_msg_sz: u64,
}

impl DeviceAttributes {
    /// Converts attributes of the verbs. Device ID and revision are in PCI configuration space, which the driver does not access.
    pub fn new(attr: &DeviceAttr, (device_id, revision): (u16, u8)) -> Self {
        Self {
            fw_ver: version(attr.fw_ver),
            node_guid: guid(attr.node_guid),
            sys_image_guid: guid(attr.sys_image_guid),
            vendor_id: attr.vendor_id,
            vendor_part_id: device_id.into(),
            hw_ver: revision.into(),
            phys_port_cnt: attr.phys_port_cnt,
            max_mr_size: attr.max_mr_size,
            page_size_cap: attr.page_size_cap,
            max_qp: attr.max_qp,
            max_qp_wr: attr.max_qp_wr,
            max_sge: attr.max_sge,
            max_cq: attr.max_cq,
            max_cqe: attr.max_cqe,
            max_mr: attr.max_mr,
            max_mw: attr.max_mw,
            max_pd: attr.max_pd,
            max_qp_rd_atom: attr.max_qp_rd_atom,
            max_qp_init_rd_atom: attr.max_qp_init_rd_atom,
            atomic_cap: attr.atomics,
            max_inline_data: attr.max_inline_data,
            max_msg_sz: attr.max_msg_size,
        }
    }
}

/// Returns the name and the number of a port state in `ibv_devinfo`.
pub(crate) fn port_state(state: PortState) -> (&'static str, u32) {
    match state {
        PortState::Down => ("PORT_DOWN", 1),
        PortState::Init => ("PORT_INIT", 2),
        PortState::Armed => ("PORT_ARMED", 3),
        PortState::Active => ("PORT_ACTIVE", 4),
    }
}

/// Returns the name of a physical state in `ibv_devinfo`.
pub(crate) const fn phys_state(state: PhysState) -> &'static str {
    match state {
        PhysState::Sleep => "SLEEP",
        PhysState::Polling => "POLLING",
        PhysState::Disabled => "DISABLED",
        PhysState::Training => "PORT_CONFIGURATION TRAINNING",
        PhysState::LinkUp => "LINK_UP",
        PhysState::LinkErrorRecovery => "LINK_ERROR_RECOVERY",
        PhysState::PhyTest => "PHY TEST",
        PhysState::Unknown(_) => "invalid physical state",
    }
}

/// Returns a firmware version in the format of `ibv_devinfo`.
fn version([major, minor, sub]: [u16; 3]) -> String {
    format!("{major}.{minor:02}.{sub:04}")
}

/// Returns groups of four digits, as in GUIDs and GIDs of `ibv_devinfo`.
fn groups(bytes: &[u8]) -> String {
    bytes.chunks(2).map(bareverbs_decode::field_printer::hex).collect::<Vec<_>>().join(":")
}

/// Returns a GUID in the format of `ibv_devinfo`.
pub(crate) fn guid(guid: Guid) -> String {
    groups(&guid.0.to_be_bytes())
}

/// Returns a GID in the format of `ibv_devinfo`.
pub(crate) fn gid(gid: Gid) -> String {
    groups(&gid.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_guids_have_the_format_of_ibv_devinfo() {
        assert_eq!(guid(Guid(0x0002_c903_0000_1234)), "0002:c903:0000:1234");
        assert_eq!(version([28, 9, 1002]), "28.09.1002");
    }
}
