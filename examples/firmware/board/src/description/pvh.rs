//! What a loader gives a program that is entered by PVH: the start info of Xen's x86/HVM direct boot ABI, version 1.

use volatile_register::RO;

use super::{MachineError, Span, Spans};
use crate::arch;
use crate::registers::registers;

const START_INFO: &str = "the PVH start info";
const MAGIC: u32 = 0x336e_c578;
/// Type of an entry of the memory map: RAM.
const RAM: u32 = 1;
/// More entries than any machine has.
const MOST: u32 = 128;
/// The first megabyte has tables, the BIOS's data and registers of old.
const LOW: u64 = 1 << 20;

#[repr(C)]
struct StartInfo {
    magic: RO<u32>,
    version: RO<u32>,
    flags: RO<u32>,
    modules: RO<u32>,
    module_list: RO<u64>,
    command_line: RO<u64>,
    rsdp: RO<u64>,
    memory_map: RO<u64>,
    entries: RO<u32>,
    reserved: u32,
}

#[repr(C)]
struct Entry {
    base: RO<u64>,
    len: RO<u64>,
    kind: RO<u32>,
    reserved: u32,
}

/// The start info, as the processor was given it.
pub(crate) struct Start(&'static StartInfo);

impl Start {
    /// Returns that at `address`.
    ///
    /// # Errors
    /// [`MachineError`].
    pub(crate) fn at(address: usize) -> Result<Self, MachineError> {
        let none = MachineError::NotThere { what: START_INFO, address: address as u64 };
        if address == 0 || !arch::is_memory(address as u64, size_of::<StartInfo>() as u64, 8) {
            return Err(none);
        }
        // SAFETY: mapped, and aligned.
        let info: &StartInfo = unsafe { registers(address) };
        // Version 0 has no memory map.
        if info.magic.read() == MAGIC && info.version.read() >= 1 { Ok(Self(info)) } else { Err(none) }
    }

    /// Returns the address of ACPI's root pointer.
    #[cfg(not(feature = "microvm"))]
    pub(crate) fn rsdp(&self) -> u64 {
        self.0.rsdp.read()
    }

    /// Returns the RAM above the first megabyte, and the other ranges of the memory map.
    ///
    /// # Errors
    /// [`MachineError`].
    pub(crate) fn memory(&self) -> Result<(Spans, Spans), MachineError> {
        let missing = MachineError::Missing { what: START_INFO, needed: "memory map with RAM above the first megabyte" };
        let (map, entries) = (self.0.memory_map.read(), self.0.entries.read().min(MOST));
        if map == 0 || !arch::is_memory(map, u64::from(entries) * size_of::<Entry>() as u64, 8) {
            return Err(missing);
        }
        let (mut memory, mut others) = (Spans::new(), Spans::new());
        for place in 0..entries as usize {
            // SAFETY: mapped up to the last entry, and aligned.
            let entry: &Entry = unsafe { registers(map as usize + place * size_of::<Entry>()) };
            let span = Span::of(entry.base.read(), entry.len.read());
            if entry.kind.read() != RAM {
                others.add(span)?;
            } else if span.end > LOW {
                memory.add(Span { base: span.base.max(LOW), ..span })?;
            }
        }
        if memory.iter().next().is_none() { Err(missing) } else { Ok((memory, others)) }
    }
}
