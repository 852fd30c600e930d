"""What each MLIR pass of Triton's changed, from the dumps that MLIR prints before every pass.

A pass renumbers values and renames layouts (`%pa_12`, `#blocked1`) without changing the code. Lines that differ in
such names alone count as equal. Locations are removed from the lines and kept as line numbers of the kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from compiler.binary import lines
from compiler.binary.jobs import PassFacts
from compiler.binary.listing import instructions

CONTEXT = 2
MOST_ROWS = 160
"""Rows of one pass's diff that are kept; the counts are of all."""
MOST_LINES = 1500
"""Longest code whose lines are compared one by one. In longer code, which has instructions of LLVM, operations are
counted only.
"""

_BEFORE = re.compile(r"// -----// IR Dump Before (\w+)(?: \(([^)]*)\)|: ([\w-]+)[^(]*) \('([\w.]+)' operation")
"""Triton 3.9 and later write `InlinerPass: inline{options}` where earlier ones write `Inliner (inline)`."""
_INSIDE = re.compile(r"// -----// (.+?) internal IR Dump After: (.+)")
_LOCATION = re.compile(r' loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*")*\))*\))*\)')
_VALUE = re.compile(r"%[\w$.-]+(?:[:#]\d+)?")
_ALIAS = re.compile(r"#\w+(?![\w.])")
_DEFINITION = re.compile(r"(#(?!loc)\w+) = (.*)")
_INLINERS = ("inline", "gluon-inline")  # they run passes on functions, as a part of their own work


_PIPELINERS = ("tritongpu-pipeline", "tritonamdgpu-pipeline", "tritonamdgpu-stream-pipeline")


@dataclass(frozen=True, slots=True)
class Dump:
    """The dumps of one run of a pass manager, and the module after it; "" if a pass failed."""

    pipeline: str
    text: str
    after: str


@dataclass(frozen=True, slots=True)
class _Section:
    """One dump: of the code before a pass, or after a part of it (`part`)."""

    name: str
    argument: str
    part: str
    operation: str
    text: str


@dataclass(frozen=True, slots=True)
class _Code:
    """A dump's lines without locations, the lines' keys for comparison, their kernel lines, and its layouts."""

    lines: list[str]
    keys: list[str]
    places: list[int]
    layouts: dict[str, str]


_Row = tuple[str, int]
"""A row of a diff, with its sign, and the kernel line that it comes from; 0 for none."""


def changes(dump: Dump, file: str) -> Iterator[PassFacts]:
    """Yield every pass of a run in order: what it removed and added, in a kernel in `file`."""
    sections = [*_sections(dump.text)]
    opened: _Section | None = None
    before = _Code([], [], [], {})
    for section in sections:
        if section.part:
            after = _code(section.text, file, before.layouts)
            if opened is not None:
                yield _facts(dump.pipeline, opened, section.part, before, after)
        elif _is_inside(section, opened):
            continue
        else:
            after = _code(section.text, file)
            if opened is not None:
                yield _facts(dump.pipeline, opened, "", before, after)
            opened = section
        before = after
    if opened is None:
        return
    if dump.after:
        yield _facts(dump.pipeline, opened, "", before, _code(dump.after, file))
    else:
        yield PassFacts(dump.pipeline, opened.name, opened.argument, failed=True)


def text_before_pipelining(dump: Dump) -> str:
    """The code before the pass that pipelines loops, where operations have their stages; "" if none ran."""
    return next((each.text for each in _sections(dump.text) if each.argument in _PIPELINERS), "")


def _is_inside(section: _Section, opened: _Section | None) -> bool:
    """Whether the dump is of a pass that an inliner runs on a single function."""
    return opened is not None and opened.argument in _INLINERS and section.operation != "builtin.module"


def _sections(text: str) -> Iterator[_Section]:
    head: tuple[str, str, str, str] | None = None
    body: list[str] = []
    for line in text.split("\n"):
        if not line.startswith("// -----// "):
            body.append(line)
            continue
        if head is not None:
            yield _Section(*head, "\n".join(body))
        head, body = _head(line), []
    if head is not None:
        yield _Section(*head, "\n".join(body))


