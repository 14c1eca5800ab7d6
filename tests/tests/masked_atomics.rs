//! Masked atomics on simulated devices: values, byte order, exactly once over a wire that loses, refusals.

use bareverbs::error::{PostSendError, SgeFault};
use bareverbs::{Access, MaskedAtomics, MaskedOp, MaskedWr, QpType, Remote, SendFlags, Srqn, WcOpcode, WcStatus};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_testing::{Faults, Probability};
use bareverbs_tests::{CAP, Connection, End, Node, Pair, Region, end_in, refused, ud_to_rts};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
const BOTH: MaskedAtomics = MaskedAtomics { four: true, eight: true };

struct Fixture {
    pair: Pair,
    a: End,
    b: End,
    here: Region,
    there: Region,
}

fn fixture(faults: Faults) -> Fixture {
    let world = World::new(WorldConfig::from(faults));
    let [a, b] = [1, 2].map(|lid| Node::new(world.add(DeviceConfig::with_lid(lid)).unwrap()));
    let mut pair = Pair { world, a, b };
    let (a, b) = pair.connected();
    let (here, there) = (pair.a.region(a.pd, 4096, ALL), pair.b.region(b.pd, 4096, ALL));
    Fixture { pair, a, b, here, there }
}

impl Fixture {
    fn wr(&self, op: MaskedOp, at: usize) -> MaskedWr {
        let (remote, sge) = (self.there.remote(at), self.here.sge(at, op.size() as usize));
        MaskedWr { wr_id: 3, flags: SendFlags::SIGNALED, op, remote, sge }
    }

    fn post(&mut self, wr: &MaskedWr) -> Result<(), PostSendError> {
        self.pair.a.verbs.send(self.a.qp).post_masked(wr)
    }

    fn status(&mut self, wr: &MaskedWr) -> WcStatus {
        self.post(wr).unwrap();
        self.pair.a.completions(self.a.cq, 1)[0].status
    }
}

/// What becomes of a value, by the fields and not bit by bit.
fn after(op: &MaskedOp, value: u64) -> u64 {
    let swapped = |compare: u64, compare_mask: u64, swap: u64, swap_mask: u64| {
        if value & compare_mask == compare & compare_mask { (value & !swap_mask) | (swap & swap_mask) } else { value }
    };
    let added = |add: u64, boundary: u64, bits: u32| {
        let (mut sum, mut low) = (0, 0);
        for high in 0..bits {
            if boundary >> high & 1 != 0 || high + 1 == bits {
                let mask = u64::MAX >> (63 - (high - low));
                sum |= ((value >> low & mask).wrapping_add(add >> low & mask) & mask) << low;
                low = high + 1;
            }
        }
        sum
    };
    match *op {
        MaskedOp::CompareSwap4 { compare, compare_mask, swap, swap_mask } => {
            swapped(compare.into(), compare_mask.into(), swap.into(), swap_mask.into())
        }
        MaskedOp::CompareSwap8 { compare, compare_mask, swap, swap_mask } => swapped(compare, compare_mask, swap, swap_mask),
        MaskedOp::FetchAdd4 { add, boundary } => added(add.into(), boundary.into(), 32),
        MaskedOp::FetchAdd8 { add, boundary } => added(add, boundary, 64),
    }
}

/// Numbers that are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Few or many bits, and often none or all.
    fn mask(&mut self) -> u64 {
        match self.next() % 5 {
            0 => 0,
            1 => u64::MAX,
            2 => self.next() & self.next() & self.next(),
            _ => self.next(),
        }
    }

    fn op(&mut self, value: u64) -> MaskedOp {
        // Half of all comparisons find what they expect in the bits that count.
        let compare_mask = self.mask();
        let wrong = if self.next().is_multiple_of(2) { self.next() & compare_mask } else { self.next() & !compare_mask };
        let (compare, swap, swap_mask) = (value ^ wrong, self.next(), self.mask());
        match self.next() % 4 {
            0 => MaskedOp::CompareSwap4 {
                compare: compare as u32,
                compare_mask: compare_mask as u32,
                swap: swap as u32,
                swap_mask: swap_mask as u32,
            },
            1 => MaskedOp::CompareSwap8 { compare, compare_mask, swap, swap_mask },
            2 => MaskedOp::FetchAdd4 { add: self.next() as u32, boundary: self.mask() as u32 },
            _ => MaskedOp::FetchAdd8 { add: self.next(), boundary: self.mask() },
        }
    }
}

