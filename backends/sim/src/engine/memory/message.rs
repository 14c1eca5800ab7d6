//! Bytes of a message gathered from host memory and scattered into it, through keys.

use crate::audit::Finding;
use crate::engine::memory::key::{Access, KeyError};
use crate::engine::resources::QpStep;
use crate::wqe_decode::{DataPointer, DataSegment};

/// Why bytes found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum ScatterError {
    /// The buffers together are shorter than the message.
    TooLong,
    /// A key does not open its bytes.
    Key(KeyError),
}

fn reject(step: &mut QpStep<'_, '_>, access: Access, (key, addr): (u32, u64), len: usize, error: KeyError) -> KeyError {
    if error == KeyError::Unknown && step.shared.keys.was_destroyed(key) {
        step.ctx.audit.report(Finding::KeyAfterDestroy { key });
    }
    let rejection = step.shared.keys.rejection((key, addr), len as u64, access, error);
    step.ctx.reject(rejection);
    error
}

/// Returns the `len` bytes from byte `offset` of a message.
pub(in crate::engine) fn gather(
    step: &mut QpStep<'_, '_>,
    access: Access,
    segments: &[DataSegment],
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, KeyError> {
    let mut message = step.payload(len);
    let mut rest = message.as_mut_slice();
    let mut skip = offset;
    for segment in segments {
        if rest.is_empty() {
            break;
        }
        if skip >= segment.len() {
            skip -= segment.len();
            continue;
        }
        let part_len = usize::try_from(segment.len() - skip).unwrap_or(usize::MAX).min(rest.len());
        let (part, tail) = rest.split_at_mut(part_len);
        match segment {
            DataSegment::Inline(bytes) => {
                let from = usize::try_from(skip).ok().and_then(|skip| bytes.get(skip..)).unwrap_or_default();
                let bytes = from.iter().copied().chain(std::iter::repeat(0));
                part.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            }
            DataSegment::Pointer(pointer) => {
                let addr = pointer.addr.checked_add(skip).ok_or(KeyError::Range)?;
                let read = step.shared.keys.read(step.ctx, (pointer.lkey, addr), access, part);
                read.map_err(|error| reject(step, access, (pointer.lkey, addr), part_len, error))?;
            }
        }
        rest = tail;
        skip = 0;
    }
    rest.fill(0);
    Ok(message)
}

/// Puts `bytes` at byte `offset` of a message that lies in `pointers`.
pub(in crate::engine) fn scatter(
    step: &mut QpStep<'_, '_>,
    access: Access,
    pointers: impl IntoIterator<Item = DataPointer>,
    offset: u64,
    bytes: &[u8],
) -> Result<(), ScatterError> {
    let (mut rest, mut skip) = (bytes, offset);
    for pointer in pointers {
        if rest.is_empty() {
            break;
        }
        if skip >= pointer.len {
            skip -= pointer.len;
            continue;
        }
        let part_len = usize::try_from(pointer.len - skip).unwrap_or(usize::MAX).min(rest.len());
        let (part, tail) = rest.split_at(part_len);
        let addr = pointer.addr.checked_add(skip).ok_or(ScatterError::Key(KeyError::Range))?;
        let written = step.shared.keys.write(step.ctx, (pointer.lkey, addr), access, part);
        written.map_err(|error| ScatterError::Key(reject(step, access, (pointer.lkey, addr), part_len, error)))?;
        rest = tail;
        skip = 0;
    }
    if rest.is_empty() { Ok(()) } else { Err(ScatterError::TooLong) }
}

/// Returns the memory pointers among data segments.
pub(in crate::engine) fn pointers(segments: &[DataSegment]) -> Vec<DataPointer> {
    let pointer = |segment: &DataSegment| match segment {
        DataSegment::Pointer(pointer) => Some(*pointer),
        DataSegment::Inline(_) => None,
    };
    segments.iter().filter_map(pointer).collect()
}
