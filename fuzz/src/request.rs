//! Arbitrary requests, and what the device's decoder must read after a driver wrote them.

use arbitrary::Arbitrary;
use bareverbs::{
    Access, BindType1Error, Binding, Errno, KeyTag, MwHandle, MwType, Payload, PdHandle, PostSendError, QpCap, Region, Remote,
    Rkey, SendBatch, SendFlags, SendOp, SendQueue, SendWr, Sge, Type1Bind,
};
use bareverbs_mlx5_spec::{MKEY_ANY_QPN, Mkc, View, WqeOpcode, mkey_mask};
use bareverbs_sim::in_process::SimBuffer;
use bareverbs_sim::wqe_decode::{
    AtomicOperation, DataPointer, DataSegment, RemoteAddress, SendBody, SendWqe, Umr, UmrTranslations,
};
use bareverbs_tests::{ALL_ACCESS, Driver, Node};

/// Where the regions begin for the application: the first address, one within a page, and the last that can be.
const BASES: [u64; 3] = [0, 0x7f12_3456_7890, u64::MAX - 2 * LEN + 1];
/// Bytes of a region.
const LEN: u64 = 1 << 16;
/// Rights that a window may give.
const WINDOW_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// What requests may name on this side.
pub struct Ground {
    regions: Vec<Region<'static, SimBuffer>>,
    windows: [(MwHandle, u32); 2],
}

impl Ground {
    /// Regions in a domain.
    pub fn new(node: &mut Node, pd: PdHandle) -> Self {
        let (each, page) = (2 * LEN as usize, 4096);
        let memory = node.host.memory(BASES.len() * each);
        let regions = BASES.iter().enumerate().map(|(index, base)| {
            // The device sees each address at the same place of its page.
            let at = index * each + (base % page) as usize;
            let buffer = memory.buffer(at, LEN as usize, *base).expect("inside the memory");
            node.verbs.reg_mr(pd, buffer, ALL_ACCESS).expect("reg_mr")
        });
        Self { regions: regions.collect(), windows: [(MwHandle::NONE, 0); 2] }
    }

    /// Makes a window of each type, of which nothing is known yet.
    pub fn make_windows(&mut self, node: &mut Node, pd: PdHandle) {
        self.windows = [MwType::Type1, MwType::Type2].map(|kind| {
            let window = node.verbs.alloc_mw(pd, kind).expect("alloc_mw");
            (window, node.verbs.mw_info(window).expect("it was just made").rkey.get())
        });
    }

    /// Destroys the windows.
    pub fn destroy_windows(&mut self, node: &mut Node) {
        for (window, _) in self.windows {
            node.verbs.dealloc_mw(window).expect("dealloc_mw");
        }
    }

    fn region(&self, which: u8) -> &Region<'static, SimBuffer> {
        &self.regions[usize::from(which) % self.regions.len()]
    }

    /// Returns a piece of a region.
    fn sge(&self, (which, at, length): Piece) -> Sge {
        let at = u64::from(at) % LEN;
        self.region(which).sge(at, (u64::from(length) % (LEN - at + 1)) as u32)
    }

    fn sges(&self, pieces: &[Piece]) -> Vec<Sge> {
        pieces.iter().map(|piece| self.sge(*piece)).collect()
    }

    /// Returns eight bytes of a region.
    fn eight(&self, (which, at): (u8, u32)) -> Sge {
        self.region(which).sge(u64::from(at) % (LEN - 7), 8)
    }
}

/// What a request that was posted does to a key: before and after.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keys {
    old: u32,
    new: u32,
}

/// A request, with flags.
#[derive(Arbitrary, Clone, Debug)]
pub struct Request {
    /// Operation.
    pub operation: Operation,
    fence: bool,
    solicited: bool,
    /// Whether a completion is requested.
    pub signaled: bool,
}

/// A piece of memory: region, first byte, length.
type Piece = (u8, u32, u32);
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
    CompareSwap((u8, u32), Far, u64, u64),
    /// Fetch-and-add; the local buffer has eight bytes.
    FetchAdd((u8, u32), Far, u64),
    /// A bind of a window of type 2, or of type 1.
    Bind {
        /// Whether it is of type 2.
        second: bool,
        /// Low byte of the new key, of type 2.
        key: u8,
        /// Region, first byte, length; 0 unbinds.
        piece: Piece,
        /// Rights.
        access: u32,
    },
    /// LOCAL_INV of the window of type 2.
    LocalInv,
}

fn remote(far: Far) -> Remote {
    Remote { addr: far.0, rkey: Rkey::new(far.1) }
}

