//! What a program could do that is written for one queue pair of one card: with no check at all (the floor), and with the checks
//! that the core makes. On rings of plain memory, like those of the driver that is measured.

use std::hint::cold_path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use bareverbs::{Remote, Sge};
use bareverbs_mlx5_spec::{CqeOpcode, WqeOpcode};

/// Blocks of the send ring, entries of the receive ring and of the completion queue.
pub(crate) const DEPTH: usize = 256;
const MASK: usize = DEPTH - 1;
/// Queue pair number, domain and user index.
const QPN: u32 = 0x48;
const PD: u32 = 3;
const USER_INDEX: u32 = 5;
/// Asks for a completion (`fm_ce_se`).
pub(crate) const SIGNALED: u32 = 2 << 2;
const LOCAL_WRITE: u32 = 1;

/// 64 bytes that the device reads or writes.
#[derive(Default)]
#[repr(align(64))]
struct Block([AtomicU64; 8]);

impl Block {
    #[inline(always)]
    fn put(&self, word: usize, high: u32, low: u32) {
        self.put64(word, u64::from(high) << 32 | u64::from(low));
    }

    #[inline(always)]
    fn put64(&self, word: usize, value: u64) {
        self.0[word].store(value.to_be(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn get(&self, word: usize) -> u64 {
        u64::from_be(self.0[word].load(Ordering::Relaxed))
    }
}

/// A region as another core may change it: `sequence` is odd meanwhile, and another one afterwards.
#[derive(Default)]
struct Region {
    sequence: AtomicU32,
    key: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
    addr: AtomicU64,
    len: AtomicU64,
}

/// What the completion of a request needs.
#[derive(Default)]
struct Entry {
    wr_id: AtomicU64,
    length: AtomicU32,
    opcode: AtomicU32,
}

/// A completion as a program gets it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Done {
    wr_id: u64,
    qpn: u32,
    length: u32,
    opcode: u32,
}

/// Why something was refused. A program would say more; what it says costs nothing unless it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    State,
    Flags,
    Full,
    Region,
    Completion,
}

/// A queue pair with its completion queue.
pub(crate) struct ByHand {
    ring: Box<[Block; DEPTH]>,
    receives: Box<[Block; DEPTH]>,
    completions: Box<[Block; DEPTH]>,
    entries: Box<[Entry; DEPTH]>,
    receive_ids: Box<[AtomicU64; DEPTH]>,
    regions: [Region; 8],
    records: [AtomicU32; 3],
    doorbell: AtomicU64,
    can_send: AtomicBool,
    /// Blocks posted: the poster's, and as a poller sees them.
    head: u32,
    published: AtomicU32,
    tail: AtomicU32,
    received: u32,
    receive_tail: AtomicU32,
    consumer: u32,
    max_sge: u32,
}

fn boxed<T: Default, const N: usize>() -> Box<[T; N]> {
    let list: Vec<T> = (0..N).map(|_| T::default()).collect();
    list.try_into().unwrap_or_else(|_| unreachable!("as long as was asked for"))
}

impl ByHand {
    /// Creates the queue pair, and the region of `sge`.
    pub(crate) fn new(sge: &Sge) -> Self {
        let regions = <[Region; 8]>::default();
        let region = &regions[(sge.lkey.get() >> 8) as usize & 7];
        region.key.store(sge.lkey.get(), Ordering::Relaxed);
        region.pd.store(PD, Ordering::Relaxed);
        region.access.store(LOCAL_WRITE, Ordering::Relaxed);
        region.addr.store(sge.addr - 4096, Ordering::Relaxed);
        region.len.store(1 << 20, Ordering::Relaxed);
        Self {
            ring: boxed(),
            receives: boxed(),
            completions: boxed(),
            entries: boxed(),
            receive_ids: boxed(),
            regions,
            records: Default::default(),
            doorbell: AtomicU64::new(0),
            can_send: AtomicBool::new(true),
            head: 0,
            published: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            received: 0,
            receive_tail: AtomicU32::new(0),
            consumer: 0,
            max_sge: 4,
        }
    }

    /// Returns where the next request goes.
    pub(crate) const fn head(&self) -> u32 {
        self.head
    }

    /// Completes everything that was posted, unseen.
    pub(crate) fn retire(&mut self) {
        self.tail.store(self.head, Ordering::Relaxed);
        self.receive_tail.store(self.received, Ordering::Relaxed);
    }

