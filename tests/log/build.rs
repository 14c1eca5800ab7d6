//! Links the tests with defmt's linker script added to the linker's own. A frame names its string by the string's address, so
//! the program must not be moved when it is loaded.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("log.ld"), "INCLUDE defmt.x\nINSERT AFTER .comment;\n")?;
    println!("cargo::rustc-link-search={}", out.display());
    // LLVM's linker knows INSERT only right behind SECTIONS, and defmt.x goes on after that.
    for argument in ["-fuse-ld=bfd", "-no-pie", "-Tlog.ld"] {
        println!("cargo::rustc-link-arg-tests={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
