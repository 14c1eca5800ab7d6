"""Third-party RDMA applications for the guest's initial file system: UCX, the iSCSI initiator, ibdiagnet, and the kernel's
storage protocols."""

from guests.image import libraries_of

# What a case may load besides what every guest can.
MODULES = [
    *("target_core_mod", "target_core_file", "ib_srpt", "ib_isert", "iscsi_target_mod", "nvmet_rdma"),
    *("ib_srp", "ib_iser", "nvme_rdma", "sd_mod", "loop", "ext4"),
    # What some of them ask for by name, without saying that they need it: the guest has no modprobe.
    "crc32c_generic",
]

PROGRAMS = [
    *("usr/bin/ucx_info", "usr/bin/ucx_perftest"),
    *("usr/sbin/iscsid", "usr/sbin/iscsiadm", "usr/sbin/iscsi-iname"),
    *("usr/bin/ibis", "usr/bin/ibdiagnet"),
]

# Those of UCX for other hardware.
WITHOUT = ("libuct_rocm", "libucm_rocm", "libucx_perftest_rocm")


def add(archive, tree):
    """Puts the programs into /bin, and the libraries that they load by name into their search path."""
    needed = set()
    for name in PROGRAMS:
        program = tree.root / name
        archive.file(f"bin/{program.name}", program.read_bytes(), 0o755)
        if program.read_bytes()[:4] == b"\x7fELF":
            needed |= libraries_of(tree, program)
    add_ucx(archive, tree)
    # ibdiagnet is a script in Tcl.
    for package in ("ibis", "ibdm", "ibdiagnet"):
        for folder in tree.libraries.glob(f"{package}1.*"):
            _folder(archive, folder, f"lib/x86_64-linux-gnu/{folder.name}")
            for library in sorted(folder.glob("*.so*")):
                needed |= libraries_of(tree, library)
    for library in sorted(needed):
        archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)
    for folder in (tree.root / "usr/share/tcltk").glob("tcl8.*"):
        _folder(archive, folder, f"share/tcltk/{folder.name}")


def add_ucx(archive, tree):
    """Puts the transports of UCX, which it loads by name, beside its libraries."""
    needed = set()
    for plugin in sorted((tree.libraries / "ucx").glob("*.so.0")):
        if plugin.name.startswith(WITHOUT):
            continue
        archive.file(f"lib/ucx/{plugin.name}", plugin.resolve().read_bytes(), 0o755)
        needed |= libraries_of(tree, plugin)
    for library in sorted(needed):
        archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)


def _folder(archive, folder, place):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            archive.file(f"{place}/{path.relative_to(folder)}", path.resolve().read_bytes(), 0o755)
