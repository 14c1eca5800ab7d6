"""What an ELF file says of itself: for which machine it is, and which shared libraries in which versions it needs."""

import dataclasses
import struct

MAGIC = b"\x7fELF"
X86_64 = 62

#: Names of e_machine that a build by mistake may have.
MACHINES = {3: "32-bit x86", 8: "MIPS", 20: "32-bit PowerPC", 21: "PowerPC", 22: "s390x", 40: "32-bit Arm", X86_64: "x86-64"}
MACHINES |= {183: "AArch64", 243: "RISC-V", 258: "LoongArch"}

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_NEEDED, _STRINGS, _SONAME, _RPATH, _RUNPATH = 1, 5, 14, 15, 29
_VERSIONS_DEFINED, _VERSIONS_NEEDED = 0x6FFFFFFC, 0x6FFFFFFE


@dataclasses.dataclass
class Elf:
    """The parts of a file that decide where it runs."""

    machine: str
    #: The program that loads it; None if it is static, or a library.
    interpreter: str | None = None
    needed: list = dataclasses.field(default_factory=list)
    #: Folders to look for libraries in, as they are written.
    rpath: list = dataclasses.field(default_factory=list)
    runpath: list = dataclasses.field(default_factory=list)
    #: Names of the versions that it needs, by library.
    versions_needed: dict = dataclasses.field(default_factory=dict)
    versions_defined: set = dataclasses.field(default_factory=set)


def parse(data):
    """Returns the Elf of a file's bytes; raises ValueError if they are no complete ELF file."""
    try:
        return _parse(data)
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged or cut short: {error}") from error


def _parse(data):
    if data[:4] != MAGIC:
        raise ValueError("it is no ELF file")
    if data[5] != 1:
        return Elf("a big-endian machine")
    (number,) = struct.unpack_from("<H", data, 18)
    found = Elf(MACHINES.get(number, f"machine {number}"))
    if data[4] != 2 or number != X86_64:
        if number == X86_64:
            found.machine = "x32"
        return found
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * index) for index in range(count)]
    loads = [(address, offset, length) for kind, _, offset, address, _, length in headers if kind == _LOAD]
    for kind, _, offset, _, _, length in headers:
        if kind == _INTERPRETER:
            found.interpreter = _text(data, offset)
        elif kind == _DYNAMIC:
            pairs = [struct.unpack_from("<qQ", data, at) for at in range(offset, offset + length - 15, 16)]
            _read_dynamic(found, data, pairs, loads)
    return found


def _text(data, at):
    end = data.index(b"\0", at)
    return data[at:end].decode()


def _offset(loads, address):
    for start, offset, length in loads:
        if start <= address < start + length:
            return address - start + offset
    raise IndexError(f"address {address:#x} is in no segment")


def _read_dynamic(found, data, pairs, loads):
    values = {}
    needed = []
    for tag, value in pairs:
        if tag == 0:
            break
        if tag == _NEEDED:
            needed.append(value)
        values[tag] = value
    if _STRINGS not in values:
        return
    strings = _offset(loads, values[_STRINGS])
    found.needed = [_text(data, strings + name) for name in needed]
    if _RPATH in values:
        found.rpath = _text(data, strings + values[_RPATH]).split(":")
    if _RUNPATH in values:
        found.runpath = _text(data, strings + values[_RUNPATH]).split(":")
    if _VERSIONS_NEEDED in values:
        at = _offset(loads, values[_VERSIONS_NEEDED])
        for _, _, file, names, step in _chain(data, at, "<HHIII", 4):
            entries = _chain(data, at + names, "<IHHII", 4)
            found.versions_needed[_text(data, strings + file)] = [_text(data, strings + name) for _, _, _, name, _ in entries]
            at += step
    if _VERSIONS_DEFINED in values:
        at = _offset(loads, values[_VERSIONS_DEFINED])
        for _, _, _, _, _, names, step in _chain(data, at, "<HHHHIII", 6):
            (name,) = struct.unpack_from("<I", data, at + names)
            found.versions_defined.add(_text(data, strings + name))
            at += step


def _chain(data, at, layout, next_field):
    """Yields the entries of a list in which each says how far the next one is."""
    for _ in range(10_000):
        entry = struct.unpack_from(layout, data, at)
        yield entry
        if entry[next_field] == 0:
            return
        at += entry[next_field]
    raise IndexError("a list of versions without end")
