//! The list of capabilities in a function's configuration space (PCI Local Bus Specification 3.0, 6.7 and 6.8.2).

/// Offset of the status register; bit 4 is set if there is a list.
const STATUS: usize = 0x06;
const STATUS_LIST: u8 = 1 << 4;

/// Offset of the pointer to the first capability.
const POINTER: usize = 0x34;

/// Identifier of the MSI-X capability.
const MSIX: u8 = 0x11;

/// Bits of MSI-X message control with the number of vectors minus one.
const VECTORS: u16 = 0x7ff;

/// Maximum number of entries of a list within 256 bytes.
const MOST: usize = 48;

/// Whether a function has MSI-X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Msix {
    /// It has, with this number of vectors (1 to 2048).
    Vectors(u16),
    /// It has not.
    Absent,
    /// The capabilities cannot be read: Linux shows users other than root only the first 64 bytes.
    Unknown,
}

/// Parses the MSI-X capability from the first bytes of a configuration space.
pub(crate) fn msix(config: &[u8]) -> Msix {
    let Some(status) = config.get(STATUS) else { return Msix::Unknown };
    if status & STATUS_LIST == 0 {
        return Msix::Absent;
    }
    let Some(first) = config.get(POINTER) else { return Msix::Unknown };
    let mut at = usize::from(first & !3);
    for _ in 0..MOST {
        if at == 0 {
            return Msix::Absent;
        }
        let Some(&[identifier, next, low, high]) = config.get(at..at + 4) else { return Msix::Unknown };
        if identifier == MSIX {
            return Msix::Vectors((u16::from_le_bytes([low, high]) & VECTORS) + 1);
        }
        at = usize::from(next & !3);
    }
    // A list without an end is invalid.
    Msix::Absent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(list: &[(usize, [u8; 4])]) -> Vec<u8> {
        let mut config = vec![0; 256];
        config[STATUS] = STATUS_LIST;
        config[POINTER] = 0x60;
        for (at, bytes) in list {
            config[*at..at + 4].copy_from_slice(bytes);
        }
        config
    }

    #[test]
    fn msix_is_found_behind_other_capabilities() {
        let both = config(&[(0x60, [0x10, 0x9c, 2, 0]), (0x9c, [MSIX, 0, 0x3f, 0x80])]);
        assert_eq!(msix(&both), Msix::Vectors(64));
        assert_eq!(msix(&config(&[(0x60, [0x10, 0, 2, 0])])), Msix::Absent);
        assert_eq!(msix(&vec![0; 256]), Msix::Absent);
    }

    #[test]
    fn a_capability_that_cannot_be_read_is_unknown() {
        let both = config(&[(0x60, [0x10, 0x9c, 2, 0]), (0x9c, [MSIX, 0, 0x3f, 0x80])]);
        assert_eq!(msix(&both[..64]), Msix::Unknown);
        assert_eq!(msix(&both[..0x9e]), Msix::Unknown);
        assert_eq!(msix(&[]), Msix::Unknown);
    }

    /// Without the bit of the status register the pointer means nothing.
    #[test]
    fn a_function_without_a_list_has_no_capability() {
        let mut bytes = config(&[(0x60, [MSIX, 0, 0x3f, 0x80])]);
        assert_eq!(msix(&bytes), Msix::Vectors(64));
        bytes[STATUS] = !STATUS_LIST;
        assert_eq!(msix(&bytes), Msix::Absent);
    }

    #[test]
    fn a_cyclic_capability_list_ends() {
        assert_eq!(msix(&config(&[(0x60, [0x10, 0x60, 0, 0])])), Msix::Absent);
        assert_eq!(msix(&[0xff; 256]), Msix::Absent, "a function that is gone");
    }
}
