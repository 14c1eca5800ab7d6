//! Creation and destruction of objects of the device, with the memory that they lie in.

use bareverbs::platform::{DmaMemory, Platform};
use bareverbs_mlx5_spec::{CmdOpcode, Command, CreateQpOut, DestroyQpIn, Layout, View, ViewMut};

use super::{Call, CommandClass, CommandInterface, List};
use crate::dma::arena::{ObjectMemory, PAGE, PageRange};
use crate::error::Error;
use crate::log::log_event;
use crate::object::{Object, SHORT, destroyed, object_of};

impl<P: Platform> CommandInterface<P> {
    /// Allocates contiguous pages and fills them with zeros.
    pub(crate) fn allocate_cleared(&mut self, pages: u32) -> Result<PageRange, Error> {
        let range = self.arena.allocate(pages)?;
        for at in (range.at()..range.at() + range.bytes()).step_by(64) {
            self.machine.memory.store(at, &[0; 8]).inspect_err(|_| self.arena.free(range))?;
        }
        Ok(range)
    }

    /// Allocates zeroed memory for an object: a ring of `pages` pages, unless that is 0, and a doorbell record if `record` is
    /// set.
    pub(crate) fn allocate_memory(&mut self, pages: u32, record: bool) -> Result<ObjectMemory, Error> {
        self.check_alive()?;
        let mut memory = ObjectMemory { ring: self.allocate_cleared(pages)?, record: 0 };
        if record {
            let made = self.arena.allocate_record().and_then(|at| {
                memory.record = at;
                Ok(self.machine.memory.store(at, &[0; 1])?)
            });
            made.inspect_err(|_| self.free_memory(memory))?;
        }
        Ok(memory)
    }

    /// Frees the memory of an object that is gone, or was not created. If the device is lost, it may have the object.
    pub(crate) fn free_memory(&mut self, memory: ObjectMemory) {
        if self.dead.is_some() {
            return;
        }
        self.arena.free(memory.ring);
        if memory.record != 0 {
            self.arena.free_record(memory.record);
        }
    }

    /// Creates an object in `memory`, whose pages follow the input, and returns its number.
    #[inline(always)]
    pub(crate) fn create<C: Command>(&mut self, input: View<'_, C::In>, memory: ObjectMemory) -> Result<u32, Error> {
        const { assert!(object_of::<C>(true).is_some() && C::Out::SIZE == SHORT) };
        self.execute_in(C::OPCODE, input.as_bytes(), memory)
    }

    /// The same with command `D`, which will destroy it.
    #[inline(always)]
    pub(crate) fn make<C: Command, D: Command>(
        &mut self,
        input: View<'_, C::In>,
        memory: ObjectMemory,
    ) -> Result<Object, Error> {
        const {
            // Of the same kind.
            let kinds = (object_of::<C>(true), destroyed::<D>());
            assert!(matches!(kinds, (Some(created), Some(destroyed)) if created as u32 == destroyed as u32));
        }
        Ok(Object::of::<D>(self.create::<C>(input, memory)?, memory))
    }

    /// Executes a command whose input ends with the pages of `memory`, and returns the number in its output.
    pub(crate) fn execute_in(&mut self, opcode: CmdOpcode, head: &[u8], memory: ObjectMemory) -> Result<u32, Error> {
        let start = self.arena.addr(memory.ring.at());
        self.execute_with(opcode, head, (memory.ring.pages as usize, &mut |page| start.wrapping_add((page * PAGE) as u64)))
    }

    /// Executes a command whose input ends with a list, and returns the number in its output.
    pub(crate) fn execute_with(&mut self, opcode: CmdOpcode, head: &[u8], (len, entry): List<'_>) -> Result<u32, Error> {
        let mut output = [0; SHORT];
        let call = &mut Call { opcode, head, list: (len, entry), output: &mut output, output_len: SHORT };
        self.call(CommandClass::Regular, call)?;
        Ok(View::<CreateQpOut>::of(&output).get(CreateQpOut::QPN))
    }

    /// Destroys an object and frees its memory.
    pub(crate) fn destroy(&mut self, object: &Object) -> Result<(), Error> {
        let mut input = [0; SHORT];
        ViewMut::<DestroyQpIn>::of(&mut input).set(DestroyQpIn::QPN, object.number);
        self.execute(object.destroy, &input, &mut [], SHORT)?;
        self.free_memory(object.memory);
        log_event!(debug, "{:?} of {:x}", object.destroy, object.number);
        Ok(())
    }
}
