//! Runs a program on the devices and on the model.

mod binds;

use core::time::Duration;

use bareverbs::error::PostSendError;
use bareverbs::storage::{QpRings, SrqEntries};
use bareverbs::{
    Access, Binding, Completion, Destination, Event, MaskedOp, MaskedWr, MrChange, MwType, Payload, Psn, Qkey, QpAttr,
    QpAttrMask, QpState, QpType, RecvWr, Remote, Rkey, SendBatch, SendFlags, SendOp, SendWr, Sge, Srqn, Type1Bind, WcData,
    WcOpcode, WcStatus,
};
use bareverbs_mlx5::CqeSize;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_testing::{Connection, Driver, Faults, Probability, join, path_to};

use crate::expected::{Arrival, Posted, Sent};
use crate::fast::Fast;
use crate::hosts::{Bound, QPS, Qp, RECEIVES, Rings, SENDS, SRQS, Shared, Side, Tables};
use crate::program::{
    ATOMICS, End, How, INLINE, Key, Kind, MESSAGES, Op, PAIRS, Program, READS, REGION, Request, SIDES, STRIPE, Wrong,
};
use crate::xrc::{arrivals_of, queue_of};

/// Entries of 128 bytes, where the driver has them.
#[cfg(feature = "large-completions")]
const LARGE: CqeSize = CqeSize::Bytes128;
#[cfg(not(feature = "large-completions"))]
const LARGE: CqeSize = CqeSize::Bytes64;

/// Bytes that a datagram's route takes in its receive.
const GRH_AREA: usize = 40;
const QKEY: Qkey = Qkey::new(0x1234);

/// What becomes of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// What the model says.
    Executed,
    /// Nothing comes back from the peer.
    Unreachable,
    /// Nobody knows: the queue pair breaks meanwhile.
    Unknown,
}

/// What has happened on a pair since everything was completed.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// The side that sends. A failure moves both queue pairs to ERR: requests of the other side would end in one of two ways.
    direction: Option<usize>,
    /// A request fails.
    failed: bool,
    /// A read is in flight that later requests must not pass.
    fences: bool,
    /// Reads or atomics are in flight, which may be executed after an invalidation that was posted later without a fence.
    reads: bool,
    /// The last request has no completion.
    silent: bool,
    posted: usize,
}

struct Run<'s> {
    world: World,
    sides: [Side<'s>; SIDES],
    rounds: [Round; PAIRS.len()],
    lossy: bool,
    next_id: u64,
    requests: u64,
}

/// A request with everything that it points to.
#[derive(Debug)]
struct Ready {
    wr_id: u64,
    kind: Kind,
    flags: SendFlags,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    remote: Remote,
    invalidates: Rkey,
    compare: u64,
    to: Option<Destination>,
    /// The shared receive queue that it names, of XRC, and which one that is; `None` if it is none of the peer's domain.
    srqn: Option<Srqn>,
    queue: Option<usize>,
    /// The verbs refuse it.
    refused: bool,
}

/// What the key of a request opens.
enum Opened {
    Nothing,
    Bytes { region: usize, at: usize },
}

impl Ready {
    fn imm(&self) -> [u8; 4] {
        (self.wr_id as u32).to_be_bytes()
    }

