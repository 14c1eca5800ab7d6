//! Where this project's driver and Linux's differ for the same work, and why.

/// Which guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    V6_12,
    V6_1,
}

/// A field that differs.
pub(crate) struct Difference {
    /// The kernel that sends this; none if both do.
    pub(crate) kernel: Option<Kernel>,
    pub(crate) what: &'static str,
    pub(crate) field: &'static str,
    pub(crate) ours: &'static str,
    pub(crate) linux: &'static str,
    pub(crate) why: &'static str,
}

const fn both(
    what: &'static str,
    field: &'static str,
    ours: &'static str,
    linux: &'static str,
    why: &'static str,
) -> Difference {
    Difference { kernel: None, what, field, ours, linux, why }
}

/// Names of objects, addresses and keys: they come from the device and from memory, so that only their absence is compared.
/// The peer's LID is one of them: which of the two programs of a tool came first was chance.
pub(crate) const NAMES: &[&str] = &[
    "addr",
    "cqn",
    "cqn_rcv",
    "cqn_snd",
    "dbr_addr",
    "eq_number",
    "klm_pas_mtt",
    "lkey",
    "mkey_index",
    "pas",
    "pd",
    "qpn",
    "raddr",
    "remote_qpn",
    "rkey",
    "rlid",
    "srqn_rmpn_xrqn",
    "start_addr",
    "uar",
    "uar_page",
    "user_index",
    "xrcd",
];

/// Counters and payload: they depend on what went before.
pub(crate) const COUNTERS: &[&str] =
    &["ci", "input_num_entries", "log_page_size", "mkey_7_0", "next_rcv_psn", "next_send_psn", "page_offset", "wqe_idx"];

const CONTEXT: &str = "libmlx5 opens a user context (DEVX), and Linux puts its number into what it passes on for the program";
const EQ_SIZE: &str = "as few events as this driver can have outstanding; Linux has room for those of many cores and programs";
const VECTOR: &str = "kernel 6.1 gives its own queues a vector of their own behind those of the completions";
const RING: &str = "perftest says which operations it will use, and libmlx5 then reserves no more than they need; this driver \
                    reserves for any, a bind included";
const RECORD: &str = "this driver repeats where the doorbell record is; the device took it from CREATE_QP";
const ACK: &str = "Linux says it in every step; this driver in the one that begins sending, where it first counts";
const ATOMICS: &str = "this driver sends the page as it read it with one field changed; Linux sends that field alone";

const NEW: &str = "both write the page as they read it; the device of the recording had no such thing yet";

