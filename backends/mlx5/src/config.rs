//! Options of a bring-up.

use core::time::Duration;

/// Whether the driver drives Ethernet ports.
pub(crate) const ROCE: bool = cfg!(feature = "roce");

/// Bytes of an entry of a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum CqeSize {
    /// 64 bytes, the default.
    #[default]
    Bytes64,
    /// 128 bytes, of which the first half is unused, for machines whose cache lines have 128 bytes; Linux does so there. The device then writes no entry into a line from which the CPU is reading another.
    #[cfg(feature = "large-completions")]
    Bytes128,
}

impl CqeSize {
    /// Returns log2 of the blocks of 64 bytes: 0, as the compiler knows, without the feature.
    #[inline(always)]
    pub(crate) const fn log_blocks(self) -> u32 {
        self as u32
    }

    #[inline(always)]
    pub(crate) const fn blocks(self) -> u32 {
        1 << self.log_blocks()
    }
}

/// Options of a bring-up. [`Config::DEFAULT`] suits a physical function that nothing else drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Config {
    /// Timeout for the firmware's boot. A device whose registers read as all ones has this time too, since it may be in a reset.
    pub boot_timeout: Duration,
    /// Timeout for the initialization after the command queue is set. A card may tell a longer one, up to ten minutes.
    pub init_timeout: Duration,
    /// Timeout of a command. A card may tell a longer one, up to ten minutes.
    pub command_timeout: Duration,
    /// Timeout of a teardown for the firmware to return one more page.
    pub reclaim_timeout: Duration,
    /// Event queues for completions, from 1 to 8; completion queues are assigned to them in turn.
    pub completion_vectors: u8,
    /// Entries of the event queue for asynchronous events, at least: the next power of two, from 64 to 65,536.
    pub async_events: u32,
    /// Entries of the event queue for page requests, at least: the next power of two, from 64 to 65,536.
    pub page_events: u32,
    /// Entries of each event queue for completions, at least: the next power of two, from 64 to 65,536.
    pub completion_events: u32,
    /// Maximum number of pages that the firmware gets, if their source has that many: a device that asks for any number would take
    /// the memory of the machine, and a source may take seconds to map it.
    pub firmware_pages: u32,
    /// MSI-X vector of the first two event queues; completion event queue n takes the n-th vector after it.
    pub first_vector: u16,
    /// Whether doorbells are mapped write-combining: short single requests then go through the BlueFlame registers, if the
    /// device has them, and the fence's `flush` follows each doorbell. Must be off for doorbells that are mapped uncached, whose
    /// eight-byte writes a BlueFlame register does not put together.
    pub blue_flame: bool,
    /// MTU of an Ethernet port in bytes, as that of a network interface: of a frame what follows its header. The payload of packets is
    /// the greatest of 256 to 4096 bytes that leaves 96 bytes for headers: 1024 of 1500, 4096 from 4192 on. Both ends and the switches
    /// between them must have it. A port with a lower maximum has that; a virtual function has that of its card.
    pub ethernet_mtu: u16,
    /// Bytes of each entry of the completion queues. Those of the queues for frames have 64.
    pub cqe_size: CqeSize,
    /// Whether the function is a virtual one, which may set neither the host's byte order nor MTU and state of an Ethernet port.
    pub virtual_function: bool,
}

impl Config {
    /// The times are those of Linux (`drivers/net/ethernet/mellanox/mlx5/core/lib/tout.c`). The firmware gets 1 GiB at most, twenty
    /// times what a ConnectX-4 Lx asks for.
    pub const DEFAULT: Self = Self {
        boot_timeout: Duration::from_secs(120),
        init_timeout: Duration::from_secs(2),
        command_timeout: Duration::from_secs(60),
        reclaim_timeout: Duration::from_secs(5),
        completion_vectors: 1,
        async_events: 256,
        page_events: 64,
        completion_events: 256,
        firmware_pages: 1 << 18,
        first_vector: 0,
        blue_flame: false,
        ethernet_mtu: 1500,
        cqe_size: CqeSize::Bytes64,
        virtual_function: false,
    };
}
