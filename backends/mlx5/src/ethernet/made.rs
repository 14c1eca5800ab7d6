//! The objects of the queues for frames that exist.

use heapless::Vec;

use crate::dma::object_memory::ObjectMemory;

/// An object of the device, and the memory of the driver that it lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) number: u32,
    pub(crate) memory: ObjectMemory,
}

/// A group of rules of the flow table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) group: u32,
    pub(crate) first: u32,
    /// Rules that were set.
    pub(crate) count: u32,
}

/// The objects that exist, in the order in which they are made.
#[derive(Debug, Default)]
pub(crate) struct FrameObjects {
    pub(crate) pd: Option<u32>,
    pub(crate) buffers: Option<ObjectMemory>,
    /// Index of the key of the buffers.
    pub(crate) key: Option<u32>,
    pub(crate) domain: Option<u32>,
    pub(crate) cqs: Vec<Made, 2>,
    pub(crate) tis: Option<u32>,
    pub(crate) sq: Option<Made>,
    pub(crate) rq: Option<Made>,
    pub(crate) tir: Option<u32>,
    pub(crate) table: Option<u32>,
    pub(crate) rules: Vec<Rules, 2>,
    /// Whether the port's filter is open for groups on behalf of the queues.
    pub(crate) admits: bool,
}
