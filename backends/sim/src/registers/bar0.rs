//! Address map of BAR0. The initialization segment is at its start.

/// Bytes of BAR0.
pub const BAR0_SIZE: u64 = 32 << 20;
/// Byte of BAR0 where the MSI-X table begins.
pub const MSIX_TABLE: usize = 0x2000;
/// Byte of BAR0 where the MSI-X pending bits begin.
pub const MSIX_PENDING: usize = 0x3000;
/// First UAR page that is allocated: those before hold the initialization segment and the MSI-X table.
pub(crate) const FIRST_UAR: u32 = 8;
/// Bytes of device memory. Commands and keys name a byte of it by its place in BAR0.
pub(crate) const DEVICE_MEMORY_SIZE: u64 = 256 << 10;
/// Byte of BAR0 where device memory begins.
pub(crate) const DEVICE_MEMORY_START: u64 = 31 << 20;
