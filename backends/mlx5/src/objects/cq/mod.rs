//! Completion queues.

mod control;

use bareverbs::{
    AsyncEvent, Cqn, DmaFence, DmaMemory, Peek, Platform, Qpn, RawCompletion, RawKind, Rkey, UsualCompletion, WcData, WcStatus,
};
use bareverbs_mlx5_spec::{CQE, CmdOpcode, CqeOpcode, CqeSyndrome};
use heapless::Vec;

use crate::command::late::PendingDestroy;
use crate::dma::arena::Run;
use crate::driver::Driver;
use crate::error::Error;

/// The most completion queues at a time.
pub const MAX_CQS: usize = 128;

/// Byte of an entry that holds opcode and owner.
const OP_OWN: usize = 63;
/// Opcode and owner of an entry that the device has not written.
const NOT_WRITTEN: u8 = (CqeOpcode::Invalid.code() as u8) << 4 | 1;
/// Byte of an entry where the part begins that says what was completed.
const TAIL: usize = 32;

/// A completion queue of this backend.
#[derive(Debug)]
pub struct Cq {
    cqn: u32,
    ring: usize,
    mask: u32,
    log_size: u32,
    pub(crate) consumer: u32,
    record: usize,
    user_index: bool,
    run: Run,
    destroy: PendingDestroy,
}

impl Cq {
    /// Number.
    pub const fn cqn(&self) -> Cqn {
        Cqn::new(self.cqn)
    }

    /// A queue of 64 entries that no device knows.
    #[cfg(test)]
    pub(crate) const fn for_tests(run: Run) -> Self {
        Self {
            cqn: 7,
            ring: run.at(),
            mask: 63,
            log_size: 6,
            consumer: 0,
            record: 0,
            user_index: false,
            run,
            destroy: PendingDestroy::NONE,
        }
    }

    #[inline]
    const fn at(&self, index: u32) -> usize {
        self.ring + ((index & self.mask) as usize) * CQE
    }
}

/// The queues that exist: number, and above its 24 bits how many events the queue has given (2 bits), which goes into the
/// next arm.
#[derive(Debug, Default)]
pub(crate) struct CqTable {
    queues: Vec<u32, MAX_CQS>,
}

/// Where the count of events begins.
const EVENTS: u32 = 24;
/// Bit of a queue whose destruction has not answered.
const LEAVING: u32 = 1 << 26;

impl CqTable {
    fn find(&mut self, cqn: u32) -> Option<&mut u32> {
        self.queues.iter_mut().find(|queue| **queue & 0xff_ffff == cqn)
    }

    /// Events of a queue, 2 bits.
    fn events(&mut self, cqn: u32) -> u32 {
        self.find(cqn).map_or(0, |queue| *queue >> EVENTS & 3)
    }

    /// Adds a queue; [`Error::BadAnswer`] if its number is there already, or there is no room, which the caller looked at
    /// before.
    pub(crate) fn add(&mut self, cqn: u32) -> Result<(), Error> {
        // A queue whose destruction has not answered is gone if the device gives its number again.
        self.queues.retain(|queue| *queue != cqn | LEAVING);
        if self.queues.iter().any(|queue| queue & 0xff_ffff == cqn) || self.queues.push(cqn).is_err() {
            return Err(Error::BadAnswer { opcode: CmdOpcode::CreateCq.code() as u16, value: cqn });
        }
        Ok(())
    }

    /// Notes that a queue may be gone: its destruction has not answered.
    pub(crate) fn leave(&mut self, cqn: u32) {
        if let Some(queue) = self.find(cqn) {
            *queue = cqn | LEAVING;
        }
    }

    /// Removes a queue: the one that was leaving, or the one that was not.
    pub(crate) fn remove(&mut self, cqn: u32, leaving: bool) {
        self.queues.retain(|queue| queue & 0xff_ffff != cqn || (queue & LEAVING != 0) != leaving);
    }

    /// Number of queues.
    pub(crate) fn len(&self) -> u32 {
        self.queues.len() as u32
    }

