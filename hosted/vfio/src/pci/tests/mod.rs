//! A folder that looks like a machine, and what is said of it and done to it.

mod binding;
mod listing;
mod obstacles;
#[expect(unreachable_pub, reason = "the command's tests use it too")]
pub(super) mod tree;
