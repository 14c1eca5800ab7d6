//! Commands that give memory to the firmware and reclaim it.

crate::layout! {
    /// Input of QUERY_PAGES (`mlx5_ifc.h`, `query_pages_in`).
    QueryPagesIn "query_pages_in", 16 bytes, input {
        EMBEDDED_CPU_FUNCTION "embedded_cpu_function" (8:31..31);
        FUNCTION_ID "function_id" (8:15..0);
    }
}

crate::layout! {
    /// Output of QUERY_PAGES (`mlx5_ifc.h`, `query_pages_out`).
    QueryPagesOut "query_pages_out", 16 bytes, output {
        EMBEDDED_CPU_FUNCTION "embedded_cpu_function" (8:31..31);
        FUNCTION_ID "function_id" (8:15..0);
        NUM_PAGES "num_pages" (12:31..0);
    }
}

crate::layout! {
    /// Input of MANAGE_PAGES (`mlx5_ifc.h`, `manage_pages_in`).
    ManagePagesIn "manage_pages_in", 16 bytes, input {
        EMBEDDED_CPU_FUNCTION "embedded_cpu_function" (8:31..31);
        FUNCTION_ID "function_id" (8:15..0);
        INPUT_NUM_ENTRIES "input_num_entries" (12:31..0);
        PAS "pas" (@16 [8]..);
    }
}

crate::layout! {
    /// Output of MANAGE_PAGES (`mlx5_ifc.h`, `manage_pages_out`).
    ManagePagesOut "manage_pages_out", 16 bytes, output {
        OUTPUT_NUM_ENTRIES "output_num_entries" (8:31..0);
        PAS "pas" (@16 [8]..);
    }
}

/// Values of [`QueryPagesIn::OP_MOD`].
pub mod query_pages {
    /// Pages needed to boot.
    pub const BOOT: u32 = 1;
    /// Pages needed by INIT_HCA.
    pub const INIT: u32 = 2;
    /// Pages needed in operation.
    pub const REGULAR: u32 = 3;
}

/// Values of [`ManagePagesIn::OP_MOD`].
pub mod manage_pages {
    /// The host has no pages to give.
    pub const CANT_GIVE: u32 = 0;
    /// The host gives pages.
    pub const GIVE: u32 = 1;
    /// The host takes pages back.
    pub const TAKE: u32 = 2;
}

/// Bytes of a page that the firmware is given.
pub const FIRMWARE_PAGE: usize = 4096;
