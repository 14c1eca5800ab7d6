//! Objects of the device that a program makes: protection domains, memory keys, completion queues, queue pairs.

pub(crate) mod cq;
pub(crate) mod mkey;
pub(crate) mod pd;
pub(crate) mod qp;
