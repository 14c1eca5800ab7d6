//! What requester and responder of a queue pair need: numbers, state, the context as firmware commands set it, rings.

use std::time::Duration;

use bareverbs_mlx5_spec::{Ads, CmdStatus, CqeSyndrome, EventType, Field, QpDoorbellRecord, Qpc, QpcSt, QpcState};
use bareverbs_mlx5_spec::{View, ViewMut, rq_type};

use crate::engine::cq::Completion;
use crate::engine::event::EngineEvent;
use crate::engine::memory::key::{Access, Right};
use crate::engine::memory::page_source::PageSource;
use crate::engine::resources::{QpResources, QpStep};
use crate::engine::ring::{Pages, PagesPlan, Ring};
use crate::engine::srq::SrqKind;
use crate::host_memory::read_array;
use crate::packet::{Bth, GENERAL_QPN, Link, Opcode, Operation, Packet, SUBNET_QPN, Transport, TransportPart};
use crate::registry::{ObjectKind, Resource};
use crate::stats::QueueCounts;
use crate::wqe_decode::{AddressVector, WqeService};

/// Unit of the local acknowledge timeout.
const TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);
/// Bytes of a context.
pub(in crate::engine) const CONTEXT: usize = 232;

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Service {
    /// Reliable connection.
    Rc,
    /// Reliable connection to shared receive queues: initiator (with a send queue) or target.
    Xrc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram, management included.
    Ud,
    /// Memory registration by UMR for the kernel; sends nothing.
    RegUmr,
}

impl Service {
    fn of(st: QpcSt) -> Option<Self> {
        match st {
            QpcSt::Rc => Some(Self::Rc),
            QpcSt::Xrc => Some(Self::Xrc),
            QpcSt::Uc => Some(Self::Uc),
            QpcSt::Ud | QpcSt::Qp0 | QpcSt::Qp1 => Some(Self::Ud),
            QpcSt::RegUmr => Some(Self::RegUmr),
            _ => None,
        }
    }

    pub(in crate::engine) fn transport(self) -> Transport {
        match self {
            Self::Rc | Self::RegUmr => Transport::Rc,
            Self::Xrc => Transport::Xrc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
        }
    }

    pub(in crate::engine) fn wqe(self) -> WqeService {
        match self {
            Self::Ud => WqeService::Datagram,
            Self::Xrc => WqeService::Xrc,
            _ => WqeService::Connected,
        }
    }

    /// Returns whether it has one peer.
    pub(in crate::engine) fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc | Self::Uc)
    }

    /// Returns whether requests are acknowledged and repeated.
    pub(in crate::engine) fn is_reliable(self) -> bool {
        self.transport().is_reliable()
    }
}

/// The part of a queue pair that its requester and its responder share.
#[derive(Debug)]
pub(in crate::engine) struct QpContext {
    pub(in crate::engine) qpn: u32,
    pub(in crate::engine) service: Service,
    pub(in crate::engine) state: QpcState,
    /// The context as created and merged since; live counters are elsewhere.
    qpc: [u8; CONTEXT],
    pub(in crate::engine) sq: Option<Ring>,
    pub(in crate::engine) rq: Option<Ring>,
    /// The shared receive queue that it takes from instead.
    pub(in crate::engine) srq: Option<u32>,
    /// Bytes of this process that its page list takes.
    pub(in crate::engine) list_memory: u64,
    /// Its doorbell record lies in user memory and stays there.
    pub(in crate::engine) record_in_umem: bool,
}

/// A queue pair that a context describes.
pub(in crate::engine) struct QpPlan<'a> {
    qpc: View<'a, Qpc>,
    service: Service,
    has_sq: bool,
    has_rq: bool,
    srq: Option<u32>,
    rq_bytes: u64,
    log_rq_stride: u32,
    pages: PagesPlan<'a>,
    /// User memory in which the doorbell record lies.
    record: Option<u32>,
}

