//! Decodes work queue WQEs (WQEs) from bytes, independent of any encoder: for the device, for tools and for fuzzing.
//!
//! Total: any bytes give either a [`SendWqe`] or a [`WqeError`] that says what is wrong and where.

mod fields;

use std::fmt;

use bareverbs_mlx5_spec::{
    CqeSyndrome, DS_UNIT, INVALID_LKEY, Layout, Mkc, View, WQEBB, WqeAtomicSeg, WqeCtrlSeg, WqeDataSeg, WqeDatagramSeg,
    WqeEthSeg, WqeInlineSeg, WqeMaskedAdd32Seg, WqeMaskedAdd64Seg, WqeMaskedSwap32Seg, WqeMaskedSwap64Seg, WqeOpcode,
    WqeRaddrSeg, WqeUmrCtrlSeg, WqeXrcSeg, ce, eth_checksum, extended_atomic,
};

/// Which segments stand between control segment and operation: the queue's service decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqeService {
    /// RC and UC: none.
    Connected,
    /// UD and management queue pairs: an address vector.
    Datagram,
    /// XRC: an XRC segment.
    Xrc,
}

/// Why bytes are no WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqeError {
    /// Fewer bytes than a control segment has.
    Short {
        /// Bytes there are.
        have: usize,
    },
    /// The size field says less than one control segment.
    Empty,
    /// The size field says more than there are bytes.
    Truncated {
        /// Bytes that it says.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// No such opcode.
    Opcode {
        /// Its number.
        opcode: u8,
    },
    /// The opcode exists and this decoder does not know its segments.
    Unsupported {
        /// Opcode.
        opcode: WqeOpcode,
    },
    /// The service has no such operation.
    NotForService {
        /// Opcode.
        opcode: WqeOpcode,
        /// Service of the queue.
        service: WqeService,
    },
    /// A segment that the operation needs is missing.
    Missing {
        /// Published name of the segment.
        segment: &'static str,
        /// Byte where it should start.
        at: usize,
    },
    /// Inline data runs past the end.
    InlineLength {
        /// Byte where the segment starts.
        at: usize,
        /// Length that it says.
        len: usize,
    },
    /// Inline data where the operation takes pointers only (read, atomic, receive).
    InlineForbidden {
        /// Byte where the segment starts.
        at: usize,
    },
    /// More translations announced than the WQE carries.
    Translations {
        /// Octowords announced.
        octowords: u16,
        /// Bytes there are.
        have: usize,
    },
}

impl fmt::Display for WqeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { have } => write!(f, "{have} bytes, a control segment has 16"),
            Self::Empty => write!(f, "ds is 0"),
            Self::Truncated { need, have } => write!(f, "ds says {need} bytes, there are {have}"),
            Self::Opcode { opcode } => write!(f, "no opcode {opcode:#04x}"),
            Self::Unsupported { opcode } => write!(f, "opcode {} is not supported", opcode.name()),
            Self::NotForService { opcode, service } => write!(f, "opcode {} on a {service:?} queue", opcode.name()),
            Self::Missing { segment, at } => write!(f, "{segment} missing at byte {at}"),
            Self::InlineLength { at, len } => write!(f, "inline segment at byte {at} says {len} bytes, more than there are"),
            Self::InlineForbidden { at } => write!(f, "inline segment at byte {at} where only pointers may stand"),
            Self::Translations { octowords, have } => write!(f, "{octowords} octowords announced, {have} bytes there"),
        }
    }
}

impl std::error::Error for WqeError {}

impl WqeError {
    /// Returns what the device reports for it.
    pub fn syndrome(self) -> CqeSyndrome {
        CqeSyndrome::LocalQpOp
    }
}

/// Memory that a data segment points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPointer {
    /// Length in bytes, 1 to 2^31 (a byte count of 0 means the latter).
    pub len: u64,
    /// Key.
    pub lkey: u32,
    /// Address in the key's address space.
    pub addr: u64,
}

/// One segment of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSegment {
    /// Memory.
    Pointer(DataPointer),
    /// Bytes in the WQE itself.
    Inline(Vec<u8>),
}

