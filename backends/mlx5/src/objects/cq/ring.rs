//! The ring of one completion queue: completions as the device writes them, read by words of eight bytes.

use core::cell::Cell;

use crate::config::CqeSize;
use crate::log::format_as;
use bareverbs::backend::{CqReader, CqRing, Peek, RawCompletion};
use bareverbs::error::RawKind;
use bareverbs::platform::{DmaFence, DmaMemory, DmaRing, Doorbell, Platform, Registers, RingView};
use bareverbs::{Lid, Qpn, Rkey, Source, WcData, WcStatus};
use bareverbs_mlx5_spec::{CQE, CqArm, CqDoorbellRecord, Cqe, CqeOpcode, CqeSyndrome, ErrCqe, Field};

/// The word that the device writes last. Owner, opcode, QP number and counter lie in it, so one load reads them all.
const LAST: usize = Cqe::OWNER.word();
const _: () = assert!(LAST == Cqe::OPCODE.word() && LAST == Cqe::QPN.word() && LAST == Cqe::WQE_COUNTER.word());
const _: () = assert!(Cqe::OPCODE.dword() == LAST * 8 + 4 && Cqe::OWNER.dword() == LAST * 8 + 4, "low half");

/// The bit that distinguishes the opcode of a successful receive from that of a send.
const RECV: u32 = CqeOpcode::RespSend as u32;
const _: () = assert!(CqeOpcode::Req as u32 == 0 && RECV == 2);

/// Bit of [`Cqe::L4_HDR_TYPE_ETC`]: [`Cqe::VLAN_INFO`] is the tag of the packet.
const VLAN_STRIPPED: u32 = 1;
/// First bit of the priority in a VLAN tag.
const VLAN_PRIORITY: u32 = 13;
/// Bits of the VLAN in its tag.
const VLAN_ID: u16 = 0xfff;

/// The ring of one completion queue.
pub struct Mlx5CqRing<P: Platform> {
    ring: <P::Memory as DmaMemory>::Ring,
    doorbell: <P::Registers as Registers>::Doorbell,
    fence: P::Fence,
    shape: Shape,
    /// The block of the next completion: the last of its entry, counted without end.
    consumer: Cell<u32>,
}

format_as!(
    [P: Platform] Mlx5CqRing<P>,
    "Mlx5CqRing({:x}, consumer index {})",
    |this| this.shape.cqn, this.position().1,
);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) cqn: u32,
    pub(crate) size: RingSize,
    /// Whether completions carry the user index of their queue pair.
    pub(crate) user_index: bool,
    /// Whether writes to the doorbell must be flushed.
    pub(crate) combining: bool,
    /// Whether datagrams come through an Ethernet port.
    pub(crate) ethernet: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RingSize {
    /// log2 of the blocks.
    log_ring: u32,
    cqe_size: CqeSize,
}

impl RingSize {
    /// Returns the size of a ring of `1 << log_size` entries.
    pub(crate) const fn new(log_size: u32, cqe_size: CqeSize) -> Self {
        Self { log_ring: log_size.wrapping_add(cqe_size.log_blocks()), cqe_size }
    }

    pub(crate) const fn log_size(self) -> u32 {
        self.log_ring.wrapping_sub(self.cqe_size.log_blocks())
    }

    pub(super) const fn bytes(self) -> usize {
        CQE << self.log_ring
    }

    /// Returns the block of the completion with this counter, of blocks that are counted without end.
    const fn block(self, counter: u32) -> u32 {
        counter << self.cqe_size.log_blocks() | self.cqe_size.log_blocks()
    }

    /// Returns the byte of the ring where the entry with this counter has its completion.
    pub(super) const fn place(self, counter: u32) -> usize {
        (self.block(counter) & ((1 << self.log_ring) - 1)) as usize * CQE
    }
}

impl<P: Platform> Mlx5CqRing<P> {
    pub(crate) fn new(
        ring: <P::Memory as DmaMemory>::Ring,
        doorbell: <P::Registers as Registers>::Doorbell,
        fence: P::Fence,
        shape: Shape,
    ) -> Self {
        Self { ring, doorbell, fence, shape, consumer: Cell::new(shape.size.block(0)) }
    }

    /// Returns the size of the ring, and the counter of the next entry.
    pub(crate) fn position(&self) -> (RingSize, u32) {
        (self.shape.size, self.consumer.get() >> self.shape.size.cqe_size.log_blocks())
    }

