//! How a port and its peer are named on their link: on Ethernet by MAC addresses, in an InfiniBand subnet by LIDs and GIDs.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context as _, Result, anyhow, bail};
use bareverbs::{AddressVector, Gid, GlobalRoute, Guid, Lid, LinkLayer, Mac, PortAttr, Source};
use bareverbs_cm::Path;

use super::args::CmArgs;
use crate::device::ethernet::EntryArgs;
use crate::device::{Device, Host};

/// Port of the device.
pub(crate) const PORT: u8 = 1;
const HOP_LIMIT: u8 = 64;
/// Membership of a P_Key: full (IBTA volume 1, 10.9.1.1).
const FULL_MEMBER: u16 = 0x8000;

/// A port of an InfiniBand subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubnetPort {
    lid: Lid,
    gid: Gid,
}

/// A port, and as far as it is known its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Ethernet {
        /// MAC address of this port.
        mac: Mac,
        /// That of the peer, or of the router to it.
        peer: Option<Mac>,
        /// Index of the address among the GIDs of the port.
        gid_index: u8,
    },
    InfiniBand {
        /// This port.
        port: SubnetPort,
        /// That of the peer.
        peer: Option<SubnetPort>,
        /// First P_Key of this port.
        partition_key: u16,
        /// Index of its GID.
        gid_index: u8,
        /// Whether packets to the peer carry a GRH.
        global: bool,
    },
}

/// Returns the error of an address without a MAC address.
pub(crate) fn no_mac(address: IpAddr) -> anyhow::Error {
    anyhow!(
        "the address {address} does not tell its MAC address, and this command asks nobody for it (ARP): give --peer-mac, of the peer or \
         of the router to it"
    )
}

impl Link {
    /// Gives a port its address, and returns that and what the port is.
    ///
    /// # Errors
    /// An option is missing, or is of the other link layer; or the address cannot be set.
    pub(crate) fn open<H: Host>(
        device: &mut Device<H>,
        port: &PortAttr,
        args: &CmArgs,
        entry: EntryArgs,
    ) -> Result<(Self, IpAddr)> {
        let peer = args.peer.peer_lid.zip(args.peer.peer_gid).map(|(lid, gid)| SubnetPort { lid, gid });
        let gid_index = args.path.gid_idx.unwrap_or(0);
        if port.link_layer == LinkLayer::Ethernet {
            if peer.is_some() {
                bail!(
                    "port {PORT} is an Ethernet port, which knows its peer by --peer-mac: leave --peer-lid and --peer-gid out"
                );
            }
            let gid = device.local_gid(PORT, port, Some(gid_index), entry)?;
            return Ok((Self::Ethernet { mac: port.mac, peer: args.path.peer_mac, gid_index }, gid.ip()));
        }
        if entry.vlan.is_some() || args.path.peer_mac.is_some() {
            bail!("port {PORT} is an InfiniBand port, without VLANs and MAC addresses: leave --vlan and --peer-mac out");
        }
        let local = entry.address.with_context(|| {
            format!(
                "port {PORT} is an InfiniBand port, which has no IP address of its own: give --address IP, of the subnet that the peer \
                 has on its ib0"
            )
        })?;
        // Without an index it is an error if the port wants a GRH on every path.
        let global = args.path.gid_idx;
        device.local_gid(PORT, port, global, EntryArgs::default())?;
        let gid = device.verbs.query_gid(PORT, gid_index.into()).context("query_gid")?;
        let partition_key = device.verbs.query_pkey(PORT, 0).context("query_pkey")?;
        let port = SubnetPort { lid: port.lid, gid };
        Ok((Self::InfiniBand { port, peer, partition_key, gid_index, global: global.is_some() }, local))
    }

