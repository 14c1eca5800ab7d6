//! User contexts and user memory objects, and the check that a program's command touches nothing of others.

use bareverbs_mlx5_spec::{
    CmdOpcode, CmdStatus, CreateMkeyIn, CreateQpIn, CreateRmpIn, CreateSrqIn, CreateUctxIn, CreateUctxOut, CreateUmemIn,
    CreateUmemOut, CreateXrcSrqIn, DestroyUctxIn, DestroyUctxOut, DestroyUmemIn, DestroyUmemOut, Layout, Mkc, Qpc, Rmpc, Srqc,
    Umem, View, ViewMut, Wq, XrcSrqc, rq_type,
};

use super::eq::page_list;
use super::{Outcome, Refusal};
use crate::env::Env;
use crate::firmware::Firmware;
use crate::user::{Kind, Users};

bareverbs_mlx5_spec::layout! {
    /// Where every command names the object that it is about, and every output the object that it made.
    Subject "subject", 12 bytes {
        UID "uid" (0:15..0);
        NUMBER "number" (8:23..0);
    }
}

/// What a command does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Makes,
    Uses,
    Ends,
}

fn role(op: CmdOpcode) -> Option<(Role, Kind)> {
    use CmdOpcode as Op;
    use Role::{Ends, Makes, Uses};
    Some(match op {
        Op::AllocUar => (Makes, Kind::Uar),
        Op::DeallocUar => (Ends, Kind::Uar),
        Op::AllocPd => (Makes, Kind::Pd),
        Op::DeallocPd => (Ends, Kind::Pd),
        Op::AllocXrcd => (Makes, Kind::Xrcd),
        Op::DeallocXrcd => (Ends, Kind::Xrcd),
        Op::AllocTransportDomain => (Makes, Kind::TransportDomain),
        Op::DeallocTransportDomain => (Ends, Kind::TransportDomain),
        Op::AllocQCounter => (Makes, Kind::Counters),
        Op::DeallocQCounter => (Ends, Kind::Counters),
        Op::CreateCq => (Makes, Kind::Cq),
        Op::DestroyCq => (Ends, Kind::Cq),
        Op::ModifyCq | Op::QueryCq => (Uses, Kind::Cq),
        Op::CreateQp => (Makes, Kind::Qp),
        Op::DestroyQp => (Ends, Kind::Qp),
        Op::QueryQp
        | Op::Rst2InitQp
        | Op::Init2InitQp
        | Op::Init2RtrQp
        | Op::Rtr2RtsQp
        | Op::Rts2RtsQp
        | Op::SqErr2RtsQp
        | Op::SqdRtsQp
        | Op::Sqd2SqdQp
        | Op::Rts2SqdQp
        | Op::Qp2Err
        | Op::Qp2Rst
        | Op::AttachToMcg
        | Op::DetachFromMcg => (Uses, Kind::Qp),
        Op::CreateSrq | Op::CreateXrcSrq | Op::CreateRmp => (Makes, Kind::Srq),
        Op::DestroySrq | Op::DestroyXrcSrq | Op::DestroyRmp => (Ends, Kind::Srq),
        Op::QuerySrq | Op::ArmRq | Op::QueryXrcSrq | Op::ArmXrcSrq | Op::QueryRmp | Op::ModifyRmp => (Uses, Kind::Srq),
        Op::CreateMkey => (Makes, Kind::Mkey),
        Op::DestroyMkey => (Ends, Kind::Mkey),
        Op::QueryMkey => (Uses, Kind::Mkey),
        Op::CreateUmem => (Makes, Kind::Umem),
        Op::DestroyUmem => (Ends, Kind::Umem),
        _ => return None,
    })
}

/// The objects that a new one would be tied to and share its rights with.
fn ties(op: CmdOpcode, input: &[u8]) -> Vec<(Kind, u32)> {
    let ties = match op {
        CmdOpcode::CreateMkey => View::<CreateMkeyIn>::new(input)
            .map(|input| vec![(Kind::Pd, input.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY).get(Mkc::PD))]),
        CmdOpcode::CreateSrq => View::<CreateSrqIn>::new(input)
            .map(|input| vec![(Kind::Pd, input.sub(CreateSrqIn::SRQ_CONTEXT_ENTRY).get(Srqc::PD))]),
        CmdOpcode::CreateRmp => {
            View::<CreateRmpIn>::new(input).map(|input| vec![(Kind::Pd, input.sub(CreateRmpIn::CTX).sub(Rmpc::WQ).get(Wq::PD))])
        }
        CmdOpcode::CreateXrcSrq => View::<CreateXrcSrqIn>::new(input).map(|input| {
            let context = input.sub(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY);
            vec![(Kind::Pd, context.get(XrcSrqc::PD)), (Kind::Cq, context.get(XrcSrqc::CQN))]
        }),
        CmdOpcode::CreateQp => View::<CreateQpIn>::new(input).map(|input| {
            let context = input.sub(CreateQpIn::QPC);
            let receives = context.get(Qpc::RQ_TYPE);
            let sends = !context.is_set(Qpc::NO_SQ);
            let mut ties = vec![(Kind::Pd, context.get(Qpc::PD))];
            ties.extend(sends.then(|| (Kind::Cq, context.get(Qpc::CQN_SND))));
            ties.extend([rq_type::OWN, rq_type::SRQ].contains(&receives).then(|| (Kind::Cq, context.get(Qpc::CQN_RCV))));
            ties.extend((receives == rq_type::SRQ).then(|| (Kind::Srq, context.get(Qpc::SRQN_RMPN_XRQN))));
            ties
        }),
        _ => None,
    };
    ties.unwrap_or_default()
}

/// The context for which a command is.
pub(super) fn uid_of(input: &[u8]) -> u32 {
    View::<Subject>::new(input).map_or(0, |subject| subject.get(Subject::UID))
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
    let subject = View::<Subject>::new(input).map_or(0, |subject| subject.get(Subject::NUMBER));
    let named = match role(op) {
        Some((Role::Uses | Role::Ends, kind)) => Some((kind, subject)),
        _ => None,
    };
    let strange = named.into_iter().chain(ties(op, input)).any(|(kind, number)| !firmware.users.may_touch(uid, kind, number));
    if strange { Err(Refusal::new(CmdStatus::BadRes, "an object of another user context")) } else { Ok(()) }
}

/// Notes whose the object is that a command made, or that it is gone.
pub(super) fn note_done(firmware: &mut Firmware, op: CmdOpcode, input: &[u8], output: &[u8]) {
    let number = |bytes| View::<Subject>::new(bytes).map_or(0, |subject| subject.get(Subject::NUMBER));
    match role(op) {
        Some((Role::Makes, kind)) => firmware.users.own(uid_of(input), kind, number(output)),
        Some((Role::Ends, kind)) => firmware.users.disown(kind, number(input)),
        _ => {}
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
