"""What `run.xray()` gives: all sites of graph breaks of a program, as data, a table and cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.calls.call import Call
from compiler.record import Record
from compiler.xray.facts import Site, XRay
from explorer.findings.xray import search_notes, site_cards, xray_document
from explorer.reading.source_lines import SourceLines
from explorer.render.text import card_texts, document_text

if TYPE_CHECKING:
    import pandas as pd

NO_CALL = (
    "this run has no call to x-ray: it was loaded from a file, or its code calls torch.compile itself. Explore the "
    "call here first: %%tcompile, or tcompile.explore(model, x)"
)


class XRayed:
    """All sites of a program's graph breaks. Prints as cards; `sites` are plain data, `table` is a DataFrame."""

    def __init__(self, found: XRay, record: Record) -> None:
        self.found = found
        self._record = record

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites in the order in which they were found, each with `file`, `line`, `span`, `kind`, `origins`."""
        return self.found.sites

    @property
    def notes(self) -> tuple[str, ...]:
        """What kept the search from more, and breaks that are only consequences of others."""
        return tuple(search_notes(self.found))

    @property
    def cards(self) -> list[str]:
        """Each site as text."""
        return card_texts(site_cards(self.found, SourceLines(self._record)))

    @property
    def table(self) -> pd.DataFrame:
        """One row per site: where, what broke, whether it is behind another, where the value comes from."""
        from explorer.reading.data_frames import table_of

        return table_of("sites", [_row(site) for site in self.sites])

    def __len__(self) -> int:
        return len(self.sites)

    def __str__(self) -> str:
        return document_text(xray_document(self.found, SourceLines(self._record)))

    def __repr__(self) -> str:
        return f"<XRayed: {len(self)} sites; print it for their cards>"


def xray(call: Call | None, record: Record) -> XRayed:
    """X-ray a run's call. Raises ValueError where the run has none."""
    if call is None:
        raise ValueError(NO_CALL)
    from compiler.xray.search import find_sites

    return XRayed(find_sites(call, record), record)


def _row(site: Site) -> dict[str, Any]:
    first = site.suggestions[0] if site.suggestions else None
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
        "note": site.note or None,
        "id": site.id,
    }
