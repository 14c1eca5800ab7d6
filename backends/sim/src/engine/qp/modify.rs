//! The state machine of a queue pair as firmware commands see it: which transition starts where, and which fields of the
//! context it takes. A driver sends a fresh context each time, so what a transition does not name stays.

use bareverbs_mlx5_spec::{Ads, CmdOpcode, CmdStatus, Field, Qpc, QpcState, View, ViewMut, opt_param};

use crate::engine::config::EngineConfig;
use crate::engine::link::PortLink;
use crate::engine::qp::Qp;
use crate::engine::qp::context::Service;
use crate::engine::requester::state::Requester;
use crate::engine::responder::state::Responder;

/// One transition.
struct Transition {
    from: &'static [QpcState],
    to: QpcState,
    always: &'static [Field<Qpc>],
    optional: &'static [(u32, Field<Qpc>)],
    /// Takes the whole primary path.
    path: bool,
    /// Optional fields of the primary path, and those always taken.
    path_always: &'static [Field<Ads>],
    path_optional: &'static [(u32, Field<Ads>)],
}

const RRE: (u32, Field<Qpc>) = (opt_param::RRE, Qpc::RRE);
const RAE: (u32, Field<Qpc>) = (opt_param::RAE, Qpc::RAE);
/// Named with the right: Linux sets both together (`set_qpc_atomic_flags`).
const MODE: (u32, Field<Qpc>) = (opt_param::RAE, Qpc::ATOMIC_MODE);
const RWE: (u32, Field<Qpc>) = (opt_param::RWE, Qpc::RWE);
const RNR: (u32, Field<Qpc>) = (opt_param::RNR_TIMEOUT, Qpc::MIN_RNR_NAK);
const PM: (u32, Field<Qpc>) = (opt_param::PM_STATE, Qpc::PM_STATE);
const QKEY: (u32, Field<Qpc>) = (opt_param::Q_KEY, Qpc::Q_KEY);
const PKEY: (u32, Field<Ads>) = (opt_param::PKEY_INDEX, Ads::PKEY_INDEX);
const ANY: &[QpcState] = QpcState::ALL;

const fn plain(from: &'static [QpcState], to: QpcState) -> Transition {
    Transition { from, to, always: &[], optional: &[], path: false, path_always: &[], path_optional: &[] }
}

fn transition(opcode: CmdOpcode, service: Service) -> Option<Transition> {
    use QpcState::{Err, Init, Rst, Rtr, Rts, SqDraining, SqEr, Sqd};
    let connected = service.is_connected();
    Some(match opcode {
        CmdOpcode::Rst2InitQp => Transition {
            always: &[Qpc::PM_STATE, Qpc::RRE, Qpc::RWE, Qpc::RAE, Qpc::ATOMIC_MODE, Qpc::Q_KEY, Qpc::COUNTER_SET_ID],
            path_always: &[Ads::PKEY_INDEX, Ads::VHCA_PORT_NUM],
            ..plain(&[Rst], Init)
        },
        CmdOpcode::Init2InitQp => {
            Transition { optional: &[RRE, RAE, MODE, RWE, QKEY], path_optional: &[PKEY], ..plain(&[Init], Init) }
        }
        CmdOpcode::Init2RtrQp if connected => Transition {
            always: &[Qpc::MTU, Qpc::LOG_MSG_MAX, Qpc::REMOTE_QPN, Qpc::NEXT_RCV_PSN, Qpc::LOG_RRA_MAX, Qpc::MIN_RNR_NAK],
            optional: &[RRE, RAE, MODE, RWE],
            path: true,
            path_optional: &[PKEY],
            ..plain(&[Init], Rtr)
        },
        CmdOpcode::Init2RtrQp => Transition {
            always: &[Qpc::MTU, Qpc::LOG_MSG_MAX],
            optional: &[QKEY],
            path_optional: &[PKEY],
            ..plain(&[Init], Rtr)
        },
        CmdOpcode::Rtr2RtsQp if connected => Transition {
            always: &[Qpc::NEXT_SEND_PSN, Qpc::RETRY_COUNT, Qpc::RNR_RETRY, Qpc::LOG_SRA_MAX, Qpc::LOG_ACK_REQ_FREQ],
            optional: &[RRE, RAE, MODE, RWE, RNR, PM],
            path_always: &[Ads::ACK_TIMEOUT],
            ..plain(&[Rtr], Rts)
        },
        CmdOpcode::Rtr2RtsQp => Transition { always: &[Qpc::NEXT_SEND_PSN], optional: &[QKEY], ..plain(&[Rtr], Rts) },
        CmdOpcode::Rts2RtsQp => {
            Transition { optional: &[RRE, RAE, MODE, RWE, RNR, PM, QKEY], path_optional: &[PKEY], ..plain(&[Rts], Rts) }
        }
        CmdOpcode::Rts2SqdQp => plain(&[Rts], Sqd),
        CmdOpcode::Sqd2SqdQp => Transition {
            optional: &[
                RRE,
                RAE,
                MODE,
                RWE,
                RNR,
                PM,
                QKEY,
                (opt_param::SRA_MAX, Qpc::LOG_SRA_MAX),
                (opt_param::RRA_MAX, Qpc::LOG_RRA_MAX),
                (opt_param::RETRY_COUNT, Qpc::RETRY_COUNT),
                (opt_param::RNR_RETRY, Qpc::RNR_RETRY),
            ],
            path_optional: &[PKEY, (opt_param::ACK_TIMEOUT, Ads::ACK_TIMEOUT)],
            ..plain(&[Sqd, SqDraining], Sqd)
        },
        CmdOpcode::SqdRtsQp => Transition {
            optional: &[RRE, RAE, MODE, RWE, RNR, PM, QKEY],
            path_optional: &[PKEY],
            ..plain(&[Sqd, SqDraining], Rts)
        },
        CmdOpcode::SqErr2RtsQp => Transition { optional: &[RRE, RAE, MODE, RWE, RNR, QKEY], ..plain(&[SqEr], Rts) },
        CmdOpcode::Qp2Err => plain(ANY, Err),
        CmdOpcode::Qp2Rst => plain(ANY, Rst),
        _ => return None,
    })
}

