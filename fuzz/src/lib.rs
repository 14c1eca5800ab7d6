//! What the fuzz targets share.

pub mod connections;
pub mod device;
pub mod frame_queues;
pub mod harness;
pub mod joined_wire;
pub mod model;
pub mod queues;
pub mod request;
