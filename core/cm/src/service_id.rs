//! Service IDs.

/// Service ID: what a passive side listens on (IBTA volume 1, 12.7 and annex A3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ServiceId(pub u64);

/// What a port of an IP connection stands for, as an IP protocol number (IBTA volume 1, annex A11; `RDMA_PS_*` of `rdma_cm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum PortSpace {
    /// `RDMA_PS_TCP`: connections. `rping` and `ucmatose` are here.
    Tcp = 0x06,
    /// `RDMA_PS_UDP`: datagrams. `udaddy` is here.
    Udp = 0x11,
    /// `RDMA_PS_IB`: any service of InfiniBand, under a port number.
    Ib = 0x3f,
}

impl PortSpace {
    /// The upper bits of a service ID of an IP port: `0x0000_0000_01pp_0000`, where `pp` is the port space.
    const PREFIX: u64 = 0x0100_0000;

    /// Returns the service ID of a port.
    pub const fn service_id(self, port: u16) -> ServiceId {
        ServiceId(Self::PREFIX | (self as u64) << 16 | port as u64)
    }
}

impl ServiceId {
    /// Returns port space and port that this service ID stands for, if it does.
    pub const fn ip_port(self) -> Option<(PortSpace, u16)> {
        let port = self.0 as u16;
        match self.0 & !0xffff {
            0x0106_0000 => Some((PortSpace::Tcp, port)),
            0x0111_0000 => Some((PortSpace::Udp, port)),
            0x013f_0000 => Some((PortSpace::Ib, port)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PortSpace, ServiceId};

    #[test]
    fn a_service_id_of_a_port_is_what_rdma_core_publishes() {
        // librdmacm/rdma_cma.h: RDMA_IB_IP_PS_TCP, RDMA_IB_IP_PS_UDP, RDMA_IB_IP_PS_IB.
        assert_eq!(PortSpace::Tcp.service_id(7174), ServiceId(0x0000_0000_0106_1c06));
        assert_eq!(PortSpace::Udp.service_id(0), ServiceId(0x0000_0000_0111_0000));
        assert_eq!(PortSpace::Ib.service_id(0xffff), ServiceId(0x0000_0000_013f_ffff));
    }

    #[test]
    fn a_port_comes_back_and_other_services_are_none() {
        for space in [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib] {
            assert_eq!(space.service_id(20_000).ip_port(), Some((space, 20_000)));
        }
        assert_eq!(ServiceId(0x0107_0001).ip_port(), None);
        assert_eq!(ServiceId(0x1_0106_0001).ip_port(), None);
    }
}
