//! The send ring of one queue pair: WQEs and their doorbell.
//!
//! Each store is a whole word computed in CPU registers. Stores that belong together go to one 64-byte block, so that only
//! whole blocks meet the end of the ring.

use bareverbs::backend::{SendRing, SendWriter};
use core::cell::Cell;

use bareverbs::backend::{AtomicOp, AtomicOpcode, BindOp, DataOp, DataOpcode, DatagramOp, RegOp};
use bareverbs::platform::{DmaFence, DmaMemory, DmaRing, Platform, Registers, RingView};
use bareverbs::{MaskedOp, Payload, Remote, Rkey, SendFlags, Sge, Srqn};
use bareverbs_mlx5_spec::{DS_UNIT, WQEBB, WqeAtomicSeg, WqeCtrlSeg, WqeKlm, WqeOpcode, WqeXrcSeg, be_word, extended_atomic};

use super::segment::{
    BIND_BLOCKS, UNBIND_BLOCKS, bind_blocks, control_flags, data, datagram, inline_head, inline_units, invalidation, last_word,
    list_octowords, masked_operands, registration_head, remote_address, word_of,
};
use crate::dma::uar::SendDoorbell;
use crate::log::format_as;

/// 16-byte units of a block.
const UNITS: u32 = (WQEBB / DS_UNIT) as u32;
/// Units before the payload of a datagram: control segment and datagram segment, a block.
const DATAGRAM_HEAD: u32 = 4;
/// Units of a masked atomic beside its operands: control, remote address, data.
const MASKED_UNITS: u32 = 3;
/// Blocks of a registration before its list: control and UMR control; key context.
const REG_HEAD_BLOCKS: u32 = 2;
const WORDS: u32 = (WQEBB / 8) as u32;
/// Whether the first block of a request with SGEs is written at once, by code for each number of them.
const WHOLE_BLOCKS: bool = cfg!(not(feature = "small"));

/// The send ring of one queue pair.
pub struct Mlx5SendRing<P: Platform> {
    ring: <P::Memory as DmaMemory>::Ring,
    doorbell: SendDoorbell<<P::Registers as Registers>::Doorbell>,
    fence: P::Fence,
    /// First word of the last request, as stored in memory: what the doorbell writes.
    last: Cell<u64>,
    /// End of the requests that the device was notified of. Kept where BlueFlame asks for it alone.
    notified: Cell<u32>,
    /// Number, in the place of the control segment.
    qpn_ds: u32,
}

format_as!([P: Platform] Mlx5SendRing<P>, "Mlx5SendRing({:x})", |this| this.qpn_ds >> 8);

impl<P: Platform> Mlx5SendRing<P> {
    pub(crate) fn new(
        ring: <P::Memory as DmaMemory>::Ring,
        doorbell: SendDoorbell<<P::Registers as Registers>::Doorbell>,
        fence: P::Fence,
        qpn: u32,
    ) -> Self {
        Self { ring, doorbell, fence, last: Cell::new(0), notified: Cell::new(0), qpn_ds: qpn << 8 }
    }
}

impl<P: Platform> SendRing for Mlx5SendRing<P> {
    type Writer<'a>
        = Mlx5SendWriter<'a, P>
    where
        Self: 'a;

    #[inline(always)]
    fn writer(&self) -> Mlx5SendWriter<'_, P> {
        Mlx5SendWriter { source: self, last: self.last.get() }
    }

    fn reset(&mut self) {
        (self.last, self.notified) = (Cell::new(0), Cell::new(0));
    }
}

/// [`Mlx5SendRing`] while requests are written: two words, which a call passes in CPU registers.
pub struct Mlx5SendWriter<'a, P: Platform> {
    source: &'a Mlx5SendRing<P>,
    last: u64,
}

