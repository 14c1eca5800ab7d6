//! A table of firmware commands as text: what a driver and a device said to each other.
//!
//! Columns are separated by tabs:
//!
//! | column | content |
//! |---|---|
//! | name | published name of the command, for people |
//! | opcode | opcode of the input, hexadecimal |
//! | op_mod | modifier of the opcode, hexadecimal |
//! | input | whole input, hexadecimal digits in memory order |
//! | output | whole output, likewise |
//!
//! `+N` (decimal) after the digits says that N more bytes follow which the source of the table does not have: the kernel's log
//! leaves mailboxes out, for instance. Lines that begin with `#` are comments, and empty lines are skipped.
//!
//! ```
//! use bareverbs_decode::command_table::{Exchange, parse};
//!
//! let text = "ENABLE_HCA\t104\t0\t01040000000000000000000000000000\t00000000000000000000000000000000\n";
//! let [Exchange { input, output }] = &parse(text)?[..] else { panic!("one command") };
//! assert_eq!((input.bytes[1], input.len()), (4, 16));
//! assert_eq!(output.bytes, [0; 16]);
//! # Ok::<(), bareverbs_decode::command_table::TableError>(())
//! ```

use std::fmt;

use crate::command;
use crate::field_printer::{from_hex, hex};

/// The names of the columns, as a comment line.
pub const HEADING: &str = "# name\topcode\top_mod\tinput\toutput";

/// An input or output, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// Number of bytes after them that are not known.
    pub unknown: usize,
}

impl Message {
    /// Returns a message that is known to its end.
    pub fn whole(bytes: Vec<u8>) -> Self {
        Self { bytes, unknown: 0 }
    }

    /// Returns the length in bytes, unknown ones included.
    pub fn len(&self) -> usize {
        self.bytes.len().saturating_add(self.unknown)
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.bytes))?;
        if self.unknown == 0 { Ok(()) } else { write!(f, "+{}", self.unknown) }
    }
}

/// A command and its answer. It is written as a row of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// What the driver sent.
    pub input: Message,
    /// What the device answered.
    pub output: Message,
}

impl Exchange {
    /// Returns opcode and modifier; zeros if the input is shorter than eight bytes.
    pub fn key(&self) -> (u16, u16) {
        match *self.input.bytes {
            [o0, o1, _, _, _, _, m0, m1, ..] => (u16::from_be_bytes([o0, o1]), u16::from_be_bytes([m0, m1])),
            _ => (0, 0),
        }
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (opcode, modifier) = self.key();
        let name = command::name(opcode.into());
        write!(f, "{name}\t{opcode:x}\t{modifier:x}\t{}\t{}", self.input, self.output)
    }
}

/// Error of [`parse`]: a line that is not valid in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError {
    /// Line number, from 1.
    pub line: usize,
    /// The reason.
    pub why: &'static str,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for TableError {}

/// Parses a table and returns its commands in order.
///
/// # Errors
/// The first line that is not valid, with its number.
pub fn parse(text: &str) -> Result<Vec<Exchange>, TableError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(at, line)| row(line).map_err(|why| TableError { line: at + 1, why })).collect()
}

fn row(line: &str) -> Result<Exchange, &'static str> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [_, opcode, modifier, input, output] = *columns.as_slice() else {
        return Err("a command has five columns: name, opcode, op_mod, input, output");
    };
    let exchange = Exchange { input: message(input)?, output: message(output)? };
    if exchange.input.bytes.len() < 8 {
        return Err("an input begins with eight bytes: opcode, user context and op_mod");
    }
    if (number(opcode)?, number(modifier)?) != exchange.key() {
        return Err("opcode and op_mod are not those of the input");
    }
    Ok(exchange)
}

fn number(column: &str) -> Result<u16, &'static str> {
    u16::from_str_radix(column, 16).map_err(|_| "opcode and op_mod are hexadecimal numbers of 16 bits")
}

fn message(column: &str) -> Result<Message, &'static str> {
    let (digits, unknown) = match column.split_once('+') {
        Some((digits, count)) => (digits, count.parse().map_err(|_| "after `+` is the number of bytes that are not known")?),
        None => (column, 0),
    };
    from_hex(digits).map(|bytes| Message { bytes, unknown }).ok_or("bytes are hexadecimal digits, two each")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "QUERY_PAGES\t107\t1\t01070000000000010000000000000000\t00000000000000000000000000000006";

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let text = format!("# a card\n{HEADING}\n\n{ROW}\nACCESS_REG\t805\ta\t080500000000000a+24\t00+31\n");
        let all = parse(&text).unwrap();
        let pages = Exchange {
            input: Message::whole(vec![1, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
            output: Message::whole(vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6]),
        };
        let register = Exchange {
            input: Message { bytes: vec![8, 5, 0, 0, 0, 0, 0, 10], unknown: 24 },
            output: Message { bytes: vec![0], unknown: 31 },
        };
        assert_eq!((register.input.len(), register.output.len()), (32, 32));
        assert_eq!(all, [pages, register]);
        let written: String = all.iter().map(|exchange| format!("{exchange}\n")).collect();
        assert_eq!(parse(&written).unwrap(), all);
        assert!(text.ends_with(&written), "{written}");
    }

    #[test]
    fn a_parse_error_names_the_line() {
        for (from, to) in [
            ("\t107", ""),
            ("\t107\t1", "\t107\t2"),
            ("\t107\t1", "\t108\t1"),
            ("\t107\t", "\tseven\t"),
            ("\t107\t", "\t10107\t"),
            ("01070000000000010000000000000000", "01070000000000"),
            ("06", "6"),
            ("06", "0g"),
            ("06", "06+"),
            ("06", "06+x"),
            ("06", "06\t"),
        ] {
            let wrong = ROW.replacen(from, to, 1);
            assert_ne!(wrong, ROW);
            assert_eq!(parse(&format!("{ROW}\n{wrong}\n")).unwrap_err().line, 2, "{wrong}");
        }
    }
}
