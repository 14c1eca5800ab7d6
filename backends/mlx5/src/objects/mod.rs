//! Objects of the device: protection domains, memory keys, event queues, completion queues, queue pairs, shared
//! receive queues, the UAR page.

/// Implements `Debug` and the number of an object.
macro_rules! numbered {
    ($name:ident, $text:literal, $call:ident -> $number:ident) => {
        format_as!([] $name, $text, |this| this.number);

        impl $name {
            /// Returns its number.
            pub const fn $call(&self) -> $number {
                $number::new(self.number)
            }
        }
    };
}

pub(crate) mod cq;
mod eq;
pub(crate) mod mkey;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod uar;
pub(crate) mod xrc;

use bareverbs::Platform;
use bareverbs_mlx5_spec::CmdOpcode;

use crate::dma::arena::PAGE;
use crate::dma::object_memory::ObjectMemory;
use crate::driver::Driver;
use crate::error::Error;

impl<P: Platform> Driver<P> {
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

    /// Destroys an object of any kind by the opcode of the command, and frees its memory.
    pub(crate) fn end_object(&mut self, destroy: CmdOpcode, number: u32, memory: ObjectMemory) -> Result<(), Error> {
        self.commands.destroy_object(destroy, number, memory)?;
        self.cqs = self.cqs.wrapping_sub(u32::from(destroy == CmdOpcode::DestroyCq));
        Ok(())
    }
}
