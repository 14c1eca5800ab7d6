//! Binds and unbinds functions in a folder with a simulated kernel.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::tree::Tree;
use crate::pci::{
    Actor, Address, BindError, Options, Plan, RunError, Sysfs, bind as bind_here, bind_with, function, plan_bind, plan_unbind,
    unbind as unbind_here, unbind_with,
};

const CARD: &str = "0000:01:00.0";
const OTHER: &str = "0000:01:00.1";

/// The simulated kernel of a tree, and its faults.
struct Kernel<'a> {
    tree: &'a Tree,
    /// The writes, with paths relative to the folder.
    written: Vec<String>,
    /// Suffix of paths to which writes fail.
    fails: Vec<&'static str>,
    /// Suffix of paths to which writes have no effect.
    ignores: Vec<&'static str>,
    /// Number of writes after which the user requests to stop.
    stop_after: usize,
    modprobe: Option<RunError>,
    paused: Duration,
}

impl<'a> Kernel<'a> {
    fn new(tree: &'a Tree) -> Self {
        let (written, fails, ignores) = (Vec::new(), Vec::new(), Vec::new());
        Self { tree, written, fails, ignores, stop_after: usize::MAX, modprobe: None, paused: Duration::ZERO }
    }
}

impl Actor for Kernel<'_> {
    fn write(&mut self, path: &Path, value: &str) -> io::Result<()> {
        let name = path.strip_prefix(self.tree.path()).unwrap().to_str().unwrap().to_string();
        self.written.push(format!("{} = {value}", name.strip_prefix("sys/bus/pci/").unwrap()));
        match () {
            () if self.fails.iter().any(|end| name.ends_with(end)) => Err(io::Error::from_raw_os_error(16)),
            () if self.ignores.iter().any(|end| name.ends_with(end)) => Ok(()),
            () => self.tree.react(path, value),
        }
    }

    fn load_module(&mut self, name: &str) -> Result<(), RunError> {
        self.written.push(format!("modprobe {name}"));
        match self.modprobe.take() {
            Some(error) => Err(error),
            None => {
                self.tree.driver(name);
                self.tree.write(&format!("sys/module/{name}/initstate"), "live\n");
                Ok(())
            }
        }
    }

    fn pause(&mut self, time: Duration) {
        self.paused += time;
    }

    fn stopped(&self) -> bool {
        self.written.len() >= self.stop_after
    }
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn sysfs(tree: &Tree) -> Sysfs {
    Sysfs::at(tree.path())
}

/// Returns the driver and the `driver_override` of a function.
fn state(tree: &Tree, text: &str) -> (Option<String>, Option<String>) {
    let function = function(&sysfs(tree), address(text)).unwrap();
    (function.driver, function.driver_override)
}

fn some(driver: &str) -> Option<String> {
    Some(driver.into())
}

fn bind(tree: &Tree, kernel: &mut Kernel<'_>, options: &Options) -> Result<Vec<crate::pci::Bound>, BindError> {
    bind_with(&sysfs(tree), &[address(CARD)], options, kernel)
}

fn unbind(tree: &Tree, kernel: &mut Kernel<'_>, options: &Options) -> Result<Vec<crate::pci::Unbound>, BindError> {
    unbind_with(&sysfs(tree), &[address(CARD)], options, kernel)
}

fn no_memory(tree: &Tree) -> bool {
    std::fs::read_dir(tree.at("run/bareverbs/bind")).map_or(true, |mut files| files.next().is_none())
}

