//! PCI Express: the functions of the machine, found through the ECAM; the way to one of them opened; its BAR placed.
//!
//! Nothing is taken over from a BIOS, so that the code is the same where there is none. No function reaches memory before its
//! program asks for it: a watchdog restarts the processor and leaves the cards as they are, with the memory of the program before,
//! which is this program's now.
//!
//! No list of functions is kept: who looks for one walks all buses again. So a machine may have any number.

use core::fmt;
use core::ptr::NonNull;
use core::time::Duration;

use bareverbs::platform::Clock as _;
use heapless::Vec;
use spin::Mutex;
use volatile_register::{RO, RW};

use crate::description::{Description, Ecam, Span};
use crate::interrupts::Message;
use crate::{Timer, println};

/// Bits of the command register: memory space, bus master, no INTx.
const COMMAND_ON: u16 = 0x0406;
/// Bit of the command register: the function answers in its BARs.
const MEMORY_SPACE: u16 = 0x0002;
/// Bit of the command register: the function may reach memory, and raise messages; a bridge hands on what does so behind it.
const BUS_MASTER: u16 = 0x0004;
const CAPABILITY_EXPRESS: u8 = 0x10;
const CAPABILITY_MSIX: u8 = 0x11;
/// Extended capability: single root I/O virtualization.
const CAPABILITY_SRIOV: u32 = 0x10;
/// Bits of its control register: the virtual functions are there, and answer in their BARs.
const VF_ENABLE: u16 = 0x0009;
/// Bit of the device capabilities: the function can be reset alone.
const FUNCTION_LEVEL_RESET: u32 = 1 << 28;
/// Bit of the device control register that resets the function.
const INITIATE_RESET: u16 = 1 << 15;
/// Bits of the device control register: Max_Payload_Size and Max_Read_Request_Size.
const SIZES: u16 = 0x70e0;
/// Functions of the one device that a link leads to.
const FUNCTIONS: usize = 8;
/// Bit of the device status register: requests of the function have no answer yet.
const TRANSACTIONS_PENDING: u16 = 1 << 5;
/// Bit of a bridge's control register that resets what lies behind it.
const SECONDARY_BUS_RESET: u16 = 1 << 6;
/// How long that bit is set: at least 1 ms (PCI Express Base Specification 5.0, 6.6.1).
const BUS_RESET_TIME: Duration = Duration::from_millis(2);
/// How long requests in flight may take before a reset, and how long a function is left alone after it (6.6.1, 6.6.2).
const RESET_TIME: Duration = Duration::from_millis(100);
/// Vendor that is read of a function which is not ready (2.3.2: Request Retry Status).
const REQUEST_RETRY: u16 = 1;
/// After this time a function that is not ready must at least say so (6.6.1).
const READY_TIME: Duration = Duration::from_secs(1);
/// How long a function may say so: the specification has no limit. As long as the driver waits for the boot of the firmware.
const RESET_TIMEOUT: Duration = Duration::from_secs(120);
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
    io_high: [RW<u16>; 2],
    capabilities: RO<u8>,
    reserved: [u8; 3],
    rom: RW<u32>,
    interrupt: [RW<u8>; 2],
    control: RW<u16>,
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

/// The capability for virtual functions (PCI Express Base Specification 5.0, 9.3.3).
#[repr(C)]
struct SriovCapability {
    header: RO<u32>,
    capabilities: RO<u32>,
    control: RW<u16>,
    status: RO<u16>,
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
    assert!(core::mem::offset_of!(BridgeHeader, control) == 0x3e);
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

impl Address {
    const fn first_of(bus: u8) -> Self {
        Self { bus, device: 0, function: 0 }
    }
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
    registers: NonNull<Header>,
}

// SAFETY: configuration space is reached from every processor at the same address.
unsafe impl Send for Function {}

/// Why a BAR could not be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciError {
    /// The machine has more buses than its configuration space.
    TooManyBuses {
        /// Buses of the configuration space.
        most: u16,
    },
    /// No such function.
    NoFunction,
    /// BAR0 is no memory, or not there.
    NoMemoryBar,
    /// The machine has not that many addresses left for BARs.
    NoRoom {
        /// Bytes of the BAR.
        size: u64,
    },
    /// The function can be reset neither alone nor with its bus: it may still write into memory of an earlier program.
    NoReset(Address),
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
            Self::TooManyBuses { most } => write!(f, "more PCI buses than the {most} of the machine's configuration space"),
            Self::NoFunction => f.write_str("no such PCI function"),
            Self::NoMemoryBar => f.write_str("BAR0 is not there, or no memory"),
            Self::NoRoom { size } => write!(f, "no room for a BAR of {size} bytes among the machine's addresses"),
            Self::NoReset(at) => write!(
                f,
                "{at} has no function-level reset, and no bridge of its own that could reset it: put it into a slot of its own, \
                 or power the machine off and on"
            ),
            Self::NoAnswer => {
                write!(
                    f,
                    "no answer {} s after the reset of the function; power the machine off and on",
                    RESET_TIMEOUT.as_secs()
                )
            }
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
    ecam: Ecam,
    /// Addresses for BARs that are not given out.
    free: Span,
    last_bus: u8,
}

