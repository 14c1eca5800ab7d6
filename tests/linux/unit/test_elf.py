"""Files of the compiler of this machine, against what readelf says of them, and damaged ones."""

import os
import pathlib
import random
import re
import subprocess
import tempfile
import unittest

from guests import elf


PROGRAM = "#include <stdlib.h>\nint main(int n, char **v) { return n > 9 ? atoi(v[1]) : 0; }\n"


def compiled(folder, name, *options, source=PROGRAM):
    """Returns the path of a program or library."""
    (folder / "source.c").write_text(source)
    subprocess.run(["cc", folder / "source.c", "-o", folder / name, *options], check=True)
    return folder / name


def readelf(option, path):
    environment = dict(os.environ, LC_ALL="C")
    return subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True, check=True, env=environment).stdout


class Elf(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = pathlib.Path(held.name)

    def test_a_program_says_what_readelf_says(self):
        path = compiled(self.folder, "program", "-Wl,--no-as-needed", "-lm", "-Wl,-rpath,$ORIGIN/lib:/opt/lib", "-Wl,--enable-new-dtags")
        found = elf.parse(path.read_bytes())
        dynamic = readelf("-d", path)
        self.assertEqual(found.machine, "x86-64")
        self.assertEqual(found.needed, re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
        self.assertIn("libm.so.6", found.needed)
        self.assertEqual((found.rpath, found.runpath), ([], ["$ORIGIN/lib", "/opt/lib"]))
        self.assertIn(f"interpreter: {found.interpreter}]", readelf("-l", path))
        needs = readelf("-V", path).partition("Version needs section")[2]
        self.assertEqual(sorted(found.versions_needed), sorted(re.findall(r"File: (\S+)", needs)))
        self.assertEqual(sorted(sum(found.versions_needed.values(), [])), sorted(re.findall(r"Name: (\S+)", needs)))

    def test_a_library_says_its_versions(self):
        script = self.folder / "versions"
        script.write_text("FIRST_1 { global: one; }; SECOND_2 { global: two; local: *; } FIRST_1;\n")
        path = compiled(self.folder, "libown.so", "-shared", "-fPIC", f"-Wl,--version-script={script}", source="int one, two;\n")
        found = elf.parse(path.read_bytes())
        self.assertIsNone(found.interpreter)
        self.assertLessEqual({"FIRST_1", "SECOND_2"}, found.versions_defined)

    def test_a_static_program_needs_nothing(self):
        found = elf.parse(compiled(self.folder, "static", "-static", source="int main(void) { return 0; }\n").read_bytes())
        self.assertEqual((found.interpreter, found.needed), (None, []))

    def test_other_machines_are_named(self):
        data = bytearray(compiled(self.folder, "program").read_bytes())
        data[18:20] = (183).to_bytes(2, "little")
        self.assertEqual(elf.parse(bytes(data)).machine, "AArch64")
        data[18:20] = (4711).to_bytes(2, "little")
        self.assertEqual(elf.parse(bytes(data)).machine, "machine 4711")

    def test_damaged_files_are_refused_or_read(self):
        data = compiled(self.folder, "program", "-lm").read_bytes()
        table = 64 + 56 * 14
        headers = map(str.split, readelf("-l", self.folder / "program").splitlines())
        dynamic = next(int(words[1], 16) for words in headers if words[:1] == ["DYNAMIC"])
        random_numbers = random.Random(1)
        for length in [*range(64), *range(64, len(data), 97)]:
            self._read(data[:length])
        for _ in range(3000):
            damaged = bytearray(data)
            at = random_numbers.choice([random_numbers.randrange(table), dynamic + random_numbers.randrange(400)])
            damaged[at] = random_numbers.choice([0, 0xFF, random_numbers.randrange(256)])
            self._read(bytes(damaged))

    def _read(self, data):
        # Any other exception fails the test.
        try:
            elf.parse(data)
        except ValueError:
            pass


if __name__ == "__main__":
    unittest.main()
