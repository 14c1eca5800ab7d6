//! Keys changed from a send queue: bind, invalidate, fast registration.

use std::borrow::Cow;

use bareverbs::KeyTag;
use bareverbs_mlx5_spec::{AccessMode, CqeSyndrome, Field, MKEY_ANY_QPN, Mkc, OCTOWORD, View, ViewMut, mkey_mask};

use crate::engine::memory::key::{Access, KeyTable, MAX_KLM_BYTES, Mkey, Right, Translations, index_of};
use crate::engine::memory::key_range::{KeyRange, covering};
use crate::engine::memory::klm_list::KlmList;
use crate::registry::{Registry, Resource};
use crate::step::StepContext;
use crate::wqe_decode::{Umr, UmrTranslations};

/// Bytes of the unit in which translations are changed.
const LIST_UNIT: u64 = 64;
/// Entries that count as examined when a request changes the rights of a bound window and not its list.
const MAX_CHECKED: usize = 1024;

/// Who changes a key.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct UmrIssuer {
    pub(in crate::engine) pd: u32,
    pub(in crate::engine) qpn: u32,
    /// The queue is the one that serves memory registration: it may change keys of every domain.
    pub(in crate::engine) privileged: bool,
    /// The queue is the kernel's and may open host memory by its addresses (fast registration).
    pub(in crate::engine) registers: bool,
    /// The function may change no right to atomics, and no key over other keys.
    pub(in crate::engine) restricted: bool,
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

/// Applies `umr` to the key `number` names by its index. On an error the key is as it was. What it costs is the list that it
/// brings, not the one that the key has; returns how many entries were examined.
pub(in crate::engine) fn apply(
    keys: &mut KeyTable,
    registry: &mut Registry,
    ctx: &StepContext<'_>,
    issuer: UmrIssuer,
    number: u32,
    umr: &Umr,
) -> Result<usize, CqeSyndrome> {
    let refused = CqeSyndrome::MwBind;
    let index = index_of(number);
    let key = keys.get(index).ok_or(refused)?;
    let new = View::<Mkc>::of(&umr.context);
    let frees = umr.mask & mkey_mask::FREE != 0 && new.is_set(Mkc::FREE);
    allowed(key, issuer, number, umr, frees)?;
    let mut context: [u8; 64] = key.context().as_bytes().first_chunk().copied().ok_or(refused)?;
    merge(&mut context, new, umr.mask, issuer.privileged);
    let raw = raw_translations(keys, ctx, issuer, umr)?;
    let list = match &raw {
        None => None,
        Some(raw) => Some((room_for(key, registry, umr.offset, raw)?, raw.as_ref())),
    };
    if !frees && key.mode() == Some(AccessMode::Klms) && !issuer.privileged {
        check_targets(keys, ctx, issuer, index, View::of(&context), list)?;
    }
    let (old, new) = (Resource::pd(key.pd()), Resource::pd(View::<Mkc>::of(&context).get(Mkc::PD)));
    if old != new {
        registry.change_use(Resource::mkey(index), Some(old), Some(new)).map_err(|_| refused)?;
    }
    Ok(keys.change(registry, index, context, list))
}

/// Returns whether the request wants a key that nothing is bound with, and something is.
pub(in crate::engine) fn is_bound_already(keys: &KeyTable, number: u32, umr: &Umr) -> bool {
    umr.check_free && keys.get(index_of(number)).is_some_and(|key| !key.is_free())
}

/// Returns the first entry that a list changes (`None` if it replaces all), if key and device have room for the list.
fn room_for(key: &Mkey, registry: &Registry, offset: Option<u64>, raw: &[u8]) -> Result<Option<u64>, CqeSyndrome> {
    let refused = CqeSyndrome::MwBind;
    let capacity = u64::from(key.context().get(Mkc::TRANSLATIONS_OCTWORD_SIZE)) * OCTOWORD as u64;
    // Lists are brought in whole units, which the last one of a small key may not fill.
    let capacity = capacity.next_multiple_of(LIST_UNIT);
    let start = offset.unwrap_or(0).checked_mul(OCTOWORD as u64).ok_or(refused)?;
    let end = start.checked_add(raw.len() as u64).filter(|&end| end <= capacity).ok_or(refused)?;
    let (first, more) = match &key.translations {
        Translations::Pages(pages) => (start / 8, pages.memory_after(raw.len()) - pages.memory()),
        Translations::Klms(klms) => {
            if usize::try_from(end).map_or(true, |end| end > MAX_KLM_BYTES) {
                return Err(refused);
            }
            (start / OCTOWORD as u64, KlmList::memory_of(end.saturating_sub(klms.raw_len() as u64)))
        }
    };
    if !registry.has_memory(more) {
        return Err(refused);
    }
    let first = offset.map(|_| first);
    if let (Translations::Klms(klms), Some(first)) = (&key.translations, first)
        && !klms.can_change(usize::try_from(first).map_err(|_| refused)?, raw)
    {
        return Err(refused);
    }
    Ok(first)
}

