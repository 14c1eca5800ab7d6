//! The log of the driver and of the program, as defmt frames on the serial line.

use core::sync::atomic::{AtomicBool, Ordering};

use bareverbs::platform::Clock as _;
use spin::Mutex;

use crate::{Timer, arch, console};

/// Whether a frame is being written.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Whether interrupts came through before it.
static CAME_THROUGH: AtomicBool = AtomicBool::new(false);
static ENCODER: Mutex<defmt::Encoder> = Mutex::new(defmt::Encoder::new());

defmt::timestamp!("{=u64:us}", Timer.now().as_nanos() / 1000);

#[defmt::global_logger]
struct SerialLine;

// SAFETY: one caller at a time writes a frame. There is one processor, interrupts are masked until the end of the frame, and
// `acquire` within a frame does not return.
unsafe impl defmt::Logger for SerialLine {
    fn acquire() {
        let came_through = arch::hold_interrupts();
        assert!(!OPEN.swap(true, Ordering::Acquire), "a log line inside of another");
        CAME_THROUGH.store(came_through, Ordering::Relaxed);
        // From text to frames.
        console::send(&[0]);
        ENCODER.lock().start_frame(console::send);
    }

    unsafe fn flush() {
        // The serial line has taken every byte when `send` returns.
    }

    unsafe fn release() {
        // The end of a frame is a zero, which is also the way back to text.
        ENCODER.lock().end_frame(console::send);
        let came_through = CAME_THROUGH.load(Ordering::Relaxed);
        OPEN.store(false, Ordering::Release);
        if came_through {
            arch::let_interrupts_through();
        }
    }

    unsafe fn write(bytes: &[u8]) {
        ENCODER.lock().write(bytes, console::send);
    }
}
