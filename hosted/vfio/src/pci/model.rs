//! Device identifiers: the functions that Linux's mlx5_core drives, and those of adapters in firmware recovery.

/// PCI vendor identifier of Mellanox and NVIDIA networking.
pub const MELLANOX: u16 = 0x15b3;

/// Kind of function of a device identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A physical function.
    Physical,
    /// An SR-IOV virtual function.
    Virtual,
    /// An adapter whose firmware did not start: it can only be flashed.
    Recovery,
}

/// The product of a device identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// PCI device identifier.
    pub device: u16,
    /// Name of the product.
    pub name: &'static str,
    /// Kind of function.
    pub kind: Kind,
}

const fn physical(device: u16, name: &'static str) -> Model {
    Model { device, name, kind: Kind::Physical }
}

const fn virtual_function(device: u16, name: &'static str) -> Model {
    Model { device, name, kind: Kind::Virtual }
}

const fn recovery(device: u16, name: &'static str) -> Model {
    Model { device, name, kind: Kind::Recovery }
}

impl Model {
    /// The identifiers of `mlx5_core_pci_table` in Linux (`drivers/net/ethernet/mellanox/mlx5/core/main.c`), and those of
    /// adapters in recovery as `mstflint` knows them.
    pub const ALL: &'static [Self] = &[
        physical(0x1011, "Connect-IB"),
        virtual_function(0x1012, "Connect-IB"),
        physical(0x1013, "ConnectX-4"),
        virtual_function(0x1014, "ConnectX-4"),
        physical(0x1015, "ConnectX-4 Lx"),
        virtual_function(0x1016, "ConnectX-4 Lx"),
        physical(0x1017, "ConnectX-5"),
        virtual_function(0x1018, "ConnectX-5"),
        physical(0x1019, "ConnectX-5 Ex"),
        virtual_function(0x101a, "ConnectX-5 Ex"),
        physical(0x101b, "ConnectX-6"),
        virtual_function(0x101c, "ConnectX-6"),
        physical(0x101d, "ConnectX-6 Dx"),
        // The virtual functions of all later products share one identifier.
        virtual_function(0x101e, "ConnectX"),
        physical(0x101f, "ConnectX-6 Lx"),
        physical(0x1021, "ConnectX-7"),
        physical(0x1023, "ConnectX-8"),
        physical(0x1025, "ConnectX-9"),
        physical(0x1027, "ConnectX-10"),
        physical(0x2101, "ConnectX-10 NVLink-C2C"),
        physical(0xa2d2, "BlueField"),
        virtual_function(0xa2d3, "BlueField"),
        physical(0xa2d6, "BlueField-2"),
        physical(0xa2dc, "BlueField-3"),
        physical(0xa2df, "BlueField-4"),
        recovery(0x01ff, "Connect-IB"),
        recovery(0x0209, "ConnectX-4"),
        recovery(0x020b, "ConnectX-4 Lx"),
        recovery(0x020d, "ConnectX-5"),
        recovery(0x020f, "ConnectX-6"),
        recovery(0x0210, "ConnectX-6"),
        recovery(0x0211, "BlueField"),
        recovery(0x0212, "ConnectX-6 Dx"),
        recovery(0x0213, "ConnectX-6 Dx"),
        recovery(0x0214, "BlueField-2"),
        recovery(0x0215, "BlueField-2"),
        recovery(0x0216, "ConnectX-6 Lx"),
        recovery(0x0217, "ConnectX-6 Lx"),
        recovery(0x0218, "ConnectX-7"),
        recovery(0x0219, "ConnectX-7"),
        recovery(0x021a, "BlueField-3 Lx"),
        recovery(0x021b, "BlueField-3 Lx"),
        recovery(0x021c, "BlueField-3"),
        recovery(0x021d, "BlueField-3"),
        recovery(0x021e, "ConnectX-8"),
        recovery(0x0220, "BlueField-4"),
    ];

    /// Returns the model with these identifiers, if it is one of [`Model::ALL`].
    pub fn find(vendor: u16, device: u16) -> Option<Self> {
        if vendor != MELLANOX {
            return None;
        }
        Self::ALL.iter().find(|model| model.device == device).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_identifier_stands_for_one_model() {
        let mut seen = std::collections::BTreeSet::new();
        assert!(Model::ALL.iter().all(|model| seen.insert(model.device)));
        assert_eq!(Model::find(0x15b3, 0x1021).map(|model| (model.name, model.kind)), Some(("ConnectX-7", Kind::Physical)));
        assert_eq!(Model::find(0x15b3, 0x101e).map(|model| model.kind), Some(Kind::Virtual));
        assert_eq!(Model::find(0x15b3, 0x0218).map(|model| model.kind), Some(Kind::Recovery));
        // ConnectX-3: mlx4.
        assert_eq!(Model::find(0x15b3, 0x1003), None);
        assert_eq!(Model::find(0x8086, 0x1021), None);
    }
}
