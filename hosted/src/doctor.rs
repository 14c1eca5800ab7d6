//! `bareverbs doctor`: everything that a card needs, from the machine to the subnet manager, with the remedy of each obstacle.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use bareverbs::{LinkLayer, PortAttr};
use bareverbs_vfio::pci::Function;
use serde::Serialize;

use crate::cli::DevicesArgs;
use crate::device::vfio::Card;
use crate::device::{CardError, Device, Host};
use crate::devices::{self, ObstacleRow};
use crate::outcome::Outcome;
use crate::stop::Interrupted;

/// Result of the subcommand.
#[derive(Debug, Serialize)]
pub struct Report {
    /// How it ended; `ok` says that each function can be used, `failure` how many cannot.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The functions that were examined.
    pub functions: Vec<Examined>,
}

/// A function that was examined.
#[derive(Debug, Serialize)]
pub struct Examined {
    address: String,
    name: String,
    /// Its obstacles: those that the machine shows, or that of an attempt to use it.
    obstacles: Vec<ObstacleRow>,
    /// Its ports, if it could be brought up.
    ports: Vec<PortRow>,
}

/// A port that carries traffic.
#[derive(Debug, Serialize)]
struct PortRow {
    port: u8,
    /// LID and that of the subnet manager, of an InfiniBand port.
    #[serde(skip_serializing_if = "Option::is_none")]
    lid: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sm_lid: Option<u16>,
    /// MAC address of an Ethernet port.
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    active_mtu: u32,
    active_width: u8,
    active_speed_gbps: u32,
}

/// Examines functions. Those without an obstacle are brought up, and their ports are waited for.
///
/// # Errors
/// The functions cannot be read, or a requested one does not exist.
pub fn run(args: &DevicesArgs, stop: &Arc<AtomicBool>) -> Result<Report> {
    let found = devices::find(&args.choice)?;
    let is_this_machine = args.choice.is_this_machine();
    let (mut functions, mut interrupted) = (Vec::new(), false);
    for (function, obstacles) in found {
        let mut examined = Examined::new(&function, obstacles.iter().map(Into::into).collect());
        if examined.obstacles.is_empty() && is_this_machine {
            interrupted = examined.try_out(|| Card::open(function.address, stop), stop);
        }
        functions.push(examined);
        if interrupted {
            break;
        }
    }
    Ok(Report::new(functions, interrupted))
}

impl Report {
    fn new(functions: Vec<Examined>, interrupted: bool) -> Self {
        let bad = functions.iter().filter(|function| !function.obstacles.is_empty()).count();
        let failure = match (functions.len(), bad) {
            _ if interrupted => None,
            (0, _) => Some(devices::NO_FUNCTION.to_string()),
            (_, 0) => None,
            (all, bad) => Some(format!("{bad} of {all} functions cannot be used")),
        };
        Self { outcome: Outcome::new(failure, interrupted), functions }
    }
}

impl Examined {
    fn new(function: &Function, obstacles: Vec<ObstacleRow>) -> Self {
        Self { address: function.address.to_string(), name: function.name(), obstacles, ports: Vec::new() }
    }

    /// Opens the function, brings it up and waits for its ports. Returns whether `stop` ended that.
    fn try_out<H: Host>(&mut self, open: impl FnOnce() -> Result<H>, stop: &Arc<AtomicBool>) -> bool {
        let host = match open() {
            Ok(host) => host,
            Err(error) => return self.failed("open", &error),
        };
        let mut device = match Device::bring_up(host, stop) {
            Ok(device) => device,
            Err(error) => return self.failed("bring-up", &error),
        };
        let ports = 1..=device.verbs.query_device().phys_port_cnt;
        let result = ports.map(|port| Ok((port, device.active_port(port, true, stop)?))).collect::<Result<Vec<_>>>();
        let is_stopped = match device.unless_stopped(result) {
            Ok(ports) => {
                self.ports = ports.into_iter().map(PortRow::from).collect();
                false
            }
            Err(error) => self.failed("port", &error),
        };
        match device.teardown() {
            Ok(_) => is_stopped,
            Err(error) => self.failed("teardown", &error) || is_stopped,
        }
    }

    /// Adds an obstacle, unless the error is that of Ctrl-C. Returns whether it is.
    fn failed(&mut self, code: &'static str, error: &anyhow::Error) -> bool {
        if error.is::<Interrupted>() {
            return true;
        }
        let card_error = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<CardError>().cloned();
        let text = |cause| card_error(cause).map_or_else(|| cause.to_string(), |error| error.text);
        let causes: Vec<_> = error.chain().map(text).collect();
        let remedy = error.chain().find_map(card_error).and_then(|error| error.remedy);
        self.obstacles.push(ObstacleRow::new(code, causes.join(": "), remedy));
        false
    }
}

