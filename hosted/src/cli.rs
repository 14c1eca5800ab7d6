//! The command line.

use std::path::{Path, PathBuf};

use bareverbs::Mtu;
use bareverbs_serve::parse_number;
use bareverbs_sim::wire::Probability;
use bareverbs_vfio::pci::Address;
use clap::{Args, Parser, Subcommand};

use crate::args::{JsonArgs, TraceArgs, mtu, per_cent};
use crate::decode::transport::TransportArg;
use crate::device::LOCKED_MEMORY;
use crate::device::selection::DeviceChoice;
use crate::device::simulation_args::SimulationArgs;
use crate::perf::args::PerfArgs;
use crate::pingpong::args::PingpongArgs;
use crate::rping::args::RpingArgs;
use crate::serve::args::SimCommand;
use crate::ucmatose::args::UcmatoseArgs;
use crate::udaddy::args::UdaddyArgs;
use crate::vm::args::VmArgs;

/// RDMA verbs, an mlx5 driver and a simulated ConnectX, in one process.
///
/// Without a subcommand it runs the self-test. That brings up two devices, simulated or behind VFIO, and moves data through a
/// memory window with every verb. It compares every byte and prints a table.
///
/// Exit status: 0 after success, 1 after a failure (also if decoded bytes are invalid), 2 after a mistake on the command line
/// or unreadable input, 130 after Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "bareverbs", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// The subcommand; without one, the self-test runs.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of the self-test.
    #[command(flatten)]
    pub selftest: SelftestArgs,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Brings one device up and shows its attributes, as `ibv_devinfo -v` does
    Info(InfoArgs),
    /// Lists the mlx5 functions of this machine, the obstacles to using them through VFIO, and the remedies
    Devices(DevicesArgs),
    /// Examines everything that a card needs, one line for each obstacle with its remedy. Functions without an obstacle are
    /// brought up, and their ports are waited for. The exit status is 0 if all can be used
    Doctor(DevicesArgs),
    /// Binds functions to vfio-pci (needs root)
    Bind(BindArgs),
    /// Binds functions to their former drivers again (needs root)
    Unbind(UnbindArgs),
    /// Measures bandwidth and latency of RDMA write, read, send and atomics, as perftest does
    Perf(Box<PerfArgs>),
    /// Is either end of rdma-core's `ibv_{rc,uc,ud,srq,xsrq}_pingpong`, or both ends here
    Pingpong(Box<PingpongArgs>),
    /// Connects to rping of rdma-core by communication management (rdma_cm), and moves data by RDMA reads and writes
    Rping(Box<RpingArgs>),
    /// Is either end of rdma-core's `ucmatose`, or both ends here: reliable connections by communication management (rdma_cm)
    Ucmatose(Box<UcmatoseArgs>),
    /// Is either end of rdma-core's `udaddy`, or both ends here: datagrams to queue pairs that communication management resolves
    Udaddy(Box<UdaddyArgs>),
    /// Simulated devices for virtual machines
    #[command(subcommand)]
    Sim(SimCommand),
    /// Boots a Debian guest with simulated devices, and gives a shell in it, runs a command there, or runs one here meanwhile
    ///
    /// The guest is x86-64, the shell and the command run as root. Packages are downloaded the first time, 210 MB, into the
    /// folder that the variable BAREVERBS_LINUX_CACHE names [default: ~/.cache/bareverbs/vm/packages]. Nothing is installed.
    ///
    /// Examples: bareverbs vm --share . --run ./my-test; bareverbs vm --share . --here 'cargo test'; bareverbs vm --install ucx-utils
    /// --run 'ucx_info -d'; bareverbs vm -- --managed
    ///
    /// Exit status with --run and --here: that of the command (128 + N if signal N killed it), 124 after --timeout, 125 if the guest or an
    /// option was wrong, 130 after Ctrl-C.
    Vm(Box<VmArgs>),
    /// Send and receive work queue elements
    #[command(subcommand)]
    Wqe(WqeCommand),
    /// Completion queue entries
    #[command(subcommand)]
    Cqe(EntryCommand),
    /// Event queue entries
    #[command(subcommand)]
    Eqe(EntryCommand),
    /// Firmware commands
    #[command(subcommand)]
    Command(CommandCommand),
    /// Prints the completion script of a shell. Example: bareverbs completions bash
    /// > ~/.local/share/bash-completion/completions/bareverbs
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Prints the manual page of this command, for man -l
    Man {
        /// Writes this page and those of the subcommands into a folder instead
        #[arg(long, value_name = "FOLDER")]
        into: Option<PathBuf>,
    },
}

