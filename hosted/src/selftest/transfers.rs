//! Messages of each operation, with every byte verified.

use anyhow::{Context as _, Result, bail};
use bareverbs::{Payload, Remote, Rkey, SendFlags, SendOp, SendWr, Sge, WcData, WcOpcode};

use super::buffer_layout::BufferLayout;
use super::harness::{Harness, Moved};
use crate::data_pattern::Pattern;
use crate::device::{Host, Role};

/// Streams of the data pattern: one for each operation, so that their data differs.
const PING: u32 = 0;
const PONG: u32 = 1;
const SEND_IMM: u32 = 2;
const INLINE: u32 = 3;
const WRITE: u32 = 4;
const WRITE_IMM: u32 = 5;
const READ: u32 = 6;

/// Maximum inline payload in bytes.
pub(super) const INLINE_SIZE: usize = 32;

impl<H: Host> Harness<H> {
    fn pattern(&self, stream: u32, index: u64) -> Pattern {
        Pattern::new(self.seed, stream, index)
    }

    fn stopped(&self) -> bool {
        self.progress.is_stopped()
    }

    /// Returns batches with at most one message for each slot: (index of the first, number of messages).
    fn batches(&self, count: u64) -> impl Iterator<Item = (u64, usize)> + use<H> {
        let (first, slots) = (self.first, self.a.layout.slots);
        (0..count).step_by(slots).map(move |at| {
            let left = usize::try_from(count - at).unwrap_or(usize::MAX);
            (first + at, left.min(slots))
        })
    }

    fn done(&mut self, what: &'static str, moved: &mut Moved, messages: usize, size: usize) {
        moved.messages += messages as u64;
        moved.bytes += (messages * size) as u64;
        self.progress.advance(what, messages as u64);
    }

    /// Posts a batch from the client with one doorbell, and waits for the completion of its last request, the only one that is
    /// signaled.
    fn batch(&mut self, opcode: WcOpcode, requests: &[Request]) -> Result<()> {
        let flags = |last: bool| if last { SendFlags::SIGNALED } else { SendFlags::empty() };
        let mut batch = self.a.endpoint.qp(0)?.send().batch();
        for (at, request) in requests.iter().enumerate() {
            let wr = SendWr { wr_id: at as u64, flags: flags(at + 1 == requests.len()), op: request.op() };
            batch.post(&wr).with_context(|| format!("post of request {at} of a batch"))?;
        }
        drop(batch);
        let last = requests.len().saturating_sub(1) as u64;
        self.expect(Role::Client, last, opcode).map(|_| ())
    }

    /// SEND in both directions, one message at a time.
    pub(super) fn ping_pong(&mut self, moved: &mut Moved, count: u64) -> Result<()> {
        let size = self.a.layout.size;
        for index in self.first..self.first + count {
            if self.stopped() {
                break;
            }
            self.send_one((Role::Client, Role::Server), self.pattern(PING, index), index)?;
            self.send_one((Role::Server, Role::Client), self.pattern(PONG, index), index)?;
            self.done("SEND ping-pong", moved, 2, size);
        }
        Ok(())
    }

    fn send_one(&mut self, (from, to): (Role, Role), pattern: Pattern, index: u64) -> Result<()> {
        let (end, _) = self.end(from);
        let (at, size) = (end.layout.tx(index as usize), end.layout.size);
        end.endpoint.fill(at, size, pattern)?;
        let sges = [end.endpoint.sge(at, size)];
        end.endpoint.qp(0)?.send().post(&SendWr::send(&sges).id(index).signaled()).context("post of a send")?;
        let (slot, _) = self.expect_receive(to, WcOpcode::Recv, size).with_context(|| format!("message {index}"))?;
        let (peer, _) = self.end(to);
        peer.verify(peer.layout.rx(slot), size, pattern).with_context(|| format!("message {index}"))?;
        peer.post_receive(slot)?;
        self.expect(from, index, WcOpcode::Send).map(|_| ())
    }

    /// SEND_WITH_IMM in batches.
    pub(super) fn send_imm(&mut self, moved: &mut Moved, count: u64) -> Result<()> {
        let size = self.a.layout.size;
        for (first, messages) in self.batches(count) {
            if self.stopped() {
                break;
            }
            let requests = self.fill_batch(SEND_IMM, first, messages, size, |sge, _, imm| Request::SendImm(sge, imm))?;
            self.batch(WcOpcode::Send, &requests)?;
            for index in (first..).take(messages) {
                let (slot, completion) = self.expect_receive(Role::Server, WcOpcode::Recv, size)?;
                check_imm(completion.data, index)?;
                let pattern = self.pattern(SEND_IMM, index);
                self.b.verify(self.b.layout.rx(slot), size, pattern).with_context(|| format!("SEND_WITH_IMM {index}"))?;
                self.b.post_receive(slot)?;
            }
            self.done("SEND_WITH_IMM", moved, messages, size);
        }
        Ok(())
    }

