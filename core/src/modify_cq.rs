//! Moderation of completion events.

use crate::backend::{CoreToken, Provider};
use crate::error::ModifyCqError;
use crate::log::log_event;
use crate::verbs::Verbs;
use crate::{CqHandle, CqModeration};

impl<P: Provider> Verbs<'_, P> {
    /// Sets the moderation of a completion queue's events (`ibv_modify_cq`). Once the queue is armed
    /// ([`CompletionQueue::req_notify`](crate::CompletionQueue::req_notify)), its event comes with the `count`-th completion, or `period`
    /// microseconds after the event before (the first event: after the completion), whichever is first. If an event is already
    /// pending, the device decides; the simulated one raises it at once. Polling is not delayed, nor is the event of a queue that is armed while completions wait in it.
    ///
    /// A queue is created without moderation, and [`CqModeration::default`] ends it. A resize keeps it.
    ///
    /// ```
    /// # use bareverbs::{Access, Event, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # while a.verbs.poll_event()?.is_some() {}
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// use bareverbs::CqModeration;
    ///
    /// a.verbs.modify_cq(qa.cq.handle(), CqModeration { count: 4, period: 1000 })?;
    /// qa.cq.req_notify(false)?;
    /// for n in 1..=4 {
    ///     qa.qp.send.post(&SendWr::write(target.remote(0), b"x").signaled())?;
    ///     # a.network().world().advance(std::time::Duration::from_micros(50));
    ///     // One event for four completions.
    ///     assert_eq!(a.verbs.poll_event()?.is_some(), n == 4);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The handle is stale, the device does not moderate or not by so much ([`DeviceAttr::max_cq_moderation`]), or it refuses. The
    /// moderation is as before.
    ///
    /// [`DeviceAttr::max_cq_moderation`]: crate::DeviceAttr::max_cq_moderation
    pub fn modify_cq(&mut self, cq: CqHandle, moderation: CqModeration) -> Result<(), ModifyCqError<P::Error>> {
        let max = self.provider.device_attr().max_cq_moderation;
        let kept = self.cqs.get(cq).ok_or(ModifyCqError::Stale)?;
        if max == CqModeration::default() {
            return Err(ModifyCqError::Unsupported);
        }
        if moderation.count > max.count || moderation.period > max.period {
            return Err(ModifyCqError::Moderation { asked: moderation, max });
        }
        match self.provider.modify_cq(CoreToken::NEW, &kept.inner, moderation) {
            Ok(()) => log_event!(debug, "completion queue {:?}: {:?}", cq, moderation),
            Err(error) => return Err(ModifyCqError::Device(self.failed(error))),
        }
        Ok(())
    }
}
