//! Profiles: what known cards demand, as data.
//!
//! A figure of a profile has its public source beside it, and where a source gives only a bound the figure is the bound. What has no
//! figure is as in [`Profile::Instant`]. Assumptions: pages follow the number of queue pairs on the line through two figures of a
//! ConnectX-4 Lx, and later cards want as many. The default device takes its times from no card: they are short, so that a program which does not wait
//! fails, and nobody waits long.

use core::fmt;
use core::time::Duration;

use crate::config::{CommandTime, DeviceConfig, FirmwareVersion, LinkSpeed, PageDemand};
use crate::limits::Limit;

/// A card that a simulated device can be like, as far as public sources tell what it demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// `simulated`: no card in particular, and the default. It demands what cards demand, in a short time.
    #[default]
    Simulated,
    /// `instant`: no card. It asks for few pages, and its port is active from the start.
    Instant,
    /// `connectx-4-lx`: the card whose start with Linux was recorded, with an InfiniBand port instead of its Ethernet port.
    ConnectX4Lx,
    /// `connectx-5`.
    ConnectX5,
    /// `connectx-6`.
    ConnectX6,
    /// `connectx-6-vf`: a virtual function of a ConnectX-6, whose pages the driver of the physical function gives.
    ConnectX6Vf,
    /// `connectx-7`.
    ConnectX7,
}

/// One figure of a profile, and where it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    value: Value,
    /// Public source.
    pub source: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    DeviceId(u16),
    Firmware(u16, u16, u16),
    BoardId(&'static str),
    Limit(Limit, u64),
    InitialQueuePairs(u8),
    BootPages(u32),
    InitPages {
        pages: u32,
        log_max_qp: u8,
        /// Of them, those for any number of queue pairs.
        fixed: u32,
    },
    /// No pages: the driver of the physical function gives those of the virtual one.
    VirtualFunction,
    /// Masked ones too.
    ExtendedAtomics,
    Surplus,
    NoVirtualPorts,
    ResetTime(Duration),
    StartTime(Duration),
    CommandTime(Duration),
    LinkTraining(Duration),
    LidDelay(Duration),
    NoLid(u16),
    DisabledWithoutCable,
    MtuWhileDown,
    Speed(LinkSpeed),
}

const fn figure(value: Value, source: &'static str) -> Figure {
    Figure { value, source }
}

/// The trace of Linux's driver that starts a ConnectX-4 Lx, in 42 commands with input and output.
const RECORDED: &str = "snabbco/snabb, src/apps/mellanox/trace-mlx5_core.txt.gz";
/// Two figures of a ConnectX-4 Lx. A driver that leaves the number of queue pairs as the card has it counts 2489 pages; that the number
/// is 2^14 is recorded of other firmware.
const RECORDED_AND_MEASURED: &str =
    "snabbco/snabb, src/apps/mellanox/trace-mlx5_core.txt.gz; hf355051012-ai/vfio_nvme, src/mlx5.h: 2489 for 16384";