    /// Takes what the other end of the link is, which is in this process too.
    pub(crate) const fn meet(&mut self, other: &Self) {
        match (self, other) {
            (Self::Ethernet { peer, .. }, Self::Ethernet { mac, .. }) => *peer = Some(*mac),
            (Self::InfiniBand { peer, .. }, Self::InfiniBand { port, .. }) => *peer = Some(*port),
            (Self::Ethernet { .. }, Self::InfiniBand { .. }) | (Self::InfiniBand { .. }, Self::Ethernet { .. }) => {}
        }
    }

    /// Returns what communication management calls the adapter.
    pub(crate) fn guid<H: Host>(&self, device: &Device<H>) -> Guid {
        match self {
            Self::Ethernet { mac: Mac([a, b, c, d, e, f]), .. } => {
                Guid(u64::from_be_bytes([*a, *b, *c, 0xff, 0xfe, *d, *e, *f]))
            }
            Self::InfiniBand { .. } => device.verbs.query_device().node_guid,
        }
    }

    /// Returns the MAC address of a peer, if the link has any and it is known.
    pub(crate) fn mac_of(&self, gid: Gid) -> Option<Mac> {
        match self {
            Self::Ethernet { peer, .. } => peer.or_else(|| gid.link_local_mac()),
            Self::InfiniBand { .. } => None,
        }
    }

    /// Returns the path from an address of this end to a server.
    ///
    /// # Errors
    /// Nobody has said where on the link the server is.
    pub(crate) fn path_to(&self, local: IpAddr, server: IpAddr) -> Result<Path> {
        match *self {
            Self::Ethernet { .. } => {
                let remote_gid = Gid::from(server);
                self.mac_of(remote_gid).ok_or_else(|| no_mac(server))?;
                let local_gid = Gid::from(local);
                let (local_lid, remote_lid) = (Lid::NONE, Lid::NONE);
                Ok(Path { local_lid, remote_lid, local_gid, remote_gid, hop_limit: HOP_LIMIT, global: true, ..Path::default() })
            }
            Self::InfiniBand { port, peer, partition_key, global, .. } => {
                let peer = peer.with_context(|| {
                    format!(
                        "{server} is in an InfiniBand subnet, and this command asks nobody for its port (ARP, path records): give \
                         --peer-lid and --peer-gid of it"
                    )
                })?;
                Ok(Path {
                    local_lid: port.lid,
                    remote_lid: peer.lid,
                    local_gid: port.gid,
                    remote_gid: peer.gid,
                    hop_limit: if global { HOP_LIMIT } else { 0 },
                    global,
                    // As a path record has it: the membership is each end's own.
                    partition_key: partition_key | FULL_MEMBER,
                    ..Path::default()
                })
            }
        }
    }

    /// Returns the address vector of an answer to who sent a datagram: by its completion, and by what precedes it in its receive.
    ///
    /// # Errors
    /// Nobody has said the sender's MAC address.
    pub(crate) fn answer(&self, source: &Source, area: &[u8; GlobalRoute::AREA]) -> Result<AddressVector> {
        match *self {
            Self::Ethernet { gid_index, .. } => {
                let route = GlobalRoute::reply(area, gid_index);
                let dmac = self.mac_of(route.dgid).ok_or_else(|| no_mac(route.dgid.ip()))?;
                let grh = GlobalRoute { hop_limit: HOP_LIMIT, ..route };
                Ok(AddressVector { port_num: PORT, grh: Some(grh), dmac: Some(dmac), ..AddressVector::default() })
            }
            Self::InfiniBand { gid_index, .. } => {
                let grh = source.grh.then(|| GlobalRoute::reply(area, gid_index));
                Ok(AddressVector { grh, ..source.reply(PORT) })
            }
        }
    }

