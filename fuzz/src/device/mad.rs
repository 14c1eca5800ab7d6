//! Management datagrams of subnet management (IBTA 13.4.2, 14.2), as a manager or an attacker writes them.

/// Bytes of a management datagram.
pub const MAD: usize = 256;
/// Attributes (IBTA table 120).
pub const PORT_INFO: u16 = 0x15;
pub const PKEY_TABLE: u16 = 0x16;

const LID_ROUTED: u8 = 0x01;
const DIRECTED_ROUTE: u8 = 0x81;
const GET: u8 = 1;
const SET: u8 = 2;
/// First byte of the attribute.
const DATA: usize = 64;

/// A request to the subnet management agent of a port.
#[derive(Clone, Debug)]
pub struct Mad {
    /// By a directed route of one hop, or by LID.
    pub directed: bool,
    pub set: bool,
    pub attribute: u16,
    pub modifier: u32,
    pub m_key: u64,
    pub data: [u8; 64],
}

impl Mad {
    pub fn bytes(&self) -> [u8; MAD] {
        let mut mad = [0; MAD];
        let (class, hops) = if self.directed { (DIRECTED_ROUTE, 1) } else { (LID_ROUTED, 0) };
        mad[..4].copy_from_slice(&[1, class, 1, if self.set { SET } else { GET }]);
        // Hop pointer and hop count: the route ends here.
        mad[6..8].copy_from_slice(&[hops, hops]);
        mad[16..18].copy_from_slice(&self.attribute.to_be_bytes());
        mad[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        mad[24..32].copy_from_slice(&self.m_key.to_be_bytes());
        // Permissive source and destination of a directed route.
        mad[32..36].fill(if self.directed { 0xff } else { 0 });
        mad[DATA..DATA + 64].copy_from_slice(&self.data);
        mad
    }

    /// Returns the attribute in an answer.
    pub fn data(answer: &[u8]) -> &[u8] {
        answer.get(DATA..DATA + 64).unwrap_or_default()
    }
}

/// What a manager sets of PortInfo (IBTA 14.2.5.6).
#[derive(Clone, Copy, Debug)]
pub struct PortInfo {
    pub m_key: u64,
    /// `M_KeyProtectBits`.
    pub protection: u8,
    pub gid_prefix: u64,
    pub lid: u16,
    pub sm_lid: u16,
    /// `PortState`, 0 for no change.
    pub state: u8,
}

impl PortInfo {
    pub fn bytes(&self) -> [u8; 64] {
        let mut data = [0; 64];
        data[..8].copy_from_slice(&self.m_key.to_be_bytes());
        data[8..16].copy_from_slice(&self.gid_prefix.to_be_bytes());
        data[16..18].copy_from_slice(&self.lid.to_be_bytes());
        data[18..20].copy_from_slice(&self.sm_lid.to_be_bytes());
        data[32] = self.state;
        data[34] = self.protection << 6;
        data
    }
}
