"""Compare two explorations' captures: breaks, guards and recompilations that are gone or new, and merged graphs.

Editing code shifts line numbers and renumbers frames, so facts are matched by content: a break by its kind and code, a
guard by its words, a recompilation by its cause and argument, a graph by its source lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import pandas as pd

from compiler.capture.function_names import function_name
from compiler.record import GraphBreak, Guard, Recompile, Record
from compiler.record.plain_text import one_line, pluralize
from explorer.reading.cause import break_reason, closest_failure, culprit_code, recompile_reason, users_place
from explorer.reading.plain_text import clip
from explorer.reading.provenance import innermost_lines, place_text
from explorer.run.tables import op_counts

FACTS_SHOWN = 8
GONE, NEW = "gone", "new"

Fact = TypeVar("Fact", GraphBreak, Guard, Recompile)


def changed_breaks(before: Record, after: Record) -> pd.DataFrame:
    """One row per graph break on only one side; `change` is "gone" or "new"."""
    rows = [
        (change, users_place(found), one_line(culprit_code(found)), break_reason(found), found.kind)
        for change, found in _changes(before.breaks, after.breaks, _break_key)
    ]
    return _table(rows, ("change", "where", "code", "what", "kind"))


def changed_guards(before: Record, after: Record) -> pd.DataFrame:
    """One row per guard on only one side, in words; `internal` guards check internals of modules and torch."""
    rows = [
        (change, guard.argument, _guard_words(guard), place_text(guard.file, guard.line), guard.internal)
        for change, guard in _changes(before.guards, after.guards, _guard_words)
    ]
    return _table(rows, ("change", "argument", "words", "where", "internal"))


def changed_recompiles(before: Record, after: Record) -> pd.DataFrame:
    """One row per recompilation on only one side."""
    rows = [
        (change, function_name(found.function), found.cause, found.argument, _failure_words(found))
        for change, found in _changes(before.recompiles, after.recompiles, _recompile_key)
    ]
    return _table(rows, ("change", "function", "cause", "argument", "words"))


def merged_graphs(before: Record, after: Record) -> dict[str, tuple[str, ...]]:
    """Merged graphs: for a graph of the second side (`0/0`), the several graphs of the first side that it contains.

    Graphs are matched by source lines. A graph with no unchanged line counts as merged if the second side has only one
    graph. Only the first compilation of each code object counts.
    """
    old, new = (_lines_of_graphs(record) for record in (before, after))
    best = {graph: max(new, key=lambda name: (lines & new[name]).total(), default="") for graph, lines in old.items()}
    certain = {graph for graph, name in best.items() if name and (old[graph] & new[name]).total()}
    alone = bool(certain) and len(new) == 1
    parts = {
        name: tuple(graph for graph in best if best[graph] == name and (alone or graph in certain)) for name in new
    }
    return {name: graphs for name, graphs in parts.items() if len(graphs) > 1}


def graph_counts(record: Record) -> tuple[int, ...]:
    """Number of ops in each captured graph."""
    return tuple(op_counts(artifact).total() for artifact in record.of_stage("captured"))


def change_lines(before: Record, after: Record, names: tuple[str, str]) -> list[str]:
    """The differences as lines of text; empty if the captures are the same."""
    lines = [*_graph_lines(before, after, names)]
    lines += _fact_lines("graph breaks", before.breaks, after.breaks, _break_key, _break_line)
    lines += _fact_lines("recompilations", before.recompiles, after.recompiles, _recompile_key, recompile_reason)
    lines += _fact_lines("guards of all compilations", _own(before), _own(after), _guard_words, _guard_words)
    return lines


def _graph_lines(before: Record, after: Record, names: tuple[str, str]) -> Iterator[str]:
    counts = [graph_counts(record) for record in (before, after)]
    if counts[0] == counts[1]:
        return
    sides = (f"{len(side)} ({', '.join(map(str, side))} ops)" if side else "none" for side in counts)
    yield f"captured graphs: {' -> '.join(sides)}"
    for graph, parts in merged_graphs(before, after).items():
        yield f"  {', '.join(parts)} of {names[0]} are one in {names[1]}: {graph}"
    for graph, parts in merged_graphs(after, before).items():
        yield f"  {graph} of {names[0]} is cut up in {names[1]}: {', '.join(parts)}"


def _fact_lines(
    name: str,
    before: Sequence[Fact],
    after: Sequence[Fact],
    key: Callable[[Fact], Hashable],
    told: Callable[[Fact], str],
) -> Iterator[str]:
    changes = list(_changes(before, after, key))
    if not changes:
        return
    gone = sum(change == GONE for change, _ in changes)
    yield f"{name}: {len(before)} -> {len(after)}, {gone} gone, {len(changes) - gone} new"
    lines = Counter(f"  {'-' if change == GONE else '+'} {clip(told(fact), 110)}" for change, fact in changes)
    for line, number in islice(lines.items(), FACTS_SHOWN):
        yield f"{line}  ({number} times)" if number > 1 else line
    if left := sum(islice(lines.values(), FACTS_SHOWN, None)):
        yield f"  … and {pluralize(left, 'change')} more"


def _changes(
    before: Iterable[Fact], after: Iterable[Fact], key: Callable[[Fact], Hashable]
) -> Iterator[tuple[str, Fact]]:
    """The facts on only one side, each with "gone" or "new". Repeated facts are compared by their counts.

    Of each side, those that the other side has too, but less often, come last.
    """
    sides = [list(before), list(after)]
    counts = [Counter(map(key, side)) for side in sides]
    for change, facts, mine, others in zip((GONE, NEW), sides, counts, counts[::-1], strict=True):
        extra = mine - others
        for fact in sorted(facts, key=lambda fact: key(fact) in others):
            if extra[key(fact)] > 0:
                extra[key(fact)] -= 1
                yield change, fact


def _break_key(found: GraphBreak) -> Hashable:
    return found.kind, one_line(culprit_code(found))


def _break_line(found: GraphBreak) -> str:
    return f"{users_place(found)}  {break_reason(found)}"


def _recompile_key(found: Recompile) -> Hashable:
    blamed = found.cause or " ".join(found.reasons)
    return function_name(found.function), blamed, found.argument


def _failure_words(found: Recompile) -> str:
    closest = closest_failure(found)
    return one_line(closest.words if closest else "; ".join(found.reasons))


def _guard_words(guard: Guard) -> str:
    return one_line(guard.words or " and ".join(guard.code))


def _own(record: Record) -> list[Guard]:
    return [guard for guard in record.guards if not guard.internal]


def _lines_of_graphs(record: Record) -> dict[str, Counter[str]]:
    """Source lines of each captured graph's calls, as text with counts, by graph; first compilations only."""
    known = innermost_lines(record)
    text = {entity.id: entity.label for artifact in record.of_stage("source") for entity in artifact.entities}
    names = {name for frame in record.frames if not frame.compilation for name in frame.graphs}
    first = [artifact for artifact in record.of_stage("captured") if artifact.id in names]
    reached = ((graph.graph, {line for item in graph.entities for line in known.get(item.id, ())}) for graph in first)
    return {graph: Counter(text.get(line, line) for line in lines) for graph, lines in reached}


def _table(rows: Sequence[tuple[object, ...]], columns: tuple[str, ...]) -> pd.DataFrame:
    dtypes = {"change": "category", "internal": "boolean"}
    return pd.DataFrame(list(rows), columns=list(columns)).astype(
        {name: dtypes.get(name, "string") for name in columns}
    )
