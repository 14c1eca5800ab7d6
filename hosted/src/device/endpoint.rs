//! One end of a connection: its domain, memory, completion queues and queue pairs on a device that may carry the other end too.

use anyhow::{Context as _, Result, bail};
use bareverbs::platform::{OutOfRange, Platform};
use bareverbs::{
    Access, AddressHandle, AddressVector, Completion, CqHandle, DmaBuffer as _, NoReceives, PdHandle, QpAttr, QpCap, QpHandle,
    QpInit, QpType, RecvWr, Region, SendQueue, Sge, SharedReceives, SrqCap, SrqInit, Srqn, XrcDomain,
};

use super::bring_up::{Backend, Device};
use super::host::Host;
use super::stoppable::Stoppable;
use crate::data_pattern::Pattern;

/// Retransmissions after a timeout. After an RNR NAK the same value means without limit (ibv_modify_qp(3)).
const RETRIES: u8 = 7;

/// The driver of a device on platform `P`.
type Driver<P> = Backend<Stoppable<P>>;
/// A shared receive queue of it.
type SharedReceiveQueue<P> = bareverbs::SharedReceiveQueue<'static, Driver<P>>;
/// QP1 of a device of a host.
pub(crate) type Carrier<H> = bareverbs_cm::Carrier<'static, Driver<<H as Host>::Platform>, <H as Host>::Buffer>;
/// A completion queue of it.
pub(crate) type CompletionQueue<P> = bareverbs::CompletionQueue<'static, Driver<P>>;

/// A queue pair of it.
pub(crate) enum QueuePair<P: Platform + 'static> {
    /// It has a receive queue of its own.
    Own(bareverbs::QueuePair<'static, Driver<P>>),
    /// It takes its receives from the shared receive queue of its end.
    Shared(bareverbs::QueuePair<'static, Driver<P>, SharedReceives>),
    /// XRC, one for each direction: the shared receive queue of its end has what comes.
    Xrc {
        /// Sends.
        initiator: bareverbs::QueuePair<'static, Driver<P>, NoReceives>,
        /// Receives.
        target: bareverbs::QueuePair<'static, Driver<P>, NoReceives>,
    },
}

impl<P: Platform + 'static> QueuePair<P> {
    /// Returns what posts sends.
    #[inline(always)]
    pub(crate) const fn send(&mut self) -> &mut SendQueue<'static, Driver<P>> {
        match self {
            Self::Own(qp) => &mut qp.send,
            Self::Shared(qp) => &mut qp.send,
            Self::Xrc { initiator, .. } => &mut initiator.send,
        }
    }

    /// Names it: what sends of XRC.
    pub(crate) const fn handle(&self) -> QpHandle {
        match self {
            Self::Own(qp) => qp.handle(),
            Self::Shared(qp) => qp.handle(),
            Self::Xrc { initiator, .. } => initiator.handle(),
        }
    }

    /// Names what receives.
    pub(crate) const fn receiver(&self) -> QpHandle {
        match self {
            Self::Xrc { target, .. } => target.handle(),
            Self::Own(_) | Self::Shared(_) => self.handle(),
        }
    }
}

/// The verbs objects of one end. Queues are named by their place in the order of creation.
pub(crate) struct Endpoint<H: Host> {
    /// The memory for messages.
    pub(crate) region: Region<'static, H::Buffer>,
    pd: PdHandle,
    cqs: Vec<CompletionQueue<H::Platform>>,
    srq: Option<SharedReceiveQueue<H::Platform>>,
    domain: Option<XrcDomain<Driver<H::Platform>>>,
    qps: Vec<QueuePair<H::Platform>>,
    /// Bytes on their way into the memory or out of it.
    scratch: Vec<u8>,
}

impl<H: Host> Endpoint<H> {
    /// Creates the domain, and registers `len` bytes in it.
    ///
    /// # Errors
    /// The host has no such memory, or the device has no room.
    pub(crate) fn new(device: &mut Device<H>, len: usize, access: Access) -> Result<Self> {
        let pd = device.verbs.alloc_pd().context("alloc_pd")?;
        let buffer = device.host.buffer(len).with_context(|| format!("{len} bytes for messages"))?;
        let region = device.verbs.reg_mr(pd, buffer, access).map_err(|refused| refused.error).context("reg_mr")?;
        Ok(Self { region, pd, cqs: Vec::new(), srq: None, domain: None, qps: Vec::new(), scratch: Vec::new() })
    }

