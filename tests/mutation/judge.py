"""Builds a package with mutants in a copy of the project, and lets the tests judge them one by one."""

import dataclasses
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import threading
import time

from . import switch

#: What a mutant can become. A timeout is found: the program hangs, and a developer sees it.
CAUGHT, MISSED, TIMEOUT, UNVIABLE, NOT_BUILT = "caught", "missed", "timeout", "unviable", "not built"


#: What asks the compiler for a copy of a function in each caller.
INLINE = re.compile(r"(?<=[\[ ])inline(?:\(always\))?(?=\)?\])")


class JudgeError(Exception):
    """What is not mutated does not build, or fails its tests."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A part of the project whose tests are judged."""

    #: The package whose sources have the mutants, its folder, and what of it.
    package: str
    folder: str
    files: str
    features: tuple = ()
    #: Tests of bareverbs-tests, beside the package's own, and the features that leave the package as it was built.
    scenarios: tuple = ()
    scenario_features: str = ""


class Program:
    """A program of tests, and how long it takes without a mutant."""

    def __init__(self, path, folder):
        self.path, self.folder = path, folder
        self.name = pathlib.Path(path).name.rsplit("-", 1)[0]
        self.seconds = 0.0
        #: Of CPUs. A program that spins is found by them, whatever else the machine does.
        self.cpu_seconds = 0.0
        #: Few tests take most of the time, and find what others find sooner.
        self.slow = []

    def measure(self, threads):
        """Runs every test; returns None, or what failed."""
        start, used, times = time.monotonic(), cpu_seconds_of_children(), {}
        failed = self.run(0, 1200, threads, ["-Z", "unstable-options", "--report-time"], times)
        self.seconds, self.cpu_seconds = time.monotonic() - start, cpu_seconds_of_children() - used
        slowest = sorted(times, key=times.get, reverse=True)
        self.slow = [name for name in slowest[: len(slowest) // 10] if times[name] * 50 > sum(times.values())]
        return failed

    def judge(self, number, threads):
        """Returns what fails first, if anything does; slow tests last."""
        # A machine does other things meanwhile, and more of them than when the tests were measured.
        limit = (15 + 5 * self.seconds) * min(3, max(1, os.getloadavg()[0] / threads))
        if not self.slow:
            return self.run(number, limit, threads)
        skipped = [part for name in self.slow for part in ("--skip", name)]
        return self.run(number, limit, threads, ["--exact", *skipped]) or self.run(number, limit, threads, ["--exact", *self.slow])

    def run(self, number, limit, threads, arguments=(), times=None):
        """Returns None if the tests pass, or what failed first: a test's name, or a timeout. Takes the seconds of each test."""
        # RUSTC_BOOTSTRAP: the time of each test is an unstable option.
        environment = dict(os.environ, RUST_BACKTRACE="0", RUSTC_BOOTSTRAP="1", **{switch.VARIABLE: str(number)})
        command = [self.path, "--test-threads", str(threads), *arguments]
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True
        )
        late = threading.Event()

        def stop():
            late.set()
            end(process)

        timer = threading.Timer(limit, stop)
        timer.start()
        failed, running = None, "the program"
        if times is None:
            cpu_limit = int(5 + 3 * self.cpu_seconds)
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_limit, cpu_limit + 5))
        try:
            for line in process.stdout:
                if line.startswith("test ") and " ... " in line:
                    running = line.split()[1]
                    if times is not None and (found := re.search(r"<([\d.]+)s>$", line)):
                        times[running] = float(found[1])
                    if " ... FAILED" in line:
                        failed = running
                        break
            if failed is None and process.wait() != 0:
                failed = f"after {running}"
        finally:
            timer.cancel()
            end(process)
            process.stdout.close()
            process.wait()
        return TIMEOUT if late.is_set() or process.returncode == -signal.SIGXCPU else failed


