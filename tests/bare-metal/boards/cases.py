"""The cases: which programs on which machines, and what they must say."""

import dataclasses
import typing

from . import linux_peer
from .board import BoardError
from .trial import Failed
from .wrong_device import WrongDevice

#: What every program's end says of the card.
ALL_PAGES_BACK = r"down: (\d+) of \1 pages came back"


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the result."""

    name: str
    summary: str
    #: Does it; gets a Trial.
    body: typing.Callable
    machines: tuple
    #: Boots Linux beside the program.
    linux: bool = False
    #: The cards (a pattern of their names) to which the programs give back all that they made; none if they cannot.
    gives_back: str | None = r"lid\d+"
    #: About what it takes on an idle machine: the longest are begun first.
    lasts: int = 4


def bring_up(machine):
    """The card comes up and goes down, on the root bus; the log is decoded."""

    def body(trial):
        trial.serve(1)
        board = trial.boot(machine, "bring-up", 0, on_root_bus=True)
        board.passes(trial.stop)
        board.wait_for(r"^[0-9a-f:.]+ ?15b3:1021, BAR0 33554432 bytes, 8 vectors", trial.stop)
        board.wait_for(r"^log: \d+\.\d{6} DEBUG bring-up: EnableHca \(bareverbs_mlx5::bring_up::steps\)$", trial.stop)
        board.wait_for(r"^log: \d+\.\d{6} INFO firmware 28\.39\.1002 is up, it has [1-9]\d* pages", trial.stop)
        board.wait_for(r"^port 1: Active, LID 1, MTU 4096$", trial.stop)
        board.wait_for(ALL_PAGES_BACK, trial.stop)
        numbers = [line for line in board.lines if "does not belong to this program" in line]
        if numbers:
            raise Failed(f"a log line that could not be decoded: {numbers[0]}")

    return Case(f"bring-up-{machine}", f"the card comes up and goes down on {machine}, the log is decoded", body, (machine,))


def minimal(machine):
    """The program of the book: a card writes to itself."""

    def body(trial):
        trial.serve(1)
        board = trial.boot(machine, "minimal", 0)
        board.passes(trial.stop)
        board.wait_for(r"^4096 bytes written over the loopback, each byte checked$", trial.stop)
        board.wait_for(ALL_PAGES_BACK, trial.stop)

    return Case(f"minimal-{machine}", f"a card writes to itself on {machine}", body, (machine,))


def addresses(trial, boards):
    """What each program says its address is."""
    return [board.wait_for(r"^address ([0-9a-f:]+)$", trial.stop).group(1) for board in boards]


def write(one, other):
    """RDMA WRITE, READ and windows between two machines."""

    def body(trial):
        trial.serve(2)
        boards = [trial.boot(one, "write", 0), trial.boot(other, "write", 1)]
        first, second = addresses(trial, boards)
        boards[0].send(f"{second} first")
        boards[1].send(f"{first} second")
        for board in boards:
            board.passes(trial.stop)
            board.wait_for(r"^126976 bytes written and read back, each byte checked$", trial.stop)
            board.wait_for(r"^126976 bytes written by the peer, each byte checked$", trial.stop)
            board.wait_for(r"^a byte beyond the window refused$", trial.stop)
            board.wait_for(ALL_PAGES_BACK, trial.stop)

    summary = f"WRITE, READ and a window between {one} and {other}, each byte checked on both sides"
    return Case(f"write-{one}-{other}", summary, body, (one, other))


def pingpong(one, other, name, size, iters, words=""):
    """Messages there and back between two machines."""

    def body(trial):
        trial.serve(2)
        boards = [trial.boot(one, "pingpong", 0), trial.boot(other, "pingpong", 1)]
        client, server = addresses(trial, boards)
        boards[1].send(f"{client} server size={size} iters={iters} {words}")
        boards[1].wait_for("^connected$", trial.stop)
        boards[0].send(f"{server} client size={size} iters={iters} {words}")
        interrupts = 0
        for board in boards:
            board.passes(trial.stop)
            board.wait_for(rf"^{iters} messages of {size} bytes there and back, each byte checked$", trial.stop)
            if "events" in words:
                interrupts += int(board.wait_for(r"^(\d+) interrupts$", trial.stop)[1])
        # A machine finds each message before it sleeps if the other one is fast enough; both cannot.
        if "events" in words and interrupts == 0:
            raise BoardError("neither machine was interrupted")

    summary = f"{iters} messages of {size} bytes there and back between {one} and {other}, {name}"
    return Case(f"pingpong-{one}-{other}-{name}", summary, body, (one, other), lasts=6)


def failing(machine, name, summary, program, pattern, *, serve=(), device=True, options=(), status=1, send=None):
    """A program that must end with a message."""

    def body(trial):
        if device:
            trial.serve(1, *serve)
        board = trial.boot(machine, program, 0 if device else None, options=options)
        if send is not None:
            board.wait_for(r"^address ", trial.stop)
            board.send(send)
        board.fails(pattern, trial.stop, status)

    return Case(f"{name}-{machine}", f"{summary}, on {machine}", body, (machine,), gives_back=None, lasts=2)


def wrong_device(machine, name, summary, bar_size, register, pattern):
    """A device that calls itself a ConnectX and is none."""

    def body(trial):
        socket = trial.runtime / "wrong.socket"
        trial.processes.append(WrongDevice(socket, bar_size, register))
        trial.sockets = [socket]
        trial.boot(machine, "bring-up", 0).fails(pattern, trial.stop)

    return Case(f"{name}-{machine}", f"{summary}, on {machine}", body, (machine,), lasts=2)


def lost(machine, other, name, summary, lose, pattern):
    """A device that goes away under a running program, which says so and ends by itself."""

    def body(trial):
        trial.serve(2)
        boards = [trial.boot(machine, "pingpong", 0, control=True), trial.boot(other, "pingpong", 1, control=True)]
        client, server = addresses(trial, boards)
        boards[1].send(f"{client} server size=64 iters=1000000000")
        boards[1].wait_for("^connected$", trial.stop)
        boards[0].send(f"{server} client size=64 iters=1000000000")
        boards[0].wait_for("^connected$", trial.stop)
        lose(trial, boards)
        for board in boards[: 1 if lose is removed else 2]:
            board.fails(pattern, trial.stop)

    return Case(f"{name}-{machine}", f"{summary}, on {machine}", body, (machine, other), gives_back=None)


def lost_interrupt(machine, other):
    """The card does not raise an interrupt: the program, asleep, wakes up at its deadline and says so."""

    def body(trial):
        trial.serve(2, "--fault", "lose-interrupt 1 1")
        boards = [trial.boot(machine, "pingpong", 0), trial.boot(other, "pingpong", 1)]
        client, server = addresses(trial, boards)
        boards[1].send(f"{client} server size=64 iters=100")
        boards[1].wait_for("^connected$", trial.stop)
        boards[0].send(f"{server} client size=64 iters=100 events")
        boards[0].fails("a completion came without its interrupt", trial.stop)

    summary = f"an interrupt that the card does not raise, while {machine} sleeps"
    return Case(f"lost-interrupt-{machine}", summary, body, (machine, other), gives_back=None)


def removed(trial, _):
    """The first card answers no more."""
    said = trial.server.tell("remove 1")
    if said != "done":
        raise Failed(f"remove: {said}")


def killed(trial, boards):
    """SIGKILL for the server, with the machines held for that moment: QEMU 11.1 ends itself when the connection is reset, which
    is how a socket with unread bytes is closed."""
    for board in boards:
        board.monitor.ask("stop")
    trial.server.settle()
    trial.server.kill()
    for board in boards:
        board.monitor.ask("cont")


def linux(machine):
    """Messages with the pingpong tool of a Linux guest."""

    def body(trial):
        linux_peer.run(trial, machine)

    summary = f"300 messages there and back between {machine} and ibv_rc_pingpong of a Linux guest, both ways"
    return Case(f"linux-{machine}", summary, body, (machine,), linux=True, gives_back="lid1", lasts=25)


NO_CARD = r"no ConnectX .* in any slot; there are"

CASES = [
    bring_up("x86_64"),
    bring_up("aarch64"),
    bring_up("riscv64"),
    minimal("x86_64"),
    minimal("aarch64"),
    minimal("riscv64"),
    write("x86_64", "aarch64"),
    write("aarch64", "riscv64"),
    write("riscv64", "x86_64"),
    pingpong("x86_64", "riscv64", "polling", 65536, 30),
    pingpong("aarch64", "x86_64", "events", 4096, 200, "events"),
    pingpong("riscv64", "aarch64", "events", 4096, 200, "events"),
    linux("x86_64"),
    linux("aarch64"),
    linux("riscv64"),
    failing("x86_64", "empty-slot", "no device in any slot", "bring-up", NO_CARD, device=False),
    failing("aarch64", "empty-slot", "no device in any slot", "bring-up", NO_CARD, device=False),
    failing("riscv64", "empty-slot", "no device in any slot", "bring-up", NO_CARD, device=False),
    failing(
        "aarch64",
        "other-device",
        "another kind of device in the slot",
        "bring-up",
        NO_CARD + r".* 01:00\.0 1234:11e8",
        device=False,
        options=("-device", "pcie-root-port,id=port1,chassis=1", "-device", "edu,bus=port1"),
    ),
    wrong_device(
        "riscv64",
        "short-bar",
        "a BAR0 of 4096 bytes",
        4096,
        0,
        "BAR0 has 4096 bytes, the initialization segment alone has 4116: no mlx5 device",
    ),
    wrong_device("x86_64", "all-ones", "a BAR0 that reads as all ones", 1 << 25, 0xFFFFFFFF, "WaitBoot: the device is gone"),
    wrong_device(
        "aarch64",
        "all-zeros",
        "a BAR0 that reads as zeros",
        1 << 25,
        0,
        "SetCommandQueue: command interface revision 0 instead of 5",
    ),
    failing("x86_64", "small-arena", "an arena of 32 pages", "small-arena", r"bring-up failed at \w+: no \d+ free pages in a row in"),
    failing(
        "riscv64",
        "short-arena",
        "memory that is shorter than the driver's type says",
        "short-arena",
        r"bring-up failed at CheckArena: the memory has 262144 bytes, fewer than were promised",
    ),
    failing(
        "x86_64",
        "refused",
        "a card that refuses INIT_HCA",
        "bring-up",
        r"bring-up failed at InitHca: INIT_HCA \(0x102\) refused: .*\(0x3\), syndrome 0xabcd",
        serve=("--fault", "refuse 1 0x102 0x3 0xabcd"),
    ),
    failing("x86_64", "bad-line", "a line that is no address", "pingpong", "not 'LID:QPN:PSN:GID client", send="hello"),
    failing("aarch64", "long-line", "a line without end", "pingpong", "the line is longer than 200 bytes", send="0" * 500),
    failing("x86_64", "fault", "an instruction that is none", "fault", "exception 0x6", device=False, status=2),
    failing("aarch64", "fault", "an instruction that is none", "fault", "exception, syndrome", device=False, status=2),
    failing("riscv64", "fault", "an instruction that is none", "fault", "trap 0x2 at 0x8", device=False, status=2),
    failing("riscv64", "panic", "a panic", "panic", r"panicked at .*panic\.rs", device=False, status=2),
    lost_interrupt("x86_64", "aarch64"),
    lost_interrupt("aarch64", "riscv64"),
    lost_interrupt("riscv64", "x86_64"),
    lost("x86_64", "aarch64", "removed", "a card that is pulled under traffic", removed, "the device is gone"),
    lost("riscv64", "x86_64", "killed", "a card whose server is killed under traffic", killed, "the device is gone"),
]
