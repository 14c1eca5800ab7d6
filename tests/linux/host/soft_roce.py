"""RoCEv2 in software, for the guest's initial file system: the kernel's rdma_rxe, its provider in user space, and the tool that makes
a device of it."""

# What a case may load besides image.MODULES.
MODULES = [
    "rdma_rxe",
    # What it asks for by name, without saying that it needs it: the guest has no modprobe.
    "crc32_generic",
]

PROGRAM = "usr/bin/rdma"


def add(archive, tree, tool_tree, libraries_of):
    """Puts the tool of `tool_tree` into /bin, and the provider of `tree` where libibverbs looks for it. `libraries_of` names the shared
    libraries that a file needs."""
    tool = tool_tree.root / PROGRAM
    archive.file(f"bin/{tool.name}", tool.read_bytes(), 0o755)
    needed = libraries_of(tool_tree, tool)
    for provider in (tree.libraries / "libibverbs").glob("librxe-*.so"):
        archive.file(f"lib/x86_64-linux-gnu/libibverbs/{provider.name}", provider.read_bytes(), 0o755)
        needed |= libraries_of(tree, provider)
    archive.file("etc/libibverbs.d/rxe.driver", b"driver rxe\n")
    for library in sorted(needed):
        archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)
