//! A simulated machine in a folder: `sys`, `proc` and `dev` with PCI functions, and the reactions of the kernel to writes.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A machine with an IOMMU and loaded drivers, without functions at first.
pub struct Tree {
    root: TempDir,
}

/// A function of it.
pub struct Entry<'a> {
    tree: &'a Tree,
    address: String,
}

impl Tree {
    pub fn new() -> Self {
        let tree = Self { root: tempfile::tempdir().unwrap() };
        for driver in ["mlx5_core", "vfio-pci", "pcieport", "snd_hda_intel"] {
            tree.driver(driver);
        }
        tree.write("sys/bus/pci/drivers_probe", "");
        tree.write("sys/module/vfio_iommu_type1/initstate", "live\n");
        tree.write("dev/vfio/vfio", "");
        tree.write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n");
        tree.write("proc/cmdline", "quiet intel_iommu=on\n");
        tree.write("proc/net/route", "Iface\tDestination\tGateway\tFlags\n");
        tree
    }

    pub fn path(&self) -> &Path {
        self.root.path()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.path().join(path)
    }

    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    pub fn link(&self, path: &str, target: impl AsRef<Path>) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        symlink(target, self.at(path)).unwrap();
    }

    pub fn remove(&self, path: &str) {
        let path = self.at(path);
        if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    /// Adds a loaded driver.
    pub fn driver(&self, name: &str) {
        for file in ["bind", "unbind"] {
            self.write(&format!("sys/bus/pci/drivers/{name}/{file}"), "");
        }
    }

    /// Adds a process that has a file open.
    pub fn process(&self, pid: u32, name: &str, file: &str) {
        self.write(&format!("proc/{pid}/comm"), format!("{name}\n"));
        self.link(&format!("proc/{pid}/fd/3"), self.at(file));
        self.link(&format!("proc/{pid}/fd/4"), "socket:[1234]");
    }

    /// Adds a default route over an interface.
    pub fn route(&self, interface: &str) {
        let line = format!(
            "Iface\tDestination\tGateway\tFlags\n{interface}\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        );
        self.write("proc/net/route", line);
    }

    /// Adds a PCI function without a driver; `native` is the driver that the kernel chooses for it.
    pub fn function(&self, address: &str, vendor: u16, device: u16, class: u32, native: &str) -> Entry<'_> {
        let entry = Entry { tree: self, address: address.into() };
        entry.file("vendor", format!("{vendor:#06x}\n"));
        entry.file("device", format!("{device:#06x}\n"));
        entry.file("class", format!("{class:#08x}\n"));
        entry.file("driver_override", "(null)\n");
        entry.file("numa_node", "-1\n");
        entry.file("reset", "");
        entry.file("config", config(vendor, device, Some(64)));
        entry.file("resource", "0x0000000000000000 0x0000000000000000 0x0000000000000000\n");
        self.write(&format!("native/{address}"), native);
        entry
    }

    /// Adds a ConnectX-7 in group `group`, bound to mlx5_core.
    pub fn card(&self, address: &str, group: u32) -> Entry<'_> {
        let entry = self.function(address, 0x15b3, 0x1021, 0x02_0700, "mlx5_core").group(group).driver("mlx5_core");
        entry.file("resource", "0x0000380000000000 0x0000380001ffffff 0x000000000014220c\n0x0 0x0 0x0\n");
        entry.file("current_link_speed", "16.0 GT/s PCIe\n");
        entry.file("current_link_width", "8\n");
        entry.file("max_link_speed", "32.0 GT/s PCIe\n");
        entry.file("max_link_width", "16\n");
        entry.file("sriov_numvfs", "0\n");
        entry
    }

    /// Simulates the reaction of the kernel to a write of `value` to a file.
    pub fn react(&self, path: &Path, value: &str) -> io::Result<()> {
        let name = path.strip_prefix(self.path()).unwrap().to_str().unwrap();
        let words: Vec<_> = name.split('/').collect();
        match words.as_slice() {
            ["sys", "bus", "pci", "devices", _, "driver_override"] => {
                self.write(name, if value.is_empty() { "(null)\n".into() } else { format!("{value}\n") });
                Ok(())
            }
            ["sys", "bus", "pci", "drivers", driver, "unbind"] => self.unbind(driver, value),
            ["sys", "bus", "pci", "drivers", driver, "bind"] => self.bind(driver, value),
            ["sys", "bus", "pci", "drivers_probe"] => {
                let device = format!("sys/bus/pci/devices/{value}");
                if !self.at(&device).exists() {
                    return Err(io::Error::from_raw_os_error(22));
                }
                if !self.at(&format!("{device}/driver")).exists() {
                    let driver = self.only(value).unwrap_or_else(|| self.read(&format!("native/{value}")));
                    // A missing or refusing driver leaves the function unbound: a probe reports no error.
                    let _ = self.bind(&driver, value);
                }
                Ok(())
            }
            _ => panic!("{name} is not to be written"),
        }
    }

    fn only(&self, address: &str) -> Option<String> {
        let only = self.read(&format!("sys/bus/pci/devices/{address}/driver_override"));
        Some(only.trim().to_string()).filter(|only| only != "(null)" && !only.is_empty())
    }

    fn unbind(&self, driver: &str, address: &str) -> io::Result<()> {
        let device = format!("sys/bus/pci/devices/{address}");
        let bound = fs::read_link(self.at(&format!("{device}/driver"))).ok();
        if bound.as_deref().and_then(Path::file_name) != Some(driver.as_ref()) {
            return Err(io::Error::from_raw_os_error(19));
        }
        self.remove(&format!("{device}/driver"));
        for made in ["net", "infiniband", "infiniband_verbs"] {
            if self.at(&format!("{device}/{made}")).exists() {
                self.remove(&format!("{device}/{made}"));
            }
        }
        Ok(())
    }

    fn bind(&self, driver: &str, address: &str) -> io::Result<()> {
        let device = format!("sys/bus/pci/devices/{address}");
        let only = self.only(address);
        let matches = only.as_deref().map_or_else(|| self.read(&format!("native/{address}")) == driver, |only| only == driver);
        let free = !self.at(&format!("{device}/driver")).exists();
        if !matches
            || !free
            || !self.at(&format!("sys/bus/pci/drivers/{driver}")).exists()
            || self.at(&format!("broken/{driver}")).exists()
        {
            return Err(io::Error::from_raw_os_error(19));
        }
        self.link(&format!("{device}/driver"), format!("../../../../bus/pci/drivers/{driver}"));
        if driver == "vfio-pci" {
            let group = fs::read_link(self.at(&format!("{device}/iommu_group"))).unwrap();
            self.write(&format!("dev/vfio/{}", group.file_name().unwrap().to_str().unwrap()), "");
        }
        Ok(())
    }
}

