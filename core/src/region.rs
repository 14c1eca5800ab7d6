//! Protection domains and memory regions.

use crate::parts::{Mr, Parts, Pd};
use crate::table::TableView;
use crate::{
    Access, AddressMap, AllocPdError, DeallocPdError, DeregMrError, Lkey, MrHandle, MrRequest, PdHandle, Provider, RegMrError,
    Rkey, Sge, SgeFault, kind,
};

/// What is known of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MrInfo {
    /// Protection domain.
    pub pd: PdHandle,
    /// First byte in the caller's address space.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Rights.
    pub access: Access,
    /// Key for SGEs.
    pub lkey: Lkey,
    /// Key for the peer.
    pub rkey: Rkey,
}

impl<P: Provider> Mr<P> {
    pub(crate) fn info(&self) -> MrInfo {
        MrInfo { pd: self.pd, addr: self.addr, length: self.length, access: self.access, lkey: self.lkey, rkey: self.rkey }
    }

    /// Whether `length` bytes from `addr`, an address of the region, lie inside it.
    #[inline]
    pub(crate) const fn holds(&self, addr: u64, length: u64) -> bool {
        let offset = addr.wrapping_sub(self.base);
        offset <= self.length && length <= self.length.wrapping_sub(offset)
    }
}

/// Low byte of the keys of a region: its slot in the bits of `slot_mask`, its generation above them.
pub(crate) fn key_byte(handle: MrHandle, slot_mask: u32) -> u8 {
    let slot = u32::from(handle.index());
    ((slot & slot_mask) | (handle.generation() << slot_mask.count_ones())) as u8
}

/// Bits of a key that hold the slot, for a table of `capacity` regions.
pub(crate) const fn slot_mask(capacity: usize) -> u32 {
    if capacity > 128 { 255 } else { capacity.next_power_of_two().wrapping_sub(1) as u32 }
}

/// The region with this key.
#[inline(always)]
pub(crate) fn find<P: Provider>(mrs: &TableView<kind::Mr, Mr<P>>, slot_mask: u32, lkey: Lkey) -> Option<&Mr<P>> {
    let slot = (lkey.get() & slot_mask) as usize;
    match mrs.at(slot) {
        Some(mr) if mr.lkey.get() == lkey.get() => Some(mr),
        // In a table that the byte can number there is no other place for it.
        _ if slot_mask < 255 => None,
        _ => find_beyond(mrs, slot, lkey),
    }
}

/// The same in the slots with the same low byte.
#[inline(never)]
fn find_beyond<P: Provider>(mrs: &TableView<kind::Mr, Mr<P>>, slot: usize, lkey: Lkey) -> Option<&Mr<P>> {
    (slot..mrs.len()).step_by(256).skip(1).filter_map(|slot| mrs.at(slot)).find(|mr| mr.lkey.get() == lkey.get())
}

/// Checks an SGE of a queue pair in `pd` against its region, which must have the rights `need`. An SGE of length 0 names no
/// byte and passes.
#[inline(always)]
pub(crate) fn check_sge<P: Provider>(
    mrs: &TableView<kind::Mr, Mr<P>>,
    slot_mask: u32,
    pd: PdHandle,
    need: Access,
    sge: &Sge,
) -> Result<(), SgeFault> {
    if sge.length == 0 {
        return Ok(());
    }
    let Some(mr) = find(mrs, slot_mask, sge.lkey) else { return Err(SgeFault::UnknownKey) };
    // Both domains exist as long as their region and queue pair do: one slot is one domain.
    if mr.pd.index() != pd.index() {
        return Err(SgeFault::Domain);
    }
    if !mr.access.contains(need) {
        return Err(SgeFault::Access);
    }
    if !mr.holds(sge.addr, u64::from(sge.length)) {
        return Err(SgeFault::Range);
    }
    Ok(())
}

impl<P: Provider> Parts<'_, P> {
    pub(crate) fn alloc_pd(&mut self) -> Result<PdHandle, AllocPdError<P::Error>> {
        let handle = self.pds.vacancy(self.first_generation()).ok_or(AllocPdError::Full)?;
        let inner = self.provider.alloc_pd().map_err(AllocPdError::Device)?;
        self.pds.occupy(handle, Pd { inner, users: 0 });
        Ok(handle)
    }

    pub(crate) fn dealloc_pd(&mut self, handle: PdHandle) -> Result<(), DeallocPdError<P::Error>> {
        let pd = self.pds.get_mut(handle).ok_or(DeallocPdError::Stale)?;
        if pd.users != 0 {
            return Err(DeallocPdError::Busy { users: pd.users });
        }
        self.provider.dealloc_pd(&mut pd.inner).map_err(DeallocPdError::Device)?;
        self.pds.remove(handle);
        Ok(())
    }

    /// One object fewer in a domain.
    pub(crate) fn leave_pd(&mut self, handle: PdHandle) {
        if let Some(pd) = self.pds.get_mut(handle) {
            pd.users = pd.users.saturating_sub(1);
        }
    }

    pub(crate) fn reg_mr(
        &mut self,
        pd_handle: PdHandle,
        addr: u64,
        length: u64,
        access: Access,
        map: &dyn AddressMap,
    ) -> Result<MrHandle, RegMrError<P::Error>> {
        let first = self.first_generation();
        let pd = self.pds.get_mut(pd_handle).ok_or(RegMrError::StalePd)?;
        let unknown = access.difference(Access::KNOWN);
        if !unknown.is_empty() {
            return Err(RegMrError::UnknownFlags { bits: unknown.bits() });
        }
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
            return Err(RegMrError::RemoteWithoutLocalWrite);
        }
        if length == 0 {
            return Err(RegMrError::Empty);
        }
        if addr.checked_add(length).is_none() {
            return Err(RegMrError::Overflow { addr, length });
        }
        let device = self.provider.device_attr();
        if length > device.max_mr_size {
            return Err(RegMrError::TooLong { max: device.max_mr_size });
        }
        let lacking = access.difference(device.access);
        if !lacking.is_empty() {
            return Err(RegMrError::Unsupported { bits: lacking.bits() });
        }
        let handle = self.mrs.vacancy(first).ok_or(RegMrError::Full)?;
        let key = key_byte(handle, self.slot_mask);
        let request = MrRequest { addr, length, access, key, map };
        let (mut inner, lkey, rkey) = self.provider.create_mr(&pd.inner, &request).map_err(RegMrError::Device)?;
        if lkey.get() as u8 != key || rkey.get() as u8 != key {
            self.provider.destroy_mr(&mut inner).map_err(RegMrError::Device)?;
            return Err(RegMrError::ForeignKey { key });
        }
        pd.users = pd.users.saturating_add(1);
        let base = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
        self.mrs.occupy(handle, Mr { lkey, access, pd: pd_handle, base, length, addr, rkey, bindings: 0, inner });
        Ok(handle)
    }

    pub(crate) fn dereg_mr(&mut self, handle: MrHandle) -> Result<(), DeregMrError<P::Error>> {
        let mr = self.mrs.get_mut(handle).ok_or(DeregMrError::Stale)?;
        if mr.bindings != 0 {
            return Err(DeregMrError::Busy { bindings: mr.bindings });
        }
        self.provider.destroy_mr(&mut mr.inner).map_err(DeregMrError::Device)?;
        let pd = mr.pd;
        self.mrs.remove(handle);
        self.leave_pd(pd);
        Ok(())
    }
}
