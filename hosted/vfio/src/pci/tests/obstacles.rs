//! Each obstacle, its message and its remedy.

use std::os::unix::fs::PermissionsExt as _;

use super::tree::{Tree, config};
use crate::pci::{Access, Interface, Need, Process, Sysfs, function, in_use, obstacles};

const CARD: &str = "0000:01:00.0";
const NEED: Need = Need { bar0: 0x2000, memlock: 1 << 20 };

/// Returns a process with all rights.
fn privileged() -> Process {
    Process { access: Access::This, memlock: None, ipc_lock: false }
}

fn all_for(tree: &Tree, process: &Process) -> Vec<(String, String)> {
    let sysfs = Sysfs::at(tree.path());
    let function = function(&sysfs, CARD.parse().unwrap()).unwrap();
    let found = obstacles(&sysfs, &function, process, &NEED);
    found.iter().map(|each| (each.to_string(), each.remedy())).collect()
}

/// Asserts that there is one obstacle, and that its message and its remedy contain these texts.
fn one(tree: &Tree, process: &Process, sentence: &str, remedy: &str) {
    let found = all_for(tree, process);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].0.contains(sentence), "{sentence:?} is not in {:?}", found[0].0);
    assert!(found[0].1.contains(remedy), "{remedy:?} is not in {:?}", found[0].1);
}

#[test]
fn a_card_that_is_ready_has_none() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    assert_eq!(all_for(&tree, &privileged()), []);
    // Also with a bridge in its group, and for a user that owns the files.
    tree.function("0000:00:01.0", 0x8086, 0x3420, 0x06_0400, "pcieport").group(5).driver("pcieport");
    assert_eq!(all_for(&tree, &privileged()), []);
}

#[test]
fn a_card_of_another_driver_or_of_none() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    one(&tree, &privileged(), "0000:01:00.0 is bound to mlx5_core, not to vfio-pci", "sudo bareverbs bind 0000:01:00.0");
    tree.remove("sys/bus/pci/devices/0000:01:00.0/driver");
    one(&tree, &privileged(), "is bound to no driver", "sudo bareverbs bind 0000:01:00.0");
}

/// Its other obstacles (no driver, no IOMMU) are not named: their removal would not help.
#[test]
fn a_function_that_can_never_be_used_has_one_obstacle() {
    let tree = Tree::new();
    tree.function(CARD, 0x8086, 0x1021, 0x04_0300, "snd_hda_intel");
    one(&tree, &privileged(), "8086:1021", "");
    let tree = Tree::new();
    tree.function(CARD, 0x15b3, 0x1021, 0x02_0700, "mlx5_core").file("config", [0xff; 256]);
    one(&tree, &privileged(), "0000:01:00.0", "");
}

#[test]
fn registers_of_as_many_bytes_as_are_needed_suffice() {
    for (last, obstacles) in [("0x1fff", 0), ("0x1ffe", 1), ("0x2000", 0)] {
        let tree = Tree::new();
        tree.card(CARD, 5).vfio(5).file("resource", format!("0x0000000000000000 {last} 0x000000000014220c\n"));
        let found = all_for(&tree, &privileged());
        assert_eq!(found.len(), obstacles, "{last}: {found:?}");
    }
}

#[test]
fn a_kernel_without_the_module() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    tree.remove("sys/bus/pci/drivers/vfio-pci");
    let found = all_for(&tree, &privileged());
    assert_eq!(found[0], ("the kernel module vfio-pci is not loaded".into(), "sudo modprobe vfio-pci".into()));
    assert_eq!(found.len(), 2, "and it is not bound: {found:?}");
}

