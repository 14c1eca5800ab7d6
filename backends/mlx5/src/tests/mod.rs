//! What the unit tests of several modules share.

pub(crate) mod mock;
