//! What a udaddy reports.

use bareverbs::GlobalRoute;
use serde::Serialize;

use crate::rdma_cm::program::Done;

/// What a udaddy has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Datagrams {
    /// Queue pairs that were resolved.
    pub connections: u16,
    /// Messages that were received, of all queue pairs.
    pub received: u64,
    /// Messages that were sent, of all queue pairs.
    pub sent: u64,
    /// Bytes of each.
    pub size: u32,
}

impl Done for Datagrams {
    fn line(&self, role: &str) -> String {
        let Self { connections, received, sent, size } = self;
        // An answer begins with a header, which takes the place of as many bytes of what was sent.
        let compared = if role == "server" || *size as usize <= GlobalRoute::AREA { "" } else { " and compared" };
        format!("queue pairs: {connections}, messages of {size} bytes: {sent} sent, {received} received{compared}")
    }
}