impl DataSegment {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Pointer(pointer) => pointer.len,
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where the peer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Address in the key's address space.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}

/// What an atomic operation does to its bytes: eight, if it has no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Stores `swap` if the value is `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds, wrapping.
    FetchAdd {
        /// Addend.
        add: u64,
    },
    /// Stores those bits of `swap` that its mask has, if the value is `compare` in those bits that the other mask has.
    MaskedCompareSwap {
        /// Bytes: 4 or 8.
        size: u8,
        /// Expected value.
        compare: u64,
        /// Which bits of it count.
        compare_mask: u64,
        /// New value.
        swap: u64,
        /// Which bits of it are stored.
        swap_mask: u64,
    },
    /// Adds field by field.
    MaskedFetchAdd {
        /// Bytes: 4 or 8.
        size: u8,
        /// Addends.
        add: u64,
        /// The highest bit of each field: nothing is carried out of it.
        boundary: u64,
    },
}

impl AtomicOperation {
    /// Returns the bytes that it works on.
    pub const fn size(&self) -> u8 {
        match *self {
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => 8,
            Self::MaskedCompareSwap { size, .. } | Self::MaskedFetchAdd { size, .. } => size,
        }
    }

    /// Returns whether only devices with extended atomics do it.
    pub const fn is_masked(&self) -> bool {
        matches!(self, Self::MaskedCompareSwap { .. } | Self::MaskedFetchAdd { .. })
    }

    /// Returns the value after it, of one that was `value`.
    pub const fn apply(&self, value: u64) -> u64 {
        match *self {
            Self::CompareSwap { compare, swap } => {
                if value == compare {
                    swap
                } else {
                    value
                }
            }
            Self::FetchAdd { add } => value.wrapping_add(add),
            Self::MaskedCompareSwap { compare, compare_mask, swap, swap_mask, .. } => {
                if (value ^ compare) & compare_mask == 0 {
                    value & !swap_mask | swap & swap_mask
                } else {
                    value
                }
            }
            Self::MaskedFetchAdd { size, add, boundary } => {
                let (mut sum, mut carry, mut bit) = (0, 0, 0);
                while bit < 8 * size as u32 {
                    let column = (value >> bit & 1) + (add >> bit & 1) + carry;
                    sum |= (column & 1) << bit;
                    carry = if boundary >> bit & 1 == 0 { column >> 1 } else { 0 };
                    bit += 1;
                }
                sum
            }
        }
    }
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// Q_Key.
    pub qkey: u32,
    /// Queue pair.
    pub dqpn: u32,
    /// Local identifier. On Ethernet the UDP source port, 0 for any.
    pub rlid: u16,
    /// Service level. On Ethernet the priority, in the upper three bits of the four.
    pub sl: u8,
    /// MAC address, on Ethernet.
    pub rmac: [u8; 6],
    /// Whether it says that it has a global route.
    pub is_global: bool,
    /// The global route, whether it says so or not.
    pub route: GlobalRoute,
}

/// Global route of an address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Destination GID in wire order.
    pub dgid: [u8; 16],
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

/// Translations that a UMR carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UmrTranslations {
    /// None: the list stays as it is.
    None,
    /// Raw entries in the WQE.
    Inline(Vec<u8>),
    /// Raw entries in memory.
    Memory(DataPointer),
}

/// A change to a memory key from the send queue: bind, invalidate, fast registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Umr {
    /// Refuse unless the key is free.
    pub check_free: bool,
    /// Refuse if the key is free.
    pub check_in_use: bool,
    /// Refuse unless the key belongs to this queue pair.
    pub check_qpn: bool,
    /// First octoword of the list to change; `None` replaces the list from its start.
    pub offset: Option<u64>,
    /// Octowords (16 bytes) that change.
    pub octowords: u16,
    /// Fields of the context that change (`mkey_mask`).
    pub mask: u64,
    /// New context; only what `mask` names has meaning.
    pub context: [u8; 64],
    /// New translations.
    pub translations: UmrTranslations,
}

/// What a WQE requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendBody {
    /// Nothing.
    Nop,
    /// SEND, SEND_IMM, SEND_INVAL.
    Send {
        /// Destination, on datagram queues.
        address: Option<AddressVector>,
        /// Message.
        data: Vec<DataSegment>,
    },
    /// RDMA_WRITE, RDMA_WRITE_IMM.
    Write {
        /// Destination.
        remote: RemoteAddress,
        /// Message.
        data: Vec<DataSegment>,
    },
    /// RDMA_READ.
    Read {
        /// Source.
        remote: RemoteAddress,
        /// Where the bytes go.
        data: Vec<DataSegment>,
    },
    /// ATOMIC_CS, ATOMIC_FA, and the masked ones.
    Atomic {
        /// The bytes.
        remote: RemoteAddress,
        /// What is done to them.
        operation: AtomicOperation,
        /// Where the value before goes.
        data: Vec<DataSegment>,
    },
    /// UMR.
    Umr(Box<Umr>),
}

