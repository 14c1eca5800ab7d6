//! Completion queue entries (`mlx5_cqe64` and `mlx5_err_cqe` of rdma-core's `providers/mlx5/mlx5dv.h`; the hash and
//! checksum fields are those of Linux's `include/linux/mlx5/device.h`).

use crate::codes;

/// Bytes of an entry.
pub const CQE: usize = 64;

codes! {
    /// Kind of an entry ([`Cqe::OPCODE`]).
    CqeOpcode {
        Req = 0 "REQ",
        RespWrImm = 1 "RESP_WR_IMM",
        RespSend = 2 "RESP_SEND",
        RespSendImm = 3 "RESP_SEND_IMM",
        RespSendInv = 4 "RESP_SEND_INV",
        ResizeCq = 5 "RESIZE_CQ",
        NoPacket = 6 "NO_PACKET",
        SigErr = 12 "SIG_ERR",
        ReqErr = 13 "REQ_ERR",
        RespErr = 14 "RESP_ERR",
        Invalid = 15 "INVALID",
    }
}

codes! {
    /// Syndrome of an error entry ([`ErrCqe::SYNDROME`]).
    CqeSyndrome {
        LocalLength = 0x01 "LOCAL_LENGTH_ERR",
        LocalQpOp = 0x02 "LOCAL_QP_OP_ERR",
        LocalProt = 0x04 "LOCAL_PROT_ERR",
        WrFlush = 0x05 "WR_FLUSH_ERR",
        MwBind = 0x06 "MW_BIND_ERR",
        BadResp = 0x10 "BAD_RESP_ERR",
        LocalAccess = 0x11 "LOCAL_ACCESS_ERR",
        RemoteInvalReq = 0x12 "REMOTE_INVAL_REQ_ERR",
        RemoteAccess = 0x13 "REMOTE_ACCESS_ERR",
        RemoteOp = 0x14 "REMOTE_OP_ERR",
        TransportRetryExc = 0x15 "TRANSPORT_RETRY_EXC_ERR",
        RnrRetryExc = 0x16 "RNR_RETRY_EXC_ERR",
        RemoteAborted = 0x22 "REMOTE_ABORTED_ERR",
    }
}

crate::layout! {
    /// Completion queue entry.
    Cqe "mlx5_cqe64", 64 bytes {
        WQE_ID "wqe_id" (0:15..0);
        RSS_HASH_RESULT "rss_hash_result" (12:31..0);
        RSS_HASH_TYPE "rss_hash_type" (16:31..24);
        ML_PATH "ml_path" (16:23..16);
        CHECK_SUM "check_sum" (20:31..16);
        SLID "slid" (20:15..0);
        GRH "grh" (24:29..28);
        SL "sl" (24:27..24);
        RQPN "rqpn" (24:23..0);
        HDS_IP_EXT "hds_ip_ext" (28:31..24);
        L4_HDR_TYPE_ETC "l4_hdr_type_etc" (28:23..16);
        VLAN_INFO "vlan_info" (28:15..0);
        SRQN_UIDX "srqn_uidx" (32:23..0);
        /// Immediate data, invalidated key, or P_Key.
        IMM_INVAL_PKEY "imm_inval_pkey" (36:31..0);
        APP "app" (40:31..24);
        APP_OP "app_op" (40:23..16);
        APP_INFO "app_info" (40:15..0);
        BYTE_CNT "byte_cnt" (44:31..0);
        TIMESTAMP "timestamp" (@48 u64);
        /// Opcode of the send WQE.
        SEND_OPCODE "sop" (56:31..24);
        QPN "qpn" (56:23..0);
        WQE_COUNTER "wqe_counter" (60:31..16);
        SIGNATURE "signature" (60:15..8);
        OPCODE "opcode" (60:7..4);
        FORMAT "format" (60:3..2);
        SE "se" (60:1..1);
        OWNER "owner" (60:0..0);
    }
}

