"""Map of a program: a chart for the view, and a table with bars of letters for text and static HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from compiler.record import Fix, GraphBreak, Record
from compiler.record.plain_text import one_line, pluralize, size_text
from explorer.findings.breaks import break_id
from explorer.findings.call_tree import CallTree, Cell, Function, Gap, cells_of
from explorer.findings.map_states import ABSENT, BREAK, GRAPHS, HIDDEN, PLAIN, State, states_of
from explorer.findings.timing.heat import heats
from explorer.findings.xray import site_id
from explorer.reading.plain_text import columns
from explorer.reading.provenance import place_text
from explorer.reading.shapes import seconds_text
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Chart, Row, Table, Words, plain
from explorer.render.places import line_link

WIDTH = 64
"""Maximum number of characters of a bar in text."""
MANY = 24
"""On a map with more functions, functions without breaks and without plain Python are folded at first."""
LONGEST = 100
"""Maximum number of characters of a line's code on the map."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SIGNS = {ABSENT: "", PLAIN: "░", BREAK: "│", HIDDEN: "┊"}
LEGEND = (
    "A letter is a line of code, and names its graph; ░ is a line in plain Python, │ a break, "
    "┊ a break that shows only when others are gone"
)


def program_chart(record: Record, prefix: str, known: Collection[str]) -> Chart:
    """Chart of the map of a record's program. `prefix` is the first part of the entity ids of graphs and functions;
    only ids in `known` are used.
    """
    return _ProgramChart(record, prefix, known).chart()