/// No source tells the pages that this card asks for.
const ANOTHER_CARD: &str = "no source of this card: as the recorded ConnectX-4 Lx";
/// The operations and sizes of the atomic capabilities (QUERY_HCA_CAP 0x6): all four, on 4 to 32 bytes.
const RECORDED_ATOMICS: &str = "snabbco/snabb, src/apps/mellanox/trace-mlx5_core.txt.gz: up to 32 bytes";
/// `masked_log_atomic_arg_sizes` is 0x3c.
const DEVINFO_CONNECTX_5_ATOMICS: &str = "ibv_devinfo -v of MLNX_OFED, open-mpi/ompi#6137: up to 32 bytes";
/// What rdma-core's `ibv_devinfo` prints has nothing of masked atomics.
const OLDER_CARD_ATOMICS: &str = "no source of this card: as the ConnectX-5";
/// Kernel log of a ConnectX-4 Lx: the commands up to the capabilities, ENABLE_HCA among them, take 735 ms. INIT_HCA is
/// taken to be as long.
const LOG_CONNECTX_4_LX: &str = "kernel log, PeterSuh-Q3/tinycore-redpill#9: at most";
/// `ibv_devinfo -v`.
const DEVINFO_CONNECTX_5: &str = "ibv_devinfo -v, open-mpi/ompi#6137";
/// Kernel log: 428 ms between two lines, in which the driver executes about 60 commands.
const LOG_CONNECTX_5: &str = "kernel log, geerlingguy/arm-nas#16: at most, on average";
/// Two ports of a card that are not in use.
const IBSTAT_CONNECTX_5: &str = "ibstat, openucx/ucx#8772";
/// Likewise.
const IBSTAT_CONNECTX_6: &str = "ibstat, linux-rdma list, 'opensm and virt_enabled?', 25 May 2020";
/// `ibv_devinfo -v`.
const DEVINFO_CONNECTX_6: &str = "ibv_devinfo -v, E3SM-Project/scorpio, branch dqwu/test_openmpi";
/// Another card with other firmware (20.37.1700, MT_0000000594, 131072 queue pairs). Its second port is Disabled and reports an MTU of 4096.
const DEVINFO_CONNECTX_6_LIMITS: &str = "ibv_devinfo -vv, openucx/ucx#9908";
/// `ibv_devinfo`.
const DEVINFO_CONNECTX_7: &str = "ibv_devinfo, deepseek-ai/DeepEP#60";
/// Kernel log of a plugged cable: "Cable plugged" and "Link up" are 5.9 s apart.
const LOG_LINK: &str = "kernel log of an mlx5 card (Ethernet), jishuzhan.net/article/1911252493641777153";
/// Default of the option `--sweep`.
const OPENSM: &str = "opensm(8), --sweep: at most";
/// Section 6.6.2: a function completes a reset in this time.
const PCI_EXPRESS: &str = "PCI Express Base Specification, 6.6.2: at most";
const PCI_IDS: &str = "pci-ids.ucw.cz";
/// `ibstat`.
const IBSTAT_VF: &str = "ibstat of a virtual function, Mellanox/network-operator#249";
/// A driver that asks for the regular pages of a ConnectX-7 gets a negative number.
const NEGATIVE_PAGES: &str = "snabbco/snabb#1518";
/// The link trains and the LID comes: a program that does not wait for them fails.
const SHORTENED: &str = "of no card: shortened";

/// The line through both figures of [`RECORDED_AND_MEASURED`].
const INIT_PAGES: Value = Value::InitPages { pages: 12_868, log_max_qp: 17, fixed: 1006 };

const SIMULATED: &[Figure] = &[
    figure(Value::BootPages(6), RECORDED),
    figure(Value::InitPages { pages: 12_868, log_max_qp: 17, fixed: 0 }, RECORDED),
    figure(Value::Surplus, NEGATIVE_PAGES),
    figure(Value::ExtendedAtomics, RECORDED_ATOMICS),
    figure(Value::ResetTime(Duration::from_millis(10)), SHORTENED),
    figure(Value::LinkTraining(Duration::from_millis(20)), SHORTENED),
    figure(Value::LidDelay(Duration::from_millis(30)), SHORTENED),
    figure(Value::NoLid(0xffff), DEVINFO_CONNECTX_7),
    figure(Value::DisabledWithoutCable, IBSTAT_CONNECTX_6),
];

const CONNECTX_4_LX: &[Figure] = &[
    figure(Value::DeviceId(0x1015), PCI_IDS),
    figure(Value::Firmware(14, 12, 1220), RECORDED),
    figure(Value::BoardId("MT_2430110027"), RECORDED),
    figure(Value::Limit(Limit::QueuePairs, 1 << 23), RECORDED),
    figure(Value::InitialQueuePairs(14), RECORDED),
    figure(Value::BootPages(6), RECORDED),
    figure(INIT_PAGES, RECORDED_AND_MEASURED),
    figure(Value::NoVirtualPorts, RECORDED),
    figure(Value::ExtendedAtomics, RECORDED_ATOMICS),
    figure(Value::ResetTime(Duration::from_millis(100)), PCI_EXPRESS),
    figure(Value::StartTime(Duration::from_millis(735)), LOG_CONNECTX_4_LX),
    figure(Value::LinkTraining(Duration::from_millis(5900)), LOG_LINK),
    figure(Value::LidDelay(Duration::from_secs(10)), OPENSM),
];

