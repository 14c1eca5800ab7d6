//! A tiny host for tests: memory, rings written by the documented byte layouts, and two devices on a wire.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{
    Ads, CmdOpcode, CmdStatus, Cqc, Layout, MKEY_ANY_QPN, Mkc, Qpc, QpcSt, View, ViewMut, opt_param, rq_type,
};

use crate::audit::Audit;
use crate::config::DeviceConfig;
use crate::engine::memory::key::{Access, Right};
use crate::engine::{Engine, EngineConfig, EngineEvent, PageSource, SrqKind, SrqSpec};
use crate::fault::Faults;
use crate::host_memory::{DmaFault, HostMemory};
use crate::identity::PortIdentity;
use crate::registry::Resource;
use crate::rejection::Rejections;
use crate::step::StepContext;
use crate::step::{Meter, Metered};
use crate::wire::{Delivery, PerfectWire, PortId, Wire};

/// A run of bytes at a device address.
pub(in crate::engine) struct TestMemory {
    base: u64,
    bytes: RefCell<Vec<u8>>,
    /// Accesses so far, and their bytes.
    pub(super) accesses: Cell<u64>,
    pub(super) moved: Cell<u64>,
}

impl TestMemory {
    pub(in crate::engine) fn new(base: u64, len: usize) -> Self {
        Self { base, bytes: RefCell::new(vec![0; len]), accesses: Cell::new(0), moved: Cell::new(0) }
    }

    /// There is no memory from `addr` on any more.
    pub(super) fn end_at(&self, addr: u64) {
        self.bytes.borrow_mut().truncate((addr - self.base) as usize);
    }

    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, DmaFault> {
        self.accesses.update(|count| count + 1);
        self.moved.update(|bytes| bytes + len as u64);
        let fault = DmaFault { addr, len };
        let start = usize::try_from(addr.checked_sub(self.base).ok_or(fault)?).map_err(|_| fault)?;
        let end = start.checked_add(len).filter(|&end| end <= self.bytes.borrow().len()).ok_or(fault)?;
        Ok(start..end)
    }
}

impl HostMemory for TestMemory {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let range = self.range(addr, into.len())?;
        into.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        let range = self.range(addr, from.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(from);
        Ok(())
    }
}

pub(super) const BASE: u64 = 0x10_0000;
pub(super) const PD: u32 = 5;
/// Bits of the last byte of a control segment's third dword: completion always; solicited; both fences.
pub(super) const SIGNALED: u8 = 0x08;
pub(super) const SOLICITED: u8 = 0x02;
pub(super) const FENCE: u8 = 0x80;

pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Returns the remote address segment.
pub(super) fn raddr(addr: u64, rkey: u32) -> Vec<u8> {
    words(&[(addr >> 32) as u32, addr as u32, rkey, 0])
}

/// Returns the data pointer segment.
pub(super) fn data(addr: u64, len: u32, lkey: u32) -> Vec<u8> {
    words(&[len, lkey, (addr >> 32) as u32, addr as u32])
}

/// Returns the inline data segment, padded to 16 bytes.
pub(super) fn inline(bytes: &[u8]) -> Vec<u8> {
    let mut segment = words(&[1 << 31 | bytes.len() as u32]);
    segment.extend(bytes);
    segment.resize(segment.len().next_multiple_of(16), 0xee);
    segment
}

/// One completion as it lay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TestCqe(pub(super) [u8; 64]);

impl TestCqe {
    fn be32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.0[at..at + 4].try_into().unwrap())
    }
    pub(super) fn opcode(&self) -> u8 {
        self.0[63] >> 4
    }
    pub(super) fn syndrome(&self) -> u8 {
        self.0[55]
    }
    pub(super) fn counter(&self) -> u16 {
        (self.be32(60) >> 16) as u16
    }
    pub(super) fn qpn(&self) -> u32 {
        self.be32(56) & 0xff_ffff
    }
    pub(super) fn send_opcode(&self) -> u8 {
        self.0[56]
    }
    pub(super) fn byte_cnt(&self) -> u32 {
        self.be32(44)
    }
    pub(super) fn immediate(&self) -> u32 {
        self.be32(36)
    }
    pub(super) fn user_index(&self) -> u32 {
        self.be32(32) & 0xff_ffff
    }
}

