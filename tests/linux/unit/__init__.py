"""Unit tests of what brings a user's programs into guests: python3 -B -m unittest discover -t tests/linux -s tests/linux/unit"""

import pathlib
import sys

# As the programs of this folder do.
sys.path[1:1] = [str(pathlib.Path(__file__).resolve().parents[2])]
