//! What a backend implements and is given: the driver of a device ([`Provider`]), its rings, and the requests as it writes them.
//! A program needs it to be generic over a driver ([`Provider`]), or for the event in [`Event::Stray`](crate::Event::Stray).

pub use crate::address::EncodedAddress;
pub use crate::provider::{
    AsyncEvent, AtomicOp, AtomicOpcode, BindOp, CompletionEvent, CompletionEvents, CoreToken, CqReader, CqRing, CreateQpParams,
    CreateXrcQpParams, CreateXrcSrqParams, CreatedCq, CreatedQp, CreatedSrq, DataOp, DataOpcode, DatagramOp, MrRequest, Peek,
    Provider, QueriedQp, RawCompletion, RecvRing, RegOp, SendRing, SendWriter, SrqRing, SrqSizes,
};
