//! Where the bytes to decode come from: the command line, a file, standard input; as hexadecimal text or as they are.

use std::fmt;
use std::io::Read;
use std::path::Path;

/// Why there are no bytes.
#[derive(Debug)]
pub enum InputError {
    /// The file cannot be read.
    Read {
        /// Its name.
        name: String,
        /// Why.
        cause: std::io::Error,
    },
    /// A character that is no hexadecimal digit.
    NotHex {
        /// The character.
        character: char,
        /// Line, from 1.
        line: usize,
    },
    /// A byte with one digit only.
    OddDigits {
        /// Number of digits.
        digits: usize,
    },
    /// No bytes at all.
    Empty,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { name, cause } => write!(f, "{name}: {cause}"),
            Self::NotHex { character, line } => write!(f, "line {line}: {character:?} is not a hexadecimal digit"),
            Self::OddDigits { digits } => write!(f, "{digits} hexadecimal digits are not whole bytes"),
            Self::Empty => f.write_str("no bytes to decode"),
        }
    }
}

impl std::error::Error for InputError {}

/// Reads bytes from standard input to its end.
pub fn from_stdin(raw: bool) -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|cause| InputError::Read { name: "standard input".into(), cause })?;
    from_bytes(bytes, raw)
}

/// Reads a file: hexadecimal text if it is text, else its bytes as they are (always, if `raw`).
pub fn from_file(path: &Path, raw: bool) -> Result<Vec<u8>, InputError> {
    let bytes = std::fs::read(path).map_err(|cause| InputError::Read { name: path.display().to_string(), cause })?;
    from_bytes(bytes, raw)
}

fn from_bytes(bytes: Vec<u8>, raw: bool) -> Result<Vec<u8>, InputError> {
    if bytes.is_empty() {
        return Err(InputError::Empty);
    }
    let is_text = bytes.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    match std::str::from_utf8(&bytes) {
        Ok(text) if !raw && is_text => from_hex(text),
        _ => Ok(bytes),
    }
}

/// Bytes from hexadecimal text. Digits may be grouped with blanks, commas, colons and underscores, and begin with `0x`.
/// `#` starts a comment. Dumps of `xxd` and `hexdump -C`, and of kernel logs (`00000010: …`), are understood.
pub fn from_hex(text: &str) -> Result<Vec<u8>, InputError> {
    let mut digits = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for word in dump_line(line).split([' ', '\t', '\r', ',', ':', '_', '\u{b}', '\u{c}']) {
            let word = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")).unwrap_or(word);
            for character in word.chars() {
                let digit = character.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                digits.push(digit.ok_or(InputError::NotHex { character, line: at + 1 })?);
            }
        }
    }
    if digits.is_empty() {
        return Err(InputError::Empty);
    }
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(InputError::OddDigits { digits: digits.len() });
    }
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// The part of a line that holds bytes.
fn dump_line(line: &str) -> &str {
    let line = line.split('#').next().unwrap_or_default().trim();
    let is_offset = |text: &str| (4..=16).contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit());
    if let Some((offset, rest)) = line.split_once(": ")
        && is_offset(offset.rsplit(' ').next().unwrap_or_default())
    {
        // `xxd` sets the characters after the bytes, two blanks apart.
        return rest.trim_start().split("  ").next().unwrap_or_default();
    }
    match line.split_once('|') {
        Some((bytes, _)) => match bytes.split_once("  ") {
            Some((offset, rest)) if is_offset(offset) => rest,
            _ => bytes,
        },
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_however_they_are_grouped() {
        for text in
            ["00010aff", "0x00, 0x01, 0x0a, 0xff", "00:01:0A:FF", "0x00010aff", "0001 0aff # SEND\n", "\n00\n01 0a\tff\r\n"]
        {
            assert_eq!(from_hex(text).unwrap(), [0, 1, 0x0a, 0xff], "{text:?}");
        }
    }

    #[test]
    fn dumps_are_read() {
        let xxd = "00000000: 0000 0308 0000 4b03 0000 0000 0000 0008  ......K.........\n00000010: dead                                     ..\n";
        let bytes = [0, 0, 3, 8, 0, 0, 0x4b, 3, 0, 0, 0, 0, 0, 0, 0, 8, 0xde, 0xad];
        assert_eq!(from_hex(xxd).unwrap(), bytes);
        let hexdump = "00000000  00 00 03 08 00 00 4b 03  00 00 00 00 00 00 00 08  |......K.........|\n00000010  de ad  |..|\n";
        assert_eq!(from_hex(hexdump).unwrap(), bytes);
        let log = "[  12.5] 00000000: 00 00 03 08 00 00 4b 03 00 00 00 00 00 00 00 08\n[  12.5] 00000010: de ad";
        assert_eq!(from_hex(log).unwrap(), bytes);
    }

    #[test]
    fn what_is_not_hexadecimal_is_named() {
        assert!(matches!(from_hex("00\n0g"), Err(InputError::NotHex { character: 'g', line: 2 })));
        assert!(matches!(from_hex("000"), Err(InputError::OddDigits { digits: 3 })));
        assert!(matches!(from_hex(" # nothing"), Err(InputError::Empty)));
    }

    #[test]
    fn a_binary_file_is_taken_as_it_is() {
        assert_eq!(from_bytes(vec![0, 0, 3, 8], false).unwrap(), [0, 0, 3, 8]);
        assert_eq!(from_bytes(b"0a".to_vec(), false).unwrap(), [0x0a]);
        assert_eq!(from_bytes(b"0a".to_vec(), true).unwrap(), b"0a");
    }
}
