"""What a run of tests/scripts/mutation has left, and the score of it."""

import collections
import dataclasses
import json
import math
import pathlib

from .judge import CAUGHT, MISSED, NOT_BUILT, TIMEOUT, UNVIABLE

PROJECT = pathlib.Path(__file__).resolve().parent.parent.parent
RESULTS = PROJECT / "target/mutation"


def results_of(name):
    """Returns the results of a package, or empty ones."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"mutants": 0, "selected": "", "verdicts": {}}


def wilson(found, judged):
    """Returns the bounds of a share between which it lies with 95 % (Wilson 1927)."""
    if not judged:
        return 0.0, 1.0
    z, share = 1.959964, found / judged
    middle = (share + z * z / (2 * judged)) / (1 + z * z / judged)
    half = z * math.sqrt(share * (1 - share) / judged + z * z / (4 * judged * judged)) / (1 + z * z / judged)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclasses.dataclass(frozen=True)
class Score:
    """How many mutants became what."""

    caught: int
    timeout: int
    missed: int
    unviable: int
    not_built: int
    are_all: bool

    @classmethod
    def of(cls, results):
        counts = collections.Counter(verdict for verdict, _ in results["verdicts"].values())
        numbers = (counts[verdict] for verdict in (CAUGHT, TIMEOUT, MISSED, UNVIABLE, NOT_BUILT))
        return cls(*numbers, are_all=len(results["verdicts"]) == results["mutants"])

    @property
    def found(self):
        return self.caught + self.timeout

    @property
    def judged(self):
        return self.found + self.missed

    @property
    def percent(self):
        return 100 * self.found / self.judged

    @property
    def interval(self):
        """Where the score of all mutants lies with 95 %, as text; nothing if all were judged."""
        if self.are_all:
            return ""
        low, high = wilson(self.found, self.judged)
        return f"{100 * low:.1f} to {100 * high:.1f}"
