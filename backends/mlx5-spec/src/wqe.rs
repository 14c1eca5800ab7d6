//! Work queue elements: the segments that a request is built of.
//!
//! Not in `mlx5_ifc.h`; the names are those of the `mlx5_wqe_*` structures of rdma-core's `providers/mlx5/mlx5dv.h` and
//! `wqe.h`. A send WQE is a run of 16-byte units in 64-byte blocks (WQEBB) and starts with a control segment.

use crate::codes;

/// Bytes of a send queue block.
pub const WQEBB: usize = 64;
/// Bytes of the unit that `ds` counts.
pub const DS_UNIT: usize = 16;
/// Key of the data segment that ends a short receive list.
pub const INVALID_LKEY: u32 = 0x100;

codes! {
    /// Send opcodes (`MLX5_OPCODE_*`).
    WqeOpcode {
        Nop = 0x00 "NOP",
        SendInval = 0x01 "SEND_INVAL",
        RdmaWrite = 0x08 "RDMA_WRITE",
        RdmaWriteImm = 0x09 "RDMA_WRITE_IMM",
        Send = 0x0a "SEND",
        SendImm = 0x0b "SEND_IMM",
        Tso = 0x0e "TSO",
        RdmaRead = 0x10 "RDMA_READ",
        AtomicCs = 0x11 "ATOMIC_CS",
        AtomicFa = 0x12 "ATOMIC_FA",
        AtomicMaskedCs = 0x14 "ATOMIC_MASKED_CS",
        AtomicMaskedFa = 0x15 "ATOMIC_MASKED_FA",
        Fmr = 0x19 "FMR",
        LocalInval = 0x1b "LOCAL_INVAL",
        SetPsv = 0x20 "SET_PSV",
        Umr = 0x25 "UMR",
    }
}

crate::layout! {
    /// Control segment.
    WqeCtrlSeg "mlx5_wqe_ctrl_seg", 16 bytes {
        OPMOD "opmod" (0:31..24);
        WQE_INDEX "wqe_idx" (0:23..8);
        OPCODE "opcode" (0:7..0);
        QPN "qpn" (4:31..8);
        DS "ds" (4:5..0);
        SIGNATURE "signature" (8:31..24);
        DCI_STREAM_CHANNEL_ID "dci_stream_channel_id" (8:23..8);
        FM "fm" (8:7..5);
        CE "ce" (8:3..2);
        SE "se" (8:1..1);
        /// Immediate data, key to invalidate, or UMR key, by opcode.
        IMM "imm" (12:31..0);
    }
}

/// Values of [`WqeCtrlSeg::FM`], the fence mode.
pub mod fm {
    /// No fence.
    pub const NONE: u32 = 0;
    /// Waits for the local operations before it (bind, invalidate).
    pub const INITIATOR_SMALL_FENCE: u32 = 1;
    /// Waits for reads and atomics before it.
    pub const FENCE: u32 = 4;
}

/// Values of [`WqeCtrlSeg::CE`], when to write a completion.
pub mod ce {
    /// Only after an error.
    pub const ERROR_ONLY: u32 = 0;
    /// Always.
    pub const ALWAYS: u32 = 2;
}

crate::layout! {
    /// Remote address segment.
    WqeRaddrSeg "mlx5_wqe_raddr_seg", 16 bytes {
        RADDR "raddr" (@0 u64);
        RKEY "rkey" (8:31..0);
    }
}

crate::layout! {
    /// Atomic segment.
    WqeAtomicSeg "mlx5_wqe_atomic_seg", 16 bytes {
        SWAP_ADD "swap_add" (@0 u64);
        /// Not written by a fetch-and-add.
        COMPARE "compare" (@8 u64);
    }
}

crate::layout! {
    /// Data pointer segment. Byte count 0 means 2^31.
    WqeDataSeg "mlx5_wqe_data_seg", 16 bytes {
        BYTE_COUNT "byte_count" (0:31..0);
        LKEY "lkey" (4:31..0);
        ADDR "addr" (@8 u64);
    }
}

crate::layout! {
    /// Head of an inline data segment; the bytes follow, padded to a unit.
    WqeInlineSeg "mlx5_wqe_inl_data_seg", 4 bytes {
        INLINE "inline" (0:31..31);
        BYTE_COUNT "byte_count" (0:30..0);
    }
}

