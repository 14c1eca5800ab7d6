//! Executes the steps of a plan.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Paths of modprobe, which is often not in the PATH of users other than root.
const MODPROBE_PATHS: [&str; 3] = ["modprobe", "/sbin/modprobe", "/usr/sbin/modprobe"];

/// Executes actions on the machine. Tests implement it with a simulated kernel.
pub trait Actor {
    /// Writes a value to a file of the kernel.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    fn write(&mut self, path: &Path, value: &str) -> io::Result<()>;

    /// Loads a module of the kernel.
    ///
    /// # Errors
    ///
    /// If it cannot be loaded.
    fn load_module(&mut self, name: &str) -> Result<(), RunError>;

    /// Sleeps for `time` while an effect is awaited.
    fn pause(&mut self, time: Duration) {
        thread::sleep(time);
    }

    /// Returns whether the user has requested to stop.
    fn stopped(&self) -> bool {
        false
    }
}

/// Why a module was not loaded. The text does not repeat the command, which [`super::BindError`] contains.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// There is no modprobe.
    Missing {
        /// Name of the module.
        module: String,
    },
    /// modprobe could not be started.
    NotStarted {
        /// Why.
        cause: io::Error,
    },
    /// modprobe failed.
    Failed {
        /// Name of the module.
        module: String,
        /// Its standard error.
        said: String,
    },
    /// The root folder is not that of this machine, so that there is no kernel to load a module into.
    OtherRoot {
        /// Name of the module.
        module: String,
    },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { module } => {
                write!(f, "modprobe is not installed (package kmod): load {module} by other means, `insmod` for one")
            }
            Self::NotStarted { cause } => write!(f, "modprobe could not be started: {cause}"),
            Self::Failed { said, .. } if said.is_empty() => f.write_str("it failed and printed no reason"),
            Self::Failed { said, .. } => f.write_str(&said.replace("modprobe: ", "")),
            Self::OtherRoot { module } => write!(f, "{module} is not loaded for a folder that is not this machine's root"),
        }
    }
}

impl std::error::Error for RunError {}

/// Executes actions on this machine.
#[derive(Clone, Debug, Default)]
pub struct System {
    stop: Arc<AtomicBool>,
    other_root: bool,
}

impl System {
    /// Creates an actor that stops when `stop` is set; the steps before are then undone.
    pub fn new(stop: Arc<AtomicBool>) -> Self {
        Self { stop, other_root: false }
    }

    /// Refuses to load modules: for a root folder of another machine.
    #[must_use]
    pub fn without_modules(self) -> Self {
        Self { other_root: true, ..self }
    }
}

impl Actor for System {
    fn write(&mut self, path: &Path, value: &str) -> io::Result<()> {
        // A single write(2): the kernel takes the bytes of one call as a value.
        fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(format!("{value}\n").as_bytes())
    }

    fn load_module(&mut self, name: &str) -> Result<(), RunError> {
        if self.other_root {
            return Err(RunError::OtherRoot { module: name.into() });
        }
        modprobe(&MODPROBE_PATHS, name)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn modprobe(places: &[&str], name: &str) -> Result<(), RunError> {
    for place in places {
        match Command::new(place).arg(name).stdin(Stdio::null()).output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(RunError::NotStarted { cause }),
            Ok(done) if done.status.success() => return Ok(()),
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr).trim().replace('\n', "; ");
                return Err(RunError::Failed { module: name.into(), said });
            }
        }
    }
    Err(RunError::Missing { module: name.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_failing_modprobe_is_an_error() {
        let missing = modprobe(&["/nowhere/modprobe"], "vfio-pci").unwrap_err();
        assert!(missing.to_string().contains("not installed (package kmod): load vfio-pci"), "{missing}");
        let failed = modprobe(&["/nowhere/modprobe", "false"], "vfio-pci").unwrap_err();
        assert_eq!(failed.to_string(), "it failed and printed no reason");
        // Writes to standard error.
        let failed = modprobe(&["ls"], "/nowhere/module").unwrap_err().to_string();
        assert!(failed.starts_with("ls: ") && !failed.contains('\n'), "{failed}");
        assert!(modprobe(&["true"], "vfio-pci").is_ok());
    }

    #[test]
    fn a_value_goes_out_in_one_line_and_into_files_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("driver_override");
        let mut system = System::default();
        assert_eq!(system.write(&path, "x").unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "(null)\n").unwrap();
        system.write(&path, "vfio-pci").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "vfio-pci\n");
        system.write(&path, "").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "\n");
    }

    #[test]
    fn a_machine_of_a_folder_gets_no_modules_and_a_request_to_stop_is_seen() {
        let stop = Arc::new(AtomicBool::new(false));
        let mut system = System::new(stop.clone()).without_modules();
        let refused = system.load_module("vfio-pci").unwrap_err();
        assert_eq!(refused.to_string(), "vfio-pci is not loaded for a folder that is not this machine's root");
        assert!(!system.stopped());
        stop.store(true, Ordering::Relaxed);
        assert!(system.stopped());
    }

    #[test]
    fn a_modprobe_that_may_not_be_run_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("modprobe");
        fs::write(&path, "no program").unwrap();
        let refused = modprobe(&[path.to_str().unwrap()], "vfio-pci").unwrap_err();
        assert!(matches!(refused, RunError::NotStarted { .. }), "{refused}");
        assert!(refused.to_string().starts_with("modprobe could not be started: "), "{refused}");
    }

    /// An actor that does nothing else waits, and is not stopped.
    #[test]
    fn a_pause_takes_its_time() {
        struct Idle;
        impl Actor for Idle {
            fn write(&mut self, _: &Path, _: &str) -> io::Result<()> {
                Ok(())
            }
            fn load_module(&mut self, _: &str) -> Result<(), RunError> {
                Ok(())
            }
        }
        let start = std::time::Instant::now();
        Idle.pause(Duration::from_millis(5));
        assert!(start.elapsed() >= Duration::from_millis(5) && !Idle.stopped());
    }
}
