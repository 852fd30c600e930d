"""Try fixes: apply an edit, capture and run again, and compare results and side effects of the call.

A fix is first tried alone, with values in place of all other sites, to see whether the break is gone and whether
another break appears. Then the edited program is run eagerly and compiled, and the outcomes are compared.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.capture.assignments import source_of_file
from compiler.capture.sources import span_of
from compiler.capture.suggestions.case import narrow_to_header
from compiler.capture.suggestions.values import NAN_CHECK
from compiler.record import Fix, FixState, ProgramCost, Site, Span, Suggestion, XRay
from compiler.record.break_facts import BreakFacts, Place
from compiler.record.xray_facts import UNTRIED
from compiler.torch_api import apart
from compiler.torch_api.numpy_random import numpy_draws_from_torch
from compiler.xray.bench import FORMS, Bench, repeatable
from compiler.xray.cost import cost_of, milliseconds_of
from compiler.xray.operators import CLOCK, operator_suggestions
from compiler.xray.outcomes import Outcome, compare_outcomes, run_and_hear
from compiler.xray.outside import STOPS
from compiler.xray.search import Search, edit_of
from compiler.xray.substitution import Change, Definition, Noted, Program, Spot, with_definitions
from compiler.xray.time_limit import TimeBudget

SEEDS = 3
"""Number of sets of random inputs on which a change is compared, besides the call's own inputs."""
MOST_MOVES = 2
"""Maximum number of further suggestions that are added to a fix, as long as each only moves the break."""
MOST_OTHERS = 4
"""Maximum number of further suggestions to try for a site whose fix does not work with the others."""
MOST_STARTS = 3
"""Maximum number of fixes that are tried as the first of a combination, if the best one lacks them."""
WORKING = ("verified", "changes when a side effect happens")
"""States of fixes that can be applied."""
ALONE, TOGETHER, COSTS = 0.5, 0.7, 0.75
"""Shares of the time budget after which no fix is tried alone, no more are combined, and no cost of one is counted."""
ALONE_ONLY = "it was not tried together with the others, as the time for trying fixes was over"
_WORST = (*WORKING, "moves the break", "no fix known")


@dataclass(frozen=True)
class Tried:
    """The best fix of each site, and the combination of the fixes that are marked `together`.

    `change` is the combined change, `left` has the sites that remain with it. `why_not` is the reason why the combined
    fixes do not work, "" if they do. `cost` is the cost of the unchanged program, `cost_after` the cost with `change`.
    """

    fixes: tuple[Fix, ...]
    change: Change = field(default_factory=Change)
    left: XRay = field(default_factory=lambda: XRay(()))
    why_not: str = ""
    cost: ProgramCost | None = None
    cost_after: ProgramCost | None = None

    @property
    def rank(self) -> tuple[bool, int]:
        """Sorting key, the best first: whether a search with the change has problems, and the number of its sites."""
        return bool(self.left.problems), len(self.left.sites)


def _breaks_more(before: ProgramCost | None, after: ProgramCost | None) -> bool:
    return before is not None and after is not None and after.breaks > before.breaks


def _mark_more_breaks(fix: Fix, before: ProgramCost | None) -> Fix:
    """A fix with words that say so if more lines break with it, and so no longer one that works; any other as it is."""
    if fix.state not in WORKING or not _breaks_more(before, fix.cost):
        return fix
    return replace(fix, state="moves the break", words=f"with it alone, more lines break than before; {fix.words}")


def _mark_failing(fix: Fix, why: str) -> Fix:
    """A fix with the reason why the program can't be compiled with it; as it is if the reason is ""."""
    return replace(fix, state="no fix known", words=f"with it, {why}") if why else fix


def _count(fixes: Sequence[Fix], settings: tuple[str, ...]) -> int:
    return sum(each.settings == settings for fix in fixes for each in fix.suggestions)


