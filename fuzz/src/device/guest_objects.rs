//! Objects that a driver may make beside its first queue pairs, as it makes them, and what it does with them.

use arbitrary::Arbitrary;
use bareverbs::platform::DmaMemory as _;
use bareverbs_mlx5_spec::{
    AttachToMcgIn, Cqc, CreateMkeyIn, CreateRmpIn, CreateSrqIn, CreateXrcSrqIn, Layout, Mkc, ModifyCqIn, Rmpc, Srqc, ViewMut,
    Wq, XrcSrqc,
};

use super::guest::{BASE, Guest, QUEUES, RECORDS, input};

/// Memory of queues made later, after those of the queue pairs, a page each.
const MORE_QUEUES: usize = 0x9_0000;
/// Their doorbell records.
const MORE_RECORDS: usize = RECORDS + 0x1000;
/// Shared receive queues at most.
const MAX_SRQS: usize = 8;
/// Where device memory begins in BAR0, as the capabilities say.
const DEVICE_MEMORY: u32 = 31 << 20;

/// A memory key to make.
#[derive(Arbitrary, Debug)]
pub struct Key {
    /// Access mode: page list, KLMs, KSMs, device memory, anything.
    pub mode: u8,
    /// Free, changed by requests, to be invalidated by peers, of another domain.
    pub flags: u8,
    /// Local read, and what it does not allow: local write, remote read, remote write, remote atomics.
    pub rights: u8,
    /// Size of its entries, or its length in device memory.
    pub log_page: u8,
    /// Key, place and length of each entry.
    pub entries: Vec<(u8, u16, u16)>,
}

/// Kinds of objects that [`Guest::create`] makes.
pub mod kind {
    pub const SRQ: u8 = 0;
    pub const XRC_SRQ: u8 = 1;
    pub const USER_MEMORY: u8 = 3;
    pub const USER_CONTEXT: u8 = 4;
    pub const DEVICE_MEMORY: u8 = 5;
    pub const COMPLETION_QUEUE: u8 = 6;
    pub const COUNTERS: u8 = 7;
    pub const PD: u8 = 8;
    pub const XRCD: u8 = 9;
    pub const QP_WITH_SRQ: u8 = 10;
    pub const XRC_QP: u8 = 11;
    /// Kinds there are; 2 is a receive memory pool.
    pub const COUNT: u8 = 12;
}

/// A change of the state of things.
#[derive(Arbitrary, Debug)]
pub enum Change {
    /// A queue pair goes to a state: error, reset, drained, ready again.
    State(u8, u8),
    /// It is connected anew.
    Connect(u8),
    /// A queue pair joins or leaves a group.
    Group(u8, bool),
    /// A completion queue gets another buffer, of 2 to this power of entries, or moderation.
    Cq(u8, u8, bool),
    /// A limit of a shared receive queue.
    Limit(u8, u16),
    /// A key ends.
    DestroyKey(u8),
    /// A completion queue or its notification: what the doorbell register of completion queues says.
    Arm(u8, u32),
}

/// Returns one of the numbers in a list.
pub fn pick<T: Copy>(list: &[T], which: u8) -> Option<T> {
    list.get(usize::from(which) % list.len().max(1)).copied()
}

impl Guest {
    /// Returns a key as `which` says, or nearly so now and then.
    pub fn key(&self, which: u8) -> u32 {
        pick(&self.keys, which & 0x7f).unwrap_or(0) ^ u32::from(which >> 7)
    }

