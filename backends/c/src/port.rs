//! What the device and its ports are.

use core::time::Duration;

use bareverbs::{Gid, GidEntry, LinkLayer, Mac, PortAttr, PortState};

use crate::argument::{Output, reference};
use crate::call::on_verbs;
use crate::device::bv_device;
use crate::{BV_LINK_LAYER_ETHERNET, BV_LINK_LAYER_INFINIBAND, BV_PORT_ACTIVE, BV_PORT_ARMED, BV_PORT_DOWN, BV_PORT_INIT};

/// What a device has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_device_attr {
    /// GUID of the node.
    pub node_guid: u64,
    /// Maximum length of a region in bytes.
    pub max_mr_size: u64,
    /// Firmware version: major, minor, sub-minor.
    pub fw_ver: [u16; 3],
    /// Ports.
    pub phys_port_cnt: u16,
    /// Vendor (IEEE OUI).
    pub vendor_id: u32,
    /// SGEs of one request.
    pub max_sge: u32,
    /// Completions of one queue.
    pub max_cqe: u32,
    /// Maximum inline payload in bytes.
    pub max_inline_data: u32,
    /// Reads and atomics outstanding as target, one queue pair.
    pub max_qp_rd_atom: u32,
    /// Reads and atomics outstanding as initiator, one queue pair.
    pub max_qp_init_rd_atom: u32,
    /// 1 if 8-byte atomics are done.
    pub atomics: u32,
}

/// What a port has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_port_attr {
    /// GUID.
    pub port_guid: u64,
    /// State: BV_PORT_DOWN and the others.
    pub state: u32,
    /// Physical state (IBTA 14.2.5.6, PortInfo:PortPhysicalState): 5 is a link.
    pub phys_state: u32,
    /// Greatest MTU, as its code: 1 for 256 bytes to 5 for 4096.
    pub max_mtu: u32,
    /// MTU in use.
    pub active_mtu: u32,
    /// Number of GIDs.
    pub gid_tbl_len: u32,
    /// Number of P_Keys.
    pub pkey_tbl_len: u32,
    /// Rate in gigabits a second.
    pub active_speed_gbps: u32,
    /// Capability mask (PortInfo:CapabilityMask).
    pub port_cap_flags: u32,
    /// LID.
    pub lid: u16,
    /// LID of the subnet manager.
    pub sm_lid: u16,
    /// Number of low LID bits that select a path.
    pub lmc: u8,
    /// Lanes.
    pub active_width: u8,
    /// 1 if every path from the port needs a global route (bv_qp_attr.is_global).
    pub grh_required: u8,
    /// BV_LINK_LAYER_INFINIBAND or BV_LINK_LAYER_ETHERNET.
    pub link_layer: u8,
    /// MAC address of an Ethernet port, first byte first on the wire; zeros of an InfiniBand port.
    pub mac: [u8; 6],
}

impl From<&PortAttr> for bv_port_attr {
    fn from(port: &PortAttr) -> Self {
        Self {
            port_guid: port.port_guid.0,
            state: match port.state {
                PortState::Down => BV_PORT_DOWN,
                PortState::Init => BV_PORT_INIT,
                PortState::Armed => BV_PORT_ARMED,
                PortState::Active => BV_PORT_ACTIVE,
            },
            phys_state: port.phys_state.encoding().into(),
            max_mtu: port.max_mtu as u32,
            active_mtu: port.active_mtu as u32,
            gid_tbl_len: port.gid_tbl_len.into(),
            pkey_tbl_len: port.pkey_tbl_len.into(),
            active_speed_gbps: port.active_speed_gbps,
            port_cap_flags: port.cap_mask,
            lid: port.lid.get(),
            sm_lid: port.sm_lid.get(),
            lmc: port.lmc,
            active_width: port.active_width,
            grh_required: port.grh_required.into(),
            link_layer: match port.link_layer {
                LinkLayer::InfiniBand => BV_LINK_LAYER_INFINIBAND,
                LinkLayer::Ethernet => BV_LINK_LAYER_ETHERNET,
            },
            mac: port.mac.0,
        }
    }
}

