//! Decodes send WQEs: the segments of each opcode, and the rules between them.

use bareverbs_mlx5_spec::{
    DS_UNIT, Layout, View, WQEBB, WqeAtomicSeg, WqeCtrlSeg, WqeDataSeg, WqeDatagramSeg, WqeInlineSeg, WqeMaskedAdd32Seg,
    WqeMaskedAdd64Seg, WqeMaskedSwap32Seg, WqeMaskedSwap64Seg, WqeOpcode, WqeRaddrSeg, WqeXrcSeg, extended_atomic,
};

use crate::decoded::Decoded;

/// Transport of the queue pair that a WQE was posted to, which determines the segments after the control segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection, initiator.
    Xrc,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
        }
    }

    fn allows(self, opcode: WqeOpcode) -> bool {
        use WqeOpcode as Op;
        match self {
            Self::Rc | Self::Xrc => true,
            Self::Uc => !matches!(opcode, Op::RdmaRead | Op::AtomicCs | Op::AtomicFa | Op::AtomicMaskedCs | Op::AtomicMaskedFa),
            Self::Ud => matches!(opcode, Op::Nop | Op::Send | Op::SendImm | Op::Tso),
        }
    }
}

/// Maximum length of a message in bytes (IBTA 9.7.6: 2^31).
const MAX_MESSAGE: u64 = 1 << 31;

/// Decodes all WQEs in `bytes`, each of which starts at a WQEBB.
pub fn decode_all(bytes: &[u8], transport: Transport) -> Vec<Decoded> {
    let mut all = Vec::new();
    let mut rest = bytes;
    let mut offset = 0;
    while !rest.is_empty() {
        let decoded = decode(rest, offset, transport);
        let units = WqeCtrlSeg::DS.bits().read(rest).unwrap_or(0) as usize;
        let len = (units * DS_UNIT).next_multiple_of(WQEBB).max(WQEBB);
        all.push(decoded);
        offset += len;
        rest = rest.get(len..).unwrap_or_default();
    }
    all
}

/// Decodes the WQE at the start of `bytes`, which are at `offset` of the input (at most `usize::MAX / 2`).
pub fn decode(bytes: &[u8], offset: usize, transport: Transport) -> Decoded {
    let mut out = Decoded::new(offset);
    let offset = out.offset;
    let Some(ctrl) = View::<WqeCtrlSeg>::new(bytes) else {
        out.title = format!("{} bytes, too few for a control segment", bytes.len());
        out.error(offset, format!("a WQE begins with a control segment of {} bytes", WqeCtrlSeg::SIZE));
        out.payload("bytes", bytes, offset);
        return out;
    };
    let units = ctrl.get(WqeCtrlSeg::DS) as usize;
    let len = units * DS_UNIT;
    out.section::<WqeCtrlSeg>("control segment", bytes.get(..WqeCtrlSeg::SIZE).unwrap_or_default(), offset);
    let code = ctrl.get(WqeCtrlSeg::OPCODE);
    let opcode = WqeOpcode::from_code(code);
    let name = opcode.map_or_else(|| format!("opcode {code:#x}"), |opcode| opcode.name().into());
    out.title = format!(
        "{name}, block {:#x} of queue pair {:#x}, {units} units ({len} bytes) in {} {}",
        ctrl.get(WqeCtrlSeg::WQE_INDEX),
        ctrl.get(WqeCtrlSeg::QPN),
        units.div_ceil(WQEBB / DS_UNIT),
        if units <= WQEBB / DS_UNIT { "block" } else { "blocks" },
    );
    check_length(&mut out, bytes.len(), units);
    let end = len.clamp(WqeCtrlSeg::SIZE, bytes.len());
    let mut walk = Walk { bytes: bytes.get(..end).unwrap_or(bytes), at: WqeCtrlSeg::SIZE, base: offset, name, out };
    walk.check_ctrl(&ctrl, opcode, transport);
    walk.segments(&ctrl, opcode, transport);
    walk.check_signature(&ctrl, len);
    walk.out.finish()
}

fn check_length(out: &mut Decoded, have: usize, units: usize) {
    let at = out.offset + 7;
    let len = units * DS_UNIT;
    if units == 0 {
        out.error(at, "ds is 0: a WQE has at least its control segment, 1 unit");
    } else if len > have {
        out.error(at, format!("ds says {units} units ({len} bytes), but only {have} bytes are here"));
    }
}

