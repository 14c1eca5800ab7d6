"""A Linux guest as the peer of a firmware program: its `ibv_rc_pingpong`, or its network stack and RoCEv2.

The program of the pingpong has no TCP: what the tool would exchange over TCP goes through the guest's script, this process, and the
program's serial line."""

import time

from guests.errors import Failed
from guests.guest import Guest
from harness.case_run import more_than_one
from host.cases import complaints

#: Seconds: many times what it needs, for a machine with other work.
TIMEOUT = 300
SIZE, ITERS = 4096, 300

#: Of the first device of a server.
CARD_MAC = "00:02:c9:00:01:00"


class Exchange:
    """Executes the requests of the guest's script. `options` are those of the board."""

    def __init__(self, run, name, program, options):
        self.run = run
        self.name = name
        self.program = program
        self.options = options
        self.board = None
        self.boots = 0

    def obey(self, command):
        """Executes a request; returns the answer."""
        match command.split():
            case ["boot"]:
                self.boots += 1
                self.board = self.run.boot(self.name, self.program, 0, label=f"{self.name}-{self.boots}", **self.options)
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


class Network:
    """Executes the requests of the script of a guest that has DHCP, ping and RDMA WRITE with the program `network`."""

    def __init__(self, run, name):
        self.run = run
        self.name = name
        self.role = None
        self.board = None

    def obey(self, command):
        """Executes a request; returns the answer."""
        match command.split():
            case ["start", role]:
                self.role = role
                self.board = self.run.boot(self.name, "network", 0)
                self.board.wait_for("^ready$", self.run.stop)
                self.board.send(role)
                return CARD_MAC
            case ["end"]:
                self.board.passes(self.run.stop)
                return "done"
            case _:
                raise Failed(f"the guest asks for '{command}'")


def exchange_with_linux(run, architecture, program="pingpong", **options):
    """Both ends of a pingpong, each once the server. The firmware's card has LID 1, the guest's LID 2."""
    run.serve_devices(2)
    exchange = Exchange(run, architecture, program, options)
    _with_linux(run, {"case": "firmware", "size": SIZE, "iters": ITERS}, exchange)
    if exchange.boots != 2:
        raise Failed("the guest stopped early")


def network_with_linux(run, architecture, role):
    """The program `network` in this role, on the Ethernet of a guest. The firmware's card has LID 1, the guest's LID 2."""
    run.serve_devices(2, "--ethernet")
    network = Network(run, architecture)
    _with_linux(run, {"case": "network", "program": role}, network)
    if network.board is None:
        raise Failed("the guest stopped early")
    return network.board


def _with_linux(run, parameters, peer):
    """Boots a guest with the second device, and waits for its end. `peer` executes its requests."""
    guest = Guest(
        run.trees, "trixie", "guest", run.folder, run.sockets[1:], {"devices": 1, "shut-down": 0, **parameters}, initrd=run.initrd
    )
    run.start(guest)
    deadline = time.monotonic() + TIMEOUT
    while not guest.poll(peer.obey):
        run.stop.check()
        # The guest would wait for a program that has failed until its tool's time is over.
        if peer.board is not None and peer.board.ended.is_set():
            peer.board.passes(run.stop)
        if time.monotonic() > deadline:
            raise Failed(f"no end after {TIMEOUT} s; the last of the guest: {guest.last_words()}")
    failures = guest.failures()
    if failures:
        raise Failed("; ".join(failures))
    warnings = complaints((), guest.lines)
    if warnings:
        raise Failed(f"kernel: {warnings[0]}{more_than_one(warnings)}")
    if not guest.printed("#> done"):
        raise Failed(f"the guest stopped early: {guest.last_words()}")
