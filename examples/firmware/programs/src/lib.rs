//! What the programs share.
#![no_std]
