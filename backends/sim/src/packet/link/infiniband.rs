//! The link part of InfiniBand packets: a local route header, and behind it a global route header if the packet has a route
//! between subnets (IBTA volume 1, 5.2, 7.7 and 8.3). The trailing VCRC belongs to the cable and is not here.

use bareverbs_mlx5_spec::{BaseTransportHeader, Bits, Field, GlobalRouteHeader, Layout, LocalRouteHeader, lnh};

use crate::packet::error::PacketError;
use crate::packet::header::{Dwords, ICRC, Reader, copy, set_ones};

/// Not a local identifier: what a port has before it is given one.
pub const NO_LID: u16 = 0;
/// Local identifier that every port accepts.
pub const PERMISSIVE_LID: u16 = 0xffff;
/// Local identifiers of multicast groups begin here and end before [`PERMISSIVE_LID`].
pub const FIRST_MULTICAST_LID: u16 = 0xc000;
/// Bytes of a global route header.
pub const GRH: usize = GlobalRouteHeader::SIZE;
/// Virtual lane of subnet management.
pub const SUBNET_LANE: u8 = 15;

const LRH: usize = LocalRouteHeader::SIZE;

/// Returns a field of the header that bytes begin with. `None` if they are too few.
#[inline]
pub(in crate::packet) fn read<L>(bytes: &[u8], field: Field<L>) -> Option<u32> {
    field.bits().read(bytes)
}

/// Returns the destination of a frame by its first bytes, for a switch. `None` if it is too short.
#[inline]
pub fn destination(frame: &[u8]) -> Option<u16> {
    read(frame, LocalRouteHeader::DESTINATION_LID).map(|lid| lid as u16)
}

/// Source of a frame by its first bytes. `None` if it is too short.
#[inline]
pub fn source(frame: &[u8]) -> Option<u16> {
    read(frame, LocalRouteHeader::SOURCE_LID).map(|lid| lid as u16)
}

/// Returns the bytes of a frame from its base transport header on. `None` if it is no transport packet.
#[inline]
pub(in crate::packet) fn transport(frame: &[u8]) -> Option<&[u8]> {
    match read(frame, LocalRouteHeader::LINK_NEXT_HEADER)? {
        lnh::LOCAL => frame.get(LRH..),
        lnh::GLOBAL => frame.get(LRH + GRH..),
        _ => None,
    }
}

/// Partition key of a frame. `None` for subnet management, which is in no partition, and for what is no transport packet.
#[inline]
pub fn partition_key(frame: &[u8]) -> Option<u16> {
    let pkey = read(transport(frame)?, BaseTransportHeader::P_KEY)?;
    (!is_subnet_management(frame)).then_some(pkey as u16)
}

/// Returns whether a frame is on the virtual lane of subnet management, by its first bytes.
#[inline]
pub fn is_subnet_management(frame: &[u8]) -> bool {
    read(frame, LocalRouteHeader::VIRTUAL_LANE) == Some(SUBNET_LANE.into())
}

/// Returns whether a local identifier is that of a multicast group.
pub const fn is_multicast_lid(lid: u16) -> bool {
    lid >= FIRST_MULTICAST_LID && lid != PERMISSIVE_LID
}

/// Local route header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lrh {
    /// Virtual lane.
    pub vl: u8,
    /// Service level.
    pub sl: u8,
    /// Destination local identifier.
    pub dlid: u16,
    /// Source local identifier.
    pub slid: u16,
}

impl Lrh {
    /// Returns whether the destination is a multicast group.
    pub const fn is_multicast(&self) -> bool {
        is_multicast_lid(self.dlid)
    }

    /// Appends the header of a frame of `len` bytes.
    #[inline]
    pub(in crate::packet) fn encode(&self, len: usize, global: bool, out: &mut Vec<u8>) {
        Dwords::<LocalRouteHeader, 2>::zeroed()
            .with(LocalRouteHeader::VIRTUAL_LANE, self.vl.into())
            .with(LocalRouteHeader::SERVICE_LEVEL, self.sl.into())
            .with(LocalRouteHeader::LINK_NEXT_HEADER, if global { lnh::GLOBAL } else { lnh::LOCAL })
            .with(LocalRouteHeader::DESTINATION_LID, self.dlid.into())
            .with(LocalRouteHeader::PACKET_LENGTH, (len / 4) as u32)
            .with(LocalRouteHeader::SOURCE_LID, self.slid.into())
            .put(out);
    }