    /// Fills the client's send slots of a batch, and returns its requests.
    fn fill_batch(
        &mut self,
        stream: u32,
        first: u64,
        messages: usize,
        size: usize,
        request: impl Fn(Sge, usize, [u8; 4]) -> Request,
    ) -> Result<Vec<Request>> {
        let mut requests = Vec::with_capacity(messages);
        for (slot, index) in (first..).take(messages).enumerate() {
            let pattern = self.pattern(stream, index);
            let at = self.a.layout.tx(slot);
            self.a.endpoint.fill(at, size, pattern)?;
            requests.push(request(self.a.endpoint.sge(at, size), slot, (index as u32).to_be_bytes()));
        }
        Ok(requests)
    }

    /// RDMA_WRITE of short messages inline.
    pub(super) fn write_inline(&mut self, moved: &mut Moved, count: u64, rkey: Rkey) -> Result<()> {
        let size = self.a.layout.size.min(INLINE_SIZE);
        for (first, messages) in self.batches(count) {
            if self.stopped() {
                break;
            }
            let mut requests = Vec::with_capacity(messages);
            for (slot, index) in (first..).take(messages).enumerate() {
                let mut bytes = [0; INLINE_SIZE];
                self.pattern(INLINE, index).fill(&mut bytes);
                requests.push(Request::WriteInline(bytes, size, self.b.remote(self.b.layout.exposed(slot), rkey)));
            }
            self.batch(WcOpcode::RdmaWrite, &requests)?;
            self.verify_exposed("RDMA_WRITE inline", INLINE, first, messages, size)?;
            self.done("RDMA_WRITE inline", moved, messages, size);
        }
        Ok(())
    }

    fn verify_exposed(&mut self, what: &str, stream: u32, first: u64, messages: usize, size: usize) -> Result<()> {
        for (slot, index) in (first..).take(messages).enumerate() {
            let pattern = self.pattern(stream, index);
            self.b.verify(self.b.layout.exposed(slot), size, pattern).with_context(|| format!("{what} {index}"))?;
        }
        Ok(())
    }

    /// RDMA_WRITE through the window.
    pub(super) fn write(&mut self, moved: &mut Moved, count: u64, rkey: Rkey) -> Result<()> {
        let size = self.a.layout.size;
        for (first, messages) in self.batches(count) {
            if self.stopped() {
                break;
            }
            let window = Window { layout: self.b.layout, start: self.b.remote(0, rkey) };
            let requests =
                self.fill_batch(WRITE, first, messages, size, |sge, slot, _| Request::Write(sge, window.at(slot)))?;
            self.batch(WcOpcode::RdmaWrite, &requests)?;
            self.verify_exposed("RDMA_WRITE", WRITE, first, messages, size)?;
            self.done("RDMA_WRITE", moved, messages, size);
        }
        Ok(())
    }

    /// RDMA_WRITE_WITH_IMM through the window: each consumes a receive at the server.
    pub(super) fn write_imm(&mut self, moved: &mut Moved, count: u64, rkey: Rkey) -> Result<()> {
        let size = self.a.layout.size;
        for (first, messages) in self.batches(count) {
            if self.stopped() {
                break;
            }
            let window = Window { layout: self.b.layout, start: self.b.remote(0, rkey) };
            let requests = self
                .fill_batch(WRITE_IMM, first, messages, size, |sge, slot, imm| Request::WriteImm(sge, window.at(slot), imm))?;
            self.batch(WcOpcode::RdmaWrite, &requests)?;
            for index in (first..).take(messages) {
                let (slot, completion) = self.expect_receive(Role::Server, WcOpcode::RecvRdmaWithImm, size)?;
                check_imm(completion.data, index)?;
                self.b.post_receive(slot)?;
            }
            self.verify_exposed("RDMA_WRITE_WITH_IMM", WRITE_IMM, first, messages, size)?;
            self.done("RDMA_WRITE_WITH_IMM", moved, messages, size);
        }
        Ok(())
    }

    /// RDMA_READ through the window.
    pub(super) fn read(&mut self, moved: &mut Moved, count: u64, rkey: Rkey) -> Result<()> {
        let size = self.a.layout.size;
        for (first, messages) in self.batches(count) {
            if self.stopped() {
                break;
            }
            let mut requests = Vec::with_capacity(messages);
            for (slot, index) in (first..).take(messages).enumerate() {
                let (pattern, exposed) = (self.pattern(READ, index), self.b.layout.exposed(slot));
                self.b.endpoint.fill(exposed, size, pattern)?;
                requests.push(Request::Read(self.a.endpoint.sge(self.a.layout.tx(slot), size), self.b.remote(exposed, rkey)));
            }
            self.batch(WcOpcode::RdmaRead, &requests)?;
            for (slot, index) in (first..).take(messages).enumerate() {
                let (pattern, at) = (self.pattern(READ, index), self.a.layout.tx(slot));
                self.a.verify(at, size, pattern).with_context(|| format!("RDMA_READ {index}"))?;
            }
            self.done("RDMA_READ", moved, messages, size);
        }
        Ok(())
    }

