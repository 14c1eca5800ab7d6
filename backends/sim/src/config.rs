//! What a simulated device is: identity, limits, options.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeSet;

use crate::limits::Limits;

/// How interrupts leave the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterruptRouting {
    /// The MSI-X table, its mask bits and the function's enable bit decide.
    #[default]
    Table,
    /// The server of the device keeps the table itself: every vector raised is delivered.
    External,
}

/// The memory that the firmware asks of the host, in pages of 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageDemand {
    /// Asked before the capabilities can be read.
    pub boot: u32,
    /// Asked before INIT_HCA.
    pub init: u32,
    /// Free pages that requests in operation keep; 0 for no such requests.
    pub chunk: u32,
    /// The `log_max_qp` that `init` is for, if it goes with the queue pairs that the driver sets by SET_HCA_CAP: the firmware
    /// of a card has memory for each of them, created or not. `None`: always `init`.
    pub log_max_qp: Option<u8>,
    /// Of `init`, those that do not go with the queue pairs.
    pub fixed: u32,
    /// Whether the firmware asks for a chunk more than it needs before INIT_HCA, and answers a query for regular pages with a
    /// negative number when some can be taken back.
    pub surplus: bool,
}

impl PageDemand {
    /// No pages.
    pub const NONE: Self = Self { boot: 0, init: 0, chunk: 0, log_max_qp: None, fixed: 0, surplus: false };
    /// Few pages, as many for each number of queue pairs: far fewer than a card asks for.
    pub const FEW: Self = Self { boot: 17, init: 41, chunk: 8, ..Self::NONE };

    /// Returns the pages asked before INIT_HCA by a function with `1 << log_max_qp` queue pairs.
    pub const fn init_for(&self, log_max_qp: u8) -> u32 {
        let Some(log) = self.log_max_qp else { return self.init };
        let following = self.init.saturating_sub(self.fixed);
        let pages = match log_max_qp.checked_sub(log) {
            Some(more) => (following as u64).saturating_mul(if more < 32 { 1 << more } else { u64::MAX }),
            None if log - log_max_qp < 32 => (following as u64).div_ceil(1 << (log - log_max_qp)),
            None => (following != 0) as u64,
        };
        let pages = pages.saturating_add((self.init - following) as u64);
        if pages > u32::MAX as u64 { u32::MAX } else { pages as u32 }
    }
}

/// How long the firmware takes for a command, from the doorbell to the answer. It executes one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandTime {
    /// Any other command.
    pub other: Duration,
    /// ENABLE_HCA and INIT_HCA.
    pub start: Duration,
}

/// Relaxed ordering of PCI Express that the firmware offers for memory keys: capabilities of `mlx5_ifc.h`, by name. The device writes and
/// reads in order nevertheless.
///
/// The recorded ConnectX-4 Lx offers none, and no public source says what the other profiles' firmware offers. Firmware with
/// `relaxed_ordering_read` has `relaxed_ordering_read_pci_enabled` beside it while relaxed ordering is on in the PCI configuration; older
/// firmware has only the latter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelaxedOrdering {
    /// `relaxed_ordering_write`.
    pub write: bool,
    /// `relaxed_ordering_read`: reads, whatever the PCI configuration says.
    pub read: bool,
    /// `relaxed_ordering_read_pci_enabled`: reads, while relaxed ordering is on in the PCI configuration.
    pub read_pci_enabled: bool,
}

impl RelaxedOrdering {
    /// None.
    pub const NONE: Self = Self { write: false, read: false, read_pci_enabled: false };
}

/// Version of the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirmwareVersion {
    /// Major number.
    pub major: u16,
    /// Minor number.
    pub minor: u16,
    /// Sub-minor number.
    pub subminor: u16,
}

/// Lanes of a link, with their code in PTYS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it all")]
#[repr(u16)]
pub enum LinkWidth {
    X1 = 1,
    X2 = 2,
    #[default]
    X4 = 4,
    X8 = 8,
    X12 = 16,
}

/// Speed of a lane, with its code in PTYS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u16)]
pub enum LinkSpeed {
    /// 2.5 Gb/s.
    Sdr = 1,
    /// 5 Gb/s.
    Ddr = 2,
    /// 10 Gb/s.
    Qdr = 4,
    /// 10.3125 Gb/s.
    Fdr10 = 8,
    /// 14.0625 Gb/s.
    Fdr = 16,
    /// 25.78125 Gb/s.
    Edr = 32,
    /// 53.125 Gb/s.
    #[default]
    Hdr = 64,
    /// 106.25 Gb/s.
    Ndr = 128,
}

