//! Memory in the device (MEMIC).

crate::layout! {
    /// Capabilities of device memory (`mlx5_ifc.h`, `device_mem_cap`).
    DeviceMemCap "device_mem_cap", 256 bytes {
        MEMIC "memic" (0:31..31);
        LOG_MIN_MEMIC_ALLOC_SIZE "log_min_memic_alloc_size" (4:20..16);
        LOG_MAX_MEMIC_ADDR_ALIGNMENT "log_max_memic_addr_alignment" (4:7..0);
        /// Byte of BAR0 where device memory begins.
        MEMIC_BAR_START_ADDR "memic_bar_start_addr" (@8 u64);
        MEMIC_BAR_SIZE "memic_bar_size" (16:31..0);
        MAX_MEMIC_SIZE "max_memic_size" (20:31..0);
        MEMIC_OPERATIONS "memic_operations" (64:31..0);
    }
}

crate::layout! {
    /// Input of ALLOC_MEMIC (`mlx5_ifc.h`, `alloc_memic_in`).
    AllocMemicIn "alloc_memic_in", 32 bytes, input {
        LOG_MEMIC_ADDR_ALIGNMENT "log_memic_addr_alignment" (12:7..0);
        RANGE_START_ADDR "range_start_addr" (@16 u64);
        RANGE_SIZE "range_size" (24:31..0);
        MEMIC_SIZE "memic_size" (28:31..0);
    }
}

crate::layout! {
    /// Output of ALLOC_MEMIC (`mlx5_ifc.h`, `alloc_memic_out`).
    AllocMemicOut "alloc_memic_out", 16 bytes, output {
        MEMIC_START_ADDR "memic_start_addr" (@8 u64);
    }
}

crate::layout! {
    /// Input of DEALLOC_MEMIC (`mlx5_ifc.h`, `dealloc_memic_in`).
    DeallocMemicIn "dealloc_memic_in", 32 bytes, input {
        MEMIC_START_ADDR "memic_start_addr" (@16 u64);
        MEMIC_SIZE "memic_size" (24:31..0);
    }
}

crate::layout! {
    /// Output of DEALLOC_MEMIC (`mlx5_ifc.h`, `dealloc_memic_out`).
    DeallocMemicOut "dealloc_memic_out", output;
}
