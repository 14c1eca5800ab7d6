//! Pages of a queue or a key, as a command names them.

use crate::engine::memory::umem::UmemRange;

/// Where the pages of a queue or a key are.
#[derive(Clone, Debug)]
pub(crate) enum PageSource<'a> {
    /// In a list of the command: addresses of eight bytes in wire order (KLMs for an indirect key).
    Listed(&'a [u8]),
    /// In user memory.
    Umem(UmemRange),
}

impl PageSource<'_> {
    /// Returns the user memory object.
    pub(crate) fn umem(&self) -> Option<u32> {
        match self {
            Self::Listed(_) => None,
            Self::Umem(range) => Some(range.number()),
        }
    }
}
