"""Try fixes: apply an edit, capture and run again, and compare what the call gives and what it does.

A fix is tried alone, with values in the place of all other sites: is its break gone, and does another one come of it?
Then the edited program runs eagerly and compiled. Results and gradients are compared by the one policy of numbers; what
is printed, logged and warned of, and what the user's objects hold, is compared too.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from compiler.advise.trial import Result, agreement, results_of
from compiler.capture.breaks import span_of
from compiler.capture.suggestions.case import narrow_to_header
from compiler.numerics.policy.judge import judge
from compiler.record import Span, Suggestion
from compiler.torch_api import apart, dynamo
from compiler.torch_api.dynamo import BreakFacts
from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.settings import with_settings
from compiler.xray.facts import Fix, Site
from compiler.xray.outside import Heard, OutsideError, unheard
from compiler.xray.search import Bench, Search, repeatable
from compiler.xray.state import State
from compiler.xray.substitution import Edit, Noted, Program, Spot, edited, parsed

_NUMBERS = re.compile(r"\d+(\.\d+)?(e-?\d+)?")
_WORST = ("verified", "changes when a side effect happens", "moves the break", "no fix known")


@dataclass(frozen=True)
class Outcome:
    """What a call gave and did: results and gradients, what it said, what the user's objects held after it."""

    results: Sequence[Result] = ()
    said: tuple[tuple[str, str], ...] = ()
    held: Mapping[str, Any] = field(default_factory=dict)
    raised: str = ""
    graphs: int = 0
    breaks: int = 0


@dataclass(frozen=True)
class Change:
    """What is changed to mend sites: edits of files, and settings of torch."""

    edits: tuple[Edit, ...] = ()
    settings: tuple[str, ...] = ()

    def __add__(self, other: Change) -> Change:
        settings = dict.fromkeys((*self.settings, *other.settings))
        return Change((*self.edits, *(each for each in other.edits if each not in self.edits)), tuple(settings))

    def fits(self, other: Change) -> bool:
        """Whether no line is edited by both, unless in the same way."""
        pairs = ((mine, its) for mine in self.edits for its in other.edits if mine != its)
        return not any(mine.overlaps(its) for mine, its in pairs)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set the settings for a block."""
        with with_settings(self.settings) if self.settings else nullcontext():
            yield


class _Counter(dynamo.BreakCounter):
    """Counts graphs too."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs = 0

    def on_graph(self, *args: Any) -> Any:
        self.graphs += 1
        return super().on_graph(*args)


