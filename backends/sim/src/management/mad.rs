//! Format of a management datagram (MAD): where its fields are and what their values mean (IBTA 13.4.2, 14.2.1).

use bareverbs_mlx5_spec::{Layout, Smp};

/// Bytes of a management datagram.
pub(crate) const MAD: usize = Smp::SIZE;

/// Places in a datagram (IBTA 13.4.2, 14.2.1). The header of other classes is the same up to the attribute's modifier.
pub(super) mod at {
    use bareverbs_mlx5_spec::{Field, Smp};

    /// Returns the first byte of a field of whole bytes.
    const fn byte(field: Field<Smp>) -> usize {
        field.dword() + (31 - field.bits().hi as usize) / 8
    }

    pub(in crate::management) const BASE_VERSION: usize = byte(Smp::BASE_VERSION);
    pub(in crate::management) const CLASS: usize = byte(Smp::MGMT_CLASS);
    pub(in crate::management) const CLASS_VERSION: usize = byte(Smp::CLASS_VERSION);
    pub(in crate::management) const METHOD: usize = byte(Smp::METHOD);
    pub(in crate::management) const STATUS: usize = byte(Smp::STATUS);
    /// Of a directed route, instead of what is there otherwise.
    pub(in crate::management) const HOP_POINTER: usize = byte(Smp::HOP_POINTER);
    pub(in crate::management) const HOP_COUNT: usize = byte(Smp::HOP_COUNT);
    pub(in crate::management) const TRANSACTION: usize = Smp::TRANSACTION.offset();
    pub(in crate::management) const ATTRIBUTE: usize = byte(Smp::ATTRIBUTE);
    pub(in crate::management) const MODIFIER: usize = byte(Smp::MODIFIER);
    /// Of subnet management: the manager's key.
    pub(in crate::management) const M_KEY: usize = Smp::M_KEY.offset();
    /// Of a directed route: the LID where it began.
    pub(in crate::management) const DR_SLID: usize = byte(Smp::DR_SLID);
    pub(in crate::management) const DATA: usize = Smp::DATA.offset();
    /// Of a directed route: the ports to go back through.
    pub(in crate::management) const RETURN_PATH: usize = Smp::RETURN_PATH.offset();
}

pub(super) mod class {
    pub(in crate::management) const LID_ROUTED: u8 = bareverbs_mlx5_spec::SMP_LID_ROUTED as u8;
    pub(in crate::management) const DIRECTED_ROUTE: u8 = 0x81;
    pub(in crate::management) const PERFORMANCE: u8 = 0x04;
}

pub(super) mod method {
    pub(in crate::management) const GET: u8 = bareverbs_mlx5_spec::SMP_GET as u8;
    pub(in crate::management) const SET: u8 = 2;
    pub(in crate::management) const TRAP: u8 = 5;
    pub(in crate::management) const TRAP_REPRESS: u8 = 7;
    pub(in crate::management) const GET_RESP: u8 = bareverbs_mlx5_spec::SMP_GET_RESP as u8;
    /// Bit of the methods that answer.
    pub(in crate::management) const RESPONSE: u8 = 0x80;
}

/// Of a directed route: it goes back (IBTA 14.2.1.2, the D bit above the status).
pub(super) const DIRECTION: u16 = 1 << 15;
/// Maximum hops of a directed route.
pub(super) const MAX_HOPS: u8 = 63;
/// Hops of a directed route that a notice has room for.
pub(super) const MAX_REPORTED_HOPS: usize = 30;
/// The only port there is.
pub(super) const PORT: u8 = 1;

/// Statuses (IBTA table 115).
pub(super) mod status {
    pub(in crate::management) const VERSION: u16 = 1 << 2;
    pub(in crate::management) const METHOD: u16 = 2 << 2;
    pub(in crate::management) const ATTRIBUTE: u16 = 3 << 2;
    pub(in crate::management) const MODIFIER: u16 = 7 << 2;
}

/// Returns the 16 bits at byte `at`.
pub(super) fn word(mad: &[u8; MAD], at: usize) -> u16 {
    mad.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// Returns the 32 bits at byte `at`.
pub(super) fn double_word(mad: &[u8; MAD], at: usize) -> u32 {
    mad.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Returns the 64 bits at byte `at`.
pub(super) fn long(mad: &[u8; MAD], at: usize) -> u64 {
    mad.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
