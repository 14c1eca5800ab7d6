//! What a backend implements and is given: the driver of a device ([`Provider`]), its rings, and the requests as it writes them.
//! Programs need nothing of it but the name of the driver that they choose.

pub use crate::address::{AddressPart, EncodedAddress};
pub use crate::attr::RawKind;
pub use crate::provider::{
    AsyncEvent, AtomicOp, AtomicOpcode, BindOp, CompletionEvent, CompletionEvents, CoreToken, CqReader, CqRing, CreateQpParams,
    CreateXrcQpParams, CreateXrcSrqParams, CreatedCq, CreatedQp, CreatedSrq, DataOp, DataOpcode, DatagramOp, MrRequest, Peek,
    Provider, RawCompletion, RecvRing, RegOp, RingSizes, SendRing, SendWriter, SrqRing, SrqSizes,
};
