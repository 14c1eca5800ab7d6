"""Programs of this machine for a guest: which files come, and which programs are refused with which words."""

import os
import pathlib
import shutil
import tempfile
import types
import unittest
from unittest import mock

from guests import additions
from guests.errors import SetUpError

from .test_elf import compiled


class Additions(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = pathlib.Path(held.name)
        root = self.folder / "guest/root"
        libraries = root / "usr/lib/x86_64-linux-gnu"
        libraries.mkdir(parents=True)
        tree = types.SimpleNamespace(root=root, libraries=libraries, home=self.folder / "guest")
        self.libraries = libraries
        self.programs = additions.Programs(tree)

    def refused(self, path, words):
        with self.assertRaises(SetUpError) as caught:
            self.programs.add(path)
        self.assertIn(words, str(caught.exception))

    def test_a_program_comes_with_its_own_library_and_the_guests(self):
        shutil.copy("/lib/x86_64-linux-gnu/libc.so.6", self.libraries)
        compiled(self.folder, "libown.so", "-shared", "-fPIC", source="int own(void) { return 3; }\n")
        path = compiled(self.folder, "uses-own", f"-L{self.folder}", "-lown", source="int own(void); int main(void) { return own(); }\n")
        with mock.patch.dict(os.environ, LD_LIBRARY_PATH=str(self.folder)):
            self.programs.add(path)
        files = self.programs.archive.files
        self.assertLessEqual({"bin/uses-own", "lib/x86_64-linux-gnu/libown.so", "lib/x86_64-linux-gnu/libc.so.6"}, files)
        self.assertEqual(self.programs.taken["libc.so.6"], self.libraries / "libc.so.6")

    def test_a_program_comes_under_another_name(self):
        for name in (None, "tool"):
            self.programs.add(compiled(self.folder, "tool-1.2", "-static", "-nostdlib", source="void _start(void) {}\n"), name)
        self.assertEqual({each for each in self.programs.archive.files if "tool" in each}, {"bin/tool-1.2", "bin/tool"})

    def test_a_library_that_is_nowhere_is_named(self):
        shutil.copy("/lib/x86_64-linux-gnu/libc.so.6", self.libraries)
        compiled(self.folder, "libown.so", "-shared", "-fPIC", source="int own(void) { return 3; }\n")
        path = compiled(self.folder, "uses-own", f"-L{self.folder}", "-lown", source="int own(void); int main(void) { return own(); }\n")
        (self.folder / "libown.so").unlink()
        self.refused(path, "uses-own needs libown.so, which is neither in the guest nor on this machine")

    def test_a_newer_c_library_than_the_guests_is_named(self):
        # The guest's defines other versions than those that the program needs.
        versions = self.folder / "versions"
        versions.write_text("GLIBC_2.1 { local: *; };\n")
        old = compiled(self.folder, "old.so", "-shared", "-fPIC", "-nostdlib", f"-Wl,--version-script={versions}", source="int old;\n")
        shutil.copy(old, self.libraries / "libc.so.6")
        self.refused(compiled(self.folder, "program"), "of libc.so.6, and the guest (Debian guest) has GLIBC_2.1 at most")

    def test_a_link_between_folders_that_are_one_in_the_guest_hides_no_program(self):
        # As iproute2 has it.
        root = self.folder / "added"
        for folder in ("bin", "sbin"):
            (root / "usr" / folder).mkdir(parents=True)
        (root / "usr/bin/ip").write_text("#!/bin/sh\necho the package\n")
        (root / "usr/bin/ip").chmod(0o755)
        (root / "usr/sbin/ip").symlink_to("/bin/ip")
        (root / "usr/sbin/relative").symlink_to("../bin/ip")
        (root / "usr/sbin/same").symlink_to("../bin/same")
        archive = mock.Mock()
        additions._add_packages(archive, types.SimpleNamespace(root=root))
        self.assertEqual([call.args[0] for call in archive.file.mock_calls], ["bin/ip"])
        self.assertEqual([call.args for call in archive.link.mock_calls], [("bin/relative", "../bin/ip")])

    def test_what_cannot_start_in_the_guest_is_refused(self):
        path = self.folder / "arm"
        data = bytearray(compiled(self.folder, "program").read_bytes())
        data[18:20] = (183).to_bytes(2, "little")
        path.write_bytes(data)
        self.refused(path, "it is for AArch64, and the guest is x86-64")
        (self.folder / "text").write_text("no program\n")
        self.refused(self.folder / "text", "it is no ELF file")
        (self.folder / "script").write_text("#!/usr/bin/env python3\n")
        self.refused(self.folder / "script", "a script of 'python3', which the guest does not have")
        (self.folder / "test").write_text("#!/bin/sh\n")
        self.refused(self.folder / "test", "has a command 'test' of its own")
        self.refused(self.folder, "a folder: --share shows it")

    def test_places_of_packages(self):
        places = {"usr/sbin/opensm": "bin/opensm", "usr/games/x": "bin/x", "etc/a": "etc/a", "usr/lib/b": "lib/b"}
        self.assertEqual({place: additions.in_guest(place) for place in places}, places)


if __name__ == "__main__":
    unittest.main()