pub(super) struct TestCq {
    pub(super) cqn: u32,
    ring: u64,
    pub(super) dbr: u64,
    log_size: u32,
    pub(super) consumer: u32,
}

impl TestCq {
    pub(super) fn log_size(&self) -> u32 {
        self.log_size
    }

    /// The host looks for entries elsewhere from now on.
    pub(super) fn move_to(&mut self, ring: u64, log_size: u32, consumer: u32) {
        *self = Self { ring, log_size, consumer, ..*self };
    }
}

pub(super) struct TestQp {
    pub(super) qpn: u32,
    pub(super) send: TestCq,
    pub(super) receive: TestCq,
    rq: u64,
    pub(super) sq: u64,
    pub(super) dbr: u64,
    log_rq: u32,
    pub(super) log_sq: u32,
    pub(super) posted: u16,
    pub(super) received: u16,
}

/// Receive WQE of four data segments.
const RQ_STRIDE: u64 = 64;

/// A shared receive queue whose entries have a link and three data segments.
pub(super) struct TestSrq {
    pub(super) srqn: u32,
    pub(super) ring: u64,
    pub(super) dbr: u64,
    log_size: u32,
    pub(super) posted: u16,
}

impl TestSrq {
    fn place(&self, index: u16) -> u64 {
        self.ring + u64::from(index) * RQ_STRIDE
    }
}

pub(super) struct Host {
    pub(super) engine: Engine,
    pub(super) memory: Metered<TestMemory>,
    pub(super) faults: Faults,
    pub(super) audit: Audit,
    pub(super) rejections: Rejections,
    pub(super) now: Instant,
    top: u64,
}

impl Host {
    pub(super) fn new(lid: u16) -> Self {
        Self::with_config(lid, EngineConfig::default())
    }

    pub(super) fn with_config(lid: u16, engine: EngineConfig) -> Self {
        // Its GID ends in its LID.
        Self::on_port(engine, &DeviceConfig { lid, port_guid: lid.into(), ..DeviceConfig::default() })
    }

    /// A host whose device has the port of this configuration.
    pub(super) fn on_port(engine: EngineConfig, config: &DeviceConfig) -> Self {
        let engine = Engine::new(engine, Arc::new(PortIdentity::new(config)));
        let memory = Metered { memory: TestMemory::new(BASE, 16 << 20), meter: Meter::default() };
        let mut host = Self {
            engine,
            memory,
            faults: Faults::default(),
            audit: Audit::default(),
            rejections: Rejections::default(),
            now: Instant::default(),
            top: BASE,
        };
        host.insert_named();
        host
    }

    /// Inserts what commands of the other half would have made.
    pub(super) fn insert_named(&mut self) {
        let numbers = [Resource::pd(3), Resource::pd(4), Resource::pd(PD), Resource::pd(6), Resource::uar(0), Resource::eq(9)];
        numbers.into_iter().for_each(|id| self.engine.registry_mut().insert_named(id));
    }

