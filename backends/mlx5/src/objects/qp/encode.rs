//! Requests as the device reads them, and the doorbells for them.
//!
//! Each store is a group of whole words computed in registers; a group never leaves its 64-byte block, so that only whole
//! groups meet the end of the ring.

use bareverbs::{Access, Bind, CheckedOp, DmaMemory, MwType, Payload, Platform, Remote, SendFlags, Sge, UsualOp};
use bareverbs_mlx5_spec::{
    DS_UNIT, INVALID_LKEY, MKEY_ANY_QPN, Mkc, WQEBB, WqeCtrlSeg, WqeInlineSeg, WqeOpcode, WqeUmrCtrlSeg, ce, fm, mkey_mask,
};

use super::Qp;
use crate::dma::uar::{Short, Uar};
use crate::driver::Driver;
use crate::error::{Error, Feature};

/// The longest SGE, and the longest window: what a KLM and a data segment can say.
const LONGEST: u32 = 1 << 31;
/// The most 16-byte units of a request.
const MOST_UNITS: u32 = 63;
/// The longest inline payload of an RDMA WRITE that [`Driver::encode_short`] writes.
pub(crate) const SHORT_INLINE: usize = 44;
/// Bytes of a bind's translation area, in octowords: one entry, filled up to a block.
const KLM_OCTOWORDS: u32 = 4;

/// Two dwords as they lie in memory.
#[inline]
const fn pair(high: u32, low: u32) -> u64 {
    ((high as u64) << 32 | low as u64).to_be()
}

/// Eight bytes of the payload as they lie in memory, zeros after its end.
#[inline(always)]
fn word_of(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or_default();
    if let Some(chunk) = rest.first_chunk() {
        return u64::from_ne_bytes(*chunk);
    }
    match bytes.last_chunk() {
        _ if rest.is_empty() => 0,
        // The last eight bytes without those before `at`.
        Some(last) => (u64::from_le_bytes(*last) >> (64 - 8 * rest.len())).to_le(),
        None => short_word(rest),
    }
}

/// The same of a payload of fewer than eight bytes.
#[inline(never)]
fn short_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_ne_bytes(word)
}

/// First word of an inline segment: its head and four bytes of the payload.
#[inline(always)]
fn inline_head(bytes: &[u8]) -> u64 {
    let head = WqeInlineSeg::INLINE.place(1) | WqeInlineSeg::BYTE_COUNT.place(bytes.len() as u32);
    let start = match bytes.first_chunk() {
        Some(start) => u32::from_be_bytes(*start),
        None => (u64::from_be(short_word(bytes)) >> 32) as u32,
    };
    pair(head, start)
}

/// A data segment. 2^31 bytes are written as 0: bit 31 says inline.
#[inline]
const fn data(sge: &Sge) -> [u64; 2] {
    [pair(sge.length & (LONGEST - 1), sge.lkey.get()), sge.addr.to_be()]
}

#[inline]
const fn remote_address(remote: &Remote) -> [u64; 2] {
    [remote.addr.to_be(), pair(remote.rkey.get(), 0)]
}

/// 16-byte units of a payload; an empty SGE takes none.
#[inline(always)]
fn payload_units(payload: &Payload<'_>) -> u32 {
    match payload {
        Payload::Sges([sge]) => u32::from(sge.length != 0),
        Payload::Sges(sges) => sges.iter().filter(|sge| sge.length != 0).count() as u32,
        Payload::Inline([]) => 0,
        Payload::Inline(bytes) => (bytes.len() + 4).div_ceil(DS_UNIT) as u32,
    }
}

/// 16-byte units of a request.
#[inline(always)]
fn units(op: &CheckedOp<'_>) -> u32 {
    match op {
        CheckedOp::Send(payload) | CheckedOp::SendWithImm(payload, _) | CheckedOp::SendWithInv(payload, _) => {
            1 + payload_units(payload)
        }
        CheckedOp::Write(payload, _) | CheckedOp::WriteWithImm(payload, _, _) => 2 + payload_units(payload),
        CheckedOp::Read(sges, _) => 2 + payload_units(&Payload::Sges(sges)),
        CheckedOp::CompareSwap(..) | CheckedOp::FetchAdd(..) => 4,
        CheckedOp::BindMw(Bind { length: 0, .. }) | CheckedOp::LocalInv(_) => 8,
        CheckedOp::BindMw(_) => 12,
    }
}

/// Blocks of a request.
#[inline(always)]
pub(crate) fn send_blocks(op: &CheckedOp<'_>) -> u32 {
    units(op).div_ceil((WQEBB / DS_UNIT) as u32)
}

