"""Lines of generated kernels as entities, each linked to the FX nodes that it computes.

Index arithmetic serves every node of a kernel, so it is linked to none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from compiler.record import Entity, Kernel
from compiler.record.printed_code import line_key

if TYPE_CHECKING:  # logs are read without importing torch
    from compiler.torch_api.inductor import KernelFacts
    from compiler.torch_api.line_origins import FxOrigins

_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"def (\w+)")
_ASSIGNED = re.compile(r"(\w+) = ")
_SHARED_ARGUMENT = re.compile(r"\s*(foreach_arg\d+) = (\w+)")
_PUNCTUATION = re.compile(r"[\s()\[\]{},]*")

Ids = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """An Inductor kernel: the names of its fused nodes, and the origins of its lines, as ids.

    For Triton, a line's origins are looked up in `names` by its function's name, in `lines` by its key (`line_key`),
    then in `names` by each name in it; `whole` is the default in a template. For C++, `rows` are the lines in order,
    each with its origins.
    """

    name: str
    nodes: tuple[str, ...]
    category: str
    lines: Mapping[str, Ids] = field(default_factory=dict)
    names: Mapping[str, Ids] = field(default_factory=dict)
    whole: Ids = ()
    rows: tuple[tuple[str, Ids], ...] = ()


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement of a kernel. `rows` are line numbers in the artifact, from 1."""

    rows: tuple[int, ...]
    text: str
    origins: Ids


def definition(
    facts: KernelFacts, ids: Callable[[FxOrigins], Ids], line: Callable[[str, int], str] | None = None
) -> Definition:
    """A kernel's definition from observed facts, with the ids of the FX nodes.

    `line` returns the id of a source line, for a user's kernel: each of its lines comes from the one that it copies.
    """
    lines = {key: ids(origins) for key, origins in facts.lines.lines.items()}
    for file, number, text in facts.source:
        if line is not None and not _PUNCTUATION.fullmatch(text):
            lines[line_key(text)] = _union((lines.get(line_key(text), ids(facts.whole)), (line(file, number),)))
    names = {name: ids(origins) for name, origins in facts.lines.names.items()}
    rows = tuple((row, ids(origins)) for row, origins in facts.lines.rows)
    return Definition(facts.name, facts.nodes, facts.category, lines, names, ids(facts.whole), rows)


def kernel_lines(kernel: Kernel, rows: Sequence[str], definitions: Sequence[Definition]) -> dict[int, Entity]:
    """An entity for each line of the kernel's functions, by line number (from 1) in `rows`."""
    languages = {"triton": _triton_origins, "cpp": _cpp_origins}
    if kernel.language not in languages:
        return {}
    same = [definition for definition in definitions if definition.name == kernel.name]
    first, found = kernel.lines[0], {}
    for number, origins in languages[kernel.language](kernel, rows, same):
        label = rows[number - 1].strip()
        found[number] = Entity(f"{kernel.id}.L{number - first + 1}", kernel.language, label, {}, (), origins)
    return found


def _triton_origins(
    kernel: Kernel, rows: Sequence[str], definitions: Sequence[Definition]
) -> Iterator[tuple[int, Ids]]:
    """Yield line numbers in the artifact, and origins, for the lines of `@triton.jit` functions.

    `rows` are the artifact's. If several groups of nodes define the same source, the kernel computes all of them.
    """
    first, last = kernel.lines
    source = dict(enumerate(rows[first : last - 1], first + 1))
    known = [_with_shared_arguments(definition, source.values()) for definition in definitions]
    statements = [_statement_of(function, numbers, source, known) for function, numbers in _statements(source)]
    for statement in _resolve_temporaries(statements):
        yield from ((number, statement.origins) for number in statement.rows)


def _with_shared_arguments(definition: Definition, rows: Iterable[str]) -> Definition:
    """Add lines that use the aliases of arguments in the kernel, such as `foreach_arg0 = in_ptr0` (torch 2.15)."""
    lines: dict[str, Ids] = {}
    for name, argument in (found.groups() for found in map(_SHARED_ARGUMENT.fullmatch, rows) if found):
        word = re.compile(rf"\b{argument}\b")
        for line, ids in definition.lines.items():
            if word.search(line):
                renamed = word.sub(name, line)
                lines[renamed] = _union((lines.get(renamed, ()), ids))
    return replace(definition, lines={**definition.lines, **lines})


def _cpp_origins(kernel: Kernel, rows: Sequence[str], definitions: Sequence[Definition]) -> Iterator[tuple[int, Ids]]:
    """Yield line numbers in the artifact, and origins, for the lines of the kernel's C++ function."""
    first, last = kernel.lines
    opening = next((number for number in range(first, last) if rows[number].startswith('extern "C"')), last)
    inside = [number for number in range(opening + 1, last) if rows[number - 1].strip()]
    origins: dict[int, list[Ids]] = {}
    for definition in definitions:
        for number, ids in _place_rows(inside, rows, definition):
            origins.setdefault(number, []).append(ids)
    yield from ((number, _union(origins.get(number, ()))) for number in inside)


def _place_rows(inside: Sequence[int], rows: Sequence[str], definition: Definition) -> Iterator[tuple[int, Ids]]:
    """Match the rows of a definition to the artifact's lines, in order.

    Rows of stores that were eliminated have no line, and are skipped.
    """
    start = 0
    for text, ids in definition.rows:
        place = next((place for place in range(start, len(inside)) if rows[inside[place] - 1].strip() == text), None)
        if place is not None:
            yield inside[place], ids
            start = place + 1


def _statements(source: Mapping[int, str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each statement of the `@triton.jit` functions as (function name, line numbers)."""
    function = ""
    jitted = False
    depth = 0
    pending: list[int] = []
    for number, row in source.items():
        if not row.strip():
            continue
        if depth == 0 and not row[0].isspace():
            opening = _FUNCTION.match(row) if jitted else None
            function = opening[1] if opening else ""
            jitted = row.startswith("@triton.jit")
        if function:
            pending.append(number)
            depth += sum(row.count(bracket) for bracket in "([{") - sum(row.count(bracket) for bracket in ")]}")
            if depth <= 0:
                yield function, tuple(pending)
                pending, depth = [], 0


def _statement_of(
    function: str, numbers: tuple[int, ...], source: Mapping[int, str], definitions: Sequence[Definition]
) -> _Statement:
    rows = [source[number].strip() for number in numbers]
    keys = [line_key(row) for row in rows if not _PUNCTUATION.fullmatch(row)]
    text = " ".join(rows)
    found = [known.names[function] for known in definitions if function in known.names]
    found = found or [known.lines[key] for known in definitions for key in keys if key in known.lines]
    found = found or [known.names[name] for known in definitions for name in _NAME.findall(text) if name in known.names]
    return _Statement(numbers, text, _union(found or [known.whole for known in definitions]))


def _resolve_temporaries(statements: Sequence[_Statement]) -> list[_Statement]:
    """Give each temporary without origins the origins of the statement that uses it."""
    users: dict[str, Ids] = {}
    found = []
    for statement in reversed(statements):
        assigned = _ASSIGNED.match(statement.text)
        origins = statement.origins
        if not origins and assigned and assigned[1].startswith("tmp"):
            origins = users.get(assigned[1], ())
        if origins:
            users.update(dict.fromkeys(_NAME.findall(statement.text), origins))
        found.append(_Statement(statement.rows, statement.text, origins))
    return found[::-1]


def _union(groups: Iterable[Ids]) -> Ids:
    return tuple(dict.fromkeys(identity for group in groups for identity in group))
