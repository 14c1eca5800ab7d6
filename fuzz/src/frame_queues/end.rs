//! A guest with queues for frames, as a driver makes them: a send queue, a receive queue, and a flow table that leads to it.

use bareverbs::platform::DmaMemory as _;
use bareverbs_mlx5_spec::{
    CreateFlowGroupIn, CreateFlowTableIn, CreateRqIn, CreateRqtIn, CreateSqIn, CreateTirIn, CreateTisIn, DestFormatStruct,
    FlowContext, FlowCounterList, FlowTableContext, Layout as _, ModifyRqIn, ModifySqIn, QueueState, Rqc, Rqtc,
    RxHashFieldSelect, SetFlowTableRootIn, SetFteIn, Sqc, Tirc, Tisc, ViewMut, WQ_CYCLIC, Wq,
};
use bareverbs_sim::DeviceConfig;

use crate::device::guest::{BASE, Guest, RECORDS, input};

/// Rings of send queues, of receive queues and of completion queues, and their doorbell records: each [`RING`] or 64 bytes apart.
const SEND_RINGS: usize = 0xb_0000;
const RECEIVE_RINGS: usize = 0xb_8000;
const COMPLETIONS: usize = 0xc_0000;
const RING: usize = 0x1000;
const FRAME_RECORDS: usize = RECORDS + 0x3000;
/// Buffers of the first receive queue.
pub const BUFFERS: usize = 0xd_0000;
pub const BUFFER: usize = 0x800;
/// What is sent.
pub const SOURCE: usize = 0xf_0000;
/// Entries of each ring, as a power of two.
pub const LOG_ENTRIES: u32 = 6;
pub const ENTRIES: u16 = 1 << LOG_ENTRIES;
/// Queues of each kind at most.
const MAX_QUEUES: usize = 8;
/// Bytes of a block of a send queue, and of a receive WQE with one segment.
pub const BLOCK: usize = 64;
pub const RECEIVE: usize = 16;

/// A queue for frames: its number, how many blocks or WQEs were posted, and where it is.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    pub number: u32,
    pub posted: u16,
    pub ring: usize,
    record: usize,
    /// Bytes of an entry.
    stride: usize,
}

/// A completion queue, and how many entries were taken.
#[derive(Clone, Copy, Debug)]
pub struct Completions {
    pub number: u32,
    at: usize,
    record: usize,
    taken: u32,
}

/// The guest, and what it has made.
pub struct FrameEnd {
    pub guest: Guest,
    pub mac: [u8; 6],
    pub send_queues: Vec<Queue>,
    pub receive_queues: Vec<Queue>,
    pub completions: Vec<Completions>,
    pub domains: Vec<u32>,
    pub tiss: Vec<u32>,
    pub tirs: Vec<u32>,
    pub queue_tables: Vec<u32>,
    pub tables: Vec<u32>,
    /// Table and number.
    pub groups: Vec<(u32, u32)>,
    /// Table and place.
    pub rules: Vec<(u32, u32)>,
    pub counters: Vec<u32>,
    /// Addresses of others.
    pub neighbors: Vec<[u8; 6]>,
}

/// What a TIR leads to, and how it chooses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leading {
    pub direct: bool,
    pub to: u32,
    pub function: u32,
    pub fields: u32,
    pub loopback: u32,
}