/// Where a request is being written.
struct Place<'a, M> {
    memory: &'a mut M,
    ring: usize,
    mask: usize,
    /// Byte offset in the ring of the next group.
    at: usize,
}

impl<M: DmaMemory> Place<'_, M> {
    /// Stores a group of words that does not cross a block.
    #[inline]
    fn put<const N: usize>(&mut self, words: &[u64; N]) -> Result<(), Error> {
        self.memory.store(self.ring + (self.at & self.mask), words)?;
        self.at = self.at.wrapping_add(8 * N);
        Ok(())
    }

    /// Stores the data segments of the SGEs that are not empty.
    #[inline]
    fn put_sges(&mut self, sges: &[Sge]) -> Result<(), Error> {
        for sge in sges.iter().filter(|sge| sge.length != 0) {
            self.put(&data(sge))?;
        }
        Ok(())
    }

    /// Stores an inline segment.
    #[inline]
    fn put_inline(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.put(&[inline_head(bytes), word_of(bytes, 4)])?;
        for at in (12..bytes.len()).step_by(DS_UNIT) {
            self.put(&[word_of(bytes, at), word_of(bytes, at + 8)])?;
        }
        Ok(())
    }
}

/// Refuses an SGE that no data segment can describe.
#[inline]
fn check(sges: &[Sge]) -> Result<(), Error> {
    match sges.iter().find(|sge| sge.length > LONGEST) {
        Some(sge) => Err(Error::LimitExceeded { requested: u64::from(sge.length), limit: u64::from(LONGEST) }),
        None => Ok(()),
    }
}

/// The two words of a control segment: opcode and index, number and units, flags, and what the opcode has in the last dword.
#[inline]
const fn control(opcode: WqeOpcode, at: u32, qpn_ds: u32, flags: u32, last: u32) -> [u64; 2] {
    [pair(WqeCtrlSeg::WQE_INDEX.place(at) | opcode as u32, qpn_ds), pair(flags, last)]
}

/// Blocks of a UMR that binds a window: control and UMR control; key context; translation.
fn bind_blocks(bind: &Bind, qpn: u32, control: [u64; 2]) -> ([u64; 8], [u64; 8], [u64; 8]) {
    let type2 = bind.kind == MwType::Type2;
    let flag = |flag, bits| if bind.access.contains(flag) { bits } else { 0 };
    let mut umr = WqeUmrCtrlSeg::INLINE.place(1) | WqeUmrCtrlSeg::TRANSLATION_OFFSET_EN.place(1);
    let mut mask = mkey_mask::FREE | mkey_mask::KEY;
    if type2 {
        mask |= mkey_mask::QPN;
    }
    let tag = bind.new.get() & 0xff;
    let mut context = [0u64; 8];
    let mut translation = [0u64; 8];
    let mut octowords = 0;
    if bind.length == 0 {
        umr |= WqeUmrCtrlSeg::CHECK_QPN.place(u32::from(type2));
        context[0] = pair(Mkc::FREE.place(1), Mkc::QPN.place(MKEY_ANY_QPN) | tag);
    } else {
        umr |= WqeUmrCtrlSeg::CHECK_FREE.place(u32::from(type2));
        octowords = KLM_OCTOWORDS;
        mask |= mkey_mask::LEN | mkey_mask::START_ADDR | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW | mkey_mask::A;
        let rights = flag(Access::LOCAL_WRITE, Mkc::LW.place(1))
            | flag(Access::REMOTE_READ, Mkc::RR.place(1))
            | flag(Access::REMOTE_WRITE, Mkc::RW.place(1))
            | flag(Access::REMOTE_ATOMIC, Mkc::A.place(1));
        let owner = if type2 { qpn } else { MKEY_ANY_QPN };
        let start = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        context = [pair(rights, Mkc::QPN.place(owner) | tag), 0, start.to_be(), bind.length.to_be(), 0, 0, 0, 0];
        translation[0] = pair(bind.length as u32, bind.lkey.get());
        translation[1] = bind.addr.to_be();
    }
    let [first, second] = control;
    let umr_control = [pair(umr, WqeUmrCtrlSeg::KLM_OCTOWORDS.place(octowords)), mask.to_be()];
    ([first, second, umr_control[0], umr_control[1], 0, 0, 0, 0], context, translation)
}