def cpu_seconds_of_children():
    """Returns the CPU time of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def end(process):
    """Ends a program and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Workshop:
    """A copy of the project with mutants in it."""

    def __init__(self, project, subject, threads, jobs, say):
        self.project, self.subject, self.threads, self.jobs, self.say = project, subject, threads, jobs, say
        self.folder = project / "target/mutation"
        self.copy = self.folder / "copy"
        self.environment = dict(
            os.environ,
            CARGO_TARGET_DIR=str(self.folder / "build"),
            CARGO_INCREMENTAL="1",
            CARGO_PROFILE_DEV_DEBUG="0",
            CARGO_PROFILE_TEST_DEBUG="0",
            RUSTFLAGS="--cap-lints=warn",
            RUSTC_BOOTSTRAP="1",
        )
        self.limits = {}

    def fill(self):
        """Makes the copy as the project is; what is the same keeps its time, so that cargo does not build it again."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=self.project, check=True, capture_output=True
        ).stdout
        names = {name for name in listed.decode().split("\0") if name and (self.project / name).is_file()}
        for name in names - {"core/Cargo.toml", "Cargo.lock"}:
            self.put(name, (self.project / name).read_bytes())
        if not (self.copy / "Cargo.lock").is_file():
            shutil.copyfile(self.project / "Cargo.lock", self.copy / "Cargo.lock")
        # The examples of its documents, which judge nothing here, are why each test of the core waits for the simulated device.
        manifest = (self.project / "core/Cargo.toml").read_text(encoding="utf-8")
        self.put("core/Cargo.toml", re.sub(r"(?m)^\[target.'cfg\(not\(loom\)\)'.dev-dependencies\]\nbareverbs-testing = .*\n", "", manifest).encode())
        for path in self.copy.rglob("*.rs"):
            if path.relative_to(self.copy).as_posix() not in names:
                path.unlink()

    def put(self, name, content):
        path = self.copy / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def source(self, file):
        return (self.project / file).read_text(encoding="utf-8")

    def cargo(self, *arguments):
        """Runs cargo; returns whether it succeeded, and its messages."""
        command = ["cargo", *arguments, "--jobs", str(self.jobs), "--message-format", "json"]
        process = subprocess.run(command, cwd=self.copy, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        return process.returncode == 0, [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]

    def of_package(self):
        return ["--package", self.subject.package, *(["--features", ",".join(self.subject.features)] if self.subject.features else [])]

    def install(self, mutants):
        """Writes the sources with these mutants: number -> mutant. Returns the lines of each file."""
        by_file = {}
        for number, mutant in mutants.items():
            by_file.setdefault(mutant.file, {})[number] = mutant
        root = f"{self.subject.folder}/src/lib.rs"
        lines = {}
        for path in (self.project / self.subject.folder / "src").rglob("*.rs"):
            file = path.relative_to(self.project).as_posix()
            text, lines[file] = switch.switched(self.source(file), by_file[file]) if file in by_file else (self.source(file), {})
            if mutants:
                # Bodies within bodies: inlined, a function of ten mutants that calls another of ten has a hundred.
                text = INLINE.sub("inline(never)", text)
            if file == root and mutants:
                text = switch.FEATURES + text + switch.MODULE
                lines[file] = {number: (first + 1, last + 1) for number, (first, last) in lines[file].items()}
            self.put(file, text.encode())
        return lines

    def compile_all(self, mutants):
        """Builds every mutant that compiles. Returns what became of the others: number -> unviable or not built."""
        mutants, decided = dict(mutants), {}
        for attempt in range(40):
            lines = self.install(mutants)
            # The whole build finds what checking does not: constants of generic functions.
            done, messages = self.cargo("check", *self.of_package(), "--lib")
            built = done
            if done:
                seen = {
                    int(message["message"]["message"].split("`mutant_")[1].split("`")[0])
                    for message in messages
                    if message.get("reason") == "compiler-message" and "`mutant_" in message["message"]["message"]
                }
                missing = [number for number in mutants if number not in seen]
                if missing:
                    for number in missing:
                        decided[number] = NOT_BUILT
                        del mutants[number]
                    continue
                built, messages = self.cargo("test", *self.of_package(), "--lib", "--no-run")
            if built:
                return decided, self.programs(messages)
            blamed = set()
            for message in messages:
                if message.get("reason") == "compiler-message" and message["message"]["level"].startswith("error"):
                    blamed |= blame(message["message"], lines)
            self.say(f"build {attempt + 1}: {len(blamed)} mutants do not compile")
            if not blamed:
                texts = [message["message"]["rendered"] for message in messages if message.get("reason") == "compiler-message" and message["message"]["level"] == "error"]
                raise JudgeError("the package does not build, and no mutant is to blame:\n" + "\n".join(texts[:3]))
            for number in blamed:
                decided[number] = UNVIABLE
                del mutants[number]
        raise JudgeError("the mutants that do not compile do not end")

    def programs(self, messages):
        folders = {}
        for message in messages:
            if message.get("reason") == "compiler-artifact" and message.get("executable"):
                folders[message["executable"]] = pathlib.Path(message["manifest_path"]).parent
        return [Program(path, folder) for path, folder in folders.items()]

    def scenario_programs(self):
        """Builds the tests of bareverbs-tests, with whatever mutants are in the copy."""
        if not self.subject.scenarios:
            return []
        wanted = [part for name in self.subject.scenarios for part in ("--test", name)]
        built, messages = self.cargo("test", "--package", "bareverbs-tests", "--features", self.subject.scenario_features, *wanted, "--no-run")
        if not built:
            raise JudgeError("bareverbs-tests does not build with the mutants")
        programs = {program.name: program for program in self.programs(messages)}
        return [programs[name] for name in self.subject.scenarios]

    def measure(self, programs):
        """Runs the tests without a mutant: they must pass, and take the time that the limits are made of."""
        for program in programs:
            failed = program.measure(self.threads)
            if failed:
                raise JudgeError(f"{program.name} fails without a mutant: {failed}")
        self.say(f"tests without a mutant: {', '.join(f'{program.name} {program.seconds:.1f} s' for program in programs)}")

    def judge(self, number, programs):
        """Returns what the tests say of a mutant, and which test."""
        for program in programs:
            failed = program.judge(number, self.threads)
            if failed:
                return (TIMEOUT, program.name) if failed == TIMEOUT else (CAUGHT, f"{program.name}: {failed}")
        return MISSED, ""

    def alone(self, mutant):
        """Builds and judges one mutant, as cargo-mutants does: those that cannot be chosen at run time."""
        self.install({})
        self.put(mutant.file, switch.apply(self.source(mutant.file), mutant).encode())
        try:
            built, messages = self.cargo("test", *self.of_package(), "--lib", "--no-run")
            if not built:
                return UNVIABLE, ""
            programs = self.programs(messages)
            for program in programs:
                program.seconds = program.cpu_seconds = self.limits.get(program.name, 60)
            verdict = self.judge(0, programs)
            if verdict[0] == MISSED and self.subject.scenarios:
                programs = self.scenario_programs()
                for program in programs:
                    program.seconds = program.cpu_seconds = self.limits.get(program.name, 60)
                verdict = self.judge(0, programs)
            return verdict
        finally:
            self.put(mutant.file, self.source(mutant.file).encode())


def blame(message, lines):
    """Returns the mutants of which an error speaks: those of its main places, or else of any."""
    main, other = set(), set()
    for span in message["spans"]:
        while span:
            for number, (first, last) in lines.get(span["file_name"], {}).items():
                if first <= span["line_start"] and span["line_end"] <= last:
                    (main if span["is_primary"] else other).add(number)
            span = (span.get("expansion") or {}).get("span")
    return main or other


def available():
    """Whether cargo-mutants can be called."""
    return shutil.which("cargo-mutants") is not None
