"""What `seed-from-recordings` writes, and what it leaves."""

import importlib.machinery
import importlib.util
import pathlib
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "seed-from-recordings"


def load():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("seed_from_recordings", str(SCRIPT))
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(script)
    return script


class Seeds(unittest.TestCase):
    def setUp(self):
        self.script = load()
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def names(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())

    def test_a_seed_made_by_hand_stays(self):
        (self.folder / "device").mkdir()
        by_hand = {"device/attack_099": b"1", "device/linux_of_somebody": b"2", "device/program_x": b"3", "device/stale": b"4"}
        for path, data in by_hand.items():
            (self.folder / path).write_bytes(data)
        self.script.replace(self.folder, {"device": {"linux_a": b"a", "attack_000": b"b"}, "wire": {"linux_c": b"c"}})
        self.script.replace(self.folder, {"device": {"linux_a": b"z"}})
        self.assertEqual(self.names(), sorted([*by_hand, "device/linux_a", "made"]))
        self.assertEqual((self.folder / "device/linux_a").read_bytes(), b"z")
        self.assertEqual({path: (self.folder / path).read_bytes() for path in by_hand}, by_hand)

    def test_a_name_that_is_taken_is_refused_before_anything_changes(self):
        self.script.replace(self.folder, {"device": {"linux_old": b"1"}})
        (self.folder / "device/linux_new").write_bytes(b"by hand")
        with self.assertRaisesRegex(SystemExit, "other names: device/linux_new$"):
            self.script.replace(self.folder, {"device": {"linux_new": b"2"}})
        self.assertEqual(self.names(), ["device/linux_new", "device/linux_old", "made"])
        self.assertEqual((self.folder / "device/linux_new").read_bytes(), b"by hand")

    def test_the_seeds_are_those_of_the_recordings(self):
        # Acts name a command by its place in the table of all: with each new one they are another's.
        seeds = SCRIPT.parent / "seeds"
        made = {f"{target}/{name}": data for target, named in self.script.made().items() for name, data in named.items()}
        self.assertEqual((seeds / "made").read_text(encoding="utf-8").splitlines(), sorted(made))
        stale = [path for path, data in made.items() if (seeds / path).read_bytes() != data]
        self.assertEqual(stale, [], "run fuzz/seed-from-recordings")


if __name__ == "__main__":
    unittest.main()
