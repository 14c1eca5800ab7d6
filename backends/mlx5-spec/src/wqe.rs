//! Work queue entries (WQEs): the segments that a request is built of.
//!
//! Not in `mlx5_ifc.h`; the names are those of the `mlx5_wqe_*` structures of rdma-core's `providers/mlx5/mlx5dv.h` and
//! `wqe.h`. A send WQE consists of 16-byte units in 64-byte blocks (WQEBB) and starts with a control segment.

use crate::{be_word, codes, from_be_word};

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

impl WqeCtrlSeg {
    /// Returns the first dword, host byte order: opcode without modifier, and the low 16 bits of the index of the request's
    /// first block.
    #[inline(always)]
    pub const fn opcode_dword(opcode: WqeOpcode, wqe_index: u32) -> u32 {
        Self::WQE_INDEX.place(wqe_index) | Self::OPCODE.place(opcode.code())
    }

    /// Returns the second dword, host byte order: the queue pair and the request's size in units of [`DS_UNIT`] bytes.
    #[inline(always)]
    pub const fn qpn_dword(qpn: u32, ds: u32) -> u32 {
        Self::QPN.place(qpn) | Self::DS.place(ds)
    }

    /// Returns the third dword, host byte order: fence mode (a value of [`fm`]), when to write a completion (a value of
    /// [`ce`]), and whether the peer gets a solicited event.
    #[inline(always)]
    pub const fn flags_dword(fence: u32, completion: u32, solicited: bool) -> u32 {
        Self::FM.place(fence) | Self::CE.place(completion) | Self::SE.place(solicited as u32)
    }

    /// Returns the segment as two words to store, from its dwords in host byte order.
    #[inline(always)]
    pub const fn be_words(opcode_dword: u32, qpn_dword: u32, flags_dword: u32, imm: u32) -> [u64; 2] {
        [be_word(opcode_dword, qpn_dword), be_word(flags_dword, imm)]
    }
}

/// The first eight bytes of a control segment. A send doorbell carries those of the last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDoorbell {
    /// Index of the request's first block.
    pub wqe_index: u16,
    /// Opcode.
    pub opcode: u8,
    /// Queue pair.
    pub qpn: u32,
    /// Size of the request in units of [`DS_UNIT`] bytes.
    pub ds: u8,
}