/// What the port of a device speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortKind {
    /// InfiniBand: a port of a subnet, known by its LID, GIDs and partitions.
    #[default]
    InfiniBand,
    /// Ethernet: frames, and among them packets of RoCEv2.
    Ethernet {
        /// Permanent MAC address: a unicast address. 0 is that of a virtual function to which nobody has given one.
        mac: [u8; 6],
    },
}

/// Bytes of an Ethernet frame around its data: header, VLAN tag, frame check sequence. An MTU of an Ethernet port counts them.
pub const FRAME_OVERHEAD: u16 = 22;
/// Bytes of a RoCEv2 packet beside its payload and what [`FRAME_OVERHEAD`] has: IPv6, UDP, BTH, XRC, AtomicETH, ICRC. So Linux counts
/// them (`iboe_get_mtu`).
const ROCE_OVERHEAD: u16 = 40 + 8 + 12 + 4 + 28 + 4;
/// Bytes of a frame check sequence, which frames do not have here.
pub(crate) const CHECK_SEQUENCE: u16 = 4;
/// Destination of frames for all stations.
pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];
/// Bytes of the shortest Ethernet frame, without its check sequence (IEEE 802.3, 3.2.7).
pub const MIN_ETHERNET_FRAME: usize = 60;
/// Bytes of the longest Ethernet frame that a device takes, without its check sequence.
pub const MAX_ETHERNET_FRAME: usize = 10_000;
/// Smallest and greatest MTU of an Ethernet port, in bytes of a whole frame: 68 bytes are the least of IPv4 (RFC 791), and
/// cards carry no more than 9978 (`mlx5e_get_max_mtu` of Linux with what cards report).
pub(crate) const ETHERNET_MTUS: std::ops::RangeInclusive<u16> = 68 + FRAME_OVERHEAD..=9978 + FRAME_OVERHEAD;

/// Default of [`DeviceConfig::memory_limit`]: room for a million and a half of keys, or 80,000 queue pairs, or 400 GB
/// registered in pages of 4096 bytes.
pub(crate) const DEFAULT_MEMORY_LIMIT: u64 = 1 << 30;
/// Minimum of [`DeviceConfig::memory_limit`], in bytes.
pub const MIN_MEMORY_LIMIT: u64 = 32 << 20;

/// The last local identifier that is not of a multicast group.
const MAX_UNICAST_LID: u16 = 0xbfff;

/// Prefix of GIDs that are valid on the link, and of all before a subnet manager gave another.
pub(crate) const LINK_LOCAL_PREFIX: u64 = 0xfe80 << 48;

