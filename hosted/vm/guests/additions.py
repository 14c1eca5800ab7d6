"""What a user adds to a guest: own programs with the shared libraries that they need, and Debian packages."""

import os
import pathlib
import re
import shutil
import subprocess

from . import elf, image
from .errors import SetUpError

LOADER = f"/{image.LOADER}"

# Where the loader of a guest looks first.
LIBRARIES = "lib/x86_64-linux-gnu"

# They belong to the guest's kernel, loader or configuration: a copy of the host's would not fit.
OF_THE_GUEST = re.compile(r"(ld-linux-x86-64|lib(c|m|mvec|dl|rt|pthread|util|resolv|anl|nss_\w+|ibverbs|mlx5))\.so\.\d+")

# Where the loader of a host looks at last.
DEFAULT_FOLDERS = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]

# What a shell does itself, whatever is in its search path.
BUILT_IN = {"test", "[", "echo", "printf", "true", "false", "kill", "read", "set", "type", "time", "wait", "exec", "exit", "cd", "pwd"}

# Parts of packages that no program reads.
WITHOUT = tuple(f"usr/share/{name}/" for name in ("doc", "man", "locale", "info", "lintian", "bug", "doc-base"))


class Programs:
    """Programs of the host for a guest of a tree of packages, put into an archive. `installed` is the tree of the packages that are
    added to it."""

    def __init__(self, tree, installed=None, archive=None):
        self.tree = tree
        self.installed = installed
        self.trees = [each for each in (installed, tree) if each]
        self.archive = archive or image.Archive()
        #: Where each library of the host comes from, by name.
        self.taken = {}
        self._cache = None

    def add(self, path, name=None):
        """Adds a program, a script or a shared library of the host, under its own name if none is given; raises SetUpError if it would
        not start in the guest."""
        if not path.is_file():
            raise SetUpError(f"--program {path}: no such file" + (" (a folder: --share shows it)" if path.is_dir() else ""))
        data = path.read_bytes()
        name = name or path.name
        if name in BUILT_IN:
            raise SetUpError(f"--program {path}: the shell of the guest has a command '{name}' of its own; give it another name")
        if data[:2] == b"#!":
            self._check_script(path, data)
        else:
            found = self._parse(path, data)
            if found.machine != "x86-64":
                raise SetUpError(
                    f"--program {path}: it is for {found.machine}, and the guest is x86-64: build it for x86-64 (Rust: --target "
                    "x86_64-unknown-linux-gnu)"
                )
            if not found.interpreter and ".so" in name:
                self.taken[name] = path
                self.archive.file(f"{LIBRARIES}/{name}", data, 0o755)
            self._add_needed(path, found, [])
            if found.interpreter and found.interpreter != LOADER:
                self._add_interpreter(path, found.interpreter)
            if not found.interpreter and ".so" in name:
                return
        self.archive.file(f"bin/{name}", data, 0o755)

    def _check_script(self, path, data):
        words = data[2:].split(b"\n", 1)[0].decode(errors="replace").split()
        command = pathlib.PurePath(words[0]).name if words else ""
        if command == "env" and len(words) > 1:
            command = words[1]
        places = [tree.root / folder / command for tree in self.trees[:-1] for folder in ("usr/bin", "usr/sbin")]
        if command not in ("sh", "ash", "busybox", "awk") and not any(place.is_file() for place in places):
            raise SetUpError(
                f"--program {path}: it is a script of '{command}', which the guest does not have: --install its package "
                f"({'python3' if command.startswith('python') else command}, if that is its name)"
            )

    @staticmethod
    def _parse(path, data):
        try:
            return elf.parse(data)
        except ValueError as error:
            raise SetUpError(f"--program {path}: {error}; programs, scripts with '#!' and shared libraries can be added") from error

    def _add_interpreter(self, path, interpreter):
        if not os.path.isfile(interpreter):
            raise SetUpError(f"--program {path}: its loader {interpreter} is not on this machine: install it, or link it statically")
        self.archive.file(interpreter.lstrip("/"), pathlib.Path(interpreter).read_bytes(), 0o755)

    def _add_needed(self, path, found, chain):
        """Adds the libraries that a file needs; `chain` has those that needed it."""
        foreign = found.interpreter not in (None, LOADER)
        for name in found.needed:
            wanted = found.versions_needed.get(name, [])
            if name in self.taken:
                continue
            own = None if foreign else self._guest_library(name)
            missing = self._missing(own, wanted) if own else wanted
            if own and not missing:
                self.taken[name] = own
                self.archive.file(f"{LIBRARIES}/{name}", own.resolve().read_bytes(), 0o755)
                self._add_needed(own, elf.parse(own.read_bytes()), [*chain, path])
                continue
            if own and OF_THE_GUEST.fullmatch(name):
                raise SetUpError(self._too_old(path, name, own, missing))
            host = self._host_library(name, path, found, chain)
            if host is None:
                raise SetUpError(
                    f"--program {(chain + [path])[0]}: {path.name} needs {name}, which is neither in the guest nor on this machine: "
                    "--install its package, give its folder in LD_LIBRARY_PATH, or link it statically"
                )
            self.taken[name] = host
            self.archive.file(f"{LIBRARIES}/{name}", host.read_bytes(), 0o755)
            self._add_needed(host, elf.parse(host.read_bytes()), [*chain, path])

    def _guest_library(self, name):
        places = (tree.libraries / name for tree in self.trees)
        return next((place for place in places if place.is_file()), None)

    @staticmethod
    def _missing(library, wanted):
        defined = elf.parse(library.read_bytes()).versions_defined
        return [version for version in wanted if defined and version not in defined]

    def _too_old(self, path, name, own, missing):
        def order(version):
            return [int(part) for part in re.findall(r"\d+", version)]

        defined = elf.parse(own.read_bytes()).versions_defined
        kind = missing[0].split("_")[0]
        newest = max((version for version in defined if re.fullmatch(rf"{kind}_[\d.]+", version)), key=order, default="none")
        suite = self.tree.home.name
        other = "--kernel 6.12, " if suite == "bookworm" else ""
        return (
            f"--program {path}: it needs {max(missing, key=order)} of {name}, and the guest (Debian {suite}) has {newest} at most: "
            f"{other}build it on an older distribution, or link it statically"
        )

    def _host_library(self, name, path, found, chain):
        if "/" in name:
            return pathlib.Path(name) if os.path.isfile(name) else None
        folders = [*([] if found.runpath else self._expand(found.rpath, path))]
        folders += [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
        folders += self._expand(found.runpath, path)
        # A library's folder is not searched by itself, but those of the program that needs it are, if it says so by RPATH.
        for parent in chain:
            parsed = elf.parse(parent.read_bytes())
            folders += self._expand(parsed.rpath, parent)
        for folder in folders:
            if self._fits(pathlib.Path(folder) / name):
                return pathlib.Path(folder) / name
        if self._fits(self._cached(name)):
            return self._cached(name)
        return next((pathlib.Path(folder) / name for folder in DEFAULT_FOLDERS if self._fits(pathlib.Path(folder) / name)), None)

    @staticmethod
    def _expand(folders, path):
        origin = str(path.resolve().parent)
        return [folder.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for folder in folders if folder]

    @staticmethod
    def _fits(place):
        if not place or not place.is_file():
            return False
        try:
            return elf.parse(place.read_bytes()).machine == "x86-64"
        except ValueError:
            return False

    def _cached(self, name):
        """Returns where the loader's cache of this machine has a library."""
        if self._cache is None:
            program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
            listed = ""
            if program:
                listed = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=30, check=False).stdout
            self._cache = {}
            for found in re.finditer(r"^\s*(\S+) \(([^)]*)\) => (\S+)$", listed, re.MULTILINE):
                if "x86-64" in found[2]:
                    self._cache.setdefault(found[1], pathlib.Path(found[3]))
        return self._cache.get(name)


