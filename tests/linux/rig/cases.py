"""The cases: which guests, which devices, which script, and what the kernel may warn of."""

import dataclasses
import re

# Kernel warnings that are no fault of the device: pattern, reason.
EXPECTED = [
    (r"mlx5_pci_vsc_init:.*Failed to get valid vendor specific ID", "no vendor-specific capability: only crash dumps need it"),
    (r"mlx5_init_clock:.*invalid device_frequency_khz", "no hardware clock: only time stamps need it"),
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
    seconds: int = 120
    expected: tuple = ()


def complaints(case, lines):
    """Kernel warnings of a guest that nothing explains."""
    explained = [re.compile(pattern) for pattern, _ in [*EXPECTED, *case.expected]]
    warnings = [line[3:] for line in lines if line.startswith("#! ")]
    return [line for line in warnings if SUSPECT.search(line) and not any(pattern.search(line) for pattern in explained)]


CASES = [
    Case("boot", "the guest without a device: its kernel, tools and modules", devices=0),
    Case("boot-6.1", "the same with the kernel and tools of bookworm", script="boot", suite="bookworm", devices=0),
    Case("core", "mlx5_core binds to two devices and lets go of them", devices=2),
    Case("core-no-pages", "mlx5_core on a device that asks for no firmware pages", script="core", serve=("--no-firmware-pages",)),
    Case("devinfo", "ibv_devinfo -v shows what the device was configured with"),
    Case("reload", "modules loaded and unloaded 20 times", script="reload", seconds=300),
    Case("rc", "ibv_rc_pingpong between two devices", script="pingpong", devices=2, parameters=(("tools", "rc"),), seconds=240),
    Case("rc-loopback", "ibv_rc_pingpong within one device", script="pingpong", parameters=(("tools", "rc"),), seconds=240),
]
