//! Reads the output of a firmware program on the serial line from standard input. It prints text unchanged, and each frame of
//! the defmt log as a line that begins with `log: `.
//!
//! Usage: `serial-log PROGRAM`, where `PROGRAM` is the ELF file that runs.
//!
//! A byte of zeros begins a frame, and another one ends it; text has none.

mod image;
mod line;

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context as _, Result, bail};
use defmt_decoder::{DecodeError, Locations, StreamDecoder, Table};

use crate::line::{Line, Piece};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serial-log: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [program] = arguments.as_slice() else { bail!("usage: serial-log PROGRAM <SERIAL-LINE") };
    let mut elf = fs::read(program).with_context(|| format!("{}", program.display()))?;
    image::number_log_strings(&mut elf).with_context(|| format!("{}", program.display()))?;
    // A program without a log has no table.
    let table = Table::parse(&elf).with_context(|| format!("{}: log strings", program.display()))?;
    let locations = table.as_ref().map(|table| table.get_locations(&elf)).transpose()?.unwrap_or_default();
    let mut decoder = table.as_ref().map(Table::new_stream_decoder);

    let mut line = Line::default();
    let mut bytes = [0; 4096];
    loop {
        let count = match io::stdin().read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("the serial line"),
        };
        for byte in bytes.iter().take(count) {
            if let Some(piece) = line.take(*byte) {
                show(piece, decoder.as_mut(), &locations)?;
            }
        }
    }
    line.rest().map_or(Ok(()), |piece| show(piece, None, &locations))
}

/// How defmt's decoder gives its stream decoders out.
type Decoder<'a> = Box<dyn StreamDecoder + Send + Sync + 'a>;

fn show(piece: Piece, decoder: Option<&mut Decoder<'_>>, locations: &Locations) -> Result<()> {
    let mut out = io::stdout().lock();
    match (piece, decoder) {
        (Piece::Text(text), _) => writeln!(out, "{text}")?,
        (Piece::Frame(frame), Some(decoder)) => {
            decoder.received(&frame);
            decoder.received(&[0]);
            match decoder.decode() {
                Ok(frame) => {
                    // File and line are those of the macro through which all lines go; the module says where.
                    let module = locations.get(&frame.index()).and_then(|place| place.module.split("::{").next());
                    writeln!(out, "log: {} ({})", frame.display(false), module.unwrap_or("?"))?;
                }
                Err(DecodeError::UnexpectedEof | DecodeError::Malformed) => {
                    writeln!(out, "log: a frame that does not belong to this program: {frame:02x?}")?;
                }
            }
        }
        (Piece::Frame(frame), None) => writeln!(out, "log: a frame of a program without a log: {frame:02x?}")?,
    }
    Ok(out.flush()?)
}
