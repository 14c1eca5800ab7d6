//! A model of the verbs: sets of objects, who refers to whom, and one array of bytes.

use arbitrary::Arbitrary;
use bareverbs::error::Errno;
use bareverbs::{Access, WcStatus};

/// Bytes of memory that regions lie in.
pub const MEMORY: usize = 4096;
/// Longest message: one packet, so that a request reads all that it reads before it writes.
pub const MAX_LEN: u16 = 256;
/// Capacities of the tables.
pub const PDS: usize = 2;
/// Regions.
pub const MRS: usize = 4;
/// Windows.
pub const MWS: usize = 3;
/// Completion queues.
pub const CQS: usize = 2;
/// Queue pairs.
pub const QPS: usize = 3;

/// One call. An object is named by the order in which its kind was made, live or not.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Step {
    /// alloc_pd.
    AllocPd,
    /// dealloc_pd.
    DeallocPd(u8),
    /// reg_mr: domain, first byte, length, access.
    RegMr(u8, u16, u16, u8),
    /// dereg_mr.
    DeregMr(u8),
    /// alloc_mw of type 1.
    AllocMw(u8),
    /// dealloc_mw.
    DeallocMw(u8),
    /// create_cq.
    CreateCq,
    /// destroy_cq.
    DestroyCq(u8),
    /// create_qp: domain, completion queue.
    CreateQp(u8, u8),
    /// destroy_qp.
    DestroyQp(u8),
    /// Both queue pairs to RESET and from there to RTS, each the other's peer.
    Connect(u8, u8),
    /// bind_mw: queue pair, window, region, first byte, length, access, way.
    Bind(u8, u8, u8, u16, u16, u8, u8),
    /// One request and its completion.
    Request {
        /// What.
        operation: Operation,
        /// Queue pair.
        qp: u8,
        /// Region of the local bytes.
        mr: u8,
        /// First local byte.
        local: u16,
        /// A window instead of a region on the far side.
        window: bool,
        /// Which region or window gives the remote key.
        key: u8,
        /// First remote byte.
        remote: u16,
        /// Length.
        length: u16,
        /// By which calls it is posted, and its completion taken.
        way: u8,
    },
}

/// A one-sided operation.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RDMA_WRITE.
    Write,
    /// RDMA_READ.
    Read,
    /// Fetch-and-add of this.
    FetchAdd(u64),
}

impl Operation {
    /// Returns the right that the far side must give.
    pub fn right(self) -> Access {
        match self {
            Self::Write => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::FetchAdd(_) => Access::REMOTE_ATOMIC,
        }
    }
}

/// Access of a region or window by the bits that a fuzzer chose.
pub fn access(bits: u8) -> Access {
    Access::from_bits_truncate(u32::from(bits))
        & (Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::MW_BIND)
}

/// A region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its domain.
    pub pd: usize,
    /// First byte.
    pub start: usize,
    /// Length.
    pub length: usize,
    /// Rights.
    pub access: Access,
    /// Key, for both sides.
    pub key: u32,
}

/// What a window opens.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// Region.
    pub mr: usize,
    /// First byte.
    pub start: usize,
    /// Length.
    pub length: usize,
    /// Rights.
    pub access: Access,
}

/// A window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its domain.
    pub pd: usize,
    /// What it opens.
    pub binding: Option<Binding>,
    /// Key.
    pub key: u32,
}

/// A queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePair {
    /// Its domain.
    pub pd: usize,
    /// Its completion queue.
    pub cq: usize,
    /// Its peer, if it is connected.
    pub peer: Option<usize>,
}

/// Objects by the order in which they were made; `None` after they are destroyed.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Domains.
    pub pds: Vec<Option<()>>,
    /// Regions.
    pub mrs: Vec<Option<Region>>,
    /// Windows.
    pub mws: Vec<Option<Window>>,
    /// Completion queues.
    pub cqs: Vec<Option<()>>,
    /// Queue pairs.
    pub qps: Vec<Option<QueuePair>>,
    /// Bytes.
    pub memory: Vec<u8>,
}

/// Returns live objects of a kind.
pub fn live<T>(objects: &[Option<T>]) -> usize {
    objects.iter().flatten().count()
}

/// Returns the object of this name.
pub fn get<T: Copy>(objects: &[Option<T>], name: usize) -> Option<T> {
    objects.get(name).copied().flatten()
}

fn inside(start: usize, length: usize, of: usize, all: usize) -> bool {
    start >= of && start + length <= of + all
}

impl Model {
    /// Objects of a domain.
    pub fn users_of_pd(&self, pd: usize) -> usize {
        self.mrs.iter().flatten().filter(|mr| mr.pd == pd).count()
            + self.mws.iter().flatten().filter(|mw| mw.pd == pd).count()
            + self.qps.iter().flatten().filter(|qp| qp.pd == pd).count()
    }

