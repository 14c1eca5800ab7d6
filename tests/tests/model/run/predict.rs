//! What becomes of a request: what it needs, where its key leads, which bytes and completions it leaves.

use bareverbs::{Access, MwType, QpType, Remote, Rkey, SendFlags, WcData, WcOpcode, WcStatus};

use super::request::{Opened, Ready, Refusal, after, bytes_of, number, pieces};
use super::{Fate, GRH_AREA, Run};
use crate::expected::{Arrival, Sent};
use crate::program::{
    ATOMICS, INLINE, Key, Kind, MESSAGES, PAIRS, READS, REGION, Request, SIDES, STRIPE, Wrong, domain_of, of_domain,
};
use crate::xrc::arrivals_of;

impl Run<'_> {
    /// Makes a request ready, and says what becomes of it. Returns nothing if it makes no sense here.
    pub(super) fn prepare(&mut self, pair: usize, side: usize, request: &Request, fate: Fate) -> Option<Ready> {
        let peer = 1 - side;
        let of = PAIRS[pair];
        let stripe = (pair * SIDES + side) * STRIPE;
        let xrc = of.qp_type == QpType::XrcSend;
        let reliable = of.qp_type == QpType::Rc || xrc;
        if !reliable && self.lossy {
            return None;
        }
        // Keys are looked up in the domain of the queue pair, or of the shared receive queue of XRC.
        let remote_domain = if xrc { request.queue } else { domain_of(pair) };
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
                let is_registered = self.sides[peer].fasts[remote_domain].registered.is_some();
                if reliable && fate == Fate::Executed && is_registered { Kind::SendWithInvFast } else { Kind::Send }
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
            let is_address = |wrong| of.qp_type == QpType::Ud && wrong == Wrong::RemoteDomain;
            let is_local = |wrong| matches!(wrong, Wrong::LocalKey | Wrong::LocalRange | Wrong::LocalDomain);
            request.wrong.filter(|wrong| is_local(*wrong) || is_address(*wrong))
        };
        let region = of_domain(request.region, domain_of(pair) ^ usize::from(wrong == Some(Wrong::LocalDomain)));
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
        let key_domain = remote_domain ^ usize::from(wrong == Some(Wrong::RemoteDomain));
        let (mut remote, mut opened) = self.target((peer, key_domain), pair, key, at, len, need);
        if key_domain != remote_domain {
            opened = Opened::Nothing;
        }
        if !reliable && matches!(opened, Opened::Nothing) && matches!(kind, Kind::Write | Kind::WriteWithImm) {
            return None;
        }
        match wrong {
            Some(Wrong::RemoteKey) => (remote.rkey, opened) = (Rkey::new(remote.rkey.get() ^ 0x80), Opened::Nothing),
            Some(Wrong::RemoteRange) => {
                remote =
                    self.sides[peer].memory[of_domain(request.region, remote_domain)].region.remote((REGION - len + 1) as u64);
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
        let local = &self.sides[side].memory[region];
        let (mut base, from) = (local.region.sge(0, 0), stripe + start + offset);
        base.addr += from as u64;
        let fast = self.sides[side].fasts[domain_of(pair)].registered.as_ref();
        let fast = fast.filter(|of| request.fast && of.memory == region);
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
        let lacks_right = writes_here && !local_access.contains(Access::LOCAL_WRITE);
        let refused = match wrong {
            Some(Wrong::RemoteDomain) if !reliable => Some(Refusal::Address),
            _ if len == 0 || is_inline => None,
            Some(Wrong::LocalKey) => Some(Refusal::Key),
            Some(Wrong::LocalDomain) => Some(Refusal::Domain),
            _ if lacks_right => Some(Refusal::Access),
            Some(Wrong::LocalRange) => Some(Refusal::Range),
            _ => None,
        };
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
            Kind::SendWithInvFast => self.sides[peer].fasts[remote_domain].rkey,
            _ => Rkey::new(0),
        };
        let compare = match (kind, &opened) {
            (Kind::CompareSwap(true) | Kind::MaskedSwap { matches: true, .. }, Opened::Bytes { region, at }) => {
                self.word(peer, *region, *at, len)
            }
            _ => 0x0123_4567_89ab_cdef,
        };
        let to = self.sides[side].to_peer[key_domain].filter(|_| of.qp_type == QpType::Ud);
        let sges = pieces(base, len, if is_atomic { 1 } else { request.pieces });
        let to_peer = &self.sides[peer];
        let (srqn, queue) = match wrong {
            _ if !xrc => (None, None),
            Some(Wrong::Srq) => (Some(to_peer.xrc.wrong_number(wr_id, to_peer.srqn())), None),
            _ => (Some(to_peer.xrc.queues[request.queue].srqn), Some(request.queue)),
        };
        let ready = Ready { wr_id, kind, flags, sges, inline, remote, invalidates, compare, to, srqn, queue, refused };
        if refused.is_some() {
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
            Fate::Executed => Some(self.execute(pair, side, &ready, (region, from, len), &opened)),
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

    pub(super) fn word(&self, side: usize, region: usize, at: usize, len: usize) -> u64 {
        number(self.sides[side].memory[region].bytes.get(at, len))
    }

    /// Returns the peer's address of byte `at` of its regions in a domain, and what is there for who has these rights.
    pub(super) fn target(
        &self,
        (peer, domain): (usize, usize),
        pair: usize,
        key: Key,
        at: usize,
        len: usize,
        need: Access,
    ) -> (Remote, Opened) {
        let side = &self.sides[peer];
        let of_region = |region: usize| {
            let memory = &side.memory[region];
            let opened = if memory.access.contains(need) { Opened::Bytes { region, at } } else { Opened::Nothing };
            (memory.region.remote(at as u64), opened)
        };
        match key {
            Key::Region(region) => of_region(of_domain(region, domain)),
            Key::Fast => {
                let Some(of) = &side.fasts[domain].registered else {
                    let remote = Remote { rkey: side.fasts[domain].rkey, ..side.memory[0].region.remote(at as u64) };
                    return (remote, Opened::Nothing);
                };
                // What is not registered is not in the range.
                let Some(remote) = of.remote(at) else { return of_region(of.memory) };
                let region = of.memory;
                (remote, if of.access.contains(need) { Opened::Bytes { region, at } } else { Opened::Nothing })
            }
            Key::Window(index) => {
                let index = of_domain(index, domain);
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
    pub(super) fn execute(
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
    pub(super) fn arrive(&mut self, pair: usize, peer: usize, message: &[u8], ready: &Ready) -> WcStatus {
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
            to.fasts.iter_mut().filter(|fast| fast.rkey == ready.invalidates).for_each(|fast| fast.registered = None);
        }
        to.arrivals[arrivals_of(pair, ready.queue.unwrap_or(0))].push_back(arrival);
        status
    }
}