#[test]
fn a_card_is_bound_to_vfio_and_unbound() {
    let tree = Tree::new();
    tree.card(CARD, 5).interface("eth2", 0x1002);
    let mut kernel = Kernel::new(&tree);
    let bound = bind(&tree, &mut kernel, &Options::default()).unwrap();
    assert_eq!(
        kernel.written,
        [
            "devices/0000:01:00.0/driver_override = vfio-pci",
            "drivers/mlx5_core/unbind = 0000:01:00.0",
            "drivers_probe = 0000:01:00.0",
        ]
    );
    assert_eq!((bound.len(), bound[0].address, bound[0].group), (1, address(CARD), Some(5)));
    assert_eq!(bound[0].before.as_ref().unwrap().driver, some("mlx5_core"));
    assert_eq!(state(&tree, CARD), (some("vfio-pci"), some("vfio-pci")));
    assert!(no_memory(&tree), "the kernel knows what it would choose");

    // A second time changes nothing.
    let mut kernel = Kernel::new(&tree);
    let bound = bind(&tree, &mut kernel, &Options::default()).unwrap();
    assert_eq!((kernel.written.len(), &bound[0].before), (0, &None));

    let mut kernel = Kernel::new(&tree);
    let unbound = unbind(&tree, &mut kernel, &Options::default()).unwrap();
    assert_eq!(
        kernel.written,
        [
            "drivers/vfio-pci/unbind = 0000:01:00.0",
            "devices/0000:01:00.0/driver_override = ",
            "drivers/mlx5_core/bind = 0000:01:00.0",
        ]
    );
    assert_eq!((unbound[0].changed, unbound[0].driver.as_deref()), (true, Some("mlx5_core")));
    assert_eq!(state(&tree, CARD), (some("mlx5_core"), None));

    let mut kernel = Kernel::new(&tree);
    let unbound = unbind(&tree, &mut kernel, &Options::default()).unwrap();
    assert_eq!((kernel.written.len(), unbound[0].changed), (0, false));
}

#[test]
fn the_plan_has_shell_commands() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    tree.remove("sys/bus/pci/drivers/vfio-pci");
    tree.remove("sys/module/vfio_iommu_type1");
    let plan = plan_bind(&sysfs(&tree), &[address(CARD)], &Options::default()).unwrap();
    let text = plan.to_string().replace(tree.path().to_str().unwrap(), "");
    let lines: Vec<_> = text.lines().map(|line| line.split_once("  # ").unwrap().0).collect();
    assert_eq!(
        lines,
        [
            "modprobe vfio-pci",
            "modprobe vfio_iommu_type1",
            "echo vfio-pci > /sys/bus/pci/devices/0000:01:00.0/driver_override",
            "echo 0000:01:00.0 > /sys/bus/pci/drivers/mlx5_core/unbind",
            "echo 0000:01:00.0 > /sys/bus/pci/drivers_probe",
        ]
    );
    let mut kernel = Kernel::new(&tree);
    bind(&tree, &mut kernel, &Options::default()).unwrap();
    assert_eq!(kernel.written.len(), plan.steps.len());
    let plan = plan_unbind(&sysfs(&tree), &[address(CARD)], &Options::default()).unwrap();
    assert!(plan.to_string().contains("echo > "), "{plan}");
    assert_eq!(Plan::default().to_string(), "");
}

#[test]
fn the_former_driver_and_override_are_restored() {
    for (driver, only) in
        [(None, None), (None, Some("pci-stub")), (Some("pci-stub"), Some("pci-stub")), (Some("mlx5_core"), Some("later"))]
    {
        let tree = Tree::new();
        tree.driver("pci-stub");
        let card = tree.card(CARD, 5);
        if let Some(only) = only {
            card.file("driver_override", format!("{only}\n"));
        }
        match driver {
            Some(driver) => drop(card.driver(driver)),
            None => tree.remove("sys/bus/pci/devices/0000:01:00.0/driver"),
        }
        let before = state(&tree, CARD);
        bind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap();
        assert_eq!(state(&tree, CARD), (some("vfio-pci"), some("vfio-pci")));
        assert!(!no_memory(&tree));
        unbind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap();
        assert_eq!(state(&tree, CARD), before);
        assert!(no_memory(&tree));
    }
}