/// The same for an invalidation: the window is free, its tag is 0, and it must belong to this queue pair.
fn invalidate_blocks(control: [u64; 2]) -> ([u64; 8], [u64; 8]) {
    let umr =
        WqeUmrCtrlSeg::INLINE.place(1) | WqeUmrCtrlSeg::TRANSLATION_OFFSET_EN.place(1) | WqeUmrCtrlSeg::CHECK_QPN.place(1);
    let mask = mkey_mask::FREE | mkey_mask::KEY | mkey_mask::QPN;
    let [first, second] = control;
    let context = [pair(Mkc::FREE.place(1), Mkc::QPN.place(MKEY_ANY_QPN)), 0, 0, 0, 0, 0, 0, 0];
    ([first, second, pair(umr, 0), mask.to_be(), 0, 0, 0, 0], context)
}

/// 16-byte units of an RDMA WRITE with `len` bytes inline.
#[inline(always)]
const fn short_inline_units(len: usize) -> u32 {
    2 + (len as u32 + 4).div_ceil(DS_UNIT as u32)
}

/// Blocks of an RDMA WRITE with `len` bytes inline, [`SHORT_INLINE`] at most.
#[inline(always)]
pub(crate) const fn short_inline_blocks(len: usize) -> u16 {
    if short_inline_units(len) > 4 { 2 } else { 1 }
}

/// The flags of a control segment.
#[inline]
fn control_flags(fence: u32, flags: SendFlags, signaled: bool) -> u32 {
    // The verbs' fence waits for more than the one that a bind leaves behind for the request after it.
    let fence = if flags.contains(SendFlags::FENCE) { fm::FENCE } else { fence };
    WqeCtrlSeg::FM.place(fence)
        | WqeCtrlSeg::CE.place(if signaled { ce::ALWAYS } else { ce::ERROR_ONLY })
        | WqeCtrlSeg::SE.place(u32::from(flags.contains(SendFlags::SOLICITED)))
}

impl Qp {
    /// The one request that waits for its doorbell at block `end`, if it is the only one and has `most` bytes at most.
    #[inline(never)]
    fn alone(&self, end: u32, most: usize) -> Option<Short> {
        let units = WqeCtrlSeg::DS.take(u64::from_be(self.last_control) as u32);
        let blocks = units.div_ceil((WQEBB / DS_UNIT) as u32);
        let len = blocks as usize * WQEBB;
        let start = end.wrapping_sub(blocks);
        let alone = start == self.committed;
        let at = (start as usize).wrapping_mul(WQEBB);
        (alone && len != 0 && len <= most).then_some(Short { ring: self.sq_ring, mask: self.sq_mask, at, len })
    }
}

impl<P: Platform, U: ?Sized> Driver<P, U> {
    /// Writes a request of one block with one or two data segments in a single store.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "in registers they cost nothing, in a structure they cost a copy")]
    pub(crate) fn encode_usual(
        &mut self,
        qp: &mut Qp,
        at: u32,
        op: UsualOp,
        sges: &[Sge],
        remote: Remote,
        flags: SendFlags,
        signaled: bool,
    ) -> Result<(), Error> {
        let place = qp.sq_ring + ((at as usize).wrapping_mul(WQEBB) & qp.sq_mask);
        let bits = control_flags(qp.fence, flags, signaled);
        let opcode = match op {
            UsualOp::Send => WqeOpcode::Send,
            UsualOp::Write => WqeOpcode::RdmaWrite,
            UsualOp::Read => WqeOpcode::RdmaRead,
        };
        let remote_units = if op == UsualOp::Send { 0 } else { 1 };
        let [first, second] = control(opcode, at, qp.qpn_ds | (1 + remote_units + sges.len() as u32), bits, 0);
        let [addr, key] = remote_address(&remote);
        let memory = &mut self.machine.memory;
        match (sges, op) {
            ([sge], UsualOp::Send) => {
                let [head, start] = data(sge);
                memory.store(place, &[first, second, head, start])?;
            }
            ([sge], _) => {
                let [head, start] = data(sge);
                memory.store(place, &[first, second, addr, key, head, start])?;
            }
            ([one, two], UsualOp::Send) => {
                let ([head, start], [head2, start2]) = (data(one), data(two));
                memory.store(place, &[first, second, head, start, head2, start2])?;
            }
            ([one, two], _) => {
                let ([head, start], [head2, start2]) = (data(one), data(two));
                memory.store(place, &[first, second, addr, key, head, start, head2, start2])?;
            }
            _ => return Err(Error::LimitExceeded { requested: sges.len() as u64, limit: 2 }),
        }
        qp.fence = fm::NONE;
        qp.last_control = first;
        Ok(())
    }

