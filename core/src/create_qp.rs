//! Creation of a queue pair with the code that its transport needs: a program that knows its transports contains no more.

use crate::backend::Provider;
use crate::error::CreateQpError;
use crate::recv_queue::SharedReceives;
use crate::send_queue::PostNamed;
use crate::send_queue::datagram::post_datagram;
use crate::verbs::Verbs;
use crate::{QpInit, QpType, QueuePair, SrqHandle};

impl<'s, P: Provider> Verbs<'s, P> {
    /// Creates a queue pair in RESET. Of the free rings it gets the smallest in which its requests fit. Its completion queues
    /// must have room for what these rings admit ([`Self::ring_sizes`]), or the program for less in flight.
    ///
    /// ```
    /// # use bareverbs::{QpCap, QpInit, QpState, QpType};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    /// let cq = a.verbs.create_cq(256)?;
    /// let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    /// let qp = a.verbs.create_qp(&QpInit { pd: a.pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true })?;
    /// assert_eq!(a.verbs.qp_info(qp.handle())?.state, QpState::Reset);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The transport is XRC, which [`Self::create_xrc_send_qp`] is for. A handle is stale, a completion queue's value was dropped, the
    /// capacities exceed the device's or those of all rings, the
    /// table is full, or the device refuses.
    /// Or stale completions of an earlier queue pair in the slot are not polled yet. Nothing is created.
    // Part of the caller, who may know the transport.
    #[inline(always)]
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QueuePair<'s, P>, CreateQpError<P::Error>> {
        if init.qp_type.is_xrc() {
            return Err(CreateQpError::NoXrcDomain);
        }
        self.create_qp_with(init, None, datagrams(init.qp_type))
    }

    /// Creates a queue pair in RESET that takes its receives from a shared receive queue, in place of a receive queue of its own. The
    /// capacities for receives in `init` are ignored. Its transport is [`QpType::Rc`] or [`QpType::Ud`]: IBTA has shared receive queues
    /// for no unreliable connection (10.2.9.1). All else is as for [`Self::create_qp`].
    ///
    /// The completion queue `init.recv_cq` must have room for each request of the shared receive queue, since this queue pair may take
    /// them all. Several queue pairs may share it.
    ///
    /// ```
    /// # use bareverbs::{Access, QpCap, QpInit, QpType, RecvWr, SendWr, SrqCap, SrqInit};
    /// # use bareverbs_testing::{Connection, Faults, connect, join, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut sender, _] = connect(&mut a, &mut b)?;
    /// let mut srq = b.verbs.create_srq(&SrqInit { pd: b.pd, cap: SrqCap { max_wr: 15, max_sge: 1 } })?;
    /// let mut cq = b.verbs.create_cq(64)?;
    /// let cap = QpCap { max_send_wr: 16, max_send_sge: 1, ..QpCap::default() };
    /// let (send_cq, recv_cq) = (cq.handle(), cq.handle());
    /// let init = QpInit { pd: b.pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: true };
    /// let qp = b.verbs.create_qp_with_srq(&init, srq.handle())?;
    /// # a.verbs.reset_qp(&mut sender.qp)?;
    /// # join((&mut a.verbs, sender.qp.handle()), (&mut b.verbs, qp.handle()), &Connection::default())?;
    /// # let inbox = b.register(64, Access::LOCAL_WRITE)?;
    /// // Once it is connected: what its peer sends takes a receive of the shared queue.
    /// srq.post(&RecvWr { wr_id: 5, sges: &[inbox.sge(0, 64)] })?;
    /// # sender.qp.send.post(&SendWr::send(b"hello"))?;
    /// let received = b.waiter().wait(&mut cq)?;
    /// assert_eq!((received.wr_id, received.qp), (5, qp.handle()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// # Errors
    /// [`CreateQpError`]: a handle is stale, the transport has no shared receive queues, the device has no such capacities, table or rings
    /// are in use, or the device refuses. Nothing is created.
    #[inline(always)]
    pub fn create_qp_with_srq(
        &mut self,
        init: &QpInit,
        srq: SrqHandle,
    ) -> Result<QueuePair<'s, P, SharedReceives>, CreateQpError<P::Error>> {
        let QueuePair { send, recv: _ } = self.create_qp_with(init, Some(srq), datagrams(init.qp_type))?;
        Ok(QueuePair { send, recv: SharedReceives::of(srq) })
    }
}

/// Returns what posts datagrams, if the transport is theirs.
#[inline(always)]
fn datagrams<P: Provider>(qp_type: QpType) -> Option<PostNamed<P>> {
    match qp_type {
        QpType::Ud | QpType::Gsi => Some(post_datagram::<P>),
        QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv => None,
    }
}
