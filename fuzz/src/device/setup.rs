//! What the subnet is like in which an input is played.

use arbitrary::{Arbitrary, Unstructured};
use bareverbs_sim::wire::{Probability, WireFaults};

/// Who configures the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    /// No subnet manager: each port comes up active, in the default partition.
    None,
    /// A subnet manager whose M_Key is 0: any packet of subnet management may change a port.
    OpenKey,
    /// A subnet manager with an M_Key, without which nothing is read or written.
    ProtectedKey,
}

/// Device, subnet and wire of an input: its first byte.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The attacked device asks for firmware pages, and its guest begins at power-on; otherwise it has objects ready.
    pub pages: bool,
    pub management: Management,
    /// What the wire does to frames.
    pub faults: WireFaults,
}

/// Frames in a thousand that each misfortune of a bad wire meets. A message of the well-behaved guests fails when eight tries
/// in a row lose one of its frames: at this rate about once in 10^12.
const FAULTS_PER_MILLE: u16 = 5;

impl Setup {
    /// Returns the setup of a byte: bit 0 firmware pages, bits 1 and 2 the subnet, bit 3 the wire.
    pub fn from_byte(byte: u8) -> Self {
        let pages = byte & 1 != 0;
        let management = match byte >> 1 & 3 {
            0 => Management::None,
            // A driver that has not started has time to become the manager, which is allowed where the M_Key is 0.
            1 if !pages => Management::OpenKey,
            _ => Management::ProtectedKey,
        };
        let each = Probability::per_mille(FAULTS_PER_MILLE);
        let bad = WireFaults { loss: each, duplication: each, reordering: each, ..WireFaults::NONE };
        Self { pages, management, faults: if byte & 8 != 0 { bad } else { WireFaults::NONE } }
    }

    /// Returns the same device on a subnet without a manager and a wire without faults.
    pub fn plain(pages: bool) -> Self {
        Self::from_byte(pages.into())
    }
}

impl<'a> Arbitrary<'a> for Setup {
    fn arbitrary(input: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self::from_byte(u8::arbitrary(input)?))
    }

    fn size_hint(depth: usize) -> (usize, Option<usize>) {
        u8::size_hint(depth)
    }
}