def packages(folder, tree):
    """Returns the path of an archive in `folder` with all files of a tree of packages, where a guest has them; built once."""
    state = image.fingerprint([tree.fingerprint()], [__file__, image.__file__])
    return image.kept(folder, tree.home.name, state, lambda archive: _add_packages(archive, tree))


def _add_packages(archive, tree):
    for folder, folders, files in os.walk(tree.root):
        here = pathlib.Path(folder)
        for name in sorted([*files, *(name for name in folders if (here / name).is_symlink())]):
            path = here / name
            place = path.relative_to(tree.root).as_posix()
            if place.startswith((*WITHOUT, "boot/")) or (here == tree.root and path.is_symlink()):
                continue
            target = os.path.normpath(os.path.join("/", os.path.dirname(place), os.readlink(path))).lstrip("/") if path.is_symlink() else ""
            place = in_guest(place)
            if path.is_symlink():
                # Not a link to itself, as that of iproute2 from /usr/sbin/ip to /usr/bin/ip would be.
                if in_guest(target) != place:
                    archive.link(place, os.readlink(path))
            elif path.is_file():
                archive.file(place, path.read_bytes(), 0o755 if path.stat().st_mode & 0o111 else 0o644)


def in_guest(place):
    """Returns where a guest has a file of a package: its /usr is its root, and its /sbin is its /bin."""
    place = place.removeprefix("usr/")
    first, _, rest = place.partition("/")
    return f"bin/{rest}" if first in ("sbin", "games") and rest else place
