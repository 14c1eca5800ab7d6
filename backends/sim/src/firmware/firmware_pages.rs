//! Firmware pages: memory that the host gives to the firmware (MANAGE_PAGES).
//!
//! The firmware keeps its objects in it. Each page is filled with a pattern when it is given and checked when it goes back. So
//! a host that writes to a page that it gave away is detected.

use core::time::Duration;
use std::collections::BTreeSet;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{CmdStatus, FIRMWARE_PAGE};

use crate::audit::Finding;
use crate::config::PageDemand;
use crate::step::StepContext;

/// Bytes of firmware memory that objects take.
pub(crate) mod cost {
    /// Queue pair.
    pub(crate) const QP: u64 = 1024;
    /// Completion queue.
    pub(crate) const CQ: u64 = 256;
    /// Event queue.
    pub(crate) const EQ: u64 = 256;
    /// Shared receive queue.
    pub(crate) const SRQ: u64 = 256;
    /// Receive queue of an Ethernet port.
    pub(crate) const RQ: u64 = 256;
    /// Send queue of an Ethernet port.
    pub(crate) const SQ: u64 = 256;
    /// Memory key, without its translations.
    pub(crate) const MKEY: u64 = 128;
}

/// Time without a new object, an object's end or a page that moved, after which spare pages go back.
///
/// A driver that unloads destroys its objects and then its event queues, one command after the other. A request to take pages
/// back must not be in progress by then: Linux refuses its own MANAGE_PAGES while it destroys the event queues. It takes that
/// for a dead firmware and frees pages that the firmware still has (`reclaim_pages_cmd` of mlx5_core since Linux 6.18 and the
/// stable kernels of October 2025).
const QUIET: Duration = Duration::from_secs(5);

/// Bytes of this process that a page takes in the list, with slack.
pub(crate) const PAGE_MEMORY: u64 = 32;

/// Maximum pages that one command moves and one request asks for: each is filled or checked, which takes a microsecond. Before
/// INIT_HCA a command may move all that was asked for then, as Linux does.
const MAX_MOVED: u32 = 4096;

/// Maximum pages that one request offers back: a host needs milliseconds to free that many, also behind an IOMMU.
const MAX_OFFERED: u32 = 256;

/// Firmware memory.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    demand: PageDemand,
    /// Device addresses of the pages.
    held: BTreeSet<u64>,
    /// Bytes that objects take.
    used: u64,
    /// Pages that were asked for by event and neither given nor refused.
    asked: u32,
    /// Pages that the host was asked to take back by event.
    offered: u32,
    /// Whether an object or a page came or went since the last look.
    changed: bool,
    /// When that was seen last.
    quiet_since: Instant,
    refused: bool,
    lost: usize,
    /// The queue pairs that the driver has asked for, as a power of two.
    log_max_qp: u8,
}

fn pattern(addr: u64) -> [u8; FIRMWARE_PAGE] {
    let mut page = [0; FIRMWARE_PAGE];
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        let value = (addr ^ (i as u64) << 52).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ addr;
        for (to, from) in word.iter_mut().zip(value.to_le_bytes()) {
            *to = from;
        }
    }
    page
}

impl Pages {
    pub(crate) fn new(demand: PageDemand, log_max_qp: u8) -> Self {
        Self {
            demand,
            log_max_qp,
            held: BTreeSet::new(),
            used: 0,
            asked: 0,
            offered: 0,
            changed: true,
            quiet_since: Instant::from_nanos(0),
            refused: false,
            lost: 0,
        }
    }

    /// Returns the number of pages that the firmware has.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns the bytes of this process that the list of pages takes.
    pub(crate) fn memory(&self) -> u64 {
        self.held.len() as u64 * PAGE_MEMORY
    }

    /// Returns the number of pages that the firmware still had when the device was disabled.
    pub(crate) fn lost(&self) -> usize {
        self.lost
    }

    fn held32(&self) -> u32 {
        u32::try_from(self.held.len()).unwrap_or(u32::MAX)
    }

