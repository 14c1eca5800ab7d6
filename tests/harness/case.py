"""The parts of every case, independent of what it boots."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the result."""

    name: str
    summary: str
    #: Approximate duration on an idle machine: the longest cases start first.
    typical_seconds: int = dataclasses.field(default=10, kw_only=True)
    #: It waits most of its time, and may run beside cases that have a processor each.
    waits: bool = dataclasses.field(default=False, kw_only=True)
    #: Runs only when it is named.
    only_named: bool = dataclasses.field(default=False, kw_only=True)
    #: The case that takes the same way through device and driver, with another kernel, card, port or program: it runs in a brief run.
    covered_by: str | None = dataclasses.field(default=None, kw_only=True)
    #: The devices (a pattern of their names) to which the drivers give back all that they made; None if they cannot.
    gives_back: str | None = dataclasses.field(default=None, kw_only=True)
    #: What the device's audit may report of the driver: pattern, reason.
    allowed_mistakes: tuple = dataclasses.field(default=(), kw_only=True)