@dataclass
class Trials:
    """Tries fixes for the sites of one search.

    `failure_of` returns why the user's backend can't compile the program with a change, "" if it can. It is asked for
    combinations only, as single trials end at AOTAutograd.
    """

    search: Search
    budget: TimeBudget = field(default_factory=TimeBudget)
    failure_of: Callable[[Change], str] = lambda _: ""
    _reasons: dict[frozenset[Fix], str] = field(default_factory=dict)
    _left: dict[Change, XRay] = field(default_factory=dict)
    _others: dict[str, list[Fix]] = field(default_factory=dict)
    _untried: set[str] = field(default_factory=set)

    def run(self) -> Tried:
        """Try the fixes of each site alone, then combine those that work; return the best combination.

        Sites with the most breaks come first, as the time may not suffice for all.
        """
        with apart.forget_compilations():
            costly_first = sorted(self.search.sites, key=self.search.count_breaks, reverse=True)
            found = {site.id: self._best(site) for site in costly_first}
            fixes = [found[site.id] for site in self.search.sites]
            self.search.hear("trying the fixes together")
            tried = self._drop_failing_fixes(self._begin_with_one(fixes, self._combine(fixes)))
            tried = replace(tried, fixes=tuple(map(self._mark_untried, tried.fixes)))
        return self._without_more_breaks(self.with_cost(self._with_cost_of_each(tried)))

    def _drop_failing_fixes(self, tried: Tried) -> Tried:
        """The combination, without fixes with which the user's backend can't compile the program."""
        chosen = [fix for fix in tried.fixes if fix.together]
        why = self.failure_of(tried.change) if chosen else ""
        if not why:
            return tried
        alone = {fix.site: self.failure_of(self.change_of_fixes([fix])) for fix in chosen}
        failures = {site: each for site, each in alone.items() if each} or dict.fromkeys(alone, why)
        marked = tuple(_mark_failing(fix, failures.get(fix.site, "")) for fix in tried.fixes)
        rest = self._all_or_none([fix for fix in chosen if fix.site not in failures])
        return self._drop_failing_fixes(self._combination_of(marked, rest))

    def _without_more_breaks(self, tried: Tried) -> Tried:
        """The combination, without fixes after which the graph breaks at more lines than before.

        So it may where a break made torch skip the whole function, which is compiled in parts once the break is gone.
        """
        if not _breaks_more(tried.cost, tried.cost_after):
            return tried
        chosen = [fix for fix in tried.fixes if fix.together and not _breaks_more(tried.cost, fix.cost)]
        for fixes in (chosen, []):
            fewer = self.with_cost(replace(self._combination_of(tried.fixes, fixes), cost=tried.cost))
            if not _breaks_more(fewer.cost, fewer.cost_after) and not self.failure_of(fewer.change):
                break
        marked = (_mark_more_breaks(fix, tried.cost) for fix in fewer.fixes)
        return replace(fewer, fixes=tuple(marked))

    def with_cost(self, tried: Tried, added: Change | None = None) -> Tried:
        """Count what a change costs and which sites it leaves; `added` is a change to add to it."""
        if added is not None and added != tried.change:
            tried = replace(tried, change=added, left=self._sites_after(added))
        before = tried.cost or self._cost(Change())
        after = self._cost(tried.change) if tried.change != Change() else before
        return replace(tried, cost=before, cost_after=after)

    def _cost(self, change: Change) -> ProgramCost | None:
        """The cost of the program with a change; with its time, if the exploration measured times."""
        cost = cost_of(self.search, change)
        is_timed = cost is not None and self.search.record.options.time and not self.budget.is_spent()
        return replace(cost, milliseconds=milliseconds_of(self.search, change)) if cost and is_timed else cost

    def _with_cost_of_each(self, tried: Tried) -> Tried:
        """Add the cost of the program with each working fix alone."""
        costs: dict[tuple[Suggestion, ...], ProgramCost | None] = {}
        for fix in tried.fixes:
            if fix.state in WORKING and fix.suggestions not in costs and not self.budget.is_spent(COSTS):
                costs[fix.suggestions] = self._cost(self.change_of_fixes([fix]))
        return replace(tried, fixes=tuple(replace(fix, cost=costs.get(fix.suggestions)) for fix in tried.fixes))

    def _combine(self, fixes: Sequence[Fix]) -> Tried:
        """Combine the fixes that work: all at once or, if that leaves some of their sites, setting by setting.

        Fixes without settings come first. A setting affects all code, so it is kept only if the program then has fewer
        sites or its problems are gone. Returns the best combination.
        """
        working = [fix for fix in fixes if fix.state in WORKING]
        settings = list(dict.fromkeys(each.settings for fix in working for each in fix.suggestions if each.settings))
        best = self._combination_of(fixes, self._all_or_none(working) if settings else self._grow([], working))
        if best.rank == (False, len(fixes) - len(working)) or not settings:
            return best
        chosen: list[Fix] = []
        kept: set[tuple[str, ...]] = {()}
        for setting in [(), *sorted(settings, key=lambda each: -_count(working, each))]:
            if self.budget.is_spent(TOGETHER):
                self._untried |= {fix.site for fix in working}
                break
            more = [fix for fix in working if {each.settings for each in fix.suggestions} <= kept | {setting}]
            grown = self._grow(chosen, [fix for fix in more if fix.site not in {each.site for each in chosen}])
            tried = self._combination_of(fixes, grown)
            if tried.rank < best.rank or not setting:
                chosen, kept = grown, kept | {setting}
            best = min(best, tried, key=lambda each: each.rank)
        return best

    def _begin_with_one(self, fixes: Sequence[Fix], best: Tried) -> Tried:
        """The best combination, or a better one of a fix that it lacks: a fix may mend more sites than its own.

        So does a loop over all indices that takes the place of tensors, which make other lines in the loop break.
        """
        own = {fix.suggestions for fix in best.fixes if fix.together}
        working = [fix for fix in fixes if fix.state in WORKING]
        for fix in [fix for fix in working if fix.suggestions not in own][:MOST_STARTS]:
            if best.rank == (False, 0) or self.budget.is_spent(TOGETHER):
                break
            alone = self._combination_of(fixes, [fix])
            if alone.rank < best.rank:
                grown = self._grow([fix], [each for each in working if each is not fix]) if alone.left.sites else [fix]
                best = min(alone, self._combination_of(fixes, grown), key=lambda each: each.rank)
        return best

    def _mark_untried(self, fix: Fix) -> Fix:
        """A fix that was not tried together with the others, with words that say so; any other as it is."""
        is_untried = fix.site in self._untried and not fix.together
        return replace(fix, words=f"{fix.words}; {ALONE_ONLY}") if is_untried else fix

    def _all_or_none(self, working: Sequence[Fix]) -> list[Fix]:
        """The fixes that edit different lines if these work together, else none."""
        fitting = self._add_compatible_fixes([], working)
        return [] if self._reason_against(fitting) else fitting

    def _combination_of(self, fixes: Sequence[Fix], chosen: Sequence[Fix], why_not: str = "") -> Tried:
        """Combine chosen fixes into one change, and find the sites that remain with it."""
        own = {fix.site: fix for fix in chosen}
        marked = tuple(replace(own.get(fix.site, fix), together=fix.site in own) for fix in fixes)
        change = self.change_of_fixes(chosen)
        return Tried(marked, change, self._sites_after(change), why_not)

    def _sites_after(self, change: Change) -> XRay:
        if change not in self._left:
            self._left[change] = self.search.sites_after(change, self.budget.left)
        return self._left[change]

    def try_together(self, fixes: Sequence[Fix], chosen: Sequence[Fix]) -> Tried:
        """Try chosen fixes together, whether or not each works alone. Raises ValueError if two edit the same line."""
        for first, second in itertools.combinations(chosen, 2):
            if not self.change_of_fixes([first]).fits(self.change_of_fixes([second])):
                raise ValueError(f"the fixes of {first.site} and {second.site} edit the same line: choose one of them")
        with apart.forget_compilations():
            why_not = self._reason_against(chosen) or self.failure_of(self.change_of_fixes(chosen))
            return self._combination_of(fixes, chosen, why_not)

    def _best(self, site: Site) -> Fix:
        """Try the fixes of a site; return the first that is verified, or else the best."""
        number = self.search.sites.index(site) + 1
        self.search.hear(f"trying fixes for site {number} of {len(self.search.sites)}")
        call = self.search.call_of(site)
        if call is None:
            return Fix(
                site.id, None, "no fix known", "nothing could be tried: the call, made again, does not come here"
            )
        if self.budget.is_spent(ALONE):
            return Fix(site.id, next(iter(site.suggestions), None), "no fix known", UNTRIED)
        tried: list[Fix] = []
        with repeatable(call) as restore:
            trial = Trial(self.search, Bench(call, restore, self.search.limit), budget=self.budget)
            for suggestion in self._suggestions(site):
                tried.append(trial.try_suggestions(site, (suggestion,)))
                if tried[-1].state == "verified":
                    return tried[-1]
                if self.budget.is_spent(ALONE):
                    break
            best = min(tried, key=_order, default=_unknown(site))
            return best if best.state in WORKING else trial.follow(site, tried, MOST_MOVES) or best

    def _suggestions(self, site: Site) -> Iterator[Suggestion]:
        """Yield the suggestions of a site, and then suggestions to run its code as an operator."""
        yield from site.suggestions
        yield from operator_suggestions(self.search, site)

    def _grow(self, chosen: list[Fix], more: Sequence[Fix]) -> list[Fix]:
        """Add the fixes in `more` that work together with `chosen`: try all at once, or else each half in turn."""
        fitting = self._add_compatible_fixes(chosen, more)
        added = fitting[len(chosen) :]
        if self._reasons and self.budget.is_spent(TOGETHER):
            self._untried |= {fix.site for fix in added}
            return chosen
        if not added or not self._reason_against(fitting):
            return fitting
        if len(added) == 1:
            return next(filter(None, self._other_ways(chosen, added[0])), chosen)
        half = len(added) // 2
        return self._grow(self._grow(chosen, added[:half]), added[half:])

    def _add_compatible_fixes(self, chosen: Sequence[Fix], more: Sequence[Fix]) -> list[Fix]:
        """Chosen fixes, and those of `more` that edit other lines."""
        fitting = list(chosen)
        for fix in more:
            if self.change_of_fixes(fitting).fits(self.change_of_fixes([fix])):
                fitting.append(fix)
        return fitting

    def _other_ways(self, chosen: list[Fix], fix: Fix) -> Iterator[list[Fix]]:
        """Yield combinations with another fix of the same site, or of the site of a setting that may be in its way."""
        settings = {each.settings for one in (*chosen, fix) for each in one.suggestions}
        for replaced in [fix, *reversed([each for each in chosen if any(one.settings for one in each.suggestions)])][
            :2
        ]:
            rest = [each for each in (*chosen, fix) if each is not replaced]
            for other in self._alternatives(replaced):
                is_allowed = {each.settings for each in other.suggestions} <= settings
                fits = self.change_of_fixes(rest).fits(self.change_of_fixes([other]))
                if is_allowed and fits and not self._reason_against([*rest, other]):
                    yield [*rest, other]

    def _alternatives(self, fix: Fix) -> list[Fix]:
        """Further fixes of a site that work, without the one that was tried first."""
        site = next(site for site in self.search.sites if site.id == fix.site)
        call = self.search.call_of(site)
        if fix.site not in self._others and call is not None and not self.budget.is_spent(TOGETHER):
            later = list(itertools.dropwhile(lambda each: each != fix.suggestion, self._suggestions(site)))[1:]
            with repeatable(call) as restore:
                trial = Trial(self.search, Bench(call, restore, self.search.limit), budget=self.budget)
                found = [trial.try_suggestions(site, (suggestion,)) for suggestion in later[:MOST_OTHERS]]
            self._others[fix.site] = [each for each in found if each.state in WORKING]
        return self._others.get(fix.site, [])

    def _mended_sites(self, identity: str, suggestion: Suggestion) -> set[str]:
        site = next(site for site in self.search.sites if site.id == identity)
        return self.search.sites_mended_by(site, suggestion)

    def change_of_fixes(self, fixes: Sequence[Fix]) -> Change:
        """The change that applies all of these fixes."""
        return sum((change_of(self.search, each) for fix in fixes for each in fix.suggestions), Change())

    def _reason_against(self, fixes: Sequence[Fix]) -> str:
        """Why fixes do not work together in one of the calls; "" if they do."""
        key = frozenset(fixes)
        if key not in self._reasons:
            self._reasons[key] = self._find_reason_against(fixes)
        return self._reasons[key]

    def _find_reason_against(self, fixes: Sequence[Fix]) -> str:
        change = self.change_of_fixes(fixes)
        mended = {site for fix in fixes for each in fix.suggestions for site in self._mended_sites(fix.site, each)}
        for call in (self.search.call, *self.search.call.later):
            with repeatable(call) as restore:
                trial = Trial(self.search, Bench(call, restore, self.search.limit))
                if why := trial.reason_against(change, mended):
                    return why
        return ""


