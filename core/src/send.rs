//! Posting of send requests: the checks that the verbs promise, room, and the record of what is in flight.

use core::slice::from_ref;

use heapless::VecView;

use crate::bind::{self, MwBind, PendingBind, WindowState};
use crate::parts::{Mr, Mw, Qp};
use crate::region::check_sge;
use crate::ring::place;
use crate::table::TableView;
use crate::{
    Access, BadWr, Bind, BindInfo, BindMwError, BindRefused, Binding, CheckedOp, DataPath, DeviceAttr, MwHandle, MwType,
    Payload, PostSendError, Provider, QpHandle, QpState, QpType, Remote, Rkey, SendFlags, SendOp, SendWr, Sge, UsualOp,
    WcOpcode, kind,
};

bitflags::bitflags! {
    /// Kinds of send operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct OpSet: u8 {
        const SEND = 1;
        const WRITE = 1 << 1;
        const READ = 1 << 2;
        const ATOMIC = 1 << 3;
        /// Binds, invalidations, and the send that invalidates.
        const WINDOW = 1 << 4;
    }
}

impl OpSet {
    /// What requests of a transport can be posted.
    pub(crate) fn of(qp_type: QpType, device: &DeviceAttr) -> Self {
        let all = match qp_type {
            QpType::Rc | QpType::XrcSend => Self::all(),
            QpType::Uc => Self::SEND | Self::WRITE | Self::WINDOW,
            // It would have SEND, with an address handle.
            QpType::Ud => Self::empty(),
        };
        if device.atomics { all } else { all - Self::ATOMIC }
    }
}

/// Send flags that a transport has.
pub(crate) fn transport_flags(qp_type: QpType) -> SendFlags {
    match qp_type {
        QpType::Rc | QpType::XrcSend => SendFlags::KNOWN,
        QpType::Uc | QpType::Ud => SendFlags::KNOWN - SendFlags::FENCE,
    }
}

/// Whether a queue pair of this state takes send requests.
#[inline]
pub(crate) const fn can_send(state: QpState) -> bool {
    matches!(state, QpState::Rts | QpState::Sqd)
}

/// What is remembered of a block of a send ring: two words, because what a post costs is its stores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    /// Bytes (32 bits), blocks (16 bits), code of the operation (8 bits), from the lowest bit up.
    facts: u64,
}

impl SendEntry {
    /// No request starts here.
    pub(crate) const NONE: Self = Self { wr_id: 0, facts: 0 };

    #[inline(always)]
    pub(crate) const fn new(wr_id: u64, bytes: u32, blocks: u16, opcode: WcOpcode) -> Self {
        Self { wr_id, facts: bytes as u64 | (blocks as u64) << 32 | (opcode as u64) << 48 }
    }

    #[inline(always)]
    pub(crate) const fn bytes(&self) -> u32 {
        self.facts as u32
    }

    /// Blocks of the request that starts here; 0 in the middle of one.
    #[inline(always)]
    pub(crate) const fn blocks(&self) -> u16 {
        (self.facts >> 32) as u16
    }

    #[inline(always)]
    pub(crate) fn opcode(&self) -> WcOpcode {
        /// In the order of their codes.
        const OPCODES: [WcOpcode; 7] = [
            WcOpcode::Send,
            WcOpcode::RdmaWrite,
            WcOpcode::RdmaRead,
            WcOpcode::CompSwap,
            WcOpcode::FetchAdd,
            WcOpcode::BindMw,
            WcOpcode::LocalInv,
        ];
        match OPCODES.get((self.facts >> 48) as usize & 0xff) {
            Some(opcode) => *opcode,
            None => WcOpcode::Send,
        }
    }
}

