"""The firmware programs: their builds for each machine, and the memory that each takes."""

import dataclasses
import os
import pathlib
import shutil
import struct
import subprocess

from guests.errors import SetUpError
from harness import build

#: Rust's target of each machine.
TARGETS = {
    "x86_64": "x86_64-unknown-none",
    "aarch64": "aarch64-unknown-none",
    "riscv64": "riscv64gc-unknown-none-elf",
    "microvm": "x86_64-unknown-none",
}

#: What the table of sizes shows.
PROGRAMS = ["bring-up", "pingpong", "pingpong-in-c", "write", "write-in-c"]

#: Features that choose a machine among those of its processor. Cargo has one place for the programs of a target: these are copied to a
#: folder of their own, before the programs without a feature are built.
FEATURES = {"microvm": ["--features", "microvm"]}

#: The section of an ELF file with the strings of a log.
LOG_SECTION = ".defmt"

#: Machine numbers of ELF.
ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}


def _add_targets(wanted):
    """Installs, with rustup, the core library of targets that lack it."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    library = pathlib.Path(sysroot) / "lib/rustlib"
    missing = [target for target in wanted if not list((library / target / "lib").glob("libcore-*.rlib"))]
    if missing and shutil.which("rustup"):
        done = subprocess.run(["rustup", "target", "add", *missing], capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise SetUpError(f"rustup target add: {done.stderr.strip()[-1000:]}")


class Images:
    """Returns the folder of the built programs."""

    def __init__(self):
        self.workspace = build.PROJECT / "examples/firmware"
        self.output = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or self.workspace / "target").resolve()

    @property
    def decoder(self):
        """Returns the host's decoder of serial lines."""
        return self.output / "debug/serial-log"

    def folder(self, machine):
        """Returns the folder of a machine's programs."""
        return self.output / TARGETS[machine] / (f"release-{machine}" if machine in FEATURES else "release")

    def path(self, machine, program):
        """Returns the ELF file of a program."""
        return self.folder(machine) / program

    def build_c(self):
        """Builds the programs in C, for the one machine that they are for."""
        _add_targets([TARGETS["riscv64"]])
        command = [str(build.PROJECT / "examples/c/firmware/build"), str(self.folder("riscv64"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
        if done.returncode != 0:
            raise SetUpError(done.stderr.strip()[-1000:])

    def build_decoder(self):
        """Builds the decoder of serial lines."""
        build.cargo("--package", "serial-log", folder=self.workspace)

    def build(self, machine, programs):
        """Builds programs for a machine; those with a feature before those of other machines with their processor."""
        _add_targets([TARGETS[machine]])
        # Both packages whichever has the programs: what they use is compiled once, with the same features.
        packages = ["--package", "programs", "--package", "wrong-programs"]
        features = FEATURES.get(machine, [])
        wanted = [f"--bin={program}" for program in programs]
        build.cargo("--release", "--target", TARGETS[machine], *packages, *features, *wanted, folder=self.workspace)
        if features:
            self.folder(machine).mkdir(exist_ok=True)
            for program in programs:
                shutil.copy2(self.output / TARGETS[machine] / "release" / program, self.folder(machine))


@dataclasses.dataclass(frozen=True)
class Size:
    """Bytes of an image."""

    code: int
    constants: int
    data: int
    bss: int
    dma: int
    stack: int


def machine_of(path):
    """Returns the machine of an ELF file, the first one of its processor; None if it is no such file, or a program of Linux: those have
    an interpreter."""
    with open(path, "rb") as file:
        head = file.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF" or ".interp" in sections(path):
        return None
    return ELF_MACHINES.get(struct.unpack_from("<H", head, 18)[0])


def sections(path):
    """Returns the bytes of each section of an ELF file (64-bit, little-endian)."""
    elf = path.read_bytes()
    table, entry, count, names = *struct.unpack_from("<Q", elf, 0x28), *struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + index * entry) for index in range(count)]
    sizes = {}
    if not headers:
        return sizes
    strings = headers[names][4]
    for name, _, _, _, _, length in headers:
        end = elf.index(b"\0", strings + name)
        sizes[elf[strings + name : end].decode()] = length
    return sizes


def has_log(path):
    """Returns whether a program has a log that only the decoder can read."""
    return sections(path).get(LOG_SECTION, 0) != 0


def size(path):
    """Returns the size of an image."""
    sizes = sections(path)
    bss = sizes.get(".bss", 0) + sizes.get(".tables", 0)
    return Size(sizes[".text"], sizes[".rodata"], sizes.get(".data", 0), bss, sizes[".dma"], sizes[".stack"])


def table(images, built, used):
    """Returns the sizes of those of PROGRAMS that are built for each machine, as lines of text. `used` has the bytes of the stack that a run used at most, by
    the name of the measurement."""
    heads = ["code", "constants", "data", "bss", "for the card", "stack", "used of it"]
    lines = [f"{'bytes of an image':24}" + "".join(f"{head:>13}" for head in heads)]
    for machine, programs in sorted(built.items()):
        for program in PROGRAMS:
            if program in programs:
                path = images.path(machine, program)
                numbers = [*dataclasses.astuple(size(path)), used.get(f"stack of {program}, {machine}", "-")]
                lines.append(f"{program + ', ' + machine:24}" + "".join(f"{number:>13}" for number in numbers))
    return lines if len(lines) > 1 else []
