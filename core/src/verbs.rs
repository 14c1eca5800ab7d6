//! The verbs on one device: its tables, and every operation on them.

use crate::completion::Cq;
use crate::log::format_as;
use crate::queue_pair::Qp;
use crate::region::{Mr, Pd};
use crate::send_queue::{SendState, bind_one, post_list, post_one};
use crate::shared::{NO_NUMBER, Regions, Shared};
use crate::storage::Storage;
use crate::sync::{Lock, Ordering};
use crate::table::TableView;
use crate::window::{Mw, Windows};
use crate::{
    BadWr, BindMwError, CoreToken, DeviceAttr, Gid, MwBind, MwHandle, PortAttr, PostRecvError, PostSendError, Provider,
    QpHandle, QueryError, RecvWr, Rkey, SendBatch, SendBatchError, SendWr, kind, recv_queue,
};

/// The verbs on the device of backend `P`, over tables in a [`Storage`].
///
/// One owner posts, polls and controls through `&mut` and takes no lock. For several cores, queues and interrupt handler are
/// split off, each to be used independently ([`Self::take_send_queue`], [`Self::take_recv_queue`], [`Self::take_cq`],
/// [`Self::take_interrupt_handler`]). What is left is the control path.
///
/// A queue that was returned is used through the verbs again, and not alone:
///
/// ```compile_fail,E0382
/// # use bareverbs::{Provider, SendQueue, Verbs};
/// fn use_after<'s, P: Provider>(verbs: &mut Verbs<'s, P>, mut queue: SendQueue<'s, P>) {
///     let _ = verbs.return_send_queue(queue);
///     queue.ring();
/// }
/// ```
///
/// A queue does not move while a batch is open on it, nor are the verbs used meanwhile if it is theirs:
///
/// ```compile_fail,E0505
/// # use bareverbs::{Provider, SendQueue, Verbs};
/// fn put_back<'s, P: Provider>(verbs: &mut Verbs<'s, P>, mut queue: SendQueue<'s, P>) {
///     let batch = queue.batch();
///     let _ = verbs.return_send_queue(queue);
///     drop(batch);
/// }
/// ```
///
/// ```compile_fail,E0499
/// # use bareverbs::{Provider, QpHandle, Verbs};
/// fn destroy<P: Provider>(verbs: &mut Verbs<'_, P>, qp: QpHandle) {
///     let batch = verbs.send_batch(qp);
///     let _ = verbs.destroy_qp(qp);
///     drop(batch);
/// }
/// ```
///
/// With the queue out and no batch open, both are used side by side:
///
/// ```
/// # use bareverbs::{Provider, SendQueue, Verbs};
/// fn both<'s, P: Provider>(verbs: &mut Verbs<'s, P>, mut queue: SendQueue<'s, P>) {
///     let batch = queue.batch();
///     let _ = verbs.poll_event();
///     drop(batch);
///     let _ = verbs.return_send_queue(queue);
/// }
/// ```
///
/// Only the verbs create what a backend creates: no other code has a [`CoreToken`].
///
/// ```compile_fail,E0423
/// # use bareverbs::{CoreToken, Provider};
/// fn make<P: Provider>(provider: &mut P) {
///     let _ = provider.alloc_pd(CoreToken(()));
/// }
/// ```
///
/// ```compile_fail,E0624
/// # use bareverbs::{CoreToken, Provider};
/// fn make<P: Provider>(provider: &mut P) {
///     let _ = provider.alloc_pd(CoreToken::NEW);
/// }
/// ```
pub struct Verbs<'s, P: Provider> {
    pub(crate) provider: P,
    pub(crate) shared: Shared<'s>,
    pub(crate) pds: &'s mut TableView<kind::Pd, Pd<P>>,
    pub(crate) mrs: &'s mut TableView<kind::Mr, Mr<P>>,
    pub(crate) mws: &'s mut TableView<kind::Mw, Mw<P>>,
    pub(crate) cqs: &'s mut TableView<kind::Cq, Cq<P>>,
    pub(crate) qps: &'s mut TableView<kind::Qp, Qp<P>>,
    pub(crate) events: Option<P::CompletionEvents>,
    /// Completion events that were reported since there was none.
    pub(crate) completions_in_a_row: u16,
    /// Generation that slots start with: differs between devices, so that no handle of one fits the other.
    pub(crate) first_generation: u32,
}

format_as!(
    [P: Provider] Verbs<'_, P>,
    "Verbs(node {:x}, {} queue pairs)",
    |this| this.provider.device_attr().node_guid.0, this.qps.iter().count(),
);

