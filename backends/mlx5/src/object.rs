//! An object of the device, and what its commands have to be like.

use bareverbs_mlx5_spec::{CmdOpcode, Command, DestroyQpIn, Layout, ObjectAccess, ObjectKind};

use crate::dma::arena::ObjectMemory;
use crate::log::format_as;

/// Bytes of the output of every command that creates an object, and of input and output of every command that destroys one.
pub(crate) const SHORT: usize = 16;

/// Returns the kind of the object that a command creates, or destroys, if its number is where `CommandInterface::create` and
/// `CommandInterface::destroy` expect it.
pub(crate) const fn object_of<C: Command>(creates: bool) -> Option<ObjectKind> {
    let mut objects = C::OBJECTS;
    while let [object, rest @ ..] = objects {
        if matches!((object.access, creates), (ObjectAccess::Creates, true) | (ObjectAccess::Destroys, false)) {
            let (place, expected) = (object.place(), DestroyQpIn::QPN.bits());
            let expected = place.dword == expected.dword && place.lo == 0 && place.hi <= expected.hi;
            return if expected { Some(object.kind) } else { None };
        }
        objects = rest;
    }
    None
}

/// Returns the kind of the object that a command destroys, if `CommandInterface::destroy` can execute it.
pub(crate) const fn destroyed<D: Command>() -> Option<ObjectKind> {
    if D::In::SIZE == SHORT && D::Out::SIZE == SHORT { object_of::<D>(false) } else { None }
}

/// An object of the device, of any kind: the command that destroys it, its number, and the memory that it lies in.
#[derive(Clone, Copy)]
pub struct Object {
    pub(crate) destroy: CmdOpcode,
    pub(crate) number: u32,
    pub(crate) memory: ObjectMemory,
}

format_as!([] Object, "Object({:x})", |this| this.number);

impl Object {
    /// Returns the object with this number, which command `D` destroys.
    pub(crate) const fn of<D: Command>(number: u32, memory: ObjectMemory) -> Self {
        const { assert!(destroyed::<D>().is_some()) };
        Self { destroy: D::OPCODE, number, memory }
    }

    pub(crate) fn is_destroyed_by(&self, opcode: CmdOpcode) -> bool {
        self.destroy == opcode
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_mlx5_spec::{DestroyQpOut, ObjectRef, QueryQpIn, QueryQpOut, cmd};

    use super::*;

    /// A command that destroys a queue pair, if its input and output are such.
    struct Destroy<I, O>(core::marker::PhantomData<(I, O)>);

    impl<I: Layout + 'static, O: Layout + 'static> Command for Destroy<I, O> {
        const OPCODE: CmdOpcode = CmdOpcode::DestroyQp;
        const OBJECTS: &'static [ObjectRef] = cmd::DestroyQp::OBJECTS;
        type In = I;
        type Out = O;
    }

    #[test]
    fn a_command_that_destroys_has_16_bytes_each_way() {
        let qp = Some(ObjectKind::Qp);
        assert_eq!(destroyed::<Destroy<DestroyQpIn, DestroyQpOut>>(), qp);
        assert_eq!((QueryQpIn::SIZE, destroyed::<Destroy<QueryQpIn, DestroyQpOut>>()), (16, qp));
        assert_eq!(destroyed::<Destroy<DestroyQpIn, QueryQpOut>>(), None);
        assert_eq!(destroyed::<Destroy<QueryQpOut, DestroyQpOut>>(), None);
        assert_eq!(destroyed::<Destroy<QueryQpOut, QueryQpOut>>(), None);
        assert_eq!(destroyed::<cmd::QueryQp>(), None, "it uses the queue pair");
        assert_eq!(destroyed::<cmd::CreateQp>(), None);
    }
}