    /// Each call is a turn.
    pub(super) fn with<R>(&mut self, act: impl FnOnce(&mut Engine, &mut StepContext<'_>) -> R) -> R {
        self.memory.meter.restart();
        let mut ctx = StepContext {
            now: self.now,
            memory: &self.memory,
            meter: &self.memory.meter,
            tracer: None,
            faults: &mut self.faults,
            audit: &mut self.audit,
            rejections: &mut self.rejections,
        };
        act(&mut self.engine, &mut ctx)
    }

    /// Accesses to memory that `act` makes, and their bytes, as the memory counts them.
    pub(super) fn cost(&mut self, act: impl FnOnce(&mut Engine, &mut StepContext<'_>)) -> (u64, u64) {
        let count = |host: &Self| (host.memory.memory.accesses.get(), host.memory.memory.moved.get());
        let before = count(self);
        self.with(act);
        let after = count(self);
        (after.0 - before.0, after.1 - before.1)
    }

    /// Returns the fresh memory at a multiple of 4096.
    pub(super) fn alloc(&mut self, len: u64) -> u64 {
        let addr = self.top;
        self.top += len.next_multiple_of(4096);
        addr
    }

    pub(super) fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(addr, &mut bytes).unwrap();
        bytes
    }

    pub(super) fn write(&self, addr: u64, bytes: &[u8]) {
        self.memory.write(addr, bytes).unwrap();
    }

    pub(super) fn pages(addr: u64, len: u64) -> Vec<u64> {
        (0..len.div_ceil(4096)).map(|page| addr + page * 4096).collect()
    }

    /// Returns the pages as a command lists them.
    pub(super) fn list(addr: u64, len: u64) -> Vec<u8> {
        Self::pages(addr, len).into_iter().flat_map(u64::to_be_bytes).collect()
    }

    /// Returns a key over `len` bytes at `addr`, translated page by page; `rights` as bits a, rw, rr, lw, lr from 4 down to 0.
    pub(super) fn mkey(&mut self, addr: u64, len: u64, rights: u32) -> u32 {
        self.mkey_of(PD, addr, len, rights)
    }

    /// [`Host::mkey`] of another domain.
    pub(super) fn mkey_of(&mut self, pd: u32, addr: u64, len: u64, rights: u32) -> u32 {
        let mut mkc = [0; 64];
        let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
        set_rights(&mut view, rights);
        view.set(Mkc::ACCESS_MODE_1_0, 1)
            .set(Mkc::QPN, MKEY_ANY_QPN)
            .set(Mkc::MKEY_7_0, 0x42)
            .set(Mkc::PD, pd)
            .set64(Mkc::START_ADDR, addr)
            .set64(Mkc::LEN, len)
            .set(Mkc::LOG_PAGE_SIZE, 12);
        let first = addr & !0xfff;
        let pages = Self::pages(first, addr + len - first);
        view.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, pages.len().div_ceil(2) as u32);
        let raw: Vec<u8> = pages.iter().flat_map(|page| page.to_be_bytes()).collect();
        let index =
            self.with(|engine, ctx| engine.create_mkey(ctx, View::new(&mkc).unwrap(), PageSource::Listed(&raw))).unwrap();
        index << 8 | 0x42
    }

    /// Returns a memory window as it is allocated: free, changed by send requests, room for four entries.
    pub(super) fn window(&mut self, type_2: bool) -> u32 {
        self.window_of(PD, type_2)
    }

