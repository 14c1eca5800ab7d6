"""Boots Debian guests with simulated ConnectX devices in their slots and gives a shell in one, or runs a command there, or runs one on
this machine while a guest is up.

`bareverbs vm` starts this with one argument, a JSON object: its options (hosted/src/vm/args.rs), the path of the program, and the
folders of packages and images. So the exit status is: with `run` or `here` that of the command (128 + N if signal N killed it), 124 after
`timeout`, 125 if the guest or this program failed, 130 after Ctrl-C.

`bareverbs vm shell` starts it with an object that has `shell`, the name of a guest that runs; it becomes ssh. ssh starts it with
`--connect PATH`.
"""

import sys

# Before anything that older ones cannot read.
if sys.version_info < (3, 10):
    sys.stderr.write("bareverbs vm: this is Python %d.%d, and 3.10 or later is needed: install it as python3\n" % sys.version_info[:2])
    sys.exit(125)

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import types

# These folders contain sources only.
sys.dont_write_bytecode = True

from guests import additions, command, guest, image, kvm, packages, sessions, shares
from guests.errors import Failed, Interrupted, SetUpError
from guests.progress import Progress
from guests.server import Server
from guests.stop import Stop

NAME = "bareverbs vm"
SUITES = {"6.12": "trixie", "6.1": "bookworm"}

# Megabytes of a guest besides the files in it, which are in its memory twice while it boots.
BASE_MEMORY = 256
DEFAULT_MEMORY = 1024


def memory(given, initrd):
    """Returns the megabytes of each guest."""
    files = initrd.stat().st_size >> 20
    least = BASE_MEMORY + 2 * files
    with open("/proc/meminfo", encoding="ascii") as lines:
        available = next(int(line.split()[1]) >> 10 for line in lines if line.startswith("MemAvailable:"))
    wanted = given.memory or max(DEFAULT_MEMORY, 2 * least)
    if not given.memory and wanted * given.guests > available:
        wanted = least
    most = available // given.guests
    if not least <= wanted <= most:
        raise SetUpError(
            f"{wanted} MiB of memory for {'each' if given.guests > 1 else 'the'} guest: {least} (for {files} MiB of files) to {most} "
            f"({available} MiB are available) are possible; "
            + ("choose --memory in this range" if least <= most else "end other programs, --install less, or use a folder with --share")
        )
    return wanted


def make_initrd(given, folders, trees, progress, folder):
    """Writes the guest's initial file system, with all that is added to it, and returns its path."""
    tree = trees[SUITES[given.kernel]]
    parts = [image.build(given.images, tree)]
    installed = None
    if given.install:
        installed = packages.installed(given.packages, tree.home.name, given.install)
        installed.prepare(progress)
        parts.append(additions.packages(given.images, installed))
    if given.name:
        server = packages.installed(given.packages, tree.home.name, [sessions.PACKAGE])
        server.prepare(progress)
        parts.append(additions.packages(given.images, server))
    own = image.Archive()
    programs = additions.Programs(tree, installed, own)
    for path in given.program:
        programs.add(pathlib.Path(path))
    own.folder("user")
    own.file("user/shares", "".join(f"share{number} {place}\n" for number, (_, place) in enumerate(folders)).encode())
    image.add_modules(own, tree, given.module)
    own.file("user/modules", "".join(f"{name}\n" for name in given.module).encode())
    if given.run is not None:
        own.file("user/command", given.run.encode() + b"\n")
    path = folder / "initrd"
    image.join([*parts, own.bytes()], path)
    return path


def network_options(given, number, folder):
    """Returns QEMU's options for the cable between two guests and the way out."""
    options = []
    if given.guests > 1:
        cable = f"stream,id=cable,server={'off' if number else 'on'},addr.type=unix,addr.path={folder / 'cable'}"
        cable += ",reconnect-ms=200" if number else ""
        options += ["-netdev", cable, "-device", f"virtio-net-pci,netdev=cable,mac=52:54:00:00:00:0{number + 1}"]
    if given.network:
        options += ["-netdev", "user,id=out", "-device", f"virtio-net-pci,netdev=out,mac=52:54:00:00:01:0{number + 1}"]
    return options


def boot(given, folders, trees, progress, folder):
    """Runs server and guests; returns the exit status."""
    named = []
    if given.name:
        # First, since others may wait for the name.
        names = [given.name] if given.guests == 1 else [f"{given.name}-{number}" for number in range(given.guests)]
        named = [sessions.Sessions(name, number, folder) for number, name in enumerate(names)]
    try:
        return boot_named(given, folders, trees, progress, folder, named)
    finally:
        for each in named:
            each.stop()


