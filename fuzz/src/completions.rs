//! Completions that no device wrote, and a queue pair of any kind whose queue they are written into.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arbitrary::Arbitrary;
use bareverbs::error::PollCqError;
use bareverbs::storage::{QpRings, SrqEntries, StorageView};
use bareverbs::{
    Access, AddressVector, Binding, Completion, CompletionQueue, Destination, FastMr, FastReg, KeyTag, Lid, MwHandle, MwType,
    NoReceives, Payload, PdHandle, Qkey, QpAttr, QpCap, QpHandle, QpInit, QpType, QueuePair, RecvWr, Refused, Region, Rkey,
    SendFlags, SendOp, SendQueue, SendWr, SharedReceiveQueue, SharedReceives, SrqCap, SrqInit, Verbs, WcOpcode, XrcDomain,
    storage,
};
use bareverbs_mlx5_spec::{CQE, Cqe, ViewMut};
use bareverbs_sim::in_process::{Host, SimBuffer, SimMemory, World, WorldConfig};
use bareverbs_testing::{Driver, bring_up, driver_config};
use bareverbs_tests::{Connection, instant, rc_steps};

use crate::queues::{Listener, Queue};

/// What is posted, and what is written and polled.
#[derive(Arbitrary, Debug)]
pub struct Input {
    /// For each send: whether it asks for a completion, and whether it takes more than one block.
    sends: Vec<(bool, bool)>,
    receives: u8,
    entries: Vec<Entry>,
    /// Completions that the caller's slice can take at each poll.
    capacity: u8,
    /// Bit 0: completions are taken one by one instead.
    mode: u8,
    /// Which queue pair it is: one of [`KINDS`].
    kind: u8,
    /// A size that the queue gets before it is polled, if it is not 0.
    entries_then: u8,
    /// Where in the new ring more is written, and what.
    place: u8,
    again: Vec<Entry>,
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

/// Opcodes of completions: those of sends and receives, the end of a resized ring, and errors.
const OPCODES: [u32; 8] = [0, 1, 2, 3, 4, 13, 14, 5];
/// Kinds of queue pairs.
const KINDS: u8 = 7;
const CAP: QpCap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 4, max_recv_sge: 1, max_inline_data: 64 };
const QKEY: Qkey = Qkey::new(0x1111);
/// `wr_id`s of receives begin here.
const RECEIVES: u64 = 1 << 32;

/// A queue pair with what it receives from.
enum Pair<'s> {
    Own(QueuePair<'s, Driver>),
    Shared(QueuePair<'s, Driver, SharedReceives>, SharedReceiveQueue<'s, Driver>),
    /// A target of XRC.
    Xrc(QueuePair<'s, Driver, NoReceives>, SharedReceiveQueue<'s, Driver>),
}

impl<'s> Pair<'s> {
    fn handle(&self) -> QpHandle {
        match self {
            Self::Own(qp) => qp.handle(),
            Self::Shared(qp, _) => qp.handle(),
            Self::Xrc(qp, _) => qp.handle(),
        }
    }

    fn send(&mut self) -> Option<&mut SendQueue<'s, Driver>> {
        match self {
            Self::Own(qp) => Some(&mut qp.send),
            Self::Shared(qp, _) => Some(&mut qp.send),
            Self::Xrc(..) => None,
        }
    }

    fn shared(&self) -> Option<&SharedReceiveQueue<'s, Driver>> {
        match self {
            Self::Own(_) => None,
            Self::Shared(_, srq) | Self::Xrc(_, srq) => Some(srq),
        }
    }
}

/// Tables of the verbs, and the rings that they are of.
pub type Tables<'r> = storage!['r, Driver; pds: 1, mrs: 2, mws: 2, cqs: 1, qps: 1, srqs: 1];

/// A device and a domain with a region; queues are made for each input.
pub struct Harness<'s> {
    host: Host,
    verbs: Verbs<'s, Driver>,
    pd: PdHandle,
    listener: Listener,
    region: Region<'s, SimBuffer>,
    domain: XrcDomain<Driver>,
    window: MwHandle,
    fast: FastMr,
}

