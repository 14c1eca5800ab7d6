//! Binds functions to vfio-pci, and back to the drivers that they were bound to.

use std::fmt;
use std::fs;
use std::io;
use std::time::Duration;

use super::address::Address;
use super::apply::{Actor, RunError, System};
use super::check::{self, Need};
use super::function::{self, Function};
use super::group::Member;
use super::obstacle::Obstacle;
use super::plan::{Action, Before, Effect, Plan, Step, VFIO_PCI};
use super::sysfs::Sysfs;
use super::usage::{self, Usage};

/// Interval between checks for the effect of a step.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Options of binding and unbinding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bind a function even if the machine uses it, or if it is that of a BlueField's own processor. Unbind one that has virtual
    /// functions.
    pub force: bool,
    /// Also bind the other members of the IOMMU group that are bound to drivers.
    pub group: bool,
    /// Timeout for the effect of one step. A driver needs seconds to start a card.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { force: false, group: false, timeout: Duration::from_secs(60) }
    }
}

/// A function that is bound to vfio-pci.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The function.
    pub address: Address,
    /// Its former driver; `None` if it was bound to vfio-pci already.
    pub before: Option<Before>,
    /// Its IOMMU group.
    pub group: Option<u32>,
}

/// A function that is not bound to vfio-pci.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unbound {
    /// The function.
    pub address: Address,
    /// Whether it was changed.
    pub changed: bool,
    /// Its driver now.
    pub driver: Option<String>,
}

/// Why functions could not be bound or unbound.
#[derive(Debug)]
#[non_exhaustive]
pub enum BindError {
    /// There is no such function.
    NoFunction {
        /// Its address.
        address: Address,
    },
    /// VFIO could not use it.
    Refused {
        /// Why.
        obstacle: Obstacle,
    },
    /// The machine uses it.
    Used {
        /// The function.
        address: Address,
        /// The uses.
        usages: Vec<Usage>,
    },
    /// A step failed.
    Step(Box<StepError>),
}

/// A step that failed, and the result of undoing those before it.
#[derive(Debug)]
pub struct StepError {
    /// The step.
    pub step: Step,
    /// Why.
    pub failure: Failure,
    /// Functions whose former state was restored.
    pub put_back: Vec<Address>,
    /// Functions whose former state could not be restored, and why.
    pub not_put_back: Vec<(Address, String)>,
}

/// Why a step failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The kernel refused it.
    Io(io::Error),
    /// A module could not be loaded.
    Module(RunError),
    /// It had no effect within the timeout.
    NoEffect {
        /// The effect.
        wanted: Effect,
        /// The state instead.
        driver: Option<String>,
        /// The timeout.
        waited: Duration,
    },
    /// The user requested to stop.
    Interrupted,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
                write!(f, "{cause}: only root may do this (sudo bareverbs …)")
            }
            Self::Io(cause) => cause.fmt(f),
            Self::Module(cause) => cause.fmt(f),
            Self::NoEffect { wanted, driver, waited } => {
                write!(f, "no {wanted} after {} s", waited.as_secs_f32())?;
                match (wanted, driver) {
                    (Effect::Bound { .. }, Some(driver)) => write!(f, ", it is bound to {driver} (dmesg may say why)"),
                    (Effect::Bound { .. }, None) => write!(f, ", it is bound to no driver (dmesg may say why)"),
                    _ => Ok(()),
                }
            }
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFunction { address } => {
                write!(f, "there is no PCI function {address} (`bareverbs devices` lists those that can be used)")
            }
            Self::Refused { obstacle } => {
                write!(f, "{obstacle}; remedy: {}", obstacle.remedy())?;
                if obstacle.is_of_the_port() { f.write_str("; --force binds it for another program") } else { Ok(()) }
            }
            Self::Used { address, usages } => {
                let usages: Vec<_> = usages.iter().map(ToString::to_string).collect();
                write!(f, "the machine uses {address}: {}; --force takes it all the same", usages.join(", "))
            }
            Self::Step(error) => {
                let StepError { step, failure, put_back, not_put_back } = error.as_ref();
                write!(f, "{}: {failure}", step.action)?;
                let list = |addresses: &[Address]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                match (put_back.as_slice(), not_put_back.as_slice()) {
                    ([], []) => write!(f, "; nothing was changed"),
                    (back, lost) => {
                        if !back.is_empty() {
                            write!(f, "; put back as before: {}", list(back))?;
                        }
                        lost.iter().try_for_each(|(address, why)| write!(f, "; NOT put back: {address} ({why})"))
                    }
                }
            }
        }
    }
}

