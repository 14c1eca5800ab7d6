//! A panic.
#![no_std]
#![no_main]

use board::Failure;

board::entry!(main);

fn main() -> Result<(), Failure> {
    #[expect(clippy::panic, reason = "what is tested")]
    {
        panic!("on purpose")
    }
}
