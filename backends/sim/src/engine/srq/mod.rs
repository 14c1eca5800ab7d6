//! Shared receive queues: linked lists of receive WQEs that several queue pairs take from.

use std::collections::BTreeMap;

use bareverbs_mlx5_spec::{CmdStatus, View, WqeSrqNextSeg};

use crate::engine::memory::page_source::PageSource;
use crate::engine::ring::{Pages, Ring};
use crate::host_memory::{HostMemory, read_array};
use crate::registry::{ObjectKind, Registry, Resource};

/// Bytes of the link at the head of a WQE.
const LINK: usize = 16;
/// Greatest logarithms of entries and of bytes of an entry.
const MAX_LOG_SIZE: u32 = 16;
const MAX_LOG_STRIDE: u32 = 12;

/// Which commands own a shared receive queue. All kinds share one space of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqKind {
    /// CREATE_SRQ.
    Basic,
    /// CREATE_XRC_SRQ.
    Xrc,
    /// CREATE_RMP: a receive memory pool.
    Pool,
}

/// What a shared receive queue is, whichever command made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqSpec {
    /// The commands that own it.
    pub kind: SrqKind,
    /// WQEs, as a power of two.
    pub log_size: u32,
    /// Bytes of a WQE, as a power of two.
    pub log_stride: u32,
    /// Bytes of a page, as a power of two, counted from 4096.
    pub log_page_size: u32,
    /// Where the first page begins, in 64ths of a page.
    pub page_offset: u32,
    /// Device address of the doorbell record.
    pub dbr_addr: u64,
    /// Protection domain.
    pub pd: u32,
    /// XRC domain, of an XRC one.
    pub xrcd: u32,
    /// Completion queue, of an XRC one.
    pub cqn: u32,
    /// What completions carry, of an XRC one.
    pub user_index: u32,
    /// Fewer posted WQEs than this cause an event; 0 for none.
    pub limit: u16,
}

#[derive(Debug)]
pub(in crate::engine) struct Srq {
    pub(in crate::engine) spec: SrqSpec,
    pub(in crate::engine) name: SrqName,
    ring: Ring,
    /// WQE that is taken next.
    head: u16,
    /// WQEs taken.
    taken: u16,
    /// Its record, a link or a WQE led nowhere: nothing can be taken any more.
    failed: bool,
}

/// A shared receive queue that was looked up. Its number may become that of another queue, its serial number does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct SrqName {
    pub(in crate::engine) srqn: u32,
    serial: u64,
}

/// A queue from which nothing can be taken any more.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct SrqFailed {
    /// It was found just now: an event reports it, once.
    pub(in crate::engine) first: bool,
}

/// A WQE taken from the list.
#[derive(Debug)]
pub(in crate::engine) struct SrqElement {
    pub(in crate::engine) index: u16,
    /// Protection domain of the queue.
    pub(in crate::engine) pd: u32,
    /// Its data segments.
    pub(in crate::engine) segments: Vec<u8>,
    /// Fewer WQEs than the limit are left: an event reports it, once.
    pub(in crate::engine) below_limit: bool,
}

#[derive(Debug, Default)]
pub(in crate::engine) struct SrqTable {
    srqs: BTreeMap<u32, Srq>,
    /// Queues created so far.
    created: u64,
}

impl SrqTable {
    pub(in crate::engine) fn get(&self, srqn: u32) -> Option<&Srq> {
        self.srqs.get(&srqn)
    }

    /// Returns a queue that was looked up before, if it is still there.
    pub(in crate::engine) fn find(&self, name: SrqName) -> Option<&Srq> {
        self.get(name.srqn).filter(|srq| srq.name == name)
    }