impl<'s, P: Provider> Verbs<'s, P> {
    /// Creates the verbs on a device that is up, without any object. Earlier contents of the storage are forgotten.
    pub fn new<const PD: usize, const MR: usize, const MW: usize, const CQ: usize, const QP: usize>(
        mut provider: P,
        storage: &'s mut Storage<'_, P, PD, MR, MW, CQ, QP>,
    ) -> Self {
        let Storage { pds, mrs, mws, cqs, qps, region_slots, cq_slots, qp_slots, windows } = storage;
        let shared =
            Shared { regions: Regions::new(region_slots), cqs: cq_slots, qps: qp_slots, windows: windows as &'s Lock<Windows> };
        for slot in shared.regions.slots() {
            slot.set(None);
        }
        for slot in shared.cqs {
            slot.cqn.store(NO_NUMBER, Ordering::Relaxed);
        }
        for slot in shared.qps {
            slot.qpn.store(NO_NUMBER, Ordering::Relaxed);
            slot.draining.store(0, Ordering::Relaxed);
        }
        shared.windows.with(Windows::clear);
        let pds: &mut TableView<kind::Pd, Pd<P>> = pds;
        let mrs: &mut TableView<kind::Mr, Mr<P>> = mrs;
        let mws: &mut TableView<kind::Mw, Mw<P>> = mws;
        let cqs: &mut TableView<kind::Cq, Cq<P>> = cqs;
        let qps: &mut TableView<kind::Qp, Qp<P>> = qps;
        pds.clear();
        mrs.clear();
        mws.clear();
        cqs.clear();
        qps.clear();
        let events = provider.take_completion_events(CoreToken::NEW);
        // The multiplier (2^64 over the golden ratio) sets neighbouring GUIDs far apart.
        let first_generation = (provider.device_attr().node_guid.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        Self { provider, shared, pds, mrs, mws, cqs, qps, events, completions_in_a_row: 0, first_generation }
    }

    /// Returns the backend.
    pub const fn provider(&self) -> &P {
        &self.provider
    }

    /// Returns the backend, for its own functions outside of the verbs, such as its health.
    pub const fn provider_mut(&mut self) -> &mut P {
        &mut self.provider
    }

    /// Gives the backend back. The objects that are left are forgotten, not destroyed: destroy them first, or let the device
    /// forget them too.
    ///
    /// # Errors
    /// A queue or the interrupt handler is taken, and could use what the backend then gives to others. The verbs are as before.
    #[expect(clippy::result_large_err, reason = "the verbs themselves are given back")]
    pub fn into_provider(mut self) -> Result<P, Self> {
        let is_out = |qp: &Qp<P>| qp.send.is_none() || qp.recv.is_none();
        let out = self.qps.iter().any(|(_, qp)| is_out(qp))
            || self.cqs.iter().any(|(_, cq)| cq.queue.is_none())
            || self.events.is_none();
        if out || !self.release_events() {
            return Err(self);
        }
        Ok(self.provider)
    }

    /// Returns whether a queue or handler was taken from these verbs.
    pub(crate) fn is_ours(&self, shared: Shared<'_>) -> bool {
        core::ptr::addr_eq(self.shared.windows, shared.windows)
    }

    // ---- device

    /// Returns the attributes of the device.
    pub fn query_device(&self) -> &DeviceAttr {
        self.provider.device_attr()
    }

    fn check_port(&self, port: u8) -> Result<(), QueryError<P::Error>> {
        if port == 0 || port > self.query_device().phys_port_cnt { Err(QueryError::Port { port }) } else { Ok(()) }
    }

    /// Returns the state of a port, from 1.
    ///
    /// # Errors
    /// There is no such port, or the device does not answer.
    pub fn query_port(&mut self, port: u8) -> Result<PortAttr, QueryError<P::Error>> {
        self.check_port(port)?;
        self.provider.query_port(port).map_err(|error| QueryError::Device(self.failed(error)))
    }

    /// Returns an entry of a port's GID table.
    ///
    /// # Errors
    /// There is no such port or entry, or the device does not answer.
    pub fn query_gid(&mut self, port: u8, index: u16) -> Result<Gid, QueryError<P::Error>> {
        self.check_port(port)?;
        self.provider.query_gid(port, index).map_err(|error| QueryError::Device(self.failed(error)))
    }

    /// Returns an entry of a port's P_Key table.
    ///
    /// # Errors
    /// There is no such port or entry, or the device does not answer.
    pub fn query_pkey(&mut self, port: u8, index: u16) -> Result<u16, QueryError<P::Error>> {
        self.check_port(port)?;
        self.provider.query_pkey(port, index).map_err(|error| QueryError::Device(self.failed(error)))
    }

    // ---- requests

    /// Returns the send queue of a queue pair, and what it shares.
    #[inline(always)]
    fn send_state(&mut self, qp: QpHandle) -> Result<(&mut SendState<P>, &Shared<'s>), SendBatchError> {
        match self.qps.get_mut(qp) {
            Some(Qp { send: Some(state), .. }) => Ok((state, &self.shared)),
            Some(_) => Err(SendBatchError::Taken),
            None => Err(SendBatchError::Stale),
        }
    }

    /// Opens the send queue for requests that share a doorbell; the state of the queue pair is checked once, here.
    ///
    /// # Errors
    /// The handle is stale, the queue is taken by [`Self::take_send_queue`], or the queue pair does not send in its state.
    #[inline(always)]
    pub fn send_batch(&mut self, qp: QpHandle) -> Result<SendBatch<'_, P>, SendBatchError> {
        match self.send_state(qp) {
            Ok((state, shared)) => SendBatch::open(state, shared),
            Err(error) => Err(error),
        }
    }

    /// Posts one send and rings the doorbell.
    ///
    /// # Errors
    /// The request is refused, and the queue is as before.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn post_send(&mut self, qp: QpHandle, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        match self.send_state(qp) {
            Ok((state, shared)) => post_one(state, shared, wr),
            Err(error) => Err(error.into()),
        }
    }

    /// Posts sends up to the first that fails, with one doorbell; that one is named and not posted.
    ///
    /// # Errors
    /// A request is refused.
    #[inline]
    pub fn post_send_list(&mut self, qp: QpHandle, list: &[SendWr<'_>]) -> Result<(), BadWr<PostSendError>> {
        match self.send_state(qp) {
            Ok((state, shared)) => post_list(state, shared, list),
            Err(error) => Err(BadWr { index: 0, error: error.into() }),
        }
    }

    /// Notifies the device of sends whose batch was forgotten before its end, in any state of the queue pair: then they
    /// complete, if only as flushed.
    ///
    /// # Errors
    /// The handle is stale, or the queue is taken by [`Self::take_send_queue`].
    pub fn ring_send_queue(&mut self, qp: QpHandle) -> Result<(), PostSendError> {
        let (state, shared) = self.send_state(qp)?;
        crate::send_queue::ring_unannounced(state, shared);
        Ok(())
    }

    /// Binds a type 1 window to part of a region, or unbinds it (`length` 0). The key that it gives is the window's from now
    /// on: requests posted after it on the same queue pair may carry it. The bind itself completes later; if it fails, polling
    /// puts the window back to what it was. After a RESET of the queue pair, or its end, the window is what the device says.
    ///
    /// # Errors
    /// The bind is refused; window and queue are as before.
    pub fn bind_mw(&mut self, qp: QpHandle, mw: MwHandle, bind: &MwBind) -> Result<Rkey, BindMwError> {
        match self.send_state(qp) {
            Ok((state, shared)) => bind_one(state, shared, mw, bind),
            Err(SendBatchError::Taken) => Err(BindMwError::Taken),
            Err(_) => Err(BindMwError::StaleQp),
        }
    }

    /// Posts one receive and rings the doorbell.
    ///
    /// # Errors
    /// The request is refused, and the queue is as before.
    #[cfg_attr(not(feature = "small"), inline)]
    pub fn post_recv(&mut self, qp: QpHandle, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        match self.qps.get_mut(qp) {
            Some(Qp { recv: Some(state), .. }) => recv_queue::post_one(state, &self.shared, wr),
            Some(_) => Err(PostRecvError::Taken),
            None => Err(PostRecvError::Stale),
        }
    }

    /// Posts receives up to the first that fails; that one is named and not posted.
    ///
    /// # Errors
    /// A request is refused.
    pub fn post_recv_list(&mut self, qp: QpHandle, list: &[RecvWr<'_>]) -> Result<(), BadWr<PostRecvError>> {
        match self.qps.get_mut(qp) {
            Some(Qp { recv: Some(state), .. }) => recv_queue::post_list(state, &self.shared, list),
            Some(_) => Err(BadWr { index: 0, error: PostRecvError::Taken }),
            None => Err(BadWr { index: 0, error: PostRecvError::Stale }),
        }
    }
}
