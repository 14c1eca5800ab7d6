//! Options of `bareverbs vm`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
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

/// Options of `vm`. The scripts of the guests get them as JSON.
#[derive(Clone, Debug, Args, Serialize)]
pub struct VmArgs {
    /// Command to run instead of a shell, with sh, in the first shared folder; its exit status is that of `bareverbs vm`
    #[arg(long, value_name = "COMMAND", help_heading = "Your software", value_parser = command)]
    pub run: Option<String>,
    /// Seconds after which the command is ended, with exit status 124
    #[arg(long, value_name = "SECONDS", requires = "run", help_heading = "Your software", value_parser = at_least_one())]
    pub timeout: Option<u32>,
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
    fn names_of_modules_are_those_of_the_kernel() {
        assert_eq!(module("vfio-pci").as_deref(), Ok("vfio_pci"));
        assert!(module("").is_err() && module("../x").is_err() && module("a b").is_err());
    }
}
