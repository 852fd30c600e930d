"""Find every site: capture, record the break, replace its expression by a value, and capture again."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from compiler.calls.call import Call
from compiler.calls.state import State, roots_of
from compiler.calls.versions import files_by_name
from compiler.capture.breaks import graph_break, rewrites_at
from compiler.capture.sources import (
    SourceBook,
    importable_path,
    imported_modules,
    is_cell,
    is_installed,
    is_standard,
    span_of,
)
from compiler.capture.suggestions.case import narrow_to_header, nodes_around
from compiler.capture.suggestions.values import BRANCH
from compiler.record import GraphBreak, Record, Site, Span, Suggestion, XRay
from compiler.record.break_facts import BreakFacts, Place, is_dynamo
from compiler.record.plain_text import one_line, pluralize
from compiler.torch_api import apart
from compiler.torch_api.dynamo import break_registry
from compiler.xray.bench import SECONDS, Bench, repeatable
from compiler.xray.library import in_your_code, is_upstream, override_at, report_text
from compiler.xray.origins import branch, origins
from compiler.xray.outside import STOPS, Heard, OutsideError
from compiler.xray.substitution import Change, Edit, Kind, Noted, Program, Spot, all_functions
from compiler.xray.time_limit import TimeBudget, TimeLimitError

MOST_CAPTURES = 120
"""Maximum number of captures. A search needs one for each site, and one more for each call."""
MOST_SECONDS, LEAST_SECONDS = 120.0, 10.0
"""Time after which no more sites are searched for; and if the time for trying fixes is over, for those that a change
leaves.
"""
UNKNOWN = "it uses the value of code that is not run again"
_TORCH = str(Path(torch.__file__).parent)
Hear = Callable[[str], None]
"""Callback for progress messages."""
_OURS = str(Path(__file__).parents[1])


def find_sites(call: Call, record: Record) -> XRay:
    """Find the sites of an explored call and of its later calls. `record` is the record of the exploration."""
    return search_sites(call, record).found


def search_sites(call: Call, record: Record, hear: Hear = lambda _words: None, limit: float = SECONDS) -> Search:
    """Search for the sites of a call and its later calls. The returned search can also be used to try fixes.

    `hear` receives progress messages. Each run of the call may take `limit` seconds.
    """
    start = time.perf_counter()
    functions = _own_functions_first(call, all_functions())
    files = files_by_name(record, [path for path in functions if not is_installed(path)])
    book = SourceBook({path: name for name, path in files.items()})
    search = Search(call, record, book, functions, hear, limit=limit)
    search.run()
    search.seconds = time.perf_counter() - start
    return search


def _own_functions_first(
    call: Call, functions: Mapping[str, Sequence[FunctionType]]
) -> Mapping[str, Sequence[FunctionType]]:
    """Functions by file, with those of the call's own modules first: a file may have been run several times."""
    reached = State.of(roots_of(call.fn, call.args, call.kwargs), largest=0).objects
    own = {id(each.__globals__) for _, each in reached if isinstance(each, FunctionType)}
    return {file: sorted(found, key=lambda each: id(each.__globals__) not in own) for file, found in functions.items()}


