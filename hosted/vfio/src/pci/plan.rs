//! The steps that bind a function to vfio-pci or to its former driver: printed by a dry run, and executed as printed.

use std::fmt;
use std::path::PathBuf;

use super::address::Address;
use super::function::Function;
use super::sysfs::{Sysfs, text};

/// The driver through which user space accesses functions.
pub(crate) const VFIO_PCI: &str = "vfio-pci";

/// The kernel's own driver of mlx5 functions.
pub(crate) const MLX5_CORE: &str = "mlx5_core";

/// Steps, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps; none if nothing has to change.
    pub steps: Vec<Step>,
    /// The functions that are changed, with their state before.
    pub functions: Vec<(Address, Before)>,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The function that it changes; `None` for a module.
    pub address: Option<Address>,
    /// The action.
    pub action: Action,
    /// The reason.
    pub why: String,
    /// The expected effect.
    pub effect: Effect,
    /// Whether the plan continues if it fails.
    pub optional: bool,
}

/// The action of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes a value and a line feed to a file of the kernel.
    Write {
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
    },
    /// Loads a module of the kernel with modprobe.
    LoadModule {
        /// Its name.
        name: String,
    },
    /// Creates a file that records the former driver of a function.
    Remember {
        /// The file.
        path: PathBuf,
        /// Its content.
        text: String,
    },
    /// Removes that file.
    Forget {
        /// The file.
        path: PathBuf,
    },
}

/// The effect that a step must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None that can be observed.
    None,
    /// A function is bound to a driver, or to none.
    Bound {
        /// The function.
        address: Address,
        /// The driver.
        driver: Option<String>,
    },
    /// The kernel has a driver of PCI functions.
    DriverThere {
        /// The driver.
        driver: String,
    },
}

/// The former binding of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    /// Its driver; `None` if it was bound to none.
    pub driver: Option<String>,
    /// Its `driver_override`; `None` if none was set.
    pub driver_override: Option<String>,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { path, value } if value.is_empty() => write!(f, "echo > {}", path.display()),
            Self::Write { path, value } => write!(f, "echo {value} > {}", path.display()),
            Self::LoadModule { name } => write!(f, "modprobe {name}"),
            Self::Remember { path, text } => {
                let folder = path.parent().unwrap_or(path).display();
                write!(f, "mkdir -p {folder} && printf '{}' > {}", text.replace('\n', "\\n"), path.display())
            }
            Self::Forget { path } => write!(f, "rm {}", path.display()),
        }
    }
}

impl fmt::Display for Plan {
    /// Writes the plan as lines for a shell, with the reasons as comments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{}  # {}", step.action, step.why))
    }
}

impl Effect {
    /// Returns whether the effect has occurred.
    pub(crate) fn is_there(&self, sysfs: &Sysfs) -> bool {
        match self {
            Self::None => true,
            Self::Bound { address, driver } => {
                super::function(sysfs, *address).is_some_and(|function| function.driver == *driver)
            }
            Self::DriverThere { driver } => sysfs.driver(driver).exists(),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("nothing"),
            Self::Bound { address, driver: Some(driver) } => write!(f, "{address} bound to {driver}"),
            Self::Bound { address, driver: None } => write!(f, "{address} bound to no driver"),
            Self::DriverThere { driver } => write!(f, "driver {driver} in the kernel"),
        }
    }
}

impl Before {
    /// Returns the binding that the kernel chooses for an mlx5 function, which needs no record.
    pub(crate) fn native() -> Self {
        Self { driver: Some(MLX5_CORE.into()), driver_override: None }
    }

    pub(crate) fn of(function: &Function) -> Self {
        Self { driver: function.driver.clone(), driver_override: function.driver_override.clone() }
    }

    fn to_text(&self) -> String {
        let line = |name: &str, value: &Option<String>| format!("{name}={}\n", value.as_deref().unwrap_or(""));
        line("driver", &self.driver) + &line("driver_override", &self.driver_override)
    }

    /// Reads the record of a function's former binding.
    pub(crate) fn remembered(sysfs: &Sysfs, address: Address) -> Option<Self> {
        let text = text(&sysfs.memory(address))?;
        let value = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            found.filter(|value| !value.is_empty()).map(Into::into)
        };
        Some(Self { driver: value("driver"), driver_override: value("driver_override") })
    }
}

impl Plan {
    pub(crate) fn write(&mut self, address: Address, path: PathBuf, value: &str, why: String, effect: Effect) {
        let action = Action::Write { path, value: value.into() };
        self.steps.push(Step { address: Some(address), action, why, effect, optional: false });
    }

