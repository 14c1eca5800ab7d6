//! Decodes event queue entries.

use bareverbs_mlx5_spec::{
    CmdInterCompEvent, CompEvent, CqError, EQE, Eqe, EventType, Layout, PagesReqEvent, PortChange, PortStateChangeEvent,
    QpEvents, View,
};

use crate::decoded::Decoded;

/// Decodes all entries in `bytes`, of 64 bytes each.
pub fn decode_all(bytes: &[u8]) -> Vec<Decoded> {
    bytes.chunks(EQE).enumerate().map(|(index, entry)| decode(entry, index * EQE)).collect()
}

/// Decodes the entry in `bytes`, which are at `offset` of the input (at most `usize::MAX / 2`).
pub fn decode(bytes: &[u8], offset: usize) -> Decoded {
    let mut out = Decoded::new(offset);
    let offset = out.offset;
    let Some(eqe) = View::<Eqe>::new(bytes) else {
        out.title = format!("{} bytes, too few for an event queue entry", bytes.len());
        out.error(offset, format!("an entry has {EQE} bytes"));
        out.payload("bytes", bytes, offset);
        return out;
    };
    let code = eqe.get(Eqe::EVENT_TYPE);
    out.section::<Eqe>("entry", bytes, offset);
    let data = eqe.bytes(Eqe::EVENT_DATA);
    let at = offset + Eqe::EVENT_DATA.offset();
    let Some(event) = EventType::from_code(code) else {
        out.title = format!("event type {code:#x}");
        out.error(offset + 1, format!("event type {code:#x} is unknown"));
        return out.finish();
    };
    out.title = event.name().into();
    match event {
        EventType::Completion => typed::<CompEvent>(&mut out, data, at),
        EventType::CqError => typed::<CqError>(&mut out, data, at),
        EventType::Cmd => typed::<CmdInterCompEvent>(&mut out, data, at),
        EventType::PageRequest => typed::<PagesReqEvent>(&mut out, data, at),
        EventType::PortChange => {
            let sub = eqe.get(Eqe::EVENT_SUB_TYPE);
            match PortChange::from_code(sub) {
                Some(sub) => out.title.push_str(&format!(" {}", sub.name())),
                None => out.warning(offset + 3, format!("port change {sub:#x} is unknown")),
            }
            typed::<PortStateChangeEvent>(&mut out, data, at);
        }
        EventType::PathMigrated
        | EventType::CommEstablished
        | EventType::SqDrained
        | EventType::WqCatasError
        | EventType::PathMigrationFailed
        | EventType::WqInvalReqError
        | EventType::WqAccessError
        | EventType::SrqCatasError
        | EventType::SrqLastWqe
        | EventType::SrqRqLimit => typed::<QpEvents>(&mut out, data, at),
        EventType::InternalError
        | EventType::PageFault
        | EventType::GpioEvent
        | EventType::TempWarn
        | EventType::GeneralEvent => {}
    }
    out.finish()
}

fn typed<L: Layout>(out: &mut Decoded, data: &[u8], at: usize) {
    out.section::<L>("event data", data, at);
}
