//! The link part of RoCEv2 packets: Ethernet header, perhaps a VLAN tag, IPv4 or IPv6 header, UDP header (IBTA volume 1, annex
//! A17). The frame check sequence of Ethernet belongs to the cable and is not here.

use bareverbs_mlx5_spec::{
    Bits, EthernetAddresses, GlobalRouteHeader, Ipv4Header, Layout, UdpHeader, View, VlanHeader, ether_type,
};

use crate::packet::error::PacketError;
use crate::packet::header::{Dwords, ICRC, Reader, copy, set_ones};

use super::infiniband::{GRH, Grh};

const ADDRESSES: usize = EthernetAddresses::SIZE;
const TAG: usize = VlanHeader::SIZE;
/// Bytes of an Ethernet type.
const TYPE: usize = 2;
const IPV4: usize = Ipv4Header::SIZE;
const UDP: usize = UdpHeader::SIZE;
/// Ones in place of a local route header, with which the ICRC begins.
const LRH: usize = 8;

/// A tag of IEEE 802.1Q.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanTag {
    /// Priority code point, 3 bits.
    pub priority: u8,
    /// May be dropped before others.
    pub drop_eligible: bool,
    /// VLAN identifier, 12 bits.
    pub id: u16,
}

/// IPv4 header without options, of a packet that is no fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Route {
    /// Type of service: differentiated services and congestion.
    pub tos: u8,
    /// Identification.
    pub identification: u16,
    /// Must not be fragmented.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// Source address in wire order.
    pub source: [u8; 4],
    /// Destination address in wire order.
    pub destination: [u8; 4],
}

/// The IP header of a RoCEv2 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpRoute {
    /// IPv4.
    V4(Ipv4Route),
    /// IPv6, whose header is a global route header with another next header.
    V6(Grh),
}

/// The addresses of a RoCEv2 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceV2Address {
    /// Destination MAC address.
    pub destination: [u8; 6],
    /// Identifier of the VLAN, if any. A tag with identifier 0 has a priority alone (IEEE 802.1Q, 6.9).
    pub vlan: Option<u16>,
    /// Whether the header is one of IPv4. That of IPv6 may have addresses of the same GIDs (RFC 4291, 2.5.5.2).
    pub is_ipv4: bool,
    /// IP addresses of source and destination as GIDs in wire order.
    pub gids: [[u8; 16]; 2],
    /// Whether the destination is a multicast group.
    pub is_multicast: bool,
}

/// The link part of a RoCEv2 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceV2Link {
    /// Destination MAC address.
    pub destination: [u8; 6],
    /// Source MAC address.
    pub source: [u8; 6],
    /// VLAN tag, if any.
    pub vlan: Option<VlanTag>,
    /// IP header.
    pub route: IpRoute,
    /// UDP source port, by which routers choose among paths.
    pub source_port: u16,
}

impl VlanTag {
    /// Returns its control information: what follows the type.
    pub(crate) const fn control(self) -> u16 {
        (self.priority as u16 & 7) << 13 | (self.drop_eligible as u16) << 12 | self.id & 0xfff
    }

    fn decode(header: &Dwords<VlanHeader, 1>) -> Self {
        Self {
            priority: header.get(VlanHeader::PRIORITY) as u8,
            drop_eligible: header.get(VlanHeader::DROP_ELIGIBLE) != 0,
            id: header.get(VlanHeader::ID) as u16,
        }
    }
}

