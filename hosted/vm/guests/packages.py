"""Debian packages of other suites, unpacked beside each other: never installed, and the machine's own apt untouched.

apt itself does the work (signatures, dependencies, downloads), on a state folder of its own whose list of installed
packages is empty. The mirror is what the machine's own sources name, if they name one of Debian.
"""

import difflib
import fcntl
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import threading

from . import alternatives
from .errors import SetUpError

# Seconds: the slowest is the download of 150 MB.
TIMEOUT = 1800

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEBIAN = "http://deb.debian.org/debian"

# Programs that a machine's own apt runs after or before an update.
HOOKS = ("APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success", "APT::Update::Post-Invoke-Stats")


def mirror(folder=pathlib.Path("/etc/apt")):
    """Returns the address of the Debian archive that the sources in a folder of apt name, or of the one for everybody."""
    places = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    for place in places:
        if not place.is_file():
            continue
        text = place.read_text(errors="replace")
        stanzas = re.split(r"\n\s*\n", text) if place.suffix == ".sources" else text.splitlines()
        for stanza in stanzas:
            if place.suffix == ".sources":
                uris = re.search(r"^URIs:\s*(\S+)", stanza, re.MULTILINE)
                suites = re.search(r"^Suites:\s*(.+)$", stanza, re.MULTILINE)
            else:
                one_line = re.match(r"\s*deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)", stanza)
                uris = suites = one_line
            if not uris or not suites:
                continue
            named = suites.group(suites.lastindex).split()
            if uris.group(1).rstrip("/").endswith("/debian") and any(re.fullmatch(r"[a-z]+", suite) for suite in named):
                return uris.group(1)
    # Ubuntu, say.
    return DEBIAN


