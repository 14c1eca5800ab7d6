"""The cases: which programs on which machines, and what they must print."""

import dataclasses
import re
import struct
import typing

from guests import machine as virtual_machine
from guests.errors import Failed
from harness import case

from . import linux_peer
from .board import MACHINES
from .device_tree import changed
from .wrong_device import WrongDevice

#: What every program's end says of the card.
ALL_PAGES_BACK = r"down: (\d+) of \1 pages came back"


#: For a case whose programs give back what they made on every card.
ALL_CARDS = r"lid\d+"


@dataclasses.dataclass(frozen=True)
class Case(case.Case):
    """One line of the result."""

    #: Does it; has a BoardRun as its argument.
    body: typing.Callable = dataclasses.field(kw_only=True)
    machines: tuple = dataclasses.field(kw_only=True)
    #: What it boots on them.
    programs: tuple = dataclasses.field(kw_only=True)
    #: Boots Linux beside the program.
    linux: bool = dataclasses.field(default=False, kw_only=True)
    #: That Linux has Python and rdma-core's bindings.
    python: bool = dataclasses.field(default=False, kw_only=True)
    #: Programs in C that it boots: they have a build of their own, which a cross compiler is needed for.
    in_c: tuple = dataclasses.field(default=(), kw_only=True)


def bring_up(machine):
    """The card comes up and goes down, on the root bus; the log is decoded."""

    def body(run):
        run.serve_devices(1)
        board = run.boot(machine, "bring-up", 0, on_root_bus=True)
        board.passes(run.stop)
        # Another card has another number and firmware, and the MTU that its port is configured with.
        part, firmware, mtu = (r"[0-9a-f]{4}", r"\d+\.\d+\.\d+", r"\d+") if run.profile else ("1021", r"28\.39\.1002", "4096")
        board.wait_for(rf"^[0-9a-f:.]+ ?15b3:{part}, BAR0 33554432 bytes, 8 vectors", run.stop)
        board.wait_for(r"^log: \d+\.\d{6} DEBUG bring-up: EnableHca \(bareverbs_mlx5::bring_up::steps\)$", run.stop)
        board.wait_for(rf"^log: \d+\.\d{{6}} INFO firmware {firmware} is up, it has [1-9]\d* pages", run.stop)
        board.wait_for(rf"^port 1: Active, LID 1, MTU {mtu}$", run.stop)
        board.wait_for(ALL_PAGES_BACK, run.stop)
        numbers = [line for line in board.lines if "does not belong to this program" in line]
        if numbers:
            raise Failed(f"a log line that could not be decoded: {numbers[0]}")

    return Case(
        f"bring-up-{machine}",
        f"the card comes up and goes down on {machine}, the log is decoded",
        body=body,
        machines=(machine,),
        programs=("bring-up",),
        gives_back=ALL_CARDS,
    )


def loopback(machine, program):
    """A program of the book: a card writes to itself."""

    def body(run):
        run.serve_devices(1)
        board = run.boot(machine, program, 0)
        board.passes(run.stop)
        board.wait_for(r"^4096 bytes written over the loopback, each byte checked$", run.stop)
        board.wait_for(ALL_PAGES_BACK, run.stop)

    summary = f"a card writes to itself on {machine}, by the program {program}"
    return Case(f"{program}-{machine}", summary, body=body, machines=(machine,), programs=(program,), gives_back=ALL_CARDS)


def tasks(machine):
    """Two ends and a timer as tasks of an executor, woken by the card's interrupts."""

    def body(run):
        run.serve_devices(1)
        board = run.boot(machine, "tasks", 0)
        board.passes(run.stop)
        board.wait_for(r"^200 messages of 4096 bytes there and back between two tasks, each byte checked$", run.stop)
        interrupts, ticks = map(int, board.wait_for(r"^(\d+) interrupts, (\d+) ticks of the third task$", run.stop).groups())
        # The client sleeps ten times for 5 ms, and the third task waits for 2 ms each time.
        if not interrupts or ticks < 10:
            raise Failed(f"{interrupts} interrupts, {ticks} ticks: the tasks were not woken")
        board.wait_for(ALL_PAGES_BACK, run.stop)

    summary = f"200 messages between two tasks of an executor on {machine}, beside a task that waits for time"
    return Case(f"tasks-{machine}", summary, body=body, machines=(machine,), programs=("tasks",), gives_back=ALL_CARDS)