impl Ipv4Route {
    /// Its bytes before `udp` bytes of UDP header to ICRC.
    fn encode(&self, udp: usize) -> [u8; IPV4] {
        let header = Dwords::<Ipv4Header, 5>::zeroed()
            .with(Ipv4Header::VERSION, Ipv4Header::IPV4)
            .with(Ipv4Header::HEADER_LENGTH, Ipv4Header::NO_OPTIONS)
            .with(Ipv4Header::TYPE_OF_SERVICE, self.tos.into())
            .with(Ipv4Header::TOTAL_LENGTH, (IPV4 + udp) as u32)
            .with(Ipv4Header::IDENTIFICATION, self.identification.into())
            .with(Ipv4Header::DONT_FRAGMENT, self.dont_fragment.into())
            .with(Ipv4Header::TIME_TO_LIVE, self.ttl.into())
            .with(Ipv4Header::PROTOCOL, UdpHeader::PROTOCOL)
            .with(Ipv4Header::SOURCE, u32::from_be_bytes(self.source))
            .with(Ipv4Header::DESTINATION, u32::from_be_bytes(self.destination));
        let checksum = !header.ones_sum();
        header.with(Ipv4Header::CHECKSUM, checksum.into()).bytes()
    }

    /// Takes it from the front of bytes. Returns the bytes behind it that belong to its packet too.
    fn decode<'a>(reader: &mut Reader<'a>) -> Result<(Self, &'a [u8]), PacketError> {
        let have = reader.rest().len();
        let header: Dwords<Ipv4Header, 5> = reader.header("IPv4")?;
        let version = header.get(Ipv4Header::VERSION);
        if version != Ipv4Header::IPV4 {
            return Err(PacketError::Version { version: version as u8 });
        }
        if header.get(Ipv4Header::HEADER_LENGTH) != Ipv4Header::NO_OPTIONS {
            return Err(PacketError::Options);
        }
        if header.ones_sum() != u16::MAX {
            return Err(PacketError::Checksum);
        }
        if header.get(Ipv4Header::FRAGMENT) != 0 {
            return Err(PacketError::Fragment);
        }
        let protocol = header.get(Ipv4Header::PROTOCOL);
        if protocol != UdpHeader::PROTOCOL {
            return Err(PacketError::NotTransport { next_header: protocol as u8 });
        }
        let says = header.get(Ipv4Header::TOTAL_LENGTH) as usize;
        let udp = says.checked_sub(IPV4).and_then(|len| reader.rest().get(..len));
        let udp = udp.ok_or(PacketError::Length { says, have })?;
        let route = Self {
            tos: header.get(Ipv4Header::TYPE_OF_SERVICE) as u8,
            identification: header.get(Ipv4Header::IDENTIFICATION) as u16,
            dont_fragment: header.get(Ipv4Header::DONT_FRAGMENT) != 0,
            ttl: header.get(Ipv4Header::TIME_TO_LIVE) as u8,
            source: header.get(Ipv4Header::SOURCE).to_be_bytes(),
            destination: header.get(Ipv4Header::DESTINATION).to_be_bytes(),
        };
        Ok((route, udp))
    }
}

/// Returns whether an IPv4 address is that of a multicast group (RFC 1112).
const fn is_ipv4_group([first, ..]: [u8; 4]) -> bool {
    first >> 4 == 0xe
}

/// Returns the IPv4-mapped GID of an address (RFC 4291, 2.5.5.2).
const fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

impl IpRoute {
    /// Returns its bytes.
    const fn len(&self) -> usize {
        match self {
            Self::V4(_) => IPV4,
            Self::V6(_) => GRH,
        }
    }

    /// Returns the type of Ethernet for it.
    const fn ether_type(&self) -> u16 {
        match self {
            Self::V4(_) => ether_type::IPV4,
            Self::V6(_) => ether_type::IPV6,
        }
    }

    /// Appends it before `udp` bytes of UDP header to ICRC.
    fn encode(&self, udp: usize, out: &mut Vec<u8>) {
        match self {
            Self::V4(route) => out.extend_from_slice(&route.encode(udp)),
            Self::V6(route) => out.extend_from_slice(&route.encode_before(udp, UdpHeader::PROTOCOL)),
        }
    }

    /// Returns whether the destination is a multicast group (RFC 1112, RFC 4291).
    pub const fn is_multicast(&self) -> bool {
        match self {
            Self::V4(route) => is_ipv4_group(route.destination),
            Self::V6(route) => {
                let [first, ..] = route.dgid;
                first == 0xff
            }
        }
    }

