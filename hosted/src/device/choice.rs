//! Which device a subcommand uses: the value of `--device`.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;

use super::vfio::Card;

/// What `--device` names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A simulated device of this process.
    #[default]
    Simulated,
    /// The function of this machine's PCI at an address, `DDDD:BB:DD.F` in lower case.
    Pci(String),
}

impl FromStr for DeviceChoice {
    type Err = String;

    /// `simulated`, or a PCI address with or without its domain: `0000:01:00.0`, `01:00.0`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "simulated" {
            return Ok(Self::Simulated);
        }
        address(text).map(Self::Pci).ok_or_else(|| {
            format!(
                "`{text}` is neither `simulated` nor a PCI address such as 0000:01:00.0 or 01:00.0 (hexadecimal; see lspci -D)"
            )
        })
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulated => f.write_str("simulated"),
            Self::Pci(address) => f.write_str(address),
        }
    }
}

/// A PCI address as sysfs writes it.
fn address(text: &str) -> Option<String> {
    let (place, function) = text.rsplit_once('.')?;
    let (rest, device) = place.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
    let number = |text: &str, most: u32| {
        let is_hex = !text.is_empty() && text.len() <= 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(text, 16).ok().filter(|value| is_hex && *value <= most)
    };
    let (domain, bus) = (number(domain, u32::MAX)?, number(bus, 0xff)?);
    let (device, function) = (number(device, 0x1f)?, number(function, 7)?);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// The host of a PCI function.
pub type PciHost = Card;

/// Opens the function at `address` (`DDDD:BB:DD.F`).
///
/// # Errors
/// The function is not there, or this process may not or cannot use it.
pub fn open_pci(address: &str) -> Result<PciHost> {
    Card::open(address.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let pci = |address: &str| Ok(DeviceChoice::Pci(address.into()));
        assert_eq!("simulated".parse(), Ok(DeviceChoice::Simulated));
        assert_eq!("0000:01:00.0".parse(), pci("0000:01:00.0"));
        assert_eq!("01:00.1".parse(), pci("0000:01:00.1"));
        assert_eq!("10000:AF:1F.7".parse(), pci("10000:af:1f.7"));
        assert_eq!("1:2.0".parse(), pci("0000:01:02.0"));
    }

    #[test]
    fn what_names_no_device_is_refused() {
        for text in
            ["", "mlx5_0", "01:00", "01:00.8", "01:20.0", "100:00.0", "0:0:0:0.0", "+1:00.0", ":00.0", "01:00.", "0x1:00.0"]
        {
            let error = text.parse::<DeviceChoice>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("01:00.0"), "{error}");
        }
    }
}
