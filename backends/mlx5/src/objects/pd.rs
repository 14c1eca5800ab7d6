//! Protection domains.

use bareverbs::{Pdn, Platform};
use bareverbs_mlx5_spec::{AllocPdIn, CmdOpcode, Layout};

use crate::command::late::{ObjectMemory, PendingDestroy};
use crate::driver::Driver;
use crate::error::Error;
use crate::log::{format_as, log_event};

/// A protection domain of this backend.
pub struct Pd {
    pub(crate) number: u32,
    pub(crate) destroy: PendingDestroy,
}

format_as!([] Pd, "Pd({:x})", |this| this.number);

impl Pd {
    /// Number.
    pub const fn pdn(&self) -> Pdn {
        Pdn::new(self.number)
    }
}

impl<P: Platform> Driver<P> {
    /// Makes a domain.
    pub(crate) fn alloc_pd(&mut self) -> Result<Pd, Error> {
        let input = [0; AllocPdIn::SIZE];
        let number = self.create(CmdOpcode::AllocPd, &input, &mut core::iter::empty(), 0, ObjectMemory::NONE)?;
        log_event!(debug, "protection domain {:x}", number);
        Ok(Pd { number, destroy: PendingDestroy::NONE })
    }

    /// Destroys a domain.
    pub(crate) fn dealloc_pd(&mut self, pd: &mut Pd) -> Result<(), Error> {
        self.destroy(CmdOpcode::DeallocPd, pd.number, &mut pd.destroy)?;
        log_event!(debug, "protection domain {:x} is gone", pd.number);
        Ok(())
    }
}
