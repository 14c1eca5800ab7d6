//! The devices of a command whose two sides may both be in this process.

use bareverbs_vfio::pci::Address;

use super::choice::DeviceChoice;

/// Which devices the values of `--device` name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sides {
    /// So many simulated devices, 0 if no `--device` was given.
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

impl Sides {
    /// From the values of `--device`, in their order.
    ///
    /// # Errors
    /// More than two, or a simulated device beside one that is not.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_given_twice_is_one_device() {
        let pci = |address: &str| DeviceChoice::Pci(address.parse().unwrap());
        let (a, b) = (pci("0000:01:00.0"), pci("0000:02:00.0"));
        let one = |given| Sides::Pci { first: "0000:01:00.0".parse().unwrap(), second: None, given };
        assert_eq!(Sides::new(std::slice::from_ref(&a)), Ok(one(1)));
        assert_eq!(Sides::new(&[a.clone(), a.clone()]), Ok(one(2)));
        let two =
            Sides::Pci { first: "0000:01:00.0".parse().unwrap(), second: Some("0000:02:00.0".parse().unwrap()), given: 2 };
        assert_eq!(Sides::new(&[a.clone(), b.clone()]), Ok(two));
        assert_eq!(Sides::new(&[]), Ok(Sides::Simulated(0)));
        assert_eq!(Sides::new(&[DeviceChoice::Simulated]), Ok(Sides::Simulated(1)));
        assert!(Sides::new(&[DeviceChoice::Simulated, a.clone()]).unwrap_err().contains("no wire"));
        assert!(Sides::new(&[a.clone(), b, a]).unwrap_err().contains("3 times"));
    }
}
