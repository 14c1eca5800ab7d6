//! The scripts that boot guests: part of this program, unpacked where Python can run them.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::{fs, io, process};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../vm/", $name)))),*]
    };
}

/// Every file of `hosted/vm`: its name there, and its contents.
const FILES: &[(&str, &str)] = files![
    "guest/cases/shell.sh",
    "guest/init",
    "guest/lib.sh",
    "guest/sessions.sh",
    "guests/__init__.py",
    "guests/additions.py",
    "guests/alternatives.py",
    "guests/command.py",
    "guests/elf.py",
    "guests/errors.py",
    "guests/guest.py",
    "guests/image.py",
    "guests/kernel_log.py",
    "guests/kvm.py",
    "guests/machine.py",
    "guests/monitor.py",
    "guests/packages.py",
    "guests/processes.py",
    "guests/progress.py",
    "guests/server.py",
    "guests/sessions.py",
    "guests/shares.py",
    "guests/stop.py",
    "vm.py",
];

/// The one that is started.
pub const MAIN: &str = "vm.py";

/// Returns the folder of what `bareverbs vm` keeps, from the values of `XDG_CACHE_HOME` and `HOME`; `None` if neither says where.
pub fn cache(xdg_cache_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    // A relative path is to be ignored (XDG Base Directory Specification).
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let base = xdg_cache_home.and_then(absolute).or_else(|| home.and_then(absolute).map(|home| home.join(".cache")))?;
    Some(base.join("bareverbs/vm"))
}

/// Unpacks the scripts into a folder of `cache` that is named after their contents, and returns it. Files that are there already are
/// compared and left alone.
///
/// # Errors
/// A file cannot be written.
pub fn unpack(cache: &Path) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    FILES.hash(&mut hasher);
    let folder = cache.join(format!("{:016x}", hasher.finish()));
    for (name, contents) in FILES {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|found| found == contents.as_bytes()) {
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        // Another process may be running it.
        let fresh = path.with_extension(process::id().to_string());
        fs::write(&fresh, contents)?;
        fs::rename(&fresh, &path)?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { files_below(&path, found) } else { found.push(path) }
        }
    }

    #[test]
    fn every_script_is_part_of_the_program() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vm");
        let mut found = Vec::new();
        files_below(&folder, &mut found);
        let mut names: Vec<_> = found.iter().map(|path| path.strip_prefix(&folder).unwrap().to_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn a_damaged_script_is_written_anew() {
        let cache = tempfile::tempdir().unwrap();
        let folder = unpack(cache.path()).unwrap();
        fs::write(folder.join(MAIN), "damaged").unwrap();
        fs::remove_file(folder.join("guest/init")).unwrap();
        assert_eq!(unpack(cache.path()).unwrap(), folder);
        for (name, contents) in FILES {
            assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), *contents, "{name}");
        }
    }

    #[test]
    fn the_cache_is_where_the_user_keeps_such_files() {
        let found = |xdg: &str, home: &str| {
            let given = |text: &str| (!text.is_empty()).then(|| text.into());
            cache(given(xdg), given(home)).map(|path| path.to_str().unwrap().to_owned())
        };
        assert_eq!(found("/x", "/home/u").as_deref(), Some("/x/bareverbs/vm"));
        assert_eq!(found("", "/home/u").as_deref(), Some("/home/u/.cache/bareverbs/vm"));
        assert_eq!(found("relative", "/home/u").as_deref(), Some("/home/u/.cache/bareverbs/vm"));
        assert_eq!(found("", ""), None);
    }
}