    /// Counts an event of a queue; `None` if there is no such queue.
    pub(crate) fn event(&mut self, cqn: u32) -> Option<AsyncEvent> {
        let queue = self.find(cqn)?;
        *queue = queue.wrapping_add(1 << EVENTS) & ((4 << EVENTS) - 1);
        Some(AsyncEvent::Completion(Cqn::new(cqn)))
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

/// The second half of an entry, in host byte order, read apart.
///
/// | word | bytes | high half | low half |
/// |---|---|---|---|
/// | 0 | 32 | `srqn_uidx` | immediate, key |
/// | 1 | 40 | – | `byte_cnt` |
/// | 2 | 48 | – | vendor code and syndrome in the two low bytes, of an error |
/// | 3 | 56 | send opcode, `qpn` | `wqe_counter`, signature, `op_own` |
#[inline(always)]
fn parse(words: [u64; 4], user_index: bool) -> Result<RawCompletion, u8> {
    let [first, second, third, last] = words.map(u64::from_be);
    let opcode = (last >> 4) as u8 & 0xf;
    let mut completion = RawCompletion {
        qpn: Qpn::new((last >> 32) as u32 & 0xff_ffff),
        cookie: user_index.then_some((first >> 32) as u32 & 0xff_ffff),
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

impl<P: Platform, U: ?Sized> Driver<P, U> {
    /// Looks at the next completion, in the order of [`Self::poll_cq`].
    #[inline(always)]
    pub(crate) fn peek(&self, cq: &Cq) -> Peek {
        let at = cq.at(cq.consumer);
        let Ok(op_own) = self.machine.memory.read_u8(at + OP_OWN) else { return Peek::Other };
        if !is_ours(op_own, cq.consumer, cq.log_size) {
            return Peek::Empty;
        }
        self.machine.fence.acquire();
        let Ok(words) = self.machine.memory.load::<4>(at + TAIL) else { return Peek::Other };
        let [first, second, _, last] = words.map(u64::from_be);
        let opcode = (last >> 4) as u32 & 0xf;
        let recv = opcode == CqeOpcode::RespSend.code();
        if !cq.user_index || !(recv || opcode == CqeOpcode::Req.code()) {
            return Peek::Other;
        }
        Peek::Usual(UsualCompletion {
            qpn: Qpn::new((last >> 32) as u32 & 0xff_ffff),
            cookie: (first >> 32) as u32 & 0xff_ffff,
            recv,
            index: (last >> 16) as u16,
            byte_len: second as u32,
        })
    }

    /// Takes the next completion: owner test, acquire, one copy, and only the copy is parsed.
    #[inline(always)]
    pub(crate) fn poll_cq(&mut self, cq: &mut Cq) -> Result<Option<RawCompletion>, Error> {
        let at = cq.at(cq.consumer);
        let op_own = self.machine.memory.read_u8(at + OP_OWN)?;
        if !is_ours(op_own, cq.consumer, cq.log_size) {
            return Ok(None);
        }
        self.machine.fence.acquire();
        let words = self.machine.memory.load(at + TAIL)?;
        cq.consumer = cq.consumer.wrapping_add(1);
        match parse(words, cq.user_index) {
            Ok(completion) => Ok(Some(completion)),
            Err(opcode) => Err(Error::BadCompletion { cqn: cq.cqn, opcode }),
        }
    }

    /// Tells the device how far completions were taken, so that it may write those entries again.
    #[inline(always)]
    pub(crate) fn update_consumer_index(&mut self, cq: &Cq) -> Result<(), Error> {
        self.machine.fence.release();
        self.machine.memory.store_u32(cq.record, (cq.consumer & 0xff_ffff).to_be())?;
        Ok(())
    }

    /// Asks for an event.
    pub(crate) fn arm(&mut self, cq: &Cq, solicited_only: bool) -> Result<(), Error> {
        let high = self.cqs.events(cq.cqn) << 28 | u32::from(solicited_only) << 24 | cq.consumer & 0xff_ffff;
        self.uar.arm_cq(&mut self.machine, cq.record, high, cq.cqn)
    }

    /// Takes every completion of a queue pair out of a queue; the others move up and keep their order.
    pub(crate) fn clean(&mut self, cq: &mut Cq, qpn: u32) -> Result<(), Error> {
        let memory = &mut self.machine.memory;
        let mut produced = cq.consumer;
        while produced.wrapping_sub(cq.consumer) <= cq.mask
            && is_ours(memory.read_u8(cq.at(produced) + OP_OWN)?, produced, cq.log_size)
        {
            produced = produced.wrapping_add(1);
        }
        self.machine.fence.acquire();
        let mut freed = 0u32;
        let mut index = produced;
        while index != cq.consumer {
            index = index.wrapping_sub(1);
            let mut entry: [u64; 8] = memory.load(cq.at(index))?;
            let last = entry.last_mut().map(|last| (u64::from_be(*last), last));
            let Some((value, last)) = last else { break };
            if (value >> 32) as u32 & 0xff_ffff == qpn {
                freed += 1;
            } else if freed != 0 {
                let target = index.wrapping_add(freed);
                // The owner bit belongs to the place, not to the entry.
                *last = (value & !1 | u64::from(target >> cq.log_size & 1)).to_be();
                memory.store(cq.at(target), &entry)?;
            }
        }
        if freed != 0 {
            cq.consumer = cq.consumer.wrapping_add(freed);
            self.update_consumer_index(cq)?;
        }
        Ok(())
    }
}

/// Whether an entry was written by the device in this round.
#[inline]
const fn is_ours(op_own: u8, index: u32, log_size: u32) -> bool {
    op_own >> 4 != CqeOpcode::Invalid as u8 && (op_own & 1) as u32 == (index >> log_size) & 1
}

#[cfg(test)]
mod tests;
