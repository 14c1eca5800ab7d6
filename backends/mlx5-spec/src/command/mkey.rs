//! Memory keys.

crate::layout! {
    /// Memory key context (`mlx5_ifc.h`, `mkc`).
    Mkc "mkc", 64 bytes {
        FREE "free" (0:30..30);
        ACCESS_MODE_4_2 "access_mode_4_2" (0:28..26);
        RELAXED_ORDERING_WRITE "relaxed_ordering_write" (0:18..18);
        SMALL_FENCE_ON_RDMA_READ_RESPONSE "small_fence_on_rdma_read_response" (0:16..16);
        UMR_EN "umr_en" (0:15..15);
        A "a" (0:14..14);
        RW "rw" (0:13..13);
        RR "rr" (0:12..12);
        LW "lw" (0:11..11);
        LR "lr" (0:10..10);
        ACCESS_MODE_1_0 "access_mode_1_0" (0:9..8);
        MA_TRANSLATION_MODE "ma_translation_mode" (0:5..4);
        QPN "qpn" (4:31..8);
        MKEY_7_0 "mkey_7_0" (4:7..0);
        LENGTH64 "length64" (12:31..31);
        BSF_EN "bsf_en" (12:30..30);
        SYNC_UMR "sync_umr" (12:29..29);
        EXPECTED_SIGERR_COUNT "expected_sigerr_count" (12:26..26);
        EN_RINVAL "en_rinval" (12:24..24);
        PD "pd" (12:23..0);
        START_ADDR "start_addr" (@16 u64);
        LEN "len" (@24 u64);
        BSF_OCTWORD_SIZE "bsf_octword_size" (32:31..0);
        CROSSING_TARGET_VHCA_ID "crossing_target_vhca_id" (48:31..16);
        TRANSLATIONS_OCTWORD_SIZE "translations_octword_size" (52:31..0);
        RELAXED_ORDERING_READ "relaxed_ordering_read" (56:6..6);
        LOG_PAGE_SIZE "log_page_size" (56:5..0);
    }
}

crate::layout! {
    /// Page translation entry (`mlx5_ifc.h`, `mtt`).
    Mtt "mtt", 8 bytes {
        PTAG_63_32 "ptag_63_32" (0:31..0);
        PTAG_31_8 "ptag_31_8" (4:31..8);
        WR_EN "wr_en" (4:1..1);
        RD_EN "rd_en" (4:0..0);
    }
}

crate::layout! {
    /// Input of CREATE_MKEY (`mlx5_ifc.h`, `create_mkey_in`).
    CreateMkeyIn "create_mkey_in", 272 bytes, input uid {
        PG_ACCESS "pg_access" (12:31..31);
        MKEY_UMEM_VALID "mkey_umem_valid" (12:30..30);
        DATA_DIRECT "data_direct" (12:29..29);
        MEMORY_KEY_MKEY_ENTRY "memory_key_mkey_entry" (@16 Mkc);
        TRANSLATIONS_OCTWORD_ACTUAL_SIZE "translations_octword_actual_size" (96:31..0);
        KLM_PAS_MTT "klm_pas_mtt" (@272 [8]..);
    }
}

crate::layout! {
    /// Output of CREATE_MKEY (`mlx5_ifc.h`, `create_mkey_out`).
    CreateMkeyOut "create_mkey_out", 16 bytes, output {
        MKEY_INDEX "mkey_index" (8:23..0);
    }
}

crate::layout! {
    /// Input of DESTROY_MKEY (`mlx5_ifc.h`, `destroy_mkey_in`).
    DestroyMkeyIn "destroy_mkey_in", 16 bytes, input uid {
        MKEY_INDEX "mkey_index" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_MKEY (`mlx5_ifc.h`, `destroy_mkey_out`).
    DestroyMkeyOut "destroy_mkey_out", output;
}

crate::layout! {
    /// Input of QUERY_MKEY (`mlx5_ifc.h`, `query_mkey_in`).
    QueryMkeyIn "query_mkey_in", 16 bytes, input {
        MKEY_INDEX "mkey_index" (8:23..0);
        PG_ACCESS "pg_access" (12:31..31);
    }
}

crate::layout! {
    /// Output of QUERY_MKEY (`mlx5_ifc.h`, `query_mkey_out`).
    QueryMkeyOut "query_mkey_out", 304 bytes, output {
        MEMORY_KEY_MKEY_ENTRY "memory_key_mkey_entry" (@16 Mkc);
        BSF0_KLM0_PAS_MTT0_1 "bsf0_klm0_pas_mtt0_1" (@272 [16]);
        BSF1_KLM1_PAS_MTT2_3 "bsf1_klm1_pas_mtt2_3" (@288 [16]);
    }
}

crate::codes! {
    /// Access mode of a key ([`Mkc::ACCESS_MODE_1_0`] with [`Mkc::ACCESS_MODE_4_2`] above it).
    AccessMode {
        Pa = 0 "PA",
        Mtt = 1 "MTT",
        Klms = 2 "KLMS",
        Ksm = 3 "KSM",
        SwIcm = 4 "SW_ICM",
        Memic = 5 "MEMIC",
    }
}

/// [`Mkc::QPN`] of a key that every queue pair may use.
pub const MKEY_ANY_QPN: u32 = 0xff_ffff;
/// Bytes of a translation octoword.
pub const OCTOWORD: usize = 16;
