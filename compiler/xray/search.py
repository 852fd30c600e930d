"""Find every site: capture, record the break, replace its expression by a value, and capture again."""

from __future__ import annotations

import ast
import linecache
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from compiler.calls.call import Call
from compiler.calls.versions import files_by_name
from compiler.capture.breaks import graph_break, span_of
from compiler.capture.sources import SourceBook, is_installed, is_standard
from compiler.capture.suggestions.case import narrow_to_header, nodes_around
from compiler.capture.suggestions.values import BRANCH
from compiler.record import GraphBreak, Record, Site, Span, XRay
from compiler.torch_api import apart, dynamo, fx
from compiler.torch_api.dynamo import BreakFacts
from compiler.torch_api.module_calls import without_compiled_call
from compiler.torch_api.patching import Function
from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.traced_lines import Place
from compiler.xray.origins import branch, origins
from compiler.xray.outside import OutsideError, inside_the_process, unheard
from compiler.xray.state import Restore, State, same_random_numbers
from compiler.xray.substitution import Change, Kind, Noted, Program, Spot, StandIn, all_functions

MOST_CAPTURES = 120
"""Maximum number of captures: a program needs one for each site, and one for each call without further breaks."""
_TORCH = str(Path(torch.__file__).parent)


def find_sites(call: Call, record: Record) -> XRay:
    """Find the sites of an explored call and of its later calls; `record` is the exploration's."""
    return search_sites(call, record).found


def search_sites(call: Call, record: Record) -> Search:
    """Search for the sites of a call; the search object can also be used to try fixes."""
    start = time.perf_counter()
    functions = all_functions()
    files = files_by_name(record, [path for path in functions if not is_installed(path)])
    search = Search(call, record, SourceBook({path: name for name, path in files.items()}), functions)
    search.run()
    search.seconds = time.perf_counter() - start
    return search


