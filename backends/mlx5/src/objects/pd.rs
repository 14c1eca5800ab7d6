//! Protection domains.

use bareverbs::{Pdn, Platform};
use bareverbs_mlx5_spec::{View, cmd};

use crate::command::object::Object;
use crate::dma::object_memory::ObjectMemory;
use crate::driver::Driver;
use crate::error::PackedError;
use crate::log::{format_as, log_event};

/// A protection domain of this backend.
pub struct Pd {
    pub(crate) object: Object,
}

format_as!([] Pd, "Pd({:x})", |this| this.object.number);

impl Pd {
    /// Returns its number.
    pub const fn pdn(&self) -> Pdn {
        Pdn::new(self.object.number)
    }
}

impl<P: Platform> Driver<P> {
    /// Creates a domain.
    pub(crate) fn alloc_pd(&mut self) -> Result<Pd, PackedError> {
        let number = self.commands.create::<cmd::AllocPd>(View::zeros(), ObjectMemory::NONE)?;
        log_event!(debug, "protection domain {:x}", number);
        Ok(Pd { object: Object::new(number) })
    }

    /// Destroys a domain.
    pub(crate) fn dealloc_pd(&mut self, pd: &mut Pd) -> Result<(), PackedError> {
        self.commands.destroy::<cmd::DeallocPd>(&mut pd.object, ObjectMemory::NONE)?;
        log_event!(debug, "protection domain {:x} is gone", pd.object.number);
        Ok(())
    }
}
