//! A ConnectX in a slot: found, its BAR placed, its interrupts set, handed to the driver.

use core::fmt;
use core::ptr::NonNull;

use bareverbs::platform::Machine;
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_mlx5_spec::{InitialSeg, Layout as _};
use bareverbs_mmio::{CpuFence, MappedBar, MappedMemory, PageRanges};
use heapless::Vec;

use crate::description::Span;
use crate::interrupts::{self, VECTORS};
use crate::pci::{Address, Bar, Bus, Function, PciError};
use crate::{Board, Timer, arch};

/// Mellanox, now NVIDIA.
const VENDOR: u16 = 0x15b3;
/// Classes of a port function: InfiniBand and Ethernet network controllers.
const CLASSES: [u16; 2] = [0x0207, 0x0200];

/// The driver on this machine, with an arena of `PAGES` pages.
pub type Card<const PAGES: usize> = Mlx5<Board, PAGES>;

/// Why there is no card to drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardError {
    /// No function of the vendor and class; these are there: address, vendor, device.
    NotFound(Vec<(Address, u16, u16), 8>),
    /// The bus, or the function's BAR.
    Pci(PciError),
    /// BAR0 is shorter than the initialization segment.
    BarTooSmall {
        /// Bytes of it.
        have: usize,
        /// Bytes of the segment.
        need: usize,
    },
}

impl fmt::Display for CardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(there) => {
                f.write_str("no ConnectX (vendor 15b3, class 0207 or 0200) in any slot; there are")?;
                there.iter().try_for_each(|(at, vendor, device)| write!(f, " {at} {vendor:04x}:{device:04x}"))
            }
            Self::Pci(error) => write!(f, "{error}"),
            Self::BarTooSmall { have, need } => {
                write!(f, "BAR0 has {have} bytes, the initialization segment alone has {need}: no mlx5 device")
            }
        }
    }
}

impl core::error::Error for CardError {}

impl From<PciError> for CardError {
    fn from(error: PciError) -> Self {
        Self::Pci(error)
    }
}

/// A ConnectX that answers in its BAR and may reach memory.
#[derive(Debug)]
pub struct Slot {
    function: Function,
    bar: Bar,
    /// Where BAR0 is mapped write-combining.
    combining: Option<NonNull<u8>>,
    vectors: usize,
}

impl Slot {
    /// Finds and resets the first ConnectX of the machine; once in the life of a program.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn find() -> Result<Self, CardError> {
        let mut bus = Bus::take()?;
        let wanted = |each: &Function| each.vendor == VENDOR && CLASSES.contains(&each.class);
        let Some(function) = bus.functions().find(wanted) else {
            let there = bus.functions().map(|each| (each.address, each.vendor, each.device));
            return Err(CardError::NotFound(there.take(8).collect()));
        };
        let mut bar = bus.enable(function.address)?;
        let need = InitialSeg::SIZE;
        if bar.len() < need {
            return Err(CardError::BarTooSmall { have: bar.len(), need });
        }
        let messages: Vec<_, VECTORS> = (0..VECTORS).map_while(interrupts::message).collect();
        // Without them a program polls.
        let vectors = function.enable_msix(&mut bar, &messages).unwrap_or(0);
        let span = Span::of(bar.base().addr().get() as u64, bar.len() as u64);
        let combining = arch::map_combining(span);
        let combining = combining.and_then(|at| NonNull::new(core::ptr::with_exposed_provenance_mut(at as usize)));
        Ok(Self { function, bar, combining, vectors })
    }

    /// Returns the PCI address.
    pub const fn address(&self) -> Address {
        self.function.address
    }

    /// Its PCI device id.
    pub const fn device(&self) -> u16 {
        self.function.device
    }

    /// Returns BAR0: placed, page-aligned and mapped uncached.
    pub const fn bar(&self) -> NonNull<u8> {
        self.bar.base()
    }

    /// Returns the bytes of BAR0.
    pub const fn bar_len(&self) -> usize {
        self.bar.len()
    }

    /// Returns the number of MSI-X vectors that reach this processor.
    pub const fn vectors(&self) -> usize {
        self.vectors
    }

    /// Returns the options for the driver: BlueFlame, if doorbells are mapped write-combining.
    pub const fn config(&self) -> Config {
        Config { blue_flame: self.combining.is_some(), ..Config::DEFAULT }
    }

    /// Returns the machine for the driver with [`Slot::config`]. `arena` is [`Card::ARENA`] bytes; the card's firmware gets its memory from `pages`.
    pub fn machine(self, arena: MappedMemory, pages: PageRanges) -> Machine<Board> {
        // SAFETY: BAR0 was placed at `base`, page-aligned because it is a megabyte or more. The page tables map these addresses
        // uncached (on RISC-V: the physical memory attributes do). `self` owns the BAR. The MSI-X table, which lies in it too,
        // was written before and is not accessed any more.
        let registers = unsafe { MappedBar::new(self.bar.base(), self.bar.len()) };
        let Some(combining) = self.combining else {
            return Machine { registers, memory: arena, pages, fence: CpuFence::UNCACHED, clock: Timer };
        };
        // SAFETY: `map_combining` mapped the same BAR there, for good.
        let registers = unsafe { registers.with_combining_doorbells(combining) };
        Machine { registers, memory: arena, pages, fence: CpuFence::WRITE_COMBINING, clock: Timer }
    }
}
