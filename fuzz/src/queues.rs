//! Where a driver has put its queues, as its own commands say, and the bytes there.

use std::iter;
use std::sync::{Arc, Mutex};

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{
    CmdIn, CmdOpcode, Cqc, CreateCqIn, CreateQpIn, CreateXrcSrqIn, Layout, ModifyCqIn, Qpc, Tail, View, XrcSrqc,
};
use bareverbs_sim::host_memory::HostMemory;
use bareverbs_sim::in_process::{Host, MemoryMap};
use bareverbs_sim::trace::{Record, Tracer};

/// Bytes of the device's smallest page.
const PAGE: usize = 4096;

/// Memory of one queue: pages that need not be neighbours.
#[derive(Clone, Debug)]
pub struct Queue {
    map: MemoryMap,
    pages: Vec<u64>,
    page_size: usize,
    /// Bytes from the start of the pages to the start of the queue.
    start: usize,
    /// Length in bytes.
    pub len: usize,
}

impl Queue {
    /// Returns the address, offset in the run and length of each contiguous segment of `len` bytes from `at`; the queue wraps,
    /// and so does the run.
    fn segments(&self, at: usize, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
        let mut done = 0;
        iter::from_fn(move || {
            let at = (at + done) % self.len;
            let place = self.start + at;
            let in_page = self.page_size - place % self.page_size;
            let segment = in_page.min(self.len - at).min(len - done);
            let addr = self.pages.get(place / self.page_size)? + (place % self.page_size) as u64;
            done += segment;
            (segment != 0).then_some((addr, done - segment, segment))
        })
    }

    /// Returns the bytes from `at`, past the end from the start again.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (addr, from, segment) in self.segments(at, len) {
            self.map.read(addr, &mut bytes[from..from + segment]).expect("the queue is in mapped memory");
        }
        bytes
    }

    /// Writes bytes at `at`, past the end from the start again.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        for (addr, from, segment) in self.segments(at, bytes.len()) {
            self.map.write(addr, &bytes[from..from + segment]).expect("the queue is in mapped memory");
        }
    }
}

/// The queues that were created last.
#[derive(Clone, Debug, Default)]
pub struct CreatedQueues {
    /// Completion queue.
    pub completion: Option<Queue>,
    /// Send queue of a queue pair.
    pub send: Option<Queue>,
    /// User index of that queue pair: completions give it back.
    pub user_index: u32,
    /// User index of a shared receive queue of XRC.
    pub shared_index: u32,
}

/// Listens to a device's commands for new queues.
#[derive(Clone, Default)]
pub struct Listener {
    created: Arc<Mutex<CreatedQueues>>,
    map: MemoryMap,
}

impl Listener {
    /// Listens to the device of `host` from now on.
    pub fn on(host: &Host) -> Self {
        let listener = Self { created: Arc::default(), map: host.memory_map().clone() };
        let tracer = listener.clone();
        host.with_device(|device| device.set_tracer(Some(Box::new(tracer))));
        listener
    }

    /// Returns the queues created so far.
    pub fn created(&self) -> CreatedQueues {
        self.created.lock().unwrap().clone()
    }

    fn pages<L: Layout>(&self, view: View<'_, L>, list: Tail<L>) -> Vec<u64> {
        (0..).map_while(|index| view.tail64(list, index)).collect()
    }

    fn queue(&self, pages: Vec<u64>, log_page_size: u32, start: usize, len: usize) -> Queue {
        Queue { map: self.map.clone(), pages, page_size: PAGE << log_page_size, start, len }
    }

    fn keep_completion_queue(&self, pages: Vec<u64>, context: View<'_, Cqc>) {
        let len = 64 << context.get(Cqc::LOG_CQ_SIZE);
        let start = context.get(Cqc::PAGE_OFFSET) as usize * 64;
        let queue = self.queue(pages, context.get(Cqc::LOG_PAGE_SIZE), start, len);
        self.created.lock().unwrap().completion = Some(queue);
    }

    fn command(&self, input: &[u8]) {
        let Some(opcode) = View::<CmdIn>::new(input).and_then(|head| CmdOpcode::from_code(head.get(CmdIn::OPCODE))) else {
            return;
        };
        if opcode == CmdOpcode::CreateCq
            && let Some(view) = View::<CreateCqIn>::new(input)
        {
            self.keep_completion_queue(self.pages(view, CreateCqIn::PAS), view.sub(CreateCqIn::CQ_CONTEXT));
        }
        if opcode == CmdOpcode::ModifyCq
            && let Some(view) = View::<ModifyCqIn>::new(input)
            && view.tail64(ModifyCqIn::PAS, 0).is_some()
        {
            self.keep_completion_queue(self.pages(view, ModifyCqIn::PAS), view.sub(ModifyCqIn::CQ_CONTEXT));
        }
        if opcode == CmdOpcode::CreateXrcSrq
            && let Some(view) = View::<CreateXrcSrqIn>::new(input)
        {
            let index = view.sub(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY).get(XrcSrqc::USER_INDEX);
            self.created.lock().unwrap().shared_index = index;
        }
        if opcode == CmdOpcode::CreateQp
            && let Some(view) = View::<CreateQpIn>::new(input)
        {
            let context = view.sub(CreateQpIn::QPC);
            let receive = if context.get(Qpc::RQ_TYPE) == 0 {
                16 << (context.get(Qpc::LOG_RQ_SIZE) + context.get(Qpc::LOG_RQ_STRIDE))
            } else {
                0
            };
            let start = context.get(Qpc::PAGE_OFFSET) as usize * 64 + receive;
            let len = 64 << context.get(Qpc::LOG_SQ_SIZE);
            let queue = self.queue(self.pages(view, CreateQpIn::PAS), context.get(Qpc::LOG_PAGE_SIZE), start, len);
            let mut created = self.created.lock().unwrap();
            created.send = Some(queue);
            created.user_index = context.get(Qpc::USER_INDEX);
        }
    }
}

impl Tracer for Listener {
    fn record(&mut self, _now: Instant, record: Record<'_>) {
        if let Record::Command { input, .. } = record {
            self.command(input);
        }
    }
}
