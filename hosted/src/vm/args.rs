//! Options of `bareverbs vm`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

/// Linux kernels of guests, with the user space of their Debian release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Kernel {
    /// Debian 13.
    #[default]
    #[value(name = "6.12")]
    #[serde(rename = "6.12")]
    Linux6_12,
    /// Debian 12.
    #[value(name = "6.1")]
    #[serde(rename = "6.1")]
    Linux6_1,
}

/// How a guest's processors run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// Hardware virtualisation.
    Kvm,
    /// Emulation, which works everywhere.
    Tcg,
}

/// Subcommands of `vm`.
#[derive(Clone, Debug, Subcommand)]
pub enum VmCommand {
    /// Another shell in a guest that runs with --name or --here, or a command in it; by ssh
    ///
    /// It begins in the folder in which this is called, if the guest has it (--share). A single word is a line for sh, several are a
    /// program and its arguments. Exit status: that of the command, 125 if there is no such guest, 255 if the guest went away.
    ///
    /// Example: bareverbs vm --name a --share . in one terminal; bareverbs vm shell a 'ibv_devinfo | grep state' in another.
    Shell(ShellArgs),
}

/// Options of `vm shell`. The scripts of the guests get them as JSON.
#[derive(Clone, Debug, Args, Serialize)]
pub struct ShellArgs {
    /// Name of the guest: that of --name, of two guests with -0 or -1 behind it
    #[arg(value_parser = name)]
    #[serde(rename = "shell")]
    pub name: String,
    /// Command instead of a shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

/// Options of `vm`. The scripts of the guests get them as JSON.
#[derive(Clone, Debug, Args, Serialize)]
#[command(args_conflicts_with_subcommands = true)]
pub struct VmArgs {
    /// What to do with a guest that runs already.
    #[command(subcommand)]
    #[serde(skip)]
    pub command: Option<VmCommand>,
    /// Command to run instead of a shell, with sh, in the first shared folder; its exit status is that of `bareverbs vm`
    #[arg(long, value_name = "COMMAND", help_heading = "Your software", value_parser = command)]
    pub run: Option<String>,
    /// Command to run on this machine while the guest is up, instead of a shell in it. What cargo builds there runs in the guest, in
    /// shared folders: --share . --here 'cargo test'. Its exit status is that of `bareverbs vm`
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["run", "guests"], help_heading = "Your software", value_parser = command)]
    pub here: Option<String>,
    /// Name by which `bareverbs vm shell NAME` opens further shells in the guest, or runs commands there
    #[arg(long, value_name = "NAME", help_heading = "Your software", value_parser = name)]
    pub name: Option<String>,
    /// Seconds after which the command is ended, with exit status 124
    #[arg(long, value_name = "SECONDS", requires = "run", help_heading = "Your software", value_parser = at_least_one())]
    pub timeout: Option<u32>,
    /// Seconds that a guest may take until it is ready for the command; an idle machine needs about 10
    #[arg(long, value_name = "SECONDS", default_value_t = 300, help_heading = "Your software", value_parser = at_least_one())]
    pub boot_timeout: u32,
    /// Folder that the guest sees, to read and write, at the same path or at PATH; may be repeated
    #[arg(long, value_name = "DIR[:PATH]", help_heading = "Your software")]
    pub share: Vec<String>,
    /// x86-64 program, script or shared library for the guest, with the libraries that it needs; may be repeated
    #[arg(long, value_name = "FILE", help_heading = "Your software")]
    pub program: Vec<PathBuf>,
    /// Debian packages for the guest, with what they depend on; may be repeated
    #[arg(long, value_name = "PACKAGE", value_delimiter = ',', help_heading = "Your software")]
    pub install: Vec<String>,
    /// Kernel module to load, besides those of mlx5; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Your software", value_parser = module)]
    pub module: Vec<String>,
    /// Linux in the guest, and the Debian release that it is of
    #[arg(long, value_enum, default_value_t, help_heading = "The machine")]
    pub kernel: Kernel,
    /// Guests on one wire. In each of two the command runs, with its number, 0 or 1, in the variable BAREVERBS_GUEST
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "The machine", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub guests: u8,
    /// Devices in each guest [default: 2, or 1 in each of two guests]
    #[arg(long, value_name = "N", help_heading = "The machine", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub devices: Option<u8>,
    /// Ethernet ports (RoCEv2) instead of InfiniBand
    #[arg(long, help_heading = "The machine")]
    pub ethernet: bool,
    /// Processors of each guest
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "The machine", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub cpus: u8,
    /// Memory of each guest in MiB [default: 1024, or as much as its files need]
    #[arg(long, value_name = "MIB", help_heading = "The machine", value_parser = at_least_one())]
    pub memory: Option<u32>,
    /// KVM or emulation [default: KVM where it can be used]
    #[arg(long, value_enum, help_heading = "The machine")]
    pub accel: Option<Accelerator>,
    /// A way out of the guest, by QEMU's user-mode network
    #[arg(long, help_heading = "The machine")]
    pub network: bool,
    /// An IOMMU, for VFIO
    #[arg(long, help_heading = "The machine")]
    pub iommu: bool,
    /// Options for the server of the devices, as of `bareverbs sim serve`
    #[arg(last = true, value_name = "OPTION")]
    pub serve: Vec<String>,
}

fn at_least_one() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=999_999_999)
}

fn command(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() { Err("the command is empty") } else { Ok(text.into()) }
}

/// Parses the name of a guest, which is that of a file too.
fn name(text: &str) -> Result<String, &'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.is_empty() || text.starts_with(['.', '-']) || !text.chars().all(allowed) {
        return Err("no name of a guest: letters, digits, -, _ and ., the first no - or .");
    }
    Ok(text.into())
}

/// Parses the name of a module as the kernel knows it.
fn module(text: &str) -> Result<String, &'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if text.is_empty() || !text.chars().all(allowed) {
        return Err("no name of a kernel module: letters, digits, - and _");
    }
    Ok(text.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_guests_are_names_of_files() {
        assert_eq!(name("a.b-1_c").as_deref(), Ok("a.b-1_c"));
        assert!(["", ".", "..", "-a", "a/b", "a b"].iter().all(|text| name(text).is_err()));
    }

    #[test]
    fn names_of_modules_are_those_of_the_kernel() {
        assert_eq!(module("vfio-pci").as_deref(), Ok("vfio_pci"));
        assert!(module("").is_err() && module("../x").is_err() && module("a b").is_err());
    }
}
