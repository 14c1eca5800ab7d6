//! User contexts and user memory objects, and the check that a program's command touches nothing of others.

use bareverbs_mlx5_spec::{
    CmdHcaCap, CmdOpcode, CmdStatus, CreateUctxIn, CreateUctxOut, CreateUmemIn, CreateUmemOut, DestroyUctxIn, DestroyUctxOut,
    DestroyUmemIn, DestroyUmemOut, GeneralObjInCmdHdr, Layout, ObjectAccess, ObjectRef, QueryVportCounterIn, Uctx, Umem, View,
    ViewMut, uctx_cap,
};

use super::refusal::{Outcome, Refusal};
use crate::firmware::Firmware;
use crate::registry::{ObjectKind, Owner, Registry, Resource};
use crate::step::StepContext;

/// For whom a command is; any command may name a user context, and it is in the same place in all.
pub(super) fn owner_of(input: &[u8]) -> Owner {
    Owner::new(GeneralObjInCmdHdr::UID.bits().read(input).unwrap_or(0) as u16)
}

/// Returns whether a command changes what all of the function share, or is about its port, pages, event queues and contexts: Linux
/// passes none of these on for a program (`devx_is_general_cmd`, `devx_is_obj_create_cmd`).
fn changes_function(op: CmdOpcode, input: &[u8]) -> bool {
    match op {
        CmdOpcode::InitHca
        | CmdOpcode::TeardownHca
        | CmdOpcode::EnableHca
        | CmdOpcode::DisableHca
        | CmdOpcode::QueryPages
        | CmdOpcode::ManagePages
        | CmdOpcode::SetHcaCap
        | CmdOpcode::SetIssi
        | CmdOpcode::SetDriverVersion
        | CmdOpcode::CreateEq
        | CmdOpcode::DestroyEq
        | CmdOpcode::QueryEq
        | CmdOpcode::GenEqe
        | CmdOpcode::MadIfc
        | CmdOpcode::ModifyNicVportContext
        | CmdOpcode::SetRoceAddress
        | CmdOpcode::ModifyHcaVportContext
        | CmdOpcode::AccessReg
        | CmdOpcode::SetFlowTableRoot
        | CmdOpcode::CreateUctx
        | CmdOpcode::DestroyUctx => true,
        // What it has counted is for all; to begin again is not.
        CmdOpcode::QueryVportCounter => QueryVportCounterIn::CLEAR.bits().read(input) != Some(0),
        _ => false,
    }
}

/// Refuses a command of a context that does not exist, or about objects of others.
pub(super) fn check(registry: &Registry, op: CmdOpcode, input: &[u8]) -> Outcome {
    let owner = owner_of(input);
    if !registry.is_present(owner) {
        return Err(Refusal::new(CmdStatus::BadRes, "no such user context"));
    }
    if !owner.is_kernel() && changes_function(op, input) {
        return Err(Refusal::new(CmdStatus::BadOp, "a command of the kernel"));
    }
    // An input too short for the number of an object is refused for its length before anything is done.
    let mut named = op.objects().iter().filter(|object| object.access != ObjectAccess::Creates);
    let foreign = |object: &ObjectRef| {
        object.number(input).map(|number| Resource::new(object.kind, number)).is_some_and(|id| match object.access {
            ObjectAccess::Destroys => !registry.may_destroy(owner, id),
            _ => !registry.may_name(owner, id),
        })
    };
    if named.any(foreign) { Err(Refusal::new(CmdStatus::BadRes, "an object of another user context")) } else { Ok(()) }
}

/// Records to whom the object belongs that a command made.
pub(super) fn record_owner(registry: &mut Registry, op: CmdOpcode, input: &[u8], output: &[u8]) {
    for object in op.objects().iter().filter(|object| object.access == ObjectAccess::Creates) {
        if let Some(number) = object.number(output) {
            registry.set_owner(Resource::new(object.kind, number), owner_of(input));
        }
    }
}

/// CREATE_UCTX.
pub(super) fn create_uctx(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateUctxIn>,
    output: &mut ViewMut<'_, CreateUctxOut>,
) -> Outcome {
    if !firmware.config.devx {
        return Err(Refusal::new(CmdStatus::BadOp, "user contexts are switched off"));
    }
    let rights = input.sub(CreateUctxIn::UCTX).get(Uctx::CAP);
    if rights & !firmware.caps.general(CmdHcaCap::UCTX_CAP) != 0 {
        return Err(Refusal::new(CmdStatus::BadParam, "a right that is not offered"));
    }
    let uid = firmware.engine.registry_mut().create(ObjectKind::UserContext, 0, Vec::new())?;
    if rights & uctx_cap::RAW_TX != 0 {
        firmware.raw_senders.insert(uid);
    }
    output.set(CreateUctxOut::UID, uid);
    Ok(())
}

/// DESTROY_UCTX; busy while objects are left in it.
pub(super) fn destroy_uctx(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyUctxIn>,
    _: &mut ViewMut<'_, DestroyUctxOut>,
) -> Outcome {
    let uid = input.get(DestroyUctxIn::UID);
    let destroyed = firmware.engine.registry_mut().destroy(Resource::user_context(uid));
    destroyed.map_err(|status| Refusal::new(status, "no such user context, or objects are left in it"))?;
    firmware.raw_senders.remove(&uid);
    Ok(())
}

/// CREATE_UMEM.
pub(super) fn create_umem(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, CreateUmemIn>,
    output: &mut ViewMut<'_, CreateUmemOut>,
) -> Outcome {
    let bytes = input.bytes(CreateUmemIn::UMEM);
    let umem = View::<Umem>::new(bytes).ok_or(CmdStatus::BadInputLen)?;
    let list = (input.as_bytes().get(CreateUmemIn::SIZE..).unwrap_or_default(), umem.get64(Umem::NUM_OF_MTT));
    let (log_page, offset) = (umem.get(Umem::LOG_PAGE_SIZE), umem.get(Umem::PAGE_OFFSET));
    let created = firmware.umems.create(firmware.engine.registry_mut(), list, log_page, offset);
    output.set(CreateUmemOut::UMEM_ID, created.map_err(|status| Refusal::new(status, "its pages, or their number"))?);
    Ok(())
}

/// DESTROY_UMEM; busy while an object lies in it.
pub(super) fn destroy_umem(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, DestroyUmemIn>,
    _: &mut ViewMut<'_, DestroyUmemOut>,
) -> Outcome {
    let destroyed = firmware.umems.destroy(firmware.engine.registry_mut(), input.get(DestroyUmemIn::UMEM_ID));
    destroyed.map_err(|status| Refusal::new(status, "no such user memory object, or an object lies in it"))
}
