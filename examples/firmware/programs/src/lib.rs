//! What the programs share: the address of a queue pair as text, and the way of a queue pair to RTS.
#![no_std]

pub mod address;
pub mod connection;
pub mod pattern;
