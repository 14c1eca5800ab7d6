"""Programs of the project, built by cargo, whose output is shown."""

import os
import pathlib
import subprocess

from guests.errors import SetUpError

# Seconds, on a slow machine that builds everything.
TIMEOUT = 1800

PROJECT = pathlib.Path(__file__).resolve().parents[2]


def cargo(*arguments, folder=PROJECT):
    """Runs `cargo build`."""
    command = ["cargo", "build", *arguments]
    try:
        # Its own output goes to stderr; what a build script prints must not reach stdout.
        done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetUpError(f"cargo: {error}") from error
    if done.returncode != 0:
        raise SetUpError(f"{' '.join(command)}: status {done.returncode}")


def release_folder():
    """Returns the folder of the project's own programs."""
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")) / "release"


def bareverbs(given=None):
    """Returns the path of the program `bareverbs`: the given one, or what `cargo build --release` builds."""
    if given:
        if not given.is_file():
            raise SetUpError(f"{given}: no such program")
        return given.resolve()
    cargo("--release")
    return release_folder() / "bareverbs"


def vfio_examples():
    """Returns the paths of the VFIO examples."""
    # Without the command: its tests' dependencies would change the features with which it is compiled, and it would be compiled again.
    cargo("--release", "--package", "bareverbs-vfio", "--examples")
    sources = sorted((PROJECT / "hosted/vfio/examples").glob("*.rs"))
    return [release_folder() / "examples" / source.stem for source in sources]
