"""The cases: which guests, which devices, which script, and what the kernel may warn of."""

import dataclasses
import re

# Kernel warnings that are no fault of the device: pattern, reason.
EXPECTED = []

# What the kernel log is searched for: the drivers' own warnings, and its reports of bugs in any of them.
SUSPECT = re.compile(r"mlx5|infiniband|ib_|rdma|WARNING|BUG|Oops|Call Trace|RIP:|hung task|soft lockup|general protection")


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the result."""

    name: str
    summary: str
    script: str = ""
    suite: str = "trixie"
    cpus: int = 2
    memory: int = 1024
    #: Devices, dealt out to the guests in equal parts.
    devices: int = 1
    guests: int = 1
    #: Each guest has a server process of its own, joined by a link.
    linked: bool = False
    serve: tuple = ()
    parameters: tuple = ()
    seconds: int = 120
    expected: tuple = ()
    gives_back: bool = False
    #: Turned off without the kernel's help: a driver that lost a command waits for it when it is shut down.
    abrupt: bool = False


def complaints(case, lines):
    """Kernel warnings of a guest that nothing explains."""
    explained = [re.compile(pattern) for pattern, _ in [*EXPECTED, *case.expected]]
    warnings = [line[3:] for line in lines if line.startswith("#! ")]
    return [line for line in warnings if SUSPECT.search(line) and not any(pattern.search(line) for pattern in explained)]


def pingpong(name, summary, tools, **more):
    """A case of the pingpong script between two devices."""
    given = {"devices": 2, "seconds": 240, "parameters": (("tools", tools),), **more}
    return Case(name, summary, script="pingpong", **given)


def perftest(name, summary, **more):
    """A case of the perftest script between two devices."""
    return Case(name, summary, script="perftest", **{"devices": 2, "seconds": 300, **more})


CASES = [
    Case("boot", "the guest without a device: its kernel, tools and modules", devices=0),
    Case("boot-6.1", "the same with the kernel and tools of bookworm", script="boot", suite="bookworm", devices=0),
    Case("core", "mlx5_core binds to two devices and lets go of them", devices=2, gives_back=True),
    Case("core-no-pages", "the same on devices that ask for no firmware pages", script="core", serve=("--no-firmware-pages",)),
    Case("core-1-cpu", "the same with one processor and two vectors", script="core", cpus=1, serve=("--vectors", "2")),
    Case("core-4-cpus", "the same with four processors and 256 vectors", script="core", cpus=4, serve=("--vectors", "256")),
    Case("core-6.1", "the same with kernel 6.1", script="core", suite="bookworm", devices=2),
    Case("devinfo", "ibv_devinfo -v shows what the device was configured with"),
    Case("devinfo-6.1", "the same with kernel 6.1 and its rdma-core", script="devinfo", suite="bookworm"),
    Case("reload", "modules loaded and unloaded 20 times, nothing left each time", seconds=300, gives_back=True),
    pingpong("rc", "ibv_rc_pingpong between two devices", "rc"),
    pingpong("rc-loopback", "ibv_rc_pingpong within one device", "rc", devices=1),
    pingpong("rc-6.1", "ibv_rc_pingpong with kernel 6.1 and its rdma-core", "rc", suite="bookworm"),
    pingpong("rc-no-blueflame", "ibv_rc_pingpong without BlueFlame", "rc", serve=("--no-blueflame",)),
    pingpong(
        "rc-bad-wire",
        "ibv_rc_pingpong over a wire that loses, duplicates and reorders 1 % each",
        "rc",
        serve=("--loss", "1", "--duplicate", "1", "--reorder", "1"),
    ),
    pingpong("uc-ud", "ibv_uc_pingpong and ibv_ud_pingpong", "uc,ud"),
    Case(
        "two-guests",
        "the pingpongs between two guests, each with a device",
        script="pair",
        devices=2,
        guests=2,
        seconds=240,
    ),
    Case(
        "two-processes",
        "the same with a server process for each guest",
        script="pair",
        devices=2,
        guests=2,
        linked=True,
        seconds=240,
    ),
    pingpong("srq", "ibv_srq_pingpong: many queue pairs on a shared receive queue", "srq"),
    pingpong("xsrq", "ibv_xsrq_pingpong: XRC", "xsrq"),
    Case(
        "fault-status",
        "a command refused by the device: the tool fails, the next one works",
        script="fault",
        devices=2,
        parameters=(("fault", "status"),),
        expected=((r"ALLOC_PD\(0x800\).*failed, status no resources", "the fault itself"),),
    ),
    Case(
        "fault-link",
        "the cable pulled and plugged in: the port goes down and comes back",
        script="fault",
        parameters=(("fault", "link"),),
    ),
    Case(
        "fault-health",
        "the firmware reports a failure: the driver notices and says so",
        script="fault",
        parameters=(("fault", "health"),),
        expected=((r"mlx5_core .*", "the fault itself"),),
    ),
    Case(
        "fault-frozen",
        "the health counter stops: the driver notices and says so",
        script="fault",
        parameters=(("fault", "frozen"),),
        expected=((r"mlx5_core .*", "the fault itself"),),
    ),
    Case(
        "fault-removed",
        "the server killed under the guest: the driver notices, the guest lives",
        script="fault",
        parameters=(("fault", "removed"),),
        expected=((r"mlx5_core .*", "the fault itself"),),
        seconds=180,
    ),
    Case(
        "fault-timeout",
        "a command that never completes: the driver gives it up after a minute and goes on",
        script="fault",
        devices=2,
        seconds=240,
        abrupt=True,
        parameters=(("fault", "timeout"),),
        expected=((r"ALLOC_PD\(0x800\)|alloc_pd", "the fault itself"),),
    ),
    perftest("perf-rc", "perftest over RC: send, write, read, atomics; bandwidth and latency"),
]
