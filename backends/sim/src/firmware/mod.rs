//! What the firmware keeps: the state of the function, its objects, and the half that moves data.

pub(crate) mod capabilities;
pub(crate) mod event_queues;
pub(crate) mod firmware_pages;
pub(crate) mod nic_vport;
pub(crate) mod unsupported;

use std::collections::BTreeSet;
use std::sync::Arc;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{CmdHcaCap, CmdStatus, EventType};

use crate::config::{DeviceConfig, MIN_MEMORY_LIMIT};
use crate::engine::memory::umem::Umems;
use crate::engine::{Engine, EngineConfig, EngineEvent};
use crate::firmware::capabilities::Capabilities;
use crate::firmware::event_queues::{Event, EventQueues};
use crate::firmware::firmware_pages::Pages;
use crate::firmware::nic_vport::NicVport;
use crate::firmware::unsupported::{Unsupported, UnsupportedLog};
use crate::identity::LidTaken;
use crate::management::{self, Agents, Cleared};
use crate::port::Port;
use crate::registry::{ObjectKind, Resource};
use crate::step::StepContext;

/// How far the driver has brought the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HcaState {
    /// Before ENABLE_HCA.
    #[default]
    Disabled,
    /// Between ENABLE_HCA and INIT_HCA, and after TEARDOWN_HCA.
    Enabled,
    /// After INIT_HCA.
    Running,
}

/// Steps that a management request costs of a turn.
const MANAGEMENT_REQUEST_STEPS: u64 = 16;

/// State and objects of the function.
pub(crate) struct Firmware {
    pub(crate) config: DeviceConfig,
    pub(crate) state: HcaState,
    pub(crate) issi: u16,
    pub(crate) caps: Capabilities,
    pub(crate) pages: Pages,
    pub(crate) port: Port,
    /// What the driver of an Ethernet port has set.
    pub(crate) nic_vport: NicVport,
    pub(crate) eqs: EventQueues,
    pub(crate) engine: Engine,
    /// What the port had counted when a performance manager last cleared each count.
    pub(crate) cleared_traffic: Cleared,
    /// User memory objects.
    pub(crate) umems: Umems,
    /// User contexts that may use controlled Q_Keys.
    pub(crate) raw_senders: BTreeSet<u32>,
    /// Requests of hosts that the device does not support.
    pub(crate) unsupported: UnsupportedLog,
}

impl Firmware {
    pub(crate) fn new(config: DeviceConfig) -> Self {
        let port = Port::new(&config);
        Self::with_port(config, port)
    }

    fn with_port(config: DeviceConfig, port: Port) -> Self {
        let caps = Capabilities::new(&config);
        let engine_config = EngineConfig {
            limits: config.limits,
            memory_limit: config.memory_limit.max(MIN_MEMORY_LIMIT),
            ..EngineConfig::default()
        };
        let mut firmware = Self {
            state: HcaState::Disabled,
            issi: 0,
            pages: Pages::new(config.pages, caps.general(CmdHcaCap::LOG_MAX_QP) as u8),
            caps,
            engine: Engine::new(engine_config, Arc::clone(port.identity())),
            port,
            nic_vport: NicVport::default(),
            eqs: EventQueues::default(),
            cleared_traffic: Cleared::default(),
            umems: Umems::default(),
            raw_senders: BTreeSet::new(),
            unsupported: UnsupportedLog::default(),
            config,
        };
        firmware.configure_engine();
        firmware
    }

    /// Tells the data path what the capabilities say now.
    pub(crate) fn configure_engine(&mut self) {
        self.engine.configure(EngineConfig {
            atomic_host_endian: self.caps.atomic_host_endian(),
            extended_atomics: self.config.extended_atomics,
            restricted_umr: self.config.restricted_umr,
            cqe_version: self.caps.general(CmdHcaCap::CQE_VERSION) as u8,
            limits: self.config.limits,
            log_max_msg: self.config.limits.log_max_msg,
            max_mtu: self.config.max_payload(self.port.mtu()),
            log_max_reads: self.config.limits.log_max_reads,
            mac: self.config.mac(),
            is_behind_switch: self.config.virtual_function,
            memory_limit: self.config.memory_limit.max(MIN_MEMORY_LIMIT),
        });
    }

    /// Forgets every object, as TEARDOWN_HCA does; pages, capabilities and port stay.
    pub(crate) fn drop_objects(&mut self) {
        self.eqs = EventQueues::default();
        self.cleared_traffic = Cleared::default();
        self.port.restart_counts();
        self.umems = Umems::default();
        self.raw_senders.clear();
        self.nic_vport = NicVport::default();
        self.engine.reset();
        self.pages.forget_objects();
    }

    /// Restores the state of power-on, as DISABLE_HCA does. The account of pages, the cable, the settings of the subnet manager
    /// and reports already made stay.
    pub(crate) fn restart(&mut self) {
        let fresh = Self::with_port(self.config.clone(), self.port.restarted(&self.config));
        let Self { pages, unsupported, .. } = core::mem::replace(self, fresh);
        (self.pages, self.unsupported) = (pages, unsupported);
        self.pages.set_log_max_qp(self.caps.general(CmdHcaCap::LOG_MAX_QP) as u8);
        self.count_pages();
    }

