//! Rings as a driver has them: the requests that it writes, the completions that it reads.

use crate::address::EncodedAddress;
use crate::error::RawKind;
use crate::{Access, Lkey, MaskedOp, MwType, Payload, Qkey, Qpn, Remote, Rkey, SendFlags, Sge, Source, Srqn, WcData, WcStatus};

/// A window binding for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BindOp {
    /// Type of the window.
    pub kind: MwType,
    /// Key that it has.
    pub old: Rkey,
    /// Key that it gets.
    pub new: Rkey,
    /// Key of the region; ignored when `length` is 0.
    pub lkey: Lkey,
    /// First byte.
    pub addr: u64,
    /// Length; 0 unbinds.
    pub length: u64,
    /// Remote rights.
    pub access: Access,
}

/// A registration for the device: a free key is opened over pieces of a region.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RegOp<'a> {
    /// Key that it has.
    pub old: Rkey,
    /// Key that it gets.
    pub new: Rkey,
    /// Address of the first byte, by this key.
    pub base: u64,
    /// Bytes of all pieces.
    pub length: u64,
    /// LOCAL_WRITE and remote rights.
    pub access: Access,
    /// The pieces, none of which is empty.
    pub sges: &'a [Sge],
}

/// Which operation of those that move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum DataOpcode {
    /// SEND.
    Send,
    /// SEND_WITH_IMM.
    SendWithImm,
    /// SEND_WITH_INV.
    SendWithInv,
    /// RDMA_WRITE.
    Write,
    /// RDMA_WRITE_WITH_IMM.
    WriteWithImm,
    /// RDMA_READ.
    Read,
}

/// A request that moves bytes, without the bytes. Which operation it is, is known where it is posted, so that the code for it
/// is made for that operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DataOp {
    /// The operation.
    pub opcode: DataOpcode,
    /// Where in the peer's memory; [`Remote::NONE`] for the SENDs.
    pub remote: Remote,
    /// Immediate data (most significant byte first on the wire) or the key to invalidate; 0 for the others.
    pub immediate: u32,
}

/// A datagram, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DatagramOp<'a> {
    /// The port that it goes to.
    pub address: &'a EncodedAddress,
    /// The queue pair that it goes to.
    pub remote_qpn: Qpn,
    /// Q_Key of that queue pair.
    pub remote_qkey: Qkey,
    /// Immediate data in network byte order.
    pub imm: Option<[u8; 4]>,
}

/// Which atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AtomicOpcode {
    /// ATOMIC_CMP_AND_SWP.
    CompareSwap,
    /// ATOMIC_FETCH_AND_ADD.
    FetchAdd,
}

/// An atomic on eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AtomicOp {
    /// Which.
    pub opcode: AtomicOpcode,
    /// Which eight bytes of the peer's.
    pub remote: Remote,
    /// New value, or what to add.
    pub swap_add: u64,
    /// Expected value; 0 for a fetch-and-add.
    pub compare: u64,
}

/// Send ring of one queue pair, owned by its poster.
pub trait SendRing {
    /// The ring while requests are written, with frequently used state in registers.
    type Writer<'a>: SendWriter + Copy
    where
        Self: 'a;
    /// Returns the ring for requests to be written, from where the last writer was closed or rang.
    fn writer(&self) -> Self::Writer<'_>;
    /// Empties the ring after a move to RESET; its counters start from 0.
    fn reset(&mut self);
}

