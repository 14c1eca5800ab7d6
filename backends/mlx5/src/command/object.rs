//! Creation and destruction of objects of the device, with the memory that they lie in.

use bareverbs::{DmaMemory, Platform};
use bareverbs_mlx5_spec::{
    AllocPdOut, AllocUarOut, AllocXrcdOut, CmdOpcode, Command, CreateCqOut, CreateEqOut, CreateMkeyOut, CreateQpOut,
    CreateRmpOut, CreateXrcSrqOut, DeallocPdIn, DeallocUarIn, DeallocXrcdIn, DestroyCqIn, DestroyEqIn, DestroyMkeyIn,
    DestroyQpIn, DestroyRmpIn, DestroyXrcSrqIn, Field, Layout, View, ViewMut, cmd,
};

#[cfg(feature = "ethernet")]
use bareverbs_mlx5_spec::{
    AllocTransportDomainOut, CreateFlowGroupOut, CreateFlowTableOut, CreateRqOut, CreateSqOut, CreateTirOut, CreateTisOut,
    DeallocTransportDomainIn, DestroyRqIn, DestroySqIn, DestroyTirIn, DestroyTisIn,
};

use super::{Call, CommandClass, CommandInterface};
use crate::dma::arena::{PAGE, PageRange};
use crate::dma::object_memory::ObjectMemory;
use crate::error::PackedError;

/// Bytes of the output of every command that creates an object, and of input and output of every command that destroys one.
const SHORT: usize = 16;

/// A command that creates an object.
pub(crate) trait Creates: Command {
    /// That which destroys it.
    type Destroy: Command;
}

/// A command that destroys an object.
pub(crate) trait Destroys: Command {}

/// Returns whether a field lies where [`number_of`] and [`naming`] expect the number of an object.
const fn is_number<L>(field: Field<L>) -> bool {
    field.dword() == DestroyQpIn::QPN.dword() && field.mask() & !DestroyQpIn::QPN.mask() == 0 && field.mask() & 1 != 0
}

