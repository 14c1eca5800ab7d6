//! Arbitrary requests at any place of the ring: what the driver writes into memory, the device's decoder (which shares
//! nothing with the driver but the layouts) reads as the same request, and no other block of the ring has changed.
#![no_main]

use std::cell::RefCell;

use arbitrary::Arbitrary;
use bareverbs::{DataPath, Provider, QpCap, QpRequest, QpType};
use bareverbs_fuzz::queues::{Listener, Queue};
use bareverbs_fuzz::request::Request;
use bareverbs_mlx5::Qp;
use bareverbs_mlx5_spec::WQEBB;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::wqe::{SendWqe, WqeService, announced_len};
use bareverbs_tests::{Driver, Node};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    /// Counter of the first request: the ring may be about to wrap, or the counter.
    start: u32,
    /// What lay in the ring before.
    stale: u8,
    requests: Vec<Request>,
}

/// A driver and a send queue, made once.
struct Bench {
    node: Node,
    qp: Qp,
    qpn: u32,
    ring: Queue,
}

impl Bench {
    fn new() -> Self {
        let mut node = Node::new(World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1)));
        let listener = Listener::on(&node.host);
        let driver = node.verbs.provider_mut();
        let pd = driver.alloc_pd().expect("alloc_pd");
        let (cq, _, _) = driver.create_cq(64).expect("create_cq");
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 4, max_send_sge: 8, max_recv_sge: 1, max_inline_data: 64 };
        let request = QpRequest { qp_type: QpType::Rc, pd: &pd, send_cq: &cq, recv_cq: &cq, cap, cookie: 0 };
        let made = driver.create_qp(&request).expect("create_qp");
        let ring = listener.created().send.expect("a queue pair was made");
        assert_eq!(ring.len, made.send_blocks as usize * WQEBB);
        Self { node, qp: made.qp, qpn: made.qpn.get(), ring }
    }
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

fuzz_target!(|input: Input| {
    BENCH.with_borrow_mut(|bench| run(bench, &input));
});

fn run(bench: &mut Bench, input: &Input) {
    let blocks = bench.ring.len / WQEBB;
    bench.ring.write(0, &vec![input.stale; bench.ring.len]);
    let mut at = input.start;
    let mut fenced = None;
    for request in &input.requests {
        let before = bench.ring.read(0, bench.ring.len);
        let (wrote, took) = request.with_op(|op| {
            let driver = bench.node.verbs.provider_mut();
            let wrote = driver.encode_send(&mut bench.qp, at, op, request.flags(), request.signaled);
            (wrote, Driver::send_blocks(op))
        });
        assert_eq!(wrote.is_ok(), request.can_be_written(blocks), "{wrote:?}: {request:?}");
        let place = at as usize % blocks * WQEBB;
        if wrote.is_ok() {
            let head = bench.ring.read(place, WQEBB);
            let len = announced_len(&head).expect("a block holds a control segment");
            let bytes = bench.ring.read(place, len);
            let wqe = SendWqe::decode(&bytes, WqeService::Connected)
                .unwrap_or_else(|error| panic!("{error}: {request:?} as {bytes:02x?}"));
            assert_eq!(u32::from(wqe.blocks()), took);
            // The first request of this input comes after another input's last, of which nothing is known here.
            let checked = request.compare(&wqe, bench.qpn, at, fenced.unwrap_or(wqe.fence == 1));
            checked.unwrap_or_else(|wrong| panic!("{wrong}: {request:?}"));
            fenced = Some(request.changes_a_key());
        }
        let own = took as usize * WQEBB;
        let after = bench.ring.read(0, bench.ring.len);
        let others = (0..bench.ring.len).filter(|byte| (byte + bench.ring.len - place) % bench.ring.len >= own);
        for byte in others {
            assert_eq!(before[byte], after[byte], "byte {byte} belongs to another request: {request:?} at {at}");
        }
        if wrote.is_ok() {
            at = at.wrapping_add(took);
        }
    }
}
