//! Arbitrary requests, and what the device's decoder must read after a driver wrote them.

use arbitrary::Arbitrary;
use bareverbs::{Access, Bind, CheckedOp, Lkey, MwType, Payload, Remote, Rkey, SendFlags, Sge};
use bareverbs_mlx5_spec::{MKEY_ANY_QPN, Mkc, View, WqeOpcode, mkey_mask};
use bareverbs_sim::wqe::{AtomicOperation, DataPointer, DataSegment, RemoteAddress, SendBody, SendWqe, Umr, UmrTranslations};

/// The longest message piece that a data segment can describe.
const LONGEST: u32 = 1 << 31;
/// The most 16-byte units that the size field can say.
const MOST_UNITS: usize = 63;

/// A request, with flags.
#[derive(Arbitrary, Clone, Debug)]
pub struct Request {
    /// Operation.
    pub operation: Operation,
    fence: bool,
    solicited: bool,
    /// Whether a completion is asked for.
    pub signaled: bool,
}

/// A piece of memory: address, length, key.
type Piece = (u64, u32, u32);
/// The peer's memory: address, key.
type Far = (u64, u32);

/// A message.
#[derive(Arbitrary, Clone, Debug)]
pub enum Message {
    /// In memory.
    Pieces(Vec<Piece>),
    /// In the request.
    Inline(Vec<u8>),
}

/// An operation that a driver can be asked to write.
#[derive(Arbitrary, Clone, Debug)]
pub enum Operation {
    /// SEND.
    Send(Message),
    /// SEND_WITH_IMM.
    SendWithImm(Message, [u8; 4]),
    /// SEND_WITH_INV.
    SendWithInv(Message, u32),
    /// RDMA_WRITE.
    Write(Message, Far),
    /// RDMA_WRITE_WITH_IMM.
    WriteWithImm(Message, Far, [u8; 4]),
    /// RDMA_READ.
    Read(Vec<Piece>, Far),
    /// Compare-and-swap; the local buffer has eight bytes.
    CompareSwap((u64, u32), Far, u64, u64),
    /// Fetch-and-add; the local buffer has eight bytes.
    FetchAdd((u64, u32), Far, u64),
    /// A bind of a window of type 2, or of type 1.
    Bind {
        /// Whether it is of type 2.
        second: bool,
        /// Key now.
        old: u32,
        /// Key then.
        new: u32,
        /// Key of the region.
        lkey: u32,
        /// First byte.
        addr: u64,
        /// Length.
        length: u64,
        /// Rights.
        access: u32,
    },
    /// LOCAL_INV.
    LocalInv(u32),
}

fn sges(pieces: &[Piece]) -> Vec<Sge> {
    pieces.iter().map(|&(addr, length, lkey)| Sge { addr, length, lkey: Lkey::new(lkey) }).collect()
}

fn remote(far: Far) -> Remote {
    Remote { addr: far.0, rkey: Rkey::new(far.1) }
}

fn remote_address(far: Far) -> RemoteAddress {
    RemoteAddress { addr: far.0, rkey: far.1 }
}

/// The data segments of pieces: empty ones are left out.
fn pointers(pieces: &[Piece]) -> Vec<DataSegment> {
    let told = pieces.iter().filter(|piece| piece.1 != 0);
    told.map(|&(addr, len, lkey)| DataSegment::Pointer(DataPointer { len: u64::from(len), lkey, addr })).collect()
}

fn segments(message: &Message) -> Vec<DataSegment> {
    match message {
        Message::Pieces(pieces) => pointers(pieces),
        Message::Inline(bytes) if bytes.is_empty() => Vec::new(),
        Message::Inline(bytes) => vec![DataSegment::Inline(bytes.clone())],
    }
}

/// 16-byte units of a message's segments.
fn units(segments: &[DataSegment]) -> usize {
    let unit = |segment: &DataSegment| match segment {
        DataSegment::Pointer(_) => 1,
        DataSegment::Inline(bytes) => (4 + bytes.len()).div_ceil(16),
    };
    segments.iter().map(unit).sum()
}

