//! Addresses of datagrams: where one goes, and where one came from.

use core::fmt;
use core::net::Ipv4Addr;

use crate::{AddressVector, Gid, GlobalRoute, Lid, PdHandle, Qkey, Qpn};

/// [`UDP`](https://www.iana.org/assignments/protocol-numbers) as the next header of IPv6.
const UDP: u8 = 17;
/// Explicit congestion notification, in a traffic class of IP (RFC 3168).
const ECN: u8 = 3;

/// Where datagrams go: a port (`ibv_ah`). A value, made once by [`Verbs::create_ah`](crate::Verbs::create_ah) and copied into each
/// request, so that nothing has to be destroyed, and a request in flight needs it no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AddressHandle {
    pd: PdHandle,
    encoded: EncodedAddress,
}

impl AddressHandle {
    pub(crate) const fn new(pd: PdHandle, encoded: EncodedAddress) -> Self {
        Self { pd, encoded }
    }

    /// Returns the handle of the protection domain that it was made in. Queue pairs of this domain send to it.
    pub const fn pd(&self) -> PdHandle {
        self.pd
    }

    /// Returns what the backend has made of it.
    pub(crate) const fn encoded(&self) -> &EncodedAddress {
        &self.encoded
    }
}

/// What a backend has made of an [`AddressVector`]: the bytes that each datagram to it carries, in the device's own layout.
/// [`AddressHandle`] keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EncodedAddress(pub [u64; 6]);

/// Where one datagram goes: a queue pair at a port (`wr.ud` of `ibv_send_wr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Destination {
    /// The port, or a multicast group.
    pub ah: AddressHandle,
    /// The queue pair, 24 bits; [`Self::MULTICAST_QPN`] for a group.
    pub remote_qpn: Qpn,
    /// Q_Key of the queue pair; it drops a datagram with another one. If the highest bit is set, the datagram has that of the
    /// sender's queue pair instead (IBTA 10.2.5): controlled Q_Keys are only had by whoever may give them to a queue pair.
    pub remote_qkey: Qkey,
}

impl Destination {
    /// The queue pair number of every multicast group (IBTA 10.5.1).
    pub const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);
}

/// Where a received datagram came from (fields of `ibv_wc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Source {
    /// Queue pair that sent it.
    pub src_qp: Qpn,
    /// LID of the port that sent it; 0 on an Ethernet port.
    pub slid: Lid,
    /// Service level; on an Ethernet port the priority of its VLAN tag.
    pub sl: u8,
    /// VLAN that it came in, 12 bits; `None` without a tag, and on an InfiniBand port.
    pub vlan: Option<u16>,
    /// Low 7 bits of the LID that it was sent to.
    pub dlid_path_bits: u8,
    /// Whether it came with a global route: then the receive begins with that ([`GlobalRoute::AREA`]).
    pub grh: bool,
    /// P_Key that it came with. `None` if immediate data came in its place.
    pub pkey: Option<u16>,
}

impl Source {
    /// Returns the address of the sender's port, for an answer through `port_num` of this device. If the datagram had a global
    /// route, the answer needs one too: [`GlobalRoute::reply`]. On an Ethernet port it has one, and its completion says nothing of the
    /// sender's MAC address: the caller adds what it knows ([`AddressVector::dmac`]).
    pub const fn reply(&self, port_num: u8) -> AddressVector {
        let Self { slid, sl, dlid_path_bits, .. } = *self;
        AddressVector { dlid: slid, sl, src_path_bits: dlid_path_bits, static_rate: 0, port_num, grh: None, dmac: None }
    }
}

impl GlobalRoute {
    /// Bytes before the message in each receive of a datagram queue pair: the global route header, if the datagram came with one
    /// (IBTA 11.4.1.2), and otherwise undefined. On an Ethernet port the IP header: of IPv6 from the first byte, of IPv4 from byte
    /// 20 on (annex A17). The length of the completion includes them.
    pub const AREA: usize = 40;

    /// Returns the route of an answer to a datagram whose receive begins with `header` (IBTA 8.3, annex A17). `sgid_index` is the
    /// index of the GID that it was sent to, unless that is a multicast group: the last 16 bytes, or the last 4 of IPv4.
    pub fn reply(header: &[u8; Self::AREA], sgid_index: u8) -> Self {
        let route = Self { sgid_index, hop_limit: 0xff, ..Self::default() };
        if let Some((tos, source)) = ipv4_of(header) {
            return Self { dgid: source.into(), traffic_class: tos & !ECN, ..route };
        }
        let (words, _) = header.as_chunks::<4>();
        let [first, [_, _, next_header, _], a, b, c, d, ..] = words else { return route };
        // Version (4 bits), traffic class (8), flow label (20).
        let first = u32::from_be_bytes(*first);
        let mut dgid = [0; 16];
        for (to, from) in dgid.iter_mut().zip([a, b, c, d].into_iter().flatten()) {
            *to = *from;
        }
        // A router of IP says by two bits that it was congested on the way here.
        let not_ours = if *next_header == UDP { ECN } else { 0 };
        Self { dgid: Gid(dgid), flow_label: first & 0xf_ffff, traffic_class: (first >> 20) as u8 & !not_ours, ..route }
    }
}