    /// Executes CREATE_MKEY.
    pub fn create_key(&mut self, key: &Key) {
        let mode = [1, 2, 3, 5, u32::from(key.mode)][usize::from(key.mode) % 5];
        let mut bytes = input(0x200, CreateMkeyIn::SIZE, &[]);
        let mut len = 0;
        let mut list = Vec::new();
        for (which, at, range) in &key.entries {
            let addr = BASE + u64::from(*at) * 16;
            if mode == 1 {
                list.extend((addr & !0xfff).to_be_bytes());
                len += 4096;
            } else {
                list.extend(u32::from(*range).to_be_bytes());
                list.extend(self.key(*which).to_be_bytes());
                list.extend(addr.to_be_bytes());
                len += u64::from(*range);
            }
        }
        list.resize(list.len().next_multiple_of(16), 0);
        let octowords = list.len() as u32 / 16;
        if let Some(mut input) = ViewMut::<CreateMkeyIn>::new(&mut bytes) {
            input.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, octowords);
            let mut mkc = input.sub(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
            mkc.set(Mkc::ACCESS_MODE_1_0, mode & 3)
                .set(Mkc::ACCESS_MODE_4_2, mode >> 2 & 7)
                .set(Mkc::FREE, u32::from(key.flags & 1))
                .set(Mkc::UMR_EN, u32::from(key.flags >> 1 & 1))
                .set(Mkc::EN_RINVAL, u32::from(key.flags >> 2 & 1))
                .set(Mkc::QPN, 0xff_ffff)
                .set(Mkc::PD, self.pd + u32::from(key.flags >> 7))
                .set(Mkc::LOG_PAGE_SIZE, if mode == 1 { 12 } else { u32::from(key.log_page & 0x1f) })
                .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, octowords.max(8))
                .set(Mkc::LR, u32::from(key.rights & 1))
                .set(Mkc::LW, u32::from(!key.rights >> 1 & 1))
                .set(Mkc::RR, u32::from(!key.rights >> 2 & 1))
                .set(Mkc::RW, u32::from(!key.rights >> 3 & 1))
                .set(Mkc::A, u32::from(!key.rights >> 4 & 1));
            if mode == 5 {
                mkc.set64(Mkc::START_ADDR, DEVICE_MEMORY.into()).set64(Mkc::LEN, 64 << (key.log_page & 7));
            } else {
                mkc.set64(Mkc::LEN, len);
            }
        }
        bytes.extend(list);
        self.command(bytes, 16);
        if self.status() == 0 {
            self.keys.push(self.number() << 8);
        }
    }

    /// Makes an object of a kind.
    pub fn create(&mut self, number: u8, what: u8) {
        match number % kind::COUNT {
            kind::USER_MEMORY => {
                // Of pages with a size, readable and writable.
                let mut bytes = input(0xa08, 48, &[(16 + 16, u32::from(what & 1)), (16 + 28, 4)]);
                for page in 0..4 {
                    bytes.extend(((BASE + MORE_QUEUES as u64 + page * 0x2000) | 3).to_be_bytes());
                }
                self.command_for(bytes, what);
            }
            kind::USER_CONTEXT => self.command_for(input(0xa04, 64, &[]), 0),
            kind::DEVICE_MEMORY => {
                let dwords = [(20, DEVICE_MEMORY), (24, 4096), (28, 64 << (what & 7)), (12, u32::from(what >> 3 & 15))];
                self.command_for(input(0x205, 32, &dwords), 0);
            }
            kind::COMPLETION_QUEUE => {
                let n = self.cqs.len() & 7;
                let record = (BASE as usize + MORE_RECORDS + n * 64) as u32;
                let dwords = [(28, u32::from(what & 7) << 24 | self.uar), (36, self.eqn), (16 + 60, record)];
                let mut cq = input(0x400, 272, &dwords);
                cq.extend((BASE + (MORE_QUEUES + 0x8000 + n * 0x1000) as u64).to_be_bytes());
                self.command(cq, 16);
                if self.status() == 0 {
                    self.cqs.push(self.number());
                }
            }
            kind::COUNTERS => self.command_for(input(0x771, 16, &[]), what),
            kind::PD => self.command_for(input(0x800, 16, &[]), what),
            kind::XRCD => self.command_for(input(0x80e, 16, &[]), what),
            // A queue pair that takes from a shared receive queue (the type of its receive queue is before the number).
            kind::QP_WITH_SRQ => {
                let Some((srqn, _)) = pick(&self.srqs, what) else { return };
                self.queue_pair(0, &[(8, 6 << 11), (172, 1 << 24 | srqn)]);
            }
            kind::XRC_QP => {
                let xrcd = pick(&self.others, what).unwrap_or(1);
                self.queue_pair(3, &[(8, 6 << 11), (152, xrcd), (172, 3 << 24)]);
            }
            kind => self.create_srq(kind, what),
        }
    }

    /// Executes a command for a user context, or for the kernel. Its object has another number.
    fn command_for(&mut self, mut bytes: Vec<u8>, what: u8) {
        bytes[3] = what >> 6;
        self.command(bytes, 16);
        if self.status() == 0 {
            self.others.push(self.number());
        }
    }

    fn create_srq(&mut self, kind: u8, what: u8) {
        let n = self.srqs.len();
        if n >= MAX_SRQS {
            return;
        }
        let (ring, record) = (BASE + (MORE_QUEUES + n * 0x1000) as u64, BASE + (MORE_RECORDS + 0x800 + n * 64) as u64);
        let (log_size, log_stride) = (u32::from(what & 3) + 2, 1);
        let xrcd = pick(&self.others, what >> 2).unwrap_or(1);
        let mut bytes = match kind {
            kind::SRQ => {
                let mut bytes = input(0x700, CreateSrqIn::SIZE, &[]);
                if let Some(mut input) = ViewMut::<CreateSrqIn>::new(&mut bytes) {
                    let mut context = input.sub(CreateSrqIn::SRQ_CONTEXT_ENTRY);
                    context.set(Srqc::LOG_SRQ_SIZE, log_size).set(Srqc::LOG_RQ_STRIDE, log_stride).set(Srqc::PD, self.pd);
                    context.set64(Srqc::DBR_ADDR, record);
                }
                bytes
            }
            kind::XRC_SRQ => {
                let mut bytes = input(0x705, CreateXrcSrqIn::SIZE, &[]);
                if let Some(mut input) = ViewMut::<CreateXrcSrqIn>::new(&mut bytes) {
                    let mut context = input.sub(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY);
                    context
                        .set(XrcSrqc::LOG_XRC_SRQ_SIZE, log_size)
                        .set(XrcSrqc::LOG_RQ_STRIDE, log_stride)
                        .set(XrcSrqc::PD, self.pd)
                        .set(XrcSrqc::XRCD, xrcd)
                        .set(XrcSrqc::CQN, pick(&self.cqs, what).unwrap_or(0))
                        .set(XrcSrqc::DB_RECORD_ADDR_H, (record >> 32) as u32)
                        .set(XrcSrqc::DB_RECORD_ADDR_L, record as u32 >> 2);
                }
                bytes
            }
            _ => {
                let mut bytes = input(0x90c, CreateRmpIn::SIZE, &[]);
                if let Some(mut input) = ViewMut::<CreateRmpIn>::new(&mut bytes) {
                    let mut context = input.sub(CreateRmpIn::CTX);
                    let mut queue = context.sub(Rmpc::WQ);
                    queue.set(Wq::PD, self.pd).set(Wq::LOG_WQ_SZ, log_size).set(Wq::LOG_WQ_STRIDE, log_stride + 4);
                    queue.set64(Wq::DBR_ADDR, record);
                }
                bytes
            }
        };
        bytes.extend(ring.to_be_bytes());
        self.command(bytes, 16);
        if self.status() == 0 {
            self.srqs.push((self.number(), 0));
        }
    }

    /// Posts a WQE of a shared receive queue: one pointer after the link.
    pub fn post_shared(&mut self, which: u8, key: u8, at: u16, len: u16) {
        let i = usize::from(which) % self.srqs.len().max(1);
        let key = self.key(key);
        let Some((_, posted)) = self.srqs.get_mut(i) else { return };
        let place = MORE_QUEUES + i * 0x1000 + usize::from(*posted % 4) * 32;
        let mut bytes = vec![0; 16];
        bytes[2..4].copy_from_slice(&((*posted + 1) % 4).to_be_bytes());
        bytes.extend(u32::from(len).to_be_bytes());
        bytes.extend(key.to_be_bytes());
        bytes.extend((BASE + u64::from(at) * 16).to_be_bytes());
        *posted = posted.wrapping_add(1);
        let record = u32::from(*posted).to_be_bytes();
        let _ = self.memory.write(place, &bytes);
        let _ = self.memory.write(MORE_RECORDS + 0x800 + i * 64, &record);
    }

    /// Changes something that there is.
    pub fn change(&mut self, change: &Change) {
        let qpn = |guest: &Self, which: u8| pick(&guest.qps, which).map_or(0, |qp| qp.0);
        match *change {
            Change::State(which, state) => {
                let opcode = [0x507, 0x50a, 0x508, 0x50c, 0x506, 0x505][usize::from(state) % 6];
                let qpn = qpn(self, which);
                self.command(input(opcode, 272, &[(8, qpn)]), 16);
                if opcode == 0x50a
                    && let Some(qp) = self.qps.iter_mut().find(|qp| qp.0 == qpn)
                {
                    (qp.1, qp.2) = (0, 0);
                }
            }
            Change::Connect(which) => self.connect(qpn(self, which)),
            Change::Group(which, join) => {
                let mut bytes = input(if join { 0x806 } else { 0x807 }, AttachToMcgIn::SIZE, &[]);
                if let Some(mut input) = ViewMut::<AttachToMcgIn>::new(&mut bytes) {
                    input.set(AttachToMcgIn::QPN, qpn(self, which)).set_bytes(AttachToMcgIn::MULTICAST_GID, &[0xff; 16]);
                }
                self.command(bytes, 16);
            }
            Change::Cq(which, log_size, moderates) => {
                let Some(cqn) = pick(&self.cqs, which) else { return };
                // Size, log of the page size and offset; or period and count.
                let mut bytes = input(0x403, ModifyCqIn::SIZE, &[(4, u32::from(!moderates)), (8, cqn), (12, 7)]);
                if let Some(mut input) = ViewMut::<ModifyCqIn>::new(&mut bytes) {
                    let mut context = input.sub(ModifyCqIn::CQ_CONTEXT);
                    context.set(Cqc::LOG_CQ_SIZE, u32::from(log_size & 7));
                    context.set(Cqc::CQ_PERIOD, u32::from(log_size)).set(Cqc::CQ_MAX_COUNT, u32::from(log_size & 3));
                }
                let at = QUEUES + 0x4000 + usize::from(log_size >> 7) * 0x2000;
                for page in 0..2 {
                    bytes.extend((BASE + (at + page * 4096) as u64).to_be_bytes());
                }
                self.command(bytes, 16);
            }
            Change::Limit(which, limit) => {
                let Some((srqn, _)) = pick(&self.srqs, which) else { return };
                let opcode = [0x703, 0x708][usize::from(which >> 7)];
                self.command(input(opcode, 16, &[(4, 1), (8, srqn), (12, limit.into())]), 16);
            }
            Change::DestroyKey(which) => {
                let key = self.key(which);
                self.command(input(0x202, 16, &[(8, key >> 8)]), 16);
                if self.status() == 0 {
                    self.keys.retain(|kept| kept >> 8 != key >> 8);
                }
            }
            Change::Arm(which, value) => {
                let cqn = pick(&self.cqs, which).unwrap_or(0);
                let doorbell = u64::from(value) << 32 | u64::from(cqn);
                self.device.bar_write(u64::from(self.uar) * 4096 + 0x20, &doorbell.to_be_bytes());
            }
        }
    }
}
