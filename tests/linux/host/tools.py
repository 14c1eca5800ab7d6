"""Tools for network interfaces and what is done over them, for the guest's initial file system: Linux's own, tcpdump, iperf3, RoCE in
software (rdma_rxe), libfabric, NFS."""

from guests.image import libraries_of

# What a case may load besides what every guest can.
MODULES = [
    "8021q",
    "rdma_rxe",
    # What it asks for by name, without saying that it needs it: the guest has no modprobe.
    "crc32_generic",
    # A card without a wire, for rdma_rxe in a guest without another one.
    "dummy",
    *("nfsd", "nfsv4", "rpcrdma"),
]

PROGRAMS = [
    *("ethtool", "iperf3", "ip", "rdma", "tcpdump", "fi_pingpong"),
    *("exportfs", "rpc.mountd", "rpc.nfsd"),
]


def add(archive, tree):
    """Puts those of the tools into /bin that the tree has."""
    needed = set()
    for name in PROGRAMS:
        program = next((path for folder in ("usr/bin", "usr/sbin") if (path := tree.root / folder / name).is_file()), None)
        if program is None:
            continue
        archive.file(f"bin/{name}", program.read_bytes(), 0o755)
        needed |= libraries_of(tree, program)
    for library in sorted(needed):
        archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)
    # What the transports of RPC are called, by libtirpc.
    archive.file("etc/netconfig", (tree.root / "etc/netconfig").read_bytes())
