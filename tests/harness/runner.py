"""The runner of cases: a command line, which case runs when, progress, and the report."""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import traceback

from guests.errors import Failed, Interrupted, SetUpError
from guests.progress import Progress
from guests.stop import Stop

from .build import PROJECT


def positive(text):
    """Parses a number of at least one."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def parser(name, description):
    """Creates a parser with the options of every suite."""
    made = argparse.ArgumentParser(prog=name, description=description, formatter_class=argparse.RawTextHelpFormatter)
    jobs = os.cpu_count() or 1
    made.add_argument("names", nargs="*", metavar="CASE", help="cases to run (all)")
    made.add_argument("--brief", action="store_true", help="without names: leave out what another case covers (--list tells which)")
    made.add_argument("--list", action="store_true", help="name the cases and end")
    made.add_argument("--bareverbs", type=pathlib.Path, metavar="PROGRAM", help="use this program instead of building it")
    made.add_argument("--minutes", type=positive, metavar="N", help="begin no case after N minutes; those left out are named at the end")
    made.add_argument("--jobs", type=positive, metavar="N", default=jobs, help="run N cases at a time (one a CPU)")
    made.add_argument("--again", action="store_true", help="run each case that failed once more, alone; what it failed of is printed")
    made.add_argument("--json", action="store_true", help="print the results as JSON on stdout; progress goes to stderr")
    made.add_argument("--profile", metavar="NAME", help="serve devices like this card to the cases that name none (sim serve --profile)")
    made.add_argument("--verbose", action="store_true", help="show what the machines printed")
    return made


#: What is said during preparation.
PROGRESS = Progress("tests", sys.stderr)


def main(function):
    """Runs a program's main function and ends the process with its status."""
    # A plain termination cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(function())
    except KeyboardInterrupt:
        sys.exit(130)


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a case."""

    name: str
    #: Why it failed; None if it passed.
    failure: str | None
    seconds: float
    #: The folder, relative to the project, with what its machines printed.
    output: str
    notes: tuple
    measured: dict
    #: Why it failed the first time, when it shared the machine with other cases; None if this is the only run.
    first_failure: str | None = None


class Schedule:
    """Runs cases in parallel, the longest first."""

    def __init__(self, cases, make_run, folder, given):
        """`make_run` makes a CaseRun of a case, a folder and a Stop; the folders of all cases are in `folder`."""
        longest = sorted(cases, key=lambda case: -case.typical_seconds)
        # Those that wait for most of their time have a worker of their own, and hold none of the others up.
        self.busy = [case for case in longest if not case.waits]
        self.waiting = [case for case in longest if case.waits]
        self.cases = cases
        self.make_run = make_run
        self.folder = folder
        self.given = given
        self.results = []
        self.stop = Stop()
        self._lock = threading.Lock()
        self._begin_until = time.monotonic() + given.minutes * 60 if given.minutes else None

    def run(self):
        """Returns when all cases that began in time have ended, or soon after a signal."""
        # Not as an exception: one that is raised inside a join makes Python forget the thread.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.stop.event.set())
        queues = [[self.busy, self.waiting]] * self.given.jobs
        if self.given.jobs > 1:
            queues.append([self.waiting])
        workers = [threading.Thread(target=self._work, args=(each,)) for each in queues]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self.given.again:
            self._run_again([result for result in self.results if result.failure is not None])

    def _run_again(self, failed):
        """Runs failed cases once more, one at a time: a machine that waited for a processor is late, and its peer gives it up."""
        for result in failed:
            if self.stop.event.is_set():
                return
            case = next(case for case in self.cases if case.name == result.name)
            again = self._run_one(case, f"{case.name}-again", result.failure)
            if again:
                self.results[self.results.index(result)] = again

    def left_out(self):
        """Returns the names of the cases that did not begin in time."""
        return [case.name for case in [*self.busy, *self.waiting]]

    def _work(self, queues):
        while not self.stop.event.is_set():
            if self._begin_until and time.monotonic() >= self._begin_until:
                return
            with self._lock:
                queue = next(filter(None, queues), None)
                if not queue:
                    return
                case = queue.pop(0)
            result = self._run_one(case, case.name)
            if result:
                self.results.append(result)

    def _run_one(self, case, folder_name, first_failure=None):
        """Returns the result of a case, None if the user interrupted it."""
        folder = self.folder / folder_name
        run = self.make_run(case, folder, self.stop)
        run.profile = self.given.profile
        start = time.monotonic()
        try:
            run.run()
            failure = None
        except Interrupted:
            return None
        except (Failed, SetUpError, OSError, ValueError) as error:
            failure = str(error)
        except Exception:  # A mistake in the harness fails the case that met it, not the others.
            failure = traceback.format_exc()
        seconds = round(time.monotonic() - start, 1)
        output = str(folder.relative_to(PROJECT))
        result = Result(case.name, failure, seconds, output, tuple(run.notes), dict(run.measured), first_failure)
        with self._lock:
            self._show(result, run)
        return result

    def _show(self, result, run):
        file = report_file(self.given)
        if self.given.verbose:
            print("\n".join(run.transcript()), file=file)
        for line in result.notes:
            print(f"       {line}", file=file)
        word = "ok" if result.failure is None else "FAILED"
        run_again = " (again, alone)" if result.first_failure else ""
        reason = f": {result.failure}" if result.failure else ""
        print(f"{word:6} {result.name:30} {result.seconds:6.1f} s{run_again}{reason}", file=file, flush=True)
        if result.failure:
            print(f"       what it printed: {result.output}", file=file, flush=True)


def report_file(given):
    """Returns the stream for lines to the user: stdout, unless that is for JSON."""
    return sys.stderr if given.json else sys.stdout


def choose(given, cases, name):
    """Returns the cases that the command line names, or without names all that a run has; None after a message if there is no such case."""
    known = {case.name: case for case in cases}
    brief = {case.name for case in cases if not case.only_named and not case.covered_by}
    uncovered = {case.name: case.covered_by for case in cases if case.covered_by and case.covered_by not in brief}
    if uncovered:
        raise ValueError(f"covered by cases that are in no brief run: {uncovered}")
    unknown = [word for word in given.names if word not in known]
    if unknown:
        print(f"{name}: no case {', '.join(unknown)}; --list names them", file=sys.stderr)
        return None
    if given.names:
        return [known[word] for word in given.names]
    return [case for case in cases if not case.only_named and not (given.brief and case.covered_by)]


def run(name, given, cases, prepare, folder, table=None):
    """Executes a command line; returns the exit status. `prepare` fetches and builds what the chosen cases need and returns
    the `make_run` of a Schedule; `table` makes lines for the end of the chosen cases and the results."""
    if given.list:
        for case in cases:
            when = " (only when named)" if case.only_named else f" (in a brief run: {case.covered_by})" if case.covered_by else ""
            print(f"{case.name:32} {case.summary}{when}")
        return 0
    chosen = choose(given, cases, name)
    if chosen is None:
        return 2
    try:
        make_run = prepare(chosen, given)
    except (SetUpError, Failed, subprocess.SubprocessError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    schedule = Schedule(chosen, make_run, folder, given)
    start = time.monotonic()
    schedule.run()
    seconds = round(time.monotonic() - start)
    failed = sum(result.failure is not None for result in schedule.results)
    counts = {"passed": len(schedule.results) - failed, "failed": failed, "skipped": len(chosen) - len(schedule.results)}
    at_second_run = [result.name for result in schedule.results if result.failure is None and result.first_failure]
    file = report_file(given)
    if table:
        print("\n".join(["", *table(chosen, schedule.results), ""]), file=file)
    print(", ".join(f"{count} {word}" for word, count in counts.items()) + f" in {seconds} s", file=file, flush=True)
    if at_second_run:
        print(f"passed at the second run only: {', '.join(at_second_run)}", file=file, flush=True)
    if schedule.left_out() and not schedule.stop.event.is_set():
        print(f"not begun in {given.minutes} minutes: {', '.join(schedule.left_out())}", file=file, flush=True)
    if given.json:
        print(
            json.dumps({**counts, "seconds": seconds, "cases": [dataclasses.asdict(each) for each in schedule.results]}, indent=2)
        )
    return 130 if schedule.stop.event.is_set() else int(failed > 0)
