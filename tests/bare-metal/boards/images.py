"""The firmware programs: built for each machine, and how much memory each takes."""

import dataclasses
import os
import pathlib
import shutil
import struct
import subprocess

from rig import packages

#: Rust's target of each machine.
TARGETS = {
    "x86_64": "x86_64-unknown-none",
    "aarch64": "aarch64-unknown-none",
    "riscv64": "riscv64gc-unknown-none-elf",
}

#: Machine numbers of ELF.
ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}

#: What the table of sizes shows.
PROGRAMS = ["bring-up", "pingpong", "write"]


def _cargo(command, folder, say, what):
    say(what)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise packages.PackageError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise packages.PackageError(f"{' '.join(command)}: {done.stderr.strip()[-3000:]}")


def _add_targets(wanted):
    """Has rustup fetch the core library of targets that lack it."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    library = pathlib.Path(sysroot) / "lib/rustlib"
    missing = [target for target in wanted if not list((library / target / "lib").glob("libcore-*.rlib"))]
    if missing and shutil.which("rustup"):
        done = subprocess.run(["rustup", "target", "add", *missing], capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise packages.PackageError(f"rustup target add: {done.stderr.strip()[-1000:]}")


class Images:
    """Where the programs lie once they are built."""

    def __init__(self, project):
        self.workspace = project / "examples/firmware"
        self.output = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or self.workspace / "target").resolve()

    @property
    def reader(self):
        """The host's reader of serial lines."""
        return self.output / "debug/serial-log"

    def path(self, machine, program):
        """The ELF file of a program."""
        return self.output / TARGETS[machine] / "release" / program

    def build_reader(self, say):
        """The host's part."""
        _cargo(["cargo", "build", "--package", "serial-log"], self.workspace, say, "building the reader of serial lines")

    def build(self, machines, say):
        """All programs for these machines."""
        _add_targets([TARGETS[machine] for machine in machines])
        for machine in machines:
            command = ["cargo", "build", "--release", "--target", TARGETS[machine]]
            command += ["--package", "programs", "--package", "wrong-programs"]
            _cargo(command, self.workspace, say, f"building the programs for {machine}")


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
    """Which machine an ELF file is for; None if it is no such file."""
    with open(path, "rb") as file:
        head = file.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    return ELF_MACHINES.get(struct.unpack_from("<H", head, 18)[0])


def size(path):
    """Reads it from the sections of the file (64-bit, little-endian)."""
    elf = path.read_bytes()
    table, entry, count, names = *struct.unpack_from("<Q", elf, 0x28), *struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + index * entry) for index in range(count)]
    strings = headers[names][4]
    sizes = {}
    for name, _, _, _, _, length in headers:
        end = elf.index(b"\0", strings + name)
        sizes[elf[strings + name : end].decode()] = length
    bss = sizes.get(".bss", 0) + sizes.get(".tables", 0)
    return Size(sizes[".text"], sizes[".rodata"], sizes.get(".data", 0), bss, sizes[".dma"], sizes[".stack"])


def table(images, machines, used):
    """The sizes of all programs, as lines of text. `used` has the bytes of the stack that a run used at most, by program and
    machine."""
    heads = ["code", "constants", "data", "bss", "for the card", "stack", "used of it"]
    lines = [f"{'bytes of an image':24}" + "".join(f"{head:>13}" for head in heads)]
    for machine in machines:
        for program in PROGRAMS:
            path = images.path(machine, program)
            if path.is_file():
                numbers = [*dataclasses.astuple(size(path)), used.get((program, machine), "-")]
                lines.append(f"{program + ', ' + machine:24}" + "".join(f"{number:>13}" for number in numbers))
    return lines
