//! Completions: taken and asked for.

use bareverbs::{Completion, WcData, WcOpcode, WcStatus};

use crate::argument::{Argument, Output};
use crate::call::{cq_of, on_verbs};
use crate::device::bv_device;
use crate::{
    BV_MAX_POLL, BV_WC_BAD_RESP_ERR, BV_WC_BIND_MW, BV_WC_COMP_SWAP, BV_WC_DEVICE_LOST, BV_WC_FETCH_ADD, BV_WC_GENERAL_ERR,
    BV_WC_LOC_ACCESS_ERR, BV_WC_LOC_LEN_ERR, BV_WC_LOC_PROT_ERR, BV_WC_LOC_QP_OP_ERR, BV_WC_LOCAL_INV, BV_WC_MW_BIND_ERR,
    BV_WC_RDMA_READ, BV_WC_RDMA_WRITE, BV_WC_RECV, BV_WC_RECV_RDMA_WITH_IMM, BV_WC_REM_ABORT_ERR, BV_WC_REM_ACCESS_ERR,
    BV_WC_REM_INV_REQ_ERR, BV_WC_REM_OP_ERR, BV_WC_RETRY_EXC_ERR, BV_WC_RNR_RETRY_EXC_ERR, BV_WC_SEND, BV_WC_SUCCESS,
    BV_WC_WITH_IMM, BV_WC_WITH_INV, BV_WC_WR_FLUSH_ERR, bv_cq,
};

/// A completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_wc {
    /// Of the request.
    pub wr_id: u64,
    /// The number of its queue pair, as in bv_qp.
    pub qp: u64,
    /// The number of its queue pair on the wire.
    pub qp_num: u32,
    /// How it ended: BV_WC_SUCCESS and the others. If it failed, of the members below only vendor_err and BV_WC_DEVICE_LOST say
    /// something.
    pub status: u32,
    /// What completed: BV_WC_SEND and the others.
    pub opcode: u32,
    /// The device's own code beside an error, 0 otherwise.
    pub vendor_err: u32,
    /// Bytes received, or bytes of the payload that was sent, read or swapped.
    pub byte_len: u32,
    /// Immediate data in network byte order, with BV_WC_WITH_IMM.
    pub imm_data: u32,
    /// BV_WC_WITH_IMM and the others.
    pub wc_flags: u32,
}

impl From<&Completion> for bv_wc {
    #[inline(always)]
    fn from(done: &Completion) -> Self {
        let (wc_flags, imm_data) = match done.data {
            WcData::None => (0, 0),
            WcData::Imm(imm) => (BV_WC_WITH_IMM, u32::from_ne_bytes(imm)),
            WcData::Invalidated(rkey) => (BV_WC_WITH_INV, rkey.get()),
            WcData::Lost(_) => (BV_WC_DEVICE_LOST, 0),
            // What this interface has no members for.
            _ => (0, 0),
        };
        Self {
            wr_id: done.wr_id,
            qp: done.qp.into_raw(),
            qp_num: done.qpn.get(),
            status: status_code(done.status),
            opcode: opcode_code(done.opcode),
            vendor_err: done.vendor_err.into(),
            byte_len: done.byte_len,
            imm_data,
            wc_flags,
        }
    }
}

const fn opcode_code(opcode: WcOpcode) -> u32 {
    match opcode {
        WcOpcode::Send => BV_WC_SEND,
        WcOpcode::RdmaWrite => BV_WC_RDMA_WRITE,
        WcOpcode::RdmaRead => BV_WC_RDMA_READ,
        WcOpcode::CompSwap => BV_WC_COMP_SWAP,
        WcOpcode::FetchAdd => BV_WC_FETCH_ADD,
        WcOpcode::LocalInv => BV_WC_LOCAL_INV,
        WcOpcode::Recv => BV_WC_RECV,
        WcOpcode::RecvRdmaWithImm => BV_WC_RECV_RDMA_WITH_IMM,
        // BindMw; nothing else is posted through this interface.
        _ => BV_WC_BIND_MW,
    }
}

const fn status_code(status: WcStatus) -> u32 {
    match status {
        WcStatus::Success => BV_WC_SUCCESS,
        WcStatus::LocLenErr => BV_WC_LOC_LEN_ERR,
        WcStatus::LocQpOpErr => BV_WC_LOC_QP_OP_ERR,
        WcStatus::LocProtErr => BV_WC_LOC_PROT_ERR,
        WcStatus::WrFlushErr => BV_WC_WR_FLUSH_ERR,
        WcStatus::MwBindErr => BV_WC_MW_BIND_ERR,
        WcStatus::BadRespErr => BV_WC_BAD_RESP_ERR,
        WcStatus::LocAccessErr => BV_WC_LOC_ACCESS_ERR,
        WcStatus::RemInvReqErr => BV_WC_REM_INV_REQ_ERR,
        WcStatus::RemAccessErr => BV_WC_REM_ACCESS_ERR,
        WcStatus::RemOpErr => BV_WC_REM_OP_ERR,
        WcStatus::RetryExcErr => BV_WC_RETRY_EXC_ERR,
        WcStatus::RnrRetryExcErr => BV_WC_RNR_RETRY_EXC_ERR,
        WcStatus::RemAbortErr => BV_WC_REM_ABORT_ERR,
        // GeneralErr, and what this interface has no code for.
        _ => BV_WC_GENERAL_ERR,
    }
}

/// Takes up to `count` completions, BV_MAX_POLL at most, and returns how many: 0 if none is there.
///
/// Errors: BV_EINVAL, the number is stale. BV_EBADMSG, the device wrote a completion that fits nothing; the others are still
/// there. BV_EIO, the queue overran, or the device is lost and every request was returned.
///
/// # Safety
/// `device` is of bv_init; `wcs` is `count` writable completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_poll_cq(device: *mut bv_device, cq: bv_cq, wcs: *mut bv_wc, count: usize) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let queue = cq_of(up.cqs, cq)?;
            if count == 0 {
                return Ok(0);
            }
            Output::new(wcs, "wcs")?;
            let mut done = [Completion::EMPTY; BV_MAX_POLL];
            let room = done.get_mut(..count.min(BV_MAX_POLL)).unwrap_or_default();
            let taken = queue.poll(room)?;
            for (index, completion) in done.iter().take(taken).enumerate() {
                Output::new(wcs.wrapping_add(index), "wcs")?.set(completion.into());
            }
            Ok(i32::try_from(taken).unwrap_or(0))
        })
    }
}

/// Arms a completion queue: its next completion gives BV_EVENT_COMPLETION, and an interrupt. With `solicited_only` 1 the next
/// solicited one, or the next that failed.
///
/// Errors: BV_EINVAL, the number is stale. BV_EIO, the queue is broken or the device is lost.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_req_notify_cq(device: *mut bv_device, cq: bv_cq, solicited_only: u32) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let queue = cq_of(up.cqs, cq)?;
            if solicited_only > 1 {
                return Err(Argument::Value("solicited_only", solicited_only.into()).into());
            }
            queue.req_notify(solicited_only != 0)?;
            Ok(0)
        })
    }
}
