//! A machine's device tree (Devicetree Specification 0.4), as a loader leaves it in memory.
//!
//! `dtoolkit` reads it: it needs no heap, and refuses a malformed tree as a whole before anything is looked up in it.

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::standard::{NodeStandard as _, Status};
use dtoolkit::{Node as _, Property as _};

use super::{Ecam, MachineError, Span, Spans};

const TREE: &str = "the device tree";
const MAGIC: u32 = 0xd00d_feed;
/// Bytes of the header.
const HEADER: usize = 40;
/// More than any tree has: 2 MiB is what QEMU and Linux leave for it.
const MOST: usize = 2 << 20;
/// Buses below one another.
const DEPTH: usize = 4;
const PCI: &str = "pci-host-ecam-generic";
/// Code of the address space in the first cell of a PCI address: 32-bit memory.
const MEMORY_32: u32 = 2;

/// A tree.
pub(crate) struct Tree<'a>(Fdt<'a>);

impl Tree<'static> {
    /// Returns the tree at `address`, and the memory that it takes.
    ///
    /// # Errors
    /// [`MachineError`].
    ///
    /// # Safety
    /// [`MOST`] bytes from `address` on are mapped memory, which nothing writes.
    pub(crate) unsafe fn at(address: usize) -> Result<(Self, Span), MachineError> {
        let none = MachineError::NotThere { what: TREE, address: address as u64 };
        if address == 0 || !address.is_multiple_of(8) {
            return Err(none);
        }
        let start: *const u32 = core::ptr::with_exposed_provenance(address);
        // SAFETY: promised by the caller.
        let (magic, len) = unsafe { (start.read(), start.add(1).read()) };
        if u32::from_be(magic) != MAGIC {
            return Err(none);
        }
        let len = u32::from_be(len) as usize;
        if !(HEADER..=MOST).contains(&len) {
            return Err(MachineError::Malformed { what: TREE });
        }
        // SAFETY: promised by the caller, up to `MOST`.
        let bytes = unsafe { core::slice::from_raw_parts(start.cast(), len) };
        Ok((Self::new(bytes)?, Span::of(address as u64, len as u64)))
    }
}

impl<'a> Tree<'a> {
    /// Returns the tree in these bytes, which have no others behind it.
    ///
    /// # Errors
    /// [`MachineError::Malformed`].
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, MachineError> {
        Fdt::new(bytes).map(Self).map_err(|_| MachineError::Malformed { what: TREE })
    }

    /// Returns the address of the registers, by their place in `reg`, of the first node that is compatible with `name`.
    ///
    /// # Errors
    /// [`MachineError::Missing`] names the node.
    pub(crate) fn registers(&self, name: &'static str, place: usize) -> Result<u64, MachineError> {
        self.registers_if(name, place, |_| true)
    }