    /// What it adds or swaps in.
    fn operand(&self) -> u64 {
        self.wr_id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn wr(&self) -> SendWr<'_> {
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

    const fn opcode(&self) -> WcOpcode {
        match self.kind {
            Kind::Send | Kind::SendWithImm | Kind::SendWithInv(_) | Kind::SendWithInvFast => WcOpcode::Send,
            Kind::Write | Kind::WriteWithImm => WcOpcode::RdmaWrite,
            Kind::Read => WcOpcode::RdmaRead,
            Kind::CompareSwap(_) | Kind::MaskedSwap { .. } => WcOpcode::CompSwap,
            Kind::FetchAdd | Kind::MaskedAdd { .. } => WcOpcode::FetchAdd,
        }
    }

    /// Returns the bits that count of a masked atomic: few or many.
    fn mask(&self, which: u32) -> u64 {
        let bits = self.operand().rotate_left(which).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        match bits >> 61 {
            0 => 0,
            1 => u64::MAX,
            2..5 => bits & bits.rotate_left(23) & bits.rotate_left(41),
            _ => bits,
        }
    }

    /// Returns a masked atomic.
    fn masked(&self) -> Option<MaskedWr> {
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
    fn post(&self, batch: &mut SendBatch<'_, Driver>) -> Result<(), PostSendError> {
        match (self.masked(), self.srqn) {
            (None, srqn) => batch.post(&named(&self.wr(), srqn)),
            (Some(wr), None) => batch.post_masked(&wr),
            (Some(wr), Some(srqn)) => batch.post_masked_to_srq(&wr, srqn),
        }
    }
}

/// Returns what an atomic leaves of a word, bit by bit: carries stop where the boundary has a bit.
fn after(op: &MaskedOp, old: u64) -> u64 {
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
fn number(bytes: &[u8]) -> u64 {
    match bytes.try_into() {
        Ok(eight) => u64::from_ne_bytes(eight),
        Err(_) => u32::from_ne_bytes(bytes.try_into().expect("four")).into(),
    }
}

/// Returns the bytes of a number.
fn bytes_of(number: u64, len: usize) -> Vec<u8> {
    if len == 8 { number.to_ne_bytes().to_vec() } else { (number as u32).to_ne_bytes().to_vec() }
}

/// Returns pieces of a place.
fn pieces(base: Sge, len: usize, count: usize) -> Vec<Sge> {
    let count = if len < count { 1 } else { count };
    if len == 0 {
        return Vec::new();
    }
    let cut = |piece| len * piece / count;
    let piece = |n| Sge { addr: base.addr + cut(n) as u64, length: (cut(n + 1) - cut(n)) as u32, lkey: base.lkey };
    (0..count).map(piece).collect()
}

impl<'s> Run<'s> {
    fn new(program: &Program, tables: [&'s mut Tables<'_>; SIDES]) -> Result<Self, String> {
        let per_mille = |n: u16| Probability::per_mille(n);
        let faults = Faults::none().loss(per_mille(program.loss)).duplication(per_mille(program.loss));
        let faults = faults.delay(per_mille(program.loss * 4), Duration::from_micros(40));
        let world = World::new(WorldConfig::from(faults.seed(program.seed)));
        let mut lid = 0;
        let sides = tables.map(|tables| {
            lid += 1;
            let config = DeviceConfig::with_lid(lid);
            let config = if program.ethernet { config.with_ethernet() } else { config };
            let cqe_size = if program.large[usize::from(lid) - 1] { LARGE } else { CqeSize::Bytes64 };
            Side::new(world.add(config).expect("a device"), cqe_size, tables)
        });
        let mut run = Self { world, sides, rounds: Default::default(), lossy: program.loss != 0, next_id: 1000, requests: 0 };
        for pair in 0..PAIRS.len() {
            run.connect(pair)?;
        }
        Ok(run)
    }

    fn connect(&mut self, pair: usize) -> Result<(), String> {
        let [a, b] = &mut self.sides;
        if PAIRS[pair].qp_type == QpType::Ud {
            let attr = QpAttr { port_num: 1, qkey: QKEY, sq_psn: Psn::new(7), ..QpAttr::default() };
            for side in [&mut *a, &mut *b] {
                side.verbs.modify_qp_to_rts(side.qps[pair].handle(), &attr).map_err(|error| error.to_string())?;
            }
            let to = |from: &mut Side<'s>, peer: &mut Side<'s>| {
                let av = path_to(&mut peer.verbs).map_err(|error| error.to_string())?;
                let ah = from.verbs.create_ah(from.pd, &av).map_err(|error| error.to_string())?;
                let remote_qpn = peer.verbs.qp_info(peer.qps[pair].handle()).expect("it exists").qpn;
                from.to_peer = Some(Destination { ah, remote_qpn, remote_qkey: QKEY });
                Ok::<(), String>(())
            };
            to(a, b)?;
            return to(b, a);
        }
        let connection = Connection {
            qp_type: PAIRS[pair].qp_type,
            mtu: bareverbs::Mtu::Mtu256,
            // Close to where they wrap.
            psn: (Psn::new(0xff_fff0), Psn::new(0xff_ff00)),
            rnr_retry: 1,
            min_rnr_timer: 1,
            ..Connection::default()
        };
        let (ends_a, ends_b) = (&a.qps[pair], &b.qps[pair]);
        let (of_a, of_b) = ((ends_a.handle(), ends_a.receiver()), (ends_b.handle(), ends_b.receiver()));
        join((&mut a.verbs, of_a.0), (&mut b.verbs, of_b.1), &connection).map_err(|error| error.to_string())?;
        if PAIRS[pair].qp_type != QpType::XrcSend {
            return Ok(());
        }
        join((&mut a.verbs, of_a.1), (&mut b.verbs, of_b.0), &connection).map_err(|error| error.to_string())
    }

    /// Makes a request ready, and says what becomes of it. Returns nothing if it makes no sense here.
    fn prepare(&mut self, pair: usize, side: usize, request: &Request, fate: Fate) -> Option<Ready> {
        let peer = 1 - side;
        let of = PAIRS[pair];
        let stripe = (pair * SIDES + side) * STRIPE;
        let xrc = of.qp_type == QpType::XrcSend;
        let reliable = of.qp_type == QpType::Rc || xrc;
        if !reliable && self.lossy {
            return None;
        }
        let receives = if of.shared { self.sides[peer].shared_receives } else { self.sides[peer].posted[pair].len() };
        let room = if of.shared { MESSAGES } else { self.sides[peer].posted[pair].front().map_or(0, |posted| posted.len) };
        let mut kind = match request.kind {
            Kind::SendWithInv(first) => {
                // The first window that this queue pair's peer has bound.
                let windows = &self.sides[peer].windows;
                let is_ours = |window: &usize| {
                    let window = &windows[*window];
                    window.kind == MwType::Type2 && window.bound.is_some_and(|bound| bound.pair == pair)
                };
                let ours = (0..windows.len()).map(|step| (first + step) % windows.len()).find(is_ours);
                ours.filter(|_| reliable && fate == Fate::Executed).map_or(Kind::Send, Kind::SendWithInv)
            }
            Kind::SendWithInvFast => {
                let is_ours = reliable && fate == Fate::Executed && self.sides[peer].fast.registered.is_some();
                if is_ours && !(xrc && request.queue != 0) { Kind::SendWithInvFast } else { Kind::Send }
            }
            kind if !reliable && (kind == Kind::Read || kind.atomic().is_some()) => Kind::Write,
            kind => kind,
        };
        if of.qp_type == QpType::Ud && !matches!(kind, Kind::Send) {
            kind = Kind::SendWithImm;
        }
        let wrong = if reliable {
            request.wrong.filter(|wrong| xrc || *wrong != Wrong::Srq)
        } else {
            request.wrong.filter(|wrong| matches!(wrong, Wrong::LocalKey | Wrong::LocalRange))
        };
        let (start, area) = match kind {
            Kind::Read if !request.overlaps => (READS, ATOMICS - READS),
            kind if kind.atomic().is_some() => (ATOMICS, STRIPE - ATOMICS),
            _ => (0, MESSAGES),
        };
        let (is_atomic, word) = (start == ATOMICS, kind.atomic().unwrap_or(1));
        let (mut offset, mut peer_offset) = (request.offset % area, request.peer_offset % area);
        if is_atomic {
            (offset, peer_offset) = (offset & !(word - 1), peer_offset & !(word - 1));
        }
        let is_inline = request.inline && !is_atomic && kind != Kind::Read && wrong.is_none();
        let mut len = request.len.min(area - offset.max(peer_offset));
        if !matches!(kind, Kind::Send | Kind::SendWithImm | Kind::SendWithInv(_) | Kind::SendWithInvFast) || wrong.is_some() {
            len = len.max(1);
        }
        if is_inline {
            len = len.min(INLINE);
        }
        if is_atomic {
            len = word;
        }
        match of.qp_type {
            QpType::Ud if fate == Fate::Executed && receives != 0 => len = len.min(room.checked_sub(GRH_AREA)?),
            QpType::Uc if matches!(kind, Kind::Send | Kind::SendWithImm) && receives != 0 => len = len.min(room),
            _ => {}
        }
        // Where the key leads.
        let need = match kind {
            Kind::Read => Access::REMOTE_READ,
            kind if kind.atomic().is_some() => Access::REMOTE_ATOMIC,
            _ => Access::REMOTE_WRITE,
        };
        let at = stripe + start + peer_offset;
        let key = if reliable { request.key } else { Key::Region(request.region) };
        let (mut remote, mut opened) = self.target(peer, pair, key, at, len, need);
        if xrc && request.queue != 0 {
            // Keys are looked up in the protection domain of the queue.
            opened = Opened::Nothing;
        }
        if !reliable && matches!(opened, Opened::Nothing) && matches!(kind, Kind::Write | Kind::WriteWithImm) {
            return None;
        }
        match wrong {
            Some(Wrong::RemoteKey) => (remote.rkey, opened) = (Rkey::new(remote.rkey.get() ^ 0x80), Opened::Nothing),
            Some(Wrong::RemoteRange) => {
                remote = self.sides[peer].memory[request.region].region.remote((REGION - len + 1) as u64);
                opened = Opened::Nothing;
                if is_atomic {
                    remote.addr = remote.addr.next_multiple_of(word as u64);
                }
            }
            _ => {}
        }
        if kind == Kind::WriteWithImm && (matches!(opened, Opened::Nothing) || !reliable && receives == 0) {
            // Whether the key or the missing receive is found first is the device's affair.
            kind = Kind::Write;
        }
        let local = &self.sides[side].memory[request.region];
        let (mut base, from) = (local.region.sge(0, 0), stripe + start + offset);
        base.addr += from as u64;
        let fast = self.sides[side].fast.registered.as_ref().filter(|of| request.fast && of.memory == request.region);
        let mut local_access = local.access;
        if let Some((of, sge)) = fast.and_then(|of| Some((of, of.sge(from)?))).filter(|_| wrong.is_none()) {
            (base, local_access) = (sge, of.access);
        }
        match wrong {
            Some(Wrong::LocalKey) => base.lkey = bareverbs::Lkey::new(base.lkey.get() ^ 0x80),
            Some(Wrong::LocalRange) => base.addr = local.region.sge((REGION - len + 1) as u64, 0).addr,
            _ => {}
        }
        let writes_here = kind == Kind::Read || is_atomic;
        let refused = len != 0
            && !is_inline
            && (matches!(wrong, Some(Wrong::LocalKey | Wrong::LocalRange))
                || writes_here && !local_access.contains(Access::LOCAL_WRITE));
        let wr_id = self.next_wr_id();
        let inline: Option<Vec<u8>> = is_inline.then(|| (0..len).map(|at| (wr_id as usize * 31 + at) as u8).collect());
        let round = self.rounds[pair];
        let mut flags = SendFlags::empty();
        let signaled = request.signaled || pair == 0 || of.qp_type == QpType::Ud;
        flags.set(SendFlags::SIGNALED, signaled);
        let waits = round.fences || round.reads && matches!(kind, Kind::SendWithInv(_) | Kind::SendWithInvFast);
        flags.set(SendFlags::FENCE, waits && reliable);
        let invalidates = match kind {
            Kind::SendWithInv(window) => self.sides[peer].windows[window].rkey,
            Kind::SendWithInvFast => self.sides[peer].fast.rkey,
            _ => Rkey::new(0),
        };
        let compare = match (kind, &opened) {
            (Kind::CompareSwap(true) | Kind::MaskedSwap { matches: true, .. }, Opened::Bytes { region, at }) => {
                self.word(peer, *region, *at, len)
            }
            _ => 0x0123_4567_89ab_cdef,
        };
        let to = self.sides[side].to_peer.filter(|_| of.qp_type == QpType::Ud);
        let sges = pieces(base, len, if is_atomic { 1 } else { request.pieces });
        let to_peer = &self.sides[peer];
        let (srqn, queue) = match wrong {
            _ if !xrc => (None, None),
            Some(Wrong::Srq) => (Some(to_peer.xrc.wrong_number(wr_id, to_peer.srqn())), None),
            _ => (Some(to_peer.xrc.queues[request.queue].srqn), Some(request.queue)),
        };
        let ready = Ready { wr_id, kind, flags, sges, inline, remote, invalidates, compare, to, srqn, queue, refused };
        if refused {
            return Some(ready);
        }
        self.rounds[pair].fences |= kind == Kind::Read && request.overlaps;
        self.rounds[pair].reads |= writes_here;
        self.rounds[pair].silent = !signaled;
        self.rounds[pair].posted += 1;
        self.rounds[pair].direction = Some(side);
        self.requests += 1;
        let status = match fate {
            Fate::Unknown => None,
            _ if round.failed => Some(WcStatus::WrFlushErr),
            Fate::Unreachable if reliable => Some(WcStatus::RetryExcErr),
            Fate::Unreachable => Some(WcStatus::Success),
            Fate::Executed => Some(self.execute(pair, side, &ready, (request.region, from, len), &opened)),
        };
        self.rounds[pair].failed |= status != Some(WcStatus::Success);
        let byte_len = len as u32;
        self.sides[side].sent[pair].push_back(Sent {
            wr_id,
            opcode: ready.opcode(),
            status,
            signaled,
            byte_len,
            may_stay_unanswered: false,
        });
        if self.lossy && matches!(status, Some(WcStatus::RemAccessErr | WcStatus::RemInvReqErr)) {
            self.sides[side].sent[pair].iter_mut().for_each(|sent| sent.may_stay_unanswered = true);
            for memory in &mut self.sides[side].memory {
                memory.bytes.forget(stripe, STRIPE);
            }
        }
        Some(ready)
    }

    fn word(&self, side: usize, region: usize, at: usize, len: usize) -> u64 {
        number(self.sides[side].memory[region].bytes.get(at, len))
    }

    /// Returns the peer's address of byte `at` of its regions, and what is there for who has these rights.
    fn target(&self, peer: usize, pair: usize, key: Key, at: usize, len: usize, need: Access) -> (Remote, Opened) {
        let side = &self.sides[peer];
        let of_region = |region: usize| {
            let memory = &side.memory[region];
            let opened = if memory.access.contains(need) { Opened::Bytes { region, at } } else { Opened::Nothing };
            (memory.region.remote(at as u64), opened)
        };
        match key {
            Key::Region(region) => of_region(region),
            Key::Fast => {
                let Some(of) = &side.fast.registered else {
                    let remote = Remote { rkey: side.fast.rkey, ..side.memory[0].region.remote(at as u64) };
                    return (remote, Opened::Nothing);
                };
                // What is not registered is not in the range.
                let Some(remote) = of.remote(at) else { return of_region(of.memory) };
                let region = of.memory;
                (remote, if of.access.contains(need) { Opened::Bytes { region, at } } else { Opened::Nothing })
            }
            Key::Window(index) => {
                let window = &side.windows[index];
                let Some(bound) = window.bound else {
                    let remote = Remote { rkey: window.rkey, ..side.memory[0].region.remote(at as u64) };
                    return (remote, Opened::Nothing);
                };
                // A window of type 2 is for the queue pair that bound it.
                if window.kind == MwType::Type2 && bound.pair != pair {
                    return of_region(index);
                }
                let is_inside = at >= bound.at && at + len <= bound.at + bound.len && bound.access.contains(need);
                let opened = if is_inside { Opened::Bytes { region: bound.region, at } } else { Opened::Nothing };
                let addr = if bound.access.contains(Access::ZERO_BASED) {
                    (at as u64).wrapping_sub(bound.at as u64)
                } else {
                    side.memory[bound.region].region.remote(at as u64).addr
                };
                (Remote { addr, rkey: window.rkey }, opened)
            }
        }
    }

    /// Does in the model what the devices do, and returns the status.
    fn execute(
        &mut self,
        pair: usize,
        side: usize,
        ready: &Ready,
        (region, from, len): (usize, usize, usize),
        opened: &Opened,
    ) -> WcStatus {
        let peer = 1 - side;
        let message = match &ready.inline {
            Some(bytes) => bytes.clone(),
            None => self.sides[side].memory[region].bytes.get(from, len).to_vec(),
        };
        if ready.srqn.is_some() && ready.queue.is_none() {
            return WcStatus::RemAccessErr;
        }
        let takes_receive = matches!(ready.kind, Kind::Send | Kind::SendWithImm | Kind::SendWithInv(_) | Kind::SendWithInvFast);
        if !takes_receive {
            let Opened::Bytes { region: there, at } = *opened else { return WcStatus::RemAccessErr };
            let old = self.sides[peer].memory[there].bytes.get(at, len).to_vec();
            let here = &mut self.sides[side].memory[region].bytes;
            match ready.kind {
                Kind::Read => here.set(from, &old),
                kind if kind.atomic().is_some() => {
                    here.set(from, &old);
                    let old = number(&old);
                    let new = match (kind, ready.masked()) {
                        (_, Some(wr)) => after(&wr.op, old),
                        (Kind::FetchAdd, _) => old.wrapping_add(ready.operand()),
                        _ if old == ready.compare => ready.operand(),
                        _ => old,
                    };
                    self.sides[peer].memory[there].bytes.set(at, &bytes_of(new, len));
                }
                Kind::WriteWithImm => {
                    let status = self.arrive(pair, peer, &message, ready);
                    let bytes = &mut self.sides[peer].memory[there].bytes;
                    if status == WcStatus::Success {
                        bytes.set(at, &message)
                    } else {
                        bytes.forget(at, len)
                    }
                    return status;
                }
                _ => self.sides[peer].memory[there].bytes.set(at, &message),
            }
            return WcStatus::Success;
        }
        self.arrive(pair, peer, &message, ready)
    }

    /// Gives a message to the next receive.
    fn arrive(&mut self, pair: usize, peer: usize, message: &[u8], ready: &Ready) -> WcStatus {
        let of = PAIRS[pair];
        let to = &mut self.sides[peer];
        let data = match ready.kind {
            Kind::SendWithImm | Kind::WriteWithImm => WcData::Imm(ready.imm()),
            Kind::SendWithInv(_) | Kind::SendWithInvFast => WcData::Invalidated(ready.invalidates),
            _ => WcData::None,
        };
        let is_write = ready.kind == Kind::WriteWithImm;
        let opcode = if is_write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let mut arrival = Arrival {
            opcode,
            status: WcStatus::Success,
            byte_len: message.len() as u32,
            data,
            wr_id: None,
            message: Vec::new(),
        };
        let mut status = WcStatus::Success;
        if let Some(queue) = ready.queue {
            let queue = &mut to.xrc.queues[queue];
            if queue.left == 0 {
                return WcStatus::RnrRetryExcErr;
            }
            queue.left -= 1;
            if !is_write {
                arrival.message = message.to_vec();
            }
        } else if of.shared {
            if to.shared_receives == 0 {
                return WcStatus::RnrRetryExcErr;
            }
            to.shared_receives -= 1;
            if !is_write {
                arrival.message = message.to_vec();
            }
        } else {
            let missing = if of.qp_type == QpType::Rc { WcStatus::RnrRetryExcErr } else { WcStatus::Success };
            let Some(posted) = to.posted[pair].pop_front() else { return missing };
            arrival.wr_id = Some(posted.wr_id);
            let route = if of.qp_type == QpType::Ud { GRH_AREA } else { 0 };
            arrival.byte_len += route as u32;
            let bytes = &mut to.memory[posted.region].bytes;
            if is_write {
            } else if message.len() > posted.len {
                arrival.status = WcStatus::LocLenErr;
                bytes.forget(posted.at, posted.len);
                status = WcStatus::RemInvReqErr;
            } else {
                bytes.forget(posted.at, route);
                bytes.set(posted.at + route, message);
            }
        }
        if let Kind::SendWithInv(window) = ready.kind
            && status == WcStatus::Success
        {
            to.windows[window].bound = None;
        }
        if ready.kind == Kind::SendWithInvFast && status == WcStatus::Success {
            to.fast.registered = None;
        }
        to.arrivals[arrivals_of(pair, ready.queue.unwrap_or(0))].push_back(arrival);
        status
    }

    fn post(&mut self, pair: usize, side: usize, how: How, requests: &[Request], fate: Fate) -> Result<(), String> {
        let round = self.rounds[pair];
        let to = &self.sides[1 - side];
        let left = match PAIRS[pair].qp_type {
            QpType::XrcSend => to.xrc.queues.iter().map(|queue| queue.left).min(),
            _ => PAIRS[pair].shared.then_some(to.shared_receives),
        };
        // What other queue pairs have in flight may need the key that is invalidated.
        let invalidates = requests.iter().any(|request| request.kind == Kind::SendWithInvFast);
        let too_few = invalidates || left.is_some_and(|left| left < requests.len());
        if round.direction.is_some_and(|direction| direction != side) || round.posted + requests.len() > SENDS || too_few {
            self.settle(8, false)?;
        }
        let mut ready = Vec::new();
        for request in requests {
            let Some(made) = self.prepare(pair, side, request, fate) else { continue };
            let refused = made.refused;
            ready.push(made);
            if refused {
                break;
            }
        }
        let refused = ready.last().is_some_and(|last| last.refused);
        let good = ready.len() - usize::from(refused);
        let send = self.sides[side].qps[pair].send();
        let result = match how {
            // Masked atomics have a call of their own, and no place in a list.
            How::List if !ready.iter().any(|ready| ready.kind.is_masked()) => {
                let plain: Vec<_> = ready.iter().map(Ready::wr).collect();
                let list: Vec<_> = plain.iter().zip(&ready).map(|(wr, ready)| named(wr, ready.srqn)).collect();
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
            Ok(()) if !refused => {}
            Err((index, _)) if refused && index == good => {}
            other => return Err(format!("posting gave {other:?} for {ready:?}")),
        }
        if (self.rounds[pair].failed || invalidates) && matches!(fate, Fate::Executed) {
            self.settle(8, false)?;
        }
        Ok(())
    }

    /// Lets everything complete and compares.
    fn settle(&mut self, at_a_time: usize, threads: bool) -> Result<(), String> {
        for (pair, round) in self.rounds.into_iter().enumerate() {
            let Some(side) = round.direction else { continue };
            if round.silent && !round.failed {
                let wr_id = self.next_wr_id();
                self.expect_success(pair, side, wr_id, WcOpcode::RdmaWrite);
                let last = SendWr::write(Remote::NONE, &[] as &[u8]).id(wr_id).signaled();
                let srqn = self.sides[1 - side].xrc.queues[0].srqn;
                let srqn = (PAIRS[pair].qp_type == QpType::XrcSend).then_some(srqn);
                let posted = self.sides[side].qps[pair].send().post(&named(&last, srqn));
                posted.map_err(|error| format!("the last request: {error}"))?;
            }
        }
        self.world.advance(Duration::from_millis(60));
        for pair in (0..PAIRS.len()).filter(|pair| self.rounds[*pair].failed).collect::<Vec<_>>() {
            for side in 0..SIDES {
                let qp = self.sides[side].qps[pair].handle();
                let state = self.sides[side].verbs.query_qp(qp).map_err(|error| error.to_string())?.state;
                if self.rounds[pair].direction == Some(side) && state != QpState::Err {
                    return Err(format!("pair {pair}, side {side}: {state:?} after a failure"));
                }
                if state == QpState::Err {
                    self.flush_receives(pair, side);
                }
            }
        }
        for side in &mut self.sides {
            side.complete(at_a_time, threads)?;
        }
        for pair in 0..PAIRS.len() {
            for (at, side) in self.sides.iter().enumerate() {
                let (sent, arrival) = (&side.sent[pair], side.next_arrival(pair));
                if !sent.is_empty() || arrival.is_some() {
                    return Err(format!("pair {pair}, side {at}: no completion of {sent:?} {arrival:?}"));
                }
            }
        }
        let rounds = core::mem::take(&mut self.rounds);
        for (pair, round) in rounds.iter().enumerate() {
            if round.failed {
                self.recover(pair)?;
            } else {
                self.is_in(pair, QpState::Rts)?;
            }
        }
        for (at, side) in self.sides.iter_mut().enumerate() {
            side.compare(false).map_err(|why| format!("side {at}: {why}"))?;
        }
        Ok(())
    }

    fn is_in(&mut self, pair: usize, must: QpState) -> Result<(), String> {
        for (at, side) in self.sides.iter_mut().enumerate() {
            for qp in [side.qps[pair].handle(), side.qps[pair].receiver()] {
                let state = side.verbs.query_qp(qp).map_err(|error| error.to_string())?.state;
                if state != must {
                    return Err(format!("pair {pair}, side {at}: {state:?}, and must be {must:?}"));
                }
            }
        }
        Ok(())
    }

    fn fail(&mut self, pair: usize, side: usize) -> Result<(), String> {
        let side = &mut self.sides[side];
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        let of = &side.qps[pair];
        for qp in [of.handle(), of.receiver()] {
            side.verbs.modify_qp(qp, &attr, QpAttrMask::STATE).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Expects the receives of a queue pair that is in ERR to be flushed.
    fn flush_receives(&mut self, pair: usize, side: usize) {
        let side = &mut self.sides[side];
        let flushed = side.posted[pair].drain(..).map(|posted| Arrival {
            opcode: WcOpcode::Recv,
            status: WcStatus::WrFlushErr,
            byte_len: 0,
            data: WcData::None,
            wr_id: Some(posted.wr_id),
            message: Vec::new(),
        });
        side.arrivals[pair].extend(flushed);
    }

    /// Takes both queue pairs through ERR and RESET, and connects them again.
    fn recover(&mut self, pair: usize) -> Result<(), String> {
        // Completions of XRC receives are those of their queue, and stay.
        let dropped = self.next_id.is_multiple_of(3) && PAIRS[pair].qp_type != QpType::XrcSend;
        self.reset(pair, dropped)
    }

    /// The same; a RESET drops what nobody has polled, if that is to be `dropped`.
    fn reset(&mut self, pair: usize, dropped: bool) -> Result<(), String> {
        for side in 0..SIDES {
            self.fail(pair, side)?;
            self.flush_receives(pair, side);
        }
        self.world.advance(Duration::from_millis(10));
        for at in 0..SIDES {
            let side = &mut self.sides[at];
            if !dropped {
                side.complete(3, false)?;
                if let Some(arrival) = side.next_arrival(pair) {
                    return Err(format!("pair {pair}, side {at}: not flushed {arrival:?}"));
                }
            }
            while side.verbs.poll_event().map_err(|error| error.to_string())?.is_some() {}
            let reset = match &mut side.qps[pair] {
                Qp::Own(qp) => side.verbs.reset_qp(qp),
                Qp::Shared(qp) => side.verbs.reset_qp(qp),
                Qp::Xrc(qp) => side.verbs.reset_qp(&mut qp.initiator).and_then(|()| side.verbs.reset_qp(&mut qp.target)),
            };
            reset.map_err(|error| format!("reset: {error}"))?;
            side.clear_arrivals(pair);
            // It leaves RESET once its completion queues were found empty.
            side.complete(3, false)?;
            self.replace_windows_of(pair, at);
        }
        self.is_in(pair, QpState::Reset)?;
        self.connect(pair)?;
        self.rounds[pair] = Round::default();
        Ok(())
    }

    /// Replaces the type 2 windows that a queue pair has bound.
    fn replace_windows_of(&mut self, pair: usize, side: usize) {
        let side = &mut self.sides[side];
        for window in 0..side.windows.len() {
            let Some(bound) = side.windows[window].bound else { continue };
            if side.windows[window].kind == MwType::Type2 && bound.pair == pair {
                side.replace_window(window, MwType::Type2);
            }
        }
    }

    /// Destroys both queue pairs, in the middle of these requests if their receives are not shared, and creates them again.
    fn recreate(&mut self, pair: usize, side: usize, micros: u16, requests: &[Request]) -> Result<(), String> {
        self.settle(8, false)?;
        if !PAIRS[pair].shared && PAIRS[pair].qp_type != QpType::XrcSend {
            self.post(pair, side, How::Batch, requests, Fate::Unknown)?;
            self.world.advance(Duration::from_micros(micros.into()));
        }
        for at in 0..SIDES {
            self.replace_windows_of(pair, at);
            let side = &mut self.sides[at];
            side.destroy_qp(pair);
            // The place of a queue pair is free once its completion queues were found empty. What it had in flight is not given.
            if let Some(done) = side.poll(3, false).first() {
                return Err(format!("{done:?} of a queue pair that was destroyed"));
            }
            let qp = side.create_qp(pair);
            side.qps.insert(pair, qp);
        }
        self.take_bytes(pair)?;
        self.rounds[pair] = Round::default();
        self.connect(pair)
    }

    /// Takes from the devices what the requests of a pair have written.
    fn take_bytes(&mut self, pair: usize) -> Result<(), String> {
        for side in &mut self.sides {
            side.memory.iter_mut().for_each(|memory| memory.bytes.forget(pair * SIDES * STRIPE, SIDES * STRIPE));
            side.compare(false)?;
        }
        Ok(())
    }

    fn receive(&mut self, pair: usize, side: usize, posted: Posted, pieces_of: usize) -> Result<(), String> {
        if self.sides[side].posted[pair].is_empty() && self.rounds[pair].direction == Some(1 - side) {
            // A message on its way that the model has no receive for must not find this one.
            self.settle(8, false)?;
        }
        let of = &mut self.sides[side];
        let Qp::Own(qp) = &mut of.qps[pair] else { return Ok(()) };
        let memory = &of.memory[posted.region];
        let base = memory.region.sge(posted.at as u64, 0);
        let sges = pieces(base, posted.len, pieces_of);
        let is_refused = posted.len != 0 && !memory.access.contains(Access::LOCAL_WRITE) || of.posted[pair].len() == RECEIVES;
        let result = qp.recv.post(&RecvWr { wr_id: posted.wr_id, sges: &sges });
        if result.is_err() != is_refused {
            return Err(format!("posting a receive: {result:?}"));
        }
        if !is_refused {
            of.posted[pair].push_back(posted);
        }
        Ok(())
    }

    fn bind(&mut self, (pair, side, index): (usize, usize, usize), bound: Bound) -> Result<(), String> {
        if PAIRS[pair].qp_type != QpType::Rc || bound.at + bound.len > REGION {
            return Ok(());
        }
        self.settle(8, false)?;
        let wr_id = self.next_wr_id();
        let of = &mut self.sides[side];
        let window = &mut of.windows[index];
        let memory = &of.memory[bound.region];
        let (mr, addr, length, access) =
            (memory.region.handle(), memory.region.remote(bound.at as u64).addr, bound.len as u64, bound.access);
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let is_refused = !memory.access.contains(Access::MW_BIND) || writes && !memory.access.contains(Access::LOCAL_WRITE);
        let (send, tag) = (of.qps[pair].send(), window.rkey.tag().next());
        let result = match window.kind {
            MwType::Type1 => {
                let flags = SendFlags::SIGNALED;
                let bind = Type1Bind { wr_id, flags, mr, addr, length, access };
                send.bind_type1(window.handle, &bind).map_err(|error| error.to_string())
            }
            // It is bound again after an invalidation alone.
            MwType::Type2 if window.bound.is_some() => return Ok(()),
            MwType::Type2 => {
                let wr = SendWr::bind_mw(window.handle, tag, Binding { mr, addr, length, access }).id(wr_id).signaled();
                send.post(&wr).map(|()| Rkey::new(tag.key(window.rkey.index()))).map_err(|error| error.to_string())
            }
        };
        if result.is_err() != is_refused {
            return Err(format!("binding gave {result:?}"));
        }
        if let Ok(rkey) = result {
            (window.rkey, window.bound) = (rkey, Some(bound));
            self.done_by(pair, side, wr_id, WcOpcode::BindMw)?;
        }
        Ok(())
    }

    fn unbind(&mut self, side: usize, index: usize) -> Result<(), String> {
        self.settle(8, false)?;
        let wr_id = self.next_wr_id();
        let of = &mut self.sides[side];
        let window = &mut of.windows[index];
        let Some(bound) = window.bound.take() else { return Ok(()) };
        let send = of.qps[bound.pair].send();
        let opcode = if window.kind == MwType::Type1 {
            let (mr, access) = (of.memory[bound.region].region.handle(), Access::empty());
            let bind = Type1Bind { wr_id, flags: SendFlags::SIGNALED, mr, addr: 0, length: 0, access };
            window.rkey = send.bind_type1(window.handle, &bind).map_err(|error| error.to_string())?;
            WcOpcode::BindMw
        } else {
            send.post(&SendWr::local_inv(window.rkey).id(wr_id).signaled()).map_err(|error| error.to_string())?;
            WcOpcode::LocalInv
        };
        self.done_by(bound.pair, side, wr_id, opcode)
    }

    /// Registers units of a region by a request.
    fn register(&mut self, (pair, side): (usize, usize), region: usize, units: &[usize], access: Access) -> Result<(), String> {
        if !matches!(PAIRS[pair].qp_type, QpType::Rc | QpType::XrcSend) {
            return Ok(());
        }
        self.settle(8, false)?;
        let wr_id = self.next_wr_id();
        let of = &mut self.sides[side];
        let memory = &of.memory[region];
        let pieces = Fast::pieces(memory, units);
        let writes = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let is_refused = of.fast.registered.is_some()
            || !memory.access.contains(Access::MW_BIND)
            || writes && !memory.access.contains(Access::LOCAL_WRITE);
        let result = of.qps[pair].send().reg_mr(of.fast.mr, &of.fast.request(wr_id, &pieces, access));
        if result.is_err() != is_refused {
            return Err(format!("registering gave {result:?}"));
        }
        let Ok(registered) = result else { return Ok(()) };
        of.fast.open(registered, region, units.to_vec(), access);
        self.done_by(pair, side, wr_id, WcOpcode::RegMr)
    }

    /// Ends a registration by a request.
    fn invalidate(&mut self, pair: usize, side: usize) -> Result<(), String> {
        if !matches!(PAIRS[pair].qp_type, QpType::Rc | QpType::XrcSend) {
            return Ok(());
        }
        self.settle(8, false)?;
        let wr_id = self.next_wr_id();
        let of = &mut self.sides[side];
        if of.fast.registered.take().is_none() {
            return Ok(());
        }
        let wr = SendWr::local_inv(of.fast.rkey).id(wr_id).signaled();
        of.qps[pair].send().post(&wr).map_err(|error| error.to_string())?;
        self.done_by(pair, side, wr_id, WcOpcode::LocalInv)
    }

    /// Waits for one request.
    fn done_by(&mut self, pair: usize, side: usize, wr_id: u64, opcode: WcOpcode) -> Result<(), String> {
        self.requests += 1;
        self.expect_success(pair, side, wr_id, opcode);
        self.settle(8, false)
    }

    /// Expects a signaled request without bytes to succeed.
    fn expect_success(&mut self, pair: usize, side: usize, wr_id: u64, opcode: WcOpcode) {
        let (status, signaled, byte_len) = (Some(WcStatus::Success), true, 0);
        self.sides[side].sent[pair].push_back(Sent { wr_id, opcode, status, signaled, byte_len, may_stay_unanswered: false });
    }

    const fn next_wr_id(&mut self) -> u64 {
        let wr_id = self.next_id;
        self.next_id += 1;
        wr_id
    }

    /// Breaks a queue pair in the middle of requests. Each of them, and each receive, ends exactly once.
    fn interrupt(&mut self, pair: usize, side: usize, broken: usize, micros: u16, requests: &[Request]) -> Result<(), String> {
        self.settle(8, false)?;
        self.post(pair, side, How::Batch, requests, Fate::Unknown)?;
        self.world.advance(Duration::from_micros(micros.into()));
        self.fail(pair, broken)?;
        self.world.advance(Duration::from_millis(60));
        for at in 0..SIDES {
            if at != broken {
                self.fail(pair, at)?;
            }
        }
        self.world.advance(Duration::from_millis(10));
        for at in 0..SIDES {
            self.each_once(pair, at)?;
        }
        self.recover(pair)?;
        self.take_bytes(pair)
    }

    /// Takes the completions of a pair that was broken.
    fn each_once(&mut self, pair: usize, at: usize) -> Result<(), String> {
        let side = &mut self.sides[at];
        for done in side.poll(4, false) {
            let done = done.map_err(|error| format!("polling: {error}"))?;
            take_unknown(side, pair, &done)?;
        }
        let (sent, posted) = (&side.sent[pair], &side.posted[pair]);
        if sent.back().is_some_and(|last| last.signaled) || !posted.is_empty() {
            return Err(format!("pair {pair}, side {at}: no completion of {sent:?} {posted:?}"));
        }
        side.sent[pair].clear();
        Ok(())
    }

    fn apply(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Post { pair, side, how, ref requests } => self.post(pair, side, how, requests, Fate::Executed)?,
            Op::Receive { pair, side, region, offset, len, pieces } => {
                let at = (pair * SIDES + (1 - side)) * STRIPE + offset;
                let wr_id = self.next_wr_id();
                self.receive(pair, side, Posted { wr_id, region, at, len: len.min(MESSAGES - offset) }, pieces)?;
            }
            Op::SharedReceive { side, queue, count } => {
                let side = &mut self.sides[side];
                (0..count).try_for_each(|_| match queue {
                    None => side.post_shared(),
                    Some(queue) => side.xrc.post(queue),
                })?;
            }
            Op::Register { pair, side, region, ref units, access } => self.register((pair, side), region, units, access)?,
            Op::Invalidate { pair, side } => self.invalidate(pair, side)?,
            Op::Bind { pair, side, window, region, at, len, access } => {
                let (at, len) = (at * STRIPE / 2, len * STRIPE / 2);
                self.bind((pair, side, window), Bound { region, at, len, access, pair })?;
            }
            Op::BindChain { pair, side, window, ref steps, wrong, dropped } => {
                self.bind_chain((pair, side, window), steps, wrong, dropped)?;
            }
            Op::Unbind { side, window } => self.unbind(side, window)?,
            Op::ReplaceWindow { side, window, type2 } => {
                self.settle(8, false)?;
                self.sides[side].replace_window(window, if type2 { MwType::Type2 } else { MwType::Type1 });
            }
            Op::ReplaceRegion { side, region, access } => {
                self.settle(8, false)?;
                if !self.sides[side].is_posted(region) {
                    self.sides[side].replace_region(region, access, self.next_id)?;
                }
            }
            Op::Reregister { side, region, access } => {
                self.settle(8, false)?;
                let side = &mut self.sides[side];
                if side.is_posted(region) {
                    return Ok(());
                }
                let (is_bound, memory) = (side.is_bound(region), side.memory.remove(region));
                let change = MrChange { access: Some(access), ..MrChange::default() };
                let (changed, same, refused) = match side.verbs.rereg_mr(memory.region, &change) {
                    Ok(changed) => (Some(changed), access, false),
                    Err(refused) => (refused.returned, memory.access, true),
                };
                if refused != is_bound {
                    return Err(format!("rereg_mr of region {region}: refused {refused}"));
                }
                let changed = changed.ok_or("the region did not come back")?;
                side.memory.insert(region, crate::hosts::Memory { region: changed, access: same, bytes: memory.bytes });
            }
            Op::ResizeCq { side, cq, entries } => {
                let side = &mut self.sides[side];
                // It has what is in flight, and is too short for no more than that.
                side.verbs.resize_cq(&mut side.cqs[cq], entries).map_err(|error| format!("resize_cq: {error}"))?;
            }
            Op::Pass(micros) => self.world.advance(Duration::from_micros(micros.into())),
            Op::Settle { at_a_time, threads } => self.settle(at_a_time, threads)?,
            Op::Interrupt { pair, side, broken, micros, ref requests } => {
                self.interrupt(pair, side, broken, micros, requests)?
            }
            Op::PostInError { pair, side } => {
                self.settle(8, false)?;
                self.fail(pair, side)?;
                self.flush_receives(pair, side);
                let wr = SendWr::send(b"late");
                let send = self.sides[side].qps[pair].send();
                if send.post(&wr).is_ok() || send.post_list(&[wr]).is_ok() || send.batch().post(&wr).is_ok() {
                    return Err("a queue pair in ERR takes a request".to_owned());
                }
                self.rounds[pair] = Round { direction: Some(side), failed: true, ..Round::default() };
                self.settle(8, false)?;
            }
            Op::PostUnreachable { pair, side, ref requests } => {
                self.settle(8, false)?;
                self.cut(true);
                let posted = self.post(pair, side, How::List, requests, Fate::Unreachable).and_then(|()| self.settle(8, false));
                self.cut(false);
                posted?;
            }
            Op::Recreate { pair, side, micros, ref requests } => self.recreate(pair, side, micros, requests)?,
            Op::Drain { pair, side } => self.drain(pair, side)?,
        }
        Ok(())
    }

    fn cut(&self, cut: bool) {
        let [a, b] = &self.sides;
        self.world.set_cut(&a.host, &b.host, cut);
        self.world.set_cut(&b.host, &a.host, cut);
    }

    /// Drains both queues of a queue pair: the receives are flushed.
    fn drain(&mut self, pair: usize, at: usize) -> Result<(), String> {
        self.settle(8, false)?;
        self.flush_receives(pair, at);
        let side = &mut self.sides[at];
        let timeout = Duration::from_millis(100);
        let mut done: Vec<Completion> = Vec::new();
        let (send_cq, recv_cq) = PAIRS[pair].cqs;
        let cq = &mut side.cqs[send_cq];
        side.verbs
            .drain_sq(side.qps[pair].send(), cq, timeout, |of| done.push(of))
            .map_err(|error| format!("drain: {error}"))?;
        let cq = &mut side.cqs[recv_cq];
        match &mut side.qps[pair] {
            Qp::Own(qp) => {
                side.verbs
                    .drain_rq(&mut qp.recv, cq, timeout, |of| done.push(of))
                    .map_err(|error| format!("drain: {error}"))?;
            }
            Qp::Shared(qp) => {
                let mut last = None;
                let drained = side.verbs.drain_qp_with_srq(qp, cq, timeout, |of| done.push(of), |event| last = Some(event));
                drained.map_err(|error| format!("drain: {error}"))?;
                if last != Some(Event::LastWqeReached(qp.handle())) {
                    return Err(format!("the last event of a drain is {last:?}"));
                }
            }
            Qp::Xrc(_) => {}
        }
        done.iter().try_for_each(|done| side.completed(done))?;
        self.recover(pair)
    }

    /// Pulls a device out in the middle of requests: each of its own ends exactly once.
    fn remove(&mut self, at: usize) -> Result<(), String> {
        for pair in 0..PAIRS.len() {
            if self.rounds[pair].direction.is_some_and(|direction| direction != at) {
                self.settle(8, false)?;
            }
        }
        self.sides[at].host.with_device(|device| device.set_removed(true));
        let side = &mut self.sides[at];
        if side.verbs.query_port(1).is_ok() {
            return Err("a device that is gone answers".to_owned());
        }
        for index in 0..side.cqs.len() {
            loop {
                let mut out = [Completion::EMPTY; 3];
                let Ok(count) = side.cqs[index].poll(&mut out) else { break };
                if count == 0 {
                    return Err("neither a completion nor the loss".to_owned());
                }
                for done in &out[..count] {
                    if let Some(queue) = queue_of(done) {
                        side.xrc.received_unknown(queue, done)?;
                        continue;
                    }
                    let Some(pair) = side.qps.iter().position(|qp| qp.is(done.qp)) else { continue };
                    take_unknown(side, pair, done)?;
                }
            }
        }
        for pair in 0..PAIRS.len() {
            let (sent, posted) = (&side.sent[pair], &side.posted[pair]);
            if !sent.is_empty() || !posted.is_empty() {
                return Err(format!("pair {pair} of the lost device: no completion of {sent:?} {posted:?}"));
            }
        }
        match side.xrc.not_given() {
            0 => Ok(()),
            left => Err(format!("{left} receives of XRC have no completion")),
        }
    }

    /// Destroys everything. The devices have seen no mistake of the driver.
    fn end(mut self) -> Result<u64, String> {
        self.settle(8, false)?;
        for (at, mut side) in self.sides.into_iter().enumerate() {
            side.compare(true).map_err(|why| format!("side {at}: {why}"))?;
            (0..PAIRS.len()).rev().for_each(|pair| side.destroy_qp(pair));
            side.verbs.dealloc_fast_mr(side.fast.mr).map_err(|error| error.to_string())?;
            side.xrc.end(&mut side.verbs)?;
            for window in &side.windows {
                side.verbs.dealloc_mw(window.handle).map_err(|error| error.to_string())?;
            }
            for memory in side.memory {
                side.verbs.dereg_mr(memory.region).map_err(|refused| refused.error.to_string())?;
            }
            side.verbs.dereg_mr(side.places).map_err(|refused| refused.error.to_string())?;
            side.verbs.destroy_srq(side.srq).map_err(|refused| refused.error.to_string())?;
            for cq in side.cqs {
                side.verbs.destroy_cq(cq).map_err(|refused| refused.error.to_string())?;
            }
            side.verbs.dealloc_pd(side.pd).map_err(|error| error.to_string())?;
            let findings = side.host.with_device(|device| device.audit().findings().to_vec());
            if !findings.is_empty() {
                return Err(format!("side {at}: {findings:?}"));
            }
        }
        Ok(self.requests)
    }
}

/// Returns a request, which names a shared receive queue if it is one of XRC.
const fn named<'a>(wr: &'a SendWr<'a>, srqn: Option<Srqn>) -> SendWr<'a> {
    match srqn {
        Some(srqn) => wr.to_srq(srqn),
        None => *wr,
    }
}

/// Takes a completion of a pair that was broken, or of a device that is gone.
fn take_unknown(side: &mut Side<'_>, pair: usize, done: &Completion) -> Result<(), String> {
    if !matches!(done.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
        // What the model knows of the request may not have come about.
        side.sent[pair].iter_mut().for_each(|sent| sent.status = None);
        return crate::expected::take_sent(&mut side.sent[pair], done);
    }
    if let Some(queue) = queue_of(done) {
        return side.xrc.received_unknown(queue, done);
    }
    if PAIRS[pair].shared {
        if side.free_places.contains(&done.wr_id) {
            return Err(format!("a shared receive twice: {done:?}"));
        }
        side.free_places.push(done.wr_id);
        // Flushed too, it was taken: by a message that has not come whole.
        side.shared_receives = side.shared_receives.saturating_sub(1);
        return Ok(());
    }
    match side.posted[pair].pop_front() {
        Some(posted) if posted.wr_id == done.wr_id => Ok(()),
        posted => Err(format!("{done:?} of {posted:?}")),
    }
}

/// Runs a program and returns how many work requests it posted.
pub(crate) fn run(program: &Program) -> Result<u64, String> {
    let rings: [Box<Rings>; SIDES] = core::array::from_fn(|_| Box::new([const { QpRings::new() }; QPS]));
    let shared: [Box<Shared>; SIDES] = core::array::from_fn(|_| Box::new([const { SrqEntries::new() }; SRQS]));
    let [mut a, mut b]: [Box<Tables<'_>>; SIDES] = core::array::from_fn(|side| {
        Box::new(Tables::with_srqs(QpRings::views(&rings[side]), SrqEntries::views(&shared[side])))
    });
    let mut run = Run::new(program, [&mut a, &mut b])?;
    for (at, op) in program.ops.iter().enumerate() {
        run.apply(op).map_err(|why| format!("operation {at}: {why}"))?;
    }
    match program.end {
        End::Clean => run.end(),
        End::Removed { side } => run.remove(side).map(|()| run.requests),
    }
}