/// Subcommands of `wqe`.
#[derive(Debug, Subcommand)]
pub enum WqeCommand {
    /// Shows the named fields of each segment, and errors of the WQE
    Decode(WqeArgs),
}

/// Subcommands of `cqe` and `eqe`.
#[derive(Debug, Subcommand)]
pub enum EntryCommand {
    /// Shows the named fields, and errors of the entry
    Decode(InputArgs),
}

/// Subcommands of `command`.
#[derive(Debug, Subcommand)]
pub enum CommandCommand {
    /// Shows the named fields of a command's input or output
    Decode(CommandArgs),
    /// Prints the commands of a recording or a kernel log as a table: name, opcode, op_mod, input, output
    Export(ExportArgs),
}

/// Bytes to decode.
#[derive(Debug, Args)]
pub struct InputArgs {
    /// Hexadecimal digits, in any grouping; `-` reads standard input
    #[arg(required_unless_present = "file", num_args = 1..)]
    pub hex: Vec<String>,
    /// A file with hexadecimal text, also of xxd, hexdump -C, dmesg and libmlx5. A file that is not text holds the bytes
    #[arg(long, short, value_name = "FILE", conflicts_with = "hex")]
    pub file: Option<PathBuf>,
    /// The file or standard input is binary, even if it looks like text
    #[arg(long)]
    pub raw: bool,
    /// Format of the result.
    #[command(flatten)]
    pub output: JsonArgs,
}

/// Options of `wqe decode`.
#[derive(Debug, Args)]
pub struct WqeArgs {
    /// Where the bytes are.
    #[command(flatten)]
    pub input: InputArgs,
    /// Transport service of the queue pair, which determines the segments after the control segment
    #[arg(long, value_enum, default_value_t)]
    pub transport: TransportArg,
    /// A WQE of a receive queue: the bytes are one stride
    #[arg(long, conflicts_with = "transport")]
    pub receive: bool,
    /// A WQE of a shared receive queue
    #[arg(long, conflicts_with_all = ["transport", "receive"])]
    pub shared: bool,
}

/// Options of `command decode`.
#[derive(Debug, Args)]
pub struct CommandArgs {
    /// Where the bytes are.
    #[command(flatten)]
    pub input: InputArgs,
    /// The bytes are the output of this command (name or number)
    #[arg(long, value_name = "OPCODE")]
    pub output_of: Option<String>,
    /// op_mod of that command, which selects the capability page of an output
    #[arg(long, default_value_t = 0, requires = "output_of")]
    pub op_mod: u16,
}

/// Options of `command export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Recording that `sim serve --record` wrote, or kernel log with the debug messages of mlx5_core
    pub recording: PathBuf,
    /// Device whose commands are printed: its name in the recording, its PCI address in the log [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
}

/// Options of `info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// Device: `simulated`, or the PCI address of a card behind VFIO
    #[arg(long, value_name = "DEVICE", default_value_t)]
    pub device: DeviceChoice,
    /// Format of the result.
    #[command(flatten)]
    pub output: JsonArgs,
    /// What a simulated device is like.
    #[command(flatten)]
    pub simulation: SimulationArgs,
    /// Trace options, for a simulated device.
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// Options of `devices` and `doctor`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// The functions.
    #[command(flatten)]
    pub choice: FunctionChoice,
    /// Format of the result.
    #[command(flatten)]
    pub output: JsonArgs,
}

/// Functions to examine.
#[derive(Debug, Args)]
pub struct FunctionChoice {
    /// PCI addresses of the functions, mlx5 or not [default: all mlx5 functions]
    pub addresses: Vec<Address>,
    /// Bytes that the program will lock for DMA, to be compared with the limit of this shell
    #[arg(long, value_name = "BYTES", default_value_t = LOCKED_MEMORY, value_parser = parse_number::<u64>)]
    pub memory: u64,
    /// The machine.
    #[command(flatten)]
    pub place: PlaceArgs,
}

