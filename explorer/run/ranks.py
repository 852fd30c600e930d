"""`run.ranks`: the ranks of a job, as text, as a table, and as runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.distributed.ranks import Ranks
from compiler.record import Record
from explorer.findings.rank_grid import ranks_document
from explorer.reading.columns import columns
from explorer.reading.data_frames import frame_of
from explorer.render.static import document_html
from explorer.run.files import replace_file
from explorer.run.rank_page import known_rank, live_ranks, page_of_ranks, rank_difference

if TYPE_CHECKING:
    import pandas as pd

    from explorer.run.job_facts import JobFacts
    from explorer.run.run import Run


@dataclass(frozen=True)
class RankRuns(Ranks):
    """The ranks of a job. Prints which were simulated, which are equal, and which wait for each other.

    In a notebook it is a grid: a click opens a rank, two clicks show how two ranks differ.

    >>> print(run.ranks)
    >>> run.ranks.difference(0, 7)
    >>> run.ranks[7].kernels    # the run of rank 7
    >>> run.ranks.table         # one row per rank
    """

    make_run: Callable[[Record], Run] = field(kw_only=True)

    def __getitem__(self, rank: int) -> Run:
        """The run of a rank, or of a rank with equal shapes that stands for it. Raises KeyError."""
        return self.make_run(self.records[known_rank(self, rank)])

    @property
    def table(self) -> pd.DataFrame:
        """One row per rank: how it is known, its fingerprint, its number of graphs and collectives, bytes they move."""
        return frame_of([self._row(rank) for rank in range(self.world)], _COLUMNS)

    def _row(self, rank: int) -> dict[str, object]:
        like = self.stand_ins.get(rank)
        record = self.records.get(rank if like is None else like)
        known = "simulated" if rank in self.records else "unknown" if like is None else f"like rank {like}"
        if self.origin != "simulated" and known == "simulated":
            known = "recorded"
        row: dict[str, object] = {"rank": rank, "known": known}
        if record is not None:
            row |= {
                "fingerprint": self.fingerprints[rank if like is None else like],
                "graphs": len(record.of_stage("captured")),
                "collectives": len(record.collectives),
                "bytes": sum(call.bytes for call in record.collectives),
            }
        return row

    def difference(self, one: int, other: int) -> JobFacts:
        """Where two ranks differ: the first difference of each kind, with its line. Raises KeyError."""
        return rank_difference(self, one, other)

    def save(self, path: str | Path) -> Path:
        """Save the grid as a page (.html), with the record of one rank of each group. Returns the path.

        Raises ValueError for another suffix, OSError if the file can't be written.
        """
        path = Path(path)
        if path.suffix.lower() != ".html":
            raise ValueError(f"{str(path)!r}: ranks are saved as a page, '.html'; run.ranks[0].save(…) saves a record")
        return replace_file(path, page_of_ranks(self).encode())

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Text, and static HTML without scripts. The widget is a separate output."""
        html = f'<div class="tcompile-twin">{document_html(ranks_document(self))}</div>'
        return {"text/plain": repr(self), "text/html": html}

    def _ipython_display_(self) -> None:
        """Display static HTML, then the live grid, which hides the HTML; a saved notebook shows the HTML."""
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        if getattr(get_ipython(), "kernel", None) is not None:
            display(self.widget())

    def widget(self) -> Any:
        """The live grid; a click on a rank opens its record below."""
        return live_ranks(self, lambda rank: self[rank].widget())


_COLUMNS = columns(("Int64", "rank"), ("string", "known fingerprint"), ("Int64", "graphs collectives bytes"))


def rank_runs(record: Record, ranks: Ranks | None, make_run: Callable[[Record], Run]) -> RankRuns:
    """The ranks that were simulated with a record, or the record's own rank. Raises ValueError without a rank."""
    if ranks is not None:
        return RankRuns(**{each.name: getattr(ranks, each.name) for each in fields(ranks)}, make_run=make_run)
    if record.place is None:
        raise ValueError("this run is of one process without torch.distributed: simulate ranks with ranks= (--ranks 8)")
    place = record.place
    origin, hangs = record.origin, place.hangs
    return RankRuns(place.world, {place.rank: record}, place.mesh, origin=origin, told=hangs, make_run=make_run)