impl FrameEnd {
    /// Creates a guest that takes the frames for its address, for groups and for all, with receives posted.
    pub fn new(config: DeviceConfig) -> Self {
        let mac = match config.port {
            bareverbs_sim::PortKind::Ethernet { mac } => mac,
            _ => panic!("an Ethernet port"),
        };
        let mut end = Self {
            guest: Guest::new(config, false),
            mac,
            send_queues: Vec::new(),
            receive_queues: Vec::new(),
            completions: Vec::new(),
            domains: Vec::new(),
            tiss: Vec::new(),
            tirs: Vec::new(),
            queue_tables: Vec::new(),
            tables: Vec::new(),
            groups: Vec::new(),
            rules: Vec::new(),
            counters: Vec::new(),
            neighbors: Vec::new(),
        };
        let domain = end.create(input(0x816, 16, &[])).expect("a transport domain");
        end.domains.push(domain);
        end.create_tis(domain);
        for _ in 0..2 {
            end.create_cq(LOG_ENTRIES);
        }
        let [sends, receives] = [0, 1].map(|which: usize| end.completions[which].number);
        end.create_send_queue(sends, Some(end.tiss[0]), LOG_ENTRIES, 0);
        end.create_receive_queue(receives, LOG_ENTRIES, 4, true);
        let rqn = end.receive_queues[0].number;
        end.create_tir(&Leading { direct: true, to: rqn, ..Leading::default() });
        end.create_table(0, 4, None);
        end.create_group(end.tables[0], (0, 15), 0, &[]);
        end.set_rule(end.tables[0], end.groups[0].1, 0, 4, &[], &[(2, end.tirs[0])], &[]);
        end.set_root(end.tables[0]);
        end.allocate_counter();
        assert_eq!(end.guest.status(), 0, "queues for frames");
        let buffers: Vec<[u8; RECEIVE]> = (0..usize::from(ENTRIES) - 1).map(|at| end.buffer(at)).collect();
        buffers.iter().for_each(|wqe| end.post_receive(0, wqe));
        end
    }

    /// Executes a command that makes something; returns its number.
    pub fn create(&mut self, bytes: Vec<u8>) -> Option<u32> {
        self.guest.command(bytes, 16);
        (self.guest.status() == 0).then(|| self.guest.number())
    }

    pub fn create_tis(&mut self, domain: u32) {
        let mut bytes = input(0x912, CreateTisIn::SIZE, &[]);
        ViewMut::<CreateTisIn>::new(&mut bytes).expect("its size").sub(CreateTisIn::CTX).set(Tisc::TRANSPORT_DOMAIN, domain);
        let made = self.create(bytes);
        self.tiss.extend(made);
    }

    /// Makes a completion queue without entries of its own.
    pub fn create_cq(&mut self, log_size: u32) {
        let n = self.completions.len();
        if n >= MAX_QUEUES {
            return;
        }
        let (at, record) = (COMPLETIONS + n * RING, FRAME_RECORDS + 0x800 + n * 64);
        let _ = self.guest.memory.write(at, &[0xf1; RING]);
        let dwords = [(28, log_size << 24 | self.guest.uar), (36, self.guest.eqn), (16 + 60, (BASE as usize + record) as u32)];
        let mut bytes = input(0x400, 272, &dwords);
        bytes.extend((BASE + at as u64).to_be_bytes());
        if let Some(number) = self.create(bytes) {
            self.completions.push(Completions { number, at, record, taken: 0 });
        }
    }

    fn fill(&self, wq: &mut ViewMut<'_, Wq>, record: usize, log_size: u32, log_stride: u32) {
        wq.set(Wq::WQ_TYPE, WQ_CYCLIC)
            .set(Wq::PD, self.guest.pd)
            .set(Wq::UAR_PAGE, self.guest.uar)
            .set64(Wq::DBR_ADDR, BASE + record as u64)
            .set(Wq::LOG_WQ_STRIDE, log_stride)
            .set(Wq::LOG_WQ_SZ, log_size);
    }

    pub fn create_send_queue(&mut self, cqn: u32, tis: Option<u32>, log_size: u32, inline: u32) {
        let n = self.send_queues.len();
        if n >= MAX_QUEUES {
            return;
        }
        let (ring, record) = (SEND_RINGS + n * RING, FRAME_RECORDS + n * 64);
        let mut bytes = input(0x904, CreateSqIn::SIZE, &[]);
        let mut view = ViewMut::<CreateSqIn>::new(&mut bytes).expect("its size");
        let mut context = view.sub(CreateSqIn::CTX);
        context.set(Sqc::CQN, cqn).set(Sqc::MIN_WQE_INLINE_MODE, inline).set(Sqc::FLUSH_IN_ERROR_EN, 1);
        if let Some(tis) = tis {
            context.set(Sqc::TIS_LST_SZ, 1).set(Sqc::TIS_NUM_0, tis);
        }
        self.fill(&mut context.sub(Sqc::WQ), record, log_size, 6);
        bytes.extend((BASE + ring as u64).to_be_bytes());
        let Some(number) = self.create(bytes) else { return };
        self.send_queues.push(Queue { number, posted: 0, ring, record: record + 4, stride: BLOCK });
        self.set_send_state(number, QueueState::Reset.code(), QueueState::Ready.code());
    }

