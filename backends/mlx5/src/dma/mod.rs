//! Resources that driver and device share: the arena's memory and the doorbell page.

pub(crate) mod arena;
pub(crate) mod uar;
