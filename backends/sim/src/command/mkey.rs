//! Memory keys.

use bareverbs_mlx5_spec::{
    AccessMode, CmdHcaCap, CmdStatus, CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, DestroyMkeyOut, Mkc, OCTOWORD, QueryMkeyIn,
    QueryMkeyOut, View, ViewMut,
};

use super::queue_buffer;
use super::refusal::{Outcome, Refusal};
use super::user_context::owner_of;
use crate::engine::PageSource;
use crate::firmware::Firmware;
use crate::firmware::firmware_pages::cost;
use crate::registry::ObjectKind;
use crate::step::StepContext;

/// CREATE_MKEY.
pub(super) fn create_mkey(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, CreateMkeyIn>,
    output: &mut ViewMut<'_, CreateMkeyOut>,
) -> Outcome {
    let context = input.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    // PG_ACCESS would let pages be absent. Drivers set it on keys all of whose pages are there, and no other kind exists here.
    let octwords = input.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE) as usize;
    let in_umem = input.is_set(CreateMkeyIn::MKEY_UMEM_VALID);
    if !owner_of(input.as_bytes()).is_kernel() && !allows_program(context, in_umem) {
        return Err(Refusal::new(CmdStatus::BadParam, "a program opens its own memory only"));
    }
    if !is_ordered_as_offered(firmware, context) {
        return Err(Refusal::new(CmdStatus::BadParam, "relaxed ordering that is not offered"));
    }
    let pages = if in_umem {
        PageSource::Umem(queue_buffer::of_mkey(firmware, input)?)
    } else {
        let listed = octwords.checked_mul(OCTOWORD).and_then(|len| input.tail(CreateMkeyIn::KLM_PAS_MTT).get(..len));
        PageSource::Listed(listed.ok_or(Refusal::new(CmdStatus::BadInputLen, "fewer translations than said"))?)
    };
    let room = cost::MKEY + u64::from(context.get(Mkc::TRANSLATIONS_OCTWORD_SIZE)).saturating_mul(OCTOWORD as u64);
    let created = firmware.create(ObjectKind::Mkey, room, |firmware| firmware.engine.create_mkey(ctx, context, pages));
    let index = created.map_err(|status| Refusal::new(status, "key context, protection domain or translations"))?;
    output.set(CreateMkeyOut::MKEY_INDEX, index);
    Ok(())
}

/// Returns whether a key asks for no relaxed ordering but what the capabilities have.
fn is_ordered_as_offered(firmware: &Firmware, context: View<'_, Mkc>) -> bool {
    let offered = |field| firmware.caps.general(field) != 0;
    let writes = offered(CmdHcaCap::RELAXED_ORDERING_WRITE);
    let reads = offered(CmdHcaCap::RELAXED_ORDERING_READ) || offered(CmdHcaCap::RELAXED_ORDERING_READ_PCI_ENABLED);
    (writes || !context.is_set(Mkc::RELAXED_ORDERING_WRITE)) && (reads || !context.is_set(Mkc::RELAXED_ORDERING_READ))
}

/// Returns whether a user context may have such a key: one over user memory, or over other keys of its protection domain. Linux
/// passes on no other either (`devx_handle_mkey_create`); device addresses are the kernel's.
fn allows_program(context: View<'_, Mkc>, in_umem: bool) -> bool {
    match AccessMode::from_code(context.get(Mkc::ACCESS_MODE_4_2) << 2 | context.get(Mkc::ACCESS_MODE_1_0)) {
        Some(AccessMode::Mtt) => in_umem,
        Some(AccessMode::Klms | AccessMode::Ksm) => true,
        _ => false,
    }
}

/// DESTROY_MKEY; busy while a window is bound to it.
pub(super) fn destroy_mkey(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyMkeyIn>,
    _: &mut ViewMut<'_, DestroyMkeyOut>,
) -> Outcome {
    let index = input.get(DestroyMkeyIn::MKEY_INDEX);
    let room = firmware.engine.destroy_mkey(index)?;
    firmware.pages.unreserve(room);
    Ok(())
}

/// QUERY_MKEY.
pub(super) fn query_mkey(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryMkeyIn>,
    output: &mut ViewMut<'_, QueryMkeyOut>,
) -> Outcome {
    let index = input.get(QueryMkeyIn::MKEY_INDEX);
    Ok(firmware.engine.query_mkey(index, &mut output.sub(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY))?)
}
