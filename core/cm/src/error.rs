//! What calls can refuse.

/// Why an [`Endpoint`](crate::Endpoint) refused a call. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum CmError {
    /// No connection has this ID any more: it was closed.
    UnknownConnection,
    /// The connection is in a state in which the call has no meaning.
    WrongState,
    /// Private data or additional information is longer than the message has room for.
    TooLong {
        /// Room in bytes.
        room: usize,
    },
    /// Every entry of the table is in use.
    TableFull {
        /// Entries.
        capacity: usize,
    },
    /// Another call listens on this service ID already.
    ServiceInUse,
    /// Too many datagrams wait to be transmitted: call [`Endpoint::transmit`](crate::Endpoint::transmit) first.
    NotTransmitted,
}

impl core::fmt::Display for CmError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::UnknownConnection => f.write_str("no such connection: it was closed"),
            Self::WrongState => f.write_str("the connection is in another state"),
            Self::TooLong { room } => write!(f, "private data is longer than its {room} bytes"),
            Self::TableFull { capacity } => write!(f, "all {capacity} entries are in use"),
            Self::ServiceInUse => f.write_str("the service ID is in use"),
            Self::NotTransmitted => f.write_str("too many datagrams wait to be transmitted"),
        }
    }
}

impl core::error::Error for CmError {}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    #[test]
    fn an_error_has_the_limit_that_was_met() {
        for (error, text) in [
            (CmError::TooLong { room: 92 }, "private data is longer than its 92 bytes"),
            (CmError::TableFull { capacity: 8 }, "all 8 entries are in use"),
            (CmError::UnknownConnection, "no such connection: it was closed"),
            (CmError::WrongState, "the connection is in another state"),
            (CmError::ServiceInUse, "the service ID is in use"),
            (CmError::NotTransmitted, "too many datagrams wait to be transmitted"),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
