//! Decodes a firmware command: its opcode, the owner of the objects that it names, the state of the HCA, the lengths. Then calls its
//! handler, or answers why not.

use std::borrow::Cow;

use bareverbs_mlx5_spec::{CmdIn, CmdOpcode, CmdOut, CmdStatus, Command, Layout, LayoutInfo, Place, View, ViewMut, cmd};

use super::refusal::{Outcome, Refusal};
use super::{
    access_register, boot, capabilities, cq, device_memory, eq, flow_table, general_object, mkey, nic_queue, nic_vport, pages,
    qp, queue_buffer, resource, srq, user_context, vport,
};
use crate::audit::Finding;
use crate::fault::Fault;
use crate::firmware::unsupported::{Unsupported, command_name};
use crate::firmware::{Firmware, HcaState};
use crate::rejection::Rejection;
use crate::step::StepContext;

/// Outputs up to this length must fit whole into what the driver has room for; of longer ones it gets the start.
const WHOLE_OUTPUT: usize = 272;

/// What the handler of a command works on.
struct Call<'a, 'e> {
    firmware: &'a mut Firmware,
    ctx: &'a mut StepContext<'e>,
    input: &'a [u8],
    output: &'a mut [u8],
    /// Bytes of output that the driver has room for.
    room: usize,
}

/// How far the HCA must be brought up for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    Enabled,
    /// Enabled, and the firmware has its first pages.
    Booted,
    Running,
}

impl Call<'_, '_> {
    /// Calls the handler of command `C`, in a state that allows it.
    fn run<C: Command>(
        self,
        needs: Needs,
        run: impl FnOnce(&mut Firmware, &mut StepContext<'_>, View<'_, C::In>, &mut ViewMut<'_, C::Out>) -> Outcome,
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
            return Err(Refusal::new(CmdStatus::BadSysState, "not in this state of the HCA"));
        }
        let input = pad_legacy_input::<C>(self.input);
        let input = View::<C::In>::new(&input).ok_or(CmdStatus::BadInputLen)?;
        if self.room < C::OPCODE.legacy_output_len().unwrap_or(C::Out::SIZE).min(WHOLE_OUTPUT) {
            return Err(CmdStatus::BadOutputLen.into());
        }
        // What a program wrote is not the driver's mistake.
        if user_context::owner_of(self.input).is_kernel() {
            let fixed = self.input.get(..C::In::SIZE).unwrap_or(self.input);
            report_reserved(self.ctx, &queue_buffer::clear_user_memory_fields(fixed), &C::In::INFO);
        }
        let mut output = ViewMut::<C::Out>::new(self.output).ok_or(CmdStatus::BadOutputLen)?;
        run(self.firmware, self.ctx, input, &mut output)
    }
}

/// Reports the first dword of each structure that has bits set where no field is.
fn report_reserved(ctx: &mut StepContext<'_>, bytes: &[u8], layout: &LayoutInfo) {
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
                    report_reserved(ctx, rest, &layout);
                }
            }
        }
    }
    let dwords = bytes.chunks_exact(4).filter_map(|dword| dword.first_chunk()).map(|dword| u32::from_be_bytes(*dword));
    if let Some(index) = dwords.zip(&known).position(|(dword, known)| dword & !known != 0) {
        ctx.audit.report(Finding::ReservedBits { layout: layout.name, offset: index * 4 });
    }
}

