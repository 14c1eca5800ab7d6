//! Errors as text.

use core::ffi::c_char;
use core::fmt::{self, Write};

use crate::call::on_device;
use crate::device::bv_device;

/// Bytes of a caller's buffer that are not written yet. Those that do not fit are counted only.
struct Buffer {
    next: *mut u8,
    room: usize,
    length: usize,
}

impl Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.length = self.length.saturating_add(text.len());
        for byte in text.bytes().take(self.room) {
            // SAFETY: there is room for it.
            unsafe {
                self.next.write(byte);
                self.next = self.next.add(1);
            }
        }
        self.room = self.room.saturating_sub(text.len());
        Ok(())
    }
}

/// Writes the text of the last call on the device that failed, with its facts, and a NUL behind it, into `size` bytes. Empty if
/// none failed. Returns the bytes of the whole text without the NUL, as snprintf does: a text that is longer than the buffer is
/// cut. Before bv_init and during another call there is no text.
///
/// # Safety
/// `device` is of bv_init or NULL; `text` is `size` writable bytes, or NULL with `size` 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_strerror_detail(device: *mut bv_device, text: *mut c_char, size: usize) -> usize {
    // The NUL has a place of its own.
    let (next, room) =
        if text.is_null() { (core::ptr::NonNull::dangling().as_ptr(), 0) } else { (text.cast(), size.saturating_sub(1)) };
    let mut buffer = Buffer { next, room, length: 0 };
    let work = |_, state: &mut crate::device::State| {
        if let Some(failure) = &state.failure {
            let _ = write!(buffer, "{failure}");
        }
        Ok(0)
    };
    // SAFETY: as promised.
    let _ = unsafe { on_device(device, work) };
    if !text.is_null() && size != 0 {
        // SAFETY: at most `size - 1` bytes were written before.
        unsafe { buffer.next.write(0) };
    }
    buffer.length
}