/// Every kind, in batches that are in flight together, on words that lie beside each other. Each is done once, whatever the wire loses and
/// doubles; the bytes beside a word of four are not touched.
// contract: masked-values
#[test]
fn each_does_what_its_masks_say_and_once() {
    for (seed, per_mille) in [(1, 0), (2, 30), (3, 100)] {
        let probability = Probability::per_mille(per_mille);
        let faults = Faults::none().loss(probability).duplication(probability).seed(seed);
        let mut fixture = fixture(faults);
        assert_eq!(fixture.pair.a.verbs.query_device().masked_atomics, BOTH);
        let mut numbers = Numbers(seed);
        let mut words = [0_u64; 8];
        for (at, word) in words.iter_mut().enumerate() {
            *word = numbers.next();
            fixture.there.buffer.write(8 * at, &word.to_ne_bytes());
        }
        for round in 0..300 {
            let mut expected = Vec::new();
            let mut batch = Vec::new();
            for slot in 0..1 + numbers.next() as usize % 6 {
                let at = numbers.next() as usize % 8;
                let op = numbers.op(words[at]);
                let bytes = words[at].to_ne_bytes();
                // The first half of a word, or the second.
                let within = if op.size() == 4 { 4 * (numbers.next() as usize % 2) } else { 0 };
                let size = op.size() as usize;
                let mut old = [0; 8];
                old[..size].copy_from_slice(&bytes[within..within + size]);
                // Little-endian hosts alone, as those of the tests are.
                let old_value = u64::from_le_bytes(old);
                let mut new = bytes;
                new[within..within + size].copy_from_slice(&after(&op, old_value).to_le_bytes()[..size]);
                words[at] = u64::from_ne_bytes(new);
                let (remote, sge) = (fixture.there.remote(8 * at + within), fixture.here.sge(8 * slot, size));
                batch.push(MaskedWr { wr_id: slot as u64, flags: SendFlags::SIGNALED, op, remote, sge });
                let swaps = matches!(op, MaskedOp::CompareSwap4 { .. } | MaskedOp::CompareSwap8 { .. });
                let opcode = if swaps { WcOpcode::CompSwap } else { WcOpcode::FetchAdd };
                expected.push((slot as u64, opcode, op.size(), old_value));
            }
            let mut queue = fixture.pair.a.verbs.send_batch(fixture.a.qp);
            batch.iter().for_each(|wr| queue.post_masked(wr).unwrap());
            drop(queue);
            let done = fixture.pair.a.completions(fixture.a.cq, batch.len());
            for (done, (wr_id, opcode, size, old)) in done.iter().zip(expected) {
                assert_eq!((done.wr_id, done.opcode, done.status, done.byte_len), (wr_id, opcode, WcStatus::Success, size));
                let mut found = [0; 8];
                found[..size as usize].copy_from_slice(&fixture.here.buffer.read(8 * wr_id as usize, size as usize));
                assert_eq!(u64::from_le_bytes(found), old, "seed {seed}, round {round}: {:?}", batch[wr_id as usize]);
            }
            let found = fixture.there.buffer.read(0, 64);
            let must: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(found, must, "seed {seed}, round {round}: {batch:?}");
        }
        fixture.pair.assert_no_findings();
    }
}

