//! Completion queues of another size.

use crate::backend::{CoreToken, Provider};
use crate::completion::CompletionQueue;
use crate::error::ResizeCqError;
use crate::log::log_event;
use crate::verbs::Verbs;

impl<'s, P: Provider> Verbs<'s, P> {
    /// Gives a completion queue at least `entries` entries, more or fewer than it has. Completions that wait in it stay, in their order,
    /// and its queue pairs complete into it meanwhile. What [`CompletionQueue::req_notify`] asked for is still asked for.
    ///
    /// How many it needs is said at [`Self::create_cq`]. The memory of both is taken while the call lasts.
    ///
    /// ```
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let before = a.verbs.cq_info(qa.cq.handle())?.entries;
    /// a.verbs.resize_cq(&mut qa.cq, 2 * before)?;
    /// assert_eq!(a.verbs.cq_info(qa.cq.handle())?.entries, 2 * before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device has none of that size, the queue is of another `Verbs`, or the device is lost or refuses. It refuses if more completions
    /// wait than there would be room for, and if the queue is full or broken. The queue is as before.
    pub fn resize_cq(&mut self, cq: &mut CompletionQueue<'s, P>, entries: u32) -> Result<(), ResizeCqError<P::Error>> {
        let max = self.provider.device_attr().max_cqe;
        if entries == 0 || entries > max {
            return Err(ResizeCqError::Entries { entries, max });
        }
        let handle = cq.handle();
        let ours = self.shared.cqs.get(usize::from(handle.index())).is_some_and(|slot| core::ptr::eq(slot, cq.slot));
        let kept = if ours { self.cqs.get_mut(handle) } else { None };
        let kept = kept.ok_or(ResizeCqError::Stale)?;
        let resized = self.provider.resize_cq(CoreToken::NEW, &mut kept.inner, &mut cq.ring, entries);
        let entries = match resized {
            Ok(entries) => entries,
            Err(error) => return Err(ResizeCqError::Device(self.failed(error))),
        };
        kept.info.entries = entries;
        cq.entries = entries.max(1);
        cq.readable.set(entries.max(1));
        log_event!(debug, "completion queue {:?} has {} entries", handle, entries);
        Ok(())
    }
}
