//! Options of the queues for frames.

use bareverbs_mlx5_spec::InlineMode;

/// Which frames come in. The port takes those of RDMA out before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FrameFilter {
    /// Frames to the port's own address, and broadcasts. No IPv6: its neighbor discovery needs groups.
    Own,
    /// Frames to the port's own address, to all groups, and broadcasts. A virtual function gets them if its physical function trusts it; otherwise the card ignores this.
    #[default]
    Groups,
    /// Every frame that reaches the port. A virtual function gets them if its physical function trusts it, as with [`Self::Groups`].
    Everything,
}

/// Returns the bytes of a frame that lie in its WQE at most: what fills the blocks of a WQE that must have the headers. An Ethernet
/// header with a tag has 18 bytes, an IPv4 header with options 60, as has one of TCP.
pub(crate) const fn inline_bytes(headers: InlineMode) -> usize {
    match headers {
        InlineMode::None => 0,
        InlineMode::L2 => 18,
        InlineMode::Ip => 18 + 60 + 4,
        InlineMode::TcpUdp => 18 + 60 + 60 + 8,
    }
}

/// Checksums that the device computes of a frame that it sends; what the frame has in their place is ignored. It leaves frames alone that have
/// none, and TCP and UDP in fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Checksums {
    /// Whether the checksum of the IPv4 header is computed.
    pub header: bool,
    /// Whether the checksum of TCP or UDP is computed.
    pub transport: bool,
}

impl Checksums {
    /// The frame is sent as it is.
    pub const NONE: Self = Self { header: false, transport: false };
    /// The device computes all.
    pub const ALL: Self = Self { header: true, transport: true };
}

/// Options of the queues for frames. Each frame of a queue takes a buffer of the MTU and 18 bytes, rounded up to 64, in the arena of the
/// driver; the rings take eight pages more if there are not more than 32 of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EthernetConfig {
    /// Frames that wait to be sent at most, from 1 to 4096, rounded up to a power of two.
    pub send_frames: u16,
    /// Frames that were received and not taken at most, from 1 to 4096, rounded up to a power of two and to four. More are lost.
    pub receive_frames: u16,
    /// Which frames come in.
    pub filter: FrameFilter,
    /// Headers in WQEs even if the card does not ask for them. Some cards and virtual functions ask for more, to switch frames before they
    /// read them.
    pub inline_headers: InlineMode,
}

impl EthernetConfig {
    /// 16 frames to send and 32 received, 18 and 8 pages of 4096 bytes with the usual MTU of 1500.
    pub const DEFAULT: Self =
        Self { send_frames: 16, receive_frames: 32, filter: FrameFilter::Groups, inline_headers: InlineMode::None };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers begin with two bytes beside their number, and then fill units of 16: that of Ethernet with a tag, of IPv4 with 40 bytes of options,
    /// of TCP with as many.
    #[test]
    fn headers_of_every_length_fill_their_units() {
        for (headers, longest) in [
            (InlineMode::None, 0),
            (InlineMode::L2, 14 + 4),
            (InlineMode::Ip, 14 + 4 + 60),
            (InlineMode::TcpUdp, 14 + 4 + 60 + 60),
        ] {
            let mut filled: usize = if longest == 0 { 0 } else { 2 };
            while filled < longest {
                filled += 16;
            }
            assert_eq!(inline_bytes(headers), filled, "{headers:?}");
        }
    }
}
