//! What a backend implements and is given: the driver of a device ([`Provider`]), its rings, and the requests as it writes them.
//! A program needs it to be generic over a driver ([`Provider`]), or for the event in [`Event::Stray`](crate::Event::Stray).

pub(crate) mod rings;

pub use crate::address::EncodedAddress;
pub use crate::provider::{
    AsyncEvent, CompletionEvent, CompletionEvents, CoreToken, CreateQpParams, CreateXrcQpParams, CreateXrcSrqParams, CreatedCq,
    CreatedQp, CreatedSrq, MrRequest, Provider, QueriedQp, SrqSizes,
};
pub use rings::{
    AtomicOp, AtomicOpcode, BindOp, CqReader, CqRing, DataOp, DataOpcode, DatagramOp, Peek, RawCompletion, RecvRing, RegOp,
    SendRing, SendWriter, SrqRing,
};