/// Everything that distinguishes one simulated device from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// PCI device id.
    pub pci_device_id: u16,
    /// Firmware version.
    pub firmware: FirmwareVersion,
    /// Board id, as QUERY_ADAPTER reports it.
    pub board_id: [u8; 16],
    /// GUID of the node.
    pub node_guid: u64,
    /// GUID of the system that the node is part of.
    pub system_guid: u64,
    /// GUID of the port; the prefix and it are GID 0.
    pub port_guid: u64,
    /// Prefix of the port's GIDs: that of its subnet.
    pub gid_prefix: u64,
    /// What the port speaks. An Ethernet port uses none of the values that only a subnet has: `gid_prefix`, `lid`, `managed`,
    /// `m_key`, `sm_lid`, `lid_delay`, `no_lid`, `grh_required`, `ib_virt`.
    pub port: PortKind,
    /// Local identifier of the port, not 0. A managed port has none until its subnet manager gives it one.
    pub lid: u16,
    /// Whether the port waits for a subnet manager (IBTA 14.4): it comes up without local identifier, in state Init, where
    /// nothing but subnet management passes. Otherwise it becomes active by itself, and takes nothing from a manager.
    pub managed: bool,
    /// Management key (M_Key) that a managed port has from the start, 0 for none. With a key the port starts protected
    /// (`M_KeyProtectBits` 2, IBTA 14.2.4): only a subnet manager with the same key configures or reads it.
    pub m_key: u64,
    /// Local identifier of the subnet manager.
    pub sm_lid: u16,
    /// Node description, cut off at 64 bytes.
    pub node_description: String,
    /// Maximum MTU of the port in bytes. InfiniBand: 256, 512, 1024, 2048 or 4096 bytes of payload. Ethernet: 90 to 10,000
    /// bytes of a frame, [`FRAME_OVERHEAD`] more than a network interface says. The port drops longer frames both ways; its driver
    /// may set a smaller MTU. A packet of RoCE has no more than the greatest MTU allows.
    pub mtu: u16,
    /// Lanes of the link, and the most that the port can have.
    pub link_width: LinkWidth,
    /// Speed of a lane, and the most that the port can have.
    pub link_speed: LinkSpeed,
    /// Whether the link is up from the start.
    pub link_up: bool,
    /// Pages that the firmware asks of the host.
    pub pages: PageDemand,
    /// Whether BlueFlame is offered.
    pub blue_flame: bool,
    /// Whether atomics are offered.
    pub atomics: bool,
    /// Whether masked atomics on four and eight bytes are offered beside them (extended atomics), as ConnectX-4 and later do.
    pub extended_atomics: bool,
    /// Relaxed ordering that keys may ask for. No profile offers any.
    pub relaxed_ordering: RelaxedOrdering,
    /// Whether requests may change the size of keys (UMR), as on real devices. Linux then keeps a stock of some thousand
    /// keys and registers memory by requests instead of by commands.
    pub umr: bool,
    /// Whether requests may change no right to atomics of a key, nor keys over other keys: `umr_modify_atomic_disabled` and
    /// `umr_indirect_mkey_disabled`, as the firmware of some virtual functions has them. No window is bound by such a function.
    pub restricted_umr: bool,
    /// Ports that the function numbers itself (`num_vhca_ports`): commands about the GID table then name one, from 1. 0, as in every
    /// profile: they name none.
    pub vhca_ports: u8,
    /// Whether it is a virtual function: HOST_ENDIANNESS and writes of PAOS are for the physical one, and are refused. On Ethernet the
    /// switch of the card brings it what is to the unicast and multicast addresses that its driver has listed, RoCE too.
    pub virtual_function: bool,
    /// Whether the physical function trusts a virtual one (`ip link set PF vf N trust on`): without that its promiscuous modes are
    /// accepted and ignored.
    pub trusted: bool,
    /// Whether the port says that each path from it needs a global route (`grh_required`). Packets without one pass nevertheless.
    pub grh_required: bool,
    /// Whether the function has virtual ports (`ib_virt`). Without them drivers query the port by MAD_IFC: then
    /// QUERY_HCA_VPORT_CONTEXT answers zeros, and QUERY_HCA_VPORT_GID and _PKEY are refused.
    pub ib_virt: bool,
    /// Whether user contexts are offered (DEVX).
    pub devx: bool,
    /// Whether commands carry signatures until the driver turns them off.
    pub command_checksum: bool,
    /// MSI-X vectors, 1 to 256.
    pub vectors: u16,
    /// How interrupts leave the device.
    pub interrupts: InterruptRouting,
    /// Time of a function-level reset: registers and configuration space read as all ones, writes are lost.
    pub reset_time: Duration,
    /// Time after power-on or reset during which the initializing bit stays set.
    pub initializing: Duration,
    /// Time that a link takes to come up (IBTA volume 2, 5.6: training), from INIT_HCA or from when the cable is plugged.
    /// Before INIT_HCA the link is down then. If 0, it is up from the start.
    pub link_training: Duration,
    /// Time until a subnet manager has found a port whose link came up: until then it is in state Init and has no local
    /// identifier (see [`Self::no_lid`]). For a port that is not managed, as if its subnet had a manager that sweeps; a managed port waits for a real
    /// one.
    pub lid_delay: Duration,
    /// Local identifier that a port without one reports to its driver.
    pub no_lid: u16,
    /// Whether a port without a cable reports the physical state Disabled, as cards do, and Polling with a cable whose other end is
    /// open. If not, it reports Polling.
    pub disabled_without_cable: bool,
    /// Whether PMTU has an operational MTU while the link is down.
    pub mtu_while_down: bool,
    /// Time that commands take.
    pub command_time: CommandTime,
    /// The `log_max_qp` in force until the driver sets another by SET_HCA_CAP, if that is not the maximum.
    pub initial_log_max_qp: Option<u8>,
    /// Whether the card is set to its real-time clock (`REAL_TIME_CLOCK_ENABLE` of its configuration, ConnectX-6 Dx and later). Queues
    /// whose context asks for stamps of the free-running clock are then refused.
    pub real_time_clock: bool,
    /// Registers ([`RegisterId`](bareverbs_mlx5_spec::RegisterId)) that the firmware refuses to read and to write, with BAD_RES. So
    /// ConnectX-7 answer whose physical function is restricted, as the hosts of a DGX have them (prometheus/node_exporter, issue 3434).
    pub refused_registers: Vec<u16>,
    /// Maximum numbers and sizes of objects.
    pub limits: Limits,
    /// Bytes of this process that the device may take, at least 32 MiB. A command that needs more gets NO_RESOURCES.
    pub memory_limit: u64,
}

