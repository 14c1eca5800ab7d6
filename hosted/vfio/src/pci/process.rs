//! The rights of a process, and the processes that have a file open.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Access as Mode, AtFlags, CWD};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::sysfs::{Sysfs, names, text};

/// The rights of a process that is to use a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// How to check which files it may open.
    pub access: Access,
    /// Bytes of memory that it may lock (`RLIMIT_MEMLOCK`); `None` for no limit.
    pub memlock: Option<u64>,
    /// Whether the limit does not apply to it (`CAP_IPC_LOCK`).
    pub ipc_lock: bool,
}

/// How to check which files a process may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// By access(2), for this process.
    This,
    /// By owner and mode, for a user without capabilities.
    User {
        /// User.
        uid: u32,
        /// Groups.
        gids: Vec<u32>,
    },
}

impl Process {
    /// Returns the rights of this process.
    pub fn current() -> Self {
        let capable = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
        // VFIO does not accept a capability of a user namespace.
        let initial_namespace =
            fs::read_to_string("/proc/self/uid_map").map_or(true, |map| map.split_whitespace().eq(["0", "0", "4294967295"]));
        Self { access: Access::This, memlock: getrlimit(Resource::Memlock).current, ipc_lock: capable && initial_namespace }
    }

    /// Returns whether it may open a file for reading and writing.
    pub(crate) fn may_open(&self, path: &Path) -> bool {
        match &self.access {
            Access::This => rustix::fs::accessat(CWD, path, Mode::READ_OK | Mode::WRITE_OK, AtFlags::EACCESS).is_ok(),
            Access::User { uid, gids } => fs::metadata(path).is_ok_and(|file| {
                let shift = match () {
                    () if file.uid() == *uid => 6,
                    () if gids.contains(&file.gid()) => 3,
                    () => 0,
                };
                *uid == 0 || file.mode() >> shift & 0o6 == 0o6
            }),
        }
    }
}

/// A process that has a file open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process ID.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

/// Returns the processes that have a file open, as far as they are visible: to root all, to other users their own.
pub(crate) fn holders(sysfs: &Sysfs, path: &Path) -> Vec<Holder> {
    let has_open = |holder: &Holder| {
        let folder = sysfs.proc(&format!("{}/fd", holder.pid));
        names(&folder).iter().any(|name| fs::read_link(folder.join(name)).is_ok_and(|target| target == path))
    };
    processes(sysfs).into_iter().filter(has_open).collect()
}

/// Returns the processes of the machine, by number.
pub(crate) fn processes(sysfs: &Sysfs) -> Vec<Holder> {
    let name = |pid: u32| text(&sysfs.proc(&format!("{pid}/comm"))).unwrap_or_default();
    let pids = names(&sysfs.proc("")).into_iter().filter_map(|pid| pid.parse().ok());
    let mut found: Vec<_> = pids.map(|pid| Holder { pid, name: name(pid) }).collect();
    found.sort_by_key(|holder| holder.pid);
    found
}
