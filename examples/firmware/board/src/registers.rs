//! Registers at an address of the machine.

/// Returns the registers at an address.
///
/// # Safety
/// A block `T` of registers is there on every machine of this kind, mapped uncached.
pub(crate) unsafe fn registers<T>(address: usize) -> &'static T {
    // SAFETY: promised by the caller; the start-up code maps every address to itself, registers uncached.
    unsafe { &*core::ptr::with_exposed_provenance(address) }
}