    /// [`Host::window`] of another domain.
    pub(super) fn window_of(&mut self, pd: u32, type_2: bool) -> u32 {
        let mut mkc = [0; 64];
        ViewMut::<Mkc>::new(&mut mkc)
            .unwrap()
            .set(Mkc::FREE, 1)
            .set(Mkc::UMR_EN, 1)
            .set(Mkc::LR, 1)
            .set(Mkc::ACCESS_MODE_1_0, 2)
            .set(Mkc::EN_RINVAL, u32::from(type_2))
            .set(Mkc::QPN, MKEY_ANY_QPN)
            .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 4)
            .set(Mkc::PD, pd);
        let index =
            self.with(|engine, ctx| engine.create_mkey(ctx, View::new(&mkc).unwrap(), PageSource::Listed(&[]))).unwrap();
        index << 8
    }

    pub(super) fn cq(&mut self, log_size: u32) -> TestCq {
        let (ring, dbr) = (self.alloc(64 << log_size), self.alloc(8));
        let mut cqc = [0; 64];
        ViewMut::<Cqc>::new(&mut cqc)
            .unwrap()
            .set(Cqc::LOG_CQ_SIZE, log_size)
            .set(Cqc::C_EQN_OR_APU_ELEMENT, 9)
            .set64(Cqc::DBR_ADDR, dbr);
        for entry in 0..1u64 << log_size {
            self.write(ring + entry * 64 + 63, &[0xf0 | 1]);
        }
        let cqn = self
            .engine
            .create_cq(View::new(&cqc).unwrap(), PageSource::Listed(&Self::list(ring, 64 << log_size)), None)
            .unwrap();
        TestCq { cqn, ring, dbr, log_size, consumer: 0 }
    }

    pub(super) fn qp(&mut self, log_rq: u32, log_sq: u32, log_cq: u32) -> TestQp {
        self.qp_of(QpcSt::Rc, log_rq, log_sq, log_cq)
    }

    /// Returns a shared receive queue of domain `pd`, its entries linked one after another.
    pub(super) fn srq(&mut self, pd: u32, log_size: u32, limit: u16) -> TestSrq {
        let len = RQ_STRIDE << log_size;
        let (ring, dbr) = (self.alloc(len), self.alloc(8));
        let spec = SrqSpec {
            kind: SrqKind::Basic,
            log_size,
            log_stride: 6,
            log_page_size: 0,
            page_offset: 0,
            dbr_addr: dbr,
            pd,
            xrcd: 0,
            cqn: 0,
            user_index: 0,
            limit,
        };
        let srqn = self.engine.create_srq(spec, PageSource::Listed(&Self::list(ring, len)), None).unwrap();
        for index in 0..1_u32 << log_size {
            self.write(ring + u64::from(index) * RQ_STRIDE, &words(&[(index + 1) & ((1 << log_size) - 1)]));
        }
        TestSrq { srqn, ring, dbr, log_size, posted: 0 }
    }

    pub(super) fn post_shared(&mut self, srq: &mut TestSrq, list: &[(u64, u32, u32)]) {
        let mut wqe: Vec<u8> = list.iter().flat_map(|&(addr, len, lkey)| data(addr, len, lkey)).collect();
        wqe.extend(words(&[0, 0x100, 0, 0]));
        wqe.truncate(RQ_STRIDE as usize - 16);
        self.write(srq.place(srq.posted & ((1 << srq.log_size) - 1)) + 16, &wqe);
        srq.posted = srq.posted.wrapping_add(1);
        self.write(srq.dbr, &u32::from(srq.posted).to_be_bytes());
    }

    pub(super) fn qp_of(&mut self, st: QpcSt, log_rq: u32, log_sq: u32, log_cq: u32) -> TestQp {
        self.qp_on(st, None, log_rq, log_sq, log_cq)
    }

    /// Returns a queue pair that takes its receives from a shared receive queue, if there is one.
    pub(super) fn qp_on(&mut self, st: QpcSt, srqn: Option<u32>, log_rq: u32, log_sq: u32, log_cq: u32) -> TestQp {
        let (send, receive) = (self.cq(log_cq), self.cq(log_cq));
        let rq_len = if srqn.is_some() { 0 } else { RQ_STRIDE << log_rq };
        let len = rq_len + (64 << log_sq);
        let (buffer, dbr) = (self.alloc(len), self.alloc(8));
        let mut qpc = [0; 232];
        ViewMut::<Qpc>::new(&mut qpc)
            .unwrap()
            .set(Qpc::ST, st.code())
            .set(Qpc::PD, PD)
            .set(Qpc::FRE, 1)
            .set(Qpc::LOG_RQ_SIZE, log_rq)
            .set(Qpc::LOG_RQ_STRIDE, 2)
            .set(Qpc::LOG_SQ_SIZE, log_sq)
            .set(Qpc::RQ_TYPE, if srqn.is_some() { rq_type::SRQ } else { rq_type::OWN })
            .set(Qpc::SRQN_RMPN_XRQN, srqn.unwrap_or(0))
            .set(Qpc::USER_INDEX, 0x77)
            .set(Qpc::CQN_SND, send.cqn)
            .set(Qpc::CQN_RCV, receive.cqn)
            .set64(Qpc::DBR_ADDR, dbr);
        let qpn = self.engine.create_qp(View::new(&qpc).unwrap(), PageSource::Listed(&Self::list(buffer, len)), None).unwrap();
        TestQp { qpn, send, receive, rq: buffer, sq: buffer + rq_len, dbr, log_rq, log_sq, posted: 0, received: 0 }
    }

    pub(super) fn modify(
        &mut self,
        qpn: u32,
        opcode: CmdOpcode,
        mask: u32,
        fill: impl FnOnce(&mut ViewMut<'_, Qpc>),
    ) -> Result<(), CmdStatus> {
        let mut qpc = [0; 232];
        fill(&mut ViewMut::<Qpc>::new(&mut qpc).unwrap());
        self.with(|engine, ctx| engine.modify_qp(ctx, qpn, opcode, mask, View::new(&qpc).unwrap()))
    }

    /// RESET to RTS towards `peer` at `lid`.
    pub(super) fn connect(&mut self, qpn: u32, lid: u16, peer: u32, link: Link) {
        self.connect_counting(qpn, lid, peer, link, 0);
    }

    /// [`Host::connect`] with a set of counters.
    pub(super) fn connect_counting(&mut self, qpn: u32, lid: u16, peer: u32, link: Link, set: u32) {
        self.connect_along(qpn, peer, link, set, |path| {
            path.set(Ads::RLID, u32::from(lid));
        });
    }

    /// [`Host::connect_counting`] along a path.
    pub(super) fn connect_along(
        &mut self,
        qpn: u32,
        peer: u32,
        link: Link,
        set: u32,
        path: impl FnOnce(&mut ViewMut<'_, Ads>),
    ) {
        self.modify(qpn, CmdOpcode::Rst2InitQp, 0, |qpc| {
            qpc.set(Qpc::COUNTER_SET_ID, set).set(Qpc::RRE, 1).set(Qpc::RWE, 1).set(Qpc::RAE, 1);
        })
        .unwrap();
        self.modify(qpn, CmdOpcode::Init2RtrQp, 0, |qpc| {
            qpc.set(Qpc::MTU, link.mtu)
                .set(Qpc::LOG_MSG_MAX, 30)
                .set(Qpc::REMOTE_QPN, peer)
                .set(Qpc::NEXT_RCV_PSN, link.their_psn)
                .set(Qpc::LOG_RRA_MAX, link.log_depth)
                .set(Qpc::MIN_RNR_NAK, 1);
            path(&mut qpc.sub(Qpc::PRIMARY_ADDRESS_PATH));
        })
        .unwrap();
        let reliable = self.query(qpn, Qpc::ST) == QpcSt::Rc.code();
        let mask = if reliable { opt_param::RNR_TIMEOUT } else { 0 };
        self.modify(qpn, CmdOpcode::Rtr2RtsQp, mask, |qpc| {
            qpc.set(Qpc::NEXT_SEND_PSN, link.own_psn)
                .set(Qpc::RETRY_COUNT, link.retries)
                .set(Qpc::RNR_RETRY, link.rnr_retries)
                .set(Qpc::LOG_SRA_MAX, link.log_depth)
                .set(Qpc::MIN_RNR_NAK, 1);
            qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::ACK_TIMEOUT, link.timeout);
        })
        .unwrap();
    }

    /// Writes a send WQE without telling the device; `flags` is the byte of fence, completion and solicited bits.
    pub(super) fn write_send(&mut self, qp: &mut TestQp, opcode: u8, flags: u8, immediate: u32, body: &[u8]) -> [u8; 8] {
        let ds = 1 + body.len().div_ceil(16) as u32;
        let mut wqe = words(&[u32::from(qp.posted) << 8 | u32::from(opcode), qp.qpn << 8 | ds, u32::from(flags), immediate]);
        wqe.extend(body);
        wqe.resize(wqe.len().next_multiple_of(64), 0xdd);
        for block in wqe.chunks(64) {
            let at = u64::from(qp.posted) & ((1 << qp.log_sq) - 1);
            self.write(qp.sq + at * 64, block);
            qp.posted = qp.posted.wrapping_add(1);
        }
        self.write(qp.dbr + 4, &u32::from(qp.posted).to_be_bytes());
        wqe[..8].try_into().unwrap()
    }

    pub(super) fn post_send(&mut self, qp: &mut TestQp, opcode: u8, flags: u8, immediate: u32, body: &[u8]) {
        let doorbell = self.write_send(qp, opcode, flags, immediate, body);
        let qpn = qp.qpn;
        assert!(self.with(|engine, ctx| engine.ring_send(ctx, qpn, doorbell)));
    }

    pub(super) fn post_receive(&mut self, qp: &mut TestQp, list: &[(u64, u32, u32)]) {
        let mut wqe: Vec<u8> = list.iter().flat_map(|&(addr, len, lkey)| data(addr, len, lkey)).collect();
        if wqe.len() < RQ_STRIDE as usize {
            wqe.extend(words(&[0, 0x100, 0, 0]));
        }
        let at = u64::from(qp.received) & ((1 << qp.log_rq) - 1);
        self.write(qp.rq + at * RQ_STRIDE, &wqe);
        qp.received = qp.received.wrapping_add(1);
        self.write(qp.dbr, &u32::from(qp.received).to_be_bytes());
    }

    /// Returns the bytes of entry `index`, regardless of its owner bit.
    pub(super) fn entry(&self, cq: &TestCq, index: u32) -> [u8; 64] {
        let at = u64::from(index) & ((1 << cq.log_size) - 1);
        self.read(cq.ring + at * 64, 64).try_into().unwrap()
    }

    pub(super) fn poll(&mut self, cq: &mut TestCq) -> Option<TestCqe> {
        let at = u64::from(cq.consumer) & ((1 << cq.log_size) - 1);
        let entry: [u8; 64] = self.read(cq.ring + at * 64, 64).try_into().unwrap();
        let owner = (cq.consumer >> cq.log_size & 1) as u8;
        if entry[63] >> 4 == 0xf || entry[63] & 1 != owner {
            return None;
        }
        cq.consumer = (cq.consumer + 1) & 0xff_ffff;
        self.write(cq.dbr, &cq.consumer.to_be_bytes());
        Some(TestCqe(entry))
    }

    pub(super) fn arm(&mut self, cq: &TestCq, solicited: bool) {
        let bytes = words(&[u32::from(solicited) << 24 | cq.consumer, cq.cqn]);
        let cqn = cq.cqn;
        self.with(|engine, ctx| engine.arm_cq(ctx, cqn, View::new(&bytes).unwrap()));
    }

    pub(super) fn events(&mut self) -> Vec<EngineEvent> {
        std::iter::from_fn(|| self.engine.next_event()).collect()
    }

    pub(super) fn state(&self, qpn: u32) -> u32 {
        self.query(qpn, Qpc::STATE)
    }

    pub(super) fn query(&self, qpn: u32, field: bareverbs_mlx5_spec::Field<Qpc>) -> u32 {
        let mut qpc = [0; Qpc::SIZE];
        let mut view = ViewMut::<Qpc>::new(&mut qpc).unwrap();
        self.engine.query_qp(qpn, &mut view).unwrap();
        view.get(field)
    }
}

