//! Masked atomics between simulated devices: what of a request its atomic header has no room for.

use crate::packet::{Operation, TransportPart};
use crate::wqe_decode::AtomicOperation;

/// Bytes of the payload: size, then two masks.
const LEN: usize = 24;

/// Returns the payload of a masked atomic on so many bytes.
pub(in crate::engine) fn payload(size: u8, first: u64, second: u64) -> Vec<u8> {
    [u64::from(size), first, second].iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Returns what a packet asks for; `None` if it is no atomic, or none of a size that there is.
pub(in crate::engine) fn operation(packet: &TransportPart<'_>) -> Option<AtomicOperation> {
    let atomic = packet.atomic?;
    let operation = packet.bth.opcode.operation;
    let (compare, swap) = (atomic.compare, atomic.swap_add);
    if !matches!(operation, Operation::MaskedCompareSwap | Operation::MaskedFetchAdd) {
        let swaps = operation == Operation::CompareSwap;
        let plain =
            if swaps { AtomicOperation::CompareSwap { compare, swap } } else { AtomicOperation::FetchAdd { add: swap } };
        return packet.payload.is_empty().then_some(plain);
    }
    let payload: &[u8; LEN] = packet.payload.as_ref().try_into().ok()?;
    let word = |at: usize| Some(u64::from_be_bytes(*payload.get(at..)?.first_chunk()?));
    let (size, first, second) = (word(0)?, word(8)?, word(16)?);
    let size = [4, 8].into_iter().find(|known| u64::from(*known) == size)?;
    Some(match operation {
        Operation::MaskedCompareSwap => {
            AtomicOperation::MaskedCompareSwap { size, compare, compare_mask: second, swap, swap_mask: first }
        }
        _ => AtomicOperation::MaskedFetchAdd { size, add: swap, boundary: first },
    })
}
