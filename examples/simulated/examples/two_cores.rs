//! One thread posts, another polls: each owns its queue and takes no lock. Feature `multicore` of `bareverbs`.

use std::error::Error;
use std::thread;

use bareverbs::error::PostSendError;
use bareverbs::{Access, DmaBuffer, Refused, SendWr, WcStatus};
use bareverbs_testing::{End, Faults, connect, pair};

const WRITES: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none())?;
    let [end_a, _end_b] = connect(&mut a, &mut b)?;
    let target = b.register(8 * WRITES as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    // Simulated time passes by itself: neither thread waits for the other to let it pass.
    let _running = a.network().run_in_background()?;

    // A queue is a value: whoever has it uses it, in any thread.
    let waiter = a.waiter();
    let End { qp: mut queue_pair, cq: mut completions, .. } = end_a;
    let sends = &mut queue_pair.send;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..WRITES {
                let bytes = number.to_le_bytes();
                let wr = SendWr::write(target.remote(8 * number), &bytes).id(number);
                // A full queue has room again when the other thread has polled.
                while let Err(error) = sends.post(&wr) {
                    assert!(matches!(error, PostSendError::QueueFull { .. }));
                    thread::yield_now();
                }
            }
        });
        let polled = scope.spawn(|| {
            for next in 0..WRITES {
                let done = waiter.wait(&mut completions)?;
                assert_eq!((done.wr_id, done.status), (next, WcStatus::Success));
            }
            Ok::<_, bareverbs_testing::WaitError>(())
        });
        polled.join().map_err(|_| "the thread that polls has panicked")?.map_err(Box::<dyn Error>::from)
    })?;
    a.verbs.destroy_qp(queue_pair).map_err(Refused::into_error)?;
    a.verbs.destroy_cq(completions).map_err(Refused::into_error)?;

    for number in 0..WRITES {
        let mut bytes = [0; 8];
        target.read(8 * number as usize, &mut bytes)?;
        assert_eq!(u64::from_le_bytes(bytes), number);
    }
    println!("{WRITES} writes posted by one thread, their completions polled by another");
    Ok(())
}
