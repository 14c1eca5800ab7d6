//! Event queue entries and the data that they carry.

crate::layout! {
    /// Event queue entry (`mlx5_ifc.h`, `eqe`).
    Eqe "eqe", 64 bytes {
        EVENT_TYPE "event_type" (0:23..16);
        EVENT_SUB_TYPE "event_sub_type" (0:7..0);
        EVENT_DATA "event_data" (@32 [28]);
        SIGNATURE "signature" (60:15..8);
        OWNER "owner" (60:0..0);
    }
}

crate::layout! {
    /// Data of a completion event (`mlx5_ifc.h`, `comp_event`).
    CompEvent "comp_event", 28 bytes {
        CQ_NUMBER "cq_number" (24:23..0);
    }
}

crate::layout! {
    /// Data of a completion queue error event (`mlx5_ifc.h`, `cq_error`).
    CqError "cq_error", 28 bytes {
        CQN "cqn" (0:23..0);
        SYNDROME "syndrome" (8:7..0);
    }
}

crate::layout! {
    /// Data of a queue pair event (`mlx5_ifc.h`, `qp_events`).
    QpEvents "qp_events", 28 bytes {
        TYPE "type" (20:31..24);
        QPN_RQN_SQN "qpn_rqn_sqn" (24:23..0);
    }
}

crate::layout! {
    /// Data of a port change event (`mlx5_ifc.h`, `port_state_change_event`).
    PortStateChangeEvent "port_state_change_event", 28 bytes {
        PORT_NUM "port_num" (8:31..28);
    }
}

crate::layout! {
    /// Data of a command completion event (`mlx5_ifc.h`, `cmd_inter_comp_event`).
    CmdInterCompEvent "cmd_inter_comp_event", 28 bytes {
        COMMAND_COMPLETION_VECTOR "command_completion_vector" (0:31..0);
    }
}

crate::layout! {
    /// Data of a page request event (`mlx5_ifc.h`, `pages_req_event`).
    PagesReqEvent "pages_req_event", 28 bytes {
        FUNCTION_ID "function_id" (0:15..0);
        NUM_PAGES "num_pages" (4:31..0);
    }
}

crate::codes! {
    /// Event types ([`Eqe::EVENT_TYPE`], `MLX5_EVENT_TYPE_*`); bit n of an EQ's event bitmask subscribes type n.
    EventType {
        Completion = 0x00 "COMP",
        PathMigrated = 0x01 "PATH_MIG",
        CommEstablished = 0x02 "COMM_EST",
        SqDrained = 0x03 "SQ_DRAINED",
        CqError = 0x04 "CQ_ERROR",
        WqCatasError = 0x05 "WQ_CATAS_ERROR",
        PathMigrationFailed = 0x07 "PATH_MIG_FAILED",
        InternalError = 0x08 "INTERNAL_ERROR",
        PortChange = 0x09 "PORT_CHANGE",
        Cmd = 0x0a "CMD",
        PageRequest = 0x0b "PAGE_REQUEST",
        PageFault = 0x0c "PAGE_FAULT",
        WqInvalReqError = 0x10 "WQ_INVAL_REQ_ERROR",
        WqAccessError = 0x11 "WQ_ACCESS_ERROR",
        SrqCatasError = 0x12 "SRQ_CATAS_ERROR",
        SrqLastWqe = 0x13 "SRQ_LAST_WQE",
        SrqRqLimit = 0x14 "SRQ_RQ_LIMIT",
        GpioEvent = 0x15 "GPIO_EVENT",
        TempWarn = 0x17 "TEMP_WARN_EVENT",
        GeneralEvent = 0x22 "GENERAL_EVENT",
    }
}

crate::codes! {
    /// Sub-types of a port change ([`Eqe::EVENT_SUB_TYPE`], `MLX5_PORT_CHANGE_SUBTYPE_*`).
    PortChange {
        Down = 1 "DOWN",
        Active = 4 "ACTIVE",
        Initialized = 5 "INITIALIZED",
        Lid = 6 "LID",
        Pkey = 7 "PKEY",
        Guid = 8 "GUID",
        ClientReregister = 9 "CLIENT_REREG",
    }
}

/// Bytes of an event queue entry.
pub const EQE: usize = 64;
