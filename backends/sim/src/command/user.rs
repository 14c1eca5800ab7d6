//! User contexts and user memory objects, and the check that a program's command touches nothing of others.

use bareverbs_mlx5_spec::{
    CmdOpcode, CmdStatus, CreateUctxIn, CreateUctxOut, CreateUmemIn, CreateUmemOut, DestroyUctxIn, DestroyUctxOut,
    DestroyUmemIn, DestroyUmemOut, GeneralObjInCmdHdr, Layout, ObjectAccess, ObjectRef, Umem, View, ViewMut,
};

use super::eq::page_list;
use super::{Outcome, Refusal};
use crate::env::Env;
use crate::firmware::Firmware;
use crate::user::Users;

/// The user context for which a command is; any command may have one, and it is in the same place in all.
pub(super) fn uid_of(input: &[u8]) -> u32 {
    GeneralObjInCmdHdr::UID.bits().read(input).unwrap_or(0)
}

/// Refuses a command of a context that does not exist, or about objects of others.
pub(super) fn admit(firmware: &Firmware, op: CmdOpcode, input: &[u8]) -> Outcome {
    let uid = uid_of(input);
    if Users::is_kernel(uid) {
        return Ok(());
    }
    if !firmware.users.exists(uid) {
        return Err(Refusal::new(CmdStatus::BadRes, "no such user context"));
    }
    // An input too short for the number of an object is refused for its length before anything is done.
    let mut named = op.objects().iter().filter(|object| object.access != ObjectAccess::Creates);
    let foreign =
        |object: &ObjectRef| object.number(input).is_some_and(|number| !firmware.users.may_touch(uid, object.kind, number));
    if named.any(foreign) { Err(Refusal::new(CmdStatus::BadRes, "an object of another user context")) } else { Ok(()) }
}

/// Records to whom the object belongs that a command made, or that it is gone.
pub(super) fn record_objects(firmware: &mut Firmware, op: CmdOpcode, input: &[u8], output: &[u8]) {
    for object in op.objects() {
        match object.access {
            ObjectAccess::Uses => {}
            ObjectAccess::Creates => {
                if let Some(number) = object.number(output) {
                    firmware.users.own(uid_of(input), object.kind, number);
                }
            }
            ObjectAccess::Destroys => {
                if let Some(number) = object.number(input) {
                    firmware.users.disown(object.kind, number);
                }
            }
        }
    }
}

/// CREATE_UCTX.
pub(super) fn create_uctx(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    _: View<'_, CreateUctxIn>,
    output: &mut ViewMut<'_, CreateUctxOut>,
) -> Outcome {
    if !firmware.config.devx {
        return Err(Refusal::new(CmdStatus::BadOp, "user contexts are switched off"));
    }
    output.set(CreateUctxOut::UID, firmware.users.create()?);
    Ok(())
}

/// DESTROY_UCTX; busy while objects are left in it.
pub(super) fn destroy_uctx(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, DestroyUctxIn>,
    _: &mut ViewMut<'_, DestroyUctxOut>,
) -> Outcome {
    let destroyed = firmware.users.destroy(input.get(DestroyUctxIn::UID));
    destroyed.map_err(|status| Refusal::new(status, "no such user context, or objects are left in it"))
}

/// CREATE_UMEM.
pub(super) fn create_umem(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, CreateUmemIn>,
    output: &mut ViewMut<'_, CreateUmemOut>,
) -> Outcome {
    let bytes = input.bytes(CreateUmemIn::UMEM);
    let umem = View::<Umem>::new(bytes).ok_or(CmdStatus::BadInputLen)?;
    let count = usize::try_from(umem.get64(Umem::NUM_OF_MTT)).map_err(|_| CmdStatus::BadParam)?;
    let pages = page_list(input.as_bytes().get(CreateUmemIn::SIZE..).unwrap_or_default());
    let pages = pages.get(..count).ok_or(Refusal::new(CmdStatus::BadInputLen, "fewer pages than said"))?;
    let created = firmware.users.create_umem(pages.to_vec(), umem.get(Umem::LOG_PAGE_SIZE), umem.get(Umem::PAGE_OFFSET));
    output.set(CreateUmemOut::UMEM_ID, created.map_err(|status| Refusal::new(status, "its pages, or their number"))?);
    Ok(())
}

/// DESTROY_UMEM; busy while an object lies in it.
pub(super) fn destroy_umem(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, DestroyUmemIn>,
    _: &mut ViewMut<'_, DestroyUmemOut>,
) -> Outcome {
    let destroyed = firmware.users.destroy_umem(input.get(DestroyUmemIn::UMEM_ID));
    destroyed.map_err(|status| Refusal::new(status, "no such user memory object, or an object lies in it"))
}