    pub fn create_receive_queue(&mut self, cqn: u32, log_size: u32, log_stride: u32, keeps_tags: bool) {
        let n = self.receive_queues.len();
        if n >= MAX_QUEUES {
            return;
        }
        let (ring, record) = (RECEIVE_RINGS + n * RING, FRAME_RECORDS + 0x400 + n * 64);
        let mut bytes = input(0x908, CreateRqIn::SIZE, &[]);
        let mut view = ViewMut::<CreateRqIn>::new(&mut bytes).expect("its size");
        let mut context = view.sub(CreateRqIn::CTX);
        context.set(Rqc::CQN, cqn).set(Rqc::VSD, keeps_tags.into()).set(Rqc::FLUSH_IN_ERROR_EN, 1);
        self.fill(&mut context.sub(Rqc::WQ), record, log_size, log_stride);
        bytes.extend((BASE + ring as u64).to_be_bytes());
        let Some(number) = self.create(bytes) else { return };
        let stride = 1 << log_stride.min(11);
        self.receive_queues.push(Queue { number, posted: 0, ring, record, stride });
        self.set_receive_state(number, QueueState::Reset.code(), QueueState::Ready.code());
    }

    pub fn set_send_state(&mut self, number: u32, from: u32, to: u32) {
        let mut bytes = input(0x905, ModifySqIn::SIZE, &[]);
        let mut view = ViewMut::<ModifySqIn>::new(&mut bytes).expect("its size");
        view.set(ModifySqIn::SQN, number).set(ModifySqIn::SQ_STATE, from);
        view.sub(ModifySqIn::CTX).set(Sqc::STATE, to);
        self.guest.command(bytes, 16);
        if to == QueueState::Reset.code() {
            self.send_queues.iter_mut().filter(|queue| queue.number == number).for_each(|queue| queue.posted = 0);
        }
    }

    pub fn set_receive_state(&mut self, number: u32, from: u32, to: u32) {
        let mut bytes = input(0x909, ModifyRqIn::SIZE, &[]);
        let mut view = ViewMut::<ModifyRqIn>::new(&mut bytes).expect("its size");
        view.set(ModifyRqIn::RQN, number).set(ModifyRqIn::RQ_STATE, from);
        view.sub(ModifyRqIn::CTX).set(Rqc::STATE, to);
        self.guest.command(bytes, 16);
        if to == QueueState::Reset.code() {
            self.receive_queues.iter_mut().filter(|queue| queue.number == number).for_each(|queue| queue.posted = 0);
        }
    }

    pub fn create_tir(&mut self, leading: &Leading) {
        let mut bytes = input(0x900, CreateTirIn::SIZE, &[]);
        let mut view = ViewMut::<CreateTirIn>::new(&mut bytes).expect("its size");
        let mut context = view.sub(CreateTirIn::CTX);
        context.set(Tirc::DISP_TYPE, u32::from(!leading.direct)).set(Tirc::TRANSPORT_DOMAIN, self.domains[0]);
        context.set(Tirc::RX_HASH_FN, leading.function).set(Tirc::SELF_LB_BLOCK, leading.loopback);
        context.set(if leading.direct { Tirc::INLINE_RQN } else { Tirc::INDIRECT_TABLE }, leading.to);
        context.sub(Tirc::RX_HASH_FIELD_SELECTOR_OUTER).set(RxHashFieldSelect::SELECTED_FIELDS, leading.fields);
        let made = self.create(bytes);
        self.tirs.extend(made);
    }

