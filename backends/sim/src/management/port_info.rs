//! PortInfo (IBTA 14.2.5.6), as a subnet manager reads and sets it.

use bareverbs_mlx5_spec::{self as layout, Field, View, ViewMut};

use crate::limits::GIDS;

/// Bytes of an attribute of subnet management.
pub(super) const ATTRIBUTE: usize = 64;
/// An attribute of subnet management.
pub(super) type Data = [u8; ATTRIBUTE];

/// `SubnetTimeOut`: 4.096 µs · 2^18, how long a packet may be in progress.
pub(crate) const SUBNET_TIMEOUT: u32 = 18;

/// Counters of violations of the management key, of partitions and of queue keys.
const VIOLATIONS: [Field<layout::PortInfo>; 3] =
    [layout::PortInfo::M_KEY_VIOLATIONS, layout::PortInfo::P_KEY_VIOLATIONS, layout::PortInfo::Q_KEY_VIOLATIONS];

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
    pub(super) fn read(data: &Data) -> Self {
        let info = View::<layout::PortInfo>::of(data);
        Self {
            m_key: info.get64(layout::PortInfo::M_KEY),
            m_key_protection: info.get(layout::PortInfo::M_KEY_PROTECT_BITS) as u8,
            m_key_lease: info.get(layout::PortInfo::M_KEY_LEASE_PERIOD) as u16,
            clears_violations: VIOLATIONS.map(|field| info.get(field) == 0),
            gid_prefix: info.get64(layout::PortInfo::GID_PREFIX),
            lid: info.get(layout::PortInfo::LID) as u16,
            sm_lid: info.get(layout::PortInfo::SM_LID) as u16,
            state: info.get(layout::PortInfo::PORT_STATE),
            client_reregister: info.is_set(layout::PortInfo::CLIENT_REREGISTER),
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
        /// SDR, DDR and QDR; a faster link shows as QDR in the place of these, also FDR10, which has no place of its own.
        const fn plain(bits: u8) -> u8 {
            if bits & 0xf8 == 0 { bits } else { 0b100 }
        }
        /// FDR, EDR, HDR and NDR have a place of their own.
        const fn extended(bits: u8) -> u8 {
            bits >> 4
        }
        /// `IsLinkSpeedHDRSupported` and `IsLinkSpeedNDRSupported` of CapabilityMask2.
        const fn speed_capabilities(bits: u8) -> u32 {
            (bits as u32 >> 6 & 1) << 5 | (bits as u32 >> 7) << 10
        }
        /// Virtual lanes 0 to 3.
        const LANES: u32 = 3;
        /// The state of the link after it goes down.
        const POLLING: u32 = 2;
        let [width, supported] = [self.width, self.widths].map(u32::from);
        let mut data = [0; ATTRIBUTE];
        let mut info = ViewMut::<layout::PortInfo>::of(&mut data);
        info.set64(layout::PortInfo::M_KEY, self.m_key)
            .set64(layout::PortInfo::GID_PREFIX, self.gid_prefix)
            .set(layout::PortInfo::LID, self.lid.into())
            .set(layout::PortInfo::SM_LID, self.sm_lid.into())
            .set(layout::PortInfo::CAPABILITY_MASK, self.capabilities)
            .set(layout::PortInfo::M_KEY_LEASE_PERIOD, self.m_key_lease.into())
            .set(layout::PortInfo::LOCAL_PORT_NUM, 1)
            .set(layout::PortInfo::LINK_WIDTH_ENABLED, supported)
            .set(layout::PortInfo::LINK_WIDTH_SUPPORTED, supported)
            .set(layout::PortInfo::LINK_WIDTH_ACTIVE, width)
            .set(layout::PortInfo::LINK_SPEED_SUPPORTED, u32::from(self.speeds & 0b111))
            .set(layout::PortInfo::PORT_STATE, self.state.into())
            .set(layout::PortInfo::PORT_PHYSICAL_STATE, self.physical_state.into())
            .set(layout::PortInfo::LINK_DOWN_DEFAULT_STATE, POLLING)
            .set(layout::PortInfo::M_KEY_PROTECT_BITS, self.m_key_protection.into())
            .set(layout::PortInfo::LINK_SPEED_ACTIVE, plain(self.speed).into())
            .set(layout::PortInfo::LINK_SPEED_ENABLED, u32::from(self.speeds & 0b111))
            .set(layout::PortInfo::NEIGHBOR_MTU, self.mtu.into())
            .set(layout::PortInfo::VL_CAP, LANES)
            .set(layout::PortInfo::MTU_CAP, self.max_mtu.into())
            .set(layout::PortInfo::OPERATIONAL_VLS, LANES)
            .set(layout::PortInfo::GUID_CAP, GIDS as u32)
            .set(layout::PortInfo::SUBNET_TIMEOUT, self.subnet_timeout.into())
            .set(layout::PortInfo::RESPONSE_TIME, self.subnet_timeout.into())
            .set(layout::PortInfo::CAPABILITY_MASK_2, speed_capabilities(self.speeds))
            .set(layout::PortInfo::LINK_SPEED_EXT_ACTIVE, extended(self.speed).into())
            .set(layout::PortInfo::LINK_SPEED_EXT_SUPPORTED, extended(self.speeds).into())
            .set(layout::PortInfo::LINK_SPEED_EXT_ENABLED, extended(self.speeds).into());
        for (field, count) in VIOLATIONS.into_iter().zip(self.violations) {
            info.set(field, count.into());
        }
        data
    }
}