impl From<(u8, PortAttr)> for PortRow {
    fn from((port, attr): (u8, PortAttr)) -> Self {
        let PortAttr { lid, sm_lid, active_width, active_speed_gbps, .. } = attr;
        let is_ethernet = attr.link_layer == LinkLayer::Ethernet;
        Self {
            port,
            lid: (!is_ethernet).then_some(lid.get()),
            sm_lid: (!is_ethernet).then_some(sm_lid.get()),
            mac: is_ethernet.then(|| attr.mac.to_string()),
            active_mtu: attr.active_mtu.bytes(),
            active_width,
            active_speed_gbps,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.functions.iter().try_for_each(|function| function.fmt(f))
    }
}

impl fmt::Display for Examined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, name, obstacles, ports } = self;
        writeln!(f, "{address}  {name}")?;
        obstacles.iter().try_for_each(|obstacle| writeln!(f, "    {obstacle}"))?;
        for PortRow { port, lid, sm_lid, mac, active_mtu, active_width, active_speed_gbps } in ports {
            write!(f, "    port {port}: active, {active_width}X, {active_speed_gbps} Gbps, ")?;
            match (lid, sm_lid, mac) {
                (Some(lid), Some(sm_lid), _) => writeln!(f, "LID {lid}, subnet manager at LID {sm_lid}")?,
                (_, _, mac) => writeln!(f, "Ethernet, MAC {}, RoCE MTU {active_mtu}", mac.as_deref().unwrap_or("unknown"))?,
            }
        }
        if obstacles.is_empty() {
            writeln!(f, "    ready: --device {address}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use bareverbs_sim::in_process::{World, WorldConfig};
    use bareverbs_sim::{DeviceConfig, Profile};

    use super::*;
    use crate::device::simulated::Simulated;

    fn examined() -> Examined {
        Examined { address: "0000:01:00.0".into(), name: "ConnectX-7".into(), obstacles: Vec::new(), ports: Vec::new() }
    }

    fn host(config: DeviceConfig) -> Simulated {
        Simulated::new("0000:01:00.0", World::new(WorldConfig::default()).add(config).unwrap())
    }

    #[test]
    fn a_card_that_works_shows_its_port() {
        for profile in Profile::ALL {
            let mut good = examined();
            assert!(!good.try_out(|| Ok(host(DeviceConfig::profile(profile, 1))), &Arc::default()));
            let text = good.to_string();
            assert!(text.contains("    port 1: active, 4X, ") && text.contains(", LID 1, "), "{profile}: {text}");
            assert!(text.ends_with("    ready: --device 0000:01:00.0\n"), "{profile}: {text}");
            assert!(Report::new(vec![good], false).outcome.ok, "{profile}");
        }
    }

    #[test]
    fn an_ethernet_port_shows_its_address_and_no_lid() {
        let mut good = examined();
        assert!(!good.try_out(|| Ok(host(DeviceConfig::with_lid(1).with_ethernet())), &Arc::default()));
        let text = good.to_string();
        assert!(text.contains(", Ethernet, MAC 00:02:c9:00:01:00, RoCE MTU 1024\n") && !text.contains("LID"), "{text}");
        let json = serde_json::to_value(&good).unwrap();
        let port = &json["ports"][0];
        assert!(port["mac"] == "00:02:c9:00:01:00" && port.get("lid").is_none() && port.get("sm_lid").is_none(), "{port}");
    }

    #[test]
    fn a_card_that_fails_shows_where() {
        let mut without_manager = examined();
        assert!(
            !without_manager.try_out(|| Ok(host(DeviceConfig { managed: true, ..DeviceConfig::default() })), &Arc::default())
        );
        let mut busy = examined();
        let reason = CardError { text: "no file".into(), remedy: Some("make one".into()) };
        let refusal = || Err::<Simulated, _>(anyhow::Error::new(reason).context("too few pages"));
        assert!(!busy.try_out(refusal, &Arc::default()));
        let report = Report::new(vec![without_manager, busy, examined()], false);
        let text = report.to_string();
        assert!(
            text.contains("no subnet manager") && text.contains("    too few pages: no file; remedy: make one\n"),
            "{text}"
        );
        assert_eq!((report.outcome.ok, report.outcome.failure.as_deref()), (false, Some("2 of 3 functions cannot be used")));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (&json["functions"][0]["obstacles"][0]["code"], &json["functions"][1]["obstacles"][0]["remedy"]),
            (&"port".into(), &"make one".into())
        );
    }

    #[test]
    fn a_card_whose_firmware_is_not_ready_says_what_helps() {
        let mut booting = examined();
        let never = DeviceConfig { initializing: Duration::from_secs(3600), ..DeviceConfig::default() };
        assert!(!booting.try_out(|| Ok(host(never)), &Arc::default()));
        let text = booting.to_string();
        assert!(text.contains("    0000:01:00.0: bring-up failed at WaitBoot: "), "{text}");
        let json = serde_json::to_value(Report::new(vec![booting], false)).unwrap();
        let row = &json["functions"][0]["obstacles"][0];
        let remedy = row["remedy"].as_str().unwrap();
        assert!(row["code"] == "bring-up" && remedy.contains("wait some minutes") && remedy.contains("BlueField"), "{row}");
        assert!(text.contains(&format!("; remedy: {remedy}\n")), "{text}");
    }

    #[test]
    fn a_stop_is_no_obstacle() {
        let stop = Arc::new(AtomicBool::new(false));
        stop.store(true, Ordering::Relaxed);
        let mut stopped = examined();
        assert!(stopped.try_out(|| Ok(host(DeviceConfig::default())), &stop));
        let report = Report::new(vec![stopped], true);
        assert_eq!((report.outcome.ok, report.outcome.interrupted, report.outcome.failure), (false, true, None));
    }
}