/// Returns type of service and source of the IPv4 header at the end of an area, if one is there: what precedes it is undefined, so
/// that its version and its checksum decide (Linux `ib_get_rdma_header_version`).
fn ipv4_of(area: &[u8; GlobalRoute::AREA]) -> Option<(u8, Ipv4Addr)> {
    let header: &[u8; 20] = area.last_chunk()?;
    let [version, tos, _, _, _, _, _, _, _, _, _, _, a, b, c, d, ..] = *header;
    let sum: u32 = header.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    // Version 4, five words.
    let is_ipv4 = version == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff;
    is_ipv4.then_some((tos, Ipv4Addr::new(a, b, c, d)))
}

/// Part of an address vector ([`CreateAhError::Value`](crate::error::CreateAhError::Value),
/// [`ModifyQpError::Value`](crate::error::ModifyQpError::Value)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum AddressPart {
    /// [`AddressVector::port_num`].
    PortNum,
    /// [`AddressVector::sl`].
    Sl,
    /// [`AddressVector::src_path_bits`].
    SrcPathBits,
    /// [`GlobalRoute::flow_label`].
    FlowLabel,
}

impl fmt::Display for AddressPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PortNum => "port_num",
            Self::Sl => "sl",
            Self::SrcPathBits => "src_path_bits",
            Self::FlowLabel => "flow_label",
        })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn an_answer_goes_back_the_way_that_the_datagram_came() {
        let source = Source { slid: Lid::new(0x1234), sl: 5, dlid_path_bits: 3, ..Source::default() };
        let expected =
            AddressVector { dlid: Lid::new(0x1234), sl: 5, src_path_bits: 3, port_num: 2, ..AddressVector::default() };
        assert_eq!(source.reply(2), expected);
        // IBTA 8.3: version 6, traffic class 0xab, flow label 0xcdef1, payload length, next header 0x1b, hop limit, source GID,
        // destination GID.
        let mut header = [0; GlobalRoute::AREA];
        header[..8].copy_from_slice(&[0x6a, 0xbc, 0xde, 0xf1, 0, 0x20, 0x1b, 7]);
        header[8..24].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        header[24..].fill(0x99);
        let route = GlobalRoute::reply(&header, 4);
        assert_eq!(route.dgid, Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!((route.flow_label, route.traffic_class), (0xc_def1, 0xab));
        assert_eq!((route.sgid_index, route.hop_limit), (4, 0xff));
    }

    /// An area as Linux's `rdma_rxe` delivers it: 20 bytes, then IPv4. 192.0.2.7 to 192.0.2.1, type of
    /// service 0x6b: DSCP 26 and two bits of congestion.
    #[test]
    fn an_answer_over_ip_has_the_address_and_no_mark_of_congestion() {
        let ipv4 = [0x45, 0x6b, 0, 0x44, 0, 0, 0x40, 0, 0x40, 0x11, 0xb6, 0x35, 192, 0, 2, 7, 192, 0, 2, 1];
        for undefined in [0, 0x60, 0xff] {
            let mut area = [undefined; GlobalRoute::AREA];
            area[20..].copy_from_slice(&ipv4);
            let route = GlobalRoute::reply(&area, 2);
            assert_eq!(route.dgid.ip().to_string(), "192.0.2.7", "{undefined:#x}");
            assert_eq!((route.traffic_class, route.flow_label, route.sgid_index), (0x68, 0, 2));
        }
        let mut area = [0; GlobalRoute::AREA];
        area[..8].copy_from_slice(&[0x66, 0xbc, 0xde, 0xf1, 0, 0x20, 17, 7]);
        area[8] = 0xfe;
        // The end of an IPv6 header that has the form of an IPv4 header without its checksum.
        area[20..].copy_from_slice(&ipv4);
        area[31] ^= 1;
        let route = GlobalRoute::reply(&area, 0);
        assert_eq!((route.dgid.0[0], route.traffic_class, route.flow_label), (0xfe, 0x68, 0xc_def1));
    }
}
