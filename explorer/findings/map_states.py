"""The state of each cell on a program's map: without fixes, then with more of the x-ray's fixes, each as captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler.record import Fix, Record, Site, XRay
from explorer.findings.call_tree import Cell, Gap, code_of

ABSENT, PLAIN, BREAK, HIDDEN, GRAPHS = -1, 0, 1, 2, 3
"""State of a cell: a removed break, plain Python, a break, a break that is hidden behind other breaks. Numbers from
GRAPHS on stand for graphs: cells of one graph have the same number.
"""


@dataclass(frozen=True)
class State:
    """State of the program with the first `count` of the fixes that work together. `cells` has a number for each cell.

    `site` is the site of the last fix, None without fixes. `compilations` and `breaks` are the numbers of graphs and
    breaks in the capture; cells of one graph, or of one place that breaks, stand for several.
    """

    cells: tuple[int, ...]
    compilations: int
    breaks: int
    count: int = 0
    site: Site | None = None

    @property
    def graphs(self) -> list[int]:
        """The numbers of the graphs, in order."""
        return sorted({cell for cell in self.cells if cell >= GRAPHS})


def states_of(cells: Sequence[Cell], record: Record) -> list[State]:
    """The states of a record's cells: without fixes, then with more fixes, as far as they were captured."""
    first = State(_states(cells, 0, _Shown()), len(record.of_stage("captured")), len(record.breaks))
    return [first, *_fixed_states(cells, record.xray, first)] if record.xray else [first]


def _fixed_states(cells: Sequence[Cell], xray: XRay, first: State) -> Iterator[State]:
    """Yield the captured states with fixes. A graph has the colour that its first line has in the first state."""
    sites = {site.id: site for site in xray.sites}
    fixes = [fix for fix in xray.fixes if fix.together]
    for at, state in enumerate(xray.states, 1):
        shown = _Shown(first.cells, _sites_gone(fixes, state.count), is_last=state.count == len(fixes))
        site = sites[fixes[state.count - 1].site]
        yield State(_states(cells, at, shown), len(state.graphs), len(state.breaks), state.count, site)


@dataclass(frozen=True)
class _Shown:
    """What a state depends on besides its capture: the first state, and the ids of the sites that are gone."""

    first: tuple[int, ...] = ()
    gone: frozenset[str] = frozenset()
    is_last: bool = False

    def is_hidden(self, gap: Gap) -> bool:
        """Whether a break that the capture does not have is behind another: the x-ray found it, and it is not gone."""
        return gap.left is not None if self.is_last else gap.site is not None and gap.site.id not in self.gone


def _states(cells: Sequence[Cell], capture: int, shown: _Shown) -> tuple[int, ...]:
    """The state of each cell in one capture. Breaks can be hidden only behind breaks."""
    has_breaks = any(cell.gap is not None and capture in cell.gap.breaks for cell in cells)
    numbers: dict[int, int] = {}
    states: list[int | None] = []
    for at, cell in enumerate(cells):
        if cell.gap is not None:
            is_hidden = has_breaks and shown.is_hidden(cell.gap)
            states.append(BREAK if capture in cell.gap.breaks else HIDDEN if is_hidden else ABSENT)
        elif graphs := cell.graphs.get(capture):
            wanted = shown.first[at] if shown.first else GRAPHS
            states.append(_number(numbers, code_of(graphs[0][0]), wanted))
        else:
            states.append(PLAIN if capture in cell.plain else None)
    return tuple(_fill(cells, states))


def _number(numbers: dict[int, int], code: int, wanted: int) -> int:
    """Number of the graphs of a code object: `wanted` if that is a graph and still free, else the lowest free one."""
    if code not in numbers:
        taken = {*numbers.values()}
        is_free = wanted >= GRAPHS and wanted not in taken
        numbers[code] = wanted if is_free else min({*range(GRAPHS, GRAPHS + len(taken) + 1)} - taken)
    return numbers[code]


def _fill(cells: Sequence[Cell], states: Sequence[int | None]) -> list[int]:
    """States in which a line that was traced without ops is in the graph of the lines before it, else after it."""
    forward = _carry(cells, states, range(len(cells)))
    backward = _carry(cells, states, range(len(cells) - 1, -1, -1))
    known = zip(states, forward, backward, strict=True)
    return [next((each for each in three if each is not None), ABSENT) for three in known]


def _carry(cells: Sequence[Cell], states: Sequence[int | None], order: range) -> list[int | None]:
    """The graph that each cell comes after in an order, None after a break, plain Python, or another root."""
    carried: list[int | None] = [None] * len(cells)
    graph: int | None = None
    before: Cell | None = None
    for at in order:
        state = states[at]
        if before is not None and before.function.root is not cells[at].function.root:
            graph = None
        if state is not None and state not in (ABSENT, HIDDEN):
            graph = state if state >= GRAPHS else None
        carried[at], before = graph, cells[at]
    return carried


def _sites_gone(fixes: Sequence[Fix], count: int) -> frozenset[str]:
    """Ids of the sites that the first `count` fixes remove. Settings hold for all code, so a site that needs only the
    same settings is removed too.
    """
    settings = {each for fix in fixes[:count] if fix.suggestion for each in fix.suggestion.settings}
    by_settings = (
        fix for fix in fixes[count:] if fix.suggestion and fix.suggestion.settings and not fix.suggestion.rewrite
    )
    set_already = {fix.site for fix in by_settings if fix.suggestion and settings.issuperset(fix.suggestion.settings)}
    return frozenset({fix.site for fix in fixes[:count]} | set_already)