    /// Returns the pages missing before the capabilities can be read.
    pub(crate) fn missing_to_boot(&self) -> u32 {
        self.demand.boot.saturating_sub(self.held32())
    }

    /// Takes the queue pairs that the driver asks for, as a power of two: the demand before INIT_HCA goes with them.
    pub(crate) fn set_log_max_qp(&mut self, log_max_qp: u8) {
        self.log_max_qp = log_max_qp;
    }

    /// Returns the pages asked before INIT_HCA.
    fn init(&self) -> u32 {
        self.demand.init_for(self.log_max_qp)
    }

    /// Returns the pages asked before objects are created.
    fn first(&self) -> u32 {
        self.demand.boot.saturating_add(self.init())
    }

    /// Returns the maximum pages that one command moves.
    pub(crate) fn max_moved(&self) -> u32 {
        self.first().saturating_add(self.spare_to_ask()).max(MAX_MOVED)
    }

    /// Returns the pages missing before INIT_HCA.
    pub(crate) fn missing_to_init(&self) -> u32 {
        self.first().saturating_sub(self.held32())
    }

    /// Returns the pages to ask for before INIT_HCA beyond those that are needed.
    fn spare_to_ask(&self) -> u32 {
        if self.demand.surplus { self.demand.chunk } else { 0 }
    }

    /// Returns the pages to ask for before INIT_HCA.
    pub(crate) fn wanted_to_init(&self) -> u32 {
        self.first().saturating_add(self.spare_to_ask()).saturating_sub(self.held32())
    }

    /// Returns the pages that a host may take back before INIT_HCA, as a negative number.
    pub(crate) fn surplus(&self) -> i32 {
        let surplus = self.held32().saturating_sub(self.first());
        if self.demand.surplus { -i32::try_from(surplus).unwrap_or(i32::MAX) } else { 0 }
    }

    /// Returns the pages that objects take.
    fn objects(&self) -> u32 {
        u32::try_from(self.used.div_ceil(FIRMWARE_PAGE as u64)).unwrap_or(u32::MAX)
    }

    /// Returns the pages in use. A fifth of the first pages is the firmware's own; the rest is room for objects. If they go with
    /// the number of queue pairs, they are all its own: tables for what might be created.
    fn in_use(&self) -> u32 {
        let own = if self.demand.log_max_qp.is_some() { self.init() } else { self.init() / 5 };
        self.demand.boot.saturating_add(own).saturating_add(self.objects())
    }