// Without a source: the message contains the causes already.
impl std::error::Error for BindError {}

/// Returns the steps that bind `addresses` to vfio-pci; none if they are bound to it already.
///
/// # Errors
///
/// One of the functions does not exist, cannot be used over VFIO, or is in use and `options` do not force it.
pub fn plan_bind(sysfs: &Sysfs, addresses: &[Address], options: &Options) -> Result<Plan, BindError> {
    let mut plan = Plan::default();
    let targets = targets(sysfs, addresses, options, |member| member.blocks())?;
    let wanted: Vec<_> = targets.iter().filter(|(function, _)| function.driver.as_deref() != Some(VFIO_PCI)).collect();
    if !wanted.is_empty() {
        plan.modules(sysfs);
    }
    for (function, asked) in wanted {
        let mut obstacles = if *asked { check::hardware(sysfs, function, &Need::default()) } else { Vec::new() };
        // Other programs drive the function of a BlueField's own processor.
        obstacles.retain(|obstacle| !(options.force && obstacle.is_of_the_port()));
        if let Some(obstacle) = obstacles.into_iter().next().or_else(|| check::iommu(sysfs, function)) {
            return Err(BindError::Refused { obstacle });
        }
        let usages = usage::of(sysfs, function);
        if !usages.is_empty() && !options.force {
            return Err(BindError::Used { address: function.address, usages });
        }
        plan.bind(sysfs, function);
    }
    Ok(plan)
}

/// Returns the steps that bind each of `addresses` to its former driver.
///
/// # Errors
///
/// One of the functions does not exist, or a process has it open, for which the kernel would wait. Or it is neither an mlx5
/// function nor bound by [`bind`], or has virtual functions and `options` do not force it.
pub fn plan_unbind(sysfs: &Sysfs, addresses: &[Address], options: &Options) -> Result<Plan, BindError> {
    let mut plan = Plan::default();
    for (function, asked) in targets(sysfs, addresses, options, |member| member.driver.as_deref() == Some(VFIO_PCI))? {
        let address = function.address;
        let remembered = Before::remembered(sysfs, address);
        if remembered.is_none() && function.model.is_none() {
            // A function that is not mlx5 and was not bound by this program is left alone.
            if !asked {
                continue;
            }
            let obstacle = Obstacle::NotMlx5 { address, vendor: function.vendor, device: function.device };
            return Err(BindError::Refused { obstacle });
        }
        if function.driver.as_deref() != Some(VFIO_PCI) {
            // Another program has unbound it: removes the record of the binding.
            let mut before = Before::of(&function);
            before.driver_override = before.driver_override.filter(|driver| driver != VFIO_PCI);
            plan.restore(sysfs, &function, &before, true);
            continue;
        }
        let holders = usage::vfio_holders(sysfs, address);
        if let Some(group) = function.group.as_ref().filter(|_| !holders.is_empty()) {
            return Err(BindError::Refused { obstacle: Obstacle::InUse { group: group.number, holders } });
        }
        // vfio-pci removes them when it lets the function go, also from processes that have them open.
        if function.virtual_functions > 0 && !options.force {
            let usages = vec![Usage::VirtualFunctions { count: function.virtual_functions }];
            return Err(BindError::Used { address, usages });
        }
        plan.restore(sysfs, &function, &remembered.unwrap_or_else(Before::native), true);
    }
    // Kept until all are unbound: after a failure, the state of the first one is restored from it.
    let (forget, mut steps): (Vec<_>, Vec<_>) =
        plan.steps.into_iter().partition(|step| matches!(step.action, Action::Forget { .. }));
    steps.extend(forget);
    plan.steps = steps;
    Ok(plan)
}

