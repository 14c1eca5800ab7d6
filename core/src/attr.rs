//! Attributes of queue pairs, ports and devices.

use core::time::Duration;

use crate::{Access, Gid, Guid, Lid, Mac, Psn, Qkey, Qpn};

/// Transport service of a queue pair (`ibv_qp_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// General services interface: management datagrams of at most 256 bytes from and to QP1 of the port (`IB_QPT_GSI`; IBTA
    /// 13.5.1). The device gives it a number of its own; peers see [`Qpn::GENERAL_SERVICES`]. Its Q_Key is
    /// [`Qkey::GENERAL_SERVICES`]. A port should have one: which of several gets a datagram is not defined.
    Gsi,
    /// Initiator of an extended reliable connection: it sends to the shared receive queues of an XRC domain of its peer
    /// ([`Verbs::create_xrc_send_qp`](crate::Verbs::create_xrc_send_qp); IBTA annex A14).
    XrcSend,
    /// Target of an extended reliable connection: the peer's requests name a shared receive queue of its XRC domain
    /// ([`Verbs::create_xrc_recv_qp`](crate::Verbs::create_xrc_recv_qp)).
    XrcRecv,
}

impl QpType {
    /// Returns whether each of its sends names a destination.
    pub(crate) const fn has_datagrams(self) -> bool {
        matches!(self, Self::Ud | Self::Gsi)
    }

    /// Returns whether it is an end of an extended reliable connection.
    pub(crate) const fn is_xrc(self) -> bool {
        matches!(self, Self::XrcSend | Self::XrcRecv)
    }
}

/// State of a queue pair (`ibv_qp_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum QpState {
    /// Just made.
    #[default]
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained or draining.
    Sqd,
    /// Send queue in error.
    Sqe,
    /// In error: every request is flushed.
    Err,
}

/// Path MTU (`ibv_mtu`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    #[default]
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// Returns the size in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// Returns the value of an encoding (1 to 5).
    pub const fn from_encoding(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Mtu256,
            2 => Self::Mtu512,
            3 => Self::Mtu1024,
            4 => Self::Mtu2048,
            5 => Self::Mtu4096,
            _ => return None,
        })
    }
}

/// Path migration state (`ibv_mig_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PathMigState {
    /// Migrated.
    #[default]
    Migrated,
    /// To be rearmed.
    Rearm,
    /// Armed.
    Armed,
}

/// Global route of an address vector (`ibv_global_route`). On an Ethernet port, the IP header of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GlobalRoute {
    /// Peer's GID: on an Ethernet port its IP address, of the kind that our own GID is.
    pub dgid: Gid,
    /// Flow label, 20 bits. On an Ethernet port the UDP source port follows from it, also with IPv4.
    pub flow_label: u32,
    /// Index of our GID.
    pub sgid_index: u8,
    /// Hop limit, or time to live. On an Ethernet port it is not 0; 64 is usual.
    pub hop_limit: u8,
    /// Traffic class, or type of service: six bits DSCP, two bits ECN.
    pub traffic_class: u8,
}

/// Address vector (`ibv_ah_attr`). On an InfiniBand port it names the peer by [`Self::dlid`], on an Ethernet port by [`Self::grh`] and
/// [`Self::dmac`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AddressVector {
    /// Peer's LID; 0 on an Ethernet port.
    pub dlid: Lid,
    /// Service level, 4 bits. On an Ethernet port the priority of the VLAN tag, 3 bits.
    pub sl: u8,
    /// Low bits of the source LID, as many as the port's LMC; 0 on an Ethernet port.
    pub src_path_bits: u8,
    /// Static rate, as in `ibv_rate` of rdma-core (2: 2.5 Gbit/s, 3: 10 Gbit/s, …; IBTA 9.11); 0 for the port's.
    pub static_rate: u8,
    /// Physical port, from 1. In the path of a queue pair ([`QpAttr::av`]) 0 stands for the queue pair's own; an address handle has no
    /// other port.
    pub port_num: u8,
    /// Global route, if packets carry a GRH. On an Ethernet port each path has one.
    pub grh: Option<GlobalRoute>,
    /// MAC address of the peer, or of the router to it: on Ethernet ports alone. That of a multicast group need not be given.
    pub dmac: Option<Mac>,
}

/// Attributes of a queue pair (`ibv_qp_attr`). A modify uses only those in its mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QpAttr {
    /// State to go to.
    pub state: QpState,
    /// State assumed to be current.
    pub cur_state: QpState,
    /// Remote rights that incoming requests may use.
    pub access: Access,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Physical port, from 1.
    pub port_num: u8,
    /// Q_Key.
    pub qkey: Qkey,
    /// Primary path.
    pub av: AddressVector,
    /// Alternate path.
    pub alt_av: AddressVector,
    /// Index of the P_Key of the alternate path.
    pub alt_pkey_index: u16,
    /// Local ACK timeout of the alternate path: 4.096 µs · 2^timeout, 0 for none, 5 bits.
    pub alt_timeout: u8,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Local ACK timeout: 4.096 µs · 2^timeout, 0 for none, 5 bits.
    pub timeout: u8,
    /// Retries before the connection is broken, 3 bits.
    pub retry_cnt: u8,
    /// Retries after RNR NAK, 3 bits, 7 for ever.
    pub rnr_retry: u8,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// Reads and atomics outstanding as initiator. 0 counts as 1 on an mlx5 device, which has no code for it.
    pub max_rd_atomic: u8,
    /// Reads and atomics outstanding as target. With 0 none is allowed, whatever `access` says.
    pub max_dest_rd_atomic: u8,
    /// Code of the time that a peer waits after our RNR NAK, 5 bits (IBTA table 45).
    pub min_rnr_timer: u8,
    /// Path migration state.
    pub path_mig_state: PathMigState,
    /// Peer's queue pair.
    pub dest_qpn: Qpn,
}

