"""The state of each cell on a program's map: without fixes, then with one more of the x-ray's fixes in each state.

The first state and the state with all fixes were captured. The states in between are inferred from the sites that each
fix removes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler.record import Fix, Record, Site
from explorer.findings.call_tree import Cell, Function, Gap, code_of, way

ABSENT, PLAIN, BREAK, HIDDEN, GRAPHS = -1, 0, 1, 2, 3
"""State of a cell: a removed break, plain Python, a break, a break that is hidden behind other breaks. Numbers from
GRAPHS on stand for graphs: cells of one graph have the same number.
"""
_BLOCKS = ("for ", "while ", "with ", "try:", "async for ", "async with ")
"""Starts of the headers of blocks. TorchDynamo can't resume in them: a break there leaves the function to Python."""


@dataclass(frozen=True)
class State:
    """State of the program with some fixes. `cells` has a number for each cell.

    `site` is the site of the last fix, None without fixes. `is_captured` is false if the state was inferred.
    """

    cells: tuple[int, ...]
    site: Site | None = None
    is_captured: bool = True


def states_of(cells: Sequence[Cell], record: Record) -> list[State]:
    """The states of a record's cells: without fixes, then with more fixes, up to all fixes that work together."""
    return list(_States(cells, record).all())


class _States:
    def __init__(self, cells: Sequence[Cell], record: Record) -> None:
        self.cells, self.xray = cells, record.xray
        codes = sorted({_code(cell) for cell in cells if cell.graphs})
        self._codes = {code: GRAPHS + number for number, code in enumerate(codes)}
        self._with_ops = {function.key for cell in cells if cell.graphs for function in cell.function.around()}
        self._texts = {artifact.id: artifact.text.splitlines() for artifact in record.of_stage("source")}
        self._evicted = [list(self._evicted_functions(cell)) if cell.gap else [] for cell in cells]

    def all(self) -> Iterator[State]:
        """Yield the states in order."""
        yield State(tuple(self._count_observed(cell) for cell in self.cells))
        if self.xray is None or self.xray.left is None:
            return
        sites = {site.id: site for site in self.xray.sites}
        fixes = [fix for fix in self.xray.fixes if fix.together]
        fixed = [sites[fix.site] for fix in fixes]
        for count, site in enumerate(fixed[:-1], 1):
            gone = _sites_gone(fixes, count)
            yield State(self._infer([_is_left_without(cell.gap, gone) for cell in self.cells]), site, is_captured=False)
        if fixed:
            yield State(self._infer([bool(cell.gap and cell.gap.left) for cell in self.cells]), fixed[-1])

    def _count_observed(self, cell: Cell) -> int:
        if cell.gap is not None:
            return BREAK if cell.gap.breaks else HIDDEN if cell.gap.site else ABSENT
        return self._codes[_code(cell)] if cell.graphs else PLAIN

    def _infer(self, stays: Sequence[bool]) -> tuple[int, ...]:
        """State of each cell if only the breaks marked in `stays` remain. Lines between two breaks are in one graph."""
        staying = [at for at, stay in enumerate(stays) if stay]
        plain = {id(function) for at in staying for function in self._evicted[at]}
        broken = {(id(function), row) for at in staying for function, row in way(self.cells[at])}
        states: list[int] = []
        evicted = set[int]()
        for at, cell in enumerate(self.cells):
            if cell.gap is None:
                runs_plain = self._is_evicted(cell, plain) or (id(cell.function), cell.row) in broken
                new = GRAPHS + len(self._codes) + at
                states.append(self._codes[_code(cell)] if cell.graphs else PLAIN if runs_plain else new)
                continue
            is_behind = not cell.gap.breaks and any(id(function) in evicted for function in cell.function.around())
            states.append(ABSENT if not stays[at] else HIDDEN if is_behind else BREAK)
            evicted |= {id(function) for function in self._evicted[at] if stays[at]}
        return self._compact(_merge(self.cells, states))

    def _is_evicted(self, cell: Cell, plain: set[int]) -> bool:
        """Whether a line is in a function that a break leaves to Python. A function without ops follows its caller."""
        for function in cell.function.around():
            if id(function) in plain or function.key in self._with_ops:
                return id(function) in plain
        return False

    def _compact(self, states: Sequence[int]) -> tuple[int, ...]:
        """Number the inferred graphs consecutively, after the captured graphs."""
        captured = GRAPHS + len(self._codes)
        new = {state: captured + at for at, state in enumerate(sorted({each for each in states if each >= captured}))}
        return tuple(new.get(state, state) for state in states)

    def _evicted_functions(self, cell: Cell) -> Iterator[Function]:
        """Functions that a break leaves to Python: as observed, else if the break is in a loop, `with` or `try`."""
        for function, row in way(cell):
            own = {frame.id for frame in function.frames}
            seen = [found for found in cell.gap.breaks if found.frame in own] if cell.gap else []
            observed = any(found.outcome != "resumed" for found in seen)
            if observed or (not seen and self._is_in_block(function, row)):
                yield function

    def _is_in_block(self, function: Function, row: int) -> bool:
        """Whether a row of a function is in a block that TorchDynamo can't resume in."""
        text, indent = self._texts.get(function.key[0], []), sys.maxsize
        for line in reversed(text[function.key[1] : row]):
            own = len(line) - len(line.lstrip())
            if line.strip() and own < indent:
                if indent < sys.maxsize and line.lstrip().startswith(_BLOCKS):
                    return True
                indent = own
        return False


def _sites_gone(fixes: Sequence[Fix], count: int) -> set[str]:
    """Ids of the sites that the first `count` fixes remove. Settings hold for all code, so a site that needs only the
    same settings is removed too.
    """
    settings = {each for fix in fixes[:count] if fix.suggestion for each in fix.suggestion.settings}
    by_settings = (
        fix for fix in fixes[count:] if fix.suggestion and fix.suggestion.settings and not fix.suggestion.rewrite
    )
    set_already = {fix.site for fix in by_settings if fix.suggestion and settings.issuperset(fix.suggestion.settings)}
    return {fix.site for fix in fixes[:count]} | set_already


def _is_left_without(gap: Gap | None, gone: set[str]) -> bool:
    """Whether a break stays if the sites `gone` are removed. An observed break without a site always stays."""
    return gap is not None and (gap.site.id not in gone if gap.site else bool(gap.breaks))


def _merge(cells: Sequence[Cell], states: Sequence[int]) -> list[int]:
    """States in which all lines between two breaks share one graph, the graph with the lowest number."""
    graphs: dict[int, int] = {}
    last: int | None = None
    for at, state in enumerate(states):
        if state in (BREAK, PLAIN) or (at and cells[at].function.root is not cells[at - 1].function.root):
            last = None
        if state >= GRAPHS:
            if last is not None:
                low, high = sorted((_find(graphs, last), _find(graphs, state)))
                graphs[high] = low
            last = state
    return [_find(graphs, state) if state >= GRAPHS else state for state in states]


def _find(joined: dict[int, int], state: int) -> int:
    while joined.get(state, state) != state:
        state = joined[state]
    return state


def _code(cell: Cell) -> int:
    """Number of the code object of a cell's graphs; -1 without a graph."""
    return code_of(cell.graphs[0][0]) if cell.graphs else -1
