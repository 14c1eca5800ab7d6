//! Arbitrary completions, written into the queue of a driver without a device. Polling never panics, and every posted request
//! completes at most once and in order. The requests in flight add up, and everything can be destroyed afterwards.
#![no_main]

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use arbitrary::Arbitrary;
use bareverbs::{Access, Completion, Lid, Payload, PdHandle, QpCap, QpType, RecvWr, SendFlags, SendOp, SendWr};
use bareverbs_fuzz::queues::Listener;
use bareverbs_mlx5_spec::{CQE, Cqe, ViewMut};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_tests::{Connection, End, Node, Rdma, Region, end_in, rc_steps, to_rts};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    /// For each send: whether it asks for a completion, and whether it takes more than one block.
    sends: Vec<(bool, bool)>,
    receives: u8,
    entries: Vec<Entry>,
    /// Completions that the caller's slice can take at each poll.
    capacity: u8,
    /// Bit 0: completions are taken one by one instead; bit 1: by a completion queue that is split off; bit 2: requests are
    /// posted by queues that are split off.
    mode: u8,
}

/// A completion: any bytes, then the chosen fields are made valid, so that more than noise is tried.
#[derive(Arbitrary, Debug)]
struct Entry {
    bytes: [u8; CQE],
    /// Names the queue pair that exists.
    own_qpn: bool,
    own_index: bool,
    /// One of the opcodes that a queue pair gives.
    opcode: Option<u8>,
    counter: Option<u8>,
    /// Written as the device writes it; otherwise the owner bit is what the bytes say.
    valid: bool,
}

/// A device and a domain with a region, made once; queues are made for each input.
struct Harness {
    node: Node,
    listener: Listener,
    pd: PdHandle,
    region: Region,
}

const OPCODES: [u32; 7] = [0, 1, 2, 3, 4, 13, 14];
const CAP: QpCap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 4, max_recv_sge: 1, max_inline_data: 64 };

impl Harness {
    fn new() -> Self {
        let mut node = Node::new(World::new(WorldConfig::default()).add(DeviceConfig::with_lid(1)).unwrap());
        let listener = Listener::on(&node.host);
        let pd = node.verbs.alloc_pd().expect("alloc_pd");
        let region = node.region(pd, 4096, Access::LOCAL_WRITE);
        Self { node, listener, pd, region }
    }
}

thread_local! {
    /// Never dropped: the storage of its verbs is not either.
    static HARNESS: RefCell<ManuallyDrop<Harness>> = RefCell::new(ManuallyDrop::new(Harness::new()));
}

fuzz_target!(|input: Input| {
    HARNESS.with_borrow_mut(|harness| run(harness, &input));
});

fn run(harness: &mut Harness, input: &Input) {
    let end = end_in(&mut harness.node, harness.pd, QpType::Rc, CAP, false);
    let queue = harness.listener.created().completion.expect("a completion queue was made");
    let steps = rc_steps(&Connection::default(), Lid::new(1), end.qpn, 0, 0);
    to_rts(&mut harness.node, end.qp, &steps);
    let cookie = harness.listener.created().user_index;

    let verbs = &mut harness.node.verbs;
    let mut sends = 0_u64;
    for &(signaled, long) in &input.sends {
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let bytes = [0; 64];
        let payload = Payload::Inline(&bytes[..if long { 64 } else { 1 }]);
        let wr = SendWr { wr_id: sends, flags, op: SendOp::Send { payload } };
        if verbs.post_send(end.qp, &wr).is_err() {
            break;
        }
        sends += 1;
    }
    let mut receives = 0_u64;
    for _ in 0..input.receives {
        let wr = RecvWr { wr_id: 1 << 32 | receives, sges: &[harness.region.sge(0, 64)] };
        if verbs.post_recv(end.qp, &wr).is_err() {
            break;
        }
        receives += 1;
    }
    let posted = verbs.qp_info(end.qp).expect("it was just made");

    let entries = queue.len / CQE;
    let written = input.entries.iter().take(entries).enumerate();
    for (place, entry) in written {
        queue.write(place * CQE, &entry.bytes(end.qpn.get(), cookie));
    }

    let mut next_send = 0;
    let mut next_receive = 1 << 32;
    let capacity = 1 + usize::from(input.capacity) % 16;
    // Each entry gives one completion or one error; two empty polls end it.
    for _ in 0..2 * entries + 2 {
        for completion in poll(verbs, &end, capacity, input.mode) {
            assert_eq!((completion.qp, completion.qpn), (end.qp, end.qpn));
            let next = if completion.wr_id < 1 << 32 { &mut next_send } else { &mut next_receive };
            assert!(completion.wr_id >= *next, "completed twice, or out of order");
            *next = completion.wr_id + 1;
        }
    }
    assert!(next_send <= sends && next_receive - (1 << 32) <= receives, "a completion of a request never posted");

    let left = verbs.qp_info(end.qp).expect("polling destroys nothing");
    assert!(left.send_blocks <= posted.send_blocks && left.recvs <= posted.recvs);
    assert_eq!(left.send_blocks == 0, next_send == sends, "blocks in flight without a request, or a request without blocks");
    assert_eq!(u64::from(left.recvs), receives - (next_receive - (1 << 32)), "receives complete one by one");

    // The device's own events of this must not fill the queue that the next input finds.
    while let Ok(Some(_)) = verbs.poll_event() {}
    verbs.destroy_qp(end.qp).expect("destroy_qp");
    verbs.destroy_cq(end.cq).expect("destroy_cq");
    assert!(verbs.qp_info(end.qp).is_err() && verbs.cq_info(end.cq).is_err());
}

/// Polls once, and returns the completions, `capacity` at most.
fn poll(verbs: &mut Rdma, end: &End, capacity: usize, mode: u8) -> Vec<Completion> {
    let mut out = [Completion::EMPTY; 16];
    if mode & 1 != 0 {
        return verbs.completions(end.cq).take(capacity).filter_map(Result::ok).collect();
    }
    let taken = verbs.poll_cq(end.cq, &mut out[..capacity]).unwrap_or(0);
    assert!(taken <= capacity);
    out[..taken].to_vec()
}

impl Entry {
    fn bytes(&self, qpn: u32, cookie: u32) -> [u8; CQE] {
        let mut bytes = self.bytes;
        let mut cqe = ViewMut::<Cqe>::new(&mut bytes).expect("as long as an entry");
        if self.own_qpn {
            cqe.set(Cqe::QPN, qpn);
        }
        if self.own_index {
            cqe.set(Cqe::SRQN_UIDX, cookie);
        }
        if let Some(opcode) = self.opcode {
            cqe.set(Cqe::OPCODE, OPCODES[usize::from(opcode) % OPCODES.len()]);
        }
        if let Some(counter) = self.counter {
            cqe.set(Cqe::WQE_COUNTER, u32::from(counter % 32));
        }
        if self.valid {
            cqe.set(Cqe::OWNER, 0).set(Cqe::FORMAT, 0);
        }
        bytes
    }
}