def conformance(machine):
    """The machine's registers, memory, pages, clock and interrupts are as the driver expects them."""

    def body(run):
        run.serve_devices(1)
        board = run.boot(machine, "conformance", 0)
        board.passes(run.stop)
        board.wait_for(r"^registers, memory, pages and clock are right$", run.stop)
        interrupts = int(board.wait_for(r"^200 requests, \d+ bytes, each checked; (\d+) interrupts$", run.stop)[1])
        if interrupts < 200:
            raise Failed(f"{interrupts} interrupts of 200 events")
        board.wait_for(ALL_PAGES_BACK, run.stop)

    summary = f"the platform of {machine} is what a platform must be"
    return Case(f"conformance-{machine}", summary, body=body, machines=(machine,), programs=("conformance",), gives_back=ALL_CARDS)


def write_in_c():
    """A program in C with two cards, each of which writes to the other."""

    def body(run):
        run.serve_devices(2)
        other = virtual_machine.option(virtual_machine.card(run.sockets[1], id="other"))
        # Two times the pages of its cards' firmware, and the program.
        board = run.boot("riscv64", "write-in-c", 0, on_root_bus=True, options=other, memory=256)
        board.passes(run.stop)
        for lid in (1, 2):
            board.wait_for(rf"^16384 bytes written to LID {lid}, each byte checked$", run.stop)
        down = [line for line in board.lines if re.search(ALL_PAGES_BACK, line)]
        if len(down) != 2:
            raise Failed(f"not both cards gave their pages back: {down}")

    summary = "two cards write to each other, by a program in C on riscv64"
    return Case(
        "write-in-c-riscv64", summary, body=body, machines=("riscv64",), programs=(), in_c=("write-in-c",), gives_back=ALL_CARDS
    )


def moved(machine, name, what, **options):
    """The same program where the machine has things elsewhere: it finds them in the machine's description."""

    def body(run):
        run.serve_devices(1)
        board = run.boot(machine, "bring-up", 0, **options)
        board.passes(run.stop)
        board.wait_for(ALL_PAGES_BACK, run.stop)

    summary = f"the card comes up on {machine} with {what}"
    return Case(f"moved-{name}-{machine}", summary, body=body, machines=(machine,), programs=("bring-up",), gives_back=ALL_CARDS)


def dma_range(bus, base, length):
    """Returns `dma-ranges` of a PCI host with one range of memory: the address that devices use, the processor's, and the length."""
    return struct.pack(">I3Q", 0x4300_0000, bus, base, length)


def unfit(machine, name, what, pattern, *, kind=None, program="bring-up", **options):
    """A machine that the program was not made for: it says what is missing in the machine's description."""

    def body(run):
        run.boot(kind or machine, program, **options).fails(f"what this machine is: .*{pattern}", run.stop)

    machines = tuple(sorted({machine, kind or machine}))
    summary = f"a program for {machine} on {what}"
    return Case(f"unfit-{name}-{machine}", summary, body=body, machines=machines, programs=(program,), typical_seconds=1)


def addresses(run, boards):
    """The address that each program prints."""
    return [board.wait_for(r"^address ([0-9a-f:]+)$", run.stop).group(1) for board in boards]