@dataclass
class Trials:
    """Tries the fixes of the sites of one search, on its first call."""

    search: Search
    _as_it_is: list[Outcome] = field(default_factory=list)

    def run(self) -> tuple[list[Fix], Change]:
        """The best fix of each site, and all that hold together."""
        fixes, together = [], Change()
        with self._bench() as bench:
            self._as_it_is = [self._outcome(bench, Change()) for _ in range(2)]
            for site in self.search.sites:
                tried = [self._try(bench, site, suggestion) for suggestion in site.suggestions]
                best = min(tried, key=lambda fix: _WORST.index(fix.state), default=_unknown(site))
                change = self.change_of(best.suggestion)
                if best.state in _WORST[:2] and together.fits(change):
                    longer = together + change
                    if not self._differs(bench, longer):
                        together, best = longer, replace(best, together=True)
                fixes.append(best)
        return fixes, together

    def change_of(self, suggestion: Suggestion | None) -> Change:
        """The change that a suggestion proposes."""
        if suggestion is None:
            return Change()
        if not suggestion.rewrite:
            return Change(settings=suggestion.settings)
        path = self.search.book.path(suggestion.file)
        end = max(suggestion.end_line, suggestion.line)
        return Change((Edit(path, suggestion.line, end, suggestion.rewrite),), suggestion.settings)

    @contextmanager
    def _bench(self) -> Iterator[Bench]:
        with repeatable(self.search.call) as restore, apart.forget_compilations(lambda _seconds: None):
            yield Bench(self.search.call, restore)

    def _try(self, bench: Bench, site: Site, suggestion: Suggestion) -> Fix:
        change = self.change_of(suggestion)
        if not (change.edits or change.settings):
            return Fix(site.id, suggestion, "no fix known", suggestion.text)
        try:
            moved = self._break_with(bench, site, change)
        except SyntaxError as error:
            return Fix(site.id, suggestion, "no fix known", f"the file can't be compiled with it: {error.msg}")
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises with the edit
            words = f"with it the call raises {type(error).__name__}: {error}"
            return Fix(site.id, suggestion, "no fix known", words.splitlines()[0])
        if moved is not None:
            span, kind = moved
            still = span == site.span or (span.file, span.line) == (site.file, site.line)
            words = f"it still breaks: {kind}" if still else f"it then breaks at line {span.line}: {kind}"
            return Fix(site.id, suggestion, "no fix known" if still else "moves the break", words, span)
        why, when = self._compare(bench, change)
        if why:
            return Fix(site.id, suggestion, "no fix known", why)
        state = "changes when a side effect happens" if when else "verified"
        return Fix(site.id, suggestion, state, when or "the break is gone, results and side effects are the same")

    def _break_with(self, bench: Bench, site: Site, change: Change) -> tuple[Span, str] | None:
        """The break that is left or comes of a change, with values in the place of all other sites; None for none."""
        spots = {spot: n for spot, n in self.search.spots.items() if n != self.search.number_of(site)}
        for _ in range(len(spots) + 2):
            program, noted = Program(self.search.functions, spots, change.edits), Noted()
            with change.applied():
                bench.run_noting(program, noted, frozenset(self.search.left_out))
                facts = bench.first_break(program, noted.stand_ins(), frozenset(self.search.left_out))
            if facts is None:
                return None
            span, other = self._known(facts, site)
            if other is None:
                return span, facts.kind
            spots = spots | {other: len(self.search.spots) + len(spots)}
            if list(spots.values()).count(spots[other]) > 1 or len(spots) > len(self.search.spots) + 8:
                return None
        return None

    def _known(self, facts: BreakFacts, site: Site) -> tuple[Span, Spot | None]:
        """The place of a break, and its spot if it is another site's, which an edit of its line has moved."""
        own = next((place for place in reversed(facts.places) if self.search.is_of_site(place)), facts.places[-1])
        place = narrow_to_header(own)
        span = span_of(place, self.search.book)
        others = (each for each in self.search.sites if each.id != site.id and each.kind == facts.kind)
        same_line = any((each.file, each.line) == (span.file, span.line) for each in others)
        return span, Spot.at(place) if same_line else None

    def _compare(self, bench: Bench, change: Change) -> tuple[str, str]:
        """What is different with a change, eagerly or compiled, and what only happens at another time."""
        eager = self._outcome(bench, change)
        why, when = self._difference(eager)
        if why:
            return why, ""
        compiled = self._outcome(bench, change, compiled=True)
        why, later = self._difference(compiled)
        return (f"compiled, {why}" if why else ""), when or later

    def _differs(self, bench: Bench, change: Change) -> bool:
        return bool(self._compare(bench, change)[0])

    def _outcome(self, bench: Bench, change: Change, *, compiled: bool = False) -> Outcome:
        """Run the call with a change; its gradients are those of the sum of all results that have some."""
        bench.restore()
        heard, counter = Heard(), _Counter()
        state = State.of(bench.roots)
        program = Program(self.search.functions, {}, change.edits)
        try:
            with ExitStack() as stack:
                stack.enter_context(program.with_stand_ins({}))
                stack.enter_context(change.applied())
                stack.enter_context(bench.around())
                stack.enter_context(unheard(heard))
                if compiled:
                    stack.enter_context(dynamo.observe(counter))
                value = bench.call_once(compiled=compiled)
                results = results_of(value, _gradients(value, state))
            return Outcome(results, _said(heard), state.values(), "", counter.graphs, counter.breaks)
        except (Exception, OutsideError) as error:  # noqa: BLE001 - whatever the user's code raises
            return Outcome(said=_said(heard), raised=f"{type(error).__name__}: {error}")
        finally:
            bench.restore()

    def _difference(self, mine: Outcome) -> tuple[str, str]:
        """What a changed call gives or does that is different, and what is only said at another time."""
        first, second = self._as_it_is
        if mine.raised != first.raised:
            return f"the call raises {mine.raised or 'nothing, where it raised'}".splitlines()[0], ""
        verdict, words = agreement(first.results, mine.results)
        if verdict == "differs" and agreement(first.results, second.results)[0] != "differs":
            return words, ""
        if held := next(iter(_held_differently(first.held, second.held, mine.held)), ""):
            return held, ""
        if _masked(first.said, second.said, mine.said) == _masked(first.said, second.said, first.said):
            return "", ""
        if sorted(_lines(mine.said)) == sorted(_lines(first.said)):
            return "", "what it prints, logs and warns of comes in another order"
        return "it prints, logs or warns of something else", ""


def _gradients(value: Any, state: State) -> list[torch.Tensor | None]:
    """Gradients of the sum of all results that have some."""
    outputs = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    floats = [leaf.float().sum() for leaf in outputs if leaf.is_floating_point() and leaf.grad_fn is not None]
    if floats:
        torch.stack(floats).sum().backward()
    return [None if leaf.grad is None else leaf.grad.detach().clone() for leaf in state.tensors()]


def _said(heard: Heard) -> tuple[tuple[str, str], ...]:
    return tuple(heard.said)


def _lines(said: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(kind, line) for kind, text in said for line in text.splitlines()]


def _masked(first: Any, second: Any, said: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What was said; without its numbers, where two runs of the program as it is said different ones (times)."""
    if first == second:
        return list(said)
    return [(kind, _NUMBERS.sub("#", text)) for kind, text in said]


def _held_differently(first: Mapping[str, Any], second: Mapping[str, Any], mine: Mapping[str, Any]) -> Iterator[str]:
    """Attributes and items that hold something else, but for those that do so in every run."""
    for name, value in first.items():
        if name not in mine:
            yield f"`{name}` is not there"
            continue
        steady = name in second and judge(name, second[name], value).verdict != "differs"
        if type(mine[name]) is not type(value):
            yield f"`{name}` was a {type(value).__name__}, is a {type(mine[name]).__name__}"
        elif steady and judge(name, mine[name], value).verdict == "differs":
            yield f"`{name}` is another"


def _unknown(site: Site) -> Fix:
    return Fix(site.id, None, "no fix known", "nothing is known that mends it")


def edited_files(change: Change) -> dict[str, tuple[list[str], list[str]]]:
    """The lines of each edited file, before and after."""
    files = dict.fromkeys(edit.file for edit in change.edits)
    found = {}
    for file in files:
        lines = linecache.getlines(file)
        own = [edit for edit in change.edits if edit.file == file]
        parsed(file, own)
        found[file] = lines, edited(lines, own)[0]
    return found