impl DeviceConfig {
    /// Creates the configuration of a device that demands little and at once ([`Profile::Instant`]): what each profile begins
    /// with.
    ///
    /// [`Profile::Instant`]: crate::Profile::Instant
    pub(crate) fn instant(lid: u16) -> Self {
        // An EUI-64 as a maker assigns it: its OUI, which NodeInfo names as the vendor, and 0 behind it, where GUIDs of real
        // adapters have 1 to 3. Not a locally administered one. Programs listen for connections at their node's GUID (ib_srpt),
        // but the connection manager assigns all service identifiers that begin with 2 (IBTA A3.2.3.2, Linux
        // `IB_CM_ASSIGN_SERVICE_ID`).
        let guid = 0x0002_c900_0000_0000 | u64::from(lid) << 8;
        Self {
            pci_device_id: 0x1021,
            firmware: FirmwareVersion { major: 28, minor: 39, subminor: 1002 },
            board_id: *b"BAREVERBS_SIM_01",
            node_guid: guid,
            system_guid: guid,
            port_guid: guid | 1,
            gid_prefix: LINK_LOCAL_PREFIX,
            port: PortKind::InfiniBand,
            lid,
            managed: false,
            m_key: 0,
            sm_lid: 1,
            node_description: format!("bareverbs simulated device {lid}"),
            mtu: 4096,
            link_width: LinkWidth::default(),
            link_speed: LinkSpeed::default(),
            link_up: true,
            pages: PageDemand::FEW,
            blue_flame: true,
            atomics: true,
            extended_atomics: false,
            relaxed_ordering: RelaxedOrdering::NONE,
            umr: true,
            restricted_umr: false,
            vhca_ports: 0,
            virtual_function: false,
            trusted: false,
            grh_required: false,
            ib_virt: true,
            devx: true,
            command_checksum: false,
            vectors: 32,
            interrupts: InterruptRouting::Table,
            reset_time: Duration::ZERO,
            initializing: Duration::from_micros(50),
            link_training: Duration::ZERO,
            lid_delay: Duration::ZERO,
            no_lid: 0,
            disabled_without_cable: false,
            mtu_while_down: true,
            command_time: CommandTime::default(),
            initial_log_max_qp: None,
            real_time_clock: false,
            refused_registers: Vec::new(),
            limits: Limits::default(),
            memory_limit: DEFAULT_MEMORY_LIMIT,
        }
    }

    /// Returns the same device with an Ethernet port, whose MAC address is that of the node's GUID.
    #[must_use]
    pub fn with_ethernet(self) -> Self {
        // An EUI-64 is a MAC address with two bytes between maker and number; here the last byte tells the port as well.
        let [a, b, c, _, _, d, e, f] = self.node_guid.to_be_bytes();
        let port = PortKind::Ethernet { mac: [a, b, c, d, e, f] };
        Self { port, mtu: *ETHERNET_MTUS.end(), managed: false, ..self }
    }

    /// Returns the permanent MAC address of an Ethernet port.
    pub(crate) const fn mac(&self) -> Option<[u8; 6]> {
        match self.port {
            PortKind::InfiniBand => None,
            PortKind::Ethernet { mac } => Some(mac),
        }
    }

    /// Returns the bytes of payload in the largest packet of the transport at a port whose MTU is this now. RoCE does not look at the
    /// MTU that the driver has set for frames, but at the greatest that the port can have: a connection whose packets are longer than
    /// the MTU of now is made, and loses them at the port.
    pub(crate) fn max_payload(&self, mtu: u16) -> u16 {
        let most = self.mtu.saturating_sub(FRAME_OVERHEAD + ROCE_OVERHEAD);
        match self.port {
            PortKind::InfiniBand => mtu,
            PortKind::Ethernet { .. } => [4096, 2048, 1024, 512].into_iter().find(|payload| *payload <= most).unwrap_or(256),
        }
    }