def write(one, other, profile=None):
    """RDMA WRITE, READ and windows between two machines; with `profile` on devices that demand what that card does."""

    def body(run):
        run.serve_devices(2, *(["--profile", profile] if profile else []))
        boards = [run.boot(one, "write", 0), run.boot(other, "write", 1)]
        first, second = addresses(run, boards)
        boards[1].send(f"{first} second")
        # What a queue pair sends before the other one is connected is lost, and it sends again for half a second only.
        boards[1].wait_for("^connected$", run.stop)
        boards[0].send(f"{second} first")
        for board in boards:
            board.passes(run.stop)
            board.wait_for(r"^126976 bytes written and read back, each byte checked$", run.stop)
            board.wait_for(r"^126976 bytes written by the peer, each byte checked$", run.stop)
            board.wait_for(r"^a byte beyond the window refused$", run.stop)
            board.wait_for(ALL_PAGES_BACK, run.stop)

    name = f"write-{one}-{other}"
    summary = f"WRITE, READ and a window between {one} and {other}, each byte checked on both sides"
    if profile:
        # The link trains, and the LID comes late.
        name, summary = f"{profile}-{one}-{other}", f"{summary}; devices like a {profile}"
    seconds = 20 if profile else 5
    return Case(
        name, summary, body=body, machines=(one, other), programs=("write",), gives_back=ALL_CARDS, typical_seconds=seconds
    )


def network(client, server):
    """A network interface and RDMA on one card: DHCP, ARP, ping, UDP, and then RDMA WRITE over RoCEv2."""

    def body(run):
        run.serve_devices(2, "--ethernet")
        boards = [run.boot(client, "network", 0), run.boot(server, "network", 1)]
        for board, role in zip(boards, ["client", "server"], strict=True):
            board.wait_for("^ready$", run.stop)
            board.send(role)
        for board in boards:
            board.passes(run.stop)
            board.wait_for(ALL_PAGES_BACK, run.stop)
        boards[0].wait_for(r"^address 192\.0\.2\.50 by DHCP$", run.stop)
        boards[0].wait_for(r"^192\.0\.2\.1 is at [0-9a-f:]{17}$", run.stop)
        boards[1].wait_for(r"^192\.0\.2\.50 answers ping$", run.stop)
        boards[1].wait_for(r"^65536 bytes written by the client, each byte checked$", run.stop)

    summary = f"{client} gets its address by DHCP from {server}, answers ping, and writes to it over RoCEv2, on one card each"
    return Case(
        f"network-{client}-{server}", summary, body=body, machines=(client, server), programs=("network",), gives_back=ALL_CARDS
    )


def pingpong(one, other, name, size, iters, words=""):
    """Messages there and back between two machines."""

    def body(run):
        run.serve_devices(2)
        boards = [run.boot(one, "pingpong", 0), run.boot(other, "pingpong", 1)]
        client, server = addresses(run, boards)
        boards[1].send(f"{client} server size={size} iters={iters} {words}")
        boards[1].wait_for("^connected$", run.stop)
        boards[0].send(f"{server} client size={size} iters={iters} {words}")
        interrupts = 0
        for board in boards:
            board.passes(run.stop)
            board.wait_for(rf"^{iters} messages of {size} bytes there and back, each byte checked$", run.stop)
            if "events" in words:
                interrupts += int(board.wait_for(r"^(\d+) interrupts$", run.stop)[1])
        # A machine finds each message before it sleeps if the other one is fast enough; both cannot.
        if "events" in words and interrupts == 0:
            raise Failed("neither machine was interrupted")

    summary = f"{iters} messages of {size} bytes there and back between {one} and {other}, {name}"
    return Case(
        f"pingpong-{one}-{other}-{name}",
        summary,
        body=body,
        machines=(one, other),
        programs=("pingpong",),
        gives_back=ALL_CARDS,
        typical_seconds=6,
    )


