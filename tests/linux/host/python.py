"""Python, and rdma-core's own tests that it runs, for the guest's initial file system."""

import gzip

from guests.errors import SetUpError
from guests.image import libraries_of

# Parts of the standard library that no test needs, by the first part of their path.
WITHOUT = ("test", "idlelib", "ensurepip", "pydoc_data", "lib2to3", "tkinter", "venv", "sqlite3", "config-", "__pycache__")

# What the tests call.
PROGRAMS = ["usr/bin/rdma", "usr/bin/ip", "usr/sbin/devlink"]

TESTS = "usr/share/doc/rdma-core/tests"


def add_interpreter(archive, tree, programs):
    """Puts the interpreter, the library and these programs of the tree into the archive."""
    version = sorted(path.name for path in (tree.root / "usr/lib").glob("python3.*"))
    if not version:
        raise SetUpError(f"{tree.home.name}: no Python was unpacked")
    needed = set()
    for name, place in [(f"usr/bin/{version[-1]}", "bin/python3"), *((name, f"bin/{name.split('/')[-1]}") for name in programs)]:
        archive.file(place, (tree.root / name).read_bytes(), 0o755)
        needed |= libraries_of(tree, tree.root / name)
    for folder, place in ((version[-1], f"lib/{version[-1]}"), ("python3/dist-packages", "lib/python3/dist-packages")):
        base = tree.root / "usr/lib" / folder
        for path in sorted(base.rglob("*")):
            name = path.relative_to(base)
            if not path.is_file() or name.parts[0].startswith(WITHOUT):
                continue
            if path.suffix == ".so":
                needed |= libraries_of(tree, path)
            archive.file(f"{place}/{name}", path.read_bytes())
    for library in sorted(needed):
        archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)


def add(archive, tree):
    """Puts interpreter, library and tests into the interpreter's search path."""
    add_interpreter(archive, tree, PROGRAMS)
    for path in sorted((tree.root / TESTS).iterdir()):
        # Debian compresses the longer ones.
        packed = path.suffix == ".gz"
        data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
        archive.file(f"rdma-core/tests/{path.name.removesuffix('.gz')}", data)
