//! The command queue: entries, mailbox blocks, and what every command begins with.

crate::layout! {
    /// Command queue entry (`mlx5_ifc.h`, `cmd_queue_entry`).
    CmdQueueEntry "cmd_queue_entry", 64 bytes {
        TYPE "type" (0:31..24);
        INPUT_LENGTH "input_length" (4:31..0);
        INPUT_MAILBOX_POINTER_63_32 "input_mailbox_pointer_63_32" (8:31..0);
        INPUT_MAILBOX_POINTER_31_9 "input_mailbox_pointer_31_9" (12:31..9);
        COMMAND_INPUT_INLINE_DATA "command_input_inline_data" (@16 [16]);
        COMMAND_OUTPUT_INLINE_DATA "command_output_inline_data" (@32 [16]);
        OUTPUT_MAILBOX_POINTER_63_32 "output_mailbox_pointer_63_32" (48:31..0);
        OUTPUT_MAILBOX_POINTER_31_9 "output_mailbox_pointer_31_9" (52:31..9);
        OUTPUT_LENGTH "output_length" (56:31..0);
        TOKEN "token" (60:31..24);
        SIGNATURE "signature" (60:23..16);
        STATUS "status" (60:7..1);
        OWNERSHIP "ownership" (60:0..0);
    }
}

crate::layout! {
    /// Mailbox block of a long command (`mlx5_ifc.h`, `cmd_if_box`).
    CmdIfBox "cmd_if_box", 576 bytes {
        MAILBOX_DATA "mailbox_data" (@0 [512]);
        NEXT_POINTER_63_32 "next_pointer_63_32" (560:31..0);
        NEXT_POINTER_31_10 "next_pointer_31_10" (564:31..10);
        BLOCK_NUMBER "block_number" (568:31..0);
        TOKEN "token" (572:23..16);
        CTRL_SIGNATURE "ctrl_signature" (572:15..8);
        SIGNATURE "signature" (572:7..0);
    }
}

crate::layout! {
    /// Input of CMD (`mlx5_ifc.h`, `cmd_in`).
    CmdIn "cmd_in", 8 bytes {
        OPCODE "opcode" (0:31..16);
        OP_MOD "op_mod" (4:15..0);
        COMMAND "command" (@8 [8]..);
    }
}

crate::layout! {
    /// Output of CMD (`mlx5_ifc.h`, `cmd_out`).
    CmdOut "cmd_out", 12 bytes {
        STATUS "status" (0:31..24);
        SYNDROME "syndrome" (4:31..0);
        COMMAND_OUTPUT "command_output" (8:31..0);
    }
}

/// [`CmdQueueEntry::TYPE`] of a command that goes over PCI.
pub const PCI_CMD_XPORT: u32 = 7;
/// Bytes of a command queue entry.
pub const CMD_ENTRY: usize = 64;
/// Bytes of a mailbox block; it lies at a multiple of 1024.
pub const MAILBOX: usize = 576;
/// Bytes of data in a mailbox block.
pub const MAILBOX_DATA: usize = 512;
/// Bytes of input and of output that lie in the entry itself.
pub const CMD_INLINE: usize = 16;

impl CmdOpcode {
    /// Bytes of the input as it was first published, for a command whose input grew since. Some drivers still send that
    /// (libmlx5 over VFIO sends INIT_HCA of 16 bytes); what came later is zero then.
    pub const fn first_input_len(self) -> Option<usize> {
        match self {
            Self::InitHca => Some(16),
            _ => None,
        }
    }
}

