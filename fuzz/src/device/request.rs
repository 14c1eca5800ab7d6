//! Requests as programs make them: well-formed, by keys that exist or nearly so.

use arbitrary::Arbitrary;
use bareverbs::platform::DmaMemory as _;
use bareverbs_mlx5_spec::{Mkc, ViewMut, WqeUmrCtrlSeg, mkey_mask};

use super::guest::{BASE, Guest};
use super::guest_objects::pick;

/// Memory for messages, after all queues.
const DATA: u64 = BASE + 0xc_0000;
/// Bytes of it.
const DATA_LEN: u64 = 0x3_0000;
/// Index of the queue pair for datagrams.
const DATAGRAM: usize = 2;

/// A request that moves bytes.
#[derive(Arbitrary, Debug)]
pub struct Request {
    pub(super) queue: u8,
    pub(super) opcode: u8,
    pub(super) flags: u8,
    /// Key of the peer's memory; the place there is of `value`.
    pub(super) remote: u8,
    /// Key, place and length of each piece of the message.
    pub(super) pieces: Vec<(u8, u16, u16)>,
    /// Of a datagram: for whom it is.
    pub(super) peer: u8,
    pub(super) value: u32,
}

/// A request that changes a key.
#[derive(Arbitrary, Debug)]
pub struct KeyChange {
    queue: u8,
    key: u8,
    /// Which fields change.
    mask: u8,
    /// Bits of the control segment.
    flags: u8,
    /// Entries of the list: key, place, length.
    entries: Vec<(u8, u16, u16)>,
    offset: u8,
    len: u32,
    /// The list begins with a block that repeats so often.
    repeats: u8,
}

fn dwords(body: &mut Vec<u8>, dwords: &[u32]) {
    body.extend(dwords.iter().flat_map(|dword| dword.to_be_bytes()));
}

/// Returns where a piece is.
fn place(at: u16) -> u64 {
    DATA + u64::from(at) * 8 % DATA_LEN
}

/// Returns the index of a key and the address of a piece: in the memory for messages, or at an end of the address space, over which a
/// range may run.
fn key_and_address(which: u8, at: u16) -> (u8, u64) {
    const AT_AN_END: u8 = 0x40;
    let addr = if which & AT_AN_END == 0 { place(at) } else { i64::from(at.cast_signed()).cast_unsigned() };
    (which & !AT_AN_END, addr)
}

impl Guest {
    fn pointer(&self, body: &mut Vec<u8>, (key, at, len): (u8, u16, u16)) {
        let (key, addr) = key_and_address(key, at);
        dwords(body, &[u32::from(len), self.key(key), (addr >> 32) as u32, addr as u32]);
    }

    /// Posts a request.
    pub fn request(&mut self, request: &Request) {
        const OPCODES: [u8; 9] = [0x08, 0x09, 0x0a, 0x0b, 0x01, 0x10, 0x11, 0x12, 0x00];
        let queue = usize::from(request.queue) % self.qps.len().max(1);
        let opcode = OPCODES[usize::from(request.opcode) % OPCODES.len()];
        let mut body = Vec::new();
        if queue == DATAGRAM {
            let (mut av, qpn) = (vec![0; 48], self.qps.get(DATAGRAM).map_or(0, |qp| qp.0));
            // Itself, the other device, a group, every port, a LID that no port has.
            let (lid, qpn, global) = [
                (self.lid, qpn, false),
                (self.lid + 1, qpn, false),
                (0xc001, 0xff_ffff, true),
                (0xffff, qpn, false),
                (self.lid, 0, false),
            ][usize::from(request.peer) % 5];
            av[..4].copy_from_slice(&1_u32.to_be_bytes());
            av[8..12].copy_from_slice(&(1 << 31 | qpn).to_be_bytes());
            av[14..16].copy_from_slice(&lid.to_be_bytes());
            av[28] = u8::from(global) << 6;
            av[32..48].fill(0xff);
            body.extend(av);
        }
        if request.flags & 0x80 != 0 {
            // The shared receive queue that an XRC request is for.
            let srqn = pick(&self.srqs, request.peer).map_or(0, |srq| srq.0);
            dwords(&mut body, &[srqn, 0, 0, 0]);
        }
        let (key, addr) = key_and_address(request.remote, request.value as u16);
        let remote = (self.key(key), addr);
        if matches!(opcode, 0x08 | 0x09 | 0x10..=0x12) {
            dwords(&mut body, &[(remote.1 >> 32) as u32, remote.1 as u32, remote.0, 0]);
        }
        if matches!(opcode, 0x11 | 0x12) {
            dwords(&mut body, &[0, request.value, 0, request.value >> 8]);
        }
        for piece in &request.pieces {
            let piece = if matches!(opcode, 0x11 | 0x12) { (piece.0, piece.1, 8) } else { *piece };
            self.pointer(&mut body, piece);
        }
        // With a completion, solicited, fenced.
        let flags = 8 | request.flags & 0x62;
        let immediate = if opcode == 0x01 { remote.0 } else { request.value };
        self.send(queue as u8, opcode, flags, immediate, &body);
    }

