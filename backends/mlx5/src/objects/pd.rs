//! Protection domains.

use bareverbs::Platform;
use bareverbs_mlx5_spec::{View, cmd};

use crate::dma::object_memory::ObjectMemory;
use crate::driver::Driver;
use crate::error::Error;
use crate::log::{format_as, log_event};

/// A protection domain of this backend.
pub struct Pd {
    pub(crate) number: u32,
}

format_as!([] Pd, "Pd({:x})", |this| this.number);

impl<P: Platform> Driver<P> {
    pub(crate) fn alloc_pd(&mut self) -> Result<Pd, Error> {
        let number = self.commands.create::<cmd::AllocPd>(View::zeros(), ObjectMemory::NONE)?;
        log_event!(debug, "protection domain {:x}", number);
        Ok(Pd { number })
    }

    pub(crate) fn dealloc_pd(&mut self, pd: &mut Pd) -> Result<(), Error> {
        self.commands.destroy::<cmd::DeallocPd>(pd.number, ObjectMemory::NONE)?;
        log_event!(debug, "protection domain {:x} is gone", pd.number);
        Ok(())
    }
}
