//! Options of `bareverbs sim serve`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::TraceArgs;

/// Subcommands of `sim`.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Serves simulated devices to virtual machines over vfio-user sockets until Ctrl-C
    Serve(ServeArgs),
}

/// Options of `sim serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Socket of a device; once for each device, all joined by one wire
    #[arg(long = "socket", short, value_name = "PATH", required = true)]
    pub sockets: Vec<PathBuf>,
    /// Joins the wire to that of another process that is given the same path (and other LIDs)
    #[arg(long, value_name = "PATH")]
    pub link: Option<PathBuf>,
    /// Local identifier of the first device; the others count up from it
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..0xbf00))]
    pub lid: u16,
    /// PCI device id
    #[arg(long, default_value = "0x1021", value_name = "ID", value_parser = id16)]
    pub device_id: u16,
    /// Node GUID of the first device; the others count up from it by 0x100. The port's GUID is one more
    #[arg(long, value_name = "GUID", value_parser = id64)]
    pub node_guid: Option<u64>,
    /// MSI-X vectors of each device
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub vectors: u16,
    /// Greatest MTU of the port in bytes
    #[arg(long, default_value = "4096", value_parser = ["256", "512", "1024", "2048", "4096"])]
    pub mtu: String,
    /// The devices ask for no firmware pages
    #[arg(long)]
    pub no_firmware_pages: bool,
    /// The devices offer no BlueFlame
    #[arg(long)]
    pub no_blueflame: bool,
    /// The devices offer no atomics
    #[arg(long)]
    pub no_atomics: bool,
    /// Requests may not change the size of keys (UMR): Linux keeps no stock of them
    #[arg(long)]
    pub no_umr: bool,
    /// Programs get no contexts of their own (DEVX)
    #[arg(long)]
    pub no_devx: bool,
    /// Packets that the wire loses, per cent
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = crate::cli::per_cent)]
    pub loss: f64,
    /// Packets that the wire delivers twice, per cent
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = crate::cli::per_cent)]
    pub duplicate: f64,
    /// Packets that the wire lets others overtake, per cent
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = crate::cli::per_cent)]
    pub reorder: f64,
    /// Seed of the wire's faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Takes commands from standard input, one a line: link, health, freeze, remove, stick, refuse, counts, mark …
    #[arg(long)]
    pub control: bool,
    /// Writes every firmware command, doorbell, WQE, CQE and EQE byte for byte into a file, to be replayed and compared
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// What is told of the devices' doings.
    #[command(flatten)]
    pub trace: TraceArgs,
}

fn number(text: &str) -> Result<u64, String> {
    let digits = text.replace([':', '_'], "");
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    }
    .map_err(|error| error.to_string())
}

fn id16(text: &str) -> Result<u16, String> {
    number(text)?.try_into().map_err(|_| "more than 16 bits".into())
}

fn id64(text: &str) -> Result<u64, String> {
    number(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_either_base() {
        assert_eq!(id16("0x1021"), Ok(0x1021));
        assert_eq!(id16("4129"), Ok(4129));
        assert!(id16("0x10000").is_err());
        assert_eq!(id64("0x0200:0000:0000:0100"), Ok(0x0200_0000_0000_0100));
        assert!(id64("x").is_err());
    }
}
