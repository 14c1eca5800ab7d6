"""The initial file systems of the guests of cases: those of `bareverbs vm`, with the cases' scripts and what some of them need."""

import subprocess

from guests import additions, elf, image
from guests.errors import SetUpError
from guests.image import Part
from harness.build import PROJECT

from . import applications, dpdk, mpi, python, sideway, tools

# Not among the packages: other working copies use those too, and have scripts and programs of their own.
IMAGES = PROJECT / "target/linux/images"
# The scripts of the cases.
GUEST = PROJECT / "tests/linux/guest"

# The service that binds a card at boot, whose commands the case `bind` runs.
SERVICE = PROJECT / "examples/systemd/bareverbs-bind@.service"

# Page and section of the book that the case `readme` runs.
CARD_SECTION = ("docs/src/vfio.md", "Bind, run, unbind")


def card_lines():
    """Returns the command lines of the book for a reader with a card."""
    page, section = CARD_SECTION
    command = [str(PROJECT / "tests/scripts/run-section"), "--print", str(PROJECT / page), section]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise SetUpError(f"the book's lines: {done.stderr.strip()}")
    return done.stdout


def cases_part():
    """Returns the scripts of all cases, and what some of them read."""
    scripts = sorted(path for path in GUEST.rglob("*") if path.is_file())
    lines = card_lines()

    def add(archive):
        for script in scripts:
            archive.file(str(script.relative_to(GUEST)), script.read_bytes(), 0o755)
        archive.file("readme-lines", lines.encode())
        archive.file(SERVICE.name, SERVICE.read_bytes())

    return Part("cases", [lines], [*scripts, SERVICE, __file__], add)


def program_part(tree, programs):
    """Returns programs that were built on this machine: their paths by the names that they have in the guest."""

    def add(archive):
        adder = additions.Programs(tree, archive=archive)
        for name, program in programs.items():
            adder.add(program, name)

    return Part("program", list(programs), [*programs.values(), additions.__file__, elf.__file__], add)


def build(
    tree,
    python_tree=None,
    programs=None,
    applications_tree=None,
    tools_tree=None,
    mpi_tree=None,
    dpdk_tree=None,
    sideway_programs=(),
):
    """Returns the path of the image for a tree and the scripts of the cases; made once. `python_tree` has rdma-core's Python tests; what
    the other trees have is in the modules of their names. `programs`, paths by name, and `sideway_programs`, Sideway's tests, were
    built on this machine."""
    parts = [cases_part()]
    if python_tree:
        parts.append(Part("python", [python_tree.fingerprint()], [python.__file__], lambda archive: python.add(archive, python_tree)))
    if programs:
        parts.append(program_part(tree, programs))
    if applications_tree:
        add = lambda archive: applications.add(archive, applications_tree)
        parts.append(Part("applications", [applications_tree.fingerprint()], [applications.__file__], add, applications.MODULES))
    if tools_tree:
        add_tools = lambda archive: tools.add(archive, tools_tree)
        parts.append(Part("tools", [tools_tree.fingerprint()], [tools.__file__], add_tools, tools.MODULES))
    if mpi_tree:
        sources = [mpi.__file__, python.__file__, applications.__file__]
        parts.append(Part("mpi", [mpi_tree.fingerprint()], sources, lambda archive: mpi.add(archive, mpi_tree)))
    if dpdk_tree:
        parts.append(Part("dpdk", [dpdk_tree.fingerprint()], [dpdk.__file__], lambda archive: dpdk.add(archive, dpdk_tree)))
    if sideway_programs:
        parts.append(sideway.part(tree, sideway_programs))
    return image.build(IMAGES, tree, parts)


def for_ipxe(tree, served, boots, folder):
    """Creates what a guest serves to iPXE and what iPXE starts with, in `folder`: the image `served` with a kernel, a small initial
    file system and iPXE's script `boots` in /www."""
    vmlinuz, _ = image.kernel(tree)
    inner = image.Archive()
    for name in ("dev", "proc", "sys"):
        inner.folder(name)
    inner.file("bin/busybox", (tree.root / "usr/bin/busybox").read_bytes(), 0o755)
    inner.file("init", (boots.parent / "init").read_bytes(), 0o755)
    outer = image.Archive()
    outer.file("www/vmlinuz", vmlinuz.read_bytes())
    outer.file("www/initrd", inner.bytes())
    path = folder / "guest0.initrd"
    image.join([served, outer.bytes()], path)
    return path
