//! Options of `bareverbs sim serve`.

use std::path::PathBuf;

use bareverbs_serve::{ControlLine, parse_number};
use bareverbs_sim::wire::Probability;
use clap::{Args, Subcommand};

use super::option_values::{self, LimitTo, Speed, Width};
use crate::args::{TraceArgs, per_cent};

/// Subcommands of `sim`.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Serves simulated devices to virtual machines over vfio-user sockets until Ctrl-C
    ///
    /// Example: bareverbs sim serve --socket /tmp/cx0 --socket /tmp/cx1. It prints the option of QEMU for each of them; the guest's
    /// memory must be shared (-object memory-backend-memfd,share=on).
    ///
    /// What is said of one device holds for all; LIDs and GUIDs are those of the first device, the others count up.
    Serve(Box<ServeArgs>),
}

/// Options of `sim serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Socket of a device; once for each device, all joined by one wire
    #[arg(long = "socket", short, value_name = "PATH", required = true)]
    pub sockets: Vec<PathBuf>,
    /// Who may connect to the sockets, in octal as for chmod: 660 for the owner and the group [what the umask leaves]
    #[arg(long, value_name = "MODE", value_parser = option_values::mode)]
    pub socket_mode: Option<u32>,
    /// Joins the wire to that of another process that is given the same path (and other LIDs)
    #[arg(long, value_name = "PATH", conflicts_with = "managed")]
    pub link: Option<PathBuf>,
    /// Identity.
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// Port.
    #[command(flatten)]
    pub port: PortArgs,
    /// What the device offers.
    #[command(flatten)]
    pub offer: OfferArgs,
    /// Faults.
    #[command(flatten)]
    pub trouble: TroubleArgs,
    /// Writes every firmware command, doorbell, WQE, CQE and EQE byte for byte into a file, to be replayed and compared. None is
    /// left out: a device that does more than the file takes waits for it
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub record: Option<PathBuf>,
    /// Where a trace of the devices goes.
    #[command(flatten, next_help_heading = "Output")]
    pub trace: TraceArgs,
}

/// Who the devices are.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Identity")]
pub struct IdentityArgs {
    /// PCI device id
    #[arg(long, default_value = "0x1021", value_name = "ID", value_parser = parse_number::<u16>)]
    pub device_id: u16,
    /// Local identifier of the port
    #[arg(long, default_value_t = 1, value_parser = option_values::lid)]
    pub lid: u16,
    /// GUID of the node, 0002:c900:0000:0100 or 0x0002c90000000100; each device has one 0x100 above the one before [made from
    /// the LID]
    #[arg(long, value_name = "GUID", value_parser = option_values::guid)]
    pub node_guid: Option<u64>,
    /// GUID of the port, counted up likewise [the node's and 1]
    #[arg(long, value_name = "GUID", value_parser = option_values::guid)]
    pub port_guid: Option<u64>,
    /// GUID of the system image, the same for all devices [each the node's]
    #[arg(long, value_name = "GUID", value_parser = option_values::guid)]
    pub system_guid: Option<u64>,
}

/// What the port is.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Port")]
pub struct PortArgs {
    /// Lanes of the link
    #[arg(long, value_enum, default_value = "4x")]
    pub width: Width,
    /// Speed of a lane; it is shown, not kept: frames pass as fast as they can
    #[arg(long, value_enum, default_value = "hdr")]
    pub speed: Speed,
    /// Greatest MTU in bytes
    #[arg(long, default_value = "4096", value_parser = ["256", "512", "1024", "2048", "4096"])]
    pub mtu: String,
    /// Local identifier of the subnet manager
    #[arg(long, default_value_t = 1, value_name = "LID", value_parser = option_values::sm_lid)]
    pub sm_lid: u16,
    /// Prefix of the port's GIDs
    #[arg(long, default_value = "fe80:0000:0000:0000", value_name = "PREFIX", value_parser = option_values::guid)]
    pub gid_prefix: u64,
    /// The ports have no local identifiers and wait for a subnet manager (opensm in a guest, say); --lid still names them here.
    /// Without this no guest can change another's port
    #[arg(long)]
    pub managed: bool,
    /// M_Key that managed ports have from the start: no guest without it configures them. The subnet manager needs the same one
    /// (m_key and m_key_protection_level 2 of opensm)
    #[arg(long, value_name = "KEY", default_value = "0", requires = "managed", value_parser = parse_number::<u64>)]
    pub m_key: u64,
    /// The cables are out at the start; --control puts them in
    #[arg(long)]
    pub link_down: bool,
}

/// What the devices offer.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device")]
pub struct OfferArgs {
    /// MSI-X vectors
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub vectors: u16,
    /// Most objects of a kind or the greatest size, a power of two; may be given several times. NAME is qps, qp-size, srqs,
    /// srq-size, cqs, cq-size, eqs, eq-size, mkeys (to be reached with --no-umr, or Linux keeps
    /// most of them in stock), pds, message (bytes) or reads (in flight on a queue pair)
    #[arg(long = "limit", value_name = "NAME=NUMBER", value_parser = option_values::limit)]
    pub limits: Vec<LimitTo>,
    /// Memory of this process that all devices together may take, in bytes, k, M or G; a guest that wants more is
    /// refused [1G for each device]. Guests' memory is not part of it
    #[arg(long, value_name = "SIZE", value_parser = parse_number::<u64>)]
    pub memory_limit: Option<u64>,
    /// Most memory that the client of each device may offer, counted as the sizes of its files (the guest's RAM, and what else
    /// QEMU shares), in bytes, k, M or G. Linux charges a page to the memory cgroup that touches it first: what a device
    /// touches before its guest did is charged to this server's, until the client closes the file. A cgroup with a limit needs
    /// room for so much for each device, or guests whose memory is touched at the start (prealloc=on of QEMU)
    #[arg(long, value_name = "SIZE", default_value = "4096G", value_parser = parse_number::<u64>)]
    pub guest_memory: u64,
    /// No firmware pages are asked for
    #[arg(long)]
    pub no_firmware_pages: bool,
    /// No BlueFlame
    #[arg(long)]
    pub no_blueflame: bool,
    /// No atomics
    #[arg(long)]
    pub no_atomics: bool,
    /// Requests may not change the size of keys (UMR): Linux keeps no stock of them
    #[arg(long)]
    pub no_umr: bool,
    /// Programs get no contexts of their own (DEVX)
    #[arg(long)]
    pub no_devx: bool,
}

/// Faults.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Faults")]
pub struct TroubleArgs {
    /// Packets that the wire loses, per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub loss: Probability,
    /// Packets that the wire delivers twice, per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub duplicate: Probability,
    /// Packets that the wire lets others overtake, per cent
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = per_cent)]
    pub reorder: Probability,
    /// Seed of the wire's faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A fault from the start, a line as --control takes it: 'stick 1 0x800'; may be given several times
    #[arg(long = "fault", value_name = "LINE", value_parser = option_values::fault)]
    pub faults: Vec<ControlLine>,
    /// Takes commands, one a line, from standard input or, with a path, from clients of a socket there; 'help' names
    /// them
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true)]
    pub control: Option<Option<PathBuf>>,
}
