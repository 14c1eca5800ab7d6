//! QEMU's q35: described by ACPI, as any PC.

use crate::arch::Controllers;
use crate::description::acpi::Tables;
use crate::description::pvh::Start;
use crate::description::{Description, MachineError, Span};
use crate::serial::com_port::ComPort;

pub(crate) use crate::isa_debug_exit::end;

/// Name of the machine.
pub const NAME: &str = "x86_64, q35";

/// The serial line.
pub(crate) type Uart = ComPort;
/// COM1: its ports are the same on every PC.
pub(crate) const UART: Uart = ComPort::at(0x3f8);
/// From here on the start-up code maps registers.
const REGISTERS: u64 = 2 << 30;

/// Reads the description of the machine; `given` is what the loader gave.
///
/// # Errors
/// [`MachineError`].
pub(crate) fn describe(given: usize) -> Result<Description, MachineError> {
    let start = Start::at(given)?;
    let tables = Tables::at(start.rsdp())?;
    let (ecam, end) = (tables.ecam()?, tables.io_apic()?);
    let (memory, used) = start.memory()?;
    // The addresses that nothing has, between RAM and I/O APIC: the largest gap.
    let taken = || memory.iter().chain(used.iter()).copied().chain([ecam.span(), end]);
    let gap = |base: u64| {
        let next = taken().filter(|span| span.end > base).map(|span| span.base).min().unwrap_or(end.base);
        Span { base, end: next.min(end.base) }
    };
    let gaps = taken().map(|span| gap(span.end.max(REGISTERS)));
    let needed = "gap between RAM and I/O APIC for BARs";
    let bars = gaps.max_by_key(Span::len).filter(|gap| gap.base < gap.end);
    let bars = bars.ok_or(MachineError::Missing { what: "the memory map", needed })?;
    Ok(Description { ecam, bars, memory, used, serial: None, controllers: Controllers })
}
