//! `bareverbs bind` and `bareverbs unbind`: bind functions to vfio-pci, and back to their drivers.

use std::fmt::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bareverbs_vfio::pci::{self, BindError, Bound, Failure, Need, Options, Plan, Step, Sysfs, System, Unbound};
use serde::{Serialize, Serializer};

use crate::cli::{BindArgs, ChangeArgs, UnbindArgs};
use crate::devices::{ObstacleRow, below};
use crate::stop::on_ctrl_c;
use crate::sudo_user::sudo_user;

/// A step of a plan in JSON.
#[derive(Debug, Serialize)]
struct StepRow {
    address: Option<String>,
    command: String,
    why: String,
    optional: bool,
}

/// A function that was bound or unbound, in JSON.
#[derive(Debug, Serialize)]
struct Row {
    address: String,
    changed: bool,
    was: Option<String>,
    driver: Option<String>,
    iommu_group: Option<u32>,
    obstacles: Vec<ObstacleRow>,
}

/// Rows of the JSON array.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Rows {
    Steps(Vec<StepRow>),
    Functions(Vec<Row>),
}

/// The steps of a dry run, or the functions that were bound or unbound.
#[derive(Debug)]
pub struct Changes {
    text: String,
    rows: Rows,
}

impl From<&Plan> for Changes {
    fn from(plan: &Plan) -> Self {
        let row = |step: &Step| StepRow {
            address: step.address.map(|address| address.to_string()),
            command: step.action.to_string(),
            why: step.why.clone(),
            optional: step.optional,
        };
        let text = if plan.steps.is_empty() { "# nothing to do\n".into() } else { plan.to_string() };
        Self { text, rows: Rows::Steps(plan.steps.iter().map(row).collect()) }
    }
}

impl Serialize for Changes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rows.serialize(serializer)
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Binds functions to vfio-pci, or returns the steps.
///
/// # Errors
///
/// A function must not be bound, or a step failed; the former state is restored.
pub fn bind(args: &BindArgs) -> Result<Changes> {
    let (sysfs, mut options) = (Sysfs::at(&args.change.place.root), options(&args.change));
    options.force = args.force;
    let addresses = &args.change.addresses;
    if args.change.dry_run {
        return Ok(Changes::from(&pci::plan_bind(&sysfs, addresses, &options)?));
    }
    let bound = pci::bind_with(&sysfs, addresses, &options, &mut system(&sysfs)?)?;
    let process = sudo_user(&args.change.place.root);
    let need = Need { memlock: args.memory, ..Need::default() };
    let mut rows = Vec::new();
    let mut text = String::new();
    for Bound { address, before, group } in bound {
        let function = pci::function(&sysfs, address).with_context(|| format!("{address} is gone"))?;
        let obstacles = pci::obstacles(&sysfs, &function, &process, &need);
        let was = match &before {
            Some(before) => format!("was bound to {}", before.driver.as_deref().unwrap_or("nothing")),
            None => "as before".into(),
        };
        let group = group.map_or_else(String::new, |group| format!(", IOMMU group {group}"));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{address}: bound to vfio-pci ({was}){group}");
        text += &below(&function, &obstacles);
        rows.push(Row {
            address: address.to_string(),
            changed: before.is_some(),
            was: before.map_or(function.driver.clone(), |before| before.driver),
            driver: function.driver,
            iommu_group: function.group.map(|group| group.number),
            obstacles: obstacles.iter().map(Into::into).collect::<Vec<_>>(),
        });
    }
    Ok(Changes { text, rows: Rows::Functions(rows) })
}

/// Binds functions to their former drivers, or returns the steps.
///
/// # Errors
///
/// A function must not be unbound, or a step failed; the former state is restored.
pub fn unbind(args: &UnbindArgs) -> Result<Changes> {
    let (sysfs, mut options) = (Sysfs::at(&args.change.place.root), options(&args.change));
    options.force = args.force;
    let addresses = &args.change.addresses;
    if args.change.dry_run {
        return Ok(Changes::from(&pci::plan_unbind(&sysfs, addresses, &options)?));
    }
    let unbound = pci::unbind_with(&sysfs, addresses, &options, &mut system(&sysfs)?)?;
    let mut rows = Vec::new();
    let mut text = String::new();
    for Unbound { address, changed, driver } in unbound {
        let to = driver.as_deref().unwrap_or("nothing");
        let _ = match changed {
            true => writeln!(text, "{address}: given back, bound to {to}"),
            false => writeln!(text, "{address}: was not bound to vfio-pci, but to {to}"),
        };
        let was = if changed { Some("vfio-pci".into()) } else { driver.clone() };
        rows.push(Row { address: address.to_string(), changed, was, driver, iommu_group: None, obstacles: Vec::new() });
    }
    Ok(Changes { text, rows: Rows::Functions(rows) })
}

/// Returns whether Ctrl-C ended a change. The error then also describes the restoration.
pub fn was_interrupted(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(BindError::Step(step)) if matches!(step.failure, Failure::Interrupted))
}

fn options(args: &ChangeArgs) -> Options {
    Options { force: false, group: args.group, timeout: Duration::from_secs(args.wait) }
}

/// Returns the actor for a machine, which stops at Ctrl-C; the former state is then restored.
fn system(sysfs: &Sysfs) -> Result<System> {
    let system = System::new(on_ctrl_c()?);
    Ok(if sysfs.is_machine() { system } else { system.without_modules() })
}
