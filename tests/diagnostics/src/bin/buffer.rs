//! Memory is registered that is none of a device.
//~ error: `Vec<u8>` is no memory that a device may write
//~ note: slices and `Vec` are not: references to their bytes may exist while the device writes
use bareverbs::backend::Provider;
use bareverbs::{Access, PdHandle, Verbs};

fn register<P: Provider>(verbs: &mut Verbs<'_, P>, pd: PdHandle) {
    let _ = verbs.reg_mr(pd, vec![0_u8; 4096], Access::LOCAL_WRITE);
}

fn main() {}
