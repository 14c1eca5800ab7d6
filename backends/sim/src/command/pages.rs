//! Firmware pages.

use bareverbs_mlx5_spec::{
    CmdStatus, ManagePagesIn, ManagePagesOut, QueryPagesIn, QueryPagesOut, View, ViewMut, manage_pages as mode,
    query_pages as when,
};

use super::refusal::{Outcome, Refusal};
use crate::firmware::firmware_pages::PAGE_MEMORY;
use crate::firmware::{Firmware, HcaState};
use crate::step::StepContext;

/// QUERY_PAGES.
pub(super) fn query_pages(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, QueryPagesIn>,
    output: &mut ViewMut<'_, QueryPagesOut>,
) -> Outcome {
    let pages = match input.get(QueryPagesIn::OP_MOD) {
        when::BOOT => firmware.pages.missing_to_boot(),
        when::INIT => firmware.pages.wanted_to_init(),
        when::REGULAR if firmware.state != HcaState::Running => firmware.pages.surplus() as u32,
        when::REGULAR => firmware.pages.answer(ctx.now) as u32,
        _ => return Err(Refusal::new(CmdStatus::BadParam, "no such demand")),
    };
    output.set(QueryPagesOut::NUM_PAGES, pages);
    Ok(())
}

/// MANAGE_PAGES.
pub(super) fn manage_pages(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, ManagePagesIn>,
    output: &mut ViewMut<'_, ManagePagesOut>,
    room: usize,
) -> Outcome {
    if input.is_set(ManagePagesIn::FUNCTION_ID) {
        return Err(Refusal::new(CmdStatus::BadParam, "another function"));
    }
    let count = input.get(ManagePagesIn::INPUT_NUM_ENTRIES);
    match input.get(ManagePagesIn::OP_MOD) {
        mode::CANT_GIVE => {
            firmware.pages.refuse();
            Ok(())
        }
        mode::GIVE => {
            let given = give(firmware, ctx, input, count);
            firmware.count_pages();
            given
        }
        mode::TAKE => {
            let entries = room.saturating_sub(ManagePagesOut::PAS.offset()) / ManagePagesOut::PAS.entry();
            let most = count.min(u32::try_from(entries).unwrap_or(u32::MAX));
            let all = firmware.state != HcaState::Running;
            let taken = firmware.pages.reclaim(ctx, most, all);
            firmware.count_pages();
            output.set(ManagePagesOut::OUTPUT_NUM_ENTRIES, taken.len() as u32);
            for (index, addr) in taken.into_iter().enumerate() {
                output.set_tail64(ManagePagesOut::PAS, index, addr);
            }
            Ok(())
        }
        _ => Err(Refusal::new(CmdStatus::BadParam, "neither give nor take")),
    }
}

/// Takes all pages of a command, or none.
fn give(firmware: &mut Firmware, ctx: &mut StepContext<'_>, input: View<'_, ManagePagesIn>, count: u32) -> Outcome {
    let (pages, _) = input.tail(ManagePagesIn::PAS).as_chunks::<8>();
    let pages = pages.get(..count as usize).ok_or(Refusal::new(CmdStatus::BadInputLen, "fewer addresses than said"))?;
    if count > firmware.pages.max_moved() {
        return Err(Refusal::new(CmdStatus::LimErr, "more pages than any request asks for"));
    }
    if !firmware.engine.registry().has_memory(u64::from(count) * PAGE_MEMORY) {
        return Err(Refusal::new(CmdStatus::NoResources, "the device keeps no longer list of pages"));
    }
    for (given, addr) in pages.iter().enumerate() {
        if let Err(status) = firmware.pages.give(ctx, u64::from_be_bytes(*addr)) {
            for addr in pages.iter().take(given) {
                firmware.pages.give_up(u64::from_be_bytes(*addr));
            }
            return Err(Refusal::new(status, "one of the pages cannot be used"));
        }
    }
    Ok(())
}
