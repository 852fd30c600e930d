"""The result of `run.xray()`: all graph breaks and causes of recompilation of a program, as data, tables and cards."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compiler.record import Cause, Fix, ProgramCost, Record, Site, XRay
from explorer.findings.cause_cards import cause_promises, cause_row, list_origins
from explorer.findings.xray import promises, search_notes, site_cards, xray_document
from explorer.reading.source_lines import SourceLines
from explorer.render.text import card_texts, document_text
from explorer.run.compiling import KernelCompiler, Maker
from explorer.run.patch import Patch, cell_texts, dynamic_magics, patch_of

if TYPE_CHECKING:
    import pandas as pd

    from compiler.calls.call import Call
    from compiler.xray.cause_fixes import Added
    from compiler.xray.causes import CauseSearch
    from compiler.xray.fixes import Trials, Tried
    from compiler.xray.search import Search
    from compiler.xray.substitution import Change

TRY_SECONDS = 120.0
"""Time for trying fixes: what takes longer, nobody waits for."""
NO_CALL = (
    "this run has no call to x-ray: it was loaded from a file, or its code calls torch.compile itself. Explore the "
    "call here first: %%tcompile, or tcompile.explore(model, x)"
)


class XRayed:
    """All sites of a program's graph breaks, and all causes of recompilation. Prints as cards.

    `sites` and `causes` are plain data; `table` and `causes_table` are DataFrames. The results are kept in the run's
    record, so a saved run has them.
    """

    def __init__(self, compiler: KernelCompiler, call: Call | None) -> None:
        self._compiler, self._call = compiler, call
        self.listener: Callable[[str], None] | None = None
        compiler.patch = self.patch if call is not None else None
        compiler.makers["xray"] = Maker(self._count_to_do, lambda _record: self._make())
        self._search: Search | None = None
        self._seconds = 60.0
        self._tried_for = math.inf
        self._cause_search: CauseSearch | None = None
        self._patches: dict[frozenset[str], Patch] = {}

    def _count_to_do(self, record: Record) -> int:
        """1 if the live view can offer to x-ray the call or to try fixes, else 0."""
        done = record.xray is not None and record.xray.left is not None
        return int(self._call is not None and bool(record.breaks or record.recompiles) and not done)

    def _make(self) -> Record:
        self.listener = lambda words: self._compiler.tell_making("xray", words)
        self.try_fixes()
        return self._compiler.record

    def find_sites(self, seconds: float = 60.0) -> XRayed:
        """Search for the sites unless the record has them; return this x-ray. Raises ValueError without a call.

        Each repetition of the call may take `seconds`.
        """
        self._seconds = seconds
        _ = self.found
        return self

    @property
    def found(self) -> XRay:
        """The results as plain data. Searches for sites at the first access, if necessary."""
        return self._compiler.record.xray or self._keep(self._find())

    def _find(self) -> XRay:
        """Search for sites and causes of recompilation."""
        sites, causes = self._search_once().found, self._search_causes_once()
        return replace(sites, causes=causes.causes, cause_notes=causes.notes)

    def _search_causes_once(self) -> CauseSearch:
        if self._cause_search is None:
            from compiler.engine import Exploration
            from compiler.xray.causes import find_causes

            self._cause_search = find_causes(self._search_once(), Exploration)
        return self._cause_search

    def _search_once(self) -> Search:
        if self._call is None:
            raise ValueError(NO_CALL)
        if self._search is None:
            from compiler.xray.search import search_sites

            self._search = search_sites(self._call, self._compiler.record, self._hear, self._seconds)
        return self._search

    def _hear(self, words: str) -> None:
        if self.listener is not None:
            self.listener(words)

    def _keep(self, found: XRay) -> XRay:
        self._compiler.grow(lambda record: record.with_fields(xray=found))
        return found

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites in the order found, each with `file`, `line`, `span`, `kind`, `origins`."""
        return self.found.sites

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes of recompilation, each with `file`, `line`, `span`, `kind`, `count`, `calls`, `fix`."""
        return self.found.causes

    @property
    def causes_table(self) -> pd.DataFrame:
        """One row per cause of recompilation, from 1: place, old and new value, count, and the change, if tried."""
        from explorer.reading.data_frames import table_of

        return _from_1(table_of("causes", [cause_row(cause) for cause in self.causes]))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on limits of the search, and on breaks that are only consequences of others."""
        return tuple(search_notes(self.found))

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """The best fix of each tried site; () before `try_fixes`."""
        return self.found.fixes

    @property
    def left(self) -> tuple[Site, ...]:
        """The sites that remain after the patch; tries the fixes first if necessary."""
        return self.try_fixes().found.left or ()

    @property
    def reports(self) -> tuple[str, ...]:
        """Issue texts for the authors of installed packages: one for each site in a package without a working fix."""
        mended = {fix.site for fix in self.fixes if fix.together}
        return tuple(site.report for site in self.sites if site.report and site.id not in mended)

    @property
    def cards(self) -> list[str]:
        """The card of each site as text."""
        return card_texts(site_cards(self.found, SourceLines(self._compiler.record)))

    @property
    def table(self) -> pd.DataFrame:
        """One row per site, from 1: place, cause, whether it is behind another, and the fix, if tried."""
        from explorer.reading.data_frames import table_of

        fixes = {fix.site: fix for fix in self.fixes}
        return _from_1(table_of("sites", [_row(site, fixes.get(site.id)) for site in self.sites]))

    def try_fixes(self, seconds: float = TRY_SECONDS) -> XRayed:
        """Apply the suggestions for each site, alone and together, and compare results and side effects of the call.

        For each cause of recompilation, changes are applied to all calls, and the compilations are counted again.

        A fix is "verified" if its break is gone, it causes no new break, and results, gradients, output, logs and
        attributes are the same, also on other inputs. After `seconds`, nothing more is tried, and what was found is
        kept: a later call with more seconds tries again. Returns this x-ray, with the fixes in its cards and table.
        """
        if self.found.left is None or self._tried_for < seconds:
            from compiler.record.xray_facts import UNTRIED
            from compiler.xray.cause_fixes import CauseTrials, mark_untried
            from compiler.xray.fixes import ALONE_ONLY, Trials
            from compiler.xray.states import capture_states
            from compiler.xray.time_limit import TimeBudget

            budget = TimeBudget(seconds)
            trials = Trials(self._search_once(), budget, self._search_causes_once().failure_of_patch)
            of_causes = CauseTrials(self._search_causes_once(), budget)
            tried, causes = trials.run(), of_causes.run()
            added = of_causes.add_to(tried.change)
            causes = mark_untried(causes, added)
            tried = self._with_kernels(trials.with_cost(tried, added.change), trials)
            states = capture_states(self._search_causes_once(), tried.fixes, budget)
            words = [*(fix.words for fix in tried.fixes), *(cause.fix.words for cause in causes if cause.fix)]
            is_short = any(each.endswith((UNTRIED, ALONE_ONLY)) for each in words)
            self._tried_for = seconds if is_short else math.inf
            found = replace(self._add_tried_fixes(tried), causes=causes, states=states)
            patch = self._patch_of(tried, causes, added)
            self._patches[_ids_together(tried.fixes)] = patch
            is_change = bool(patch.files or added.at_call)
            self._keep(replace(found, patch=str(patch) if is_change else ""))
        return self

    def _with_kernels(self, tried: Tried, trials: Trials) -> Tried:
        """Count the kernels without and with the patch and with each fix, if the exploration generated any."""
        from compiler.xray.cost import with_kernels

        record = self._compiler.record
        if not record.kernels or tried.cost == tried.cost_after or trials.budget.is_spent():
            return tried
        after = self._count_kernels(tried.cost_after, tried.change)
        if after is None or after.kernels is None:
            return tried
        fixes = (
            replace(fix, cost=self._count_kernels(fix.cost, trials.change_of_fixes([fix])))
            if fix.cost is not None and not trials.budget.is_spent()
            else fix
            for fix in tried.fixes
        )
        return replace(tried, fixes=tuple(fixes), cost=with_kernels(tried.cost, record), cost_after=after)

    def _count_kernels(self, cost: ProgramCost | None, change: Change) -> ProgramCost | None:
        from compiler.xray.cost import with_kernels

        return with_kernels(cost, self._search_causes_once().record_of_patch(change))

    def _add_tried_fixes(self, tried: Tried) -> XRay:
        """The results with tried fixes, what they leave, and costs."""
        return replace(
            self.found,
            fixes=tried.fixes,
            left=tried.left.sites,
            left_problems=tried.left.problems,
            cost=tried.cost,
            cost_after=tried.cost_after,
        )

    def patch(self, sites: Sequence[str | int] | None = None) -> Patch:
        """The fixes that work together, as a unified diff of your files or cell; tries the fixes first if necessary.

        print(run.xray().patch())         # all that work together
        run.xray().patch(sites=[1, 3])    # fixes of these sites, numbered from 1 as on the cards; tried together first

        The lines above the diff say which breaks are gone, which are left, and whether results and side effects are the
        same; if no fix works, there are only these lines. Nothing is changed; `tcompile xray FILE:NAME --write` changes
        files.
        Raises ValueError for an unknown site, a site without a fix, or fixes that edit the same line.
        """
        found = self.try_fixes().found
        wanted = _ids_together(found.fixes) if sites is None else frozenset(map(self._site_id, sites))
        if wanted not in self._patches:
            is_known = wanted == _ids_together(found.fixes)
            self._patches[wanted] = _kept_patch(found) if is_known else self._try_together(wanted)
        return self._patches[wanted]

    def _site_id(self, site: str | int) -> str:
        """The id of a site by its id or number, from 1. Raises ValueError if there is no such site."""
        ids = [each.id for each in self.sites]
        if isinstance(site, int) and not isinstance(site, bool) and 1 <= site <= len(ids):
            return ids[site - 1]
        if site in ids:
            return str(site)
        there = f"they are numbered from 1 to {len(ids)}, as on the cards" if ids else "this program has none"
        raise ValueError(f"there is no site {site!r}: {there}")

    def _try_together(self, ids: Collection[str]) -> Patch:
        from compiler.xray.fixes import Trials

        chosen = [fix for fix in self.fixes if fix.site in ids]
        if not chosen:
            return Patch("")
        for fix in chosen:
            if fix.suggestion is None or not fix.suggestion.can_be_applied:
                raise ValueError(f"{fix.site} has no fix to choose: {fix.words}")
        trials = Trials(self._search_once(), failure_of=self._search_causes_once().failure_of_patch)
        tried = replace(trials.try_together(self.fixes, chosen), cost=self.found.cost)
        return self._patch_of(trials.with_cost(tried))

    def _patch_of(self, tried: Tried, causes: Sequence[Cause] = (), added: Added | None = None) -> Patch:
        """The patch of the tried fixes, including `added` changes for causes of recompilation.

        Told above the diff are changes that no edit of a file makes, and causes that are left.
        """
        from compiler.xray.cause_fixes import DYNAMIC
        from compiler.xray.patch import edited_files

        cells = cell_texts()
        calls = [added.call] if added and added.call else []
        magics = dynamic_magics(self._call, cells) if added and added.is_dynamic and self._call else []
        calls += magics
        at_call = [each for each in (added.at_call if added else ()) if not (magics and each == DYNAMIC)]
        files = edited_files(tried.change, self._search_once(), cells, calls)
        told = promises(self._add_tried_fixes(tried), tried.left, tried.why_not) if self.sites else []
        done = added.causes if added else ()
        told += cause_promises(causes, done, at_call)
        return patch_of(files, told, not tried.why_not)

    def new_cell(self, sites: Sequence[str | int] | None = None) -> None:
        """Put the patched text of your cell into a new cell below this one; `sites` as for `patch`.

        Raises ValueError for a run without a call, or if the fixes edit files and no cell; RuntimeError outside of
        IPython.
        """
        if self._call is None:
            raise ValueError(NO_CALL)
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        if shell is None:
            raise RuntimeError("a new cell needs a notebook or IPython: print(run.patch()) shows the fixes anywhere")
        shell.set_next_input(self.patch(sites).cell())

    def __len__(self) -> int:
        return len(self.sites)

    def __str__(self) -> str:
        return document_text(xray_document(self.found, SourceLines(self._compiler.record)))

    def __repr__(self) -> str:
        return f"<XRayed: {len(self)} sites; print it for their cards>"


