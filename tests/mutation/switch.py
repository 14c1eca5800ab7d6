"""Mutants as one program: each function has its mutated bodies beside its own, and the environment chooses the one that runs.

A build for each mutant takes longer than the tests that judge it. So all mutants of a run are compiled once. A mutant is what
cargo-mutants lists: the place of a text, and what stands there instead.
"""

import collections
import dataclasses
import re

#: The environment's variable with the number of the mutant that runs; none, or 0: the code as it is.
VARIABLE = "BAREVERBS_MUTANT"

#: A constant function cannot read a variable, but while the program runs it may call what does. The compiler takes the first
#: line with RUSTC_BOOTSTRAP alone. A function that only constants call has no mutants at run time.
FEATURES = "#![feature(core_intrinsics, const_eval_select)]\n"
MODULE = """
/// Which mutant runs.
#[doc(hidden)]
#[allow(missing_docs, internal_features, unreachable_pub, clippy::all)]
pub mod mutation_switch {
    extern crate std;

    pub const fn chosen() -> u32 {
        core::intrinsics::const_eval_select((), in_constant, at_run_time)
    }

    const fn in_constant() -> u32 {
        0
    }

    fn at_run_time() -> u32 {
        static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
        *CHOSEN.get_or_init(|| std::env::var("VARIABLE").ok().and_then(|number| number.parse().ok()).unwrap_or(0))
    }
}
""".replace("VARIABLE", VARIABLE)

#: What a brace in Rust may stand in without being one: comments (which nest), texts, raw texts, characters.
TOKEN = re.compile(
    r"""//[^\n]*|/\*|b?r(?P<hashes>\#*)"(?s:.*?)"(?P=hashes)|b?"(?:[^"\\]|\\(?s:.))*"|b?'(?:[^'\\\n]|\\[^\n][^'\n]*)'|[{}]"""
)


class SourceError(Exception):
    """A function that is not where cargo-mutants says."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of the source."""

    #: The same for as long as the functions of the file have the same code.
    key: str
    file: str
    #: As cargo-mutants says it, with line and column.
    name: str
    #: Of the text that is replaced: offsets in the file.
    start: int
    end: int
    replacement: str
    #: Of the function around it, or none of a constant.
    function: tuple | None
    #: Whether the function returns a type that it does not name: two bodies have two types.
    opaque: bool
    #: Whether it is the step of a loop in a constant, which then does not end: the compiler refuses that, unless lints are capped.
    endless: bool = False


def offset(starts, place):
    """Returns the offset of a line and column, which count from 1."""
    return starts[place["line"] - 1] + place["column"] - 1


def read_list(project, listed):
    """Returns the mutants of a list of cargo-mutants (--list --json)."""
    texts, lines, found, times = {}, {}, [], collections.Counter()
    for entry in listed:
        file = entry["file"]
        if file not in texts:
            text = (project / file).read_text(encoding="utf-8")
            starts = [0]
            for line in text.split("\n"):
                starts.append(starts[-1] + len(line) + 1)
            texts[file], lines[file] = starts, text.split("\n")
        starts, span, function = texts[file], entry["span"], entry["function"]
        description = re.sub(r"^[^:]*:\d+:\d+: ", "", entry["name"])
        key = f"{file}: {description}"
        times[key] += 1
        found.append(
            Mutant(
                key=key if times[key] == 1 else f"{key} #{times[key]}",
                file=file,
                name=entry["name"],
                start=offset(starts, span["start"]),
                end=offset(starts, span["end"]),
                replacement=entry["replacement"],
                function=(offset(starts, function["span"]["start"]), offset(starts, function["span"]["end"])) if function else None,
                opaque=bool(function and re.search(r"\bimpl\b", function["return_type"])),
                endless=bool(function and is_step(lines[file], span, entry["replacement"]) and in_constant(lines[file], function["span"], span)),
            )
        )
    return found


def is_step(lines, span, replacement):
    """Whether a mutant changes `+=` and the like."""
    line = lines[span["start"]["line"] - 1][span["start"]["column"] - 1 :]
    return len(replacement) > 1 and replacement.endswith("=") and line[1:2] == "=" and replacement[0] not in "=!<>"


def in_constant(lines, function, span):
    """Whether a place is in the block of a constant inside a function."""
    before = "\n".join(lines[function["start"]["line"] : span["start"]["line"] - 1])
    blocks = []
    for found in re.finditer(r"\bconst\b[^;{}]*\{|[{}]", before):
        if found[0] == "}":
            if blocks:
                blocks.pop()
        else:
            blocks.append(found[0] != "{")
    return any(blocks)


def body_of(text, start, end):
    """Returns where the block begins that ends a function: the offset of its brace."""
    opened, at, last = [], start, None
    while found := TOKEN.search(text, at, end):
        at = found.end()
        if found[0] == "{":
            opened.append(found.start())
        elif found[0] == "}":
            if not opened:
                break
            last = (opened.pop(), found.start())
        elif found[0] == "/*":
            depth = 1
            while depth and (mark := re.compile(r"/\*|\*/").search(text, at, end)):
                depth += 1 if mark[0] == "/*" else -1
                at = mark.end()
    if last is None or opened or last[1] != end - 1:
        raise SourceError(f"no block ends at offset {end}")
    return last[0]


def apply(text, mutant):
    """Returns the source with the one mutant."""
    return f"{text[: mutant.start]}{mutant.replacement} {text[mutant.end :]}"


def switched(text, mutants):
    """Returns the source with all mutants, by their numbers, and the lines of each: number -> (first, last)."""
    outermost = []
    for function in sorted({mutant.function for mutant in mutants.values()}, key=lambda span: (span[0], -span[1])):
        if not outermost or function[0] >= outermost[-1][1]:
            outermost.append(function)
    parts, lines, line, at = [], {}, 1, 0

    def add(part):
        nonlocal line
        parts.append(part)
        line += part.count("\n")

    for start, end in outermost:
        body = body_of(text, start, end)
        add(text[at:body])
        inside = {number: mutant for number, mutant in mutants.items() if start <= mutant.start < end}
        add("{ match crate::mutation_switch::chosen() {\n")
        for number, mutant in inside.items():
            first = line
            # The compiler warns of the variable if the function is in the program at all.
            add(f"{number} => {{ let mutant_{number} = (); {text[body : mutant.start]}{mutant.replacement} {text[mutant.end : end]} }}\n")
            lines[number] = (first, line - 1)
        add(f"_ => {text[body:end]} }} }}")
        at = end
    add(text[at:])
    return "".join(parts), lines


def try_the_switch():
    """A function with braces where they are none: if its block were not found, none of the others would be either."""
    text = 'fn f<\'a>(c: char, s: &\'a str) -> bool { /* { /* } */ { */ let t = r#"}"{"#; let u = "\\"}"; // }\n c == \'{\' || c == \'\\\'\' }\nfn g() {}\n'
    end = text.index("\nfn g")
    assert body_of(text, 0, end) == text.index("{ /*"), "the block of a function is not found"
    place = text.index("==")
    mutant = Mutant("k", "f", "n", place, place + 2, "!=", (0, end), False)
    changed, lines = switched(text, {7: mutant})
    assert "7 => { let mutant_7 = (); { /*" in changed and lines == {7: (2, 3)}, "a mutant is not where it is said to be"
    assert changed.count("c !=  '{'") == 1 and changed.count("c == '{'") == 1, "a mutant is in the code as it is"
    assert apply(text, mutant) == text.replace("==", "!= ", 1), "a mutant alone is not the text with one change"