/// Writes the attributes of a device that is up.
///
/// Errors: BV_ENODEV, the device is not up. BV_EINVAL, a pointer is NULL.
///
/// # Safety
/// `device` is of bv_init; `attr` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_query_device(device: *mut bv_device, attr: *mut bv_device_attr) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(attr, "attr")?;
            let device = up.verbs.query_device();
            place.set(bv_device_attr {
                node_guid: device.node_guid.0,
                max_mr_size: device.max_mr_size,
                fw_ver: device.fw_ver,
                phys_port_cnt: device.phys_port_cnt.into(),
                vendor_id: device.vendor_id,
                max_sge: device.max_sge,
                max_cqe: device.max_cqe,
                max_inline_data: device.max_inline_data,
                max_qp_rd_atom: device.max_qp_rd_atom.into(),
                max_qp_init_rd_atom: device.max_qp_init_rd_atom.into(),
                atomics: device.atomics.into(),
            });
            Ok(0)
        })
    }
}

/// Writes the attributes of a port, from 1.
///
/// Errors: BV_EINVAL, there is no such port. Others: the device does not answer.
///
/// # Safety
/// `device` is of bv_init; `attr` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_query_port(device: *mut bv_device, port: u8, attr: *mut bv_port_attr) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(attr, "attr")?;
            place.set((&up.verbs.query_port(port)?).into());
            Ok(0)
        })
    }
}

/// Waits until a port, from 1, is active and has a LID, and writes its attributes. After a reset of a card that takes seconds:
/// 60000 milliseconds are a good timeout.
///
/// Errors: BV_ETIMEDOUT, it is not usable in time: bv_strerror_detail says what is missing. Others as of bv_query_port.
///
/// # Safety
/// `device` is of bv_init; `attr` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_wait_active(device: *mut bv_device, port: u8, timeout_ms: u32, attr: *mut bv_port_attr) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(attr, "attr")?;
            place.set((&up.verbs.wait_active(port, Duration::from_millis(timeout_ms.into()))?).into());
            Ok(0)
        })
    }
}

/// Writes the 16 bytes of an entry of a port's GID table, in network byte order.
///
/// Errors: BV_EINVAL, there is no such port or entry. Others: the device does not answer.
///
/// # Safety
/// `device` is of bv_init; `gid` is 16 writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_query_gid(device: *mut bv_device, port: u8, index: u16, gid: *mut u8) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(gid.cast::<[u8; 16]>(), "gid")?;
            place.set(up.verbs.query_gid(port, index)?.0);
            Ok(0)
        })
    }
}

/// Sets an entry of the GID table of an Ethernet port: the 16 bytes of an IP address in network byte order (one of IPv4 as
/// ::ffff:a.b.c.d), the 6 bytes of a MAC address, which is that of the port (bv_port_attr.mac), and a VLAN from 1 to 4094, or 0 for
/// none. Paths name the entry by bv_qp_attr.sgid_index, and queue pairs that use it send with its new values from then on.
///
/// The verbs answer no ARP and no neighbor solicitation: the peer's MAC address is given with the path (bv_qp_attr.dmac).
///
/// Errors: BV_EINVAL, there is no such port or entry, or an address or the VLAN is impossible. BV_EOPNOTSUPP, the port is an
/// InfiniBand port. Others: the device did not do it, and the entry is as before.
///
/// # Safety
/// `device` is of bv_init; `gid` is 16 and `mac` 6 readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_set_gid(
    device: *mut bv_device,
    port: u8,
    index: u16,
    gid: *const u8,
    mac: *const u8,
    vlan: u16,
) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let gid = Gid(*reference(gid.cast::<[u8; 16]>(), "gid")?);
            let mac = Mac(*reference(mac.cast::<[u8; 6]>(), "mac")?);
            up.verbs.set_gid(port, index, &GidEntry { gid, mac, vlan: (vlan != 0).then_some(vlan) })?;
            Ok(0)
        })
    }
}

/// Empties an entry of the GID table of an Ethernet port. What queue pairs send through it is lost until it is set again.
///
/// Errors: as of bv_set_gid.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_delete_gid(device: *mut bv_device, port: u8, index: u16) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            up.verbs.delete_gid(port, index)?;
            Ok(0)
        })
    }
}
