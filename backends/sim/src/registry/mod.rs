//! All objects of the device: owner, references in both directions, memory that each takes of this process and of the host, and
//! how many of a kind there may be.
//!
//! Tables elsewhere keep what an object is and does. Nothing searches them for who uses an object: that is counted here, so
//! that a command costs the same however many objects there are.

mod id_allocator;
mod memory_budget;
mod owner;
mod resource;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bareverbs_mlx5_spec::CmdStatus;

use crate::limits::Limits;
use crate::registers::bar0::{DEVICE_MEMORY_START, FIRST_UAR};
use id_allocator::IdAllocator;
use memory_budget::MemoryBudget;

pub(crate) use bareverbs_mlx5_spec::ObjectKind;
#[cfg(test)]
pub(crate) use memory_budget::FIXED;
pub(crate) use owner::Owner;
pub(crate) use resource::Resource;
use resource::memory_of;
pub(crate) use resource::{RESPONSE_MEMORY, response_places};

/// User contexts, and user memory objects, at most, as powers of two.
pub(crate) const LOG_MAX_CONTEXTS: u32 = 10;
pub(crate) const LOG_MAX_UMEMS: u32 = 16;
/// XRC domains, at most, as a power of two; as many transport domains and sets of counters.
pub(crate) const LOG_MAX_XRCDS: u32 = 8;
/// Receive and send queues of an Ethernet port, TIRs and TISs, at most, as a power of two.
pub(crate) const LOG_MAX_NIC_QUEUES: u32 = 16;
/// Tables of receive queues, and flow tables, likewise.
pub(crate) const LOG_MAX_NIC_TABLES: u32 = 12;
/// Sets of counters (`max_qp_cnt`): their numbers have eight bits, and 0 is for queue pairs without one.
pub(crate) const MAX_COUNTER_SETS: u32 = (1 << LOG_MAX_XRCDS) - 1;
/// Counters of flow table entries, as a power of two (`max_flow_counter`).
pub(crate) const LOG_MAX_FLOW_COUNTERS: u32 = 12;
/// Least number of a send queue for frames. Numbers of queue pairs are lower.
pub(crate) const FIRST_SQN: u32 = 1 << 23;
/// Least number of a queue pair: those below belong to the management queue pairs on the wire.
pub(crate) const FIRST_QPN: u32 = 2;
/// Least index of a key: key 0x100 ends receive lists.
const FIRST_MKEY: u32 = 2;

/// What the registry records of an object.
#[derive(Clone, Debug, Default)]
struct Entry {
    owner: Owner,
    /// Objects that refer to it. An object that does so twice counts twice.
    references: u32,
    /// Bytes of this process.
    memory: u64,
    /// Bytes of firmware memory.
    room: u64,
    /// What it refers to, and how often: a flow table does so for each destination of its rules.
    uses: BTreeMap<Resource, u32>,
    /// It was given back while something refers to it, and ends with the last reference.
    ends: bool,
}

/// The objects of a device.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    objects: BTreeMap<Resource, Entry>,
    /// Free numbers of each kind.
    numbers: [IdAllocator; ObjectKind::COUNT],
    /// How often the lists of bound windows name a key. They name it by number, whether it exists or not.
    named: BTreeMap<Resource, u32>,
    budget: MemoryBudget,
    /// Reads and atomics that a queue pair takes at a time.
    reads: usize,
    /// Least index of a key after a reset.
    first_mkey: u32,
}

