//! Memory as queue pairs reach it: keys, their translation, device memory, changes of keys from a send queue.

pub(super) mod device_memory;
pub(super) mod key;
pub(super) mod key_range;
pub(super) mod klm_list;
pub(super) mod message;
pub(crate) mod page_source;
pub(super) mod page_table;
pub(super) mod range_list;
pub(super) mod translate;
pub(crate) mod umem;
pub(super) mod umr;