impl Engine {
    pub(in crate::engine) fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// Who the port is.
    pub(super) fn identity(&self) -> &PortIdentity {
        self.shared.port.identity()
    }

    /// Returns the host memory of `len` bytes at `addr` of a key, as (address, length), for a local read.
    pub(super) fn extents(&self, key: u32, addr: u64, len: usize, pd: u32) -> Option<Vec<(u64, usize)>> {
        let access = Access { right: Right::LocalRead, pd, qpn: 0 };
        let mut extents = Vec::new();
        self.shared.keys.translate(key, addr, len, access, &mut extents).ok()?;
        Some(extents.into_iter().map(|extent| (extent.addr, extent.len)).collect())
    }
}

pub(super) fn set_rights(view: &mut ViewMut<'_, Mkc>, rights: u32) {
    for (bit, field) in [Mkc::LR, Mkc::LW, Mkc::RR, Mkc::RW, Mkc::A].into_iter().enumerate() {
        view.set(field, rights >> bit & 1);
    }
}

/// Attributes of a connection.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) mtu: u32,
    pub(super) own_psn: u32,
    pub(super) their_psn: u32,
    pub(super) log_depth: u32,
    pub(super) timeout: u32,
    pub(super) retries: u32,
    pub(super) rnr_retries: u32,
}