    /// GID 0 of an InfiniBand port, in network byte order.
    pub fn gid(&self) -> [u8; 16] {
        (u128::from(self.gid_prefix) << 64 | u128::from(self.port_guid)).to_be_bytes()
    }
}

/// Why a device cannot be as its configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A port that no subnet manager configures needs a local identifier of its own, which is no multicast one (IBTA 4.1.3).
    Lid {
        /// Local identifier asked for.
        lid: u16,
    },
    /// Another device of the same wire has the local identifier.
    LidTaken {
        /// Local identifier asked for.
        lid: u16,
    },
    /// Two ports of one wire have the same GUID.
    GuidTaken {
        /// GUID of both.
        guid: u64,
    },
    /// More than two ports on a wire with a managed one. A subnet manager finds ports by directed routes, and no switch's
    /// agent is there to lead them to a third port.
    ManagedPorts,
    /// Two ports of one wire have the same MAC address.
    MacTaken {
        /// MAC address of both.
        mac: [u8; 6],
    },
    /// The MAC address of a port must be a unicast address, and not 0 but for a virtual function.
    Mac {
        /// MAC address asked for.
        mac: [u8; 6],
    },
    /// No subnet manager manages an Ethernet port.
    ManagedEthernet,
    /// There is no such MTU of an Ethernet port.
    EthernetMtu {
        /// Bytes asked for.
        mtu: u16,
    },
    /// There is no such MTU.
    Mtu {
        /// Bytes asked for.
        mtu: u16,
    },
    /// Not as many MSI-X vectors as a device may have.
    Vectors {
        /// Vectors asked for.
        vectors: u16,
    },
    /// Too little memory for a device to come up.
    MemoryLimit {
        /// Bytes asked for.
        bytes: u64,
    },
}

