//! What the fuzz targets share.

pub mod queues;
pub mod request;
