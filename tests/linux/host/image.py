"""The guest's initial file system: kernel modules, tools with their libraries, and the scripts of `guest/`, as one cpio file."""

import hashlib
import lzma
import os
import pathlib
import re
import shutil
import subprocess

from harness.build import PROJECT
from harness.errors import SetUpError

from . import applications, python, soft_roce

# What a case may load; what these need is found in the modules themselves.
MODULES = [
    *("mlx5_core", "mlx5_ib", "ib_uverbs", "ib_umad", "rdma_ucm", "ib_ipoib"),
    *("virtio_net", "virtio_pci", "vfio_pci", "vfio_iommu_type1"),
    # For tests/linux/shell: folders of the host, and a command's output.
    *("9p", "9pnet_virtio", "virtio_console"),
]

PROGRAMS = [
    "ibv_devices",
    "ibv_devinfo",
    "ibv_asyncwatch",
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_srq_pingpong",
    "ibv_xsrq_pingpong",
    *(f"ib_{verb}_{what}" for verb in ("send", "write", "read", "atomic") for what in ("bw", "lat")),
    "rping",
    "ibstat",
    "ibaddr",
    "ibping",
    "smpquery",
    "perfquery",
    "ibnetdiscover",
    "iblinkinfo",
    "ibqueryerrors",
    "ibtracert",
    "ibportstate",
    "saquery",
    "sminfo",
    "opensm",
]

LOADER = "lib64/ld-linux-x86-64.so.2"

# Not among the packages: other working copies use those too, and have scripts and a program of their own.
IMAGES = PROJECT / "target/linux/images"
# What every guest has in its root.
GUEST = PROJECT / "tests/linux/guest"


class Archive:
    """A cpio archive in the format that the kernel unpacks ("newc")."""

    def __init__(self):
        self.parts = []
        self.inode = 0
        self.folders = set()
        self.files = set()

    def _entry(self, name, mode, data=b""):
        self.inode += 1
        path = name.encode() + b"\0"
        numbers = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        header = b"070701" + b"".join(b"%08X" % number for number in numbers) + path
        self.parts += [header, bytes(-len(header) % 4), data, bytes(-len(data) % 4)]

    def _folders_of(self, name):
        parent = os.path.dirname(name)
        if parent:
            self.folder(parent)

    def folder(self, name):
        """Adds a folder and its parents."""
        if name not in self.folders:
            self._folders_of(name)
            self.folders.add(name)
            self._entry(name, 0o040755)

    def file(self, name, data, mode=0o644):
        """Adds a file with these bytes; the first of a name counts."""
        if name in self.files:
            return
        self.files.add(name)
        self._folders_of(name)
        self._entry(name, 0o100000 | mode, data)

    def link(self, name, target):
        """Adds a symbolic link."""
        self._folders_of(name)
        self._entry(name, 0o120777, target.encode())

    def bytes(self):
        """Returns the whole archive."""
        self._entry("TRAILER!!!", 0)
        return b"".join(self.parts)


def kernel(tree):
    """Returns the tree's kernel image and its release."""
    images = sorted(tree.boot.glob("vmlinuz-*"))
    if not images:
        raise SetUpError(f"{tree.home.name}: no kernel was unpacked")
    return images[-1], images[-1].name.removeprefix("vmlinuz-")


def path(tree, with_python=False, with_program=False, with_applications=False, with_soft_roce=False):
    """Returns the path of a tree's image: with rdma-core's Python tests, the project's programs, third-party applications and RoCE
    in software, or without."""
    more = {"python": with_python, "program": with_program, "applications": with_applications, "soft-roce": with_soft_roce}
    return IMAGES / "-".join([tree.home.name, *(name for name, wanted in more.items() if wanted)])


# The service that binds a card at boot, whose commands the case `bind` runs.
SERVICE = PROJECT / "examples/systemd/bareverbs-bind@.service"

# Page and section of the book that the case `readme` runs.
CARD_SECTION = ("docs/src/vfio.md", "Bind, run, unbind")


def card_lines():
    """Returns the command lines of the book for a reader with a card."""
    page, section = CARD_SECTION
    command = [str(PROJECT / "tests/scripts/run-section"), "--print", str(PROJECT / page), section]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise SetUpError(f"the book's lines: {done.stderr.strip()}")
    return done.stdout


def build(tree, python_tree=None, programs=(), applications_tree=None, soft_roce_tree=None):
    """Returns the path of the image for a tree and the guest's scripts; rebuilt when either changed. `python_tree` has
    rdma-core's Python tests, `applications_tree` those of applications.py, `soft_roce_tree` that of soft_roce.py; `programs` were built on this machine and go into /bin
    with the libraries of the tree that they need."""
    _, release = kernel(tree)
    scripts = sorted(path for path in GUEST.rglob("*") if path.is_file())
    state = hashlib.sha256(tree.fingerprint().encode())
    if python_tree:
        state.update(python_tree.fingerprint().encode())
    if applications_tree:
        state.update(applications_tree.fingerprint().encode())
    if soft_roce_tree:
        state.update(soft_roce_tree.fingerprint().encode())
    state.update(card_lines().encode())
    for source in [*scripts, *programs, SERVICE, __file__, python.__file__, applications.__file__, soft_roce.__file__]:
        state.update(str(source).encode() + b"\0")
        with open(source, "rb") as file:
            state.update(file.read())
    image = path(tree, python_tree is not None, bool(programs), applications_tree is not None, soft_roce_tree is not None)
    image.parent.mkdir(parents=True, exist_ok=True)
    mark = image.with_name(f"{image.name}.made-from")
    if image.is_file() and mark.is_file() and mark.read_text() == state.hexdigest():
        return image

    archive = Archive()
    for folder in ("bin", "dev", "proc", "sys", "tmp", "run", "etc", "var/log", "var/cache/opensm"):
        archive.folder(folder)
    archive.link("sbin", "bin")
    archive.link("usr", ".")
    archive.file("bin/busybox", (tree.root / "usr/bin/busybox").read_bytes(), 0o755)
    for script in scripts:
        archive.file(str(script.relative_to(GUEST)), script.read_bytes(), 0o755)
    archive.file("readme-lines", card_lines().encode())
    archive.file(SERVICE.name, SERVICE.read_bytes())
    for program in programs:
        _own(archive, tree, program)
    _programs(archive, tree)
    if python_tree:
        python.add(archive, python_tree, _libraries)
    if applications_tree:
        applications.add(archive, applications_tree, _libraries)
    if soft_roce_tree:
        soft_roce.add(archive, tree, soft_roce_tree, _libraries)
    modules = [
        *MODULES,
        *(applications.MODULES if applications_tree else ()),
        *(soft_roce.MODULES if soft_roce_tree else ()),
    ]
    _modules(archive, tree.root / "lib/modules" / release, modules)
    # Another run may be booting the old one.
    fresh = image.with_name(f"{image.name}.{os.getpid()}")
    fresh.write_bytes(archive.bytes())
    fresh.replace(image)
    mark.write_text(state.hexdigest())
    return image


