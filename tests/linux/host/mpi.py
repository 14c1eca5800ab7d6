"""Open MPI with UCX below it, and Python's bindings, for the guest's initial file system."""

from guests.image import libraries_of

from .applications import add_ucx
from .python import add_interpreter

# The launcher, and what it starts on each machine.
PROGRAMS = ["usr/bin/mpirun.openmpi", "usr/bin/prterun", "usr/bin/prted"]

# The texts of their messages, and their settings.
FOLDERS = ["usr/share/openmpi", "usr/share/prte", "usr/share/pmix", "etc/openmpi"]


def add(archive, tree):
    """Puts Python, the launcher and UCX's transports into the archive."""
    add_interpreter(archive, tree, PROGRAMS)
    archive.link("bin/mpirun", "mpirun.openmpi")
    add_ucx(archive, tree)
    for name in FOLDERS:
        folder = tree.root / name
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.file(f"{name.removeprefix('usr/')}/{path.relative_to(folder)}", path.read_bytes())
    # It loads what compresses its messages by name.
    for plugin in sorted((tree.libraries / "pmix2/lib/pmix").glob("*.so")):
        archive.file(f"lib/x86_64-linux-gnu/pmix2/lib/pmix/{plugin.name}", plugin.read_bytes(), 0o755)
        for library in sorted(libraries_of(tree, plugin)):
            archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)
