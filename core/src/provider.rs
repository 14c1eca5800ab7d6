//! What a hardware backend implements: [`Provider`] for the control path, [`DataPath`] for requests and completions.
//!
//! The core checks what the verbs promise and keeps the tables; a backend turns checked requests into its device's
//! language. It may rely on the checks, and it must not rely on its device: whatever the device says becomes an error value.

use crate::{
    Access, Cqn, DeviceAttr, Gid, Instant, Lkey, Payload, PortAttr, Psn, QpAttr, QpAttrMask, QpCap, QpState, QpType, Qpn,
    Remote, Rkey, SendFlags, Sge, WcData, WcStatus, errno::Errno,
};

/// An error of a backend: small, with facts, and with an errno.
pub trait DeviceError: Copy + core::fmt::Debug + core::fmt::Display {
    /// The errno that the verbs give for it.
    fn errno(&self) -> Errno;
}

/// Turns an address of a region into the address that the device uses.
///
/// A region starts in one page and goes on through others: [`AddressMap::device_addr`] is asked once for each page.
pub trait AddressMap {
    /// Device address of the byte at `addr`, which lies in a page of `page_size()` bytes that is contiguous for the device.
    fn device_addr(&self, addr: u64) -> Option<u64>;
    /// Page size in bytes, a power of two, at least 4096: within such a page, aligned, the device sees what the caller sees.
    fn page_size(&self) -> u64 {
        4096
    }
}

/// Device addresses are the caller's, plus a constant (wrapping).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OffsetMap {
    /// Added to the caller's address.
    pub offset: u64,
}

impl AddressMap for OffsetMap {
    fn device_addr(&self, addr: u64) -> Option<u64> {
        Some(addr.wrapping_add(self.offset))
    }
}

/// A region to make.
pub struct MrRequest<'a> {
    /// First byte in the caller's address space.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Checked access.
    pub access: Access,
    /// Low byte of the key.
    pub key: u8,
    /// Where the bytes lie for the device.
    pub map: &'a dyn AddressMap,
}

/// Kind of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MwType {
    /// Bound with `bind_mw`.
    Type1,
    /// Bound with a BIND_MW work request; belongs to the queue pair that bound it.
    Type2,
}

/// A queue pair to make. `P` is the backend.
pub struct QpRequest<'a, P: Provider + ?Sized> {
    /// Transport.
    pub qp_type: QpType,
    /// Domain.
    pub pd: &'a P::Pd,
    /// Queue for completions of sends.
    pub send_cq: &'a P::Cq,
    /// Queue for completions of receives.
    pub recv_cq: &'a P::Cq,
    /// Least capacities.
    pub cap: QpCap,
    /// Given back with each completion: 24 bits.
    pub cookie: u32,
}

/// A queue pair that was made.
pub struct QpMade<P: Provider + ?Sized> {
    /// The backend's part.
    pub qp: P::Qp,
    /// Number.
    pub qpn: Qpn,
    /// Blocks of the send ring, a power of two, 32,768 at most.
    pub send_blocks: u32,
    /// Entries of the receive ring, a power of two, 32,768 at most.
    pub recv_entries: u32,
    /// Capacities, at least those asked for.
    pub cap: QpCap,
}

/// Control path of a backend. `now` is the moment of the call; a backend keeps its own clock for waits and deadlines.
pub trait Provider {
    /// Error of every operation.
    type Error: DeviceError;
    /// Protection domain.
    type Pd;
    /// Memory region.
    type Mr;
    /// Memory window.
    type Mw;
    /// Completion queue.
    type Cq;
    /// Queue pair.
    type Qp;

    /// What the device has, read at bring-up.
    fn device_attr(&self) -> &DeviceAttr;
    /// State of a port, from 1.
    fn query_port(&mut self, port: u8) -> Result<PortAttr, Self::Error>;
    /// Entry of a port's GID table.
    fn query_gid(&mut self, port: u8, index: u16) -> Result<Gid, Self::Error>;
    /// Entry of a port's P_Key table.
    fn query_pkey(&mut self, port: u8, index: u16) -> Result<u16, Self::Error>;

    /// Makes a domain.
    fn alloc_pd(&mut self) -> Result<Self::Pd, Self::Error>;
    /// Destroys a domain; after an error it is as before.
    fn dealloc_pd(&mut self, pd: &mut Self::Pd) -> Result<(), Self::Error>;

