//! Completion queues as their owners have them: asked for events; [`poll`] and [`flush`] take completions.

pub(crate) mod flush;
pub(crate) mod poll;

use core::cell::Cell;

use crate::backend::{CqRing, Provider, RawCompletion};
use crate::error::{NotifyCqError, PollCqError};
use crate::log::format_as;
use crate::shared::{CqSlot, Owner, Shared};
use crate::sync::Ordering;
use crate::{Completion, CqHandle, Cqn};

/// Attributes of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct CqInfo {
    /// Number.
    pub cqn: Cqn,
    /// Completions that it has room for.
    pub entries: u32,
    /// Interrupt vector of its events.
    pub vector: u16,
}

/// A completion queue as the control path keeps it.
pub(crate) struct Cq<P: Provider> {
    pub(crate) inner: P::Cq,
    pub(crate) info: CqInfo,
    /// Work queues that complete into it.
    pub(crate) users: u32,
}

/// A completion queue: its owner polls, on any core. It refers to its slot directly, so that no poll searches.
///
/// A value that is dropped leaves a queue that cannot be polled. [`Verbs::destroy_dropped_cq`](crate::Verbs::destroy_dropped_cq) destroys that.
#[must_use = "nobody polls a completion queue whose value is dropped"]
pub struct CompletionQueue<'s, P: Provider> {
    pub(crate) ring: P::CqRing,
    pub(crate) slot: &'s CqSlot,
    pub(crate) shared: Shared<'s>,
    pub(crate) handle: CqHandle,
    pub(crate) cqn: Cqn,
    /// Entries of the ring.
    pub(crate) entries: u32,
    /// Entries that are still taken from the ring once the device is lost: what had come by then, and no more than the ring has,
    /// since the device may write on. 0: it is not read any more.
    pub(crate) readable: Cell<u32>,
    /// The queue pair whose request was flushed last.
    pub(crate) flushing: Cell<u16>,
    /// Take completions of no queue pair, and what a lost device has left: those of XRC, once one of its shared receive queues completes
    /// here. A program that creates none does not contain them.
    pub(crate) unknown: TakeUnknown<P>,
    pub(crate) flush: FlushNext<P>,
    /// Whether XRC shared receive queues complete here: then each receive says by its cookie whose it is, and no queue pair is remembered
    /// by its number.
    pub(crate) has_xrc: bool,
    /// Last, so that the ring is dropped before the control path may destroy it.
    pub(crate) _owner: Owner<'s>,
}