#[test]
fn a_failure_of_any_step_restores_the_former_state() {
    for (fails, ignores, end) in [
        ("driver_override", "-", "busy"),
        ("mlx5_core/unbind", "-", "busy"),
        ("drivers_probe", "-", "busy"),
        ("-", "mlx5_core/unbind", "no 0000:01:00.0 bound to no driver after 0.5 s, it is bound to mlx5_core"),
        ("-", "drivers_probe", "no 0000:01:00.0 bound to vfio-pci after 0.5 s, it is bound to no driver"),
    ] {
        let tree = Tree::new();
        tree.card(CARD, 5);
        let mut kernel = Kernel::new(&tree);
        kernel.fails = vec![fails];
        kernel.ignores = vec![ignores];
        let options = Options { timeout: Duration::from_millis(500), ..Options::default() };
        let error = bind(&tree, &mut kernel, &options).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(end), "{text}");
        if fails == "driver_override" {
            assert!(text.ends_with("nothing was changed"), "{text}");
        } else {
            assert!(text.ends_with("; put back as before: 0000:01:00.0"), "{text}");
        }
        assert_eq!(state(&tree, CARD), (some("mlx5_core"), None), "{fails} {ignores}");
        assert!(no_memory(&tree));
    }
}

#[test]
fn state_that_cannot_be_restored_is_named() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    let mut kernel = Kernel::new(&tree);
    kernel.fails = vec!["drivers_probe", "mlx5_core/bind"];
    let error = bind(&tree, &mut kernel, &Options::default()).unwrap_err();
    let BindError::Step(step) = &error else { panic!("{error}") };
    assert_eq!((step.put_back.len(), step.not_put_back.len()), (0, 1));
    let text = error.to_string();
    assert!(text.contains("; NOT put back: 0000:01:00.0 (echo 0000:01:00.0 > ") && text.contains("mlx5_core/bind: "), "{text}");
}

#[test]
fn several_functions_are_bound_together_or_not_at_all() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    tree.card("0000:02:00.0", 6);
    let both = [address(CARD), address("02:00.0"), address(CARD)];
    let mut kernel = Kernel::new(&tree);
    kernel.fails = vec!["devices/0000:02:00.0/driver_override"];
    let error = bind_with(&sysfs(&tree), &both, &Options::default(), &mut kernel).unwrap_err();
    assert!(error.to_string().ends_with("; put back as before: 0000:01:00.0"), "{error}");
    assert_eq!(state(&tree, CARD), (some("mlx5_core"), None));
    let bound = bind_with(&sysfs(&tree), &both, &Options::default(), &mut Kernel::new(&tree)).unwrap();
    assert_eq!(bound.len(), 2);
    assert_eq!(state(&tree, "0000:02:00.0"), (some("vfio-pci"), some("vfio-pci")));

    // Nor unbound.
    let mut kernel = Kernel::new(&tree);
    kernel.ignores = vec!["drivers/mlx5_core/bind"];
    let options = Options { timeout: Duration::from_millis(20), ..Options::default() };
    let error = unbind_with(&sysfs(&tree), &both, &options, &mut kernel).unwrap_err();
    assert!(error.to_string().ends_with("; put back as before: 0000:01:00.0"), "{error}");
    for card in [CARD, "0000:02:00.0"] {
        assert_eq!(state(&tree, card), (some("vfio-pci"), some("vfio-pci")));
    }
}

#[test]
fn an_interruption_restores_the_former_state() {
    for after in 1..3 {
        let tree = Tree::new();
        tree.card(CARD, 5);
        let mut kernel = Kernel::new(&tree);
        kernel.stop_after = after;
        let error = bind(&tree, &mut kernel, &Options::default()).unwrap_err().to_string();
        assert!(error.contains(": interrupted; put back as before: 0000:01:00.0"), "{error}");
        assert_eq!(state(&tree, CARD), (some("mlx5_core"), None));
    }
}

#[test]
fn a_module_that_cannot_be_loaded_changes_nothing() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    tree.remove("sys/bus/pci/drivers/vfio-pci");
    let mut kernel = Kernel::new(&tree);
    kernel.modprobe = Some(RunError::Missing { module: "vfio-pci".into() });
    let error = bind(&tree, &mut kernel, &Options::default()).unwrap_err().to_string();
    assert!(error.starts_with("modprobe vfio-pci: modprobe is not installed (package kmod)"), "{error}");
    assert!(error.ends_with("nothing was changed"), "{error}");
    assert_eq!(kernel.written, ["modprobe vfio-pci"]);
    // Command and module name are each reported once.
    kernel.modprobe = Some(RunError::Failed { module: "vfio-pci".into(), said: "modprobe: FATAL: no such module".into() });
    let error = bind(&tree, &mut kernel, &Options::default()).unwrap_err().to_string();
    assert_eq!(error, "modprobe vfio-pci: FATAL: no such module; nothing was changed");
    // Not every kernel has the module vfio_iommu_type1.
    tree.driver("vfio-pci");
    tree.remove("sys/module/vfio_iommu_type1");
    kernel.modprobe = Some(RunError::Failed { module: "vfio_iommu_type1".into(), said: "not found".into() });
    bind(&tree, &mut kernel, &Options::default()).unwrap();
}