/// Returns the numbers of a kind, by what QUERY_HCA_CAP says.
fn numbers(kind: ObjectKind, limits: &Limits) -> IdAllocator {
    let below = |log: u8, first: u32| IdAllocator::new(first, (1_u32 << log.min(24)).saturating_sub(first));
    match kind {
        // Device memory is behind them.
        ObjectKind::Uar => IdAllocator::new(FIRST_UAR, (DEVICE_MEMORY_START / 4096) as u32 - FIRST_UAR),
        ObjectKind::Pd => below(limits.log_max_pd.min(23), 1),
        ObjectKind::Xrcd | ObjectKind::TransportDomain | ObjectKind::CounterSet => below(LOG_MAX_XRCDS as u8, 1),
        // A doorbell has eight bits for the number.
        ObjectKind::Eq => IdAllocator::new(1, (1 << limits.log_max_eq.min(8)).min(255)),
        ObjectKind::Cq => below(limits.log_max_cq, 1),
        ObjectKind::Qp => below(limits.log_max_qp.min(23), FIRST_QPN),
        ObjectKind::Srq => below(limits.log_max_srq, 1),
        ObjectKind::Mkey => below(limits.log_max_mkey, FIRST_MKEY),
        ObjectKind::Umem => below(LOG_MAX_UMEMS as u8, 1),
        ObjectKind::UserContext => below(LOG_MAX_CONTEXTS as u8, 1),
        ObjectKind::Tis | ObjectKind::Tir | ObjectKind::Rq => below(LOG_MAX_NIC_QUEUES as u8, 1),
        ObjectKind::Rqt | ObjectKind::FlowTable => below(LOG_MAX_NIC_TABLES as u8, 1),
        ObjectKind::FlowCounter => below(LOG_MAX_FLOW_COUNTERS as u8, 1),
        // A doorbell does not tell a send queue from a queue pair.
        ObjectKind::Sq => IdAllocator::new(FIRST_SQN, 1 << LOG_MAX_NIC_QUEUES),
        // Its numbers are places.
        ObjectKind::DeviceMemory => IdAllocator::new(0, 0),
    }
}

/// Returns what a command gets that asks for one object more than there may be.
///
/// Linux names the two statuses "limits exceeded" (ENOMEM) and "no resources" (EAGAIN); no published text says which a card
/// gives.
fn exhausted(kind: ObjectKind) -> CmdStatus {
    match kind {
        ObjectKind::Cq | ObjectKind::Qp | ObjectKind::Srq | ObjectKind::Mkey | ObjectKind::DeviceMemory => {
            CmdStatus::NoResources
        }
        _ => CmdStatus::LimErr,
    }
}

impl Registry {
    /// No objects. `memory_limit` is in bytes.
    pub(crate) fn new(limits: &Limits, memory_limit: u64) -> Self {
        use ObjectKind as Kind;
        let kinds = [
            Kind::Uar,
            Kind::Pd,
            Kind::Xrcd,
            Kind::TransportDomain,
            Kind::CounterSet,
            Kind::Eq,
            Kind::Cq,
            Kind::Qp,
            Kind::Srq,
            Kind::Mkey,
            Kind::Umem,
            Kind::DeviceMemory,
            Kind::UserContext,
            Kind::Tis,
            Kind::Tir,
            Kind::Rqt,
            Kind::Rq,
            Kind::Sq,
            Kind::FlowTable,
            Kind::FlowCounter,
        ];
        Self {
            objects: BTreeMap::new(),
            numbers: kinds.map(|kind| numbers(kind, limits)),
            named: BTreeMap::new(),
            budget: MemoryBudget::new(memory_limit),
            reads: 1 << limits.log_max_reads.min(7),
            first_mkey: FIRST_MKEY,
        }
    }

    fn memory_of(&self, kind: ObjectKind) -> u64 {
        memory_of(kind, self.reads)
    }

    /// Forgets all objects.
    pub(crate) fn clear(&mut self, limits: &Limits) {
        let mut budget = self.budget.clone();
        budget.forget_objects();
        let first_mkey = self.first_mkey;
        *self = Self { budget, ..Self::new(limits, 0) };
        self.start_mkeys_at(first_mkey);
    }

    /// Lets the keys that are made next have indices from this one on, now and after each reset.
    pub(crate) fn start_mkeys_at(&mut self, index: u32) {
        self.first_mkey = index;
        if let Some(numbers) = self.numbers.get_mut(ObjectKind::Mkey as usize) {
            numbers.start_at(index);
        }
    }

    /// Bytes of this process that the device may take.
    pub(crate) fn set_memory_limit(&mut self, limit: u64) {
        self.budget.set_limit(limit);
    }

    /// Returns the bytes of this process that the device takes.
    pub(crate) fn memory_used(&self) -> u64 {
        self.budget.used()
    }

    /// Returns whether the device may take that many bytes more.
    pub(crate) fn has_memory(&self, more: u64) -> bool {
        self.budget.has_room(more)
    }

    /// Sets the bytes of the list of firmware pages.
    pub(crate) fn set_page_memory(&mut self, bytes: u64) {
        self.budget.set_pages(bytes);
    }

    /// Objects of a kind.
    pub(crate) fn count(&self, kind: ObjectKind) -> usize {
        self.numbers.get(kind as usize).map_or(0, IdAllocator::len)
    }

    /// Returns whether there is such an object.
    pub(crate) fn contains(&self, id: Resource) -> bool {
        self.objects.get(&id).is_some_and(|entry| !entry.ends)
    }

