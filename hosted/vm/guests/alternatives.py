"""The links that Debian's packages make when they are installed (update-alternatives), for packages that are only unpacked: `mpirun`
is one, `libblas.so.3` another.

They are read from the packages' scripts, which are not run. A call whose words the script computes is left out.
"""

import re
import shlex


def links(script):
    """Returns the links that a package's script makes: (link, target, priority)."""
    found = []
    for line in re.sub(r"\\\n", " ", script).splitlines():
        words = _words(line)
        while "--install" in words:
            del words[: words.index("--install") + 1]
            if len(words) < 4 or not words[3].isdigit():
                break
            link, _, target, priority = words[:4]
            found.append((link, target, int(priority)))
            del words[:4]
            while words[:1] == ["--slave"] and len(words) >= 4:
                found.append((words[1], words[3], int(priority)))
                del words[:4]
    return [each for each in found if not any("$" in word or "`" in word for word in each[:2])]


def _words(line):
    if "update-alternatives" not in line:
        return []
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []


def best(found):
    """Returns the target of each link: of several, the one of the greatest priority."""
    chosen = {}
    for link, target, priority in found:
        if link not in chosen or priority > chosen[link][1]:
            chosen[link] = target, priority
    return {link: target for link, (target, _) in chosen.items()}
