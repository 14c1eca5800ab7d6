//! What the fuzz targets share. A module is there if a target that uses it is: each has a feature of its name.

#[cfg(feature = "cqe_poll")]
pub mod completions;
#[cfg(feature = "cm_datagrams")]
pub mod connections;
#[cfg(feature = "device")]
pub mod device;
#[cfg(feature = "frame_queues")]
pub mod frame_queues;
#[cfg(feature = "verbs_ops")]
pub mod harness;
#[cfg(feature = "joined_wire")]
pub mod joined_wire;
#[cfg(feature = "verbs_ops")]
pub mod model;
#[cfg(any(feature = "cqe_poll", feature = "wqe_roundtrip"))]
pub mod queues;
#[cfg(feature = "wqe_roundtrip")]
pub mod request;
#[cfg(any(feature = "device", feature = "joined_wire"))]
mod step_time;