#[test]
fn no_iommu() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    tree.remove("sys/bus/pci/devices/0000:01:00.0/iommu_group");
    one(&tree, &privileged(), "no IOMMU translates the DMA of 0000:01:00.0", "VT-d on in the firmware setup");
    one(&tree, &privileged(), "started with intel_iommu=on", "switch");
    tree.write("proc/cmdline", "quiet intel_iommu=off\n");
    one(
        &tree,
        &privileged(),
        "though the kernel was started with intel_iommu=off",
        "take intel_iommu=off from the kernel's command line",
    );
    tree.write("proc/cmdline", "quiet\n");
    one(&tree, &privileged(), "it is in no IOMMU group", "add intel_iommu=on to the kernel's command line");
    tree.write("proc/cpuinfo", "vendor_id\t: AuthenticAMD\n");
    one(&tree, &privileged(), "no IOMMU", "AMD-Vi");
    tree.write("proc/cpuinfo", "CPU implementer\t: 0x41\n");
    one(&tree, &privileged(), "no IOMMU", "SMMU");
}

/// The firmware setup of a virtual machine has no VT-d option: the remedy names the option of its hypervisor.
#[test]
fn no_iommu_in_a_virtual_machine() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    tree.remove("sys/bus/pci/devices/0000:01:00.0/iommu_group");
    let remedy = || {
        let found = all_for(&tree, &privileged());
        assert!(found.len() == 1 && !found[0].1.contains("firmware setup"), "{found:?}");
        found[0].1.clone()
    };
    for vendor in ["GenuineIntel", "AuthenticAMD"] {
        let flags = "flags\t\t: fpu vme de hypervisor lahf_lm\n";
        tree.write("proc/cpuinfo", format!("processor\t: 0\nvendor_id\t: {vendor}\n{flags}"));
        tree.write("proc/cmdline", "quiet\n");
        let text = remedy();
        assert!(text.contains("-device intel-iommu") && text.contains("<iommu model='intel'>"), "{text}");
        assert!(text.contains("add intel_iommu=on to the kernel's command line"), "{text}");
        tree.write("proc/cmdline", "quiet intel_iommu=on\n");
        assert!(!remedy().contains("command line"), "{}", remedy());
    }
    tree.write("proc/cpuinfo", "CPU implementer\t: 0x41\n");
    tree.write("sys/class/dmi/id/sys_vendor", "QEMU\n");
    assert!(remedy().contains("iommu=smmuv3"), "{}", remedy());
}

#[test]
fn the_mode_without_an_iommu_is_refused() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    tree.write("sys/kernel/iommu_groups/5/name", "vfio-noiommu\n");
    let sentence = "group 5 is of VFIO's mode without an IOMMU";
    one(&tree, &privileged(), sentence, "take vfio.enable_unsafe_noiommu_mode away");
    one(&tree, &privileged(), sentence, "VT-d on in the firmware setup");
    tree.write("sys/class/dmi/id/sys_vendor", "QEMU\n");
    one(&tree, &privileged(), sentence, "-device intel-iommu");
}

#[test]
fn a_group_with_other_drivers() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    tree.function("0000:01:00.1", 0x8086, 0x1234, 0x04_0300, "snd_hda_intel").group(5).driver("snd_hda_intel");
    tree.function("0000:00:01.0", 0x8086, 0x3420, 0x06_0400, "pcieport").group(5).driver("pcieport");
    let sentence = "IOMMU group 5 is not viable: it also has 0000:01:00.1, bound to snd_hda_intel";
    one(&tree, &privileged(), sentence, "sudo bareverbs bind --group 0000:01:00.0");
    assert!(!all_for(&tree, &privileged())[0].0.contains("0000:00:01.0"), "the bridge does not count");
}

