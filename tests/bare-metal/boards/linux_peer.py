"""A Linux guest whose `ibv_rc_pingpong` is the peer of a firmware program. The program has no TCP: what the tool would exchange over
TCP goes through the guest's script, this process, and the program's serial line."""

import time
import types

from rig import cases, machine

from .trial import Failed

#: Many times what it needs, for a machine with other work.
SECONDS = 300
SIZE, ITERS = 4096, 300


class Exchange:
    """What the guest's script asks for."""

    def __init__(self, trial, name):
        self.trial = trial
        self.name = name
        self.board = None
        self.boots = 0

    def obey(self, command):
        """Does it; returns the answer."""
        match command.split():
            case ["boot"]:
                self.boots += 1
                self.board = self.trial.boot(self.name, "pingpong", 0, label=f"{self.name}-{self.boots}")
                return self.board.wait_for(r"^address ([0-9a-f:]+)$", self.trial.stop).group(1)
            case ["connect", role, address]:
                events = "events" if self.boots > 1 else ""
                self.board.send(f"{address} {role} size={SIZE} iters={ITERS} linux {events}")
                self.board.wait_for("^connected$", self.trial.stop)
                return "connected"
            case ["end"]:
                self.board.passes(self.trial.stop)
                self.board.wait_for(rf"^{ITERS} messages of {SIZE} bytes there and back, each byte checked$", self.trial.stop)
                return "done"
            case _:
                raise Failed(f"the guest asks for '{command}'")


def run(trial, name):
    """The firmware's card has LID 1, the guest's LID 2."""
    trial.serve(2)
    parameters = {"case": "firmware", "devices": 1, "shut-down": 0, "size": SIZE, "iters": ITERS}
    guest = machine.Guest(trial.tools.trees, "trixie", "guest", trial.folder, trial.sockets[1:], parameters)
    trial.processes.append(guest)
    guest.start()
    exchange = Exchange(trial, name)
    deadline = time.monotonic() + SECONDS
    while not guest.poll(exchange.obey):
        trial.stop.check()
        if time.monotonic() > deadline:
            raise Failed(f"no end after {SECONDS} s; the last of the guest: {guest.last_word()}")
    complaints = cases.complaints(types.SimpleNamespace(expected=()), guest.lines)
    if complaints:
        raise Failed(f"kernel: {complaints[0]}")
    failures = [line[3:] for line in guest.lines if line.startswith("#> fail")]
    if failures:
        raise Failed("; ".join(failures))
    if not guest.said("#> done") or exchange.boots != 2:
        raise Failed(f"the guest stopped early: {guest.last_word()}")