class _ProgramChart:
    """Builder of the chart: cells, functions and states of a program, with the ids of their entities."""

    def __init__(self, record: Record, prefix: str, known: Collection[str]) -> None:
        self.record, self.prefix, self.known = record, prefix, known
        self.tree = CallTree(record)
        self.lines = SourceLines(record)
        self.cells, self.ranges = cells_of(self.tree)
        self.states = states_of(self.cells, record)
        self.titles = {artifact.id: artifact.title for artifact in record.of_stage("source")}
        self.installed = {each.id for each in record.of_stage("source") if each.attrs.get("installed")}
        self.artifacts = {artifact.graph: artifact.id for artifact in record.of_stage("captured")}

    def chart(self) -> Chart:
        """Chart with the data of the view, and the table for the other renderers."""
        data = {
            "cells": [*self._cells()],
            "functions": [self._function(*each) for each in self.ranges],
            "states": [self._state(number, state) for number, state in enumerate(self.states)],
            "timed": bool(self.record.line_times),
        }
        return Chart("program_map", data, self._table())

    # Cells

    def _cells(self) -> Iterator[dict[str, Any]]:
        lines = Counter(self._line(cell) for cell in self.cells if cell.gap is None)
        own = {heat.line: heat.own_seconds("compiled") or heat.own_seconds("eager") for heat in heats(self.record)}
        for cell in self.cells:
            line = self._line(cell)
            if cell.gap is not None:
                ids = self._gap_ids(cell.gap) or [line]
                lost = sum(max(found.lost_seconds or 0.0, 0.0) for found in cell.gap.seen)
                yield {"line": self._number(cell), "ids": ids, "seconds": lost, "gap": gap_words(cell.gap)}
                continue
            own_graphs = cell.graphs.get(0, ())
            graphs = [(graph, ops, f"{self.prefix}.{self.artifacts.get(graph, '')}") for graph, ops in own_graphs]
            yield {
                "line": self._number(cell),
                "code": one_line(self.tree.code(cell.function.key[0], cell.row))[:LONGEST],
                "ids": [line] if line else [],
                "seconds": own.get(line, 0.0) / lines[line],
                "graphs": [graph for graph, _, _ in graphs],
                "ops": sum(ops for _, ops, _ in graphs),
                "parts": [part for _, _, part in graphs if part in self.known],
            }

    def _gap_ids(self, gap: Gap) -> list[str]:
        return [*([site_id(gap.site)] if gap.site else []), *map(break_id, gap.seen)]

    def _number(self, cell: Cell) -> int:
        return self.tree.number(cell.function.key[0], cell.row)

    def _line(self, cell: Cell) -> str:
        return self.lines.id_of(self.titles.get(cell.function.key[0], ""), self._number(cell))

    # Functions

    def _function(self, function: Function, start: int, end: int) -> dict[str, Any]:
        artifact, first, _, name = function.key
        title, number = self.titles.get(artifact, artifact), self.tree.number(artifact, first)
        return {
            "name": name or title,
            "place": msgspec.to_builtins(line_link(title, number, self.lines)),
            "depth": len(list(function.with_callers())) - 1,
            "from": start,
            "to": end,
            "ids": self._function_ids(function),
            "open": self._is_open(function, start, end),
            "why": next((one_line(each.reason) for each in function.frames if each.outcome != "compiled"), ""),
        }

    def _is_open(self, function: Function, start: int, end: int) -> bool:
        """Whether a function is unfolded at first. Functions without breaks and plain Python are folded if they are
        from an installed package or if the map has more than `MANY` functions; roots are never folded.
        """
        found = {state for each in self.states for state in each.cells[start:end]}
        is_calm = not found & {PLAIN, BREAK, HIDDEN}
        is_package = function.key[0] in self.installed and function.parent is not None
        return not (is_calm and (is_package or (function.parent is not None and len(self.ranges) > MANY)))

    def _function_ids(self, function: Function) -> list[str]:
        codes = (frame.id if frame.code < 0 else str(frame.code) for frame in function.frames)
        return [name for name in dict.fromkeys(f"{self.prefix}.{code}" for code in codes) if name in self.known]

    # States

    def _state(self, number: int, state: State) -> dict[str, Any]:
        words = [*self._state_words(number, state)]
        return {"cells": state.cells, "count": state.count, "title": self._title(number), "words": words}

    def _title(self, number: int) -> str:
        count = self.states[number].count
        if not number:
            return "as it is"
        return f"all {pluralize(count, 'fix', 'fixes')}" if count == self._most else f"{count} of {self._most} fixes"

    @property
    def _most(self) -> int:
        """Number of the fixes that work together."""
        return sum(fix.together for fix in self._fixes)

    def _state_words(self, number: int, state: State) -> Iterator[str]:
        """Sentences on a state: its counts, and the fix that it adds."""
        counts = [_graph_words(state), _break_words(state)]
        if hidden := state.cells.count(HIDDEN):
            counts.append(f"{hidden} more behind {'it' if state.cells.count(BREAK) == 1 else 'them'}")
        yield f"{', '.join(counts)}, {pluralize(state.cells.count(PLAIN), 'line')} in plain Python."
        if state.site is not None:
            fix = next(each for each in self._fixes if each.site == state.site.id)
            place = place_text(state.site.file, state.site.line)
            words = fix.suggestion.text.removeprefix("Or ") if fix.suggestion else fix.words
            yield f"Fix {state.count} at {place}, {fix.state}: {words[:1].upper()}{words[1:]}"
        if hint := self._last_words(state) if number else self._hint():
            yield hint

    def _hint(self) -> str:
        """Suggestion to run an x-ray or to try fixes, or a note that no fixes work together; "" if none applies."""
        xray = self.record.xray
        if xray is None:
            return "`run.xray()` looks behind the breaks." if self.record.breaks else ""
        if xray.left is None:
            return "`run.xray().try_fixes()` adds the program with fixes." if xray.sites else ""
        if len(self.states) > 1 or not xray.sites:
            return ""
        return (
            "This record has no capture of the program with fixes."
            if self._most
            else "No fixes were found that work together."
        )

    def _last_words(self, state: State) -> str:
        """Note on the state with all fixes, if the search for what is left with them did not come to its end."""
        is_open = self.record.xray is not None and self.record.xray.left_problems and state.count == self._most
        return "The search for what is left ended early: more breaks may follow." if is_open else ""

    @property
    def _fixes(self) -> Sequence[Fix]:
        return self.record.xray.fixes if self.record.xray else ()

    # As a table

    def _table(self) -> Table:
        shown = [self.states[0], self.states[-1]] if len(self.states) > 1 else [self.states[0]]
        titles = [self._title(self.states.index(state)) for state in shown]
        rows = [Row(("function", "place", *titles)), *self._rows(shown)]
        lines = columns([tuple(map(plain, row.cells)) for row in rows])
        worded = tuple(msgspec.structs.replace(row, words=line) for row, line in zip(rows, lines, strict=True))
        return Table((), worded, caption=LEGEND, label="Map of the program")

    def _rows(self, shown: Sequence[State]) -> Iterator[Row]:
        """A row for each function that is not inside a folded function."""
        closed = 0
        for function, start, end in self.ranges:
            if start < closed:
                continue
            found = self._function(function, start, end)
            closed = 0 if found["open"] else end
            inside = sum(start <= other[1] < other[2] <= end for other in self.ranges) - 1
            more = f" and {pluralize(inside, 'function')} inside" if inside and not found["open"] else ""
            bars: tuple[Words, ...] = tuple(_bar(state, start, end) for state in shown)
            yield Row(
                ("  " * found["depth"] + found["name"] + more, found["place"]["words"], *bars), tuple(found["ids"])
            )