pub(crate) const DIFFERENCES: &[Difference] = &[
    both("ALLOC_PD", "uid", "0x0", "its context", CONTEXT),
    both("CREATE_CQ", "uid", "0x0", "its context", CONTEXT),
    both("CREATE_QP", "uid", "0x0", "its context", CONTEXT),
    both("DEALLOC_PD", "uid", "0x0", "its context", CONTEXT),
    both("DESTROY_CQ", "uid", "0x0", "its context", CONTEXT),
    both("DESTROY_QP", "uid", "0x0", "its context", CONTEXT),
    both("INIT2RTR_QP", "uid", "0x0", "its context", CONTEXT),
    both("RST2INIT_QP", "uid", "0x0", "its context", CONTEXT),
    both("RTR2RTS_QP", "uid", "0x0", "its context", CONTEXT),
    both("CREATE_EQ of completions", "eq_context_entry.log_eq_size", "0x8", "0xb", EQ_SIZE),
    both("CREATE_EQ of others", "eq_context_entry.log_eq_size", "0x8", "0xd", EQ_SIZE),
    both("CREATE_EQ of pages", "eq_context_entry.log_eq_size", "0x6", "0x8", EQ_SIZE),
    Difference {
        kernel: Some(Kernel::V6_1),
        what: "CREATE_EQ of others",
        field: "eq_context_entry.intr",
        ours: "0x0",
        linux: "0x2",
        why: VECTOR,
    },
    Difference {
        kernel: Some(Kernel::V6_1),
        what: "CREATE_EQ of pages",
        field: "eq_context_entry.intr",
        ours: "0x0",
        linux: "0x2",
        why: VECTOR,
    },
    both(
        "CREATE_EQ of completions",
        "uid",
        "0x0",
        "0xffff",
        "Linux shares its completion queues' events with programs' contexts (MLX5_SHARED_RESOURCE_UID); there are no contexts here",
    ),
    both(
        "CREATE_EQ of others",
        "event_bitmask",
        "00000000001f03be000000000000000000000000000000000000000000000000",
        "00000000001f02be000000000000000000000000000000000000000000000000",
        "event 8, an internal error of the device: Linux learns of it from the health buffer alone, this driver from either",
    ),
    both(
        "CREATE_CQ",
        "cq_context.c_eqn_or_apu_element",
        "0x3",
        "0x4",
        "the number of the event queue: Linux has one of commands before it",
    ),
    both(
        "CREATE_CQ",
        "cq_context.log_cq_size",
        "0x0",
        "0x1",
        "libmlx5 makes room for one entry more than it was asked for; a queue of one entry shows it",
    ),
    both("doorbell EQ arm", "eqn", "0x3", "0x1", "Linux arms its queue of commands first; this driver has none"),
    both(
        "CREATE_MKEY",
        "memory_key_mkey_entry.umr_en",
        "0x0",
        "0x1",
        "Linux may change any key by UMR later; this driver destroys a region's key and makes another",
    ),
    both("CREATE_QP", "qpc.log_sq_size", "0x4", "0x3", RING),
    both(
        "CREATE_QP",
        "qpc.srqn_rmpn_xrqn",
        "0x0",
        "given",
        "Linux names a shared receive queue of its own to queue pairs that use none; the field counts only with rq_type 1",
    ),
    both(
        "CREATE_QP",
        "qpc.xrcd",
        "0x0",
        "given",
        "Linux names an XRC domain of its own to queue pairs that use none; the field counts only for XRC",
    ),
    both("INIT2RTR_QP", "qpc.dbr_addr", "given", "0x0", RECORD),
    both("RTR2RTS_QP", "qpc.dbr_addr", "given", "0x0", RECORD),
    both("INIT2RTR_QP", "qpc.log_ack_req_freq", "0x0", "0x8", ACK),
    both("RST2INIT_QP", "qpc.log_ack_req_freq", "0x0", "0x8", ACK),
    both(
        "RTR2RTS_QP",
        "qpc.primary_address_path.vhca_port_num",
        "0x1",
        "0x0",
        "this driver repeats the port; without its bit in opt_param_mask the device leaves the path as it was",
    ),
    both(
        "QUERY_HCA_VPORT_CONTEXT",
        "port_num",
        "0x1",
        "0x0",
        "Linux names the port on devices with two only; a device with one takes either",
    ),
    both("SET_HCA_CAP 0x0", "cmd_hca_cap.fixed_buffer_size", "0x1", "0x0", NEW),
    both("SET_HCA_CAP 0x0", "cmd_hca_cap.max_qp_cnt", "0xff", "0x0", NEW),
    both("SET_HCA_CAP 0x0", "cmd_hca_cap.modify_rq_counter_set_id", "0x1", "0x0", NEW),
    both("SET_HCA_CAP 0x0", "cmd_hca_cap.out_of_seq_cnt", "0x1", "0x0", NEW),
    both("SET_HCA_CAP 0x0", "cmd_hca_cap.retransmission_q_counters", "0x1", "0x0", NEW),
    both("SET_HCA_CAP 0x0", "cmd_hca_cap.uctx_cap", "0x1", "0x0", NEW),
    both(
        "SET_HCA_CAP 0x0",
        "cmd_hca_cap.log_max_qp",
        "0xb",
        "0x12",
        "firmware asks for pages by this number: no more queue pairs than the driver has doorbell records for",
    ),
    both("SET_HCA_CAP 0x0", "cmd_hca_cap.pkv", "0x1", "0x0", NEW),
    both("SET_HCA_CAP 0x0", "cmd_hca_cap.qkv", "0x1", "0x0", NEW),
    both("SET_HCA_CAP 0x6", "atomic_caps.atomic_operations", "0x3", "0x0", ATOMICS),
    both("SET_HCA_CAP 0x6", "atomic_caps.atomic_size_qp", "0x8", "0x0", ATOMICS),
    both("SET_HCA_CAP 0x6", "atomic_caps.supported_atomic_req_8B_endianness_mode_1", "0x1", "0x0", ATOMICS),
];

/// Things that only Linux sends: kernel, name, reason.
pub(crate) const LINUX_ONLY: &[(Option<Kernel>, &str, &str)] = &[
    (None, "2RST_QP", "Linux resets a queue pair before it destroys it; the device takes it from any state"),
    (None, "ACCESS_REG 0x500f read", "PVLC, virtual lanes: a verb of Linux shows them, none of this library does"),
    (None, "ACCESS_REG 0x6001 read", "NODE_DESC: Linux shows it in a file, no verb here does"),
    (None, "ALLOC_XRCD", "Linux has two domains of its own for queue pairs that use none"),
    (None, "DEALLOC_XRCD", "as ALLOC_XRCD"),
    (None, "CREATE_EQ of commands", "this driver polls for the end of a command, as Linux does until then, and iPXE always"),
    (None, "CREATE_UCTX", "contexts of programs (DEVX): there are no programs here"),
    (None, "DESTROY_UCTX", "as CREATE_UCTX"),
    (None, "CREATE_RMP", "shared receive queues: one of Linux's own, and those of ibv_srq_pingpong"),
    (None, "DESTROY_RMP", "as CREATE_RMP"),
    (None, "CREATE_XRC_SRQ", "one of Linux's own, which it names to queue pairs that use none"),
    (None, "DESTROY_XRC_SRQ", "as CREATE_XRC_SRQ"),
    (
        None,
        "QUERY_QP",
        "Linux asks for the state that a new queue pair begins in; this driver knows it, and asks when it is asked",
    ),
    (None, "QUERY_HCA_CAP 0x1f", "memory on the device, which no verb here gives out"),
    (Some(Kernel::V6_1), "QUERY_HCA_CAP 0x1e", "the same, as much as the device could have"),
    (Some(Kernel::V6_1), "WQE NOP", "kernel 6.1 tries at start whether writes to a BlueFlame register are put together"),
];

/// Things that only this driver sends.
pub(crate) const OURS_ONLY: &[(Option<Kernel>, &str, &str)] = &[];
