//! Links the programs by the linker scripts of the board.

use std::env;

fn main() {
    println!("cargo::rustc-link-arg-bins=-Tboard.ld");
    // Some targets link position-independent programs, which need a loader that relocates them.
    println!("cargo::rustc-link-arg-bins=--no-pie");
    if env::var_os("CARGO_FEATURE_DEFMT").is_some() {
        println!("cargo::rustc-link-arg-bins=-Tlog.ld");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