    /// Makes a table of receive queues, or replaces the list of one.
    pub fn create_queue_table(&mut self, queues: &[u32]) {
        let mut bytes = input(0x916, CreateRqtIn::SIZE, &[]);
        let mut view = ViewMut::<CreateRqtIn>::new(&mut bytes).expect("its size");
        let mut context = view.sub(CreateRqtIn::RQT_CONTEXT);
        context.set(Rqtc::RQT_MAX_SIZE, queues.len() as u32).set(Rqtc::RQT_ACTUAL_SIZE, queues.len() as u32);
        bytes.extend(queues.iter().flat_map(|rqn| rqn.to_be_bytes()));
        let made = self.create(bytes);
        self.queue_tables.extend(made);
    }

    pub fn create_table(&mut self, level: u32, log_size: u32, miss: Option<u32>) {
        let mut bytes = input(0x930, CreateFlowTableIn::SIZE, &[]);
        let mut view = ViewMut::<CreateFlowTableIn>::new(&mut bytes).expect("its size");
        let mut context = view.sub(CreateFlowTableIn::FLOW_TABLE_CONTEXT);
        context.set(FlowTableContext::LEVEL, level).set(FlowTableContext::LOG_SIZE, log_size);
        if let Some(miss) = miss {
            context.set(FlowTableContext::TABLE_MISS_ACTION, 1).set(FlowTableContext::TABLE_MISS_ID, miss);
        }
        let made = self.create(bytes);
        self.tables.extend(made);
    }

    /// Makes a group of rules; `mask` is the start of what they look at.
    pub fn create_group(&mut self, table: u32, (first, last): (u32, u32), enable: u32, mask: &[u8]) {
        let mut bytes = input(0x933, CreateFlowGroupIn::SIZE, &[]);
        let mut view = ViewMut::<CreateFlowGroupIn>::new(&mut bytes).expect("its size");
        view.set(CreateFlowGroupIn::TABLE_ID, table)
            .set(CreateFlowGroupIn::START_FLOW_INDEX, first)
            .set(CreateFlowGroupIn::END_FLOW_INDEX, last)
            .set(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, enable)
            .set_bytes(CreateFlowGroupIn::MATCH_CRITERIA, &block(mask));
        let made = self.create(bytes);
        self.groups.extend(made.map(|group| (table, group)));
    }

    /// Sets a rule: where its frames go is a kind of destination (1 a table, 2 a TIR) and its number.
    #[expect(clippy::too_many_arguments, reason = "the fields of a rule")]
    pub fn set_rule(
        &mut self,
        table: u32,
        group: u32,
        index: u32,
        action: u32,
        value: &[u8],
        destinations: &[(u32, u32)],
        counters: &[u32],
    ) {
        let mut bytes = input(0x936, SetFteIn::SIZE, &[]);
        let mut view = ViewMut::<SetFteIn>::new(&mut bytes).expect("its size");
        view.set(SetFteIn::TABLE_ID, table).set(SetFteIn::FLOW_INDEX, index);
        view.sub(SetFteIn::FLOW_CONTEXT)
            .set(FlowContext::GROUP_ID, group)
            .set(FlowContext::ACTION, action)
            .set(FlowContext::DESTINATION_LIST_SIZE, destinations.len() as u32)
            .set(FlowContext::FLOW_COUNTER_LIST_SIZE, counters.len() as u32)
            .set_bytes(FlowContext::MATCH_VALUE, &block(value));
        for (kind, number) in destinations {
            let mut entry = [0; DestFormatStruct::SIZE];
            ViewMut::<DestFormatStruct>::of(&mut entry)
                .set(DestFormatStruct::DESTINATION_TYPE, *kind)
                .set(DestFormatStruct::DESTINATION_ID, *number);
            bytes.extend(entry);
        }
        for counter in counters {
            let mut entry = [0; FlowCounterList::SIZE];
            ViewMut::<FlowCounterList>::of(&mut entry).set(FlowCounterList::FLOW_COUNTER_ID, *counter);
            bytes.extend(entry);
        }
        self.guest.command(bytes, 16);
        if self.guest.status() == 0 {
            self.rules.push((table, index));
        }
    }

