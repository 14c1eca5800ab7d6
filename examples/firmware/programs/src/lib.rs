//! What the programs share: the address of a queue pair as text, a connection, bytes to check.
#![no_std]

pub mod address;
pub mod connection;
pub mod pattern;
