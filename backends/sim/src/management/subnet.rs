//! The port's subnet management agent (IBTA 14.2): who and what the port is, and what a subnet manager makes of it.

use bareverbs_mlx5_spec::{GUIDS_PER_BLOCK, NodeInfo, PKEYS_PER_BLOCK, ViewMut};

use super::mad::status;
use super::port_info::{ATTRIBUTE, Data, PortInfo, SetPortInfo};
use crate::config::DeviceConfig;
use crate::limits::{GIDS, PKEYS};
use crate::packet::{FIRST_MULTICAST_LID, NO_LID};
use crate::port::Port;
use crate::stats::EngineStats;

/// Attributes (IBTA table 120).
pub(super) mod attribute {
    use bareverbs_mlx5_spec::SubnetAttribute;

    pub(super) const NODE_DESCRIPTION: u16 = SubnetAttribute::NodeDescription as u16;
    pub(super) const NODE_INFO: u16 = SubnetAttribute::NodeInfo as u16;
    pub(super) const GUID_INFO: u16 = SubnetAttribute::GuidInfo as u16;
    pub(super) const PORT_INFO: u16 = SubnetAttribute::PortInfo as u16;
    pub(super) const PKEY_TABLE: u16 = SubnetAttribute::PKeyTable as u16;
    pub(super) const SL_TO_VL_TABLE: u16 = SubnetAttribute::SlToVlTable as u16;
    pub(in super::super) const SM_INFO: u16 = SubnetAttribute::SmInfo as u16;
}

/// Returns the port of PortInfo's modifier, whose highest bit says that the manager supports the extended speeds (IBTA
/// 14.2.5.6). Port 0 is whichever port was asked.
fn is_own_port(modifier: u32) -> bool {
    modifier & 0xff <= 1
}

/// Returns the block of a table of GUIDs, the whole modifier (14.2.5.5).
fn guid_block(modifier: u32) -> Option<usize> {
    usize::try_from(modifier).ok().filter(|&block| block < GIDS / GUIDS_PER_BLOCK)
}

/// Returns the block of the partition table: the lower half of the modifier. The upper half is a switch's port, and means
/// nothing to an adapter (14.2.5.7).
fn pkey_block(modifier: u32) -> Option<usize> {
    let block = modifier as usize & 0xffff;
    (block < PKEYS / PKEYS_PER_BLOCK).then_some(block)
}

/// Returns the content of an attribute, or the status of a refusal.
pub(super) fn get(
    port: &Port,
    config: &DeviceConfig,
    stats: &EngineStats,
    attribute: u16,
    modifier: u32,
    show_key: bool,
) -> Result<Data, u16> {
    match attribute {
        attribute::NODE_DESCRIPTION => Ok(port.node_description().first_chunk().copied().unwrap_or([0; ATTRIBUTE])),
        attribute::NODE_INFO => Ok(node_info(port, config)),
        attribute::PORT_INFO if is_own_port(modifier) => {
            let info = port.info(stats);
            Ok(PortInfo { m_key: if show_key { info.m_key } else { 0 }, ..info }.bytes())
        }
        attribute::PORT_INFO => Err(status::MODIFIER),
        attribute::GUID_INFO => guid_block(modifier).map(|block| guids(port, block)).ok_or(status::MODIFIER),
        attribute::PKEY_TABLE => pkey_block(modifier).map(|block| pkeys(port, block)).ok_or(status::MODIFIER),
        // Every service level uses virtual lane 0. The modifier is a switch's ports (14.2.5.8).
        attribute::SL_TO_VL_TABLE => Ok([0; ATTRIBUTE]),
        _ => Err(status::ATTRIBUTE),
    }
}

/// Does what a manager asks for, or says why not. A port that waits for no manager takes nothing from one.
pub(super) fn set(port: &mut Port, stats: &EngineStats, attribute: u16, modifier: u32, data: &[u8]) -> Result<(), u16> {
    match attribute {
        _ if !port.is_managed() => Err(status::ATTRIBUTE),
        attribute::PORT_INFO if is_own_port(modifier) => {
            let info = SetPortInfo::read(data.first_chunk().unwrap_or(&[0; ATTRIBUTE]));
            // No unicast address.
            if info.lid == NO_LID || info.lid >= FIRST_MULTICAST_LID || !port.set_info(&info, stats) {
                return Err(status::MODIFIER);
            }
            Ok(())
        }
        attribute::PORT_INFO => Err(status::MODIFIER),
        attribute::PKEY_TABLE => {
            let block = pkey_block(modifier).ok_or(status::MODIFIER)?;
            let pkeys: Vec<u16> =
                data.as_chunks().0.iter().take(PKEYS_PER_BLOCK).map(|pkey| u16::from_be_bytes(*pkey)).collect();
            port.set_pkeys(block * PKEYS_PER_BLOCK, &pkeys);
            Ok(())
        }
        _ => Err(status::ATTRIBUTE),
    }
}

/// NodeInfo (IBTA 14.2.5.3).
fn node_info(port: &Port, config: &DeviceConfig) -> Data {
    const CHANNEL_ADAPTER: u32 = 1;
    const VENDOR: u32 = 0x00_02c9;
    let mut data = [0; ATTRIBUTE];
    ViewMut::<NodeInfo>::of(&mut data)
        .set(NodeInfo::BASE_VERSION, 1)
        .set(NodeInfo::CLASS_VERSION, 1)
        .set(NodeInfo::NODE_TYPE, CHANNEL_ADAPTER)
        .set(NodeInfo::NUM_PORTS, 1)
        .set64(NodeInfo::SYSTEM_IMAGE_GUID, port.system_guid())
        .set64(NodeInfo::NODE_GUID, port.node_guid())
        .set64(NodeInfo::PORT_GUID, port.port_guid())
        .set(NodeInfo::PARTITION_CAP, PKEYS as u32)
        .set(NodeInfo::DEVICE_ID, config.pci_device_id.into())
        .set(NodeInfo::LOCAL_PORT_NUM, 1)
        .set(NodeInfo::VENDOR_ID, VENDOR);
    data
}

fn guids(port: &Port, block: usize) -> Data {
    let mut data = [0; ATTRIBUTE];
    for (place, index) in data.chunks_exact_mut(8).zip(block * GUIDS_PER_BLOCK..) {
        let guid = port.identity().gid(index).and_then(|gid| gid.last_chunk().copied()).unwrap_or([0; 8]);
        place.copy_from_slice(&guid);
    }
    data
}

fn pkeys(port: &Port, block: usize) -> Data {
    let mut data = [0; ATTRIBUTE];
    for (place, index) in data.chunks_exact_mut(2).zip(block * PKEYS_PER_BLOCK..) {
        place.copy_from_slice(&port.identity().pkey(index).to_be_bytes());
    }
    data
}