/// Capacities of a queue pair (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QpCap {
    /// Send requests.
    pub max_send_wr: u32,
    /// Receive requests.
    pub max_recv_wr: u32,
    /// SGEs of a send request.
    pub max_send_sge: u32,
    /// SGEs of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of an inline payload.
    pub max_inline_data: u32,
}

/// Capacities of a shared receive queue (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SrqCap {
    /// Receive requests.
    pub max_wr: u32,
    /// SGEs of a request.
    pub max_sge: u32,
}

/// Which masked atomics a device offers ([`DeviceAttr::masked_atomics`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MaskedAtomics {
    /// On four bytes.
    pub four: bool,
    /// On eight bytes.
    pub eight: bool,
}

/// Moderation of a completion queue's events (`ibv_moderate_cq`): an armed queue raises its event for one of the next completions and
/// not for the first. With 0 in either field it raises it for the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CqModeration {
    /// Completions after arming at which the event is raised.
    pub count: u16,
    /// Microseconds after the previous event (for the first: after the completion) at which it is raised with fewer.
    pub period: u16,
}

/// Which windows of type 2 a device offers: a key opens on the queue pair that bound it alone, and what else must fit (IBTA 10.6.7.2;
/// `IBV_DEVICE_MEM_WINDOW_TYPE_2A`, `_2B`). A bind by the verbs needs queue pair and window of one domain with either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MwType2 {
    /// None.
    #[default]
    None,
    /// Type 2A: the number of the queue pair.
    A,
    /// Type 2B: the number of the queue pair, and its protection domain.
    B,
}

/// What the device has (`ibv_device_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DeviceAttr {
    /// Firmware version: major, minor, sub-minor.
    pub fw_ver: [u16; 3],
    /// GUID of the node.
    pub node_guid: Guid,
    /// GUID of the system image.
    pub sys_image_guid: Guid,
    /// Vendor (IEEE OUI).
    pub vendor_id: u32,
    /// Maximum length of a region in bytes.
    pub max_mr_size: u64,
    /// Page sizes of regions: bit n for pages of 2^n bytes.
    pub page_size_cap: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests of one work queue.
    pub max_qp_wr: u32,
    /// SGEs of one request.
    pub max_sge: u32,
    /// Shared receive queues; 0 if the device has none.
    pub max_srq: u32,
    /// Requests of one shared receive queue.
    pub max_srq_wr: u32,
    /// SGEs of a request of a shared receive queue.
    pub max_srq_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions of one queue.
    pub max_cqe: u32,
    /// Greatest moderation of completion events; zeros if the device does not moderate them.
    pub max_cq_moderation: CqModeration,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Maximum length of a window in bytes.
    pub max_mw_size: u64,
    /// Which windows of type 2 there are.
    pub mw_type_2: MwType2,
    /// Protection domains.
    pub max_pd: u32,
    /// Reads and atomics outstanding as target, one queue pair.
    pub max_qp_rd_atom: u8,
    /// Reads and atomics outstanding as initiator, one queue pair.
    pub max_qp_init_rd_atom: u8,
    /// Whether 8-byte atomics are done.
    pub atomics: bool,
    /// Which masked atomics are done.
    pub masked_atomics: MaskedAtomics,
    /// Access flags that the device knows.
    pub access: Access,
    /// Maximum inline payload in bytes.
    pub max_inline_data: u32,
    /// Maximum message in bytes.
    pub max_msg_size: u64,
    /// Ports.
    pub phys_port_cnt: u8,
}

/// The most bytes of a message, and so of an SGE (IBTA 9.7.7).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

impl DeviceAttr {
    /// Returns the maximum message in bytes: [`MAX_MESSAGE`] where the device reports no limit.
    pub(crate) fn max_message(&self) -> u32 {
        match self.max_msg_size {
            0 => MAX_MESSAGE,
            max => u32::try_from(max).unwrap_or(u32::MAX).min(MAX_MESSAGE),
        }
    }
}

/// State of a port (`ibv_port_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PortState {
    /// No link.
    #[default]
    Down,
    /// Link, but not configured.
    Init,
    /// Configured.
    Armed,
    /// In use.
    Active,
}

