"""A virtual machine that runs one firmware program, and its serial line."""

import re
import subprocess
import time

from guests import machine
from guests.errors import Failed
from guests.processes import TIMEOUT

from .images import has_log

#: Seconds for a step of a program: many times what it needs, for a machine with other work.
STEP_TIMEOUT = 150

#: Megabytes of memory.
MEMORY = 128

PC = ["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]

#: QEMU's processor and machine type of each machine, and more options.
MACHINES = {
    "x86_64": ("x86_64", "q35,accel=tcg,kernel-irqchip=off", PC),
    "microvm": ("x86_64", "microvm,accel=tcg,kernel-irqchip=off,pcie=on", PC),
    "aarch64": ("aarch64", "virt,accel=tcg,gic-version=2", ["-semihosting-config", "enable=on,target=native"]),
    "riscv64": ("riscv64", "virt,accel=tcg,aia=aplic-imsic", ["-bios", "none"]),
}


def qemu_tree(name):
    """Returns the packages with QEMU for a machine."""
    return "qemu" if MACHINES[name][0] == "x86_64" else "qemu-others"


def qemu(trees, name, *, moved=None, memory=MEMORY):
    """Returns the command line of QEMU for a machine, without devices; its serial line is on standard input and output. `moved`
    are more properties of the machine type, which put things elsewhere."""
    architecture, kind, options = MACHINES[name]
    kind = f"{kind},{moved}" if moved else kind
    command = machine.qemu(trees[qemu_tree(name)], architecture, kind, memory)
    return [*command, *options, "-no-reboot", "-chardev", "stdio,id=line,signal=on", "-serial", "chardev:line"]


def with_tree(command, change, folder):
    """Returns the command line of a machine whose device tree is changed: QEMU writes the one that it would give, and gets another."""
    dumped, given = folder / "given.dtb", folder / "changed.dtb"
    subprocess.run([*command, "-machine", f"dumpdtb={dumped}"], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
    given.write_bytes(change(dumped.read_bytes()))
    return [*command, "-dtb", str(given)]


def card(socket, on_root_bus=False):
    """Returns the options that put the device of a socket into a slot: behind a port of its own, or beside the host bridge."""
    if on_root_bus:
        return machine.option(machine.card(socket, id="card"))
    return [*machine.root_port(1), *machine.option(machine.card(socket, id="card", bus="port1"))]


def firmware_status(name, status):
    """Returns the exit status of the program, from QEMU's; None if QEMU ended for another reason."""
    if MACHINES[name][0] != "x86_64":
        return status if status is not None and status >= 0 else None
    # isa-debug-exit makes `2n + 1` of a byte; the programs add 16, so that none is QEMU's own status 1.
    return (status - 33) // 2 if status is not None and status >= 33 and status % 2 else None


class Board(machine.Machine):
    """One machine. What its program prints is in `lines`, each as the decoder of serial lines shows it."""

    def __init__(
        self, trees, images, kind, program, folder, options=(), *, image=None, name=None, monitor=None, tree=None, **machine_options
    ):
        elf = images.path(image or kind, program)
        command = qemu(trees, kind, **machine_options)
        command = [*(with_tree(command, tree, folder) if tree else command), *options, "-kernel", str(elf)]
        decoder = [str(images.decoder), str(elf)] if has_log(elf) else None
        super().__init__(name or kind, folder, command, decoder=decoder, monitor=monitor)
        self.kind = kind
        self.program = program

    def wait_for(self, pattern, stop, timeout=STEP_TIMEOUT):
        """Returns the first line that matches, as a match object."""
        wanted = re.compile(pattern)
        deadline = time.monotonic() + timeout
        seen = 0
        with self.news:
            while True:
                for line in self.lines[seen:]:
                    found = wanted.search(line)
                    if found:
                        return found
                seen = len(self.lines)
                if self.ended.is_set():
                    raise Failed(f"{self.name} ended without a line '{pattern}': {self.last_words()}")
                if time.monotonic() > deadline:
                    raise Failed(f"{self.name} has no line '{pattern}' after {timeout} s: {self.last_words()}")
                stop.check()
                self.news.wait(0.2)

    def wait_for_end(self, stop, timeout=STEP_TIMEOUT):
        """Returns the exit status of the program."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise Failed(f"{self.name} has no end after {timeout} s: {self.last_words()}")
            stop.check()
            time.sleep(0.02)
        self._reader.join(TIMEOUT)
        return firmware_status(self.kind, self.process.returncode)

    def passes(self, stop, timeout=STEP_TIMEOUT):
        """Waits for the end, which must be a good one: status 0 and a last line `done`."""
        status = self.wait_for_end(stop, timeout)
        if status != 0 or self.lines[-1:] != ["done"]:
            raise Failed(f"{self.name} ended with status {status} (QEMU's: {self.process.returncode}): {self.last_words()}")

    def fails(self, pattern, stop, status=1, timeout=STEP_TIMEOUT):
        """Waits for the end, which must be a failure with this status whose last line matches."""
        ended = self.wait_for_end(stop, timeout)
        if ended != status or not re.search(rf"^failed: .*(?:{pattern})", (self.lines or [""])[-1]):
            raise Failed(
                f"{self.name} ended with status {ended} (QEMU's: {self.process.returncode}) instead of {status} and "
                f"'{pattern}': {self.last_words()}"
            )

    def stack_used(self):
        """Returns the bytes of the stack that the program used, if it came to its end."""
        found = (re.match(r"stack: (\d+) of \d+ bytes were used$", line) for line in self.lines)
        return [int(each.group(1)) for each in found if each]
