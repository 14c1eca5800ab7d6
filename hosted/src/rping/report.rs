//! What an rping reports.

use serde::Serialize;

use crate::rdma_cm::program::Done;

/// What an rping has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Rounds {
    /// Rounds that were done.
    pub rounds: u32,
    /// Bytes of each.
    pub size: u32,
}

impl Done for Rounds {
    fn line(&self, role: &str) -> String {
        let compared = if role == "server" { "read and written back" } else { "read, written back and compared" };
        format!("{} rounds: {compared}", self.rounds)
    }
}
