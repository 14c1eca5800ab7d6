//! A request with everything that it points to, and what atomics do.

use bareverbs::error::{PostSendError, SgeFault};
use bareverbs::{
    Destination, MaskedOp, MaskedWr, Payload, Remote, Rkey, SendBatch, SendFlags, SendOp, SendQueue, SendWr, Sge, Srqn,
    WcOpcode,
};
use bareverbs_testing::Driver;

use crate::program::{How, Kind};

/// A request with everything that it points to.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) wr_id: u64,
    pub(super) kind: Kind,
    pub(super) flags: SendFlags,
    pub(super) sges: Vec<Sge>,
    pub(super) inline: Option<Vec<u8>>,
    pub(super) remote: Remote,
    pub(super) invalidates: Rkey,
    pub(super) compare: u64,
    pub(super) to: Option<Destination>,
    /// The shared receive queue that it names, of XRC, and which one that is; `None` if it is none of the peer's domain.
    pub(super) srqn: Option<Srqn>,
    pub(super) queue: Option<usize>,
    /// The verbs refuse it.
    pub(super) refused: Option<Refusal>,
}

/// Why the verbs refuse a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Key,
    Domain,
    Access,
    Range,
    /// The address handle is of another domain.
    Address,
}

impl Refusal {
    /// Returns the refusal that an error is.
    pub(super) const fn of(error: &PostSendError) -> Option<Self> {
        Some(match error {
            PostSendError::AddressDomain => Self::Address,
            PostSendError::Sge { fault: SgeFault::UnknownKey, .. } => Self::Key,
            PostSendError::Sge { fault: SgeFault::Domain, .. } => Self::Domain,
            PostSendError::Sge { fault: SgeFault::Access, .. } => Self::Access,
            PostSendError::Sge { fault: SgeFault::Range { .. }, .. } => Self::Range,
            _ => return None,
        })
    }
}

/// What the key of a request opens.
pub(super) enum Opened {
    Nothing,
    Bytes { region: usize, at: usize },
}

impl Ready {
    pub(super) fn imm(&self) -> [u8; 4] {
        (self.wr_id as u32).to_be_bytes()
    }

    /// What it adds or swaps in.
    pub(super) fn operand(&self) -> u64 {
        self.wr_id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    pub(super) fn wr(&self) -> SendWr<'_> {
        let payload = match &self.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Sges(&self.sges),
        };
        let (remote, imm) = (self.remote, self.imm());
        let op = match (self.kind, &self.to) {
            (Kind::Send, Some(to)) => SendOp::SendTo { to, payload },
            (Kind::SendWithImm, Some(to)) => SendOp::SendToWithImm { to, payload, imm },
            (Kind::Send, None) => SendOp::Send { payload },
            (Kind::SendWithImm, None) => SendOp::SendWithImm { payload, imm },
            (Kind::SendWithInv(_) | Kind::SendWithInvFast, _) => SendOp::SendWithInv { payload, rkey: self.invalidates },
            (Kind::Write, _) => SendOp::Write { payload, remote },
            (Kind::WriteWithImm, _) => SendOp::WriteWithImm { payload, remote, imm },
            (Kind::Read, _) => SendOp::Read { sges: &self.sges, remote },
            (Kind::CompareSwap(_), _) => {
                SendOp::CompareSwap { sge: self.sges[0], remote, compare: self.compare, swap: self.operand() }
            }
            (Kind::FetchAdd, _) => SendOp::FetchAdd { sge: self.sges[0], remote, add: self.operand() },
            (Kind::MaskedSwap { .. } | Kind::MaskedAdd { .. }, _) => unreachable!("posted by a call of their own"),
        };
        SendWr { wr_id: self.wr_id, flags: self.flags, op }
    }

    pub(super) const fn opcode(&self) -> WcOpcode {
        match self.kind {
            Kind::Send | Kind::SendWithImm | Kind::SendWithInv(_) | Kind::SendWithInvFast => WcOpcode::Send,
            Kind::Write | Kind::WriteWithImm => WcOpcode::RdmaWrite,
            Kind::Read => WcOpcode::RdmaRead,
            Kind::CompareSwap(_) | Kind::MaskedSwap { .. } => WcOpcode::CompSwap,
            Kind::FetchAdd | Kind::MaskedAdd { .. } => WcOpcode::FetchAdd,
        }
    }

    /// Returns the bits that count of a masked atomic: few or many.
    pub(super) fn mask(&self, which: u32) -> u64 {
        let bits = self.operand().rotate_left(which).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        match bits >> 61 {
            0 => 0,
            1 => u64::MAX,
            2..5 => bits & bits.rotate_left(23) & bits.rotate_left(41),
            _ => bits,
        }
    }

    /// Returns a masked atomic.
    pub(super) fn masked(&self) -> Option<MaskedWr> {
        let (value, compare, first, second) = (self.operand(), self.compare, self.mask(7), self.mask(31));
        let op = match self.kind {
            Kind::MaskedSwap { wide: true, .. } => {
                MaskedOp::CompareSwap8 { compare, compare_mask: first, swap: value, swap_mask: second }
            }
            Kind::MaskedSwap { .. } => MaskedOp::CompareSwap4 {
                compare: compare as u32,
                compare_mask: first as u32,
                swap: value as u32,
                swap_mask: second as u32,
            },
            Kind::MaskedAdd { wide: true } => MaskedOp::FetchAdd8 { add: value, boundary: first },
            Kind::MaskedAdd { .. } => MaskedOp::FetchAdd4 { add: value as u32, boundary: first as u32 },
            _ => return None,
        };
        Some(MaskedWr { wr_id: self.wr_id, flags: self.flags, op, remote: self.remote, sge: self.sges[0] })
    }

    /// Posts it as part of a batch.
    pub(super) fn post(&self, batch: &mut SendBatch<'_, Driver>) -> Result<(), PostSendError> {
        match (self.masked(), self.srqn) {
            (None, srqn) => batch.post(&named(&self.wr(), srqn)),
            (Some(wr), None) => batch.post_masked(&wr),
            (Some(wr), Some(srqn)) => batch.post_masked_to_srq(&wr, srqn),
        }
    }
}