def _kept_patch(found: XRay) -> Patch:
    """The patch of a record; if no fix worked, only lines that say what is left."""
    if found.patch:
        return Patch(found.patch)
    left = replace(found, sites=found.left or (), problems=found.left_problems)
    told = promises(found, left, "") if found.sites else []
    return patch_of((), [*told, *cause_promises(found.causes, (), ())])


def _row(site: Site, fix: Fix | None) -> dict[str, Any]:
    first = fix.suggestion if fix and fix.suggestion else next(iter(site.suggestions), None)
    return {
        "file": site.file,
        "line": site.line,
        "column": site.span.column,
        "code": " ".join(site.span.code.split()),
        "function": site.function,
        "branch": "; ".join(site.branch) or None,
        "what": site.what,
        "kind": site.kind,
        "as_it_is": site.as_it_is,
        "behind": site.behind or None,
        "origins": list_origins(site.origins),
        "change": first.text if first else None,
        "applicability": first.applicability if first else None,
        "fix": fix.state if fix else None,
        "tried": fix.words if fix else None,
        "note": site.note or None,
        "id": site.id,
    }


def _from_1(table: pd.DataFrame) -> pd.DataFrame:
    """The table with rows numbered from 1, as the cards are."""
    return table.set_axis(range(1, len(table) + 1))


def _ids_together(fixes: Iterable[Fix]) -> frozenset[str]:
    return frozenset(fix.site for fix in fixes if fix.together)