    pub fn set_root(&mut self, table: u32) {
        let mut bytes = input(0x92f, SetFlowTableRootIn::SIZE, &[]);
        ViewMut::<SetFlowTableRootIn>::new(&mut bytes).expect("its size").set(SetFlowTableRootIn::TABLE_ID, table);
        self.guest.command(bytes, 16);
    }

    pub fn allocate_counter(&mut self) {
        let made = self.create(input(0x939, 16, &[]));
        self.counters.extend(made);
    }

    /// Returns the receive WQE of buffer `at`.
    pub fn buffer(&self, at: usize) -> [u8; RECEIVE] {
        segment(BUFFER as u32, self.guest.key, BASE + (BUFFERS + at * BUFFER) as u64)
    }

    /// Posts a receive WQE.
    pub fn post_receive(&mut self, which: usize, wqe: &[u8]) {
        let Some(queue) = self.receive_queues.get_mut(which) else { return };
        let wqe = &wqe[..wqe.len().min(queue.stride)];
        let _ = self.guest.memory.write(queue.ring + usize::from(queue.posted % ENTRIES) * queue.stride % RING, wqe);
        queue.posted = queue.posted.wrapping_add(1);
        let _ = self.guest.memory.write(queue.record, &u32::from(queue.posted).to_be_bytes());
    }

    /// Posts a send WQE with these bytes behind its control segment, and rings.
    pub fn post_send(&mut self, which: usize, opcode: u8, segments: u8, flags: u8, body: &[u8]) {
        let Some(queue) = self.send_queues.get_mut(which) else { return };
        let mut wqe = Vec::new();
        let words =
            [u32::from(queue.posted) << 8 | u32::from(opcode), queue.number << 8 | u32::from(segments), flags.into(), 0];
        words.iter().for_each(|word: &u32| wqe.extend(word.to_be_bytes()));
        let doorbell: [u8; 8] = std::array::from_fn(|at| wqe[at]);
        wqe.extend(body);
        for piece in wqe.chunks(BLOCK) {
            let _ = self.guest.memory.write(queue.ring + usize::from(queue.posted % ENTRIES) * BLOCK, piece);
            queue.posted = queue.posted.wrapping_add(1);
        }
        let _ = self.guest.memory.write(queue.record, &u32::from(queue.posted).to_be_bytes());
        self.guest.device.bar_write(u64::from(self.guest.uar) * 4096 + 0x800, &doorbell);
    }

    /// Says something in the doorbell record of a queue.
    pub fn set_record(&mut self, sends: bool, which: u8, value: u32) {
        let queues = if sends { &self.send_queues } else { &self.receive_queues };
        let Some(queue) = queues.get(usize::from(which) % queues.len().max(1)) else { return };
        let _ = self.guest.memory.write(queue.record, &value.to_be_bytes());
    }

    /// Returns the next entry of a completion queue, if there is one.
    pub fn poll(&mut self, which: usize) -> Option<[u8; 64]> {
        let queue = self.completions.get_mut(which)?;
        let (place, owner) = (queue.taken % u32::from(ENTRIES), (queue.taken / u32::from(ENTRIES) % 2) as u8);
        let mut entry = [0; 64];
        self.guest.memory.read(queue.at + place as usize * 64, &mut entry).expect("its own memory");
        if entry[63] & 1 != owner || entry[63] >> 4 == 0xf {
            return None;
        }
        queue.taken += 1;
        self.guest.memory.write(queue.record, &(queue.taken & 0xff_ffff).to_be_bytes()).expect("its own memory");
        Some(entry)
    }
}

/// Returns a data segment.
pub fn segment(len: u32, key: u32, addr: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&len.to_be_bytes());
    bytes[4..8].copy_from_slice(&key.to_be_bytes());
    bytes[8..].copy_from_slice(&addr.to_be_bytes());
    bytes
}

fn block(start: &[u8]) -> [u8; 512] {
    let mut bytes = [0; 512];
    let len = start.len().min(512);
    bytes[..len].copy_from_slice(&start[..len]);
    bytes
}