    /// Makes a region. The low byte of both keys is `request.key`.
    fn create_mr(&mut self, pd: &Self::Pd, request: &MrRequest<'_>) -> Result<(Self::Mr, Lkey, Rkey), Self::Error>;
    /// Destroys a region; after an error it is as before.
    fn destroy_mr(&mut self, mr: &mut Self::Mr) -> Result<(), Self::Error>;

    /// Makes an unbound window.
    fn create_mw(&mut self, pd: &Self::Pd, kind: MwType) -> Result<(Self::Mw, Rkey), Self::Error>;
    /// Destroys a window, bound or not; after an error it is as before.
    fn destroy_mw(&mut self, mw: &mut Self::Mw) -> Result<(), Self::Error>;

    /// Makes a completion queue of at least `entries`; gives its number and its entries.
    fn create_cq(&mut self, entries: u32) -> Result<(Self::Cq, Cqn, u32), Self::Error>;
    /// Destroys a completion queue; after an error it is as before.
    fn destroy_cq(&mut self, cq: &mut Self::Cq) -> Result<(), Self::Error>;

    /// Makes a queue pair in RESET.
    fn create_qp(&mut self, request: &QpRequest<'_, Self>) -> Result<QpMade<Self>, Self::Error>;
    /// Moves a queue pair `from` one state to `attr.state` (the same one, if it only changes attributes); the core has
    /// checked the mask. `attr` holds every attribute set so far, `mask` names those of this call. After a move to RESET
    /// both rings are empty and their counters start from 0 again.
    fn modify_qp(&mut self, qp: &mut Self::Qp, from: QpState, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Self::Error>;
    /// State of a queue pair as the device has it, and the PSNs it would use next (receive, send).
    fn query_qp(&mut self, qp: &Self::Qp) -> Result<(QpState, Psn, Psn), Self::Error>;
    /// Destroys a queue pair; after an error it is as before.
    fn destroy_qp(&mut self, qp: &mut Self::Qp) -> Result<(), Self::Error>;
    /// Takes every completion of a queue pair out of a completion queue, the others stay in their order.
    fn clean_cq(&mut self, cq: &mut Self::Cq, qpn: Qpn) -> Result<(), Self::Error>;

    /// Moment by the backend's clock.
    fn now(&self) -> Instant;
    /// Takes the next event, if one is waiting; never waits.
    fn poll_event(&mut self) -> Result<Option<AsyncEvent>, Self::Error>;
}

/// Something that the device tells of its own accord (`ibv_async_event`), or a completion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AsyncEvent {
    /// A completion came into an armed queue.
    Completion(Cqn),
    /// A completion queue overran or broke.
    CqError(Cqn, u8),
    /// First message on a queue pair in RTR.
    CommEstablished(Qpn),
    /// The send queue is drained (SQD).
    SqDrained(Qpn),
    /// The last receive of a queue pair in error is done.
    LastWqeReached(Qpn),
    /// A queue pair broke.
    QpFatal(Qpn),
    /// An invalid request came in.
    QpRequestError(Qpn),
    /// An access violation of an incoming request.
    QpAccessError(Qpn),
    /// A port went up.
    PortActive(u8),
    /// A port went down.
    PortDown(u8),
    /// LID, P_Key table, GID table or SM of a port changed.
    PortChanged(u8),
    /// The device is broken: health syndrome, and extended one.
    DeviceFatal(u8, u16),
    /// An event type that this library does not know.
    Unknown(u8, u8),
}

/// A window binding for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Bind {
    /// Kind of the window.
    pub kind: MwType,
    /// Key that the window has now.
    pub old: Rkey,
    /// Key that it gets.
    pub new: Rkey,
    /// Key of the region; not looked at when `length` is 0.
    pub lkey: Lkey,
    /// First byte.
    pub addr: u64,
    /// Length; 0 unbinds.
    pub length: u64,
    /// Remote rights.
    pub access: Access,
}

/// A send operation that the core has checked.
#[derive(Clone, Copy, Debug)]
pub enum CheckedOp<'a> {
    /// SEND.
    Send(Payload<'a>),
    /// SEND_WITH_IMM.
    SendWithImm(Payload<'a>, [u8; 4]),
    /// SEND_WITH_INV.
    SendWithInv(Payload<'a>, Rkey),
    /// RDMA_WRITE.
    Write(Payload<'a>, Remote),
    /// RDMA_WRITE_WITH_IMM.
    WriteWithImm(Payload<'a>, Remote, [u8; 4]),
    /// RDMA_READ.
    Read(&'a [Sge], Remote),
    /// Compare-and-swap: compare, swap.
    CompareSwap(Sge, Remote, u64, u64),
    /// Fetch-and-add.
    FetchAdd(Sge, Remote, u64),
    /// BIND_MW of either type.
    BindMw(Bind),
    /// LOCAL_INV.
    LocalInv(Rkey),
}

/// A completion as the backend parsed it, not yet believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RawCompletion {
    /// Queue pair that the device names.
    pub qpn: Qpn,
    /// Cookie that the device gives back; `None` if it has none. Not to be trusted more than `qpn`.
    pub cookie: Option<u32>,
    /// Which ring, and what came.
    pub kind: RawKind,
    /// Low 16 bits of the index of the request: its first block (send), its entry (receive).
    pub index: u16,
    /// Status.
    pub status: WcStatus,
    /// The device's own code beside an error.
    pub vendor_err: u8,
    /// Bytes.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub data: WcData,
}

/// Which ring a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum RawKind {
    /// A send request.
    Send,
    /// A receive that took a SEND.
    Recv,
    /// A receive that an RDMA_WRITE_WITH_IMM took.
    RecvRdmaWithImm,
}

/// An operation of a request that [`DataPath::encode_usual`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsualOp {
    /// SEND; has no remote address.
    Send,
    /// RDMA_WRITE.
    Write,
    /// RDMA_READ.
    Read,
}

/// A successful completion of the kinds that most programs live on, not yet believed: any send, or a receive that took a
/// SEND and came with nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsualCompletion {
    /// Queue pair that the device names.
    pub qpn: Qpn,
    /// Cookie that the device gives back.
    pub cookie: u32,
    /// Whether it completes a receive.
    pub recv: bool,
    /// As in [`RawCompletion::index`].
    pub index: u16,
    /// Bytes.
    pub byte_len: u32,
}

/// What a look at a completion queue shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// Nothing.
    Empty,
    /// A usual completion.
    Usual(UsualCompletion),
    /// Something else: [`DataPath::poll`] tells.
    Other,
}

/// Data path of a backend. Indices are free-running counters of blocks (send) and entries (receive), from 0 after a move to
/// RESET. An SGE of length 0 names no byte: its key was not looked at, and a backend leaves it out. A request whose encoding
/// fails is not posted: the next one is written at the same place.
pub trait DataPath: Provider {
    /// Blocks that a request takes in the send ring.
    fn send_blocks(op: &CheckedOp<'_>) -> u32;
    /// Writes a request at block `at`; the device is not told yet. `signaled` asks for a completion.
    fn encode_send(
        &mut self,
        qp: &mut Self::Qp,
        at: u32,
        op: &CheckedOp<'_>,
        flags: SendFlags,
        signaled: bool,
    ) -> Result<(), Self::Error>;
    /// Blocks of a request that [`Self::encode_usual`] writes; `None` if the backend has no shorter way for those requests.
    const USUAL_BLOCKS: Option<u16> = None;
    /// Writes a request that most programs live on: one or two SGEs, none of them empty, and none longer than the device's
    /// longest message. Like [`Self::encode_send`], which it is unless the backend has a shorter way.
    #[expect(clippy::too_many_arguments, reason = "in registers they cost nothing, in a structure they cost a copy")]
    fn encode_usual(
        &mut self,
        qp: &mut Self::Qp,
        at: u32,
        op: UsualOp,
        sges: &[Sge],
        remote: Remote,
        flags: SendFlags,
        signaled: bool,
    ) -> Result<(), Self::Error> {
        let op = match op {
            UsualOp::Send => CheckedOp::Send(Payload::Sges(sges)),
            UsualOp::Write => CheckedOp::Write(Payload::Sges(sges), remote),
            UsualOp::Read => CheckedOp::Read(sges, remote),
        };
        self.encode_send(qp, at, &op, flags, signaled)
    }
    /// The longest inline payload of an RDMA_WRITE that [`Self::encode_short_inline`] writes, 0 if the backend has no shorter
    /// way for those requests.
    const SHORT_INLINE: usize = 0;
    /// Blocks of an RDMA_WRITE with `len` bytes inline, [`Self::SHORT_INLINE`] at most.
    fn short_inline_blocks(len: usize) -> u16 {
        let _ = len;
        u16::MAX
    }
    /// Writes an RDMA_WRITE with 1 to [`Self::SHORT_INLINE`] bytes inline, like [`Self::encode_send`].
    fn encode_short_inline(
        &mut self,
        qp: &mut Self::Qp,
        at: u32,
        bytes: &[u8],
        remote: Remote,
        flags: SendFlags,
        signaled: bool,
    ) -> Result<(), Self::Error> {
        self.encode_send(qp, at, &CheckedOp::Write(Payload::Inline(bytes), remote), flags, signaled)
    }
    /// Tells the device of every send before block `end`.
    fn commit_send(&mut self, qp: &mut Self::Qp, end: u32) -> Result<(), Self::Error>;
    /// Writes a receive at entry `at`.
    fn encode_recv(&mut self, qp: &mut Self::Qp, at: u32, sges: &[Sge]) -> Result<(), Self::Error>;
    /// Tells the device of every receive before entry `end`.
    fn commit_recv(&mut self, qp: &mut Self::Qp, end: u32) -> Result<(), Self::Error>;
    /// Looks at the next completion without taking it. A backend without a shorter way for usual ones sees none.
    fn peek(&self, cq: &Self::Cq) -> Peek {
        let _ = cq;
        Peek::Other
    }
    /// Takes the completion that [`Self::peek`] has shown.
    fn skip(&mut self, cq: &mut Self::Cq) {
        let _ = cq;
    }
    /// Takes the next completion, if the device has written one.
    fn poll(&mut self, cq: &mut Self::Cq) -> Result<Option<RawCompletion>, Self::Error>;
    /// Tells the device how far completions were taken.
    fn commit_cq(&mut self, cq: &mut Self::Cq) -> Result<(), Self::Error>;
    /// Asks for an event at the next completion, or at the next solicited or failed one.
    fn arm_cq(&mut self, cq: &mut Self::Cq, solicited_only: bool) -> Result<(), Self::Error>;
}
