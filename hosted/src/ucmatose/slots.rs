//! Where the messages of an end lie in its memory, and which request a completion is of.

/// The most receives of a connection that are posted at a time.
const DEPTH: usize = 16;
/// Bytes for those of a connection, if at least two fit.
const BYTES: usize = 2 << 20;

/// Bit of the `wr_id` of a send.
const SEND: u64 = 1 << 63;
/// First bit of the connection in a `wr_id`.
const CONNECTION: u32 = 32;

/// The memory of an end: of each connection the message that it sends, and places for some that it receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// Connections.
    connections: usize,
    /// Bytes from one place to the next.
    stride: usize,
    /// Receives of a connection that are posted at a time.
    pub(super) depth: usize,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A send of a connection.
    Send(usize),
    /// A receive of a connection, into one of its places.
    Receive(usize, usize),
}

impl Slots {
    /// Returns the memory of these connections, with messages of `size` bytes.
    pub(super) fn new(connections: usize, size: usize) -> Self {
        let stride = size.next_multiple_of(64);
        Self { connections, stride, depth: (BYTES / stride).clamp(2, DEPTH) }
    }

    /// Returns the bytes of all.
    pub(super) const fn total(self) -> usize {
        self.connections * (1 + self.depth) * self.stride
    }

    /// Returns where the message that a connection sends begins.
    pub(super) const fn out(self, connection: usize) -> usize {
        connection * (1 + self.depth) * self.stride
    }

    /// Returns where a place for a message begins.
    pub(super) const fn place(self, connection: usize, place: usize) -> usize {
        self.out(connection) + (1 + place) * self.stride
    }
}

impl Request {
    /// Returns its number.
    pub(super) const fn wr_id(self) -> u64 {
        match self {
            Self::Send(connection) => SEND | (connection as u64) << CONNECTION,
            Self::Receive(connection, place) => (connection as u64) << CONNECTION | place as u64,
        }
    }

    /// Returns the request of a number.
    pub(super) const fn of(wr_id: u64) -> Self {
        let connection = ((wr_id & !SEND) >> CONNECTION) as usize;
        if wr_id & SEND != 0 { Self::Send(connection) } else { Self::Receive(connection, wr_id as u32 as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_overlap() {
        for size in [1, 64, 100, 65_536, 1 << 20] {
            let slots = Slots::new(3, size);
            let all = (0..3).flat_map(|of| (0..slots.depth).map(move |place| slots.place(of, place)).chain([slots.out(of)]));
            let mut all: Vec<_> = all.collect();
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= size), "{size}");
            assert!(all.last().unwrap() + size <= slots.total(), "{size}");
        }
    }

    #[test]
    fn a_number_tells_its_request() {
        for request in [Request::Send(0), Request::Send(15), Request::Receive(0, 0), Request::Receive(15, 9)] {
            assert_eq!(Request::of(request.wr_id()), request);
        }
    }
}
