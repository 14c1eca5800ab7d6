//! Creation and destruction of objects of the device, with the memory that they lie in.

use bareverbs::{DmaMemory, Platform};
use bareverbs_mlx5_spec::{
    AllocPdOut, AllocUarOut, CmdOpcode, Command, CreateCqOut, CreateEqOut, CreateMkeyOut, CreateQpOut, DeallocPdIn,
    DeallocUarIn, DestroyCqIn, DestroyEqIn, DestroyMkeyIn, DestroyQpIn, Field, Layout, View, ViewMut, cmd,
};

use super::name::CmdName;
use super::timed_out::{CommandId, LateAction};
use super::{Call, CommandClass, CommandInterface};
use crate::dma::arena::{PAGE, PageRange};
use crate::dma::object_memory::ObjectMemory;
use crate::error::PackedError;
use crate::log::log_event;

/// Bytes of the output of every command that creates an object, and of input and output of every command that destroys one.
const SHORT: usize = 16;

/// A command that creates an object.
pub(crate) trait Creates: Command {
    /// The command that destroys it.
    type Undo: Command;
}

/// Returns whether a field lies where [`number_of`] and [`naming`] expect the number of an object.
const fn is_number<L>(field: Field<L>) -> bool {
    field.dword() == DestroyQpIn::QPN.dword() && field.mask() & !DestroyQpIn::QPN.mask() == 0 && field.mask() & 1 != 0
}

macro_rules! creates {
    ($($create:ident $made:ident::$new:ident, $destroy:ident $input:ident::$number:ident;)+) => {$(
        impl Creates for cmd::$create {
            type Undo = cmd::$destroy;
        }

        const _: () = {
            assert!(is_number::<<cmd::$create as Command>::Out>($made::$new), "the number of a new object");
            assert!(is_number::<<cmd::$destroy as Command>::In>($input::$number), "the number of an object to destroy");
            assert!($made::SIZE == SHORT && $input::SIZE == SHORT && <cmd::$destroy as Command>::Out::SIZE == SHORT);
        };
    )+};
}

creates! {
    AllocPd AllocPdOut::PD, DeallocPd DeallocPdIn::PD;
    AllocUar AllocUarOut::UAR, DeallocUar DeallocUarIn::UAR;
    CreateMkey CreateMkeyOut::MKEY_INDEX, DestroyMkey DestroyMkeyIn::MKEY_INDEX;
    CreateEq CreateEqOut::EQ_NUMBER, DestroyEq DestroyEqIn::EQ_NUMBER;
    CreateCq CreateCqOut::CQN, DestroyCq DestroyCqIn::CQN;
    CreateQp CreateQpOut::QPN, DestroyQp DestroyQpIn::QPN;
}

/// Returns the number of an object from the output of the command that created it.
pub(super) fn number_of<const N: usize>(output: &[u8; N]) -> u32 {
    View::<CreateQpOut>::of(output).get(CreateQpOut::QPN)
}

/// Returns the input of a command that destroys an object.
fn naming(number: u32) -> [u8; SHORT] {
    let mut input = [0; SHORT];
    ViewMut::<DestroyQpIn>::of(&mut input).set(DestroyQpIn::QPN, number);
    input
}

/// An object of the device.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) number: u32,
    /// The attempt to destroy it that timed out.
    pub(super) pending: Option<CommandId>,
}

impl Object {
    /// Returns a new object.
    pub(crate) const fn new(number: u32) -> Self {
        Self { number, pending: None }
    }
}

impl<P: Platform> CommandInterface<P> {
    /// Allocates contiguous pages and fills them with zeros.
    pub(crate) fn allocate_cleared(&mut self, pages: u32) -> Result<PageRange, PackedError> {
        let range = self.arena.allocate(pages)?;
        for at in (range.at()..range.at() + range.bytes()).step_by(64) {
            if let Err(error) = self.machine.memory.store(at, &[0; 8]) {
                self.arena.free(range);
                return Err(error.into());
            }
        }
        Ok(range)
    }

    /// Allocates zeroed memory for an object: a ring of `pages` pages, unless that is 0, and a doorbell record if `record` is
    /// set.
    pub(crate) fn allocate_memory(&mut self, pages: u32, record: bool) -> Result<ObjectMemory, PackedError> {
        let range = if pages == 0 { None } else { Some(self.allocate_cleared(pages)?) };
        let mut memory = ObjectMemory::new(range, None);
        if record {
            let made = self.arena.allocate_record().and_then(|at| {
                memory = ObjectMemory::new(range, Some(at));
                Ok(self.machine.memory.store(at, &[0; 1])?)
            });
            if let Err(error) = made {
                self.free_memory(memory);
                return Err(error);
            }
        }
        Ok(memory)
    }