format_as!([P: Platform] Mlx5SendWriter<'_, P>, "Mlx5SendWriter({:x})", |this| this.source.qpn_ds >> 8);

impl<P: Platform> Clone for Mlx5SendWriter<'_, P> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Mlx5SendWriter<'_, P> {}

#[inline(always)]
const fn opcode_of(opcode: DataOpcode) -> WqeOpcode {
    match opcode {
        DataOpcode::Send => WqeOpcode::Send,
        DataOpcode::SendWithImm => WqeOpcode::SendImm,
        DataOpcode::SendWithInv => WqeOpcode::SendInval,
        DataOpcode::Write => WqeOpcode::RdmaWrite,
        DataOpcode::WriteWithImm => WqeOpcode::RdmaWriteImm,
        DataOpcode::Read => WqeOpcode::RdmaRead,
    }
}

#[inline(always)]
const fn atomic_opcode_of(opcode: AtomicOpcode) -> WqeOpcode {
    match opcode {
        AtomicOpcode::CompareSwap => WqeOpcode::AtomicCs,
        AtomicOpcode::FetchAdd => WqeOpcode::AtomicFa,
    }
}

/// Returns the units of a payload that [`Mlx5SendWriter::put_payload`] writes.
#[inline(always)]
fn payload_units(payload: Payload<'_>) -> u32 {
    match payload {
        Payload::Sges(sges) => sges.iter().filter(|sge| sge.length != 0).count() as u32,
        Payload::Inline(bytes) => inline_units(bytes.len()),
    }
}

/// Returns whether a remote address segment follows the control segment.
#[inline(always)]
const fn is_remote(opcode: DataOpcode) -> bool {
    matches!(opcode, DataOpcode::Write | DataOpcode::WriteWithImm | DataOpcode::Read)
}

/// Returns where a request reads or writes, if it does.
#[inline(always)]
fn remote_of(op: &DataOp) -> Option<&Remote> {
    is_remote(op.opcode).then_some(&op.remote)
}

/// Returns the units before the payload: control segment and remote address segment.
#[inline(always)]
const fn head_units(opcode: DataOpcode) -> u32 {
    if is_remote(opcode) { 2 } else { 1 }
}

/// Returns the number of blocks for `units`, which are few enough that the sum does not overflow.
#[inline(always)]
const fn blocks_of(units: u32) -> u32 {
    units.wrapping_add(UNITS - 1) / UNITS
}

impl<P: Platform> Mlx5SendWriter<'_, P> {
    /// Returns the control segment of a request of `units` at block `at`. `last` is its last dword, whose meaning depends on the opcode.
    #[cfg_attr(not(feature = "small"), inline(always))]
    #[cfg_attr(feature = "small", inline(never))]
    pub(crate) fn control(&mut self, opcode: WqeOpcode, at: u32, units: u32, flags: SendFlags, last: u32) -> [u64; 2] {
        let (opcode, units) = (WqeCtrlSeg::opcode_dword(opcode, at), self.source.qpn_ds | units);
        let words = WqeCtrlSeg::be_words(opcode, units, control_flags(flags), last);
        let [first, _] = words;
        self.last = first;
        words
    }

    /// Writes the segments before a payload, word by word, and returns the index of the next word.
    #[cfg_attr(feature = "small", inline(never))]
    fn put_head(&mut self, at: u32, control: [u64; 2], srqn: Option<Srqn>, remote: Option<&Remote>) -> u32 {
        let mut word = at.wrapping_mul(WORDS);
        self.put_words(&mut word, &control);
        if let Some(srqn) = srqn {
            self.put_words(&mut word, &WqeXrcSeg::be_words(srqn.get()));
        }
        if let Some(remote) = remote {
            self.put_words(&mut word, &remote_address(remote));
        }
        word
    }

    /// Writes words from `word` on, and advances `word`.
    #[cfg_attr(not(feature = "small"), inline(always))]
    #[cfg_attr(feature = "small", inline(never))]
    pub(crate) fn put_words(&mut self, word: &mut u32, values: &[u64]) {
        for value in values {
            self.source.ring.view().put_word(*word, *value);
            *word = word.wrapping_add(1);
        }
    }

    /// Writes a payload from word `word` on, word by word. SGEs without bytes are left out.
    #[inline(always)]
    fn put_payload(&mut self, mut word: u32, payload: Payload<'_>) {
        match payload {
            Payload::Sges(sges) => {
                for sge in sges.iter().filter(|sge| sge.length != 0) {
                    self.put_words(&mut word, &data(sge));
                }
            }
            Payload::Inline([]) => {}
            Payload::Inline(bytes) => {
                self.put_words(&mut word, &[inline_head(bytes)]);
                for at in (4..bytes.len()).step_by(8) {
                    self.put_words(&mut word, &[word_of(bytes, at)]);
                }
            }
        }
    }

    #[inline(always)]
    fn put_data(&mut self, mut unit: u32, sges: &[Sge]) {
        for sge in sges {
            self.source.ring.view().put_pair(unit, data(sge));
            unit = unit.wrapping_add(1);
        }
    }
}