const CONNECTX_5: &[Figure] = &[
    figure(Value::DeviceId(0x1017), DEVINFO_CONNECTX_5),
    figure(Value::Firmware(16, 23, 1020), DEVINFO_CONNECTX_5),
    figure(Value::BoardId("MT_0000000008"), DEVINFO_CONNECTX_5),
    figure(Value::Limit(Limit::QueuePairs, 1 << 18), DEVINFO_CONNECTX_5),
    figure(Value::Limit(Limit::QueuePairSize, 1 << 15), DEVINFO_CONNECTX_5),
    figure(Value::Limit(Limit::CompletionQueues, 1 << 24), DEVINFO_CONNECTX_5),
    figure(Value::Limit(Limit::CompletionQueueSize, 1 << 22), DEVINFO_CONNECTX_5),
    figure(Value::Limit(Limit::MemoryKeys, 1 << 24), DEVINFO_CONNECTX_5),
    figure(Value::Limit(Limit::Reads, 16), DEVINFO_CONNECTX_5),
    figure(Value::ExtendedAtomics, DEVINFO_CONNECTX_5_ATOMICS),
    figure(INIT_PAGES, ANOTHER_CARD),
    figure(Value::ResetTime(Duration::from_millis(100)), PCI_EXPRESS),
    figure(Value::CommandTime(Duration::from_millis(7)), LOG_CONNECTX_5),
    figure(Value::LinkTraining(Duration::from_millis(5900)), LOG_LINK),
    figure(Value::LidDelay(Duration::from_secs(10)), OPENSM),
    figure(Value::NoLid(0xffff), IBSTAT_CONNECTX_5),
    figure(Value::DisabledWithoutCable, IBSTAT_CONNECTX_5),
    figure(Value::Speed(LinkSpeed::Edr), "README of MrBr-github/lshca: 100 Gb/s"),
];

const CONNECTX_6: &[Figure] = &[
    figure(Value::DeviceId(0x101b), DEVINFO_CONNECTX_6),
    figure(Value::Firmware(20, 29, 2002), DEVINFO_CONNECTX_6),
    figure(Value::BoardId("MT_0000000223"), DEVINFO_CONNECTX_6),
    figure(Value::Limit(Limit::QueuePairs, 1 << 18), DEVINFO_CONNECTX_6),
    figure(Value::Limit(Limit::QueuePairSize, 1 << 15), DEVINFO_CONNECTX_6_LIMITS),
    figure(Value::Limit(Limit::SharedReceiveQueueSize, 1 << 15), DEVINFO_CONNECTX_6_LIMITS),
    figure(Value::Limit(Limit::CompletionQueues, 1 << 24), DEVINFO_CONNECTX_6_LIMITS),
    figure(Value::Limit(Limit::CompletionQueueSize, 1 << 22), DEVINFO_CONNECTX_6_LIMITS),
    figure(Value::Limit(Limit::MemoryKeys, 1 << 24), DEVINFO_CONNECTX_6_LIMITS),
    figure(Value::Limit(Limit::ProtectionDomains, 1 << 23), DEVINFO_CONNECTX_6_LIMITS),
    figure(Value::Limit(Limit::Message, 1 << 30), DEVINFO_CONNECTX_6_LIMITS),
    figure(Value::Limit(Limit::Reads, 16), DEVINFO_CONNECTX_6_LIMITS),
    figure(INIT_PAGES, ANOTHER_CARD),
    figure(Value::ExtendedAtomics, OLDER_CARD_ATOMICS),
    figure(Value::ResetTime(Duration::from_millis(100)), PCI_EXPRESS),
    figure(Value::LinkTraining(Duration::from_millis(5900)), LOG_LINK),
    figure(Value::LidDelay(Duration::from_secs(10)), OPENSM),
    figure(Value::NoLid(0xffff), IBSTAT_VF),
    figure(Value::DisabledWithoutCable, IBSTAT_CONNECTX_6),
    figure(Value::MtuWhileDown, DEVINFO_CONNECTX_6_LIMITS),
    figure(Value::Speed(LinkSpeed::Hdr), "ibstat, Mellanox/network-operator#249: 200 Gb/s"),
];

