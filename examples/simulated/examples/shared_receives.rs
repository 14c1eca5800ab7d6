//! One queue of receives for several connections: refilled when few are left, and a connection that ends without a loss.

use std::error::Error;

use bareverbs::{
    Access, Completion, DmaBuffer, Event, QpAttr, QpAttrMask, QpState, RecvWr, Refused, SendWr, SharedReceiveQueue, SrqCap,
    SrqInit,
};
use bareverbs_testing::{Driver, Faults, connect_with_srq, pair};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none())?;
    let mut srq = b.verbs.create_srq(&SrqInit { pd: b.pd, cap: SrqCap { max_wr: 15, max_sge: 1 } })?;
    let handle = srq.handle();
    // Two connections take from it. Each has a completion queue of its own, with room for all receives.
    let mut ends = [connect_with_srq(&mut a, &mut b, handle)?, connect_with_srq(&mut a, &mut b, handle)?];
    // Receives of 64 bytes; `wr_id` is the number of the place.
    let inbox = b.register(1024, Access::LOCAL_WRITE)?;
    let fill = |srq: &mut SharedReceiveQueue<'_, Driver>, places: core::ops::Range<u64>| {
        places.into_iter().try_for_each(|wr_id| srq.post(&RecvWr { wr_id, sges: &[inbox.sge(wr_id * 64, 64)] }))
    };
    fill(&mut srq, 0..8)?;
    b.verbs.arm_srq(handle, 4)?;

    // Five messages on one connection, one on the other: the one with more traffic takes more.
    for number in 0..6 {
        let [first, second] = &mut ends;
        let (from, into) = if number < 5 { first } else { second };
        from.qp.send.post(&SendWr::send(&[number]))?;
        // The place says where the message is, the queue pair whose it is.
        let Completion { wr_id, qp, .. } = into.wait()?;
        let mut byte = [0];
        inbox.read(wr_id as usize * 64, &mut byte)?;
        assert_eq!((byte, qp), ([number], into.qp.handle()));
    }
    // The device says once that fewer than four are left: post more, then ask again.
    while let Some(event) = b.verbs.poll_event()? {
        if event == Event::SrqLimitReached(handle) {
            fill(&mut srq, 8..14)?;
            b.verbs.arm_srq(handle, 4)?;
        }
    }
    println!("6 messages of 2 connections, {} receives left", b.verbs.srq_info(handle)?.recvs);

    // A connection ends: to ERR, the event, its completions. Receives that it did not take stay for the other one.
    let [(_, end), _other] = ends;
    let (qp, mut cq) = end.into_parts();
    b.verbs.modify_qp(qp.handle(), &QpAttr { state: QpState::Err, ..QpAttr::default() }, QpAttrMask::STATE)?;
    b.network().world().advance(core::time::Duration::from_millis(1));
    assert_eq!(b.verbs.poll_event()?, Some(Event::LastWqeReached(qp.handle())));
    cq.completions().try_for_each(|done| done.map(drop))?;
    b.verbs.destroy_qp(qp).map_err(Refused::into_error)?;
    Ok(())
}
