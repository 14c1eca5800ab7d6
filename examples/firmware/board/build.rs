//! Puts the linker script of the machine where the linker of a program finds it, as `board.ld`.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let script = PathBuf::from("src").join(&arch).join("memory.ld");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    // A host (documentation, an editor) has no script, and needs none.
    if let Ok(memory) = fs::read_to_string(&script) {
        let sections = fs::read_to_string("src/sections.ld").unwrap_or_default();
        if let Err(error) = fs::write(out.join("board.ld"), memory + &sections) {
            println!("cargo::error=board.ld: {error}");
        }
        println!("cargo::rustc-link-search={}", out.display());
    }
    println!("cargo::rerun-if-changed={}", script.display());
    println!("cargo::rerun-if-changed=src/sections.ld");
}