    /// Lets an object be there that a test only names.
    #[cfg(test)]
    pub(crate) fn insert_named(&mut self, id: Resource) {
        self.objects.insert(id, Entry { memory: self.memory_of(id.kind), ..Entry::default() });
    }

    /// Registers an object of the kernel that keeps `memory` bytes of lists and refers to `uses`; its number. Refused if one of
    /// those does not exist, if the device has too many of the kind, or if its memory is used up.
    pub(crate) fn create(&mut self, kind: ObjectKind, memory: u64, uses: Vec<Resource>) -> Result<u32, CmdStatus> {
        self.create_except(None, kind, memory, uses)
    }

    /// Same as [`Registry::create`], with another number than `avoided`.
    pub(crate) fn create_except(
        &mut self,
        avoided: Option<u32>,
        kind: ObjectKind,
        memory: u64,
        uses: Vec<Resource>,
    ) -> Result<u32, CmdStatus> {
        self.check_quota(kind, memory, &uses)?;
        let numbers = self.numbers.get_mut(kind as usize).ok_or(CmdStatus::IntErr)?;
        let mut number = numbers.allocate();
        if let Some(first) = number.filter(|first| avoided == Some(*first)) {
            number = numbers.allocate();
            numbers.free(first);
        }
        let number = number.ok_or(exhausted(kind))?;
        self.insert(Resource::new(kind, number), memory, uses)?;
        Ok(number)
    }

    /// Same as [`Registry::create`], for an object whose number is given.
    pub(crate) fn create_at(&mut self, id: Resource, memory: u64, uses: Vec<Resource>) -> Result<(), CmdStatus> {
        self.check_quota(id.kind, memory, &uses)?;
        self.insert(id, memory, uses)
    }

    fn check_quota(&self, kind: ObjectKind, memory: u64, uses: &[Resource]) -> Result<(), CmdStatus> {
        if uses.iter().any(|used| !self.contains(*used)) {
            return Err(CmdStatus::BadRes);
        }
        if self.budget.has_room(self.memory_of(kind).saturating_add(memory)) { Ok(()) } else { Err(CmdStatus::NoResources) }
    }

    fn insert(&mut self, id: Resource, memory: u64, uses: Vec<Resource>) -> Result<(), CmdStatus> {
        let memory = self.memory_of(id.kind).saturating_add(memory);
        self.budget.take(memory)?;
        let mut entry = Entry { owner: Owner::KERNEL, memory, ..Entry::default() };
        for used in uses {
            self.refer(used);
            *entry.uses.entry(used).or_default() += 1;
        }
        self.objects.insert(id, entry);
        Ok(())
    }

    /// Returns whether something refers to the object.
    pub(crate) fn is_busy(&self, id: Resource) -> bool {
        self.objects.get(&id).is_some_and(|entry| entry.references > 0) || self.named.contains_key(&id)
    }

    /// Ends an object to which nothing refers. Returns the firmware memory that it had.
    pub(crate) fn destroy(&mut self, id: Resource) -> Result<u64, CmdStatus> {
        if !self.contains(id) {
            return Err(CmdStatus::BadRes);
        }
        if self.is_busy(id) {
            // Linux 6.1 gives back the page of a killed program before its completion queues, and cards take that. The counters
            // of a queue pair it gives back before the queue pair (`rdma_counter_unbind_qp`).
            if !matches!(id.kind, ObjectKind::Uar | ObjectKind::CounterSet) {
                return Err(CmdStatus::BadResState);
            }
            let entry = self.objects.get_mut(&id).ok_or(CmdStatus::BadRes)?;
            entry.ends = true;
            let (owner, room) = (std::mem::take(&mut entry.owner), entry.room);
            self.leave(owner);
            return Ok(room);
        }
        let (owner, room) = self.remove(id);
        self.leave(owner);
        Ok(room)
    }

    /// Removes an object and its references. Returns its owner and the firmware memory that it had.
    fn remove(&mut self, id: Resource) -> (Owner, u64) {
        let Entry { owner, memory, room, uses, .. } = self.objects.remove(&id).unwrap_or_default();
        self.budget.change(memory, 0);
        for (used, times) in uses {
            self.unrefer(used, times);
        }
        if let Some(numbers) = self.numbers.get_mut(id.kind as usize) {
            numbers.free(id.number);
        }
        (owner, room)
    }

