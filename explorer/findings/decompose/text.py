"""Decompositions of one operator as text: operator counts, numbers against eager, and a tree for each level."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from compiler.decompose.levels import ABOUT
from compiler.decompose.one_op import Decomposition, Level
from compiler.decompose.reasons import A_PRIM, NOT_COMPOSITE
from compiler.decompose.tree import OpCall, Source, TensorType
from compiler.numerics.policy.by_dtype import Numbers
from compiler.record.plain_text import pluralize
from explorer.reading.plain_text import WIDTH, clip
from explorer.reading.shapes import error_text, tensor_type

_BRANCH, _LAST, _DOWN, _NONE = "├─ ", "└─ ", "│  ", "   "
_NO_REASON = (A_PRIM, NOT_COMPOSITE)


def decomposition_text(found: Decomposition) -> str:
    """Full text of a decomposition, for a terminal."""
    parts = [heading(found), "\n".join(number_lines(found)), *(level_text(level) for level in found.levels)]
    return "\n\n".join(parts)


def heading(found: Decomposition) -> str:
    """Heading: the call, the location of its Python function, and a note on its inputs."""
    lines = [call_text(found)]
    lines += [f"  {found.source}"] if found.source else []
    lines += textwrap.wrap(found.note, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def call_text(found: Decomposition) -> str:
    """Format the call: `aten.gelu(f32[4, 8], approximate='tanh') -> f32[4, 8]`."""
    given = [*map(value_text, found.arguments), *(f"{name}={value_text(value)}" for name, value in found.keywords)]
    return f"{found.name}({', '.join(given)})" + arrow(found.results)


def value_text(value: Any) -> str:
    """Format an argument: tensors by type, functions by name, all else by `repr`."""
    if isinstance(value, TensorType):
        return type_text(value)
    if isinstance(value, list | tuple):
        inside = ", ".join(map(value_text, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return getattr(value, "__qualname__", None) or repr(value)


def type_text(tensor: TensorType) -> str:
    """Format a tensor type: `f32[4, 8]`."""
    return tensor_type({"dtype": tensor.dtype, "shape": tensor.shape})


def arrow(results: Iterable[TensorType]) -> str:
    types = ", ".join(map(type_text, results))
    return f" -> {types}" if types else ""


def number_lines(found: Decomposition) -> Iterator[str]:
    """Lines of a table with one row for each level."""
    yield f"{'level':<10} {'ops':>4}  {'different':>9}  against eager"
    for level in found.levels:
        ops = level.ops()
        head = f"{level.name:<10} {len(ops):>4}  {len(set(ops)):>9}  "
        texts = [numbers_text(item) for item in level.numbers] or ["nothing to compare"]
        yield from textwrap.wrap("; ".join(dict.fromkeys(texts)), WIDTH, initial_indent=head,
                                 subsequent_indent=" " * len(head))  # fmt: skip


def numbers_text(numbers: Numbers) -> str:
    """Comparison with eager in one dtype, in words."""
    if numbers.verdict in ("equal", "not comparable"):
        return f"{numbers.dtype} {numbers.verdict}".lstrip() + (f": {numbers.note}" if numbers.note else "")
    if numbers.max_relative is None:
        return f"{numbers.dtype} {numbers.verdict}: {numbers.note}"
    errors = (
        f"largest error {error_text(numbers.max_absolute)}, {error_text(numbers.max_relative)} of the largest magnitude"
    )
    return f"{numbers.dtype} {numbers.verdict}: {errors} (allowed {numbers.tolerance:g})"


def level_text(level: Level) -> str:
    """Trees of a level, and why the remaining operators are not decomposed."""
    ops = level.ops()
    lines = [f"{level.name} ({pluralize(len(ops), 'op')}): {ABOUT[level.name]}"]
    for root in level.roots:
        lines += [f"  {line}" for line in tree_lines(root)]
    return "\n".join([*(clip(line, 2 * WIDTH) for line in lines), *stay_lines(level)])


def tree_lines(call: OpCall, first: str = "", rest: str = "") -> Iterator[str]:
    """Lines of a call and, below it, the calls it decomposes to."""
    by = f"  by {call.source}" if call.source else ""
    yield f"{first}{call.op}{arrow(call.results)}{by}"
    for index, inner in enumerate(call.calls):
        is_last = index == len(call.calls) - 1
        yield from tree_lines(inner, rest + (_LAST if is_last else _BRANCH), rest + (_NONE if is_last else _DOWN))


def stay_lines(level: Level) -> Iterator[str]:
    """Lines on the operators that are not decomposed, one entry for each reason."""
    reasons = stays(level)
    if reasons:
        yield "  left as they are:"
    for ops, reason in reasons:
        yield from textwrap.wrap(f"{ops}: {reason}", WIDTH, initial_indent="    ", subsequent_indent="      ",
                                 break_long_words=False)  # fmt: skip


def stays(level: Level) -> list[tuple[str, str]]:
    """Operators that are not decomposed, as (operators, reason) pairs. Operators that need no reason are left out."""
    found: dict[str, dict[str, None]] = {}
    for leaf in (leaf for root in level.roots for leaf in root.leaves()):
        if leaf.why not in _NO_REASON:
            found.setdefault(leaf.why, {})[leaf.op] = None
    return [] if level.name == "torch" else [(", ".join(ops), reason) for reason, ops in found.items()]


def sources_text(sources: Sequence[tuple[str, Source]]) -> str:
    """Source of each decomposition once, preceded by its operator and location."""
    texts = {source: f"# {op}: {source}\n{textwrap.dedent(source.text)}".rstrip() for op, source in sources}
    return "\n\n".join(texts.values())