    /// Goes on in another ring, from the entry with this counter.
    pub(crate) fn move_to(&mut self, ring: <P::Memory as DmaMemory>::Ring, size: RingSize, consumer: u32) {
        self.ring = ring;
        self.shape.size = size;
        self.consumer.set(size.block(consumer));
        self.reader().publish_consumer_index();
    }

    #[cfg(test)]
    pub(crate) fn start_at(&mut self, consumer: u32) {
        self.consumer.set(self.shape.size.block(consumer));
    }
}

/// Returns the status of an error entry, same as in rdma-core.
fn status(syndrome: u32) -> WcStatus {
    match CqeSyndrome::from_code(syndrome) {
        Some(CqeSyndrome::LocalLength) => WcStatus::LocLenErr,
        Some(CqeSyndrome::LocalQpOp) => WcStatus::LocQpOpErr,
        Some(CqeSyndrome::LocalProt) => WcStatus::LocProtErr,
        Some(CqeSyndrome::WrFlush) => WcStatus::WrFlushErr,
        Some(CqeSyndrome::MwBind) => WcStatus::MwBindErr,
        Some(CqeSyndrome::BadResp) => WcStatus::BadRespErr,
        Some(CqeSyndrome::LocalAccess) => WcStatus::LocAccessErr,
        Some(CqeSyndrome::RemoteInvalReq) => WcStatus::RemInvReqErr,
        Some(CqeSyndrome::RemoteAccess) => WcStatus::RemAccessErr,
        Some(CqeSyndrome::RemoteOp) => WcStatus::RemOpErr,
        Some(CqeSyndrome::TransportRetryExc) => WcStatus::RetryExcErr,
        Some(CqeSyndrome::RnrRetryExc) => WcStatus::RnrRetryExcErr,
        Some(CqeSyndrome::RemoteAborted) => WcStatus::RemAbortErr,
        None => WcStatus::GeneralErr,
    }
}

impl<P: Platform> CqRing for Mlx5CqRing<P> {
    type Reader<'a>
        = Mlx5CqReader<'a, P>
    where
        Self: 'a;

    #[inline(always)]
    fn reader(&self) -> Mlx5CqReader<'_, P> {
        Mlx5CqReader { source: self, view: self.ring.view(), consumer: self.consumer.get() }
    }

    /// Writes the record first, then the register.
    fn arm(&mut self, events: u32, solicited_only: bool) {
        let (_, consumer) = self.position();
        self.ring.view().record(true, CqDoorbellRecord::arm_dword(events, solicited_only, consumer).to_be());
        self.fence.release();
        self.doorbell.write(0, CqArm::be_word(events, solicited_only, consumer, self.shape.cqn));
        if self.shape.combining {
            self.fence.flush();
        }
    }
}

/// [`Mlx5CqRing`] while completions are taken.
pub struct Mlx5CqReader<'a, P: Platform> {
    source: &'a Mlx5CqRing<P>,
    view: <<P::Memory as DmaMemory>::Ring as DmaRing>::View<'a>,
    consumer: u32,
}

format_as!([P: Platform] Mlx5CqReader<'_, P>, "Mlx5CqReader({:x})", |this| this.source.shape.cqn);

impl<P: Platform> Clone for Mlx5CqReader<'_, P> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Mlx5CqReader<'_, P> {}

impl<P: Platform> Mlx5CqReader<'_, P> {
    /// Returns word `word` of the entry, in host byte order.
    #[inline(always)]
    fn word(&self, word: usize) -> u64 {
        u64::from_be(self.view.block_word(self.consumer, word))
    }

    #[inline(always)]
    pub(crate) fn get<L>(&self, field: Field<L>) -> u32 {
        field.take_word(self.word(field.word()))
    }
}