def fingerprint_of(paths):
    """Returns a hash of the contents of files."""
    state = hashlib.sha256()
    for path in paths:
        state.update(pathlib.Path(path).read_bytes())
    return state.hexdigest()


def join(parts, target):
    """Writes archives, as paths or bytes, behind each other into a file: the kernel unpacks each, and the last of a name counts."""
    with open(target, "wb") as file:
        for part in parts:
            # Each begins at a multiple of four bytes.
            file.write(bytes(-file.tell() % 4))
            if isinstance(part, bytes):
                file.write(part)
            else:
                with open(part, "rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)


def for_ipxe(tree, image, boots, folder):
    """Creates what a guest serves to iPXE and what iPXE starts with, in `folder`: the image of a tree with a kernel, a small
    initial file system and iPXE's script `boots` in /www."""
    vmlinuz, _ = kernel(tree)
    inner = Archive()
    for name in ("dev", "proc", "sys"):
        inner.folder(name)
    inner.file("bin/busybox", (tree.root / "usr/bin/busybox").read_bytes(), 0o755)
    inner.file("init", (boots.parent / "init").read_bytes(), 0o755)
    outer = Archive()
    outer.file("www/vmlinuz", vmlinuz.read_bytes())
    outer.file("www/initrd", inner.bytes())
    served = folder / "guest0.initrd"
    join([image, outer.bytes()], served)
    return served


def _own(archive, tree, program):
    try:
        needed = _libraries(tree, program)
    except SetUpError as error:
        # The loader names the version of the C library that it misses.
        raise SetUpError(f"{program} does not run in a guest of {tree.home.name}: {error}") from error
    archive.file(f"bin/{program.name}", program.read_bytes(), 0o755)
    for library in sorted(needed):
        archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)


def _programs(archive, tree):
    provider = tree.libraries / "libmlx5.so.1"
    # What ends a thread loads it by name.
    needed = {provider, tree.libraries / "libgcc_s.so.1"}
    for name in PROGRAMS:
        places = (tree.root / folder / name for folder in ("usr/bin", "usr/sbin"))
        program = next(filter(pathlib.Path.is_file, places), None)
        if program:
            archive.file(f"bin/{name}", program.read_bytes(), 0o755)
            needed |= _libraries(tree, program)
    needed |= _libraries(tree, provider)
    archive.file(LOADER, (tree.root / LOADER).resolve().read_bytes(), 0o755)
    for library in sorted(needed):
        archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)
    # The name that libibverbs opens, beside the library it is a link to.
    for link in (tree.libraries / "libibverbs").glob("libmlx5-*.so"):
        archive.link(f"lib/x86_64-linux-gnu/libibverbs/{link.name}", "/lib/libmlx5.so.1")
    archive.file("etc/libibverbs.d/mlx5.driver", b"driver mlx5\n")
    archive.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n")
    archive.file("etc/hosts", b"127.0.0.1 localhost\n")


def _libraries(tree, program):
    # What a program loads by name needs others of its folder.
    folders = f"{tree.libraries}:{program.parent}"
    loader = [str(tree.root / LOADER), "--library-path", folders, "--list", str(program)]
    listed = subprocess.run(loader, capture_output=True, text=True, timeout=30, check=False)
    if listed.returncode != 0:
        raise SetUpError(f"libraries of {program.name}: {listed.stdout}{listed.stderr}".strip())
    names = re.findall(r"^\s*(\S+) => /", listed.stdout, re.MULTILINE)
    return {tree.libraries / name for name in names if (tree.libraries / name).exists()}


def _modules(archive, folder, wanted):
    files = {}
    for path in folder.rglob("*.ko*"):
        files[path.name.split(".")[0].replace("-", "_")] = path
    contents = {}

    def order(name, seen):
        if name in seen or name not in files:
            return []
        seen.add(name)
        if name not in contents:
            data = files[name].read_bytes()
            contents[name] = lzma.decompress(data) if files[name].suffix == ".xz" else data
        depends = re.search(rb"\0depends=([^\0]*)\0", contents[name])
        needs = [part.replace("-", "_") for part in (depends.group(1).decode().split(",") if depends else []) if part]
        return [module for need in needs for module in order(need, seen)] + [name]

    for name in wanted:
        archive.file(f"modules/{name}.order", "".join(f"{module}\n" for module in order(name, set())).encode())
    for name, data in contents.items():
        archive.file(f"modules/{name}.ko", data)
