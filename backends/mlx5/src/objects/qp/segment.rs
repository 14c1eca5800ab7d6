//! Segments of WQEs as big-endian words (PRM "Work Request (WQE) Format").

use bareverbs::backend::{BindOp, EncodedAddress, RegOp};
use bareverbs::platform::RingView;
use bareverbs::{Access, Lkey, MaskedOp, MwType, Remote, Rkey, SendFlags, Sge};
use bareverbs_mlx5_spec::{
    DS_UNIT, INVALID_LKEY, MKEY_ANY_QPN, Mkc, WQEBB, WqeCtrlSeg, WqeDataSeg, WqeDatagramSeg, WqeInlineSeg, WqeKlm, WqeRaddrSeg,
    WqeUmrCtrlSeg, be_word, ce, fm, mkey_mask,
};

/// Octowords of a bind's translation area: one entry, filled up to a block.
const KLM_OCTOWORDS: u32 = 4;
/// Blocks of a bind that has a translation, and of one that has none.
pub(super) const BIND_BLOCKS: u32 = 3;
/// Blocks of an unbind or an invalidation.
pub(super) const UNBIND_BLOCKS: u32 = 2;

/// Returns eight bytes of the payload in memory order, zeros after its end.
#[inline(always)]
pub(crate) fn word_of(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..) {
        None | Some([]) => 0,
        Some(rest) => match rest.first_chunk() {
            Some(chunk) => u64::from_ne_bytes(*chunk),
            None => last_word(bytes, rest),
        },
    }
}

/// Returns the same as [`word_of`] for the last bytes `rest`, fewer than eight.
#[cfg_attr(not(feature = "small"), inline(always))]
#[cfg_attr(feature = "small", inline(never))]
pub(super) fn last_word(bytes: &[u8], rest: &[u8]) -> u64 {
    match bytes.last_chunk() {
        // The last eight bytes without those before `rest`.
        Some(last) => u64::from_le_bytes(*last).wrapping_shr(64_u32.wrapping_sub((rest.len() as u32).wrapping_mul(8))).to_le(),
        None => short_word(rest),
    }
}

/// Returns the same as [`word_of`] for a payload of fewer than eight bytes.
#[inline(never)]
fn short_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_ne_bytes(word)
}

/// Returns the first word of an inline segment: its head and four bytes of the payload.
#[inline(always)]
pub(super) fn inline_head(bytes: &[u8]) -> u64 {
    let start = match bytes.first_chunk() {
        Some(start) => u32::from_be_bytes(*start),
        None => (u64::from_be(short_word(bytes)) >> 32) as u32,
    };
    be_word(WqeInlineSeg::dword(bytes.len() as u32), start)
}

/// Returns a data segment. A length of 2^31 is written as 0, since bit 31 marks inline data.
#[inline(always)]
pub(crate) const fn data(sge: &Sge) -> [u64; 2] {
    WqeDataSeg::be_words(sge.length, sge.lkey.get(), sge.addr)
}

/// Writes the data segments of a receive into the units from `unit` to `end`, and what ends the list unless they fill them. SGEs without
/// bytes are left out.
#[inline(always)]
pub(crate) fn put_receive(ring: impl RingView + Copy, mut unit: u32, end: u32, sges: &[Sge]) {
    for sge in sges {
        if sge.length != 0 && unit != end {
            ring.put_pair(unit, data(sge));
            unit = unit.wrapping_add(1);
        }
    }
    if unit != end {
        ring.put_pair(unit, [be_word(0, INVALID_LKEY), 0]);
    }
}

#[inline(always)]
pub(super) const fn remote_address(remote: &Remote) -> [u64; 2] {
    WqeRaddrSeg::be_words(remote.addr, remote.rkey.get())
}

/// Returns a datagram segment: an address ([`super::address`]) with Q_Key and queue pair.
#[inline(always)]
pub(super) const fn datagram(address: &EncodedAddress, qpn: u32, qkey: u32) -> [u64; 6] {
    let [key, qp, a, b, c, d] = address.0;
    [key | be_word(WqeDatagramSeg::QKEY.place(qkey), 0), qp | be_word(WqeDatagramSeg::DQPN.place(qpn), 0), a, b, c, d]
}

/// Returns the rights in a key's context.
#[inline(always)]
fn rights(access: Access) -> u32 {
    let flag = |flag, bits| if access.contains(flag) { bits } else { 0 };
    flag(Access::LOCAL_WRITE, Mkc::LW.place(1))
        | flag(Access::REMOTE_READ, Mkc::RR.place(1))
        | flag(Access::REMOTE_WRITE, Mkc::RW.place(1))
        | flag(Access::REMOTE_ATOMIC, Mkc::A.place(1))
}

