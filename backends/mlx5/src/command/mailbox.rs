//! Chains of mailbox blocks: where a command's input and output lie beyond its first 16 bytes.

use bareverbs::{DmaMemory, OutOfRange};
use bareverbs_mlx5_spec::{CmdIfBox, MAILBOX, MAILBOX_DATA, ViewMut};

use crate::dma::arena::{PAGE, Run};

/// Bytes from block to block: a block lies at a multiple of 1024.
const STRIDE: usize = 1024;
/// Blocks in a page.
pub(crate) const BLOCKS_PER_PAGE: usize = PAGE / STRIDE;

/// Mailbox blocks in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    at: usize,
    blocks: usize,
}

impl Chain {
    /// No blocks.
    pub(crate) const EMPTY: Self = Self { at: 0, blocks: 0 };

    /// All blocks of a run.
    pub(crate) const fn new(run: Run) -> Self {
        Self { at: run.at(), blocks: run.bytes() / STRIDE }
    }

    /// The first `blocks` and the rest.
    pub(crate) const fn split(self, blocks: usize) -> (Self, Self) {
        let first = if blocks < self.blocks { blocks } else { self.blocks };
        (Self { at: self.at, blocks: first }, Self { at: self.at + first * STRIDE, blocks: self.blocks - first })
    }

    /// Number of blocks.
    pub(crate) const fn blocks(self) -> usize {
        self.blocks
    }

    /// Byte offset of the first block.
    pub(crate) const fn at(self) -> usize {
        self.at
    }

    /// Pages that `blocks` blocks need.
    pub(crate) const fn pages(blocks: usize) -> u32 {
        blocks.div_ceil(BLOCKS_PER_PAGE) as u32
    }

    /// Blocks for `len` bytes of data.
    pub(crate) const fn blocks_for(len: usize) -> usize {
        len.div_ceil(MAILBOX_DATA)
    }

    /// Clears the first `blocks` blocks, links them and numbers them. `addr` is the device address of the chain.
    pub(crate) fn link(self, memory: &mut impl DmaMemory, addr: u64, blocks: usize, token: u8) -> Result<(), OutOfRange> {
        for block in 0..blocks.min(self.blocks) {
            let at = self.at + block * STRIDE;
            for word in (0..MAILBOX).step_by(64) {
                memory.store(at + word, &[0; 8])?;
            }
            let next = if block + 1 < blocks { addr.wrapping_add(((block + 1) * STRIDE) as u64) } else { 0 };
            let mut control = [0; MAILBOX];
            ViewMut::<CmdIfBox>::of(&mut control)
                .set(CmdIfBox::NEXT_POINTER_63_32, (next >> 32) as u32)
                .set(CmdIfBox::NEXT_POINTER_31_10, next as u32 >> 10)
                .set(CmdIfBox::BLOCK_NUMBER, block as u32)
                .set(CmdIfBox::TOKEN, u32::from(token));
            memory.write(at + MAILBOX_DATA, control.get(MAILBOX_DATA..).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Copies bytes to byte `offset` of the chain's data.
    pub(crate) fn write(self, memory: &mut impl DmaMemory, offset: usize, mut from: &[u8]) -> Result<(), OutOfRange> {
        let mut offset = offset;
        while !from.is_empty() {
            let (at, room) = self.place(offset, from.len())?;
            let (now, later) = from.split_at_checked(room).unwrap_or((from, &[]));
            memory.write(at, now)?;
            offset += now.len();
            from = later;
        }
        Ok(())
    }

    /// Copies bytes from byte `offset` of the chain's data.
    pub(crate) fn read(self, memory: &impl DmaMemory, offset: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let mut done = 0;
        while done < into.len() {
            let (at, room) = self.place(offset + done, into.len() - done)?;
            memory.read(at, into.get_mut(done..done + room).unwrap_or_default())?;
            done += room;
        }
        Ok(())
    }

    /// Where byte `offset` of the data lies, and how many of `len` bytes follow in the same block.
    fn place(self, offset: usize, len: usize) -> Result<(usize, usize), OutOfRange> {
        let (block, within) = (offset / MAILBOX_DATA, offset % MAILBOX_DATA);
        if block >= self.blocks {
            return Err(OutOfRange { offset, len });
        }
        Ok((self.at + block * STRIDE + within, len.min(MAILBOX_DATA - within)))
    }

    /// Signs the first `blocks` blocks: the control bytes, then all bytes.
    pub(crate) fn sign(self, memory: &mut impl DmaMemory, blocks: usize) -> Result<(), OutOfRange> {
        for block in 0..blocks.min(self.blocks) {
            let at = self.at + block * STRIDE;
            let control = !xor(memory, at + MAILBOX_DATA, MAILBOX - 2 - MAILBOX_DATA)?;
            memory.write(at + MAILBOX - 2, &[control])?;
            let all = !xor(memory, at, MAILBOX - 1)?;
            memory.write(at + MAILBOX - 1, &[all])?;
        }
        Ok(())
    }

    /// Whether the signatures of the first `blocks` blocks are right.
    pub(crate) fn verify(self, memory: &impl DmaMemory, blocks: usize) -> Result<bool, OutOfRange> {
        for block in 0..blocks.min(self.blocks) {
            let at = self.at + block * STRIDE;
            let control = xor(memory, at + MAILBOX_DATA, MAILBOX - 1 - MAILBOX_DATA)?;
            if control != 0xff || xor(memory, at, MAILBOX)? != 0xff {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Exclusive or of `len` bytes: what all signatures of the command interface are made of.
pub(crate) fn xor(memory: &impl DmaMemory, at: usize, len: usize) -> Result<u8, OutOfRange> {
    let mut sum = 0;
    let mut piece = [0; 64];
    for start in (0..len).step_by(piece.len()) {
        let bytes = piece.get_mut(..(len - start).min(64)).unwrap_or_default();
        memory.read(at + start, bytes)?;
        sum = bytes.iter().fold(sum, |sum, byte| sum ^ byte);
    }
    Ok(sum)
}