def blue_flame(machine, other):
    """The doorbells of `machine` are mapped write-combining: each message is copied into a BlueFlame register, into both halves in turn,
    and the copy has the bytes that the card fetches. `other` rings uncached doorbells."""
    iters = 40

    def body(run):
        run.serve_devices(2, traced=True)
        boards = [run.boot(machine, "pingpong", 0), run.boot(other, "pingpong", 1)]
        client, server = addresses(run, boards)
        boards[1].send(f"{client} server size=64 iters={iters}")
        boards[1].wait_for("^connected$", run.stop)
        boards[0].send(f"{server} client size=64 iters={iters}")
        for board in boards:
            board.passes(run.stop)
            board.wait_for(rf"^{iters} messages of 64 bytes there and back, each byte checked$", run.stop)
        run.stop_servers()
        copied, plain = copies(run.server.trace, "lid1"), copies(run.server.trace, "lid2")
        halves = {(offset >> 8) & 1 for offset, _ in copied}
        whole = [words for _, words in copied if len(words) == 8]
        if len(copied) != iters or len(whole) != iters or halves != {0, 1}:
            raise Failed(f"{len(copied)} doorbells, {len(whole)} of them with a whole request, halves {sorted(halves)}")
        # Of a short SEND: what the device fetches has these doublewords, behind the doorbell's own (segment of data: length, key, address).
        if any(int(words[2][:8], 16) != 64 for words in whole):
            raise Failed(f"a copy that is no message of 64 bytes: {whole[0]}")
        if len(plain) != iters or any(words[1:] for _, words in plain):
            raise Failed(f"{other} copied: {plain[0]}")

    summary = f"each message of {machine} is copied into a BlueFlame register; {other} rings doorbells"
    return Case(
        f"blue-flame-{machine}", summary, body=body, machines=(machine, other), programs=("pingpong",), gives_back=ALL_CARDS
    )


def copies(trace, device):
    """Returns the offset of each send doorbell of a device, and the eight bytes of each write of it and behind it."""
    found = []
    pattern = re.compile(rf" {device} doorbell +(send|copy) uar=\S+ offset=(\S+)(?: bytes=(\S+))?")
    for line in trace.read_text(errors="replace").splitlines():
        match = pattern.search(line)
        if match and match[1] == "send":
            found.append((int(match[2], 16), [""]))
        elif match:
            found[-1][1].append(match[3])
    return found


def failing(machine, name, summary, program, pattern, *, serve=(), device=True, options=(), status=1, send=None):
    """A program that must end with a message."""

    def body(run):
        if device:
            run.serve_devices(1, *serve)
        board = run.boot(machine, program, 0 if device else None, options=options)
        if send is not None:
            board.wait_for(r"^address ", run.stop)
            board.send(send)
        board.fails(pattern, run.stop, status)

    return Case(
        f"{name}-{machine}", f"{summary}, on {machine}", body=body, machines=(machine,), programs=(program,), typical_seconds=2
    )


def wrong_device(
    machine, name, summary, bar_size, register, pattern, *, program="bring-up", on_root_bus=False, busy=0, lines=()
):
    """A device that calls itself a ConnectX and is none. It cannot be reset alone."""

    def body(run):
        socket = run.runtime / "wrong.socket"
        device = WrongDevice(socket, bar_size, register, busy=busy)
        run.processes.append(device)
        run.sockets = [socket]
        board = run.boot(machine, program, 0, on_root_bus=on_root_bus)
        for line in lines:
            board.wait_for(line, run.stop)
        board.fails(pattern, run.stop)
        # By QEMU at power-on, and by the bridge above it.
        expected = 1 if on_root_bus else 2
        if device.resets != expected:
            raise Failed(f"the device was reset {device.resets} times instead of {expected}")
        if not device.has_sizes_of_bios():
            raise Failed("after the reset the device has other sizes of packets than before it")

    return Case(
        f"{name}-{machine}",
        f"{summary}, on {machine}",
        body=body,
        machines=(machine,),
        programs=(program,),
        gives_back=ALL_CARDS,
        typical_seconds=2,
    )