/// Address of the memory that requests name, below all other of the host.
const MEMORY: u64 = 0x1000_0000;

thread_local! {
    /// Never freed: a region of a device that is lost is not either.
    static WORDS: SimMemory = {
        let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
        SimMemory::lent(MEMORY, words.leak())
    };
    /// For inputs after which the device is as good as before. Never dropped: the storage of its verbs is not either.
    static LASTING: RefCell<ManuallyDrop<Harness<'static>>> = RefCell::new(ManuallyDrop::new(Harness::new(lasting_tables())));
}

fn lasting_tables() -> &'static mut Tables<'static> {
    let (rings, shared): (&QpRings<64, 16>, &SrqEntries<16>) = (Box::leak(Box::default()), Box::leak(Box::default()));
    Box::leak(Box::new(Tables::with_srqs([rings.view()], [shared.view()])))
}

/// Plays an input, and returns how many requests completed.
pub fn play(input: &Input) -> u64 {
    if input.entries_then == 0 {
        return LASTING.with_borrow_mut(|harness| harness.run(input));
    }
    // A ring whose end cannot be found costs the device, so that one is brought up for the input.
    let (rings, shared) = (QpRings::new(), SrqEntries::new());
    let mut tables = Tables::with_srqs([QpRings::<64, 16>::view(&rings)], [SrqEntries::<16>::view(&shared)]);
    Harness::new(&mut tables).run(input)
}

/// What has completed so far.
#[derive(Default)]
struct Done {
    count: u64,
    next_send: u64,
    next_receive: u64,
    /// Of a shared queue, whose receives complete in any order.
    shared: BTreeSet<u64>,
}

impl<'s> Harness<'s> {
    /// Creates a device that is up.
    fn new(tables: impl Into<StorageView<'s, Driver>>) -> Self {
        let host = World::new(WorldConfig::default()).add(instant(1)).expect("a device");
        let mut verbs = bring_up(&host, &driver_config(&host), tables).expect("the bring-up");
        let listener = Listener::on(&host);
        let memory = WORDS.with(SimMemory::clone);
        assert!(host.memory_map().map(&memory), "the address is free");
        let pd = verbs.alloc_pd().expect("a protection domain");
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let region = verbs.reg_mr(pd, memory.whole(), access).map_err(Refused::into_error).expect("a region");
        let domain = verbs.alloc_xrcd().expect("an XRC domain");
        let window = verbs.alloc_mw(pd, MwType::Type2).expect("a window");
        let fast = verbs.alloc_fast_mr(pd, 4).expect("a key");
        Self { host, verbs, pd, listener, region, domain, window, fast }
    }

    /// Creates a queue pair of this kind, ready to send.
    fn pair(&mut self, kind: u8, cq: &mut CompletionQueue<'s, Driver>) -> Pair<'s> {
        let (pd, handle) = (self.pd, cq.handle());
        let verbs = &mut self.verbs;
        let init = |qp_type| QpInit { pd, qp_type, send_cq: handle, recv_cq: handle, cap: CAP, sq_sig_all: false };
        let srq = SrqInit { pd, cap: SrqCap { max_wr: 15, max_sge: 1 } };
        let shared = |qp_type| {
            move |verbs: &mut Verbs<'s, Driver>| {
                let srq = verbs.create_srq(&srq).expect("a shared receive queue");
                let qp = verbs.create_qp_with_srq(&init(qp_type), srq.handle()).expect("a queue pair");
                Pair::Shared(qp, srq)
            }
        };
        let pair = match kind % KINDS {
            1 => Pair::Own(verbs.create_qp(&init(QpType::Uc)).expect("a queue pair")),
            2 => Pair::Own(verbs.create_qp(&init(QpType::Ud)).expect("a queue pair")),
            3 => shared(QpType::Rc)(verbs),
            4 => shared(QpType::Ud)(verbs),
            5 => {
                let srq = verbs.create_xrc_srq(&srq, &self.domain, cq).expect("a shared receive queue");
                Pair::Xrc(verbs.create_xrc_recv_qp(&self.domain).expect("a target"), srq)
            }
            // 6 binds, registers and invalidates.
            _ => Pair::Own(verbs.create_qp(&init(QpType::Rc)).expect("a queue pair")),
        };
        let qpn = verbs.qp_info(pair.handle()).expect("it was just made").qpn;
        let [_, _, (attr, _)] = rc_steps(&Connection::default(), Lid::new(1), qpn, 0, 0);
        verbs.modify_qp_to_rts(pair.handle(), &QpAttr { qkey: QKEY, ..attr }).expect("a connection with itself");
        pair
    }

