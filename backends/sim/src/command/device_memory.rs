//! Memory in the device.

use bareverbs_mlx5_spec::{AllocMemicIn, AllocMemicOut, CmdStatus, DeallocMemicIn, DeallocMemicOut, View, ViewMut};

use super::refusal::{Outcome, Refusal};
use super::user_context::owner_of;
use crate::firmware::Firmware;
use crate::registry::Resource;
use crate::step::StepContext;

/// ALLOC_MEMIC.
pub(super) fn alloc(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, AllocMemicIn>,
    output: &mut ViewMut<'_, AllocMemicOut>,
) -> Outcome {
    let range = (input.get64(AllocMemicIn::RANGE_START_ADDR), input.get(AllocMemicIn::RANGE_SIZE).into());
    let alignment = input.get(AllocMemicIn::LOG_MEMIC_ADDR_ALIGNMENT);
    let allotted = firmware.engine.alloc_memory(range, input.get(AllocMemicIn::MEMIC_SIZE).into(), alignment);
    let at = allotted.map_err(|status| Refusal::new(status, "the range, the size, or no room there"))?;
    firmware.engine.registry_mut().set_owner(Resource::device_memory(at), owner_of(input.as_bytes()));
    output.set64(AllocMemicOut::MEMIC_START_ADDR, at);
    Ok(())
}

/// DEALLOC_MEMIC; busy while a key opens it.
pub(super) fn dealloc(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DeallocMemicIn>,
    _: &mut ViewMut<'_, DeallocMemicOut>,
) -> Outcome {
    let (at, len) = (input.get64(DeallocMemicIn::MEMIC_START_ADDR), input.get(DeallocMemicIn::MEMIC_SIZE).into());
    // Its number is an address, which the table of commands does not know.
    if !firmware.engine.registry().may_destroy(owner_of(input.as_bytes()), Resource::device_memory(at)) {
        return Err(Refusal::new(CmdStatus::BadRes, "device memory of another user context"));
    }
    let freed = firmware.engine.free_memory(at, len);
    freed.map_err(|status| Refusal::new(status, "no such allocation of device memory, or a key over it"))
}