def _graph_words(state: State) -> str:
    """Number of graphs in words, with the number of compilations if that is larger."""
    count = len(state.graphs)
    again = f" ({state.compilations} compilations)" if state.compilations > count else ""
    return f"{pluralize(count, 'graph')}{again}"


def _break_words(state: State) -> str:
    """Number of breaks in words, with the number of their places if that is smaller."""
    places = state.cells.count(BREAK)
    at = f" at {pluralize(places, 'place')}" if 0 < places < state.breaks else ""
    return f"{pluralize(state.breaks, 'break')}{at}"


def _bar(state: State, start: int, end: int) -> str:
    """Cells of a function as characters, indented by the cells before them; long bars are shortened."""
    numbers = state.graphs
    signs = [_SIGNS.get(cell) if cell < GRAPHS else _LETTERS[numbers.index(cell) % 26] for cell in state.cells]
    own = [" " if not start <= at < end else sign or "" for at, sign in enumerate(signs) if sign]
    if len(own) <= WIDTH:
        return "".join(own).rstrip()
    parts = [own[at * len(own) // WIDTH : (at + 1) * len(own) // WIDTH] for at in range(WIDTH)]
    return "".join(next((sign for sign in part if sign in "│┊"), part[0]) for part in parts).rstrip()


def gap_words(gap: Gap) -> str:
    """Code, reason and costs of a break in words."""
    known = gap.site or gap.left or gap.first
    what = (known.what or known.kind) if known else ""
    code = f"`{one_line(gap.span.code)}`" if gap.span and gap.span.code else ""
    reason = what if code and what.startswith(code) else f"{code}: {what}" if code else what
    return "; ".join((one_line(reason).removesuffix("."), *gap_costs(gap.seen)))


def gap_costs(breaks: Sequence[GraphBreak]) -> Iterator[str]:
    """Costs of the breaks in one place: time if measured, tensors handed back to Python, lines left to plain Python."""
    if lost := sum(found.lost_seconds or 0.0 for found in breaks):
        yield f"{'costs' if lost > 0 else 'saves'} {seconds_text(abs(lost))} a call"
    if crossing := sum(found.crossing for found in breaks):
        size = sum(found.crossing_bytes for found in breaks)
        yield f"{pluralize(crossing, 'tensor')}{f' ({size_text(size)})' if size else ''} handed back to Python"
    if any(found.outcome in ("plain", "skipped") for found in breaks):
        yield "leaves lines around it to plain Python"