format_as!([P: Provider] CompletionQueue<'_, P>, "CompletionQueue({:?})", |this| this.handle());

impl<P: Provider> Cq<P> {
    pub(crate) const fn info(&self) -> CqInfo {
        self.info
    }

    pub(crate) const fn inner(&self) -> &P::Cq {
        &self.inner
    }
}

impl<P: Provider> CompletionQueue<'_, P> {
    /// Returns the handle of the queue.
    pub const fn handle(&self) -> CqHandle {
        self.handle
    }

    /// Returns the number of the queue on its device.
    pub const fn cqn(&self) -> Cqn {
        self.cqn
    }

    /// Asks for an event when the next completion comes, or only at the next solicited or failed one.
    ///
    /// ```
    /// # use bareverbs::{Access, Event, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// # while a.verbs.poll_event()?.is_some() {}
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// qa.cq.req_notify(false)?;
    /// qa.qp.send.post(&SendWr::write(target.remote(0), b"x"))?;
    /// # a.network().world().advance(std::time::Duration::from_millis(1));
    /// assert_eq!(a.verbs.poll_event()?, Some(Event::Completion(qa.cq.handle())));
    /// // One event for one request. Whoever polls arms the queue first, so that no completion comes unseen between.
    /// qa.cq.req_notify(false)?;
    /// assert_eq!(qa.cq.completions().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// # Errors
    /// The device is lost: no event would come.
    pub fn req_notify(&mut self, solicited_only: bool) -> Result<(), NotifyCqError> {
        match self.slot.loss() {
            Some(loss) => Err(NotifyCqError::DeviceLost { loss }),
            None => {
                self.arm(solicited_only);
                Ok(())
            }
        }
    }

    fn arm(&mut self, solicited_only: bool) {
        self.ring.arm(self.slot.events.load(Ordering::Acquire), solicited_only);
    }

    /// Returns whether there is something to poll; if not, the task of `cx` is woken when there may be, and the device is asked
    /// for an event. After a RESET or the end of a queue pair it is ready once too, though a poll may find nothing.
    ///
    /// ```
    /// # use bareverbs::SendWr;
    /// # use std::task::{Context, Waker};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let mut cx = Context::from_waker(Waker::noop());
    /// # let target = b.register(64, bareverbs::Access::LOCAL_WRITE | bareverbs::Access::REMOTE_WRITE)?;
    /// assert!(qa.cq.poll_ready(&mut cx).is_pending());
    /// qa.qp.send.post(&SendWr::write(target.remote(0), b"hello").signaled())?;
    /// // The task waits in `std::future::poll_fn(|cx| qa.cq.poll_ready(cx)).await`.
    /// while qa.cq.poll_ready(&mut cx).is_pending() {
    ///     a.verbs.poll_event()?;
    /// }
    /// assert!(qa.cq.completions().next().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Events come to the queue by [`Verbs::poll_event`](crate::Verbs::poll_event) or by [`crate::InterruptHandler`], one of which the
    /// program has to call.
    ///
    /// A waker that panics does so in the call that found the event. The tasks of the other queues are still woken, while that call
    /// unwinds. If the waker of another one panics too, Rust ends the program, as after each panic in a destructor. So a waker must not
    /// panic because its executor refuses a task.
    #[cfg(feature = "multicore")]
    pub fn poll_ready(&mut self, cx: &mut core::task::Context<'_>) -> core::task::Poll<()> {
        use crate::backend::{CqReader, Peek};
        use core::task::Poll;
        let slot = self.slot;
        if self.ring.reader().peek() != Peek::Empty {
            return Poll::Ready(());
        }
        slot.waker.register(cx.waker());
        // A poll that finds nothing reports that the queue is drained, or broken.
        let draining = slot.clean_wanted.load(Ordering::Acquire) != slot.clean_done.load(Ordering::Relaxed);
        if draining || slot.broken.load(Ordering::Relaxed) != 0 {
            return Poll::Ready(());
        }
        self.arm(false);
        // What came before the queue was armed gives no event.
        if self.ring.reader().peek() != Peek::Empty { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until there is something to poll: [`Self::poll_ready`].
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use std::task::{Context, Poll, Waker};
    /// # use bareverbs::backend::Provider;
    /// # use bareverbs::error::PollCqError;
    /// # use bareverbs::{Access, Completion, CompletionQueue, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// async fn next<P: Provider>(cq: &mut CompletionQueue<'_, P>) -> Result<Completion, PollCqError> {
    ///     loop {
    ///         if let Some(found) = cq.completions().next() {
    ///             return found;
    ///         }
    ///         cq.ready().await;
    ///     }
    /// }
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// # let (mut task, mut cx) = (pin!(next(&mut qa.cq)), Context::from_waker(Waker::noop()));
    /// # assert!(task.as_mut().poll(&mut cx).is_pending());
    /// # qa.qp.send.post(&SendWr::write(target.remote(0), b"x").id(7))?;
    /// # a.network().world().advance(std::time::Duration::from_millis(1));
    /// # let Poll::Ready(done) = task.poll(&mut cx) else { panic!("there is a completion") };
    /// # assert_eq!(done?.wr_id, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "multicore")]
    pub fn ready(&mut self) -> impl Future<Output = ()> {
        core::future::poll_fn(|cx| self.poll_ready(cx))
    }
}

/// The lower half of the cookie of an XRC shared receive queue, whose slot is the upper. No queue pair has such a slot: a table has 65,535
/// at most. So no completion of the queue is taken for one of a queue pair that has the number of a target by then.
pub(crate) const XRC_COOKIE: u16 = u16::MAX;

/// Places of shared receive queues that the bits of a cookie above [`XRC_COOKIE`] can name: devices give 24 bits of it back.
pub(crate) const XRC_SRQS: usize = 1 << (24 - u16::BITS);

/// Returns whether a completion with this cookie is of an XRC shared receive queue.
pub(crate) const fn is_xrc(cookie: Option<u32>) -> bool {
    matches!(cookie, Some(cookie) if cookie as u16 == XRC_COOKIE)
}

/// Takes a completion that names no queue pair which completes here, with its cookie.
pub(crate) type TakeUnknown<P> =
    fn(&CompletionQueue<'_, P>, &RawCompletion, Option<u32>) -> Result<Option<Completion>, PollCqError>;

/// Flushes the next request that completes into a queue and that a lost device has left.
pub(crate) type FlushNext<P> = fn(&CompletionQueue<'_, P>) -> Option<Completion>;

/// Implements [`TakeUnknown`] for a queue into which queue pairs alone complete.
#[inline(never)]
pub(crate) fn unknown<P: Provider>(
    queue: &CompletionQueue<'_, P>,
    raw: &RawCompletion,
    _cookie: Option<u32>,
) -> Result<Option<Completion>, PollCqError> {
    Err(PollCqError::UnknownQp { qpn: raw.qpn, cqn: queue.cqn })
}
