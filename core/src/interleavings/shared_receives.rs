//! A shared receive queue is posted to on one core while its receives complete on another.

use loom::sync::Arc;
use loom::thread;
use std::boxed::Box;
use std::vec::Vec;

use super::device::Device;
use super::{Between, attributes};
use crate::error::{DeviceLoss, PollCqError, PostRecvError};
use crate::kept_verbs::KeptVerbs;
use crate::storage::{QpRings, SendFacts, SrqEntries};
use crate::sync::modelled::check;
use crate::{
    CompletionQueue, QpCap, QpInit, QpState, QpType, QueuePair, RecvWr, SharedReceiveQueue, SharedReceives, SrqCap, SrqInit,
    Verbs, WcOpcode, storage,
};

/// Requests that the queue has room for.
const ROOM: u64 = 1;

struct Harness {
    verbs: KeptVerbs<Device>,
    srq: SharedReceiveQueue<'static, Device>,
    cq: CompletionQueue<'static, Device>,
    _qp: QueuePair<'static, Device, SharedReceives>,
}

impl Harness {
    fn new() -> Self {
        let rings: &'static [QpRings<2, 2>; 1] = Box::leak(Box::new([const { QpRings::new() }]));
        let entries: &'static [SrqEntries<2>; 1] = Box::leak(Box::new([const { SrqEntries::new() }]));
        // The model sees a word from its first store on.
        let view = rings[0].view();
        view.send.iter().for_each(|entry| entry.set(SendFacts { wr_id: 0, bytes: 0, blocks: 0, opcode: WcOpcode::Send }));
        view.recv.iter().for_each(|entry| entry.set(0));
        let storage = <storage![Device; pds: 1, mrs: 1, mws: 2, cqs: 1, qps: 1, srqs: 1]>::with_srqs(
            QpRings::views(rings),
            SrqEntries::views(entries),
        );
        let mut verbs = KeptVerbs::new(Verbs::new(Device::new(true), Box::leak(Box::new(storage))));
        let pd = verbs.alloc_pd().unwrap();
        let cq = verbs.verbs_mut().create_cq(8).unwrap();
        let srq = verbs.create_srq(&SrqInit { pd, cap: SrqCap { max_wr: ROOM as u32, max_sge: 1 } }).unwrap();
        let cap = QpCap { max_send_wr: 2, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.handle(), cq.handle());
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: false };
        let qp = verbs.create_qp_with_srq(&init, srq.handle()).unwrap();
        verbs.modify_qp_to_rts(qp.handle(), &attributes(QpState::Reset)).unwrap();
        Self { verbs, srq, cq, _qp: qp }
    }
}

/// Takes completions in another thread, twice, and gives the queue back with the numbers of the requests.
fn poll_twice(
    mut cq: CompletionQueue<'static, Device>,
    between: &Arc<Between>,
    take: fn(&mut CompletionQueue<'static, Device>) -> Vec<u64>,
) -> thread::JoinHandle<(CompletionQueue<'static, Device>, Vec<u64>)> {
    let between = Arc::clone(between);
    thread::spawn(move || {
        let mut given = Vec::new();
        for _ in 0..2 {
            between.others_run();
            given.extend(take(&mut cq));
        }
        (cq, given)
    })
}

/// Posts until the queue is full, and then as often as a poller has freed a place: each request is given once, with its own number.
#[test]
fn each_receive_is_given_once_and_its_place_is_used_again() {
    check(|| {
        let Harness { verbs, mut srq, cq, _qp } = Harness::new();
        let between = Arc::new(Between::default());
        let poller = poll_twice(cq, &between, |cq| cq.completions().map(|done| done.unwrap().wr_id).collect());
        let mut posted = 0;
        for _ in 0..ROOM + 2 {
            between.others_run();
            match srq.post(&RecvWr { wr_id: 100 + posted, sges: &[] }) {
                Ok(()) => posted += 1,
                Err(error) => assert!(matches!(error, PostRecvError::SharedQueueFull { .. })),
            }
        }
        let (mut cq, mut given) = poller.join().unwrap();
        given.extend(cq.completions().map(|done| done.unwrap().wr_id));
        assert_eq!(given, (100..100 + posted).collect::<Vec<_>>());
        assert_eq!(verbs.srq_info(srq.handle()).unwrap().recvs, 0);
        drop(verbs);
    });
}

/// The device is lost while a poller takes completions: each request is given once, whether it had completed or is flushed.
#[test]
fn after_a_loss_each_receive_is_given_once() {
    check(|| {
        let Harness { mut verbs, mut srq, cq, _qp } = Harness::new();
        srq.post(&RecvWr { wr_id: 100, sges: &[] }).unwrap();
        let between = Arc::new(Between::default());
        let poller = poll_twice(cq, &between, |cq| cq.completions().map_while(Result::ok).map(|done| done.wr_id).collect());
        between.others_run();
        verbs.provider().lose();
        assert!(verbs.maintain().is_err());
        between.others_run();
        let refused = srq.post(&RecvWr { wr_id: 101, sges: &[] });
        assert_eq!(refused, Err(PostRecvError::DeviceLost { loss: DeviceLoss::Fatal }));
        let (mut cq, mut given) = poller.join().unwrap();
        loop {
            match cq.completions().next() {
                Some(Ok(done)) => given.push(done.wr_id),
                Some(Err(error)) => {
                    assert_eq!(error, PollCqError::DeviceLost { loss: DeviceLoss::Fatal });
                    break;
                }
                None => panic!("neither a request nor the reason"),
            }
        }
        assert_eq!(given, [100]);
    });
}
