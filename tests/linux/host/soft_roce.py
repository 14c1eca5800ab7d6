"""RoCEv2 in software, for the guest's initial file system: the kernel's rdma_rxe, and the tool that makes a device of it."""

from guests.image import libraries_of

# What a case may load besides what every guest can.
MODULES = [
    "rdma_rxe",
    # What it asks for by name, without saying that it needs it: the guest has no modprobe.
    "crc32_generic",
]

PROGRAM = "usr/bin/rdma"


def add(archive, tool_tree):
    """Puts the tool into /bin."""
    tool = tool_tree.root / PROGRAM
    archive.file(f"bin/{tool.name}", tool.read_bytes(), 0o755)
    for library in sorted(libraries_of(tool_tree, tool)):
        archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)
