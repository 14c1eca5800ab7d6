//! Completions as futures, in any executor: the interrupt handler wakes the task that waits for a completion queue.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bareverbs::{Access, Clock, DmaBuffer, Instant, Payload, RecvWr, SendFlags, SendOp, SendWr, WcStatus};
use bareverbs_examples::{connect, devices};

const MESSAGES: u64 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = devices()?;
    let [end_a, end_b] = connect(&mut a, &mut b)?;
    let inbox = b.verbs.reg_mr(end_b.pd, b.buffer(4096), Access::LOCAL_WRITE)?;
    for wr_id in 0..MESSAGES {
        b.verbs.post_recv(end_b.qp, &RecvWr { wr_id, sges: &[inbox.sge(8 * wr_id, 8)] })?;
    }

    let mut completions = b.verbs.take_cq(end_b.cq)?;
    let mut handler = b.verbs.take_interrupt_handler()?;
    let stop = AtomicBool::new(false);
    let received = thread::scope(|scope| {
        // In firmware this is the interrupt's entry point. It takes no lock.
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                // The task sleeps and does not poll, so simulated time passes here.
                b.host.clock().relax(Instant::default());
                for vector in b.host.take_interrupts() {
                    handler.on_interrupt(vector);
                }
            }
        });
        let received = pollster::block_on(async {
            let mut received = 0;
            for number in 0..MESSAGES {
                let op = SendOp::Send { payload: Payload::Inline(&number.to_le_bytes()) };
                a.verbs.post_send(end_a.qp, &SendWr { wr_id: number, flags: SendFlags::empty(), op })?;
                completions.ready().await;
                for completion in completions.completions() {
                    let completion = completion?;
                    assert_eq!((completion.wr_id, completion.status), (received, WcStatus::Success));
                    received += 1;
                }
            }
            Ok::<_, Box<dyn Error>>(received)
        });
        stop.store(true, Ordering::Release);
        received
    })?;
    assert_eq!(received, MESSAGES);
    let mut last = [0; 8];
    inbox.read(8 * (MESSAGES as usize - 1), &mut last)?;
    assert_eq!(u64::from_le_bytes(last), MESSAGES - 1);
    println!("{received} messages received, each awaited");
    Ok(())
}