    /// Counts what the list of firmware pages takes now.
    pub(crate) fn count_pages(&mut self) {
        let memory = self.pages.memory();
        self.engine.registry_mut().set_page_memory(memory);
    }

    /// Creates an object with `room` bytes of firmware memory.
    pub(crate) fn create(
        &mut self,
        kind: ObjectKind,
        room: u64,
        create: impl FnOnce(&mut Self) -> Result<u32, CmdStatus>,
    ) -> Result<u32, CmdStatus> {
        self.pages.reserve(room)?;
        let created = create(self);
        match created {
            Ok(number) => self.engine.registry_mut().set_room(Resource::new(kind, number), room),
            Err(_) => self.pages.unreserve(room),
        }
        created
    }

    /// Posts the events of the data path and of the page account.
    pub(crate) fn post_events(&mut self, ctx: &mut StepContext<'_>) {
        while let Some(event) = self.engine.next_event() {
            match event {
                EngineEvent::Completion { eqn, cqn } => self.eqs.post_to(ctx, eqn, Event::completion(cqn)),
                EngineEvent::CqError { cqn, syndrome } => self.eqs.post(ctx, Event::cq_error(cqn, syndrome)),
                EngineEvent::Qp { event, qpn } => self.eqs.post(ctx, Event::qp(event, qpn)),
                EngineEvent::Srq { event, srqn } => self.eqs.post(ctx, Event::qp(event, srqn)),
                EngineEvent::UnknownRequest { opcode } => self.unsupported.report(Unsupported::Request(opcode)),
            }
        }
        if self.asks_for_pages()
            && let Some(pages) = self.pages.request(ctx.now)
        {
            self.eqs.post(ctx, Event::page_request(pages));
        }
    }

    /// Returns whether page requests reach anyone.
    fn asks_for_pages(&self) -> bool {
        self.state == HcaState::Running && self.eqs.for_type(EventType::PageRequest).is_some()
    }

    /// Returns when there is work that no command and no packet brings.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let running = self.state == HcaState::Running;
        let engine = running.then(|| self.engine.next_due()).flatten();
        let port = running.then(|| self.port.next_due()).flatten();
        let pages = self.asks_for_pages().then(|| self.pages.next_due()).flatten();
        engine.into_iter().chain(port).chain(pages).chain(self.traps_due()).min()
    }

    /// Lets the link come up and the port become active when it is time.
    pub(crate) fn advance_port(&mut self, ctx: &mut StepContext<'_>) {
        self.port.advance(ctx.now);
        self.port_changed(ctx);
    }

    /// Answers management requests to the agents of the port, until half of the turn is over at most. A port that is busy is
    /// managed nevertheless.
    pub(crate) fn answer_management_requests(&mut self, ctx: &mut StepContext<'_>) {
        let part = ctx.meter.begin_part();
        while let Some(request) = self.engine.next_management_request() {
            ctx.meter.count(MANAGEMENT_REQUEST_STEPS);
            let asker = request.link.completion().slid;
            let mad = request.transport.payload.first_chunk();
            let answer = mad.and_then(|mad| management::answer_from_wire(self.agents(ctx.now, asker), mad));
            if let Some(answer) = answer {
                self.engine.answer(ctx, &request, &answer);
            }
            self.port_changed(ctx);
            if ctx.meter.is_part_spent(&part) {
                break;
            }
        }
    }

    /// Returns when a trap is to be sent.
    fn traps_due(&self) -> Option<Instant> {
        let can_send =
            self.state == HcaState::Running && self.port.trap_receiver().is_some() && self.engine.has_room_for_datagram();
        if !can_send {
            return None;
        }
        if self.engine.has_violations() { Some(Instant::default()) } else { self.port.traps.next_due() }
    }

    /// Tells the subnet manager what it should know, if there is one.
    pub(crate) fn send_traps(&mut self, ctx: &mut StepContext<'_>) {
        let violations = self.engine.take_violations();
        let Some(manager) = self.port.trap_receiver() else { return self.port.traps.forget() };
        violations.into_iter().for_each(|violation| self.port.traps.report(violation));
        if self.engine.has_room_for_datagram()
            && let Some(trap) = self.port.traps.next(ctx.now, self.port.identity().lid())
        {
            self.engine.send_to_manager(ctx, manager, &trap);
        }
    }

    /// Returns what the agents of the port answer from, to a datagram from this LID.
    pub(crate) fn agents(&mut self, now: Instant, asker: u16) -> Agents<'_> {
        Agents {
            port: &mut self.port,
            config: &self.config,
            stats: self.engine.stats(),
            cleared: &mut self.cleared_traffic,
            asker,
            now,
        }
    }

    /// Announces what changed of the port.
    pub(crate) fn port_changed(&mut self, ctx: &mut StepContext<'_>) {
        if let Some(LidTaken(lid)) = self.port.take_refused_lid() {
            ctx.note(|| format!("LID {lid:#x} refused: another port of the switch has it"));
            self.unsupported.report(Unsupported::LidOfAnother(lid));
        }
        for change in self.port.take_changes() {
            if self.state == HcaState::Running {
                self.eqs.post(ctx, Event::port(change));
            }
        }
    }
}
