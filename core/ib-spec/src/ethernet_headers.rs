//! Headers before a base transport header on Ethernet: RoCEv2 (IBTA volume 1, annex A17). An IPv6 header has the layout of a
//! [`GlobalRouteHeader`](crate::GlobalRouteHeader).

crate::layout! {
    /// Addresses of Ethernet (IEEE 802.3, 3.1.1). A tag may follow, then 16 bits of [`ether_type`].
    EthernetAddresses "ethernet_addresses", 12 bytes {
        DESTINATION "h_dest" (@0 [6]);
        SOURCE "h_source" (@6 [6]);
    }
}

crate::layout! {
    /// VLAN tag (IEEE 802.1Q, 9.3 to 9.6).
    VlanHeader "vlan_tag", 4 bytes {
        /// [`ether_type::VLAN`].
        TYPE "h_vlan_proto" (0:31..16);
        PRIORITY "pcp" (0:15..13);
        DROP_ELIGIBLE "dei" (0:12..12);
        ID "vid" (0:11..0);
    }
}

/// Types of Ethernet: what follows the addresses.
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// A VLAN tag, whose first half this is.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
}

crate::layout! {
    /// IPv4 header without options (RFC 791, 3.1).
    Ipv4Header "iphdr", 20 bytes {
        VERSION "version" (0:31..28);
        /// Its length in dwords.
        HEADER_LENGTH "ihl" (0:27..24);
        /// Differentiated services and congestion (RFC 2474, RFC 3168).
        TYPE_OF_SERVICE "tos" (0:23..16);
        /// In bytes, this header included.
        TOTAL_LENGTH "tot_len" (0:15..0);
        IDENTIFICATION "id" (4:31..16);
        DONT_FRAGMENT "df" (4:14..14);
        /// More fragments, and fragment offset: 0 in a whole packet.
        FRAGMENT "frag_off" (4:13..0);
        TIME_TO_LIVE "ttl" (8:31..24);
        PROTOCOL "protocol" (8:23..16);
        CHECKSUM "check" (8:15..0);
        SOURCE "saddr" (12:31..0);
        DESTINATION "daddr" (16:31..0);
    }
}

impl Ipv4Header {
    /// Value of [`Self::VERSION`].
    pub const IPV4: u32 = 4;
    /// Value of [`Self::HEADER_LENGTH`] without options.
    pub const NO_OPTIONS: u32 = 5;
}

crate::layout! {
    /// UDP header (RFC 768).
    UdpHeader "udphdr", 8 bytes {
        SOURCE_PORT "source" (0:31..16);
        DESTINATION_PORT "dest" (0:15..0);
        /// In bytes, this header included.
        LENGTH "len" (4:31..16);
        CHECKSUM "check" (4:15..0);
    }
}

impl UdpHeader {
    /// Protocol or next header of IP.
    pub const PROTOCOL: u32 = 17;
    /// Value of [`Self::DESTINATION_PORT`]: a base transport header follows (IBTA volume 1, annex A17).
    pub const ROCE_V2: u32 = 4791;
}
