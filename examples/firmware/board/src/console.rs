//! The serial line: lines of text out and in.
//!
//! With the feature `defmt` the log goes out on the same line: a byte of zeros, a frame, a byte of zeros. Neither text nor
//! frames have zeros in them, so that the host can distinguish them.

use core::fmt::{self, Write};
use core::time::Duration;

use bareverbs::platform::Clock as _;
use heapless::String;
use spin::Mutex;

use crate::machine::{UART, Uart};
use crate::{Timer, interrupts};

static LINE: Mutex<Uart> = Mutex::new(UART);

struct Text<'a>(&'a mut Uart);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // A zero would begin a frame.
        text.bytes().filter(|byte| *byte != 0).for_each(|byte| self.0.put(byte));
        Ok(())
    }
}

/// Sets up the serial line.
pub(crate) fn start() {
    LINE.lock().start();
}

/// Goes on at the serial line that the machine's description names.
pub(crate) fn move_to(address: u64) {
    let mut line = LINE.lock();
    line.move_to(address as usize);
    line.start();
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => { $crate::console::print(format_args!("{}\n", format_args!($($argument)*))) };
}

/// Prints text; [`println!`] is the usual way.
pub fn print(text: fmt::Arguments<'_>) {
    // The serial line takes every byte. A handler that prints must not find the line taken.
    interrupts::held(|| {
        let _ = Text(&mut LINE.lock()).write_fmt(text);
    });
}

/// Sends bytes as they are; with interrupts held back.
#[cfg(feature = "defmt")]
pub(crate) fn send(bytes: &[u8]) {
    let mut line = LINE.lock();
    bytes.iter().for_each(|byte| line.put(*byte));
}

/// Frees the console from any holder: for the last words of a program that does not go on.
pub(crate) fn take_by_force() {
    // SAFETY: one processor, and what held the lock never runs again.
    unsafe { LINE.force_unlock() };
}

/// Why no line could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// None came in that time.
    TimedOut(Duration),
    /// It was longer than this many bytes.
    TooLong(usize),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(time) => write!(f, "no line came in {} s", time.as_secs()),
            Self::TooLong(most) => write!(f, "the line is longer than {most} bytes"),
        }
    }
}

impl core::error::Error for ReadError {}

/// Returns the next line of the serial line, without its end.
///
/// # Errors
/// [`ReadError`] if none came in `timeout`, or a longer one than `N` bytes.
pub fn read_line<const N: usize>(timeout: Duration) -> Result<String<N>, ReadError> {
    let deadline = Timer.now().after(timeout);
    let mut line = String::new();
    let mut fits = true;
    while Timer.now() < deadline {
        match interrupts::held(|| LINE.lock().get()) {
            None => core::hint::spin_loop(),
            Some(b'\r' | b'\n') if line.is_empty() && fits => {}
            Some(b'\r' | b'\n') => return if fits { Ok(line) } else { Err(ReadError::TooLong(N)) },
            Some(byte) => fits = fits && line.push(char::from(byte)).is_ok(),
        }
    }
    Err(ReadError::TimedOut(timeout))
}
