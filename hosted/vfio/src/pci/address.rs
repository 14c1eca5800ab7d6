//! PCI addresses: domain, bus, device and function number.

use std::fmt;
use std::str::FromStr;

/// Maximum device number (5 bits).
const LAST_DEVICE: u8 = 31;

/// Maximum function number (3 bits).
const LAST_FUNCTION: u8 = 7;

/// Address of a PCI function, as `0000:01:00.0`. Bus, device and function are hexadecimal; a missing domain is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl Address {
    /// Creates an address; `None` if `device` is above 31 or `function` above 7.
    pub const fn new(domain: u32, bus: u8, device: u8, function: u8) -> Option<Self> {
        if device > LAST_DEVICE || function > LAST_FUNCTION { None } else { Some(Self { domain, bus, device, function }) }
    }

    /// Returns the domain (the segment of the PCI hierarchy).
    pub const fn domain(self) -> u32 {
        self.domain
    }

    /// Returns the bus number.
    pub const fn bus(self) -> u8 {
        self.bus
    }

    /// Returns the device number, at most 31.
    pub const fn device(self) -> u8 {
        self.device
    }

    /// Returns the function number, at most 7.
    pub const fn function(self) -> u8 {
        self.function
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function);
        f.pad(&text)
    }
}

/// Error of parsing an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError {
    text: String,
    reason: &'static str,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no PCI address: {}, as in 0000:01:00.0 or 01:00.0 (`lspci -D` lists them)", self.text, self.reason)
    }
}

impl std::error::Error for AddressError {}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).map_err(|reason| AddressError { text: text.into(), reason })
    }
}

fn parse(text: &str) -> Result<Address, &'static str> {
    const SHAPE: &str = "bus:device.function is wanted, with a domain before it if there are several";
    let (rest, function) = text.rsplit_once('.').ok_or(SHAPE)?;
    let mut parts = rest.rsplit(':');
    let (device, bus) = (parts.next().ok_or(SHAPE)?, parts.next().ok_or(SHAPE)?);
    let domain = match (parts.next(), parts.next()) {
        (None, _) => 0,
        // Domains of 32 bits are those that hypervisors and VMD bridges make.
        (Some(domain), None) => number(domain, 8).ok_or("the domain is no hexadecimal number of 1 to 8 digits")?,
        (Some(_), Some(_)) => return Err(SHAPE),
    };
    let bus = number(bus, 2).ok_or("the bus is no hexadecimal number of 1 or 2 digits")?;
    let device = number(device, 2).ok_or("the device is no hexadecimal number of 1 or 2 digits")?;
    let function = number(function, 1).ok_or("the function is no digit from 0 to 7")?;
    let (Ok(bus), Ok(device), Ok(function)) = (u8::try_from(bus), u8::try_from(device), u8::try_from(function)) else {
        return Err(SHAPE);
    };
    if device > LAST_DEVICE {
        return Err("the device is above 1f");
    }
    Address::new(domain, bus, device, function).ok_or("the function is above 7")
}

fn number(text: &str, digits: usize) -> Option<u32> {
    let plain = (1..=digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if plain { u32::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, shown) in [
            ("0000:01:00.0", "0000:01:00.0"),
            ("01:00.0", "0000:01:00.0"),
            ("c1:1f.7", "0000:c1:1f.7"),
            ("10000:E1:0A.3", "10000:e1:0a.3"),
            ("1:2.3", "0000:01:02.3"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        assert_eq!("01:02.3".parse(), Ok(Address::new(0, 1, 2, 3).unwrap()));
        let address: Address = "10000:e1:0a.3".parse().unwrap();
        assert_eq!((address.domain(), address.bus(), address.device(), address.function()), (0x10000, 0xe1, 10, 3));
        assert_eq!(format!("{:14}|", Address::new(0, 1, 0, 0).unwrap()), "0000:01:00.0  |");
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "bus:device.function"),
            ("mlx5_0", "bus:device.function"),
            ("01:00", "bus:device.function"),
            ("01.0", "bus:device.function"),
            ("0:0:0:1.0", "bus:device.function"),
            ("01:20.0", "the device is above 1f"),
            ("01:00.8", "the function is above 7"),
            ("01:00.10", "the function is no digit"),
            ("100:00.0", "the bus is no"),
            ("01:000.0", "the device is no"),
            ("+1:00.0", "the bus is no"),
            ("123456789:01:00.0", "the domain is no"),
            ("01:00.é", "the function is no"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("lspci -D"), "{text}: {error}");
        }
    }
}
