"""A user's command in guests, or beside one: its output as it comes, and its exit status."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from . import processes
from .errors import Failed
from .guest import Guest
from .kernel_log import OF_PROGRAMS, SUSPECT

#: Exit statuses that no command gave: its own errors, the end of --timeout, Ctrl-C.
ERROR, TIMED_OUT, INTERRUPTED = 125, 124, 130

# That of a shell for a command which is not there.
NOT_FOUND = 127

# Seconds of a boot after which a line says that it goes on.
SLOW_BOOT = 10

# Seconds that a guest has to end a command of which the time is up. It ends it itself; if it cannot, it is turned off.
GRACE = 30

# Seconds that one guest still has after the command has failed in the other one.
AFTER_FAILURE = 10

# What QEMU says when the processor cannot go on: the KVM of some virtual machines lacks instructions.
KVM_STOPPED = "KVM internal error"

MAX_NAMED = 20


class Output:
    """Copies what a guest's command writes to one of its outputs."""

    def __init__(self, path, target, prefix):
        self.target = target
        self.prefix = prefix
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._copy, daemon=True)
        #: Set when nobody reads our output any more.
        self.closed = threading.Event()

    def start(self):
        """Waits for QEMU in the background."""
        self._thread.start()

    def _copy(self):
        connection, _ = self._listener.accept()
        with connection:
            self._copy_from(connection)

    def _copy_from(self, connection):
        line = b""
        while data := connection.recv(65536):
            if self.prefix:
                # Whole lines: two guests write at the same time.
                *lines, line = (line + data).split(b"\n")
                data = b"".join(self.prefix + each + b"\n" for each in lines)
            self._write(data)
        if line:
            self._write(self.prefix + line + b"\n")

    def _write(self, data):
        try:
            self.target.write(data)
            self.target.flush()
        except OSError:
            self.closed.set()

    def finish(self):
        """Waits until all is written; QEMU has ended."""
        if not self._thread.ident:
            # Nobody was waited for.
            self._listener.close()
            return
        # It may never have come.
        unused = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with unused:
            unused.connect(self._listener.getsockname())
            unused.close()
        self._thread.join(processes.TIMEOUT)
        self._listener.close()


class Job:
    """The command in one guest."""

    def __init__(self, number, guests, folder, make_guest, boot_timeout):
        """`make_guest` makes the Guest from options of QEMU; `boot_timeout` are the seconds until it must be ready for the command."""
        prefix = f"[{number}] ".encode() if guests > 1 else b""
        self.name = f"guest {number}" if guests > 1 else "the guest"
        self.outputs = []
        options = ["-device", "virtio-serial-pci"]
        for name, target in (("stdout", sys.stdout.buffer), ("stderr", sys.stderr.buffer)):
            path = folder / f"{number}.{name}"
            self.outputs.append(Output(path, target, prefix))
            options += ["-chardev", f"socket,id={name},path={path}", "-device", f"virtserialport,chardev={name},name={name}"]
        self.guest: Guest = make_guest(options)
        self.ready = False
        self.ended = False
        #: When it is turned off, and why.
        self.deadline = time.monotonic() + boot_timeout
        self.overdue = False
        self.boot_timeout = boot_timeout
        self.reason = ""
        #: Exit status of the command; None while there is none.
        self.status = None

    def start(self):
        """Turns the guest on."""
        for output in self.outputs:
            output.start()
        self.guest.start()

    def poll(self):
        """Looks at what the guest says, and turns it off when its time is up."""
        if self.ended:
            return
        self.ended = self.guest.poll(self._asked)
        if self.status is None:
            self.status = self._said_status()
        if not self.ended and any(KVM_STOPPED in line for line in self.guest.errors()):
            # QEMU pauses the machine, and it would wait for nothing.
            self.reason = "was stopped by KVM, which cannot run it on this machine: use --accel tcg"
            self.deadline = 0
        if not self.ended and time.monotonic() > self.deadline:
            self.overdue = True
            self.reason = self.reason or self._late()
            self.guest.stop()
            self.ended = True

    def _late(self):
        return (
            f"was not ready for the command within {self.boot_timeout} s, in which it had {self.guest.processor_seconds():.0f} s of a "
            "processor (10 to 20 are enough): if the machine is busy, give it more time with --boot-timeout"
        )

    def failed(self):
        """Returns whether the command has failed, or will never end."""
        return bool(self.status) or (self.ended and self.status is None)

    def _asked(self, command):
        self.ready = self.ready or command == "start"

    def begin(self, timeout):
        """Starts the command."""
        self.guest.send("begin")
        self.deadline = float("inf")
        if timeout:
            self.deadline = time.monotonic() + timeout + GRACE
            self.reason = f"did not end the command {GRACE} s after its time was up"

    def _said_status(self):
        for line in self.guest.lines:
            if found := re.fullmatch(r"#> (timed out|status (\d+))", line):
                return TIMED_OUT if found[2] is None else int(found[2])
        return None

    def outcome(self, timeout):
        """Returns lines that say how the command ended if it failed, and what the kernel complained of."""
        said = []
        if self.status is None:
            failures = self.guest.failures()
            how = self.reason if self.overdue else "ended before the command did"
            why = failures[0].removeprefix("fail ") if failures else f"its last words: {self._last_words()}"
            said.append(f"{self.name} {how}; {why}")
        elif self.guest.printed("#> timed out"):
            said.append(f"{self.name}: the command was ended after {timeout} s (--timeout)")
        elif self.status:
            said.append(f"{self.name}: exit status {self.status}{_meaning(self.status)}")
        return said + self._complaints()

    def _complaints(self):
        lines = [re.sub(r"^(<\d+>)?(\[ *[\d.]+\])? ?", "", line[3:]) for line in self.guest.lines if line.startswith("#! ")]
        named = [line for line in dict.fromkeys(lines) if SUSPECT.search(line) or OF_PROGRAMS.search(line)]
        more = [f"kernel of {self.name}: and {len(named) - MAX_NAMED} more"] if len(named) > MAX_NAMED else []
        return [f"kernel of {self.name}: {line}" for line in named[:MAX_NAMED]] + more

    def _last_words(self):
        """Returns what QEMU, or the kernel, said last."""
        errors = self.guest.errors()
        console = processes.last_lines(self.guest.console)
        oops = next((line for line in console if re.search(r"BUG|Oops|Kernel panic|Out of memory|Initramfs unpacking failed", line)), "")
        return " / ".join(dict.fromkeys(filter(None, [*errors[-1:], oops, *(console[-1:] or self.guest.lines[-1:])]))) or "none"

    def stop(self):
        """Turns the guest off and writes out what the command has written."""
        self.guest.stop()
        for output in self.outputs:
            output.finish()