/// Rings on a write-combining page. Copies the request into the BlueFlame register if only one waits and it fits. Flushes, so
/// that it leaves the CPU now and before any later doorbell. `last` is the first word of the last request.
#[cfg_attr(not(feature = "small"), inline(never))]
fn ring_combining<P: Platform>(source: &Mlx5SendRing<P>, last: u64, end: u32) {
    let Mlx5SendRing { ring, doorbell, fence, .. } = source;
    let from = source.notified.replace(end);
    let units = WqeCtrlSeg::DS.take(u64::from_be(last) as u32);
    let blocks = units.div_ceil(UNITS);
    if end.wrapping_sub(from) == blocks && blocks.wrapping_mul(WORDS) as usize <= doorbell.words {
        let view = ring.view();
        for block in 0..blocks {
            let at = from.wrapping_add(block);
            // All eight at once, each of a known place in its block.
            doorbell.copy_block(block, core::array::from_fn(|word| view.block_word(at, word)));
        }
    } else {
        doorbell.copy(0, last);
    }
    fence.flush();
    doorbell.switch_half();
}

impl<P: Platform> SendWriter for Mlx5SendWriter<'_, P> {
    const ATOMIC_BLOCKS: u32 = 1;
    const LOCAL_INV_BLOCKS: u32 = UNBIND_BLOCKS;

    #[inline(always)]
    fn sge_blocks(opcode: DataOpcode, count: usize) -> u32 {
        blocks_of(head_units(opcode).wrapping_add(count as u32))
    }

    #[inline(always)]
    fn inline_blocks(opcode: DataOpcode, len: usize) -> u32 {
        blocks_of(head_units(opcode).wrapping_add(inline_units(len)))
    }

    fn bind_blocks(bind: &BindOp) -> u32 {
        if bind.length == 0 { UNBIND_BLOCKS } else { BIND_BLOCKS }
    }

    #[inline(always)]
    fn put_sges(&mut self, at: u32, op: &DataOp, sges: &[Sge], flags: SendFlags) {
        let units = head_units(op.opcode) + sges.len() as u32;
        let control = self.control(opcode_of(op.opcode), at, units, flags, op.immediate);
        if !WHOLE_BLOCKS {
            let word = self.put_head(at, control, None, remote_of(op));
            return self.put_data(word / 2, sges);
        }
        let ([first, second], [addr, key]) = (control, remote_address(&op.remote));
        let view = self.source.ring.view();
        match (sges, is_remote(op.opcode)) {
            ([one], false) => {
                let [head, start] = data(one);
                view.put(at, &[first, second, head, start]);
            }
            ([one], true) => {
                let [head, start] = data(one);
                view.put(at, &[first, second, addr, key, head, start]);
            }
            ([one, two], false) => {
                let ([head, start], [head2, start2]) = (data(one), data(two));
                view.put(at, &[first, second, head, start, head2, start2]);
            }
            ([one, two, rest @ ..], true) => {
                let ([head, start], [head2, start2]) = (data(one), data(two));
                view.put(at, &[first, second, addr, key, head, start, head2, start2]);
                self.put_data(at.wrapping_add(1).wrapping_mul(UNITS), rest);
            }
            (_, false) => {
                view.put(at, &[first, second]);
                self.put_data(at.wrapping_mul(UNITS).wrapping_add(1), sges);
            }
            (_, true) => {
                view.put(at, &[first, second, addr, key]);
                self.put_data(at.wrapping_mul(UNITS).wrapping_add(2), sges);
            }
        }
    }

    #[inline(always)]
    fn put_inline(&mut self, at: u32, op: &DataOp, bytes: &[u8], flags: SendFlags) {
        let units = inline_units(bytes.len());
        let control = self.control(opcode_of(op.opcode), at, head_units(op.opcode) + units, flags, op.immediate);
        if !WHOLE_BLOCKS {
            let word = self.put_head(at, control, None, remote_of(op));
            return self.put_payload(word, Payload::Inline(bytes));
        }
        let [first, second] = control;
        let head = if units == 0 { 0 } else { inline_head(bytes) };
        // The whole first block, however much of it the payload fills: the device ignores what follows its end.
        let done = if is_remote(op.opcode) {
            let [addr, key] = remote_address(&op.remote);
            let words = [first, second, addr, key, head, word_of(bytes, 4), word_of(bytes, 12), word_of(bytes, 20)];
            self.source.ring.view().put(at, &words);
            28
        } else {
            let (a, b, c) = (word_of(bytes, 4), word_of(bytes, 12), word_of(bytes, 20));
            let (d, e) = (word_of(bytes, 28), word_of(bytes, 36));
            self.source.ring.view().put(at, &[first, second, head, a, b, c, d, e]);
            44
        };
        let Some(rest) = bytes.get(done..) else { return };
        let (chunks, last) = rest.as_chunks();
        let mut word = at.wrapping_add(1).wrapping_mul(WORDS);
        for chunk in chunks {
            self.source.ring.view().put_word(word, u64::from_ne_bytes(*chunk));
            word = word.wrapping_add(1);
        }
        if !last.is_empty() {
            self.source.ring.view().put_word(word, last_word(bytes, last));
        }
    }

    #[inline(always)]
    fn datagram_sge_blocks(count: usize) -> u32 {
        blocks_of(DATAGRAM_HEAD.wrapping_add(count as u32))
    }

    #[inline(always)]
    fn datagram_inline_blocks(len: usize) -> u32 {
        blocks_of(DATAGRAM_HEAD.wrapping_add(inline_units(len)))
    }

    #[inline(always)]
    fn put_datagram(&mut self, at: u32, op: &DatagramOp<'_>, payload: Payload<'_>, flags: SendFlags) {
        let (opcode, imm) = match op.imm {
            None => (WqeOpcode::Send, 0),
            Some(imm) => (WqeOpcode::SendImm, u32::from_be_bytes(imm)),
        };
        let units = DATAGRAM_HEAD.wrapping_add(payload_units(payload));
        let [first, second] = self.control(opcode, at, units, flags, imm);
        let [a, b, c, d, e, f] = datagram(op.address, op.remote_qpn.get(), op.remote_qkey.get());
        let mut word = at.wrapping_mul(WORDS);
        self.put_words(&mut word, &[first, second, a, b, c, d, e, f]);
        self.put_payload(word, payload);
    }

    /// Control, shared receive queue, remote address, atomic, data.
    const XRC_ATOMIC_BLOCKS: u32 = blocks_of(5);

    fn xrc_sge_blocks(opcode: DataOpcode, count: usize) -> u32 {
        blocks_of(head_units(opcode).wrapping_add(1).wrapping_add(count as u32))
    }

    fn xrc_inline_blocks(opcode: DataOpcode, len: usize) -> u32 {
        blocks_of(head_units(opcode).wrapping_add(1).wrapping_add(inline_units(len)))
    }

    fn put_xrc(&mut self, at: u32, srqn: Srqn, op: &DataOp, payload: Payload<'_>, flags: SendFlags) {
        let units = head_units(op.opcode).wrapping_add(1).wrapping_add(payload_units(payload));
        let control = self.control(opcode_of(op.opcode), at, units, flags, op.immediate);
        let word = self.put_head(at, control, Some(srqn), remote_of(op));
        self.put_payload(word, payload);
    }

    fn put_xrc_atomic(&mut self, at: u32, srqn: Srqn, op: &AtomicOp, sge: &Sge, flags: SendFlags) {
        let control = self.control(atomic_opcode_of(op.opcode), at, 5, flags, 0);
        let mut word = self.put_head(at, control, Some(srqn), Some(&op.remote));
        self.put_words(&mut word, &WqeAtomicSeg::be_words(op.swap_add, op.compare));
        self.put_words(&mut word, &data(sge));
    }

    #[inline(always)]
    fn put_atomic(&mut self, at: u32, op: &AtomicOp, sge: &Sge, flags: SendFlags) {
        let [first, second] = self.control(atomic_opcode_of(op.opcode), at, 4, flags, 0);
        let ([addr, key], [head, start]) = (remote_address(&op.remote), data(sge));
        let [swap_add, compare] = WqeAtomicSeg::be_words(op.swap_add, op.compare);
        let words = [first, second, addr, key, swap_add, compare, head, start];
        if WHOLE_BLOCKS {
            self.source.ring.view().put(at, &words);
        } else {
            self.put_words(&mut at.wrapping_mul(WORDS), &words);
        }
    }

    /// Inlined into `put_local_inv` too, where most values are constants.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn put_bind(&mut self, at: u32, bind: &BindOp, flags: SendFlags) {
        let blocks = Self::bind_blocks(bind);
        let control = self.control(WqeOpcode::Umr, at, blocks * UNITS, flags, bind.old.get());
        let words = bind_blocks(bind, self.source.qpn_ds >> 8, control);
        if WHOLE_BLOCKS {
            let [first, context, translation] = &words;
            let view = self.source.ring.view();
            view.put(at, first);
            view.put(at.wrapping_add(1), context);
            if blocks == BIND_BLOCKS {
                view.put(at.wrapping_add(2), translation);
            }
        } else {
            let mut word = at.wrapping_mul(WORDS);
            for block in words.iter().take(blocks as usize) {
                self.put_words(&mut word, block);
            }
        }
    }

    fn masked_blocks(op: &MaskedOp, xrc: bool) -> u32 {
        let (_, words) = masked_operands(op);
        blocks_of(MASKED_UNITS.wrapping_add(words as u32 / 2).wrapping_add(xrc.into()))
    }

    fn put_masked(&mut self, at: u32, op: &MaskedOp, srqn: Option<Srqn>, remote: &Remote, sge: &Sge, flags: SendFlags) {
        let (operands, words) = masked_operands(op);
        let opcode = match op {
            MaskedOp::CompareSwap4 { .. } | MaskedOp::CompareSwap8 { .. } => WqeOpcode::AtomicMaskedCs,
            MaskedOp::FetchAdd4 { .. } | MaskedOp::FetchAdd8 { .. } => WqeOpcode::AtomicMaskedFa,
        };
        let units = MASKED_UNITS.wrapping_add(words as u32 / 2).wrapping_add(srqn.is_some().into());
        let [first, second] = self.control(opcode, at, units, flags, 0);
        let modifier = WqeCtrlSeg::OPMOD.place(extended_atomic::opmod(op.size().trailing_zeros()));
        self.last = first | be_word(modifier, 0);
        let mut word = self.put_head(at, [self.last, second], srqn, Some(remote));
        self.put_words(&mut word, operands.get(..words).unwrap_or_default());
        self.put_words(&mut word, &data(sge));
    }

    fn reg_blocks(count: usize) -> u32 {
        REG_HEAD_BLOCKS.wrapping_add(list_octowords(count) / UNITS)
    }

    fn put_reg(&mut self, at: u32, reg: &RegOp<'_>, flags: SendFlags) {
        let units = Self::reg_blocks(reg.sges.len()).wrapping_mul(UNITS);
        let control = self.control(WqeOpcode::Umr, at, units, flags, reg.old.get());
        let mut word = at.wrapping_mul(WORDS);
        for block in registration_head(reg, control) {
            self.put_words(&mut word, &block);
        }
        for sge in reg.sges {
            self.put_words(&mut word, &WqeKlm::be_words(sge.length, sge.lkey.get(), sge.addr));
        }
        for _ in reg.sges.len()..list_octowords(reg.sges.len()) as usize {
            self.put_words(&mut word, &[0; 2]);
        }
    }

    fn put_local_inv(&mut self, at: u32, rkey: Rkey, flags: SendFlags) {
        self.put_bind(at, &invalidation(rkey), flags);
    }

    /// 1 WQE stores (done before), 2 publish, 3 doorbell record, 4 release, 5 UAR write or BlueFlame copy; to a write-combining
    /// page 6 flush.
    #[inline(always)]
    fn ring(&mut self, end: u32) {
        let Mlx5SendRing { doorbell, fence, .. } = self.source;
        fence.publish();
        self.source.ring.view().record(true, (end & 0xffff).to_be());
        if doorbell.combining {
            fence.release();
            ring_combining(self.source, self.last, end);
        } else {
            fence.release_uncached();
            doorbell.ring(self.last);
        }
    }

    #[inline(always)]
    fn close(&mut self) {
        self.source.last.set(self.last);
    }
}

#[cfg(test)]
mod tests;
