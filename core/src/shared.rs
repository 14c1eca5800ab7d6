//! Verbs shared between cores.

use spin::{Mutex, MutexGuard};

use crate::{
    BadWr, BindMwError, Completion, CqHandle, DataPath, Event, MwBind, MwHandle, NotifyCqError, PollCqError, PollEventError,
    PostRecvError, PostSendError, QpHandle, RecvWr, Rkey, SendWr, Verbs,
};

/// [`Verbs`] behind a spin lock, for several cores without an operating system: requests are posted and completions taken
/// through `&self`, everything else through [`Self::lock`].
///
/// The lock is held for the length of one call. An interrupt handler that uses it must not interrupt a core that holds it:
/// mask the interrupt, or use [`Self::try_lock`]. Unshared [`Verbs`] take no lock at all.
pub struct SharedVerbs<
    P: DataPath,
    const PD: usize,
    const MR: usize,
    const MW: usize,
    const CQ: usize,
    const QP: usize,
    const SQ: usize,
    const RQ: usize,
> {
    verbs: Mutex<Verbs<P, PD, MR, MW, CQ, QP, SQ, RQ>>,
}

impl<
    P: DataPath,
    const PD: usize,
    const MR: usize,
    const MW: usize,
    const CQ: usize,
    const QP: usize,
    const SQ: usize,
    const RQ: usize,
> SharedVerbs<P, PD, MR, MW, CQ, QP, SQ, RQ>
{
    /// Puts verbs behind a lock.
    pub const fn new(verbs: Verbs<P, PD, MR, MW, CQ, QP, SQ, RQ>) -> Self {
        Self { verbs: Mutex::new(verbs) }
    }

    /// Waits for the lock, spinning: for several operations that belong together, and for the control path.
    pub fn lock(&self) -> MutexGuard<'_, Verbs<P, PD, MR, MW, CQ, QP, SQ, RQ>> {
        self.verbs.lock()
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Verbs<P, PD, MR, MW, CQ, QP, SQ, RQ>>> {
        self.verbs.try_lock()
    }

    /// Gives the verbs back.
    pub fn into_inner(self) -> Verbs<P, PD, MR, MW, CQ, QP, SQ, RQ> {
        self.verbs.into_inner()
    }

    /// [`Verbs::post_send`].
    pub fn post_send(&self, qp: QpHandle, wr: &SendWr<'_>) -> Result<(), PostSendError<P::Error>> {
        self.lock().post_send(qp, wr)
    }

    /// [`Verbs::post_send_list`].
    pub fn post_send_list(&self, qp: QpHandle, list: &[SendWr<'_>]) -> Result<(), BadWr<PostSendError<P::Error>>> {
        self.lock().post_send_list(qp, list)
    }

    /// [`Verbs::post_recv`].
    pub fn post_recv(&self, qp: QpHandle, wr: &RecvWr<'_>) -> Result<(), PostRecvError<P::Error>> {
        self.lock().post_recv(qp, wr)
    }

    /// [`Verbs::post_recv_list`].
    pub fn post_recv_list(&self, qp: QpHandle, list: &[RecvWr<'_>]) -> Result<(), BadWr<PostRecvError<P::Error>>> {
        self.lock().post_recv_list(qp, list)
    }

    /// [`Verbs::bind_mw`].
    pub fn bind_mw(&self, qp: QpHandle, mw: MwHandle, bind: &MwBind) -> Result<Rkey, BindMwError<P::Error>> {
        self.lock().bind_mw(qp, mw, bind)
    }

    /// [`Verbs::poll_cq`].
    pub fn poll_cq(&self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, PollCqError<P::Error>> {
        self.lock().poll_cq(cq, out)
    }

    /// [`Verbs::req_notify_cq`].
    pub fn req_notify_cq(&self, cq: CqHandle, solicited_only: bool) -> Result<(), NotifyCqError<P::Error>> {
        self.lock().req_notify_cq(cq, solicited_only)
    }

    /// [`Verbs::poll_event`].
    pub fn poll_event(&self) -> Result<Option<Event>, PollEventError<P::Error>> {
        self.lock().poll_event()
    }
}