    /// Returns the error of a peer that does not answer this end.
    pub(crate) fn unanswered(&self, local: IpAddr) -> anyhow::Error {
        match self {
            Self::Ethernet { mac, .. } => {
                anyhow!("the peer does not answer: it has ended, or has no entry for {local} with {mac} (ip neigh add)")
            }
            Self::InfiniBand { peer: Some(SubnetPort { lid, gid }), .. } => anyhow!(
                "the peer does not answer: it has ended, is not at LID {} with GID {}, or reaches {local} through another interface",
                lid.get(),
                Ipv6Addr::from(gid.0)
            ),
            Self::InfiniBand { peer: None, .. } => anyhow!("the peer does not answer: it has ended"),
        }
    }
}

/// What the peer must know of this port. The hardware address is that of IP over InfiniBand (RFC 4391, 9.1.1), without a queue pair, since
/// there is none for IP here: `rdma_cm` of Linux takes the GID alone from it.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ethernet { mac, .. } => write!(f, "MAC address {mac}"),
            Self::InfiniBand { port: SubnetPort { lid, gid }, .. } => {
                write!(f, "LID {}, GID {}, hardware address 00:00:00:00", lid.get(), Ipv6Addr::from(gid.0))?;
                gid.0.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bareverbs_sim::DeviceConfig;
    use bareverbs_sim::in_process::{World, WorldConfig};

    use super::*;
    use crate::device::simulated::Simulated;
    use crate::rdma_cm::program::Program as _;
    use crate::rdma_cm::two_ends::args;
    use crate::rping::args::RpingArgs;

    fn gid(text: &str) -> Gid {
        Gid(text.parse::<Ipv6Addr>().unwrap().octets())
    }

    #[test]
    fn a_port_says_what_a_peer_needs() {
        let port = SubnetPort { lid: Lid::new(2), gid: gid("fe80::2:c900:0:101") };
        let link = Link::InfiniBand { port, peer: None, partition_key: 0xffff, gid_index: 0, global: false };
        let expected = "LID 2, GID fe80::2:c900:0:101, hardware address \
                        00:00:00:00:fe:80:00:00:00:00:00:00:00:02:c9:00:00:00:01:01";
        assert_eq!(link.to_string(), expected);
    }

    #[test]
    fn an_option_that_a_port_does_not_have_or_needs_is_said() {
        let open = |config: DeviceConfig, more: &[&str]| {
            let host = World::new(WorldConfig::default()).add(config).unwrap();
            let mut device = Device::bring_up(Simulated::new("a", host), &Arc::default()).unwrap();
            let port = device.verbs.query_port(PORT).unwrap();
            let program = args::<RpingArgs>(more);
            let opened = Link::open(&mut device, &port, program.cm(), program.cm().path.of_end(0));
            opened.map(|(link, local)| link.path_to(local, [192, 0, 2, 2].into()).map_err(|error| error.to_string()))
        };
        let subnet = || DeviceConfig::with_lid(1);
        let peer = ["--peer-lid", "2", "--peer-gid", "fe80::1", "192.0.2.2"];
        let address = ["--address", "192.0.2.1"];
        for (config, more, why) in [
            (subnet(), &[][..], "give --address IP"),
            (subnet(), &["--address", "192.0.2.1", "--vlan", "5"], "leave --vlan and --peer-mac out"),
            (subnet(), &["--address", "192.0.2.1", "--peer-mac", "02:00:5e:00:53:01"], "leave --vlan and --peer-mac out"),
            (subnet(), &["--address", "192.0.2.1", "-g", "255"], "there is no GID 255"),
            (DeviceConfig::with_lid(1).with_ethernet(), &peer, "leave --peer-lid and --peer-gid out"),
        ] {
            let error = open(config, more).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let error = open(subnet(), &address).unwrap().unwrap_err();
        assert!(
            error.starts_with("192.0.2.2 is in an InfiniBand subnet") && error.contains("--peer-lid and --peer-gid"),
            "{error}"
        );
        let path = open(subnet(), &[&address[..], &peer].concat()).unwrap().unwrap();
        assert_eq!((path.remote_lid, path.remote_gid, path.global), (Lid::new(2), gid("fe80::1"), false));
    }
}
