//! `bareverbs vm`: boots a Debian guest with simulated devices, for a shell or a command of the user; `vm shell` is another shell in it.
//!
//! QEMU, the kernel and the tools are packages of Debian, which scripts in Python fetch and put together (`hosted/vm`). This program
//! checks the options, unpacks the scripts and becomes the interpreter.

use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, anyhow};
use clap::Parser as _;
use serde::Serialize;

use crate::args::UsageError;
use crate::cli::Cli;

pub mod args;
pub mod scripts;

use args::{VmArgs, VmCommand};

/// Exit status after an error of `bareverbs vm` itself: those below may be the command's.
pub const ERROR: u8 = 125;

/// What the scripts get.
#[derive(Debug, Serialize)]
struct Request<'a> {
    #[serde(flatten)]
    args: &'a VmArgs,
    /// This program, which serves the devices.
    bareverbs: &'a str,
    /// Folder of Debian packages.
    packages: &'a str,
    /// Folder of initial file systems.
    images: &'a str,
}

/// Returns whether a command line is one of `bareverbs vm`.
pub fn is_meant(mut arguments: impl Iterator<Item = impl AsRef<OsStr>>) -> bool {
    arguments.nth(1).is_some_and(|word| word.as_ref() == "vm")
}

/// Boots the guest. Returns only if it cannot be started: this process becomes that of the scripts, and ends with their status.
///
/// # Errors
/// The machine is not x86-64, has no Python, or the scripts cannot be unpacked; [`UsageError`] after a wrong option.
pub fn run(mut args: VmArgs) -> Result<ExitCode> {
    if let Some(VmCommand::Shell(shell)) = &args.command {
        let (folder, _) = unpack_scripts()?;
        return become_scripts(&folder, shell);
    }
    if args.guests > 1 && args.run.is_none() {
        return Err(UsageError::new("--guests 2 has no terminal for two shells: give a command with --run").into());
    }
    if !cfg!(target_arch = "x86_64") {
        return Err(anyhow!("the guest's QEMU is a program for x86-64, and this machine is {}", env::consts::ARCH));
    }
    args.devices = args.devices.or(Some(if args.guests > 1 { 1 } else { 2 }));
    if args.ethernet && !args.serve.iter().any(|option| option == "--ethernet") {
        args.serve.push("--ethernet".into());
    }
    check_server_options(&args.serve)?;
    let (folder, cache) = unpack_scripts()?;
    let packages = env::var_os("BAREVERBS_LINUX_CACHE").filter(|path| !path.is_empty());
    let packages = packages.map_or_else(|| Ok(cache.join("packages")), std::path::absolute)?;
    let program = env::current_exe().context("the path of this program")?;
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| anyhow!("{}: not UTF-8", path.display()));
    let request = Request {
        args: &args,
        bareverbs: &text(&program)?,
        packages: &text(&packages)?,
        images: &text(&cache.join("images"))?,
    };
    become_scripts(&folder, &request)
}

/// Unpacks the scripts; returns their folder, and that of all that is kept.
fn unpack_scripts() -> Result<(PathBuf, PathBuf)> {
    let cache = scripts::cache(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))
        .ok_or_else(|| anyhow!("no folder for what is downloaded: set HOME or XDG_CACHE_HOME to an absolute path"))?;
    let folder = scripts::unpack(&cache).with_context(|| format!("scripts in {}", cache.display()))?;
    Ok((folder, cache))
}

/// Becomes the process of the scripts; returns only if there is no interpreter.
fn become_scripts(folder: &Path, request: &impl Serialize) -> Result<ExitCode> {
    let error = Command::new("python3").arg("-B").arg(folder.join(scripts::MAIN)).arg(serde_json::to_string(request)?).exec();
    if error.kind() == ErrorKind::NotFound {
        return Err(anyhow!(
            "no python3 in PATH; Python 3.10 or later is needed: apt-get install python3 (Fedora: dnf install python3)"
        ));
    }
    Err(anyhow!(error).context("python3"))
}

/// Refuses options that the server would refuse, before anything is downloaded.
fn check_server_options(options: &[String]) -> Result<(), UsageError> {
    let line =
        ["bareverbs", "sim", "serve", "--socket", "/", "--control"].into_iter().chain(options.iter().map(String::as_str));
    match Cli::try_parse_from(line) {
        Ok(_) => Ok(()),
        Err(error) => {
            let said = error.to_string();
            let reason = said.lines().next().unwrap_or_default().trim_start_matches("error: ");
            Err(UsageError::new(format!("options behind --: {reason} (bareverbs sim serve --help)")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_of_the_server_are_refused_early() {
        let check = |words: &[&str]| check_server_options(&words.iter().map(|word| (*word).into()).collect::<Vec<_>>());
        assert!(check(&["--managed", "--loss", "1"]).is_ok());
        let refused = check(&["--no-such-option"]).unwrap_err().to_string();
        assert!(refused.contains("--no-such-option"), "{refused}");
        assert!(check(&["--loss", "200"]).is_err());
        // The scripts have it already.
        assert!(check(&["--control"]).is_err() && check(&["--control=/tmp/x"]).is_err());
    }

    #[test]
    fn the_command_line_is_known_by_its_first_word() {
        assert!(is_meant(["bareverbs", "vm", "--x"].iter()));
        assert!(!is_meant(["bareverbs"].iter()) && !is_meant(["bareverbs", "sim", "vm"].iter()));
    }
}