/// The send queue of one queue pair, open for a batch of requests that one doorbell announces.
///
/// Posting changes nothing for the device until [`Self::commit`]. Dropping the batch without it loses nothing: its requests
/// stay in the queue, and the next commit on this queue pair announces them too.
pub struct SendQueue<'a, P: DataPath> {
    pub(crate) provider: &'a mut P,
    pub(crate) handle: QpHandle,
    pub(crate) qp: &'a mut Qp<P>,
    pub(crate) entries: &'a mut [SendEntry],
    pub(crate) mrs: &'a mut TableView<kind::Mr, Mr<P>>,
    pub(crate) mws: &'a mut TableView<kind::Mw, Mw<P>>,
    pub(crate) binds: &'a mut VecView<PendingBind>,
    pub(crate) slot_mask: u32,
}

/// The remote address of an operation that has none.
const NOWHERE: Remote = Remote { addr: 0, rkey: Rkey::new(0) };
/// Flags of requests without payload.
const PLAIN: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED);
/// Flags of an inline RDMA_WRITE, which the peer does not notice.
const SILENT: SendFlags = PLAIN.union(SendFlags::INLINE);
/// Flags of messages that the peer notices and whose payload lies in regions.
const NOTICED: SendFlags = PLAIN.union(SendFlags::SOLICITED);

