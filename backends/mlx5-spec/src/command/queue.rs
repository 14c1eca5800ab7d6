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
    CmdIn "cmd_in", 8 bytes, input {
        COMMAND "command" (@8 [8]..);
    }
}

crate::layout! {
    /// Output of CMD (`mlx5_ifc.h`, `cmd_out`).
    CmdOut "cmd_out", 12 bytes, output {
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