def boot_named(given, folders, trees, progress, folder, named):
    """Runs server and guests; `named` are the Sessions of those that have a name."""
    sockets = [folder / f"{number}.socket" for number in range(given.devices * given.guests)]
    server = Server(pathlib.Path(given.bareverbs), folder, "device", sockets, given.serve, traced=False)
    initrd = make_initrd(given, folders, trees, progress, folder)
    size = memory(given, initrd)
    progress.end()

    def machine(number, options=(), terminal=False):
        parameters = {
            "case": "shell",
            "devices": given.devices,
            "guest": number,
            "guests": given.guests,
            "network": int(given.network),
            "timeout": given.timeout or 0,
            "sessions": int(bool(named)),
            "shut-down": 0,
        }
        if named:
            options = (*options, *named[number].options())
        return guest.Guest(
            trees,
            SUITES[given.kernel],
            f"guest{number}",
            folder,
            sockets[number * given.devices : (number + 1) * given.devices],
            parameters,
            given.cpus,
            size,
            (*network_options(given, number, folder), *shares.options(folders), *options),
            initrd=initrd,
            iommu=given.iommu,
            terminal=terminal,
            accel=given.accel,
            # It has the machine to itself, or waits like everybody else.
            background=False,
        )

    for each in named:
        each.start()
    if given.run is None:
        return use(server, machine(0, terminal=True))
    jobs = [
        command.Job(number, given.guests, folder, lambda options, number=number: machine(number, options), given.boot_timeout)
        for number in range(given.guests)
    ]
    return run(given, server, jobs, progress)


def use(server, machine):
    """Gives the terminal to the guest until it is off."""
    try:
        server.start()
        status = machine.use()
        if status != 0:
            raise Failed(f"QEMU ended with status {status}: {(machine.errors() or ['it said nothing'])[-1]}")
        return 0
    finally:
        machine.stop()
        server.stop()


def run(given, server, jobs, progress):
    """Runs the command in every guest."""
    # Not as an exception, which might come while a process is being started.
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.event.set())
    try:
        server.start()
        if given.here:
            status = command.run_here(jobs[0], given.here, here_environment(given), stop, progress)
        else:
            status = command.run(jobs, given.timeout, stop, progress)
    finally:
        for job in jobs:
            job.stop()
        server.stop()
    said = [line for job in jobs for line in job.outcome(given.timeout)]
    said += [f"device: {line}" for line in server.lines() if ": driver: " in line or "panicked" in line]
    for line in said:
        print(f"{NAME}: {line}", file=sys.stderr)
    return status


def here_environment(given):
    """Returns the environment of a command on this machine: cargo starts what it has built in the guest."""
    runner = f"{given.bareverbs} vm shell {given.name}"
    targets = ("GNU", "MUSL")
    runners = {f"CARGO_TARGET_X86_64_UNKNOWN_LINUX_{target}_RUNNER": runner for target in targets}
    return {**os.environ, **runners, "BAREVERBS_VM": given.name}


def shell(given):
    """Becomes ssh to a guest; returns only if it cannot."""
    try:
        line = sessions.shell_command(given.shell, given.command, os.path.abspath(__file__), os.environ, os.getcwd())
        os.execvp(line[0], line)
    except FileNotFoundError:
        print(f"{NAME}: no ssh in PATH: apt-get install openssh-client (Fedora: dnf install openssh-clients)", file=sys.stderr)
    except (SetUpError, OSError) as error:
        print(f"{NAME}: {error}", file=sys.stderr)
    return command.ERROR


def main(text):
    """Runs a guest as a JSON object describes; returns the exit status."""
    given = types.SimpleNamespace(**json.loads(text))
    if hasattr(given, "shell"):
        return shell(given)
    if given.here:
        # The guest waits until it is turned off.
        given.run = "while :; do sleep 3600; done"
        given.name = given.name or f"here-{os.getpid()}"
    given.packages, given.images = pathlib.Path(given.packages), pathlib.Path(given.images)
    progress = Progress(NAME, sys.stderr)
    try:
        # What is wrong with the options is said before anything is fetched.
        folders = shares.parse(given.share)
        given.accel = kvm.accelerator(given.accel)
        trees = packages.trees(given.packages)
        for name in ("qemu", SUITES[given.kernel]):
            trees[name].prepare(progress)
        with contextlib.ExitStack() as cleanup:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="bareverbs-"))
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            return boot(given, folders, trees, progress, folder)
    except (Interrupted, KeyboardInterrupt):
        progress.end()
        return command.INTERRUPTED
    except (SetUpError, Failed, subprocess.SubprocessError, OSError) as error:
        progress.end()
        print(f"{NAME}: {error}", file=sys.stderr)
        return command.ERROR


if __name__ == "__main__":
    if sys.argv[1] == "--connect":
        sys.exit(sessions.connect(sys.argv[2]))
    # A plain termination cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1]))
