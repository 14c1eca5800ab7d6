//! Traps: what the port's agent tells the subnet manager of itself (IBTA 13.4.9, 14.2.5.1, 14.3.9).

use std::collections::VecDeque;
use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{KeyViolationNotice, MKeyViolationNotice, Notice, ViewMut};

use super::mad::{MAD, MAX_REPORTED_HOPS, at, class, double_word, long, method, word};
use super::port_info::SUBNET_TIMEOUT;
use crate::packet::{Grh, InfiniBandLink, Packet, TransportPart};

/// `TrapNumber` (IBTA table 131).
mod number {
    pub(super) const BAD_M_KEY: u16 = 256;
    pub(super) const BAD_P_KEY: u16 = 257;
    pub(super) const BAD_Q_KEY: u16 = 258;
}

/// Attribute of a trap.
pub(super) const NOTICE: u16 = 0x02;
/// Least time between two traps: the subnet's timeout, 4.096 microseconds times 2 to the 18th (14.2.5.6, `SubnetTimeOut`).
const INTERVAL: Duration = Duration::from_nanos(4096 << SUBNET_TIMEOUT);
/// Times that a trap is sent that nobody represses.
const REPEATS: u32 = 8;

/// A packet with a wrong key: who sent it, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongKey {
    key: u32,
    sl: u8,
    lids: [u16; 2],
    qpns: [u32; 2],
    gids: [[u8; 16]; 2],
}

/// What a subnet manager wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// A datagram of subnet management without the key of the port's manager.
    Management {
        /// LID of who sent it.
        from: u16,
        /// The datagram.
        mad: Box<[u8; MAD]>,
    },
    /// A packet of another partition.
    Partition(WrongKey),
    /// A datagram with another queue key.
    Queue(WrongKey),
}

impl WrongKey {
    fn of(packet: &Packet<'_>, key: u32) -> Self {
        let InfiniBandLink { lrh, grh } = packet.link.infiniband().copied().unwrap_or_default();
        let Grh { sgid, dgid, .. } = grh.unwrap_or_default();
        let TransportPart { bth, deth, .. } = &packet.transport;
        Self {
            key,
            sl: lrh.sl,
            lids: [lrh.slid, lrh.dlid],
            // A packet of a connection does not say which queue pair it is from.
            qpns: [deth.map_or(0, |deth| deth.source_qpn), bth.dest_qpn],
            gids: [sgid, dgid],
        }
    }
}

impl Violation {
    /// A packet of another partition than its queue pair's.
    pub(crate) fn of_partition(packet: &Packet<'_>) -> Self {
        Self::Partition(WrongKey::of(packet, packet.transport.bth.pkey.into()))
    }

    /// A datagram with another queue key than its queue pair's.
    pub(crate) fn of_queue_key(packet: &Packet<'_>) -> Self {
        Self::Queue(WrongKey::of(packet, packet.transport.deth.map_or(0, |deth| deth.qkey)))
    }

    pub(crate) fn number(&self) -> u16 {
        match self {
            Self::Management { .. } => number::BAD_M_KEY,
            Self::Partition(_) => number::BAD_P_KEY,
            Self::Queue(_) => number::BAD_Q_KEY,
        }
    }

    /// Writes the details of the notice.
    fn describe(&self, data: &mut [u8]) {
        match self {
            Self::Management { from, mad } => {
                /// The datagram came by a directed route, which is here, and which is cut.
                const DIRECTED: u32 = 1 << 7;
                const CUT: u32 = 1 << 6;
                let mad: &[u8; MAD] = mad;
                let Some(mut notice) = ViewMut::<MKeyViolationNotice>::new(data) else { return };
                notice
                    .set(MKeyViolationNotice::LID, (*from).into())
                    .set(MKeyViolationNotice::METHOD, mad[at::METHOD].into())
                    .set(MKeyViolationNotice::ATTRIBUTE, word(mad, at::ATTRIBUTE).into())
                    .set(MKeyViolationNotice::MODIFIER, double_word(mad, at::MODIFIER));
                // M_KEY stays 0. It would be the key of the subnet's manager, if a host has made itself the manager of its port
                // and so gets the trap.
                if mad[at::CLASS] == class::DIRECTED_ROUTE {
                    let hops = usize::from(mad[at::HOP_COUNT]);
                    let shown = hops.min(MAX_REPORTED_HOPS);
                    let cut = if hops > shown { CUT } else { 0 };
                    // Its first entry is not in use (14.2.2.4).
                    let path = mad.get(at::RETURN_PATH..).and_then(|path| path.get(..shown)).unwrap_or_default();
                    notice
                        .set(MKeyViolationNotice::DR_SLID, word(mad, at::DR_SLID).into())
                        .set(MKeyViolationNotice::DR_HOPS, DIRECTED | cut | shown as u32)
                        .set_bytes(MKeyViolationNotice::DR_RETURN_PATH, path);
                }
            }
            Self::Partition(wrong) | Self::Queue(wrong) => {
                let WrongKey { key, sl, lids: [from, to], qpns: [from_qpn, to_qpn], gids: [from_gid, to_gid] } = wrong;
                let Some(mut notice) = ViewMut::<KeyViolationNotice>::new(data) else { return };
                notice
                    .set(KeyViolationNotice::LID1, (*from).into())
                    .set(KeyViolationNotice::LID2, (*to).into())
                    .set(KeyViolationNotice::KEY, *key)
                    .set(KeyViolationNotice::SL, (*sl).into())
                    .set(KeyViolationNotice::QP1, *from_qpn)
                    .set(KeyViolationNotice::QP2, *to_qpn)
                    .set_bytes(KeyViolationNotice::GID1, from_gid)
                    .set_bytes(KeyViolationNotice::GID2, to_gid);
            }
        }
    }
}