    /// Creates a completion queue.
    ///
    /// # Errors
    /// The device has no room for it.
    pub(crate) fn create_cq(&mut self, device: &mut Device<H>, entries: u32) -> Result<CqHandle> {
        let cq = device.verbs.create_cq(entries).with_context(|| format!("create_cq of {entries} entries"))?;
        let handle = cq.handle();
        self.cqs.push(cq);
        Ok(handle)
    }

    /// Creates the shared receive queue, from which queue pairs that are created after it take their receives.
    ///
    /// # Errors
    /// The device has none, or no room for `requests` receives.
    pub(crate) fn create_srq(&mut self, device: &mut Device<H>, requests: u32) -> Result<()> {
        let cap = SrqCap { max_wr: requests, max_sge: 1 };
        let srq = device.verbs.create_srq(&SrqInit { pd: self.pd, cap });
        self.srq = Some(srq.with_context(|| format!("create_srq of {requests} receives"))?);
        Ok(())
    }

    /// Creates an XRC domain with a shared receive queue that completes to the first completion queue. Queue pairs that are created after
    /// it are of XRC. Returns the number of the shared receive queue.
    ///
    /// # Errors
    /// The device has no XRC, or no room for `requests` receives.
    pub(crate) fn create_xrc(&mut self, device: &mut Device<H>, requests: u32) -> Result<Srqn> {
        let domain = self.domain.insert(device.verbs.alloc_xrcd().context("alloc_xrcd")?);
        let cq = self.cqs.first_mut().context("no completion queue")?;
        let init = SrqInit { pd: self.pd, cap: SrqCap { max_wr: requests, max_sge: 1 } };
        let srq = device.verbs.create_xrc_srq(&init, domain, cq);
        let srq = self.srq.insert(srq.with_context(|| format!("create_xrc_srq of {requests} receives"))?);
        Ok(device.verbs.srq_info(srq.handle())?.srqn)
    }

    /// Creates a queue pair that completes to `send_cq` and `recv_cq`.
    ///
    /// # Errors
    /// The device has no room for it, or does not do what `cap` wants.
    pub(crate) fn create_qp(
        &mut self,
        device: &mut Device<H>,
        qp_type: QpType,
        (send_cq, recv_cq): (CqHandle, CqHandle),
        cap: QpCap,
    ) -> Result<QpHandle> {
        let init = QpInit { pd: self.pd, qp_type, send_cq, recv_cq, cap, sq_sig_all: false };
        let qp = match (&self.domain, &self.srq) {
            (Some(domain), _) => {
                let initiator = device.verbs.create_xrc_send_qp(&init, domain).context("create_xrc_send_qp")?;
                let target = device.verbs.create_xrc_recv_qp(domain);
                target.map(|target| QueuePair::Xrc { initiator, target })
            }
            (None, Some(srq)) => device.verbs.create_qp_with_srq(&init, srq.handle()).map(QueuePair::Shared),
            (None, None) => device.verbs.create_qp(&init).map(QueuePair::Own),
        };
        let qp = qp.with_context(|| format!("create_qp of queue pair {}", self.qps.len()))?;
        let handle = qp.handle();
        self.qps.push(qp);
        Ok(handle)
    }

