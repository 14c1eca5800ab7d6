//! The defmt logger of the tests. It keeps the frames as they would go over a wire, and decodes them with the strings in the
//! executable.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, fs, mem};

use anyhow::{Context as _, Result};
use defmt_decoder::{DecodeError, Table};

/// Frames that are not decoded yet.
static FRAMES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static ENCODER: Mutex<defmt::Encoder> = Mutex::new(defmt::Encoder::new());
/// Held by the test that logs.
static ALONE: Mutex<()> = Mutex::new(());

/// Locks, also after a test has failed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(bytes: &[u8]) {
    lock(&FRAMES).extend_from_slice(bytes);
}

#[defmt::global_logger]
struct Frames;

#[expect(unsafe_code, reason = "a logger of defmt promises that frames do not mix")]
// SAFETY: one thread logs at a time: the one that has a `Log`.
unsafe impl defmt::Logger for Frames {
    fn acquire() {
        lock(&ENCODER).start_frame(keep);
    }

    unsafe fn flush() {}

    unsafe fn release() {
        lock(&ENCODER).end_frame(keep);
    }

    unsafe fn write(bytes: &[u8]) {
        lock(&ENCODER).write(bytes, keep);
    }
}

/// The log, for one test at a time.
pub struct Log {
    program: Vec<u8>,
    _alone: MutexGuard<'static, ()>,
}

impl Log {
    /// Creates an empty log. Waits until no other test has it.
    ///
    /// # Errors
    /// The program cannot read its own file.
    pub fn new() -> Result<Self> {
        let alone = lock(&ALONE);
        lock(&FRAMES).clear();
        let program = fs::read(env::current_exe()?)?;
        Ok(Self { program, _alone: alone })
    }

    /// Returns the lines since the last call, each with its level.
    ///
    /// # Errors
    /// The frames do not belong to the program, or the last one is not whole.
    pub fn lines(&self) -> Result<Vec<String>> {
        let frames = mem::take(&mut *lock(&FRAMES));
        let table = Table::parse(&self.program)?.context("no strings of a log in the program")?;
        let mut decoder = table.new_stream_decoder();
        decoder.received(&frames);
        let mut lines = Vec::new();
        loop {
            match decoder.decode() {
                Ok(frame) => lines.push(frame.display(false).to_string()),
                Err(DecodeError::UnexpectedEof) => return Ok(lines),
                Err(DecodeError::Malformed) => anyhow::bail!("malformed after {lines:#?}"),
            }
        }
    }
}
