//! Where this project's driver and Linux's differ in what they say to the recorded card, and why.

/// A field that differs.
pub(crate) struct Difference {
    pub(crate) command: &'static str,
    pub(crate) field: &'static str,
    pub(crate) ours: &'static str,
    pub(crate) linux: &'static str,
    pub(crate) why: &'static str,
}

const fn row(
    command: &'static str,
    field: &'static str,
    ours: &'static str,
    linux: &'static str,
    why: &'static str,
) -> Difference {
    Difference { command, field, ours, linux, why }
}

/// Fields that name memory: only their absence is compared.
pub(crate) const ADDRESSES: &[&str] = &["pas"];

const VECTOR: &str = "Linux of 2016 gives each queue a vector; this driver shares one among its own three, as Linux 6.12 does";
const EQ_SIZE: &str = "as few events as this driver can have outstanding; Linux has room for those of many cores and programs";
const EQ_PAGES: &str = "Linux of 2016 allocates a queue in one piece and names it as one large page; this driver lists pages";
const INTERNAL_ERROR: &str = "bit 8, INTERNAL_ERROR, reports a failure of the firmware before the next look at its health. Linux and FreeBSD \
                              look at the health alone; illumos (mlxcx, mlxcx_setup_eq0) asks ConnectX-4 to 6 for the event too";
const LATER: &str = "length in today's mlx5_ifc.h, which Linux sends to old cards too; Linux of 2016 had structures of its own";
const PAGES: &str =
    "this driver lists so many pages in one command as its two mailboxes hold; Linux allocates mailboxes for all";
const QUEUE_PAIRS: &str = "firmware takes pages for each queue pair that log_max_qp announces; this driver creates at most 1,856. Linux asked for \
                           2^17, the card's own value is 2^14, and iPXE (CIB_PRM.h) asks for 2^1";
const PORT_TYPE: &str =
    "the test says InfiniBand in the capabilities that it replays, and both drivers send back what they read";

pub(crate) const DIFFERENCES: &[Difference] = &[
    row("CREATE_EQ of completions", "eq_context_entry.intr", "0x1", "0x3", VECTOR),
    row("CREATE_EQ of completions", "eq_context_entry.log_eq_size", "0x8", "0xb", EQ_SIZE),
    row("CREATE_EQ of completions", "eq_context_entry.log_page_size", "0x0", "0x5", EQ_PAGES),
    row("CREATE_EQ of completions", "input length", "304", "280", EQ_PAGES),
    row("CREATE_EQ of others", "eq_context_entry.intr", "0x0", "0x2", VECTOR),
    row("CREATE_EQ of others", "eq_context_entry.log_eq_size", "0x8", "0x9", EQ_SIZE),
    row("CREATE_EQ of others", "eq_context_entry.log_page_size", "0x0", "0x3", EQ_PAGES),
    row(
        "CREATE_EQ of others",
        "event_bitmask",
        "00000000001f03be000000000000000000000000000000000000000000000000",
        "00000000001f02be000000000000000000000000000000000000000000000000",
        INTERNAL_ERROR,
    ),
    row("CREATE_EQ of others", "input length", "304", "280", EQ_PAGES),
    row("CREATE_EQ of pages", "eq_context_entry.log_eq_size", "0x6", "0x8", EQ_SIZE),
    row("CREATE_EQ of pages", "eq_context_entry.log_page_size", "0x0", "0x2", EQ_PAGES),
    row("ENABLE_HCA", "output length", "12", "16", LATER),
    row("INIT_HCA", "input length", "32", "16", LATER),
    row("MANAGE_PAGES 0x1", "input length", "240", "102960", PAGES),
    row("MANAGE_PAGES 0x1", "input length", "976", "102960", PAGES),
    row("MANAGE_PAGES 0x1", "input_num_entries", "0x1c", "0x3244", PAGES),
    row("MANAGE_PAGES 0x1", "input_num_entries", "0x78", "0x3244", PAGES),
    row("SET_HCA_CAP 0x0", "cmd_hca_cap.log_max_qp", "0xb", "0x11", QUEUE_PAIRS),
    row("SET_HCA_CAP 0x0", "cmd_hca_cap.port_type", "0x0", "0x1", PORT_TYPE),
];

const OFFLOADS: &str = "Ethernet offloads, RoCE and flow tables: this driver drives InfiniBand ports";
const NO_VPORT: &str =
    "Linux on an Ethernet port asks for the NIC vport instead; this driver needs the GUIDs of the InfiniBand port (NodeInfo)";
const TEARDOWN: &str = "the recording ends when the driver is up";
const TAKE: &str = "the recording ends when the driver is up; the card here gives back pages that it was given";

const POLLED: &str = "this driver polls for the end of a command, as Linux does until then, and iPXE always (golan.c)";

/// Commands that Linux sent and this driver does not.
pub(crate) const LINUX_ONLY: &[(&str, &str)] = &[
    ("CREATE_EQ of commands", POLLED),
    ("QUERY_HCA_CAP 0x2", OFFLOADS),
    ("QUERY_HCA_CAP 0x3", OFFLOADS),
    ("QUERY_HCA_CAP 0x8", OFFLOADS),
    ("QUERY_HCA_CAP 0x9", OFFLOADS),
    ("QUERY_HCA_CAP 0xe", OFFLOADS),
    ("QUERY_HCA_CAP 0xf", OFFLOADS),
];

/// Commands that this driver sends and the recording does not have. The card answers them with success and zeros, and
/// MANAGE_PAGES with pages that it was given.
pub(crate) const OURS_ONLY: &[(&str, &str)] = &[
    ("DEALLOC_UAR", TEARDOWN),
    ("DESTROY_EQ", TEARDOWN),
    ("DISABLE_HCA", TEARDOWN),
    ("MAD_IFC", NO_VPORT),
    ("MANAGE_PAGES 0x2", TAKE),
    ("TEARDOWN_HCA", TEARDOWN),
];
