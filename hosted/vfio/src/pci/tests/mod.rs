//! Tests on a folder with the files of a machine.

mod binding;
mod listing;
mod obstacles;
mod services;
#[expect(unreachable_pub, reason = "the command's tests use it too")]
pub(super) mod tree;