/// Returns the requested functions (`true`), and the members of their groups that are bound with them (`false`).
fn targets(
    sysfs: &Sysfs,
    addresses: &[Address],
    options: &Options,
    comes_along: impl Fn(&Member) -> bool,
) -> Result<Vec<(Function, bool)>, BindError> {
    let mut found: Vec<(Function, bool)> = Vec::new();
    for &address in addresses {
        let function = function::function(sysfs, address).ok_or(BindError::NoFunction { address })?;
        if !found.iter().any(|(known, _)| known.address == address) {
            found.push((function, true));
        }
    }
    let groups: Vec<_> = found.iter().filter_map(|(function, _)| function.group.clone()).collect();
    for member in groups.iter().flat_map(|group| &group.others).filter(|member| options.group && comes_along(member)) {
        let function = member.address().and_then(|address| function::function(sysfs, address));
        if let Some(function) = function.filter(|new| !found.iter().any(|(known, _)| known.address == new.address)) {
            found.push((function, false));
        }
    }
    Ok(found)
}

/// Binds functions to vfio-pci: all of them or, after a failure, none.
///
/// # Errors
///
/// As [`plan_bind`], or a step failed; the error says whether the former state was restored.
pub fn bind(sysfs: &Sysfs, addresses: &[Address], options: &Options) -> Result<Vec<Bound>, BindError> {
    bind_with(sysfs, addresses, options, &mut System::default())
}

/// Binds functions as [`bind`] does, with another [`Actor`].
///
/// # Errors
///
/// As [`bind`].
pub fn bind_with(
    sysfs: &Sysfs,
    addresses: &[Address],
    options: &Options,
    actor: &mut impl Actor,
) -> Result<Vec<Bound>, BindError> {
    let plan = plan_bind(sysfs, addresses, options)?;
    apply(sysfs, &plan, options, actor, true)?;
    let before = |address| plan.functions.iter().find(|(changed, _)| *changed == address).map(|(_, before)| before.clone());
    let along = plan.functions.iter().map(|(address, _)| *address);
    Ok(once(addresses, along)
        .into_iter()
        .map(|address| {
            let group = function::function(sysfs, address).and_then(|function| function.group);
            Bound { address, before: before(address), group: group.map(|group| group.number) }
        })
        .collect())
}

/// Binds functions to their former drivers.
///
/// # Errors
///
/// As [`plan_unbind`], or a step failed; the error says whether the former state was restored.
pub fn unbind(sysfs: &Sysfs, addresses: &[Address], options: &Options) -> Result<Vec<Unbound>, BindError> {
    unbind_with(sysfs, addresses, options, &mut System::default())
}

/// Unbinds functions as [`unbind`] does, with another [`Actor`].
///
/// # Errors
///
/// As [`unbind`].
pub fn unbind_with(
    sysfs: &Sysfs,
    addresses: &[Address],
    options: &Options,
    actor: &mut impl Actor,
) -> Result<Vec<Unbound>, BindError> {
    let plan = plan_unbind(sysfs, addresses, options)?;
    apply(sysfs, &plan, options, actor, false)?;
    let along = plan.functions.iter().map(|(address, _)| *address);
    Ok(once(addresses, along)
        .into_iter()
        .map(|address| {
            let changed = plan.functions.iter().any(|(other, _)| *other == address);
            Unbound { address, changed, driver: function::function(sysfs, address).and_then(|function| function.driver) }
        })
        .collect())
}

