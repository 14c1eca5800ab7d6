//! The initialization segment: the first registers of BAR0.

use core::time::Duration;

crate::layout! {
    /// Health buffer of the initialization segment (`mlx5_ifc.h`, `health_buffer`).
    HealthBuffer "health_buffer", 64 bytes {
        ASSERT_EXISTPTR "assert_existptr" (32:31..0);
        ASSERT_CALLRA "assert_callra" (36:31..0);
        TIME "time" (44:31..0);
        FW_VERSION "fw_version" (48:31..0);
        HW_ID "hw_id" (52:31..0);
        RFR "rfr" (56:31..31);
        VALID "valid" (56:27..27);
        SEVERITY "severity" (56:26..24);
        IRISC_INDEX "irisc_index" (60:31..24);
        SYND "synd" (60:23..16);
        EXT_SYND "ext_synd" (60:15..0);
    }
}

crate::layout! {
    /// Initialization segment at the start of BAR0 (`mlx5_ifc.h`, `initial_seg`).
    InitialSeg "initial_seg", 16396 bytes {
        FW_REV_MINOR "fw_rev_minor" (0:31..16);
        FW_REV_MAJOR "fw_rev_major" (0:15..0);
        CMD_INTERFACE_REV "cmd_interface_rev" (4:31..16);
        FW_REV_SUBMINOR "fw_rev_subminor" (4:15..0);
        CMDQ_PHY_ADDR_63_32 "cmdq_phy_addr_63_32" (16:31..0);
        CMDQ_PHY_ADDR_31_12 "cmdq_phy_addr_31_12" (20:31..12);
        NIC_INTERFACE_2 "nic_interface_2" (20:10..10) reserved, "Linux health.c: mlx5_get_nic_state takes three bits";
        NIC_INTERFACE "nic_interface" (20:9..8);
        LOG_CMDQ_SIZE "log_cmdq_size" (20:7..4);
        LOG_CMDQ_STRIDE "log_cmdq_stride" (20:3..0);
        COMMAND_DOORBELL_VECTOR "command_doorbell_vector" (24:31..0);
        INITIALIZING "initializing" (508:31..31);
        RESET_SUPPORTED "fw_reset_supported" (508:30..30) reserved, "Linux health.c: MLX5_FW_RESET_SUPPORTED_OFFSET";
        NIC_INTERFACE_SUPPORTED "nic_interface_supported" (508:26..24);
        EMBEDDED_CPU "embedded_cpu" (508:23..23);
        HEALTH_BUFFER "health_buffer" (@512 HealthBuffer);
        NO_DRAM_NIC_OFFSET "no_dram_nic_offset" (576:31..0);
        CMD_EXEC_TO "cmd_exec_to" (4088:31..0) reserved, "Linux device.h: struct mlx5_init_seg";
        CMD_Q_INIT_TO "cmd_q_init_to" (4092:31..0) reserved, "Linux device.h: struct mlx5_init_seg";
        INTERNAL_TIMER_H "internal_timer_h" (4096:31..0) reserved, "Linux device.h: struct mlx5_init_seg";
        INTERNAL_TIMER_L "internal_timer_l" (4100:31..0) reserved, "Linux device.h: struct mlx5_init_seg";
        CLEAR_INT "clear_int" (4108:0..0);
        HEALTH_SYNDROME "health_syndrome" (4112:31..24);
        HEALTH_COUNTER "health_counter" (4112:23..0);
    }
}

impl InitialSeg {
    /// State of the interface: a driver uses the device (`mlx5_ifc.h`, `MLX5_INITIAL_SEG_NIC_INTERFACE_FULL_DRIVER`).
    pub const NIC_FULL_DRIVER: u32 = 0;
    /// State of the interface: the device takes no commands (`MLX5_INITIAL_SEG_NIC_INTERFACE_DISABLED`).
    pub const NIC_DISABLED: u32 = 1;
    /// State of the interface: a reset was requested (`MLX5_INITIAL_SEG_NIC_INTERFACE_SW_RESET`).
    pub const NIC_SOFTWARE_RESET: u32 = 7;

    /// Returns the time of a timeout register ([`InitialSeg::CMD_EXEC_TO`], [`InitialSeg::CMD_Q_INIT_TO`]): bits 31 to 29 have the
    /// unit, of which two count (milliseconds, seconds, minutes, hours), and bits 19 to 0 the number (Linux `tout.c`,
    /// `tout_convert_reg_field_to_ms`).
    pub const fn timeout(register: u32) -> Duration {
        let number = register & 0xf_ffff;
        let seconds = match register >> 29 & 3 {
            // Of 32 bits: the division of 64 takes a kilobyte of code where the processor has none.
            0 => return Duration::from_millis(number as u64),
            1 => 1,
            2 => 60,
            _ => 3600,
        };
        Duration::from_secs(number as u64 * seconds)
    }

    /// Returns the state of the interface to the driver from its dword: [`InitialSeg::NIC_INTERFACE`] and the bit above it.
    pub const fn nic_interface(dword: u32) -> u32 {
        Self::NIC_INTERFACE_2.take(dword) << 2 | Self::NIC_INTERFACE.take(dword)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux, `tout.c`: `tout_convert_reg_field_to_ms` multiplies by 60 for minutes and seconds, and by 1000 below hours.
    #[test]
    fn a_timeout_has_its_unit_in_bits_29_and_30() {
        assert_eq!(InitialSeg::timeout(1234), Duration::from_millis(1234));
        assert_eq!(InitialSeg::timeout(1 << 29 | 60), Duration::from_secs(60));
        assert_eq!(InitialSeg::timeout(2 << 29 | 2), Duration::from_secs(120));
        assert_eq!(InitialSeg::timeout(3 << 29 | 0xf_ffff), Duration::from_secs(0xf_ffff * 3600));
        // Bit 31 does not count, nor do those between unit and number.
        assert_eq!(InitialSeg::timeout(1 << 31 | 0x1ff0_0000 | 5), Duration::from_millis(5));
    }

    /// Linux, `health.c`, `mlx5_get_nic_state`: bits 10 to 8 of `cmdq_addr_l_sz`.
    #[test]
    fn the_state_of_the_interface_has_three_bits() {
        assert_eq!(InitialSeg::nic_interface(0xffff_f8ff), InitialSeg::NIC_FULL_DRIVER);
        assert_eq!(InitialSeg::nic_interface(0x100), InitialSeg::NIC_DISABLED);
        assert_eq!(InitialSeg::nic_interface(0x700), InitialSeg::NIC_SOFTWARE_RESET);
        assert_eq!(InitialSeg::nic_interface(0x400), 4);
    }
}
