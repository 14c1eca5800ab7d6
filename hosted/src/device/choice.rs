//! Which device a subcommand uses: the value of `--device`.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use bareverbs_vfio::pci::{Address, AddressError};

use super::vfio::Card;

/// What `--device` names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A simulated device of this process.
    #[default]
    Simulated,
    /// The PCI function of this machine at an address.
    Pci(Address),
}

impl FromStr for DeviceChoice {
    type Err = String;

    /// `simulated`, or a PCI address with or without its domain: `0000:01:00.0`, `01:00.0`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "simulated" {
            return Ok(Self::Simulated);
        }
        text.parse().map(Self::Pci).map_err(|_: AddressError| {
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
            Self::Pci(address) => address.fmt(f),
        }
    }
}

/// The host of a PCI function.
pub type PciHost = Card;

/// Opens the function at `address`.
///
/// # Errors
/// The function is not there, or this process may not or cannot use it.
pub fn open_pci(address: Address) -> Result<PciHost> {
    Card::open(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let pci = |address: &str| Ok(DeviceChoice::Pci(address.parse().unwrap()));
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