impl QpPlan<'_> {
    /// Returns the bytes of this process that its page list will take.
    pub(in crate::engine) fn memory(&self) -> u64 {
        self.pages.memory()
    }

    /// Returns the objects that it refers to.
    pub(in crate::engine) fn uses(&self) -> Vec<Resource> {
        let qpc = &self.qpc;
        let mut uses = Vec::new();
        // The queue pair that changes keys gets its protection domain when it is initialized.
        if self.service != Service::RegUmr {
            uses.push(Resource::pd(qpc.get(Qpc::PD)));
        }
        // Without a send queue nothing rings.
        if self.has_sq {
            uses.extend([Resource::cq(qpc.get(Qpc::CQN_SND)), Resource::uar(qpc.get(Qpc::UAR_PAGE))]);
        }
        if self.has_rq || self.srq.is_some() {
            uses.push(Resource::cq(qpc.get(Qpc::CQN_RCV)));
        }
        if self.service == Service::Xrc {
            uses.push(Resource::xrcd(qpc.get(Qpc::XRCD)));
        }
        uses.extend(self.srq.map(Resource::srq));
        uses.extend(self.pages.umem());
        uses.extend(self.record.map(Resource::umem));
        uses
    }
}

/// A user index that asks for completions of version 0 (Linux `qp.c`: "0xffffff means we ask to work with cqe version 0").
const CQE_VERSION_0: u32 = 0xff_ffff;

/// Returns what a completion has at [`Cqe::SRQN_UIDX`](bareverbs_mlx5_spec::Cqe::SRQN_UIDX): the user index, or in version 0 the number of
/// the shared receive queue, 0 without one.
pub(in crate::engine) const fn user_index(index: u32, srqn: u32, shared: &QpResources) -> u32 {
    if shared.config.cqe_version == 0 || index == CQE_VERSION_0 { srqn } else { index }
}