    /// Posts the sends of an input, and returns how many had room.
    fn post_sends(&mut self, pair: &mut Pair<'s>, input: &Input) -> u64 {
        let (pd, handle) = (self.pd, pair.handle());
        let remote_qpn = self.verbs.qp_info(handle).expect("it was just made").qpn;
        let av = AddressVector { dlid: Lid::new(1), port_num: 1, ..AddressVector::default() };
        let ah = self.verbs.create_ah(pd, &av).expect("an address");
        let to = Destination { ah, remote_qpn, remote_qkey: QKEY };
        let rkey = self.verbs.mw_info(self.window).map_or(Rkey::new(0x100), |info| info.rkey);
        let (sges, access) = ([self.region.sge(0, 64)], Access::REMOTE_READ);
        let (mw, mr) = (self.window, self.region.handle());
        let binding = Binding { mr, addr: sges[0].addr, length: 64, access };
        let fast = FastReg { wr_id: 0, flags: SendFlags::empty(), tag: KeyTag(1), sges: &sges, access };
        let Some(send) = pair.send() else { return 0 };
        let mut sends = 0;
        for (number, &(signaled, long)) in (0_u8..=255).cycle().zip(&input.sends) {
            let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            let bytes = [0; 64];
            let payload = Payload::Inline(&bytes[..if long { 64 } else { 1 }]);
            let op = match (input.kind % KINDS, long) {
                (2 | 4, _) => SendOp::SendTo { to: &to, payload },
                (6, false) => SendOp::LocalInv { rkey },
                (6, true) if number % 2 == 0 => SendOp::BindMw { mw, tag: KeyTag(number), binding },
                (6, true) => {
                    let reg = FastReg { wr_id: sends, flags, tag: KeyTag(number), ..fast };
                    if send.post_reg_mr(self.fast, &reg).is_err() {
                        break;
                    }
                    sends += 1;
                    continue;
                }
                _ => SendOp::Send { payload },
            };
            if send.post(&SendWr { wr_id: sends, flags, op }).is_err() {
                break;
            }
            sends += 1;
        }
        sends
    }

    /// Posts the receives of an input, and returns how many had room.
    fn post_receives(&self, pair: &mut Pair<'s>, input: &Input) -> u64 {
        let sges = [self.region.sge(0, 64)];
        let mut receives = 0;
        for _ in 0..input.receives {
            let wr = RecvWr { wr_id: RECEIVES | receives, sges: &sges };
            let posted = match pair {
                Pair::Own(qp) => qp.recv.post(&wr),
                Pair::Shared(_, srq) | Pair::Xrc(_, srq) => srq.post(&wr),
            };
            if posted.is_err() {
                break;
            }
            receives += 1;
        }
        receives
    }

