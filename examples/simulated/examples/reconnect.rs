//! A queue pair is drained and goes on (SQD), is reset in the middle of its work, and is connected again.

use std::error::Error;
use std::time::Duration;

use bareverbs::{Access, Completion, DmaBuffer, QpAttr, QpAttrMask, QpState, SendWr};
use bareverbs_testing::{Connection, Faults, connect, join, pair};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none())?;
    let [mut end_a, mut end_b] = connect(&mut a, &mut b)?;
    let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let (qp_a, qp_b) = (end_a.qp.handle(), end_b.qp.handle());

    // SQD: what has begun is finished, what is posted then waits. There the path, timers and rights may change.
    end_a.qp.send.post(&SendWr::write(target.remote(0), "first").id(1))?;
    let drain = QpAttr { state: QpState::Sqd, ..QpAttr::default() };
    a.verbs.modify_qp(qp_a, &drain, QpAttrMask::STATE)?;
    end_a.qp.send.post(&SendWr::write(target.remote(8), "second").id(2))?;
    let longer = QpAttr { state: QpState::Sqd, timeout: 12, ..drain };
    a.verbs.modify_qp(qp_a, &longer, QpAttrMask::STATE | QpAttrMask::TIMEOUT)?;
    let go_on = QpAttr { state: QpState::Rts, ..drain };
    a.verbs.modify_qp(qp_a, &go_on, QpAttrMask::STATE)?;
    assert_eq!((end_a.wait()?.wr_id, end_a.wait()?.wr_id), (1, 2));

    // A request whose completion nobody has polled. RESET takes everything that was posted: at both ends, since each counts PSNs.
    end_a.qp.send.post(&SendWr::write(target.remote(16), "third").id(3))?;
    a.network().world().advance(Duration::from_millis(1));
    a.verbs.reset_qp(&mut end_a.qp)?;
    b.verbs.reset_qp(&mut end_b.qp)?;

    // A queue pair leaves RESET when its completion queues were found empty. A poll drops stale completions, so that no wr_id is taken for
    // that of a new request. Without the poll the transition is refused.
    let again = join((&mut a.verbs, qp_a), (&mut b.verbs, qp_b), &Connection::default());
    assert!(again.is_err());
    for cq in [&mut end_a.cq, &mut end_b.cq] {
        while cq.poll(&mut [Completion::EMPTY; 8])? != 0 {}
    }
    join((&mut a.verbs, qp_a), (&mut b.verbs, qp_b), &Connection::default())?;

    end_a.qp.send.post(&SendWr::write(target.remote(24), "fourth").id(4))?;
    let done = end_a.wait()?;
    let mut bytes = [0; 6];
    target.read(24, &mut bytes)?;
    println!("request {} is the first after the reset: {}", done.wr_id, str::from_utf8(&bytes)?);
    Ok(())
}
