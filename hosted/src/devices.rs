//! `bareverbs devices`: the mlx5 functions of a machine, and the obstacles to using each over VFIO.

use std::fmt::{self, Write as _};

use anyhow::{Context as _, Result};
use bareverbs::LinkLayer;
use bareverbs_vfio::pci::{self, Function, Kind, Link, Msix, Need, Obstacle, Sysfs};
use serde::{Serialize, Serializer};

use crate::cli::{DevicesArgs, FunctionChoice};
use crate::sudo_user::sudo_user;

/// A function in JSON.
#[derive(Debug, Serialize)]
struct Row {
    address: String,
    name: String,
    kind: Option<&'static str>,
    vendor: u16,
    device: u16,
    class: u32,
    /// What the class says; `None` if it is of another kind.
    port: Option<&'static str>,
    driver: Option<String>,
    driver_override: Option<String>,
    iommu_group: Option<GroupRow>,
    numa_node: Option<u32>,
    link: Option<LinkRow>,
    bar0_bytes: u64,
    /// 0 for none, `None` if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    msix_vectors: Option<u16>,
    resettable: bool,
    physical_function: Option<String>,
    virtual_functions: u16,
    interfaces: Vec<String>,
    rdma_devices: Vec<String>,
    vfio_device_file: Option<String>,
    usable: bool,
    obstacles: Vec<ObstacleRow>,
}

/// An IOMMU group.
#[derive(Debug, Serialize)]
struct GroupRow {
    number: u32,
    no_iommu: bool,
    others: Vec<MemberRow>,
}

/// A device in it.
#[derive(Debug, Serialize)]
struct MemberRow {
    name: String,
    driver: Option<String>,
    blocks: bool,
}

/// A PCIe link.
#[derive(Debug, Serialize)]
struct LinkRow {
    speed: String,
    width: u8,
    max_speed: String,
    max_width: u8,
}

/// An obstacle.
#[derive(Debug, Serialize)]
pub(crate) struct ObstacleRow {
    code: &'static str,
    text: String,
    remedy: Option<String>,
}

impl ObstacleRow {
    pub(crate) const fn new(code: &'static str, text: String, remedy: Option<String>) -> Self {
        Self { code, text, remedy }
    }
}

impl From<&Obstacle> for ObstacleRow {
    fn from(obstacle: &Obstacle) -> Self {
        Self::new(obstacle.code(), obstacle.to_string(), Some(obstacle.remedy()))
    }
}

impl fmt::Display for ObstacleRow {
    /// Writes the obstacle and its remedy as one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; remedy: {remedy}"))
    }
}

/// Functions of a machine with their obstacles. In JSON it is an array of functions, as text a table.
#[derive(Debug)]
pub struct Listing(Vec<(Function, Vec<Obstacle>)>);

impl Serialize for Listing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(function, obstacles)| row(function, obstacles)))
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&table(&self.0))
    }
}

/// Lists the functions of a machine.
///
/// # Errors
///
/// The functions cannot be read, or a requested one does not exist.
pub fn run(args: &DevicesArgs) -> Result<Listing> {
    find(&args.choice).map(Listing)
}

/// Returns the functions of a choice with their obstacles.
pub(crate) fn find(choice: &FunctionChoice) -> Result<Vec<(Function, Vec<Obstacle>)>> {
    let sysfs = Sysfs::at(&choice.place.root);
    let functions = if choice.addresses.is_empty() {
        pci::functions(&sysfs)?
    } else {
        let one = |address| pci::function(&sysfs, address).with_context(|| format!("there is no PCI function {address}"));
        choice.addresses.iter().map(|address| one(*address)).collect::<Result<_>>()?
    };
    let process = sudo_user(&choice.place.root);
    let need = Need { memlock: choice.memory, ..Need::default() };
    let with_obstacles = |function| {
        let obstacles = pci::obstacles(&sysfs, &function, &process, &need);
        (function, obstacles)
    };
    Ok(functions.into_iter().map(with_obstacles).collect())
}