crate::codes! {
    /// Opcodes of firmware commands (`MLX5_CMD_OP_*`).
    CmdOpcode {
        QueryHcaCap = 0x100 "QUERY_HCA_CAP",
        QueryAdapter = 0x101 "QUERY_ADAPTER",
        InitHca = 0x102 "INIT_HCA",
        TeardownHca = 0x103 "TEARDOWN_HCA",
        EnableHca = 0x104 "ENABLE_HCA",
        DisableHca = 0x105 "DISABLE_HCA",
        QueryPages = 0x107 "QUERY_PAGES",
        ManagePages = 0x108 "MANAGE_PAGES",
        SetHcaCap = 0x109 "SET_HCA_CAP",
        QueryIssi = 0x10a "QUERY_ISSI",
        SetIssi = 0x10b "SET_ISSI",
        SetDriverVersion = 0x10d "SET_DRIVER_VERSION",
        CreateMkey = 0x200 "CREATE_MKEY",
        QueryMkey = 0x201 "QUERY_MKEY",
        DestroyMkey = 0x202 "DESTROY_MKEY",
        QuerySpecialContexts = 0x203 "QUERY_SPECIAL_CONTEXTS",
        AllocMemic = 0x205 "ALLOC_MEMIC",
        DeallocMemic = 0x206 "DEALLOC_MEMIC",
        CreateEq = 0x301 "CREATE_EQ",
        DestroyEq = 0x302 "DESTROY_EQ",
        QueryEq = 0x303 "QUERY_EQ",
        GenEqe = 0x304 "GEN_EQE",
        CreateCq = 0x400 "CREATE_CQ",
        DestroyCq = 0x401 "DESTROY_CQ",
        QueryCq = 0x402 "QUERY_CQ",
        ModifyCq = 0x403 "MODIFY_CQ",
        CreateQp = 0x500 "CREATE_QP",
        DestroyQp = 0x501 "DESTROY_QP",
        Rst2InitQp = 0x502 "RST2INIT_QP",
        Init2RtrQp = 0x503 "INIT2RTR_QP",
        Rtr2RtsQp = 0x504 "RTR2RTS_QP",
        Rts2RtsQp = 0x505 "RTS2RTS_QP",
        SqErr2RtsQp = 0x506 "SQERR2RTS_QP",
        Qp2Err = 0x507 "2ERR_QP",
        /// In the first mlx5 headers (Linux 3.11 `MLX5_CMD_OP_RTS2SQD_QP`); later ones leave it out.
        Rts2SqdQp = 0x508 "RTS2SQD_QP",
        Qp2Rst = 0x50a "2RST_QP",
        QueryQp = 0x50b "QUERY_QP",
        SqdRtsQp = 0x50c "SQD_RTS_QP",
        MadIfc = 0x50d "MAD_IFC",
        Init2InitQp = 0x50e "INIT2INIT_QP",
        CreateSrq = 0x700 "CREATE_SRQ",
        DestroySrq = 0x701 "DESTROY_SRQ",
        QuerySrq = 0x702 "QUERY_SRQ",
        ArmRq = 0x703 "ARM_RQ",
        CreateXrcSrq = 0x705 "CREATE_XRC_SRQ",
        DestroyXrcSrq = 0x706 "DESTROY_XRC_SRQ",
        QueryXrcSrq = 0x707 "QUERY_XRC_SRQ",
        ArmXrcSrq = 0x708 "ARM_XRC_SRQ",
        QueryVportState = 0x750 "QUERY_VPORT_STATE",
        QueryNicVportContext = 0x754 "QUERY_NIC_VPORT_CONTEXT",
        ModifyNicVportContext = 0x755 "MODIFY_NIC_VPORT_CONTEXT",
        SetRoceAddress = 0x761 "SET_ROCE_ADDRESS",
        QueryHcaVportContext = 0x762 "QUERY_HCA_VPORT_CONTEXT",
        ModifyHcaVportContext = 0x763 "MODIFY_HCA_VPORT_CONTEXT",
        QueryHcaVportGid = 0x764 "QUERY_HCA_VPORT_GID",
        QueryHcaVportPkey = 0x765 "QUERY_HCA_VPORT_PKEY",
        QueryVportCounter = 0x770 "QUERY_VPORT_COUNTER",
        AllocQCounter = 0x771 "ALLOC_Q_COUNTER",
        DeallocQCounter = 0x772 "DEALLOC_Q_COUNTER",
        QueryQCounter = 0x773 "QUERY_Q_COUNTER",
        /// In the first mlx5 headers (Linux 3.11 `MLX5_CMD_OP_SQD2SQD_QP`); later ones leave it out.
        Sqd2SqdQp = 0x511 "SQD2SQD_QP",
        AllocPd = 0x800 "ALLOC_PD",
        DeallocPd = 0x801 "DEALLOC_PD",
        AllocUar = 0x802 "ALLOC_UAR",
        DeallocUar = 0x803 "DEALLOC_UAR",
        AccessReg = 0x805 "ACCESS_REG",
        AttachToMcg = 0x806 "ATTACH_TO_MCG",
        DetachFromMcg = 0x807 "DETACH_FROM_MCG",
        Nop = 0x80d "NOP",
        AllocXrcd = 0x80e "ALLOC_XRCD",
        DeallocXrcd = 0x80f "DEALLOC_XRCD",
        AllocTransportDomain = 0x816 "ALLOC_TRANSPORT_DOMAIN",
        DeallocTransportDomain = 0x817 "DEALLOC_TRANSPORT_DOMAIN",
        CreateRmp = 0x90c "CREATE_RMP",
        ModifyRmp = 0x90d "MODIFY_RMP",
        DestroyRmp = 0x90e "DESTROY_RMP",
        QueryRmp = 0x90f "QUERY_RMP",
        CreateGeneralObject = 0xa00 "CREATE_GENERAL_OBJECT",
        DestroyGeneralObject = 0xa03 "DESTROY_GENERAL_OBJECT",
        CreateUctx = 0xa04 "CREATE_UCTX",
        DestroyUctx = 0xa06 "DESTROY_UCTX",
        CreateUmem = 0xa08 "CREATE_UMEM",
        DestroyUmem = 0xa0a "DESTROY_UMEM",
    }
}

