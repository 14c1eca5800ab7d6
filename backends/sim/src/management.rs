//! The port's subnet management agent: answers to management datagrams of subnet management classes (IBTA 13.4, 14.2).
//!
//! The port is configured by its maker, so there is nothing for a subnet manager to set: questions are answered, the rest is
//! refused in the answer's status.

use crate::config::DeviceConfig;
use crate::port::{GIDS, PKEYS, Port};

/// Bytes of a management datagram.
pub(crate) const MAD: usize = 256;

/// Places in a datagram (IBTA 13.4.2, 14.2.1).
mod at {
    pub(super) const CLASS: usize = 1;
    pub(super) const CLASS_VERSION: usize = 2;
    pub(super) const METHOD: usize = 3;
    pub(super) const STATUS: usize = 4;
    pub(super) const ATTRIBUTE: usize = 16;
    pub(super) const MODIFIER: usize = 20;
    pub(super) const DATA: usize = 64;
}

const CLASS_LID_ROUTED: u8 = 0x01;
const CLASS_DIRECTED_ROUTE: u8 = 0x81;
const METHOD_GET: u8 = 1;
const METHOD_GET_RESP: u8 = 0x81;
/// Of a directed-route answer: it goes back (IBTA 14.2.1.2, the D bit above the status).
const DIRECTION: u16 = 1 << 15;

/// Statuses (IBTA table 115).
mod status {
    pub(super) const VERSION: u16 = 1 << 2;
    pub(super) const METHOD: u16 = 2 << 2;
    pub(super) const ATTRIBUTE: u16 = 3 << 2;
    pub(super) const MODIFIER: u16 = 7 << 2;
}

/// Attributes (IBTA table 120).
mod attribute {
    pub(super) const NODE_DESCRIPTION: u16 = 0x10;
    pub(super) const NODE_INFO: u16 = 0x11;
    pub(super) const GUID_INFO: u16 = 0x14;
    pub(super) const PORT_INFO: u16 = 0x15;
    pub(super) const PKEY_TABLE: u16 = 0x16;
}

const GUIDS_A_BLOCK: usize = 8;
const PKEYS_A_BLOCK: usize = 32;

/// Data of an attribute.
type Data = [u8; 64];

/// The answer to a datagram; `None` for one that asks nothing or is of a class that no agent here has.
pub(crate) fn answer(port: &Port, config: &DeviceConfig, request: &[u8; MAD]) -> Option<[u8; MAD]> {
    let class = request[at::CLASS];
    if !matches!(class, CLASS_LID_ROUTED | CLASS_DIRECTED_ROUTE) || request[at::METHOD] & 0x80 != 0 {
        return None;
    }
    let word = |at: usize| request.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes));
    let modifier = u32::from(word(at::MODIFIER)) << 16 | u32::from(word(at::MODIFIER + 2));
    let outcome = if request[0] != 1 || request[at::CLASS_VERSION] != 1 {
        Err(status::VERSION)
    } else if request[at::METHOD] != METHOD_GET {
        Err(status::METHOD)
    } else {
        data(port, config, word(at::ATTRIBUTE), modifier)
    };
    let mut response = *request;
    response[at::METHOD] = METHOD_GET_RESP;
    let direction = if class == CLASS_DIRECTED_ROUTE { DIRECTION } else { 0 };
    let [high, low] = (outcome.err().unwrap_or(0) | direction).to_be_bytes();
    response[at::STATUS] = high;
    response[at::STATUS + 1] = low;
    if let (Ok(data), Some(place)) = (outcome, response.get_mut(at::DATA..at::DATA + 64)) {
        place.copy_from_slice(&data);
    }
    Some(response)
}

fn data(port: &Port, config: &DeviceConfig, attribute: u16, modifier: u32) -> Result<Data, u16> {
    let block = modifier as usize;
    match attribute {
        attribute::NODE_DESCRIPTION => Ok(port.node_description().first_chunk().copied().unwrap_or([0; 64])),
        attribute::NODE_INFO => Ok(node_info(port, config)),
        // Port 0 is whichever port was asked.
        attribute::PORT_INFO if modifier <= 1 => Ok(port.info().bytes()),
        attribute::GUID_INFO if block < GIDS / GUIDS_A_BLOCK => Ok(guids(port, block)),
        attribute::PKEY_TABLE if block < PKEYS / PKEYS_A_BLOCK => Ok(pkeys(port, block)),
        attribute::PORT_INFO | attribute::GUID_INFO | attribute::PKEY_TABLE => Err(status::MODIFIER),
        _ => Err(status::ATTRIBUTE),
    }
}

/// NodeInfo (IBTA 14.2.5.3).
fn node_info(port: &Port, config: &DeviceConfig) -> Data {
    const CHANNEL_ADAPTER: u8 = 1;
    /// Partition table entries.
    const PARTITIONS: u16 = PKEYS as u16;
    const VENDOR: u32 = 0x00_02c9;
    let mut data = [0; 64];
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
    let mut data = [0; 64];
    for (place, index) in data.chunks_exact_mut(8).zip(block * GUIDS_A_BLOCK..) {
        let guid = port.gid(index).and_then(|gid| gid.last_chunk().copied()).unwrap_or([0; 8]);
        place.copy_from_slice(&guid);
    }
    data
}

