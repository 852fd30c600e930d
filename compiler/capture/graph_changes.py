"""What a recompilation changed in the captured graph, against that of the code that came closest, in a few words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from compiler.record import Artifact

SHOWN = 3
_TYPE = re.compile(r': "[^"]*"')
_SYMBOL = re.compile(r"\b(?:z?[su]f?)\d+\b")
_SIZES = re.compile(r'"[a-z]+\d*\[[^\]]*\]|"Sym\([^)]*\)')


def graph_change(before: Artifact, after: Artifact) -> str:
    """'2 ops more (operator.add, operator.mul)', 'the same ops; s77 left open'."""
    first, second = _ops(before), _ops(after)
    parts = [_listed(second - first, "more"), _listed(first - second, "fewer")]
    if not any(parts):
        parts = [_same(before, after)]
    opened, fixed = _symbols(after) - _symbols(before), _symbols(before) - _symbols(after)
    parts += [
        f"{', '.join(sorted(names))} {word}" for names, word in ((opened, "left open"), (fixed, "fixed")) if names
    ]
    return "; ".join(part for part in parts if part)


def _ops(graph: Artifact) -> Counter[str]:
    return Counter(
        str(entity.attrs.get("target") or entity.label) for entity in graph.entities if entity.kind == "call"
    )


def _listed(ops: Counter[str], word: str) -> str:
    """'2 ops more (operator.add, operator.mul)'."""
    count = ops.total()
    if not count:
        return ""
    names = [name if times == 1 else f"{times} × {name}" for name, times in sorted(ops.items())]
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f"{count} {'op' if count == 1 else 'ops'} {word} ({shown})"


def _same(before: Artifact, after: Artifact) -> str:
    """How two graphs that call the same ops differ all the same."""
    if before.text == after.text:
        return "the same graph"
    lines = [[_TYPE.sub("", line) for line in _code(graph)] for graph in (before, after)]
    if lines[0] == lines[1]:
        return "the same ops on other sizes or types"
    return "the same ops with other arguments"


def _code(graph: Artifact) -> Iterator[str]:
    """The lines of calls; what the inputs are is told by the guards."""
    calls = {entity.id for entity in graph.entities if entity.kind == "call"}
    for number, line in enumerate(graph.text.splitlines(), 1):
        if calls.intersection(graph.lines.get(number, ())):
            yield line


def _symbols(graph: Artifact) -> set[str]:
    """The sizes and numbers that a graph leaves open."""
    return {name for part in _SIZES.findall(graph.text) for name in _SYMBOL.findall(part)}
