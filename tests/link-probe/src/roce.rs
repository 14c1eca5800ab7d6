//! What a program on an Ethernet port adds, each as a function that a linker can see.

use bareverbs::GidEntry;

use crate::machine::ProbeVerbs;
use crate::sender::code;

/// Sets a GID, or empties its entry.
#[unsafe(no_mangle)]
pub extern "C" fn probe_set_gid(verbs: &mut ProbeVerbs, index: u16, entry: Option<&GidEntry>) -> i32 {
    let done = match entry {
        Some(entry) => verbs.set_gid(1, index, entry),
        None => verbs.delete_gid(1, index),
    };
    code(done.map_err(|error| error.errno()))
}
