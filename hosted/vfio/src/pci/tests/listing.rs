//! Listing functions and their properties.

use bareverbs::LinkLayer;

use super::tree::{Tree, config};
use crate::pci::{Address, Kind, Link, Member, Msix, Sysfs, function, functions};

fn only(tree: &Tree) -> crate::pci::Function {
    let mut found = functions(&Sysfs::at(tree.path())).unwrap();
    assert_eq!(found.len(), 1);
    found.remove(0)
}

#[test]
fn a_machine_without_pci_or_without_cards_has_none() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(functions(&Sysfs::at(folder.path())).unwrap(), []);
    let tree = Tree::new();
    tree.function("0000:00:1f.3", 0x8086, 0x1021, 0x04_0300, "snd_hda_intel").driver("snd_hda_intel");
    // ConnectX-3: mlx4.
    tree.function("0000:03:00.0", 0x15b3, 0x1003, 0x02_0000, "mlx4_core");
    tree.write("sys/bus/pci/devices/nonsense/vendor", "0x15b3\n");
    assert_eq!(functions(&Sysfs::at(tree.path())).unwrap(), []);
}

#[test]
fn a_list_that_cannot_be_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("sys/bus/pci")).unwrap();
    std::fs::write(folder.path().join("sys/bus/pci/devices"), "").unwrap();
    let error = functions(&Sysfs::at(folder.path())).unwrap_err().to_string();
    assert!(error.contains("sys/bus/pci/devices cannot be read: "), "{error}");
}

#[test]
fn a_card_is_described() {
    let tree = Tree::new();
    let card = tree.card("0000:c1:00.0", 12).interface("ens1f0np0", 0x1003).rdma("mlx5_0", "uverbs0");
    card.file("numa_node", "1\n");
    let got = only(&tree);
    assert_eq!(got.address, "c1:00.0".parse().unwrap());
    assert_eq!((got.vendor, got.device, got.class), (0x15b3, 0x1021, 0x02_0700));
    assert_eq!((got.name().as_str(), got.model.map(|model| model.kind)), ("ConnectX-7", Some(Kind::Physical)));
    assert_eq!((got.driver.as_deref(), got.driver_override.as_deref()), (Some("mlx5_core"), None));
    assert_eq!((got.numa_node, got.bar0, got.msix), (Some(1), 32 << 20, Msix::Vectors(64)));
    assert_eq!((got.interfaces, got.rdma_devices), (vec!["ens1f0np0".to_string()], vec!["mlx5_0".to_string()]));
    assert!(got.answers && got.resettable && got.physical_function.is_none() && got.device_file.is_none());
    let link = got.link.unwrap();
    assert_eq!((link.speed.as_str(), link.width), ("16.0 GT/s PCIe", 8));
    assert!(link.degraded());
    let [slow, narrow] = [Link { width: 16, ..link.clone() }, Link { speed: link.max_speed.clone(), ..link.clone() }];
    assert!(slow.degraded() && narrow.degraded());
    assert!(!Link { speed: link.max_speed.clone(), width: 16, ..link }.degraded());
    let group = got.group.unwrap();
    assert_eq!((group.number, group.no_iommu, group.others), (12, false, vec![]));
}

/// Classes of PCI Code and ID Assignment; that of a card in recovery, and one of another base class with the same subclass.
#[test]
fn the_class_says_what_the_port_is() {
    for (class, layer) in [
        (0x02_0000, Some(LinkLayer::Ethernet)),
        (0x02_0001, Some(LinkLayer::Ethernet)),
        (0x02_0700, Some(LinkLayer::InfiniBand)),
        (0x02_8000, None),
        (0x01_0700, None),
        (0, None),
    ] {
        let tree = Tree::new();
        tree.card("0000:01:00.0", 5).file("class", format!("{class:#08x}\n"));
        assert_eq!(only(&tree).link_layer(), layer, "{class:#x}");
    }
}

#[test]
fn a_link_without_lanes_or_speed_is_none() {
    for (speed, width, is_link) in
        [("16.0 GT/s PCIe", "8", true), ("16.0 GT/s PCIe", "1", true), ("16.0 GT/s PCIe", "0", false), ("Unknown", "8", false)]
    {
        let tree = Tree::new();
        let card = tree.card("0000:01:00.0", 5);
        card.file("current_link_speed", format!("{speed}\n")).file("current_link_width", format!("{width}\n"));
        assert_eq!(only(&tree).link.is_some(), is_link, "{speed} {width}");
    }
}

