//! A backend in plain memory that believes everything and records it.

use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use crate::{
    Access, AsyncEvent, Bind, CheckedOp, Cqn, DataPath, DeviceAttr, DeviceError, Errno, Gid, Guid, Instant, Lkey, MrRequest,
    MwType, Payload, PortAttr, Provider, Psn, QpAttr, QpAttrMask, QpMade, QpRequest, QpState, Qpn, RawCompletion, Rkey,
    SendFlags, Sge,
};

/// The one error of the mock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) struct MockError;

impl core::fmt::Display for MockError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("told to fail")
    }
}

impl DeviceError for MockError {
    fn errno(&self) -> Errno {
        Errno::Eio
    }
}

/// What a send was, without what it borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    Inline(usize),
    Read,
    Atomic,
    Bind(Bind),
    LocalInv(Rkey),
}

/// A send as the backend got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) qpn: Qpn,
    pub(super) at: u32,
    pub(super) kind: Kind,
    pub(super) flags: SendFlags,
    pub(super) signaled: bool,
}

pub(super) struct MockQp {
    qpn: Qpn,
    cookie: u32,
    pub(super) state: QpState,
}

pub(super) struct Mock {
    pub(super) device: DeviceAttr,
    next: u32,
    /// Fails the operation after this many more.
    pub(super) fail_after: Option<u32>,
    /// Gives keys that do not end as asked.
    pub(super) foreign_keys: bool,
    /// Lengths of the rings that it makes, if not as asked.
    pub(super) rings: Option<(u32, u32)>,
    queues: BTreeMap<Cqn, VecDeque<RawCompletion>>,
    cookies: BTreeMap<Qpn, u32>,
    pub(super) sent: Vec<Sent>,
    pub(super) received: Vec<(Qpn, u32, usize)>,
    /// Doorbells: queue pair, end, whether of sends.
    pub(super) doorbells: Vec<(Qpn, u32, bool)>,
    pub(super) consumed: u32,
    pub(super) armed: Vec<(Cqn, bool)>,
    pub(super) events: VecDeque<AsyncEvent>,
    pub(super) modified: Vec<(QpState, QpAttr, QpAttrMask)>,
    /// What a query says, if not what was set.
    pub(super) state: Option<QpState>,
    /// Objects alive: domains, regions, windows, completion queues, queue pairs.
    pub(super) alive: [u32; 5],
}

impl Mock {
    pub(super) fn new() -> Self {
        let device = DeviceAttr {
            node_guid: Guid(0x0200_0000_0000_0001),
            max_mr_size: 1 << 40,
            max_qp_wr: 1 << 15,
            max_sge: 4,
            max_cqe: 1 << 20,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            atomics: true,
            access: Access::KNOWN - Access::RELAXED_ORDERING,
            max_inline_data: 512,
            max_msg_size: 1 << 31,
            phys_port_cnt: 1,
            ..DeviceAttr::default()
        };
        Self {
            device,
            next: 0,
            fail_after: None,
            foreign_keys: false,
            rings: None,
            queues: BTreeMap::new(),
            cookies: BTreeMap::new(),
            sent: Vec::new(),
            received: Vec::new(),
            doorbells: Vec::new(),
            consumed: 0,
            armed: Vec::new(),
            events: VecDeque::new(),
            modified: Vec::new(),
            state: None,
            alive: [0; 5],
        }
    }

    pub(super) fn complete(&mut self, cqn: Cqn, raw: RawCompletion) {
        self.queues.get_mut(&cqn).unwrap().push_back(raw);
    }

    pub(super) fn cookie(&self, qpn: Qpn) -> Option<u32> {
        self.cookies.get(&qpn).copied()
    }