    fn load(&mut self, name: &str, why: &str, effect: Effect, optional: bool) {
        let same = |step: &Step| matches!(&step.action, Action::LoadModule { name: other } if other == name);
        if !self.steps.iter().any(same) {
            let action = Action::LoadModule { name: name.into() };
            self.steps.push(Step { address: None, action, why: why.into(), effect, optional });
        }
    }

    fn set_override(&mut self, sysfs: &Sysfs, address: Address, driver: Option<&str>) {
        let why = match driver {
            Some(driver) => format!("{driver} alone may have the function"),
            None => "any driver may have the function".into(),
        };
        self.write(address, sysfs.folder(address).join("driver_override"), driver.unwrap_or(""), why, Effect::None);
    }

    fn take_from(&mut self, sysfs: &Sysfs, address: Address, driver: &str) {
        let effect = Effect::Bound { address, driver: None };
        let why = format!("{driver} lets go of the function");
        self.write(address, sysfs.driver(driver).join("unbind"), &address.to_string(), why, effect);
    }

    /// Adds steps that load the missing modules of VFIO.
    pub(crate) fn modules(&mut self, sysfs: &Sysfs) {
        if !sysfs.driver(VFIO_PCI).exists() {
            self.load(
                VFIO_PCI,
                "the driver that hands functions to user space",
                Effect::DriverThere { driver: VFIO_PCI.into() },
                false,
            );
        }
        if !sysfs.module("vfio_iommu_type1").exists() {
            // Not every kernel has it: iommufd and POWER use other modules.
            self.load("vfio_iommu_type1", "DMA mappings of VFIO; not on every kernel", Effect::None, true);
        }
    }

    /// Adds the steps that bind the function to vfio-pci.
    pub(crate) fn bind(&mut self, sysfs: &Sysfs, function: &Function) {
        let address = function.address;
        let before = Before::of(function);
        if before != Before::native() {
            let action = Action::Remember { path: sysfs.memory(address), text: before.to_text() };
            let why = "what unbind puts back".into();
            self.steps.push(Step { address: Some(address), action, why, effect: Effect::None, optional: false });
        }
        if before.driver_override.as_deref() != Some(VFIO_PCI) {
            self.set_override(sysfs, address, Some(VFIO_PCI));
        }
        if let Some(driver) = &before.driver {
            self.take_from(sysfs, address, driver);
        }
        let effect = Effect::Bound { address, driver: Some(VFIO_PCI.into()) };
        let why = "the kernel looks for a driver: vfio-pci".into();
        self.write(address, sysfs.pci("drivers_probe"), &address.to_string(), why, effect);
        self.functions.push((address, before));
    }

    /// Adds the steps that restore the former binding of the function. With `forget`, its record is removed.
    pub(crate) fn restore(&mut self, sysfs: &Sysfs, function: &Function, before: &Before, forget: bool) {
        let address = function.address;
        let now = Before::of(function);
        let mut only = now.driver_override.as_deref();
        if let Some(driver) = now.driver.as_deref().filter(|driver| Some(*driver) != before.driver.as_deref()) {
            self.take_from(sysfs, address, driver);
        }
        if let Some(driver) = before.driver.as_deref().filter(|driver| Some(*driver) != now.driver.as_deref()) {
            // The override must not exclude that driver.
            let wanted = before.driver_override.as_deref().filter(|only| *only == driver);
            if only != wanted && (wanted.is_some() || only != Some(driver)) {
                self.set_override(sysfs, address, wanted);
                only = wanted;
            }
            let effect = Effect::Bound { address, driver: Some(driver.into()) };
            let why = format!("{driver} takes the function");
            if sysfs.driver(driver).exists() {
                self.write(address, sysfs.driver(driver).join("bind"), &address.to_string(), why, effect);
            } else {
                self.load(driver, "the driver that had the function", Effect::DriverThere { driver: driver.into() }, false);
                self.write(address, sysfs.pci("drivers_probe"), &address.to_string(), why, effect);
            }
        }
        if only != before.driver_override.as_deref() {
            self.set_override(sysfs, address, before.driver_override.as_deref());
        }
        let path = sysfs.memory(address);
        if forget && path.exists() {
            let action = Action::Forget { path };
            let why = "it is put back".into();
            self.steps.push(Step { address: Some(address), action, why, effect: Effect::None, optional: false });
        }
        if self.steps.iter().any(|step| step.address == Some(address)) {
            self.functions.push((address, now));
        }
    }
}
