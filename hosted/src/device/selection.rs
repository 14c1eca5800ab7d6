//! The devices of a subcommand: the values of `--device`, and the devices of a client and a server in one process.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use bareverbs_vfio::pci::{Address, AddressError};

use super::bring_up::Device;
use super::host::Host;

/// A value of `--device`.
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

    /// Parses `simulated`, or a PCI address with or without its domain: `0000:01:00.0`, `01:00.0`.
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

/// The devices that the values of `--device` select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelection {
    /// This number of simulated devices; 0 without `--device`.
    Simulated(usize),
    /// PCI functions: one of side A, and one of side B if that is another.
    Pci {
        /// Address of the first.
        first: Address,
        /// Address of the second, if there is one.
        second: Option<Address>,
        /// How often `--device` was given.
        given: usize,
    },
}

impl DeviceSelection {
    /// Creates a selection from the values of `--device`, in order.
    ///
    /// # Errors
    /// There are more than two, or a simulated device and a card.
    pub fn new(choices: &[DeviceChoice]) -> Result<Self, String> {
        let given = choices.len();
        match choices {
            [] => Ok(Self::Simulated(0)),
            [DeviceChoice::Simulated] | [DeviceChoice::Simulated, DeviceChoice::Simulated] => Ok(Self::Simulated(given)),
            [DeviceChoice::Pci(first)] => Ok(Self::Pci { first: *first, second: None, given }),
            [DeviceChoice::Pci(first), DeviceChoice::Pci(second)] => {
                let second = (first != second).then_some(*second);
                Ok(Self::Pci { first: *first, second, given })
            }
            [_, _] => Err("--device: a simulated device has no wire to a card; give two of one kind".into()),
            _ => Err(format!("--device was given {given} times: there are two sides, and each has at most one device")),
        }
    }
}

/// One of two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Connects and sends the first request.
    Client,
    /// Waits for the client, and carries the window of the self-test.
    Server,
}

impl Role {
    /// Returns the role of the peer.
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// The devices of two sides: one each, or one for both.
pub struct DevicePair<H: Host> {
    first: Device<H>,
    second: Option<Device<H>>,
}

impl<H: Host> DevicePair<H> {
    /// Creates a pair: side A on `first`, and side B on `second`, or on `first` too without a second.
    pub const fn new(first: Device<H>, second: Option<Device<H>>) -> Self {
        Self { first, second }
    }

    /// Returns the device of a side.
    pub const fn of(&mut self, side: Role) -> &mut Device<H> {
        match (side, &mut self.second) {
            (Role::Server, Some(second)) => second,
            _ => &mut self.first,
        }
    }

    /// Returns the name of a side for messages: its device, and the side if the device has both.
    pub fn name(&self, side: Role) -> String {
        match (side, &self.second) {
            (Role::Server, Some(second)) => second.host.name().into(),
            (Role::Client, Some(_)) => self.first.host.name().into(),
            (Role::Client, None) => format!("side a of {}", self.first.host.name()),
            (Role::Server, None) => format!("side b of {}", self.first.host.name()),
        }
    }

    /// Returns each device once.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Device<H>> {
        std::iter::once(&mut self.first).chain(&mut self.second)
    }

    /// Calls [`Device::check`] on each device, then pauses as between two polls of a completion queue.
    ///
    /// # Errors
    /// A device has failed or is removed.
    pub fn idle(&mut self) -> Result<()> {
        self.iter_mut().try_for_each(Device::check)?;
        self.first.host.relax();
        Ok(())
    }

    /// Returns each device once, in order.
    pub fn into_devices(self) -> impl Iterator<Item = Device<H>> {
        std::iter::once(self.first).chain(self.second)
    }
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
    fn an_invalid_device_is_refused() {
        for text in
            ["", "mlx5_0", "01:00", "01:00.8", "01:20.0", "100:00.0", "0:0:0:0.0", "+1:00.0", ":00.0", "01:00.", "0x1:00.0"]
        {
            let error = text.parse::<DeviceChoice>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("01:00.0"), "{error}");
        }
    }

    #[test]
    fn one_device_given_twice_is_one_device() {
        let pci = |address: &str| DeviceChoice::Pci(address.parse().unwrap());
        let (a, b) = (pci("0000:01:00.0"), pci("0000:02:00.0"));
        let one = |given| DeviceSelection::Pci { first: "0000:01:00.0".parse().unwrap(), second: None, given };
        assert_eq!(DeviceSelection::new(std::slice::from_ref(&a)), Ok(one(1)));
        assert_eq!(DeviceSelection::new(&[a.clone(), a.clone()]), Ok(one(2)));
        let two = DeviceSelection::Pci {
            first: "0000:01:00.0".parse().unwrap(),
            second: Some("0000:02:00.0".parse().unwrap()),
            given: 2,
        };
        assert_eq!(DeviceSelection::new(&[a.clone(), b.clone()]), Ok(two));
        assert_eq!(DeviceSelection::new(&[]), Ok(DeviceSelection::Simulated(0)));
        assert_eq!(DeviceSelection::new(&[DeviceChoice::Simulated]), Ok(DeviceSelection::Simulated(1)));
        assert!(DeviceSelection::new(&[DeviceChoice::Simulated, a.clone()]).unwrap_err().contains("no wire"));
        assert!(DeviceSelection::new(&[a.clone(), b, a]).unwrap_err().contains("3 times"));
    }
}