impl SendDoorbell {
    /// Reads the word as it was loaded, or as it came over the bus.
    #[inline(always)]
    pub const fn from_be_word(word: u64) -> Self {
        let [opcode, qpn] = from_be_word(word);
        Self {
            wqe_index: WqeCtrlSeg::WQE_INDEX.take(opcode) as u16,
            opcode: WqeCtrlSeg::OPCODE.take(opcode) as u8,
            qpn: WqeCtrlSeg::QPN.take(qpn),
            ds: WqeCtrlSeg::DS.take(qpn) as u8,
        }
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

impl WqeRaddrSeg {
    /// Returns the segment as two words to store.
    #[inline(always)]
    pub const fn be_words(raddr: u64, rkey: u32) -> [u64; 2] {
        [raddr.to_be(), be_word(Self::RKEY.place(rkey), 0)]
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

impl WqeAtomicSeg {
    /// Returns the segment as two words to store.
    #[inline(always)]
    pub const fn be_words(swap_add: u64, compare: u64) -> [u64; 2] {
        [swap_add.to_be(), compare.to_be()]
    }
}

crate::layout! {
    /// Operands of a masked compare-and-swap on four bytes (UCX `uct_ib_mlx5_atomic_masked_cswap32_seg`).
    WqeMaskedSwap32Seg "masked_cswap32_seg", 16 bytes {
        SWAP "swap" (0:31..0);
        COMPARE "compare" (4:31..0);
        SWAP_MASK "swap_mask" (8:31..0);
        COMPARE_MASK "compare_mask" (12:31..0);
    }
}

crate::layout! {
    /// Operands of a masked fetch-and-add on four bytes (UCX `uct_ib_mlx5_atomic_masked_fadd32_seg`).
    WqeMaskedAdd32Seg "masked_fadd32_seg", 16 bytes {
        ADD "add" (0:31..0);
        /// The highest bit of each field.
        FIELD_BOUNDARY "field_boundary" (4:31..0);
    }
}

crate::layout! {
    /// Operands of a masked compare-and-swap on eight bytes (UCX `uct_ib_mlx5_atomic_masked_cswap64_seg`).
    WqeMaskedSwap64Seg "masked_cswap64_seg", 32 bytes {
        SWAP "swap" (@0 u64);
        COMPARE "compare" (@8 u64);
        SWAP_MASK "swap_mask" (@16 u64);
        COMPARE_MASK "compare_mask" (@24 u64);
    }
}

crate::layout! {
    /// Operands of a masked fetch-and-add on eight bytes (UCX `uct_ib_mlx5_atomic_masked_fadd64_seg`).
    WqeMaskedAdd64Seg "masked_fadd64_seg", 16 bytes {
        ADD "add" (@0 u64);
        /// The highest bit of each field.
        FIELD_BOUNDARY "field_boundary" (@8 u64);
    }
}

/// Values of [`WqeCtrlSeg::OPMOD`] of extended atomics (UCX `UCT_IB_MLX5_OPMOD_EXT_ATOMIC`).
pub mod extended_atomic {
    /// The bit that each has.
    pub const EXTENDED: u32 = 8;
    /// log2 of the bytes for which the other bits are 0.
    pub const LOG_SMALLEST: u32 = 2;

    /// Returns the modifier for operands of so many bytes, as a power of two from 2.
    pub const fn opmod(log_size: u32) -> u32 {
        EXTENDED | log_size.wrapping_sub(LOG_SMALLEST) & 7
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

impl WqeDataSeg {
    /// Returns the segment as two words to store. `len` is 2^31 bytes at most, which is written as 0; bit 31 marks inline data.
    #[inline(always)]
    pub const fn be_words(len: u32, lkey: u32, addr: u64) -> [u64; 2] {
        [be_word(WqeInlineSeg::BYTE_COUNT.place(len), Self::LKEY.place(lkey)), addr.to_be()]
    }
}

crate::layout! {
    /// Head of an inline data segment; the bytes follow, padded to a unit.
    WqeInlineSeg "mlx5_wqe_inl_data_seg", 4 bytes {
        INLINE "inline" (0:31..31);
        BYTE_COUNT "byte_count" (0:30..0);
    }
}

impl WqeInlineSeg {
    /// Returns the segment's head for `len` bytes, host byte order.
    #[inline(always)]
    pub const fn dword(len: u32) -> u32 {
        Self::INLINE.place(1) | Self::BYTE_COUNT.place(len)
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
    /// Ethernet segment (`mlx5_wqe_eth_seg`). Headers that lie in the WQE begin in its last two bytes.
    WqeEthSeg "mlx5_wqe_eth_seg", 16 bytes {
        CS_FLAGS "cs_flags" (4:31..24);
        MSS "mss" (4:15..0);
        FLOW_TABLE_METADATA "flow_table_metadata" (8:31..0);
        INLINE_HDR_SZ "inline_hdr_sz" (12:31..16);
        INLINE_HDR_START "inline_hdr_start" (12:15..0);
    }
}

/// Bits of [`WqeEthSeg::CS_FLAGS`] (`MLX5_ETH_WQE_L3_CSUM`, `MLX5_ETH_WQE_L4_CSUM`).
pub mod eth_checksum {
    /// Of the IPv4 header.
    pub const HEADER: u32 = 1 << 6;
    /// Of TCP or UDP.
    pub const TRANSPORT: u32 = 1 << 7;
}

crate::layout! {
    /// XRC segment.
    WqeXrcSeg "mlx5_wqe_xrc_seg", 16 bytes {
        XRC_SRQN "xrc_srqn" (0:23..0);
    }
}

impl WqeXrcSeg {
    /// Returns the segment as two words to store.
    #[inline(always)]
    pub const fn be_words(srqn: u32) -> [u64; 2] {
        [be_word(Self::XRC_SRQN.place(srqn), 0), 0]
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

impl WqeUmrCtrlSeg {
    /// Returns the segment's first two words to store; the rest is zero. They have the flags (the first dword, host byte
    /// order), octowords of translations, and the fields of the key that change (bits of [`mkey_mask`]).
    #[inline(always)]
    pub const fn be_words(flags_dword: u32, klm_octowords: u32, mkey_mask: u64) -> [u64; 2] {
        [be_word(flags_dword, Self::KLM_OCTOWORDS.place(klm_octowords)), mkey_mask.to_be()]
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

impl WqeKlm {
    /// Returns the entry as two words to store.
    #[inline(always)]
    pub const fn be_words(byte_count: u32, mkey: u32, address: u64) -> [u64; 2] {
        [be_word(Self::BYTE_COUNT.place(byte_count), Self::MKEY.place(mkey)), address.to_be()]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes that storing these words puts into memory.
    fn stored<const N: usize>(words: [u64; 2]) -> [u8; N] {
        let [first, second] = words.map(u64::to_ne_bytes);
        let mut bytes = first.iter().chain(&second);
        core::array::from_fn(|_| *bytes.next().unwrap())
    }

    #[test]
    fn a_control_segment_is_the_bytes_that_rdma_core_writes() {
        // qp.c: htobe32((pi & 0xffff) << 8 | opcode), htobe32(qpn << 8 | size), fm_ce_se at byte 11: fence 4 << 5,
        // MLX5_WQE_CTRL_CQ_UPDATE 2 << 2, MLX5_WQE_CTRL_SOLICITED 1 << 1.
        let opcode = WqeCtrlSeg::opcode_dword(WqeOpcode::RdmaWrite, 0xff_1234);
        let flags = WqeCtrlSeg::flags_dword(fm::FENCE, ce::ALWAYS, true);
        let words = WqeCtrlSeg::be_words(opcode, WqeCtrlSeg::qpn_dword(0x45_6789, 3), flags, 0xdead_beef);
        let expected = [0, 0x12, 0x34, 0x08, 0x45, 0x67, 0x89, 3, 0, 0, 0, 0x8a, 0xde, 0xad, 0xbe, 0xef];
        assert_eq!(stored::<16>(words), expected);
        let doorbell = SendDoorbell { wqe_index: 0x1234, opcode: 8, qpn: 0x45_6789, ds: 3 };
        assert_eq!(SendDoorbell::from_be_word(words[0]), doorbell);
    }

    #[test]
    fn a_doorbell_leaves_reserved_bits_aside() {
        let word = u64::from_ne_bytes([0xff, 0, 1, 0x0a, 0, 0, 5, 0xc2]);
        assert_eq!(SendDoorbell::from_be_word(word), SendDoorbell { wqe_index: 1, opcode: 10, qpn: 5, ds: 2 });
    }

    #[test]
    fn segments_are_the_bytes_of_their_structures() {
        // mlx5dv.h: mlx5_wqe_data_seg { byte_count, lkey, addr }, mlx5_wqe_raddr_seg { raddr, rkey, reserved }.
        let data = WqeDataSeg::be_words(0x1002, 0x0a0b_0c0d, 0x0102_0304_0506_0708);
        assert_eq!(stored::<16>(data), [0, 0, 0x10, 2, 0xa, 0xb, 0xc, 0xd, 1, 2, 3, 4, 5, 6, 7, 8]);
        let raddr = WqeRaddrSeg::be_words(0x0102_0304_0506_0708, 0x0a0b_0c0d);
        assert_eq!(stored::<16>(raddr), [1, 2, 3, 4, 5, 6, 7, 8, 0xa, 0xb, 0xc, 0xd, 0, 0, 0, 0]);
        // mlx5_wqe_atomic_seg { swap_add, compare }.
        assert_eq!(stored::<16>(WqeAtomicSeg::be_words(1, 2)), [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        // mlx5_klm { byte_count, mkey, address }: 2^31 bytes are written as they are.
        let klm = WqeKlm::be_words(1 << 31, 0x100, 1);
        assert_eq!(stored::<16>(klm), [0x80, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        // mlx5_wqe_umr_ctrl_seg { flags, rsvd0[3], klm_octowords, rsvd1[2], mkey_mask }; MLX5_WQE_UMR_CTRL_FLAG_INLINE 1 << 7.
        let umr = WqeUmrCtrlSeg::be_words(WqeUmrCtrlSeg::INLINE.place(1), 4, mkey_mask::FREE);
        assert_eq!(stored::<16>(umr), [0x80, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0]);
        // mlx5_wqe_xrc_seg { xrc_srqn, rsvd[12] }.
        let xrc = WqeXrcSeg::be_words(0x01_0203);
        assert_eq!(stored::<16>(xrc), [0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn two_gigabytes_are_a_byte_count_of_zero() {
        assert_eq!(stored::<4>(WqeDataSeg::be_words(1 << 31, 0, 0)), [0; 4]);
        assert_eq!(stored::<4>(WqeDataSeg::be_words((1 << 31) - 1, 0, 0)), [0x7f, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn inline_data_has_the_highest_bit() {
        // mlx5dv.h MLX5_INLINE_SEG 0x80000000.
        assert_eq!(WqeInlineSeg::dword(44), 0x8000_002c);
    }

    #[test]
    fn operands_of_extended_atomics_have_their_size_in_the_modifier() {
        // UCX ib_mlx5.h, UCT_IB_MLX5_OPMOD_EXT_ATOMIC: 8 | log2 of the bytes - 2.
        assert_eq!([2, 3, 5].map(extended_atomic::opmod), [8, 9, 11]);
    }
}