    /// Plays an input, and returns how many requests completed.
    fn run(&mut self, input: &Input) -> u64 {
        let mut cq = self.verbs.create_cq(80).expect("a completion queue");
        let mut pair = self.pair(input.kind, &mut cq);
        let qpn = self.verbs.qp_info(pair.handle()).expect("it was just made").qpn.get();
        let created = self.listener.created();
        // Completions of XRC name the shared receive queue.
        let index = if matches!(pair, Pair::Xrc(..)) { created.shared_index } else { created.user_index };
        let sends = self.post_sends(&mut pair, input);
        let receives = self.post_receives(&mut pair, input);
        let posted = self.verbs.qp_info(pair.handle()).expect("it lives");

        let mut done = Done { next_receive: RECEIVES, ..Done::default() };
        let queue = created.completion.expect("a completion queue was made");
        if input.entries_then != 0 {
            // The device has written completions, so that the end of its ring comes after them; some are overwritten, and then moved.
            self.host.world().advance(Duration::from_micros(20));
            write(&queue, 0, &input.entries, (qpn, index));
            if self.verbs.resize_cq(&mut cq, input.entries_then.into()).is_ok() {
                let queue = self.listener.created().completion.expect("a completion queue was made");
                write(&queue, input.place.into(), &input.again, (qpn, index));
            }
        } else {
            write(&queue, 0, &input.entries, (qpn, index));
        }
        let is_lost = self.poll_all(&mut cq, &pair, input, &mut done);
        let received = done.next_receive - RECEIVES;
        assert!(done.next_send <= sends && received <= receives, "a completion of a request never posted");
        assert!(done.shared.iter().all(|wr_id| wr_id - RECEIVES < receives), "a completion of a receive never posted");

        if is_lost {
            return done.count;
        }
        let left = self.verbs.qp_info(pair.handle()).expect("polling destroys nothing");
        assert!(left.send_blocks <= posted.send_blocks && left.recvs <= posted.recvs);
        assert_eq!(
            left.send_blocks == 0,
            done.next_send == sends,
            "blocks in flight without a request, or a request without blocks"
        );
        match pair.shared() {
            None => assert_eq!(u64::from(left.recvs), receives - received, "receives complete one by one"),
            Some(srq) => {
                let left = self.verbs.srq_info(srq.handle()).expect("polling destroys nothing").recvs;
                assert!(u64::from(left) + done.shared.len() as u64 == receives, "{left} of {receives} are left");
            }
        }
        self.destroy(pair, cq);
        done.count
    }

    /// Polls until nothing is left. Returns whether the device is lost.
    fn poll_all(&mut self, cq: &mut CompletionQueue<'s, Driver>, pair: &Pair<'s>, input: &Input, done: &mut Done) -> bool {
        let entries = self.verbs.cq_info(cq.handle()).expect("it lives").entries;
        // Each entry gives one completion or one error; two empty polls end it. A ring that is resized has as many before.
        for _ in 0..2 * entries.max(128) + 2 {
            for completion in poll(cq, 1 + usize::from(input.capacity) % 16, input.mode) {
                let of_xrc = matches!(pair, Pair::Xrc(..)) && completion.qp == QpHandle::NONE;
                assert!(completion.qp == pair.handle() || of_xrc, "{completion:?}");
                done.count += 1;
                let receives = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
                assert_eq!(completion.wr_id >= RECEIVES, receives, "a request of the other queue: {completion:?}");
                if receives && pair.shared().is_some() {
                    assert!(done.shared.insert(completion.wr_id), "completed twice: {completion:?}");
                    continue;
                }
                let next = if receives { &mut done.next_receive } else { &mut done.next_send };
                assert!(completion.wr_id >= *next, "completed twice, or out of order");
                *next = completion.wr_id + 1;
            }
        }
        matches!(cq.poll(&mut [Completion::EMPTY]), Err(PollCqError::DeviceLost { .. }))
    }

