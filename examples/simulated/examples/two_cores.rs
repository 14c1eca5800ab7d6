//! One thread posts, another polls: each has its queue for itself and takes no lock. Feature `multicore` of `bareverbs`.

use std::error::Error;
use std::thread;

use bareverbs::{Access, DmaBuffer, Payload, PostSendError, SendFlags, SendOp, SendWr, WcStatus};
use bareverbs_examples::{connect, devices, relax, reliable};

const WRITES: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = devices()?;
    let (pd_a, pd_b) = (a.verbs.alloc_pd()?, b.verbs.alloc_pd()?);
    // More places than the send ring has blocks: a full completion queue breaks.
    let (cq_a, cq_b) = (a.verbs.create_cq(128)?, b.verbs.create_cq(32)?);
    let qp_a = a.verbs.create_qp(&reliable(pd_a, cq_a))?;
    let qp_b = b.verbs.create_qp(&reliable(pd_b, cq_b))?;
    connect(&mut a, qp_a, &mut b, qp_b)?;
    let target = b.verbs.reg_mr(pd_b, b.buffer(8 * WRITES as usize), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    // What is taken out is used by itself, in any thread, and put back in the end.
    let mut sends = a.verbs.take_send_queue(qp_a)?;
    let mut completions = a.verbs.take_cq(cq_a)?;
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
                relax(&a.host);
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