#[test]
fn files_that_are_not_there_or_not_for_this_user() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    let mode = |path: &str, mode| std::fs::set_permissions(tree.at(path), PermissionsExt::from_mode(mode)).unwrap();
    let owner = std::fs::metadata(tree.at("dev/vfio/5")).unwrap();
    let stranger = Access::User { uid: owner.uid() + 77, gids: vec![owner.gid() + 77] };
    let stranger = Process { access: stranger, ..privileged() };
    let in_group = Process { access: Access::User { uid: owner.uid() + 77, gids: vec![1, owner.gid()] }, ..privileged() };
    mode("dev/vfio/vfio", 0o666);
    mode("dev/vfio/5", 0o600);
    one(&tree, &stranger, "dev/vfio/5 may not be opened by this user: it is of user ", "sudo chown $USER ");
    one(&tree, &stranger, "mode 0600", "examples/systemd/70-bareverbs.rules, a udev rule");
    one(&tree, &in_group, "mode 0600", "");
    mode("dev/vfio/5", 0o660);
    one(&tree, &stranger, "mode 0660", "chown");
    assert_eq!(all_for(&tree, &in_group), []);
    assert_eq!(all_for(&tree, &Process { access: Access::User { uid: owner.uid(), gids: vec![] }, ..privileged() }), []);
    tree.remove("dev/vfio/5");
    one(&tree, &privileged(), "dev/vfio/5 is not there", "docker run --device ");
}

#[test]
fn a_group_that_is_in_use_names_the_process() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    tree.process(4711, "testpmd", "dev/vfio/5");
    tree.process(4712, "other", "dev/vfio/6");
    one(
        &tree,
        &privileged(),
        "IOMMU group 5 is in use by process 4711 (testpmd)",
        "end process 4711 (testpmd) by its own means",
    );
    tree.process(5000, "second", "dev/vfio/5");
    one(
        &tree,
        &privileged(),
        "process 4711 (testpmd), process 5000 (second)",
        "end process 4711 (testpmd), process 5000 (second)",
    );
    assert!(!all_for(&tree, &privileged())[0].1.contains("kill"), "one may be somebody's virtual machine");
    // If the processes of other users are not visible, an attempt to open the file decides.
    let hidden = in_use(&Sysfs::at(tree.path()), 9);
    assert_eq!(hidden.to_string(), "IOMMU group 9 is in use by another process (root sees which)");
    assert!(hidden.remedy().contains("sudo bareverbs devices"));
}

/// A switchdev card under Open vSwitch: the uplink and the representors are its ports, and the host's address is on another of its ports.
#[test]
fn a_port_of_open_vswitch_is_not_taken_down() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5);
    for name in ["enp1s0f0np0", "enp1s0f0npf0vf0", "enp1s0f0npf0vf1"] {
        card.file(&format!("net/{name}/flags"), "0x1103\n");
        for link in ["master", "upper_ovs-system"] {
            tree.link(&format!("sys/bus/pci/devices/{CARD}/net/{name}/{link}"), "../../../../virtual/net/ovs-system");
        }
    }
    tree.route("br-ex");
    let found = all_for(&tree, &privileged());
    assert_eq!(found.len(), 2, "that it is not bound, and one line for all ports: {found:?}");
    let (text, remedy) = &found[1];
    let ports = "network interfaces enp1s0f0np0 and enp1s0f0npf0vf0 and enp1s0f0npf0vf1 are ports of ovs-system";
    assert!(text.contains(ports) && remedy.contains("ovs-vsctl del-port"), "{text}: {remedy}");
    assert!(!remedy.contains("link set"), "{remedy}");
}

/// SRP and iSER have their disks on a SCSI host below the function; the folder of ib_srp itself is there without any.
#[test]
fn disks_of_the_kernel_are_a_use() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5);
    card.file("infiniband_srp/srp-mlx5_1-1/ibdev", "mlx5_1\n");
    assert_eq!(all_for(&tree, &privileged()).len(), 1, "no login");
    card.file("host7/scsi_host/host7/proc_name", "ib_srp\n").file("hostile/scsi_host/hostile/proc_name", "x\n");
    let found = all_for(&tree, &privileged());
    assert_eq!(found.len(), 2, "{found:?}");
    let (text, remedy) = &found[1];
    assert!(
        text.contains("SCSI host host7 reaches its disks through it (ib_srp)") && remedy.contains("unmount"),
        "{text}: {remedy}"
    );
}

