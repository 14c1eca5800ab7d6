//! Stub.
#![no_std]
#![no_main]
board::entry!(main);
fn main() -> Result<(), board::Failure> { Ok(()) }
