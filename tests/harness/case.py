"""What every case has, whatever it boots."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the result."""

    name: str
    summary: str
    #: About what it takes on an idle machine: the longest are begun first.
    typical_seconds: int = dataclasses.field(default=10, kw_only=True)
    #: It waits for most of its time, and may run beside those that have a processor each.
    waits: bool = dataclasses.field(default=False, kw_only=True)
    #: Runs when it is named, not with all.
    only_named: bool = dataclasses.field(default=False, kw_only=True)
    #: The devices (a pattern of their names) to which the drivers give back all that they made; None if they cannot.
    gives_back: str | None = dataclasses.field(default=None, kw_only=True)
    #: What the device's audit may report of the driver: pattern, reason.
    allowed_mistakes: tuple = dataclasses.field(default=(), kw_only=True)
