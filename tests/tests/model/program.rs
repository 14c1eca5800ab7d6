//! Random programs: what they are made of, and how one is drawn.

use std::fmt;

use bareverbs::{Access, QpType};
use proptest::prelude::*;

use crate::xrc::QUEUES;

/// Devices.
pub(crate) const SIDES: usize = 2;
/// Protection domains of each device. Regions, windows, pairs and shared receive queues of XRC take turns: those with an even index
/// are of the first, those with an odd one of the second. Each has one fast registration.
pub(crate) const DOMAINS: usize = 2;
/// Regions of each device.
pub(crate) const REGIONS: usize = 2 * DOMAINS;
/// Windows of each device.
pub(crate) const WINDOWS: usize = 2 * DOMAINS;
/// Completion queues of each device.
pub(crate) const CQS: usize = 2;

/// Returns the domain of a region, a window, a pair or a queue with this index.
pub(crate) const fn domain_of(index: usize) -> usize {
    index % DOMAINS
}

/// Returns the index of a neighbour that is of this domain.
pub(crate) const fn of_domain(index: usize, domain: usize) -> usize {
    index - index % DOMAINS + domain
}

/// A queue pair of each device, connected to the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) qp_type: QpType,
    /// It takes its receives from the shared receive queue of its device.
    pub(crate) shared: bool,
    /// Completion queues of sends and of receives.
    pub(crate) cqs: (usize, usize),
}

const fn pair(qp_type: QpType, shared: bool, cqs: (usize, usize)) -> Pair {
    Pair { qp_type, shared, cqs }
}

pub(crate) const PAIRS: [Pair; 8] = [
    pair(QpType::Rc, false, (0, 0)),
    pair(QpType::Rc, false, (0, 1)),
    pair(QpType::Rc, true, (1, 1)),
    pair(QpType::Rc, true, (1, 0)),
    pair(QpType::Uc, false, (0, 1)),
    pair(QpType::Ud, false, (1, 0)),
    pair(QpType::XrcSend, false, (0, 1)),
    pair(QpType::XrcSend, false, (1, 0)),
];

/// Bytes of a region that requests of one queue pair in one direction use. No other touches them, so that the order among queue pairs,
/// which nobody promises, does not matter.
pub(crate) const STRIPE: usize = 1024;
/// Part of a stripe that writes, messages and fenced reads use.
pub(crate) const MESSAGES: usize = 512;
/// Where the part begins that reads use without a fence.
pub(crate) const READS: usize = 512;
/// Where the words begin that atomics use.
pub(crate) const ATOMICS: usize = 896;
/// Bytes of a region.
pub(crate) const REGION: usize = PAIRS.len() * SIDES * STRIPE;
/// Bytes of a piece of a registration: half a stripe, which each request stays in.
pub(crate) const UNIT: usize = STRIPE / 2;
/// Pieces of a region.
pub(crate) const UNITS: usize = REGION / UNIT;
/// Longest message sent inline.
pub(crate) const INLINE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendWithImm,
    /// The window of the peer that it invalidates.
    SendWithInv(usize),
    /// The registration of the peer is invalidated.
    SendWithInvFast,
    Write,
    WriteWithImm,
    Read,
    /// Whether the word is what it compares with.
    CompareSwap(bool),
    FetchAdd,
    /// With masks, on four bytes or eight.
    MaskedSwap {
        wide: bool,
        matches: bool,
    },
    MaskedAdd {
        wide: bool,
    },
}

impl Kind {
    /// Returns the bytes of an atomic.
    pub(crate) const fn atomic(self) -> Option<usize> {
        match self {
            Self::CompareSwap(_) | Self::FetchAdd | Self::MaskedSwap { wide: true, .. } | Self::MaskedAdd { wide: true } => {
                Some(8)
            }
            Self::MaskedSwap { .. } | Self::MaskedAdd { .. } => Some(4),
            _ => None,
        }
    }

    pub(crate) const fn is_masked(self) -> bool {
        matches!(self, Self::MaskedSwap { .. } | Self::MaskedAdd { .. })
    }
}

