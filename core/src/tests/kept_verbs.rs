// Verbs that keep their queues, so that scenarios name them by handle. The package of whole-stack tests includes the file.

use core::ops::{Deref, DerefMut};
use std::vec::Vec;

use bareverbs::backend::Provider;
use bareverbs::error::{
    BadWr, BindType1Error, CreateCqError, CreateQpError, DestroyCqError, DestroyQpError, ModifyQpError, NotifyCqError,
    PollCqError, PostRecvError, PostSendError,
};
use bareverbs::{
    Completion, CompletionQueue, Completions, CqHandle, MwHandle, NoReceives, QpAttr, QpAttrMask, QpHandle, QpInit, QpState,
    QpType, QueuePair, RecvQueue, RecvWr, Refused, Rkey, SendBatch, SendQueue, SendWr, Source, Type1Bind, Verbs, XrcDomain,
};

/// [`Verbs`] and the queues that they made.
pub struct KeptVerbs<P: Provider + 'static> {
    verbs: Verbs<'static, P>,
    sends: Vec<SendQueue<'static, P>>,
    recvs: Vec<RecvQueue<'static, P>>,
    cqs: Vec<CompletionQueue<'static, P>>,
    /// What initiators of XRC have in place of receive queues.
    nothing: Vec<(QpHandle, NoReceives)>,
    /// The domain of initiators, made with the first of them.
    domain: Option<XrcDomain<P>>,
}

impl<P: Provider> Deref for KeptVerbs<P> {
    type Target = Verbs<'static, P>;

    fn deref(&self) -> &Self::Target {
        &self.verbs
    }
}

impl<P: Provider> DerefMut for KeptVerbs<P> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.verbs
    }
}

impl<P: Provider> KeptVerbs<P> {
    /// Keeps the queues of these verbs.
    pub fn new(verbs: Verbs<'static, P>) -> Self {
        Self { verbs, sends: Vec::new(), recvs: Vec::new(), cqs: Vec::new(), nothing: Vec::new(), domain: None }
    }

