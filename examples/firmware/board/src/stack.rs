//! How much of the stack a program has used at its deepest.

/// What unused bytes of the stack hold.
const PAINT: u64 = 0x5afe_57ac_5afe_57ac;
/// Bytes below the caller's frame that are left as they are: the painting itself runs there.
const MARGIN: usize = 1024;

unsafe extern "C" {
    static stack_bottom: u8;
    static stack_top: u8;
}

fn bottom() -> *const u64 {
    (&raw const stack_bottom).cast()
}

/// Returns the bytes of the stack.
pub fn size() -> usize {
    (&raw const stack_top).addr() - bottom().addr()
}

/// Fills what lies below the present frame.
#[inline(never)]
pub(crate) fn paint() {
    let frame = 0_u64;
    let end = (&raw const frame).addr().saturating_sub(MARGIN);
    let mut word = bottom().cast_mut();
    while word.addr() < end {
        // SAFETY: the word lies in the stack, at least `MARGIN` bytes below this frame; nothing uses it yet.
        unsafe {
            word.write_volatile(PAINT);
            word = word.add(1);
        }
    }
}

/// Returns the bytes between the top of the stack and the deepest word that was ever written.
pub fn used() -> usize {
    let mut word = bottom();
    // SAFETY: every word up to the top is memory of the stack; reading it changes nothing.
    while word.addr() < (&raw const stack_top).addr() && unsafe { word.read_volatile() } == PAINT {
        // SAFETY: still below the top.
        word = unsafe { word.add(1) };
    }
    (&raw const stack_top).addr() - word.addr()
}
