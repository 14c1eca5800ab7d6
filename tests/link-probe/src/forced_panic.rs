//! A function that can panic, for the probe to find.

/// Reads at an index that the caller chooses.
#[unsafe(no_mangle)]
pub extern "C" fn probe_forced_panic(bytes: &[u8; 4], index: usize) -> u8 {
    bytes[index]
}
