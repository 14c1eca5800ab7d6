"""The program that serves the devices, and what else of ours guests may have."""

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
    say("building bareverbs")
    return _cargo(project, "--package", "bareverbs-cli", "--bin", "bareverbs") / "bareverbs"


def examples(project, say):
    """The examples of VFIO, built from the project."""
    say("building the examples of VFIO")
    target = _cargo(project, "--package", "bareverbs-vfio", "--examples") / "examples"
    return [target / source.stem for source in sorted((project / "hosted/vfio/examples").glob("*.rs"))]


def _cargo(project, *what):
    """The folder in which what was built lies."""
    command = ["cargo", "build", "--release", *what]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        raise packages.PackageError(f"cargo build: {done.stderr.strip()[-3000:]}")
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", project / "target")) / "release"