fn allowed(key: &Mkey, issuer: UmrIssuer, number: u32, umr: &Umr, frees: bool) -> Result<(), CqeSyndrome> {
    let refused = Err(CqeSyndrome::MwBind);
    // A request that asks for more than is done must not seem to have succeeded.
    if umr.mask & !KNOWN != 0 {
        return refused;
    }
    if issuer.restricted && (umr.mask & mkey_mask::A != 0 || key.mode() != Some(AccessMode::Mtt)) {
        return refused;
    }
    // A list of pages says what memory of the host a key opens, and the page size and the length how much around them. Programs
    // have queues too, so that takes a queue of the kernel, as `fre` of its context says (Linux sets it for its own queues).
    if key.mode() == Some(AccessMode::Mtt) && !issuer.privileged && !issuer.registers {
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
    if frees && !key.is_free() && key.tag() != KeyTag::of(number) {
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

fn raw_translations<'a>(
    keys: &KeyTable,
    ctx: &StepContext<'_>,
    issuer: UmrIssuer,
    umr: &'a Umr,
) -> Result<Option<Cow<'a, [u8]>>, CqeSyndrome> {
    match &umr.translations {
        UmrTranslations::None => Ok(None),
        UmrTranslations::Inline(raw) => Ok(Some(Cow::Borrowed(raw))),
        UmrTranslations::Memory(pointer) => {
            let len = usize::from(umr.octowords) * OCTOWORD;
            if pointer.len < len as u64 {
                return Err(CqeSyndrome::LocalLength);
            }
            let mut raw = vec![0; len];
            let access = Access { right: Right::LocalRead, pd: issuer.pd, qpn: issuer.qpn };
            keys.read(ctx, (pointer.lkey, pointer.addr), access, &mut raw).map_err(|_| CqeSyndrome::LocalProt)?;
            Ok(Some(Cow::Owned(raw)))
        }
    }
}

/// Returns what a window is bound to must exist, belong to the same domain, cover the range, and let the device do locally what
/// the window lets a peer do. Only the entries that cover the length of the window count: Linux pads an inline list to 64
/// bytes with the content of its send ring there. The architecture has the bind itself fail (Memory Window Bind Error, 11.6.2);
/// whether cards leave it to the access is not published.
fn check_targets(
    keys: &KeyTable,
    ctx: &StepContext<'_>,
    issuer: UmrIssuer,
    index: u32,
    window: View<'_, Mkc>,
    list: Option<(Option<u64>, &[u8])>,
) -> Result<(), CqeSyndrome> {
    let refused = CqeSyndrome::MwBind;
    if window.get(Mkc::QPN) != MKEY_ANY_QPN && window.get(Mkc::QPN) != issuer.qpn {
        return Err(refused);
    }
    let key = keys.get(index).ok_or(refused)?;
    let (klms, stays_bound) = (key.klms().ok_or(refused)?, key.stays_bound(window));
    let len = window.get64(Mkc::LEN);
    let check = |range: KeyRange| check_target(keys, issuer, index, window, range);
    // A request that is refused for it costs the same.
    ctx.meter.count_entries(match list {
        None if stays_bound => klms.count().min(MAX_CHECKED),
        None => klms.count(),
        Some((_, raw)) if stays_bound => raw.len() / OCTOWORD,
        Some((_, raw)) => klms.count() + raw.len() / OCTOWORD,
    });
    let reaches = match list {
        None => {
            // An access checks the keys behind again, so what was checked when it came is not checked once more.
            klms.ranges(len).take(if stays_bound { MAX_CHECKED } else { usize::MAX }).try_for_each(check)?;
            klms.len()
        }
        Some((Some(first), raw)) => {
            let first = usize::try_from(first).map_err(|_| refused)?;
            if let Some((old, new)) = klms.changed(first, raw).filter(|_| stays_bound) {
                covering(new.iter().copied(), klms.start_of(first), len).try_for_each(check)?;
                let sum = |runs: &[KeyRange]| runs.iter().map(|range| range.len).sum::<u64>();
                klms.len() - sum(&old) + sum(&new)
            } else {
                // A window that is not bound yet, where nothing has been checked, or a list with blocks that repeat, which is
                // short.
                let mut whole = klms.clone();
                whole.change(first, raw);
                whole.ranges(len).try_for_each(check)?;
                whole.len()
            }
        }
        Some((None, raw)) => {
            let whole = KlmList::read(raw);
            whole.ranges(len).try_for_each(check)?;
            whole.len()
        }
    };
    if len > reaches { Err(refused) } else { Ok(()) }
}

fn check_target(
    keys: &KeyTable,
    issuer: UmrIssuer,
    index: u32,
    window: View<'_, Mkc>,
    range: KeyRange,
) -> Result<(), CqeSyndrome> {
    let refused = CqeSyndrome::MwBind;
    if index_of(range.key) == index {
        return Err(refused);
    }
    let writes = window.is_set(Mkc::RW) || window.is_set(Mkc::A) || window.is_set(Mkc::LW);
    let rights = [Some(Right::LocalRead), writes.then_some(Right::LocalWrite)];
    for right in rights.into_iter().flatten() {
        let access = Access { right, pd: window.get(Mkc::PD), qpn: issuer.qpn };
        keys.check(range.key, range.addr, range.len, access).map_err(|_| refused)?;
    }
    Ok(())
}
