//! Firmware commands: one function an opcode, grouped by object.

mod boot;
mod capability;
mod cq;
mod device_memory;
mod eq;
mod general;
pub(crate) mod icmd;
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

use bareverbs_mlx5_spec::{CmdIn, CmdOpcode, CmdOut, CmdStatus, Command, Layout, LayoutInfo, Place, View, ViewMut, cmd};

use crate::audit::Finding;
use crate::env::Env;
use crate::fault::Fault;
use crate::firmware::{Firmware, HcaState};
use crate::unsupported::{Unsupported, command_name};

pub(crate) use queue::CommandQueue;

/// Outputs up to this length must fit whole into what the driver has room for; of longer ones it gets the start.
const WHOLE_OUTPUT: usize = 272;

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    status: CmdStatus,
    /// For the trace; a driver gets a number.
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
    /// Runs the function of command `C`, in a state that allows it.
    fn run<C: Command>(
        self,
        needs: Needs,
        run: impl FnOnce(&mut Firmware, &mut Env<'_>, View<'_, C::In>, &mut ViewMut<'_, C::Out>) -> Outcome,
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
        let input = pad_legacy_input::<C>(self.input);
        let input = View::<C::In>::new(&input).ok_or(CmdStatus::BadInputLen)?;
        if self.room < C::OPCODE.legacy_output_len().unwrap_or(C::Out::SIZE).min(WHOLE_OUTPUT) {
            return Err(CmdStatus::BadOutputLen.into());
        }
        // What a program wrote is not the driver's mistake.
        if user::owner_of(self.input).is_kernel() {
            let fixed = self.input.get(..C::In::SIZE).unwrap_or(self.input);
            report_reserved(self.env, &queue_buffer::clear_user_memory_fields(fixed), &C::In::INFO);
        }
        let mut output = ViewMut::<C::Out>::new(self.output).ok_or(CmdStatus::BadOutputLen)?;
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

/// The input of a command, with zeros after the end of one that is as long as it was first published.
fn pad_legacy_input<C: Command>(input: &[u8]) -> Cow<'_, [u8]> {
    match C::OPCODE.legacy_input_len() {
        Some(legacy) if (legacy..C::In::SIZE).contains(&input.len()) => {
            let mut longer = input.to_vec();
            longer.resize(C::In::SIZE, 0);
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
            let done = execute(firmware, env, opcode, input, &mut output, output_len);
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

/// Checks whose objects a command names, runs it, and records whose are those that it made.
fn execute(firmware: &mut Firmware, env: &mut Env<'_>, opcode: u32, input: &[u8], output: &mut [u8], room: usize) -> Outcome {
    let Some(op) = CmdOpcode::from_code(opcode) else {
        firmware.unsupported.report(Unsupported::Command(opcode));
        return Err(Refusal::new(CmdStatus::BadOp, "no such command"));
    };
    user::admit(firmware.engine.registry(), op, input)?;
    run(Call { firmware: &mut *firmware, env, input, output: &mut *output, room }, op)?;
    user::record_owner(firmware.engine.registry_mut(), op, input, output);
    Ok(())
}

/// Runs the function of a command: `Command in State => function;` for each that the device has, and those that it has `not`.
macro_rules! run {
    ($call:ident, $op:ident, { $($command:ident in $needs:ident => $function:expr;)+ }, not: $($unsupported:ident)|+) => {
        match $op {
            $(CmdOpcode::$command => $call.run::<cmd::$command>(Needs::$needs, $function),)+
            $(CmdOpcode::$unsupported)|+ => {
                $call.firmware.unsupported.report(Unsupported::Command($op.code()));
                Err(Refusal::new(CmdStatus::BadOp, "not supported"))
            }
        }
    };
}

fn run(call: Call<'_, '_>, op: CmdOpcode) -> Outcome {
    let room = call.room;
    run!(call, op, {
        EnableHca in Nothing => boot::enable_hca;
        DisableHca in Enabled => boot::disable_hca;
        QueryIssi in Enabled => boot::query_issi;
        SetIssi in Enabled => boot::set_issi;
        InitHca in Booted => boot::init_hca;
        TeardownHca in Running => boot::teardown_hca;
        QueryAdapter in Booted => boot::query_adapter;
        SetDriverVersion in Booted => boot::set_driver_version;
        QuerySpecialContexts in Booted => boot::query_special_contexts;
        Nop in Nothing => boot::nop;
        QueryPages in Enabled => pages::query_pages;
        ManagePages in Enabled => |firmware, env, input, output| pages::manage_pages(firmware, env, input, output, room);
        QueryHcaCap in Booted => capability::query_hca_cap;
        SetHcaCap in Booted => capability::set_hca_cap;
        AccessReg in Booted => register::access_register;
        AllocUar in Running => resource::alloc_uar;
        DeallocUar in Running => resource::dealloc_uar;
        AllocPd in Running => resource::alloc_pd;
        DeallocPd in Running => resource::dealloc_pd;
        AllocXrcd in Running => resource::alloc_xrcd;
        DeallocXrcd in Running => resource::dealloc_xrcd;
        AllocTransportDomain in Running => resource::alloc_transport_domain;
        DeallocTransportDomain in Running => resource::dealloc_transport_domain;
        AllocQCounter in Running => resource::alloc_q_counter;
        DeallocQCounter in Running => resource::dealloc_q_counter;
        QueryQCounter in Running => resource::query_q_counter;
        CreateEq in Running => eq::create_eq;
        DestroyEq in Running => eq::destroy_eq;
        QueryEq in Running => eq::query_eq;
        CreateCq in Running => cq::create_cq;
        DestroyCq in Running => cq::destroy_cq;
        ModifyCq in Running => cq::modify_cq;
        QueryCq in Running => cq::query_cq;
        CreateSrq in Running => srq::create_srq;
        DestroySrq in Running => srq::destroy_srq;
        QuerySrq in Running => srq::query_srq;
        ArmRq in Running => srq::arm_srq;
        CreateXrcSrq in Running => srq::create_xrc_srq;
        DestroyXrcSrq in Running => srq::destroy_xrc_srq;
        QueryXrcSrq in Running => srq::query_xrc_srq;
        ArmXrcSrq in Running => srq::arm_xrc_srq;
        CreateRmp in Running => srq::create_rmp;
        DestroyRmp in Running => srq::destroy_rmp;
        QueryRmp in Running => srq::query_rmp;
        ModifyRmp in Running => srq::modify_rmp;
        CreateUctx in Running => user::create_uctx;
        DestroyUctx in Running => user::destroy_uctx;
        CreateUmem in Running => user::create_umem;
        DestroyUmem in Running => user::destroy_umem;
        AllocMemic in Running => device_memory::alloc;
        DeallocMemic in Running => device_memory::dealloc;
        CreateMkey in Running => mkey::create_mkey;
        QueryMkey in Running => mkey::query_mkey;
        DestroyMkey in Running => mkey::destroy_mkey;
        CreateQp in Running => qp::create_qp;
        DestroyQp in Running => qp::destroy_qp;
        QueryQp in Running => qp::query_qp;
        Rst2InitQp in Running => qp::modify::<cmd::Rst2InitQp>;
        Init2InitQp in Running => qp::modify::<cmd::Init2InitQp>;
        Init2RtrQp in Running => qp::modify::<cmd::Init2RtrQp>;
        Rtr2RtsQp in Running => qp::modify::<cmd::Rtr2RtsQp>;
        Rts2RtsQp in Running => qp::modify::<cmd::Rts2RtsQp>;
        SqErr2RtsQp in Running => qp::modify::<cmd::SqErr2RtsQp>;
        SqdRtsQp in Running => qp::modify::<cmd::SqdRtsQp>;
        Sqd2SqdQp in Running => qp::modify::<cmd::Sqd2SqdQp>;
        Qp2Err in Running => qp::modify_state::<cmd::Qp2Err>;
        Qp2Rst in Running => qp::modify_state::<cmd::Qp2Rst>;
        Rts2SqdQp in Running => qp::modify_state::<cmd::Rts2SqdQp>;
        AttachToMcg in Running => qp::attach_multicast;
        DetachFromMcg in Running => qp::detach_multicast;
        MadIfc in Booted => port::mad;
        QueryHcaVportContext in Booted => port::query_context;
        ModifyHcaVportContext in Booted => port::modify_context;
        QueryVportCounter in Running => port::query_counter;
        QueryLag in Running => port::query_lag;
        QueryHcaVportGid in Booted => |firmware, _, input, output| port::query_gid(firmware, input, output, room);
        QueryHcaVportPkey in Booted => |firmware, _, input, output| port::query_pkey(firmware, input, output, room);
        CreateGeneralObject in Running => general::refuse;
        ModifyGeneralObject in Running => general::refuse;
        QueryGeneralObject in Running => general::refuse;
        DestroyGeneralObject in Running => general::refuse;
    }, not: GenEqe | QueryVportState | QueryNicVportContext | ModifyNicVportContext | SetRoceAddress)
}