crate::codes! {
    /// Status of a command ([`CmdOut::STATUS`], `MLX5_CMD_STAT_*`).
    CmdStatus {
        Ok = 0x00 "OK",
        IntErr = 0x01 "INT_ERR",
        BadOp = 0x02 "BAD_OP",
        BadParam = 0x03 "BAD_PARAM",
        BadSysState = 0x04 "BAD_SYS_STATE",
        BadRes = 0x05 "BAD_RES",
        ResBusy = 0x06 "RES_BUSY",
        NotReady = 0x07 "NOT_READY",
        LimErr = 0x08 "LIM_ERR",
        BadResState = 0x09 "BAD_RES_STATE",
        IxErr = 0x0a "IX_ERR",
        NoResources = 0x0f "NO_RES_ERR",
        BadQpState = 0x10 "BAD_QP_STATE_ERR",
        BadPkt = 0x30 "BAD_PKT_ERR",
        BadSize = 0x40 "BAD_SIZE_OUTS_CQES_ERR",
        BadInputLen = 0x50 "BAD_INP_LEN_ERR",
        BadOutputLen = 0x51 "BAD_OUTP_LEN_ERR",
    }
}

crate::codes! {
    /// Delivery status of a command ([`CmdQueueEntry::STATUS`], `MLX5_CMD_DELIVERY_STAT_*`).
    CmdDeliveryStatus {
        Ok = 0x0 "OK",
        SignatureErr = 0x1 "SIGNATURE_ERR",
        TokenErr = 0x2 "TOKEN_ERR",
        BadBlockNumber = 0x3 "BAD_BLK_NUM_ERR",
        OutPtrAlign = 0x4 "OUT_PTR_ALIGN_ERR",
        InPtrAlign = 0x5 "IN_PTR_ALIGN_ERR",
        FwErr = 0x6 "FW_ERR",
        InLength = 0x7 "IN_LENGTH_ERR",
        OutLength = 0x8 "OUT_LENGTH_ERR",
        ReservedNotClear = 0x9 "RES_FLD_NOT_CLR_ERR",
        CmdType = 0x10 "CMD_TYPE_ERR",
    }
}
