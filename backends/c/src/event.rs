//! Events.

use bareverbs::backend::AsyncEvent;
use bareverbs::{CqHandle, Event, QpHandle, SrqHandle};

use crate::argument::Output;
use crate::call::on_verbs;
use crate::device::bv_device;
use crate::{
    BV_EVENT_COMM_EST, BV_EVENT_COMPLETION, BV_EVENT_CQ_ERR, BV_EVENT_DEVICE_FATAL, BV_EVENT_EVENTS_LOST, BV_EVENT_OTHER,
    BV_EVENT_PORT_ACTIVE, BV_EVENT_PORT_CHANGE, BV_EVENT_PORT_ERR, BV_EVENT_QP_ACCESS_ERR, BV_EVENT_QP_FATAL,
    BV_EVENT_QP_LAST_WQE_REACHED, BV_EVENT_QP_REQ_ERR, BV_EVENT_SQ_DRAINED, BV_EVENT_SRQ_ERR, BV_EVENT_SRQ_LIMIT_REACHED,
};

// Event types of the device (`mlx5_ifc.h`).
const PATH_MIGRATED: u32 = 1;
const PATH_MIGRATION_FAILED: u32 = 7;

/// An event.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bv_event {
    /// The number of the queue pair, completion queue or shared receive queue that it is of, as in bv_qp, bv_cq and bv_srq; 0 if of none.
    pub object: u64,
    /// What: BV_EVENT_COMPLETION and the others.
    pub event_type: u32,
    /// The port that it is of; 0 if of none.
    pub port: u32,
    /// The device's own code, where the type says so; 0 otherwise.
    pub code: u32,
}

impl From<&Event> for bv_event {
    fn from(event: &Event) -> Self {
        let of_cq = |event_type, cq: CqHandle, code: u8| Self { event_type, object: cq.into_raw(), port: 0, code: code.into() };
        let of_qp = |event_type, qp: QpHandle| Self { event_type, object: qp.into_raw(), port: 0, code: 0 };
        let of_srq = |event_type, srq: SrqHandle| Self { event_type, object: srq.into_raw(), port: 0, code: 0 };
        let of_port = |event_type, port: u8| Self { event_type, object: 0, port: port.into(), code: 0 };
        let of_none = |event_type, code| Self { event_type, object: 0, port: 0, code };
        match *event {
            Event::Completion(cq) => of_cq(BV_EVENT_COMPLETION, cq, 0),
            Event::CqError(cq, syndrome) => of_cq(BV_EVENT_CQ_ERR, cq, syndrome),
            Event::CommEstablished(qp) => of_qp(BV_EVENT_COMM_EST, qp),
            Event::SqDrained(qp) => of_qp(BV_EVENT_SQ_DRAINED, qp),
            Event::LastWqeReached(qp) => of_qp(BV_EVENT_QP_LAST_WQE_REACHED, qp),
            Event::PathMigrated(qp) => Self { code: PATH_MIGRATED, ..of_qp(BV_EVENT_OTHER, qp) },
            Event::PathMigrationFailed(qp) => Self { code: PATH_MIGRATION_FAILED, ..of_qp(BV_EVENT_OTHER, qp) },
            Event::QpFatal(qp) => of_qp(BV_EVENT_QP_FATAL, qp),
            Event::QpRequestError(qp) => of_qp(BV_EVENT_QP_REQ_ERR, qp),
            Event::QpAccessError(qp) => of_qp(BV_EVENT_QP_ACCESS_ERR, qp),
            Event::PortActive(port) => of_port(BV_EVENT_PORT_ACTIVE, port),
            Event::PortDown(port) => of_port(BV_EVENT_PORT_ERR, port),
            Event::PortChanged(port) => of_port(BV_EVENT_PORT_CHANGE, port),
            Event::DeviceFatal(syndrome, _) => of_none(BV_EVENT_DEVICE_FATAL, syndrome.into()),
            Event::EventsLost => of_none(BV_EVENT_EVENTS_LOST, 0),
            Event::Stray(AsyncEvent::Unknown(kind, _)) | Event::Unknown(kind, _) => of_none(BV_EVENT_OTHER, kind.into()),
            Event::SrqLimitReached(srq) => of_srq(BV_EVENT_SRQ_LIMIT_REACHED, srq),
            Event::SrqError(srq) => of_srq(BV_EVENT_SRQ_ERR, srq),
            // Stray, and what this interface has no code for.
            _ => of_none(BV_EVENT_OTHER, 0),
        }
    }
}

/// Takes the next event. Returns 1 if there was one, which is written, and 0 if there was none. A loop until 0 ends.
///
/// Errors: the device is lost, or wrote something that is no event.
///
/// # Safety
/// `device` is of bv_init; `event` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_poll_event(device: *mut bv_device, event: *mut bv_event) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(event, "event")?;
            let Some(event) = up.verbs.poll_event()? else { return Ok(0) };
            place.set((&event).into());
            Ok(1)
        })
    }
}