    #[inline(always)]
    pub(in crate::packet) fn decode(header: &Dwords<LocalRouteHeader, 2>) -> Self {
        Self {
            vl: header.get(LocalRouteHeader::VIRTUAL_LANE) as u8,
            sl: header.get(LocalRouteHeader::SERVICE_LEVEL) as u8,
            dlid: header.get(LocalRouteHeader::DESTINATION_LID) as u16,
            slid: header.get(LocalRouteHeader::SOURCE_LID) as u16,
        }
    }
}

/// Global route header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grh {
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID in wire order.
    pub sgid: [u8; 16],
    /// Destination GID in wire order.
    pub dgid: [u8; 16],
}

impl Grh {
    /// Its bytes before `transport` bytes of BTH to ICRC.
    pub fn encode(&self, transport: usize) -> [u8; GRH] {
        self.encode_before(transport, GlobalRouteHeader::IBA_TRANSPORT)
    }

    /// Its bytes before `payload` bytes that begin with `next_header`: IPv6 has the same header (8.3).
    pub(super) fn encode_before(&self, payload: usize, next_header: u32) -> [u8; GRH] {
        Dwords::<GlobalRouteHeader, 10>::zeroed()
            .with(GlobalRouteHeader::IP_VERSION, GlobalRouteHeader::IPV6)
            .with(GlobalRouteHeader::TRAFFIC_CLASS, self.tclass.into())
            .with(GlobalRouteHeader::FLOW_LABEL, self.flow_label)
            .with(GlobalRouteHeader::PAYLOAD_LENGTH, payload as u32)
            .with(GlobalRouteHeader::NEXT_HEADER, next_header)
            .with(GlobalRouteHeader::HOP_LIMIT, self.hop_limit.into())
            .with_gid(GlobalRouteHeader::SOURCE_GID, &self.sgid)
            .with_gid(GlobalRouteHeader::DESTINATION_GID, &self.dgid)
            .bytes()
    }

    /// Takes it from the front of bytes, before a base transport header. What is left is without the ICRC.
    fn decode(reader: &mut Reader<'_>) -> Result<Self, PacketError> {
        let (route, says) = Self::decode_header(reader, GlobalRouteHeader::IBA_TRANSPORT)?;
        let have = reader.rest().len() + ICRC;
        if says == have { Ok(route) } else { Err(PacketError::Length { says, have }) }
    }

    /// Takes it from the front of bytes, before a header of a kind. Returns the bytes behind it that belong to its packet too.
    pub(super) fn decode_before<'a>(reader: &mut Reader<'a>, next_header: u32) -> Result<(Self, &'a [u8]), PacketError> {
        let (route, says) = Self::decode_header(reader, next_header)?;
        let rest = reader.rest();
        Ok((route, rest.get(..says).ok_or(PacketError::Length { says, have: rest.len() })?))
    }

    /// Takes it from the front of bytes. Returns its payload length too.
    fn decode_header(reader: &mut Reader<'_>, expected: u32) -> Result<(Self, usize), PacketError> {
        let header: Dwords<GlobalRouteHeader, 10> = reader.header("GRH")?;
        let version = header.get(GlobalRouteHeader::IP_VERSION);
        if version != GlobalRouteHeader::IPV6 {
            return Err(PacketError::Version { version: version as u8 });
        }
        let next_header = header.get(GlobalRouteHeader::NEXT_HEADER);
        if next_header != expected {
            return Err(PacketError::NotTransport { next_header: next_header as u8 });
        }
        let route = Self {
            tclass: header.get(GlobalRouteHeader::TRAFFIC_CLASS) as u8,
            flow_label: header.get(GlobalRouteHeader::FLOW_LABEL),
            hop_limit: header.get(GlobalRouteHeader::HOP_LIMIT) as u8,
            sgid: header.gid(GlobalRouteHeader::SOURCE_GID),
            dgid: header.gid(GlobalRouteHeader::DESTINATION_GID),
        };
        Ok((route, header.get(GlobalRouteHeader::PAYLOAD_LENGTH) as usize))
    }
}