const CONNECTX_6_VF: &[Figure] = &[
    figure(Value::DeviceId(0x101c), PCI_IDS),
    figure(Value::Firmware(20, 29, 2002), DEVINFO_CONNECTX_6),
    figure(Value::BoardId("MT_0000000223"), DEVINFO_CONNECTX_6),
    figure(Value::Limit(Limit::QueuePairs, 1 << 18), DEVINFO_CONNECTX_6),
    figure(Value::VirtualFunction, "Linux, mlx5/core/pagealloc.c: the physical function gives them (page_counters[MLX5_VF])"),
    figure(Value::ExtendedAtomics, OLDER_CARD_ATOMICS),
    figure(Value::ResetTime(Duration::from_millis(100)), PCI_EXPRESS),
    figure(Value::LinkTraining(Duration::from_millis(5900)), LOG_LINK),
    figure(Value::LidDelay(Duration::from_secs(10)), OPENSM),
    figure(Value::NoLid(0xffff), IBSTAT_VF),
    figure(Value::Speed(LinkSpeed::Hdr), "ibstat, Mellanox/network-operator#249: 200 Gb/s"),
];

const CONNECTX_7: &[Figure] = &[
    figure(Value::DeviceId(0x1021), DEVINFO_CONNECTX_7),
    figure(Value::Firmware(28, 39, 2048), DEVINFO_CONNECTX_7),
    figure(Value::BoardId("MT_0000000838"), DEVINFO_CONNECTX_7),
    figure(INIT_PAGES, ANOTHER_CARD),
    figure(Value::Surplus, NEGATIVE_PAGES),
    figure(Value::ExtendedAtomics, OLDER_CARD_ATOMICS),
    figure(Value::ResetTime(Duration::from_secs(1)), "NVIDIA firmware release notes 28.44.1036, issue 3875417"),
    figure(Value::LinkTraining(Duration::from_millis(5900)), LOG_LINK),
    figure(Value::LidDelay(Duration::from_secs(10)), OPENSM),
    figure(Value::NoLid(0xffff), DEVINFO_CONNECTX_7),
    figure(Value::MtuWhileDown, DEVINFO_CONNECTX_7),
    figure(Value::Speed(LinkSpeed::Ndr), "ibnetdiscover lists MT4129 as 4xNDR; NVIDIA/k8s-test-infra, profile h100"),
];

