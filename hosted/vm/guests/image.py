"""The guest's initial file system: kernel modules, tools with their libraries, and the scripts of `guest/`, as one cpio file."""

import difflib
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import time

from .errors import SetUpError

# What every guest can load; what these need is found in the modules themselves.
MODULES = [
    *("mlx5_core", "mlx5_ib", "ib_uverbs", "ib_umad", "rdma_ucm", "ib_ipoib"),
    *("virtio_net", "virtio_pci", "vfio_pci", "vfio_iommu_type1"),
    # Folders of the host, and a command's output.
    *("9p", "9pnet_virtio", "virtio_console"),
]

# What a module asks for by the name of an algorithm, without saying that it needs it: the guest has no modprobe.
ASKS_FOR = {"rdma_rxe": ["crc32_generic"], "ext4": ["crc32c_generic"]}

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
    *("rping", "ucmatose", "udaddy"),
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


def fingerprint(words, paths):
    """Returns a hash of words and of the contents of files."""
    state = hashlib.sha256("\0".join(words).encode())
    for path in paths:
        state.update(f"\0{pathlib.Path(path).name}\0".encode())
        state.update(pathlib.Path(path).read_bytes())
    return state.hexdigest()


def kept(folder, name, state, add):
    """Returns the path of an archive in `folder` that was made from this state: what `add` puts into it, made once."""
    path = folder / f"{name}-{state[:16]}.cpio"
    if path.is_file():
        # It was used today.
        os.utime(path)
        return path
    archive = Archive()
    add(archive)
    folder.mkdir(parents=True, exist_ok=True)
    # Another process may be at the same.
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(archive.bytes())
    fresh.replace(path)
    for other in folder.glob(f"{name}-{'[0-9a-f]' * 16}.*"):
        # Of other states; what nobody has used for a day.
        if other.stat().st_mtime < time.time() - 86400:
            other.unlink(missing_ok=True)
    return path


# What every guest has in its root.
GUEST = pathlib.Path(__file__).resolve().parents[1] / "guest"


class Part:
    """Something that an image has besides what every guest has."""

    def __init__(self, name, words, paths, add, modules=()):
        """It changes with `words` and with the contents of `paths`. `add` puts it into an archive."""
        self.name = name
        self.state = fingerprint(words, paths)
        self.add = add
        self.modules = modules


def build(folder, tree, parts=()):
    """Returns the path of the image in `folder` for a tree of packages, and for the parts that are added; made once."""
    _, release = kernel(tree)
    scripts = sorted(path for path in GUEST.rglob("*") if path.is_file())
    state = fingerprint([tree.fingerprint(), *(part.state for part in parts)], [*scripts, __file__])

    def add(archive):
        for name in ("bin", "dev", "proc", "sys", "tmp", "run", "etc", "var/log", "var/cache/opensm"):
            archive.folder(name)
        archive.link("sbin", "bin")
        archive.link("usr", ".")
        archive.file("bin/busybox", (tree.root / "usr/bin/busybox").read_bytes(), 0o755)
        for script in scripts:
            archive.file(str(script.relative_to(GUEST)), script.read_bytes(), 0o755)
        _programs(archive, tree)
        for part in parts:
            part.add(archive)
        # Some suites have in the kernel itself what others have as a module.
        files = _module_files(tree.root / "lib/modules" / release)
        _modules(archive, files, [*MODULES, *(name for part in parts for name in part.modules)])

    return kept(folder, "-".join([tree.home.name, *(part.name for part in parts)]), state, add)


def add_modules(archive, tree, wanted):
    """Adds modules of a tree's kernel, and those that they need. Raises SetUpError if there is no such module."""
    _, release = kernel(tree)
    files = _module_files(tree.root / "lib/modules" / release)
    for name in wanted:
        if name not in files:
            close = difflib.get_close_matches(name, files, 3, 0.7)
            raise SetUpError(f"the kernel {release} has no module '{name}'" + (f"; similar names: {', '.join(close)}" if close else ""))
    _modules(archive, files, wanted)


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


def _programs(archive, tree):
    provider = tree.libraries / "libmlx5.so.1"
    # What ends a thread loads it by name.
    needed = {provider, tree.libraries / "libgcc_s.so.1"}
    # RoCEv2 in software, to compare with: its module is loaded if it is wanted.
    for software in (tree.libraries / "libibverbs").glob("librxe-*.so"):
        archive.file(f"lib/x86_64-linux-gnu/libibverbs/{software.name}", software.read_bytes(), 0o755)
        needed |= libraries_of(tree, software)
    archive.file("etc/libibverbs.d/rxe.driver", b"driver rxe\n")
    for name in PROGRAMS:
        places = (tree.root / folder / name for folder in ("usr/bin", "usr/sbin"))
        program = next(filter(pathlib.Path.is_file, places), None)
        if program:
            archive.file(f"bin/{name}", program.read_bytes(), 0o755)
            needed |= libraries_of(tree, program)
    needed |= libraries_of(tree, provider)
    archive.file(LOADER, (tree.root / LOADER).resolve().read_bytes(), 0o755)
    for library in sorted(needed):
        archive.file(f"lib/{library.name}", library.resolve().read_bytes(), 0o755)
    # The name that libibverbs opens, beside the library it is a link to.
    for link in (tree.libraries / "libibverbs").glob("libmlx5-*.so"):
        archive.link(f"lib/x86_64-linux-gnu/libibverbs/{link.name}", "/lib/libmlx5.so.1")
    archive.file("etc/libibverbs.d/mlx5.driver", b"driver mlx5\n")
    archive.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n")
    archive.file("etc/hosts", b"127.0.0.1 localhost\n")


def libraries_of(tree, program):
    """Returns the shared libraries of a tree that a program of it needs."""
    # What a program loads by name needs others of its folder.
    folders = f"{tree.libraries}:{program.parent}"
    loader = [str(tree.root / LOADER), "--library-path", folders, "--list", str(program)]
    listed = subprocess.run(loader, capture_output=True, text=True, timeout=30, check=False)
    if listed.returncode != 0:
        raise SetUpError(f"libraries of {program.name}: {listed.stdout}{listed.stderr}".strip())
    names = re.findall(r"^\s*(\S+) => /", listed.stdout, re.MULTILINE)
    return {tree.libraries / name for name in names if (tree.libraries / name).exists()}


def _module_files(folder):
    return {path.name.split(".")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")}


def _modules(archive, files, wanted):
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
        needs += ASKS_FOR.get(name, [])
        return [module for need in needs for module in order(need, seen)] + [name]

    for name in wanted:
        archive.file(f"modules/{name}.order", "".join(f"{module}\n" for module in order(name, set())).encode())
    for name, data in contents.items():
        archive.file(f"modules/{name}.ko", data)
