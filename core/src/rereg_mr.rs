//! Regions that change: other rights, another protection domain, another buffer.

use core::mem::ManuallyDrop;

use crate::backend::{CoreToken, MrRequest, Provider};
use crate::error::{AnswerFault, DeregMrError, RegMrError, ReregMrError};
use crate::log::log_event;
use crate::platform::AddressMap;
use crate::region::Unregistered;
use crate::verbs::Verbs;
use crate::{Access, DmaBuffer, Lkey, MrHandle, MrInfo, PdHandle, Refused, Region};

/// What changes of a region, beside its keys (`IBV_REREG_MR_CHANGE_PD`, `IBV_REREG_MR_CHANGE_ACCESS`); what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MrChange {
    /// Its protection domain.
    pub pd: Option<PdHandle>,
    /// Its rights, all of them.
    pub access: Option<Access>,
}

/// Why a region was not changed.
struct Unchanged<E> {
    error: ReregMrError<E>,
    /// A key that nobody names any more may open its memory.
    open: bool,
}

impl<E, F: Into<ReregMrError<E>>> From<F> for Unchanged<E> {
    fn from(error: F) -> Self {
        Self { error: error.into(), open: false }
    }
}

impl<'s, P: Provider> Verbs<'s, P> {
    /// Changes rights or protection domain of a region (`ibv_rereg_mr`). Its handle stays, its keys change: requests that name the old
    /// ones fail, here and at the peer, as after [`Self::dereg_mr`].
    ///
    /// ```
    /// # use bareverbs::{Access, MrChange, Refused};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let region = a.register(4096, Access::LOCAL_WRITE)?;
    /// let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// let region = a.verbs.rereg_mr(region, &MrChange { access: Some(rights), ..MrChange::default() }).map_err(Refused::into_error)?;
    /// assert_eq!(a.verbs.mr_info(region.handle())?.access, rights);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The region is not of this device, windows are bound to it, its pieces are registered, the new rights or domain are invalid, or the
    /// device refuses. The region comes back and is as before. It does not if the device keeps a key that it should have destroyed: then its buffer is never freed.
    #[expect(clippy::type_complexity, reason = "what was handed in is given back")]
    pub fn rereg_mr<B: DmaBuffer + 'static>(
        &mut self,
        region: Region<'s, B>,
        change: &MrChange,
    ) -> Result<Region<'s, B>, Refused<Region<'s, B>, ReregMrError<P::Error>>> {
        let changed = match self.own_region(&region) {
            Some(old) => self.reregister(region.handle(), &old, (region.addr(), region.len(), &*region), change),
            None => Err(DeregMrError::Stale.into()),
        };
        match changed {
            Ok(info) => {
                let (handle, slot) = (region.handle(), region.slot());
                Ok(Region::new(region.into_buffer(), handle, &info, slot))
            }
            Err(Unchanged { error, open }) => {
                // A lost device ends no region any more, so that the buffer stays in this one.
                let is_unsafe = open && self.provider.lost().is_none();
                Err(Refused { error, returned: if is_unsafe { None } else { Some(region) } })
            }
        }
    }

    /// Gives a region another buffer (`ibv_rereg_mr` with `IBV_REREG_MR_CHANGE_TRANSLATION`), and changes what [`Self::rereg_mr`] does.
    /// The old buffer comes back: the device does not use it any more.
    ///
    /// ```
    /// # use bareverbs::{Access, DmaBuffer, MrChange, Refused};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let region = a.register(4096, Access::LOCAL_WRITE)?;
    /// let other = a.register(8192, Access::LOCAL_WRITE)?;
    /// let buffer = a.verbs.dereg_mr(other).map_err(Refused::into_error)?;
    /// let (region, old) = a.verbs.rereg_mr_buffer(region, buffer, &MrChange::default()).map_err(Refused::into_error)?;
    /// assert_eq!((a.verbs.mr_info(region.handle())?.length, old.len()), (8192, 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ReregMrError`]: the new rights, domain or range are refused, windows are bound to the region, its pieces are registered, or the
    /// device refuses. Region and buffer come back, unless the device may use the memory.
    #[expect(clippy::type_complexity, reason = "what was handed in is given back")]
    pub fn rereg_mr_buffer<B: DmaBuffer + 'static>(
        &mut self,
        region: Region<'s, B>,
        buffer: B,
        change: &MrChange,
    ) -> Result<(Region<'s, B>, B), Refused<(Region<'s, B>, B), ReregMrError<P::Error>>> {
        // Not dropped by unwinding: the device may have executed the command by then.
        let buffer = ManuallyDrop::new(buffer);
        let changed = match self.own_region(&region) {
            Some(old) => self.reregister(region.handle(), &old, (buffer.addr(), buffer.len(), &*buffer), change),
            None => Err(DeregMrError::Stale.into()),
        };
        match changed {
            Ok(info) => {
                let (handle, slot) = (region.handle(), region.slot());
                Ok((Region::new(ManuallyDrop::into_inner(buffer), handle, &info, slot), region.into_buffer()))
            }
            Err(Unchanged { error, open }) => {
                let returned = if open { None } else { Some((region, ManuallyDrop::into_inner(buffer))) };
                Err(Refused { error, returned })
            }
        }
    }

    /// Returns the attributes of a region, if it is of these verbs.
    fn own_region<B: DmaBuffer>(&self, region: &Region<'s, B>) -> Option<MrInfo> {
        let slot = self.shared.regions.slots().get(usize::from(region.handle().index()))?;
        if core::ptr::eq(slot, region.slot()) { self.mr_info(region.handle()).ok() } else { None }
    }

    /// Makes the new key, then destroys the old one: so it is as before if the device refuses either.
    #[inline(never)]
    fn reregister(
        &mut self,
        handle: MrHandle,
        old: &MrInfo,
        (addr, length, map): (u64, u64, &dyn AddressMap),
        change: &MrChange,
    ) -> Result<MrInfo, Unchanged<P::Error>> {
        let (pd, access) = (change.pd.unwrap_or(old.pd), change.access.unwrap_or(old.access));
        self.check_region(pd, addr, length, access)?;
        let (inner, lkey, rkey) = self
            .create_key(pd, &MrRequest { addr, length, access, map })
            .map_err(|Unregistered { error, in_use }| Unchanged { error: error.into(), open: in_use })?;
        match self.exchange(handle, old, inner, lkey) {
            Ok(()) => {}
            Err((error, mut inner)) => {
                let open = self.provider.destroy_mr(CoreToken::NEW, &mut inner).is_err_and(|error| {
                    self.failed(error);
                    true
                });
                return Err(Unchanged { error, open });
            }
        }
        let info = MrInfo { pd, addr, length, access, lkey, rkey };
        if let Some(kept) = self.mrs.get_mut(handle) {
            kept.info = info;
        }
        self.leave_pd(old.pd);
        if let Some(domain) = self.pds.get_mut(pd) {
            domain.users = domain.users.saturating_add(1);
        }
        self.publish(handle, Some(&info));
        log_event!(debug, "region {:?} is another: {} bytes, key {:?}", handle, length, lkey);
        Ok(info)
    }

    /// Destroys the key of a region and puts the new one into its place, which requests do not see yet. An error gives the new one back.
    fn exchange(
        &mut self,
        handle: MrHandle,
        old: &MrInfo,
        inner: P::Mr,
        lkey: Lkey,
    ) -> Result<(), (ReregMrError<P::Error>, P::Mr)> {
        if lkey.get() == 0 {
            return Err((RegMrError::Answer { fault: AnswerFault::NoKey }.into(), inner));
        }
        if let Err(error) = self.hide_region(handle, old) {
            return Err((error.into(), inner));
        }
        // Nothing names it while its key ends, also not after a panic in the middle: the key may be another's by then.
        let Some(mut kept) = self.mrs.remove(handle) else { return Err((DeregMrError::Stale.into(), inner)) };
        if let Err(error) = self.provider.destroy_mr(CoreToken::NEW, &mut kept.inner) {
            self.mrs.occupy(handle, kept);
            self.publish(handle, Some(old));
            return Err((DeregMrError::Device(self.failed(error)).into(), inner));
        }
        kept.inner = inner;
        self.mrs.occupy(handle, kept);
        Ok(())
    }
}
