//! PortInfo (IBTA 14.2.5.6), as a subnet manager reads and sets it.

use crate::limits::GIDS;

/// Bytes of an attribute of subnet management.
pub(super) const ATTRIBUTE: usize = 64;
/// An attribute of subnet management.
pub(super) type Data = [u8; ATTRIBUTE];

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

impl SetPortInfo {
    pub(super) fn read(data: &[u8]) -> Self {
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
    pub(super) fn bytes(self) -> Data {
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
