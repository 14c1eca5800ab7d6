//! Arbitrary requests at any place of the ring, posted by every call. The device's decoder, which shares only the layouts with
//! the driver, reads what the driver wrote as the same request. No other block of the ring has changed.
#![no_main]

use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};

use arbitrary::Arbitrary;
use bareverbs::error::Errno;
use bareverbs::{Completion, Lid, PdHandle, QpCap, QpType, SendWr};
use bareverbs_fuzz::queues::{CreatedQueues, Listener, Queue};
use bareverbs_fuzz::request::{Ground, Keys, Request};
use bareverbs_mlx5_spec::{CQE, Cqe, ViewMut, WQEBB};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::wqe_decode::{SendWqe, WqeService, announced_len};
use bareverbs_tests::{Connection, End, Node, end_in, rc_steps, to_rts};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    /// Blocks before the first request: the ring may be about to wrap, or the counter.
    start: u16,
    /// What lay in the ring before.
    stale: u8,
    requests: Vec<(Way, Request)>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Way {
    /// By the queue itself, without a batch.
    direct: bool,
    /// The batch is forgotten, and so are the requests in it, but for those that change a key.
    forgotten: bool,
}

/// A device and a domain with regions, made once; a queue pair is made for each input.
struct Harness {
    node: Node,
    listener: Listener,
    pd: PdHandle,
    ground: Ground,
}

const CAP: QpCap = QpCap { max_send_wr: 16, max_recv_wr: 4, max_send_sge: 8, max_recv_sge: 1, max_inline_data: 64 };

impl Harness {
    fn new() -> Self {
        let mut node = Node::new(World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1)).unwrap());
        let listener = Listener::on(&node.host);
        let pd = node.verbs.alloc_pd().expect("alloc_pd");
        let ground = Ground::new(&mut node, pd);
        Self { node, listener, pd, ground }
    }
}

thread_local! {
    /// Never dropped: the storage of its verbs is not either.
    static HARNESS: RefCell<ManuallyDrop<Harness>> = RefCell::new(ManuallyDrop::new(Harness::new()));
}

fuzz_target!(|input: Input| {
    HARNESS.with_borrow_mut(|harness| run(harness, &input));
});

/// The queues of a queue pair that posts, and what a device would do to them: no time passes for the real one.
struct Queues {
    end: End,
    send: Queue,
    completion: Queue,
    cookie: u32,
    /// Completions so far.
    completed: usize,
}

impl Queues {
    /// Completes every request up to the one at block `last`.
    fn complete(&mut self, node: &mut Node, last: u32) {
        let mut bytes = [0; CQE];
        let entries = self.completion.len / CQE;
        let lap = (self.completed / entries) as u32;
        let mut cqe = ViewMut::<Cqe>::new(&mut bytes).expect("as long as an entry");
        cqe.set(Cqe::QPN, self.end.qpn.get()).set(Cqe::SRQN_UIDX, self.cookie).set(Cqe::WQE_COUNTER, last & 0xffff);
        cqe.set(Cqe::OWNER, lap & 1);
        self.completion.write(self.completed % entries * CQE, &bytes);
        self.completed += 1;
        let mut out = [Completion::EMPTY; 2];
        assert_eq!(node.verbs.poll_cq(self.end.cq, &mut out), Ok(1));
        assert_eq!(node.verbs.qp_info(self.end.qp).expect("it is there").send_blocks, 0);
    }

    /// Posts and completes requests of one block, up to block `start`.
    fn advance(&mut self, node: &mut Node, start: u32) {
        let blocks = (self.send.len / WQEBB) as u32;
        let mut at = 0;
        while at < start {
            let count = blocks.min(start - at);
            let mut batch = node.verbs.send_batch(self.end.qp);
            for _ in 0..count {
                batch.post(&SendWr::send(&[] as &[u8]).id(1)).expect("there is room");
            }
            drop(batch);
            at += count;
            self.complete(node, at - 1);
        }
    }
}