/// The link part of an InfiniBand packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InfiniBandLink {
    /// Local route.
    pub lrh: Lrh,
    /// Global route, if any.
    pub grh: Option<Grh>,
}

impl From<Lrh> for InfiniBandLink {
    fn from(lrh: Lrh) -> Self {
        Self { lrh, grh: None }
    }
}

impl InfiniBandLink {
    /// Returns its bytes.
    #[inline]
    pub(in crate::packet) fn len(&self) -> usize {
        LRH + if self.grh.is_some() { GRH } else { 0 }
    }

    /// Appends it before `transport` bytes of BTH to ICRC.
    #[inline]
    pub(in crate::packet) fn encode(&self, transport: usize, out: &mut Vec<u8>) {
        self.lrh.encode(self.len() + transport, self.grh.is_some(), out);
        if let Some(grh) = &self.grh {
            out.extend_from_slice(&grh.encode(transport));
        }
    }

    /// Takes it from the front of a frame (LRH to ICRC). Returns what is left before the ICRC too.
    pub(in crate::packet) fn decode(frame: &[u8]) -> Result<(Self, Reader<'_>), PacketError> {
        let local = Reader::new(frame).header("LRH")?;
        let version = local.get(LocalRouteHeader::LINK_VERSION) as u8;
        if version != 0 {
            return Err(PacketError::Version { version });
        }
        let says = local.get(LocalRouteHeader::PACKET_LENGTH) as usize * 4;
        if says != frame.len() {
            return Err(PacketError::Length { says, have: frame.len() });
        }
        let global = match local.get(LocalRouteHeader::LINK_NEXT_HEADER) {
            lnh::LOCAL => false,
            lnh::GLOBAL => true,
            next_header => return Err(PacketError::NotTransport { next_header: next_header as u8 }),
        };
        let mut reader = Reader::new(frame.get(LRH..frame.len().saturating_sub(ICRC)).unwrap_or_default());
        let grh = global.then(|| Grh::decode(&mut reader)).transpose()?;
        Ok((Self { lrh: Lrh::decode(&local), grh }, reader))
    }

    /// Copies it from the front of a frame as the ICRC covers it: with ones for what changes on the way (7.8.1). Returns the
    /// bytes that it has there.
    #[inline]
    pub(in crate::packet) fn cover(&self, frame: &[u8], covered: &mut [u8]) -> usize {
        let len = self.len();
        copy(covered, frame, len);
        let mut mask = |header: usize, field: Bits| set_ones(covered, header, field);
        // The whole LRH changes between subnets, within one its virtual lane.
        if self.grh.is_some() {
            (0..LRH / 4).for_each(|dword| mask(0, Bits { dword: dword * 4, hi: 31, lo: 0 }));
            mask(LRH, GlobalRouteHeader::TRAFFIC_CLASS.bits());
            mask(LRH, GlobalRouteHeader::FLOW_LABEL.bits());
            mask(LRH, GlobalRouteHeader::HOP_LIMIT.bits());
        } else {
            mask(0, LocalRouteHeader::VIRTUAL_LANE.bits());
        }
        len
    }

    /// Adds its fields by name.
    pub(in crate::packet) fn name_fields(&self, fields: &mut Vec<(&'static str, &'static str, String)>) {
        let Lrh { vl, sl, dlid, slid } = self.lrh;
        fields.push(("LRH", "VL", vl.to_string()));
        fields.push(("LRH", "SL", sl.to_string()));
        fields.push(("LRH", "DLID", format!("{dlid:#06x}")));
        fields.push(("LRH", "SLID", format!("{slid:#06x}")));
        if let Some(grh) = &self.grh {
            fields.push(("GRH", "SGID", format!("{:032x}", u128::from_be_bytes(grh.sgid))));
            fields.push(("GRH", "DGID", format!("{:032x}", u128::from_be_bytes(grh.dgid))));
            fields.push(("GRH", "HopLmt", grh.hop_limit.to_string()));
        }
    }
}
