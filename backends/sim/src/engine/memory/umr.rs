//! Keys changed from a send queue: bind, invalidate, fast registration.

use bareverbs_mlx5_spec::{AccessMode, CqeSyndrome, Field, MKEY_ANY_QPN, Mkc, OCTWORD, View, ViewMut, mkey_mask};

use crate::engine::memory::key::{Access, KeyTable, Mkey, Right, index_of};
use crate::engine::memory::klm_list::KlmList;
use crate::memory::HostMemory;
use crate::wqe::{Umr, UmrTranslations};

/// Bytes of the unit in which translations are changed.
const LIST_UNIT: usize = 64;

/// A list takes at most so many times its bytes, entries read out and their ends included.
const LARGEST_GROWTH: usize = 4;

/// The queue pair that changes a key.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct UmrIssuer {
    pub(in crate::engine) pd: u32,
    pub(in crate::engine) qpn: u32,
    /// The queue is the one that serves memory registration: it may change keys of every domain.
    pub(in crate::engine) privileged: bool,
}

const FIELDS: [(u64, Field<Mkc>); 13] = [
    (mkey_mask::PAGE_SIZE, Mkc::LOG_PAGE_SIZE),
    (mkey_mask::EN_RINVAL, Mkc::EN_RINVAL),
    (mkey_mask::KEY, Mkc::MKEY_7_0),
    (mkey_mask::QPN, Mkc::QPN),
    (mkey_mask::LR, Mkc::LR),
    (mkey_mask::LW, Mkc::LW),
    (mkey_mask::RR, Mkc::RR),
    (mkey_mask::RW, Mkc::RW),
    (mkey_mask::A, Mkc::A),
    (mkey_mask::RELAXED_ORDERING_WRITE, Mkc::RELAXED_ORDERING_WRITE),
    (mkey_mask::FREE, Mkc::FREE),
    (mkey_mask::SMALL_FENCE, Mkc::SMALL_FENCE_ON_RDMA_READ_RESPONSE),
    (mkey_mask::RELAXED_ORDERING_READ, Mkc::RELAXED_ORDERING_READ),
];

/// Bits of a change mask that mean something here. The rest belongs to what the device does not have: signatures
/// ([`mkey_mask::EN_SIGERR`], [`mkey_mask::BSF_EN`]) and what later devices added.
const KNOWN: u64 = {
    let mut known = mkey_mask::PD | mkey_mask::START_ADDR | mkey_mask::LEN;
    let mut fields: &[(u64, Field<Mkc>)] = &FIELDS;
    while let [(bit, _), rest @ ..] = fields {
        known |= *bit;
        fields = rest;
    }
    known
};

/// Applies `umr` to the key `number` names by its index. On an error the key is as it was.
pub(in crate::engine) fn apply(
    keys: &mut KeyTable,
    key_memory: u64,
    memory: &dyn HostMemory,
    issuer: UmrIssuer,
    number: u32,
    umr: &Umr,
) -> Result<(), CqeSyndrome> {
    let refused = CqeSyndrome::MwBind;
    let index = index_of(number);
    let key = keys.get(index).ok_or(refused)?;
    let new = View::<Mkc>::of(&umr.context);
    let frees = umr.mask & mkey_mask::FREE != 0 && new.is_set(Mkc::FREE);
    allowed(key, issuer, number, umr, frees)?;
    let mut context: [u8; 64] = key.context().as_bytes().first_chunk().copied().ok_or(refused)?;
    merge(&mut context, new, umr.mask, issuer.privileged);
    let translations = match raw_translations(keys, memory, issuer, umr)? {
        None => keys.translations(index).unwrap_or_default().to_vec(),
        Some(raw) => {
            let capacity = (key.context().get(Mkc::TRANSLATIONS_OCTWORD_SIZE) as usize).saturating_mul(OCTWORD);
            // Lists are brought in whole units, which the last one of a small key may not fill.
            let capacity = capacity.checked_next_multiple_of(LIST_UNIT).ok_or(refused)?;
            // What is beyond the present list is filled up, so that much must be free.
            let end = umr.offset.unwrap_or(0).saturating_mul(OCTWORD as u64).saturating_add(raw.len() as u64);
            let more = usize::try_from(end).map_err(|_| refused)?.saturating_mul(LARGEST_GROWTH);
            if !keys.has_room(more, key_memory) {
                return Err(refused);
            }
            splice(keys.translations(index).unwrap_or_default(), umr.offset, raw, capacity).ok_or(refused)?
        }
    };
    if !frees && key.mode() == Some(AccessMode::Klms) && !issuer.privileged {
        check_targets(keys, issuer, index, View::of(&context), &translations)?;
    }
    keys.replace(index, context, translations);
    Ok(())
}

