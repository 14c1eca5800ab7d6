//! Memory in the device.

use bareverbs_mlx5_spec::{AllocMemicIn, AllocMemicOut, DeallocMemicIn, DeallocMemicOut, View, ViewMut};

use super::{Outcome, Refusal};
use crate::env::Env;
use crate::firmware::Firmware;

/// ALLOC_MEMIC.
pub(super) fn alloc(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, AllocMemicIn>,
    output: &mut ViewMut<'_, AllocMemicOut>,
) -> Outcome {
    let range = (input.get64(AllocMemicIn::RANGE_START_ADDR), input.get(AllocMemicIn::RANGE_SIZE).into());
    let alignment = input.get(AllocMemicIn::LOG_MEMIC_ADDR_ALIGNMENT);
    let allotted = firmware.engine.alloc_memory(range, input.get(AllocMemicIn::MEMIC_SIZE).into(), alignment);
    output.set64(
        AllocMemicOut::MEMIC_START_ADDR,
        allotted.map_err(|status| Refusal::new(status, "the range, the size, or no room there"))?,
    );
    Ok(())
}

/// DEALLOC_MEMIC; busy while a key opens it.
pub(super) fn dealloc(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, DeallocMemicIn>,
    _: &mut ViewMut<'_, DeallocMemicOut>,
) -> Outcome {
    let len = input.get(DeallocMemicIn::MEMIC_SIZE).into();
    let freed = firmware.engine.free_memory(input.get64(DeallocMemicIn::MEMIC_START_ADDR), len);
    freed.map_err(|status| Refusal::new(status, "no such allocation of device memory, or a key over it"))
}