fn remote_address(far: Far) -> RemoteAddress {
    RemoteAddress { addr: far.0, rkey: far.1 }
}

/// Aligns the address of an atomic to eight bytes.
fn aligned(far: Far) -> Far {
    (far.0 & !7, far.1)
}

/// Returns the data segments of pieces: empty ones are left out.
fn pointers(ground: &Ground, pieces: &[Piece]) -> Vec<DataSegment> {
    let used = ground.sges(pieces).into_iter().filter(|sge| sge.length != 0);
    used.map(|sge| DataSegment::Pointer(DataPointer { len: sge.length.into(), lkey: sge.lkey.get(), addr: sge.addr })).collect()
}

fn segments(ground: &Ground, message: &Message) -> Vec<DataSegment> {
    match message {
        Message::Pieces(pieces) => pointers(ground, pieces),
        Message::Inline(bytes) if bytes.is_empty() => Vec::new(),
        Message::Inline(bytes) => vec![DataSegment::Inline(bytes.clone())],
    }
}

/// Returns the 16-byte units of a message's segments.
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

    /// Returns whether it changes a key, so that the request after it must wait for it.
    pub fn changes_a_key(&self) -> bool {
        matches!(self.operation, Operation::Bind { .. } | Operation::LocalInv)
    }

    /// Posts it.
    ///
    /// # Errors
    /// As of the batch or queue.
    pub fn post(&self, to: &mut impl Post, ground: &mut Ground) -> Result<Keys, Errno> {
        let mut list = Vec::new();
        if let Some(pieces) = self.pieces() {
            list = ground.sges(pieces);
        }
        let payload = match self.inline() {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Sges(&list),
        };
        let op = match self.operation {
            Operation::Bind { .. } | Operation::LocalInv => return self.post_bind(to, ground),
            Operation::Send(_) => SendOp::Send { payload },
            Operation::SendWithImm(_, imm) => SendOp::SendWithImm { payload, imm },
            Operation::SendWithInv(_, rkey) => SendOp::SendWithInv { payload, rkey: Rkey::new(rkey) },
            Operation::Write(_, far) => SendOp::Write { payload, remote: remote(far) },
            Operation::WriteWithImm(_, far, imm) => SendOp::WriteWithImm { payload, remote: remote(far), imm },
            Operation::Read(_, far) => SendOp::Read { sges: &list, remote: remote(far) },
            Operation::CompareSwap(near, far, compare, swap) => {
                SendOp::CompareSwap { sge: ground.eight(near), remote: remote(aligned(far)), compare, swap }
            }
            Operation::FetchAdd(near, far, add) => {
                SendOp::FetchAdd { sge: ground.eight(near), remote: remote(aligned(far)), add }
            }
        };
        to.post(&self.request(op)).map(|()| Keys::default()).map_err(|error| error.errno())
    }

    fn request<'a>(&self, op: SendOp<'a>) -> SendWr<'a> {
        SendWr::new(op).id(7).with(self.flags())
    }

    fn post_bind(&self, to: &mut impl Post, ground: &mut Ground) -> Result<Keys, Errno> {
        let [(first, first_key), (second, second_key)] = ground.windows;
        let (which, old, new) = match self.operation {
            Operation::Bind { second: false, .. } => {
                let Binding { mr, addr, length, access } = self.bind_info(ground);
                let bind = Type1Bind { wr_id: 7, flags: self.flags(), mr, addr, length, access };
                (0, first_key, to.bind_type1(first, &bind).map_err(|error| error.errno())?.get())
            }
            Operation::Bind { key, .. } => {
                let (tag, info) = (KeyTag(key), self.bind_info(ground));
                let op = SendOp::BindMw { mw: second, tag, binding: info };
                to.post(&self.request(op)).map_err(|error| error.errno())?;
                (1, second_key, Rkey::new(second_key).with_tag(tag).get())
            }
            _ => {
                let op = SendOp::LocalInv { rkey: Rkey::new(second_key) };
                to.post(&self.request(op)).map_err(|error| error.errno())?;
                (1, second_key, second_key)
            }
        };
        ground.windows[which].1 = new;
        Ok(Keys { old, new })
    }

    /// Returns what a bind binds.
    fn bind_info(&self, ground: &Ground) -> Binding {
        let Operation::Bind { piece, access, .. } = self.operation else { panic!("no bind: {self:?}") };
        let (mr, sge) = (ground.region(piece.0).handle(), ground.sge(piece));
        Binding { mr, addr: sge.addr, length: sge.length.into(), access: Access::from_bits_truncate(access) & WINDOW_ACCESS }
    }

    /// Returns the pieces of a message that is not inline.
    fn pieces(&self) -> Option<&[Piece]> {
        match &self.operation {
            Operation::Send(Message::Pieces(pieces))
            | Operation::SendWithImm(Message::Pieces(pieces), _)
            | Operation::SendWithInv(Message::Pieces(pieces), _)
            | Operation::Write(Message::Pieces(pieces), _)
            | Operation::WriteWithImm(Message::Pieces(pieces), _, _)
            | Operation::Read(pieces, _) => Some(pieces),
            _ => None,
        }
    }

    /// Returns the bytes of a message that is inline.
    fn inline(&self) -> Option<&[u8]> {
        match &self.operation {
            Operation::Send(Message::Inline(bytes))
            | Operation::SendWithImm(Message::Inline(bytes), _)
            | Operation::SendWithInv(Message::Inline(bytes), _)
            | Operation::Write(Message::Inline(bytes), _)
            | Operation::WriteWithImm(Message::Inline(bytes), _, _) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the 16-byte units of the request.
    fn units(&self, ground: &Ground) -> usize {
        match &self.operation {
            Operation::Send(message) | Operation::SendWithImm(message, _) | Operation::SendWithInv(message, _) => {
                1 + units(&segments(ground, message))
            }
            Operation::Write(message, _) | Operation::WriteWithImm(message, _, _) => 2 + units(&segments(ground, message)),
            Operation::Read(pieces, _) => 2 + units(&pointers(ground, pieces)),
            Operation::CompareSwap(..) | Operation::FetchAdd(..) => 4,
            Operation::Bind { .. } if self.bind_info(ground).length != 0 => 12,
            Operation::Bind { .. } | Operation::LocalInv => 8,
        }
    }

    /// Returns whether a queue pair of these capacities takes it.
    pub fn is_legal(&self, cap: &QpCap) -> bool {
        let solicitable = matches!(
            self.operation,
            Operation::Send(_) | Operation::SendWithImm(..) | Operation::SendWithInv(..) | Operation::WriteWithImm(..)
        );
        let sges = self.pieces().is_none_or(|pieces| pieces.len() <= cap.max_send_sge as usize);
        let inline = self.inline().is_none_or(|bytes| bytes.len() <= cap.max_inline_data as usize);
        (solicitable || !self.solicited) && sges && inline
    }

    /// Returns what is wrong with the WQE that a driver wrote for it on queue pair `qpn` at block `at`; `fenced` if the request
    /// before it changed a key.
    pub fn compare(&self, wqe: &SendWqe, ground: &Ground, keys: &Keys, qpn: u32, at: u32, fenced: bool) -> Result<(), String> {
        let fence = if self.fence { 4 } else { u8::from(fenced) };
        let head = (wqe.opmod, wqe.index, wqe.qpn, usize::from(wqe.ds), wqe.fence, wqe.solicited, wqe.is_signaled());
        let asked = (0, at as u16, qpn, self.units(ground), fence, self.solicited, self.signaled);
        if head != asked {
            return Err(format!("head {head:?} instead of {asked:?}"));
        }
        let (opcode, immediate, body) = match &self.operation {
            Operation::Bind { .. } | Operation::LocalInv => return self.compare_umr(wqe, ground, keys, qpn),
            Operation::Send(message) => (WqeOpcode::Send, 0, SendBody::Send { address: None, data: segments(ground, message) }),
            Operation::SendWithImm(message, imm) => (
                WqeOpcode::SendImm,
                u32::from_be_bytes(*imm),
                SendBody::Send { address: None, data: segments(ground, message) },
            ),
            Operation::SendWithInv(message, rkey) => {
                (WqeOpcode::SendInval, *rkey, SendBody::Send { address: None, data: segments(ground, message) })
            }
            Operation::Write(message, far) => {
                (WqeOpcode::RdmaWrite, 0, SendBody::Write { remote: remote_address(*far), data: segments(ground, message) })
            }
            Operation::WriteWithImm(message, far, imm) => {
                let body = SendBody::Write { remote: remote_address(*far), data: segments(ground, message) };
                (WqeOpcode::RdmaWriteImm, u32::from_be_bytes(*imm), body)
            }
            Operation::Read(pieces, far) => {
                (WqeOpcode::RdmaRead, 0, SendBody::Read { remote: remote_address(*far), data: pointers(ground, pieces) })
            }
            Operation::CompareSwap(near, far, compare, swap) => {
                let operation = AtomicOperation::CompareSwap { compare: *compare, swap: *swap };
                (WqeOpcode::AtomicCs, 0, atomic(ground, *near, *far, operation))
            }
            Operation::FetchAdd(near, far, add) => {
                (WqeOpcode::AtomicFa, 0, atomic(ground, *near, *far, AtomicOperation::FetchAdd { add: *add }))
            }
        };
        let got = (wqe.opcode, wqe.immediate, &wqe.body);
        if got == (opcode, immediate, &body) { Ok(()) } else { Err(format!("{got:?}")) }
    }

    fn compare_umr(&self, wqe: &SendWqe, ground: &Ground, keys: &Keys, qpn: u32) -> Result<(), String> {
        let SendBody::Umr(umr) = &wqe.body else { return Err(format!("no UMR: {:?}", wqe.body)) };
        let context = View::<Mkc>::new(&umr.context).ok_or("no key context")?;
        let Keys { old, new } = *keys;
        let same_key = context.get(Mkc::MKEY_7_0) == new & 0xff;
        let second = matches!(self.operation, Operation::Bind { second: true, .. } | Operation::LocalInv);
        let mut mask = mkey_mask::FREE | mkey_mask::KEY;
        let bound = match self.operation {
            Operation::Bind { piece, .. } if self.bind_info(ground).length != 0 => {
                let Binding { addr, length, access, .. } = self.bind_info(ground);
                let owner = if second { qpn } else { MKEY_ANY_QPN };
                let rights = [Mkc::LW, Mkc::RR, Mkc::RW, Mkc::A].map(|right| context.is_set(right));
                let asked = [Access::LOCAL_WRITE, Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
                let mut entry = Vec::new();
                entry.extend((length as u32).to_be_bytes());
                entry.extend(ground.region(piece.0).lkey().get().to_be_bytes());
                entry.extend(addr.to_be_bytes());
                entry.resize(64, 0);
                mask |= mkey_mask::LEN | mkey_mask::START_ADDR | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW | mkey_mask::A;
                vec![
                    umr.octowords == 4,
                    umr.translations == UmrTranslations::Inline(entry),
                    rights == asked.map(|right| access.contains(right)),
                    !context.is_set(Mkc::FREE),
                    context.get64(Mkc::START_ADDR) == addr,
                    context.get64(Mkc::LEN) == length,
                    context.get(Mkc::QPN) == owner,
                    same_key,
                    (umr.check_free, umr.check_qpn) == (second, false),
                ]
            }
            Operation::Bind { .. } => vec![unbinds(umr), same_key, umr.check_qpn == second],
            _ => vec![unbinds(umr), context.get(Mkc::MKEY_7_0) == 0, umr.check_qpn],
        };
        if second {
            mask |= mkey_mask::QPN;
        }
        let held = bound.iter().all(|held| *held);
        let head = wqe.opcode == WqeOpcode::Umr && wqe.immediate == old && umr.mask == mask;
        if head && held { Ok(()) } else { Err(format!("{bound:?}, mask {mask:#x}: {wqe:?}")) }
    }
}

fn unbinds(umr: &Umr) -> bool {
    let free = View::<Mkc>::new(&umr.context).is_some_and(|context| context.is_set(Mkc::FREE));
    free && umr.octowords == 0 && umr.translations == UmrTranslations::None && !umr.check_free
}

fn atomic(ground: &Ground, near: (u8, u32), far: Far, operation: AtomicOperation) -> SendBody {
    let near = ground.eight(near);
    let data = vec![DataSegment::Pointer(DataPointer { len: 8, lkey: near.lkey.get(), addr: near.addr })];
    SendBody::Atomic { remote: remote_address(aligned(far)), operation, data }
}

/// Where requests are posted.
pub trait Post {
    /// Posts a request.
    ///
    /// # Errors
    /// It is refused.
    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError>;

    /// Posts a bind of a type 1 window.
    ///
    /// # Errors
    /// It is refused.
    fn bind_type1(&mut self, mw: MwHandle, bind: &Type1Bind) -> Result<Rkey, BindType1Error>;
}

impl Post for SendBatch<'_, Driver> {
    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        Self::post(self, wr)
    }

    fn bind_type1(&mut self, mw: MwHandle, bind: &Type1Bind) -> Result<Rkey, BindType1Error> {
        Self::bind_type1(self, mw, bind)
    }
}

impl Post for SendQueue<'_, Driver> {
    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        Self::post(self, wr)
    }

    fn bind_type1(&mut self, mw: MwHandle, bind: &Type1Bind) -> Result<Rkey, BindType1Error> {
        Self::bind_type1(self, mw, bind)
    }
}
