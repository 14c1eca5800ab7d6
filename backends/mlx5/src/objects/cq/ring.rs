//! The ring of one completion queue: completions as the device writes them.
//!
//! | word | bytes | high half | low half |
//! |---|---|---|---|
//! | 4 | 32 | `srqn_uidx` | immediate, key |
//! | 5 | 40 | – | `byte_cnt` |
//! | 6 | 48 | – | vendor code and syndrome in the two low bytes, of an error |
//! | 7 | 56 | send opcode, `qpn` | `wqe_counter`, signature, `op_own` |

use core::cell::Cell;

use crate::log::format_as;
use bareverbs::{
    DmaFence, DmaMemory, DmaRing, Doorbell, Look, Platform, Qpn, RawCompletion, RawKind, Registers, RingView, Rkey, WcData,
    WcStatus,
};
use bareverbs_mlx5_spec::{CQE, CqeOpcode, CqeSyndrome};

/// Words of an entry.
const WORDS: u32 = (CQE / 8) as u32;

/// The bit that tells the opcode of a receive from that of a send, where both are usual.
const RECV: u32 = CqeOpcode::RespSend as u32;
const _: () = assert!(CqeOpcode::Req as u32 == 0 && RECV == 2);

/// The ring of one completion queue.
pub struct CqRing<P: Platform> {
    ring: <P::Memory as DmaMemory>::Ring,
    doorbell: <P::Registers as Registers>::Doorbell,
    fence: P::Fence,
    shape: Shape,
    consumer: Cell<u32>,
}

format_as!(
    [P: Platform] CqRing<P>,
    "CqRing({:x}, consumer index {})",
    |this| this.shape.cqn, this.consumer.get(),
);

/// What never changes of a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) cqn: u32,
    pub(crate) log_size: u32,
    /// Whether completions carry the user index of their queue pair.
    pub(crate) user_index: bool,
    /// Whether the page of the doorbell has to be flushed.
    pub(crate) combining: bool,
}

impl<P: Platform> CqRing<P> {
    /// An empty queue.
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

/// What an error entry means, as rdma-core has it.
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

/// The second half of an entry, read apart; its opcode if it is no completion.
fn parse(words: [u64; 4]) -> Result<RawCompletion, u8> {
    let [first, second, third, last] = words.map(u64::from_be);
    let opcode = (last >> 4) as u8 & 0xf;
    let mut completion = RawCompletion {
        qpn: Qpn::new((last >> 32) as u32 & 0xff_ffff),
        kind: RawKind::Recv,
        index: (last >> 16) as u16,
        status: WcStatus::Success,
        vendor_err: 0,
        byte_len: second as u32,
        data: WcData::None,
    };
    let word = first as u32;
    match CqeOpcode::from_code(u32::from(opcode)) {
        Some(CqeOpcode::Req) => completion.kind = RawKind::Send,
        Some(CqeOpcode::RespSend) => {}
        Some(CqeOpcode::RespSendImm) => completion.data = WcData::Imm(word.to_be_bytes()),
        Some(CqeOpcode::RespSendInv) => completion.data = WcData::Invalidated(Rkey::new(word)),
        Some(CqeOpcode::RespWrImm) => {
            completion.kind = RawKind::RecvRdmaWithImm;
            completion.data = WcData::Imm(word.to_be_bytes());
        }
        Some(kind @ (CqeOpcode::ReqErr | CqeOpcode::RespErr)) => {
            if kind == CqeOpcode::ReqErr {
                completion.kind = RawKind::Send;
            }
            completion.status = status(third as u32 & 0xff);
            completion.vendor_err = (third >> 8) as u8;
            completion.byte_len = 0;
        }
        _ => return Err(opcode),
    }
    Ok(completion)
}

/// Whether an entry was written by the device in this round.
#[inline(always)]
const fn is_ours(op_own: u8, index: u32, log_size: u32) -> bool {
    op_own >> 4 != CqeOpcode::Invalid as u8 && (op_own & 1) as u32 == (index >> log_size) & 1
}

impl<P: Platform> bareverbs::CqRing for CqRing<P> {
    type Reader<'a>
        = CqReader<'a, P>
    where
        Self: 'a;

    #[inline(always)]
    fn reader(&self) -> CqReader<'_, P> {
        CqReader { source: self }
    }