fn allowed(key: &Mkey, issuer: UmrIssuer, number: u32, umr: &Umr, frees: bool) -> Result<(), CqeSyndrome> {
    let refused = Err(CqeSyndrome::MwBind);
    // A request that asks for more than is done must not seem to have succeeded.
    if umr.mask & !KNOWN != 0 {
        return refused;
    }
    if !key.context().is_set(Mkc::UMR_EN) || (key.pd() != issuer.pd && !issuer.privileged) {
        return refused;
    }
    if (umr.check_free && !key.is_free()) || (umr.check_in_use && key.is_free()) {
        return refused;
    }
    // A key of no queue pair in particular is every queue pair's (libmlx5 invalidates its indirect keys so).
    if umr.check_qpn && (![issuer.qpn, MKEY_ANY_QPN].contains(&key.qpn()) || key.is_free()) {
        return refused;
    }
    // A bind or registration may carry the new key; only one that takes away names what it takes.
    if frees && !key.is_free() && key.variant() != number & 0xff {
        return refused;
    }
    if umr.mask & mkey_mask::PD != 0 && !issuer.privileged {
        return refused;
    }
    Ok(())
}

fn merge(context: &mut [u8; 64], new: View<'_, Mkc>, mask: u64, privileged: bool) {
    let Some(mut merged) = ViewMut::<Mkc>::new(context) else { return };
    for (bit, field) in FIELDS {
        if mask & bit != 0 {
            merged.set(field, new.get(field));
        }
    }
    if mask & mkey_mask::PD != 0 && privileged {
        merged.set(Mkc::PD, new.get(Mkc::PD));
    }
    if mask & mkey_mask::START_ADDR != 0 {
        merged.set64(Mkc::START_ADDR, new.get64(Mkc::START_ADDR));
    }
    if mask & mkey_mask::LEN != 0 {
        merged.set64(Mkc::LEN, new.get64(Mkc::LEN)).set(Mkc::LENGTH64, 0);
    }
}

fn raw_translations(
    keys: &KeyTable,
    memory: &dyn HostMemory,
    issuer: UmrIssuer,
    umr: &Umr,
) -> Result<Option<Vec<u8>>, CqeSyndrome> {
    match &umr.translations {
        UmrTranslations::None => Ok(None),
        UmrTranslations::Inline(raw) => Ok(Some(raw.clone())),
        UmrTranslations::Memory(pointer) => {
            let len = usize::from(umr.octowords) * OCTWORD;
            if pointer.len < len as u64 {
                return Err(CqeSyndrome::LocalLength);
            }
            let mut raw = vec![0; len];
            let access = Access { right: Right::LocalRead, pd: issuer.pd, qpn: issuer.qpn };
            keys.read(memory, (pointer.lkey, pointer.addr), access, &mut raw).map_err(|_| CqeSyndrome::LocalProt)?;
            Ok(Some(raw))
        }
    }
}

/// The list after a change, or `None` if the key has no room for it.
fn splice(old: &[u8], offset: Option<u64>, raw: Vec<u8>, capacity: usize) -> Option<Vec<u8>> {
    let Some(offset) = offset else { return (raw.len() <= capacity).then_some(raw) };
    let start = usize::try_from(offset).ok()?.checked_mul(OCTWORD)?;
    let end = start.checked_add(raw.len()).filter(|&end| end <= capacity)?;
    let mut list = old.to_vec();
    if list.len() < end {
        list.resize(end, 0);
    }
    list.get_mut(start..end)?.copy_from_slice(&raw);
    Some(list)
}

/// What a window is bound to must exist, belong to the same domain, cover the range, and let the device do locally what
/// the window lets a peer do. Only the entries that cover the length of the window count: Linux pads an inline list to 64
/// bytes with whatever its send ring held there. The architecture has the bind itself fail (Memory Window Bind Error, 11.6.2);
/// whether cards leave it to the access is not published.
fn check_targets(
    keys: &KeyTable,
    issuer: UmrIssuer,
    index: u32,
    window: View<'_, Mkc>,
    translations: &[u8],
) -> Result<(), CqeSyndrome> {
    let refused = CqeSyndrome::MwBind;
    if window.get(Mkc::QPN) != MKEY_ANY_QPN && window.get(Mkc::QPN) != issuer.qpn {
        return Err(refused);
    }
    let writes = window.is_set(Mkc::RW) || window.is_set(Mkc::A) || window.is_set(Mkc::LW);
    let klm_list = KlmList::read(translations);
    for range in klm_list.ranges(window.get64(Mkc::LEN)) {
        if index_of(range.key) == index {
            return Err(refused);
        }
        let rights = [Some(Right::LocalRead), writes.then_some(Right::LocalWrite)];
        for right in rights.into_iter().flatten() {
            let access = Access { right, pd: window.get(Mkc::PD), qpn: issuer.qpn };
            keys.check(range.key, range.addr, range.len, access).map_err(|_| refused)?;
        }
    }
    if window.get64(Mkc::LEN) > klm_list.len() { Err(refused) } else { Ok(()) }
}
