//! Completion queues and queue pairs: made, connected, destroyed.

use bareverbs::{
    Access, AddressVector, CqHandle, Gid, GlobalRoute, Lid, Mtu, PdHandle, Psn, Qkey, QpAttr, QpAttrMask, QpCap, QpHandle,
    QpInfo, QpInit, QpState, QpType, Qpn, SrqHandle,
};

use crate::argument::{Argument, Output, reference};
use crate::call::{Up, cq_of, cq_place, on_verbs, qp_of, qp_place};
use crate::device::{CQueuePair, Names, bv_device};
use crate::failure::Failure;
use crate::path::{global_route, mac};
use crate::{
    BV_QP_ACCESS_FLAGS, BV_QP_AV, BV_QP_DEST_QPN, BV_QP_MAX_DEST_RD_ATOMIC, BV_QP_MAX_QP_RD_ATOMIC, BV_QP_MIN_RNR_TIMER,
    BV_QP_PATH_MTU, BV_QP_PKEY_INDEX, BV_QP_PORT, BV_QP_QKEY, BV_QP_RETRY_CNT, BV_QP_RNR_RETRY, BV_QP_RQ_PSN, BV_QP_SQ_PSN,
    BV_QP_STATE, BV_QP_TIMEOUT, BV_QPS_ERR, BV_QPS_INIT, BV_QPS_RESET, BV_QPS_RTR, BV_QPS_RTS, BV_QPS_SQD, BV_QPS_SQE,
    BV_QPT_RC, BV_QPT_UC, bv_cq, bv_pd, bv_qp, bv_srq,
};

/// A queue pair to make.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bv_qp_init {
    /// Protection domain.
    pub pd: bv_pd,
    /// Queue for completions of sends.
    pub send_cq: bv_cq,
    /// Queue for completions of receives; may be the same.
    pub recv_cq: bv_cq,
    /// Transport: BV_QPT_RC or BV_QPT_UC; bv_create_ud_qp and bv_create_xrc_send_qp ignore it.
    pub qp_type: u32,
    /// 1 if every send gives a completion, 0 if only those with BV_SEND_SIGNALED.
    pub sq_sig_all: u32,
    /// Send requests in flight, at least.
    pub max_send_wr: u32,
    /// Receives in flight, at least.
    pub max_recv_wr: u32,
    /// SGEs of a send, at least.
    pub max_send_sge: u32,
    /// SGEs of a receive, at least.
    pub max_recv_sge: u32,
    /// Bytes of an inline payload, at least.
    pub max_inline_data: u32,
}

/// Attributes of a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bv_qp_attr {
    /// State to go to (BV_QPS_RESET and the others; bv_modify_qp_to_rts ignores it).
    pub qp_state: u32,
    /// Rights that requests of the peer may use.
    pub access: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// First PSN expected, 24 bits.
    pub rq_psn: u32,
    /// First PSN sent, 24 bits.
    pub sq_psn: u32,
    /// Code of the path MTU: 1 for 256 bytes to 5 for 4096.
    pub path_mtu: u32,
    /// Flow label of the global route, 20 bits.
    pub flow_label: u32,
    /// Q_Key of a UD queue pair: datagrams with another Q_Key are dropped.
    pub qkey: u32,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// The peer's LID.
    pub dlid: u16,
    /// Port, from 1.
    pub port_num: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Local ACK timeout: 4.096 µs · 2^timeout, 0 for none, 5 bits.
    pub timeout: u8,
    /// Retries before the connection is broken, 3 bits.
    pub retry_cnt: u8,
    /// Retries after RNR NAK, 3 bits, 7 for ever.
    pub rnr_retry: u8,
    /// Code of the time that the peer waits after our RNR NAK, 5 bits (IBTA table 45).
    pub min_rnr_timer: u8,
    /// Reads and atomics outstanding as initiator.
    pub max_rd_atomic: u8,
    /// Reads and atomics outstanding as target.
    pub max_dest_rd_atomic: u8,
    /// 1 if packets carry a global route: the members below and flow_label.
    pub is_global: u8,
    /// Index of our GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// The peer's GID, in network byte order.
    pub dgid: [u8; 16],
    /// Ethernet port: the MAC address of the peer, or of the router to it, first byte first on the wire. Zeros on an InfiniBand port.
    pub dmac: [u8; 6],
}