/// Physical state of a port (`phys_state` of `ibv_port_attr`; IBTA 14.2.5.6, PortInfo:PortPhysicalState).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PhysState {
    /// Asleep (1).
    Sleep,
    /// It looks for another end (2): the other end is switched off, or was found just now.
    #[default]
    Polling,
    /// Switched off (3). A ConnectX without a cable reports this too.
    Disabled,
    /// The two ends train the link (4, `PortConfigurationTraining`).
    Training,
    /// The link is up (5).
    LinkUp,
    /// The link is trained again after errors (6).
    LinkErrorRecovery,
    /// A test of the physical layer (7).
    PhyTest,
    /// A number without a name.
    Unknown(u8),
}

impl PhysState {
    /// Returns the state of a code.
    pub const fn from_encoding(code: u8) -> Self {
        match code {
            1 => Self::Sleep,
            2 => Self::Polling,
            3 => Self::Disabled,
            4 => Self::Training,
            5 => Self::LinkUp,
            6 => Self::LinkErrorRecovery,
            7 => Self::PhyTest,
            other => Self::Unknown(other),
        }
    }

    /// Returns the code.
    pub const fn encoding(self) -> u8 {
        match self {
            Self::Sleep => 1,
            Self::Polling => 2,
            Self::Disabled => 3,
            Self::Training => 4,
            Self::LinkUp => 5,
            Self::LinkErrorRecovery => 6,
            Self::PhyTest => 7,
            Self::Unknown(code) => code,
        }
    }
}

/// Link layer of a port (`link_layer` of `ibv_port_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LinkLayer {
    /// InfiniBand: a subnet manager gives LIDs, and GIDs come from the port's GUID. A path has a LID.
    #[default]
    InfiniBand,
    /// Ethernet with RoCEv2: GIDs are IP addresses, which the integrator sets ([`Verbs::set_gid`](crate::Verbs::set_gid)). A path has a
    /// route and a MAC address.
    Ethernet,
}

/// What a port has (`ibv_port_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PortAttr {
    /// Link layer. An Ethernet port has no LIDs, no subnet manager and one P_Key.
    pub link_layer: LinkLayer,
    /// State.
    pub state: PortState,
    /// Physical state.
    pub phys_state: PhysState,
    /// Greatest MTU, of the payload of a packet.
    pub max_mtu: Mtu,
    /// MTU in use; the least one if the port is down and has none.
    pub active_mtu: Mtu,
    /// Number of GIDs.
    pub gid_tbl_len: u16,
    /// Number of P_Keys.
    pub pkey_tbl_len: u16,
    /// LID, 0 or 65535 if the port has none.
    pub lid: Lid,
    /// LID of the subnet manager.
    pub sm_lid: Lid,
    /// Number of low LID bits that select a path.
    pub lmc: u8,
    /// Number of lanes of the link.
    pub active_width: u8,
    /// Rate in gigabits a second, all lanes.
    pub active_speed_gbps: u32,
    /// MAC address of an Ethernet port.
    pub mac: Mac,
    /// GUID of the port.
    pub port_guid: Guid,
    /// Capability mask (PortInfo:CapabilityMask).
    pub cap_mask: u32,
    /// Whether every path from the port needs a global route ([`AddressVector::grh`]; `IBV_QPF_GRH_REQUIRED`).
    pub grh_required: bool,
}

/// Kind of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MwType {
    /// Bound with [`SendQueue::bind_type1`](crate::SendQueue::bind_type1).
    Type1,
    /// Bound with a BIND_MW work request; belongs to the queue pair that bound it.
    Type2,
}

/// Which ring a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum RawKind {
    /// A send request.
    Send,
    /// A receive that took a SEND.
    Recv,
    /// A receive that an RDMA_WRITE_WITH_IMM took.
    RecvRdmaWithImm,
}

/// Returns the time of a local ACK timeout code (IBTA 9.7.6.1.3): 4.096 µs · 2^code, `None` for code 0.
pub const fn ack_timeout(code: u8) -> Option<Duration> {
    if code == 0 { None } else { Some(Duration::from_nanos(4096 << (code & 31))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each code, beside a time that is doubled: 4.096 µs and 31 times that double, and again from bit 5 on.
    #[test]
    fn a_timeout_doubles_from_code_to_code() {
        let mut nanos = [0_u128; 32];
        let mut time = 4096;
        for place in &mut nanos {
            *place = time;
            time *= 2;
        }
        assert_eq!(ack_timeout(0), None, "without end");
        for code in 1..=u8::MAX {
            assert_eq!(ack_timeout(code).map(|time| time.as_nanos()), Some(nanos[usize::from(code % 32)]), "{code}");
        }
        assert_eq!(ack_timeout(20), Some(Duration::from_nanos(4_294_967_296)), "4.3 s (IBTA table 57)");
    }

    #[test]
    fn no_message_is_longer_than_two_gigabytes() {
        let of = |max_msg_size| DeviceAttr { max_msg_size, ..DeviceAttr::default() }.max_message();
        let limits = [0, 1, 4096, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, u64::MAX];
        let most = [1 << 31, 1, 4096, (1 << 31) - 1, 1 << 31, 1 << 31, 1 << 31, 1 << 31, 1 << 31, 1 << 31];
        assert_eq!(limits.map(of), most);
    }
}