fn pkeys(port: &Port, block: usize) -> Data {
    let mut data = [0; 64];
    for (place, index) in data.chunks_exact_mut(2).zip(block * PKEYS_A_BLOCK..) {
        place.copy_from_slice(&port.pkey(index).unwrap_or(0).to_be_bytes());
    }
    data
}

/// PortInfo (IBTA 14.2.5.6), as far as anything of it is not zero. Codes are InfiniBand's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortInfo {
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
        let mut data = [0; 64];
        let mut put = |at: usize, bytes: &[u8]| data.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
        put(8, &self.gid_prefix.to_be_bytes());
        put(16, &self.lid.to_be_bytes());
        put(18, &self.sm_lid.to_be_bytes());
        put(20, &self.capabilities.to_be_bytes());
        // Local port, widths enabled, supported and active.
        put(28, &[1, self.widths, self.widths, self.width]);
        // A link that goes down polls.
        put(32, &[(self.speeds & 0b111) << 4 | self.state, self.physical_state << 4 | 2]);
        put(35, &[plain(self.speed) << 4 | (self.speeds & 0b111), self.mtu << 4, LANES << 4]);
        put(41, &[self.max_mtu]);
        put(43, &[LANES << 4]);
        put(50, &[GUIDS, self.subnet_timeout, self.subnet_timeout]);
        put(62, &[extended(self.speed) << 4 | extended(self.speeds), extended(self.speeds)]);
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request by the bytes of IBTA 13.4.2: version, class, class version, method; attribute and modifier at 16 and 20.
    fn ask(config: &DeviceConfig, class: u8, method: u8, attribute: u16, modifier: u32) -> Option<[u8; MAD]> {
        let mut request = [0; MAD];
        request[..4].copy_from_slice(&[1, class, 1, method]);
        request[8..16].copy_from_slice(&7_u64.to_be_bytes());
        request[16..18].copy_from_slice(&attribute.to_be_bytes());
        request[20..24].copy_from_slice(&modifier.to_be_bytes());
        answer(&Port::new(config), config, &request)
    }

    #[test]
    fn a_port_tells_who_and_what_it_is() {
        let config = DeviceConfig::with_lid(0x0102);
        let info = ask(&config, 1, 1, 0x15, 1).unwrap();
        assert_eq!((info[3], &info[4..6], &info[8..16]), (0x81, &[0, 0][..], &[0, 0, 0, 0, 0, 0, 0, 7][..]));
        // LID; active, link up; 4x; QDR shown, HDR (4) in the place of extended speeds; MTU 4096 (5).
        assert_eq!((&info[64 + 16..64 + 18], info[64 + 32] & 15, info[64 + 33] >> 4), (&[1, 2][..], 4, 5));
        assert_eq!((info[64 + 31], info[64 + 35] >> 4, info[64 + 62] >> 4), (2, 4, 4));
        assert_eq!((info[64 + 36] >> 4, info[64 + 41] & 15), (5, 5));
        let node = ask(&config, 1, 1, 0x11, 0).unwrap();
        assert_eq!(node[64..68], [1, 1, 1, 1]);
        assert_eq!(node[64 + 12..64 + 20], config.node_guid.to_be_bytes());
        assert_eq!(node[64 + 30..64 + 32], config.pci_device_id.to_be_bytes());
        assert_eq!(node[64 + 36..64 + 40], [1, 0, 0x02, 0xc9]);
        assert!(ask(&config, 1, 1, 0x10, 0).unwrap()[64..].starts_with(b"bareverbs simulated device"));
        assert_eq!(ask(&config, 1, 1, 0x16, 0).unwrap()[64..68], [0xff, 0xff, 0, 0]);
        assert_eq!(ask(&config, 1, 1, 0x14, 0).unwrap()[64..72], config.port_guid.to_be_bytes());
    }

    #[test]
    fn what_it_cannot_answer_has_a_status() {
        let config = DeviceConfig::default();
        let status =
            |class, method, attribute, modifier| ask(&config, class, method, attribute, modifier).map(|mad| [mad[4], mad[5]]);
        assert_eq!(status(1, 2, 0x15, 1), Some([0, 8]), "a manager's Set");
        assert_eq!(status(1, 1, 0x19, 0), Some([0, 12]));
        assert_eq!(status(1, 1, 0x15, 2), Some([0, 28]));
        assert_eq!(status(1, 1, 0x16, 4), Some([0, 28]));
        assert_eq!(status(0x81, 1, 0x11, 0), Some([0x80, 0]), "back along the path");
        assert_eq!(status(1, 0x81, 0x15, 1), None, "an answer");
        assert_eq!(status(4, 1, 0x12, 1), None, "another class");
    }
}
