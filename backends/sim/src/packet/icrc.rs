//! The invariant CRC: over what of a packet does not change on its way (InfiniBand Architecture 7.8.1, annex A17).

use bareverbs_mlx5_spec::BaseTransportHeader;

use super::error::PacketError;
use super::header::{Dwords, ICRC, Reader, copy, set_ones};
use super::link::{Link, MOST_COVERED};
use super::transport::BTH;

/// CRC-32 of the parts of a packet that do not change on its way: `body` is all before the ICRC.
pub(super) fn icrc(link: &Link, body: &[u8]) -> u32 {
    let at = link.len();
    let (Some(base), Some(rest)) = (body.get(at..at + BTH), body.get(at + BTH..)) else { return 0 };
    let mut start = [0u8; MOST_COVERED + BTH];
    let covered = link.cover(body, &mut start);
    copy(start.get_mut(covered..).unwrap_or_default(), base, BTH);
    set_ones(&mut start, covered, BaseTransportHeader::VARIANT.bits());
    let mut hash = crc32fast::Hasher::new();
    hash.update(start.get(..covered + BTH).unwrap_or_default());
    hash.update(rest);
    hash.finalize()
}

/// Takes the base header, which `reader` is at, of a whole frame with a right ICRC.
pub(super) fn base_header(
    link: &Link,
    reader: &mut Reader<'_>,
    frame: &[u8],
) -> Result<Dwords<BaseTransportHeader, 3>, PacketError> {
    let (body, crc) = frame.split_last_chunk::<ICRC>().ok_or(PacketError::Short { header: "ICRC", have: frame.len() })?;
    let base = reader.header("BTH")?;
    let (computed, found) = (icrc(link, body), u32::from_le_bytes(*crc));
    if computed != found {
        return Err(PacketError::Icrc { computed, found });
    }
    Ok(base)
}