    const fn is_ipv4(&self) -> bool {
        matches!(self, Self::V4(_))
    }

    /// Returns the GIDs of source and destination in wire order.
    pub const fn gids(&self) -> [[u8; 16]; 2] {
        match self {
            Self::V4(route) => [mapped(route.source), mapped(route.destination)],
            Self::V6(route) => [route.sgid, route.dgid],
        }
    }

    /// Returns the kind as a completion says it (`MLX5_CQE_ROCE_L3_HEADER_TYPE_*` of Linux).
    pub const fn completion_type(&self) -> u8 {
        match self {
            Self::V4(_) => 2,
            Self::V6(_) => 1,
        }
    }
}

impl RoceV2Link {
    /// A link part without a source, of packets that are not sent.
    pub(crate) const NOWHERE: Self = Self {
        destination: [0; 6],
        source: [0; 6],
        vlan: None,
        route: IpRoute::V4(Ipv4Route {
            tos: 0,
            identification: 0,
            dont_fragment: true,
            ttl: 0,
            source: [0; 4],
            destination: [0; 4],
        }),
        source_port: 0,
    };

    /// Returns its addresses.
    #[inline]
    pub(in crate::packet) const fn address(&self) -> RoceV2Address {
        let vlan = match self.vlan {
            Some(VlanTag { id: 0, .. }) | None => None,
            Some(tag) => Some(tag.id),
        };
        let (is_ipv4, gids, is_multicast) = (self.route.is_ipv4(), self.route.gids(), self.route.is_multicast());
        RoceV2Address { destination: self.destination, vlan, is_ipv4, gids, is_multicast }
    }

    /// Returns its bytes.
    pub(in crate::packet) const fn len(&self) -> usize {
        ADDRESSES + if self.vlan.is_some() { TAG } else { 0 } + TYPE + self.route.len() + UDP
    }

    /// Appends it before `transport` bytes of BTH to ICRC.
    pub(in crate::packet) fn encode(&self, transport: usize, out: &mut Vec<u8>) {
        const { assert!(EthernetAddresses::DESTINATION.offset() == 0 && EthernetAddresses::SOURCE.offset() == 6) };
        out.extend_from_slice([self.destination, self.source].as_flattened());
        if let Some(VlanTag { priority, drop_eligible, id }) = self.vlan {
            Dwords::<VlanHeader, 1>::zeroed()
                .with(VlanHeader::TYPE, ether_type::VLAN.into())
                .with(VlanHeader::PRIORITY, priority.into())
                .with(VlanHeader::DROP_ELIGIBLE, drop_eligible.into())
                .with(VlanHeader::ID, id.into())
                .put(out);
        }
        out.extend_from_slice(&self.route.ether_type().to_be_bytes());
        let udp = UDP + transport;
        self.route.encode(udp, out);
        // Without a checksum, which the ICRC makes needless.
        Dwords::<UdpHeader, 2>::zeroed()
            .with(UdpHeader::SOURCE_PORT, self.source_port.into())
            .with(UdpHeader::DESTINATION_PORT, UdpHeader::ROCE_V2)
            .with(UdpHeader::LENGTH, udp as u32)
            .put(out);
    }