impl Default for Link {
    fn default() -> Self {
        // 256 bytes; numbers that wrap at once; 4.096 us << 6 = 262 us.
        Self { mtu: 1, own_psn: 0xff_fffe, their_psn: 0xff_fffe, log_depth: 2, timeout: 6, retries: 7, rnr_retries: 7 }
    }
}

/// Two hosts, one queue pair each, connected.
pub(super) struct Pair<W> {
    pub(super) a: Host,
    pub(super) b: Host,
    pub(super) qa: TestQp,
    pub(super) qb: TestQp,
    pub(super) wire: W,
    pub(super) now: Instant,
}

pub(super) fn perfect() -> PerfectWire {
    let mut wire = PerfectWire::new(Duration::from_nanos(500));
    wire.attach(PortIdentity::with_lid(1));
    wire.attach(PortIdentity::with_lid(2));
    wire
}

impl Pair<PerfectWire> {
    pub(super) fn new() -> Self {
        Self::on(perfect(), Link::default(), 6)
    }
}

impl<W: Wire> Pair<W> {
    pub(super) fn on(wire: W, link: Link, log_rings: u32) -> Self {
        Self::of(QpcSt::Rc, wire, link, log_rings)
    }

    pub(super) fn of(st: QpcSt, wire: W, link: Link, log_rings: u32) -> Self {
        let (mut a, mut b) = (Host::new(1), Host::new(2));
        let qp = |host: &mut Host| host.qp_of(st, log_rings, log_rings, log_rings + 2);
        let (qa, qb) = (qp(&mut a), qp(&mut b));
        a.connect(qa.qpn, 2, qb.qpn, link);
        let back = Link { own_psn: link.their_psn, their_psn: link.own_psn, ..link };
        b.connect(qb.qpn, 1, qa.qpn, back);
        Self { a, b, qa, qb, wire, now: Instant::default() }
    }

