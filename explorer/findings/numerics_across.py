"""The comparison of the values of two runs as a document: the verdict, what differs, and each operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.numerics.across.comparison import Comparison, Pair
from compiler.record.plain_text import pluralize
from explorer.reading.shapes import error_text
from explorer.render.document import Document, Fold, Items, Parts, Row, Section, Table, Text

HEAD = ("operation", "module", "line", "dtype", "verdict", "off by", "of the largest", "note")
SHOWN = 12


def comparison_document(found: Comparison, names: tuple[str, str]) -> Document:
    """The document of a comparison; `names` are those of the two files."""
    return tuple(_parts(found, names))


def _parts(found: Comparison, names: tuple[str, str]) -> Iterator[Parts]:
    yield Text(found.verdict, style="lead")
    yield Text(f"{names[0]} is compared with {names[1]}; {_counts(found)}")
    if found.settings:
        items = tuple(f"{name}: {one or 'none'} in the first, {other or 'none'} in the second"
                      for name, (one, other) in found.settings.items())  # fmt: skip
        yield Section((Items(items, bullet="- "),), "run in another way")
    if found.inputs:
        yield Section((Items(_some(found.inputs), bullet="- "),), "inputs and weights that differ")
    if found.changed:
        words = tuple(f"{_place(pair)}: {pair.change}" for pair in found.changed[:SHOWN])
        more = (f"… and {len(found.changed) - SHOWN} more",) if len(found.changed) > SHOWN else ()
        yield Section((Items((*words, *more), bullet="- "),), "operations that differ")
    first = found.first
    if first is not None:
        at = found.pairs.index(first)
        near = found.pairs[max(at - 3, 0) : at + 4]
        yield Section((_table(near),), "around the first divergence")
    if found.notes:
        yield Section((Items(found.notes, bullet="- "),), "notes")
    yield Fold("all operations", (_table(found.pairs),))


def _counts(found: Comparison) -> str:
    counts: dict[str, int] = {}
    for pair in found.pairs:
        if pair.check is not None:
            counts[pair.verdict] = counts.get(pair.verdict, 0) + 1
    order = ("equal", "close", "differs", "not comparable")
    said = [f"{counts[name]:,} {name}" for name in order if name in counts]
    return f"{pluralize(sum(counts.values()), 'value')}: {', '.join(said) or 'none'}"


def _some(pairs: tuple[Pair, ...]) -> tuple[str, ...]:
    more = (f"… and {len(pairs) - SHOWN} more",) if len(pairs) > SHOWN else ()
    return (*(f"{pair.operation.op}, off by {_error(pair)}" for pair in pairs[:SHOWN]), *more)


def _place(pair: Pair) -> str:
    operation = pair.operation
    return f"{operation.op} at {operation.place}" if operation.place else operation.op


def _error(pair: Pair) -> str:
    return error_text(pair.check.max_absolute) if pair.check is not None else ""


def _table(pairs: tuple[Pair, ...]) -> Table:
    return Table(HEAD, tuple(Row(_cells(pair)) for pair in pairs), right=(5, 6))


def _cells(pair: Pair) -> tuple[str, ...]:
    operation, check = pair.operation, pair.check
    line = f"{operation.file}:{operation.line}" if operation.file else ""
    relative = check.max_relative if check is not None else None
    note = "; ".join(filter(None, [pair.change if check is not None else "", check.note if check is not None else "",
                                   "" if operation.is_whole else "blocks and samples"]))  # fmt: skip
    off = "" if check is None or check.verdict == "equal" else error_text(check.max_absolute)
    share = "" if not relative else f"{relative:.1e}"
    return operation.op, operation.module, line, operation.dtype, pair.verdict, off, share, note


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """One value of two runs, as an item of an answer of kind `numerics`.

    `verdict` is that of the comparison, or in which run alone it is. `change` says how the operation itself changed.
    `max_relative` is relative to the largest magnitude; None if there are no finite numbers to compare.
    """

    id: str
    kind: str
    op: str
    module: str
    file: str
    line: int
    verdict: str
    change: str
    first: str | None
    second: str | None
    max_absolute: float | None
    max_relative: float | None
    note: str


def comparison_items(found: Comparison) -> list[ComparedValue]:
    """The values of a comparison in order, for an answer."""
    return [_item(pair) for pair in found.pairs]


def _item(pair: Pair) -> ComparedValue:
    of, check = pair.operation, pair.check
    return ComparedValue(
        pair.id, of.kind, of.op, of.module, of.file, of.line, pair.verdict, pair.change,
        pair.first.id if pair.first else None, pair.second.id if pair.second else None,
        check.max_absolute if check else None, check.max_relative if check else None, check.note if check else "",
    )  # fmt: skip
