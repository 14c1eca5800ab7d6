//! Event queues, what their entries mean, and the health of the device.

pub(crate) mod async_event;
pub(crate) mod completion;
pub(crate) mod eq;
pub(crate) mod health;
