//! Queues that are split off from the verbs: used independently, returned, and what is refused meanwhile.

use super::mock::Mock;
use super::post::send;
use super::{BASE, Harness, set_state};
use crate::{
    Access, BindMwError, CompletionQueue, DestroyCqError, DestroyQpError, Errno, ModifyQpError, MwBind, MwType, NotifyCqError,
    PollCqError, PostRecvError, PostSendError, QpAttr, QpAttrMask, QpState, RecvQueue, RecvWr, SendBatchError, SendFlags,
    SendQueue, TakeError, WcStatus,
};

/// All queues of a harness.
struct Queues {
    send: SendQueue<'static, Mock>,
    recv: RecvQueue<'static, Mock>,
    cq: CompletionQueue<'static, Mock>,
}

impl Queues {
    fn of(harness: &mut Harness) -> Self {
        Self {
            send: harness.verbs.take_send_queue(harness.qp).unwrap(),
            recv: harness.verbs.take_recv_queue(harness.qp).unwrap(),
            cq: harness.verbs.take_cq(harness.cq).unwrap(),
        }
    }

    fn put_back(self, harness: &mut Harness) {
        assert!(harness.verbs.return_send_queue(self.send).is_ok());
        assert!(harness.verbs.return_recv_queue(self.recv).is_ok());
        assert!(harness.verbs.return_cq(self.cq).is_ok());
    }
}

const RECV: RecvWr<'static> = RecvWr { wr_id: 9, sges: &[] };

#[test]
fn a_queue_that_is_out_is_not_used_through_the_verbs() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let queues = Queues::of(&mut harness);
    assert_eq!(harness.verbs.take_send_queue(harness.qp).err(), Some(TakeError::Taken));
    assert_eq!(harness.verbs.take_recv_queue(harness.qp).err(), Some(TakeError::Taken));
    assert_eq!(harness.verbs.take_cq(harness.cq).err(), Some(TakeError::Taken));
    assert_eq!(TakeError::Taken.errno(), Errno::Ebusy);
    assert_eq!(harness.verbs.post_send(harness.qp, &send(1, &[])), Err(PostSendError::Taken));
    assert_eq!(harness.verbs.post_send_list(harness.qp, &[]).unwrap_err().error, PostSendError::Taken);
    assert_eq!(harness.verbs.send_batch(harness.qp).err(), Some(SendBatchError::Taken));
    assert_eq!(harness.verbs.ring_send_queue(harness.qp), Err(PostSendError::Taken));
    let bind =
        MwBind { wr_id: 1, flags: SendFlags::SIGNALED, mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    assert_eq!(harness.verbs.bind_mw(harness.qp, mw, &bind), Err(BindMwError::Taken));
    assert_eq!(harness.verbs.post_recv(harness.qp, &RECV), Err(PostRecvError::Taken));
    assert_eq!(harness.verbs.post_recv_list(harness.qp, &[RECV]).unwrap_err().error, PostRecvError::Taken);
    assert_eq!(harness.poll(), Err(PollCqError::Taken));
    assert_eq!(harness.verbs.completions(harness.cq).err(), Some(TakeError::Taken));
    assert_eq!(harness.verbs.req_notify_cq(harness.cq, false), Err(NotifyCqError::Taken));
    assert!(harness.device().sent.is_empty());
    queues.put_back(&mut harness);
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    assert!(harness.device().execute(harness.qpn()));
    assert_eq!(harness.poll_ids(), [1]);
}