crate::layout! {
    /// Datagram segment, an address vector (`mlx5_wqe_av`).
    WqeDatagramSeg "mlx5_wqe_datagram_seg", 48 bytes {
        QKEY "qkey" (0:31..0);
        EXT "ext" (8:31..31);
        DQPN "dqp" (8:23..0);
        STAT_RATE "stat_rate" (12:31..28);
        SL "sl" (12:27..24);
        FL "fl" (12:23..23);
        MLID "mlid" (12:22..16);
        RLID "rlid" (12:15..0);
        RMAC "rmac" (@20 [6]);
        TCLASS "tclass" (24:15..8);
        HOP_LIMIT "hop_limit" (24:7..0);
        GRH "grh" (28:30..30);
        SGID_INDEX "sgid_index" (28:27..20);
        FLOW_LABEL "flow_label" (28:19..0);
        RGID "rgid" (@32 [16]);
    }
}

crate::layout! {
    /// XRC segment.
    WqeXrcSeg "mlx5_wqe_xrc_seg", 16 bytes {
        XRC_SRQN "xrc_srqn" (0:23..0);
    }
}

crate::layout! {
    /// UMR control segment; an [`crate::Mkc`] follows, then translations.
    WqeUmrCtrlSeg "mlx5_wqe_umr_ctrl_seg", 48 bytes {
        INLINE "inline" (0:31..31);
        /// Refuse a key that is free.
        CHECK_IN_USE "check_in_use" (0:30..30);
        /// Refuse a key that is not free.
        CHECK_FREE "check_free" (0:29..29);
        TRANSLATION_OFFSET_EN "trnsl_ofst_en" (0:28..28);
        CHECK_QPN "check_qpn" (0:27..27);
        KLM_OCTOWORDS "klm_octowords" (4:31..16);
        TRANSLATION_OFFSET "translation_offset" (4:15..0);
        MKEY_MASK "mkey_mask" (@8 u64);
        TRANSLATION_OFFSET_47_16 "xlt_offset_47_16" (16:31..0);
    }
}

/// Bits of [`WqeUmrCtrlSeg::MKEY_MASK`]: which fields of the key context a UMR changes.
pub mod mkey_mask {
    /// `len`.
    pub const LEN: u64 = 1;
    /// `log_page_size`.
    pub const PAGE_SIZE: u64 = 1 << 1;
    /// `start_addr`.
    pub const START_ADDR: u64 = 1 << 6;
    /// `pd`.
    pub const PD: u64 = 1 << 7;
    /// `en_rinval`.
    pub const EN_RINVAL: u64 = 1 << 8;
    /// Signature error counter.
    pub const EN_SIGERR: u64 = 1 << 9;
    /// `bsf_en`.
    pub const BSF_EN: u64 = 1 << 12;
    /// `mkey_7_0`.
    pub const KEY: u64 = 1 << 13;
    /// `qpn`.
    pub const QPN: u64 = 1 << 14;
    /// `lr`.
    pub const LR: u64 = 1 << 17;
    /// `lw`.
    pub const LW: u64 = 1 << 18;
    /// `rr`.
    pub const RR: u64 = 1 << 19;
    /// `rw`.
    pub const RW: u64 = 1 << 20;
    /// `a`.
    pub const A: u64 = 1 << 21;
    /// `small_fence_on_rdma_read_response`.
    pub const SMALL_FENCE: u64 = 1 << 23;
    /// `relaxed_ordering_write`.
    pub const RELAXED_ORDERING_WRITE: u64 = 1 << 25;
    /// `free`.
    pub const FREE: u64 = 1 << 29;
    /// `relaxed_ordering_read`.
    pub const RELAXED_ORDERING_READ: u64 = 1 << 47;
}

crate::layout! {
    /// KLM: an indirect translation entry.
    WqeKlm "mlx5_klm", 16 bytes {
        BYTE_COUNT "byte_count" (0:31..0);
        MKEY "mkey" (4:31..0);
        ADDRESS "address" (@8 u64);
    }
}

crate::layout! {
    /// Head of a block of translation entries that repeat, in place of a KLM; entries follow.
    WqeRepeatBlock "mlx5_wqe_umr_repeat_block_seg", 16 bytes {
        BYTE_COUNT "byte_count" (0:31..0);
        OP "op" (4:31..0);
        REPEAT_COUNT "repeat_count" (8:31..0);
        NUM_ENT "num_ent" (12:15..0);
    }
}

crate::layout! {
    /// Entry of a block that repeats.
    WqeRepeatEntry "mlx5_wqe_umr_repeat_ent_seg", 16 bytes {
        STRIDE "stride" (0:31..16);
        BYTE_COUNT "byte_count" (0:15..0);
        MEMKEY "memkey" (4:31..0);
        VA "va" (@8 u64);
    }
}

crate::layout! {
    /// Head of a shared receive WQE; data segments follow.
    WqeSrqNextSeg "mlx5_wqe_srq_next_seg", 16 bytes {
        NEXT_WQE_INDEX "next_wqe_index" (0:15..0);
        SIGNATURE "signature" (4:31..24);
    }
}