    /// Returns the same of the first compatible node for which `fits` is true of its property `interrupts-extended`.
    ///
    /// # Errors
    /// [`MachineError::Missing`] names the node.
    pub(crate) fn registers_if(
        &self,
        name: &'static str,
        place: usize,
        fits: impl Fn(&[u8]) -> bool,
    ) -> Result<u64, MachineError> {
        let wanted = |node: &FdtNode<'_>| {
            let interrupts = node.property("interrupts-extended");
            node.is_compatible(name) && fits(interrupts.as_ref().map_or(&[], |property| property.value()))
        };
        let node = find(self.0.root(), &wanted, DEPTH);
        let address = node.and_then(|node| spans(node).and_then(|mut spans| spans.nth(place)));
        address.map(|span| span.base).ok_or(MachineError::Missing { what: TREE, needed: name })
    }

    /// Returns a property of `/cpus` that is a number.
    ///
    /// # Errors
    /// [`MachineError::Missing`] names the property.
    pub(crate) fn of_processors(&self, name: &'static str) -> Result<u32, MachineError> {
        let property = self.0.find_node("/cpus").and_then(|cpus| cpus.property(name)?.value_as::<u32>().ok());
        property.ok_or(MachineError::Missing { what: "the node /cpus of the device tree", needed: name })
    }

    /// Returns the PCI host, whose devices see memory as the processor does: at the same addresses, with what its caches hold.
    fn pci(&self) -> Result<FdtNode<'a>, MachineError> {
        let node = find(self.0.root(), &|node| node.is_compatible(PCI), DEPTH);
        let node = node.ok_or(MachineError::Missing { what: TREE, needed: PCI })?;
        // Without either property DMA is coherent on RISC-V and not on AArch64, as Linux reads it.
        if node.property("dma-noncoherent").is_some() {
            return Err(missing("coherent DMA, but 'dma-noncoherent'"));
        }
        if cfg!(target_arch = "aarch64") && !node.dma_coherent() {
            return Err(missing("'dma-coherent'"));
        }
        if node.property("dma-ranges").is_some_and(|ranges| !ranges.value().is_empty()) {
            let seen = |span: &Span| {
                node.dma_ranges().ok().flatten().into_iter().flatten().any(|range| {
                    let bus = range.child_bus_address::<u128>().unwrap_or_default() as u64;
                    let [base, len] = [range.parent_bus_address::<u64>(), range.length::<u64>()].map(Result::unwrap_or_default);
                    let range = Span::of(base, len);
                    bus == base && range.base <= span.base && span.end <= range.end
                })
            };
            if !self.memory()?.iter().all(seen) {
                return Err(missing("'dma-ranges' in which all memory has the addresses of the processor"));
            }
        }
        Ok(node)
    }

    /// Returns the configuration space of the PCI host.
    ///
    /// # Errors
    /// [`MachineError::Missing`].
    pub(crate) fn ecam(&self) -> Result<Ecam, MachineError> {
        let node = self.pci()?;
        let span = spans(node).and_then(|mut spans| spans.next()).ok_or(missing("'reg'"))?;
        // The range of buses may be left out: it is that of the registers then.
        let buses = match node.property("bus-range") {
            None => 256,
            Some(range) => match range.value_as::<u64>() {
                // Two numbers: the first bus, and the last.
                Ok(range) if range >> 32 == 0 => (range as u32).saturating_add(1),
                _ => return Err(missing("'bus-range' from bus 0 on")),
            },
        };
        let buses = u64::from(buses.min(256)).min(span.len() >> Ecam::BUS) as u16;
        if buses == 0 || span.base == 0 {
            return Err(missing("'reg' with the registers of a bus"));
        }
        Ok(Ecam { base: span.base, buses })
    }

    /// Returns the largest range of addresses below 4 GiB that the PCI host hands on as they are.
    ///
    /// # Errors
    /// [`MachineError::Missing`].
    pub(crate) fn bars(&self) -> Result<Span, MachineError> {
        let ranges = self.pci()?.ranges().ok().flatten().into_iter().flatten();
        let windows = ranges.filter_map(|range| {
            let bus = range.child_bus_address::<u128>().ok()?;
            let span = Span::of(range.parent_bus_address::<u64>().ok()?, range.length::<u64>().ok()?);
            let memory = (bus >> 64) as u32 >> 24 & 3 == MEMORY_32;
            (memory && bus as u64 == span.base && span.base != 0 && span.end <= 1 << 32).then_some(span)
        });
        let needed = "memory below 4 GiB in 'ranges' that the bus sees at the same addresses";
        windows.max_by_key(Span::len).ok_or(missing(needed))
    }

    /// Returns the RAM.
    ///
    /// # Errors
    /// [`MachineError`].
    pub(crate) fn memory(&self) -> Result<Spans, MachineError> {
        let mut memory = Spans::new();
        for node in self.0.root().children() {
            let kind = node.property("device_type").and_then(|kind| kind.value_as::<&str>().ok());
            if kind == Some("memory") && is_on(&node) {
                let missing = MachineError::Missing { what: "the memory of the device tree", needed: "'reg'" };
                spans(node).ok_or(missing)?.try_for_each(|span| memory.add(span))?;
            }
        }
        let any = memory.iter().next().is_some();
        any.then_some(memory).ok_or(MachineError::Missing { what: TREE, needed: "node of the type 'memory'" })
    }

    /// Returns what is reserved of it: by the tree's list, and by its node `/reserved-memory`.
    ///
    /// # Errors
    /// [`MachineError::TooMany`].
    pub(crate) fn reserved(&self) -> Result<Spans, MachineError> {
        let mut reserved = Spans::new();
        for each in self.0.memory_reservations() {
            reserved.add(Span::of(each.address(), each.size()))?;
        }
        if let Some(node) = self.0.find_node("/reserved-memory") {
            for each in node.children() {
                spans(each).into_iter().flatten().try_for_each(|span| reserved.add(span))?;
            }
        }
        Ok(reserved)
    }
}

/// Returns the error of a PCI host without something.
fn missing(needed: &'static str) -> MachineError {
    MachineError::Missing { what: "the PCI host of the device tree", needed }
}

fn is_on(node: &FdtNode<'_>) -> bool {
    node.status() == Ok(Status::Okay)
}

/// Returns the ranges of `reg`.
fn spans(node: FdtNode<'_>) -> Option<impl Iterator<Item = Span>> {
    let spans = node.reg().ok()??;
    Some(spans.filter_map(|each| Some(Span::of(each.address::<u64>().ok()?, each.size::<u64>().ok()?))))
}

/// Returns the first node that is wanted, down to some depth, among those whose addresses are the processor's: below a bus with an
/// empty property `ranges`, which hands addresses on as they are, and none `dma-ranges` that changes those of devices.
fn find<'a>(node: FdtNode<'a>, wanted: &impl Fn(&FdtNode<'_>) -> bool, depth: usize) -> Option<FdtNode<'a>> {
    for child in node.children() {
        if !is_on(&child) {
            continue;
        }
        if wanted(&child) {
            return Some(child);
        }
        let is_open = child.property("ranges").is_some_and(|ranges| ranges.value().is_empty())
            && child.property("dma-ranges").is_none_or(|ranges| ranges.value().is_empty());
        if is_open
            && depth > 1
            && let Some(found) = find(child, wanted, depth - 1)
        {
            return Some(found);
        }
    }
    None
}
