"""The result of `run.xray()`: all sites of a program's graph breaks, as data, a table and cards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compiler.record import Fix, Site, XRay
from explorer.findings.xray import search_notes, site_cards, xray_document
from explorer.reading.source_lines import SourceLines
from explorer.render.text import card_texts, document_text
from explorer.run.compiling import KernelCompiler

if TYPE_CHECKING:
    import pandas as pd

    from compiler.calls.call import Call
    from compiler.xray.search import Search

NO_CALL = (
    "this run has no call to x-ray: it was loaded from a file, or its code calls torch.compile itself. Explore the "
    "call here first: %%tcompile, or tcompile.explore(model, x)"
)


class XRayed:
    """All sites of a program's graph breaks. Prints as cards; `sites` has plain data, `table` is a DataFrame.

    The results are kept in the run's record, so a saved run has them.
    """

    def __init__(self, compiler: KernelCompiler, call: Call | None) -> None:
        self._compiler, self._call = compiler, call
        self._search: Search | None = None

    def find_sites(self) -> XRayed:
        """Search for the sites unless the record has them; return this x-ray. Raises ValueError without a call."""
        _ = self.found
        return self

    @property
    def found(self) -> XRay:
        """The results as plain data."""
        return self._compiler.record.xray or self._keep(self._searched().found)

    def _searched(self) -> Search:
        if self._call is None:
            raise ValueError(NO_CALL)
        if self._search is None:
            from compiler.xray.search import search_sites

            self._search = search_sites(self._call, self._compiler.record)
        return self._search

    def _keep(self, found: XRay) -> XRay:
        self._compiler.grow(lambda record: record.with_fields(xray=found))
        return found

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites in the order found, each with `file`, `line`, `span`, `kind`, `origins`."""
        return self.found.sites

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
    def cards(self) -> list[str]:
        """The card of each site as text."""
        return card_texts(site_cards(self.found, SourceLines(self._compiler.record)))

    @property
    def table(self) -> pd.DataFrame:
        """One row per site: place, cause, whether it is behind another, and the fix, if tried."""
        from explorer.reading.data_frames import table_of

        fixes = {fix.site: fix for fix in self.fixes}
        return table_of("sites", [_row(site, fixes.get(site.id)) for site in self.sites])

    def try_fixes(self) -> XRayed:
        """Apply the suggestions for each site, alone and together, and compare results and side effects of the call.

        A fix is "verified" if its break is gone, it causes no new break, and results, gradients, output, logs and
        attributes are the same, also on other inputs. Returns this x-ray, with the fixes in its cards and table.
        """
        if self.found.left is None:
            from compiler.xray.fixes import Trials
            from compiler.xray.patch import patch_of

            search = self._searched()
            tried = Trials(search).run()
            self._keep(
                replace(
                    self.found,
                    fixes=tried.fixes,
                    patch=patch_of(tried.change, search),
                    left=tried.left.sites,
                    left_problems=tried.left.problems,
                )
            )
        return self

    def patch(self) -> str:
        """The fixes that work together, as a unified diff of your files or cell; tries the fixes first if necessary.

        The files themselves are not changed. "" if no fix works.
        """
        return self.try_fixes().found.patch

    def __len__(self) -> int:
        return len(self.sites)

    def __str__(self) -> str:
        return document_text(xray_document(self.found, SourceLines(self._compiler.record)))

    def __repr__(self) -> str:
        return f"<XRayed: {len(self)} sites; print it for their cards>"


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
        "origins": "; ".join(f"{each.name}: line {each.span.line}" for each in site.origins) or None,
        "change": first.text if first else None,
        "applicability": first.applicability if first else None,
        "fix": fix.state if fix else None,
        "tried": fix.words if fix else None,
        "note": site.note or None,
        "id": site.id,
    }
