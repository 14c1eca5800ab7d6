//! The bytes of this process that a device may take.

use bareverbs_mlx5_spec::CmdStatus;

/// Bytes that every device takes: queues of frames and datagrams, device memory, multicast groups, findings of the
/// audit, numbers of destroyed keys. All of them are bounded.
pub(crate) const FIXED: u64 = 16 << 20;

/// Bytes that a device may take, and those that it takes.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    limit: u64,
    /// What objects take.
    objects: u64,
    /// What is kept beside objects, also when all of them are gone: the list of firmware pages.
    pages: u64,
}

impl MemoryBudget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, objects: 0, pages: 0 }
    }

    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Returns the bytes taken.
    pub(crate) fn used(&self) -> u64 {
        FIXED.saturating_add(self.objects).saturating_add(self.pages)
    }

    /// Returns whether that many bytes more may be taken.
    pub(crate) fn has_room(&self, more: u64) -> bool {
        self.used().saturating_add(more) <= self.limit
    }

    /// Takes bytes for an object.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), CmdStatus> {
        if !self.has_room(bytes) {
            return Err(CmdStatus::NoResources);
        }
        self.objects += bytes;
        Ok(())
    }

    /// Notes that an object takes `now` instead of `before`, whether there is room or not.
    pub(crate) fn change(&mut self, before: u64, now: u64) {
        self.objects = self.objects.saturating_sub(before).saturating_add(now);
    }

    /// Sets the bytes of the list of firmware pages.
    pub(crate) fn set_pages(&mut self, bytes: u64) {
        self.pages = bytes;
    }

    /// Removes all objects from the account.
    pub(crate) fn forget_objects(&mut self) {
        self.objects = 0;
    }
}
