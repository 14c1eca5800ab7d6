//! Names of the values of fields.

use bareverbs_mlx5_spec::{
    AccessMode, CmdDeliveryStatus, CmdOpcode, CmdStatus, CqeOpcode, CqeSyndrome, EventType, QpcSt, QpcState, RegisterId,
    WqeOpcode, mkey_mask,
};

/// Bits of a UMR's `mkey_mask`, with the field that each enables.
pub(crate) const MKEY_MASK: [(u64, &str); 18] = [
    (mkey_mask::LEN, "len"),
    (mkey_mask::PAGE_SIZE, "log_page_size"),
    (mkey_mask::START_ADDR, "start_addr"),
    (mkey_mask::PD, "pd"),
    (mkey_mask::EN_RINVAL, "en_rinval"),
    (mkey_mask::EN_SIGERR, "en_sigerr"),
    (mkey_mask::BSF_EN, "bsf_en"),
    (mkey_mask::KEY, "mkey_7_0"),
    (mkey_mask::QPN, "qpn"),
    (mkey_mask::LR, "lr"),
    (mkey_mask::LW, "lw"),
    (mkey_mask::RR, "rr"),
    (mkey_mask::RW, "rw"),
    (mkey_mask::A, "a"),
    (mkey_mask::SMALL_FENCE, "small_fence_on_rdma_read_response"),
    (mkey_mask::RELAXED_ORDERING_WRITE, "relaxed_ordering_write"),
    (mkey_mask::FREE, "free"),
    (mkey_mask::RELAXED_ORDERING_READ, "relaxed_ordering_read"),
];

/// Returns the name of a value of field `field` of structure `layout`, if it has one.
pub(crate) fn meaning(layout: &str, field: &str, value: u64) -> Option<String> {
    let code = u32::try_from(value).ok();
    let name = match (layout, field) {
        ("mlx5_wqe_ctrl_seg", "opcode") | ("mlx5_cqe64", "sop") | ("mlx5_err_cqe", "s_wqe_opcode") => {
            WqeOpcode::from_code(code?)?.name()
        }
        ("mlx5_wqe_ctrl_seg", "fm") => match code? {
            0 => return None,
            1 => "small fence: after local invalidates and binds",
            2 => "fence",
            3 => "strong ordering",
            4 => "fence: after reads and atomics",
            _ => "reserved",
        },
        ("mlx5_wqe_ctrl_seg", "ce") => match code? {
            0 => "completion after an error only",
            1 => "completion after the first error",
            2 => "completion",
            _ => "completion and event",
        },
        ("mlx5_wqe_ctrl_seg" | "mlx5_cqe64" | "mlx5_err_cqe", "se") => return (value != 0).then(|| "solicited".into()),
        ("mlx5_wqe_umr_ctrl_seg", "mkey_mask") => return Some(mask(value)),
        ("mlx5_cqe64" | "mlx5_err_cqe", "opcode") => CqeOpcode::from_code(code?)?.name(),
        ("mlx5_err_cqe", "syndrome") => CqeSyndrome::from_code(code?)?.name(),
        ("eqe", "event_type") => EventType::from_code(code?)?.name(),
        ("qpc", "state") => QpcState::from_code(code?)?.name(),
        ("qpc", "st") => QpcSt::from_code(code?)?.name(),
        ("mkc", "access_mode_1_0") => AccessMode::from_code(code?)?.name(),
        ("access_register_in", "register_id") => RegisterId::from_code(code?)?.name(),
        ("cmd_queue_entry", "status") => CmdDeliveryStatus::from_code(code?)?.name(),
        (layout, "opcode") if layout.ends_with("_in") => CmdOpcode::from_code(code?)?.name(),
        (layout, "status") if layout.ends_with("_out") => CmdStatus::from_code(code?)?.name(),
        _ => return None,
    };
    Some(name.into())
}

/// Returns the fields that a UMR's `mkey_mask` enables, joined by `|`.
pub(crate) fn mask(value: u64) -> String {
    let known = MKEY_MASK.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| (*name).to_string());
    let all = MKEY_MASK.iter().fold(0, |all, (bit, _)| all | bit);
    let unknown = (value & !all != 0).then(|| format!("{:#x}", value & !all));
    known.chain(unknown).collect::<Vec<_>>().join("|")
}