/// A send WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWqe {
    /// Opcode.
    pub opcode: WqeOpcode,
    /// Modifier of the opcode.
    pub opmod: u8,
    /// Index of its first 64-byte block, as it says itself.
    pub index: u16,
    /// Queue pair, as it says itself.
    pub qpn: u32,
    /// Size in 16-byte units.
    pub ds: u8,
    /// Fence mode.
    pub fence: u8,
    /// When to write a completion.
    pub completion: u8,
    /// Ask the peer for a solicited event.
    pub solicited: bool,
    /// Immediate data, key to invalidate or key to change, by opcode.
    pub immediate: u32,
    /// XRC shared receive queue, on XRC queues.
    pub xrc_srqn: Option<u32>,
    /// What it asks for.
    pub body: SendBody,
}

/// Returns the blocks of 64 bytes of a WQE of `ds` units, at least one.
pub fn blocks(ds: u8) -> u16 {
    u16::from(ds).div_ceil((WQEBB / DS_UNIT) as u16).max(1)
}

/// Returns the length in bytes that a control segment gives its WQE; `None` if `bytes` contains no control segment.
pub fn announced_len(bytes: &[u8]) -> Option<usize> {
    View::<WqeCtrlSeg>::new(bytes).map(|ctrl| ctrl.get(WqeCtrlSeg::DS) as usize * DS_UNIT)
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn segment<L: Layout>(&mut self) -> Result<View<'a, L>, WqeError> {
        let view = View::new(self.left()).ok_or(WqeError::Missing { segment: L::INFO.name, at: self.at })?;
        self.at += L::SIZE;
        Ok(view)
    }

    fn pointer(&mut self) -> Result<DataPointer, WqeError> {
        let segment = self.segment::<WqeDataSeg>()?;
        let len = match u64::from(segment.get(WqeDataSeg::BYTE_COUNT)) {
            0 => 1 << 31,
            count => count,
        };
        Ok(DataPointer { len, lkey: segment.get(WqeDataSeg::LKEY), addr: segment.get64(WqeDataSeg::ADDR) })
    }

    fn data(&mut self, inline_allowed: bool) -> Result<Vec<DataSegment>, WqeError> {
        let mut list = Vec::new();
        while let Some(head) = View::<WqeInlineSeg>::new(self.left()) {
            if !head.is_set(WqeInlineSeg::INLINE) {
                list.push(DataSegment::Pointer(self.pointer()?));
                continue;
            }
            if !inline_allowed {
                return Err(WqeError::InlineForbidden { at: self.at });
            }
            let len = head.get(WqeInlineSeg::BYTE_COUNT) as usize;
            let start = self.at + WqeInlineSeg::SIZE;
            let bytes = self.bytes.get(start..).and_then(|rest| rest.get(..len));
            let bytes = bytes.ok_or(WqeError::InlineLength { at: self.at, len })?;
            list.push(DataSegment::Inline(bytes.to_vec()));
            self.at = (start + len).next_multiple_of(DS_UNIT);
        }
        Ok(list)
    }

    fn remote(&mut self) -> Result<RemoteAddress, WqeError> {
        let segment = self.segment::<WqeRaddrSeg>()?;
        Ok(RemoteAddress { addr: segment.get64(WqeRaddrSeg::RADDR), rkey: segment.get(WqeRaddrSeg::RKEY) })
    }

    fn address(&mut self) -> Result<AddressVector, WqeError> {
        let segment = self.segment::<WqeDatagramSeg>()?;
        let route = GlobalRoute {
            dgid: segment.bytes(WqeDatagramSeg::RGID).try_into().unwrap_or_default(),
            sgid_index: segment.get(WqeDatagramSeg::SGID_INDEX) as u8,
            flow_label: segment.get(WqeDatagramSeg::FLOW_LABEL),
            tclass: segment.get(WqeDatagramSeg::TCLASS) as u8,
            hop_limit: segment.get(WqeDatagramSeg::HOP_LIMIT) as u8,
        };
        Ok(AddressVector {
            qkey: segment.get(WqeDatagramSeg::QKEY),
            dqpn: segment.get(WqeDatagramSeg::DQPN),
            rlid: segment.get(WqeDatagramSeg::RLID) as u16,
            sl: segment.get(WqeDatagramSeg::SL) as u8,
            rmac: segment.bytes(WqeDatagramSeg::RMAC).try_into().unwrap_or_default(),
            is_global: segment.is_set(WqeDatagramSeg::GRH),
            route,
        })
    }

    /// Takes the operands of an extended atomic, of the size that the modifier says.
    fn masked(&mut self, opcode: WqeOpcode, opmod: u32) -> Result<AtomicOperation, WqeError> {
        let swaps = opcode == WqeOpcode::AtomicMaskedCs;
        let size = 1u8 << extended_atomic::LOG_SMALLEST << (opmod & 7).min(5);
        Ok(match (opmod & !7 == extended_atomic::EXTENDED, size, swaps) {
            (true, 4, true) => {
                type Seg = WqeMaskedSwap32Seg;
                let segment = self.segment::<Seg>()?;
                let [swap, compare] = [Seg::SWAP, Seg::COMPARE].map(|field| segment.get(field).into());
                let [swap_mask, compare_mask] = [Seg::SWAP_MASK, Seg::COMPARE_MASK].map(|field| segment.get(field).into());
                AtomicOperation::MaskedCompareSwap { size, compare, compare_mask, swap, swap_mask }
            }
            (true, 8, true) => {
                type Seg = WqeMaskedSwap64Seg;
                let segment = self.segment::<Seg>()?;
                let (swap, compare) = (segment.get64(Seg::SWAP), segment.get64(Seg::COMPARE));
                let (swap_mask, compare_mask) = (segment.get64(Seg::SWAP_MASK), segment.get64(Seg::COMPARE_MASK));
                AtomicOperation::MaskedCompareSwap { size, compare, compare_mask, swap, swap_mask }
            }
            (true, 4, false) => {
                type Seg = WqeMaskedAdd32Seg;
                let segment = self.segment::<Seg>()?;
                let (add, boundary) = (segment.get(Seg::ADD).into(), segment.get(Seg::FIELD_BOUNDARY).into());
                AtomicOperation::MaskedFetchAdd { size, add, boundary }
            }
            (true, 8, false) => {
                type Seg = WqeMaskedAdd64Seg;
                let segment = self.segment::<Seg>()?;
                let (add, boundary) = (segment.get64(Seg::ADD), segment.get64(Seg::FIELD_BOUNDARY));
                AtomicOperation::MaskedFetchAdd { size, add, boundary }
            }
            _ => return Err(WqeError::Unsupported { opcode }),
        })
    }

    fn umr(&mut self) -> Result<Umr, WqeError> {
        let head = self.segment::<WqeUmrCtrlSeg>()?;
        let context = self.segment::<Mkc>()?;
        let octowords = head.get(WqeUmrCtrlSeg::KLM_OCTOWORDS) as u16;
        let wanted = usize::from(octowords) * DS_UNIT;
        let translations = if octowords == 0 {
            UmrTranslations::None
        } else if head.is_set(WqeUmrCtrlSeg::INLINE) {
            let bytes = self.left().get(..wanted);
            UmrTranslations::Inline(bytes.ok_or(WqeError::Translations { octowords, have: self.left().len() })?.to_vec())
        } else {
            UmrTranslations::Memory(self.pointer()?)
        };
        let low = u64::from(head.get(WqeUmrCtrlSeg::TRANSLATION_OFFSET));
        let high = u64::from(head.get(WqeUmrCtrlSeg::TRANSLATION_OFFSET_47_16));
        Ok(Umr {
            check_in_use: head.is_set(WqeUmrCtrlSeg::CHECK_IN_USE),
            check_free: head.is_set(WqeUmrCtrlSeg::CHECK_FREE),
            check_qpn: head.is_set(WqeUmrCtrlSeg::CHECK_QPN),
            offset: head.is_set(WqeUmrCtrlSeg::TRANSLATION_OFFSET_EN).then_some(high << 16 | low),
            octowords,
            mask: head.get64(WqeUmrCtrlSeg::MKEY_MASK),
            context: context.as_bytes().first_chunk().copied().unwrap_or([0; 64]),
            translations,
        })
    }
}

