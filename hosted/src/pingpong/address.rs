//! The address of an end, in the format that the `ibv_*_pingpong` tools of rdma-core exchange over TCP.

use std::fmt;
use std::net::Ipv6Addr;

use bareverbs::{Gid, Lid, LinkLayer, Psn, Qpn, Srqn};

/// Bytes of a message: `LLLL:QQQQQQ:PPPPPP:` and 32 digits of the GID, all hexadecimal, and a NUL.
///
/// The format is that of `pp_client_exch_dest` in libibverbs/examples/rc_pingpong.c, the same in rdma-core 44.0 to 64.0.
pub const MESSAGE_LEN: usize = 52;
/// Bytes of an address message of `ibv_xsrq_pingpong` (`MSG_SIZE` in xsrq_pingpong.c).
pub const XRC_MESSAGE_LEN: usize = 66;

/// First multicast LID (IBTA 4.1.3).
const FIRST_MULTICAST_LID: u16 = 0xc000;
/// Queue pair number of multicast packets (IBTA 10.5.2).
const MULTICAST_QPN: u32 = 0xff_ffff;

/// Address of an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// LID of the port.
    pub lid: Lid,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// First PSN of its send queue.
    pub psn: Psn,
    /// GID, or zero if the end uses none.
    pub gid: Gid,
    /// What an end of XRC has besides.
    pub xrc: Option<XrcNumbers>,
}

/// Numbers of an end of XRC, whose queue pair that receives is [`Address::qpn`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcNumbers {
    /// The queue pair that sends.
    pub initiator: Qpn,
    /// The shared receive queue.
    pub srqn: Srqn,
}

/// Error of an address that the peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressError {
    /// The bytes are not an address message of the tools.
    Format {
        /// The bytes, escaped.
        message: String,
    },
    /// The LID is not a unicast LID.
    Lid(Lid),
    /// A LID for an Ethernet port.
    LidForEthernet(Lid),
    /// No GID for an Ethernet port.
    NoGid,
    /// The queue pair is a management or multicast queue pair.
    Qpn(Qpn),
    /// The GID is a multicast GID.
    MulticastGid(Gid),
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format { message } => write!(
                f,
                "the peer sent \"{message}\" instead of its address (LID, QPN, PSN, GID); is it an ibv_*_pingpong or this \
                 command?"
            ),
            Self::Lid(lid) if lid.get() == 0 => f.write_str(
                "the peer has LID 0: its port is an Ethernet port (RoCE) and the one here an InfiniBand port, or no subnet manager \
                 has configured it",
            ),
            Self::Lid(lid) => write!(f, "the peer sent LID {lid}, which is not a unicast LID"),
            Self::LidForEthernet(lid) => {
                write!(f, "the peer has LID {lid}: its port is an InfiniBand port, and the one here is an Ethernet port")
            }
            Self::NoGid => f.write_str("the peer sent no GID, and the ports are Ethernet ports: start it with -g INDEX of RoCE v2"),
            Self::Qpn(qpn) => write!(f, "the peer sent queue pair {qpn}, which cannot be connected"),
            Self::MulticastGid(gid) => write!(f, "the peer sent GID {}, a multicast GID", Ipv6Addr::from(gid.0)),
        }
    }
}

impl std::error::Error for AddressError {}

impl Address {
    /// Returns the message with this address.
    pub fn to_message(self) -> [u8; MESSAGE_LEN] {
        let gid = u128::from_be_bytes(self.gid.0);
        let text = format!("{:04x}:{:06x}:{:06x}:{gid:032x}\0", self.lid.get(), self.qpn.get(), self.psn.get());
        let mut message = [0; MESSAGE_LEN];
        // LID, QPN and PSN have 16, 24 and 24 bits, so the text has exactly this length.
        message.iter_mut().zip(text.into_bytes()).for_each(|(byte, value)| *byte = value);
        message
    }

    /// Returns the message with this address of `ibv_xsrq_pingpong`.
    pub fn to_xrc_message(self) -> [u8; XRC_MESSAGE_LEN] {
        let XrcNumbers { initiator, srqn } = self.xrc.unwrap_or_default();
        let [lid, qpn, psn, gid] =
            [self.lid.get().into(), self.qpn.get().into(), self.psn.get().into(), u128::from_be_bytes(self.gid.0)];
        let text = format!("{lid:04x}:{qpn:06x}:{:06x}:{psn:06x}:{:06x}:{gid:032x}\0", initiator.get(), srqn.get());
        let mut message = [0; XRC_MESSAGE_LEN];
        // The numbers have 16 and 24 bits, so the text has exactly this length.
        message.iter_mut().zip(text.into_bytes()).for_each(|(byte, value)| *byte = value);
        message
    }

