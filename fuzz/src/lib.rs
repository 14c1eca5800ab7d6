//! What the fuzz targets share.

pub mod bench;
pub mod device;
pub mod model;
pub mod queues;
pub mod request;
