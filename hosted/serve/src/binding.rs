//! The addresses that a port of the Ethernet is bound to, as text.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use bareverbs_sim::fabric::StationAddress;

/// A port of the Ethernet, and the addresses from which it alone may send frames ([`Fabric::bind`]).
///
/// Text: the name of the port, `lid1` of a device and `join1` of a joined wire, then `=` and its addresses. A device's port is bound to
/// its permanent MAC address in any case, a joined wire needs one.
///
/// [`Fabric::bind`]: bareverbs_sim::fabric::Fabric::bind
///
/// ```
/// use bareverbs_serve::PortBinding;
///
/// let binding: PortBinding = "join1=52:54:00:00:00:02,192.0.2.2,2001:db8::2".parse()?;
/// assert_eq!((binding.port.as_str(), binding.macs.len(), binding.ips.len()), ("join1", 1, 2));
/// let binding: PortBinding = "lid1".parse()?;
/// assert_eq!((binding.macs.len(), binding.ips.len()), (0, 0));
/// # Ok::<(), bareverbs_serve::BindingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortBinding {
    /// Name of the port.
    pub port: String,
    /// MAC addresses, besides the permanent one of a device.
    pub macs: Vec<[u8; 6]>,
    /// IP addresses. Without any, the port may use those that no other port is bound to.
    pub ips: Vec<IpAddr>,
}

/// Why a port cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BindingError {
    /// The text does not begin with a name.
    Name,
    /// This is neither a MAC address of one station nor an IP address.
    Address(String),
    /// The server has no such Ethernet port.
    NoSuchPort,
    /// The port has a binding already.
    Twice,
    /// Nothing says which MAC address a joined wire has.
    NoMac,
    /// Another port is bound to the address.
    Taken(StationAddress),
}

impl fmt::Display for BindingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => write!(f, "as in: lid1=192.0.2.1 or join1=52:54:00:00:00:02,192.0.2.2"),
            Self::Address(text) => write!(f, "'{text}' is neither the MAC address of a station nor an IP address"),
            Self::NoSuchPort => write!(f, "there is no such Ethernet port"),
            Self::Twice => write!(f, "it was bound before"),
            Self::NoMac => write!(f, "a joined wire is bound to a MAC address: join1=52:54:00:00:00:02,…"),
            Self::Taken(address) => write!(f, "another port is bound to the {address}"),
        }
    }
}

impl std::error::Error for BindingError {}

/// Returns the MAC address of a station.
fn mac(text: &str) -> Option<[u8; 6]> {
    let mut parts = text.split(':');
    let mut mac = [0; 6];
    for place in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        *place = u8::from_str_radix(part, 16).ok()?;
    }
    let is_station = mac[0] & 1 == 0 && mac != [0; 6];
    (parts.next().is_none() && is_station).then_some(mac)
}

impl FromStr for PortBinding {
    type Err = BindingError;

    fn from_str(text: &str) -> Result<Self, BindingError> {
        let (port, addresses) = text.split_once('=').map_or((text, None), |(port, rest)| (port, Some(rest)));
        if port.is_empty() {
            return Err(BindingError::Name);
        }
        let mut binding = Self { port: port.into(), macs: Vec::new(), ips: Vec::new() };
        for text in addresses.into_iter().flat_map(|addresses| addresses.split(',')) {
            match (text.parse(), mac(text)) {
                (Ok(ip), _) => binding.ips.push(ip),
                (Err(_), Some(mac)) => binding.macs.push(mac),
                (Err(_), None) => return Err(BindingError::Address(text.into())),
            }
        }
        Ok(binding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_binding_is_refused_with_the_reason() {
        let address = |text: &str| BindingError::Address(text.into());
        for (text, error) in [
            ("", BindingError::Name),
            ("=192.0.2.1", BindingError::Name),
            ("lid1=", address("")),
            ("lid1=192.0.2.1,", address("")),
            ("lid1=192.0.2.256", address("192.0.2.256")),
            ("lid1=52:54:00:00:00", address("52:54:00:00:00")),
            ("lid1=52:54:00:00:00:02:03", address("52:54:00:00:00:02:03")),
            ("lid1=52:54:00:00:00:+2", address("52:54:00:00:00:+2")),
            // A group, and nobody.
            ("lid1=53:54:00:00:00:02", address("53:54:00:00:00:02")),
            ("lid1=00:00:00:00:00:00", address("00:00:00:00:00:00")),
        ] {
            assert_eq!(text.parse::<PortBinding>(), Err(error), "{text}");
        }
    }
}