#[test]
fn a_virtual_function_names_its_physical_one() {
    let tree = Tree::new();
    tree.card("0000:01:00.0", 5).file("sriov_numvfs", "2\n");
    let virtual_function = tree.function("0000:01:00.2", 0x15b3, 0x101e, 0x02_0000, "mlx5_core").group(6);
    // As virtual functions are: identifiers read as ones in the configuration space, and there is no link.
    virtual_function.file("config", config(0xffff, 0xffff, Some(12)));
    virtual_function.file("current_link_speed", "Unknown\n").file("current_link_width", "0\n");
    virtual_function.file("max_link_speed", "Unknown\n").file("max_link_width", "0\n");
    tree.link("sys/bus/pci/devices/0000:01:00.2/physfn", "../0000:01:00.0");
    let found = functions(&Sysfs::at(tree.path())).unwrap();
    assert_eq!(found[0].virtual_functions, 2);
    let got = &found[1];
    assert_eq!((got.name().as_str(), got.physical_function), ("ConnectX VF", Address::new(0, 1, 0, 0)));
    assert_eq!((got.answers, got.msix, got.link.as_ref(), got.driver.as_ref()), (true, Msix::Vectors(12), None, None));
}

#[test]
fn the_group_names_its_other_members() {
    let tree = Tree::new();
    tree.card("0000:01:00.0", 5);
    tree.function("0000:00:01.0", 0x8086, 0x3420, 0x06_0400, "pcieport").group(5).driver("pcieport");
    tree.function("0000:01:00.1", 0x8086, 0x1234, 0x04_0300, "snd_hda_intel").group(5).driver("snd_hda_intel");
    tree.function("0000:01:00.3", 0x8086, 0x1234, 0x04_0300, "snd_hda_intel").group(5);
    tree.function("0000:02:00.0", 0x8086, 0x1234, 0x04_0300, "snd_hda_intel").group(6).driver("snd_hda_intel");
    let others = only(&tree).group.unwrap().others;
    let said: Vec<_> =
        others.iter().map(|other| (other.name.as_str(), other.driver.as_deref(), other.bridge, other.blocks())).collect();
    assert_eq!(
        said,
        [
            ("0000:00:01.0", Some("pcieport"), true, false),
            ("0000:01:00.1", Some("snd_hda_intel"), false, true),
            ("0000:01:00.3", None, false, false),
        ]
    );
}

#[test]
fn drivers_that_leave_dma_to_user_space_do_not_block_a_group() {
    let member = |driver: &str| Member { name: "0000:01:00.1".into(), driver: Some(driver.into()), bridge: false };
    for driver in ["vfio-pci", "mlx5_vfio_pci", "pci-stub", "pcieport"] {
        assert!(!member(driver).blocks(), "{driver}");
    }
    assert!(member("nvme").blocks() && member("mlx5_core").blocks());
}

#[test]
fn the_device_file_of_newer_kernels_is_found() {
    let tree = Tree::new();
    tree.card("0000:01:00.0", 5).vfio(5).file("vfio-dev/vfio3/dev", "511:3\n");
    tree.write("dev/vfio/devices/vfio3", "");
    let got = only(&tree);
    assert_eq!(got.device_file, Some(tree.at("dev/vfio/devices/vfio3")));
    assert_eq!(got.driver_override.as_deref(), Some("vfio-pci"));
}

/// Linux 6.1 has the folder in sysfs without a file in /dev.
#[test]
fn a_device_file_that_the_kernel_does_not_have_is_not_named() {
    let tree = Tree::new();
    tree.card("0000:01:00.0", 5).vfio(5).file("vfio-dev/vfio1/uevent", "");
    assert_eq!(only(&tree).device_file, None);
}

#[test]
fn any_function_can_be_described() {
    let tree = Tree::new();
    tree.function("0000:00:1f.3", 0x8086, 0xa348, 0x04_0300, "snd_hda_intel");
    let sysfs = Sysfs::at(tree.path());
    let got = function(&sysfs, "00:1f.3".parse().unwrap()).unwrap();
    assert_eq!((got.model, got.name().as_str(), got.bar0), (None, "8086:a348", 0));
    assert_eq!(function(&sysfs, "00:1f.4".parse().unwrap()), None);
}