/// A trap that its receiver has not repressed.
#[derive(Clone, Debug)]
struct Trap {
    violation: Violation,
    /// `TransactionID`.
    id: u64,
    /// Times that it is sent yet.
    left: u32,
}

/// The traps of a port: of each number the one of the first violation, until the manager has it. Later ones meanwhile are
/// counted in PortInfo alone. So whoever violates without end causes one datagram in [`INTERVAL`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Traps {
    waiting: VecDeque<Trap>,
    last_id: u64,
    /// When the next may be sent.
    not_before: Instant,
}

impl Traps {
    /// Has a violation reported, unless one of its number is.
    pub(crate) fn report(&mut self, violation: Violation) {
        if self.waiting.iter().any(|trap| trap.violation.number() == violation.number()) {
            return;
        }
        self.last_id += 1;
        self.waiting.push_back(Trap { violation, id: self.last_id, left: REPEATS });
    }

    /// Nobody is there who wants to know.
    pub(crate) fn forget(&mut self) {
        self.waiting.clear();
    }

    /// The manager has the trap to which this TrapRepress belongs.
    pub(super) fn repress(&mut self, mad: &[u8; MAD]) {
        let id = long(mad, at::TRANSACTION);
        self.waiting.retain(|trap| trap.id != id);
    }

    /// Returns when [`Traps::next`] returns one.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.not_before)
    }

    /// Returns the trap to send at `now` from the port with this LID. Those that wait take turns.
    pub(crate) fn next(&mut self, now: Instant, lid: u16) -> Option<[u8; MAD]> {
        if now < self.not_before {
            return None;
        }
        let trap = self.waiting.pop_front()?;
        self.not_before = now.after(INTERVAL);
        let mad = trap.mad(lid);
        if trap.left > 1 {
            self.waiting.push_back(Trap { left: trap.left - 1, ..trap });
        }
        Some(mad)
    }
}

impl Trap {
    /// SubnTrap(Notice). Its M_Key is 0 (14.2.4).
    fn mad(&self, lid: u16) -> [u8; MAD] {
        const GENERIC: u32 = 1;
        const SECURITY: u32 = 2;
        const CHANNEL_ADAPTER: u32 = 1;
        let mut mad = [0; MAD];
        (mad[at::BASE_VERSION], mad[at::CLASS_VERSION]) = (1, 1);
        (mad[at::CLASS], mad[at::METHOD]) = (class::LID_ROUTED, method::TRAP);
        let mut put = |place: usize, bytes: &[u8]| mad.iter_mut().skip(place).zip(bytes).for_each(|(to, from)| *to = *from);
        put(at::TRANSACTION, &self.id.to_be_bytes());
        put(at::ATTRIBUTE, &NOTICE.to_be_bytes());
        let Some(data) = mad.get_mut(at::DATA..) else { return mad };
        if let Some(mut notice) = ViewMut::<Notice>::new(data) {
            notice
                .set(Notice::IS_GENERIC, GENERIC)
                .set(Notice::TYPE, SECURITY)
                .set(Notice::PRODUCER_TYPE, CHANNEL_ADAPTER)
                .set(Notice::TRAP_NUMBER, self.violation.number().into())
                .set(Notice::ISSUER_LID, lid.into());
        }
        self.violation.describe(data);
        mad
    }
}