@dataclass
class Search:
    """The search for the sites of one call and its later calls, with the sites found so far.

    `spots` are the replaced expressions and statements, with numbers. `left_out` are the numbers of the spots that must
    not run again. `change` is a change with which the program is searched.
    After `most_seconds`, nothing more is captured.
    """

    call: Call
    record: Record
    book: SourceBook
    functions: Mapping[str, Sequence[FunctionType]]
    hear: Hear = lambda _words: None
    sites: list[Site] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    consequences: list[Span] = field(default_factory=list)
    spots: dict[Spot, int] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)
    captures: int = 0
    seconds: float = 0.0
    change: Change = field(default_factory=Change)
    limit: float = SECONDS
    most_seconds: float = MOST_SECONDS
    _is_whole: bool = True
    _trouble: str = ""
    _raised_at: tuple[str, tuple[int, int]] | None = None
    _numbers: dict[str, int] = field(default_factory=dict)
    _calls: dict[str, Call] = field(default_factory=dict)

    def run(self) -> None:
        """Search each of the calls until it has no more breaks, or a break that can't be passed."""
        budget = TimeBudget(self.most_seconds)
        for each in (self.call, *self.call.later):
            quietly = apart.forget_compilations()
            with repeatable(each) as restore, quietly, self.change.apply_settings():
                bench = Bench(each, restore, self.limit)
                while self.captures < MOST_CAPTURES and not budget.is_spent() and self._go_on(bench):
                    pass
                self._tell_of_runs(bench)
            if budget.is_spent():
                self._end_early(f"the search ended after {self.most_seconds:.0f} s: more sites may follow")
                break
            if self.captures >= MOST_CAPTURES:
                self._end_early(f"the search ended after {MOST_CAPTURES} captures: more sites may follow")
        self._add_unreached()

    def sites_after(self, change: Change, seconds: float = MOST_SECONDS) -> XRay:
        """The sites that remain with a change, found in `seconds`; line numbers refer to the unchanged files."""
        if change == self.change:
            return self.found
        again = Search(
            self.call, self.record.with_fields(breaks=()), self.book, self.functions, change=change, limit=self.limit,
            most_seconds=max(min(seconds, MOST_SECONDS), LEAST_SECONDS),
        )  # fmt: skip
        again.run()
        return again.found

    def count_breaks(self, site: Site) -> int:
        """Number of breaks at a site in the explored program; 0 if it is behind another one."""
        return sum(_site_span(item) == site.span for item in self.record.breaks)

    @property
    def found(self) -> XRay:
        """The results of the search."""
        consequences = tuple(dict.fromkeys(self.consequences))
        return XRay(tuple(self.sites), consequences, tuple(self.problems), self.captures, self.seconds)

    def sites_mended_by(self, site: Site, suggestion: Suggestion) -> set[str]:
        """Ids of the sites that a suggestion for a site mends: moving code into an operator may mend several sites."""
        if not suggestion.definitions:
            return {site.id}
        first, last = suggestion.line, suggestion.end_line
        own = (each for each in self.sites if each.file == suggestion.file and first <= each.line <= last)
        return {site.id, *(each.id for each in own)}

    def call_of(self, site: Site) -> Call | None:
        """The call in which a site was replaced by a value; None if it was not."""
        return self._calls.get(site.id)

    def number_of(self, site: Site) -> int:
        """Number of the spot that replaces a site; -1 if there is none."""
        return self._numbers.get(site.id, -1)

    def is_of_site(self, place: Place) -> bool:
        """Whether a place can be a site."""
        return _is_of_site(place)

    def _go_on(self, bench: Bench) -> bool:
        """Capture once more; return whether another break was found that can be passed."""
        self.hear(f"{pluralize(len(self.sites), 'site')} found")
        noted = self._note_values(bench)
        if noted is None:
            return False
        self.captures += 1
        try:
            facts = bench.first_break(self._program(self.spots), noted.stand_ins(), frozenset(self.left_out))
        except STOPS as error:  # the user's code, or torch in a capture, may raise anything
            first = next(iter(str(error).splitlines()), "")
            self._end_early(
                f"the search ended at a {type(error).__name__} of a capture{self._place_of_error(error)}: {first}"
            )
            return False
        if facts is None:
            return False
        steps = list(_steps(facts))
        if not steps:
            self._end_early(f"the search ended at a break without a place: {facts.kind}")
            return False
        if "_Empty" in facts.reason or (self._raised_at and steps[0][0].covers(*self._raised_at)):
            self._end_early(self._trouble or f"the search ended at {self._name(steps[0][1], facts.kind)}: {UNKNOWN}")
            return False
        self._add_site(facts, steps, noted)
        spot = next((spot for spot, _ in steps if spot not in self.spots), None)
        if spot is None:
            is_reached = self.spots[steps[0][0]] in noted.values
            why = "it breaks with a value in its place too" if is_reached else "the repeated call does not come there"
            self._end_early(f"the search ended at {self._name(steps[0][1], facts.kind)}: {why}")
            self._mark_end(span_of(narrow_to_header(steps[0][1]), self.book), why, bench.call)
            return False
        if spot is not steps[0][0]:
            self._mark(f"passed with a value in place of {self._code_at(spot)}")
        self.spots[spot] = len(self.spots)
        self._numbers.setdefault(self.sites[-1].id, self.spots[spot])
        self._calls.setdefault(self.sites[-1].id, bench.call)
        return True

    def _program(self, spots: Mapping[Spot, int]) -> Program:
        return Program(self.functions, spots, self.change.edits, self.change.definitions)

    def _note_values(self, bench: Bench) -> Noted | None:
        """Run the program once and record values at the spots; leave out a spot with effects outside the process.

        None if the program exceeds its time limit.
        """
        noted = Noted()
        why = bench.run_noting(self._program(self.spots), noted, frozenset(self.left_out))
        self._trouble, self._raised_at = "", None
        if isinstance(why, OutsideError):
            spot = self._spot_of(why)
            if spot is not None and self.spots[spot] not in self.left_out:
                self.left_out.add(self.spots[spot])
                self._mark_spot(spot, f"not run again, as {why}: an empty object takes the place of its value")
                return self._note_values(bench)
            self._trouble = f"the repeated call stops{self._place_of_error(why)}, as {why}: what follows is unknown"
        elif isinstance(why, TimeLimitError):
            self._end_early(
                f"the search ended, as the call did not end within {bench.seconds:g} s when it was repeated"
                f"{self._place_of_error(why)}: what follows is unknown"
            )
            return None
        elif why is not None:
            self._trouble = f"the program raises {_words_of(why, self._place_of_error(why))}"
            self._raised_at = next(iter(self._users_positions(why)[-1:]), None)
        return noted

    def _tell_of_runs(self, bench: Bench) -> None:
        """Add problems of a call's runs: an error, written files, changed process-wide settings, consumed iterators."""
        if self._trouble:
            self._end_early(self._trouble)
        self._tell_written(bench.heard)
        for name in bench.changed:
            self._tell(f"the call changes {name}: the x-ray sets that back after each run")
        for name in State.of(bench.roots, largest=0).consumed:
            self._tell(
                f"`{name}` is an iterator: what the explored call took from it can't be put back, so sites that need "
                "its items are missing. With a list in its place, they are found"
            )

    def _spot_of(self, error: BaseException) -> Spot | None:
        """The innermost spot that was running when an error was raised; None if there was none."""
        for file, position in reversed(list(_positions(error))):
            around = [spot for spot in self.spots if spot.covers(file, position)]
            if around:
                return max(around, key=lambda spot: (spot.start, [-each for each in spot.end]))
        return None

    def _place_of_error(self, error: BaseException) -> str:
        """Place of an error in the user's code, in words: ` at file.py:12`; "" if there is none."""
        own = self._users_positions(error)
        return f" at {self.book.name(own[-1][0])}:{own[-1][1][0]}" if own else ""

    @staticmethod
    def _users_positions(error: BaseException) -> list[tuple[str, tuple[int, int]]]:
        """File and position of each frame of an error's traceback in the user's code, outermost first."""
        return [
            (file, position)
            for file, position in _positions(error)
            if not (is_installed(file) or is_dynamo(file) or file.startswith(_OURS))
        ]

    def _tell_written(self, heard: Heard) -> None:
        """Set a note of each site that would write a file; for a file opened elsewhere, add a problem."""
        for each in heard.written:
            words = f"it writes {each.path!r}; when it is repeated, a file in memory takes its place"
            sites = [site for site in self.sites if self.book.path(site.file) == each.file
                     and site.line <= each.line <= site.span.end_line]  # fmt: skip
            site = next((site for site in sites if "open" in site.span.code), next(iter(sites), None))
            if site and not site.note:
                self._mark(words, site)
            elif not site:
                self._tell(f"at {self.book.name(each.file)}:{each.line} {words}")

    def _add_site(self, facts: BreakFacts, steps: Sequence[tuple[Spot, Place]], noted: Noted) -> None:
        """Add the site of a break, unless it is known already."""
        place = narrow_to_header(steps[0][1])
        span = span_of(place, self.book)
        if any(site.span == span for site in self.sites) or self._is_again(steps[0][0], facts.kind, noted):
            return
        site = self._site(self._next_id, facts, steps[0][1])
        seen = next((item for item in self.record.breaks if _site_span(item) == span), None)
        behind = "" if seen is not None else self._site_hiding(span)
        self.sites.append(replace(site, as_it_is=seen is not None, behind=behind))

    def site_of(self, facts: BreakFacts) -> Site:
        """A site, without an id, for a break that only a change of the program causes."""
        places = [place for place in facts.places if self.is_of_site(place)]
        return self._site("", facts, places[-1] if places else facts.places[-1])

    def _site(self, identity: str, facts: BreakFacts, inner: Place) -> Site:
        own, place = facts.places[: facts.places.index(inner) + 1], narrow_to_header(inner)
        found = graph_break(
            identity, "", _at_users_call(facts, own), self.book, registry=break_registry(), outermost=len(own) == 1
        )
        span = span_of(place, self.book)
        node = nodes_around(place)
        return Site(
            id=identity, file=span.file, line=span.line, span=span, kind=found.kind, what=found.what,
            reason=found.reason, chain=found.chain, branch=branch(place),
            origins=origins([*own[:-1], place], node[-1], self.book) if node else (),
            suggestions=(*self._overrides(facts, place), *found.suggestions), report=self._report(found, place, span),
        )  # fmt: skip

    def _overrides(self, facts: BreakFacts, place: Place) -> tuple[Suggestion, ...]:
        """Suggestions for a line of an installed package whose function the user's code can replace."""
        if not is_upstream(place.file):
            return ()
        own = [each.file for each in facts.places if not is_installed(each.file)]
        found = (self.as_override(item, place, own) for item in rewrites_at(facts, place, self.book))
        return tuple(item for item in found if item is not None)

    def as_override(self, item: Suggestion, place: Place, own: Sequence[str] = ()) -> Suggestion | None:
        """A suggestion for a line of a package as a change of a copy in the user's code; None if there can be none.

        `own` are the user's files on the way to the line, by default those of other sites and of the call.
        """
        files = own or own_files(self)
        override = override_at(place, self.functions.get(place.file, ())) if files else None
        if override is None or not override.code([edit_of(item, self.book)], self.names_in(files[0]), item.definitions):
            return None
        return in_your_code(item, override)

    def names_in(self, file: str) -> Mapping[str, Any]:
        """The global names of a file's module; cells share those of `__main__`."""
        own = vars(sys.modules["__main__"]) if is_cell(file) else {}
        return next((each.__globals__ for each in self.functions.get(file, ())), own)

    def _report(self, found: GraphBreak, place: Place, span: Span) -> str:
        return report_text(found, span, self.record.environment) if is_upstream(place.file) else ""

    @property
    def _next_id(self) -> str:
        """Id of the next site. Sites are numbered from 1, as on their cards."""
        return f"site[{len(self.sites) + 1}]"

    def _add_unreached(self) -> None:
        """Add the exploration's breaks that the search did not find.

        If the search did not end early, a break that the repeated calls reach is a consequence of an earlier break. All
        other breaks are added as sites.
        """
        known = [site.span for site in self.sites]
        breaks = {_site_span(item): item for item in reversed(self.record.breaks)}
        missed = {span: item for span, item in breaks.items() if span and span.end_column and span not in known}
        spots = {span: Spot.of_place(self.place_of(span)) for span in missed}
        numbers = self.spots | {spot: len(self.spots) + n for n, spot in enumerate(spots.values())}
        noted = Noted()
        for each in (self.call, *self.call.later) if missed else ():
            with repeatable(each) as restore:
                Bench(each, restore, self.limit).run_noting(self._program(numbers), noted, frozenset(self.left_out))
        for span, item in missed.items():
            if numbers[spots[span]] not in noted.values:
                self._add_seen(item, span, "the explored call came here; made again, it does not")
            elif self._is_whole:
                self.consequences.append(span)
            else:
                self._add_seen(item, span, "the search ended before it came here")

    def _add_seen(self, found: GraphBreak, span: Span, note: str) -> None:
        """Add a site that only the exploration reached."""
        self.sites.append(Site(
            id=self._next_id, file=span.file, line=span.line, span=span, kind=found.kind, what=found.what,
            reason=found.reason, chain=found.chain, branch=branch(self.place_of(span)), suggestions=found.suggestions,
            passed=False, note=note,
        ))  # fmt: skip

    def _is_again(self, spot: Spot, kind: str, noted: Noted) -> bool:
        """Whether a break only comes from the unsupported value of a known spot inside the spot of the break."""
        inner = [number for other, number in self.spots.items() if other.is_inside(spot)]
        objects = [number for number in inner if not noted.is_plain(number)]
        return bool(objects) and any(site.kind == kind for site in self.sites[-1:])

    def _site_hiding(self, span: Span) -> str:
        """Id of the last site whose break left a span untraced; "" if there are no sites.

        If no break covers the span, the id of the last site that left any lines untraced, or else of the last site.
        """
        evicting = [item for item in self.record.breaks if item.unread is not None or item.outcome != "resumed"]
        covering = [item for item in evicting if item.unread and item.file == span.file
                    and item.unread[0] <= span.line <= item.unread[1]]  # fmt: skip
        spans = [_site_span(item) for item in (covering or evicting)]
        return next((site.id for site in reversed(self.sites) if site.span in spans),
                    self.sites[-1].id if self.sites else "")  # fmt: skip

    def _mark(self, note: str, site: Site | None = None) -> None:
        """Set the note of a site, by default of the one found last."""
        if self.sites:
            index = -1 if site is None else self.sites.index(site)
            self.sites[index] = replace(self.sites[index], note=note)

    def _mark_end(self, span: Span, why: str, call: Call) -> None:
        """Set that the search of a call ended at the site with this span. Its fixes can be tried on the call."""
        for number, site in enumerate(self.sites):
            if site.span == span:
                self.sites[number] = replace(site, passed=False, note=f"the search ended here: {why}")
                self._calls.setdefault(site.id, call)

    def _mark_spot(self, spot: Spot, note: str) -> None:
        """Set the note of the site that a spot replaces."""
        number = self.spots[spot]
        for site in [site for site in self.sites if self._numbers.get(site.id) == number]:
            self._mark(note, site)

    def place_of(self, span: Span) -> Place:
        path = self.book.path(span.file) or next(
            (path for path in self.functions if is_installed(path) and importable_path(path) == span.file), ""
        )
        first, last = linecache.getline(path, span.line), linecache.getline(path, span.end_line)
        columns = len(first[: span.column].encode()), len(last[: span.end_column].encode())
        return Place(path, span.function, span.line, span.end_line, *columns)

    def _name(self, place: Place, kind: str) -> str:
        return f"{self.book.name(place.file)}:{place.line} ({kind})"

    def _code_at(self, spot: Spot) -> str:
        """The code at a spot, in one line, and the number of its line."""
        place = Place(spot.file, "", spot.start[0], spot.end[0], spot.start[1], spot.end[1])
        return f"`{one_line(span_of(place, self.book).code)}` in line {place.line}"

    def _end_early(self, problem: str) -> None:
        """Add a problem: the reason why the search of a call ended before all of its sites were found."""
        self._is_whole = False
        self._tell(problem)

    def _tell(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def _is_of_site(place: Place) -> bool:
    """Whether a place can be a site: in the user's code or a package that uses torch, but not in torch itself."""
    if is_dynamo(place.file) or place.file.startswith((_TORCH, _OURS, "<frozen")) or is_standard(place.file):
        return False
    return not is_installed(place.file) or _is_package_with_torch(importable_path(place.file))


def _is_package_with_torch(file: str) -> bool:
    """Whether a file is of a package that uses torch. A break in another package, as in PIL, is a site at its call."""
    package = file.split("/", maxsplit=1)[0].removesuffix(".py")
    return package != "torch" and _uses_torch(package, len(sys.modules))


@functools.lru_cache(maxsize=256)
def _uses_torch(package: str, _modules: int) -> bool:
    modules = [module for name, module in imported_modules().items() if name.split(".")[0] == package]
    return any(getattr(value, "__name__", "").split(".")[0] == "torch" or _is_torchs(value)
               for module in modules for value in list(vars(module).values()))  # fmt: skip


def _is_torchs(value: Any) -> bool:
    return isinstance(value, type | FunctionType) and str(value.__module__).split(".")[0] == "torch"


def _at_users_call(facts: BreakFacts, own: tuple[Place, ...]) -> BreakFacts:
    """Facts of a break, without places in a package that does not use torch: the call of the package is the site."""
    inside = facts.places[len(own) :]
    is_package = bool(inside) and is_installed(inside[0].file) and not is_standard(inside[0].file)
    is_torchs = bool(inside) and inside[0].file.startswith(_TORCH)
    return replace(facts, places=own) if is_package and not is_torchs else facts


def _words_of(error: BaseException, where: str) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__} when it is repeated{where}" + (f": {first}" if first else "")