// contract: masked-refused
#[test]
fn what_is_wrong_with_a_masked_atomic_is_named() {
    let mut fixture = fixture(Faults::none());
    let four = MaskedOp::FetchAdd4 { add: 1, boundary: 0 };
    let eight = MaskedOp::FetchAdd8 { add: 1, boundary: 0 };
    let before = fixture.there.buffer.read(0, 64);
    for (op, wrong) in [(four, 8), (eight, 4)] {
        let wr = MaskedWr { sge: fixture.here.sge(0, wrong), ..fixture.wr(op, 0) };
        refused!(fixture.post(&wr), Einval, PostSendError::AtomicLength { .. });
        let aligned = op.size() as usize / 2;
        refused!(fixture.post(&fixture.wr(op, aligned)), Einval, PostSendError::AtomicAlignment { .. });
    }
    let read_only = fixture.pair.a.region(fixture.a.pd, 8, Access::empty());
    let wr = MaskedWr { sge: read_only.sge(0, 4), ..fixture.wr(four, 0) };
    refused!(fixture.post(&wr), Eacces, PostSendError::Sge { fault: SgeFault::Access, .. });
    let wr = MaskedWr { flags: SendFlags::SOLICITED, ..fixture.wr(four, 0) };
    refused!(fixture.post(&wr), Einval, PostSendError::Flags { .. });
    let wr = fixture.wr(four, 0);
    let idle = end_in(&mut fixture.pair.a, fixture.a.pd, QpType::Rc, CAP, true);
    let refusal = fixture.pair.a.verbs.send(idle.qp).post_masked(&wr);
    refused!(refusal, Enotconn, PostSendError::NotReady { .. });
    let [uc, ud] = [QpType::Uc, QpType::Ud].map(|kind| end_in(&mut fixture.pair.a, fixture.a.pd, kind, CAP, true));
    let peer = end_in(&mut fixture.pair.b, fixture.b.pd, QpType::Uc, CAP, true);
    fixture.pair.connect(&uc, &peer, &Connection::default());
    ud_to_rts(&mut fixture.pair.a, ud.qp);
    for other in [uc, ud] {
        let refusal = fixture.pair.a.verbs.send(other.qp).post_masked(&wr);
        refused!(refusal, Einval, PostSendError::Opcode { .. });
    }
    let srqn = Srqn::new(1);
    refused!(fixture.pair.a.verbs.send(fixture.a.qp).post_masked_to_srq(&wr, srqn), Einval, PostSendError::Destination { .. });
    assert_eq!(fixture.there.buffer.read(0, 64), before);

    // The peer's rights: of the region, and of the queue pair.
    let mut closed = fixture.pair.b.region(fixture.b.pd, 8, ALL - Access::REMOTE_ATOMIC);
    closed.buffer.write(0, &[7; 8]);
    let wr = MaskedWr { remote: Remote { ..closed.remote(0) }, ..fixture.wr(eight, 0) };
    assert_eq!(fixture.status(&wr), WcStatus::RemAccessErr);
    assert_eq!(closed.buffer.read(0, 8), [7; 8]);
    fixture.pair.assert_no_findings();
}

// contract: masked-refused
#[test]
fn a_device_without_them_says_so() {
    let without = |lid| DeviceConfig { extended_atomics: false, ..DeviceConfig::with_lid(lid) };
    let mut pair = Pair::of_devices(without(1), without(2));
    let (a, b) = pair.connected();
    let (here, there) = (pair.a.region(a.pd, 64, ALL), pair.b.region(b.pd, 64, ALL));
    assert_eq!(pair.a.verbs.query_device().masked_atomics, MaskedAtomics::default());
    let op = MaskedOp::FetchAdd8 { add: 1, boundary: 0 };
    let wr = MaskedWr { wr_id: 1, flags: SendFlags::SIGNALED, op, remote: there.remote(0), sge: here.sge(0, 8) };
    refused!(pair.a.verbs.send(a.qp).post_masked(&wr), Eopnotsupp, PostSendError::NoAtomics);
    assert_eq!(there.buffer.read(0, 8), [0; 8]);

    // A peer without them calls the request invalid.
    let mut pair = Pair::of_devices(DeviceConfig::with_lid(1), without(2));
    let (a, b) = pair.connected();
    let (here, there) = (pair.a.region(a.pd, 64, ALL), pair.b.region(b.pd, 64, ALL));
    let wr = MaskedWr { remote: there.remote(0), sge: here.sge(0, 8), ..wr };
    pair.a.verbs.send(a.qp).post_masked(&wr).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::RemInvReqErr);
    assert_eq!(there.buffer.read(0, 8), [0; 8]);
}