    /// Destroys what an input has made.
    fn destroy(&mut self, pair: Pair<'s>, cq: CompletionQueue<'s, Driver>) {
        let verbs = &mut self.verbs;
        // The device's own events of this must not fill the queue that the next input finds.
        while let Ok(Some(_)) = verbs.poll_event() {}
        let handle = pair.handle();
        let srq = match pair {
            Pair::Own(qp) => {
                verbs.destroy_qp(qp).map_err(Refused::into_error).expect("destroy_qp");
                None
            }
            Pair::Shared(qp, srq) => {
                verbs.destroy_qp(qp).map_err(Refused::into_error).expect("destroy_qp");
                Some(srq)
            }
            Pair::Xrc(qp, srq) => {
                verbs.destroy_qp(qp).map_err(Refused::into_error).expect("destroy_qp");
                Some(srq)
            }
        };
        if let Some(srq) = srq {
            verbs.destroy_srq(srq).map_err(Refused::into_error).expect("destroy_srq");
        }
        let number = cq.handle();
        verbs.destroy_cq(cq).map_err(Refused::into_error).expect("destroy_cq");
        assert!(verbs.qp_info(handle).is_err() && verbs.cq_info(number).is_err());
        // What was bound or registered is free again for the next input.
        verbs.dealloc_mw(self.window).expect("dealloc_mw");
        verbs.dealloc_fast_mr(self.fast).expect("dealloc_fast_mr");
        self.window = verbs.alloc_mw(self.pd, MwType::Type2).expect("a window");
        self.fast = verbs.alloc_fast_mr(self.pd, 4).expect("a key");
    }
}

/// Writes entries from a place on, as many as there is room for.
fn write(queue: &Queue, place: usize, entries: &[Entry], (qpn, index): (u32, u32)) {
    let room = queue.len / CQE;
    for (number, entry) in entries.iter().take(room).enumerate() {
        queue.write((place + number) % room * CQE, &entry.bytes(qpn, index));
    }
}

/// Polls once, and returns the completions, `capacity` at most.
fn poll(cq: &mut CompletionQueue<'_, Driver>, capacity: usize, mode: u8) -> Vec<Completion> {
    let mut out = [Completion::EMPTY; 16];
    if mode & 1 != 0 {
        return cq.completions().take(capacity).filter_map(Result::ok).collect();
    }
    let taken = cq.poll(&mut out[..capacity]).unwrap_or(0);
    assert!(taken <= capacity);
    out[..taken].to_vec()
}

impl Entry {
    fn bytes(&self, qpn: u32, index: u32) -> [u8; CQE] {
        let mut bytes = self.bytes;
        let mut cqe = ViewMut::<Cqe>::new(&mut bytes).expect("as long as an entry");
        if self.own_qpn {
            cqe.set(Cqe::QPN, qpn);
        }
        if self.own_index {
            cqe.set(Cqe::SRQN_UIDX, index);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(opcode: u8, counter: u8) -> Entry {
        let (opcode, counter) = (Some(opcode), Some(counter));
        Entry { bytes: [0; CQE], own_qpn: true, own_index: true, opcode, counter, valid: true }
    }

    /// Completions as the device writes them are taken: the target writes them where the driver of each kind of queue pair looks.
    #[test]
    fn right_completions_complete_what_was_posted() {
        for kind in 0..KINDS {
            for entries_then in [0, 100] {
                let sends = if kind == 5 { vec![] } else { vec![(true, kind == 6); 3] };
                let of_sends = (0..sends.len() as u8).map(|number| match kind {
                    // A datagram takes two blocks; of binds and registrations the first is named, again and again.
                    2 | 4 => entry(0, 2 * number),
                    6 => entry(0, 0),
                    _ => entry(0, number),
                });
                // A shared queue gives them in any order.
                let order = if matches!(kind, 3..=5) { [1, 0, 2] } else { [0, 1, 2] };
                let of_receives = order.map(|number| entry(2, number));
                let entries: Vec<Entry> = of_sends.chain(of_receives).collect();
                let expected = if kind == 6 { 4 } else { entries.len() as u64 };
                let input =
                    Input { sends, receives: 3, entries, capacity: 7, mode: 0, kind, entries_then, place: 0, again: vec![] };
                let completed = play(&input);
                // After a resize the device's own mark decides, and it has written completions of its own.
                assert!(completed >= expected || entries_then != 0, "kind {kind}: {completed} of {expected}");
            }
        }
    }
}