    /// Takes it from the front of a frame (Ethernet header to ICRC, perhaps padding behind that). Returns what is left before
    /// the ICRC, and the frame without the padding.
    pub(in crate::packet) fn decode(frame: &[u8]) -> Result<(Self, Reader<'_>, &[u8]), PacketError> {
        let mut reader = Reader::new(frame);
        let have = frame.len();
        let bytes = reader.take("Ethernet", ADDRESSES)?;
        let addresses = View::<EthernetAddresses>::new(bytes).ok_or(PacketError::Short { header: "Ethernet", have })?;
        let address = |field| addresses.bytes(field).first_chunk().copied().unwrap_or_default();
        let (destination, source) = (address(EthernetAddresses::DESTINATION), address(EthernetAddresses::SOURCE));
        let is_tagged = reader.rest().first_chunk() == Some(&ether_type::VLAN.to_be_bytes());
        let vlan = is_tagged.then(|| reader.header("VLAN tag").map(|header| VlanTag::decode(&header))).transpose()?;
        let found = reader.take("Ethernet type", TYPE)?;
        let ether_type = found.first_chunk().copied().map_or(0, u16::from_be_bytes);
        let (route, udp) = match ether_type {
            ether_type::IPV4 => Ipv4Route::decode(&mut reader).map(|(route, udp)| (IpRoute::V4(route), udp))?,
            ether_type::IPV6 => {
                Grh::decode_before(&mut reader, UdpHeader::PROTOCOL).map(|(route, udp)| (IpRoute::V6(route), udp))?
            }
            ether_type => return Err(PacketError::EtherType { ether_type }),
        };
        let before_udp = frame.len() - reader.rest().len();
        let header: Dwords<UdpHeader, 2> = Reader::new(udp).header("UDP")?;
        let port = header.get(UdpHeader::DESTINATION_PORT);
        if port != UdpHeader::ROCE_V2 {
            return Err(PacketError::Port { port: port as u16 });
        }
        let says = header.get(UdpHeader::LENGTH) as usize;
        if says != udp.len() {
            return Err(PacketError::Length { says, have: udp.len() });
        }
        let link = Self { destination, source, vlan, route, source_port: header.get(UdpHeader::SOURCE_PORT) as u16 };
        let rest = Reader::new(udp.get(UDP..udp.len().saturating_sub(ICRC)).unwrap_or_default());
        Ok((link, rest, frame.get(..before_udp + udp.len()).unwrap_or_default()))
    }

    /// Copies it from the front of a frame as the ICRC covers it: ones for a local route header and for what changes on the
    /// way, and nothing of Ethernet (annex A17). Returns the bytes that it has there.
    pub(in crate::packet) fn cover(&self, frame: &[u8], covered: &mut [u8]) -> usize {
        let (len, ip) = (self.len(), self.route.len());
        let headers = frame.get(len - ip - UDP..len).unwrap_or_default();
        copy(covered, &[0xff; LRH], LRH);
        copy(covered.get_mut(LRH..).unwrap_or_default(), headers, headers.len());
        let mut mask = |header: usize, field: Bits| set_ones(covered, header, field);
        match self.route {
            IpRoute::V4(_) => {
                mask(LRH, Ipv4Header::TYPE_OF_SERVICE.bits());
                mask(LRH, Ipv4Header::TIME_TO_LIVE.bits());
                mask(LRH, Ipv4Header::CHECKSUM.bits());
            }
            IpRoute::V6(_) => {
                mask(LRH, GlobalRouteHeader::TRAFFIC_CLASS.bits());
                mask(LRH, GlobalRouteHeader::FLOW_LABEL.bits());
                mask(LRH, GlobalRouteHeader::HOP_LIMIT.bits());
            }
        }
        mask(LRH + ip, UdpHeader::CHECKSUM.bits());
        LRH + ip + UDP
    }

    /// Returns the bytes that lie before a received datagram of `transport` bytes of BTH to ICRC: an IPv6 header, or zeros and
    /// an IPv4 header (`rxe_resp.c` of Linux).
    pub(in crate::packet) fn before_datagram(&self, transport: usize) -> [u8; GRH] {
        let udp = UDP + transport;
        match &self.route {
            IpRoute::V4(route) => {
                let mut area = [0; GRH];
                area.iter_mut().skip(GRH - IPV4).zip(route.encode(udp)).for_each(|(to, from)| *to = from);
                area
            }
            IpRoute::V6(route) => route.encode_before(udp, UdpHeader::PROTOCOL),
        }
    }