    /// Posts requests and writes their completions, to be polled.
    pub(crate) fn fill(&mut self, requests: u32, sge: &Sge, remote: Remote) {
        for n in 0..requests {
            let index = self.head;
            self.post_checked(u64::from(n), SIGNALED, &[*sge], remote).expect("room");
            let at = self.consumer.wrapping_add(n);
            let cqe = &self.completions[at as usize & MASK];
            let owner = at >> DEPTH.trailing_zeros() & 1;
            cqe.put(2, USER_INDEX, 0);
            cqe.put(5, 0, 64);
            cqe.put(
                7,
                u32::from(WqeOpcode::RdmaWrite.code() as u8) << 24 | QPN,
                (index & 0xffff) << 16 | u32::from(CqeOpcode::Req.code() as u8) << 4 | owner,
            );
        }
    }

    /// Whether the region of an SGE is what it says: found by its key, of this domain, with these rights, around these bytes, and
    /// the same after that was read.
    #[inline(always)]
    fn allows(&self, sge: &Sge, need: u32) -> bool {
        let key = sge.lkey.get();
        let region = &self.regions[(key >> 8) as usize & 7];
        let before = region.sequence.load(Ordering::Acquire);
        let offset = sge.addr.wrapping_sub(region.addr.load(Ordering::Relaxed));
        let len = region.len.load(Ordering::Relaxed);
        let good = before & 1 == 0
            && region.key.load(Ordering::Relaxed) == key
            && region.pd.load(Ordering::Relaxed) == PD
            && region.access.load(Ordering::Relaxed) & need == need
            && offset <= len
            && u64::from(sge.length) <= len - offset
            && sge.length != 0;
        fence(Ordering::Acquire);
        good && region.sequence.load(Ordering::Relaxed) == before
    }

    /// Writes the segments of a WRITE with up to seven SGEs.
    #[inline(always)]
    fn put_write(&self, flags: u32, sges: &[Sge], remote: Remote) -> u32 {
        let index = self.head;
        let block = |segment: usize| &self.ring[(index as usize + segment / 4) & MASK];
        let sizes = 2 + sges.len() as u32;
        block(0).put(0, (index & 0xffff) << 8 | WqeOpcode::RdmaWrite.code(), QPN << 8 | sizes);
        block(0).put(1, flags, 0);
        block(0).put64(2, remote.addr);
        block(0).put(3, remote.rkey.get(), 0);
        for (n, sge) in sges.iter().enumerate() {
            let (block, at) = (block(n + 2), (n + 2) % 4 * 2);
            block.put(at, sge.length, sge.lkey.get());
            block.put64(at + 1, sge.addr);
        }
        sizes.div_ceil(4)
    }

