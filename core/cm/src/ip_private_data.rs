//! IP addresses in the private data of a request.

use core::net::{Ipv4Addr, Ipv6Addr};

use bareverbs_ib_spec::{IpCmPrivateData, Layout, View, ViewMut};

/// Source and destination of a connection by IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpAddresses {
    /// IP version 4.
    V4 {
        /// Address of the active side.
        source: Ipv4Addr,
        /// Address of the passive side.
        destination: Ipv4Addr,
    },
    /// IP version 6.
    V6 {
        /// Address of the active side.
        source: Ipv6Addr,
        /// Address of the passive side.
        destination: Ipv6Addr,
    },
}

#[cfg(feature = "defmt")]
impl defmt::Format for IpAddresses {
    fn format(&self, f: defmt::Formatter<'_>) {
        match self {
            Self::V4 { source, destination } => defmt::write!(f, "{} to {}", source.octets(), destination.octets()),
            Self::V6 { source, destination } => defmt::write!(f, "{} to {}", source.segments(), destination.segments()),
        }
    }
}

/// First 36 bytes of the private data of a REQ or SIDR_REQ with the service ID of a [`PortSpace`](crate::PortSpace) (IBTA volume 1,
/// annex A11). The private data of the program follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IpPrivateData {
    /// Port of the active side. That of the passive side is in the service ID.
    pub source_port: u16,
    /// Addresses.
    pub addresses: IpAddresses,
}

impl IpPrivateData {
    /// Length in bytes.
    pub const BYTES: usize = IpCmPrivateData::SIZE;

    /// Returns the bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (version, source, destination) = match self.addresses {
            IpAddresses::V4 { source, destination } => (4, padded(source), padded(destination)),
            IpAddresses::V6 { source, destination } => (6, source.octets(), destination.octets()),
        };
        ViewMut::<IpCmPrivateData>::of(&mut bytes)
            .set(IpCmPrivateData::IP_VERSION, version)
            .set(IpCmPrivateData::SOURCE_PORT, self.source_port.into())
            .set_bytes(IpCmPrivateData::SOURCE_ADDRESS, &source)
            .set_bytes(IpCmPrivateData::DESTINATION_ADDRESS, &destination);
        bytes
    }

    /// Reads the beginning of private data, and returns what follows it. `None` if it is too short or of another version.
    pub fn decode(private_data: &[u8]) -> Option<(Self, &[u8])> {
        let view = View::<IpCmPrivateData>::new(private_data)?;
        if view.is_set(IpCmPrivateData::MAJOR_VERSION) {
            return None;
        }
        let source: [u8; 16] = view.bytes(IpCmPrivateData::SOURCE_ADDRESS).try_into().ok()?;
        let destination: [u8; 16] = view.bytes(IpCmPrivateData::DESTINATION_ADDRESS).try_into().ok()?;
        let addresses = match view.get(IpCmPrivateData::IP_VERSION) {
            4 => IpAddresses::V4 { source: last_four(&source), destination: last_four(&destination) },
            6 => IpAddresses::V6 { source: source.into(), destination: destination.into() },
            _ => return None,
        };
        let source_port = view.get(IpCmPrivateData::SOURCE_PORT) as u16;
        Some((Self { source_port, addresses }, private_data.get(Self::BYTES..).unwrap_or_default()))
    }
}

/// Returns an address of version 4 in the last four of sixteen bytes.
fn padded(address: Ipv4Addr) -> [u8; 16] {
    u128::from(address.to_bits()).to_be_bytes()
}

fn last_four(bytes: &[u8; 16]) -> Ipv4Addr {
    Ipv4Addr::from_bits(u128::from_be_bytes(*bytes) as u32)
}
