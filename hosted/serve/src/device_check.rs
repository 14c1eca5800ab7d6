//! Checks a send WQE with the simulated device in addition to the decoder.

use bareverbs_decode::Decoded;
use bareverbs_decode::send::{self, Transport};
use bareverbs_sim::wqe_decode::{SendWqe, WqeService};

/// Decodes the send WQE at the start of `bytes`. What the device refuses is an error, even if the decoder accepts it.
pub fn decode_send(bytes: &[u8], transport: Transport) -> Decoded {
    let mut decoded = send::decode(bytes, 0, transport);
    check_with_device(&mut decoded, bytes, transport);
    decoded
}

/// Adds the device's error to a send WQE that was decoded from the start of `bytes`, unless there is one already.
pub fn check_with_device(decoded: &mut Decoded, bytes: &[u8], transport: Transport) {
    let service = match transport {
        Transport::Rc | Transport::Uc => WqeService::Connected,
        Transport::Ud => WqeService::Datagram,
        Transport::Xrc => WqeService::Xrc,
    };
    if let Err(error) = SendWqe::decode(bytes, service)
        && !decoded.has_errors()
    {
        decoded.add_error(decoded.offset, format!("the simulated device refuses it: {error}"));
    }
}