impl QpContext {
    /// Reads and checks a context, before anything is created.
    pub(in crate::engine) fn plan<'a>(
        qpc: View<'a, Qpc>,
        source: PageSource<'a>,
        record: Option<u32>,
        shared: &QpResources,
    ) -> Result<QpPlan<'a>, CmdStatus> {
        let st = QpcSt::from_code(qpc.get(Qpc::ST)).ok_or(CmdStatus::BadParam)?;
        let service = Service::of(st).ok_or(CmdStatus::BadParam)?;
        let has_sq = !qpc.is_set(Qpc::NO_SQ);
        let has_rq = qpc.get(Qpc::RQ_TYPE) == rq_type::OWN;
        // An XRC request names its shared receive queue itself.
        let srq = (qpc.get(Qpc::RQ_TYPE) == rq_type::SRQ && service != Service::Xrc).then(|| qpc.get(Qpc::SRQN_RMPN_XRQN));
        if let Some(srqn) = srq
            && shared.srqs.get(srqn).is_none_or(|srq| srq.spec.kind == SrqKind::Xrc)
        {
            return Err(CmdStatus::BadRes);
        }
        if !qpc.get64(Qpc::DBR_ADDR).is_multiple_of(8) {
            return Err(CmdStatus::BadParam);
        }
        let log_rq_stride = qpc.get(Qpc::LOG_RQ_STRIDE) + 4;
        let rq_bytes = if has_rq { 1u64 << (qpc.get(Qpc::LOG_RQ_SIZE) + log_rq_stride) } else { 0 };
        let sq_bytes = if has_sq { 64u64 << qpc.get(Qpc::LOG_SQ_SIZE) } else { 0 };
        let (log_page, page_offset) = (qpc.get(Qpc::LOG_PAGE_SIZE), qpc.get(Qpc::PAGE_OFFSET));
        let pages = Pages::plan(source, log_page, page_offset, rq_bytes + sq_bytes)?;
        Ok(QpPlan { qpc, service, has_sq, has_rq, srq, rq_bytes, log_rq_stride, pages, record })
    }

    pub(in crate::engine) fn new(qpn: u32, plan: QpPlan<'_>) -> Self {
        let QpPlan { qpc, service, has_sq, has_rq, srq, rq_bytes, log_rq_stride, pages, record } = plan;
        let list_memory = pages.memory();
        let pages = pages.pages();
        let mut context = Self {
            qpn,
            service,
            state: QpcState::Rst,
            qpc: qpc.as_bytes().first_chunk().copied().unwrap_or([0; CONTEXT]),
            // The receive ring comes first in the buffer.
            sq: has_sq.then(|| Ring::new(pages.clone(), rq_bytes, qpc.get(Qpc::LOG_SQ_SIZE), 6)),
            rq: has_rq.then(|| Ring::new(pages, 0, qpc.get(Qpc::LOG_RQ_SIZE), log_rq_stride)),
            srq,
            list_memory,
            record_in_umem: record.is_some(),
        };
        context.set(Qpc::STATE, QpcState::Rst.code());
        context
    }

    /// Returns the completion queues of its sends and its receives, where it has such.
    pub(in crate::engine) fn cqs(&self) -> Vec<u32> {
        let receives = self.rq.is_some() || self.srq.is_some();
        let used = [(self.sq.is_some(), Qpc::CQN_SND), (receives, Qpc::CQN_RCV)];
        used.into_iter().filter(|(used, _)| *used).map(|(_, field)| self.get(field)).collect()
    }

    /// Returns the set of counters that it counts in.
    pub(in crate::engine) fn counter_set(&self) -> Resource {
        Resource::new(ObjectKind::CounterSet, self.get(Qpc::COUNTER_SET_ID))
    }

    /// Returns a field of the context.
    pub(in crate::engine) fn get(&self, field: Field<Qpc>) -> u32 {
        View::<Qpc>::of(&self.qpc).get(field)
    }

    pub(in crate::engine) fn qpc(&self) -> View<'_, Qpc> {
        View::of(&self.qpc)
    }

    pub(in crate::engine) fn qpc_mut(&mut self) -> Option<ViewMut<'_, Qpc>> {
        ViewMut::new(&mut self.qpc)
    }

    pub(in crate::engine) fn set(&mut self, field: Field<Qpc>, value: u32) {
        if let Some(mut context) = self.qpc_mut() {
            context.set(field, value);
        }
    }

    pub(in crate::engine) fn path(&self, field: Field<Ads>) -> u32 {
        self.primary_path().get(field)
    }

    pub(in crate::engine) fn primary_path(&self) -> View<'_, Ads> {
        self.qpc().sub(Qpc::PRIMARY_ADDRESS_PATH)
    }

    pub(in crate::engine) fn pd(&self) -> u32 {
        self.get(Qpc::PD)
    }

    /// Returns the counts of its set of counters.
    pub(in crate::engine) fn counts<'a>(&self, step: &'a mut QpStep<'_, '_>) -> &'a mut QueueCounts {
        step.shared.queue_counts.entry(self.get(Qpc::COUNTER_SET_ID) as u8).or_default()
    }

    /// Moves to a state.
    pub(in crate::engine) fn enter(&mut self, state: QpcState) {
        self.state = state;
        self.set(Qpc::STATE, state.code());
    }

    /// Returns the payload of a full packet in bytes.
    pub(in crate::engine) fn mtu(&self) -> usize {
        match self.service {
            Service::Ud => crate::packet::MAX_PAYLOAD,
            _ => 128 << self.get(Qpc::MTU).clamp(1, 5),
        }
    }

    /// Returns the packets of a message of `len` bytes.
    pub(in crate::engine) fn packets_of(&self, len: u32) -> u32 {
        len.div_ceil(self.mtu() as u32).max(1)
    }

    /// Requests with a response of their own (reads, atomics) that a 3-bit log allows at a time.
    pub(in crate::engine) fn depth(&self, log: Field<Qpc>) -> usize {
        1 << self.get(log)
    }

    /// Returns whether requests of a peer are taken.
    pub(in crate::engine) fn can_receive(&self) -> bool {
        matches!(self.state, QpcState::Rtr | QpcState::Rts | QpcState::Sqd | QpcState::SqDraining | QpcState::SqEr)
    }

    /// Returns whether requests that were begun continue.
    pub(in crate::engine) fn can_send(&self) -> bool {
        matches!(self.state, QpcState::Rts | QpcState::Sqd | QpcState::SqDraining)
    }

    /// Access with a key of this queue pair's own domain.
    pub(in crate::engine) fn access(&self, right: Right) -> Access {
        Access { right, pd: self.pd(), qpn: self.qpn }
    }

    /// Returns the host's counters: receives posted, send blocks posted.
    pub(in crate::engine) fn record(&self, step: &QpStep<'_, '_>) -> Option<(u16, u16)> {
        let record = read_array::<8>(step.ctx.memory, self.qpc().get64(Qpc::DBR_ADDR)).ok()?;
        let record = View::<QpDoorbellRecord>::of(&record);
        let rcv = record.get(QpDoorbellRecord::RECEIVE_COUNTER) as u16;
        Some((rcv, record.get(QpDoorbellRecord::SEND_COUNTER) as u16))
    }

    /// Returns a packet to the connected peer.
    pub(in crate::engine) fn packet(&self, shared: &QpResources, operation: Operation, psn: u32) -> Packet<'static> {
        Packet { link: self.link_to_peer(shared), transport: self.transport_part(shared, operation, psn) }
    }

    /// Returns the link part of packets to the connected peer.
    pub(in crate::engine) fn link_to_peer(&self, shared: &QpResources) -> Link {
        shared.port.to_peer(self.primary_path(), self.is_subnet_management())
    }

    /// Returns the link part of a datagram to an address vector. `None` if the port has no such source.
    pub(in crate::engine) fn link_to_address(&self, shared: &QpResources, address: &AddressVector) -> Option<Link> {
        shared.port.to_address(address, self.primary_path(), self.is_subnet_management())
    }

    /// Returns the transport part of a packet to the connected peer.
    pub(in crate::engine) fn transport_part(
        &self,
        shared: &QpResources,
        operation: Operation,
        psn: u32,
    ) -> TransportPart<'static> {
        TransportPart::new(Bth {
            opcode: Opcode { transport: self.service.transport(), operation },
            solicited: false,
            migreq: true,
            pkey: shared.port.pkey(self.path(Ads::PKEY_INDEX)),
            dest_qpn: self.get(Qpc::REMOTE_QPN),
            ack_req: false,
            psn,
        })
    }

    /// Returns the number that completions of sends carry for this queue pair.
    pub(in crate::engine) fn user_index(&self, shared: &QpResources) -> u32 {
        user_index(self.get(Qpc::USER_INDEX), 0, shared)
    }

    /// Returns the number that completions of receives carry for this queue pair.
    pub(in crate::engine) fn recv_user_index(&self, shared: &QpResources) -> u32 {
        let srqn = if self.get(Qpc::RQ_TYPE) == rq_type::SRQ { self.get(Qpc::SRQN_RMPN_XRQN) } else { 0 };
        user_index(self.get(Qpc::USER_INDEX), srqn, shared)
    }

    /// Writes a completion to a completion queue.
    pub(in crate::engine) fn complete(&mut self, step: &mut QpStep<'_, '_>, cqn: u32, completion: &Completion) {
        let written = step.shared.cqs.write(step.ctx, cqn, completion, &mut step.shared.events);
        // A queue pair that can no longer complete is in error.
        if written.is_err() && self.state != QpcState::Err {
            self.fail(step, Some(EventType::WqCatasError));
        }
    }

    /// Moves to the error state; what is posted is flushed when the queue pair next runs.
    pub(in crate::engine) fn fail(&mut self, step: &mut QpStep<'_, '_>, event: Option<EventType>) {
        self.enter(QpcState::Err);
        if let Some(event) = event {
            step.shared.events.push_back(EngineEvent::Qp { event, qpn: self.qpn });
        }
    }

    /// Returns the local acknowledge timeout, if there is one.
    pub(in crate::engine) fn timeout(&self) -> Option<Duration> {
        match self.path(Ads::ACK_TIMEOUT) {
            0 => None,
            exponent => Some(TIMEOUT_UNIT * (1 << exponent.min(31))),
        }
    }

    fn st(&self) -> Option<QpcSt> {
        QpcSt::from_code(self.get(Qpc::ST))
    }

    pub(in crate::engine) fn is_subnet_management(&self) -> bool {
        self.st() == Some(QpcSt::Qp0)
    }

    /// Returns the number by which peers know it: management queue pairs have fixed ones.
    pub(in crate::engine) fn wire_qpn(&self) -> u32 {
        match self.st() {
            Some(QpcSt::Qp0) => SUBNET_QPN,
            Some(QpcSt::Qp1) => GENERAL_QPN,
            _ => self.qpn,
        }
    }
}

/// Vendor syndromes of completions: nothing is published about its values, so it only distinguishes flushes from the rest, as
/// devices do (0xf9 is what they report for a flush).
pub(in crate::engine) fn vendor(syndrome: CqeSyndrome) -> u8 {
    if syndrome == CqeSyndrome::WrFlush { 0xf9 } else { 0x80 | syndrome.code() as u8 }
}
