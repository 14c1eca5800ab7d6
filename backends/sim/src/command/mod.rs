//! Firmware commands: one function an opcode, grouped by object.

mod boot;
mod capability;
mod cq;
mod device_memory;
mod eq;
mod general;
mod mkey;
mod pages;
mod port;
mod qp;
mod queue;
mod queue_buffer;
mod register;
mod resource;
mod srq;
mod user;

use std::borrow::Cow;

use bareverbs_mlx5_spec::{CmdIn, CmdOpcode, CmdOut, CmdStatus, Layout, LayoutInfo, OtherCmdOpcode, Place, View, ViewMut};

use crate::audit::Finding;
use crate::env::Env;
use crate::fault::Fault;
use crate::firmware::{Firmware, HcaState};
use crate::lack::{Lack, command_name};
use crate::user::Users;

pub(crate) use queue::CommandQueue;

/// Outputs up to this length must fit whole into what the driver has room for; of longer ones it gets the start.
const WHOLE_OUTPUT: usize = 272;

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    status: CmdStatus,
    /// For whoever listens; a driver gets a number.
    why: &'static str,
}

impl Refusal {
    const fn new(status: CmdStatus, why: &'static str) -> Self {
        Self { status, why }
    }
}

impl From<CmdStatus> for Refusal {
    fn from(status: CmdStatus) -> Self {
        Self { status, why: "" }
    }
}

type Outcome = Result<(), Refusal>;

/// What a command's function works on.
struct Call<'a, 'e> {
    firmware: &'a mut Firmware,
    env: &'a mut Env<'e>,
    input: &'a [u8],
    output: &'a mut [u8],
    /// Bytes of output that the driver has room for.
    room: usize,
}

/// How far the function must be for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    Enabled,
    /// Enabled, and the firmware has its first pages.
    Booted,
    Running,
}

impl Call<'_, '_> {
    /// Runs a function whose input and output have these layouts, in a state that allows it.
    fn run<I: Layout, O: Layout>(
        self,
        needs: Needs,
        run: impl FnOnce(&mut Firmware, &mut Env<'_>, View<'_, I>, &mut ViewMut<'_, O>) -> Outcome,
    ) -> Outcome {
        let state = self.firmware.state;
        let ready = match needs {
            Needs::Nothing => true,
            Needs::Enabled => state >= HcaState::Enabled,
            Needs::Booted => {
                state == HcaState::Running || (state == HcaState::Enabled && self.firmware.pages.missing_to_boot() == 0)
            }
            Needs::Running => state == HcaState::Running,
        };
        if !ready {
            return Err(Refusal::new(CmdStatus::BadSysState, "not in this state of the function"));
        }
        let input = of_today::<I>(self.input);
        let input = View::<I>::new(&input).ok_or(CmdStatus::BadInputLen)?;
        if self.room < O::SIZE.min(WHOLE_OUTPUT) {
            return Err(CmdStatus::BadOutputLen.into());
        }
        // What a program wrote is not the driver's mistake.
        if Users::is_kernel(user::uid_of(self.input)) {
            report_reserved(self.env, &queue_buffer::clear_user_memory_fields(self.input), &I::INFO);
        }
        let mut output = ViewMut::<O>::new(self.output).ok_or(CmdStatus::BadOutputLen)?;
        run(self.firmware, self.env, input, &mut output)
    }
}

/// Reports the first dword of each structure that has bits set where no field is.
fn report_reserved(env: &mut Env<'_>, bytes: &[u8], layout: &LayoutInfo) {
    let mut known = vec![0_u32; layout.size / 4];
    for field in layout.fields {
        match field.place {
            Place::Bits(bits) => {
                if let Some(known) = known.get_mut(bits.dword / 4) {
                    *known |= bits.mask();
                }
            }
            place => {
                let (at, len) = place.bytes();
                known.iter_mut().skip(at / 4).take(len / 4).for_each(|bits| *bits = u32::MAX);
                if let (Place::Sub { layout, .. }, Some(rest)) = (place, bytes.get(at..)) {
                    report_reserved(env, rest, &layout);
                }
            }
        }
    }
    let dwords = bytes.chunks_exact(4).filter_map(|dword| dword.first_chunk()).map(|dword| u32::from_be_bytes(*dword));
    if let Some(index) = dwords.zip(&known).position(|(dword, known)| dword & !known != 0) {
        env.audit.report(Finding::ReservedBits { layout: layout.name, offset: index * 4 });
    }
}

/// The input of a command whose layout is `I`, at the length that it has today.
fn of_today<I: Layout>(input: &[u8]) -> Cow<'_, [u8]> {
    let op = View::<CmdIn>::new(input).and_then(|input| CmdOpcode::from_code(input.get(CmdIn::OPCODE)));
    match op.and_then(CmdOpcode::first_input_len) {
        Some(first) if (first..I::SIZE).contains(&input.len()) => {
            let mut longer = input.to_vec();
            longer.resize(I::SIZE, 0);
            Cow::Owned(longer)
        }
        _ => Cow::Borrowed(input),
    }
}

