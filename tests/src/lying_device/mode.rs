//! Bits of the first byte of an input.

/// Lies from the beginning; else the device comes up and gets its queues before the first.
pub(super) const FROM_THE_BEGINNING: u8 = 1;
/// The third queue pair is one of UC; else of UD.
pub(super) const UC: u8 = 2;
/// The driver is torn down with what there is; else each object is destroyed before.
pub(super) const KEPT: u8 = 4;
/// The port is an Ethernet port, with queues for frames; else an InfiniBand port.
pub(super) const ETHERNET: u8 = 8;
/// Completions have 128 bytes, if the driver has such; else 64.
#[cfg(feature = "large-completions")]
pub(super) const LARGE_COMPLETIONS: u8 = 16;