impl SendWqe {
    /// Decodes a WQE of a queue of `service`. Bytes beyond what its size field says are ignored.
    ///
    /// # Errors
    /// The bytes are no WQE of that service.
    pub fn decode(bytes: &[u8], service: WqeService) -> Result<Self, WqeError> {
        let ctrl = View::<WqeCtrlSeg>::new(bytes).ok_or(WqeError::Short { have: bytes.len() })?;
        let ds = ctrl.get(WqeCtrlSeg::DS) as u8;
        if ds == 0 {
            return Err(WqeError::Empty);
        }
        let need = usize::from(ds) * DS_UNIT;
        let bytes = bytes.get(..need).ok_or(WqeError::Truncated { need, have: bytes.len() })?;
        let code = ctrl.get(WqeCtrlSeg::OPCODE);
        let opcode = WqeOpcode::from_code(code).ok_or(WqeError::Opcode { opcode: code as u8 })?;
        let mut cursor = Cursor { bytes, at: WqeCtrlSeg::SIZE };
        let local = matches!(opcode, WqeOpcode::Nop | WqeOpcode::Umr);
        let mut xrc_srqn = None;
        if service == WqeService::Xrc && !local {
            xrc_srqn = Some(cursor.segment::<WqeXrcSeg>()?.get(WqeXrcSeg::XRC_SRQN));
        }
        let body = Self::body(opcode, ctrl.get(WqeCtrlSeg::OPMOD), service, &mut cursor)?;
        Ok(Self {
            opcode,
            opmod: ctrl.get(WqeCtrlSeg::OPMOD) as u8,
            index: ctrl.get(WqeCtrlSeg::WQE_INDEX) as u16,
            qpn: ctrl.get(WqeCtrlSeg::QPN),
            ds,
            fence: ctrl.get(WqeCtrlSeg::FM) as u8,
            completion: ctrl.get(WqeCtrlSeg::CE) as u8,
            solicited: ctrl.is_set(WqeCtrlSeg::SE),
            immediate: ctrl.get(WqeCtrlSeg::IMM),
            xrc_srqn,
            body,
        })
    }

