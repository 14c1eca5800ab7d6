"""Where packages come from on other people's machines, and what of their apt's settings counts."""

import os
import pathlib
import tempfile
import unittest
from unittest import mock

from guests import packages
from guests.errors import SetUpError

# As the files are after an installation.
DEBIAN_13 = """Types: deb deb-src
URIs: https://deb.debian.org/debian
Suites: trixie trixie-updates
Components: main non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://security.debian.org/debian-security
Suites: trixie-security
Components: main non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
DEBIAN_11 = """deb [ arch=amd64 ] http://ftp.de.example/debian/ bullseye main
deb http://security.debian.org/debian-security bullseye-security main
"""
UBUNTU_24_04 = """Types: deb
URIs: http://archive.ubuntu.com/ubuntu/
Suites: noble noble-updates noble-backports
Components: main restricted universe multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
UBUNTU_22_04 = "deb http://archive.ubuntu.com/ubuntu/ jammy main restricted\n"
# A runner of GitHub.
MIRROR_LIST = "Types: deb\nURIs: mirror+file:/etc/apt/apt-mirrors.txt\nSuites: noble\nComponents: main\n"
# Of settings that people have: each stopped a run, or would.
OWN_SETTINGS = """APT::Default-Release "noble";
APT::Install-Recommends "true";
APT::Architectures { "amd64"; "i386"; };
APT::Update::Post-Invoke { "exit 1"; };
APT::Update::Post-Invoke-Success { "exit 1"; };
Dir::Cache::archives "/nowhere/";
Acquire::http::Proxy "http://proxy.example:3128";
"""


class Packages(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = pathlib.Path(held.name)

    def mirror_of(self, name, text):
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        found = packages.mirror(self.folder)
        place.unlink()
        return found

    def test_the_mirror_is_that_of_debians_own_sources(self):
        self.assertEqual(self.mirror_of("sources.list.d/debian.sources", DEBIAN_13), "https://deb.debian.org/debian")
        self.assertEqual(self.mirror_of("sources.list", DEBIAN_11), "http://ftp.de.example/debian/")

    def test_other_distributions_have_none_and_get_the_one_for_everybody(self):
        for name, text in [
            ("sources.list.d/ubuntu.sources", UBUNTU_24_04),
            ("sources.list", UBUNTU_22_04),
            ("sources.list.d/ubuntu.sources", MIRROR_LIST),
        ]:
            self.assertEqual(self.mirror_of(name, text), packages.DEBIAN)
        # Fedora's apt has no sources.
        self.assertEqual(packages.mirror(self.folder / "nothing"), packages.DEBIAN)

    def configured(self):
        tree = packages.Tree(self.folder / "cache", "tree", ["trixie"], ["jq"])
        (tree.home / "etc").mkdir(parents=True)
        tree._configure()
        return tree

    def test_the_settings_of_the_machine_do_not_choose_packages(self):
        parts = self.folder / "apt.conf.d"
        parts.mkdir()
        (parts / "99own").write_text(OWN_SETTINGS)
        machine = self.folder / "machine.conf"
        machine.write_text(f'Dir::Etc::parts "{parts}";\n')
        with mock.patch.dict(os.environ, APT_CONFIG=str(machine)):
            said = self.configured()._apt(["apt-config", "dump"])
        lines = said.splitlines()
        # It is read, and a machine behind a proxy needs it.
        self.assertIn('Acquire::http::Proxy "http://proxy.example:3128";', lines)
        self.assertIn('APT::Install-Recommends "false";', lines)
        self.assertIn(f'Dir::Cache::archives "{self.folder}/cache/tree/archives";', lines)
        self.assertEqual([line for line in lines if line.startswith("APT::Architectures::")], ['APT::Architectures:: "amd64";'])
        for gone in ("noble", "exit 1"):
            self.assertNotIn(gone, said)

    def test_a_machine_without_apt_hears_what_to_install(self):
        with mock.patch.object(packages.shutil, "which", lambda name: None), self.assertRaises(SetUpError) as caught:
            self.configured()
        self.assertIn("dnf install apt dpkg debian-keyring", str(caught.exception))

    def test_a_machine_without_the_keys_of_debian_hears_what_to_install(self):
        with mock.patch.object(packages, "KEYRING", str(self.folder / "none")), self.assertRaises(SetUpError) as caught:
            self.configured()
        self.assertIn("apt-get install debian-archive-keyring", str(caught.exception))
