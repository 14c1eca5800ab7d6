//! The port's subnet management agent (IBTA 14.2): who and what the port is, and what a subnet manager makes of it.

use super::status;
use crate::config::DeviceConfig;
use crate::engine::EngineStats;
use crate::packet::{FIRST_MULTICAST_LID, NO_LID};
use crate::port::{GIDS, PKEYS, Port};

/// Attributes (IBTA table 120).
pub(super) mod attribute {
    pub(super) const NODE_DESCRIPTION: u16 = 0x10;
    pub(super) const NODE_INFO: u16 = 0x11;
    pub(super) const GUID_INFO: u16 = 0x14;
    pub(super) const PORT_INFO: u16 = 0x15;
    pub(super) const PKEY_TABLE: u16 = 0x16;
    pub(super) const SL_TO_VL_TABLE: u16 = 0x17;
    pub(in super::super) const SM_INFO: u16 = 0x20;
}

/// Bytes of an attribute.
const ATTRIBUTE: usize = 64;
type Data = [u8; ATTRIBUTE];

const GUIDS_A_BLOCK: usize = 8;
const PKEYS_A_BLOCK: usize = 32;

/// The port of PortInfo's modifier, whose uppermost bit says that the manager knows the extended speeds (IBTA 14.2.5.6). Port 0 is
/// whichever port was asked.
fn is_own_port(modifier: u32) -> bool {
    modifier & 0xff <= 1
}

/// The block of a table of GUIDs, the whole modifier (14.2.5.5).
fn guid_block(modifier: u32) -> Option<usize> {
    usize::try_from(modifier).ok().filter(|&block| block < GIDS / GUIDS_A_BLOCK)
}

/// The block of the partition table: the lower half of the modifier. The upper half is a switch's port, and means nothing to an
/// adapter (14.2.5.7).
fn pkey_block(modifier: u32) -> Option<usize> {
    let block = modifier as usize & 0xffff;
    (block < PKEYS / PKEYS_A_BLOCK).then_some(block)
}

/// What an attribute holds, or why there is no answer.
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

/// What a subnet manager sets of PortInfo; of the rest there is no choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetPortInfo {
    pub(crate) m_key: u64,
    pub(crate) m_key_protection: u8,
    pub(crate) m_key_lease: u16,
    /// Of the management key, partitions and queue keys: whether the count is to be 0.
    pub(crate) clears_violations: [bool; 3],
    pub(crate) gid_prefix: u64,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    /// 0 leaves it.
    pub(crate) state: u32,
    pub(crate) client_reregister: bool,
}

/// Does what a manager asks for, or says why not. A port that waits for no manager takes nothing from one.
pub(super) fn set(port: &mut Port, stats: &EngineStats, attribute: u16, modifier: u32, data: &[u8]) -> Result<(), u16> {
    match attribute {
        _ if !port.is_managed() => Err(status::ATTRIBUTE),
        attribute::PORT_INFO if is_own_port(modifier) => {
            let info = SetPortInfo::read(data);
            // No unicast address.
            if info.lid == NO_LID || info.lid >= FIRST_MULTICAST_LID || !port.set_info(&info, stats) {
                return Err(status::MODIFIER);
            }
            Ok(())
        }
        attribute::PORT_INFO => Err(status::MODIFIER),
        attribute::PKEY_TABLE => {
            let block = pkey_block(modifier).ok_or(status::MODIFIER)?;
            let pkeys: Vec<u16> = data.as_chunks().0.iter().take(PKEYS_A_BLOCK).map(|pkey| u16::from_be_bytes(*pkey)).collect();
            port.set_pkeys(block * PKEYS_A_BLOCK, &pkeys);
            Ok(())
        }
        _ => Err(status::ATTRIBUTE),
    }
}

impl SetPortInfo {
    fn read(data: &[u8]) -> Self {
        let word = |at: usize| data.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes));
        let byte = |at: usize| data.get(at).copied().unwrap_or(0);
        let long = |at: usize| data.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_be_bytes(*bytes));
        Self {
            m_key: long(0),
            m_key_protection: byte(34) >> 6,
            m_key_lease: word(26),
            clears_violations: [44, 46, 48].map(|at| word(at) == 0),
            gid_prefix: long(8),
            lid: word(16),
            sm_lid: word(18),
            state: u32::from(byte(32) & 0xf),
            client_reregister: byte(51) & 0x80 != 0,
        }
    }
}

