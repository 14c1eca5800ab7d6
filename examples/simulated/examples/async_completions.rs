//! Completions as futures, in any executor: the interrupt handler wakes the task that waits for a completion queue.

use std::error::Error;

use bareverbs::{Access, DmaBuffer, RecvWr, SendWr, WcStatus};
use bareverbs_testing::{Faults, connect, pair};

const MESSAGES: u64 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b] = pair(Faults::none())?;
    let [mut end_a, mut end_b] = connect(&mut a, &mut b)?;
    let inbox = b.register(4096, Access::LOCAL_WRITE)?;
    for wr_id in 0..MESSAGES {
        end_b.qp.recv.post(&RecvWr { wr_id, sges: &[inbox.sge(8 * wr_id, 8)] })?;
    }

    // The task sleeps and does not poll: simulated time passes by itself. In firmware an interrupt's entry point calls the handler
    // (`Verbs::take_interrupt_handler`), here a thread does.
    let (_running, _served) = (b.network().run_in_background()?, b.serve_interrupts()?);
    let received = pollster::block_on(async {
        let mut received = 0;
        for number in 0..MESSAGES {
            end_a.qp.send.post(&SendWr::send(&number.to_le_bytes()).id(number))?;
            end_b.cq.ready().await;
            for completion in end_b.cq.completions() {
                let completion = completion?;
                assert_eq!((completion.wr_id, completion.status), (received, WcStatus::Success));
                received += 1;
            }
        }
        Ok::<_, Box<dyn Error>>(received)
    })?;
    assert_eq!(received, MESSAGES);
    let mut last = [0; 8];
    inbox.read(8 * (MESSAGES as usize - 1), &mut last)?;
    assert_eq!(u64::from_le_bytes(last), MESSAGES - 1);
    println!("{received} messages received, each awaited");
    Ok(())
}
