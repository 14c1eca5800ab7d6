//! Arbitrary requests, and what the device's decoder must read after a driver wrote them.

use std::fmt;

use arbitrary::Arbitrary;
use bareverbs::error::{BindType1Error, Errno, PostSendError};
use bareverbs::{
    Access, Binding, KeyTag, MwHandle, MwType, Payload, PdHandle, QpCap, Region, Remote, Rkey, SendBatch, SendFlags, SendOp,
    SendQueue, SendWr, Sge, Type1Bind,
};
use bareverbs_mlx5_spec::{MKEY_ANY_QPN, Mkc, View, WqeOpcode, mkey_mask};
use bareverbs_sim::in_process::SimBuffer;
use bareverbs_sim::wqe_decode::{AtomicOperation, DataPointer, DataSegment, RemoteAddress, SendBody, SendWqe, UmrTranslations};
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

    /// Checks the WQE that a driver wrote for it on queue pair `qpn` at block `at`; `fenced` if the request before it changed a key.
    ///
    /// # Errors
    /// Each field that differs, with what was read and what was asked for.
    pub fn compare(
        &self,
        wqe: &SendWqe,
        ground: &Ground,
        keys: &Keys,
        qpn: u32,
        at: u32,
        fenced: bool,
    ) -> Result<(), Differences> {
        let mut differences = Differences::default();
        let fence = if self.fence { 4 } else { u8::from(fenced) };
        differences.compare("opmod", &wqe.opmod, &0);
        differences.compare("wqe_idx", &wqe.index, &(at as u16));
        differences.compare("qpn", &wqe.qpn, &qpn);
        differences.compare("ds", &usize::from(wqe.ds), &self.units(ground));
        differences.compare("fm", &wqe.fence, &fence);
        differences.compare("se", &u8::from(wqe.solicited), &u8::from(self.solicited));
        differences.compare("signaled", &u8::from(wqe.is_signaled()), &u8::from(self.signaled));
        let (opcode, immediate) = self.head(keys);
        differences.compare("opcode", &wqe.opcode, &opcode);
        differences.compare("imm", &wqe.immediate, &immediate);
        match self.body(ground) {
            Some(asked) => differences.bodies(&wqe.body, &asked),
            None => self.compare_umr(wqe, ground, keys, qpn, &mut differences),
        }
        differences.end()
    }

    /// Returns opcode and immediate.
    fn head(&self, keys: &Keys) -> (WqeOpcode, u32) {
        match &self.operation {
            Operation::Bind { .. } | Operation::LocalInv => (WqeOpcode::Umr, keys.old),
            Operation::Send(_) => (WqeOpcode::Send, 0),
            Operation::SendWithImm(_, imm) => (WqeOpcode::SendImm, u32::from_be_bytes(*imm)),
            Operation::SendWithInv(_, rkey) => (WqeOpcode::SendInval, *rkey),
            Operation::Write(..) => (WqeOpcode::RdmaWrite, 0),
            Operation::WriteWithImm(_, _, imm) => (WqeOpcode::RdmaWriteImm, u32::from_be_bytes(*imm)),
            Operation::Read(..) => (WqeOpcode::RdmaRead, 0),
            Operation::CompareSwap(..) => (WqeOpcode::AtomicCs, 0),
            Operation::FetchAdd(..) => (WqeOpcode::AtomicFa, 0),
        }
    }

    /// Returns what follows the head, `None` if it changes a key.
    fn body(&self, ground: &Ground) -> Option<SendBody> {
        Some(match &self.operation {
            Operation::Bind { .. } | Operation::LocalInv => return None,
            Operation::Send(message) | Operation::SendWithImm(message, _) | Operation::SendWithInv(message, _) => {
                SendBody::Send { address: None, data: segments(ground, message) }
            }
            Operation::Write(message, far) | Operation::WriteWithImm(message, far, _) => {
                SendBody::Write { remote: remote_address(*far), data: segments(ground, message) }
            }
            Operation::Read(pieces, far) => SendBody::Read { remote: remote_address(*far), data: pointers(ground, pieces) },
            Operation::CompareSwap(near, far, compare, swap) => {
                atomic(ground, *near, *far, AtomicOperation::CompareSwap { compare: *compare, swap: *swap })
            }
            Operation::FetchAdd(near, far, add) => atomic(ground, *near, *far, AtomicOperation::FetchAdd { add: *add }),
        })
    }

    fn compare_umr(&self, wqe: &SendWqe, ground: &Ground, keys: &Keys, qpn: u32, differences: &mut Differences) {
        let SendBody::Umr(umr) = &wqe.body else {
            differences.differ("body", hex(&wqe.body), "a UMR".to_owned());
            return;
        };
        let Some(context) = View::<Mkc>::new(&umr.context) else {
            differences.differ("mkc", hex(&umr.context), "a key context".to_owned());
            return;
        };
        let second = matches!(self.operation, Operation::Bind { second: true, .. } | Operation::LocalInv);
        let mut mask = mkey_mask::FREE | mkey_mask::KEY;
        let key = if matches!(self.operation, Operation::LocalInv) { 0 } else { keys.new & 0xff };
        differences.compare("mkc.mkey_7_0", &context.get(Mkc::MKEY_7_0), &key);
        match self.operation {
            Operation::Bind { piece, .. } if self.bind_info(ground).length != 0 => {
                let Binding { addr, length, access, .. } = self.bind_info(ground);
                let owner = if second { qpn } else { MKEY_ANY_QPN };
                let mut entry = Vec::new();
                entry.extend((length as u32).to_be_bytes());
                entry.extend(ground.region(piece.0).lkey().get().to_be_bytes());
                entry.extend(addr.to_be_bytes());
                entry.resize(64, 0);
                mask |= mkey_mask::LEN | mkey_mask::START_ADDR | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW | mkey_mask::A;
                differences.compare("klm_octowords", &umr.octowords, &4);
                differences.compare("translations", &umr.translations, &UmrTranslations::Inline(entry));
                for (name, field, right) in [
                    ("mkc.lw", Mkc::LW, Access::LOCAL_WRITE),
                    ("mkc.rr", Mkc::RR, Access::REMOTE_READ),
                    ("mkc.rw", Mkc::RW, Access::REMOTE_WRITE),
                    ("mkc.a", Mkc::A, Access::REMOTE_ATOMIC),
                ] {
                    differences.compare(name, &context.get(field), &u32::from(access.contains(right)));
                }
                differences.compare("mkc.free", &context.get(Mkc::FREE), &0);
                differences.compare("mkc.start_addr", &context.get64(Mkc::START_ADDR), &addr);
                differences.compare("mkc.len", &context.get64(Mkc::LEN), &length);
                differences.compare("mkc.qpn", &context.get(Mkc::QPN), &owner);
                differences.compare("check_free", &umr.check_free, &second);
                differences.compare("check_qpn", &umr.check_qpn, &false);
            }
            _ => {
                differences.compare("mkc.free", &context.get(Mkc::FREE), &1);
                differences.compare("klm_octowords", &umr.octowords, &0);
                differences.compare("translations", &umr.translations, &UmrTranslations::None);
                differences.compare("check_free", &umr.check_free, &false);
                differences.compare("check_qpn", &umr.check_qpn, &second);
            }
        }
        if second {
            mask |= mkey_mask::QPN;
        }
        differences.compare("mkey_mask", &umr.mask, &mask);
    }
}

