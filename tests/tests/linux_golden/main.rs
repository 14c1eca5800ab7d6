//! Replays what Linux's mlx5 driver and tools sent to the simulated device (`tests/data/linux/README.md`). A new device must
//! answer the same. This project's driver sends the same in the same place, or has a reason not to. The decoders accept all of
//! it.

mod compare;
mod decoders;
mod differences;
mod ours;
mod replay;
mod soft_roce;

use bareverbs_serve::record::{Line, parse};

/// Kernel 6.12 with its rdma-core.
const NEW: &str = include_str!("../../data/linux/6.12.recording");
/// Kernel 6.1 with its rdma-core.
const OLD: &str = include_str!("../../data/linux/6.1.recording");
/// The UMR WQEs of kernel 6.12.
const UMR: &str = include_str!("../../data/linux/6.12-umr.recording");
/// libmlx5 that drives the device itself, over VFIO.
const USER_SPACE: &str = include_str!("../../data/linux/vfio.recording");

fn lines(text: &str) -> Vec<Line> {
    parse(text).unwrap_or_else(|error| panic!("{error}"))
}
