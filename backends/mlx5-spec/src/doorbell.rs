//! Doorbell records in memory, and the user access region (UAR): a 4096-byte page of BAR0 with the doorbells.
//!
//! rdma-core `providers/mlx5/qp.c`, `cq.c`; Linux `include/linux/mlx5/doorbell.h`, `drivers/.../mlx5/core/lib/eq.h`.

use crate::be_word;

/// Bytes of a UAR page; page `n` starts at byte `n * UAR_PAGE` of BAR0.
pub const UAR_PAGE: usize = 4096;
/// Byte of a UAR page where a CQ is armed with an 8-byte write of [`CqArm`].
pub const UAR_CQ_ARM: usize = 0x20;
/// Byte of a UAR page where a 4-byte write of [`EqDoorbell`] updates the consumer index of an EQ and arms it.
pub const UAR_EQ_ARM: usize = 0x40;
/// Byte of a UAR page where a 4-byte write of [`EqDoorbell`] updates the consumer index of an EQ without arming.
pub const UAR_EQ_UPDATE: usize = 0x48;
/// Byte of a UAR page where the send doorbells (BlueFlame registers) begin.
pub const UAR_BLUEFLAME: usize = 0x800;
/// BlueFlame registers of a UAR page.
pub const BLUEFLAME_REGISTERS: usize = 4;

crate::layout! {
    /// Doorbell record of a queue pair; counters of entries (receive) and 64-byte blocks (send).
    QpDoorbellRecord "mlx5_dbrec_qp", 8 bytes {
        RECEIVE_COUNTER "rcv" (0:15..0);
        SEND_COUNTER "snd" (4:15..0);
    }
}

crate::layout! {
    /// Doorbell record of a completion queue.
    CqDoorbellRecord "mlx5_dbrec_cq", 8 bytes {
        CONSUMER_INDEX "set_ci" (0:23..0);
        ARM_SN "arm_cmd_sn" (4:29..28);
        ARM_SOLICITED "arm_solicited" (4:24..24);
        ARM_CONSUMER_INDEX "arm_ci" (4:23..0);
    }
}

impl CqDoorbellRecord {
    /// Returns the second dword, host byte order: the sequence number of the arming, whether only solicited completions count,
    /// and the consumer index.
    #[inline(always)]
    pub const fn arm_dword(sn: u32, solicited: bool, consumer_index: u32) -> u32 {
        Self::ARM_SN.place(sn) | Self::ARM_SOLICITED.place(solicited as u32) | Self::ARM_CONSUMER_INDEX.place(consumer_index)
    }
}

crate::layout! {
    /// What arms a completion queue, written as 8 bytes to [`UAR_CQ_ARM`].
    CqArm "mlx5_cq_arm", 8 bytes {
        SN "cmd_sn" (0:29..28);
        SOLICITED "solicited" (0:24..24);
        CONSUMER_INDEX "ci" (0:23..0);
        CQN "cqn" (4:23..0);
    }
}

impl CqArm {
    /// Returns the word to write: the sequence number of the arming, whether only solicited completions count, consumer index
    /// and queue.
    #[inline(always)]
    pub const fn be_word(sn: u32, solicited: bool, consumer_index: u32, cqn: u32) -> u64 {
        let first = Self::SN.place(sn) | Self::SOLICITED.place(solicited as u32) | Self::CONSUMER_INDEX.place(consumer_index);
        be_word(first, Self::CQN.place(cqn))
    }
}

crate::layout! {
    /// What an event queue's doorbell takes.
    EqDoorbell "mlx5_eq_doorbell", 4 bytes {
        EQN "eqn" (0:31..24);
        CONSUMER_INDEX "ci" (0:23..0);
    }
}

impl EqDoorbell {
    /// Returns the dword, host byte order: queue and consumer index.
    #[inline(always)]
    pub const fn dword(eqn: u32, consumer_index: u32) -> u32 {
        Self::EQN.place(eqn) | Self::CONSUMER_INDEX.place(consumer_index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_is_armed_with_what_rdma_core_writes() {
        // cq.c mlx5_arm_cq: htobe32(sn << 28 | cmd | ci), cmd 1 << 24 for solicited ones alone, then htobe32(cqn).
        let arm = CqArm::be_word(2, true, 0xff12_3456, 0x81).to_ne_bytes();
        assert_eq!(arm, [0x21, 0x12, 0x34, 0x56, 0, 0, 0, 0x81]);
        assert_eq!(CqArm::be_word(5, false, 0, 1).to_ne_bytes(), [0x10, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(CqDoorbellRecord::arm_dword(2, true, 0xff12_3456), 0x2112_3456);
    }

    #[test]
    fn an_event_queue_takes_the_dword_that_linux_writes() {
        // eq.c eq_update_ci: (cons_index & 0xffffff) | (eqn << 24).
        assert_eq!(EqDoorbell::dword(9, 0xff12_3456), 0x0912_3456);
    }
}
