//! What a device refused or dropped, and why. A card says less to its driver, or nothing: one status for every refused access, and no
//! word of a datagram that it drops.

use std::collections::VecDeque;
use std::fmt;

/// What an access of a queue pair through a memory key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyUse {
    /// Reads for a request of this host.
    LocalRead,
    /// Writes for a request or a receive of this host.
    LocalWrite,
    /// RDMA READ of the peer.
    RemoteRead,
    /// RDMA WRITE of the peer.
    RemoteWrite,
    /// An atomic of the peer.
    RemoteAtomic,
}

/// Why a memory key does not open the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyFault {
    /// No key here has this index: never made, destroyed, or another host's.
    Unknown,
    /// There is a key with this index and with another tag, its lowest byte: it was made anew, or a window was bound again.
    Tag {
        /// The tag that it has.
        tag: u8,
    },
    /// Nothing is registered or bound with a key of this index: a window or fast registration that was invalidated, or is not bound yet.
    Free,
    /// It belongs to another protection domain.
    Domain,
    /// It is a window of another queue pair.
    QueuePair,
    /// Its region or window does not have the right.
    Right,
    /// Bytes outside.
    Range {
        /// First byte that the key opens.
        start: u64,
        /// How many bytes it opens.
        len: u64,
    },
    /// Its translations end before the bytes, or lead nowhere.
    Translation,
    /// The host has no memory where it leads.
    Memory,
}

/// One thing that a device refused or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// A memory key did not open the bytes that a request names.
    Access {
        /// The queue pair of this device.
        qpn: u32,
        /// What was to be done.
        usage: KeyUse,
        /// The key.
        key: u32,
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Why not.
        fault: KeyFault,
    },
    /// A peer asked a queue pair for an operation whose right its attributes lack (`ibv_qp_attr::qp_access_flags`).
    QpRight {
        /// The queue pair of this device.
        qpn: u32,
        /// The operation.
        usage: KeyUse,
    },
    /// A message of a peer was to invalidate a key, and could not: it is no registration or window of the queue pair's, or is free. The
    /// peer gets no answer.
    Invalidation {
        /// The queue pair of this device.
        qpn: u32,
        /// The key.
        key: u32,
        /// Why not.
        fault: KeyFault,
    },
    /// A request of this host to bind a window, to register or to invalidate by a request was not done: it ended with a memory window bind
    /// error.
    KeyChange {
        /// The queue pair of this device.
        qpn: u32,
        /// The key that the request names: the one before the change.
        key: u32,
        /// Whether it was to be bound, and is.
        is_bound: bool,
    },
    /// A request of this host has an operation that the transport of its queue pair lacks. It ended with a local QP operation error.
    Operation {
        /// The queue pair of this device.
        qpn: u32,
        /// Name of the operation.
        operation: &'static str,
        /// Name of the transport.
        transport: &'static str,
    },
    /// A request to a target of XRC names a shared receive queue that is none of its domain.
    SharedQueue {
        /// The target.
        qpn: u32,
        /// The number in the request.
        srqn: u32,
        /// What it is.
        why: &'static str,
    },
    /// The first request that came to a queue pair has another PSN than the queue pair expects: its peer counts otherwise, or what was
    /// before it is lost. Others are named no more, until the next RESET.
    Psn {
        /// The queue pair of this device.
        qpn: u32,
        /// That of the request.
        psn: u32,
        /// That of the queue pair (`ibv_qp_attr::rq_psn`).
        expected: u32,
    },
    /// A packet of a request is longer than the path MTU of the queue pair, or shorter though more of its message follow.
    PacketLength {
        /// The queue pair of this device.
        qpn: u32,
        /// Bytes of its payload.
        len: u64,
        /// Path MTU of the queue pair (`ibv_qp_attr::path_mtu`).
        mtu: u64,
    },
    /// The address of an atomic is no multiple of 8.
    AtomicAlignment {
        /// The queue pair of this device.
        qpn: u32,
        /// The address.
        addr: u64,
    },
    /// A message found no receive: of a reliable connection the peer got an RNR NAK and tries again, of others it is lost.
    NoReceive {
        /// The queue pair of this device.
        qpn: u32,
        /// The shared receive queue that it takes from.
        srqn: Option<u32>,
        /// Whether the peer tries again.
        answered: bool,
    },
    /// The peer has no receive posted: an RNR NAK came, and the request is sent again after the time in it.
    RnrNak {
        /// The queue pair of this device.
        qpn: u32,
    },
    /// A message is longer than the receive that it found.
    ReceiveTooShort {
        /// The queue pair of this device.
        qpn: u32,
        /// Bytes of the receive.
        room: u64,
        /// Bytes that had come, or of a datagram all, with the 40 bytes before it.
        needed: u64,
    },
    /// A datagram had another Q_Key than the queue pair.
    QueueKey {
        /// The queue pair of this device.
        qpn: u32,
        /// That of the datagram.
        qkey: u32,
        /// That of the queue pair.
        expected: u32,
    },
    /// A packet for a queue pair that does not take it: there is none with the number, its transport or its peer is another, or it
    /// is not yet in RTR.
    NoTaker {
        /// The number in the packet.
        qpn: u32,
    },
    /// Any other packet that was dropped.
    Packet {
        /// Why.
        why: &'static str,
    },
    /// A request or a path names an entry of the GID table that is empty, or that the table does not have.
    NoGid {
        /// The queue pair of this device.
        qpn: u32,
        /// Index of the entry.
        index: u32,
        /// Entries of the table.
        entries: u32,
    },
    /// A completion queue overran: a completion came when all its entries were in use.
    CqOverrun {
        /// The completion queue.
        cqn: u32,
        /// Entries.
        entries: u32,
    },
    /// A firmware command was refused.
    Command {
        /// Its name.
        name: &'static str,
        /// Its status.
        status: &'static str,
        /// Why, if that is known.
        why: &'static str,
    },
}

