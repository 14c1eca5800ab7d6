//! PCI Express: the functions of the machine, found through the ECAM; the way to one of them opened; its BAR placed.
//!
//! Nothing is taken over from a BIOS, so that the code is the same where there is none. No function reaches memory before its
//! program asks for it: a watchdog restarts the processor and leaves the cards as they are, with the memory of the program before,
//! which is this program's now.

use core::fmt;
use core::ptr::NonNull;
use core::time::Duration;

use bareverbs::Clock as _;
use heapless::Vec;
use spin::Mutex;
use volatile_register::{RO, RW};

use crate::Timer;
use crate::description::{Description, Ecam, Span};
use crate::interrupts::Message;

/// Functions that are kept of a machine.
const FUNCTIONS: usize = 32;
/// Bits of the command register: memory space, bus master, no INTx.
const COMMAND_ON: u16 = 0x0406;
/// Bit of the command register: the function may reach memory, and raise messages.
const BUS_MASTER: u16 = 0x0004;
const CAPABILITY_EXPRESS: u8 = 0x10;
const CAPABILITY_MSIX: u8 = 0x11;
/// Bit of the device capabilities: the function can be reset alone.
const FUNCTION_LEVEL_RESET: u32 = 1 << 28;
/// Bit of the device control register that resets the function.
const INITIATE_RESET: u16 = 1 << 15;
/// Bit of the device status register: requests of the function have no answer yet.
const TRANSACTIONS_PENDING: u16 = 1 << 5;
/// How long requests in flight may take before a reset, and the reset itself (PCI Express Base Specification 3.0, 6.6.2).
const RESET_TIME: Duration = Duration::from_millis(100);
/// How long the function may take after that until it answers.
const RESET_TIMEOUT: Duration = Duration::from_secs(1);
const MEGABYTE: u64 = 1 << 20;

/// The first 64 bytes of the configuration space of a function (PCI Local Bus Specification, 6.1).
#[repr(C)]
struct Header {
    vendor: RO<u16>,
    device: RO<u16>,
    command: RW<u16>,
    status: RW<u16>,
    revision: RO<u8>,
    interface: RO<u8>,
    class: RO<u16>,
    cache_line: RW<u8>,
    latency: RW<u8>,
    kind: RO<u8>,
    self_test: RW<u8>,
    bars: [RW<u32>; 6],
    cardbus: RO<u32>,
    subsystem_vendor: RO<u16>,
    subsystem: RO<u16>,
    rom: RW<u32>,
    capabilities: RO<u8>,
    reserved: [u8; 7],
    interrupt: [RW<u8>; 4],
}

/// The same of a bridge (PCI-to-PCI Bridge Architecture Specification, 3.2).
#[repr(C)]
struct BridgeHeader {
    vendor: RO<u16>,
    device: RO<u16>,
    command: RW<u16>,
    status: RW<u16>,
    class: [RO<u32>; 2],
    bars: [RW<u32>; 2],
    primary: RW<u8>,
    secondary: RW<u8>,
    subordinate: RW<u8>,
    latency: RW<u8>,
    io_base: RW<u8>,
    io_limit: RW<u8>,
    secondary_status: RW<u16>,
    memory_base: RW<u16>,
    memory_limit: RW<u16>,
    prefetch_base: RW<u16>,
    prefetch_limit: RW<u16>,
    prefetch_base_high: RW<u32>,
    prefetch_limit_high: RW<u32>,
}

/// What each capability begins with.
#[repr(C)]
struct CapabilityHeader {
    id: RO<u8>,
    next: RO<u8>,
}

/// The PCI Express capability as far as it is used (PCI Express Base Specification 3.0, 7.8).
#[repr(C)]
struct ExpressCapability {
    id: RO<u8>,
    next: RO<u8>,
    capabilities: RO<u16>,
    device_capabilities: RO<u32>,
    device_control: RW<u16>,
    device_status: RW<u16>,
}

