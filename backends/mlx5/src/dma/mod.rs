//! What the driver and the device share: memory from the arena, and the doorbell page.

pub(crate) mod arena;
pub(crate) mod uar;
