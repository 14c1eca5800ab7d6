//! Memory keys.

use bareverbs_mlx5_spec::{
    CmdStatus, CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, DestroyMkeyOut, Mkc, OCTWORD, ObjectKind, QueryMkeyIn, QueryMkeyOut,
    View, ViewMut,
};

use super::{Outcome, Refusal, queue_buffer};
use crate::env::Env;
use crate::firmware::Firmware;
use crate::pages::cost;
use crate::user::UmemBinding;

/// CREATE_MKEY.
pub(super) fn create_mkey(
    firmware: &mut Firmware,
    env: &mut Env<'_>,
    input: View<'_, CreateMkeyIn>,
    output: &mut ViewMut<'_, CreateMkeyOut>,
) -> Outcome {
    let context = input.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    // PG_ACCESS would let pages be absent. Drivers set it on keys all of whose pages are there, and no other kind exists here.
    // A key that UMR requests will fill in later gets its protection domain from them.
    if !context.is_set(Mkc::FREE) && !firmware.pds.contains(context.get(Mkc::PD)) {
        return Err(Refusal::new(CmdStatus::BadRes, "no such protection domain"));
    }
    let octwords = input.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE) as usize;
    let (raw, umem) = match input.is_set(CreateMkeyIn::MKEY_UMEM_VALID) {
        true => queue_buffer::of_mkey(firmware, input).map(|(raw, umem)| (Some(raw), Some(umem)))?,
        false => (None, None),
    };
    let listed = octwords.checked_mul(OCTWORD).and_then(|len| input.tail(CreateMkeyIn::KLM_PAS_MTT).get(..len));
    let translations = match &raw {
        Some(raw) => raw,
        None => listed.ok_or(Refusal::new(CmdStatus::BadInputLen, "fewer translations than said"))?,
    };
    let room = cost::MKEY + u64::from(context.get(Mkc::TRANSLATIONS_OCTWORD_SIZE)).saturating_mul(OCTWORD as u64);
    firmware.pages.reserve(room)?;
    match firmware.engine.create_mkey(env, context, translations) {
        Ok(index) => {
            firmware.mkey_room.insert(index, room);
            firmware.users.bind(ObjectKind::Mkey, index, UmemBinding { buffer: umem, record: None });
            output.set(CreateMkeyOut::MKEY_INDEX, index);
            Ok(())
        }
        Err(status) => {
            firmware.pages.unreserve(room);
            Err(Refusal::new(status, "key context or translations"))
        }
    }
}

/// DESTROY_MKEY; busy while a window is bound to it.
pub(super) fn destroy_mkey(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, DestroyMkeyIn>,
    _: &mut ViewMut<'_, DestroyMkeyOut>,
) -> Outcome {
    let index = input.get(DestroyMkeyIn::MKEY_INDEX);
    firmware.engine.destroy_mkey(index)?;
    if let Some(room) = firmware.mkey_room.remove(&index) {
        firmware.pages.unreserve(room);
    }
    Ok(())
}

/// QUERY_MKEY.
pub(super) fn query_mkey(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, QueryMkeyIn>,
    output: &mut ViewMut<'_, QueryMkeyOut>,
) -> Outcome {
    let index = input.get(QueryMkeyIn::MKEY_INDEX);
    Ok(firmware.engine.query_mkey(index, &mut output.sub(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY))?)
}
