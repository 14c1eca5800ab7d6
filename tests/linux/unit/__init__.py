"""Unit tests of the runner, and of what brings programs into guests: python3 -B -m unittest discover -t tests/linux -s tests/linux/unit"""

import pathlib
import sys

# As the programs of this folder do.
TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(TESTS), str(TESTS.parent / "hosted/vm")]