#[test]
fn a_function_that_the_machine_uses_is_not_bound() {
    let refused = |tree: &Tree, sentence: &str| {
        let mut kernel = Kernel::new(tree);
        let error = bind(tree, &mut kernel, &Options::default()).unwrap_err().to_string();
        assert!(error.contains(sentence) && error.ends_with("--force takes it all the same"), "{error}");
        assert_eq!(kernel.written.len(), 0);
    };
    let tree = Tree::new();
    let card = tree.card(CARD, 5).interface("eth2", 0x1003).rdma("mlx5_0", "uverbs0");
    refused(&tree, "network interface eth2 is up");
    tree.route("eth2");
    refused(&tree, "the machine's default route goes through eth2");
    card.file("host7/scsi_host/host7/proc_name", "ib_srp\n");
    refused(&tree, "SCSI host host7 reaches its disks through it (ib_srp)");
    tree.remove("sys/bus/pci/devices/0000:01:00.0/host7");
    // For an interface of a bond, the routes of the bond count.
    tree.route("bond0");
    refused(&tree, "network interface eth2 is up");
    tree.link("sys/bus/pci/devices/0000:01:00.0/net/eth2/master", "../../../../virtual/net/bond0");
    refused(&tree, "the machine's default route goes through bond0");
    tree.route("eth9");
    card.file("net/eth2/flags", "0x1002\n");
    tree.write(
        "proc/net/ipv6_route",
        format!("{0} 00 {0} 00 fe80{1} 00000400 00000002 00000000 00000003 eth2\n", "0".repeat(32), "0".repeat(28)),
    );
    refused(&tree, "the machine's default route goes through eth2");
    tree.remove("proc/net/ipv6_route");
    tree.process(99, "nfsd", "dev/infiniband/uverbs0");
    refused(&tree, "RDMA device mlx5_0 is in use by process 99 (nfsd)");
    tree.remove("proc/99");
    card.file("sriov_numvfs", "4\n");
    refused(&tree, "its 4 virtual functions would go away");
    // With force, or when nothing uses it.
    let forced = Options { force: true, ..Options::default() };
    bind(&tree, &mut Kernel::new(&tree), &forced).unwrap();
    // vfio-pci would remove the virtual functions, from under those who have them open.
    let error = unbind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("its 4 virtual functions would go away"), "{error}");
    assert_eq!(state(&tree, CARD).0, some("vfio-pci"));
    unbind(&tree, &mut Kernel::new(&tree), &forced).unwrap();
    card.file("sriov_numvfs", "0\n");
    bind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap();
}

