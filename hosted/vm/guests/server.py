"""The process that serves simulated devices: `bareverbs sim serve`, with one socket a device."""

import os
import pathlib
import subprocess
import time

from . import processes
from .errors import Failed
from .processes import TIMEOUT


class Server:
    """One server process; control commands go to its standard input."""

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
        """Starts the process, and waits until every socket exists."""
        self.started = time.monotonic()
        ready = [f" at {path};" for path in self.sockets]
        before = self._lines_with(ready)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        deadline = time.monotonic() + TIMEOUT
        while self._lines_with(ready) < before + len(ready):
            if self.process.poll() is not None:
                lines = processes.last_lines(self.log) or ["it printed nothing"]
                # A refused option is named in the first line, and advice follows.
                reason = next((line for line in lines if line.startswith("error")), lines[-1])
                raise Failed(f"the server ended with status {self.process.returncode}: {reason}")
            if time.monotonic() > deadline:
                raise Failed(f"the server made no sockets within {TIMEOUT} s")
            time.sleep(0.02)

    def lines(self):
        """Returns what it has printed so far."""
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def _lines_with(self, parts):
        return sum(any(part in line for part in parts) for line in self.lines())

    def control(self, command):
        """Sends a control command for a device; returns the server's answer."""
        mark = f"control: {command}: "
        seen = self.log.read_text(errors="replace").count(mark)
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failed(f"the server does not listen: {error}") from error
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            answers = [line for line in self.lines() if line.startswith(mark)]
            if len(answers) > seen:
                return answers[-1].removeprefix(mark)
            time.sleep(0.02)
        raise Failed(f"the server did not answer '{command}'")

    def running(self):
        """Returns whether it still runs."""
        return self.process is not None and self.process.poll() is None

    def usage(self):
        """Returns seconds since the start, processor seconds of its threads, and how often they went to sleep."""
        nanoseconds = sleeps = 0
        for thread in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
            lines = (thread / "status").read_text(encoding="ascii").splitlines()
            sleeps += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))
        return f"{time.monotonic() - self.started:.2f} {nanoseconds / 1e9:.4f} {sleeps}"

    def settle(self):
        """Waits until all its threads sleep: what was sent to it has been read. Its clients must be silent."""
        deadline = time.monotonic() + TIMEOUT
        before = None
        while time.monotonic() < deadline:
            now = (self._cpu_ticks(), self._states())
            if now == before and now[1] <= {"S"}:
                return
            before = now
            time.sleep(0.1)
        raise Failed("the server does not become idle")

    def _cpu_ticks(self):
        """Returns the processor time used so far, in the kernel's ticks."""
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
                # The thread ended meanwhile: the next round shows what is left.
                states.add("ended")
        return states

    def kill(self):
        """Ends it without a chance to clean up."""
        if self.running():
            processes.kill(self.process)

    def stop(self):
        """Interrupts it; returns its exit status, or None if it was never started."""
        return None if self.process is None else processes.interrupt(self.process)
