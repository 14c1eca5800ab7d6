"""A kernel of Debian's sources with options that no kernel of Debian has, and trixie's programs with it.

It is built once and kept in the cache. Nothing is installed: make, bison, flex, bc and libelf are unpacked beside it, the compiler is
that of the machine.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import tarfile

from guests import packages
from guests.errors import SetUpError
from guests.processes import LOW_PRIORITY

CONFIG = pathlib.Path(__file__).with_name("iommufd.config")
SOURCE = "linux-source-6.12"
# In seconds: 20 minutes on two slow processors.
BUILD_TIMEOUT = 7200


class BuiltKernel:
    """Trixie with a kernel that has iommufd and VFIO's character devices built in, as Fedora, RHEL and Ubuntu have them."""

    def __init__(self, trixie):
        cache = trixie.home.parent
        self.home = cache / "iommufd"
        self.trixie = trixie
        self.root = trixie.root
        self.libraries = trixie.libraries
        self.source = packages.Tree(cache, "kernel-source", ["trixie"], [SOURCE])
        # Of the oldest suite, so that they run with the machine's own C library.
        self.tools = packages.Tree(cache, "kernel-tools", ["bookworm"], ["make", "bison", "flex", "bc", "libelf-dev"])

    @property
    def boot(self):
        """Returns the folder of the kernel's image."""
        return self.home / "boot"

    def command(self, program):
        """Returns the command line of a program of trixie."""
        return self.trixie.command(program)

    def fingerprint(self):
        """Changes with the programs and with the kernel."""
        return self.trixie.fingerprint() + (self.home / "built-from").read_text()

    def prepare(self, progress):
        """Downloads and builds what is missing."""
        self.trixie.prepare(progress)
        self.source.prepare(progress)
        self.tools.prepare(progress)
        mark = self.home / "built-from"
        recipe = hashlib.sha256(CONFIG.read_bytes() + self.source.fingerprint().encode()).hexdigest()
        if mark.is_file() and mark.read_text() == recipe:
            return
        shutil.rmtree(self.home, ignore_errors=True)
        self.boot.mkdir(parents=True)
        progress.step("iommufd: building a kernel, once: 10 to 40 minutes")
        self._build()
        mark.write_text(recipe)

    def _build(self):
        build = self.home / "build"
        with tarfile.open(self.source.root / f"usr/src/{SOURCE}.tar.xz") as archive:
            archive.extractall(build)
        tree = build / SOURCE
        # Without the C library and the headers of the tools' suite, which are not for this machine's compiler.
        own = self.home / "elf"
        own.mkdir()
        for name in ("libelf.h", "gelf.h"):
            shutil.copy(self.tools.root / "usr/include" / name, own)
        for pattern in ("libelf*.so*", "libz.so*", "libreadline.so*", "libtinfo.so*"):
            for library in self.tools.libraries.glob(pattern):
                shutil.copy(library, own, follow_symlinks=False)
        programs = self.tools.root / "usr/bin"
        environment = dict(
            os.environ,
            PATH=f"{programs}:{os.environ['PATH']}",
            M4=str(programs / "m4"),
            BISON_PKGDATADIR=str(self.tools.root / "usr/share/bison"),
            LD_LIBRARY_PATH=str(own),
        )
        make = [*LOW_PRIORITY, "make", "-s", f"-j{os.cpu_count()}", "ARCH=x86_64"]
        make += [f"LIBELF_FLAGS=-I{own}", f"LIBELF_LIBS=-L{own} -lelf"]
        self._make([*make, f"KCONFIG_ALLCONFIG={CONFIG}", "allnoconfig"], tree, environment)
        lines = (tree / ".config").read_text().splitlines()
        wanted = [line for line in CONFIG.read_text().splitlines() if line.startswith("CONFIG_")]
        missing = [line for line in wanted if line not in lines]
        if missing:
            raise SetUpError(f"the kernel's configuration does not take {', '.join(missing)}")
        self._make([*make, "bzImage"], tree, environment)
        release = (tree / "include/config/kernel.release").read_text().strip()
        shutil.copy(tree / "arch/x86/boot/bzImage", self.boot / f"vmlinuz-{release}-iommufd")
        shutil.rmtree(build)
        shutil.rmtree(own)

    def _make(self, command, tree, environment):
        log = self.home / "build.log"
        with open(log, "ab") as file:
            try:
                done = subprocess.run(command, cwd=tree, env=environment, stdout=file, stderr=file, timeout=BUILD_TIMEOUT, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise SetUpError(f"the kernel's make: {error}") from error
        if done.returncode != 0:
            raise SetUpError(f"the kernel is not built: {log}: {log.read_text(errors='replace')[-500:].strip()}")