@dataclass
class Search:
    """The search for the sites of one call: the spots replaced so far, and the sites found."""

    call: Call
    record: Record
    book: SourceBook
    functions: Mapping[str, Sequence[FunctionType]]
    sites: list[Site] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    consequences: list[Span] = field(default_factory=list)
    spots: dict[Spot, int] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)
    captures: int = 0
    seconds: float = 0.0
    change: Change = field(default_factory=Change)
    _numbers: dict[str, int] = field(default_factory=dict)
    _calls: dict[str, Call] = field(default_factory=dict)

    def run(self) -> None:
        """Search each of the calls until it has no more breaks, or a break that can't be passed."""
        for each in (self.call, *self.call.later):
            quietly = apart.forget_compilations(lambda _seconds: None)
            with repeatable(each) as restore, quietly, self.change.apply_settings():
                bench = Bench(each, restore)
                while self.captures < MOST_CAPTURES and self._go_on(bench):
                    pass
        if self.captures >= MOST_CAPTURES:
            self._tell(f"the search ended after {MOST_CAPTURES} captures: more sites may follow")
        self._add_unreached()

    def sites_after(self, change: Change) -> XRay:
        """The sites that remain with a change; line numbers refer to the unchanged files."""
        again = Search(self.call, self.record.with_fields(breaks=()), self.book, self.functions, change=change)
        again.run()
        return again.found

    @property
    def found(self) -> XRay:
        """The results of the search."""
        consequences = tuple(dict.fromkeys(self.consequences))
        return XRay(tuple(self.sites), consequences, tuple(self.problems), self.captures, self.seconds)

    def call_of(self, site: Site) -> Call | None:
        """The call in which a site was found; None if only the exploration reached it."""
        return self._calls.get(site.id)

    def number_of(self, site: Site) -> int:
        """Number of the spot that replaces a site; -1 if only the exploration reached it."""
        return self._numbers.get(site.id, -1)

    def is_of_site(self, place: Place) -> bool:
        """Whether a place can be a site: in the user's code or a package, but not in torch or the standard library."""
        return not (fx.is_dynamo(place.file) or place.file.startswith((_TORCH, "<frozen")) or is_standard(place.file))

    def _go_on(self, bench: Bench) -> bool:
        """Capture once more; return whether another break was found that can be passed."""
        noted = self._note_values(bench)
        self.captures += 1
        try:
            facts = bench.first_break(self._program(self.spots), noted.stand_ins(), frozenset(self.left_out))
        except Exception as error:  # noqa: BLE001 - the user's code, or torch in a capture, may raise anything
            first = next(iter(str(error).splitlines()), "")
            self._tell(f"the search ended at a {type(error).__name__} of a capture: {first}")
            return False
        if facts is None:
            return False
        steps = list(_steps(facts))
        if not steps:
            self._tell(f"the search ended at a break without a place: {facts.kind}")
            return False
        self._add_site(facts, steps, noted)
        spot = next((spot for spot, _ in steps if spot not in self.spots), None)
        if spot is None:
            self._tell(f"the search ended at {self._name(facts)}: it breaks with a value in its place too")
            return False
        if spot is not steps[0][0]:
            self._mark(
                f"passed with a value in the place of line {spot.start[0]}, column {spot.start[1]} to {spot.end}"
            )
        self.spots[spot] = len(self.spots)
        self._numbers.setdefault(self.sites[-1].id, self.spots[spot])
        self._calls.setdefault(self.sites[-1].id, bench.call)
        return True

    def _program(self, spots: Mapping[Spot, int]) -> Program:
        return Program(self.functions, spots, self.change.edits)

    def _note_values(self, bench: Bench) -> Noted:
        """Run the program once and record values at the spots; leave out a spot with effects outside the process."""
        noted = Noted()
        why = bench.run_noting(self._program(self.spots), noted, frozenset(self.left_out))
        if isinstance(why, OutsideError):
            number = max(self.spots.values(), default=-1)
            if number >= 0 and number not in noted.values and number not in self.left_out:
                self.left_out.add(number)
                self._mark(f"not run again, as {why}")
                return self._note_values(bench)
        elif why is not None:
            self._tell(f"the program raises {type(why).__name__} when it is repeated: {why}")
        return noted

    def _add_site(self, facts: BreakFacts, steps: Sequence[tuple[Spot, Place]], noted: Noted) -> None:
        """Add the site of a break, unless it is known already."""
        place = narrow_to_header(steps[0][1])
        span = span_of(place, self.book)
        if any(site.span == span for site in self.sites) or self._is_again(steps[0][0], facts.kind, noted):
            return
        own = facts.places[: facts.places.index(steps[0][1]) + 1]
        identity = f"site[{len(self.sites)}]"
        found = graph_break(identity, "", facts, self.book, outermost=len(own) == 1)
        node = nodes_around(place)
        seen = next((item for item in self.record.breaks if _users_span(item) == span), None)
        self.sites.append(Site(
            id=identity, file=span.file, line=span.line, span=span, kind=found.kind, what=found.what,
            reason=found.reason, chain=found.chain, branch=branch(place),
            origins=origins([*own[:-1], place], node[-1], self.book) if node else (),
            as_it_is=seen is not None, behind="" if seen is not None else self._site_hiding(span),
            suggestions=found.suggestions,
        ))  # fmt: skip

    def _add_unreached(self) -> None:
        """Add the exploration's breaks that the search did not find.

        A break that the repeated calls reach is a consequence of an earlier one; any other is added as a site.
        """
        known = [site.span for site in self.sites]
        breaks = {_users_span(item): item for item in reversed(self.record.breaks)}
        missed = {span: item for span, item in breaks.items() if span and span.end_column and span not in known}
        spots = {span: Spot.of_place(self._place(span)) for span in missed}
        numbers = self.spots | {spot: len(self.spots) + n for n, spot in enumerate(spots.values())}
        noted = Noted()
        for each in (self.call, *self.call.later) if missed else ():
            with repeatable(each) as restore:
                Bench(each, restore).run_noting(self._program(numbers), noted, frozenset(self.left_out))
        for span, item in missed.items():
            if numbers[spots[span]] in noted.values:
                self.consequences.append(span)
            else:
                self._add_seen(item, span)

    def _add_seen(self, found: GraphBreak, span: Span) -> None:
        """Add a site that only the exploration reached."""
        self.sites.append(Site(
            id=f"site[{len(self.sites)}]", file=span.file, line=span.line, span=span, kind=found.kind, what=found.what,
            reason=found.reason, chain=found.chain, branch=branch(self._place(span)), suggestions=found.suggestions,
            passed=False, note="the explored call came here; made again, in the state that it left, it does not",
        ))  # fmt: skip

    def _is_again(self, spot: Spot, kind: str, noted: Noted) -> bool:
        """Whether the cause of a break is the unsupported value of a known spot inside this one."""
        inner = [number for other, number in self.spots.items() if other.is_inside(spot)]
        objects = [number for number in inner if not noted.is_plain(number)]
        return bool(objects) and any(site.kind == kind for site in self.sites[-1:])

    def _site_hiding(self, span: Span) -> str:
        """Id of the site whose break left a span untraced; if there is none, of the last site that left lines untraced,
        or else of the last site.
        """
        evicting = [item for item in self.record.breaks if item.unread is not None or item.outcome != "resumed"]
        covering = [item for item in evicting if item.unread and item.file == span.file
                    and item.unread[0] <= span.line <= item.unread[1]]  # fmt: skip
        spans = [_users_span(item) for item in (covering or evicting)]
        return next((site.id for site in reversed(self.sites) if site.span in spans),
                    self.sites[-1].id if self.sites else "")  # fmt: skip

    def _mark(self, note: str) -> None:
        """Set the note of the site found last."""
        if self.sites:
            self.sites[-1] = replace(self.sites[-1], note=note)

    def _place(self, span: Span) -> Place:
        path = self.book.path(span.file)
        first, last = linecache.getline(path, span.line), linecache.getline(path, span.end_line)
        columns = len(first[: span.column].encode()), len(last[: span.end_column].encode())
        return Place(path, span.function, span.line, span.end_line, *columns)

    def _name(self, facts: BreakFacts) -> str:
        place = facts.places[-1]
        return f"{self.book.name(place.file)}:{place.line}, {facts.kind}"

    def _tell(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


@dataclass(frozen=True)
class Bench:
    """Repeats one call with changed programs; `restore` restores the user's objects before each run."""

    call: Call
    restore: Restore

    @property
    def roots(self) -> list[tuple[str, Any]]:
        """Objects from which the call's state is reached, by name."""
        return roots_of(self.call)

    def call_once(self, *, compiled: bool) -> Any:
        """Make the call, eagerly or compiled; return its value."""
        function = self._function
        if compiled:
            function = dynamo.compile_function(function, dynamo.named_backend("eager"), dynamic=None, fullgraph=False)
        return function(*self.call.args, **self.call.kwargs)

    def draw_inputs(self, seed: int | None) -> None:
        """Fill floating-point tensors among the arguments with random numbers; do nothing without a seed."""
        if seed is None:
            return
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for leaf in tree_leaves((tuple(self.call.args), dict(self.call.kwargs))):
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.device.type == "cpu":
                    leaf.data.copy_(torch.randn(leaf.shape, generator=generator))

    def run_noting(
        self, program: Program, noted: Noted, left_out: frozenset[int], seed: int | None = None
    ) -> BaseException | None:
        """Run the call eagerly and record values; return the exception, if any. With a seed, inputs are random."""
        self.restore()
        try:
            with program.with_notes(noted, left_out), self.in_its_modes(), unheard():
                self.draw_inputs(seed)
                self._function(*self.call.args, **self.call.kwargs)
        except (Exception, OutsideError) as error:  # noqa: BLE001 - the user's code may raise anything
            return error
        finally:
            self.restore()
        return None

    def first_break(
        self, program: Program, stand_ins: Mapping[int, StandIn], left_out: frozenset[int] = frozenset()
    ) -> BreakFacts | None:
        """First break of the call with values in place of spots; None if the call is captured as one graph."""
        self.restore()
        try:
            with program.with_stand_ins(stand_ins, left_out), self.in_its_modes(), inside_the_process():
                return dynamo.break_of_call(self._function, self.call.args, self.call.kwargs)
        finally:
            self.restore()

    @property
    def _function(self) -> Function:
        return dynamo.inner_function(self.call.fn) or self.call.fn

    @contextmanager
    def in_its_modes(self) -> Iterator[None]:
        """Run a block in the call's modes."""
        with self.call.surroundings.restore(), without_compiled_call(self._function), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield


@contextmanager
def repeatable(call: Call) -> Iterator[Function]:
    """Yield a function that undoes a call's changes to objects and random state; it is also called at the end."""
    state = State.of(roots_of(call))
    with same_random_numbers() as restore_random:

        def restore() -> None:
            state.restore()
            restore_random()

        try:
            yield restore
        finally:
            restore()


def roots_of(call: Call) -> list[tuple[str, Any]]:
    """Objects from which a call's state is reached, by name."""
    return [("self", call.fn), ("args", call.args), ("kwargs", dict(call.kwargs))]


def _steps(facts: BreakFacts) -> Iterator[tuple[Spot, Place]]:
    """Yield spots (with places) that can be replaced to pass a break, from the expression outwards to its callers."""
    for place in reversed(facts.places):
        if fx.is_dynamo(place.file) or place.file.startswith((_TORCH, "<frozen")) or is_standard(place.file):
            continue
        here = narrow_to_header(place)
        nodes = nodes_around(here)
        around = [node for node in nodes if isinstance(node, ast.stmt)]
        inner = nodes[nodes.index(around[-1]) + 1 :] if around else ()
        for node in reversed([node for node in inner if isinstance(node, ast.expr)]):
            if _can_be_replaced(node):
                yield Spot.of_node(place.file, node, _kind(facts, node, around[-1])), place
        if around and isinstance(around[-1], ast.Assign | ast.AugAssign | ast.Delete | ast.Expr | ast.Assert):
            yield Spot.of_node(place.file, around[-1], "statement"), place


def _can_be_replaced(node: ast.expr) -> bool:
    """Whether a node is a replaceable value, not the target of an assignment, a starred part, a slice or a yield."""
    is_target = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
    return not is_target and not isinstance(node, ast.Starred | ast.Slice | ast.Yield | ast.YieldFrom | ast.Await)


def _kind(facts: BreakFacts, node: ast.expr, statement: ast.stmt) -> Kind:
    if isinstance(statement, ast.With) and any(item.context_expr is node for item in statement.items):
        return "context"
    return "truth" if facts.kind in BRANCH else "value"


def _users_span(found: GraphBreak) -> Span | None:
    own = [span for span in found.chain if not span.installed]
    return own[-1] if own else None