/// Returns what an atomic leaves of a word, bit by bit: carries stop where the boundary has a bit.
pub(super) fn after(op: &MaskedOp, old: u64) -> u64 {
    let swap = |compare: u64, compare_mask: u64, swap: u64, mask: u64| {
        if (old ^ compare) & compare_mask == 0 { old & !mask | swap & mask } else { old }
    };
    let add = |add: u64, boundary: u64, bits: u32| {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..bits {
            let digit = (old >> bit & 1) + (add >> bit & 1) + carry;
            sum |= (digit & 1) << bit;
            carry = if boundary >> bit & 1 != 0 { 0 } else { digit >> 1 };
        }
        sum
    };
    match *op {
        MaskedOp::CompareSwap4 { compare, compare_mask, swap: new, swap_mask } => {
            swap(compare.into(), compare_mask.into(), new.into(), swap_mask.into())
        }
        MaskedOp::CompareSwap8 { compare, compare_mask, swap: new, swap_mask } => swap(compare, compare_mask, new, swap_mask),
        MaskedOp::FetchAdd4 { add: value, boundary } => add(value.into(), boundary.into(), 32),
        MaskedOp::FetchAdd8 { add: value, boundary } => add(value, boundary, 64),
    }
}

/// Returns the number in the bytes of a word, as the CPU has it.
pub(super) fn number(bytes: &[u8]) -> u64 {
    match bytes.try_into() {
        Ok(eight) => u64::from_ne_bytes(eight),
        Err(_) => u32::from_ne_bytes(bytes.try_into().expect("four")).into(),
    }
}

/// Returns the bytes of a number.
pub(super) fn bytes_of(number: u64, len: usize) -> Vec<u8> {
    if len == 8 { number.to_ne_bytes().to_vec() } else { (number as u32).to_ne_bytes().to_vec() }
}

/// Returns pieces of a place.
pub(super) fn pieces(base: Sge, len: usize, count: usize) -> Vec<Sge> {
    let count = if len < count { 1 } else { count };
    if len == 0 {
        return Vec::new();
    }
    let cut = |piece| len * piece / count;
    let piece = |n| Sge { addr: base.addr + cut(n) as u64, length: (cut(n + 1) - cut(n)) as u32, lkey: base.lkey };
    (0..count).map(piece).collect()
}

/// Returns a request, which names a shared receive queue if it is one of XRC.
pub(super) const fn named<'a>(wr: &'a SendWr<'a>, srqn: Option<Srqn>) -> SendWr<'a> {
    match srqn {
        Some(srqn) => wr.to_srq(srqn),
        None => *wr,
    }
}

/// Posts requests, of which the last may be one that the verbs refuse.
pub(super) fn hand_over(send: &mut SendQueue<'_, Driver>, how: How, ready: &[Ready]) -> Result<(), String> {
    let refused = ready.last().and_then(|last| last.refused);
    let good = ready.len() - usize::from(refused.is_some());
    let result = match how {
        // Masked atomics have a call of their own, and no place in a list.
        How::List if !ready.iter().any(|ready| ready.kind.is_masked()) => {
            let plain: Vec<_> = ready.iter().map(Ready::wr).collect();
            let list: Vec<_> = plain.iter().zip(ready).map(|(wr, ready)| named(wr, ready.srqn)).collect();
            send.post_list(&list).map_err(|bad| (bad.index, bad.error))
        }
        How::Single => ready.iter().enumerate().try_for_each(|(at, ready)| {
            let posted = match (ready.masked(), ready.srqn) {
                (None, srqn) => send.post(&named(&ready.wr(), srqn)),
                (Some(wr), None) => send.post_masked(&wr),
                (Some(wr), Some(srqn)) => send.post_masked_to_srq(&wr, srqn),
            };
            posted.map_err(|error| (at, error))
        }),
        How::Batch | How::List => {
            let mut batch = send.batch();
            ready.iter().enumerate().try_for_each(|(at, ready)| ready.post(&mut batch).map_err(|error| (at, error)))
        }
    };
    match result {
        Ok(()) if refused.is_none() => Ok(()),
        Err((index, error)) if refused.is_some() && index == good && Refusal::of(&error) == refused => Ok(()),
        other => Err(format!("posting gave {other:?} for {ready:?}")),
    }
}
