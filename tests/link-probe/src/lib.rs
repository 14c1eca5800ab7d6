//! Core and driver linked as firmware links them: no std, no alloc, a panic handler of its own.
//!
//! `tests/link-probe/run` builds this archive, links what it exports, and counts what is left.
#![no_std]

#[cfg(feature = "leak-alloc")]
extern crate alloc;
#[cfg(feature = "leak-std")]
extern crate std;

#[cfg(feature = "whole")]
mod control_path;
#[cfg(feature = "data-path")]
mod data_path;
#[cfg(feature = "datagrams")]
mod datagrams;
#[cfg(feature = "forced-panic")]
mod forced_panic;
#[cfg(feature = "sender")]
mod machine;
#[cfg(feature = "roce")]
mod roce;
#[cfg(feature = "sender")]
mod sender;
#[cfg(feature = "sender-receiver")]
mod sender_receiver;
#[cfg(feature = "whole")]
mod tables;
#[cfg(feature = "xrc")]
mod xrc;

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Uses the heap, which must not link.
#[cfg(feature = "leak-alloc")]
#[unsafe(no_mangle)]
pub extern "C" fn probe_leak(value: u8) -> *mut u8 {
    alloc::boxed::Box::into_raw(alloc::boxed::Box::new(value))
}