    pub(super) fn waiting(&self, cqn: Cqn) -> usize {
        self.queues.get(&cqn).map_or(0, VecDeque::len)
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn step(&mut self) -> Result<(), MockError> {
        match self.fail_after {
            Some(0) => {
                self.fail_after = None;
                Err(MockError)
            }
            Some(left) => {
                self.fail_after = Some(left - 1);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Provider for Mock {
    type Error = MockError;
    type Pd = ();
    type Mr = ();
    type Mw = ();
    type Cq = Cqn;
    type Qp = MockQp;

    fn device_attr(&self) -> &DeviceAttr {
        &self.device
    }

    fn query_port(&mut self, _port: u8) -> Result<PortAttr, MockError> {
        self.step()?;
        Ok(PortAttr::default())
    }

    fn query_gid(&mut self, _port: u8, _index: u16) -> Result<Gid, MockError> {
        self.step()?;
        Ok(Gid::default())
    }

    fn query_pkey(&mut self, _port: u8, _index: u16) -> Result<u16, MockError> {
        self.step()?;
        Ok(0xffff)
    }

    fn alloc_pd(&mut self) -> Result<(), MockError> {
        self.step()?;
        self.alive[0] += 1;
        Ok(())
    }

    fn dealloc_pd(&mut self, (): &mut ()) -> Result<(), MockError> {
        self.step()?;
        self.alive[0] -= 1;
        Ok(())
    }

    fn create_mr(&mut self, (): &(), request: &MrRequest<'_>) -> Result<((), Lkey, Rkey), MockError> {
        self.step()?;
        self.alive[1] += 1;
        let key = self.number() << 8 | u32::from(request.key) ^ u32::from(self.foreign_keys);
        Ok(((), Lkey::new(key), Rkey::new(key)))
    }

    fn destroy_mr(&mut self, (): &mut ()) -> Result<(), MockError> {
        self.step()?;
        self.alive[1] -= 1;
        Ok(())
    }

    fn create_mw(&mut self, (): &(), _kind: MwType) -> Result<((), Rkey), MockError> {
        self.step()?;
        self.alive[2] += 1;
        Ok(((), Rkey::new(self.number() << 8)))
    }

    fn destroy_mw(&mut self, (): &mut ()) -> Result<(), MockError> {
        self.step()?;
        self.alive[2] -= 1;
        Ok(())
    }

    fn create_cq(&mut self, entries: u32) -> Result<(Cqn, Cqn, u32), MockError> {
        self.step()?;
        self.alive[3] += 1;
        let cqn = Cqn::new(self.number());
        self.queues.insert(cqn, VecDeque::new());
        Ok((cqn, cqn, entries.next_power_of_two()))
    }

    fn destroy_cq(&mut self, _cq: &mut Cqn) -> Result<(), MockError> {
        self.step()?;
        self.alive[3] -= 1;
        Ok(())
    }

    fn create_qp(&mut self, request: &QpRequest<'_, Self>) -> Result<QpMade<Self>, MockError> {
        self.step()?;
        self.alive[4] += 1;
        let qpn = Qpn::new(self.number());
        self.cookies.insert(qpn, request.cookie);
        let asked = (request.cap.max_send_wr.next_power_of_two() * 4, request.cap.max_recv_wr.next_power_of_two());
        let (send_blocks, recv_entries) = self.rings.unwrap_or(asked);
        let qp = MockQp { qpn, cookie: request.cookie, state: QpState::Reset };
        Ok(QpMade { qp, qpn, send_blocks, recv_entries, cap: request.cap })
    }

    fn modify_qp(&mut self, qp: &mut MockQp, from: QpState, attr: &QpAttr, mask: QpAttrMask) -> Result<(), MockError> {
        self.step()?;
        qp.state = attr.state;
        self.modified.push((from, *attr, mask));
        Ok(())
    }

    fn query_qp(&mut self, qp: &MockQp) -> Result<(QpState, Psn, Psn), MockError> {
        self.step()?;
        Ok((self.state.unwrap_or(qp.state), Psn::new(11), Psn::new(12)))
    }

    fn destroy_qp(&mut self, qp: &mut MockQp) -> Result<(), MockError> {
        self.step()?;
        assert_eq!(self.cookies.get(&qp.qpn), Some(&qp.cookie));
        self.alive[4] -= 1;
        Ok(())
    }

    fn clean_cq(&mut self, cq: &mut Cqn, qpn: Qpn) -> Result<(), MockError> {
        self.step()?;
        self.queues.get_mut(cq).unwrap().retain(|raw| raw.qpn != qpn);
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant::default()
    }

    fn poll_event(&mut self) -> Result<Option<AsyncEvent>, MockError> {
        self.step()?;
        Ok(self.events.pop_front())
    }
}

/// Blocks as an mlx5 device counts them, roughly: 64 bytes each.
fn blocks(op: &CheckedOp<'_>) -> u32 {
    let payload = |payload: &Payload<'_>, head: usize| {
        let bytes = match payload {
            Payload::Sges(sges) => sges.len() * 16,
            Payload::Inline(bytes) => bytes.len() + 4,
        };
        u32::try_from((head + bytes).div_ceil(64)).unwrap()
    };
    match op {
        CheckedOp::Send(p) | CheckedOp::SendWithImm(p, _) | CheckedOp::SendWithInv(p, _) => payload(p, 16),
        CheckedOp::Write(p, _) | CheckedOp::WriteWithImm(p, _, _) => payload(p, 32),
        CheckedOp::Read(sges, _) => payload(&Payload::Sges(sges), 32),
        CheckedOp::CompareSwap(..) | CheckedOp::FetchAdd(..) => 1,
        CheckedOp::BindMw(bind) if bind.length != 0 => 3,
        CheckedOp::BindMw(_) | CheckedOp::LocalInv(_) => 2,
    }
}

impl DataPath for Mock {
    fn send_blocks(op: &CheckedOp<'_>) -> u32 {
        blocks(op)
    }

    fn encode_send(
        &mut self,
        qp: &mut MockQp,
        at: u32,
        op: &CheckedOp<'_>,
        flags: SendFlags,
        signaled: bool,
    ) -> Result<(), MockError> {
        self.step()?;
        let kind = match op {
            CheckedOp::Send(p)
            | CheckedOp::SendWithImm(p, _)
            | CheckedOp::SendWithInv(p, _)
            | CheckedOp::Write(p, _)
            | CheckedOp::WriteWithImm(p, _, _) => match p {
                Payload::Sges(_) => Kind::Message,
                Payload::Inline(bytes) => Kind::Inline(bytes.len()),
            },
            CheckedOp::Read(..) => Kind::Read,
            CheckedOp::CompareSwap(..) | CheckedOp::FetchAdd(..) => Kind::Atomic,
            CheckedOp::BindMw(bind) => Kind::Bind(*bind),
            CheckedOp::LocalInv(rkey) => Kind::LocalInv(*rkey),
        };
        self.sent.push(Sent { qpn: qp.qpn, at, kind, flags, signaled });
        Ok(())
    }

    fn commit_send(&mut self, qp: &mut MockQp, end: u32) -> Result<(), MockError> {
        self.step()?;
        self.doorbells.push((qp.qpn, end, true));
        Ok(())
    }

    fn encode_recv(&mut self, qp: &mut MockQp, at: u32, sges: &[Sge]) -> Result<(), MockError> {
        self.step()?;
        self.received.push((qp.qpn, at, sges.len()));
        Ok(())
    }

    fn commit_recv(&mut self, qp: &mut MockQp, end: u32) -> Result<(), MockError> {
        self.step()?;
        self.doorbells.push((qp.qpn, end, false));
        Ok(())
    }

    fn poll(&mut self, cq: &mut Cqn) -> Result<Option<RawCompletion>, MockError> {
        self.step()?;
        Ok(self.queues.get_mut(cq).unwrap().pop_front())
    }

    fn commit_cq(&mut self, _cq: &mut Cqn) -> Result<(), MockError> {
        self.step()?;
        self.consumed += 1;
        Ok(())
    }

    fn arm_cq(&mut self, cq: &mut Cqn, solicited_only: bool) -> Result<(), MockError> {
        self.step()?;
        self.armed.push((*cq, solicited_only));
        Ok(())
    }
}