/// What a queue pair is now.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_qp_info {
    /// State: BV_QPS_RESET and the others.
    pub qp_state: u32,
    /// In BV_QPS_SQD: 1 while sends that had begun are not done yet, else 0.
    pub sq_draining: u32,
    /// Its number on the wire.
    pub qp_num: u32,
    /// Next PSN expected.
    pub rq_psn: u32,
    /// Next PSN sent.
    pub sq_psn: u32,
    /// Send requests in flight that it has room for.
    pub max_send_wr: u32,
    /// Receives in flight that it has room for.
    pub max_recv_wr: u32,
    /// SGEs of a send.
    pub max_send_sge: u32,
    /// SGEs of a receive.
    pub max_recv_sge: u32,
    /// Bytes of an inline payload.
    pub max_inline_data: u32,
    /// Send blocks in flight.
    pub send_blocks: u32,
    /// Receives in flight.
    pub recvs: u32,
}

/// Every attribute that C may change.
const KNOWN: u32 = BV_QP_STATE
    | BV_QP_ACCESS_FLAGS
    | BV_QP_PKEY_INDEX
    | BV_QP_PORT
    | BV_QP_QKEY
    | BV_QP_AV
    | BV_QP_PATH_MTU
    | BV_QP_TIMEOUT
    | BV_QP_RETRY_CNT
    | BV_QP_RNR_RETRY
    | BV_QP_RQ_PSN
    | BV_QP_MAX_QP_RD_ATOMIC
    | BV_QP_MIN_RNR_TIMER
    | BV_QP_SQ_PSN
    | BV_QP_MAX_DEST_RD_ATOMIC
    | BV_QP_DEST_QPN;

const fn state_of(code: u32) -> Option<QpState> {
    Some(match code {
        BV_QPS_RESET => QpState::Reset,
        BV_QPS_INIT => QpState::Init,
        BV_QPS_RTR => QpState::Rtr,
        BV_QPS_RTS => QpState::Rts,
        BV_QPS_SQD => QpState::Sqd,
        BV_QPS_SQE => QpState::Sqe,
        BV_QPS_ERR => QpState::Err,
        _ => return None,
    })
}

const fn code_of(state: QpState) -> u32 {
    match state {
        QpState::Reset => BV_QPS_RESET,
        QpState::Init => BV_QPS_INIT,
        QpState::Rtr => BV_QPS_RTR,
        QpState::Rts => BV_QPS_RTS,
        QpState::Sqd => BV_QPS_SQD,
        QpState::Sqe => BV_QPS_SQE,
        QpState::Err => BV_QPS_ERR,
    }
}

impl bv_qp_attr {
    /// Returns the attributes of the verbs. Only values that `mask` names are looked at, if they have no counterpart there.
    fn verbs_attr(&self, mask: u32) -> Result<QpAttr, Argument> {
        let path_mtu = Mtu::from_encoding(self.path_mtu);
        let state = state_of(self.qp_state);
        if mask & BV_QP_PATH_MTU != 0 && path_mtu.is_none() {
            return Err(Argument::Value("path_mtu", self.path_mtu.into()));
        }
        if mask & BV_QP_STATE != 0 && state.is_none() {
            return Err(Argument::Value("qp_state", self.qp_state.into()));
        }
        let route = GlobalRoute {
            dgid: Gid(self.dgid),
            flow_label: self.flow_label,
            sgid_index: self.sgid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
        };
        // Looked at only where the mask names it.
        let is_global = if mask & BV_QP_AV != 0 { self.is_global } else { self.is_global.min(1) };
        let (grh, dmac) = (global_route(is_global, route)?, mac(self.dmac));
        let (dlid, sl, port_num) = (Lid::new(self.dlid), self.sl, self.port_num);
        let av = AddressVector { dlid, sl, port_num, grh, dmac, ..AddressVector::default() };
        Ok(QpAttr {
            state: state.unwrap_or_default(),
            access: Access::from_bits_retain(self.access),
            pkey_index: self.pkey_index,
            port_num: self.port_num,
            av,
            path_mtu: path_mtu.unwrap_or_default(),
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            rq_psn: Psn::new(self.rq_psn),
            sq_psn: Psn::new(self.sq_psn),
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            dest_qpn: Qpn::new(self.dest_qp_num),
            qkey: Qkey::new(self.qkey),
            ..QpAttr::default()
        })
    }
}