/// Returns the blocks of a UMR that opens a key over a list: control and UMR control; key context. The list follows, filled up to whole
/// blocks, and replaces that of the key (rdma-core `mlx5_send_wr_mr_list`; Linux demands a free key too).
pub(super) fn registration_head(reg: &RegOp<'_>, control: [u64; 2]) -> [[u64; WQEBB / 8]; 2] {
    let umr = WqeUmrCtrlSeg::INLINE.place(1) | WqeUmrCtrlSeg::CHECK_FREE.place(1);
    let mask = mkey_mask::FREE | mkey_mask::KEY | mkey_mask::LEN | mkey_mask::START_ADDR;
    let mask = mask | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW | mkey_mask::A;
    let mut words = [[0; WQEBB / 8]; 2];
    [words[0][0], words[0][1]] = control;
    [words[0][2], words[0][3]] = WqeUmrCtrlSeg::be_words(umr, list_octowords(reg.sges.len()), mask);
    let tag = u32::from(reg.new.tag().0);
    words[1][0] = be_word(rights(reg.access), Mkc::QPN.place(MKEY_ANY_QPN) | tag);
    [words[1][2], words[1][3]] = [reg.base.to_be(), reg.length.to_be()];
    words
}

/// Returns the operands of a masked atomic, and how many words they are.
pub(super) fn masked_operands(op: &MaskedOp) -> ([u64; 4], usize) {
    match *op {
        MaskedOp::CompareSwap4 { compare, compare_mask, swap, swap_mask } => {
            ([be_word(swap, compare), be_word(swap_mask, compare_mask), 0, 0], 2)
        }
        MaskedOp::CompareSwap8 { compare, compare_mask, swap, swap_mask } => {
            ([swap, compare, swap_mask, compare_mask].map(u64::to_be), 4)
        }
        MaskedOp::FetchAdd4 { add, boundary } => ([be_word(add, boundary), 0, 0, 0], 2),
        MaskedOp::FetchAdd8 { add, boundary } => ([add.to_be(), boundary.to_be(), 0, 0], 2),
    }
}

/// Returns the octowords of a list of pieces, filled up to whole blocks.
pub(super) const fn list_octowords(count: usize) -> u32 {
    (count as u32).next_multiple_of(KLM_OCTOWORDS)
}

/// Returns the blocks of a UMR that binds a window: control and UMR control; key context; translation.
#[cfg_attr(not(feature = "small"), inline(always))]
pub(super) fn bind_blocks(bind: &BindOp, qpn: u32, control: [u64; 2]) -> [[u64; WQEBB / 8]; BIND_BLOCKS as usize] {
    let type2 = bind.kind == MwType::Type2;
    let mut umr = WqeUmrCtrlSeg::INLINE.place(1) | WqeUmrCtrlSeg::TRANSLATION_OFFSET_EN.place(1);
    let mut mask = mkey_mask::FREE | mkey_mask::KEY;
    if type2 {
        mask |= mkey_mask::QPN;
    }
    let tag = u32::from(bind.new.tag().0);
    let mut words = [[0; WQEBB / 8]; BIND_BLOCKS as usize];
    let mut octowords = 0;
    if bind.length == 0 {
        umr |= WqeUmrCtrlSeg::CHECK_QPN.place(u32::from(type2));
        words[1][0] = be_word(Mkc::FREE.place(1), Mkc::QPN.place(MKEY_ANY_QPN) | tag);
    } else {
        umr |= WqeUmrCtrlSeg::CHECK_FREE.place(u32::from(type2));
        octowords = KLM_OCTOWORDS;
        mask |= mkey_mask::LEN | mkey_mask::START_ADDR | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW | mkey_mask::A;
        let rights = rights(bind.access);
        let owner = if type2 { qpn } else { MKEY_ANY_QPN };
        let start = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        words[1][0] = be_word(rights, Mkc::QPN.place(owner) | tag);
        [words[1][2], words[1][3]] = [start.to_be(), bind.length.to_be()];
        [words[2][0], words[2][1]] = WqeKlm::be_words(bind.length as u32, bind.lkey.get(), bind.addr);
    }
    [words[0][0], words[0][1]] = control;
    [words[0][2], words[0][3]] = WqeUmrCtrlSeg::be_words(umr, octowords, mask);
    words
}

/// Returns an invalidation. It frees a window of this queue pair as an unbind does, and its tag is 0.
pub(super) const fn invalidation(rkey: Rkey) -> BindOp {
    let (new, lkey) = (Rkey::new(0), Lkey::new(0));
    BindOp { kind: MwType::Type2, old: rkey, new, lkey, addr: 0, length: 0, access: Access::empty() }
}

