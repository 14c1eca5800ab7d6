//! Completion queue entries (`mlx5_cqe64` and `mlx5_err_cqe` of rdma-core's `providers/mlx5/mlx5dv.h`; the hash and
//! checksum fields are those of Linux's `include/linux/mlx5/device.h`).

use crate::{be_word, codes, from_be_word};

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

    /// [`Self::OP_OWN`] of an entry, with format and solicited bit zero.
    #[inline(always)]
    pub const fn op_own(opcode: CqeOpcode, owner: u32) -> u8 {
        (Self::OPCODE.place(opcode.code()) | Self::OWNER.place(owner)) as u8
    }
}

/// The second half of an entry, as four words: what completions of InfiniBand are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqeTail {
    words: [u64; 4],
}

impl CqeTail {
    /// Byte of the entry where it begins.
    pub const OFFSET: usize = CQE / 2;

    /// The words as they were loaded.
    #[inline(always)]
    pub const fn from_be_words(words: [u64; 4]) -> Self {
        Self { words }
    }

    /// The dword at byte `AT` of the entry, host byte order.
    #[inline(always)]
    const fn dword<const AT: usize>(self) -> u32 {
        const { assert!(AT >= Self::OFFSET && AT < CQE && AT.is_multiple_of(4), "a dword of the second half") };
        let [first, second, third, last] = self.words;
        let word = match (AT - Self::OFFSET) / 8 {
            0 => first,
            1 => second,
            2 => third,
            _ => last,
        };
        let [high, low] = from_be_word(word);
        if AT.is_multiple_of(8) { high } else { low }
    }

    /// [`Cqe::SRQN_UIDX`]: the user index of a queue pair, or the number of a shared receive queue.
    #[inline(always)]
    pub const fn srqn_uidx(self) -> u32 {
        Cqe::SRQN_UIDX.take(self.dword::<{ Cqe::SRQN_UIDX.dword() }>())
    }

    /// [`Cqe::IMM_INVAL_PKEY`]: immediate data, invalidated key, or P_Key.
    #[inline(always)]
    pub const fn imm_inval_pkey(self) -> u32 {
        Cqe::IMM_INVAL_PKEY.take(self.dword::<{ Cqe::IMM_INVAL_PKEY.dword() }>())
    }

    /// [`Cqe::BYTE_CNT`]: bytes of the message.
    #[inline(always)]
    pub const fn byte_cnt(self) -> u32 {
        Cqe::BYTE_CNT.take(self.dword::<{ Cqe::BYTE_CNT.dword() }>())
    }

    /// [`ErrCqe::VENDOR_ERR_SYND`] of an error entry.
    #[inline(always)]
    pub const fn vendor_err_synd(self) -> u8 {
        ErrCqe::VENDOR_ERR_SYND.take(self.dword::<{ ErrCqe::VENDOR_ERR_SYND.dword() }>()) as u8
    }

    /// [`ErrCqe::SYNDROME`] of an error entry, a [`CqeSyndrome`].
    #[inline(always)]
    pub const fn syndrome(self) -> u32 {
        ErrCqe::SYNDROME.take(self.dword::<{ ErrCqe::SYNDROME.dword() }>())
    }

    /// [`Cqe::QPN`]: the queue pair.
    #[inline(always)]
    pub const fn qpn(self) -> u32 {
        Cqe::QPN.take(self.dword::<{ Cqe::QPN.dword() }>())
    }

    /// [`Cqe::WQE_COUNTER`]: index of the request.
    #[inline(always)]
    pub const fn wqe_counter(self) -> u16 {
        Cqe::WQE_COUNTER.take(self.dword::<{ Cqe::WQE_COUNTER.dword() }>()) as u16
    }

    /// [`Cqe::OPCODE`], a [`CqeOpcode`].
    #[inline(always)]
    pub const fn opcode(self) -> u32 {
        Cqe::OPCODE.take(self.dword::<{ Cqe::OPCODE.dword() }>())
    }

    /// [`Cqe::OWNER`]: the round of the ring in which the entry was written, one bit.
    #[inline(always)]
    pub const fn owner(self) -> u32 {
        Cqe::OWNER.take(self.dword::<{ Cqe::OWNER.dword() }>())
    }

    /// The words to store, with another owner bit.
    #[inline(always)]
    pub const fn with_owner(self, owner: u32) -> [u64; 4] {
        let [first, second, third, last] = self.words;
        let [high, low] = from_be_word(last);
        [first, second, third, be_word(high, Cqe::OWNER.replace(low, owner))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second half of an entry by the offsets of `mlx5_cqe64` (mlx5dv.h), less 32.
    const TAIL: [u8; 32] = [
        0xff, 0x12, 0x34, 0x56, // srqn_uidx
        0xde, 0xad, 0xbe, 0xef, // imm_inval_pkey
        1, 2, 3, 4, // app, app_op, app_info
        0, 0, 0x10, 2, // byte_cnt
        0, 0, 0, 0, // timestamp; mlx5_err_cqe: rsvd1
        0, 0, 0x68, 0x13, // vendor_err_synd and syndrome
        0x0a, 0x45, 0x67, 0x89, // sop_drop_qpn
        0xab, 0xcd, 0x77, 0xd1, // wqe_counter, signature, op_own
    ];

    fn tail() -> CqeTail {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(TAIL.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap());
        }
        CqeTail::from_be_words(words)
    }

    #[test]
    fn the_second_half_is_read_by_the_published_offsets() {
        let tail = tail();
        assert_eq!((tail.srqn_uidx(), tail.imm_inval_pkey(), tail.byte_cnt()), (0x12_3456, 0xdead_beef, 0x1002));
        assert_eq!((tail.vendor_err_synd(), tail.syndrome()), (0x68, 0x13));
        assert_eq!((tail.qpn(), tail.wqe_counter()), (0x45_6789, 0xabcd));
        assert_eq!((tail.opcode(), tail.owner()), (CqeOpcode::ReqErr.code(), 1));
    }

    #[test]
    fn another_owner_changes_one_bit() {
        let words = tail().with_owner(0);
        let bytes: [[u8; 8]; 4] = words.map(u64::to_ne_bytes);
        let mut expected = TAIL;
        expected[31] = 0xd0;
        assert_eq!(bytes.as_flattened(), expected);
    }

    #[test]
    fn opcode_and_owner_share_the_last_byte() {
        // mlx5_cqe64.op_own at byte 63: opcode << 4 | owner; cq.c marks a new entry with MLX5_CQE_INVALID << 4.
        assert_eq!((Cqe::OP_OWN, Cqe::op_own(CqeOpcode::Invalid, 1)), (63, 0xf1));
    }
}
