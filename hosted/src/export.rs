//! `bareverbs command export`: the firmware commands of a recording or of a kernel log as a table.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};
use bareverbs_decode::command_table::HEADING;
use bareverbs_decode::kernel_log;
use bareverbs_serve::record::{self, Line};

use crate::args::UsageError;
use crate::cli::ExportArgs;
use crate::output;

/// Prints the commands of one device of a recording, or of a kernel log.
///
/// # Errors
/// The file cannot be read or is neither of them, [`UsageError`] unless exactly one device is chosen, or standard output cannot be
/// written.
pub fn run(args: &ExportArgs) -> Result<ExitCode> {
    let name = args.recording.display();
    let text = std::fs::read_to_string(&args.recording).with_context(|| name.to_string())?;
    let (device, commands) = if text.starts_with("recording ") {
        let lines = record::parse(&text).map_err(|error| anyhow!("{name}: {error}"))?;
        let device = device(&lines, args.device.as_deref())?;
        (device.to_string(), record::commands(&lines, device))
    } else {
        let commands = kernel_log::parse(&text, args.device.as_deref()).map_err(|error| anyhow!("{name}: {error}"))?;
        if commands.is_empty() {
            let what = "is no recording of sim serve, and no kernel log in which mlx5_core's debug messages have commands";
            return Err(anyhow!("{name} {what} of this device (boot with: dyndbg=\"module mlx5_core +p\")"));
        }
        (args.device.clone().unwrap_or_else(|| "of a kernel log".into()), commands)
    };
    let rows = commands.into_iter().map(|exchange| format!("{exchange}\n"));
    let table = format!("# device {device}\n{HEADING}\n");
    output::write(&rows.fold(table, |table, row| table + &row))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of the chosen device, or of the only one.
fn device<'a>(lines: &'a [Line], wanted: Option<&str>) -> Result<&'a str, UsageError> {
    let names: BTreeSet<&str> = lines.iter().map(|line| line.device.as_str()).filter(|name| !name.is_empty()).collect();
    let chosen = match wanted {
        Some(wanted) => names.get(wanted).copied(),
        None => names.first().copied().filter(|_| names.len() == 1),
    };
    let all = || names.iter().copied().collect::<Vec<_>>().join(", ");
    chosen.ok_or_else(|| match wanted {
        _ if names.is_empty() => UsageError::new("the recording has no device"),
        Some(wanted) => UsageError::new(format!("the recording has no device {wanted}, but {}", all())),
        None => UsageError::new(format!("the recording has several devices: choose one with --device ({})", all())),
    })
}