/// Returns a time for people: in seconds, or in milliseconds if it is shorter than one.
fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) { format!("{} ms", time.as_millis()) } else { format!("{} s", time.as_secs_f64()) }
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Simulated,
        Self::Instant,
        Self::ConnectX4Lx,
        Self::ConnectX5,
        Self::ConnectX6,
        Self::ConnectX6Vf,
        Self::ConnectX7,
    ];

    /// Its name, lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Instant => "instant",
            Self::ConnectX4Lx => "connectx-4-lx",
            Self::ConnectX5 => "connectx-5",
            Self::ConnectX6 => "connectx-6",
            Self::ConnectX6Vf => "connectx-6-vf",
            Self::ConnectX7 => "connectx-7",
        }
    }

    /// Returns the profile of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Returns the figures in which it differs from [`Self::Instant`], each with its source.
    pub const fn figures(self) -> &'static [Figure] {
        match self {
            Self::Simulated => SIMULATED,
            Self::Instant => &[],
            Self::ConnectX4Lx => CONNECTX_4_LX,
            Self::ConnectX5 => CONNECTX_5,
            Self::ConnectX6 => CONNECTX_6,
            Self::ConnectX6Vf => CONNECTX_6_VF,
            Self::ConnectX7 => CONNECTX_7,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Figure {
    /// What the value is of.
    pub const fn name(&self) -> &'static str {
        match self.value {
            Value::DeviceId(_) => "PCI device ID",
            Value::Firmware(..) => "firmware",
            Value::BoardId(_) => "board ID (PSID)",
            Value::Limit(limit, _) => limit.name(),
            Value::InitialQueuePairs(_) => "qps before SET_HCA_CAP",
            Value::BootPages(_) => "pages to boot",
            Value::InitPages { .. } => "pages to initialize",
            Value::VirtualFunction => "pages",
            Value::ExtendedAtomics => "atomics with masks",
            Value::Surplus => "spare pages",
            Value::NoVirtualPorts => "virtual ports (ib_virt)",
            Value::ResetTime(_) => "function-level reset",
            Value::StartTime(_) => "ENABLE_HCA, INIT_HCA",
            Value::CommandTime(_) => "any command",
            Value::LinkTraining(_) => "link training",
            Value::LidDelay(_) => "until the port has a LID",
            Value::NoLid(_) => "LID of a port without one",
            Value::DisabledWithoutCable => "port without a cable",
            Value::MtuWhileDown => "operational MTU of a port that is down",
            Value::Speed(_) => "speed of a lane",
        }
    }

    /// Returns its value, for people.
    pub fn value(&self) -> String {
        match self.value {
            Value::DeviceId(id) => format!("{id:#06x}"),
            Value::Firmware(major, minor, subminor) => format!("{major}.{minor}.{subminor:04}"),
            Value::BoardId(id) => id.into(),
            Value::Limit(_, number) => number.to_string(),
            Value::InitialQueuePairs(log) => (1_u32 << log).to_string(),
            Value::BootPages(pages) => pages.to_string(),
            Value::InitPages { pages, log_max_qp, fixed: 0 } => {
                format!("{pages} for {} qps, in proportion", 1_u32 << log_max_qp)
            }
            Value::InitPages { pages, log_max_qp, fixed } => {
                format!("{pages} for {} qps: {fixed} for any number, the rest in proportion", 1_u32 << log_max_qp)
            }
            Value::VirtualFunction => "none".into(),
            Value::ExtendedAtomics => "4 and 8 bytes".into(),
            Value::Surplus => "asked for, then offered back by a negative QUERY_PAGES".into(),
            Value::NoVirtualPorts => "none, the port is queried by MAD_IFC".into(),
            Value::ResetTime(time)
            | Value::StartTime(time)
            | Value::CommandTime(time)
            | Value::LinkTraining(time)
            | Value::LidDelay(time) => seconds(time),
            Value::NoLid(lid) => lid.to_string(),
            Value::DisabledWithoutCable => "Disabled, not Polling".into(),
            Value::MtuWhileDown => "as with a link".into(),
            Value::Speed(speed) => format!("{speed:?}").to_uppercase(),
        }
    }

    fn apply(&self, config: &mut DeviceConfig) {
        match self.value {
            Value::DeviceId(id) => config.pci_device_id = id,
            Value::Firmware(major, minor, subminor) => config.firmware = FirmwareVersion { major, minor, subminor },
            Value::BoardId(id) => {
                config.board_id = [0; 16];
                config.board_id.iter_mut().zip(id.bytes()).for_each(|(to, from)| *to = from);
            }
            Value::Limit(limit, number) => {
                // A test sets each of them.
                let _ = config.limits.set(limit, number);
            }
            Value::InitialQueuePairs(log) => config.initial_log_max_qp = Some(log),
            Value::BootPages(boot) => config.pages.boot = boot,
            Value::InitPages { pages, log_max_qp, fixed } => {
                config.pages = PageDemand { init: pages, log_max_qp: Some(log_max_qp), fixed, ..config.pages };
            }
            Value::VirtualFunction => (config.virtual_function, config.pages) = (true, PageDemand::NONE),
            Value::ExtendedAtomics => config.extended_atomics = true,
            Value::Surplus => config.pages.surplus = true,
            Value::NoVirtualPorts => config.ib_virt = false,
            Value::ResetTime(time) => config.reset_time = time,
            Value::StartTime(start) => config.command_time.start = start,
            Value::CommandTime(time) => config.command_time = CommandTime { other: time, start: time },
            Value::LinkTraining(time) => config.link_training = time,
            Value::LidDelay(time) => config.lid_delay = time,
            Value::NoLid(lid) => config.no_lid = lid,
            Value::DisabledWithoutCable => config.disabled_without_cable = true,
            Value::MtuWhileDown => config.mtu_while_down = true,
            Value::Speed(speed) => config.link_speed = speed,
        }
    }
}

impl DeviceConfig {
    /// Creates the default configuration ([`Profile::Simulated`]) with LID `lid` and GUIDs derived from it.
    pub fn with_lid(lid: u16) -> Self {
        Self::profile(Profile::Simulated, lid)
    }

