"""A virtual machine: QEMU and the lines that it prints."""

import json
import os
import subprocess
import threading
import time

from . import processes
from .errors import Failed
from .monitor import Monitor
from .processes import LOW_PRIORITY, TIMEOUT


def qemu(tree, architecture, machine, memory):
    """Returns the command line of QEMU from a tree of packages, for a machine type with `memory` megabytes that a device process
    can map, and without devices."""
    return [
        *tree.command(f"usr/bin/qemu-system-{architecture}"),
        *("-L", str(tree.root / "usr/share/qemu"), "-L", str(tree.root / "usr/share/seabios")),
        *("-M", machine, "-cpu", "max", "-m", str(memory)),
        *("-object", f"memory-backend-memfd,id=mem,size={memory}M,share=on", "-machine", "memory-backend=mem"),
        *("-nodefaults", "-no-user-config", "-display", "none"),
    ]


def root_port(number, *properties):
    """Returns the options that create a slot, and its bus `port{number}`. Behind its own port a device is as in a slot: on the
    root bus QEMU hides the state of the link."""
    return ["-device", ",".join([f"pcie-root-port,id=port{number},chassis={number}", *properties])]


def card(socket, **properties):
    """Returns QEMU's description of the simulated device that is served at a socket."""
    return {"driver": "vfio-user-pci", "socket": {"type": "unix", "path": str(socket)}, **properties}


def option(device):
    """Returns the options that add a device to the machine."""
    return ["-device", json.dumps(device)]


def environment():
    """Returns an environment without QEMU modules of this machine, which are of another version."""
    return dict(os.environ, QEMU_MODULE_DIR="")


class Machine:
    """One virtual machine. What it prints is in `lines` as it comes, and in a file with the seconds since power-on."""

    def __init__(self, name, folder, command, *, decoder=None, monitor=None, background=True, inherited=()):
        """`decoder` is a program that turns what the machine prints into lines; `monitor` a path for the socket of QEMU's
        monitor. One in the background has a lower priority than everything else. QEMU inherits open files under
        their numbers."""
        self.name = name
        self.command = command
        self.output = folder / f"{name}.output"
        self.complaints = folder / f"{name}.qemu"
        self.decoder_command = decoder
        self.background = background
        self.inherited = inherited
        self.monitor = None
        if monitor:
            self.monitor = Monitor(monitor)
            self.command = [*command, "-qmp", f"unix:{monitor},server=on,wait=off"]
        self.lines = []
        self.process = None
        self.decoder = None
        #: Notified at each line, and at the end.
        self.news = threading.Condition()
        self.ended = threading.Event()
        self._power_on = 0.0
        self._reader = None

    def start(self):
        """Powers it on."""
        self._power_on = time.monotonic()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        self._spawn([*(LOW_PRIORITY if self.background else ()), *self.command], **pipes)
        printed = self.process.stdout
        if self.decoder_command:
            with open(self.complaints, "ab") as complaints:
                self.decoder = subprocess.Popen(
                    self.decoder_command, stdin=printed, stdout=subprocess.PIPE, stderr=complaints, start_new_session=True
                )
            # Only the decoder has it open now, and sees its end.
            printed.close()
            printed = self.decoder.stdout
        self._reader = threading.Thread(target=self._read, args=(printed,), daemon=True)
        self._reader.start()
        return self

    def use(self):
        """Powers it on and gives it this process's terminal until it is off."""
        self._spawn(self.command)
        return self.process.wait()

    def _spawn(self, command, **streams):
        with open(self.complaints, "wb") as complaints:
            self.process = subprocess.Popen(command, stderr=complaints, env=environment(), pass_fds=self.inherited, **streams)

    def _read(self, printed):
        with open(self.output, "w", encoding="utf-8") as file:
            for raw in printed:
                line = raw.decode(errors="replace").rstrip("\r\n")
                file.write(f"{time.monotonic() - self._power_on:8.3f} {line}\n")
                file.flush()
                with self.news:
                    self.lines.append(line)
                    self.news.notify_all()
        with self.news:
            self.ended.set()
            self.news.notify_all()

    def processor_seconds(self):
        """Returns the processor time that it has had."""
        return processes.processor_seconds(self.process.pid)

    def send(self, line):
        """Sends a line to the program in it."""
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failed(f"{self.name} does not listen: {error}; {self.last_words()}") from error

    def last_words(self):
        """Returns the last line, and QEMU's error messages if there are any."""
        return " / ".join([*self.lines[-1:], *self.errors()[-1:]]) or "it printed nothing"

    def errors(self):
        """Returns QEMU's error messages without warnings."""
        return [line for line in processes.last_lines(self.complaints) if "warning: " not in line]

    def hold(self):
        """Stops its processors."""
        self.monitor.execute("stop")

    def resume(self):
        """Lets its processors run again."""
        self.monitor.execute("cont")

    def stop(self):
        """Ends it, if it still runs, as a power cut does."""
        for process in (self.process, self.decoder):
            if process is not None:
                processes.kill(process)
        if self._reader is not None:
            self._reader.join(TIMEOUT)
        if self.monitor is not None:
            self.monitor.close()