    fn body(opcode: WqeOpcode, opmod: u32, service: WqeService, cursor: &mut Cursor<'_>) -> Result<SendBody, WqeError> {
        let connected_only = match opcode {
            WqeOpcode::Nop | WqeOpcode::Send | WqeOpcode::SendImm => false,
            WqeOpcode::SendInval
            | WqeOpcode::RdmaWrite
            | WqeOpcode::RdmaWriteImm
            | WqeOpcode::RdmaRead
            | WqeOpcode::AtomicCs
            | WqeOpcode::AtomicFa
            | WqeOpcode::AtomicMaskedCs
            | WqeOpcode::AtomicMaskedFa => true,
            // The queue that changes keys for the kernel is neither; its service passes as connected.
            WqeOpcode::Umr => true,
            _ => return Err(WqeError::Unsupported { opcode }),
        };
        if connected_only && service == WqeService::Datagram {
            return Err(WqeError::NotForService { opcode, service });
        }
        Ok(match opcode {
            WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInval => {
                let address = (service == WqeService::Datagram).then(|| cursor.address()).transpose()?;
                SendBody::Send { address, data: cursor.data(true)? }
            }
            WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => {
                SendBody::Write { remote: cursor.remote()?, data: cursor.data(true)? }
            }
            WqeOpcode::RdmaRead => SendBody::Read { remote: cursor.remote()?, data: cursor.data(false)? },
            WqeOpcode::AtomicCs | WqeOpcode::AtomicFa => {
                let remote = cursor.remote()?;
                let segment = cursor.segment::<WqeAtomicSeg>()?;
                let operand = segment.get64(WqeAtomicSeg::SWAP_ADD);
                let operation = if opcode == WqeOpcode::AtomicCs {
                    AtomicOperation::CompareSwap { compare: segment.get64(WqeAtomicSeg::COMPARE), swap: operand }
                } else {
                    AtomicOperation::FetchAdd { add: operand }
                };
                SendBody::Atomic { remote, operation, data: cursor.data(false)? }
            }
            WqeOpcode::AtomicMaskedCs | WqeOpcode::AtomicMaskedFa => {
                let remote = cursor.remote()?;
                SendBody::Atomic { remote, operation: cursor.masked(opcode, opmod)?, data: cursor.data(false)? }
            }
            WqeOpcode::Umr => SendBody::Umr(Box::new(cursor.umr()?)),
            _ => SendBody::Nop,
        })
    }