/// The MSI-X capability (PCI Local Bus Specification, 6.8.2).
#[repr(C)]
struct MsixCapability {
    id: RO<u8>,
    next: RO<u8>,
    control: RW<u16>,
    table: RO<u32>,
    pending: RO<u32>,
}

/// An entry of the MSI-X table.
#[repr(C)]
struct MsixEntry {
    address_low: RW<u32>,
    address_high: RW<u32>,
    data: RW<u32>,
    control: RW<u32>,
}

const _: () = {
    assert!(size_of::<Header>() == 64);
    assert!(core::mem::offset_of!(Header, capabilities) == 0x34);
    assert!(core::mem::offset_of!(BridgeHeader, prefetch_limit_high) == 0x2c);
    assert!(core::mem::offset_of!(ExpressCapability, device_status) == 0xa);
    assert!(size_of::<MsixEntry>() == 16);
};

/// Bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Bus.
    pub bus: u8,
    /// Device, 5 bits.
    pub device: u8,
    /// Function, 3 bits.
    pub function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus, self.device, self.function)
    }
}

/// A function that answered.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Where it is.
    pub address: Address,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Class and subclass.
    pub class: u16,
    bridge: bool,
    /// BAR0 was given out.
    enabled: bool,
    /// The bridge above, by its place in the list.
    parent: Option<usize>,
    registers: NonNull<Header>,
}

// SAFETY: configuration space is reached from every processor at the same address.
unsafe impl Send for Function {}

/// Why a BAR could not be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciError {
    /// The machine has more functions, or buses, than are kept here.
    TooMany,
    /// No such function.
    NoFunction,
    /// BAR0 is no memory, or not there.
    NoMemoryBar,
    /// The machine has not that many addresses left for BARs.
    NoRoom {
        /// Bytes of the BAR.
        size: u64,
    },
    /// The function does not answer after its reset.
    NoAnswer,
    /// The function has no MSI-X, or its table lies in another BAR.
    NoMsix,
    /// The machine's functions, or this one's BAR, were given out before.
    InUse,
}

impl fmt::Display for PciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => f.write_str("more PCI functions or buses than are kept"),
            Self::NoFunction => f.write_str("no such PCI function"),
            Self::NoMemoryBar => f.write_str("BAR0 is not there, or no memory"),
            Self::NoRoom { size } => write!(f, "no room for a BAR of {size} bytes among the machine's addresses"),
            Self::NoAnswer => f.write_str("the function does not answer after its reset; power the machine off and on"),
            Self::NoMsix => f.write_str("no MSI-X table in BAR0"),
            Self::InUse => f.write_str("given out before: the PCI functions of a machine, and each BAR, have one owner"),
        }
    }
}

impl core::error::Error for PciError {}

/// BAR0 of a function, placed: the only way to its registers.
#[derive(Debug)]
pub struct Bar {
    base: NonNull<u8>,
    len: usize,
}

impl Bar {
    /// Returns the address at which the CPU reaches it, uncached; a multiple of 4096.
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its size in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes: never.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The functions of the machine, from its start until a program takes them.
static BUS: Mutex<Option<Result<Bus, PciError>>> = Mutex::new(None);

/// Looks at every slot, and takes memory from what is there; called by the start-up code before the program.
pub(crate) fn start(description: &Description) {
    *BUS.lock() = Some(Bus::scan(description));
}

/// The functions of the machine.
#[derive(Debug)]
pub struct Bus {
    functions: Vec<Function, FUNCTIONS>,
    ecam: Ecam,
    free: Span,
    last_bus: u8,
}

impl Bus {
    /// Returns the functions of the machine; once in the life of a program.
    ///
    /// # Errors
    /// [`PciError::TooMany`], and [`PciError::InUse`] the second time.
    pub fn take() -> Result<Self, PciError> {
        BUS.lock().take().unwrap_or(Err(PciError::InUse))
    }