/// Returns the 16-byte units of an inline segment with `len` bytes, none for 0 bytes.
#[inline(always)]
pub(super) const fn inline_units(len: usize) -> u32 {
    if len == 0 { 0 } else { (len as u32).wrapping_add(4 + DS_UNIT as u32 - 1) / DS_UNIT as u32 }
}

/// Returns the flags of a control segment. A table, because every request needs it.
#[inline(always)]
pub(super) const fn control_flags(flags: SendFlags) -> u32 {
    const MASK: u32 = SendFlags::AFTER_BIND.bits() * 2 - 1;
    const FLAGS: [u32; MASK as usize + 1] = {
        let mut dwords = [0; MASK as usize + 1];
        let mut bits = 0;
        while bits <= MASK {
            #[expect(clippy::indexing_slicing, reason = "a constant of as many elements, and `get_mut` is not const")]
            {
                dwords[bits as usize] = flags_dword(SendFlags::from_bits_retain(bits));
            }
            bits += 1;
        }
        dwords
    };
    #[expect(clippy::indexing_slicing, reason = "the mask keeps the index inside the table")]
    FLAGS[(flags.bits() & MASK) as usize]
}

/// Returns an element of the table of [`control_flags`].
const fn flags_dword(flags: SendFlags) -> u32 {
    // The verbs' fence waits for more than the one that a bind leaves behind for the request after it.
    let fence = match (flags.contains(SendFlags::FENCE), flags.contains(SendFlags::AFTER_BIND)) {
        (true, _) => fm::FENCE,
        (false, true) => fm::INITIATOR_SMALL_FENCE,
        (false, false) => fm::NONE,
    };
    let completion = if flags.contains(SendFlags::SIGNALED) { ce::ALWAYS } else { ce::ERROR_ONLY };
    WqeCtrlSeg::flags_dword(fence, completion, flags.contains(SendFlags::SOLICITED))
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// Each length of a payload up to beyond what a WQE has: the least units that hold the head of four bytes and the payload.
    #[test]
    fn inline_units_hold_the_head_and_the_payload() {
        let mut units = 0;
        assert_eq!(inline_units(0), 0);
        for len in 1..=70_000 {
            while units * 16 < 4 + len {
                units += 1;
            }
            assert_eq!(inline_units(len) as usize, units, "{len}");
        }
    }

    #[test]
    fn a_list_is_filled_up_to_whole_blocks() {
        let mut octowords = 0;
        for count in 0..=5000_usize {
            while octowords < count {
                octowords += 4;
            }
            assert_eq!(list_octowords(count) as usize, octowords, "{count}");
        }
    }

    /// Eight bytes from each byte of a payload of each length, with zeros behind its end.
    #[test]
    fn a_word_is_eight_bytes_of_the_payload_or_zeros() {
        for len in 0..=80_usize {
            let bytes: Vec<u8> = (1..=len as u8).collect();
            for at in 0..=len + 9 {
                let mut expected = [0; 8];
                for (n, place) in expected.iter_mut().enumerate() {
                    *place = bytes.get(at + n).copied().unwrap_or(0);
                }
                assert_eq!(word_of(&bytes, at).to_ne_bytes(), expected, "{at} of {len}");
                if at < len && len - at < 8 {
                    assert_eq!(last_word(&bytes, &bytes[at..]).to_ne_bytes(), expected, "{at} of {len}");
                }
            }
            if len != 0 {
                let mut head = [0; 8];
                head[..4].copy_from_slice(&(0x8000_0000 | len as u32).to_be_bytes());
                for (place, byte) in head[4..].iter_mut().zip(&bytes) {
                    *place = *byte;
                }
                assert_eq!(inline_head(&bytes).to_ne_bytes(), head, "{len}");
            }
        }
    }

    /// All flags: by `MLX5_WQE_CTRL_CQ_UPDATE` (8), `MLX5_WQE_CTRL_SOLICITED` (2), `MLX5_WQE_CTRL_FENCE` (4 << 5) and
    /// `MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE` (1 << 5) of rdma-core's `mlx5dv.h`.
    #[test]
    fn each_combination_of_flags_is_a_byte_of_the_control_segment() {
        for bits in 0..=u32::from(u16::MAX) {
            let flags = SendFlags::from_bits_retain(bits);
            let mut expected = 0;
            if flags.contains(SendFlags::SIGNALED) {
                expected += 8;
            }
            if flags.contains(SendFlags::SOLICITED) {
                expected += 2;
            }
            if flags.contains(SendFlags::FENCE) {
                expected += 128;
            } else if flags.contains(SendFlags::AFTER_BIND) {
                expected += 32;
            }
            assert_eq!(control_flags(flags), expected, "{flags:?}");
        }
    }
}
