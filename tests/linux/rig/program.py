"""The program that serves the devices."""

import os
import pathlib
import subprocess

from . import packages


def build(project, given, say):
    """Its path: what was given, or built from the project."""
    if given:
        if not given.is_file():
            raise packages.PackageError(f"{given}: no such program")
        return given.resolve()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", project / "target"))
    command = ["cargo", "build", "--release", "--package", "bareverbs-hosted", "--bin", "bareverbs"]
    say("building bareverbs")
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        raise packages.PackageError(f"cargo build: {done.stderr.strip()[-3000:]}")
    return target / "release/bareverbs"