    /// Rings for everything before the head.
    #[inline(always)]
    pub(crate) fn ring(&self, first: u32) {
        self.published.store(self.head, Ordering::Release);
        // The device reads the WQEs after the record, and the record after the doorbell: on x86 stores stay in order.
        fence(Ordering::Release);
        self.records[0].store((self.head & 0xffff).to_be(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.doorbell.store(self.ring[first as usize & MASK].0[0].load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Appends a WRITE without any check.
    #[inline(always)]
    pub(crate) fn append_floor(&mut self, wr_id: u64, sges: &[Sge], remote: Remote) {
        let blocks = self.put_write(SIGNALED, sges, remote);
        self.entries[self.head as usize & MASK].wr_id.store(wr_id, Ordering::Relaxed);
        self.head = self.head.wrapping_add(blocks);
    }

    /// Appends a WRITE with the checks of the core, in their short form: any failure is one refusal.
    #[inline(always)]
    pub(crate) fn append_checked(&mut self, wr_id: u64, flags: u32, sges: &[Sge], remote: Remote) -> Result<(), Refusal> {
        if flags & !SIGNALED != 0 || sges.len() as u32 > self.max_sge {
            cold_path();
            return Err(Refusal::Flags);
        }
        let mut bytes = 0;
        for sge in sges {
            if !self.allows(sge, 0) {
                cold_path();
                return Err(Refusal::Region);
            }
            bytes += sge.length;
        }
        if !self.can_send.load(Ordering::Acquire) {
            cold_path();
            return Err(Refusal::State);
        }
        let blocks = (2 + sges.len() as u32).div_ceil(4);
        if self.tail.load(Ordering::Acquire).wrapping_add(DEPTH as u32).wrapping_sub(self.head) < blocks {
            cold_path();
            return Err(Refusal::Full);
        }
        self.put_write(flags, sges, remote);
        let entry = &self.entries[self.head as usize & MASK];
        entry.wr_id.store(wr_id, Ordering::Relaxed);
        entry.length.store(bytes, Ordering::Relaxed);
        entry.opcode.store(blocks << 8 | WqeOpcode::RdmaWrite.code(), Ordering::Relaxed);
        self.head = self.head.wrapping_add(blocks);
        Ok(())
    }

    /// Posts a WRITE with a doorbell of its own, and no check.
    #[inline(always)]
    pub(crate) fn post_floor(&mut self, wr_id: u64, sges: &[Sge], remote: Remote) {
        let first = self.head;
        self.append_floor(wr_id, sges, remote);
        self.ring(first);
    }

    /// Posts a WRITE with a doorbell of its own.
    #[inline(always)]
    pub(crate) fn post_checked(&mut self, wr_id: u64, flags: u32, sges: &[Sge], remote: Remote) -> Result<(), Refusal> {
        let first = self.head;
        self.append_checked(wr_id, flags, sges, remote)?;
        self.ring(first);
        Ok(())
    }

    /// Posts a receive of one SGE; `CHECKED`: with the checks of the core.
    #[inline(always)]
    pub(crate) fn post_recv<const CHECKED: bool>(&mut self, wr_id: u64, sge: &Sge) -> Result<(), Refusal> {
        if CHECKED {
            if !self.allows(sge, LOCAL_WRITE) {
                cold_path();
                return Err(Refusal::Region);
            }
            let room = self.receive_tail.load(Ordering::Acquire).wrapping_add(DEPTH as u32).wrapping_sub(self.received);
            if room == 0 || !self.can_send.load(Ordering::Acquire) {
                cold_path();
                return Err(Refusal::Full);
            }
        }
        let at = self.received as usize & MASK;
        let block = &self.receives[at];
        block.put(0, sge.length, sge.lkey.get());
        block.put64(1, sge.addr);
        self.receive_ids[at].store(wr_id, Ordering::Relaxed);
        self.received = self.received.wrapping_add(1);
        fence(Ordering::Release);
        self.records[1].store((self.received & 0xffff).to_be(), Ordering::Relaxed);
        Ok(())
    }

    /// Takes completions of requests until `found` is full; `CHECKED`: what the device says is of this queue pair and of a request
    /// in flight. Gives how many.
    #[inline(always)]
    pub(crate) fn poll<const CHECKED: bool>(&mut self, found: &mut [Done]) -> Result<usize, Refusal> {
        let mut count = 0;
        for done in found {
            let cqe = &self.completions[self.consumer as usize & MASK];
            let last = cqe.get(7);
            // Owner bit and opcode: 15 is an entry that was never written.
            if last & 1 != u64::from(self.consumer >> DEPTH.trailing_zeros() & 1) || last >> 4 & 15 == 15 {
                break;
            }
            fence(Ordering::Acquire);
            let index = (last >> 16 & 0xffff) as u32;
            let entry = &self.entries[index as usize & MASK];
            if CHECKED {
                let tail = self.tail.load(Ordering::Relaxed);
                let in_flight = self.published.load(Ordering::Acquire).wrapping_sub(tail);
                let behind = index.wrapping_sub(tail) & 0xffff;
                let opcode = entry.opcode.load(Ordering::Relaxed);
                let known = last >> 4 & 15 == u64::from(CqeOpcode::Req.code() as u8) && opcode != 0;
                if cqe.get(2) >> 32 != u64::from(USER_INDEX)
                    || last >> 32 & 0xff_ffff != u64::from(QPN)
                    || behind >= in_flight
                    || !known
                {
                    cold_path();
                    return Err(Refusal::Completion);
                }
                *done = Done {
                    wr_id: entry.wr_id.load(Ordering::Relaxed),
                    qpn: QPN,
                    length: entry.length.load(Ordering::Relaxed),
                    opcode,
                };
                self.tail.store(tail.wrapping_add(behind).wrapping_add(opcode >> 8), Ordering::Release);
            } else {
                done.wr_id = entry.wr_id.load(Ordering::Relaxed);
            }
            self.consumer = self.consumer.wrapping_add(1);
            count += 1;
        }
        self.records[2].store((self.consumer & 0xff_ffff).to_be(), Ordering::Relaxed);
        Ok(count)
    }
}
