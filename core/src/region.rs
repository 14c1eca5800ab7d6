//! Protection domains and memory regions.

use core::mem::ManuallyDrop;

use crate::backend::{CoreToken, MrRequest, Provider};
use crate::error::{AllocPdError, AnswerFault, DeallocPdError, DeregMrError, DeviceError, RegMrError, StaleHandle};
use crate::log::log_event;
use crate::platform::AddressMap;
use crate::shared::{RegionFacts, RegionSlot};
use crate::verbs::Verbs;
use crate::{Access, DmaBuffer, Lkey, MrHandle, PdHandle, Refused, Region, Rkey};

/// Attributes of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
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

/// A protection domain.
pub(crate) struct Pd<P: Provider> {
    pub(crate) inner: P::Pd,
    /// Regions, windows, queue pairs and shared receive queues in it.
    pub(crate) users: u32,
}

/// A memory region as the control path keeps it; its slot is the one of its facts for requests.
pub(crate) struct Mr<P: Provider> {
    pub(crate) info: MrInfo,
    pub(crate) inner: P::Mr,
}

/// Why a region was not registered.
pub(crate) struct Unregistered<E> {
    pub(crate) error: RegMrError<E>,
    /// Whether the device may use its memory.
    pub(crate) in_use: bool,
}

impl<E> From<RegMrError<E>> for Unregistered<E> {
    fn from(error: RegMrError<E>) -> Self {
        Self { error, in_use: false }
    }
}

impl<'s, P: Provider> Verbs<'s, P> {
    /// Makes a protection domain.
    ///
    /// ```
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let pd = a.verbs.alloc_pd()?;
    /// a.verbs.dealloc_pd(pd)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The table is full, or the device refuses.
    pub fn alloc_pd(&mut self) -> Result<PdHandle, AllocPdError<P::Error>> {
        let full = AllocPdError::Full { capacity: self.pds.capacity() };
        let handle = self.pds.vacancy(self.first_generation).ok_or(full)?;
        let made = self.provider.alloc_pd(CoreToken::NEW);
        let inner = made.map_err(|error| AllocPdError::Device(self.failed(error)))?;
        self.pds.occupy(handle, Pd { inner, users: 0 });
        Ok(handle)
    }

    /// Destroys a protection domain to which nothing belongs.
    ///
    /// # Errors
    /// The handle is stale, something belongs to the domain, or the device refuses; the domain is as before.
    pub fn dealloc_pd(&mut self, handle: PdHandle) -> Result<(), DeallocPdError<P::Error>> {
        let users = self.pds.get(handle).ok_or(DeallocPdError::Stale)?.users;
        if users != 0 {
            return Err(DeallocPdError::Busy { users });
        }
        // Nothing names it while it ends, also not after a panic in the middle.
        let mut pd = self.pds.remove(handle).ok_or(DeallocPdError::Stale)?;
        if let Err(error) = self.provider.dealloc_pd(CoreToken::NEW, &mut pd.inner) {
            self.pds.occupy(handle, pd);
            return Err(DeallocPdError::Device(self.failed(error)));
        }
        Ok(())
    }

    /// Counts one object more in a domain.
    pub(crate) fn join_pd(&mut self, handle: PdHandle) {
        if let Some(pd) = self.pds.get_mut(handle) {
            pd.users = pd.users.saturating_add(1);
        }
    }

    /// Counts one object fewer in a domain.
    pub(crate) fn leave_pd(&mut self, handle: PdHandle) {
        if let Some(pd) = self.pds.get_mut(handle) {
            pd.users = pd.users.saturating_sub(1);
        }
    }

