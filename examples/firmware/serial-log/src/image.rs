//! The program's file, put in order for defmt's decoder.
//!
//! The number of a log string in a frame is the low 16 bits of its address. The decoder finds strings by their whole addresses,
//! and expects them in the first 64 KiB. A program at 2 GiB of RISC-V has them elsewhere (`log.ld` of its board).

use anyhow::{Context as _, Result};
use object::LittleEndian as Little;
use object::elf::{FileHeader64, SectionHeader64, Sym64};
use object::pod;
use object::read::elf::{FileHeader as _, SectionHeader as _};

type Header = FileHeader64<Little>;

/// Takes the upper bits off the addresses of the log strings.
///
/// # Errors
/// If the file is no ELF file of a 64-bit little-endian machine.
pub(crate) fn number_log_strings(elf: &mut [u8]) -> Result<()> {
    let header = Header::parse(&*elf).context("no 64-bit ELF file")?;
    let sections = header.sections(Little, &*elf)?;
    let Some((log, _)) = sections.section_by_name(Little, b".defmt") else { return Ok(()) };
    let symbols = sections.iter().find(|section| section.sh_type(Little) == object::elf::SHT_SYMTAB);
    let symbols =
        symbols.map(|section| (section.sh_offset(Little), section.sh_size(Little) as usize / size_of::<Sym64<Little>>()));
    let (table, count) = (header.e_shoff(Little), usize::from(header.e_shnum(Little)));

    let sections = at::<SectionHeader64<Little>>(elf, table, count)?;
    let section = sections.get_mut(log.0).context("sections")?;
    section.sh_addr.set(Little, section.sh_addr.get(Little) & 0xffff);
    let (offset, count) = symbols.context("no symbols")?;
    for symbol in at::<Sym64<Little>>(elf, offset, count)? {
        if usize::from(symbol.st_shndx.get(Little)) == log.0 {
            symbol.st_value.set(Little, symbol.st_value.get(Little) & 0xffff);
        }
    }
    Ok(())
}

fn at<T: pod::Pod>(elf: &mut [u8], offset: u64, count: usize) -> Result<&mut [T]> {
    let bytes = elf.get_mut(usize::try_from(offset)?..).context("an offset beyond the file")?;
    let (entries, _) = pod::slice_from_bytes_mut(bytes, count).ok().context("a table beyond the file, or not aligned")?;
    Ok(entries)
}