/// `vfio_pci_validate_vf_token` of Linux.
#[test]
fn a_virtual_function_whose_physical_one_vfio_has_needs_its_token() {
    let tree = Tree::new();
    let physical = tree.card("0000:01:00.1", 6);
    let virtual_function = tree.card(CARD, 5).vfio(5);
    tree.link("sys/bus/pci/devices/0000:01:00.0/physfn", "../0000:01:00.1");
    assert_eq!(all_for(&tree, &privileged()), [], "the kernel's driver has the physical one");
    drop((physical.vfio(6), virtual_function));
    one(
        &tree,
        &privileged(),
        "0000:01:00.0 is a virtual function of 0000:01:00.1, which vfio-pci has",
        "give 0000:01:00.1 back",
    );
}

#[test]
fn a_limit_of_locked_memory_that_is_too_low() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    let limited = |bytes| Process { memlock: Some(bytes), ..privileged() };
    let sentence = "may lock 65536 bytes of memory (RLIMIT_MEMLOCK), and 1048576 at least are needed";
    one(&tree, &limited(65536), sentence, "ulimit -l 1024 ");
    one(&tree, &limited((1 << 20) - 1), "1048575 bytes", "LimitMEMLOCK=1048576");
    one(&tree, &limited(0), "0 bytes", "'* - memlock 1024' in /etc/security/limits.conf");
    assert_eq!(all_for(&tree, &limited(1 << 20)), []);
    assert_eq!(all_for(&tree, &Process { memlock: Some(0), ipc_lock: true, ..privileged() }), []);
}

#[test]
fn functions_that_are_no_mlx5_or_whose_firmware_is_not_up() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5).vfio(5);
    card.file("device", "0x0218\n");
    let sentence = "0000:01:00.0 is a ConnectX-7 whose firmware did not start (device id 0218: flash recovery)";
    one(&tree, &privileged(), sentence, "mstflint -d 0000:01:00.0 -i FIRMWARE.bin burn");
    card.file("device", "0x1003\n");
    one(
        &tree,
        &privileged(),
        "0000:01:00.0 is 15b3:1003, which is no ConnectX or BlueField that mlx5 drives",
        "bareverbs devices",
    );
    card.file("device", "0x1021\n").file("vendor", "0x8086\n");
    one(&tree, &privileged(), "0000:01:00.0 is 8086:1021", "bareverbs devices");
}

#[test]
fn the_function_of_a_bluefields_own_processor_is_left_to_it() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5).vfio(5);
    tree.write("sys/bus/acpi/devices/MLNXBF04:00/hid", "MLNXBF04\n");
    assert_eq!(all_for(&tree, &privileged()), []);
    card.file("device", "0xa2dc\n");
    one(&tree, &privileged(), "0000:01:00.0 is the function of the card's own processor (BlueField)", "the host of the card");
    // The host of the card has no such parts.
    tree.remove("sys/bus/acpi/devices/MLNXBF04:00");
    assert_eq!(all_for(&tree, &privileged()), []);
}

#[test]
fn an_ethernet_port_is_no_obstacle() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5).vfio(5);
    card.file("class", "0x020000\n");
    for device in ["0x1021", "0x101e", "0x1015", "0x101d", "0x101f"] {
        card.file("device", device);
        assert_eq!(all_for(&tree, &privileged()), [], "{device}");
    }
}