class Tree:
    """A folder of unpacked packages: `suites` to take them from, the first one preferred, `pins` of others by package."""

    def __init__(self, cache, name, suites, wanted, pins=(), *, with_alternatives=False):
        self.home = cache / name
        self.root = self.home / "root"
        self.suites = suites
        self.wanted = wanted
        self.pins = pins
        self.with_alternatives = with_alternatives

    @property
    def libraries(self):
        """Returns the folder of its shared libraries."""
        return self.root / "usr/lib/x86_64-linux-gnu"

    @property
    def boot(self):
        """Returns the folder of its kernel."""
        return self.root / "boot"

    def command(self, program):
        """Returns the command line of one of its programs: with its own loader and its own C library."""
        loader = self.root / "usr/lib64/ld-linux-x86-64.so.2"
        return [str(loader), "--library-path", str(self.libraries), str(self.root / program)]

    def ready(self):
        """Returns whether the folder already contains the packages."""
        mark = self.home / "unpacked"
        return mark.is_file() and mark.read_text() == self._recipe()

    def prepare(self, progress):
        """Downloads and unpacks the missing packages. `progress` is a progress.Progress."""
        if self.ready():
            return
        try:
            for part in ("etc", "state/lists/partial", "archives/partial"):
                (self.home / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = "name a folder that this user can write in BAREVERBS_LINUX_CACHE"
            raise SetUpError(f"{self.home}, for packages that are not there yet, cannot be made: {error.strerror}; {remedy}") from error
        with open(self.home / "lock", "w", encoding="ascii") as lock:
            # Another run may be at it; then there is nothing left to do.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.ready():
                self._prepare(progress)

    def _prepare(self, progress):
        self._configure()
        progress.step(f"{self.home.name}: package lists of Debian {', '.join(self.suites)}")
        self._apt(["apt-get", "-q", "update"], progress)
        self._refuse_unknown()
        progress.step(f"{self.home.name}: downloading")
        # What an interrupted run has fetched may be older.
        self._apt(["apt-get", "-q", "autoclean"])
        self._apt(["apt-get", "-q", "-y", "--download-only", "install", *self._names()], progress)
        packages = self._chosen()
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        progress.step(f"{self.home.name}: unpacking {len(packages)} packages")
        for number, package in enumerate(packages, 1):
            _run(["dpkg-deb", "-x", str(package), str(self.root)])
            progress.done(100 * number / len(packages))
        for name in ("bin", "sbin", "lib", "lib64"):
            _merge(self.root / name, self.root / "usr" / name)
        if self.with_alternatives:
            self._link_alternatives(packages)
        (self.home / "unpacked").write_text(self._recipe())
        # These are not read again.
        for folder in ("archives", "state", "root/usr/share/locale", "root/usr/share/man"):
            shutil.rmtree(self.home / folder, ignore_errors=True)

    def fingerprint(self):
        """Changes when the tree is unpacked anew from other packages."""
        return hashlib.sha256((self.home / "versions").read_bytes()).hexdigest()

    def _recipe(self):
        return repr((self.suites, self.wanted, self.pins))

    def _names(self):
        # `~` selects the one package of a metapackage, without its other dependencies.
        names = []
        for name in self.wanted:
            if not name.startswith("~"):
                names.append(name)
                continue
            shown = self._apt(["apt-cache", "depends", "--important", name[1:]])
            found = re.search(r"Depends: (linux-image-\S+)", shown)
            if not found:
                raise SetUpError(f"{name[1:]} names no kernel")
            names.append(found.group(1))
        return names

    def _refuse_unknown(self):
        """Raises SetUpError if there is no package of a wanted name, and says which names are like it."""
        known = self._apt(["apt-cache", "pkgnames"]).split()
        for name in self.wanted:
            plain = name.removeprefix("~")
            if plain not in known:
                shutil.rmtree(self.home / "state")
                similar = difflib.get_close_matches(plain, known, 3, 0.7)
                raise SetUpError(
                    f"no package '{plain}' in Debian {self.suites[0]} (main, amd64)"
                    + (f"; similar names: {', '.join(similar)}" if similar else "")
                    + f"; https://packages.debian.org/{self.suites[0]}/ lists them"
                )

    def _link_alternatives(self, packages):
        found = []
        for package in packages:
            found += alternatives.links(_script(package))
        for link, target in alternatives.best(found).items():
            place = self.root / link.lstrip("/")
            if (self.root / target.lstrip("/")).exists() and not os.path.lexists(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(target)

    def _chosen(self):
        packages = sorted((self.home / "archives").glob("*.deb"))
        (self.home / "versions").write_text("\n".join(package.name for package in packages))
        return packages

    def _configure(self):
        for program in ("apt-get", "dpkg-deb"):
            if shutil.which(program) is None:
                raise SetUpError(
                    f"no {program} on this machine, by which the guest's packages are fetched from Debian: on Fedora dnf install apt dpkg "
                    "debian-keyring; elsewhere use a container of Debian or Ubuntu"
                )
        if not os.path.isfile(KEYRING):
            raise SetUpError(
                f"no {KEYRING}, by which packages are verified: apt-get install debian-archive-keyring (Fedora: dnf install debian-keyring)"
            )
        etc = self.home / "etc"
        (etc / "status").touch()
        (etc / "sources.sources").write_text(
            f"Types: deb\nURIs: {mirror()}\nSuites: {' '.join(self.suites)}\nComponents: main\n"
            f"Architectures: amd64\nSigned-By: {KEYRING}\n"
        )
        (etc / "preferences").write_text(
            "\n".join(f"Package: {names}\nPin: release n={suite}\nPin-Priority: 990\n" for names, suite in self.pins)
        )
        settings = {
            "Dir::State": self.home / "state",
            "Dir::State::status": etc / "status",
            "Dir::Cache": self.home,
            "Dir::Cache::archives": self.home / "archives",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "Dir::Etc::sourcelist": etc / "sources.sources",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": etc / "preferences",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::Log": "/dev/null",
            "APT::Architecture": "amd64",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            # A list that could not be fetched is an error.
            "APT::Update::Error-Mode": "any",
        }
        # What of the machine's own settings has no meaning here: releases of its distribution, and programs that follow its updates.
        lines = [f"#clear {key};" for key in ("APT::Default-Release", "APT::Architectures", *HOOKS)]
        lines += [f'{key} "{value}";' for key, value in settings.items()] + ['APT::Architectures {"amd64";};']
        (etc / "apt.conf").write_text("\n".join(lines) + "\n")

    def _apt(self, command, progress=None):
        environment = dict(os.environ, LC_ALL="C", DEBIAN_FRONTEND="noninteractive")
        # Read after the machine's own settings, of which its proxy and the like remain.
        command = [command[0], "-c", str(self.home / "etc/apt.conf"), *command[1:]]
        return _run(command, environment) if progress is None else _run_shown(command, environment, progress)


def _merge(old, new):
    """Moves a folder's contents into another and leaves a link, as installed systems have it since bookworm."""
    if old.is_dir() and not old.is_symlink():
        for folder, _, files in os.walk(old):
            target = new / os.path.relpath(folder, old)
            target.mkdir(parents=True, exist_ok=True)
            for file in files:
                os.replace(os.path.join(folder, file), target / file)
        shutil.rmtree(old)
    if not old.is_symlink():
        old.symlink_to(new.relative_to(old.parent))


def _script(package):
    """Returns the script that a package runs when it is installed; nothing if it has none."""
    packed = subprocess.run(["dpkg-deb", "--ctrl-tarfile", str(package)], capture_output=True, timeout=60, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        try:
            return files.extractfile("./postinst").read().decode(errors="replace")
        except KeyError:
            return ""


def _run(command, environment=None, descriptors=()):
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False, pass_fds=descriptors
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetUpError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise SetUpError(f"{' '.join(command[:5])} …: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def _run_shown(command, environment, progress):
    """Runs apt-get, and shows how much of its downloads is done."""
    status, status_end = os.pipe()

    def show():
        with open(status, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                # dlstatus:3:41.2:Retrieving file 3 of 17 (12s remaining)
                words = line.rstrip("\n").split(":", 3)
                if words[0] == "dlstatus" and len(words) == 4:
                    progress.done(float(words[2]), words[3].partition("(")[2].rstrip(")"))

    reader = threading.Thread(target=show, daemon=True)
    reader.start()
    try:
        return _run([command[0], "-o", f"APT::Status-Fd={status_end}", *command[1:]], environment, (status_end,))
    finally:
        os.close(status_end)
        reader.join(10)


def installed(cache, suite, names):
    """Returns the tree of the packages that a user wants in a guest of a suite, with what they depend on."""
    for name in names:
        if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name):
            raise SetUpError(f"'{name}' is no name of a Debian package: two or more of a-z, 0-9, +, - and ., separated by commas")
    wanted = sorted(set(names))
    label = "+".join(wanted)
    if len(label) > 60:
        label = f"{label[:40]}-{hashlib.sha256(label.encode()).hexdigest()[:12]}"
    return Tree(cache, f"{suite}-with-{label}", [suite], wanted, with_alternatives=True)


def trees(cache):
    """Returns the trees that every guest is made of, by name: QEMU and the suites of Debian."""
    user_space = [
        "busybox-static",
        "ibverbs-utils",
        "ibverbs-providers",
        "infiniband-diags",
        "opensm",
        "perftest",
        "rdmacm-utils",
    ]
    return {
        # The client of vfio-user is in QEMU from 10.1 on, which no stable suite has.
        "qemu": Tree(
            cache,
            "qemu",
            ["trixie", "trixie-backports"],
            ["qemu-system-x86"],
            pins=[("qemu-system-x86 qemu-system-common qemu-system-data seabios ipxe-qemu", "trixie-backports")],
        ),
        "trixie": Tree(cache, "trixie", ["trixie"], ["~linux-image-amd64", *user_space]),
        "bookworm": Tree(cache, "bookworm", ["bookworm"], ["~linux-image-amd64", *user_space]),
    }
