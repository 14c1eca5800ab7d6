//! Objects of the device: protection domains, memory keys, event queues, completion queues, queue pairs, shared
//! receive queues, the UAR page.

pub(crate) mod cq;
mod eq;
pub(crate) mod mkey;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod uar;
pub(crate) mod xrc;

use bareverbs::platform::Platform;
use bareverbs_mlx5_spec::{CmdOpcode, View, cmd};

use crate::dma::arena::{ObjectMemory, PAGE};
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;
use crate::object::Object;

impl<P: Platform> Driver<P> {
    /// Destroys an object, and frees its memory.
    pub(crate) fn end(&mut self, object: &Object) -> Result<(), Error> {
        self.commands.destroy(object)?;
        self.cqs = self.cqs.wrapping_sub(u32::from(object.is_destroyed_by(CmdOpcode::DestroyCq)));
        Ok(())
    }

    /// Makes an object in zeroed memory of its own: a ring of `bytes`, unless that is 0, and a doorbell record if `record` is set. The
    /// memory is free again if the object is not made.
    pub(crate) fn in_memory<T>(
        &mut self,
        bytes: usize,
        record: bool,
        make: impl FnOnce(&mut Self, ObjectMemory) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let memory = self.commands.allocate_memory(bytes.div_ceil(PAGE) as u32, record)?;
        make(self, memory).inspect_err(|_| self.commands.free_memory(memory))
    }

    pub(crate) fn alloc_pd(&mut self) -> Result<Object, Error> {
        let pd = self.commands.make::<cmd::AllocPd, cmd::DeallocPd>(View::zeros(), ObjectMemory::default())?;
        log_event!(debug, "protection domain {:x}", pd.number);
        Ok(pd)
    }
}