def _positions(error: BaseException) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield file and position (line, column) of each frame of an error's traceback, outermost first."""
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.filename, (frame.lineno or 0, frame.colno or 0)


def own_files(search: Search) -> list[str]:
    """The user's files that can hold settings or overrides: files on the way to sites, then files of the call."""
    called = (search.book.path(span.file) for site in search.sites for span in site.chain if not span.installed)
    sites = (frame.file for frame in reversed(search.call.site))
    return [file for file in dict.fromkeys((*called, *sites)) if file and linecache.getlines(file)]


def edit_of(item: Suggestion, book: SourceBook) -> Edit:
    """The edit that a suggestion with a rewrite makes."""
    return Edit(book.path(item.file), item.line, max(item.end_line, item.line), item.rewrite)


def _steps(facts: BreakFacts) -> Iterator[tuple[Spot, Place]]:
    """Yield spots (with places) that can be replaced to pass a break, from the expression outwards to its callers."""
    for place in reversed(facts.places):
        if not _is_of_site(place):
            continue
        here = narrow_to_header(place)
        nodes = nodes_around(here)
        around = [node for node in nodes if isinstance(node, ast.stmt)]
        inner = nodes[nodes.index(around[-1]) + 1 :] if around else ()
        for node in reversed([node for node in inner if isinstance(node, ast.expr)]):
            if can_be_replaced(node):
                yield Spot.of_node(place.file, node, _kind(facts, node, around[-1])), place
        if around and isinstance(around[-1], ast.Assign | ast.AugAssign | ast.Delete | ast.Expr | ast.Assert):
            yield Spot.of_node(place.file, around[-1], "statement"), place


def can_be_replaced(node: ast.expr) -> bool:
    """Whether a node is a replaceable value: no target of an assignment, starred part, slice, yield or await."""
    is_target = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
    return not is_target and not isinstance(node, ast.Starred | ast.Slice | ast.Yield | ast.YieldFrom | ast.Await)


def _kind(facts: BreakFacts, node: ast.expr, statement: ast.stmt) -> Kind:
    if isinstance(statement, ast.With) and any(item.context_expr is node for item in statement.items):
        return "context"
    return "truth" if facts.kind in BRANCH else "value"


def _site_span(found: GraphBreak) -> Span | None:
    """Place of a recorded break as a site: the innermost in the user's code or a package with torch; None if none."""
    own = [span for span in found.chain if not span.installed or _is_package_with_torch(span.file)]
    return own[-1] if own else None
