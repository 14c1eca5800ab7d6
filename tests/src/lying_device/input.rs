//! The bytes that decide what happens, read one after the other.

/// Bytes of an input; after its end, `None` or zeros.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next byte, if there is one.
    pub(super) fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    pub(super) fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(super) fn dword(&mut self) -> u32 {
        u32::from(self.word()) | u32::from(self.word()) << 16
    }

    /// Returns a number below `end`, 0 if that is 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()).checked_rem(end).unwrap_or(0)
    }
}
