//! Commands that bring a device up and take it down.

crate::layout! {
    /// Input of ENABLE_HCA (`mlx5_ifc.h`, `enable_hca_in`).
    EnableHcaIn "enable_hca_in", 16 bytes, input {
        EMBEDDED_CPU_FUNCTION "embedded_cpu_function" (8:31..31);
        FUNCTION_ID "function_id" (8:15..0);
    }
}

crate::layout! {
    /// Output of ENABLE_HCA (`mlx5_ifc.h`, `enable_hca_out`).
    EnableHcaOut "enable_hca_out", 12 bytes, output {
    }
}

crate::layout! {
    /// Input of DISABLE_HCA (`mlx5_ifc.h`, `disable_hca_in`).
    DisableHcaIn "disable_hca_in", 16 bytes, input {
        EMBEDDED_CPU_FUNCTION "embedded_cpu_function" (8:31..31);
        FUNCTION_ID "function_id" (8:15..0);
    }
}

crate::layout! {
    /// Output of DISABLE_HCA (`mlx5_ifc.h`, `disable_hca_out`).
    DisableHcaOut "disable_hca_out", 12 bytes, output {
    }
}

crate::layout! {
    /// Input of QUERY_ISSI (`mlx5_ifc.h`, `query_issi_in`).
    QueryIssiIn "query_issi_in", 16 bytes, input {}
}

crate::layout! {
    /// Output of QUERY_ISSI (`mlx5_ifc.h`, `query_issi_out`).
    QueryIssiOut "query_issi_out", 112 bytes, output {
        CURRENT_ISSI "current_issi" (8:15..0);
        SUPPORTED_ISSI_DW0 "supported_issi_dw0" (108:31..0);
    }
}

crate::layout! {
    /// Input of SET_ISSI (`mlx5_ifc.h`, `set_issi_in`).
    SetIssiIn "set_issi_in", 16 bytes, input {
        CURRENT_ISSI "current_issi" (8:15..0);
    }
}

crate::layout! {
    /// Output of SET_ISSI (`mlx5_ifc.h`, `set_issi_out`).
    SetIssiOut "set_issi_out", output;
}

crate::layout! {
    /// Input of INIT_HCA (`mlx5_ifc.h`, `init_hca_in`).
    InitHcaIn "init_hca_in", 32 bytes, input {
        SW_VHCA_ID "sw_vhca_id" (12:29..16);
        SW_OWNER_ID "sw_owner_id" (@16 [16]);
    }
}

crate::layout! {
    /// Output of INIT_HCA (`mlx5_ifc.h`, `init_hca_out`).
    InitHcaOut "init_hca_out", output;
}

crate::layout! {
    /// Input of TEARDOWN_HCA (`mlx5_ifc.h`, `teardown_hca_in`).
    TeardownHcaIn "teardown_hca_in", 16 bytes, input {
        PROFILE "profile" (8:15..0);
    }
}

crate::layout! {
    /// Output of TEARDOWN_HCA (`mlx5_ifc.h`, `teardown_hca_out`).
    TeardownHcaOut "teardown_hca_out", 16 bytes, output {
        STATE "state" (12:0..0);
    }
}

crate::layout! {
    /// Adapter parameters (`mlx5_ifc.h`, `query_adapter_param_block`).
    QueryAdapterParamBlock "query_adapter_param_block", 256 bytes {
        IEEE_VENDOR_ID "ieee_vendor_id" (24:23..0);
        VSD_VENDOR_ID "vsd_vendor_id" (28:15..0);
        VSD "vsd" (@32 [208]);
        VSD_CONTD_PSID "vsd_contd_psid" (@240 [16]);
    }
}

crate::layout! {
    /// Input of QUERY_ADAPTER (`mlx5_ifc.h`, `query_adapter_in`).
    QueryAdapterIn "query_adapter_in", 16 bytes, input {}
}

crate::layout! {
    /// Output of QUERY_ADAPTER (`mlx5_ifc.h`, `query_adapter_out`).
    QueryAdapterOut "query_adapter_out", 272 bytes, output {
        QUERY_ADAPTER_STRUCT "query_adapter_struct" (@16 QueryAdapterParamBlock);
    }
}

crate::layout! {
    /// Input of QUERY_SPECIAL_CONTEXTS (`mlx5_ifc.h`, `query_special_contexts_in`).
    QuerySpecialContextsIn "query_special_contexts_in", 16 bytes, input {}
}

crate::layout! {
    /// Output of QUERY_SPECIAL_CONTEXTS (`mlx5_ifc.h`, `query_special_contexts_out`).
    QuerySpecialContextsOut "query_special_contexts_out", 32 bytes, output {
        DUMP_FILL_MKEY "dump_fill_mkey" (8:31..0);
        RESD_LKEY "resd_lkey" (12:31..0);
        NULL_MKEY "null_mkey" (16:31..0);
        TERMINATE_SCATTER_LIST_MKEY "terminate_scatter_list_mkey" (20:31..0);
        REPEATED_MKEY "repeated_mkey" (24:31..0);
    }
}

crate::layout! {
    /// Input of SET_DRIVER_VERSION (`mlx5_ifc.h`, `set_driver_version_in`).
    SetDriverVersionIn "set_driver_version_in", 80 bytes, input {
        DRIVER_VERSION "driver_version" (@16 [64]);
    }
}

crate::layout! {
    /// Output of SET_DRIVER_VERSION (`mlx5_ifc.h`, `set_driver_version_out`).
    SetDriverVersionOut "set_driver_version_out", output;
}

crate::layout! {
    /// Input of NOP (`mlx5_ifc.h`, `nop_in`).
    NopIn "nop_in", 16 bytes, input {}
}

crate::layout! {
    /// Output of NOP (`mlx5_ifc.h`, `nop_out`).
    NopOut "nop_out", output;
}
