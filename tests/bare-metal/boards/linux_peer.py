"""A Linux guest whose `ibv_rc_pingpong` is the peer of a firmware program. The program has no TCP: what the tool would exchange
over TCP goes through the guest's script, this process, and the program's serial line."""

import time

from guests.errors import Failed
from guests.guest import Guest
from harness.case_run import more_than_one
from host.cases import complaints

#: Seconds: many times what it needs, for a machine with other work.
TIMEOUT = 300
SIZE, ITERS = 4096, 300


class Exchange:
    """Executes the requests of the guest's script."""

    def __init__(self, run, name):
        self.run = run
        self.name = name
        self.board = None
        self.boots = 0

    def obey(self, command):
        """Executes a request; returns the answer."""
        match command.split():
            case ["boot"]:
                self.boots += 1
                self.board = self.run.boot(self.name, "pingpong", 0, label=f"{self.name}-{self.boots}")
                return self.board.wait_for(r"^address ([0-9a-f:]+)$", self.run.stop).group(1)
            case ["connect", role, address]:
                events = "events" if self.boots > 1 else ""
                self.board.send(f"{address} {role} size={SIZE} iters={ITERS} linux {events}")
                self.board.wait_for("^connected$", self.run.stop)
                return "connected"
            case ["end"]:
                self.board.passes(self.run.stop)
                self.board.wait_for(rf"^{ITERS} messages of {SIZE} bytes there and back, each byte checked$", self.run.stop)
                return "done"
            case _:
                raise Failed(f"the guest asks for '{command}'")


def exchange_with_linux(run, architecture):
    """The firmware's card has LID 1, the guest's LID 2."""
    run.serve_devices(2)
    parameters = {"case": "firmware", "devices": 1, "shut-down": 0, "size": SIZE, "iters": ITERS}
    guest = Guest(run.trees, "trixie", "guest", run.folder, run.sockets[1:], parameters, initrd=run.initrd)
    run.start(guest)
    exchange = Exchange(run, architecture)
    deadline = time.monotonic() + TIMEOUT
    while not guest.poll(exchange.obey):
        run.stop.check()
        if time.monotonic() > deadline:
            raise Failed(f"no end after {TIMEOUT} s; the last of the guest: {guest.last_words()}")
    warnings = complaints((), guest.lines)
    if warnings:
        raise Failed(f"kernel: {warnings[0]}{more_than_one(warnings)}")
    failures = guest.failures()
    if failures:
        raise Failed("; ".join(failures))
    if not guest.printed("#> done") or exchange.boots != 2:
        raise Failed(f"the guest stopped early: {guest.last_words()}")
