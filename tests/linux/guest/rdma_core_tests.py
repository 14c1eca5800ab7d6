"""Runs rdma-core's own tests (those of its Python bindings) and says how each ended, one line a test:

#> test ok NAME, #> test skip NAME: REASON, #> test fail NAME: REASON

Each test has a process of its own: the bindings may crash when they tidy up after a test that gave up half way.

Arguments: seconds a test may take, then the parts of names to run (all without any); a part behind a "-" names what not to run.
Options (with two) go to the tests themselves.
"""

import faulthandler
import importlib.util
import os
import pathlib
import signal
import sys
import time
import unittest

FOLDER = pathlib.Path("/rdma-core/tests")


class Late(Exception):
    """A test took too long."""


def one_line(text):
    """The text without line ends."""
    return " ".join(str(text).split())


class Result(unittest.TestResult):
    """What became of one test."""

    def __init__(self):
        super().__init__()
        self.word = "ok"
        self.reason = ""

    def _bad(self, test, error):
        self.word, self.reason = "fail", one_line(f"{error[0].__name__}: {error[1]}")
        print("\n".join(f"#| {line}" for line in self._exc_info_to_string(error, test).splitlines()), flush=True)

    def addError(self, test, err):
        super().addError(test, err)
        self._bad(test, err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._bad(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._bad(subtest, err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if self.word == "ok":
            self.word, self.reason = "skip", one_line(reason)


def run(test, seconds):
    """Runs one test in a process of its own."""
    name = test.id().removeprefix("tests.")
    start = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.signal(signal.SIGALRM, late)
        signal.alarm(seconds)
        result = Result()
        test(result)
        signal.alarm(0)
        os.write(writer, f"{result.word} {name}{': ' if result.reason else ''}{result.reason}".encode()[:4000])
        os._exit(0)
    os.close(writer)
    # A process that hangs where no exception reaches it.
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(seconds + 10)
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    with open(reader, "rb") as pipe:
        outcome = pipe.read().decode()
    if not outcome:
        outcome = f"fail {name}: ended by {'signal' if os.WIFSIGNALED(status) else 'status'} {os.waitstatus_to_exitcode(status)}"
    print(f"#> test {outcome} ({time.monotonic() - start:.1f} s)", flush=True)


def late(*_):
    """Ends a test that takes too long."""
    faulthandler.dump_traceback()
    raise Late


def each(suite):
    """Every single test of a suite."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def main():
    seconds, *rest = sys.argv[1:]
    parts = [word for word in rest if not word.startswith("-")]
    without = tuple(word[1:] for word in rest if word.startswith("-") and not word.startswith("--"))
    sys.argv[1:] = [word for word in rest if word.startswith("--")]
    sys.path.insert(0, str(FOLDER))
    from args_parser import parser

    parser.parse_args()
    spec = importlib.util.spec_from_file_location("tests", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)])
    tests = importlib.util.module_from_spec(spec)
    sys.modules["tests"] = tests
    spec.loader.exec_module(tests)
    loader = unittest.TestLoader()
    count = 0
    for module in tests.__test_modules__:
        for test in each(loader.loadTestsFromModule(module)):
            named = not parts or any(part in test.id() for part in parts)
            if named and not any(part in test.id() for part in without):
                run(test, int(seconds))
                count += 1
    print(f"#| {count} tests", flush=True)


main()