impl bv_qp_init {
    /// Returns the queue pair of the verbs. The caller sets its transport: one that the compiler sees there, so that the code of no
    /// other is linked.
    pub(crate) fn verbs_init(&self) -> Result<QpInit, Argument> {
        if self.sq_sig_all > 1 {
            return Err(Argument::Value("sq_sig_all", self.sq_sig_all.into()));
        }
        Ok(QpInit {
            pd: PdHandle::from_raw(self.pd.number),
            qp_type: QpType::Rc,
            send_cq: CqHandle::from_raw(self.send_cq.number),
            recv_cq: CqHandle::from_raw(self.recv_cq.number),
            cap: QpCap {
                max_send_wr: self.max_send_wr,
                max_recv_wr: self.max_recv_wr,
                max_send_sge: self.max_send_sge,
                max_recv_sge: self.max_recv_sge,
                max_inline_data: self.max_inline_data,
            },
            sq_sig_all: self.sq_sig_all != 0,
        })
    }
}

/// Keeps a queue pair that was made, and returns what C gets of it.
pub(crate) fn keep_qp(up: Up<'_>, queues: CQueuePair) -> Result<bv_qp, Failure> {
    let handle = queues.handle();
    let qp_num = up.verbs.qp_info(handle)?.qpn.get();
    if let Some(slot) = up.qps.get_mut(usize::from(handle.index())) {
        *slot = Some(queues);
    }
    Ok(bv_qp { number: handle.into_raw(), qp_num })
}

impl From<&QpInfo> for bv_qp_info {
    fn from(info: &QpInfo) -> Self {
        Self {
            qp_state: code_of(info.state),
            sq_draining: info.sq_draining.into(),
            qp_num: info.qpn.get(),
            rq_psn: info.attr.rq_psn.get(),
            sq_psn: info.attr.sq_psn.get(),
            max_send_wr: info.cap.max_send_wr,
            max_recv_wr: info.cap.max_recv_wr,
            max_send_sge: info.cap.max_send_sge,
            max_recv_sge: info.cap.max_recv_sge,
            max_inline_data: info.cap.max_inline_data,
            send_blocks: info.send_blocks,
            recvs: info.recvs,
        }
    }
}

/// Makes a completion queue of at least `entries`. A queue that is full when a completion comes is broken for ever: it needs an
/// entry for each request that may be in flight, BV_MAX_SEND_BLOCKS + BV_MAX_RECV for each queue pair at most.
///
/// Errors: BV_EINVAL, 0 entries or more than the device has. BV_ENOMEM, there are BV_MAX_CQ, or no memory is left for it.
///
/// # Safety
/// `device` is of bv_init; `cq` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_create_cq(device: *mut bv_device, entries: u32, cq: *mut bv_cq) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(cq, "cq")?;
            let queue = up.verbs.create_cq(entries)?;
            let handle = queue.handle();
            let cqe = up.verbs.cq_info(handle)?.entries;
            if let Some(slot) = up.cqs.get_mut(usize::from(handle.index())) {
                *slot = Some(queue);
            }
            place.set(bv_cq { number: handle.into_raw(), cqe });
            Ok(0)
        })
    }
}