    /// Parses the message of a peer that is `ibv_xsrq_pingpong`, as [`Self::from_message`] does.
    ///
    /// # Errors
    /// As there.
    pub fn from_xrc_message(message: &[u8; XRC_MESSAGE_LEN], link_layer: LinkLayer) -> Result<Self, AddressError> {
        let address = parse_xrc(message)
            .ok_or_else(|| AddressError::Format { message: String::from_utf8_lossy(message).escape_default().to_string() })?;
        if let Some(XrcNumbers { initiator, .. }) = address.xrc
            && is_reserved(initiator)
        {
            return Err(AddressError::Qpn(initiator));
        }
        address.checked(link_layer)
    }

    /// Parses the message of the peer, for a port of this link layer.
    ///
    /// # Errors
    /// The format is wrong, or a queue pair cannot be connected to the address.
    pub fn from_message(message: &[u8; MESSAGE_LEN], link_layer: LinkLayer) -> Result<Self, AddressError> {
        let address = parse(message)
            .ok_or_else(|| AddressError::Format { message: String::from_utf8_lossy(message).escape_default().to_string() })?;
        address.checked(link_layer)
    }

    /// Returns the address, if a queue pair of a port of this link layer can be connected to it.
    fn checked(self, link_layer: LinkLayer) -> Result<Self, AddressError> {
        match (link_layer, self.lid.get()) {
            (LinkLayer::InfiniBand, 0 | FIRST_MULTICAST_LID..) => return Err(AddressError::Lid(self.lid)),
            (LinkLayer::Ethernet, 1..) => return Err(AddressError::LidForEthernet(self.lid)),
            (LinkLayer::Ethernet, 0) if self.gid == Gid::default() => return Err(AddressError::NoGid),
            _ => {}
        }
        if is_reserved(self.qpn) {
            return Err(AddressError::Qpn(self.qpn));
        }
        if self.gid.is_ip_group() {
            return Err(AddressError::MulticastGid(self.gid));
        }
        Ok(self)
    }

    /// Returns whether packets to this address need a GRH. As in the tools, the lower half of the GID decides.
    pub const fn is_global(&self) -> bool {
        u128::from_be_bytes(self.gid.0) as u64 != 0
    }
}

/// Returns whether a queue pair is a management or multicast one.
const fn is_reserved(qpn: Qpn) -> bool {
    // 0 and 1 are the management queue pairs.
    qpn.get() < 2 || qpn.get() == MULTICAST_QPN
}

/// Returns the fields of a message, hexadecimal numbers of so many digits, which with what separates them fill it.
fn fields<const N: usize>(message: &[u8], digits: [usize; N]) -> Option<[u128; N]> {
    let text = std::str::from_utf8(message.strip_suffix(&[0])?).ok()?;
    let mut fields = text.split(':');
    let mut numbers = [0; N];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let text = fields.next().filter(|text| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        *number = u128::from_str_radix(text, 16).ok()?;
    }
    Some(numbers)
}

/// Returns an address of numbers of so many digits that they fit.
fn address([lid, qpn, psn, gid]: [u128; 4], xrc: Option<XrcNumbers>) -> Address {
    let (lid, qpn, psn) = (Lid::new(lid as u16), Qpn::new(qpn as u32), Psn::new(psn as u32));
    Address { lid, qpn, psn, gid: Gid(gid.to_be_bytes()), xrc }
}

fn parse(message: &[u8; MESSAGE_LEN]) -> Option<Address> {
    Some(address(fields(message, [4, 6, 6, 32])?, None))
}

fn parse_xrc(message: &[u8; XRC_MESSAGE_LEN]) -> Option<Address> {
    let [lid, target, initiator, psn, srqn, gid] = fields(message, [4, 6, 6, 6, 6, 32])?;
    let xrc = XrcNumbers { initiator: Qpn::new(initiator as u32), srqn: Srqn::new(srqn as u32) };
    Some(address([lid, target, psn, gid], Some(xrc)))
}

