"""The runner of cases: brief runs; second runs; a time limit; what a failed case shows of a guest's kernel."""

import contextlib
import io
import pathlib
import tempfile
import types
import unittest
import unittest.mock

from guests.errors import Failed
from harness import runner
from harness.build import PROJECT
from harness.case import Case
from host import guest_run


class FakeRun:
    """A run that fails as often as is left in `failures`, by the case's name."""

    notes = ()
    measured = {}

    def __init__(self, case, folder, failures, running):
        self.case, self.folder, self.failures, self.running = case, folder, failures, running

    def transcript(self):
        return []

    def run(self):
        self.running.append(self.folder.name)
        if self.failures.get(self.case.name, 0):
            self.failures[self.case.name] -= 1
            raise Failed(f"{self.case.name} is late")


def execute(failures, *options):
    """Runs three cases; returns the status, the folders of the runs in their order, and what was printed."""
    cases = [Case(name, name, typical_seconds=seconds) for name, seconds in (("first", 3), ("second", 2), ("third", 1))]
    running, printed = [], io.StringIO()
    given = runner.parser("test", "").parse_args(["--jobs", "1", *options])

    def prepare(_chosen, _given):
        return lambda case, folder, stop: FakeRun(case, folder, failures, running)

    with contextlib.redirect_stdout(printed):
        status = runner.run("test", given, cases, prepare, PROJECT / "target/test")
    return status, running, printed.getvalue()


class BriefRunTest(unittest.TestCase):
    def chosen(self, *options):
        cases = [Case("first", ""), Case("second", "", covered_by="first"), Case("third", "", only_named=True)]
        return [case.name for case in runner.choose(runner.parser("test", "").parse_args(options), cases, "test")]

    def test_it_leaves_out_what_another_case_covers(self):
        self.assertEqual(self.chosen(), ["first", "second"])
        self.assertEqual(self.chosen("--brief"), ["first"])
        self.assertEqual(self.chosen("--brief", "second"), ["second"])

    def test_what_covers_a_case_is_in_it(self):
        cases = [Case("first", "", covered_by="second"), Case("second", "", covered_by="first")]
        with self.assertRaisesRegex(ValueError, "first.*second"):
            runner.choose(runner.parser("test", "").parse_args([]), cases, "test")


class SecondRunTest(unittest.TestCase):
    def test_a_case_that_passes_at_the_second_run_is_named(self):
        status, running, printed = execute({"first": 1, "third": 1}, "--again")
        self.assertEqual((status, running), (0, ["first", "second", "third", "first-again", "third-again"]))
        self.assertIn("first is late", printed)
        self.assertIn("3 passed, 0 failed, 0 skipped", printed)
        self.assertIn("passed at the second run only: first, third", printed)

    def test_a_case_that_fails_twice_has_failed(self):
        status, running, printed = execute({"second": 2}, "--again")
        self.assertEqual((status, running), (1, ["first", "second", "third", "second-again"]))
        self.assertEqual(printed.count("FAILED second"), 2)
        self.assertIn("2 passed, 1 failed, 0 skipped", printed)
        self.assertNotIn("second run only", printed)

    def test_without_the_option_there_is_one_run(self):
        status, running, _ = execute({"second": 1})
        self.assertEqual((status, running), (1, ["first", "second", "third"]))


class TimeLimitTest(unittest.TestCase):
    def test_a_case_that_has_no_time_left_is_named(self):
        clock = iter([0, 0, 30, 30, 50, 90, 90, 90, 90])
        with unittest.mock.patch.object(runner.time, "monotonic", lambda: next(clock)):
            status, running, printed = execute({}, "--minutes", "1")
        self.assertEqual((status, running), (0, ["first"]))
        self.assertIn("1 passed, 0 failed, 2 skipped", printed)
        self.assertIn("not begun in 1 minutes: second, third", printed)

    def test_without_the_option_all_begin(self):
        _, running, printed = execute({})
        self.assertEqual(running, ["first", "second", "third"])
        self.assertNotIn("not begun", printed)


class KernelLinesTest(unittest.TestCase):
    def test_what_was_said_before_the_first_complaint_is_shown(self):
        with tempfile.TemporaryDirectory() as folder:
            console = pathlib.Path(folder) / "guest0.console"
            said = [f"[   17.00000{n}] line {n}" for n in range(9)]
            console.write_text("\n".join([*said, "[   18.096370] nvme nvme0: recovery", "[   19.000000] later"]) + "\n")
            guest = types.SimpleNamespace(name="guest0", console=console)
            lines = guest_run.kernel_lines(guest, ["<4>[   18.096370] nvme nvme0: recovery", "<3>[   19.000000] later"])
        before = [f"guest0: {line}" for line in said[3:]]
        self.assertEqual(lines, [*before, "guest0: <4>[   18.096370] nvme nvme0: recovery", "guest0: <3>[   19.000000] later"])


if __name__ == "__main__":
    unittest.main()
