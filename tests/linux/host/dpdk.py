"""DPDK's testpmd with the driver of mlx5, for the guest's initial file system."""

from guests.image import libraries_of

PROGRAM = "usr/bin/dpdk-testpmd"

# Of the drivers that DPDK loads by name those that an mlx5 adapter needs.
DRIVERS = ("librte_bus_auxiliary", "librte_bus_pci", "librte_common_mlx5", "librte_mempool_ring", "librte_net_mlx5")


def add(archive, tree):
    """Puts the program into /bin, and the drivers where it looks for them."""
    needed = set(libraries_of(tree, tree.root / PROGRAM))
    archive.file("bin/dpdk-testpmd", (tree.root / PROGRAM).read_bytes(), 0o755)
    for folder in sorted((tree.libraries / "dpdk").glob("pmds-*")):
        for driver in sorted(folder.glob("*.so")):
            if driver.name.removesuffix(".so") not in DRIVERS:
                continue
            needed |= libraries_of(tree, driver)
            archive.link(f"lib/x86_64-linux-gnu/dpdk/{folder.name}/{driver.name}", f"/lib/{driver.resolve().name.rsplit('.', 1)[0]}")
            needed.add(tree.libraries / driver.resolve().name.rsplit(".", 1)[0])
    for library in sorted(needed):
        archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)
