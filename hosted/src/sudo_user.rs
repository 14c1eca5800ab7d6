//! The user of a card: the user who called sudo, or that of this process.

use std::env;
use std::fs;
use std::path::Path;

use bareverbs_vfio::pci::{Access, Process};

/// Returns the rights of the user who called sudo, according to `SUDO_UID`, `SUDO_GID` and `SUDO_USER` (sudo(8)); without sudo those
/// of this process. `root` is the folder whose `etc/group` lists the groups.
pub fn sudo_user(root: &Path) -> Process {
    let id = |name| env::var(name).ok()?.parse().ok();
    match (id("SUDO_UID"), id("SUDO_GID")) {
        (Some(uid), Some(gid)) if uid != 0 => {
            let name = env::var("SUDO_USER").unwrap_or_default();
            let members = fs::read_to_string(root.join("etc/group")).unwrap_or_default();
            let gids = [gid].into_iter().chain(groups(&members, &name)).collect();
            // Without a shell of the user, the limit is that of this process, which sudo has not changed.
            let memlock = memlock_of(uid).unwrap_or_else(|| Process::current().memlock);
            Process { access: Access::User { uid, gids }, memlock, ipc_lock: false }
        }
        _ => Process::current(),
    }
}

/// Returns the groups of a user from the text of group(5): `name:password:gid:user,user`.
fn groups(text: &str, user: &str) -> Vec<u32> {
    let gid = |line: &str| match line.split(':').collect::<Vec<_>>().as_slice() {
        [_, _, gid, users] if users.split(',').any(|name| !name.is_empty() && name == user) => gid.parse().ok(),
        _ => None,
    };
    text.lines().filter_map(gid).collect()
}

/// Returns `RLIMIT_MEMLOCK` of the closest ancestor of this process that runs as `uid`: the shell that called sudo.
fn memlock_of(uid: u32) -> Option<Option<u64>> {
    // proc_pid_status(5): the parent, and the real UID as the first of four.
    let read = |pid: &str, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let mut pid = "self".to_string();
    loop {
        let status = read(&pid, "status")?;
        let word = |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next();
        if word("Uid:")?.parse() == Ok(uid) {
            return memlock(&read(&pid, "limits")?);
        }
        pid = word("PPid:").filter(|parent| *parent != "0")?.to_string();
    }
}

/// Returns the soft limit from the text of `/proc/PID/limits`; `Some(None)` for no limit.
fn memlock(limits: &str) -> Option<Option<u64>> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_that_list_the_user() {
        let text = "root:x:0:\nvfio:x:995:ada,bob\nkvm:x:104:adam\nrdma:!:996:bob,ada\nbroken\nodd:x:y:ada\n";
        assert_eq!(groups(text, "ada"), [995, 996]);
        assert!(groups(text, "").is_empty() && groups(text, "eve").is_empty());
    }

    #[test]
    fn the_soft_limit_counts() {
        let limits =
            |soft: &str| format!("Limit  Soft Limit  Hard Limit  Units\nMax locked memory         {soft} unlimited bytes\n");
        assert_eq!(memlock(&limits("8388608")), Some(Some(8 << 20)));
        assert_eq!(memlock(&limits("unlimited")), Some(None));
        assert_eq!(memlock("Max processes 1 1 processes\n"), None);
    }

    #[test]
    fn the_shell_is_an_ancestor() {
        use std::os::unix::fs::MetadataExt as _;
        let uid = fs::metadata("/proc/self").unwrap().uid();
        assert_eq!(memlock_of(uid), Some(Process::current().memlock));
        assert_eq!(memlock_of(u32::MAX - 2), None);
    }
}