impl Request {
    /// Flags for the driver.
    pub fn flags(&self) -> SendFlags {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::FENCE, self.fence);
        flags.set(SendFlags::SOLICITED, self.solicited);
        flags.set(SendFlags::SIGNALED, self.signaled);
        flags
    }

    /// Whether it changes a key, so that the request after it must wait for it.
    pub fn changes_a_key(&self) -> bool {
        matches!(self.operation, Operation::Bind { .. } | Operation::LocalInv(_))
    }

    /// Hands the request to `take` as the verbs core hands it to a driver.
    pub fn with_op<R>(&self, take: impl FnOnce(&CheckedOp<'_>) -> R) -> R {
        let list;
        let payload = |list| match &self.operation {
            Operation::Send(Message::Inline(bytes))
            | Operation::SendWithImm(Message::Inline(bytes), _)
            | Operation::SendWithInv(Message::Inline(bytes), _)
            | Operation::Write(Message::Inline(bytes), _)
            | Operation::WriteWithImm(Message::Inline(bytes), _, _) => Payload::Inline(bytes),
            _ => Payload::Sges(list),
        };
        list = match &self.operation {
            Operation::Send(Message::Pieces(pieces))
            | Operation::SendWithImm(Message::Pieces(pieces), _)
            | Operation::SendWithInv(Message::Pieces(pieces), _)
            | Operation::Write(Message::Pieces(pieces), _)
            | Operation::WriteWithImm(Message::Pieces(pieces), _, _)
            | Operation::Read(pieces, _) => sges(pieces),
            _ => Vec::new(),
        };
        let eight = |(addr, lkey): (u64, u32)| Sge { addr, length: 8, lkey: Lkey::new(lkey) };
        let op = match self.operation {
            Operation::Send(_) => CheckedOp::Send(payload(&list)),
            Operation::SendWithImm(_, imm) => CheckedOp::SendWithImm(payload(&list), imm),
            Operation::SendWithInv(_, rkey) => CheckedOp::SendWithInv(payload(&list), Rkey::new(rkey)),
            Operation::Write(_, far) => CheckedOp::Write(payload(&list), remote(far)),
            Operation::WriteWithImm(_, far, imm) => CheckedOp::WriteWithImm(payload(&list), remote(far), imm),
            Operation::Read(_, far) => CheckedOp::Read(&list, remote(far)),
            Operation::CompareSwap(near, far, compare, swap) => CheckedOp::CompareSwap(eight(near), remote(far), compare, swap),
            Operation::FetchAdd(near, far, add) => CheckedOp::FetchAdd(eight(near), remote(far), add),
            Operation::Bind { second, old, new, lkey, addr, length, access } => CheckedOp::BindMw(Bind {
                kind: if second { MwType::Type2 } else { MwType::Type1 },
                old: Rkey::new(old),
                new: Rkey::new(new),
                lkey: Lkey::new(lkey),
                addr,
                length,
                access: Access::from_bits_truncate(access) & Access::KNOWN,
            }),
            Operation::LocalInv(rkey) => CheckedOp::LocalInv(Rkey::new(rkey)),
        };
        take(&op)
    }

    /// 16-byte units of the request.
    fn units(&self) -> usize {
        match &self.operation {
            Operation::Send(message) | Operation::SendWithImm(message, _) | Operation::SendWithInv(message, _) => {
                1 + units(&segments(message))
            }
            Operation::Write(message, _) | Operation::WriteWithImm(message, _, _) => 2 + units(&segments(message)),
            Operation::Read(pieces, _) => 2 + units(&pointers(pieces)),
            Operation::CompareSwap(..) | Operation::FetchAdd(..) => 4,
            Operation::Bind { length: 0, .. } | Operation::LocalInv(_) => 8,
            Operation::Bind { .. } => 12,
        }
    }

    /// Whether a ring of `blocks` blocks can hold it and its fields can say what it asks for.
    pub fn can_be_written(&self, blocks: usize) -> bool {
        let short = |pieces: &[Piece]| pieces.iter().all(|piece| piece.1 <= LONGEST);
        let lengths = match &self.operation {
            Operation::Send(Message::Pieces(pieces))
            | Operation::SendWithImm(Message::Pieces(pieces), _)
            | Operation::SendWithInv(Message::Pieces(pieces), _)
            | Operation::Write(Message::Pieces(pieces), _)
            | Operation::WriteWithImm(Message::Pieces(pieces), _, _)
            | Operation::Read(pieces, _) => short(pieces),
            Operation::Bind { length, .. } => *length <= u64::from(LONGEST),
            _ => true,
        };
        lengths && self.units() <= MOST_UNITS && self.units().div_ceil(4) <= blocks
    }

    /// What is wrong with the element that a driver wrote for it on queue pair `qpn` at block `at`; `fenced` if the request
    /// before it changed a key.
    pub fn compare(&self, wqe: &SendWqe, qpn: u32, at: u32, fenced: bool) -> Result<(), String> {
        let fence = if self.fence { 4 } else { u8::from(fenced) };
        let head = (wqe.opmod, wqe.index, wqe.qpn, usize::from(wqe.ds), wqe.fence, wqe.solicited, wqe.is_signaled());
        let asked = (0, at as u16, qpn, self.units(), fence, self.solicited, self.signaled);
        if head != asked {
            return Err(format!("head {head:?} instead of {asked:?}"));
        }
        let (opcode, immediate, body) = match &self.operation {
            Operation::Bind { .. } | Operation::LocalInv(_) => return self.compare_umr(wqe, qpn),
            Operation::Send(message) => (WqeOpcode::Send, 0, SendBody::Send { address: None, data: segments(message) }),
            Operation::SendWithImm(message, imm) => {
                (WqeOpcode::SendImm, u32::from_be_bytes(*imm), SendBody::Send { address: None, data: segments(message) })
            }
            Operation::SendWithInv(message, rkey) => {
                (WqeOpcode::SendInval, *rkey, SendBody::Send { address: None, data: segments(message) })
            }
            Operation::Write(message, far) => {
                (WqeOpcode::RdmaWrite, 0, SendBody::Write { remote: remote_address(*far), data: segments(message) })
            }
            Operation::WriteWithImm(message, far, imm) => {
                let body = SendBody::Write { remote: remote_address(*far), data: segments(message) };
                (WqeOpcode::RdmaWriteImm, u32::from_be_bytes(*imm), body)
            }
            Operation::Read(pieces, far) => {
                (WqeOpcode::RdmaRead, 0, SendBody::Read { remote: remote_address(*far), data: pointers(pieces) })
            }
            Operation::CompareSwap(near, far, compare, swap) => {
                let operation = AtomicOperation::CompareSwap { compare: *compare, swap: *swap };
                (WqeOpcode::AtomicCs, 0, atomic(*near, *far, operation))
            }
            Operation::FetchAdd(near, far, add) => {
                (WqeOpcode::AtomicFa, 0, atomic(*near, *far, AtomicOperation::FetchAdd { add: *add }))
            }
        };
        let got = (wqe.opcode, wqe.immediate, &wqe.body);
        if got == (opcode, immediate, &body) { Ok(()) } else { Err(format!("{got:?}")) }
    }

    fn compare_umr(&self, wqe: &SendWqe, qpn: u32) -> Result<(), String> {
        let SendBody::Umr(umr) = &wqe.body else { return Err(format!("no UMR: {:?}", wqe.body)) };
        let context = View::<Mkc>::new(&umr.context).ok_or("no key context")?;
        let (old, bound) = match self.operation {
            Operation::Bind { second, old, new, lkey, addr, length, access } if length != 0 => {
                let owner = if second { qpn } else { MKEY_ANY_QPN };
                let access = Access::from_bits_truncate(access);
                let rights = [Mkc::LW, Mkc::RR, Mkc::RW, Mkc::A].map(|right| context.is_set(right));
                let asked = [Access::LOCAL_WRITE, Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
                let start = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
                let mut entry = Vec::new();
                entry.extend((length as u32).to_be_bytes());
                entry.extend(lkey.to_be_bytes());
                entry.extend(addr.to_be_bytes());
                entry.resize(64, 0);
                let held = [
                    umr.octowords == 4,
                    umr.translations == UmrTranslations::Inline(entry),
                    rights == asked.map(|right| access.contains(right)),
                    !context.is_set(Mkc::FREE),
                    context.get64(Mkc::START_ADDR) == start,
                    context.get64(Mkc::LEN) == length,
                    context.get(Mkc::QPN) == owner,
                    context.get(Mkc::MKEY_7_0) == new & 0xff,
                    (umr.check_free, umr.check_qpn) == (second, false),
                ];
                (old, held.to_vec())
            }
            Operation::Bind { second, old, new, .. } => {
                (old, vec![unbinds(umr), context.get(Mkc::MKEY_7_0) == new & 0xff, umr.check_qpn == second])
            }
            Operation::LocalInv(rkey) => (rkey, vec![unbinds(umr), context.get(Mkc::MKEY_7_0) == 0, umr.check_qpn]),
            _ => return Err("no request for a key".to_owned()),
        };
        let always = mkey_mask::FREE | mkey_mask::KEY;
        let binds = mkey_mask::LEN | mkey_mask::START_ADDR | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW | mkey_mask::A;
        let owned = !matches!(self.operation, Operation::Bind { second: false, .. });
        let mask = always
            | if matches!(self.operation, Operation::Bind { length: 1.., .. }) { binds } else { 0 }
            | if owned { mkey_mask::QPN } else { 0 };
        let held = bound.iter().all(|held| *held);
        let head = wqe.opcode == WqeOpcode::Umr && wqe.immediate == old && umr.mask == mask;
        if head && held { Ok(()) } else { Err(format!("{bound:?}, mask {mask:#x}: {wqe:?}")) }
    }
}

fn unbinds(umr: &Umr) -> bool {
    let free = View::<Mkc>::new(&umr.context).is_some_and(|context| context.is_set(Mkc::FREE));
    free && umr.octowords == 0 && umr.translations == UmrTranslations::None && !umr.check_free
}

fn atomic(near: (u64, u32), far: Far, operation: AtomicOperation) -> SendBody {
    let data = vec![DataSegment::Pointer(DataPointer { len: 8, lkey: near.1, addr: near.0 })];
    SendBody::Atomic { remote: remote_address(far), operation, data }
}
