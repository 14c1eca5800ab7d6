"""Sideway's own tests, for the guest's initial file system: a Rust project of others over libibverbs, as it was published.

The source is that of cargo's registry, in the version that `sideway/Cargo.toml` pins with its checksum. Nothing of it is changed. It is built
on this machine with its own Cargo.lock, into target/sideway; where that has been done once, nothing is fetched any more.
"""

import json
import os
import pathlib
import shutil
import subprocess

from guests import additions, elf
from guests.errors import SetUpError
from guests.image import Part
from harness.build import PROJECT, TIMEOUT

HERE = pathlib.Path(__file__).resolve().parent
PINNED = HERE.parent / "sideway"
# Not elsewhere: the workspace of the project excludes it. Not that of the case, which is emptied at each run.
FOLDER = PROJECT / "target/sideway"

# A test of what the compiler refuses, which needs no device and a compiler in the guest.
WITHOUT = {"compiletest"}


def programs():
    """Builds the tests; returns the paths of the programs."""
    source = FOLDER / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(_registry(), source)
    arguments = ["test", "--no-run", "--locked", "--manifest-path", source / "Cargo.toml", "--target-dir", FOLDER / "build"]
    try:
        built = _cargo(*arguments, "--message-format", "json")
    except SetUpError as error:
        raise SetUpError(f"{error}; cmake and libclang are needed: apt-get install cmake libclang-dev") from error
    folder = FOLDER / "programs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for line in built.splitlines():
        message = json.loads(line)
        target = message.get("target", {})
        name = target.get("name")
        # Its examples are built too.
        if message.get("executable") and {"lib", "test"} & set(target["kind"]) and name not in WITHOUT:
            shutil.copy(message["executable"], folder / f"sideway-{name.removeprefix('test_')}")
    return sorted(folder.iterdir())


def _registry():
    """Returns the folder of the source in cargo's registry."""
    metadata = json.loads(_cargo("metadata", "--locked", "--format-version", "1", "--manifest-path", PINNED / "Cargo.toml"))
    return pathlib.Path(next(each["manifest_path"] for each in metadata["packages"] if each["name"] == "sideway")).parent


def _cargo(*arguments):
    command = ["cargo", *map(str, arguments)]
    # Nobody debugs them.
    environment = dict(os.environ, CARGO_PROFILE_DEV_DEBUG="0", CARGO_INCREMENTAL="0")
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetUpError(f"cargo: {error}") from error
    if done.returncode != 0:
        raise SetUpError(f"{' '.join(command[:2])} for Sideway: status {done.returncode}")
    return done.stdout


def part(tree, built):
    """Returns the tests in /bin."""

    def add(archive):
        adder = additions.Programs(tree, archive=archive)
        for program in built:
            adder.add(program)

    return Part("sideway", [], [*built, additions.__file__, elf.__file__], add)
