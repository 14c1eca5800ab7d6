//! The peer's port in an InfiniBand subnet, as options.

use std::net::Ipv6Addr;

use bareverbs::{Gid, Lid};
use bareverbs_serve::parse_number;
use clap::Args;

/// The last LID of a port (IBTA volume 1, 4.1.3); those behind it are of multicast groups.
const LAST_UNICAST: u16 = 0xbfff;

/// Options of the peer's port in an InfiniBand subnet.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct PeerArgs {
    /// InfiniBand port of a client: LID of the server's port (`ibstat` there). No subnet manager is asked for it
    #[arg(long, value_name = "LID", value_parser = lid, requires_all = ["server", "peer_gid"])]
    pub peer_lid: Option<Lid>,
    /// InfiniBand port of a client: GID 0 of the server's port, the last 16 bytes of the hardware address of its ib0 (`ip link`)
    #[arg(long, value_name = "GID", value_parser = gid, requires_all = ["server", "peer_lid"])]
    pub peer_gid: Option<Gid>,
}

/// Parses the LID of a port.
fn lid(text: &str) -> Result<Lid, String> {
    let lid = parse_number(text)?;
    if (1..=LAST_UNICAST).contains(&lid) { Ok(Lid::new(lid)) } else { Err(format!("not between 1 and {LAST_UNICAST:#x}")) }
}

/// Parses the GID of a port: groups of hexadecimal digits, as tools print it, or with `::` for groups of zeros.
fn gid(text: &str) -> Result<Gid, String> {
    match text.parse::<Ipv6Addr>() {
        Ok(address) if address.is_unspecified() || address.is_multicast() => Err("not the GID of one port".into()),
        Ok(address) => Ok(Gid(address.octets())),
        Err(_) => Err("not eight groups of hexadecimal digits, as in fe80::2:c900:0:101".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lids_and_gids_are_those_of_one_port() {
        assert_eq!((lid("1"), lid("0xbfff")), (Ok(Lid::new(1)), Ok(Lid::new(0xbfff))));
        for wrong in ["0", "0xc000", "0xffff", "65536", "", "one"] {
            assert!(lid(wrong).is_err(), "{wrong}");
        }
        let expected = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 0, 0, 0, 1, 1]);
        assert_eq!(gid("fe80::2:c900:0:101"), Ok(expected));
        // As sysfs and ibv_devinfo print it.
        assert_eq!(gid("fe80:0000:0000:0000:0002:c900:0000:0101"), Ok(expected));
        for wrong in ["::", "ff12:401b:ffff::1", "fe80", "fe80:0000:0000:0000:0002:c900:0000", "192.0.2.1"] {
            assert!(gid(wrong).is_err(), "{wrong}");
        }
    }
}