#[test]
fn queues_that_are_out_do_all_that_the_verbs_do() {
    let mut harness = Harness::new();
    let (mw, qpn, cqn) = (harness.window(MwType::Type1), harness.qpn(), harness.cqn());
    let mut queues = Queues::of(&mut harness);
    assert_eq!((queues.send.qp(), queues.recv.qp(), queues.cq.handle()), (harness.qp, harness.qp, harness.cq));
    queues.send.post_send(&send(1, &[])).unwrap();
    queues.send.post_send_list(&[send(2, &[]), send(3, &[])]).unwrap();
    let bind =
        MwBind { wr_id: 4, flags: SendFlags::SIGNALED, mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let key = queues.send.bind_mw(mw, &bind).unwrap();
    let mut batch = queues.send.batch().unwrap();
    batch.post(&send(5, &[])).unwrap();
    drop(batch);
    queues.recv.post_recv(&RECV).unwrap();
    queues.recv.post_recv_list(&[RECV, RECV]).unwrap();
    assert_eq!(harness.device().doorbells.len(), 6);
    queues.cq.req_notify(true);
    assert_eq!(harness.device().armed, [(cqn, 0, true)]);
    while harness.device().execute(qpn) {}
    let mut out = [crate::Completion::EMPTY; 2];
    assert_eq!(queues.cq.poll(&mut out), Ok(2));
    let rest: std::vec::Vec<u64> = queues.cq.completions().map(|done| done.unwrap().wr_id).collect();
    assert_eq!((out[0].wr_id, out[1].wr_id, &rest[..]), (1, 2, &[3, 4, 5][..]));
    assert_eq!((harness.verbs.mw(mw).unwrap().rkey, harness.binds()), (key, 0));
    let info = harness.verbs.qp(harness.qp).unwrap();
    assert_eq!((info.send_blocks, info.recvs), (0, 3));
    // The state that the verbs gave the queue pair is that of its queues.
    harness.step(harness.qp, QpState::Sqd);
    queues.send.post_send(&send(6, &[])).unwrap();
    harness.step(harness.qp, QpState::Err);
    let refused = PostSendError::NotReady { state: QpState::Err };
    assert_eq!(queues.send.post_send(&send(7, &[])), Err(refused));
    assert_eq!(queues.recv.post_recv(&RECV), Err(PostRecvError::NotReady { state: QpState::Err }));
    assert!(harness.device().execute(qpn));
    assert_eq!(queues.cq.completions().next().unwrap().unwrap().status, WcStatus::WrFlushErr);
}

#[test]
fn a_queue_pair_whose_queues_are_out_is_neither_reset_nor_destroyed() {
    let mut harness = Harness::new();
    let reset = |harness: &mut Harness| harness.verbs.modify_qp(harness.qp, &QpAttr::default(), QpAttrMask::STATE);
    let queue = harness.verbs.take_send_queue(harness.qp).unwrap();
    assert_eq!(reset(&mut harness), Err(ModifyQpError::Taken));
    assert_eq!(harness.verbs.destroy_qp(harness.qp), Err(DestroyQpError::Taken));
    assert!(harness.verbs.return_send_queue(queue).is_ok());
    let queue = harness.verbs.take_recv_queue(harness.qp).unwrap();
    assert_eq!(reset(&mut harness), Err(ModifyQpError::Taken));
    assert_eq!(harness.verbs.destroy_qp(harness.qp), Err(DestroyQpError::Taken));
    let Err(verbs) = harness.verbs.into_provider() else { panic!("a queue is taken") };
    harness.verbs = verbs;
    assert!(harness.verbs.return_recv_queue(queue).is_ok());
    reset(&mut harness).unwrap();
    let queue = harness.verbs.take_cq(harness.cq).unwrap();
    harness.verbs.destroy_qp(harness.qp).unwrap();
    assert_eq!(harness.verbs.destroy_cq(harness.cq), Err(DestroyCqError::Taken));
    let Err(mut verbs) = harness.verbs.into_provider() else { panic!("a queue is taken") };
    assert!(verbs.return_cq(queue).is_ok());
    verbs.destroy_cq(harness.cq).unwrap();
}

#[test]
fn queues_go_back_to_the_verbs_that_they_came_from() {
    // The same handles, of the same device by its GUID.
    let (mut harness, mut other) = (Harness::new(), Harness::new());
    let (queues, theirs) = (Queues::of(&mut harness), Queues::of(&mut other));
    let Queues { send, recv, cq } = queues;
    let Err(send) = other.verbs.return_send_queue(send) else { panic!("it is of other verbs") };
    let Err(recv) = other.verbs.return_recv_queue(recv) else { panic!("it is of other verbs") };
    let Err(cq) = other.verbs.return_cq(cq) else { panic!("it is of other verbs") };
    Queues { send, recv, cq }.put_back(&mut harness);
    theirs.put_back(&mut other);
}

#[test]
fn stale_handles_take_nothing() {
    let mut harness = Harness::new();
    harness.verbs.destroy_qp(harness.qp).unwrap();
    harness.verbs.destroy_cq(harness.cq).unwrap();
    assert_eq!(harness.verbs.take_send_queue(harness.qp).err(), Some(TakeError::Stale));
    assert_eq!(harness.verbs.take_recv_queue(harness.qp).err(), Some(TakeError::Stale));
    assert_eq!(harness.verbs.take_cq(harness.cq).err(), Some(TakeError::Stale));
    assert_eq!(TakeError::Stale.errno(), Errno::Einval);
}

/// A batch that was forgotten on a split queue: the queue rings for what is left of it, in any state.
#[test]
fn a_split_queue_rings_for_what_is_left() {
    let mut harness = Harness::new();
    let (mw, qpn) = (harness.window(MwType::Type1), harness.qpn());
    let bind =
        MwBind { wr_id: 1, flags: SendFlags::SIGNALED, mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let mut queue = harness.verbs.take_send_queue(harness.qp).unwrap();
    let mut batch = queue.batch().unwrap();
    batch.bind_mw(mw, &bind).unwrap();
    core::mem::forget(batch);
    set_state(&harness.verbs, harness.qp, QpState::Err);
    assert!(harness.device().doorbells.is_empty());
    queue.ring();
    queue.ring();
    assert_eq!(harness.device().doorbells, [(qpn, 3, true)]);
}

/// Queues on cores of their own.
#[cfg(feature = "multicore")]
#[test]
fn sender_receiver_and_poller_work_at_the_same_time() {
    const COUNT: u64 = if cfg!(miri) { 20 } else { 2000 };
    let mut harness = Harness::new();
    let qpn = harness.qpn();
    let device = harness.verbs.provider().shared();
    let Queues { mut send, mut recv, mut cq } = Queues::of(&mut harness);
    let (sent, received) = std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            for n in 0..COUNT {
                while send.post_send(&super::post::send(n, &[])).is_err() {
                    std::thread::yield_now();
                }
            }
            send
        });
        let receiver = scope.spawn(move || {
            for wr_id in 0..COUNT {
                while recv.post_recv(&RecvWr { wr_id: COUNT + wr_id, sges: &[] }).is_err() {
                    std::thread::yield_now();
                }
            }
            recv
        });
        let poller = scope.spawn(move || {
            let (mut sends, mut recvs) = (0, 0);
            while sends != COUNT || recvs != COUNT {
                for done in cq.completions() {
                    let done = done.unwrap();
                    let expected = if done.wr_id < COUNT { &mut sends } else { &mut recvs };
                    assert_eq!(done.wr_id % COUNT, *expected);
                    *expected += 1;
                }
                let mut device = device.lock().unwrap();
                while device.execute(qpn) || device.deliver(qpn) {}
            }
            cq
        });
        let queues = (sender.join().unwrap(), receiver.join().unwrap());
        assert!(harness.verbs.return_cq(poller.join().unwrap()).is_ok());
        queues
    });
    assert!(harness.verbs.return_send_queue(sent).is_ok());
    assert!(harness.verbs.return_recv_queue(received).is_ok());
    let info = harness.verbs.qp(harness.qp).unwrap();
    assert_eq!((info.send_blocks, info.recvs), (0, 0));
}
