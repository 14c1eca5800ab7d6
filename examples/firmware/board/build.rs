//! Puts the linker scripts of the machine where the linker of a program finds them: `board.ld`, and `log.ld` for the log.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn scripts(folder: &Path, out: &Path) -> io::Result<()> {
    let memory = fs::read_to_string(folder.join("memory.ld"))?;
    fs::write(out.join("board.ld"), memory + &fs::read_to_string("src/sections.ld")?)?;
    let log = folder.join("log.ld");
    // Most machines have no need of their own.
    let log = if log.exists() { fs::read_to_string(log)? } else { "INCLUDE defmt.x\n".into() };
    fs::write(out.join("log.ld"), log)
}

fn main() {
    let folder = PathBuf::from("src").join(env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    if let Err(error) = scripts(&folder, &out) {
        println!("cargo::error={}: {error}", folder.display());
    }
    println!("cargo::rustc-link-search={}", out.display());
    println!("cargo::rerun-if-changed={}", folder.display());
    println!("cargo::rerun-if-changed=src/sections.ld");
}
