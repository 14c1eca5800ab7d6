//! Serial lines: each has `start`, `put` and `get`.

#[cfg(target_arch = "x86_64")]
pub(crate) mod com_port;
#[cfg(target_arch = "riscv64")]
pub(crate) mod ns16550;
#[cfg(target_arch = "aarch64")]
pub(crate) mod pl011;