@dataclass
class Trial:
    """Tries changes on one call. `backend` is the backend for which the changed call is compiled.

    AOTAutograd is part of it, as symbolic sizes that TorchDynamo accepts may fail there.
    """

    search: Search
    bench: Bench
    backend: str = "aot_eager"
    budget: TimeBudget = field(default_factory=TimeBudget)
    _moved: dict[Spot, int] = field(default_factory=dict)
    _moved_by: dict[tuple[Suggestion, ...], BreakFacts] = field(default_factory=dict)
    _before: dict[tuple[frozenset[str], int | None], Outcome] = field(default_factory=dict)
    _compiled: list[Outcome] = field(default_factory=list)

    def reason_against(self, change: Change, mended: set[str]) -> str:
        """Why a change does not mend the `mended` sites (a break, a difference or an error); "" if it does."""
        try:
            with with_definitions(self.search.functions, change.definitions):
                broken = self._break_with(change, mended)
                return self._difference(change, mended)[0] if broken is None else _break_words(*broken[:2])
        except STOPS as error:  # fixes that work alone may raise anything together
            return f"the call raises {type(error).__name__}: {error}".splitlines()[0]

    def follow(self, site: Site, fixes: Sequence[Fix], moves: int) -> Fix | None:
        """Extend fixes that move the break by suggestions for its new place; return the first that works, or None."""
        for fix in fixes:
            change = sum((change_of(self.search, each) for each in fix.suggestions), Change())
            tried: list[Fix] = []
            for suggestion in self._suggestions_after(fix):
                more = change_of(self.search, suggestion)
                if more != Change() and change.fits(more) and not self.budget.is_spent(ALONE):
                    tried.append(self.try_suggestions(site, (*fix.suggestions, suggestion)))
                    if tried[-1].state in WORKING:
                        return tried[-1]
            if moves > 1 and (found := self.follow(site, tried, moves - 1)):
                return found
        return None

    def _suggestions_after(self, fix: Fix) -> list[Suggestion]:
        """Suggestions for the new place of a break that a fix moved; [] if it moved none."""
        facts = self._moved_by.get(fix.suggestions)
        if fix.state != "moves the break" or facts is None:
            return []
        moved = self.search.site_of(facts)
        return [*moved.suggestions, *operator_suggestions(self.search, moved)]

    def try_suggestions(self, site: Site, suggestions: tuple[Suggestion, ...]) -> Fix:
        """Try suggestions together for a site."""
        first, also = suggestions[0], suggestions[1:]
        changes = [change_of(self.search, each) for each in suggestions]
        change = sum(changes, Change())
        if changes[0] == Change():
            return Fix(site.id, first, "no fix known", f"this has to be changed by hand: {first.text}")
        mended = {each for suggestion in suggestions for each in self.search.sites_mended_by(site, suggestion)}
        try:
            with with_definitions(self.search.functions, change.definitions):
                moved = self._break_with(change, mended)
                why, when = ("", "") if moved else self._difference(change, mended)
        except SyntaxError as error:
            return Fix(site.id, first, "no fix known", f"the file can't be compiled with it: {error.msg}")
        except STOPS as error:  # the user's code may raise anything with the edit, or not end
            words = f"with it the call raises {type(error).__name__}: {error}"
            return Fix(site.id, first, "no fix known", words.splitlines()[0])
        if moved is not None:
            self._moved_by[suggestions] = moved[2]
            return replace(_moved_fix(site, first, *moved[:2]), also=also)
        if why:
            return Fix(site.id, first, "no fix known", why)
        when = when or next((each.caveat for each in suggestions if each.caveat in (CLOCK, NAN_CHECK)), "")
        state: FixState = "changes when a side effect happens" if when else "verified"
        words = when or "the break is gone, results and side effects are the same"
        return Fix(site.id, first, state, words, also=also)

    def _spots(self, mended: set[str]) -> dict[Spot, int]:
        """Spots of all sites except the mended ones."""
        own = {self.search.number_of(site) for site in self.search.sites if site.id in mended}
        return {spot: number for spot, number in self.search.spots.items() if number not in own}

    def _break_with(self, change: Change, mended: set[str]) -> tuple[Span, str, BreakFacts] | None:
        """Place, kind and facts of the break that remains with a change or is caused by it; None if there is none.

        All sites except the `mended` ones are replaced by values. Sites that the change moved are found and replaced.
        """
        self._moved = {}
        while True:
            program, noted = self._program(change, mended), Noted()
            with change.apply_settings():
                self.bench.run_noting(program, noted, frozenset(self.search.left_out))
                facts = self.bench.first_break(program, noted.stand_ins(), frozenset(self.search.left_out))
            if facts is None:
                return None
            place = self._place(facts)
            span, spot = span_of(place, self.search.book), Spot.of_place(place)
            if spot in self._moved or not self._is_other_site(span, facts.kind, mended):
                return span, facts.kind, facts
            self._moved[spot] = len(self.search.spots) + len(self._moved)

    def _program(self, change: Change, mended: set[str]) -> Program:
        spots = self._spots(mended) | (self._moved if change.edits else {})
        return Program(self.search.functions, spots, change.edits, change.definitions)

    def _place(self, facts: BreakFacts) -> Place:
        own = (place for place in reversed(facts.places) if self.search.is_of_site(place))
        return narrow_to_header(next(own, facts.places[-1]))

    def _is_other_site(self, span: Span, kind: str, mended: set[str]) -> bool:
        others = (site for site in self.search.sites if site.id not in mended and site.kind == kind)
        return any((site.file, site.line) == (span.file, span.line) for site in others)

    def _difference(self, change: Change, mended: set[str]) -> tuple[str, str]:
        """Differences with a change: in results or side effects, and in the order of output only; each "" if none.

        The changed call is compiled, with values in place of all sites that are not mended, so that the mended code is
        in a graph. Then it is also run eagerly on random inputs.
        """
        why, when = self._compare(change, mended, self.backend)
        if why:
            return why, ""
        for seed in self._seeds(change):
            why, _ = self._compare(change, mended, seed=seed)
            if why:
                return f"on other inputs, {why}", ""
        return "", when

    def _seeds(self, change: Change) -> Iterator[int]:
        """Yield seeds of random inputs to compare, also of inputs that take other branches in the changed lines."""
        yield from range(SEEDS)
        tests = {spot: number for number, spot in enumerate(_tests_in(change))}
        taken = {side for seed in (None, *range(SEEDS)) for side in self._sides(tests, seed)} if tests else set()
        for seed in range(SEEDS, len(FORMS)):
            if len(taken) == 2 * len(tests):
                return
            if more := self._sides(tests, seed) - taken:
                taken |= more
                yield seed

    def _sides(self, tests: Mapping[Spot, int], seed: int | None) -> set[tuple[int, bool]]:
        """Numbers of the conditions that the unchanged program evaluates, each with a value that it had."""
        noted = Noted()
        self.bench.run_noting(Program(self.search.functions, tests), noted, frozenset(), seed)
        return {(number, value) for number, values in noted.values.items() for value in values}

    def _compare(self, change: Change, mended: set[str], backend: str = "", seed: int | None = None) -> tuple[str, str]:
        """Compare one call without and with a change. Differences between two unchanged runs (times) are ignored."""
        key = frozenset(mended), seed
        before = self._before[key] = self._before.get(key) or self._outcome(Change(), mended, seed=seed)
        after = self._outcome(change, mended, backend, seed)
        why, when = compare_outcomes(before, before, after)
        if why or when:
            why, when = compare_outcomes(before, self._outcome(Change(), mended, seed=seed), after)
        if why and backend and not after.raised and not any(self._compare(change, mended)):
            drawn, again = (self._outcome(Change(), mended, draws=numpy_draws_from_torch) for _ in range(2))
            words = compare_outcomes(drawn, again, after)
            return self._compare_compiled(change, backend) if any(words) else words
        return why, when

    def _compare_compiled(self, change: Change, backend: str) -> tuple[str, str]:
        """Compare one compiled call without and with a change. No site is replaced by a value.

        Decides about a change that makes no difference in an eager call: compiling alone may change random numbers.
        """
        every = {site.id for site in self.search.sites} - self._left_out_sites()
        self._compiled = self._compiled or [self._outcome(Change(), every, backend) for _ in range(2)]
        first, second = self._compiled
        return compare_outcomes(first, second, self._outcome(change, every, backend))

    def _left_out_sites(self) -> set[str]:
        """Ids of the sites that must not run again."""
        return {site.id for site in self.search.sites if self.search.number_of(site) in self.search.left_out}

    def _outcome(
        self,
        change: Change,
        mended: set[str],
        backend: str = "",
        seed: int | None = None,
        draws: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Outcome:
        """Run the call with a change. `draws` decides where random numbers come from."""
        bench, noted, left_out = self.bench, Noted(), frozenset(self.search.left_out)
        program = self._program(change, mended)

        def call() -> Any:
            with bench.in_its_modes(), draws():
                return bench.call_once(backend)

        try:
            with change.apply_settings():
                bench.run_noting(program, noted, left_out, seed)
                with program.with_stand_ins(noted.stand_ins(), left_out):
                    bench.draw_inputs(seed)
                    return run_and_hear([call], bench.roots)
        finally:
            bench.restore()


def _tests_in(change: Change) -> list[Spot]:
    """The conditions in the lines that a change edits, without those that only raise an error."""
    found = list[Spot]()
    for edit in change.edits:
        source = source_of_file(edit.file)
        for node in ast.walk(source.tree) if source else ():
            is_choice = isinstance(node, ast.IfExp | ast.While) or (
                isinstance(node, ast.If) and not isinstance(node.body[0], ast.Raise)
            )
            if is_choice and edit.line <= node.test.lineno <= edit.end_line:  # type: ignore[attr-defined]
                found.append(Spot.of_node(edit.file, node.test, "truth"))  # type: ignore[attr-defined]
    return found


def _order(fix: Fix) -> tuple[int, bool]:
    """Sorting key of fixes, the best first; with equal states, a change that was tried comes before mere advice."""
    is_words = fix.suggestion is None or not fix.suggestion.can_be_applied
    return _WORST.index(fix.state), is_words


def change_of(search: Search, suggestion: Suggestion | None) -> Change:
    """Convert a suggestion to a change; None becomes an empty change."""
    if suggestion is None:
        return Change()
    if not suggestion.rewrite:
        return Change(settings=suggestion.settings)
    edit = edit_of(suggestion, search.book)
    definitions = (Definition(edit.file, text) for text in suggestion.definitions)
    return Change((edit,), suggestion.settings, tuple(definitions))


def _break_words(span: Span, kind: str) -> str:
    return f"line {span.line} breaks: {kind}"


def _moved_fix(site: Site, suggestion: Suggestion, span: Span, kind: str) -> Fix:
    if (span.file, span.line) == (site.file, site.line):
        return Fix(site.id, suggestion, "no fix known", f"the line still breaks: {kind}", span)
    return Fix(site.id, suggestion, "moves the break", f"line {span.line} breaks then: {kind}", span)


def _unknown(site: Site) -> Fix:
    return Fix(site.id, None, "no fix known", "nothing is known that mends it")
