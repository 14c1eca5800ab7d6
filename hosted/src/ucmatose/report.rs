//! What a ucmatose reports.

use serde::Serialize;

use crate::rdma_cm::program::Done;

/// What a ucmatose has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Messages {
    /// Connections that were made.
    pub connections: u16,
    /// Messages that were received, of all connections.
    pub received: u64,
    /// Messages that were sent and acknowledged, of all connections.
    pub sent: u64,
    /// Bytes of each.
    pub size: u32,
}

impl Done for Messages {
    fn line(&self, role: &str) -> String {
        // What a client receives is whatever the server had in its memory.
        let compared = if role == "client" { "" } else { " and compared" };
        let Self { connections, received, sent, size } = self;
        format!("connections: {connections}, messages of {size} bytes: {sent} sent, {received} received{compared}")
    }
}
