"""The processes of a case: one server of simulated devices, and guests in QEMU. Each is ended by its id, whatever happens."""

import json
import os
import pathlib
import signal
import subprocess
import threading
import time

from . import image, monitor
from .monitor import PATIENCE

# A guest computes all the time (its processors are emulated) and must not keep its devices waiting for a processor: Linux would
# take them for dead. Where every session has a share of its own, what counts is the priority of the session.
BEHIND = ("sh", "-c", 'echo 10 2>/dev/null >/proc/self/autogroup; exec nice -n 10 "$@"', "sh")


class MachineError(Exception):
    """A process that did not start, or ended when it should not have."""


def _end(process, patience):
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)
    return process.returncode


class Server:
    """`bareverbs sim serve` with one socket a device."""

    def __init__(self, program, folder, name, sockets, options, traced=True, uncached=False):
        self.sockets = sockets
        self.log = folder / f"{name}.log"
        self.trace = folder / f"{name}.trace"
        command = [str(program), "sim", "serve", "--control"]
        if traced:
            command += ["--trace-file", str(self.trace)]
        for path in sockets:
            command += ["--socket", str(path)]
        self.command = [*command, *options]
        self.environment = dict(os.environ)
        if uncached:
            self.environment["GLIBC_TUNABLES"] = "glibc.malloc.tcache_count=0"
        self.process = None
        self.started = 0.0

    def start(self):
        """Returns when every socket is there."""
        self.started = time.monotonic()
        ready = [f" at {path};" for path in self.sockets]
        before = self._lines_with(ready)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        deadline = time.monotonic() + PATIENCE
        while self._lines_with(ready) < before + len(ready):
            if self.process.poll() is not None:
                raise MachineError(f"the server ended with status {self.process.returncode}: {self._last_line()}")
            if time.monotonic() > deadline:
                raise MachineError(f"the server made no sockets within {PATIENCE} s")
            time.sleep(0.02)

    def _lines_with(self, parts):
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return sum(any(part in line for part in parts) for line in lines)

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
        deadline = time.monotonic() + PATIENCE
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
        return self.cpu_ticks() / os.sysconf("SC_CLK_TCK")

    def usage(self):
        """Seconds since the start, processor seconds of its threads, and how often they went to sleep."""
        nanoseconds = sleeps = 0
        for thread in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
            lines = (thread / "status").read_text(encoding="ascii").splitlines()
            sleeps += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))
        return f"{time.monotonic() - self.started:.2f} {nanoseconds / 1e9:.4f} {sleeps}"

    def settle(self):
        """Waits until all its threads sleep: what was sent to it has been read. Its clients must be silent."""
        deadline = time.monotonic() + PATIENCE
        before = None
        while time.monotonic() < deadline:
            now = (self.cpu_ticks(), self._states())
            if now == before and now[1] <= {"S"}:
                return
            before = now
            time.sleep(0.1)
        raise MachineError("the server does not come to rest")

    def cpu_ticks(self):
        """Processor time used so far, in the kernel's ticks."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def _states(self):
        states = set()
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            try:
                with open(f"/proc/{self.process.pid}/task/{task}/stat", encoding="ascii") as file:
                    states.add(file.read().rsplit(")", 1)[1].split()[0])
            except OSError:
                # The thread ended meanwhile: the next look will tell.
                states.add("ended")
        return states

    def kill(self):
        """Ends it without a chance to clean up."""
        if self.running():
            self.process.kill()
            self.process.wait(PATIENCE)

    def stop(self):
        """Asks it to end; its exit status, or None if it was never started."""
        return None if self.process is None else _end(self.process, PATIENCE)


class Guest:
    """One virtual machine. Its case's lines are in `lines` as they come."""

    def __init__(
        self,
        trees,
        suite,
        name,
        folder,
        sockets,
        parameters,
        cpus=2,
        memory=1024,
        options=(),
        with_python=False,
        iommu=False,
        spares=0,
        terminal=False,
        with_program=False,
        with_applications=False,
        companion=False,
        initrd=None,
        ipxe=None,
    ):
        tree = trees[suite]
        vmlinuz, self.release = image.kernel(tree)
        self.name = name
        self.console = folder / f"{name}.console"
        self.output = folder / f"{name}.output"
        self.complaints = folder / f"{name}.qemu"
        self.lines = []
        self.done = threading.Event()
        self.process = None
        self._reader = None
        self._seen = 0
        self._began = 0.0
        # One a slot, counted from 1; those after the last device are empty.
        self.sockets = sockets
        self.companion = companion
        line = ["console=ttyS0", "quiet", "panic=-1", "oops=panic", "mitigations=off", "random.trust_cpu=on", "tsc=reliable"]
        # On a busy host the timer may be late just when the kernel looks whether it ticks.
        line.append("no_timer_check")
        if iommu:
            # It remaps no interrupts here.
            line += ["intel_iommu=on", "vfio_iommu_type1.allow_unsafe_interrupts=1"]
            options = ("-device", "intel-iommu,caching-mode=on", *options)
        line += [f"bareverbs.{key}={value}" for key, value in parameters.items()]
        qemu = trees["qemu"]
        initrd = initrd or image.path(tree, with_python, with_program, with_applications)
        kernel = ["-kernel", str(vmlinuz), "-initrd", str(initrd), "-append", " ".join(line)]
        machine = "q35,accel=tcg,kernel-irqchip=off"
        if ipxe:
            # A script instead of a file system. Without graphics the BIOS shows its screen on the first serial port.
            kernel = ["-kernel", str(trees["ipxe"].root / "usr/lib/ipxe/ipxe.lkrn"), "-initrd", str(ipxe)]
            machine += ",graphics=off"
        self.command = [
            *qemu.command("usr/bin/qemu-system-x86_64"),
            *("-L", str(qemu.root / "usr/share/qemu"), "-L", str(qemu.root / "usr/share/seabios")),
            *("-M", machine, "-cpu", "max", "-smp", str(cpus), "-m", str(memory)),
            *("-object", f"memory-backend-memfd,id=mem,size={memory}M,share=on", "-numa", "node,memdev=mem"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-serial", f"file:{self.console}"),
            # On a terminal Ctrl-C is for the guest.
            *("-chardev", f"stdio,id=case,signal={'off' if terminal else 'on'}", "-serial", "chardev:case"),
            *kernel,
            *options,
        ]
        self.monitor = None
        if sockets:
            # Beside the devices' sockets, whose folder is known to have a short path.
            path = sockets[0].with_suffix(".monitor")
            self.monitor = monitor.Monitor(path)
            self.command += ["-qmp", f"unix:{path},server=on,wait=off"]
        for slot in range(1, len(sockets) + spares + 1):
            # Behind a port of its own, as in a slot: on the root bus QEMU hides the state of the link. An empty one needs
            # room for the registers of what may come.
            self.command += ["-device", f"pcie-root-port,id=port{slot},chassis={slot},pref64-reserve=32M"]
        for slot in range(1, len(sockets) + 1):
            self.command += ["-device", json.dumps(self._card(slot, slot))]
        if companion:
            # The second function of the first slot, and so in the card's IOMMU group.
            self.command += ["-device", "virtio-rng-pci,bus=port1,addr=0.1"]

    def _card(self, slot, number):
        address = {"type": "unix", "path": str(self.sockets[number - 1])}
        card = {"driver": "vfio-user-pci", "id": f"card{slot}", "bus": f"port{slot}", "socket": address}
        return {**card, "addr": "0.0", "multifunction": True} if self.companion else card

    def start(self):
        """Powers it on."""
        command = [*BEHIND, *self.command]
        self._power_on(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._began = time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def use(self):
        """Powers it on and gives it this process's terminal until it is off."""
        self._power_on(self.command)
        return self.process.wait()

    def _power_on(self, command, **streams):
        with open(self.complaints, "wb") as complaints:
            self.process = subprocess.Popen(command, stderr=complaints, env=dict(os.environ, QEMU_MODULE_DIR=""), **streams)

    def _read(self):
        with open(self.output, "w", encoding="utf-8") as file:
            for raw in self.process.stdout:
                line = raw.decode(errors="replace").rstrip("\r\n")
                self.lines.append(line)
                file.write(f"{time.monotonic() - self._began:8.3f} {line}\n")
                file.flush()
        self.done.set()

    def poll(self, ask):
        """Whether it is off by now. `ask` does what the case asked of the host since the last call, and returns the answer
        (None for none)."""
        ended = self.done.wait(0.02)
        while self._seen < len(self.lines):
            line = self.lines[self._seen]
            self._seen += 1
            if line.startswith("#> host "):
                said = ask(line.removeprefix("#> host "))
                if said is not None:
                    self.answer(said)
        if ended:
            self.process.wait(PATIENCE)
        return ended

    def said(self, text):
        """Whether a line of the case reads so."""
        return text in self.lines

    def last_word(self):
        """What it said last; what QEMU said if that came later."""
        said = self.complaints.read_text(errors="replace").strip().splitlines() if self.complaints.exists() else []
        said = [line for line in said if ": warning: " not in line]
        return " / ".join([*self.lines[-1:], *said[-1:]]) or "it said nothing"

    def answer(self, text):
        """A line for the case that asked the host for something."""
        try:
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise MachineError(f"{self.name} does not listen: {error}; {self.last_word()}") from error

    def hold(self):
        """Stops its processors."""
        self.monitor.ask("stop")

    def go_on(self):
        """Lets its processors run again."""
        self.monitor.ask("cont")

    def plug(self, slot, number):
        """Puts the device with this number into an empty slot."""
        self.monitor.ask("device_add", **self._card(slot, number))

    def kill(self):
        """Ends it as a power cut does."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait(PATIENCE)
            if self._reader is not None:
                self._reader.join(PATIENCE)
        if self.monitor is not None:
            self.monitor.close()

    def stop(self):
        """Ends it if it still runs."""
        self.kill()
