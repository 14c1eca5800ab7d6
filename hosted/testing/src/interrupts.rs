//! Interrupts of a host, served by a thread as firmware serves them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::failed;
use crate::{Error, Node};

/// How long the thread sleeps between two looks.
const PAUSE: Duration = Duration::from_micros(20);

/// The interrupts of a host are served until this is dropped.
#[derive(Debug)]
#[must_use = "the interrupts are served until this is dropped"]
pub struct ServedInterrupts {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Serves the interrupts of this host in a thread, so that the tasks that wait for its completion queues
    /// ([`CompletionQueue::ready`](bareverbs::CompletionQueue::ready)) are woken. Until the returned value is dropped no completion
    /// queue can be destroyed ([`Verbs::take_interrupt_handler`](bareverbs::Verbs::take_interrupt_handler)).
    ///
    /// ```
    /// use bareverbs::{SendWr, WcStatus};
    /// use bareverbs_testing::{Faults, connect, pair};
    ///
    /// let [mut a, mut b] = pair(Faults::none())?;
    /// let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// let target = b.register(64, bareverbs::Access::LOCAL_WRITE | bareverbs::Access::REMOTE_WRITE)?;
    /// let (_running, _served) = (a.network().run_in_background()?, a.serve_interrupts()?);
    /// pollster::block_on(async {
    ///     qa.qp.send.post(&SendWr::write(target.remote(0), b"x"))?;
    ///     qa.cq.ready().await;
    ///     let done = qa.cq.completions().next().ok_or("woken without a completion")??;
    ///     assert_eq!(done.status, WcStatus::Success);
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// They are served already, or the system starts no thread.
    pub fn serve_interrupts(&mut self) -> Result<ServedInterrupts, Error> {
        let mut handler = self.verbs.take_interrupt_handler().map_err(failed)?;
        let (host, stop) = (self.host.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("interrupts".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                for vector in host.take_interrupts() {
                    handler.on_interrupt(vector);
                }
                thread::sleep(PAUSE);
            }
        });
        Ok(ServedInterrupts { stop, thread: Some(thread.map_err(failed)?) })
    }
}

impl Drop for ServedInterrupts {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It has ended, or panicked in a waker and said so.
            let _ = thread.join();
        }
    }
}
