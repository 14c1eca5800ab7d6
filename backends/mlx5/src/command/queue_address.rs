//! Where the device looks for the command queue.

/// The register with the lower half of the command queue's address. A reset clears it, while the health counter goes on and the
/// health buffer says nothing. Linux relies on its value too: `mlx5_set_nic_state` of `health.c` writes back what it reads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueAddress {
    /// Bits 31 to 12 of the address that the driver wrote.
    pub(super) page: u32,
    /// Whether a look at the registers has found it. A device that does not show it is not suspected.
    pub(super) was_seen: bool,
}