/// A MAC address as text.
pub(crate) struct Mac(pub(crate) [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lid { lid } => write!(f, "LID {lid:#x}: a port that is not managed needs one from 1 to {MAX_UNICAST_LID:#x}"),
            Self::LidTaken { lid } => write!(f, "LID {lid:#x}: another device has it"),
            Self::GuidTaken { guid } => write!(f, "port GUID {guid:#x}: two devices have it"),
            Self::ManagedPorts => write!(
                f,
                "more than two ports on the wire of a managed port: a subnet manager finds no third one, as the simulated \
                 switch has no management agent"
            ),
            Self::MacTaken { mac } => write!(f, "MAC address {}: another device has it", Mac(*mac)),
            Self::Mac { mac } => write!(f, "MAC address {}: a port needs a unicast address that is not 0", Mac(*mac)),
            Self::ManagedEthernet => write!(f, "no subnet manager manages an Ethernet port"),
            Self::EthernetMtu { mtu } => {
                let (least, most) = (ETHERNET_MTUS.start(), ETHERNET_MTUS.end());
                write!(f, "an MTU of {mtu} bytes: an Ethernet port has one from {least} to {most}")
            }
            Self::Mtu { mtu } => write!(f, "an MTU of {mtu} bytes: there are 256, 512, 1024, 2048 and 4096"),
            Self::Vectors { vectors } => write!(f, "{vectors} MSI-X vectors: a device has 1 to 256"),
            Self::MemoryLimit { bytes } => {
                write!(f, "a memory limit of {bytes} bytes: a device needs {MIN_MEMORY_LIMIT} at least")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// Returns whether a MAC address is that of a group.
pub(crate) const fn is_group_address([first, ..]: [u8; 6]) -> bool {
    first & 1 != 0
}

impl DeviceConfig {
    /// Checks that a device can be as this says.
    ///
    /// # Errors
    /// The first value that it cannot have.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Self { lid, mtu, vectors, .. } = *self;
        match self.port {
            PortKind::InfiniBand if !self.managed && !(1..=MAX_UNICAST_LID).contains(&lid) => {
                return Err(ConfigError::Lid { lid });
            }
            PortKind::InfiniBand if ![256, 512, 1024, 2048, 4096].contains(&mtu) => return Err(ConfigError::Mtu { mtu }),
            PortKind::Ethernet { mac } if mac == [0; 6] && !self.virtual_function || is_group_address(mac) => {
                return Err(ConfigError::Mac { mac });
            }
            PortKind::Ethernet { .. } if !ETHERNET_MTUS.contains(&mtu) => return Err(ConfigError::EthernetMtu { mtu }),
            PortKind::Ethernet { .. } if self.managed => return Err(ConfigError::ManagedEthernet),
            _ => {}
        }
        if !(1..=256).contains(&vectors) {
            return Err(ConfigError::Vectors { vectors });
        }
        if self.memory_limit < MIN_MEMORY_LIMIT {
            return Err(ConfigError::MemoryLimit { bytes: self.memory_limit });
        }
        Ok(())
    }

    /// Returns whether two devices would collide on one wire: both have the same local identifier from the start.
    pub(crate) fn collides(&self, other: &Self) -> bool {
        let has_lid = |config: &Self| !config.managed && config.mac().is_none();
        has_lid(self) && has_lid(other) && self.lid == other.lid
    }

    /// Checks that the devices can be on one wire: no two ports have one GUID, and a subnet manager can find the managed ones.
    ///
    /// # Errors
    /// [`ConfigError::GuidTaken`], [`ConfigError::MacTaken`], [`ConfigError::ManagedPorts`].
    pub fn check_wire<'a>(ports: impl IntoIterator<Item = &'a Self>) -> Result<(), ConfigError> {
        let (mut guids, mut macs, mut subnet, mut managed) = (BTreeSet::new(), BTreeSet::new(), 0, false);
        for port in ports {
            let guid = port.port_guid;
            if !guids.insert(guid) {
                return Err(ConfigError::GuidTaken { guid });
            }
            match port.mac() {
                Some(mac) if mac != [0; 6] && !macs.insert(mac) => return Err(ConfigError::MacTaken { mac }),
                Some(_) => {}
                None => subnet += 1,
            }
            managed |= port.managed;
        }
        if managed && subnet > 2 { Err(ConfigError::ManagedPorts) } else { Ok(()) }
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self::with_lid(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::in_process::{MemoryMap, World, WorldConfig};

    fn with(change: impl FnOnce(&mut DeviceConfig)) -> DeviceConfig {
        let mut config = DeviceConfig::default();
        change(&mut config);
        config
    }

    #[test]
    fn a_device_that_cannot_be_is_refused_with_the_value() {
        for (config, error) in [
            (with(|config| config.lid = 0), ConfigError::Lid { lid: 0 }),
            (with(|config| config.lid = 0xc000), ConfigError::Lid { lid: 0xc000 }),
            (with(|config| config.mtu = 77), ConfigError::Mtu { mtu: 77 }),
            (with(|config| config.vectors = 0), ConfigError::Vectors { vectors: 0 }),
            (with(|config| config.memory_limit = 1), ConfigError::MemoryLimit { bytes: 1 }),
        ] {
            assert_eq!(World::new(WorldConfig::default()).add(config.clone()).map(drop), Err(error));
            assert_eq!(Device::new(config, Box::new(MemoryMap::default())).map(drop), Err(error));
        }
        let managed = with(|config| (config.managed, config.lid) = (true, 0));
        assert!(World::new(WorldConfig::default()).add(managed).is_ok(), "its manager gives it one");
    }

    /// What the server and the command print of it.
    #[test]
    fn an_error_has_the_value_in_its_text() {
        let mac = [0, 2, 0xc9, 0x0a, 0x0b, 0];
        for (error, fact) in [
            (ConfigError::Lid { lid: 0xc000 }, "LID 0xc000"),
            (ConfigError::LidTaken { lid: 0x12 }, "LID 0x12: another"),
            (ConfigError::GuidTaken { guid: 0xabc }, "GUID 0xabc"),
            (ConfigError::ManagedPorts, "two ports"),
            (ConfigError::MacTaken { mac }, "00:02:c9:0a:0b:00: another"),
            (ConfigError::Mac { mac }, "unicast"),
            (ConfigError::ManagedEthernet, "subnet manager"),
            (ConfigError::EthernetMtu { mtu: 89 }, "89 bytes: an Ethernet port has one from 90 to 10000"),
            (ConfigError::Mtu { mtu: 77 }, "77 bytes"),
            (ConfigError::Vectors { vectors: 300 }, "300 MSI-X vectors"),
            (ConfigError::MemoryLimit { bytes: 4097 }, "4097 bytes"),
        ] {
            assert!(error.to_string().contains(fact), "{error}");
        }
    }

    #[test]
    fn an_ethernet_port_has_a_mac_address_and_an_mtu_of_its_own() {
        let config = DeviceConfig::with_lid(0x0a0b).with_ethernet();
        let mac = [0, 2, 0xc9, 0x0a, 0x0b, 0];
        assert_eq!((config.port, config.mtu, config.check()), (PortKind::Ethernet { mac }, 10_000, Ok(())));
        let with = |change: &dyn Fn(&mut DeviceConfig)| {
            let mut config = config.clone();
            change(&mut config);
            config.check()
        };
        let set = |mac| with(&|config: &mut DeviceConfig| config.port = PortKind::Ethernet { mac });
        for mac in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            assert_eq!(set(mac), Err(ConfigError::Mac { mac }));
        }
        assert_eq!(set([2, 0, 0, 0, 0, 1]), Ok(()));
        let fresh = PortKind::Ethernet { mac: [0; 6] };
        assert_eq!(with(&|config| (config.virtual_function, config.port) = (true, fresh)), Ok(()));
        for (mtu, is_possible) in [(89, false), (90, true), (1522, true), (4096, true), (10_000, true), (10_001, false)] {
            assert_eq!(with(&|config| config.mtu = mtu).is_ok(), is_possible, "{mtu}");
        }
        assert_eq!(with(&|config| config.managed = true), Err(ConfigError::ManagedEthernet));
        // LIDs are for InfiniBand alone.
        assert_eq!(with(&|config| config.lid = 0), Ok(()));
        for error in [ConfigError::Mac { mac }, ConfigError::MacTaken { mac }] {
            assert!(error.to_string().starts_with("MAC address 00:02:c9:0a:0b:00: "), "{error}");
        }
    }

    #[test]
    fn two_devices_of_a_wire_do_not_have_one_mac_address() {
        let world = World::new(WorldConfig::default());
        let first = DeviceConfig::with_lid(7).with_ethernet();
        let same_lid = DeviceConfig { lid: 7, ..DeviceConfig::with_lid(8).with_ethernet() };
        let same_mac = DeviceConfig { port: first.port, ..DeviceConfig::with_lid(9).with_ethernet() };
        world.add(first.clone()).unwrap();
        world.add(same_lid).unwrap();
        assert_eq!(world.add(same_mac).map(drop), Err(ConfigError::MacTaken { mac: first.mac().unwrap() }));
    }

    #[test]
    fn two_devices_of_a_wire_do_not_have_one_lid() {
        let world = World::new(WorldConfig::default());
        world.add(DeviceConfig::with_lid(7)).unwrap();
        let error = world.add(DeviceConfig::with_lid(7)).map(drop).unwrap_err();
        assert_eq!((error, error.to_string().as_str()), (ConfigError::LidTaken { lid: 7 }, "LID 0x7: another device has it"));
        world.add(DeviceConfig::with_lid(8)).unwrap();
    }

    #[test]
    fn two_devices_of_a_wire_do_not_have_one_guid() {
        let world = World::new(WorldConfig::default());
        let same = DeviceConfig { lid: 8, ..DeviceConfig::with_lid(7) };
        let guid = same.port_guid;
        world.add(DeviceConfig::with_lid(7)).unwrap();
        assert_eq!(world.add(same).map(drop), Err(ConfigError::GuidTaken { guid }));
    }

    #[test]
    fn a_wire_with_a_managed_port_has_two_ports_at_most() {
        let managed = |lid| DeviceConfig { managed: true, ..DeviceConfig::with_lid(lid) };
        let world = World::new(WorldConfig::default());
        world.add(managed(1)).unwrap();
        world.add(managed(2)).unwrap();
        for third in [managed(3), DeviceConfig::with_lid(3)] {
            assert_eq!(world.add(third).map(drop), Err(ConfigError::ManagedPorts));
        }
        let world = World::new(WorldConfig::default());
        (1..=3).for_each(|lid| drop(world.add(DeviceConfig::with_lid(lid)).unwrap()));
        assert_eq!(world.add(managed(4)).map(drop), Err(ConfigError::ManagedPorts));
    }
}