/// The tables of a kernel with eth2 (192.0.2.10/24 and 2001:db8::10/64), a VLAN above a bond above eth3, and eth9 of another card.
fn networks(tree: &Tree) {
    let hex = |text: &str| format!("{:032x}", text.parse::<std::net::Ipv6Addr>().unwrap().to_bits());
    let v4 = |text: &str| format!("{:08X}", u32::from_ne_bytes(text.parse::<std::net::Ipv4Addr>().unwrap().octets()));
    let route = |interface: &str, to: &str, gateway: &str, mask: &str| {
        format!("{interface}\t{}\t{}\t0003\t0\t0\t0\t{}\t0\t0\t0\n", v4(to), v4(gateway), v4(mask))
    };
    let routes = [
        route("eth2", "192.0.2.0", "0.0.0.0", "255.255.255.0"),
        route("eth2", "198.51.100.0", "192.0.2.1", "255.255.254.0"),
        route("vlan7", "203.0.113.0", "0.0.0.0", "255.255.255.128"),
        route("eth9", "10.0.0.0", "0.0.0.0", "255.0.0.0"),
    ];
    tree.write("proc/net/route", "Iface\tDestination\tGateway\tFlags\n".to_string() + &routes.concat());
    let leaf = |address: &str| format!("     |-- {address}\n        /32 host LOCAL\n");
    let network = |address: &str| format!("  +-- {address}/24 2 0 2\n     |-- {address}\n        /24 link UNICAST\n");
    let all = [network("192.0.2.0"), leaf("192.0.2.10"), leaf("203.0.113.5"), leaf("10.1.2.3"), leaf("127.0.0.1")].concat();
    tree.write("proc/net/fib_trie", format!("Main:\n{all}Local:\n{all}"));
    let address = |text: &str, scope: &str, name: &str| format!("{} 02 40 {scope} 80 {name:>8}\n", hex(text));
    tree.write(
        "proc/net/if_inet6",
        address("::1", "10", "lo") + &address("fe80::1", "20", "eth2") + &address("2001:db8::10", "00", "eth2"),
    );
    let none = hex("::");
    let route = |to: &str, prefix: &str, via: &str, flags: &str, name: &str| {
        format!("{} {prefix} {none} 00 {} 00000100 00000001 00000000 {flags} {name:>8}\n", hex(to), hex(via))
    };
    let routes = [
        route("2001:db8::", "40", "::", "00000001", "eth2"),
        route("2001:db8:5::", "30", "fe80::9", "00000003", "eth2"),
        route("fe80::", "40", "::", "00000001", "eth2"),
        route("2001:db8::10", "80", "::", "80200001", "eth2"),
        route("ff00::", "08", "::", "00000001", "eth2"),
        route("::", "00", "::", "00200200", "lo"),
    ];
    tree.write("proc/net/ipv6_route", routes.concat());
}

#[test]
fn what_an_interface_would_lose_is_named() {
    let tree = Tree::new();
    networks(&tree);
    let refusal = |tree: &Tree| {
        let mut kernel = Kernel::new(tree);
        let error = bind(tree, &mut kernel, &Options::default()).unwrap_err().to_string();
        assert_eq!(kernel.written.len(), 0);
        error.replace("the machine uses 0000:01:00.0: ", "").replace("; --force takes it all the same", "")
    };
    let card = tree.card(CARD, 5).interface("eth2", 0x1003);
    assert_eq!(
        refusal(&tree),
        "network interface eth2 would lose its addresses 2001:db8::10/64 and 192.0.2.10/24 and its routes to 198.51.100.0/23 and \
         2001:db8:5::/48"
    );
    // An address does not need the flag, and one of an interface above counts: here of a VLAN on a bond.
    tree.remove("sys/bus/pci/devices/0000:01:00.0/net/eth2");
    card.file("net/eth3/flags", "0x1002\n").file("net/eth3/upper_bond0/upper_vlan7/flags", "0x1003\n");
    assert_eq!(refusal(&tree), "network interface vlan7 would lose its address 203.0.113.5/25");
    // Another interface's addresses do not count.
    tree.remove("sys/bus/pci/devices/0000:01:00.0/net/eth3/upper_bond0");
    // Containers have an interface that the machine does not see.
    for (pid, interface) in [(70, "ib0"), (300, "ib0"), (80, "eth3")] {
        tree.write(&format!("proc/{pid}/comm"), "runc\n");
        tree.write(&format!("proc/{pid}/root/sys/bus/pci/devices/0000:01:00.0/net/{interface}/flags"), "0x1003\n");
        tree.write(&format!("proc/{pid}/root/sys/bus/pci/devices/0000:02:00.0/net/other/flags"), "0x1003\n");
    }
    assert_eq!(refusal(&tree), "network interface ib0 is in the network namespace of process 70 (runc)");
    tree.remove("proc/70");
    tree.remove("proc/300");
    bind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap();
}

#[test]
fn an_ethernet_port_is_bound_as_another() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5);
    card.file("class", "0x020000\n");
    for device in ["0x1021\n", "0x101d\n"] {
        card.file("device", device);
        bind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap();
        unbind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap();
    }
}