/// Rejections of different content that are kept, so that nobody can fill the memory of this process.
const KEPT: usize = 64;

/// The newest rejections.
#[derive(Clone, Debug, Default)]
pub struct Rejections {
    /// Each once, with how often it happened; the newest is the last.
    kept: VecDeque<(Rejection, u64)>,
}

impl Rejections {
    /// Adds one. It may be one that is there already: then that is the newest.
    pub(crate) fn report(&mut self, rejection: Rejection) {
        let same = self.kept.iter().position(|(other, _)| *other == rejection);
        let before = same.and_then(|index| self.kept.remove(index)).map_or(0, |(_, times)| times);
        if self.kept.len() >= KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((rejection, before.saturating_add(1)));
    }

    /// Returns the last 64 that differ, each with how often it happened. The newest is the last.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Rejection, u64)> {
        self.kept.iter().copied()
    }
}

impl fmt::Display for KeyUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalRead => "local read",
            Self::LocalWrite => "local write",
            Self::RemoteRead => "RDMA READ",
            Self::RemoteWrite => "RDMA WRITE",
            Self::RemoteAtomic => "atomic",
        })
    }
}

impl fmt::Display for KeyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unknown => f.write_str("no region or window of this host has the key"),
            Self::Tag { tag } => write!(f, "the key was made or bound anew: its tag, the lowest byte, is {tag:#x} now"),
            Self::Free => f.write_str("nothing is bound or registered with the key: it was invalidated, or never bound"),
            Self::Domain => f.write_str("the key belongs to another protection domain than the queue pair"),
            Self::QueuePair => f.write_str("the window is another queue pair's"),
            Self::Right => f.write_str("its region or window lacks the right"),
            Self::Range { start, len } => {
                let end = start.wrapping_add(len);
                let s = if len == 1 { "" } else { "s" };
                write!(f, "the key opens {len} byte{s}, from {start:#x} to before {end:#x}")
            }
            Self::Translation => f.write_str("the key leads nowhere there"),
            Self::Memory => f.write_str("the host has no memory there"),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Access { qpn, usage, key, addr, len, fault } => {
                let s = if len == 1 { "" } else { "s" };
                write!(f, "QP {qpn:#x}: {usage} of {len} byte{s} at {addr:#x} with key {key:#x} refused: {fault}")
            }
            Self::QpRight { qpn, usage } => {
                write!(f, "QP {qpn:#x}: {usage} refused: the queue pair lacks the right (QpAttr::access")?;
                // The driver gives no right to what may have no response.
                let responds = matches!(usage, KeyUse::RemoteRead | KeyUse::RemoteAtomic);
                f.write_str(if responds { ", or its max_dest_rd_atomic is 0)" } else { ")" })
            }
            Self::Invalidation { qpn, key, fault } => {
                write!(f, "QP {qpn:#x}: key {key:#x} not invalidated, and no answer sent: {fault}")
            }
            Self::KeyChange { qpn, key, is_bound } => {
                write!(f, "QP {qpn:#x}: bind, registration or invalidation of key {key:#x} refused")?;
                f.write_str(if is_bound {
                    ": it is bound, and LOCAL_INV or a bind of length 0 must end that first"
                } else {
                    ""
                })
            }
            Self::Operation { qpn, operation, transport } => {
                write!(f, "QP {qpn:#x}: {operation} refused: {transport} has no such operation")
            }
            Self::SharedQueue { qpn, srqn, why } => {
                write!(f, "QP {qpn:#x}: request to shared receive queue {srqn:#x} refused: {why}")
            }
            Self::Psn { qpn, psn, expected } => write!(
                f,
                "QP {qpn:#x}: the first request to come has PSN {psn:#x}, expected is {expected:#x}: sq_psn of its peer is another \
                 (QpAttr::rq_psn), or what preceded it is lost"
            ),
            Self::PacketLength { qpn, len, mtu } => write!(
                f,
                "QP {qpn:#x}: packet of {len} bytes refused: the path MTU here is {mtu}, that of the peer another (QpAttr::path_mtu)"
            ),
            Self::AtomicAlignment { qpn, addr } => {
                write!(f, "QP {qpn:#x}: atomic refused: address {addr:#x} is no multiple of 8")
            }
            Self::NoReceive { qpn, srqn, answered } => {
                write!(f, "QP {qpn:#x}: no receive posted")?;
                if let Some(srqn) = srqn {
                    write!(f, " in shared receive queue {srqn:#x}")?;
                }
                f.write_str(if answered { ", RNR NAK sent" } else { ", message dropped" })
            }
            Self::RnrNak { qpn } => write!(f, "QP {qpn:#x} waits: RNR NAK, its peer has no receive posted"),
            Self::ReceiveTooShort { qpn, room, needed } => {
                write!(f, "QP {qpn:#x}: message dropped: it needs {needed} bytes or more, its receive has {room}")
            }
            Self::QueueKey { qpn, qkey, expected } => {
                write!(f, "QP {qpn:#x}: datagram dropped: its Q_Key is {qkey:#x}, the queue pair's {expected:#x}")
            }
            Self::NoTaker { qpn } => {
                write!(f, "packet for QP {qpn:#x} dropped: no queue pair of this number, transport and peer takes packets")
            }
            Self::Packet { why } => write!(f, "packet dropped: {why}"),
            Self::NoGid { qpn, index, entries } => {
                write!(
                    f,
                    "QP {qpn:#x}: entry {index} of the GID table is empty, or not one of its entries 0 to {}",
                    entries.saturating_sub(1)
                )
            }
            Self::CqOverrun { cqn, entries } => {
                write!(f, "CQ {cqn:#x} overran: it has {entries} entries, and ring_sizes says how many suffice")
            }
            Self::Command { name, status, why } => {
                write!(f, "{name} refused, {status}")?;
                if why.is_empty() { Ok(()) } else { write!(f, ": {why}") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_a_repeated_one_is_counted() {
        let mut rejections = Rejections::default();
        for qpn in 0..100 {
            rejections.report(Rejection::NoTaker { qpn });
        }
        for _ in 0..1000 {
            rejections.report(Rejection::NoTaker { qpn: 50 });
        }
        let kept: Vec<_> = rejections.iter().collect();
        assert_eq!(kept.len(), KEPT);
        assert_eq!((kept[0], kept[63]), ((Rejection::NoTaker { qpn: 36 }, 1), (Rejection::NoTaker { qpn: 50 }, 1001)));
    }
}
