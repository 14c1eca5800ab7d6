//! Requests for the agents of a port, in the order in which they came.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use crate::packet::Packet;

/// Requests that wait for the agents at most.
const MAX_REQUESTS: usize = 1024;
/// Requests of one source that wait for the agents at most. A manager sends fewer at a time (opensm 4), and whoever sends more
/// leaves the others their room.
const MAX_REQUESTS_OF_SOURCE: usize = 64;

/// Requests that wait for the agents of the port.
#[derive(Debug, Default)]
pub(in crate::engine) struct ManagementRequests {
    waiting: VecDeque<Packet<'static>>,
    /// How many each source has there.
    sources: BTreeMap<u16, usize>,
}

impl ManagementRequests {
    /// Returns whether none waits.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds one. Returns whether there was room for it.
    pub(in crate::engine) fn push(&mut self, request: Packet<'_>) -> bool {
        let source = request.link.completion().slid;
        let of_source = self.sources.entry(source).or_default();
        let has_room = *of_source < MAX_REQUESTS_OF_SOURCE && self.waiting.len() < MAX_REQUESTS;
        if has_room {
            *of_source += 1;
            self.waiting.push_back(request.into_owned());
        } else if *of_source == 0 {
            self.sources.remove(&source);
        }
        has_room
    }

    /// Returns the oldest.
    pub(in crate::engine) fn pop(&mut self) -> Option<Packet<'static>> {
        let request = self.waiting.pop_front()?;
        if let Entry::Occupied(mut of_source) = self.sources.entry(request.link.completion().slid) {
            *of_source.get_mut() -= 1;
            if *of_source.get() == 0 {
                of_source.remove();
            }
        }
        Some(request)
    }
}
