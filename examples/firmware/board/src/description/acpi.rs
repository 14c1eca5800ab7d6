//! Two tables of ACPI (specification 6.5, chapter 5; PCI Firmware Specification 3.3, 4.1.2): MCFG and MADT.
//!
//! They have a fixed form, so that this is all there is to read. The crate `acpi` was tried: without a heap it has the same, but
//! takes the length of a table for true without a bound, and goes on after a wrong checksum.

use super::{Ecam, MachineError, Span};
use crate::arch;

/// Bytes of the header that every table has.
const HEADER: usize = 36;
/// Bytes of the root pointer, in its first form and in that with 64 bits.
const ROOT_POINTER: (usize, usize) = (20, 36);
/// More than any table has.
const MOST: usize = 1 << 20;

/// The tables of a machine.
pub(crate) struct Tables {
    root: &'static [u8],
    /// Bytes of an address in the root table.
    entry: usize,
}

impl Tables {
    /// Returns those to which the root pointer at `address` leads.
    ///
    /// # Errors
    /// [`MachineError`].
    pub(crate) fn at(address: u64) -> Result<Self, MachineError> {
        let what = "ACPI's RSDP";
        let none = MachineError::NotThere { what, address };
        let pointer = bytes(address, ROOT_POINTER.0).filter(|bytes| bytes.starts_with(b"RSD PTR ")).ok_or(none)?;
        let malformed = MachineError::Malformed { what };
        if !adds_up(pointer) {
            return Err(malformed);
        }
        if number(pointer, 15, 1) < Some(2) {
            let root = number(pointer, 16, 4).ok_or(malformed)?;
            return Ok(Self { root: table(root, *b"RSDT", "ACPI's RSDT")?, entry: 4 });
        }
        let pointer = bytes(address, ROOT_POINTER.1).filter(|bytes| adds_up(bytes)).ok_or(malformed)?;
        let root = number(pointer, 24, 8).ok_or(malformed)?;
        Ok(Self { root: table(root, *b"XSDT", "ACPI's XSDT")?, entry: 8 })
    }

    fn find(&self, name: [u8; 4], what: &'static str) -> Result<&'static [u8], MachineError> {
        let entries = self.root.get(HEADER..).unwrap_or_default().chunks_exact(self.entry);
        let mut addresses = entries.filter_map(|entry| number(entry, 0, self.entry));
        let named = |address: &u64| bytes(*address, HEADER).is_some_and(|table| table.starts_with(&name));
        let address = addresses.find(named).ok_or(MachineError::Missing { what: "ACPI", needed: what })?;
        table(address, name, what)
    }

    /// Returns the configuration space of segment 0.
    ///
    /// # Errors
    /// [`MachineError`].
    pub(crate) fn ecam(&self) -> Result<Ecam, MachineError> {
        let table = self.find(*b"MCFG", "table MCFG")?;
        for entry in table.get(HEADER + 8..).unwrap_or_default().chunks_exact(16) {
            let (base, segment, buses) = (number(entry, 0, 8), number(entry, 8, 2), number(entry, 10, 2));
            if let (Some(base @ 1..), Some(0), Some(buses)) = (base, segment, buses)
                && buses & 0xff == 0
            {
                return Ok(Ecam { base, buses: (buses >> 8) as u16 + 1 });
            }
        }
        Err(MachineError::Missing { what: "ACPI's table MCFG", needed: "bus 0 of segment 0" })
    }

    /// Returns the registers of the first I/O APIC: below them a machine has its addresses for BARs.
    ///
    /// # Errors
    /// [`MachineError`].
    pub(crate) fn io_apic(&self) -> Result<Span, MachineError> {
        let mut rest = self.find(*b"APIC", "table MADT")?.get(HEADER + 8..).unwrap_or_default();
        while let (Some(kind), Some(len)) = (number(rest, 0, 1), number(rest, 1, 1)) {
            if let (1, Some(address)) = (kind, number(rest, 4, 4)) {
                return Ok(Span::of(address, 4096));
            }
            // An entry has two bytes at least: the loop ends.
            rest = rest.get((len as usize).max(2)..).unwrap_or_default();
        }
        Err(MachineError::Missing { what: "ACPI's table MADT", needed: "I/O APIC" })
    }
}

/// Returns bytes of mapped memory.
fn bytes(address: u64, len: usize) -> Option<&'static [u8]> {
    if address == 0 || !arch::is_memory(address, len as u64, 1) {
        return None;
    }
    // SAFETY: mapped, not null, and written by nothing but the BIOS, which has ended.
    Some(unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(address as usize), len) })
}

/// Returns the little-endian number of `len` bytes, 8 at most, at a place.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut number = [0; 8];
    number.get_mut(..len)?.copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
    Some(u64::from_le_bytes(number))
}

/// Returns whether the sum of all bytes is 0, as it is of what ACPI gives.
fn adds_up(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)) == 0
}

fn table(address: u64, name: [u8; 4], what: &'static str) -> Result<&'static [u8], MachineError> {
    let head = bytes(address, HEADER).filter(|head| head.starts_with(&name));
    let head = head.ok_or(MachineError::NotThere { what, address })?;
    let len = number(head, 4, 4).unwrap_or(0) as usize;
    let table = (HEADER..=MOST).contains(&len).then(|| bytes(address, len)).flatten();
    table.filter(|table| adds_up(table)).ok_or(MachineError::Malformed { what })
}