impl<P: DataPath> SendQueue<'_, P> {
    /// Posts a request without telling the device. After an error the queue is as before.
    ///
    /// The requests that most programs live on have a path of their own, in which nothing is copied on the way from the
    /// caller's request to the ring; whatever is unusual or wrong about a request is found out on the long way.
    #[inline(always)]
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError<P::Error>> {
        match self.short().post(wr) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(PostSendError::Device(error)),
            None => self.post_any(wr),
        }
    }

    /// The short way for usual requests.
    #[inline(always)]
    pub(crate) fn short(&mut self) -> Short<'_, P> {
        Short {
            provider: &mut *self.provider,
            qp: &mut *self.qp,
            entries: &mut *self.entries,
            mrs: &*self.mrs,
            slot_mask: self.slot_mask,
        }
    }

    /// Any request, with every check in its order.
    #[inline(never)]
    pub(crate) fn post_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError<P::Error>> {
        let (set, opcode, payload, op) = match wr.op {
            SendOp::Send { payload } => (OpSet::SEND, WcOpcode::Send, payload, CheckedOp::Send(payload)),
            SendOp::Write { payload, remote } => {
                (OpSet::WRITE, WcOpcode::RdmaWrite, payload, CheckedOp::Write(payload, remote))
            }
            SendOp::Read { sges, remote } => {
                self.admit(OpSet::READ, PLAIN, wr.flags, WcOpcode::RdmaRead)?;
                let bytes = self.check_sges(sges, Access::LOCAL_WRITE)?;
                return self.put_rare(wr, &CheckedOp::Read(sges, remote), bytes, WcOpcode::RdmaRead);
            }
            SendOp::SendWithImm { payload, imm } => {
                (OpSet::SEND, WcOpcode::Send, payload, CheckedOp::SendWithImm(payload, imm))
            }
            SendOp::SendWithInv { payload, rkey } => {
                (OpSet::WINDOW, WcOpcode::Send, payload, CheckedOp::SendWithInv(payload, rkey))
            }
            SendOp::WriteWithImm { payload, remote, imm } => {
                (OpSet::WRITE, WcOpcode::RdmaWrite, payload, CheckedOp::WriteWithImm(payload, remote, imm))
            }
            SendOp::CompareSwap { sge, remote, compare, swap } => {
                self.check_atomic(&sge, remote, wr.flags, WcOpcode::CompSwap)?;
                return self.put_rare(wr, &CheckedOp::CompareSwap(sge, remote, compare, swap), 8, WcOpcode::CompSwap);
            }
            SendOp::FetchAdd { sge, remote, add } => {
                self.check_atomic(&sge, remote, wr.flags, WcOpcode::FetchAdd)?;
                return self.put_rare(wr, &CheckedOp::FetchAdd(sge, remote, add), 8, WcOpcode::FetchAdd);
            }
            SendOp::BindMw { mw, key, info } => return self.post_bind(wr, mw, key, &info),
            SendOp::LocalInv { rkey } => return self.post_local_inv(wr, rkey),
        };
        let noticed = !matches!(wr.op, SendOp::Write { .. });
        let bytes = match payload {
            // Only bytes that the caller shows can be copied into the request.
            Payload::Sges(sges) => {
                self.admit(set, if noticed { NOTICED } else { PLAIN }, wr.flags, opcode)?;
                self.check_sges(sges, Access::empty())?
            }
            Payload::Inline(data) => {
                self.admit(set, if noticed { SendFlags::KNOWN } else { SILENT }, wr.flags, opcode)?;
                self.check_inline(data)?
            }
        };
        self.put_rare(wr, &op, bytes, opcode)
    }

    /// Tells the device of every request posted so far, with one doorbell; none if there is nothing new.
    #[inline(always)]
    pub fn commit(&mut self) -> Result<(), P::Error> {
        let end = self.qp.send.head();
        if end != self.qp.announced {
            self.provider.commit_send(&mut self.qp.inner, end)?;
            self.qp.announced = end;
        }
        Ok(())
    }

    /// Ends a list at its request `index`, which was refused: those before it are announced.
    #[cold]
    #[inline(never)]
    pub(crate) fn stop_at(&mut self, index: usize, error: PostSendError<P::Error>) -> BadWr<PostSendError<P::Error>> {
        match self.commit() {
            Err(commit) if index != 0 => BadWr { index, error: PostSendError::Commit(commit) },
            _ => BadWr { index, error },
        }
    }

    /// Blocks that are free in the send queue.
    pub fn free_blocks(&self) -> u32 {
        self.qp.send.free()
    }

    /// Whether the transport has the operation and its flags.
    #[inline(always)]
    fn admit(&self, op: OpSet, legal: SendFlags, flags: SendFlags, opcode: WcOpcode) -> Result<(), PostSendError<P::Error>> {
        if !self.qp.ops.contains(op) || !(legal & self.qp.flags).contains(flags) {
            return Err(self.not_admitted(op, legal, flags, opcode));
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn not_admitted(&self, op: OpSet, legal: SendFlags, flags: SendFlags, opcode: WcOpcode) -> PostSendError<P::Error> {
        let qp_type = self.qp.qp_type;
        if !self.qp.ops.contains(op) {
            if op == OpSet::SEND {
                return PostSendError::NoAddressHandle;
            }
            if op == OpSet::ATOMIC && matches!(qp_type, QpType::Rc | QpType::XrcSend) {
                return PostSendError::NoAtomics;
            }
            return PostSendError::Opcode { opcode, qp_type };
        }
        PostSendError::Flags { flags: flags.difference(legal & self.qp.flags) }
    }

    /// Checks the length of an inline payload and gives it.
    #[inline(always)]
    fn check_inline(&self, data: &[u8]) -> Result<u32, PostSendError<P::Error>> {
        let max = self.qp.cap.max_inline_data;
        match u32::try_from(data.len()) {
            Ok(length) if length <= max => Ok(length),
            _ => Err(PostSendError::InlineSize { length: data.len(), max }),
        }
    }

    /// Checks SGEs against their regions; gives the length of all.
    fn check_sges(&self, sges: &[Sge], need: Access) -> Result<u32, PostSendError<P::Error>> {
        let max = self.qp.cap.max_send_sge;
        if sges.len() > max as usize {
            return Err(PostSendError::SgeCount { count: sges.len(), max });
        }
        let mut bytes = 0_u64;
        for (index, sge) in sges.iter().enumerate() {
            if let Err(fault) = check_sge(self.mrs, self.slot_mask, self.qp.pd, need, sge) {
                return Err(PostSendError::Sge { index, lkey: sge.lkey, fault });
            }
            bytes = bytes.wrapping_add(u64::from(sge.length));
        }
        match u32::try_from(bytes) {
            Ok(bytes) if bytes <= self.qp.max_message => Ok(bytes),
            _ => Err(PostSendError::MessageSize { max: self.qp.max_message }),
        }
    }

    fn check_atomic(
        &self,
        sge: &Sge,
        remote: Remote,
        flags: SendFlags,
        opcode: WcOpcode,
    ) -> Result<(), PostSendError<P::Error>> {
        self.admit(OpSet::ATOMIC, PLAIN, flags, opcode)?;
        if sge.length != 8 {
            return Err(PostSendError::AtomicLength { length: sge.length });
        }
        if !remote.addr.is_multiple_of(8) {
            return Err(PostSendError::AtomicAlignment { addr: remote.addr });
        }
        self.check_sges(from_ref(sge), Access::LOCAL_WRITE).map(drop)
    }

    /// Blocks that a request takes, if they are free.
    #[inline(always)]
    fn room(&self, op: &CheckedOp<'_>) -> Result<u16, (u32, u32)> {
        let needed = P::send_blocks(op);
        let free = self.qp.send.free();
        match u16::try_from(needed) {
            Ok(blocks) if needed <= free && blocks != 0 => Ok(blocks),
            _ => Err((needed, free)),
        }
    }

    /// Writes a checked request and remembers it.
    #[inline(always)]
    fn put(
        &mut self,
        wr: &SendWr<'_>,
        op: &CheckedOp<'_>,
        bytes: u32,
        opcode: WcOpcode,
    ) -> Result<(), PostSendError<P::Error>> {
        let blocks = self.room(op).map_err(|(needed, free)| PostSendError::QueueFull { needed, free })?;
        self.write(op, wr.wr_id, wr.flags, blocks, bytes, opcode).map_err(PostSendError::Device)
    }

    /// [`Self::put`], not compiled for one operation.
    #[inline(never)]
    fn put_rare(
        &mut self,
        wr: &SendWr<'_>,
        op: &CheckedOp<'_>,
        bytes: u32,
        opcode: WcOpcode,
    ) -> Result<(), PostSendError<P::Error>> {
        self.put(wr, op, bytes, opcode)
    }

    #[inline(always)]
    fn write(
        &mut self,
        op: &CheckedOp<'_>,
        wr_id: u64,
        flags: SendFlags,
        blocks: u16,
        bytes: u32,
        opcode: WcOpcode,
    ) -> Result<(), P::Error> {
        let at = self.qp.send.head();
        let signaled = self.qp.sq_sig_all || flags.contains(SendFlags::SIGNALED);
        self.provider.encode_send(&mut self.qp.inner, at, op, flags, signaled)?;
        remember(self.qp, self.entries, at, SendEntry::new(wr_id, bytes, blocks, opcode));
        Ok(())
    }

    /// Posts a type 1 bind without telling the device: [`crate::Verbs::bind_mw`] as part of a batch.
    pub fn bind_mw(&mut self, mw: MwHandle, bind: &MwBind) -> Result<Rkey, BindMwError<P::Error>> {
        let window = self.mws.get(mw).ok_or(BindRefused::StaleWindow).map_err(BindMwError::Refused)?;
        let qp_type = self.qp.qp_type;
        if !self.qp.ops.contains(OpSet::WINDOW) {
            return Err(BindMwError::Transport { qp_type });
        }
        if window.kind != MwType::Type1 {
            return Err(BindMwError::Refused(BindRefused::WindowType { kind: window.kind }));
        }
        let asked = Binding { mr: bind.mr, addr: bind.addr, length: bind.length, access: bind.access };
        bind::check_arguments(self.mrs, &asked).map_err(BindMwError::Refused)?;
        let flags = bind.flags.difference(PLAIN & self.qp.flags);
        if !flags.is_empty() {
            return Err(BindMwError::Flags { flags });
        }
        if !can_send(self.qp.state) {
            return Err(BindMwError::NotReady { state: self.qp.state });
        }
        let (lkey, binding) = bind::check_binding(self.mrs, self.qp.pd, window, &asked).map_err(BindMwError::Refused)?;
        let (old, new) = (window.state.rkey, bind::next_key(window.state.rkey));
        let op = CheckedOp::BindMw(device_bind(MwType::Type1, old, new, lkey, &asked));
        let blocks = self.room(&op).map_err(|(needed, free)| BindMwError::QueueFull { needed, free })?;
        if self.binds.is_full() {
            return Err(BindMwError::NoRecord);
        }
        self.write_remembered(&op, bind.wr_id, bind.flags, blocks, WcOpcode::BindMw, mw, WindowState { rkey: new, binding })
            .map_err(BindMwError::Device)?;
        Ok(new)
    }

    fn post_bind(&mut self, wr: &SendWr<'_>, mw: MwHandle, key: u8, info: &BindInfo) -> Result<(), PostSendError<P::Error>> {
        self.admit(OpSet::WINDOW, PLAIN, wr.flags, WcOpcode::BindMw)?;
        let window = self.mws.get(mw).ok_or(PostSendError::Bind(BindRefused::StaleWindow))?;
        if window.kind != MwType::Type2 {
            return Err(PostSendError::Bind(BindRefused::WindowType { kind: window.kind }));
        }
        let asked = Binding { mr: info.mr, addr: info.addr, length: info.length, access: info.access };
        bind::check_arguments(self.mrs, &asked).map_err(PostSendError::Bind)?;
        let (lkey, binding) = bind::check_binding(self.mrs, self.qp.pd, window, &asked).map_err(PostSendError::Bind)?;
        let (old, new) = (window.state.rkey, bind::with_tag(window.state.rkey, key));
        let op = CheckedOp::BindMw(device_bind(MwType::Type2, old, new, lkey, &asked));
        self.put_remembered(wr, &op, WcOpcode::BindMw, mw, WindowState { rkey: new, binding })
    }

    fn post_local_inv(&mut self, wr: &SendWr<'_>, rkey: Rkey) -> Result<(), PostSendError<P::Error>> {
        self.admit(OpSet::WINDOW, PLAIN, wr.flags, WcOpcode::LocalInv)?;
        let pd = self.qp.pd;
        let named = |mw: &Mw<P>| mw.kind == MwType::Type2 && mw.pd == pd && mw.state.rkey == rkey;
        let Some((mw, _)) = self.mws.iter().find(|(_, mw)| named(mw)) else {
            return Err(PostSendError::Bind(BindRefused::UnknownKey { rkey }));
        };
        self.put_remembered(wr, &CheckedOp::LocalInv(rkey), WcOpcode::LocalInv, mw, WindowState { rkey, binding: None })
    }

    fn put_remembered(
        &mut self,
        wr: &SendWr<'_>,
        op: &CheckedOp<'_>,
        opcode: WcOpcode,
        mw: MwHandle,
        next: WindowState,
    ) -> Result<(), PostSendError<P::Error>> {
        let blocks = self.room(op).map_err(|(needed, free)| PostSendError::QueueFull { needed, free })?;
        if self.binds.is_full() {
            return Err(PostSendError::NoRecord);
        }
        self.write_remembered(op, wr.wr_id, wr.flags, blocks, opcode, mw, next).map_err(PostSendError::Device)
    }

    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "the request, its place and the window's next state are all there is")]
    fn write_remembered(
        &mut self,
        op: &CheckedOp<'_>,
        wr_id: u64,
        flags: SendFlags,
        blocks: u16,
        opcode: WcOpcode,
        mw: MwHandle,
        next: WindowState,
    ) -> Result<(), P::Error> {
        let at = self.qp.send.head();
        self.write(op, wr_id, flags, blocks, 0, opcode)?;
        bind::remember(self.mrs, self.mws, self.binds, (self.handle, &mut *self.qp), at, mw, next);
        Ok(())
    }
}