/// Whose key a request carries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    Region(usize),
    Window(usize),
    Fast,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    LocalKey,
    LocalRange,
    LocalDomain,
    RemoteKey,
    RemoteRange,
    /// The peer's key is of another domain than what it is sent to; the address handle of a datagram is.
    RemoteDomain,
    /// The number of no shared receive queue of the peer's domain.
    Srq,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// Own region and offset in its stripe, reduced to what the kind may use; the same for the peer's.
    pub(crate) region: usize,
    pub(crate) offset: usize,
    pub(crate) key: Key,
    pub(crate) peer_offset: usize,
    pub(crate) len: usize,
    /// SGEs, from 1 to 3.
    pub(crate) pieces: usize,
    pub(crate) inline: bool,
    pub(crate) signaled: bool,
    /// A read among the bytes of messages, so that what follows needs a fence.
    pub(crate) overlaps: bool,
    pub(crate) wrong: Option<Wrong>,
    /// Which shared receive queue of the peer it names, of XRC.
    pub(crate) queue: usize,
    /// Its SGEs have the key of a registration, if their bytes have one.
    pub(crate) fast: bool,
}

/// A bind among others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) region: usize,
    /// In units of half a stripe; of length 0 it ends the binding.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) signaled: bool,
}

/// What of a request that binds or registers is of another domain than the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// The window, or what is registered.
    Key,
    Region,
}

/// A command that the device does not execute at once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    /// An object is made and destroyed again.
    Domain,
    Region,
    Window,
    Registration,
    CompletionQueue,
    QueuePair,
    SharedQueue,
    /// What is there is not taken away.
    Deregister(usize),
    FreeWindow(usize),
    DestroyQp(usize),
    Fail(usize),
    Reset(usize),
    /// What is there is not changed: neither by the command that makes the new key, nor by the one that ends the old key.
    Reregister {
        region: usize,
        end: bool,
    },
    Resize(usize),
    Query(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Refused,
    Undelivered,
    /// It is executed at once, and answered some milliseconds later.
    Late(u16),
}

/// How a device ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Somebody else resets it.
    Reset,
    Removed,
    /// Its firmware reports that only a reset helps.
    Fatal,
    /// A command has no answer.
    NoAnswer,
    /// The program takes it down, and lets it forget the objects.
    TornDown,
    /// The program destroys everything, then takes it down.
    Closed,
}

/// Requests of a lane at most.
pub(crate) const MAX_REQUESTS: usize = 5;

/// Requests beside those of other pairs.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) pair: usize,
    pub(crate) side: usize,
    pub(crate) how: How,
    pub(crate) requests: Vec<Request>,
    /// Receives that are posted meanwhile, at both ends.
    pub(crate) receives: usize,
}

/// How requests are handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Single,
    List,
    Batch,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Post {
        pair: usize,
        side: usize,
        how: How,
        requests: Vec<Request>,
    },
    Receive {
        pair: usize,
        side: usize,
        region: usize,
        offset: usize,
        len: usize,
        pieces: usize,
        /// The region is of another domain.
        foreign: bool,
    },
    /// Into the shared receive queue, or one of XRC.
    SharedReceive {
        side: usize,
        queue: Option<usize>,
        count: usize,
    },
    /// Registers pieces of a region by a request.
    Register {
        pair: usize,
        side: usize,
        region: usize,
        units: Vec<usize>,
        access: Access,
        foreign: Option<Foreign>,
    },
    /// Ends that by a request.
    Invalidate {
        pair: usize,
        side: usize,
        /// What is of another domain than the queue pair.
        foreign: bool,
    },
    Bind {
        pair: usize,
        side: usize,
        window: usize,
        region: usize,
        /// In units of half a stripe.
        at: usize,
        len: usize,
        access: Access,
        foreign: Option<Foreign>,
    },
    /// Binds of a window behind each other, none of which is waited for.
    BindChain {
        pair: usize,
        side: usize,
        window: usize,
        steps: Vec<Step>,
        /// The step before which a request fails.
        wrong: Option<usize>,
        /// The queue pair is reset before anything of it is polled.
        dropped: bool,
    },
    /// A type 1 bind of length 0, or a local invalidation.
    Unbind {
        side: usize,
        window: usize,
    },
    ReplaceWindow {
        side: usize,
        window: usize,
        type2: bool,
    },
    /// Deregisters a region and registers another.
    ReplaceRegion {
        side: usize,
        region: usize,
        access: Access,
    },
    /// Changes the rights of a region.
    Reregister {
        side: usize,
        region: usize,
        access: Access,
    },
    /// Moves a region to the other domain, and back.
    Move {
        side: usize,
        region: usize,
    },
    /// A domain is freed that has objects, and one that had none is named.
    FreeDomain {
        side: usize,
        domain: usize,
    },
    ResizeCq {
        side: usize,
        cq: usize,
        entries: u32,
    },
    /// A little time passes.
    Pass(u16),
    /// Everything completes and is compared. The completions are polled so many at a time, perhaps by threads.
    Settle {
        at_a_time: usize,
        threads: bool,
    },
    /// A queue pair is moved to ERR in the middle of these requests.
    Interrupt {
        pair: usize,
        side: usize,
        broken: usize,
        micros: u16,
        requests: Vec<Request>,
    },
    /// Requests to a queue pair in ERR.
    PostInError {
        pair: usize,
        side: usize,
    },
    /// Requests to a peer that the wire does not reach.
    PostUnreachable {
        pair: usize,
        side: usize,
        requests: Vec<Request>,
    },
    /// Both queue pairs are destroyed in the middle of these requests, and created again.
    Recreate {
        pair: usize,
        side: usize,
        micros: u16,
        requests: Vec<Request>,
    },
    /// A command fails amid what is in flight.
    Trouble {
        side: usize,
        command: Command,
        trouble: Trouble,
    },
    /// A device ends in the middle of these requests, and is brought up again.
    Restart {
        side: usize,
        loss: Loss,
        micros: u16,
        lanes: Vec<Lane>,
    },
    /// Each send queue, receive queue and completion queue has a thread.
    Together {
        at_a_time: usize,
        lanes: Vec<Lane>,
    },
    /// A drain of the send queue, and of the receive queue if it has one of its own.
    Drain {
        pair: usize,
        side: usize,
    },
}

