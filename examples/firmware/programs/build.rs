//! Links the programs by the linker script of the board, and by defmt's if there is a log.

use std::env;

fn main() {
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none") {
        println!("cargo::rustc-link-arg-bins=-Tboard.ld");
        if env::var_os("CARGO_FEATURE_DEFMT").is_some() {
            println!("cargo::rustc-link-arg-bins=-Tdefmt.x");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
}