/// What a usual request needs of a send queue. Every step of it is inlined, so that it lives in registers.
pub(crate) struct Short<'a, P: DataPath> {
    pub(crate) provider: &'a mut P,
    pub(crate) qp: &'a mut Qp<P>,
    pub(crate) entries: &'a mut [SendEntry],
    pub(crate) mrs: &'a TableView<kind::Mr, Mr<P>>,
    pub(crate) slot_mask: u32,
}

impl<P: DataPath> Short<'_, P> {
    /// Posts a SEND, RDMA_WRITE or RDMA_READ with one or two SGEs that are not empty, or an RDMA_WRITE with few bytes inline,
    /// if all is as it should be with it. `None`: it takes the long way, and nothing has happened.
    #[inline(always)]
    pub(crate) fn post(self, wr: &SendWr<'_>) -> Option<Result<(), P::Error>> {
        match &wr.op {
            SendOp::Write { payload: Payload::Sges([sge]), remote } => {
                self.post_sges(wr, UsualOp::Write, from_ref(sge), *remote)
            }
            SendOp::Send { payload: Payload::Sges([sge]) } => self.post_sges(wr, UsualOp::Send, from_ref(sge), NOWHERE),
            SendOp::Write { payload: Payload::Inline(bytes), remote } => self.post_inline(wr, bytes, *remote),
            SendOp::Write { payload: Payload::Sges(_), .. }
            | SendOp::Send { payload: Payload::Sges(_) }
            | SendOp::Read { .. } => post_second(self.provider, self.qp, self.entries, self.mrs, self.slot_mask, wr),
            _ => None,
        }
    }

    #[inline(always)]
    fn post_sges(self, wr: &SendWr<'_>, op: UsualOp, sges: &[Sge], remote: Remote) -> Option<Result<(), P::Error>> {
        let blocks = P::USUAL_BLOCKS?;
        if sges.len() > self.qp.cap.max_send_sge as usize || !self.admits(op, wr.flags) {
            return None;
        }
        let bytes = match sges {
            [sge] => self.check(sge, op)?,
            [one, two] => self.check(one, op)?.checked_add(self.check(two, op)?)?,
            _ => return None,
        };
        if bytes > self.qp.max_message || self.qp.send.free() < u32::from(blocks) {
            return None;
        }
        let (at, signaled) = (self.qp.send.head(), self.signaled(wr.flags));
        if let Err(error) = self.provider.encode_usual(&mut self.qp.inner, at, op, sges, remote, wr.flags, signaled) {
            return Some(Err(error));
        }
        let opcode = match op {
            UsualOp::Send => WcOpcode::Send,
            UsualOp::Write => WcOpcode::RdmaWrite,
            UsualOp::Read => WcOpcode::RdmaRead,
        };
        remember(self.qp, self.entries, at, SendEntry::new(wr.wr_id, bytes, blocks, opcode));
        Some(Ok(()))
    }

    #[inline(always)]
    fn post_inline(self, wr: &SendWr<'_>, bytes: &[u8], remote: Remote) -> Option<Result<(), P::Error>> {
        let most = P::SHORT_INLINE.min(self.qp.cap.max_inline_data as usize);
        let legal = (SILENT & self.qp.flags).contains(wr.flags) && self.qp.ops.contains(OpSet::WRITE);
        if !legal || bytes.is_empty() || bytes.len() > most {
            return None;
        }
        let blocks = P::short_inline_blocks(bytes.len());
        if self.qp.send.free() < u32::from(blocks) {
            return None;
        }
        let (at, signaled) = (self.qp.send.head(), self.signaled(wr.flags));
        if let Err(error) = self.provider.encode_short_inline(&mut self.qp.inner, at, bytes, remote, wr.flags, signaled) {
            return Some(Err(error));
        }
        let entry = SendEntry::new(wr.wr_id, bytes.len() as u32, blocks, WcOpcode::RdmaWrite);
        remember(self.qp, self.entries, at, entry);
        Some(Ok(()))
    }

    #[inline(always)]
    fn signaled(&self, flags: SendFlags) -> bool {
        self.qp.sq_sig_all || flags.contains(SendFlags::SIGNALED)
    }

    /// Whether the transport has the operation and its flags.
    #[inline(always)]
    fn admits(&self, op: UsualOp, flags: SendFlags) -> bool {
        let (set, legal) = match op {
            UsualOp::Send => (OpSet::SEND, NOTICED),
            UsualOp::Write => (OpSet::WRITE, PLAIN),
            UsualOp::Read => (OpSet::READ, PLAIN),
        };
        self.qp.ops.contains(set) && (legal & self.qp.flags).contains(flags)
    }

    /// Length of an SGE that is not empty, if its region allows it.
    #[inline(always)]
    fn check(&self, sge: &Sge, op: UsualOp) -> Option<u32> {
        let need = if op == UsualOp::Read { Access::LOCAL_WRITE } else { Access::empty() };
        let good = sge.length != 0 && check_sge(self.mrs, self.slot_mask, self.qp.pd, need, sge).is_ok();
        good.then_some(sge.length)
    }
}