    /// The record first, then the register.
    fn arm(&mut self, events: u32, solicited_only: bool) {
        let high = (events & 3) << 28 | u32::from(solicited_only) << 24 | self.consumer.get() & 0xff_ffff;
        self.ring.view().record(true, high.to_be());
        self.fence.release();
        self.doorbell.write(0, (u64::from(high) << 32 | u64::from(self.shape.cqn)).to_be());
        if self.shape.combining {
            self.fence.flush();
        }
    }

    /// The other completions move up.
    fn clean(&mut self, qpn: Qpn) {
        let (entries, log_size) = (1_u32 << self.shape.log_size, self.shape.log_size);
        let ring = self.ring.view();
        let consumer = self.consumer.get();
        let last = |index: u32| index.wrapping_mul(WORDS).wrapping_add(WORDS - 1);
        let mut produced = consumer;
        while produced.wrapping_sub(consumer) < entries
            && is_ours(u64::from_be(ring.word(last(produced))) as u8, produced, log_size)
        {
            produced = produced.wrapping_add(1);
        }
        self.fence.acquire();
        let mut freed = 0_u32;
        let mut index = produced;
        while index != consumer {
            index = index.wrapping_sub(1);
            let value = u64::from_be(ring.word(last(index)));
            if (value >> 32) as u32 & 0xff_ffff == qpn.get() {
                freed = freed.wrapping_add(1);
            } else if freed != 0 {
                let target = index.wrapping_add(freed);
                let mut entry = [0; WORDS as usize];
                for (word, place) in (0_u32..).zip(&mut entry) {
                    *place = ring.word(index.wrapping_mul(WORDS).wrapping_add(word));
                }
                // The owner bit belongs to the place, not to the entry.
                if let Some(place) = entry.last_mut() {
                    *place = (value & !1 | u64::from(target >> log_size & 1)).to_be();
                }
                ring.put(target, &entry);
            }
        }
        if freed != 0 {
            let consumer = consumer.wrapping_add(freed);
            self.consumer.set(consumer);
            self.fence.publish();
            ring.record(false, (consumer & 0xff_ffff).to_be());
        }
    }
}

/// [`CqRing`] while completions are taken. Everything is read where it lies: there are not registers enough for a copy.
pub struct CqReader<'a, P: Platform> {
    source: &'a CqRing<P>,
}

format_as!([P: Platform] CqReader<'_, P>, "CqReader({:x})", |this| this.source.shape.cqn);

impl<P: Platform> Clone for CqReader<'_, P> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for CqReader<'_, P> {}

impl<P: Platform> CqReader<'_, P> {
    /// Word `word` of the entry, in host byte order.
    #[inline(always)]
    fn word(&self, word: u32) -> u64 {
        u64::from_be(self.source.ring.view().word(self.source.consumer.get().wrapping_mul(WORDS).wrapping_add(word)))
    }
}

impl<P: Platform> bareverbs::CqReader for CqReader<'_, P> {
    #[inline(always)]
    fn look(&mut self) -> Look {
        // Owner, opcode, number and counter lie in one word, so one load tells all.
        let last = self.word(7);
        let (index, log_size) = (self.source.consumer.get(), self.source.shape.log_size);
        // One test finds a usual completion: an opcode that is 0 but for the bit of the receive, and the owner of this round.
        let usual = last as u32 ^ (index >> log_size) & 1;
        if usual & (0xd << 4 | 1) == 0 {
            self.source.fence.acquire();
            let qpn = Qpn::new((last >> 32) as u32 & 0xff_ffff);
            return Look::Usual { qpn, recv: usual & RECV << 4 != 0, index: (last >> 16) as u16 };
        }
        if !is_ours(last as u8, index, log_size) {
            return Look::Empty;
        }
        self.source.fence.acquire();
        Look::Other
    }

    #[inline(always)]
    fn cookie(&self) -> Option<u32> {
        if self.source.shape.user_index { Some((self.word(4) >> 32) as u32 & 0xff_ffff) } else { None }
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        self.word(5) as u32
    }

    fn parse(&self) -> Result<RawCompletion, u8> {
        parse([4, 5, 6, 7].map(|word| self.word(word).to_be()))
    }

    #[inline(always)]
    fn skip(&mut self) {
        self.source.consumer.set(self.source.consumer.get().wrapping_add(1));
    }

    #[inline(always)]
    fn close(&mut self) {
        self.source.fence.read_before_write();
        self.source.ring.view().record(false, (self.source.consumer.get() & 0xff_ffff).to_be());
    }
}

#[cfg(test)]
mod tests;