    /// Fetch-and-add through the window: each must return the sum of those before it.
    pub(super) fn fetch_add(&mut self, moved: &mut Moved, count: u64, rkey: Rkey) -> Result<()> {
        let (counter, mut sum) = (self.b.layout.counter(), self.seed);
        self.b.endpoint.store(counter, sum)?;
        for (first, messages) in self.batches(count) {
            if self.stopped() {
                break;
            }
            let remote = self.b.remote(counter, rkey);
            let result = |slot| self.a.endpoint.sge(self.a.layout.result(slot), 8);
            let requests: Vec<_> = (first..)
                .take(messages)
                .enumerate()
                .map(|(slot, add)| Request::FetchAdd(result(slot), remote, add + 1))
                .collect();
            self.batch(WcOpcode::FetchAdd, &requests)?;
            for (slot, add) in (first..).take(messages).enumerate() {
                expect_value("FETCH_AND_ADD", add, self.a.endpoint.load(self.a.layout.result(slot))?, sum)?;
                sum = sum.wrapping_add(add + 1);
            }
            expect_value("the counter after FETCH_AND_ADD", first, self.b.endpoint.load(counter)?, sum)?;
            self.done("FETCH_AND_ADD", moved, messages, 8);
        }
        Ok(())
    }

    /// Compare-and-swap through the window: every second one compares with a wrong value and must change nothing.
    pub(super) fn compare_swap(&mut self, moved: &mut Moved, count: u64, rkey: Rkey) -> Result<()> {
        let (counter, mut value) = (self.b.layout.counter(), !self.seed);
        self.b.endpoint.store(counter, value)?;
        for (first, messages) in self.batches(count) {
            if self.stopped() {
                break;
            }
            let remote = self.b.remote(counter, rkey);
            let (mut requests, mut expected) = (Vec::with_capacity(messages), Vec::with_capacity(messages));
            for (slot, index) in (first..).take(messages).enumerate() {
                let is_right = index % 2 == 0;
                let compare = if is_right { value } else { value.wrapping_add(1) };
                let swap = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index | 1);
                requests.push(Request::CompareSwap(self.a.endpoint.sge(self.a.layout.result(slot), 8), remote, compare, swap));
                expected.push(value);
                value = if is_right { swap } else { value };
            }
            self.batch(WcOpcode::CompSwap, &requests)?;
            for (slot, (index, old)) in (first..).zip(expected).enumerate() {
                expect_value("CMP_AND_SWP", index, self.a.endpoint.load(self.a.layout.result(slot))?, old)?;
            }
            expect_value("the word after CMP_AND_SWP", first, self.b.endpoint.load(counter)?, value)?;
            self.done("CMP_AND_SWP", moved, messages, 8);
        }
        Ok(())
    }
}

/// The exposed slots of the server, as remote addresses.
struct Window {
    layout: BufferLayout,
    /// Remote address of byte 0 of the region.
    start: Remote,
}

impl Window {
    fn at(&self, slot: usize) -> Remote {
        Remote { addr: self.start.addr + self.layout.exposed(slot) as u64, ..self.start }
    }
}

/// A request of a batch, which owns its SGE and inline payload.
pub(super) enum Request {
    SendImm(Sge, [u8; 4]),
    WriteInline([u8; INLINE_SIZE], usize, Remote),
    Write(Sge, Remote),
    WriteImm(Sge, Remote, [u8; 4]),
    Read(Sge, Remote),
    FetchAdd(Sge, Remote, u64),
    CompareSwap(Sge, Remote, u64, u64),
}

impl Request {
    fn op(&self) -> SendOp<'_> {
        let sges = |sge| Payload::Sges(std::slice::from_ref(sge));
        match self {
            Self::SendImm(sge, imm) => SendOp::SendWithImm { payload: sges(sge), imm: *imm },
            Self::WriteInline(bytes, len, remote) => {
                SendOp::Write { payload: Payload::Inline(bytes.get(..*len).unwrap_or(bytes)), remote: *remote }
            }
            Self::Write(sge, remote) => SendOp::Write { payload: sges(sge), remote: *remote },
            Self::WriteImm(sge, remote, imm) => SendOp::WriteWithImm { payload: sges(sge), remote: *remote, imm: *imm },
            Self::Read(sge, remote) => SendOp::Read { sges: std::slice::from_ref(sge), remote: *remote },
            Self::FetchAdd(sge, remote, add) => SendOp::FetchAdd { sge: *sge, remote: *remote, add: *add },
            Self::CompareSwap(sge, remote, compare, swap) => {
                SendOp::CompareSwap { sge: *sge, remote: *remote, compare: *compare, swap: *swap }
            }
        }
    }
}

fn check_imm(data: WcData, index: u64) -> Result<()> {
    let wanted = WcData::Imm((index as u32).to_be_bytes());
    if data != wanted {
        bail!("message {index} came with {data:?} instead of {wanted:?}");
    }
    Ok(())
}

fn expect_value(what: &str, index: u64, have: u64, want: u64) -> Result<()> {
    if have != want {
        bail!("{what} {index}: {have:#018x} instead of {want:#018x}");
    }
    Ok(())
}