/// Returns the input of a command, with zeros after the end of one that is as long as it was first published.
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
pub(super) fn dispatch(firmware: &mut Firmware, ctx: &mut StepContext<'_>, input: &[u8], output_len: usize) -> Vec<u8> {
    let opcode = View::<CmdIn>::new(input).map_or(0, |input| input.get(CmdIn::OPCODE));
    let mut output = vec![0; output_len.max(MAX_FIXED_OUTPUT)];
    let injected = ctx.faults.take(|fault| match fault {
        Fault::CommandStatus { opcode: of, status, syndrome } if u32::from(*of) == opcode => {
            Some((u32::from(*status), *syndrome))
        }
        _ => None,
    });
    let outcome = match injected {
        Some(failure) => Err(failure),
        None => {
            let done = execute(firmware, ctx, opcode, input, &mut output, output_len);
            done.map_err(|refusal| {
                let name = command_name(opcode).unwrap_or("unknown opcode");
                ctx.reject(Rejection::Command { name, status: refusal.status.name(), why: refusal.why });
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

/// Maximum output of fixed length in bytes: a capability page.
const MAX_FIXED_OUTPUT: usize = 4112;

/// Checks whose objects a command names, runs it, and records whose are those that it made.
fn execute(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    opcode: u32,
    input: &[u8],
    output: &mut [u8],
    room: usize,
) -> Outcome {
    let Some(op) = CmdOpcode::from_code(opcode) else {
        firmware.unsupported.report(Unsupported::Command(opcode));
        return Err(Refusal::new(CmdStatus::BadOp, "no such command"));
    };
    user_context::check(firmware.engine.registry(), op, input)?;
    call_handler(Call { firmware: &mut *firmware, ctx, input, output: &mut *output, room }, op)?;
    user_context::record_owner(firmware.engine.registry_mut(), op, input, output);
    Ok(())
}

/// Calls the handler of a command: `Command in State => handler;` for each that the device has, and those that it has `not`.
macro_rules! handlers {
    ($call:ident, $op:ident, { $($command:ident in $needs:ident => $handler:expr;)+ }, not: $($unsupported:ident)|+) => {
        match $op {
            $(CmdOpcode::$command => $call.run::<cmd::$command>(Needs::$needs, $handler),)+
            $(CmdOpcode::$unsupported)|+ => {
                $call.firmware.unsupported.report(Unsupported::Command($op.code()));
                Err(Refusal::new(CmdStatus::BadOp, "not supported"))
            }
        }
    };
}

fn call_handler(call: Call<'_, '_>, op: CmdOpcode) -> Outcome {
    let room = call.room;
    handlers!(call, op, {
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
        ManagePages in Enabled => |firmware, ctx, input, output| pages::manage_pages(firmware, ctx, input, output, room);
        QueryHcaCap in Booted => capabilities::query_hca_cap;
        SetHcaCap in Booted => capabilities::set_hca_cap;
        AccessReg in Booted => access_register::access_register;
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
        CreateUctx in Running => user_context::create_uctx;
        DestroyUctx in Running => user_context::destroy_uctx;
        CreateUmem in Running => user_context::create_umem;
        DestroyUmem in Running => user_context::destroy_umem;
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
        QueryVportState in Booted => nic_vport::query_state;
        QueryNicVportContext in Booted =>
            |firmware, _, input, output| nic_vport::query_context(firmware, input, output, room);
        ModifyNicVportContext in Booted => nic_vport::modify_context;
        QueryRoceAddress in Running => nic_vport::query_roce_address;
        SetRoceAddress in Running => nic_vport::set_roce_address;
        CreateTis in Running => nic_queue::create_tis;
        DestroyTis in Running => nic_queue::destroy_tis;
        CreateTir in Running => nic_queue::create_tir;
        ModifyTir in Running => nic_queue::modify_tir;
        DestroyTir in Running => nic_queue::destroy_tir;
        QueryTis in Running => nic_queue::query_tis;
        CreateRqt in Running => nic_queue::create_rqt;
        ModifyRqt in Running => nic_queue::modify_rqt;
        DestroyRqt in Running => nic_queue::destroy_rqt;
        CreateRq in Running => nic_queue::create_rq;
        ModifyRq in Running => nic_queue::modify_rq;
        DestroyRq in Running => nic_queue::destroy_rq;
        QueryRq in Running => nic_queue::query_rq;
        CreateSq in Running => nic_queue::create_sq;
        ModifySq in Running => nic_queue::modify_sq;
        DestroySq in Running => nic_queue::destroy_sq;
        QuerySq in Running => nic_queue::query_sq;
        CreateFlowTable in Running => flow_table::create_table;
        DestroyFlowTable in Running => flow_table::destroy_table;
        ModifyFlowTable in Running => flow_table::modify_table;
        SetFlowTableRoot in Running => flow_table::set_root;
        CreateFlowGroup in Running => flow_table::create_group;
        DestroyFlowGroup in Running => flow_table::destroy_group;
        SetFlowTableEntry in Running => flow_table::set_entry;
        DeleteFlowTableEntry in Running => flow_table::delete_entry;
        AllocFlowCounter in Running => flow_table::alloc_counter;
        DeallocFlowCounter in Running => flow_table::dealloc_counter;
        QueryFlowCounter in Running =>
            |firmware, _, input, output| flow_table::query_counter(firmware, input, output, room);
        MadIfc in Booted => vport::mad;
        QueryHcaVportContext in Booted => vport::query_context;
        ModifyHcaVportContext in Booted => vport::modify_context;
        QueryVportCounter in Running => vport::query_counter;
        QueryLag in Running => vport::query_lag;
        QueryHcaVportGid in Booted => |firmware, _, input, output| vport::query_gid(firmware, input, output, room);
        QueryHcaVportPkey in Booted => |firmware, _, input, output| vport::query_pkey(firmware, input, output, room);
        CreateGeneralObject in Running => general_object::refuse;
        ModifyGeneralObject in Running => general_object::refuse;
        QueryGeneralObject in Running => general_object::refuse;
        DestroyGeneralObject in Running => general_object::refuse;
    }, not: GenEqe)
}