/// Executes a command; its output, `output_len` bytes long.
fn dispatch(firmware: &mut Firmware, env: &mut Env<'_>, input: &[u8], output_len: usize) -> Vec<u8> {
    let opcode = View::<CmdIn>::new(input).map_or(0, |input| input.get(CmdIn::OPCODE));
    let mut output = vec![0; output_len.max(LONGEST_OUTPUT)];
    let injected = env.faults.take(|fault| match fault {
        Fault::CommandStatus { opcode: of, status, syndrome } if u32::from(*of) == opcode => {
            Some((u32::from(*status), *syndrome))
        }
        _ => None,
    });
    let outcome = match injected {
        Some(failure) => Err(failure),
        None => {
            let op = CmdOpcode::from_code(opcode);
            let done = op.map_or(Ok(()), |op| user::admit(firmware, op, input)).and_then(|()| {
                let call = Call { firmware: &mut *firmware, env: &mut *env, input, output: &mut output, room: output_len };
                execute(call, opcode)
            });
            if let (Ok(()), Some(op)) = (&done, op) {
                user::note_done(firmware, op, input, &output);
            }
            done.map_err(|refusal| {
                let name = command_name(opcode).unwrap_or("unknown opcode");
                env.note(|| format!("{name} ({opcode:#x}) refused, {}: {}", refusal.status.name(), refusal.why));
                (refusal.status.code(), opcode << 8 | refusal.status.code())
            })
        }
    };
    if let Err((status, syndrome)) = outcome {
        output.fill(0);
        if let Some(mut out) = ViewMut::<CmdOut>::new(&mut output) {
            out.set(CmdOut::STATUS, status).set(CmdOut::SYNDROME, syndrome);
        }
    }
    output.truncate(output_len);
    output
}

/// The longest output of fixed length: a capability page.
const LONGEST_OUTPUT: usize = 4112;

