//! What exists is changed: rights and buffer of a region, the size of a completion queue, and when it tells of completions.

use std::error::Error;
use std::time::Duration;

use bareverbs::{Access, CqModeration, DmaBuffer, Event, MrChange, Refused, SendWr};
use bareverbs_testing::{Faults, connect, pair};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none())?;
    let [mut end_a, _end_b] = connect(&mut a, &mut b)?;

    // Other rights: the keys are others too, and the peer must hear of them. Zero-based, the first byte has address 0.
    let closed = b.register(64, Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::ZERO_BASED;
    let change = MrChange { access: Some(access), ..MrChange::default() };
    let open = b.verbs.rereg_mr(closed, &change).map_err(Refused::into_error)?;
    assert_eq!(open.remote(8).addr, 8);
    end_a.qp.send.post(&SendWr::write(open.remote(8), b"first"))?;
    end_a.wait()?.result()?;

    // Another buffer: the old one comes back, with what the peer wrote.
    let larger = b.host.memory(4096).whole();
    let (open, old) = b.verbs.rereg_mr_buffer(open, larger, &MrChange::default()).map_err(Refused::into_error)?;
    let mut first = [0; 5];
    old.read(8, &mut first)?;
    end_a.qp.send.post(&SendWr::write(open.remote(4000), b"second"))?;
    end_a.wait()?.result()?;
    let mut second = [0; 6];
    open.read(4000, &mut second)?;

    // Another size: completions that wait in the queue stay.
    end_a.qp.send.post(&SendWr::write(open.remote(0), b"third").id(3))?;
    a.network().world().advance(Duration::from_micros(50));
    let entries = 2 * a.verbs.cq_info(end_a.cq.handle())?.entries;
    a.verbs.resize_cq(&mut end_a.cq, entries)?;
    assert_eq!(end_a.wait()?.wr_id, 3);
    assert_eq!(a.verbs.cq_info(end_a.cq.handle())?.entries, entries);

    // One event for four completions, or a millisecond after the event before.
    while a.verbs.poll_event()?.is_some() {}
    a.verbs.modify_cq(end_a.cq.handle(), CqModeration { count: 4, period: 1000 })?;
    end_a.cq.req_notify(false)?;
    let mut events = 0;
    for _ in 0..4 {
        end_a.qp.send.post(&SendWr::write(open.remote(0), b"x"))?;
        a.network().world().advance(Duration::from_micros(50));
        events += usize::from(a.verbs.poll_event()? == Some(Event::Completion(end_a.cq.handle())));
    }
    assert_eq!((events, end_a.cq.completions().count()), (1, 4));

    println!("{} lies in the old buffer, {} in the new one", str::from_utf8(&first)?, str::from_utf8(&second)?);
    Ok(())
}