    /// Adds a queue whose doorbell record lies in user memory `record`.
    pub(in crate::engine) fn create(
        &mut self,
        registry: &mut Registry,
        spec: SrqSpec,
        source: PageSource<'_>,
        record: Option<u32>,
    ) -> Result<u32, CmdStatus> {
        let stride_fits = (LINK..=1 << MAX_LOG_STRIDE).contains(&1_usize.checked_shl(spec.log_stride).unwrap_or(0));
        if spec.log_size > MAX_LOG_SIZE || !stride_fits || !spec.dbr_addr.is_multiple_of(4) {
            return Err(CmdStatus::BadParam);
        }
        let plan = Pages::plan(source, spec.log_page_size, spec.page_offset, 1 << (spec.log_size + spec.log_stride))?;
        let mut uses = vec![Resource::pd(spec.pd)];
        if spec.kind == SrqKind::Xrc {
            uses.extend([Resource::cq(spec.cqn), Resource::xrcd(spec.xrcd)]);
        }
        uses.extend(plan.umem());
        uses.extend(record.map(Resource::umem));
        let srqn = registry.create(ObjectKind::Srq, plan.memory(), uses)?;
        let ring = Ring::new(plan.pages(), 0, spec.log_size, spec.log_stride);
        let name = SrqName { srqn, serial: self.created };
        self.created += 1;
        self.srqs.insert(srqn, Srq { spec, name, ring, head: 0, taken: 0, failed: false });
        Ok(srqn)
    }

    /// Ends a queue that nothing uses. Returns the firmware memory that it had.
    pub(in crate::engine) fn destroy(&mut self, registry: &mut Registry, srqn: u32, kind: SrqKind) -> Result<u64, CmdStatus> {
        self.get(srqn).filter(|srq| srq.spec.kind == kind).ok_or(CmdStatus::BadRes)?;
        let room = registry.destroy(Resource::srq(srqn))?;
        self.srqs.remove(&srqn);
        Ok(room)
    }

    /// Sets the limit. Returns `true` if fewer WQEs are posted already: an event reports it, and the limit is cleared.
    pub(in crate::engine) fn arm(
        &mut self,
        memory: &dyn HostMemory,
        srqn: u32,
        kind: SrqKind,
        limit: u16,
    ) -> Result<bool, CmdStatus> {
        let srq = self.srqs.get_mut(&srqn).filter(|srq| srq.spec.kind == kind).ok_or(CmdStatus::BadRes)?;
        let below = srq.posted(memory).unwrap_or(0) < limit;
        srq.spec.limit = if below { 0 } else { limit };
        Ok(below)
    }

    /// Takes the oldest posted WQE; `None` if there is none.
    pub(in crate::engine) fn pop(&mut self, memory: &dyn HostMemory, srqn: u32) -> Option<Result<SrqElement, SrqFailed>> {
        let srq = self.srqs.get_mut(&srqn)?;
        if srq.failed {
            return Some(Err(SrqFailed { first: false }));
        }
        let Some(posted) = srq.posted(memory) else { return Some(Err(srq.fail())) };
        let left = posted.checked_sub(1)?;
        let index = srq.head;
        let mut bytes = vec![0; srq.ring.stride()];
        if u32::from(index) >= srq.ring.entries() || srq.ring.read(memory, u32::from(index), &mut bytes).is_err() {
            return Some(Err(srq.fail()));
        }
        srq.taken = srq.taken.wrapping_add(1);
        if let Some(link) = View::<WqeSrqNextSeg>::new(&bytes) {
            srq.head = link.get(WqeSrqNextSeg::NEXT_WQE_INDEX) as u16;
        }
        let below_limit = left < srq.spec.limit;
        if below_limit {
            srq.spec.limit = 0;
        }
        Some(Ok(SrqElement { index, pd: srq.spec.pd, segments: bytes.split_off(LINK), below_limit }))
    }
}

impl Srq {
    fn fail(&mut self) -> SrqFailed {
        self.failed = true;
        SrqFailed { first: true }
    }

    /// WQEs posted and not taken; `None` if the doorbell record cannot be read.
    pub(in crate::engine) fn posted(&self, memory: &dyn HostMemory) -> Option<u16> {
        let record: [u8; 4] = read_array(memory, self.spec.dbr_addr).ok()?;
        Some((u32::from_be_bytes(record) as u16).wrapping_sub(self.taken))
    }
}