/// Gives a completion queue at least `entries` entries, more or fewer than it has, and writes how many into `cq`. Completions that wait in
/// it stay, in their order, and its queue pairs complete into it meanwhile. The memory of both sizes is taken during the call.
///
/// Errors: BV_EINVAL, the number is stale, 0 entries or more than the device has, or fewer than completions that wait. BV_ENOMEM, no memory is
/// left for it. Others: the device did not do it. The queue is as before, unless the device is lost.
///
/// # Safety
/// `device` is of bv_init; `cq` is readable and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_resize_cq(device: *mut bv_device, cq: *mut bv_cq, entries: u32) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let (old, place) = (*reference(cq.cast_const(), "cq")?, Output::new(cq, "cq")?);
            let queue = cq_of(up.cqs, old)?;
            up.verbs.resize_cq(queue, entries)?;
            place.set(bv_cq { cqe: up.verbs.cq_info(queue.handle())?.entries, ..old });
            Ok(0)
        })
    }
}

/// Destroys a completion queue.
///
/// Errors: BV_EINVAL, the number names none. BV_EBUSY, queue pairs complete into it. Others: the device did not do it, and the
/// queue is as before.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_destroy_cq(device: *mut bv_device, cq: bv_cq) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = cq_place(up.cqs, cq)?;
            let Some(queue) = place.take() else { return Err(Argument::Stale("completion queue").into()) };
            if let Err(refused) = up.verbs.destroy_cq(queue) {
                *place = refused.returned;
                return Err(refused.error.into());
            }
            Ok(0)
        })
    }
}

/// Makes a queue pair, in the state RESET.
///
/// Errors: BV_EINVAL, a number is stale, or a capacity exceeds the device's. BV_ENOMEM, there are BV_MAX_QP, a capacity exceeds
/// BV_MAX_SEND_BLOCKS or BV_MAX_RECV, or no memory is left. BV_EAGAIN, completions of an earlier queue pair are not polled yet.
///
/// # Safety
/// `device` is of bv_init; `init` is readable and `qp` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_create_qp(device: *mut bv_device, init: *const bv_qp_init, qp: *mut bv_qp) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(qp, "qp")?;
            let init = reference(init, "init")?;
            // Transports that are named here: the code of no other is linked.
            let qp_type = match init.qp_type {
                BV_QPT_RC => QpType::Rc,
                BV_QPT_UC => QpType::Uc,
                other => return Err(Argument::Value("qp_type", other.into()).into()),
            };
            let queues = up.verbs.create_qp(&QpInit { qp_type, ..init.verbs_init()? })?;
            place.set(keep_qp(up, CQueuePair::Own(queues, Names::Nobody))?);
            Ok(0)
        })
    }
}

/// Makes a queue pair, in the state RESET, that takes its receives from a shared receive queue (bv_create_srq): bv_post_srq_recv posts
/// them, and bv_post_recv none. What `init` says about receives is ignored, and qp_type is BV_QPT_RC. A receive completes where recv_cq
/// says, which needs room for each of the shared queue.
///
/// Errors: as of bv_create_qp; BV_EINVAL also if the number names no such queue, or one of XRC.
///
/// # Safety
/// `device` is of bv_init; `init` is readable and `qp` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_create_qp_with_srq(
    device: *mut bv_device,
    init: *const bv_qp_init,
    srq: bv_srq,
    qp: *mut bv_qp,
) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(qp, "qp")?;
            let init = reference(init, "init")?;
            if init.qp_type != BV_QPT_RC {
                return Err(Argument::Value("qp_type", init.qp_type.into()).into());
            }
            let queues = up.verbs.create_qp_with_srq(&init.verbs_init()?, SrqHandle::from_raw(srq.number))?;
            place.set(keep_qp(up, CQueuePair::Shared(queues))?);
            Ok(0)
        })
    }
}