/// Returns the optional fields of a transition that its service has. Linux masks what a caller names in the same way
/// (`opt_mask` in `drivers/infiniband/hw/mlx5/qp.c`), after firmware refused the rest; UCX names rights alone
/// (`rc_mlx5_devx.c`).
fn allowed(step: &Transition, opcode: CmdOpcode, service: Service) -> u32 {
    let named = step.optional.iter().map(|(bit, _)| bit).chain(step.path_optional.iter().map(|(bit, _)| bit));
    // There is one port, and every transition takes it.
    let more = match opcode {
        CmdOpcode::Init2InitQp => opt_param::PRI_PORT,
        CmdOpcode::Sqd2SqdQp => opt_param::PRIMARY_ADDR_PATH | opt_param::PRI_PORT,
        _ => 0,
    };
    let everywhere = opt_param::PKEY_INDEX | opt_param::PRI_PORT;
    let connected = everywhere | opt_param::RWE | opt_param::PM_STATE | opt_param::PRIMARY_ADDR_PATH;
    let has = match service {
        Service::Ud => everywhere | opt_param::Q_KEY,
        Service::Uc => connected,
        Service::Rc | Service::Xrc | Service::RegUmr => !opt_param::Q_KEY,
    };
    named.fold(more, |sum, bit| sum | bit) & has
}

/// Checks the fields of a transition: known optional fields, MTU and depths within those of the device, P_Key index within the
/// table, and what the link layer of the port asks of a path. Alternate paths are not offered
/// ([`CmdHcaCap::APM`](bareverbs_mlx5_spec::CmdHcaCap::APM)).
fn check(
    step: &Transition,
    service: Service,
    config: &EngineConfig,
    port: &PortLink,
    opcode: CmdOpcode,
    opt_mask: u32,
    new: View<'_, Qpc>,
) -> Result<(), CmdStatus> {
    /// The only state without automatic path migration.
    const MIGRATED: u32 = 3;
    let takes = |bit: u32, always: bool| opt_mask & bit != 0 || always;
    let to_rtr = opcode == CmdOpcode::Init2RtrQp;
    let mtu = new.get(Qpc::MTU);
    let max_reads = u32::from(config.log_max_reads);
    let accepts = takes(opt_param::RRA_MAX, to_rtr && service.is_reliable());
    let sends = takes(opt_param::SRA_MAX, opcode == CmdOpcode::Rtr2RtsQp && service.is_reliable());
    let path = new.sub(Qpc::PRIMARY_ADDRESS_PATH);
    let takes_path = takes(opt_param::PRIMARY_ADDR_PATH, step.path);
    let takes_pkey = takes(opt_param::PKEY_INDEX, opcode == CmdOpcode::Rst2InitQp);
    let refused = opt_mask & !allowed(step, opcode, service) != 0
        || (takes_pkey && path.get(Ads::PKEY_INDEX) as usize >= port.pkeys())
        || (takes_path && !port.accepts_path(path, service.is_connected()))
        || (takes(opt_param::PM_STATE, false) && new.get(Qpc::PM_STATE) != MIGRATED)
        || (to_rtr && service.is_connected() && (!(1..=5).contains(&mtu) || 128 << mtu > u32::from(config.max_mtu)))
        || (accepts && new.get(Qpc::LOG_RRA_MAX) > max_reads)
        || (sends && new.get(Qpc::LOG_SRA_MAX) > max_reads);
    if refused { Err(CmdStatus::BadParam) } else { Ok(()) }
}

