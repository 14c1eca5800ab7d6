//! Memory windows as objects: what is known of them, making and destroying them.

use crate::bind::{WindowState, release};
use crate::parts::{Mw, Parts};
use crate::{Access, AllocMwError, DeallocMwError, MrHandle, MwHandle, MwType, PdHandle, Provider, Rkey};

/// What a window is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Binding {
    /// Region.
    pub mr: MrHandle,
    /// First byte, in the address space of the region.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Remote rights, and `ZERO_BASED`.
    pub access: Access,
}

/// What is known of a memory window. A bind changes it when it is posted, and a failed one changes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MwInfo {
    /// Protection domain.
    pub pd: PdHandle,
    /// Type.
    pub kind: MwType,
    /// Key for the peer; opens nothing while the window is unbound.
    pub rkey: Rkey,
    /// What it is bound to.
    pub binding: Option<Binding>,
}

impl<P: Provider> Mw<P> {
    pub(crate) fn info(&self) -> MwInfo {
        MwInfo { pd: self.pd, kind: self.kind, rkey: self.state.rkey, binding: self.state.binding }
    }
}

impl<P: Provider> Parts<'_, P> {
    pub(crate) fn alloc_mw(&mut self, pd_handle: PdHandle, kind: MwType) -> Result<MwHandle, AllocMwError<P::Error>> {
        let first = self.first_generation();
        let pd = self.pds.get_mut(pd_handle).ok_or(AllocMwError::StalePd)?;
        let handle = self.mws.vacancy(first).ok_or(AllocMwError::Full)?;
        let (inner, rkey) = self.provider.create_mw(&pd.inner, kind).map_err(AllocMwError::Device)?;
        pd.users = pd.users.saturating_add(1);
        self.mws.occupy(handle, Mw { state: WindowState { rkey, binding: None }, pd: pd_handle, kind, inner });
        Ok(handle)
    }

    pub(crate) fn dealloc_mw(&mut self, handle: MwHandle) -> Result<(), DeallocMwError<P::Error>> {
        let mw = self.mws.get_mut(handle).ok_or(DeallocMwError::Stale)?;
        self.provider.destroy_mw(&mut mw.inner).map_err(DeallocMwError::Device)?;
        let (pd, state) = (mw.pd, mw.state);
        self.mws.remove(handle);
        release(self.mrs, state.binding);
        self.forget_binds(|record| record.mw == handle);
        self.leave_pd(pd);
        Ok(())
    }
}