    /// Adds its fields by name.
    pub(in crate::packet) fn name_fields(&self, fields: &mut Vec<(&'static str, &'static str, String)>) {
        let mac = |[a, b, c, d, e, f]: [u8; 6]| format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        fields.push(("Ethernet", "Dst", mac(self.destination)));
        fields.push(("Ethernet", "Src", mac(self.source)));
        if let Some(VlanTag { priority, id, .. }) = self.vlan {
            fields.push(("VLAN", "PCP", priority.to_string()));
            fields.push(("VLAN", "ID", id.to_string()));
        }
        let (name, tclass, hop_limit, ends) = match &self.route {
            IpRoute::V4(route) => {
                let ends = [route.source, route.destination].map(|end| std::net::Ipv4Addr::from(end).to_string());
                ("IPv4", route.tos, route.ttl, ends)
            }
            IpRoute::V6(route) => {
                let ends = [route.sgid, route.dgid].map(|end| std::net::Ipv6Addr::from(end).to_string());
                ("IPv6", route.tclass, route.hop_limit, ends)
            }
        };
        let [source, destination] = ends;
        fields.push((name, "Src", source));
        fields.push((name, "Dst", destination));
        fields.push((name, "TClass", format!("{tclass:#04x}")));
        fields.push((name, "HopLmt", hop_limit.to_string()));
        fields.push(("UDP", "SrcPort", self.source_port.to_string()));
    }
}

/// Reads the addresses of a frame and what follows its UDP header, at fixed places, without verifying more than that it is
/// UDP to the port of RoCE. `None` if it is not.
#[inline]
pub(in crate::packet) fn address(frame: &[u8]) -> Option<(RoceV2Address, &[u8])> {
    let (destination, rest) = frame.split_first_chunk::<6>()?;
    let (_, mut rest) = rest.split_first_chunk::<6>()?;
    let mut vlan = None;
    let mut take_type = || -> Option<u16> {
        let (found, behind) = rest.split_first_chunk::<TYPE>()?;
        rest = behind;
        Some(u16::from_be_bytes(*found))
    };
    let mut found = take_type()?;
    if found == ether_type::VLAN {
        vlan = Some(take_type()? & VlanHeader::ID.max() as u16).filter(|id| *id != 0);
        found = take_type()?;
    }
    let (protocol, gids, is_multicast, udp) = match found {
        ether_type::IPV4 => {
            let header: Dwords<Ipv4Header, 5> = Reader::new(rest).header("IPv4").ok()?;
            // Version and length without options. Fragments have to be put together before they have a UDP header.
            if rest.first() != Some(&0x45) || header.get(Ipv4Header::FRAGMENT) != 0 {
                return None;
            }
            let source = header.get(Ipv4Header::SOURCE).to_be_bytes();
            let destination = header.get(Ipv4Header::DESTINATION).to_be_bytes();
            let is_multicast = is_ipv4_group(destination);
            (header.get(Ipv4Header::PROTOCOL), [mapped(source), mapped(destination)], is_multicast, rest.get(IPV4..)?)
        }
        ether_type::IPV6 => {
            let header: Dwords<GlobalRouteHeader, 10> = Reader::new(rest).header("IPv6").ok()?;
            let gids = [header.gid(GlobalRouteHeader::SOURCE_GID), header.gid(GlobalRouteHeader::DESTINATION_GID)];
            let is_multicast = matches!(gids, [_, [0xff, ..]]);
            (header.get(GlobalRouteHeader::NEXT_HEADER), gids, is_multicast, rest.get(GRH..)?)
        }
        _ => return None,
    };
    let header: Dwords<UdpHeader, 2> = Reader::new(udp).header("UDP").ok()?;
    let is_roce = protocol == UdpHeader::PROTOCOL && header.get(UdpHeader::DESTINATION_PORT) == UdpHeader::ROCE_V2;
    let address = RoceV2Address { destination: *destination, vlan, is_ipv4: found == ether_type::IPV4, gids, is_multicast };
    is_roce.then(|| udp.get(UDP..)).flatten().map(|transport| (address, transport))
}

#[cfg(test)]
mod tests;