impl<P: Platform> CqReader for Mlx5CqReader<'_, P> {
    #[inline(always)]
    fn peek(&mut self) -> Peek {
        let last = self.word(LAST);
        let (index, log_ring) = (self.consumer, self.source.shape.size.log_ring);
        // One test finds a usual completion: an opcode that is 0 but for the bit of the receive, and the owner of this round.
        let usual = last as u32 ^ Cqe::OWNER.place(index >> log_ring);
        if usual & (Cqe::OPCODE.place(!RECV) | Cqe::OWNER.mask()) == 0 {
            self.source.fence.acquire();
            let (qpn, counter) = (Qpn::new(Cqe::QPN.take_word(last)), Cqe::WQE_COUNTER.take_word(last));
            return Peek::Success { qpn, recv: usual & Cqe::OPCODE.place(RECV) != 0, index: counter as u16 };
        }
        if Cqe::OPCODE.take(last as u32) == CqeOpcode::Invalid.code() || usual & Cqe::OWNER.mask() != 0 {
            return Peek::Empty;
        }
        self.source.fence.acquire();
        Peek::Other
    }

    #[inline(always)]
    fn cookie(&self) -> Option<u32> {
        if self.source.shape.user_index { Some(self.get(Cqe::SRQN_UIDX)) } else { None }
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        self.get(Cqe::BYTE_CNT)
    }

    fn parse(&self) -> Result<RawCompletion, u8> {
        let words = [Cqe::IMM_INVAL_PKEY.word(), Cqe::BYTE_CNT.word(), ErrCqe::SYNDROME.word(), LAST];
        let [key, bytes, error, last] = words.map(|word| self.word(word));
        let opcode = Cqe::OPCODE.take_word(last);
        let kind = CqeOpcode::from_code(opcode).ok_or(opcode as u8)?;
        let mut completion = RawCompletion {
            qpn: Qpn::new(Cqe::QPN.take_word(last)),
            kind: RawKind::Recv,
            index: Cqe::WQE_COUNTER.take_word(last) as u16,
            status: WcStatus::Success,
            vendor_err: 0,
            byte_len: Cqe::BYTE_CNT.take_word(bytes),
            data: WcData::None,
        };
        let word = Cqe::IMM_INVAL_PKEY.take_word(key);
        match kind {
            CqeOpcode::Req => completion.kind = RawKind::Send,
            CqeOpcode::RespSend => {}
            CqeOpcode::RespSendImm => completion.data = WcData::Imm(word.to_be_bytes()),
            CqeOpcode::RespSendInv => completion.data = WcData::Invalidated(Rkey::new(word)),
            CqeOpcode::RespWrImm => {
                completion.kind = RawKind::RecvRdmaWithImm;
                completion.data = WcData::Imm(word.to_be_bytes());
            }
            CqeOpcode::ReqErr | CqeOpcode::RespErr => {
                if kind == CqeOpcode::ReqErr {
                    completion.kind = RawKind::Send;
                }
                completion.status = status(ErrCqe::SYNDROME.take_word(error));
                completion.vendor_err = ErrCqe::VENDOR_ERR_SYND.take_word(error) as u8;
                completion.byte_len = 0;
            }
            _ => return Err(opcode as u8),
        }
        Ok(completion)
    }

    fn source(&self) -> Source {
        let taken = Self { consumer: self.consumer.wrapping_sub(self.source.shape.size.cqe_size.blocks()), ..*self };
        let mut source = Source::default();
        source.src_qp = Qpn::new(taken.get(Cqe::RQPN));
        if self.source.shape.ethernet {
            // The kind of IP header is where InfiniBand has the service level.
            if taken.get(Cqe::L4_HDR_TYPE_ETC) & VLAN_STRIPPED != 0 {
                let tag = taken.get(Cqe::VLAN_INFO);
                source.sl = (tag >> VLAN_PRIORITY) as u8;
                source.vlan = Some(tag as u16 & VLAN_ID);
            }
        } else {
            source.slid = Lid::new(taken.get(Cqe::SLID) as u16);
            source.sl = taken.get(Cqe::SL) as u8;
            source.dlid_path_bits = taken.get(Cqe::ML_PATH) as u8 & 0x7f;
        }
        source.grh = taken.get(Cqe::GRH) != 0;
        if taken.get(Cqe::OPCODE) == CqeOpcode::RespSend.code() {
            source.pkey = Some(taken.get(Cqe::IMM_INVAL_PKEY) as u16);
        }
        source
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.consumer = self.consumer.wrapping_add(self.source.shape.size.cqe_size.blocks());
        self.source.consumer.set(self.consumer);
    }

    #[inline(always)]
    fn publish_consumer_index(&mut self) {
        self.source.fence.read_before_write();
        self.view.record(
            false,
            CqDoorbellRecord::CONSUMER_INDEX.place(self.consumer >> self.source.shape.size.cqe_size.log_blocks()).to_be(),
        );
    }
}

#[cfg(test)]
mod tests;