/// Writes requests into a send ring. Indices are free-running counters of blocks, from 0 after a move to RESET. Every request
/// was checked, and every place exists: nothing can fail. In `flags`, SIGNALED says whether a completion is requested.
pub trait SendWriter {
    /// Blocks of an atomic.
    const ATOMIC_BLOCKS: u32;
    /// Blocks of a LOCAL_INV.
    const LOCAL_INV_BLOCKS: u32;
    /// Returns the blocks of a request with `count` SGEs.
    fn sge_blocks(opcode: DataOpcode, count: usize) -> u32;
    /// Returns the blocks of a request with `len` bytes inline.
    fn inline_blocks(opcode: DataOpcode, len: usize) -> u32;
    /// Returns the blocks of a bind.
    fn bind_blocks(bind: &BindOp) -> u32;
    /// Writes a request with SGEs, none of which is empty.
    fn put_sges(&mut self, at: u32, op: &DataOp, sges: &[Sge], flags: SendFlags);
    /// Writes a request with bytes inline. Never an RDMA_READ.
    fn put_inline(&mut self, at: u32, op: &DataOp, bytes: &[u8], flags: SendFlags);
    /// Returns the blocks of a datagram with `count` SGEs.
    fn datagram_sge_blocks(count: usize) -> u32;
    /// Returns the blocks of a datagram with `len` bytes inline.
    fn datagram_inline_blocks(len: usize) -> u32;
    /// Writes a datagram. SGEs without bytes are left out, and are not counted in its blocks.
    fn put_datagram(&mut self, at: u32, op: &DatagramOp<'_>, payload: Payload<'_>, flags: SendFlags);
    /// Blocks of an atomic of an XRC initiator.
    const XRC_ATOMIC_BLOCKS: u32;
    /// Returns the blocks of a request of an XRC initiator with `count` SGEs.
    fn xrc_sge_blocks(opcode: DataOpcode, count: usize) -> u32;
    /// Returns the blocks of a request of an XRC initiator with `len` bytes inline.
    fn xrc_inline_blocks(opcode: DataOpcode, len: usize) -> u32;
    /// Writes a request of an XRC initiator to a shared receive queue. SGEs without bytes are left out, and are not counted in its
    /// blocks. An RDMA_READ has nothing inline.
    fn put_xrc(&mut self, at: u32, srqn: Srqn, op: &DataOp, payload: Payload<'_>, flags: SendFlags);
    /// Writes an atomic of an XRC initiator.
    fn put_xrc_atomic(&mut self, at: u32, srqn: Srqn, op: &AtomicOp, sge: &Sge, flags: SendFlags);
    /// Writes an atomic.
    fn put_atomic(&mut self, at: u32, op: &AtomicOp, sge: &Sge, flags: SendFlags);
    /// Writes a bind of a window.
    fn put_bind(&mut self, at: u32, bind: &BindOp, flags: SendFlags);
    /// Returns the blocks of a masked atomic; `xrc`, if it names a shared receive queue.
    fn masked_blocks(op: &MaskedOp, xrc: bool) -> u32;
    /// Writes a masked atomic; of an XRC initiator to a shared receive queue.
    fn put_masked(&mut self, at: u32, op: &MaskedOp, srqn: Option<Srqn>, remote: &Remote, sge: &Sge, flags: SendFlags);
    /// Returns the blocks of a registration of `count` pieces.
    fn reg_blocks(count: usize) -> u32;
    /// Writes a registration.
    fn put_reg(&mut self, at: u32, reg: &RegOp<'_>, flags: SendFlags);
    /// Writes a LOCAL_INV.
    fn put_local_inv(&mut self, at: u32, rkey: Rkey, flags: SendFlags);
    /// Notifies the device of every request before block `end`.
    fn ring(&mut self, end: u32);
    /// Writes the working state back. Not called after [`Self::ring`] if nothing was written since.
    fn close(&mut self);
}

/// Receive ring of one queue pair, owned by its poster. Indices are free-running counters of entries.
pub trait RecvRing {
    /// Writes a receive with these SGEs at entry `at`; those of length 0 are left out.
    fn put(&mut self, at: u32, sges: &[Sge]);
    /// Notifies the device of every receive before entry `end`.
    fn ring(&mut self, end: u32);
    /// Empties the ring after a move to RESET; its counters start from 0.
    fn reset(&mut self);
}

/// Ring of one shared receive queue, owned by its poster. The requests are a list that begins at place 0: each names the place of
/// the one that is posted after it.
pub trait SrqRing {
    /// Writes a receive with these SGEs at place `at`; those of length 0 are left out. The next receive will be at `next`.
    fn put(&mut self, at: u16, next: u16, sges: &[Sge]);
    /// Notifies the device of every receive before the one with number `end`, counted from 0 since the queue was made.
    fn ring(&mut self, end: u32);
}

/// Ring of one completion queue, owned by its poller.
pub trait CqRing {
    /// The ring while completions are taken, with frequently used state in registers.
    type Reader<'a>: CqReader + Copy
    where
        Self: 'a;
    /// Returns the ring for completions to be taken.
    fn reader(&self) -> Self::Reader<'_>;
    /// Asks for an event at the next completion, or at the next solicited or failed one. `events` counts those that the queue
    /// has given.
    fn arm(&mut self, events: u32, solicited_only: bool);
}

/// Takes completions one after the other. What was taken stays taken even if the reader is forgotten.
pub trait CqReader {
    /// Looks at the next completion without taking it.
    fn peek(&mut self) -> Peek;
    /// Returns the cookie of the peeked completion; `None` if the device gives none back.
    fn cookie(&self) -> Option<u32>;
    /// Returns the bytes of the peeked completion, a successful one.
    fn byte_len(&self) -> u32;
    /// Returns the whole peeked completion, or the opcode of an invalid one.
    ///
    /// # Errors
    /// A queue pair gives no completions with this opcode.
    fn parse(&self) -> Result<RawCompletion, u8>;
    /// Returns where the completion came from that was taken last: a successful receive of a queue pair for datagrams. Called
    /// before its place is given back by [`Self::publish_consumer_index`].
    fn source(&self) -> Source;
    /// Takes the peeked completion.
    fn advance(&mut self);
    /// Publishes the consumer index, so that the device may write those entries again.
    fn publish_consumer_index(&mut self);
}

/// What [`CqReader::peek`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Peek {
    /// Nothing.
    Empty,
    /// A successful send of any kind, or a receive that took a SEND and came with nothing else. Not yet believed.
    Success {
        /// Queue pair that the device names.
        qpn: Qpn,
        /// Whether it completes a receive.
        recv: bool,
        /// As [`RawCompletion::index`].
        index: u16,
    },
    /// Something else: see [`CqReader::parse`].
    Other,
}

/// A completion as the backend parsed it, not yet believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RawCompletion {
    /// Queue pair that the device names.
    pub qpn: Qpn,
    /// Which ring, and what came.
    pub kind: RawKind,
    /// Low 16 bits of the index of the request: its first block (send), its entry (receive), its place (receive of a shared receive
    /// queue).
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