    /// Creates the configuration of a device like a known card, with LID `lid` and GUIDs derived from it.
    pub fn profile(profile: Profile, lid: u16) -> Self {
        let mut config = Self::instant(lid);
        profile.figures().iter().for_each(|figure| figure.apply(&mut config));
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    #[test]
    fn every_profile_has_a_name_and_each_figure_changes_one_thing_and_has_a_source() {
        for profile in Profile::ALL {
            assert_eq!(Profile::from_name(profile.name()), Some(profile));
            for figure in profile.figures() {
                let mut config = DeviceConfig::instant(1);
                figure.apply(&mut config);
                // Only what the instant device happens to have too.
                let same = config == DeviceConfig::instant(1);
                let known = figure.value == Value::DeviceId(0x1021)
                    || figure.value == Value::Speed(LinkSpeed::Hdr)
                    || figure.value == Value::MtuWhileDown
                    || matches!(figure.value, Value::Limit(limit, number) if Limits::default().get(limit) == number);
                assert_eq!(same, known, "{profile}: {figure:?}");
                assert!(figure.source.len() > 5 && !figure.value().is_empty(), "{profile}: {figure:?}");
            }
            assert_eq!(DeviceConfig::profile(profile, 3).check(), Ok(()));
        }
        assert_eq!(Profile::default(), Profile::Simulated);
        assert_eq!(Profile::from_name("connectx-3"), None);
    }

    #[test]
    fn the_book_lists_each_figure_with_its_source() {
        let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/simulator/profiles.md");
        let book = std::fs::read_to_string(book).unwrap();
        let table = |profile: &Profile| {
            let row = |figure: &Figure| format!("| {} | {} | {} |\n", figure.name(), figure.value(), figure.source);
            let rows: String = profile.figures().iter().map(row).collect();
            format!("### {profile}\n\n| figure | value | source |\n|---|---|---|\n{rows}\n")
        };
        let tables = Profile::ALL.iter().filter(|profile| !profile.figures().is_empty()).map(table);
        let missing: String = tables.filter(|table| !book.contains(table)).collect();
        assert!(missing.is_empty(), "not in the book:\n\n{missing}");
    }

    #[test]
    fn the_book_has_the_pages_of_linux_and_of_this_driver() {
        let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/");
        // A line may end between any two words.
        let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let read = |page: &str| words(std::fs::read_to_string(format!("{book}{page}")).unwrap());
        let profiles = read("simulator/profiles.md");
        let pages = DeviceConfig::profile(Profile::Simulated, 1).pages;
        let all = |log| pages.boot + pages.init_for(log) + pages.chunk;
        assert!(pages.surplus && profiles.contains("gives 25,750 pages") && profiles.contains("gives 216."));
        assert_eq!([all(18), all(11)], [25_750, 216]);
        let firmware = read("firmware.md");
        assert!(firmware.contains("asks for 216 only"));
        let card = DeviceConfig::profile(Profile::ConnectX4Lx, 1).pages;
        assert!(firmware.contains("1,006 pages and 0.09 for each queue pair") && firmware.contains("1,192 for its 2^11"));
        assert_eq!((card.fixed, card.init_for(11)), (1006, 1192));
        assert!(firmware.contains("| 2,489 |") && firmware.contains("| 12,868 |"));
        assert_eq!([card.init_for(14), card.init_for(17)], [2489, 12_868]);
    }

    #[test]
    fn pages_go_with_the_queue_pairs() {
        let pages = DeviceConfig::profile(Profile::ConnectX4Lx, 1).pages;
        // 17 is recorded and 14 measured, the others follow.
        let demands = [0, 1, 11, 14, 17, 18, 23].map(|log| pages.init_for(log));
        assert_eq!(demands, [1007, 1007, 1192, 2489, 12_868, 24_730, 760_174]);
        assert_eq!(pages.init_for(255), u32::MAX);
        assert_eq!(PageDemand { log_max_qp: Some(255), ..pages }.init_for(3), 1007);
        let proportional = DeviceConfig::profile(Profile::Simulated, 1).pages;
        assert_eq!([0, 11, 14, 17, 18].map(|log| proportional.init_for(log)), [1, 202, 1609, 12_868, 25_736]);
        assert_eq!([0, 17, 18].map(|log| PageDemand { fixed: 20_000, ..pages }.init_for(log)), [12_868; 3], "no more than all");
        assert_eq!([0, 255].map(|log| PageDemand::FEW.init_for(log)), [41, 41]);
        assert_eq!(PageDemand { log_max_qp: Some(200), ..PageDemand::NONE }.init_for(3), 0);
    }
}
