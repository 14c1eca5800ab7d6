//! The driver on a simulated host.

use std::time::Duration;

use bareverbs::backend::Provider;
use bareverbs::storage::StorageView;
use bareverbs::{GidEntry, LinkLayer, PortAttr, Verbs};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{Host, SimPlatform};

use crate::Error;
use crate::error::failed;

/// How long a port may take to become active: training of the link, and a sweep of a subnet manager.
const PORT: Duration = Duration::from_secs(60);

/// Brings the device of `host` up, with tables of the caller, and waits for its port. An Ethernet port gets its link-local address
/// as GID 0. [`crate::Node`] does it with tables that it leaks; a program that makes thousands of hosts, as a fuzz target does, has
/// its own.
///
/// ```
/// use bareverbs::storage; // the macro
/// use bareverbs::storage::QpRings;
/// use bareverbs_mlx5::Mlx5;
/// use bareverbs_sim::in_process::{SimPlatform, World, WorldConfig};
/// use bareverbs_testing::{bring_up, driver_config};
///
/// let (_, host, _) = World::pair(WorldConfig::default());
/// let rings = QpRings::<64, 16>::new();
/// let mut tables = <storage![Mlx5<SimPlatform, 128>; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 1]>::new([rings.view()]);
/// let mut verbs = bring_up(&host, &driver_config(&host), &mut tables)?;
/// assert_eq!(verbs.query_port(1)?.lid.get(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The driver cannot bring the device up, or the port is not active after a minute.
pub fn bring_up<'s, const PAGES: usize>(
    host: &Host,
    config: &Config,
    tables: impl Into<StorageView<'s, Mlx5<SimPlatform, PAGES>>>,
) -> Result<Verbs<'s, Mlx5<SimPlatform, PAGES>>, Error> {
    let machine = host.machine(Mlx5::<SimPlatform, PAGES>::ARENA);
    let driver = Mlx5::bring_up(machine, config).map_err(|(error, _)| failed(error))?;
    let mut verbs = Verbs::new(driver, tables);
    await_port(host, &mut verbs)?;
    let PortAttr { link_layer, mac, .. } = verbs.query_port(1).map_err(failed)?;
    if link_layer == LinkLayer::Ethernet {
        verbs.set_gid(1, 0, &GidEntry::link_local(mac)).map_err(failed)?;
    }
    Ok(verbs)
}

/// Waits until the port of `host` is active, if there is anything to wait for, and takes the events and interrupts of that.
///
/// # Errors
/// The port is not active after a minute, or the device is broken.
pub fn await_port<P: Provider<Error: Send + Sync + 'static>>(host: &Host, verbs: &mut Verbs<'_, P>) -> Result<(), Error> {
    let is_late = host.with_device(|device| {
        let DeviceConfig { link_training, lid_delay, link_up, managed, .. } = *device.config();
        link_up && !managed && !(link_training + lid_delay).is_zero()
    });
    if is_late {
        verbs.wait_active(1, PORT).map_err(failed)?;
        while verbs.poll_event().map_err(failed)?.is_some() {}
        host.take_interrupts();
    }
    Ok(())
}

/// Returns the configuration of a driver for the device of `host`: the default one, but for a virtual function.
pub fn driver_config(host: &Host) -> Config {
    Config { virtual_function: host.with_device(|device| device.config().virtual_function), ..Config::DEFAULT }
}