    /// Registers a buffer, which the region owns until [`Self::dereg_mr`] gives it back.
    ///
    /// ```
    /// # use bareverbs::Access;
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// // Any `DmaBuffer`: here memory of a simulated host, on Linux a `DmaAllocation` of `bareverbs-vfio`.
    /// let buffer = a.host.memory(4096).whole();
    /// let mut region = a.verbs.reg_mr(a.pd, buffer, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    /// region.write(0, b"for the peer to read")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Rights, range or domain are invalid, the table is full, or the device refuses. The buffer is returned, unless the device
    /// may use it: it did not answer, or keeps a key that it should have destroyed. A device that is known to be lost gets no
    /// buffer, and each is returned.
    pub fn reg_mr<B: DmaBuffer + 'static>(
        &mut self,
        pd: PdHandle,
        buffer: B,
        access: Access,
    ) -> Result<Region<'s, B>, Refused<B, RegMrError<P::Error>>> {
        // Not dropped by unwinding: the device may have executed the command by then.
        let buffer = ManuallyDrop::new(buffer);
        match self.register(pd, buffer.addr(), buffer.len(), access, &*buffer) {
            Ok((handle, info, slot)) => Ok(Region::new(ManuallyDrop::into_inner(buffer), handle, &info, slot)),
            Err(Unregistered { error, in_use }) => {
                let returned = if in_use { None } else { Some(ManuallyDrop::into_inner(buffer)) };
                Err(Refused { error, returned })
            }
        }
    }

    /// Registers `length` bytes from `addr` of the caller's address space, which `map` turns into the device's.
    ///
    /// # Safety
    /// Until [`Self::dereg_mr_raw`] has succeeded for the region, the bytes that `map` names for the device stay allocated. No
    /// Rust reference to them exists, and every other user of them expects the device to read and write them.
    ///
    /// # Errors
    /// [`RegMrError`]: rights, range or domain are invalid, the table is full, or the device refuses.
    #[expect(unsafe_code, reason = "the device uses whatever the numbers name")]
    pub unsafe fn reg_mr_raw(
        &mut self,
        pd: PdHandle,
        addr: u64,
        length: u64,
        access: Access,
        map: &dyn AddressMap,
    ) -> Result<MrHandle, RegMrError<P::Error>> {
        self.register(pd, addr, length, access, map).map(|(handle, ..)| handle).map_err(|refused| refused.error)
    }

    fn register(
        &mut self,
        pd: PdHandle,
        addr: u64,
        length: u64,
        access: Access,
        map: &dyn AddressMap,
    ) -> Result<(MrHandle, MrInfo, &'s RegionSlot), Unregistered<P::Error>> {
        self.check_region(pd, addr, length, access)?;
        if !self.shared.regions.slots().iter().any(|slot| slot.is_vacant()) {
            return Err(self.no_place_for_region().into());
        }
        let (mut inner, lkey, rkey) = self.create_key(pd, &MrRequest { addr, length, access, map })?;
        // The slot where a search for the key begins, or the first vacant one after it that has generations left.
        let vacant = self
            .shared
            .regions
            .in_order(lkey)
            .filter(|(_, slot)| slot.is_vacant())
            .find_map(|(index, slot)| Some((self.mrs.vacancy_at(index, self.first_generation)?, slot)));
        let (handle, slot) = match vacant {
            Some(vacant) if lkey.get() != 0 => vacant,
            _ => {
                if let Err(error) = self.provider.destroy_mr(CoreToken::NEW, &mut inner) {
                    return Err(Unregistered { error: RegMrError::Device(self.failed(error)), in_use: true });
                }
                return Err(match vacant {
                    Some(_) => RegMrError::Answer { fault: AnswerFault::NoKey },
                    None => self.no_place_for_region(),
                }
                .into());
            }
        };
        self.join_pd(pd);
        let info = MrInfo { pd, addr, length, access, lkey, rkey };
        self.mrs.occupy(handle, Mr { info, inner });
        self.publish(handle, Some(&info));
        log_event!(debug, "region {:?}: {} bytes, key {:?}", handle, length, lkey);
        Ok((handle, info, slot))
    }

    fn no_place_for_region(&self) -> RegMrError<P::Error> {
        RegMrError::Full { capacity: self.shared.regions.slots().len() }
    }

    /// Creates a key over memory that was checked ([`Self::check_region`]).
    pub(crate) fn create_key(
        &mut self,
        pd: PdHandle,
        request: &MrRequest<'_>,
    ) -> Result<(P::Mr, Lkey, Rkey), Unregistered<P::Error>> {
        // Its error would say that it may use the memory, which it has never seen.
        if let Some((_, error)) = self.provider.lost() {
            return Err(RegMrError::Device(self.failed(error)).into());
        }
        let domain = self.pds.get(pd).ok_or(RegMrError::StalePd)?;
        let (inner, lkey, rkey) = match self.provider.create_mr(CoreToken::NEW, &domain.inner, request) {
            Ok(created) => created,
            Err(error) => {
                let in_use = error.may_use_memory();
                return Err(Unregistered { error: RegMrError::Device(self.failed(error)), in_use });
            }
        };
        if self.has_key(lkey.index()) {
            // Not destroyed: by its index that would be the other.
            return Err(Unregistered {
                error: RegMrError::Answer { fault: AnswerFault::KeyInUse { key: lkey.get() } },
                in_use: true,
            });
        }
        Ok((inner, lkey, rkey))
    }

    /// Returns whether a region or a window has a key with this index.
    pub(crate) fn has_key(&self, index: u32) -> bool {
        let mut regions = self.shared.regions.slots().iter().filter_map(|slot| slot.facts());
        regions.any(|facts| facts.lkey.index() == index) || self.shared.windows.with(|windows| windows.has_key(index))
    }

    /// Checks what is to be registered.
    pub(crate) fn check_region(
        &self,
        pd: PdHandle,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(), RegMrError<P::Error>> {
        self.pds.get(pd).ok_or(RegMrError::StalePd)?;
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
        Ok(())
    }

    /// Lets requests see a region, or that it is gone.
    pub(crate) fn publish(&self, handle: MrHandle, info: Option<&MrInfo>) {
        let Some(slot) = self.shared.regions.slots().get(usize::from(handle.index())) else { return };
        let facts = info.map(|info| RegionFacts {
            lkey: info.lkey,
            generation: handle.generation(),
            pd: info.pd.index(),
            access: info.access,
            base: if info.access.contains(Access::ZERO_BASED) { 0 } else { info.addr },
            length: info.length,
            max_message: self.provider.device_attr().max_message(),
        });
        slot.set(facts.as_ref());
    }

    /// Returns the attributes of a region, with its keys.
    ///
    /// # Errors
    /// The handle is stale.
    pub fn mr_info(&self, mr: MrHandle) -> Result<MrInfo, StaleHandle> {
        self.mrs.get(mr).map(|mr| mr.info).ok_or(StaleHandle)
    }

    /// Deregisters a region without bound windows or registrations of its pieces ([`FastMr`](crate::FastMr)), and gives its buffer back:
    /// the device does not use it any more.
    ///
    /// ```
    /// # use bareverbs::{Access, DmaBuffer};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let region = a.register(4096, Access::LOCAL_WRITE)?;
    /// let buffer = a.verbs.dereg_mr(region)?;
    /// assert_eq!(buffer.len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The region is not of this device, windows are bound to it, its pieces are registered, or the device refuses: the region comes
    /// back and is as before. Requests with its keys that another core posts meanwhile may be refused.
    pub fn dereg_mr<B: DmaBuffer + 'static>(
        &mut self,
        region: Region<'s, B>,
    ) -> Result<B, Refused<Region<'s, B>, DeregMrError<P::Error>>> {
        // The slot is in the tables of one device. If it is another region's by now, the handle is stale.
        let slot = self.shared.regions.slots().get(usize::from(region.handle().index()));
        let named = slot.is_some_and(|slot| core::ptr::eq(slot, region.slot()));
        let result = if named { self.deregister(region.handle()) } else { Err(DeregMrError::Stale) };
        match result {
            Ok(()) => Ok(region.into_buffer()),
            Err(error) => Err(Refused { error, returned: Some(region) }),
        }
    }

    /// Deregisters a region that [`Self::reg_mr_raw`] made, or one whose [`Region`] was dropped: its buffer is not freed.
    ///
    /// Not `unsafe`, since no memory is freed by it, whatever the handle names. A [`Region`] that still exists keeps its buffer for ever:
    /// its keys are no keys any more, and [`Self::dereg_mr`] and [`Self::rereg_mr`] refuse it as stale.
    ///
    /// # Errors
    /// [`DeregMrError`]: the handle is stale, windows are bound to the region, its pieces are registered, or the device refuses.
    pub fn dereg_mr_raw(&mut self, mr: MrHandle) -> Result<(), DeregMrError<P::Error>> {
        self.deregister(mr)
    }

    /// Lets requests see a region no more, unless windows are bound to it, or may be.
    pub(crate) fn hide_region(&mut self, handle: MrHandle, info: &MrInfo) -> Result<(), DeregMrError<P::Error>> {
        // Under the lock, so that no bind comes between the count and the end of the region.
        let (bindings, doubts) = self.shared.windows.with(|windows| {
            let bindings = windows.bindings_of(handle);
            if bindings == 0
                && let Some(slot) = self.shared.regions.slots().get(usize::from(handle.index()))
            {
                slot.set(None);
            }
            (bindings, windows.doubts_of(handle))
        });
        if bindings != 0 {
            return Err(DeregMrError::Busy { bindings });
        }
        if doubts == 0 {
            return Ok(());
        }
        let settled = self.settle_doubts(handle);
        let bindings = self.shared.windows.with(|windows| windows.doubts_of(handle));
        let result = match settled {
            Ok(()) if bindings == 0 => return Ok(()),
            Ok(()) => DeregMrError::Busy { bindings },
            Err(error) => DeregMrError::Device(error),
        };
        self.publish(handle, Some(info));
        Err(result)
    }

    fn deregister(&mut self, handle: MrHandle) -> Result<(), DeregMrError<P::Error>> {
        let info = self.mrs.get(handle).ok_or(DeregMrError::Stale)?.info;
        self.hide_region(handle, &info)?;
        // Nothing names it while it ends, also not after a panic in the middle: its key may be another's by then.
        let mut mr = self.mrs.remove(handle).ok_or(DeregMrError::Stale)?;
        if let Err(error) = self.provider.destroy_mr(CoreToken::NEW, &mut mr.inner) {
            self.mrs.occupy(handle, mr);
            self.publish(handle, Some(&info));
            return Err(DeregMrError::Device(self.failed(error)));
        }
        self.leave_pd(info.pd);
        Ok(())
    }
}
