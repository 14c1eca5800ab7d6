"""Pages of the book whose tables are written by the commands that measure.

A part of such a page stands between the lines `<!-- begin NAME: written by COMMAND -->` and `<!-- end NAME -->`.
"""

import pathlib
import re

BOOK = pathlib.Path(__file__).resolve().parent.parent.parent / "docs/src"


class PageError(Exception):
    """A page lacks the part that a command writes."""


def _split(page, name):
    """Returns the text before the part, the part, and the text after it."""
    text = (BOOK / page).read_text(encoding="utf-8")
    found = re.search(rf"(<!-- begin {re.escape(name)}: [^\n]*-->\n)(.*?)(<!-- end {re.escape(name)} -->)", text, re.DOTALL)
    if not found:
        raise PageError(f"docs/src/{page} has no part '{name}'")
    return text[: found.end(1)], found.group(2), text[found.start(3) :]


def read(page, name):
    """Returns the present part."""
    return _split(page, name)[1].strip("\n")


def write(page, name, part):
    """Writes the part; returns whether it changed."""
    before, old, after = _split(page, name)
    new = part.strip("\n") + "\n"
    if new != old:
        (BOOK / page).write_text(before + new + after, encoding="utf-8")
    return new != old
