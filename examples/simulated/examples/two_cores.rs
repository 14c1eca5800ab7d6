//! One thread posts, another polls: each owns its queue and takes no lock. Feature `multicore` of `bareverbs`.

use std::error::Error;
use std::thread;

use bareverbs::{Access, DmaBuffer, Payload, PostSendError, SendFlags, SendOp, SendWr, WcStatus};
use bareverbs_examples::{connect, devices};

const WRITES: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = devices()?;
    let [end_a, end_b] = connect(&mut a, &mut b)?;
    let target = b.verbs.reg_mr(end_b.pd, b.buffer(8 * WRITES as usize), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    // What is taken may be used in any thread, and is returned in the end.
    let mut sends = a.verbs.take_send_queue(end_a.qp)?;
    let mut completions = a.verbs.take_cq(end_a.cq)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..WRITES {
                let bytes = number.to_le_bytes();
                let op = SendOp::Write { payload: Payload::Inline(&bytes), remote: target.remote(8 * number) };
                let wr = SendWr { wr_id: number, flags: SendFlags::empty(), op };
                // A full queue has room again when the other thread has polled.
                while let Err(error) = sends.post_send(&wr) {
                    assert!(matches!(error, PostSendError::QueueFull { .. }));
                    thread::yield_now();
                }
            }
        });
        scope.spawn(|| {
            let mut next = 0;
            while next < WRITES {
                for completion in completions.completions() {
                    let good = completion.is_ok_and(|done| (done.wr_id, done.status) == (next, WcStatus::Success));
                    assert!(good, "write {next}: {completion:?}");
                    next += 1;
                }
            }
        });
    });
    assert!(a.verbs.return_send_queue(sends).is_ok() && a.verbs.return_cq(completions).is_ok());

    for number in 0..WRITES {
        let mut bytes = [0; 8];
        target.read(8 * number as usize, &mut bytes)?;
        assert_eq!(u64::from_le_bytes(bytes), number);
    }
    println!("{WRITES} writes posted by one thread, their completions polled by another");
    Ok(())
}
