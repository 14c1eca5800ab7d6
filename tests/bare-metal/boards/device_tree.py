"""Changes properties of a flattened device tree (Devicetree Specification 0.4, chapter 5)."""

import struct

BEGIN_NODE, END_NODE, PROPERTY, END = (struct.pack(">I", token) for token in (1, 2, 3, 9))
#: Places of the header's words.
TOTAL_SIZE, STRUCTURE, STRINGS, STRINGS_SIZE, STRUCTURE_SIZE = 1, 2, 3, 8, 9


def padded(content):
    """Returns bytes that end at a multiple of four."""
    return content + bytes(-len(content) % 4)


def text(content, start):
    """Returns the string at an offset, without the zero at its end."""
    return content[start : content.index(b"\0", start)]


def changed(tree, node, name, value=None):
    """Returns the tree with a property of the first node whose name begins so: without it, or with another value if one is given."""
    header = list(struct.unpack(">10I", tree[:40]))
    structure = tree[header[STRUCTURE] :][: header[STRUCTURE_SIZE]]
    strings = tree[header[STRINGS] :][: header[STRINGS_SIZE]]
    out, at, inside = b"", 0, None
    while (token := structure[at : at + 4]) != END:
        size = 4
        if token == BEGIN_NODE:
            title = text(structure, at + 4)
            size += len(padded(title + b"\0"))
            if inside is None:
                inside = 0 if title.startswith(node.encode()) else None
            else:
                inside += 1
        elif token == END_NODE and inside is not None:
            inside = inside - 1 if inside else -1
        elif token == PROPERTY:
            length, offset = struct.unpack(">2I", structure[at + 4 : at + 12])
            size += 8 + length + -length % 4
            if inside == 0 and text(strings, offset) == name.encode():
                at += size
                continue
        out += structure[at : at + size]
        if token == BEGIN_NODE and inside == 0 and value is not None:
            # The properties of a node come before its children.
            out += PROPERTY + struct.pack(">2I", len(value), len(strings)) + padded(value)
            value = None
            strings += name.encode() + b"\0"
        at += size
    if inside is None:
        raise ValueError(f"no node {node} in the device tree")
    out += END
    reservations = tree[40 : min(header[STRUCTURE], header[STRINGS])]
    header[STRUCTURE] = 40 + len(reservations)
    header[STRUCTURE_SIZE] = len(out)
    header[STRINGS] = header[STRUCTURE] + len(out)
    header[STRINGS_SIZE] = len(strings)
    header[TOTAL_SIZE] = header[STRINGS] + len(strings)
    return struct.pack(">10I", *header) + reservations + out + strings