fn row(function: &Function, obstacles: &[Obstacle]) -> Row {
    let kind = function.model.map(|model| match model.kind {
        Kind::Physical => "physical",
        Kind::Virtual => "virtual",
        Kind::Recovery => "recovery",
    });
    let group = function.group.as_ref().map(|group| GroupRow {
        number: group.number,
        no_iommu: group.no_iommu,
        others: group
            .others
            .iter()
            .map(|member| MemberRow { name: member.name.clone(), driver: member.driver.clone(), blocks: member.blocks() })
            .collect(),
    });
    Row {
        address: function.address.to_string(),
        name: function.name(),
        kind,
        vendor: function.vendor,
        device: function.device,
        class: function.class,
        port: function.link_layer().map(port),
        driver: function.driver.clone(),
        driver_override: function.driver_override.clone(),
        iommu_group: group,
        numa_node: function.numa_node,
        link: function.link.clone().map(|link| LinkRow {
            speed: link.speed,
            width: link.width,
            max_speed: link.max_speed,
            max_width: link.max_width,
        }),
        bar0_bytes: function.bar0,
        msix_vectors: match function.msix {
            Msix::Vectors(vectors) => Some(vectors),
            Msix::Absent => Some(0),
            Msix::Unknown => None,
        },
        resettable: function.resettable,
        physical_function: function.physical_function.map(|address| address.to_string()),
        virtual_functions: function.virtual_functions,
        interfaces: function.interfaces.clone(),
        rdma_devices: function.rdma_devices.clone(),
        vfio_device_file: function.device_file.as_ref().map(|path| path.display().to_string()),
        usable: obstacles.is_empty(),
        obstacles: obstacles.iter().map(Into::into).collect(),
    }
}

/// Printed of a function that can be used, and whose folder has no file `reset`.
const NO_RESET: &str =
    "the kernel cannot reset it: the card keeps the state of a killed process, and the next one finds it; end jobs by Ctrl-C";
/// Printed where there is nothing to list.
pub(crate) const NO_FUNCTION: &str = "no mlx5 function in this machine";

const HEADINGS: [&str; 8] = ["ADDRESS", "NAME", "PORT", "DRIVER", "GROUP", "NUMA", "LINK", "INTERFACES"];

fn table(found: &[(Function, Vec<Obstacle>)]) -> String {
    if found.is_empty() {
        return format!("{NO_FUNCTION}\n");
    }
    let rows: Vec<_> = found.iter().map(|(function, _)| cells(function)).collect();
    let mut widths = HEADINGS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |cells: [&str; 8]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    let mut text = line(HEADINGS);
    for (row, (function, obstacles)) in rows.iter().zip(found) {
        text += &line(row.each_ref().map(String::as_str));
        text += &below(function, obstacles);
    }
    text
}

/// Returns the lines below a function: its obstacles, each with its remedy.
pub(crate) fn below(function: &Function, obstacles: &[Obstacle]) -> String {
    let mut text = String::new();
    for obstacle in obstacles {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {obstacle}\n      remedy: {}", obstacle.remedy());
    }
    if obstacles.is_empty() {
        let _ = writeln!(text, "    ready: --device {}{}", function.address, function.link_layer().map_or("", said));
        if !function.resettable {
            let _ = writeln!(text, "    {NO_RESET}");
        }
    }
    text
}

/// Returns the name of a kind of port, as in `link_layer` of sysfs.
const fn port(layer: LinkLayer) -> &'static str {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
    }
}

/// Returns what is said of the port of a function that can be used. Other drivers of user space need one of the two.
const fn said(layer: LinkLayer) -> &'static str {
    match layer {
        LinkLayer::InfiniBand => " (InfiniBand port)",
        LinkLayer::Ethernet => " (Ethernet port, which is good: the driver has RoCEv2 and frames on it)",
    }
}

fn cells(function: &Function) -> [String; 8] {
    let dash = || "-".to_string();
    let names: Vec<_> = function.interfaces.iter().chain(&function.rdma_devices).cloned().collect();
    [
        function.address.to_string(),
        function.name(),
        function.link_layer().map_or_else(dash, |layer| port(layer).into()),
        function.driver.clone().unwrap_or_else(dash),
        function.group.as_ref().map_or_else(dash, |group| group.number.to_string()),
        function.numa_node.map_or_else(dash, |node| node.to_string()),
        function.link.as_ref().map_or_else(dash, link),
        if names.is_empty() { dash() } else { names.join(", ") },
    ]
}

fn link(link: &Link) -> String {
    let of = |speed: &str, width: u8| format!("{} x{width}", speed.trim_end_matches(" PCIe"));
    let now = of(&link.speed, link.width);
    if link.degraded() { format!("{now} (of {})", of(&link.max_speed, link.max_width)) } else { now }
}