macro_rules! creates {
    ($($create:ident $made:ident::$new:ident, $destroy:ident $input:ident::$number:ident;)+) => {$(
        impl Creates for cmd::$create {
            type Destroy = cmd::$destroy;
        }
        impl Destroys for cmd::$destroy {}

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
    CreateRmp CreateRmpOut::RMPN, DestroyRmp DestroyRmpIn::RMPN;
    AllocXrcd AllocXrcdOut::XRCD, DeallocXrcd DeallocXrcdIn::XRCD;
    CreateXrcSrq CreateXrcSrqOut::XRC_SRQN, DestroyXrcSrq DestroyXrcSrqIn::XRC_SRQN;
}

#[cfg(feature = "ethernet")]
creates! {
    AllocTransportDomain AllocTransportDomainOut::TRANSPORT_DOMAIN,
        DeallocTransportDomain DeallocTransportDomainIn::TRANSPORT_DOMAIN;
    CreateTis CreateTisOut::TISN, DestroyTis DestroyTisIn::TISN;
    CreateSq CreateSqOut::SQN, DestroySq DestroySqIn::SQN;
    CreateRq CreateRqOut::RQN, DestroyRq DestroyRqIn::RQN;
    CreateTir CreateTirOut::TIRN, DestroyTir DestroyTirIn::TIRN;
}

/// Declares commands that create a part of a flow table, which a command with a longer input destroys.
#[cfg(feature = "ethernet")]
macro_rules! creates_of_a_table {
    ($($create:ident $made:ident::$new:ident, $destroy:ident;)+) => {$(
        impl Creates for cmd::$create {
            type Destroy = cmd::$destroy;
        }

        const _: () = assert!(is_number::<<cmd::$create as Command>::Out>($made::$new) && $made::SIZE == SHORT);
    )+};
}

#[cfg(feature = "ethernet")]
creates_of_a_table! {
    CreateFlowTable CreateFlowTableOut::TABLE_ID, DestroyFlowTable;
    CreateFlowGroup CreateFlowGroupOut::GROUP_ID, DestroyFlowGroup;
}

/// Returns the input of a command that destroys an object.
fn naming(number: u32) -> [u8; SHORT] {
    let mut input = [0; SHORT];
    ViewMut::<DestroyQpIn>::of(&mut input).set(DestroyQpIn::QPN, number);
    input
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
        self.check_alive()?;
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

    /// Frees the memory of an object that is gone, or was not created. If the device is lost, it may have the object.
    pub(crate) fn free_memory(&mut self, memory: ObjectMemory) {
        if self.dead.is_some() {
            return;
        }
        if let Some(range) = memory.range() {
            self.arena.free(range);
        }
        if memory.has_record() {
            self.arena.free_record(memory.record());
        }
    }

    /// Creates an object in `memory`, whose pages follow the input, and returns its number.
    #[inline(always)]
    pub(crate) fn create<C: Creates>(&mut self, input: View<'_, C::In>, memory: ObjectMemory) -> Result<u32, PackedError> {
        self.create_in(C::OPCODE, input.as_bytes(), memory)
    }

    /// Executes command `C`, whose input ends with the pages of `memory`, and of whose output only the status matters.
    #[inline(always)]
    pub(crate) fn command_with_pages<C: Command>(
        &mut self,
        input: View<'_, C::In>,
        memory: ObjectMemory,
    ) -> Result<(), PackedError> {
        const { assert!(C::Out::SIZE == SHORT) };
        self.create_in(C::OPCODE, input.as_bytes(), memory).map(|_| ())
    }

    fn create_in(&mut self, opcode: CmdOpcode, head: &[u8], memory: ObjectMemory) -> Result<u32, PackedError> {
        let start = self.arena.addr(memory.at());
        let entry = &mut |page| start.wrapping_add((page * PAGE) as u64);
        self.create_object(opcode, head, memory.pages() as usize, entry)
    }

    /// Creates an object without memory of the driver, same as [`CommandInterface::create`]. `len` 64-bit entries follow the input.
    #[inline(always)]
    pub(crate) fn create_with_list<C: Creates>(
        &mut self,
        input: View<'_, C::In>,
        len: usize,
        entry: &mut dyn FnMut(usize) -> u64,
    ) -> Result<u32, PackedError> {
        self.create_object(C::OPCODE, input.as_bytes(), len, entry)
    }

    fn create_object(
        &mut self,
        opcode: CmdOpcode,
        head: &[u8],
        len: usize,
        entry: &mut dyn FnMut(usize) -> u64,
    ) -> Result<u32, PackedError> {
        let input_len = len.saturating_mul(8).saturating_add(head.len());
        let mut output = [0; SHORT];
        let call = &mut Call { opcode, head, entry, input_len, output: &mut output, output_len: SHORT };
        self.call(CommandClass::Regular, call)?;
        Ok(View::<CreateQpOut>::of(&output).get(CreateQpOut::QPN))
    }

    /// Executes a command whose input ends with `len` 64-bit entries, and of whose output only the status matters.
    pub(crate) fn command_with_list<C: Command>(
        &mut self,
        input: View<'_, C::In>,
        len: usize,
        entry: &mut dyn FnMut(usize) -> u64,
    ) -> Result<(), PackedError> {
        const { assert!(C::Out::SIZE == SHORT) };
        self.create_object(C::OPCODE, input.as_bytes(), len, entry).map(|_| ())
    }

    /// Destroys an object and frees its memory.
    #[inline(always)]
    pub(crate) fn destroy<C: Destroys>(&mut self, number: u32, memory: ObjectMemory) -> Result<(), PackedError> {
        self.destroy_object(C::OPCODE, number, memory)
    }

    /// The same by the opcode of a command that [`Destroys`].
    pub(crate) fn destroy_object(&mut self, opcode: CmdOpcode, number: u32, memory: ObjectMemory) -> Result<(), PackedError> {
        self.execute(opcode, &naming(number), &mut [], SHORT)?;
        self.free_memory(memory);
        Ok(())
    }
}