impl FunctionChoice {
    /// Returns whether the functions are those of this machine, and not of a copy of its files.
    pub fn is_this_machine(&self) -> bool {
        self.place.root == Path::new("/")
    }
}

/// Options of `bind`.
#[derive(Debug, Args)]
pub struct BindArgs {
    /// Binds functions even if they are in use (interface up, with addresses or routes, a port of a bridge, bond or Open vSwitch, RDMA device open, disks or
    /// queue pairs of the kernel, virtual functions), and the function of a BlueField's own processor, for other programs
    #[arg(long)]
    pub force: bool,
    /// Bytes that the program will lock for DMA, to be compared with the limit of this shell
    #[arg(long, value_name = "BYTES", default_value_t = LOCKED_MEMORY, value_parser = parse_number::<u64>)]
    pub memory: u64,
    /// The functions and how to change them.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Options of `unbind`.
#[derive(Debug, Args)]
pub struct UnbindArgs {
    /// Gives a function back that has virtual functions, which the kernel then removes
    #[arg(long)]
    pub force: bool,
    /// The functions and how to change them.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Options that `bind` and `unbind` share.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// PCI addresses of the functions: all of them are changed or, after a failure, none
    #[arg(required = true, value_name = "ADDRESS")]
    pub addresses: Vec<Address>,
    /// Also changes the other members of their IOMMU groups
    #[arg(long)]
    pub group: bool,
    /// Prints the steps as shell commands and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Maximum time in seconds for each step of the kernel
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub wait: u64,
    /// Format of the result.
    #[command(flatten)]
    pub output: JsonArgs,
    /// The machine.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// The machine to inspect or change.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Folder with `sys`, `dev`, `proc` and `run` of a machine: a copy of another one, or that of a test
    #[arg(long, value_name = "FOLDER", default_value = "/", hide = true)]
    pub root: PathBuf,
}

/// Options of the self-test.
#[derive(Clone, Debug, Args)]
pub struct SelftestArgs {
    /// Device: `simulated`, or the PCI address of a card behind VFIO. With one, both ends use it and its port loops back. With
    /// two, each end has one. Default: two simulated devices
    #[arg(long, value_name = "DEVICE")]
    pub device: Vec<DeviceChoice>,
    /// Messages of each operation and iteration
    #[arg(long, visible_alias = "iters", short = 'n', default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub messages: u32,
    /// Bytes of a message, for example 16384 or 16k
    #[arg(long, short, default_value_t = 16384, value_parser = message_size)]
    pub size: u32,
    /// Repetitions of all operations
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Path MTU in bytes; that of the ports if it is less
    #[arg(long, default_value = "4096", value_parser = mtu)]
    pub mtu: Mtu,
    /// Simulated devices: packets lost on the wire, in per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub loss: Probability,
    /// Simulated devices: packets duplicated on the wire, in per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub duplicate: Probability,
    /// Simulated devices: packets reordered on the wire, in per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub reorder: Probability,
    /// Simulated devices: packets delayed on the wire, in per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub delay: Probability,
    /// Seed of the data, and of the faults of a simulated wire
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Simulated devices: request no firmware pages
    #[arg(long)]
    pub no_firmware_pages: bool,
    /// Format of the result.
    #[command(flatten)]
    pub output: JsonArgs,
    /// Prints nothing but errors
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
    /// What simulated devices are like.
    #[command(flatten)]
    pub simulation: SimulationArgs,
    /// Trace options, for simulated devices.
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// Parses the message size of the self-test in bytes.
fn message_size(text: &str) -> Result<u32, String> {
    let size = parse_number(text)?;
    if (1..=1 << 20).contains(&size) { Ok(size) } else { Err("not between 1 and 1M".into()) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_book_lists_each_subcommand() {
        let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/getting-started.md");
        let book = std::fs::read_to_string(book).unwrap();
        let names: String =
            book.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1)).collect();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let below: Vec<_> = command.get_subcommands().map(|below| format!("`{name} {}`", below.get_name())).collect();
            for wanted in if below.is_empty() { vec![format!("`{name}`")] } else { below } {
                assert!(names.contains(&wanted), "{wanted} is not in the table of getting-started.md");
            }
        }
    }
}