    /// Writes an RDMA WRITE whose inline payload ends in the first unit of the second block, or before, in two stores at most.
    #[inline(always)]
    pub(crate) fn encode_short_inline(
        &mut self,
        qp: &mut Qp,
        at: u32,
        bytes: &[u8],
        remote: Remote,
        flags: SendFlags,
        signaled: bool,
    ) -> Result<(), Error> {
        let units = short_inline_units(bytes.len());
        let bits = control_flags(qp.fence, flags, signaled);
        let [first, second] = control(WqeOpcode::RdmaWrite, at, qp.qpn_ds | units, bits, 0);
        let [addr, key] = remote_address(&remote);
        let offset = (at as usize).wrapping_mul(WQEBB);
        // The whole first block, whatever of it the payload fills: what is behind its end is not looked at.
        let words = [first, second, addr, key, inline_head(bytes), word_of(bytes, 4), word_of(bytes, 12), word_of(bytes, 20)];
        self.machine.memory.store(qp.sq_ring + (offset & qp.sq_mask), &words)?;
        let blocks = u32::from(short_inline_blocks(bytes.len()));
        if blocks == 2 {
            let words = [word_of(bytes, 28), word_of(bytes, 36)];
            self.machine.memory.store(qp.sq_ring + (offset.wrapping_add(WQEBB) & qp.sq_mask), &words)?;
        }
        qp.fence = fm::NONE;
        qp.last_control = first;
        Ok(())
    }

    /// Writes a send request of any kind at block `at`.
    pub(crate) fn encode_send(
        &mut self,
        qp: &mut Qp,
        at: u32,
        op: &CheckedOp<'_>,
        flags: SendFlags,
        signaled: bool,
    ) -> Result<(), Error> {
        let units = units(op);
        let blocks = units.div_ceil((WQEBB / DS_UNIT) as u32);
        if units > MOST_UNITS {
            return Err(Error::LimitExceeded { requested: u64::from(units), limit: u64::from(MOST_UNITS) });
        }
        if qp.sq_mask == 0 || blocks as usize * WQEBB > qp.sq_mask + 1 {
            return Err(Error::Unsupported(Feature::Ring));
        }
        let bits = control_flags(qp.fence, flags, signaled);
        let qpn_ds = qp.qpn_ds | units;
        let memory = &mut self.machine.memory;
        let mut place = Place { memory, ring: qp.sq_ring, mask: qp.sq_mask, at: (at as usize).wrapping_mul(WQEBB) };
        let segment = |opcode, last| control(opcode, at, qpn_ds, bits, last);
        let mut next_fence = fm::NONE;
        let first = match *op {
            CheckedOp::Write(Payload::Sges(sges), ref remote) => {
                put_remote(&mut place, segment(WqeOpcode::RdmaWrite, 0), remote, sges)?
            }
            CheckedOp::Read(sges, ref remote) => put_remote(&mut place, segment(WqeOpcode::RdmaRead, 0), remote, sges)?,
            CheckedOp::WriteWithImm(Payload::Sges(sges), ref remote, imm) => {
                put_remote(&mut place, segment(WqeOpcode::RdmaWriteImm, u32::from_be_bytes(imm)), remote, sges)?
            }
            CheckedOp::Write(Payload::Inline(bytes), ref remote) => {
                put_remote_inline(&mut place, segment(WqeOpcode::RdmaWrite, 0), remote, bytes)?
            }
            CheckedOp::WriteWithImm(Payload::Inline(bytes), ref remote, imm) => {
                put_remote_inline(&mut place, segment(WqeOpcode::RdmaWriteImm, u32::from_be_bytes(imm)), remote, bytes)?
            }
            CheckedOp::Send(ref payload) => put_send(&mut place, segment(WqeOpcode::Send, 0), payload)?,
            CheckedOp::SendWithImm(ref payload, imm) => {
                put_send(&mut place, segment(WqeOpcode::SendImm, u32::from_be_bytes(imm)), payload)?
            }
            CheckedOp::SendWithInv(ref payload, rkey) => {
                put_send(&mut place, segment(WqeOpcode::SendInval, rkey.get()), payload)?
            }
            CheckedOp::CompareSwap(ref sge, ref remote, compare, swap) => {
                put_atomic(&mut place, segment(WqeOpcode::AtomicCs, 0), sge, remote, swap, compare)?
            }
            CheckedOp::FetchAdd(ref sge, ref remote, add) => {
                put_atomic(&mut place, segment(WqeOpcode::AtomicFa, 0), sge, remote, add, 0)?
            }
            CheckedOp::BindMw(ref bind) => {
                if bind.length > u64::from(LONGEST) {
                    return Err(Error::LimitExceeded { requested: bind.length, limit: u64::from(LONGEST) });
                }
                next_fence = fm::INITIATOR_SMALL_FENCE;
                let segment = segment(WqeOpcode::Umr, bind.old.get());
                let (first, context, translation) = bind_blocks(bind, qp.qpn, segment);
                place.put(&first)?;
                place.put(&context)?;
                if bind.length != 0 {
                    place.put(&translation)?;
                }
                segment[0]
            }
            CheckedOp::LocalInv(rkey) => {
                next_fence = fm::INITIATOR_SMALL_FENCE;
                let segment = segment(WqeOpcode::Umr, rkey.get());
                let (first, context) = invalidate_blocks(segment);
                place.put(&first)?;
                place.put(&context)?;
                segment[0]
            }
        };
        qp.fence = next_fence;
        qp.last_control = first;
        Ok(())
    }