impl Bus {
    /// Returns the functions of the machine; once in the life of a program.
    ///
    /// # Errors
    /// [`PciError::TooManyBuses`], and [`PciError::InUse`] the second time.
    pub fn take() -> Result<Self, PciError> {
        BUS.lock().take().unwrap_or(Err(PciError::InUse))
    }

    /// Looks at every slot, and numbers the buses behind bridges on the way: a bus gets its number before those behind it, and all
    /// behind a bridge follow one another. From here on no function reaches memory.
    fn scan(description: &Description) -> Result<Self, PciError> {
        let mut bus = Self { ecam: description.ecam, free: description.bars, last_bus: 0 };
        // The bridges above the bus that is scanned. Each has a bus of its own: there are never more than buses.
        let mut above: Vec<Function, 256> = Vec::new();
        let mut next = Some(Address::first_of(0));
        loop {
            let Some(address) = next else {
                let Some(bridge) = above.pop() else { return Ok(bus) };
                if let Some(registers) = bridge.bridge() {
                    // SAFETY: the highest bus behind this bridge.
                    unsafe { registers.subordinate.write(bus.last_bus) };
                }
                next = bus.after(bridge.address);
                continue;
            };
            next = bus.after(address);
            let Some(function) = bus.ready(address) else { continue };
            function.silence();
            if function.bridge().is_some() {
                let secondary = bus.number(&function)?;
                above.push(function).map_err(|_| PciError::TooManyBuses { most: bus.ecam.buses })?;
                next = Some(Address::first_of(secondary));
            }
        }
    }

    /// Gives the bus behind a bridge the next number, and closes the bridge's windows.
    fn number(&mut self, bridge: &Function) -> Result<u8, PciError> {
        let too_many = PciError::TooManyBuses { most: self.ecam.buses };
        let secondary = self.last_bus.checked_add(1).filter(|bus| u16::from(*bus) < self.ecam.buses).ok_or(too_many)?;
        self.last_bus = secondary;
        if let Some(registers) = bridge.bridge() {
            // SAFETY: the values are bus numbers that were given to no other bridge, and windows that are closed because their
            // base lies above their limit.
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
        }
        Ok(secondary)
    }