    /// Returns the room for an object of `bytes`, taken now; refused only when the host has refused to give more.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<(), CmdStatus> {
        self.changed = true;
        self.used = self.used.saturating_add(bytes);
        if self.demand.chunk != 0 && self.refused && self.in_use() > self.held32() {
            self.used = self.used.saturating_sub(bytes);
            return Err(CmdStatus::NoResources);
        }
        Ok(())
    }

    /// The room of an object is free again.
    pub(crate) fn unreserve(&mut self, bytes: u64) {
        self.changed = true;
        self.used = self.used.saturating_sub(bytes);
    }

    /// Returns the number of pages beyond those in use, negative if some are missing.
    fn free(&self) -> i64 {
        i64::from(self.held32()) - i64::from(self.in_use())
    }

    /// Returns the pages that could go back: of those asked for in operation, all but a chunk of free ones.
    fn spare(&self) -> u32 {
        let free = u32::try_from(self.free()).unwrap_or(0);
        free.saturating_sub(self.demand.chunk).min(self.held32().saturating_sub(self.first()))
    }

    /// Returns whether enough are spare that the host is asked to take some back, once it is quiet. A page or two are not worth
    /// an event.
    fn has_spare(&self) -> bool {
        let chunk = self.demand.chunk;
        let enough = chunk.div_ceil(2).max(1);
        chunk != 0 && self.offered == 0 && self.asked == 0 && self.spare() >= enough
    }

    /// Returns when spare pages are offered back if nothing happens before.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.has_spare().then(|| self.quiet_since.after(QUIET))
    }

    /// Returns the pages to ask for (positive) or to offer back (negative) by event now. One request of each kind is in
    /// progress at most.
    pub(crate) fn request(&mut self, now: Instant) -> Option<i32> {
        if core::mem::take(&mut self.changed) {
            self.quiet_since = now;
        }
        let chunk = i64::from(self.demand.chunk);
        if chunk == 0 {
            return None;
        }
        let free = self.free();
        if free < chunk / 2 && self.asked == 0 && !self.refused {
            let pages = (chunk - free).clamp(1, MAX_MOVED.into());
            self.asked = pages as u32;
            return Some(pages as i32);
        }
        if self.next_due()? > now {
            return None;
        }
        Some(self.offer())
    }

    /// Returns the pages to ask for (positive) or to offer back (negative) to a host that asks.
    pub(crate) fn answer(&mut self, now: Instant) -> i32 {
        if self.demand.surplus && self.has_spare() {
            return self.offer();
        }
        self.request(now).unwrap_or(0)
    }

    fn offer(&mut self) -> i32 {
        self.offered = self.spare().min(MAX_OFFERED);
        -(self.offered as i32)
    }

    /// Returns the host gives a page.
    pub(crate) fn give(&mut self, ctx: &mut StepContext<'_>, addr: u64) -> Result<(), CmdStatus> {
        if !addr.is_multiple_of(FIRMWARE_PAGE as u64) {
            return Err(CmdStatus::BadParam);
        }
        if self.held.contains(&addr) {
            ctx.audit.report(Finding::PageGivenTwice { addr });
            return Err(CmdStatus::BadParam);
        }
        if ctx.memory.write(addr, &pattern(addr)).is_err() {
            ctx.note(|| format!("the page given at {addr:#x} is no memory"));
            return Err(CmdStatus::BadParam);
        }
        self.held.insert(addr);
        self.changed = true;
        self.asked = self.asked.saturating_sub(1);
        self.refused = false;
        Ok(())
    }

    /// Returns a page that was just given, unchecked: the rest of its command was refused.
    pub(crate) fn give_up(&mut self, addr: u64) {
        if self.held.remove(&addr) {
            self.asked = self.asked.saturating_add(1);
        }
    }

    /// Forgets the pages, as a reset does.
    pub(crate) fn forget(&mut self) {
        self.forget_objects();
        self.held.clear();
    }

    /// The host has no pages to give.
    pub(crate) fn refuse(&mut self) {
        self.asked = 0;
        self.refused = true;
    }

    /// Returns the host takes back at most `most` pages, and fewer than it asks for if those are many; `all` if none is in use
    /// any more.
    pub(crate) fn reclaim(&mut self, ctx: &mut StepContext<'_>, most: u32, all: bool) -> Vec<u64> {
        let spare = if all { self.held32() } else { self.held32().saturating_sub(self.in_use()) };
        let mut taken = Vec::new();
        for _ in 0..most.min(spare).min(self.max_moved()) {
            let Some(addr) = self.held.pop_last() else { break };
            Self::inspect(ctx, addr);
            taken.push(addr);
        }
        self.offered = 0;
        self.changed = true;
        taken
    }

    fn inspect(ctx: &mut StepContext<'_>, addr: u64) {
        let mut page = [0; FIRMWARE_PAGE];
        if ctx.memory.read(addr, &mut page).is_ok() && page != pattern(addr) {
            ctx.audit.report(Finding::FirmwarePageTouched { addr });
        }
    }

    /// No object is left.
    pub(crate) fn forget_objects(&mut self) {
        self.used = 0;
        self.asked = 0;
        self.offered = 0;
        self.refused = false;
    }

    /// Counts the pages that the firmware still has as lost: the device is disabled.
    pub(crate) fn disable(&mut self, ctx: &mut StepContext<'_>) {
        self.forget_objects();
        self.lost = self.held.len();
        // No more of them than a command moves.
        for addr in core::mem::take(&mut self.held).into_iter().take(MAX_MOVED as usize) {
            Self::inspect(ctx, addr);
        }
    }
}