impl Entry<'_> {
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> &Self {
        self.tree.write(&format!("sys/bus/pci/devices/{}/{name}", self.address), text);
        self
    }

    pub fn driver(self, name: &str) -> Self {
        let link = format!("sys/bus/pci/devices/{}/driver", self.address);
        if self.tree.at(&link).is_symlink() {
            self.tree.remove(&link);
        }
        self.tree.link(&link, format!("../../../../bus/pci/drivers/{name}"));
        self
    }

    pub fn group(self, number: u32) -> Self {
        let device = format!("sys/bus/pci/devices/{}", self.address);
        self.tree.link(&format!("{device}/iommu_group"), format!("../../../../kernel/iommu_groups/{number}"));
        let member = format!("sys/kernel/iommu_groups/{number}/devices/{}", self.address);
        self.tree.link(&member, self.tree.at(&device));
        self
    }

    /// Binds it to vfio-pci as `bind` does, and creates the file of its group.
    pub fn vfio(self, group: u32) -> Self {
        self.tree.write(&format!("dev/vfio/{group}"), "");
        self.file("driver_override", "vfio-pci\n");
        self.driver("vfio-pci")
    }

    /// Adds a network interface of the driver.
    pub fn interface(self, name: &str, flags: u32) -> Self {
        self.file(&format!("net/{name}/flags"), format!("{flags:#x}\n"));
        self
    }

    /// Adds an RDMA device of the driver.
    pub fn rdma(self, name: &str, verbs: &str) -> Self {
        self.file(&format!("infiniband/{name}/node_guid"), "0200:0000:0000:0100\n");
        self.file(&format!("infiniband_verbs/{verbs}/ibdev"), format!("{name}\n"));
        self.tree.write(&format!("dev/infiniband/{verbs}"), "");
        self
    }
}

/// Returns a configuration space with a PCI Express capability, followed by MSI-X.
pub fn config(vendor: u16, device: u16, vectors: Option<u16>) -> Vec<u8> {
    let mut config = vec![0; 256];
    config[0..2].copy_from_slice(&vendor.to_le_bytes());
    config[2..4].copy_from_slice(&device.to_le_bytes());
    config[6] = 0x10;
    config[0x34] = 0x60;
    config[0x60..0x64].copy_from_slice(&[0x10, if vectors.is_some() { 0x9c } else { 0 }, 2, 0]);
    if let Some(vectors) = vectors {
        config[0x9c] = 0x11;
        config[0x9e..0xa0].copy_from_slice(&(0x8000 | (vectors - 1)).to_le_bytes());
    }
    config
}