    /// Returns everything that is there, bridges too.
    pub fn functions(&self) -> impl Iterator<Item = Function> + '_ {
        (0..=self.last_bus).flat_map(|bus| self.on(bus))
    }

    /// Returns what is on one bus.
    fn on(&self, bus: u8) -> impl Iterator<Item = Function> + '_ {
        let places = core::iter::successors(Some(Address::first_of(bus)), |address| self.after(*address));
        places.filter_map(|address| self.function(address))
    }

    /// Returns the place behind this one on its bus.
    fn after(&self, Address { bus, device, function }: Address) -> Option<Address> {
        // A function 0 says whether its device has others.
        let first = Address { bus, device, function: 0 };
        let has_others = |first: Function| first.header().kind.read() & 0x80 != 0;
        if function < 7 && self.function(first).is_some_and(has_others) {
            return Some(Address { bus, device, function: function + 1 });
        }
        (device < 31).then_some(Address { bus, device: device + 1, function: 0 })
    }

    /// Returns the function at a place, if one answers there.
    fn function(&self, address: Address) -> Option<Function> {
        let Address { bus, device, function } = address;
        if u16::from(bus) >= self.ecam.buses {
            return None;
        }
        let offset = u64::from(bus) << Ecam::BUS | u64::from(device) << 15 | u64::from(function) << 12;
        let registers = NonNull::new(core::ptr::with_exposed_provenance_mut((self.ecam.base + offset) as usize))?;
        // SAFETY: the ECAM, which is mapped, has 4096 bytes for each function, whether it is there or not.
        let header: &Header = unsafe { registers.as_ref() };
        let (vendor, device, class) = (header.vendor.read(), header.device.read(), header.class.read());
        (vendor != u16::MAX).then_some(Function { address, vendor, device, class, registers })
    }

    /// Returns the same; first waits while it asks for time, as a card may after power-on.
    fn ready(&self, address: Address) -> Option<Function> {
        let asks = || self.function(address).is_some_and(|function| function.vendor == REQUEST_RETRY);
        wait(RESET_TIMEOUT, || !asks());
        self.function(address).filter(|function| function.vendor != REQUEST_RETRY)
    }

    /// Returns the bridges above a bus, from bus 0 down.
    fn above(&self, bus: u8) -> impl Iterator<Item = Function> + '_ {
        let mut at = 0;
        core::iter::from_fn(move || {
            if at == bus {
                return None;
            }
            // Numbers rise on the way down (`scan`), so that the way has an end.
            let (bridge, secondary) = self.on(at).find_map(|function| {
                let registers = function.bridge()?;
                let (secondary, last) = (registers.secondary.read(), registers.subordinate.read());
                (secondary > at && (secondary..=last).contains(&bus)).then_some((function, secondary))
            })?;
            at = secondary;
            Some(bridge)
        })
    }

    /// Resets the function at `address`, places its BAR0, and opens the bridges above it. Then turns on its memory space and bus
    /// mastering: from here on it reaches memory.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn enable(&mut self, address: Address) -> Result<Bar, PciError> {
        let function = self.function(address).ok_or(PciError::NoFunction)?;
        if function.bridge().is_some() {
            return Err(PciError::NoMemoryBar);
        }
        if function.is_on() {
            return Err(PciError::InUse);
        }
        self.reset(&function)?;
        let header = function.header();
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
        for bridge in self.above(address.bus) {
            bridge.open(Span { base, end }, flags & 0x8 != 0);
        }
        // SAFETY: the BAR is placed; what the card does with its right to reach memory is its driver's business.
        unsafe { header.command.write(header.command.read() | COMMAND_ON) };
        let base = NonNull::new(core::ptr::with_exposed_provenance_mut(base as usize)).ok_or(PciError::NoRoom { size })?;
        Ok(Bar { base, len: usize::try_from(size).map_err(|_| PciError::NoRoom { size })? })
    }

    /// Resets a function alone, or else with all that lies behind the bridge above it, and waits until it answers.
    ///
    /// Whoever started the machine may have set the sizes of packets for both ends of the link. The bridge keeps its own: a function with the
    /// shorter default would take the bridge's packets for malformed. A reset of the function alone keeps the payload, and not the
    /// size of reads (PCI Express Base Specification 5.0, 6.6.2). So all are as before afterwards, as Linux has it (`pci_restore_state`).
    fn reset(&self, function: &Function) -> Result<(), PciError> {
        let mut before: Vec<(Function, u16), FUNCTIONS> = Vec::new();
        let mut keep = |each: Function| each.sizes().is_none_or(|sizes| before.push((each, sizes)).is_ok());
        keep(*function);
        if !function.reset_alone() {
            let bridge = self.above(function.address.bus).last().ok_or(PciError::NoReset(function.address))?;
            // What is in use, and buses that would lose their numbers, are not reset.
            let is_kept = |each: &Function| each.is_on() || each.bridge().is_some();
            let registers = bridge.bridge().filter(|_| !self.on(function.address.bus).any(|each| is_kept(&each)));
            let registers = registers.ok_or(PciError::NoReset(function.address))?;
            println!("{} has no function-level reset: {} resets all behind it", function.address, bridge.address);
            // There is room for all functions of a device; those that one has beyond (ARI) begin with the default.
            let _ = self.on(function.address.bus).filter(|each| each.address != function.address).all(keep);
            // SAFETY: nothing behind the bridge is used.
            unsafe {
                let control = registers.control.read() & !SECONDARY_BUS_RESET;
                registers.control.write(control | SECONDARY_BUS_RESET);
                wait(BUS_RESET_TIME, || false);
                registers.control.write(control);
            }
        }
        wait(RESET_TIME, || false);
        if !wait(READY_TIME, || function.answers()) {
            println!("{} needs more than {} s after its reset", function.address, READY_TIME.as_secs());
            if !wait(RESET_TIMEOUT, || function.answers()) {
                return Err(PciError::NoAnswer);
            }
        }
        for (each, sizes) in before {
            if wait(READY_TIME, || each.answers()) {
                each.set_sizes(sizes);
            }
        }
        Ok(())
    }
}

