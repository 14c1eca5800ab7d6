//! Chains of mailbox blocks: where a command's input and output lie beyond its first 16 bytes.

use bareverbs::platform::{DmaMemory, OutOfRange};
use bareverbs_mlx5_spec::{CmdIfBox, MAILBOX, MAILBOX_DATA, ViewMut};

use crate::dma::arena::{Arena, PAGE, PageUse};

/// Bytes from block to block: a block lies at a multiple of 1024.
const STRIDE: usize = 1024;
const BLOCKS_PER_PAGE: usize = PAGE / STRIDE;

/// A chain of mailbox blocks, in the pages with one use from the lowest to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MailboxChain {
    pub(super) pages: PageUse,
    /// Blocks of these pages before the chain.
    pub(super) first: usize,
    pub(super) blocks: usize,
}

impl MailboxChain {
    pub(crate) const fn pages(blocks: usize) -> u32 {
        blocks.div_ceil(BLOCKS_PER_PAGE) as u32
    }

    pub(crate) const fn blocks_for(len: usize) -> usize {
        len.div_ceil(MAILBOX_DATA)
    }

    fn offsets(self, arena: &Arena) -> impl Iterator<Item = usize> {
        let blocks = |page| (0..BLOCKS_PER_PAGE).map(move |block| page * PAGE + block * STRIDE);
        arena.pages(self.pages).flat_map(blocks).skip(self.first).take(self.blocks)
    }

    /// Returns the device address of the first block, 0 if there is none.
    pub(crate) fn addr(self, arena: &Arena) -> u64 {
        self.offsets(arena).next().map_or(0, |at| arena.addr(at))
    }

    /// Writes the blocks: `data` by the index of its eight bytes, with numbers, links and signatures.
    pub(crate) fn write(
        self,
        memory: &mut impl DmaMemory,
        arena: &Arena,
        token: u8,
        data: &mut dyn FnMut(usize) -> [u8; 8],
    ) -> Result<(), OutOfRange> {
        let mut offsets = self.offsets(arena);
        let mut following = offsets.next();
        let (mut number, mut index) = (0, 0);
        while let Some(at) = following {
            following = offsets.next();
            let next = following.map_or(0, |next| arena.addr(next));
            let mut block = [0; MAILBOX];
            for place in block.as_chunks_mut().0.iter_mut().take(MAILBOX_DATA / 8) {
                *place = data(index);
                index += 1;
            }
            ViewMut::<CmdIfBox>::of(&mut block)
                .set(CmdIfBox::NEXT_POINTER_63_32, (next >> 32) as u32)
                .set(CmdIfBox::NEXT_POINTER_31_10, next as u32 >> 10)
                .set(CmdIfBox::BLOCK_NUMBER, number)
                .set(CmdIfBox::TOKEN, u32::from(token));
            let control = !xor_of(block.get(MAILBOX_DATA..).unwrap_or_default());
            ViewMut::<CmdIfBox>::of(&mut block).set(CmdIfBox::CTRL_SIGNATURE, u32::from(control));
            let all = !xor_of(&block);
            ViewMut::<CmdIfBox>::of(&mut block).set(CmdIfBox::SIGNATURE, u32::from(all));
            memory.write(at, &block)?;
            number += 1;
        }
        Ok(())
    }

    /// Copies the data of the first blocks.
    pub(crate) fn read(self, memory: &impl DmaMemory, arena: &Arena, into: &mut [u8]) -> Result<(), OutOfRange> {
        let (len, size) = (into.len(), memory.len());
        let mut offsets = self.offsets(arena);
        for chunk in into.chunks_mut(MAILBOX_DATA) {
            let at = offsets.next().ok_or(OutOfRange { offset: 0, len, size })?;
            memory.read(at, chunk)?;
        }
        Ok(())
    }
}

/// Returns the exclusive or of bytes, from which all signatures of the command interface are computed.
pub(crate) fn xor_of(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each length up to beyond the longest list of pages: blocks of 512 bytes, four in a page.
    #[test]
    fn a_chain_has_as_many_blocks_as_its_bytes_fill() {
        let (mut blocks, mut pages) = (0, 0);
        for len in 0..=70_000 {
            if len > blocks * 512 {
                blocks += 1;
            }
            if blocks > pages * 4 {
                pages += 1;
            }
            assert_eq!((MailboxChain::blocks_for(len), MailboxChain::pages(blocks) as usize), (blocks, pages), "{len}");
        }
    }
}
