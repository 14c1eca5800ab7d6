//! Creation of a queue pair with the code that its transport needs: a program that knows its transports contains no more.

use crate::send_queue::PostDatagram;
use crate::send_queue::datagram::post_datagram;
use crate::verbs::Verbs;
use crate::{CreateQpError, Provider, QpInit, QpType, QueuePair};

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
    /// assert_eq!(a.verbs.qp(qp.handle())?.state, QpState::Reset);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A handle is stale, a completion queue's value was dropped, the capacities exceed the device's or those of all rings, the
    /// table is full, or the device refuses.
    /// Or stale completions of an earlier queue pair in the slot are not polled yet. Nothing is created.
    // Part of the caller, who may know the transport.
    #[inline(always)]
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QueuePair<'s, P>, CreateQpError<P::Error>> {
        let datagrams: Option<PostDatagram<P>> = match init.qp_type {
            QpType::Ud => Some(post_datagram::<P>),
            QpType::Rc | QpType::Uc | QpType::XrcSend => None,
        };
        self.create_qp_with(init, datagrams)
    }
}
