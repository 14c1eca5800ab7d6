//! Where datagrams and packets go to, and where they came from.

use bareverbs::{Gid, Lid, Mtu, Qpn};

/// The default partition, as a full member (IBTA volume 1, 10.9.1.2).
const DEFAULT_P_KEY: u16 = 0xffff;

/// A path between two ports, as a path record of the subnet administrator describes it (IBTA volume 1, 15.2.5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Path {
    /// LID of our port; 0xffff on Ethernet.
    pub local_lid: Lid,
    /// LID of the peer's port; 0xffff on Ethernet.
    pub remote_lid: Lid,
    /// GID of our port.
    pub local_gid: Gid,
    /// GID of the peer's port.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Whether both ports are in one subnet.
    pub subnet_local: bool,
    /// Whether packets carry a GRH: to another subnet, and on Ethernet.
    pub global: bool,
    /// Static rate, 6 bits, encoded as in a path record; 0 and 2 are 2.5 Gb/s.
    pub packet_rate: u8,
    /// Packet lifetime: 4.096 µs · 2^`packet_life_time`, 5 bits.
    pub packet_life_time: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// P_Key.
    pub partition_key: u16,
}

impl Default for Path {
    /// A path of a small subnet: without LIDs, packets of 1024 bytes at 10 Gb/s, a lifetime of 1 s, default partition.
    fn default() -> Self {
        Self {
            local_lid: Lid::default(),
            remote_lid: Lid::default(),
            local_gid: Gid::default(),
            remote_gid: Gid::default(),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 0,
            sl: 0,
            subnet_local: true,
            global: false,
            packet_rate: 3,
            packet_life_time: 18,
            mtu: Mtu::Mtu1024,
            partition_key: DEFAULT_P_KEY,
        }
    }
}

impl Path {
    /// Returns where packets on this path go.
    pub fn address(&self) -> PathAddress {
        let grh = self.global.then_some(GlobalRoute {
            source_gid: self.local_gid,
            destination_gid: self.remote_gid,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
        });
        PathAddress { dlid: self.remote_lid, sl: self.sl, packet_rate: self.packet_rate, grh }
    }
}

/// Global route of a packet: the fields of its GRH (IBTA volume 1, 8.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GlobalRoute {
    /// Who sends it.
    pub source_gid: Gid,
    /// Who receives it.
    pub destination_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// Where packets go to: what an address vector says. The caller adds port and index of the source GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PathAddress {
    /// LID.
    pub dlid: Lid,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Static rate, 6 bits, encoded as in a path record (IBTA volume 1, 15.2.5.16); 0 if unknown.
    pub packet_rate: u8,
    /// Global route, if packets carry a GRH.
    pub grh: Option<GlobalRoute>,
}

/// Where a management datagram goes to. Its Q_Key is [`Qkey::GENERAL_SERVICES`](bareverbs::Qkey::GENERAL_SERVICES).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Address {
    /// Port.
    pub path: PathAddress,
    /// Queue pair there: 1, or where a datagram came from.
    pub qpn: Qpn,
    /// P_Key.
    pub partition_key: u16,
}

/// Where a received management datagram came from: what its completion and its GRH say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Source {
    /// Source LID.
    pub lid: Lid,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Source queue pair.
    pub qpn: Qpn,
    /// P_Key of the packet.
    pub partition_key: u16,
    /// Its global route as it was received, if it had one: the peer's GID is the source.
    pub grh: Option<GlobalRoute>,
}

impl Default for Source {
    /// LID 0 in the default partition.
    fn default() -> Self {
        Self { lid: Lid::default(), sl: 0, qpn: Qpn::default(), partition_key: DEFAULT_P_KEY, grh: None }
    }
}

/// Hop limit of an answer by GRH, as far as packets go (IBTA volume 1, 13.5.4).
const MAX_HOPS: u8 = 255;

impl Source {
    /// Returns where an answer goes (IBTA volume 1, 13.5.4).
    pub(crate) fn answer(&self) -> Address {
        let grh = self.grh.map(|grh| GlobalRoute {
            source_gid: grh.destination_gid,
            destination_gid: grh.source_gid,
            hop_limit: MAX_HOPS,
            ..grh
        });
        let path = PathAddress { dlid: self.lid, sl: self.sl, packet_rate: 0, grh };
        Address { path, qpn: self.qpn, partition_key: self.partition_key }
    }

    /// Returns who sent it.
    pub(crate) fn peer(&self) -> Peer {
        self.grh.map_or(Peer::Lid(self.lid), |grh| Peer::Gid(grh.source_gid))
    }
}

/// A port as limits and repeated requests know it: by its GID if a datagram had one, and by its LID else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Lid(Lid),
    Gid(Gid),
}

impl PathAddress {
    pub(crate) fn peer(&self) -> Peer {
        self.grh.map_or(Peer::Lid(self.dlid), |grh| Peer::Gid(grh.destination_gid))
    }
}