/// Returns the index of the source GID that the path of a transition names, if the table has none there.
pub(in crate::engine) fn missing_gid(
    qp: &Qp,
    port: &PortLink,
    opcode: CmdOpcode,
    opt_mask: u32,
    new: View<'_, Qpc>,
) -> Option<u32> {
    let step = transition(opcode, qp.context.service)?;
    let path = new.sub(Qpc::PRIMARY_ADDRESS_PATH);
    let takes_path = step.path || opt_mask & opt_param::PRIMARY_ADDR_PATH != 0;
    let index = path.get(Ads::SRC_ADDR_INDEX);
    (takes_path && qp.context.service.is_connected() && !port.has_source(path)).then_some(index)
}

/// Takes `qp` through the transition that `opcode` names.
pub(in crate::engine) fn modify(
    qp: &mut Qp,
    config: &EngineConfig,
    port: &PortLink,
    opcode: CmdOpcode,
    opt_mask: u32,
    new: View<'_, Qpc>,
) -> Result<(), CmdStatus> {
    let step = transition(opcode, qp.context.service).ok_or(CmdStatus::BadOp)?;
    if !step.from.contains(&qp.context.state) {
        return Err(CmdStatus::BadQpState);
    }
    check(&step, qp.context.service, config, port, opcode, opt_mask, new)?;
    merge(qp, &step, opcode, opt_mask, new);
    match opcode {
        CmdOpcode::Init2RtrQp => qp.responder.start(qp.context.get(Qpc::NEXT_RCV_PSN)),
        CmdOpcode::Rtr2RtsQp => {
            let (psn, retries, rnr) =
                (qp.context.get(Qpc::NEXT_SEND_PSN), qp.context.get(Qpc::RETRY_COUNT), qp.context.get(Qpc::RNR_RETRY));
            qp.requester.start(psn, retries, rnr);
        }
        CmdOpcode::Rts2SqdQp => qp.requester.notify_drained = true,
        CmdOpcode::Qp2Rst => {
            qp.requester = Requester::default();
            qp.responder = Responder::default();
        }
        _ => {}
    }
    qp.context.enter(step.to);
    Ok(())
}

fn merge(qp: &mut Qp, step: &Transition, opcode: CmdOpcode, opt_mask: u32, new: View<'_, Qpc>) {
    let record_in_umem = qp.context.record_in_umem;
    let Some(mut context) = qp.context.qpc_mut() else { return };
    for &field in step.always {
        context.set(field, new.get(field));
    }
    for &(bit, field) in step.optional {
        if opt_mask & bit != 0 {
            context.set(field, new.get(field));
        }
    }
    if opcode == CmdOpcode::Rst2InitQp {
        // Zero here means: as created.
        for field in [Qpc::PD, Qpc::CQN_SND, Qpc::CQN_RCV] {
            if new.is_set(field) {
                context.set(field, new.get(field));
            }
        }
        if new.get64(Qpc::DBR_ADDR) != 0 && !record_in_umem {
            context.set64(Qpc::DBR_ADDR, new.get64(Qpc::DBR_ADDR));
        }
    }
    let whole_path = step.path || (opcode == CmdOpcode::Sqd2SqdQp && opt_mask & opt_param::PRIMARY_ADDR_PATH != 0);
    merge_path(context.sub(Qpc::PRIMARY_ADDRESS_PATH), step, whole_path, opt_mask, new.sub(Qpc::PRIMARY_ADDRESS_PATH));
}

fn merge_path(mut path: ViewMut<'_, Ads>, step: &Transition, whole: bool, opt_mask: u32, new: View<'_, Ads>) {
    if whole {
        let (pkey, timeout) = (path.get(Ads::PKEY_INDEX), path.get(Ads::ACK_TIMEOUT));
        copy_path(&mut path, new);
        // These two have transitions or mask bits of their own.
        path.set(Ads::PKEY_INDEX, pkey).set(Ads::ACK_TIMEOUT, timeout);
    }
    for &field in step.path_always {
        path.set(field, new.get(field));
    }
    for &(bit, field) in step.path_optional {
        if opt_mask & bit != 0 {
            path.set(field, new.get(field));
        }
    }
}

fn copy_path(path: &mut ViewMut<'_, Ads>, new: View<'_, Ads>) {
    const LEN: usize = <Ads as bareverbs_mlx5_spec::Layout>::SIZE;
    for (to, from) in path.as_bytes_mut().iter_mut().zip(new.as_bytes()).take(LEN) {
        *to = *from;
    }
}