    /// Lets devices and wire work at this moment.
    pub(super) fn step(&mut self) {
        for (port, host) in [&mut self.a, &mut self.b].into_iter().enumerate() {
            host.now = self.now;
            host.with(|engine, ctx| engine.advance(ctx));
            while let Some(frame) = host.engine.transmit() {
                self.wire.send(self.now, PortId(port), frame);
            }
        }
        while let Some(Delivery { to, frame, .. }) = self.wire.deliver(self.now) {
            let host = if to == PortId(0) { &mut self.a } else { &mut self.b };
            host.with(|engine, ctx| engine.receive(ctx, &frame));
        }
    }

    /// Works until nothing is left to do, skipping idle time; panics if that takes more than `limit` of it.
    pub(super) fn run_until_idle(&mut self, limit: Duration) {
        let end = self.now.after(limit);
        loop {
            self.step();
            let due = [self.a.engine.next_work(), self.b.engine.next_work(), self.wire.next_due()];
            let Some(due) = due.into_iter().flatten().min() else { return };
            self.now = self.now.max(due);
            assert!(self.now <= end, "not idle after {limit:?}");
        }
    }

    pub(super) fn run(&mut self) {
        self.run_until_idle(Duration::from_secs(1));
    }

    /// Returns the buffers on both sides with every right, and their keys.
    pub(super) fn buffers(&mut self, len: u64) -> ((u64, u32), (u64, u32)) {
        let (at_a, at_b) = (self.a.alloc(len), self.b.alloc(len));
        let (key_a, key_b) = (self.a.mkey(at_a, len, 0x1f), self.b.mkey(at_b, len, 0x1f));
        ((at_a, key_a), (at_b, key_b))
    }
}