def lost(machine, other, name, summary, lose, pattern):
    """A device that goes away under a running program, which reports it and ends."""

    def body(run):
        run.serve_devices(2)
        boards = [run.boot(machine, "pingpong", 0, control=True), run.boot(other, "pingpong", 1, control=True)]
        client, server = addresses(run, boards)
        boards[1].send(f"{client} server size=64 iters=1000000000")
        boards[1].wait_for("^connected$", run.stop)
        boards[0].send(f"{server} client size=64 iters=1000000000")
        boards[0].wait_for("^connected$", run.stop)
        lose(run, boards)
        for board in boards[: 1 if lose is removed else 2]:
            board.fails(pattern, run.stop)

    return Case(
        f"{name}-{machine}", f"{summary}, on {machine}", body=body, machines=(machine, other), programs=("pingpong",)
    )


def lost_interrupt(machine, other):
    """The card does not raise an interrupt: the program, asleep, wakes up at its deadline and reports it."""

    def body(run):
        run.serve_devices(2, "--fault", "lose-interrupt 1 1")
        boards = [run.boot(machine, "pingpong", 0), run.boot(other, "pingpong", 1)]
        client, server = addresses(run, boards)
        boards[1].send(f"{client} server size=64 iters=100")
        boards[1].wait_for("^connected$", run.stop)
        boards[0].send(f"{server} client size=64 iters=100 events")
        boards[0].fails("a completion came without its interrupt", run.stop)

    summary = f"an interrupt that the card does not raise, while {machine} sleeps"
    return Case(f"lost-interrupt-{machine}", summary, body=body, machines=(machine, other), programs=("pingpong",))


def restart(machine, when, what):
    """A program that starts again in the middle of traffic, as after a watchdog, finds no byte that the card wrote."""

    def body(run):
        run.serve_devices(2)
        boards = [run.boot(machine, "restart", 0), run.boot(machine, "restart", 1, label="writer")]
        target, writer = addresses(run, boards)
        memory = boards[0].wait_for(r"^memory ([0-9a-f]+ [0-9a-f]+)$", run.stop).group(1)
        boards[0].send(f"{writer} target {when}")
        boards[0].wait_for("^connected$", run.stop)
        boards[1].send(f"{target} writer {memory}")
        boards[0].passes(run.stop)
        boards[0].wait_for("^started again$", run.stop)
        boards[0].wait_for("^no byte was written by the card$", run.stop)
        boards[1].passes(run.stop)
        for board in boards:
            board.wait_for(ALL_PAGES_BACK, run.stop)

    summary = f"a restart of {machine} in the middle of traffic: nothing is written {what}"
    return Case(
        f"restart-{when}-{machine}",
        summary,
        body=body,
        machines=(machine,),
        programs=("restart",),
        gives_back=ALL_CARDS,
        typical_seconds=10,
    )


def removed(run, _):
    """The first card answers no more."""
    answer = run.server.control("remove 1")
    if answer != "done":
        raise Failed(f"remove: {answer}")


def killed(run, boards):
    """SIGKILL for the server, with the machines held for that moment: QEMU 11.1 ends itself when the connection is reset, which
    is how a socket with unread bytes is closed."""
    for board in boards:
        board.hold()
    run.server.settle()
    run.server.kill()
    for board in boards:
        board.resume()


def linux(machine):
    """Messages with the pingpong tool of a Linux guest."""

    def body(run):
        linux_peer.exchange_with_linux(run, machine)

    summary = f"300 messages there and back between {machine} and ibv_rc_pingpong of a Linux guest, both ways"
    return Case(
        f"linux-{machine}",
        summary,
        body=body,
        machines=(machine,),
        programs=("pingpong",),
        linux=True,
        gives_back="lid1",
        typical_seconds=25,
    )


def linux_c():
    """The same by the program in C. It sleeps until an interrupt comes while it is the server."""

    def body(run):
        # The pages of its card's firmware, and the program.
        linux_peer.exchange_with_linux(run, "riscv64", "pingpong-in-c", on_root_bus=True, memory=256)
        for board in run.boards:
            board.wait_for(ALL_PAGES_BACK, run.stop)
        if int(run.boards[1].wait_for(r"^(\d+) interrupts$", run.stop)[1]) == 0:
            raise Failed("the program was not interrupted")

    summary = "300 messages there and back between a program in C on riscv64 and ibv_rc_pingpong of a Linux guest, both ways"
    return Case(
        "linux-c-riscv64",
        summary,
        body=body,
        machines=("riscv64",),
        programs=(),
        in_c=("pingpong-in-c",),
        linux=True,
        gives_back="lid1",
        typical_seconds=25,
    )


