//! The UAR page: doorbells and BlueFlame.

use core::cell::Cell;

use bareverbs::platform::{Doorbell, Registers};
use bareverbs_mlx5_spec::{UAR_BLUEFLAME, UAR_PAGE, WQEBB};

use crate::error::Error;

/// First page of BAR0 that may be a UAR page: before it lie the initialization segment, the MSI-X table and its pending bits.
pub(crate) const FIRST_UAR_PAGE: usize = 4;

/// The doorbell register of one send queue.
///
/// Send queues of several cores may share a page only if the CPU writes eight bytes in one access. BlueFlame must be off: two
/// copies into one BlueFlame register must not interleave.
#[derive(Debug)]
pub(crate) struct SendDoorbell<D> {
    register: D,
    /// Words of half a BlueFlame register, 0 without BlueFlame.
    pub(crate) words: usize,
    at: Cell<usize>,
    /// Whether writes must be flushed.
    pub(crate) combining: bool,
}

impl<D: Doorbell> SendDoorbell<D> {
    /// Opens that of UAR page `uar`. `half` is the bytes of half a BlueFlame register, 0 without BlueFlame; `combining` says whether the
    /// page is mapped write-combining.
    pub(crate) fn open<R: Registers<Doorbell = D>>(
        registers: &R,
        uar: u32,
        half: usize,
        combining: bool,
    ) -> Result<Self, Error> {
        let words = half / 8;
        let register = registers.doorbell(uar as usize * UAR_PAGE + UAR_BLUEFLAME, (2 * words).max(1))?;
        Ok(Self { register, words, at: Cell::new(0), combining })
    }

    /// Rings the doorbell without BlueFlame. `control` is the first word of the last request, as stored in memory.
    #[inline(always)]
    pub(crate) fn ring(&self, control: u64) {
        self.register.write(0, control);
    }

    /// Writes word `index` of a request into the current BlueFlame half.
    pub(crate) fn copy(&self, index: usize, value: u64) {
        self.register.write(self.at.get().wrapping_add(index), value);
    }

    /// Writes block `block` of a request into the current BlueFlame half.
    #[inline(always)]
    pub(crate) fn copy_block(&self, block: u32, words: [u64; WQEBB / 8]) {
        let at = self.at.get().wrapping_add((block as usize).wrapping_mul(WQEBB / 8));
        for (index, word) in words.into_iter().enumerate() {
            self.register.write(at.wrapping_add(index), word);
        }
    }

    /// Switches to the other BlueFlame half.
    pub(crate) fn switch_half(&self) {
        if self.words != 0 {
            self.at.set(self.at.get() ^ self.words);
        }
    }
}