    /// Frees the memory of an object that is gone.
    pub(crate) fn free_memory(&mut self, memory: ObjectMemory) {
        if let Some(range) = memory.range() {
            self.arena.free(range);
        }
        if memory.has_record() {
            self.arena.free_record(memory.record());
        }
    }

    /// Leaks memory that the device may still use. A doorbell record stays allocated.
    pub(super) fn leak_memory(&mut self, memory: ObjectMemory) {
        if let Some(range) = memory.range() {
            self.arena.leak(range);
        }
    }

    /// Frees the memory of an object that was not created, or leaks it if the device may still use it.
    pub(crate) fn release_memory(&mut self, memory: ObjectMemory, error: PackedError) {
        if error.may_still_complete() { self.leak_memory(memory) } else { self.free_memory(memory) }
    }

    /// Creates an object in `memory`, whose pages follow the input, and returns its number.
    ///
    /// If the command completes after its timeout, the object is destroyed again and its memory freed. After an error that [may
    /// still complete](PackedError::may_still_complete) the memory is not the caller's to free.
    #[inline(always)]
    pub(crate) fn create<C: Creates>(&mut self, input: View<'_, C::In>, memory: ObjectMemory) -> Result<u32, PackedError> {
        self.create_in(C::OPCODE, C::Undo::OPCODE, input.as_bytes(), memory)
    }

    fn create_in(&mut self, opcode: CmdOpcode, undo: CmdOpcode, head: &[u8], memory: ObjectMemory) -> Result<u32, PackedError> {
        let start = self.arena.addr(memory.at());
        let entry = &mut |page| start.wrapping_add((page * PAGE) as u64);
        self.create_object(opcode, undo, head, memory.pages() as usize, entry, memory)
    }

    /// Creates an object without memory of the driver, same as [`CommandInterface::create`]. `len` 64-bit entries follow the input.
    #[inline(always)]
    pub(crate) fn create_with_list<C: Creates>(
        &mut self,
        input: View<'_, C::In>,
        len: usize,
        entry: &mut dyn FnMut(usize) -> u64,
    ) -> Result<u32, PackedError> {
        self.create_object(C::OPCODE, C::Undo::OPCODE, input.as_bytes(), len, entry, ObjectMemory::NONE)
    }

    pub(super) fn create_object(
        &mut self,
        opcode: CmdOpcode,
        undo: CmdOpcode,
        head: &[u8],
        len: usize,
        entry: &mut dyn FnMut(usize) -> u64,
        memory: ObjectMemory,
    ) -> Result<u32, PackedError> {
        let input_len = len.saturating_mul(8).saturating_add(head.len());
        let mut output = [0; SHORT];
        let late = LateAction::Destroy { with: undo, memory };
        self.call_regular(&mut Call { opcode, head, entry, input_len, output: &mut output, output_len: SHORT, late })?;
        Ok(number_of(&output))
    }

    /// Destroys an object that no caller will try to destroy again, and frees its memory, now or after a late completion.
    pub(crate) fn destroy_untracked(
        &mut self,
        opcode: CmdOpcode,
        number: u32,
        memory: ObjectMemory,
    ) -> Result<(), PackedError> {
        self.send_destroy(opcode, number, LateAction::Free { memory })?;
        self.free_memory(memory);
        Ok(())
    }

    /// Destroys an object and frees its memory. An attempt that timed out is not repeated but waited for again: the device may
    /// still execute it, when the number may belong to another object.
    #[inline(always)]
    pub(crate) fn destroy<C: Command>(&mut self, object: &mut Object, memory: ObjectMemory) -> Result<(), PackedError> {
        self.destroy_object(C::OPCODE, object, memory)
    }

    fn destroy_object(&mut self, opcode: CmdOpcode, object: &mut Object, memory: ObjectMemory) -> Result<(), PackedError> {
        self.destroy_orphans();
        let mut gone = false;
        if let Some(command_id) = object.pending {
            let name = CmdName(opcode.code() as u16);
            log_event!(debug, "object {:x}: an earlier {:?} may still complete", object.number, name);
            gone = self.wait_for_late_completion(opcode, command_id)?;
            object.pending = None;
        }
        if !gone {
            let result = self.send_destroy(opcode, object.number, LateAction::RecordOutcome);
            object.pending = self.abandoned();
            result?;
        }
        self.free_memory(memory);
        Ok(())
    }

    fn send_destroy(&mut self, opcode: CmdOpcode, number: u32, late: LateAction) -> Result<(), PackedError> {
        let (head, entry) = (&naming(number), &mut |_| 0);
        self.call(
            CommandClass::Regular,
            &mut Call { opcode, head, entry, input_len: SHORT, output: &mut [], output_len: SHORT, late },
        )
    }
}