    /// Posts a receive of these pieces.
    pub fn post_receive(&mut self, queue: u8, pieces: [(u8, u16, u16); 2]) {
        let mut wqe = Vec::new();
        for piece in pieces {
            self.pointer(&mut wqe, piece);
        }
        self.receive(queue, std::array::from_fn(|at| wqe[at]));
    }

    /// Posts a change of a key (UMR).
    pub fn change_key(&mut self, change: &KeyChange) {
        const RIGHTS: u64 = mkey_mask::LR | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW | mkey_mask::A;
        const MASKS: [u64; 8] = [
            mkey_mask::LEN | mkey_mask::START_ADDR | mkey_mask::KEY | mkey_mask::FREE | RIGHTS,
            mkey_mask::KEY | mkey_mask::FREE,
            0,
            mkey_mask::LEN,
            RIGHTS,
            mkey_mask::PD | mkey_mask::FREE,
            mkey_mask::LEN | mkey_mask::FREE | mkey_mask::QPN | mkey_mask::EN_RINVAL,
            mkey_mask::PAGE_SIZE | mkey_mask::LEN,
        ];
        let key = self.key(change.key);
        let mut list = Vec::new();
        let mut reach = 0;
        if change.repeats != 0 {
            dwords(&mut list, &[0, 0x400, change.repeats.into(), change.entries.len() as u32]);
        }
        for (which, at, len) in &change.entries {
            let (at, len) = (place(*at), u32::from(*len));
            if change.flags & 4 != 0 {
                list.extend(at.to_be_bytes());
            } else {
                let count = if change.repeats == 0 { len } else { 16 << 16 | len & 0xff };
                dwords(&mut list, &[count, self.key(*which), (at >> 32) as u32, at as u32]);
            }
            reach += len;
        }
        let mut control = [0; 48];
        let inline = change.flags & 1 == 0;
        let offset = change.flags & 2 != 0;
        if let Some(mut segment) = ViewMut::<WqeUmrCtrlSeg>::new(&mut control) {
            segment
                .set(WqeUmrCtrlSeg::INLINE, inline.into())
                .set(WqeUmrCtrlSeg::TRANSLATION_OFFSET_EN, offset.into())
                .set(WqeUmrCtrlSeg::CHECK_FREE, u32::from(change.flags >> 3 & 1))
                .set(WqeUmrCtrlSeg::CHECK_IN_USE, u32::from(change.flags >> 4 & 1))
                .set(WqeUmrCtrlSeg::KLM_OCTOWORDS, list.len().div_ceil(16) as u32)
                .set(WqeUmrCtrlSeg::TRANSLATION_OFFSET, if offset { change.offset.into() } else { 0 })
                .set64(WqeUmrCtrlSeg::MKEY_MASK, MASKS[usize::from(change.mask) % MASKS.len()]);
        }
        let mut context = [0; 64];
        let len = if change.len & 1 == 0 { u64::from(reach) } else { u64::from(change.len) };
        ViewMut::<Mkc>::of(&mut context)
            .set(Mkc::FREE, u32::from(change.flags >> 5 & 1))
            .set(Mkc::PD, self.pd)
            .set(Mkc::QPN, 0xff_ffff)
            .set(Mkc::LR, 1)
            .set(Mkc::LW, u32::from(change.flags >> 6 & 1))
            .set(Mkc::RR, 1)
            .set(Mkc::RW, u32::from(change.flags >> 6 & 1))
            .set(Mkc::EN_RINVAL, u32::from(change.flags >> 7))
            .set(Mkc::LOG_PAGE_SIZE, 12)
            .set64(Mkc::LEN, len);
        let mut body = [control.as_slice(), &context].concat();
        if inline {
            list.resize(list.len().next_multiple_of(64), 0);
            body.extend(list);
        } else if !list.is_empty() {
            let at = (DATA - BASE) as usize;
            let _ = self.memory.write(at, &list);
            dwords(&mut body, &[list.len() as u32, self.key, (DATA >> 32) as u32, DATA as u32]);
        }
        self.send(change.queue, 0x25, 8, key, &body);
    }
}
