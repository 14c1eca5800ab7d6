//! The frames of a stream.

use std::fmt;

/// Bytes of a length.
const LENGTH: usize = size_of::<u32>();

/// A length that no frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTooLong(pub usize);

impl fmt::Display for FrameTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a frame of {} bytes announced, {} at most are of the format of -netdev stream",
            self.0,
            FrameStream::MAX_LENGTH
        )
    }
}

impl std::error::Error for FrameTooLong {}

/// Takes a stream apart into its frames, in whatever pieces it comes: each follows its length, four bytes in network byte order, as
/// in QEMU's `net/stream.c`. It holds one frame at most.
///
/// ```
/// use bareverbs_serve::FrameStream;
///
/// let mut sent = Vec::new();
/// FrameStream::append(b"first", &mut sent);
/// FrameStream::append(b"second", &mut sent);
/// let (mut stream, mut frames) = (FrameStream::default(), Vec::new());
/// for mut piece in sent.chunks(7) {
///     while !piece.is_empty() {
///         frames.extend(stream.take(&mut piece)?);
///     }
/// }
/// assert_eq!(frames, [b"first".to_vec(), b"second".to_vec()]);
/// # Ok::<(), bareverbs_serve::FrameTooLong>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FrameStream {
    length: [u8; LENGTH],
    /// Bytes of the length that have come.
    have: usize,
    frame: Vec<u8>,
}

impl FrameStream {
    /// Maximum length of a frame, which is QEMU's (`NET_BUFSIZE`).
    pub const MAX_LENGTH: usize = 4096 + 65536;

    /// Takes bytes from the front of `bytes` up to the end of a frame. Returns the frame if it has ended.
    ///
    /// # Errors
    /// A length above [`Self::MAX_LENGTH`]. What follows is no stream of frames.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, FrameTooLong> {
        for place in self.length.iter_mut().skip(self.have) {
            let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
            (*place, *bytes) = (*first, rest);
            self.have += 1;
        }
        let len = u32::from_be_bytes(self.length) as usize;
        if len > Self::MAX_LENGTH {
            return Err(FrameTooLong(len));
        }
        let (part, rest) = bytes.split_at_checked(len - self.frame.len()).unwrap_or((bytes, &[]));
        if self.frame.is_empty() && !part.is_empty() {
            self.frame.reserve_exact(len);
        }
        self.frame.extend_from_slice(part);
        *bytes = rest;
        if self.frame.len() < len {
            return Ok(None);
        }
        self.have = 0;
        Ok(Some(std::mem::take(&mut self.frame)))
    }

    /// Returns how many bytes have come of a length and its frame, and how many both have, as far as that is known. `None`
    /// between two frames.
    pub fn begun(&self) -> Option<(usize, usize)> {
        match self.have {
            0 => None,
            LENGTH => Some((LENGTH + self.frame.len(), LENGTH + u32::from_be_bytes(self.length) as usize)),
            have => Some((have, LENGTH)),
        }
    }

    /// Appends a frame and the length before it.
    pub fn append(frame: &[u8], out: &mut Vec<u8>) {
        // None is so long that its length has more than 32 bits.
        out.extend((frame.len() as u32).to_be_bytes());
        out.extend(frame);
    }
}