def _head(line: str) -> tuple[str, str, str, str] | None:
    """Name, argument, part and operation of a dump; None for a dump of another kind."""
    if found := _BEFORE.match(line):
        return found[1], found[2] or found[3], "", found[4]
    if found := _INSIDE.match(line):
        return "", "", found[2].removesuffix(" //----- //").strip(), ""
    return None


def _code(text: str, file: str, known: Mapping[str, str] | None = None) -> _Code:
    """The code of a dump. One of a pass's part spells layouts out: they get the names that are `known`."""
    for name, layout in sorted((known or {}).items(), key=lambda item: -len(item[1])):
        text = text.replace(layout, name)
    rows = text.split("\n")
    layouts = {**(known or {}), **_layouts(rows)}
    places = lines.source_lines("mlir", text, file) if len(rows) <= MOST_LINES * 2 else {}
    kept, keys, numbers = [], [], []
    for number, row in enumerate(rows, 1):
        if not row.strip() or row.startswith("#"):
            continue
        line = _LOCATION.sub("", row).rstrip()
        kept.append(line)
        keys.append(_ALIAS.sub(lambda found: layouts.get(found[0], found[0]), _VALUE.sub("%", line)))
        numbers.append(places.get(number, 0))
    return _Code(kept, keys, numbers, layouts)


def _layouts(rows: Sequence[str]) -> dict[str, str]:
    """Definition of each alias of a layout, with the aliases in it resolved."""
    found: dict[str, str] = {}
    for row in rows:
        if definition := _DEFINITION.match(row):
            found[definition[1]] = _ALIAS.sub(lambda name: found.get(name[0], name[0]), definition[2])
    return found


def _facts(pipeline: str, opened: _Section, part: str, before: _Code, after: _Code) -> PassFacts:
    if before.keys == after.keys:
        return PassFacts(pipeline, opened.name, opened.argument, part)
    operations = _operations(before, after)
    if max(len(before.keys), len(after.keys)) > MOST_LINES:
        added = sum((Counter(after.keys) - Counter(before.keys)).values())
        removed = sum((Counter(before.keys) - Counter(after.keys)).values())
        return PassFacts(pipeline, opened.name, opened.argument, part, removed, added, operations, compared=False)
    rows = [*_changed_layouts(before, after), *_diff(before, after)]
    removed, added = (sum(row.startswith(sign) for row, _line in rows) for sign in "-+")
    shown = rows[:MOST_ROWS]
    return PassFacts(
        pipeline, opened.name, opened.argument, part, removed, added, operations,
        tuple(row for row, _line in shown), tuple(line for _row, line in shown), len(rows) - len(shown),
    )  # fmt: skip


def _operations(before: _Code, after: _Code) -> dict[str, int]:
    """How many more of each operation there are afterwards; operations with equal counts are left out."""
    counts = [Counter(name for _, name in instructions("mlir", "\n".join(code.lines))) for code in (before, after)]
    names = sorted({*counts[0], *counts[1]})
    return {name: counts[1][name] - counts[0][name] for name in names if counts[0][name] != counts[1][name]}


def _changed_layouts(before: _Code, after: _Code) -> Iterator[_Row]:
    """Rows for layouts that are gone, or new."""
    for sign, own, other in (("-", before, after), ("+", after, before)):
        known = set(other.layouts.values())
        yield from ((f"{sign} {name} = {text}", 0) for name, text in own.layouts.items() if text not in known)


def _diff(before: _Code, after: _Code) -> Iterator[_Row]:
    """Rows of a unified diff; unchanged lines are those of the code afterwards."""
    matcher = SequenceMatcher(None, before.keys, after.keys, autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        yield f"@@ line {group[0][3] + 1} @@", 0
        for kind, first, end, new_first, new_end in group:
            if kind != "equal":
                yield from ((f"-{before.lines[at]}", before.places[at]) for at in range(first, end))
            sign = " " if kind == "equal" else "+"
            yield from ((f"{sign}{after.lines[at]}", after.places[at]) for at in range(new_first, new_end))