    /// Returns the verbs themselves, for calls that this type has too.
    pub fn verbs_mut(&mut self) -> &mut Verbs<'static, P> {
        &mut self.verbs
    }

    /// Drops every queue that is kept.
    pub fn into_verbs(self) -> Verbs<'static, P> {
        self.verbs
    }

    /// Creates a completion queue, which is kept.
    pub fn create_cq(&mut self, entries: u32) -> Result<CqHandle, CreateCqError<P::Error>> {
        let cq = self.verbs.create_cq(entries)?;
        let handle = cq.handle();
        self.cqs.push(cq);
        Ok(handle)
    }

    /// Creates a queue pair, which is kept.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QpHandle, CreateQpError<P::Error>> {
        if init.qp_type == QpType::XrcSend {
            return self.create_initiator(init);
        }
        let qp = self.verbs.create_qp(init)?;
        let handle = qp.handle();
        self.keep_qp(qp);
        Ok(handle)
    }

    /// Creates an initiator of XRC in a domain of its own kind, whose send queue is kept.
    fn create_initiator(&mut self, init: &QpInit) -> Result<QpHandle, CreateQpError<P::Error>> {
        if self.domain.is_none() {
            self.domain = Some(self.verbs.alloc_xrcd().map_err(|_| CreateQpError::NoXrcDomain)?);
        }
        let domain = self.domain.as_ref().expect("made above");
        let qp = self.verbs.create_xrc_send_qp(init, domain)?;
        let handle = qp.handle();
        self.keep_initiator(qp);
        Ok(handle)
    }

    fn keep_initiator(&mut self, qp: QueuePair<'static, P, NoReceives>) {
        self.nothing.push((qp.handle(), qp.recv));
        self.sends.push(qp.send);
    }

    /// Hands out an initiator, if this is one that is kept.
    fn take_initiator(&mut self, qp: QpHandle) -> Option<QueuePair<'static, P, NoReceives>> {
        let at = self.nothing.iter().position(|(of, _)| *of == qp)?;
        let (_, recv) = self.nothing.remove(at);
        Some(QueuePair { send: self.take_send(qp), recv })
    }

    /// Returns a send queue that is kept.
    pub fn send(&mut self, qp: QpHandle) -> &mut SendQueue<'static, P> {
        self.sends.iter_mut().find(|kept| kept.qp() == qp).expect("a send queue that is kept")
    }

    /// Returns a receive queue that is kept.
    pub fn recv(&mut self, qp: QpHandle) -> &mut RecvQueue<'static, P> {
        self.recvs.iter_mut().find(|kept| kept.qp() == qp).expect("a receive queue that is kept")
    }

    /// Returns a completion queue that is kept.
    pub fn queue(&mut self, cq: CqHandle) -> &mut CompletionQueue<'static, P> {
        self.cqs.iter_mut().find(|kept| kept.handle() == cq).expect("a completion queue that is kept")
    }

    /// Hands out a send queue.
    pub fn take_send(&mut self, qp: QpHandle) -> SendQueue<'static, P> {
        let at = self.sends.iter().position(|kept| kept.qp() == qp).expect("a send queue that is kept");
        self.sends.remove(at)
    }

    /// Hands out a receive queue.
    pub fn take_recv(&mut self, qp: QpHandle) -> RecvQueue<'static, P> {
        let at = self.recvs.iter().position(|kept| kept.qp() == qp).expect("a receive queue that is kept");
        self.recvs.remove(at)
    }

    /// Hands out a queue pair.
    pub fn take_qp(&mut self, qp: QpHandle) -> QueuePair<'static, P> {
        QueuePair { send: self.take_send(qp), recv: self.take_recv(qp) }
    }

    /// Returns whether both queues of a queue pair are kept.
    fn is_whole(&self, qp: QpHandle) -> bool {
        self.sends.iter().any(|kept| kept.qp() == qp) && self.recvs.iter().any(|kept| kept.qp() == qp)
    }

    /// Hands out a completion queue.
    pub fn take_cq(&mut self, cq: CqHandle) -> CompletionQueue<'static, P> {
        let at = self.cqs.iter().position(|kept| kept.handle() == cq).expect("a completion queue that is kept");
        self.cqs.remove(at)
    }

    /// Keeps a queue pair.
    pub fn keep_qp(&mut self, qp: QueuePair<'static, P>) {
        self.sends.push(qp.send);
        self.recvs.push(qp.recv);
    }

    /// Keeps a receive queue.
    pub fn keep_recv(&mut self, recv: RecvQueue<'static, P>) {
        self.recvs.push(recv);
    }

    /// Keeps a send queue.
    pub fn keep_send(&mut self, send: SendQueue<'static, P>) {
        self.sends.push(send);
    }

    /// Keeps a completion queue.
    pub fn keep_cq(&mut self, cq: CompletionQueue<'static, P>) {
        self.cqs.push(cq);
    }

    /// Destroys a queue pair; one that is refused is kept.
    pub fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), DestroyQpError<P::Error>> {
        if let Some(initiator) = self.take_initiator(qp) {
            return self.verbs.destroy_qp(initiator).map_err(|Refused { error, returned }| {
                self.keep_initiator(returned.expect("the initiator"));
                error
            });
        }
        if !self.is_whole(qp) {
            return self.verbs.destroy_dropped_qp(qp);
        }
        let whole = self.take_qp(qp);
        self.verbs.destroy_qp(whole).map_err(|Refused { error, returned }| {
            self.keep_qp(returned.expect("the queue pair"));
            error
        })
    }

    /// Destroys a completion queue; one that is refused is kept.
    pub fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), DestroyCqError<P::Error>> {
        let Some(at) = self.cqs.iter().position(|kept| kept.handle() == cq) else {
            return self.verbs.destroy_dropped_cq(cq);
        };
        let cq = self.cqs.remove(at);
        self.verbs.destroy_cq(cq).map_err(|Refused { error, returned }| {
            self.cqs.extend(returned);
            error
        })
    }

    /// Changes a queue pair, also to RESET.
    pub fn modify_qp(&mut self, qp: QpHandle, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyQpError<P::Error>> {
        if mask == QpAttrMask::STATE && attr.state == QpState::Reset && self.is_whole(qp) {
            let mut whole = self.take_qp(qp);
            let done = self.verbs.reset_qp(&mut whole);
            self.keep_qp(whole);
            return done;
        }
        if mask == QpAttrMask::STATE
            && attr.state == QpState::Reset
            && let Some(mut initiator) = self.take_initiator(qp)
        {
            let done = self.verbs.reset_qp(&mut initiator);
            self.keep_initiator(initiator);
            return done;
        }
        let mut done = self.verbs.modify_qp(qp, attr, mask);
        if matches!(done, Err(ModifyQpError::Draining)) {
            // What was there before a RESET is dropped when it is polled.
            self.poll_empty(qp);
            done = self.verbs.modify_qp(qp, attr, mask);
        }
        done?;
        // What batches have left is for whoever has the queue to announce.
        if mask.contains(QpAttrMask::STATE)
            && attr.state == QpState::Err
            && let Some(send) = self.sends.iter_mut().find(|kept| kept.qp() == qp)
        {
            send.ring();
        }
        Ok(())
    }

    /// Rings for what batches have left.
    pub fn ring_send_queue(&mut self, qp: QpHandle) {
        self.send(qp).ring();
    }

    /// Gives the backend back, after every queue that is kept was dropped.
    #[expect(clippy::result_large_err, reason = "the verbs themselves are given back")]
    pub fn into_provider(self) -> Result<P, Verbs<'static, P>> {
        self.into_verbs().into_provider()
    }

    /// Takes what is in the completion queues of a queue pair, as far as they are kept. What is of other queue pairs is lost.
    fn poll_empty(&mut self, qp: QpHandle) {
        let Ok(info) = self.verbs.qp_info(qp) else { return };
        for cq in [info.send_cq, info.recv_cq] {
            if let Some(queue) = self.cqs.iter_mut().find(|kept| kept.handle() == cq) {
                // Twice: an error ends a poll.
                for _ in 0..2 {
                    queue.completions().take_while(Result::is_ok).for_each(drop);
                }
            }
        }
    }

    /// Posts a send.
    pub fn post_send(&mut self, qp: QpHandle, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.send(qp).post(wr)
    }

    /// Posts sends.
    pub fn post_send_list(&mut self, qp: QpHandle, list: &[SendWr<'_>]) -> Result<(), BadWr<PostSendError>> {
        self.send(qp).post_list(list)
    }

    /// Opens a batch of sends.
    pub fn send_batch(&mut self, qp: QpHandle) -> SendBatch<'_, P> {
        self.send(qp).batch()
    }

    /// Binds a type 1 window.
    pub fn bind_type1(&mut self, qp: QpHandle, mw: MwHandle, bind: &Type1Bind) -> Result<Rkey, BindType1Error> {
        self.send(qp).bind_type1(mw, bind)
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, qp: QpHandle, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.recv(qp).post(wr)
    }

    /// Posts receives.
    pub fn post_recv_list(&mut self, qp: QpHandle, list: &[RecvWr<'_>]) -> Result<(), BadWr<PostRecvError>> {
        self.recv(qp).post_list(list)
    }

    /// Takes completions into an array.
    pub fn poll_cq(&mut self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, PollCqError> {
        self.queue(cq).poll(out)
    }

    /// Takes completions into an array, with their sources.
    pub fn poll_with_source(&mut self, cq: CqHandle, out: &mut [(Completion, Option<Source>)]) -> Result<usize, PollCqError> {
        self.queue(cq).poll_with_source(out)
    }

    /// Iterates over completions.
    pub fn completions(&mut self, cq: CqHandle) -> Completions<'_, P> {
        self.queue(cq).completions()
    }

    /// Arms a completion queue.
    pub fn req_notify_cq(&mut self, cq: CqHandle, solicited_only: bool) -> Result<(), NotifyCqError> {
        self.queue(cq).req_notify(solicited_only)
    }
}
