//! What the firmware keeps: the state of the function, its objects, and the half that moves data.

use std::collections::BTreeMap;

use bareverbs::Instant;
use bareverbs_mlx5_spec::{CmdHcaCap, EventType};

use crate::bar0::{DEVICE_MEMORY_START, FIRST_UAR};
use crate::capability::Capabilities;
use crate::config::DeviceConfig;
use crate::engine::{Engine, EngineConfig, EngineEvent};
use crate::env::Env;
use crate::eq::{Event, EventQueues};
use crate::id_allocator::IdAllocator;
use crate::management::{self, Agents, Cleared};
use crate::pages::Pages;
use crate::port::{GIDS, PKEYS, Port};
use crate::unsupported::{Unsupported, UnsupportedLog};
use crate::user::Users;

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

/// State and objects of the function.
pub(crate) struct Firmware {
    pub(crate) config: DeviceConfig,
    pub(crate) state: HcaState,
    pub(crate) issi: u16,
    pub(crate) caps: Capabilities,
    pub(crate) pages: Pages,
    pub(crate) port: Port,
    pub(crate) eqs: EventQueues,
    pub(crate) engine: Engine,
    pub(crate) uars: IdAllocator,
    pub(crate) pds: IdAllocator,
    pub(crate) xrcds: IdAllocator,
    pub(crate) transport_domains: IdAllocator,
    pub(crate) counters: IdAllocator,
    /// What the port had counted when a performance manager last cleared each count.
    pub(crate) cleared_traffic: Cleared,
    /// User contexts, and whose an object is.
    pub(crate) users: Users,
    /// The event queue of each completion queue.
    pub(crate) cq_eqs: BTreeMap<u32, u32>,
    /// Firmware memory of each key.
    pub(crate) mkey_room: BTreeMap<u32, u64>,
    /// Requests of hosts that the device does not support.
    pub(crate) unsupported: UnsupportedLog,
}

impl Firmware {
    pub(crate) fn new(config: DeviceConfig) -> Self {
        // Device memory follows them.
        let uar_pages = (DEVICE_MEMORY_START / 4096) as u32 - FIRST_UAR;
        let caps = Capabilities::new(&config);
        let mut firmware = Self {
            state: HcaState::Disabled,
            issi: 0,
            caps,
            pages: Pages::new(config.pages),
            port: Port::new(&config),
            eqs: EventQueues::new(1 << config.limits.log_max_eq.min(8)),
            engine: Engine::new(EngineConfig::default()),
            uars: IdAllocator::new(FIRST_UAR, uar_pages),
            pds: IdAllocator::new(1, (1 << config.limits.log_max_pd.min(23)) - 1),
            xrcds: IdAllocator::new(1, 255),
            transport_domains: IdAllocator::new(1, 255),
            counters: IdAllocator::new(1, 255),
            cleared_traffic: Cleared::default(),
            users: Users::default(),
            cq_eqs: BTreeMap::new(),
            mkey_room: BTreeMap::new(),
            unsupported: UnsupportedLog::default(),
            config,
        };
        firmware.configure_engine();
        firmware
    }

    /// Tells the data path what capabilities and port say now.
    pub(crate) fn configure_engine(&mut self) {
        let power = |log: u8| 1 << log.min(24);
        self.engine.configure(EngineConfig {
            lid: self.port.lid(),
            gids: (0..GIDS).filter_map(|index| self.port.gid(index)).collect(),
            pkeys: (0..PKEYS).filter_map(|index| self.port.pkey(index)).collect(),
            atomic_host_endian: self.caps.atomic_host_endian(),
            cqe_version: self.caps.general(CmdHcaCap::CQE_VERSION) as u8,
            max_qp: power(self.config.limits.log_max_qp),
            max_cq: power(self.config.limits.log_max_cq),
            max_srq: power(self.config.limits.log_max_srq),
            max_mkey: power(self.config.limits.log_max_mkey),
            log_max_msg: self.config.limits.log_max_msg,
            max_mtu: self.config.mtu,
            log_max_reads: self.config.limits.log_max_reads,
            ..EngineConfig::default()
        });
    }