    /// Takes what receives of an XRC queue pair to RTS, as [`Self::connect`] does what sends.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn connect_target(&self, device: &mut Device<H>, queue_pair: usize, attr: &QpAttr) -> Result<()> {
        let qp = self.qps.get(queue_pair).with_context(|| format!("no queue pair {queue_pair}"))?.receiver();
        let av = AddressVector { port_num: attr.port_num, ..attr.av };
        device.verbs.modify_qp_to_rts(qp, &QpAttr { av, ..*attr }).with_context(|| format!("connecting target {queue_pair}"))
    }

    /// Takes a queue pair from RESET to RTS. The retries of `attr` and the port of its
    /// address vector are set here.
    ///
    /// # Errors
    /// There is no such queue pair, or a transition was refused.
    pub(crate) fn connect(&self, device: &mut Device<H>, queue_pair: usize, attr: &QpAttr) -> Result<()> {
        let qp = self.qps.get(queue_pair).with_context(|| format!("no queue pair {queue_pair}"))?.handle();
        let av = AddressVector { port_num: attr.port_num, ..attr.av };
        let attr = QpAttr { av, retry_cnt: RETRIES, rnr_retry: RETRIES, ..*attr };
        device.verbs.modify_qp_to_rts(qp, &attr).with_context(|| format!("connecting queue pair {queue_pair}"))
    }

    /// Makes the address of a port, for datagrams.
    ///
    /// # Errors
    /// The device has no such address.
    pub(crate) fn create_ah(&self, device: &mut Device<H>, port: u8, av: &AddressVector) -> Result<AddressHandle> {
        let av = AddressVector { port_num: port, ..*av };
        device.verbs.create_ah(self.pd, &av).context("create_ah")
    }

    /// Takes a queue pair to RESET, and drops the completions that are there of it. Those of others are lost.
    ///
    /// # Errors
    /// There is no such queue pair, the device refuses the transition, or a completion queue is broken.
    pub(crate) fn reset(&mut self, device: &mut Device<H>, queue_pair: usize) -> Result<()> {
        let qp = self.qps.get_mut(queue_pair).with_context(|| format!("no queue pair {queue_pair}"))?;
        match qp {
            QueuePair::Own(qp) => device.verbs.reset_qp(qp),
            QueuePair::Shared(qp) => device.verbs.reset_qp(qp),
            QueuePair::Xrc { initiator, target } => {
                device.verbs.reset_qp(initiator).and_then(|()| device.verbs.reset_qp(target))
            }
        }
        .context("reset_qp")?;
        // The queue pair leaves RESET after its completion queues were found empty.
        for cq in &mut self.cqs {
            while cq.poll(&mut [Completion::EMPTY; 16]).context("poll_cq")? != 0 {}
        }
        Ok(())
    }

    /// Returns the domain.
    pub(crate) const fn pd(&self) -> PdHandle {
        self.pd
    }

    /// Returns the queue pairs.
    pub(crate) fn qps(&mut self) -> &mut [QueuePair<H::Platform>] {
        &mut self.qps
    }

    /// Returns a queue pair.
    ///
    /// # Errors
    /// There is no such queue pair.
    #[inline]
    pub(crate) fn qp(&mut self, queue_pair: usize) -> Result<&mut QueuePair<H::Platform>> {
        self.qps.get_mut(queue_pair).context("no such queue pair")
    }

    /// Returns a completion queue.
    ///
    /// # Errors
    /// There is no such completion queue.
    #[inline]
    pub(crate) fn cq(&mut self, completion_queue: usize) -> Result<&mut CompletionQueue<H::Platform>> {
        self.cqs.get_mut(completion_queue).context("no such completion queue")
    }

    /// Requests an event for the next completion of each queue. A completion that is there already gives none.
    ///
    /// # Errors
    /// The device is broken.
    pub(crate) fn request_events(&mut self) -> Result<()> {
        self.cqs.iter_mut().try_for_each(|cq| cq.req_notify(false).context("req_notify"))
    }

    /// Returns `len` bytes of the memory from `at`, for a request.
    pub(crate) const fn sge(&self, at: usize, len: usize) -> Sge {
        self.region.sge(at as u64, len as u32)
    }

    /// Posts a receive into the memory from `at`: to the queue pair, or to the shared receive queue that it takes from.
    ///
    /// # Errors
    /// There is no such queue pair, or the queue is full.
    pub(crate) fn post_receive(&mut self, queue_pair: usize, wr_id: u64, at: usize, len: usize) -> Result<()> {
        let sges = [self.sge(at, len)];
        let wr = RecvWr { wr_id, sges: &sges };
        match (self.qps.get_mut(queue_pair).context("no such queue pair")?, &mut self.srq) {
            (QueuePair::Own(qp), _) => qp.recv.post(&wr),
            (QueuePair::Shared(_) | QueuePair::Xrc { .. }, Some(srq)) => srq.post(&wr),
            (QueuePair::Shared(_) | QueuePair::Xrc { .. }, None) => bail!("the shared receive queue is gone"),
        }
        .context("post of a receive")
    }

    /// Writes `len` bytes of a pattern from `at`.
    ///
    /// # Errors
    /// They do not lie in the memory.
    pub(crate) fn fill(&mut self, at: usize, len: usize, pattern: Pattern) -> Result<(), OutOfRange> {
        self.scratch.resize(len, 0);
        pattern.fill(&mut self.scratch);
        self.region.write(at, &self.scratch)
    }

    /// Writes `len` zeros from `at`.
    ///
    /// # Errors
    /// They do not lie in the memory.
    pub(crate) fn clear(&mut self, at: usize, len: usize) -> Result<(), OutOfRange> {
        self.scratch.clear();
        self.scratch.resize(len, 0);
        self.region.write(at, &self.scratch)
    }

    /// Returns a copy of `len` bytes from `at`.
    ///
    /// # Errors
    /// They do not lie in the memory.
    pub(crate) fn read(&mut self, at: usize, len: usize) -> Result<&[u8], OutOfRange> {
        self.scratch.resize(len, 0);
        self.region.read(at, &mut self.scratch)?;
        Ok(&self.scratch)
    }

    /// Compares `len` bytes from `at` with a pattern.
    ///
    /// # Errors
    /// A byte differs, or they do not lie in the memory.
    pub(crate) fn verify(&mut self, at: usize, len: usize, pattern: Pattern) -> Result<()> {
        match pattern.differs(self.read(at, len)?) {
            None => Ok(()),
            Some((byte, want, have)) => bail!("wrong data: byte {byte} of {len} is {have:#04x} instead of {want:#04x}"),
        }
    }

    /// Returns the word at `at`, in this machine's byte order.
    ///
    /// # Errors
    /// It does not lie in the memory.
    pub(crate) fn load(&self, at: usize) -> Result<u64, OutOfRange> {
        let mut word = [0; 8];
        self.region.read(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Sets the word at `at`, in this machine's byte order.
    ///
    /// # Errors
    /// It does not lie in the memory.
    pub(crate) fn store(&mut self, at: usize, value: u64) -> Result<(), OutOfRange> {
        self.region.write(at, &value.to_ne_bytes())
    }

    /// Destroys the queue pairs and the completion queues; others can be created after.
    ///
    /// # Errors
    /// The device does not destroy one.
    pub(crate) fn destroy_queues(&mut self, device: &mut Device<H>) -> Result<()> {
        for qp in self.qps.drain(..) {
            match qp {
                QueuePair::Own(qp) => device.verbs.destroy_qp(qp).map_err(|refused| refused.error),
                QueuePair::Shared(qp) => device.verbs.destroy_qp(qp).map_err(|refused| refused.error),
                QueuePair::Xrc { initiator, target } => {
                    device.verbs.destroy_qp(initiator).map_err(|refused| refused.error).context("destroy_qp")?;
                    device.verbs.destroy_qp(target).map_err(|refused| refused.error)
                }
            }
            .context("destroy_qp")?;
        }
        if let Some(srq) = self.srq.take() {
            device.verbs.destroy_srq(srq).map_err(|refused| refused.error).context("destroy_srq")?;
        }
        if let Some(domain) = self.domain.take() {
            device.verbs.dealloc_xrcd(domain).map_err(|refused| refused.error).context("dealloc_xrcd")?;
        }
        for cq in self.cqs.drain(..) {
            device.verbs.destroy_cq(cq).map_err(|refused| refused.error).context("destroy_cq")?;
        }
        Ok(())
    }

    /// Destroys every object.
    ///
    /// # Errors
    /// The device does not destroy one.
    pub(crate) fn destroy(mut self, device: &mut Device<H>) -> Result<()> {
        self.destroy_queues(device)?;
        device.verbs.dereg_mr(self.region).map_err(|refused| refused.error).context("dereg_mr")?;
        device.verbs.dealloc_pd(self.pd).context("dealloc_pd")
    }
}
