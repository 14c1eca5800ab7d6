//! Queues of one connection on threads of their own, as the package is without any word about features.

use std::{io, thread};

use bareverbs::{Access, RecvWr, SendWr, WcStatus};
use bareverbs_testing::{Faults, TestResult, connect, pair};

#[test]
fn the_two_ends_are_on_two_threads() -> TestResult {
    const MESSAGES: u64 = 64;
    let [mut a, mut b] = pair(Faults::none())?;
    let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    let inbox = b.register(64, Access::LOCAL_WRITE)?;
    for wr_id in 0..MESSAGES {
        qb.qp.recv.post(&RecvWr { wr_id, sges: &[inbox.sge(0, 64)] })?;
    }
    let _running = a.network().run_in_background()?;
    let receiver = thread::spawn(move || {
        for number in 0..MESSAGES {
            let done = qb.wait()?;
            assert_eq!((done.wr_id, done.status), (number, WcStatus::Success));
        }
        TestResult::Ok(())
    });
    for wr_id in 0..MESSAGES {
        qa.qp.send.post(&SendWr::send(b"x").id(wr_id))?;
        assert_eq!(qa.wait()?.status, WcStatus::Success);
    }
    receiver.join().map_err(|_| io::Error::other("the receiver has panicked"))?
}