    /// Blocks (64 bytes) that it takes in the ring.
    pub fn blocks(&self) -> u16 {
        blocks(self.ds)
    }

    /// Returns whether it completes also when it succeeds.
    pub fn is_signaled(&self) -> bool {
        u32::from(self.completion) >= ce::ALWAYS
    }

    /// Returns the length of the message in bytes, 0 for a local operation.
    pub fn message_len(&self) -> u64 {
        match &self.body {
            SendBody::Send { data, .. } | SendBody::Write { data, .. } | SendBody::Read { data, .. } => {
                data.iter().map(DataSegment::len).sum()
            }
            SendBody::Atomic { operation, .. } => operation.size().into(),
            SendBody::Nop | SendBody::Umr(_) => 0,
        }
    }
}

/// A request to send frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameWqe {
    /// Computes the checksum of the IPv4 header.
    pub header_checksum: bool,
    /// Computes the checksum of TCP or UDP.
    pub transport_checksum: bool,
    /// Bytes of payload of each frame that a message is cut into, if it is.
    pub segment_size: u16,
    /// Bytes that lie in the WQE: headers, or none.
    pub headers: Vec<u8>,
    /// What follows them.
    pub data: Vec<DataSegment>,
}

impl FrameWqe {
    /// Decodes a WQE of a send queue for frames, SEND or TSO.
    ///
    /// # Errors
    /// The bytes are no such WQE.
    pub fn decode(bytes: &[u8]) -> Result<Self, WqeError> {
        /// Bytes of the headers that lie in the segment itself, at its end.
        const IN_SEGMENT: usize = 2;
        let mut cursor = Cursor { bytes, at: WqeCtrlSeg::SIZE };
        let segment = cursor.segment::<WqeEthSeg>()?;
        let len = segment.get(WqeEthSeg::INLINE_HDR_SZ) as usize;
        let start = cursor.at - IN_SEGMENT;
        let headers = bytes.get(start..).and_then(|rest| rest.get(..len));
        let headers = headers.ok_or(WqeError::InlineLength { at: start, len })?.to_vec();
        cursor.at += len.saturating_sub(IN_SEGMENT).next_multiple_of(DS_UNIT);
        let flags = segment.get(WqeEthSeg::CS_FLAGS);
        Ok(Self {
            header_checksum: flags & eth_checksum::HEADER != 0,
            transport_checksum: flags & eth_checksum::TRANSPORT != 0,
            segment_size: segment.get(WqeEthSeg::MSS) as u16,
            headers,
            data: cursor.data(true)?,
        })
    }
}

/// Decodes a WQE of a receive queue for frames: its pointers, up to the one that ends a short list. Unlike elsewhere, the
/// highest bit of a length means nothing (Linux `MLX5_HW_START_PADDING`).
pub fn decode_frame_receive(bytes: &[u8]) -> Vec<DataPointer> {
    let segments = bytes.chunks_exact(WqeDataSeg::SIZE).filter_map(View::<WqeDataSeg>::new);
    let pointers = segments.map(|segment| DataPointer {
        len: u64::from(segment.get(WqeDataSeg::BYTE_COUNT) & 0x7fff_ffff),
        lkey: segment.get(WqeDataSeg::LKEY),
        addr: segment.get64(WqeDataSeg::ADDR),
    });
    pointers.take_while(|pointer| pointer.len != 0 || pointer.lkey != INVALID_LKEY).collect()
}

/// Decodes a receive WQE: its pointers up to the end of the bytes, or up to the one that ends a short list.
///
/// # Errors
/// The bytes are no whole data segments.
pub fn decode_receive(bytes: &[u8]) -> Result<Vec<DataPointer>, WqeError> {
    let mut cursor = Cursor { bytes, at: 0 };
    let mut list = Vec::new();
    while let Some(segment) = View::<WqeDataSeg>::new(cursor.left()) {
        let count = segment.get(WqeDataSeg::BYTE_COUNT);
        if count == 0 && segment.get(WqeDataSeg::LKEY) == INVALID_LKEY {
            break;
        }
        if count >> 31 != 0 {
            return Err(WqeError::InlineForbidden { at: cursor.at });
        }
        list.push(cursor.pointer()?);
    }
    Ok(list)
}

#[cfg(test)]
mod tests;