#[test]
fn the_function_of_a_bluefields_own_processor_is_bound_for_other_programs_only() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5);
    tree.write("sys/bus/acpi/devices/MLNXBF04:00/hid", "MLNXBF04\n");
    card.file("device", "0xa2dc\n");
    let mut kernel = Kernel::new(&tree);
    let error = bind(&tree, &mut kernel, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("own processor") && error.ends_with("; --force binds it for another program"), "{error}");
    assert_eq!(kernel.written.len(), 0);
    bind(&tree, &mut Kernel::new(&tree), &Options { force: true, ..Options::default() }).unwrap();
    unbind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap();
    // The force does not reach other obstacles.
    card.file("config", [0xff; 256]);
    card.file("device", "0x1021\n");
    let error = bind(&tree, &mut Kernel::new(&tree), &Options { force: true, ..Options::default() }).unwrap_err();
    assert!(error.to_string().contains("does not answer"), "{error}");
}

#[test]
fn a_function_that_vfio_cannot_use_is_refused_with_the_remedy() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5);
    let refused = |sentence: &str, remedy: &str| {
        let mut kernel = Kernel::new(&tree);
        let error = bind(&tree, &mut kernel, &Options { force: true, ..Options::default() }).unwrap_err().to_string();
        assert!(error.contains(sentence) && error.contains(remedy), "{error}");
        assert_eq!(kernel.written.len(), 0);
    };
    card.file("device", "0x0218\n");
    refused("firmware did not start", "; remedy: mstflint");
    card.file("device", "0x1003\n");
    refused("no ConnectX or BlueField", "; remedy: bareverbs devices");
    card.file("device", "0x1021\n");
    tree.write("sys/kernel/iommu_groups/5/name", "vfio-noiommu\n");
    refused("mode without an IOMMU", "enable_unsafe_noiommu_mode");
    tree.remove("sys/bus/pci/devices/0000:01:00.0/iommu_group");
    refused("no IOMMU translates", "VT-d");
    let error = bind_with(&sysfs(&tree), &[address("09:00.0")], &Options::default(), &mut Kernel::new(&tree)).unwrap_err();
    assert_eq!(error.to_string(), "there is no PCI function 0000:09:00.0 (`bareverbs devices` lists those that can be used)");
}

#[test]
fn the_members_of_a_group_are_bound_and_unbound() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    tree.function(OTHER, 0x8086, 0x1234, 0x04_0300, "snd_hda_intel").group(5).driver("snd_hda_intel");
    tree.function("0000:00:01.0", 0x8086, 0x3420, 0x06_0400, "pcieport").group(5).driver("pcieport");
    tree.function("0000:01:00.2", 0x8086, 0x1234, 0x04_0300, "snd_hda_intel").group(5);
    let all = Options { group: true, ..Options::default() };
    let bound = bind(&tree, &mut Kernel::new(&tree), &all).unwrap();
    assert_eq!(bound.iter().map(|each| each.address.to_string()).collect::<Vec<_>>(), [CARD, OTHER]);
    assert_eq!(state(&tree, OTHER).0, some("vfio-pci"));
    assert_eq!(state(&tree, "0000:00:01.0").0, some("pcieport"));
    assert_eq!(state(&tree, "0000:01:00.2").0, None);
    // Without the option, the other member stays.
    unbind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap();
    assert_eq!((state(&tree, CARD).0, state(&tree, OTHER).0), (some("mlx5_core"), some("vfio-pci")));
    bind(&tree, &mut Kernel::new(&tree), &all).unwrap();
    let unbound = unbind(&tree, &mut Kernel::new(&tree), &all).unwrap();
    assert_eq!(unbound.len(), 2);
    assert_eq!((state(&tree, CARD), state(&tree, OTHER)), ((some("mlx5_core"), None), (some("snd_hda_intel"), None)));
    assert!(no_memory(&tree));
}

#[test]
fn a_function_that_a_process_has_open_is_not_unbound() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    tree.process(4711, "testpmd", "dev/vfio/5");
    let mut kernel = Kernel::new(&tree);
    let error = unbind(&tree, &mut kernel, &Options { force: true, ..Options::default() }).unwrap_err().to_string();
    assert_eq!(
        error,
        "IOMMU group 5 is in use by process 4711 (testpmd); remedy: end process 4711 (testpmd) by its own means, a virtual machine (QEMU) from inside"
    );
    assert_eq!(kernel.written.len(), 0);
}