/// Returns each address once, in this order.
fn once(asked: &[Address], along: impl Iterator<Item = Address>) -> Vec<Address> {
    let mut all: Vec<Address> = Vec::new();
    for address in asked.iter().copied().chain(along) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// Executes a plan. With `forget`, restoring a function after a failure also removes the record of its former driver.
fn apply(sysfs: &Sysfs, plan: &Plan, options: &Options, actor: &mut impl Actor, forget: bool) -> Result<(), BindError> {
    let mut begun: Vec<Address> = Vec::new();
    for step in &plan.steps {
        begun.extend(step.address.filter(|address| !begun.contains(address)));
        let done = if actor.stopped() { Err(Failure::Interrupted) } else { perform(sysfs, step, options, actor) };
        match done {
            Ok(()) => {}
            Err(_) if step.optional => {}
            Err(failure) => {
                let (put_back, not_put_back) = put_back(sysfs, plan, &begun, options, actor, forget);
                return Err(BindError::Step(Box::new(StepError { step: step.clone(), failure, put_back, not_put_back })));
            }
        }
    }
    Ok(())
}

fn perform(sysfs: &Sysfs, step: &Step, options: &Options, actor: &mut impl Actor) -> Result<(), Failure> {
    act(&step.action, actor)?;
    let mut waited = Duration::ZERO;
    while !step.effect.is_there(sysfs) {
        if actor.stopped() {
            return Err(Failure::Interrupted);
        }
        if waited >= options.timeout {
            let driver = step.address.and_then(|address| function::function(sysfs, address)?.driver);
            return Err(Failure::NoEffect { wanted: step.effect.clone(), driver, waited });
        }
        actor.pause(CHECK_INTERVAL);
        waited += CHECK_INTERVAL;
    }
    Ok(())
}

fn act(action: &Action, actor: &mut impl Actor) -> Result<(), Failure> {
    match action {
        Action::Write { path, value } => actor.write(path, value).map_err(Failure::Io),
        Action::LoadModule { name } => actor.load_module(name).map_err(Failure::Module),
        Action::Remember { path, text } => {
            let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
            folder.and_then(|()| fs::write(path, text)).map_err(Failure::Io)
        }
        Action::Forget { path } => fs::remove_file(path).map_err(Failure::Io),
    }
}

/// Restores the changed functions after a failure, the last one first. Functions that need no step are in neither list.
fn put_back(
    sysfs: &Sysfs,
    plan: &Plan,
    begun: &[Address],
    options: &Options,
    actor: &mut impl Actor,
    forget: bool,
) -> (Vec<Address>, Vec<(Address, String)>) {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (address, before) in plan.functions.iter().rev().filter(|(address, _)| begun.contains(address)) {
        let Some(function) = function::function(sysfs, *address) else {
            failed.push((*address, "it is gone".into()));
            continue;
        };
        let mut back = Plan::default();
        back.restore(sysfs, &function, before, forget);
        // A further request to stop is ignored until the former state is restored.
        let mut actor = Unstoppable(&mut *actor);
        match back.steps.iter().try_for_each(|step| perform(sysfs, step, options, &mut actor).map_err(|why| (step, why))) {
            Ok(()) if back.steps.is_empty() => {}
            Ok(()) => done.push(*address),
            Err((step, why)) => failed.push((*address, format!("{}: {why}", step.action))),
        }
    }
    (done, failed)
}

struct Unstoppable<'a, A>(&'a mut A);

impl<A: Actor> Actor for Unstoppable<'_, A> {
    fn write(&mut self, path: &std::path::Path, value: &str) -> io::Result<()> {
        self.0.write(path, value)
    }

    fn load_module(&mut self, name: &str) -> Result<(), RunError> {
        self.0.load_module(name)
    }

    fn pause(&mut self, time: Duration) {
        self.0.pause(time);
    }
}
