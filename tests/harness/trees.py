"""The trees of Debian packages that a suite uses."""

import os
import pathlib

from guests import packages
from guests.packages import Tree

from .build import PROJECT

APPLICATIONS = ["ucx-utils", "open-iscsi", "ibutils"]
TOOLS = ["ethtool", "iperf3", "iproute2", "nfs-kernel-server", "tcpdump"]


def cache_folder():
    """Returns the folder of the unpacked packages: in the project, or the one that the environment names."""
    return pathlib.Path(os.environ.get("BAREVERBS_LINUX_CACHE") or PROJECT / "tests/linux/cache").resolve()


def trees():
    """Returns every tree, by name."""
    cache = cache_folder()
    return {
        **packages.trees(cache),
        # QEMU for machines of other processors: only tests/bare-metal needs it.
        "qemu-others": Tree(
            cache,
            "qemu-others",
            ["trixie", "trixie-backports"],
            ["qemu-system-arm", "qemu-system-riscv"],
            pins=[("qemu-system-arm qemu-system-riscv qemu-system-common qemu-system-data ipxe-qemu opensbi", "trixie-backports")],
        ),
        # A network boot program with a driver of its own for ConnectX adapters.
        "ipxe": Tree(cache, "ipxe", ["trixie"], ["ipxe"]),
        # rdma-core's own tests, which only some cases need, and the Python that they run in.
        "trixie-python": Tree(cache, "trixie-python", ["trixie"], ["python3-pyverbs", "python3-scapy", "iproute2"]),
        "bookworm-python": Tree(cache, "bookworm-python", ["bookworm"], ["python3-pyverbs", "python3-scapy", "iproute2"]),
        # Tools for network interfaces, which only cases with Ethernet need. The libfabric of bookworm needs links that only an
        # installation makes.
        "trixie-tools": Tree(cache, "trixie-tools", ["trixie"], [*TOOLS, "libfabric-bin"]),
        "bookworm-tools": Tree(cache, "bookworm-tools", ["bookworm"], TOOLS),
        # What other people wrote for RDMA, which only some cases need.
        "trixie-mpi": Tree(cache, "trixie-mpi", ["trixie"], ["openmpi-bin", "python3-mpi4py"]),
        "trixie-dpdk": Tree(cache, "trixie-dpdk", ["trixie"], ["dpdk-dev"]),
        "trixie-applications": Tree(cache, "trixie-applications", ["trixie"], APPLICATIONS),
        "bookworm-applications": Tree(cache, "bookworm-applications", ["bookworm"], APPLICATIONS),
    }
