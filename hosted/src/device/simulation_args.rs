//! What simulated devices are like: options of all subcommands that use some.

use anyhow::{Result, bail};
use bareverbs_serve::ControlLine;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{Host, WorldConfig};
use clap::Args;

use crate::args::UsageError;
use crate::serve::option_values::{self, ProfileName};

/// Options of simulated devices.
#[derive(Clone, Debug, Default, Args)]
pub struct SimulationArgs {
    /// Simulated devices: the card that they are like: pages of the firmware, time until the port is active, limits.
    /// 'instant' demands little [default: simulated]
    #[arg(long, value_enum, value_name = "NAME")]
    pub profile: Option<ProfileName>,
    /// Simulated devices: their ports are Ethernet ports with RoCEv2 instead of InfiniBand ports
    #[arg(long)]
    pub ethernet: bool,
    /// Simulated devices: a fault to inject at the start, in the syntax of sim serve --control; may be repeated. Example:
    /// 'stick 1 0x102', so that the device with LID 1 never completes INIT_HCA. Simulated time then runs in steps of a
    /// microsecond, so that waits are visible
    #[arg(long = "fault", value_name = "LINE", value_parser = option_values::fault)]
    pub faults: Vec<ControlLine>,
}

impl SimulationArgs {
    /// Returns the configuration of the device with this LID.
    pub fn device(&self, lid: u16) -> DeviceConfig {
        let config = DeviceConfig::profile(self.profile.unwrap_or_default().0, lid);
        if self.ethernet { config.with_ethernet() } else { config }
    }

    /// Returns the configuration of the simulation. With faults, its time does not skip waits.
    pub fn world(&self, config: WorldConfig) -> WorldConfig {
        if self.faults.is_empty() { config } else { WorldConfig { max_step: config.step, ..config } }
    }

    /// Injects the faults of a device.
    pub fn arm(&self, host: &Host) {
        let lid = host.with_device(|device| device.config().lid);
        for line in self.faults.iter().filter(|line| line.lid == lid) {
            host.with_device(|device| line.act.change(device));
        }
    }

    /// Checks that each fault is of one of `count` simulated devices, whose LIDs begin with 1.
    ///
    /// # Errors
    /// There is no device with the LID of a fault: [`UsageError`].
    pub fn check(&self, count: u16) -> Result<()> {
        if let Some(line) = self.faults.iter().find(|line| !(1..=count).contains(&line.lid)) {
            let lids = if count == 1 { "the device has LID 1" } else { "the devices have LIDs 1 and 2" };
            bail!(UsageError::new(format!("--fault: there is no simulated device with LID {}; {lids}", line.lid)));
        }
        Ok(())
    }

    /// Checks that nothing of this is requested of a card.
    ///
    /// # Errors
    /// The command line has one: [`UsageError`].
    pub fn refuse(&self) -> Result<()> {
        if self.profile.is_some() {
            bail!(UsageError::new("--profile: a card is what it is, only simulated devices have profiles; leave it out"));
        }
        if self.ethernet {
            bail!(UsageError::new(
                "--ethernet: the kind of a card's port is a setting of the card (mstconfig, LINK_TYPE_P1); leave it out"
            ));
        }
        if !self.faults.is_empty() {
            bail!(UsageError::new("--fault: faults can be injected into simulated devices only; leave it out"));
        }
        Ok(())
    }
}
