//! The command line.

use std::path::PathBuf;

use bareverbs::Mtu;
use bareverbs_serve::parse_number;
use bareverbs_sim::wire::Probability;
use bareverbs_vfio::pci::Address;
use clap::{Args, Parser, Subcommand};

use crate::args::{TraceArgs, mtu, per_cent};
use crate::decode::transport::TransportArg;
use crate::device::LOCKED_MEMORY;
use crate::device::faults::FaultArgs;
use crate::device::selection::DeviceChoice;
use crate::perf::args::PerfArgs;
use crate::pingpong::args::PingpongArgs;
use crate::serve::args::SimCommand;

/// RDMA verbs, an mlx5 driver and a simulated ConnectX, in one process.
///
/// Without a subcommand: brings two devices up (simulated and joined by a wire, or behind VFIO), moves data through a memory
/// window with every verb, checks every byte, and prints a table.
///
/// Exit status: 0 if all went well, 1 after a failure of data, verb or device (or if decoded bytes are wrong, or the machine
/// refuses something), 2 after a mistake on the command line or unreadable input, 130 after Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "bareverbs", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do instead of the self-test.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of the self-test.
    #[command(flatten)]
    pub selftest: SelftestArgs,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Brings one device up and shows what it has, as `ibv_devinfo -v` does
    Info(InfoArgs),
    /// Lists the mlx5 functions of this machine, what keeps each from being used over VFIO, and the remedy
    Devices(DevicesArgs),
    /// Takes functions from their drivers and hands them to VFIO (needs root)
    Bind(BindArgs),
    /// Gives functions back to the drivers that had them (needs root)
    Unbind(UnbindArgs),
    /// Measures bandwidth and latency of RDMA write, read, send and atomics, as perftest does
    Perf(Box<PerfArgs>),
    /// Sends messages to and fro with ibv_rc_pingpong or ibv_uc_pingpong on another machine, with itself there, or alone
    Pingpong(Box<PingpongArgs>),
    /// The simulated device for others
    #[command(subcommand)]
    Sim(SimCommand),
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
    /// Prints what a shell needs to complete this command, for bash: bareverbs completions bash
    /// > ~/.local/share/bash-completion/completions/bareverbs
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Prints the manual page of this command, for man -l
    Man {
        /// Writes it and the page of each subcommand into this folder instead
        #[arg(long, value_name = "FOLDER")]
        into: Option<PathBuf>,
    },
}

/// Subcommands of `wqe`.
#[derive(Debug, Subcommand)]
pub enum WqeCommand {
    /// Shows the named fields of each segment, and what is wrong with the element
    Decode(WqeArgs),
}

/// Subcommands of `cqe` and `eqe`.
#[derive(Debug, Subcommand)]
pub enum EntryCommand {
    /// Shows the named fields, and what is wrong with the entry
    Decode(InputArgs),
}

/// Subcommands of `command`.
#[derive(Debug, Subcommand)]
pub enum CommandCommand {
    /// Shows the named fields of a command's input or output
    Decode(CommandArgs),
}

/// Bytes to decode.
#[derive(Debug, Args)]
pub struct InputArgs {
    /// Hexadecimal digits, in any grouping; `-` reads standard input
    #[arg(required_unless_present = "file", num_args = 1..)]
    pub hex: Vec<String>,
    /// A file with hexadecimal text (also of xxd, hexdump -C, dmesg and libmlx5) or, if it is not text, with the bytes
    #[arg(long, short, value_name = "FILE", conflicts_with = "hex")]
    pub file: Option<PathBuf>,
    /// The file or standard input holds the bytes as they are, even if they look like text
    #[arg(long)]
    pub raw: bool,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `wqe decode`.
#[derive(Debug, Args)]
pub struct WqeArgs {
    /// Where the bytes are.
    #[command(flatten)]
    pub input: InputArgs,
    /// Transport of the queue pair: says which segments follow the control segment
    #[arg(long, value_enum, default_value_t)]
    pub transport: TransportArg,
    /// A receive WQE: the bytes are one whole stride
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
    /// op_mod of that command: says which capability page an output holds
    #[arg(long, default_value_t = 0, requires = "output_of")]
    pub op_mod: u16,
}

/// Options of `info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// The device: `simulated`, or the PCI address of one behind VFIO
    #[arg(long, value_name = "DEVICE", default_value_t)]
    pub device: DeviceChoice,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    /// Faults of a simulated device.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// Trace options, for a simulated device.
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// Options of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Shows these functions alone, whatever they are (all mlx5 functions)
    pub addresses: Vec<Address>,
    /// Bytes of memory that the program is going to lock for DMA: the limit of this shell is compared with it
    #[arg(long, value_name = "BYTES", default_value_t = LOCKED_MEMORY, value_parser = parse_number::<u64>)]
    pub memory: u64,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    /// Where to look.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Options of `bind`.
#[derive(Debug, Args)]
pub struct BindArgs {
    /// Takes them even if the machine uses them: interface up, default route, RDMA device open, virtual functions
    #[arg(long)]
    pub force: bool,
    /// Bytes of memory that the program is going to lock for DMA: the limit of this shell is compared with it
    #[arg(long, value_name = "BYTES", default_value_t = LOCKED_MEMORY, value_parser = parse_number::<u64>)]
    pub memory: u64,
    /// What is changed, and how.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Options of `unbind`.
#[derive(Debug, Args)]
pub struct UnbindArgs {
    /// What is changed, and how.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Options that `bind` and `unbind` share.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// The functions: all of them are changed or, after a failure, none
    #[arg(required = true, value_name = "ADDRESS")]
    pub addresses: Vec<Address>,
    /// The other members of their IOMMU groups too
    #[arg(long)]
    pub group: bool,
    /// Prints what would be done, as commands of a shell, and does nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Seconds that the kernel may take for each step
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub wait: u64,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    /// Where to look.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Which machine is meant.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// A folder with `sys`, `dev`, `proc` and `run` to use instead of this machine's: a copy of another machine's, or a test's
    #[arg(long, value_name = "FOLDER", default_value = "/", hide = true)]
    pub root: PathBuf,
}

/// Options of the self-test.
#[derive(Clone, Debug, Args)]
pub struct SelftestArgs {
    /// A device: `simulated`, or the PCI address of one behind VFIO. Once: both sides on it, looped back through its own
    /// LID. Twice: one side on each. Without: two simulated devices
    #[arg(long, value_name = "DEVICE")]
    pub device: Vec<DeviceChoice>,
    /// Messages of each kind and iteration
    #[arg(long, short = 'n', default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub messages: u32,
    /// Bytes of a message, 16384 or 16k
    #[arg(long, short, default_value_t = 16384, value_parser = message_size)]
    pub size: u32,
    /// How often all kinds are run
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Path MTU in bytes
    #[arg(long, default_value = "4096", value_parser = mtu)]
    pub mtu: Mtu,
    /// Simulated devices: packets that the wire loses, per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub loss: Probability,
    /// Simulated devices: packets that the wire delivers twice, per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub duplicate: Probability,
    /// Simulated devices: packets that the wire lets others overtake, per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub reorder: Probability,
    /// Simulated devices: packets that the wire delays, per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub delay: Probability,
    /// Seed of the data, and of a simulated wire's faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Simulated devices: they ask for no firmware pages
    #[arg(long)]
    pub no_firmware_pages: bool,
    /// Prints one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Prints nothing but errors
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
    /// Faults of simulated devices.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// Trace options, for simulated devices.
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// Parses the message size of the self-test.
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
}