/// The bytes of one WQE, and the position of the decoder.
pub(crate) struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    base: usize,
    name: String,
    pub(crate) out: Decoded,
}

impl<'a> Walk<'a> {
    /// Returns the offset of the next byte in the input.
    pub(crate) fn here(&self) -> usize {
        self.base + self.at
    }

    /// Returns the number of bytes that are not decoded yet.
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// Decodes the next segment, with a warning for reserved bits. Adds an error if the WQE ends within it.
    pub(crate) fn take<L: Layout>(&mut self, name: &str) -> Option<View<'a, L>> {
        let at = self.here();
        let segment = self.take_stale::<L>(name)?;
        self.out.reserved::<L>(segment.as_bytes(), at);
        Some(segment)
    }

    /// Decodes the next segment, without checking reserved bits.
    pub(crate) fn take_stale<L: Layout>(&mut self, name: &str) -> Option<View<'a, L>> {
        let here = self.here();
        let bytes = self.bytes.get(self.at..).unwrap_or_default();
        let Some(bytes) = bytes.get(..L::SIZE) else {
            let text = format!("{} needs a {name} of {} bytes here, and {} are left", self.name, L::SIZE, bytes.len());
            self.out.error(here, text);
            self.take_rest();
            return None;
        };
        self.out.section_of(&L::INFO, name, bytes, here);
        self.at += L::SIZE;
        View::new(bytes)
    }

    /// Adds all remaining bytes as a section without fields.
    fn take_rest(&mut self) {
        let bytes = self.bytes.get(self.at..).unwrap_or_default();
        if !bytes.is_empty() {
            self.out.payload("not decoded", bytes, self.base + self.at);
            self.at = self.bytes.len();
        }
    }

    fn check_ctrl(&mut self, ctrl: &View<'_, WqeCtrlSeg>, opcode: Option<WqeOpcode>, transport: Transport) {
        use WqeOpcode as Op;
        let base = self.base;
        let (fm, ce, imm) = (ctrl.get(WqeCtrlSeg::FM), ctrl.get(WqeCtrlSeg::CE), ctrl.get(WqeCtrlSeg::IMM));
        if fm > 4 {
            self.out.error(base + 11, format!("fence mode {fm} does not exist"));
        }
        if ce == 1 {
            self.out.note(base + 11, "ce 1 asks for a completion at the first error only");
        }
        if ctrl.is_set(WqeCtrlSeg::DCI_STREAM_CHANNEL_ID) {
            self.out.warning(base + 9, "a DCI stream channel, which only dynamically connected transport has");
        }
        let Some(opcode) = opcode else {
            self.out.error(base + 3, format!("opcode {:#x} is unknown", ctrl.get(WqeCtrlSeg::OPCODE)));
            return;
        };
        if !transport.allows(opcode) {
            self.out.error(base + 3, format!("{} is not done by a {} queue pair", opcode.name(), transport.name()));
        }
        if ctrl.is_set(WqeCtrlSeg::OPMOD) && !matches!(opcode, Op::Tso | Op::SetPsv | Op::AtomicMaskedCs | Op::AtomicMaskedFa) {
            self.out.warning(base, format!("opmod {:#x} means nothing to {}", ctrl.get(WqeCtrlSeg::OPMOD), opcode.name()));
        }
        let solicits = matches!(opcode, Op::Send | Op::SendImm | Op::SendInval | Op::RdmaWriteImm | Op::Tso);
        if ctrl.is_set(WqeCtrlSeg::SE) && !solicits {
            self.out.warning(base + 11, format!("{} makes no completion at the peer, so se solicits none", opcode.name()));
        }
        match opcode {
            Op::SendInval | Op::Umr | Op::LocalInval if imm == 0 => {
                self.out.error(base + 12, format!("{} names key 0", opcode.name()));
            }
            Op::SendImm | Op::RdmaWriteImm | Op::SendInval | Op::Umr | Op::LocalInval | Op::Fmr | Op::Tso | Op::SetPsv => {}
            _ if imm != 0 => self.out.note(base + 12, format!("{} does not look at imm", opcode.name())),
            _ => {}
        }
    }

    fn segments(&mut self, ctrl: &View<'_, WqeCtrlSeg>, opcode: Option<WqeOpcode>, transport: Transport) {
        use WqeOpcode as Op;
        let Some(opcode) = opcode else { return self.take_rest() };
        let is_local = matches!(opcode, Op::Nop | Op::Umr | Op::LocalInval | Op::Fmr | Op::SetPsv);
        if !is_local && transport == Transport::Xrc && self.take::<WqeXrcSeg>("XRC segment").is_none() {
            return;
        }
        match opcode {
            Op::Nop => {}
            Op::Send | Op::SendImm | Op::SendInval => {
                if transport == Transport::Ud && !self.datagram() {
                    return;
                }
                self.payload(true);
            }
            Op::RdmaWrite | Op::RdmaWriteImm | Op::RdmaRead => self.rdma(opcode),
            Op::AtomicCs | Op::AtomicFa | Op::AtomicMaskedCs | Op::AtomicMaskedFa => {
                self.atomic(opcode, ctrl.get(WqeCtrlSeg::OPMOD));
            }
            Op::Umr => self.umr(ctrl),
            Op::Tso | Op::Fmr | Op::LocalInval | Op::SetPsv => {
                let here = self.here();
                self.out.warning(here, format!("the segments of {} are not decoded", opcode.name()));
                return self.take_rest();
            }
        }
        if self.remaining() > 0 {
            let text = format!("{} bytes after the last segment of {}", self.remaining(), self.name);
            let here = self.here();
            self.out.error(here, text);
            self.take_rest();
        }
    }

    fn datagram(&mut self) -> bool {
        let at = self.here();
        let Some(av) = self.take::<WqeDatagramSeg>("datagram segment") else { return false };
        if !av.is_set(WqeDatagramSeg::EXT) {
            self.out.error(at + 8, "ext is clear: the address vector is then 16 bytes, without GID");
        }
        if !av.is_set(WqeDatagramSeg::GRH) && av.bytes(WqeDatagramSeg::RGID).iter().any(|byte| *byte != 0) {
            self.out.note(at + 32, "grh is clear, so rgid is not used");
        }
        true
    }

    fn rdma(&mut self, opcode: WqeOpcode) {
        let at = self.here();
        let Some(raddr) = self.take::<WqeRaddrSeg>("remote address segment") else { return };
        let bytes = self.payload(opcode != WqeOpcode::RdmaRead);
        if raddr.get64(WqeRaddrSeg::RADDR).checked_add(bytes.saturating_sub(1)).is_none() {
            self.out.error(at, format!("{bytes} bytes from here run over the end of the address space"));
        }
        if bytes == 0 {
            self.out.note(at, "nothing is moved: address and rkey are not looked at");
        }
    }

    fn atomic(&mut self, opcode: WqeOpcode, opmod: u32) {
        let is_masked = matches!(opcode, WqeOpcode::AtomicMaskedCs | WqeOpcode::AtomicMaskedFa);
        let size = match (is_masked, [4_u32, 8].into_iter().find(|size| extended_atomic::opmod(size.trailing_zeros()) == opmod))
        {
            (false, _) => 8,
            (true, Some(size)) => size,
            (true, None) => {
                let here = self.here();
                self.out.error(here, format!("opmod {opmod:#x} is that of no atomic on 4 or 8 bytes"));
                return self.take_rest();
            }
        };
        let at = self.here();
        let Some(raddr) = self.take::<WqeRaddrSeg>("remote address segment") else { return };
        let addr = raddr.get64(WqeRaddrSeg::RADDR);
        if addr % u64::from(size) != 0 {
            self.out.error(at, format!("an atomic works on {size} bytes aligned to {size}, and {addr:#x} is not"));
        }
        let has_operands = match (opcode, size) {
            (WqeOpcode::AtomicMaskedCs, 4) => self.take::<WqeMaskedSwap32Seg>("masked compare-and-swap segment").is_some(),
            (WqeOpcode::AtomicMaskedCs, _) => self.take::<WqeMaskedSwap64Seg>("masked compare-and-swap segment").is_some(),
            (WqeOpcode::AtomicMaskedFa, 4) => self.take::<WqeMaskedAdd32Seg>("masked fetch-and-add segment").is_some(),
            (WqeOpcode::AtomicMaskedFa, _) => self.take::<WqeMaskedAdd64Seg>("masked fetch-and-add segment").is_some(),
            _ => self.take::<WqeAtomicSeg>("atomic segment").is_some(),
        };
        if !has_operands {
            return;
        }
        let at = self.here();
        let Some(data) = self.take::<WqeDataSeg>("data segment (result)") else { return };
        let count = data.get(WqeDataSeg::BYTE_COUNT);
        if count != size {
            self.out.error(at, format!("the result of an atomic is {size} bytes, and byte_count is {count:#x}"));
        }
    }

    /// Decodes the data segments up to the end of the WQE. Returns the total length of their data.
    fn payload(&mut self, may_inline: bool) -> u64 {
        let start = self.here();
        let mut total = 0u64;
        let mut index = 0;
        while self.remaining() > 0 {
            let at = self.here();
            let head = self.bytes.get(self.at..).and_then(View::<WqeInlineSeg>::new);
            let counted = match head {
                Some(head) if head.is_set(WqeInlineSeg::INLINE) => {
                    if !may_inline {
                        self.out.error(at, format!("{} cannot put what it reads inline", self.name));
                    }
                    self.inline(&head)
                }
                _ => {
                    let Some(data) = self.take::<WqeDataSeg>(&format!("data segment {index}")) else { break };
                    check_data(&mut self.out, &data, at);
                    data_length(&data)
                }
            };
            total = total.saturating_add(counted);
            index += 1;
        }
        if total > MAX_MESSAGE {
            self.out.error(start, format!("the message is {total} bytes long; the greatest has 2^31"));
        }
        total
    }

    fn inline(&mut self, head: &View<'_, WqeInlineSeg>) -> u64 {
        let at = self.here();
        let len = head.get(WqeInlineSeg::BYTE_COUNT) as usize;
        self.out.section::<WqeInlineSeg>("inline data segment", head.as_bytes(), at);
        let room = self.remaining() - WqeInlineSeg::SIZE;
        if len > room {
            let text = format!("byte_count says {len} inline bytes, and the WQE has {room} after it");
            self.out.error(at, text);
        } else if len == 0 {
            self.out.warning(at, "an inline segment without bytes");
        }
        let from = self.at + WqeInlineSeg::SIZE;
        let bytes = self.bytes.get(from..).unwrap_or_default();
        let bytes = bytes.get(..len).unwrap_or(bytes);
        if !bytes.is_empty() {
            self.out.payload("inline bytes", bytes, self.base + from);
        }
        let span = (WqeInlineSeg::SIZE + bytes.len()).next_multiple_of(DS_UNIT);
        self.at = (self.at + span).min(self.bytes.len());
        len as u64
    }

    fn check_signature(&mut self, ctrl: &View<'_, WqeCtrlSeg>, len: usize) {
        // rdma-core: the signature makes the exclusive or of all bytes 0xff.
        if !ctrl.is_set(WqeCtrlSeg::SIGNATURE) || self.bytes.len() < len {
            return;
        }
        let all = self.bytes.iter().fold(0, |all, byte| all ^ byte);
        if all != 0xff {
            let wanted = ctrl.get(WqeCtrlSeg::SIGNATURE) ^ u32::from(all ^ 0xff);
            self.out.warning(self.base + 8, format!("the signature does not fit the bytes: {wanted:#04x} would"));
        }
    }
}

/// Returns the length of the data of a data segment in bytes.
pub(crate) fn data_length(data: &View<'_, WqeDataSeg>) -> u64 {
    match data.get(WqeDataSeg::BYTE_COUNT) {
        0 => MAX_MESSAGE,
        count => count.into(),
    }
}

pub(crate) fn check_data(out: &mut Decoded, data: &View<'_, WqeDataSeg>, at: usize) {
    let addr = data.get64(WqeDataSeg::ADDR);
    let len = data_length(data);
    if data.get(WqeDataSeg::BYTE_COUNT) == 0 {
        out.warning(at, "byte_count 0 stands for 2^31 bytes; an empty data segment is left out instead");
    }
    if addr.checked_add(len - 1).is_none() {
        out.error(at + 8, format!("{len} bytes from {addr:#x} run over the end of the address space"));
    }
}