#[test]
fn the_module_of_the_former_driver_is_loaded_again() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    tree.remove("sys/bus/pci/drivers/mlx5_core");
    let mut kernel = Kernel::new(&tree);
    unbind(&tree, &mut kernel, &Options::default()).unwrap();
    assert_eq!(kernel.written[2..], ["modprobe mlx5_core", "drivers_probe = 0000:01:00.0"]);
    assert_eq!(state(&tree, CARD), (some("mlx5_core"), None));
}

#[test]
fn a_function_that_its_former_driver_refuses_stays_with_vfio() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    tree.write("broken/mlx5_core", "");
    let error = unbind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("mlx5_core/bind: No such device") && error.ends_with("put back as before: 0000:01:00.0"), "{error}");
    assert_eq!(state(&tree, CARD), (some("vfio-pci"), some("vfio-pci")));
}

#[test]
fn functions_that_other_programs_bound_are_not_unbound() {
    let tree = Tree::new();
    tree.function(CARD, 0x10de, 0x2204, 0x03_0000, "nouveau").group(5).vfio(5);
    let mut kernel = Kernel::new(&tree);
    let error = unbind(&tree, &mut kernel, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("is 10de:2204") && kernel.written.is_empty(), "{error}");
}

/// What has the wanted value already is not written: a function that has no override, one that is back already.
#[test]
fn an_override_that_is_right_is_not_written() {
    for (now, record, writes) in [
        ("(null)", "driver=mlx5_core\ndriver_override=\n", vec!["drivers/mlx5_core/bind = 0000:01:00.0"]),
        ("mlx5_core", "driver=mlx5_core\ndriver_override=mlx5_core\n", vec!["drivers/mlx5_core/bind = 0000:01:00.0"]),
        (
            "mlx5_core",
            "driver=mlx5_core\ndriver_override=\n",
            vec!["drivers/mlx5_core/bind = 0000:01:00.0", "devices/0000:01:00.0/driver_override = "],
        ),
        (
            "vfio-pci",
            "driver=mlx5_core\ndriver_override=mlx5_core\n",
            vec!["devices/0000:01:00.0/driver_override = mlx5_core", "drivers/mlx5_core/bind = 0000:01:00.0"],
        ),
    ] {
        let tree = Tree::new();
        tree.card(CARD, 5).vfio(5).file("driver_override", format!("{now}\n"));
        tree.write("run/bareverbs/bind/0000:01:00.0", record);
        let mut kernel = Kernel::new(&tree);
        unbind(&tree, &mut kernel, &Options::default()).unwrap();
        assert_eq!(kernel.written[0], "drivers/vfio-pci/unbind = 0000:01:00.0");
        assert_eq!(kernel.written[1..], writes, "{now}, {record}");
        assert_eq!(state(&tree, CARD).0, some("mlx5_core"));
    }
}

#[test]
fn leftovers_of_a_binding_are_removed() {
    let tree = Tree::new();
    tree.card(CARD, 5).file("driver_override", "vfio-pci\n");
    tree.write("run/bareverbs/bind/0000:01:00.0", "driver=\ndriver_override=\n");
    let unbound = unbind(&tree, &mut Kernel::new(&tree), &Options::default()).unwrap();
    assert_eq!((unbound[0].changed, unbound[0].driver.as_deref()), (true, Some("mlx5_core")));
    assert_eq!(state(&tree, CARD), (some("mlx5_core"), None));
    assert!(no_memory(&tree));
}

/// By the actor of this machine, on which there is no such function: nothing is written.
#[test]
fn a_function_that_is_not_there_is_neither_bound_nor_unbound() {
    let tree = Tree::new();
    let errors = [
        bind_here(&sysfs(&tree), &[address(CARD)], &Options::default()).unwrap_err(),
        unbind_here(&sysfs(&tree), &[address(CARD)], &Options::default()).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, BindError::NoFunction { address: missing } if missing == address(CARD)), "{error}");
        assert!(error.to_string().starts_with("there is no PCI function 0000:01:00.0"), "{error}");
    }
}
