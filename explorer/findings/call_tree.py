"""Call tree of a record's program: the source lines of each function, separately for each place that calls it.

The tree holds several captures of the program: the record's own, and those of an x-ray with fixes. It is flattened to
a list of cells in source order; the lines of a called function come before the line that calls it. Each function of the
tree is a range of these cells.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from compiler.capture.function_names import function_name
from compiler.record import Frame, GraphBreak, Record, Site, Span
from explorer.reading.cause import users_span
from explorer.reading.source_lines import Place, SourceLines
from explorer.reading.source_marks import drop_callers, function_in, function_of, rows_of_lines

MOST_FUNCTIONS = 400
"""Maximum number of functions on a map; code of further functions counts as the line that calls them."""
Key = tuple[str, int, int, str]
"""Key of a function: source artifact (or file, if its source is not shown), first row, last row, name."""


@dataclass
class Gap:
    """A place with a graph break in one of the captures. `breaks` is capture -> its breaks there.

    `site` is the x-ray's site there, `left` is the site if it remains with all fixes.
    """

    span: Span | None
    breaks: dict[int, list[GraphBreak]] = field(default_factory=dict)
    site: Site | None = None
    left: Site | None = None

    @property
    def seen(self) -> Sequence[GraphBreak]:
        """The breaks in the unchanged program."""
        return self.breaks.get(0, ())

    @property
    def first(self) -> GraphBreak | None:
        """The first break in the first capture that has one."""
        return next((each[0] for _, each in sorted(self.breaks.items())), None)


@dataclass
class Line:
    """A source line of a function in the call tree, with its breaks and the functions that it calls.

    `graphs` is capture -> graph -> number of the line's ops in it. `plain` are the captures in which the line is known
    to run as plain Python.
    """

    graphs: dict[int, dict[str, int]] = field(default_factory=dict)
    plain: set[int] = field(default_factory=set)
    gaps: dict[tuple[int, int, str], Gap] = field(default_factory=dict)
    calls: dict[Key, Function] = field(default_factory=dict)

    def mark_plain(self, capture: int) -> None:
        """Mark the line as plain Python in a capture, unless it is in a graph there."""
        if capture not in self.graphs:
            self.plain.add(capture)


@dataclass
class Function:
    """A function at one position in the call tree. `row` is the row of the calling line in `parent`.

    `frames` are the frames of the unchanged program.
    """

    key: Key
    parent: Function | None = None
    row: int = 0
    lines: dict[int, Line] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)

    def line(self, row: int) -> Line:
        return self.lines.setdefault(row, Line())

    def with_callers(self) -> Iterator[Function]:
        """The function and its callers, innermost first."""
        yield self
        if self.parent is not None:
            yield from self.parent.with_callers()

    @property
    def root(self) -> Function:
        """The outermost caller; the function itself without a caller."""
        return self.parent.root if self.parent else self


Spot = tuple[Function, int]
Graphs = tuple[tuple[str, int], ...]
Range = tuple[Function, int, int]
"""A function, the index of its first cell, and the index after its last cell."""


@dataclass(frozen=True)
class Cell:
    """A line of a function, or a break (`gap`). A line that is in graphs of several code objects has a cell for each.

    `graphs` is capture -> the graphs of one code object, each with the line's number of ops in it. `plain` are the
    captures in which the line runs as plain Python.
    """

    function: Function
    row: int
    graphs: Mapping[int, Graphs] = field(default_factory=dict)
    plain: Set[int] = frozenset()
    gap: Gap | None = None


def cells_of(tree: CallTree) -> tuple[list[Cell], list[Range]]:
    """The cells of a call tree, and the range of each function, callers first."""
    cells: list[Cell] = []
    ranges: list[Range] = []
    for root in tree.roots.values():
        _add_cells(root, cells, ranges)
    return cells, ranges


def _add_cells(function: Function, cells: list[Cell], ranges: list[Range]) -> None:
    place, start = len(ranges), len(cells)
    ranges.append((function, start, start))
    for row, line in sorted(function.lines.items()):
        for called in line.calls.values():
            _add_cells(called, cells, ranges)
        cells += line_cells(function, row, line)
    ranges[place] = (function, start, len(cells))


def line_cells(function: Function, row: int, line: Line) -> Iterator[Cell]:
    """Cells of a line: one per code object with graphs of it, or one for plain Python, alternating with its breaks."""
    groups = {capture: _by_code(graphs) for capture, graphs in line.graphs.items()}
    count = max([len(each) for each in groups.values()], default=int(bool(line.plain)))
    parts = [
        Cell(function, row, {capture: each[min(at, len(each) - 1)] for capture, each in groups.items()}, line.plain)
        for at in range(count)
    ]
    gaps = [Cell(function, row, gap=gap) for _, gap in sorted(line.gaps.items(), key=lambda item: item[0])]
    for each in itertools.zip_longest(parts, gaps):
        yield from filter(None, each)


def _by_code(graphs: Mapping[str, int]) -> list[Graphs]:
    """Graphs with their numbers of ops, grouped by code object."""
    groups: dict[int, Graphs] = {}
    for graph, ops in graphs.items():
        groups[code_of(graph)] = (*groups.get(code_of(graph), ()), (graph, ops))
    return list(groups.values())


def code_of(graph: str) -> int:
    """Number of the code object that a graph was captured from: 3 for `3/1`; -1 if unknown."""
    digits = graph.partition("/")[0]
    return int(digits) if digits.isdigit() else -1


@dataclass(frozen=True)
class Capture:
    """A capture of the program: its frames, breaks and graphs. `stacks` has (artifact id, graph, call stacks with
    numbers of ops) for each graph.
    """

    frames: Sequence[Frame]
    breaks: Sequence[GraphBreak]
    stacks: Sequence[tuple[str, str, Sequence[tuple[list[Place], int]]]]


def captures_of(record: Record) -> Iterator[Capture]:
    """Yield the capture of a record, then the captures of its x-ray with fixes."""
    rows, lines = rows_of_lines(record), SourceLines(record)
    captured = record.of_stage("captured")
    yield Capture(record.frames, record.breaks, [
        (each.id, each.graph, [([rows[name] for name in entity.origins if name in rows], 1)
                               for entity in each.entities if entity.kind == "call"])
        for each in captured
    ])  # fmt: skip
    for state in record.xray.states if record.xray else ():
        yield Capture(state.frames, state.breaks, [
            (graph.id, graph.graph, [([place for place in itertools.starmap(lines.place, stack) if place], count)
                                     for stack, count in zip(graph.stacks, graph.counts, strict=True)])
            for graph in state.graphs
        ])  # fmt: skip


class CallTree:
    """Call tree of a record's program: its functions with their lines, once for each place that calls them.

    Code of torch and of the standard library counts as the line that calls it. A recursive call adds no function.
    """

    def __init__(self, record: Record) -> None:
        self.lines = SourceLines(record)
        self.roots: dict[Key, Function] = {}
        self._texts = {artifact.id: artifact.text for artifact in record.of_stage("source")}
        self._numbers = {artifact.id: artifact.attrs.get("numbers") for artifact in record.of_stage("source")}
        self._rows = {artifact: text.splitlines() for artifact, text in self._texts.items()}
        self._inner = {
            artifact.id for artifact in record.of_stage("source") if _is_inner(artifact.title, artifact.attrs)
        }
        self._count = 0
        for self._at, self._capture in enumerate(captures_of(record)):
            self._add_capture()
        self._at = 0
        for site in record.xray.sites if record.xray else ():
            gap = self._gap_of_site(site)
            gap.site = gap.site or site
        for site in (record.xray.left or ()) if record.xray else ():
            self._gap_of_site(site).left = site

    # Graphs, breaks and plain code of the lines

    def _add_capture(self) -> None:
        """Add the capture `_capture`, which has the number `_at`."""
        self._frames = {frame.id: frame for frame in self._capture.frames}
        self._breaks = {found.id: found for found in self._capture.breaks}
        self._spots: dict[str, Spot] = {}
        broken = {found.frame for found in self._capture.breaks}
        for frame in self._capture.frames:
            self._add_frame(frame, frame.id in broken)
        self._add_graphs()
        for found in self._capture.breaks:
            self._add_break(found)

    def _add_frame(self, frame: Frame, is_broken: bool) -> None:
        function, row = self._spot(frame)
        if self._at == 0:
            function.frames.append(frame)
        for line in frame.plain:
            place = self.lines.place(frame.file, line)
            if place is not None and place[0] not in self._inner:
                function.line(place[1]).plain.add(self._at)
        if not (frame.graphs or frame.plain or is_broken) and frame.outcome != "compiled":
            function.line(row or function.key[1]).plain.add(self._at)

    def _add_graphs(self) -> None:
        frames = {name: frame for frame in self._capture.frames for name in frame.graphs}
        for artifact, graph, stacks in self._capture.stacks:
            frame = frames.get(artifact)
            start = self._spot(frame) if frame else self._root(("", 0, 0, f"graph {graph}"))
            own = function_of(frame, self.lines, self._texts)
            rests = [(drop_callers(stack, own), count) for stack, count in stacks]
            inside = [each for each, stack in zip(rests, stacks, strict=True) if _is_inside(stack[0], own)]
            for rest, count in inside or rests:  # an op of an added operator may have no line of the function
                function, row = self._walk(start, rest)
                graphs = function.line(row or function.key[1]).graphs.setdefault(self._at, {})
                graphs[graph] = graphs.get(graph, 0) + count

    def _add_break(self, found: GraphBreak) -> None:
        frame = self._frames.get(found.frame)
        if frame is None:
            return
        start = self._spot(frame)
        self._gap(start, found.chain, users_span(found)).breaks.setdefault(self._at, []).append(found)
        if found.unread is not None:
            self._add_unread(start[0], *found.unread)

    def _add_unread(self, function: Function, low: int, high: int) -> None:
        """Mark untraced lines, `low` to `high`, as plain Python if they have code and are in no graph."""
        artifact, first, last, _ = function.key
        text = self._texts.get(artifact, "").splitlines()
        for row in range(first + 1, min(last, len(text)) + 1):
            code = text[row - 1].strip()
            if low <= self.number(artifact, row) <= high and code and not code.startswith(("#", ")", "]", "}")):
                function.line(row).mark_plain(self._at)

    def number(self, artifact: str, row: int) -> int:
        """Line number in the file, for a row of a source artifact."""
        numbers = self._numbers.get(artifact)
        return int(numbers[row - 1]) if numbers and row <= len(numbers) else row

    def code(self, artifact: str, row: int) -> str:
        """Text of a row of a source artifact; "" if it is not shown."""
        rows = self._rows.get(artifact, [])
        return rows[row - 1] if 0 < row <= len(rows) else ""

    def _gap_of_site(self, site: Site) -> Gap:
        """The gap of an x-ray's site. The site's chain of calls starts in the explored function."""
        place = self.lines.place(site.chain[0].file, site.chain[0].line) if site.chain else None
        key = self._key(place) if place else (site.file, site.line, site.line, site.function)
        root = self.roots.get(key) or next(iter(self.roots.values()), None)
        return self._gap((root, 0) if root else self._root(key), site.chain, site.span)

    def _gap(self, start: Spot, chain: Sequence[Span], span: Span | None) -> Gap:
        """The gap of a break, at the end of its chain of calls from `start`; a new gap if there is none yet."""
        places = [self.lines.place(each.file, each.line) for each in chain]
        function, row = self._walk(start, [place for place in places if place])
        row = row or function.key[1]
        self._mark_way(function, row)
        key = (span.end_line, span.end_column, span.code) if span else (0, 0, "")
        return function.line(row).gaps.setdefault(key, Gap(span))

    def _mark_way(self, function: Function, row: int) -> None:
        """Mark the line of a break and all its calling lines as plain Python, unless they are in a graph."""
        for each, at in way(Cell(function, row)):
            each.line(at).mark_plain(self._at)

    # Positions in the tree

    def _spot(self, frame: Frame) -> Spot:
        """Function of a frame in the tree, and row 0. For a frame of torch or the standard library: the function that
        calls it, and the row of the call.
        """
        if frame.id not in self._spots:
            self._spots[frame.id] = Function(self._frame_key(frame)), 0  # ends a cycle of callers
            self._spots[frame.id] = self._find(frame)
        return self._spots[frame.id]

    def _find(self, frame: Frame) -> Spot:
        broken = self._breaks.get(frame.resumes)
        if broken is not None and broken.frame in self._frames:
            return self._spot(self._frames[broken.frame])
        caller = self._frames.get(frame.caller)
        if caller is None:
            return self._root(self._frame_key(frame))
        span = frame.called_at
        spot = self._calling_spot(self._spot(caller), self.lines.place(span.file, span.line) if span else None)
        key = self._frame_key(frame)
        is_inner = key[0] in self._inner or (key[0] not in self._texts and _is_torchs_or_standard(frame.file))
        return spot if is_inner else (self._called_function(*spot, key), 0)

    def _calling_spot(self, spot: Spot, place: Place | None) -> Spot:
        """Function with the line `place`, at or below `spot` (added if missing), and the row of the line.

        `spot` itself if `place` is None or in torch or the standard library.
        """
        if place is None or place[0] in self._inner:
            return spot
        key = self._key(place)
        found = next((each for each in _descendants(spot[0]) if each.key == key), None)
        return (found or self._called_function(*spot, key), place[1])

    def _root(self, key: Key) -> Spot:
        return self.roots.setdefault(key, Function(key)), 0

    def _walk(self, start: Spot, places: Iterable[Place]) -> Spot:
        """Function and row at the end of a chain of calls from `start`; torch and the standard library are skipped."""
        function, at = start
        for artifact, row in places:
            if artifact in self._inner:
                continue
            function = self._called_function(function, at, self._key((artifact, row)))
            at = row if function.key[1] <= row <= function.key[2] else at
        return function, at

    def _called_function(self, function: Function, row: int, key: Key) -> Function:
        """The function `key`, called by `function`. For a recursive call: the enclosing function with this key."""
        again = next((each for each in function.with_callers() if each.key == key), None)
        if again is not None:
            return again
        calls = function.line(row or function.key[1]).calls
        if key not in calls:
            if self._count >= MOST_FUNCTIONS:
                return function
            self._count += 1
            calls[key] = Function(key, function, row or function.key[1])
        return calls[key]

    def _key(self, place: Place) -> Key:
        artifact, row = place
        count = len(self._texts[artifact].splitlines())
        found = function_in(self._texts[artifact], row) if row <= count else None
        return (artifact, *found) if found else (artifact, 1, max(count, row), "")

    def _frame_key(self, frame: Frame) -> Key:
        place = self.lines.place(frame.file, frame.line)
        return self._key(place) if place else (frame.file, frame.line, frame.line, function_name(frame.function))


def way(cell: Cell) -> Iterator[tuple[Function, int]]:
    """The function of a cell and its callers, innermost first, each with the row of the cell or of the call."""
    row = cell.row
    for function in cell.function.with_callers():
        yield function, row
        row = function.row


def _descendants(function: Function) -> Iterator[Function]:
    yield function
    for line in function.lines.values():
        for called in line.calls.values():
            yield from _descendants(called)


def _is_inside(stack: Sequence[Place], function: tuple[str, int, int] | None) -> bool:
    """Whether a call stack has a line of a function, or the function is not shown."""
    if function is None:
        return True
    source, first, last = function
    return any(artifact == source and first <= row <= last for artifact, row in stack)


def _is_inner(title: str, attrs: dict[str, object]) -> bool:
    """Whether a source file belongs to torch or to the standard library."""
    return bool(attrs.get("installed")) and _is_torchs_or_standard(title)


def _is_torchs_or_standard(name: str) -> bool:
    """Whether an installed file is of torch or of the standard library, by its importable name."""
    first = name.replace("\\", "/").partition("/")[0].removesuffix(".py")
    return first == "torch" or first in sys.stdlib_module_names
