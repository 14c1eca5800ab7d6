//! Puts the linker scripts of the machine where the linker of a program finds them: `board.ld`, and `log.ld` for the log.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The machines: processor, feature that chooses it among those of the processor, file in `src/machine`.
const MACHINES: [(&str, Option<&str>, &str); 4] = [
    ("x86_64", Some("MICROVM"), "microvm"),
    ("x86_64", None, "q35"),
    ("aarch64", None, "virt_aarch64"),
    ("riscv64", None, "virt_riscv64"),
];

fn scripts(folder: &Path, machine: &Path, out: &Path) -> io::Result<()> {
    let memory = fs::read_to_string(machine)?;
    fs::write(out.join("board.ld"), memory + &fs::read_to_string("src/sections.ld")?)?;
    let log = folder.join("log.ld");
    // Most processors have no need of their own.
    let log = if log.exists() { fs::read_to_string(log)? } else { "INCLUDE defmt.x\n".into() };
    fs::write(out.join("log.ld"), log)
}

fn main() {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let chosen = |feature: Option<&str>| feature.is_none_or(|name| env::var_os(format!("CARGO_FEATURE_{name}")).is_some());
    let machine = MACHINES.iter().find(|(name, feature, _)| *name == arch && chosen(*feature));
    let machine = machine.map_or("none", |(_, _, machine)| machine);
    let machine = PathBuf::from("src/machine").join(machine).with_extension("ld");
    let folder = PathBuf::from("src/arch").join(arch);
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    if let Err(error) = scripts(&folder, &machine, &out) {
        println!("cargo::error={}: {error}", machine.display());
    }
    println!("cargo::rustc-link-search={}", out.display());
    println!("cargo::rerun-if-changed={}", folder.display());
    println!("cargo::rerun-if-changed={}", machine.display());
    println!("cargo::rerun-if-changed=src/sections.ld");
}