#[test]
fn functions_that_lack_what_the_driver_needs() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5).vfio(5);
    card.file("config", config(0x15b3, 0x1021, None));
    one(&tree, &privileged(), "0000:01:00.0 has no MSI-X capability", "");
    // Users other than root see too few bytes.
    card.file("config", &config(0x15b3, 0x1021, None)[..64]);
    assert_eq!(all_for(&tree, &privileged()), []);
    card.file("config", [0xff; 256]);
    one(&tree, &privileged(), "0000:01:00.0 does not answer", "/sys/bus/pci/devices/0000:01:00.0/remove");
    card.file("config", config(0x15b3, 0x1021, Some(64)));
    card.file("resource", "0x0000000080000000 0x0000000080000fff 0x0000000000040200\n");
    one(&tree, &privileged(), "BAR0 of 0000:01:00.0 has 4096 bytes; 8192 are needed", "");
    card.file("resource", "0x0000000000000000 0x0000000000000000 0x0000000000000000\n");
    one(&tree, &privileged(), "0000:01:00.0 has no BAR0 assigned", "pci=realloc");
    // First and last address swapped: the file is not trusted.
    card.file("resource", "0x0000000080000fff 0x0000000080000000 0x0\n");
    one(&tree, &privileged(), "has no BAR0", "");
}

#[test]
fn kernels_without_groups_have_other_files() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5).file("vfio-dev/vfio0/dev", "511:0\n");
    assert_eq!(all_for(&tree, &privileged()), []);
    tree.remove("dev/vfio/vfio");
    tree.write("dev/vfio/devices/vfio0", "");
    one(&tree, &privileged(), "dev/iommu is not there", "");
    tree.write("dev/iommu", "");
    assert_eq!(all_for(&tree, &privileged()), []);
}

/// Returns the interface by which a process opens the card.
fn interface(tree: &Tree, process: &Process) -> Interface {
    let sysfs = Sysfs::at(tree.path());
    Interface::of(&sysfs, &function(&sysfs, CARD.parse().unwrap()).unwrap(), process)
}

#[test]
fn iommufd_is_used_where_groups_are_not_there_or_may_not_be_opened() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5).file("vfio-dev/vfio3/dev", "511:3\n");
    // Kernels without the interface name a file that does not exist.
    assert_eq!(interface(&tree, &privileged()), Interface::Group);
    tree.write("dev/vfio/devices/vfio3", "");
    tree.write("dev/iommu", "");
    assert_eq!(interface(&tree, &privileged()), Interface::Group, "both are there");
    // A user who was given the files of one of them alone.
    let uid = 12345;
    let user = Process { access: Access::User { uid, gids: vec![uid] }, ..privileged() };
    let set = |mode, files: [&str; 2]| {
        for file in files {
            std::fs::set_permissions(tree.at(file), std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    let (by_group, by_iommufd) = (["dev/vfio/vfio", "dev/vfio/5"], ["dev/iommu", "dev/vfio/devices/vfio3"]);
    set(0o666, by_group);
    set(0o600, by_iommufd);
    assert_eq!((interface(&tree, &user), all_for(&tree, &user)), (Interface::Group, vec![]));
    set(0o600, by_group);
    set(0o666, by_iommufd);
    assert_eq!((interface(&tree, &user), all_for(&tree, &user)), (Interface::Iommufd, vec![]));
    // Of neither: the group is named.
    set(0o600, by_iommufd);
    assert_eq!(interface(&tree, &user), Interface::Group);
    assert!(all_for(&tree, &user).iter().any(|(sentence, _)| sentence.contains("/dev/vfio/5 may not be opened by this user")));
    // Whoever has the function's own file open has the group.
    tree.process(4711, "testpmd", "dev/vfio/devices/vfio3");
    one(&tree, &privileged(), "IOMMU group 5 is in use by process 4711 (testpmd)", "end process 4711");
    tree.remove("dev/vfio/vfio");
    assert_eq!(interface(&tree, &privileged()), Interface::Iommufd);
}

#[test]
fn this_process_has_its_own_limit() {
    let text = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = text.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
    let soft = line.split_whitespace().nth(3).unwrap();
    assert_eq!(Process::current().memlock, soft.parse().ok(), "{line}");
}