crate::layout! {
    /// Completion queue entry of a failed request.
    ErrCqe "mlx5_err_cqe", 64 bytes {
        SRQN "srqn" (32:23..0);
        VENDOR_ERR_SYND "vendor_err_synd" (52:15..8);
        SYNDROME "syndrome" (52:7..0);
        SEND_OPCODE "s_wqe_opcode" (56:31..24);
        QPN "qpn" (56:23..0);
        WQE_COUNTER "wqe_counter" (60:31..16);
        SIGNATURE "signature" (60:15..8);
        OPCODE "opcode" (60:7..4);
        FORMAT "format" (60:3..2);
        SE "se" (60:1..1);
        OWNER "owner" (60:0..0);
    }
}

impl Cqe {
    /// Byte of an entry with opcode, format, solicited bit and owner bit; the device writes it last.
    pub const OP_OWN: usize = Self::OWNER.dword() + 3;

    /// Returns [`Self::OP_OWN`] of an entry, with format and solicited bit zero.
    #[inline(always)]
    pub const fn op_own(opcode: CqeOpcode, owner: u32) -> u8 {
        (Self::OPCODE.place(opcode.code()) | Self::OWNER.place(owner)) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Field;

    /// Words 4 to 7 of an entry, as numbers, by the offsets of `mlx5_cqe64` (mlx5dv.h).
    const WORDS: [u64; 4] = [
        0xff12_3456_dead_beef, // srqn_uidx at 32, imm_inval_pkey at 36
        0x0102_0304_0000_1002, // app, app_op, app_info at 40, byte_cnt at 44
        0x0000_0000_0000_6813, // timestamp at 48; mlx5_err_cqe: vendor_err_synd at 54, syndrome at 55
        0x0a45_6789_abcd_77d1, // sop_drop_qpn at 56, wqe_counter at 60, signature at 62, op_own at 63
    ];

    fn take<L>(field: Field<L>) -> u32 {
        field.take_word(WORDS[field.word() - 4])
    }

    #[test]
    fn fields_are_read_out_of_words_by_the_published_offsets() {
        let (key, bytes) = (take(Cqe::IMM_INVAL_PKEY), take(Cqe::BYTE_CNT));
        assert_eq!((take(Cqe::SRQN_UIDX), key, bytes), (0x12_3456, 0xdead_beef, 0x1002));
        assert_eq!((take(ErrCqe::VENDOR_ERR_SYND), take(ErrCqe::SYNDROME)), (0x68, 0x13));
        assert_eq!((take(Cqe::QPN), take(Cqe::WQE_COUNTER)), (0x45_6789, 0xabcd));
        assert_eq!((take(Cqe::OPCODE), take(Cqe::OWNER)), (CqeOpcode::ReqErr.code(), 1));
    }

    #[test]
    fn another_owner_changes_one_bit() {
        assert_eq!(Cqe::OWNER.replace_word(WORDS[3], 0), 0x0a45_6789_abcd_77d0);
        assert_eq!(Cqe::QPN.replace_word(WORDS[3], 0), 0x0a00_0000_abcd_77d1);
    }

    #[test]
    fn opcode_and_owner_share_the_last_byte() {
        // mlx5_cqe64.op_own at byte 63: opcode << 4 | owner; cq.c marks a new entry with MLX5_CQE_INVALID << 4.
        assert_eq!((Cqe::OP_OWN, Cqe::op_own(CqeOpcode::Invalid, 1)), (63, 0xf1));
    }
}

/// Bits of [`Cqe::HDS_IP_EXT`] of a frame on an Ethernet receive queue (`CQE_L2_OK`, `CQE_L3_OK`, `CQE_L4_OK`).
pub mod frame_ok {
    /// The Ethernet header.
    pub const L2: u32 = 1;
    /// The IP header and its checksum.
    pub const L3: u32 = 1 << 1;
    /// The checksum of TCP or UDP.
    pub const L4: u32 = 1 << 2;
}
