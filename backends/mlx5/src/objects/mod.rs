//! Objects of the device: protection domains, memory keys, event queues, completion queues, queue pairs, shared
//! receive queues, the UAR page.

pub(crate) mod cq;
mod eq;
pub(crate) mod mkey;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod uar;
pub(crate) mod xrc;