/// How a program ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// Everything is destroyed.
    Clean,
    /// A device is pulled out while requests are in flight.
    Removed { side: usize },
}

#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Frames of a thousand that the wire loses, and that it doubles.
    pub(crate) loss: u16,
    pub(crate) ethernet: bool,
    /// Entries of completion queues have 128 bytes, on each device.
    pub(crate) large: [bool; SIDES],
    pub(crate) seed: u64,
    pub(crate) ops: Vec<Op>,
    pub(crate) end: End,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss, ethernet, large, seed, ops, end } = self;
        writeln!(f, "loss {loss} of 1000, Ethernet {ethernet}, entries of 128 bytes {large:?}, seed {seed}, end {end:?}")?;
        ops.iter().enumerate().try_for_each(|(at, op)| writeln!(f, "{at:4} {op:?}"))
    }
}

/// Rights of a region: usually all, so that most requests succeed.
fn rights() -> impl Strategy<Value = Access> {
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::MW_BIND;
    prop_oneof![
        6 => Just(all),
        1 => Just(Access::empty()),
        1 => Just(Access::LOCAL_WRITE),
        1 => Just(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        1 => Just(Access::REMOTE_READ | Access::MW_BIND),
        1 => Just(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::MW_BIND),
    ]
}

fn window_rights() -> impl Strategy<Value = Access> {
    (any::<[bool; 4]>()).prop_map(|[write, read, atomic, zero_based]| {
        let mut access = Access::empty();
        access.set(Access::REMOTE_WRITE, write);
        access.set(Access::REMOTE_READ, read);
        access.set(Access::REMOTE_ATOMIC, atomic);
        access.set(Access::ZERO_BASED, zero_based);
        access
    })
}

fn request() -> impl Strategy<Value = Request> {
    let kind = prop_oneof![
        4 => Just(Kind::Send),
        2 => Just(Kind::SendWithImm),
        2 => (0..WINDOWS).prop_map(Kind::SendWithInv),
        1 => Just(Kind::SendWithInvFast),
        4 => Just(Kind::Write),
        2 => Just(Kind::WriteWithImm),
        3 => Just(Kind::Read),
        1 => any::<bool>().prop_map(Kind::CompareSwap),
        1 => Just(Kind::FetchAdd),
        1 => any::<[bool; 2]>().prop_map(|[wide, matches]| Kind::MaskedSwap { wide, matches }),
        1 => any::<bool>().prop_map(|wide| Kind::MaskedAdd { wide }),
    ];
    let key =
        prop_oneof![6 => (0..REGIONS).prop_map(Key::Region), 2 => (0..WINDOWS).prop_map(Key::Window), 3 => Just(Key::Fast)];
    let wrong = prop_oneof![
        60 => Just(None),
        1 => Just(Some(Wrong::LocalKey)),
        1 => Just(Some(Wrong::LocalRange)),
        1 => Just(Some(Wrong::LocalDomain)),
        1 => Just(Some(Wrong::RemoteKey)),
        1 => Just(Some(Wrong::RemoteRange)),
        1 => Just(Some(Wrong::RemoteDomain)),
        3 => Just(Some(Wrong::Srq)),
    ];
    let places = (0..REGIONS, 0..MESSAGES, key, 0..MESSAGES, 0..MESSAGES, 1_usize..=3);
    let flags = (prop::bool::weighted(0.3), any::<bool>(), prop::bool::weighted(0.3));
    let xrc = (prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    (kind, places, flags, wrong, xrc).prop_map(|(kind, places, (inline, signaled, overlaps), wrong, (second, fast))| {
        let queue = usize::from(second);
        let (region, offset, key, peer_offset, len, pieces) = places;
        Request { kind, region, offset, key, peer_offset, len, pieces, inline, signaled, overlaps, wrong, queue, fast }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let halves = 2 * REGION / STRIPE;
    (0..REGIONS, 0..halves, 0..halves / 2, window_rights(), any::<bool>())
        .prop_map(|(region, at, len, access, signaled)| Step { region, at, len, access, signaled })
}

fn command() -> impl Strategy<Value = (Command, Trouble)> {
    let pair = || 0..PAIRS.len();
    let command = prop_oneof![
        Just(Command::Domain),
        Just(Command::Region),
        Just(Command::Window),
        Just(Command::Registration),
        Just(Command::CompletionQueue),
        Just(Command::QueuePair),
        Just(Command::SharedQueue),
        (0..REGIONS).prop_map(Command::Deregister),
        (0..WINDOWS).prop_map(Command::FreeWindow),
        pair().prop_map(Command::DestroyQp),
        pair().prop_map(Command::Fail),
        pair().prop_map(Command::Reset),
        (0..REGIONS, any::<bool>()).prop_map(|(region, end)| Command::Reregister { region, end }),
        (0..CQS).prop_map(Command::Resize),
        pair().prop_map(Command::Query),
    ];
    (
        command,
        prop_oneof![3 => Just(Trouble::Refused), 1 => Just(Trouble::Undelivered), 1 => (1_u16..30).prop_map(Trouble::Late)],
    )
}

fn lanes() -> impl Strategy<Value = Vec<Lane>> {
    let requests = prop::collection::vec(request(), 1..=MAX_REQUESTS);
    let how = prop_oneof![2 => Just(How::Single), 1 => Just(How::List), 1 => Just(How::Batch)];
    let lane = (0..PAIRS.len(), 0..SIDES, how, requests, 0_usize..=MAX_REQUESTS)
        .prop_map(|(pair, side, how, requests, receives)| Lane { pair, side, how, requests, receives });
    prop::collection::vec(lane, 1..8)
}

fn loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::Reset),
        Just(Loss::Removed),
        Just(Loss::Fatal),
        Just(Loss::NoAnswer),
        Just(Loss::TornDown),
        Just(Loss::Closed),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let pair = || 0..PAIRS.len();
    let side = || 0..SIDES;
    let requests = || prop::collection::vec(request(), 1..6);
    let units = (Just((0..UNITS).collect::<Vec<_>>()).prop_shuffle(), 1..=UNITS)
        .prop_map(|(units, count)| units.into_iter().take(count).collect::<Vec<_>>());
    let how = prop_oneof![Just(How::List), Just(How::Batch)];
    let foreign = || prop_oneof![8 => Just(None), 1 => Just(Some(Foreign::Key)), 1 => Just(Some(Foreign::Region))];
    let rarely = || prop::bool::weighted(0.04);
    prop_oneof![
        24 => (pair(), side(), request())
            .prop_map(|(pair, side, request)| Op::Post { pair, side, how: How::Single, requests: vec![request] }),
        8 => (pair(), side(), how, requests()).prop_map(|(pair, side, how, requests)| Op::Post { pair, side, how, requests }),
        24 => (pair(), side(), 0..REGIONS, 0..MESSAGES, 0..=MESSAGES, 1_usize..=3, rarely()).prop_map(
            |(pair, side, region, offset, len, pieces, foreign)| Op::Receive { pair, side, region, offset, len, pieces, foreign }
        ),
        10 => (side(), prop::option::of(0..QUEUES), 1_usize..6)
            .prop_map(|(side, queue, count)| Op::SharedReceive { side, queue, count }),
        4 => (pair(), side(), 0..REGIONS, units, window_rights(), any::<bool>(), foreign()).prop_map(
            |(pair, side, region, units, access, local, foreign)| {
                let local = if local { Access::LOCAL_WRITE } else { Access::empty() };
                Op::Register { pair, side, region, units, access: access | local, foreign }
            }
        ),
        1 => (pair(), side(), prop::bool::weighted(0.2))
            .prop_map(|(pair, side, foreign)| Op::Invalidate { pair, side, foreign }),
        6 => (pair(), side(), 0..WINDOWS, 0..REGIONS, 0..2 * REGION / STRIPE, 1..2 * REGION / STRIPE, window_rights(), foreign())
            .prop_map(|(pair, side, window, region, at, len, access, foreign)| {
                Op::Bind { pair, side, window, region, at, len, access, foreign }
            }),
        3 => (pair(), side(), 0..WINDOWS, prop::collection::vec(step(), 1..=WINDOWS), prop::option::of(0..WINDOWS), any::<bool>())
            .prop_map(|(pair, side, window, steps, wrong, dropped)| Op::BindChain { pair, side, window, steps, wrong, dropped }),
        1 => (side(), 0..WINDOWS).prop_map(|(side, window)| Op::Unbind { side, window }),
        1 => (side(), 0..WINDOWS, any::<bool>()).prop_map(|(side, window, type2)| Op::ReplaceWindow { side, window, type2 }),
        2 => (side(), 0..REGIONS, rights()).prop_map(|(side, region, access)| Op::ReplaceRegion { side, region, access }),
        1 => (side(), 0..REGIONS, rights()).prop_map(|(side, region, access)| Op::Reregister { side, region, access }),
        1 => (side(), 0..REGIONS).prop_map(|(side, region)| Op::Move { side, region }),
        1 => (side(), 0..DOMAINS).prop_map(|(side, domain)| Op::FreeDomain { side, domain }),
        1 => (side(), 0..CQS, 200_u32..1000).prop_map(|(side, cq, entries)| Op::ResizeCq { side, cq, entries }),
        4 => (0_u16..200).prop_map(Op::Pass),
        4 => (1_usize..9, prop::bool::weighted(0.1)).prop_map(|(at_a_time, threads)| Op::Settle { at_a_time, threads }),
        1 => (pair(), side(), side(), 0_u16..30, requests()).prop_map(|(pair, side, broken, micros, requests)| {
            Op::Interrupt { pair, side, broken, micros, requests }
        }),
        1 => (pair(), side()).prop_map(|(pair, side)| Op::PostInError { pair, side }),
        1 => (pair(), side(), requests()).prop_map(|(pair, side, requests)| Op::PostUnreachable { pair, side, requests }),
        1 => (pair(), side(), 0_u16..30, requests())
            .prop_map(|(pair, side, micros, requests)| Op::Recreate { pair, side, micros, requests }),
        1 => (pair(), side()).prop_map(|(pair, side)| Op::Drain { pair, side }),
        3 => (side(), command()).prop_map(|(side, (command, trouble))| Op::Trouble { side, command, trouble }),
        1 => (side(), loss(), 0_u16..30, lanes())
            .prop_map(|(side, loss, micros, lanes)| Op::Restart { side, loss, micros, lanes }),
        1 => (1_usize..9, lanes()).prop_map(|(at_a_time, lanes)| Op::Together { at_a_time, lanes }),
    ]
}

/// Returns a strategy for programs of up to `ops` operations.
pub(crate) fn program(ops: usize) -> impl Strategy<Value = Program> {
    let loss = prop_oneof![2 => Just(0_u16), 1 => 1_u16..60];
    let end = prop_oneof![3 => Just(End::Clean), 1 => (0..SIDES).prop_map(|side| End::Removed { side })];
    (loss, any::<bool>(), any::<[bool; SIDES]>(), any::<u64>(), prop::collection::vec(op(), 0..=ops), end)
        .prop_map(|(loss, ethernet, large, seed, ops, end)| Program { loss, ethernet, large, seed, ops, end })
}