    /// Forgets every object, as TEARDOWN_HCA does; pages, capabilities and port stay.
    pub(crate) fn drop_objects(&mut self) {
        let fresh = Self::new(self.config.clone());
        self.eqs = fresh.eqs;
        self.uars = fresh.uars;
        self.pds = fresh.pds;
        self.xrcds = fresh.xrcds;
        self.transport_domains = fresh.transport_domains;
        self.counters = fresh.counters;
        self.cleared_traffic = Cleared::default();
        self.users = fresh.users;
        self.cq_eqs.clear();
        self.mkey_room.clear();
        self.engine.reset();
        self.pages.forget_objects();
    }

    /// Everything but the pages' account, the cable and what was told already as at power-on, as DISABLE_HCA leaves it.
    pub(crate) fn restart(&mut self) {
        let fresh = Self::new(self.config.clone());
        let Self { pages, port, unsupported, .. } = core::mem::replace(self, fresh);
        self.pages = pages;
        self.unsupported = unsupported;
        self.port.set_cable(port.cable());
        // Nobody is there to be told.
        self.port.take_changes();
    }

    /// Posts the events of the data path and of the page account.
    pub(crate) fn post_events(&mut self, env: &mut Env<'_>) {
        while let Some(event) = self.engine.next_event() {
            match event {
                EngineEvent::Completion { eqn, cqn } => self.eqs.post_to(env, eqn, Event::completion(cqn)),
                EngineEvent::CqError { cqn, syndrome } => self.eqs.post(env, Event::cq_error(cqn, syndrome)),
                EngineEvent::Qp { event, qpn } => self.eqs.post(env, Event::qp(event, qpn)),
                EngineEvent::Srq { event, srqn } => self.eqs.post(env, Event::qp(event, srqn)),
                EngineEvent::UnknownRequest { opcode } => self.unsupported.report(Unsupported::Request(opcode)),
            }
        }
        if self.asks_for_pages()
            && let Some(pages) = self.pages.request(env.now)
        {
            self.eqs.post(env, Event::page_request(pages));
        }
    }

    /// Whether page requests reach anyone.
    fn asks_for_pages(&self) -> bool {
        self.state == HcaState::Running && self.eqs.for_type(EventType::PageRequest).is_some()
    }

    /// When there is work that no command and no packet brings.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let engine = (self.state == HcaState::Running).then(|| self.engine.next_due()).flatten();
        let pages = self.asks_for_pages().then(|| self.pages.next_due()).flatten();
        engine.into_iter().chain(pages).min()
    }

    /// Answers the management requests to the agents of the port.
    pub(crate) fn answer_management_requests(&mut self, env: &mut Env<'_>) {
        while let Some(request) = self.engine.next_management_request() {
            let answer = request.payload.first_chunk().and_then(|mad| management::answer_from_wire(self.agents(env.now), mad));
            if let Some(answer) = answer {
                self.engine.answer(env, &request, &answer);
            }
            self.port_changed(env);
        }
    }

    /// What the agents of the port answer from.
    pub(crate) fn agents(&mut self, now: Instant) -> Agents<'_> {
        Agents {
            port: &mut self.port,
            config: &self.config,
            stats: self.engine.stats(),
            cleared: &mut self.cleared_traffic,
            now,
        }
    }

    /// Announces what changed of the port.
    pub(crate) fn port_changed(&mut self, env: &mut Env<'_>) {
        let changes = self.port.take_changes();
        if !changes.is_empty() {
            self.configure_engine();
        }
        for change in changes {
            if self.state == HcaState::Running {
                self.eqs.post(env, Event::port(change));
            }
        }
    }
}