/// Takes a queue pair from RESET to RTS, with the attributes that its transport requires.
///
/// Errors: BV_EINVAL, the number is stale, or an attribute is invalid: the queue pair is as before. Others: the device refuses a
/// transition, and the queue pair is in the state before that one; bv_modify_qp leads back to RESET.
///
/// # Safety
/// `device` is of bv_init; `attr` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_modify_qp_to_rts(device: *mut bv_device, qp: bv_qp, attr: *const bv_qp_attr) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            // Datagrams have no path that could be wrong.
            let is_datagrams = qp_of(up.qps, qp)?.send().1 == Names::Destination;
            let path = if is_datagrams { BV_QP_AV | BV_QP_PATH_MTU } else { 0 };
            let attr = reference(attr, "attr")?.verbs_attr(KNOWN & !BV_QP_STATE & !path)?;
            up.verbs.modify_qp_to_rts(QpHandle::from_raw(qp.number), &attr)?;
            Ok(0)
        })
    }
}

/// Changes the attributes of a queue pair that `mask` names (BV_QP_STATE and the others). RESET (BV_QP_STATE alone)
/// discards what was posted. Its completions that wait in a completion queue are discarded when that is polled.
///
/// Errors: BV_EINVAL, the number is stale, or an attribute or the transition is invalid. Others: the device did not do it. The queue pair
/// is as before.
///
/// # Safety
/// `device` is of bv_init; `attr` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_modify_qp(device: *mut bv_device, qp: bv_qp, attr: *const bv_qp_attr, mask: u32) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            if mask & !KNOWN != 0 {
                return Err(Argument::Value("mask", mask.into()).into());
            }
            let attr = reference(attr, "attr")?.verbs_attr(mask)?;
            if mask & BV_QP_STATE != 0 && attr.state == QpState::Reset {
                if mask != BV_QP_STATE {
                    return Err(Argument::Value("mask", mask.into()).into());
                }
                reset(up, qp)?;
                return Ok(0);
            }
            up.verbs.modify_qp(QpHandle::from_raw(qp.number), &attr, QpAttrMask::from_bits_retain(mask))?;
            Ok(0)
        })
    }
}

/// Takes a queue pair to RESET.
fn reset(up: Up<'_>, qp: bv_qp) -> Result<(), Failure> {
    match qp_of(up.qps, qp)? {
        CQueuePair::Own(queues, _) => up.verbs.reset_qp(queues)?,
        CQueuePair::Shared(queues) => up.verbs.reset_qp(queues)?,
        CQueuePair::Xrc(queues) => up.verbs.reset_qp(queues)?,
    }
    Ok(())
}

/// Writes what a queue pair is now, as the device says.
///
/// Errors: BV_EINVAL, the number is stale. Others: the device does not answer.
///
/// # Safety
/// `device` is of bv_init; `info` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_query_qp(device: *mut bv_device, qp: bv_qp, info: *mut bv_qp_info) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(info, "info")?;
            place.set((&up.verbs.query_qp(QpHandle::from_raw(qp.number))?).into());
            Ok(0)
        })
    }
}

/// Destroys a queue pair with all that is posted: no completion of it is given afterwards.
///
/// Errors: BV_EINVAL, the number names none. BV_EBUSY, it is in a multicast group. Others: the device did not do it, and the queue pair is
/// as before.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_destroy_qp(device: *mut bv_device, qp: bv_qp) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = qp_place(up.qps, qp)?;
            let Some(queues) = place.take() else { return Err(Argument::Stale("queue pair").into()) };
            let (returned, error) = match queues {
                CQueuePair::Own(queues, names) => match up.verbs.destroy_qp(queues) {
                    Ok(()) => return Ok(0),
                    Err(refused) => (refused.returned.map(|queues| CQueuePair::Own(queues, names)), refused.error),
                },
                CQueuePair::Shared(queues) => match up.verbs.destroy_qp(queues) {
                    Ok(()) => return Ok(0),
                    Err(refused) => (refused.returned.map(CQueuePair::Shared), refused.error),
                },
                CQueuePair::Xrc(queues) => match up.verbs.destroy_qp(queues) {
                    Ok(()) => return Ok(0),
                    Err(refused) => (refused.returned.map(CQueuePair::Xrc), refused.error),
                },
            };
            *place = returned;
            Err(error.into())
        })
    }
}