    fn refer(&mut self, id: Resource) {
        if let Some(entry) = self.objects.get_mut(&id) {
            entry.references = entry.references.saturating_add(1);
        }
    }

    /// Ends that many references.
    fn unrefer(&mut self, id: Resource, times: u32) {
        let Some(entry) = self.objects.get_mut(&id) else { return };
        entry.references = entry.references.saturating_sub(times);
        if entry.references == 0 && entry.ends {
            // Its context is destroyed already.
            self.remove(id);
        }
    }

    /// Returns whether `user` refers to `used`.
    pub(crate) fn refers(&self, user: Resource, used: Resource) -> bool {
        self.objects.get(&user).is_some_and(|entry| entry.uses.contains_key(&used))
    }

    /// Returns whether there is such an object, or one that ends when nothing refers to it any more.
    pub(crate) fn is_registered(&self, id: Resource) -> bool {
        self.objects.contains_key(&id)
    }

    /// Lets an object refer to `new` where it referred to `old`. Nothing changes if `new` does not exist.
    pub(crate) fn change_use(&mut self, id: Resource, old: Option<Resource>, new: Option<Resource>) -> Result<(), CmdStatus> {
        if new.is_some_and(|new| !self.is_registered(new)) {
            return Err(CmdStatus::BadRes);
        }
        let entry = self.objects.get_mut(&id).ok_or(CmdStatus::BadRes)?;
        let left = old.filter(|old| {
            let Some(times) = entry.uses.get_mut(old) else { return false };
            *times -= 1;
            if *times == 0 {
                entry.uses.remove(old);
            }
            true
        });
        if let Some(new) = new {
            *entry.uses.entry(new).or_default() += 1;
            // The new one first: it may be the old one.
            self.refer(new);
        }
        if let Some(left) = left {
            self.unrefer(left, 1);
        }
        Ok(())
    }

    /// A list that requests change names a key.
    pub(crate) fn name(&mut self, id: Resource) {
        let count = self.named.entry(id).or_default();
        *count = count.saturating_add(1);
    }

    /// Ends one [`Registry::name`].
    pub(crate) fn unname(&mut self, id: Resource) {
        if let Some(count) = self.named.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.named.remove(&id);
            }
        }
    }

    /// Notes what the lists of an object take now, whether there is room or not.
    pub(crate) fn set_memory(&mut self, id: Resource, bytes: u64) {
        let now = self.memory_of(id.kind).saturating_add(bytes);
        if let Some(entry) = self.objects.get_mut(&id) {
            self.budget.change(entry.memory, now);
            entry.memory = now;
        }
    }

    /// Notes the firmware memory of an object.
    pub(crate) fn set_room(&mut self, id: Resource, bytes: u64) {
        if let Some(entry) = self.objects.get_mut(&id) {
            entry.room = bytes;
        }
    }

    /// Gives an object of the kernel to a user context, which does not end while it has objects.
    pub(crate) fn set_owner(&mut self, id: Resource, owner: Owner) {
        if let Some(entry) = self.objects.get_mut(&id) {
            let before = std::mem::replace(&mut entry.owner, owner);
            self.leave(before);
            if !owner.is_kernel() {
                self.refer(Resource::user_context(owner.uid()));
            }
        }
    }

    fn leave(&mut self, owner: Owner) {
        if !owner.is_kernel() {
            self.unrefer(Resource::user_context(owner.uid()), 1);
        }
    }

    /// Returns whether commands may come for this owner; those of the kernel always may.
    pub(crate) fn is_present(&self, owner: Owner) -> bool {
        owner.is_kernel() || self.contains(Resource::user_context(owner.uid()))
    }

    /// Returns whether the kernel made an object.
    pub(crate) fn is_kernels(&self, id: Resource) -> bool {
        self.objects.get(&id).is_some_and(|entry| entry.owner.is_kernel())
    }

    /// Returns whether a command for `owner` may end an object: one that is shared only the kernel ends.
    pub(crate) fn may_destroy(&self, owner: Owner, id: Resource) -> bool {
        owner.is_kernel() || self.objects.get(&id).is_some_and(|entry| entry.owner == owner)
    }

    /// Returns whether a command for `owner` may name an object. One that does not exist may be named by the kernel.
    pub(crate) fn may_name(&self, owner: Owner, id: Resource) -> bool {
        owner.is_kernel() || self.objects.get(&id).is_some_and(|entry| owner.may_name_of(entry.owner))
    }
}