    /// Looks at every slot, and numbers the buses behind bridges on the way. Functions that are no bridges reach no memory from here
    /// on.
    fn scan(description: &Description) -> Result<Self, PciError> {
        let mut bus = Self { functions: Vec::new(), ecam: description.ecam, free: description.bars, last_bus: 0 };
        bus.scan_bus(0, None)?;
        Ok(bus)
    }

    /// Returns everything that was found, bridges too.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    fn header(&self, address: Address) -> NonNull<Header> {
        let Address { bus, device, function } = address;
        let offset = usize::from(bus) << 20 | usize::from(device) << 15 | usize::from(function) << 12;
        // Never null: no machine has its ECAM at address 0.
        NonNull::new(core::ptr::with_exposed_provenance_mut(self.ecam.base as usize + offset)).unwrap_or(NonNull::dangling())
    }

    fn scan_bus(&mut self, bus: u8, parent: Option<usize>) -> Result<(), PciError> {
        for device in 0..32 {
            for function in 0..8 {
                let address = Address { bus, device, function };
                let registers = self.header(address);
                // SAFETY: the ECAM has 4096 bytes for each function, whether it is there or not.
                let header = unsafe { registers.as_ref() };
                let vendor = header.vendor.read();
                if vendor == u16::MAX {
                    if function == 0 {
                        break;
                    }
                    continue;
                }
                let kind = header.kind.read();
                let bridge = kind & 0x7f == 1;
                if !bridge {
                    // SAFETY: a function that reaches neither memory nor messages changes nothing of this program's.
                    unsafe { header.command.write(header.command.read() & !BUS_MASTER) };
                }
                let found = Function {
                    address,
                    vendor,
                    device: header.device.read(),
                    class: header.class.read(),
                    bridge,
                    enabled: false,
                    parent,
                    registers,
                };
                let index = self.functions.len();
                self.functions.push(found).map_err(|_| PciError::TooMany)?;
                if bridge {
                    self.scan_behind(&found, index)?;
                }
                if function == 0 && kind & 0x80 == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Gives the bus behind a bridge the next number, closes the bridge's windows, and scans it.
    fn scan_behind(&mut self, bridge: &Function, index: usize) -> Result<(), PciError> {
        let secondary = self.last_bus.checked_add(1).ok_or(PciError::TooMany)?;
        if u16::from(secondary) >= self.ecam.buses {
            return Err(PciError::TooMany);
        }
        self.last_bus = secondary;
        let Some(registers) = bridge.bridge() else { return Ok(()) };
        // SAFETY: the function is a bridge, whose first registers these are. The values are bus numbers that were given to no
        // other bridge, and windows that are closed because their base lies above their limit.
        unsafe {
            registers.primary.write(bridge.address.bus);
            registers.secondary.write(secondary);
            // All buses that may come, until it is known which do.
            registers.subordinate.write(u8::MAX);
            registers.memory_base.write(0xfff0);
            registers.memory_limit.write(0);
            registers.prefetch_base.write(0xfff0);
            registers.prefetch_limit.write(0);
            registers.prefetch_base_high.write(0);
            registers.prefetch_limit_high.write(0);
        }
        self.scan_bus(secondary, Some(index))?;
        // SAFETY: as above; the highest bus behind this bridge.
        unsafe { registers.subordinate.write(self.last_bus) };
        Ok(())
    }

    /// Resets the function at `address` if it can be reset alone, places its BAR0, and opens the bridges above it. Then turns
    /// on its memory space and bus mastering: from here on it reaches memory. Returns BAR0, and whether the function was reset.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn enable(&mut self, address: Address) -> Result<(Bar, bool), PciError> {
        let entry = self.functions.iter_mut().find(|each| each.address == address).ok_or(PciError::NoFunction)?;
        if entry.bridge {
            return Err(PciError::NoMemoryBar);
        }
        if core::mem::replace(&mut entry.enabled, true) {
            return Err(PciError::InUse);
        }
        let function = *entry;
        let was_reset = function.reset()?;
        // SAFETY: the function answered in `scan`.
        let header = unsafe { function.registers.as_ref() };
        let [low, high, ..] = &header.bars;
        // SAFETY: with memory space off, sizing (all ones, read back) has no effect elsewhere; bit 0 says I/O, bit 2 says 64
        // bits, bit 3 prefetchable.
        let (flags, size) = unsafe {
            header.command.write(header.command.read() & !COMMAND_ON);
            low.write(u32::MAX);
            let mask = low.read();
            let wide = mask & 0x6 == 0x4;
            let mut upper = u32::MAX;
            if wide {
                high.write(u32::MAX);
                upper = high.read();
            }
            if mask & 1 != 0 || mask & !0xf == 0 && upper == u32::MAX {
                return Err(PciError::NoMemoryBar);
            }
            (mask & 0xf, (!(u64::from(upper) << 32 | u64::from(mask & !0xf))).wrapping_add(1))
        };
        // Bridges open their windows by the megabyte. A BAR is never larger than what is checked below.
        let len = size.checked_next_multiple_of(MEGABYTE).ok_or(PciError::NoRoom { size })?;
        let base = self.free.base.checked_next_multiple_of(len).ok_or(PciError::NoRoom { size })?;
        let end = base.checked_add(len).filter(|end| *end <= self.free.end).ok_or(PciError::NoRoom { size })?;
        self.free.base = end;
        // SAFETY: the addresses are free (the description of the machine), aligned to the size, and given out once.
        unsafe {
            low.write(base as u32);
            if flags & 0x6 == 0x4 {
                high.write((base >> 32) as u32);
            }
        }
        let mut above = function.parent;
        while let Some(bridge) = above.and_then(|index| self.functions.get(index)) {
            bridge.open(Span { base, end }, flags & 0x8 != 0);
            above = bridge.parent;
        }
        // SAFETY: the BAR is placed; what the card does with its right to reach memory is its driver's business.
        unsafe { header.command.write(header.command.read() | COMMAND_ON) };
        let base = NonNull::new(core::ptr::with_exposed_provenance_mut(base as usize)).ok_or(PciError::NoRoom { size })?;
        Ok((Bar { base, len: usize::try_from(size).map_err(|_| PciError::NoRoom { size })? }, was_reset))
    }
}

impl Function {
    fn bridge(&self) -> Option<&BridgeHeader> {
        // SAFETY: a bridge has these registers at the start of its configuration space, which is always there.
        self.bridge.then(|| unsafe { self.registers.cast().as_ref() })
    }

    /// Lets addresses through to what lies behind this bridge, beside those that it lets through already.
    fn open(&self, window: Span, prefetchable: bool) {
        let Some(registers) = self.bridge() else { return };
        // Registers hold bits 31 to 20 of the first address, and of the last.
        let (first, last) = ((window.base >> 16) as u16 & 0xfff0, ((window.end - 1) >> 16) as u16 & 0xfff0);
        let (base, limit) = if prefetchable {
            (&registers.prefetch_base, &registers.prefetch_limit)
        } else {
            (&registers.memory_base, &registers.memory_limit)
        };
        // SAFETY: the BARs behind this bridge were placed one after the other. So the widened window contains, besides them, only
        // BARs of other bridges that were placed in between.
        unsafe {
            let closed = base.read() & 0xfff0 > limit.read() & 0xfff0;
            base.write(if closed { first } else { first.min(base.read() & 0xfff0) });
            limit.write(if closed { last } else { last.max(limit.read() & 0xfff0) });
            registers.command.write(registers.command.read() | COMMAND_ON);
        }
    }

    /// Has the card raise vectors 0 and up as `messages`, one each; gives how many vectors were set. Their table lies in
    /// `bar`, which belongs to the caller still: before the driver gets it.
    ///
    /// # Errors
    /// [`PciError::NoMsix`].
    pub fn enable_msix(&self, bar: &mut Bar, messages: &[Message]) -> Result<usize, PciError> {
        let capability = self.capability(CAPABILITY_MSIX).ok_or(PciError::NoMsix)?;
        // SAFETY: the capability of this number is that structure, and 4096 bytes are there for a function.
        set_messages(unsafe { capability.cast().as_ref() }, bar, messages)
    }

    /// Returns the capability `id`, if the function has it: its first byte, at a multiple of 4.
    fn capability(&self, id: u8) -> Option<NonNull<CapabilityHeader>> {
        // SAFETY: the function answered in `scan`.
        let mut at = unsafe { self.registers.as_ref() }.capabilities.read() & 0xfc;
        // The list has at most as many capabilities as fit.
        for _ in 0..48 {
            if at < 0x40 {
                break;
            }
            // SAFETY: `at` is a multiple of 4 from 0x40 to 0xfc, and 4096 bytes are there.
            let place: NonNull<CapabilityHeader> = unsafe { self.registers.byte_add(usize::from(at)).cast() };
            // SAFETY: as above.
            let header = unsafe { place.as_ref() };
            if header.id.read() == id {
                return Some(place);
            }
            at = header.next.read() & 0xfc;
        }
        None
    }

    /// Resets the function, if it can be reset alone. Returns whether it can.
    ///
    /// # Errors
    /// [`PciError::NoAnswer`].
    fn reset(&self) -> Result<bool, PciError> {
        // SAFETY: the function answered in `scan`.
        let header = unsafe { self.registers.as_ref() };
        let Some(express) = self.capability(CAPABILITY_EXPRESS) else { return Ok(false) };
        // SAFETY: the capability of this number is that structure, and 4096 bytes are there for a function.
        let express: &ExpressCapability = unsafe { express.cast().as_ref() };
        if express.device_capabilities.read() & FUNCTION_LEVEL_RESET == 0 {
            return Ok(false);
        }
        // Without an answer in this time the reset comes all the same.
        wait(RESET_TIME, || express.device_status.read() & TRANSACTIONS_PENDING == 0);
        // SAFETY: the function is unused: its BAR is not given out yet.
        unsafe { express.device_control.write(express.device_control.read() | INITIATE_RESET) };
        wait(RESET_TIME, || false);
        // All ones without an answer; 1 if it asks to be read again (Configuration Request Retry Status).
        if wait(RESET_TIMEOUT, || header.vendor.read() == self.vendor) { Ok(true) } else { Err(PciError::NoAnswer) }
    }
}

/// Waits until something has happened, at most for `timeout`; whether it has.
fn wait(timeout: Duration, mut has_happened: impl FnMut() -> bool) -> bool {
    let deadline = Timer.now().after(timeout);
    loop {
        // In this order: an event in time counts, however late it is read.
        let late = Timer.now() >= deadline;
        if has_happened() {
            return true;
        }
        if late {
            return false;
        }
        core::hint::spin_loop();
    }
}

fn set_messages(capability: &MsixCapability, bar: &mut Bar, messages: &[Message]) -> Result<usize, PciError> {
    let table = capability.table.read();
    let offset = (table & !7) as usize;
    let vectors = usize::from(capability.control.read() & 0x7ff) + 1;
    if table & 7 != 0 || offset + vectors * size_of::<MsixEntry>() > bar.len {
        return Err(PciError::NoMsix);
    }
    // SAFETY: the table lies in the BAR (checked), which the caller maps and alone uses; all vectors are masked while
    // their entries change.
    unsafe {
        capability.control.write(capability.control.read() | 0xc000);
        for (index, message) in messages.iter().enumerate().take(vectors) {
            let entry: &MsixEntry = bar.base.byte_add(offset + index * size_of::<MsixEntry>()).cast().as_ref();
            entry.address_low.write(message.address as u32);
            entry.address_high.write((message.address >> 32) as u32);
            entry.data.write(message.data);
            entry.control.write(0);
        }
        capability.control.write(capability.control.read() & !0x4000);
    }
    Ok(messages.len().min(vectors))
}