/// Fields of a WQE that are not what was asked for: name, what was read, what was asked for.
#[derive(Debug, Default)]
pub struct Differences(Vec<(String, String, String)>);

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, read, asked) in &self.0 {
            write!(f, "{separator}{name}: read {read}, asked for {asked}")?;
            separator = "; ";
        }
        Ok(())
    }
}

impl Differences {
    fn differ(&mut self, name: &str, read: String, asked: String) {
        self.0.push((name.to_owned(), read, asked));
    }

    fn compare<T: PartialEq + fmt::Debug>(&mut self, name: &str, read: &T, asked: &T) {
        if read != asked {
            self.differ(name, hex(read), hex(asked));
        }
    }

    fn remotes(&mut self, read: &RemoteAddress, asked: &RemoteAddress) {
        self.compare("raddr", &read.addr, &asked.addr);
        self.compare("rkey", &read.rkey, &asked.rkey);
    }

    fn data(&mut self, read: &[DataSegment], asked: &[DataSegment]) {
        self.compare("data segments", &read.len(), &asked.len());
        for (place, pair) in read.iter().zip(asked).enumerate() {
            match pair {
                (DataSegment::Pointer(read), DataSegment::Pointer(asked)) => {
                    self.compare(&format!("data {place} byte_count"), &read.len, &asked.len);
                    self.compare(&format!("data {place} lkey"), &read.lkey, &asked.lkey);
                    self.compare(&format!("data {place} addr"), &read.addr, &asked.addr);
                }
                (read, asked) => self.compare(&format!("data {place}"), read, asked),
            }
        }
    }

    fn bodies(&mut self, read: &SendBody, asked: &SendBody) {
        match (read, asked) {
            (SendBody::Write { remote, data }, SendBody::Write { remote: asked, data: asked_data })
            | (SendBody::Read { remote, data }, SendBody::Read { remote: asked, data: asked_data }) => {
                self.remotes(remote, asked);
                self.data(data, asked_data);
            }
            (SendBody::Send { address, data }, SendBody::Send { address: asked, data: asked_data }) => {
                self.compare("address", address, asked);
                self.data(data, asked_data);
            }
            (
                SendBody::Atomic { remote, operation, data },
                SendBody::Atomic { remote: asked, operation: asked_operation, data: asked_data },
            ) => {
                self.remotes(remote, asked);
                self.compare("atomic segment", operation, asked_operation);
                self.data(data, asked_data);
            }
            (read, asked) => self.compare("body", read, asked),
        }
    }

    fn end(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

/// Returns a value with its numbers in hexadecimal, in one line: `{:#x?}` has a line for each field.
fn hex(value: &impl fmt::Debug) -> String {
    let lines = format!("{value:#x?}");
    lines.split_whitespace().collect::<Vec<_>>().join(" ")
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
