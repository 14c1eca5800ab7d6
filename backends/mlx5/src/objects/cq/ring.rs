//! The ring of one completion queue: completions as the device writes them, read by words of eight bytes.

use core::cell::Cell;

use crate::log::format_as;
use crate::ring::owner_matches;
use bareverbs::{
    DmaFence, DmaMemory, DmaRing, Doorbell, Peek, Platform, Qpn, RawCompletion, RawKind, Registers, RingView, Rkey, WcData,
    WcStatus,
};
use bareverbs_mlx5_spec::{CQE, CqArm, CqDoorbellRecord, Cqe, CqeOpcode, CqeSyndrome, ErrCqe, Field};

/// Words of an entry.
const WORDS: u32 = (CQE / 8) as u32;

/// The word that the device writes last. Owner, opcode, QP number and counter lie in it, so one load reads them all.
const LAST: usize = Cqe::OWNER.word();
const _: () = assert!(LAST == Cqe::OPCODE.word() && LAST == Cqe::QPN.word() && LAST == Cqe::WQE_COUNTER.word());
const _: () = assert!(Cqe::OPCODE.dword() == LAST * 8 + 4 && Cqe::OWNER.dword() == LAST * 8 + 4, "low half");

/// The bit that distinguishes the opcode of a successful receive from that of a send.
const RECV: u32 = CqeOpcode::RespSend as u32;
const _: () = assert!(CqeOpcode::Req as u32 == 0 && RECV == 2);

/// The ring of one completion queue.
pub struct Mlx5CqRing<P: Platform> {
    ring: <P::Memory as DmaMemory>::Ring,
    doorbell: <P::Registers as Registers>::Doorbell,
    fence: P::Fence,
    shape: Shape,
    consumer: Cell<u32>,
}

format_as!(
    [P: Platform] Mlx5CqRing<P>,
    "Mlx5CqRing({:x}, consumer index {})",
    |this| this.shape.cqn, this.consumer.get(),
);

/// Constants of a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) cqn: u32,
    pub(crate) log_size: u32,
    /// Whether completions carry the user index of their queue pair.
    pub(crate) user_index: bool,
    /// Whether writes to the doorbell must be flushed.
    pub(crate) combining: bool,
}

impl<P: Platform> Mlx5CqRing<P> {
    /// Returns an empty queue.
    pub(crate) fn new(
        ring: <P::Memory as DmaMemory>::Ring,
        doorbell: <P::Registers as Registers>::Doorbell,
        fence: P::Fence,
        shape: Shape,
    ) -> Self {
        Self { ring, doorbell, fence, shape, consumer: Cell::new(0) }
    }

    #[cfg(test)]
    pub(crate) fn start_at(&mut self, consumer: u32) {
        self.consumer.set(consumer);
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

/// Returns whether the device wrote an entry with this last word in the current pass over the ring.
#[inline(always)]
const fn is_ours(last: u64, index: u32, log_size: u32) -> bool {
    Cqe::OPCODE.take_word(last) != CqeOpcode::Invalid.code() && owner_matches(Cqe::OWNER, last, index, log_size)
}

impl<P: Platform> bareverbs::CqRing for Mlx5CqRing<P> {
    type Reader<'a>
        = Mlx5CqReader<'a, P>
    where
        Self: 'a;

    #[inline(always)]
    fn reader(&self) -> Mlx5CqReader<'_, P> {
        Mlx5CqReader { source: self }
    }

    /// Writes the record first, then the register.
    fn arm(&mut self, events: u32, solicited_only: bool) {
        let consumer = self.consumer.get();
        self.ring.view().record(true, CqDoorbellRecord::arm_dword(events, solicited_only, consumer).to_be());
        self.fence.release();
        self.doorbell.write(0, CqArm::be_word(events, solicited_only, consumer, self.shape.cqn));
        if self.shape.combining {
            self.fence.flush();
        }
    }

    /// Removes the completions of a queue pair. The others move up.
    fn clean(&mut self, qpn: Qpn) {
        let (entries, log_size) = (1_u32 << self.shape.log_size, self.shape.log_size);
        let ring = self.ring.view();
        let consumer = self.consumer.get();
        let last = |index: u32| u64::from_be(ring.word(index.wrapping_mul(WORDS).wrapping_add(LAST as u32)));
        let mut produced = consumer;
        while produced.wrapping_sub(consumer) < entries && is_ours(last(produced), produced, log_size) {
            produced = produced.wrapping_add(1);
        }
        self.fence.acquire();
        let mut freed = 0_u32;
        let mut index = produced;
        while index != consumer {
            index = index.wrapping_sub(1);
            let value = last(index);
            if Cqe::QPN.take_word(value) == qpn.get() {
                freed = freed.wrapping_add(1);
            } else if freed != 0 {
                let target = index.wrapping_add(freed);
                let mut entry = [0; WORDS as usize];
                for (word, place) in (0_u32..).zip(&mut entry) {
                    *place = ring.word(index.wrapping_mul(WORDS).wrapping_add(word));
                }
                // The owner bit belongs to the place, not to the entry.
                if let Some(place) = entry.get_mut(LAST) {
                    *place = Cqe::OWNER.replace_word(value, target >> log_size).to_be();
                }
                ring.put(target, &entry);
            }
        }
        if freed != 0 {
            let consumer = consumer.wrapping_add(freed);
            self.consumer.set(consumer);
            self.fence.publish();
            ring.record(false, CqDoorbellRecord::CONSUMER_INDEX.place(consumer).to_be());
        }
    }
}

/// [`Mlx5CqRing`] while completions are taken. It is a reference, because a copy would not fit in CPU registers.
pub struct Mlx5CqReader<'a, P: Platform> {
    source: &'a Mlx5CqRing<P>,
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
        let first = self.source.consumer.get().wrapping_mul(WORDS);
        u64::from_be(self.source.ring.view().word(first.wrapping_add(word as u32)))
    }

    /// Returns a field of the entry.
    #[inline(always)]
    fn get<L>(&self, field: Field<L>) -> u32 {
        field.take_word(self.word(field.word()))
    }
}

impl<P: Platform> bareverbs::CqReader for Mlx5CqReader<'_, P> {
    #[inline(always)]
    fn peek(&mut self) -> Peek {
        let last = self.word(LAST);
        let (index, log_size) = (self.source.consumer.get(), self.source.shape.log_size);
        // One test finds a usual completion: an opcode that is 0 but for the bit of the receive, and the owner of this round.
        let usual = last as u32 ^ Cqe::OWNER.place(index >> log_size);
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

    #[inline(always)]
    fn advance(&mut self) {
        self.source.consumer.set(self.source.consumer.get().wrapping_add(1));
    }

    #[inline(always)]
    fn publish_consumer_index(&mut self) {
        self.source.fence.read_before_write();
        self.source.ring.view().record(false, CqDoorbellRecord::CONSUMER_INDEX.place(self.source.consumer.get()).to_be());
    }
}

#[cfg(test)]
mod tests;