def network_linux(machine, role):
    """The program `network` with a Linux guest as the other end."""

    def body(run):
        board = linux_peer.network_with_linux(run, machine, role)
        board.wait_for(ALL_PAGES_BACK, run.stop)
        lines = {
            "client": (
                r"^address 192\.0\.2\.50 by DHCP$",
                r"^192\.0\.2\.1 is at 00:02:c9:00:02:00$",
                r"^65536 bytes written$",
            ),
            "server": (
                r"^192\.0\.2\.50 is at 00:02:c9:00:02:00$",
                r"^192\.0\.2\.50 answers ping$",
                r"^65536 bytes written by the client, each byte checked$",
            ),
        }
        for line in lines[role]:
            board.wait_for(line, run.stop)

    what = {
        "client": f"{machine} gets its address by DHCP from a Linux guest, answers ping, and writes to it over RoCEv2",
        "server": f"{machine} gives a Linux guest its address by DHCP, pings it, and is written to over RoCEv2",
    }
    return Case(
        f"network-linux-{role}-{machine}",
        what[role],
        body=body,
        machines=(machine,),
        programs=("network",),
        linux=True,
        python=True,
        gives_back="lid1",
        typical_seconds=30,
    )


def on_each_machine(make, only=None):
    """Returns a case for each machine. `only` names the machine of the one in a brief run, where no code of a machine is new."""
    made = {machine: make(machine) for machine in MACHINES}
    return [
        dataclasses.replace(case, covered_by=made[only].name if only and machine != only else None) for machine, case in made.items()
    ]


def covered(by, case):
    """Returns the case with the name of the one that covers it in a brief run."""
    return dataclasses.replace(case, covered_by=by)


NO_CARD = r"no ConnectX .* in any slot; there are"