    /// Windows that are bound to a region.
    pub fn windows_of(&self, mr: usize) -> usize {
        self.mws.iter().flatten().filter(|mw| mw.binding.is_some_and(|binding| binding.mr == mr)).count()
    }

    /// Returns the result of reg_mr.
    pub fn reg_mr(&self, pd: usize, length: usize, access: Access) -> Result<(), Errno> {
        get(&self.pds, pd).ok_or(Errno::Einval)?;
        let remote = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if length == 0 || remote && !access.contains(Access::LOCAL_WRITE) {
            return Err(Errno::Einval);
        }
        if live(&self.mrs) == MRS { Err(Errno::Enomem) } else { Ok(()) }
    }

    /// Returns the result of bind_mw, in the order of the contract's checks.
    pub fn bind(&self, qp: usize, mw: usize, asked: &Binding) -> Result<(), Errno> {
        let qp = get(&self.qps, qp).ok_or(Errno::Einval)?;
        let mw = get(&self.mws, mw).ok_or(Errno::Einval)?;
        let mr = get(&self.mrs, asked.mr);
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        // Rights and region are of no interest to an unbind.
        if asked.length != 0 && (!remote.contains(asked.access) || mr.is_none()) {
            return Err(Errno::Einval);
        }
        if qp.peer.is_none() {
            return Err(Errno::Enotconn);
        }
        if mw.pd != qp.pd {
            return Err(Errno::Eperm);
        }
        let Some(mr) = mr.filter(|_| asked.length != 0) else { return Ok(()) };
        if mr.pd != qp.pd {
            return Err(Errno::Eperm);
        }
        let writes = asked.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !mr.access.contains(Access::MW_BIND) || writes && !mr.access.contains(Access::LOCAL_WRITE) {
            return Err(Errno::Eacces);
        }
        if inside(asked.start, asked.length, mr.start, mr.length) { Ok(()) } else { Err(Errno::Erange) }
    }

    /// Returns the result of posting a request over `length` local bytes.
    pub fn post(&self, qp: usize, key: u32, start: usize, length: usize, writes: bool) -> Result<(), Errno> {
        let qp = get(&self.qps, qp).ok_or(Errno::Einval)?;
        if qp.peer.is_none() {
            return Err(Errno::Enotconn);
        }
        if length == 0 {
            return Ok(());
        }
        let mr = self.mrs.iter().flatten().find(|mr| mr.key == key).ok_or(Errno::Einval)?;
        if mr.pd != qp.pd {
            return Err(Errno::Eperm);
        }
        if writes && !mr.access.contains(Access::LOCAL_WRITE) {
            return Err(Errno::Eacces);
        }
        if inside(start, length, mr.start, mr.length) { Ok(()) } else { Err(Errno::Erange) }
    }

    /// Returns how a request on `qp` completes that uses a remote key.
    pub fn complete(&self, qp: usize, operation: Operation, key: u32, start: usize, length: usize) -> WcStatus {
        let Some(qp) = get(&self.qps, qp) else { return WcStatus::GeneralErr };
        let Some(peer) = qp.peer.and_then(|peer| get(&self.qps, peer)) else { return WcStatus::RetryExcErr };
        // Without bytes no key is checked.
        if length == 0 {
            return WcStatus::Success;
        }
        let region = self.mrs.iter().flatten().find(|mr| mr.key == key);
        let window = self.mws.iter().flatten().find(|mw| mw.key == key);
        let open = match (region, window.map(|window| (window.pd, window.binding))) {
            (Some(mr), _) => Some((mr.pd, mr.start, mr.length, mr.access)),
            (None, Some((pd, Some(binding)))) => Some((pd, binding.start, binding.length, binding.access)),
            _ => None,
        };
        let allowed = open.is_some_and(|(pd, from, all, access)| {
            pd == peer.pd && access.contains(operation.right()) && inside(start, length, from, all)
        });
        if allowed { WcStatus::Success } else { WcStatus::RemAccessErr }
    }

    /// Changes memory as a successful request does.
    pub fn apply(&mut self, operation: Operation, local: usize, remote: usize, length: usize) {
        match operation {
            Operation::Write => self.memory.copy_within(local..local + length, remote),
            Operation::Read => self.memory.copy_within(remote..remote + length, local),
            Operation::FetchAdd(add) => {
                let mut old = [0; 8];
                old.copy_from_slice(&self.memory[remote..remote + 8]);
                let new = u64::from_ne_bytes(old).wrapping_add(add);
                self.memory[remote..remote + 8].copy_from_slice(&new.to_ne_bytes());
                self.memory[local..local + 8].copy_from_slice(&old);
            }
        }
    }
}
