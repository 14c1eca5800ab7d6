"""The processes of a case: one server of simulated devices, and guests in QEMU. Each is ended by its id, whatever happens."""

import json
import os
import signal
import subprocess
import threading
import time

from . import image


class MachineError(Exception):
    """A process that did not start, or ended when it should not have."""


def _end(process, patience):
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
    return process.returncode


class Server:
    """`bareverbs sim serve` with one socket a device."""

    def __init__(self, program, folder, name, sockets, options):
        self.sockets = sockets
        self.log = folder / f"{name}.log"
        self.trace = folder / f"{name}.trace"
        command = [str(program), "sim", "serve", "--control", "--trace-file", str(self.trace)]
        for path in sockets:
            command += ["--socket", str(path)]
        self.command = [*command, *options]
        self.process = None

    def start(self):
        """Returns when every socket is there."""
        ready = [f" at {path}" for path in self.sockets]
        before = self._lines_with(ready)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 10
        while self._lines_with(ready) < before + len(ready):
            if self.process.poll() is not None:
                raise MachineError(f"the server ended with status {self.process.returncode}: {self._last_line()}")
            if time.monotonic() > deadline:
                raise MachineError("the server made no sockets within 10 s")
            time.sleep(0.02)

    def _lines_with(self, endings):
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return sum(line.endswith(tuple(endings)) for line in lines)

    def _last_line(self):
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def tell(self, command):
        """Does something to a device; returns what the server says of it."""
        mark = f"control: {command}: "
        seen = self.log.read_text(errors="replace").count(mark)
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise MachineError(f"the server does not listen: {error}") from error
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            said = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith(mark)]
            if len(said) > seen:
                return said[-1].removeprefix(mark)
            time.sleep(0.02)
        raise MachineError(f"the server did not answer '{command}'")

    def running(self):
        """Whether it is still there."""
        return self.process is not None and self.process.poll() is None

    def cpu_seconds(self):
        """Processor time used so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_kilobytes(self):
        """Resident memory that is its own (the guest's memory, which it maps, is not counted)."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))

    def kill(self):
        """Ends it without a chance to clean up."""
        if self.running():
            self.process.kill()
            self.process.wait(10)

    def stop(self):
        """Asks it to end; its exit status, or None if it was never started."""
        return None if self.process is None else _end(self.process, 5)


class Guest:
    """One virtual machine. Its case's lines are in `lines` as they come."""

    def __init__(self, trees, suite, name, folder, sockets, parameters, cpus=2, memory=1024, options=()):
        tree = trees[suite]
        vmlinuz, self.release = image.kernel(tree)
        self.name = name
        self.console = folder / f"{name}.console"
        self.output = folder / f"{name}.output"
        self.lines = []
        self.done = threading.Event()
        self.process = None
        self._reader = None
        self._seen = 0
        line = ["console=ttyS0", "quiet", "panic=-1", "oops=panic", "mitigations=off", "random.trust_cpu=on", "tsc=reliable"]
        line += [f"bareverbs.{key}={value}" for key, value in parameters.items()]
        qemu = trees["qemu"]
        self.command = [
            *qemu.command("usr/bin/qemu-system-x86_64"),
            *("-L", str(qemu.root / "usr/share/qemu"), "-L", str(qemu.root / "usr/share/seabios")),
            *("-M", "q35,accel=tcg,kernel-irqchip=off", "-cpu", "max", "-smp", str(cpus), "-m", str(memory)),
            *("-object", f"memory-backend-memfd,id=mem,size={memory}M,share=on", "-numa", "node,memdev=mem"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-serial", f"file:{self.console}", "-serial", "stdio"),
            *("-kernel", str(vmlinuz), "-initrd", str(tree.home / "initramfs"), "-append", " ".join(line)),
            *options,
        ]
        for slot, path in enumerate(sockets, 1):
            # Behind a port of its own, as in a slot: on the root bus QEMU hides the state of the link.
            self.command += ["-device", f"pcie-root-port,id=port{slot},chassis={slot}"]
            device = {"driver": "vfio-user-pci", "bus": f"port{slot}", "socket": {"type": "unix", "path": str(path)}}
            self.command += ["-device", json.dumps(device)]

    def start(self):
        """Powers it on."""
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(os.environ, QEMU_MODULE_DIR=""),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        with open(self.output, "w", encoding="utf-8") as file:
            for raw in self.process.stdout:
                line = raw.decode(errors="replace").rstrip("\r\n")
                self.lines.append(line)
                file.write(line + "\n")
                file.flush()
        self.done.set()

    def poll(self, ask):
        """Whether it is off by now. `ask` does what the case asked of the host since the last call."""
        ended = self.done.wait(0.02)
        while self._seen < len(self.lines):
            line = self.lines[self._seen]
            self._seen += 1
            if line.startswith("#> host "):
                self.answer(ask(line.removeprefix("#> host ")))
        if ended:
            self.process.wait(10)
        return ended

    def said(self, text):
        """Whether a line of the case reads so."""
        return text in self.lines

    def answer(self, text):
        """A line for the case that asked the host for something."""
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def stop(self):
        """Ends it if it still runs."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait(10)
            self._reader.join(5)
