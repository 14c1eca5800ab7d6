//! Event queues.

crate::layout! {
    /// Event queue context (`mlx5_ifc.h`, `eqc`).
    Eqc "eqc", 64 bytes {
        STATUS "status" (0:31..28);
        EC "ec" (0:18..18);
        OI "oi" (0:17..17);
        ST "st" (0:11..8);
        PAGE_OFFSET "page_offset" (8:11..6);
        LOG_EQ_SIZE "log_eq_size" (12:28..24);
        UAR_PAGE "uar_page" (12:23..0);
        INTR "intr" (20:11..0);
        LOG_PAGE_SIZE "log_page_size" (24:28..24);
        CONSUMER_COUNTER "consumer_counter" (40:23..0);
        PRODUCER_COUNTER "producer_counter" (44:23..0);
    }
}

crate::layout! {
    /// Input of CREATE_EQ (`mlx5_ifc.h`, `create_eq_in`).
    CreateEqIn "create_eq_in", 272 bytes, input uid {
        EQ_CONTEXT_ENTRY "eq_context_entry" (@16 Eqc);
        EVENT_BITMASK "event_bitmask" (@88 [32]);
        PAS "pas" (@272 [8]..);
    }
}

crate::layout! {
    /// Output of CREATE_EQ (`mlx5_ifc.h`, `create_eq_out`).
    CreateEqOut "create_eq_out", 16 bytes, output {
        EQ_NUMBER "eq_number" (8:7..0);
    }
}

crate::layout! {
    /// Input of DESTROY_EQ (`mlx5_ifc.h`, `destroy_eq_in`).
    DestroyEqIn "destroy_eq_in", 16 bytes, input {
        EQ_NUMBER "eq_number" (8:7..0);
    }
}

crate::layout! {
    /// Output of DESTROY_EQ (`mlx5_ifc.h`, `destroy_eq_out`).
    DestroyEqOut "destroy_eq_out", output;
}

crate::layout! {
    /// Input of QUERY_EQ (`mlx5_ifc.h`, `query_eq_in`).
    QueryEqIn "query_eq_in", 16 bytes, input {
        EQ_NUMBER "eq_number" (8:7..0);
    }
}

crate::layout! {
    /// Output of QUERY_EQ (`mlx5_ifc.h`, `query_eq_out`).
    QueryEqOut "query_eq_out", 272 bytes, output {
        EQ_CONTEXT_ENTRY "eq_context_entry" (@16 Eqc);
        EVENT_BITMASK "event_bitmask" (@88 u64);
        PAS "pas" (@272 [8]..);
    }
}