/// Prints the address as the tools do: `LID 0x0001, QPN 0x00004b, PSN 0x123456, GID ::`.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lid, qpn, psn) = (self.lid.get(), self.qpn.get(), self.psn.get());
        if let Some(XrcNumbers { initiator, srqn }) = self.xrc {
            let (initiator, srqn, gid) = (initiator.get(), srqn.get(), Ipv6Addr::from(self.gid.0));
            return write!(
                f,
                "LID {lid:#06x}, QPN RECV {qpn:#08x} SEND {initiator:#08x}, PSN {psn:#08x}, SRQN {srqn:#08x}, GID {gid}"
            );
        }
        write!(f, "LID {lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}, GID {}", Ipv6Addr::from(self.gid.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_message(message: &[u8; 52]) -> Result<Address, AddressError> {
        Address::from_message(message, LinkLayer::InfiniBand)
    }

    /// Written by hand from the `sprintf` in rc_pingpong.c and `gid_to_wire_gid` in pingpong.c (rdma-core 44.0 and 56.1).
    const PLAIN: &[u8; 52] = b"0001:00004b:abcdef:00000000000000000000000000000000\0";
    const GLOBAL: &[u8; 52] = b"bfff:fffffe:000000:fe80000000000000020000fffe000101\0";

    #[test]
    fn messages_are_byte_for_byte_those_of_the_tools() {
        let plain = Address { lid: Lid::new(1), qpn: Qpn::new(0x4b), psn: Psn::new(0xab_cdef), gid: Gid::default(), xrc: None };
        assert_eq!(&plain.to_message(), PLAIN);
        assert_eq!(from_message(PLAIN), Ok(plain));
        assert!(!plain.is_global());
        let global = from_message(GLOBAL).unwrap();
        assert_eq!((global.lid.get(), global.qpn.get(), global.psn.get()), (0xbfff, 0xff_fffe, 0));
        assert_eq!(global.gid.0, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 1, 1]);
        assert!(global.is_global());
        assert_eq!(&global.to_message(), GLOBAL);
    }

    #[test]
    fn addresses_are_printed_as_the_tools_print_them() {
        assert_eq!(from_message(PLAIN).unwrap().to_string(), "LID 0x0001, QPN 0x00004b, PSN 0xabcdef, GID ::");
        assert_eq!(
            from_message(GLOBAL).unwrap().to_string(),
            "LID 0xbfff, QPN 0xfffffe, PSN 0x000000, GID fe80::200:ff:fe00:101"
        );
    }

    #[test]
    fn bytes_that_are_not_an_address_are_refused() {
        for garbage in [
            b"0001:00004b:abcdef:00000000000000000000000000000000\n",
            b"0001:00004b:abcdef:0000000000000000000000000000000g\0",
            b"+001:00004b:abcdef:00000000000000000000000000000000\0",
            b"001:000004b:abcdef:00000000000000000000000000000000\0",
            b"0001:00004b:abcdef:0000000000000000000000000000\0\0\0\0\0",
            b"GET / HTTP/1.1\r\nHost: localhost:18515\r\nAccept: */*\r\n",
            &[0xff; 52],
            &[0; 52],
        ] {
            assert!(matches!(from_message(garbage), Err(AddressError::Format { .. })), "{garbage:?}");
        }
    }

    #[test]
    fn an_address_that_cannot_be_connected_is_refused() {
        let refusal = |message: &[u8; 52]| from_message(message).unwrap_err().to_string();
        assert!(refusal(b"0000:00004b:abcdef:00000000000000000000000000000000\0").contains("RoCE"));
        assert!(refusal(b"c001:00004b:abcdef:00000000000000000000000000000000\0").contains("LID 0xc001"));
        assert!(refusal(b"0001:000001:abcdef:00000000000000000000000000000000\0").contains("queue pair 0x1"));
        assert!(refusal(b"0001:ffffff:abcdef:00000000000000000000000000000000\0").contains("queue pair 0xffffff"));
        assert!(refusal(b"0001:00004b:abcdef:ff120000000000000000000000000001\0").contains("multicast"));
    }

    /// As `ibv_rc_pingpong -g` sends it from a RoCE port with 192.0.2.7 (`gid_to_wire_gid`: four words, the bytes in order).
    #[test]
    fn an_ethernet_port_has_a_gid_and_no_lid() {
        let ethernet = |message: &[u8; 52]| Address::from_message(message, LinkLayer::Ethernet);
        let message = b"0000:00004b:abcdef:00000000000000000000ffffc0000207\0";
        let address = ethernet(message).unwrap();
        assert_eq!((address.gid.ip().to_string().as_str(), address.is_global()), ("192.0.2.7", true));
        assert_eq!(&address.to_message(), message);
        let refusal = |message: &[u8; 52]| ethernet(message).unwrap_err().to_string();
        assert!(refusal(PLAIN).contains("LID 0x1: its port is an InfiniBand port"), "{}", refusal(PLAIN));
        assert!(refusal(b"0000:00004b:abcdef:00000000000000000000000000000000\0").contains("start it with -g INDEX"));
        assert!(refusal(b"0000:00004b:abcdef:00000000000000000000ffffe0000001\0").contains("multicast"));
        assert!(from_message(message).unwrap_err().to_string().contains("LID 0"));
    }
}
