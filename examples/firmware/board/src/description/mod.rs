//! What the machine says of itself: where configuration space, the addresses for BARs, RAM and the interrupt controller are.
//!
//! A machine file (`machine/`) reads this from what its boot leaves in memory: a device tree, or the tables of ACPI. Nothing of
//! it is believed: each reader is bounded, and a missing or malformed part is an error that names it.

#[cfg(all(target_arch = "x86_64", not(feature = "microvm")))]
pub(crate) mod acpi;
#[cfg(any(not(target_arch = "x86_64"), feature = "microvm"))]
#[cfg_attr(not(target_arch = "riscv64"), expect(dead_code, reason = "a machine has what its own tree says"))]
pub(crate) mod device_tree;
#[cfg(all(target_arch = "x86_64", feature = "microvm"))]
pub(crate) mod fw_cfg;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pvh;

use core::fmt;

use heapless::Vec;
use spin::Once;

use crate::arch;

/// Ranges of RAM, and ranges in it that are used, which are kept of a machine.
const SPANS: usize = 16;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// First address.
    pub(crate) base: u64,
    /// First address behind it.
    pub(crate) end: u64,
}

impl Span {
    /// Returns the `len` bytes from `base` on; the end is that of all addresses at most.
    pub(crate) const fn of(base: u64, len: u64) -> Self {
        Self { base, end: base.saturating_add(len) }
    }

    /// Returns its bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.end.saturating_sub(self.base)
    }

    /// Returns whether all of `other` lies in it.
    pub(crate) const fn contains(&self, other: &Self) -> bool {
        self.base <= other.base && other.end <= self.end
    }

    const fn meets(&self, other: &Self) -> bool {
        self.base < other.end && other.base < self.end
    }
}

/// Where configuration space lies: 4096 bytes a function, from bus 0 on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ecam {
    /// Address of bus 0.
    pub(crate) base: u64,
    /// Number of buses.
    pub(crate) buses: u16,
}

impl Ecam {
    /// Bytes of a bus, as a power of two.
    pub(crate) const BUS: u32 = 20;

    /// Returns the addresses of all its buses.
    pub(crate) const fn span(&self) -> Span {
        Span::of(self.base, (self.buses as u64) << Self::BUS)
    }
}

/// What a machine says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    /// Configuration space.
    pub(crate) ecam: Ecam,
    /// Addresses for the BARs of functions, below 4 GiB, the same for the bus as for the processor.
    pub(crate) bars: Span,
    /// RAM.
    pub(crate) memory: Spans,
    /// What is used of RAM, besides the program: this description, and what it says.
    pub(crate) used: Spans,
    /// The serial line, where it is not at a port that every machine of its kind has.
    pub(crate) serial: Option<u64>,
    /// What the processor takes interrupts and the time from.
    pub(crate) controllers: arch::Controllers,
}

/// Some ranges of addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans(Vec<Span, SPANS>);

impl Spans {
    /// Returns none.
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a range.
    ///
    /// # Errors
    /// [`MachineError::TooMany`].
    pub(crate) fn add(&mut self, span: Span) -> Result<(), MachineError> {
        self.0.push(span).map_err(|_| MachineError::TooMany { most: SPANS })
    }

    /// Returns them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Span> {
        self.0.iter()
    }

    /// Returns the first range that meets `span`: the one that begins first.
    fn first_in(&self, span: &Span) -> Option<&Span> {
        self.iter().filter(|each| each.meets(span)).min_by_key(|each| each.base)
    }
}

/// What is missing in the description of a machine, or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineError {
    /// Nothing of that kind is at an address.
    NotThere { what: &'static str, address: u64 },
    /// It has another length or checksum than it says, or is none.
    Malformed { what: &'static str },
    /// A table, node or property that is needed is missing, or not of its form.
    Missing { what: &'static str, needed: &'static str },
    /// An address that the start-up code does not map.
    OutOfReach { what: &'static str, address: u64 },
    /// The program is larger than the RAM in which it lies.
    TooLarge { base: u64, end: u64 },
    /// More ranges of memory than are kept.
    TooMany { most: usize },
}

impl fmt::Display for MachineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotThere { what, address } => write!(f, "no {what} at {address:#x}"),
            Self::Malformed { what } => write!(f, "{what} is malformed"),
            Self::Missing { what, needed } => write!(f, "{what} has no {needed}"),
            Self::OutOfReach { what, address } => write!(f, "{what} is at {address:#x}, which this board does not map"),
            Self::TooLarge { base, end } => {
                write!(f, "the program lies from {base:#x} to {end:#x}, which is not all RAM: give the machine more memory")
            }
            Self::TooMany { most } => write!(f, "more than {most} ranges of memory"),
        }
    }
}

static DESCRIPTION: Once<Description> = Once::new();

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
}

/// The program itself, with its stack and its static memory for the card.
fn image() -> Span {
    Span { base: (&raw const image_start).addr() as u64, end: (&raw const image_end).addr() as u64 }
}

/// Takes the description of the machine, from the start on, and has its addresses mapped.
///
/// # Errors
/// [`MachineError`].
pub(crate) fn start(description: Description) -> Result<&'static Description, MachineError> {
    let program = image();
    if !description.memory.iter().any(|ram| ram.contains(&program)) {
        return Err(MachineError::TooLarge { base: program.base, end: program.end });
    }
    arch::map_registers("the PCI configuration space", description.ecam.span())?;
    arch::map_registers("the window for BARs", description.bars)?;
    Ok(DESCRIPTION.call_once(|| description))
}

/// Calls `each` with the ranges of RAM that are unused: whole pages.
pub(crate) fn unused(mut each: impl FnMut(Span)) {
    let Some(description) = DESCRIPTION.get() else { return };
    let mut used = description.used.clone();
    // There is room for all that a description may use only without the program: the last one is left out, not the program.
    if used.0.is_full() {
        used.0.pop();
    }
    let _ = used.add(image());
    for ram in description.memory.iter() {
        let mut rest = arch::map_memory(*ram);
        while rest.base < rest.end {
            let next = used.first_in(&rest).copied().unwrap_or(Span { base: rest.end, end: rest.end });
            let free = Span { base: rest.base.next_multiple_of(PAGE), end: next.base & !(PAGE - 1) };
            if free.base < free.end {
                each(free);
            }
            rest.base = next.end.max(rest.base);
        }
    }
}
