//! Reads the bytes to decode from the command line, a file or standard input, as hexadecimal text or binary.

use std::fmt;
use std::io::Read;
use std::path::Path;

/// Why the bytes cannot be read.
#[derive(Debug)]
pub enum InputError {
    /// The file cannot be read.
    Read {
        /// Name of the file.
        name: String,
        /// Why.
        cause: std::io::Error,
    },
    /// A character is not a hexadecimal digit.
    NotHex {
        /// The character.
        character: char,
        /// Line, from 1.
        line: usize,
    },
    /// The offset of a line of a dump does not follow from the line before: lines are missing, or of two dumps.
    Offset {
        /// Line, from 1.
        line: usize,
        /// Offset of the line.
        offset: usize,
        /// Expected offset.
        expected: usize,
    },
    /// The number of digits is odd.
    OddDigits {
        /// Number of digits.
        digits: usize,
    },
    /// There are no bytes.
    Empty,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { name, cause } => write!(f, "{name}: {cause}"),
            Self::NotHex { character, line } => write!(f, "line {line}: {character:?} is not a hexadecimal digit"),
            Self::Offset { line, offset, expected } => {
                write!(
                    f,
                    "line {line}: the dump goes on at offset {offset:#x} instead of {expected:#x}: lines are missing before it"
                )
            }
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

/// Reads a file: as hexadecimal text if it is text and not `raw`, otherwise as binary.
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

/// Parses bytes from hexadecimal text. Digits may be grouped with blanks, commas, colons and underscores, and begin with `0x`.
/// `#` starts a comment.
///
/// Dumps of `xxd`, `hexdump -C`, DPDK, Linux's mlx5 drivers and libmlx5 are accepted, also with the prefixes of dmesg and
/// journalctl. (Linux prints them by `print_hex_dump` in `drivers/infiniband/hw/mlx5/cq.c` and
/// `drivers/net/ethernet/mellanox/mlx5/core/en_main.c`, libmlx5 by `dump_cqe` in `providers/mlx5/cq.c`.) In a text with a dump, all
/// other lines are skipped as messages. A dump may begin at any offset, and offset 0 begins a new dump.
///
/// # Errors
/// See [`InputError`].
pub fn from_hex(text: &str) -> Result<Vec<u8>, InputError> {
    let lines: Vec<&str> = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).collect();
    let mut digits = Vec::new();
    if lines.iter().any(|line| dump_line(line).is_some()) {
        let mut expected = None;
        for (at, line) in lines.iter().enumerate() {
            let Some(Dump { offset, bytes }) = dump_line(line) else { continue };
            if let Some(expected) = expected.filter(|expected| offset != 0 && offset != *expected) {
                return Err(InputError::Offset { line: at + 1, offset, expected });
            }
            let before = digits.len();
            push_digits(&mut digits, bytes, at + 1)?;
            expected = Some(offset.saturating_add((digits.len() - before) / 2));
        }
    } else {
        for (at, line) in lines.iter().enumerate() {
            if !is_heading(line) {
                push_digits(&mut digits, line, at + 1)?;
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

/// Adds the digits of the `line`-th line.
fn push_digits(digits: &mut Vec<u8>, bytes: &str, line: usize) -> Result<(), InputError> {
    for word in bytes.split([' ', '\t', '\r', ',', ':', '_', '\u{b}', '\u{c}']) {
        let word = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")).unwrap_or(word);
        for character in word.chars() {
            let digit = character.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            digits.push(digit.ok_or(InputError::NotHex { character, line })?);
        }
    }
    Ok(())
}

/// Returns whether a line is libmlx5's heading of an error completion, whose 64 bytes follow without offsets:
/// `mlx5: HOST: got completion with error:`.
fn is_heading(line: &str) -> bool {
    line.starts_with("mlx5: ") && line.ends_with("got completion with error:")
}

/// A line of a dump.
struct Dump<'a> {
    /// Offset of its first byte.
    offset: usize,
    /// The digits, without the column of characters.
    bytes: &'a str,
}

/// Parses a line of a dump, if `line` is one: an offset of 4 to 16 digits, a colon or two blanks, and bytes of two or more digits.
fn dump_line(line: &str) -> Option<Dump<'_>> {
    let offset_of = |text: &str| {
        let digits = text.rsplit([' ', '\t']).next().unwrap_or_default();
        if (4..=16).contains(&digits.len()) { usize::from_str_radix(digits, 16).ok() } else { None }
    };
    let is_bytes = |text: &str| {
        let mut words = text.split_whitespace().peekable();
        words.peek().is_some() && words.all(|word| word.len().is_multiple_of(2) && word.chars().all(|c| c.is_ascii_hexdigit()))
    };
    // A prefix may contain colons, in a time, an address or a name.
    for (at, _) in line.match_indices(": ") {
        let (before, after) = line.split_at_checked(at)?;
        let Some(offset) = offset_of(before) else { continue };
        // `xxd` prints the characters after two blanks, DPDK after a bar.
        let bytes = after.get(2..).unwrap_or_default().trim_start();
        let bytes = bytes.split("  ").next().unwrap_or_default().split('|').next().unwrap_or_default();
        return is_bytes(bytes).then_some(Dump { offset, bytes });
    }
    // `hexdump -C` prints the characters between bars.
    let (left, _) = line.split_once('|')?;
    let (offset, bytes) = left.split_once("  ")?;
    let offset = offset_of(offset)?;
    is_bytes(bytes).then_some(Dump { offset, bytes })
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

    /// Returns a dump of an error completion with offsets 0x00, 0x10, 0x20 and 0x30, and `prefix` on each line.
    fn dump(prefix: &str) -> String {
        let lines = ["00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"; 3].into_iter();
        let lines = lines.chain(["00 00 00 00 00 00 88 13 08 00 00 4b 00 07 00 d2"]);
        lines.enumerate().map(|(at, line)| format!("{prefix}{:08x}: {line}\n", 16 * at)).collect()
    }

    fn error_completion() -> Vec<u8> {
        [vec![0; 54], vec![0x88, 0x13, 8, 0, 0, 0x4b, 0, 7, 0, 0xd2]].concat()
    }

    #[test]
    fn kernel_dumps_are_read_with_their_messages() {
        let old = "infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe\n";
        let new = "infiniband mlx5_0: dump_cqe:272:(pid 1234): WC error: 10, Message: remote access error\n";
        let ethernet = "mlx5_core 0000:01:00.0 ens1f0: Error cqe on cqn 0x4d, ci 0x3e, qn 0x1a6, opcode 0xd, syndrome 0x2, \
                        vendor syndrome 0x68\n";
        for time in [
            "",
            "[   12.345678] ",
            "[Mon Nov 23 05:11:02 2026] ",
            "[   12.345678][  T734] ",
            "Nov 23 05:11:02 host kernel: ",
            "2026-11-23T05:11:02+0000 host kernel: ",
            "kern  :warn  : [   12.345678] ",
            "<4>[   12.345678] ",
        ] {
            for (message, prefix) in [(old, ""), (new, "cqe_dump: "), (ethernet, "")] {
                let text = format!("{time}{message}{}", dump(&format!("{time}{prefix}")));
                assert_eq!(from_hex(&text).unwrap(), error_completion(), "{text}");
                let twice = format!("{text}{time}mlx5_core 0000:01:00.0: health recovery flow\n{text}");
                assert_eq!(from_hex(&twice).unwrap(), error_completion().repeat(2), "{twice}");
            }
        }
    }

    #[test]
    fn dumps_of_libmlx5_and_dpdk_are_read() {
        let words = "00000000 00000000 00000000 00000000\n".repeat(3) + "00000000 00008813 0800004b 000700d2\n";
        assert_eq!(from_hex(&format!("mlx5: node1: got completion with error:\n{words}")).unwrap(), error_completion());
        let lines: String = dump("").lines().map(|line| format!("{line} | ................\n")).collect();
        assert_eq!(from_hex(&format!("MLX5 Error CQE: at [0x7f6a7d20c000], len=64\n{lines}")).unwrap(), error_completion());
    }

    #[test]
    fn a_dump_that_lacks_a_line_is_refused_at_the_gap() {
        let whole = dump("[ 1.0] cqe_dump: ");
        let text: String = whole.lines().enumerate().filter(|(at, _)| *at != 2).map(|(_, line)| format!("{line}\n")).collect();
        let error = from_hex(&text).unwrap_err();
        assert!(matches!(error, InputError::Offset { line: 3, offset: 0x30, expected: 0x20 }), "{error}");
        // The last line of hexdump contains only the length.
        assert_eq!(from_hex("00000000  de ad be ef  |....|\n00000004\n").unwrap(), [0xde, 0xad, 0xbe, 0xef]);
    }

    #[test]
    fn a_character_that_is_not_hexadecimal_is_an_error_with_its_line() {
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