/// [`Short::post`] for reads and for two SGEs. A call, and its arguments one by one, so that the requests with one SGE have all
/// registers for themselves.
#[inline(never)]
fn post_second<P: DataPath>(
    provider: &mut P,
    qp: &mut Qp<P>,
    entries: &mut [SendEntry],
    mrs: &TableView<kind::Mr, Mr<P>>,
    slot_mask: u32,
    wr: &SendWr<'_>,
) -> Option<Result<(), P::Error>> {
    let short = Short { provider, qp, entries, mrs, slot_mask };
    match &wr.op {
        SendOp::Write { payload: Payload::Sges(sges), remote } => short.post_sges(wr, UsualOp::Write, sges, *remote),
        SendOp::Send { payload: Payload::Sges(sges) } => short.post_sges(wr, UsualOp::Send, sges, NOWHERE),
        SendOp::Read { sges, remote } => short.post_sges(wr, UsualOp::Read, sges, *remote),
        _ => None,
    }
}

/// Remembers the request at the head of the ring, `at`, and goes on behind it.
#[inline(always)]
fn remember<P: DataPath>(qp: &mut Qp<P>, entries: &mut [SendEntry], at: u32, entry: SendEntry) {
    let (size, blocks) = (entries.len(), entry.blocks());
    if let Some(place) = entries.get_mut(place(at, size)) {
        *place = entry;
    }
    for middle in 1..blocks {
        if let Some(place) = entries.get_mut(place(at.wrapping_add(u32::from(middle)), size)) {
            *place = SendEntry::NONE;
        }
    }
    qp.send.move_to(at.wrapping_add(u32::from(blocks)));
}

/// A binding in the backend's terms.
fn device_bind(kind: MwType, old: Rkey, new: Rkey, lkey: crate::Lkey, asked: &Binding) -> Bind {
    Bind { kind, old, new, lkey, addr: asked.addr, length: asked.length, access: asked.access }
}

/// Longest message of a device in bytes: 2^31 is the most that any has (IBTA 9.7.7), also one that does not say.
pub(crate) fn longest_message<P: Provider>(provider: &P) -> u32 {
    match provider.device_attr().max_msg_size {
        0 => 1 << 31,
        max => u32::try_from(max).unwrap_or(u32::MAX).min(1 << 31),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_remembers_every_fact() {
        use WcOpcode::{BindMw, CompSwap, FetchAdd, LocalInv, RdmaRead, RdmaWrite, Send};
        for opcode in [Send, RdmaWrite, RdmaRead, CompSwap, FetchAdd, BindMw, LocalInv] {
            let entry = SendEntry::new(u64::MAX, u32::MAX, u16::MAX, opcode);
            assert_eq!((entry.wr_id, entry.bytes(), entry.blocks(), entry.opcode()), (u64::MAX, u32::MAX, u16::MAX, opcode));
        }
        assert_eq!(SendEntry::NONE.blocks(), 0);
    }
}
