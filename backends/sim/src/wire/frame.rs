//! The bytes of a frame on their way.

use std::ops::Deref;
use std::sync::Arc;

/// A frame on its way: LRH to ICRC, or an Ethernet frame without check sequence.
///
/// A frame for a group is the same bytes for all who get it. No copy is made, neither for a port with room nor for one without:
/// the time that a frame takes of the switch does not grow with its length.
#[derive(Clone, Debug)]
pub enum Frame {
    /// For one port.
    Own(Vec<u8>),
    /// For each port of a group.
    Shared(Arc<Vec<u8>>),
}

impl Frame {
    /// Creates a frame whose clones share its bytes.
    pub fn shared(bytes: Vec<u8>) -> Self {
        Self::Shared(Arc::new(bytes))
    }

    fn bytes(&self) -> &Vec<u8> {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }

    /// Returns the buffer, if nobody else has the frame.
    pub(crate) fn into_buffer(self) -> Option<Vec<u8>> {
        match self {
            Self::Own(bytes) => Some(bytes),
            Self::Shared(bytes) => Arc::into_inner(bytes),
        }
    }

    /// Returns the bytes, which are copied if somebody else has the frame too.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => Arc::unwrap_or_clone(bytes),
        }
    }

    /// Returns the bytes of memory that it keeps in use.
    pub fn capacity(&self) -> usize {
        self.bytes().capacity()
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl PartialEq for Frame {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Frame {}