CASES = [
    *on_each_machine(bring_up),
    *on_each_machine(lambda machine: loopback(machine, "minimal"), only="riscv64"),
    *on_each_machine(lambda machine: loopback(machine, "by-hand"), only="aarch64"),
    write_in_c(),
    *on_each_machine(tasks, only="x86_64"),
    *on_each_machine(conformance),
    moved("aarch64", "ecam", "configuration space below 4 GiB, and 256 MB of memory", moved="highmem=off", memory=256),
    moved("riscv64", "memory", "512 MB of memory, with the device tree at its end", memory=512),
    moved("x86_64", "memory", "3 GB of memory", memory=3072),
    moved("microvm", "memory", "64 MB of memory, and one interrupt controller", moved="ioapic2=off", memory=64),
    covered("write-microvm-aarch64", write("x86_64", "aarch64")),
    covered("write-riscv64-x86_64", write("aarch64", "riscv64")),
    write("riscv64", "x86_64"),
    write("microvm", "aarch64"),
    write("microvm", "x86_64", "connectx-4-lx"),
    write("aarch64", "riscv64", "connectx-7"),
    covered("network-aarch64-riscv64", network("x86_64", "aarch64")),
    network("aarch64", "riscv64"),
    network("riscv64", "x86_64"),
    network_linux("x86_64", "client"),
    network_linux("x86_64", "server"),
    pingpong("x86_64", "riscv64", "polling", 65536, 30),
    pingpong("aarch64", "x86_64", "events", 4096, 200, "events"),
    covered("pingpong-aarch64-x86_64-events", pingpong("riscv64", "aarch64", "events", 4096, 200, "events")),
    pingpong("microvm", "riscv64", "events", 4096, 200, "events"),
    blue_flame("aarch64", "x86_64"),
    covered("linux-aarch64", linux("x86_64")),
    linux("aarch64"),
    covered("linux-aarch64", linux("riscv64")),
    linux_c(),
    failing("x86_64", "empty-slot", "no device in any slot", "bring-up", NO_CARD, device=False),
    failing("aarch64", "empty-slot", "no device in any slot", "bring-up", NO_CARD, device=False),
    covered("empty-slot-aarch64", failing("riscv64", "empty-slot", "no device in any slot", "bring-up", NO_CARD, device=False)),
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
        "BAR0 has 4096 bytes, the initialization segment alone has 16396: no mlx5 device",
    ),
    wrong_device(
        "microvm",
        "slow-reset",
        "a card that cannot be reset alone, and takes three seconds for the reset by its bridge",
        4096,
        0,
        "BAR0 has 4096 bytes",
        busy=3,
        lines=[r"^01:00\.0 has no function-level reset: 00:01\.0 resets all behind it$", r"^01:00\.0 needs more than 1 s after its"],
    ),
    wrong_device(
        "aarch64",
        "no-reset",
        "a card that nothing can reset",
        1 << 25,
        0,
        r"00:01\.0 has no function-level reset, and no bridge of its own .*: put it into a slot of its own",
        on_root_bus=True,
    ),
    unfit("x86_64", "mcfg", "a PC whose ACPI has no configuration space", "ACPI has no table MCFG", image="x86_64", kind="microvm"),
    unfit("microvm", "tree", "a PC without a device tree", r"\(fw_cfg\) has no etc/fdt", image="microvm", kind="x86_64"),
    unfit("aarch64", "gic", "a GICv3", "the device tree has no arm,cortex-a15-gic", moved="gic-version=3"),
    unfit("riscv64", "imsic", "a PLIC", "the device tree has no riscv,imsics", moved="aia=none"),
    unfit(
        "aarch64", "coherent", "a PCI host that does not snoop caches", "has no 'dma-coherent'",
        tree=lambda tree: changed(tree, "pcie@", "dma-coherent"),
    ),
    unfit(
        "riscv64", "coherent", "a PCI host that does not snoop caches", "'dma-noncoherent'",
        tree=lambda tree: changed(tree, "pci@", "dma-noncoherent", b""),
    ),
    unfit(
        "aarch64", "dma", "a PCI host that moves memory for devices", "'dma-ranges'",
        tree=lambda tree: changed(tree, "pcie@", "dma-ranges", dma_range(0, 1 << 30, 1 << 32)),
    ),
    moved(
        "aarch64", "dma", "memory that devices see where it is",
        tree=lambda tree: changed(tree, "pcie@", "dma-ranges", dma_range(1 << 30, 1 << 30, 1 << 32)),
    ),
    unfit("aarch64", "memory", "3 MB of memory", "give the machine more memory", program="pingpong", memory=3),
    wrong_device(
        "x86_64",
        "all-ones",
        "a BAR0 that reads as all ones",
        1 << 25,
        0xFFFFFFFF,
        "WaitBoot: the device is gone",
        program="silent-card",
    ),
    wrong_device(
        "aarch64",
        "all-zeros",
        "a BAR0 that reads as zeros",
        1 << 25,
        0,
        "SetCommandQueue: command interface revision 0 instead of 5",
    ),
    failing(
        "x86_64",
        "few-pages",
        "32 pages for the card's firmware",
        "few-pages",
        r"bring-up failed at \w+: the card's firmware wants \d+ pages, \d+ are left",
    ),
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
    *on_each_machine(lambda machine: restart(machine, "early", "before the card is reset")),
    *on_each_machine(lambda machine: restart(machine, "late", "after the card was reset"), only="x86_64"),
    covered("lost-interrupt-riscv64", lost_interrupt("x86_64", "aarch64")),
    covered("lost-interrupt-riscv64", lost_interrupt("aarch64", "riscv64")),
    lost_interrupt("riscv64", "x86_64"),
    lost("x86_64", "aarch64", "removed", "a card that is pulled under traffic", removed, "the device is gone"),
    lost("riscv64", "x86_64", "killed", "a card whose server is killed under traffic", killed, "the device is gone"),
]