class Booting:
    """Says once that guests still boot."""

    def __init__(self, progress, guests):
        self._progress = progress
        self._text = f"booting {'the guest' if guests == 1 else f'{guests} guests'}"
        self._at = time.monotonic() + SLOW_BOOT

    def look(self):
        """Says it if it has lasted long."""
        if self._at is not None and time.monotonic() > self._at:
            self._at = None
            self._progress.step(self._text)


def run(jobs, timeout, stop, progress):
    """Runs the command in all guests until they are off; returns the exit status of the first that failed, or 0. Raises Interrupted
    if the user interrupts it."""
    booting = Booting(progress, len(jobs))
    for job in jobs:
        job.start()
    begun = False
    failed = None
    while not all(job.ended for job in jobs):
        stop.check()
        if not begun:
            booting.look()
        for job in jobs:
            job.poll()
        if any(output.closed.is_set() for job in jobs for output in job.outputs):
            raise Failed("nobody reads the command's output any more")
        if not begun and all(job.ready for job in jobs):
            begun = True
            for job in jobs:
                job.begin(timeout)
        if failed is None and any(job.failed() for job in jobs):
            failed = next(job for job in jobs if job.failed())
            for job in jobs:
                if job.status is None and not job.ended:
                    job.deadline = min(job.deadline, time.monotonic() + AFTER_FAILURE)
                    job.reason = f"was turned off, {AFTER_FAILURE} s after the command had failed in {failed.name}"
    if failed is None:
        return 0
    return ERROR if failed.status is None else failed.status


def run_here(job, line, environment, stop, progress):
    """Runs a line of the shell on this machine while a guest is up; returns its exit status, or ERROR if the guest ends first. Raises
    Interrupted if the user interrupts it."""
    booting = Booting(progress, 1)
    job.start()
    while not job.ready and not job.ended:
        stop.check()
        booting.look()
        job.poll()
    if job.ended:
        return ERROR
    job.begin(None)
    process = subprocess.Popen(["sh", "-c", line], env=environment)
    try:
        while process.poll() is None:
            stop.check()
            job.poll()
            if job.ended:
                return ERROR
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            processes.kill(process)
    # What the guest's own command did is of no interest.
    job.status = 0
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _meaning(status):
    """Returns what a status means to a shell, if it means something."""
    if status == NOT_FOUND:
        return " (no such command in the guest: --share shows a folder, --program copies a file, --install adds a package)"
    try:
        return f" (128 + {status - 128}: {signal.Signals(status - 128).name})"
    except ValueError:
        return ""