fn run(harness: &mut Harness, input: &Input) {
    let Harness { node, listener, pd, ground } = harness;
    let end = end_in(node, *pd, QpType::Rc, CAP, false);
    let CreatedQueues { completion, send, user_index, .. } = listener.created();
    let steps = rc_steps(&Connection::default(), Lid::new(1), end.qpn, 0, 0);
    to_rts(node, end.qp, &steps);
    ground.make_windows(node, *pd);
    let (send, completion) = (send.expect("a queue pair was made"), completion.expect("a completion queue was made"));
    let mut queues = Queues { end, send, completion, cookie: user_index, completed: 0 };
    // The counter of a WQE has 16 bits.
    let start = if input.start & 0xff00 == 0xff00 { 0xff00 } else { 0 } + u32::from(input.start & 0xff);
    queues.advance(node, start);
    post_all(node, ground, &mut queues, start, input);

    // The device's own events of this must not fill the queue that the next input finds.
    while let Ok(Some(_)) = node.verbs.poll_event() {}
    node.verbs.destroy_qp(end.qp).expect("destroy_qp");
    node.verbs.destroy_cq(end.cq).expect("destroy_cq");
    ground.destroy_windows(node);
}

fn post_all(node: &mut Node, ground: &mut Ground, queues: &mut Queues, start: u32, input: &Input) {
    let (qp, qpn) = (queues.end.qp, queues.end.qpn.get());
    let ring = queues.send.clone();
    let cap = node.verbs.qp_info(qp).expect("it was just made").cap;
    ring.write(0, &vec![input.stale; ring.len]);
    let (mut at, mut last, mut fenced) = (start, None, false);
    for (way, request) in &input.requests {
        let before = ring.read(0, ring.len);
        let mut posted = post(node, ground, queues, *way, request);
        if matches!((&posted, last), (Err(Errno::Enomem | Errno::Eagain), Some(_))) {
            // Full, or as many binds in flight as there is room for.
            queues.complete(node, last.take().unwrap_or_default());
            posted = post(node, ground, queues, *way, request);
        }
        assert_eq!(posted.is_ok(), request.is_legal(&cap), "{posted:?}: {request:?}");
        let after = ring.read(0, ring.len);
        let place = at as usize % (ring.len / WQEBB) * WQEBB;
        let mut own = 0;
        if let Ok((keys, stayed)) = posted {
            let head = ring.read(place, WQEBB);
            let len = announced_len(&head).expect("a block contains a control segment");
            let bytes = ring.read(place, len);
            let wqe = SendWqe::decode(&bytes, WqeService::Connected)
                .unwrap_or_else(|error| panic!("{error}: {request:?} as {bytes:02x?}"));
            let checked = request.compare(&wqe, ground, &keys, qpn, at, fenced);
            checked.unwrap_or_else(|differences| panic!("{differences}: {request:x?}"));
            own = usize::from(wqe.blocks()) * WQEBB;
            // What is forgotten leaves its place to the next.
            assert!(stayed || way.forgotten && !way.direct && !request.changes_a_key(), "{request:?} is gone");
            if stayed {
                fenced = request.changes_a_key();
                last = Some(at);
                at = at.wrapping_add(u32::from(wqe.blocks()));
            }
        }
        let others = (0..ring.len).filter(|byte| (byte + ring.len - place) % ring.len >= own);
        for byte in others {
            assert_eq!(before[byte], after[byte], "byte {byte} belongs to another request: {request:?} at {at}");
        }
    }
    node.verbs.ring_send_queue(qp);
    let in_flight = node.verbs.qp_info(qp).expect("it is there").send_blocks;
    if last.is_none() {
        assert_eq!(in_flight, 0, "nothing was posted");
    } else {
        assert!(in_flight != 0 && in_flight <= at.wrapping_sub(start), "{in_flight} blocks in flight");
    }
}

/// Posts a request; its keys, and whether it is in the queue after that.
fn post(node: &mut Node, ground: &mut Ground, queues: &Queues, way: Way, request: &Request) -> Result<(Keys, bool), Errno> {
    let queue = node.verbs.send(queues.end.qp);
    let free = queue.free_blocks();
    let posted = if way.direct {
        request.post(queue, ground)
    } else {
        let mut batch = queue.batch();
        let posted = request.post(&mut batch, ground);
        if way.forgotten {
            mem::forget(batch);
        } else {
            drop(batch);
        }
        posted
    };
    let stayed = queue.free_blocks() != free;
    posted.map(|keys| (keys, stayed))
}
