//! The serial line, taken apart: lines of text, and frames of the log.

/// What the serial line brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A line, without its end.
    Text(String),
    /// The bytes between two zeros.
    Frame(Vec<u8>),
}

/// The present state of the line.
#[derive(Debug, Default)]
pub(crate) struct Line {
    text: Vec<u8>,
    /// While a frame comes.
    frame: Option<Vec<u8>>,
}

impl Line {
    /// Takes the next byte, and returns the piece that it ends.
    pub(crate) fn take(&mut self, byte: u8) -> Option<Piece> {
        match (&mut self.frame, byte) {
            (None, 0) => {
                self.frame = Some(Vec::new());
                None
            }
            (None, b'\n') => Some(self.line()),
            (None, byte) => {
                self.text.push(byte);
                None
            }
            // The encoder begins its first frame with a zero of its own.
            (Some(frame), 0) if frame.is_empty() => None,
            (Some(_), 0) => self.frame.take().map(Piece::Frame),
            (Some(frame), byte) => {
                frame.push(byte);
                None
            }
        }
    }

    /// Returns text that no line end followed.
    pub(crate) fn rest(&mut self) -> Option<Piece> {
        (!self.text.is_empty()).then(|| self.line())
    }

    fn line(&mut self) -> Piece {
        let text = std::mem::take(&mut self.text);
        Piece::Text(String::from_utf8_lossy(&text).trim_end_matches('\r').to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &[u8]) -> Vec<Piece> {
        let mut line = Line::default();
        let mut pieces: Vec<_> = bytes.iter().filter_map(|byte| line.take(*byte)).collect();
        pieces.extend(line.rest());
        pieces
    }

    #[test]
    fn text_and_frames_are_told_apart() {
        let text = |text: &str| Piece::Text(text.into());
        assert_eq!(pieces(b"one\ntwo\r\n"), [text("one"), text("two")]);
        assert_eq!(pieces(b"a\n\0\0\x01\n\x02\0b\n"), [text("a"), Piece::Frame(vec![1, 10, 2]), text("b")]);
        // A frame in the middle of a line does not cut it.
        assert_eq!(pieces(b"he\0\x07\0re\nend"), [Piece::Frame(vec![7]), text("here"), text("end")]);
    }
}