fn execute(call: Call<'_, '_>, opcode: u32) -> Outcome {
    use CmdOpcode as Op;
    let Some(op) = Op::from_code(opcode) else {
        // Two of these have no layouts of their own.
        if [OtherCmdOpcode::ModifyGeneralObject, OtherCmdOpcode::QueryGeneralObject].map(OtherCmdOpcode::code).contains(&opcode)
        {
            return call.run(Needs::Running, general::refuse);
        }
        call.firmware.lacks.report(Lack::Command(opcode));
        return Err(Refusal::new(CmdStatus::BadOp, "no such command"));
    };
    match op {
        Op::EnableHca => call.run(Needs::Nothing, boot::enable_hca),
        Op::DisableHca => call.run(Needs::Enabled, boot::disable_hca),
        Op::QueryIssi => call.run(Needs::Enabled, boot::query_issi),
        Op::SetIssi => call.run(Needs::Enabled, boot::set_issi),
        Op::InitHca => call.run(Needs::Booted, boot::init_hca),
        Op::TeardownHca => call.run(Needs::Running, boot::teardown_hca),
        Op::QueryAdapter => call.run(Needs::Booted, boot::query_adapter),
        Op::SetDriverVersion => call.run(Needs::Booted, boot::set_driver_version),
        Op::QuerySpecialContexts => call.run(Needs::Booted, boot::query_special_contexts),
        Op::Nop => call.run(Needs::Nothing, boot::nop),
        Op::QueryPages => call.run(Needs::Enabled, pages::query_pages),
        Op::ManagePages => {
            let room = call.room;
            call.run(Needs::Enabled, |firmware, env, input, output| pages::manage_pages(firmware, env, input, output, room))
        }
        Op::QueryHcaCap => call.run(Needs::Booted, capability::query_hca_cap),
        Op::SetHcaCap => call.run(Needs::Booted, capability::set_hca_cap),
        Op::AccessReg => call.run(Needs::Booted, register::access_register),
        Op::AllocUar => call.run(Needs::Running, resource::alloc_uar),
        Op::DeallocUar => call.run(Needs::Running, resource::dealloc_uar),
        Op::AllocPd => call.run(Needs::Running, resource::alloc_pd),
        Op::DeallocPd => call.run(Needs::Running, resource::dealloc_pd),
        Op::AllocXrcd => call.run(Needs::Running, resource::alloc_xrcd),
        Op::DeallocXrcd => call.run(Needs::Running, resource::dealloc_xrcd),
        Op::AllocTransportDomain => call.run(Needs::Running, resource::alloc_transport_domain),
        Op::DeallocTransportDomain => call.run(Needs::Running, resource::dealloc_transport_domain),
        Op::AllocQCounter => call.run(Needs::Running, resource::alloc_q_counter),
        Op::DeallocQCounter => call.run(Needs::Running, resource::dealloc_q_counter),
        Op::QueryQCounter => call.run(Needs::Running, resource::query_q_counter),
        Op::CreateEq => call.run(Needs::Running, eq::create_eq),
        Op::DestroyEq => call.run(Needs::Running, eq::destroy_eq),
        Op::QueryEq => call.run(Needs::Running, eq::query_eq),
        Op::CreateCq => call.run(Needs::Running, cq::create_cq),
        Op::DestroyCq => call.run(Needs::Running, cq::destroy_cq),
        Op::ModifyCq => call.run(Needs::Running, cq::modify_cq),
        Op::QueryCq => call.run(Needs::Running, cq::query_cq),
        Op::CreateSrq => call.run(Needs::Running, srq::create_srq),
        Op::DestroySrq => call.run(Needs::Running, srq::destroy_srq),
        Op::QuerySrq => call.run(Needs::Running, srq::query_srq),
        Op::ArmRq => call.run(Needs::Running, srq::arm_srq),
        Op::CreateXrcSrq => call.run(Needs::Running, srq::create_xrc_srq),
        Op::DestroyXrcSrq => call.run(Needs::Running, srq::destroy_xrc_srq),
        Op::QueryXrcSrq => call.run(Needs::Running, srq::query_xrc_srq),
        Op::ArmXrcSrq => call.run(Needs::Running, srq::arm_xrc_srq),
        Op::CreateRmp => call.run(Needs::Running, srq::create_rmp),
        Op::DestroyRmp => call.run(Needs::Running, srq::destroy_rmp),
        Op::QueryRmp => call.run(Needs::Running, srq::query_rmp),
        Op::ModifyRmp => call.run(Needs::Running, srq::modify_rmp),
        Op::CreateUctx => call.run(Needs::Running, user::create_uctx),
        Op::DestroyUctx => call.run(Needs::Running, user::destroy_uctx),
        Op::CreateUmem => call.run(Needs::Running, user::create_umem),
        Op::DestroyUmem => call.run(Needs::Running, user::destroy_umem),
        Op::AllocMemic => call.run(Needs::Running, device_memory::alloc),
        Op::DeallocMemic => call.run(Needs::Running, device_memory::dealloc),
        Op::CreateMkey => call.run(Needs::Running, mkey::create_mkey),
        Op::QueryMkey => call.run(Needs::Running, mkey::query_mkey),
        Op::DestroyMkey => call.run(Needs::Running, mkey::destroy_mkey),
        Op::CreateQp => call.run(Needs::Running, qp::create_qp),
        Op::DestroyQp => call.run(Needs::Running, qp::destroy_qp),
        Op::QueryQp => call.run(Needs::Running, qp::query_qp),
        Op::Rst2InitQp
        | Op::Init2InitQp
        | Op::Init2RtrQp
        | Op::Rtr2RtsQp
        | Op::Rts2RtsQp
        | Op::SqErr2RtsQp
        | Op::SqdRtsQp
        | Op::Sqd2SqdQp => {
            call.run(Needs::Running, |firmware, env, input, output| qp::modify(firmware, env, op, input, output))
        }
        Op::Qp2Err | Op::Qp2Rst | Op::Rts2SqdQp => {
            call.run(Needs::Running, |firmware, env, input, output| qp::modify_state(firmware, env, op, input, output))
        }
        Op::AttachToMcg => call.run(Needs::Running, qp::attach_multicast),
        Op::DetachFromMcg => call.run(Needs::Running, qp::detach_multicast),
        Op::MadIfc => call.run(Needs::Booted, port::mad),
        Op::QueryHcaVportContext => call.run(Needs::Booted, port::query_context),
        Op::ModifyHcaVportContext => call.run(Needs::Booted, port::modify_context),
        Op::QueryVportCounter => call.run(Needs::Running, port::query_counter),
        Op::QueryHcaVportGid => {
            let room = call.room;
            call.run(Needs::Booted, |firmware, _, input, output| port::query_gid(firmware, input, output, room))
        }
        Op::QueryHcaVportPkey => {
            let room = call.room;
            call.run(Needs::Booted, |firmware, _, input, output| port::query_pkey(firmware, input, output, room))
        }
        Op::CreateGeneralObject | Op::DestroyGeneralObject => call.run(Needs::Running, general::refuse),
        _ => {
            call.firmware.lacks.report(Lack::Command(opcode));
            Err(Refusal::new(CmdStatus::BadOp, "not supported"))
        }
    }
}
