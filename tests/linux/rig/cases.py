"""The cases: which guests, which devices, which script, and what the kernel may warn of."""

import dataclasses
import re

# Kernel warnings that are no fault of the device: pattern, reason.
EXPECTED = [
    (r"mlx5_core .*: Missing VSC|mlx5_core .*: .*vendor specific cap", "the device has no vendor-specific capability: only dumps of crashes need it"),
]

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
    devices: int = 1
    serve: tuple = ()
    parameters: tuple = ()
    seconds: int = 90
    expected: tuple = ()


def complaints(case, lines):
    """Kernel warnings of a guest that nothing explains."""
    explained = [re.compile(pattern) for pattern, _ in [*EXPECTED, *case.expected]]
    warnings = [line[3:] for line in lines if line.startswith("#! ")]
    return [line for line in warnings if SUSPECT.search(line) and not any(pattern.search(line) for pattern in explained)]


CASES = [
    Case("boot", "the guest without a device: its kernel, tools and modules", devices=0),
    Case("boot-6.1", "the same with the kernel and tools of bookworm", script="boot", suite="bookworm", devices=0),
]