/// NodeInfo (IBTA 14.2.5.3).
fn node_info(port: &Port, config: &DeviceConfig) -> Data {
    const CHANNEL_ADAPTER: u8 = 1;
    /// Partition table entries.
    const PARTITIONS: u16 = PKEYS as u16;
    const VENDOR: u32 = 0x00_02c9;
    let mut data = [0; ATTRIBUTE];
    let guids = [port.system_guid(), port.node_guid(), port.port_guid()];
    let parts = [&[1, 1, CHANNEL_ADAPTER, 1][..], &guids.map(u64::to_be_bytes).concat()]
        .concat()
        .into_iter()
        .chain(PARTITIONS.to_be_bytes())
        .chain(config.pci_device_id.to_be_bytes())
        .chain([0; 4])
        // The port that was asked, and who made the adapter.
        .chain((1 << 24 | VENDOR).to_be_bytes());
    data.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    data
}

fn guids(port: &Port, block: usize) -> Data {
    let mut data = [0; ATTRIBUTE];
    for (place, index) in data.chunks_exact_mut(8).zip(block * GUIDS_A_BLOCK..) {
        let guid = port.gid(index).and_then(|gid| gid.last_chunk().copied()).unwrap_or([0; 8]);
        place.copy_from_slice(&guid);
    }
    data
}

fn pkeys(port: &Port, block: usize) -> Data {
    let mut data = [0; ATTRIBUTE];
    for (place, index) in data.chunks_exact_mut(2).zip(block * PKEYS_A_BLOCK..) {
        place.copy_from_slice(&port.pkey(index).unwrap_or(0).to_be_bytes());
    }
    data
}

/// PortInfo (IBTA 14.2.5.6), as far as anything of it is not zero. Codes are InfiniBand's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortInfo {
    pub(crate) m_key: u64,
    pub(crate) m_key_protection: u8,
    pub(crate) m_key_lease: u16,
    /// Of the management key, partitions and queue keys.
    pub(crate) violations: [u16; 3],
    pub(crate) gid_prefix: u64,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) capabilities: u32,
    /// Widths that the port can have, and the one that it has.
    pub(crate) widths: u8,
    pub(crate) width: u8,
    /// State of the port, and of the link beneath it.
    pub(crate) state: u8,
    pub(crate) physical_state: u8,
    /// Speeds as PTYS has them: a bit each from SDR up, those that the port can have and the one that it has.
    pub(crate) speeds: u8,
    pub(crate) speed: u8,
    /// MTU in use and greatest MTU.
    pub(crate) mtu: u8,
    pub(crate) max_mtu: u8,
    pub(crate) subnet_timeout: u8,
}

impl PortInfo {
    fn bytes(self) -> Data {
        /// SDR, DDR and QDR; a faster link shows as QDR in the place of these.
        const fn plain(bits: u8) -> u8 {
            if bits & 0xf0 == 0 { bits & 0b111 } else { 0b100 }
        }
        /// FDR, EDR, HDR and NDR have a place of their own.
        const fn extended(bits: u8) -> u8 {
            bits >> 4
        }
        /// Virtual lanes 0 to 3.
        const LANES: u8 = 3;
        const GUIDS: u8 = GIDS as u8;
        let mut data = [0; ATTRIBUTE];
        let mut put = |at: usize, bytes: &[u8]| data.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
        put(0, &self.m_key.to_be_bytes());
        put(8, &self.gid_prefix.to_be_bytes());
        put(16, &self.lid.to_be_bytes());
        put(18, &self.sm_lid.to_be_bytes());
        put(20, &self.capabilities.to_be_bytes());
        put(26, &self.m_key_lease.to_be_bytes());
        // Local port, widths enabled, supported and active.
        put(28, &[1, self.widths, self.widths, self.width]);
        // A link that goes down polls.
        put(32, &[(self.speeds & 0b111) << 4 | self.state, self.physical_state << 4 | 2]);
        put(34, &[self.m_key_protection << 6]);
        put(35, &[plain(self.speed) << 4 | (self.speeds & 0b111), self.mtu << 4, LANES << 4]);
        put(41, &[self.max_mtu]);
        put(43, &[LANES << 4]);
        put(44, self.violations.map(u16::to_be_bytes).as_flattened());
        put(50, &[GUIDS, self.subnet_timeout, self.subnet_timeout]);
        put(62, &[extended(self.speed) << 4 | extended(self.speeds), extended(self.speeds)]);
        data
    }
}