impl Function {
    fn header(&self) -> &Header {
        // SAFETY: configuration space of the function, which is always there.
        unsafe { self.registers.as_ref() }
    }

    /// Returns the registers of a bridge.
    fn bridge(&self) -> Option<&BridgeHeader> {
        // SAFETY: a function of this kind has these registers at the start of its configuration space.
        (self.header().kind.read() & 0x7f == 1).then(|| unsafe { self.registers.cast().as_ref() })
    }

    /// Whether it answers: the vendor reads as all ones without an answer, or as [`REQUEST_RETRY`].
    fn answers(&self) -> bool {
        self.header().vendor.read() == self.vendor
    }

    /// Whether a program has it.
    fn is_on(&self) -> bool {
        self.bridge().is_none() && self.header().command.read() & MEMORY_SPACE != 0
    }

    /// Keeps the function, and what lies behind a bridge, from memory, and takes its virtual functions away: they would reach
    /// memory on their own.
    ///
    /// Bridges too: with bus mastering off a bridge hands on no request from behind it (PCI-to-PCI Bridge Architecture
    /// Specification 1.2, 3.2.5.3), so those above the card get it back when the card is enabled, and no others.
    fn silence(&self) {
        let header = self.header();
        // SAFETY: a function that reaches neither memory nor messages, and has no BAR, changes nothing of this program's.
        unsafe {
            header.command.write(header.command.read() & !(BUS_MASTER | MEMORY_SPACE));
            if let Some(virtual_functions) = self.virtual_functions() {
                virtual_functions.control.write(virtual_functions.control.read() & !VF_ENABLE);
            }
        }
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
        let mut at = self.header().capabilities.read() & 0xfc;
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

    /// Returns the extended capability for virtual functions, if the function has it.
    fn virtual_functions(&self) -> Option<&SriovCapability> {
        let mut at = 0x100;
        // The list has at most as many capabilities as fit.
        for _ in 0..480 {
            if !(0x100..=0x1000 - size_of::<SriovCapability>()).contains(&at) {
                break;
            }
            // SAFETY: `at` is a multiple of 4, and the structure ends before 4096 bytes.
            let place: &SriovCapability = unsafe { self.registers.byte_add(at).cast().as_ref() };
            match place.header.read() {
                // A function without such a list.
                0 | u32::MAX => break,
                header if header & 0xffff == CAPABILITY_SRIOV => return Some(place),
                header => at = (header >> 20 & 0xffc) as usize,
            }
        }
        None
    }

    /// Returns the PCI Express capability, if the function has it.
    fn express(&self) -> Option<&ExpressCapability> {
        // SAFETY: the capability of this number is that structure, and 4096 bytes are there for a function.
        self.capability(CAPABILITY_EXPRESS).map(|express| unsafe { express.cast().as_ref() })
    }

    /// Returns how long its payloads and its reads may be, as bits of the device control register.
    fn sizes(&self) -> Option<u16> {
        self.express().map(|express| express.device_control.read() & SIZES)
    }

    fn set_sizes(&self, sizes: u16) {
        let Some(express) = self.express() else { return };
        // SAFETY: the function was reset and is unused; it had these sizes before.
        unsafe { express.device_control.write(express.device_control.read() & !SIZES | sizes) };
    }

    /// Resets the function, if it can be reset alone. Returns whether it can.
    fn reset_alone(&self) -> bool {
        let Some(express) = self.express() else { return false };
        if express.device_capabilities.read() & FUNCTION_LEVEL_RESET == 0 {
            return false;
        }
        // Without an answer in this time the reset comes all the same.
        wait(RESET_TIME, || express.device_status.read() & TRANSACTIONS_PENDING == 0);
        // SAFETY: the function is unused: its BAR is not given out yet.
        unsafe { express.device_control.write(express.device_control.read() | INITIATE_RESET) };
        true
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