    /// Tells the device of every send before block `end`.
    #[inline(always)]
    pub(crate) fn commit_send(&mut self, qp: &mut Qp, end: u32) -> Result<(), Error> {
        let short = if self.uar.blue_flame() == 0 { None } else { qp.alone(end, self.uar.blue_flame()) };
        qp.committed = end;
        self.uar.ring_send(&mut self.machine, qp.record, end, qp.last_control, short)
    }

    /// Writes a receive at entry `at`.
    #[inline]
    pub(crate) fn encode_recv(&mut self, qp: &Qp, at: u32, sges: &[Sge]) -> Result<(), Error> {
        check(sges)?;
        let entry = qp.rq_units as usize * DS_UNIT;
        let start = qp.rq_ring + (at & qp.rq_mask) as usize * entry;
        if entry == 0 {
            return Err(Error::Unsupported(Feature::Ring));
        }
        let mut offset = 0;
        for sge in sges.iter().filter(|sge| sge.length != 0) {
            if offset == entry {
                return Err(Error::LimitExceeded { requested: sges.len() as u64, limit: u64::from(qp.rq_units) });
            }
            self.machine.memory.store(start + offset, &data(sge))?;
            offset += DS_UNIT;
        }
        if offset < entry {
            self.machine.memory.store(start + offset, &[pair(0, INVALID_LKEY), 0])?;
        }
        Ok(())
    }

    /// Tells the device of every receive before entry `end`.
    #[inline]
    pub(crate) fn commit_recv(&mut self, qp: &Qp, end: u32) -> Result<(), Error> {
        Uar::ring_receive(&mut self.machine, qp.record, end)
    }
}

/// A request with a remote address and SGEs; gives the first word of the control segment.
#[inline]
fn put_remote<M: DmaMemory>(place: &mut Place<'_, M>, control: [u64; 2], remote: &Remote, sges: &[Sge]) -> Result<u64, Error> {
    let [first, second] = control;
    let [addr, key] = remote_address(remote);
    check(sges)?;
    place.put(&[first, second, addr, key])?;
    place.put_sges(sges)?;
    Ok(first)
}

#[inline]
fn put_remote_inline<M: DmaMemory>(
    place: &mut Place<'_, M>,
    control: [u64; 2],
    remote: &Remote,
    bytes: &[u8],
) -> Result<u64, Error> {
    let [first, second] = control;
    let [addr, key] = remote_address(remote);
    place.put(&[first, second, addr, key])?;
    place.put_inline(bytes)?;
    Ok(first)
}

#[inline]
fn put_send<M: DmaMemory>(place: &mut Place<'_, M>, control: [u64; 2], payload: &Payload<'_>) -> Result<u64, Error> {
    let [first, second] = control;
    match *payload {
        Payload::Sges([sge]) if sge.length != 0 && sge.length <= LONGEST => {
            let [head, at] = data(sge);
            place.put(&[first, second, head, at])?;
        }
        Payload::Sges(sges) => {
            check(sges)?;
            place.put(&control)?;
            place.put_sges(sges)?;
        }
        Payload::Inline(bytes) => {
            place.put(&control)?;
            place.put_inline(bytes)?;
        }
    }
    Ok(first)
}

#[inline]
fn put_atomic<M: DmaMemory>(
    place: &mut Place<'_, M>,
    control: [u64; 2],
    sge: &Sge,
    remote: &Remote,
    swap_add: u64,
    compare: u64,
) -> Result<u64, Error> {
    let [first, second] = control;
    let [addr, key] = remote_address(remote);
    let [head, at] = data(sge);
    place.put(&[first, second, addr, key, swap_add.to_be(), compare.to_be(), head, at])?;
    Ok(first)
}

#[cfg(test)]
mod tests;
