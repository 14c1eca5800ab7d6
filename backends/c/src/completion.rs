//! A completion, as C gets it.

use bareverbs::{Completion, Source, WcData, WcOpcode, WcStatus};

use crate::{
    BV_WC_BAD_RESP_ERR, BV_WC_BIND_MW, BV_WC_COMP_SWAP, BV_WC_DEVICE_LOST, BV_WC_FETCH_ADD, BV_WC_GENERAL_ERR, BV_WC_GRH,
    BV_WC_LOC_ACCESS_ERR, BV_WC_LOC_LEN_ERR, BV_WC_LOC_PROT_ERR, BV_WC_LOC_QP_OP_ERR, BV_WC_LOCAL_INV, BV_WC_MW_BIND_ERR,
    BV_WC_RDMA_READ, BV_WC_RDMA_WRITE, BV_WC_RECV, BV_WC_RECV_RDMA_WITH_IMM, BV_WC_REM_ABORT_ERR, BV_WC_REM_ACCESS_ERR,
    BV_WC_REM_INV_REQ_ERR, BV_WC_REM_OP_ERR, BV_WC_RETRY_EXC_ERR, BV_WC_RNR_RETRY_EXC_ERR, BV_WC_SEND, BV_WC_SUCCESS,
    BV_WC_WITH_IMM, BV_WC_WITH_INV, BV_WC_WR_FLUSH_ERR,
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
    /// something, and byte_len of the marker of a drain (bv_drain_sq).
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
    /// Receive of a datagram, as each member below: the queue pair that sent it. Zeros in other completions.
    pub src_qp: u32,
    /// LID of the port that sent it; 0 on an Ethernet port.
    pub slid: u16,
    /// P_Key that it came with; 0 with BV_WC_WITH_IMM.
    pub pkey: u16,
    /// VLAN that it came in; 0 without one, and on an InfiniBand port.
    pub vlan: u16,
    /// Service level; on an Ethernet port the priority of its VLAN tag.
    pub sl: u8,
    /// Low 7 bits of the LID that it was sent to.
    pub dlid_path_bits: u8,
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
            ..Self::default()
        }
    }
}

impl bv_wc {
    /// Adds where a datagram came from.
    pub(crate) fn with_source(self, source: &Source) -> Self {
        Self {
            wc_flags: self.wc_flags | if source.grh { BV_WC_GRH } else { 0 },
            src_qp: source.src_qp.get(),
            slid: source.slid.get(),
            pkey: source.pkey.unwrap_or(0),
            vlan: source.vlan.unwrap_or(0),
            sl: source.sl,
            dlid_path_bits: source.dlid_path_bits,
            ..self
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
