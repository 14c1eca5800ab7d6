//! MSI-X: table, mask bits, pending bits.

use std::collections::VecDeque;

const ENTRY: usize = 16;
const VECTOR_CONTROL: usize = 12;

/// The vectors of the function.
#[derive(Clone, Debug)]
pub(crate) struct Msix {
    /// The table as the host sees it.
    table: Vec<u8>,
    pending: Vec<bool>,
    raised: VecDeque<u16>,
}

/// What decides whether a vector goes out at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    /// MSI-X is on.
    pub(crate) enabled: bool,
    /// All vectors are masked.
    pub(crate) masked: bool,
    /// Table and mask bits are ignored.
    pub(crate) external: bool,
}

impl Msix {
    pub(crate) fn new(vectors: u16) -> Self {
        let vectors = usize::from(vectors);
        let mut table = vec![0; vectors * ENTRY];
        for entry in table.chunks_exact_mut(ENTRY) {
            if let Some(control) = entry.get_mut(VECTOR_CONTROL) {
                *control = 1;
            }
        }
        Self { table, pending: vec![false; vectors], raised: VecDeque::new() }
    }

    /// Returns the number of vectors.
    pub(crate) fn vectors(&self) -> usize {
        self.pending.len()
    }

    fn masked(&self, vector: usize) -> bool {
        self.table.get(vector * ENTRY + VECTOR_CONTROL).is_none_or(|control| control & 1 != 0)
    }

    /// Takes the mask bit off every vector.
    pub(crate) fn unmask_all(&mut self) {
        for entry in self.table.chunks_exact_mut(ENTRY) {
            if let Some(control) = entry.get_mut(VECTOR_CONTROL) {
                *control &= !1;
            }
        }
    }

    /// Raises a vector: it is sent, stays pending, or (with MSI-X off) is lost.
    pub(crate) fn raise(&mut self, vector: u16, gate: Gate) {
        let at = usize::from(vector);
        if !gate.external && !gate.enabled {
            return;
        }
        let held = !gate.external && (gate.masked || self.masked(at));
        if let Some(pending) = self.pending.get_mut(at) {
            if held {
                *pending = true;
            } else {
                self.raised.push_back(vector);
            }
        }
    }

    /// Sends what was pending and is masked no longer.
    pub(crate) fn release(&mut self, gate: Gate) {
        if !gate.enabled || gate.masked {
            return;
        }
        for vector in 0..self.vectors() {
            if !self.masked(vector)
                && let Some(pending) = self.pending.get_mut(vector)
                && core::mem::take(pending)
                && let Ok(vector) = u16::try_from(vector)
            {
                self.raised.push_back(vector);
            }
        }
    }

    /// Returns the vectors that went out since the last call, in order.
    pub(crate) fn take_raised(&mut self) -> Vec<u16> {
        self.raised.drain(..).collect()
    }

    /// Returns whether any vector went out and was not taken yet.
    pub(crate) fn has_raised(&self) -> bool {
        !self.raised.is_empty()
    }

    /// Bytes of the table that begin at `offset` of it.
    pub(crate) fn read_table(&self, offset: usize, into: &mut [u8]) {
        for (i, byte) in into.iter_mut().enumerate() {
            *byte = self.table.get(offset.saturating_add(i)).copied().unwrap_or(0);
        }
    }

    /// Writes bytes of the table.
    pub(crate) fn write_table(&mut self, offset: usize, from: &[u8], gate: Gate) {
        for (i, value) in from.iter().enumerate() {
            if let Some(byte) = self.table.get_mut(offset.saturating_add(i)) {
                *byte = *value;
            }
        }
        self.release(gate);
    }

    /// Bytes of the pending bit array.
    pub(crate) fn read_pending(&self, offset: usize, into: &mut [u8]) {
        for (i, byte) in into.iter_mut().enumerate() {
            let first = offset.saturating_add(i).saturating_mul(8);
            *byte = (0..8).fold(0, |bits, bit| {
                let pending = self.pending.get(first.saturating_add(bit)).copied().unwrap_or(false);
                bits | u8::from(pending) << bit
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: Gate = Gate { enabled: true, masked: false, external: false };

    #[test]
    fn a_masked_vector_waits_in_the_pending_bits() {
        let mut msix = Msix::new(16);
        msix.raise(9, ON);
        assert!(msix.take_raised().is_empty(), "masked after reset");
        let mut bits = [0; 8];
        msix.read_pending(0, &mut bits);
        assert_eq!(bits, [0, 2, 0, 0, 0, 0, 0, 0]);
        msix.write_table(9 * 16 + 12, &[0; 4], Gate { masked: true, ..ON });
        assert!(msix.take_raised().is_empty(), "the whole function is masked");
        msix.release(ON);
        assert_eq!(msix.take_raised(), [9]);
        msix.read_pending(0, &mut bits);
        assert_eq!(bits, [0; 8]);
    }

    #[test]
    fn without_msix_or_without_such_a_vector_nothing_happens() {
        let mut msix = Msix::new(2);
        msix.unmask_all();
        msix.raise(1, Gate { enabled: false, ..ON });
        msix.raise(2, ON);
        msix.raise(u16::MAX, ON);
        assert!(!msix.has_raised());
        msix.raise(1, Gate { enabled: false, masked: true, external: true });
        assert_eq!(msix.take_raised(), [1], "the server of the device keeps the table");
    }
}
