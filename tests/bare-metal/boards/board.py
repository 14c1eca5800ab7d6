"""A virtual machine that runs one firmware program, and its serial line."""

import json
import os
import re
import subprocess
import threading
import time

from rig import monitor
from rig.machine import BEHIND
from rig.monitor import PATIENCE

#: What a program may take for a step: many times what it needs, for a machine with other work.
SECONDS = 150

#: Megabytes of memory.
MEMORY = 128


class BoardError(Exception):
    """A program that did not do what was expected of it."""


def qemu(trees, machine):
    """How to start QEMU for a machine, without devices."""
    tree = trees["qemu" if machine == "x86_64" else "qemu-others"]
    options = {
        "x86_64": ["-M", "q35,accel=tcg,kernel-irqchip=off", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"],
        "aarch64": ["-M", "virt,accel=tcg,gic-version=2", "-semihosting-config", "enable=on,target=native"],
        "riscv64": ["-M", "virt,accel=tcg,aia=aplic-imsic", "-bios", "none"],
    }
    return [
        *tree.command(f"usr/bin/qemu-system-{machine}"),
        *("-L", str(tree.root / "usr/share/qemu"), "-L", str(tree.root / "usr/share/seabios")),
        *options[machine],
        *("-cpu", "max", "-m", str(MEMORY)),
        *("-object", f"memory-backend-memfd,id=mem,size={MEMORY}M,share=on", "-machine", "memory-backend=mem"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-chardev", "stdio,id=line,signal=on", "-serial", "chardev:line"),
    ]


def card(socket, on_root_bus=False):
    """The options that put the device of a socket into a slot: behind a port of its own, or beside the host bridge."""
    address = {"type": "unix", "path": str(socket)}
    device = {"driver": "vfio-user-pci", "id": "card", "socket": address}
    if on_root_bus:
        return ["-device", json.dumps(device)]
    return ["-device", "pcie-root-port,id=port1,chassis=1", "-device", json.dumps({**device, "bus": "port1"})]


def firmware_status(machine, status):
    """The status that the program ended with, from QEMU's; None if QEMU ended for another reason."""
    if machine != "x86_64" or status == 0:
        return status if status is not None and status >= 0 else None
    return (status - 1) // 2 if status % 2 else None


class Board:
    """One machine. What its program says is in `lines`, each as the reader of serial lines shows it."""

    def __init__(self, trees, images, machine, program, folder, options=(), name=None, control=None):
        self.machine = machine
        self.name = name or machine
        self.program = program
        self.output = folder / f"{self.name}.output"
        self.complaints = folder / f"{self.name}.qemu"
        self.elf = images.path(machine, program)
        self.reader_command = [str(images.reader), str(self.elf)]
        self.command = [*qemu(trees, machine), *options, "-kernel", str(self.elf)]
        self.monitor = None
        if control:
            self.monitor = monitor.Monitor(control)
            self.command += ["-qmp", f"unix:{control},server=on,wait=off"]
        self.lines = []
        self.process = None
        self.reader = None
        self._began = 0.0
        self._news = threading.Condition()
        self._over = False
        self._listener = None

    def start(self):
        """Powers it on."""
        self._began = time.monotonic()
        environment = dict(os.environ, QEMU_MODULE_DIR="")
        with open(self.complaints, "wb") as complaints:
            self.process = subprocess.Popen(
                [*BEHIND, *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=environment,
                start_new_session=True,
            )
            self.reader = subprocess.Popen(
                self.reader_command,
                stdin=self.process.stdout,
                stdout=subprocess.PIPE,
                stderr=complaints,
                start_new_session=True,
            )
        # Only the reader holds it now, so that it sees the end.
        self.process.stdout.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def _listen(self):
        with open(self.output, "w", encoding="utf-8") as file:
            for raw in self.reader.stdout:
                line = raw.decode(errors="replace").rstrip("\n")
                file.write(f"{time.monotonic() - self._began:8.3f} {line}\n")
                file.flush()
                with self._news:
                    self.lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()

    def wait_for(self, pattern, stop, seconds=SECONDS):
        """The first line that matches, as a match object."""
        wanted = re.compile(pattern)
        deadline = time.monotonic() + seconds
        seen = 0
        with self._news:
            while True:
                for line in self.lines[seen:]:
                    found = wanted.search(line)
                    if found:
                        return found
                seen = len(self.lines)
                if self._over:
                    raise BoardError(f"{self.name} ended without a line '{pattern}': {self.last_word()}")
                if time.monotonic() > deadline:
                    raise BoardError(f"{self.name} has no line '{pattern}' after {seconds} s: {self.last_word()}")
                stop.check()
                self._news.wait(0.2)

    def send(self, line):
        """A line for the program."""
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise BoardError(f"{self.name} does not listen: {error}; {self.last_word()}") from error

    def wait_for_end(self, stop, seconds=SECONDS):
        """The status that the program ended with."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise BoardError(f"{self.name} has no end after {seconds} s: {self.last_word()}")
            stop.check()
            time.sleep(0.02)
        self._listener.join(PATIENCE)
        return firmware_status(self.machine, self.process.returncode)

    def passes(self, stop, seconds=SECONDS):
        """Waits for the end, which must be a good one: status 0 and a last line `done`."""
        status = self.wait_for_end(stop, seconds)
        if status != 0 or self.lines[-1:] != ["done"]:
            raise BoardError(f"{self.name} ended with status {status} (QEMU's: {self.process.returncode}): {self.last_word()}")

    def fails(self, pattern, stop, status=1, seconds=SECONDS):
        """Waits for the end, which must be a failure with this status whose last line matches."""
        ended = self.wait_for_end(stop, seconds)
        if ended != status or not re.search(rf"^failed: .*(?:{pattern})", (self.lines or [""])[-1]):
            raise BoardError(
                f"{self.name} ended with status {ended} (QEMU's: {self.process.returncode}) instead of {status} and "
                f"'{pattern}': {self.last_word()}"
            )

    def stack_used(self):
        """Bytes of the stack that the program used, if it came to its end."""
        found = (re.match(r"stack: (\d+) of \d+ bytes were used$", line) for line in self.lines)
        return [int(each.group(1)) for each in found if each]

    def last_word(self):
        """What it said last, and what QEMU said."""
        said = self.complaints.read_text(errors="replace").strip().splitlines() if self.complaints.exists() else []
        said = [line for line in said if "warning: " not in line]
        return " / ".join([*self.lines[-1:], *said[-1:]]) or "it said nothing"

    def stop(self):
        """Ends it if it still runs."""
        for process in (self.process, self.reader):
            if process is not None:
                if process.poll() is None:
                    process.kill()
                process.wait(PATIENCE)
        if self._listener is not None:
            self._listener.join(PATIENCE)
        if self.monitor is not None:
            self.monitor.close()
